//! The place where each program of this node runs, and how long it may take.
//!
//! In a container some tools are the container's and some the host's; who wraps a tool only says
//! which of them it needs. compat: "Programs of the host".

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use exec::{Host, HostAccess, Local, Observed, Program, Runner};
pub use exec::{
    HostRoot, HostSettings, InvalidHostSettings, Observation, Observer, RunOutcome, Variable,
    resolve,
};

/// A place where programs run.
pub type Place = Arc<dyn Runner>;

/// The place where each program of this node runs.
#[derive(Clone)]
pub struct Tools {
    here: Place,
    iscsi: Place,
    host: Place,
    mount: Place,
    mount_on_host: Place,
    iscsiadm: Program,
    iscsi_access: Option<HostAccess>,
    nvme_key: Option<PathBuf>,
    timeouts: Timeouts,
}

/// The time that one command may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// `mount` and its helpers: `MOUNT_DEFAULT_TIMEOUT`.
    pub mount: Duration,
    /// `iscsiadm`: `ISCSI_DEFAULT_TIMEOUT`.
    pub iscsi: Duration,
    /// `nvme`: `NVMEOF_DEFAULT_TIMEOUT`.
    pub nvme: Duration,
    /// The limit of programs that read or write a filesystem, `mkfs` and `fsck` among them:
    /// `FILESYSTEM_DEFAULT_TIMEOUT`.
    pub filesystem: Duration,
}

/// A variable is no number of milliseconds.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{variable}: {value:?} is no number of milliseconds up to a day")]
pub struct InvalidTimeout {
    /// Its name.
    pub variable: &'static str,
    /// The value.
    pub value: String,
}

/// One day; the longest timeout that is accepted.
const DAY: u64 = 86_400_000;

/// The filesystems whose mount helper only the host has.
const ON_HOST: [&str; 2] = ["lustre", "onedata"];

// === impl Tools ===

impl Tools {
    /// The tools of this machine. `watch` wraps each place, to count what runs there.
    pub fn new(
        settings: &HostSettings,
        timeouts: Timeouts,
        watch: impl Fn(Place) -> Place,
    ) -> Self {
        let here = watch(Arc::new(Local::new()));
        let through = |way: Option<HostAccess>| -> Place {
            way.map_or_else(
                || Arc::clone(&here),
                |way| watch(Arc::new(Host::new(Local::new(), way))),
            )
        };
        Self {
            iscsi: through(settings.iscsi_access()),
            mount: through(settings.mount_access(None)),
            mount_on_host: through(settings.mount_access(Some(ON_HOST[0]))),
            host: through(settings.host_access()),
            iscsiadm: settings.iscsiadm().clone(),
            iscsi_access: settings.iscsi_access(),
            nvme_key: None,
            here,
            timeouts,
        }
    }

    /// The same, reporting every command to `observer`.
    pub fn observed(
        settings: &HostSettings,
        timeouts: Timeouts,
        observer: &(impl Observer + Clone + 'static),
    ) -> Self {
        Self::new(settings, timeouts, |place| {
            Arc::new(Observed::new(place, observer.clone()))
        })
    }

    /// Everything on this machine, without a container and without an observer.
    pub fn of_this_machine() -> Self {
        Self::all_through(Arc::new(Local::new()))
    }

    /// Everything through one place: for a machine without a container, and for tests.
    pub fn all_through(runner: Place) -> Self {
        Self {
            here: Arc::clone(&runner),
            iscsi: Arc::clone(&runner),
            host: Arc::clone(&runner),
            mount: Arc::clone(&runner),
            mount_on_host: runner,
            iscsiadm: Program::constant("iscsiadm"),
            iscsi_access: None,
            nvme_key: None,
            timeouts: Timeouts::default(),
        }
    }

    /// The place where our own programs are: `blkid`, `mkfs`, `fsck`, `nvme` and the like.
    pub fn here(&self) -> &dyn Runner {
        &*self.here
    }

    /// The place where `iscsiadm` runs.
    pub fn iscsi(&self) -> &dyn Runner {
        &*self.iscsi
    }

    /// The place where the host's programs are: `multipath`, `zfs`, `zpool`, `oneclient`.
    pub fn host(&self) -> &dyn Runner {
        &*self.host
    }

    /// The same as an owned value.
    pub fn place_of_host(&self) -> Place {
        Arc::clone(&self.host)
    }

    /// The place where `mount` runs for a filesystem.
    pub fn mount(&self, filesystem: &str) -> &dyn Runner {
        if ON_HOST.contains(&filesystem) {
            &*self.mount_on_host
        } else {
            &*self.mount
        }
    }

    /// The program that is `iscsiadm`.
    pub fn iscsiadm(&self) -> &Program {
        &self.iscsiadm
    }

    /// The way the machine is entered where `iscsiadm` runs; `None` is here.
    pub fn iscsi_access(&self) -> Option<&HostAccess> {
        self.iscsi_access.as_ref()
    }

    /// The same with a file that has the key of this node for NVMe targets: `OMNIBUS_CSI_NVME_KEY_FILE`.
    #[must_use]
    pub fn with_nvme_key(mut self, file: Option<PathBuf>) -> Self {
        self.nvme_key = file;
        self
    }

    /// The file with the key of this node for NVMe targets.
    pub fn nvme_key(&self) -> Option<&Path> {
        self.nvme_key.as_deref()
    }

    /// The same with the files of `iscsiadm` elsewhere.
    #[cfg(test)]
    #[must_use]
    pub(crate) fn with_iscsi_access(mut self, way: HostAccess) -> Self {
        self.iscsi_access = Some(way);
        self
    }

    /// The time that one command may take.
    pub fn timeouts(&self) -> Timeouts {
        self.timeouts
    }
}

impl fmt::Debug for Tools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tools")
            .field("iscsiadm", &self.iscsiadm)
            .field("timeouts", &self.timeouts)
            .finish_non_exhaustive()
    }
}

// === impl Timeouts ===

impl Timeouts {
    /// Reads the variables through `lookup`; an empty one counts as unset.
    pub fn read(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, InvalidTimeout> {
        let read = |variable: &'static str, default: Duration| {
            let Some(value) = lookup(variable).filter(|value| !value.is_empty()) else {
                return Ok(default);
            };
            match value.trim().parse() {
                Ok(millis @ 1..=DAY) => Ok(Duration::from_millis(millis)),
                _ => Err(InvalidTimeout { variable, value }),
            }
        };
        let default = Self::default();
        Ok(Self {
            mount: read("MOUNT_DEFAULT_TIMEOUT", default.mount)?,
            iscsi: read("ISCSI_DEFAULT_TIMEOUT", default.iscsi)?,
            nvme: read("NVMEOF_DEFAULT_TIMEOUT", default.nvme)?,
            filesystem: read("FILESYSTEM_DEFAULT_TIMEOUT", default.filesystem)?,
        })
    }
}

impl Default for Timeouts {
    /// Those of democratic-csi, and for filesystems, where it has none, what making a large one or
    /// checking a full one takes.
    fn default() -> Self {
        Self {
            mount: Duration::from_secs(30),
            iscsi: Duration::from_secs(30),
            nvme: Duration::from_secs(30),
            filesystem: Duration::from_mins(30),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_milliseconds_and_anything_else_is_an_error() {
        let read = |value: &'static str| {
            Timeouts::read(|name| (name == "ISCSI_DEFAULT_TIMEOUT").then(|| value.to_owned()))
        };
        assert_eq!(read("").expect("unset"), Timeouts::default());
        let five = read("5000").expect("a number");
        assert_eq!(five.iscsi, Duration::from_secs(5));
        assert_eq!(five.mount, Timeouts::default().mount);
        for bad in ["0", "-1", "5s", "many", "86400001"] {
            let error = read(bad).expect_err(bad).to_string();
            assert!(error.contains("ISCSI_DEFAULT_TIMEOUT"), "{error}");
        }
    }
}
