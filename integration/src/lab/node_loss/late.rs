//! A writer that overwrites numbered blocks, each down to the storage, and goes on after errors.
//!
//! It notes on a disk of its own machine which blocks it was said to have stored. The machine may stand still in the
//! middle of a block; what it writes after that is late.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::thread;
use std::time::Duration;

use rustix::fs::OFlags;

use crate::lab::faults::writer::{BLOCK, block};

/// The command of the `lab` binary that runs it.
pub const COMMAND: &str = "overwrite";
/// The number of writes that fail before it ends.
pub const LATE: usize = 1000;
/// The places that are written in turn.
pub const PLACES: u64 = 256;

/// The seed of its blocks.
const SEED: u64 = 31;
/// The last line of its notes.
const END: &str = "end";
const STORED: &str = "stored";
const PACE: Duration = Duration::from_millis(5);

/// Memory as a write needs it that passes the cache by.
#[repr(align(4096))]
struct Page([u8; BLOCK]);

/// Its notes, read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notes {
    /// The last block that it was said to have stored.
    pub last: u64,
    /// The number of writes that failed, all of them after that.
    pub failed: usize,
}

/// Writes into a file until [`LATE`] writes have failed.
pub fn main(file: &Path, notes: &Path) -> io::Result<()> {
    let flags = (OFlags::DIRECT | OFlags::SYNC).bits();
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .custom_flags(i32::try_from(flags).map_err(io::Error::other)?)
        .open(file)?;
    let mut notes = File::create(notes)?;
    write(&mut notes, |page, place| {
        #[expect(
            clippy::disallowed_methods,
            reason = "a process of its own, whose pace it is"
        )]
        thread::sleep(PACE);
        file.write_all_at(page, place)
    })
}

fn write(
    mut notes: impl io::Write,
    mut store: impl FnMut(&[u8], u64) -> io::Result<()>,
) -> io::Result<()> {
    let mut page = Page([0; BLOCK]);
    let (mut number, mut failed) = (0, 0);
    while failed < LATE {
        number += 1;
        page.0.copy_from_slice(&block(SEED, number));
        match store(&page.0, place(number)) {
            Ok(()) => writeln!(notes, "{number} {STORED}")?,
            Err(error) => {
                failed += 1;
                writeln!(notes, "{number} {error}")?;
            }
        }
    }
    writeln!(notes, "{END}")
}

fn place(number: u64) -> u64 {
    (number - 1) % PLACES * BLOCK as u64
}

/// The last block in a file that it has written, where each place holds one of its blocks.
///
/// # Panics
/// If a place holds anything else.
pub fn last_of(bytes: &[u8]) -> u64 {
    assert_eq!(bytes.len(), length(), "the length of the file");
    let mut last = 0;
    for (index, found) in bytes.chunks(BLOCK).enumerate() {
        let number = found.first_chunk().map(|first| u64::from_le_bytes(*first));
        let number = number.unwrap_or_default();
        let is_here = number > 0 && place(number) == (index * BLOCK) as u64;
        assert!(
            is_here && found == block(SEED, number),
            "place {index} calls itself {number}"
        );
        last = last.max(number);
    }
    last
}

/// The length of the file in bytes.
pub fn length() -> usize {
    usize::try_from(PLACES).expect("small") * BLOCK
}

// === impl Notes ===

impl Notes {
    /// Reads them.
    ///
    /// # Panics
    /// If something was stored after the first error, or they do not end.
    pub fn read(text: &str) -> Self {
        let mut notes = Self { last: 0, failed: 0 };
        let lines = text.trim_end().strip_suffix(END).expect("it has ended");
        for line in lines.lines() {
            let (number, outcome) = line.split_once(' ').expect("two words");
            if outcome == STORED {
                assert_eq!(notes.failed, 0, "stored after an error: {line}");
                notes.last = number.parse().expect("a number");
            } else {
                notes.failed += 1;
            }
        }
        notes
    }
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::*;

    /// What it stores and notes if the storage refuses everything from some block on.
    fn written(refused_from: u64) -> (Vec<u8>, String) {
        let (mut bytes, mut count, mut notes) = (vec![0; length()], 0, Vec::new());
        let store = |page: &[u8], place: u64| {
            count += 1;
            if count >= refused_from {
                return Err(io::Error::other("stale"));
            }
            let place = usize::try_from(place).expect("small");
            bytes[place..place + BLOCK].copy_from_slice(page);
            Ok(())
        };
        write(&mut notes, store).expect("notes");
        (bytes, String::from_utf8(notes).expect("text"))
    }

    #[test]
    fn notes_and_blocks_agree_on_what_came_last() {
        let (bytes, text) = written(300);
        let failed = LATE;
        assert_eq!(Notes::read(&text), Notes { last: 299, failed });
        assert_eq!(last_of(&bytes), 299);
    }

    #[test]
    fn another_block_and_a_late_one_are_found() {
        let (mut bytes, text) = written(300);
        bytes[BLOCK + 100] ^= 1;
        catch_unwind(|| last_of(&bytes)).expect_err("a wrong byte");
        let late = text.replace("\n301 stale", "\n301 stored");
        catch_unwind(|| Notes::read(&late)).expect_err("stored after an error");
    }
}
