//! The connections to one machine: as few as do, opened when they are needed.
//!
//! One attempt at a time connects, in a task of its own. Whoever needs a turn waits for its end and
//! for a turn on the open connections, whichever comes first: a server that admits no further
//! connection makes calls slower, and fails none. Only where no connection is open, the error of the
//! attempt is that of everybody who waited for it. After a failure the next attempt has to wait, each
//! time longer, so that a machine that starts again is not stormed and a wrong password locks nobody
//! out. What the server allows is learnt from its refusals. Where all turns are in use one is free in a moment;
//! only if none is for a while, or somebody has waited for long, one more connection is opened.

mod line;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{Instant, sleep_until};
use tracing::Instrument as _;

use self::line::Line;
use crate::session::{ConnectError, Session};
use crate::settings::Settings;

/// The pause after the first failure; each further one doubles it.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(15);
/// So long nobody had a turn before there is one more connection.
const CROWDED: Duration = Duration::from_secs(1);
/// Nor does anybody wait for longer than this before there is one.
const LATE: Duration = Duration::from_secs(5);
/// So many refusals of its last turn in one call, and a connection is replaced.
const PATIENCE: u32 = 3;

/// The connections to one machine.
#[derive(Debug)]
pub(crate) struct Pool {
    settings: Arc<Settings>,
    line: Line,
    state: Mutex<State>,
    /// Changes whenever an attempt to connect begins.
    attempts: watch::Sender<()>,
}

#[derive(Default)]
struct State {
    sessions: Vec<Arc<Session>>,
    /// The last attempt; open for as long as it is under way.
    attempt: Option<Attempt>,
    failures: u32,
    not_before: Option<Instant>,
}

/// The right to run one script on a connection.
pub(crate) struct Turn {
    pub(crate) session: Arc<Session>,
    permit: OwnedSemaphorePermit,
}

/// An attempt to connect. It is closed when it is over, and has left its error if it failed.
type Attempt = watch::Receiver<Option<ConnectError>>;

/// What opens a connection.
trait Opening: Future<Output = Result<Session, ConnectError>> + Send + 'static {}

impl<F> Opening for F where F: Future<Output = Result<Session, ConnectError>> + Send + 'static {}

/// An attempt as long as it is under way.
struct UnderWay {
    pool: Arc<Pool>,
    /// `None` once it has ended.
    outcome: Option<watch::Sender<Option<ConnectError>>>,
}

/// What the search for a free turn found.
enum Found {
    Turn(Turn),
    /// These connections are in use, and what may come besides them.
    Busy(Vec<Arc<Session>>, More),
}

/// When there may be one more connection.
enum More {
    /// There are as many as there may be.
    Never,
    /// The last failure asks for a pause.
    After(Instant),
    Attempt(Attempt),
}

// === impl Pool ===

impl Pool {
    pub(crate) fn new(settings: Settings) -> Self {
        Self {
            settings: Arc::new(settings),
            line: Line::default(),
            state: Mutex::default(),
            attempts: watch::Sender::default(),
        }
    }

    pub(crate) fn settings(&self) -> &Arc<Settings> {
        &self.settings
    }

    /// Waits for a turn on any connection, behind those that began earlier. The caller bounds the wait.
    pub(crate) async fn turn(self: &Arc<Self>, since: Instant) -> Result<Turn, ConnectError> {
        let joined = Instant::now();
        let place = self.line.join(since);
        tokio::select! {
            biased;
            // Before anybody begins another attempt.
            error = self.unreachable() => return Err(error),
            () = place.first() => {}
        }
        let crowded_at = (Instant::now() + CROWDED).min(joined + LATE);
        loop {
            let (sessions, more) = match self.find(crowded_at) {
                Found::Turn(turn) => return Ok(turn),
                Found::Busy(sessions, more) => (sessions, more),
            };
            tokio::select! {
                biased;
                Some(turn) = freed(&sessions) => {
                    // A closed connection is sorted out in the next round.
                    if !turn.session.is_closed() {
                        return Ok(turn);
                    }
                }
                came = more.comes() => {
                    if let Err(error) = came
                        && sessions.iter().all(|session| session.is_closed())
                    {
                        return Err(error);
                    }
                }
            }
        }
    }

    /// Ends when an attempt fails while no connection is open.
    async fn unreachable(&self) -> ConnectError {
        let mut attempts = self.attempts.subscribe();
        loop {
            let attempt = self.state().under_way();
            if let Some(mut attempt) = attempt
                // A copy: what is looked at is locked.
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
                // It is of this pool.
                std::future::pending::<()>().await;
            }
        }
    }

    /// A free turn, or what to wait for; begins an attempt if one more connection would do. From `crowded_at`
    /// on it would.
    fn find(self: &Arc<Self>, crowded_at: Instant) -> Found {
        let mut state = self.state();
        if let Some(turn) = state.free() {
            return Found::Turn(turn);
        }
        let more = if state.sessions.len() >= self.settings.connections.max(1) {
            More::Never
        } else if let Some(attempt) = state.under_way() {
            More::Attempt(attempt)
        } else if let Some(time) = state.not_before.filter(|time| *time > Instant::now()) {
            More::After(time)
        } else if !state.sessions.is_empty() && Instant::now() < crowded_at {
            More::After(crowded_at)
        } else {
            let attempt = state.attempt.insert(self.attempt()).clone();
            self.attempts.send_replace(());
            More::Attempt(attempt)
        };
        Found::Busy(state.sessions.clone(), more)
    }

    /// Begins to open one more connection.
    ///
    /// It goes to its end even if nobody waits for it any more: the next call has use for it, and
    /// servers punish logins that are broken off.
    fn attempt(self: &Arc<Self>) -> Attempt {
        let settings = Arc::clone(&self.settings);
        self.begin(async move { Session::open(&settings).await })
    }

    fn begin(self: &Arc<Self>, opening: impl Opening) -> Attempt {
        let (outcome, attempt) = watch::channel(None);
        let pool = Arc::clone(self);
        let work = async move {
            // Not before it runs: one that never does is dropped while the state is locked.
            let under_way = UnderWay {
                pool,
                outcome: Some(outcome),
            };
            let opened = opening.await;
            under_way.end(opened);
        };
        tokio::spawn(work.in_current_span());
        attempt
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The next turn on any of the connections, if there are any.
async fn freed(sessions: &[Arc<Session>]) -> Option<Turn> {
    let waits = sessions.iter().cloned().map(|session| async move {
        let permit = Arc::clone(&session.turns).acquire_owned().await;
        // Closed semaphores do not exist.
        permit.ok().map(|permit| Turn { session, permit })
    });
    let mut waits: FuturesUnordered<_> = waits.collect();
    waits.next().await.flatten()
}

// === impl More ===

impl More {
    /// Ends when it is time to look again, or with the error of the attempt.
    async fn comes(self) -> Result<(), ConnectError> {
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

// === impl UnderWay ===

impl UnderWay {
    fn end(mut self, opened: Result<Session, ConnectError>) {
        // Whoever looks from now on finds what became of it, and nothing under way.
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
                    // No call tells it.
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

impl Drop for UnderWay {
    fn drop(&mut self) {
        // It met a defect: the next one would meet it as well, and the next, without a pause.
        if self.outcome.is_some() {
            let mut state = self.pool.state();
            state.fail();
            self.outcome = None;
        }
    }
}

// === impl State ===

impl State {
    fn free(&mut self) -> Option<Turn> {
        self.sessions.retain(|session| !session.is_closed());
        self.sessions.iter().find_map(|session| {
            let permit = Arc::clone(&session.turns).try_acquire_owned().ok()?;
            let session = Arc::clone(session);
            Some(Turn { session, permit })
        })
    }

    fn under_way(&self) -> Option<Attempt> {
        let is_open = |attempt: &&Attempt| attempt.has_changed().is_ok();
        self.attempt.as_ref().filter(is_open).cloned()
    }

    fn succeed(&mut self, session: Session) {
        self.failures = 0;
        self.not_before = None;
        self.sessions.push(Arc::new(session));
    }

    fn fail(&mut self) {
        let pause = FIRST_PAUSE.saturating_mul(1 << self.failures.min(16));
        self.failures = self.failures.saturating_add(1);
        self.not_before = Some(Instant::now() + pause.min(LONGEST_PAUSE));
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("sessions", &self.sessions.len())
            .field("failures", &self.failures)
            .finish_non_exhaustive()
    }
}

// === impl Turn ===

impl Turn {
    /// The server has no room for as many sessions as were thought: from now on there is one turn
    /// less. What keeps the last one from being used is a script that was given up: some time is left
    /// to it to end, and then another connection takes the place of this one.
    pub(crate) async fn give_up(self, refusals: &mut u32) {
        let Self { session, permit } = self;
        if session.lose_turn() {
            permit.forget();
            return;
        }
        *refusals += 1;
        // Once in a call: a server that never opens a session is not stormed with logins.
        if *refusals == PATIENCE {
            // Its only turn is this one, so that nobody else is heard over it.
            session.retire().await;
        } else {
            let pause = FIRST_PAUSE.saturating_mul(1 << (*refusals).min(8));
            sleep_until(Instant::now() + pause.min(LONGEST_PAUSE)).await;
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
            let mut attempt = pool.begin(async { panic!("a defect, on purpose") });
            pool.state().attempt = Some(attempt.clone());
            let ended = attempt.changed().await;
            assert!(ended.is_err(), "there is nothing that it could tell");
            let now = Instant::now();
            let Found::Busy(_, More::After(time)) = pool.find(now) else {
                panic!("the next attempt does not wait");
            };
            assert_eq!(time - now, FIRST_PAUSE * failures);
            sleep_until(time).await;
        }
    }
}
