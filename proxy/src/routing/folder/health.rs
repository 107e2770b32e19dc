//! The health of the backends: probed periodically and independently, so that one that hangs does not
//! delay the others. The result goes into the metrics, and into the log when it changes.

use std::sync::Arc;
use std::time::Duration;

use driver_core::Call;
use futures_util::FutureExt;
use tokio::sync::Semaphore;
use tokio_util::task::AbortOnDropHandle;
use tracing::{info, warn};

use super::states::{Health, States, Turn};
use super::usage::Schedule;
use crate::message;
use crate::routing::connection::Connection;
use crate::routing::connections::{ConnectionName, Connections, LazyConnection};
use crate::telemetry::metrics::Metrics;

/// How often a backend is probed. Alerts wait for several minutes, and a probe is a command on the storage.
const EVERY: Duration = Duration::from_mins(1);
/// The same while it cannot be used: nodes wait for exports that it may have lost.
const EVERY_WHILE_BAD: Duration = Duration::from_secs(10);
/// The timeout of a probe. Half of the interval, so that probes never overtake each other.
pub(crate) const PROBE_TIMEOUT: Duration = Duration::from_secs(30);
/// How many are probed at once. A hundred sound connections are asked within a second or two.
const AT_ONCE: usize = 16;

/// The duties of a process beyond health itself.
#[derive(Debug, Clone, Copy, Default)]
pub struct Duties {
    /// It measures the usage of each storage.
    pub measures: bool,
    /// It restores exports that were lost, so it has to hear soon that a backend can be used again.
    pub restores: bool,
}

/// The schedule of probes.
#[derive(Debug)]
pub(super) struct Rounds {
    permits: Arc<Semaphore>,
    last: Option<ConnectionName>,
    while_bad: Duration,
    usage: Option<Schedule>,
}

/// One probe.
#[derive(Debug)]
struct Question {
    lazy: Arc<LazyConnection>,
    connection: Arc<Connection>,
    connections: Connections,
    states: States,
    metrics: Metrics,
    usage: Option<Schedule>,
}

/// Probes the connections of a process whose connections never change, until the result is dropped.
pub(crate) fn watch_one(
    connections: &Connections,
    states: &States,
    metrics: &Metrics,
    duties: Duties,
) -> AbortOnDropHandle<()> {
    let (connections, states, metrics) = (connections.clone(), states.clone(), metrics.clone());
    metrics.connections(connections.all().len());
    let mut rounds = Rounds::new(duties);
    AbortOnDropHandle::new(tokio::spawn(async move {
        loop {
            rounds.ask(&connections, &states, &metrics);
            tokio::time::sleep(rounds.while_bad).await;
        }
    }))
}

// === impl Rounds ===

impl Rounds {
    pub(super) fn new(duties: Duties) -> Self {
        let while_bad = if duties.restores {
            EVERY_WHILE_BAD
        } else {
            EVERY
        };
        Self {
            permits: Arc::new(Semaphore::new(AT_ONCE)),
            last: None,
            while_bad,
            usage: duties.measures.then(Schedule::default),
        }
    }

    /// Starts the probes that are due, after the connection that was probed last, and returns at once.
    /// Idle drivers are skipped, and those whose previous probe has not ended.
    pub(super) fn ask(&mut self, connections: &Connections, states: &States, metrics: &Metrics) {
        let all = connections.all();
        let last = self.last.as_ref();
        let next = all.partition_point(|lazy| last.is_some_and(|last| lazy.name() <= last));
        let (before, after) = all.split_at(next);
        for lazy in after.iter().chain(before) {
            let Some(connection) = lazy.peek_in_use() else {
                continue;
            };
            let every = if states.is_bad(lazy.name()) {
                self.while_bad
            } else {
                EVERY
            };
            if !states.is_due(lazy.name(), every) {
                continue;
            }
            let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() else {
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
    /// Probes, and reports the result. The turn ends when the backend has really answered, however late:
    /// a backend that hangs is not probed again.
    async fn put_by(self, turn: Turn) {
        let connection = Arc::clone(&self.connection);
        let asked = async move {
            let health = of(&connection).await;
            drop(turn);
            health
        };
        let mut asked = tokio::spawn(asked);
        let health = match tokio::time::timeout(PROBE_TIMEOUT, &mut asked).await {
            Ok(answered) => answered.unwrap_or_else(|_| Health::Bad(DEFECT.to_owned())),
            Err(_) => Health::Bad(format!("no answer within {PROBE_TIMEOUT:?}")),
        };
        self.tell(&health);
        if let (Health::Good, Some(usage)) = (&health, &self.usage) {
            usage.measure(&self.connection, &self.metrics).await;
        }
    }

    /// Stores and logs the health, unless the connection is not served any more.
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

/// The health of the backend of one connection.
async fn of(connection: &Connection) -> Health {
    let call = Call::within(PROBE_TIMEOUT);
    let probe = std::panic::AssertUnwindSafe(connection.probe(&call)).catch_unwind();
    match probe.await.as_deref() {
        Ok([]) => Health::Good,
        Ok([problem, ..]) => Health::Bad(message::of(problem)),
        Err(_) => Health::Bad(DEFECT.to_owned()),
    }
}

const DEFECT: &str = "met a defect of this program";

fn tell(name: &ConnectionName, before: Health, now: &Health) {
    let connection = name.field();
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
