//! The two collections in the base directory: `v` for volumes, `s` for snapshots.
//!
//! Every call opens the base and a collection anew, so that the base may be unmounted and mounted between
//! calls; see [`crate::base`]. Reading never makes anything in the base. The first call that makes
//! something makes what is missing.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use driver_core::config::Finding;
use driver_core::{Call, Error, Kind};
use node_utils::Root;
use node_utils::beneath::{Mounts, open_beneath};
use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags, Statx, StatxFlags, accessat};
use rustix::io::Errno;

use crate::base::Base;
use crate::collection::Collection;
use crate::crash_points;
use crate::digest::object_digest;
use crate::disk;
use crate::failure::{change, failed};
use crate::lock::LockFile;
use crate::quota::{self, Enforce, Quotas};
use crate::record;
use crate::share;
use crate::staging_area::{PRIVATE, StagingArea, passes_on_project};

/// Whether what is there may be removed.
type MayGo<'a> = &'a dyn Fn(&OwnedFd) -> Result<bool, Error>;

/// The time that a call gives to the leftovers of others. It delays the answer, and what is left is for the next call.
const CLEANUP_TIME: Duration = Duration::from_secs(1);

const IS_A_LINK: &str = "it is a symbolic link, which is never followed";

/// The base directory of one driver.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) base: Base,
    pub(crate) staging_area: StagingArea,
    quotas: Quotas,
    warned_of_quotas: AtomicBool,
    warned_of_doubts: AtomicBool,
}

// === impl Store ===

impl Store {
    pub(crate) fn new(base: Base, quotas: Quotas) -> Self {
        Self {
            base,
            staging_area: StagingArea::new(quotas),
            quotas,
            warned_of_quotas: AtomicBool::new(false),
            warned_of_doubts: AtomicBool::new(false),
        }
    }

    /// Opens a base that is in use.
    pub(crate) fn open(&self) -> Result<Root, Error> {
        self.base.open()?.ok_or_else(|| {
            Error::new(Kind::Unreachable, format!("opening {}", self.base.path()))
                .because("it is not in use any more")
        })
    }

    /// Opens a collection; `None` if there is none yet.
    pub(crate) fn collection(&self, collection: Collection) -> Result<Option<OwnedFd>, Error> {
        let base = self.base.open()?;
        base.map_or(Ok(None), |base| Self::collection_in(&base, collection))
    }

    fn collection_in(base: &Root, collection: Collection) -> Result<Option<OwnedFd>, Error> {
        let fail = |errno| {
            failed(
                format!("opening {}", base.path().child(collection.dir())),
                errno,
            )
        };
        match disk::open_path(base, collection.dir()) {
            Ok(fd) => Ok(Some(fd)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno @ (Errno::NOTDIR | Errno::LOOP)) => {
                Err(fail(errno).advise("it has to be a directory, not a link"))
            }
            Err(errno) => Err(fail(errno)),
        }
    }

    /// Opens a collection for making something in it. What is missing is made; an empty base and an empty
    /// collection are no objects, so this is not yet a change.
    pub(crate) fn open_or_create(&self, collection: Collection) -> Result<OwnedFd, Error> {
        let base = self.base.open_or_create()?;
        if let Some(fd) = Self::collection_in(&base, collection)? {
            return Ok(fd);
        }
        let fail = |errno| {
            failed(
                format!("making {}", base.path().child(collection.dir())),
                errno,
            )
        };
        disk::ensure_dir(&base, collection.dir(), 0o755).map_err(fail)?;
        crash_points::mark("make collection");
        Self::collection_in(&base, collection)?.ok_or_else(|| fail(Errno::NOENT))
    }

    /// Opens an object for reading. `None` if there is none of exactly that name, or something else than a directory.
    pub(crate) fn find(
        on: impl AsFd,
        collection: Collection,
        name: &str,
    ) -> Result<Option<OwnedFd>, Error> {
        let Some(found) = Self::listed(&on, collection, name)? else {
            return Ok(None);
        };
        match disk::is_spelled(&on, name) {
            Ok(spelled) => Ok(spelled.then_some(found)),
            Err(errno) => Err(failed(
                format!("looking for {} {name}", collection.noun()),
                errno,
            )),
        }
    }

    /// The same with a name from a list of the collection.
    pub(crate) fn listed(
        on: impl AsFd,
        collection: Collection,
        name: &str,
    ) -> Result<Option<OwnedFd>, Error> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        match open_beneath(on, name, flags, Mounts::Enter) {
            Ok(dir) => Ok(Some(dir)),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            Err(errno) => Err(failed(
                format!("opening {} {name}", collection.noun()),
                errno,
            )),
        }
    }

    /// The same where the collection is not open yet.
    pub(crate) fn look_for(
        &self,
        collection: Collection,
        name: &str,
    ) -> Result<Option<OwnedFd>, Error> {
        self.collection(collection)?
            .map_or(Ok(None), |on| Self::find(&on, collection, name))
    }

    /// Whether the open object still is the one with that name; an error where that cannot be seen.
    pub(crate) fn still_exists(
        &self,
        collection: Collection,
        name: &str,
        dir: &OwnedFd,
    ) -> Result<bool, Error> {
        let doing = || format!("looking for {} {name} again", collection.noun());
        let Some(on) = Self::collection_in(&self.open()?, collection)? else {
            return Ok(false);
        };
        let wanted = StatxFlags::INO | StatxFlags::MNT_ID;
        let now = match rustix::fs::statx(&on, name, AtFlags::SYMLINK_NOFOLLOW, wanted) {
            Ok(now) => now,
            Err(Errno::NOENT) => return Ok(false),
            Err(errno) => return Err(failed(doing(), errno)),
        };
        let then = rustix::fs::statx(dir, c"", AtFlags::EMPTY_PATH, wanted)
            .map_err(|errno| failed(doing(), errno))?;
        if now.stx_mnt_id != then.stx_mnt_id {
            return Err(Error::new(Kind::Busy, doing())
                .because("its filesystem was mounted again in the meantime"));
        }
        let identity = |stat: &Statx| (stat.stx_dev_major, stat.stx_dev_minor, stat.stx_ino);
        Ok(identity(&now) == identity(&then))
    }

    /// The error when a name is taken by no directory.
    pub(crate) fn taken(on: impl AsFd, name: &str, doing: &str) -> Error {
        if disk::is_spelled(&on, name) == Ok(false) {
            return Error::new(Kind::Conflict, doing)
                .because("another one has its name but for case, which its filesystem ignores");
        }
        match rustix::fs::statat(on, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Error::new(Kind::Pending, doing)
                .because("another process is making and deleting it at the same time"),
            _ => Error::new(Kind::Conflict, doing)
                .because("something else than a directory has its name"),
        }
    }

    /// The error when there is no directory of that name. Behind a link there may be the data, so it is named.
    pub(crate) fn missing(&self, collection: Collection, name: &str) -> Error {
        let missing = Error::not_found(format!("{} {name}", collection.noun()));
        let on = self.collection(collection).ok().flatten();
        match on.and_then(|on| rustix::fs::readlinkat(on, name, Vec::new()).ok()) {
            Some(_) => missing.because(IS_A_LINK),
            None => missing,
        }
    }

    /// The error when a name to delete is taken by no directory. compat: "local-hostpath": behind a
    /// link there may be the data of the volume, and to say that they are deleted would be wrong.
    fn undeletable(on: &OwnedFd, collection: Collection, name: &str) -> Error {
        let why = match rustix::fs::readlinkat(on, name, Vec::new()) {
            Ok(_) => IS_A_LINK,
            Err(_) => "it is not a directory",
        };
        let entry = format!("{}/{name}", collection.dir());
        Error::new(Kind::Busy, format!("deleting {} {name}", collection.noun()))
            .because(why)
            .advise(format!(
                "nothing was deleted: remove the data by hand, then `{entry}` in the base directory"
            ))
    }

    /// Removes an object. One that is not there is removed.
    pub(crate) fn remove(
        &self,
        call: &Call,
        collection: Collection,
        name: &str,
    ) -> Result<(), Error> {
        let removed = self.try_remove(call, (collection, name), None);
        self.clean_up(CLEANUP_TIME);
        removed
    }

    /// The same if `may_go` says so of what is found. Nothing gets the name between this look and the removal: who
    /// gives one to a snapshot holds the same lock.
    pub(crate) fn remove_if(
        &self,
        call: &Call,
        (collection, name): (Collection, &str),
        may_go: MayGo<'_>,
    ) -> Result<(), Error> {
        let removed = self.try_remove(call, (collection, name), Some(may_go));
        self.clean_up(CLEANUP_TIME);
        removed
    }

    fn try_remove(
        &self,
        call: &Call,
        (collection, name): (Collection, &str),
        may_go: Option<MayGo<'_>>,
    ) -> Result<(), Error> {
        let Some(base) = self.base.open_to_delete()? else {
            return Ok(());
        };
        let Some(on) = Self::collection_in(&base, collection)? else {
            return Ok(());
        };
        let is_over = match may_go {
            None => self.take_away(call, (&base, &on), (collection, name))?,
            // An earlier call may not have got to the end.
            Some(_) if disk::is_absent(&on, name) => false,
            Some(may_go) => {
                let _turn = self.turn(call, &base, (collection, name))?;
                let may_go = match Self::find(&on, collection, name)? {
                    Some(found) => may_go(&found)?,
                    None => true,
                };
                !may_go || self.take_away(call, (&base, &on), (collection, name))?
            }
        };
        if is_over || disk::open_path(&base, PRIVATE).is_err() {
            return Ok(());
        }
        let staging = self.staging_area.open(&base)?;
        staging.finish_removal(call, collection.dir(), name)
    }

    /// The lock that is held while a snapshot gets its name. Where there are no locks none gets one.
    fn turn(
        &self,
        call: &Call,
        base: &Root,
        (collection, name): (Collection, &str),
    ) -> Result<Option<LockFile>, Error> {
        match self.staging_area.open(base)?.lock_names(call) {
            Ok(turn) => Ok(Some(turn)),
            Err(Errno::NOLCK | Errno::NOSYS | Errno::OPNOTSUPP) => Ok(None),
            Err(errno) => {
                let doing = format!("deleting {} {name}", collection.noun());
                Err(failed(doing, errno))
            }
        }
    }

    /// Takes the name of an object away. `true` if nothing is left to be done.
    fn take_away(
        &self,
        call: &Call,
        (base, on): (&Root, &OwnedFd),
        (collection, name): (Collection, &str),
    ) -> Result<bool, Error> {
        let fail = |errno| failed(format!("deleting {} {name}", collection.noun()), errno);
        // What is found under it otherwise is another one, and stays.
        if !disk::is_spelled(on, name).map_err(fail)? {
            return Ok(true);
        }
        let dir = self.quotas.opened(on, name);
        // Most volumes that are deleted are empty: then this one call is all.
        match change(call, || rustix::fs::unlinkat(on, name, AtFlags::REMOVEDIR)) {
            Ok(()) => {
                crash_points::mark("remove empty");
                if let Some(dir) = dir {
                    let digest = object_digest(collection.dir(), name);
                    let subvolume = self.quotas.release(&dir, &digest);
                    self.staging_area.stale_qgroups.add(subvolume);
                }
                return Ok(true);
            }
            Err(Errno::NOTDIR) => return Err(Self::undeletable(on, collection, name)),
            Err(Errno::NOTEMPTY | Errno::EXIST) => {
                let staging = self.staging_area.open(base)?;
                match change(call, || {
                    staging.to_trash(on.as_fd(), name, collection.dir())
                }) {
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(errno) => return Err(fail(errno)),
                }
            }
            // It was moved away; perhaps an earlier call did not get to the end.
            Err(Errno::NOENT) => {}
            // The kernel checks for permission to write before it looks whether there is anything.
            Err(Errno::ROFS | Errno::ACCESS | Errno::PERM) if disk::is_absent(on, name) => {}
            Err(errno) => return Err(fail(errno)),
        }
        Ok(false)
    }

    /// Removes leftovers of earlier work, if there can be any.
    pub(crate) fn clean_up(&self, time: Duration) {
        self.staging_area
            .clean_up(&self.base, time.max(CLEANUP_TIME));
    }

    /// The folder of the locks of this base.
    pub(crate) fn locks(&self) -> Result<OwnedFd, Error> {
        let base = self.open()?;
        let locks = self.staging_area.open(&base)?.locks();
        locks.map_err(|errno| failed(format!("opening the locks in {}", base.path()), errno))
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
                .base
                .nearest(|path| rustix::fs::statvfs(path))
                .map_err(fail)?,
        };
        Ok(space.f_bavail.saturating_mul(space.f_frsize))
    }

    /// The problems that stand in the way of using the base, found out without changing anything in it.
    pub(crate) fn problems(&self) -> Vec<Error> {
        let base = match self.base.open() {
            Ok(Some(base)) => base,
            // The first volume makes it, if it can be made.
            Ok(None) => {
                self.base.warn_without_record();
                let access = Access::WRITE_OK | Access::EXEC_OK;
                let made = self
                    .base
                    .nearest(|path| accessat(CWD, path, access, AtFlags::EACCESS));
                let doing = || format!("creating the base directory {}", self.base.path());
                let made = made.err().map(|errno| failed(doing(), errno));
                let made = made.or_else(|| self.base.refuse_passing().err());
                return made.into_iter().chain(self.quota_problem(None)).collect();
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
        problems.extend(self.quota_problem(Some(&base)));
        if !self.warned_of_doubts.swap(true, Ordering::Relaxed) {
            for doubt in self.doubts_of(&base) {
                let advice = doubt.advice.unwrap_or_default();
                tracing::warn!(base = %self.base.path(), "{}: {advice}", doubt.message);
            }
        }
        problems
    }

    /// A path for nodes that is not the base, and abilities that its filesystem lacks, without which something goes wrong
    /// only sometimes.
    pub(crate) fn doubts(&self) -> Vec<Finding> {
        let base = self.base.open().ok().flatten();
        base.map_or_else(Vec::new, |base| self.doubts_of(&base))
    }

    fn doubts_of(&self, base: &Root) -> Vec<Finding> {
        let path = self.base.path().to_string();
        let locks = self.base.option_that_loses_locks(base).map(|option| {
            let message = format!(
                "the share is mounted with `{option}`, which keeps locks from other machines"
            );
            Finding::doubtful(path.clone(), message, share::LOCKS_ADVICE)
        });
        let keeps_records = disk::open_dir(base, ".").is_ok_and(|dir| record::can_be_kept(&dir));
        let attributes = (!keeps_records).then(|| {
            Finding::doubtful(
                path,
                "the filesystem keeps no extended attributes",
                "sizes of volumes are not remembered; all else works",
            )
        });
        let misled = self.base.misled_nodes(base);
        let all = misled.into_iter().chain(locks);
        all.chain(attributes).collect()
    }

    /// Why the sizes of volumes in that directory cannot be enforced.
    pub(crate) fn quota_obstacle(&self, dir: BorrowedFd<'_>, doing: &str) -> Option<Error> {
        let passes_on = || self.open().is_ok_and(|base| passes_on_project(&base));
        let obstacle = self.quotas.obstacle(dir, doing);
        obstacle.or_else(|| passes_on().then(|| quota::passed_on(doing)))
    }

    /// Warns once: it is looked for with each volume, and regularly.
    pub(crate) fn warn_of_quotas(&self, error: &Error) {
        if !self.warned_of_quotas.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                base = %self.base.path(),
                error = error.chain(),
                "sizes of volumes are not enforced"
            );
        }
    }

    /// Why sizes of new volumes cannot be enforced, if they have to be.
    fn quota_problem(&self, base: Option<&Root>) -> Option<Error> {
        if self.quotas.enforce == Enforce::None {
            return None;
        }
        let dir = match base {
            Some(base) => disk::open_dir(base, Collection::Volumes.dir())
                .or_else(|_| disk::open_dir(base, ".")),
            None => self.base.nearest(|path| {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                rustix::fs::open(path, flags, Mode::empty())
            }),
        };
        let doing = format!("enforcing the sizes of volumes in {}", self.base.path());
        let error = match dir {
            Ok(dir) => self.quota_obstacle(dir.as_fd(), &doing)?,
            Err(errno) => failed(doing, errno),
        };
        if self.quotas.enforce == Enforce::Require {
            return Some(error);
        }
        self.warn_of_quotas(&error);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Creation;
    use crate::kind::DirectoryKind;
    use csi_types::AbsolutePath;

    #[test]
    fn an_object_that_was_replaced_is_no_longer_the_one_that_was_opened() {
        let top = tempfile::tempdir().expect("folder");
        let [base, records] = ["base", "records"].map(|name| top.path().join(name));
        std::fs::create_dir(&records).expect("folder");
        let text = |path: &std::path::Path| path.to_str().expect("text").to_owned();
        let [parsed, records] = [&base, &records].map(|path| AbsolutePath::parse(&text(path)));
        let kind = DirectoryKind::LocalHostpath;
        let records = Some(records.expect("path"));
        let store = Store::new(
            Base::new(kind, parsed.expect("path"), Creation::IfNeverUsed, records),
            Quotas::default(),
        );
        let path = base.join("v/one");
        store.open_or_create(Collection::Volumes).expect("in use");
        std::fs::create_dir(&path).expect("folder");
        let still = |dir: &OwnedFd| store.still_exists(Collection::Volumes, "one", dir);
        let find = || {
            let found = store.look_for(Collection::Volumes, "one");
            found.expect("found").expect("one")
        };
        let first = find();
        assert!(still(&first).expect("known"));
        std::fs::rename(&path, base.join("v/two")).expect("rename");
        assert!(!still(&first).expect("known"));
        std::fs::create_dir(&path).expect("folder");
        assert!(!still(&first).expect("known"));
        assert!(still(&find()).expect("known"));
        std::fs::rename(&base, top.path().join("away")).expect("rename");
        std::fs::create_dir(&base).expect("folder");
        let error = still(&first).expect_err("a base that is not there");
        assert_ne!(error.kind(), Kind::NotFound, "{}", error.chain());
    }
}
