//! A directory as the root of everything done through it: nothing here follows a link or leaves it.
//!
//! Every operation names one entry of an open directory, so that no path is ever resolved twice
//! and a link planted in between leads nowhere. The path that is kept is for messages only.

mod component;
mod open;
mod remove;
#[cfg(test)]
mod tests;
mod walk;

pub use component::{BeneathError, BeneathErrorKind, Component, ComponentError};
pub(crate) use walk::{Reentry, Step, Visitor, walk};

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;

use crate::attachment::AbsolutePath;
pub use open::{Mounts, open_beneath};

/// An open directory; every operation stays in it.
#[derive(Debug)]
pub struct Root {
    fd: OwnedFd,
    path: AbsolutePath,
}

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The type of the entry itself; links are not followed.
    pub kind: EntryKind,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size in bytes.
    pub size: u64,
    /// Device of the filesystem.
    pub device: u64,
    /// Number within the filesystem.
    pub inode: u64,
    /// Last change of the content, in nanoseconds since 1970.
    pub modified: i128,
}

/// The type of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EntryKind {
    /// A directory.
    Directory,
    /// A regular file.
    File,
    /// A symbolic link.
    Link,
    /// Anything else.
    Special,
}

// === impl Root ===

impl Root {
    /// Opens a directory. Links in `path` itself are followed: it is the operator's.
    pub fn open(path: &AbsolutePath) -> Result<Self, BeneathError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path.as_path(), flags, Mode::empty())
            .map_err(|errno| BeneathError::new("open", path.as_str(), errno))?;
        Ok(Self {
            fd,
            path: path.clone(),
        })
    }

    /// Where it was when it was opened; for messages and for the volume context.
    pub fn path(&self) -> &AbsolutePath {
        &self.path
    }

    /// The path of an entry, for messages and for the volume context.
    pub fn path_of(&self, name: &Component) -> AbsolutePath {
        self.path.child(name.as_str())
    }

    /// Opens a directory in this one, as the root of what is done in there. A mount point is
    /// entered: a volume may be a filesystem of its own.
    pub fn open_dir(&self, name: &Component) -> Result<Self, BeneathError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let fd = open_beneath(&self.fd, name.as_str(), flags, Mounts::Enter)
            .map_err(|errno| self.error("open", name, errno))?;
        Ok(Self {
            fd,
            path: self.path_of(name),
        })
    }

    /// Opens an entry of this directory with these flags, never through a link and never as the
    /// controlling terminal.
    pub fn open_file(&self, name: &Component, flags: OFlags) -> Result<OwnedFd, BeneathError> {
        open_beneath(&self.fd, name.as_str(), flags, Mounts::Enter)
            .map_err(|errno| self.error("open", name, errno))
    }

    /// Makes a directory; `false` if there is an entry of that name already, of whatever type.
    pub fn create_dir(&self, name: &Component, mode: u32) -> Result<bool, BeneathError> {
        match rustix::fs::mkdirat(&self.fd, name.as_str(), Mode::from_raw_mode(mode)) {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            Err(errno) => Err(self.error("create directory", name, errno)),
        }
    }

    /// Renames an entry, possibly into another directory of the same filesystem. Never replaces:
    /// [`BeneathErrorKind::Exists`].
    pub fn rename(
        &self,
        name: &Component,
        to: &Self,
        new_name: &Component,
    ) -> Result<(), BeneathError> {
        let (old, new) = (name.as_str(), new_name.as_str());
        rustix::fs::renameat_with(&self.fd, old, &to.fd, new, RenameFlags::NOREPLACE).map_err(
            |errno| match errno {
                Errno::EXIST | Errno::NOTEMPTY => to.error("rename to", new_name, Errno::EXIST),
                _ => self.error("rename", name, errno),
            },
        )
    }

    /// What the entry of that name is; `None` without one.
    pub fn stat(&self, name: &Component) -> Result<Option<Entry>, BeneathError> {
        match rustix::fs::statat(&self.fd, name.as_str(), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(Entry::of(&stat))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(self.error("look at", name, errno)),
        }
    }

    /// What this directory itself is.
    pub fn stat_self(&self) -> Result<Entry, BeneathError> {
        rustix::fs::fstat(&self.fd)
            .map(|stat| Entry::of(&stat))
            .map_err(|errno| BeneathError::new("look at", self.path.as_str(), errno))
    }

    /// The names in this directory, sorted by their bytes. A name that is not UTF-8 cannot be one
    /// that we made and is left out.
    pub fn list(&self) -> Result<Vec<Component>, BeneathError> {
        let error = |errno| BeneathError::new("list", self.path.as_str(), errno);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.fd, ".", flags, Mode::empty()).map_err(error)?;
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::new(fd).map_err(error)? {
            let entry = entry.map_err(error)?;
            if let Ok(name) = entry.file_name().to_str()
                && let Ok(name) = Component::parse(name)
            {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Removes an entry and everything below it; `false` if there was none.
    ///
    /// A filesystem mounted anywhere inside is not entered: [`BeneathErrorKind::Busy`] with its
    /// path; what was removed before that is gone. `stop` is asked between entries; once it says
    /// so, the rest stays: [`BeneathErrorKind::Interrupted`].
    pub fn remove_tree(
        &self,
        name: &Component,
        stop: &dyn Fn() -> bool,
    ) -> Result<bool, BeneathError> {
        remove::remove_tree(self, name, stop)
    }

    /// Sets owner, group and permission bits of a directory or file, those that are given.
    pub fn set_owner_mode(
        &self,
        name: &Component,
        uid: Option<u32>,
        gid: Option<u32>,
        mode: Option<u32>,
    ) -> Result<(), BeneathError> {
        // NONBLOCK: opening a pipe must not wait for a writer.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let set = || {
            let fd = open_beneath(&self.fd, name.as_str(), flags, Mounts::Enter)?;
            // The owner first: changing it clears set-user-id and set-group-id bits.
            if uid.is_some() || gid.is_some() {
                let uid = uid.map(rustix::fs::Uid::from_raw);
                let gid = gid.map(rustix::fs::Gid::from_raw);
                rustix::fs::fchown(&fd, uid, gid)?;
            }
            mode.map_or(Ok(()), |mode| {
                rustix::fs::fchmod(&fd, Mode::from_raw_mode(mode))
            })
        };
        set().map_err(|errno| self.error("set owner and mode of", name, errno))
    }

    fn error(&self, doing: &'static str, name: &Component, errno: Errno) -> BeneathError {
        BeneathError::new(doing, self.path_of(name).as_str(), errno)
    }
}

impl AsFd for Root {
    /// An `O_PATH` descriptor: good for `*at` calls, not for reading the directory.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

// === impl Entry ===

impl Entry {
    fn of(stat: &Stat) -> Self {
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => EntryKind::Directory,
            FileType::RegularFile => EntryKind::File,
            FileType::Symlink => EntryKind::Link,
            _ => EntryKind::Special,
        };
        Self {
            kind,
            mode: stat.st_mode & 0o7777,
            uid: stat.st_uid,
            gid: stat.st_gid,
            size: u64::try_from(stat.st_size).unwrap_or_default(),
            device: stat.st_dev,
            inode: stat.st_ino,
            modified: i128::from(stat.st_mtime) * 1_000_000_000 + i128::from(stat.st_mtime_nsec),
        }
    }
}
