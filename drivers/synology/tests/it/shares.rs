//! Shared folders: what is made of them, and faults at each change.

use driver_core::{ExpandVolume, FindVolume, Found, Kind, SizeRange, Source};
use serde_json::{Value, json};
use synology_sim::{Action, Fault, Options, Version};

use crate::nas::{Nas, call};

const SHARE: &str = "SYNO.Core.Share";
const PERMISSION: &str = "SYNO.Core.Share.Permission";
const SNAPSHOT: &str = "SYNO.Core.Share.Snapshot";
const PRIVILEGE: &str = "SYNO.Core.FileServ.NFS.SharePrivilege";

const ACTIONS: [Action; 6] = [
    Action::CutBefore,
    Action::CutAfter,
    Action::BadGateway,
    Action::Refuse(3328),
    Action::RefuseAfter(100),
    Action::ExpireSessions,
];

fn folders(nas: &Nas) -> Vec<Value> {
    let state = nas.sim.state();
    state["shares"].as_array().cloned().unwrap_or_default()
}

/// A NAS whose copies of folders have the quota of their source, or none.
fn copying(version: Version, keeps_quota: bool) -> Options {
    let mut options = Options::new(version);
    options.clones_keep_quota = keeps_quota;
    options
}

/// Proves that clients can use a folder, and how much of it.
fn assert_usable(folder: &Value, quota: u64) {
    let count = |key: &str| folder[key].as_array().map_or(0, Vec::len);
    assert!(count("rules") + count("permissions") > 0, "{folder}");
    assert_eq!(folder["quota"], quota, "{folder}");
}

#[tokio::test]
async fn a_volume_over_nfs_is_a_folder_with_a_quota_for_the_clients() {
    let nas = Nas::of_shares(Version::V7_2, "nfs").await;
    let name = "pvc-f699bc85-3be4-4eb0-9332-020b47143169";
    let volume = nas.create(name, None).await;
    let folder = &folders(&nas)[0];
    assert_eq!(folder["quota"], 1024);
    assert_eq!(folder["vol_path"], "/volume1");
    let clients: Vec<_> = folder["rules"].as_array().expect("rules").iter().collect();
    assert_eq!(clients.len(), 2);
    assert_eq!(clients[0]["client"], "10.0.0.0/24");
    assert_eq!(clients[1]["client"], "node-7");
    assert_eq!(clients[0]["async"], false);
    let context = volume.attachment.to_context();
    assert_eq!(context["node_attach_driver"], "nfs");
    assert_eq!(context["server"], "nas.example");
    let share = folder["name"].as_str().expect("a name");
    assert!(
        share.len() <= 32 && share.starts_with("k8s-pvc-f699bc85"),
        "{share}"
    );
    assert_eq!(context["share"], format!("/volume1/{share}"));
    assert_eq!(volume.capacity, Some(1 << 30));
}

#[tokio::test]
async fn a_volume_over_smb_is_a_folder_for_the_users() {
    let nas = Nas::of_shares(Version::V7_2, "smb").await;
    let volume = nas.create("pvc-1", None).await;
    let folder = &folders(&nas)[0];
    let users = folder["permissions"].as_array().expect("users");
    assert_eq!(users.len(), 1);
    assert_eq!(
        (&users[0]["name"], &users[0]["is_writable"]),
        (&json!("k8s"), &json!(true))
    );
    let context = volume.attachment.to_context();
    assert_eq!(context["node_attach_driver"], "smb");
    assert_eq!(context["share"], "k8s-pvc-1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_converges_after_a_fault_at_each_change() {
    let openings = [("nfs", (PRIVILEGE, "save")), ("smb", (PERMISSION, "set"))];
    let both = openings.map(|opening| [false, true].map(|keeps_quota| (opening, keeps_quota)));
    for ((kind, opening), keeps_quota) in both.into_iter().flatten() {
        let nas = Nas::of_shares_with(copying(Version::V7_1, keeps_quota), kind).await;
        let original = nas.create("original", None).await;
        let snapshot = nas.snapshot(&original.id, "s").await;
        for (change, source) in [
            ((SHARE, "create"), None),
            (opening, None),
            ((SHARE, "set"), None),
            ((SHARE, "clone"), Some(Source::Volume(original.id.clone()))),
            (
                (SHARE, "clone"),
                Some(Source::Snapshot(snapshot.id.clone())),
            ),
            ((SHARE, "set"), Some(Source::Snapshot(snapshot.id.clone()))),
            (opening, Some(Source::Volume(original.id.clone()))),
            ((SHARE, "delete"), None),
        ] {
            for action in ACTIONS {
                let what = format!("{kind} {keeps_quota} {change:?} {action:?}");
                nas.sim.fault(Fault::once(change.0, change.1, action));
                let mut request = nas.request("pvc-1", source.clone());
                let gibibytes: u32 = if source.is_some() { 2 } else { 1 };
                request.size = SizeRange::new(i64::from(gibibytes) << 30, 0).expect("a size");
                if let Err(error) = nas.try_create(&request).await {
                    let found = nas
                        .driver
                        .find_volume(&call(), FindVolume::new(&request.id))
                        .await;
                    assert_ne!(found.ok(), Some(Found::Whole), "{what}: {}", error.chain());
                }
                let made = nas.try_create(&request).await;
                let made = made.unwrap_or_else(|error| panic!("{what}: {}", error.chain()));
                assert_usable(&folders(&nas)[1], u64::from(gibibytes) << 10);
                drop(nas.try_delete(&made.id).await);
                nas.delete(&made.id).await;
                nas.sim.clear_faults();
                assert_eq!(folders(&nas).len(), 1, "{what}");
            }
        }
    }
}

#[tokio::test]
async fn a_copy_that_has_the_quota_of_its_source_is_grown_and_opened() {
    for kind in ["nfs", "smb"] {
        let nas = Nas::of_shares_with(copying(Version::V7_2, true), kind).await;
        let original = nas.create("original", None).await;
        let source = Source::Volume(original.id.clone());
        for (name, size, quota) in [
            ("larger", (2 << 30, 0), 2048),
            ("equal", (1 << 30, 1 << 30), 1024),
            ("smaller", (1 << 20, 0), 1024),
        ] {
            let mut request = nas.request(name, Some(source.clone()));
            request.size = SizeRange::new(size.0, size.1).expect("a size");
            let made = nas.try_create(&request).await.expect("made");
            assert_eq!(made.capacity, Some(quota << 20));
            assert_usable(&folders(&nas).pop().expect("the copy"), quota);
            assert_eq!(nas.try_create(&request).await.expect("again"), made);
            let found = nas
                .driver
                .find_volume(&call(), FindVolume::new(&request.id))
                .await;
            assert_eq!(found.expect("found"), Found::Whole);
        }
        let mut request = nas.request("smaller", Some(source));
        request.size = SizeRange::new(1 << 20, 1 << 29).expect("a size");
        let error = nas.try_create(&request).await.expect_err("too large");
        assert_eq!(error.kind(), Kind::Conflict, "{}", error.chain());
    }
}

#[tokio::test]
async fn a_snapshot_of_a_folder_converges_after_a_fault_and_is_taken_once() {
    let nas = Nas::of_shares(Version::V7_2, "nfs").await;
    let volume = nas.create("pvc-1", None).await;
    for action in ACTIONS {
        nas.sim.fault(Fault::once(SNAPSHOT, "create", action));
        drop(nas.try_snapshot(&volume.id, "s").await);
        let snapshot = nas.snapshot(&volume.id, "s").await;
        assert_eq!(
            folders(&nas)[0]["snapshots"],
            json!(["csi 1024 s"]),
            "{action:?}"
        );
        let busy = nas.try_delete(&volume.id).await;
        assert_eq!(busy.expect_err("it has a snapshot").kind(), Kind::Busy);
        nas.sim.fault(Fault::once(SNAPSHOT, "delete", action));
        drop(nas.try_delete_snapshot(&snapshot.id).await);
        let gone = nas.try_delete_snapshot(&snapshot.id).await;
        gone.unwrap_or_else(|error| panic!("{action:?}: {}", error.chain()));
        nas.sim.clear_faults();
        assert_eq!(folders(&nas)[0]["snapshots"], json!([]));
    }
}

#[tokio::test]
async fn folders_grow_by_their_quota_and_nodes_have_nothing_to_do() {
    let nas = Nas::of_shares(Version::V7_2, "smb").await;
    let volume = nas.create("pvc-1", None).await;
    let size = SizeRange::new((2 << 30) + 1, 0).expect("a size");
    let grown = nas
        .driver
        .expand_volume(&call(), ExpandVolume::new(&volume.id, size))
        .await;
    let grown = grown.expect("grown");
    assert!(!grown.node_expansion_required);
    assert_eq!(grown.capacity, (2 << 30) + (1 << 20));
    assert_eq!(folders(&nas)[0]["quota"], 2049);
}

#[tokio::test]
async fn a_foreign_folder_is_neither_taken_nor_deleted() {
    let nas = Nas::of_shares(Version::V7_2, "nfs").await;
    let info =
        json!({"name": "k8s-pvc-1", "vol_path": "/volume1", "desc": "photos", "share_quota": 7});
    let made = nas.sim.call(
        SHARE,
        "create",
        &json!({"name": "k8s-pvc-1", "shareinfo": info}),
    );
    assert_eq!(made["success"], true);
    let request = nas.request("pvc-1", None);
    let refused = nas.try_create(&request).await;
    assert_eq!(refused.expect_err("a foreign one").kind(), Kind::Conflict);
    let found = nas
        .driver
        .find_volume(&call(), FindVolume::new(&request.id))
        .await;
    assert_eq!(found.expect_err("a foreign one").kind(), Kind::NotFound);
    // Never "exists already", which no caller of a deletion understands.
    let kept = nas.try_delete(&request.id).await;
    assert_eq!(kept.expect_err("a foreign one").kind(), Kind::Busy);
    assert_eq!(folders(&nas).len(), 1);
}

#[tokio::test]
async fn a_volume_of_the_nas_without_quotas_is_an_error() {
    let nas = Nas::of_shares(Version::V7_2, "nfs").await;
    let text = crate::nas::shares(&nas.sim, "nfs") + "synology: {volume: /volume2}\n";
    let problems = crate::nas::open(&text).probe(&call()).await;
    assert_eq!(problems.len(), 1);
    assert!(
        problems[0].chain().contains("Btrfs"),
        "{}",
        problems[0].chain()
    );
}

#[tokio::test]
async fn a_folder_whose_snapshots_cannot_be_listed_is_not_deleted() {
    let nas = Nas::of_shares(Version::V7_2, "nfs").await;
    let volume = nas.create("pvc-1", None).await;
    nas.snapshot(&volume.id, "s").await;
    let before = folders(&nas);
    for code in [402, 3328] {
        nas.sim
            .fault(Fault::once(SNAPSHOT, "list", Action::Refuse(code)));
        let error = nas.try_delete(&volume.id).await;
        let error = error.expect_err("a snapshot may be there");
        assert_eq!(error.kind(), Kind::Unreachable, "{}", error.chain());
        assert_eq!(folders(&nas), before, "{code}");
    }
}

#[tokio::test]
async fn users_behind_the_first_page_are_found() {
    let mut options = Options::new(Version::V7_2);
    options.users_listed = 1;
    let nas = Nas::of_shares_with(options, "smb").await;
    let original = nas.create("original", None).await;
    let copy = nas
        .create("copy", Some(Source::Volume(original.id.clone())))
        .await;
    let name = folders(&nas)[1]["name"].clone();
    let others = json!([
        {"name": "a", "is_readonly": true, "is_writable": false, "is_deny": false},
        {"name": "k8s", "is_readonly": false, "is_writable": true, "is_deny": false},
    ]);
    // The simulator lists first who was set first.
    for users in [json!([others[0]]), json!([others[1]])] {
        let params = json!({"name": name, "user_group_type": "local_user", "permissions": users});
        nas.sim.call(PERMISSION, "set", &params);
    }
    let found = nas
        .driver
        .find_volume(&call(), FindVolume::new(&copy.id))
        .await;
    assert!(matches!(found, Ok(Found::Whole)), "{found:?}");
}

#[tokio::test]
async fn a_copy_is_open_for_its_clients_and_not_for_as_many_others() {
    let nas = Nas::of_shares(Version::V7_2, "nfs").await;
    let original = nas.create("original", None).await;
    let source = Some(Source::Volume(original.id.clone()));
    let copy = nas.create("copy", source.clone()).await;
    let name = folders(&nas)[1]["name"].clone();
    let rule = |client: &str| {
        let mut rule = folders(&nas)[0]["rules"][0].clone();
        rule["client"] = json!(client);
        rule
    };
    let save = |clients: [&str; 2]| {
        let params = json!({"share_name": name, "rule": clients.map(rule)});
        nas.sim.call(PRIVILEGE, "save", &params);
    };
    let saved = || nas.sim.count("SYNO.Core.FileServ.NFS.SharePrivilege/save");
    // As DSM may write them.
    save(["10.0.0.0/255.255.255.0", "Node-7"]);
    let before = saved();
    nas.create("copy", source.clone()).await;
    assert_eq!(saved(), before);
    save(["10.0.1.0/24", "node-8"]);
    let found = nas
        .driver
        .find_volume(&call(), FindVolume::new(&copy.id))
        .await;
    assert!(matches!(found, Ok(Found::Begun)), "{found:?}");
    nas.create("copy", source).await;
    assert_eq!(folders(&nas)[1]["rules"][0]["client"], "10.0.0.0/24");
}
