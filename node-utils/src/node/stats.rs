//! Space, files and health of a mounted volume.
//!
//! Everything is read from the filesystem of the path itself. Only an ext4 that has had errors is asked to make a file,
//! which has no name. No other mount is accessed, so a dead one affects no other volume. A filesystem that does not
//! respond is an unhealthy volume, not a failed call.

use rustix::fs::{Mode, OFlags, StatVfs, StatVfsMountFlags};
use rustix::io::Errno;

use super::backing::{Backing, backing};
use super::health::{
    DIRECTORY_DELETED, FULL, NO_ANSWER, NO_INODES, READ_ONLY, gone as is_gone, inaccessible,
};
use super::mount_target::is_dead;
use super::raw::BLOCK_DEVICE;
use super::request::{Usage, VolumeStats};
use crate::device::BlockDevice;
use crate::kernel::{self, Kernel};
use crate::mount::{MountEntry, MountTable, Place};
use csi_types::attachment::AbsolutePath;
use csi_types::error::{Error, Kind};
use csi_types::health::{Condition, ConditionKind, Conditions};
use csi_types::said;

pub(super) fn stats(kernel: &Kernel, path: &AbsolutePath) -> Result<VolumeStats, Error> {
    let place = match mounted(path) {
        Ok(place) => place,
        Err(Failure::Dead(errno)) => return Ok(silent(errno)),
        Err(Failure::Other(error)) => return Err(error),
    };
    if place.block_device().is_some() {
        return of_device(kernel, &place);
    }
    if backing(kernel, &place)? == Backing::Gone {
        return Ok(gone());
    }
    let vfs = match rustix::fs::fstatvfs(&place) {
        Ok(vfs) => vfs,
        Err(errno) if is_dead(errno) => return Ok(silent(errno)),
        Err(errno) => {
            let doing = format!("read statistics of `{path}`");
            return Err(Error::new(Kind::Internal, doing).because(errno));
        }
    };
    Ok(VolumeStats {
        bytes: Some(usage(
            vfs.f_frsize.max(1),
            vfs.f_blocks,
            vfs.f_bfree,
            vfs.f_bavail,
        )),
        inodes: (vfs.f_files > 0).then(|| usage(1, vfs.f_files, vfs.f_ffree, vfs.f_favail)),
        conditions: conditions(kernel, &place, &vfs),
    })
}

/// Why there is no mounted volume.
pub(super) enum Failure {
    /// It is mounted, but does not answer.
    Dead(Errno),
    /// It is not mounted, or that cannot be found out.
    Other(Error),
}

/// A raw device has a size and nothing else.
fn of_device(kernel: &Kernel, place: &Place) -> Result<VolumeStats, Error> {
    let Backing::Device(device) = backing(kernel, place)? else {
        return Ok(gone());
    };
    if place.is_deleted() {
        return Ok(gone());
    }
    let total = device.size(kernel)?;
    Ok(VolumeStats {
        bytes: Some(Usage {
            total,
            used: 0,
            available: 0,
        }),
        inodes: None,
        conditions: Conditions::default(),
    })
}

/// Nothing but what is wrong.
pub(super) fn without_numbers(condition: Condition) -> VolumeStats {
    VolumeStats {
        bytes: None,
        inodes: None,
        conditions: [condition].into_iter().collect(),
    }
}

fn gone() -> VolumeStats {
    without_numbers(is_gone())
}

/// Opens the volume that is shown at `path`: mounted there, or a raw device, or the directory in
/// which one is staged.
pub(super) fn mounted(path: &AbsolutePath) -> Result<Place, Failure> {
    match mounted_at(path) {
        Err(Failure::Other(error)) if error.kind() == Kind::NotFound => {
            mounted_at(&path.child(BLOCK_DEVICE)).map_err(|_| Failure::Other(error))
        }
        result => result,
    }
}

fn mounted_at(path: &AbsolutePath) -> Result<Place, Failure> {
    let nothing = || {
        Error::new(Kind::NotFound, format!("find a volume at `{path}`"))
            .advise("nothing is mounted there")
    };
    match Place::open(path.as_path()) {
        Ok(place) if place.is_mount_point() => Ok(place),
        Ok(_) | Err(Errno::NOENT | Errno::NOTDIR) => Err(Failure::Other(nothing())),
        Err(errno) if is_dead(errno) => Err(Failure::Dead(errno)),
        Err(errno) => {
            let error = Error::new(Kind::Internal, format!("open `{path}`"));
            Err(Failure::Other(error.because(errno)))
        }
    }
}

/// Filesystems with reserves may report more free than there is; the specification does not.
fn usage(unit: u64, total: u64, free: u64, available: u64) -> Usage {
    let free = free.min(total);
    Usage {
        total: total.saturating_mul(unit),
        used: (total - free).saturating_mul(unit),
        available: available.min(total).saturating_mul(unit),
    }
}

fn silent(errno: Errno) -> VolumeStats {
    let text = format!("the filesystem of the volume answers: {errno}");
    without_numbers(inaccessible(NO_ANSWER, text))
}

fn conditions(kernel: &Kernel, place: &Place, vfs: &StatVfs) -> Conditions {
    let first = condition(kernel, place, vfs).into_iter();
    first.chain(room(vfs)).collect()
}

/// Next to nothing can be written, or no more files be made. One that counts neither has room, and one that is read-only, such
/// as an image, needs none.
fn room(vfs: &StatVfs) -> Vec<Condition> {
    if vfs.f_flag.contains(StatVfsMountFlags::RDONLY) {
        return Vec::new();
    }
    let degraded = |reason, text| Condition::new(ConditionKind::Degraded, reason, text);
    let bytes = |blocks: u64| blocks.saturating_mul(vfs.f_frsize.max(1));
    let is_full = said::is_full(bytes(vfs.f_bavail), bytes(vfs.f_blocks));
    let full = is_full.then(|| degraded(FULL, said::IS_FULL.to_owned()));
    let has_none = vfs.f_files > 0 && vfs.f_favail == 0;
    let none = has_none.then(|| degraded(NO_INODES, said::no_inodes(vfs.f_files)));
    full.into_iter().chain(none).collect()
}

fn condition(kernel: &Kernel, place: &Place, vfs: &StatVfs) -> Option<Condition> {
    if place.is_deleted() {
        let text = "the directory of the volume was deleted while it was mounted";
        return Some(Condition::new(
            ConditionKind::DataLoss,
            DIRECTORY_DELETED,
            text,
        ));
    }
    // A filesystem on a device may have given up without telling statvfs; the mount table knows.
    let may_have = vfs.f_flag.contains(StatVfsMountFlags::RDONLY) || place.device().major != 0;
    if may_have && filesystem_gave_up(kernel, place) {
        let text = "the filesystem is read-only below a writable mount, as after an error";
        return Some(Condition::new(ConditionKind::Degraded, READ_ONLY, text));
    }
    None
}

fn filesystem_gave_up(kernel: &Kernel, place: &Place) -> bool {
    let Ok(table) = MountTable::read() else {
        return false;
    };
    place.entry(&table).is_some_and(|entry| {
        let may_refuse = || !entry.is_read_only() && had_errors(kernel, &entry);
        gave_up(&entry) || may_refuse() && refuses_files(place)
    })
}

/// Whether ext4 has counted errors, now or earlier. From Linux 6.12 to 6.14, and in some older ones (6.1.113), the mount
/// of one that has stopped after them looks as before.
fn had_errors(kernel: &Kernel, entry: &MountEntry<'_>) -> bool {
    let Ok(Some(device)) = BlockDevice::by_number(kernel, entry.device.into()) else {
        return false;
    };
    let counted = kernel.sys(format!("fs/ext4/{}/errors_count", device.name()));
    let count = kernel::read(&counted).ok().flatten();
    count.is_some_and(|count| count.trim() != "0")
}

/// Whether no file can be made there, because of an error or as below a read-only mount. The file has no name, and is
/// gone at once.
pub(super) fn refuses_files(directory: &Place) -> bool {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let made = rustix::fs::openat(directory, c".", flags, Mode::RUSR | Mode::WUSR);
    matches!(made, Err(Errno::IO | Errno::ROFS))
}

/// Whether a filesystem is read-only below a writable mount, as after an error.
pub(super) fn gave_up(entry: &MountEntry<'_>) -> bool {
    entry.is_filesystem_read_only() && !entry.is_read_only()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn used_and_available_never_exceed_the_total() {
        let odd = usage(4096, 10, 12, 15);
        assert_eq!((odd.total, odd.used, odd.available), (40960, 0, 40960));
        let huge = usage(u64::MAX, u64::MAX, 0, 0);
        assert_eq!(huge.total, huge.used);
    }
}
