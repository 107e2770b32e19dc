//! Shares that real democratic-csi made are ours to use.
//!
//! `tests/democratic_csi` of `driver-zfs` holds what it answered and what it left on a host with real
//! ZFS; how that was captured stands there. compat: "ZFS".

#![expect(clippy::unwrap_used, reason = "a test fails where it panics")]

#[path = "../common/mod.rs"]
mod common;
mod host;
#[path = "../../../zfs/tests/common/replay.rs"]
mod replay;
mod theirs;

/// Those of which all that was left was captured.
pub(crate) const SHARES: [&str; 2] = ["nfs", "smb"];
