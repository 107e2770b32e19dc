//! Block volumes over the network, without saying over which: numbers, identities, supplies.

use std::path::Path;

use super::lio::Target;
use super::nvmet::Subsystem;
use super::zfs::Zvol;
use crate::lab::fixture::{self, Access, Backing, Export, Fixture};

/// A network for block devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fabric {
    /// iSCSI, by LIO.
    Iscsi,
    /// NVMe over TCP, by nvmet.
    Nvmeof,
}

/// The exporter that gives zvols numbers: a target or a subsystem.
#[derive(Debug)]
pub enum Exporter {
    /// A target; a zvol's number is one more than its LUN.
    Iscsi(Target),
    /// A subsystem; a zvol's number is its namespace's.
    Nvmeof(Subsystem),
}

const NVME_PORT: (&str, u16) = ("127.0.0.1", 4420);

// === impl Fabric ===

impl Fabric {
    /// A new target or subsystem without volumes.
    pub fn exporter(self, name: &str) -> Exporter {
        match self {
            Self::Iscsi => Exporter::Iscsi(Target::create(name, &["127.0.0.1:3260"], None)),
            Self::Nvmeof => Exporter::Nvmeof(Subsystem::create(name, &[NVME_PORT])),
        }
    }

    /// The class of sysfs that has an entry for each connection to storage.
    pub fn class(self) -> &'static str {
        match self {
            Self::Iscsi => "iscsi_session",
            Self::Nvmeof => "nvme",
        }
    }

    /// The port on which storage answers.
    pub fn port(self) -> u16 {
        match self {
            Self::Iscsi => 3260,
            Self::Nvmeof => NVME_PORT.1,
        }
    }
}

// === impl Exporter ===

impl Exporter {
    /// Gives a zvol a number; they begin with one.
    pub fn give(&self, number: u32, zvol: &Zvol) {
        self.give_over(number, zvol, &zvol.device());
    }

    /// The same, of a device that is over the zvol.
    pub fn give_over(&self, number: u32, zvol: &Zvol, device: &Path) {
        match self {
            Self::Iscsi(target) => target.attach_over(number - 1, zvol, device),
            Self::Nvmeof(subsystem) => subsystem.attach_over(number, zvol, device),
        }
    }

    /// Takes a number away.
    pub fn take(&self, number: u32, zvol: &Zvol) {
        match self {
            Self::Iscsi(target) => target.detach(number - 1, zvol),
            Self::Nvmeof(subsystem) => subsystem.detach(number),
        }
    }

    /// A volume as an administrator writes it down, who also writes down what it is called for good.
    pub fn fixture(&self, name: &str, number: u32, zvol: &Zvol, access: Access) -> Fixture {
        let (context, identity, export) = match self {
            Self::Iscsi(target) => (
                fixture::iscsi_context(target, number - 1),
                Target::identity(zvol),
                Export::Iscsi(target.clone(), number - 1),
            ),
            Self::Nvmeof(subsystem) => (
                fixture::nvmeof_context(&subsystem.nqn, &[NVME_PORT], number),
                Subsystem::identity(zvol),
                Export::Nvmeof(subsystem.clone(), number),
            ),
        };
        let mut made = Fixture::new(name, context, access, Backing::Zvol(zvol.clone()), export);
        let context = &mut made.volume.volume_context;
        context.insert("device_id".to_owned(), identity);
        made
    }

    /// Ends every connection from the node's side, by hand, whatever is mounted.
    pub fn disconnect_by_hand(&self) {
        use crate::lab::command::run;
        match self {
            Self::Iscsi(target) => {
                run(&["iscsiadm", "-m", "node", "-T", &target.iqn, "--logout"]);
            }
            Self::Nvmeof(subsystem) => {
                run(&["nvme", "disconnect", "-n", &subsystem.nqn]);
            }
        }
    }
}
