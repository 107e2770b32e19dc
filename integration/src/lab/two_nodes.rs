//! The proxy between two machines: each is storage host and node, and one controller serves both.
//!
//! It begins with a folder in which nothing is. The main file, the Secret, the classes and the zones are
//! those that `docs/proxy.md` shows, with ZFS hosts behind them.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use csi_proto::v1 as csi;
use tonic::{Code, Status};

use super::calls::{Node, refused, until_done, within};
use super::content;
use super::fixture::Fixture;
use super::leftovers::Leftovers;
use super::life::step;
use super::pair::class::{
    self, Class, DISKS, FILES, NAMESPACES, OTHER_FILES, ROOT, SHARES, ZONED_DISKS,
};
use super::pair::{Far, digest};
use super::served;
use super::storage::cut::Cut;
use crate::server::{Launch, log_of};
use crate::volume;

/// As the main file has it.
const FOLDER: &str = "/mnt/connections";
const FILE: &str = "content";
const ZONE: &str = "org.democratic-csi.topology/zone";
/// Enough that a copy of it takes a while between emulated machines.
const MUCH: usize = 96 << 20;
/// With this many bytes at the destination the copy has started.
const STARTED: u64 = 8 << 20;

/// Nodes also report their names as initiators: some of the storage gives access by them.
const MAIN: &str = "driver: proxy
proxy:
  configFolder: /mnt/connections/
  nodeId:
    parts: {nodeName: true, iqn: true, nqn: true}
    iqnPrefix: [{shortName: d, prefix: 'iqn.1993-08.org.debian:01:'}]
    nqnPrefix: [{shortName: u, prefix: 'nqn.2014-08.org.nvmexpress:uuid:'}]
  nodeTopology:
    type: zone
    fromRegexp:
    - topologyKey: zone
      source: nodeName
      regex: (zone[0-9]+)-.*
      template: \"{match:1}\"
";

/// The controller, the node beside it, and the node on the other machine.
struct Cluster {
    controller: Node,
    near: Node,
    far: Node,
    other: Far,
    /// What was put into the folder so far.
    files: BTreeMap<String, String>,
}

/// From an empty folder to five connections on two hosts, a copy between the hosts, and a zone.
///
/// # Panics
/// At whatever is wrong in it.
pub async fn the_proxy_grows_from_nothing() {
    let other = Far::reached();
    class::prepare(&other);
    fs::create_dir_all(FOLDER).expect("a folder of the lab");
    let before = (Leftovers::read(), served::storage(), other.state());
    let mut cluster = Cluster::start(other).await;

    step("an empty folder makes nothing");
    let outcome = cluster.create(FILES, "early", None, None).await;
    let why = refused(outcome, &[Code::InvalidArgument], "there is no connection");
    assert!(why.contains(FILES.connection), "{why}");
    assert!(cluster.listed().await.is_empty());

    for (class, writer_is_near) in [
        (FILES, true),
        (DISKS, true),
        (NAMESPACES, false),
        (SHARES, false),
    ] {
        step(&format!("add the connection {}", class.connection));
        cluster.add(class);
        let fixture = cluster.made(class, "first", None).await;
        cluster.used_by_both(&fixture, writer_is_near).await;
        cluster.controller.deleted(&fixture).await;
    }

    step("copy from one host to the other, and kill the controller during the copy");
    cluster.add(OTHER_FILES);
    cluster.copied_between_hosts().await;

    step("a zone whose storage the other zone does not reach");
    cluster.add(ZONED_DISKS);
    cluster.kept_in_its_zone().await;

    step("take all away");
    assert!(cluster.listed().await.is_empty(), "nothing is left");
    Leftovers::back_to(&before.0, "the node here").await;
    assert_eq!(served::storage(), before.1, "the storage here is as before");
    assert_eq!(cluster.other.state(), before.2, "the other machine");
    cluster.controller.end().await;
    cluster.near.end().await;
}

// === impl Cluster ===

impl Cluster {
    async fn start(other: Far) -> Self {
        let launch = |mode: &str, id: &str| {
            Launch::new(MAIN)
                .set("--csi-mode", mode)
                .set("--log-level", "debug")
                .env("CSI_NODE_ID", id)
        };
        Self {
            controller: Node::start_with(launch("controller", "zone1-a")).await,
            near: Node::start_with(launch("node", "zone1-a")).await,
            far: Node::start_far(launch("node", "zone2-b"), other.clone()).await,
            other,
            files: BTreeMap::new(),
        }
    }

    /// As `kubectl` and kubelet do: the Secret is made again as a whole, and swapped.
    fn add(&mut self, class: Class) {
        let name = format!("{}.yaml", class.connection);
        self.files.insert(name, class.file());
        let folder = Path::new(FOLDER);
        let version = format!("..{}", self.files.len());
        fs::create_dir(folder.join(&version)).expect("a folder");
        for (name, text) in &self.files {
            fs::write(folder.join(&version).join(name), text).expect("a file");
            let link = folder.join(name);
            if !link.exists() {
                symlink(Path::new("..data").join(name), link).expect("a link");
            }
        }
        symlink(&version, folder.join("..new")).expect("a link");
        fs::rename(folder.join("..new"), folder.join("..data")).expect("swapped");
    }

    async fn create(
        &self,
        class: Class,
        name: &str,
        source: Option<csi::VolumeContentSource>,
        zones: Option<&[&str]>,
    ) -> Result<csi::Volume, Status> {
        let mut request = class.request(name, source);
        request.accessibility_requirements = zones.map(|zones| {
            let terms: Vec<_> = zones.iter().map(|zone| in_zone(zone)).collect();
            csi::TopologyRequirement {
                requisite: terms.clone(),
                preferred: terms,
            }
        });
        let mut controller = self.controller.server.client().controller;
        let reply = within("create", controller.create_volume(request)).await?;
        Ok(reply.into_inner().volume.expect("a volume"))
    }

    /// Asks until the volume is made, as an orchestrator does that knows nothing of the folder.
    async fn made(
        &self,
        class: Class,
        name: &str,
        source: Option<csi::VolumeContentSource>,
    ) -> Fixture {
        let made = std::cell::OnceCell::new();
        until_done("create", || async {
            let volume = self.create(class, name, source.clone(), None).await?;
            let _ = made.set(volume);
            Ok(())
        })
        .await;
        class.fixture(made.into_inner().expect("it was made"))
    }

    async fn listed(&self) -> Vec<String> {
        let mut controller = self.controller.server.client().controller;
        let request = csi::ListVolumesRequest::default();
        let reply = within("list", controller.list_volumes(request)).await;
        let entries = reply.expect("a list").into_inner().entries.into_iter();
        entries
            .filter_map(|entry| Some(entry.volume?.volume_id))
            .collect()
    }

    /// Written on one node and read on the other.
    async fn used_by_both(&self, fixture: &Fixture, writer_is_near: bool) {
        let bytes = content::bytes(7, 3 << 20);
        let mut seen = Vec::new();
        for near in [writer_is_near, !writer_is_near] {
            let (node, pod) = self.used(fixture, near).await;
            let file = pod.join(FILE);
            match (seen.is_empty(), near) {
                (true, true) => fs::write(&file, &bytes).expect("it can be written"),
                (true, false) => self.other.write(&file, &bytes),
                _ => {}
            }
            seen.push(self.digest(near, &file));
            self.taken_from(node, fixture, &pod).await;
        }
        assert_eq!(seen[0], seen[1], "both nodes see the same bytes");
        assert_eq!(seen[0], digest_of(&bytes), "and those that were written");
    }

    async fn used(&self, fixture: &Fixture, near: bool) -> (&Node, PathBuf) {
        let node = if near { &self.near } else { &self.far };
        let pod = node.pod("first");
        let attached = self.controller.attach(fixture, &node.id().await).await;
        attached.expect("the node is let in");
        node.stage(fixture).await.expect("staged");
        node.publish(fixture, &pod).await.expect("published");
        (node, pod)
    }

    async fn taken_from(&self, node: &Node, fixture: &Fixture, pod: &Path) {
        node.take_away(fixture, &[pod]).await;
        let detached = self.controller.detach(fixture, &node.id().await).await;
        detached.expect("no node uses it");
    }

    fn digest(&self, near: bool, file: &Path) -> String {
        if near {
            digest(file)
        } else {
            self.other.digest(file)
        }
    }

    /// A volume of one host becomes one of the other; the controller dies in the middle of it.
    async fn copied_between_hosts(&mut self) {
        let source = self.made(FILES, "much", None).await;
        let (node, pod) = self.used(&source, true).await;
        fs::write(pod.join(FILE), content::bytes(9, MUCH)).expect("it can be written");
        let expected = digest(&pod.join(FILE));
        self.taken_from(node, &source, &pod).await;
        let from = volume::from_volume(&source.volume.volume_id);

        let mut client = self.controller.server.client().controller;
        let request = OTHER_FILES.request("copied", from.clone());
        let call = tokio::spawn(async move { client.create_volume(request).await });
        self.arriving().await;
        self.controller.crash().await;
        let outcome = call.await.expect("the call did not panic");
        outcome.expect_err("a killed controller answers nothing");
        let listed = self.listed().await;
        let whole = std::slice::from_ref(&source.volume.volume_id);
        assert_eq!(listed, whole, "half is nothing");

        let copy = self.made(OTHER_FILES, "copied", from).await;
        let (node, pod) = self.used(&copy, false).await;
        assert_eq!(self.other.digest(&pod.join(FILE)), expected, "the copy");
        self.taken_from(node, &copy, &pod).await;
        let log = log_of(&self.controller.place);
        assert!(log.contains("\"goes_on\":true"), "it began anew: {log}");
        self.controller.deleted(&source).await;
        self.controller.deleted(&copy).await;
    }

    /// Waits until a copy has brought something to the other machine.
    async fn arriving(&self) {
        let root = format!("{ROOT}/v");
        let words = ["zfs", "list", "-Hp", "-o", "used", &root];
        let used = || self.other.run(&words).trim().parse::<u64>();
        let before = used().expect("a number");
        let deadline = tokio::time::Instant::now() + Duration::from_mins(3);
        while used().expect("a number") < before + STARTED {
            assert!(
                tokio::time::Instant::now() < deadline,
                "nothing arrives on the other machine"
            );
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Storage of one zone, while nodes of the other cannot reach it.
    async fn kept_in_its_zone(&self) {
        for (node, zone) in [(&self.near, "zone1"), (&self.far, "zone2")] {
            let mut client = node.server.client().node;
            let info = within("info", client.node_get_info(csi::NodeGetInfoRequest {})).await;
            let topology = info.expect("an answer").into_inner().accessible_topology;
            assert_eq!(topology, Some(in_zone(zone)));
        }
        // Until the connection is served.
        let early = self.made(ZONED_DISKS, "early", None).await;
        self.controller.deleted(&early).await;

        let elsewhere = self.create(ZONED_DISKS, "zoned", None, Some(&["zone1"]));
        refused(
            elsewhere.await,
            &[Code::ResourceExhausted],
            "storage of another zone",
        );
        let zones = ["zone1", "zone2"];
        let volume = self.create(ZONED_DISKS, "zoned", None, Some(&zones)).await;
        let volume = volume.expect("one zone fits");
        let [place] = &volume.accessible_topology[..] else {
            panic!("{:?}", volume.accessible_topology);
        };
        assert_eq!(place.segments[ZONE], "zone2");
        assert_eq!(place.segments["custom.prefix/custom.name"], "custom.value");

        let fixture = ZONED_DISKS.fixture(volume);
        let cut = Cut::ports(&[3260]);
        let (node, pod) = self.used(&fixture, false).await;
        self.other.write(&pod.join(FILE), b"written in its zone");
        self.taken_from(node, &fixture, &pod).await;
        let outcome = self.near.stage(&fixture).await;
        outcome.expect_err("this node does not reach it");
        cut.mend();
        self.near.take_away(&fixture, &[]).await;
        self.controller.deleted(&fixture).await;
    }
}

fn in_zone(zone: &str) -> csi::Topology {
    csi::Topology {
        segments: BTreeMap::from([(ZONE.to_owned(), zone.to_owned())]),
    }
}

fn digest_of(bytes: &[u8]) -> String {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    fs::write(file.path(), bytes).expect("it can be written");
    digest(file.path())
}
