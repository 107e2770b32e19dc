//! NVMe over fabrics: connecting to a subsystem, finding the namespace, and giving it up.
//!
//! Only the connecting itself is done by `nvme connect`; everything else is read from and written
//! to sysfs, and success is what sysfs shows. Volumes of one subsystem share its connections. The
//! truth is in the kernel's `drivers/nvme/host` and nvme-connect(1); see `docs/compatibility.md`.

mod attach;
mod connect;
mod controller;
mod detach;
mod host;
mod namespace;
mod route;
#[cfg(test)]
mod tests;

use std::fmt;
use std::time::Duration;

use exec::Runner;

pub use attach::attach;
pub use detach::detach;
pub use namespace::{facts_of, rescan};
pub use route::{Fabric, InvalidRoute, Route};

/// The volume that is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// The subsystem and the namespace.
    pub facts: NvmeFacts,
    /// The ways to it; one that works is enough.
    pub routes: Vec<Route>,
    /// The identifier that the namespace must have, as sysfs writes it.
    pub identity: Option<String>,
}

/// What detaching has to know, and what a record of a staged volume keeps: one line of text.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NvmeFacts {
    nqn: String,
    nsid: u32,
}

/// Where programs run.
#[derive(Debug, Clone, Copy)]
pub struct Reach<'a> {
    /// `nvme` of the image.
    pub here: &'a dyn Runner,
    /// Programs of the host.
    pub host: &'a dyn Runner,
    /// How long one `nvme connect` may take.
    pub timeout: Duration,
}

// === impl NvmeFacts ===

impl NvmeFacts {
    /// Checks the name of a subsystem and the number of a namespace.
    pub fn new(nqn: &str, nsid: u32) -> Option<Self> {
        // 223 bytes are the limit of the specification; 0 and all ones are no namespaces.
        let is_name = nqn.starts_with("nqn.")
            && nqn.len() <= 223
            && nqn
                .bytes()
                .all(|byte| byte.is_ascii_graphic() && byte != b',');
        (is_name && nsid != 0 && nsid != u32::MAX).then(|| Self {
            nqn: nqn.to_owned(),
            nsid,
        })
    }

    /// Reads the text form.
    pub fn parse(text: &str) -> Option<Self> {
        let (nsid, nqn) = text.strip_prefix("nvme ")?.split_once(' ')?;
        Self::new(nqn, nsid.parse().ok()?)
    }

    /// The name of the subsystem.
    pub fn nqn(&self) -> &str {
        &self.nqn
    }

    /// The number of the namespace in it.
    pub fn nsid(&self) -> u32 {
        self.nsid
    }
}

impl fmt::Display for NvmeFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "nvme {} {}", self.nsid, self.nqn)
    }
}
