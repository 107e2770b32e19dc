//! A pod that writes numbered blocks, has each batch on the storage before the next, and knows
//! afterwards what must be there.
//!
//! A block holds its number and bytes that follow from the seed and the number, so that a block
//! that is wrong, stale or at the wrong place is recognized. No place is written twice. Every part is
//! a file of its own, so that names, too, are made while storage is away.
//!
//! It is a separate process, like that of a pod: a process that starts a program while one of its files
//! waits for NFS waits as well.
#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "starts itself as another process, whose output is what it has written"
)]

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::lab::content;
use crate::wait::until;

/// The command of the `lab` binary that runs a writer.
pub const COMMAND: &str = "write";

/// The length of a block.
pub const BLOCK: usize = 4096;
/// The number of blocks that reach the storage at once.
const BATCH: u64 = 4;
/// The blocks of a file.
const PART: u64 = 1024;
/// Between two batches: what it writes in five minutes has to fit into a small volume.
const PACE: Duration = Duration::from_millis(100);

/// A running writer.
#[derive(Debug)]
pub struct Writer {
    child: Child,
    stop: ChildStdin,
    listener: JoinHandle<Result<(), String>>,
    progress: Arc<Mutex<Progress>>,
    seed: u64,
}

#[derive(Debug, Default)]
struct Progress {
    blocks: u64,
    synced: Vec<Instant>,
}

/// All that was written, every block of it said to be on the storage.
#[derive(Debug, Clone)]
pub struct Written {
    seed: u64,
    blocks: u64,
}

/// Writes into a folder until standard input ends, and prints how many blocks are on the storage
/// each time that there are more.
pub fn main(folder: &Path, seed: u64) -> io::Result<()> {
    let (stop, stopped) = mpsc::channel::<()>();
    thread::spawn(move || {
        let _ = io::stdin().read(&mut [0]);
        drop(stop);
    });
    let paced = || stopped.recv_timeout(PACE) == Err(RecvTimeoutError::Timeout);
    write(folder, seed, paced, |blocks| println!("{blocks}"))
}

fn write(
    folder: &Path,
    seed: u64,
    mut goes_on: impl FnMut() -> bool,
    mut say: impl FnMut(u64),
) -> io::Result<()> {
    let mut number = 0;
    let mut part = None;
    while goes_on() {
        batch(folder, &mut part, number, seed)?;
        number += BATCH;
        say(number);
    }
    Ok(())
}

// === impl Writer ===

impl Writer {
    /// Begins to write into a folder.
    ///
    /// # Panics
    /// If this binary cannot be started.
    pub fn start(folder: &Path, seed: u64) -> Self {
        let this = std::env::current_exe().expect("this binary");
        let mut child = Command::new(this)
            .arg(COMMAND)
            .arg(folder)
            .arg(seed.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this binary starts again");
        let stop = child.stdin.take().expect("a pipe was asked for");
        let stdout = child.stdout.take().expect("a pipe was asked for");
        let progress = Arc::new(Mutex::new(Progress::default()));
        let noted = Arc::clone(&progress);
        let listener = thread::spawn(move || {
            for line in BufReader::new(stdout).lines() {
                let line = line.map_err(|error| error.to_string())?;
                let blocks = line.parse().map_err(|_| line)?;
                let mut noted = noted.lock().unwrap_or_else(PoisonError::into_inner);
                noted.blocks = blocks;
                noted.synced.push(Instant::now());
            }
            Ok(())
        });
        Self {
            child,
            stop,
            listener,
            progress,
            seed,
        }
    }

    /// When each batch so far was on the storage.
    pub fn synced(&self) -> Vec<Instant> {
        self.progress().synced.clone()
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for so many batches after a moment, at most so long; when the first of them was.
    pub async fn goes_on(
        &self,
        since: Instant,
        batches: usize,
        limit: Duration,
    ) -> Option<Instant> {
        let deadline = Instant::now() + limit;
        loop {
            let synced = self.synced();
            let later = synced.partition_point(|&at| at <= since);
            if synced.len() - later >= batches {
                return Some(synced[later]);
            }
            if self.has_failed() || Instant::now() > deadline {
                return None;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Whether it has met an error, which ends it.
    pub fn has_failed(&self) -> bool {
        self.listener.is_finished()
    }

    /// Kills it, and waits for nothing: it may hang.
    pub fn abandon(mut self) {
        let _ = self.child.kill();
    }

    /// Ends it.
    ///
    /// # Panics
    /// If it got an error, or hangs.
    pub async fn end(self) -> Written {
        let (status, written) = self.ended().await;
        assert!(status.success(), "the pod got an error");
        written
    }

    /// The blocks that were on the storage when it got an error.
    ///
    /// # Panics
    /// If it got none, or hangs.
    pub async fn failed(self) -> Written {
        let (status, written) = self.ended().await;
        assert!(!status.success(), "the pod got no error");
        written
    }

    async fn ended(mut self) -> (ExitStatus, Written) {
        let blocks = Arc::clone(&self.progress);
        drop(self.stop);
        let child = &mut self.child;
        let status = until("the writer to end", || child.try_wait().ok().flatten()).await;
        let heard = self.listener.join().expect("the listener has not panicked");
        heard.expect("the writer says numbers");
        let blocks = blocks.lock().unwrap_or_else(PoisonError::into_inner).blocks;
        let seed = self.seed;
        (status, Written { seed, blocks })
    }
}

fn batch(folder: &Path, part: &mut Option<File>, number: u64, seed: u64) -> io::Result<()> {
    if number.is_multiple_of(PART) {
        *part = Some(File::create_new(folder.join(name(number / PART)))?);
        File::open(folder)?.sync_all()?;
    }
    let Some(file) = part else {
        return Err(io::Error::other("no part is open"));
    };
    for number in number..number + BATCH {
        file.write_all(&block(seed, number))?;
    }
    file.sync_all()
}

fn name(part: u64) -> String {
    format!("part-{part:04}")
}

/// A block: its number, and what follows from that and the seed.
pub fn block(seed: u64, number: u64) -> Vec<u8> {
    let mut block = number.to_le_bytes().to_vec();
    // Apart enough for no two blocks to follow from states near each other.
    let seed = seed ^ (number + 1).wrapping_mul(0x2545_f491_4f6c_dd1d);
    block.extend(content::bytes(seed, BLOCK - block.len()));
    block
}

// === impl Written ===

impl Written {
    /// Compares every block with what `read` finds in the files.
    ///
    /// # Panics
    /// At the first that is not right.
    pub fn verify(&self, what: &str, read: impl Fn(&str) -> Vec<u8>) {
        self.compare(what, read, true);
    }

    /// The same after an error, which may have come to the storage, too: more than these blocks may be there.
    ///
    /// # Panics
    /// At the first that is not right.
    pub fn verify_at_least(&self, what: &str, read: impl Fn(&str) -> Vec<u8>) {
        self.compare(what, read, false);
    }

    fn compare(&self, what: &str, read: impl Fn(&str) -> Vec<u8>, is_all: bool) {
        let mut expected = 0;
        for part in 0..self.blocks.div_ceil(PART) {
            let mut bytes = read(&name(part));
            let last = self.blocks.min((part + 1) * PART);
            let length = usize::try_from(last - expected).expect("small") * BLOCK;
            if !is_all {
                bytes.truncate(length);
            }
            assert_eq!(bytes.len(), length, "{what}: the length of part {part}");
            for found in bytes.chunks(BLOCK) {
                let number = found.first_chunk().map(|first| u64::from_le_bytes(*first));
                assert!(
                    found == block(self.seed, expected),
                    "{what}: block {expected} of {} is wrong, it calls itself {number:?}",
                    self.blocks
                );
                expected += 1;
            }
        }
        assert_eq!(expected, self.blocks, "{what}: blocks");
    }

    /// The number of blocks.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::panic::catch_unwind;

    use super::*;

    /// Writes this many batches into a folder.
    fn written(folder: &Path, batches: u64) -> Written {
        let (mut left, mut blocks) = (batches, 0);
        let goes_on = || {
            left = left.wrapping_sub(1);
            left != u64::MAX
        };
        write(folder, 3, goes_on, |said| blocks = said).expect("it can be written");
        Written { seed: 3, blocks }
    }

    #[test]
    fn what_is_written_is_verified_and_one_wrong_byte_or_block_is_found() {
        let folder = tempfile::tempdir().expect("a folder");
        let batches = PART / BATCH + 3;
        let written = written(folder.path(), batches);
        assert_eq!(written.blocks(), batches * BATCH);
        let read = |name: &str| fs::read(folder.path().join(name)).expect("a part");
        written.verify("the folder", read);
        let spoiled = |spoil: fn(&mut Vec<u8>)| {
            let found = catch_unwind(|| {
                written.verify("spoiled", |name| {
                    let mut bytes = read(name);
                    spoil(&mut bytes);
                    bytes
                });
            });
            assert!(found.is_err());
        };
        spoiled(|bytes| bytes[5000] ^= 1);
        spoiled(|bytes| bytes.copy_within(0..BLOCK, BLOCK));
        spoiled(|bytes| bytes.truncate(BLOCK));
    }

    #[test]
    fn after_an_error_there_may_be_more_and_not_less() {
        let folder = tempfile::tempdir().expect("a folder");
        let all = written(folder.path(), 5);
        let read = |name: &str| fs::read(folder.path().join(name)).expect("a part");
        let with_blocks = |blocks| Written { seed: 3, blocks };
        let fewer = with_blocks(all.blocks() - 1);
        fewer.verify_at_least("fewer", read);
        catch_unwind(|| fewer.verify("exactly", read)).expect_err("a block more is there");
        let more = with_blocks(all.blocks() + 1);
        catch_unwind(|| more.verify_at_least("more", read)).expect_err("a block is missing");
    }

    #[test]
    fn a_writer_ends_after_an_error() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join(name(0)), "in the way").expect("a file");
        let mut said = 0;
        write(folder.path(), 3, || true, |blocks| said = blocks).expect_err("in the way");
        assert_eq!(said, 0);
    }
}
