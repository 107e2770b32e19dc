//! The ioctls of loop devices.
//!
//! Each function wraps one ioctl. The layout is that of `linux/loop.h`.

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

/// Room for the name of a loop device, its final NUL included.
pub(crate) const NAME: usize = 64;

nix::ioctl_none_bad!(loop_clr_fd, 0x4C01);
nix::ioctl_read_bad!(loop_get_status64, 0x4C05, Info);
nix::ioctl_none_bad!(loop_set_capacity, 0x4C07);
nix::ioctl_write_ptr_bad!(loop_configure, 0x4C0A, Config);
nix::ioctl_none_bad!(loop_ctl_get_free, 0x4C82);

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

/// The number of an unused loop device.
pub(crate) fn free(control: impl AsFd) -> Result<u32, Errno> {
    let fd = control.as_fd().as_raw_fd();
    #[expect(unsafe_code, reason = "ioctls of loop devices")]
    // SAFETY: the descriptor is borrowed for the whole call; the command takes no argument.
    let number = unsafe { loop_ctl_get_free(fd) }.map_err(errno)?;
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
    #[expect(unsafe_code, reason = "ioctls of loop devices")]
    // SAFETY: both descriptors are borrowed for the whole call; the kernel only reads `config`,
    // which has the layout that this command takes.
    let done = unsafe { loop_configure(device.as_fd().as_raw_fd(), &raw const config) };
    done.map(drop).map_err(errno)
}

/// The name that a loop device was given when it was made.
pub(crate) fn name(device: impl AsFd) -> Result<[u8; NAME], Errno> {
    let mut info = EMPTY;
    #[expect(unsafe_code, reason = "ioctls of loop devices")]
    // SAFETY: the descriptor is borrowed for the whole call; the kernel writes one `loop_info64`,
    // which `info` is, and any bytes are a valid value of it.
    let done = unsafe { loop_get_status64(device.as_fd().as_raw_fd(), &raw mut info) };
    done.map(|_| info.file_name).map_err(errno)
}

/// Lets a loop device see that the device below it has grown.
pub(crate) fn refresh(device: impl AsFd) -> Result<(), Errno> {
    #[expect(unsafe_code, reason = "ioctls of loop devices")]
    // SAFETY: the descriptor is borrowed for the whole call; the command takes no argument.
    let done = unsafe { loop_set_capacity(device.as_fd().as_raw_fd()) };
    done.map(drop).map_err(errno)
}

/// Detaches a loop device, at the latest when its last descriptor is closed.
pub(crate) fn clear(device: impl AsFd) -> Result<(), Errno> {
    #[expect(unsafe_code, reason = "ioctls of loop devices")]
    // SAFETY: the descriptor is borrowed for the whole call; the command takes no argument.
    let done = unsafe { loop_clr_fd(device.as_fd().as_raw_fd()) };
    done.map(drop).map_err(errno)
}

fn errno(error: nix::Error) -> Errno {
    Errno::from_raw_os_error(error as i32)
}
