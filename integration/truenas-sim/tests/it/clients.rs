//! Lives of foreign clients: what each of them sent to the simulator from the creation to the deletion of its
//! volumes, and of every answer what such a client goes on with. Each was run by hand; here its requests come again.
//!
//! A file is JSON lines. The first names the client and the release, `setup` is a call of an administrator before,
//! `call` one over the websocket, `rest` one over REST. `has` is a part of the answer, `fails` the text of an error.

use std::time::Duration;

use serde_json::Value;
use truenas_sim::Generation;

use crate::client::{Client, nas};
use crate::rest::rest;

/// Whether all of `part` stands in `found`; a list begins with its items.
fn holds(part: &Value, found: &Value) -> bool {
    match (part, found) {
        (Value::Object(part), Value::Object(found)) => part
            .iter()
            .all(|(key, value)| found.get(key).is_some_and(|found| holds(value, found))),
        (Value::Array(part), Value::Array(found)) => {
            part.len() <= found.len()
                && part
                    .iter()
                    .zip(found)
                    .all(|(part, found)| holds(part, found))
        }
        _ => part == found,
    }
}

fn text<'a>(line: &'a Value, key: &str) -> Option<&'a str> {
    line.get(key).and_then(Value::as_str)
}

/// The parts that an answer lacks of the recorded one.
async fn differs(
    client: &mut Client,
    nas: &truenas_sim::Simulator,
    line: &Value,
) -> Option<String> {
    let has = line.get("has").unwrap_or(&Value::Null);
    if let Some(request) = text(line, "rest") {
        let request = request.replacen(" /", " /api/v2.0/", 1);
        let (status, found) = rest(nas, &request, line.get("body").cloned()).await;
        let same = line["status"] == status && holds(has, &found);
        return (!same).then(|| format!("{status} {found}"));
    }
    let method = text(line, "call").expect("a method");
    match (
        client.call(method, line["params"].clone()).await,
        text(line, "fails"),
    ) {
        (Err(error), Some(reason)) => {
            // A method that is not there has no data.
            let data = error.get("data").unwrap_or(&error);
            let said = data.get("reason").unwrap_or(&data["message"]);
            (said != reason).then(|| error.to_string())
        }
        (Ok(found), None) => {
            // A list of events has a random name.
            let same = line.get("has").is_none() || holds(has, &found);
            (!same).then(|| found.to_string())
        }
        (Ok(found), Some(_)) => Some(found.to_string()),
        (Err(error), None) => Some(error.to_string()),
    }
}

/// Sends all requests of a file, each after the answer to the one before.
async fn live_again(file: &str) {
    let mut lines = file.lines().map(|line| {
        let line: Value = serde_json::from_str(line).expect("JSON");
        line
    });
    let first = lines.next().expect("a first line");
    let generation: Generation = text(&first, "release")
        .and_then(|release| release.parse().ok())
        .expect("a release");
    let nas = nas(generation).await;
    let mut client = Client::root(&nas).await;
    for line in lines {
        if let Some(call) = line.get("setup") {
            let params = call[1].as_array().cloned().unwrap_or_default();
            let method = call[0].as_str().expect("a method");
            nas.call(method, params).await.expect(method);
            continue;
        }
        // A client asks again until its job is done.
        let polls = line.to_string().contains("core.get_jobs")
            || line.to_string().contains("core/get_jobs");
        let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
        loop {
            let Some(found) = differs(&mut client, &nas, &line).await else {
                break;
            };
            let over = !polls || tokio::time::Instant::now() > deadline;
            assert!(!over, "{first}\n{line}\nwas answered with\n{found}");
            tokio::task::yield_now().await;
        }
    }
}

macro_rules! lives {
    ($($name:ident: $file:literal,)*) => {
        $(#[tokio::test]
        async fn $name() {
            live_again(include_str!(concat!("../recorded/clients/", $file, ".jsonl"))).await;
        })*
    };
}

lives! {
    democratic_csi_lives_on_24_10_with_nfs: "democratic-csi-1.9.4-nfs-24.10",
    democratic_csi_lives_on_24_10_with_iscsi: "democratic-csi-1.9.4-iscsi-24.10",
    the_next_democratic_csi_lives_on_25_10_with_nfs: "democratic-csi-next-nfs-25.10",
    the_next_democratic_csi_lives_on_25_10_with_nvmeof: "democratic-csi-next-nvmeof-25.10",
    the_client_of_truenas_lives_on_24_10: "truenas-api-client-24.10",
    the_client_of_truenas_lives_on_25_10: "truenas-api-client-25.10",
    the_client_of_truenas_lives_on_26: "truenas-api-client-26-rc",
    truenas_csi_lives_on_25_10_with_nfs: "truenas-csi-nfs-25.10",
    truenas_csi_lives_on_25_10_with_iscsi_and_chap: "truenas-csi-iscsi-25.10",
    truenas_csi_lives_on_26_with_nfs_and_periodic_snapshots: "truenas-csi-nfs-26-rc",
    truenas_csi_lives_on_26_with_iscsi: "truenas-csi-iscsi-26-rc",
    scale_csi_lives_on_25_10_with_nfs: "scale-csi-nfs-25.10",
    scale_csi_lives_on_25_10_with_iscsi: "scale-csi-iscsi-25.10",
    scale_csi_lives_on_26_with_nvmeof: "scale-csi-nvmeof-26-rc",
    tns_csi_lives_on_25_10_with_nvmeof: "tns-csi-nvmeof-25.10",
    tns_csi_lives_on_26_with_nfs: "tns-csi-nfs-26-rc",
}
