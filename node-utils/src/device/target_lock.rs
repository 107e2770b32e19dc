//! One lock per iSCSI target or NVMe subsystem.
//!
//! Its volumes may share a session or a connection, and a device that was just attached is not in use until it is
//! mounted: a logout in between would take it away. So stages of its volumes run beside each other and open their
//! sessions one after the other, and a detach runs alone. Only this process takes part. Nothing is kept for a target
//! without work.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, PoisonError, Weak};

use tokio::sync::{Mutex, MutexGuard, OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};
use tokio::time::{Instant, timeout_at};

use csi_types::error::{Error, Kind};

/// Shared by stages, of which one has the turn.
type Lock = RwLock<Mutex<()>>;

static LOCKS: LazyLock<std::sync::Mutex<HashMap<String, Weak<Lock>>>> =
    LazyLock::new(Default::default);

/// Held from before a volume is attached until it is mounted: no volume of its target is detached.
#[derive(Debug)]
#[must_use = "a detach of another volume may take the device away once it is dropped"]
pub struct StageLock(OwnedRwLockReadGuard<Mutex<()>>);

/// Held while a volume is detached: no volume of its target is attached, or waits to be mounted.
#[derive(Debug)]
pub(crate) struct DetachLock(
    #[expect(dead_code, reason = "held")] OwnedRwLockWriteGuard<Mutex<()>>,
);

// === impl StageLock ===

impl StageLock {
    /// Waits until no volume of this target is being detached.
    pub(crate) async fn of(target: &str, deadline: Instant) -> Result<Self, Error> {
        let locked = timeout_at(deadline, lock(target).read_owned()).await;
        locked.map(Self).map_err(|_| busy(target))
    }

    /// Waits for the turn to open sessions of the target.
    pub(crate) async fn turn(
        &self,
        target: &str,
        deadline: Instant,
    ) -> Result<MutexGuard<'_, ()>, Error> {
        let turn = timeout_at(deadline, self.0.lock()).await;
        turn.map_err(|_| busy(target))
    }
}

// === impl DetachLock ===

impl DetachLock {
    /// Waits until no volume of this target is being staged or detached.
    pub(crate) async fn of(target: &str, deadline: Instant) -> Result<Self, Error> {
        let locked = timeout_at(deadline, lock(target).write_owned()).await;
        locked.map(Self).map_err(|_| busy(target))
    }
}

fn lock(target: &str) -> Arc<Lock> {
    let mut locks = LOCKS.lock().unwrap_or_else(PoisonError::into_inner);
    // Drops the locks of targets without work.
    locks.retain(|_, lock| lock.strong_count() > 0);
    if let Some(lock) = locks.get(target).and_then(Weak::upgrade) {
        return lock;
    }
    let lock = Arc::<Lock>::default();
    locks.insert(target.to_owned(), Arc::downgrade(&lock));
    lock
}

fn busy(target: &str) -> Error {
    Error::new(Kind::Pending, format!("work on the target `{target}`"))
        .advise("another volume of the same target is being staged or unstaged")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(1)
    }

    #[tokio::test(start_paused = true)]
    async fn stages_share_a_target_and_a_detach_has_it_alone() {
        let one = StageLock::of("test a", soon()).await.expect("first");
        let two = StageLock::of("test a", soon()).await.expect("second");
        let error = DetachLock::of("test a", soon()).await.expect_err("staged");
        assert_eq!(error.kind(), Kind::Pending);
        drop((one, two));
        let alone = DetachLock::of("test a", soon()).await.expect("alone");
        let waiting = StageLock::of("test a", soon()).await;
        assert_eq!(waiting.expect_err("detached").kind(), Kind::Pending);
        drop(DetachLock::of("test b", soon()).await.expect("another"));
        drop(alone);
        drop(StageLock::of("test a", soon()).await.expect("free again"));
        let kept = LOCKS.lock().expect("locks");
        assert!(
            kept.get("test a")
                .is_none_or(|lock| lock.strong_count() == 0)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn of_the_stages_of_a_target_one_opens_its_sessions() {
        let one = StageLock::of("test turns", soon()).await.expect("first");
        let two = StageLock::of("test turns", soon()).await.expect("second");
        let turn = one.turn("test turns", soon()).await.expect("turn");
        let waiting = two.turn("test turns", soon()).await;
        assert_eq!(waiting.expect_err("taken").kind(), Kind::Pending);
        drop(turn);
        drop(two.turn("test turns", soon()).await.expect("given back"));
    }
}
