//! The calls that are served, who makes them, and how long each may take.
//!
//! What they do is in `controller`, `node` and `identity`; which codes their callers understand is
//! in `status`.

use std::time::Duration;

use node_utils::Timeouts;

use crate::rpc::status::RpcGroup;

macro_rules! rpcs {
    ($($name:ident,)*) => {
        /// The calls that are served, by their names in the specification of CSI and of csi-addons. `Probe` is of both.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[expect(missing_docs, reason = "the names are those of the specification")]
        pub enum Rpc {
            $($name,)*
        }

        impl Rpc {
            /// Every call.
            pub const ALL: [Self; [$(stringify!($name)),*].len()] = [$(Self::$name),*];

            /// The name in the specification.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }
        }
    };
}

rpcs! {
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
    ControllerGetVolumeHealth,
    ControllerListVolumeHealth,
    ControllerModifyVolume,
    GroupControllerGetCapabilities,
    CreateVolumeGroupSnapshot,
    DeleteVolumeGroupSnapshot,
    GetVolumeGroupSnapshot,
    GetMetadataAllocated,
    GetMetadataDelta,
    NodeStageVolume,
    NodeUnstageVolume,
    NodePublishVolume,
    NodeUnpublishVolume,
    NodeGetVolumeStats,
    NodeGetVolumeHealth,
    NodeGetStorageHealth,
    NodeExpandVolume,
    NodeGetCapabilities,
    NodeGetInfo,
    GetIdentity,
    GetCapabilities,
    FenceClusterNetwork,
    UnfenceClusterNetwork,
    ListClusterFence,
    GetFenceClients,
    ControllerReclaimSpace,
    NodeReclaimSpace,
}

/// The time that work may take before it has to give up by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadlines {
    /// Work that may copy a whole volume. An interrupted copy starts again from the beginning, so a short
    /// deadline would make large volumes impossible.
    pub copying: Duration,
    /// Other work that changes the backend.
    pub changing: Duration,
    /// Queries.
    pub reading: Duration,
    /// Questions whose answer is a stream, all of it. One that is cut goes on where it was.
    pub streaming: Duration,
    /// Work on a node that mounts and unmounts.
    pub node: Duration,
    /// Work on a node that may attach a device, and make, check or grow what is on it.
    pub attaching: Duration,
}

// === impl Rpc ===

impl Rpc {
    /// Whether it changes anything, in the backend or on the node.
    pub(crate) fn changes(self) -> bool {
        let only_looks = matches!(
            self,
            Self::NodeGetVolumeStats | Self::NodeGetVolumeHealth | Self::NodeGetStorageHealth
        );
        !only_looks && !matches!(self.group(), RpcGroup::Identity | RpcGroup::Query)
    }

    /// Whether an earlier call may have started something that the caller forgets after a final code: what is to be
    /// made, or what is there on a node.
    pub(crate) fn is_forgotten(self) -> bool {
        matches!(
            self,
            Self::CreateVolume
                | Self::CreateSnapshot
                | Self::CreateVolumeGroupSnapshot
                | Self::NodeStageVolume
                | Self::NodeUnstageVolume
                | Self::NodePublishVolume
                | Self::NodeUnpublishVolume
                | Self::NodeExpandVolume
        )
    }

    /// Who makes this call.
    pub fn group(self) -> RpcGroup {
        match self {
            Self::GetPluginInfo
            | Self::GetPluginCapabilities
            | Self::Probe
            | Self::ControllerGetCapabilities
            | Self::GroupControllerGetCapabilities
            | Self::NodeGetCapabilities
            | Self::NodeGetInfo
            | Self::GetIdentity
            | Self::GetCapabilities => RpcGroup::Identity,
            Self::CreateVolume | Self::DeleteVolume => RpcGroup::Provision,
            Self::ControllerPublishVolume
            | Self::ControllerUnpublishVolume
            | Self::FenceClusterNetwork
            | Self::UnfenceClusterNetwork => RpcGroup::Attach,
            Self::CreateSnapshot
            | Self::DeleteSnapshot
            | Self::CreateVolumeGroupSnapshot
            | Self::DeleteVolumeGroupSnapshot => RpcGroup::Snapshot,
            Self::ControllerExpandVolume | Self::ControllerModifyVolume => RpcGroup::Resize,
            Self::ValidateVolumeCapabilities
            | Self::ListVolumes
            | Self::GetCapacity
            | Self::ListSnapshots
            | Self::GetSnapshot
            | Self::ControllerGetVolume
            | Self::ControllerGetVolumeHealth
            | Self::ControllerListVolumeHealth
            | Self::GetVolumeGroupSnapshot
            | Self::GetMetadataAllocated
            | Self::GetMetadataDelta
            | Self::ListClusterFence
            | Self::GetFenceClients
            | Self::ControllerReclaimSpace => RpcGroup::Query,
            Self::NodeStageVolume
            | Self::NodeUnstageVolume
            | Self::NodePublishVolume
            | Self::NodeUnpublishVolume
            | Self::NodeGetVolumeStats
            | Self::NodeGetVolumeHealth
            | Self::NodeGetStorageHealth
            | Self::NodeExpandVolume
            | Self::NodeReclaimSpace => RpcGroup::Node,
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
            streaming: minutes(60),
            node,
            attaching: 2 * node + timeouts.filesystem,
        }
    }

    /// The time for one call.
    pub fn of(&self, rpc: Rpc) -> Duration {
        match (rpc, rpc.group()) {
            (Rpc::CreateVolume | Rpc::CreateSnapshot | Rpc::CreateVolumeGroupSnapshot, _) => {
                self.copying
            }
            (Rpc::GetMetadataAllocated | Rpc::GetMetadataDelta, _) => self.streaming,
            (_, RpcGroup::Provision | RpcGroup::Attach | RpcGroup::Snapshot | RpcGroup::Resize) => {
                self.changing
            }
            (Rpc::NodeStageVolume | Rpc::NodeExpandVolume, _) => self.attaching,
            (Rpc::NodeGetVolumeStats | Rpc::NodeGetVolumeHealth | Rpc::NodeGetStorageHealth, _)
            | (_, RpcGroup::Identity | RpcGroup::Query) => self.reading,
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
