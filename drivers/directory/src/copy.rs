//! Copies of directory trees: owners, modes, times, extended attributes, ACLs, hard links, holes
//! and special files included; data shared by reflink where the filesystem can.
//!
//! The source is a live directory that a pod may be writing: it is walked by descriptors, no link
//! is followed and no other mount entered. Files that vanish meanwhile are left out; what cannot be
//! read fails the whole copy. The caller gives the target its name only after all of it succeeded.

mod attributes;
mod content;

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use driver_core::{Call, Error};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::disk::{self, Mounts};
use crate::failure::failed_midway;
use crate::stop;
use attributes::Attributes;

/// How often a long copy says where it is.
const PROGRESS: Duration = Duration::from_secs(10);
/// Where files with several names wait for their other names, beside the target.
const LINKS: &str = "links";

/// What was copied.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Copied {
    /// Bytes of content.
    pub(crate) bytes: u64,
    /// Files and other entries, directories included.
    pub(crate) files: u64,
    /// Bytes that the tree occupies, as `du` counts.
    pub(crate) allocated: u64,
    /// Files whose data is shared with the source.
    pub(crate) shared: u64,
}

/// A directory on the way down to the current one.
struct Level {
    name: CString,
    source: (u64, u64),
    target: (u64, u64),
    pending: Vec<CString>,
    attributes: Attributes,
}

/// One copy in progress.
struct Copier<'a> {
    call: &'a Call,
    doing: &'a str,
    folder: BorrowedFd<'a>,
    links: HashMap<(u64, u64), String>,
    link_folder: Option<OwnedFd>,
    content: content::Ways,
    buffer: Vec<u8>,
    copied: Copied,
    begun: Instant,
    said: Instant,
}

/// Copies the content of `source` into the empty directory `target`, and then its own attributes.
/// `folder` is scratch room on the same filesystem. `doing` names the work in errors and logs.
pub(crate) fn copy_tree(
    source: &OwnedFd,
    target: BorrowedFd<'_>,
    folder: BorrowedFd<'_>,
    call: &Call,
    doing: &str,
) -> Result<Copied, Error> {
    let now = Instant::now();
    let mut copier = Copier {
        call,
        doing,
        folder,
        links: HashMap::new(),
        link_folder: None,
        content: content::Ways::default(),
        buffer: vec![0; 1 << 17],
        copied: Copied::default(),
        begun: now,
        said: now,
    };
    copier.run(source, target)?;
    copier.remove_links()?;
    // Whoever sees the final name after a power loss must see the content too.
    rustix::fs::syncfs(target).map_err(|errno| failed_midway(doing, errno))?;
    Ok(copier.copied)
}

fn identity(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

fn vanished(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::STALE
    )
}

// === impl Copier ===

impl Copier<'_> {
    fn run(&mut self, top: &OwnedFd, target: BorrowedFd<'_>) -> Result<(), Error> {
        let own = |fd: BorrowedFd<'_>| fd.try_clone_to_owned();
        let mut target = own(target).map_err(|error| self.trouble(c".", errno_of(&error)))?;
        let dup = own(top.as_fd()).map_err(|error| self.trouble(c".", errno_of(&error)))?;
        let mut source = Some(dup);
        let mut trail = vec![self.enter(top, &target, c".".into(), true)?];
        while let Some(level) = trail.last_mut() {
            self.pause()?;
            if let (Some(from), Some(name)) = (&source, level.pending.pop()) {
                if let Some((from, to)) = self.descend(from, &target, &name)? {
                    let level = self.enter(&from, &to, name, false)?;
                    trail.push(level);
                    (source, target) = (Some(from), to);
                }
                continue;
            }
            let name = level.name.clone();
            level
                .attributes
                .apply(target.as_fd())
                .map_err(|errno| self.trouble(&name, errno))?;
            stop::mark("directory attributes");
            trail.pop();
            let Some(parent) = trail.last() else { break };
            target = climb(&target, parent.target).map_err(|errno| self.trouble(&name, errno))?;
            source = source
                .and_then(|fd| climb(&fd, parent.source).ok())
                .or_else(|| reopen(top, &trail));
            if let (None, Some(parent)) = (&source, trail.last_mut()) {
                tracing::debug!(
                    doing = self.doing,
                    "a directory was moved while it was copied"
                );
                parent.pending.clear();
            }
        }
        Ok(())
    }

    /// Copies all entries of a directory but its directories, which wait.
    fn enter(
        &mut self,
        from: &OwnedFd,
        to: &OwnedFd,
        name: CString,
        top: bool,
    ) -> Result<Level, Error> {
        let attributes = Attributes::read(from.as_fd(), &mut self.buffer, top)
            .map_err(|errno| self.trouble(&name, errno))?;
        let target = rustix::fs::fstat(to).map_err(|errno| self.trouble(&name, errno))?;
        self.count(attributes.stat());
        let mut pending = Vec::new();
        for entry in Dir::read_from(from).map_err(|errno| self.trouble(&name, errno))? {
            let entry = entry.map_err(|errno| self.trouble(&name, errno))?;
            let child = entry.file_name();
            if child == c"." || child == c".." {
                continue;
            }
            self.pause()?;
            if self.entry(from, to, child)? {
                pending.push(child.to_owned());
            }
        }
        Ok(Level {
            name,
            source: identity(attributes.stat()),
            target: identity(&target),
            pending,
            attributes,
        })
    }

    /// Opens a directory of the source and makes its counterpart; `None` if there is nothing to
    /// walk.
    fn descend(
        &mut self,
        from: &OwnedFd,
        to: &OwnedFd,
        name: &CStr,
    ) -> Result<Option<(OwnedFd, OwnedFd)>, Error> {
        let source = match disk::open_dir(from, name) {
            Ok(source) => Some(source),
            Err(Errno::XDEV) => {
                tracing::warn!(
                    doing = self.doing,
                    name = %name.to_string_lossy(),
                    "another filesystem is mounted here; its content is not copied"
                );
                None
            }
            Err(errno) if vanished(errno) => return Ok(None),
            Err(errno) => return Err(self.trouble(name, errno)),
        };
        // Nobody but us looks in before its own mode is set.
        let mode = if source.is_some() { 0o700 } else { 0o755 };
        rustix::fs::mkdirat(to, name, Mode::from_raw_mode(mode))
            .map_err(|errno| self.trouble(name, errno))?;
        stop::mark("copy directory");
        let target = disk::open_dir(to, name).map_err(|errno| self.trouble(name, errno))?;
        Ok(source.map(|source| (source, target)))
    }

    /// Copies one entry; `true` if it is a directory, to be walked later.
    fn entry(&mut self, from: &OwnedFd, to: &OwnedFd, name: &CStr) -> Result<bool, Error> {
        let stat = match rustix::fs::statat(from, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(errno) if vanished(errno) => return Ok(false),
            Err(errno) => return Err(self.trouble(name, errno)),
        };
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind == FileType::Directory {
            return Ok(true);
        }
        let done = if kind == FileType::RegularFile {
            self.file(from, to, name)
        } else {
            self.special(from, to, name, kind, &stat)
        };
        done.map(|()| false)
    }

    fn file(&mut self, from: &OwnedFd, to: &OwnedFd, name: &CStr) -> Result<(), Error> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let opened = match disk::open(from, name, flags | OFlags::NOATIME, Mounts::Refuse) {
            // Only the owner of a file may leave its access time alone.
            Err(Errno::PERM) => disk::open(from, name, flags, Mounts::Refuse),
            done => done,
        };
        let source = match opened {
            Ok(source) => source,
            Err(Errno::XDEV) => {
                tracing::warn!(
                    doing = self.doing,
                    name = %name.to_string_lossy(),
                    "another filesystem's file is mounted here; it is not copied"
                );
                return Ok(());
            }
            // A socket or device that took its place cannot be opened like this.
            Err(errno) if vanished(errno) || errno == Errno::NXIO => return Ok(()),
            Err(errno) => return Err(self.trouble(name, errno)),
        };
        let attributes = Attributes::read(source.as_fd(), &mut self.buffer, false)
            .map_err(|errno| self.trouble(name, errno))?;
        let stat = *attributes.stat();
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile
            || self.link(to, name, &stat)?
        {
            return Ok(());
        }
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let target = rustix::fs::openat(to, name, flags, Mode::RUSR | Mode::WUSR)
            .map_err(|errno| self.trouble(name, errno))?;
        stop::mark("make file");
        let size = u64::try_from(stat.st_size).unwrap_or_default();
        self.fill(&source, &target, size, name)?;
        attributes
            .apply(target.as_fd())
            .map_err(|errno| self.trouble(name, errno))?;
        stop::mark("file done");
        self.count(&stat);
        self.keep_for_links(to, name, &stat)
    }

    /// Links, pipes, sockets and devices.
    fn special(
        &mut self,
        from: &OwnedFd,
        to: &OwnedFd,
        name: &CStr,
        kind: FileType,
        stat: &Stat,
    ) -> Result<(), Error> {
        if self.link(to, name, stat)? {
            return Ok(());
        }
        let made = if kind == FileType::Symlink {
            match rustix::fs::readlinkat(from, name, Vec::new()) {
                Ok(text) => rustix::fs::symlinkat(text.as_c_str(), to, name),
                Err(errno) if vanished(errno) || errno == Errno::INVAL => return Ok(()),
                Err(errno) => Err(errno),
            }
        } else {
            let mode = Mode::from_raw_mode(stat.st_mode & 0o7777);
            rustix::fs::mknodat(to, name, kind, mode, stat.st_rdev)
        };
        made.and_then(|()| {
            attributes::copy_named(from.as_fd(), to.as_fd(), name, stat, &mut self.buffer)
        })
        .map_err(|errno| self.trouble(name, errno))?;
        stop::mark("make special file");
        self.count(stat);
        self.keep_for_links(to, name, stat)
    }

    /// Gives a file that was copied already a further name; `false` if it is new.
    fn link(&mut self, to: &OwnedFd, name: &CStr, stat: &Stat) -> Result<bool, Error> {
        let (Some(known), Some(folder)) = (self.links.get(&identity(stat)), &self.link_folder)
        else {
            return Ok(false);
        };
        match rustix::fs::linkat(folder, known.as_str(), to, name, AtFlags::empty()) {
            Ok(()) => {
                stop::mark("link file");
                Ok(true)
            }
            // Our own extra name made one too many: the file is copied once more.
            Err(Errno::MLINK) => Ok(false),
            Err(errno) => Err(self.trouble(name, errno)),
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
                .map_err(|errno| self.trouble(name, errno))?;
        }
        if let Some(folder) = &self.link_folder {
            let known = self.links.len().to_string();
            rustix::fs::linkat(to, name, folder, known.as_str(), AtFlags::empty())
                .map_err(|errno| self.trouble(name, errno))?;
            stop::mark("keep link");
            self.links.insert(identity(stat), known);
        }
        Ok(())
    }

    /// Takes the extra names away, so that link counts are those of the source.
    fn remove_links(&mut self) -> Result<(), Error> {
        let Some(folder) = self.link_folder.take() else {
            return Ok(());
        };
        for name in self.links.values() {
            rustix::fs::unlinkat(&folder, name.as_str(), AtFlags::empty())
                .map_err(|errno| self.trouble(c".", errno))?;
            stop::mark("unlink");
        }
        rustix::fs::unlinkat(self.folder, LINKS, AtFlags::REMOVEDIR)
            .map_err(|errno| self.trouble(c".", errno))
    }

    fn count(&mut self, stat: &Stat) {
        self.copied.files += 1;
        let blocks = u64::try_from(stat.st_blocks).unwrap_or_default();
        self.copied.allocated += blocks * 512;
    }

    /// Ends the work at the deadline; says now and then how far it is.
    fn pause(&mut self) -> Result<(), Error> {
        self.call.check(self.doing)?;
        if self.said.elapsed() >= PROGRESS {
            self.said = Instant::now();
            tracing::info!(
                doing = self.doing,
                bytes = self.copied.bytes,
                files = self.copied.files,
                seconds = self.begun.elapsed().as_secs(),
                "copying"
            );
        }
        Ok(())
    }

    fn trouble(&self, name: &CStr, errno: Errno) -> Error {
        let name = name.to_string_lossy();
        failed_midway(
            format!("{}, at `{}`", self.doing, name.escape_debug()),
            errno,
        )
    }
}

fn errno_of(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// Goes up, provided that up is where the walk came from.
fn climb(dir: &OwnedFd, expected: (u64, u64)) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let parent = rustix::fs::openat(dir, c"..", flags, Mode::empty())?;
    if identity(&rustix::fs::fstat(&parent)?) == expected {
        Ok(parent)
    } else {
        Err(Errno::BUSY)
    }
}

/// Opens the last directory of the trail from the top again; `None` if it is no longer there.
fn reopen(top: &OwnedFd, trail: &[Level]) -> Option<OwnedFd> {
    let mut dir = top.try_clone().ok()?;
    for level in &trail[1..] {
        dir = disk::open_dir(&dir, level.name.as_c_str()).ok()?;
    }
    let last = trail.last()?.source;
    (identity(&rustix::fs::fstat(&dir).ok()?) == last).then_some(dir)
}
