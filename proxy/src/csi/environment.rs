//! The environment of a process, for all that is built in it.

use driver_core::NodeId;
use node_utils::Tools;

use crate::csi::plugin::Modes;
use crate::csi::spec_version::CsiVersion;

/// The environment of a process: where it runs, and for which orchestrator.
#[derive(Debug, Clone)]
pub struct Environment {
    /// The node.
    pub node: NodeId,
    /// The version of the specification to pretend to.
    pub version: CsiVersion,
    /// The programs that the node runs.
    pub tools: Tools,
    /// The services that it serves, if known.
    pub modes: Option<Modes>,
}
