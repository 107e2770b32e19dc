//! A folder for a server, a server as a child, a probe.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Output, Stdio};

use csi_proto::v1::VolumeCapability;
use csi_proto::v1::node_client::NodeClient;
use csi_proto::v1::volume_capability::{AccessMode, AccessType, MountVolume, access_mode::Mode};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use tonic::transport::{Channel, Endpoint};

pub(super) const PROGRAM: &str = env!("CARGO_BIN_EXE_omnibus-csi");

/// A folder with storage and configuration.
pub(super) struct Place(TempDir);

/// A running server that logs JSON.
pub(super) struct Server {
    pub(super) child: Child,
    pub(super) log: BufReader<ChildStderr>,
    pub(super) lines: Vec<Value>,
}

impl Place {
    pub(super) fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        fs::create_dir(place.path("base")).unwrap();
        place.configure("");
        place
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.path("csi.sock")
    }

    /// Writes the configuration with `more` at its end.
    pub(super) fn configure(&self, more: &str) {
        let base = self.path("base");
        let base = base.display();
        let text = format!(
            "driver: local-hostpath\ninstance_id:\nlocal-hostpath:\n  shareBasePath: {base}\n  \
             controllerBasePath: {base}\n{more}"
        );
        fs::write(self.path("config.yaml"), text).unwrap();
    }

    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(PROGRAM);
        command
            .env_clear()
            .arg(format!(
                "--driver-config-file={}",
                self.path("config.yaml").display()
            ))
            .args(["--csi-name=org.example", "--csi-version=1.9.0"])
            .arg(format!("--server-socket={}", self.socket().display()));
        command
    }

    pub(super) fn start(&self) -> Server {
        Server::of(&mut self.command())
    }

    pub(super) fn refused(&self, command: &mut Command) -> (i32, String) {
        let output = command.output().unwrap();
        assert!(
            !self.socket().exists() || self.socket().is_dir(),
            "something was bound"
        );
        let text = String::from_utf8(output.stderr).unwrap();
        (output.status.code().unwrap(), text)
    }
}

impl Server {
    /// Starts and waits until it serves.
    pub(super) fn of(command: &mut Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let log = BufReader::new(child.stderr.take().unwrap());
        let mut server = Self {
            child,
            log,
            lines: Vec::new(),
        };
        server.until("serving");
        server
    }

    /// Reads the log up to a line with this message, which it returns.
    pub(super) fn until(&mut self, message: &str) -> Value {
        loop {
            let mut line = String::new();
            let read = self.log.read_line(&mut line).unwrap();
            assert!(read > 0, "no line says {message:?}: {:#?}", self.lines);
            let line: Value = serde_json::from_str(&line).expect("each line is one JSON object");
            self.lines.push(line.clone());
            if line["message"] == message {
                return line;
            }
        }
    }

    /// The line with this message, whether or not it was read already.
    pub(super) fn line(&mut self, message: &str) -> Value {
        let read = self.lines.iter().find(|line| line["message"] == message);
        match read.cloned() {
            Some(line) => line,
            None => self.until(message),
        }
    }

    pub(super) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Waits for its end; its exit code.
    pub(super) fn ended(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }

    pub(super) fn admin(&mut self) -> String {
        let line = self
            .lines
            .iter()
            .find(|line| line["message"] == "metrics and the log level are served");
        line.unwrap()["address"].as_str().unwrap().to_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // One that has ended already cannot be killed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(super) async fn node_client(socket: &Path) -> NodeClient<Channel> {
    let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display())).unwrap();
    NodeClient::new(endpoint.connect().await.unwrap())
}

/// A mount for one node that may write.
pub(super) fn by_one_writer() -> VolumeCapability {
    VolumeCapability {
        access_mode: Some(AccessMode {
            mode: Mode::SingleNodeWriter.into(),
        }),
        access_type: Some(AccessType::Mount(MountVolume::default())),
    }
}

pub(super) fn probe(socket: &Path, more: &[&str]) -> Output {
    let mut command = Command::new(PROGRAM);
    command
        .env_clear()
        .arg("liveness-probe")
        .arg("--csi-address")
        .arg(socket)
        .args(more);
    command.output().unwrap()
}
