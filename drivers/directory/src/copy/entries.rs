//! The entries of one directory but its directories: files, links, pipes, sockets, devices.
//!
//! Each is held by a descriptor that opens nothing before it is examined, so that a pod can put
//! nothing in its place: opening a device would do whatever that device does.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use driver_core::Error;
use node_utils::beneath::{Mounts, open_beneath};
use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::links::Found;
use super::workers::Worker;
use super::{Walk, attributes};
use crate::crash_points;

/// Opens for reading what `held` stands for, whatever has its name now.
fn reopen(held: &OwnedFd) -> Result<OwnedFd, Errno> {
    let path = format!("/proc/self/fd/{}", held.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::NOCTTY | OFlags::CLOEXEC;
    match rustix::fs::open(path.as_str(), flags | OFlags::NOATIME, Mode::empty()) {
        // Only the owner of a file may leave its access time alone.
        Err(Errno::PERM) => rustix::fs::open(path.as_str(), flags, Mode::empty()),
        done => done,
    }
}

// === impl Worker ===

impl Worker<'_> {
    /// Copies one entry that was listed as no directory.
    pub(super) fn entry(&mut self, from: &OwnedFd, to: &OwnedFd, name: &CStr) -> Result<(), Error> {
        let progress = self.progress;
        let failed = |errno| progress.error_at(name, errno);
        let held = match open_beneath(from, name, OFlags::PATH, Mounts::Refuse) {
            Ok(held) => held,
            Err(Errno::XDEV) => {
                tracing::warn!(
                    doing = progress.doing,
                    name = %name.to_string_lossy(),
                    "another filesystem's file is mounted here; it is not copied"
                );
                return Ok(());
            }
            Err(errno) if progress.has_vanished(from, errno) => return Ok(()),
            Err(errno) => return Err(failed(errno)),
        };
        let stat = rustix::fs::fstat(&held).map_err(failed)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind == FileType::Directory {
            // It was no directory when it was listed.
            return Walk::new(progress, None).subtree(from, to, name);
        }
        let first = match progress.links.find(&stat) {
            Found::Single => None,
            Found::First(first) => Some(first),
            Found::Copied(number) => match progress.links.link(number, to, name) {
                Ok(()) => return Ok(()),
                // Our own extra name made one too many: the file is copied once more.
                Err(Errno::MLINK) => None,
                Err(errno) => return Err(failed(errno)),
            },
        };
        // Another name of it may have been waited for, and its copy may have failed.
        progress.pause()?;
        if kind == FileType::RegularFile {
            self.file(&held, to, name, &stat)?;
        } else {
            self.special(&held, to, name, &stat).map_err(failed)?;
            crash_points::mark("make special file");
        }
        progress.count(&stat);
        match first {
            Some(first) => first.keep(progress.folder, to, name).map_err(failed),
            None => Ok(()),
        }
    }

    fn file(
        &mut self,
        held: &OwnedFd,
        to: &OwnedFd,
        name: &CStr,
        stat: &Stat,
    ) -> Result<(), Error> {
        let progress = self.progress;
        let failed = |errno| progress.error_at(name, errno);
        let source = reopen(held).map_err(failed)?;
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let target = rustix::fs::openat(to, name, flags, mode).map_err(failed)?;
        crash_points::mark("make file");
        let made = rustix::fs::fstat(&target).map_err(failed)?;
        self.fill(&source, &target, stat, name)?;
        let copy = (target.as_fd(), &made);
        attributes::copy_file(source.as_fd(), copy, stat, &mut self.buffer).map_err(failed)?;
        crash_points::mark("file done");
        Ok(())
    }

    /// Links, pipes, sockets and devices.
    fn special(
        &mut self,
        held: &OwnedFd,
        to: &OwnedFd,
        name: &CStr,
        stat: &Stat,
    ) -> Result<(), Errno> {
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind == FileType::Symlink {
            let text = rustix::fs::readlinkat(held, c"", Vec::new())?;
            rustix::fs::symlinkat(text.as_c_str(), to, name)?;
        } else {
            let mode = Mode::from_raw_mode(stat.st_mode & 0o7777);
            rustix::fs::mknodat(to, name, kind, mode, stat.st_rdev)?;
        }
        attributes::copy_named(held.as_fd(), to.as_fd(), name, stat, &mut self.buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_looked_at_is_what_is_opened_whatever_has_its_name_now() {
        let top = tempfile::tempdir().expect("folder");
        let path = top.path().join("file");
        std::fs::write(&path, "first").expect("file");
        let dir = std::fs::File::open(top.path()).expect("open");
        let held = open_beneath(&dir, "file", OFlags::PATH, Mounts::Refuse).expect("held");
        std::fs::remove_file(&path).expect("remove");
        rustix::fs::mknodat(&dir, "file", FileType::Fifo, Mode::RWXU, 0).expect("pipe");
        let mut read = [0; 10];
        let opened = reopen(&held).expect("opened without waiting for a writer");
        let length = rustix::io::read(&opened, &mut read).expect("read");
        assert_eq!(&read[..length], b"first");
    }
}
