//! Lets only so many commands run at once.
//!
//! It knows no priorities and no fairness beyond first come, first served. An SSH server closes
//! the connection of whoever opens more sessions than it allows (`MaxSessions`, usually 10).

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Duration, timeout};

use crate::command::Command;
use crate::error::RunError;
use crate::output::Output;
use crate::runner::{Batch, Runner};

/// Runs at most so many commands, or lists of commands, at once; clones share the limit.
#[derive(Debug, Clone)]
pub struct Limited<R> {
    inner: R,
    turns: Arc<Semaphore>,
}

// === impl Limited ===

impl<R: Runner> Limited<R> {
    /// At most `most` at once, but always one.
    pub fn new(inner: R, most: usize) -> Self {
        let most = most.clamp(1, Semaphore::MAX_PERMITS);
        Self {
            inner,
            turns: Arc::new(Semaphore::new(most)),
        }
    }

    /// Waits as long as the command itself may take: no longer does its caller wait for it.
    async fn turn(&self, command: &Command, at_most: Duration) -> Result<Permit<'_>, RunError> {
        match timeout(at_most, self.turns.acquire()).await {
            Ok(Ok(permit)) => Ok(permit),
            // The semaphore is never closed; if it were, there would be no turn either.
            Ok(Err(_)) | Err(_) => Err(RunError::NoTurn {
                command: command.masked(),
                waited: at_most,
            }),
        }
    }
}

type Permit<'a> = SemaphorePermit<'a>;

#[async_trait]
impl<R: Runner> Runner for Limited<R> {
    async fn run(&self, command: &Command) -> Result<Output, RunError> {
        let _turn = self.turn(command, command.deadline()).await?;
        self.inner.run(command).await
    }

    async fn run_all(&self, commands: &[Command]) -> Batch {
        let Some(first) = commands.first() else {
            return self.inner.run_all(commands).await;
        };
        let at_most = commands.iter().map(Command::deadline).sum();
        match self.turn(first, at_most).await {
            Ok(_turn) => self.inner.run_all(commands).await,
            Err(error) => Batch::not_started(commands, error),
        }
    }
}
