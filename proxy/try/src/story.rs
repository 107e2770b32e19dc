//! Telling: runs one step after the other, measures and shows each, and hears the user's Ctrl-C.
//!
//! A step that has begun is not cut off by the first signal, because an answer that is not heard
//! leaves things behind; by the second it is.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::time::{Duration, Instant};

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::journal::{Entry, Journal, Outcome};
use super::orchestrator::Answer;
use super::screen::Screen;
use super::step::Step;

/// How often the running line moves.
const FRAME: Duration = Duration::from_millis(80);

/// A story that is being told.
#[derive(Debug)]
pub(super) struct Story {
    pub(super) screen: Screen,
    pub(super) journal: Journal,
    interrupts: Interrupts,
    began: Instant,
}

/// Why a story ends before its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// A step failed; the journal knows which.
    Failed,
    /// The user has enough.
    Interrupted(Interrupt),
    /// The user has enough, and does not wait for anything.
    Abandoned(Interrupt),
}

/// What the user sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Interrupt {
    Int,
    Term,
}

#[derive(Debug)]
struct Interrupts {
    int: Signal,
    term: Signal,
    first: Option<Interrupt>,
}

// === impl Story ===

impl Story {
    /// Begins. From now on signals are ours.
    pub(super) fn begin(screen: Screen) -> io::Result<Self> {
        let interrupts = Interrupts {
            int: signal(SignalKind::interrupt())?,
            term: signal(SignalKind::terminate())?,
            first: None,
        };
        let (journal, began) = (Journal::default(), Instant::now());
        Ok(Self {
            screen,
            journal,
            interrupts,
            began,
        })
    }

    /// The time since it began.
    pub(super) fn took(&self) -> Duration {
        self.began.elapsed()
    }

    /// Runs a step. Its work says what came of it, and how to say that in a few words.
    pub(super) fn step<'a, T>(
        &'a mut self,
        step: Step,
        work: impl Future<Output = Answer<(T, String)>> + 'a,
    ) -> impl Future<Output = Result<T, Stop>> + 'a
    where
        T: 'a,
    {
        // Calls are large futures: what contains dozens of them must not be.
        self.run(step, Box::pin(work))
    }

    async fn run<T>(
        &mut self,
        step: Step,
        work: impl Future<Output = Answer<(T, String)>>,
    ) -> Result<T, Stop> {
        self.screen.begin(step);
        let began = Instant::now();
        let answer = self.watch(work).await?;
        let took = began.elapsed();
        match answer {
            Ok((value, result)) => {
                self.enter(Entry {
                    step,
                    outcome: Outcome::Ok,
                    took,
                    result,
                });
                self.interrupts
                    .first
                    .map_or(Ok(value), |first| Err(Stop::Interrupted(first)))
            }
            Err(trouble) => {
                let (outcome, result) = (Outcome::Failed(trouble), String::new());
                self.enter(Entry {
                    step,
                    outcome,
                    took,
                    result,
                });
                self.interrupts
                    .first
                    .map_or(Err(Stop::Failed), |it| Err(Stop::Interrupted(it)))
            }
        }
    }

    /// Notes a step that is left out.
    pub(super) fn leave_out(&mut self, step: Step, outcome: Outcome) {
        self.enter(Entry {
            step,
            outcome,
            took: Duration::ZERO,
            result: String::new(),
        });
    }

    /// Waits for `work`, unless the user is told twice.
    pub(super) async fn watch<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Stop> {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return Ok(done),
                interrupt = self.interrupts.next() => {
                    if self.interrupts.first.replace(interrupt).is_some() {
                        return Err(Stop::Abandoned(interrupt));
                    }
                    self.screen.say(
                        "\n  Interrupted: this step ends, then everything is cleaned up. \
                         Again: leave at once.\n",
                    );
                }
                () = tokio::time::sleep(FRAME) => self.screen.tick(),
            }
        }
    }

    fn enter(&mut self, entry: Entry) {
        self.screen.end(&entry);
        self.journal.entries.push(entry);
    }
}

// === impl Interrupts ===

impl Interrupts {
    async fn next(&mut self) -> Interrupt {
        tokio::select! {
            _ = self.int.recv() => Interrupt::Int,
            _ = self.term.recv() => Interrupt::Term,
        }
    }
}
