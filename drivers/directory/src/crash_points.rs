//! Marks the places where a killed process leaves the disk changed.
//!
//! Each mark stands right after one change. In the tests of this crate a child process ends itself
//! at a chosen mark, as `kill -9` would; in a build they are nothing.

#[cfg(not(test))]
#[inline]
pub(crate) fn mark(_step: &'static str) {}

#[cfg(test)]
pub(crate) use testing::mark;

#[cfg(test)]
pub(crate) mod testing {
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// The mark at which this process ends; no mark has the number zero.
    static STOP_AT: AtomicUsize = AtomicUsize::new(0);
    static PASSED: AtomicUsize = AtomicUsize::new(0);

    pub(crate) fn mark(_step: &'static str) {
        let number = PASSED.fetch_add(1, Ordering::SeqCst) + 1;
        if number == STOP_AT.load(Ordering::SeqCst) {
            std::process::abort();
        }
    }

    /// Begins to count; ends the process at mark `number`.
    pub(crate) fn stop_at(number: usize) {
        PASSED.store(0, Ordering::SeqCst);
        STOP_AT.store(number, Ordering::SeqCst);
    }

    /// The number of marks that were passed since then.
    pub(crate) fn passed() -> usize {
        PASSED.load(Ordering::SeqCst)
    }
}
