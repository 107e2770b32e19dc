//! Memory for what storage answers: one budget for the whole process.
//!
//! A small answer costs nothing. A large one is read only while its bytes are reserved here, so that however many
//! storages answer at once, and whatever one of them sends, the process keeps within its memory.
//!
//! Outputs over SSH have a budget of their own, in that crate. Who asks here waits, and who reads SSH must not: it
//! would stop all other commands of its connection. From one budget the waiting would take all, and an appliance that
//! floods would refuse the commands of every ZFS host. Outputs of programs of this machine and its files are not
//! counted: no storage decides how large they are, and each has a cap of its own.

use std::sync::{Arc, LazyLock, OnceLock};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// An answer of up to so many bytes is read without a reservation.
pub const SMALL_ANSWER: usize = 1 << 20;

/// The bytes of all large answers together, in the whole process: the largest of two connections, so that one that floods
/// leaves room for another.
const ALL: usize = 96 << 20;

/// A unit of counting.
const UNIT: usize = 1 << 10;

/// Bytes that may be in flight.
#[derive(Debug, Clone)]
pub struct ByteBudget {
    free: Arc<Semaphore>,
    units: u32,
    /// The budget that this one is a part of.
    whole: Option<&'static Self>,
}

/// Bytes of a budget, given back when it is dropped, after the allocator gave what is free to the kernel: else each thread
/// that has read a large answer would keep as much of its own.
#[derive(Debug)]
pub struct ReservedBytes {
    _permits: [Option<OwnedSemaphorePermit>; 2],
}

/// What gives free memory to the kernel.
static TRIM: OnceLock<fn()> = OnceLock::new();

/// From now on this is called after each large answer. The first one counts.
pub fn trim_by(trim: fn()) {
    TRIM.get_or_init(|| trim);
}

/// The budget of the process.
static PROCESS: LazyLock<ByteBudget> = LazyLock::new(|| ByteBudget::new(ALL));

// === impl ReservedBytes ===

impl Drop for ReservedBytes {
    fn drop(&mut self) {
        if let Some(trim) = TRIM.get() {
            trim();
        }
    }
}

// === impl ByteBudget ===

impl ByteBudget {
    /// A budget of its own.
    pub fn new(bytes: usize) -> Self {
        let units = u32::try_from(bytes / UNIT).unwrap_or(u32::MAX);
        Self {
            free: Arc::new(Semaphore::new(units as usize)),
            units,
            whole: None,
        }
    }

    /// The part that one connection may have of the budget of the process.
    pub fn of_connection(bytes: usize) -> Self {
        Self {
            whole: Some(&PROCESS),
            ..Self::new(bytes)
        }
    }

    /// Waits until so many bytes are free, and takes them; all of them if there are not so many. Who waits longest
    /// is served first. What is held must not wait for more: take the most that it may become at once, and bound
    /// the time for which it is held.
    pub async fn reserve(self, bytes: usize) -> ReservedBytes {
        let whole = self.whole;
        let own = self.take(bytes).await;
        let of_whole = match whole {
            Some(whole) => whole.clone().take(bytes).await,
            None => None,
        };
        ReservedBytes {
            _permits: [own, of_whole],
        }
    }

    async fn take(self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let units = u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX);
        let permit = self.free.acquire_many_owned(units.min(self.units)).await;
        // It is never closed.
        permit.ok()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn bytes_are_given_to_others_when_they_are_free_again() {
        let budget = ByteBudget::new(8 << 20);
        let first = budget.clone().reserve(6 << 20).await;
        let small = budget.clone().reserve(2 << 20).await;
        let more = tokio::time::timeout(Duration::from_secs(1), budget.clone().reserve(1));
        assert!(more.await.is_err(), "nothing is free");
        drop((first, small));
        // More than there is: all of it.
        let all = budget.clone().reserve(usize::MAX).await;
        let more = tokio::time::timeout(Duration::from_secs(1), budget.clone().reserve(1));
        assert!(more.await.is_err(), "nothing is free");
        drop(all);
        budget.reserve(1).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_takes_all_it_may_have_leaves_room_for_another() {
        let largest = 40 << 20;
        let (first, second) = (
            ByteBudget::of_connection(largest),
            ByteBudget::of_connection(largest),
        );
        let held = first.clone().reserve(largest).await;
        let more = tokio::time::timeout(Duration::from_secs(1), first.reserve(1));
        assert!(more.await.is_err(), "it has all that it may have");
        second.reserve(largest).await;
        drop(held);
    }
}
