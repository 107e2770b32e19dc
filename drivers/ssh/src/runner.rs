//! The runner: lists of commands as scripts, scripts over the connections of one machine.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use exec::script::{Framed, REMOTE_COMMAND, Shell};
use exec::{Batch, Command, Feed, Flow, Output, RunError, Runner};
use tokio::time::{Instant, timeout_at};

use crate::pool::{Pool, Turn};
use crate::session::{Ran, Streams};
use crate::settings::Settings;

/// Refusals of a connection that was fine a moment ago, before a call gives up.
const TRIES: usize = 64;

/// Runs commands on one machine. Cheap to clone; clones share the connections.
#[derive(Debug, Clone)]
pub struct Ssh {
    shell: Shell<Wire>,
    streams: Streams,
}

/// Carries scripts, and only scripts, to the machine.
#[derive(Debug, Clone)]
struct Wire(Arc<Pool>);

/// Why nothing was sent.
#[derive(Debug, thiserror::Error)]
enum NotSent {
    #[error("no turn on a connection to {place} within {waited:?}")]
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
            shell: Shell::new(Wire(pool)),
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

    async fn pour(&self, command: &Command) -> Result<Box<dyn Flow>, RunError> {
        self.streams.pour(command).await
    }

    async fn feed(&self, command: &Command, feed: &mut dyn Feed) -> Result<Output, RunError> {
        self.streams.feed(command, feed).await
    }
}

// === impl Wire ===

impl Wire {
    fn place(&self) -> String {
        self.0.settings().place()
    }

    /// A turn on a connection, or why there is none.
    async fn turn(
        &self,
        command: &Command,
        since: Instant,
        deadline: Instant,
    ) -> Result<Turn, RunError> {
        match timeout_at(deadline, self.0.turn(since)).await {
            Ok(Ok(turn)) => Ok(turn),
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
impl Runner for Wire {
    async fn run(&self, command: &Command) -> Result<Output, RunError> {
        let words = || command.arguments().iter().map(exec::Argument::expose);
        let line: Vec<&str> = std::iter::once(command.program().as_str())
            .chain(words())
            .collect();
        if line.join(" ") != REMOTE_COMMAND {
            return Err(unreachable(command, NotSent::Foreign));
        }
        let script = Framed::of(command)?;
        // Waiting for a turn has the time of the script, and the script has its own from then on.
        let patience = Instant::now() + command.deadline();
        let since = command.since().unwrap_or_else(Instant::now);
        let mut refusals = 0;
        for _ in 0..TRIES {
            let turn = self.turn(command, since, patience).await?;
            let deadline = Instant::now() + command.deadline();
            let ran = turn
                .session
                .run(&script, deadline, command.output_cap())
                .await;
            match ran {
                Ran::Full => {
                    // The wait for the next turn has its bound.
                    let _ = timeout_at(patience, turn.give_up(&mut refusals)).await;
                }
                Ran::Gone => {}
                ran => return self.outcome(command, ran),
            }
        }
        let place = self.place();
        Err(unreachable(command, NotSent::Session { place }))
    }
}

impl Wire {
    fn outcome(&self, command: &Command, ran: Ran) -> Result<Output, RunError> {
        let settings = self.0.settings();
        let masked = command.masked();
        match ran {
            Ran::Ended(answer) => Ok(Output {
                status: answer.status,
                stdout: answer.stdout,
                stderr: answer.stderr,
            }),
            Ran::Late => Err(RunError::Deadline {
                command: masked,
                after: command.deadline(),
                still_running: true,
            }),
            Ran::TooMuch => Err(RunError::OutputTooLarge {
                command: masked,
                cap: command.output_cap(),
            }),
            Ran::Full | Ran::Gone | Ran::Unopened => {
                let place = settings.place();
                Err(unreachable(command, NotSent::Session { place }))
            }
            Ran::Refused => Err(unreachable(
                command,
                NotSent::Shell {
                    place: settings.place(),
                    user: settings.user.clone(),
                },
            )),
            Ran::Lost(why) => Err(RunError::Lost {
                command: masked,
                source: why.into(),
            }),
        }
    }
}
