//! Storage that goes away and comes back while a pod writes.
//!
//! Each cell has a [`writer`] on a volume that is staged and published by the program, removes the
//! storage as [`absence`] says, and requires that every byte is right and that no manual step was
//! necessary. A cell prints its measurements.

pub mod absence;
pub mod disconnect;
pub mod fio;
pub mod outage;
pub mod power;
pub mod writer;

use std::time::Duration;

use csi_proto::v1::volume_capability::AccessType;

use super::fixture::{Access, ExportKind, Fixture};

/// A kind of volume that depends on a network.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    /// The name of its cells.
    pub name: &'static str,
    export: ExportKind,
    filesystem: &'static str,
    flags: &'static [&'static str],
    /// It must be writable so soon after the storage's port answers.
    again: Duration,
}

/// Every kind, with the options that the program chooses where a volume says nothing.
pub const KINDS: [Kind; 4] = [
    Kind::new("iscsi", ExportKind::Iscsi, "ext4"),
    Kind::new("nvmeof", ExportKind::Nvmeof, "ext4"),
    Kind::new("nfs", ExportKind::Nfs, "nfs"),
    Kind {
        flags: &["vers=3"],
        // The kernel gives a silent connection up only after three minutes, `retrans` or not: that is
        // a minute after a cut of two, and then it has yet to connect.
        again: Duration::from_secs(75),
        ..Kind::new("nfs3", ExportKind::Nfs, "nfs")
    },
];

// === impl Kind ===

impl Kind {
    const fn new(name: &'static str, export: ExportKind, filesystem: &'static str) -> Self {
        Self {
            name,
            export,
            filesystem,
            flags: &[],
            again: Duration::from_mins(1),
        }
    }

    /// Makes a volume of this kind.
    pub fn fixture(self, name: &str) -> Fixture {
        let mut fixture = self.export.fixture(name, Access::Mount(self.filesystem));
        if let Some(AccessType::Mount(mount)) = &mut fixture.capability.access_type {
            mount.mount_flags = self.flags.iter().map(|&flag| flag.to_owned()).collect();
        }
        fixture
    }

    /// A kind with which it shares neither port nor driver.
    #[must_use]
    pub fn other(self) -> Self {
        match self.export {
            ExportKind::Iscsi => KINDS[1],
            _ => KINDS[0],
        }
    }
}
