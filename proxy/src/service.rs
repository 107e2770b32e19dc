//! The plugin as a whole: its name, its connections, and the gRPC services made of them.
//!
//! State that lives as long as the process is here and is passed down; nothing is static. Binding
//! sockets, signals and metrics endpoints are not known here.

use std::sync::Arc;

use driver_core::NodeId;
use tonic::service::Routes;

use crate::csi_version::CsiVersion;
use crate::identity::PluginName;
use crate::rpc::Runner;

/// Everything that answers calls.
#[derive(Debug)]
pub struct Plugin {
    /// The name under which the orchestrator knows it.
    pub name: PluginName,
    /// The version of the specification that it pretends to.
    pub version: CsiVersion,
    /// Which services it serves.
    pub modes: Modes,
    /// The node that it runs on.
    pub node_id: NodeId,
    /// Runs its calls.
    pub runner: Runner,
}

/// Which services are served besides Identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Modes {
    /// The Controller service.
    pub controller: bool,
    /// The Node service.
    pub node: bool,
}

// === impl Plugin ===

impl Plugin {
    /// The gRPC services.
    pub fn routes(self: Arc<Self>) -> Routes {
        Routes::default()
    }
}
