//! The power of the storage host is cut for a while under pods of another machine.
//!
//! The storage host is the machine `storage` of a pair: its memory and its sessions are gone. It brings back its pool
//! and its exports itself, or the controller does; no call asks for that. On the machine `node` run the program, fio,
//! and a [`Writer`] that notes when each of its blocks was stored.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::absence::answers;
use super::fio::Fio;
use super::outage::{ask_again, read, sound};
use super::writer::Writer;
use crate::lab::calls::{Node, until_done};
use crate::lab::fixture::Fixture;
use crate::lab::given;
use crate::lab::leftovers::Leftovers;
use crate::lab::life::step;
use crate::lab::outside::{self, Demand, Machine};
use crate::lab::pair::class::{self, Class, FIRST};
use crate::lab::pair::{Far, STORAGE};
use crate::wait::until;

/// The volume is writable so soon after the storage's port answers.
const AGAIN: Duration = Duration::from_secs(30);
/// The time to wait, so that a failure shows how long it really takes.
const PATIENCE: Duration = Duration::from_mins(5);
/// The time for an emulated machine to start, and for the controller to restore an export.
const STARTING: Duration = Duration::from_mins(15);
/// The number of batches that are written before and after.
const BATCHES: usize = 20;

/// The time that the power is off.
pub fn outage() -> Duration {
    given::outage().unwrap_or(Duration::from_secs(30))
}

/// The processes of a pod, in a folder of a volume.
struct Load {
    folder: PathBuf,
    writer: Writer,
    fio: Fio,
}

/// An outage that is over for who waits at the port.
struct Outage {
    /// When the port fell silent.
    away: Instant,
    /// When it answered again.
    back: Instant,
    /// The calls of an orchestrator that was restarted.
    asking: JoinHandle<()>,
    /// The start of the machine.
    start: JoinHandle<()>,
}

/// The pod goes on by itself, or, if it met an error, another one does in its place, soon after the storage is back.
///
/// # Panics
/// If it takes longer, a byte is wrong, or anything is left.
pub(in crate::lab) async fn pods_go_on(class: Class) {
    let storage = Far::reached();
    class::prepare(&storage);
    class::name_nodes(&storage);
    if class.is_device() {
        // A disk acknowledges what its cache has, and a flush after the power cut succeeds without it.
        storage.run(&["zfs set sync=always tank"]);
    }
    let before = (Leftovers::read(), datasets(&storage));
    let controller = Node::start_with(class.launch("controller", FIRST)).await;
    let node = Arc::new(Node::start_with(class.launch("node", FIRST)).await);
    let fixture = Arc::new(class.made(&controller, "outage").await);
    let attached = controller.attach(&fixture, FIRST).await;
    attached.expect("the node is let in");
    let pod = node.pod("writer");
    node.stage(&fixture).await.expect("staged");
    node.publish(&fixture, &pod).await.expect("published");
    let mut load = Load::start(&pod, 21);
    let first = load.writer.goes_on(Instant::now(), BATCHES, PATIENCE).await;
    first.expect("the writer writes");
    assert!(load.fio.is_running(), "fio is not there for the outage");

    let mut outage = Outage::of(class, &storage, &node, &fixture).await;
    let (away, back) = (outage.away, outage.back);
    let writable = load.writer.goes_on(back, 1, PATIENCE).await;
    let (how, load, writable) = if let Some(writable) = writable {
        outage.is_quiet().await;
        ("the same pod wrote", load, writable)
    } else {
        let (load, writable) = load.replaced(&mut outage, &node, &fixture).await;
        ("the pod met an error, and another wrote", load, writable)
    };
    outage.over().await;
    let late = (writable - back).as_secs_f64();
    let silent = (back - away).as_secs_f64();
    outside::note(&format!(
        "{how} {late:.1} s after the port answered, which had been silent for {silent:.0} s"
    ));
    assert!(writable - back <= AGAIN, "writable only after {late:.1} s");
    if class.is_device() && load.folder == pod {
        sound(&pod);
    }
    load.ends_well().await;

    step("take away");
    node.take_away(&fixture, &[&pod]).await;
    let detached = controller.detach(&fixture, FIRST).await;
    detached.expect("no node uses it");
    controller.deleted(&fixture).await;
    Leftovers::back_to(&before.0, "the outage").await;
    assert_eq!(datasets(&storage), before.1, "the storage is as before");
    controller.end().await;
    let node = Arc::into_inner(node).expect("the only owner");
    node.end().await;
}

fn datasets(storage: &Far) -> String {
    storage.run(&["zfs list -H -r -t all -o name tank"])
}

// === impl Outage ===

impl Outage {
    /// Cuts the power, until the port answers again.
    async fn of(class: Class, storage: &Far, node: &Arc<Node>, fixture: &Arc<Fixture>) -> Self {
        let off = outage();
        step(&format!("the power is cut for {off:?}"));
        // Of what is tested the storage host has settled before: its shares, its saved targets.
        storage.run(&["sync"]);
        let address = STORAGE.parse::<IpAddr>().expect("an address");
        let address = SocketAddr::from((address, class.port()));
        let power_cut = Demand::PowerCut(Machine::Storage, off);
        let start = tokio::spawn(outside::ask(power_cut));
        let away = comes_to(address, false, PATIENCE).await;
        let is_over = Arc::new(AtomicBool::new(false));
        let asking = ask_again(Arc::clone(node), Arc::clone(fixture), Arc::clone(&is_over));
        let asking = tokio::spawn(asking);
        let back = comes_to(address, true, off + STARTING).await;
        step("the port answers");
        is_over.store(true, Ordering::Relaxed);
        assert!(back - away >= off / 2, "the storage was not away");
        Self {
            away,
            back,
            asking,
            start,
        }
    }

    /// Waits for the end of the calls of the node.
    async fn is_quiet(&mut self) {
        (&mut self.asking).await.expect("every call ended");
    }

    /// Waits until the machine has started, after that.
    async fn over(self) {
        let ended = timeout(STARTING, self.start).await;
        ended.expect("it ends").expect("it does not panic");
    }
}

/// Waits until a port answers, or until it does not; when that was.
async fn comes_to(address: SocketAddr, wanted: bool, limit: Duration) -> Instant {
    let deadline = Instant::now() + limit;
    while answers(address) != wanted {
        let what = if wanted { "answers" } else { "falls silent" };
        assert!(Instant::now() < deadline, "{address} never {what}");
        sleep(Duration::from_millis(100)).await;
    }
    Instant::now()
}

// === impl Load ===

impl Load {
    fn start(folder: &Path, seed: u64) -> Self {
        Self {
            folder: folder.to_owned(),
            writer: Writer::start(folder, seed),
            fio: Fio::start(folder),
        }
    }

    /// Another pod takes the place of one that met an error, as an orchestrator does it; when it first wrote.
    async fn replaced(
        self,
        outage: &mut Outage,
        node: &Node,
        fixture: &Fixture,
    ) -> (Self, Instant) {
        assert!(self.writer.has_failed(), "the pod neither writes nor fails");
        step("the pod met an error, and is replaced");
        let pod = &self.folder;
        let written = self.writer.failed().await;
        self.fio.kill().await;
        // One call for a volume after the other, as kubelet makes them.
        outage.is_quiet().await;
        until_done("unpublish", || node.unpublish(fixture, pod)).await;
        until_done("stage", || node.stage(fixture)).await;
        until_done("publish", || node.publish(fixture, pod)).await;
        let folder = pod.join("again");
        // A share may be connecting yet.
        until("a folder of the new pod", || {
            fs::create_dir_all(&folder).ok()
        })
        .await;
        let load = Self::start(&folder, 22);
        let writable = load.writer.goes_on(outage.back, 1, PATIENCE).await;
        let writable = writable.expect("the new pod writes");
        written.verify_at_least("the pod before", |part| read(&pod.join(part)));
        (load, writable)
    }

    /// Everything is written and read back.
    async fn ends_well(self) {
        let on = self.writer.goes_on(Instant::now(), BATCHES, PATIENCE).await;
        on.expect("the writer goes on");
        let written = self.writer.end().await;
        self.fio.end().await;
        // What the node remembers is no proof.
        fs::write("/proc/sys/vm/drop_caches", "3").expect("caches can be dropped");
        written.verify("the pod", |part| read(&self.folder.join(part)));
    }
}
