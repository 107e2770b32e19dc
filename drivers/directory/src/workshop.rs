//! Work in progress, in the folder `.omnibus-csi` of the base: things are made in `making` and get
//! their final name by one rename, and are moved to `trash` before they are taken apart.
//!
//! What a killed call leaves lies in there and is never taken for a volume; a later call removes
//! it. Whoever fills something for long holds a lock in `makers` meanwhile, so that nobody takes
//! the work of a living process for a leftover.

use std::fmt::Write as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime};

use driver_core::{Call, Effect, Error, Kind};
use node_utils::beneath::BeneathErrorKind;
use node_utils::{Component, Root};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use crate::disk::{self, Mounts};
use crate::failure::{failed, failed_midway};
use crate::stop;

/// The folder of work in progress.
pub(crate) const PRIVATE: &str = ".omnibus-csi";
const MAKING: &str = ".omnibus-csi/making";
const TRASH: &str = ".omnibus-csi/trash";
const MAKERS: &str = ".omnibus-csi/makers";
/// The time that one call gives to the leftovers of others.
const TIDY_TIME: Duration = Duration::from_secs(1);

/// What a process remembers of its work: nothing that would be missed after a kill.
#[derive(Debug)]
pub(crate) struct Workshop {
    maker: String,
    number: AtomicU64,
    lock: Mutex<Weak<MakerLock>>,
    untidy: AtomicBool,
}

/// Held while something of this process in `making` takes long. Gone with the process.
#[derive(Debug)]
struct MakerLock {
    _file: OwnedFd,
}

/// The folders, open for one call.
#[derive(Debug)]
pub(crate) struct Bench<'a> {
    shop: &'a Workshop,
    base: &'a Root,
    private: OwnedFd,
    making: OwnedFd,
}

/// Something being made. Dropped without [`Aside::commit`], it goes to the trash.
#[derive(Debug)]
pub(crate) struct Aside<'a> {
    bench: &'a Bench<'a>,
    entry: String,
    /// Of something that is filled: its folder, which also has room for `links`.
    folder: Option<OwnedFd>,
    tree: OwnedFd,
    committed: bool,
    _lock: Option<Arc<MakerLock>>,
}

/// The name of what is being filled, in its folder.
const TREE: &str = "tree";

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

    /// Opens the folders for a call that changes something; makes them if they are missing.
    pub(crate) fn open<'a>(&'a self, base: &'a Root) -> Result<Bench<'a>, Error> {
        let doing = || format!("opening {PRIVATE} in {}", base.path());
        let open = || {
            let private = disk::open_path(base, PRIVATE)?;
            let making = disk::open_path(&private, "making")?;
            Ok((private, making))
        };
        let (private, making) = match open() {
            Err(Errno::NOENT) => {
                prepare(base).map_err(|errno| failed_midway(doing(), errno))?;
                open()
            }
            done => done,
        }
        .map_err(|errno| failed(doing(), errno))?;
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

    fn lock(&self, base: &Root) -> Result<Arc<MakerLock>, Errno> {
        let mut current = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lock) = current.upgrade() {
            return Ok(lock);
        }
        let makers = disk::open_path(base, MAKERS)?;
        loop {
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let mode = Mode::RUSR | Mode::WUSR;
            let file = rustix::fs::openat(&makers, self.maker.as_str(), flags, mode)?;
            // Whoever tidies up holds it for a moment, to find out that nobody does.
            rustix::fs::flock(&file, FlockOperation::LockExclusive)?;
            if rustix::fs::fstat(&file)?.st_nlink > 0 {
                stop::mark("lock maker");
                let lock = Arc::new(MakerLock { _file: file });
                *current = Arc::downgrade(&lock);
                return Ok(lock);
            }
        }
    }
}

/// Makes the folders. Another process may do so at the same time.
fn prepare(base: &Root) -> Result<(), Errno> {
    for (path, mode) in [
        ("v", 0o755),
        ("s", 0o755),
        (PRIVATE, 0o700),
        (MAKERS, 0o700),
        (TRASH, 0o700),
        (MAKING, 0o700),
    ] {
        disk::ensure_dir(base, path, mode)?;
        stop::mark("prepare");
    }
    Ok(())
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
    /// An empty directory in the making. It is not locked: if somebody takes it for a leftover, its
    /// commit says `NOENT` and it is made again.
    pub(crate) fn make_empty(&self, mode: u32) -> Result<Aside<'_>, Errno> {
        let entry = self.shop.next();
        let tree = make_dir(&self.making, &entry, mode)?;
        Ok(Aside {
            bench: self,
            entry,
            folder: None,
            tree,
            committed: false,
            _lock: None,
        })
    }

    /// A directory to be filled, with a folder around it.
    pub(crate) fn make_filled(&self) -> Result<Aside<'_>, Errno> {
        let lock = self.shop.lock(self.base)?;
        let entry = self.shop.next();
        let folder = make_dir(&self.making, &entry, 0o700)?;
        let tree = make_dir(&folder, TREE, 0o700);
        if tree.is_err() {
            self.discard(&entry);
        }
        let tree = tree?;
        // Nothing is inherited from the base: a copy has the permissions of its source only.
        for acl in ["system.posix_acl_default", "system.posix_acl_access"] {
            let _ = rustix::fs::fremovexattr(&tree, acl);
        }
        Ok(Aside {
            bench: self,
            entry,
            folder: Some(folder),
            tree,
            committed: false,
            _lock: Some(lock),
        })
    }

    fn discard(&self, entry: &str) {
        if rustix::fs::unlinkat(&self.making, entry, AtFlags::REMOVEDIR).is_ok() {
            return;
        }
        self.shop.untidy.store(true, Ordering::Release);
        let _ = self.to_trash(self.making.as_fd(), entry, "making");
    }

    /// Moves `name` into the trash; it is gone from `from` at once or not at all.
    pub(crate) fn to_trash(
        &self,
        from: BorrowedFd<'_>,
        name: &str,
        shelf: &str,
    ) -> Result<(), Errno> {
        let entry = format!("{}.{}", trash_prefix(shelf, name), self.shop.next());
        let trash = disk::open_path(&self.private, "trash")?;
        rustix::fs::renameat(from, name, &trash, entry.as_str())?;
        stop::mark("move to trash");
        Ok(())
    }

    /// Removes leftovers, at most for a while: those in the trash, and in `making` those whose
    /// maker is dead. What remains waits for the next call.
    pub(crate) fn tidy(&self, call: &Call) {
        if !self.shop.untidy.swap(false, Ordering::AcqRel) {
            return;
        }
        let until = Instant::now() + TIDY_TIME.min(call.remaining() / 2);
        if let Err(error) = self.tidy_until(until) {
            self.shop.untidy.store(true, Ordering::Release);
            tracing::warn!(
                base = %self.base.path(),
                error = error.chain(),
                "leftovers of earlier work remain for now"
            );
        }
    }

    fn tidy_until(&self, until: Instant) -> Result<(), Error> {
        let doing = || format!("removing leftovers in {}", self.base.path());
        let fail = |errno| failed(doing(), errno);
        let making = disk::open_dir(&self.private, "making").map_err(fail)?;
        for (name, _) in disk::entries(making.as_fd()).map_err(fail)? {
            let Ok(name) = name.to_str() else { continue };
            let maker = name.split('.').next().unwrap_or(name);
            if maker != self.shop.maker && self.is_dead(maker).map_err(fail)? {
                match self.to_trash(making.as_fd(), name, "making") {
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(errno) => return Err(fail(errno)),
                }
            }
        }
        self.remove_dead_locks().map_err(fail)?;
        self.empty_trash("", &|| Instant::now() >= until)
    }

    /// Whether no living process has this name. One that is alive and holds no lock has nothing in
    /// the making that it could not make again at once.
    fn is_dead(&self, maker: &str) -> Result<bool, Errno> {
        let makers = disk::open_path(&self.private, "makers")?;
        match disk::open(&makers, maker, OFlags::RDWR, Mounts::Refuse) {
            Ok(file) => match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => Ok(true),
                Err(Errno::WOULDBLOCK) => Ok(false),
                Err(errno) => Err(errno),
            },
            Err(Errno::NOENT) => Ok(true),
            Err(errno) => Err(errno),
        }
    }

    fn remove_dead_locks(&self) -> Result<(), Errno> {
        let makers = disk::open_dir(&self.private, "makers")?;
        for (name, _) in disk::entries(makers.as_fd())? {
            let Ok(file) = disk::open(&makers, name.as_c_str(), OFlags::RDWR, Mounts::Refuse)
            else {
                continue;
            };
            if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
                let _ = rustix::fs::unlinkat(&makers, name.as_c_str(), AtFlags::empty());
            }
        }
        Ok(())
    }

    /// Takes apart what was `name` on `shelf`, including what an earlier call did not finish.
    pub(crate) fn finish_removal(&self, call: &Call, shelf: &str, name: &str) -> Result<(), Error> {
        self.empty_trash(&trash_prefix(shelf, name), &|| call.remaining().is_zero())
    }

    fn empty_trash(&self, prefix: &str, stop: &dyn Fn() -> bool) -> Result<(), Error> {
        let doing = || format!("removing what was deleted in {}", self.base.path());
        let wrong = |error: node_utils::beneath::BeneathError| {
            let kind = match error.kind() {
                BeneathErrorKind::Interrupted => Kind::Timeout,
                BeneathErrorKind::Busy => Kind::Busy,
                BeneathErrorKind::Denied => Kind::Denied,
                BeneathErrorKind::NoSpace => Kind::OutOfSpace,
                _ => Kind::Internal,
            };
            Error::new(kind, doing())
                .because(error)
                .with_effect(Effect::Possible)
        };
        let component = |name: &str| {
            Component::parse(name).map_err(|e| Error::new(Kind::Internal, doing()).because(e))
        };
        let private = self.base.open_dir(&component(PRIVATE)?).map_err(wrong)?;
        let trash = private.open_dir(&component("trash")?).map_err(wrong)?;
        for name in trash.list().map_err(wrong)? {
            if name.as_str().starts_with(prefix) {
                trash
                    .remove_tree(&name, &|| {
                        stop::mark("remove");
                        stop()
                    })
                    .map_err(wrong)?;
            }
        }
        Ok(())
    }
}

fn make_dir(parent: &OwnedFd, name: &str, mode: u32) -> Result<OwnedFd, Errno> {
    rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(mode))?;
    stop::mark("make directory");
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::empty())
}

// === impl Aside ===

impl Aside<'_> {
    /// The directory itself.
    pub(crate) fn dir(&self) -> BorrowedFd<'_> {
        self.tree.as_fd()
    }

    /// Room beside the directory, for the time of the making.
    pub(crate) fn folder(&self) -> BorrowedFd<'_> {
        self.folder.as_ref().unwrap_or(&self.tree).as_fd()
    }

    /// Gives it its final name. `EXIST` if something has that name.
    pub(crate) fn commit(mut self, shelf: BorrowedFd<'_>, name: &str) -> Result<(), Errno> {
        let from = match &self.folder {
            Some(folder) => (folder.as_fd(), TREE),
            None => (self.bench.making.as_fd(), self.entry.as_str()),
        };
        disk::rename_new(from, (shelf, name), self.bench.private.as_fd())?;
        stop::mark("rename");
        if self.folder.is_some() {
            self.bench.discard(&self.entry);
            // Its content is on the disk already; now its name, before anybody is told of it.
            if let Err(errno) = disk::open_dir(shelf, ".").and_then(rustix::fs::fsync) {
                tracing::warn!(name, error = %errno, "the name could not be written to the disk yet");
            }
        }
        self.committed = true;
        Ok(())
    }
}

impl Drop for Aside<'_> {
    fn drop(&mut self) {
        if !self.committed {
            self.bench.discard(&self.entry);
        }
    }
}
