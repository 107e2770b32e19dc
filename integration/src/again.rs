//! Work that is repeated in the background of a test until it is stopped.

use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// The pause between two rounds: at least this long, and this multiple of the last round. The
/// program under test needs the processor as well.
const PAUSE: Duration = Duration::from_millis(100);
const REST: u32 = 30;

/// Repeated work. Dropped, it is aborted.
#[derive(Debug)]
pub struct Again {
    is_over: watch::Sender<bool>,
    tasks: Vec<(&'static str, JoinHandle<Ended>)>,
}

/// The outcome of one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// The number of finished rounds.
    pub rounds: u64,
    /// It ended before it was stopped.
    pub by_itself: bool,
}

// === impl Again ===

impl Again {
    /// Without work.
    pub fn new() -> Self {
        Self {
            is_over: watch::Sender::new(false),
            tasks: Vec::new(),
        }
    }

    /// Adds work that is repeated at least once, as long as `round` returns `true`. `round` gets
    /// the number of finished rounds.
    pub fn also<F>(&mut self, name: &'static str, mut round: impl FnMut(u64) -> F + Send + 'static)
    where
        F: Future<Output = bool> + Send,
    {
        let mut is_over = self.is_over.subscribe();
        let task = tokio::spawn(async move {
            let mut rounds = 0;
            loop {
                let began = Instant::now();
                if !round(rounds).await {
                    let by_itself = true;
                    return Ended { rounds, by_itself };
                }
                rounds += 1;
                tokio::select! {
                    () = sleep(PAUSE.max(began.elapsed() * REST)) => {}
                    _ = is_over.wait_for(|is_over| *is_over) => {
                        let by_itself = false;
                        return Ended { rounds, by_itself };
                    }
                }
            }
        });
        self.tasks.push((name, task));
    }

    /// Ends all of them, each after a complete round, and returns the results.
    ///
    /// # Panics
    /// If one has panicked.
    pub async fn end(mut self) -> Vec<(&'static str, Ended)> {
        self.is_over.send_replace(true);
        let mut all = Vec::new();
        for (name, task) in std::mem::take(&mut self.tasks) {
            let ended = task.await.unwrap_or_else(|error| panic!("{name}: {error}"));
            all.push((name, ended));
        }
        all
    }
}

impl Default for Again {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Again {
    fn drop(&mut self) {
        self.tasks.iter().for_each(|(_, task)| task.abort());
    }
}
