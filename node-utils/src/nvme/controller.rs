//! Controllers: the connections of this machine, as sysfs shows them.

use std::net::IpAddr;
use std::path::PathBuf;

use crate::device::unreadable;
use crate::kernel::{self, Kernel};
use csi_types::attachment::{Fabric, Nqn, Transport};
use csi_types::error::Error;

/// One connection to a subsystem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Controller {
    /// Its name: `nvme0`.
    pub(super) name: String,
    nqn: String,
    transport: String,
    address: Vec<(String, String)>,
    pub(super) state: State,
    host_nqn: Option<String>,
    host_id: Option<String>,
}

/// The usability of a controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// It works.
    Live,
    /// It does not work yet, or not now: the kernel is connecting and goes on trying.
    Coming,
    /// It is on its way out, and nothing brings it back.
    Going,
}

// === impl State ===

impl State {
    fn parse(text: &str) -> Self {
        match text {
            "live" => Self::Live,
            // Also "deleting (no IO)".
            gone if gone.starts_with("deleting") || gone == "dead" => Self::Going,
            _ => Self::Coming,
        }
    }
}

// === impl Controller ===

impl Controller {
    /// All there are, of whatever subsystem and kind.
    pub(super) fn all(kernel: &Kernel) -> Result<Vec<Self>, Error> {
        let class = kernel.sys("class/nvme");
        let names = kernel::list(&class).map_err(|error| unreadable(&class, error))?;
        let mut controllers = Vec::with_capacity(names.len());
        for name in names {
            controllers.extend(Self::read(kernel, name)?);
        }
        Ok(controllers)
    }

    /// Those of one subsystem that come over a network: a local disk is never ours.
    pub(super) fn of(kernel: &Kernel, nqn: &Nqn) -> Result<Vec<Self>, Error> {
        let mut all = Self::all(kernel)?;
        all.retain(|controller| controller.nqn == nqn.as_str() && controller.fabric().is_some());
        Ok(all)
    }

    /// Reads one; `None` if it has gone, or shows too little to be used.
    fn read(kernel: &Kernel, name: String) -> Result<Option<Self>, Error> {
        let directory = kernel.sys("class/nvme").join(&name);
        let attribute = |attribute: &str| {
            let path = directory.join(attribute);
            kernel::read(&path).map_err(|error| unreadable(&path, error))
        };
        let [nqn, transport, state] = ["subsysnqn", "transport", "state"].map(attribute);
        let (Some(nqn), Some(transport), Some(state)) = (nqn?, transport?, state?) else {
            return Ok(None);
        };
        // Newer kernels separate by commas, the tools of old by spaces.
        let address = attribute("address")?.unwrap_or_default();
        let address = address
            .split([',', ' '])
            .filter_map(|field| field.split_once('='))
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect();
        Ok(Some(Self {
            name,
            nqn,
            transport,
            address,
            state: State::parse(&state),
            host_nqn: attribute("hostnqn")?,
            host_id: attribute("hostid")?,
        }))
    }

    /// The network it goes over; `None` for local disks.
    pub(super) fn fabric(&self) -> Option<Fabric> {
        [Fabric::Tcp, Fabric::Rdma, Fabric::Fc]
            .into_iter()
            .find(|fabric| fabric.as_str() == self.transport)
    }

    /// Whether it is a disk of this machine in the subsystem `nqn`.
    pub(super) fn is_local(&self, nqn: &Nqn) -> bool {
        self.nqn == nqn.as_str() && self.fabric().is_none()
    }

    /// The host identity of the connection: name and identifier.
    pub(super) fn host(&self) -> Option<(&str, &str)> {
        Some((self.host_nqn.as_deref()?, self.host_id.as_deref()?))
    }

    /// Whether it goes this way, whose name was looked up to `addresses`.
    pub(super) fn goes(&self, way: &Transport, addresses: &[String]) -> bool {
        let same_place = addresses.iter().any(|address| {
            let Some(ours) = self.field("traddr") else {
                return false;
            };
            match (ip(ours), ip(address)) {
                (Some(ours), Some(other)) => ours == other,
                _ => ours.eq_ignore_ascii_case(address),
            }
        });
        // The kernel shows no port if none was given.
        let port = match self.field("trsvcid") {
            Some(port) => port.parse().ok(),
            None => way.port.and(Some(4420)),
        };
        // Two ways may differ only in where they leave this machine.
        let leaves = |field: &str, name: &str| {
            option(way, name).is_none_or(|wanted| self.field(field) == Some(wanted))
        };
        self.fabric() == Some(way.fabric)
            && same_place
            && port == way.port
            && leaves("host_traddr", "host-traddr")
            && leaves("host_iface", "host-iface")
    }

    /// Its directory in sysfs.
    pub(super) fn directory(&self, kernel: &Kernel) -> PathBuf {
        kernel.sys("class/nvme").join(&self.name)
    }

    fn field(&self, name: &str) -> Option<&str> {
        let mut fields = self.address.iter();
        fields
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }
}

/// The value of an option of a transport.
pub(super) fn option<'a>(way: &'a Transport, name: &str) -> Option<&'a str> {
    let mut options = way.options.iter();
    options
        .find(|option| option.name == name)
        .map(|option| option.value.as_str())
}

/// An address, without the interface that may stand behind one that is local to a link.
pub(super) fn ip(text: &str) -> Option<IpAddr> {
    text.split('%').next()?.parse().ok()
}
