//! Jobs: ends that come early, late, twice or not at all.

use driver_truenas::api::filesystem::SetPermissions;
use driver_truenas::api::service::{ControlService, Verb};
use driver_truenas::{Effect, JobId, Kind};
use serde_json::{Value, json};

use crate::nas::{Act, Nas, Seen};

fn set_mode() -> SetPermissions {
    SetPermissions {
        path: "/mnt/tank/a".to_owned(),
        mode: Some("0770".to_owned()),
        ..SetPermissions::default()
    }
}

fn job(call: &Seen, state: &str) -> Value {
    json!({
        "id": 7,
        "method": "filesystem.setperm",
        "message_ids": [call.id],
        "state": state,
        "error": if state == "FAILED" { json!("[EACCES] no") } else { Value::Null },
        "exc_info": {"type": "CallError", "errno": 13, "extra": null},
    })
}

#[tokio::test]
async fn a_job_whose_end_is_reported_costs_one_call() {
    for version in ["TrueNAS-SCALE-24.10.2", "TrueNAS-25.10.6"] {
        let nas = Nas::start(version, |call| {
            (call.method == "filesystem.setperm").then(|| {
                // The first event comes before the answer, the last one twice.
                vec![
                    Act::Job(job(call, "WAITING")),
                    Act::Answer(json!(7)),
                    Act::Job(job(call, "RUNNING")),
                    Act::Job(job(call, "SUCCESS")),
                    Act::Job(job(call, "SUCCESS")),
                ]
            })
        })
        .await;
        let client = nas.client();
        client.run(&set_mode()).await.expect("done");
        client.run(&set_mode()).await.expect("done");
        assert_eq!(nas.seen("filesystem.setperm").len(), 2);
        assert!(nas.seen("core.get_jobs").is_empty(), "{version}");
    }
}

#[tokio::test]
async fn a_job_that_ends_before_its_number_is_answered_is_not_missed() {
    let nas = Nas::start("TrueNAS-25.10.6", |call| {
        (call.method == "filesystem.setperm")
            .then(|| vec![Act::Job(job(call, "SUCCESS")), Act::Answer(json!(7))])
    })
    .await;
    nas.client().run(&set_mode()).await.expect("done");
    assert!(nas.seen("core.get_jobs").is_empty());
}

#[tokio::test]
async fn a_job_that_fails_is_an_error_of_its_method() {
    let nas = Nas::start("TrueNAS-25.10.6", |call| {
        (call.method == "filesystem.setperm")
            .then(|| vec![Act::Answer(json!(7)), Act::Job(job(call, "FAILED"))])
    })
    .await;
    let error = nas.client().run(&set_mode()).await.expect_err("failed");
    assert_eq!(
        (error.kind(), error.effect()),
        (Kind::Denied, Effect::Possible)
    );
    assert_eq!(error.method(), Some("filesystem.setperm"));
}

#[tokio::test]
async fn a_job_is_followed_over_a_lost_connection() {
    let mut started = None;
    let nas = Nas::start("TrueNAS-25.10.6", move |call| match call.method.as_str() {
        "filesystem.setperm" => {
            started = Some(call.clone());
            Some(vec![Act::Answer(json!(7)), Act::Close])
        }
        "core.get_jobs" => {
            let by_id = call.params[0] == json!([["id", "=", 7]]);
            let started = started.as_ref().filter(|_| by_id)?;
            Some(vec![Act::Answer(json!([job(started, "SUCCESS")]))])
        }
        _ => None,
    })
    .await;
    nas.client().run(&set_mode()).await.expect("done");
    assert_eq!(
        (nas.sockets(), nas.seen("filesystem.setperm").len()),
        (2, 1)
    );
}

/// In a pair the node that becomes the active one says for a while that it is not.
#[tokio::test(start_paused = true)]
async fn a_job_is_followed_to_a_node_that_is_not_active_yet() {
    let (mut started, mut standby) = (None, 0);
    let nas = Nas::start("TrueNAS-25.10.6", move |call| match call.method.as_str() {
        "filesystem.setperm" => {
            started = Some(call.clone());
            standby = 2;
            Some(vec![Act::Answer(json!(7)), Act::Close])
        }
        "auth.login_ex" if standby > 0 => {
            standby -= 1;
            let redirect = json!({"response_type": "REDIRECT", "urls": ["https://other"]});
            Some(vec![Act::Answer(redirect)])
        }
        "core.get_jobs" => {
            let started = started.as_ref()?;
            Some(vec![Act::Answer(json!([job(started, "SUCCESS")]))])
        }
        _ => None,
    })
    .await;
    nas.client().run(&set_mode()).await.expect("done");
    assert_eq!((nas.logins(), nas.seen("filesystem.setperm").len()), (4, 1));
}

#[tokio::test]
async fn a_job_of_which_a_restart_left_nothing_is_unknown() {
    // After the restart number 7 is another job.
    let mut foreign = json!({"id": 7, "method": "filesystem.setperm", "state": "SUCCESS"});
    foreign["message_ids"] = json!([4]);
    let nas = Nas::start("TrueNAS-25.10.6", move |call| match call.method.as_str() {
        "filesystem.setperm" => Some(vec![Act::Answer(json!(7)), Act::Close]),
        "core.get_jobs" => Some(vec![Act::Answer(json!([foreign]))]),
        _ => None,
    })
    .await;
    let error = nas.client().run(&set_mode()).await.expect_err("unknown");
    assert_eq!(
        (error.kind(), error.effect()),
        (Kind::UnknownOutcome, Effect::Possible)
    );
    assert_eq!(nas.seen("filesystem.setperm").len(), 1);
}

#[tokio::test]
async fn a_job_whose_number_was_never_answered_is_found_by_its_request() {
    let mut started = None;
    let nas = Nas::start("TrueNAS-25.10.6", move |call| match call.method.as_str() {
        "filesystem.setperm" => {
            started = Some(call.clone());
            Some(vec![Act::Close])
        }
        "core.get_jobs" => {
            let started = started.as_ref()?;
            Some(vec![Act::Answer(json!([job(started, "SUCCESS")]))])
        }
        _ => None,
    })
    .await;
    nas.client().run(&set_mode()).await.expect("done");
    assert_eq!(nas.seen("filesystem.setperm").len(), 1);
}

#[tokio::test]
async fn a_job_can_be_followed_by_another_process() {
    let mut started = None;
    let nas = Nas::start("TrueNAS-25.10.6", move |call| match call.method.as_str() {
        "filesystem.setperm" => {
            started = Some(call.clone());
            Some(vec![Act::Answer(json!(7))])
        }
        "core.get_jobs" => {
            let started = started.as_ref()?;
            Some(vec![Act::Answer(json!([job(started, "SUCCESS")]))])
        }
        _ => None,
    })
    .await;
    let kept = nas
        .client()
        .start(&set_mode())
        .await
        .expect("started")
        .to_string();
    let job = JobId::parse(&kept).expect("a job");
    nas.client().follow(&job).await.expect("done");
}

#[tokio::test]
async fn a_service_is_controlled_by_a_call_and_later_by_a_job() {
    let control = || ControlService {
        verb: Verb::Reload,
        service: "iscsitarget".to_owned(),
    };
    let nas = Nas::start("TrueNAS-13.0-U6.8", |_| None).await;
    nas.client().control(control()).await.expect("done");
    assert_eq!(nas.seen("service.reload").len(), 1);
    let nas = Nas::start("TrueNAS-25.10.6", |call| {
        let done = || json!({"id": 3, "method": "service.control", "state": "SUCCESS"});
        (call.method == "service.control").then(|| vec![Act::Answer(json!(3)), Act::Job(done())])
    })
    .await;
    nas.client().control(control()).await.expect("done");
    assert_eq!(
        nas.seen("service.control")[0].params,
        json!(["RELOAD", "iscsitarget"])
    );
}

/// A job of another process in the queue of permissions.
#[tokio::test]
async fn a_job_of_another_path_whose_number_is_answered_is_waited_for_and_ours_started_again() {
    let mut full = true;
    let nas = Nas::start("TrueNAS-25.10.6", move |call| {
        if call.method != "filesystem.setperm" {
            return None;
        }
        let other = std::mem::take(&mut full);
        let path = if other { "/mnt/tank/b" } else { "/mnt/tank/a" };
        let mut ended = job(call, "SUCCESS");
        ended["arguments"] = json!([{"path": path}]);
        Some(vec![Act::Answer(json!(7)), Act::Job(ended)])
    })
    .await;
    nas.client().run(&set_mode()).await.expect("done");
    assert_eq!(nas.seen("filesystem.setperm").len(), 2);
}
