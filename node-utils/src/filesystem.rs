//! What is on a block device, and how its filesystem is made, checked and grown.
//!
//! Nothing is mounted here. The one promise: a device is formatted only if it is proved to hold
//! nothing; whatever cannot be read, is ambiguous or is known to nobody stays as it is. The truth is
//! in blkid(8) and in the manual of each filesystem's tools. compat: "Filesystems".

mod blank;
mod check;
mod grow;
mod make;
pub(crate) mod marker;
mod probe;
mod settings;
mod superblock;
#[cfg(test)]
mod tests;

use std::fmt;
use std::time::Duration;

use exec::{Command, Program, RunError};
use tokio::time::Instant;

pub(crate) use blank::how_to_empty;
pub use check::check;
pub use grow::{grow_mounted, grow_unmounted};
pub use make::{Ensured, ensure, forget_unfinished};
pub use probe::{Content, probe};
pub use settings::{CheckOptions, FilesystemSettings, InvalidOption, OptionWord};

use crate::capability::FsType;
use crate::device::BlockDevice;
use crate::error::{Error, Kind};
use crate::kernel::Kernel;
use crate::tools::Tools;

/// A filesystem that can be made and mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FilesystemKind {
    /// The third extended filesystem.
    Ext3,
    /// The fourth.
    Ext4,
    /// XFS.
    Xfs,
    /// Btrfs.
    Btrfs,
    /// FAT with long names.
    Vfat,
    /// exFAT.
    Exfat,
    /// NTFS.
    Ntfs,
}

// === impl FilesystemKind ===

impl FilesystemKind {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Ext3,
        Self::Ext4,
        Self::Xfs,
        Self::Btrfs,
        Self::Vfat,
        Self::Exfat,
        Self::Ntfs,
    ];

    /// The filesystem that a request asks for.
    pub fn wanted(fs_type: Option<&FsType>) -> Result<Self, Error> {
        let Some(fs_type) = fs_type else {
            return Ok(Self::Ext4);
        };
        let name = fs_type.as_str();
        Self::named(name).ok_or_else(|| {
            let error = Error::invalid(format!("make a filesystem of the type `{name}`"));
            if name == "ext4dev" {
                return error
                    .advise("that was the name of ext4 while it was young; ask for `ext4`");
            }
            let known: Vec<&str> = Self::ALL.iter().map(|kind| kind.name()).collect();
            error.advise(format!("those that can be made are {}", known.join(", ")))
        })
    }

    /// The filesystem of that name, as `blkid` and requests spell it.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Its name in requests and for `blkid` and `mkfs`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ext3 => "ext3",
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
            Self::Vfat => "vfat",
            Self::Exfat => "exfat",
            Self::Ntfs => "ntfs",
        }
    }

    /// The package of Debian that has its tools.
    fn package(self) -> &'static str {
        match self {
            Self::Ext3 | Self::Ext4 => "e2fsprogs",
            Self::Xfs => "xfsprogs",
            Self::Btrfs => "btrfs-progs",
            Self::Vfat => "dosfstools",
            Self::Exfat => "exfatprogs",
            Self::Ntfs => "ntfs-3g",
        }
    }
}

impl fmt::Display for FilesystemKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A tool and the device that it works on, the device as its last argument but those of `after`.
fn tool(program: Program, kernel: &Kernel, device: &BlockDevice) -> Result<Command, Error> {
    Ok(Command::new(program).arg(node(kernel, device)?))
}

/// The path of a device as an argument.
fn node(kernel: &Kernel, device: &BlockDevice) -> Result<String, Error> {
    let path = device.node(kernel).into_os_string().into_string();
    path.map_err(|_| Error::new(Kind::Internal, format!("name the node of {device}")))
}

/// A failed tool, told with what can be done about it.
fn tool_failed(doing: String, error: RunError, package: &str) -> Error {
    let kind = match &error {
        RunError::Deadline { .. } => Kind::Timeout,
        _ => Kind::Internal,
    };
    let missing = matches!(error, RunError::NotFound { .. });
    let effect = match error.effect() {
        exec::Effect::None => crate::error::Effect::None,
        exec::Effect::Possible => crate::error::Effect::Possible,
    };
    let failed = Error::new(kind, doing).with_effect(effect).because(error);
    if missing {
        failed.advise(format!(
            "install the package `{package}` where the node half runs"
        ))
    } else {
        failed
    }
}

/// What is left for one command: never more than the operator allows.
fn remaining(tools: &Tools, deadline: Instant) -> Duration {
    let left = deadline.saturating_duration_since(Instant::now());
    left.min(tools.timeouts().filesystem)
}
