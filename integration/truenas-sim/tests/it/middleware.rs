//! Points in which a client of a real server notices what its code does, read or run there.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use truenas_sim::{Failure, Generation, Options, Simulator};

use crate::client::{Client, nas};
use crate::rest::rest;

/// Error number and text of a call of root.
async fn failure(nas: &Simulator, method: &str, params: Value) -> (i32, String) {
    let params = params.as_array().cloned().unwrap_or_default();
    let failure = nas.call(method, params).await.expect_err(method);
    (failure.errno(), failure.reason())
}

async fn call(nas: &Simulator, method: &str, params: Value) -> Value {
    let params = params.as_array().cloned().unwrap_or_default();
    let result = nas.call(method, params).await;
    result.unwrap_or_else(|failure| panic!("{method}: {failure:?}"))
}

fn snapshots(generation: Generation) -> &'static str {
    if generation >= Generation::V25_10 {
        "pool.snapshot"
    } else {
        "zfs.snapshot"
    }
}

/// `tank/a` with the snapshot `s`, which has a user property where the release takes some, and `tank/b`
/// without any.
async fn with_snapshot(generation: Generation) -> Simulator {
    let nas = nas(generation).await;
    for name in ["tank/a", "tank/b"] {
        call(&nas, "pool.dataset.create", json!([{"name": name}])).await;
    }
    let new = json!([{"dataset": "tank/a", "name": "s", "properties": {"x:y": "z"}}]);
    call(&nas, &format!("{}.create", snapshots(generation)), new).await;
    nas
}

#[tokio::test]
async fn rest_passes_the_options_of_one_dataset_on_and_reads_them_as_json() {
    for generation in [Generation::V22_12, Generation::V24_10, Generation::V25_10] {
        let nas = with_snapshot(generation).await;
        let path = "GET /api/v2.0/pool/dataset/id/tank?extra.snapshots=1&extra.snapshots_properties=%5B%22name%22%2C%22used%22%5D";
        let (status, found) = rest(&nas, path, None).await;
        assert_eq!(
            (status, &found["snapshots"]),
            (200, &json!([])),
            "{generation}"
        );
        let children = found["children"].as_array().expect("children");
        assert_eq!(children[1]["snapshots"], json!([]), "{generation}");
        let snapshot = &children[0]["snapshots"][0];
        assert_eq!(snapshot["name"], "tank/a@s", "{generation}");
        let properties = snapshot["properties"].as_object().expect("properties");
        assert_eq!(properties["name"]["rawvalue"], "tank/a@s", "{generation}");
        assert!(properties.contains_key("used"), "{generation}");
        assert!(!properties.contains_key("referenced"), "{generation}");
        // py-libzfs adds every user property; 25.10 has native ones only.
        let user = properties.contains_key("x:y");
        assert_eq!(user, generation < Generation::V25_10, "{generation}");
        let (_, plain) = rest(&nas, "GET /api/v2.0/pool/dataset/id/tank", None).await;
        assert!(plain.get("snapshots").is_none(), "{generation}");
    }
}

#[tokio::test]
async fn one_dataset_is_shown_with_the_options_of_a_query() {
    let nas = with_snapshot(Generation::V25_10).await;
    let options = json!({"extra": {"snapshots": true, "snapshots_count": true, "properties": []}});
    let found = call(
        &nas,
        "pool.dataset.get_instance",
        json!(["tank/a", options]),
    )
    .await;
    assert_eq!(found["snapshot_count"], 1);
    assert_eq!(found["snapshots"][0]["id"], "tank/a@s");
    // Without a list of properties a snapshot has none.
    assert!(found["snapshots"][0].get("properties").is_none());
    assert!(found.get("used").is_none());
}

#[tokio::test]
async fn a_replication_without_properties_carries_none_of_the_snapshot() {
    for generation in Generation::ALL.into_iter().filter(|each| !each.is_core()) {
        let nas = with_snapshot(generation).await;
        let mut data = json!({
            "direction": "PUSH", "transport": "LOCAL", "source_datasets": ["tank/a"],
            "target_dataset": "tank/c", "recursive": false, "name_regex": "s",
            "retention_policy": "NONE", "readonly": "IGNORE", "properties": false,
        });
        call(&nas, "replication.run_onetime", json!([data])).await;
        data["target_dataset"] = json!("tank/d");
        data["properties"] = json!(true);
        call(&nas, "replication.run_onetime", json!([data])).await;
        // 26 has no way to ask for them but this one.
        for (copy, kept) in [("tank/c@s", false), ("tank/d@s", true)] {
            let found = if generation.is_26() {
                let data = json!({"paths": [copy], "get_user_properties": true});
                let found = call(&nas, "zfs.resource.snapshot.query", json!([data])).await;
                found[0]["user_properties"].get("x:y").cloned()
            } else {
                let query = format!("{}.query", snapshots(generation));
                let found = call(&nas, &query, json!([[["id", "=", copy]]])).await;
                found[0]["properties"].get("x:y").cloned()
            };
            assert_eq!(found.is_some(), kept, "{generation} {copy}");
        }
    }
}

#[tokio::test]
async fn links_of_subsystems_are_found_by_columns_of_the_database_only() {
    for generation in [Generation::V25_10, Generation::V26Beta, Generation::V26Rc] {
        let nas = nas(generation).await;
        for name in ["a", "b"] {
            call(&nas, "nvmet.subsys.create", json!([{"name": name}])).await;
        }
        let port = json!([{"addr_trtype": "TCP", "addr_traddr": "10.0.0.5"}]);
        call(&nas, "nvmet.port.create", port).await;
        let host = json!([{"hostnqn": "nqn.2014-08.org.nvmexpress:uuid:11111111-1111-1111-1111-111111111111"}]);
        call(&nas, "nvmet.host.create", host).await;
        for subsystem in [1, 2] {
            let link = json!([{"port_id": 1, "subsys_id": subsystem}]);
            call(&nas, "nvmet.port_subsys.create", link).await;
        }
        call(
            &nas,
            "nvmet.host_subsys.create",
            json!([{"host_id": 1, "subsys_id": 2}]),
        )
        .await;
        for filters in [
            json!([["subsys.id", "=", 2]]),
            json!([["subsys_id", "=", 2], ["port_id", "=", 1]]),
            json!([["subsys", "in", [2, 3]], ["port.id", "=", 1]]),
            json!([[
                "OR",
                [["subsys.nvmet_subsys_name", "=", "b"], ["id", "=", 9]]
            ]]),
        ] {
            let found = call(&nas, "nvmet.port_subsys.query", json!([filters])).await;
            assert_eq!(
                found.as_array().map(Vec::len),
                Some(1),
                "{generation} {filters}"
            );
            assert_eq!(found[0]["subsys"]["name"], "b", "{generation} {filters}");
        }
        let found = call(
            &nas,
            "nvmet.host_subsys.query",
            json!([[["host.id", "=", 1]]]),
        )
        .await;
        assert_eq!(found.as_array().map(Vec::len), Some(1));
        for service in ["nvmet.port_subsys", "nvmet.host_subsys"] {
            let filters = json!([[["subsys.name", "=", "b"]]]);
            let failed = failure(&nas, &format!("{service}.query"), filters).await;
            assert_eq!(failed, (22, "'name'".to_owned()), "{generation} {service}");
        }
    }
    let nas = nas(Generation::V25_10).await;
    let (status, found) = rest(
        &nas,
        "GET /api/v2.0/nvmet/port_subsys?port_id=1&subsys_id=2",
        None,
    )
    .await;
    assert_eq!((status, found), (200, json!([])));
}

const KEYS: [&str; 3] = [
    "DHHC-1:00:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:",
    "DHHC-1:01:ZWZnaGlqa2xtbm9wcXJzdHV2d3h5ent8fX5/gIGCg4QqhWEu:",
    "DHHC-1:02:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAhIiMkJSYnKCkqKywtLi8wyg3Bcw==:",
];

#[tokio::test]
async fn keys_of_hosts_are_checked_as_far_as_the_middleware_does() {
    for generation in [Generation::V25_10, Generation::V26Beta, Generation::V26Rc] {
        let nas = nas(generation).await;
        let nqn = |number: usize| format!("nqn.2014-08.org.example:{number}");
        for (number, key) in KEYS.into_iter().enumerate() {
            let host = json!([{"hostnqn": nqn(number), "dhchap_key": key}]);
            let made = call(&nas, "nvmet.host.create", host).await;
            assert_eq!(made["dhchap_key"], key, "{generation}");
        }
        // No length and no checksum is asked of one without a hash.
        let odd = json!([1, {"dhchap_key": "DHHC-1:00:AAAA:", "dhchap_ctrl_key": KEYS[1]}]);
        let odd = call(&nas, "nvmet.host.update", odd).await;
        assert_eq!(odd["dhchap_ctrl_key"], KEYS[1], "{generation}");
        let long = KEYS[2].replace(":02:", ":03:");
        let short = KEYS[1].replace(":01:", ":02:");
        let format = "Unexpected key format. Use \"nvme gen-dhchap-key\" to generate.";
        let end = "Unexpected key termination. Use \"nvme gen-dhchap-key\" to generate.";
        for (key, why) in [
            ("secret", format),
            ("DHHC-1:04:AAAA:", format),
            ("DHHC-1:00:AAAA", end),
            ("DHHC-1:01:AAAA:", "Expected key length of 32"),
            (long.as_str(), "Expected key length of 64"),
            (short.as_str(), "Expected key length of 48"),
        ] {
            let host = json!([{"hostnqn": nqn(9), "dhchap_key": key}]);
            let failed = failure(&nas, "nvmet.host.create", host).await;
            let text = format!("[EINVAL] nvmet_host_create.dhchap_key: {why}\n");
            assert_eq!(failed, (22, text), "{generation} {key}");
            let changed = json!([2, {"dhchap_ctrl_key": key}]);
            let failed = failure(&nas, "nvmet.host.update", changed).await;
            assert!(failed.1.contains(why), "{generation} {key}: {failed:?}");
        }
        let alone = json!([{"hostnqn": nqn(9), "dhchap_ctrl_key": KEYS[0]}]);
        let failed = failure(&nas, "nvmet.host.create", alone).await;
        assert!(
            failed.1.contains("bi-directional"),
            "{generation} {failed:?}"
        );
        assert_eq!(rows_of_hosts(&nas).await, 3, "{generation}");
        for (hash, length) in [("SHA-256", 59), ("SHA-384", 83), ("SHA-512", 103)] {
            let made = call(&nas, "nvmet.host.generate_key", json!([hash])).await;
            let text = made.as_str().expect("a key");
            assert_eq!(text.len(), length, "{generation} {hash}");
            call(&nas, "nvmet.host.update", json!([3, {"dhchap_key": made}])).await;
        }
    }
}

async fn rows_of_hosts(nas: &Simulator) -> usize {
    let hosts = call(nas, "nvmet.host.query", json!([])).await;
    hosts.as_array().expect("rows").len()
}

#[tokio::test]
async fn keys_of_hosts_are_shown_to_who_may_change_them() {
    for (role, shown) in [
        ("SHARING_NVME_TARGET_WRITE", [json!(KEYS[0]), json!(null)]),
        (
            "SHARING_NVME_TARGET_READ",
            [json!("********"), json!("********")],
        ),
    ] {
        let options = Options::new(Generation::V25_10).user("csi", "sesame", Some(&[role]));
        let nas = Simulator::start(options).await.expect("a simulator");
        let host = json!([{"hostnqn": "nqn.2014-08.org.example:a", "dhchap_key": KEYS[0]}]);
        call(&nas, "nvmet.host.create", host).await;
        call(&nas, "nvmet.subsys.create", json!([{"name": "s"}])).await;
        let link = json!([{"host_id": 1, "subsys_id": 1}]);
        call(&nas, "nvmet.host_subsys.create", link).await;
        let mut client = Client::connect(&nas).await;
        let login = client.call("auth.login", json!(["csi", "sesame"])).await;
        assert_eq!(login, Ok(json!(true)));
        let hosts = client.call("nvmet.host.query", json!([])).await;
        let links = client.call("nvmet.host_subsys.query", json!([])).await;
        let seen = [
            hosts.expect("hosts")[0].clone(),
            links.expect("links")[0]["host"].clone(),
        ];
        for host in seen {
            let keys = [host["dhchap_key"].clone(), host["dhchap_ctrl_key"].clone()];
            assert_eq!(keys, shown, "{role}");
        }
    }
}

#[tokio::test]
async fn a_snapshot_that_is_not_there_is_not_found_in_every_release() {
    for generation in Generation::ALL {
        let nas = nas(generation).await;
        let method = |verb: &str| format!("{}.{verb}", snapshots(generation));
        let missing = "tank/a@none";
        let deleted = failure(&nas, &method("delete"), json!([missing])).await;
        let cloned = json!([{"snapshot": missing, "dataset_dst": "tank/c"}]);
        let cloned = failure(&nas, &method("clone"), cloned).await;
        let (delete, clone) = if generation.is_26() {
            (
                (22, "[ENOENT] None: 'tank/a@none' not found"),
                (22, "'tank/a@none' not found"),
            )
        } else if generation >= Generation::V24_10 {
            (
                (22, "[ENOENT] None: Snapshot tank/a@none not found"),
                (
                    14,
                    "[EFAULT] Failed to clone snapshot: Snapshot tank/a@none not found",
                ),
            )
        } else {
            (
                (14, "[EFAULT] Snapshot tank/a@none not found"),
                (
                    14,
                    "[EFAULT] Failed to clone snapshot: Snapshot tank/a@none not found",
                ),
            )
        };
        assert_eq!(deleted, (delete.0, delete.1.to_owned()), "{generation}");
        assert_eq!(cloned, (clone.0, clone.1.to_owned()), "{generation}");
    }
}

#[tokio::test]
async fn a_clone_of_26_takes_no_user_properties_and_in_its_first_beta_none_at_all() {
    for generation in [Generation::V25_10, Generation::V26Beta, Generation::V26Rc] {
        let nas = with_snapshot(generation).await;
        let clone = |target: &str, properties: Value| json!([{"snapshot": "tank/a@s", "dataset_dst": target, "dataset_properties": properties}]);
        let with_mark = clone("tank/c", json!({"x:y": "z"}));
        if generation.is_26() {
            let refused = (22, "x:y: not a valid ZFS property.".to_owned());
            assert_eq!(
                failure(&nas, "pool.snapshot.clone", with_mark).await,
                refused
            );
            nas.faults()
                .set(|settings| settings.clones_without_properties = true);
            let native = clone("tank/c", json!({"refquota": 1 << 30}));
            let refused = (22, "refquota: not a valid ZFS property.".to_owned());
            assert_eq!(failure(&nas, "pool.snapshot.clone", native).await, refused);
            call(&nas, "pool.snapshot.clone", clone("tank/c", json!({}))).await;
        } else {
            call(&nas, "pool.snapshot.clone", with_mark).await;
        }
        let (errno, text) = failure(&nas, "pool.snapshot.clone", clone("tank/c", json!({}))).await;
        let expected = if generation.is_26() { 22 } else { 14 };
        assert!(
            errno == expected && text.contains("already exists"),
            "{text}"
        );
    }
}

#[tokio::test]
async fn core_knows_no_operator_that_ignores_case_once_it_looks_at_a_row() {
    let filters = json!([[["OR", [["name", "=", "x"], ["name", "C=", "A"]]]]]);
    for generation in [Generation::Core13, Generation::V22_12] {
        let nas = nas(generation).await;
        assert_eq!(
            call(&nas, "iscsi.target.query", filters.clone()).await,
            json!([])
        );
        for name in ["x", "a"] {
            call(&nas, "iscsi.target.create", json!([{"name": name}])).await;
            let params = filters.as_array().cloned().unwrap_or_default();
            let result = nas.call("iscsi.target.query", params).await;
            // The first row matches the first branch, so that the second one is not looked at.
            let expected = if name == "a" && generation.is_core() {
                Err(Failure::Exception {
                    class: "ValueError".to_owned(),
                    text: "Invalid operation: C=".to_owned(),
                })
            } else {
                Ok(if name == "x" { 1 } else { 2 })
            };
            let found = result.map(|rows| rows.as_array().map_or(0, Vec::len));
            assert_eq!(found, expected, "{generation} {name}");
        }
    }
}

#[tokio::test]
async fn the_options_of_a_connection_are_answered_from_25_10_on() {
    for (generation, expected) in [
        (Generation::V25_04, Value::Null),
        (
            Generation::V25_10,
            json!({"legacy_jobs": false, "private_methods": false, "py_exceptions": false}),
        ),
    ] {
        let nas = nas(generation).await;
        let mut client = Client::root(&nas).await;
        // What a later client sends beside is ignored.
        let options =
            json!([{"legacy_jobs": false, "py_exceptions": false, "of_another_release": 1}]);
        let answer = client.call("core.set_options", options).await;
        assert_eq!(answer, Ok(expected), "{generation}");
    }
}

#[tokio::test]
async fn methods_word_their_refusals_as_the_middleware_does() {
    let nas = with_snapshot(Generation::V25_10).await;
    let hosts = json!([{"path": "/mnt/tank/a", "hosts": ["a b"]}]);
    let (_, text) = failure(&nas, "sharing.nfs.create", hosts).await;
    assert_eq!(
        text,
        "[EINVAL] sharingnfs_create.hosts: Cannot contain spaces or quotes: a b\n"
    );
    let namespace =
        json!([{"subsys_id": 7, "device_type": "ZVOL", "device_path": "zvol/tank/none"}]);
    let (_, text) = failure(&nas, "nvmet.namespace.create", namespace).await;
    assert_eq!(
        text,
        "[EINVAL] nvmet_namespace_create.subsys_id: No subsystem with ID 7\n[EINVAL] nvmet_namespace_create.device_path: ZVOL device_path must be a block device: zvol/tank/none\n"
    );
    let (_, text) = failure(
        &nas,
        "filesystem.setperm",
        json!([{"path": "/mnt/tank/a", "mode": "000"}]),
    )
    .await;
    assert_eq!(
        text,
        "[EINVAL] filesystem.setperm.mode: Empty permissions are not permitted.\n"
    );
    let rename = |options: Value| json!(["tank/a@s", options]);
    let (_, text) = failure(
        &nas,
        "pool.snapshot.rename",
        rename(json!({"new_name": "t", "force": true})),
    )
    .await;
    assert_eq!(
        text,
        "[EINVAL] pool.snapshot.rename.new_name: Old and new snapshot must be part of the same ZFS dataset\n"
    );
    let (_, text) = failure(
        &nas,
        "pool.snapshot.rename",
        rename(json!({"new_name": "tank/a@t"})),
    )
    .await;
    assert!(
        text.starts_with("[EINVAL] pool.snapshot.rename.force: No safety checks"),
        "{text}"
    );
    // Private now, and still there.
    let found = call(
        &nas,
        "zfs.snapshot.query",
        json!([[["id", "=", "tank/a@s"]]]),
    )
    .await;
    assert_eq!(found[0]["id"], "tank/a@s");
}

#[tokio::test]
async fn an_extent_that_has_a_target_is_refused_under_the_name_of_its_service() {
    let nas = nas(Generation::V25_10).await;
    let volume = json!([{"name": "tank/v", "type": "VOLUME", "volsize": 1 << 30}]);
    call(&nas, "pool.dataset.create", volume).await;
    for name in ["a", "b"] {
        call(&nas, "iscsi.target.create", json!([{"name": name}])).await;
    }
    let extent = json!([{"name": "e", "type": "DISK", "disk": "zvol/tank/v"}]);
    call(&nas, "iscsi.extent.create", extent).await;
    call(
        &nas,
        "iscsi.targetextent.create",
        json!([{"target": 1, "extent": 1}]),
    )
    .await;
    let again = json!([{"target": 2, "extent": 1}]);
    let (_, text) = failure(&nas, "iscsi.targetextent.create", again).await;
    assert_eq!(
        text,
        "[EINVAL] iscsi_targetextent_create.extent: Extent is already in use.\n"
    );
}

#[tokio::test]
async fn rows_of_old_releases_have_the_columns_that_were_not_given() {
    for generation in [Generation::Core13, Generation::V22_12, Generation::V24_10] {
        let nas = nas(generation).await;
        let volume = json!([{"name": "tank/v", "type": "VOLUME", "volsize": 1 << 30}]);
        call(&nas, "pool.dataset.create", volume).await;
        let extent = json!([{"name": "e", "type": "DISK", "disk": "zvol/tank/v"}]);
        let extent = call(&nas, "iscsi.extent.create", extent).await;
        let shown = ["comment", "xen", "pblocksize", "avail_threshold"]
            .map(|name| extent.get(name).cloned());
        let expected = [json!(""), json!(false), json!(false), Value::Null].map(Some);
        assert_eq!(shown, expected, "{generation}");
        let initiator = call(&nas, "iscsi.initiator.create", json!([{}])).await;
        assert_eq!(initiator["comment"], "", "{generation}");
    }
}

/// Milliseconds for each snapshot.
const EACH: u64 = 25;
const COUNT: u64 = 40;

#[tokio::test]
async fn snapshots_cost_time_where_a_release_reads_them_all() {
    for generation in [Generation::V24_10, Generation::V25_10, Generation::V26Rc] {
        let nas = with_snapshot(generation).await;
        let method = |verb: &str| format!("{}.{verb}", snapshots(generation));
        for number in 1..COUNT {
            let new = json!([{"dataset": "tank/b", "name": format!("n{number}")}]);
            call(&nas, &method("create"), new).await;
        }
        nas.faults()
            .set(|settings| settings.per_snapshot_us = EACH * 1000);
        let whole = Duration::from_millis(EACH * COUNT);
        let is_26 = generation.is_26();
        let by_dataset = json!([["dataset", "=", "tank/a"]]);
        let listed = json!({"extra": {"snapshots": true}});
        let cases = [
            (method("query"), json!([[["id", "=", "tank/a@s"]]]), false),
            (method("query"), json!([by_dataset]), !is_26),
            (
                method("query"),
                json!([by_dataset, {"select": ["name"]}]),
                false,
            ),
            (method("query"), json!([by_dataset, {"count": true}]), false),
            (
                method("query"),
                json!([[["id", "=", "tank/a@s"], ["pool", "=", "tank"]]]),
                !is_26,
            ),
            (
                method("query"),
                json!([[["snapshot_name", "=", "s"]]]),
                true,
            ),
            (
                "pool.dataset.query".to_owned(),
                json!([[["id", "=", "tank/a"]], listed]),
                generation >= Generation::V25_10,
            ),
        ];
        for (method, params, all) in cases {
            let start = Instant::now();
            call(&nas, &method, params.clone()).await;
            let took = start.elapsed();
            assert_eq!(
                took >= whole,
                all,
                "{generation} {method} {params}: {took:?}"
            );
        }
    }
}

#[tokio::test]
async fn a_task_of_snapshots_is_a_row_that_goes_with_its_dataset() {
    for generation in [Generation::V25_10, Generation::V26Beta, Generation::V26Rc] {
        let nas = nas(generation).await;
        let call = async |method: &str, params: Value| {
            let params = params.as_array().cloned().unwrap_or_default();
            nas.call(method, params).await
        };
        let task =
            json!({"dataset": "tank/a", "naming_schema": "csi-%Y%m%d-%H%M%S", "lifetime_value": 3});
        let refused = call("pool.snapshottask.create", json!([task])).await;
        assert_eq!(
            refused.expect_err("a refusal").reason(),
            "[EINVAL] periodic_snapshot_create.dataset: Dataset not found\n"
        );
        let made = call("pool.dataset.create", json!([{"name": "tank/a"}])).await;
        made.expect("a dataset");
        let named = json!([{"dataset": "tank/a", "naming_schema": "csi"}]);
        let refused = call("pool.snapshottask.create", named).await;
        assert!(
            refused
                .expect_err("a refusal")
                .reason()
                .contains("%Y must be present")
        );
        let made = call("pool.snapshottask.create", json!([task])).await;
        let made = made.expect("a task");
        assert_eq!(made["lifetime_unit"], "WEEK");
        assert_eq!(made["schedule"]["minute"], "00");
        let changed = json!([made["id"], {"enabled": false}]);
        let changed = call("pool.snapshottask.update", changed).await;
        assert_eq!(changed.expect("a task")["enabled"], false);
        let of = json!([[["dataset", "=", "tank/a"]]]);
        let found = call("pool.snapshottask.query", of.clone()).await;
        assert_eq!(found.expect("tasks").as_array().map(Vec::len), Some(1));
        call("pool.dataset.delete", json!(["tank/a"]))
            .await
            .expect("gone");
        assert_eq!(call("pool.snapshottask.query", of).await, Ok(json!([])));
        // One that is not there is no error.
        let deleted = call("pool.snapshottask.delete", json!([made["id"]])).await;
        assert_eq!(deleted, Ok(json!(true)), "{generation}");
    }
}
