//! The calls that are served, who makes them, and how long each may take.
//!
//! What they do is in `controller`, `node` and `identity`; which codes their callers understand is
//! in `status`.

use std::sync::Arc;
use std::time::Duration;

use node_utils::Timeouts;
use tonic::Code;
use tracing::{Span, field};

use crate::message::printable;

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

/// Calls that are made by the same caller, and so have the same reader of their codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RpcGroup {
    /// Identity, and what is advertised: every caller.
    Identity,
    /// Creation and deletion of volumes: external-provisioner.
    Provision,
    /// Publishing to a node and back: external-attacher. Shutting nodes out and letting them in again: csi-addons.
    Attach,
    /// Snapshots: external-snapshotter.
    Snapshot,
    /// Growth and changes of a volume: external-resizer.
    Resize,
    /// Questions, which change nothing.
    Query,
    /// The node: kubelet.
    Node,
}

/// The subject of a call, for logs and metrics: only these fields.
#[derive(Debug, Clone, Default)]
pub(crate) struct Subject {
    /// The connection; empty for the only one.
    pub(crate) connection: Arc<str>,
    /// The id of the volume.
    pub(crate) volume: Option<String>,
    /// The id, or the name, of the snapshot.
    pub(crate) snapshot: Option<String>,
    /// The handle of what a new volume is filled with.
    pub(crate) source: Option<String>,
    /// The wanted size in bytes.
    pub(crate) size: Option<u64>,
    /// The namespace and the name of the claim, where the provisioner tells them.
    pub(crate) claim: Option<String>,
    /// The path on the node.
    pub(crate) path: Option<String>,
    /// The node that a volume is published to, or not any more. Not in the log.
    pub(crate) node: Option<String>,
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

// === impl RpcGroup ===

impl RpcGroup {
    /// Every group, for tests that walk all of them.
    pub const ALL: [Self; 7] = [
        Self::Identity,
        Self::Provision,
        Self::Attach,
        Self::Snapshot,
        Self::Resize,
        Self::Query,
        Self::Node,
    ];
}

// === impl Subject ===

impl Subject {
    /// Adds the known fields to every later log line of the call.
    pub(crate) fn record(&self) {
        let span = Span::current();
        if !self.connection.is_empty() {
            span.record("connection", &*self.connection);
        }
        if let Some(size) = self.size {
            span.record("size", size);
        }
        let texts = [
            ("volume", &self.volume),
            ("snapshot", &self.snapshot),
            ("source", &self.source),
            ("claim", &self.claim),
            ("path", &self.path),
        ];
        for (name, value) in texts {
            if let Some(value) = value {
                span.record(name, field::display(printable(value)));
            }
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

/// The name of a code in the specification: in logs, metrics and messages alike.
pub(crate) fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_named_as_in_the_specification() {
        assert_eq!(code_name(Code::Ok), "OK");
        assert_eq!(code_name(Code::Cancelled), "CANCELLED");
        assert_eq!(code_name(Code::InvalidArgument), "INVALID_ARGUMENT");
    }

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
