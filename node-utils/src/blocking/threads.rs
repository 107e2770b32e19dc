//! Threads that may block, shared by several parties of which any may hang.
//!
//! A system call that hangs keeps its thread for as long as it hangs, even if its caller has stopped waiting.
//! So threads are counted until they really end, not calls. Half of them are reserved for accounts
//! without a thread: many accounts may hang before another one gets no thread. An account without a
//! free thread waits, unless its own threads have hung for long.

pub(crate) mod of_node;
mod pool;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use csi_types::error::{Error, Kind};
use of_node::{NodeAccount, NodePermit};
use pool::{Held, Party, Pool};

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
    Party(#[expect(dead_code, reason = "it is dropped")] Held),
    Node(#[expect(dead_code, reason = "it is dropped")] NodePermit),
}

/// Additional threads that run only probes of parties.
const PROBES: usize = 64;

/// How long a caller waits for a thread by default.
const WAIT_TIMEOUT: Duration = Duration::from_secs(10);

/// A number of threads for several parties. Clones share it.
#[derive(Debug, Clone)]
pub struct ThreadPool {
    calls: Pool,
    probes: Pool,
}

/// The share of one party. Clones are the same party.
#[derive(Debug, Clone)]
pub struct Threads {
    pool: Pool,
    party: Party,
    wait_timeout: Duration,
}

/// No thread is available.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Full {
    /// The party uses its whole share.
    #[error("{0} threads wait for it already")]
    Own(usize),
    /// The same, and none of them has returned for long.
    #[error("{0} threads wait for it already, and have for long")]
    Away(usize),
    /// Other parties use all of them.
    #[error("no thread was free for {0:?}")]
    Others(Duration),
}

// === impl ThreadPool ===

impl ThreadPool {
    /// A pool of `threads` threads for calls. Threads for probes are added to them.
    pub fn new(threads: usize) -> Self {
        Self {
            calls: Pool::shared(threads),
            probes: Pool::shared(PROBES),
        }
    }

    /// The total number of threads.
    pub const fn in_all(threads: usize) -> usize {
        threads + PROBES
    }

    /// A new party. It does not count the threads of older parties of its name, so that threads that
    /// hang do not block their successor. All parties of one name together have a limit as well.
    pub fn party(&self, name: impl Into<Arc<str>>) -> Threads {
        Threads::of(&self.calls, name.into(), usize::MAX)
    }

    /// A thread for a probe of that party. At most one is in use.
    pub fn probe(&self, name: impl Into<Arc<str>>) -> Threads {
        Threads::of(&self.probes, name.into(), 1)
    }
}

// === impl Threads ===

impl Threads {
    fn of(pool: &Pool, name: Arc<str>, most: usize) -> Self {
        Self {
            party: pool.party(name, most),
            pool: pool.clone(),
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
        self.pool.are_away(&self.party)
    }

    /// Runs `work` on the account of this party.
    pub async fn on_account<F: Future>(&self, work: F) -> F::Output {
        ACCOUNT.scope(Account::Party(self.clone()), work).await
    }

    /// A thread, as soon as one is free.
    async fn take(&self) -> Result<Held, Full> {
        let waiting: oneshot::Receiver<Held> = match self.pool.take(&self.party)? {
            Ok(held) => return Ok(held),
            Err(waiting) => waiting,
        };
        match tokio::time::timeout(self.wait_timeout, waiting).await {
            Ok(Ok(held)) => Ok(held),
            Ok(Err(_)) | Err(_) => Err(self.pool.why_none(&self.party, self.wait_timeout)),
        }
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

/// Whether this is the error of work that did not start because others use all threads. It says nothing about the
/// backend.
pub fn is_for_lack_of_threads(error: &Error) -> bool {
    matches!(lack(error), Some(Full::Others(_)))
}

/// Whether this is the error of work that did not start because the threads of its account hang.
pub fn is_for_threads_that_hang(error: &Error) -> bool {
    matches!(lack(error), Some(Full::Away(_)))
}

/// Whether this is the error of work that did not start for lack of a thread, for either reason.
pub fn is_for_want_of_a_thread(error: &Error) -> bool {
    lack(error).is_some()
}

fn lack(error: &Error) -> Option<&Full> {
    let source = std::error::Error::source(error);
    source.and_then(|source| source.downcast_ref::<Full>())
}
