//! Copies of directory trees: owners, modes, times, extended attributes, ACLs, hard links, holes
//! and special files included; data shared by reflink where the filesystem can.
//!
//! The source is a live directory that a pod may be writing: it is walked by descriptors, no link
//! is followed and no other mount entered. Files that vanish during the copy are left out; what cannot be
//! read fails the whole copy. The caller gives the target its name only after all of it succeeded.

mod attributes;
mod content;
mod entries;

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use driver_core::{Call, Error, Kind};
use rustix::fs::{Dir, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::crash_points;
use crate::disk;
use crate::failure::failed;
use attributes::DirAttributes;
pub(crate) use attributes::times;

/// How often a long copy says where it is.
const PROGRESS: Duration = Duration::from_secs(10);
/// Directories of the source kept open on the way down, so that a move of one does no harm. Deeper
/// ones are found again by going up; a hundred copies at once still need few descriptors.
const HELD: usize = 8;
/// The most memory for access control lists of directories that are not finished.
const MAX_ACLS: usize = 16 << 20;

/// For content, and for a list of attributes with one of them.
const BUFFER: usize = 1 << 17;

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
    /// Of the last ones only.
    source: Option<OwnedFd>,
    source_id: (u64, u64),
    target_id: (u64, u64),
    pending: Vec<CString>,
    attributes: DirAttributes,
}

/// One copy in progress.
struct Copier<'a> {
    call: &'a Call,
    doing: &'a str,
    folder: BorrowedFd<'a>,
    links: HashMap<(u64, u64), u64>,
    link_folder: Option<OwnedFd>,
    acls: usize,
    content: content::CopyMethods,
    buffer: Vec<u8>,
    copied: Copied,
    started: Instant,
    last_progress: Instant,
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
    let mut copier = Copier::new(folder, call, doing);
    copier.run(source, target)?;
    copier.remove_links()?;
    // After a power loss the content must be there if the final name is.
    rustix::fs::syncfs(target).map_err(|errno| failed(doing, errno))?;
    Ok(copier.copied)
}

/// Moves what is in a directory to another one that is below the same mount and in the same subvolume, and gives
/// that one the attributes of the first.
pub(crate) fn move_content(from: &OwnedFd, to: BorrowedFd<'_>) -> Result<(), Errno> {
    let mut buffer = vec![0; BUFFER];
    let attributes = DirAttributes::copy(from.as_fd(), to, &mut buffer, true)?;
    for (name, _) in disk::entries(from.as_fd())? {
        rustix::fs::renameat(from, name.as_c_str(), to, name.as_c_str())?;
        crash_points::mark("move entry");
    }
    attributes.apply(to)
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

// === impl Copied ===

impl Copied {
    /// Says how much it was.
    pub(crate) fn log(&self, doing: &str) {
        tracing::info!(
            doing,
            bytes = self.bytes,
            files = self.files,
            shared = self.shared,
            "copied"
        );
    }
}

// === impl Copier ===

impl<'a> Copier<'a> {
    fn new(folder: BorrowedFd<'a>, call: &'a Call, doing: &'a str) -> Self {
        let now = Instant::now();
        Self {
            call,
            doing,
            folder,
            links: HashMap::new(),
            link_folder: None,
            acls: 0,
            content: content::CopyMethods::default(),
            buffer: vec![0; BUFFER],
            copied: Copied::default(),
            started: now,
            last_progress: now,
        }
    }

    fn run(&mut self, top: &OwnedFd, target: BorrowedFd<'_>) -> Result<(), Error> {
        let own = |fd: BorrowedFd<'_>| rustix::io::fcntl_dupfd_cloexec(fd, 0);
        let mut target = own(target).map_err(|errno| self.error_at(c".", errno))?;
        let source = own(top.as_fd()).map_err(|errno| self.error_at(c".", errno))?;
        let mut trail = vec![self.enter(source, &target, c".".into(), true)?];
        while let Some(level) = trail.last_mut() {
            self.pause()?;
            if let (Some(from), Some(name)) = (&level.source, level.pending.pop()) {
                if let Some((from, to)) = self.descend(from, &target, &name)? {
                    trail.push(self.enter(from, &to, name, false)?);
                    target = to;
                    if let Some(far) = trail.len().checked_sub(HELD + 1) {
                        trail[far].source = None;
                    }
                }
                continue;
            }
            let Some(done) = trail.pop() else { break };
            self.acls -= done.attributes.held();
            done.attributes
                .apply(target.as_fd())
                .map_err(|errno| self.error_at(&done.name, errno))?;
            crash_points::mark("directory attributes");
            let Some(parent) = trail.last() else { break };
            target = climb(&target, parent.target_id)
                .map_err(|errno| self.error_at(&done.name, errno))?;
            self.back(top, &mut trail, done.source.as_ref())?;
        }
        Ok(())
    }

    /// Sees to it that the last directory of the trail is open, if anything is to be done there.
    fn back(
        &self,
        top: &OwnedFd,
        trail: &mut [Level],
        child: Option<&OwnedFd>,
    ) -> Result<(), Error> {
        let Some(level) = trail.last() else {
            return Ok(());
        };
        if level.source.is_some() {
            return Ok(());
        }
        let found = child
            .and_then(|child| climb(child, level.source_id).ok())
            .or_else(|| reopen(top, trail));
        if found.is_none() && !level.pending.is_empty() {
            // What is left in there may still exist elsewhere: it must not be missing in silence.
            let name = level.name.to_string_lossy();
            return Err(Error::new(
                Kind::Busy,
                format!("{}, at `{}`", self.doing, name.escape_debug()),
            )
            .because("directories are moved faster than they can be copied")
            .advise("stop what writes to the volume, or try again"));
        }
        if let Some(level) = trail.last_mut() {
            level.source = found;
        }
        Ok(())
    }

    /// Copies all entries of a directory but its directories, which wait.
    fn enter(
        &mut self,
        from: OwnedFd,
        to: &OwnedFd,
        name: CString,
        top: bool,
    ) -> Result<Level, Error> {
        let attributes = DirAttributes::copy(from.as_fd(), to.as_fd(), &mut self.buffer, top)
            .map_err(|errno| self.error_at(&name, errno))?;
        self.acls += attributes.held();
        if self.acls > MAX_ACLS {
            return Err(self.error_at(&name, Errno::NOMEM));
        }
        let stat = rustix::fs::fstat(to).map_err(|errno| self.error_at(&name, errno))?;
        self.count(attributes.stat());
        let mut pending = Vec::new();
        for entry in Dir::read_from(&from).map_err(|errno| self.error_at(&name, errno))? {
            let entry = entry.map_err(|errno| self.error_at(&name, errno))?;
            let child = entry.file_name();
            if child == c"." || child == c".." {
                continue;
            }
            self.pause()?;
            if self.entry(&from, to, child, entry.file_type())? {
                pending.push(child.to_owned());
            }
        }
        Ok(Level {
            name,
            source_id: identity(attributes.stat()),
            source: Some(from),
            target_id: identity(&stat),
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
            Err(errno) => return Err(self.error_at(name, errno)),
        };
        // Only this process looks in before its own mode is set.
        let mode = if source.is_some() { 0o700 } else { 0o755 };
        rustix::fs::mkdirat(to, name, Mode::from_raw_mode(mode))
            .map_err(|errno| self.error_at(name, errno))?;
        crash_points::mark("copy directory");
        let target = disk::open_dir(to, name).map_err(|errno| self.error_at(name, errno))?;
        Ok(source.map(|source| (source, target)))
    }

    fn count(&mut self, stat: &Stat) {
        self.copied.files += 1;
        let blocks = u64::try_from(stat.st_blocks).unwrap_or_default();
        self.copied.allocated += blocks * 512;
    }

    /// Ends the work at the deadline; says now and then how far it is.
    fn pause(&mut self) -> Result<(), Error> {
        self.call.check(self.doing)?;
        if self.last_progress.elapsed() >= PROGRESS {
            self.last_progress = Instant::now();
            tracing::info!(
                doing = self.doing,
                bytes = self.copied.bytes,
                files = self.copied.files,
                seconds = self.started.elapsed().as_secs(),
                "copying"
            );
        }
        Ok(())
    }

    fn error_at(&self, name: &CStr, errno: Errno) -> Error {
        let name = name.to_string_lossy();
        failed(
            format!("{}, at `{}`", self.doing, name.escape_debug()),
            errno,
        )
    }
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
    let last = trail.last()?.source_id;
    (identity(&rustix::fs::fstat(&dir).ok()?) == last).then_some(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(path: &std::path::Path) -> OwnedFd {
        std::fs::File::open(path).expect("open").into()
    }

    #[test]
    fn content_is_moved_with_its_attributes_and_without_the_record_of_another_volume() {
        let top = tempfile::tempdir().expect("folder");
        let (from, to) = (top.path().join("from"), top.path().join("to"));
        std::fs::create_dir_all(from.join("a/b")).expect("folders");
        std::fs::write(from.join("file"), "content").expect("file");
        std::fs::create_dir(&to).expect("folder");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o2751);
        std::fs::set_permissions(&from, mode).expect("mode");
        let (source, target) = (open(&from), open(&to));
        let flags = rustix::fs::XattrFlags::empty();
        for name in ["user.own", crate::record::ATTRIBUTE] {
            rustix::fs::fsetxattr(&source, name, b"1", flags).expect("attribute");
        }
        let before = std::fs::metadata(&from).expect("source");
        move_content(&source, target.as_fd()).expect("moved");
        let after = std::fs::metadata(&to).expect("target");
        assert_eq!(after.permissions(), before.permissions());
        assert_eq!(after.modified().ok(), before.modified().ok());
        let mut names = vec![0; 1000];
        let length = rustix::fs::flistxattr(&target, &mut names[..]).expect("list");
        let names = String::from_utf8_lossy(&names[..length]);
        assert!(names.contains("user.own") && !names.contains(crate::record::ATTRIBUTE));
        assert!(to.join("a/b").is_dir());
        let text = std::fs::read_to_string(to.join("file"));
        assert_eq!(text.expect("file"), "content");
        assert_eq!(std::fs::read_dir(&from).expect("list").count(), 0);
    }

    #[test]
    fn a_directory_that_was_moved_with_work_left_in_it_fails_the_copy() {
        let top = tempfile::tempdir().expect("folder");
        let (from, to) = (top.path().join("from"), top.path().join("to"));
        std::fs::create_dir_all(from.join("a/b")).expect("folders");
        std::fs::create_dir(&to).expect("folder");
        let (source, target) = (open(&from), open(&to));
        let call = Call::within(Duration::from_mins(1));
        let mut copier = Copier::new(target.as_fd(), &call, "copying");
        let mut enter = |path: &std::path::Path, name: &CStr| {
            let level = copier.enter(open(path), &target, name.into(), false);
            level.expect("level")
        };
        let mut trail = vec![enter(&from, c"."), enter(&from.join("a"), c"a")];
        assert_eq!(trail[1].pending, [c"b".to_owned()]);
        let child = open(&from.join("a/b"));
        let copier = Copier::new(target.as_fd(), &call, "copying");
        trail[1].source = None;
        copier.back(&source, &mut trail, Some(&child)).expect("up");
        assert!(trail[1].source.take().is_some(), "found by going up");
        copier.back(&source, &mut trail, None).expect("down");
        assert!(trail[1].source.take().is_some(), "found from the top");
        std::fs::rename(from.join("a"), top.path().join("moved")).expect("move");
        let lost = copier.back(&source, &mut trail, None);
        assert_eq!(lost.expect_err("lost").kind(), Kind::Busy);
        trail[1].pending.clear();
        copier
            .back(&source, &mut trail, None)
            .expect("nothing was left to do");
    }
}
