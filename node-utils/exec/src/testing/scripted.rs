//! A runner that expects given commands in a given order and returns prepared answers.
//!
//! For the few tests about *which* commands are run. It compares masked command lines, so a test also shows what a
//! log line would contain.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;

use crate::command::Command;
use crate::error::RunError;
use crate::output::{Output, Status};
use crate::runner::{Batch, Runner, one_by_one};
use crate::stream::{self, InputStream, OutputStream};

/// The answer to an expected command.
#[derive(Debug, Clone)]
pub struct Reply(Answer);

#[derive(Debug, Clone)]
enum Answer {
    Ends(Output),
    Missing,
    Lost,
}

/// Expects commands in order.
#[derive(Debug, Default)]
pub struct Scripted {
    script: Mutex<VecDeque<(String, Reply)>>,
}

// === impl Reply ===

impl Reply {
    /// Success without output.
    pub fn empty() -> Self {
        Self::printing("")
    }

    /// Success with this on standard output.
    pub fn printing(stdout: impl Into<Vec<u8>>) -> Self {
        let status = Status::Exit(0);
        Self(Answer::Ends(Output {
            status,
            stdout: stdout.into(),
            stderr: Vec::new(),
        }))
    }

    /// This exit code, with this on standard error.
    pub fn exit(code: i32, stderr: impl Into<Vec<u8>>) -> Self {
        let status = Status::Exit(code);
        Self(Answer::Ends(Output {
            status,
            stdout: Vec::new(),
            stderr: stderr.into(),
        }))
    }

    /// The program is not installed.
    pub fn missing() -> Self {
        Self(Answer::Missing)
    }

    /// The outcome of the command is lost.
    pub fn lost() -> Self {
        Self(Answer::Lost)
    }
}

// === impl Scripted ===

impl Scripted {
    /// Expects nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Expects this command, as [`Command::masked`] shows it, after those before.
    #[must_use]
    pub fn expect(self, line: impl Into<String>, reply: Reply) -> Self {
        self.script().push_back((line.into(), reply));
        self
    }

    /// # Panics
    /// If an expected command was not run.
    pub fn finish(&self) {
        let left: Vec<String> = self.script().iter().map(|(line, _)| line.clone()).collect();
        assert!(left.is_empty(), "these commands were not run: {left:#?}");
    }

    fn script(&self) -> MutexGuard<'_, VecDeque<(String, Reply)>> {
        self.script.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Runner for Scripted {
    /// # Panics
    /// If this is not the expected command.
    async fn run(&self, command: &Command) -> Result<Output, RunError> {
        command.validate().map_err(|source| RunError::Invalid {
            command: command.masked(),
            source,
        })?;
        let line = command.to_string();
        let next = self.script().pop_front();
        let Some((expected, reply)) = next else {
            panic!("no command expected, but `{line}` was run");
        };
        assert_eq!(line, expected, "another command was expected");
        match reply.0 {
            Answer::Ends(output) => Ok(output),
            Answer::Missing => {
                let place = "the script of the test".to_owned();
                Err(RunError::NotFound {
                    program: command.program().clone(),
                    place,
                })
            }
            Answer::Lost => Err(RunError::Lost {
                command: command.masked(),
                source: "scripted".into(),
            }),
        }
    }
    async fn run_all(&self, commands: &[Command]) -> Batch {
        one_by_one(self, commands).await
    }

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

#[cfg(test)]
mod tests {
    use super::{Reply, Scripted};
    use crate::{Command, Program, Runner, Step};

    fn command(name: &'static str) -> Command {
        Command::new(Program::constant(name))
    }

    #[tokio::test]
    async fn commands_are_answered_in_order() {
        let script = Scripted::new()
            .expect("zpool list", Reply::printing("tank\n"))
            .expect("zfs", Reply::exit(1, "no such dataset"));
        let listed = script
            .run_checked(&command("zpool").arg("list"))
            .await
            .unwrap();
        assert_eq!(listed.text(), "tank\n");
        let failed = script.run_checked(&command("zfs")).await.unwrap_err();
        assert_eq!(
            failed.to_string(),
            "run `zfs`: exit code 1: no such dataset"
        );
        script.finish();
    }

    #[tokio::test]
    async fn a_lost_answer_in_a_list_leaves_the_rest_unstarted() {
        let script = Scripted::new()
            .expect("a", Reply::empty())
            .expect("b", Reply::lost());
        let batch = script
            .run_all(&[command("a"), command("b"), command("c")])
            .await;
        assert!(matches!(
            batch.steps(),
            [Step::Done(_), Step::Unknown, Step::NotStarted]
        ));
        assert!(!batch.into_outputs().unwrap_err().source.outcome_known());
    }

    #[tokio::test]
    #[should_panic(expected = "another command was expected")]
    async fn an_unexpected_command_fails_the_test() {
        let script = Scripted::new().expect("zfs", Reply::empty());
        let _ = script.run(&command("zpool")).await;
    }
}
