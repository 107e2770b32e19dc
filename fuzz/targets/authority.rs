//! The bytes of a client, and the bytes that the HTTP/2 library gets instead.
//!
//! Input: a byte of choices, a byte that says how reads are split, then the bytes of a connection:
//! as they are, or with the choice `FRAMED` as frames of `kind flags stream length payload`, each a
//! byte but the payload, so that the length is never wrong.
#![no_main]

use frames::{Event, Reading};
use h2_authority::authority::{Repaired, Rewriter, rewrite};
use libfuzzer_sys::fuzz_target;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use tokio::io::{AsyncRead, ReadBuf};

#[path = "authority/frames.rs"]
mod frames;

/// The connection begins as HTTP/2 does.
const PREFACED: u8 = 1;
/// The frames that follow.
const FRAMED: u8 = 2;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// A generous limit for a header block of 64 KiB with its frames, before or after it is rewritten.
const MOST_AT_ONCE: usize = 96 * 1024;
/// A frame that the library answers with a connection error.
const POISON: &[u8] = &[0, 0, 1, 1, 4, 0, 0, 0, 1, 0x80];

fuzz_target!(|data: &[u8]| {
    let &[choices, split, ref rest @ ..] = data else {
        return;
    };
    let mut input = Vec::new();
    if choices & PREFACED != 0 {
        input.extend_from_slice(PREFACE);
    }
    if choices & FRAMED != 0 {
        framed(rest, &mut input);
    } else {
        input.extend_from_slice(rest);
    }
    let output = rewrite(&input);
    let size = usize::from(split) + 1;
    assert_eq!(in_pieces(&input, size), output, "reads of {size} bytes");
    assert_eq!(polled(&input, size), output, "read into {size} bytes");
    if output != input {
        said_the_same(&input, &output);
    } else if let Some(frames) = input.strip_prefix(PREFACE)
        && let Some(Event::Block { fields, .. }) = Reading::of(frames, false).first_block()
    {
        // It passed: then the library must not reject it for its authority.
        let mut authorities = fields.iter().filter(|field| field.name == b":authority");
        assert!(
            authorities
                .next()
                .is_none_or(|field| !field.value.is_empty())
        );
    }
});

fn framed(mut rest: &[u8], input: &mut Vec<u8>) {
    while let &[kind, flags, stream, length, ref after @ ..] = rest {
        let (payload, after) = after.split_at(usize::from(length).min(after.len()));
        rest = after;
        let length = u32::try_from(payload.len()).expect("a byte").to_be_bytes();
        input.extend_from_slice(&length[1..]);
        input.extend([kind, flags, 0, 0, 0, stream]);
        input.extend_from_slice(payload);
    }
}

fn in_pieces(input: &[u8], size: usize) -> Vec<u8> {
    let mut rewriter = Rewriter::new();
    let mut output = Vec::new();
    for mut piece in input.chunks(size) {
        while !piece.is_empty() {
            let before = output.len();
            let seen = rewriter.step(piece, &mut output);
            assert!((1..=piece.len()).contains(&seen), "{seen} bytes seen");
            assert!(output.len() - before <= MOST_AT_ONCE, "it swells");
            piece = &piece[seen..];
        }
    }
    output
}

fn polled(input: &[u8], size: usize) -> Vec<u8> {
    let mut connection = Repaired::new(input);
    let mut context = Context::from_waker(Waker::noop());
    let mut output = Vec::new();
    let mut room = vec![0; size];
    loop {
        let mut room = ReadBuf::new(&mut room);
        match Pin::new(&mut connection).poll_read(&mut context, &mut room) {
            Poll::Ready(Ok(())) if room.filled().is_empty() => return output,
            Poll::Ready(Ok(())) => output.extend_from_slice(room.filled()),
            other => panic!("{other:?} from memory"),
        }
    }
}

/// The repaired bytes have the same meaning, with another authority; or they end where the client
/// made an error.
fn said_the_same(input: &[u8], output: &[u8]) {
    let Some(input) = input.strip_prefix(PREFACE) else {
        // The client left before the end of the preface.
        assert!(
            PREFACE.starts_with(input) && output.is_empty(),
            "only HTTP/2 is changed"
        );
        return;
    };
    let output = output.strip_prefix(PREFACE).expect("the preface passes");
    let said = Reading::of(input, false);
    let (output, poisoned) = match output.strip_suffix(POISON) {
        Some(output) => (output, true),
        None => (output, false),
    };
    let repaired = Reading::of(output, true);
    assert!(repaired.is_sound, "the library could not read it");
    assert!(repaired.events.len() <= said.events.len());
    assert!(poisoned || repaired.events.len() == said.events.len());
    for (said, repaired) in said.events.iter().zip(&repaired.events) {
        assert_eq!(&said.repaired(), repaired);
    }
}
