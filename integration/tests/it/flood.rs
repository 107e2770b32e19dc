//! A storage host that sends without end takes neither the memory of the process nor the turn of another connection.

use std::time::Duration;

use csi_proto::v1::CreateVolumeRequest;
use futures_util::future::join_all;
use integration::client::Failure;
use integration::place::Place;
use integration::server::{Launch, Server};
use integration::sshd::Sshd;
use integration::volume;

mod synology;
mod truenas;

/// What the process may have, whatever one storage sends.
const MOST_KIB: u64 = 200 << 10;
/// An orchestrator has about so many calls for one driver at the same time.
const AT_ONCE: usize = 7;
/// A call of a connection that does not flood: a moment, and many times that on a machine with ten other things to do.
const SERVED_WITHIN: Duration = Duration::from_mins(1);

/// A server of SSH that answers every command with lines without end, and the connection of a driver to it.
async fn flood() -> Option<(Sshd, String)> {
    let server = Sshd::start(
        "a storage host that floods",
        "ForceCommand exec yes omnibus",
    );
    let server = server.await?;
    let mut ssh = server.connection();
    ssh["hostKey"] = server.host_key().into();
    let connection = serde_json::json!({
        "driver": "zfs-generic-nfs",
        "sshConnection": ssh,
        "zfs": {"datasetParentName": "tank/v", "detachedSnapshotsDatasetParentName": "tank/s"},
        "nfs": {"shareHost": "127.0.0.1", "shareStrategy": "setDatasetProperties"},
    });
    Some((server, connection.to_string()))
}

fn create(name: &str, connection: &str) -> CreateVolumeRequest {
    volume::create(name, &volume::parameters(&[("connection", connection)]))
}

/// Calls for the connection `bad` at the same time, while `good` is used; and what they end with.
async fn use_both(server: &Server, run: &str) -> Vec<Failure> {
    let client = server.client();
    let floods = (0..AT_ONCE).map(|number| {
        let client = client.clone();
        let request = create(&format!("bad-{run}-{number}"), "bad");
        async move { client.volume(request).await }
    });
    let floods = tokio::spawn(join_all(floods));
    let mut served = 0;
    while !floods.is_finished() || served == 0 {
        let made = client.volume(create(&format!("good-{run}-{served}"), "good"));
        let made = tokio::time::timeout(SERVED_WITHIN, made).await;
        made.expect("it is served while the other floods")
            .expect("made");
        served += 1;
    }
    let answers = floods.await.expect("their end").into_iter();
    let refused = answers.map(|answer| answer.expect_err("no storage answers so"));
    refused.collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storage_host_that_sends_without_end_takes_little_memory_and_the_others_are_served() {
    let (place, storage) = (Place::new(), Place::new());
    let Some((_flood, bad)) = flood().await else {
        return;
    };
    let good = Launch::local_hostpath(&storage).config;
    let files = [("bad", &*bad), ("good", &*good)];
    let connections = place.path().join("connections");
    let launch = Launch::proxy(&connections, "good", files).set("--log-level", "info");
    let server = launch.start(&place).await;
    for refused in use_both(&server, "ssh").await {
        let says = ["of output", "no memory for its output"];
        assert!(
            says.iter().any(|what| refused.what.contains(what)),
            "{refused}"
        );
    }
    let peak = server.process().peak_rss_kib();
    assert!(peak < MOST_KIB, "{peak} KiB");
}
