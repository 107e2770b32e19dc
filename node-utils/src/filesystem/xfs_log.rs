//! Whether the log of an XFS filesystem holds changes that a mount would write to their places.
//!
//! An unmount ends the log with a record that says so. The log is a ring of blocks of 512 bytes; each begins with the
//! number of the round in which it was written, and the first block of a record with a magic number before it. So the
//! end is where the round changes, and the log is clean if the record before it is that of an unmount. The layout is in
//! the kernel's `fs/xfs/libxfs/xfs_log_format.h`, the rule in `xlog_check_unmount_rec`.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use super::superblock::bytes;

const BLOCK: u64 = 512;
const MAGIC: u32 = 0xfeed_babe;
/// A record of an unmount fills at most one log buffer of 256 KiB and its headers.
const LONGEST: u64 = (256 << 10) / BLOCK + 16;
/// The length that one header describes; a longer record has more of them.
const OF_A_HEADER: u32 = 32 << 10;
const UNMOUNT: u8 = 0x20;

/// The log of a filesystem.
struct Log<'a> {
    device: &'a File,
    start: u64,
    blocks: u64,
}

/// Whether there is anything to replay. A log on another device is not looked at: such a filesystem cannot be mounted
/// by its device alone.
pub(super) fn is_dirty(device: &File) -> io::Result<bool> {
    let block = u64::from(u32::from_be_bytes(bytes(device, 4)?));
    let start = u64::from_be_bytes(bytes(device, 48)?);
    let of_a_group = u64::from(u32::from_be_bytes(bytes(device, 84)?));
    let length = u64::from(u32::from_be_bytes(bytes(device, 96)?));
    let [shift] = bytes(device, 124)?;
    if start == 0 {
        return Ok(false);
    }
    let bad = || io::Error::new(io::ErrorKind::InvalidData, "the place of the log of XFS");
    let group = start.checked_shr(u32::from(shift)).ok_or_else(bad)?;
    let within = start - group.checked_shl(u32::from(shift)).ok_or_else(bad)?;
    let first = group
        .checked_mul(of_a_group)
        .and_then(|at| at.checked_add(within));
    let log = Log {
        device,
        start: first.and_then(|at| at.checked_mul(block)).ok_or_else(bad)?,
        blocks: length.checked_mul(block).ok_or_else(bad)? / BLOCK,
    };
    Ok(!log.ends_with_an_unmount()?)
}

impl Log<'_> {
    fn ends_with_an_unmount(&self) -> io::Result<bool> {
        if self.blocks == 0 {
            return Ok(false);
        }
        let end = self.end()?;
        for back in 1..=LONGEST.min(self.blocks) {
            let at = (end + self.blocks - back) % self.blocks;
            if self.word(at, 0)? == MAGIC {
                return self.is_unmount(at, back);
            }
        }
        Ok(false)
    }

    /// The first block of another round than that of block 0: the end of what was written last.
    fn end(&self) -> io::Result<u64> {
        let round = self.round(0)?;
        let (mut low, mut high) = (0, self.blocks);
        while high - low > 1 {
            let middle = low.midpoint(high);
            if self.round(middle)? == round {
                low = middle;
            } else {
                high = middle;
            }
        }
        Ok(high)
    }

    /// Whether the record at this block, so many before the end, is that of an unmount, and the last one.
    fn is_unmount(&self, at: u64, before: u64) -> io::Result<bool> {
        let (version, length) = (self.word(at, 8)?, self.word(at, 12)?);
        let (operations, buffer) = (self.word(at, 40)?, self.word(at, 320)?);
        let headers = if version & 2 == 0 {
            1
        } else {
            buffer.div_ceil(OF_A_HEADER).max(1)
        };
        let whole = u64::from(headers) + u64::from(length).div_ceil(BLOCK);
        if operations != 1 || whole != before {
            return Ok(false);
        }
        let data = (at + u64::from(headers)) % self.blocks;
        let [flags] = bytes(self.device, self.start + data * BLOCK + 9)?;
        Ok(flags & UNMOUNT != 0)
    }

    fn round(&self, block: u64) -> io::Result<u32> {
        let first = self.word(block, 0)?;
        if first == MAGIC {
            self.word(block, 4)
        } else {
            Ok(first)
        }
    }

    fn word(&self, block: u64, offset: u64) -> io::Result<u32> {
        let mut word = [0; 4];
        self.device
            .read_exact_at(&mut word, self.start + block * BLOCK + offset)?;
        Ok(u32::from_be_bytes(word))
    }
}
