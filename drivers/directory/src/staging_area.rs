//! Work in progress, before it gets its final name by one rename.
//!
//! An empty volume is made under a temporary name in its collection, a copy in the folder
//! `.omnibus-csi/making`. What is deleted is moved to `.omnibus-csi/trash` before it is removed.
//!
//! Where btrfs enforces sizes, a volume is a subvolume. Nothing can be moved or linked between subvolumes, so it is
//! filled without a folder around it; the room that this needs is in there until it is full.
//!
//! What a killed process leaves is never taken for a volume. A later call removes it (see [`cleanup`]).
//! A process that makes copies holds a lock in `.omnibus-csi/makers`, so that its work is not taken for a
//! leftover. Where it loses that lock, or locks are not shared, another process may do so. Then the last rename finds
//! nothing under the name of the work, and fails: what is taken apart is never given a name.

mod cleanup;

use std::collections::BTreeSet;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use csi_types::AbsolutePath;
use driver_core::{Call, Error, Kind};
use node_utils::{Component, Root, subvolumes};
use rustix::fs::{AtFlags, Gid, Mode, OFlags, XattrFlags};
use rustix::io::Errno;

use crate::copy;
use crate::crash_points;
use crate::digest::object_digest;
use crate::disk;
use crate::failure::{change, failed};
use crate::lock::{LockFile, MakerLock};
use crate::quota::{self, Quotas, StaleQgroups};

/// The folder of work in progress.
pub(crate) const PRIVATE: &str = ".omnibus-csi";
const MAKING: &str = "making";
const TRASH: &str = "trash";
const LOCKS: &str = "makers";
/// The prefix of temporary names in a collection; no id has it.
const TEMPORARY: &str = ".omnibus-csi-";
/// The end of the name of the folder beside something that is filled.
const ROOM: &str = ".room";
/// The access control list of a directory, and the one that it passes on.
const ACL: &str = "system.posix_acl_access";
const DEFAULT_ACL: &str = "system.posix_acl_default";
/// Locks that processes take in turn, whose files stay: for giving a name to a snapshot, for choosing the project of a
/// volume, for making the marker of the base. No instance has such a name.
const NAMES: &str = "names";
pub(crate) const PROJECTS: &str = "projects";
const MARKER: &str = "marker";
const SHARED_LOCKS: [&str; 3] = [NAMES, PROJECTS, MARKER];
/// The time to wait for the lock of the marker. Without the marker the base is served all the same, and the next call tries
/// again.
const MARKER_TIME: Duration = Duration::from_secs(10);

/// What a process knows of its own work. Nothing depends on it after a restart.
#[derive(Debug)]
pub(crate) struct StagingArea {
    instance: String,
    number: AtomicU64,
    lock: Mutex<Weak<MakerLock>>,
    needs_cleanup: AtomicBool,
    /// The work that this process was making and could not discard: its storage was away.
    undiscarded: Mutex<BTreeSet<String>>,
    quotas: Quotas,
    pub(crate) stale_qgroups: StaleQgroups,
}

/// The form of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Directory,
    /// One of btrfs.
    Subvolume,
}

/// The folders, open for one call.
#[derive(Debug)]
pub(crate) struct OpenStagingArea<'a> {
    area: &'a StagingArea,
    base: &'a Root,
    private: OwnedFd,
    making: OwnedFd,
}

/// Something being made. Dropped without [`Staged::commit`], it is removed or goes to the trash.
#[derive(Debug)]
pub(crate) struct Staged<'a> {
    area: &'a StagingArea,
    /// The place where it lies until then, and under which name.
    place: BorrowedFd<'a>,
    entry: String,
    tree: OwnedFd,
    filled: Option<StagedFolder<'a>>,
    committed: bool,
}

/// The room of something that is filled: a folder with room for links.
#[derive(Debug)]
struct StagedFolder<'a> {
    staging: &'a OpenStagingArea<'a>,
    folder: OwnedFd,
    place: FolderPlace,
    _lock: Arc<MakerLock>,
}

/// The place where the folder of something that is filled is.
#[derive(Debug)]
enum FolderPlace {
    Beside,
    /// In it, under this name, which nothing has that comes from elsewhere.
    Inside(Component),
}

// === impl StagingArea ===

impl StagingArea {
    pub(crate) fn new(quotas: Quotas) -> Self {
        static INSTANCES: AtomicU64 = AtomicU64::new(0);
        let now = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        // No instance begins with the name of another one.
        let instance = format!(
            "{:x}-{:x}-{:x}-",
            std::process::id(),
            now.as_nanos(),
            INSTANCES.fetch_add(1, Ordering::Relaxed)
        );
        Self {
            instance,
            number: AtomicU64::new(0),
            lock: Mutex::new(Weak::new()),
            // The first change looks for what an earlier process left.
            needs_cleanup: AtomicBool::new(true),
            undiscarded: Mutex::default(),
            quotas,
            stale_qgroups: StaleQgroups::default(),
        }
    }

    /// An empty directory in its collection, where it inherits what directories made there inherit. It is
    /// not locked: if another process removes it as a leftover, a step says `NOENT` and it is made again.
    pub(crate) fn make_empty<'a>(
        &'a self,
        collection: BorrowedFd<'a>,
        form: Form,
        mode: u32,
    ) -> Result<Staged<'a>, Errno> {
        let entry = format!("{TEMPORARY}{}", self.next());
        Ok(Staged {
            area: self,
            place: collection,
            tree: match form {
                Form::Directory => make_dir(collection, &entry, mode)?,
                Form::Subvolume => make_subvolume(collection, &entry, mode)?,
            },
            entry,
            filled: None,
            committed: false,
        })
    }

    /// Opens the folders; makes them if they are missing.
    pub(crate) fn open<'a>(&'a self, base: &'a Root) -> Result<OpenStagingArea<'a>, Error> {
        let open = || {
            let private = disk::open_path(base, PRIVATE)?;
            let making = disk::open_path(&private, MAKING)?;
            Ok((private, making))
        };
        let (private, making) = match open() {
            Err(Errno::NOENT) => prepare(base).and_then(|()| open()),
            done => done,
        }
        .map_err(|errno| failed(format!("opening {PRIVATE} in {}", base.path()), errno))?;
        Ok(OpenStagingArea {
            area: self,
            base,
            private,
            making,
        })
    }

    fn undiscarded(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.undiscarded
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn has_undiscarded(&self) -> bool {
        !self.undiscarded().is_empty()
    }

    fn next(&self) -> String {
        format!("{}.{}", self.instance, self.number())
    }

    /// The lock of this process, shared by all that it fills at the same time.
    fn lock(&self, locks: BorrowedFd<'_>) -> Result<Arc<MakerLock>, Errno> {
        let mut current = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lock) = current.upgrade() {
            return Ok(lock);
        }
        let name = || format!("{}{}", self.instance, self.number());
        let lock = Arc::new(MakerLock::take(locks, name)?);
        *current = Arc::downgrade(&lock);
        Ok(lock)
    }

    /// Whether the work of that name is of this process.
    fn is_own(&self, entry: &str) -> bool {
        entry.starts_with(&*self.instance)
    }

    fn number(&self) -> u64 {
        self.number.fetch_add(1, Ordering::Relaxed)
    }

    /// Loses the lock, as when a server ends the lease of a client. Whether there was one.
    #[cfg(test)]
    pub(crate) fn lose_lock(&self) -> bool {
        let current = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        current.upgrade().is_some_and(|lock| {
            lock.lose();
            true
        })
    }

    /// The next change looks for leftovers, as the first one of a process does.
    #[cfg(test)]
    pub(crate) fn expect_leftovers(&self) {
        self.needs_cleanup.store(true, Ordering::Release);
    }
}

/// Makes the folders. Another process may do so at the same time.
fn prepare(base: &Root) -> Result<(), Errno> {
    disk::ensure_dir(base, PRIVATE, 0o700)?;
    crash_points::mark("prepare");
    let private = disk::open_path(base, PRIVATE)?;
    // The one that is looked for comes last: where it is, the others are.
    for name in [LOCKS, TRASH, MAKING] {
        disk::ensure_dir(&private, name, 0o700)?;
        crash_points::mark("prepare");
    }
    Ok(())
}

/// Held by one process at a time while it looks for the marker of the base and makes it.
pub(crate) fn lock_marker(base: &Root) -> Result<LockFile, Errno> {
    prepare(base)?;
    let locks = disk::open_path(disk::open_path(base, PRIVATE)?, LOCKS)?;
    LockFile::take(locks.as_fd(), MARKER, &Call::within(MARKER_TIME))
}

/// Whether what is moved into the folders of the driver has to be of their project.
pub(crate) fn passes_on_project(base: &Root) -> bool {
    let private = disk::open_dir(base, PRIVATE);
    let folder = |name| {
        let private = private.as_ref().map_err(|errno| *errno)?;
        disk::open_dir(private, name)
    };
    let [making, trash] = [MAKING, TRASH].map(folder);
    let folders = [
        private.as_ref().ok(),
        making.as_ref().ok(),
        trash.as_ref().ok(),
    ];
    folders.into_iter().flatten().any(quota::passes_on)
}

fn make_dir(parent: BorrowedFd<'_>, name: &str, mode: u32) -> Result<OwnedFd, Errno> {
    rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(mode))?;
    crash_points::mark("make directory");
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::empty())
}

/// The same with a subvolume.
fn make_subvolume(parent: BorrowedFd<'_>, name: &str, mode: u32) -> Result<OwnedFd, Errno> {
    let parent = disk::open_dir(parent, ".")?;
    subvolumes::create(&parent, name)?;
    crash_points::mark("make subvolume");
    let made = disk::open_dir(&parent, name).and_then(|made| {
        inherit(&parent, &made, mode)?;
        Ok(made)
    });
    if made.is_err() {
        let _ = rustix::fs::unlinkat(&parent, name, AtFlags::REMOVEDIR);
    }
    made
}

/// Does what `mkdir` does with the mode, the group and the access control lists of a directory, and what the kernel
/// does not do for a new subvolume.
fn inherit(parent: &OwnedFd, made: &OwnedFd, mode: u32) -> Result<(), Errno> {
    let above = rustix::fs::fstat(parent)?;
    let mut acl = vec![0; 1 << 16];
    match rustix::fs::fgetxattr(parent, DEFAULT_ACL, &mut acl[..]) {
        Ok(length) => {
            for name in [DEFAULT_ACL, ACL] {
                rustix::fs::fsetxattr(made, name, &acl[..length], XattrFlags::empty())?;
            }
        }
        Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
        Err(errno) => return Err(errno),
    }
    // The bits of a list are those of the mode, too.
    let mut mode = rustix::fs::fstat(made)?.st_mode & mode;
    if above.st_mode & Mode::SGID.bits() != 0 {
        rustix::fs::fchown(made, None, Some(Gid::from_raw(above.st_gid)))?;
        mode |= Mode::SGID.bits();
    }
    rustix::fs::fchmod(made, Mode::from_raw_mode(mode))
}

/// Nothing is inherited from the base: a copy has the permissions of its source only.
fn remove_acls(tree: &OwnedFd) {
    for acl in [DEFAULT_ACL, ACL] {
        let _ = rustix::fs::fremovexattr(tree, acl);
    }
}

// === impl OpenStagingArea ===

impl OpenStagingArea<'_> {
    /// Something to be filled, with a folder.
    pub(crate) fn make_filled(&self, form: Form) -> Result<Staged<'_>, Errno> {
        let lock = self.area.lock(self.locks()?.as_fd())?;
        let entry = format!("{}.{}", lock.name, self.area.number());
        let made = match form {
            Form::Directory => self.make_beside(&entry),
            Form::Subvolume => self.make_with_room(&entry),
        };
        if made.is_err() {
            self.discard(&entry);
            self.discard(&room(&entry));
        }
        let (tree, folder, place) = made?;
        Ok(Staged {
            area: self.area,
            place: self.making.as_fd(),
            entry,
            tree,
            filled: Some(StagedFolder {
                staging: self,
                folder,
                place,
                _lock: lock,
            }),
            committed: false,
        })
    }

    fn make_beside(&self, entry: &str) -> Result<(OwnedFd, OwnedFd, FolderPlace), Errno> {
        let folder = make_dir(self.making.as_fd(), &room(entry), 0o700)?;
        let tree = make_dir(self.making.as_fd(), entry, 0o700)?;
        remove_acls(&tree);
        Ok((tree, folder, FolderPlace::Beside))
    }

    fn make_with_room(&self, entry: &str) -> Result<(OwnedFd, OwnedFd, FolderPlace), Errno> {
        let tree = make_subvolume(self.making.as_fd(), entry, 0o700)?;
        remove_acls(&tree);
        let name = format!("{TEMPORARY}{entry}");
        let folder = make_dir(tree.as_fd(), &name, 0o700)?;
        let name = Component::parse(&name).map_err(|_| Errno::INVAL)?;
        Ok((tree, folder, FolderPlace::Inside(name)))
    }

    /// Held by one process at a time while it looks whether a name is free and takes it.
    pub(crate) fn lock_names(&self, call: &Call) -> Result<LockFile, Errno> {
        LockFile::take(self.locks()?.as_fd(), NAMES, call)
    }

    /// The folder of locks.
    pub(crate) fn locks(&self) -> Result<OwnedFd, Errno> {
        disk::open_path(&self.private, LOCKS)
    }

    fn discard(&self, entry: &str) {
        match rustix::fs::unlinkat(&self.making, entry, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => return,
            Err(_) => {}
        }
        self.area.needs_cleanup.store(true, Ordering::Release);
        match self.to_trash(self.making.as_fd(), entry, MAKING) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(_) => {
                self.area.undiscarded().insert(entry.to_owned());
            }
        }
    }

    /// Moves `name` into the trash; it is gone from `from` at once or not at all.
    pub(crate) fn to_trash(
        &self,
        from: BorrowedFd<'_>,
        name: &str,
        collection: &str,
    ) -> Result<(), Errno> {
        let entry = format!("{}.{}", object_digest(collection, name), self.area.next());
        let trash = disk::open_path(&self.private, TRASH)?;
        rustix::fs::renameat(from, name, &trash, entry.as_str())?;
        crash_points::mark("move to trash");
        Ok(())
    }
}

// === impl StagedFolder ===

impl StagedFolder<'_> {
    fn discard_room(&self, entry: &str) {
        if matches!(self.place, FolderPlace::Beside) {
            self.staging.discard(&room(entry));
        }
    }
}

fn room(entry: &str) -> String {
    format!("{entry}{ROOM}")
}

/// The error when another process has taken work of this one for a leftover.
fn taken_away(doing: &str) -> Error {
    Error::new(Kind::Unreachable, doing)
        .because("another process has taken this work for a leftover of a process that is gone, and removed it")
        .advise(
            "do the processes of this base share their locks? A share must not be mounted with `nolock`, `local_lock`, \
             `nobrl` or `localflock`, and not be used on its server and by a client at the same time",
        )
}

/// The failure of a step in the staging area. What is not found there any more was taken away.
pub(crate) fn failed_making(doing: &str, errno: Errno) -> Error {
    match errno {
        Errno::NOENT => taken_away(doing),
        errno => failed(doing, errno),
    }
}

// === impl Staged ===

impl Staged<'_> {
    /// The directory itself.
    pub(crate) fn dir(&self) -> BorrowedFd<'_> {
        self.tree.as_fd()
    }

    /// Room for what is filled, for the time of the making.
    pub(crate) fn folder(&self) -> BorrowedFd<'_> {
        let filled = self.filled.as_ref();
        filled.map_or(&self.tree, |filled| &filled.folder).as_fd()
    }

    /// A path of that room for programs that this process starts. It leads there also if another filesystem is
    /// mounted over the base.
    pub(crate) fn folder_path(&self) -> Result<String, Errno> {
        let filled = self.filled.as_ref().ok_or(Errno::INVAL)?;
        let (process, number) = (std::process::id(), filled.folder.as_raw_fd());
        Ok(format!("/proc/{process}/fd/{number}"))
    }

    /// Takes a directory of that room as what is made, in place of the empty one. No link is followed.
    pub(crate) fn adopt(&mut self, path: &str) -> Result<(), Errno> {
        let Some(filled) = &self.filled else {
            return Err(Errno::INVAL);
        };
        let (parent, name) = path.rsplit_once('/').unwrap_or((".", path));
        match filled.place {
            FolderPlace::Beside => {
                let from = disk::open_path(&filled.folder, parent)?;
                rustix::fs::unlinkat(self.place, &*self.entry, AtFlags::REMOVEDIR)?;
                rustix::fs::renameat(&from, name, self.place, &*self.entry)?;
                self.tree = disk::open_dir(self.place, &*self.entry)?;
                Ok(())
            }
            FolderPlace::Inside(_) => {
                let from = disk::open_dir(&filled.folder, path)?;
                copy::move_content(&from, self.tree.as_fd())
            }
        }
    }

    /// Takes the room away that is in what was filled. To be called before it has a limit, which may be less than
    /// what it has.
    pub(crate) fn clear_room(&self, doing: &str) -> Result<(), Error> {
        let Some(FolderPlace::Inside(name)) = self.filled.as_ref().map(|filled| &filled.place)
        else {
            return Ok(());
        };
        let fail = |errno| failed(doing, errno);
        let wrong = |error| Error::new(Kind::Internal, doing).because(error);
        let before = rustix::fs::fstat(&self.tree).map_err(fail)?;
        let path = format!("/proc/self/fd/{}", self.tree.as_raw_fd());
        let path = AbsolutePath::parse(&path)
            .map_err(|error| Error::new(Kind::Internal, doing).because(error))?;
        let tree = Root::open(&path).map_err(wrong)?;
        tree.remove_tree(name, &|| false).map_err(wrong)?;
        crash_points::mark("clear room");
        rustix::fs::futimens(&self.tree, &copy::times(&before)).map_err(fail)
    }

    /// The error of what was done with it; another one if another process has taken it for a leftover, whatever
    /// failed in it then.
    pub(crate) fn explain(&self, error: Error, doing: &str) -> Error {
        if self.filled.is_some() && disk::is_absent(self.place, &*self.entry) {
            return taken_away(doing);
        }
        error
    }

    /// Gives it its final name: the only step that is visible to callers. `EXIST` if something has that name, `NOENT`
    /// if another process has taken it for a leftover: it is found by its name, which the kernel or the server
    /// decides about, and not by a descriptor, which leads to it wherever it is.
    pub(crate) fn commit(
        mut self,
        call: &Call,
        collection: BorrowedFd<'_>,
        name: &str,
    ) -> Result<(), Errno> {
        let from = (self.place, self.entry.as_str());
        change(call, || disk::rename_new(call, from, (collection, name))).inspect_err(|errno| {
            // Another process works here: what is left is not known.
            if *errno == Errno::NOENT {
                call.changing();
            }
        })?;
        crash_points::mark("rename");
        self.committed = true;
        if let Some(filled) = &self.filled {
            filled.discard_room(&self.entry);
            // Its content is on the disk already. Its name has to be before the call returns.
            if let Err(errno) = disk::open_dir(collection, ".").and_then(rustix::fs::fsync) {
                tracing::warn!(name, error = %errno, "the name could not be written to the disk yet");
            }
        }
        Ok(())
    }
}

impl Drop for Staged<'_> {
    fn drop(&mut self) {
        if self.committed {
            return;
        }
        self.area.stale_qgroups.add(quota::subvolume(&self.tree));
        match &self.filled {
            Some(filled) => {
                filled.staging.discard(&self.entry);
                filled.discard_room(&self.entry);
            }
            None => {
                let _ = rustix::fs::unlinkat(self.place, &*self.entry, AtFlags::REMOVEDIR);
            }
        }
    }
}
