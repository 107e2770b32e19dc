//! A list of commands as one `sh` script, and what its output says became of each of them.
//!
//! For runners that pay a round trip for every exchange. The remote command is the constant
//! [`REMOTE_COMMAND`]; the script travels on standard input, so that neither the login shell (csh
//! on FreeBSD expands `!` and refuses newlines even in quotes) nor the remote list of processes
//! ever sees it. The truth is POSIX, "Shell Command Language"; tests run `dash`, `bash` and, where
//! present, `busybox sh`.
//!
//! What a script can and cannot see:
//! - Statuses are told by marker lines with a random number that no output can guess. A status
//!   whose marker is missing is [`Step::Unknown`], never success.
//! - Nothing runs before the whole script has arrived: it is one function, called by the last
//!   line, and others before it for what commands have in common. A connection cut in between runs nothing.
//! - A shell reports a signal as exit code 128 + n; codes 129 to 192 are read as signals.
//! - The deadlines of the commands are added up; keeping the sum is the transport's part, and so
//!   is a lock against an orphan of a cut connection. If the transport closes its pipes, the
//!   script dies at its next marker.

mod framed;
mod read;
mod shell;
mod streamed;
mod write;

use std::fmt;
use std::time::Duration;

use rustix::rand::{GetRandomFlags, getrandom};

use crate::command::{Accept, Command, Program};
use crate::error::RunError;

pub use framed::{Frame, Framed, Told};
pub use shell::Shell;
pub use streamed::{Beginning, Begun, REMOTE_STREAM, Streamed};

#[cfg(doc)]
use crate::runner::Step;

/// What the remote side is asked to run, whatever the commands are.
pub const REMOTE_COMMAND: &str = "sh -s";

const SH: Program = Program::constant("sh");

/// The exit codes by which a shell says that a signal ended a command.
const SIGNALLED: std::ops::RangeInclusive<i32> = 129..=192;

/// What a script says in place of a status when the program is not installed.
const MISSING: &str = "missing";

/// A list of commands, rendered; read its output with [`Script::read`].
pub struct Script<'a> {
    commands: &'a [Command],
    marker: Marker,
    /// The shell that reads it.
    shell: Command,
}

/// The beginning of every line by which the script, and nothing it runs, speaks.
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

    /// The script itself. It holds the commands' secrets.
    pub fn expose(&self) -> &[u8] {
        self.shell.input().bytes()
    }

    /// How long the whole list may take.
    pub fn deadline(&self) -> Duration {
        self.commands.iter().map(Command::deadline).sum()
    }

    /// How much the whole list may print, markers included.
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
        let shell = match self.commands.iter().filter_map(Command::since).min() {
            Some(began) => shell.asked_since(began),
            None => shell,
        };
        shell
            .accepting(Accept::AnyExit)
            .within(self.deadline())
            .printing_at_most(self.output_cap())
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
