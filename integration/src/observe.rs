//! Everything that is visible of a running program from outside, as text by subject: its answers,
//! its log, its files and mounts, and its exit.
//!
//! Used to compare two runs that differ in one setting: a setting without any visible difference is
//! parsed and ignored.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use csi_proto::v1 as csi;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::Child;
use tonic::Code;
use tonic::transport::Endpoint;

use crate::client::Client;
use crate::conformance::interrupted::insist;
use crate::conformance::world::{Outcome, code};
use crate::place::Place;
use crate::server::{Launch, log_of};
use crate::volume;
use crate::wait;

/// The observations, by subject.
pub type Seen = BTreeMap<&'static str, String>;

/// One run.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The way to start it.
    pub launch: Launch,
    /// The flags that say where to listen.
    pub listeners: Vec<String>,
    /// Parameters of the snapshot that is taken.
    pub snapshot_parameters: BTreeMap<String, String>,
    /// Secrets of the calls to the node.
    pub node_secrets: BTreeMap<String, String>,
    /// Whether it is terminated while a large volume is being copied.
    pub busy: bool,
}

// === impl Setup ===

impl Setup {
    /// A directory driver as the other tests start it.
    pub fn new(place: &Place) -> Self {
        Self {
            launch: Launch::local_hostpath(place),
            listeners: vec![format!("--server-socket={}", place.socket().display())],
            snapshot_parameters: BTreeMap::new(),
            node_secrets: BTreeMap::new(),
            busy: false,
        }
    }

    /// Runs it, observes everything, and ends it.
    pub async fn observe(&self, place: &Place) -> Seen {
        let mut seen = Seen::new();
        let mut child = self.launch.spawn_on(place, &self.listeners);
        let client = wait_for(place, &mut child).await;
        if let Some((listener, client)) = client {
            seen.insert("listener", listener);
            let mut look = Look {
                client,
                place,
                seen: &mut seen,
            };
            look.identity().await;
            look.volume(self).await;
            seen.insert("metrics", http(place, "/metrics").await);
            if self.busy {
                begin_a_copy(place).await;
            }
            let pid = child
                .id()
                .and_then(|id| i32::try_from(id).ok())
                .and_then(Pid::from_raw);
            kill_process(pid.expect("a process"), Signal::TERM).expect("it can be terminated");
        }
        let status = child.wait().await.expect("a child can be waited for");
        seen.insert("exit", status.to_string());
        let copied = place.base().join("v/copy").exists();
        seen.insert("copy", copied.to_string());
        logged(&log_of(place), &mut seen);
        let root = place.path().display().to_string();
        for text in seen.values_mut() {
            *text = text.replace(&root, "<place>");
        }
        seen
    }
}

/// Starts a copy that takes a while, and does not wait for its end.
async fn begin_a_copy(place: &Place) {
    let large = place.base().join("v/large");
    for folder in 0..40 {
        let folder = large.join(folder.to_string());
        fs::create_dir_all(&folder).expect("a folder");
        for file in 0..100 {
            fs::write(folder.join(file.to_string()), "content").expect("a file");
        }
    }
    let mut client = Client::connect(&place.socket())
        .await
        .expect("a connection");
    let request = csi::CreateVolumeRequest {
        volume_content_source: volume::from_volume("large"),
        ..volume::create("copy", &BTreeMap::new())
    };
    let mut asking = client.clone();
    tokio::spawn(async move { insist(&mut asking, request).await });
    let deadline = tokio::time::Instant::now() + wait::PATIENCE;
    loop {
        let outcome = client
            .controller
            .controller_expand_volume(volume::expand("copy", 1))
            .await;
        if code(&outcome) != Code::NotFound {
            return;
        }
        assert!(
            tokio::time::Instant::now() < deadline,
            "the copy never begins"
        );
    }
}

/// A port without a listener.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("its number").port()
}

/// The ports of the program for TCP and metrics: `port` and `admin` in the place.
fn port_of(place: &Place, name: &str) -> Option<u16> {
    fs::read_to_string(place.path().join(name))
        .ok()?
        .parse()
        .ok()
}

async fn wait_for(place: &Place, child: &mut Child) -> Option<(String, Client)> {
    let sockets = [place.socket(), place.path().join("other.sock")];
    let port = port_of(place, "port");
    let deadline = tokio::time::Instant::now() + wait::PATIENCE;
    loop {
        for socket in &sockets {
            if let Ok(client) = Client::connect(socket).await {
                let mode = fs::metadata(socket).map_or(0, |socket| socket.permissions().mode());
                return Some((format!("{} {:o}", socket.display(), mode & 0o777), client));
            }
        }
        if let Some(port) = port
            && let Ok(endpoint) = Endpoint::from_shared(format!("http://127.0.0.1:{port}"))
            && let Ok(channel) = endpoint.connect().await
        {
            return Some(("tcp".into(), Client::over(channel)));
        }
        if child
            .try_wait()
            .expect("a child can be waited for")
            .is_some()
        {
            return None;
        }
        assert!(
            tokio::time::Instant::now() < deadline,
            "it neither listens nor ends"
        );
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
}

struct Look<'a> {
    client: Client,
    place: &'a Place,
    seen: &'a mut Seen,
}

impl Look<'_> {
    fn note<T: Debug>(&mut self, subject: &'static str, outcome: Outcome<T>) -> Option<T> {
        let text = match &outcome {
            Ok(reply) => format!("{:?}", reply.get_ref()),
            Err(status) => format!("{:?}", status.code()),
        };
        self.seen.insert(subject, text);
        outcome.ok().map(tonic::Response::into_inner)
    }

    async fn identity(&mut self) {
        let mut client = self.client.clone();
        let reply = client
            .identity
            .get_plugin_info(csi::GetPluginInfoRequest {})
            .await;
        self.note("plugin", reply);
        let reply = client
            .identity
            .get_plugin_capabilities(csi::GetPluginCapabilitiesRequest {})
            .await;
        self.note("plugin capabilities", reply);
        let reply = client
            .controller
            .controller_get_capabilities(csi::ControllerGetCapabilitiesRequest {})
            .await;
        self.note("controller capabilities", reply);
        let reply = client
            .node
            .node_get_capabilities(csi::NodeGetCapabilitiesRequest {})
            .await;
        self.note("node capabilities", reply);
        let reply = client.node.node_get_info(csi::NodeGetInfoRequest {}).await;
        self.note("node", reply);
    }

    async fn volume(&mut self, setup: &Setup) {
        let mut client = self.client.clone();
        let request = volume::create("observed", &BTreeMap::new());
        let reply = client.controller.create_volume(request).await;
        // `Debug` of a message hides possible secrets; here they are shown.
        if let Ok(reply) = &reply
            && let Some(made) = &reply.get_ref().volume
        {
            self.seen
                .insert("context", format!("{:?}", made.volume_context));
        }
        let Some(made) = self.note("volume", reply).and_then(|reply| reply.volume) else {
            return;
        };
        let folder = made
            .volume_context
            .get("path")
            .map(Path::new)
            .map(Path::to_owned);
        let folders = [
            folder,
            Some(self.place.base().join("v").join(&made.volume_id)),
            Some(self.place.path().join("other/v").join(&made.volume_id)),
        ];
        let folders: Vec<_> = folders.into_iter().flatten().collect();
        let there = |folders: &[std::path::PathBuf]| -> BTreeSet<String> {
            let metadata = folders
                .iter()
                .filter_map(|path| Some((path, fs::metadata(path).ok()?)));
            metadata
                .map(|(path, it)| {
                    format!(
                        "{} {:o} {} {}",
                        path.display(),
                        it.mode() & 0o7777,
                        it.uid(),
                        it.gid()
                    )
                })
                .collect()
        };
        self.seen.insert("folder", format!("{:?}", there(&folders)));
        let request = csi::CreateSnapshotRequest {
            parameters: setup.snapshot_parameters.clone(),
            ..volume::snapshot("observed", &made.volume_id)
        };
        let cut = client.controller.create_snapshot(request).await;
        let cut = cut.map(|reply| reply.map(|reply| reply.snapshot.map(|cut| cut.snapshot_id)));
        if let Some(Some(id)) = self.note("snapshot", cut) {
            let gone = client
                .controller
                .delete_snapshot(volume::delete_snapshot(&id))
                .await;
            self.note("snapshot deletion", gone);
        }
        self.mount(&made, &setup.node_secrets).await;
        let gone = client
            .controller
            .delete_volume(volume::delete(&made.volume_id))
            .await;
        self.note("deletion", gone);
        self.seen.insert("left", format!("{:?}", there(&folders)));
    }

    async fn mount(&mut self, made: &csi::Volume, secrets: &BTreeMap<String, String>) {
        let (staging, pod) = (
            self.place.node().join("staging"),
            self.place.node().join("pod"),
        );
        fs::create_dir(&staging).expect("a folder");
        let mut node = self.client.clone().node;
        // The configuration may contain a volume without a context.
        let lost = csi::NodeStageVolumeRequest {
            volume_context: BTreeMap::new(),
            ..volume::stage(made, &staging)
        };
        let outcome = node.node_stage_volume(lost).await;
        self.seen
            .insert("staging without context", format!("{:?}", code(&outcome)));
        let request = csi::NodeStageVolumeRequest {
            secrets: secrets.clone(),
            ..volume::stage(made, &staging)
        };
        let staged = node.node_stage_volume(request).await;
        self.seen.insert("staging", format!("{:?}", code(&staged)));
        let request = csi::NodePublishVolumeRequest {
            secrets: secrets.clone(),
            ..volume::publish(made, &staging, &pod)
        };
        let published = node.node_publish_volume(request).await;
        self.seen
            .insert("publishing", format!("{:?}", code(&published)));
        self.seen.insert("mount options", options_of(&pod));
        self.seen.insert("staging options", options_of(&staging));
        let _ = node
            .node_unpublish_volume(volume::unpublish(made, &pod))
            .await;
        let _ = node
            .node_unstage_volume(volume::unstage(made, &staging))
            .await;
    }
}

fn options_of(mount: &Path) -> String {
    let table = fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
    let path = mount.display().to_string();
    let line = table
        .lines()
        .find(|line| line.split(' ').nth(4) == Some(&path));
    let options = line.and_then(|line| line.split(' ').nth(5));
    options.unwrap_or_default().to_owned()
}

async fn http(place: &Place, path: &str) -> String {
    let Some(port) = port_of(place, "admin") else {
        return String::new();
    };
    let reply = get(port, path).await;
    reply.map_or_else(
        |_| "no listener".into(),
        |reply| reply.lines().next().unwrap_or_default().to_owned(),
    )
}

/// All answers of the admin endpoint on `port` of the loopback.
pub async fn get(port: u16, path: &str) -> std::io::Result<String> {
    let mut connection = TcpStream::connect(("127.0.0.1", port)).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    connection.write_all(request.as_bytes()).await?;
    let mut reply = String::new();
    connection.read_to_string(&mut reply).await?;
    Ok(reply)
}

/// The parts of the log that depend on settings and not on the clock.
fn logged(log: &str, seen: &mut Seen) {
    let json = log.lines().filter(|line| line.starts_with('{')).count();
    let form = if json == log.lines().count() {
        "JSON"
    } else {
        "text"
    };
    seen.insert("log form", form.to_owned());
    let levels: BTreeSet<_> = ["error", "warn", "info", "verbose", "debug", "silly"]
        .into_iter()
        .filter(|level| log.contains(&format!("\"level\":\"{level}\"")))
        .collect();
    seen.insert("log levels", format!("{levels:?}"));
    let settings = ["no effect", "configuration", "does nothing", "ignored"];
    let notes: BTreeSet<_> = log
        .lines()
        .filter(|line| settings.iter().any(|word| line.contains(word)))
        .map(without_time)
        .collect();
    seen.insert("notes", format!("{notes:#?}"));
}

fn without_time(line: &str) -> String {
    let Ok(serde_json::Value::Object(mut fields)) = serde_json::from_str(line) else {
        return line.to_owned();
    };
    fields.remove("time");
    serde_json::Value::Object(fields).to_string()
}
