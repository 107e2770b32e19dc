//! `omnibus-csi try`: a volume lives its whole life on a storage, driven over the socket of a server as
//! a cluster drives it, and nothing is left behind.
//!
//! The program opens the storage and starts the server; this crate is the client. Only what a trial has
//! made itself is ever changed; after a failure or a signal that is undone as far as possible, and what
//! is left is named.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::sync::Arc;

use csi_types::AbsolutePath;

mod content;
mod ending;
mod flags;
mod folder;
mod journal;
mod life;
mod made;
mod making;
mod offers;
mod orchestrator;
mod process;
mod report;
mod screen;
mod seclusion;
mod step;
mod story;
mod trial;
mod trouble;

pub use flags::{AFTER, AccessFlag, Flags};

use folder::Folder;
use orchestrator::Orchestrator;
use report::{Introduction, Verdict};
use screen::Screen;
use seclusion::Seclusion;
use step::Step;
use story::{Stop, Story};
use trial::Trial;

/// The exit code of a wrong command line or configuration: `EX_USAGE`.
const EX_USAGE: u8 = 64;

/// Why a trial does not begin.
#[derive(Debug)]
pub enum Refusal {
    /// The command line or the configuration is wrong.
    Usage(Vec<String>),
    /// This machine, or this user, cannot do it.
    Cannot(String),
}

/// A running server.
pub trait Server {
    /// Ends it when nothing is in progress any more. Its clients are gone.
    fn stop(self) -> impl Future<Output = Result<(), String>>;
}

/// What the program knows of the storage that it has opened.
#[derive(Debug)]
pub struct Storage {
    /// The driver's name.
    pub driver: String,
    /// The version of the specification that is pretended to.
    pub csi_version: String,
    /// What is odd about the configuration.
    pub notes: Vec<String>,
}

/// A place for a trial, from which its mounts are not seen.
#[derive(Debug)]
pub struct Place {
    trial: Arc<Trial>,
    folder: Folder,
    seclusion: Seclusion,
    json: bool,
}

// === impl Place ===

impl Place {
    /// Makes it. To be called while the process has one thread: it may have to leave the mounts of the
    /// machine.
    pub fn make(flags: &Flags) -> Result<Self, Refusal> {
        let trial = Trial::from_flags(flags).map_err(Refusal::Usage)?;
        let seclusion = Seclusion::enter(trial.keep).map_err(Refusal::Cannot)?;
        let folder = Folder::make(&trial.name).map_err(|problem| {
            Refusal::Cannot(format!("no temporary folder can be made: {problem}"))
        })?;
        Ok(Self {
            trial: Arc::new(trial),
            folder,
            seclusion,
            json: flags.json,
        })
    }

    /// The folder in which everything is mounted.
    pub fn path(&self) -> &AbsolutePath {
        self.folder.path()
    }

    /// A folder that can be the storage.
    pub fn base(&self) -> AbsolutePath {
        self.folder.base()
    }

    /// Removes it, because there is nothing to try.
    pub fn remove(self) {
        drop(self.folder.remove());
    }

    /// Tries, tells it on standard output, and returns the exit code. `calm`: something else writes to the
    /// same terminal.
    pub async fn perform<S: Server>(
        self,
        storage: Storage,
        calm: bool,
        start: impl FnOnce(&AbsolutePath) -> Result<S, String>,
    ) -> ExitCode {
        let json = self.json;
        let screen = Screen::new(json, calm);
        match perform(self, storage, screen, start).await {
            Ok(verdict) => verdict.pronounce(json),
            Err(refusal) => refusal.pronounce(json),
        }
    }
}

/// Tells the whole story, with its end if it fails.
async fn perform<S: Server>(
    place: Place,
    storage: Storage,
    screen: Screen,
    start: impl FnOnce(&AbsolutePath) -> Result<S, String>,
) -> Result<Verdict, Refusal> {
    let Place {
        trial,
        folder,
        seclusion,
        ..
    } = place;
    let introduction = Introduction {
        driver: storage.driver,
        csi_version: storage.csi_version,
        seclusion,
        notes: storage.notes,
    };
    introduction.say(&screen, &trial, &folder);
    let story = Story::begin(screen);
    let mut story = story.map_err(|error| {
        drop(folder.remove());
        Refusal::Cannot(format!("signals cannot be heard: {error}"))
    })?;
    let serving = async {
        let socket = folder.socket();
        let host = start(&socket).map_err(trouble::Trouble::seen)?;
        let cluster = Orchestrator::connect(&socket, trial.clone()).await?;
        Ok(((host, cluster), "csi.sock".to_owned()))
    };
    let (stopped, left) = match story.step(Step::Serve, serving).await {
        Ok((host, mut cluster)) => {
            let lived = life::live(&mut story, &mut cluster, &folder).await;
            wind_up(&mut story, lived, cluster, host, &folder).await
        }
        Err(stop) => (Some(stop), folder.remove().err().into_iter().collect()),
    };
    Ok(Verdict {
        introduction,
        trial,
        folder,
        story,
        stopped,
        left,
    })
}

/// The end of the server and the folder; before that, after a failure, of what was made.
async fn wind_up<S: Server>(
    story: &mut Story,
    lived: Result<(), Stop>,
    mut cluster: Orchestrator,
    host: S,
    folder: &Folder,
) -> (Option<Stop>, Vec<String>) {
    let mut left = Vec::new();
    let stopped = match lived {
        Ok(()) if cluster.trial.keep => return (None, cluster.made.remains()),
        Ok(()) => {
            let remove = async {
                end(cluster, host, folder)
                    .await
                    .map(|()| ((), String::new()))
            };
            let stopped = story.step(Step::Stop, remove).await.err();
            // A signal that comes when everything is over changes nothing any more.
            let stopped = stopped.filter(|_| !story.journal.is_ok(Step::Stop));
            if stopped.is_some() {
                left.push(format!("the folder {}", folder.path()));
            }
            return (stopped, left);
        }
        Err(stop) => stop,
    };
    let abandoned = matches!(stopped, Stop::Abandoned(_));
    if cluster.trial.keep || abandoned {
        left.extend(cluster.made.remains());
        left.push(format!("the folder {}", folder.path()));
        return (Some(stopped), left);
    }
    story.screen.say("");
    story.screen.heading(screen::Style::Dim, "Cleaning up ...");
    let cleaned = story.watch(cluster.clean_up()).await;
    left.extend(cluster.made.remains());
    match cleaned {
        Ok(reasons) => left.extend(
            reasons
                .into_iter()
                .map(|reason| format!("because {reason}")),
        ),
        Err(abandoned) => {
            left.push(format!("the folder {}", folder.path()));
            return (Some(abandoned), left);
        }
    }
    left.extend(folder.unmount_all());
    match story.watch(end(cluster, host, folder)).await {
        Ok(Ok(())) => {}
        Ok(Err(trouble)) => left.push(format!("the folder {}: {}", folder.path(), trouble.what)),
        Err(_) => left.push(format!("the folder {}", folder.path())),
    }
    (Some(stopped), left)
}

async fn end<S: Server>(
    cluster: Orchestrator,
    host: S,
    folder: &Folder,
) -> Result<(), trouble::Trouble> {
    // The server waits for its clients to leave.
    drop(cluster);
    host.stop().await.map_err(trouble::Trouble::seen)?;
    folder.remove().map_err(trouble::Trouble::seen)
}

// === impl Refusal ===

impl Refusal {
    /// Says it, and returns the exit code.
    pub fn pronounce(&self, as_json: bool) -> ExitCode {
        let (problems, code) = match self {
            Self::Usage(problems) => (problems.clone(), EX_USAGE),
            Self::Cannot(problem) => (vec![problem.clone()], 1),
        };
        for problem in &problems {
            process::complain(&format!("omnibus-csi try: {problem}"));
        }
        if as_json {
            process::say(&format!("{}\n", report::refused(&problems)));
        } else if matches!(self, Self::Usage(_)) {
            process::complain(
                "omnibus-csi try: nothing was begun; `omnibus-csi try --help` explains",
            );
        }
        ExitCode::from(code)
    }
}
