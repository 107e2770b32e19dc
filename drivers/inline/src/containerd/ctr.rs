//! `ctr` of containerd: its commands and its errors.
//!
//! Every command names the socket and the namespace of containerd. Registry credentials reach it in a file
//! of a folder that only root reads, and that goes with the command.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use driver_core::{Call, Effect, Error, Kind};
use exec::{Accept, Command, Output, Program, RunError};
use node_utils::Tools;
use secrecy::{ExposeSecret, SecretString};

use super::attributes::Reference;

/// The time limit of a command without a copy. containerd answers them from its own database, in milliseconds.
const SHORT: Duration = Duration::from_secs(30);
/// The time limit of a pull. An image of 100 GiB at 30 MB/s.
const PULL: Duration = Duration::from_hours(1);
/// The part of that in which a pull that took too long removes what it was given.
const CLEANING: Duration = Duration::from_secs(10);
/// The exit code of `timeout` for what took too long.
const TOO_LONG: i32 = 124;
/// The time that `ctr` waits for the socket.
const CONNECT: &str = "5s";

/// `$1` is the name of the registry, `$2` what is wanted of it, `$3` how many seconds that may take: it has to end
/// by itself, because who is killed removes no file. The rest is the command, up to the image.
/// `ctr` prints its progress all the time, which is not kept. Standard input is the configuration of the
/// registry, or empty.
const PULLING: &str = include_str!("../script/pull.sh");

/// Its message for a missing object.
const ABSENT: &str = "not found";

/// Its messages and their meaning.
const REASONS: &[(&str, Kind, &str)] = &[
    (
        "failed to dial",
        Kind::Unreachable,
        "is containerd running, and is `containerd.address` its socket as the host sees it?",
    ),
    (
        "connection refused",
        Kind::Unreachable,
        "does the registry, or containerd, answer on this node?",
    ),
    (
        "no such host",
        Kind::Unreachable,
        "the name of the registry has no address on this node",
    ),
    (
        "i/o timeout",
        Kind::Unreachable,
        "the registry does not answer",
    ),
    (
        "401 Unauthorized",
        Kind::Denied,
        "name credentials of the registry in `nodePublishSecretRef`: `username` and `password`, or `token`",
    ),
    (
        "authorization failed",
        Kind::Denied,
        "name credentials of the registry in `nodePublishSecretRef`: `username` and `password`, or `token`",
    ),
    (
        "403 Forbidden",
        Kind::Denied,
        "the registry refuses these credentials for this image",
    ),
    (
        "permission denied",
        Kind::Denied,
        "this process, or sudo, may not use containerd's socket",
    ),
    (
        "no space left on device",
        Kind::OutOfSpace,
        "the disk of containerd is full",
    ),
    (
        "no match for platform",
        Kind::NotFound,
        "the image is not made for `image.platform`",
    ),
];

/// `ctr`, and the containerd that it speaks to.
#[derive(Debug)]
pub(super) struct Ctr {
    tools: Tools,
    program: Program,
    address: Option<String>,
    namespace: Option<String>,
    snapshotter: Option<String>,
}

/// The credentials for a registry.
#[derive(Debug)]
pub(super) enum Credentials {
    /// A user and a password.
    Basic(SecretString),
    /// A token.
    Bearer(SecretString),
}

/// A snapshot of containerd.
#[derive(Debug, serde::Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Snapshot {
    /// Its labels.
    #[serde(default)]
    pub(super) labels: std::collections::BTreeMap<String, String>,
}

// === impl Ctr ===

impl Ctr {
    pub(super) fn new(
        tools: Tools,
        program: Program,
        address: Option<String>,
        namespace: Option<String>,
        snapshotter: Option<String>,
    ) -> Self {
        Self {
            tools,
            program,
            address,
            namespace,
            snapshotter,
        }
    }

    /// Whether containerd answers.
    pub(super) async fn probe(&self, call: &Call) -> Result<(), Error> {
        let command = self.command(call, SHORT, &["version"]);
        self.run(&command, "ask containerd for its version", Effect::None)
            .await
            .map(drop)
    }

    /// Whether an image is there, whole.
    pub(super) async fn has_image(&self, call: &Call, image: &Reference) -> Result<bool, Error> {
        let filter = format!("name==\"{image}\"");
        let command = self.command(call, SHORT, &["images", "ls", "--quiet", &filter]);
        let doing = format!("look for image `{image}`");
        let output = self.run(&command, &doing, Effect::None).await?;
        Ok(output
            .text()
            .lines()
            .any(|line| line.trim() == image.as_str()))
    }

    /// Has an image come from its registry.
    pub(super) async fn pull(
        &self,
        call: &Call,
        image: &Reference,
        platform: Option<&str>,
        credentials: Option<&Credentials>,
    ) -> Result<(), Error> {
        let seconds = PULL
            .min(call.remaining())
            .saturating_sub(CLEANING)
            .as_secs()
            .max(1);
        let mut command = Command::script(PULLING)
            .args([image.registry(), image.as_str()])
            .arg(seconds.to_string());
        command = command.args(self.words(&["images", "pull"]));
        if let Some(platform) = platform {
            command = command.args(["--platform", platform]);
        }
        if let Some(credentials) = credentials {
            command = command
                .secret_stdin(credentials.hosts(image.registry()))
                .hiding(credentials.header());
        }
        let command = bounded(call, PULL, command);
        self.run(&command, &format!("pull image `{image}`"), Effect::Possible)
            .await
            .map(drop)
    }

    /// Mounts the content of an image at a path, which is the key of the snapshot from then on.
    pub(super) async fn mount(
        &self,
        call: &Call,
        image: &Reference,
        platform: Option<&str>,
        readonly: bool,
        target: &str,
    ) -> Result<(), Error> {
        let mut words = vec!["images", "mount"];
        if let Some(snapshotter) = &self.snapshotter {
            words.extend(["--snapshotter", snapshotter]);
        }
        if let Some(platform) = platform {
            words.extend(["--platform", platform]);
        }
        if !readonly {
            words.push("--rw");
        }
        words.extend([image.as_str(), target]);
        // It may have to be unpacked first.
        let command = self.command(call, PULL, &words);
        let doing = format!("mount image `{image}` at `{target}`");
        self.run(&command, &doing, Effect::Possible).await.map(drop)
    }

    /// A snapshot, if it is there.
    pub(super) async fn snapshot(&self, call: &Call, key: &str) -> Result<Option<Snapshot>, Error> {
        let command = self.command(call, SHORT, &self.snapshots(&["info", key]));
        let doing = format!("look at snapshot `{key}`");
        let Some(output) = self.unless_absent(&command, &doing, Effect::None).await? else {
            return Ok(None);
        };
        let snapshot = serde_json::from_slice(&output.stdout).map_err(|error| {
            Error::new(Kind::Internal, doing)
                .because(error)
                .advise("`ctr` printed no JSON")
        })?;
        Ok(Some(snapshot))
    }

    /// Gives labels to a snapshot.
    pub(super) async fn label(
        &self,
        call: &Call,
        key: &str,
        labels: impl IntoIterator<Item = (String, String)>,
    ) -> Result<(), Error> {
        let mut words: Vec<String> = self
            .snapshots(&["label", key])
            .iter()
            .map(|word| (*word).to_owned())
            .collect();
        words.extend(
            labels
                .into_iter()
                .map(|(name, value)| format!("{name}={value}")),
        );
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let command = self.command(call, SHORT, &words);
        self.run(
            &command,
            &format!("label snapshot `{key}`"),
            Effect::Possible,
        )
        .await
        .map(drop)
    }

    /// Removes a snapshot and what kept it. What is not there is removed.
    pub(super) async fn remove(&self, call: &Call, key: &str) -> Result<(), Error> {
        let doing = format!("remove snapshot `{key}`");
        call.changing();
        let command = self.command(call, SHORT, &self.snapshots(&["rm", key]));
        self.unless_absent(&command, &doing, Effect::Possible)
            .await?;
        let command = self.command(call, SHORT, &["leases", "rm", key]);
        self.unless_absent(&command, &doing, Effect::Possible)
            .await?;
        Ok(())
    }

    /// The keys of all snapshots that look like paths.
    pub(super) async fn keys(&self, call: &Call) -> Result<Vec<String>, Error> {
        let command = self.command(call, SHORT, &self.snapshots(&["ls"]));
        let output = self.run(&command, "list snapshots", Effect::None).await?;
        let text = output.text();
        let mut lines = text.lines();
        if !lines.next().is_some_and(|heads| heads.starts_with("KEY")) {
            return Err(Error::new(Kind::Internal, "list snapshots")
                .because("`ctr snapshots ls` printed no table"));
        }
        let keys = lines.filter_map(|line| line.split_whitespace().next());
        Ok(keys
            .filter(|key| key.starts_with('/'))
            .map(str::to_owned)
            .collect())
    }

    fn snapshots<'a>(&'a self, words: &[&'a str]) -> Vec<&'a str> {
        let mut all = vec!["snapshots"];
        if let Some(snapshotter) = &self.snapshotter {
            all.extend(["--snapshotter", snapshotter]);
        }
        all.extend(words);
        all
    }

    fn words<'a>(&'a self, words: &[&'a str]) -> Vec<&'a str> {
        let mut all = vec![self.program.as_str(), "--connect-timeout", CONNECT];
        for (flag, value) in [
            ("--address", &self.address),
            ("--namespace", &self.namespace),
        ] {
            if let Some(value) = value {
                all.extend([flag, value.as_str()]);
            }
        }
        all.extend(words);
        all
    }

    fn command(&self, call: &Call, within: Duration, words: &[&str]) -> Command {
        let all = self.words(words);
        let command = Command::new(self.program.clone()).args(all.into_iter().skip(1));
        bounded(call, within, command)
    }

    async fn run(&self, command: &Command, doing: &str, effect: Effect) -> Result<Output, Error> {
        let ran = self.tools.host().run_checked(command).await;
        ran.map_err(|error| to_error(error, doing.to_owned(), effect))
    }

    async fn unless_absent(
        &self,
        command: &Command,
        doing: &str,
        effect: Effect,
    ) -> Result<Option<Output>, Error> {
        let command = command.clone().accepting(Accept::Codes(vec![1]));
        let output = self.run(&command, doing, effect).await?;
        if output.status.code() == Some(0) {
            return Ok(Some(output));
        }
        let said = String::from_utf8_lossy(&output.stderr)
            .trim_end()
            .to_owned();
        // The socket that is not there is not found, either.
        if said.ends_with(ABSENT) && !said.contains("dial") {
            return Ok(None);
        }
        let strict = command.clone().accepting(Accept::Success);
        match output.check(&strict) {
            Ok(output) => Ok(Some(output)),
            Err(error) => Err(to_error(error, doing.to_owned(), effect)),
        }
    }
}

fn bounded(call: &Call, within: Duration, command: Command) -> Command {
    command
        .within(within.min(call.remaining()))
        .with_call_start(call.began())
}

fn to_error(error: RunError, doing: String, effect: Effect) -> Error {
    let said = error.stderr();
    let reason = REASONS.iter().find(|(words, ..)| said.contains(words));
    let (kind, advice) = match (&error, reason) {
        (RunError::NotFound { .. }, _) => (
            Kind::Internal,
            "install containerd on the host, or say where `ctr` is: `containerd.cli.paths.ctr`",
        ),
        _ if error.exit_code() == Some(TOO_LONG) => (
            Kind::Timeout,
            "the image is large or the registry slow: what has come stays for the next call",
        ),
        (RunError::Deadline { .. } | RunError::QueueTimeout { .. }, _) => (
            Kind::Timeout,
            "does containerd still work, and does the registry answer?",
        ),
        (_, Some((_, kind, advice))) => (*kind, *advice),
        (_, None) if said.trim_end().ends_with(ABSENT) => (
            Kind::NotFound,
            "see `ctr images ls` on this node, and the name of the image",
        ),
        _ => (Kind::Internal, "run the same command on the node"),
    };
    error.of_work(kind, doing, effect).advise(advice)
}

// === impl Credentials ===

impl Credentials {
    /// The value of the header that a registry is sent.
    fn header(&self) -> SecretString {
        let text = match self {
            Self::Basic(pair) => format!("Basic {}", STANDARD.encode(pair.expose_secret())),
            Self::Bearer(token) => format!("Bearer {}", token.expose_secret()),
        };
        SecretString::from(text)
    }

    /// What `hosts.toml` of a registry has to be. A registry on this machine speaks no TLS, as elsewhere
    /// in containerd.
    fn hosts(&self, registry: &str) -> String {
        let server = if registry == "docker.io" {
            "registry-1.docker.io"
        } else {
            registry
        };
        let name = server.split(':').next().unwrap_or_default();
        let local = matches!(name, "localhost" | "127.0.0.1");
        let scheme = if local { "http" } else { "https" };
        let url = format!("{scheme}://{server}");
        let header = self.header();
        let header = header.expose_secret();
        format!(
            "server = \"{url}\"\n[host.\"{url}\"]\ncapabilities = [\"pull\", \"resolve\"]\n\
             [host.\"{url}\".header]\nauthorization = [\"{header}\"]\n"
        )
    }
}
