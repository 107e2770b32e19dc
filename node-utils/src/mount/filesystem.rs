//! Mounting the filesystem of a block device, or of ZFS, with mount(2).
//!
//! For filesystems that the kernel reads by itself; those that need a program are mounted by that
//! program. What is mounted is compared with what was meant by the caller, afterwards: the path of
//! a device may lead to another one by then.

use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use rustix::io::Errno;

use super::{MountError, MountOptions, classic_mount};

/// The kernel takes one page, its final NUL included; pages are at least this long.
const DATA: usize = 4095;

/// Mounts the filesystem `source`, a device or the name of a dataset, at the opened `target`.
pub(crate) fn mount_filesystem(
    source: &Path,
    fs_type: &str,
    options: &MountOptions,
    target: impl AsFd,
) -> Result<(), MountError> {
    let failed = |errno| MountError::new("mount", errno);
    let data = options.data.join(",");
    if data.len() > DATA {
        return Err(failed(Errno::TOOBIG));
    }
    let source = source.to_str().ok_or_else(|| failed(Errno::INVAL))?;
    let target = format!("/proc/self/fd/{}", target.as_fd().as_raw_fd());
    let flags = options.attributes.classic() | options.superblock.flags();
    classic_mount(source, Path::new(&target), fs_type, flags, Some(&data)).map_err(failed)
}
