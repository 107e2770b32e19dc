//! Streams: one command on a connection of its own, whose output or input never ends in memory.
//!
//! A reader that waits stops the whole connection it reads from, so no stream shares one with scripts.
//! Its window and its buffers are the bounds; what the other side may not send yet, it keeps.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use exec::script::{Beginning, Begun, REMOTE_STREAM, Streamed};
use exec::{Command, Feed, Flow, Output, RunError, Status};
use russh::{ChannelMsg, ChannelReadHalf};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout_at};

use super::{ConnectError, Ends, Line, Session, number};
use crate::settings::Settings;

/// How much of a long complaint is kept.
const COMPLAINT: usize = 64 << 10;

/// A stream that was begun.
struct Opened {
    line: Line,
    ear: Ear,
    // Kept as long as the stream runs.
    _session: Session,
    _turn: OwnedSemaphorePermit,
}

/// What comes back from the other side.
struct Ear {
    reader: ChannelReadHalf,
    /// `None` once the command has begun.
    beginning: Option<Beginning>,
    stderr: Vec<u8>,
    status: Option<Status>,
    refused: bool,
}

/// What was heard next.
enum Heard {
    Piece(Vec<u8>),
    /// The channel is closed.
    Closed,
    Missing,
    Noise,
}

/// What a command on another machine prints.
struct Printing {
    command: Command,
    deadline: Instant,
    opened: Option<Opened>,
}

/// Why there is no stream.
#[derive(Debug, thiserror::Error)]
enum NotOpened {
    #[error(transparent)]
    Connect(ConnectError),
    #[error("the server of {0} opens no session")]
    Session(String),
    #[error("no turn among the streams to {place} within {waited:?}")]
    Busy { place: String, waited: Duration },
}

/// Why the end of a stream is not known.
#[derive(Debug, thiserror::Error)]
enum Unseen {
    #[error("the channel was closed without a status")]
    NoStatus,
    #[error("something else than the command speaks there")]
    Noise,
    #[error("the server runs no `sh`")]
    Refused,
}

fn unreachable(command: &Command, why: NotOpened) -> RunError {
    RunError::Unreachable {
        command: command.masked(),
        source: Box::new(why),
    }
}

fn lost(command: &Command, why: Unseen) -> RunError {
    RunError::Lost {
        command: command.masked(),
        source: Box::new(why),
    }
}

fn late(command: &Command) -> RunError {
    RunError::Deadline {
        command: command.masked(),
        after: command.deadline(),
        still_running: true,
    }
}

/// The turns of streams to one machine.
#[derive(Debug, Clone)]
pub(crate) struct Streams {
    settings: Arc<Settings>,
    turns: Arc<tokio::sync::Semaphore>,
}

// === impl Streams ===

impl Streams {
    /// At most so many at once: each has a connection.
    const AT_ONCE: usize = 4;

    pub(crate) fn new(settings: Arc<Settings>) -> Self {
        Self {
            settings,
            turns: Arc::new(tokio::sync::Semaphore::new(Self::AT_ONCE)),
        }
    }

    async fn open(&self, command: &Command, deadline: Instant) -> Result<Opened, RunError> {
        let streamed = Streamed::of(command)?;
        let place = self.settings.place();
        let turn = timeout_at(deadline, Arc::clone(&self.turns).acquire_owned()).await;
        let Ok(Ok(turn)) = turn else {
            let waited = command.deadline();
            return Err(unreachable(command, NotOpened::Busy { place, waited }));
        };
        let session = Session::open(&self.settings).await;
        let session = session.map_err(|why| unreachable(command, NotOpened::Connect(why)))?;
        let refused = || unreachable(command, NotOpened::Session(place.clone()));
        let begun = async {
            let channel = session.handle.channel_open_session().await.ok()?;
            let Ends { reader, line, .. } = Ends::of(channel);
            let writer = line.0.as_ref()?;
            writer.exec(true, REMOTE_STREAM).await.ok()?;
            Some((reader, line))
        };
        let Ok(Some((reader, line))) = timeout_at(deadline, begun).await else {
            return Err(refused());
        };
        // From here on it may run.
        let sent = async {
            match &line.0 {
                Some(writer) => writer.data(streamed.line()).await.is_ok(),
                None => false,
            }
        };
        if !matches!(timeout_at(deadline, sent).await, Ok(true)) {
            return Err(lost(command, Unseen::NoStatus));
        }
        let ear = Ear {
            reader,
            beginning: Some(streamed.beginning()),
            stderr: Vec::new(),
            status: None,
            refused: false,
        };
        Ok(Opened {
            line,
            ear,
            _session: session,
            _turn: turn,
        })
    }

    /// Runs a command that prints a stream.
    pub(crate) async fn pour(&self, command: &Command) -> Result<Box<dyn Flow>, RunError> {
        let deadline = Instant::now() + command.deadline();
        let opened = self.open(command, deadline).await?;
        if let Some(writer) = &opened.line.0 {
            // It has no other input. If that is not heard, neither is its end.
            let _ = timeout_at(deadline, writer.eof()).await;
        }
        Ok(Box::new(Printing {
            command: command.clone(),
            deadline,
            opened: Some(opened),
        }))
    }

    /// Runs a command that reads a stream.
    pub(crate) async fn feed(
        &self,
        command: &Command,
        feed: &mut dyn Feed,
    ) -> Result<Output, RunError> {
        let deadline = Instant::now() + command.deadline();
        let mut opened = self.open(command, deadline).await?;
        let (line, ear) = (&opened.line, &mut opened.ear);
        let pump = async {
            let Some(writer) = &line.0 else { return };
            while let Ok(Some(piece)) = feed.next().await {
                if writer.data(&piece[..]).await.is_err() {
                    return;
                }
            }
            // If it does not arrive, the other half hears why.
            let _ = writer.eof().await;
        };
        let fed = {
            let mut heard = std::pin::pin!(ear.all(command));
            let both = async {
                tokio::select! {
                    biased;
                    heard = &mut heard => heard,
                    () = pump => heard.await,
                }
            };
            timeout_at(deadline, both).await
        };
        let fed = fed.unwrap_or_else(|_| Err(late(command)));
        opened.line.give_up().await;
        fed
    }
}

// === impl Ear ===

impl Ear {
    /// The next of what comes back.
    async fn next(&mut self) -> Heard {
        while let Some(message) = self.reader.wait().await {
            match message {
                ChannelMsg::Data { data } => {
                    let piece = match &mut self.beginning {
                        None => data.to_vec(),
                        Some(beginning) => match beginning.hear(&data) {
                            Begun::NotYet => continue,
                            Begun::Missing => return Heard::Missing,
                            Begun::Noise => return Heard::Noise,
                            Begun::Runs(first) => {
                                self.beginning = None;
                                first
                            }
                        },
                    };
                    if !piece.is_empty() {
                        return Heard::Piece(piece);
                    }
                }
                ChannelMsg::ExtendedData { data, ext: 1 } => {
                    self.stderr.extend_from_slice(&data);
                    if self.stderr.len() > 2 * COMPLAINT {
                        self.stderr.drain(..self.stderr.len() - COMPLAINT);
                    }
                }
                ChannelMsg::ExitStatus { exit_status } => {
                    let code = i32::try_from(exit_status).unwrap_or(i32::MAX);
                    self.status = Some(Status::Exit(code));
                }
                ChannelMsg::ExitSignal { signal_name, .. } => {
                    self.status = Some(Status::Signal(number(&signal_name)));
                }
                ChannelMsg::Failure => {
                    self.refused = true;
                    break;
                }
                ChannelMsg::Close => break,
                _ => {}
            }
        }
        Heard::Closed
    }

    /// How it ended, once the channel is closed. A status without a beginning is not the command's.
    fn ended(&mut self, command: &Command, stdout: Vec<u8>) -> Result<Output, RunError> {
        match self.status.take() {
            Some(status) if self.beginning.is_none() => Ok(Output {
                status,
                stdout,
                stderr: std::mem::take(&mut self.stderr),
            }),
            _ if self.refused => Err(lost(command, Unseen::Refused)),
            _ => Err(lost(command, Unseen::NoStatus)),
        }
    }

    /// Everything that comes back, up to the command's cap.
    async fn all(&mut self, command: &Command) -> Result<Output, RunError> {
        let mut stdout = Vec::new();
        loop {
            match self.next().await {
                Heard::Piece(piece) => stdout.extend_from_slice(&piece),
                Heard::Closed => return self.ended(command, stdout),
                Heard::Missing => return Err(missing(command)),
                Heard::Noise => return Err(lost(command, Unseen::Noise)),
            }
            let cap = command.output_cap();
            if stdout.len() > cap {
                let command = command.masked();
                return Err(RunError::OutputTooLarge { command, cap });
            }
        }
    }
}

fn missing(command: &Command) -> RunError {
    RunError::NotFound {
        program: command.program().clone(),
        place: "the PATH of the other machine".to_owned(),
    }
}

// === impl Printing ===

#[async_trait]
impl Flow for Printing {
    async fn next(&mut self) -> Result<Option<Vec<u8>>, RunError> {
        let Some(mut opened) = self.opened.take() else {
            return Ok(None);
        };
        let Ok(heard) = timeout_at(self.deadline, opened.ear.next()).await else {
            return Err(late(&self.command));
        };
        match heard {
            Heard::Piece(piece) => {
                self.opened = Some(opened);
                Ok(Some(piece))
            }
            Heard::Closed => {
                let output = opened.ear.ended(&self.command, Vec::new())?;
                output.check(&self.command).map(|_| None)
            }
            Heard::Missing => Err(missing(&self.command)),
            Heard::Noise => Err(lost(&self.command, Unseen::Noise)),
        }
    }
}

impl std::fmt::Debug for Printing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Printing")
            .field("command", &self.command)
            .finish_non_exhaustive()
    }
}
