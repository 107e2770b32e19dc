//! Locks that are files: held as long as their process lives, and gone with it.
//!
//! The file of a [`LockFile`] is never removed, so that all who take the lock open the same one. A [`MakerLock`] is of
//! one process, under a name that no other lock ever has; its file is removed by its holder, or after a kill by
//! a process that finds it free.
//!
//! Nothing waits for a lock in the kernel: the wait would last as long as another process hangs.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use driver_core::{Backoff, Call};
use node_utils::beneath::{Mounts, open_beneath};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::path::Arg;

use crate::crash_points;

/// The number of names that are tried for the lock of a maker. Another process is in the way of each for a moment only.
const TRIES: usize = 100;

/// A lock that processes take in turn, held.
#[derive(Debug)]
pub(crate) struct LockFile {
    _file: OwnedFd,
}

/// The lock of a process that makes something, held.
#[derive(Debug)]
pub(crate) struct MakerLock {
    dir: OwnedFd,
    pub(crate) name: String,
    file: OwnedFd,
}

/// The result of an attempt to take a lock without waiting.
enum Tried {
    Absent,
    Held,
    Free(OwnedFd),
}

// === impl LockFile ===

impl LockFile {
    /// Takes the lock `name` in `dir`; waits for its holder within the time of the call. `WOULDBLOCK` after that.
    #[expect(
        clippy::disallowed_methods,
        reason = "it is called where calls may block, and there is no event to wait for when another machine releases a lock"
    )]
    pub(crate) fn take(dir: BorrowedFd<'_>, name: &str, call: &Call) -> Result<Self, Errno> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(dir, name, flags, Mode::RUSR | Mode::WUSR)?;
        let mut polls = Backoff::of_polls();
        while !try_lock(&file)? {
            let left = call.remaining();
            if left.is_zero() {
                return Err(Errno::WOULDBLOCK);
            }
            std::thread::sleep(polls.pause().min(left));
        }
        crash_points::mark("lock");
        Ok(Self { _file: file })
    }
}

// === impl MakerLock ===

impl MakerLock {
    /// Makes and takes a lock. `next` gives a name that nothing had before. `WOULDBLOCK` if none can be locked.
    pub(crate) fn take(dir: BorrowedFd<'_>, next: impl Fn() -> String) -> Result<Self, Errno> {
        let kept = rustix::io::fcntl_dupfd_cloexec(dir, 0)?;
        for _ in 0..TRIES {
            let name = next();
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            let file = rustix::fs::openat(dir, &*name, flags, Mode::RUSR | Mode::WUSR)?;
            crash_points::mark("make lock");
            // Until it was locked, it may have been taken for that of a process that is gone, and removed.
            if !try_lock(&file)? {
                let _ = rustix::fs::unlinkat(dir, &*name, AtFlags::empty());
                continue;
            }
            match rustix::fs::statat(dir, &*name, AtFlags::SYMLINK_NOFOLLOW) {
                Err(Errno::NOENT) => {}
                found => {
                    found?;
                    crash_points::mark("lock");
                    return Ok(Self {
                        dir: kept,
                        name,
                        file,
                    });
                }
            }
        }
        Err(Errno::WOULDBLOCK)
    }

    /// Whether the lock of that name is held.
    pub(crate) fn is_held(dir: impl AsFd, name: impl Arg + Copy) -> Result<bool, Errno> {
        Ok(matches!(try_take(dir, name)?, Tried::Held))
    }

    /// Removes the file of a lock that is not held.
    pub(crate) fn remove_unheld(dir: BorrowedFd<'_>, name: &str) -> Result<(), Errno> {
        let Tried::Free(_held) = try_take(dir, name)? else {
            return Ok(());
        };
        match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
            Err(Errno::NOENT) => Ok(()),
            done => done,
        }
    }

    /// Loses the lock, as when a server ends the lease of a client.
    #[cfg(test)]
    pub(crate) fn lose(&self) {
        rustix::fs::flock(&self.file, FlockOperation::Unlock).expect("unlocked");
    }
}

impl Drop for MakerLock {
    fn drop(&mut self) {
        // As long as the file is open it is locked.
        let Self {
            dir,
            name,
            file: _held,
        } = self;
        let _ = rustix::fs::unlinkat(dir, name.as_str(), AtFlags::empty());
    }
}

/// `false` if another process holds it.
fn try_lock(file: &OwnedFd) -> Result<bool, Errno> {
    loop {
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(true),
            // The second one is that of a mount by SMB.
            Err(Errno::WOULDBLOCK | Errno::ACCESS) => return Ok(false),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

fn try_take(dir: impl AsFd, name: impl Arg + Copy) -> Result<Tried, Errno> {
    match open_beneath(dir, name, OFlags::RDWR, Mounts::Refuse) {
        Ok(file) if try_lock(&file)? => Ok(Tried::Free(file)),
        Ok(_) => Ok(Tried::Held),
        Err(Errno::NOENT) => Ok(Tried::Absent),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::{Duration, Instant};

    fn call() -> Call {
        Call::within(Duration::from_mins(2))
    }

    #[test]
    fn a_lock_that_is_held_is_waited_for_no_longer_than_the_call_lasts() {
        let top = tempfile::tempdir().expect("folder");
        let dir = std::fs::File::open(top.path()).expect("open");
        let held = LockFile::take(dir.as_fd(), "one", &call()).expect("lock");
        let time = Duration::from_millis(50);
        let began = Instant::now();
        let refused = LockFile::take(dir.as_fd(), "one", &Call::within(time));
        assert_eq!(refused.expect_err("held"), Errno::WOULDBLOCK);
        assert!(began.elapsed() >= time);
        let stopped = call();
        stopped.cancel();
        let refused = LockFile::take(dir.as_fd(), "one", &stopped);
        assert_eq!(refused.expect_err("held"), Errno::WOULDBLOCK);
        drop(held);
        // One look is enough.
        LockFile::take(dir.as_fd(), "one", &stopped).expect("free");
    }

    #[test]
    fn a_lock_is_held_by_one_at_a_time() {
        let top = tempfile::tempdir().expect("folder");
        let dir = std::fs::File::open(top.path()).expect("open");
        let (inside, entered) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let lock = LockFile::take(dir.as_fd(), "one", &call()).expect("lock");
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        entered.fetch_add(1, Ordering::SeqCst);
                        inside.fetch_sub(1, Ordering::SeqCst);
                        drop(lock);
                    }
                });
            }
        });
        assert_eq!(entered.into_inner(), 2_000);
    }

    /// On NFS a file that is removed while another has it open stays, so two would hold two locks of one name.
    #[test]
    fn the_file_of_a_lock_stays_and_all_take_the_same() {
        let top = tempfile::tempdir().expect("folder");
        let dir = std::fs::File::open(top.path()).expect("open");
        let mut files = Vec::new();
        for _ in 0..2 {
            drop(LockFile::take(dir.as_fd(), "one", &call()).expect("lock"));
            let found = rustix::fs::statat(&dir, "one", AtFlags::empty());
            files.push(found.expect("it stays").st_ino);
        }
        assert_eq!(files[0], files[1]);
    }

    #[test]
    fn the_lock_of_a_maker_is_there_and_held_while_others_remove_what_is_free() {
        let top = tempfile::tempdir().expect("folder");
        let dir = std::fs::File::open(top.path()).expect("open");
        let (number, ended) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let next = || format!("maker-{}", number.fetch_add(1, Ordering::SeqCst));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..1_000 {
                        let lock = MakerLock::take(dir.as_fd(), next).expect("lock");
                        let name = lock.name.clone();
                        assert!(MakerLock::is_held(&dir, &*name).expect("look"), "{name}");
                        drop(lock);
                        assert!(!MakerLock::is_held(&dir, &*name).expect("look"));
                    }
                    ended.fetch_add(1, Ordering::SeqCst);
                });
            }
            scope.spawn(|| {
                while ended.load(Ordering::SeqCst) < 2 {
                    for entry in std::fs::read_dir(top.path()).expect("list").flatten() {
                        let name = entry.file_name().into_string().expect("text");
                        MakerLock::remove_unheld(dir.as_fd(), &name).expect("sweep");
                    }
                }
            });
        });
        assert_eq!(std::fs::read_dir(top.path()).expect("list").count(), 0);
    }

    #[test]
    fn what_a_killed_process_has_locked_is_removed() {
        let top = tempfile::tempdir().expect("folder");
        let dir = std::fs::File::open(top.path()).expect("open");
        std::fs::File::create(top.path().join("killed")).expect("left by a kill");
        let living = MakerLock::take(dir.as_fd(), || "living".to_owned()).expect("lock");
        for name in ["killed", "living", "absent"] {
            MakerLock::remove_unheld(dir.as_fd(), name).expect(name);
        }
        let left = std::fs::read_dir(top.path()).expect("list");
        let left: Vec<_> = left
            .map(|entry| entry.expect("entry").file_name())
            .collect();
        assert_eq!(left, ["living"]);
        drop(living);
    }
}
