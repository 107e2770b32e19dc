//! A storage host that sends without end takes neither the memory of the process nor the turn of another connection.
#![expect(
    clippy::disallowed_methods,
    reason = "the storage host is started by the test, and is nothing of the program"
)]

use std::fs;
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use csi_proto::v1::CreateVolumeRequest;
use futures_util::future::join_all;
use integration::observe::free_port;
use integration::place::Place;
use integration::server::Launch;
use integration::{requirement, tools, volume, wait};

mod truenas;

/// What the process may have, whatever one storage sends.
const MOST_KIB: u64 = 200 << 10;
/// An orchestrator has about so many calls for one driver at the same time.
const AT_ONCE: usize = 7;

/// A server of SSH that answers every command with lines without end.
struct Flood(Child);

impl Drop for Flood {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The server in this folder, and the connection of a driver to it.
async fn flood(folder: &Path) -> Option<(Flood, String)> {
    let keygen = requirement::tool("a storage host that floods", "ssh-keygen")?;
    let sshd = requirement::tool("a storage host that floods", "sshd")?;
    for name in ["host", "user"] {
        let path = folder.join(name).display().to_string();
        let words = ["-q", "-t", "ed25519", "-N", "", "-f", &path].map(str::to_owned);
        let made = tools::run(&keygen, words, folder).await;
        assert!(made.status.success(), "{made:?}");
    }
    // Where it separates privileges.
    let _ = fs::create_dir_all("/run/sshd");
    let (port, at) = (free_port(), folder.display());
    let config = format!(
        "ListenAddress 127.0.0.1\nPort {port}\nHostKey {at}/host\nPidFile none\nUsePAM no\nStrictModes no\n\
         AuthorizedKeysFile {at}/user.pub\nPermitRootLogin yes\nForceCommand exec yes omnibus\n"
    );
    fs::write(folder.join("config"), config).expect("a file");
    let mut server = Command::new(sshd);
    server.args(["-D", "-e", "-f"]).arg(folder.join("config"));
    server.stdin(Stdio::null()).stdout(Stdio::null());
    let server = Flood(server.stderr(Stdio::null()).spawn().expect("sshd"));
    let open = || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok();
    wait::until("sshd", open).await;
    let read = |name: &str| fs::read_to_string(folder.join(name)).expect("a key");
    let user = tools::run(Path::new("/usr/bin/id"), ["-un".to_owned()], folder).await;
    let user = String::from_utf8(user.stdout).expect("a name");
    let connection = serde_json::json!({
        "driver": "zfs-generic-nfs",
        "sshConnection": {
            "host": "127.0.0.1",
            "port": port,
            "username": user.trim(),
            "privateKey": read("user"),
            "hostKey": read("host.pub").trim(),
        },
        "zfs": {"datasetParentName": "tank/v", "detachedSnapshotsDatasetParentName": "tank/s"},
        "nfs": {"shareHost": "127.0.0.1", "shareStrategy": "setDatasetProperties"},
    });
    Some((server, connection.to_string()))
}

fn create(name: &str, connection: &str) -> CreateVolumeRequest {
    volume::create(name, &volume::parameters(&[("connection", connection)]))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storage_host_that_sends_without_end_takes_little_memory_and_the_others_are_served() {
    let (place, storage) = (Place::new(), Place::new());
    let folder = tempfile::tempdir().expect("a folder");
    let Some((_flood, bad)) = flood(folder.path()).await else {
        return;
    };
    let good = Launch::local_hostpath(&storage).config;
    let files = [("bad", &*bad), ("good", &*good)];
    let connections = place.path().join("connections");
    let launch = Launch::proxy(&connections, "good", files).set("--log-level", "info");
    let server = launch.start(&place).await;
    let client = server.client();
    let floods = (0..AT_ONCE).map(|number| {
        let client = client.clone();
        async move { client.volume(create(&format!("bad-{number}"), "bad")).await }
    });
    let floods = tokio::spawn(join_all(floods));
    let mut served = 0;
    while !floods.is_finished() {
        let made = client.volume(create(&format!("good-{served}"), "good"));
        let made = tokio::time::timeout(Duration::from_secs(10), made).await;
        made.expect("it is served while the other floods")
            .expect("made");
        served += 1;
    }
    for answer in floods.await.expect("their end") {
        let refused = answer.expect_err("no host answers so");
        let says = ["of output", "no memory for its output"];
        assert!(
            says.iter().any(|what| refused.what.contains(what)),
            "{refused}"
        );
    }
    assert!(served > 0);
    let peak = server.process().peak_rss_kib();
    assert!(peak < MOST_KIB, "{peak} KiB");
}
