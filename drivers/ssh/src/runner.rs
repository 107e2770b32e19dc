//! The runner: renders commands as scripts and sends them over the connections of one machine.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use exec::script::{FramedScript, REMOTE_COMMAND, Shell};
use exec::{
    Batch, Command, InputStream, Output, OutputStream, RunError, Runner, one_by_one, stream,
};
use tokio::time::{Instant, timeout_at};

use crate::pool::{Pool, Refusals, SessionPermit};
use crate::session::{LARGEST_OUTPUT, ScriptOutcome, Streams};
use crate::settings::Settings;

/// Refused sessions, before a call gives up. Each lowers what is assumed of the server or waits for longer, so a server
/// is learnt long before.
const TRIES: usize = 64;

/// Runs commands on one machine. Cheap to clone; clones share the connections.
#[derive(Debug, Clone)]
pub struct Ssh {
    shell: Shell<ScriptTransport>,
    streams: Streams,
}

/// Sends scripts, and nothing else, to the machine.
#[derive(Debug, Clone)]
struct ScriptTransport(Arc<Pool>);

/// Why nothing was sent.
#[derive(Debug, thiserror::Error)]
enum NotSent {
    #[error("no free session on a connection to {place} within {waited:?}")]
    Busy { place: String, waited: Duration },
    #[error("the server of {place} runs no `{REMOTE_COMMAND}` for `{user}`")]
    Shell { place: String, user: String },
    #[error("the server of {place} opens no session")]
    Session { place: String },
    #[error("only scripts are carried over SSH")]
    Foreign,
}

// === impl Ssh ===

impl Ssh {
    /// A runner for the machine of `settings`. Nothing is connected yet.
    pub fn new(settings: Settings) -> Self {
        let pool = Arc::new(Pool::new(settings));
        Self {
            streams: Streams::new(Arc::clone(pool.settings())),
            shell: Shell::new(ScriptTransport(pool)),
        }
    }
}

#[async_trait]
impl Runner for Ssh {
    async fn run(&self, command: &Command) -> Result<Output, RunError> {
        self.shell.run(command).await
    }

    async fn run_all(&self, commands: &[Command]) -> Batch {
        self.shell.run_all(commands).await
    }

    async fn stream_output(&self, command: &Command) -> Result<Box<dyn OutputStream>, RunError> {
        self.streams.stream_output(command).await
    }

    async fn run_with_input(
        &self,
        command: &Command,
        input: &mut dyn InputStream,
    ) -> Result<Output, RunError> {
        self.streams.run_with_input(command, input).await
    }
}

// === impl ScriptTransport ===

impl ScriptTransport {
    fn place(&self) -> String {
        self.0.settings().place()
    }

    /// A permit on a connection, or why there is none.
    async fn permit(
        &self,
        command: &Command,
        since: Instant,
        deadline: Instant,
    ) -> Result<SessionPermit, RunError> {
        match timeout_at(deadline, self.0.acquire(since)).await {
            Ok(Ok(permit)) => Ok(permit),
            Ok(Err(error)) => Err(unreachable(command, error)),
            Err(_) => Err(unreachable(
                command,
                NotSent::Busy {
                    place: self.place(),
                    waited: command.deadline(),
                },
            )),
        }
    }
}

/// A list adds up the caps of its commands.
fn cap(command: &Command) -> usize {
    command.output_cap().min(LARGEST_OUTPUT)
}

fn unreachable(
    command: &Command,
    source: impl std::error::Error + Send + Sync + 'static,
) -> RunError {
    RunError::Unreachable {
        command: command.masked(),
        source: Box::new(source),
    }
}

#[async_trait]
impl Runner for ScriptTransport {
    async fn run(&self, command: &Command) -> Result<Output, RunError> {
        let words = || command.arguments().iter().map(exec::Argument::expose);
        let line: Vec<&str> = std::iter::once(command.program().as_str())
            .chain(words())
            .collect();
        if line.join(" ") != REMOTE_COMMAND {
            return Err(unreachable(command, NotSent::Foreign));
        }
        let script = FramedScript::of(command)?;
        // The wait for a permit is bounded by the deadline of the script; the script then gets its full deadline.
        let queue_deadline = Instant::now() + command.deadline();
        let since = command.call_start().unwrap_or_else(Instant::now);
        let mut refusals = Refusals::default();
        for _ in 0..TRIES {
            let permit = self.permit(command, since, queue_deadline).await?;
            let deadline = Instant::now() + command.deadline();
            let outcome = permit.session.run(&script, deadline, cap(command)).await;
            match outcome {
                ScriptOutcome::NoSession => {
                    // Bounded like the wait for the next permit.
                    let _ = timeout_at(queue_deadline, permit.reduce_limit(&mut refusals)).await;
                }
                ScriptOutcome::ConnectionGone => {}
                outcome => return self.outcome(command, outcome),
            }
        }
        let place = self.place();
        Err(unreachable(command, NotSent::Session { place }))
    }

    async fn run_all(&self, commands: &[Command]) -> Batch {
        one_by_one(self, commands).await
    }

    /// Streams have sessions of their own: see [`Ssh`].
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

impl ScriptTransport {
    fn outcome(&self, command: &Command, outcome: ScriptOutcome) -> Result<Output, RunError> {
        let settings = self.0.settings();
        let masked = command.masked();
        match outcome {
            ScriptOutcome::Ended(answer) => Ok(Output {
                status: answer.status,
                stdout: answer.stdout,
                stderr: answer.stderr,
            }),
            ScriptOutcome::DeadlineExceeded => Err(RunError::Deadline {
                command: masked,
                after: command.deadline(),
                still_running: true,
            }),
            ScriptOutcome::OutputTooLarge => Err(RunError::OutputTooLarge {
                command: masked,
                cap: cap(command),
            }),
            ScriptOutcome::NoSession
            | ScriptOutcome::ConnectionGone
            | ScriptOutcome::OpenTimeout => {
                let place = settings.place();
                Err(unreachable(command, NotSent::Session { place }))
            }
            ScriptOutcome::ShellRefused => Err(unreachable(
                command,
                NotSent::Shell {
                    place: settings.place(),
                    user: settings.user.clone(),
                },
            )),
            ScriptOutcome::Lost(why) => Err(RunError::Lost {
                command: masked,
                source: why.into(),
            }),
        }
    }
}
