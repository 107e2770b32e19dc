//! Paths with an overdue read.
//!
//! Orchestrators ask for statistics every minute and retry an expansion again and again. Each read of a filesystem that
//! does not respond blocks a thread, and threads are limited. So while one read of a path is overdue, the next is
//! refused at once. Reads that returned are not remembered.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::blocking::{self, Doing, Limits};
use csi_types::attachment::AbsolutePath;
use csi_types::error::{Error, Kind};

/// The overdue reads, by path.
#[derive(Debug, Default)]
pub(super) struct OverdueReads(Mutex<HashMap<AbsolutePath, Weak<Read>>>);

/// Alive as long as the thread that reads.
#[derive(Debug)]
struct Read;

// === impl OverdueReads ===

impl OverdueReads {
    /// Runs `work`, which reads `path`, unless an earlier read is overdue.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        limits: Limits,
        doing: String,
        path: &AbsolutePath,
        work: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        if self.is_overdue(path) {
            return Err(Error::new(Kind::Timeout, doing)
                .advise("an earlier read of it has not returned: its filesystem does not answer"));
        }
        let read = Arc::new(Read);
        let watch = Arc::downgrade(&read);
        let result = blocking::run(limits, Doing::reading(doing), move || {
            let result = work();
            drop(read);
            result
        });
        let result = result.await;
        // Late and still under way; one that ends right now leaves a dead entry, which is none.
        if watch.strong_count() > 0 {
            self.reads().insert(path.clone(), watch);
        }
        result
    }

    fn is_overdue(&self, path: &AbsolutePath) -> bool {
        let mut reads = self.reads();
        reads.retain(|_, read| read.strong_count() > 0);
        reads.contains_key(path)
    }

    fn reads(&self) -> std::sync::MutexGuard<'_, HashMap<AbsolutePath, Weak<Read>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use tokio::time::Instant;

    use super::*;

    fn within(millis: u64) -> Limits {
        Limits::until(Instant::now() + Duration::from_millis(millis))
    }

    #[tokio::test]
    async fn a_path_that_does_not_answer_keeps_one_thread_and_others_are_looked_at() {
        let overdue = OverdueReads::default();
        let [dead, sound] = ["/dead", "/sound"].map(|path| AbsolutePath::parse(path).unwrap());
        let (answer, hung) = mpsc::channel::<()>();
        let read = overdue.read(within(20), "read".into(), &dead, move || {
            let _ = hung.recv();
            Ok(())
        });
        let late = read.await.expect_err("late");
        assert_eq!(late.kind(), Kind::Timeout);
        for _ in 0..3 {
            let never = || -> Result<(), _> { panic!("another thread was spent") };
            let read = overdue.read(within(60_000), "read".into(), &dead, never);
            let error = read.await.expect_err("refused");
            assert_eq!(error.kind(), Kind::Timeout);
        }
        let read = overdue.read(within(60_000), "read".into(), &sound, || Ok(7));
        assert_eq!(read.await.expect("another path"), 7);
        drop(answer);
        while overdue.is_overdue(&dead) {
            tokio::task::yield_now().await;
        }
        let read = overdue.read(within(60_000), "read".into(), &dead, || Ok(7));
        assert_eq!(read.await.expect("it answers again"), 7);
        assert!(overdue.reads().is_empty(), "nothing is remembered");
    }
}
