//! The driver on a pool in memory keeps the contract of drivers, with every kind of configuration.

use std::sync::Arc;

use driver_core::contract::{Fresh, Mutable, keep_contract};
use driver_zfs::ZfsDriver;
use driver_zfs::observed::VolumeKind;
use driver_zfs::testing::InMemory as _;
use driver_zfs::testing::{MemoryExport, MemoryHost, settings};

const MUTABLE: Mutable = Mutable {
    good: &[
        ("compression", ["zstd-7", "lz4"]),
        ("sync", ["always", "disabled"]),
    ],
    bad: ("compression", "zstd-20"),
};

/// Of zvols, which all have a size to reserve.
const OF_ZVOLS: Mutable = Mutable {
    good: &[
        ("compression", ["zstd-7", "lz4"]),
        ("reservationMode", ["refreservation", "none"]),
    ],
    bad: ("reservationMode", "auto"),
};

async fn keep(kind: VolumeKind, zfs: &'static str, coy: bool) {
    keep_with(kind, zfs, coy, false).await;
}

async fn keep_with(kind: VolumeKind, zfs: &'static str, coy: bool, nodes: bool) {
    keep_contract(|| async {
        let (third, mutable) = match kind {
            VolumeKind::Filesystem => ("quotaMode", MUTABLE),
            VolumeKind::Zvol => ("reservationMode", OF_ZVOLS),
        };
        let zfs = format!("{zfs}  volumeParameters: [sync, compression, {third}]\n");
        let mut export = MemoryExport::new(kind);
        (export.coy, export.nodes) = (coy, nodes);
        let driver = ZfsDriver::new(settings(kind, &zfs).unwrap(), MemoryHost::new(), export);
        let driver = Arc::new(driver);
        let host = driver.clone();
        let fresh = Fresh::new(driver, ()).cutting(move |parts| {
            let mut state = host.backend().state();
            state.cut_after = parts.map(|parts| state.steps + parts);
        });
        fresh.changing(mutable).holding(nodes)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn filesystems_with_quotas_keep_the_contract() {
    keep(
        VolumeKind::Filesystem,
        "  datasetEnableQuotas: true\n",
        false,
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn filesystems_without_quotas_keep_the_contract() {
    let zfs = "  datasetPermissionsMode: '0777'\n";
    keep(VolumeKind::Filesystem, zfs, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn zvols_keep_the_contract() {
    keep(VolumeKind::Zvol, "", false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn volumes_beside_children_of_their_parent_keep_the_contract() {
    keep(VolumeKind::Zvol, "  datasetChildren: [fast, bulk]\n", false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_export_that_is_known_only_when_it_is_there_keeps_the_contract() {
    keep(VolumeKind::Zvol, "  zvolBlocksize: 64K\n", true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_export_with_access_per_node_keeps_the_contract() {
    keep_with(VolumeKind::Zvol, "", false, true).await;
}
