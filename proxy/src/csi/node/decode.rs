//! Requests of the Node service.

use csi_proto::v1;
use csi_types::attachment::{FENCES_NODES_KEY, PathError};
use csi_types::{AbsolutePath, VolumeCapability, VolumeContext};
use driver_core::SizeRange;
use driver_core::volume::Secrets;
use node_utils::{StagingPath, TargetPath};

use crate::csi::decode::{DecodeError, capability, maps, path, present, size, volume_handle};
use crate::routing::connections::VolumeHandle;

/// A volume to stage on this node.
#[derive(Debug)]
pub(crate) struct StageRequest {
    pub(crate) volume: VolumeHandle,
    pub(crate) staging: StagingPath,
    pub(crate) capability: VolumeCapability,
    pub(crate) secrets: Secrets,
    pub(crate) context: VolumeContext,
    /// Whether its storage keeps out a node that the volume is not published to any more.
    pub(crate) is_fenced: bool,
}

/// A volume to publish to a workload.
#[derive(Debug)]
pub(crate) struct PublishRequest {
    pub(crate) volume: VolumeHandle,
    pub(crate) staging: Option<StagingPath>,
    pub(crate) target: TargetPath,
    pub(crate) capability: VolumeCapability,
    pub(crate) readonly: bool,
    pub(crate) secrets: Secrets,
    pub(crate) context: VolumeContext,
}

/// A volume to unpublish from a path.
#[derive(Debug)]
pub(crate) struct UnpublishRequest {
    pub(crate) volume: VolumeHandle,
    pub(crate) target: TargetPath,
}

/// A volume that was expanded.
#[derive(Debug)]
pub(crate) struct NodeExpandRequest {
    pub(crate) volume: VolumeHandle,
    /// `None` is a relative path, which never has a volume.
    pub(crate) path: Option<AbsolutePath>,
    pub(crate) size: SizeRange,
    pub(crate) capability: Option<VolumeCapability>,
    pub(crate) secrets: Secrets,
}

impl TryFrom<v1::NodeStageVolumeRequest> for StageRequest {
    type Error = DecodeError;

    fn try_from(request: v1::NodeStageVolumeRequest) -> Result<Self, DecodeError> {
        let published = maps::map("publish_context", request.publish_context)?;
        Ok(Self {
            volume: volume_handle("volume_id", &request.volume_id)?,
            staging: staging(&request.staging_target_path)?,
            capability: capability::required(request.volume_capability)?,
            secrets: maps::secrets(request.secrets)?,
            context: maps::map("volume_context", request.volume_context)?,
            is_fenced: published
                .get(FENCES_NODES_KEY)
                .is_some_and(|word| word == "true"),
        })
    }
}

/// The volume to unstage, and where it is.
pub(crate) fn unstage(
    request: &v1::NodeUnstageVolumeRequest,
) -> Result<(VolumeHandle, StagingPath), DecodeError> {
    let volume = volume_handle("volume_id", &request.volume_id)?;
    Ok((volume, staging(&request.staging_target_path)?))
}

impl TryFrom<v1::NodePublishVolumeRequest> for PublishRequest {
    type Error = DecodeError;

    fn try_from(request: v1::NodePublishVolumeRequest) -> Result<Self, DecodeError> {
        maps::map("publish_context", request.publish_context)?;
        let secrets = maps::secrets(request.secrets)?;
        let staging = match request.staging_target_path.as_str() {
            "" => None,
            path => Some(staging(path)?),
        };
        Ok(Self {
            volume: volume_handle("volume_id", &request.volume_id)?,
            staging,
            target: target(&request.target_path)?,
            capability: capability::required(request.volume_capability)?,
            readonly: request.readonly,
            secrets,
            context: maps::map("volume_context", request.volume_context)?,
        })
    }
}

impl TryFrom<v1::NodeUnpublishVolumeRequest> for UnpublishRequest {
    type Error = DecodeError;

    fn try_from(request: v1::NodeUnpublishVolumeRequest) -> Result<Self, DecodeError> {
        Ok(Self {
            volume: volume_handle("volume_id", &request.volume_id)?,
            target: target(&request.target_path)?,
        })
    }
}

/// The volume to read, and where it is mounted. `None` is a relative path, which never has a
/// volume: the specification has `NOT_FOUND` for that.
pub(crate) fn stats(
    request: &v1::NodeGetVolumeStatsRequest,
) -> Result<(VolumeHandle, Option<AbsolutePath>), DecodeError> {
    let volume = volume_handle("volume_id", &request.volume_id)?;
    optional_staging(&request.staging_target_path)?;
    Ok((volume, place(&request.volume_path)?))
}

/// The volume whose health is asked for, and the paths where it is, or was to be: where its pod sees it comes first.
pub(crate) fn node_health(
    request: &v1::NodeGetVolumeHealthRequest,
) -> Result<(VolumeHandle, Vec<AbsolutePath>), DecodeError> {
    let volume = volume_handle("volume_id", &request.volume_id)?;
    let mut paths = Vec::new();
    for (field, text) in [
        ("volume_publish_path", &request.volume_publish_path),
        ("staging_target_path", &request.staging_target_path),
    ] {
        if !text.is_empty() {
            paths.push(path(field, text)?);
        }
    }
    Ok((volume, paths))
}

fn place(volume_path: &str) -> Result<Option<AbsolutePath>, DecodeError> {
    match AbsolutePath::parse(volume_path) {
        Err(PathError::Relative) => Ok(None),
        _ => path("volume_path", volume_path).map(Some),
    }
}

impl TryFrom<v1::NodeExpandVolumeRequest> for NodeExpandRequest {
    type Error = DecodeError;

    fn try_from(request: v1::NodeExpandVolumeRequest) -> Result<Self, DecodeError> {
        let secrets = maps::secrets(request.secrets)?;
        optional_staging(&request.staging_target_path)?;
        Ok(Self {
            volume: volume_handle("volume_id", &request.volume_id)?,
            path: place(&request.volume_path)?,
            size: size(request.capacity_range)?,
            capability: request.volume_capability.map(capability::one).transpose()?,
            secrets,
        })
    }
}

fn staging(path: &str) -> Result<StagingPath, DecodeError> {
    let field = "staging_target_path";
    present(field, path)?;
    StagingPath::parse(path).map_err(|error| DecodeError::new(field, error))
}

fn optional_staging(path: &str) -> Result<(), DecodeError> {
    if path.is_empty() {
        return Ok(());
    }
    staging(path).map(drop)
}

fn target(path: &str) -> Result<TargetPath, DecodeError> {
    let field = "target_path";
    present(field, path)?;
    TargetPath::parse(path).map_err(|error| DecodeError::new(field, error))
}
