//! Reports to an observer which commands ran, how long they took and how they ended.
//!
//! It knows no metrics library: the program implements [`Observer`]. Each command is also logged at debug level,
//! masked.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use csi_types::Effect;
use tokio::time::Instant;

use crate::command::Command;
use crate::error::RunError;
use crate::output::Output;
use crate::runner::{Batch, Runner};
use crate::stream::{InputStream, OutputStream};

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
    /// Its outcome.
    pub outcome: RunOutcome,
}

/// The way an exchange ended, for counting.
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

/// The output of a command, which is reported once it has ended.
#[derive(Debug)]
struct ObservedStream<O: Observer> {
    stream: Box<dyn OutputStream>,
    observer: O,
    command: Command,
    started: Instant,
    is_reported: bool,
}

// === impl Observed ===

impl<R: Runner, O: Observer> Observed<R, O> {
    /// Reports to `observer` what `inner` runs.
    pub fn new(inner: R, observer: O) -> Self {
        Self { inner, observer }
    }

    fn report(&self, commands: &[Command], started: Instant, outcome: RunOutcome) {
        report(&self.observer, commands, started, outcome);
    }
}

fn report<O: Observer>(observer: &O, commands: &[Command], started: Instant, outcome: RunOutcome) {
    let elapsed = started.elapsed();
    for command in commands {
        tracing::debug!(%command, ?elapsed, ?outcome, "ran");
    }
    observer.observe(&Observation {
        commands,
        elapsed,
        outcome,
    });
}

#[async_trait]
impl<R: Runner, O: Observer + Clone + 'static> Runner for Observed<R, O> {
    async fn run(&self, command: &Command) -> Result<Output, RunError> {
        let started = Instant::now();
        let answer = self.inner.run(command).await;
        let outcome = RunOutcome::of_answer(command, &answer);
        self.report(std::slice::from_ref(command), started, outcome);
        answer
    }

    async fn run_all(&self, commands: &[Command]) -> Batch {
        let started = Instant::now();
        let batch = self.inner.run_all(commands).await;
        self.report(commands, started, RunOutcome::of_batch(&batch));
        batch
    }

    /// The exchange ends with the stream, or when the stream is dropped.
    async fn stream_output(&self, command: &Command) -> Result<Box<dyn OutputStream>, RunError> {
        let started = Instant::now();
        match self.inner.stream_output(command).await {
            Ok(stream) => Ok(Box::new(ObservedStream {
                stream,
                observer: self.observer.clone(),
                command: command.clone(),
                started,
                is_reported: false,
            })),
            Err(error) => {
                let outcome = RunOutcome::of(&error);
                self.report(std::slice::from_ref(command), started, outcome);
                Err(error)
            }
        }
    }

    async fn run_with_input(
        &self,
        command: &Command,
        input: &mut dyn InputStream,
    ) -> Result<Output, RunError> {
        let started = Instant::now();
        let answer = self.inner.run_with_input(command, input).await;
        let outcome = RunOutcome::of_answer(command, &answer);
        self.report(std::slice::from_ref(command), started, outcome);
        answer
    }
}

// === impl ObservedStream ===

impl<O: Observer> ObservedStream<O> {
    fn report(&mut self, outcome: RunOutcome) {
        if !std::mem::replace(&mut self.is_reported, true) {
            let commands = std::slice::from_ref(&self.command);
            report(&self.observer, commands, self.started, outcome);
        }
    }
}

#[async_trait]
impl<O: Observer> OutputStream for ObservedStream<O> {
    async fn next(&mut self) -> Result<Option<Vec<u8>>, RunError> {
        let chunk = self.stream.next().await;
        match &chunk {
            Ok(Some(_)) => {}
            Ok(None) => self.report(RunOutcome::Done),
            Err(error) => self.report(RunOutcome::of(error)),
        }
        chunk
    }
}

impl<O: Observer> Drop for ObservedStream<O> {
    fn drop(&mut self) {
        self.report(RunOutcome::Unknown);
    }
}

impl<O: Observer + ?Sized> Observer for std::sync::Arc<O> {
    fn observe(&self, observation: &Observation<'_>) {
        (**self).observe(observation);
    }
}

// === impl RunOutcome ===

impl RunOutcome {
    fn of_answer(command: &Command, answer: &Result<Output, RunError>) -> Self {
        match answer {
            Ok(output) if output.status.is_accepted_by(command.accept()) => Self::Done,
            Ok(_) => Self::Failed,
            Err(error) => Self::of(error),
        }
    }

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
