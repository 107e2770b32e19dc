//! Storage that goes away and comes back while a pod writes.
//!
//! Each cell has a [`writer`] on a volume that is staged and published by the program, takes
//! the storage away as [`absence`] says, and demands that every byte is right and
//! that nobody had to do anything by hand. What a cell measures it prints.

pub mod absence;
pub mod outage;
pub mod parting;
pub mod writer;

use std::time::Duration;

use csi_proto::v1::volume_capability::AccessType;

use super::supply::{Access, Supply, Way};

/// A kind of volume that depends on a network.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    /// What cells of it are called.
    pub name: &'static str,
    way: Way,
    filesystem: &'static str,
    flags: &'static [&'static str],
    /// It must be writable so soon after the storage's port answers.
    again: Duration,
}

/// Every kind, with the options that the program chooses where a volume says nothing.
pub const KINDS: [Kind; 4] = [
    Kind::new("iscsi", Way::Iscsi, "ext4"),
    Kind::new("nvmeof", Way::Nvmeof, "ext4"),
    Kind::new("nfs", Way::Nfs, "nfs"),
    Kind {
        flags: &["vers=3"],
        // The kernel gives a silent connection up only after three minutes, `retrans` or not: that is
        // a minute after a cut of two, and then it has yet to connect.
        again: Duration::from_secs(75),
        ..Kind::new("nfs3", Way::Nfs, "nfs")
    },
];

// === impl Kind ===

impl Kind {
    const fn new(name: &'static str, way: Way, filesystem: &'static str) -> Self {
        Self {
            name,
            way,
            filesystem,
            flags: &[],
            again: Duration::from_mins(1),
        }
    }

    /// Makes a volume of this kind.
    pub fn supply(self, name: &str) -> Supply {
        let mut supply = self.way.supply(name, Access::Mount(self.filesystem));
        if let Some(AccessType::Mount(mount)) = &mut supply.capability.access_type {
            mount.mount_flags = self.flags.iter().map(|&flag| flag.to_owned()).collect();
        }
        supply
    }

    /// A kind with which it shares neither port nor driver.
    #[must_use]
    pub fn other(self) -> Self {
        match self.way {
            Way::Iscsi => KINDS[1],
            _ => KINDS[0],
        }
    }
}
