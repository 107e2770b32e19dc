//! Directories opened beneath a descriptor: one component at a time, never through a link, never
//! into another mount.
//!
//! Names that reach this module come from the grammar of ids, from this crate or from the kernel.
//! What [`node_utils::Root`] offers is used from there; here is what copies and races need besides.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, RenameFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::path::Arg;

/// What to do at a mount point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mounts {
    /// Open what is mounted there: a volume may be a filesystem of its own.
    Enter,
    /// Fail with `XDEV`.
    Refuse,
}

/// Opens `name` in `parent`: one entry, or a short path of our own. `NOTDIR` or `LOOP` where a
/// component is not what it has to be.
pub(crate) fn open(
    parent: impl AsFd,
    name: impl Arg,
    flags: OFlags,
    mounts: Mounts,
) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut resolve =
        ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    if mounts == Mounts::Refuse {
        resolve |= ResolveFlags::NO_XDEV;
    }
    let parent = parent.as_fd();
    name.into_with_c_str(|name| {
        loop {
            match rustix::fs::openat2(parent, name, flags, Mode::empty(), resolve) {
                // Somebody renamed something meanwhile, so the kernel could not be sure.
                Err(Errno::AGAIN | Errno::INTR) => {}
                // Before Linux 5.6, or behind a filter that does not know the call.
                Err(Errno::NOSYS | Errno::PERM) => {
                    return open_by_hand(parent, name, flags, mounts);
                }
                done => return done,
            }
        }
    })
}

/// The same with `openat`, component by component.
fn open_by_hand(
    parent: BorrowedFd<'_>,
    path: &CStr,
    flags: OFlags,
    mounts: Mounts,
) -> Result<OwnedFd, Errno> {
    let mut steps = path.to_bytes().split(|byte| *byte == b'/').peekable();
    let mut dir: Option<OwnedFd> = None;
    while let Some(step) = steps.next() {
        if step == b".." || step.is_empty() {
            return Err(Errno::XDEV);
        }
        let here = dir.as_ref().map_or(parent, AsFd::as_fd);
        let last = steps.peek().is_none();
        let way = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let next = rustix::fs::openat(here, step, if last { flags } else { way }, Mode::empty())?;
        let device = |fd: BorrowedFd<'_>| rustix::fs::fstat(fd).map(|stat| stat.st_dev);
        if mounts == Mounts::Refuse && device(here)? != device(next.as_fd())? {
            return Err(Errno::XDEV);
        }
        dir = Some(next);
    }
    dir.ok_or(Errno::NOENT)
}

/// Opens a directory of ours for `*at` calls only.
pub(crate) fn open_path(parent: impl AsFd, name: impl Arg) -> Result<OwnedFd, Errno> {
    open(
        parent,
        name,
        OFlags::PATH | OFlags::DIRECTORY,
        Mounts::Enter,
    )
}

/// Opens a directory for reading, in the same mount.
pub(crate) fn open_dir(parent: impl AsFd, name: impl Arg) -> Result<OwnedFd, Errno> {
    open(
        parent,
        name,
        OFlags::RDONLY | OFlags::DIRECTORY,
        Mounts::Refuse,
    )
}

/// Makes a directory; one that is there already is as good.
pub(crate) fn ensure_dir(parent: impl AsFd, name: &str, mode: u32) -> Result<(), Errno> {
    match rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(mode)) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// The names in a directory, without `.` and `..`, with the type as far as the filesystem tells.
pub(crate) fn entries(dir: BorrowedFd<'_>) -> Result<Vec<(CString, FileType)>, Errno> {
    let mut entries = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        if name != c"." && name != c".." {
            entries.push((name.to_owned(), entry.file_type()));
        }
    }
    Ok(entries)
}

/// Whether `name` is a directory, asked only if the listing did not tell.
pub(crate) fn is_dir(parent: BorrowedFd<'_>, name: &CStr, listed: FileType) -> bool {
    match listed {
        FileType::Unknown => rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory),
        known => known == FileType::Directory,
    }
}

/// Renames without replacing anything. `lock` names a file in `lock_dir` that orders the callers
/// on filesystems whose rename cannot refuse to replace (NFS).
pub(crate) fn rename_new(
    from: (BorrowedFd<'_>, &str),
    to: (BorrowedFd<'_>, &str),
    lock_dir: BorrowedFd<'_>,
) -> Result<(), Errno> {
    match rustix::fs::renameat_with(from.0, from.1, to.0, to.1, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {}
        done => return done,
    }
    let lock = rustix::fs::openat(
        lock_dir,
        "rename.lock",
        OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::RUSR | Mode::WUSR,
    )?;
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive)?;
    match rustix::fs::statat(to.0, to.1, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(_) => Err(Errno::EXIST),
        Err(Errno::NOENT) => rustix::fs::renameat(from.0, from.1, to.0, to.1),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn the_way_by_hand_is_as_strict_as_that_of_the_kernel() {
        let top = tempfile::tempdir().expect("folder");
        let base = top.path().join("base");
        std::fs::create_dir_all(base.join("v/one")).expect("folders");
        std::fs::write(base.join("v/file"), "x").expect("file");
        symlink(top.path(), base.join("v/link")).expect("link");
        symlink("v", base.join("shelf")).expect("link");
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let root = rustix::fs::open(&base, flags, Mode::empty()).expect("base");
        for (path, fine) in [
            (c"v", true),
            (c"v/one", true),
            (c"v/file", false),
            (c"v/link", false),
            (c"shelf/one", false),
            (c"v/none", false),
            (c"..", false),
            (c"v/../v/one", false),
            (c"/", false),
            (c"/etc", false),
            (c"", false),
        ] {
            let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            for mounts in [Mounts::Enter, Mounts::Refuse] {
                let by_hand = open_by_hand(root.as_fd(), path, flags, mounts);
                assert_eq!(by_hand.is_ok(), fine, "{path:?} by hand");
            }
            // Only this one of the paths above could be followed and still end where it began.
            if path != c"v/../v/one" {
                let kernel = open(&root, path, flags, Mounts::Refuse);
                assert_eq!(kernel.is_ok(), fine, "{path:?} by the kernel");
            }
        }
        let proc = rustix::fs::open("/", flags, Mode::empty()).expect("root");
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let crossed = open_by_hand(proc.as_fd(), c"proc", flags, Mounts::Refuse);
        assert_eq!(crossed.map(drop), Err(Errno::XDEV));
    }
}
