//! Copies of directory trees: owners, modes, times, extended attributes, ACLs, hard links, holes
//! and special files included; data shared by reflink where the filesystem can.
//!
//! The source is a live directory that a pod may be writing: it is walked by descriptors, no link
//! is followed and no other mount entered. Files that vanish during the copy are left out; what cannot be
//! read fails the whole copy. The caller gives the target its name only after all of it succeeded.
//!
//! One thread walks the directories. On a share, where each step waits for the server, other threads copy
//! the files ([`workers`]); elsewhere it copies them itself.

mod attributes;
mod content;
mod durable;
mod entries;
mod links;
mod workers;

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use driver_core::{Call, Error, Kind};
use rustix::fs::{Dir, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::crash_points;
use crate::disk;
use crate::failure::failed;
use crate::kind::is_share;
use attributes::DirAttributes;
pub(crate) use attributes::times;
pub(crate) use durable::write_out;
use workers::{Directory, Job, Progress, Queue, Worker};

/// The interval at which a long copy says where it is. Often enough to see in the log that it moves, and a hundred
/// lines in a quarter of an hour.
const PROGRESS: Duration = Duration::from_secs(10);
/// Directories of the source kept open on the way down, so that a move of one does no harm. Deeper
/// ones are found again by going up; a hundred copies at once still need few descriptors. Files that are
/// being copied keep theirs open, too.
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

/// A directory of the source and its counterpart.
type Pair = (Arc<OwnedFd>, Arc<OwnedFd>);

/// A directory on the way down to the current one.
struct Level {
    name: CString,
    /// Of the last ones only.
    source: Option<Arc<OwnedFd>>,
    source_id: (u64, u64),
    target_id: (u64, u64),
    pending: Vec<CString>,
    directory: Arc<Directory>,
}

/// The walk through the directories of one copy.
struct Walk<'a> {
    progress: &'a Progress<'a>,
    worker: Worker<'a>,
    /// Takes the files to the other threads, if there are any.
    queue: Option<Queue>,
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
    let waits = [source.as_fd(), target]
        .iter()
        .any(|dir| rustix::fs::fstatfs(dir).is_ok_and(|filesystem| is_share(&filesystem)));
    // The tests in this crate copy with threads, those of the whole driver without.
    let extra = if waits || cfg!(test) {
        workers::MOST
    } else {
        0
    };
    copy_tree_with(extra, (source, target), folder, call, doing)
}

/// The same with the help of up to `extra` threads.
fn copy_tree_with(
    extra: usize,
    (source, target): (&OwnedFd, BorrowedFd<'_>),
    folder: BorrowedFd<'_>,
    call: &Call,
    doing: &str,
) -> Result<Copied, Error> {
    let progress = Progress::new(source, folder, call, doing);
    workers::with(extra, &progress, |queue| {
        Walk::new(&progress, queue).run(source, target)
    })?;
    progress
        .links
        .remove(folder)
        .map_err(|errno| failed(doing, errno))?;
    write_out(target).map_err(|errno| failed(doing, errno))?;
    Ok(progress.copied())
}

/// Moves what is in a directory to another one that is below the same mount and in the same subvolume, and gives
/// that one the attributes of the first.
pub(crate) fn move_content(from: &OwnedFd, to: BorrowedFd<'_>) -> Result<(), Errno> {
    let mut buffer = vec![0; BUFFER];
    let made = rustix::fs::fstat(to)?;
    let attributes = DirAttributes::copy(from.as_fd(), (to, &made), &mut buffer, true)?;
    for (name, _) in disk::entries(from.as_fd())? {
        rustix::fs::renameat(from, name.as_c_str(), to, name.as_c_str())?;
        crash_points::mark("move entry");
    }
    attributes.apply(to)
}

fn identity(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
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

// === impl Walk ===

impl<'a> Walk<'a> {
    fn new(progress: &'a Progress<'a>, queue: Option<Queue>) -> Self {
        Self {
            progress,
            worker: Worker::new(progress),
            queue,
        }
    }

    fn run(&mut self, top: &OwnedFd, target: BorrowedFd<'_>) -> Result<(), Error> {
        let own = |fd: BorrowedFd<'_>| rustix::io::fcntl_dupfd_cloexec(fd, 0).map(Arc::new);
        let at_top = |errno| self.progress.error_at(c".", errno);
        let pair = (
            own(top.as_fd()).map_err(at_top)?,
            own(target).map_err(at_top)?,
        );
        self.walk(pair, c".", true)
    }

    /// Copies a directory that was found where a file was listed.
    fn subtree(&mut self, from: &OwnedFd, to: &OwnedFd, name: &CStr) -> Result<(), Error> {
        match self.descend(from, to, name)? {
            Some(pair) => self.walk(pair, name, false),
            None => Ok(()),
        }
    }

    fn walk(&mut self, (top, mut target): Pair, name: &CStr, is_top: bool) -> Result<(), Error> {
        let first = self.enter(Arc::clone(&top), &target, name.into(), is_top)?;
        let mut trail = vec![first];
        while let Some(level) = trail.last_mut() {
            self.progress.pause()?;
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
            self.progress.leave(done.directory, target.as_fd())?;
            let Some(parent) = trail.last() else { break };
            target = climb(&target, parent.target_id)
                .map(Arc::new)
                .map_err(|errno| self.progress.error_at(&done.name, errno))?;
            self.back(&top, &mut trail, done.source.as_deref())?;
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
            return Err(Error::new(Kind::Busy, self.progress.doing_at(&level.name))
                .because("directories are moved faster than they can be copied")
                .advise("stop what writes to the volume, or try again"));
        }
        if let Some(level) = trail.last_mut() {
            level.source = found.map(Arc::new);
        }
        Ok(())
    }

    /// Copies all entries of a directory, or has them copied, but its directories, which wait.
    fn enter(
        &mut self,
        from: Arc<OwnedFd>,
        to: &Arc<OwnedFd>,
        name: CString,
        top: bool,
    ) -> Result<Level, Error> {
        let progress = self.progress;
        let failed = |errno| progress.error_at(&name, errno);
        let made = rustix::fs::fstat(to).map_err(failed)?;
        let buffer = &mut self.worker.buffer;
        let attributes =
            DirAttributes::copy(from.as_fd(), (to.as_fd(), &made), buffer, top).map_err(failed)?;
        progress.count(attributes.stat());
        let source_id = identity(attributes.stat());
        let directory = progress.open(&name, attributes)?;
        let mut pending = Vec::new();
        for entry in Dir::read_from(&from).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let child = entry.file_name();
            if child == c"." || child == c".." {
                continue;
            }
            progress.pause()?;
            let is_dir = disk::is_dir(from.as_fd(), child, entry.file_type());
            if is_dir.map_err(|errno| progress.error_at(child, errno))? {
                pending.push(child.to_owned());
                continue;
            }
            match &self.queue {
                Some(queue) => queue.put(Job {
                    from: Arc::clone(&from),
                    to: Arc::clone(to),
                    name: child.to_owned(),
                    directory: Arc::clone(&directory),
                })?,
                None => self.worker.entry(&from, to, child)?,
            }
        }
        Ok(Level {
            name,
            source_id,
            source: Some(from),
            target_id: identity(&made),
            pending,
            directory,
        })
    }

    /// Opens a directory of the source and makes its counterpart; `None` if there is nothing to
    /// walk.
    fn descend(
        &mut self,
        from: &OwnedFd,
        to: &OwnedFd,
        name: &CStr,
    ) -> Result<Option<Pair>, Error> {
        let failed = |errno| self.progress.error_at(name, errno);
        let source = match disk::open_dir(from, name) {
            Ok(source) => Some(source),
            Err(Errno::XDEV) => {
                tracing::warn!(
                    doing = self.progress.doing,
                    name = %name.to_string_lossy(),
                    "another filesystem is mounted here; its content is not copied"
                );
                None
            }
            Err(errno) if self.progress.has_vanished(from, errno) => return Ok(None),
            Err(errno) => return Err(failed(errno)),
        };
        // Only this process looks in before its own mode is set.
        let mode = if source.is_some() { 0o700 } else { 0o755 };
        rustix::fs::mkdirat(to, name, Mode::from_raw_mode(mode)).map_err(failed)?;
        crash_points::mark("copy directory");
        let target = disk::open_dir(to, name).map_err(failed)?;
        Ok(source.map(|source| (Arc::new(source), Arc::new(target))))
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
    use node_utils::shares::CopyActivity;

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
        for name in ["user.own", "user.omnibus-csi"] {
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
        assert!(names.contains("user.own") && !names.contains("omnibus-csi"));
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
        let progress = Progress::new(&source, target.as_fd(), &call, "copying");
        let target = Arc::new(open(&to));
        let mut copier = Walk::new(&progress, None);
        let mut enter = |path: &std::path::Path, name: &CStr| {
            let level = copier.enter(Arc::new(open(path)), &target, name.into(), false);
            level.expect("level")
        };
        let mut trail = vec![enter(&from, c"."), enter(&from.join("a"), c"a")];
        assert_eq!(trail[1].pending, [c"b".to_owned()]);
        let child = open(&from.join("a/b"));
        let copier = Walk::new(&progress, None);
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

    /// A share that is silent for long is taken for dead, unless a copy moves bytes there.
    #[test]
    fn a_copy_on_a_share_gives_signs_of_life() {
        let top = tempfile::tempdir().expect("folder");
        let (from, to) = (top.path().join("from"), top.path().join("to"));
        std::fs::create_dir(&from).expect("folder");
        std::fs::write(from.join("file"), "content").expect("file");
        std::fs::create_dir(&to).expect("folder");
        let (source, target) = (open(&from), open(&to));
        let call = Call::within(Duration::from_mins(1));
        let began = std::time::Instant::now();
        let (folder, doing) = (target.as_fd(), "copying");
        let progress = Progress::with_signs(&source, folder, &call, doing, |_| true);
        Walk::new(&progress, None)
            .run(&source, target.as_fd())
            .expect("copied");
        let moved = CopyActivity::on(&source).last_moved();
        assert!(moved.is_some_and(|at| at.into_std() >= began));
    }

    /// Copies `from` to `to`, both below `top`.
    fn copied(top: &std::path::Path, extra: usize) -> Result<Copied, Error> {
        let call = Call::within(Duration::from_mins(1));
        let [from, to, beside] = ["from", "to", "beside"].map(|name| top.join(name));
        std::fs::create_dir_all(&to).expect("folder");
        std::fs::create_dir_all(&beside).expect("folder");
        let (from, to, beside) = (open(&from), open(&to), open(&beside));
        let both = (&from, to.as_fd());
        copy_tree_with(extra, both, beside.as_fd(), &call, "copying")
    }

    #[test]
    fn many_threads_keep_links_and_the_times_of_directories() {
        use std::os::unix::fs::MetadataExt as _;
        const FILES: usize = 200;
        let top = tempfile::tempdir().expect("folder");
        let from = top.path().join("from");
        for folder in 0..10 {
            std::fs::create_dir_all(from.join(format!("{folder}/inner"))).expect("folder");
        }
        for number in 0..FILES {
            let first = from.join(format!("{}/{number}", number % 10));
            std::fs::write(&first, number.to_string()).expect("file");
            for other in 1..4 {
                let name = format!("{}/inner/{number}", (number + other) % 10);
                std::fs::hard_link(&first, from.join(name)).expect("link");
            }
        }
        let times = rustix::fs::Timestamps {
            last_access: rustix::fs::Timespec {
                tv_sec: 1,
                tv_nsec: 0,
            },
            last_modification: rustix::fs::Timespec {
                tv_sec: 2,
                tv_nsec: 0,
            },
        };
        let folders = (0..10).flat_map(|folder| [folder.to_string(), format!("{folder}/inner")]);
        for folder in folders.clone() {
            rustix::fs::futimens(open(&from.join(folder)), &times).expect("times");
        }
        for extra in [0, 1, workers::MOST] {
            let done = copied(top.path(), extra).expect("copied");
            let to = top.path().join("to");
            assert_eq!(done.files, 1 + 20 + FILES as u64, "{extra}");
            for number in 0..FILES {
                let first = std::fs::metadata(to.join(format!("{}/{number}", number % 10)));
                let first = first.expect("copy");
                assert_eq!(first.nlink(), 4, "{extra}");
                let other = to.join(format!("{}/inner/{number}", (number + 3) % 10));
                let same = std::fs::metadata(&other).expect("link").ino();
                assert_eq!(same, first.ino(), "{extra}");
                let text = std::fs::read_to_string(other).expect("content");
                assert_eq!(text, number.to_string(), "{extra}");
            }
            for folder in folders.clone() {
                let found = std::fs::metadata(to.join(&folder)).expect("folder");
                assert_eq!(found.mtime(), 2, "{extra}: {folder}");
            }
            assert!(!top.path().join("beside/links").exists(), "{extra}");
            std::fs::remove_dir_all(&to).expect("remove");
        }
    }

    #[test]
    fn what_one_of_many_threads_cannot_copy_fails_the_copy() {
        let top = tempfile::tempdir().expect("folder");
        let (from, to) = (top.path().join("from"), top.path().join("to"));
        std::fs::create_dir_all(from.join("a")).expect("folder");
        std::fs::create_dir(&to).expect("folder");
        for number in 0..100 {
            std::fs::write(from.join(number.to_string()), "content").expect("file");
        }
        std::fs::write(to.join("50"), "in the way").expect("file");
        for extra in [0, workers::MOST] {
            let error = copied(top.path(), extra).expect_err("failed");
            assert!(error.to_string().contains("at `50`"), "{}", error.chain());
            for number in (0..100).filter(|number| *number != 50) {
                let _ = std::fs::remove_file(to.join(number.to_string()));
            }
        }
    }

    #[test]
    fn what_has_become_a_directory_is_not_left_out() {
        let top = tempfile::tempdir().expect("folder");
        std::fs::create_dir(top.path().join("listed-as-a-file")).expect("folder");
        let (from, call) = (open(top.path()), Call::within(Duration::from_mins(1)));
        let progress = Progress::new(&from, from.as_fd(), &call, "copying");
        let to = tempfile::tempdir().expect("folder");
        std::fs::write(top.path().join("listed-as-a-file/file"), "content").expect("file");
        let mut worker = Worker::new(&progress);
        for name in [c"listed-as-a-file", c"vanished"] {
            worker.entry(&from, &open(to.path()), name).expect("copied");
        }
        let text = std::fs::read_to_string(to.path().join("listed-as-a-file/file"));
        assert_eq!(text.expect("file"), "content");
        assert!(!to.path().join("vanished").exists());
    }
}
