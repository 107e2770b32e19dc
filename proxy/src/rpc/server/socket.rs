//! The listening sockets: never open with loose permissions, and removed only by the process that made
//! them.
//!
//! The path of a running server, or of a file that is not a socket, is never taken over.
//! compat: "Command line".

use std::fmt;
use std::fs::{self, Permissions};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::net::{TcpListener, UnixListener};
use tokio_stream::wrappers::UnixListenerStream;

/// As many as the kernel will queue; it cuts the number down itself.
const BACKLOG: i32 = 1024;

/// A unix socket to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnixSocket {
    /// Where.
    pub path: PathBuf,
    /// Its permission bits.
    pub mode: u32,
}

/// A TCP address to listen on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tcp {
    /// A name or an address.
    pub host: String,
    /// The port; 0 is any.
    pub port: u16,
}

/// All listeners.
#[derive(Debug)]
pub struct Listeners {
    /// The unix socket.
    pub unix: Option<Bound>,
    /// The TCP port.
    pub tcp: Option<TcpListener>,
}

/// A unix socket that this process made. Its file stays until [`Remains::remove`].
#[derive(Debug)]
pub struct Bound {
    listener: UnixListener,
    remains: Remains,
}

/// The file of a socket.
#[derive(Debug, Clone)]
pub struct Remains {
    path: PathBuf,
    device: u64,
    inode: u64,
}

/// Why a socket cannot be made.
#[derive(Debug, thiserror::Error)]
#[error("listen on {place}")]
pub struct ListenError {
    /// The path or the address.
    pub place: String,
    /// The reason.
    #[source]
    pub reason: ListenReason,
}

/// The reason why a socket cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum ListenReason {
    /// Another server answers there.
    #[error("another server answers there; stop it first, or give each its own socket")]
    InUse,
    /// Another process listens there.
    #[error("another process listens there; stop it, or choose another port")]
    PortInUse,
    /// The path is not a socket, so it is not removed.
    #[error("what has that name is not a socket, so it is not removed; move it out of the way")]
    NotASocket,
    /// The folder is missing.
    #[error("there is no such folder; create it, or mount it into the container")]
    NoFolder,
    /// It is unknown whether another process listens there.
    #[error("a socket of that name is there and cannot be asked whether it is in use")]
    Unasked(#[source] io::Error),
    /// The system refuses.
    #[error("the system refuses")]
    Io(#[from] io::Error),
}

// === impl ListenError ===

impl ListenError {
    /// That a TCP address cannot be listened on.
    pub fn on(address: impl fmt::Display, error: io::Error) -> Self {
        let reason = match error.kind() {
            io::ErrorKind::AddrInUse => ListenReason::PortInUse,
            _ => ListenReason::Io(error),
        };
        Self {
            place: address.to_string(),
            reason,
        }
    }
}

// === impl Bound ===

impl Bound {
    /// Makes a socket and listens on it. No client can connect before its permissions are set.
    pub fn listen(socket: &UnixSocket) -> Result<Self, ListenError> {
        let UnixSocket { path, mode } = socket;
        let because = |reason| ListenError {
            place: path.display().to_string(),
            reason,
        };
        clear(path).map_err(because)?;
        let bound = || -> Result<Self, ListenReason> {
            let address = SocketAddrUnix::new(path.as_path()).map_err(io::Error::from)?;
            let fd = unix_socket()?;
            rustix::net::bind(&fd, &address).map_err(|error| refusal(error.into()))?;
            // Before `listen` no client can connect, so permissions are set here.
            fs::set_permissions(path, Permissions::from_mode(*mode))?;
            let meta = fs::symlink_metadata(path)?;
            rustix::net::listen(&fd, BACKLOG).map_err(io::Error::from)?;
            let listener = UnixListener::from_std(fd.into())?;
            let remains = Remains {
                path: path.clone(),
                device: meta.dev(),
                inode: meta.ino(),
            };
            Ok(Self { listener, remains })
        };
        bound().map_err(because)
    }

    /// The files to be removed at the end.
    pub fn remains(&self) -> Remains {
        self.remains.clone()
    }

    /// The connections that come in.
    pub(super) fn incoming(self) -> UnixListenerStream {
        UnixListenerStream::new(self.listener)
    }
}

// === impl Remains ===

impl Remains {
    /// Whether nothing has the name of the socket any more: its file was removed, and no other made.
    pub(crate) fn is_missing(&self) -> bool {
        fs::symlink_metadata(&self.path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    }

    /// Removes the file of the socket, unless another socket has its name now.
    pub fn remove(&self) -> io::Result<()> {
        match fs::symlink_metadata(&self.path) {
            Ok(meta) if (meta.dev(), meta.ino()) == (self.device, self.inode) => {
                fs::remove_file(&self.path)
            }
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Removes the stale socket of a server that has ended.
fn clear(path: &Path) -> Result<(), ListenReason> {
    let meta = match fs::symlink_metadata(path) {
        Ok(meta) => meta,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    if !meta.file_type().is_socket() {
        return Err(ListenReason::NotASocket);
    }
    let address = SocketAddrUnix::new(path).map_err(io::Error::from)?;
    match rustix::net::connect(&unix_socket()?, &address) {
        // A full queue means that a process listens; waiting for a place in it may take forever.
        Ok(()) | Err(Errno::AGAIN) => Err(ListenReason::InUse),
        Err(Errno::CONNREFUSED) => Ok(fs::remove_file(path)?),
        Err(errno) => Err(ListenReason::Unasked(errno.into())),
    }
}

/// A non-blocking socket.
fn unix_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    Ok(socket)
}

fn refusal(error: io::Error) -> ListenReason {
    match error.kind() {
        io::ErrorKind::NotFound => ListenReason::NoFolder,
        io::ErrorKind::AddrInUse => ListenReason::InUse,
        _ => ListenReason::Io(error),
    }
}

/// Listens on a TCP address. The name of the host is looked up once.
pub async fn listen_tcp(tcp: &Tcp) -> Result<TcpListener, ListenError> {
    let Tcp { host, port } = tcp;
    TcpListener::bind((host.as_str(), *port))
        .await
        .map_err(|error| ListenError::on(format_args!("{}:{port}", host.escape_debug()), error))
}

/// Whether the listener is reachable from other hosts.
pub fn is_exposed(address: SocketAddr) -> bool {
    !address.ip().is_loopback()
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener as StdUnixListener, UnixStream as StdUnixStream};

    use super::*;

    fn socket(path: &Path) -> UnixSocket {
        UnixSocket {
            path: path.to_owned(),
            mode: 0o640,
        }
    }

    fn reason(path: &Path) -> ListenReason {
        Bound::listen(&socket(path)).expect_err("refused").reason
    }

    #[tokio::test]
    async fn a_socket_has_the_permissions_asked_for_and_goes_with_its_maker() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("csi.sock");
        let bound = Bound::listen(&socket(&path)).unwrap();
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o7777,
            0o640
        );
        StdUnixStream::connect(&path).unwrap();
        let remains = bound.remains();
        drop(bound);
        assert!(
            path.exists(),
            "it stays until the calls in progress have ended"
        );
        remains.remove().unwrap();
        assert!(!path.exists());
        remains.remove().unwrap();
    }

    #[tokio::test]
    async fn the_socket_of_a_dead_server_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("csi.sock");
        drop(StdUnixListener::bind(&path).unwrap());
        assert!(path.exists());
        Bound::listen(&socket(&path)).unwrap();
    }

    #[tokio::test]
    async fn a_living_server_keeps_its_socket() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("csi.sock");
        let living = StdUnixListener::bind(&path).unwrap();
        assert!(matches!(reason(&path), ListenReason::InUse));
        living.set_nonblocking(true).unwrap();
        StdUnixStream::connect(&path).unwrap();
        living.accept().unwrap();
    }

    #[tokio::test]
    async fn a_server_that_accepts_no_connection_delays_no_start_and_keeps_its_socket() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("csi.sock");
        let stuck = unix_socket().unwrap();
        rustix::net::bind(&stuck, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::net::listen(&stuck, 0).unwrap();
        let _only_place = StdUnixStream::connect(&path).unwrap();
        assert!(matches!(reason(&path), ListenReason::InUse));
        assert!(path.exists());
    }

    #[tokio::test]
    async fn what_is_no_socket_stays() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("precious");
        fs::write(&file, "data").unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        for path in [&file, &link, &dir.path().to_owned()] {
            assert!(
                matches!(reason(path), ListenReason::NotASocket),
                "{}",
                path.display()
            );
        }
        assert_eq!(fs::read(&file).unwrap(), b"data");
        assert!(link.is_symlink());
        assert!(matches!(
            reason(&dir.path().join("a/b.sock")),
            ListenReason::NoFolder
        ));
    }

    #[tokio::test]
    async fn a_socket_of_another_process_under_our_name_is_not_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("csi.sock");
        let remains = Bound::listen(&socket(&path)).unwrap().remains();
        // Made before ours goes, so that it cannot get the same inode.
        let other = dir.path().join("other.sock");
        let _living = StdUnixListener::bind(&other).unwrap();
        fs::rename(&other, &path).unwrap();
        remains.remove().unwrap();
        StdUnixStream::connect(&path).unwrap();
    }
}
