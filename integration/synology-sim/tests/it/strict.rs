//! The simulator is as strict as it says, on a model and on real storage. `nas` starts one.

use serde_json::{Value, json};
use synology_sim::{Simulator, Version};

const LUN: &str = "SYNO.Core.ISCSI.LUN";
const TARGET: &str = "SYNO.Core.ISCSI.Target";

fn lun(name: &str) -> Value {
    json!({"name": name, "type": "BLUN", "location": "/volume1", "size": 1 << 30})
}

fn with(mut params: Value, key: &str, value: impl Into<Value>) -> Value {
    params[key] = value.into();
    params
}

fn code(answer: &Value) -> i64 {
    answer["error"]["code"].as_i64().unwrap_or(0)
}

pub(crate) async fn a_parameter_that_no_source_names_is_refused_and_remembered(
    nas: impl AsyncFn(Version) -> Simulator,
) {
    let nas = nas(Version::V7_2).await;
    let answer = nas.call(LUN, "create", &with(lun("a"), "colour", "red"));
    assert_eq!(code(&answer), 101);
    assert_eq!(nas.violations().len(), 1);
    assert_eq!(nas.state()["luns"], json!([]));
}

pub(crate) async fn attributes_of_dsm_7_are_refused_by_dsm_6(
    nas: impl AsyncFn(Version) -> Simulator,
) {
    let attributes = json!([{"dev_attrib": "emulate_fua_write", "enable": 1}]);
    for (version, expected) in [(Version::V6_2, 101), (Version::V7_0, 0)] {
        let nas = nas(version).await;
        let params = with(lun("a"), "dev_attribs", attributes.clone());
        assert_eq!(code(&nas.call(LUN, "create", &params)), expected);
    }
}

pub(crate) async fn a_lun_that_a_package_keeps_a_snapshot_of_goes_only_if_that_is_overridden(
    nas: impl AsyncFn(Version) -> Simulator,
) {
    for (word, expected) in [
        (None, 18_990_540),
        (Some(false), 18_990_540),
        (Some(true), 0),
    ] {
        let nas = nas(Version::V7_2).await;
        let made = nas.call(LUN, "create", &lun("a"));
        let uuid = made["data"]["uuid"].clone();
        let snapshot = json!({"src_lun_uuid": uuid, "taken_by": "replication", "snapshot_name": "r",
            "is_locked": false, "is_app_consistent": false});
        assert_eq!(code(&nas.call(LUN, "take_snapshot", &snapshot)), 0);
        nas.keep_snapshots("a", "SnapshotReplication");
        let mut delete = json!({"uuid": "", "uuids": [uuid]});
        if let Some(word) = word {
            delete["is_soft_feas_ignored"] = json!(word);
        }
        assert_eq!(
            code(&nas.call(LUN, "delete", &delete)),
            expected,
            "{word:?}"
        );
    }
}

pub(crate) async fn names_types_and_sizes_are_refused_as_the_sources_say(
    nas: impl AsyncFn(Version) -> Simulator,
) {
    let nas = nas(Version::V7_1).await;
    for (params, expected) in [
        (lun("a_b"), 18_990_503),
        (with(lun("a"), "type", "ZVOL"), 18_990_500),
        (with(lun("a"), "location", "/volume2"), 18_990_318),
        (
            with(with(lun("a"), "type", "BLUN_THICK"), "size", 1_u64 << 50),
            18_990_002,
        ),
        (with(lun("a"), "location", "/volume9"), 18_990_501),
        (with(lun("a"), "size", (1_u64 << 30) - 1), 18_990_502),
        (lun("a"), 0),
        (lun("a"), 18_990_538),
        // Refused, and made all the same.
        (lun(&"n".repeat(255)), 18_990_068),
        (lun(&"n".repeat(256)), 18_990_503),
    ] {
        assert_eq!(
            code(&nas.call(LUN, "create", &params)),
            expected,
            "{params}"
        );
    }
    assert_eq!(nas.state()["luns"].as_array().map(Vec::len), Some(2));
}

pub(crate) async fn the_id_of_a_target_has_to_be_a_text(nas: impl AsyncFn(Version) -> Simulator) {
    let nas = nas(Version::V7_1).await;
    let target = json!({"name": "t", "iqn": "iqn.2000-01.com.synology:t", "auth_type": 0});
    let id = nas.call(TARGET, "create", &target)["data"]["target_id"].clone();
    assert_eq!(code(&nas.call(TARGET, "create", &target)), 18_990_744);
    let other = with(target.clone(), "name", "other");
    assert_eq!(code(&nas.call(TARGET, "create", &other)), 18_990_745);
    assert_eq!(
        code(&nas.call(TARGET, "delete", &json!({"target_id": id}))),
        18_990_710
    );
    let text = json!({"target_id": id.to_string()});
    assert_eq!(code(&nas.call(TARGET, "delete", &text)), 0);
}

pub(crate) async fn a_number_of_a_target_is_used_again(nas: impl AsyncFn(Version) -> Simulator) {
    let nas = nas(Version::V7_1).await;
    let target = json!({"name": "t", "iqn": "iqn.2000-01.com.synology:t", "auth_type": 0});
    let id = nas.call(TARGET, "create", &target)["data"]["target_id"].clone();
    let mut uuids = Vec::new();
    for name in ["a", "b", "c"] {
        let uuid = nas.call(LUN, "create", &lun(name))["data"]["uuid"].clone();
        let map = json!({"uuid": uuid, "target_ids": [id]});
        assert_eq!(code(&nas.call(LUN, "map_target", &map)), 0);
        uuids.push(uuid);
    }
    let unmap = json!({"uuid": uuids[1], "target_ids": [id]});
    nas.call(LUN, "unmap_target", &unmap);
    let uuid = nas.call(LUN, "create", &lun("d"))["data"]["uuid"].clone();
    nas.call(
        LUN,
        "map_target",
        &json!({"uuid": uuid, "target_ids": [id]}),
    );
    let mapped = &nas.state()["targets"][0]["mapped"];
    assert_eq!(*mapped, json!([[1, uuids[0]], [2, uuid], [3, uuids[2]]]));
}

pub(crate) async fn a_lun_that_goes_is_listed_for_a_while_and_its_snapshots_go_with_it(
    nas: impl AsyncFn(Version) -> Simulator,
) {
    let nas = nas(Version::V7_2).await;
    let uuid = nas.call(LUN, "create", &lun("a"))["data"]["uuid"].clone();
    let snapshot = json!({
        "src_lun_uuid": uuid, "description": "s", "is_locked": false, "is_app_consistent": false,
    });
    assert_eq!(code(&nas.call(LUN, "take_snapshot", &snapshot)), 0);
    assert_eq!(nas.state()["luns"][0]["snapshots"][0]["taken_by"], "webapi");
    nas.call(LUN, "delete", &json!({"uuid": "", "uuids": [uuid]}));
    let list = |nas: &Simulator| nas.call(LUN, "list", &json!({}))["data"]["luns"].clone();
    assert_eq!(list(&nas).as_array().map(Vec::len), Some(1));
    assert_eq!(list(&nas), json!([]));
    let gone = nas.call(LUN, "list_snapshot", &json!({"src_lun_uuid": uuid}));
    assert_eq!(code(&gone), 18_990_531);
}

pub(crate) async fn a_small_lun_of_the_legacy_sort_is_made_and_cannot_be_mapped(
    nas: impl AsyncFn(Version) -> Simulator,
) {
    let nas = nas(Version::V7_0).await;
    let target = json!({"name": "t", "iqn": "iqn.2000-01.com.synology:t", "auth_type": 0});
    let id = nas.call(TARGET, "create", &target)["data"]["target_id"].clone();
    for (name, kind, expected) in [("a", "ADV", 18_990_570), ("b", "THIN", 0)] {
        let lun = with(with(lun(name), "type", kind), "location", "/volume2");
        let uuid = nas.call(LUN, "create", &lun)["data"]["uuid"].clone();
        let map = json!({"uuid": uuid, "target_ids": [id]});
        assert_eq!(code(&nas.call(LUN, "map_target", &map)), expected, "{kind}");
        let snapshot =
            json!({"src_lun_uuid": uuid, "is_locked": false, "is_app_consistent": false});
        let taken = nas.call(LUN, "take_snapshot", &snapshot);
        assert_eq!(code(&taken), 18_990_500, "snapshots need Btrfs");
    }
}

pub(crate) async fn luns_and_targets_are_found_by_their_names(
    nas: impl AsyncFn(Version) -> Simulator,
) {
    let nas = nas(Version::V7_2).await;
    let uuid = nas.call(LUN, "create", &lun("a"))["data"]["uuid"].clone();
    let target = json!({"name": "t", "iqn": "iqn.2000-01.com.synology:t", "auth_type": 0});
    let id = nas.call(TARGET, "create", &target)["data"]["target_id"].clone();
    for named in [&json!("a"), &uuid] {
        let found = nas.call(LUN, "get", &json!({"uuid": named}));
        assert_eq!(found["data"]["lun"]["uuid"], uuid);
    }
    for named in ["t".to_owned(), id.to_string()] {
        let found = nas.call(TARGET, "get", &json!({"target_id": named}));
        assert_eq!(found["data"]["target"]["target_id"], id);
    }
    let missing = nas.call(LUN, "get", &json!({"uuid": "b"}));
    assert_eq!(code(&missing), 18_990_505);
    let missing = nas.call(TARGET, "get", &json!({"target_id": "b"}));
    assert_eq!(code(&missing), 18_990_710);
}

pub(crate) async fn a_lun_says_whether_a_target_shows_it(nas: impl AsyncFn(Version) -> Simulator) {
    let nas = nas(Version::V7_2).await;
    let uuid = nas.call(LUN, "create", &lun("a"))["data"]["uuid"].clone();
    let target = json!({"name": "t", "iqn": "iqn.2000-01.com.synology:t", "auth_type": 0});
    let id = nas.call(TARGET, "create", &target)["data"]["target_id"].clone();
    let asked = json!({"uuid": "a", "additional": ["is_mapped"]});
    let mapped = || nas.call(LUN, "get", &asked)["data"]["lun"]["is_mapped"].clone();
    assert_eq!(mapped(), false);
    let map = json!({"uuid": uuid, "target_ids": [id]});
    assert_eq!(code(&nas.call(LUN, "map_target", &map)), 0);
    assert_eq!(mapped(), true);
    let list = nas.call(LUN, "list", &json!({"additional": ["is_mapped"]}));
    assert_eq!(list["data"]["luns"][0]["is_mapped"], true);
    nas.call(LUN, "unmap_target", &map);
    assert_eq!(mapped(), false);
}

pub(crate) async fn chap_needs_a_user_and_a_password_of_the_right_length(
    nas: impl AsyncFn(Version) -> Simulator,
) {
    let nas = nas(Version::V7_2).await;
    let target = |password: &str| json!({"name": "t", "iqn": "iqn.2000-01.com.synology:t", "auth_type": 1, "user": "u", "password": password});
    assert_eq!(
        code(&nas.call(TARGET, "create", &target("short"))),
        18_990_708
    );
    assert_eq!(
        code(&nas.call(TARGET, "create", &target("twelve-chars"))),
        0
    );
}

/// A test of each of them, with attributes of its own, on the NAS that this function starts.
macro_rules! tests {
    ($nas:path $(, #[$attribute:meta])?) => {
        $crate::strict::tests!(@ $nas, [$(#[$attribute])?]
            a_parameter_that_no_source_names_is_refused_and_remembered
            attributes_of_dsm_7_are_refused_by_dsm_6
            names_types_and_sizes_are_refused_as_the_sources_say
            the_id_of_a_target_has_to_be_a_text
            a_number_of_a_target_is_used_again
            a_lun_that_goes_is_listed_for_a_while_and_its_snapshots_go_with_it
            a_lun_that_a_package_keeps_a_snapshot_of_goes_only_if_that_is_overridden
            a_small_lun_of_the_legacy_sort_is_made_and_cannot_be_mapped
            luns_and_targets_are_found_by_their_names
            a_lun_says_whether_a_target_shows_it
            chap_needs_a_user_and_a_password_of_the_right_length
        );
    };
    (@ $nas:path, $attributes:tt $($name:ident)*) => {
        $($crate::strict::tests!(# $nas, $attributes $name);)*
    };
    (# $nas:path, [$(#[$attribute:meta])?] $name:ident) => {
        #[tokio::test]
        $(#[$attribute])?
        async fn $name() {
            strict::$name($nas).await;
        }
    };
}
pub(crate) use tests;
