//! The `SnapshotMetadata` service: which ranges of a snapshot hold data, and which differ from an older
//! one. Backups read no more than those.
//!
//! It is served by every controller, and advertised while a connection offers it. What a driver says is
//! checked on its way: a stream that left out a range would be a backup that cannot be restored.
//! compat: "Group snapshots and changed blocks".

pub(crate) mod decode;

use std::sync::Arc;

use csi_proto::v1;
use csi_proto::v1::BlockMetadataType;
use csi_proto::v1::snapshot_metadata_server::SnapshotMetadata;
use driver_core::{BLOCK_RANGES, BlockRange, BlockRangesQuery, Error, Kind};
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status};

use crate::csi::controller::{about_snapshot, at_one_connection, offered_by_any};
use crate::csi::encode;
use crate::csi::plugin::Plugin;
use crate::rpc::in_flight::{Hold, Keys, Object};
use crate::rpc::{Incoming, Outlet, Rpc};
use decode::RangesRequest;

/// The `SnapshotMetadata` service.
#[derive(Debug, Clone)]
pub(crate) struct SnapshotMetadataHandler(pub(crate) Arc<Plugin>);

/// Some ranges of a snapshot, as they go into one message.
struct Piece {
    capacity: i64,
    ranges: Vec<v1::BlockMetadata>,
}

/// What the next range of a stream has to be.
#[derive(Debug)]
struct Course {
    /// It begins here or later.
    from: u64,
    /// It ends after this.
    beyond: u64,
    /// It ends here or before.
    capacity: u64,
}

const BASE: &str = "base_snapshot_id";

const RANGES_ARE_OF_ANY_LENGTH: BlockMetadataType = BlockMetadataType::VariableLength;

#[tonic::async_trait]
impl SnapshotMetadata for SnapshotMetadataHandler {
    async fn get_metadata_allocated(
        &self,
        request: Request<v1::GetMetadataAllocatedRequest>,
    ) -> Result<Response<BoxStream<v1::GetMetadataAllocatedResponse>>, Status> {
        self.0
            .stream(Rpc::GetMetadataAllocated, request, allocated)
            .await
    }

    async fn get_metadata_delta(
        &self,
        request: Request<v1::GetMetadataDeltaRequest>,
    ) -> Result<Response<BoxStream<v1::GetMetadataDeltaResponse>>, Status> {
        self.0.stream(Rpc::GetMetadataDelta, request, delta).await
    }
}

async fn allocated(
    plugin: Arc<Plugin>,
    incoming: Incoming,
    request: v1::GetMetadataAllocatedRequest,
    outlet: Outlet<v1::GetMetadataAllocatedResponse>,
) -> Result<(), Error> {
    let decode = || RangesRequest::allocated(request);
    ranges(&plugin, incoming, decode, outlet, |piece| {
        v1::GetMetadataAllocatedResponse {
            block_metadata_type: RANGES_ARE_OF_ANY_LENGTH.into(),
            volume_capacity_bytes: piece.capacity,
            block_metadata: piece.ranges,
        }
    })
    .await
}

async fn delta(
    plugin: Arc<Plugin>,
    incoming: Incoming,
    request: v1::GetMetadataDeltaRequest,
    outlet: Outlet<v1::GetMetadataDeltaResponse>,
) -> Result<(), Error> {
    let decode = || RangesRequest::delta(request);
    ranges(&plugin, incoming, decode, outlet, |piece| {
        v1::GetMetadataDeltaResponse {
            block_metadata_type: RANGES_ARE_OF_ANY_LENGTH.into(),
            volume_capacity_bytes: piece.capacity,
            block_metadata: piece.ranges,
        }
    })
    .await
}

/// The error for a base that is elsewhere, or nowhere: like one that is gone, it cannot be compared with.
fn foreign(error: Error) -> Error {
    match error.kind() {
        Kind::Invalid | Kind::NotFound => error.of_kind(Kind::Busy),
        _ => error,
    }
}

async fn ranges<M>(
    plugin: &Plugin,
    incoming: Incoming,
    decode: impl FnOnce() -> Result<RangesRequest, Error>,
    outlet: Outlet<M>,
    message: fn(Piece) -> M,
) -> Result<(), Error> {
    offered_by_any(plugin, BLOCK_RANGES, |can| can.block_metadata)?;
    let request = decode()?;
    let (connection, id) = plugin.connections.of_snapshot(&request.snapshot).await?;
    let base = match &request.base {
        None => None,
        Some(handle) => {
            let found = plugin.connections.of_snapshot(handle).await;
            let (home, base) = found.map_err(foreign)?;
            at_one_connection(BASE, "it is", &home, "the target", &connection).map_err(foreign)?;
            Some(base)
        }
    };
    if !connection.can().block_metadata {
        return Err(connection.lacks(BLOCK_RANGES));
    }
    // Their deletion has to wait.
    let keys = [Some(&id), base.as_ref()].into_iter().flatten();
    let keys = keys.fold(Keys::none(), |keys, id| {
        let object = Object::Snapshot(id.clone());
        keys.and(connection.scope(), object, Hold::Shared)
    });
    let subject = about_snapshot(&connection, request.snapshot.as_str());
    let task = incoming.admit(subject, keys)?;
    let work = async {
        let driver = connection.driver();
        let found = driver.block_ranges(
            &task.call,
            BlockRangesQuery {
                snapshot: &id,
                base: base.as_ref(),
                offset: request.offset,
                secrets: &request.secrets,
            },
        );
        let mut found = found.await?;
        let mut course = Course::new(request.offset, found.capacity())?;
        let mut is_empty = true;
        loop {
            let piece = match found.next(request.max).await? {
                Some(piece) => course.follow(&piece, request.max)?,
                // Also without a range the client hears of the size.
                None if is_empty => Vec::new(),
                None => return Ok(()),
            };
            let is_last = piece.is_empty();
            let piece = Piece {
                capacity: encode::bytes(course.capacity),
                ranges: piece,
            };
            outlet.send(&task, message(piece)).await?;
            if is_last {
                return Ok(());
            }
            is_empty = false;
        }
    };
    task.ask_for_copy(&connection, "block_ranges", work).await
}

// === impl Course ===

impl Course {
    fn new(offset: u64, capacity: u64) -> Result<Self, Error> {
        if offset > capacity {
            let text = format!("the snapshot ends at {capacity}, before {offset}");
            return Err(
                Error::new(Kind::OutOfRange, "request field `starting_offset`").because(text),
            );
        }
        Ok(Self {
            from: 0,
            beyond: offset,
            capacity,
        })
    }

    /// The next ranges of a driver, if they can be.
    fn follow(
        &mut self,
        piece: &[BlockRange],
        max: usize,
    ) -> Result<Vec<v1::BlockMetadata>, Error> {
        let defect = |what: &str| Error::new(Kind::Internal, BLOCK_RANGES).because(what);
        if piece.is_empty() || piece.len() > max {
            return Err(defect(
                "the driver gave none, or more than it was asked for",
            ));
        }
        let mut ranges = Vec::with_capacity(piece.len());
        for range in piece {
            let end = range.offset.checked_add(range.length);
            let end = end.filter(|end| {
                range.length > 0
                    && range.offset >= self.from
                    && *end > self.beyond
                    && *end <= self.capacity
            });
            self.from = end.ok_or_else(|| {
                defect("the driver gave a range that is empty, out of order, or out of bounds")
            })?;
            ranges.push(v1::BlockMetadata {
                byte_offset: encode::bytes(range.offset),
                size_bytes: encode::bytes(range.length),
            });
        }
        Ok(ranges)
    }
}
