//! `omnibus-csi try`: a volume lives its whole life on a storage, driven over the socket of a server as
//! a cluster drives it, and nothing is left behind. And the [`client`] and the [`requests`] of CSI by
//! which it does so, which the tests use, too.
//!
//! The program opens the storage and starts the server. Only what a trial has made itself is ever
//! changed; after a failure or a signal that is undone as far as possible, and what is left is named.
#![forbid(unsafe_code)]

use std::fs;
use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::process::{self, ExitCode};
use std::time::Instant;

use csi_types::AbsolutePath;

pub mod client;
mod cluster;
mod content;
mod flags;
mod folder;
mod journal;
mod report;
pub mod requests;
mod screen;
mod seclusion;
mod step;
mod story;

pub use flags::{AFTER, Flags};

use client::{Answer, Failure};
use cluster::Cluster;
use folder::{Folder, PREFIX};
use journal::Journal;
use report::Setting;
use screen::{Screen, Style};
use seclusion::Seclusion;
use story::{Stop, Story};

/// The exit code of a wrong command line or configuration: `EX_USAGE`.
const EX_USAGE: u8 = 64;

/// Why nothing is tried.
#[derive(Debug)]
pub enum Refusal {
    /// The command line or the configuration is wrong.
    Usage(Vec<String>),
    /// This machine, or this user, cannot do it.
    Cannot(String),
}

/// The program whose storage is tried.
pub trait Program {
    /// Starts its server.
    fn start(&mut self, socket: &AbsolutePath) -> Result<(), String>;

    /// Ends the server, if it runs, when nothing is in progress any more. Its clients are gone.
    fn stop(&mut self) -> impl Future<Output = Result<(), String>>;
}

/// What the program knows of the storage that it has opened.
#[derive(Debug)]
pub struct Storage {
    /// The driver's name.
    pub driver: String,
    /// The version of the specification that is pretended to.
    pub csi_version: String,
    /// The oddities of the configuration.
    pub notes: Vec<String>,
}

/// A place for a trial, from which its mounts are not seen.
#[derive(Debug)]
pub struct Place {
    folder: Folder,
    seclusion: Seclusion,
}

// === impl Place ===

impl Place {
    /// Makes it. To be called while the process has one thread: it may have to leave the mounts of the
    /// machine.
    pub fn make(flags: &Flags) -> Result<Self, Refusal> {
        let seclusion = Seclusion::enter(flags.keep).map_err(Refusal::Cannot)?;
        // The keys of a `RandomState` come from the kernel.
        let random = RandomState::new().hash_one(process::id());
        let name = format!("{PREFIX}{:08x}", random >> 32);
        let folder = Folder::make(&name).map_err(Refusal::Cannot)?;
        Ok(Self { folder, seclusion })
    }

    /// The folders below which something may be mounted: its own, and those of runs before it.
    pub fn folders(&self) -> Vec<AbsolutePath> {
        Folder::all().iter().map(Folder::path).collect()
    }

    /// A folder that can be the storage.
    pub fn base(&self) -> AbsolutePath {
        self.folder.base()
    }

    /// Removes it, because there is nothing to try.
    pub fn remove(&self) {
        // What is wrong already matters more than an empty folder.
        drop(self.folder.remove());
    }

    /// Tries, shows it on standard output, and returns the exit code. `calm`: something else writes to the
    /// same terminal.
    pub async fn perform<P: Program>(
        self,
        program: P,
        storage: &Storage,
        flags: &Flags,
        calm: bool,
    ) -> ExitCode {
        let setting = Setting {
            flags,
            storage,
            folder: self.folder.clone(),
            seclusion: self.seclusion,
            began: Instant::now(),
        };
        let (mut story, mut cluster) = match self.begin(program, flags, calm) {
            Ok(ready) => ready,
            Err(failure) => {
                self.remove();
                return Refusal::Cannot(failure.what).pronounce(flags.json);
            }
        };
        setting.introduce(&story);
        let stopped = story.live(&mut cluster).await.err();
        let (stopped, left) = wind_up(&mut story, &mut cluster, stopped).await;
        setting.conclude(&story, stopped, &left)
    }

    fn begin<P: Program>(
        &self,
        program: P,
        flags: &Flags,
        calm: bool,
    ) -> Answer<(Story, Cluster<P>)> {
        let failed = |error: io::Error| Failure::seen(error.to_string());
        let story = Story::new(Screen::new(flags.json, calm)).map_err(failed)?;
        let config = flags.driver_config_file.as_ref().map(fs::canonicalize);
        let config = config.transpose().map_err(failed)?;
        let journal = Journal::begin(&self.folder, config, flags.size.0).map_err(failed)?;
        let cluster = Cluster::new(program, flags.clone(), self.folder.clone(), journal)?;
        Ok((story, cluster))
    }
}

/// After a failure or a signal, the end of what was made, of the server and of the folder. Why it really
/// stopped, and what is left.
async fn wind_up<P: Program>(
    story: &mut Story,
    cluster: &mut Cluster<P>,
    mut stopped: Option<Stop>,
) -> (Option<Stop>, Vec<String>) {
    let mut problems = Vec::new();
    if cluster.flags.keep {
        // What there is now is not for the next run to clean up.
        let ended = fs::remove_file(cluster.folder.journal());
        problems.extend(ended.err().map(|error| format!("the journal: {error}")));
    } else if matches!(stopped, Some(Stop::Failed | Stop::Interrupted(_))) {
        story.screen.say("");
        story.screen.heading(Style::Dim, "Cleaning up ...");
        let work = Box::pin(async {
            let mut problems = cluster.clean_up().await;
            problems.extend(cluster.stop().await.err().map(|failure| failure.what));
            problems
        });
        match story.watch(work).await {
            Ok(met) => problems = met,
            Err(abandoned) => stopped = Some(abandoned),
        }
    }
    let mut left = cluster.journal.remains(cluster.folder.name());
    left.extend(
        problems
            .into_iter()
            .map(|problem| format!("because {problem}")),
    );
    if matches!(stopped, Some(Stop::Abandoned(_))) {
        left.push(format!("the folder {}", cluster.folder.path()));
    }
    (stopped, left)
}

// === impl Refusal ===

impl Refusal {
    /// Says it, and returns the exit code.
    pub fn pronounce(&self, as_json: bool) -> ExitCode {
        let (problems, code, hint) = match self {
            Self::Usage(problems) => (problems.join("; "), EX_USAGE, "; nothing was changed"),
            Self::Cannot(problem) => (problem.clone(), 1, ""),
        };
        if as_json {
            screen::say(&format!("{}\n", report::refused(&problems)));
        }
        let complaint = format!("omnibus-csi try: {problems}{hint}\n");
        // It is no matter if nothing reads it.
        let _ = io::stderr().write_all(complaint.as_bytes());
        ExitCode::from(code)
    }
}
