//! Walking a tree by descriptors, however deep, without following links or leaving its mount.
//!
//! Only the current directory is open; the way back up is `..`, and the walk ends with an error if
//! that is not the directory it came from. Depth therefore costs heap, neither stack nor
//! descriptors. What is done at each entry is the visitor's business.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::component::BeneathError;
use super::open::{Mounts, open_beneath};

/// How deep a walk goes before it asks [`Visitor::deep`]. Where the filesystem is mounted by one of
/// its directories, as in a container, the kernel checks each `..` by going up to that directory: the
/// way back from depth n costs n² steps, at 20,000 ten seconds.
pub(crate) const DEEP: usize = 256;

/// The next step at an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// It is dealt with.
    Done,
    /// It is a directory: go in, later.
    Descend,
}

/// The operations of a walk.
pub(crate) trait Visitor {
    /// The work, for messages.
    fn doing(&self) -> &'static str;

    /// Asked between entries.
    fn stop(&self) -> bool;

    /// An entry of the open directory `dir`. `kind` may be `Unknown`.
    fn entry(&mut self, dir: BorrowedFd<'_>, name: &CStr, kind: FileType) -> Result<Step, Errno>;

    /// A directory at the depth [`DEEP`], before it is entered. `true` if it is no longer there: the
    /// visitor has put it elsewhere, to walk it later.
    fn deep(&mut self, _parent: BorrowedFd<'_>, _name: &CStr) -> bool {
        false
    }

    /// A directory could not be entered: by default an error.
    fn closed(
        &mut self,
        _parent: BorrowedFd<'_>,
        _name: &CStr,
        errno: Errno,
    ) -> Result<Reentry, Errno> {
        Err(errno)
    }

    /// Everything in the directory is dealt with.
    fn leave(&mut self, _dir: BorrowedFd<'_>) -> Result<(), Errno> {
        Ok(())
    }

    /// The directory was left; `parent` is open again. `Descend` walks it once more.
    fn left(&mut self, _parent: BorrowedFd<'_>, _name: &CStr) -> Result<Step, Errno> {
        Ok(Step::Done)
    }
}

/// The behaviour at a directory that cannot be entered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reentry {
    /// Leave it alone.
    Skip,
    /// Something was changed; try again.
    Retry,
}

/// A directory on the way down to the current one.
struct Level {
    name: CString,
    identity: (u64, u64),
    pending: Vec<CString>,
}

/// Walks the open directory `top`, which is named `path` in messages. `leave` is called for it,
/// `left` is not.
pub(crate) fn walk(
    top: OwnedFd,
    path: &str,
    visitor: &mut dyn Visitor,
) -> Result<(), BeneathError> {
    let mut trail: Vec<Level> = Vec::new();
    let mut dir = top;
    let result = descend_and_climb(&mut dir, &mut trail, visitor);
    result.map_err(|(errno, name)| {
        let mut place = path.to_owned();
        for level in trail.iter().skip(1) {
            push(&mut place, &level.name);
        }
        if let Some(name) = name {
            push(&mut place, &name);
        }
        BeneathError::new(visitor.doing(), place, errno)
    })
}

/// The error, and at which entry of the current directory; without one, at the directory itself.
type Failure = (Errno, Option<CString>);

fn descend_and_climb(
    dir: &mut OwnedFd,
    trail: &mut Vec<Level>,
    visitor: &mut dyn Visitor,
) -> Result<(), Failure> {
    enter(dir, c"".into(), trail, visitor)?;
    while let Some(level) = trail.last_mut() {
        if visitor.stop() {
            return Err((Errno::CANCELED, None));
        }
        if let Some(name) = level.pending.pop() {
            if trail.len() >= DEEP && visitor.deep(dir.as_fd(), &name) {
                continue;
            }
            match open_child(dir, &name, visitor) {
                Ok(Some(child)) => {
                    *dir = child;
                    enter(dir, name, trail, visitor)?;
                }
                Ok(None) => {}
                Err(errno) => return Err((errno, Some(name))),
            }
            continue;
        }
        visitor.leave(dir.as_fd()).map_err(|errno| (errno, None))?;
        let Some(done) = trail.pop() else { break };
        let Some(parent) = trail.last_mut() else {
            break;
        };
        let left = climb(dir, parent.identity).and_then(|up| {
            *dir = up;
            visitor.left(dir.as_fd(), &done.name)
        });
        match left {
            Ok(Step::Done) => {}
            Ok(Step::Descend) => parent.pending.push(done.name),
            Err(errno) => return Err((errno, Some(done.name))),
        }
    }
    Ok(())
}

/// Opens a directory to walk it; `None` if it is to be left alone.
fn open_child(
    dir: &OwnedFd,
    name: &CStr,
    visitor: &mut dyn Visitor,
) -> Result<Option<OwnedFd>, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    for _ in 0..3 {
        match open_beneath(dir, name, flags, Mounts::Refuse) {
            Ok(child) => return Ok(Some(child)),
            Err(errno) => match visitor.closed(dir.as_fd(), name, errno)? {
                Reentry::Skip => return Ok(None),
                Reentry::Retry => {}
            },
        }
    }
    Err(Errno::BUSY)
}

/// Shows every entry of an opened directory to the visitor; what it wants to descend into waits.
fn enter(
    dir: &OwnedFd,
    name: CString,
    trail: &mut Vec<Level>,
    visitor: &mut dyn Visitor,
) -> Result<(), Failure> {
    let here = |errno| (errno, None);
    // On the trail first: what fails in here is reported with its whole path.
    let level = trail.push_mut(Level {
        name,
        identity: (0, 0),
        pending: Vec::new(),
    });
    let stat = rustix::fs::fstat(dir).map_err(here)?;
    level.identity = (stat.st_dev, stat.st_ino);
    for entry in Dir::read_from(dir).map_err(here)? {
        let entry = entry.map_err(here)?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        if visitor.stop() {
            return Err((Errno::CANCELED, None));
        }
        match visitor.entry(dir.as_fd(), name, entry.file_type()) {
            Ok(Step::Done) => {}
            Ok(Step::Descend) => level.pending.push(name.to_owned()),
            Err(errno) => return Err((errno, Some(name.to_owned()))),
        }
    }
    Ok(())
}

/// Goes up, provided that up is where the walk came from.
fn climb(dir: &OwnedFd, expected: (u64, u64)) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let parent = rustix::fs::openat(dir, c"..", flags, Mode::empty())?;
    let stat = rustix::fs::fstat(&parent)?;
    if (stat.st_dev, stat.st_ino) == expected {
        Ok(parent)
    } else {
        // The directory was moved while we were in it: nothing above it is ours to touch.
        Err(Errno::BUSY)
    }
}

fn push(path: &mut String, name: &CStr) {
    path.push('/');
    path.push_str(&name.to_string_lossy());
}
