//! How the backends are: asked now and then, each by itself, so that one that hangs keeps nobody
//! waiting. What is found goes into the log when it changes, and into the metrics.

use std::sync::Arc;
use std::time::Duration;

use driver_core::Call;
use futures_util::FutureExt;
use node_utils::blocking::is_for_lack_of_threads;
use tokio::sync::Semaphore;
use tokio_util::task::AbortOnDropHandle;
use tracing::{field, info, warn};

use super::states::{Health, States, Turn};
use super::usage::Schedule;
use crate::routing::connection::Connection;
use crate::routing::connections::{ConnectionName, Connections, LazyConnection};
use crate::rpc::status;
use crate::telemetry::metrics::Metrics;

/// How often a backend is asked.
const EVERY: Duration = Duration::from_mins(1);
/// How long it may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// One that was not asked for so long is not as it was, but unknown.
const STALE: Duration = Duration::from_mins(5);
/// How many are asked at once.
const AT_ONCE: usize = 16;

/// Whose turn it is.
#[derive(Debug)]
pub(super) struct Rounds {
    room: Arc<Semaphore>,
    last: Option<ConnectionName>,
    usage: Option<Schedule>,
}

/// Everything about asking one.
#[derive(Debug)]
struct Question {
    lazy: Arc<LazyConnection>,
    connection: Arc<Connection>,
    connections: Connections,
    states: States,
    metrics: Metrics,
    usage: Option<Schedule>,
}

/// Asks the connections of a process whose connections never change, until what is returned is dropped.
pub(crate) fn watch_one(
    connections: &Connections,
    states: &States,
    metrics: &Metrics,
    measure: bool,
) -> AbortOnDropHandle<()> {
    let (connections, states, metrics) = (connections.clone(), states.clone(), metrics.clone());
    let mut rounds = Rounds::default().measuring(measure);
    AbortOnDropHandle::new(tokio::spawn(async move {
        loop {
            rounds.ask(&connections, &states, &metrics);
            tokio::time::sleep(EVERY).await;
        }
    }))
}

// === impl Rounds ===

impl Default for Rounds {
    fn default() -> Self {
        Self {
            room: Arc::new(Semaphore::new(AT_ONCE)),
            last: None,
            usage: None,
        }
    }
}

impl Rounds {
    /// The same, which also measures what lies on the storage if that is wanted.
    pub(super) fn measuring(mut self, measure: bool) -> Self {
        self.usage = measure.then(Schedule::default);
        self
    }

    /// Asks those that are due, after the one that was asked last, and returns at once. Drivers that
    /// nobody uses are left alone, and those that have not answered the question before.
    pub(super) fn ask(&mut self, connections: &Connections, states: &States, metrics: &Metrics) {
        let all = connections.all();
        let last = self.last.as_ref();
        let next = all.partition_point(|lazy| last.is_some_and(|last| lazy.name() <= last));
        let (before, after) = all.split_at(next);
        for lazy in after.iter().chain(before) {
            let Some(connection) = lazy.peek_in_use() else {
                continue;
            };
            if !states.is_due(lazy.name(), EVERY) {
                continue;
            }
            let Ok(permit) = Arc::clone(&self.room).try_acquire_owned() else {
                return;
            };
            let turn = states.asked(lazy.name());
            self.last = Some(lazy.name().clone());
            let question = Question {
                lazy: Arc::clone(lazy),
                connection,
                connections: connections.clone(),
                states: states.clone(),
                metrics: metrics.clone(),
                usage: self.usage.clone(),
            };
            tokio::spawn(async move {
                question.put_by(turn).await;
                drop(permit);
            });
        }
    }
}

// === impl Question ===

impl Question {
    /// Asks, and tells what came out. The turn ends when the backend has really answered, however
    /// late: one that hangs is not asked again and again.
    async fn put_by(self, turn: Turn) {
        let connection = Arc::clone(&self.connection);
        let asked = async move {
            let health = of(&connection).await;
            drop(turn);
            health
        };
        let mut asked = tokio::spawn(asked);
        let health = match tokio::time::timeout(PATIENCE, &mut asked).await {
            Ok(answered) => answered.unwrap_or_else(|_| Some(Health::Bad(DEFECT.to_owned()))),
            Err(_) => Some(Health::Bad(format!("no answer within {PATIENCE:?}"))),
        };
        match health {
            Some(health) => {
                self.tell(&health);
                if let (Health::Good, Some(usage)) = (&health, &self.usage) {
                    usage.measure(&self.connection, &self.metrics).await;
                }
            }
            None => self.left_out(),
        }
    }

    /// There was no thread to ask it: for a while it is as it was before.
    fn left_out(&self) {
        let name = self.lazy.name();
        if self.connections.serves(&self.lazy) && self.states.left_out(name, STALE) {
            self.metrics.connection_unasked(name.text());
        }
    }

    /// Says how it is, unless it is served no more.
    fn tell(&self, health: &Health) {
        let name = self.lazy.name();
        let found = self.states.found(name, health.clone(), || {
            let served = self.connections.serves(&self.lazy);
            if served {
                let good = *health == Health::Good;
                self.metrics.connection_health(name.text(), good);
            }
            served
        });
        if let Some(before) = found {
            tell(name, before, health);
        }
    }
}

/// How the backend of one connection is. Nothing is known if there was no thread to ask it.
async fn of(connection: &Connection) -> Option<Health> {
    let call = Call::within(PATIENCE);
    let probe = std::panic::AssertUnwindSafe(connection.probe(&call)).catch_unwind();
    Some(match probe.await.as_deref() {
        Ok([]) => Health::Good,
        Ok([problem, ..]) if is_for_lack_of_threads(problem) && !connection.hangs() => return None,
        Ok([problem, ..]) => Health::Bad(status::message(problem)),
        Err(_) => Health::Bad(DEFECT.to_owned()),
    })
}

const DEFECT: &str = "met a defect of this program";

fn tell(name: &ConnectionName, before: Health, now: &Health) {
    let connection = name.is_named().then(|| field::display(name));
    match (before, now) {
        (Health::Bad(_), Health::Good) => {
            info!(
                connection,
                "the storage of the connection can be used again"
            );
        }
        (Health::Bad(before), Health::Bad(why)) if before == *why => {}
        (_, Health::Bad(why)) => {
            warn!(
                connection,
                error = why,
                "the storage of the connection cannot be used"
            );
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests;
