//! What is to be tried, checked as a whole before anything is begun.
//!
//! Secrets are secret from here on; they are told to the server and to nobody else.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use csi_proto::v1::volume_capability::access_mode::Mode;
use csi_proto::v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use csi_proto::v1::{CapacityRange, VolumeCapability};
use secrecy::{ExposeSecret, SecretString};

use super::flags::{AccessFlag, Flags};

/// Secrets are short; what is longer is another file.
const MAX_SECRETS: u64 = 1 << 20;

/// What is to be tried.
#[derive(Debug)]
pub(super) struct Trial {
    pub(super) name: TrialName,
    pub(super) config: Option<PathBuf>,
    pub(super) size: Size,
    pub(super) access: AccessFlag,
    pub(super) patience: Duration,
    pub(super) keep: bool,
    pub(super) parameters: BTreeMap<String, String>,
    pub(super) snapshot_parameters: BTreeMap<String, String>,
    fs_type: String,
    secrets: BTreeMap<String, SecretString>,
}

/// The name that everything of one trial begins with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TrialName(String);

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Size(pub(super) i64);

// === impl Trial ===

impl Trial {
    /// Checks the flags; says everything that is wrong with them.
    pub(super) fn from_flags(flags: &Flags) -> Result<Self, Vec<String>> {
        let mut problems = Vec::new();
        let mut check = |flag: &str, problem: String| problems.push(format!("--{flag}: {problem}"));
        let size = flags
            .size
            .parse::<Size>()
            .map_err(|problem| check("size", problem));
        let parameters = pairs(&flags.parameters).map_err(|problem| check("parameter", problem));
        let snapshot_parameters = pairs(&flags.snapshot_parameters)
            .map_err(|problem| check("snapshot-parameter", problem));
        let secrets = flags
            .secrets_file
            .as_deref()
            .map_or(Ok(BTreeMap::new()), secrets);
        let secrets = secrets.map_err(|problem| check("secrets-file", problem));
        if flags.fs_type.is_some() && flags.access == AccessFlag::Block {
            check("fs-type", "a raw device has no filesystem".to_owned());
        }
        match (size, parameters, snapshot_parameters, secrets) {
            (Ok(size), Ok(parameters), Ok(snapshot_parameters), Ok(secrets))
                if problems.is_empty() =>
            {
                Ok(Self {
                    name: TrialName::new(),
                    config: flags.driver_config_file.clone(),
                    size,
                    access: flags.access,
                    patience: Duration::from_secs(flags.timeout),
                    keep: flags.keep,
                    parameters,
                    snapshot_parameters,
                    fs_type: flags.fs_type.clone().unwrap_or_default(),
                    secrets,
                })
            }
            _ => Err(problems),
        }
    }

    /// How the volume is used.
    pub(super) fn capability(&self) -> VolumeCapability {
        let access = match self.access {
            AccessFlag::Block => AccessType::Block(BlockVolume {}),
            AccessFlag::Mount => AccessType::Mount(MountVolume {
                fs_type: self.fs_type.clone(),
                ..MountVolume::default()
            }),
        };
        VolumeCapability {
            access_mode: Some(AccessMode {
                mode: Mode::SingleNodeWriter.into(),
            }),
            access_type: Some(access),
        }
    }

    /// The secrets, for a request.
    pub(super) fn secrets(&self) -> BTreeMap<String, String> {
        let plain = |(key, value): (&String, &SecretString)| {
            (key.clone(), value.expose_secret().to_owned())
        };
        self.secrets.iter().map(plain).collect()
    }
}

fn pairs(texts: &[String]) -> Result<BTreeMap<String, String>, String> {
    let mut pairs = BTreeMap::new();
    for text in texts {
        let (key, value) = pair(text).ok_or("expected KEY=VALUE")?;
        if pairs.insert(key.to_owned(), value.to_owned()).is_some() {
            return Err(format!("`{}` is given twice", key.escape_debug()));
        }
    }
    Ok(pairs)
}

fn pair(text: &str) -> Option<(&str, &str)> {
    text.split_once('=').filter(|(key, _)| !key.is_empty())
}

/// Reads a file of secrets. No message holds anything that was in it.
fn secrets(path: &Path) -> Result<BTreeMap<String, SecretString>, String> {
    let mut text = String::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(MAX_SECRETS).read_to_string(&mut text))
        .map_err(|error| format!("{}: {error}", path.display()))?;
    let secret = |(key, value): (String, String)| (key, SecretString::from(value));
    if text.trim_start().starts_with('{') {
        let map: BTreeMap<String, String> = serde_json::from_str(&text)
            .map_err(|error| format!("line {}: no JSON object of texts", error.line()))?;
        return Ok(map.into_iter().map(secret).collect());
    }
    let mut secrets = BTreeMap::new();
    for (number, line) in text.lines().enumerate() {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let (key, value) =
            pair(line).ok_or_else(|| format!("line {}: expected KEY=VALUE", number + 1))?;
        secrets.insert(key.to_owned(), SecretString::from(value.to_owned()));
    }
    Ok(secrets)
}

// === impl TrialName ===

impl TrialName {
    /// One that nobody has used.
    fn new() -> Self {
        const LETTERS: &[u8; 32] = b"abcdefghijkmnopqrstuvwxyz2345678";
        // The keys of a `RandomState` come from the kernel.
        let mut random = RandomState::new().hash_one(std::process::id());
        let mut name = String::from("omnibus-try-");
        for _ in 0..8 {
            name.push(char::from(
                LETTERS[usize::try_from(random % 32).unwrap_or(0)],
            ));
            random /= 32;
        }
        Self(name)
    }

    /// The name itself.
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TrialName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

// === impl Size ===

impl Size {
    /// Twice as much.
    pub(super) fn doubled(self) -> Self {
        Self(self.0.saturating_mul(2))
    }

    /// At least that much.
    pub(super) fn range(self) -> CapacityRange {
        CapacityRange {
            required_bytes: self.0,
            limit_bytes: 0,
        }
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const UNITS: [(&str, i64); 12] = [
            ("Ki", 1 << 10),
            ("Mi", 1 << 20),
            ("Gi", 1 << 30),
            ("Ti", 1 << 40),
            ("KiB", 1 << 10),
            ("MiB", 1 << 20),
            ("GiB", 1 << 30),
            ("TiB", 1 << 40),
            ("k", 1000),
            ("M", 1_000_000),
            ("G", 1_000_000_000),
            ("T", 1_000_000_000_000),
        ];
        let end = text
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(text.len());
        let (number, unit) = text.split_at(end);
        let factor = match unit {
            "" => Some(1),
            _ => UNITS
                .iter()
                .find(|(name, _)| *name == unit)
                .map(|(_, factor)| *factor),
        };
        number
            .parse::<i64>()
            .ok()
            .zip(factor)
            .and_then(|(number, factor)| number.checked_mul(factor))
            .filter(|bytes| *bytes > 0)
            .map(Self)
            .ok_or_else(|| format!("`{}` is no size such as 512Mi or 2Gi", text.escape_debug()))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 7] = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        let (mut whole, mut tenths, mut unit) = (self.0, 0, 0);
        while whole >= 1024 {
            tenths = whole % 1024 * 10 / 1024;
            whole /= 1024;
            unit += 1;
        }
        match tenths {
            0 => write!(f, "{whole} {}", UNITS[unit]),
            _ => write!(f, "{whole}.{tenths} {}", UNITS[unit]),
        }
    }
}

#[cfg(test)]
mod tests;
