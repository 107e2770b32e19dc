//! The base directory, opened for one call, and the two shelves in it: `v` for volumes, `s` for
//! snapshots.
//!
//! The base is opened anew by every call, so that it may be unmounted and mounted between calls.
//! Reading never makes anything; the first call that changes something makes what is missing.

use std::os::fd::{AsFd, OwnedFd};

use driver_core::{Call, Effect, Error, Kind, PageRequest, PageToken};
use node_utils::beneath::{BeneathError, BeneathErrorKind};
use node_utils::{AbsolutePath, Root};
use rustix::fs::{Access, AtFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::disk::{self, Mounts};
use crate::failure::{failed, failed_midway};
use crate::record::ATTRIBUTE;
use crate::stop;
use crate::workshop::{Bench, Workshop};

/// A page is never longer, whatever is asked for: a reply has to fit into 4 MiB.
const MAX_PAGE: usize = 10_000;

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

    /// Opens the base directory for making a volume; makes it if it is missing.
    pub(crate) fn open_or_make(&self, call: &Call) -> Result<Root, Error> {
        match Root::open(&self.base) {
            Err(error) if error.kind() == BeneathErrorKind::NotFound => {
                call.changing();
                std::fs::create_dir_all(self.base.as_path()).map_err(|error| {
                    let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
                    failed_midway(format!("making the base directory {}", self.base), errno)
                })?;
                stop::mark("make base");
                self.open()
            }
            done => done.map_err(|error| self.unopened(error)),
        }
    }

    fn unopened(&self, error: BeneathError) -> Error {
        let kind = match error.kind() {
            BeneathErrorKind::Denied => Kind::Denied,
            _ => Kind::Unreachable,
        };
        Error::new(kind, format!("opening the base directory {}", self.base))
            .because(error)
            .advise("controllerBasePath has to be a directory that this process can reach")
    }

    /// Opens the object `name` for reading; `None` if there is no directory of that name.
    pub(crate) fn find(base: &Root, shelf: Shelf, name: &str) -> Result<Option<OwnedFd>, Error> {
        let path = format!("{}/{name}", shelf.dir());
        match disk::open(
            base,
            path,
            OFlags::RDONLY | OFlags::DIRECTORY,
            Mounts::Enter,
        ) {
            Ok(dir) => Ok(Some(dir)),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            Err(errno) => Err(failed(format!("opening {} {name}", shelf.noun()), errno)),
        }
    }

    /// Whether the open object still is the one with that name.
    pub(crate) fn is_still(base: &Root, shelf: Shelf, name: &str, dir: &OwnedFd) -> bool {
        let path = format!("{}/{name}", shelf.dir());
        let now = rustix::fs::statat(base, path, AtFlags::SYMLINK_NOFOLLOW);
        match (now, rustix::fs::fstat(dir)) {
            (Ok(now), Ok(then)) => (now.st_dev, now.st_ino) == (then.st_dev, then.st_ino),
            _ => false,
        }
    }

    /// Opens a shelf for changing what lies on it; makes it if it is missing.
    pub(crate) fn shelf_to_change(base: &Root, shelf: Shelf) -> Result<OwnedFd, Error> {
        let open = || disk::open_path(base, shelf.dir());
        match open() {
            Err(Errno::NOENT) => disk::ensure_dir(base, shelf.dir(), 0o755).and_then(|()| open()),
            done => done,
        }
        .map_err(|errno| failed(format!("opening {}/{}", base.path(), shelf.dir()), errno))
    }

    /// Removes an object. One that is not there, or is no directory, is removed.
    pub(crate) fn remove(&self, call: &Call, shelf: Shelf, name: &str) -> Result<(), Error> {
        let doing = || format!("deleting {} {name}", shelf.noun());
        let base = self.open()?;
        let fd = match disk::open_path(&base, shelf.dir()) {
            Err(Errno::NOENT) => return Ok(()),
            done => done.map_err(|errno| failed(doing(), errno))?,
        };
        call.changing();
        // Most volumes that are deleted are empty: then this one call is all.
        match rustix::fs::unlinkat(&fd, name, AtFlags::REMOVEDIR) {
            Ok(()) => {
                stop::mark("remove empty");
                return Ok(());
            }
            Err(Errno::NOTEMPTY | Errno::EXIST) => {}
            // Not a directory, so not ours.
            Err(Errno::NOTDIR) => return Ok(()),
            Err(Errno::NOENT) => {
                // It was moved away; perhaps an earlier call did not get to the end.
                return match disk::open_path(&base, crate::workshop::PRIVATE) {
                    Ok(_) => Self::finish(call, &self.workshop.open(&base)?, shelf, name),
                    Err(_) => Ok(()),
                };
            }
            Err(errno) => return Err(failed(doing(), errno)),
        }
        let bench = self.workshop.open(&base)?;
        match bench.to_trash(fd.as_fd(), name, shelf.dir()) {
            Ok(()) | Err(Errno::NOENT) => Self::finish(call, &bench, shelf, name),
            Err(errno) => Err(failed(doing(), errno)),
        }
    }

    fn finish(call: &Call, bench: &Bench<'_>, shelf: Shelf, name: &str) -> Result<(), Error> {
        bench.finish_removal(call, shelf.dir(), name)?;
        bench.tidy(call);
        Ok(())
    }

    /// The directories on a shelf whose names pass `ours`, sorted, from `page.after` on; and where
    /// the next page begins.
    pub(crate) fn page(
        base: &Root,
        shelf: Shelf,
        page: &PageRequest,
        ours: impl Fn(&str) -> bool,
    ) -> Result<(Vec<String>, Option<PageToken>), Error> {
        let after = page
            .after
            .as_ref()
            .map(|token| read_token(shelf, token, &ours))
            .transpose()?;
        let doing = || format!("listing {}s", shelf.noun());
        let dir = match disk::open_dir(base, shelf.dir()) {
            Err(Errno::NOENT) => return Ok((Vec::new(), None)),
            done => done.map_err(|errno| failed(doing(), errno))?,
        };
        let mut names: Vec<String> = Vec::new();
        for (name, kind) in disk::entries(dir.as_fd()).map_err(|errno| failed(doing(), errno))? {
            let Ok(text) = name.to_str() else { continue };
            let later = after.as_deref().is_none_or(|after| text > after);
            if later && ours(text) && disk::is_dir(dir.as_fd(), &name, kind) {
                names.push(text.to_owned());
            }
        }
        names.sort_unstable();
        let max = page.max.unwrap_or(MAX_PAGE).clamp(1, MAX_PAGE);
        let next = (names.len() > max).then(|| write_token(shelf, &names[max - 1]));
        names.truncate(max);
        Ok((names, next))
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
            (crate::workshop::PRIVATE, "/.omnibus-csi"),
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

/// The token carries the sort of list, so that neither a name nor a token of another list passes.
fn write_token(shelf: Shelf, name: &str) -> PageToken {
    PageToken(format!("{}1/{name}", shelf.dir()))
}

fn read_token(
    shelf: Shelf,
    token: &PageToken,
    ours: impl Fn(&str) -> bool,
) -> Result<String, Error> {
    token
        .0
        .strip_prefix(shelf.dir())
        .and_then(|rest| rest.strip_prefix("1/"))
        .filter(|name| ours(name))
        .map(str::to_owned)
        .ok_or_else(|| {
            Error::new(Kind::Pending, format!("listing {}s", shelf.noun()))
                .because("the token is not one that this list gave")
                .with_effect(Effect::None)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_that_was_replaced_is_no_longer_the_one_that_was_opened() {
        let top = tempfile::tempdir().expect("folder");
        let base = AbsolutePath::parse(top.path().to_str().expect("text")).expect("path");
        let store = Store::new(base);
        let root = store.open().expect("base");
        let path = top.path().join("v/one");
        std::fs::create_dir_all(&path).expect("folders");
        let find = || {
            Store::find(&root, Shelf::Volumes, "one")
                .expect("found")
                .expect("one")
        };
        let first = find();
        assert!(Store::is_still(&root, Shelf::Volumes, "one", &first));
        std::fs::rename(&path, top.path().join("v/two")).expect("rename");
        assert!(!Store::is_still(&root, Shelf::Volumes, "one", &first));
        std::fs::create_dir(&path).expect("folder");
        assert!(!Store::is_still(&root, Shelf::Volumes, "one", &first));
        assert!(Store::is_still(&root, Shelf::Volumes, "one", &find()));
    }
}
