//! The connections to one machine: as few as do, opened when they are needed.
//!
//! One call at a time connects, the others wait for it. After a failure the next attempt has to
//! wait, each time longer, so that a machine that starts again is not stormed and a wrong password
//! locks nobody out. What the server allows is learnt from its refusals.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select_all;
use tokio::sync::{Mutex, OwnedSemaphorePermit};
use tokio::time::{Instant, sleep_until};

use crate::session::{ConnectError, Session};
use crate::settings::Settings;

/// The pause after the first failure; each further one doubles it.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(15);
/// So many refusals of its last turn in one call, and a connection is replaced.
const PATIENCE: u32 = 3;

/// The connections to one machine.
#[derive(Debug)]
pub(crate) struct Pool {
    settings: Arc<Settings>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    sessions: Vec<Arc<Session>>,
    failures: u32,
    not_before: Option<Instant>,
}

/// The right to run one script on a connection.
pub(crate) struct Turn {
    pub(crate) session: Arc<Session>,
    permit: OwnedSemaphorePermit,
}

/// What the search for a free turn found.
enum Found {
    Turn(Turn),
    /// All connections that there may be are in use.
    Full(Vec<Arc<Session>>),
    Room,
}

// === impl Pool ===

impl Pool {
    pub(crate) fn new(settings: Settings) -> Self {
        Self {
            settings: Arc::new(settings),
            state: Mutex::default(),
        }
    }

    pub(crate) fn settings(&self) -> &Arc<Settings> {
        &self.settings
    }

    /// Waits for a turn on any connection. The caller bounds the wait.
    pub(crate) async fn turn(&self) -> Result<Turn, ConnectError> {
        loop {
            let full = {
                let mut state = self.state.lock().await;
                match state.find(self.settings.connections.max(1)) {
                    Found::Turn(turn) => return Ok(turn),
                    Found::Room => {
                        self.connect(&mut state).await?;
                        continue;
                    }
                    Found::Full(sessions) => sessions,
                }
            };
            let waits = full.into_iter().map(|session| {
                Box::pin(async move {
                    let permit = Arc::clone(&session.turns).acquire_owned().await;
                    permit.map(|permit| Turn { session, permit })
                })
            });
            // Closed semaphores do not exist; a closed connection is sorted out in the next round.
            if let (Ok(turn), ..) = select_all(waits).await
                && !turn.session.is_closed()
            {
                return Ok(turn);
            }
        }
    }

    /// Opens one more connection, after the pause that the last failures ask for.
    async fn connect(&self, state: &mut State) -> Result<(), ConnectError> {
        if let Some(time) = state.not_before {
            sleep_until(time).await;
        }
        match Session::open(&self.settings).await {
            Ok(session) => {
                state.failures = 0;
                state.not_before = None;
                state.sessions.push(Arc::new(session));
                tracing::info!(place = self.settings.place(), "connected");
                Ok(())
            }
            Err(error) => {
                let pause = FIRST_PAUSE.saturating_mul(1 << state.failures.min(16));
                state.failures = state.failures.saturating_add(1);
                state.not_before = Some(Instant::now() + pause.min(LONGEST_PAUSE));
                Err(error)
            }
        }
    }
}

// === impl State ===

impl State {
    fn find(&mut self, connections: usize) -> Found {
        self.sessions.retain(|session| !session.is_closed());
        for session in &self.sessions {
            if let Ok(permit) = Arc::clone(&session.turns).try_acquire_owned() {
                let session = Arc::clone(session);
                return Found::Turn(Turn { session, permit });
            }
        }
        if self.sessions.len() < connections {
            Found::Room
        } else {
            Found::Full(self.sessions.clone())
        }
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
