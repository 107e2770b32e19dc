//! The contract that every driver keeps, by one that has no volumes; and what its configuration says.

use std::sync::Arc;

use driver_core::config::{Document, NoEnvironment, Severity};
use driver_core::contract::{Fresh, keep_contract};
use driver_core::{Call, DeleteVolume, Driver, PageRequest, VolumeId};
use driver_node_manual::NodeManual;

fn from(yaml: &str) -> (Document, NodeManual) {
    let document = Document::parse(yaml, &NoEnvironment).expect("yaml");
    let driver = NodeManual::from_document(&document).expect("a driver");
    (document, driver)
}

#[tokio::test]
async fn node_manual_keeps_the_contract_of_a_driver_without_volumes() {
    keep_contract(|| async { Fresh::new(Arc::new(from("driver: node-manual").1), ()) }).await;
}

#[tokio::test]
async fn calls_of_the_controller_are_refused_with_advice() {
    let (_, driver) = from("driver: node-manual");
    let call = Call::within(std::time::Duration::from_mins(1));
    let id = VolumeId::parse("some/volume of mine").expect("an id");
    let listed = (&driver as &dyn Driver)
        .list_volumes(&call, &PageRequest::default())
        .await;
    let deleted = driver.delete_volume(&call, DeleteVolume::new(&id)).await;
    for error in [listed.expect_err("no list"), deleted.expect_err("no end")] {
        let text = error.chain();
        assert!(text.contains("not supported"), "{text}");
        assert!(text.contains("write a PersistentVolume"), "{text}");
    }
}

#[test]
fn keys_about_making_volumes_have_no_effect_and_the_configuration_says_so() {
    let (document, _) = from(
        "
        driver: node-manual
        csi: {access_modes: [SINGLE_NODE_WRITER]}
        _private: {csi: {volume: {idTemplate: 'a-{{name}}', idHash: {strategy: md5}, deleteStrategy: retain}}}
        node: {mount: {mount_flags: noatime}}",
    );
    let findings = document.findings();
    let idle: Vec<&str> = findings.iter().map(|found| found.path.as_str()).collect();
    assert_eq!(
        idle,
        [
            "csi.access_modes",
            "_private.csi.volume.idTemplate",
            "_private.csi.volume.idHash",
            "_private.csi.volume.deleteStrategy",
        ]
    );
    assert!(
        findings
            .iter()
            .all(|found| found.severity == Severity::NoEffect)
    );
    assert_eq!(from("driver: node-manual").0.findings(), []);
}
