//! The line in front of the connections: whoever began first is the first in it.
//!
//! A call runs several scripts. If each had to stand behind those of all calls that came later, all calls
//! would look, then all would change what they found, and all would be late; so those that have come far are
//! let through. Only the first one in the line looks for a turn.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::time::Instant;

/// When somebody began, and a number for those that began at once.
type Rank = (Instant, u64);

/// Those that wait for a turn.
#[derive(Debug, Default)]
pub(super) struct Line(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    all: BTreeMap<Rank, Arc<Notify>>,
    came: u64,
}

/// A place in the line. Dropped, it is left.
pub(super) struct Place<'a> {
    line: &'a Line,
    rank: Rank,
    called: Arc<Notify>,
}

// === impl Line ===

impl Line {
    /// Stands in line, before all that began later.
    pub(super) fn join(&self, since: Instant) -> Place<'_> {
        let mut waiting = self.waiting();
        waiting.came += 1;
        let rank = (since, waiting.came);
        let called = Arc::new(Notify::new());
        waiting.all.insert(rank, Arc::clone(&called));
        drop(waiting);
        Place {
            line: self,
            rank,
            called,
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Place ===

impl Place<'_> {
    /// Ends when nobody else is before it. Whoever was the first once goes on as such.
    pub(super) async fn first(&self) {
        while !self.is_first() {
            self.called.notified().await;
        }
    }

    fn is_first(&self) -> bool {
        let waiting = self.line.waiting();
        let first = waiting.all.first_key_value();
        first.is_some_and(|(rank, _)| *rank == self.rank)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut waiting = self.line.waiting();
        waiting.all.remove(&self.rank);
        if let Some((_, next)) = waiting.all.first_key_value() {
            next.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn whoever_began_first_is_let_through_first_whenever_it_comes() {
        let line = Arc::new(Line::default());
        let now = Instant::now();
        let first = line.join(now);
        let came = Arc::new(Mutex::new(Vec::new()));
        let mut all = tokio::task::JoinSet::new();
        for began in [4, 2, 9, 3, 1] {
            let (line, came) = (Arc::clone(&line), Arc::clone(&came));
            all.spawn(async move {
                let place = line.join(now + Duration::from_secs(began));
                place.first().await;
                came.lock().expect("no panic").push(began);
            });
        }
        // One that gives up keeps nobody.
        let gone = line.join(now + Duration::from_millis(500));
        tokio::task::yield_now().await;
        assert!(came.lock().expect("no panic").is_empty());
        drop(first);
        drop(gone);
        let _ = all.join_all().await;
        assert_eq!(*came.lock().expect("no panic"), [1, 2, 3, 4, 9]);
        assert!(line.waiting().all.is_empty());
    }
}
