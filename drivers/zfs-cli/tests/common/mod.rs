//! Common parts of the tests over a command line.

use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use exec::{Batch, Command, InputStream, Output, OutputStream, RunError, Runner};

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

    async fn stream_output(&self, command: &Command) -> Result<Box<dyn OutputStream>, RunError> {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.inner.stream_output(command).await
    }

    async fn run_with_input(
        &self,
        command: &Command,
        input: &mut dyn InputStream,
    ) -> Result<Output, RunError> {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.inner.run_with_input(command, input).await
    }
}
