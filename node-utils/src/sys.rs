//! System calls that rustix does not have: the one module with unsafe code.
//!
//! Each function is a thin, safe face of one call and decides nothing. Everything else goes through
//! rustix.

pub(crate) mod loops;
pub mod memory;
pub mod projects;
pub mod subvolumes;
pub(crate) mod trim;

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd};

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::mount::MountAttrFlags;

/// `struct mount_attr` of the kernel, version 0.
#[repr(C)]
struct MountAttr {
    attr_set: u64,
    attr_clr: u64,
    propagation: u64,
    userns_fd: u64,
}

/// Sets and clears attributes of the one mount that `mount` was opened on. Linux 5.12.
pub(crate) fn mount_setattr(
    mount: impl AsFd,
    set: MountAttrFlags,
    clear: MountAttrFlags,
) -> Result<(), Errno> {
    let attr = MountAttr {
        attr_set: u64::from(set.bits()),
        attr_clr: u64::from(clear.bits()),
        propagation: 0,
        userns_fd: 0,
    };
    let path: &CStr = c"";
    #[expect(unsafe_code, reason = "rustix 1.1 has no mount_setattr")]
    // SAFETY: the descriptor is borrowed for the whole call; the path is a NUL-terminated constant;
    // the kernel only reads `attr`, whose exact size is passed with it.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_fd().as_raw_fd(),
            path.as_ptr(),
            libc::AT_EMPTY_PATH,
            std::ptr::from_ref(&attr),
            size_of::<MountAttr>(),
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(last_error())
    }
}

/// Changes the mode of what an `O_PATH` descriptor stands for; `fchmod` refuses those.
pub(crate) fn chmod_path_fd(fd: impl AsFd, mode: Mode) -> Result<(), Errno> {
    // The link in /proc leads to the very object that was opened, whatever its name is now.
    let path = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
    rustix::fs::chmod(path, mode)
}

/// The number of the mount that a descriptor was opened through, on kernels whose `statx` does not
/// tell (before 5.8).
pub(crate) fn mount_id_from_proc(fd: impl AsFd) -> Result<u64, Errno> {
    let path = format!("/proc/thread-self/fdinfo/{}", fd.as_fd().as_raw_fd());
    let text = std::fs::read_to_string(path)
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    let field = |line: &str| line.strip_prefix("mnt_id:")?.trim().parse().ok();
    text.lines().find_map(field).ok_or(Errno::NOSYS)
}

/// Gives this thread mounts and a working directory of its own, and with `user` a user namespace in
/// which it has all capabilities.
pub(crate) fn unshare_mounts(user: bool) -> Result<(), Errno> {
    use rustix::thread::UnshareFlags;
    let mut flags = UnshareFlags::FS | UnshareFlags::NEWNS;
    if user {
        flags |= UnshareFlags::NEWUSER;
    }
    #[expect(unsafe_code, reason = "unsharing descriptors is unsafe in rustix")]
    // SAFETY: the flags do not include FILES, the one with which a descriptor could become invalid.
    unsafe {
        rustix::thread::unshare_unsafe(flags)
    }
}

/// Gives this thread mounts and a working directory of its own, and with `files` descriptors too.
#[cfg(test)]
pub(crate) fn unshare(files: bool) -> Result<(), Errno> {
    use rustix::thread::UnshareFlags;
    let mut flags = UnshareFlags::FS;
    flags |= if files {
        UnshareFlags::FILES
    } else {
        UnshareFlags::NEWNS
    };
    #[expect(unsafe_code, reason = "unsharing descriptors is unsafe in rustix")]
    // SAFETY: called first thing on a thread that holds no descriptor of another one and hands none
    // out.
    unsafe {
        rustix::thread::unshare_unsafe(flags)
    }
}

/// Takes (`F_WRLCK`) or releases (`F_UNLCK`) a lease on an open file. Breaking it sends a signal that is ignored
/// by default.
#[cfg(test)]
pub(crate) fn set_lease(fd: impl AsFd, kind: libc::c_int) -> Result<(), Errno> {
    /// Chooses the signal; missing in libc.
    const F_SETSIG: libc::c_int = 10;
    let fd = fd.as_fd().as_raw_fd();
    for (command, value) in [(F_SETSIG, libc::SIGURG), (libc::F_SETLEASE, kind)] {
        #[expect(unsafe_code, reason = "rustix has no leases")]
        // SAFETY: the descriptor is borrowed for the whole call; both commands take a plain number.
        let result = unsafe { libc::fcntl(fd, command, value) };
        if result != 0 {
            return Err(last_error());
        }
    }
    Ok(())
}

/// What a lease is to become, or is.
#[cfg(test)]
pub(crate) fn lease(fd: impl AsFd) -> libc::c_int {
    #[expect(unsafe_code, reason = "rustix has no leases")]
    // SAFETY: the descriptor is borrowed for the whole call; the command takes no argument.
    unsafe {
        libc::fcntl(fd.as_fd().as_raw_fd(), libc::F_GETLEASE)
    }
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
