//! `core.*`.

use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use super::{Answer, Call, unknown};
use crate::Generation;
use crate::failure::{EACCES, Failure};
use crate::{jobs, random};

pub(super) async fn run(call: &Call, verb: &str) -> Answer {
    match verb {
        "ping" => Ok(json!("pong")),
        "set_options" => {
            let options = call.object(0);
            if let Some(legacy) = options.get("legacy_jobs").and_then(Value::as_bool) {
                call.session.legacy_jobs.store(legacy, Ordering::Relaxed);
            }
            // 25.04 has one option, and answers nothing.
            if call.generation < Generation::V25_10 {
                return Ok(Value::Null);
            }
            // Exceptions of Python and private methods are not served, whatever is asked for.
            let given = |name: &str| options.get(name).cloned().unwrap_or(json!(false));
            Ok(json!({
                "legacy_jobs": !call.session.waits_for_jobs(),
                "private_methods": given("private_methods"),
                "py_exceptions": given("py_exceptions"),
            }))
        }
        "subscribe" => {
            let ident = random::uuid();
            call.session
                .subscribe(ident.clone(), call.text(0).to_owned());
            Ok(json!(ident))
        }
        "unsubscribe" => {
            call.session.unsubscribe(call.text(0));
            Ok(Value::Null)
        }
        "get_jobs" => {
            let login = call.session.login();
            let owner = login
                .as_ref()
                .filter(|login| login.roles.is_some())
                .map(|login| login.user.as_str());
            call.query(call.nas.jobs.entries(owner))
        }
        "job_wait" => wait(call).await,
        "job_abort" => {
            let id = call.number(0);
            if !visible(call, id) {
                return Err(jobs::missing(id));
            }
            call.nas.jobs.abort(&call.nas, id)?;
            Ok(Value::Null)
        }
        "bulk" => bulk(call).await,
        _ => Err(unknown(call)),
    }
}

fn visible(call: &Call, id: i64) -> bool {
    let login = call.session.login();
    let owner = login
        .as_ref()
        .filter(|login| login.roles.is_some())
        .map(|login| login.user.as_str());
    call.nas
        .jobs
        .entries(owner)
        .iter()
        .any(|entry| entry["id"] == json!(id))
}

async fn wait(call: &Call) -> Answer {
    let id = call.number(0);
    if !visible(call, id) {
        return Err(jobs::missing(id));
    }
    call.nas.jobs.wait(id).await
}

/// The job succeeds whatever its calls do; what went wrong is text. Recorded on 25.10.6.
async fn bulk(call: &Call) -> Answer {
    let method = call.text(0);
    let calls = call
        .params
        .get(1)
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default();
    let total = calls.len().max(1) as u64;
    let mut results = Vec::new();
    for (index, params) in calls.iter().enumerate() {
        if let Some(job) = &call.job {
            job.progress(
                100 * index as u64 / total,
                &format!("{index} / {}", calls.len()),
            );
        }
        let params = params.as_array().cloned().unwrap_or_default();
        let result = call
            .nas
            .call(&call.session, method, params, Value::Null)
            .await;
        results.push(match result {
            Ok(Value::Number(id)) if is_job(call, method) => {
                let id = id.as_i64().unwrap_or_default();
                match call.nas.jobs.wait(id).await {
                    Ok(result) => json!({"job_id": id, "error": null, "result": result}),
                    Err(failure) => {
                        json!({"job_id": id, "error": failure.reason(), "result": null})
                    }
                }
            }
            Ok(result) => json!({"job_id": null, "error": null, "result": result}),
            Err(Failure::Call {
                errno: EACCES,
                reason,
                ..
            }) if reason == "Not authorized" => {
                json!({"job_id": null, "error": "[EPERM] Not authorized", "result": null})
            }
            Err(failure) => json!({"job_id": null, "error": failure.reason(), "result": null}),
        });
    }
    Ok(json!(results))
}

fn is_job(call: &Call, method: &str) -> bool {
    let table = crate::table::Table::of(call.generation);
    table
        .method(method)
        .is_some_and(|method| method.job.is_some())
        && !call.session.waits_for_jobs()
}
