//! Short forms of the few things that are done to the directories of this driver.
//!
//! Everything is opened through [`open_beneath`]: one name at a time, never through a link. Names
//! that reach this module come from the grammar of ids, from this crate or from the kernel.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use driver_core::Call;
use node_utils::beneath::{Mounts, open_beneath};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use rustix::path::Arg;

use crate::lock::LockFile;

/// Orders callers on filesystems whose rename cannot refuse to replace. No object has such a name. The file stays.
const RENAME_LOCK: &str = ".omnibus-csi.lock";

/// Opens a directory of ours for `*at` calls only.
pub(crate) fn open_path(parent: impl AsFd, name: impl Arg + Copy) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    open_beneath(parent, name, flags, Mounts::Enter)
}

/// Opens a directory for reading, in the same mount.
pub(crate) fn open_dir(parent: impl AsFd, name: impl Arg + Copy) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    open_beneath(parent, name, flags, Mounts::Refuse)
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

/// Whether `name` is a directory, asked only if the listing did not tell. What has vanished is none.
pub(crate) fn is_dir(parent: BorrowedFd<'_>, name: &CStr, listed: FileType) -> Result<bool, Errno> {
    if listed != FileType::Unknown {
        return Ok(listed == FileType::Directory);
    }
    match rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(FileType::from_raw_mode(stat.st_mode) == FileType::Directory),
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Whether nothing has that name.
pub(crate) fn is_absent(parent: impl AsFd, name: impl Arg) -> bool {
    let found = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW);
    found.is_err_and(|errno| errno == Errno::NOENT)
}

/// Whether what is found under a name is called so exactly. Where case is ignored (on SMB and NTFS, on ext4, XFS and ZFS
/// that are made so), something else is found under it, too.
pub(crate) fn is_spelled(parent: impl AsFd, name: &str) -> Result<bool, Errno> {
    let swap = |c: char| match c {
        'a'..='z' => c.to_ascii_uppercase(),
        _ => c.to_ascii_lowercase(),
    };
    let other: String = name.chars().map(swap).collect();
    let found = |name: &str| match rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(_) => Ok(true),
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(errno),
    };
    if other == name || !found(&other)? || !found(name)? {
        return Ok(true);
    }
    // Two directories or one. Numbers of inodes do not tell: some servers of SMB have none that stay.
    let listed = entries(open_dir(&parent, ".")?.as_fd())?;
    Ok(listed
        .iter()
        .any(|(entry, _)| entry.as_bytes() == name.as_bytes()))
}

/// Renames without replacing anything. `WOULDBLOCK` if another process keeps this one from it as long as the call lasts.
pub(crate) fn rename_new(
    call: &Call,
    from: (BorrowedFd<'_>, &str),
    to: (BorrowedFd<'_>, &str),
) -> Result<(), Errno> {
    match rustix::fs::renameat_with(from.0, from.1, to.0, to.1, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => rename_by_turns(call, from, to),
        done => done,
    }
}

/// The same where the kernel cannot do it in one step (NFS): one caller after the other.
fn rename_by_turns(
    call: &Call,
    from: (BorrowedFd<'_>, &str),
    to: (BorrowedFd<'_>, &str),
) -> Result<(), Errno> {
    let _turn = LockFile::take(to.0, RENAME_LOCK, call)?;
    match rustix::fs::statat(to.0, to.1, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(_) => Err(Errno::EXIST),
        Err(Errno::NOENT) => rustix::fs::renameat(from.0, from.1, to.0, to.1),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_rename_by_turns_replaces_nothing() {
        let top = tempfile::tempdir().expect("folder");
        for name in ["one", "two"] {
            std::fs::create_dir(top.path().join(name)).expect("folder");
        }
        let dir = std::fs::File::open(top.path()).expect("open");
        let call = Call::within(Duration::from_mins(1));
        let rename = |from, to| rename_by_turns(&call, (dir.as_fd(), from), (dir.as_fd(), to));
        assert_eq!(rename("one", "two"), Err(Errno::EXIST));
        assert_eq!(rename("one", "three"), Ok(()));
        assert_eq!(rename("one", "four"), Err(Errno::NOENT));
        let held = LockFile::take(dir.as_fd(), RENAME_LOCK, &call).expect("lock");
        let short = Call::within(Duration::from_millis(20));
        let late = rename_by_turns(&short, (dir.as_fd(), "two"), (dir.as_fd(), "four"));
        assert_eq!(late, Err(Errno::WOULDBLOCK));
        drop(held);
        let mut left: Vec<_> = std::fs::read_dir(top.path())
            .expect("list")
            .map(|entry| entry.expect("entry").file_name())
            .collect();
        left.sort();
        assert_eq!(left, [RENAME_LOCK, "three", "two"]);
    }
}
