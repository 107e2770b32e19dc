//! The ioctls of loop devices.
//!
//! Thin faces of single calls, as in the module above; who makes a loop device and why is no
//! business of this one. The layout is that of `linux/loop.h`.

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

/// Room for the name of a loop device, its final NUL included.
pub(crate) const NAME: usize = 64;

const LOOP_CLR_FD: libc::Ioctl = 0x4C01;
const LOOP_GET_STATUS64: libc::Ioctl = 0x4C05;
const LOOP_SET_CAPACITY: libc::Ioctl = 0x4C07;
const LOOP_CONFIGURE: libc::Ioctl = 0x4C0A;
const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4C82;

const LO_FLAGS_READ_ONLY: u32 = 1;
const LO_FLAGS_DIRECT_IO: u32 = 16;

/// `struct loop_info64`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Info {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; NAME],
    crypt_name: [u8; NAME],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config`.
#[repr(C)]
struct Config {
    fd: u32,
    block_size: u32,
    info: Info,
    reserved: [u64; 8],
}

const EMPTY: Info = Info {
    device: 0,
    inode: 0,
    rdevice: 0,
    offset: 0,
    size_limit: 0,
    number: 0,
    encrypt_type: 0,
    encrypt_key_size: 0,
    flags: 0,
    file_name: [0; NAME],
    crypt_name: [0; NAME],
    encrypt_key: [0; 32],
    init: [0; 2],
};

/// The number of a loop device that nobody uses now.
pub(crate) fn free(control: impl AsFd) -> Result<u32, Errno> {
    let number = plain(control, LOOP_CTL_GET_FREE)?;
    u32::try_from(number).map_err(|_| Errno::INVAL)
}

/// Puts a loop device on top of `backing`, in one step. Linux 5.8.
pub(crate) fn configure(
    device: impl AsFd,
    backing: impl AsFd,
    name: [u8; NAME],
    read_only: bool,
    block_size: u32,
) -> Result<(), Errno> {
    let fd = u32::try_from(backing.as_fd().as_raw_fd()).map_err(|_| Errno::BADF)?;
    let mut info = EMPTY;
    info.file_name = name;
    info.flags = LO_FLAGS_DIRECT_IO;
    if read_only {
        info.flags |= LO_FLAGS_READ_ONLY;
    }
    let config = Config {
        fd,
        block_size,
        info,
        reserved: [0; 8],
    };
    #[expect(unsafe_code, reason = "rustix has no ioctls of loop devices")]
    // SAFETY: both descriptors are borrowed for the whole call; the kernel only reads `config`,
    // which has the layout that this command takes.
    let result = unsafe {
        libc::ioctl(
            device.as_fd().as_raw_fd(),
            LOOP_CONFIGURE,
            std::ptr::from_ref(&config),
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(super::last_error())
    }
}

/// The name that a loop device was given when it was made.
pub(crate) fn name(device: impl AsFd) -> Result<[u8; NAME], Errno> {
    let mut info = EMPTY;
    #[expect(unsafe_code, reason = "rustix has no ioctls of loop devices")]
    // SAFETY: the descriptor is borrowed for the whole call; the kernel writes one `loop_info64`,
    // which `info` is, and any bytes are a valid value of it.
    let result = unsafe {
        libc::ioctl(
            device.as_fd().as_raw_fd(),
            LOOP_GET_STATUS64,
            std::ptr::from_mut(&mut info),
        )
    };
    if result == 0 {
        Ok(info.file_name)
    } else {
        Err(super::last_error())
    }
}

/// Lets a loop device see that what is below it has grown.
pub(crate) fn refresh(device: impl AsFd) -> Result<(), Errno> {
    plain(device, LOOP_SET_CAPACITY).map(drop)
}

/// Takes a loop device off what it is on; at the latest when nobody has it open any more.
pub(crate) fn clear(device: impl AsFd) -> Result<(), Errno> {
    plain(device, LOOP_CLR_FD).map(drop)
}

fn plain(fd: impl AsFd, request: libc::Ioctl) -> Result<libc::c_int, Errno> {
    #[expect(unsafe_code, reason = "rustix has no ioctls of loop devices")]
    // SAFETY: the descriptor is borrowed for the whole call; these commands take no argument.
    let result = unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), request) };
    if result >= 0 {
        Ok(result)
    } else {
        Err(super::last_error())
    }
}
