//! Locks that are files: held as long as their process lives, and gone with it.
//!
//! The holder removes the file when it is done; only a kill leaves a file. A file is removed only by a
//! process that holds its lock, and a lock whose file has no name any more does not count. So two
//! processes never hold locks of one name at the same time.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use node_utils::beneath::{Mounts, open_beneath};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::path::Arg;

use crate::crash_points;

/// A lock that is held.
#[derive(Debug)]
pub(crate) struct LockFile {
    dir: OwnedFd,
    name: String,
    _file: OwnedFd,
}

// === impl LockFile ===

impl LockFile {
    /// Takes the lock `name` in `dir`; waits for its holder.
    pub(crate) fn take(dir: BorrowedFd<'_>, name: &str) -> Result<Self, Errno> {
        let kept = rustix::io::fcntl_dupfd_cloexec(dir, 0)?;
        loop {
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = rustix::fs::openat(dir, name, flags, Mode::RUSR | Mode::WUSR)?;
            match rustix::fs::flock(&file, FlockOperation::LockExclusive) {
                Err(Errno::INTR) => continue,
                done => done?,
            }
            // The holder before us removed the file.
            if rustix::fs::fstat(&file)?.st_nlink == 0 {
                continue;
            }
            crash_points::mark("lock");
            return Ok(Self {
                dir: kept,
                name: name.to_owned(),
                _file: file,
            });
        }
    }

    /// Whether the lock is held.
    pub(crate) fn is_held(dir: impl AsFd, name: impl Arg + Copy) -> Result<bool, Errno> {
        Ok(matches!(Self::try_take(dir, name)?, Tried::Held))
    }

    /// Removes the file of a lock that is not held.
    pub(crate) fn remove_unheld(dir: BorrowedFd<'_>, name: &str) -> Result<(), Errno> {
        match Self::try_take(dir, name)? {
            Tried::Free(file) => remove_own(dir, name, &file),
            Tried::Absent | Tried::Held => Ok(()),
        }
    }

    fn try_take(dir: impl AsFd, name: impl Arg + Copy) -> Result<Tried, Errno> {
        match open_beneath(dir, name, OFlags::RDWR, Mounts::Refuse) {
            Ok(file) => match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => Ok(Tried::Free(file)),
                Err(Errno::WOULDBLOCK) => Ok(Tried::Held),
                Err(errno) => Err(errno),
            },
            Err(Errno::NOENT) => Ok(Tried::Absent),
            Err(errno) => Err(errno),
        }
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        let _ = rustix::fs::unlinkat(&self.dir, self.name.as_str(), AtFlags::empty());
    }
}

/// What became of an attempt to take a lock without waiting.
enum Tried {
    Absent,
    Held,
    Free(OwnedFd),
}

/// Removes the file `name`, if it is the one whose lock we hold: as long as we do, it stays that.
fn remove_own(dir: BorrowedFd<'_>, name: &str, held: &OwnedFd) -> Result<(), Errno> {
    if rustix::fs::fstat(held)?.st_nlink == 0 {
        return Ok(());
    }
    rustix::fs::unlinkat(dir, name, AtFlags::empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn a_lock_is_held_by_one_at_a_time_while_others_remove_files() {
        let top = tempfile::tempdir().expect("folder");
        let dir = std::fs::File::open(top.path()).expect("open");
        let (inside, entered) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let lock = LockFile::take(dir.as_fd(), "one").expect("lock");
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        assert!(LockFile::is_held(&dir, "one").expect("look"));
                        entered.fetch_add(1, Ordering::SeqCst);
                        inside.fetch_sub(1, Ordering::SeqCst);
                        drop(lock);
                    }
                });
            }
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..4_000 {
                        LockFile::remove_unheld(dir.as_fd(), "one").expect("sweep");
                    }
                });
            }
        });
        assert_eq!(entered.into_inner(), 2_000);
        assert!(!LockFile::is_held(&dir, "one").expect("look"));
        assert_eq!(std::fs::read_dir(top.path()).expect("list").count(), 0);
    }

    #[test]
    fn a_late_removal_of_an_old_lock_file_does_not_remove_the_new_one() {
        let top = tempfile::tempdir().expect("folder");
        let path = top.path().join("one");
        let dir = std::fs::File::open(top.path()).expect("open");
        let before = OwnedFd::from(std::fs::File::create(&path).expect("left by a kill"));
        LockFile::remove_unheld(dir.as_fd(), "one").expect("removed by another");
        let _now = LockFile::take(dir.as_fd(), "one").expect("taken by a third");
        rustix::fs::flock(&before, FlockOperation::NonBlockingLockExclusive).expect("free");
        remove_own(dir.as_fd(), "one", &before).expect("nothing to do");
        assert!(path.exists());
        assert!(LockFile::is_held(&dir, "one").expect("look"));
    }
}
