//! The driver on real ZFS keeps the contract of drivers, on the machine this runs on.
//!
//! It makes datasets in the pool `tank` and leaves none behind. It needs root and a pool that may be
//! changed: it is run in the lab, by
//! `cargo test -p driver-zfs-cli --all-features --test contract_in_the_lab -- --ignored --test-threads 1`.

#![expect(clippy::unwrap_used, reason = "a test fails where it panics")]
#![expect(
    clippy::disallowed_methods,
    reason = "what others do on the storage host is done past the runner"
)]

#[path = "common/bare.rs"]
mod bare;
#[expect(dead_code, reason = "the suite counts nothing")]
mod common;
#[path = "common/ground.rs"]
#[expect(dead_code, reason = "the suite looks through the driver alone")]
mod ground;

use std::sync::Arc;

use driver_core::contract::{Fresh, Mutable, keep_contract};
use driver_zfs::observed::VolumeKind;
use ground::Ground;

/// Values that ZFS shows in another way than they are set are among them.
const MUTABLE: Mutable = Mutable {
    good: &[
        ("compression", ["gzip-6", "zstd-fast-1"]),
        ("sync", ["always", "standard"]),
        ("logbias", ["throughput", "latency"]),
    ],
    bad: ("compression", "zstd-20"),
};

async fn keep(kind: VolumeKind, section: &'static str) {
    keep_contract(|| async {
        let ground = Ground::new();
        // A parent that is missing may be one of another storage.
        ground::zfs(&["create", &format!("{}/v", ground.root)]);
        let driver = ground.driver(kind, section);
        // Emulated, a command takes a second.
        let fresh = Fresh::new(Arc::new(driver), ground).with_callers(2);
        fresh.changing(MUTABLE)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "changes a pool of this machine"]
async fn filesystems_keep_the_contract() {
    keep(
        VolumeKind::Filesystem,
        "  datasetEnableQuotas: true\n  datasetPermissionsMode: '0770'\n  \
         volumeParameters: [compression, sync, logbias, recordsize]\n",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "changes a pool of this machine"]
async fn zvols_keep_the_contract() {
    keep(
        VolumeKind::Zvol,
        "  zvolCompression: lz4\n  volumeParameters: [compression, sync, logbias]\n",
    )
    .await;
}
