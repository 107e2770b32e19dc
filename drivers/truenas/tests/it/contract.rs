//! What every driver promises, against simulated appliances of every generation.

use driver_core::contract::{Fresh, Mutable, keep_contract};
use truenas_sim::Generation;

use crate::nodes::per_node;
use crate::volumes::{QUOTAS, appliance, driver};

const MUTABLE: Mutable = Mutable {
    good: &[
        ("compression", ["zstd-7", "gzip-9"]),
        ("sync", ["always", "disabled"]),
    ],
    bad: ("sync", "off"),
};

async fn keep(generation: Generation, kind: &str, zfs: &str) {
    let zfs = format!("{zfs}  volumeParameters: [compression, sync]\n");
    keep_contract(|| async {
        let nas = appliance(generation).await;
        let fresh = Fresh::new(driver(&nas, kind, &zfs), nas).with_callers(3);
        fresh.changing(MUTABLE)
    })
    .await;
}

macro_rules! contracts {
    ($($name:ident: $generation:ident $kind:literal $zfs:expr;)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            keep(Generation::$generation, $kind, $zfs).await;
        }
    )*};
}

contracts! {
    smb_keeps_the_contract_on_24_10: V24_10 "freenas-api-smb" QUOTAS;
    smb_keeps_the_contract_on_25_10: V25_10 "truenas-api-smb" QUOTAS;
    smb_keeps_the_contract_on_26: V26Rc "truenas-api-smb" "";
    nvmeof_keeps_the_contract_on_25_10: V25_10 "freenas-api-nvmeof" "";
    nvmeof_keeps_the_contract_on_26: V26Rc "truenas-api-nvmeof" "";
    nfs_keeps_the_contract_on_the_betas_of_26: V26Beta "truenas-api-nfs" QUOTAS;
    nfs_keeps_the_contract_on_24_10: V24_10 "freenas-api-nfs" QUOTAS;
    nfs_keeps_the_contract_on_25_04: V25_04 "truenas-api-nfs" "";
    nfs_keeps_the_contract_on_25_10: V25_10 "truenas-api-nfs" QUOTAS;
    nfs_keeps_the_contract_on_26: V26Rc "truenas-api-nfs" QUOTAS;
    iscsi_keeps_the_contract_on_22_12: V22_12 "freenas-api-iscsi" "";
    iscsi_keeps_the_contract_on_24_10: V24_10 "freenas-api-iscsi" "";
    iscsi_keeps_the_contract_on_25_10: V25_10 "truenas-api-iscsi" "";
    iscsi_keeps_the_contract_on_26: V26Rc "truenas-api-iscsi" "";
}

async fn keep_with_nodes(generation: Generation, kind: &str) {
    keep_contract(|| async {
        let nas = appliance(generation).await;
        let fresh = Fresh::new(per_node(&nas, kind), nas).with_callers(3);
        fresh.holding(true)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nfs_with_nodes_keeps_the_contract() {
    keep_with_nodes(Generation::V25_10, "freenas-api-nfs").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn iscsi_with_nodes_keeps_the_contract() {
    keep_with_nodes(Generation::V24_10, "freenas-api-iscsi").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nvmeof_with_nodes_keeps_the_contract() {
    keep_with_nodes(Generation::V26Rc, "freenas-api-nvmeof").await;
}
