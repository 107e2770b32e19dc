//! One connection to the machine, and one run of a script over it.
//!
//! A shell that has run a script waits for the next one, so that a script costs one round trip: to open
//! a channel is one of its own, and a server takes no input before a command has begun, which is another
//! one. How a script ended is known only if that was said; a channel that closes before leaves it unknown.

mod dial;
mod stream;

use std::borrow::Cow;
use std::error::Error;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use exec::Status;
use exec::script::{Frame, Framed, REMOTE_COMMAND, Told};
use russh::client::{self, Handler, Msg};
use russh::keys::Algorithm;
use russh::{Channel, ChannelMsg, ChannelReadHalf, ChannelWriteHalf, Disconnect, Sig};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::{Instant, timeout, timeout_at};

pub(crate) use self::stream::Streams;
use crate::auth::{self, AuthError};
use crate::host_key::Refusal;
use crate::settings::Settings;

/// Signs of life that may stay unanswered.
const KEEPALIVES: usize = 3;
/// How long saying goodbye to a channel may take.
const FAREWELL: Duration = Duration::from_secs(1);
/// A shell that had no script for so long is let go when another one has run its own.
const IDLE: Duration = Duration::from_mins(1);

/// Why the machine could not be reached. Everybody who waited for the attempt has a copy.
#[derive(Debug, Clone, thiserror::Error)]
#[error("connect to {place}")]
pub struct ConnectError {
    place: String,
    #[source]
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

/// One connection that is logged in.
pub(crate) struct Session {
    handle: client::Handle<Client>,
    /// The sessions that the server allows at once, as far as is known.
    pub(crate) turns: Arc<Semaphore>,
    /// How many turns there are in all.
    limit: AtomicUsize,
    retired: AtomicBool,
    /// Shells that wait for a script, and since when. The one that was used last is the last.
    idle: Mutex<Vec<(Instant, Waiting)>>,
}

/// A shell that waits for a script, and is listened to meanwhile. Dropped, its channel is closed.
struct Waiting(oneshot::Sender<oneshot::Sender<Ends>>);

/// Both ends of a channel. Dropped, it is closed.
struct Ends {
    reader: ChannelReadHalf,
    line: Line,
    /// What the shell knows by now.
    told: Told,
}

/// What became of a script.
#[derive(Debug)]
pub(crate) enum Ran {
    /// It ended, and the server said how.
    Ended(Answer),
    /// It took too long; whether it still runs is not known.
    Late,
    /// It printed too much and was given up.
    TooMuch,
    /// The server would not open a session: nothing was sent.
    Full,
    /// No session was opened in time: nothing was sent.
    Unopened,
    /// The connection was gone before anything was sent.
    Gone,
    /// The server would not run a shell.
    Refused,
    /// It was sent, and how it ended was not seen.
    Lost(String),
}

/// What a script printed, and how it ended.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: Status,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
}

/// What the server may tell this side of a connection.
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

impl ConnectError {
    /// It and its causes in one line.
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
            turns: Arc::new(Semaphore::new(settings.sessions.max(1))),
            limit: AtomicUsize::new(settings.sessions.max(1)),
            retired: AtomicBool::new(false),
            idle: Mutex::default(),
        })
    }

    /// Whether the connection is known to be gone, or is not to be used any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.retired.load(Ordering::Relaxed) || self.handle.is_closed()
    }

    /// Closes the connection. What runs there yet does so unseen.
    pub(crate) async fn retire(&self) {
        self.retired.store(true, Ordering::Relaxed);
        let bye = self.handle.disconnect(Disconnect::ByApplication, "", "");
        let _ = timeout(FAREWELL, bye).await;
    }

    /// Runs a script to its end, within `deadline` and with at most `cap` bytes of output.
    pub(crate) async fn run(
        self: &Arc<Self>,
        script: &Framed,
        deadline: Instant,
        cap: usize,
    ) -> Ran {
        let (mut ends, has_shell) = match timeout_at(deadline, self.channel()).await {
            Ok(Ok(ends)) => ends,
            Ok(Err(russh::Error::ChannelOpenFailure(_))) => return Ran::Full,
            Ok(Err(_)) => return Ran::Gone,
            Err(_) => return Ran::Unopened,
        };
        let mut heard = Heard::of(script.frame(), cap);
        let exchange = exchange(&mut ends, has_shell, script, &mut heard);
        let ran = timeout_at(deadline, exchange).await.unwrap_or(Ran::Late);
        // Before anybody else has the turn: the server may have room for no more.
        if matches!(ran, Ran::Ended(_)) && !heard.closed {
            self.keep(ends).await;
        } else {
            ends.give_up().await;
        }
        ran
    }

    /// Allows one turn less; `false` if there is only one.
    pub(crate) fn lose_turn(&self) -> bool {
        let fewer = |limit: usize| (limit > 1).then(|| limit - 1);
        self.limit
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer)
            .is_ok()
    }

    /// A channel for a script: one whose shell waits for it already, or one without a shell.
    async fn channel(self: &Arc<Self>) -> Result<(Ends, bool), russh::Error> {
        loop {
            let last = self.idle().pop();
            let Some((_, waiting)) = last else {
                return Ok((self.open_channel().await?, false));
            };
            if let Some(ends) = waiting.taken().await {
                return Ok((ends, true));
            }
        }
    }

    /// Keeps a shell for the next script, and lets go of those that had none for long.
    async fn keep(&self, ends: Ends) {
        let now = Instant::now();
        let is_old = |(since, _): &mut (Instant, _)| now.duration_since(*since) >= IDLE;
        let old: Vec<_> = {
            let mut idle = self.idle();
            let old = idle.extract_if(.., is_old).collect();
            idle.push((now, Waiting::with(ends)));
            old
        };
        for (_, shell) in old {
            if let Some(ends) = shell.taken().await {
                ends.give_up().await;
            }
        }
    }

    /// A channel that nothing runs on yet.
    ///
    /// The question goes to its end even if nobody waits for it any more: a channel that the server
    /// opened and nobody closes would take one of its few sessions for as long as the connection lives.
    async fn open_channel(self: &Arc<Self>) -> Result<Ends, russh::Error> {
        let session = Arc::clone(self);
        let opening = tokio::spawn(async move {
            let opened = session.handle.channel_open_session().await;
            opened.map(Ends::of)
        });
        opening.await.unwrap_or(Err(russh::Error::Disconnect))
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<(Instant, Waiting)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The way to a script. Dropped half-way, it closes its channel all the same.
struct Line(Option<ChannelWriteHalf<Msg>>);

/// What a script has said so far.
struct Heard {
    frame: Frame,
    cap: usize,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    status: Option<Status>,
    refused: bool,
    /// The shell ended, and not only the script.
    closed: bool,
}

/// Sends the script and reads until it has ended. The two go side by side: a shell that answers before
/// it has read everything must not block itself.
async fn exchange(ends: &mut Ends, has_shell: bool, script: &Framed, heard: &mut Heard) -> Ran {
    let Ends { reader, line, told } = ends;
    if !has_shell && line.begin().await.is_err() {
        return Ran::Gone;
    }
    let Some(writer) = &line.0 else {
        return Ran::Gone;
    };
    let send = async {
        // If it cannot be sent, the reading half hears why.
        let _ = writer.data(&script.expose_to(told)[..]).await;
        std::future::pending::<Ran>().await
    };
    tokio::select! {
        never = send => never,
        ran = heard.read(reader) => ran,
    }
}

// === impl Heard ===

impl Heard {
    fn of(frame: Frame, cap: usize) -> Self {
        Self {
            frame,
            cap: cap.saturating_add(Frame::LENGTH),
            stdout: Vec::new(),
            stderr: Vec::new(),
            status: None,
            refused: false,
            closed: false,
        }
    }

    async fn read(&mut self, reader: &mut ChannelReadHalf) -> Ran {
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
                return Ran::TooMuch;
            }
            if let Some(status) = self.frame.end(&mut self.stdout, &mut self.stderr) {
                return self.answer(status);
            }
        }
        self.closed = true;
        match self.status.take() {
            Some(status) => self.answer(status),
            None if self.refused => Ran::Refused,
            None => Ran::Lost("the channel was closed without a status".to_owned()),
        }
    }

    fn answer(&mut self, status: Status) -> Ran {
        Ran::Ended(Answer {
            status,
            stdout: std::mem::take(&mut self.stdout),
            stderr: std::mem::take(&mut self.stderr),
        })
    }
}

// === impl Ends ===

impl Ends {
    fn of(channel: Channel<Msg>) -> Self {
        let (reader, writer) = channel.split();
        let line = Line(Some(writer));
        Self {
            reader,
            line,
            told: Told::default(),
        }
    }

    /// Closes the channel; a script that still runs is asked to stop. Nobody reads any more, so that the
    /// connection does not wait for somebody who does.
    async fn give_up(self) {
        let Self { reader, line, .. } = self;
        drop(reader);
        line.give_up().await;
    }

    /// Ends when the shell has ended, or has said something that nobody asked it for.
    async fn stirs(&mut self) {
        while let Some(ChannelMsg::WindowAdjusted { .. }) = self.reader.wait().await {}
    }
}

// === impl Waiting ===

impl Waiting {
    /// What a script has left running must neither speak into the answer of the next one, nor fill the
    /// channel until the whole connection waits for it to be read.
    fn with(mut ends: Ends) -> Self {
        let (taker, mut taken) = oneshot::channel::<oneshot::Sender<Ends>>();
        tokio::spawn(async move {
            let back = tokio::select! {
                biased;
                () = ends.stirs() => None,
                back = &mut taken => Some(back),
            };
            match back {
                Some(Ok(back)) => drop(back.send(ends)),
                // Whoever takes it meanwhile waits for the end of its channel before opening another one.
                _ => ends.give_up().await,
            }
            drop(taken);
        });
        Self(taker)
    }

    /// The shell, if it still waits.
    async fn taken(self) -> Option<Ends> {
        let (back, ends) = oneshot::channel();
        self.0.send(back).ok()?;
        ends.await.ok()
    }
}

// === impl Line ===

impl Line {
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

impl Drop for Line {
    fn drop(&mut self) {
        if let (Some(writer), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            runtime.spawn(give_up(writer));
        }
    }
}

/// Asks a script that may still run to stop, and closes its channel. To one that has ended it means
/// nothing; an OpenSSH server passes no signals on to what root has started, so that it may go on.
async fn give_up(writer: ChannelWriteHalf<Msg>) {
    let bye = async {
        let _ = writer.signal(Sig::TERM).await;
        let _ = writer.close().await;
    };
    let _ = timeout(FAREWELL, bye).await;
}

fn protocol(settings: &Settings) -> client::Config {
    let mut config = client::Config {
        keepalive_interval: Some(settings.keepalive),
        keepalive_max: KEEPALIVES,
        inactivity_timeout: None,
        nodelay: true,
        ..client::Config::default()
    };
    // A server with several keys shows one of those that can be judged.
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

/// The number of a signal on the systems that we speak to.
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
