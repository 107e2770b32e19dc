//! What real democratic-csi made on a storage host is ours to use, and what we make is what it would have made.
//!
//! `tests/democratic_csi` of `driver-zfs` holds what it answered and what it left on a host with real
//! ZFS, LIO and nvmet; how that was captured stands there. compat: "ZFS", "Exports of a ZFS host".

mod fake_host;
mod ours;
mod theirs;

/// Every kind that has a storage host.
pub(crate) const KINDS: [&str; 4] = ["nfs", "smb", "iscsi", "nvmeof"];
/// Those whose volumes are disks.
pub(crate) const DISKS: [&str; 2] = ["iscsi", "nvmeof"];
