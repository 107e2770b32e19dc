//! Locks that are files: held as long as their process lives, and gone with it.
//!
//! Whoever holds one takes its file away when done; only a kill leaves a file. Nobody removes a
//! file without holding its lock, and nobody trusts a lock whose file has no name any more: so two
//! processes never hold locks of one name at the same time.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use node_utils::beneath::{Mounts, open_beneath};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::path::Arg;

use crate::stop;

/// A lock that is held.
#[derive(Debug)]
pub(crate) struct LockFile {
    dir: OwnedFd,
    name: String,
    _file: OwnedFd,
}

// === impl LockFile ===

impl LockFile {
    /// Takes the lock `name` in `dir`; waits for whoever holds it.
    pub(crate) fn take(dir: BorrowedFd<'_>, name: &str) -> Result<Self, Errno> {
        let kept = rustix::io::fcntl_dupfd_cloexec(dir, 0)?;
        loop {
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = rustix::fs::openat(dir, name, flags, Mode::RUSR | Mode::WUSR)?;
            match rustix::fs::flock(&file, FlockOperation::LockExclusive) {
                Err(Errno::INTR) => continue,
                done => done?,
            }
            // Whoever held it before us took the file away.
            if rustix::fs::fstat(&file)?.st_nlink == 0 {
                continue;
            }
            stop::mark("lock");
            return Ok(Self {
                dir: kept,
                name: name.to_owned(),
                _file: file,
            });
        }
    }

    /// Whether somebody holds the lock.
    pub(crate) fn is_held(dir: impl AsFd, name: impl Arg + Copy) -> Result<bool, Errno> {
        Ok(matches!(Self::try_take(dir, name)?, Tried::Held))
    }

    /// Removes the file of a lock that nobody holds.
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
    fn a_lock_is_held_by_one_at_a_time_whoever_removes_files_meanwhile() {
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
    fn whoever_is_late_with_the_file_of_before_does_not_remove_that_of_now() {
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
