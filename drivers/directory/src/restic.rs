//! Snapshots in a repository of restic, made and read by the real tool.
//!
//! compat: "restic": the command lines, tags and ids are those of democratic-csi, so a repository can be used by
//! both. A backup gets the name of its snapshot only after restic has read every file; one that was cut has
//! no name and is not a snapshot. It carries the name that it was made for in a tag of its own, by which a retry
//! finds and forgets it.

#![expect(
    clippy::disallowed_methods,
    reason = "only threads that may block come here: all work of this driver is done there"
)]

mod config;
mod snapshot;
#[cfg(test)]
mod tests;

use std::time::Duration;

use driver_core::{Backoff, Call, Error, Kind};
use exec::{Accept, Command, Output, Program, RunError, Variable};
use node_utils::Tools;
use serde::Deserialize;
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::backup::{Backup, INSTANCE, Known, NAME, Repository, VOLUME, failure, says, sorted};
use crate::id::{BackupId, NamePart, Tool, VolumeDir};
pub(crate) use config::ResticConfig;
pub use config::ResticSection;
use snapshot::{CREATED_BY, PENDING, SIZE};

const TOOL: Program = Program::constant("restic");
/// compat: "restic": what democratic-csi calls the host, because a variable of it is never set.
const HOST: &str = "undefined";
/// The pauses before a locked repository is tried again. A short backup holds its lock for a second or two, a long one
/// for minutes.
const WAITS: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(10));
/// The interval at which the progress of a backup is logged. Backups take minutes to hours.
const PROGRESS: Duration = Duration::from_secs(30);
/// The message of restic about a repository that was never made.
const NO_CONFIG: &str = "unable to open config file";
/// Why it cannot open it, as the stores say it. Anything else, such as a refused login, says nothing of it.
const NO_REPOSITORY: [&str; 4] = [
    "no such file or directory",
    "does not exist",
    "doesn't exist",
    "404 Not Found",
];
/// What it says where one is, to a request to make one.
const EXISTS: [&str; 2] = ["already exists", "already initialized"];
/// What it says of data that the repository should have. Some of it is printed for each try.
const LOST_PACKS: [&str; 6] = [
    "Load(<data/",
    "ReadFull(<data/",
    "StreamPack",
    "unable to load tree",
    "not found in repository",
    "blob not found",
];
/// What is done, for errors.
const LISTING: &str = "looking for snapshots in the repository of restic";
const LOCKED: &str = "already locked";
const NO_MATCH: &str = "no matching ID found";
/// Exit codes of restic since 0.17, and the one of an incomplete backup.
const INCOMPLETE: i32 = 3;
const IS_MISSING: i32 = 10;
const IS_LOCKED: i32 = 11;
/// Errors of a restore that concern what a share may not be able to keep: owners, modes, times, attributes.
const OF_METADATA: [&str; 6] = [
    "lchown",
    "chmod",
    "xattr",
    "utimes",
    "UtimesNano",
    "listxattr",
];
/// The first version that writes holes.
const SPARSE: (u32, u32) = (0, 15);

/// A repository, and the tool that knows it.
#[derive(Debug)]
pub(crate) struct Restic {
    tools: Tools,
    config: ResticConfig,
    instance: Option<String>,
}

/// The lines that a backup prints.
#[derive(Debug, Deserialize)]
struct Message {
    #[serde(rename = "message_type")]
    kind: String,
    #[serde(default)]
    percent_done: f64,
    #[serde(default)]
    bytes_done: u64,
    #[serde(default)]
    snapshot_id: String,
    #[serde(default)]
    total_bytes_processed: u64,
}

#[derive(Debug, Deserialize)]
struct RepositoryConfig {
    id: String,
}

#[derive(Debug, Deserialize)]
struct Stats {
    total_size: u64,
}

impl Restic {
    pub(crate) fn new(tools: Tools, config: ResticConfig, instance: Option<String>) -> Self {
        Self {
            tools,
            config,
            instance,
        }
    }

    /// The snapshot of that name.
    fn find(
        &self,
        call: &Call,
        (volume, name): (&VolumeDir, &NamePart),
    ) -> Result<Option<Backup>, Error> {
        let mut all = self.list(call)?;
        all.retain(|backup| backup.is_of(volume, name));
        // The first one counts, if two processes have made one at the same time.
        Ok(all.into_iter().next())
    }

    /// Every snapshot of this instance that has a name; the inner error is that of the command.
    fn tagged(&self, call: &Call) -> Result<Result<Vec<Backup>, RunError>, Error> {
        let text = match self.listed(call, &["--tag", CREATED_BY])? {
            Ok(text) => text,
            Err(error) => return Ok(Err(error)),
        };
        let own = |instance: Option<&str>| instance == self.instance.as_deref();
        Ok(Ok(sorted(parsed(snapshot::read(&text, own))?)))
    }

    fn listed(&self, call: &Call, arguments: &[&str]) -> Result<Result<Vec<u8>, RunError>, Error> {
        let command = self.command(call, "snapshots").arg("--no-lock");
        let command = command.args(arguments.iter().copied());
        match self.run(call, &command) {
            Ok(output) => done(LISTING, &command, output).map(|output| Ok(output.stdout)),
            Err(error) if says(&error, &[NO_MATCH]) => Ok(Ok(b"[]".to_vec())),
            Err(error) => Ok(Err(error)),
        }
    }

    /// Whether the tool is installed, and new enough to write holes.
    fn writes_holes(&self, call: &Call) -> Result<bool, Error> {
        let command = Command::new(TOOL).arg("version").within(call.remaining());
        let output = self
            .run(call, &command)
            .map_err(|error| failed("asking restic for its version", error))?;
        Ok(version(&output.text()).is_none_or(|version| version >= SPARSE))
    }

    /// The ids of backups that have these tags, whether or not they have a name.
    fn unnamed(&self, call: &Call, tags: &str) -> Result<Vec<String>, Error> {
        let all = self.listed(call, &["--tag", tags])?;
        parsed(snapshot::ids(&all.map_err(|error| failed(LISTING, error))?))
    }

    /// The tags of every snapshot of a volume. compat: "restic": without a comma before the instance.
    fn tags(&self, volume: &VolumeDir) -> String {
        let instance = self.instance.as_deref();
        let instance = instance.map_or_else(String::new, |id| format!("{INSTANCE}={id}"));
        format!("{CREATED_BY},{VOLUME}={volume}{instance}")
    }

    fn command(&self, call: &Call, verb: &str) -> Command {
        let mut command = Command::new(TOOL)
            .args([verb, "--json"])
            .env(Variable::constant("RESTIC_PROGRESS_FPS"), "1");
        if self.config.has_no_home() {
            let cache = std::env::temp_dir().join("restic-cache");
            command = command.env(
                Variable::constant("RESTIC_CACHE_DIR"),
                cache.to_string_lossy(),
            );
        }
        self.config.tool.applied(command, call)
    }

    /// Runs a command to its end.
    fn run(&self, call: &Call, command: &Command) -> Result<Output, RunError> {
        self.unlocked(call, command, &async |command: &Command| {
            self.tools.here().run_checked(command).await
        })
    }

    /// Runs a backup, logs how far it is, and returns the id and the size of what it made.
    fn run_with_progress(
        &self,
        call: &Call,
        command: &Command,
        doing: &str,
    ) -> Result<(String, u64), RunError> {
        self.unlocked(call, command, &async |command: &Command| {
            self.follow(command, doing).await
        })
    }

    /// Tries a command again while another process has locked the repository, and removes locks of processes that
    /// are gone.
    fn unlocked<T>(
        &self,
        call: &Call,
        command: &Command,
        attempt: &impl AsyncFn(&Command) -> Result<T, RunError>,
    ) -> Result<T, RunError> {
        Handle::current().block_on(async {
            let mut backoff = WAITS;
            loop {
                let pause = backoff.pause();
                let command = command.clone().within(call.remaining());
                match attempt(&command).await {
                    Err(error) if is_locked(&error) && call.remaining() > pause => {}
                    ended => return ended,
                }
                let unlock = self.command(call, "unlock");
                // If it fails, the pause may still be enough.
                if let Err(error) = self.tools.here().perform(&unlock).await {
                    tracing::debug!(error = %error, "the repository cannot be unlocked");
                }
                tokio::time::sleep(pause).await;
            }
        })
    }

    async fn follow(&self, command: &Command, doing: &str) -> Result<(String, u64), RunError> {
        let mut stream = self.tools.here().stream_output(command).await?;
        let (mut rest, mut said) = (Vec::new(), Instant::now());
        let mut made = (String::new(), 0);
        while let Some(chunk) = stream.next().await? {
            rest.extend(chunk);
            while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = rest.drain(..=end).collect();
                let Ok(message) = serde_json::from_slice::<Message>(&line) else {
                    continue;
                };
                match &*message.kind {
                    "summary" => made = (message.snapshot_id, message.total_bytes_processed),
                    "status" if said.elapsed() >= PROGRESS => {
                        said = Instant::now();
                        let percent = format!("{:.1}", message.percent_done * 100.0);
                        let bytes = message.bytes_done;
                        tracing::info!(doing, percent, bytes, "restic reads the volume");
                    }
                    _ => {}
                }
            }
        }
        Ok(made)
    }
}

impl Repository for Restic {
    fn tool(&self) -> Tool {
        Tool::Restic
    }

    fn location(&self) -> Option<&str> {
        self.config.location()
    }

    fn id(&self, call: &Call) -> Result<Option<String>, Error> {
        let doing = "asking for the id of the repository of restic";
        let command = self.command(call, "cat").args(["--no-lock", "config"]);
        let output = self
            .run(call, &command)
            .map_err(|error| failed(doing, error))?;
        let config: RepositoryConfig = serde_json::from_slice(&output.stdout)
            .map_err(|error| Error::new(Kind::Internal, doing).because(error))?;
        Ok(Some(config.id))
    }

    fn existing(&self, call: &Call) -> Result<Option<Vec<Backup>>, Error> {
        match self.tagged(call)? {
            Ok(backups) => Ok(Some(backups)),
            Err(error) if is_missing(&error) => Ok(None),
            Err(error) => Err(failed("opening the repository of restic", error)),
        }
    }

    fn list(&self, call: &Call) -> Result<Vec<Backup>, Error> {
        // Of a repository that is not there nothing is known; only a new snapshot makes it.
        let listed = self.tagged(call)?;
        listed.map_err(|error| failed(LISTING, error))
    }

    fn get(&self, call: &Call, id: &BackupId) -> Result<Known, Error> {
        let text = self.listed(call, &[id.as_str()])?;
        let text = text.map_err(|error| failed(LISTING, error))?;
        // The id may be the beginning of one.
        let named = parsed(snapshot::read(&text, |_| true))?.into_iter().next();
        Ok(match named {
            Some(backup) => Known::Backup(backup),
            None if parsed(snapshot::ids(&text))?.is_empty() => Known::Nothing,
            None => Known::Unnamed,
        })
    }

    fn init(&self, call: &Call) -> Result<(), Error> {
        let command = self.command(call, "init");
        match self.run(call, &command) {
            Ok(_) => Ok(()),
            Err(error) if says(&error, &EXISTS) => Ok(()),
            Err(error) => Err(failed("making the repository of restic", error)),
        }
    }

    fn backup(
        &self,
        call: &Call,
        path: &str,
        (volume, name): (&VolumeDir, &NamePart),
        (doing, is_whole): (&str, &dyn Fn() -> Result<(), Error>),
    ) -> Result<Backup, Error> {
        let pending = format!("{PENDING}={name}");
        let cut = format!("{},{pending}", self.tags(volume));
        self.forget_unfinished(call, (volume, name.as_str()))?;
        call.changing();
        let command = self.command(call, "backup").args([
            "--host",
            HOST,
            "--one-file-system",
            "--tag",
            &cut,
            path,
        ]);
        let (made, size) = match self.run_with_progress(call, &command, doing) {
            Ok(made) => made,
            Err(error) => {
                if error.exit_code() == Some(INCOMPLETE) {
                    for left in self.unnamed(call, &cut).unwrap_or_default() {
                        let _ = self.forget(call, &left);
                    }
                    return Err(failed(doing, error)
                        .advise("restic could not read every file; there is no snapshot"));
                }
                return Err(failed(doing, error));
            }
        };
        // Without its tags it is no snapshot.
        if let Err(error) = is_whole() {
            let _ = self.forget_unfinished(call, (volume, name.as_str()));
            return Err(error);
        }
        let mut add = format!("{NAME}={name},{SIZE}={size}");
        for tag in &self.config.tool.tags {
            add = format!("{add},{tag}");
        }
        let command = self.command(call, "tag").args([
            "--path", path, "--host", HOST, "--add", &add, "--remove", &pending, &made,
        ]);
        let tagged = self.run(call, &command).map(drop);
        tagged.map_err(|error| failed(doing, error))?;
        self.find(call, (volume, name))?.ok_or_else(|| {
            Error::new(Kind::Internal, doing)
                .because("restic has tagged the backup, and does not find it by its tags")
        })
    }

    fn size(&self, call: &Call, backup: &Backup) -> Result<u64, Error> {
        if let Some(size) = backup.size {
            return Ok(size);
        }
        let id = backup.id.as_str();
        let doing = format!("measuring snapshot {id}");
        let command = self.command(call, "stats").args(["--no-lock", id]);
        let output = self
            .run(call, &command)
            .map_err(|error| failed(&doing, error))?;
        let stats: Stats = serde_json::from_slice(&output.stdout)
            .map_err(|error| Error::new(Kind::Internal, doing).because(error))?;
        Ok(stats.total_size)
    }

    fn restore(
        &self,
        call: &Call,
        backup: &Backup,
        target: &str,
        doing: &str,
    ) -> Result<String, Error> {
        let mut command =
            self.command(call, "restore")
                .args(["--no-lock", &backup.id, "--target", target]);
        if self.writes_holes(call)? {
            command = command.arg("--sparse");
        }
        // An error shows only the ends of a long text; each line of it counts here.
        let judged = command.clone().accepting(Accept::Codes(vec![1]));
        let output = self
            .run(call, &judged)
            .map_err(|error| failed(doing, error))?;
        let is_whole = only_metadata(&String::from_utf8_lossy(&output.stderr), target);
        match output.check(&command) {
            Ok(_) => Ok(backup.path.clone()),
            Err(error) if is_whole => {
                let why = error.stderr().lines().next().unwrap_or_default().to_owned();
                tracing::warn!(
                    doing,
                    error = why,
                    "restored, except for attributes that cannot be kept here"
                );
                Ok(backup.path.clone())
            }
            Err(error) => Err(failed(doing, error)),
        }
    }

    fn forget(&self, call: &Call, id: &str) -> Result<(), Error> {
        let mut command = self.command(call, "forget");
        if self.config.prune {
            command = command.arg("--prune");
        }
        call.changing();
        let (command, doing) = (command.arg(id), format!("deleting snapshot {id}"));
        match self.run(call, &command) {
            Ok(output) => done(&doing, &command, output).map(drop),
            Err(error) if says(&error, &[NO_MATCH]) => Ok(()),
            Err(error) => Err(failed(&doing, error)),
        }
    }

    fn forget_unfinished(
        &self,
        call: &Call,
        (volume, name): (&VolumeDir, &str),
    ) -> Result<(), Error> {
        let tags = format!("{},{PENDING}={name}", self.tags(volume));
        let left = self.unnamed(call, &tags)?;
        left.iter().try_for_each(|id| self.forget(call, id))
    }
}

fn parsed<T>(read: Result<T, serde_json::Error>) -> Result<T, Error> {
    read.map_err(|error| Error::new(Kind::Internal, LISTING).because(error))
}

fn is_locked(error: &RunError) -> bool {
    error.exit_code() == Some(IS_LOCKED) || says(error, &[LOCKED])
}

/// Whether there is no repository, as far as restic can tell.
fn is_missing(error: &RunError) -> bool {
    error.exit_code() == Some(IS_MISSING)
        || says(error, &[NO_CONFIG]) && says(error, &NO_REPOSITORY)
}

/// What a command printed, unless it left out a snapshot that it could not read: restic exits with zero then.
fn done(doing: &str, command: &Command, output: Output) -> Result<Output, Error> {
    let said = command.scrub(&String::from_utf8_lossy(&output.stderr));
    match said.lines().find(|line| leaves_out(line)) {
        None => Ok(output),
        Some(line) => Err(Error::new(Kind::Internal, doing)
            .because(format!("restic could not read every snapshot: {line}"))
            .advise("see `restic check`")),
    }
}

fn leaves_out(line: &str) -> bool {
    line.contains("Ignoring ") && !line.contains(NO_MATCH) || line.contains("could not load")
}

/// Whether a restore to `target` failed in nothing but what the filesystem cannot keep.
///
/// Only if every error is in the text: their number is in the last line.
fn only_metadata(said: &str, target: &str) -> bool {
    let errors = said
        .lines()
        .filter_map(|line| line.strip_prefix("ignoring error for "));
    let (mut of_metadata, mut all) = (0_u64, 0_u64);
    for error in errors {
        all += 1;
        of_metadata += u64::from(is_of_metadata(error, target));
    }
    let count = said.rsplit_once("There were ").and_then(|(_, end)| {
        let count = end.split(' ').next()?;
        count.parse::<u64>().ok()
    });
    all > 0 && of_metadata == all && count == Some(all)
}

/// `<location>: <operation> <target><location>: <cause>`, or `<location>: <operation>: <cause>`.
///
/// A location may hold any text, also that of an error; but only one at a path below the target counts.
fn is_of_metadata(error: &str, target: &str) -> bool {
    error.match_indices(": ").any(|(at, colon)| {
        let said = &error[at + colon.len()..];
        let Some((operation, of)) = said.split_once(' ') else {
            return false;
        };
        let is_metadata = OF_METADATA.iter().any(|word| operation.contains(word));
        is_metadata
            && !operation.contains('/')
            && (of.starts_with(target) || !error.contains(target))
    })
}

/// `restic 0.14.0 compiled with …`
fn version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.strip_prefix("restic ")?.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn failed(doing: &str, error: RunError) -> Error {
    let answer = match &error {
        RunError::NotFound { .. } => (
            Kind::Internal,
            Some("install restic where the controller runs"),
        ),
        RunError::Deadline { .. } => (Kind::Timeout, None),
        _ if is_locked(&error) => (
            Kind::Pending,
            Some("another process has locked the repository; see `restic list locks`"),
        ),
        _ if says(&error, &["wrong password", "no key found"]) => (
            Kind::Denied,
            Some("the password in `snapshots.restic.env` is not that of the repository"),
        ),
        _ if is_missing(&error) => (
            Kind::Unreachable,
            Some(
                "there is no repository at RESTIC_REPOSITORY: if it should be there, mount it or mend its address",
            ),
        ),
        _ if says(&error, &[NO_CONFIG]) => (
            Kind::Unreachable,
            Some("the repository at RESTIC_REPOSITORY cannot be opened"),
        ),
        _ if says(&error, &LOST_PACKS) => (
            Kind::Internal,
            Some(
                "packs of the repository are lost or cannot be read: `restic check` names them, and a copy of the \
                 repository may still have them",
            ),
        ),
        _ => (Kind::Internal, None),
    };
    failure(doing, answer, error)
}
