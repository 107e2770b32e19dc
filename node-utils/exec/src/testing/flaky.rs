//! A runner that fails at a chosen command, before or after running it.
//!
//! A fault before must never change anything. A fault after is what a cut connection looks like, and the reason why
//! callers look before they act again.

use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;

use crate::command::Command;
use crate::error::RunError;
use crate::output::Output;
use crate::runner::{Batch, Runner, Step};
use crate::stream::{InputStream, OutputStream};

/// The fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The command is not run: [`RunError::Unreachable`].
    Before,
    /// The command is run, but its answer is lost: [`RunError::Lost`].
    After,
}

/// Lets some commands through, fails one, and lets the rest through.
#[derive(Debug)]
pub struct Flaky<R> {
    inner: R,
    fault: Fault,
    at: usize,
    seen: AtomicUsize,
}

// === impl Flaky ===

impl<R: Runner> Flaky<R> {
    /// Fails the command number `at`, counted from zero over all calls, lists included.
    pub fn new(inner: R, at: usize, fault: Fault) -> Self {
        Self {
            inner,
            fault,
            at,
            seen: AtomicUsize::new(0),
        }
    }

    /// The number of commands so far. After a run without a fault this is the number of places for one.
    pub fn seen(&self) -> usize {
        self.seen.load(Ordering::SeqCst)
    }

    /// The inner runner.
    pub fn inner(&self) -> &R {
        &self.inner
    }

    /// One exchange about one command, whose answer comes when it is waited for.
    async fn one<T>(
        &self,
        command: &Command,
        answer: impl Future<Output = Result<T, RunError>>,
    ) -> Result<T, RunError> {
        if self.seen.fetch_add(1, Ordering::SeqCst) != self.at {
            return answer.await;
        }
        match self.fault {
            Fault::Before => Err(unreachable(command)),
            Fault::After => {
                let _ = answer.await;
                Err(lost(command))
            }
        }
    }
}

fn unreachable(command: &Command) -> RunError {
    RunError::Unreachable {
        command: command.masked(),
        source: "injected".into(),
    }
}

fn lost(command: &Command) -> RunError {
    RunError::Lost {
        command: command.masked(),
        source: "injected".into(),
    }
}

#[async_trait]
impl<R: Runner> Runner for Flaky<R> {
    async fn run(&self, command: &Command) -> Result<Output, RunError> {
        self.one(command, self.inner.run(command)).await
    }

    /// In a list, `Before` runs nothing of it, like a failed connection. `After` runs it up to the chosen command
    /// and loses the status of that one and all later ones.
    async fn run_all(&self, commands: &[Command]) -> Batch {
        let first = self.seen.fetch_add(commands.len(), Ordering::SeqCst);
        let Some(here) = self
            .at
            .checked_sub(first)
            .filter(|here| *here < commands.len())
        else {
            return self.inner.run_all(commands).await;
        };
        if self.fault == Fault::Before {
            return Batch::not_started(commands, unreachable(&commands[here]));
        }
        let (mut steps, cut) = self.inner.run_all(&commands[..=here]).await.into_parts();
        if !matches!(steps.last(), Some(Step::Done(_))) {
            return Batch::new(commands, steps, cut);
        }
        steps.truncate(here);
        steps.resize_with(commands.len(), || Step::Unknown);
        Batch::new(commands, steps, Some(lost(&commands[here])))
    }

    /// `After` loses the answer of a command that was started and then killed.
    async fn stream_output(&self, command: &Command) -> Result<Box<dyn OutputStream>, RunError> {
        self.one(command, self.inner.stream_output(command)).await
    }

    async fn run_with_input(
        &self,
        command: &Command,
        input: &mut dyn InputStream,
    ) -> Result<Output, RunError> {
        let answer = self.inner.run_with_input(command, input);
        self.one(command, answer).await
    }
}

#[cfg(test)]
mod tests {
    use super::{Fault, Flaky};
    use crate::testing::{Reply, Scripted};
    use crate::{Command, Effect, Program, Runner, Step};

    fn commands() -> Vec<Command> {
        ["a", "b", "c"]
            .map(|name| Command::new(Program::constant(name)))
            .into()
    }

    #[tokio::test]
    async fn a_fault_before_runs_nothing() {
        let flaky = Flaky::new(Scripted::new(), 1, Fault::Before);
        let batch = flaky.run_all(&commands()).await;
        assert_eq!(batch.effect(), Effect::None);
        flaky.inner().finish();
        assert_eq!(flaky.seen(), 3);
    }

    #[tokio::test]
    async fn a_fault_after_hides_what_was_done() {
        let script = Scripted::new()
            .expect("a", Reply::empty())
            .expect("b", Reply::empty());
        let flaky = Flaky::new(script, 1, Fault::After);
        let batch = flaky.run_all(&commands()).await;
        assert!(matches!(
            batch.steps(),
            [Step::Done(_), Step::Unknown, Step::Unknown]
        ));
        assert!(!batch.cut().unwrap().outcome_known());
        flaky.inner().finish();
    }
}
