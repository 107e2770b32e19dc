//! A stream of records as `zfs send` writes it, for tests: without the content, which would be skipped.

use crate::blocks::RECORD;
use crate::observed::Guid;

/// Writes a stream.
#[derive(Debug)]
pub struct RecordWriter {
    bytes: Vec<u8>,
    to: u64,
    big: bool,
}

// === impl RecordWriter ===

impl RecordWriter {
    /// The stream of a snapshot of a zvol, from another one or from nothing.
    pub fn new(to: Guid, from: Option<Guid>) -> Self {
        Self::in_order(to, from, false)
    }

    /// The same, by a machine with this byte order.
    pub fn in_order(to: Guid, from: Option<Guid>, big: bool) -> Self {
        let mut writer = Self {
            bytes: Vec::new(),
            to: to.0,
            big,
        };
        let from = from.map_or(0, |from| from.0);
        let begin = [
            (8, 0x0002_f5ba_cbac),
            (16, 1 | 1 << 18),
            (40, to.0),
            (48, from),
        ];
        writer.record(0, &begin, &[(32, 3)], &[]);
        writer
    }

    fn record(
        &mut self,
        kind: u32,
        words: &[(usize, u64)],
        halves: &[(usize, u32)],
        payload: &[u8],
    ) {
        let mut header = [0; RECORD];
        for (at, word) in words {
            let word = if self.big {
                word.to_be_bytes()
            } else {
                word.to_le_bytes()
            };
            header[*at..at + 8].copy_from_slice(&word);
        }
        for (at, half) in halves.iter().chain(&[(0, kind)]) {
            let half = if self.big {
                half.to_be_bytes()
            } else {
                half.to_le_bytes()
            };
            header[*at..at + 4].copy_from_slice(&half);
        }
        self.bytes.extend(header);
        self.bytes.extend(payload);
    }

    /// The object with the data, which ends there.
    #[must_use]
    pub fn object(mut self, end: u64) -> Self {
        self.record(1, &[(8, 1), (40, self.to)], &[(28, 5)], &[7; 8]);
        self.record(
            4,
            &[(8, 1), (16, end), (24, u64::MAX), (32, self.to)],
            &[],
            &[],
        );
        self
    }

    /// Blocks with content, of which so much is in the stream.
    #[must_use]
    pub fn write(mut self, offset: u64, length: u64, payload: usize) -> Self {
        let words = [
            (8, 1),
            (24, offset),
            (32, length),
            (40, self.to),
            (96, payload as u64),
        ];
        // Compressed, so that the payload has a length of its own.
        let compression = if self.big { 15 << 8 } else { 15 << 16 };
        self.record(3, &words, &[(48, compression)], &vec![9; payload]);
        self
    }

    /// A block whose content is in its own pointer.
    #[must_use]
    pub fn embedded(mut self, offset: u64, length: u64) -> Self {
        let words = [(8, 1), (16, offset), (24, length), (32, self.to)];
        self.record(8, &words, &[(48, 16), (52, 11)], &[1; 16]);
        self
    }

    /// Blocks without content.
    #[must_use]
    pub fn free(mut self, offset: u64, length: u64) -> Self {
        let words = [(8, 1), (16, offset), (24, length), (32, self.to)];
        self.record(4, &words, &[], &[]);
        self
    }

    /// A record of another object.
    #[must_use]
    pub fn other(mut self) -> Self {
        let words = [(8, 2), (24, 0), (32, 512), (40, self.to)];
        self.record(3, &words, &[], &[3; 512]);
        self.record(2, &[(8, 3), (16, 29), (24, self.to)], &[], &[]);
        self
    }

    /// A record of this type, without a payload.
    #[must_use]
    pub fn raw(mut self, kind: u32, words: &[(usize, u64)]) -> Self {
        self.record(kind, words, &[], &[]);
        self
    }

    /// The end.
    pub fn end(mut self) -> Vec<u8> {
        self.record(5, &[(40, self.to)], &[], &[]);
        self.bytes
    }

    /// The bytes that were written so far.
    pub fn cut(self) -> Vec<u8> {
        self.bytes
    }
}
