//! Frames with header blocks: parsing and rewriting them.

use crate::hpack::{Decoder, Field, HpackError};

/// The largest frame that a peer may send while SETTINGS say nothing else (RFC 9113 §4.2).
pub(super) const MAX_FRAME: usize = 16 * 1024;
/// More compressed header data than any client sends.
pub(super) const MAX_BLOCK: usize = 64 * 1024;
/// The largest decoded block. The HTTP/2 library rejects less than this, with its own error.
const MAX_LIST: usize = 64 * 1024;

pub(super) const HEADERS: u8 = 0x1;
pub(super) const CONTINUATION: u8 = 0x9;

const END_STREAM: u8 = 0x1;
pub(super) const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// The replacement of an invalid authority.
const LOCALHOST: &[u8] = b"localhost";

/// The nine bytes before each payload.
#[derive(Debug, Clone, Copy)]
pub(super) struct FrameHead {
    pub(super) length: usize,
    pub(super) kind: u8,
    pub(super) flags: u8,
    /// With the reserved bit, unchanged.
    pub(super) stream: u32,
}

/// A header block in parts: its first frame, and the fragments so far.
#[derive(Debug)]
pub(super) struct Block {
    flags: u8,
    stream: u32,
    priority: Vec<u8>,
    pub(super) fragment: Vec<u8>,
}

// === impl FrameHead ===

impl FrameHead {
    pub(super) const LENGTH: usize = 9;

    pub(super) fn parse(bytes: [u8; Self::LENGTH]) -> Self {
        let [l0, l1, l2, kind, flags, s0, s1, s2, s3] = bytes;
        Self {
            length: usize::from(l0) << 16 | usize::from(l1) << 8 | usize::from(l2),
            kind,
            flags,
            stream: u32::from_be_bytes([s0, s1, s2, s3]),
        }
    }

    pub(super) fn write(self, output: &mut Vec<u8>) {
        let length = u32::try_from(self.length).unwrap_or(u32::MAX).to_be_bytes();
        output.extend_from_slice(&length[1..]);
        output.extend([self.kind, self.flags]);
        output.extend(self.stream.to_be_bytes());
    }
}

// === impl Block ===

impl Block {
    /// Starts a block with the payload of a HEADERS frame; `None` if the payload is inconsistent.
    pub(super) fn begin(head: FrameHead, payload: &[u8]) -> Option<Self> {
        let mut rest = payload;
        let mut padding = 0;
        if head.flags & PADDED != 0 {
            let (&length, after) = rest.split_first()?;
            padding = usize::from(length);
            rest = after;
        }
        let mut priority: &[u8] = &[];
        if head.flags & PRIORITY != 0 {
            (priority, rest) = rest.split_at_checked(5)?;
        }
        let fragment = &rest[..rest.len().checked_sub(padding)?];
        Some(Self {
            flags: head.flags & (END_STREAM | PRIORITY),
            stream: head.stream,
            priority: priority.to_vec(),
            fragment: fragment.to_vec(),
        })
    }

    /// Whether a frame is the next part of this block; no other frame may come before its end.
    pub(super) fn goes_on_with(&self, head: FrameHead) -> bool {
        head.kind == CONTINUATION && head.stream == self.stream
    }

    /// The fields of the complete block.
    pub(super) fn decode(&self, decoder: &mut Decoder) -> Result<Vec<Field>, HpackError> {
        decoder.decode(&self.fragment)
    }

    /// Writes the block with the authority replaced, in as many frames as needed.
    pub(super) fn write(&self, fields: &mut [Field], output: &mut Vec<u8>) {
        let mut payload = self.priority.clone();
        for field in fields {
            if field.name == b":authority" {
                LOCALHOST.clone_into(&mut field.value);
            }
            field.encode(&mut payload);
        }
        let mut parts = payload.chunks(MAX_FRAME).peekable();
        let (mut kind, mut flags) = (HEADERS, self.flags);
        loop {
            // A block without a field is a frame without a payload.
            let part = parts.next().unwrap_or_default();
            let last = parts.peek().is_none();
            flags |= if last { END_HEADERS } else { 0 };
            let head = FrameHead {
                length: part.len(),
                kind,
                flags,
                stream: self.stream,
            };
            head.write(output);
            output.extend_from_slice(part);
            if last {
                return;
            }
            (kind, flags) = (CONTINUATION, 0);
        }
    }
}

/// A decoder for one connection.
pub(super) fn decoder() -> Decoder {
    Decoder::new(MAX_LIST)
}

/// Whether the HTTP/2 library would reject the request for its authority.
pub(super) fn needs_repair(fields: &[Field]) -> bool {
    fields
        .iter()
        .find(|field| field.name == b":authority")
        .is_some_and(|field| http::uri::Authority::try_from(field.value.as_slice()).is_err())
}
