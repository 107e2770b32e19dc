//! A client of raw bytes against a real gRPC server: what old Go clients send.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tonic_health::pb::health_server::{Health, HealthServer};

use super::*;
use crate::hpack::{Decoder, Field};

/// The authorities that the HTTP/2 library refuses, from clients that exist.
const MALFORMED: &[&str] = &[
    "/csi/csi.sock",
    "%2Fcsi%2Fcsi.sock",
    "",
    "unix:///csi/csi.sock",
    "/var/lib/a b/csi.sock",
];
const SOUND: &[&str] = &["localhost", "csi.sock", "127.0.0.1:10000", "[::1]:1"];

/// The way a client frames its requests.
#[derive(Debug, Clone, Copy, Default)]
struct Framing {
    padding: Option<u8>,
    priority: bool,
    /// The size of the fragments that a block is cut into.
    fragment: Option<usize>,
    /// An additional header of this many bytes.
    large: usize,
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut bytes = length[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

fn hello() -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(4, 0, 0, &[]));
    bytes.extend(frame(8, 0, 0, &65535_u32.to_be_bytes()));
    bytes
}

fn literal(first: u8, texts: &[&str], block: &mut Vec<u8>) {
    block.push(first);
    for text in texts {
        block.push(u8::try_from(text.len()).unwrap());
        block.extend_from_slice(text.as_bytes());
    }
}

/// The first block of a connection fills the table, the later ones only refer to it.
fn block(first: bool, authority: &str, framing: Framing) -> Vec<u8> {
    let mut block = vec![0x83, 0x86];
    if first {
        literal(0x41, &[authority], &mut block);
        literal(0x44, &["/grpc.health.v1.Health/Check"], &mut block);
        literal(0x5f, &["application/grpc"], &mut block);
        literal(0x40, &["te", "trailers"], &mut block);
    } else {
        block.extend([0xc1, 0xc0, 0xbf, 0xbe]);
    }
    if framing.large > 0 {
        let value = "x".repeat(framing.large).into_bytes();
        Field {
            name: b"x-large".to_vec(),
            value,
            never_indexed: false,
        }
        .encode(&mut block);
    }
    block
}

fn call(stream: u32, authority: &str, framing: Framing) -> Vec<u8> {
    let block = block(stream == 1, authority, framing);
    let mut fragments = block
        .chunks(framing.fragment.unwrap_or(MAX_PAYLOAD))
        .peekable();
    let mut bytes = Vec::new();
    let (mut kind, mut flags, mut payload) = (1, 0, Vec::new());
    if let Some(padding) = framing.padding {
        flags |= 0x8;
        payload.push(padding);
    }
    if framing.priority {
        flags |= 0x20;
        payload.extend([0, 0, 0, 0, 15]);
    }
    while let Some(fragment) = fragments.next() {
        payload.extend_from_slice(fragment);
        if kind == 1 {
            payload.extend(std::iter::repeat_n(
                0,
                usize::from(framing.padding.unwrap_or(0)),
            ));
        }
        flags |= if fragments.peek().is_none() { 0x4 } else { 0 };
        bytes.extend(frame(kind, flags, stream, &payload));
        (kind, flags) = (9, 0);
        payload.clear();
    }
    bytes.extend(frame(0, 1, stream, &[0; 5]));
    bytes
}

const MAX_PAYLOAD: usize = 16_000;

/// A service that answers an empty request.
fn health() -> HealthServer<impl Health> {
    tonic_health::server::health_reporter().1
}

/// Serves one connection and returns the client's end of it.
fn serve() -> UnixStream {
    let (client, server) = UnixStream::pair().unwrap();
    let incoming = tokio_stream::once(Ok::<_, io::Error>(Repaired::new(server)));
    let service = tonic::transport::Server::builder()
        .http2_max_header_list_size(16 * 1024)
        .add_service(health());
    tokio::spawn(service.serve_with_incoming(incoming));
    client
}

/// The gRPC status and the body of each stream, once all of them have ended.
async fn answers(client: &mut UnixStream, calls: usize) -> BTreeMap<u32, (String, Vec<u8>)> {
    let mut decoder = Decoder::new(1 << 16);
    let mut bodies: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
    let mut ended = BTreeMap::new();
    while ended.len() < calls {
        let mut head = [0; 9];
        let read = client.read_exact(&mut head);
        tokio::time::timeout(Duration::from_secs(10), read)
            .await
            .expect("an answer")
            .unwrap();
        let head = blocks::FrameHead::parse(head);
        let mut payload = vec![0; head.length];
        client.read_exact(&mut payload).await.unwrap();
        match head.kind {
            0 => bodies.entry(head.stream).or_default().extend(payload),
            1 => {
                let fields = decoder.decode(&payload).unwrap();
                let status = fields.iter().find(|field| field.name == b"grpc-status");
                let body = bodies.get(&head.stream).cloned().unwrap_or_default();
                if let Some(status) = status {
                    let status = String::from_utf8(status.value.clone()).unwrap();
                    ended.insert(head.stream, (status, body));
                }
            }
            3 => drop(ended.insert(head.stream, (format!("reset {payload:?}"), Vec::new()))),
            7 => drop(ended.insert(head.stream, (format!("goaway {payload:?}"), Vec::new()))),
            _ => {}
        }
    }
    ended
}

/// `status: SERVING`, as a message of gRPC.
const SERVING: &[u8] = &[0, 0, 0, 0, 2, 8, 1];

async fn is_answered(authority: &str, framing: Framing) {
    let mut client = serve();
    let mut bytes = hello();
    for stream in [1, 3, 5, 7] {
        bytes.extend(call(stream, authority, framing));
    }
    client.write_all(&bytes).await.unwrap();
    for (stream, (status, body)) in answers(&mut client, 4).await {
        assert_eq!(
            status, "0",
            "stream {stream} of authority {authority:?}, {framing:?}"
        );
        assert_eq!(body, SERVING);
    }
}

#[tokio::test]
async fn every_authority_that_a_client_sends_is_served_on_all_streams_of_a_connection() {
    for authority in MALFORMED.iter().chain(SOUND) {
        is_answered(authority, Framing::default()).await;
    }
}

#[tokio::test]
async fn without_the_repair_the_library_refuses_them() {
    for authority in MALFORMED {
        let (mut client, server) = UnixStream::pair().unwrap();
        let incoming = tokio_stream::once(Ok::<_, io::Error>(server));
        let service = tonic::transport::Server::builder().add_service(health());
        tokio::spawn(service.serve_with_incoming(incoming));
        let mut bytes = hello();
        bytes.extend(call(1, authority, Framing::default()));
        client.write_all(&bytes).await.unwrap();
        let (status, _) = &answers(&mut client, 1).await[&1];
        assert!(
            status.starts_with("reset"),
            "{authority:?} gives {status}: repair is obsolete"
        );
    }
}

#[tokio::test]
async fn padding_priorities_continuations_and_large_headers_survive_the_repair() {
    let framings = [
        Framing {
            padding: Some(200),
            ..Framing::default()
        },
        Framing {
            priority: true,
            ..Framing::default()
        },
        Framing {
            fragment: Some(20),
            ..Framing::default()
        },
        Framing {
            large: 12_000,
            ..Framing::default()
        },
        Framing {
            padding: Some(0),
            priority: true,
            fragment: Some(900),
            large: 3000,
        },
    ];
    for framing in framings {
        is_answered("/csi/csi.sock", framing).await;
        is_answered("localhost", framing).await;
    }
}

#[tokio::test]
async fn a_request_that_arrives_byte_by_byte_is_served() {
    let mut client = serve();
    let mut bytes = hello();
    bytes.extend(call(1, "/csi/csi.sock", Framing::default()));
    bytes.extend(call(
        3,
        "/csi/csi.sock",
        Framing {
            fragment: Some(3),
            ..Framing::default()
        },
    ));
    for byte in bytes {
        client.write_all(&[byte]).await.unwrap();
        tokio::task::yield_now().await;
    }
    for (status, body) in answers(&mut client, 2).await.into_values() {
        assert_eq!((status.as_str(), body.as_slice()), ("0", SERVING));
    }
}

#[tokio::test]
async fn a_header_list_beyond_the_limit_is_refused_without_losing_the_connection() {
    for authority in ["/csi/csi.sock", "localhost"] {
        let mut client = serve();
        let mut bytes = hello();
        let large = Framing {
            large: 40_000,
            ..Framing::default()
        };
        bytes.extend(call(1, authority, Framing::default()));
        bytes.extend(call(3, authority, large));
        bytes.extend(call(5, authority, Framing::default()));
        client.write_all(&bytes).await.unwrap();
        let mut decoder = Decoder::new(1 << 16);
        let mut statuses = BTreeMap::new();
        while statuses.len() < 3 {
            let mut head = [0; 9];
            client.read_exact(&mut head).await.unwrap();
            let head = blocks::FrameHead::parse(head);
            let mut payload = vec![0; head.length];
            client.read_exact(&mut payload).await.unwrap();
            assert_ne!(head.kind, 7, "the connection is gone");
            if head.kind == 1 {
                let fields = decoder.decode(&payload).unwrap();
                if let Some(status) = fields.iter().find(|field| field.name == b":status") {
                    statuses.insert(
                        head.stream,
                        String::from_utf8_lossy(&status.value).into_owned(),
                    );
                }
            }
        }
        let statuses: Vec<_> = statuses.values().map(String::as_str).collect();
        assert_eq!(statuses, ["200", "431", "200"], "{authority:?}");
    }
}

fn conversation(authority: &str) -> Vec<u8> {
    let mut bytes = hello();
    bytes.extend(call(
        1,
        authority,
        Framing {
            fragment: Some(9),
            ..Framing::default()
        },
    ));
    bytes.extend(frame(6, 0, 0, &[1, 2, 3, 4, 5, 6, 7, 8]));
    bytes.extend(call(
        3,
        authority,
        Framing {
            padding: Some(3),
            priority: true,
            ..Framing::default()
        },
    ));
    bytes.extend(call(
        5,
        authority,
        Framing {
            large: 20_000,
            ..Framing::default()
        },
    ));
    bytes
}

fn rewrite_in_two(bytes: &[u8], at: usize) -> Vec<u8> {
    let mut rewriter = Rewriter::new();
    let mut output = Vec::new();
    for mut part in [&bytes[..at], &bytes[at..]] {
        while !part.is_empty() {
            let seen = rewriter.step(part, &mut output);
            part = &part[seen..];
        }
    }
    output
}

#[test]
fn the_outcome_does_not_depend_on_where_reads_are_split() {
    for authority in ["/csi/csi.sock", "localhost"] {
        let bytes = conversation(authority);
        let whole = rewrite(&bytes);
        for at in 0..bytes.len() {
            assert_eq!(rewrite_in_two(&bytes, at), whole, "split at {at}");
        }
    }
}

#[test]
fn what_needs_no_repair_passes_unchanged() {
    for authority in SOUND {
        let bytes = conversation(authority);
        assert_eq!(rewrite(&bytes), bytes);
    }
    for other in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"PRI * HTTP/1.0", b"x"] {
        assert_eq!(rewrite(other), other);
    }
}

#[test]
fn all_that_is_not_a_header_block_passes_a_repair_unchanged_and_in_order() {
    let repaired = rewrite(&conversation("/csi/csi.sock"));
    let sound = conversation("localhost");
    let rest = |bytes: &[u8]| {
        let mut rest = Vec::new();
        let mut at = 24;
        while at < bytes.len() {
            let head = blocks::FrameHead::parse(bytes[at..at + 9].try_into().unwrap());
            let frame = &bytes[at..at + 9 + head.length];
            if !matches!(head.kind, 1 | 9) {
                rest.extend_from_slice(frame);
            }
            assert!(head.length <= 16_384);
            at += frame.len();
        }
        rest
    };
    assert_eq!(rest(&repaired), rest(&sound));
}

#[tokio::test]
async fn the_library_reports_a_protocol_error_of_the_client_during_a_repair() {
    let open = |flags: u8| frame(1, flags, 3, &[0xc1]);
    let offences = [
        // A frame between the parts of a header block.
        [open(0), frame(6, 0, 0, &[0; 8])].concat(),
        // A reference to nothing; more padding than payload; a priority that is cut off.
        frame(1, 0x4, 3, &[0xfe]),
        frame(1, 0xc, 3, &[9, 0xc1]),
        frame(1, 0x24, 3, &[0, 0]),
        // A flood of empty continuations.
        [open(0), frame(9, 0, 3, &[]).repeat(8000)].concat(),
        frame(0, 0, 1, &vec![0; 20_000]),
    ];
    for offence in offences {
        let mut client = serve();
        let mut bytes = hello();
        bytes.extend(call(1, "/csi/csi.sock", Framing::default()));
        client.write_all(&bytes).await.unwrap();
        assert_eq!(answers(&mut client, 1).await[&1].0, "0");
        // The server may hang up before it has read everything.
        let _ = client.write_all(&offence).await;
        let (status, _) = &answers(&mut client, 1).await[&0];
        assert!(status.starts_with("goaway"), "{status}");
    }
}

#[test]
fn a_poisoned_connection_says_nothing_more() {
    let mut bytes = hello();
    bytes.extend(call(1, "", Framing::default()));
    bytes.extend(frame(1, 0x4, 3, &[0xfe]));
    let poisoned = rewrite(&bytes);
    bytes.extend(call(5, "", Framing::default()));
    assert_eq!(rewrite(&bytes), poisoned);
}

proptest! {
    #[test]
    fn no_input_makes_the_rewriter_panic_or_swell(
        authority in prop_oneof![Just("/csi/csi.sock"), Just("localhost")],
        noise in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        tail in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        let mut bytes = conversation(authority);
        for (at, byte) in noise {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.extend(tail);
        let mut rewriter = Rewriter::new();
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let mut output = Vec::new();
            let seen = rewriter.step(rest, &mut output);
            prop_assert!(seen > 0);
            prop_assert!(output.len() <= rest.len() + 140_000);
            rest = &rest[seen..];
        }
    }
}
