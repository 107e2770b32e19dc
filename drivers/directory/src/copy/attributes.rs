//! Owners, modes, times, extended attributes and ACLs of one file.
//!
//! The order matters: a change of owner clears set-id bits and file capabilities, so it comes
//! first; times come last. What an unprivileged process may not do is left undone as `rsync -a`
//! leaves it; for root every failure counts.

use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::fs::{AtFlags, FileType, Gid, Mode, Stat, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use crate::record::ATTRIBUTE;

/// Everything about a file or directory but its content.
pub(super) struct Attributes {
    stat: Stat,
    extended: Vec<(CString, Vec<u8>)>,
}

// === impl Attributes ===

impl Attributes {
    /// Reads them. Of the top of a tree our own record is left out: the copy gets its own.
    pub(super) fn read(file: BorrowedFd<'_>, buffer: &mut [u8], top: bool) -> Result<Self, Errno> {
        let stat = rustix::fs::fstat(file)?;
        let extended = read_extended(
            buffer,
            |buffer| rustix::fs::flistxattr(file, buffer),
            |name, buffer| rustix::fs::fgetxattr(file, name, buffer),
        )?;
        let own = |name: &CStr| top && name.to_bytes() == ATTRIBUTE.as_bytes();
        Ok(Self {
            stat,
            extended: extended
                .into_iter()
                .filter(|(name, _)| !own(name))
                .collect(),
        })
    }

    pub(super) fn stat(&self) -> &Stat {
        &self.stat
    }

    /// Gives them to an open file or directory.
    pub(super) fn apply(&self, file: BorrowedFd<'_>) -> Result<(), Errno> {
        let (user, group) = owner(&self.stat);
        tolerate(rustix::fs::fchown(file, Some(user), Some(group)))?;
        for (name, value) in &self.extended {
            let set = rustix::fs::fsetxattr(file, name.as_c_str(), value, XattrFlags::empty());
            tolerate_extended(name, set)?;
        }
        rustix::fs::fchmod(file, Mode::from_raw_mode(self.stat.st_mode & 0o7777))?;
        rustix::fs::futimens(file, &times(&self.stat))
    }
}

/// The same for what cannot be opened: links, pipes, sockets, devices.
pub(super) fn copy_named(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    name: &CStr,
    stat: &Stat,
    buffer: &mut [u8],
) -> Result<(), Errno> {
    let (user, group) = owner(stat);
    let no_follow = AtFlags::SYMLINK_NOFOLLOW;
    tolerate(rustix::fs::chownat(
        to,
        name,
        Some(user),
        Some(group),
        no_follow,
    ))?;
    // The calls for extended attributes take no descriptor of a parent; the link in /proc leads to
    // exactly that directory, and the last component is not followed.
    let below = |dir: BorrowedFd<'_>| {
        let mut path = format!("/proc/self/fd/{}/", dir.as_raw_fd()).into_bytes();
        path.extend_from_slice(name.to_bytes());
        path
    };
    let (source, target) = (below(from), below(to));
    let extended = read_extended(
        buffer,
        |buffer| rustix::fs::llistxattr(source.as_slice(), buffer),
        |name, buffer| rustix::fs::lgetxattr(source.as_slice(), name, buffer),
    )?;
    for (key, value) in &extended {
        let flags = XattrFlags::empty();
        let set = rustix::fs::lsetxattr(target.as_slice(), key.as_c_str(), value, flags);
        tolerate_extended(key, set)?;
    }
    if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
        // It was made a moment ago in a directory that only we can reach: no link can be there.
        let mode = Mode::from_raw_mode(stat.st_mode & 0o7777);
        rustix::fs::chmodat(to, name, mode, AtFlags::empty())?;
    }
    rustix::fs::utimensat(to, name, &times(stat), no_follow)
}

fn read_extended(
    buffer: &mut [u8],
    list: impl FnOnce(&mut [u8]) -> Result<usize, Errno>,
    get: impl Fn(&CStr, &mut [u8]) -> Result<usize, Errno>,
) -> Result<Vec<(CString, Vec<u8>)>, Errno> {
    // The kernel knows no longer list and no longer value than 64 KiB; the buffer holds both.
    let (names, values) = buffer.split_at_mut(1 << 16);
    let length = match list(names) {
        Ok(length) => length,
        Err(Errno::OPNOTSUPP | Errno::NOENT) => 0,
        Err(errno) => return Err(errno),
    };
    let mut extended = Vec::new();
    for name in names[..length].split_inclusive(|byte| *byte == 0) {
        let Ok(name) = CStr::from_bytes_with_nul(name) else {
            continue;
        };
        match get(name, values) {
            Ok(length) => extended.push((name.to_owned(), values[..length].to_vec())),
            // Removed meanwhile, or only shown to those who may not read it.
            Err(Errno::NODATA | Errno::NOENT | Errno::OPNOTSUPP) => {}
            Err(Errno::ACCESS | Errno::PERM) if !privileged() => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(extended)
}

fn owner(stat: &Stat) -> (Uid, Gid) {
    (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid))
}

fn times(stat: &Stat) -> Timestamps {
    let time = |seconds, nanos| Timespec {
        tv_sec: seconds,
        tv_nsec: i64::try_from(nanos).unwrap_or_default(),
    };
    Timestamps {
        last_access: time(stat.st_atime, stat.st_atime_nsec),
        last_modification: time(stat.st_mtime, stat.st_mtime_nsec),
    }
}

fn privileged() -> bool {
    rustix::process::geteuid().is_root()
}

fn tolerate(result: Result<(), Errno>) -> Result<(), Errno> {
    match result {
        Err(Errno::PERM | Errno::INVAL) if !privileged() => Ok(()),
        done => done,
    }
}

/// Labels of security modules belong to the place rather than to the file: where one cannot be set,
/// the system has given its own.
fn tolerate_extended(name: &CStr, result: Result<(), Errno>) -> Result<(), Errno> {
    let name = name.to_bytes();
    let of_the_place = [&b"security.selinux"[..], b"security.ima", b"security.evm"].contains(&name);
    let restricted = name.starts_with(b"security.") || name.starts_with(b"trusted.");
    match result {
        Err(Errno::PERM | Errno::OPNOTSUPP | Errno::INVAL)
            if of_the_place || (restricted && !privileged()) =>
        {
            Ok(())
        }
        done => done,
    }
}
