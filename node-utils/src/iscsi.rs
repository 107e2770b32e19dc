//! iSCSI: logging in to a target, finding the disk, and giving it up.
//!
//! Sessions are opened and closed by the host's `iscsiadm`, because its daemon keeps them; all else
//! is read from and written to sysfs, and success is what sysfs shows. Volumes of one target share
//! its sessions. The truth is in the kernel's `scsi_transport_iscsi`, in open-iscsi's sources, and
//! for what we promise in `docs/compatibility.md`, "iSCSI".

mod attach;
mod connect;
mod detach;
mod disk;
mod facts;
mod gather;
mod lookup;
mod record;
mod session;
mod settings;
#[cfg(test)]
mod tests;
mod tool;

use std::time::Duration;

pub use attach::attach;
pub use detach::detach;
pub use disk::{facts_of, rescan};
pub use facts::IscsiFacts;

/// How long a session may take to end after a logout that failed, or whose end was not seen.
const ENDS: Duration = Duration::from_secs(5);
