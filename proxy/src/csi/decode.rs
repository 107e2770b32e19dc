//! Decodes requests to domain types, once: what passes here is valid for the layers below.
//!
//! Required fields, alphabets and all size limits of the specification are checked before anything
//! is changed; a value that a log must not show is never part of an error. The driver decides
//! whether its backend can serve a valid request. compat: "Requests".

mod any;
pub(crate) mod capability;
pub(crate) mod maps;
#[cfg(test)]
mod tests;

use csi_types::attachment::PathError;
use csi_types::{AbsolutePath, NetworkError};
use driver_core::text::{MAX_STRING, TextError, check_text};
use driver_core::{Error, Kind, PageRequest, PageToken, SizeRange};

use crate::routing::connections::{GroupHandle, SnapshotHandle, VolumeHandle};

pub(crate) use crate::csi::addons::decode::{
    FenceRequest, NodeReclaimRequest, ReclaimRequest, fence_query,
};
pub(crate) use crate::csi::controller::decode::{
    CapacityRequest, ControllerPublishRequest, ControllerUnpublishRequest, CreateSnapshotRequest,
    CreateVolumeRequest, ExpandRequest, ListSnapshotsRequest, ModifyRequest, SourceHandle,
    ValidateRequest, delete_snapshot, delete_volume, get_snapshot, get_volume, volume_health,
    volume_healths,
};
pub(crate) use crate::csi::group_controller::decode::{CreateGroupRequest, GroupRequest};
pub(crate) use crate::csi::node::decode::{
    NodeExpandRequest, PublishRequest, StageRequest, UnpublishRequest, node_health, stats, unstage,
};
pub(crate) use crate::csi::snapshot_metadata::decode::RangesRequest;
pub use any::request;

/// The longest token, given and taken: a token is no id of an older driver, so that the limit of
/// the specification holds both ways.
pub(crate) const MAX_TOKEN: usize = MAX_STRING;

/// A field that cannot be accepted. Displays as its name; the reason is the source.
#[derive(Debug, thiserror::Error)]
#[error("request field `{field}`")]
pub(crate) struct DecodeError {
    field: &'static str,
    source: Reason,
}

/// The fault of a field. Never shows a value, except where the field cannot hold a secret.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Reason {
    #[error("is required and missing")]
    Missing,
    #[error(transparent)]
    Text(#[from] TextError),
    #[error(transparent)]
    Path(#[from] PathError),
    #[error(transparent)]
    Size(#[from] driver_core::size::SizeError),
    #[error(transparent)]
    Flag(#[from] csi_types::capability::FlagError),
    #[error("is {bytes} bytes in total, the limit is {limit}")]
    TooLarge { bytes: usize, limit: usize },
    #[error("has a key with a character that keys of secrets cannot have")]
    SecretKey,
    #[error("has the key `{}`, which is no topology key", .0.escape_debug())]
    TopologyKey(String),
    #[error("has the topology key `{}` twice", .0.escape_debug())]
    TopologyTwice(String),
    #[error("has a value for `{}` that no topology segment can have", .0.escape_debug())]
    TopologyValue(String),
    #[error("is the unknown number {0}")]
    UnknownNumber(i32),
    #[error("is negative: {0}")]
    Negative(i32),
    #[error("is not the number of a group")]
    Group,
    #[error("has `{}`, which {}", .0.escape_debug(), NetworkError)]
    Network(String),
    #[error("is the place of another volume")]
    OtherVolume,
}

// === impl DecodeError ===

impl DecodeError {
    pub(crate) fn new(field: &'static str, source: impl Into<Reason>) -> Self {
        Self {
            field,
            source: source.into(),
        }
    }

    pub(crate) fn missing(field: &'static str) -> Self {
        Self::new(field, Reason::Missing)
    }
}

impl From<DecodeError> for Error {
    fn from(error: DecodeError) -> Self {
        Self::invalid(error.to_string()).because(error.source)
    }
}

/// The id of a volume, as the orchestrator has it.
pub(crate) fn volume_handle(field: &'static str, id: &str) -> Result<VolumeHandle, DecodeError> {
    present(field, id)?;
    VolumeHandle::parse(id).map_err(|error| DecodeError::new(field, error))
}

/// The id of a snapshot, as the orchestrator has it.
pub(crate) fn snapshot_handle(
    field: &'static str,
    id: &str,
) -> Result<SnapshotHandle, DecodeError> {
    present(field, id)?;
    SnapshotHandle::parse(id).map_err(|error| DecodeError::new(field, error))
}

/// The id of a group of snapshots, as the orchestrator has it.
pub(crate) fn group_handle(field: &'static str, id: &str) -> Result<GroupHandle, DecodeError> {
    present(field, id)?;
    GroupHandle::parse(id).map_err(|error| DecodeError::new(field, error))
}

/// A path that has to be there.
pub(crate) fn path(field: &'static str, path: &str) -> Result<AbsolutePath, DecodeError> {
    present(field, path)?;
    AbsolutePath::parse(path).map_err(|error| DecodeError::new(field, error))
}

/// The requested part of a list. A token that cannot be ours is not an invalid field: the list must
/// be restarted, which has its own code in the specification.
pub(crate) fn page(max_entries: i32, starting_token: String) -> Result<PageRequest, Error> {
    let max = usize::try_from(max_entries)
        .map_err(|_| DecodeError::new("max_entries", Reason::Negative(max_entries)))?;
    check_text(&starting_token, MAX_TOKEN).map_err(|error| {
        Error::new(Kind::Pending, "request field `starting_token`")
            .because(error)
            .advise("list again from the beginning")
    })?;
    Ok(PageRequest {
        max: (max != 0).then_some(max),
        after: (!starting_token.is_empty()).then_some(PageToken(starting_token)),
    })
}

/// The requested size; two zero bounds mean no request, as some orchestrators write it.
pub(crate) fn size(range: Option<csi_proto::v1::CapacityRange>) -> Result<SizeRange, DecodeError> {
    let Some(range) = range else {
        return Ok(SizeRange::ANY);
    };
    SizeRange::new(range.required_bytes, range.limit_bytes)
        .map_err(|error| DecodeError::new("capacity_range", error))
}

pub(crate) fn present(field: &'static str, value: &str) -> Result<(), DecodeError> {
    if value.is_empty() {
        return Err(DecodeError::missing(field));
    }
    Ok(())
}
