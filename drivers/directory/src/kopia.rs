//! Snapshots in a repository of kopia, made and read by the real tool.
//!
//! compat: "kopia": the tags and ids are those of democratic-csi, so a repository can be used by both. kopia is
//! connected to its repository by the token, once for each driver; what it keeps of that, the password and a cache
//! among it, is in a folder that is removed with the driver, or by the next process after a kill.
//!
//! kopia writes what it says of a snapshot at its end. One that was cut, or that lacks files, says so itself and
//! is not a snapshot here. Nor is one of a volume that was deleted during the backup: a new one has a pin that says so,
//! until the volume was found again.

#![expect(
    clippy::disallowed_methods,
    reason = "only threads that may block come here: all work of this driver is done there"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use csi_types::Variable;
use driver_core::config::ConfigError;
use driver_core::{Call, Error, Kind};
use exec::{Command, Output, Program, RunError};
use node_utils::Tools;
use rustix::fs::{FlockOperation, flock};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use tokio::runtime::Handle;
use tokio::time::timeout_at;

use crate::backup::{
    Backup, INSTANCE, Known, NAME, Repository, ToolConfig, VOLUME, failure, says, sorted, time,
};
use crate::base::random_digits;
use crate::id::{BackupId, NamePart, Tool, VolumeDir};

const TOOL: Program = Program::constant("kopia");
/// compat: "kopia": the user of every snapshot.
const USER: &str = "democratic-csi";
const SOURCE: &str = "source:democratic-csi";
/// kopia deletes what its policy does not keep, at the next snapshot of the same directory. A pin keeps it.
const PIN: &str = "csi";
/// The pin until it is known to be whole. What still has it is no snapshot.
const PENDING: &str = "omnibus-csi-pending";
const LISTING: &str = "looking for snapshots in the repository of kopia";
/// kopia keeps the cache below these sizes, in MB.
const CACHE_LIMIT: &str = "500";
/// The policy of what this user and host snapshot: everything, whatever a volume or the global policy leaves out.
/// A name that no volume has stands in for `.kopiaignore`, because an empty list is inherited.
const POLICY: [&str; 14] = [
    "--ignore-cache-dirs",
    "false",
    "--one-file-system",
    "true",
    "--add-dot-ignore",
    ".omnibus-csi-ignores-nothing",
    "--ignore-identical-snapshots",
    "false",
    "--ignore-file-errors",
    "false",
    "--ignore-dir-errors",
    "false",
    "--ignore-unknown-types",
    "true",
];
/// The messages of kopia about a snapshot that is not there.
const NOT_THERE: [&str; 3] = [
    "no snapshots matched",
    "invalid content hash",
    "invalid object ID",
];
const WRONG_LOGIN: [&str; 1] = ["invalid repository password"];
const WRONG_TOKEN: [&str; 1] = ["invalid token"];
/// The messages of kopia where it is connected, and the repository is not there.
const NO_REPOSITORY: [&str; 3] = [
    "unable to open repository",
    "error opening repository",
    "error getting kopia.repository",
];
/// The message of kopia about a snapshot that it cannot read, and leaves out of a list.
const LEFT_OUT: &str = "unable to parse snapshot manifest";
/// The name of a folder of kopia's, and the file in it that its process has locked.
const HOME: &str = "omnibus-csi-kopia-";
const HOME_LOCK: &str = "lock";
const CONFIG: &str = "repository.config";

/// `snapshots.kopia`, as it is written.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct KopiaSection {
    /// The place where the repository is and its password, as `kopia repository status -t -s` prints it.
    #[serde(default)]
    config_token: Option<SecretString>,
    /// Flags of every command.
    #[serde(default)]
    global_flags: Vec<String>,
    /// Further tags of new snapshots, each `key:value`.
    #[serde(default)]
    tags: Vec<String>,
    /// The environment of kopia.
    #[serde(default)]
    env: BTreeMap<String, Option<SecretString>>,
}

/// The section, checked.
#[derive(Debug, Clone, Default)]
pub(crate) struct KopiaConfig {
    tool: ToolConfig,
    token: Option<SecretString>,
}

/// A repository, and the tool that knows it.
#[derive(Debug)]
pub(crate) struct Kopia {
    tools: Tools,
    config: KopiaConfig,
    instance: Option<String>,
    /// The host of new snapshots.
    host: String,
    /// The files that kopia keeps of its connection, once there is one.
    home: tokio::sync::Mutex<Option<Arc<Home>>>,
}

/// A folder that only this user may read, removed with its last user. It is locked: one that is not was left by a
/// process that was killed.
#[derive(Debug)]
struct Home {
    path: PathBuf,
    _lock: File,
}

/// A snapshot as kopia prints it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Printed {
    id: String,
    source: PrintedSource,
    start_time: String,
    #[serde(default)]
    incomplete: String,
    #[serde(default)]
    root_entry: Option<PrintedEntry>,
    #[serde(default)]
    tags: BTreeMap<String, String>,
    #[serde(default)]
    pins: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct RepositoryStatus {
    #[serde(rename = "uniqueIDHex")]
    unique_id: Option<String>,
}

#[derive(Debug, Deserialize)]
struct PrintedSource {
    path: String,
}

#[derive(Debug, Deserialize)]
struct PrintedEntry {
    #[serde(default)]
    summ: Option<Summary>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Summary {
    #[serde(default)]
    size: u64,
    #[serde(default)]
    num_failed: u64,
    #[serde(default)]
    num_ignored_errors: u64,
}

// === impl KopiaConfig ===

impl KopiaConfig {
    /// Checks the section; `variables` are those of the process.
    pub(crate) fn read(
        section: &KopiaSection,
        key: &str,
        variables: impl Iterator<Item = (String, String)>,
    ) -> Result<Self, ConfigError> {
        let mut keys = BTreeSet::from(["source", VOLUME, INSTANCE, NAME]);
        for tag in &section.tags {
            let at = |problem| Err(ConfigError::at(format!("{key}.tags"), problem));
            match tag.split_once(':') {
                Some((name, _)) if !name.is_empty() && !tag.contains('\0') => {
                    if !keys.insert(name) {
                        return at(
                            "the key of a tag is there twice, or is one of the driver's own",
                        );
                    }
                }
                _ => return at("a tag is not of the form `key:value`"),
            }
        }
        let lists = (&*section.global_flags, &*section.tags);
        let token = section.config_token.clone();
        Ok(Self {
            tool: ToolConfig::read(lists, &section.env, key, "KOPIA_", variables)?,
            token: token.filter(|token| !token.expose_secret().is_empty()),
        })
    }
}

// === impl Home ===

impl Home {
    fn make() -> std::io::Result<Self> {
        // Until it is locked, another connection of this process would take it for abandoned.
        static TURN: Mutex<()> = Mutex::new(());
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let top = std::env::temp_dir();
        Self::remove_abandoned(&top);
        let path = top.join(format!("{HOME}{}", random_digits()?));
        let mut folder = std::fs::DirBuilder::new();
        folder.mode(0o700).create(&path)?;
        let lock = File::create(path.join(HOME_LOCK))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Self { path, _lock: lock })
    }

    fn remove_abandoned(top: &Path) {
        let Ok(entries) = std::fs::read_dir(top) else {
            return;
        };
        for entry in entries.flatten() {
            let is_home = entry.file_name().to_string_lossy().starts_with(HOME);
            let Some(lock) = is_home
                .then(|| File::open(entry.path().join(HOME_LOCK)).ok())
                .flatten()
            else {
                continue;
            };
            if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
                remove(&entry.path());
            }
        }
    }

    /// Whether kopia finds its connection in there still.
    fn is_whole(&self) -> bool {
        self.path.join(CONFIG).exists()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

fn remove(path: &Path) {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            tracing::warn!(path = %path.display(), error = %error, "a folder of kopia stays");
        }
        _ => {}
    }
}

// === impl Printed ===

impl Printed {
    /// kopia puts `tag:` before the keys.
    fn tag(&self, key: &str) -> Option<&str> {
        self.tags.get(&format!("tag:{key}")).map(String::as_str)
    }

    fn is_ours(&self) -> bool {
        let source = SOURCE.split_once(':').and_then(|(key, _)| self.tag(key));
        source == Some(USER)
    }

    /// Whether it is of that instance, and of the volume and snapshot that it names.
    fn is_of(&self, instance: Option<&str>, volume: &VolumeDir, name: &str) -> bool {
        self.is_ours()
            && self.tag(INSTANCE) == instance
            && self.tag(VOLUME) == Some(volume.as_str())
            && self.tag(NAME) == Some(name)
    }

    fn summary(&self) -> Option<&Summary> {
        self.root_entry.as_ref()?.summ.as_ref()
    }

    /// Whether it says that it was cut or lacks files, or was never found whole.
    fn is_cut(&self) -> bool {
        let lacks = |summary: &Summary| summary.num_failed > 0 || summary.num_ignored_errors > 0;
        let is_pending = self.pins.iter().any(|pin| pin == PENDING);
        is_pending || !self.incomplete.is_empty() || self.summary().is_some_and(lacks)
    }

    /// The snapshot, if it is whole and has a name.
    fn named(&self) -> Option<Backup> {
        let summary = self.summary()?;
        if !self.is_ours() || self.is_cut() {
            return None;
        }
        Some(Backup {
            id: self.id.clone(),
            volume: VolumeDir::new(self.tag(VOLUME)?)?,
            name: self.tag(NAME)?.to_owned(),
            time: time(&self.start_time)?,
            path: self.source.path.clone(),
            size: Some(summary.size),
        })
    }
}

// === impl Kopia ===

impl Kopia {
    pub(crate) fn new(
        tools: Tools,
        config: KopiaConfig,
        instance: Option<String>,
        node: Option<&str>,
    ) -> Self {
        Self {
            tools,
            config,
            instance,
            host: node.map_or_else(
                || "omnibus-csi".into(),
                |node| format!("omnibus-csi-{node}"),
            ),
            home: tokio::sync::Mutex::default(),
        }
    }

    /// The place where kopia keeps what it has to know of the repository, which it is connected to.
    fn connected(&self, call: &Call) -> Result<Arc<Home>, Error> {
        let doing = "connecting to the repository of kopia";
        let turn = Handle::current().block_on(timeout_at(call.deadline(), self.home.lock()));
        let mut home = turn.map_err(|_| {
            Error::new(Kind::Timeout, doing).because("another call still tries to connect")
        })?;
        if let Some(home) = home.as_ref().filter(|home| home.is_whole()) {
            return Ok(Arc::clone(home));
        }
        let token = self.config.token.as_ref().ok_or_else(|| {
            Error::invalid(doing)
                .because("`snapshots.kopia.config_token` is missing")
                .advise("`kopia repository status -t -s` prints it")
        })?;
        let made = Home::make().map_err(|error| Error::new(Kind::Internal, doing).because(error));
        let made = Arc::new(made?);
        // Without that cache a repository that is gone is an error, and not an empty one for a quarter of an hour.
        let connect = Command::new(TOOL).args([
            "repository",
            "connect",
            "--disable-repository-format-cache",
            "--content-cache-size-limit-mb",
            CACHE_LIMIT,
            "--metadata-cache-size-limit-mb",
            CACHE_LIMIT,
        ]);
        let connect = self.applied(connect, &made, call).args([
            "--override-hostname",
            &self.host,
            "--override-username",
            USER,
            "from-config",
            "--token-stdin",
        ]);
        let connect = connect.secret_stdin(token.expose_secret());
        let connected = self.run(&connect).map(drop);
        connected.map_err(|error| failed(doing, Kind::Unreachable, error))?;
        *home = Some(Arc::clone(&made));
        Ok(made)
    }

    /// A command of kopia that needs the repository.
    fn command(&self, call: &Call, words: [&str; 2]) -> Result<Command, Error> {
        let home = self.connected(call)?;
        Ok(self.applied(Command::new(TOOL).args(words), &home, call))
    }

    /// The last value of a variable counts.
    fn applied(&self, command: Command, home: &Home, call: &Call) -> Command {
        let mut command = self.config.tool.applied(command.arg("--no-progress"), call);
        for (name, below) in [
            (Variable::constant("KOPIA_CONFIG_PATH"), CONFIG),
            (Variable::constant("KOPIA_CACHE_DIRECTORY"), "cache"),
            (Variable::constant("KOPIA_LOG_DIR"), "log"),
        ] {
            command = command.env(name, home.path.join(below).to_string_lossy());
        }
        command
            .env(Variable::constant("KOPIA_CHECK_FOR_UPDATES"), "false")
            .env(
                Variable::constant("KOPIA_PERSIST_CREDENTIALS_ON_CONNECT"),
                "true",
            )
    }

    fn run(&self, command: &Command) -> Result<Output, RunError> {
        Handle::current().block_on(self.tools.here().run_checked(command))
    }

    /// All that anything of ours or of democratic-csi has made, whole or not.
    fn all(&self, call: &Call) -> Result<Vec<Printed>, Error> {
        self.listed(call, &["--no-storage-stats", "--tags", SOURCE])
    }

    fn listed(&self, call: &Call, filter: &[&str]) -> Result<Vec<Printed>, Error> {
        let command = self.command(call, ["snapshot", "list"])?;
        let command = command.args(["--json", "--all"]);
        let command = command.args(filter.iter().copied());
        let output = self
            .run(&command)
            .map_err(|error| failed(LISTING, Kind::Internal, error))?;
        let said = String::from_utf8_lossy(&output.stderr);
        if let Some(line) = said.lines().find(|line| line.contains(LEFT_OUT)) {
            return Err(Error::new(Kind::Internal, LISTING)
                .because(format!("kopia could not read every snapshot: {line}")));
        }
        let printed: Option<Vec<Printed>> = parsed(LISTING, &output.stdout)?;
        Ok(printed.unwrap_or_default())
    }
}

impl Repository for Kopia {
    fn tool(&self) -> Tool {
        Tool::Kopia
    }

    fn location(&self) -> Option<&str> {
        self.config.token.as_ref().map(ExposeSecret::expose_secret)
    }

    fn id(&self, call: &Call) -> Result<Option<String>, Error> {
        let doing = "asking for the id of the repository of kopia";
        let command = self.command(call, ["repository", "status"])?.arg("--json");
        let output = self
            .run(&command)
            .map_err(|error| failed(doing, Kind::Internal, error))?;
        let status: RepositoryStatus = parsed(doing, &output.stdout)?;
        Ok(status.unique_id)
    }

    /// kopia cannot be connected to a repository that was never made.
    fn existing(&self, call: &Call) -> Result<Option<Vec<Backup>>, Error> {
        self.list(call).map(Some)
    }

    fn list(&self, call: &Call) -> Result<Vec<Backup>, Error> {
        let all = self.all(call)?;
        let own = |printed: &&Printed| printed.tag(INSTANCE) == self.instance.as_deref();
        Ok(sorted(
            all.iter().filter(own).filter_map(Printed::named).collect(),
        ))
    }

    fn get(&self, call: &Call, id: &BackupId) -> Result<Known, Error> {
        let mut printed = self.listed(call, &[])?.into_iter();
        let Some(found) = printed.find(|printed| printed.id == id.as_str()) else {
            return Ok(Known::Nothing);
        };
        Ok(match found.named() {
            Some(backup) => Known::Backup(backup),
            // compat: "kopia": democratic-csi gives such ids out.
            None if found.is_ours() && found.is_cut() => Known::Cut,
            None => Known::Unnamed,
        })
    }

    fn init(&self, _: &Call) -> Result<(), Error> {
        Ok(())
    }

    fn backup(
        &self,
        call: &Call,
        path: &str,
        (volume, name): (&VolumeDir, &NamePart),
        (doing, is_whole): (&str, &dyn Fn() -> Result<(), Error>),
    ) -> Result<Backup, Error> {
        self.forget_unfinished(call, (volume, name.as_str()))?;
        let mut tags = vec![
            SOURCE.to_owned(),
            format!("{VOLUME}:{volume}"),
            format!("{NAME}:{name}"),
        ];
        tags.extend(self.instance.as_ref().map(|id| format!("{INSTANCE}:{id}")));
        tags.extend(self.config.tool.tags.iter().cloned());
        let who = format!("{USER}@{}", self.host);
        let policy = self.command(call, ["policy", "set"])?.arg(who).args(POLICY);
        let policy = self.run(&policy).map(drop);
        policy.map_err(|error| failed(doing, Kind::Internal, error))?;
        let mut command = self.command(call, ["snapshot", "create"])?;
        for tag in &tags {
            command = command.args(["--tags", tag]);
        }
        let command = command.args(["--json", "--pin", PENDING, path]);
        call.changing();
        tracing::info!(doing, "kopia reads the volume");
        let made = match self.run(&command) {
            Ok(output) => parsed::<Printed>(doing, &output.stdout)?,
            Err(error) => {
                if error.exit_code().is_some() {
                    let _ = self.forget_unfinished(call, (volume, name.as_str()));
                }
                return Err(failed(doing, Kind::Internal, error));
            }
        };
        let lacks = |summary: &Summary| summary.num_failed > 0 || summary.num_ignored_errors > 0;
        if !made.incomplete.is_empty() || made.summary().is_none_or(lacks) {
            let _ = self.forget_unfinished(call, (volume, name.as_str()));
            return Err(Error::new(Kind::Internal, doing)
                .because("kopia could not read every file; there is no snapshot"));
        }
        if let Err(error) = is_whole() {
            // What stays of it has its pin, and is no snapshot.
            let _ = self.forget(call, &made.id);
            return Err(error);
        }
        let command = self.command(call, ["snapshot", "pin"])?;
        let command = command.args([&*made.id, "--add", PIN, "--remove", PENDING]);
        let pinned = self.run(&command).map(drop);
        pinned.map_err(|error| failed(doing, Kind::Internal, error))?;
        // The first one counts, if two processes have made one at the same time.
        let of_name = |backup: &Backup| backup.is_of(volume, name);
        let mut all = self.list(call)?;
        all.retain(of_name);
        let first = all.first().cloned().ok_or_else(|| {
            Error::new(Kind::Internal, doing).because("kopia does not find it by its tags")
        })?;
        // A change of the pins has given it another id. Others may have been handed out.
        let own = time(&made.start_time);
        for twin in all[1..].iter().filter(|twin| Some(twin.time) == own) {
            self.forget(call, &twin.id)?;
        }
        Ok(first)
    }

    fn size(&self, _: &Call, backup: &Backup) -> Result<u64, Error> {
        Ok(backup.size.unwrap_or_default())
    }

    fn restore(
        &self,
        call: &Call,
        backup: &Backup,
        target: &str,
        doing: &str,
    ) -> Result<String, Error> {
        let command = self.command(call, ["snapshot", "restore"])?;
        let command = command.args(["--write-sparse-files", &backup.id, target]);
        let restored = self.run(&command).map(drop);
        restored.map_err(|error| failed(doing, Kind::Internal, error))?;
        Ok(String::new())
    }

    fn forget(&self, call: &Call, id: &str) -> Result<(), Error> {
        let doing = format!("deleting snapshot {id}");
        let command = self
            .command(call, ["snapshot", "delete"])?
            .args(["--delete", id]);
        call.changing();
        match self.run(&command) {
            Ok(_) => Ok(()),
            Err(error) if says(&error, &NOT_THERE) => Ok(()),
            Err(error) => Err(failed(&doing, Kind::Internal, error)),
        }
    }

    fn forget_unfinished(
        &self,
        call: &Call,
        (volume, name): (&VolumeDir, &str),
    ) -> Result<(), Error> {
        let all = self.all(call)?;
        let mut left = all.iter().filter(|printed| {
            let is_meant = printed.is_of(self.instance.as_deref(), volume, name);
            is_meant && printed.is_cut()
        });
        left.try_for_each(|printed| self.forget(call, &printed.id))
    }
}

fn parsed<'a, T: Deserialize<'a>>(doing: &str, text: &'a [u8]) -> Result<T, Error> {
    serde_json::from_slice(text).map_err(|error| Error::new(Kind::Internal, doing).because(error))
}

/// The error of a command; `usual` if kopia says nothing that is known.
fn failed(doing: &str, usual: Kind, error: RunError) -> Error {
    let answer = match &error {
        RunError::NotFound { .. } => (
            Kind::Internal,
            Some("install kopia where the controller runs"),
        ),
        RunError::Deadline { .. } => (Kind::Timeout, None),
        _ if says(&error, &WRONG_LOGIN) => (
            Kind::Denied,
            Some("the password in `snapshots.kopia.config_token` is not that of the repository"),
        ),
        _ if says(&error, &WRONG_TOKEN) => (
            Kind::Invalid,
            Some("`snapshots.kopia.config_token` is what `kopia repository status -t -s` prints"),
        ),
        _ if says(&error, &NO_REPOSITORY) => (
            Kind::Unreachable,
            Some(
                "the repository is not where `snapshots.kopia.config_token` says: mount it, or reach it",
            ),
        ),
        _ => (usual, None),
    };
    failure(doing, answer, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn homes_that_are_made_at_once_are_not_taken_for_abandoned() {
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let home = Home::make().expect("a home");
                        assert!(home.path.join(HOME_LOCK).exists());
                    }
                });
            }
        });
    }
}
