//! Ranges out of records: those that a snapshot holds, and those that differ from an older one.
//!
//! Nothing is collected. Two streams are read side by side, each as far as the next range needs it.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::pin::Pin;

use async_trait::async_trait;
use driver_core::transfer::Bytes;
use driver_core::{BlockRange, BlockRanges, Error, Kind};
use tokio::time::{Duration, Instant};

use super::records::{Item, Malformed, Parser, Sent};
use crate::name::SnapshotRef;

/// The time that ranges wait for more of them, before they are passed on. A client wants the first ones at once, and
/// messages of one range each would cost more than the ranges.
const GATHERING: Duration = Duration::from_millis(200);

/// The records of a stream.
#[derive(Debug)]
pub struct Records {
    snapshot: SnapshotRef,
    bytes: Box<dyn Bytes>,
    parser: Parser,
    items: VecDeque<Item>,
    is_over: bool,
}

/// Ranges that are asked for when they are needed.
pub(super) type Later = Pin<Box<dyn Future<Output = Result<Vec<Range<u64>>, Error>> + Send>>;

/// The source of the ranges that a hole may have held before.
pub enum Before {
    /// The stream of all of the older snapshot.
    Records(Box<Records>),
    /// The ranges that were freed since then.
    Later(Later),
    /// The rest of them.
    Freed(VecDeque<Range<u64>>),
}

/// The ranges with content that an older snapshot held, or some of them: all that a hole can have held.
#[derive(Debug)]
struct Held {
    before: Before,
    /// The range that was read last, as far as it was not passed by.
    next: Option<Range<u64>>,
    /// The end of all that it holds, once it is known.
    end: u64,
}

/// The ranges of a call.
#[derive(Debug)]
struct Ranges {
    capacity: u64,
    /// Only ranges that end after this.
    offset: u64,
    records: Records,
    /// The content of the older snapshot, if there is one.
    base: Option<Held>,
    /// A hole that is compared with the older snapshot.
    hole: Range<u64>,
    /// The beginning of the hole at the end.
    tail: u64,
    /// The end of all that was compared.
    passed: u64,
    /// The last range, which may go on.
    open: Option<Range<u64>>,
    is_over: bool,
}

/// The ranges with content that end after `offset`, of a snapshot of this size.
pub fn held(records: Records, capacity: u64, offset: u64) -> Box<dyn BlockRanges> {
    Box::new(Ranges::new(records, None, capacity, offset))
}

/// The ranges that differ and end after `offset`: `records` is the stream of what differs between two snapshots, and
/// `before` says what a hole may have held in the older one.
pub fn changed(
    records: Records,
    before: Before,
    capacity: u64,
    offset: u64,
) -> Box<dyn BlockRanges> {
    let base = Held {
        before,
        next: None,
        end: u64::MAX,
    };
    Box::new(Ranges::new(records, Some(base), capacity, offset))
}

// === impl Records ===

impl Records {
    /// Reads the stream `bytes` of a snapshot.
    pub fn new(snapshot: SnapshotRef, sent: Sent, bytes: Box<dyn Bytes>) -> Self {
        Self {
            snapshot,
            bytes,
            parser: Parser::new(sent),
            items: VecDeque::new(),
            is_over: false,
        }
    }

    /// Whether the next item needs more of the stream.
    fn is_dry(&self) -> bool {
        self.items.is_empty() && !self.is_over
    }

    /// The next item; `None` after the end of a stream that is complete.
    async fn next(&mut self) -> Result<Option<Item>, Error> {
        fn doing(snapshot: &SnapshotRef) -> Error {
            Error::new(Kind::Busy, format!("read the records of {snapshot}"))
                .advise("make a full backup; and report this with the version of ZFS")
        }
        while self.is_dry() {
            let refused = |why: Malformed| doing(&self.snapshot).because(why);
            if let Some(piece) = self.bytes.next().await? {
                let items = &mut self.items;
                let fed = self.parser.feed(&piece, |item| items.push_back(item));
                fed.map_err(refused)?;
            } else {
                self.parser.finish().map_err(refused)?;
                self.is_over = true;
            }
        }
        Ok(self.items.pop_front())
    }
}

// === impl Before ===

impl fmt::Debug for Before {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Records(_) => "Records",
            Self::Later(_) => "Later",
            Self::Freed(_) => "Freed",
        })
    }
}

impl Before {
    async fn next(&mut self) -> Result<Option<Item>, Error> {
        loop {
            match self {
                Self::Records(records) => return records.next().await,
                Self::Later(freed) => *self = Self::Freed(freed.as_mut().await?.into()),
                Self::Freed(rest) => return Ok(rest.pop_front().map(Item::Data)),
            }
        }
    }
}

// === impl Held ===

impl Held {
    /// The first part of a hole that holds data here. The hole is what comes after it then; it is empty if there is
    /// no such part.
    async fn within(&mut self, hole: &mut Range<u64>) -> Result<Option<Range<u64>>, Error> {
        while !hole.is_empty() {
            if hole.start >= self.end {
                break;
            }
            let Some(next) = self.next.clone() else {
                match self.before.next().await? {
                    Some(Item::Data(data)) => self.next = Some(data),
                    Some(Item::End(end)) => self.end = end,
                    Some(Item::Hole(_)) => {}
                    None => self.end = 0,
                }
                continue;
            };
            if next.end <= hole.start {
                self.next = None;
                continue;
            }
            if next.start >= hole.end {
                break;
            }
            let part = next.start.max(hole.start)..next.end.min(hole.end);
            hole.start = part.end;
            return Ok(Some(part));
        }
        *hole = 0..0;
        Ok(None)
    }
}

// === impl Ranges ===

impl Ranges {
    fn new(records: Records, base: Option<Held>, capacity: u64, offset: u64) -> Self {
        Self {
            capacity,
            offset,
            records,
            base,
            hole: 0..0,
            tail: u64::MAX,
            passed: 0,
            open: None,
            is_over: false,
        }
    }

    /// The next range, as it is found: it may touch the one before.
    async fn step(&mut self) -> Result<Option<Range<u64>>, Error> {
        loop {
            if let Some(base) = &mut self.base
                && let Some(part) = base.within(&mut self.hole).await?
            {
                return Ok(Some(part));
            }
            if self.is_over {
                return Ok(None);
            }
            match self.records.next().await? {
                Some(Item::Data(data)) => {
                    self.passed = data.end;
                    return Ok(Some(data));
                }
                Some(Item::Hole(hole)) => {
                    self.passed = hole.end;
                    self.hole = self.of_interest(hole);
                }
                Some(Item::End(end)) => self.tail = self.tail.min(end),
                None => {
                    self.is_over = true;
                    self.hole = self.of_interest(self.tail.max(self.passed)..u64::MAX);
                }
            }
        }
    }

    /// The part of a range that a caller may be interested in.
    fn of_interest(&self, range: Range<u64>) -> Range<u64> {
        range.start.max(self.offset)..range.end.min(self.capacity)
    }

    /// Whether the next range would have to be waited for.
    fn is_dry(&self) -> bool {
        let is_compared = self.base.is_none() || self.hole.is_empty();
        is_compared && self.records.is_dry()
    }
}

#[async_trait]
impl BlockRanges for Ranges {
    fn capacity(&self) -> u64 {
        self.capacity
    }

    async fn next(&mut self, max: usize) -> Result<Option<Vec<BlockRange>>, Error> {
        let since = Instant::now();
        let mut found = Vec::new();
        while found.len() < max {
            if !found.is_empty() && self.is_dry() && since.elapsed() >= GATHERING {
                break;
            }
            let step = self.step().await?;
            let is_last = step.is_none();
            let range = step.map(|range| range.start..range.end.min(self.capacity));
            let range = range.filter(|range| !range.is_empty() && range.end > self.offset);
            let done = match (&mut self.open, range) {
                (Some(open), Some(range)) if range.start <= open.end => {
                    open.end = open.end.max(range.end);
                    None
                }
                (open, Some(range)) => open.replace(range),
                (open, None) if is_last => open.take(),
                (_, None) => None,
            };
            found.extend(done.map(|range| BlockRange {
                offset: range.start,
                length: range.end - range.start,
            }));
            if is_last {
                break;
            }
        }
        Ok((!found.is_empty()).then_some(found))
    }
}
