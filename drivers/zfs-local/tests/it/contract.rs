//! The drivers on a pool in memory keep the contract of drivers.

use std::sync::Arc;

use driver_core::NodeId;
use driver_core::contract::{Fresh, Mutable, keep_contract};
use driver_zfs::observed::VolumeKind;
use driver_zfs::testing::{MemoryHost, settings};
use driver_zfs_local::NodeZfs;

const MUTABLE: Mutable = Mutable {
    good: &[
        ("logbias", ["latency", "throughput"]),
        ("compression", ["gzip-6", "zstd-fast-20"]),
    ],
    bad: ("logbias", "fast"),
};

async fn keep(kind: VolumeKind, zfs: &'static str) {
    keep_contract(|| async {
        let zfs = format!("{zfs}  volumeParameters: [logbias, compression]\n");
        let node = NodeId::parse("node-1").unwrap();
        let driver = NodeZfs::new(settings(kind, &zfs).unwrap(), MemoryHost::new(), &node);
        Fresh::new(Arc::new(driver), ()).changing(MUTABLE)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn datasets_of_the_node_keep_the_contract() {
    let zfs = "  datasetEnableQuotas: true\n  datasetPermissionsMode: '0777'\n";
    keep(VolumeKind::Filesystem, zfs).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn zvols_of_the_node_keep_the_contract() {
    keep(VolumeKind::Zvol, "").await;
}
