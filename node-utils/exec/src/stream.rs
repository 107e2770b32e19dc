//! Input and output of a command that is streamed in chunks, because it does not fit in memory.
//!
//! Both ends pull: a chunk is read when the previous one was consumed, so a slow end slows the fast one down and
//! nothing accumulates here. Only the exit status of the command says that a stream is complete. A stream whose
//! status was not seen is an error, however much arrived before.

use std::fmt;

use async_trait::async_trait;

use crate::command::{Command, Input};
use crate::error::RunError;

/// The size of a read; the size of a Linux pipe.
pub const CHUNK: usize = 64 << 10;

/// The standard output of a running command. Dropping it kills the command, as far as that is reachable.
#[async_trait]
pub trait OutputStream: Send + fmt::Debug {
    /// The next chunk, never empty. `None` once the command has ended with an accepted status, and not before.
    /// After `None` or an error there is nothing more.
    async fn next(&mut self) -> Result<Option<Vec<u8>>, RunError>;
}

/// The standard input of a command, in chunks.
#[async_trait]
pub trait InputStream: Send {
    /// The next chunk; `None` after the last.
    async fn next(&mut self) -> Result<Option<Vec<u8>>, InputAborted>;
}

/// The input ends before it is complete. The source of the input knows why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the input ended before its end")]
pub struct InputAborted;

/// Why a command cannot be part of a stream.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotStreamable {
    #[error("this runner carries no streams")]
    Unsupported,
    #[error("a command of a stream has no other input")]
    HasInput,
}

/// The error of a runner without streams. Nothing was started.
pub fn refused(command: &Command) -> RunError {
    refusal(command, NotStreamable::Unsupported)
}

fn refusal(command: &Command, why: NotStreamable) -> RunError {
    RunError::Unreachable {
        command: command.masked(),
        source: Box::new(why),
    }
}

/// Refuses a command that no runner can make part of a stream.
pub fn check(command: &Command) -> Result<(), RunError> {
    command.validate().map_err(|source| RunError::Invalid {
        command: command.masked(),
        source,
    })?;
    match command.input() {
        Input::Empty => Ok(()),
        Input::Plain(_) | Input::Secret(_) => Err(refusal(command, NotStreamable::HasInput)),
    }
}
