//! Locks per target: attaching and detaching volumes of one target happen one after the other.
//!
//! Volumes may share a session or a connection. Whether the last one is gone can only be determined while no other is
//! added. Only this process takes part.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;

use csi_types::error::{Error, Kind};

type Lock = tokio::sync::Mutex<()>;

static LOCKS: LazyLock<Mutex<HashMap<String, Weak<Lock>>>> = LazyLock::new(Mutex::default);

/// The lock of one target, until it is dropped.
#[derive(Debug)]
pub(crate) struct TargetLock {
    _guard: OwnedMutexGuard<()>,
}

/// Waits for the lock of this target.
pub(crate) async fn lock_target(target: &str, deadline: Instant) -> Result<TargetLock, Error> {
    let lock = {
        let mut locks = LOCKS.lock().unwrap_or_else(PoisonError::into_inner);
        // Drops the locks of targets without work.
        locks.retain(|_, lock| lock.strong_count() > 0);
        let known = locks.get(target).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            let lock = Arc::new(Lock::default());
            locks.insert(target.to_owned(), Arc::downgrade(&lock));
            lock
        })
    };
    let guard = tokio::time::timeout_at(deadline, lock.lock_owned()).await;
    let late = |elapsed| {
        let doing = format!("wait for another volume of {target}");
        Error::new(Kind::Pending, doing).because(elapsed)
    };
    Ok(TargetLock {
        _guard: guard.map_err(late)?,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_target_has_one_turn_and_another_target_has_its_own() {
        let soon = || Instant::now() + Duration::from_secs(1);
        let first = lock_target("test a", soon()).await.expect("turn");
        lock_target("test b", soon()).await.expect("another target");
        let waiting = lock_target("test a", soon()).await.expect_err("taken");
        assert_eq!(waiting.kind(), Kind::Pending);
        drop(first);
        lock_target("test a", soon()).await.expect("given back");
    }
}
