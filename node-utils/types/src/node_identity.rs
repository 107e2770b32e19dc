//! What a backend may need to know of a node to let it reach a volume.

use std::net::IpAddr;

use crate::attachment::{Iqn, Nqn};
use crate::id::NodeId;

/// A node, as a backend may know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeIdentity {
    /// What the backend of the connection calls it.
    pub id: NodeId,
    /// The id that it reported to the orchestrator.
    pub reported: NodeId,
    /// Its name in the orchestrator, if the node reported one.
    pub name: Option<String>,
    /// The name of its iSCSI initiator.
    pub iqn: Option<Iqn>,
    /// Its NVMe host name.
    pub nqn: Option<Nqn>,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
}

// === impl NodeIdentity ===

impl NodeIdentity {
    /// A node of which only the id is known.
    pub fn of(id: NodeId) -> Self {
        Self {
            reported: id.clone(),
            id,
            name: None,
            iqn: None,
            nqn: None,
            addresses: Vec::new(),
        }
    }
}
