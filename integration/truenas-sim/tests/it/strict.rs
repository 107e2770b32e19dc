//! What no release accepts is refused in the words of that release.

use serde_json::{Value, json};
use truenas_sim::Generation;

use crate::client::{Client, nas};

#[tokio::test]
async fn an_unknown_field_is_refused_in_the_words_of_each_generation() {
    for generation in Generation::ALL {
        let nas = nas(generation).await;
        let mut client = Client::root(&nas).await;
        let path = if generation == Generation::Core13 {
            json!({"paths": ["/mnt/tank"]})
        } else {
            json!({"path": "/mnt/tank"})
        };
        let mut share = path;
        share["bogus"] = json!(1);
        let refused = client.refused("sharing.nfs.create", json!([share])).await;
        let expected =
            if generation <= Generation::V25_04 && refused[0][0] == "sharingnfs_create.bogus" {
                json!([["sharingnfs_create.bogus", "Field was not expected", 22]])
            } else {
                json!([["data.bogus", "Extra inputs are not permitted", 22]])
            };
        assert_eq!(refused, expected, "{generation}");
    }
}

#[tokio::test]
async fn an_unknown_field_of_a_dataset_names_the_branches_of_its_generation() {
    let fields = |generation| match generation {
        Generation::V25_10 => vec![
            "data.PoolDatasetCreateFilesystem.bogus",
            "data.PoolDatasetCreateVolume.volsize",
            "data.PoolDatasetCreateVolume.bogus",
        ],
        Generation::V26Beta | Generation::V26Rc => vec!["data.FILESYSTEM.bogus"],
        _ => vec!["pool_dataset_create.bogus"],
    };
    for generation in Generation::ALL {
        let nas = nas(generation).await;
        let mut client = Client::root(&nas).await;
        let refused = client
            .refused(
                "pool.dataset.create",
                json!([{"name": "tank/a", "bogus": 1}]),
            )
            .await;
        let found: Vec<&str> = refused
            .as_array()
            .expect("a list")
            .iter()
            .filter_map(|entry| entry[0].as_str())
            .collect();
        assert_eq!(found, fields(generation), "{generation}");
    }
}

#[tokio::test]
async fn fields_of_one_generation_are_refused_by_the_next() {
    let cases: [(&str, Value, Generation, Generation); 4] = [
        (
            "sharing.nfs.create",
            json!([{"paths": ["/mnt/tank"]}]),
            Generation::Core13,
            Generation::V22_12,
        ),
        (
            "sharing.smb.create",
            json!([{"path": "/mnt/tank", "name": "s", "ro": true}]),
            Generation::V25_04,
            Generation::V25_10,
        ),
        (
            "iscsi.auth.create",
            json!([{"tag": 1, "user": "u", "secret": "secretsecret1"}]),
            Generation::V24_10,
            Generation::V24_10,
        ),
        (
            "pool.snapshot.create",
            json!([{"dataset": "tank", "name": "a"}]),
            Generation::V25_10,
            Generation::V25_04,
        ),
    ];
    for (method, params, good, bad) in cases {
        let right = nas(good).await;
        assert!(
            Client::root(&right)
                .await
                .call(method, params.clone())
                .await
                .is_ok(),
            "{method} on {good}"
        );
        if good != bad {
            let wrong = nas(bad).await;
            assert!(
                Client::root(&wrong)
                    .await
                    .call(method, params)
                    .await
                    .is_err(),
                "{method} on {bad}"
            );
        }
    }
}

#[tokio::test]
async fn a_quota_below_one_gibibyte_is_refused_everywhere() {
    for generation in Generation::ALL {
        let nas = nas(generation).await;
        let mut client = Client::root(&nas).await;
        let refused = client
            .refused(
                "pool.dataset.create",
                json!([{"name": "tank/a", "refquota": 1 << 20}]),
            )
            .await;
        assert!(
            refused.to_string().contains("1073741824"),
            "{generation}: {refused}"
        );
    }
}

#[tokio::test]
async fn core_takes_no_user_properties() {
    let nas = nas(Generation::Core13).await;
    let mut client = Client::root(&nas).await;
    let properties = json!([{"key": "a:b", "value": "c"}]);
    let refused = client
        .refused(
            "pool.dataset.create",
            json!([{"name": "tank/a", "user_properties": properties}]),
        )
        .await;
    assert_eq!(
        refused,
        json!([[
            "pool_dataset_create.user_properties",
            "Field was not expected",
            22
        ]])
    );
}

#[tokio::test]
async fn what_a_release_lacks_is_no_method() {
    let lacking = [
        (Generation::V25_04, "nvmet.subsys.query"),
        (Generation::V25_04, "pool.snapshot.query"),
        (Generation::V25_10, "zfs.resource.destroy"),
        (Generation::V26Rc, "zfs.snapshot.query"),
    ];
    for (generation, method) in lacking {
        let nas = nas(generation).await;
        let error = Client::root(&nas)
            .await
            .call(method, json!([]))
            .await
            .expect_err("no such method");
        assert_eq!(
            error,
            json!({"code": -32601, "message": "Method does not exist"}),
            "{generation}: {method}"
        );
    }
    // Recorded: what is private now is there, with other arguments.
    let rc = nas(Generation::V26Rc).await;
    let error = Client::root(&rc)
        .await
        .call("service.start", json!(["nfs"]))
        .await
        .expect_err("other arguments");
    let reason = error["data"]["reason"].as_str().unwrap_or_default();
    assert!(
        error["code"] == -32001 && reason.contains("missing 1 required positional argument"),
        "{error}"
    );
    let nas = nas(Generation::V24_10).await;
    let error = Client::root(&nas)
        .await
        .call("service.control", json!(["START", "nfs"]))
        .await
        .expect_err("no such method");
    assert_eq!(error["error"], 201);
}
