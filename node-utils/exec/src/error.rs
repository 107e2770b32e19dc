//! Why a command failed, and whether it may have changed anything.
//!
//! The second part decides what a caller may do next. After an unknown outcome it must look before it acts again.
//! An unknown outcome is never success.

use std::error::Error;
use std::fmt;
use std::io;
use std::time::Duration;

use csi_types::{Effect, Kind};

use crate::command::{Command, CommandLine, InvalidCommand, Program, printable};
use crate::output::Status;

/// The bytes of standard error that an error carries.
const STDERR_TAIL: usize = 4096;

/// A command did not run, or did not end as it should.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// No process can be given this command.
    #[error("refuse `{command}`")]
    Invalid {
        /// The command.
        command: CommandLine,
        /// The fault of the command.
        #[source]
        source: InvalidCommand,
    },
    /// The program is not installed where it would run.
    #[error("find program `{program}` in {place}")]
    NotFound {
        /// The program.
        program: Program,
        /// The place where it was looked for.
        place: String,
    },
    /// The process could not be started.
    #[error("start `{command}`")]
    Spawn {
        /// The command.
        command: CommandLine,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
    /// It waited for a permit or a lock for the whole time it was given.
    #[error("start `{command}`: still queued after {waited:?}")]
    QueueTimeout {
        /// The command.
        command: CommandLine,
        /// The time that it waited.
        waited: Duration,
    },
    /// The machine that should run it could not be reached; nothing was sent.
    #[error("reach the machine that runs `{command}`")]
    Unreachable {
        /// The command.
        command: CommandLine,
        /// The error of the transport.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// It took too long and was killed.
    #[error(
        "run `{command}`: no end within {after:?}, {}",
        if *.still_running { "killed, but it has not ended yet" } else { "killed" }
    )]
    Deadline {
        /// The command.
        command: CommandLine,
        /// Its deadline.
        after: Duration,
        /// The process did not die of the kill: it hangs in the kernel, may not be signalled by
        /// us, or is out of reach. It may act still.
        still_running: bool,
    },
    /// It printed more than it may and was killed.
    #[error("run `{command}`: it printed more than {cap} bytes and was killed")]
    OutputTooLarge {
        /// The command.
        command: CommandLine,
        /// Its cap.
        cap: usize,
    },
    /// It was started, and its outcome is not known.
    #[error("run `{command}`: its end was not seen")]
    Lost {
        /// The command.
        command: CommandLine,
        /// The error that hid the end.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// It ended, with a status that the command does not accept.
    #[error("run `{command}`: {status}{stderr}")]
    Failed {
        /// The command.
        command: CommandLine,
        /// The status with which it ended.
        status: Status,
        /// The end of standard error.
        stderr: StderrTail,
    },
}

/// Standard error without the secrets of the command: at most 4 KiB, its beginning and its end.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StderrTail(String);

// === impl RunError ===

impl RunError {
    /// Whether it is known how the command ended: that it never started, or with which status.
    pub fn outcome_known(&self) -> bool {
        match self {
            Self::Invalid { .. }
            | Self::NotFound { .. }
            | Self::Spawn { .. }
            | Self::QueueTimeout { .. }
            | Self::Unreachable { .. }
            | Self::Failed { .. } => true,
            Self::Deadline { .. } | Self::OutputTooLarge { .. } | Self::Lost { .. } => false,
        }
    }

    /// The error of the work that the command was for: as uncertain as the command itself.
    pub fn while_doing(self, kind: Kind, doing: impl Into<String>) -> csi_types::Error {
        self.of_work(kind, doing, Effect::Possible)
    }

    /// The error of the work that a command of this effect was for: without effect if it never started.
    pub fn of_work(
        self,
        kind: Kind,
        doing: impl Into<String>,
        command: Effect,
    ) -> csi_types::Error {
        let effect = self.effect_of(command);
        csi_types::Error::new(kind, doing)
            .with_effect(effect)
            .because(self)
    }

    /// The effect of a command that would have this one: none if it never started.
    pub fn effect_of(&self, command: Effect) -> Effect {
        match self.effect() {
            Effect::None => Effect::None,
            Effect::Possible => command,
        }
    }

    /// Whether the command may have changed anything: not if it never started.
    pub fn effect(&self) -> Effect {
        match self {
            Self::Invalid { .. }
            | Self::NotFound { .. }
            | Self::Spawn { .. }
            | Self::QueueTimeout { .. }
            | Self::Unreachable { .. } => Effect::None,
            Self::Failed { .. }
            | Self::Deadline { .. }
            | Self::OutputTooLarge { .. }
            | Self::Lost { .. } => Effect::Possible,
        }
    }

    /// The exit code, if the command ended by itself.
    pub fn exit_code(&self) -> Option<i32> {
        match self {
            Self::Failed { status, .. } => status.code(),
            _ => None,
        }
    }

    /// Standard error of a failed command; empty if there was none or it never ran.
    pub fn stderr(&self) -> &str {
        match self {
            Self::Failed { stderr, .. } => stderr.as_str(),
            _ => "",
        }
    }
}

// === impl StderrTail ===

impl StderrTail {
    /// The beginning and the end of `stderr`, with the secrets of `command` replaced.
    pub fn from_output(stderr: &[u8], command: &Command) -> Self {
        // Scrub before cutting: a cut secret would no longer be found.
        let scrubbed = command.scrub(&String::from_utf8_lossy(stderr));
        let trimmed = scrubbed.trim_end();
        if trimmed.len() <= STDERR_TAIL {
            return Self(trimmed.to_owned());
        }
        // Tools name the cause first, and some print their usage after it.
        let (head, tail) = (STDERR_TAIL / 2, trimmed.len() - STDERR_TAIL / 2 + 1);
        let head = &trimmed[..trimmed.floor_char_boundary(head)];
        let tail = &trimmed[trimmed.ceil_char_boundary(tail)..];
        Self(format!("{head}\n{tail}"))
    }

    /// The text without the lines for which `is_noise` is true.
    pub fn without(&self, is_noise: impl Fn(&str) -> bool) -> Self {
        let lines: Vec<&str> = self.0.lines().filter(|line| !is_noise(line)).collect();
        Self(lines.join("\n"))
    }

    /// The text, with its line ends.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for StderrTail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return Ok(());
        }
        // Tools print several lines, and indent them.
        let lines = self.0.split(['\n', '\r', '\t']).map(str::trim);
        let lines: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
        write!(f, ": {}", printable(&lines.join(" ")))
    }
}
