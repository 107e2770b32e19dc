//! The queue for permits, ordered by the time at which the call started.
//!
//! A call runs several scripts. If each of them queued behind all newer calls, every call would first observe, then
//! all would change, and all would be late. So older calls go first. Only the head of the queue looks for a permit.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::time::Instant;

/// The start of a call, and a number that orders calls with the same start.
type Rank = (Instant, u64);

/// The waiting callers.
#[derive(Debug, Default)]
pub(super) struct Queue(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    all: BTreeMap<Rank, Arc<Notify>>,
    next_number: u64,
}

/// A place in the queue; dropping it leaves the queue.
pub(super) struct QueueEntry<'a> {
    queue: &'a Queue,
    rank: Rank,
    called: Arc<Notify>,
}

// === impl Queue ===

impl Queue {
    /// Enters the queue, before all calls that started later.
    pub(super) fn enter(&self, since: Instant) -> QueueEntry<'_> {
        let mut waiting = self.waiting();
        waiting.next_number += 1;
        let rank = (since, waiting.next_number);
        let called = Arc::new(Notify::new());
        waiting.all.insert(rank, Arc::clone(&called));
        drop(waiting);
        QueueEntry {
            queue: self,
            rank,
            called,
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl QueueEntry ===

impl QueueEntry<'_> {
    /// Waits until this entry is the oldest. Once it was, the caller proceeds, even if an older call arrives
    /// later.
    pub(super) async fn wait_until_first(&self) {
        while !self.is_first() {
            self.called.notified().await;
        }
    }

    fn is_first(&self) -> bool {
        let waiting = self.queue.waiting();
        let first = waiting.all.first_key_value();
        first.is_some_and(|(rank, _)| *rank == self.rank)
    }
}

impl Drop for QueueEntry<'_> {
    fn drop(&mut self) {
        let mut waiting = self.queue.waiting();
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
    async fn the_oldest_call_is_first_whenever_it_arrives() {
        let queue = Arc::new(Queue::default());
        let now = Instant::now();
        let first = queue.enter(now);
        let next_number = Arc::new(Mutex::new(Vec::new()));
        let mut all = tokio::task::JoinSet::new();
        for began in [4, 2, 9, 3, 1] {
            let (queue, next_number) = (Arc::clone(&queue), Arc::clone(&next_number));
            all.spawn(async move {
                let entry = queue.enter(now + Duration::from_secs(began));
                entry.wait_until_first().await;
                next_number.lock().expect("no panic").push(began);
            });
        }
        // An entry that gives up blocks no other.
        let gone = queue.enter(now + Duration::from_millis(500));
        tokio::task::yield_now().await;
        assert!(next_number.lock().expect("no panic").is_empty());
        drop(first);
        drop(gone);
        let _ = all.join_all().await;
        assert_eq!(*next_number.lock().expect("no panic"), [1, 2, 3, 4, 9]);
        assert!(queue.waiting().all.is_empty());
    }
}
