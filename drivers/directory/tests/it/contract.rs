//! The contract that every driver keeps, on directories.

use std::sync::Arc;

use driver_core::contract::{Fresh, keep_contract};

#[tokio::test(flavor = "multi_thread")]
async fn local_hostpath_keeps_the_contract_of_a_driver() {
    keep_contract(|| async {
        let dir = tempfile::tempdir().expect("folder");
        let base = dir.path().join("base");
        // The suite also deletes before it makes anything.
        let driver = crate::common::driver(&base, "  createBase: true\n");
        Fresh::new(Arc::new(driver), dir).grouping(&[("consistency", "none")])
    })
    .await;
}
