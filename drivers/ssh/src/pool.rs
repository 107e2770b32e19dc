//! The connections to one machine: as few as possible, opened on demand.
//!
//! At most one attempt to connect runs at a time, in its own task. A caller waits for that attempt or for a permit on
//! an open connection, whichever comes first. So a server that accepts no further connection slows calls down but
//! fails none. Only if no connection is open, all waiting callers get the error of the attempt. After a failure the
//! next attempt waits, each time longer, so that a rebooting machine is not flooded and a wrong password does not
//! lock the account. The limits of the server are learnt from its refusals. When all permits are in use, another
//! connection is opened only after none became free for a while, or after a caller waited too long.

mod queue;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use exec::Backoff;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{Instant, sleep_until};
use tracing::Instrument as _;

use self::queue::Queue;
use crate::session::{ConnectError, Session};
use crate::settings::Settings;

/// The pauses after failures to connect. Servers lock accounts after a few failures a minute, and a machine that starts
/// again is back soon.
const LOGINS: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(15));
/// Another connection is opened after no permit became free for this long. Most scripts end within it, and a login
/// costs as much.
const BUSY_FOR: Duration = Duration::from_secs(1);
/// Another connection is opened if a caller has waited this long. Short scripts of others must not keep it out.
const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// A connection is replaced after its last permit was refused this often in one call.
const REFUSALS_BEFORE_RECONNECT: u32 = 3;

/// The connections to one machine.
#[derive(Debug)]
pub(crate) struct Pool {
    settings: Arc<Settings>,
    queue: Queue,
    state: Mutex<State>,
    /// Changes whenever an attempt to connect starts.
    attempts: watch::Sender<()>,
}

struct State {
    sessions: Vec<Arc<Session>>,
    /// The last attempt; open for as long as it is under way.
    attempt: Option<Attempt>,
    /// The pauses after failures that follow each other.
    backoff: Backoff,
    not_before: Option<Instant>,
}

/// The sessions that a server refused to one call while the limit was one.
#[derive(Debug)]
pub(crate) struct Refusals {
    count: u32,
    backoff: Backoff,
}

/// The permit to run one script on a connection.
pub(crate) struct SessionPermit {
    pub(crate) session: Arc<Session>,
    permit: OwnedSemaphorePermit,
}

/// An attempt to connect. The channel is closed when the attempt is over; after a failure it holds the error.
type Attempt = watch::Receiver<Option<ConnectError>>;

/// Opens a connection.
trait Opening: Future<Output = Result<Session, ConnectError>> + Send + 'static {}

impl<F> Opening for F where F: Future<Output = Result<Session, ConnectError>> + Send + 'static {}

/// Ends an attempt when it is finished or dropped.
struct AttemptGuard {
    pool: Arc<Pool>,
    /// `None` once it has ended.
    outcome: Option<watch::Sender<Option<ConnectError>>>,
}

/// The result of the search for a free permit.
enum Search {
    Permit(SessionPermit),
    /// All permits of these connections are in use; when to look again.
    Busy(Vec<Arc<Session>>, NextConnection),
}

/// When another connection may be opened.
enum NextConnection {
    /// The maximum number of connections is open.
    Never,
    /// The last failure imposes a pause.
    After(Instant),
    Attempt(Attempt),
}

// === impl Pool ===

impl Pool {
    pub(crate) fn new(settings: Settings) -> Self {
        Self {
            settings: Arc::new(settings),
            queue: Queue::default(),
            state: Mutex::default(),
            attempts: watch::Sender::default(),
        }
    }

    pub(crate) fn settings(&self) -> &Arc<Settings> {
        &self.settings
    }

    /// Waits for a permit on any connection. Older calls go first. The caller bounds the wait.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        since: Instant,
    ) -> Result<SessionPermit, ConnectError> {
        let joined = Instant::now();
        let entry = self.queue.enter(since);
        tokio::select! {
            biased;
            // Checked first, so that no further attempt starts.
            error = self.unreachable() => return Err(error),
            () = entry.wait_until_first() => {}
        }
        let busy_at = (Instant::now() + BUSY_FOR).min(joined + LONGEST_WAIT);
        loop {
            let (sessions, more) = match self.find(busy_at) {
                Search::Permit(permit) => return Ok(permit),
                Search::Busy(sessions, more) => (sessions, more),
            };
            tokio::select! {
                biased;
                Some(permit) = next_permit(&sessions) => {
                    // A closed connection is removed in the next round.
                    if !permit.session.is_closed() {
                        return Ok(permit);
                    }
                }
                next_number = more.wait() => {
                    if let Err(error) = next_number
                        && sessions.iter().all(|session| session.is_closed())
                    {
                        return Err(error);
                    }
                }
            }
        }
    }

    /// Returns the error when an attempt fails while no connection is open.
    async fn unreachable(&self) -> ConnectError {
        let mut attempts = self.attempts.subscribe();
        loop {
            let attempt = self.state().current_attempt();
            if let Some(mut attempt) = attempt
                // Copied, because the value is locked.
                && let Ok(Some(error)) = attempt.wait_for(Option::is_some).await.map(|it| it.clone())
                && self
                    .state()
                    .sessions
                    .iter()
                    .all(|session| session.is_closed())
            {
                return error;
            }
            if attempts.changed().await.is_err() {
                // The sender belongs to this pool.
                std::future::pending::<()>().await;
            }
        }
    }

    /// A free permit, or what to wait for. Starts an attempt if one more connection would help, which is the case
    /// from `busy_at` on.
    fn find(self: &Arc<Self>, busy_at: Instant) -> Search {
        let mut state = self.state();
        if let Some(permit) = state.free() {
            return Search::Permit(permit);
        }
        let more = if state.sessions.len() >= self.settings.connections.max(1) {
            NextConnection::Never
        } else if let Some(attempt) = state.current_attempt() {
            NextConnection::Attempt(attempt)
        } else if let Some(time) = state.not_before.filter(|time| *time > Instant::now()) {
            NextConnection::After(time)
        } else if !state.sessions.is_empty() && Instant::now() < busy_at {
            NextConnection::After(busy_at)
        } else {
            let attempt = state.attempt.insert(self.attempt()).clone();
            self.attempts.send_replace(());
            NextConnection::Attempt(attempt)
        };
        Search::Busy(state.sessions.clone(), more)
    }

    /// Starts to open one more connection.
    ///
    /// It continues even if no caller waits for it any more: the next call can use it, and servers punish aborted
    /// logins.
    fn attempt(self: &Arc<Self>) -> Attempt {
        let settings = Arc::clone(&self.settings);
        self.start_attempt(async move { Session::open(&settings).await })
    }

    fn start_attempt(self: &Arc<Self>, opening: impl Opening) -> Attempt {
        let (outcome, attempt) = watch::channel(None);
        let pool = Arc::clone(self);
        let work = async move {
            // Created when the task runs: a task that never runs is dropped while the state is locked.
            let guard = AttemptGuard {
                pool,
                outcome: Some(outcome),
            };
            let opened = opening.await;
            guard.finish(opened);
        };
        tokio::spawn(work.in_current_span());
        attempt
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The next free permit of any of the connections, if there are any.
async fn next_permit(sessions: &[Arc<Session>]) -> Option<SessionPermit> {
    let waits = sessions.iter().cloned().map(|session| async move {
        let permit = Arc::clone(&session.permits).acquire_owned().await;
        // The semaphores are never closed.
        permit.ok().map(|permit| SessionPermit { session, permit })
    });
    let mut waits: FuturesUnordered<_> = waits.collect();
    waits.next().await.flatten()
}

// === impl NextConnection ===

impl NextConnection {
    /// Waits until it is time to look again. Returns the error of the attempt, if it failed.
    async fn wait(self) -> Result<(), ConnectError> {
        match self {
            Self::Never => std::future::pending().await,
            Self::After(time) => {
                sleep_until(time).await;
                Ok(())
            }
            Self::Attempt(mut attempt) => match attempt.wait_for(Option::is_some).await {
                Ok(error) => error.clone().map_or(Ok(()), Err),
                Err(_) => Ok(()),
            },
        }
    }
}

// === impl AttemptGuard ===

impl AttemptGuard {
    fn finish(mut self, opened: Result<Session, ConnectError>) {
        // From here on other tasks see the result and no attempt in progress.
        let mut state = self.pool.state();
        let outcome = self.outcome.take();
        match opened {
            Ok(session) => {
                state.succeed(session);
                tracing::info!(place = self.pool.settings.place(), "connected");
            }
            Err(error) => {
                state.fail();
                if !state.sessions.is_empty() {
                    // No call reports this error.
                    tracing::info!(error = error.chain(), "the open connections have to do");
                }
                if let Some(outcome) = &outcome {
                    outcome.send_replace(Some(error));
                }
            }
        }
        drop(outcome);
    }
}

impl Drop for AttemptGuard {
    fn drop(&mut self) {
        // The task panicked. Without a pause the next attempt could panic as well, and again.
        if self.outcome.is_some() {
            let mut state = self.pool.state();
            state.fail();
            self.outcome = None;
        }
    }
}

// === impl State ===

impl Default for State {
    fn default() -> Self {
        Self {
            sessions: Vec::new(),
            attempt: None,
            backoff: LOGINS,
            not_before: None,
        }
    }
}

impl State {
    fn free(&mut self) -> Option<SessionPermit> {
        self.sessions.retain(|session| !session.is_closed());
        self.sessions.iter().find_map(|session| {
            let permit = Arc::clone(&session.permits).try_acquire_owned().ok()?;
            let session = Arc::clone(session);
            Some(SessionPermit { session, permit })
        })
    }

    fn current_attempt(&self) -> Option<Attempt> {
        let is_open = |attempt: &&Attempt| attempt.has_changed().is_ok();
        self.attempt.as_ref().filter(is_open).cloned()
    }

    fn succeed(&mut self, session: Session) {
        self.backoff = LOGINS;
        self.not_before = None;
        self.sessions.push(Arc::new(session));
    }

    fn fail(&mut self) {
        self.not_before = Some(Instant::now() + self.backoff.pause());
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("sessions", &self.sessions.len())
            .field("backoff", &self.backoff)
            .finish_non_exhaustive()
    }
}

// === impl Refusals ===

impl Default for Refusals {
    fn default() -> Self {
        Self {
            count: 0,
            backoff: LOGINS,
        }
    }
}

// === impl SessionPermit ===

impl SessionPermit {
    /// The server allows fewer sessions than assumed: lowers the limit by one. If the limit is one already, the
    /// session is probably still used by a script that was given up. It gets some time to end; then another
    /// connection replaces this one.
    pub(crate) async fn reduce_limit(self, refusals: &mut Refusals) {
        let Self { session, permit } = self;
        if session.lower_limit() {
            permit.forget();
            return;
        }
        refusals.count += 1;
        // Once per call: a server that never opens a session is not flooded with logins.
        if refusals.count == REFUSALS_BEFORE_RECONNECT {
            // Its only permit is this one, so no other script runs on it.
            session.retire().await;
        } else {
            sleep_until(Instant::now() + refusals.backoff.pause()).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_attempt_that_met_a_defect_has_failed_and_the_next_one_waits_longer() {
        let pool = Arc::new(Pool::new(Settings::new("nas", "csi")));
        for failures in 1..3 {
            let mut attempt = pool.start_attempt(async { panic!("a defect, on purpose") });
            pool.state().attempt = Some(attempt.clone());
            let ended = attempt.changed().await;
            assert!(ended.is_err(), "there is nothing that it could tell");
            let now = Instant::now();
            let Search::Busy(_, NextConnection::After(time)) = pool.find(now) else {
                panic!("the next attempt does not wait");
            };
            let least = Duration::from_millis(200) * failures;
            let pause = time - now;
            assert!(pause >= least && pause < least * 5 / 4, "{pause:?}");
            sleep_until(time).await;
        }
    }
}
