//! The mark on a device whose filesystem is being made.
//!
//! A `mkfs` that was killed leaves content that is not recognised and must not be taken for
//! data. So before `mkfs` starts on a device that was proved to be blank, a mark near its end says that
//! nothing on it is worth keeping; the mark goes as soon as there is a filesystem. It
//! has to outlive all that `mkfs` does, so the device is not discarded then, and the mark is
//! not where old labels are wiped out: both ends.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

/// How far it is from the end of the device: `mkfs.btrfs` wipes two MiB there, the others less.
const FROM_END: u64 = 4 << 20;
/// How much room it has, at least.
const BLOCK: u64 = 4096;
/// Only this program writes it.
const TEXT: &[u8; 64] = b"omnibus-csi: a filesystem is being made here, nothing is kept 1\n";

/// The part of a device of that size where a mark is.
pub(crate) fn place(size: u64) -> (u64, u64) {
    let from_end = FROM_END.min(size / 8).max(BLOCK);
    let from = size.saturating_sub(from_end) / BLOCK * BLOCK;
    (from, (from + TEXT.len() as u64).min(size))
}

/// Marks the device, for good.
pub(crate) fn set(device: &File, size: u64) -> io::Result<()> {
    device.write_all_at(TEXT, place(size).0)?;
    device.sync_data()
}

/// Whether the device is marked.
pub(crate) fn is_set(device: &File, size: u64) -> io::Result<bool> {
    let (from, to) = place(size);
    if to - from < TEXT.len() as u64 {
        return Ok(false);
    }
    let mut found = [0; TEXT.len()];
    device.read_exact_at(&mut found, from)?;
    Ok(found == *TEXT)
}

/// Removes the mark if it is still there. Only this program writes these bytes.
pub(crate) fn clear(device: &File, size: u64) -> io::Result<()> {
    if is_set(device, size)? {
        device.write_all_at(&[0; TEXT.len()], place(size).0)?;
        device.sync_data()?;
    }
    Ok(())
}
