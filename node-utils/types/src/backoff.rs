//! The one backoff: growing, jittered, bounded pauses between attempts, and between polls.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

/// The pauses of one series of attempts.
///
/// Each is twice the one before, at most `longest`, and up to a quarter longer than that: it parts the callers that
/// failed at the same time.
#[derive(Debug, Clone, Copy)]
pub struct Backoff {
    next: Duration,
    longest: Duration,
}

// === impl Backoff ===

impl Backoff {
    /// Pauses from `first` on.
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self {
            next: first,
            longest,
        }
    }

    /// Polls of what usually is there at once and is cheap to read.
    pub const fn of_polls() -> Self {
        Self::new(Duration::from_millis(5), Duration::from_millis(100))
    }

    /// Polls of what needs a process to read.
    pub const fn of_processes() -> Self {
        Self::new(Duration::from_millis(5), Duration::from_millis(250))
    }

    /// The pause before the next attempt.
    pub fn pause(&mut self) -> Duration {
        let least = self.next.min(self.longest);
        self.next = least.saturating_mul(2);
        least + least * jitter() / 1024
    }

    /// Makes the next pause no shorter than this.
    pub fn no_shorter_than(&mut self, least: Duration) {
        self.next = self.next.max(least);
    }
}

/// Up to 255, at random: the keys of each hasher are others.
fn jitter() -> u32 {
    let [byte, ..] = RandomState::new().build_hasher().finish().to_le_bytes();
    u32::from(byte)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_are_drawn_up_to_a_quarter_longer() {
        let mut drawn = BTreeSet::new();
        for _ in 0..64 {
            let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(5));
            for least in [1, 2, 4, 5, 5].map(Duration::from_secs) {
                let pause = backoff.pause();
                assert!(pause >= least && pause < least * 5 / 4, "{pause:?}");
                drawn.insert(pause);
            }
        }
        assert!(drawn.len() > 64, "they are drawn");
    }

    #[test]
    fn a_pause_that_is_known_to_be_too_short_is_made_longer_and_grows_from_there() {
        let mut backoff = Backoff::new(Duration::from_millis(1), Duration::from_mins(1));
        backoff.no_shorter_than(Duration::from_secs(3));
        assert!(backoff.pause() >= Duration::from_secs(3));
        assert!(backoff.pause() >= Duration::from_secs(6));
        backoff.no_shorter_than(Duration::from_secs(1));
        assert!(backoff.pause() >= Duration::from_secs(12), "never shorter");
    }
}
