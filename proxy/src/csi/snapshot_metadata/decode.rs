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

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;

    #[test]
    fn a_message_with_the_most_ranges_fits_into_what_clients_accept_by_default() {
        let longest = v1::BlockMetadata {
            byte_offset: i64::MAX,
            size_bytes: i64::MAX,
        };
        for asked in [0, i32::MAX] {
            let most = max(asked).expect("a number");
            let message = v1::GetMetadataDeltaResponse {
                block_metadata_type: v1::BlockMetadataType::VariableLength.into(),
                volume_capacity_bytes: i64::MAX,
                block_metadata: vec![longest; most],
            };
            assert!(message.encoded_len() < 4 << 20, "{asked}");
        }
        assert_eq!(max(1).expect("a number"), 1);
        assert!(max(-1).is_err());
    }
}
