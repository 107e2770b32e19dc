//! Paths with a look that is overdue.
//!
//! Orchestrators ask for statistics every minute and retry growth again and again. Each look at a filesystem that does
//! not respond blocks a thread, and threads are limited. So while one look at a path is overdue, the next is refused at
//! once. Looks that returned are not remembered.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::blocking::{self, Doing, Limits};
use csi_types::attachment::AbsolutePath;
use csi_types::error::{Error, Kind};

/// The looks that are overdue, by path.
#[derive(Debug, Default)]
pub(super) struct OverdueLooks(Mutex<HashMap<AbsolutePath, Weak<Look>>>);

/// Alive as long as the thread that looks.
#[derive(Debug)]
struct Look;

// === impl OverdueLooks ===

impl OverdueLooks {
    /// Runs `work`, which looks at `path`, unless an earlier look is overdue.
    pub(super) async fn look<T: Send + 'static>(
        &self,
        limits: Limits,
        doing: String,
        path: &AbsolutePath,
        work: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        if self.is_overdue(path) {
            return Err(Error::new(Kind::Timeout, doing).advise(
                "an earlier look at it has not come back: its filesystem does not answer",
            ));
        }
        let look = Arc::new(Look);
        let watch = Arc::downgrade(&look);
        let result = blocking::run(limits, Doing::reading(doing), move || {
            let result = work();
            drop(look);
            result
        });
        let result = result.await;
        // Late and still under way; one that ends right now leaves a dead entry, which is none.
        if watch.strong_count() > 0 {
            self.looks().insert(path.clone(), watch);
        }
        result
    }

    fn is_overdue(&self, path: &AbsolutePath) -> bool {
        let mut looks = self.looks();
        looks.retain(|_, look| look.strong_count() > 0);
        looks.contains_key(path)
    }

    fn looks(&self) -> std::sync::MutexGuard<'_, HashMap<AbsolutePath, Weak<Look>>> {
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
        let overdue = OverdueLooks::default();
        let [dead, sound] = ["/dead", "/sound"].map(|path| AbsolutePath::parse(path).unwrap());
        let (answer, hung) = mpsc::channel::<()>();
        let look = overdue.look(within(20), "look".into(), &dead, move || {
            let _ = hung.recv();
            Ok(())
        });
        let late = look.await.expect_err("late");
        assert_eq!(late.kind(), Kind::Timeout);
        for _ in 0..3 {
            let never = || -> Result<(), _> { panic!("another thread was spent") };
            let look = overdue.look(within(60_000), "look".into(), &dead, never);
            let error = look.await.expect_err("refused");
            assert_eq!(error.kind(), Kind::Timeout);
        }
        let look = overdue.look(within(60_000), "look".into(), &sound, || Ok(7));
        assert_eq!(look.await.expect("another path"), 7);
        drop(answer);
        while overdue.is_overdue(&dead) {
            tokio::task::yield_now().await;
        }
        let look = overdue.look(within(60_000), "look".into(), &dead, || Ok(7));
        assert_eq!(look.await.expect("it answers again"), 7);
        assert!(overdue.looks().is_empty(), "nothing is remembered");
    }
}
