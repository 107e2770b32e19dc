//! The order among volumes that share a target.
//!
//! A device that was just attached is not in use until it is mounted: whoever logs out of the
//! target in between takes it away. So stages of volumes of one target may run side by side, and a
//! detach runs alone. Nothing is remembered of a target that nobody works on.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};
use tokio::time::Instant;

use csi_types::error::{Error, Kind};

/// The targets that somebody works on.
#[derive(Debug, Default)]
pub(super) struct Order(Mutex<HashMap<String, Weak<RwLock<()>>>>);

// === impl Order ===

impl Order {
    /// For a stage: beside others, while nobody detaches.
    pub(super) async fn beside(
        &self,
        target: &str,
        deadline: Instant,
    ) -> Result<OwnedRwLockReadGuard<()>, Error> {
        let lock = self.lock(target).read_owned();
        tokio::time::timeout_at(deadline, lock)
            .await
            .map_err(|_| busy(target))
    }

    /// For a detach: while nobody stages and nobody else detaches.
    pub(super) async fn alone(
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
        let order = Order::default();
        let soon = now() + Duration::from_mins(1);
        let one = order.beside("a", soon).await.expect("first");
        let two = order.beside("a", soon).await.expect("second");
        let error = order.alone("a", now()).await.expect_err("others stage");
        assert_eq!(error.kind(), Kind::Pending);
        drop((one, two));
        let alone = order.alone("a", soon).await.expect("alone");
        order.beside("a", now()).await.expect_err("one detaches");
        drop(order.alone("b", soon).await.expect("another target"));
        drop(alone);
        order.beside("a", soon).await.expect("free again");
        drop(order.lock("c"));
        assert_eq!(order.0.lock().expect("lock").len(), 1, "only the last one");
    }
}
