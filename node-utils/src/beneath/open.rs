//! Opening one entry of a directory without following a link, on every kernel.
//!
//! `openat2` does it in one call; where a kernel or a seccomp filter does not know it, `openat`
//! with `O_NOFOLLOW` on one checked name is as strict, and mount points are compared by hand.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::io::Errno;
use rustix::path::Arg;

/// What to do at a mount point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mounts {
    /// Open what is mounted there.
    Enter,
    /// Fail with `EXDEV`.
    Refuse,
}

/// Set once the kernel has said that it does not know `openat2`.
static WITHOUT_OPENAT2: AtomicBool = AtomicBool::new(false);

/// Opens `name`, one component, in `dir`.
pub(crate) fn open_beneath(
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
    loop {
        match rustix::fs::openat2(&dir, name, how, Mode::empty(), resolve) {
            // A rename or mount elsewhere raced with the lookup and nothing is known; bounded by
            // the other side's patience, and each round is one system call.
            Err(Errno::AGAIN) => {}
            Err(Errno::NOSYS) => {
                WITHOUT_OPENAT2.store(true, Ordering::Relaxed);
                return open_by_hand(dir, name, flags, mounts);
            }
            // A seccomp filter may answer EPERM to what it does not know; openat then decides.
            Err(Errno::PERM) => return open_by_hand(dir, name, flags, mounts),
            result => return result,
        }
    }
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

/// The mount that `fd` was reached through; the device where the kernel does not say.
fn mount_id(fd: impl AsFd) -> Result<u64, Errno> {
    let stat = rustix::fs::statx(&fd, c"", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?;
    if stat.stx_mask & StatxFlags::MNT_ID.bits() != 0 {
        return Ok(stat.stx_mnt_id);
    }
    Ok(u64::from(stat.stx_dev_major) << 32 | u64::from(stat.stx_dev_minor))
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
}
