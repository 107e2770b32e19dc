//! Datasets and zvols of this machine, from creation to the bytes that a pod reads.
//!
//! It makes datasets in the pool `tank`, mounts them, and leaves nothing behind. It needs root and a pool
//! that may be changed: it is run in the lab, by
//! `cargo test -p driver-zfs-local --test zfs_local_in_the_lab -- --ignored --test-threads 1`.

#![expect(clippy::unwrap_used, reason = "a test fails where it panics")]
#![expect(
    clippy::disallowed_methods,
    reason = "what the machine says is asked past the runner"
)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use csi_types::attachment::AbsolutePath;
use csi_types::{Access, AccessMode, FsType, MountAccess, StageSecrets, VolumeCapability};
use driver_core::config::{Document, NoEnvironment};
use driver_core::contract::{Fresh, Mutable, keep_contract};
use driver_core::{
    Call, CreateSnapshot, CreateVolume, DeleteSnapshot, DeleteVolume, Driver, ExpandVolume, Kind,
    NodeId, Parameters, SizeRange, SnapshotName, Source, TopologyRequirement, Volume, VolumeName,
};
use driver_zfs_local::from_document;
use node_utils::blocking::Limits;
use node_utils::host::run;
use node_utils::node::TargetPath;
use node_utils::node::{ExpandRequest, NodeConfig, PublishRequest, StageRequest, StagingPath};
use node_utils::{Node, Tools};
use tokio::time::Instant;

const ROOT: &str = "tank/driver-zfs-local-test";
const MIB: i64 = 1 << 20;

/// Datasets of a test, for as long as it lives.
struct Ground {
    root: String,
}

impl Ground {
    fn new() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let root = format!("{ROOT}/{}-{number}", std::process::id());
        run("zfs", &["create", "-p", &root]);
        Self { root }
    }

    fn driver(&self, kind: &str, node: &str) -> Arc<dyn Driver> {
        let root = &self.root;
        let text = format!(
            "driver: {kind}\nzfs:\n  datasetParentName: {root}/v\n  \
             detachedSnapshotsDatasetParentName: {root}/s\n  datasetEnableQuotas: true\n  \
             datasetPermissionsMode: '0770'\n  volumeParameters: [compression, sync]\n"
        );
        let document = Document::parse(&text, &NoEnvironment).unwrap();
        let node = NodeId::parse(node).unwrap();
        from_document(&document, &node, &Tools::of_this_machine()).unwrap()
    }

    fn leftover(&self) -> String {
        let root = &self.root;
        run(
            "zfs",
            &["list", "-H", "-r", "-t", "all", "-o", "name", root],
        )
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        for destroy in [vec!["destroy", "-R", &self.root], vec!["destroy", ROOT]] {
            let _ = Command::new("zfs").args(destroy).output();
        }
    }
}

fn call() -> Call {
    Call::within(Duration::from_mins(5))
}

fn limits() -> Limits {
    Limits::until(Instant::now() + Duration::from_mins(5))
}

fn capability(fs_type: &str) -> VolumeCapability {
    let mount = MountAccess {
        fs_type: Some(FsType::parse(fs_type).unwrap()),
        ..MountAccess::default()
    };
    VolumeCapability {
        access: Access::Mount(mount),
        mode: AccessMode::SingleNodeWriter,
    }
}

async fn make(
    driver: &dyn Driver,
    name: &str,
    size: i64,
    fs_type: &str,
    source: Option<Source>,
) -> Volume {
    let name = VolumeName::parse(name).unwrap();
    let parameters = Parameters::default();
    let request = CreateVolume {
        id: driver.name_volume(&name, &parameters).unwrap(),
        name,
        size: SizeRange::new(size, 0).unwrap(),
        capabilities: vec![capability(fs_type)],
        parameters,
        secrets: BTreeMap::new(),
        source,
        topology: TopologyRequirement::default(),
    };
    let made = driver.create_volume(&call(), &request).await.unwrap();
    let again = driver.create_volume(&call(), &request).await.unwrap();
    assert_eq!(made, again);
    made
}

/// A volume in use: staged and published, below a folder of its own.
struct InUse {
    node: Node,
    staging: StagingPath,
    target: TargetPath,
    folder: PathBuf,
    _tree: tempfile::TempDir,
}

impl InUse {
    async fn new(volume: &Volume, fs_type: &str) -> Self {
        let tree = tempfile::tempdir().unwrap();
        let path = |name: &str| {
            let path = tree.path().join(name);
            AbsolutePath::parse(path.to_str().unwrap()).unwrap()
        };
        let node = Node::here(NodeConfig::default());
        let staging = StagingPath::new(path("staging")).unwrap();
        let target = TargetPath::new(path("target")).unwrap();
        let stage = StageRequest {
            staging: staging.clone(),
            attachment: volume.attachment.clone(),
            capability: capability(fs_type),
            secrets: StageSecrets::default(),
        };
        let publish = PublishRequest {
            staging: staging.clone(),
            target: target.clone(),
            attachment: volume.attachment.clone(),
            capability: capability(fs_type),
            readonly: false,
        };
        for _ in 0..2 {
            node.stage(limits(), stage.clone()).await.unwrap();
            node.publish(limits(), publish.clone()).await.unwrap();
        }
        Self {
            folder: tree.path().join("target"),
            node,
            staging,
            target,
            _tree: tree,
        }
    }

    fn file(&self) -> PathBuf {
        self.folder.join("content")
    }

    /// The room that a pod sees, in bytes.
    fn room(&self) -> u64 {
        let path = self.folder.to_str().unwrap();
        let output = run("df", &["--block-size=1", "--output=size", path]);
        output.lines().last().unwrap().trim().parse().unwrap()
    }

    async fn grow(&self, to: i64) {
        let request = ExpandRequest {
            path: AbsolutePath::parse(self.folder.to_str().unwrap()).unwrap(),
            required: u64::try_from(to).ok(),
        };
        self.node.expand(limits(), request).await.unwrap();
    }

    async fn end(self) {
        for _ in 0..2 {
            let target = self.target.clone();
            self.node.unpublish(limits(), target).await.unwrap();
            let staging = self.staging.clone();
            self.node.unstage(limits(), staging).await.unwrap();
        }
    }
}

fn content(seed: u8) -> Vec<u8> {
    let bytes = (0..3 * MIB).map(|at| u8::try_from((at * 31 + at / 4096) % 251).unwrap() ^ seed);
    bytes.collect()
}

fn write(path: &Path, bytes: &[u8]) {
    std::fs::write(path, bytes).unwrap();
    std::fs::File::open(path).unwrap().sync_all().unwrap();
}

async fn lives(kind: &str, fs_type: &str) {
    let ground = Ground::new();
    let driver = ground.driver(kind, "one");
    let size = 256 * MIB;
    let volume = make(&*driver, "pvc-1", size, fs_type, None).await;
    let in_use = InUse::new(&volume, fs_type).await;
    write(&in_use.file(), &content(1));

    let request = CreateSnapshot {
        name: SnapshotName::parse("snap-1").unwrap(),
        source: volume.id.clone(),
        parameters: Parameters::default(),
        secrets: BTreeMap::new(),
    };
    let taken = driver.create_snapshot(&call(), &request).await.unwrap();
    write(&in_use.file(), &content(2));

    let source = Some(Source::Snapshot(taken.id.clone()));
    let restored = make(&*driver, "pvc-2", size, fs_type, source).await;
    let beside = InUse::new(&restored, fs_type).await;
    assert_eq!(std::fs::read(beside.file()).unwrap(), content(1));
    assert_eq!(std::fs::read(in_use.file()).unwrap(), content(2));
    beside.end().await;

    let before = in_use.room();
    let larger = SizeRange::new(2 * size, 0).unwrap();
    let grown = driver
        .expand_volume(&call(), ExpandVolume::new(&volume.id, larger))
        .await;
    if grown.unwrap().node_expansion_required {
        in_use.grow(2 * size).await;
    }
    assert!(in_use.room() > before + 200 * MIB.unsigned_abs());
    assert_eq!(std::fs::read(in_use.file()).unwrap(), content(2));
    in_use.end().await;

    // A node whose pool has nothing of it.
    let elsewhere = Ground::new();
    let stranger = elsewhere.driver(kind, "other");
    let refused = stranger
        .delete_volume(&call(), DeleteVolume::new(&volume.id))
        .await;
    assert_eq!(refused.unwrap_err().kind(), Kind::Unreachable);

    driver
        .delete_volume(&call(), DeleteVolume::new(&restored.id))
        .await
        .unwrap();
    driver
        .delete_snapshot(&call(), DeleteSnapshot::new(&taken.id))
        .await
        .unwrap();
    for _ in 0..2 {
        driver
            .delete_volume(&call(), DeleteVolume::new(&volume.id))
            .await
            .unwrap();
    }
    assert!(!ground.leftover().contains("pvc-"), "{}", ground.leftover());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "changes a pool of this machine"]
async fn a_dataset_of_the_node_is_written_restored_grown_and_deleted() {
    lives("zfs-local-dataset", "zfs").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "changes a pool of this machine"]
async fn a_zvol_of_the_node_is_written_restored_grown_and_deleted() {
    lives("zfs-local-zvol", "ext4").await;
}

async fn keep(kind: &'static str) {
    keep_contract(|| async {
        let ground = Ground::new();
        // A parent that is missing may be one of another storage.
        run("zfs", &["create", &format!("{}/v", ground.root)]);
        let driver = ground.driver(kind, "one");
        // Emulated, a command takes a second.
        let mutable = Mutable {
            good: &[
                ("compression", ["zstd", "lz4"]),
                ("sync", ["always", "disabled"]),
            ],
            bad: ("sync", "on"),
        };
        let fresh = Fresh::new(driver, ground).with_callers(2);
        fresh.changing(mutable)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "changes a pool of this machine"]
async fn datasets_of_the_node_keep_the_contract() {
    keep("zfs-local-dataset").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "changes a pool of this machine"]
async fn zvols_of_the_node_keep_the_contract() {
    keep("zfs-local-zvol").await;
}
