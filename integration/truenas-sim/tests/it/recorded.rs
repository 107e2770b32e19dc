//! The answers of real servers, sent again to the simulator. A star in a fixture is any text.

use serde_json::{Value, json};
use truenas_sim::Generation;

use crate::client::{Client, nas};

/// Sends every request of a fixture and returns the answers that differ.
async fn differences(client: &mut Client, fixture: &str) -> Vec<String> {
    let mut differences = Vec::new();
    for line in fixture.lines().filter(|line| !line.starts_with('#')) {
        let columns: Vec<&str> = line.split('\t').collect();
        let (expected, answer) = match columns.as_slice() {
            ["raw", request, answer] => {
                client.send_text(request).await;
                (*answer, client.receive().await.expect("an answer"))
            }
            [kind, method, params, answer] => {
                let params = serde_json::from_str(params).expect("JSON");
                let result = client.call(method, params).await;
                let ended_well = result.is_ok();
                let value = result.unwrap_or_else(|error| error);
                if ended_well != (*kind == "result") {
                    differences.push(format!(
                        "{method} {}\n  should be {answer}\n  but is {value}",
                        columns[2]
                    ));
                    continue;
                }
                (*answer, value)
            }
            _ => panic!("no such line: {line}"),
        };
        let expected: Value = serde_json::from_str(expected).expect("JSON");
        if !alike(&expected, &answer) {
            differences.push(format!(
                "{}\n  should be {expected}\n  but is {answer}",
                columns[1..3].join(" ")
            ));
        }
    }
    differences
}

/// The trace of an error is the only member that the fixtures lack.
fn alike(expected: &Value, found: &Value) -> bool {
    match (expected, found) {
        (Value::String(any), Value::String(_)) if any == "*" => true,
        (Value::Object(expected), Value::Object(found)) => {
            expected
                .iter()
                .all(|(key, value)| found.get(key).is_some_and(|found| alike(value, found)))
                && found
                    .keys()
                    .all(|key| key == "trace" || expected.contains_key(key))
        }
        (Value::Array(expected), Value::Array(found)) => {
            expected.len() == found.len()
                && expected
                    .iter()
                    .zip(found)
                    .all(|(left, right)| alike(left, right))
        }
        _ => expected == found,
    }
}

#[tokio::test]
async fn json_rpc_answers_as_25_10_did() {
    let nas = nas(Generation::V25_10).await;
    let mut client = Client::root(&nas).await;
    let found = differences(&mut client, include_str!("../recorded/25.10.6-jsonrpc.tsv")).await;
    assert!(
        found.is_empty(),
        "{} differ:\n{}",
        found.len(),
        found.join("\n")
    );
}

#[tokio::test]
async fn json_rpc_answers_as_26_did() {
    let nas = nas(Generation::V26Rc).await;
    let mut client = Client::root(&nas).await;
    let found = differences(&mut client, include_str!("../recorded/26-rc-jsonrpc.tsv")).await;
    assert!(
        found.is_empty(),
        "{} differ:\n{}",
        found.len(),
        found.join("\n")
    );
}

#[tokio::test]
async fn the_old_websocket_answers_as_25_10_did() {
    let nas = nas(Generation::V25_10).await;
    let mut client = Client::legacy(nas.http()).await;
    assert_eq!(
        client
            .call("auth.login_with_api_key", json!([nas.api_key()]))
            .await,
        Ok(json!(true))
    );
    let found = differences(
        &mut client,
        include_str!("../recorded/25.10.6-websocket.tsv"),
    )
    .await;
    assert!(
        found.is_empty(),
        "{} differ:\n{}",
        found.len(),
        found.join("\n")
    );
}

#[tokio::test]
async fn a_client_without_a_login_is_answered_as_25_10_did() {
    let nas = nas(Generation::V25_10).await;
    let mut client = Client::jsonrpc(nas.http()).await;
    let found = differences(
        &mut client,
        include_str!("../recorded/25.10.6-no-login.tsv"),
    )
    .await;
    assert!(
        found.is_empty(),
        "{} differ:\n{}",
        found.len(),
        found.join("\n")
    );
}

#[tokio::test]
async fn the_jobs_of_wrong_arguments_fail_with_the_recorded_texts() {
    let nas = nas(Generation::V25_10).await;
    let mut client = Client::root(&nas).await;
    let job = client
        .call("filesystem.setperm", json!([{"path": "/mnt/tank"}]))
        .await
        .expect("a job");
    let entry = client.finished(&job).await;
    let text = "Value error, Payload must either explicitly specify permissions or contain the stripacl option.";
    assert_eq!(entry["state"], "FAILED");
    assert_eq!(
        entry["error"],
        json!(format!("[EINVAL] filesystem_setperm: {text}\n"))
    );
    assert_eq!(entry["exc_info"]["type"], "VALIDATION");
    assert_eq!(entry["exc_info"]["errno"], Value::Null);
    assert_eq!(
        entry["exc_info"]["extra"],
        json!([["filesystem_setperm", text, 22]])
    );
}
