//! The runtime of one sandbox of Kata Containers, asked over its socket.
//!
//! It speaks HTTP. Questions are asked in version 1.0: the answer is whole when the runtime closes the connection.

use std::fmt::Write as _;
use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::entry::{Entry, Folders};
use crate::node::request::{Usage, VolumeStats};
use csi_types::error::{Effect, Error, Kind};
use csi_types::health::Conditions;

/// The socket in the folder of a sandbox.
const SOCKET: &str = "shim-monitor.sock";

/// The longest answer that is read: numbers, or why there are none.
const LONGEST: usize = 64 * 1024;

/// The longest part of a refusal that is shown.
const SHOWN: usize = 300;

/// The status of a success.
const OK: u16 = 200;

/// The units of the numbers of a volume, by number and by name.
const BYTES: (u64, &str) = (1, "BYTES");
const INODES: (u64, &str) = (2, "INODES");

/// One question.
struct Question<'a> {
    verb: &'static str,
    path: String,
    body: &'a str,
}

/// One answer.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    status: u16,
    body: String,
}

/// The numbers of the filesystem on `device`, as the guest sees it. `Unreachable` where it cannot be asked.
pub(super) fn stats(
    folders: &Folders,
    entry: &Entry,
    device: &Path,
    deadline: Instant,
) -> Result<VolumeStats, Error> {
    let doing = format!("ask the guest for statistics of {}", device.display());
    let question = Question {
        verb: "GET",
        path: format!("/direct-volume/stats?path={}", escaped(device)),
        body: "",
    };
    let answer = ask(folders, entry, &question, deadline)
        .map_err(|why| Error::new(Kind::Unreachable, doing.clone()).because(why))?;
    if answer.status != OK {
        return Err(Error::new(Kind::Unreachable, doing).because(refusal(&answer)));
    }
    numbers(&answer.body).ok_or_else(|| {
        Error::new(Kind::Unreachable, doing).because("its answer holds no number of bytes")
    })
}

/// Has the guest grow the filesystem on `device`.
pub(super) fn grow(
    folders: &Folders,
    entry: &Entry,
    device: &Path,
    size: u64,
    deadline: Instant,
) -> Result<(), Error> {
    let doing = format!("have the guest grow the filesystem of {}", device.display());
    let body = json!({ "VolumePath": device.display().to_string(), "Size": size }).to_string();
    let question = Question {
        verb: "POST",
        path: "/direct-volume/resize".to_owned(),
        body: &body,
    };
    let later = "a guest that cannot do it gets the new size with its next start: the node grows the filesystem \
                 before it is handed to the next pod";
    let answer = ask(folders, entry, &question, deadline).map_err(|why| {
        let (kind, effect) = (why.kind(), why.effect());
        let error = Error::new(kind, doing.clone()).because(why);
        error.with_effect(effect).advise(later)
    })?;
    if answer.status == OK {
        return Ok(());
    }
    Err(Error::new(Kind::Busy, doing)
        .because(refusal(&answer))
        .advise(later))
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
enum Silence {
    #[error(
        "the runtime has not written down which sandbox uses the volume; the one in Rust never does"
    )]
    NoSandbox,
    #[error("the sandbox `{0}` has no socket; its folder must be visible to this node plugin")]
    NoSocket(String),
    #[error("the runtime of the sandbox does not answer")]
    Socket(#[from] io::Error),
    #[error("the runtime of the sandbox answers something else than HTTP")]
    NotHttp,
    #[error("the direct volume cannot be read: {0}")]
    Entry(String),
}

// === impl Silence ===

impl Silence {
    /// A runtime that cannot be asked at all is a state; one that is silent may answer later.
    fn kind(&self) -> Kind {
        match self {
            Self::NoSandbox => Kind::Busy,
            Self::NoSocket(_) | Self::Socket(_) | Self::NotHttp | Self::Entry(_) => {
                Kind::Unreachable
            }
        }
    }

    /// A question that was asked may be followed.
    fn effect(&self) -> Effect {
        match self {
            Self::Socket(_) | Self::NotHttp => Effect::Possible,
            Self::NoSandbox | Self::NoSocket(_) | Self::Entry(_) => Effect::None,
        }
    }
}

fn ask(
    folders: &Folders,
    entry: &Entry,
    question: &Question<'_>,
    deadline: Instant,
) -> Result<Answer, Silence> {
    let mut sandboxes = entry
        .sandboxes()
        .map_err(|error| Silence::Entry(error.chain()))?;
    let found = sandboxes.iter().find_map(|name| socket(folders, name));
    let socket = match (found, sandboxes.pop()) {
        (Some(socket), _) => socket,
        (None, Some(sandbox)) => return Err(Silence::NoSocket(sandbox)),
        (None, None) => return Err(Silence::NoSandbox),
    };
    let mut stream = UnixStream::connect(socket)?;
    stream.set_write_timeout(Some(left(deadline)?))?;
    stream.write_all(question.text().as_bytes())?;
    let mut text = Vec::new();
    let mut buffer = [0; 4096];
    while text.len() <= LONGEST {
        stream.set_read_timeout(Some(left(deadline)?))?;
        match stream.read(&mut buffer)? {
            0 => break,
            length => text.extend_from_slice(&buffer[..length]),
        }
    }
    Answer::parse(&String::from_utf8_lossy(&text)).ok_or(Silence::NotHttp)
}

/// The time that is left; never zero, which would mean forever.
fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    Ok(left)
}

fn socket(folders: &Folders, sandbox: &str) -> Option<PathBuf> {
    sockets(folders, sandbox).find(|socket| socket.exists())
}

/// The paths at which the runtime of a sandbox may listen.
fn sockets(folders: &Folders, sandbox: &str) -> impl Iterator<Item = PathBuf> {
    let folders = folders.sandboxes.iter();
    folders.map(move |folder| folder.join(sandbox).join(SOCKET))
}

/// Fails if the runtime of a sandbox that uses the volume still listens: its guest has the filesystem mounted. Of a
/// runtime that does not say which sandbox that is, nothing is known.
pub(super) fn check_ended(folders: &Folders, entry: &Entry, doing: &str) -> Result<(), Error> {
    for sandbox in entry.sandboxes()? {
        for socket in sockets(folders, &sandbox) {
            let is_running = listens(&socket).map_err(|errno| {
                Error::new(Kind::Unreachable, doing).because(io::Error::from(errno))
            })?;
            if is_running {
                return Err(Error::new(Kind::Busy, doing).advise(format!(
                    "the sandbox `{sandbox}` still runs: its runtime listens at `{}`; stop that sandbox",
                    socket.display()
                )));
            }
        }
    }
    Ok(())
}

/// Whether a process listens at a socket. This does not wait.
fn listens(path: &Path) -> Result<bool, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&socket, &SocketAddrUnix::new(path)?) {
        // A full queue is that of a process that listens.
        Ok(()) | Err(Errno::AGAIN) => Ok(true),
        Err(Errno::CONNREFUSED | Errno::NOENT | Errno::NOTDIR) => Ok(false),
        Err(errno) => Err(errno),
    }
}

// === impl Question ===

impl Question<'_> {
    fn text(&self) -> String {
        let Self { verb, path, body } = self;
        let length = body.len();
        format!(
            "{verb} {path} HTTP/1.0\r\nHost: shim\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        )
    }
}

// === impl Answer ===

impl Answer {
    fn parse(text: &str) -> Option<Self> {
        let (head, body) = text.split_once("\r\n\r\n")?;
        let first = head.lines().next()?;
        let mut words = first.split(' ');
        words
            .next()
            .filter(|version| version.starts_with("HTTP/1."))?;
        Some(Self {
            status: words.next()?.parse().ok()?,
            body: body.to_owned(),
        })
    }
}

/// Why the runtime refuses.
fn refusal(answer: &Answer) -> String {
    let said: String = answer.body.trim().chars().take(SHOWN).collect();
    format!(
        "the runtime of the sandbox answers {}: {}",
        answer.status,
        said.escape_debug()
    )
}

/// A path as the value of a query.
fn escaped(path: &Path) -> String {
    let mut text = String::new();
    for byte in path.as_os_str().as_encoded_bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(byte) {
            text.push(char::from(*byte));
        } else {
            // A text takes every write.
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
}

/// The numbers of an answer; `None` without those of bytes.
fn numbers(body: &str) -> Option<VolumeStats> {
    let body: Value = serde_json::from_str(body).ok()?;
    let usages = body.get("usage")?.as_array()?;
    let of = |unit: (u64, &str)| {
        let mut usages = usages.iter();
        let found = usages.find(|usage| {
            let said = &usage["unit"];
            said.as_u64() == Some(unit.0) || said.as_str() == Some(unit.1)
        });
        found.map(usage)
    };
    Some(VolumeStats {
        bytes: Some(of(BYTES)?),
        inodes: of(INODES).filter(|usage| usage.total > 0),
        conditions: Conditions::default(),
    })
}

/// One usage; a number that is zero is left out.
fn usage(said: &Value) -> Usage {
    let number = |key: &str| said[key].as_u64().unwrap_or_default();
    let total = number("total");
    Usage {
        total,
        used: number("used").min(total),
        available: number("available").min(total),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn answers_are_taken_apart_and_what_is_no_http_is_none() {
        let answer =
            Answer::parse("HTTP/1.0 500 Internal\r\nA: b\r\n\r\nno\n\nsuch").expect("http");
        assert_eq!((answer.status, answer.body.as_str()), (500, "no\n\nsuch"));
        for bad in [
            "",
            "HTTP/1.0 200 OK\r\n",
            "SSH-2.0 200\r\n\r\n",
            "HTTP/1.0 x\r\n\r\n",
        ] {
            assert_eq!(Answer::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn a_process_that_listens_is_told_from_a_socket_that_is_left() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(SOCKET);
        assert_eq!(listens(&path), Ok(false), "nothing is there");
        assert_eq!(listens(&path.join("below")), Ok(false));
        let listener = UnixListener::bind(&path).expect("bound");
        assert_eq!(listens(&path), Ok(true));
        assert_eq!(listens(&path.join("below")), Ok(false), "no folder");
        drop(listener);
        assert_eq!(listens(&path), Ok(false), "the socket is left");
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("link", &link).expect("a link to itself");
        assert!(listens(&link).is_err(), "unknown is not ended");
    }

    #[test]
    fn numbers_are_read_in_the_words_of_the_agent_and_never_exceed_the_total() {
        let body = r#"{"usage":[{"available":60,"total":100,"used":40,"unit":1},{"total":7,"used":9,"unit":"INODES"}],
                       "volume_condition":{"message":"OK"}}"#;
        let stats = numbers(body).expect("numbers");
        let bytes = stats.bytes.expect("bytes");
        assert_eq!((bytes.total, bytes.used, bytes.available), (100, 40, 60));
        let inodes = stats.inodes.expect("files");
        assert_eq!((inodes.total, inodes.used, inodes.available), (7, 7, 0));
        for bad in [
            "",
            "[]",
            "{}",
            r#"{"usage":[{"total":1}]}"#,
            r#"{"usage":7}"#,
        ] {
            assert_eq!(numbers(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_path_of_a_device_is_one_value_of_the_query() {
        assert_eq!(escaped(Path::new("/dev/dm-3")), "%2Fdev%2Fdm-3");
        assert_eq!(escaped(Path::new("/dev/a&b=c d")), "%2Fdev%2Fa%26b%3Dc%20d");
    }
}
