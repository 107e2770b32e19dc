//! The other machine of a pair, reached over the network between the two.
//!
//! A cell of a pair runs on the machine `storage`; on the machine `node` runs the program alone, and
//! what a person would type there is typed over SSH with the lab's own key.
#![expect(
    clippy::disallowed_methods,
    reason = "the tests act as administrator of the other machine"
)]

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use super::command::run;
use crate::place::Place;
use crate::server::Launch;

/// The address of this machine in the network between the two.
pub const HERE: &str = "10.77.0.1";
/// The address of the other one.
pub const THERE: &str = "10.77.0.2";
/// The key that may log in at both, pushed by the outer half.
pub const KEY: &str = "/root/key";

const OPTIONS: [&str; 14] = [
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
];

/// The other machine.
#[derive(Debug, Clone)]
pub struct Far {
    login: String,
}

// === impl Far ===

impl Far {
    /// The other machine of this pair.
    ///
    /// # Panics
    /// If it does not answer.
    pub fn reached() -> Self {
        let far = Self {
            login: format!("root@{THERE}"),
        };
        assert_eq!(far.run(&["hostname"]).trim(), "node", "there is no pair");
        far
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
