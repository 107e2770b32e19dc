//! The progress of a round: bytes that have passed, for a line now and then.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use driver_core::transfer::{Bookmark, Bytes, ExportInfo};
use driver_core::{Call, Error, Moment, MoveSource};
use tokio::time::Instant;

use crate::cli::connections::size;
use crate::process;

/// The time between two lines about a round, which may take hours.
const EVERY: Duration = Duration::from_secs(30);

/// The bytes of the round that runs.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// Its number; none runs at 0.
    round: AtomicUsize,
    bytes: AtomicU64,
    said: Mutex<Option<Instant>>,
}

/// A source that counts its bytes.
#[derive(Debug)]
pub(super) struct Counted<'a> {
    inner: Box<dyn MoveSource + 'a>,
    progress: Arc<Progress>,
}

/// A stream that counts its bytes.
#[derive(Debug)]
struct CountedBytes {
    inner: Box<dyn Bytes>,
    progress: Arc<Progress>,
}

// === impl Progress ===

impl Progress {
    /// A round begins; 0 is the end of all.
    pub(super) fn begin(&self, round: usize) {
        self.round.store(round, Ordering::Relaxed);
        self.bytes.store(0, Ordering::Relaxed);
        *self.lock() = Some(Instant::now());
    }

    /// Says how far the round is, or the line where none runs.
    pub(super) fn say(&self, line: &str) {
        let round = self.round.load(Ordering::Relaxed);
        if round == 0 {
            process::complain(line);
            return;
        }
        let mut said = self.lock();
        if said.is_none_or(|said| said.elapsed() >= EVERY) {
            *said = Some(Instant::now());
            let bytes = self.bytes.load(Ordering::Relaxed);
            process::complain(&format!("round {round}: {} so far", size(bytes)));
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Counted ===

impl<'a> Counted<'a> {
    /// The source, counted there.
    pub(super) fn new(inner: Box<dyn MoveSource + 'a>, progress: &Arc<Progress>) -> Self {
        Self {
            inner,
            progress: Arc::clone(progress),
        }
    }
}

#[async_trait]
impl MoveSource for Counted<'_> {
    async fn info(&self, call: &Call) -> Result<ExportInfo, Error> {
        self.inner.info(call).await
    }

    async fn open(
        &self,
        call: &Call,
        since: Option<Moment>,
        from: Option<&Bookmark>,
    ) -> Result<Box<dyn Bytes>, Error> {
        let inner = self.inner.open(call, since, from).await?;
        Ok(Box::new(CountedBytes {
            inner,
            progress: Arc::clone(&self.progress),
        }))
    }

    async fn written_since(&self, call: &Call, since: Moment) -> Result<u64, Error> {
        self.inner.written_since(call, since).await
    }

    async fn connected(&self, call: &Call) -> Result<Vec<String>, Error> {
        self.inner.connected(call).await
    }

    async fn close(&self, call: &Call) -> Result<(), Error> {
        self.inner.close(call).await
    }
}

#[async_trait]
impl Bytes for CountedBytes {
    async fn next(&mut self) -> Result<Option<Vec<u8>>, Error> {
        let piece = self.inner.next().await?;
        let bytes = piece.as_ref().map_or(0, |piece| piece.len() as u64);
        self.progress.bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(piece)
    }
}
