//! The real program, started on a unix socket like an orchestrator does.
//!
//! A [`Launch`] has the settings, a [`Server`] is one process. All its output goes to the log of
//! its [`Place`]. A dropped server is killed, with all its children.
#![expect(
    clippy::disallowed_methods,
    reason = "starts the program under test; nothing here is part of it"
)]

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use csi_proto::v1::ProbeRequest;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::process::{Child, Command};

use crate::binary::omnibus_csi;
use crate::client::Client;
use crate::place::Place;
use crate::process::Process;
use crate::wait;

/// The way to start the program.
#[derive(Debug, Clone)]
pub struct Launch {
    /// The configuration file's text.
    pub config: String,
    /// The flags of a CSI server.
    pub flags: Vec<String>,
    /// Environment variables in an otherwise clean environment.
    pub environment: Vec<(String, String)>,
    /// A program, with arguments, that runs the program: a tracer.
    pub wrapper: Vec<OsString>,
}

/// One process of the program.
#[derive(Debug)]
pub struct Server {
    child: Child,
    group: Pid,
    client: Client,
    started_in: Duration,
}

// === impl Launch ===

impl Launch {
    /// Both services, the newest specification, and the full log.
    pub fn new(config: impl Into<String>) -> Self {
        let flags = [
            "--csi-version=1.13.0",
            "--csi-name=org.omnibus-csi.test",
            "--csi-mode=controller",
            "--csi-mode=node",
            "--log-level=silly",
        ];
        Self {
            config: config.into(),
            flags: flags.map(str::to_owned).to_vec(),
            environment: vec![("CSI_NODE_ID".into(), "node-a".into())],
            wrapper: Vec::new(),
        }
    }

    /// A directory driver over the base of `place`.
    pub fn local_hostpath(place: &Place) -> Self {
        let base = place.base();
        Self::new(format!(
            "driver: local-hostpath\nlocal-hostpath:\n  shareBasePath: {base}\n  \
             controllerBasePath: {base}\n  createBase: true\n  dirPermissionsMode: \"0777\"\n",
            base = base.display()
        ))
    }

    /// A proxy with these files in `folder`, which is created. Handles without a connection belong
    /// to `legacy`, as if it had been alone before.
    pub fn proxy<'a>(
        folder: &Path,
        legacy: &str,
        files: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Self {
        fs::create_dir_all(folder).expect("a folder");
        for (name, text) in files {
            fs::write(folder.join(format!("{name}.yaml")), text).expect("a file");
        }
        Self::new(format!(
            "driver: proxy\nproxy:\n  configFolder: {}\n  legacyConnection: {legacy}\n  \
             nodeTopology: {{type: node}}\n",
            folder.display()
        ))
    }

    /// With another value for a flag: `set("--log-level", "info")`.
    #[must_use]
    pub fn set(mut self, flag: &str, value: &str) -> Self {
        let prefix = format!("{flag}=");
        self.flags.retain(|given| !given.starts_with(&prefix));
        self.flags.push(format!("{prefix}{value}"));
        self
    }

    /// Without a flag.
    #[must_use]
    pub fn unset(mut self, flag: &str) -> Self {
        let prefix = format!("{flag}=");
        self.flags.retain(|given| !given.starts_with(&prefix));
        self
    }

    /// With an environment variable.
    #[must_use]
    pub fn env(mut self, key: &str, value: &str) -> Self {
        self.environment.retain(|(given, _)| given != key);
        self.environment.push((key.into(), value.into()));
        self
    }

    /// Under a tracer.
    #[must_use]
    pub fn under(mut self, wrapper: impl IntoIterator<Item = OsString>) -> Self {
        self.wrapper = wrapper.into_iter().collect();
        self
    }

    /// Starts the program in `place` without waiting for it to listen.
    ///
    /// # Panics
    /// If it cannot be started at all.
    pub fn spawn(&self, place: &Place) -> Child {
        self.spawn_on(
            place,
            &[format!("--server-socket={}", place.socket().display())],
        )
    }

    /// Starts the program in `place` with other listeners than the usual socket.
    ///
    /// # Panics
    /// If it cannot be started at all.
    pub fn spawn_on(&self, place: &Place, listeners: &[String]) -> Child {
        fs::write(place.config(), &self.config).expect("the configuration can be written");
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(place.log())
            .expect("the log can be opened");
        let mut words: Vec<OsString> = self.wrapper.clone();
        words.push(omnibus_csi().into());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        if !self.names_its_configuration() {
            command.arg(format!("--driver-config-file={}", place.config().display()));
        }
        command
            .args(&self.flags)
            .args(listeners)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("RUST_BACKTRACE", "1")
            .envs(self.orchestrator_dir(place))
            .envs(self.environment.iter().map(|(key, value)| (key, value)))
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a second handle of the log"))
            .stderr(log)
            .process_group(0)
            .kill_on_drop(true);
        command.spawn().expect("the program can be started")
    }

    /// The folder of the orchestrator, unless flags or environment name one.
    fn orchestrator_dir(&self, place: &Place) -> Option<(&'static str, PathBuf)> {
        let by_flag = |flag: &String| flag.starts_with("--kubelet-dir");
        let by_variable = |(key, _): &(String, String)| key.ends_with("_KUBELET_DIR");
        let is_named = self.flags.iter().any(by_flag) || self.environment.iter().any(by_variable);
        (!is_named).then(|| ("OMNIBUS_CSI_KUBELET_DIR", place.node()))
    }

    /// Whether the flags or the environment set the path of the configuration.
    fn names_its_configuration(&self) -> bool {
        let by_flag = |flag: &String| flag.starts_with("--driver-config-file");
        let by_variable = |(key, _): &(String, String)| key == "DEMOCRATIC_CSI_DRIVER_CONFIG_FILE";
        self.flags.iter().any(by_flag) || self.environment.iter().any(by_variable)
    }

    /// Starts the program in `place` and waits until it answers.
    ///
    /// # Panics
    /// If it ends instead; its log is in the message.
    pub async fn start(&self, place: &Place) -> Server {
        let began = Instant::now();
        let mut child = self.spawn(place);
        let group = pid_of(&child);
        let socket = place.socket();
        wait::until("the server to listen", || {
            if let Some(status) = child.try_wait().expect("a child can be waited for") {
                panic!("the server ended with {status}:\n{}", tail(place));
            }
            UnixStream::connect(&socket).ok()
        })
        .await;
        // A forwarder of the socket from another machine listens before the program does.
        let client = wait::until_answered("the server to answer", async || {
            if let Some(status) = child.try_wait().expect("a child can be waited for") {
                panic!("the server ended with {status}:\n{}", tail(place));
            }
            let mut client = Client::connect(&socket).await.ok()?;
            client.identity.probe(ProbeRequest {}).await.ok()?;
            Some(client)
        })
        .await;
        Server {
            child,
            group,
            client,
            started_in: began.elapsed(),
        }
    }

    /// Runs the program to its end, for starts that must fail.
    ///
    /// # Panics
    /// If it does not end.
    pub async fn run_to_end(&self, place: &Place) -> ExitStatus {
        let mut child = self.spawn(place);
        tokio::time::timeout(wait::PATIENCE, child.wait())
            .await
            .expect("the program should have ended by itself")
            .expect("a child can be waited for")
    }
}

// === impl Server ===

impl Server {
    /// Clients of it; clones share one connection.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// The time from its start to its first answer.
    pub fn started_in(&self) -> Duration {
        self.started_in
    }

    /// The process itself, not a tracer around it.
    pub fn process(&self) -> Process {
        let outer = Process(self.group.as_raw_nonzero().get().unsigned_abs());
        let inner = |process: Process| {
            fs::read_link(format!("/proc/{}/exe", process.0))
                .is_ok_and(|exe| exe.file_name() == omnibus_csi().file_name())
        };
        if inner(outer) {
            return outer;
        }
        let children = outer.children();
        children
            .into_iter()
            .find(|child| inner(*child))
            .unwrap_or(outer)
    }

    /// Whether it still runs.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Kills it like a crash, and waits until it is gone.
    pub async fn kill(&mut self) {
        let _ = kill_process_group(self.group, Signal::KILL);
        let _ = self.child.wait().await;
    }

    /// Waits until it exits by itself, and returns whether a signal killed it.
    ///
    /// # Panics
    /// If it stays.
    pub async fn gone(&mut self) -> ExitStatus {
        tokio::time::timeout(wait::PATIENCE, self.child.wait())
            .await
            .expect("the server should be gone")
            .expect("a child can be waited for")
    }

    /// Terminates it and waits for its end.
    ///
    /// # Panics
    /// If it stays.
    pub async fn terminate(&mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.gone().await
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.process().0).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid {
            let _ = kill_process(pid, signal);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.child.id().is_some() {
            let _ = kill_process_group(self.group, Signal::KILL);
        }
    }
}

/// The output of the servers of `place` so far.
pub fn log_of(place: &Place) -> String {
    String::from_utf8_lossy(&fs::read(place.log()).unwrap_or_default()).into_owned()
}

/// Whether a process was ended by SIGKILL.
pub fn was_killed(status: ExitStatus) -> bool {
    status.signal() == Some(Signal::KILL.as_raw()) || status.code() == Some(137)
}

fn tail(place: &Place) -> String {
    let log = log_of(place);
    let lines: Vec<_> = log.lines().collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
}

fn pid_of(child: &Child) -> Pid {
    child
        .id()
        .and_then(|id| i32::try_from(id).ok())
        .and_then(Pid::from_raw)
        .expect("a process that was just started has a number")
}
