//! The two shelves in the base directory: `v` for volumes, `s` for snapshots.
//!
//! Every call opens the base and a shelf anew, so that the base may be unmounted and mounted between
//! calls; see [`crate::base`]. Reading never makes anything in the base. The first call that makes
//! something makes what is missing.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use driver_core::{Call, Error, Kind};
use node_utils::Root;
use node_utils::beneath::{Mounts, open_beneath};
use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags, accessat};
use rustix::io::Errno;

use crate::base::Base;
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
    pub(crate) base: Base,
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
    pub(crate) fn new(base: Base) -> Self {
        Self {
            base,
            workshop: Workshop::new(),
        }
    }

    /// Opens a base that is in use.
    pub(crate) fn open(&self) -> Result<Root, Error> {
        self.base.open()?.ok_or_else(|| {
            Error::new(Kind::Unreachable, format!("opening {}", self.base.path()))
                .because("it is not in use any more")
        })
    }

    /// Opens a shelf; `None` if there is none yet.
    pub(crate) fn shelf(&self, shelf: Shelf) -> Result<Option<OwnedFd>, Error> {
        let base = self.base.open()?;
        base.map_or(Ok(None), |base| Self::shelf_in(&base, shelf))
    }

    fn shelf_in(base: &Root, shelf: Shelf) -> Result<Option<OwnedFd>, Error> {
        let fail = |errno| failed(format!("opening {}", base.path().child(shelf.dir())), errno);
        match disk::open_path(base, shelf.dir()) {
            Ok(fd) => Ok(Some(fd)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno @ (Errno::NOTDIR | Errno::LOOP)) => {
                Err(fail(errno).advise("it has to be a directory, not a link"))
            }
            Err(errno) => Err(fail(errno)),
        }
    }

    /// Opens a shelf for making something on it. What is missing is made; an empty base and an empty
    /// shelf are no objects, so this is not yet a change.
    pub(crate) fn shelf_or_make(&self, shelf: Shelf) -> Result<OwnedFd, Error> {
        let base = self.base.open_or_create()?;
        if let Some(fd) = Self::shelf_in(&base, shelf)? {
            return Ok(fd);
        }
        let fail = |errno| failed(format!("making {}", base.path().child(shelf.dir())), errno);
        disk::ensure_dir(&base, shelf.dir(), 0o755).map_err(fail)?;
        stop::mark("make shelf");
        Self::shelf_in(&base, shelf)?.ok_or_else(|| fail(Errno::NOENT))
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

    /// What is said when a name to delete is taken by no directory. compat: "local-hostpath": behind a
    /// link there may be the data of the volume, and to say that they are deleted would be wrong.
    fn undeletable(on: &OwnedFd, shelf: Shelf, name: &str) -> Error {
        let why = match rustix::fs::readlinkat(on, name, Vec::new()) {
            Ok(_) => "it is a symbolic link, which is never followed",
            Err(_) => "it is not a directory",
        };
        let entry = format!("{}/{name}", shelf.dir());
        Error::new(Kind::Busy, format!("deleting {} {name}", shelf.noun()))
            .because(why)
            .advise(format!(
                "nothing was deleted: remove the data by hand, then `{entry}` in the base directory"
            ))
    }

    /// Removes an object. One that is not there is removed.
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
        let Some(base) = self.base.open_to_delete()? else {
            return Ok(());
        };
        let Some(on) = Self::shelf_in(&base, shelf)? else {
            return Ok(());
        };
        // Most volumes that are deleted are empty: then this one call is all.
        match change(call, || rustix::fs::unlinkat(&on, name, AtFlags::REMOVEDIR)) {
            Ok(()) => {
                stop::mark("remove empty");
                return Ok(());
            }
            Err(Errno::NOTDIR) => return Err(Self::undeletable(&on, shelf, name)),
            Err(Errno::NOTEMPTY | Errno::EXIST) => {
                let bench = self.workshop.open(&base)?;
                match change(call, || bench.to_trash(on.as_fd(), name, shelf.dir())) {
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(errno) => return Err(fail(errno)),
                }
            }
            // It was moved away; perhaps an earlier call did not get to the end.
            Err(Errno::NOENT) => {}
            // Whoever may not write is told so before anybody looks whether there is anything.
            Err(Errno::ROFS | Errno::ACCESS | Errno::PERM) if disk::is_absent(&on, name) => {}
            Err(errno) => return Err(fail(errno)),
        }
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
        let fail = |errno| {
            let base = self.base.path();
            failed(format!("measuring the free space of {base}"), errno)
        };
        let space = match self.base.open()? {
            Some(base) => rustix::fs::fstatvfs(&base).map_err(fail)?,
            None => self
                .nearest(|path| rustix::fs::statvfs(path))
                .map_err(fail)?,
        };
        Ok(space.f_bavail.saturating_mul(space.f_frsize))
    }

    /// Asks about the base or, if it does not exist, about the directory in which it would be made.
    fn nearest<T>(&self, ask: impl Fn(&Path) -> Result<T, Errno>) -> Result<T, Errno> {
        let mut path = self.base.path().as_path();
        loop {
            match (ask(path), path.parent()) {
                (Err(Errno::NOENT), Some(parent)) => path = parent,
                (done, _) => return done,
            }
        }
    }

    /// What stands in the way of using the base, found out without changing anything in it.
    pub(crate) fn problems(&self) -> Vec<Error> {
        let base = match self.base.open() {
            Ok(Some(base)) => base,
            // The first volume makes it, if it can be made.
            Ok(None) => {
                self.base.warn_without_record();
                let access = Access::WRITE_OK | Access::EXEC_OK;
                let made = self.nearest(|path| accessat(CWD, path, access, AtFlags::EACCESS));
                let doing = || format!("creating the base directory {}", self.base.path());
                return made
                    .err()
                    .map(|errno| failed(doing(), errno))
                    .into_iter()
                    .collect();
            }
            Err(error) => return vec![error],
        };
        self.base.warn_without_record();
        let doing = |path: &str| format!("using {}{path}", self.base.path());
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
            let checked = accessat(&dir, ".", access, AtFlags::EACCESS);
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
                base = %self.base.path(),
                "the filesystem keeps no extended attributes: sizes of volumes are not remembered"
            );
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Creation;
    use csi_types::AbsolutePath;

    #[test]
    fn an_object_that_was_replaced_is_no_longer_the_one_that_was_opened() {
        let top = tempfile::tempdir().expect("folder");
        let base = AbsolutePath::parse(top.path().to_str().expect("text")).expect("path");
        let store = Store::new(Base::new(base, Creation::IfNeverUsed, None));
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
