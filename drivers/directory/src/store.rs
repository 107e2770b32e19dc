//! The base directory and the two shelves in it: `v` for volumes, `s` for snapshots.
//!
//! A shelf is opened anew by every call, so that the base may be unmounted and mounted between
//! calls. Reading never makes anything; the first call that makes something makes what is missing.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use driver_core::{Call, Error, Kind};
use node_utils::beneath::{BeneathError, BeneathErrorKind, Mounts, open_beneath};
use node_utils::{AbsolutePath, Root};
use rustix::fs::{Access, AtFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::disk;
use crate::failure::{change, failed};
use crate::record::ATTRIBUTE;
use crate::stop;
use crate::workshop::{PRIVATE, Workshop};

/// The time that a call gives to the leftovers of others.
const TIDY_TIME: Duration = Duration::from_secs(1);

/// Where objects of one sort lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shelf {
    Volumes,
    Snapshots,
}

/// The base directory of one driver.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) base: AbsolutePath,
    pub(crate) workshop: Workshop,
}

// === impl Shelf ===

impl Shelf {
    /// Its directory in the base.
    pub(crate) fn dir(self) -> &'static str {
        match self {
            Self::Volumes => "v",
            Self::Snapshots => "s",
        }
    }

    /// What lies on it, for messages.
    pub(crate) fn noun(self) -> &'static str {
        match self {
            Self::Volumes => "volume",
            Self::Snapshots => "snapshot",
        }
    }
}

// === impl Store ===

impl Store {
    pub(crate) fn new(base: AbsolutePath) -> Self {
        Self {
            base,
            workshop: Workshop::new(),
        }
    }

    /// Opens the base directory.
    pub(crate) fn open(&self) -> Result<Root, Error> {
        Root::open(&self.base).map_err(|error| self.unopened(error))
    }

    fn unopened(&self, error: BeneathError) -> Error {
        let kind = match error.kind() {
            BeneathErrorKind::Denied => Kind::Internal,
            _ => Kind::Unreachable,
        };
        Error::new(kind, format!("opening the base directory {}", self.base))
            .because(error)
            .advise("`controllerBasePath` has to be a directory that this process can use")
    }

    /// Opens a shelf; `None` if the base has none yet.
    pub(crate) fn shelf(&self, shelf: Shelf) -> Result<Option<OwnedFd>, Error> {
        let path = self.base.child(shelf.dir());
        // In one call: links in the path of the base are the operator's and followed, the last
        // component is not.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::open(path.as_path(), flags, Mode::empty()) {
            Ok(fd) => Ok(Some(fd)),
            // Without a base there is nothing to say about what is in it.
            Err(errno) => match (self.open()?, errno) {
                (_, Errno::NOENT) => Ok(None),
                (_, Errno::NOTDIR | Errno::LOOP) => Err(failed(format!("opening {path}"), errno)
                    .advise("it has to be a directory, not a link")),
                (_, errno) => Err(failed(format!("opening {path}"), errno)),
            },
        }
    }

    /// Opens a shelf for making something on it. What is missing is made; an empty base and an empty
    /// shelf are no objects, so this is not yet a change.
    pub(crate) fn shelf_or_make(&self, shelf: Shelf) -> Result<OwnedFd, Error> {
        match self.shelf(shelf) {
            Ok(Some(fd)) => return Ok(fd),
            Ok(None) => {}
            Err(error) if error.kind() == Kind::Unreachable => {
                std::fs::create_dir_all(self.base.as_path()).map_err(|error| {
                    let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
                    failed(format!("making the base directory {}", self.base), errno)
                })?;
                stop::mark("make base");
            }
            Err(error) => return Err(error),
        }
        let doing = || format!("making {}", self.base.child(shelf.dir()));
        disk::ensure_dir(self.open()?, shelf.dir(), 0o755)
            .map_err(|errno| failed(doing(), errno))?;
        stop::mark("make shelf");
        self.shelf(shelf)?
            .ok_or_else(|| failed(doing(), Errno::NOENT))
    }

    /// Opens an object for reading. `None` if there is none, or something else than a directory.
    pub(crate) fn find(on: impl AsFd, shelf: Shelf, name: &str) -> Result<Option<OwnedFd>, Error> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        match open_beneath(on, name, flags, Mounts::Enter) {
            Ok(dir) => Ok(Some(dir)),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            Err(errno) => Err(failed(format!("opening {} {name}", shelf.noun()), errno)),
        }
    }

    /// The same where the shelf is not open yet.
    pub(crate) fn look_for(&self, shelf: Shelf, name: &str) -> Result<Option<OwnedFd>, Error> {
        self.shelf(shelf)?
            .map_or(Ok(None), |on| Self::find(&on, shelf, name))
    }

    /// Whether the open object still is the one with that name.
    pub(crate) fn is_still(&self, shelf: Shelf, name: &str, dir: &OwnedFd) -> bool {
        let Ok(Some(on)) = self.shelf(shelf) else {
            return false;
        };
        let now = rustix::fs::statat(&on, name, AtFlags::SYMLINK_NOFOLLOW);
        match (now, rustix::fs::fstat(dir)) {
            (Ok(now), Ok(then)) => (now.st_dev, now.st_ino) == (then.st_dev, then.st_ino),
            _ => false,
        }
    }

    /// What is said when a name is taken by no directory.
    pub(crate) fn taken(on: impl AsFd, name: &str, doing: &str) -> Error {
        match rustix::fs::statat(on, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Error::new(Kind::Pending, doing)
                .because("another process is making and deleting it at the same time"),
            _ => Error::new(Kind::Conflict, doing)
                .because("something else than a directory has its name"),
        }
    }

    /// Removes an object. One that is not there, or is no directory, is removed.
    pub(crate) fn remove(&self, call: &Call, shelf: Shelf, name: &str) -> Result<(), Error> {
        let removed = self.try_remove(call, shelf, name);
        self.tidy(TIDY_TIME);
        removed
    }

    fn try_remove(&self, call: &Call, shelf: Shelf, name: &str) -> Result<(), Error> {
        let fail = |errno| {
            let error = failed(format!("deleting {} {name}", shelf.noun()), errno);
            error.with_effect(call.effect())
        };
        let Some(on) = self.shelf(shelf)? else {
            return Ok(());
        };
        // Most volumes that are deleted are empty: then this one call is all.
        match change(call, || rustix::fs::unlinkat(&on, name, AtFlags::REMOVEDIR)) {
            Ok(()) => {
                stop::mark("remove empty");
                return Ok(());
            }
            // Not a directory, so not ours.
            Err(Errno::NOTDIR) => return Ok(()),
            Err(Errno::NOTEMPTY | Errno::EXIST) => {
                let base = self.open()?;
                let bench = self.workshop.open(&base)?;
                match change(call, || bench.to_trash(on.as_fd(), name, shelf.dir())) {
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(errno) => return Err(fail(errno)),
                }
            }
            // It was moved away; perhaps an earlier call did not get to the end.
            Err(Errno::NOENT) => {}
            // Whoever may not write is told so before anybody looks whether there is anything.
            Err(Errno::ROFS | Errno::ACCESS | Errno::PERM) if is_absent(&on, name) => {}
            Err(errno) => return Err(fail(errno)),
        }
        let base = self.open()?;
        if disk::open_path(&base, PRIVATE).is_err() {
            return Ok(());
        }
        let bench = self.workshop.open(&base)?;
        bench.finish_removal(call, shelf.dir(), name)
    }

    /// Removes leftovers of earlier work, if there can be any.
    pub(crate) fn tidy(&self, time: Duration) {
        self.workshop.tidy(&self.base, time.max(TIDY_TIME));
    }

    /// Free bytes for a process without privileges. Where the base does not exist yet, those of the
    /// directory in which it would be made.
    pub(crate) fn free_space(&self) -> Result<u64, Error> {
        let doing = || format!("measuring the free space of {}", self.base);
        let mut path = self.base.as_path();
        let space = loop {
            match (rustix::fs::statvfs(path), path.parent()) {
                (Err(Errno::NOENT), Some(parent)) => path = parent,
                (done, _) => break done.map_err(|errno| failed(doing(), errno))?,
            }
        };
        Ok(space.f_bavail.saturating_mul(space.f_frsize))
    }

    /// What stands in the way of using the base, found out without changing anything.
    pub(crate) fn problems(&self) -> Vec<Error> {
        let base = match self.open() {
            Ok(base) => base,
            Err(error) => return vec![error],
        };
        let doing = |path: &str| format!("using {}{path}", self.base);
        let mut problems = Vec::new();
        for (path, shown) in [
            (".", ""),
            ("v", "/v"),
            ("s", "/s"),
            (PRIVATE, "/.omnibus-csi"),
        ] {
            let dir = match disk::open_path(&base, path) {
                Ok(dir) => dir,
                Err(Errno::NOENT) => continue,
                Err(errno) => {
                    problems.push(
                        failed(doing(shown), errno).advise("it has to be a directory, not a link"),
                    );
                    continue;
                }
            };
            let access = Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK;
            let checked = rustix::fs::accessat(&dir, ".", access, AtFlags::EACCESS);
            if let Err(errno) = checked {
                problems.push(failed(doing(shown), errno));
            }
        }
        if let Ok(dir) = rustix::fs::openat(
            &base,
            ".",
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        ) && let Err(Errno::OPNOTSUPP) =
            rustix::fs::fgetxattr(&dir, ATTRIBUTE, &mut [0_u8; 1][..])
        {
            // Everything works without them but what only a record knows: sizes, and conflicts.
            tracing::warn!(
                base = %self.base,
                "the filesystem keeps no extended attributes: sizes of volumes are not remembered"
            );
        }
        problems
    }
}

fn is_absent(on: &OwnedFd, name: &str) -> bool {
    let found = rustix::fs::statat(on, name, AtFlags::SYMLINK_NOFOLLOW);
    found.is_err_and(|errno| errno == Errno::NOENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_that_was_replaced_is_no_longer_the_one_that_was_opened() {
        let top = tempfile::tempdir().expect("folder");
        let base = AbsolutePath::parse(top.path().to_str().expect("text")).expect("path");
        let store = Store::new(base);
        let path = top.path().join("v/one");
        std::fs::create_dir_all(&path).expect("folders");
        let find = || {
            let found = store.look_for(Shelf::Volumes, "one");
            found.expect("found").expect("one")
        };
        let first = find();
        assert!(store.is_still(Shelf::Volumes, "one", &first));
        std::fs::rename(&path, top.path().join("v/two")).expect("rename");
        assert!(!store.is_still(Shelf::Volumes, "one", &first));
        std::fs::create_dir(&path).expect("folder");
        assert!(!store.is_still(Shelf::Volumes, "one", &first));
        assert!(store.is_still(Shelf::Volumes, "one", &find()));
    }
}
