//! What goes through a command piece by piece, because nobody could hold all of it.
//!
//! Both ends are asked, never pushed: a piece is read when the one before it is gone, so that a fast
//! end waits for a slow one and nothing piles up here. That a stream ended well is known only from the
//! status of its command; one whose status was not seen is an error, whatever came before.

use std::fmt;

use async_trait::async_trait;

use crate::command::{Command, Input};
use crate::error::RunError;

/// How much is read at a time; the size of a Linux pipe.
pub const PIECE: usize = 64 << 10;

/// What a command prints, as it prints it. Dropped, its command is killed as far as it can be reached.
#[async_trait]
pub trait Flow: Send + fmt::Debug {
    /// The next piece, never an empty one. `None` once the command has ended with a status that it
    /// accepts, and not before. After `None` or an error there is nothing more.
    async fn next(&mut self) -> Result<Option<Vec<u8>>, RunError>;
}

/// What a command is given to read.
#[async_trait]
pub trait Feed: Send {
    /// The next piece; `None` after the last.
    async fn next(&mut self) -> Result<Option<Vec<u8>>, Cut>;
}

/// No more comes, and it was not all. Why is known to whoever feeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the input ended before its end")]
pub struct Cut;

/// Why a command cannot be part of a stream.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoStream {
    #[error("this runner carries no streams")]
    Runner,
    #[error("a command of a stream has no other input")]
    HasInput,
}

/// The refusal of a runner that carries no streams.
pub(crate) fn refused(command: &Command) -> RunError {
    refusal(command, NoStream::Runner)
}

fn refusal(command: &Command, why: NoStream) -> RunError {
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
        Input::Plain(_) | Input::Secret(_) => Err(refusal(command, NoStream::HasInput)),
    }
}
