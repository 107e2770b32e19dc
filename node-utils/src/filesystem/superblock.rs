//! What the superblock of a filesystem says about its size, whether it was ever finished, and whether its mount would
//! write to it.
//!
//! Only fields at fixed places are read, from the layouts in the kernel's `fs/ext4/ext4.h`,
//! `fs/xfs/libxfs/xfs_format.h` and `include/uapi/linux/btrfs_tree.h`.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use super::{FilesystemKind, xfs_log};

pub(super) fn bytes<const N: usize>(device: &File, at: u64) -> io::Result<[u8; N]> {
    let mut found = [0; N];
    device.read_exact_at(&mut found, at)?;
    Ok(found)
}

/// The bytes that the filesystem thinks it has; `None` for those whose tools have to be asked.
pub(super) fn size(device: &File, kind: FilesystemKind) -> io::Result<Option<u64>> {
    Ok(match kind {
        FilesystemKind::Ext3 | FilesystemKind::Ext4 => Some(ext(device)?),
        FilesystemKind::Xfs => {
            let block = u64::from(u32::from_be_bytes(bytes(device, 4)?));
            let count = u64::from_be_bytes(bytes(device, 8)?);
            Some(count.saturating_mul(block))
        }
        FilesystemKind::Btrfs => {
            // `total_bytes` of the device item: of this device, not of the whole filesystem.
            const SUPERBLOCK: u64 = 64 << 10;
            const DEVICE_TOTAL: u64 = 0xc9 + 8;
            Some(u64::from_le_bytes(bytes(
                device,
                SUPERBLOCK + DEVICE_TOTAL,
            )?))
        }
        FilesystemKind::Vfat | FilesystemKind::Exfat | FilesystemKind::Ntfs => None,
    })
}

fn ext(device: &File) -> io::Result<u64> {
    const SUPERBLOCK: u64 = 1024;
    let word = |at| bytes(device, SUPERBLOCK + at).map(u32::from_le_bytes);
    let many = word(0x60)? & 0x80 != 0;
    let high = if many {
        u64::from(word(0x150)?) << 32
    } else {
        0
    };
    let blocks = high | u64::from(word(0x4)?);
    let block = 1024_u64.checked_shl(word(0x18)?).unwrap_or(0);
    Ok(blocks.saturating_mul(block))
}

/// Whether an ext filesystem was never mounted for writing, so that it holds no data.
pub(super) fn is_unused_ext(device: &File) -> io::Result<bool> {
    const SUPERBLOCK: u64 = 1024;
    let mounted_at: [u8; 4] = bytes(device, SUPERBLOCK + 0x2c)?;
    let mounts: [u8; 2] = bytes(device, SUPERBLOCK + 0x34)?;
    Ok(mounted_at == [0; 4] && mounts == [0; 2])
}

/// Whether the kernel would write to this filesystem if it were mounted read-only: by replaying its journal, or by
/// deleting files that were in use when the machine stopped. Of vfat, exfat and ntfs it does neither: `ntfs3` leaves the
/// log alone in a mount that only reads (`is_ro` in `log_replay` of the kernel's `fs/ntfs3/fslog.c`).
pub(super) fn has_to_be_recovered(device: &File, kind: FilesystemKind) -> io::Result<bool> {
    match kind {
        FilesystemKind::Ext3 | FilesystemKind::Ext4 => {
            const SUPERBLOCK: u64 = 1024;
            const RECOVER: u32 = 0x4;
            const ORPHAN_PRESENT: u32 = 0x1_0000;
            let word = |at| bytes(device, SUPERBLOCK + at).map(u32::from_le_bytes);
            let (incompat, ro_compat, last_orphan) = (word(0x60)?, word(0x64)?, word(0xe8)?);
            Ok(incompat & RECOVER != 0 || ro_compat & ORPHAN_PRESENT != 0 || last_orphan != 0)
        }
        FilesystemKind::Xfs => xfs_log::is_dirty(device),
        FilesystemKind::Btrfs => {
            const SUPERBLOCK: u64 = 64 << 10;
            const LOG_ROOT: u64 = 0x60;
            Ok(bytes(device, SUPERBLOCK + LOG_ROOT)? != [0; 8])
        }
        FilesystemKind::Vfat | FilesystemKind::Exfat | FilesystemKind::Ntfs => Ok(false),
    }
}

/// Whether `mkfs.xfs` was killed here: the kernel refuses such a filesystem, so nothing was ever
/// written to it.
pub(super) fn is_unfinished_xfs(device: &File) -> io::Result<bool> {
    let magic: [u8; 4] = bytes(device, 0)?;
    let [in_progress] = bytes(device, 126)?;
    Ok(magic == *b"XFSB" && in_progress == 1)
}
