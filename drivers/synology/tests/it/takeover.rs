//! Volumes of democratic-csi are ours, and ours are its: names, numbers, notes.

use csi_types::Attachment;
use driver_core::{
    FindVolume, Found, GetSnapshot, Kind, PageRequest, SnapshotFilter, SnapshotId, Source,
};
use serde_json::json;
use synology_sim::Version;

use crate::nas::{GIB, LUN, Nas, TARGET, call, id};

/// What democratic-csi makes of `CreateVolume` (src/driver/controller-synology/index.js).
fn made_by_democratic_csi(nas: &Nas, name: &str) -> String {
    let lun = json!({"type": "BLUN", "name": name, "location": "/volume1", "size": GIB});
    let lun = nas.sim.call(LUN, "create", &lun);
    let uuid = lun["data"]["uuid"].as_str().expect("a uuid").to_owned();
    let iqn = format!("iqn.2000-01.com.synology:csi.{name}");
    let target = json!({"auth_type": 0, "max_sessions": 0, "name": name, "iqn": iqn});
    let target = nas.sim.call(TARGET, "create", &target);
    let map = json!({"uuid": uuid, "target_ids": [target["data"]["target_id"]]});
    assert_eq!(nas.sim.call(LUN, "map_target", &map)["success"], true);
    uuid
}

#[tokio::test]
async fn a_volume_of_democratic_csi_is_found_grown_snapshotted_copied_and_deleted() {
    let nas = Nas::start(Version::V7_1, "namePrefix: K8S-\nnameSuffix: '-X'").await;
    let uuid = made_by_democratic_csi(&nas, "k8s-pvc-1-x");
    let id = id("pvc-1");
    let found = nas
        .driver
        .find_volume(&call(), FindVolume::new(&id))
        .await
        .expect("found");
    assert_eq!(found, Found::Whole);
    let volume = nas.create("pvc-1", None).await;
    assert_eq!(volume.id, id);
    assert_eq!(nas.objects(), (1, 1), "it was taken as it is");
    let context = volume.attachment.to_context();
    for (key, value) in [
        ("node_attach_driver", "iscsi"),
        ("portal", "nas.example:3260"),
        ("portals", ""),
        ("interface", ""),
        ("iqn", "iqn.2000-01.com.synology:csi.k8s-pvc-1-x"),
        ("lun", "1"),
    ] {
        assert_eq!(context[key], value, "{key}");
    }
    assert!(!context.contains_key("device_id"));

    let snapshot = json!({"src_lun_uuid": uuid, "taken_by": "democratic-csi", "description": "snapshot-1", "is_locked": true, "is_app_consistent": true});
    let taken = nas.sim.call(LUN, "take_snapshot", &snapshot);
    let taken = taken["data"]["snapshot_uuid"]
        .as_str()
        .expect("a uuid")
        .to_owned();
    let ours = nas.snapshot(&id, "snapshot-1").await;
    assert_eq!(ours.id.as_str(), format!("/lun/{uuid}/{taken}"));
    let copy = nas
        .create("copy", Some(Source::Snapshot(ours.id.clone())))
        .await;
    assert_eq!(copy.source, Some(Source::Snapshot(ours.id.clone())));

    let busy = nas.try_delete(&id).await;
    let busy = busy.expect_err("it has a snapshot");
    assert_eq!(busy.kind(), Kind::Busy);
    assert!(busy.chain().contains("snapshot-1"), "{}", busy.chain());
    let gone = nas.try_delete_snapshot(&ours.id).await;
    gone.expect("deleted");
    nas.delete(&id).await;
    nas.delete(&copy.id).await;
    assert_eq!(nas.objects(), (0, 0));
}

#[tokio::test]
async fn a_volume_of_ours_is_what_democratic_csi_looks_for() {
    let nas = Nas::start(Version::V7_2, "namePrefix: k8s-").await;
    let volume = nas.create("pvc-1", None).await;
    let snapshot = nas.snapshot(&volume.id, "snapshot-1").await;
    let lun = nas.lun("k8s-pvc-1");
    assert_eq!(lun["size"], GIB);
    assert_eq!(lun["location"], "/volume1");
    let taken = &lun["snapshots"][0];
    assert_eq!(taken["description"], "snapshot-1");
    assert_eq!(taken["taken_by"], "democratic-csi");
    let parts: Vec<&str> = snapshot.id.as_str().split('/').collect();
    assert_eq!(parts[..2], ["", "lun"]);
    assert_eq!(parts[2], lun["uuid"]);
    assert_eq!(parts[3], taken["uuid"]);
    let target = &nas.sim.state()["targets"][0];
    assert_eq!(target["name"], "k8s-pvc-1");
    assert_eq!(target["iqn"], "iqn.2000-01.com.synology:csi.k8s-pvc-1");
}

#[tokio::test]
async fn snapshots_by_the_number_of_a_lun_are_found() {
    let nas = Nas::start(Version::V6_2, "").await;
    let volume = nas.create("pvc-1", None).await;
    let snapshot = nas.snapshot(&volume.id, "s").await;
    let lun = nas.lun("pvc-1");
    let uuid = snapshot.id.as_str().rsplit_once('/').expect("an id").1;
    let old = SnapshotId::parse(&format!("/lun/{}/{uuid}", lun["lun_id"])).expect("an id");
    nas.create("copy", Some(Source::Snapshot(old.clone())))
        .await;
    let gone = nas.try_delete_snapshot(&old).await;
    gone.expect("deleted");
    assert_eq!(nas.lun("pvc-1")["snapshots"], json!([]));
}

#[tokio::test]
async fn snapshots_of_others_are_neither_deleted_nor_restored() {
    let nas = Nas::start(Version::V7_2, "namePrefix: k8s-").await;
    let volume = nas.create("pvc-1", None).await;
    let ours = nas.lun("k8s-pvc-1")["uuid"].clone();
    let photos = json!({"type": "BLUN", "name": "photos", "location": "/volume1", "size": GIB});
    let photos = nas.sim.call(LUN, "create", &photos)["data"]["uuid"].clone();
    // By hand, of a LUN of another, and by a schedule, of ours.
    let mut ids = Vec::new();
    for (lun, by) in [
        (&photos, "user"),
        (&photos, "democratic-csi"),
        (&ours, "schedule"),
    ] {
        let snapshot = json!({"src_lun_uuid": lun, "taken_by": by, "description": "kept", "is_locked": false, "is_app_consistent": false});
        let taken = nas.sim.call(LUN, "take_snapshot", &snapshot);
        let uuid = taken["data"]["snapshot_uuid"].as_str().expect("a uuid");
        let lun = lun.as_str().expect("a uuid");
        ids.push(SnapshotId::parse(&format!("/lun/{lun}/{uuid}")).expect("an id"));
        let number = nas.lun(if by == "schedule" {
            "k8s-pvc-1"
        } else {
            "photos"
        });
        let old = format!("/lun/{}/{uuid}", number["lun_id"]);
        ids.push(SnapshotId::parse(&old).expect("an id"));
    }
    let before = nas.sim.state();
    for id in &ids {
        let gone = nas.try_delete_snapshot(id).await;
        gone.expect("no snapshot of this connection");
        let found = nas.driver.get_snapshot(&call(), GetSnapshot::new(id)).await;
        assert_eq!(found.expect_err("foreign").kind(), Kind::NotFound);
        let source = Some(Source::Snapshot(id.clone()));
        let copy = nas.try_create(&nas.request("copy", source)).await;
        assert_eq!(copy.expect_err("foreign").kind(), Kind::NotFound);
    }
    assert_eq!(nas.sim.state(), before);
    nas.delete(&volume.id).await;
}

#[tokio::test]
async fn what_others_have_made_is_neither_listed_nor_in_the_way() {
    let nas = Nas::start(Version::V7_2, "namePrefix: k8s-").await;
    let volume = nas.create("pvc-1", None).await;
    for (name, kind) in [("photos", "BLUN"), ("k8s-unmapped", "THIN")] {
        let lun = json!({"type": kind, "name": name, "location": "/volume1", "size": GIB});
        nas.sim.call(LUN, "create", &lun);
    }
    let uuid = nas.lun("k8s-pvc-1")["uuid"].clone();
    let foreign = json!({"src_lun_uuid": uuid, "taken_by": "schedule", "description": "daily", "is_locked": false, "is_app_consistent": false});
    nas.sim.call(LUN, "take_snapshot", &foreign);
    let page = PageRequest::default();
    let listed = nas
        .driver
        .list_volumes(&call(), &page)
        .await
        .expect("listed");
    assert_eq!(listed.entries, std::slice::from_ref(&volume));
    let filter = SnapshotFilter::default();
    let listed = nas.driver.list_snapshots(&call(), &filter, &page).await;
    assert!(listed.expect("listed").entries.is_empty());
    // A snapshot of a schedule goes with the volume; one that a user has locked keeps it.
    let locked = json!({"src_lun_uuid": uuid, "taken_by": "user", "description": "kept", "is_locked": true, "is_app_consistent": false});
    let taken = nas.sim.call(LUN, "take_snapshot", &locked);
    let busy = nas.try_delete(&volume.id).await;
    assert_eq!(busy.expect_err("locked").kind(), Kind::Busy);
    let snapshot = json!({"snapshot_uuid": taken["data"]["snapshot_uuid"]});
    nas.sim.call(LUN, "delete_snapshot", &snapshot);
    nas.delete(&volume.id).await;
    assert_eq!(nas.objects(), (2, 0));
}

#[tokio::test]
async fn volumes_stay_where_they_are_shown_when_the_mode_changes() {
    let nas = Nas::start(Version::V7_2, "").await;
    let own = nas.create("pvc-own", None).await;
    let shared = nas.other("mode: shared-target\nverifyDevice: false");
    assert_eq!(shared.create("pvc-own", None).await, own);
    let two = shared.create("pvc-two", None).await;
    let three = shared.create("pvc-three", None).await;
    assert_eq!(nas.objects(), (3, 2), "two LUNs share a target");
    let number = |attachment: &Attachment| attachment.to_context()["lun"].clone();
    assert_ne!(number(&two.attachment), number(&three.attachment));
    assert_eq!(nas.create("pvc-two", None).await, two);
    for id in [&own.id, &two.id, &three.id] {
        nas.delete(id).await;
    }
    assert_eq!(nas.objects(), (0, 1), "the shared target stays");
}

#[tokio::test]
async fn shared_targets_are_filled_one_after_the_other_and_then_there_is_no_room() {
    let iscsi = "mode: shared-target\nsharedTarget: {name: K8S, targets: 2, lunsPerTarget: 2}";
    let nas = Nas::start(Version::V7_2, iscsi).await;
    for name in ["a", "b", "c", "d"] {
        nas.create(name, None).await;
    }
    let full = nas.try_create(&nas.request("e", None)).await;
    let full = full.expect_err("full");
    assert_eq!(full.kind(), Kind::OutOfSpace);
    assert!(full.chain().contains("sharedTarget"), "{}", full.chain());
    let state = nas.sim.state();
    let targets = state["targets"].as_array().expect("targets");
    let names: Vec<_> = targets.iter().map(|target| &target["name"]).collect();
    assert_eq!(names, ["k8s-1", "k8s-2"]);
    assert!(targets.iter().all(|target| target["max_sessions"] == 0));
    nas.delete(&id("a")).await;
    nas.create("e", None).await;
}

#[tokio::test]
async fn the_identity_of_a_disk_is_given_where_numbers_are_used_again() {
    let nas = Nas::start(Version::V7_2, "mode: shared-target").await;
    let volume = nas.create("pvc-1", None).await;
    let uuid = nas.lun("pvc-1")["uuid"]
        .as_str()
        .expect("a uuid")
        .replace('-', "d");
    let context = volume.attachment.to_context();
    assert_eq!(context["device_id"], format!("naa.6001405{}", &uuid[..25]));
}

#[tokio::test]
async fn a_target_that_shows_the_lun_of_another_is_not_taken_away() {
    let nas = Nas::start(Version::V7_2, "").await;
    let volume = nas.create("pvc-1", None).await;
    let lun = json!({"type": "BLUN", "name": "photos", "location": "/volume1", "size": GIB});
    let uuid = nas.sim.call(LUN, "create", &lun)["data"]["uuid"].clone();
    let targets = nas.sim.call(TARGET, "list", &json!({}));
    let target = &targets["data"]["targets"][0]["target_id"];
    nas.sim.call(
        LUN,
        "map_target",
        &json!({"uuid": uuid, "target_ids": [target]}),
    );
    let busy = nas.try_delete(&volume.id).await;
    assert_eq!(busy.expect_err("shared by hand").kind(), Kind::Busy);
    assert_eq!(nas.objects(), (2, 1));
}

#[tokio::test]
async fn names_that_a_lun_cannot_have_get_ids_of_their_own() {
    let nas = Nas::start(Version::V7_2, "").await;
    for name in ["PVC-1", "pvc_1", "pvc-1", "a.b"] {
        let volume = nas.create(name, None).await;
        let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        assert!(volume.id.as_str().chars().all(legal), "{}", volume.id);
    }
    let page = PageRequest::default();
    let listed = nas
        .driver
        .list_volumes(&call(), &page)
        .await
        .expect("listed");
    assert_eq!(listed.entries.len(), 4);
    // One that democratic-csi made with capital letters is still its LUN.
    let found = nas
        .driver
        .find_volume(&call(), FindVolume::new(&id("PVC-1")))
        .await;
    assert_eq!(found.expect("the LUN pvc-1"), Found::Whole);
}
