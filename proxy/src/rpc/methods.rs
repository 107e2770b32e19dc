//! The calls that are served, who makes them, and how long each may take.
//!
//! What they do is in `controller`, `node` and `identity`; which codes their callers understand is
//! in `status`.

use std::time::Duration;

use node_utils::Timeouts;

use crate::rpc::status::RpcGroup;

/// The calls that are served, by their names in the specification.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names are those of the specification")]
pub enum Rpc {
    GetPluginInfo,
    GetPluginCapabilities,
    Probe,
    CreateVolume,
    DeleteVolume,
    ControllerPublishVolume,
    ControllerUnpublishVolume,
    ValidateVolumeCapabilities,
    ListVolumes,
    GetCapacity,
    ControllerGetCapabilities,
    CreateSnapshot,
    DeleteSnapshot,
    ListSnapshots,
    GetSnapshot,
    ControllerExpandVolume,
    ControllerGetVolume,
    ControllerModifyVolume,
    NodeStageVolume,
    NodeUnstageVolume,
    NodePublishVolume,
    NodeUnpublishVolume,
    NodeGetVolumeStats,
    NodeExpandVolume,
    NodeGetCapabilities,
    NodeGetInfo,
}

/// How long work may take before it has to give up by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadlines {
    /// Work that may copy a whole volume. An interrupted copy starts again from the beginning, so a short
    /// deadline would make large volumes impossible.
    pub copying: Duration,
    /// Other work that changes the backend.
    pub changing: Duration,
    /// Queries.
    pub reading: Duration,
    /// Work on a node that mounts and unmounts.
    pub node: Duration,
    /// Work on a node that may attach a device, and make, check or grow what is on it.
    pub attaching: Duration,
}

// === impl Rpc ===

impl Rpc {
    /// Every call.
    pub const ALL: [Self; 26] = [
        Self::GetPluginInfo,
        Self::GetPluginCapabilities,
        Self::Probe,
        Self::CreateVolume,
        Self::DeleteVolume,
        Self::ControllerPublishVolume,
        Self::ControllerUnpublishVolume,
        Self::ValidateVolumeCapabilities,
        Self::ListVolumes,
        Self::GetCapacity,
        Self::ControllerGetCapabilities,
        Self::CreateSnapshot,
        Self::DeleteSnapshot,
        Self::ListSnapshots,
        Self::GetSnapshot,
        Self::ControllerExpandVolume,
        Self::ControllerGetVolume,
        Self::ControllerModifyVolume,
        Self::NodeStageVolume,
        Self::NodeUnstageVolume,
        Self::NodePublishVolume,
        Self::NodeUnpublishVolume,
        Self::NodeGetVolumeStats,
        Self::NodeExpandVolume,
        Self::NodeGetCapabilities,
        Self::NodeGetInfo,
    ];

    /// The name in the specification.
    pub fn name(self) -> &'static str {
        match self {
            Self::GetPluginInfo => "GetPluginInfo",
            Self::GetPluginCapabilities => "GetPluginCapabilities",
            Self::Probe => "Probe",
            Self::CreateVolume => "CreateVolume",
            Self::DeleteVolume => "DeleteVolume",
            Self::ControllerPublishVolume => "ControllerPublishVolume",
            Self::ControllerUnpublishVolume => "ControllerUnpublishVolume",
            Self::ValidateVolumeCapabilities => "ValidateVolumeCapabilities",
            Self::ListVolumes => "ListVolumes",
            Self::GetCapacity => "GetCapacity",
            Self::ControllerGetCapabilities => "ControllerGetCapabilities",
            Self::CreateSnapshot => "CreateSnapshot",
            Self::DeleteSnapshot => "DeleteSnapshot",
            Self::ListSnapshots => "ListSnapshots",
            Self::GetSnapshot => "GetSnapshot",
            Self::ControllerExpandVolume => "ControllerExpandVolume",
            Self::ControllerGetVolume => "ControllerGetVolume",
            Self::ControllerModifyVolume => "ControllerModifyVolume",
            Self::NodeStageVolume => "NodeStageVolume",
            Self::NodeUnstageVolume => "NodeUnstageVolume",
            Self::NodePublishVolume => "NodePublishVolume",
            Self::NodeUnpublishVolume => "NodeUnpublishVolume",
            Self::NodeGetVolumeStats => "NodeGetVolumeStats",
            Self::NodeExpandVolume => "NodeExpandVolume",
            Self::NodeGetCapabilities => "NodeGetCapabilities",
            Self::NodeGetInfo => "NodeGetInfo",
        }
    }

    /// Whether it changes anything, in the backend or on the node.
    pub(crate) fn changes(self) -> bool {
        !matches!(self, Self::NodeGetVolumeStats)
            && !matches!(self.group(), RpcGroup::Identity | RpcGroup::Query)
    }

    /// Who makes this call.
    pub fn group(self) -> RpcGroup {
        match self {
            Self::GetPluginInfo
            | Self::GetPluginCapabilities
            | Self::Probe
            | Self::ControllerGetCapabilities
            | Self::NodeGetCapabilities
            | Self::NodeGetInfo => RpcGroup::Identity,
            Self::CreateVolume | Self::DeleteVolume => RpcGroup::Provision,
            Self::ControllerPublishVolume | Self::ControllerUnpublishVolume => RpcGroup::Attach,
            Self::CreateSnapshot | Self::DeleteSnapshot => RpcGroup::Snapshot,
            Self::ControllerExpandVolume | Self::ControllerModifyVolume => RpcGroup::Resize,
            Self::ValidateVolumeCapabilities
            | Self::ListVolumes
            | Self::GetCapacity
            | Self::ListSnapshots
            | Self::GetSnapshot
            | Self::ControllerGetVolume => RpcGroup::Query,
            Self::NodeStageVolume
            | Self::NodeUnstageVolume
            | Self::NodePublishVolume
            | Self::NodeUnpublishVolume
            | Self::NodeGetVolumeStats
            | Self::NodeExpandVolume => RpcGroup::Node,
        }
    }
}

// === impl Deadlines ===

impl Default for Deadlines {
    fn default() -> Self {
        Self::for_programs(Timeouts::default())
    }
}

impl Deadlines {
    /// The deadlines of a node with these timeouts of programs: no call ends before its longest program.
    pub fn for_programs(timeouts: Timeouts) -> Self {
        let minutes = |n: u64| Duration::from_secs(60 * n);
        // More than one mount, one unmount, or one portal that does not answer.
        let slowest = timeouts.mount.max(timeouts.iscsi).max(timeouts.nvme);
        let node = minutes(5).max(3 * slowest);
        Self {
            copying: minutes(24 * 60),
            changing: minutes(10),
            reading: minutes(1),
            node,
            attaching: 2 * node + timeouts.filesystem,
        }
    }

    /// The time for one call.
    pub fn of(&self, rpc: Rpc) -> Duration {
        match (rpc, rpc.group()) {
            (Rpc::CreateVolume | Rpc::CreateSnapshot, _) => self.copying,
            (_, RpcGroup::Provision | RpcGroup::Attach | RpcGroup::Snapshot | RpcGroup::Resize) => {
                self.changing
            }
            (Rpc::NodeStageVolume | Rpc::NodeExpandVolume, _) => self.attaching,
            (Rpc::NodeGetVolumeStats, _) | (_, RpcGroup::Identity | RpcGroup::Query) => {
                self.reading
            }
            (_, RpcGroup::Node) => self.node,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_call_of_a_node_is_cut_before_the_longest_program_in_it() {
        let by_default = Deadlines::default();
        let minutes = |n: u64| Duration::from_secs(60 * n);
        assert_eq!(by_default.of(Rpc::NodeStageVolume), minutes(40));
        assert_eq!(by_default.of(Rpc::NodeExpandVolume), minutes(40));
        assert_eq!(by_default.of(Rpc::NodeUnstageVolume), minutes(5));
        assert_eq!(by_default.of(Rpc::NodeGetVolumeStats), minutes(1));
        let patient = Timeouts {
            mount: minutes(10),
            filesystem: minutes(600),
            ..Timeouts::default()
        };
        let patient = Deadlines::for_programs(patient);
        assert!(patient.of(Rpc::NodePublishVolume) > minutes(10));
        assert!(patient.of(Rpc::NodeStageVolume) > minutes(600));
    }
}
