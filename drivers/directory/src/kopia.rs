//! Snapshots in a repository of kopia, made and read by the real tool.
//!
//! compat: "kopia": the tags and ids are those of democratic-csi, so a repository can be used by both. kopia is
//! connected to its repository by the token, once for each driver; what it keeps of that is in a folder of this
//! process, which is removed with the driver.
//!
//! kopia writes what it says of a snapshot at its end. One that was cut, or that lacks files, says so itself and
//! is not a snapshot here.

#![expect(
    clippy::disallowed_methods,
    reason = "only threads that may block come here: all work of this driver is done there"
)]

use std::collections::BTreeMap;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use csi_types::Variable;
use driver_core::config::ConfigError;
use driver_core::{Call, Error, Kind};
use exec::{Command, Output, Program, RunError};
use node_utils::Tools;
use rustix::rand::{GetRandomFlags, getrandom};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use tokio::runtime::Handle;

use crate::backup::{Backup, Known, Repository, ToolConfig, failure, says, sorted, time};
use crate::base::hex;
use crate::id::{BackupId, NamePart, Tool, VolumeDir};

const TOOL: Program = Program::constant("kopia");
/// compat: "kopia": the user of every snapshot.
const USER: &str = "democratic-csi";
const SOURCE: &str = "source:democratic-csi";
/// The keys of the other tags. kopia puts `tag:` before them.
const VOLUME: &str = "csi_volume_id";
const INSTANCE: &str = "csi_instance_id";
const NAME: &str = "csi_snapshot_name";
/// kopia deletes what its policy does not keep, at the next snapshot of the same directory. A pin keeps it.
const PIN: &str = "csi";
const LISTING: &str = "looking for snapshots in the repository of kopia";
/// What kopia says of a snapshot that is not there.
const NOT_THERE: [&str; 3] = [
    "no snapshots matched",
    "invalid content hash",
    "invalid object ID",
];
const WRONG_LOGIN: [&str; 2] = ["invalid repository password", "unable to decrypt"];

/// `snapshots.kopia`, as it is written.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct KopiaSection {
    /// Where the repository is and its password, as `kopia repository status -t -s` prints it.
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
    /// What kopia keeps of its connection, once there is one.
    home: Mutex<Option<Arc<Home>>>,
}

/// A folder that only this user may read, removed with its last user.
#[derive(Debug)]
struct Home(PathBuf);

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
}

// === impl KopiaConfig ===

impl KopiaConfig {
    /// Checks the section; `variables` are those of the process.
    pub(crate) fn read(
        section: &KopiaSection,
        key: &str,
        variables: impl Iterator<Item = (String, String)>,
    ) -> Result<Self, ConfigError> {
        let is_tag = |tag: &String| {
            let parts = tag.split_once(':');
            parts.is_some_and(|(name, _)| !name.is_empty()) && !tag.contains('\0')
        };
        if !section.tags.iter().all(is_tag) {
            let problem = "a tag is not of the form `key:value`";
            return Err(ConfigError::at(format!("{key}.tags"), problem));
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
        let mut bytes = [0_u8; 8];
        getrandom(&mut bytes, GetRandomFlags::empty())?;
        let name = format!("omnibus-csi-kopia-{}", hex(&bytes));
        let path = std::env::temp_dir().join(name);
        let mut folder = std::fs::DirBuilder::new();
        folder.mode(0o700).create(&path)?;
        Ok(Self(path))
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!(path = %self.0.display(), error = %error, "a folder of kopia stays");
        }
    }
}

// === impl Printed ===

impl Printed {
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

    /// The snapshot, if it is whole and has a name.
    fn named(&self) -> Option<Backup> {
        let summary = self.root_entry.as_ref()?.summ.as_ref()?;
        if !self.is_ours() || !self.incomplete.is_empty() || summary.num_failed > 0 {
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
            home: Mutex::default(),
        }
    }

    /// Where kopia keeps what it has to know of the repository, which it is connected to.
    fn connected(&self, call: &Call) -> Result<Arc<Home>, Error> {
        let doing = "connecting to the repository of kopia";
        let mut home = self.home.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(home) = &*home {
            return Ok(Arc::clone(home));
        }
        let token = self.config.token.as_ref().ok_or_else(|| {
            Error::invalid(doing)
                .because("`snapshots.kopia.config_token` is missing")
                .advise("`kopia repository status -t -s` prints it")
        })?;
        let made = Home::make().map_err(|error| Error::new(Kind::Internal, doing).because(error));
        let made = Arc::new(made?);
        let connect = Command::new(TOOL).args(["repository", "connect"]);
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

    /// A command of `snapshot`.
    fn command(&self, call: &Call, verb: &str) -> Result<Command, Error> {
        let home = self.connected(call)?;
        let command = Command::new(TOOL).args(["snapshot", verb]);
        Ok(self.applied(command, &home, call))
    }

    fn applied(&self, mut command: Command, home: &Home, call: &Call) -> Command {
        for (name, below) in [
            (Variable::constant("KOPIA_CONFIG_PATH"), "repository.config"),
            (Variable::constant("KOPIA_CACHE_DIRECTORY"), "cache"),
            (Variable::constant("KOPIA_LOG_DIR"), "log"),
        ] {
            command = command.env(name, home.path().join(below).to_string_lossy());
        }
        let command = command
            .env(Variable::constant("KOPIA_CHECK_FOR_UPDATES"), "false")
            .arg("--no-progress");
        self.config.tool.applied(command, call)
    }

    fn run(&self, command: &Command) -> Result<Output, RunError> {
        Handle::current().block_on(self.tools.here().run_checked(command))
    }

    /// All that anything of ours or of democratic-csi has made, whole or not.
    fn all(&self, call: &Call) -> Result<Vec<Printed>, Error> {
        let command = self.command(call, "list")?;
        let command = command.args(["--json", "--all", "--no-storage-stats", "--tags", SOURCE]);
        let output = self
            .run(&command)
            .map_err(|error| failed(LISTING, Kind::Internal, error))?;
        let printed: Option<Vec<Printed>> = parsed(LISTING, &output.stdout)?;
        Ok(printed.unwrap_or_default())
    }
}

impl Repository for Kopia {
    fn tool(&self) -> Tool {
        Tool::Kopia
    }

    fn is_listed(&self) -> bool {
        self.config.token.is_some()
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
        let command = self.command(call, "list")?.args(["--json", "--all"]);
        let output = self
            .run(&command)
            .map_err(|error| failed(LISTING, Kind::Internal, error))?;
        let printed: Option<Vec<Printed>> = parsed(LISTING, &output.stdout)?;
        let mut printed = printed.unwrap_or_default().into_iter();
        let found = printed.find(|printed| printed.id == id.as_str());
        Ok(match found.map(|printed| printed.named()) {
            Some(Some(backup)) => Known::Backup(backup),
            Some(None) => Known::Unnamed,
            None => Known::Nothing,
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
        doing: &str,
    ) -> Result<Backup, Error> {
        self.forget_unfinished(call, path, (volume, name.as_str()))?;
        let mut tags = vec![
            SOURCE.to_owned(),
            format!("{VOLUME}:{volume}"),
            format!("{NAME}:{name}"),
        ];
        tags.extend(self.instance.as_ref().map(|id| format!("{INSTANCE}:{id}")));
        tags.extend(self.config.tool.tags.iter().cloned());
        let mut command = self.command(call, "create")?;
        for tag in &tags {
            command = command.args(["--tags", tag]);
        }
        let command = command.args(["--json", "--pin", PIN, path]);
        call.changing();
        tracing::info!(doing, "kopia reads the volume");
        let made = match self.run(&command) {
            Ok(output) => parsed::<Printed>(doing, &output.stdout)?,
            Err(error) => {
                if error.exit_code().is_some() {
                    let _ = self.forget_unfinished(call, path, (volume, name.as_str()));
                }
                return Err(failed(doing, Kind::Internal, error));
            }
        };
        made.named().ok_or_else(|| {
            Error::new(Kind::Internal, doing)
                .because("kopia could not read every file; there is no snapshot")
        })
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
        let command = self.command(call, "restore")?;
        let command = command.args(["--write-sparse-files", &backup.id, target]);
        let restored = self.run(&command).map(drop);
        restored.map_err(|error| failed(doing, Kind::Internal, error))?;
        Ok(String::new())
    }

    fn forget(&self, call: &Call, id: &str) -> Result<(), Error> {
        let doing = format!("deleting snapshot {id}");
        let command = self.command(call, "delete")?.args(["--delete", id]);
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
        path: &str,
        (volume, name): (&VolumeDir, &str),
    ) -> Result<(), Error> {
        let all = self.all(call)?;
        let left = all.iter().filter(|printed| {
            let is_meant = printed.is_of(self.instance.as_deref(), volume, name);
            is_meant && printed.source.path == path && printed.named().is_none()
        });
        left.into_iter()
            .try_for_each(|printed| self.forget(call, &printed.id))
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
        _ => (usual, None),
    };
    failure(doing, answer, error)
}
