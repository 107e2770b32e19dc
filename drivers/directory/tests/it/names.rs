//! Names that differ in case alone, where the filesystem ignores it and where it does not.

use std::path::Path;

use crate::common::{call, cannot, driver, id, leftovers, request, snapshot, snapshot_id};
use crate::fidelity::Image;
use driver_core::{DeleteSnapshot, DeleteVolume, Driver, Kind, Snapshots as _};

/// NTFS by ntfs-3g, which can ignore case as Windows does.
fn without_case() -> Result<Image, String> {
    let mkfs = ["mkfs.ntfs", "-F", "-q"];
    Image::mount_with("lowntfs-3g", "loop,ignore_case", &mkfs)
}

#[tokio::test]
async fn a_volume_whose_name_differs_in_case_alone_is_another_one() {
    let place = tempfile::tempdir().expect("a folder");
    let base = place.path().join("base");
    let driver = driver(&base, "");
    for name in ["pvc-a", "PVC-A"] {
        let made = driver.create_volume(&call(), &request(name)).await;
        made.expect("made");
        std::fs::write(base.join("v").join(name).join("file"), name).expect("written");
    }
    let deleted = driver
        .delete_volume(&call(), DeleteVolume::new(&id("PVC-A")))
        .await;
    deleted.expect("deleted");
    let left = std::fs::read_to_string(base.join("v/pvc-a/file"));
    assert_eq!(left.expect("the other"), "pvc-a");
}

#[tokio::test]
async fn where_case_is_ignored_no_volume_is_taken_for_another_one() {
    let image = match without_case() {
        Ok(image) => image,
        Err(why) => return cannot(&why),
    };
    let base = image.path();
    let driver = driver(&base, "");
    let made = driver.create_volume(&call(), &request("pvc-a")).await;
    made.expect("made");
    std::fs::write(base.join("v/pvc-a/file"), "a").expect("written");
    if !ignores_case(&base) {
        return cannot("this ntfs-3g does not ignore case");
    }
    let made = driver.create_volume(&call(), &request("pvc-a")).await;
    made.expect("it is there");

    let other = driver.create_volume(&call(), &request("PVC-A")).await;
    let other = other.expect_err("its name is taken");
    assert_eq!(other.kind(), Kind::Conflict, "{}", other.chain());
    assert!(other.chain().contains("case"), "{}", other.chain());
    let lister = driver.lister().expect("it lists");
    let found = lister.get_volume(&call(), &id("PVC-A")).await;
    assert_eq!(found.expect_err("none").kind(), Kind::NotFound);
    let deleted = driver
        .delete_volume(&call(), DeleteVolume::new(&id("PVC-A")))
        .await;
    deleted.expect("there is none of that name");

    let taken = snapshot(&driver, "pvc-a", "s").await.expect("a snapshot");
    let twin = snapshot_id(&taken.id.to_string().replace("pvc-a-s", "PVC-A-S"));
    let deleted = driver
        .delete_snapshot(&call(), DeleteSnapshot::new(&twin))
        .await;
    deleted.expect("there is none of that name");
    for file in ["v/pvc-a/file", "s/pvc-a-s/file"] {
        let left = std::fs::read_to_string(base.join(file)).expect("the other stays");
        assert_eq!(left, "a", "{file}");
    }
    let deleted = driver
        .delete_snapshot(&call(), DeleteSnapshot::new(&taken.id))
        .await;
    deleted.expect("deleted");
    let deleted = driver
        .delete_volume(&call(), DeleteVolume::new(&id("pvc-a")))
        .await;
    deleted.expect("deleted");
    assert!(!base.join("v/pvc-a").exists() && !base.join("s/pvc-a-s").exists());
    assert!(leftovers(&base).is_empty());
}

fn ignores_case(base: &Path) -> bool {
    base.join("V/PVC-A").exists()
}
