//! A real SSH server of OpenSSH on a port of its own, and a wire to it that can be slow or cut.
#![expect(
    clippy::disallowed_methods,
    reason = "the other side of the runner is started without it"
)]

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use driver_ssh::{HostKeys, Key, Settings};
use secrecy::SecretString;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// A server, until it is dropped.
pub(crate) struct Sshd {
    child: Child,
    folder: TempDir,
    port: Port,
}

/// A port that no other program gets, whether a server listens at it or not.
pub(crate) struct Port {
    number: u16,
    _bound: OwnedFd,
}

/// The server program, or `None` after saying that this test did not run.
pub(crate) fn sshd() -> Option<PathBuf> {
    let known = ["/usr/sbin/sshd", "/usr/local/sbin/sshd", "/usr/bin/sshd"];
    let found = known.iter().map(PathBuf::from).find(|path| path.exists());
    if found.is_none() {
        exec::testing::requirement::this_test_could_not_run("no sshd (package openssh-server)");
    }
    found
}

impl Sshd {
    /// Starts a server; `None` where there is none to start.
    pub(crate) fn start(options: &str) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a folder");
        keygen(&folder.path().join("user"), &["-t", "ed25519", "-N", ""]);
        Self::restart(folder, Port::free(), options)
    }

    /// Starts a server with a new host key on a given port.
    pub(crate) fn restart(folder: TempDir, port: Port, options: &str) -> Option<Self> {
        let program = sshd()?;
        // Where it separates privileges.
        let _ = fs::create_dir_all("/run/sshd");
        let at = |name: &str| folder.path().join(name);
        let _ = fs::remove_file(at("host"));
        keygen(&at("host"), &["-t", "ed25519", "-N", ""]);
        fs::copy(at("user.pub"), at("authorized")).expect("copied");
        let config = format!(
            "{options}\nListenAddress 127.0.0.1\nPort {}\nHostKey {}\nPidFile none\nUsePAM no\n\
             StrictModes no\nAuthorizedKeysFile {}\nPermitRootLogin yes\nLogLevel VERBOSE\n",
            port.number,
            at("host").display(),
            at("authorized").display()
        );
        fs::write(at("config"), config).expect("written");
        let log = fs::File::create(at("log")).expect("a log");
        let child = Command::new(program)
            .args(["-D", "-e", "-f"])
            .arg(at("config"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("sshd");
        let server = Self {
            child,
            folder,
            port,
        };
        server.wait();
        Some(server)
    }

    fn wait(&self) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, self.port())).is_err() {
            let log = fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
            assert!(Instant::now() < deadline, "sshd does not listen:\n{log}");
            std::thread::yield_now();
        }
    }

    /// Ends the server and keeps its folder and its port.
    pub(crate) fn stop(mut self) -> (TempDir, Port) {
        end(&mut self.child);
        let folder = std::mem::replace(&mut self.folder, tempfile::tempdir().expect("a folder"));
        (folder, std::mem::replace(&mut self.port, Port::free()))
    }

    pub(crate) fn port(&self) -> u16 {
        self.port.number
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Adds the public half of a key that the test made to those that may log in.
    pub(crate) fn authorize(&self, key: &Path) {
        let path = self.path().join("authorized");
        let mut all = fs::read_to_string(&path).expect("authorized");
        all += &fs::read_to_string(key.with_extension("pub")).expect("a public key");
        fs::write(path, all).expect("written");
    }

    /// Settings that reach it with the first key.
    pub(crate) fn settings(&self) -> Settings {
        let key = fs::read_to_string(self.path().join("user")).expect("a key");
        let mut settings = Settings::new("127.0.0.1", user());
        settings.port = self.port();
        settings.key = Some(Key::parse(&SecretString::from(key), None).expect("a key"));
        settings.host_keys = HostKeys::pinned([self.host_key().as_str()]).expect("a host key");
        settings
    }

    /// The same over a wire, where its key is believed when it is first seen.
    pub(crate) fn settings_over(&self, wire: &WireTo) -> Settings {
        let mut settings = self.settings();
        settings.port = wire.port;
        settings.host_keys = HostKeys::first_use();
        settings
    }

    /// The public half of its key.
    pub(crate) fn host_key(&self) -> String {
        fs::read_to_string(self.path().join("host.pub")).expect("a host key")
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

/// Ends a process of the server.
pub(crate) fn kill(process: &str) {
    let killed = Command::new("kill").args(["-9", process]).status();
    assert!(killed.expect("kill").success(), "{process} is not there");
}

/// The user that runs this test.
fn user() -> String {
    let id = Command::new("id").arg("-un").output().expect("id");
    String::from_utf8(id.stdout)
        .expect("a name")
        .trim()
        .to_owned()
}

/// Makes a key pair.
pub(crate) fn keygen(path: &Path, options: &[&str]) {
    let made = Command::new("ssh-keygen")
        .args(["-q", "-f"])
        .arg(path)
        .args(options)
        .stdin(Stdio::null())
        .output()
        .expect("ssh-keygen");
    assert!(made.status.success(), "{made:?}");
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("permissions");
}

impl Port {
    pub(crate) fn free() -> Self {
        use rustix::net::{self, AddressFamily, SocketAddrV4, SocketType, sockopt};
        // Bound and not listened at: a call to it is refused, and a server that shares the address may still bind it.
        let bound = net::socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
        sockopt::set_socket_reuseaddr(&bound, true).expect("shared");
        net::bind(&bound, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = net::getsockname(&bound).expect("an address");
        let address = SocketAddr::try_from(address).expect("an address");
        Self {
            number: address.port(),
            _bound: bound,
        }
    }

    pub(crate) fn number(&self) -> u16 {
        self.number
    }
}

/// A wire to a server: as slow as one likes, and it can be cut.
pub(crate) struct WireTo {
    pub(crate) port: u16,
    delay: Arc<AtomicU64>,
    pub(crate) connections: Arc<AtomicU64>,
    cut: watch::Sender<u64>,
}

impl WireTo {
    pub(crate) async fn new(server: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let (cut, cuts) = watch::channel(0);
        let wire = Self {
            port,
            delay: Arc::default(),
            connections: Arc::default(),
            cut,
        };
        let (delay, connections) = (Arc::clone(&wire.delay), Arc::clone(&wire.connections));
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                connections.fetch_add(1, Ordering::SeqCst);
                let far = SocketAddr::from((Ipv4Addr::LOCALHOST, server));
                let Ok(far) = TcpStream::connect(far).await else {
                    continue;
                };
                near.set_nodelay(true).expect("no delay");
                far.set_nodelay(true).expect("no delay");
                let (near_in, near_out) = near.into_split();
                let (far_in, far_out) = far.into_split();
                let mut cuts = cuts.clone();
                cuts.mark_unchanged();
                tokio::spawn(carry(near_in, far_out, Arc::clone(&delay), cuts.clone()));
                tokio::spawn(carry(far_in, near_out, Arc::clone(&delay), cuts));
            }
        });
        wire
    }

    /// From now on each direction takes so long.
    pub(crate) fn delay(&self, time: Duration) {
        let millis = u64::try_from(time.as_millis()).expect("short");
        self.delay.store(millis, Ordering::SeqCst);
    }

    /// Closes every connection.
    pub(crate) fn cut(&self) {
        self.cut.send_modify(|count| *count += 1);
    }
}

/// Carries bytes one way; each piece arrives after the delay, however many are under way.
async fn carry(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    delay: Arc<AtomicU64>,
    mut cuts: watch::Receiver<u64>,
) {
    let (send, mut pieces) =
        tokio::sync::mpsc::unbounded_channel::<(tokio::time::Instant, Vec<u8>)>();
    let writing = tokio::spawn(async move {
        while let Some((due, piece)) = pieces.recv().await {
            tokio::time::sleep_until(due).await;
            if to.write_all(&piece).await.is_err() {
                return;
            }
        }
    });
    let mut piece = vec![0; 64 * 1024];
    loop {
        let read = tokio::select! {
            read = from.read(&mut piece) => read,
            _ = cuts.changed() => break,
        };
        let Ok(count @ 1..) = read else { break };
        let due = tokio::time::Instant::now() + Duration::from_millis(delay.load(Ordering::SeqCst));
        if send.send((due, piece[..count].to_vec())).is_err() {
            break;
        }
    }
    writing.abort();
}
