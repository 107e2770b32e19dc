//! The state of each connection: whether its file is usable, and the health of its backend.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::routing::connections::{ConnectionName, Connections};

/// The state of all connections. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct States {
    all: Arc<Mutex<BTreeMap<ConnectionName, State>>>,
    returned: Arc<Notify>,
}

#[derive(Debug, Default)]
struct State {
    health: Health,
    /// The last known health, however old.
    before: Health,
    asked: Option<Instant>,
    turn: Weak<()>,
    /// Whether it could be used again after it could not, and that was not reported yet.
    has_returned: bool,
}

/// A running probe of a backend, until this is dropped.
#[derive(Debug)]
pub(crate) struct Turn(#[expect(dead_code, reason = "held")] Arc<()>);

/// The health of a backend, as of its last probe.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum Health {
    /// It was not probed yet.
    #[default]
    Unknown,
    /// Nothing is wrong.
    Good,
    /// It cannot be used, for this reason.
    Bad(String),
}

/// The number of those that are healthy, and some of those that are not.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Summary {
    pub(crate) all: usize,
    pub(crate) good: usize,
    pub(crate) bad: Vec<ConnectionName>,
}

// === impl States ===

impl States {
    /// Forgets a connection.
    pub(crate) fn forget(&self, name: &ConnectionName) {
        self.lock().remove(name);
    }

    /// Its backend is not probed from now on: its health is unknown. The last one is kept for the log.
    pub(crate) fn rest(&self, name: &ConnectionName) {
        if let Some(state) = self.lock().get_mut(name) {
            (state.health, state.asked) = (Health::Unknown, None);
        }
    }

    /// Another connection has its name from now on. The health of the one before counts until the next
    /// probe.
    pub(crate) fn ask_anew(&self, name: &ConnectionName) {
        if let Some(state) = self.lock().get_mut(name) {
            (state.asked, state.turn) = (None, Weak::new());
        }
    }

    /// Stores the health of a backend if `still` confirms that it is the one that was probed. Returns the
    /// health before.
    pub(crate) fn found(
        &self,
        name: &ConnectionName,
        health: Health,
        still: impl FnOnce() -> bool,
    ) -> Option<Health> {
        let mut all = self.lock();
        if !still() {
            return None;
        }
        let state = all.entry(name.clone()).or_default();
        state.health = health.clone();
        if matches!((&state.before, &health), (Health::Bad(_), Health::Good)) {
            state.has_returned = true;
            self.returned.notify_one();
        }
        Some(std::mem::replace(&mut state.before, health))
    }

    /// The backends that can be used again, each reported once. Waits until there is one.
    pub(crate) async fn returned(&self) -> BTreeSet<ConnectionName> {
        loop {
            let names = self.take_returned();
            if !names.is_empty() {
                return names;
            }
            self.returned.notified().await;
        }
    }

    fn take_returned(&self) -> BTreeSet<ConnectionName> {
        let mut all = self.lock();
        let back = all.iter_mut().filter(|(_, state)| state.has_returned);
        back.map(|(name, state)| {
            state.has_returned = false;
            name.clone()
        })
        .collect()
    }

    /// Whether a probe is due and none is running.
    pub(crate) fn is_due(&self, name: &ConnectionName, every: Duration) -> bool {
        self.lock().get(name).is_none_or(|state| {
            let recently = state.asked.is_some_and(|asked| asked.elapsed() < every);
            !recently && state.turn.strong_count() == 0
        })
    }

    /// Marks the start of a probe.
    pub(crate) fn asked(&self, name: &ConnectionName) -> Turn {
        let turn = Arc::new(());
        let mut all = self.lock();
        let state = all.entry(name.clone()).or_default();
        state.asked = Some(Instant::now());
        state.turn = Arc::downgrade(&turn);
        Turn(turn)
    }

    /// Whether the backend could not be used when it was last probed.
    pub(crate) fn is_bad(&self, name: &ConnectionName) -> bool {
        let all = self.lock();
        all.get(name)
            .is_some_and(|state| matches!(state.health, Health::Bad(_)))
    }

    /// The health of a backend as of its last probe, and when that began.
    #[cfg(feature = "console")]
    pub(crate) fn health(&self, name: &ConnectionName) -> (Health, Option<Instant>) {
        let all = self.lock();
        let state = all.get(name);
        state.map_or_else(Default::default, |state| {
            (state.health.clone(), state.asked)
        })
    }

    /// The number of `connections` that are healthy, and at most `limit` of those that are not. Some may not
    /// have been probed yet.
    pub(crate) fn summary(&self, connections: &Connections, limit: usize) -> Summary {
        // `Probe` is called every few seconds, so nothing is copied per connection.
        let table = connections.table();
        let mut summary = Summary {
            all: table.len(),
            ..Summary::default()
        };
        let all = self.lock();
        for lazy in table.values() {
            let health = all.get(lazy.name()).map(|state| &state.health);
            // A connection without a usable file is not healthy either.
            let bad = lazy.kind().is_none() || matches!(health, Some(Health::Bad(_)));
            if bad && summary.bad.len() < limit {
                summary.bad.push(lazy.name().clone());
            }
            summary.good += usize::from(!bad && health == Some(&Health::Good));
        }
        summary
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ConnectionName, State>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::connections::Names;

    #[test]
    fn what_was_known_of_a_driver_that_was_let_go_counts_no_more_and_is_not_logged_again() {
        let states = States::default();
        let name = ConnectionName::parse("nas").expect("a name");
        let connections = Connections::named(Names::default());
        let bad = || Health::Bad("why".to_owned());
        assert_eq!(states.found(&name, bad(), || true), Some(Health::Unknown));
        states.rest(&name);
        assert!(states.is_due(&name, Duration::from_hours(1)));
        assert_eq!(states.lock()[&name].health, Health::Unknown);
        assert!(states.summary(&connections, 10).bad.is_empty());
        assert_eq!(states.found(&name, bad(), || true), Some(bad()));
    }

    #[tokio::test]
    async fn a_backend_that_can_be_used_again_is_reported_once() {
        let states = States::default();
        let name = ConnectionName::parse("nas").expect("a name");
        let bad = || Health::Bad("why".to_owned());
        for health in [Health::Good, bad(), bad(), Health::Good, Health::Good] {
            states.found(&name, health, || true);
        }
        assert_eq!(states.returned().await, BTreeSet::from([name.clone()]));
        assert!(states.take_returned().is_empty());
        let (reported, ()) = tokio::join!(states.returned(), async {
            for health in [bad(), Health::Good] {
                states.found(&name, health, || true);
            }
        });
        assert_eq!(reported, BTreeSet::from([name]));
    }
}
