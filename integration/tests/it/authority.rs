//! Clients that send an :authority which is none: the whole program, spoken to in bytes.

use std::path::Path;
use std::time::Duration;

use integration::place::Place;
use integration::server::Launch;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("small").to_be_bytes();
    let mut bytes = length[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// A header field with a literal name and value, neither indexed nor compressed.
fn field(name: &str, value: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0];
    for text in [name.as_bytes(), value] {
        let length = u8::try_from(text.len()).expect("short");
        assert!(length < 127, "one byte of length is enough here");
        bytes.push(length);
        bytes.extend(text);
    }
    bytes
}

fn probe(stream: u32, authority: Option<&[u8]>) -> Vec<u8> {
    let mut block = Vec::new();
    block.extend(field(":method", b"POST"));
    block.extend(field(":scheme", b"http"));
    block.extend(field(":path", b"/csi.v1.Identity/Probe"));
    if let Some(authority) = authority {
        block.extend(field(":authority", authority));
    }
    block.extend(field("content-type", b"application/grpc"));
    block.extend(field("te", b"trailers"));
    let mut bytes = frame(HEADERS, 4, stream, &block);
    // An empty message, and the end of the stream.
    bytes.extend(frame(DATA, 1, stream, &[0; 5]));
    bytes
}

/// Sends a Probe and says whether a message came back on its stream: a reply begins with a byte
/// for compression and four for its length.
async fn answers(socket: &Path, authority: Option<&[u8]>) -> bool {
    let mut connection = UnixStream::connect(socket).await.expect("a connection");
    let mut hello = PREFACE.to_vec();
    hello.extend(frame(SETTINGS, 0, 0, &[]));
    for stream in [1, 3] {
        hello.extend(probe(stream, authority));
    }
    connection.write_all(&hello).await.expect("sent");
    let mut replies = 0;
    let read = async {
        loop {
            let mut head = [0; 9];
            if connection.read_exact(&mut head).await.is_err() {
                return;
            }
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let mut payload = vec![0; usize::try_from(length).expect("small")];
            if connection.read_exact(&mut payload).await.is_err() {
                return;
            }
            if head[3] == DATA && payload.starts_with(&[0, 0, 0, 0]) {
                replies += 1;
                if replies == 2 {
                    return;
                }
            }
        }
    };
    let _ = tokio::time::timeout(Duration::from_secs(10), read).await;
    replies == 2
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_authority_that_is_none_does_not_matter() {
    let place = Place::new();
    let mut server = Launch::local_hostpath(&place).start(&place).await;
    let socket = place.socket();
    let path = socket.display().to_string();
    let encoded = path.replace('/', "%2F");
    let authorities: [(&str, Option<&[u8]>); 9] = [
        ("localhost", Some(b"localhost")),
        ("none", None),
        ("empty", Some(b"")),
        ("the socket's path", Some(path.as_bytes())),
        ("the encoded path", Some(encoded.as_bytes())),
        ("a scheme", Some(b"unix:///csi/csi.sock")),
        ("a name with an underscore", Some(b"my_driver")),
        ("a relative path", Some(b"csi/csi.sock")),
        ("an abstract socket", Some(b"@csi")),
    ];
    for (what, authority) in authorities {
        assert!(
            answers(&socket, authority).await,
            "no answer to an authority that is {what}"
        );
    }
    // Clean ones are still served after all of these.
    assert!(answers(&socket, Some(b"localhost")).await);
    assert!(server.terminate().await.success());
}
