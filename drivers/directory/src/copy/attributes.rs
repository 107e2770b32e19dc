//! Owners, modes, times, extended attributes and ACLs of one file.
//!
//! The order matters: a change of owner clears set-id bits and file capabilities, so it comes
//! first; times come last. Attributes go over one by one: a pod can give a file more of them than
//! there is memory. What an unprivileged process may not do is left undone as `rsync -a` leaves it;
//! for root every failure counts.

use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::fs::{AtFlags, FileType, Gid, Mode, Stat, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use crate::record;

/// The attributes that a directory gets after its content: what would be passed on to it, shut us out or be changed
/// by it.
pub(super) struct DirAttributes {
    stat: Stat,
    /// Whether the copy has another owner so far.
    has_other_owner: bool,
    acls: Vec<(CString, Vec<u8>)>,
}

// === impl DirAttributes ===

impl DirAttributes {
    /// Reads those of `from`, and gives all others to `to` now, which was found as `made`. Of the top of a
    /// tree our own record is left out: the copy gets its own.
    pub(super) fn copy(
        from: BorrowedFd<'_>,
        (to, made): (BorrowedFd<'_>, &Stat),
        buffer: &mut [u8],
        top: bool,
    ) -> Result<Self, Errno> {
        let stat = rustix::fs::fstat(from)?;
        let mut acls = Vec::new();
        each_xattr(
            buffer,
            |buffer| rustix::fs::flistxattr(from, buffer),
            |name, buffer| rustix::fs::fgetxattr(from, name, buffer),
            |name, value| {
                if name.to_bytes().starts_with(b"system.") {
                    acls.push((name.to_owned(), value.to_vec()));
                } else if !(top && record::is_name(name.to_bytes())) {
                    set_xattr(to, name, value)?;
                }
                Ok(())
            },
        )?;
        Ok(Self {
            has_other_owner: !same_owner(&stat, made),
            stat,
            acls,
        })
    }

    pub(super) fn stat(&self) -> &Stat {
        &self.stat
    }

    /// The memory that the lists need.
    pub(super) fn held(&self) -> usize {
        self.acls.iter().map(|(_, value)| value.len()).sum()
    }

    /// Gives them to the copy.
    pub(super) fn apply(&self, to: BorrowedFd<'_>) -> Result<(), Errno> {
        let mode = own(&self.stat, self.has_other_owner, |user, group| {
            rustix::fs::fchown(to, user, group)
        })?;
        for (name, value) in &self.acls {
            set_xattr(to, name, value)?;
        }
        rustix::fs::fchmod(to, mode)?;
        rustix::fs::futimens(to, &times(&self.stat))
    }
}

/// Gives everything but the content of a file to its copy, which was made as `made`. On a share each change is
/// an exchange with the server: an owner that the copy has already is not set.
pub(super) fn copy_file(
    from: BorrowedFd<'_>,
    (to, made): (BorrowedFd<'_>, &Stat),
    stat: &Stat,
    buffer: &mut [u8],
) -> Result<(), Errno> {
    let other = !same_owner(stat, made);
    let mode = own(stat, other, |user, group| {
        rustix::fs::fchown(to, user, group)
    })?;
    each_xattr(
        buffer,
        |buffer| rustix::fs::flistxattr(from, buffer),
        |name, buffer| rustix::fs::fgetxattr(from, name, buffer),
        |name, value| set_xattr(to, name, value),
    )?;
    rustix::fs::fchmod(to, mode)?;
    rustix::fs::futimens(to, &times(stat))
}

fn same_owner(one: &Stat, other: &Stat) -> bool {
    (one.st_uid, one.st_gid) == (other.st_uid, other.st_gid)
}

/// The same for what cannot be opened: links, pipes, sockets, devices. `held` stands for the source,
/// `name` in `to` is the copy.
pub(super) fn copy_named(
    held: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    name: &CStr,
    stat: &Stat,
    buffer: &mut [u8],
) -> Result<(), Errno> {
    let no_follow = AtFlags::SYMLINK_NOFOLLOW;
    let mode = own(stat, true, |user, group| {
        rustix::fs::chownat(to, name, user, group, no_follow)
    })?;
    // The calls for extended attributes take no such descriptors. The first link in /proc leads to
    // the very object that is held; of the second path the last component is not followed.
    let source = format!("/proc/self/fd/{}", held.as_raw_fd());
    let mut target = format!("/proc/self/fd/{}/", to.as_raw_fd()).into_bytes();
    target.extend_from_slice(name.to_bytes());
    each_xattr(
        buffer,
        |buffer| rustix::fs::listxattr(source.as_str(), buffer),
        |name, buffer| rustix::fs::getxattr(source.as_str(), name, buffer),
        |name, value| {
            let flags = XattrFlags::empty();
            let set = rustix::fs::lsetxattr(target.as_slice(), name, value, flags);
            tolerate_xattr(name, set)
        },
    )?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
        // It was made a moment ago in a directory that only we can write: no link can be there.
        rustix::fs::chmodat(to, name, mode, AtFlags::empty())?;
    }
    rustix::fs::utimensat(to, name, &times(stat), no_follow)
}

/// Shows every attribute to `give`.
fn each_xattr(
    buffer: &mut [u8],
    list: impl FnOnce(&mut [u8]) -> Result<usize, Errno>,
    get: impl Fn(&CStr, &mut [u8]) -> Result<usize, Errno>,
    mut give: impl FnMut(&CStr, &[u8]) -> Result<(), Errno>,
) -> Result<(), Errno> {
    // The kernel knows no longer list and no longer value than 64 KiB; the buffer holds both.
    let (names, values) = buffer.split_at_mut(1 << 16);
    let length = match list(names) {
        Ok(length) => length,
        Err(Errno::OPNOTSUPP | Errno::NOENT) => 0,
        Err(errno) => return Err(errno),
    };
    for name in names[..length].split_inclusive(|byte| *byte == 0) {
        let Ok(name) = CStr::from_bytes_with_nul(name) else {
            continue;
        };
        match get(name, values) {
            Ok(length) => give(name, &values[..length])?,
            // Removed since it was listed, or only shown to those who may not read it.
            Err(Errno::NODATA | Errno::NOENT | Errno::OPNOTSUPP) => {}
            Err(Errno::ACCESS | Errno::PERM) if !privileged() => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

fn set_xattr(to: BorrowedFd<'_>, name: &CStr, value: &[u8]) -> Result<(), Errno> {
    tolerate_xattr(
        name,
        rustix::fs::fsetxattr(to, name, value, XattrFlags::empty()),
    )
}

/// Sets the owner, by `chown`, if it is another one; gives the mode that may be set then. Where the owner cannot be set, a
/// program must not run as the user of this process.
fn own(
    stat: &Stat,
    is_other: bool,
    chown: impl Fn(Option<Uid>, Option<Gid>) -> Result<(), Errno>,
) -> Result<Mode, Errno> {
    let (user, group) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
    let mode = stat.st_mode & 0o7777;
    if !is_other {
        return Ok(Mode::from_raw_mode(mode));
    }
    match chown(Some(user), Some(group)) {
        Err(Errno::PERM | Errno::INVAL) if !privileged() => {
            let lost = if chown(None, Some(group)).is_ok() {
                0o4000
            } else {
                0o6000
            };
            Ok(Mode::from_raw_mode(mode & !lost))
        }
        done => done.map(|()| Mode::from_raw_mode(mode)),
    }
}

pub(crate) fn times(stat: &Stat) -> Timestamps {
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

/// Labels of security modules belong to the place rather than to the file: where one cannot be set,
/// the system has given its own.
fn tolerate_xattr(name: &CStr, result: Result<(), Errno>) -> Result<(), Errno> {
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
