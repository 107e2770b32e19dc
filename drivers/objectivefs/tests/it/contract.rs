//! The contract that every driver keeps.

use std::sync::Arc;

use driver_core::contract::{Fresh, keep_contract};
use driver_core::{Driver as _, Parameters, VolumeName};

use crate::stand_in::StandIn;

#[tokio::test(flavor = "multi_thread")]
async fn objectivefs_keeps_the_contract_of_a_driver() {
    keep_contract(|| async {
        let tool = StandIn::new();
        let driver = tool.driver();
        Fresh::new(Arc::new(driver), tool).with_callers(4)
    })
    .await;
}

#[test]
fn names_become_the_ids_of_democratic_csi_where_it_would_not_confuse_volumes() {
    let tool = StandIn::new();
    let driver = tool.driver();
    let id = |name: &str| {
        let name = VolumeName::parse(name).expect("a name");
        let id = driver.name_volume(&name, &Parameters::default());
        id.expect("an id").as_str().to_owned()
    };
    assert_eq!(id("pvc-1"), "pvc-1");
    assert_eq!(id(&"n".repeat(62)), "n".repeat(62));
    assert_eq!(id(&"n".repeat(63)).len(), 62);
    let mapped = ["PVC-1", "Pvc-1", "pvc-1"].map(id);
    assert!(mapped.iter().all(|id| !id.contains(char::is_uppercase)));
    assert_eq!(
        mapped
            .iter()
            .collect::<std::collections::HashSet<_>>()
            .len(),
        3
    );
}
