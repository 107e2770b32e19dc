//! The blocks of a snapshot that hold data, and those that differ from an older snapshot: see [`crate::blocks`].

use std::sync::Arc;

use async_trait::async_trait;
use driver_core::{
    BlockMetadata, BlockRange, BlockRanges, BlockRangesQuery, Call, Error, Kind, SnapshotId,
};

use super::{ZfsDriver, results};
use crate::blocks::{Before, Records, Sent, changed, held};
use crate::id::At;
use crate::name::{MarkRef, Since, SnapshotRef};
use crate::observed::{Guid, Mark, Query, Snapshot, State};
use crate::plan::destroy::has_parent;
use crate::property::PropertyName;

/// No ranges, of a snapshot of this size.
#[derive(Debug)]
struct Nothing(u64);

#[async_trait]
impl BlockRanges for Nothing {
    fn capacity(&self) -> u64 {
        self.0
    }

    async fn next(&mut self, _max: usize) -> Result<Option<Vec<BlockRange>>, Error> {
        Ok(None)
    }
}

/// A snapshot, and the one that it is compared with.
struct Pair<'a> {
    query: BlockRangesQuery<'a>,
    of: SnapshotRef,
    base: Option<SnapshotRef>,
}

/// The base, in the form that is left of it.
enum Base<'p> {
    /// The snapshot.
    Snapshot(&'p Snapshot),
    /// The bookmark that it has left.
    Mark(&'p Mark),
}

// === impl Pair ===

impl Pair<'_> {
    fn doing(&self) -> String {
        doing(&self.query)
    }

    /// The base, if it can be compared with.
    fn base<'p>(&self, of: &Snapshot, pool: &'p State) -> Result<Option<Base<'p>>, Error> {
        let Some(name) = &self.base else {
            return Ok(None);
        };
        let snapshot = pool.snapshot(name).filter(|base| base.csi_name().is_some());
        let mark = || MarkRef::of(name).and_then(|mark| pool.mark(&mark));
        if let (Some(snapshot), Some(mark)) = (snapshot, mark())
            && snapshot.guid != mark.guid
        {
            let why = format!("two snapshots were called {name}, and one of them is deleted");
            return Err(unknown(self.doing(), why));
        }
        let Some(base) = snapshot
            .map(Base::Snapshot)
            .or_else(|| mark().map(Base::Mark))
        else {
            let why = format!("the base {name} does not exist any more, nor a bookmark of it");
            return Err(unknown(self.doing(), why));
        };
        if base.txg() > of.properties.number(&PropertyName::CREATETXG) {
            let why = format!("the base {name} is newer");
            return Err(Error::invalid(self.doing()).because(why));
        }
        Ok(Some(base))
    }
}

// === impl Base ===

impl Base<'_> {
    fn guid(&self) -> Guid {
        match self {
            Self::Snapshot(snapshot) => snapshot.guid,
            Self::Mark(mark) => mark.guid,
        }
    }

    fn txg(&self) -> Option<u64> {
        match self {
            Self::Snapshot(base) => base.properties.number(&PropertyName::CREATETXG),
            Self::Mark(mark) => Some(mark.createtxg),
        }
    }

    fn since(&self) -> Since {
        match self {
            Self::Snapshot(base) => Since::Snapshot(base.name.clone()),
            Self::Mark(mark) => Since::Mark(mark.name.clone()),
        }
    }
}

fn doing(query: &BlockRangesQuery<'_>) -> String {
    match query.base {
        None => format!("list the blocks of snapshot `{}`", query.snapshot),
        Some(base) => format!(
            "list the blocks that differ between snapshots `{base}` and `{}`",
            query.snapshot
        ),
    }
}

/// The error where what differs is not known.
fn unknown(doing: String, why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::new(Kind::Busy, doing)
        .because(why)
        .advise("make a full backup")
}

impl ZfsDriver {
    /// Whether a deleted snapshot leaves a bookmark, so that what differs from it can still be said.
    pub(super) fn leaves_marks(&self) -> bool {
        use driver_core::Driver as _;
        self.block_metadata().is_some()
    }

    fn pair<'a>(&self, query: BlockRangesQuery<'a>) -> Result<Pair<'a>, Error> {
        let of = self.layout().snapshot(query.snapshot)?;
        let attached = |at: &At, id: &SnapshotId| match at {
            At::Attached(snapshot) => Ok(snapshot.clone()),
            At::Detached(_) => {
                let why = format!("`{id}` is a detached snapshot, a copy of its volume");
                Err(unknown(doing(&query), why))
            }
        };
        let base = match query.base {
            None => None,
            Some(id) => {
                let base = self.layout().snapshot(id);
                let base = base.map_err(|error| unknown(doing(&query), error))?;
                if base.volume != of.volume {
                    let why = "the base is a snapshot of another volume";
                    return Err(unknown(doing(&query), why));
                }
                Some(attached(&base.at, id)?)
            }
        };
        let of = attached(&of.at, query.snapshot)?;
        Ok(Pair { query, of, base })
    }

    async fn records(
        &self,
        call: &Call,
        of: &Snapshot,
        since: Option<&Base<'_>>,
    ) -> Result<Records, Error> {
        let sent = Sent {
            to: of.guid,
            from: since.map(Base::guid),
        };
        let since = since.map(Base::since);
        let bytes = self
            .backend
            .send_records(call, &of.name, since.as_ref())
            .await?;
        Ok(Records::new(of.name.clone(), sent, bytes))
    }
}

#[async_trait]
impl BlockMetadata for ZfsDriver {
    async fn block_ranges(
        &self,
        call: &Call,
        request: BlockRangesQuery<'_>,
    ) -> Result<Box<dyn BlockRanges>, Error> {
        let pair = self.pair(request)?;
        let parent = self.layout().parent_above(&pair.of.dataset);
        let snapshots = std::iter::once(&pair.of).chain(&pair.base).cloned();
        let queries = snapshots.map(Query::Snapshot);
        let dataset = pair.of.dataset.clone();
        let marks = pair
            .base
            .iter()
            .map(|base| Query::Marks(base.dataset.clone()));
        let datasets = [Query::Dataset(parent.name.clone()), Query::Dataset(dataset)];
        let queries = queries.chain(datasets).chain(marks);
        let pool = self.observe(call, queries.collect()).await?;
        let of = pool.snapshot(&pair.of);
        let Some(of) = of.filter(|of| results::attached(of).is_some()) else {
            has_parent(&pair.doing(), parent, &pool)?;
            return Err(Error::not_found(format!("snapshot `{}`", request.snapshot)));
        };
        let capacity = of.properties.number(&PropertyName::VOLSIZE);
        let capacity = capacity.ok_or_else(|| {
            Error::new(Kind::Internal, pair.doing()).because("its size is not known")
        })?;
        if request.offset > capacity {
            let why = format!("it ends at {capacity}, before {}", request.offset);
            return Err(Error::new(Kind::OutOfRange, pair.doing()).because(why));
        }
        match pair.base(of, &pool)? {
            None => {
                let records = self.records(call, of, None).await?;
                Ok(held(records, capacity, request.offset))
            }
            Some(base) if base.guid() == of.guid => Ok(Box::new(Nothing(capacity))),
            Some(Base::Mark(mark)) => {
                let block = pool.dataset(&of.name.dataset);
                let block = block.and_then(|d| d.properties.number(&PropertyName::VOLBLOCKSIZE));
                let block = block.ok_or_else(|| {
                    let why = "the size of its blocks is not known";
                    Error::new(Kind::Internal, pair.doing()).because(why)
                })?;
                let records = self.records(call, of, Some(&Base::Mark(mark))).await?;
                let (backend, call) = (Arc::clone(&self.backend), call.clone());
                let (name, txg) = (of.name.clone(), mark.createtxg);
                let freed = async move { backend.freed_since(&call, &name, txg, block).await };
                let before = Before::Later(Box::pin(freed));
                Ok(changed(records, before, capacity, request.offset))
            }
            Some(Base::Snapshot(base)) => {
                // Streams have permits. Two calls that each have one and wait for another would wait for each other.
                let turn = tokio::time::timeout(call.remaining(), self.opening.lock()).await;
                let turn = turn.map_err(|_| Error::new(Kind::Timeout, pair.doing()))?;
                let since = Base::Snapshot(base);
                let records = self.records(call, of, Some(&since)).await?;
                let before = Before::Records(Box::new(self.records(call, base, None).await?));
                drop(turn);
                Ok(changed(records, before, capacity, request.offset))
            }
        }
    }
}
