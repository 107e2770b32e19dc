//! Removing a tree that a pod may be writing to, and that may hold anything.
//!
//! An empty directory costs one system call. Otherwise the walk unlinks entries as it meets them
//! and removes each directory on the way up; a mount point anywhere inside ends it. Very deep parts are
//! moved up beside the tree first, under its name with `+` and a number. If the removal is interrupted,
//! they stay there.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::Root;
use super::component::{BeneathError, Component};
use super::open::{Mounts, open_beneath};
use super::walk::{Reentry, Step, Visitor, walk};

/// The number of times that a directory that was emptied and is not empty is emptied again.
const ROUNDS: usize = 64;

struct Removal<'a, 'b> {
    root: &'a Root,
    stop: &'a dyn Fn() -> bool,
    refilled: usize,
    parts: &'a mut Parts<'b>,
}

/// Deep parts of a tree, moved up beside it.
struct Parts<'a> {
    /// The tree.
    name: &'a Component,
    /// The number of names for parts that were tried.
    tried: usize,
    pending: Vec<Component>,
}

pub(super) fn remove_tree(
    root: &Root,
    name: &Component,
    stop: &dyn Fn() -> bool,
) -> Result<bool, BeneathError> {
    let mut parts = Parts {
        name,
        tried: 0,
        pending: Vec::new(),
    };
    let removed = remove_one(root, name, stop, &mut parts)?;
    while let Some(part) = parts.pending.pop() {
        remove_one(root, &part, stop, &mut parts)?;
    }
    Ok(removed)
}

fn remove_one(
    root: &Root,
    name: &Component,
    stop: &dyn Fn() -> bool,
    parts: &mut Parts<'_>,
) -> Result<bool, BeneathError> {
    let error = |errno| root.error("remove", name, errno);
    for _ in 0..ROUNDS {
        match rustix::fs::unlinkat(root, name.as_str(), AtFlags::REMOVEDIR) {
            Ok(()) => return Ok(true),
            Err(Errno::NOENT) => return Ok(false),
            Err(Errno::NOTDIR) => match rustix::fs::unlinkat(root, name.as_str(), AtFlags::empty())
            {
                Ok(()) => return Ok(true),
                // It became a directory, or went away, in between.
                Err(Errno::ISDIR | Errno::NOENT) => continue,
                Err(errno) => return Err(error(errno)),
            },
            Err(Errno::NOTEMPTY | Errno::EXIST) => {}
            Err(errno) => return Err(error(errno)),
        }
        let mut removal = Removal {
            root,
            stop,
            refilled: 0,
            parts: &mut *parts,
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let top = match open_beneath(root, name.as_str(), flags, Mounts::Refuse) {
            Ok(top) => top,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
            Err(Errno::ACCESS) => {
                open_up(root.as_fd(), name.as_str()).map_err(error)?;
                open_beneath(root, name.as_str(), flags, Mounts::Refuse).map_err(error)?
            }
            Err(errno) => return Err(error(errno)),
        };
        walk(top, root.path_of(name).as_str(), &mut removal)?;
    }
    Err(error(Errno::BUSY))
}

/// Gives the owner all rights to a directory: without them nothing in it can be removed
/// without root.
fn open_up(dir: BorrowedFd<'_>, name: impl rustix::path::Arg + Copy) -> Result<(), Errno> {
    let fd = open_beneath(dir, name, OFlags::PATH | OFlags::DIRECTORY, Mounts::Refuse)?;
    chmod_any(&fd, Mode::RWXU)
}

/// Changes the mode of an `O_PATH` descriptor, which `fchmod` refuses.
fn chmod_any(fd: &impl AsFd, mode: Mode) -> Result<(), Errno> {
    crate::sys::chmod_path_fd(fd, mode)
}

impl Visitor for Removal<'_, '_> {
    fn doing(&self) -> &'static str {
        "remove"
    }

    fn stop(&self) -> bool {
        (self.stop)()
    }

    fn entry(&mut self, dir: BorrowedFd<'_>, name: &CStr, kind: FileType) -> Result<Step, Errno> {
        if kind == FileType::Directory {
            return Ok(Step::Descend);
        }
        for _ in 0..2 {
            match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => return Ok(Step::Done),
                Err(Errno::ISDIR) => return Ok(Step::Descend),
                Err(Errno::ACCESS) => rustix::fs::fchmod(dir, Mode::RWXU)?,
                Err(errno) => return Err(errno),
            }
        }
        Err(Errno::ACCESS)
    }

    fn deep(&mut self, parent: BorrowedFd<'_>, name: &CStr) -> bool {
        // Whatever fails here, the way down remains.
        self.parts.tried += 1;
        let part = format!("{}+{}", self.parts.name.as_str(), self.parts.tried);
        let Ok(part) = Component::parse(&part) else {
            return false;
        };
        let flags = RenameFlags::NOREPLACE;
        let moved = rustix::fs::renameat_with(parent, name, self.root, part.as_str(), flags);
        if moved.is_ok() {
            self.parts.pending.push(part);
        }
        moved.is_ok()
    }

    fn closed(
        &mut self,
        parent: BorrowedFd<'_>,
        name: &CStr,
        errno: Errno,
    ) -> Result<Reentry, Errno> {
        match errno {
            Errno::NOENT => Ok(Reentry::Skip),
            // It was replaced by a link or a file.
            Errno::LOOP | Errno::NOTDIR => {
                self.entry(parent, name, FileType::Unknown)
                    .map(|step| match step {
                        Step::Done => Reentry::Skip,
                        Step::Descend => Reentry::Retry,
                    })
            }
            Errno::ACCESS => open_up(parent, name).map(|()| Reentry::Retry),
            errno => Err(errno),
        }
    }

    fn left(&mut self, parent: BorrowedFd<'_>, name: &CStr) -> Result<Step, Errno> {
        for _ in 0..2 {
            match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
                Ok(()) | Err(Errno::NOENT) => return Ok(Step::Done),
                Err(Errno::NOTDIR) => return self.entry(parent, name, FileType::Unknown),
                Err(Errno::NOTEMPTY | Errno::EXIST) if self.refilled < ROUNDS => {
                    self.refilled += 1;
                    return Ok(Step::Descend);
                }
                Err(Errno::ACCESS) => rustix::fs::fchmod(parent, Mode::RWXU)?,
                Err(errno) => return Err(errno),
            }
        }
        Err(Errno::ACCESS)
    }
}
