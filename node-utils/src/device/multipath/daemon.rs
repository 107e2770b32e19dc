//! The host's multipath daemon: whether it runs, and talking to it.
//!
//! It listens on a socket that belongs to the host's network, which a node plugin shares; newer
//! ones listen on a file too. An order is one packet and its answer another: a length as the
//! machine writes it, then text that ends with a NUL byte. The truth is in multipathd(8) and in
//! `mpath_cmd.h` of multipath-tools.

use std::io::{self, Read as _, Write as _};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::{Path, PathBuf};

use tokio::time::Instant;

use crate::device::unreadable;
use crate::kernel::{self, Kernel};
use csi_types::error::{Error, Kind};

const ABSTRACT: &str = "/org/kernel/linux/storage/multipathd";
const FILE: &str = "run/multipathd.socket";

/// No answer about one map is longer.
const LONGEST: usize = 64 * 1024;

/// The multipath daemon, as far as it can be seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Daemon {
    /// It listens in our network.
    Here,
    /// It listens on a file that we can see.
    At(PathBuf),
    /// It listens in the host's network, which is not ours: it makes maps, but cannot be asked.
    Elsewhere,
    /// It does not run, or nothing shows it.
    Absent,
}

// === impl Daemon ===

impl Daemon {
    /// Looks for it.
    pub fn find(kernel: &Kernel) -> Result<Self, Error> {
        if listens(&kernel.proc("net/unix"))? {
            return Ok(Self::Here);
        }
        for path in [kernel.host_file(FILE), kernel.file(FILE)] {
            // A file that a dead daemon left behind refuses to be connected to.
            if UnixStream::connect(&path).is_ok() {
                return Ok(Self::At(path));
            }
        }
        for process in [
            kernel.host_file("proc/1/net/unix"),
            kernel.proc("1/net/unix"),
        ] {
            if listens(&process)? {
                return Ok(Self::Elsewhere);
            }
        }
        Ok(Self::Absent)
    }

    /// Sends a command and returns the answer; `None` without a daemon.
    pub(super) fn ask(&self, order: &str, deadline: Instant) -> Result<Option<String>, Error> {
        let stream = match self {
            Self::Here => SocketAddr::from_abstract_name(ABSTRACT)
                .and_then(|to| UnixStream::connect_addr(&to)),
            Self::At(path) => UnixStream::connect(path),
            Self::Elsewhere | Self::Absent => return Ok(None),
        };
        // The daemon has just ended: the tool has to do it.
        let Ok(stream) = stream else { return Ok(None) };
        let answer = exchange(stream, order, deadline);
        answer.map(Some).map_err(|error| {
            Error::new(
                Kind::Unreachable,
                format!("tell the multipath daemon `{order}`"),
            )
            .because(error)
        })
    }
}

/// Whether a table of sockets shows a listening multipath daemon.
fn listens(table: &Path) -> Result<bool, Error> {
    let text = match kernel::read_all(table) {
        // The processes of others may be hidden from us.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => None,
        result => result.map_err(|error| unreadable(table, error))?,
    };
    // num refcount protocol flags type state inode path; the flag is SO_ACCEPTCON.
    let listening = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        fields.nth(3) == Some("00010000")
            && fields.nth(3).and_then(|path| path.strip_prefix('@')) == Some(ABSTRACT)
    };
    Ok(text.is_some_and(|text| text.lines().any(listening)))
}

fn exchange(mut stream: UnixStream, order: &str, deadline: Instant) -> io::Result<String> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    stream.set_write_timeout(Some(left))?;
    stream.set_read_timeout(Some(left))?;
    let mut packet = (order.len() + 1).to_ne_bytes().to_vec();
    packet.extend_from_slice(order.as_bytes());
    packet.push(0);
    stream.write_all(&packet)?;
    let mut length = [0; size_of::<usize>()];
    stream.read_exact(&mut length)?;
    let length = usize::from_ne_bytes(length);
    if length > LONGEST {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut answer = vec![0; length];
    stream.read_exact(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer);
    Ok(answer.trim_end_matches(['\0', '\n']).to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::time::Duration;

    use super::*;
    use crate::kernel::testing::Tree;

    /// Captured from a machine with multipathd 0.11.1.
    const LISTENING: &str = "\
Num       RefCount Protocol Flags    Type St Inode Path
0000000039503f7a: 00000002 00000000 00010000 0001 01  4119 @/org/kernel/linux/storage/multipathd
";

    /// A socket that is connected to it, as each client's end is: no daemon need be behind it.
    const CONNECTED: &str = "\
Num       RefCount Protocol Flags    Type St Inode Path
0000000039503f7a: 00000003 00000000 00000000 0001 03  4119 @/org/kernel/linux/storage/multipathd
";

    #[test]
    fn a_daemon_is_found_at_each_of_its_sockets() {
        let cases = [
            (None, Daemon::Absent),
            (Some(("proc/net/unix", LISTENING)), Daemon::Here),
            (Some(("proc/net/unix", CONNECTED)), Daemon::Absent),
            (Some(("host/proc/1/net/unix", LISTENING)), Daemon::Elsewhere),
            (Some(("proc/1/net/unix", LISTENING)), Daemon::Elsewhere),
            // The file that a dead one left.
            (Some(("host/run/multipathd.socket", "")), Daemon::Absent),
        ];
        for (file, expected) in cases {
            let tree = Tree::new();
            if let Some((path, text)) = file {
                tree.file(path, text);
            }
            let found = Daemon::find(&tree.kernel()).expect("look");
            assert_eq!(found, expected, "{file:?}");
        }
    }

    #[test]
    fn an_order_and_its_answer_are_packets_with_their_length_before_them() {
        let tree = Tree::new();
        tree.file("host/run/x", "");
        let listener = UnixListener::bind(tree.path("host/run/multipathd.socket")).expect("bind");
        let daemon = std::thread::spawn(move || {
            // The first connection only tests whether a daemon listens.
            let _ = listener.accept().expect("accept");
            let (mut stream, _) = listener.accept().expect("accept");
            let mut packet = [0; size_of::<usize>() + 16];
            stream.read_exact(&mut packet).expect("read");
            let mut answer = 4_usize.to_ne_bytes().to_vec();
            answer.extend_from_slice(b"ok\n\0");
            stream.write_all(&answer).expect("write");
            packet.to_vec()
        });
        let found = Daemon::find(&tree.kernel()).expect("look");
        assert!(matches!(found, Daemon::At(_)));
        let deadline = Instant::now() + Duration::from_secs(10);
        let answer = found.ask("resize map dm-0", deadline).expect("answer");
        assert_eq!(answer.as_deref(), Some("ok"));
        let mut packet = 16_usize.to_ne_bytes().to_vec();
        packet.extend_from_slice(b"resize map dm-0\0");
        assert_eq!(daemon.join().expect("daemon"), packet);
    }

    #[test]
    fn a_daemon_that_says_nothing_is_not_waited_for_beyond_the_deadline() {
        let tree = Tree::new();
        tree.file("host/run/x", "");
        let path = tree.path("host/run/multipathd.socket");
        let _listener = UnixListener::bind(&path).expect("bind");
        let deadline = Instant::now() + Duration::from_millis(50);
        let error = Daemon::At(path).ask("remove map dm-0", deadline);
        assert_eq!(error.expect_err("no answer").kind(), Kind::Unreachable);
    }

    #[test]
    fn a_socket_without_a_listener_is_an_error() {
        let tree = Tree::new();
        let deadline = Instant::now() + Duration::from_secs(10);
        for daemon in [
            Daemon::Absent,
            Daemon::Elsewhere,
            Daemon::At(tree.path("none")),
        ] {
            assert_eq!(daemon.ask("x", deadline).expect("answer"), None);
        }
    }
}
