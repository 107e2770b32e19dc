//! iSCSI: attaches and detaches the disks of targets.
//!
//! The host's `iscsiadm` opens and closes sessions, because its daemon owns them. Everything else is
//! read from and written to sysfs, which also decides about success. Volumes of one target share its
//! sessions. Sources: the kernel's `scsi_transport_iscsi`, open-iscsi, and for our guarantees
//! `docs/compatibility.md`, "iSCSI".

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

pub use attach::{attach, lacking};
pub use detach::detach;
pub use disk::{facts_of, rescan};
pub use facts::IscsiFacts;
pub use session::{DiskSession, session_of};

/// The time that a session may take to end after a logout that failed, or whose end was not seen.
const ENDS: Duration = Duration::from_secs(5);
