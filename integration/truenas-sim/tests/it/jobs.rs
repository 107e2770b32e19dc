//! Jobs: the order of their events, their locks, and what the faults do to them.

use serde_json::{Value, json};
use truenas_sim::{Action, Generation, Options, Rule, Simulator};

use crate::client::{Client, nas};

/// Kind and state of each event of a job, in the order of arrival.
fn states(events: &[Value], job: &Value) -> Vec<String> {
    let mine = events
        .iter()
        .map(|event| event.get("params").unwrap_or(event))
        .filter(|event| event["id"] == *job);
    mine.map(|event| {
        format!(
            "{} {}",
            event["msg"].as_str().unwrap_or_default(),
            event["fields"]["state"].as_str().unwrap_or_default()
        )
    })
    .collect()
}

async fn subscribe(client: &mut Client) {
    client
        .call("core.subscribe", json!(["core.get_jobs"]))
        .await
        .expect("a subscription");
}

const SETPERM: &str = "filesystem.setperm";

fn setperm() -> Value {
    json!([{"path": "/mnt/tank", "mode": "755"}])
}

/// Calls until the last event of the job has come.
async fn done(client: &mut Client, job: &Value) -> Vec<String> {
    loop {
        let seen = states(&client.events, job);
        if seen.iter().any(|state| {
            state.ends_with("SUCCESS") || state.ends_with("FAILED") || state.ends_with("ABORTED")
        }) {
            return seen;
        }
        client.call("core.ping", json!([])).await.expect("a pong");
    }
}

#[tokio::test]
async fn a_job_is_added_before_its_answer_and_then_runs_and_succeeds() {
    for generation in [
        Generation::V25_04,
        Generation::V25_10,
        Generation::V26Beta,
        Generation::V26Rc,
    ] {
        let nas = nas(generation).await;
        let mut client = Client::root(&nas).await;
        subscribe(&mut client).await;
        let job = client.call(SETPERM, setperm()).await.expect("a job");
        assert_eq!(
            states(&client.events, &job)[0],
            "added WAITING",
            "{generation}"
        );
        let seen = done(&mut client, &job).await;
        assert_eq!(
            seen,
            ["added WAITING", "changed RUNNING", "changed SUCCESS"],
            "{generation}"
        );
    }
}

#[tokio::test]
async fn the_old_protocol_sends_the_same_events() {
    let nas = nas(Generation::V24_10).await;
    let mut client = Client::root(&nas).await;
    client
        .send(&json!({"msg": "sub", "id": "events", "name": "core.get_jobs"}))
        .await;
    assert_eq!(
        client.receive().await.expect("an answer"),
        json!({"msg": "ready", "subs": ["events"]})
    );
    let job = client.call(SETPERM, setperm()).await.expect("a job");
    let seen = done(&mut client, &job).await;
    assert_eq!(
        seen,
        ["added WAITING", "changed RUNNING", "changed SUCCESS"]
    );
}

#[tokio::test]
async fn the_last_event_can_come_twice_and_the_one_before_it_never() {
    let nas = nas(Generation::V25_10).await;
    let mut client = Client::root(&nas).await;
    subscribe(&mut client).await;
    nas.faults()
        .add(Rule::new(SETPERM, Action::JobEventTwice).times(1));
    nas.faults()
        .add(Rule::new(SETPERM, Action::JobEventWithoutRunning).times(1));
    let first = client.call(SETPERM, setperm()).await.expect("a job");
    let second = client.call(SETPERM, setperm()).await.expect("a job");
    done(&mut client, &second).await;
    let twice = states(&client.events, &first);
    assert_eq!(
        twice,
        [
            "added WAITING",
            "changed RUNNING",
            "changed SUCCESS",
            "changed SUCCESS"
        ]
    );
    assert_eq!(
        states(&client.events, &second),
        ["added WAITING", "changed SUCCESS"]
    );
}

#[tokio::test]
async fn a_second_job_of_the_same_lock_waits_and_a_full_queue_answers_the_last_one() {
    let nas = nas(Generation::V25_10).await;
    let mut client = Client::root(&nas).await;
    nas.faults()
        .add(Rule::new(SETPERM, Action::JobHold).times(1));
    let mut jobs = Vec::new();
    for _ in 0..6 {
        jobs.push(client.call(SETPERM, setperm()).await.expect("a job"));
    }
    let listed = client
        .call("core.get_jobs", json!([[["state", "=", "WAITING"]]]))
        .await
        .expect("jobs");
    assert_eq!(listed.as_array().map(Vec::len), Some(5));
    // Whatever the arguments are: the job is another path's.
    let other = json!([{"path": "/mnt/tank/b", "mode": "700"}]);
    assert_eq!(client.call(SETPERM, other).await, Ok(jobs[5].clone()));
    let entry = client
        .call("core.get_jobs", json!([[["id", "=", jobs[5]]]]))
        .await
        .expect("jobs");
    assert_eq!(entry[0]["arguments"], setperm());
    assert_eq!(entry[0]["message_ids"].as_array().map(Vec::len), Some(2));
    nas.faults().release();
    for job in &jobs {
        assert_eq!(client.finished(job).await["state"], "SUCCESS");
    }
}

#[tokio::test]
async fn a_full_queue_of_others_refuses_a_user_with_roles() {
    let options =
        Options::new(Generation::V25_10).user("csi", "password", Some(&["FILESYSTEM_ATTRS_WRITE"]));
    let nas = Simulator::start(options).await.expect("a simulator");
    let mut root = Client::root(&nas).await;
    nas.faults()
        .add(Rule::new(SETPERM, Action::JobHold).times(1));
    for _ in 0..6 {
        root.call(SETPERM, setperm()).await.expect("a job");
    }
    let mut client = Client::connect(&nas).await;
    let key = nas.add_api_key("csi", "csi");
    let login = json!([{"mechanism": "API_KEY_PLAIN", "username": "csi", "api_key": key}]);
    client.call("auth.login_ex", login).await.expect("a login");
    let error = client
        .call(SETPERM, setperm())
        .await
        .expect_err("a full queue");
    assert_eq!(
        error["data"]["reason"],
        "[EBUSY] This job is already being performed by another user"
    );
    nas.faults().release();
}

#[tokio::test]
async fn jobs_of_26_wait_for_those_of_their_path_only() {
    let nas = nas(Generation::V26Rc).await;
    nas.call("pool.dataset.create", vec![json!({"name": "tank/b"})])
        .await
        .expect("a dataset");
    let mut client = Client::root(&nas).await;
    nas.faults()
        .add(Rule::new(SETPERM, Action::JobHold).times(1));
    let held = client.call(SETPERM, setperm()).await.expect("a job");
    let same = client.call(SETPERM, setperm()).await.expect("a job");
    let other = json!([{"path": "/mnt/tank/b", "mode": "700"}]);
    let other = client.call(SETPERM, other).await.expect("a job");
    assert_eq!(client.finished(&other).await["state"], "SUCCESS");
    let waiting = client
        .call("core.get_jobs", json!([[["id", "=", same]]]))
        .await
        .expect("jobs");
    assert_eq!(waiting[0]["state"], "WAITING");
    nas.faults().release();
    for job in [held, same] {
        assert_eq!(client.finished(&job).await["state"], "SUCCESS");
    }
}

#[tokio::test]
async fn a_job_can_fail_abort_and_lose_its_result() {
    let nas = nas(Generation::V25_10).await;
    let mut client = Client::root(&nas).await;
    let fails = Action::JobFails {
        errno: 13,
        reason: "Permission denied".to_owned(),
    };
    for (action, state) in [
        (fails, "FAILED"),
        (Action::JobAborts, "ABORTED"),
        (Action::JobResultLost, "SUCCESS"),
    ] {
        nas.faults()
            .add(Rule::new(SETPERM, action.clone()).times(1));
        let job = client.call(SETPERM, setperm()).await.expect("a job");
        let entry = client.finished(&job).await;
        assert_eq!(entry["state"], state, "{action:?}");
        match action {
            Action::JobFails { .. } => {
                assert_eq!(entry["exc_info"]["errno"], 13);
                assert_eq!(entry["error"], "[EACCES] Permission denied");
            }
            Action::JobResultLost => assert!(entry["result_encoding_error"].is_string()),
            _ => {}
        }
    }
}

#[tokio::test]
async fn ids_start_again_after_a_restart_and_a_job_can_be_forgotten() {
    let nas = nas(Generation::V25_10).await;
    let mut client = Client::root(&nas).await;
    assert_eq!(client.call(SETPERM, setperm()).await, Ok(json!(1)));
    client.finished(&json!(1)).await;
    nas.evict_job(1);
    assert_eq!(
        client
            .call("core.get_jobs", json!([[["id", "=", 1]]]))
            .await,
        Ok(json!([]))
    );
    nas.restart();
    let mut client = Client::root(&nas).await;
    assert_eq!(client.call(SETPERM, setperm()).await, Ok(json!(1)));
}

#[tokio::test]
async fn a_call_waits_for_its_job_if_it_asked_for_that() {
    let nas = nas(Generation::V25_10).await;
    let mut client = Client::root(&nas).await;
    client
        .call("core.set_options", json!([{"legacy_jobs": false}]))
        .await
        .expect("options");
    assert_eq!(client.call(SETPERM, setperm()).await, Ok(Value::Null));
    let refused = client
        .refused(SETPERM, json!([{"path": "/mnt/tank", "bogus": 1}]))
        .await;
    assert_eq!(refused[0][0], "filesystem_setperm.bogus");
}

#[tokio::test]
async fn a_bulk_call_succeeds_whatever_its_calls_do() {
    let nas = nas(Generation::V25_10).await;
    let mut client = Client::root(&nas).await;
    let job = client
        .call("core.bulk", json!(["sharing.nfs.delete", [[998], [999]]]))
        .await
        .expect("a job");
    let entry = client.finished(&job).await;
    assert_eq!(entry["state"], "SUCCESS");
    assert_eq!(
        entry["result"][0],
        json!({"job_id": null, "error": "[ENOENT] None: SharingNFS 998 does not exist", "result": null})
    );
}
