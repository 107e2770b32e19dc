//! A clock that a test can move on, for session ages, rate limits and idle connections.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::watch;
use tokio::time::Instant;

/// Real time plus what [`Clock::advance`] added.
#[derive(Debug)]
pub struct Clock {
    start: Instant,
    added: watch::Sender<Duration>,
}

impl Default for Clock {
    fn default() -> Self {
        Self {
            start: Instant::now(),
            added: watch::Sender::new(Duration::ZERO),
        }
    }
}

impl Clock {
    /// Time since the start of the simulator.
    pub fn now(&self) -> Duration {
        self.start.elapsed() + *self.added.borrow()
    }

    /// Lets this much time pass at once.
    pub fn advance(&self, by: Duration) {
        self.added.send_modify(|added| *added += by);
    }

    /// Waits until [`Self::now`] has reached this time.
    pub async fn reach(&self, when: Duration) {
        let mut added = self.added.subscribe();
        loop {
            let left = when.saturating_sub(self.start.elapsed() + *added.borrow_and_update());
            if left.is_zero() {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(left) => {}
                _ = added.changed() => {}
            }
        }
    }

    /// Milliseconds of the epoch, as `$date` shows them.
    pub(crate) fn date(&self) -> serde_json::Value {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            + *self.added.borrow();
        serde_json::json!({"$date": u64::try_from(now.as_millis()).unwrap_or_default()})
    }
}
