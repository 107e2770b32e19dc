//! Telling the device of a filesystem which of its blocks are unused.
//!
//! The function wraps one call of the kernel. The layout is that of `linux/fs.h`.

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

mod ioctls {
    use super::Range;

    nix::ioctl_readwrite!(fitrim, b'X', 121, Range);
}

/// `struct fstrim_range`.
#[repr(C)]
struct Range {
    start: u64,
    length: u64,
    smallest: u64,
}

/// Trims the unused blocks among `length` bytes from `start` on of the filesystem of an open directory. Returns how many
/// bytes were trimmed. `NOTTY` or `OPNOTSUPP` where the filesystem or its device cannot; `INVAL` for a start beyond the
/// end.
pub(crate) fn trim(directory: impl AsFd, start: u64, length: u64) -> Result<u64, Errno> {
    let mut range = Range {
        start,
        length,
        smallest: 0,
    };
    #[expect(unsafe_code, reason = "rustix has no FITRIM")]
    // SAFETY: the descriptor is borrowed for the whole call; the kernel reads and writes one `fstrim_range`, which `range`
    // is, and any bytes are a valid value of it.
    let done = unsafe { ioctls::fitrim(directory.as_fd().as_raw_fd(), &raw mut range) };
    match done {
        Ok(_) => Ok(range.length),
        Err(error) => Err(Errno::from_raw_os_error(error as i32)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filesystem_without_blocks_says_so() {
        assert_eq!(size_of::<Range>(), 24);
        let proc = std::fs::File::open("/proc").expect("open");
        assert!(matches!(
            trim(&proc, 0, u64::MAX),
            Err(Errno::NOTTY | Errno::OPNOTSUPP)
        ));
    }
}
