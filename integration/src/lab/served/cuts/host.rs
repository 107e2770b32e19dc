//! A storage host whose commands can be stopped: each call of one is counted, and at the one that is
//! asked for the program is killed, or its connection is cut.
//!
//! The commands precede the real ones in the `PATH` of a login with the key of the test, and of no
//! other. `stop.sh` and this file communicate by files in a folder.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::process::Process;
use crate::wait;

const STOP: &str = include_str!("stop.sh");
const SESSION: &str = include_str!("session.sh");

/// Everything that a driver's script calls to change something, and `zfs`, by which it looks as well.
const COMMANDS: [&str; 10] = [
    "zfs",
    "targetcli",
    "nvmetcli",
    "mkdir",
    "rmdir",
    "ln",
    "rm",
    "mv",
    "chmod",
    "chown",
];

/// The event at a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// The program is killed. The command, and what comes after it, is done while it is asked again.
    Killed,
    /// The connection is cut, and what was running over it dies before the command.
    Before,
    /// The connection is cut while the command runs.
    During,
    /// The connection is cut when the command has ended.
    After,
}

/// A command that was called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The how manieth, counted from one.
    pub number: usize,
    /// The command.
    pub words: String,
}

/// The storage host.
#[derive(Debug)]
pub struct Host {
    folder: PathBuf,
}

// === impl Stop ===

impl Stop {
    fn word(self) -> &'static str {
        match self {
            Self::Killed => "killed",
            Self::Before => "before",
            Self::During => "during",
            Self::After => "after",
        }
    }
}

// === impl Step ===

impl Step {
    /// Whether it is one of ZFS itself.
    pub fn is_of_zfs(&self) -> bool {
        self.words.starts_with("zfs ")
    }

    /// Whether it is at work for a while, and not over at once as what makes a folder or a link.
    pub fn takes_time(&self) -> bool {
        let slow = ["targetcli ", "nvmetcli "];
        self.is_of_zfs() || slow.iter().any(|tool| self.words.starts_with(tool))
    }

    /// Whether it only exports what is there already.
    pub fn exports(&self) -> bool {
        let programs = ["targetcli", "nvmetcli", "mkdir", "rmdir", "ln", "rm", "mv"];
        let name = self.words.split(' ').next().unwrap_or_default();
        programs.contains(&name)
    }

    /// Whether it changes something, and does not only look.
    pub fn changes(&self) -> bool {
        let looks = ["zfs get ", "zfs list "];
        !looks.iter().any(|look| self.words.starts_with(look))
    }
}

// === impl Host ===

impl Host {
    /// Its commands lie in a folder of `place`.
    ///
    /// # Panics
    /// If they cannot be put there.
    pub fn new(place: &Path) -> Self {
        let folder = place.join("stops");
        let bin = folder.join("bin");
        fs::create_dir_all(&bin).expect("a folder in a new folder");
        for name in COMMANDS {
            program(&bin.join(name), STOP);
        }
        program(&folder.join("session"), SESSION);
        let host = Self { folder };
        host.count();
        host
    }

    /// The program that a login runs.
    pub fn session(&self) -> PathBuf {
        self.folder.join("session")
    }

    /// Installs them for every process whose `PATH` has the local commands of this machine first.
    ///
    /// # Panics
    /// If they cannot be put there.
    pub fn install_globally(&self) {
        for name in COMMANDS {
            let command = self.folder.join("bin").join(name);
            let text = format!("#!/bin/sh\nexec {} \"$@\"\n", command.display());
            program(&Path::new("/usr/local/sbin").join(name), &text);
        }
    }

    /// Counts from nothing, and stops at nothing.
    pub fn count(&self) {
        for name in ["armed", "orphan"] {
            let _ = fs::remove_file(self.folder.join(name));
        }
        self.write("calls", "");
        self.write("last", "none\n");
        self.write("count", "0\n");
    }

    /// The calls since then.
    pub fn steps(&self) -> Vec<Step> {
        let calls = self.read("calls");
        let step = |(index, words): (usize, &str)| Step {
            number: index + 1,
            words: words.to_owned(),
        };
        calls.lines().enumerate().map(step).collect()
    }

    /// Counts from nothing, and stops at the command of this number.
    pub fn stop_at(&self, number: usize, how: Stop, server: Process) {
        self.count();
        let text = format!("{number} {} {}\n", how.word(), server.0);
        // By a rename, so that no reader sees a part of it.
        self.write("arming", &text);
        fs::rename(self.folder.join("arming"), self.folder.join("armed")).expect("a file of ours");
    }

    /// Whether the command was called.
    pub fn has_stopped(&self) -> bool {
        !self.folder.join("armed").exists()
    }

    /// Waits until what was stopped is over.
    ///
    /// # Panics
    /// If it goes on.
    pub async fn orphan_is_over(&self) {
        let orphan = self.read("orphan");
        let family: Vec<_> = orphan
            .split_whitespace()
            .filter_map(|word| word.parse().ok())
            .map(Process)
            .collect();
        assert!(!family.is_empty(), "no process was stopped");
        wait::until("the orphan to end", || {
            let living = family.iter().any(|process| process.is_alive());
            (!living).then_some(())
        })
        .await;
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.folder.join(name)).unwrap_or_default()
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.folder.join(name), text).expect("a file of ours");
    }
}

fn program(path: &Path, text: &str) {
    fs::write(path, text).expect("a file of ours");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("a file of ours");
}
