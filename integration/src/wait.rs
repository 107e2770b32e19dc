//! Waits for conditions, each with a deadline and a name, never for a fixed time.

use std::thread;
use std::time::Duration;

use tokio::time::{Instant, sleep};

/// The time that a condition may take on a slow and busy machine.
pub const PATIENCE: Duration = Duration::from_mins(1);

/// Waits until `condition` gives a value.
///
/// # Panics
/// If that takes longer than [`PATIENCE`].
pub async fn until<T>(what: &str, condition: impl FnMut() -> Option<T>) -> T {
    until_within(PATIENCE, what, condition).await
}

/// The same with a limit of its own.
///
/// # Panics
/// If that takes longer than the limit.
pub async fn until_within<T>(
    limit: Duration,
    what: &str,
    mut condition: impl FnMut() -> Option<T>,
) -> T {
    let deadline = Instant::now() + limit;
    let mut pause = Duration::from_micros(200);
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        sleep(pause).await;
        pause = (pause * 3 / 2).min(Duration::from_millis(20));
    }
}

/// The same for an asynchronous condition.
///
/// # Panics
/// If that takes longer than [`PATIENCE`].
pub async fn until_answered<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = ask().await {
            return value;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        sleep(Duration::from_millis(20)).await;
    }
}

/// The same on a thread that may block, for a condition that each check delays: the pauses grow.
///
/// # Panics
/// If that takes longer than [`PATIENCE`].
pub fn until_blocking<T>(what: &str, mut condition: impl FnMut(Duration) -> Option<T>) -> T {
    let began = Instant::now();
    let mut pause = Duration::from_millis(100);
    loop {
        if let Some(value) = condition(began.elapsed()) {
            return value;
        }
        assert!(began.elapsed() < PATIENCE, "waited in vain for {what}");
        #[expect(
            clippy::disallowed_methods,
            reason = "the thread is there to be blocked"
        )]
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_secs(2));
    }
}
