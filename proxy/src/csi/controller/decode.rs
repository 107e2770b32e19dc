//! Requests of the Controller service.

use std::collections::BTreeMap;

use csi_proto::v1;
use csi_proto::v1::volume_content_source::Type as Content;
use csi_types::VolumeCapability;
use driver_core::volume::Secrets;
use driver_core::{
    CapacityQuery, Error, NodeId, PageRequest, Parameters, SizeRange, SnapshotName,
    TopologyRequirement, VolumeName,
};
use driver_node_manual::NodeManual;

use crate::csi::decode::{
    DecodeError, capability, maps, page, present, size, snapshot_handle, volume_handle,
};
use crate::routing::connections::{SnapshotHandle, VolumeHandle};

/// The beginning of the parameters that sidecars add.
const METADATA: &str = "csi.storage.k8s.io/";

/// A volume to create.
#[derive(Debug)]
pub(crate) struct CreateVolumeRequest {
    pub(crate) name: VolumeName,
    pub(crate) size: SizeRange,
    pub(crate) capabilities: Vec<VolumeCapability>,
    /// Mutable parameters lie over those of the class.
    pub(crate) parameters: Parameters,
    /// The mutable ones alone.
    pub(crate) mutable: Parameters,
    pub(crate) secrets: Secrets,
    pub(crate) source: Option<SourceHandle>,
    pub(crate) topology: TopologyRequirement,
}

/// The content source of a new volume, as the orchestrator names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SourceHandle {
    /// A snapshot.
    Snapshot(SnapshotHandle),
    /// Another volume.
    Volume(VolumeHandle),
}

/// A volume to publish to a node.
#[derive(Debug)]
pub(crate) struct ControllerPublishRequest {
    pub(crate) volume: VolumeHandle,
    pub(crate) node: NodeId,
    pub(crate) capability: VolumeCapability,
    pub(crate) readonly: bool,
    pub(crate) secrets: Secrets,
    /// Whether its context was written by hand, and the volume not created by a driver.
    pub(crate) by_hand: bool,
}

/// A volume to modify.
#[derive(Debug)]
pub(crate) struct ModifyRequest {
    pub(crate) volume: VolumeHandle,
    pub(crate) parameters: Parameters,
    pub(crate) secrets: Secrets,
}

/// A volume to unpublish from a node, or from all.
#[derive(Debug)]
pub(crate) struct ControllerUnpublishRequest {
    pub(crate) volume: VolumeHandle,
    pub(crate) node: Option<NodeId>,
    pub(crate) secrets: Secrets,
}

/// A check of the capabilities of a volume; the maps are echoed.
#[derive(Debug)]
pub(crate) struct ValidateRequest {
    pub(crate) volume: VolumeHandle,
    pub(crate) capabilities: Vec<VolumeCapability>,
    pub(crate) echo: v1::validate_volume_capabilities_response::Confirmed,
    pub(crate) secrets: Secrets,
}

/// A query for capacity.
#[derive(Debug)]
pub(crate) struct CapacityRequest {
    pub(crate) capabilities: Vec<VolumeCapability>,
    pub(crate) query: CapacityQuery,
}

/// A snapshot to create.
#[derive(Debug)]
pub(crate) struct CreateSnapshotRequest {
    pub(crate) name: SnapshotName,
    pub(crate) source: VolumeHandle,
    pub(crate) parameters: Parameters,
    pub(crate) secrets: Secrets,
}

/// A query for snapshots.
#[derive(Debug)]
pub(crate) struct ListSnapshotsRequest {
    pub(crate) source: Option<VolumeHandle>,
    pub(crate) snapshot: Option<SnapshotHandle>,
    pub(crate) page: PageRequest,
    pub(crate) secrets: Secrets,
}

/// A volume to expand.
#[derive(Debug)]
pub(crate) struct ExpandRequest {
    pub(crate) volume: VolumeHandle,
    pub(crate) size: SizeRange,
    pub(crate) capability: Option<VolumeCapability>,
    pub(crate) secrets: Secrets,
}

// === impl SourceHandle ===

impl SourceHandle {
    /// As the orchestrator wrote it.
    pub(crate) fn as_str(&self) -> &str {
        match self {
            Self::Snapshot(handle) => handle.as_str(),
            Self::Volume(handle) => handle.as_str(),
        }
    }
}

// === impl CreateVolumeRequest ===

impl TryFrom<v1::CreateVolumeRequest> for CreateVolumeRequest {
    type Error = DecodeError;

    fn try_from(request: v1::CreateVolumeRequest) -> Result<Self, DecodeError> {
        present("name", &request.name)?;
        let name =
            VolumeName::parse(&request.name).map_err(|error| DecodeError::new("name", error))?;
        let parameters = maps::map("parameters", request.parameters)?;
        let mutable = maps::map("mutable_parameters", request.mutable_parameters)?;
        Ok(Self {
            name,
            size: size(request.capacity_range)?,
            capabilities: capability::required_list(request.volume_capabilities)?,
            // The specification: a mutable parameter wins over an equal key.
            parameters: Parameters::new(parameters).under(&mutable),
            mutable: Parameters::new(mutable),
            secrets: maps::secrets(request.secrets)?,
            source: request.volume_content_source.map(source).transpose()?,
            topology: maps::requirement(request.accessibility_requirements)?,
        })
    }
}

fn source(source: v1::VolumeContentSource) -> Result<SourceHandle, DecodeError> {
    match source.r#type {
        None => Err(DecodeError::missing("volume_content_source.type")),
        Some(Content::Snapshot(from)) => {
            let field = "volume_content_source.snapshot.snapshot_id";
            snapshot_handle(field, &from.snapshot_id).map(SourceHandle::Snapshot)
        }
        Some(Content::Volume(from)) => {
            let field = "volume_content_source.volume.volume_id";
            volume_handle(field, &from.volume_id).map(SourceHandle::Volume)
        }
    }
}

/// The volume to delete.
pub(crate) fn delete_volume(
    request: v1::DeleteVolumeRequest,
) -> Result<(VolumeHandle, Secrets), DecodeError> {
    let secrets = maps::secrets(request.secrets)?;
    Ok((volume_handle("volume_id", &request.volume_id)?, secrets))
}

/// The volume to read.
pub(crate) fn get_volume(
    request: &v1::ControllerGetVolumeRequest,
) -> Result<VolumeHandle, DecodeError> {
    volume_handle("volume_id", &request.volume_id)
}

/// The volume whose health is asked for.
pub(crate) fn volume_health(
    request: v1::ControllerGetVolumeHealthRequest,
) -> Result<(VolumeHandle, Secrets), DecodeError> {
    let secrets = maps::secrets(request.secrets)?;
    Ok((volume_handle("volume_id", &request.volume_id)?, secrets))
}

/// The requested part of the list of unhealthy volumes. No storage needs secrets to tell.
pub(crate) fn volume_healths(
    request: v1::ControllerListVolumeHealthRequest,
) -> Result<PageRequest, Error> {
    maps::secrets(request.secrets)?;
    page(request.max_entries, request.starting_token)
}

/// The snapshot to delete.
pub(crate) fn delete_snapshot(
    request: v1::DeleteSnapshotRequest,
) -> Result<(SnapshotHandle, Secrets), DecodeError> {
    let secrets = maps::secrets(request.secrets)?;
    Ok((
        snapshot_handle("snapshot_id", &request.snapshot_id)?,
        secrets,
    ))
}

/// The snapshot to read.
pub(crate) fn get_snapshot(
    request: v1::GetSnapshotRequest,
) -> Result<(SnapshotHandle, Secrets), DecodeError> {
    let secrets = maps::secrets(request.secrets)?;
    Ok((
        snapshot_handle("snapshot_id", &request.snapshot_id)?,
        secrets,
    ))
}

// === impl ModifyRequest ===

impl TryFrom<v1::ControllerModifyVolumeRequest> for ModifyRequest {
    type Error = DecodeError;

    fn try_from(request: v1::ControllerModifyVolumeRequest) -> Result<Self, DecodeError> {
        let secrets = maps::secrets(request.secrets)?;
        let mut parameters = maps::map("mutable_parameters", request.mutable_parameters)?;
        // With `--extra-modify-metadata` the resizer adds the names of the claim and its volume to those of the class.
        parameters.retain(|key, _| !key.starts_with(METADATA));
        Ok(Self {
            secrets,
            volume: volume_handle("volume_id", &request.volume_id)?,
            parameters: Parameters::new(parameters),
        })
    }
}

// === impl ControllerPublishRequest ===

impl TryFrom<v1::ControllerPublishVolumeRequest> for ControllerPublishRequest {
    type Error = DecodeError;

    fn try_from(request: v1::ControllerPublishVolumeRequest) -> Result<Self, DecodeError> {
        let context = maps::map("volume_context", request.volume_context)?;
        let maker = context.get("provisioner_driver").map(String::as_str);
        Ok(Self {
            volume: volume_handle("volume_id", &request.volume_id)?,
            node: node(&request.node_id)?.ok_or(DecodeError::missing("node_id"))?,
            capability: capability::required(request.volume_capability)?,
            readonly: request.readonly,
            secrets: maps::secrets(request.secrets)?,
            by_hand: context.contains_key("node_attach_driver")
                && matches!(maker, None | Some(NodeManual::KIND)),
        })
    }
}

impl TryFrom<v1::ControllerUnpublishVolumeRequest> for ControllerUnpublishRequest {
    type Error = DecodeError;

    fn try_from(request: v1::ControllerUnpublishVolumeRequest) -> Result<Self, DecodeError> {
        let secrets = maps::secrets(request.secrets)?;
        Ok(Self {
            volume: volume_handle("volume_id", &request.volume_id)?,
            node: node(&request.node_id)?,
            secrets,
        })
    }
}

fn node(id: &str) -> Result<Option<NodeId>, DecodeError> {
    if id.is_empty() {
        return Ok(None);
    }
    NodeId::parse(id)
        .map(Some)
        .map_err(|error| DecodeError::new("node_id", error))
}

// === impl ValidateRequest ===

impl TryFrom<v1::ValidateVolumeCapabilitiesRequest> for ValidateRequest {
    type Error = DecodeError;

    fn try_from(request: v1::ValidateVolumeCapabilitiesRequest) -> Result<Self, DecodeError> {
        let secrets = maps::secrets(request.secrets)?;
        let volume = volume_handle("volume_id", &request.volume_id)?;
        let echo = v1::validate_volume_capabilities_response::Confirmed {
            volume_context: maps::map("volume_context", request.volume_context)?,
            volume_capabilities: request.volume_capabilities.clone(),
            parameters: maps::map("parameters", request.parameters)?,
            mutable_parameters: maps::map("mutable_parameters", request.mutable_parameters)?,
        };
        Ok(Self {
            volume,
            capabilities: capability::required_list(request.volume_capabilities)?,
            echo,
            secrets,
        })
    }
}

// === impl CapacityRequest ===

impl TryFrom<v1::GetCapacityRequest> for CapacityRequest {
    type Error = DecodeError;

    fn try_from(request: v1::GetCapacityRequest) -> Result<Self, DecodeError> {
        let parameters: BTreeMap<_, _> = maps::map("parameters", request.parameters)?;
        let topology = request
            .accessible_topology
            .filter(|place| !place.segments.is_empty())
            .map(|place| maps::topology("accessible_topology", place))
            .transpose()?;
        Ok(Self {
            capabilities: capability::list(request.volume_capabilities)?,
            query: CapacityQuery {
                parameters: Parameters::new(parameters),
                topology,
            },
        })
    }
}

// === impl CreateSnapshotRequest ===

impl TryFrom<v1::CreateSnapshotRequest> for CreateSnapshotRequest {
    type Error = DecodeError;

    fn try_from(request: v1::CreateSnapshotRequest) -> Result<Self, DecodeError> {
        present("name", &request.name)?;
        // Not passed on: only plugins that advertise topology of snapshots receive it.
        maps::requirement(request.accessibility_requirements)?;
        Ok(Self {
            name: SnapshotName::parse(&request.name)
                .map_err(|error| DecodeError::new("name", error))?,
            source: volume_handle("source_volume_id", &request.source_volume_id)?,
            parameters: Parameters::new(maps::map("parameters", request.parameters)?),
            secrets: maps::secrets(request.secrets)?,
        })
    }
}

// === impl ListSnapshotsRequest ===

impl ListSnapshotsRequest {
    /// Reads the request; a bad token is an error of its own kind.
    pub(crate) fn decode(request: v1::ListSnapshotsRequest) -> Result<Self, driver_core::Error> {
        let secrets = maps::secrets(request.secrets)?;
        let source = match request.source_volume_id.as_str() {
            "" => None,
            id => Some(volume_handle("source_volume_id", id)?),
        };
        let snapshot = match request.snapshot_id.as_str() {
            "" => None,
            id => Some(snapshot_handle("snapshot_id", id)?),
        };
        Ok(Self {
            source,
            snapshot,
            page: page(request.max_entries, request.starting_token)?,
            secrets,
        })
    }
}

// === impl ExpandRequest ===

impl TryFrom<v1::ControllerExpandVolumeRequest> for ExpandRequest {
    type Error = DecodeError;

    fn try_from(request: v1::ControllerExpandVolumeRequest) -> Result<Self, DecodeError> {
        let secrets = maps::secrets(request.secrets)?;
        let volume = volume_handle("volume_id", &request.volume_id)?;
        let size = size(request.capacity_range)?;
        if size.is_any() {
            return Err(DecodeError::missing("capacity_range"));
        }
        Ok(Self {
            volume,
            size,
            capability: request.volume_capability.map(capability::one).transpose()?,
            secrets,
        })
    }
}
