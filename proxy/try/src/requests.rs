//! Requests as an orchestrator sends them, to be varied by who asks.

use std::collections::BTreeMap;
use std::path::Path;

use csi_proto::v1::volume_capability::access_mode::Mode;
use csi_proto::v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use csi_proto::v1::volume_content_source::{SnapshotSource, Type, VolumeSource};
use csi_proto::v1::{
    CapacityRange, ControllerExpandVolumeRequest, CreateSnapshotRequest, CreateVolumeRequest,
    DeleteSnapshotRequest, DeleteVolumeRequest, NodeExpandVolumeRequest, NodePublishVolumeRequest,
    NodeStageVolumeRequest, NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest, Volume,
    VolumeCapability, VolumeContentSource,
};

/// The size of a volume, if nothing else is said.
pub const SIZE: i64 = 64 << 20;

/// A capability for a mounted filesystem.
pub fn mounted(mode: Mode) -> VolumeCapability {
    VolumeCapability {
        access_mode: Some(AccessMode { mode: mode.into() }),
        access_type: Some(AccessType::Mount(MountVolume::default())),
    }
}

/// A capability for a raw device.
pub fn block(mode: Mode) -> VolumeCapability {
    VolumeCapability {
        access_mode: Some(AccessMode { mode: mode.into() }),
        access_type: Some(AccessType::Block(BlockVolume {})),
    }
}

/// A range with a lower bound.
pub fn at_least(bytes: i64) -> Option<CapacityRange> {
    Some(CapacityRange {
        required_bytes: bytes,
        limit_bytes: 0,
    })
}

/// The parameters of a class.
pub fn parameters(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    let pair = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    pairs.iter().map(pair).collect()
}

/// A new volume that one node mounts.
pub fn create(name: &str, parameters: &BTreeMap<String, String>) -> CreateVolumeRequest {
    CreateVolumeRequest {
        name: name.to_owned(),
        capacity_range: at_least(SIZE),
        volume_capabilities: vec![mounted(Mode::SingleNodeWriter)],
        parameters: parameters.clone(),
        ..CreateVolumeRequest::default()
    }
}

/// The content of a snapshot as a source.
pub fn from_snapshot(id: &str) -> Option<VolumeContentSource> {
    let snapshot_id = id.to_owned();
    Some(VolumeContentSource {
        r#type: Some(Type::Snapshot(SnapshotSource { snapshot_id })),
    })
}

/// The content of a volume as a source.
pub fn from_volume(id: &str) -> Option<VolumeContentSource> {
    let volume_id = id.to_owned();
    Some(VolumeContentSource {
        r#type: Some(Type::Volume(VolumeSource { volume_id })),
    })
}

/// The end of a volume.
pub fn delete(volume_id: &str) -> DeleteVolumeRequest {
    DeleteVolumeRequest {
        volume_id: volume_id.to_owned(),
        ..DeleteVolumeRequest::default()
    }
}

/// A new snapshot.
pub fn snapshot(name: &str, volume_id: &str) -> CreateSnapshotRequest {
    CreateSnapshotRequest {
        name: name.to_owned(),
        source_volume_id: volume_id.to_owned(),
        ..CreateSnapshotRequest::default()
    }
}

/// The end of a snapshot.
pub fn delete_snapshot(snapshot_id: &str) -> DeleteSnapshotRequest {
    DeleteSnapshotRequest {
        snapshot_id: snapshot_id.to_owned(),
        ..DeleteSnapshotRequest::default()
    }
}

/// A larger volume.
pub fn expand(volume_id: &str, bytes: i64) -> ControllerExpandVolumeRequest {
    ControllerExpandVolumeRequest {
        volume_id: volume_id.to_owned(),
        capacity_range: at_least(bytes),
        ..ControllerExpandVolumeRequest::default()
    }
}

/// A larger volume, grown on the node at the path where it is mounted.
pub fn expand_on_node(
    larger: &ControllerExpandVolumeRequest,
    path: &Path,
) -> NodeExpandVolumeRequest {
    NodeExpandVolumeRequest {
        volume_id: larger.volume_id.clone(),
        volume_path: path.display().to_string(),
        capacity_range: larger.capacity_range,
        volume_capability: larger.volume_capability.clone(),
        ..NodeExpandVolumeRequest::default()
    }
}

/// A volume made ready on a node.
pub fn stage(volume: &Volume, staging: &Path) -> NodeStageVolumeRequest {
    NodeStageVolumeRequest {
        volume_id: volume.volume_id.clone(),
        staging_target_path: text(staging),
        volume_capability: Some(mounted(Mode::SingleNodeWriter)),
        volume_context: volume.volume_context.clone(),
        ..NodeStageVolumeRequest::default()
    }
}

/// A volume no longer needed on a node.
pub fn unstage(volume: &Volume, staging: &Path) -> NodeUnstageVolumeRequest {
    NodeUnstageVolumeRequest {
        volume_id: volume.volume_id.clone(),
        staging_target_path: text(staging),
    }
}

/// A volume given to a pod.
pub fn publish(volume: &Volume, staging: &Path, target: &Path) -> NodePublishVolumeRequest {
    NodePublishVolumeRequest {
        volume_id: volume.volume_id.clone(),
        staging_target_path: text(staging),
        target_path: text(target),
        volume_capability: Some(mounted(Mode::SingleNodeWriter)),
        volume_context: volume.volume_context.clone(),
        ..NodePublishVolumeRequest::default()
    }
}

/// A volume taken from a pod.
pub fn unpublish(volume: &Volume, target: &Path) -> NodeUnpublishVolumeRequest {
    NodeUnpublishVolumeRequest {
        volume_id: volume.volume_id.clone(),
        target_path: text(target),
    }
}

fn text(path: &Path) -> String {
    path.display().to_string()
}
