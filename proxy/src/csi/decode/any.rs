//! Any request by the name of its call: what fuzzing and property tests go through.

use csi_proto::{fence, reclaimspace, v1};
use driver_core::Error;
use prost::Message;

use super::{
    CapacityRequest, ControllerPublishRequest, ControllerUnpublishRequest, CreateGroupRequest,
    CreateSnapshotRequest, CreateVolumeRequest, ExpandRequest, FenceRequest, GroupRequest,
    ListSnapshotsRequest, ModifyRequest, NodeExpandRequest, NodeReclaimRequest, PublishRequest,
    RangesRequest, ReclaimRequest, StageRequest, UnpublishRequest, ValidateRequest,
    delete_snapshot, delete_volume, fence_query, get_snapshot, get_volume, node_health, page,
    stats, unstage, volume_health, volume_healths,
};
use crate::rpc::Rpc;

/// Decodes the bytes of a request of `rpc` as its service does, and drops the result. `None` if
/// they are no message at all.
pub fn request(rpc: Rpc, bytes: &[u8]) -> Option<Result<(), Error>> {
    match rpc {
        Rpc::CreateVolume => read(bytes, |r: v1::CreateVolumeRequest| {
            Ok(CreateVolumeRequest::try_from(r).map(drop)?)
        }),
        Rpc::DeleteVolume => read(bytes, |r| Ok(delete_volume(r).map(drop)?)),
        Rpc::ControllerPublishVolume => read(bytes, |r: v1::ControllerPublishVolumeRequest| {
            Ok(ControllerPublishRequest::try_from(r).map(drop)?)
        }),
        Rpc::ControllerUnpublishVolume => read(bytes, |r: v1::ControllerUnpublishVolumeRequest| {
            Ok(ControllerUnpublishRequest::try_from(r).map(drop)?)
        }),
        Rpc::ValidateVolumeCapabilities => {
            read(bytes, |r: v1::ValidateVolumeCapabilitiesRequest| {
                Ok(ValidateRequest::try_from(r).map(drop)?)
            })
        }
        Rpc::ListVolumes => read(bytes, |r: v1::ListVolumesRequest| {
            page(r.max_entries, r.starting_token).map(drop)
        }),
        Rpc::GetCapacity => read(bytes, |r: v1::GetCapacityRequest| {
            Ok(CapacityRequest::try_from(r).map(drop)?)
        }),
        Rpc::CreateSnapshot => read(bytes, |r: v1::CreateSnapshotRequest| {
            Ok(CreateSnapshotRequest::try_from(r).map(drop)?)
        }),
        Rpc::DeleteSnapshot => read(bytes, |r| Ok(delete_snapshot(r).map(drop)?)),
        Rpc::ListSnapshots => read(bytes, |r| ListSnapshotsRequest::decode(r).map(drop)),
        Rpc::GetSnapshot => read(bytes, |r| Ok(get_snapshot(r).map(drop)?)),
        Rpc::ControllerExpandVolume => read(bytes, |r: v1::ControllerExpandVolumeRequest| {
            Ok(ExpandRequest::try_from(r).map(drop)?)
        }),
        Rpc::ControllerGetVolume => read(bytes, |r| Ok(get_volume(&r).map(drop)?)),
        Rpc::ControllerGetVolumeHealth => read(bytes, |r| Ok(volume_health(r).map(drop)?)),
        Rpc::ControllerListVolumeHealth => read(bytes, |r| volume_healths(r).map(drop)),
        Rpc::ControllerModifyVolume => read(bytes, |r: v1::ControllerModifyVolumeRequest| {
            Ok(ModifyRequest::try_from(r).map(drop)?)
        }),
        Rpc::CreateVolumeGroupSnapshot => read(bytes, |r: v1::CreateVolumeGroupSnapshotRequest| {
            Ok(CreateGroupRequest::try_from(r).map(drop)?)
        }),
        Rpc::DeleteVolumeGroupSnapshot => read(bytes, |r: v1::DeleteVolumeGroupSnapshotRequest| {
            Ok(GroupRequest::try_from(r).map(drop)?)
        }),
        Rpc::GetVolumeGroupSnapshot => read(bytes, |r: v1::GetVolumeGroupSnapshotRequest| {
            Ok(GroupRequest::try_from(r).map(drop)?)
        }),
        Rpc::GetMetadataAllocated => read(bytes, |r| RangesRequest::allocated(r).map(drop)),
        Rpc::GetMetadataDelta => read(bytes, |r| RangesRequest::delta(r).map(drop)),
        Rpc::NodeStageVolume => read(bytes, |r: v1::NodeStageVolumeRequest| {
            Ok(StageRequest::try_from(r).map(drop)?)
        }),
        Rpc::NodeUnstageVolume => read(bytes, |r| Ok(unstage(&r).map(drop)?)),
        Rpc::NodePublishVolume => read(bytes, |r: v1::NodePublishVolumeRequest| {
            Ok(PublishRequest::try_from(r).map(drop)?)
        }),
        Rpc::NodeUnpublishVolume => read(bytes, |r: v1::NodeUnpublishVolumeRequest| {
            Ok(UnpublishRequest::try_from(r).map(drop)?)
        }),
        Rpc::NodeGetVolumeHealth => read(bytes, |r| Ok(node_health(&r).map(drop)?)),
        Rpc::NodeGetVolumeStats => read(bytes, |r| Ok(stats(&r).map(drop)?)),
        Rpc::NodeExpandVolume => read(bytes, |r: v1::NodeExpandVolumeRequest| {
            Ok(NodeExpandRequest::try_from(r).map(drop)?)
        }),
        Rpc::FenceClusterNetwork
        | Rpc::UnfenceClusterNetwork
        | Rpc::ListClusterFence
        | Rpc::GetFenceClients
        | Rpc::ControllerReclaimSpace
        | Rpc::NodeReclaimSpace => of_addons(rpc, bytes),
        // No field of these is used.
        Rpc::GetPluginInfo
        | Rpc::GetPluginCapabilities
        | Rpc::Probe
        | Rpc::ControllerGetCapabilities
        | Rpc::GroupControllerGetCapabilities
        | Rpc::NodeGetStorageHealth
        | Rpc::NodeGetCapabilities
        | Rpc::NodeGetInfo
        | Rpc::GetIdentity
        | Rpc::GetCapabilities => Some(Ok(())),
    }
}

/// The same of csi-addons.
fn of_addons(rpc: Rpc, bytes: &[u8]) -> Option<Result<(), Error>> {
    match rpc {
        Rpc::FenceClusterNetwork => read(bytes, |r: fence::FenceClusterNetworkRequest| {
            Ok(FenceRequest::try_from(r).map(drop)?)
        }),
        Rpc::UnfenceClusterNetwork => read(bytes, |r: fence::UnfenceClusterNetworkRequest| {
            Ok(FenceRequest::try_from(r).map(drop)?)
        }),
        Rpc::ListClusterFence => read(bytes, |r: fence::ListClusterFenceRequest| {
            Ok(fence_query(r.parameters, r.secrets).map(drop)?)
        }),
        Rpc::GetFenceClients => read(bytes, |r: fence::GetFenceClientsRequest| {
            Ok(fence_query(r.parameters, r.secrets).map(drop)?)
        }),
        Rpc::ControllerReclaimSpace => {
            read(bytes, |r: reclaimspace::ControllerReclaimSpaceRequest| {
                Ok(ReclaimRequest::try_from(r).map(drop)?)
            })
        }
        Rpc::NodeReclaimSpace => read(bytes, |r: reclaimspace::NodeReclaimSpaceRequest| {
            Ok(NodeReclaimRequest::try_from(r).map(drop)?)
        }),
        _ => None,
    }
}

fn read<M: Message + Default>(
    bytes: &[u8],
    decode: impl FnOnce(M) -> Result<(), Error>,
) -> Option<Result<(), Error>> {
    M::decode(bytes).ok().map(decode)
}
