//! Warnings that would repeat many times a second: one in a while, with the number of those left out.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The interval at which one warning is written. The first says it all; the others say that it goes on.
const EVERY: Duration = Duration::from_secs(30);

/// Decides which occurrences of one warning are written.
#[derive(Debug)]
pub(crate) struct Sampled(Mutex<State>);

#[derive(Debug)]
struct State {
    last: Option<Instant>,
    suppressed: u64,
}

// === impl Sampled ===

impl Sampled {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(State {
            last: None,
            suppressed: 0,
        }))
    }

    /// The number of occurrences left out since the last one that was written, if this one is to be
    /// written.
    pub(crate) fn take(&self) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.last.is_some_and(|last| last.elapsed() < EVERY) {
            state.suppressed += 1;
            return None;
        }
        state.last = Some(Instant::now());
        Some(std::mem::take(&mut state.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_warning_that_repeats_is_written_once_in_a_while_with_a_count() {
        let sampled = Sampled::new();
        assert_eq!(sampled.take(), Some(0));
        for _ in 0..5 {
            assert_eq!(sampled.take(), None);
        }
        tokio::time::advance(EVERY).await;
        assert_eq!(sampled.take(), Some(5));
        tokio::time::advance(EVERY).await;
        assert_eq!(sampled.take(), Some(0));
    }
}
