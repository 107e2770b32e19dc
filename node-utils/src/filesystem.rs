//! The content of a block device, and how its filesystem is made, checked and grown.
//!
//! Nothing is mounted here. The one promise: a device is formatted only if it is proved to hold
//! nothing; whatever cannot be read, is ambiguous or unknown stays as it is. The truth is
//! in blkid(8) and in the manual of each filesystem's tools. compat: "Filesystems".

mod blank;
mod check;
mod grow;
mod make;
pub(crate) mod marker;
mod probe;
mod superblock;
#[cfg(test)]
mod tests;
mod xfs_log;

use std::time::Duration;

use exec::{Command, Program, RunError};
use tokio::time::Instant;

pub(crate) use blank::HOW_TO_EMPTY;
pub use check::check;
pub use csi_types::filesystem::{
    CheckOptions, FilesystemKind, FilesystemSettings, InvalidOption, OptionWord,
};
pub use grow::{grow_mounted, grow_unmounted};
pub use make::{Ensured, ensure, forget_unfinished};
pub use probe::{Content, has_to_be_recovered, probe};

use crate::device::BlockDevice;
use crate::kernel::Kernel;
use crate::tools::Tools;
use csi_types::error::{Error, Kind};

/// A tool and the device that it works on, the device as its last argument but those of `after`.
fn tool(program: Program, kernel: &Kernel, device: &BlockDevice) -> Result<Command, Error> {
    Ok(Command::new(program).arg(node(kernel, device)?))
}

/// The path of a device as an argument.
fn node(kernel: &Kernel, device: &BlockDevice) -> Result<String, Error> {
    let path = device.node(kernel).into_os_string().into_string();
    path.map_err(|_| Error::new(Kind::Internal, format!("name the node of {device}")))
}

/// The error of a failed tool, with advice.
fn tool_failed(doing: String, error: RunError, package: &str) -> Error {
    let kind = match &error {
        RunError::Deadline { .. } => Kind::Timeout,
        _ => Kind::Internal,
    };
    let missing = matches!(error, RunError::NotFound { .. });
    let failed = error.while_doing(kind, doing);
    if missing {
        failed.advise(format!(
            "install the package `{package}` where the node half runs"
        ))
    } else {
        failed
    }
}

/// The time that is left for one command: never more than the operator allows.
fn remaining(tools: &Tools, deadline: Instant) -> Duration {
    let left = deadline.saturating_duration_since(Instant::now());
    left.min(tools.timeouts().filesystem)
}
