//! One connection to the machine, and the execution of scripts over it.
//!
//! A shell that has run a script stays open for the next one, so a script costs one round trip. Opening a channel
//! costs another, and so does starting a command, because a server accepts no input before that. How a script ended
//! is known only from its status; if the channel closes first, the outcome is unknown.

mod dial;
mod stream;

use std::borrow::Cow;
use std::error::Error;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use exec::Status;
use exec::script::{EndMarker, FramedScript, KnownRoutines, REMOTE_COMMAND};
use russh::client::{self, Handler, Msg};
use russh::keys::Algorithm;
use russh::{Channel, ChannelMsg, ChannelReadHalf, ChannelWriteHalf, Disconnect, Sig};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, SemaphorePermit, oneshot};
use tokio::time::{Instant, timeout, timeout_at};

pub(crate) use self::stream::Streams;
use crate::auth::{self, AuthError};
use crate::host_key::Refusal;
use crate::settings::Settings;

/// Unanswered keepalives before the connection counts as lost. One or two are lost when a switch restarts.
const KEEPALIVES: usize = 3;
/// The time limit for closing a channel. The answer is there already; a server that does not close it costs the next
/// call a new connection.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// An idle shell is closed after this time, when another script has finished.
const IDLE: Duration = Duration::from_mins(1);
/// The largest output of a script: a page of ten thousand volumes has less.
pub(crate) const LARGEST_OUTPUT: usize = 32 << 20;
/// What a stream's reader may print, and the unit of [`ROOM`].
const SMALL_OUTPUT: usize = 1 << 20;
/// What outputs may have in the whole process beyond their first MiB, in MiB: however many machines send without end,
/// the process keeps within its memory. An output that finds no room is given up and never waits: a reader that
/// waits stops its whole connection, with those on it that would make room. That is why this is not the budget of
/// the answers of appliances, which are waited for.
static ROOM: Semaphore = Semaphore::const_new(64);

const NO_ROOM: &str =
    "other commands print so much that there is no memory for its output: try again";

/// Why the machine could not be reached. Every waiting caller gets a copy.
#[derive(Debug, Clone)]
pub struct ConnectError {
    place: String,
    reason: Arc<Reason>,
}

#[derive(Debug, thiserror::Error)]
enum Reason {
    #[error("its name leads to no address")]
    Name(#[source] std::io::Error),
    #[error("it has no address")]
    NoAddress,
    #[error("no connection to {0}")]
    Network(SocketAddr, #[source] std::io::Error),
    #[error("no answer from {0} within {1:.1?}")]
    Silent(SocketAddr, Duration),
    #[error("no answer within {0:?}")]
    Slow(Duration),
    #[error("{0}")]
    HostKey(Refusal),
    #[error(transparent)]
    Auth(AuthError),
    #[error("no agreement with its SSH server")]
    Protocol(#[source] russh::Error),
}

/// One authenticated connection.
pub(crate) struct Session {
    handle: client::Handle<Client>,
    /// One permit per session that the server is known to allow.
    pub(crate) permits: Arc<Semaphore>,
    /// The total number of permits.
    limit: AtomicUsize,
    retired: AtomicBool,
    /// Idle shells and since when; the most recently used is the last.
    idle: Mutex<Vec<(Instant, IdleShell)>>,
}

/// An open shell that waits for a script; its output is watched. Dropping it closes its channel.
struct IdleShell(oneshot::Sender<oneshot::Sender<ShellChannel>>);

/// A channel with a shell. Dropping it closes the channel.
struct ShellChannel {
    reader: ChannelReadHalf,
    stdin: ChannelWriter,
    /// The routines that the shell has.
    known: KnownRoutines,
}

/// The outcome of a script.
#[derive(Debug)]
pub(crate) enum ScriptOutcome {
    /// It ended with a known status.
    Ended(Answer),
    /// It exceeded its deadline; it may still run.
    DeadlineExceeded,
    /// It printed more than its cap and was given up.
    OutputTooLarge,
    /// The server would not open a session: nothing was sent.
    NoSession,
    /// No session was opened in time: nothing was sent.
    OpenTimeout,
    /// The connection was gone before anything was sent.
    ConnectionGone,
    /// The server would not run a shell.
    ShellRefused,
    /// It was sent, and its outcome is not known.
    Lost(String),
}

/// The output of a script, and how it ended.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: Status,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
}

/// Handles the messages of the server.
struct Client {
    settings: Arc<Settings>,
    refusal: Arc<Mutex<Option<Refusal>>>,
}

impl Handler for Client {
    type Error = russh::Error;

    async fn check_server_key(
        &mut self,
        shown: &russh::keys::PublicKeyOrCertificate,
    ) -> Result<bool, Self::Error> {
        let judged = match shown {
            russh::keys::PublicKeyOrCertificate::PublicKey { key, .. } => {
                let Settings { host, port, .. } = &*self.settings;
                self.settings.host_keys.check(host, *port, key)
            }
            russh::keys::PublicKeyOrCertificate::Certificate(_) => Err(Refusal::Certificate),
        };
        let accepted = judged.is_ok();
        if let Err(refusal) = judged {
            *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = Some(refusal);
        }
        Ok(accepted)
    }
}

// === impl ConnectError ===

impl std::fmt::Display for ConnectError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.is_plain() {
            write!(f, "no connection to {}", self.place)
        } else {
            write!(f, "connect to {}", self.place)
        }
    }
}

impl Error for ConnectError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &*self.reason {
            Reason::Network(_, error) if self.is_plain() => Some(error),
            reason => Some(reason),
        }
    }
}

impl ConnectError {
    /// Whether the place is the address that refused: it is not named twice.
    fn is_plain(&self) -> bool {
        matches!(&*self.reason, Reason::Network(address, _) if address.to_string() == self.place)
    }

    /// What the user can do.
    pub fn advice(&self) -> &'static str {
        match &*self.reason {
            Reason::Name(_) | Reason::NoAddress => "check sshConnection.host",
            Reason::Network(..) | Reason::Silent(..) | Reason::Slow(_) => {
                "check sshConnection: host and port; the network, a firewall, and sshd on that host"
            }
            Reason::HostKey(Refusal::Certificate | Refusal::Unreadable) => {
                "see sshConnection.hostKey"
            }
            Reason::HostKey(_) => {
                "if it is the key of that host, give it in sshConnection.hostKey, or correct knownHosts"
            }
            Reason::Auth(_) => "check sshConnection: username, privateKey and password",
            Reason::Protocol(_) => "check that an SSH server listens at that port",
        }
    }

    /// The error and its causes on one line.
    pub(crate) fn chain(&self) -> String {
        let mut line = self.to_string();
        let mut cause = self.source();
        while let Some(error) = cause {
            line.push_str(": ");
            line.push_str(&error.to_string());
            cause = error.source();
        }
        line
    }
}

// === impl Session ===

impl Session {
    /// Connects, checks the host and logs in, all within the time of the settings.
    pub(crate) async fn open(settings: &Arc<Settings>) -> Result<Self, ConnectError> {
        let within = settings.connect_within;
        let until = Instant::now() + within;
        let opened = timeout_at(until, Self::reach(settings, until)).await;
        opened
            .unwrap_or(Err(Reason::Slow(within)))
            .map_err(|reason| ConnectError {
                place: settings.place(),
                reason: Arc::new(reason),
            })
    }

    async fn reach(settings: &Arc<Settings>, until: Instant) -> Result<Self, Reason> {
        let stream = dial::dial(settings, until).await?;
        let refusal = Arc::new(Mutex::new(None));
        let client = Client {
            settings: Arc::clone(settings),
            refusal: Arc::clone(&refusal),
        };
        let config = Arc::new(protocol(settings));
        let mut handle = client::connect_stream(config, stream, client)
            .await
            .map_err(|error| {
                let refusal = refusal
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .take();
                refusal.map_or(Reason::Protocol(error), Reason::HostKey)
            })?;
        auth::log_in(&mut handle, settings)
            .await
            .map_err(Reason::Auth)?;
        Ok(Self {
            handle,
            permits: Arc::new(Semaphore::new(settings.sessions.max(1))),
            limit: AtomicUsize::new(settings.sessions.max(1)),
            retired: AtomicBool::new(false),
            idle: Mutex::default(),
        })
    }

    /// Whether the connection is known to be gone, or is not to be used any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.retired.load(Ordering::Relaxed) || self.handle.is_closed()
    }

    /// Closes the connection. Scripts that still run there are not watched any more.
    pub(crate) async fn retire(&self) {
        self.retired.store(true, Ordering::Relaxed);
        let bye = self.handle.disconnect(Disconnect::ByApplication, "", "");
        let _ = timeout(CLOSE_TIMEOUT, bye).await;
    }

    /// Runs a script to its end, within `deadline` and with at most `cap` bytes of output.
    pub(crate) async fn run(
        self: &Arc<Self>,
        script: &FramedScript,
        deadline: Instant,
        cap: usize,
    ) -> ScriptOutcome {
        let (mut channel, has_shell) = match timeout_at(deadline, self.channel()).await {
            Ok(Ok(channel)) => channel,
            Ok(Err(russh::Error::ChannelOpenFailure(_))) => return ScriptOutcome::NoSession,
            Ok(Err(_)) => return ScriptOutcome::ConnectionGone,
            Err(_) => return ScriptOutcome::OpenTimeout,
        };
        let mut reply = Reply::of(script.frame(), cap);
        let exchange = exchange(&mut channel, has_shell, script, &mut reply);
        let outcome = timeout_at(deadline, exchange)
            .await
            .unwrap_or(ScriptOutcome::DeadlineExceeded);
        // Done before the permit is released: the server may not allow another session.
        if matches!(outcome, ScriptOutcome::Ended(_)) && !reply.closed {
            self.keep(channel).await;
        } else {
            channel.give_up().await;
        }
        outcome
    }

    /// Lowers the limit by one; `false` if it is one already.
    pub(crate) fn lower_limit(&self) -> bool {
        let fewer = |limit: usize| (limit > 1).then(|| limit - 1);
        self.limit
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer)
            .is_ok()
    }

    /// A channel for a script: with an idle shell, or new and without a shell.
    async fn channel(self: &Arc<Self>) -> Result<(ShellChannel, bool), russh::Error> {
        loop {
            let last = self.idle().pop();
            let Some((_, waiting)) = last else {
                return Ok((self.open_channel().await?, false));
            };
            if let Some(channel) = waiting.take().await {
                return Ok((channel, true));
            }
        }
    }

    /// Keeps a shell for the next script, and closes those that were idle for long.
    async fn keep(&self, channel: ShellChannel) {
        let now = Instant::now();
        let is_old = |(since, _): &mut (Instant, _)| now.duration_since(*since) >= IDLE;
        let old: Vec<_> = {
            let mut idle = self.idle();
            let old = idle.extract_if(.., is_old).collect();
            idle.push((now, IdleShell::with(channel)));
            old
        };
        for (_, shell) in old {
            if let Some(channel) = shell.take().await {
                channel.give_up().await;
            }
        }
    }

    /// Opens a channel.
    ///
    /// The request continues even if its caller is gone: a channel that the server opened and that is never closed
    /// would use up one of its few sessions for the life of the connection.
    async fn open_channel(self: &Arc<Self>) -> Result<ShellChannel, russh::Error> {
        let session = Arc::clone(self);
        let opening = tokio::spawn(async move {
            let opened = session.handle.channel_open_session().await;
            opened.map(ShellChannel::of)
        });
        opening.await.unwrap_or(Err(russh::Error::Disconnect))
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<(Instant, IdleShell)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The input of a shell. Dropping it closes the channel.
struct ChannelWriter(Option<ChannelWriteHalf<Msg>>);

/// The output of a script so far.
struct Reply {
    frame: EndMarker,
    cap: usize,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    status: Option<Status>,
    refused: bool,
    /// The shell ended, and not only the script.
    closed: bool,
    /// What it has of [`ROOM`].
    room: Option<SemaphorePermit<'static>>,
}

/// Sends the script and reads until it has ended. Both at the same time, so that a shell that prints before it has
/// read everything does not block itself.
async fn exchange(
    channel: &mut ShellChannel,
    has_shell: bool,
    script: &FramedScript,
    reply: &mut Reply,
) -> ScriptOutcome {
    let ShellChannel {
        reader,
        stdin,
        known,
    } = channel;
    if !has_shell && stdin.begin().await.is_err() {
        return ScriptOutcome::ConnectionGone;
    }
    let Some(writer) = &stdin.0 else {
        return ScriptOutcome::ConnectionGone;
    };
    let send = async {
        // If sending fails, the reader sees why.
        let _ = writer.data(&script.expose_for(known)[..]).await;
        std::future::pending::<ScriptOutcome>().await
    };
    tokio::select! {
        never = send => never,
        outcome = reply.read(reader) => outcome,
    }
}

// === impl Reply ===

impl Reply {
    fn of(frame: EndMarker, cap: usize) -> Self {
        Self {
            frame,
            cap: cap.saturating_add(EndMarker::LENGTH),
            stdout: Vec::new(),
            stderr: Vec::new(),
            status: None,
            refused: false,
            closed: false,
            room: None,
        }
    }

    /// Takes the room for what was read; `false` if others have it.
    fn has_room(&mut self) -> bool {
        let needed = (self.stdout.len() + self.stderr.len()) / SMALL_OUTPUT;
        let held = self.room.as_ref().map_or(0, SemaphorePermit::num_permits);
        let Ok(more @ 1..) = u32::try_from(needed.saturating_sub(held)) else {
            return true;
        };
        let Ok(more) = ROOM.try_acquire_many(more) else {
            return false;
        };
        match &mut self.room {
            Some(room) => room.merge(more),
            None => self.room = Some(more),
        }
        true
    }

    async fn read(&mut self, reader: &mut ChannelReadHalf) -> ScriptOutcome {
        loop {
            match reader.wait().await {
                Some(ChannelMsg::Data { data }) => self.stdout.extend_from_slice(&data),
                Some(ChannelMsg::ExtendedData { data, ext: 1 }) => {
                    self.stderr.extend_from_slice(&data);
                }
                Some(ChannelMsg::ExitStatus { exit_status }) => {
                    let code = i32::try_from(exit_status).unwrap_or(i32::MAX);
                    self.status = Some(Status::Exit(code));
                    continue;
                }
                Some(ChannelMsg::ExitSignal { signal_name, .. }) => {
                    self.status = Some(Status::Signal(number(&signal_name)));
                    continue;
                }
                Some(ChannelMsg::Failure) => {
                    self.refused = true;
                    break;
                }
                Some(ChannelMsg::Close) | None => break,
                Some(_) => continue,
            }
            if self.stdout.len() + self.stderr.len() > self.cap {
                return ScriptOutcome::OutputTooLarge;
            }
            if let Some(status) = self.frame.end(&mut self.stdout, &mut self.stderr) {
                return self.answer(status);
            }
            if !self.has_room() {
                return ScriptOutcome::Lost(NO_ROOM.to_owned());
            }
        }
        self.closed = true;
        match self.status.take() {
            Some(status) => self.answer(status),
            None if self.refused => ScriptOutcome::ShellRefused,
            None => ScriptOutcome::Lost("the channel was closed without a status".to_owned()),
        }
    }

    fn answer(&mut self, status: Status) -> ScriptOutcome {
        ScriptOutcome::Ended(Answer {
            status,
            stdout: std::mem::take(&mut self.stdout),
            stderr: std::mem::take(&mut self.stderr),
        })
    }
}

// === impl ShellChannel ===

impl ShellChannel {
    fn of(channel: Channel<Msg>) -> Self {
        let (reader, writer) = channel.split();
        let stdin = ChannelWriter(Some(writer));
        Self {
            reader,
            stdin,
            known: KnownRoutines::default(),
        }
    }

    /// Closes the channel; a script that still runs is asked to stop. The reader is dropped, so that the
    /// connection does not wait for it.
    async fn give_up(self) {
        let Self { reader, stdin, .. } = self;
        drop(reader);
        stdin.give_up().await;
    }

    /// Returns when the shell has ended or printed anything unexpected.
    async fn unexpected_output(&mut self) {
        while let Some(ChannelMsg::WindowAdjusted { .. }) = self.reader.wait().await {}
    }
}

// === impl IdleShell ===

impl IdleShell {
    /// A background process of a script must neither print into the output of the next one, nor fill the channel
    /// until the whole connection stalls.
    fn with(mut channel: ShellChannel) -> Self {
        let (taker, mut take) = oneshot::channel::<oneshot::Sender<ShellChannel>>();
        tokio::spawn(async move {
            let back = tokio::select! {
                biased;
                () = channel.unexpected_output() => None,
                back = &mut take => Some(back),
            };
            match back {
                Some(Ok(back)) => drop(back.send(channel)),
                // A caller that takes it at the same time waits until its channel is closed.
                _ => channel.give_up().await,
            }
            drop(take);
        });
        Self(taker)
    }

    /// The shell, if it is still open.
    async fn take(self) -> Option<ShellChannel> {
        let (back, channel) = oneshot::channel();
        self.0.send(back).ok()?;
        channel.await.ok()
    }
}

// === impl ChannelWriter ===

impl ChannelWriter {
    /// Starts the shell.
    async fn begin(&self) -> Result<(), russh::Error> {
        match &self.0 {
            Some(writer) => writer.exec(true, REMOTE_COMMAND).await,
            None => Err(russh::Error::Disconnect),
        }
    }

    /// Closes the channel; a script that still runs is asked to stop.
    async fn give_up(mut self) {
        if let Some(writer) = self.0.take() {
            give_up(writer).await;
        }
    }
}

impl Drop for ChannelWriter {
    fn drop(&mut self) {
        if let (Some(writer), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            runtime.spawn(give_up(writer));
        }
    }
}

/// Asks a script that may still run to stop, and closes its channel. Has no effect on one that has ended. An
/// OpenSSH server does not forward signals to processes of root, so those may continue.
async fn give_up(writer: ChannelWriteHalf<Msg>) {
    let bye = async {
        let _ = writer.signal(Sig::TERM).await;
        let _ = writer.close().await;
    };
    let _ = timeout(CLOSE_TIMEOUT, bye).await;
}

fn protocol(settings: &Settings) -> client::Config {
    let mut config = client::Config {
        keepalive_interval: Some(settings.keepalive),
        keepalive_max: KEEPALIVES,
        inactivity_timeout: None,
        nodelay: true,
        ..client::Config::default()
    };
    // A server with several keys then shows one that can be verified.
    if let Some(known) = settings.host_keys.algorithms(&settings.host, settings.port) {
        let same = |offered: &Algorithm| {
            known.iter().any(|known| match (known, offered) {
                (Algorithm::Rsa { .. }, Algorithm::Rsa { .. }) => true,
                (known, offered) => known == offered,
            })
        };
        let kept: Vec<Algorithm> = config
            .preferred
            .key
            .iter()
            .filter(|key| same(key))
            .cloned()
            .collect();
        if !kept.is_empty() {
            config.preferred.key = Cow::Owned(kept);
        }
    }
    config
}

/// The number of a signal on Linux and FreeBSD.
fn number(signal: &Sig) -> i32 {
    match signal {
        Sig::HUP => 1,
        Sig::INT => 2,
        Sig::QUIT => 3,
        Sig::ILL => 4,
        Sig::ABRT => 6,
        Sig::FPE => 8,
        Sig::KILL => 9,
        Sig::SEGV => 11,
        Sig::PIPE => 13,
        Sig::ALRM => 14,
        Sig::TERM => 15,
        _ => 0,
    }
}
