//! The flags of `try`, and what `try --help` teaches.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, ValueEnum};
use csi_proto::v1::VolumeCapability;
use csi_proto::v1::volume_capability::access_mode::Mode;
use csi_proto::v1::volume_capability::{AccessType, MountVolume};
use secrecy::{ExposeSecret, SecretString};

use crate::requests;

/// How to use a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Access {
    /// As a folder with files
    Mount,
    /// As a raw device
    Block,
}

/// The text of `--help` below the flags.
pub const AFTER: &str = "\
Without flags it makes folders in a temporary folder its storage: nothing to set up, nothing left \
behind. With --driver-config-file it asks the same of your own storage: will my NAS work?

It drives the server of this program as a cluster would, on a unix socket: from the creation of a \
volume to the proof that nothing is left.

What it touches:
  Only what it makes itself; all of it is called omnibus-try-<random>. Mounts
  are gone when it ends, even after kill -9. Interrupted (Ctrl-C) it cleans
  up; interrupted again it leaves at once, and the next run cleans up.

What it needs:
  Root, or a kernel that lets users make bind mounts in a user namespace (most
  do): enough for storage that is a local directory. Everything else has to be
  mounted by root.

Examples:
  Try your own storage, with the parameters of your storage class:
    omnibus-csi try --driver-config-file=nas.yaml --fs-type=xfs --size=2Gi
  For a script:
    omnibus-csi try --json | jq .result

Exit codes:
  0    every step that is offered went well, and nothing is left (or --keep)
  1    a step failed; what was made is cleaned up, what could not be is named
  64   the command line or the configuration is wrong; nothing was changed
  130  interrupted (143: terminated); cleaned up as after a failure";

/// What to try.
#[derive(Debug, Clone, Args)]
pub struct Flags {
    /// The configuration of your storage, YAML (default: folders in a temporary folder)
    #[arg(long, value_name = "PATH")]
    pub driver_config_file: Option<PathBuf>,
    /// A parameter of the storage class; may be repeated
    #[arg(long = "parameter", value_name = "KEY=VALUE", value_parser = pair)]
    parameters: Vec<(String, String)>,
    /// A parameter of the snapshot class; may be repeated
    #[arg(long = "snapshot-parameter", value_name = "KEY=VALUE", value_parser = pair)]
    snapshot_parameters: Vec<(String, String)>,
    /// Secrets for every call: lines of KEY=VALUE, or one JSON object
    #[arg(long, value_name = "PATH", value_parser = secrets)]
    secrets_file: Option<Secrets>,
    /// The size of the volume, such as 512Mi, 2Gi, 1000000
    #[arg(long, value_name = "SIZE", default_value = "1Gi")]
    pub(crate) size: Size,
    /// How to use it
    #[arg(long, value_name = "HOW", default_value = "mount")]
    pub(crate) access: Access,
    /// The filesystem to ask for, such as ext4 or xfs (default: the driver decides)
    #[arg(
        long,
        value_name = "NAME",
        default_value = "",
        hide_default_value = true
    )]
    fs_type: String,
    /// How long one call may take, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "300", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: u64,
    /// Stop before the end, also after a failure, and delete nothing, so that you can look at it
    #[arg(long)]
    pub(crate) keep: bool,
    /// Write one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

/// `Debug` never shows them.
type Secrets = BTreeMap<String, SecretString>;

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Size(pub(crate) i64);

// === impl Flags ===

impl Flags {
    /// How long an answer is waited for.
    pub(crate) fn patience(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }

    /// How the volume is used.
    pub(crate) fn capability(&self) -> VolumeCapability {
        let mut capability = match self.access {
            Access::Block => requests::block(Mode::SingleNodeWriter),
            Access::Mount => requests::mounted(Mode::SingleNodeWriter),
        };
        if let Some(AccessType::Mount(MountVolume { fs_type, .. })) = &mut capability.access_type {
            fs_type.clone_from(&self.fs_type);
        }
        capability
    }

    /// The parameters of the storage class.
    pub(crate) fn parameters(&self) -> BTreeMap<String, String> {
        self.parameters.iter().cloned().collect()
    }

    /// The parameters of the snapshot class.
    pub(crate) fn snapshot_parameters(&self) -> BTreeMap<String, String> {
        self.snapshot_parameters.iter().cloned().collect()
    }

    /// The secrets, for a request.
    pub(crate) fn secrets(&self) -> BTreeMap<String, String> {
        let secrets = self.secrets_file.iter().flatten();
        secrets
            .map(|(key, value)| (key.clone(), value.expose_secret().to_owned()))
            .collect()
    }
}

fn pair(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').filter(|(key, _)| !key.is_empty());
    let (key, value) = pair.ok_or("expected KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

/// Reads a file of secrets. No message holds anything that was in it.
fn secrets(path: &str) -> Result<Secrets, String> {
    let text = fs::read_to_string(path).map_err(|error| error.to_string())?;
    let pairs: BTreeMap<String, String> = if text.trim_start().starts_with('{') {
        let no_map = |error: serde_json::Error| format!("line {}: no texts", error.line());
        serde_json::from_str(&text).map_err(no_map)?
    } else {
        let lines = text.lines().enumerate();
        let lines = lines.filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'));
        lines
            .map(|(at, line)| pair(line).map_err(|problem| format!("line {}: {problem}", at + 1)))
            .collect::<Result<_, _>>()?
    };
    let secret = |(key, value)| (key, SecretString::from(value));
    Ok(pairs.into_iter().map(secret).collect())
}

// === impl Size ===

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        let factor = match unit {
            "" => Some(1),
            "k" => Some(1000),
            "M" => Some(1_000_000),
            "G" => Some(1_000_000_000),
            "T" => Some(1_000_000_000_000),
            "Ki" | "KiB" => Some(1 << 10),
            "Mi" | "MiB" => Some(1 << 20),
            "Gi" | "GiB" => Some(1 << 30),
            "Ti" | "TiB" => Some(1 << 40),
            _ => None,
        };
        let number = number.parse::<i64>().ok().zip(factor);
        let bytes = number.and_then(|(number, factor)| number.checked_mul(factor));
        let bytes = bytes.filter(|bytes| *bytes > 0);
        bytes
            .map(Self)
            .ok_or_else(|| "this is no size such as 512Mi or 2Gi".to_owned())
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
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_and_without_a_unit_and_shown_as_people_say_them() {
        for (text, bytes, shown) in [
            ("1", 1, "1 bytes"),
            ("64Mi", 64 << 20, "64 MiB"),
            ("1536MiB", 3 << 29, "1.5 GiB"),
            ("1G", 1_000_000_000, "953.6 MiB"),
        ] {
            assert_eq!(text.parse::<Size>(), Ok(Size(bytes)), "{text}");
            assert_eq!(Size(bytes).to_string(), shown);
        }
        assert_eq!(Size(i64::MAX).to_string(), "7.9 EiB");
        for bad in [
            "",
            "0",
            "-1",
            "1.5Gi",
            "Gi",
            "1 Gi",
            "1gi",
            "9223372036854775808",
            "9000000Ti",
        ] {
            assert!(bad.parse::<Size>().is_err(), "{bad}");
        }
    }

    #[test]
    fn secrets_are_read_as_lines_or_as_json_and_never_shown() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("secrets");
        let path = file.to_str().unwrap();
        for text in [
            "# mine\nuser=me\npassword=hunter2=x\n",
            r#"{"user":"me","password":"hunter2=x"}"#,
        ] {
            fs::write(&file, text).unwrap();
            let secrets = secrets(path).unwrap();
            assert_eq!(secrets["password"].expose_secret(), "hunter2=x");
            assert!(!format!("{secrets:?}").contains("hunter2"));
        }
        for bad in ["password hunter2\n", r#"{"password": ["hunter2"]}"#] {
            fs::write(&file, bad).unwrap();
            let problem = secrets(path).unwrap_err();
            assert!(
                problem.starts_with("line 1") && !problem.contains("hunter2"),
                "{problem}"
            );
        }
    }
}
