//! What the tests over a command line share.

use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use exec::{Batch, Command, Feed, Flow, Output, RunError, Runner};

/// Counts exchanges.
#[derive(Debug)]
pub(crate) struct Counting<R> {
    inner: R,
    count: AtomicU64,
}

impl<R> Counting<R> {
    /// Counts what goes to `inner`.
    pub(crate) fn new(inner: R) -> Self {
        Self {
            inner,
            count: AtomicU64::new(0),
        }
    }

    /// The exchanges since it was asked last.
    pub(crate) fn take(&self) -> u64 {
        self.count.swap(0, Ordering::Relaxed)
    }
}

#[async_trait]
impl<R: Runner> Runner for Counting<R> {
    async fn run(&self, command: &Command) -> Result<Output, RunError> {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.inner.run(command).await
    }

    async fn run_all(&self, commands: &[Command]) -> Batch {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.inner.run_all(commands).await
    }

    async fn pour(&self, command: &Command) -> Result<Box<dyn Flow>, RunError> {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.inner.pour(command).await
    }

    async fn feed(&self, command: &Command, feed: &mut dyn Feed) -> Result<Output, RunError> {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.inner.feed(command, feed).await
    }
}
