//! A writer that knows what it wrote: every block says which write it is of, and only what was
//! acknowledged counts.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::content;

const BLOCK: usize = 4096;
/// So many blocks are written again and again.
const BLOCKS: u64 = 512;

/// A thread that writes until it is told to stop.
#[derive(Debug)]
pub struct Writer {
    state: Arc<State>,
    thread: JoinHandle<io::Result<()>>,
}

#[derive(Debug, Default)]
struct State {
    /// So many writes have reached the storage.
    acknowledged: AtomicU64,
    stop: AtomicBool,
}

// === impl Writer ===

impl Writer {
    /// Begins to write to a file.
    ///
    /// # Panics
    /// If the file cannot be made.
    pub fn start(file: &Path) -> Self {
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(file)
            .expect("a file to write");
        let state = Arc::new(State::default());
        let shared = Arc::clone(&state);
        let thread = std::thread::spawn(move || shared.write(&file));
        Self { state, thread }
    }

    /// So many writes have reached the storage.
    pub fn acknowledged(&self) -> u64 {
        self.state.acknowledged.load(Ordering::Acquire)
    }

    /// Waits until another write has reached the storage; how long that took.
    ///
    /// # Panics
    /// If it takes longer than `limit`, or the writer met an error.
    pub async fn goes_on(&self, limit: Duration) -> Duration {
        let (began, seen) = (Instant::now(), self.acknowledged());
        // One may have been on its way before the fault.
        while self.acknowledged() < seen + 2 {
            assert!(!self.thread.is_finished(), "the writer met an error");
            assert!(
                began.elapsed() < limit,
                "nothing could be written for {limit:?}"
            );
            sleep(Duration::from_millis(50)).await;
        }
        began.elapsed()
    }

    /// Stops after the write that is being made; how many were acknowledged.
    ///
    /// # Panics
    /// If the writer met an error.
    pub fn stop(self) -> u64 {
        self.state.stop.store(true, Ordering::Release);
        let ended = self.thread.join().expect("the writer does not panic");
        ended.expect("no write failed");
        self.state.acknowledged.load(Ordering::Acquire)
    }
}

// === impl State ===

impl State {
    fn write(&self, file: &File) -> io::Result<()> {
        let mut number = 0;
        while !self.stop.load(Ordering::Acquire) {
            file.write_all_at(&content::bytes(number, BLOCK), place(number))?;
            file.sync_data()?;
            number += 1;
            self.acknowledged.store(number, Ordering::Release);
        }
        Ok(())
    }
}

fn place(number: u64) -> u64 {
    number % BLOCKS * BLOCK as u64
}

/// Compares a content with what a stopped writer had acknowledged.
///
/// # Panics
/// If a block is not the last that was written there.
pub fn check(found: &[u8], acknowledged: u64) {
    let blocks = acknowledged.min(BLOCKS);
    assert_eq!(found.len(), usize::try_from(blocks).expect("small") * BLOCK);
    for number in acknowledged - blocks..acknowledged {
        let from = usize::try_from(place(number)).expect("small");
        let block = &found[from..from + BLOCK];
        content::same(
            &content::bytes(number, BLOCK),
            block,
            &format!("write {number} of {acknowledged}"),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_lost_block_is_found_and_none_is_missed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        let writer = Writer::start(&path);
        writer.goes_on(Duration::from_secs(10)).await;
        let acknowledged = writer.stop();
        let mut content = std::fs::read(&path).expect("the file");
        check(&content, acknowledged);
        content[BLOCK + 1] ^= 1;
        let checked = std::panic::catch_unwind(|| check(&content, acknowledged));
        assert!(checked.is_err(), "a wrong byte is not seen");
    }
}
