//! A NAS that is not as its simulator: objects of other packages, values of other types, another NAS behind the
//! address, answers without end.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::thread;

use driver_core::{
    DeleteSnapshot, DeleteVolume, ExpandVolume, Kind, PageRequest, SizeRange, SnapshotFilter,
    SnapshotId, Source,
};
use serde_json::{Value, json};
use synology_sim::{Action, Fault, Options, Version};

use crate::nas::{GIB, LUN, Nas, call, config, id, open};

const SNAPSHOT: &str = "SYNO.Core.Share.Snapshot";

/// All that reads lists.
async fn lives(nas: &Nas, what: &str) {
    let volume = nas.create("pvc-1", None).await;
    let page = PageRequest::default();
    let listed = nas.driver.list_volumes(&call(), &page).await;
    let listed = listed.unwrap_or_else(|error| panic!("{what}: {}", error.chain()));
    assert_eq!(listed.entries, std::slice::from_ref(&volume), "{what}");
    let snapshot = nas.snapshot(&volume.id, "s").await;
    let copy = nas
        .create("pvc-2", Some(Source::Snapshot(snapshot.id.clone())))
        .await;
    let (time, filter) = (call(), SnapshotFilter::default());
    let all = nas.driver.list_snapshots(&time, &filter, &page).await;
    assert_eq!(all.expect("a list").entries.len(), 1, "{what}");
    let size = SizeRange::new(2 * GIB, 0).expect("a size");
    nas.driver
        .expand_volume(&call(), ExpandVolume::new(&volume.id, size))
        .await
        .expect("grown");
    nas.try_delete_snapshot(&snapshot.id)
        .await
        .expect("deleted");
    nas.delete(&volume.id).await;
    nas.delete(&copy.id).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_of_other_packages_are_read_over() {
    let lun = json!({"name": "vmm", "uuid": "f699bc85-3be4", "lun_id": 9, "size": 1, "description": "", "type": 295});
    let target = json!({"name": "other", "iqn": "iqn.2000-01.com.synology:other", "target_id": 9, "mapped_luns": []});
    let with = |mut object: Value, key: &str, value: Value| {
        object[key] = value;
        object
    };
    // Without a prefix any LUN may be of this connection.
    for mode in ["", "namePrefix: k8s-\nmode: shared-target"] {
        for (list, object) in [
            ("luns", with(lun.clone(), "lun_id", json!(-1))),
            ("luns", with(lun.clone(), "lun_id", json!("5"))),
            ("luns", with(lun.clone(), "description", Value::Null)),
            ("luns", with(lun.clone(), "is_action_locked", json!(0))),
            ("luns", with(lun.clone(), "size", json!(1.5))),
            ("luns", with(lun.clone(), "uuid", Value::Null)),
            ("luns", with(lun.clone(), "name", Value::Null)),
            ("luns", json!(null)),
            ("luns", json!([1, "x"])),
            ("targets", with(target.clone(), "target_id", json!("7"))),
            ("targets", with(target.clone(), "target_id", Value::Null)),
            (
                "targets",
                json!({"name": "csi.x", "iqn": "iqn.2000-01.com.synology:csi.x", "target_id": {}}),
            ),
            ("targets", with(target.clone(), "mapped_luns", Value::Null)),
            ("targets", with(target.clone(), "iqn", Value::Null)),
        ] {
            let nas = Nas::start(Version::V7_2, mode).await;
            nas.sim.add_foreign(list, &object);
            lives(&nas, &object.to_string()).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shared_folders_of_others_are_read_over() {
    let share = json!({"name": "photos", "vol_path": "/volume1", "desc": "", "quota_value": 0});
    for (key, value) in [
        ("desc", Value::Null),
        ("vol_path", Value::Null),
        ("quota_value", Value::Null),
        ("quota_value", json!(36_146_658_672_640.0)),
        ("quota_value", json!("5")),
        ("name", json!(5)),
    ] {
        let nas = Nas::of_shares(Version::V7_2, "nfs").await;
        let mut share = share.clone();
        share[key] = value;
        nas.sim.add_foreign("shares", &share);
        lives(&nas, &share.to_string()).await;
    }
}

#[tokio::test]
async fn what_is_wrong_with_an_own_object_is_named() {
    let lun = json!({"name": "pvc-1", "uuid": "f699bc85-3be4", "size": null});
    let target =
        json!({"name": "pvc-1", "iqn": "iqn.2000-01.com.synology:csi.pvc-1", "target_id": 9});
    let shown = json!([{"lun_uuid": "f699bc85-3be4", "mapping_index": 1}]);
    let shared = json!({"name": "csi-1", "iqn": "iqn.2000-01.com.synology:csi.csi-1", "target_id": 9,
        "mapped_luns": shown});
    // Its name says that it is ours, or the target that shows it.
    let named = json!({"name": "k8s-pvc-1", "uuid": "f699bc85-3be4", "size": null});
    for (mode, lun, target) in [
        ("", &lun, Some(&target)),
        ("mode: shared-target", &lun, Some(&shared)),
        ("namePrefix: k8s-", &named, None),
    ] {
        let nas = Nas::start(Version::V7_2, mode).await;
        nas.sim.add_foreign("luns", lun);
        if let Some(target) = target {
            nas.sim.add_foreign("targets", target);
        }
        let listed = nas
            .driver
            .list_volumes(&call(), &PageRequest::default())
            .await;
        let text = listed.expect_err("it has no size").chain();
        let name = lun["name"].as_str().expect("a name");
        for word in ["SYNO.Core.ISCSI.LUN list", "`size`", &format!("`{name}`")] {
            assert!(text.contains(word), "{mode}: {text}");
        }
        assert!(!text.contains("port"), "{mode}: {text}");
    }
}

/// Snapshots are not seen through targets.
#[tokio::test]
async fn a_lun_that_cannot_be_read_and_has_snapshots_of_csi_is_not_read_over() {
    let snapshot = |by: &str| {
        json!([{"uuid": "7a", "name": "GMT", "description": "s", "taken_by": by,
            "total_size": 1, "create_time": 1}])
    };
    for (by, is_ours) in [("democratic-csi", true), ("scheduler", false)] {
        let nas = Nas::start(Version::V7_2, "").await;
        let volume = nas.create("pvc-1", None).await;
        let lun = json!({"name": "pvc-2", "uuid": "f699bc85-3be4", "size": null, "snapshots": snapshot(by)});
        nas.sim.add_foreign("luns", &lun);
        let (time, all) = (call(), SnapshotFilter::default());
        let page = PageRequest::default();
        let listed = nas.driver.list_snapshots(&time, &all, &page).await;
        let taken = nas.try_snapshot(&volume.id, "s").await;
        if !is_ours {
            assert_eq!(listed.expect("a list").entries, [], "{by}");
            taken.unwrap_or_else(|error| panic!("{by}: {}", error.chain()));
            continue;
        }
        for error in [listed.expect_err("odd"), taken.expect_err("odd")] {
            let text = error.chain();
            assert!(
                text.contains("`size`") && text.contains("`pvc-2`"),
                "{text}"
            );
        }
        // The name of another snapshot.
        nas.snapshot(&volume.id, "s-2").await;
    }
}

/// The list decides whether a LUN is gone, and that one is of the name that is asked for.
#[tokio::test]
async fn a_lun_of_the_name_that_is_deleted_is_not_read_over() {
    let nas = Nas::start(Version::V7_2, "").await;
    let lun = json!({"name": "pvc-1", "uuid": "f699bc85-3be4", "size": null});
    nas.sim.add_foreign("luns", &lun);
    let kept = nas.try_delete(&id("pvc-1")).await;
    let text = kept.expect_err("it cannot be read").chain();
    assert!(
        text.contains("`size`") && text.contains("`pvc-1`"),
        "{text}"
    );
    nas.delete(&id("pvc-2")).await;
}

#[tokio::test]
async fn a_lun_without_snapshots_is_not_asked_for_them_one_by_one() {
    // DSM 7.0 says `null` for none.
    let nas = Nas::start(Version::V7_0, "").await;
    let mut volumes = Vec::new();
    for number in 0..5 {
        volumes.push(nas.create(&format!("pvc-{number}"), None).await);
    }
    nas.snapshot(&volumes[0].id, "s").await;
    let before = nas.sim.count("SYNO.Core.ISCSI.LUN/list_snapshot");
    nas.snapshot(&volumes[0].id, "s").await;
    let (time, filter) = (call(), SnapshotFilter::default());
    let page = PageRequest::default();
    let all = nas.driver.list_snapshots(&time, &filter, &page).await;
    assert_eq!(all.expect("a list").entries.len(), 1);
    assert_eq!(nas.sim.count("SYNO.Core.ISCSI.LUN/list_snapshot"), before);
}

#[tokio::test]
async fn a_refusal_inside_a_success_is_the_reason() {
    let nas = Nas::start(Version::V7_2, "").await;
    let volume = nas.create("pvc-1", None).await;
    let snapshot = nas.snapshot(&volume.id, "s").await;
    nas.sim.fault(Fault::once(
        LUN,
        "delete_snapshot",
        Action::RefuseInside(18_990_540),
    ));
    let kept = nas.try_delete_snapshot(&snapshot.id).await;
    let kept = kept.expect_err("it stays");
    assert_eq!(kept.kind(), Kind::Busy, "{}", kept.chain());
    assert!(kept.chain().contains("18990540"), "{}", kept.chain());

    let nas = Nas::of_shares(Version::V7_2, "nfs").await;
    let volume = nas.create("pvc-1", None).await;
    let snapshot = nas.snapshot(&volume.id, "s").await;
    nas.sim
        .fault(Fault::once(SNAPSHOT, "delete", Action::RefuseInside(3350)));
    let kept = nas.try_delete_snapshot(&snapshot.id).await;
    let kept = kept.expect_err("it stays");
    assert!(kept.chain().contains("immutable"), "{}", kept.chain());
}

#[tokio::test]
async fn a_copy_that_has_the_description_of_its_source_gets_its_own() {
    let mut options = Options::new(Version::V7_2);
    options.clones_keep_description = true;
    let nas = Nas::of_shares_with(options, "nfs").await;
    let original = nas.create("original", None).await;
    let snapshot = nas.snapshot(&original.id, "s").await;
    for (name, source) in [
        ("copy", Source::Volume(original.id.clone())),
        ("restored", Source::Snapshot(snapshot.id.clone())),
    ] {
        // Cut off before the description is written, a retry completes it.
        nas.sim
            .fault(Fault::once("SYNO.Core.Share", "set", Action::CutBefore));
        drop(
            nas.try_create(&nas.request(name, Some(source.clone())))
                .await,
        );
        let made = nas.create(name, Some(source.clone())).await;
        assert_eq!(nas.create(name, Some(source)).await, made);
        nas.delete(&made.id).await;
    }
    // One that stays without its description is deleted all the same.
    let source = Some(Source::Volume(original.id.clone()));
    nas.sim
        .fault(Fault::once("SYNO.Core.Share", "set", Action::CutBefore));
    let request = nas.request("undescribed", source);
    nas.try_create(&request).await.expect_err("cut");
    nas.delete(&request.id).await;
    let state = nas.sim.state();
    assert_eq!(state["shares"].as_array().map(Vec::len), Some(1), "{state}");
}

#[tokio::test]
async fn a_copied_lun_that_has_the_description_of_its_source_gets_its_own() {
    let mut options = Options::new(Version::V7_2);
    options.clones_keep_description = true;
    let nas = Nas::with(options, "").await;
    let original = nas.create("original", None).await;
    let snapshot = nas.snapshot(&original.id, "s").await;
    for (name, source) in [
        ("copy", Source::Volume(original.id.clone())),
        ("restored", Source::Snapshot(snapshot.id.clone())),
    ] {
        let made = nas.create(name, Some(source.clone())).await;
        assert_eq!(made.source, Some(source.clone()), "{name}");
        assert_eq!(nas.create(name, Some(source)).await, made);
    }
    // A copy of a copy has another source than that one.
    let source = Some(Source::Volume(id("copy")));
    let made = nas.create("second", source.clone()).await;
    assert_eq!(nas.create("second", source).await, made);
}

#[tokio::test]
async fn nothing_is_deleted_or_empty_on_a_nas_without_the_volume() {
    for kind in ["iscsi", "nfs"] {
        let nas = if kind == "iscsi" {
            Nas::start(Version::V7_2, "").await
        } else {
            Nas::of_shares(Version::V7_2, kind).await
        };
        let text = if kind == "iscsi" {
            config(&nas.sim, "")
        } else {
            crate::nas::shares(&nas.sim, kind)
        };
        let driver = open(&(text + "synology: {volume: /volume7}\n"));
        let (page, all) = (PageRequest::default(), SnapshotFilter::default());
        let snapshot = match kind {
            "iscsi" => {
                "/lun/f699bc85-3be4-4eb0-9332-020b47143169/f699bc85-3be4-4eb0-9332-020b47143169"
            }
            _ => "/share/k8s-pvc-1/GMT+08-2022.01.14-19.18.29",
        };
        let snapshot = SnapshotId::parse(snapshot).expect("an id");
        let time = call();
        let larger = SizeRange::new(2 * GIB, 0).expect("a size");
        let outcomes = [
            driver
                .delete_volume(&time, DeleteVolume::new(&id("pvc-1")))
                .await
                .err(),
            driver
                .delete_snapshot(&time, DeleteSnapshot::new(&snapshot))
                .await
                .err(),
            driver.list_volumes(&time, &page).await.err(),
            driver.list_snapshots(&time, &all, &page).await.err(),
            driver.get_volume(&time, &id("pvc-1")).await.err(),
            driver
                .expand_volume(&time, ExpandVolume::new(&id("pvc-1"), larger))
                .await
                .err(),
        ];
        for (number, outcome) in outcomes.into_iter().enumerate() {
            let error = outcome.unwrap_or_else(|| panic!("{kind} {number}: it is another NAS"));
            assert_eq!(error.kind(), Kind::Unreachable, "{}", error.chain());
            assert!(error.chain().contains("/volume7"), "{}", error.chain());
        }
    }
}

#[tokio::test]
async fn what_a_list_does_not_find_says_nothing_of_a_volume() {
    let nas = Nas::start(Version::V7_2, "mode: shared-target").await;
    nas.sim.fault(Fault::once(
        "SYNO.Core.ISCSI.Target",
        "list",
        Action::Refuse(18_990_505),
    ));
    let gone = nas.try_delete(&id("pvc-1")).await;
    assert_eq!(gone.expect_err("refused").kind(), Kind::Unreachable);
    nas.sim.fault(Fault::once(
        "SYNO.Core.Storage.Volume",
        "get",
        Action::Refuse(402),
    ));
    let query = driver_core::CapacityQuery::default();
    let capacity = nas.driver.capacity(&call(), &query).await;
    assert_eq!(capacity.expect_err("refused").kind(), Kind::Unreachable);
}

#[tokio::test]
async fn a_volume_whose_snapshot_is_kept_by_a_package_stays() {
    // In the list of LUNs, and by a question of its own.
    for version in [Version::V6_2, Version::V7_2] {
        let nas = Nas::start(version, "").await;
        let volume = nas.create("pvc-1", None).await;
        let uuid = nas.lun("pvc-1")["uuid"].clone();
        let foreign = json!({"src_lun_uuid": uuid, "taken_by": "replication", "snapshot_name": "rep-1",
            "is_locked": false, "is_app_consistent": false});
        assert_eq!(
            nas.sim.call(LUN, "take_snapshot", &foreign)["success"],
            json!(true)
        );
        nas.sim.keep_snapshots("pvc-1", "SnapshotReplication");
        let kept = nas.try_delete(&volume.id).await;
        let kept = kept.expect_err("it is replicated");
        assert_eq!(kept.kind(), Kind::Busy, "{}", kept.chain());
        assert!(
            kept.chain().contains("`rep-1` (kept by a package"),
            "{}",
            kept.chain()
        );
        assert_eq!(nas.objects(), (1, 1), "nothing was taken from it");
    }
}

#[tokio::test]
async fn a_lun_that_was_made_without_snapshots_gets_none() {
    let nas = Nas::start(Version::V7_2, "").await;
    let without = "lunTemplate: {type: BLUN, dev_attribs: [{dev_attrib: can_snapshot, enable: 0}]}";
    let text = config(&nas.sim, "").replace("lunTemplate: {type: BLUN}", without);
    let nas = Nas {
        sim: std::sync::Arc::clone(&nas.sim),
        driver: open(&text),
    };
    let volume = nas.create("pvc-1", None).await;
    let refused = nas
        .try_snapshot(&volume.id, "s")
        .await
        .expect_err("it has none");
    assert_eq!(refused.kind(), Kind::Invalid, "{}", refused.chain());
    assert!(
        refused.chain().contains("was made without them"),
        "{}",
        refused.chain()
    );
    assert_eq!(nas.sim.count("SYNO.Core.ISCSI.LUN/take_snapshot"), 0);
}

#[tokio::test]
async fn a_copy_to_another_volume_of_the_nas_is_not_called_one_within_its_pool() {
    let mut options = Options::new(Version::V7_2);
    let mut third = options.volumes[0].clone();
    third.path = "/volume3".to_owned();
    options.volumes.push(third);
    let nas = Nas::with(options, "").await;
    let original = nas.create("pvc-1", None).await;
    let source = Some(Source::Volume(original.id));
    // The NAS refuses the wrong word.
    nas.create("pvc-2", source.clone()).await;
    let text = config(&nas.sim, "") + "synology: {volume: /volume3}\n";
    let elsewhere = Nas {
        sim: std::sync::Arc::clone(&nas.sim),
        driver: open(&text),
    };
    elsewhere.create("pvc-3", source).await;
    let location = |name: &str| nas.lun(name)["location"].clone();
    assert_eq!(
        (location("pvc-2"), location("pvc-3")),
        (json!("/volume1"), json!("/volume3"))
    );
}

/// The answers of a NAS before and at a login.
const APIS: &str = r#"{"success":true,"data":{"SYNO.API.Auth":{"path":"entry.cgi","maxVersion":6},"SYNO.Core.ISCSI.LUN":{"path":"entry.cgi","maxVersion":1,"requestFormat":"JSON"},"SYNO.Core.ISCSI.Target":{"path":"entry.cgi","maxVersion":1,"requestFormat":"JSON"}}}"#;
const LOGIN: &str = r#"{"success":true,"data":{"sid":"a"}}"#;

/// A web server that answers with an endless list of small objects, everything or what comes after a login that it
/// answers so. It ends with the process.
fn endless(login: Option<&'static str>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            thread::spawn(move || {
                let mut request = [0; 4096];
                let length = stream.read(&mut request).unwrap_or(0);
                let request = String::from_utf8_lossy(&request[..length]).into_owned();
                let short = login.map(|login| [("query.cgi", APIS), ("method=login", login)]);
                let mut short = short.iter().flatten();
                if let Some((_, answer)) = short.find(|(word, _)| request.contains(word)) {
                    let length = answer.len();
                    let answer = format!(
                        "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{answer}"
                    );
                    let _ = stream.write_all(answer.as_bytes());
                    return;
                }
                let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n";
                let _ = stream.write_all(head.as_bytes());
                let _ = stream.write_all(b"{\"success\":true,\"data\":{\"x\":[");
                let part = "{\"a\":0},".repeat(1 << 13);
                while stream.write_all(part.as_bytes()).is_ok() {}
            });
        }
    });
    port
}

async fn listed_from(port: u16) -> driver_core::Error {
    let text = format!(
        "driver: synology-iscsi\n\
         httpConnection: {{protocol: http, host: 127.0.0.1, port: {port}, username: csi, password: sesame}}\n\
         iscsi: {{targetPortal: nas.example, baseiqn: 'iqn.2000-01.com.synology:csi.'}}\n"
    );
    let listed = open(&text)
        .list_volumes(&call(), &PageRequest::default())
        .await;
    listed.expect_err("no answer")
}

#[tokio::test]
async fn an_answer_without_end_is_cut_off() {
    let before = listed_from(endless(None)).await.chain();
    assert!(before.contains("longer than 262144 bytes"), "{before}");
    let after = listed_from(endless(Some(LOGIN))).await.chain();
    assert!(after.contains("longer than 8388608 bytes"), "{after}");
}

#[tokio::test]
async fn a_session_that_no_header_can_carry_is_no_fault_of_the_request() {
    let login = r#"{"success":true,"data":{"sid":"a\nb"}}"#;
    let refused = listed_from(endless(Some(login))).await;
    assert_eq!(refused.kind(), Kind::Internal, "{}", refused.chain());
    assert!(
        refused.chain().contains("its session is no header"),
        "{}",
        refused.chain()
    );
}
