//! NVMe over fabrics: attaches and detaches the namespaces of subsystems.
//!
//! `nvme connect` makes connections, or the kernel by itself where there is a key. Everything else is read from and
//! written to sysfs, which also decides about success. Volumes of one subsystem share its connections. Sources: the kernel's
//! `drivers/nvme/host` and nvme-connect(1); see `docs/compatibility.md`.

mod attach;
mod authenticated;
mod connect;
mod controller;
mod detach;
mod host_identity;
mod namespace;
mod request;
mod request_size;
#[cfg(test)]
mod tests;

use std::fmt;

pub use attach::{attach, lacking};
pub use detach::detach;
pub use namespace::{facts_of, rescan};

use crate::device::BlockDevice;
use crate::kernel::Kernel;
use crate::mount::MountTable;
use controller::{Controller, State};
use csi_types::attachment::{Nqn, Nsid, Nvmeof};
use csi_types::error::{Error, Kind};
use host_identity::HostIdentity;

/// The name by which this machine introduces itself to subsystems that it is not connected to yet, unless
/// a volume says another one.
pub fn host_nqn(kernel: &Kernel) -> Result<String, Error> {
    let doing = "find an NVMe name for this machine";
    let mounts =
        MountTable::read().map_err(|error| Error::new(Kind::Internal, doing).because(error))?;
    Ok(HostIdentity::of_this_machine(kernel, &mounts)?.nqn)
}

/// The subsystem of a disk that came over a network, and of each connection with it whether it works; `None` if it
/// came another way.
pub fn connections_of(
    kernel: &Kernel,
    device: &BlockDevice,
) -> Result<Option<(String, Vec<bool>)>, Error> {
    let Some(facts) = facts_of(kernel, device)? else {
        return Ok(None);
    };
    let controllers = Controller::of(kernel, facts.nqn())?;
    let states = controllers.iter().map(|one| one.state == State::Live);
    Ok(Some((facts.nqn().to_string(), states.collect())))
}

/// Whether a volume says a key, of a host or of a connection.
pub(crate) fn says_key(volume: &Nvmeof) -> bool {
    volume.transports.iter().any(connect::says_key)
}

/// The facts that a detach needs, as the record of a staged volume keeps them: one line of text.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NvmeFacts {
    nqn: Nqn,
    nsid: Nsid,
}

// === impl NvmeFacts ===

impl NvmeFacts {
    /// Those of a volume.
    pub fn of(volume: &Nvmeof) -> Self {
        Self {
            nqn: volume.nqn.clone(),
            nsid: volume.nsid,
        }
    }

    /// Reads the text form.
    pub fn parse(text: &str) -> Option<Self> {
        let (nsid, nqn) = text.strip_prefix("nvme ")?.split_once(' ')?;
        Some(Self {
            nqn: Nqn::parse(nqn).ok()?,
            nsid: Nsid::parse(nsid).ok()?,
        })
    }

    /// The name of the subsystem.
    pub fn nqn(&self) -> &Nqn {
        &self.nqn
    }

    /// The number of the namespace in it.
    pub fn nsid(&self) -> Nsid {
        self.nsid
    }
}

impl fmt::Display for NvmeFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "nvme {} {}", self.nsid, self.nqn)
    }
}
