//! The way a command ended and what it printed.
//!
//! Nothing is interpreted here. Only the module that wraps a tool knows what an exit code or a line means.

use std::fmt;

use crate::command::{Accept, Command};
use crate::error::{RunError, StderrTail};

/// The outcome of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Status {
    /// By itself, with this code.
    Exit(i32),
    /// By this signal.
    Signal(i32),
}

/// A command that ended.
#[derive(Clone, PartialEq, Eq)]
#[must_use = "an output says whether the command failed"]
pub struct Output {
    /// Its outcome.
    pub status: Status,
    /// Standard output, up to the cap of the command.
    pub stdout: Vec<u8>,
    /// Standard error; if very long, only its end.
    pub stderr: Vec<u8>,
}

// === impl Status ===

impl Status {
    /// Whether this is an answer to the command rather than a failure.
    pub fn is_accepted_by(self, accept: &Accept) -> bool {
        match self {
            Self::Exit(code) => accept.contains(code),
            Self::Signal(_) => false,
        }
    }

    /// The exit code, if the process ended by itself.
    pub fn code(self) -> Option<i32> {
        match self {
            Self::Exit(code) => Some(code),
            Self::Signal(_) => None,
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exit(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
        }
    }
}

// === impl Output ===

impl Output {
    /// Returns an error if the command does not accept the status.
    pub fn check(self, command: &Command) -> Result<Self, RunError> {
        if self.status.is_accepted_by(command.accept()) {
            return Ok(self);
        }
        Err(RunError::Failed {
            command: command.masked(),
            status: self.status,
            stderr: StderrTail::from_output(&self.stderr, command),
        })
    }

    /// Standard output as text; bytes that are no UTF-8 are replaced.
    pub fn text(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.stdout)
    }
}

impl fmt::Debug for Output {
    // Lengths only: a tool may print what its command kept secret (iscsiadm shows passwords).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Output")
            .field("status", &self.status)
            .field("stdout_bytes", &self.stdout.len())
            .field("stderr_bytes", &self.stderr.len())
            .finish()
    }
}
