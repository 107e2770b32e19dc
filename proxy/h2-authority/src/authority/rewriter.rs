//! Rewrites the bytes of the client, frame by frame, as a state machine without I/O.
//!
//! It passes on unchanged what it cannot read in the first request: the HTTP/2 library then reports
//! the error. Once it has rewritten header blocks, the library shares no compression state with the
//! client; so after an error it sends one frame that the library must reject, and then nothing
//! more.

use super::blocks::{
    Block, CONTINUATION, END_HEADERS, FrameHead, HEADERS, MAX_BLOCK, MAX_FRAME, decoder,
    needs_repair,
};
use crate::hpack::Decoder;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Reads one direction of one connection, and repairs it if it must.
#[derive(Debug)]
pub struct Rewriter {
    state: State,
    /// Whether header blocks are rewritten, or the first one is still awaited.
    rewriting: bool,
    decoder: Decoder,
    /// The received part of a preface, head or payload.
    part: Vec<u8>,
    /// The header block that is coming in.
    block: Option<Block>,
    /// The original frames of that block, as long as it may have to pass unchanged.
    raw: Vec<u8>,
}

#[derive(Debug, Clone, Copy)]
enum State {
    /// Before the first frame.
    Preface,
    /// Before a frame.
    Head,
    /// Within a frame that passes unchanged; this many bytes are left.
    Passing(usize),
    /// Within a frame with headers.
    Headers(FrameHead),
    /// Everything passes.
    Transparent,
    /// The client violated the protocol; nothing passes.
    Poisoned,
}

// === impl Rewriter ===

impl Rewriter {
    /// Before the first byte of a connection.
    pub fn new() -> Self {
        Self {
            state: State::Preface,
            rewriting: false,
            decoder: decoder(),
            part: Vec::new(),
            block: None,
            raw: Vec::new(),
        }
    }

    /// Whether everything that follows passes unchanged.
    pub fn is_transparent(&self) -> bool {
        matches!(self.state, State::Transparent)
    }

    /// Inspects some of the input, which must not be empty, and returns how much.
    ///
    /// Appends at most one header block or a part of one other frame to the output, so that a
    /// caller who drains the output in between needs bounded memory.
    pub fn step(&mut self, input: &[u8], output: &mut Vec<u8>) -> usize {
        match self.state {
            State::Transparent => {
                output.extend_from_slice(input);
                input.len()
            }
            State::Poisoned => input.len(),
            State::Passing(left) => {
                let count = left.min(input.len());
                output.extend_from_slice(&input[..count]);
                self.state = if count == left {
                    State::Head
                } else {
                    State::Passing(left - count)
                };
                count
            }
            State::Preface => self.gather(input, PREFACE.len(), output, Self::on_preface),
            State::Head => self.gather(input, FrameHead::LENGTH, output, Self::on_head),
            State::Headers(head) => self.gather(input, head.length, output, Self::on_headers),
        }
    }

    /// Collects `length` bytes in `part` and then continues.
    fn gather(
        &mut self,
        input: &[u8],
        length: usize,
        output: &mut Vec<u8>,
        then: fn(&mut Self, &mut Vec<u8>),
    ) -> usize {
        let count = (length - self.part.len()).min(input.len());
        self.part.extend_from_slice(&input[..count]);
        if self.part.len() == length {
            then(self, output);
        } else if matches!(self.state, State::Preface) && !PREFACE.starts_with(&self.part) {
            // Not HTTP/2: such a client must not wait for 24 bytes.
            self.on_preface(output);
        }
        count
    }

    fn on_preface(&mut self, output: &mut Vec<u8>) {
        let known = self.part == PREFACE;
        output.append(&mut self.part);
        if known {
            self.state = State::Head;
        } else {
            self.give_way(output);
        }
    }

    fn on_head(&mut self, output: &mut Vec<u8>) {
        let Ok(bytes) = <[u8; FrameHead::LENGTH]>::try_from(self.part.as_slice()) else {
            return;
        };
        let head = FrameHead::parse(bytes);
        let expected = if self.block.is_some() {
            CONTINUATION
        } else {
            HEADERS
        };
        let of_block = head.kind == expected;
        let interrupts = self
            .block
            .as_ref()
            .is_some_and(|block| !block.goes_on_with(head));
        if head.length > MAX_FRAME || interrupts {
            return self.refuse(output);
        }
        if of_block {
            self.state = State::Headers(head);
            self.raw.append(&mut self.part);
            if head.length == 0 {
                self.on_headers(output);
            }
            return;
        }
        output.append(&mut self.part);
        self.state = if head.length == 0 {
            State::Head
        } else {
            State::Passing(head.length)
        };
    }

    fn on_headers(&mut self, output: &mut Vec<u8>) {
        let State::Headers(head) = self.state else {
            return;
        };
        let payload = std::mem::take(&mut self.part);
        self.raw.extend_from_slice(&payload);
        self.state = State::Head;
        match &mut self.block {
            Some(block) => block.fragment.extend_from_slice(&payload),
            None => match Block::begin(head, &payload) {
                Some(block) => self.block = Some(block),
                None => return self.refuse(output),
            },
        }
        // Counted with the heads, so that a flood of empty frames is limited as well.
        if self.raw.len() > MAX_BLOCK {
            return self.refuse(output);
        }
        if head.flags & END_HEADERS != 0 {
            self.on_block(output);
        }
    }

    fn on_block(&mut self, output: &mut Vec<u8>) {
        let Some(block) = self.block.take() else {
            return;
        };
        match block.decode(&mut self.decoder) {
            Ok(mut fields) if self.rewriting || needs_repair(&fields) => {
                self.rewriting = true;
                self.raw.clear();
                block.write(&mut fields, output);
            }
            Ok(_) => self.give_way(output),
            Err(_) => self.refuse(output),
        }
    }

    /// Nothing needs repair, or the library must report the error.
    fn give_way(&mut self, output: &mut Vec<u8>) {
        output.append(&mut self.raw);
        output.append(&mut self.part);
        self.state = State::Transparent;
        self.raw = Vec::new();
        self.part = Vec::new();
        self.block = None;
    }

    /// The client broke the rules.
    fn refuse(&mut self, output: &mut Vec<u8>) {
        if !self.rewriting {
            return self.give_way(output);
        }
        // Index 0 exists in no table: the library answers COMPRESSION_ERROR and closes.
        let head = FrameHead {
            length: 1,
            kind: HEADERS,
            flags: END_HEADERS,
            stream: 1,
        };
        head.write(output);
        output.push(0x80);
        self.state = State::Poisoned;
        self.raw = Vec::new();
        self.part = Vec::new();
        self.block = None;
    }
}

impl Default for Rewriter {
    fn default() -> Self {
        Self::new()
    }
}

/// The bytes that the HTTP/2 library gets from a client that sends `input`. For tests and fuzzing.
pub fn rewrite(input: &[u8]) -> Vec<u8> {
    let mut rewriter = Rewriter::new();
    let mut output = Vec::new();
    let mut rest = input;
    while !rest.is_empty() {
        let seen = rewriter.step(rest, &mut output);
        rest = &rest[seen..];
    }
    output
}
