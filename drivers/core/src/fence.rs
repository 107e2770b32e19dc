//! Networks that are shut out from a storage.

use std::fmt;
use std::net::IpAddr;

use csi_types::{Network, NodeId};

/// The verb without which a driver fences nothing.
pub const FENCE: &str = "fence networks";

/// The networks that a call is about.
#[derive(Clone, Copy)]
pub struct FenceNetworks<'a> {
    /// The networks; never none.
    pub networks: &'a [Network],
    /// The addresses that a node reports with its id.
    pub addresses_of: &'a (dyn Fn(&NodeId) -> Vec<IpAddr> + Sync),
}

/// A node that a storage lets in, as it is recorded there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FenceClient {
    /// The id that it reports.
    pub node: NodeId,
    /// The addresses by which the storage knows it, or that the configuration gives it.
    pub addresses: Vec<IpAddr>,
}

impl fmt::Debug for FenceNetworks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FenceNetworks")
            .field("networks", &self.networks)
            .finish_non_exhaustive()
    }
}
