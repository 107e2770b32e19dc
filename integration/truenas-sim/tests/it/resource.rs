//! `zfs.resource.*` of 26, by the assertions of the middleware's own tests of that branch.

use serde_json::{Value, json};
use truenas_sim::{Generation, Simulator};

use crate::client::nas;

async fn call(nas: &Simulator, method: &str, data: Value) -> Result<Value, String> {
    nas.call(method, vec![data])
        .await
        .map_err(|failure| format!("{failure:?}"))
}

/// `tank/a` with a snapshot, a child with one, and a clone of the first.
async fn tree() -> Simulator {
    let nas = nas(Generation::V26Rc).await;
    for name in ["tank/a", "tank/a/b", "tank/c"] {
        call(&nas, "pool.dataset.create", json!({"name": name}))
            .await
            .expect("a dataset");
    }
    let data = json!({"dataset": "tank/a", "name": "s", "recursive": true, "user_properties": {"x:y": "z"}});
    call(&nas, "zfs.resource.snapshot.create", data)
        .await
        .expect("a snapshot");
    nas
}

async fn names(nas: &Simulator, data: Value) -> Vec<String> {
    let found = call(nas, "zfs.resource.query", data)
        .await
        .expect("datasets");
    found
        .as_array()
        .expect("a list")
        .iter()
        .map(|row| row["name"].as_str().unwrap_or_default().to_owned())
        .collect()
}

/// Each of these is refused, with this text.
const REFUSED: [(&str, &str, &str); 23] = [
    (
        "zfs.resource.destroy",
        r#"{"path": "tank/a@s"}"#,
        "zfs.resource.snapshot.destroy",
    ),
    (
        "zfs.resource.destroy",
        r#"{"path": "tank"}"#,
        "Destroying the root filesystem is not allowed.",
    ),
    ("zfs.resource.destroy", r#"{"path": "/tank/a"}"#, "absolute"),
    (
        "zfs.resource.destroy",
        r#"{"path": "tank/a/"}"#,
        "must not end with a forward-slash",
    ),
    ("zfs.resource.destroy", r#"{"path": "tank/x"}"#, "not exist"),
    ("zfs.resource.destroy", r#"{"path": "tank/a"}"#, "children"),
    (
        "zfs.resource.destroy",
        r#"{"path": "tank/a/b"}"#,
        "snapshots",
    ),
    (
        "zfs.resource.query",
        r#"{"paths": ["tank/a", "tank/a/b"], "get_children": true}"#,
        "non-overlapping",
    ),
    (
        "zfs.resource.query",
        r#"{"paths": ["tank/a", "tank/a"]}"#,
        "List must be unique",
    ),
    (
        "zfs.resource.snapshot.query",
        r#"{"paths": ["tank/a", "tank/a@s", "tank/a"]}"#,
        "List must be unique",
    ),
    (
        "zfs.resource.snapshot.create",
        r#"{"dataset": "tank/a", "name": "s"}"#,
        "already exists",
    ),
    (
        "zfs.resource.snapshot.create",
        r#"{"dataset": "tank/x", "name": "s"}"#,
        "not found",
    ),
    (
        "zfs.resource.snapshot.create",
        r#"{"dataset": "tank/a", "name": "s/t"}"#,
        "must be a snapshot name",
    ),
    (
        "zfs.resource.snapshot.create",
        r#"{"dataset": "boot-pool", "name": "s"}"#,
        "protected",
    ),
    (
        "zfs.resource.snapshot.destroy",
        r#"{"path": "tank/a@x"}"#,
        "not found",
    ),
    (
        "zfs.resource.snapshot.destroy",
        r#"{"path": "tank/a@s", "all_snapshots": true}"#,
        "must be a dataset path",
    ),
    (
        "zfs.resource.snapshot.clone",
        r#"{"snapshot": "tank/a@s", "dataset": "tank/c"}"#,
        "already exists",
    ),
    (
        "zfs.resource.snapshot.clone",
        r#"{"snapshot": "tank/a@x", "dataset": "tank/d"}"#,
        "not found",
    ),
    (
        "zfs.resource.snapshot.query",
        r#"{"paths": ["tank/x"]}"#,
        "errno: 2",
    ),
    (
        "zfs.resource.snapshot.query",
        r#"{"paths": ["tank/a", "tank/a"]}"#,
        "unique",
    ),
    (
        "zfs.resource.snapshot.count",
        r#"{"paths": ["tank/x"]}"#,
        "errno: 2",
    ),
    (
        "zfs.resource.snapshot.rename",
        r#"{"current_name": "tank/a@s", "new_name": "tank/c@s"}"#,
        "cannot rename",
    ),
    (
        "zfs.resource.snapshot.hold",
        r#"{"path": "tank/a@x"}"#,
        "errno: 2",
    ),
];

#[tokio::test]
async fn what_is_wrong_is_named() {
    let nas = tree().await;
    for (method, data, text) in REFUSED {
        let data = serde_json::from_str(data).expect("JSON");
        let error = call(&nas, method, data).await.expect_err("a refusal");
        assert!(error.contains(text), "{method}: {error}");
    }
    assert_eq!(
        names(&nas, json!({"paths": ["tank/x"]})).await,
        Vec::<String>::new()
    );
}

#[tokio::test]
async fn a_clone_stops_a_destroy_unless_it_is_recursive_and_then_goes_too() {
    let nas = tree().await;
    let properties = json!({"x:y": "q"});
    let marked = json!({"snapshot": "tank/a/b@s", "dataset": "tank/d", "properties": properties});
    let error = call(&nas, "zfs.resource.snapshot.clone", marked)
        .await
        .expect_err("a user property");
    assert!(error.contains("x:y: not a valid ZFS property."), "{error}");
    let clone =
        json!({"snapshot": "tank/a/b@s", "dataset": "tank/d", "properties": {"refquota": 1 << 30}});
    call(&nas, "zfs.resource.snapshot.clone", clone)
        .await
        .expect("a clone");
    let path = json!({"path": "tank/a/b@s"});
    let error = call(&nas, "zfs.resource.snapshot.destroy", path)
        .await
        .expect_err("a clone");
    assert!(
        error.contains("has the following clones: tank/d"),
        "{error}"
    );
    let deferred = json!({"path": "tank/a/b@s", "defer": true});
    assert_eq!(
        call(&nas, "zfs.resource.snapshot.destroy", deferred).await,
        Ok(Value::Null)
    );
    assert_eq!(
        call(
            &nas,
            "zfs.resource.destroy",
            json!({"path": "tank/a", "recursive": true})
        )
        .await,
        Ok(Value::Null)
    );
    let all = json!({"paths": ["tank"], "get_children": true});
    assert_eq!(names(&nas, all).await, ["tank", "tank/c"]);
}

#[tokio::test]
async fn a_deferred_snapshot_goes_with_its_last_clone() {
    let nas = tree().await;
    let clone = json!({"snapshot": "tank/a@s", "dataset": "tank/d"});
    call(&nas, "zfs.resource.snapshot.clone", clone)
        .await
        .expect("a clone");
    call(
        &nas,
        "zfs.resource.snapshot.destroy",
        json!({"path": "tank/a@s", "defer": true}),
    )
    .await
    .expect("later");
    let count = json!({"paths": ["tank/a"]});
    assert_eq!(
        call(&nas, "zfs.resource.snapshot.count", count.clone()).await,
        Ok(json!({"tank/a": 1}))
    );
    call(&nas, "zfs.resource.destroy", json!({"path": "tank/d"}))
        .await
        .expect("gone");
    assert_eq!(
        call(&nas, "zfs.resource.snapshot.count", count).await,
        Ok(json!({"tank/a": 0}))
    );
}

#[tokio::test]
async fn holds_add_up_and_are_released_by_tag_or_all_at_once() {
    let nas = tree().await;
    let (path, tagged) = (
        json!({"path": "tank/a@s"}),
        json!({"path": "tank/a@s", "tag": "mine"}),
    );
    call(&nas, "zfs.resource.snapshot.hold", path.clone())
        .await
        .expect("a hold");
    call(&nas, "zfs.resource.snapshot.hold", tagged.clone())
        .await
        .expect("a hold");
    assert_eq!(
        call(&nas, "zfs.resource.snapshot.holds", path.clone()).await,
        Ok(json!(["mine", "truenas"]))
    );
    let error = call(&nas, "zfs.resource.snapshot.destroy", path.clone())
        .await
        .expect_err("holds");
    assert!(error.contains("hold"), "{error}");
    call(&nas, "zfs.resource.snapshot.release", tagged)
        .await
        .expect("released");
    assert_eq!(
        call(&nas, "zfs.resource.snapshot.holds", path.clone()).await,
        Ok(json!(["truenas"]))
    );
    call(
        &nas,
        "zfs.resource.snapshot.release",
        json!({"path": "tank/a@s", "tag": null}),
    )
    .await
    .expect("released");
    assert_eq!(
        call(&nas, "zfs.resource.snapshot.destroy", path).await,
        Ok(Value::Null)
    );
}

#[tokio::test]
async fn a_recursive_snapshot_excludes_and_a_rollback_names_what_is_newer() {
    let nas = tree().await;
    let data =
        json!({"dataset": "tank/a", "name": "t", "recursive": true, "exclude": ["tank/a/b"]});
    call(&nas, "zfs.resource.snapshot.create", data)
        .await
        .expect("a snapshot");
    let count = json!({"paths": ["tank/a", "tank/a/b"]});
    let counted = call(&nas, "zfs.resource.snapshot.count", count).await;
    assert_eq!(counted, Ok(json!({"tank/a": 2, "tank/a/b": 1})));
    let error = call(
        &nas,
        "zfs.resource.snapshot.rollback",
        json!({"path": "tank/a@s"}),
    )
    .await
    .expect_err("newer ones");
    assert!(
        error.contains("more recent snapshots or bookmarks exist: tank/a@t"),
        "{error}"
    );
    let query = json!({"paths": ["tank/a@s"], "get_user_properties": true});
    let found = call(&nas, "zfs.resource.snapshot.query", query)
        .await
        .expect("a snapshot");
    assert_eq!(found[0]["user_properties"], json!({"x:y": "z"}));
}

#[tokio::test]
async fn a_detached_copy_has_its_own_snapshot_and_no_origin() {
    for generation in [
        Generation::V22_12,
        Generation::V24_10,
        Generation::V25_04,
        Generation::V25_10,
        Generation::V26Rc,
    ] {
        let nas = nas(generation).await;
        call(
            &nas,
            "pool.dataset.create",
            json!({"name": "tank/a", "type": "VOLUME", "volsize": 1 << 30}),
        )
        .await
        .expect("a volume");
        let service = if generation >= Generation::V25_10 {
            "pool"
        } else {
            "zfs"
        };
        let create = format!("{service}.snapshot.create");
        call(&nas, &create, json!({"dataset": "tank/a", "name": "s"}))
            .await
            .expect("a snapshot");
        let copy = json!({
            "direction": "PUSH", "transport": "LOCAL", "source_datasets": ["tank/a"], "target_dataset": "tank/b",
            "recursive": false, "name_regex": "s", "retention_policy": "NONE", "readonly": "IGNORE",
        });
        call(&nas, "replication.run_onetime", copy)
            .await
            .unwrap_or_else(|error| panic!("{generation}: {error}"));
        let made = call(&nas, "pool.dataset.get_instance", json!("tank/b"))
            .await
            .expect("a copy");
        assert_eq!(made["origin"]["rawvalue"], "", "{generation}");
        assert_eq!(made["volsize"]["parsed"], json!(1 << 30), "{generation}");
        assert!(
            call(&nas, &create, json!({"dataset": "tank/b", "name": "s"}))
                .await
                .is_err(),
            "{generation}"
        );
    }
}

#[tokio::test]
async fn a_query_of_several_paths_answers_in_their_order_and_to_the_depth_that_is_asked_for() {
    for generation in [Generation::V25_10, Generation::V26Rc] {
        let nas = nas(generation).await;
        for name in ["tank/a", "tank/a/b", "tank/a/b/c", "tank/z"] {
            let made = nas
                .call("pool.dataset.create", vec![json!({"name": name})])
                .await;
            made.expect("a dataset");
        }
        let names = async |data: Value| -> Vec<String> {
            let rows = nas.call("zfs.resource.query", vec![data]).await;
            let rows = rows.expect("rows");
            let rows = rows.as_array().into_iter().flatten();
            rows.filter_map(|row| row["name"].as_str().map(str::to_owned))
                .collect()
        };
        let flat = json!({"paths": ["tank/z", "tank/a", "tank"]});
        assert_eq!(names(flat).await, ["tank/z", "tank/a", "tank"]);
        let trees = json!({"paths": ["tank/z", "tank/a"], "get_children": true});
        assert_eq!(
            names(trees).await,
            ["tank/z", "tank/a", "tank/a/b", "tank/a/b/c"]
        );
        let missing = json!({"paths": ["tank/z", "tank/x"]});
        if generation == Generation::V26Rc {
            let near = json!({"paths": ["tank/z", "tank/a"], "max_depth": 1});
            assert_eq!(names(near).await, ["tank/z", "tank/a", "tank/a/b"]);
            assert_eq!(names(missing).await, ["tank/z"]);
        } else {
            let refused = nas.call("zfs.resource.query", vec![missing]).await;
            let refused = refused.expect_err("a refusal").reason();
            assert_eq!(refused, "[ENOENT] zfs.resource.query: 'tank/x': not found");
        }
    }
}
