//! The contract suite, for each release and both sorts of targets.

use std::sync::Arc;

use driver_core::contract::{Fresh, keep_contract};
use synology_sim::Version;

use crate::nas::{MODES, Nas};

async fn keep(version: Version) {
    for mode in MODES {
        keep_contract(|| async {
            let nas = Nas::start(version, mode).await;
            let (cut, driver) = (nas.sim.cutter(), Arc::clone(&nas.driver));
            Fresh::new(driver, nas).cutting(cut)
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn luns_of_dsm_6_2_keep_the_contract() {
    keep(Version::V6_2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn luns_of_dsm_7_1_keep_the_contract() {
    keep(Version::V7_1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn luns_of_dsm_7_2_keep_the_contract() {
    keep(Version::V7_2).await;
}

async fn keep_shares(version: Version, kind: &str) {
    keep_contract(|| async {
        let nas = Nas::of_shares(version, kind).await;
        let (cut, driver) = (nas.sim.cutter(), Arc::clone(&nas.driver));
        Fresh::new(driver, nas).cutting(cut)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shared_folders_over_nfs_keep_the_contract() {
    for version in [Version::V6_2, Version::V7_1, Version::V7_2] {
        keep_shares(version, "nfs").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shared_folders_over_smb_keep_the_contract() {
    for version in [Version::V6_2, Version::V7_1, Version::V7_2] {
        keep_shares(version, "smb").await;
    }
}
