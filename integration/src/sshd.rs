//! The SSH server of OpenSSH, on a port that no other program gets.
#![expect(
    clippy::disallowed_methods,
    reason = "starts a storage host of the tests, not a tool of the program"
)]

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::net::{self, AddressFamily, SocketAddrV4, SocketType, sockopt};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{requirement, tools, wait};

/// A server, until it is dropped. The user of the test may log in with a key.
#[derive(Debug)]
pub struct Sshd {
    child: Child,
    folder: TempDir,
    port: u16,
    user: String,
    /// Bound and not listened at: the server shares the address.
    _bound: OwnedFd,
}

impl Sshd {
    /// Starts one with these lines in its configuration; `None`, after saying so, where there is no such server.
    ///
    /// # Panics
    /// If it does not start.
    pub async fn start(what: &str, options: &str) -> Option<Self> {
        let keygen = requirement::tool(what, "ssh-keygen")?;
        let sshd = requirement::tool(what, "sshd")?;
        let folder = tempfile::tempdir().expect("a folder");
        let at = folder.path().display();
        for name in ["host", "user"] {
            let path = format!("{at}/{name}");
            let words = ["-q", "-t", "ed25519", "-N", "", "-f", &path];
            let made = tools::run(&keygen, words, folder.path()).await;
            assert!(made.status.success(), "{made:?}");
        }
        // Where it separates privileges.
        let _ = fs::create_dir_all("/run/sshd");
        let (bound, port) = free();
        let config = format!(
            "ListenAddress 127.0.0.1\nPort {port}\nHostKey {at}/host\nPidFile none\nUsePAM no\nStrictModes no\n\
             AuthorizedKeysFile {at}/user.pub\nPermitRootLogin yes\n{options}\n"
        );
        fs::write(folder.path().join("config"), config).expect("a file");
        let mut server = Command::new(sshd);
        server
            .args(["-D", "-e", "-f"])
            .arg(folder.path().join("config"));
        server.stdin(Stdio::null()).stdout(Stdio::null());
        let child = server.stderr(Stdio::null()).spawn().expect("sshd");
        let user = tools::run(Path::new("/usr/bin/id"), ["-un"], folder.path()).await;
        let user = String::from_utf8(user.stdout).expect("a name");
        let server = Self {
            child,
            port,
            user: user.trim().to_owned(),
            _bound: bound,
            folder,
        };
        let open = || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok();
        wait::until("sshd", open).await;
        Some(server)
    }

    /// The section `sshConnection`, without the key of the host.
    pub fn connection(&self) -> Value {
        json!({
            "host": "127.0.0.1",
            "port": self.port,
            "username": self.user,
            "privateKey": self.read("user"),
        })
    }

    /// The public key of the host.
    pub fn host_key(&self) -> String {
        self.read("host.pub").trim().to_owned()
    }

    /// The fingerprint of that key, as ssh-keygen prints it.
    ///
    /// # Panics
    /// If it prints none.
    pub async fn fingerprint(&self) -> String {
        let keygen = requirement::tool("the fingerprint of a key", "ssh-keygen");
        let keygen = keygen.expect("it made the key");
        let words = ["-l", "-E", "sha256", "-f", "host.pub"];
        let said = tools::run(&keygen, words, self.folder.path()).await;
        let said = String::from_utf8(said.stdout).expect("a text");
        let mut words = said.split(' ');
        let found = words.find(|word| word.starts_with("SHA256:"));
        found.expect("a fingerprint").to_owned()
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.folder.path().join(name)).expect("a key")
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free() -> (OwnedFd, u16) {
    let bound = net::socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    sockopt::set_socket_reuseaddr(&bound, true).expect("shared");
    net::bind(&bound, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let address = net::getsockname(&bound).expect("an address");
    let address = SocketAddr::try_from(address).expect("an address");
    (bound, address.port())
}
