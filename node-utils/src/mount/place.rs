//! A path as it was found: one descriptor, and what the kernel says about it.
//!
//! Whether something is mounted at a path is asked of the path itself, in one system call; the
//! mount table is read only where a kernel before 5.8 cannot answer. All later steps use the
//! descriptor, so that a path that changes in between cannot mislead them.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatVfsMountFlags, StatxAttributes, StatxFlags};
use rustix::io::Errno;

use super::options::Attributes;
use super::table::{MountEntry, MountTable};

/// An opened path.
#[derive(Debug)]
pub(crate) struct Place {
    fd: OwnedFd,
    device: (u32, u32),
    inode: u64,
    links: u32,
    pub(crate) kind: FileType,
    pub(crate) mode: u32,
    pub(crate) gid: u32,
    pub(crate) size: u64,
    mount_id: Option<u64>,
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
        let known = StatxFlags::from_bits_retain(stat.stx_mask);
        let mut place = Self {
            device: (stat.stx_dev_major, stat.stx_dev_minor),
            inode: stat.stx_ino,
            links: stat.stx_nlink,
            kind: FileType::from_raw_mode(stat.stx_mode.into()),
            mode: u32::from(stat.stx_mode) & 0o7777,
            gid: stat.stx_gid,
            size: stat.stx_size,
            mount_id: known
                .contains(StatxFlags::MNT_ID)
                .then_some(stat.stx_mnt_id),
            mounted: stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT),
            fd,
        };
        if !stat
            .stx_attributes_mask
            .contains(StatxAttributes::MOUNT_ROOT)
        {
            place.mounted = place.is_in_table()?;
        }
        Ok(place)
    }

    fn is_in_table(&self) -> Result<bool, Errno> {
        let table = MountTable::read().map_err(|error| errno(&error))?;
        Ok(self.entry(&table)?.is_some())
    }

    /// Whether it is a directory.
    pub(crate) fn is_directory(&self) -> bool {
        self.kind == FileType::Directory
    }

    /// What it is, for messages.
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

    /// The mount whose root it is; the topmost layer.
    pub(crate) fn entry<'a>(&self, table: &'a MountTable) -> Result<Option<MountEntry<'a>>, Errno> {
        if let Some(id) = self.mount_id {
            return Ok(table.by_id(id));
        }
        let path = self.canonical()?;
        Ok(table.entries().filter(|entry| entry.is_at(&path)).last())
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
