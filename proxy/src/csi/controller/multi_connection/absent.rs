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

/// A connection to ZFS or TrueNAS before its first volume.
#[tokio::test]
async fn a_connection_without_a_parent_of_volumes_is_left_out_of_the_lists_of_all_others() {
    let (service, [a, b]) = two();
    a.fill(["x".to_owned(), "y".to_owned()], "/x");
    for max in [0, 1] {
        b.trouble(Trouble::NoParent);
        let volumes = listed(&service, max).await.expect("it ends well");
        assert_eq!(volumes, ["v:a/x", "v:a/y"], "{max} at once");
    }
    // One that is silent is missing all the same.
    a.trouble(Trouble::Fail(Kind::Unreachable, Effect::None));
    b.trouble(Trouble::NoParent);
    let (_, status) = listed(&service, 0).await.expect_err("not whole");
    assert!(status.message().contains("`a`"), "{}", status.message());
}

#[tokio::test]
async fn a_list_of_no_connection_with_a_parent_of_volumes_is_no_empty_list() {
    let (service, drivers) = two();
    for driver in &drivers {
        driver.trouble(Trouble::NoParent);
    }
    let (volumes, status) = listed(&service, 0).await.expect_err("nothing is known");
    assert_eq!((volumes.len(), status.code()), (0, Code::Unavailable));
    // The snapshots of a volume of such a connection are asked of that connection alone.
    drivers[0].trouble(Trouble::NoParent);
    let request = v1::ListSnapshotsRequest {
        source_volume_id: "v:a/x".to_owned(),
        ..Default::default()
    };
    let status = service.list_snapshots(Request::new(request)).await;
    assert_eq!(status.expect_err("alone").code(), Code::Unavailable);
}
