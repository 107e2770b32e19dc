//! One hop from an async thread to a thread that may block, with a deadline.
//!
//! A system call on a dead mount can block forever and cannot be cancelled. The caller stops waiting
//! at its deadline and the thread continues. The guard of the volume is released when the work has
//! really ended, so that no other call changes the volume until then. Work that only reads changes
//! nothing, however late it returns, and holds no guard then.

mod threads;

use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;
use tracing::Span;

use csi_types::error::{Effect, Error, Kind};

pub use threads::of_node::OF_A_NODE;
pub(crate) use threads::of_node::{NodeAccount, NodeThreads, Purpose, Source, meant_for};
pub use threads::{Threads, is_for_threads_that_hang, is_for_want_of_a_thread};

/// How long the caller spins before it sleeps. Most calls on a local filesystem take a few
/// microseconds, and waking a thread takes longer.
const SPIN_TIME: Duration = Duration::from_micros(50);

/// The number of running pieces of work.
static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);

/// On one processor, a busy wait would only delay the work.
static STAYS_AWAKE: LazyLock<bool> =
    LazyLock::new(|| std::thread::available_parallelism().is_ok_and(|cores| cores.get() > 1));

/// Counts one piece of work as long as it lives.
struct UnderWay;

/// The limits on which a verb runs: when its caller stops waiting, and what stays held until the
/// work is over. A verb of several steps gives each of them a clone.
#[derive(Debug, Clone)]
pub struct Limits {
    deadline: Instant,
    hold: Hold,
}

/// The value released at the end of the work: the in-flight guard of a volume. The mutex is never locked; it lets
/// several threads share one guard.
#[derive(Clone)]
struct Hold(Option<Arc<Mutex<dyn Any + Send>>>);

// === impl Limits ===

impl Limits {
    /// The caller waits until `deadline` and holds nothing.
    pub fn until(deadline: Instant) -> Self {
        Self {
            deadline,
            hold: Hold(None),
        }
    }

    /// Holds `guard` until the work has really ended, even if its caller is long gone.
    #[must_use]
    pub fn holding(mut self, guard: impl Any + Send) -> Self {
        self.hold = Hold(Some(Arc::new(Mutex::new(guard))));
        self
    }

    /// When the caller stops waiting.
    pub(crate) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// The same, but waiting until `deadline` if that is later: for undoing.
    #[must_use]
    pub(crate) fn at_least_until(&self, deadline: Instant) -> Self {
        Self {
            deadline: self.deadline.max(deadline),
            hold: self.hold.clone(),
        }
    }

    /// The same, but not waiting longer than until `deadline`.
    #[must_use]
    pub(crate) fn no_later_than(&self, deadline: Instant) -> Self {
        Self {
            deadline: self.deadline.min(deadline),
            hold: self.hold.clone(),
        }
    }
}

// === impl UnderWay ===

impl UnderWay {
    fn begin() -> Self {
        UNDER_WAY.fetch_add(1, Ordering::Relaxed);
        Self
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        UNDER_WAY.fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "held" } else { "nothing" })
    }
}

/// A verb and its path, for messages, and whether it may change anything.
#[derive(Debug)]
pub(crate) struct Doing {
    text: String,
    effect: Effect,
}

impl Doing {
    /// A verb that changes the node.
    pub(crate) fn changing(text: String) -> Self {
        let effect = Effect::Possible;
        Self { text, effect }
    }

    /// A verb that only reads.
    pub(crate) fn reading(text: String) -> Self {
        let effect = Effect::None;
        Self { text, effect }
    }

    fn failed(self, kind: Kind) -> Error {
        Error::new(kind, self.text).with_effect(self.effect)
    }
}

/// Runs `work` on a thread that may block. Its log lines belong to the calling request.
pub fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    let span = Span::current();
    // Spins only while this is the only work: otherwise the thread has other tasks to run.
    let alone = UNDER_WAY.load(Ordering::Relaxed) == 0;
    let under_way = UnderWay::begin();
    let task = tokio::task::spawn_blocking(move || {
        let result = span.in_scope(work);
        drop(under_way);
        result
    });
    if alone && *STAYS_AWAKE {
        spin_until_done(&task);
    }
    task
}

/// The same on the account of the task, see [`Threads::on_account`], as soon as a thread is free.
/// `Pending` if none becomes free in time, or if the threads of the party hang for long; nothing was
/// started then.
pub async fn spawn_on_account<T: Send + 'static>(
    doing: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, Error> {
    let held = threads::take()
        .await
        .map_err(|full| threads::refused(doing, full))?;
    Ok(spawn(move || {
        let result = work();
        drop(held);
        result
    }))
}

/// Spins until `task` is done, at most for [`SPIN_TIME`].
fn spin_until_done<T>(task: &JoinHandle<T>) {
    let began = std::time::Instant::now();
    while !task.is_finished() && began.elapsed() < SPIN_TIME {
        std::hint::spin_loop();
    }
}

/// Runs `work` on a thread that may block.
pub(crate) async fn run<T: Send + 'static>(
    limits: Limits,
    doing: Doing,
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let Limits { deadline, hold } = limits;
    let is_held = hold.0.is_some();
    if deadline <= Instant::now() {
        return Err(Error::new(Kind::Timeout, doing.text));
    }
    let (in_the_end, now) = match doing.effect {
        Effect::Possible => (hold, Hold(None)),
        // Unmounting a filesystem that does not respond must not wait for a process that reads it.
        Effect::None => (Hold(None), hold),
    };
    let started = spawn_on_account(&doing.text, move || {
        let result = work();
        drop(in_the_end);
        result
    });
    let Ok(task) = tokio::time::timeout_at(deadline, started).await else {
        return Err(Error::new(Kind::Timeout, doing.text).because("no thread was free"));
    };
    let task = task?;
    let waited = tokio::time::timeout_at(deadline, task).await;
    drop(now);
    match waited {
        Ok(Ok(result)) => result,
        // The text of a panic may hold secrets; the panic hook has logged it.
        Ok(Err(error)) => {
            #[cfg(test)]
            let error = pass_on_kill(error);
            drop(error);
            Err(doing
                .failed(Kind::Internal)
                .advise("the work panicked, which is a defect; a retry is safe"))
        }
        Err(elapsed) => {
            let advice = match doing.effect {
                Effect::Possible if is_held => {
                    "the kernel has not answered yet; the volume stays locked until it does"
                }
                Effect::Possible | Effect::None => "the kernel has not answered yet",
            };
            Err(doing.failed(Kind::Timeout).because(elapsed).advise(advice))
        }
    }
}

/// A thread that a test has killed ends the whole call.
#[cfg(test)]
fn pass_on_kill(error: tokio::task::JoinError) -> Option<tokio::task::JoinError> {
    let panic = error.try_into_panic().ok()?;
    if panic.is::<crate::testing::Killed>() {
        std::panic::resume_unwind(panic);
    }
    None
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;

    fn soon() -> Limits {
        Limits::until(Instant::now() + Duration::from_mins(1))
    }

    #[tokio::test]
    async fn what_is_held_is_released_before_the_answer_is_seen() {
        let guard = Arc::new(());
        let limits = soon().holding(Arc::clone(&guard));
        let result = run(limits, Doing::changing("work".into()), || Ok(7)).await;
        assert_eq!(result.expect("done"), 7);
        assert_eq!(Arc::strong_count(&guard), 1);
    }

    #[tokio::test]
    async fn what_is_held_outlasts_late_work_but_not_a_late_look() {
        for (doing, holders) in [
            (Doing::changing("work".into()), 2),
            (Doing::reading("look".into()), 1),
        ] {
            let guard = Arc::new(());
            let (answer, hung) = std::sync::mpsc::channel::<()>();
            let limits = Limits::until(Instant::now() + Duration::from_millis(20));
            let work = move || {
                let _ = hung.recv();
                Ok(())
            };
            let late = run(limits.holding(Arc::clone(&guard)), doing, work).await;
            assert_eq!(late.expect_err("late").kind(), Kind::Timeout);
            assert_eq!(Arc::strong_count(&guard), holders);
            drop(answer);
            while Arc::strong_count(&guard) > 1 {
                tokio::task::yield_now().await;
            }
        }
    }

    #[tokio::test]
    async fn only_work_that_holds_something_is_said_to_lock_the_volume() {
        for is_held in [true, false] {
            let (answer, hung) = std::sync::mpsc::channel::<()>();
            let limits = Limits::until(Instant::now() + Duration::from_millis(20));
            let limits = if is_held { limits.holding(()) } else { limits };
            let work = move || {
                let _ = hung.recv();
                Ok(())
            };
            let late = run(limits, Doing::changing("work".into()), work).await;
            let text = late.expect_err("late").chain();
            assert_eq!(text.contains("stays locked"), is_held, "{text}");
            drop(answer);
        }
    }

    #[tokio::test]
    async fn a_panic_is_an_error_of_unknown_effect_and_releases_what_is_held() {
        let guard = Arc::new(());
        let limits = soon().holding(Arc::clone(&guard));
        let work = || -> Result<(), Error> { panic!("a defect") };
        let error = run(limits, Doing::changing("work".into()), work).await;
        let error = error.expect_err("panicked");
        assert_eq!(error.kind(), Kind::Internal);
        assert_eq!(error.effect(), Effect::Possible);
        assert_eq!(Arc::strong_count(&guard), 1);
    }
}
