//! Locks per iSCSI target or NVMe subsystem.
//!
//! A device that was just attached is not in use until it is mounted. A logout from its target in between would remove
//! it. So stages of volumes of one target may run in parallel, and a detach runs alone. No state is kept for a target
//! without work.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};
use tokio::time::Instant;

use csi_types::error::{Error, Kind};

/// One lock per target with work.
#[derive(Debug, Default)]
pub(super) struct TargetLocks(Mutex<HashMap<String, Weak<RwLock<()>>>>);

// === impl TargetLocks ===

impl TargetLocks {
    /// For a stage: together with other stages.
    pub(super) async fn shared(
        &self,
        target: &str,
        deadline: Instant,
    ) -> Result<OwnedRwLockReadGuard<()>, Error> {
        let lock = self.lock(target).read_owned();
        tokio::time::timeout_at(deadline, lock)
            .await
            .map_err(|_| busy(target))
    }

    /// For a detach: exclusive.
    pub(super) async fn exclusive(
        &self,
        target: &str,
        deadline: Instant,
    ) -> Result<OwnedRwLockWriteGuard<()>, Error> {
        let lock = self.lock(target).write_owned();
        tokio::time::timeout_at(deadline, lock)
            .await
            .map_err(|_| busy(target))
    }

    fn lock(&self, target: &str) -> Arc<RwLock<()>> {
        let mut targets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        targets.retain(|_, lock| lock.strong_count() > 0);
        if let Some(lock) = targets.get(target).and_then(Weak::upgrade) {
            return lock;
        }
        let lock = Arc::new(RwLock::new(()));
        targets.insert(target.to_owned(), Arc::downgrade(&lock));
        lock
    }
}

fn busy(target: &str) -> Error {
    Error::new(Kind::Pending, format!("work on the target `{target}`"))
        .advise("another volume of the same target is being staged or unstaged")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn now() -> Instant {
        Instant::now()
    }

    #[tokio::test]
    async fn stages_share_a_target_and_a_detach_has_it_alone() {
        let locks = TargetLocks::default();
        let soon = now() + Duration::from_mins(1);
        let one = locks.shared("a", soon).await.expect("first");
        let two = locks.shared("a", soon).await.expect("second");
        let error = locks.exclusive("a", now()).await.expect_err("others stage");
        assert_eq!(error.kind(), Kind::Pending);
        drop((one, two));
        let alone = locks.exclusive("a", soon).await.expect("alone");
        locks.shared("a", now()).await.expect_err("one detaches");
        drop(locks.exclusive("b", soon).await.expect("another target"));
        drop(alone);
        locks.shared("a", soon).await.expect("free again");
        drop(locks.lock("c"));
        assert_eq!(locks.0.lock().expect("lock").len(), 1, "only the last one");
    }
}
