//! Reports to an observer which commands ran, how long they took and how they ended.
//!
//! It knows no metrics library: the program implements [`Observer`]. Each command is also logged at debug level,
//! masked.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

use crate::command::Command;
use crate::error::{Effect, RunError};
use crate::output::Output;
use crate::runner::{Batch, Runner};

/// Is called after every exchange with a runner.
pub trait Observer: Send + Sync + fmt::Debug {
    /// One command, or one list of commands in one exchange, has ended.
    fn observe(&self, observation: &Observation<'_>);
}

/// One exchange with a runner.
#[derive(Debug)]
pub struct Observation<'a> {
    /// The commands of the exchange; more than one only for a list.
    pub commands: &'a [Command],
    /// From the call to its result, including the wait for a permit if the limit is inside.
    pub elapsed: Duration,
    /// How it ended.
    pub outcome: RunOutcome,
}

/// How an exchange ended, for counting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RunOutcome {
    /// All commands ended as accepted.
    Done,
    /// A command ended otherwise.
    Failed,
    /// Nothing was started.
    NotStarted,
    /// The outcome of a command is not known.
    Unknown,
}

/// Runs commands and reports each exchange.
#[derive(Debug, Clone)]
pub struct Observed<R, O> {
    inner: R,
    observer: O,
}

// === impl Observed ===

impl<R: Runner, O: Observer> Observed<R, O> {
    /// Reports to `observer` what `inner` runs.
    pub fn new(inner: R, observer: O) -> Self {
        Self { inner, observer }
    }

    fn report(&self, commands: &[Command], started: Instant, outcome: RunOutcome) {
        let elapsed = started.elapsed();
        for command in commands {
            tracing::debug!(%command, ?elapsed, ?outcome, "ran");
        }
        self.observer.observe(&Observation {
            commands,
            elapsed,
            outcome,
        });
    }
}

#[async_trait]
impl<R: Runner, O: Observer> Runner for Observed<R, O> {
    async fn run(&self, command: &Command) -> Result<Output, RunError> {
        let started = Instant::now();
        let answer = self.inner.run(command).await;
        let outcome = match &answer {
            Ok(output) if output.status.is_accepted_by(command.accept()) => RunOutcome::Done,
            Ok(_) => RunOutcome::Failed,
            Err(error) => RunOutcome::of(error),
        };
        self.report(std::slice::from_ref(command), started, outcome);
        answer
    }

    async fn run_all(&self, commands: &[Command]) -> Batch {
        let started = Instant::now();
        let batch = self.inner.run_all(commands).await;
        self.report(commands, started, RunOutcome::of_batch(&batch));
        batch
    }
}

impl<O: Observer + ?Sized> Observer for std::sync::Arc<O> {
    fn observe(&self, observation: &Observation<'_>) {
        (**self).observe(observation);
    }
}

// === impl RunOutcome ===

impl RunOutcome {
    fn of(error: &RunError) -> Self {
        match (error.outcome_known(), error.effect()) {
            (false, _) => Self::Unknown,
            (true, Effect::None) => Self::NotStarted,
            (true, Effect::Possible) => Self::Failed,
        }
    }

    fn of_batch(batch: &Batch) -> Self {
        use crate::runner::Step;
        if batch.is_done() {
            return Self::Done;
        }
        if batch
            .steps()
            .iter()
            .any(|step| matches!(step, Step::Unknown))
        {
            return Self::Unknown;
        }
        match batch.effect() {
            Effect::None => Self::NotStarted,
            Effect::Possible => Self::Failed,
        }
    }
}
