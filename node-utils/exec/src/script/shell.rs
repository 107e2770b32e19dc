//! Sends every command, and every list of commands, as one script through an inner runner.
//!
//! The inner runner only has to run [`REMOTE_COMMAND`]. Output that it does not return after an error is lost.
//!
//! [`REMOTE_COMMAND`]: super::REMOTE_COMMAND

use async_trait::async_trait;
use csi_types::Effect;

use super::Script;
use super::read::{StepResult, not_found};
use crate::command::Command;
use crate::error::{RunError, StderrTail};
use crate::output::Output;
use crate::runner::{Batch, Runner};
use crate::stream::{self, InputStream, OutputStream};

/// Runs lists of commands in one exchange with the inner runner.
#[derive(Debug, Clone)]
pub struct Shell<R> {
    inner: R,
}

// === impl Shell ===

impl<R: Runner> Shell<R> {
    /// Sends scripts to the `sh` that `inner` runs.
    pub fn new(inner: R) -> Self {
        Self { inner }
    }
}

/// The script ended without the status of `command`; standard error may say why.
fn no_status(command: &Command, all: &[Command], answer: &Output) -> RunError {
    let complaint = String::from_utf8_lossy(&answer.stderr).into_owned();
    let scrubbed = all.iter().fold(complaint, |text, other| other.scrub(&text));
    let tail = StderrTail::from_output(scrubbed.as_bytes(), command);
    let source = format!("the script ended early, with {}{tail}", answer.status).into();
    RunError::Lost {
        command: command.masked(),
        source,
    }
}

#[async_trait]
impl<R: Runner> Runner for Shell<R> {
    async fn run(&self, command: &Command) -> Result<Output, RunError> {
        let commands = std::slice::from_ref(command);
        let script = Script::of(commands)?;
        let answer = self.inner.run(&script.command()).await?;
        match script
            .step_results(&answer.stdout, &answer.stderr)
            .into_iter()
            .next()
        {
            Some(StepResult::Ended(output)) => Ok(output),
            Some(StepResult::Missing) => Err(not_found(command)),
            None => Err(no_status(command, commands, &answer)),
        }
    }

    async fn run_all(&self, commands: &[Command]) -> Batch {
        let script = match Script::of(commands) {
            Ok(script) => script,
            Err(error) => return Batch::not_started(commands, error),
        };
        match self.inner.run(&script.command()).await {
            Ok(answer) => {
                let why = commands
                    .last()
                    .map(|command| no_status(command, commands, &answer));
                script.read(&answer.stdout, &answer.stderr, why)
            }
            Err(error) if error.effect() == Effect::None => Batch::not_started(commands, error),
            Err(error) => script.read(&[], &[], Some(error)),
        }
    }

    /// A stream needs [`super::REMOTE_STREAM`], so the transport has to offer it beside this runner.
    async fn stream_output(&self, command: &Command) -> Result<Box<dyn OutputStream>, RunError> {
        Err(stream::refused(command))
    }

    async fn run_with_input(
        &self,
        command: &Command,
        _: &mut dyn InputStream,
    ) -> Result<Output, RunError> {
        Err(stream::refused(command))
    }
}
