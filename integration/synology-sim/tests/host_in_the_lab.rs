//! The simulator on the storage of the machine it runs on: what its model refuses is refused there, too, and what
//! it answers is really made.
//!
//! It makes zvols in the pool `tank` and targets of LIO. Run inside the lab by
//! `cargo test -p synology-sim --test host_in_the_lab -- --ignored --test-threads 1`.

#[path = "it/strict.rs"]
mod strict;

use std::path::Path;

use nas_host::command::run;
use serde_json::{Value, json};
use synology_sim::{Options, Simulator, Version};

const LUN: &str = "SYNO.Core.ISCSI.LUN";
const TARGET: &str = "SYNO.Core.ISCSI.Target";

async fn nas(version: Version) -> Simulator {
    let anywhere = ([127, 0, 0, 1], 0).into();
    let nas = Simulator::on_this_machine(Options::new(version), anywhere, "tank").await;
    nas.expect("a NAS on this machine")
}

strict::tests!(nas, #[ignore = "changes the storage of the lab"]);

/// The answer of a call, if it is not refused.
fn done(nas: &Simulator, api: &str, method: &str, params: &Value) -> Value {
    let answer = nas.call(api, method, params);
    assert_eq!(answer["success"], true, "{method}: {:?}", nas.violations());
    answer["data"].clone()
}

/// The parts of the NAS in the pool, each with its size.
async fn made() -> Vec<String> {
    let words = [
        "zfs",
        "list",
        "-Hp",
        "-r",
        "-t",
        "volume,snapshot",
        "-o",
        "name,volsize",
    ];
    let all = run(&[&words[..], &["tank/synology-sim"]].concat()).await;
    all.expect("a list").lines().map(str::to_owned).collect()
}

#[tokio::test]
#[ignore = "changes the storage of the lab"]
async fn luns_snapshots_copies_and_targets_are_made_and_go() {
    let nas = nas(Version::V7_2).await;
    let lun = json!({"name": "a", "type": "BLUN", "location": "/volume1", "size": 1 << 30});
    let uuid = done(&nas, LUN, "create", &lun)["uuid"].clone();
    let cut = json!({
        "src_lun_uuid": uuid, "description": "s", "is_locked": false, "is_app_consistent": false,
    });
    let snapshot = done(&nas, LUN, "take_snapshot", &cut)["snapshot_uuid"].clone();
    done(
        &nas,
        LUN,
        "set",
        &json!({"uuid": uuid, "new_size": 2_u64 << 30}),
    );
    let copy = json!({"src_lun_uuid": uuid, "snapshot_uuid": snapshot, "cloned_lun_name": "b"});
    let of_snapshot = done(&nas, LUN, "clone_snapshot", &copy)["cloned_lun_uuid"].clone();
    let copy = json!({"src_lun_uuid": uuid, "dst_lun_name": "c"});
    let of_lun = done(&nas, LUN, "clone", &copy)["dst_lun_uuid"].clone();
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let names = [&uuid, &of_snapshot, &of_lun]
        .map(|uuid| format!("tank/synology-sim/volume1/{}", text(uuid)));
    let mut expected = vec![
        format!("{}\t{}", names[0], 2_u64 << 30),
        format!("{}@{}\t{}", names[0], text(&snapshot), 1_u64 << 30),
        format!("{}\t{}", names[1], 1_u64 << 30),
        format!("{}\t{}", names[2], 2_u64 << 30),
    ];
    expected.sort();
    let mut now = made().await;
    now.sort();
    assert_eq!(now, expected);

    let target = json!({"name": "t", "iqn": "iqn.2000-01.com.synology:t", "auth_type": 0});
    let id = done(&nas, TARGET, "create", &target)["target_id"].clone();
    done(
        &nas,
        LUN,
        "map_target",
        &json!({"uuid": uuid, "target_ids": [id]}),
    );
    let group = Path::new("/sys/kernel/config/target/iscsi/iqn.2000-01.com.synology:t/tpgt_1");
    assert!(group.join("lun/lun_1/store").exists());
    // A copy keeps neither its source nor its snapshot.
    done(&nas, LUN, "delete", &json!({"uuid": "", "uuids": [uuid]}));
    assert!(!group.join("lun/lun_1").exists());
    assert_eq!(made().await.len(), 2);
    drop(nas);
    assert!(!group.exists());
    assert_eq!(made().await, Vec::<String>::new());
}

#[tokio::test]
#[ignore = "changes the storage of the lab"]
async fn what_the_machine_does_not_do_fails_the_call_and_is_not_there() {
    let nas = nas(Version::V7_2).await;
    let info =
        |name: &str| json!({"name": name, "shareinfo": {"name": name, "vol_path": "/volume1"}});
    let refused = nas.call("SYNO.Core.Share", "create", &info("a\"b"));
    assert_eq!(refused["error"]["code"], 100);
    assert_eq!(nas.violations().len(), 1);
    assert_eq!(nas.state()["shares"], json!([]));
    done(&nas, "SYNO.Core.Share", "create", &info("plain"));
    assert!(Path::new("/volume1/plain").is_dir());
    let users =
        json!([{"name": "no-user-of-this-name", "is_writable": true, "is_readonly": false}]);
    let set = json!({"name": "plain", "user_group_type": "local_user", "permissions": users});
    let refused = nas.call("SYNO.Core.Share.Permission", "set", &set);
    assert_eq!(refused["error"]["code"], 100);
    assert_eq!(nas.state()["shares"][0]["permissions"], json!([]));
}
