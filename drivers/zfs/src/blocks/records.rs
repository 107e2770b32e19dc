//! The records of a stream of `zfs send`, read as it comes.
//!
//! The stream is that of one snapshot of a zvol, whose data is object 1. Each record is a header of 312 bytes in the
//! byte order of its sender, and some have a payload, which is skipped. No length is trusted: each is bounded, and
//! every record names the snapshot that it belongs to, so a payload of another length than announced is noticed at
//! the next header.

use std::ops::Range;

use crate::observed::Guid;

/// The size of the header of a record.
pub const RECORD: usize = 312;

// The types of records.
const OBJECT: u32 = 1;
const FREEOBJECTS: u32 = 2;
const WRITE: u32 = 3;
const FREE: u32 = 4;
const END: u32 = 5;
const SPILL: u32 = 7;
const WRITE_EMBEDDED: u32 = 8;
const OBJECT_RANGE: u32 = 9;

/// The first word of a stream.
const MAGIC: u64 = 0x0002_f5ba_cbac;
/// The object with the data of a zvol.
const DATA: u64 = 1;
/// The type of the objects of a zvol, as a stream names it.
const ZVOL: u32 = 3;
/// The kind of a stream of one snapshot.
const PLAIN: u64 = 1;
/// The features of a stream that change no record that counts here: spill blocks, embedded data, LZ4, large blocks,
/// compressed, large dnodes, raw, Zstandard, holds, a change to large blocks, long names, large microzaps. Not among
/// them are deduplication, redaction and the resumption of another stream: those leave out blocks.
const KNOWN: u64 = 1 << 2
    | 1 << 16
    | 1 << 17
    | 1 << 19
    | 1 << 22
    | 1 << 23
    | 1 << 24
    | 1 << 25
    | 1 << 26
    | 1 << 27
    | 1 << 28
    | 1 << 29;
/// The largest payload: twice the largest block of ZFS.
const PAYLOAD: u64 = 32 << 20;
/// The length of what is freed to the end, wherever that is.
const TO_THE_END: u64 = u64::MAX;

/// The snapshot that a stream is of, and the one that it begins from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sent {
    /// The snapshot.
    pub to: Guid,
    /// The older one, of a stream of what differs.
    pub from: Option<Guid>,
}

/// The statement of a record about the data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    /// Blocks with content.
    Data(Range<u64>),
    /// Blocks without content.
    Hole(Range<u64>),
    /// Nothing has content from here on. It comes before all others.
    End(u64),
}

/// Why a stream cannot be relied on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// It begins otherwise.
    #[error("it does not begin like a stream of `zfs send`")]
    NoStream,
    /// It holds several snapshots, or the properties of one.
    #[error("it is no stream of one snapshot")]
    Compound,
    /// It has features that leave out blocks, or that are not known.
    #[error("its features {0:#x} are not known, or leave out blocks")]
    Features(u64),
    /// Something else than a zvol.
    #[error("it is not of a zvol")]
    NoZvol,
    /// Another pair of snapshots.
    #[error("it is of another snapshot than asked for")]
    Other,
    /// A type that does not exist, or that stands for blocks that are elsewhere.
    #[error("it has a record of the type {0}")]
    Type(u32),
    /// A record that belongs to another snapshot: the end of the payload before it is somewhere else.
    #[error("a record is not of its snapshot")]
    Astray,
    /// A payload that no record has.
    #[error("a record has a payload of {0} bytes")]
    Payload(u64),
    /// A range that is empty, or that ends beyond the largest number.
    #[error("a record has a range that cannot be")]
    Range,
    /// Blocks that come before earlier ones.
    #[error("its blocks are not in order")]
    Order,
    /// The data itself is freed.
    #[error("it frees the object with the data")]
    Freed,
    /// Something after its end.
    #[error("it goes on after its end")]
    TooLong,
    /// No end.
    #[error("it ends early")]
    TooShort,
}

/// The byte order of the sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Little,
    Big,
}

/// The next thing to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Begin,
    Record,
    Ended,
}

/// Reads a stream.
#[derive(Debug)]
pub struct Parser {
    sent: Sent,
    order: Order,
    state: State,
    header: [u8; RECORD],
    /// The number of bytes of the header that are there.
    have: usize,
    /// The rest of a payload.
    skip: u64,
    /// The end of the last range.
    last: u64,
}

/// One header.
struct Header<'a> {
    bytes: &'a [u8; RECORD],
    order: Order,
}

// === impl Header ===

impl Header<'_> {
    fn word(&self, at: usize) -> u64 {
        let word = self.bytes.get(at..at + 8).and_then(|b| b.try_into().ok());
        let word = word.unwrap_or_default();
        match self.order {
            Order::Little => u64::from_le_bytes(word),
            Order::Big => u64::from_be_bytes(word),
        }
    }

    fn half(&self, at: usize) -> u32 {
        let half = self.bytes.get(at..at + 4).and_then(|b| b.try_into().ok());
        let half = half.unwrap_or_default();
        match self.order {
            Order::Little => u32::from_le_bytes(half),
            Order::Big => u32::from_be_bytes(half),
        }
    }

    fn byte(&self, at: usize) -> u8 {
        self.bytes.get(at).copied().unwrap_or_default()
    }
}

// === impl Parser ===

impl Parser {
    /// Reads the stream of these snapshots.
    pub fn new(sent: Sent) -> Self {
        Self {
            sent,
            order: Order::Little,
            state: State::Begin,
            header: [0; RECORD],
            have: 0,
            skip: 0,
            last: 0,
        }
    }

    /// Reads the next bytes, and passes on what they say, in order. At most one item for each header.
    pub fn feed(&mut self, mut bytes: &[u8], mut take: impl FnMut(Item)) -> Result<(), Malformed> {
        while !bytes.is_empty() {
            if self.skip > 0 {
                let skipped =
                    usize::try_from(self.skip).map_or(bytes.len(), |n| n.min(bytes.len()));
                self.skip -= skipped as u64;
                bytes = &bytes[skipped..];
                continue;
            }
            if self.state == State::Ended {
                return Err(Malformed::TooLong);
            }
            let piece = bytes.len().min(RECORD - self.have);
            self.header[self.have..self.have + piece].copy_from_slice(&bytes[..piece]);
            self.have += piece;
            bytes = &bytes[piece..];
            if self.have == RECORD {
                self.have = 0;
                if let Some(item) = self.record()? {
                    take(item);
                }
            }
        }
        Ok(())
    }

    /// Whether all of the stream was read.
    pub fn finish(&self) -> Result<(), Malformed> {
        match (self.state, self.skip) {
            (State::Ended, 0) => Ok(()),
            _ => Err(Malformed::TooShort),
        }
    }

    fn record(&mut self) -> Result<Option<Item>, Malformed> {
        let bytes = self.header;
        if self.state == State::Begin {
            self.begin(&bytes)?;
            return Ok(None);
        }
        let header = Header {
            bytes: &bytes,
            order: self.order,
        };
        let (kind, object) = (header.half(0), header.word(8));
        let owner = match kind {
            OBJECT | WRITE | END => 40,
            FREE | WRITE_EMBEDDED => 32,
            FREEOBJECTS | SPILL | OBJECT_RANGE => 24,
            // A second BEGIN; WRITE_BYREF; REDACT; what does not exist.
            other => return Err(Malformed::Type(other)),
        };
        if header.word(owner) != self.sent.to.0 {
            return Err(Malformed::Astray);
        }
        let (mut payload, mut item) = (0, None);
        match kind {
            OBJECT => {
                let (bonus, raw) = (u64::from(header.half(28)), u64::from(header.half(36)));
                payload = if raw > 0 {
                    raw
                } else {
                    bonus.next_multiple_of(8)
                };
            }
            FREEOBJECTS => {
                let end = object.saturating_add(header.word(16));
                if (object..end).contains(&DATA) {
                    return Err(Malformed::Freed);
                }
            }
            WRITE => {
                let (length, compressed) = (header.word(32), header.word(96));
                payload = if header.byte(50) > 0 {
                    compressed
                } else {
                    length
                };
                if object == DATA {
                    item = Some(Item::Data(self.range(header.word(24), length)?));
                }
            }
            FREE => {
                let (offset, length) = (header.word(16), header.word(24));
                if object == DATA && length == TO_THE_END {
                    item = Some(Item::End(offset));
                } else if object == DATA {
                    item = Some(Item::Hole(self.range(offset, length)?));
                }
            }
            SPILL => {
                let (length, compressed) = (header.word(16), header.word(40));
                payload = if compressed > 0 { compressed } else { length };
            }
            WRITE_EMBEDDED => {
                payload = u64::from(header.half(52)).next_multiple_of(8);
                if object == DATA {
                    item = Some(Item::Data(self.range(header.word(16), header.word(24))?));
                }
            }
            END => self.state = State::Ended,
            _ => {}
        }
        if payload > PAYLOAD {
            return Err(Malformed::Payload(payload));
        }
        self.skip = payload;
        Ok(item)
    }

    fn begin(&mut self, bytes: &[u8; RECORD]) -> Result<(), Malformed> {
        let orders = [Order::Little, Order::Big];
        let read = orders.map(|order| Header { bytes, order });
        let found = read.iter().find(|h| h.half(0) == 0 && h.word(8) == MAGIC);
        let header = found.ok_or(Malformed::NoStream)?;
        let version = header.word(16);
        if version & 3 != PLAIN {
            return Err(Malformed::Compound);
        }
        let features = version >> 2;
        if features & !KNOWN > 0 {
            return Err(Malformed::Features(features & !KNOWN));
        }
        if header.half(32) != ZVOL {
            return Err(Malformed::NoZvol);
        }
        let from = self.sent.from.map_or(0, |from| from.0);
        if header.word(40) != self.sent.to.0 || header.word(48) != from {
            return Err(Malformed::Other);
        }
        let payload = u64::from(header.half(4));
        if payload > PAYLOAD {
            return Err(Malformed::Payload(payload));
        }
        (self.order, self.skip, self.state) = (header.order, payload, State::Record);
        Ok(())
    }

    fn range(&mut self, offset: u64, length: u64) -> Result<Range<u64>, Malformed> {
        let end = offset.checked_add(length).filter(|_| length > 0);
        let end = end.ok_or(Malformed::Range)?;
        if offset < self.last {
            return Err(Malformed::Order);
        }
        self.last = end;
        Ok(offset..end)
    }
}
