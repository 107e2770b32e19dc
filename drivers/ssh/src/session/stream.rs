//! Streams: one command on its own connection, with output or input that does not fit in memory.
//!
//! A reader that waits stops its whole connection, so streams never share a connection with scripts. The channel
//! window and the buffers bound the memory.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use exec::script::{REMOTE_STREAM, StartDetector, StartState, StreamScript};
use exec::{Command, InputStream, Output, OutputStream, RunError, Status};
use russh::{ChannelMsg, ChannelReadHalf};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout_at};

use super::{ChannelWriter, ConnectError, SMALL_OUTPUT, Session, ShellChannel, number};
use crate::settings::Settings;

/// The bytes of standard error that are kept.
const STDERR_KEPT: usize = 64 << 10;

/// A started stream.
struct OpenStream {
    stdin: ChannelWriter,
    reader: StreamReader,
    // Kept as long as the stream runs.
    _session: Session,
    _permit: OwnedSemaphorePermit,
}

/// The output of the remote side.
struct StreamReader {
    reader: ChannelReadHalf,
    /// `None` once the command has started.
    start: Option<StartDetector>,
    stderr: Vec<u8>,
    status: Option<Status>,
    refused: bool,
}

/// The next event of a stream.
enum StreamEvent {
    Piece(Vec<u8>),
    /// The channel is closed.
    Closed,
    Missing,
    Noise,
}

/// The standard output of a remote command.
struct RemoteOutput {
    command: Command,
    deadline: Instant,
    opened: Option<OpenStream>,
}

/// Why there is no stream.
#[derive(Debug, thiserror::Error)]
enum NotOpened {
    #[error(transparent)]
    Connect(ConnectError),
    #[error("the server of {0} opens no session")]
    Session(String),
    #[error("no permit among the streams to {place} within {waited:?}")]
    Busy { place: String, waited: Duration },
}

/// Why the outcome of a stream is not known.
#[derive(Debug, thiserror::Error)]
enum LostReason {
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

fn lost(command: &Command, why: LostReason) -> RunError {
    RunError::Lost {
        command: command.masked(),
        source: Box::new(why),
    }
}

fn deadline_exceeded(command: &Command) -> RunError {
    RunError::Deadline {
        command: command.masked(),
        after: command.deadline(),
        still_running: true,
    }
}

/// Runs streamed commands on one machine.
#[derive(Debug, Clone)]
pub(crate) struct Streams {
    settings: Arc<Settings>,
    permits: Arc<tokio::sync::Semaphore>,
}

// === impl Streams ===

impl Streams {
    /// Concurrent streams; each has its own connection. Servers accept ten logins at once by default, and the calls
    /// need some.
    const AT_ONCE: usize = 4;

    pub(crate) fn new(settings: Arc<Settings>) -> Self {
        Self {
            settings,
            permits: Arc::new(tokio::sync::Semaphore::new(Self::AT_ONCE)),
        }
    }

    async fn open(&self, command: &Command, deadline: Instant) -> Result<OpenStream, RunError> {
        let streamed = StreamScript::of(command)?;
        let place = self.settings.place();
        let permit = timeout_at(deadline, Arc::clone(&self.permits).acquire_owned()).await;
        let Ok(Ok(permit)) = permit else {
            let waited = command.deadline();
            return Err(unreachable(command, NotOpened::Busy { place, waited }));
        };
        let session = Session::open(&self.settings).await;
        let session = session.map_err(|why| unreachable(command, NotOpened::Connect(why)))?;
        let refused = || unreachable(command, NotOpened::Session(place.clone()));
        let started = async {
            let channel = session.handle.channel_open_session().await.ok()?;
            let ShellChannel { reader, stdin, .. } = ShellChannel::of(channel);
            let writer = stdin.0.as_ref()?;
            writer.exec(true, REMOTE_STREAM).await.ok()?;
            Some((reader, stdin))
        };
        let Ok(Some((reader, stdin))) = timeout_at(deadline, started).await else {
            return Err(refused());
        };
        // From here on it may run.
        let sent = async {
            match &stdin.0 {
                Some(writer) => writer.data(streamed.line()).await.is_ok(),
                None => false,
            }
        };
        if !matches!(timeout_at(deadline, sent).await, Ok(true)) {
            return Err(lost(command, LostReason::NoStatus));
        }
        let reader = StreamReader {
            reader,
            start: Some(streamed.start_detector()),
            stderr: Vec::new(),
            status: None,
            refused: false,
        };
        Ok(OpenStream {
            stdin,
            reader,
            _session: session,
            _permit: permit,
        })
    }

    /// Runs a command that prints a stream.
    pub(crate) async fn stream_output(
        &self,
        command: &Command,
    ) -> Result<Box<dyn OutputStream>, RunError> {
        let deadline = Instant::now() + command.deadline();
        let opened = self.open(command, deadline).await?;
        if let Some(writer) = &opened.stdin.0 {
            // It has no input. If this is lost, so is the end of the command.
            let _ = timeout_at(deadline, writer.eof()).await;
        }
        Ok(Box::new(RemoteOutput {
            command: command.clone(),
            deadline,
            opened: Some(opened),
        }))
    }

    /// Runs a command that reads a stream.
    pub(crate) async fn run_with_input(
        &self,
        command: &Command,
        input: &mut dyn InputStream,
    ) -> Result<Output, RunError> {
        let deadline = Instant::now() + command.deadline();
        let mut opened = self.open(command, deadline).await?;
        let (stdin, reader) = (&opened.stdin, &mut opened.reader);
        let pump = async {
            let Some(writer) = &stdin.0 else { return };
            while let Ok(Some(piece)) = input.next().await {
                if writer.data(&piece[..]).await.is_err() {
                    return;
                }
            }
            // If sending fails, the reader sees why.
            let _ = writer.eof().await;
        };
        let fed = {
            let mut event = std::pin::pin!(reader.all(command));
            let both = async {
                tokio::select! {
                    biased;
                    event = &mut event => event,
                    () = pump => event.await,
                }
            };
            timeout_at(deadline, both).await
        };
        let fed = fed.unwrap_or_else(|_| Err(deadline_exceeded(command)));
        opened.stdin.give_up().await;
        fed
    }
}

// === impl StreamReader ===

impl StreamReader {
    /// The next event.
    async fn next(&mut self) -> StreamEvent {
        while let Some(message) = self.reader.wait().await {
            match message {
                ChannelMsg::Data { data } => {
                    let piece = match &mut self.start {
                        None => data.to_vec(),
                        Some(start) => match start.push(&data) {
                            StartState::Pending => continue,
                            StartState::Missing => return StreamEvent::Missing,
                            StartState::Noise => return StreamEvent::Noise,
                            StartState::Running(first) => {
                                self.start = None;
                                first
                            }
                        },
                    };
                    if !piece.is_empty() {
                        return StreamEvent::Piece(piece);
                    }
                }
                ChannelMsg::ExtendedData { data, ext: 1 } => {
                    self.stderr.extend_from_slice(&data);
                    if self.stderr.len() > 2 * STDERR_KEPT {
                        self.stderr.drain(..self.stderr.len() - STDERR_KEPT);
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
        StreamEvent::Closed
    }

    /// The result, once the channel is closed. A status before the start marker is not that of the command.
    fn ended(&mut self, command: &Command, stdout: Vec<u8>) -> Result<Output, RunError> {
        match self.status.take() {
            Some(status) if self.start.is_none() => Ok(Output {
                status,
                stdout,
                stderr: std::mem::take(&mut self.stderr),
            }),
            _ if self.refused => Err(lost(command, LostReason::Refused)),
            _ => Err(lost(command, LostReason::NoStatus)),
        }
    }

    /// All output, up to the cap of the command: what reads a stream prints little.
    async fn all(&mut self, command: &Command) -> Result<Output, RunError> {
        let mut stdout = Vec::new();
        loop {
            match self.next().await {
                StreamEvent::Piece(piece) => stdout.extend_from_slice(&piece),
                StreamEvent::Closed => return self.ended(command, stdout),
                StreamEvent::Missing => return Err(missing(command)),
                StreamEvent::Noise => return Err(lost(command, LostReason::Noise)),
            }
            let cap = command.output_cap().min(SMALL_OUTPUT);
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

// === impl RemoteOutput ===

#[async_trait]
impl OutputStream for RemoteOutput {
    async fn next(&mut self) -> Result<Option<Vec<u8>>, RunError> {
        let Some(mut opened) = self.opened.take() else {
            return Ok(None);
        };
        let Ok(event) = timeout_at(self.deadline, opened.reader.next()).await else {
            return Err(deadline_exceeded(&self.command));
        };
        match event {
            StreamEvent::Piece(piece) => {
                self.opened = Some(opened);
                Ok(Some(piece))
            }
            StreamEvent::Closed => {
                let output = opened.reader.ended(&self.command, Vec::new())?;
                output.check(&self.command).map(|_| None)
            }
            StreamEvent::Missing => Err(missing(&self.command)),
            StreamEvent::Noise => Err(lost(&self.command, LostReason::Noise)),
        }
    }
}

impl std::fmt::Debug for RemoteOutput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RemoteOutput")
            .field("command", &self.command)
            .finish_non_exhaustive()
    }
}
