//! Datasets, snapshots and clones behave as ZFS and the middleware do.

use serde_json::{Value, json};
use truenas_sim::Generation;

use crate::client::{Client, nas};

const GIB: u64 = 1 << 30;

#[tokio::test]
async fn a_dataset_is_made_found_grown_and_deleted_in_every_generation() {
    for generation in Generation::ALL {
        let nas = nas(generation).await;
        let mut client = Client::root(&nas).await;
        let made = client
            .call(
                "pool.dataset.create",
                json!([{"name": "tank/a", "refquota": GIB}]),
            )
            .await;
        assert_eq!(
            made.expect("a dataset")["refquota"]["parsed"],
            json!(GIB),
            "{generation}"
        );
        let grown = client
            .call(
                "pool.dataset.update",
                json!(["tank/a", {"refquota": 2 * GIB}]),
            )
            .await;
        assert_eq!(
            grown.expect("a dataset")["refquota"]["rawvalue"],
            json!((2 * GIB).to_string()),
            "{generation}"
        );
        let found = client
            .call("pool.dataset.query", json!([[["id", "=", "tank/a"]]]))
            .await
            .expect("a list");
        assert_eq!(found[0]["type"], "FILESYSTEM", "{generation}");
        let deleted = client
            .call(
                "pool.dataset.delete",
                json!(["tank/a", {"recursive": false}]),
            )
            .await;
        assert_eq!(deleted, Ok(json!(true)), "{generation}");
        let found = client
            .call("pool.dataset.query", json!([[["id", "=", "tank/a"]]]))
            .await;
        assert_eq!(found, Ok(json!([])), "{generation}");
    }
}

/// Up to 25.04 `get_props_of_interest_mapping` of the middleware with `converter.pxi` of py-libzfs, later its
/// `dataset_query_utils.py`.
#[tokio::test]
async fn a_new_dataset_is_answered_with_the_properties_that_its_type_has() {
    for generation in Generation::ALL {
        let nas = nas(generation).await;
        let mut client = Client::root(&nas).await;
        for data in [
            json!({"name": "tank/f"}),
            json!({"name": "tank/v", "type": "VOLUME", "volsize": GIB, "sparse": true}),
        ] {
            let volume = data["type"] == "VOLUME";
            let what = format!("{generation}: {data}");
            let made = client.call("pool.dataset.create", json!([data])).await;
            let made = made.expect("a dataset");
            let of = |name: &str| {
                let property = made.get(name)?;
                Some(json!([
                    property["parsed"],
                    property["rawvalue"],
                    property["value"]
                ]))
            };
            assert_eq!(of("pbkdf2iters"), Some(json!(["0", "0", "0"])), "{what}");
            let sa = (!volume).then(|| json!([null, "sa", "SA"]));
            assert_eq!(of("xattr"), sa, "{what}");
            // A property of filesystems up to the ZFS of 25.10.
            let small = if generation.is_26() {
                Some(json!([0, "0", "0"]))
            } else {
                (!volume).then(|| json!(["0", "0", "0"]))
            };
            assert_eq!(of("special_small_block_size"), small, "{what}");
        }
    }
}

#[tokio::test]
async fn every_method_that_needs_no_argument_is_simulated() {
    for generation in Generation::ALL {
        let nas = nas(generation).await;
        for method in truenas_sim::Table::of(generation).methods() {
            let result = nas.call(method, Vec::new()).await;
            let text = format!("{result:?}");
            assert!(
                !text.contains("truenas-sim does not simulate"),
                "{generation}: {method}"
            );
        }
    }
}

#[tokio::test]
async fn user_properties_are_dropped_by_the_betas_of_26_alone() {
    for generation in Generation::ALL
        .into_iter()
        .filter(|generation| *generation != Generation::Core13)
    {
        let nas = nas(generation).await;
        let property = json!([{"key": "a:b", "value": "c"}]);
        let made = nas
            .call(
                "pool.dataset.create",
                vec![json!({"name": "tank/a", "user_properties": property})],
            )
            .await;
        let kept = made.expect("a dataset")["user_properties"]["a:b"]["rawvalue"].clone();
        let expected = if generation == Generation::V26Beta {
            Value::Null
        } else {
            json!("c")
        };
        assert_eq!(kept, expected, "{generation}");
    }
}
