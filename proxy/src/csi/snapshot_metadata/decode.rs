//! Requests of the `SnapshotMetadata` service.

use csi_proto::v1;
use driver_core::{Error, Kind, Secrets};

use crate::csi::decode::{DecodeError, Reason, maps, snapshot_handle};
use crate::routing::connections::SnapshotHandle;

/// The most ranges of one message: it has to fit into what clients accept.
const MAX_RANGES: usize = 16_384;

/// A question for ranges of a snapshot.
#[derive(Debug)]
pub(crate) struct RangesRequest {
    pub(crate) snapshot: SnapshotHandle,
    /// Only those that differ from this one.
    pub(crate) base: Option<SnapshotHandle>,
    /// The place to go on.
    pub(crate) offset: u64,
    /// The most in one message.
    pub(crate) max: usize,
    pub(crate) secrets: Secrets,
}

// === impl RangesRequest ===

impl RangesRequest {
    /// Those that hold data.
    pub(crate) fn allocated(request: v1::GetMetadataAllocatedRequest) -> Result<Self, Error> {
        let secrets = maps::secrets(request.secrets)?;
        Ok(Self {
            snapshot: snapshot_handle("snapshot_id", &request.snapshot_id)?,
            base: None,
            offset: offset(request.starting_offset)?,
            max: max(request.max_results)?,
            secrets,
        })
    }

    /// Those that differ.
    pub(crate) fn delta(request: v1::GetMetadataDeltaRequest) -> Result<Self, Error> {
        let secrets = maps::secrets(request.secrets)?;
        let base = snapshot_handle("base_snapshot_id", &request.base_snapshot_id)?;
        Ok(Self {
            snapshot: snapshot_handle("target_snapshot_id", &request.target_snapshot_id)?,
            base: Some(base),
            offset: offset(request.starting_offset)?,
            max: max(request.max_results)?,
            secrets,
        })
    }
}

/// The specification has a code of its own for one that no volume has.
fn offset(offset: i64) -> Result<u64, Error> {
    u64::try_from(offset).map_err(|_| {
        Error::new(Kind::OutOfRange, "request field `starting_offset`")
            .because(format!("is negative: {offset}"))
    })
}

fn max(max_results: i32) -> Result<usize, DecodeError> {
    match usize::try_from(max_results) {
        Ok(0) => Ok(MAX_RANGES),
        Ok(max) => Ok(max.min(MAX_RANGES)),
        Err(_) => Err(DecodeError::new(
            "max_results",
            Reason::Negative(max_results),
        )),
    }
}
