//! The one backoff: when the NAS may be tried again.

use std::time::Duration;

use tokio::time::Instant;

/// The pause after the first attempt.
const FIRST: Duration = Duration::from_secs(1);
/// The longest pause, and how long a session must last to count as a success.
const LONGEST: Duration = Duration::from_mins(1);

/// Growing, jittered, bounded pauses between attempts to log in.
///
/// TrueNAS counts calls before the login per method and address and refuses the 21st within a
/// minute. No 60 seconds contain more than 7 attempts, of at most 2 calls of one method each.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    attempts: u32,
    last: Option<Attempt>,
}

#[derive(Debug, Clone, Copy)]
struct Attempt {
    at: Instant,
    succeeded: bool,
    /// What the pause after it is longer by, in 1024ths: drawn once, or the smallest draw of all who ask
    /// would count.
    jitter: u32,
}

impl Backoff {
    /// How long to wait before the next attempt.
    pub(crate) fn wait(&self) -> Duration {
        let Some(last) = self.last else {
            return Duration::ZERO;
        };
        if last.succeeded && last.at.elapsed() >= LONGEST {
            return Duration::ZERO;
        }
        // The first attempt after a success, too, keeps its distance: a NAS that accepts a login and
        // ends the connection must not be logged into in a tight loop.
        let doublings = self.attempts.saturating_sub(1).min(6);
        let pause = (FIRST * 2_u32.pow(doublings)).min(LONGEST);
        (pause + pause * last.jitter / 1024).saturating_sub(last.at.elapsed())
    }

    /// An attempt begins.
    pub(crate) fn attempt(&mut self) {
        let settled = |last: &Attempt| last.succeeded && last.at.elapsed() >= LONGEST;
        if self.last.as_ref().is_none_or(settled) {
            self.attempts = 0;
        }
        self.attempts = self.attempts.saturating_add(1);
        self.last = Some(Attempt {
            at: Instant::now(),
            succeeded: false,
            jitter: jitter(),
        });
    }

    /// The attempt succeeded.
    pub(crate) fn succeeded(&mut self) {
        if let Some(last) = &mut self.last {
            last.succeeded = true;
        }
    }

    /// The NAS refused the credentials, or we refuse the NAS: trying again soon is of no use.
    pub(crate) fn refused_if(&mut self, is_final: bool) {
        if is_final {
            self.attempts = u32::MAX;
        }
    }
}

/// Up to a quarter longer, never shorter. It parts the
/// processes that lost the same NAS at the same time.
fn jitter() -> u32 {
    let mut byte = [0];
    let drawn = aws_lc_rs::rand::fill(&mut byte);
    drawn.map_or(0, |()| u32::from(byte[0]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn sixty_seconds_contain_at_most_seven_attempts() {
        let mut backoff = Backoff::default();
        let mut times = Vec::new();
        for succeeds in [
            true, false, true, true, false, true, false, true, true, true, true, true,
        ] {
            tokio::time::advance(backoff.wait()).await;
            backoff.attempt();
            if succeeds {
                backoff.succeeded();
            }
            times.push(Instant::now());
        }
        for from in &times {
            let minute = times
                .iter()
                .filter(|at| *at >= from && **at - *from < LONGEST);
            assert!(minute.count() <= 7);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_that_lasted_is_renewed_at_once() {
        let mut backoff = Backoff::default();
        backoff.attempt();
        backoff.succeeded();
        assert!(backoff.wait() > Duration::ZERO);
        tokio::time::advance(LONGEST).await;
        assert_eq!(backoff.wait(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn the_pause_after_an_attempt_is_drawn_once() {
        for _ in 0..8 {
            let mut backoff = Backoff::default();
            backoff.attempt();
            backoff.refused_if(true);
            let first = backoff.wait();
            assert!((0..64).all(|_| backoff.wait() == first));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn refused_credentials_wait_longest() {
        let mut backoff = Backoff::default();
        backoff.attempt();
        backoff.refused_if(true);
        assert!(backoff.wait() >= LONGEST);
        tokio::time::advance(LONGEST * 2).await;
        assert_eq!(backoff.wait(), Duration::ZERO);
    }
}
