//! The catalogue of faults: each one is seen by a client exactly as a real server shows it.
//!
//! The faults of jobs are in `jobs`, those of logins and frames in `auth`, the upgrade in `upgrade`,
//! those of nginx that need plain HTTP in `rest`.

use std::time::Duration;

use serde_json::{Value, json};
use truenas_sim::backend::Session;
use truenas_sim::{Action, Generation, Options, Rule, Simulator};

use crate::client::{Client, End, nas};

const GIB: u64 = 1 << 30;

async fn volume(client: &mut Client, name: &str) {
    let made = client
        .call(
            "pool.dataset.create",
            json!([{"name": name, "type": "VOLUME", "volsize": GIB}]),
        )
        .await;
    made.expect("a volume");
}

fn snapshots(generation: Generation, verb: &str) -> String {
    let service = if generation >= Generation::V25_10 {
        "pool"
    } else {
        "zfs"
    };
    format!("{service}.snapshot.{verb}")
}

/// Error number and text, whichever the protocol.
fn said(error: &Value) -> (i64, String) {
    let data = error.get("data").unwrap_or(error);
    (
        data["error"].as_i64().unwrap_or_default(),
        data["reason"].as_str().unwrap_or_default().to_owned(),
    )
}

#[tokio::test]
async fn a_busy_dataset_fails_as_the_generation_fails_and_then_goes() {
    for generation in Generation::ALL {
        let nas = nas(generation).await;
        let mut client = Client::root(&nas).await;
        volume(&mut client, "tank/a").await;
        nas.faults().busy("tank/a", 1);
        let result = client
            .call("pool.dataset.delete", json!(["tank/a", {}]))
            .await;
        let text = "Failed to delete dataset: cannot destroy 'tank/a': dataset is busy";
        match generation {
            Generation::V26Beta => assert_eq!(result, Ok(json!(true))),
            Generation::Core13 => {
                assert_eq!(
                    said(&result.expect_err("busy")),
                    (14, format!("[EFAULT] {text}"))
                );
            }
            _ => assert_eq!(
                said(&result.expect_err("busy")),
                (16, format!("[EBUSY] {text}")),
                "{generation}"
            ),
        }
        let left = client
            .call(
                "pool.dataset.query",
                json!([[["id", "=", "tank/a"]], {"count": false}]),
            )
            .await;
        assert_eq!(
            left.expect("a list").as_array().map(Vec::len),
            Some(1),
            "{generation}"
        );
        assert_eq!(
            client
                .call("pool.dataset.delete", json!(["tank/a", {}]))
                .await,
            Ok(json!(true)),
            "{generation}"
        );
    }
}

#[tokio::test]
async fn a_delete_that_fails_has_already_removed_the_exports() {
    for generation in Generation::ALL {
        let nas = nas(generation).await;
        let mut client = Client::root(&nas).await;
        volume(&mut client, "tank/a").await;
        let extent = json!([{"name": "a", "type": "DISK", "disk": "zvol/tank/a"}]);
        let extent = client
            .call("iscsi.extent.create", extent)
            .await
            .expect("an extent")["id"]
            .clone();
        let target = client
            .call("iscsi.target.create", json!([{"name": "a"}]))
            .await
            .expect("a target")["id"]
            .clone();
        let link = json!([{"target": target, "extent": extent, "lunid": 0}]);
        client
            .call("iscsi.targetextent.create", link)
            .await
            .expect("a link");
        let snapshot = json!([{"dataset": "tank/a", "name": "s"}]);
        client
            .call(&snapshots(generation, "create"), snapshot)
            .await
            .expect("a snapshot");
        let error = client
            .call("pool.dataset.delete", json!(["tank/a", {}]))
            .await
            .expect_err("snapshots");
        let (number, text) = said(&error);
        if generation >= Generation::V26Beta {
            assert_eq!(error["data"]["extra"][0][2], 39);
            assert_eq!(error["data"]["extra"][0][0], "zfs.resource.destroy");
        } else {
            assert_eq!(number, 14, "{generation}: {text}");
            assert!(
                text.contains("filesystem has children"),
                "{generation}: {text}"
            );
        }
        for table in [
            "iscsi.extent.query",
            "iscsi.target.query",
            "iscsi.targetextent.query",
        ] {
            assert_eq!(
                client.call(table, json!([])).await,
                Ok(json!([])),
                "{generation}: {table}"
            );
        }
    }
}

#[tokio::test]
async fn a_recursive_delete_takes_clones_along_on_26_and_fails_before() {
    for generation in Generation::ALL {
        let nas = nas(generation).await;
        let mut client = Client::root(&nas).await;
        volume(&mut client, "tank/a").await;
        client
            .call(
                &snapshots(generation, "create"),
                json!([{"dataset": "tank/a", "name": "s"}]),
            )
            .await
            .expect("a snapshot");
        let clone = json!([{"snapshot": "tank/a@s", "dataset_dst": "tank/b"}]);
        client
            .call(&snapshots(generation, "clone"), clone)
            .await
            .expect("a clone");
        let result = client
            .call(
                "pool.dataset.delete",
                json!(["tank/a", {"recursive": true}]),
            )
            .await;
        let left = nas
            .call(
                "pool.dataset.query",
                vec![json!([["id", "in", ["tank/a", "tank/b"]]])],
            )
            .await;
        let left = left.expect("a list").as_array().map(Vec::len);
        if generation >= Generation::V26Beta {
            assert_eq!((result, left), (Ok(json!(true)), Some(0)), "{generation}");
        } else {
            assert!(
                said(&result.expect_err("clones"))
                    .1
                    .contains("dependent clones"),
                "{generation}"
            );
            assert_eq!(left, Some(2), "{generation}");
        }
    }
}

#[tokio::test]
async fn what_exists_is_refused_in_the_words_of_the_generation() {
    for generation in Generation::ALL {
        let nas = nas(generation).await;
        let mut client = Client::root(&nas).await;
        client
            .call("pool.dataset.create", json!([{"name": "tank/a"}]))
            .await
            .expect("a dataset");
        let refused = client
            .refused("pool.dataset.create", json!([{"name": "tank/a"}]))
            .await;
        assert_eq!(
            refused,
            json!([[
                "pool_dataset_create.name",
                "Path /mnt/tank/a already exists",
                22
            ]]),
            "{generation}"
        );
        let snapshot = json!([{"dataset": "tank/a", "name": "s"}]);
        client
            .call(&snapshots(generation, "create"), snapshot.clone())
            .await
            .expect("a snapshot");
        let error = client
            .call(&snapshots(generation, "create"), snapshot)
            .await
            .expect_err("it exists");
        let (number, text) = said(&error);
        assert!(text.contains("already exists"), "{generation}: {text}");
        match generation {
            Generation::Core13 | Generation::V22_12 => assert_eq!(number, 14),
            Generation::V26Beta | Generation::V26Rc => assert_eq!(error["data"]["extra"][0][2], 17),
            _ => assert_eq!(number, 17, "{generation}"),
        }
    }
}

#[tokio::test]
async fn a_call_can_be_cut_before_and_after_it_is_executed() {
    for generation in Generation::ALL {
        let nas = nas(generation).await;
        for (action, name, made) in [
            (Action::CutBefore, "tank/a", 0),
            (Action::CutAfter, "tank/b", 1),
        ] {
            let mut client = Client::root(&nas).await;
            nas.faults()
                .add(Rule::new("pool.dataset.create", action).times(1));
            client
                .request("pool.dataset.create", json!([{"name": name}]))
                .await;
            assert_eq!(client.end().await, End::Cut, "{generation}");
            let found = nas
                .call("pool.dataset.query", vec![json!([["id", "=", name]])])
                .await
                .expect("a list");
            assert_eq!(
                found.as_array().map(Vec::len),
                Some(made),
                "{generation}: {name}"
            );
        }
    }
}

#[tokio::test]
async fn a_call_in_flight_is_finished_up_to_25_10_and_cancelled_by_26() {
    for generation in [
        Generation::V24_10,
        Generation::V25_10,
        Generation::V26Beta,
        Generation::V26Rc,
    ] {
        let nas = nas(generation).await;
        let mut client = Client::root(&nas).await;
        nas.faults()
            .add(Rule::new("pool.dataset.create", Action::Hold).times(1));
        client
            .request("pool.dataset.create", json!([{"name": "tank/a"}]))
            .await;
        while nas.faults().holding() == 0 {
            tokio::task::yield_now().await;
        }
        nas.cut_connections();
        client.end().await;
        if generation >= Generation::V26Beta {
            while nas.faults().holding() > 0 {
                tokio::task::yield_now().await;
            }
        }
        nas.faults().release();
        while nas.faults().holding() > 0 {
            tokio::task::yield_now().await;
        }
        let found = async || {
            let found = nas
                .call("pool.dataset.query", vec![json!([["id", "=", "tank/a"]])])
                .await;
            found.expect("a list").as_array().map_or(0, Vec::len)
        };
        if generation >= Generation::V26Beta {
            assert_eq!(found().await, 0, "{generation}");
        } else {
            while found().await == 0 {
                tokio::task::yield_now().await;
            }
        }
    }
}

#[tokio::test]
async fn the_twenty_first_call_in_flight_is_refused() {
    let nas = nas(Generation::V25_10).await;
    let mut client = Client::root(&nas).await;
    nas.faults().add(Rule::new("system.info", Action::Hold));
    for _ in 0..20 {
        client.request("system.info", json!([])).await;
    }
    let last = client.request("system.info", json!([])).await;
    let refused = client.answer(last).await.expect("an answer");
    assert_eq!(
        refused["error"],
        json!({"code": -32000, "message": "Maximum number of concurrent calls (20) has exceeded"})
    );
    nas.faults().release();
}

#[tokio::test]
async fn an_idle_connection_is_cut_and_a_ping_keeps_it() {
    let nas = nas(Generation::V25_10).await;
    let mut client = Client::root(&nas).await;
    nas.clock().advance(Duration::from_secs(59));
    client.ping().await;
    assert_eq!(client.call("core.ping", json!([])).await, Ok(json!("pong")));
    nas.clock().advance(Duration::from_secs(59));
    assert_eq!(client.call("core.ping", json!([])).await, Ok(json!("pong")));
    nas.clock().advance(Duration::from_secs(61));
    assert_eq!(client.end().await, End::Cut);
}

#[tokio::test]
async fn a_client_that_is_not_on_the_list_is_closed_with_1008() {
    let nas = nas(Generation::V25_10).await;
    nas.faults().set(|settings| settings.refuse_address = true);
    let mut client = Client::jsonrpc(nas.http()).await;
    let text = "You are not allowed to access this resource".to_owned();
    assert_eq!(client.end().await, End::Closed(1008, text));
}

#[tokio::test]
async fn a_target_in_use_is_kept_unless_it_is_forced() {
    for generation in Generation::ALL {
        let nas = nas(generation).await;
        let mut client = Client::root(&nas).await;
        let target = client
            .call("iscsi.target.create", json!([{"name": "a"}]))
            .await
            .expect("a target")["id"]
            .clone();
        nas.model().expect("the model").connect(Session {
            target: "iqn.2005-10.org.freenas.ctl:a".to_owned(),
            initiator: "iqn.1993-08.org.debian:01:node".to_owned(),
            address: "10.0.0.7".to_owned(),
        });
        let error = client
            .call("iscsi.target.delete", json!([target]))
            .await
            .expect_err("in use");
        assert_eq!(
            said(&error),
            (14, "[EFAULT] Target a is in use.".to_owned()),
            "{generation}"
        );
        assert_eq!(
            client
                .call("iscsi.target.delete", json!([target, true]))
                .await,
            Ok(json!(true)),
            "{generation}"
        );
    }
}

#[tokio::test]
async fn a_volume_of_more_than_four_fifths_must_be_forced_and_a_full_pool_is_full() {
    for generation in Generation::ALL {
        let mut options = Options::new(generation);
        options.pools = vec![("tank".to_owned(), 10 * GIB)];
        let nas = Simulator::start(options).await.expect("a simulator");
        let mut client = Client::root(&nas).await;
        let mut new =
            json!({"name": "tank/a", "type": "VOLUME", "volsize": 9 * GIB, "sparse": true});
        let refused = client.refused("pool.dataset.create", json!([new])).await;
        assert!(
            refused.to_string().contains("more than 80%"),
            "{generation}: {refused}"
        );
        new["force_size"] = json!(true);
        client
            .call("pool.dataset.create", json!([new]))
            .await
            .expect("a sparse volume");
        let full =
            json!({"name": "tank/b", "type": "VOLUME", "volsize": 11 * GIB, "force_size": true});
        let error = client
            .call("pool.dataset.create", json!([full]))
            .await
            .expect_err("no room");
        let (number, text) = said(&error);
        assert_eq!(number, 28, "{generation}: {text}");
        assert!(text.contains("out of space"), "{generation}: {text}");
    }
}

#[tokio::test]
async fn a_locked_dataset_takes_no_children_and_a_wrong_passphrase_fails_within_a_success() {
    let nas = nas(Generation::V25_10).await;
    let encrypted = json!({
        "name": "tank/a", "encryption": true, "inherit_encryption": false,
        "encryption_options": {"passphrase": "correct horse"},
    });
    nas.call("pool.dataset.create", vec![encrypted])
        .await
        .expect("a dataset");
    nas.call("pool.dataset.lock", vec![json!("tank/a"), json!({})])
        .await
        .expect("a lock");
    let mut client = Client::root(&nas).await;
    let refused = client
        .refused("pool.dataset.create", json!([{"name": "tank/a/b"}]))
        .await;
    assert!(refused.to_string().contains("locked"), "{refused}");
    let wrong = json!(["tank/a", {"datasets": [{"name": "tank/a", "passphrase": "wrong horse"}]}]);
    let job = client
        .call("pool.dataset.unlock", wrong)
        .await
        .expect("a job");
    let entry = client.finished(&job).await;
    assert_eq!(entry["state"], "SUCCESS");
    assert_eq!(entry["result"]["unlocked"], json!([]));
    assert_eq!(entry["result"]["failed"]["tank/a"]["error"], "Invalid Key");
}

#[tokio::test]
async fn of_two_that_make_the_same_dataset_exactly_one_wins() {
    let nas = nas(Generation::V25_10).await;
    let mut left = Client::root(&nas).await;
    let mut right = Client::root(&nas).await;
    nas.faults()
        .add(Rule::new("pool.dataset.create", Action::Hold));
    let new = json!([{"name": "tank/a"}]);
    let (first, second) = (
        left.request("pool.dataset.create", new.clone()).await,
        right.request("pool.dataset.create", new).await,
    );
    while nas.faults().holding() < 2 {
        tokio::task::yield_now().await;
    }
    nas.faults().release();
    let answers = [
        left.answer(first).await.expect("an answer"),
        right.answer(second).await.expect("an answer"),
    ];
    let wins = answers
        .iter()
        .filter(|answer| answer.get("error").is_none())
        .count();
    assert_eq!(wins, 1, "{answers:?}");
}

#[tokio::test]
async fn any_call_can_be_made_to_fail_wait_and_answer_nonsense() {
    let nas = nas(Generation::V25_10).await;
    let mut client = Client::root(&nas).await;
    let fail = Action::Fail {
        errno: 5,
        reason: "I/O error".to_owned(),
    };
    nas.faults()
        .add(Rule::new("sharing.*", fail).skip(1).times(1));
    assert!(client.call("sharing.nfs.query", json!([])).await.is_ok());
    let error = client
        .call("sharing.smb.query", json!([]))
        .await
        .expect_err("a fault");
    assert_eq!(error["data"]["error"], 5);
    assert!(client.call("sharing.smb.query", json!([])).await.is_ok());
    nas.faults()
        .add(Rule::new("system.version", Action::Answer(json!("nonsense"))).times(1));
    assert_eq!(
        client.call("system.version", json!([])).await,
        Ok(json!("nonsense"))
    );
    nas.faults().set(|settings| settings.oddities = true);
    let pools = client.call("pool.query", json!([])).await.expect("pools");
    assert!(pools[0]["field_of_a_later_release"]["seen"]["$date"].is_number());
}

#[tokio::test]
async fn calls_exchanges_and_bytes_are_counted() {
    let nas = nas(Generation::V25_10).await;
    let mut client = Client::root(&nas).await;
    nas.faults().set(|settings| settings.round_trip_ms = 50);
    nas.reset_counts();
    let start = std::time::Instant::now();
    let first = client.request("system.version", json!([])).await;
    let second = client.request("pool.query", json!([])).await;
    client.answer(first).await.expect("an answer");
    client.answer(second).await.expect("an answer");
    client.call("core.ping", json!([])).await.expect("a pong");
    assert!(start.elapsed() >= Duration::from_millis(100));
    let counts = nas.counts();
    assert_eq!(counts.calls(), 3);
    assert_eq!(counts.methods["pool.query"].calls, 1);
    assert!(counts.methods["pool.query"].bytes_out > counts.methods["core.ping"].bytes_out);
    assert!((2..=3).contains(&counts.exchanges));
}
