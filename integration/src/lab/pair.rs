//! The other machine of a pair, reached over the network between the two.
//!
//! A cell of a pair runs on one of them, most on `storage`; on the other runs the program alone, if anything, and
//! what a person would type there is typed over SSH with the lab's own key.
#![expect(
    clippy::disallowed_methods,
    reason = "the tests act as administrator of the other machine"
)]

pub(super) mod class;

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use super::command::run;
use crate::place::Place;
use crate::server::Launch;

/// The address of the machine `storage` in the network between the two.
pub const STORAGE: &str = "10.77.0.1";
/// The address of the machine `node`.
pub const NODE: &str = "10.77.0.2";
/// The key that may log in at both, pushed by the outer half.
pub const KEY: &str = "/root/key";

const OPTIONS: [&str; 15] = [
    "-q",
    "-i",
    KEY,
    "-o",
    "BatchMode=yes",
    "-o",
    "StrictHostKeyChecking=no",
    "-o",
    "UserKnownHostsFile=/dev/null",
    "-o",
    "StreamLocalBindUnlink=yes",
    "-o",
    "ConnectTimeout=20",
    "-oServerAliveInterval=15",
    // A machine that was paused for two minutes is the same when it goes on.
    "-oServerAliveCountMax=8",
];

/// The other machine.
#[derive(Debug, Clone)]
pub struct Far {
    name: &'static str,
    login: String,
}

// === impl Far ===

impl Far {
    /// The other machine of this pair.
    ///
    /// # Panics
    /// If it does not answer.
    pub fn reached() -> Self {
        let (address, name) = match run(&["hostname"]).trim() {
            "storage" => (NODE, "node"),
            "node" => (STORAGE, "storage"),
            other => panic!("`{other}` is no machine of a pair"),
        };
        let far = Self {
            name,
            login: format!("root@{address}"),
        };
        assert_eq!(far.run(&["hostname"]).trim(), name, "there is no pair");
        far
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Runs a command there and gives what it printed. Words must mean the same to a shell.
    ///
    /// # Panics
    /// If it fails.
    pub fn run(&self, words: &[&str]) -> String {
        run(&self.words(words))
    }

    fn words<'a>(&'a self, words: &[&'a str]) -> Vec<&'a str> {
        let mut all = vec!["ssh"];
        all.extend(OPTIONS);
        all.push(&self.login);
        all.extend(words);
        all
    }

    /// Writes a file there, down to its storage.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn write(&self, path: &Path, bytes: &[u8]) {
        let command = format!("cat > {0} && sync {0}", path.display());
        let words = self.words(&[&command]);
        let mut child = Command::new(words[0])
            .args(&words[1..])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("ssh");
        let mut stdin = child.stdin.take().expect("a pipe was asked for");
        stdin.write_all(bytes).expect("the other machine reads");
        drop(stdin);
        assert!(child.wait().expect("an end").success(), "{command}");
    }

    /// What it stores, exports, mounts and is logged in to.
    ///
    /// # Panics
    /// If it does not say it.
    pub fn state(&self) -> String {
        self.run(&[
            // As `served::storage` does here: LIO's own folders are there from its first use on.
            "zfs list -H -r -t all -o name tank || exit 1; cut -d' ' -f1,2 /proc/mounts | sort; \
             ls /sys/class/iscsi_session /sys/class/nvme; cd /sys/kernel/config || exit 1; \
             ls -d target/iscsi/iqn.* target/core/*_*/*/ nvmet/subsystems/* \
             nvmet/ports/*/subsystems/* 2>/dev/null | sort; ls /var/lib/samba/usershares; \
             cut -f1 /var/lib/nfs/etab",
        ])
    }

    /// The content of a file there, by its digest: bytes are slow to decrypt here.
    ///
    /// # Panics
    /// If it cannot be read.
    pub fn digest(&self, path: &Path) -> String {
        first_word(&self.run(&["sha256sum", &path.display().to_string()]))
    }

    /// Makes the folders of a place there, with a configuration.
    pub(super) fn settle(&self, place: &Place, config: &str) {
        self.run(&["mkdir", "-p", &place.node().display().to_string()]);
        self.write(&place.config(), config.as_bytes());
    }

    /// The way to start there what would be started here. Its socket is a socket here, too.
    pub(super) fn launch(&self, launch: Launch, place: &Place) -> Launch {
        let socket = place.socket().display().to_string();
        let mut words: Vec<String> = vec!["ssh".into()];
        words.extend(OPTIONS.map(str::to_owned));
        words.extend(["-L".into(), format!("{socket}:{socket}")]);
        words.extend([self.login.clone(), "exec".into(), "env".into()]);
        let pairs = launch.environment.iter();
        words.extend(pairs.map(|(key, value)| format!("{key}={value}")));
        launch.under(words.into_iter().map(Into::into))
    }
}

/// The content of a file here.
///
/// # Panics
/// If it cannot be read.
pub fn digest(path: &Path) -> String {
    first_word(&run(&["sha256sum", &path.display().to_string()]))
}

fn first_word(line: &str) -> String {
    line.split(' ').next().unwrap_or_default().to_owned()
}
