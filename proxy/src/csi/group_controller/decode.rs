//! Requests of the `GroupController` service.

use csi_proto::v1;
use driver_core::{Parameters, Secrets, SnapshotName};

use crate::csi::decode::{
    DecodeError, group_handle, maps, present, snapshot_handle, volume_handle,
};
use crate::routing::connections::{GroupHandle, SnapshotHandle, VolumeHandle};

/// A group of snapshots to be taken.
#[derive(Debug)]
pub(crate) struct CreateGroupRequest {
    pub(crate) name: SnapshotName,
    pub(crate) volumes: Vec<VolumeHandle>,
    pub(crate) parameters: Parameters,
    pub(crate) secrets: Secrets,
}

/// A group, and the snapshots that should be in it.
#[derive(Debug)]
pub(crate) struct GroupRequest {
    pub(crate) group: GroupHandle,
    pub(crate) snapshots: Vec<SnapshotHandle>,
    pub(crate) secrets: Secrets,
}

// === impl CreateGroupRequest ===

impl TryFrom<v1::CreateVolumeGroupSnapshotRequest> for CreateGroupRequest {
    type Error = DecodeError;

    fn try_from(request: v1::CreateVolumeGroupSnapshotRequest) -> Result<Self, DecodeError> {
        const FIELD: &str = "source_volume_ids";
        let secrets = maps::secrets(request.secrets)?;
        present("name", &request.name)?;
        let ids = request.source_volume_ids.iter();
        if ids.len() == 0 {
            return Err(DecodeError::missing(FIELD));
        }
        Ok(Self {
            name: SnapshotName::parse(&request.name)
                .map_err(|error| DecodeError::new("name", error))?,
            volumes: ids
                .map(|id| volume_handle(FIELD, id))
                .collect::<Result<_, _>>()?,
            parameters: Parameters::new(maps::map("parameters", request.parameters)?),
            secrets,
        })
    }
}

// === impl GroupRequest ===

impl TryFrom<v1::DeleteVolumeGroupSnapshotRequest> for GroupRequest {
    type Error = DecodeError;

    fn try_from(request: v1::DeleteVolumeGroupSnapshotRequest) -> Result<Self, DecodeError> {
        let secrets = maps::secrets(request.secrets)?;
        Self::read(&request.group_snapshot_id, &request.snapshot_ids, secrets)
    }
}

impl TryFrom<v1::GetVolumeGroupSnapshotRequest> for GroupRequest {
    type Error = DecodeError;

    fn try_from(request: v1::GetVolumeGroupSnapshotRequest) -> Result<Self, DecodeError> {
        let secrets = maps::secrets(request.secrets)?;
        Self::read(&request.group_snapshot_id, &request.snapshot_ids, secrets)
    }
}

impl GroupRequest {
    fn read(group: &str, snapshots: &[String], secrets: Secrets) -> Result<Self, DecodeError> {
        const FIELD: &str = "snapshot_ids";
        Ok(Self {
            group: group_handle("group_snapshot_id", group)?,
            // Without any it is no list of a group that exists, and a group that does not exist has none.
            snapshots: snapshots
                .iter()
                .map(|id| snapshot_handle(FIELD, id))
                .collect::<Result<_, _>>()?,
            secrets,
        })
    }
}
