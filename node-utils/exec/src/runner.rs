//! The [`Runner`] trait: the boundary between modules that know a tool and runners that know where it runs.
//!
//! ```text
//!  module that wraps a tool          zfs, iscsiadm, mount, ...  builds a Command, reads the Output
//!         |  Command                 program + arguments + input + deadline + output cap
//!         v
//!  +--------------------------- Runner ----------------------------+
//!  |  run            one command      -> Output                    |
//!  |  run_all        a list           -> Batch, one Step each      |
//!  |  stream_output  stdout in chunks -> OutputStream              |
//!  |  run_with_input stdin in chunks  <- InputStream -> Output     |
//!  +---------------------------------------------------------------+
//!         |  decorators, each a Runner around a Runner:
//!         |    Observed  metrics and log       Sudo     as root
//!         |    Host      chroot or nsenter     Locked   under a lock on the machine
//!         v
//!  Local                        script::Shell
//!  child process of this one    a list as one `sh` script, one round trip
//!                                      |
//!                                      v
//!                               a transport that runs `sh -s`, such as drivers/ssh
//! ```
//!
//! A runner does not interpret the output of a tool, and it never retries: only the caller knows whether a command
//! may run twice.
//!
//! These four methods have no default: a decorator that forgot one would answer for the runner inside it. A runner
//! at the end of the chain that has no lists or streams of its own says so with [`one_by_one`] and
//! [`crate::stream::refused`].

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use csi_types::Effect;

use crate::command::{Command, CommandLine};
use crate::error::RunError;
use crate::output::Output;
use crate::stream::{InputStream, OutputStream};

/// Runs commands somewhere: here, on the host, over SSH.
///
/// Every runner gives a command a clean environment with a C locale and only its own input, and enforces its
/// deadline and output cap. Dropping the future of a call kills what it started, as far as that is reachable.
#[async_trait]
pub trait Runner: Send + Sync + fmt::Debug {
    /// Runs one command to its end.
    ///
    /// `Ok` means that it ended with a known status, whatever the status: see [`Output::check`] and
    /// [`Runner::run_checked`]. After an error, [`RunError::effect`] says whether anything may have changed.
    async fn run(&self, command: &Command) -> Result<Output, RunError>;

    /// Runs commands in order and stops at the first whose status it does not accept.
    ///
    /// A remote runner spends one round trip on the whole list. The result has one step per command. Nothing after
    /// a step that is not [`Step::Done`] was done.
    async fn run_all(&self, commands: &[Command]) -> Batch;

    /// Runs one command and returns its standard output as a stream. It has no input, and the output cap does not
    /// apply. A runner without streams refuses before anything starts.
    async fn stream_output(&self, command: &Command) -> Result<Box<dyn OutputStream>, RunError>;

    /// Runs one command to its end, as [`Runner::run`] does, with `input` as its standard input. An aborted input
    /// looks to the command like a complete one, so the data itself must show its end. A runner without streams
    /// refuses before anything starts.
    async fn run_with_input(
        &self,
        command: &Command,
        input: &mut dyn InputStream,
    ) -> Result<Output, RunError>;

    /// Runs one command and returns an error if it does not accept the status.
    async fn run_checked(&self, command: &Command) -> Result<Output, RunError> {
        self.run(command).await?.check(command)
    }

    /// Like [`Runner::run_checked`], without the output.
    async fn perform(&self, command: &Command) -> Result<(), RunError> {
        self.run_checked(command).await.map(drop)
    }
}

/// [`Runner::run_all`] of a runner that has nothing better than to call [`Runner::run`] for each command.
pub async fn one_by_one<R: Runner + ?Sized>(runner: &R, commands: &[Command]) -> Batch {
    let mut steps = Vec::with_capacity(commands.len());
    let mut cut = None;
    for command in commands {
        let ended = match runner.run(command).await {
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

/// The result of one command of a list.
#[derive(Debug)]
pub enum Step {
    /// It ended with an accepted status.
    Done(Output),
    /// It ended with another status, or could not be started.
    Failed(RunError),
    /// A step before it was not done, so it was not started.
    NotStarted,
    /// It is not known whether it ran or how it ended. It may still be running.
    Unknown,
}

/// The results of a list of commands, one step for each.
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
    /// The number of steps.
    pub of: usize,
    /// The command of that step.
    pub command: CommandLine,
    /// The error of that step.
    #[source]
    pub source: RunError,
}

/// The transport did not say why the output ended.
#[derive(Debug, thiserror::Error)]
#[error("the answer ended before the command's status")]
struct EndedEarly;

// === impl Batch ===

impl Batch {
    /// Completes `steps` to one per command; the missing ones were not started.
    ///
    /// `cut` is the reason for unknown steps.
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

    /// The steps, and the reason for unknown ones.
    pub fn into_parts(self) -> (Vec<Step>, Option<RunError>) {
        (self.steps, self.cut)
    }

    /// The reason for unknown steps.
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

    async fn stream_output(&self, command: &Command) -> Result<Box<dyn OutputStream>, RunError> {
        (**self).stream_output(command).await
    }

    async fn run_with_input(
        &self,
        command: &Command,
        input: &mut dyn InputStream,
    ) -> Result<Output, RunError> {
        (**self).run_with_input(command, input).await
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

    async fn stream_output(&self, command: &Command) -> Result<Box<dyn OutputStream>, RunError> {
        (**self).stream_output(command).await
    }

    async fn run_with_input(
        &self,
        command: &Command,
        input: &mut dyn InputStream,
    ) -> Result<Output, RunError> {
        (**self).run_with_input(command, input).await
    }
}
