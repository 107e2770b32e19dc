//! A path as it was found: one descriptor, and what the kernel says about it.
//!
//! Whether something is mounted at a path is asked of the path itself, in one system call; the
//! mount table is read only where a kernel before 5.8 cannot answer, and then by the number of the
//! mount, because the path of a covered mount is in the table too. All later steps use the
//! descriptor, so that a path that changes in between cannot mislead them.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatVfsMountFlags, StatxAttributes, StatxFlags};
use rustix::io::Errno;

use super::options::Attributes;
use super::table::{MountEntry, MountTable};
use crate::device::DeviceNumber;
use crate::sys;

/// An opened path.
#[derive(Debug)]
pub(crate) struct Place {
    fd: OwnedFd,
    device: (u32, u32),
    special: (u32, u32),
    inode: u64,
    links: u32,
    pub(crate) kind: FileType,
    pub(crate) mode: u32,
    pub(crate) gid: u32,
    pub(crate) size: u64,
    mount_id: u64,
    mounted: bool,
}

impl Place {
    /// Opens a path; a link as its last component is not followed and is what is opened.
    pub(crate) fn open(path: &Path) -> Result<Self, Errno> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty())?;
        let wanted = StatxFlags::BASIC_STATS | StatxFlags::MNT_ID;
        let at = AtFlags::EMPTY_PATH | AtFlags::NO_AUTOMOUNT;
        let stat = rustix::fs::statx(&fd, c"", at, wanted)?;
        let mount_id = if stat.stx_mask & StatxFlags::MNT_ID.bits() == 0 {
            sys::mount_id_from_proc(&fd)?
        } else {
            stat.stx_mnt_id
        };
        let mut place = Self {
            device: (stat.stx_dev_major, stat.stx_dev_minor),
            special: (stat.stx_rdev_major, stat.stx_rdev_minor),
            inode: stat.stx_ino,
            links: stat.stx_nlink,
            kind: FileType::from_raw_mode(stat.stx_mode.into()),
            mode: u32::from(stat.stx_mode) & 0o7777,
            gid: stat.stx_gid,
            size: stat.stx_size,
            mount_id,
            mounted: stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT),
            fd,
        };
        if !stat
            .stx_attributes_mask
            .contains(StatxAttributes::MOUNT_ROOT)
        {
            place.mounted = place.is_root_of_mount()?;
        }
        Ok(place)
    }

    fn is_root_of_mount(&self) -> Result<bool, Errno> {
        let table = MountTable::read().map_err(|error| errno(&error))?;
        let path = self.canonical()?;
        Ok(self.entry(&table).is_some_and(|entry| entry.is_at(&path)))
    }

    /// Whether it is a directory.
    pub(crate) fn is_directory(&self) -> bool {
        self.kind == FileType::Directory
    }

    /// The number of the filesystem that it is on; of one on a block device, usually that of the
    /// device.
    pub(crate) fn device(&self) -> DeviceNumber {
        self.device.into()
    }

    /// The device it stands for, if it is a block device's node.
    pub(crate) fn block_device(&self) -> Option<DeviceNumber> {
        (self.kind == FileType::BlockDevice).then(|| self.special.into())
    }

    /// Its kind, for messages.
    pub(crate) fn kind_name(&self) -> &'static str {
        match self.kind {
            FileType::Directory => "a directory",
            FileType::RegularFile => "a file",
            FileType::Symlink => "a symbolic link",
            FileType::BlockDevice | FileType::CharacterDevice => "a device",
            _ => "a pipe or socket",
        }
    }

    /// Whether something is mounted at exactly this path.
    pub(crate) fn is_mount_point(&self) -> bool {
        self.mounted
    }

    /// Whether both are one and the same directory, maybe reached through two mounts.
    pub(crate) fn is_same_as(&self, other: &Self) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }

    /// Whether the directory was removed and only a mount keeps it.
    pub(crate) fn is_deleted(&self) -> bool {
        self.links == 0
    }

    /// The flags of the mount that it is on.
    pub(crate) fn attributes(&self) -> Result<Attributes, Errno> {
        Ok(Attributes::of_mount(self.mount_flags()?))
    }

    pub(crate) fn mount_flags(&self) -> Result<StatVfsMountFlags, Errno> {
        Ok(rustix::fs::fstatvfs(&self.fd)?.f_flag)
    }

    /// Its path as the kernel spells it, without links.
    pub(crate) fn canonical(&self) -> Result<PathBuf, Errno> {
        std::fs::read_link(format!("/proc/self/fd/{}", self.fd.as_raw_fd()))
            .map_err(|error| errno(&error))
    }

    /// The mount that it was reached through: of a mount point, the topmost layer.
    pub(crate) fn entry<'a>(&self, table: &'a MountTable) -> Option<MountEntry<'a>> {
        table.by_id(self.mount_id)
    }
}

impl AsFd for Place {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{bind_plainly, with_own_mounts};

    #[test]
    fn the_table_tells_the_same_as_the_path_also_of_a_covered_mount() {
        with_own_mounts(|base| {
            for dir in ["d", "p/m", "q/m"] {
                std::fs::create_dir_all(base.join(dir)).expect("dir");
            }
            let both = |path: &str| {
                let place = Place::open(&base.join(path)).expect("open");
                assert_eq!(
                    place.is_root_of_mount(),
                    Ok(place.is_mount_point()),
                    "{path}"
                );
                place.is_mount_point()
            };
            bind_plainly(&base.join("d"), &base.join("p/m"));
            bind_plainly(&base.join("d"), &base.join("p/m"));
            assert!(both("p/m") && !both("p") && !both("d") && both("."));
            bind_plainly(&base.join("q"), &base.join("p"));
            assert!(both("p") && !both("p/m"));
        });
    }
}
