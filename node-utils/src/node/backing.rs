//! The source behind a path where something is mounted: a device, a device that is gone, or none.
//!
//! A filesystem on a block device has the number of that device. btrfs is an exception: its device is
//! the source of the mount. A block volume is a device node, or that of the read-only loop device on
//! top. A call may block if the filesystem does not answer.

use std::path::Path;

use crate::device::{BlockDevice, DeviceNumber};
use crate::kernel::Kernel;
use crate::loops::Loop;
use crate::mount::{MountEntry, MountTable, Place, as_listed};
use csi_types::attachment::AbsolutePath;
use csi_types::error::{Error, Kind};

/// `BTRFS_SUPER_MAGIC` of `linux/magic.h`.
const BTRFS: u64 = 0x9123_683E;

/// The source behind a mount point.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Backing {
    /// This block device.
    Device(BlockDevice),
    /// A block device that does not exist any more.
    Gone,
    /// No block device: a directory, a share, a process.
    Other,
}

/// The source behind an opened path.
pub(super) fn backing(kernel: &Kernel, place: &Place) -> Result<Backing, Error> {
    if let Some(number) = place.block_device() {
        // Its number may have passed on: a node that is only shown keeps no device.
        if place.is_deleted() {
            return Ok(Backing::Gone);
        }
        if let Some((_, below)) = Loop::below(kernel, number)? {
            return Ok(below.map_or(Backing::Gone, Backing::Device));
        }
        return by_number(kernel, number);
    }
    let number = place.device();
    if number.major != 0 {
        return by_number(kernel, number);
    }
    if !is_btrfs(place)? {
        return Ok(Backing::Other);
    }
    let table = MountTable::read().map_err(unreadable)?;
    match place.entry(&table) {
        Some(entry) => of_entry(kernel, &entry),
        None => Ok(Backing::Other),
    }
}

/// Whether the whole filesystem is mounted there, not one of its directories. The disk below a directory is not a
/// volume.
pub(super) fn is_whole(place: &Place) -> Result<bool, Error> {
    if place.block_device().is_some() {
        return Ok(true);
    }
    let table = MountTable::read().map_err(unreadable)?;
    Ok(place
        .entry(&table)
        .is_some_and(|entry| &*entry.root() == Path::new("/")))
}

/// The source behind the topmost mount at `path`, without touching it; `None` if
/// nothing is mounted there.
pub(super) fn topmost(kernel: &Kernel, path: &AbsolutePath) -> Result<Option<Backing>, Error> {
    let table = MountTable::read().map_err(unreadable)?;
    let path = as_listed(path.as_path());
    let Some(entry) = table.layers(&path).last() else {
        return Ok(None);
    };
    of_entry(kernel, &entry).map(Some)
}

/// As [`is_whole`], of the topmost mount at `path`, which is not touched.
pub(super) fn is_whole_at(path: &AbsolutePath) -> Result<bool, Error> {
    let table = MountTable::read().map_err(unreadable)?;
    let path = as_listed(path.as_path());
    let top = table.layers(&path).last();
    Ok(top.is_some_and(|entry| &*entry.root() == Path::new("/")))
}

/// The source behind a mount, which is not touched.
pub(super) fn of_entry(kernel: &Kernel, entry: &MountEntry<'_>) -> Result<Backing, Error> {
    let number = DeviceNumber::from(entry.device);
    if number.major != 0 {
        return by_number(kernel, number);
    }
    let source = entry.source();
    if entry.fs_type() != "btrfs" || !source.starts_with("/dev/") {
        return Ok(Backing::Other);
    }
    let device = BlockDevice::by_path(kernel, Path::new(&*source))?;
    Ok(device.map_or(Backing::Gone, Backing::Device))
}

fn by_number(kernel: &Kernel, number: DeviceNumber) -> Result<Backing, Error> {
    if let Some(device) = BlockDevice::by_number(kernel, number)? {
        return Ok(Backing::Device(device));
    }
    // Without sysfs every device would seem to be gone.
    let seen = kernel.sys("dev/block").is_dir();
    Ok(if seen { Backing::Gone } else { Backing::Other })
}

fn is_btrfs(place: &Place) -> Result<bool, Error> {
    let filesystem = rustix::fs::fstatfs(place).map_err(unreadable)?;
    Ok(u64::try_from(filesystem.f_type).is_ok_and(|magic| magic == BTRFS))
}

fn unreadable(errno: impl Into<std::io::Error>) -> Error {
    Error::new(Kind::Internal, "find out what is mounted").because(errno.into())
}
