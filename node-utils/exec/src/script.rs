//! A list of commands as one `sh` script, and the result of each command read from its output.
//!
//! For runners that pay one round trip per exchange. The remote command is the constant [`REMOTE_COMMAND`]. The
//! script travels on standard input, so neither the login shell (csh on FreeBSD expands `!` and rejects newlines
//! even in quotes) nor the remote process list sees it. Reference: POSIX, "Shell Command Language". The tests run
//! `dash`, `bash` and, if installed, `busybox sh`.
//!
//! Guarantees and limits:
//! - Statuses are printed on marker lines with a random number that no command can guess. A step without its
//!   marker is [`Step::Unknown`], never success.
//! - Nothing runs before the whole script has arrived: it consists of functions, called by its last line. A
//!   connection that is cut before that runs nothing.
//! - A shell reports a signal as exit code 128 + n. Codes 129 to 192 are read as signals.
//! - The deadlines of the commands are added up. The transport enforces the sum, and holds the lock against a
//!   script that outlives its connection. If the transport closes its pipes, the script ends at its next marker.

mod framed_script;
mod read;
mod shell;
mod stream_script;
mod write;

use std::fmt;
use std::time::Duration;

use rustix::rand::{GetRandomFlags, getrandom};

use crate::command::{Accept, Command, Program};
use crate::error::RunError;

pub use framed_script::{EndMarker, FramedScript, KnownRoutines};
pub use shell::Shell;
pub use stream_script::{REMOTE_STREAM, StartDetector, StartState, StreamScript};

#[cfg(doc)]
use crate::runner::Step;

/// The remote command for every script.
pub const REMOTE_COMMAND: &str = "sh -s";

const SH: Program = Program::constant("sh");

/// The exit codes with which a shell reports a signal.
const SIGNALLED: std::ops::RangeInclusive<i32> = 129..=192;

/// Printed instead of a status if the program is not installed.
const MISSING: &str = "missing";

/// A list of commands, rendered; read its output with [`Script::read`].
pub struct Script<'a> {
    commands: &'a [Command],
    marker: Marker,
    /// The shell that reads it.
    shell: Command,
}

/// The prefix of every line that the script itself prints.
struct Marker(String);

/// The system gave no random bytes.
#[derive(Debug, thiserror::Error)]
#[error("get random bytes for the markers of a script")]
struct NoRandomness(#[source] rustix::io::Errno);

// === impl Script ===

impl<'a> Script<'a> {
    /// Renders `commands`, which must hold no NUL byte.
    pub fn of(commands: &'a [Command]) -> Result<Self, RunError> {
        for command in commands {
            let invalid = |source| RunError::Invalid {
                command: command.masked(),
                source,
            };
            command.validate().map_err(invalid)?;
        }
        let first = commands
            .first()
            .map_or_else(|| Command::new(SH), Clone::clone);
        let marker = Marker::for_command(&first)?;
        let shell = write::script(commands, &marker).map_err(|_| RunError::Spawn {
            command: first.masked(),
            source: std::io::Error::other("a NUL byte"),
        })?;
        Ok(Self {
            commands,
            marker,
            shell,
        })
    }

    /// The script itself, with the secrets of the commands.
    pub fn expose(&self) -> &[u8] {
        self.shell.input().bytes()
    }

    /// The time that the whole list may take.
    pub fn deadline(&self) -> Duration {
        self.commands.iter().map(Command::deadline).sum()
    }

    /// The output cap of the whole list, markers included.
    pub fn output_cap(&self) -> usize {
        let marker = self.marker.0.len() + 32;
        let caps = self
            .commands
            .iter()
            .map(|command| command.output_cap() + marker);
        caps.fold(marker, usize::saturating_add)
    }

    /// The script as a command for a runner that can run `sh`.
    pub fn command(&self) -> Command {
        let shell = self.shell.clone();
        let shell = match self.commands.iter().filter_map(Command::call_start).min() {
            Some(began) => shell.with_call_start(began),
            None => shell,
        };
        shell
            .accepting(Accept::AnyExit)
            .within(self.deadline())
            .with_output_cap(self.output_cap())
    }
}

impl fmt::Debug for Script<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Script")
            .field("commands", &self.commands)
            .finish_non_exhaustive()
    }
}

// === impl Marker ===

impl Marker {
    fn for_command(command: &Command) -> Result<Self, RunError> {
        Self::random().map_err(|source| RunError::Spawn {
            command: command.masked(),
            source: std::io::Error::other(source),
        })
    }

    fn random() -> Result<Self, NoRandomness> {
        let mut bytes = [0_u8; 16];
        let mut filled = 0;
        while filled < bytes.len() {
            match getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
                Ok(count) => filled += count,
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(NoRandomness(errno)),
            }
        }
        Ok(Self(format!("omnibus-{:032x}", u128::from_ne_bytes(bytes))))
    }
}
