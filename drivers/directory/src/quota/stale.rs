//! Qgroups of subvolumes that this process has deleted.
//!
//! A kernel before 6.11 leaves them to others, and refuses to remove one until the blocks of its subvolume are
//! free, which takes seconds. So they are remembered for the next calls. What a process does not get to is a
//! number without a limit, which no subvolume ever gets again.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use node_utils::subvolumes;
use rustix::io::Errno;

use crate::crash_points;

/// The number of those that are tried at once. With simple quotas one remains as long as a clone shares its blocks.
const TRIES: usize = 16;

/// Their numbers, those that were not tried for the longest time first.
#[derive(Debug, Default)]
pub(crate) struct StaleQgroups(Mutex<VecDeque<u64>>);

// === impl StaleQgroups ===

impl StaleQgroups {
    fn ids(&self) -> MutexGuard<'_, VecDeque<u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note of a subvolume that was deleted.
    pub(crate) fn add(&self, subvolume: Option<u64>) {
        self.ids().extend(subvolume);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ids().is_empty()
    }

    /// Removes those that can be removed, on the filesystem of `fd`.
    pub(crate) fn remove(&self, fd: impl AsFd) {
        self.try_each(|id| subvolumes::remove_quota(&fd, id));
    }

    fn try_each(&self, remove: impl Fn(u64) -> Result<(), Errno>) {
        let count = self.ids().len().min(TRIES);
        for _ in 0..count {
            let Some(id) = self.ids().pop_front() else {
                return;
            };
            match remove(id) {
                Err(Errno::BUSY) => self.ids().push_back(id),
                // The kernel may have removed it itself, or quotas are off by now.
                _ => crash_points::mark("remove qgroup"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn what_is_busy_is_tried_again_later_and_what_is_gone_is_not() {
        let stale = StaleQgroups::default();
        assert!(stale.is_empty());
        let last = u64::try_from(TRIES).expect("number");
        for id in 0..=last {
            stale.add(Some(id));
        }
        stale.add(None);
        let tried = RefCell::new(Vec::new());
        let attempt = |outcome: &dyn Fn(u64) -> Result<(), Errno>| {
            stale.try_each(|id| {
                tried.borrow_mut().push(id);
                outcome(id)
            });
            tried.take()
        };
        let busy = |id| if id == 3 { Err(Errno::BUSY) } else { Ok(()) };
        assert_eq!(attempt(&busy), (0..last).collect::<Vec<_>>());
        assert_eq!(attempt(&busy), [last, 3]);
        assert_eq!(attempt(&|_| Err(Errno::NOENT)), [3]);
        assert!(stale.is_empty());
    }
}
