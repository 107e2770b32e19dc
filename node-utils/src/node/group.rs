//! Giving a volume to a group: `volume_mount_group` on storage without a mount option for it.
//!
//! Every entry gets the group and its read and write rights, directories also the set-group-id bit.
//! The root of the volume is changed last: as long as it does not match, the walk was not finished
//! and is repeated; once it matches, a publication costs nothing. Pods may write at the same time, so only
//! descriptors are changed and no link is followed.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags};
use rustix::io::Errno;

use crate::beneath::{Mounts, Reentry, Step, Visitor, open_beneath, walk};
use crate::mount::Place;
use crate::sys;
use csi_types::error::{Error, Kind};

const GROUP_READ_WRITE: u32 = 0o060;
const GROUP_EXECUTE: u32 = 0o010;
const ANY_EXECUTE: u32 = 0o111;
const DIRECTORY: u32 = 0o2070;

struct Regroup {
    gid: u32,
}

/// Gives the tree at `root` to the group, unless its root says that this was done.
pub(super) fn apply(root: &Place, path: &str, gid: u32) -> Result<(), Error> {
    if root.gid == gid && root.mode & DIRECTORY == DIRECTORY {
        return Ok(());
    }
    let failed = || {
        Error::new(
            Kind::Internal,
            format!("give the volume at `{path}` to group {gid}"),
        )
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let top = rustix::fs::openat(root, c".", flags, Mode::empty())
        .map_err(|errno| failed().because(errno))?;
    walk(top, path, &mut Regroup { gid }).map_err(|error| failed().because(error))
}

impl Visitor for Regroup {
    fn doing(&self) -> &'static str {
        "set the group of"
    }

    fn stop(&self) -> bool {
        false
    }

    fn entry(&mut self, dir: BorrowedFd<'_>, name: &CStr, kind: FileType) -> Result<Step, Errno> {
        if kind == FileType::Directory {
            return Ok(Step::Descend);
        }
        let fd = match open_beneath(dir, name, OFlags::PATH, Mounts::Refuse) {
            Ok(fd) => fd,
            // Removed in between, or a mount point.
            Err(Errno::NOENT | Errno::XDEV) => return Ok(Step::Done),
            // Older kernels refuse to open a link at all; its group has no effect.
            Err(Errno::LOOP) => {
                let gid = Some(Gid::from_raw(self.gid));
                return match rustix::fs::chownat(dir, name, None, gid, AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(()) | Err(Errno::NOENT) => Ok(Step::Done),
                    Err(errno) => Err(errno),
                };
            }
            Err(errno) => return Err(errno),
        };
        let stat = rustix::fs::fstat(&fd)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind == FileType::Directory {
            return Ok(Step::Descend);
        }
        self.chown(&fd, stat.st_gid)?;
        // A link has no mode, and no group gets rights to a device because of where its node is.
        if !matches!(
            kind,
            FileType::Symlink | FileType::BlockDevice | FileType::CharacterDevice
        ) {
            let mut wanted = GROUP_READ_WRITE;
            if stat.st_mode & ANY_EXECUTE != 0 {
                wanted |= GROUP_EXECUTE;
            }
            Self::chmod(&fd, stat.st_mode, wanted, stat.st_gid != self.gid)?;
        }
        Ok(Step::Done)
    }

    fn closed(
        &mut self,
        parent: BorrowedFd<'_>,
        name: &CStr,
        errno: Errno,
    ) -> Result<Reentry, Errno> {
        match errno {
            Errno::NOENT | Errno::XDEV => Ok(Reentry::Skip),
            // It was replaced by a link or a file.
            Errno::LOOP | Errno::NOTDIR => {
                let step = self.entry(parent, name, FileType::Unknown)?;
                Ok(match step {
                    Step::Done => Reentry::Skip,
                    Step::Descend => Reentry::Retry,
                })
            }
            errno => Err(errno),
        }
    }

    fn leave(&mut self, dir: BorrowedFd<'_>) -> Result<(), Errno> {
        let stat = rustix::fs::fstat(dir)?;
        self.chown(dir, stat.st_gid)?;
        Self::chmod(dir, stat.st_mode, DIRECTORY, false)
    }
}

impl Regroup {
    fn chown(&self, fd: impl AsFd, present: u32) -> Result<(), Errno> {
        if present == self.gid {
            return Ok(());
        }
        let gid = Some(Gid::from_raw(self.gid));
        rustix::fs::chownat(fd, c"", None, gid, AtFlags::EMPTY_PATH)
    }

    /// Adds `wanted` to the mode. `always`: the change of the group may have cleared bits.
    fn chmod(fd: impl AsFd, present: u32, wanted: u32, always: bool) -> Result<(), Errno> {
        let mode = (present | wanted) & 0o7777;
        if !always && present & 0o7777 == mode {
            return Ok(());
        }
        sys::chmod_path_fd(fd, Mode::from_raw_mode(mode))
    }
}
