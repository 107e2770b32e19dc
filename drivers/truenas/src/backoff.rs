//! When the NAS may be logged into again.

use std::time::Duration;

use driver_core::Backoff;
use tokio::time::Instant;

/// The pause after the first attempt. Seven attempts a minute then stay below the limit of the NAS.
const FIRST: Duration = Duration::from_secs(1);
/// The longest pause, and how long a session must last to count as a success.
const LONGEST: Duration = Duration::from_mins(1);
/// The pauses between two attempts that follow each other.
const BACKOFF: Backoff = Backoff::new(FIRST, LONGEST);

/// The pauses between attempts to log in.
///
/// TrueNAS counts calls before the login per method and address and refuses the 21st within a
/// minute. No 60 seconds contain more than 7 attempts, of at most 2 calls of one method each.
#[derive(Debug)]
pub(crate) struct LoginBackoff {
    backoff: Backoff,
    last: Option<Attempt>,
}

#[derive(Debug, Clone, Copy)]
struct Attempt {
    at: Instant,
    succeeded: bool,
    /// The pause after it: drawn once, or the smallest draw of all who ask would count.
    pause: Duration,
}

impl Default for LoginBackoff {
    fn default() -> Self {
        Self {
            backoff: BACKOFF,
            last: None,
        }
    }
}

impl LoginBackoff {
    /// The time to wait before the next attempt.
    pub(crate) fn wait(&self) -> Duration {
        let Some(last) = self.last else {
            return Duration::ZERO;
        };
        if last.succeeded && last.at.elapsed() >= LONGEST {
            return Duration::ZERO;
        }
        // The first attempt after a success, too, keeps its distance: a NAS that accepts a login and
        // ends the connection must not be logged into in a tight loop.
        last.pause.saturating_sub(last.at.elapsed())
    }

    /// An attempt begins.
    pub(crate) fn attempt(&mut self) {
        let settled = |last: &Attempt| last.succeeded && last.at.elapsed() >= LONGEST;
        if self.last.as_ref().is_none_or(settled) {
            self.backoff = BACKOFF;
        }
        self.last = Some(Attempt {
            at: Instant::now(),
            succeeded: false,
            pause: self.backoff.pause(),
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
        if let Some(last) = self.last.as_mut().filter(|_| is_final) {
            self.backoff.no_shorter_than(LONGEST);
            last.pause = self.backoff.pause();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn sixty_seconds_contain_at_most_seven_attempts() {
        let mut logins = LoginBackoff::default();
        let mut times = Vec::new();
        for succeeds in [
            true, false, true, true, false, true, false, true, true, true, true, true,
        ] {
            tokio::time::advance(logins.wait()).await;
            logins.attempt();
            if succeeds {
                logins.succeeded();
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
        let mut logins = LoginBackoff::default();
        logins.attempt();
        logins.succeeded();
        assert!(logins.wait() > Duration::ZERO);
        tokio::time::advance(LONGEST).await;
        assert_eq!(logins.wait(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn the_pause_after_an_attempt_is_drawn_once() {
        for _ in 0..8 {
            let mut logins = LoginBackoff::default();
            logins.attempt();
            logins.refused_if(true);
            let first = logins.wait();
            assert!((0..64).all(|_| logins.wait() == first));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn refused_credentials_wait_longest() {
        let mut logins = LoginBackoff::default();
        logins.attempt();
        logins.refused_if(true);
        assert!(logins.wait() >= LONGEST);
        tokio::time::advance(LONGEST * 2).await;
        assert_eq!(logins.wait(), Duration::ZERO);
    }
}
