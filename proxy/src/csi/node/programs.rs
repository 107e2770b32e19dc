//! The programs that this node runs: their paths, their timeouts, and their metrics.
//!
//! Read from the environment, once for the process and before anything is bound. This module does
//! not know what the programs do. compat: "Programs of the host".

use std::path::{Path, PathBuf};

use csi_types::AbsolutePath;
use node_utils::tools::{HostSettings, Observation, Observer, RunOutcome};
use node_utils::{Timeouts, Tools};

use crate::process::{self, Lookup};
use crate::telemetry::metrics::{Metrics, Outcome};

/// The settings of the environment for programs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Programs {
    host: HostSettings,
    timeouts: Timeouts,
    nvme_key: Option<PathBuf>,
}

/// Counts what was run.
#[derive(Debug, Clone)]
struct Counter(Metrics);

const TIMEOUTS: [&str; 4] = [
    "MOUNT_DEFAULT_TIMEOUT",
    "ISCSI_DEFAULT_TIMEOUT",
    "NVMEOF_DEFAULT_TIMEOUT",
    "FILESYSTEM_DEFAULT_TIMEOUT",
];
/// The place where the image mounts the host's root.
const HOST_ROOT: &str = "/host";
const HOST: [&str; 2] = ["ISCSIADM_HOST_STRATEGY", "ISCSIADM_HOST_PATH"];
const NVME_KEY: &str = "OMNIBUS_CSI_NVME_KEY_FILE";

// === impl Programs ===

impl Programs {
    /// Reads the variables. Returns every problem, each with the name of its variable.
    pub fn read(env: Lookup<'_>) -> Result<Self, Vec<String>> {
        let mut problems = Vec::new();
        // One at a time: a reader of several stops at the first invalid one.
        for variable in TIMEOUTS {
            let alone = |name: &str| env(name).filter(|_| name == variable);
            problems.extend(Timeouts::read(alone).err().map(|e| e.to_string()));
        }
        for variable in HOST {
            let alone = |name: &str| env(name).filter(|_| name == variable);
            problems.extend(HostSettings::read(alone).err().map(|e| process::chain(&e)));
        }
        let nvme_key = env(NVME_KEY).filter(|path| !path.is_empty());
        let nvme_key = nvme_key.map(|path| AbsolutePath::parse(&path)).transpose();
        if let Err(error) = &nvme_key {
            problems.push(format!("{NVME_KEY}: {error}"));
        }
        match (HostSettings::read(env), Timeouts::read(env), nvme_key) {
            (Ok(host), Ok(timeouts), Ok(nvme_key)) if problems.is_empty() => Ok(Self {
                host: host.contained(Path::new(HOST_ROOT).is_dir()),
                timeouts,
                nvme_key: nvme_key.map(|path| PathBuf::from(path.as_str())),
            }),
            _ => Err(problems),
        }
    }

    /// The time that each command may take.
    pub fn timeouts(&self) -> Timeouts {
        self.timeouts
    }

    /// The programs themselves, counted into `metrics`. Made once for the process.
    pub fn tools(&self, metrics: &Metrics) -> Tools {
        let counter = Counter(metrics.clone());
        Tools::observed(&self.host, self.timeouts, &counter).with_nvme_key(self.nvme_key.clone())
    }
}

// === impl Counter ===

impl Observer for Counter {
    fn observe(&self, observation: &Observation<'_>) {
        let outcome = match observation.outcome {
            RunOutcome::Done => Outcome::Done,
            RunOutcome::Failed | RunOutcome::NotStarted => Outcome::Failed,
            RunOutcome::Unknown => Outcome::Unknown,
        };
        for command in observation.commands {
            let path = Path::new(command.program().as_str());
            // The file name of a path: the folder depends on the machine.
            let name = path.file_name().and_then(|name| name.to_str());
            let name = name.unwrap_or(command.program().as_str());
            self.0.command(name, outcome, observation.elapsed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Programs, Vec<String>> {
        Programs::read(&|name| {
            let found = variables.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn every_invalid_variable_is_reported_by_its_name() {
        assert!(read(&[]).is_ok());
        let wrong = [
            ("MOUNT_DEFAULT_TIMEOUT", "30s"),
            ("ISCSI_DEFAULT_TIMEOUT", "0"),
            ("NVMEOF_DEFAULT_TIMEOUT", "-1"),
            ("FILESYSTEM_DEFAULT_TIMEOUT", "a day"),
            ("ISCSIADM_HOST_STRATEGY", "docker"),
            ("ISCSIADM_HOST_PATH", "sbin/iscsiadm"),
            ("OMNIBUS_CSI_NVME_KEY_FILE", "keys/node"),
        ];
        let problems = read(&wrong).expect_err("all of them");
        assert_eq!(problems.len(), wrong.len(), "{problems:#?}");
        for (problem, (variable, _)) in problems.iter().zip(wrong) {
            assert!(problem.contains(variable), "{problem}");
        }
        let some = read(&[("ISCSI_DEFAULT_TIMEOUT", "5000")]).expect("programs");
        assert_eq!(some.timeouts().iscsi.as_secs(), 5);
        assert_ne!(
            Some(some),
            read(&[("ISCSIADM_HOST_STRATEGY", "nsenter")]).ok()
        );
    }
}
