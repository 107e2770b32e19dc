//! A runner that a test makes of one method.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;

use crate::command::Command;
use crate::error::RunError;
use crate::output::Output;
use crate::runner::{Batch, Runner, one_by_one};
use crate::stream::{self, InputStream, OutputStream};

/// Runs or answers one command.
#[async_trait]
pub trait RunOne: Send + Sync + fmt::Debug {
    /// As [`Runner::run`].
    async fn run_one(&self, command: &Command) -> Result<Output, RunError>;
}

/// Runs the commands of a list one by one, and has no streams.
#[derive(Debug)]
pub struct OneByOne<T>(pub T);

#[async_trait]
impl<T: RunOne + ?Sized> RunOne for Arc<T> {
    async fn run_one(&self, command: &Command) -> Result<Output, RunError> {
        (**self).run_one(command).await
    }
}

#[async_trait]
impl<T: RunOne> Runner for OneByOne<T> {
    async fn run(&self, command: &Command) -> Result<Output, RunError> {
        self.0.run_one(command).await
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
