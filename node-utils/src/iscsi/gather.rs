//! Runs several attempts concurrently, of which one success is enough: the others get a short grace
//! period, so that no caller waits for their timeouts.

use std::time::Duration;

use futures_util::stream::{self, StreamExt as _};
use tokio::time::Instant;

/// The number of those that run at once: each may be a process. A volume has two to four portals.
const AT_ONCE: usize = 8;

/// The results of the attempts.
#[derive(Debug)]
pub(super) struct Gathered<T, E> {
    pub(super) done: Vec<T>,
    pub(super) failed: Vec<E>,
    /// The number of those that were abandoned after the grace period.
    pub(super) left: usize,
}

/// Runs all. After one success, or at once if `enough`, the others have `grace` left.
pub(super) async fn gather<T, E, F: Future<Output = Result<T, E>>>(
    attempts: Vec<F>,
    enough: bool,
    grace: Duration,
) -> Gathered<T, E> {
    let mut left = attempts.len();
    let mut running = stream::iter(attempts).buffer_unordered(AT_ONCE);
    let (mut done, mut failed) = (Vec::new(), Vec::new());
    let mut until = enough.then(|| Instant::now() + grace);
    loop {
        let next = match until {
            None => running.next().await,
            Some(until) => match tokio::time::timeout_at(until, running.next()).await {
                Ok(next) => next,
                Err(_) => break,
            },
        };
        match next {
            None => break,
            Some(Ok(result)) => {
                done.push(result);
                until = until.or_else(|| Some(Instant::now() + grace));
            }
            Some(Err(error)) => failed.push(error),
        }
        left -= 1;
    }
    Gathered { done, failed, left }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn after(seconds: u64, result: Result<u64, u64>) -> Result<u64, u64> {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        result
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_is_done_bounds_the_others() {
        let began = Instant::now();
        let all = vec![
            after(1, Err(1)),
            after(2, Ok(2)),
            after(4, Ok(4)),
            after(60, Ok(60)),
        ];
        let gathered = gather(all, false, Duration::from_secs(5)).await;
        assert_eq!((gathered.done, gathered.failed), (vec![2, 4], vec![1]));
        assert_eq!(gathered.left, 1);
        assert_eq!(began.elapsed().as_secs(), 7);
    }

    #[tokio::test(start_paused = true)]
    async fn without_one_that_is_done_all_are_waited_for_unless_there_was_one_before() {
        for (enough, failed, seconds) in [(false, vec![60], 60), (true, Vec::new(), 5)] {
            let began = Instant::now();
            let all = vec![after(60, Err(60))];
            let gathered = gather(all, enough, Duration::from_secs(5)).await;
            assert_eq!(gathered.failed, failed);
            assert_eq!(began.elapsed().as_secs(), seconds);
        }
    }
}
