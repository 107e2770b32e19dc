//! One socket: requests go out, answers come back in any order, events go to who listens.
//!
//! A task owns the socket. It ends when the socket ends, when the NAS stops answering pings or leaves a
//! call without its answer, or when the last handle is dropped; every call that was sent then fails with
//! [`Kind::UnknownOutcome`], every call that was not with [`Kind::NotSent`].

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, broadcast, mpsc, oneshot, watch};
use tokio::time::Instant;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::{self, Message, Utf8Bytes};

use crate::metered::Meter;
use crate::wire::{Answered, Incoming, JOBS, Transport};
use crate::{Error, Kind, jobs};

/// TrueNAS runs 10 calls of a connection at once and refuses the 21st.
const IN_FLIGHT: usize = 10;
/// The largest message that TrueNAS accepts before the login.
const MESSAGE_BEFORE_LOGIN: usize = 8 * 1024;
/// The largest message that TrueNAS accepts after the login.
const MESSAGE: usize = 64 * 1024;
/// Events that may wait for a slow listener; one that loses some asks instead.
const EVENTS: usize = 256;
/// The largest answer that is read as it comes, whatever is in it.
const UNTYPED: usize = 256 * 1024;

/// The traits that a socket must have.
pub(crate) trait Socket: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Socket for S {}

/// The time that a socket may be silent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Silence {
    /// The pause between pings. The web server of the NAS cuts a connection on which it sees nothing
    /// for 60 seconds.
    pub(crate) ping: Duration,
    /// A NAS that sends nothing for this long, not even the answer to a ping, is gone.
    pub(crate) limit: Duration,
    /// One that leaves a call without its answer for this long is stuck, whatever else it sends. What takes
    /// longer is a job, whose number is answered at once.
    pub(crate) answer: Duration,
    /// The same before the login.
    pub(crate) login: Duration,
}

/// An open socket.
pub(crate) struct Session {
    transport: Transport,
    /// Names this socket in the ids of its requests: jobs remember the id of the request that made
    /// them, so a job can be recognised after the socket is gone.
    name: String,
    next: AtomicU64,
    limit: AtomicUsize,
    permits: Arc<Semaphore>,
    requests: mpsc::UnboundedSender<Outgoing>,
    jobs: broadcast::Sender<Value>,
    ended: watch::Receiver<Option<Error>>,
    meter: Meter,
}

struct Outgoing {
    id: String,
    method: String,
    text: String,
    reply: oneshot::Sender<Result<Answered, Error>>,
    /// Held until the answer comes, also when the caller has given up: the NAS still works on it.
    permit: OwnedSemaphorePermit,
}

struct Pending {
    method: String,
    due: Instant,
    limit: Duration,
    reply: oneshot::Sender<Result<Answered, Error>>,
    _permit: OwnedSemaphorePermit,
}

/// The half that owns the socket.
struct Worker {
    transport: Transport,
    socket: WebSocketStream<Box<dyn Socket>>,
    requests: mpsc::UnboundedReceiver<Outgoing>,
    pending: HashMap<String, Pending>,
    jobs: broadcast::Sender<Value>,
    silence: Silence,
    meter: Meter,
}

// === impl Session ===

impl Session {
    /// Takes over a socket after the websocket handshake.
    pub(crate) async fn open(
        transport: Transport,
        mut socket: WebSocketStream<Box<dyn Socket>>,
        meter: Meter,
        silence: Silence,
    ) -> Result<Self, Error> {
        if let Some(hello) = transport.hello() {
            let greeting = greet(transport, &mut socket, hello);
            tokio::time::timeout(silence.limit, greeting)
                .await
                .map_err(|_| Error::new(Kind::Unreachable, "the NAS does not answer"))??;
        }
        let (requests, queue) = mpsc::unbounded_channel();
        let (jobs, _) = broadcast::channel(EVENTS);
        let (end, ended) = watch::channel(None);
        let worker = Worker {
            transport,
            socket,
            requests: queue,
            pending: HashMap::new(),
            jobs: jobs.clone(),
            silence,
            meter: meter.clone(),
        };
        tokio::spawn(async move {
            let why = worker.run().await;
            // Its text may quote a secret, which only the client knows.
            tracing::debug!(error = ?why.kind(), "the connection to the NAS ended");
            end.send_replace(Some(why));
        });
        Ok(Self {
            transport,
            name: random_name()?,
            next: AtomicU64::new(1),
            limit: AtomicUsize::new(MESSAGE_BEFORE_LOGIN),
            permits: Arc::new(Semaphore::new(IN_FLIGHT)),
            requests,
            jobs,
            ended,
            meter,
        })
    }

    /// The envelopes that this socket carries.
    pub(crate) fn transport(&self) -> Transport {
        self.transport
    }

    /// From now on the NAS takes larger messages.
    pub(crate) fn logged_in(&self) {
        self.limit.store(MESSAGE, Ordering::Relaxed);
        self.meter.logged_in();
    }

    /// Why the socket ended, if it did.
    pub(crate) fn end(&self) -> Option<Error> {
        self.ended.borrow().clone()
    }

    /// Waits until the socket ends.
    pub(crate) async fn ended(&self) -> Error {
        let mut ended = self.ended.clone();
        let why = ended.wait_for(Option::is_some).await;
        let why = why.ok().and_then(|why| why.clone());
        why.unwrap_or_else(|| Error::new(Kind::Unreachable, "the connection was closed"))
    }

    /// The updates of jobs from now on.
    pub(crate) fn jobs(&self) -> broadcast::Receiver<Value> {
        self.jobs.subscribe()
    }

    /// An id for one request on this socket.
    pub(crate) fn request_id(&self) -> String {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        format!("{}-{number}", self.name)
    }

    /// Whether a request was made on this socket.
    pub(crate) fn made(&self, request: &str) -> bool {
        let number = request.strip_prefix(&self.name);
        number.is_some_and(|number| number.starts_with('-'))
    }

    /// Sends a call and waits for its short answer.
    pub(crate) async fn call(&self, method: &str, params: &[Value]) -> Result<Value, Error> {
        let answered = self.call_as(self.request_id(), method, params).await?;
        let read = answered.read(UNTYPED);
        read.map_err(|error| Error::protocol(error.to_string()).of(method))
    }

    /// Sends a call under an id that the caller remembers.
    pub(crate) async fn call_as(
        &self,
        id: String,
        method: &str,
        params: &[Value],
    ) -> Result<Answered, Error> {
        let text = self.transport.request(&id, method, params);
        let answered = self.send(id, method, text).await;
        answered.map_err(|error| error.of(method))
    }

    /// Subscribes to the jobs of the user.
    pub(crate) async fn subscribe_to_jobs(&self) -> Result<(), Error> {
        let id = self.request_id();
        let text = self.transport.subscribe(&id, JOBS);
        let subscribed = self.send(id, JOBS, text).await;
        subscribed.map(drop).map_err(|error| error.of(JOBS))
    }

    async fn send(&self, id: String, method: &str, text: String) -> Result<Answered, Error> {
        let limit = self.limit.load(Ordering::Relaxed);
        if text.len() > limit {
            let message = format!(
                "the request has {} bytes, the NAS takes {limit}",
                text.len()
            );
            return Err(Error::new(Kind::Invalid, message).nothing_done());
        }
        let permit = Arc::clone(&self.permits).acquire_owned();
        let permit = tokio::select! {
            permit = permit => permit.map_err(|_| not_sent(&self.ended_now()))?,
            why = self.ended() => return Err(not_sent(&why)),
        };
        let (reply, answer) = oneshot::channel();
        let outgoing = Outgoing {
            id,
            method: method.to_owned(),
            text,
            reply,
            permit,
        };
        if self.requests.send(outgoing).is_err() {
            return Err(not_sent(&self.ended().await));
        }
        match answer.await {
            Ok(outcome) => outcome,
            // The worker was lost with the request in its hands.
            Err(_) => Err(unknown(&self.ended_now())),
        }
    }

    fn ended_now(&self) -> Error {
        let closed = || Error::new(Kind::Unreachable, "the connection was closed");
        self.end().unwrap_or_else(closed)
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("transport", &self.transport)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

// === impl Worker ===

impl Worker {
    async fn run(mut self) -> Error {
        let why = self.serve().await;
        // From here on nothing more is accepted; what is still queued was never sent.
        self.requests.close();
        while let Ok(outgoing) = self.requests.try_recv() {
            let _ = outgoing.reply.send(Err(not_sent(&why)));
        }
        for (_, pending) in self.pending.drain() {
            let _ = pending.reply.send(Err(unknown(&why)));
        }
        why
    }

    async fn serve(&mut self) -> Error {
        let mut heard = Instant::now();
        let mut ping = tokio::time::interval_at(heard + self.silence.ping, self.silence.ping);
        loop {
            let late = passing(self.late());
            tokio::select! {
                message = self.socket.next() => {
                    heard = Instant::now();
                    if let Err(why) = self.receive(message) {
                        return why;
                    }
                }
                request = self.requests.recv() => {
                    let Some(request) = request else {
                        let _ = self.socket.close(None).await;
                        return Error::new(Kind::Unreachable, "the connection was closed");
                    };
                    if let Err(why) = self.send(request).await {
                        return why;
                    }
                }
                why = late => return why,
                _ = ping.tick() => {
                    if heard.elapsed() >= self.silence.limit {
                        let seconds = heard.elapsed().as_secs();
                        let message = format!("the NAS has been silent for {seconds} s");
                        return Error::new(Kind::Unreachable, message);
                    }
                    if let Err(why) = self.write(Message::Ping(Vec::new().into())).await {
                        return why;
                    }
                }
            }
        }
    }

    /// When the socket is given up unless something comes before, and why.
    fn late(&self) -> Option<(Instant, Error)> {
        let stuck = |why: String| Error::new(Kind::Unreachable, why);
        let first = self.pending.values().min_by_key(|call| call.due);
        let call = first.map(|call| {
            let (method, seconds) = (&call.method, call.limit.as_secs());
            let why = format!("the NAS has not answered {method} for {seconds} s");
            (call.due, stuck(why))
        });
        let large = self.meter.due().map(|due| {
            let why = "the NAS does not get on with a large answer";
            (due, stuck(why.to_owned()))
        });
        call.into_iter().chain(large).min_by_key(|(due, _)| *due)
    }

    async fn send(&mut self, request: Outgoing) -> Result<(), Error> {
        // The caller gave up before anything was sent.
        if request.reply.is_closed() {
            return Ok(());
        }
        let limit = if self.meter.is_logged_in() {
            self.silence.answer
        } else {
            self.silence.login
        };
        let pending = Pending {
            method: request.method,
            due: Instant::now() + limit,
            limit,
            reply: request.reply,
            _permit: request.permit,
        };
        // Registered before the first byte: a message that was written in part may still arrive.
        self.pending.insert(request.id, pending);
        self.write(Message::text(request.text)).await
    }

    async fn write(&mut self, message: Message) -> Result<(), Error> {
        let limit = self.silence.limit;
        match tokio::time::timeout(limit, self.socket.send(message)).await {
            Ok(sent) => sent.map_err(|error| lost(&error)),
            Err(_) => Err(Error::new(Kind::Unreachable, "the NAS takes no more data")),
        }
    }

    fn receive(
        &mut self,
        message: Option<Result<Message, tungstenite::Error>>,
    ) -> Result<(), Error> {
        let Some(text) = text_of(message)? else {
            return Ok(());
        };
        let reserved = self.meter.is_whole();
        match self.transport.read(&text)? {
            Incoming::Answer { id, failure } => {
                if let Some(pending) = self.pending.remove(&id) {
                    let _ = pending.reply.send(match failure {
                        Some(error) => Err(error),
                        None => Ok(Answered::new(text, reserved)),
                    });
                }
            }
            Incoming::Event { collection, fields } => {
                if collection == JOBS
                    && let Some(fields) = jobs::of_event(fields)
                {
                    // No listener is no fault.
                    let _ = self.jobs.send(fields);
                }
            }
            Incoming::Failed(error) => return Err(error),
            Incoming::Connected | Incoming::Other => {}
        }
        Ok(())
    }
}

/// Waits until a moment passes, if there is one, and says what it means.
async fn passing(late: Option<(Instant, Error)>) -> Error {
    match late {
        Some((due, why)) => {
            tokio::time::sleep_until(due).await;
            why
        }
        None => std::future::pending().await,
    }
}

async fn greet(
    transport: Transport,
    socket: &mut WebSocketStream<Box<dyn Socket>>,
    hello: String,
) -> Result<(), Error> {
    let sent = socket.send(Message::text(hello)).await;
    sent.map_err(|error| lost(&error))?;
    loop {
        if let Some(text) = text_of(socket.next().await)? {
            match transport.read(&text)? {
                Incoming::Connected => return Ok(()),
                Incoming::Failed(error) => return Err(error),
                _ => {}
            }
        }
    }
}

fn text_of(
    message: Option<Result<Message, tungstenite::Error>>,
) -> Result<Option<Utf8Bytes>, Error> {
    match message {
        Some(Ok(Message::Text(text))) => Ok(Some(text)),
        Some(Ok(Message::Close(frame))) => Err(closed(frame.as_ref())),
        Some(Ok(_)) => Ok(None),
        Some(Err(error)) => Err(lost(&error)),
        None => Err(Error::new(
            Kind::Unreachable,
            "the NAS closed the connection",
        )),
    }
}

fn closed(frame: Option<&CloseFrame>) -> Error {
    let why = frame.map(|frame| format!(": {} ({})", frame.reason, u16::from(frame.code)));
    let message = format!("the NAS closed the connection{}", why.unwrap_or_default());
    Error::new(Kind::Unreachable, message)
}

fn lost(error: &tungstenite::Error) -> Error {
    Error::new(
        Kind::Unreachable,
        format!("the connection was lost: {error}"),
    )
}

fn not_sent(why: &Error) -> Error {
    let message = format!("the call was not sent: {}", why.message());
    Error::new(Kind::NotSent, message)
}

fn unknown(why: &Error) -> Error {
    let message = format!("the call was sent and not answered: {}", why.message());
    Error::new(Kind::UnknownOutcome, message)
}

/// Different for every socket of every process.
fn random_name() -> Result<String, Error> {
    let mut bytes = [0_u8; 8];
    aws_lc_rs::rand::fill(&mut bytes)
        .map_err(|_| Error::new(Kind::Unreachable, "no random numbers are available"))?;
    Ok(format!("csi-{:016x}", u64::from_be_bytes(bytes)))
}

#[cfg(test)]
mod tests;
