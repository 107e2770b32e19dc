//! The entries of one directory but its directories: files, links, pipes, sockets, devices.
//!
//! Each is held by a descriptor that opens nothing before it is examined, so that a pod can put
//! nothing in its place: opening a device would do whatever that device does.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use driver_core::Error;
use node_utils::beneath::{Mounts, open_beneath};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::{Copier, attributes, identity, vanished};
use crate::crash_points;
use crate::disk;

/// Where files with several names wait for their other names, beside the target.
const LINKS: &str = "links";

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

// === impl Copier ===

impl Copier<'_> {
    /// Copies one entry; `true` if it is a directory, to be walked later.
    pub(super) fn entry(
        &mut self,
        from: &OwnedFd,
        to: &OwnedFd,
        name: &CStr,
        listed: FileType,
    ) -> Result<bool, Error> {
        if listed == FileType::Directory {
            return Ok(true);
        }
        let held = match open_beneath(from, name, OFlags::PATH, Mounts::Refuse) {
            Ok(held) => held,
            Err(Errno::XDEV) => {
                tracing::warn!(
                    doing = self.doing,
                    name = %name.to_string_lossy(),
                    "another filesystem's file is mounted here; it is not copied"
                );
                return Ok(false);
            }
            Err(errno) if vanished(errno) => return Ok(false),
            Err(errno) => return Err(self.error_at(name, errno)),
        };
        let stat = rustix::fs::fstat(&held).map_err(|errno| self.error_at(name, errno))?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind == FileType::Directory {
            return Ok(true);
        }
        if self.link(to, name, &stat)? {
            return Ok(false);
        }
        if kind == FileType::RegularFile {
            self.file(&held, to, name, &stat)?;
        } else {
            self.special(&held, to, name, &stat)
                .map_err(|errno| self.error_at(name, errno))?;
            crash_points::mark("make special file");
        }
        self.count(&stat);
        self.keep_for_links(to, name, &stat)?;
        Ok(false)
    }

    fn file(
        &mut self,
        held: &OwnedFd,
        to: &OwnedFd,
        name: &CStr,
        stat: &Stat,
    ) -> Result<(), Error> {
        let source = reopen(held).map_err(|errno| self.error_at(name, errno))?;
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let target = rustix::fs::openat(to, name, flags, Mode::RUSR | Mode::WUSR)
            .map_err(|errno| self.error_at(name, errno))?;
        crash_points::mark("make file");
        let size = u64::try_from(stat.st_size).unwrap_or_default();
        self.fill(&source, &target, size, name)?;
        attributes::copy_file(source.as_fd(), target.as_fd(), stat, &mut self.buffer)
            .map_err(|errno| self.error_at(name, errno))?;
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

    /// Gives a file that was copied already a further name; `false` if it is new.
    fn link(&mut self, to: &OwnedFd, name: &CStr, stat: &Stat) -> Result<bool, Error> {
        let (Some(known), Some(folder)) = (self.links.get(&identity(stat)), &self.link_folder)
        else {
            return Ok(false);
        };
        match rustix::fs::linkat(folder, known.to_string(), to, name, AtFlags::empty()) {
            Ok(()) => {
                crash_points::mark("link file");
                Ok(true)
            }
            // Our own extra name made one too many: the file is copied once more.
            Err(Errno::MLINK) => Ok(false),
            Err(errno) => Err(self.error_at(name, errno)),
        }
    }

    fn keep_for_links(&mut self, to: &OwnedFd, name: &CStr, stat: &Stat) -> Result<(), Error> {
        if stat.st_nlink < 2 || self.links.contains_key(&identity(stat)) {
            return Ok(());
        }
        if self.link_folder.is_none() {
            rustix::fs::mkdirat(self.folder, LINKS, Mode::RWXU)
                .and_then(|()| disk::open_path(self.folder, LINKS))
                .map(|folder| self.link_folder = Some(folder))
                .map_err(|errno| self.error_at(name, errno))?;
        }
        if let Some(folder) = &self.link_folder {
            let known = self.links.len() as u64;
            rustix::fs::linkat(to, name, folder, known.to_string(), AtFlags::empty())
                .map_err(|errno| self.error_at(name, errno))?;
            crash_points::mark("keep link");
            self.links.insert(identity(stat), known);
        }
        Ok(())
    }

    /// Takes the extra names away, so that link counts are those of the source.
    pub(super) fn remove_links(&mut self) -> Result<(), Error> {
        let Some(folder) = self.link_folder.take() else {
            return Ok(());
        };
        for name in self.links.values() {
            rustix::fs::unlinkat(&folder, name.to_string(), AtFlags::empty())
                .map_err(|errno| self.error_at(c".", errno))?;
            crash_points::mark("unlink");
        }
        rustix::fs::unlinkat(self.folder, LINKS, AtFlags::REMOVEDIR)
            .map_err(|errno| self.error_at(c".", errno))
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
