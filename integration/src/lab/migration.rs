//! Volumes that democratic-csi made, in the hands of the program.
//!
//! What democratic-csi leaves was captured (`drivers/zfs/tests/democratic_csi`); `predecessor` makes it
//! again with the same commands, without democratic-csi. The program then has it, with the same
//! configuration: nothing may be lost, and nothing may stay.

mod predecessor;

use self::predecessor::Left;
use super::calls::Node;
use super::command::run;
use super::content;
use super::fixture::{Access, Fixture, SIZE};
use super::leftovers::Leftovers;
use super::life::{LENGTH, read, step, write};
use super::served::life::{delete, lived, make, remove_snapshot, same, used};
use super::served::{Served, configured, storage};
use crate::place::Place;
use crate::volume;

/// One kind, with what was captured of it.
#[derive(Debug, Clone, Copy)]
pub struct Migration {
    served: Served,
    left: Left,
}

macro_rules! captured {
    ($kind:literal, $file:literal) => {
        include_str!(concat!(
            "../../../drivers/zfs/tests/democratic_csi/",
            $kind,
            "/",
            $file
        ))
    };
}

macro_rules! migration {
    ($kind:literal, $driver:literal, $access:literal, $config:expr) => {
        Migration {
            served: configured(
                [$kind, $driver, concat!("tank/k8s/", $kind), $config],
                Access::Mount($access),
            ),
            left: Left {
                kind: $kind,
                zfs: captured!($kind, "zfs.txt"),
                calls: captured!($kind, "calls.jsonl"),
            },
        }
    };
    ($kind:literal, $driver:literal, $access:literal) => {
        migration!($kind, $driver, $access, captured!($kind, "config.yaml"))
    };
}

/// Every kind that was captured.
pub const ALL: [Migration; 6] = [
    migration!("nfs", "zfs-generic-nfs", "nfs"),
    migration!("smb", "zfs-generic-smb", "cifs"),
    migration!("iscsi", "zfs-generic-iscsi", "ext4"),
    migration!("nvmeof", "zfs-generic-nvmeof", "ext4", NVMET),
    migration!("dataset", "zfs-local-dataset", "zfs"),
    migration!("zvol", "zfs-local-zvol", "ext4"),
];

/// No distribution has nvmetcli, so what it made is gone on with by another strategy.
const NVMET: &str = "driver: zfs-generic-nvmeof
instance_id: cluster-1
zfs:
  datasetParentName: tank/k8s/nvmeof/v
  detachedSnapshotsDatasetParentName: tank/k8s/nvmeof/s
nvmeof:
  transports: ['tcp://127.0.0.1:4420']
  shareStrategy: nvmet
  shareStrategyNvmet:
    basename: nqn.2003-01.org.linux-nvme
    ports: ['1']
    subsystem: {attributes: {allow_any_host: 1}}
";

// === impl Migration ===

impl Migration {
    /// The kind.
    pub fn name(&self) -> &'static str {
        self.left.kind
    }

    /// A volume as an orchestrator knows it from democratic-csi.
    fn fixture(&self, id: &str) -> Fixture {
        self.served.fixture(self.left.volume(id))
    }
}

/// The whole life of what was left.
///
/// # Panics
/// At whatever is wrong in it.
pub async fn whole(migration: Migration) {
    let Migration { served, left } = migration;
    let place = Place::new();
    let node = Node::start_with(served.start_on(&place)).await;
    let before = (Leftovers::read(), storage());
    let (predecessor, ours) = (content::bytes(3, LENGTH), content::bytes(4, LENGTH));

    step("make what democratic-csi leaves");
    left.make(&predecessor);

    step("use it as it is");
    let old = migration.fixture("pvc-old");
    let pod = used(&node, &old).await;
    content::same(&predecessor, &read(&old, &pod), "what was written before");
    write(&old, &pod, &ours);
    node.take_away(&old, &[&pod]).await;

    step("ask for it again");
    let asked = make(&node, served, "old", SIZE, None).await;
    assert_eq!(asked.volume, old.volume, "it is the same volume");

    step("what was made of it");
    for id in ["pvc-old-restored", "pvc-old-cloned"] {
        same(&node, &migration.fixture(id), &predecessor, id).await;
    }
    for (snapshot, name) in [
        ("pvc-old@snapshot-old", "from-attached"),
        ("pvc-old/snapshot-old-detached", "from-detached"),
    ] {
        let source = volume::from_snapshot(snapshot);
        let made = make(&node, served, name, SIZE, source).await;
        same(&node, &made, &predecessor, snapshot).await;
        delete(&node, &made).await;
    }

    step("live on without what was made of it");
    for id in ["pvc-old-cloned", "pvc-old-restored"] {
        delete(&node, &migration.fixture(id)).await;
    }
    for snapshot in ["pvc-old/snapshot-old-detached", "pvc-old@snapshot-old"] {
        remove_snapshot(&node, snapshot).await;
    }
    lived(&node, served, &old).await;

    step("what stays");
    // It bears no mark, so it may hold files of a user. compat: "ZFS".
    run(&["zfs", "destroy", &format!("{}/s/pvc-old", served.root)]);
    Leftovers::back_to(&before.0, "what was taken over").await;
    assert_eq!(storage(), before.1, "the storage is as before");
    node.end().await;
}
