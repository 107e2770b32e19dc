//! The blocks of a snapshot that hold data, and those that differ from an older one.

use std::collections::VecDeque;
use std::sync::Arc;

use async_trait::async_trait;

use super::super::hooks::{Hooks, Moment, Verb};
use super::State;
use crate::call::Call;
use crate::driver::{BlockRange, BlockRanges};
use crate::error::{Error, Kind};
use crate::text::{SnapshotId, VolumeId};

/// The size of a block.
const BLOCK: u64 = 4096;

/// Ranges that are given out piece by piece.
#[derive(Debug)]
pub(in super::super) struct Ranges {
    capacity: u64,
    rest: VecDeque<BlockRange>,
    call: Call,
    hooks: Arc<Hooks>,
}

// === impl State ===

impl State {
    /// Writes to blocks of a volume.
    pub(in super::super) fn write(&self, volume: &VolumeId, range: BlockRange) {
        let mut inner = self.lock();
        inner.writes += 1;
        let write = inner.writes;
        let content = inner.content.entry(volume.clone()).or_default();
        let end = (range.offset + range.length).div_ceil(BLOCK);
        content.extend((range.offset / BLOCK..end).map(|block| (block, write)));
    }

    pub(in super::super) fn ranges(
        &self,
        snapshot: &SnapshotId,
        base: Option<&SnapshotId>,
        offset: u64,
    ) -> Result<(u64, VecDeque<BlockRange>), Error> {
        let doing = || format!("list ranges of snapshot {snapshot}");
        let inner = self.lock();
        let find = |id: &SnapshotId| {
            let missing = || Error::not_found(format!("snapshot {id}"));
            inner.snapshots.get(id).ok_or_else(missing)
        };
        let taken = find(snapshot)?;
        let base = base.map(|id| find(id).map_err(|error| error.of_kind(Kind::Busy)));
        let base = base.transpose()?;
        if base.is_some_and(|base| base.snapshot.source != taken.snapshot.source) {
            return Err(Error::new(Kind::Busy, doing()).because("the base is of another volume"));
        }
        if base.is_some_and(|base| base.snapshot.created > taken.snapshot.created) {
            return Err(Error::invalid(doing()).because("the base is newer"));
        }
        let capacity = taken.snapshot.size;
        if offset > capacity {
            return Err(Error::new(Kind::OutOfRange, doing()));
        }
        let mut ranges = VecDeque::<BlockRange>::new();
        for (block, write) in &taken.content {
            let start = block * BLOCK;
            let is_same = base.is_some_and(|base| base.content.get(block) == Some(write));
            if is_same || start >= capacity || start + BLOCK <= offset {
                continue;
            }
            match ranges.back_mut() {
                Some(last) if last.offset + last.length == start => last.length += BLOCK,
                _ => ranges.push_back(BlockRange {
                    offset: start,
                    length: BLOCK,
                }),
            }
        }
        Ok((capacity, ranges))
    }
}

// === impl Ranges ===

impl Ranges {
    pub(in super::super) fn new(
        (capacity, rest): (u64, VecDeque<BlockRange>),
        call: &Call,
        hooks: &Arc<Hooks>,
    ) -> Self {
        Self {
            capacity,
            rest,
            call: call.clone(),
            hooks: hooks.clone(),
        }
    }
}

#[async_trait]
impl BlockRanges for Ranges {
    fn capacity(&self) -> u64 {
        self.capacity
    }

    async fn next(&mut self, max: usize) -> Result<Option<Vec<BlockRange>>, Error> {
        let verb = Verb::NextRanges;
        self.hooks.count(verb);
        self.call.check(verb.name())?;
        self.hooks
            .at(&self.call, verb, Moment::BeforeChange)
            .await?;
        let piece: Vec<_> = self.rest.drain(..max.min(self.rest.len())).collect();
        Ok((!piece.is_empty()).then_some(piece))
    }
}
