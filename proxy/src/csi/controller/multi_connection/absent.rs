//! Connections whose place for volumes does not exist yet.

use super::carried::directories;
use super::choice::BOTH;
use super::*;
use crate::testing::multi_of;

#[tokio::test]
async fn a_class_over_base_folders_that_do_not_exist_makes_its_first_volume() {
    let folder = tempfile::tempdir().expect("a folder");
    let bases = ["a", "b"].map(|name| folder.path().join(name).join("base"));
    let [a, b] = &bases;
    let service = ControllerHandler(multi_of(&[("a", directories(a)), ("b", directories(b))]));
    for again in [false, true] {
        let volume = made(&service, create("v", &BOTH)).await;
        assert_eq!(volume.expect("made").volume_id, "v:a/v", "again: {again}");
    }
    assert!(a.join("v/v").is_dir());
    assert!(!b.exists(), "only the one that makes the volume is made");
    let volume = made(&service, create("w", &[("connections", "b")])).await;
    assert_eq!(volume.expect("made").volume_id, "v:b/w");
    for id in ["v:a/v", "v:b/w"] {
        deleted(&service, id).await.expect("deleted");
    }
    assert!(!a.join("v/v").exists() && !b.join("v/w").exists());
}
