//! The project of a directory, and what its filesystem counts and allows for a project.
//!
//! Each function wraps one call of the kernel. The layouts are those of `linux/fs.h`, `linux/quota.h` and
//! `linux/dqblk_xfs.h`. XFS and ext4 have project quotas; both answer the same calls.

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

/// A directory passes its project on to what is made in it.
const INHERIT: u32 = 0x200;
/// The sort of quotas.
const PROJECTS: u32 = 2;
/// The commands for [`quotactl`]; missing in libc, or there as signed numbers.
const GET_STATE: u32 = (b'X' as u32) << 8 | 8;
const GET_QUOTA: u32 = 0x80_0007;
const SET_QUOTA: u32 = 0x80_0008;
/// Limits of projects are enforced.
const ENFORCED: u16 = 1 << 5;
/// The bytes of one block, in which limits are counted.
const BLOCK: u64 = 1024;

mod ioctls {
    use super::Attributes;

    nix::ioctl_read!(fs_get_xattr, b'X', 31, Attributes);
    nix::ioctl_write_ptr!(fs_set_xattr, b'X', 32, Attributes);
}

/// `struct fsxattr`.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    flags: u32,
    extent_size: u32,
    extents: u32,
    project: u32,
    copy_extent_size: u32,
    padding: [u8; 8],
}

/// `struct fs_quota_statv`, the first version.
#[repr(C)]
#[derive(Default)]
struct State {
    version: i8,
    padding: u8,
    flags: u16,
    in_memory: u32,
    files: [u64; 9],
    times: [i32; 3],
    warnings: [u16; 4],
    more_padding: u32,
    unused: [u64; 7],
}

/// The project of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Project {
    /// Its number; 0 is that of everything without one.
    pub id: u32,
    /// Whether what is made in the directory gets it.
    pub is_inherited: bool,
}

/// What the files of a project are and may be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Quota {
    /// Its files, directories included.
    pub files: u64,
    /// The bytes that they occupy.
    pub bytes: u64,
    /// The bytes that they may occupy; 0 for any number.
    pub limit: u64,
}

/// The project of an open directory. `NOTTY` or `OPNOTSUPP` where the filesystem knows none.
pub fn project(dir: impl AsFd) -> Result<Project, Errno> {
    let attributes = attributes(dir)?;
    Ok(Project {
        id: attributes.project,
        is_inherited: attributes.flags & INHERIT != 0,
    })
}

/// Gives an open directory, and what will be made in it, a project.
pub fn assign(dir: impl AsFd, id: u32) -> Result<(), Errno> {
    let mut attributes = attributes(&dir)?;
    attributes.project = id;
    attributes.flags |= INHERIT;
    #[expect(unsafe_code, reason = "rustix has no FS_IOC_FSSETXATTR")]
    // SAFETY: the descriptor is borrowed for the whole call; the kernel only reads `attributes`, which has
    // the layout that this command takes.
    let done = unsafe { ioctls::fs_set_xattr(dir.as_fd().as_raw_fd(), &raw const attributes) };
    done.map(drop).map_err(errno)
}

fn attributes(dir: impl AsFd) -> Result<Attributes, Errno> {
    let mut attributes = Attributes::default();
    #[expect(unsafe_code, reason = "rustix has no FS_IOC_FSGETXATTR")]
    // SAFETY: the descriptor is borrowed for the whole call; the kernel writes one `fsxattr`, which
    // `attributes` is, and any bytes are a valid value of it.
    let done = unsafe { ioctls::fs_get_xattr(dir.as_fd().as_raw_fd(), &raw mut attributes) };
    done.map(|_| attributes).map_err(errno)
}

/// Whether the filesystem of `fd` enforces limits of projects. Linux 5.14.
pub fn is_enforced(fd: impl AsFd) -> Result<bool, Errno> {
    let mut state = State {
        version: 1,
        ..State::default()
    };
    match quotactl(fd, GET_STATE, 0, &mut state) {
        Ok(()) => Ok(state.flags & ENFORCED != 0),
        // No sort of quotas is on, or the filesystem or the kernel has none.
        Err(Errno::NOSYS | Errno::INVAL | Errno::SRCH) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// The quota of a project on the filesystem of `fd`.
pub fn quota(fd: impl AsFd, id: u32) -> Result<Quota, Errno> {
    let mut found = empty();
    match quotactl(fd, GET_QUOTA, id, &mut found) {
        Ok(()) => Ok(Quota {
            files: found.dqb_curinodes,
            bytes: found.dqb_curspace,
            limit: found.dqb_bhardlimit.saturating_mul(BLOCK),
        }),
        // XFS has no quota of a project that was never used.
        Err(Errno::NOENT) => Ok(Quota::default()),
        Err(errno) => Err(errno),
    }
}

/// Sets the limit of a project, in bytes; 0 takes it away.
pub fn set_limit(fd: impl AsFd, id: u32, bytes: u64) -> Result<(), Errno> {
    let mut wanted = empty();
    wanted.dqb_bhardlimit = bytes.div_ceil(BLOCK);
    wanted.dqb_valid = libc::QIF_BLIMITS;
    quotactl(fd, SET_QUOTA, id, &mut wanted)
}

fn empty() -> libc::dqblk {
    libc::dqblk {
        dqb_bhardlimit: 0,
        dqb_bsoftlimit: 0,
        dqb_curspace: 0,
        dqb_ihardlimit: 0,
        dqb_isoftlimit: 0,
        dqb_curinodes: 0,
        dqb_btime: 0,
        dqb_itime: 0,
        dqb_valid: 0,
    }
}

/// Structures that the commands of [`quotactl`] read or write.
trait Data {}

impl Data for State {}
impl Data for libc::dqblk {}

fn quotactl<T: Data>(fd: impl AsFd, command: u32, id: u32, data: &mut T) -> Result<(), Errno> {
    #[expect(unsafe_code, reason = "rustix and nix have no quotactl_fd")]
    // SAFETY: the descriptor is borrowed for the whole call; each command reads or writes one value of the
    // type that its callers above pass, and any bytes are a valid value of both types.
    let result = unsafe {
        libc::syscall(
            libc::SYS_quotactl_fd,
            fd.as_fd().as_raw_fd(),
            command << 8 | PROJECTS,
            id,
            std::ptr::from_mut(data),
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(super::last_error())
    }
}

fn errno(error: nix::Error) -> Errno {
    Errno::from_raw_os_error(error as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layouts_have_the_sizes_of_the_kernel() {
        assert_eq!(size_of::<Attributes>(), 28);
        assert_eq!(size_of::<State>(), 160);
    }

    #[test]
    fn a_filesystem_without_projects_says_so() {
        let proc = std::fs::File::open("/proc").expect("open");
        assert!(matches!(
            project(&proc),
            Err(Errno::NOTTY | Errno::OPNOTSUPP)
        ));
        assert_eq!(is_enforced(&proc), Ok(false));
    }
}
