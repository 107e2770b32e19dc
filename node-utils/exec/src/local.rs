//! Runs commands as child processes of this one, in this mount namespace.
//!
//! No shell, no inherited environment, no inherited input. The deadline always holds: the whole process group is
//! killed and the call returns, even if the child hangs in the kernel or a grandchild keeps the pipes open
//! (compat: "Deadlines of commands": in democratic-csi they do not reach through wrapper scripts).
//!
//! Reference: `setpgid(2)`, `kill(2)`.

mod child;

use std::io::ErrorKind;
use std::path::Path;
use std::process::Stdio;

use async_trait::async_trait;

use crate::command::{Argument, Command, Input, Program};
use crate::error::RunError;
use crate::output::Output;
use crate::runner::{Batch, Runner, one_by_one};
use crate::search::{self, DIRECTORIES};
use crate::stream::{self, InputStream, OutputStream};

/// Runs commands here.
#[derive(Debug, Clone)]
pub struct Local {
    directories: Vec<String>,
}

// === impl Local ===

impl Local {
    /// Searches programs in [`DIRECTORIES`].
    pub fn new() -> Self {
        Self::searching(DIRECTORIES)
    }

    /// Searches programs in these folders instead, which also become the child's `PATH`.
    pub fn searching<D: Into<String>>(directories: impl IntoIterator<Item = D>) -> Self {
        Self {
            directories: directories.into_iter().map(Into::into).collect(),
        }
    }

    // A few lstat calls on the thread of the runtime: starting the process blocks it for longer,
    // and a container whose own binaries cannot be read is beyond help.
    fn find(&self, program: &Program) -> Result<String, RunError> {
        search::find(Path::new("/"), program, &self.directories)
            .ok_or_else(|| self.not_found(program))
    }

    fn not_found(&self, program: &Program) -> RunError {
        RunError::NotFound {
            program: program.clone(),
            place: search::path_variable(&self.directories),
        }
    }

    /// With `piped_input`, standard input is a pipe that the caller writes to.
    fn start(
        &self,
        command: &Command,
        piped_input: bool,
    ) -> Result<tokio::process::Child, RunError> {
        let path = self.find(command.program())?;
        let mut process = process(&path);
        process
            .args(command.arguments().iter().map(Argument::expose))
            .env_clear()
            .env("PATH", search::path_variable(&self.directories))
            .env("LC_ALL", "C.UTF-8")
            .envs(
                command
                    .environment()
                    .iter()
                    .map(|(name, value)| (name.as_str(), value.expose())),
            )
            // Not the folder we were started in: a child must not keep a volume busy.
            .current_dir("/")
            .stdin(match command.input() {
                Input::Empty if !piped_input => Stdio::null(),
                Input::Empty | Input::Plain(_) | Input::Secret(_) => Stdio::piped(),
            })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true);
        process.spawn().map_err(|source| match source.kind() {
            // Removed since it was found, or a script whose interpreter is missing.
            ErrorKind::NotFound => self.not_found(command.program()),
            _ => RunError::Spawn {
                command: command.masked(),
                source,
            },
        })
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the one place that starts child processes"
)]
fn process(path: &str) -> tokio::process::Command {
    tokio::process::Command::new(path)
}

impl Default for Local {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl Runner for Local {
    async fn run(&self, command: &Command) -> Result<Output, RunError> {
        command.validate().map_err(|source| RunError::Invalid {
            command: command.masked(),
            source,
        })?;
        let child = self.start(command, false)?;
        child::finish(child, command).await
    }

    async fn run_all(&self, commands: &[Command]) -> Batch {
        one_by_one(self, commands).await
    }

    async fn stream_output(&self, command: &Command) -> Result<Box<dyn OutputStream>, RunError> {
        stream::check(command)?;
        let child = self.start(command, false)?;
        Ok(Box::new(child::ChildOutput::new(child, command)))
    }

    async fn run_with_input(
        &self,
        command: &Command,
        input: &mut dyn InputStream,
    ) -> Result<Output, RunError> {
        stream::check(command)?;
        let child = self.start(command, true)?;
        child::run_with_input(child, command, input).await
    }
}
