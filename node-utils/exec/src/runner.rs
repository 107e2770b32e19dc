//! The seam between those who know a tool and those who know where it runs.
//!
//! A runner does not interpret what a tool prints, and it never retries: only its caller knows
//! whether doing a thing twice is harmless.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;

use crate::command::{Command, CommandLine};
use crate::error::{Effect, RunError};
use crate::output::Output;
use crate::stream::{self, Feed, Flow};

/// Runs commands somewhere: here, on the host, over SSH.
///
/// Every runner starts from a clean environment with a C locale, gives a command no input but its
/// own, and keeps to the command's deadline and output cap. Dropping the future of a call kills
/// what it started, as far as that can be reached.
#[async_trait]
pub trait Runner: Send + Sync + fmt::Debug {
    /// Runs one command to its end.
    ///
    /// `Ok` means that it ended and its status was seen, whatever the status: see
    /// [`Output::check`] and [`Runner::run_checked`]. After an error, [`RunError::effect`] says
    /// whether anything may have been changed.
    async fn run(&self, command: &Command) -> Result<Output, RunError>;

    /// Runs commands in order and stops at the first whose ending it does not accept.
    ///
    /// A remote runner spends one round trip on the whole list. There is one step in the answer
    /// for each command; nothing after a step that is not [`Step::Done`] is done. Here: one after
    /// the other through [`Runner::run`].
    async fn run_all(&self, commands: &[Command]) -> Batch {
        let mut steps = Vec::with_capacity(commands.len());
        let mut cut = None;
        for command in commands {
            let ended = match self.run(command).await {
                Ok(output) => output.check(command),
                Err(error) => Err(error),
            };
            match ended {
                Ok(output) => steps.push(Step::Done(output)),
                Err(error) if error.outcome_known() => {
                    steps.push(Step::Failed(error));
                    break;
                }
                Err(error) => {
                    steps.push(Step::Unknown);
                    cut = Some(error);
                    break;
                }
            }
        }
        Batch::new(commands, steps, cut)
    }

    /// Runs one command and hands out what it prints as it prints it. It has no input, and its cap
    /// does not count. A runner that carries no streams refuses, and nothing was started.
    async fn pour(&self, command: &Command) -> Result<Box<dyn Flow>, RunError> {
        Err(stream::refused(command))
    }

    /// Runs one command to its end, as [`Runner::run`] does, and gives it `feed` to read. A feed that is
    /// cut looks to the command like one that has ended: it has to be one that can tell. A runner that
    /// carries no streams refuses, and nothing was started.
    async fn feed(&self, command: &Command, _feed: &mut dyn Feed) -> Result<Output, RunError> {
        Err(stream::refused(command))
    }

    /// Runs one command and turns an ending it does not accept into an error.
    async fn run_checked(&self, command: &Command) -> Result<Output, RunError> {
        self.run(command).await?.check(command)
    }

    /// Runs one command for its effect: as [`Runner::run_checked`], without what it printed.
    async fn perform(&self, command: &Command) -> Result<(), RunError> {
        self.run_checked(command).await.map(drop)
    }
}

/// What became of one command of a list.
#[derive(Debug)]
pub enum Step {
    /// It ended as it should.
    Done(Output),
    /// It ended otherwise, or could not be started; how is known.
    Failed(RunError),
    /// A step before it was not done, so it was not started.
    NotStarted,
    /// Nobody saw whether it ran, or how it ended. It may still be running.
    Unknown,
}

/// What became of a list of commands, one step for each.
#[derive(Debug)]
#[must_use = "a batch says which of its commands failed"]
pub struct Batch {
    steps: Vec<Step>,
    commands: Vec<CommandLine>,
    cut: Option<RunError>,
}

/// A list of commands was not done to its end.
#[derive(Debug, thiserror::Error)]
#[error("do step {} of {of}, `{command}`", .step + 1)]
pub struct BatchError {
    /// The first step that was not done, counted from zero.
    pub step: usize,
    /// How many steps there are.
    pub of: usize,
    /// The command of that step.
    pub command: CommandLine,
    /// What happened to it.
    #[source]
    pub source: RunError,
}

/// The transport gave no reason why it stopped listening.
#[derive(Debug, thiserror::Error)]
#[error("the answer ended before the command's status")]
struct EndedEarly;

// === impl Batch ===

impl Batch {
    /// Completes `steps` to one for each command; what was not reached was not started.
    ///
    /// `cut` says why an unknown step is unknown.
    pub fn new(commands: &[Command], mut steps: Vec<Step>, cut: Option<RunError>) -> Self {
        debug_assert!(steps.len() <= commands.len(), "more steps than commands");
        steps.truncate(commands.len());
        steps.resize_with(commands.len(), || Step::NotStarted);
        let commands = commands.iter().map(Command::masked).collect();
        Self {
            steps,
            commands,
            cut,
        }
    }

    /// A list of which nothing was started, all for the same reason.
    ///
    /// The first step carries the reason, the others are [`Step::NotStarted`].
    pub fn not_started(commands: &[Command], why: RunError) -> Self {
        let first = commands.first().map(|_| Step::Failed(why));
        Self::new(commands, first.into_iter().collect(), None)
    }

    /// One step for each command, in order.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// The steps, and why those that are unknown are.
    pub fn into_parts(self) -> (Vec<Step>, Option<RunError>) {
        (self.steps, self.cut)
    }

    /// Why a step is unknown.
    pub fn cut(&self) -> Option<&RunError> {
        self.cut.as_ref()
    }

    /// Whether every command ended as it should.
    pub fn is_done(&self) -> bool {
        self.steps.iter().all(|step| matches!(step, Step::Done(_)))
    }

    /// Whether any command of the list may have changed anything.
    pub fn effect(&self) -> Effect {
        let touched = |step: &Step| match step {
            Step::Done(_) | Step::Unknown => true,
            Step::Failed(error) => error.effect() == Effect::Possible,
            Step::NotStarted => false,
        };
        if self.steps.iter().any(touched) {
            Effect::Possible
        } else {
            Effect::None
        }
    }

    /// All outputs, or the first step that was not done.
    pub fn into_outputs(self) -> Result<Vec<Output>, BatchError> {
        let of = self.steps.len();
        let mut outputs = Vec::with_capacity(of);
        for ((step, ended), command) in self.steps.into_iter().enumerate().zip(self.commands) {
            let source = match ended {
                Step::Done(output) => {
                    outputs.push(output);
                    continue;
                }
                Step::Failed(error) => error,
                Step::NotStarted | Step::Unknown => self.cut.unwrap_or_else(|| RunError::Lost {
                    command: command.clone(),
                    source: Box::new(EndedEarly),
                }),
            };
            return Err(BatchError {
                step,
                of,
                command,
                source,
            });
        }
        Ok(outputs)
    }
}

#[async_trait]
impl<R: Runner + ?Sized> Runner for Arc<R> {
    async fn run(&self, command: &Command) -> Result<Output, RunError> {
        (**self).run(command).await
    }

    async fn run_all(&self, commands: &[Command]) -> Batch {
        (**self).run_all(commands).await
    }

    async fn pour(&self, command: &Command) -> Result<Box<dyn Flow>, RunError> {
        (**self).pour(command).await
    }

    async fn feed(&self, command: &Command, feed: &mut dyn Feed) -> Result<Output, RunError> {
        (**self).feed(command, feed).await
    }
}

#[async_trait]
impl<R: Runner + ?Sized> Runner for &R {
    async fn run(&self, command: &Command) -> Result<Output, RunError> {
        (**self).run(command).await
    }

    async fn run_all(&self, commands: &[Command]) -> Batch {
        (**self).run_all(commands).await
    }

    async fn pour(&self, command: &Command) -> Result<Box<dyn Flow>, RunError> {
        (**self).pour(command).await
    }

    async fn feed(&self, command: &Command, feed: &mut dyn Feed) -> Result<Output, RunError> {
        (**self).feed(command, feed).await
    }
}
