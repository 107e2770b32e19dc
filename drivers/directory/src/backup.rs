//! Snapshots in a repository that a tool keeps, restic or kopia.
//!
//! All methods of a [`Repository`] block, on a thread of the runtime that may.

use std::collections::BTreeMap;
use std::fmt::{self, Debug};
use std::time::{Duration, SystemTime};

use csi_types::Variable;
use driver_core::config::ConfigError;
use driver_core::{Call, Error, Kind, civil};
use exec::{Command, RunError};
use secrecy::{ExposeSecret as _, SecretString};

use crate::id::{BackupId, NamePart, Tool, VolumeDir};

/// The keys of the tags of a snapshot. compat: "restic".
pub(crate) const VOLUME: &str = "csi_volume_id";
pub(crate) const INSTANCE: &str = "csi_instance_id";
pub(crate) const NAME: &str = "csi_snapshot_name";
/// More than a tool prints of a snapshot, times many of them.
const OUTPUT_CAP: usize = 256 << 20;
/// Variables of the process that the tools and their stores read, beside those of the tool itself.
/// compat: "restic": those of the configuration win.
const OF_THE_PROCESS: [&str; 14] = [
    "AWS_",
    "AZURE_",
    "B2_",
    "GOOGLE_",
    "OS_",
    "ST_",
    "RCLONE_",
    "HOME",
    "XDG_CACHE_HOME",
    "TMPDIR",
    "HTTP",
    "NO_PROXY",
    "GOMEMLIMIT",
    "GOGC",
];
/// How much memory a tool is to use: Go frees memory more often from there on.
const MEMORY_LIMIT: Variable = Variable::constant("GOMEMLIMIT");
/// The limit of the memory of this container.
const CONTAINER_LIMIT: &str = "/sys/fs/cgroup/memory.max";

/// What a tool knows of a snapshot is in its repository, and nowhere else.
pub(crate) trait Repository: Debug + Send + Sync {
    /// The tool.
    fn tool(&self) -> Tool;

    /// Whether its snapshots are listed: something says where the repository is.
    fn is_listed(&self) -> bool {
        self.location().is_some()
    }

    /// A text that tells this repository from others, if something says where it is. It may hold a secret.
    fn location(&self) -> Option<&str>;

    /// The id that the repository got when it was made; `None` if the tool does not say it.
    fn id(&self, call: &Call) -> Result<Option<String>, Error>;

    /// Every snapshot of this instance that has a name, the oldest first; `None` if the repository was never
    /// made.
    fn existing(&self, call: &Call) -> Result<Option<Vec<Backup>>, Error>;

    /// The same, and an error where there is no repository: nothing is known of its snapshots.
    fn list(&self, call: &Call) -> Result<Vec<Backup>, Error>;

    /// The snapshot that has that id, of whichever instance.
    fn get(&self, call: &Call, id: &BackupId) -> Result<Known, Error>;

    /// Makes the repository, unless it is there.
    fn init(&self, call: &Call) -> Result<(), Error>;

    /// Makes a snapshot of the directory `path` and returns it, whole and with its name. There is none if, after
    /// all was read, `is_whole` fails.
    fn backup(
        &self,
        call: &Call,
        path: &str,
        of: (&VolumeDir, &NamePart),
        how: (&str, &dyn Fn() -> Result<(), Error>),
    ) -> Result<Backup, Error>;

    /// The bytes that a restore writes.
    fn size(&self, call: &Call, backup: &Backup) -> Result<u64, Error>;

    /// Writes a snapshot to the directory `target`; what was restored is then in there, at the path that is
    /// returned.
    fn restore(
        &self,
        call: &Call,
        backup: &Backup,
        target: &str,
        doing: &str,
    ) -> Result<String, Error>;

    /// Forgets a snapshot. One that is not there is forgotten.
    fn forget(&self, call: &Call, id: &str) -> Result<(), Error>;

    /// Forgets what an earlier call did not finish.
    fn forget_unfinished(&self, call: &Call, of: (&VolumeDir, &str)) -> Result<(), Error>;
}

/// What a repository has under an id.
#[derive(Debug)]
pub(crate) enum Known {
    Nothing,
    /// Without the tags of a snapshot of a volume: another program's, or not whole.
    Unnamed,
    /// Made for a volume, and without all of its files.
    Cut,
    Backup(Backup),
}

/// A snapshot of a volume, whole and with a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Backup {
    pub(crate) id: String,
    pub(crate) volume: VolumeDir,
    pub(crate) name: String,
    pub(crate) time: SystemTime,
    /// The directory that it was made of.
    pub(crate) path: String,
    /// The bytes that a restore writes, if the tool lists them.
    pub(crate) size: Option<u64>,
}

/// The settings that the sections of both tools have, checked. Never prints a value of the environment.
#[derive(Clone, Default)]
pub(crate) struct ToolConfig {
    pub(crate) global_flags: Vec<String>,
    pub(crate) tags: Vec<String>,
    pub(crate) env: BTreeMap<Variable, SecretString>,
    /// The value of GOMEMLIMIT where nothing else sets it.
    memory_limit: Option<String>,
}

// === impl Backup ===

impl Backup {
    pub(crate) fn is_of(&self, volume: &VolumeDir, name: &NamePart) -> bool {
        self.volume == *volume && self.name == name.as_str()
    }

    /// Its place in the list.
    pub(crate) fn key(&self) -> String {
        let since = self.time.duration_since(SystemTime::UNIX_EPOCH);
        format!("{:032x}-{}", since.unwrap_or_default().as_nanos(), self.id)
    }
}

/// Sorts them by their places in the list.
pub(crate) fn sorted(mut backups: Vec<Backup>) -> Vec<Backup> {
    backups.sort_by(|one, other| (one.time, &one.id).cmp(&(other.time, &other.id)));
    backups
}

// === impl ToolConfig ===

impl fmt::Debug for ToolConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolConfig")
            .field("env", &self.env.keys())
            .finish_non_exhaustive()
    }
}

impl ToolConfig {
    /// Checks `env` and what else is at `key`; `variables` are those of the process, of which the tool gets its
    /// own, which begin with `own`.
    pub(crate) fn read(
        (global_flags, tags): (&[String], &[String]),
        env: &BTreeMap<String, Option<SecretString>>,
        key: &str,
        own: &str,
        variables: impl Iterator<Item = (String, String)>,
    ) -> Result<Self, ConfigError> {
        let inherited = variables.filter(|(name, _)| {
            let upper = name.to_ascii_uppercase();
            upper.starts_with(own) || OF_THE_PROCESS.iter().any(|head| upper.starts_with(head))
        });
        let mut checked: BTreeMap<_, _> = inherited
            .filter_map(|(name, value)| {
                Some((Variable::parse(name).ok()?, SecretString::from(value)))
            })
            .collect();
        for (name, value) in env {
            let at = |problem: String| ConfigError::at(format!("{key}.env"), problem);
            let Some(value) = value else { continue };
            let name = Variable::parse(name.clone()).map_err(|error| at(error.to_string()))?;
            if value.expose_secret().contains('\0') {
                return Err(at(format!("`{name}` holds a NUL byte")));
            }
            checked.insert(name, value.clone());
        }
        if global_flags.iter().any(|flag| flag.contains('\0')) {
            let problem = "a flag holds a NUL byte";
            return Err(ConfigError::at(format!("{key}.global_flags"), problem));
        }
        Ok(Self {
            global_flags: global_flags.to_vec(),
            tags: tags.to_vec(),
            env: checked,
            memory_limit: std::fs::read_to_string(CONTAINER_LIMIT)
                .ok()
                .and_then(|limit| share_of(&limit)),
        })
    }

    /// Whether the environment has one of these.
    pub(crate) fn has_any(&self, names: &[&'static str]) -> bool {
        let mut names = names.iter();
        names.any(|name| self.env.contains_key(&Variable::constant(name)))
    }

    /// The command with the flags and the environment that are configured, and the time of the call.
    pub(crate) fn applied(&self, mut command: Command, call: &Call) -> Command {
        for flag in &self.global_flags {
            command = command.arg(flag.as_str());
        }
        if let Some(limit) = &self.memory_limit {
            command = command.env(MEMORY_LIMIT, limit);
        }
        for (name, value) in &self.env {
            command = command.secret_env(name.clone(), value.clone());
        }
        command
            .within(call.remaining())
            .with_output_cap(OUTPUT_CAP)
            .with_call_start(call.began())
    }
}

/// The share that one tool may have of the memory of the container: two run at the same time now and then, beside
/// this process.
fn share_of(limit: &str) -> Option<String> {
    let limit: u64 = limit.trim().parse().ok()?;
    Some((limit / 3).to_string())
}

/// The error of a command.
pub(crate) fn failure(doing: &str, (kind, advice): (Kind, Option<&str>), error: RunError) -> Error {
    let failed = error.while_doing(kind, doing);
    match advice {
        Some(advice) => failed.advise(advice),
        None => failed,
    }
}

/// Whether a command printed one of these as an error.
pub(crate) fn says(error: &RunError, texts: &[&str]) -> bool {
    texts.iter().any(|text| error.stderr().contains(text))
}

/// Reads a time as RFC 3339 writes it: `2026-11-25T23:22:51.291366555+01:00`.
pub(crate) fn time(text: &str) -> Option<SystemTime> {
    let number = |range: std::ops::Range<usize>| {
        let digits = text.get(range)?;
        digits.bytes().all(|b| b.is_ascii_digit()).then_some(())?;
        digits.parse::<i64>().ok()
    };
    let date = [number(0..4)?, number(5..7)?, number(8..10)?];
    let clock = [number(11..13)?, number(14..16)?, number(17..19)?];
    let rest = text.get(19..)?;
    let zone = rest.find(['Z', '+', '-'])?;
    let (fraction, zone) = rest.split_at(zone);
    let mut nanos = fraction.trim_start_matches('.').to_owned();
    nanos.truncate(9);
    while nanos.len() < 9 {
        nanos.push('0');
    }
    let offset = match zone.split_at(1) {
        ("Z", _) => 0,
        (sign, of) => {
            let (hours, minutes) = of.split_once(':')?;
            let seconds = hours.parse::<i64>().ok()? * 3600 + minutes.parse::<i64>().ok()? * 60;
            if sign == "-" { -seconds } else { seconds }
        }
    };
    let since = Duration::new(civil::seconds(date, clock, offset)?, nanos.parse().ok()?);
    Some(SystemTime::UNIX_EPOCH + since)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_gets_a_third_of_the_memory_of_the_container_unless_the_configuration_says_more() {
        assert_eq!(share_of("268435456\n").as_deref(), Some("89478485"));
        assert_eq!(share_of("max\n"), None);
        let call = Call::within(Duration::from_secs(1));
        let said = |env: &[(&str, &str)]| {
            let env = env.iter().map(|(name, value)| {
                (
                    (*name).to_owned(),
                    Some(SecretString::from((*value).to_owned())),
                )
            });
            let none = std::iter::empty();
            let config = ToolConfig::read((&[], &[]), &env.collect(), "restic", "RESTIC_", none);
            let config = ToolConfig {
                memory_limit: Some("100".to_owned()),
                ..config.expect("config")
            };
            let command = config.applied(Command::new(exec::Program::constant("restic")), &call);
            let last = command
                .environment()
                .iter()
                .rev()
                .find(|(name, _)| *name == MEMORY_LIMIT);
            last.map(|(_, value)| value.expose().to_owned())
        };
        assert_eq!(said(&[]).as_deref(), Some("100"));
        assert_eq!(said(&[("GOMEMLIMIT", "1GiB")]).as_deref(), Some("1GiB"));
    }
}
