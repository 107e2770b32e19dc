//! Work in progress: an empty volume is made under a passing name on its shelf, a copy in the folder
//! `.omnibus-csi/making`; both get their final name by one rename. What is deleted is moved to
//! `.omnibus-csi/trash` before it is taken apart.
//!
//! What a killed call leaves is never taken for a volume; a later call removes it (see [`tidy`]).
//! Whoever fills something for long holds a lock in `makers` meanwhile, so that nobody takes the
//! work of a living process for a leftover.

mod lock;
mod tidy;

use std::fmt::Write as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::SystemTime;

use driver_core::{Call, Error};
use node_utils::Root;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use crate::disk;
use crate::failure::{change, failed};
use crate::stop;
pub(crate) use lock::LockFile;

/// The folder of work in progress.
pub(crate) const PRIVATE: &str = ".omnibus-csi";
const MAKING: &str = "making";
const TRASH: &str = "trash";
const MAKERS: &str = "makers";
/// What passing names on a shelf begin with; no id does.
const PASSING: &str = ".omnibus-csi-";
/// The name of what is being filled, in its folder.
const TREE: &str = "tree";
/// The lock of whoever gives a name to a snapshot. No maker has such a name.
const NAMES: &str = "names";

/// What a process remembers of its work: nothing that would be missed after a kill.
#[derive(Debug)]
pub(crate) struct Workshop {
    maker: String,
    number: AtomicU64,
    lock: Mutex<Weak<LockFile>>,
    untidy: AtomicBool,
}

/// The folders, open for one call.
#[derive(Debug)]
pub(crate) struct Bench<'a> {
    shop: &'a Workshop,
    base: &'a Root,
    private: OwnedFd,
    making: OwnedFd,
}

/// Something being made. Dropped without [`Aside::commit`], it is removed or goes to the trash.
#[derive(Debug)]
pub(crate) struct Aside<'a> {
    /// Where it lies until then, and under which name.
    place: BorrowedFd<'a>,
    entry: String,
    tree: OwnedFd,
    filled: Option<Filled<'a>>,
    committed: bool,
}

/// What comes with something that is filled: a folder around it, which also has room for links.
#[derive(Debug)]
struct Filled<'a> {
    bench: &'a Bench<'a>,
    folder: OwnedFd,
    _lock: Arc<LockFile>,
}

// === impl Workshop ===

impl Workshop {
    pub(crate) fn new() -> Self {
        static INSTANCES: AtomicU64 = AtomicU64::new(0);
        let now = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let maker = format!(
            "{:x}-{:x}-{:x}",
            std::process::id(),
            now.as_nanos(),
            INSTANCES.fetch_add(1, Ordering::Relaxed)
        );
        Self {
            maker,
            number: AtomicU64::new(0),
            lock: Mutex::new(Weak::new()),
            // The first change looks for what an earlier process left.
            untidy: AtomicBool::new(true),
        }
    }

    /// An empty directory on its shelf, where it inherits what directories made there inherit. It is
    /// not locked: if somebody takes it for a leftover, a step says `NOENT` and it is made again.
    pub(crate) fn make_empty<'a>(
        &self,
        shelf: BorrowedFd<'a>,
        mode: u32,
    ) -> Result<Aside<'a>, Errno> {
        let entry = format!("{PASSING}{}", self.next());
        Ok(Aside {
            place: shelf,
            tree: make_dir(shelf, &entry, mode)?,
            entry,
            filled: None,
            committed: false,
        })
    }

    /// Opens the folders; makes them if they are missing.
    pub(crate) fn open<'a>(&'a self, base: &'a Root) -> Result<Bench<'a>, Error> {
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
        Ok(Bench {
            shop: self,
            base,
            private,
            making,
        })
    }

    fn next(&self) -> String {
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        format!("{}.{number}", self.maker)
    }

    /// The lock of this process, shared by all that it fills.
    fn lock(&self, makers: BorrowedFd<'_>) -> Result<Arc<LockFile>, Errno> {
        let mut current = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lock) = current.upgrade() {
            return Ok(lock);
        }
        let lock = Arc::new(LockFile::take(makers, &self.maker)?);
        *current = Arc::downgrade(&lock);
        Ok(lock)
    }
}

/// Makes the folders. Another process may do so at the same time.
fn prepare(base: &Root) -> Result<(), Errno> {
    disk::ensure_dir(base, PRIVATE, 0o700)?;
    stop::mark("prepare");
    let private = disk::open_path(base, PRIVATE)?;
    // The one that is looked for comes last: where it is, the others are.
    for name in [MAKERS, TRASH, MAKING] {
        disk::ensure_dir(&private, name, 0o700)?;
        stop::mark("prepare");
    }
    Ok(())
}

fn make_dir(parent: BorrowedFd<'_>, name: &str, mode: u32) -> Result<OwnedFd, Errno> {
    rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(mode))?;
    stop::mark("make directory");
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::empty())
}

/// What entries of the trash begin with that were `name` on `shelf`.
fn trash_prefix(shelf: &str, name: &str) -> String {
    let digest = Sha256::digest(format!("{shelf}/{name}"));
    digest[..16].iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

// === impl Bench ===

impl Bench<'_> {
    /// A directory to be filled, with a folder around it.
    pub(crate) fn make_filled(&self) -> Result<Aside<'_>, Errno> {
        let makers = disk::open_path(&self.private, MAKERS)?;
        let lock = self.shop.lock(makers.as_fd())?;
        let entry = self.shop.next();
        let place = self.making.as_fd();
        let folder = make_dir(place, &entry, 0o700)?;
        let tree = make_dir(folder.as_fd(), TREE, 0o700);
        if tree.is_err() {
            self.discard(&entry);
        }
        let tree = tree?;
        // Nothing is inherited from the base: a copy has the permissions of its source only.
        for acl in ["system.posix_acl_default", "system.posix_acl_access"] {
            let _ = rustix::fs::fremovexattr(&tree, acl);
        }
        Ok(Aside {
            place,
            entry,
            tree,
            filled: Some(Filled {
                bench: self,
                folder,
                _lock: lock,
            }),
            committed: false,
        })
    }

    /// Held by one process at a time while it looks whether a name is free and takes it.
    pub(crate) fn lock_names(&self) -> Result<LockFile, Errno> {
        let makers = disk::open_path(&self.private, MAKERS)?;
        LockFile::take(makers.as_fd(), NAMES)
    }

    fn discard(&self, entry: &str) {
        if rustix::fs::unlinkat(&self.making, entry, AtFlags::REMOVEDIR).is_ok() {
            return;
        }
        self.shop.untidy.store(true, Ordering::Release);
        let _ = self.to_trash(self.making.as_fd(), entry, MAKING);
    }

    /// Moves `name` into the trash; it is gone from `from` at once or not at all.
    pub(crate) fn to_trash(
        &self,
        from: BorrowedFd<'_>,
        name: &str,
        shelf: &str,
    ) -> Result<(), Errno> {
        let entry = format!("{}.{}", trash_prefix(shelf, name), self.shop.next());
        let trash = disk::open_path(&self.private, TRASH)?;
        rustix::fs::renameat(from, name, &trash, entry.as_str())?;
        stop::mark("move to trash");
        Ok(())
    }
}

// === impl Aside ===

impl Aside<'_> {
    /// The directory itself.
    pub(crate) fn dir(&self) -> BorrowedFd<'_> {
        self.tree.as_fd()
    }

    /// Room beside a directory that is filled, for the time of the making.
    pub(crate) fn folder(&self) -> BorrowedFd<'_> {
        let filled = self.filled.as_ref();
        filled.map_or(&self.tree, |filled| &filled.folder).as_fd()
    }

    /// Gives it its final name: the one step of its making that anybody can see. `EXIST` if
    /// something has that name.
    pub(crate) fn commit(
        mut self,
        call: &Call,
        shelf: BorrowedFd<'_>,
        name: &str,
    ) -> Result<(), Errno> {
        let from = match &self.filled {
            Some(filled) => (filled.folder.as_fd(), TREE),
            None => (self.place, self.entry.as_str()),
        };
        change(call, || disk::rename_new(from, (shelf, name)))?;
        stop::mark("rename");
        self.committed = true;
        if let Some(filled) = &self.filled {
            filled.bench.discard(&self.entry);
            // Its content is on the disk already; now its name, before anybody is told of it.
            if let Err(errno) = disk::open_dir(shelf, ".").and_then(rustix::fs::fsync) {
                tracing::warn!(name, error = %errno, "the name could not be written to the disk yet");
            }
        }
        Ok(())
    }
}

impl Drop for Aside<'_> {
    fn drop(&mut self) {
        match &self.filled {
            _ if self.committed => {}
            Some(filled) => filled.bench.discard(&self.entry),
            None => {
                let _ = rustix::fs::unlinkat(self.place, &*self.entry, AtFlags::REMOVEDIR);
            }
        }
    }
}
