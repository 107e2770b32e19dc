//! The content of one file: shared by reflink, else copied in the kernel, else read and written;
//! holes stay holes.
//!
//! What the filesystem cannot do is tried once per copy. A file that grows during the copy is copied up
//! to the size it had when it was found, or whole if it is shared.

use std::ffi::CStr;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use driver_core::Error;
use rustix::fs::{SeekFrom, Stat};
use rustix::io::Errno;

use super::BUFFER;
use super::workers::Worker;
use crate::crash_points;

/// Bytes per step. The deadline is checked between two steps.
const CHUNK: usize = 16 << 20;

/// The methods that have not failed yet.
#[derive(Debug)]
pub(super) struct CopyMethods {
    reflink: AtomicBool,
    in_kernel: AtomicBool,
}

// === impl CopyMethods ===

impl Default for CopyMethods {
    fn default() -> Self {
        Self {
            reflink: AtomicBool::new(true),
            in_kernel: AtomicBool::new(true),
        }
    }
}

// === impl Worker ===

impl Worker<'_> {
    /// Fills the new file `to` with what `from` had when it was found as `stat`.
    pub(super) fn fill(
        &mut self,
        from: &OwnedFd,
        to: &OwnedFd,
        stat: &Stat,
        name: &CStr,
    ) -> Result<(), Error> {
        let progress = self.progress;
        let failed = |errno| progress.error_at(name, errno);
        let size = u64::try_from(stat.st_size).unwrap_or_default();
        if size == 0 {
            return Ok(());
        }
        if progress.methods.reflink.load(Relaxed) {
            if self.share(from, to).map_err(failed)? {
                progress.add(size);
                progress.shared.fetch_add(1, Relaxed);
                return Ok(());
            }
            // The file may have got a length by the attempt: the size is set below.
        } else if is_small_without_holes(stat) {
            return self.stretch(from, to, (0, size), name).map(drop);
        }
        rustix::fs::ftruncate(to, size).map_err(failed)?;
        let mut at = 0;
        while at < size {
            let Some((start, end)) = data(from, at, size).map_err(failed)? else {
                return cut_to_source(from, to, size).map_err(failed);
            };
            at = self.stretch(from, to, (start, end), name)?;
            if at < end {
                return cut_to_source(from, to, size).map_err(failed);
            }
        }
        Ok(())
    }

    /// Copies one stretch of data; says where the source ended.
    fn stretch(
        &mut self,
        from: &OwnedFd,
        to: &OwnedFd,
        (start, end): (u64, u64),
        name: &CStr,
    ) -> Result<u64, Error> {
        let mut at = start;
        while at < end {
            self.progress.pause()?;
            let length = usize::try_from(end - at).unwrap_or(CHUNK).min(CHUNK);
            let done = self
                .range(from, to, at, length)
                .map_err(|errno| self.progress.error_at(name, errno))?;
            crash_points::mark("write");
            if done == 0 {
                break;
            }
            at += done;
            self.progress.add(done);
        }
        Ok(at)
    }

    /// Shares all blocks with the source; `false` where that cannot be done.
    fn share(&self, from: &OwnedFd, to: &OwnedFd) -> Result<bool, Errno> {
        match rustix::fs::ioctl_ficlone(to, from) {
            Ok(()) => {
                crash_points::mark("share");
                Ok(true)
            }
            Err(errno @ (Errno::NOSPC | Errno::DQUOT | Errno::IO)) => Err(errno),
            // Something about this one file: swap, immutable, other flags than the target's.
            Err(Errno::INVAL | Errno::TXTBSY | Errno::PERM | Errno::BADF) => Ok(false),
            Err(_) => {
                self.progress.methods.reflink.store(false, Relaxed);
                Ok(false)
            }
        }
    }

    fn range(
        &mut self,
        from: &OwnedFd,
        to: &OwnedFd,
        at: u64,
        length: usize,
    ) -> Result<u64, Errno> {
        let methods = &self.progress.methods;
        if methods.in_kernel.load(Relaxed) {
            let (mut source, mut target) = (at, at);
            let (source, target) = (Some(&mut source), Some(&mut target));
            match rustix::fs::copy_file_range(from, source, to, target, length) {
                // Zero may mean the end, or a filesystem that gives its data to readers only.
                Ok(0) => {}
                Ok(done) => return Ok(done as u64),
                Err(errno @ (Errno::NOSPC | Errno::DQUOT)) => return Err(errno),
                // Should the data itself be unreadable, reading it says so again.
                Err(_) => methods.in_kernel.store(false, Relaxed),
            }
        }
        let length = length.min(self.buffer.len());
        let read = rustix::io::pread(from, &mut self.buffer[..length], at)?;
        let mut written = 0;
        while written < read {
            written += rustix::io::pwrite(to, &self.buffer[written..read], at + written as u64)?;
        }
        Ok(read as u64)
    }
}

/// Whether a file is not worth a search for its holes, as it occupies all that it has. Not every share tells that
/// truly, so that only small ones are not searched.
fn is_small_without_holes(stat: &Stat) -> bool {
    let size = u64::try_from(stat.st_size).unwrap_or_default();
    let blocks = u64::try_from(stat.st_blocks).unwrap_or_default();
    size <= BUFFER as u64 && blocks * 512 >= size
}

/// Where data ends early, the source may have been truncated since: no zeros stand in for what
/// it no longer has.
fn cut_to_source(from: &OwnedFd, to: &OwnedFd, size: u64) -> Result<(), Errno> {
    let now = u64::try_from(rustix::fs::fstat(from)?.st_size).unwrap_or_default();
    if now < size {
        rustix::fs::ftruncate(to, now)?;
    }
    Ok(())
}

/// The next stretch of data at or after `at`; `None` if only a hole follows.
fn data(file: &OwnedFd, at: u64, size: u64) -> Result<Option<(u64, u64)>, Errno> {
    let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        // A filesystem that does not know its holes.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some((at, size))),
        Err(errno) => return Err(errno),
    };
    let end = match rustix::fs::seek(file, SeekFrom::Hole(start)) {
        Ok(end) => end.min(size),
        Err(Errno::NXIO) => return Ok(None),
        Err(errno) => return Err(errno),
    };
    Ok((start < end).then_some((start, end)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn no_zeros_stand_in_for_what_was_truncated() {
        let file = |content: &[u8]| {
            let mut file = tempfile::tempfile().expect("file");
            file.write_all(content).expect("write");
            OwnedFd::from(file)
        };
        let length = |file: &OwnedFd| rustix::fs::fstat(file).expect("look").st_size;
        for (now, left) in [(&b"ab"[..], 2), (b"", 0), (b"abcd", 4), (b"abcdefgh", 4)] {
            let (from, to) = (file(now), file(&[0; 4]));
            cut_to_source(&from, &to, 4).expect("cut");
            assert_eq!(length(&to), left, "{now:?}");
        }
    }
}
