//! One of two ways to a disk is closed below a pod that writes, and the node opens it again without a call.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::calls::Node;
use super::command::run;
use super::faults::outage::{read, verify_stored};
use super::faults::writer::Writer;
use super::fixture::{Access, Export, ExportKind, Fixture};
use super::leftovers::Leftovers;
use super::life::step;
use super::storage::configfs::names;
use crate::observe::{free_port, get};
use crate::server::Launch;

/// The name of the driver in the paths of the kubelet.
const DRIVER: &str = "org.omnibus-csi.test";
/// The volumes that the node has repaired.
const REPAIRS: &str = "omnibus_csi_node_repairs_total";
/// Two looks, a minute apart, and a repair on an emulated processor.
const SOON: Duration = Duration::from_mins(3);
/// The batches that show that a pod writes, and the time that they may take.
const BATCHES: usize = 20;
const PATIENCE: Duration = Duration::from_mins(1);

/// The figures of a program, by its own port.
#[derive(Debug)]
pub struct Figures {
    port: u16,
}

/// A session or a controller is closed by hand. The pod writes on by the other one, and by the first one alone when that is back.
///
/// # Panics
/// If it does not come back, the pod gets an error, a byte is wrong or anything is left.
pub async fn a_way_comes_back(export_kind: ExportKind) {
    let fixture = export_kind.fixture("healed", Access::Mount("ext4"));
    let before = Leftovers::read();
    let figures = Figures::on_a_free_port();
    let launch = Launch::new("driver: node-manual\n")
        .set("--csi-mode", "node")
        .set("--csi-name", DRIVER);
    let node = Node::start_with(figures.of(launch)).await;
    let node = node.below_the_kubelet(DRIVER);
    let pod = node.pod("writer");
    node.stage(&fixture).await.expect("staged");
    node.publish(&fixture, &pod).await.expect("published");
    let all = ways(&fixture);
    assert_eq!(open(&fixture), all, "there is a way by each address");
    let writer = Writer::start(&pod, 13);
    writes(&writer).await;

    let (first, second) = (all.first().expect("two"), all.last().expect("two"));
    step(&format!("the way by {second} is closed by hand"));
    let closed = Instant::now();
    close(&fixture, second);
    assert!(!open(&fixture).contains(second), "it is closed");
    writes(&writer).await;
    while open(&fixture) != all {
        assert!(closed.elapsed() < SOON, "it does not come back");
        sleep(Duration::from_millis(200)).await;
    }
    step(&format!(
        "MEASURED open again {:.1} s after it was closed",
        closed.elapsed().as_secs_f64()
    ));
    figures.reach(REPAIRS, 1).await;

    step(&format!("the way by {first} is closed by hand"));
    close(&fixture, first);
    writes(&writer).await;
    let written = writer.end().await;

    step("what is there");
    // What the node remembers is no proof.
    fs::write("/proc/sys/vm/drop_caches", "3").expect("caches can be dropped");
    written.verify("the pod", |part| read(&pod.join(part)));
    node.take_away(&fixture, &[&pod]).await;
    Leftovers::back_to(&before, "the closed ways").await;
    node.end().await;
    fixture.remove();
    verify_stored(&written, &fixture);
}

/// Waits until a pod has written for a while.
///
/// # Panics
/// If it does not, as after an error.
pub async fn writes(writer: &Writer) {
    let went_on = writer.goes_on(Instant::now(), BATCHES, PATIENCE).await;
    went_on.expect("the pod writes");
}

/// The addresses of a volume.
fn ways(fixture: &Fixture) -> BTreeSet<String> {
    match &fixture.export {
        Export::Iscsi(target, _) => target.portals.iter().cloned().collect(),
        Export::Nvmeof(subsystem, _) => {
            let ports = subsystem.ports.iter();
            ports.map(|(host, port)| format!("{host}:{port}")).collect()
        }
        other => panic!("{other:?} has one way alone"),
    }
}

/// The addresses by which this machine has a session or a controller that works. It has none of other volumes.
fn open(fixture: &Fixture) -> BTreeSet<String> {
    let class = Path::new("/sys/class");
    if let Export::Iscsi(..) = fixture.export {
        let connections = class.join("iscsi_connection");
        let works = |name: &String| {
            let session = name.replace("connection", "session");
            let session = session.trim_end_matches(":0");
            word(&class.join("iscsi_session").join(session).join("state")) == "LOGGED_IN"
        };
        let all = names(&connections).into_iter().filter(works);
        return all
            .map(|name| {
                let part = |part: &str| word(&connections.join(&name).join(part));
                let [host, port] = ["persistent_address", "persistent_port"].map(part);
                format!("{host}:{port}")
            })
            .collect();
    }
    let controllers = controllers().into_iter();
    let live = controllers
        .filter(|(name, _)| word(&class.join("nvme").join(name).join("state")) == "live");
    live.map(|(_, address)| address).collect()
}

/// Closes the session or the controller of an address, as an administrator does.
fn close(fixture: &Fixture, address: &str) {
    if let Export::Iscsi(target, _) = &fixture.export {
        let of_target = ["iscsiadm", "-m", "node", "-T", &target.iqn];
        run(&[&of_target[..], &["-p", address, "--logout"]].concat());
        return;
    }
    for (name, _) in controllers().iter().filter(|(_, known)| known == address) {
        run(&["nvme", "disconnect", "-d", name]);
    }
}

/// The NVMe controllers of this machine with their addresses.
fn controllers() -> Vec<(String, String)> {
    let folder = Path::new("/sys/class/nvme");
    let address = |name: &str| {
        let words = word(&folder.join(name).join("address"));
        let value = |key: &str| {
            let mut pairs = words.split(',').filter_map(|pair| pair.split_once('='));
            let found = pairs.find(|(known, _)| *known == key);
            found.map_or_else(String::new, |(_, value)| value.to_owned())
        };
        format!("{}:{}", value("traddr"), value("trsvcid"))
    };
    let all = names(folder).into_iter();
    all.map(|name| (name.clone(), address(&name))).collect()
}

fn word(file: &Path) -> String {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.trim().to_owned()
}

// === impl Figures ===

impl Figures {
    /// Of a program that is not started yet.
    pub fn on_a_free_port() -> Self {
        Self { port: free_port() }
    }

    /// The same program, with that port.
    pub fn of(&self, launch: Launch) -> Launch {
        launch.set("--metrics-address", &format!("127.0.0.1:{}", self.port))
    }

    /// Waits until a count of what was done is what it should be.
    ///
    /// # Panics
    /// If it is not within a few minutes, or greater.
    pub async fn reach(&self, metric: &str, expected: u64) {
        let began = Instant::now();
        loop {
            let done = self.done(metric).await;
            if done == expected {
                return;
            }
            assert!(
                done < expected && began.elapsed() < SOON,
                "{metric}: {done}, and not {expected}"
            );
            sleep(Duration::from_millis(200)).await;
        }
    }

    /// The present count of what was done.
    ///
    /// # Panics
    /// If the program does not answer.
    pub async fn done(&self, metric: &str) -> u64 {
        let text = get(self.port, "/metrics").await.expect("its figures");
        let is_done = |line: &&str| line.starts_with(metric) && line.contains("outcome=\"done\"");
        let counts = text.lines().filter(is_done);
        let counts = counts.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
        counts.sum()
    }
}
