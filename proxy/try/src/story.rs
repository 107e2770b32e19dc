//! Runs one step after the other, measures and shows each, and hears the user's Ctrl-C.
//!
//! A step is not cut off by the first signal, because an answer that is not heard leaves things behind;
//! by the second it is.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::time::{Duration, Instant};

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::Program;
use crate::client::{Answer, Failure, code_name};
use crate::cluster::Cluster;
use crate::screen::Screen;
use crate::step::Step;

/// The events so far, and the place where they are shown.
#[derive(Debug)]
pub(crate) struct Story {
    pub(crate) screen: Screen,
    pub(crate) entries: Vec<Entry>,
    interrupt: Signal,
    terminate: Signal,
    /// The exit code of the first signal.
    signalled: Option<u8>,
}

/// One step that was come to.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) step: Step,
    pub(crate) outcome: Outcome,
    /// The time that it took, if it was tried.
    pub(crate) took: Option<Duration>,
    /// The text beside the title.
    pub(crate) detail: String,
}

/// The outcome of a step.
#[derive(Debug)]
pub(crate) enum Outcome {
    Ok,
    Failed(Failure),
    /// The connection does not advertise it.
    NotOffered,
    /// Left out, so that there is something to look at.
    Kept,
}

/// Why a story ends before its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// A step failed; the entries say which.
    Failed,
    /// By a signal, with this exit code.
    Interrupted(u8),
    /// By a second signal: the user does not wait for anything.
    Abandoned(u8),
}

// === impl Story ===

impl Story {
    /// From now on signals are ours.
    pub(crate) fn new(screen: Screen) -> io::Result<Self> {
        Ok(Self {
            screen,
            entries: Vec::new(),
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            signalled: None,
        })
    }

    /// Goes through all steps; with `--keep` to the one before the end.
    pub(crate) async fn live<P: Program>(&mut self, cluster: &mut Cluster<P>) -> Result<(), Stop> {
        for step in Step::ALL.iter().copied() {
            if let Some(code) = self.signalled {
                return Err(Stop::Interrupted(code));
            }
            self.screen.chapter(step);
            let needs = step.words().needs;
            if !needs.is_empty() && !needs.iter().any(|call| cluster.offered.contains(call)) {
                self.enter(step, Outcome::NotOffered, None, "not offered".to_owned());
            } else if cluster.flags.keep && step >= Step::Unpublish {
                self.enter(step, Outcome::Kept, None, "kept, as --keep asks".to_owned());
            } else {
                self.run(step, cluster.work(step)).await?;
            }
        }
        Ok(())
    }

    async fn run(
        &mut self,
        step: Step,
        work: impl Future<Output = Answer<String>>,
    ) -> Result<(), Stop> {
        self.screen.begin(step);
        let since = Instant::now();
        // Calls are large futures.
        let answer = self.watch(Box::pin(work)).await?;
        let took = Some(since.elapsed());
        match answer {
            Ok(result) => self.enter(step, Outcome::Ok, took, result),
            Err(failure) => {
                let code = failure.code.map(code_name).unwrap_or_default();
                self.enter(step, Outcome::Failed(failure), took, code);
                return Err(self.signalled.map_or(Stop::Failed, Stop::Interrupted));
            }
        }
        Ok(())
    }

    /// Waits for `work`, unless a second signal comes.
    pub(crate) async fn watch<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Stop> {
        let mut work = pin!(work);
        loop {
            let code = tokio::select! {
                biased;
                done = &mut work => return Ok(done),
                _ = self.interrupt.recv() => 130,
                _ = self.terminate.recv() => 143,
            };
            if self.signalled.replace(code).is_some() {
                return Err(Stop::Abandoned(code));
            }
            self.screen.say(
                "\n  Interrupted: this step ends, then everything is cleaned up. \
                 Again: leave at once.\n",
            );
        }
    }

    fn enter(&mut self, step: Step, outcome: Outcome, took: Option<Duration>, detail: String) {
        let entry = Entry {
            step,
            outcome,
            took,
            detail,
        };
        self.screen.end(&entry);
        self.entries.push(entry);
    }

    /// The number of steps that ended so.
    pub(crate) fn count(&self, outcome: &str) -> usize {
        let mut entries: Vec<_> = self.entries.iter().collect();
        entries.retain(|entry| entry.outcome.name() == outcome);
        entries.len()
    }

    /// The failure, if there was one.
    pub(crate) fn failure(&self) -> Option<(Step, &Failure)> {
        self.entries.iter().find_map(|entry| match &entry.outcome {
            Outcome::Failed(failure) => Some((entry.step, failure)),
            _ => None,
        })
    }
}

// === impl Outcome ===

impl Outcome {
    /// For machines.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Failed(_) => "failed",
            Self::NotOffered => "not-offered",
            Self::Kept => "kept",
        }
    }
}
