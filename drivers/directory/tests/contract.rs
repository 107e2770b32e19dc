//! The contract that every driver keeps, on directories.

mod common;

use std::sync::Arc;

use driver_core::contract::{Fresh, keep_contract};

#[tokio::test(flavor = "multi_thread")]
async fn local_hostpath_keeps_the_contract_of_a_driver() {
    keep_contract(|| async {
        let dir = tempfile::tempdir().expect("folder");
        // The suite also reads before it makes anything, so the base is there.
        let base = dir.path().join("base");
        std::fs::create_dir(&base).expect("base");
        Fresh::new(Arc::new(common::driver(&base, "")), dir)
    })
    .await;
}
