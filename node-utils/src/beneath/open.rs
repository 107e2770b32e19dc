//! Opening one entry of a directory without following a link, on every kernel.
//!
//! `openat2` does it in one call; where a kernel or a seccomp filter does not know it, `openat`
//! with `O_NOFOLLOW` on one checked name is as strict, and mount points are compared by hand.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::io::Errno;
use rustix::path::Arg;

/// The behaviour at a mount point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mounts {
    /// Open what is mounted there.
    Enter,
    /// Fail with `EXDEV`.
    Refuse,
}

/// The number of attempts of a lookup while other processes move directories.
const LOOKUPS: usize = 128;

/// Set once the kernel has said that it does not know `openat2`.
static WITHOUT_OPENAT2: AtomicBool = AtomicBool::new(false);

/// Opens `name`, one component, in `dir`: never through a link, never as the controlling terminal.
pub fn open_beneath(
    dir: impl AsFd,
    name: impl Arg + Copy,
    flags: OFlags,
    mounts: Mounts,
) -> Result<OwnedFd, Errno> {
    match open_now(&dir, name, flags, mounts) {
        Err(Errno::AGAIN) if flags.contains(OFlags::NONBLOCK) => {
            open_leased(dir, name, flags, mounts)
        }
        result => result,
    }
}

/// Opens a file with a lease (Samba takes leases), which has to be given up first: the kernel waits for that, at
/// most `/proc/sys/fs/lease-break-time`. For anything but a file it could wait forever.
fn open_leased(
    dir: impl AsFd,
    name: impl Arg + Copy,
    flags: OFlags,
    mounts: Mounts,
) -> Result<OwnedFd, Errno> {
    let place = open_now(dir, name, OFlags::PATH, mounts)?;
    let stat = rustix::fs::fstat(&place)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(Errno::AGAIN);
    }
    let path = format!("/proc/thread-self/fd/{}", place.as_raw_fd());
    let flags = flags.difference(OFlags::NONBLOCK | OFlags::NOFOLLOW) | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
}

fn open_now(
    dir: impl AsFd,
    name: impl Arg + Copy,
    flags: OFlags,
    mounts: Mounts,
) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NOCTTY;
    if WITHOUT_OPENAT2.load(Ordering::Relaxed) {
        return open_by_hand(dir, name, flags, mounts);
    }
    let mut resolve =
        ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    if mounts == Mounts::Refuse {
        resolve |= ResolveFlags::NO_XDEV;
    }
    // O_PATH with any flag that it does not know is an error for openat2, unlike for openat.
    let how = if flags.contains(OFlags::PATH) {
        flags & (OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC)
    } else {
        flags
    };
    for _ in 0..LOOKUPS {
        match rustix::fs::openat2(&dir, name, how, Mode::empty(), resolve) {
            // A rename or mount elsewhere raced with the lookup and nothing is known.
            Err(Errno::AGAIN) if !flags.contains(OFlags::NONBLOCK) => {}
            Err(Errno::NOSYS) => {
                WITHOUT_OPENAT2.store(true, Ordering::Relaxed);
                return open_by_hand(dir, name, flags, mounts);
            }
            // A seccomp filter may answer EPERM to what it does not know; openat then decides.
            Err(Errno::PERM) => return open_by_hand(dir, name, flags, mounts),
            result => return result,
        }
    }
    Err(Errno::AGAIN)
}

fn open_by_hand(
    dir: impl AsFd,
    name: impl Arg,
    flags: OFlags,
    mounts: Mounts,
) -> Result<OwnedFd, Errno> {
    let fd = rustix::fs::openat(&dir, name, flags, Mode::empty())?;
    if mounts == Mounts::Refuse && mount_id(&fd)? != mount_id(&dir)? {
        return Err(Errno::XDEV);
    }
    Ok(fd)
}

/// The mount that `fd` was reached through.
fn mount_id(fd: impl AsFd) -> Result<u64, Errno> {
    let stat = rustix::fs::statx(&fd, c"", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?;
    if stat.stx_mask & StatxFlags::MNT_ID.bits() != 0 {
        return Ok(stat.stx_mnt_id);
    }
    crate::sys::mount_id_from_proc(fd)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_not_followed_by_either_way_of_opening() {
        let dir = tempfile::tempdir().expect("dir");
        std::fs::create_dir(dir.path().join("d")).expect("dir");
        std::os::unix::fs::symlink("d", dir.path().join("l")).expect("link");
        let fd = std::fs::File::open(dir.path()).expect("open");
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        for mounts in [Mounts::Enter, Mounts::Refuse] {
            assert!(open_beneath(&fd, "d", flags, mounts).is_ok());
            assert!(open_by_hand(&fd, "d", flags, mounts).is_ok());
            assert!(open_beneath(&fd, "l", flags, mounts).is_err());
            assert!(open_by_hand(&fd, "l", flags, mounts).is_err());
        }
    }

    #[test]
    fn a_mount_point_is_entered_or_refused_by_either_way_of_opening() {
        crate::testing::with_own_mounts(|base| {
            for dir in ["d", "m"] {
                std::fs::create_dir(base.join(dir)).expect("dir");
            }
            crate::testing::bind_plainly(&base.join("d"), &base.join("m"));
            let fd = std::fs::File::open(base).expect("open");
            let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            assert!(open_beneath(&fd, "m", flags, Mounts::Enter).is_ok());
            assert!(open_by_hand(&fd, "m", flags, Mounts::Enter).is_ok());
            let refused = open_beneath(&fd, "m", flags, Mounts::Refuse);
            assert_eq!(refused.err(), Some(Errno::XDEV));
            let refused = open_by_hand(&fd, "m", flags, Mounts::Refuse);
            assert_eq!(refused.err(), Some(Errno::XDEV));
        });
    }

    #[test]
    fn old_and_new_kernels_tell_a_bind_mount_of_the_same_filesystem_apart() {
        crate::testing::with_own_mounts(|base| {
            for dir in ["d", "m"] {
                std::fs::create_dir(base.join(dir)).expect("dir");
            }
            crate::testing::bind_plainly(&base.join("d"), &base.join("m"));
            let open = |name| std::fs::File::open(base.join(name)).expect("open");
            let old = |name| crate::sys::mount_id_from_proc(open(name)).expect("id");
            assert_eq!(old("."), old("d"));
            assert_ne!(old("."), old("m"));
            for name in [".", "d", "m"] {
                assert_eq!(mount_id(open(name)), Ok(old(name)), "{name}");
            }
        });
    }

    #[test]
    fn waiting_for_a_file_with_a_lease_uses_no_processor_time() {
        let dir = tempfile::tempdir().expect("dir");
        std::fs::write(dir.path().join("f"), "content").expect("file");
        let holder = std::fs::File::options();
        let holder = holder
            .clone()
            .write(true)
            .open(dir.path().join("f"))
            .expect("open");
        crate::sys::set_lease(&holder, libc::F_WRLCK).expect("lease");
        let (sender, receiver) = std::sync::mpsc::channel();
        let fd = std::fs::File::open(dir.path()).expect("open");
        let opener = std::thread::spawn(move || {
            sender.send(rustix::thread::gettid()).expect("send");
            open_beneath(&fd, "f", OFlags::RDONLY | OFlags::NONBLOCK, Mounts::Refuse)
        });
        let thread = receiver.recv().expect("thread").as_raw_nonzero();
        let sleeps = || {
            let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat"));
            stat.is_ok_and(|stat| stat.contains(") S "))
        };
        let start = std::time::Instant::now();
        while crate::sys::lease(&holder) == libc::F_WRLCK || !sleeps() {
            assert!(
                start.elapsed() < std::time::Duration::from_secs(10),
                "it never waited"
            );
            std::thread::yield_now();
        }
        crate::sys::set_lease(&holder, libc::F_UNLCK).expect("give up");
        let opened = opener.join().expect("thread").expect("open");
        let text = std::io::read_to_string(std::fs::File::from(opened)).expect("read");
        assert_eq!(text, "content");
    }
}
