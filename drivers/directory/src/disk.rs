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
                done => return done,
            }
        }
    })
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
