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

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use csi_types::attachment::AbsolutePath;
pub use open::{Mounts, open_beneath};

/// An open directory; every operation stays in it.
#[derive(Debug)]
pub struct Root {
    fd: OwnedFd,
    path: AbsolutePath,
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

    /// The path where it was when it was opened; for messages and for the volume context.
    pub fn path(&self) -> &AbsolutePath {
        &self.path
    }

    /// The path of an entry, for messages.
    fn path_of(&self, name: &Component) -> AbsolutePath {
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
