//! Threads that may block: so many permits for each party that may hang, and no other account.
//!
//! A system call that hangs keeps its thread for as long as it hangs, even if its caller has stopped waiting.
//! So a permit is kept until the thread has really ended. A party that hangs costs its own permits and nothing
//! else. A caller without a permit waits, unless the threads of the party have hung for long.

pub(crate) mod of_node;

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use csi_types::error::{Error, Kind};
use of_node::{NodeAccount, NodePermit};

tokio::task_local! {
    /// The account of this task.
    static ACCOUNT: Account;
}

/// Whose threads the work of a task uses.
#[derive(Debug, Clone)]
enum Account {
    /// Those of one of several parties.
    Party(Threads),
    /// Those of the node.
    Node(NodeAccount),
}

/// One thread, until its work has really ended.
#[derive(Debug)]
pub(super) enum Permit {
    Party(#[expect(dead_code, reason = "it is dropped")] PartyPermit),
    Node(#[expect(dead_code, reason = "it is dropped")] NodePermit),
}

/// How long a caller waits for a thread by default. Sidecars give up after 10 to 15 s, and ask again.
const WAIT_TIMEOUT: Duration = Duration::from_secs(10);
/// When no thread was taken or has returned for this time, those that are away count as hung.
const LONG: Duration = Duration::from_secs(30);

/// The threads of one party, such as a connection. Clones are the same party.
#[derive(Debug, Clone)]
pub struct Threads {
    permits: Arc<Semaphore>,
    most: usize,
    /// When a thread was last taken or returned.
    moved: Arc<Mutex<Instant>>,
    wait_timeout: Duration,
}

/// A thread of a party.
#[derive(Debug)]
pub(super) struct PartyPermit {
    _permit: OwnedSemaphorePermit,
    party: Threads,
}

/// No thread is available.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Full {
    /// The party uses all of its own.
    #[error("{0} threads wait for it already")]
    Own(usize),
    /// The same, and none of them has returned for long.
    #[error("{0} threads wait for it already, and have for long")]
    Away(usize),
    /// Other parties use all of them.
    #[error("no thread was free for {0:?}")]
    Others(Duration),
}

// === impl Threads ===

impl Threads {
    /// A party with at most so many threads at a time.
    pub fn new(most: usize) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(most)),
            most,
            moved: Arc::new(Mutex::new(Instant::now())),
            wait_timeout: WAIT_TIMEOUT,
        }
    }

    /// The same, waiting for a thread for no longer than this.
    #[must_use]
    pub fn within(&self, wait_timeout: Duration) -> Self {
        Self {
            wait_timeout: self.wait_timeout.min(wait_timeout),
            ..self.clone()
        }
    }

    /// Whether its threads have hung for so long that no caller waits for them.
    pub fn are_away(&self) -> bool {
        self.permits.available_permits() == 0 && self.moved().elapsed() >= LONG
    }

    /// Runs `work` on the account of this party.
    pub async fn on_account<F: Future>(&self, work: F) -> F::Output {
        ACCOUNT.scope(Account::Party(self.clone()), work).await
    }

    /// A thread, as soon as one is free.
    async fn take(&self) -> Result<PartyPermit, Full> {
        if self.are_away() {
            return Err(Full::Away(self.most));
        }
        let permit = one_of(&self.permits, self.wait_timeout, Full::Own(self.most)).await?;
        *self.moved() = Instant::now();
        Ok(PartyPermit {
            _permit: permit,
            party: self.clone(),
        })
    }

    fn moved(&self) -> MutexGuard<'_, Instant> {
        self.moved.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for PartyPermit {
    fn drop(&mut self) {
        *self.party.moved() = Instant::now();
    }
}

/// A permit, as soon as one is free.
async fn one_of(
    permits: &Arc<Semaphore>,
    wait_timeout: Duration,
    full: Full,
) -> Result<OwnedSemaphorePermit, Full> {
    let permit = Arc::clone(permits).acquire_owned();
    match tokio::time::timeout(wait_timeout, permit).await {
        Ok(Ok(permit)) => Ok(permit),
        // It is never closed.
        Ok(Err(_)) | Err(_) => Err(full),
    }
}

/// A thread on the account of this task. Without accounts none is needed.
pub(super) async fn take() -> Result<Option<Permit>, Full> {
    Ok(match ACCOUNT.try_with(Clone::clone) {
        Ok(Account::Party(threads)) => Some(Permit::Party(threads.take().await?)),
        Ok(Account::Node(account)) => Some(Permit::Node(account.take().await?)),
        Err(_) => None,
    })
}

/// The error of work that gets no thread.
pub(super) fn refused(doing: &str, full: Full) -> Error {
    let advice = match full {
        Full::Own(_) | Full::Away(_) => {
            "the storage hangs, or is asked for more than it can do at once"
        }
        Full::Others(_) => "ask again: nothing is known to be wrong with what was asked",
    };
    Error::new(Kind::Pending, doing)
        .because(full)
        .advise(advice)
}

/// Whether this is the error of work that did not start because the threads of its account hang.
pub fn is_for_threads_that_hang(error: &Error) -> bool {
    matches!(lack(error), Some(Full::Away(_)))
}

/// Whether this is the error of work that did not start for lack of a thread, for whatever reason.
pub fn is_for_want_of_a_thread(error: &Error) -> bool {
    lack(error).is_some()
}

fn lack(error: &Error) -> Option<&Full> {
    let source = std::error::Error::source(error);
    source.and_then(|source| source.downcast_ref::<Full>())
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn all(threads: &Threads) -> Vec<PartyPermit> {
        let (mut held, now) = (Vec::new(), threads.within(Duration::ZERO));
        while let Ok(permit) = now.take().await {
            held.push(permit);
        }
        held
    }

    #[tokio::test(start_paused = true)]
    async fn a_party_that_hangs_costs_its_own_threads_and_nothing_else() {
        let (hung, sound) = (Threads::new(3), Threads::new(3));
        let held = all(&hung).await;
        assert_eq!(held.len(), 3);
        assert_eq!(hung.take().await.expect_err("none is left"), Full::Own(3));
        assert_eq!(all(&sound).await.len(), 3);
        drop(held);
        assert_eq!(all(&hung).await.len(), 3, "they have returned");
    }

    #[tokio::test(start_paused = true)]
    async fn a_party_whose_threads_hang_for_long_is_refused_at_once() {
        let threads = Threads::new(2);
        tokio::time::advance(LONG).await;
        let held = all(&threads).await;
        let start = Instant::now();
        let full = threads.take().await.expect_err("none comes back");
        assert_eq!((full, start.elapsed()), (Full::Own(2), WAIT_TIMEOUT));
        assert!(!threads.are_away(), "they were taken a moment ago");
        tokio::time::advance(LONG).await;
        let start = Instant::now();
        let full = threads.take().await.expect_err("they hang");
        assert_eq!((full, start.elapsed()), (Full::Away(2), Duration::ZERO));
        drop(held);
        assert!(!threads.are_away() && threads.take().await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn one_long_work_among_short_ones_is_no_sign_that_storage_hangs() {
        let threads = Threads::new(2);
        let _long = threads.take().await.expect("a thread");
        tokio::time::advance(Duration::from_mins(1)).await;
        let short = threads.take().await.expect("a thread");
        assert!(!threads.are_away(), "the other started only now");
        let next = threads.take();
        let (next, ()) = tokio::join!(next, async { drop(short) });
        assert!(next.is_ok(), "one came back");
    }

    #[tokio::test(start_paused = true)]
    async fn threads_are_taken_on_the_account_of_the_task_and_freely_without_one() {
        assert!(matches!(take().await, Ok(None)));
        let one = Threads::new(1);
        let (first, second) = one.on_account(async { (take().await, take().await) }).await;
        assert!(matches!(first, Ok(Some(_))));
        let full = second.expect_err("full");
        assert_eq!(full, Full::Own(1));
        for (full, hangs) in [(Full::Own(1), false), (Full::Away(1), true)] {
            let error = refused("ask", full);
            assert_eq!(is_for_threads_that_hang(&error), hangs);
            assert!(is_for_want_of_a_thread(&error));
        }
        assert!(!is_for_want_of_a_thread(&Error::new(Kind::Pending, "ask")));
    }
}
