//! Limits how many commands run at the same time.
//!
//! Waiting commands are served in order of arrival. An SSH server closes the connection of a client that opens
//! more sessions than it allows (`MaxSessions`, usually 10).

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Duration, timeout};

use crate::command::Command;
use crate::error::RunError;
use crate::output::Output;
use crate::runner::{Batch, Runner};

/// Runs at most N commands, or lists of commands, at once. Clones share the limit.
#[derive(Debug, Clone)]
pub struct Limited<R> {
    inner: R,
    permits: Arc<Semaphore>,
}

// === impl Limited ===

impl<R: Runner> Limited<R> {
    /// At most `most` at once, but always one.
    pub fn new(inner: R, most: usize) -> Self {
        let most = most.clamp(1, Semaphore::MAX_PERMITS);
        Self {
            inner,
            permits: Arc::new(Semaphore::new(most)),
        }
    }

    /// Waits at most as long as the command itself may take.
    async fn permit(&self, command: &Command, at_most: Duration) -> Result<Permit<'_>, RunError> {
        match timeout(at_most, self.permits.acquire()).await {
            Ok(Ok(permit)) => Ok(permit),
            // The semaphore is never closed.
            Ok(Err(_)) | Err(_) => Err(RunError::QueueTimeout {
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
        let _permit = self.permit(command, command.deadline()).await?;
        self.inner.run(command).await
    }

    async fn run_all(&self, commands: &[Command]) -> Batch {
        let Some(first) = commands.first() else {
            return self.inner.run_all(commands).await;
        };
        let at_most = commands.iter().map(Command::deadline).sum();
        match self.permit(first, at_most).await {
            Ok(_permit) => self.inner.run_all(commands).await,
            Err(error) => Batch::not_started(commands, error),
        }
    }
}
