//! Removing what was deleted, and what killed processes left.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use driver_core::{Call, Effect, Error, Kind};
use node_utils::beneath::{BeneathError, BeneathErrorKind};
use node_utils::{Component, Root};
use rustix::fs::AtFlags;
use rustix::io::Errno;

use super::{LOCKS, MAKING, OpenStagingArea, PRIVATE, SHARED_LOCKS, StagingArea, TEMPORARY, TRASH};
use crate::base::{self, Base};
use crate::collection::Collection;
use crate::crash_points;
use crate::digest::object_digest;
use crate::disk;
use crate::failure::failed;
use crate::lock::MakerLock;
use crate::quota;

// === impl StagingArea ===

impl StagingArea {
    /// Removes leftovers, if there can be any, for about that long: those in the trash, and what is
    /// in the making by a process that is dead. What time does not suffice for waits for the next
    /// call; what cannot be removed, for the next start.
    pub(crate) fn clean_up(&self, base: &Base, time: Duration) {
        self.remove_qgroups(base);
        if !self.needs_cleanup.swap(false, Ordering::AcqRel) {
            return;
        }
        let until = Instant::now() + time;
        let Ok(Some(root)) = base.open() else {
            self.needs_cleanup.store(true, Ordering::Release);
            return;
        };
        let base = base.path();
        match self.remove_leftovers(&root, until) {
            Ok(()) => {}
            Err(error) if error.kind() == Kind::Timeout || self.has_undiscarded() => {
                self.needs_cleanup.store(true, Ordering::Release);
                tracing::info!(base = %base, "leftovers of earlier work remain for the next call");
            }
            Err(error) => tracing::warn!(
                base = %base,
                error = error.chain(),
                "leftovers of earlier work remain until the next start"
            ),
        }
    }

    fn remove_qgroups(&self, base: &Base) {
        if !self.stale_qgroups.is_empty()
            && let Ok(Some(root)) = base.open()
            && let Ok(dir) = disk::open_dir(&root, ".")
        {
            self.stale_qgroups.remove(&dir);
        }
    }

    fn remove_leftovers(&self, base: &Root, until: Instant) -> Result<(), Error> {
        let fail = |errno| failed(format!("removing leftovers in {}", base.path()), errno);
        base::remove_leftovers(base).map_err(fail)?;
        let private = match disk::open_path(base, PRIVATE) {
            Err(Errno::NOENT) => None,
            done => Some(done.map_err(fail)?),
        };
        let locks = private.map(|private| disk::open_path(private, LOCKS));
        let locks = match locks {
            None | Some(Err(Errno::NOENT)) => None,
            Some(done) => Some(done.map_err(fail)?),
        };
        let is_leftover = |name: &str| {
            let instance = name.split('.').next().unwrap_or(name);
            let held = locks
                .as_ref()
                .is_some_and(|locks| MakerLock::is_held(locks, instance) != Ok(false));
            !self.is_own(instance) && !held
        };
        self.remove_temporary(base, &is_leftover).map_err(fail)?;
        if locks.is_none() {
            return Ok(());
        }
        let staging = self.open(base)?;
        staging.clear_undiscarded().map_err(fail)?;
        staging.clear_making(&is_leftover).map_err(fail)?;
        staging.remove_dead_locks().map_err(fail)?;
        staging.empty_trash("", &|| Instant::now() >= until)
    }

    /// Removes empty volumes that never got their name. If a running process is just making one, it makes
    /// it again.
    fn remove_temporary(
        &self,
        base: &Root,
        is_leftover: &dyn Fn(&str) -> bool,
    ) -> Result<(), Errno> {
        let collection = match disk::open_dir(base, Collection::Volumes.dir()) {
            Err(Errno::NOENT) => return Ok(()),
            done => done?,
        };
        for (name, _) in disk::entries(collection.as_fd())? {
            let Ok(name) = name.to_str() else { continue };
            if !name.strip_prefix(TEMPORARY).is_some_and(is_leftover) {
                continue;
            }
            let opened = self.quotas.opened(&collection, name);
            let removed = rustix::fs::unlinkat(&collection, name, AtFlags::REMOVEDIR);
            if let (Some(dir), Ok(())) = (opened, removed) {
                self.stale_qgroups.add(quota::subvolume(&dir));
            }
        }
        Ok(())
    }
}

// === impl OpenStagingArea ===

impl OpenStagingArea<'_> {
    /// Discards what this process could not discard when its storage was away.
    fn clear_undiscarded(&self) -> Result<(), Errno> {
        let names: Vec<String> = self.area.undiscarded().iter().cloned().collect();
        for name in names {
            match self.to_trash(self.making.as_fd(), &name, MAKING) {
                Ok(()) | Err(Errno::NOENT) => self.area.undiscarded().remove(&name),
                Err(errno) => return Err(errno),
            };
        }
        Ok(())
    }

    fn clear_making(&self, is_leftover: &dyn Fn(&str) -> bool) -> Result<(), Errno> {
        let making = disk::open_dir(&self.private, MAKING)?;
        // The list comes first. A process whose lock is free after that has no work in it any more.
        for (name, _) in disk::entries(making.as_fd())? {
            let Some(name) = name.to_str().ok().filter(|name| is_leftover(name)) else {
                continue;
            };
            match self.to_trash(making.as_fd(), name, MAKING) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    fn remove_dead_locks(&self) -> Result<(), Errno> {
        let locks = disk::open_dir(&self.private, LOCKS)?;
        for (name, _) in disk::entries(locks.as_fd())? {
            match name.to_str() {
                Ok(name) if !SHARED_LOCKS.contains(&name) => {
                    MakerLock::remove_unheld(locks.as_fd(), name)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Takes apart what was `name` on `collection`, including what an earlier call did not finish.
    pub(crate) fn finish_removal(
        &self,
        call: &Call,
        collection: &str,
        name: &str,
    ) -> Result<(), Error> {
        self.empty_trash(&object_digest(collection, name), &|| {
            call.remaining().is_zero()
        })
    }

    /// Takes apart what in the trash begins with `prefix`. What cannot be removed does not keep the
    /// rest.
    fn empty_trash(&self, prefix: &str, stop: &dyn Fn() -> bool) -> Result<(), Error> {
        let doing = || format!("removing what was deleted in {}", self.base.path());
        let wrong = |error: BeneathError| {
            let denied = error.kind() == BeneathErrorKind::Denied;
            let error = Error::new(kind(error.kind()), doing())
                .because(error)
                .with_effect(Effect::Possible);
            if denied {
                return error.advise("is it immutable? `chattr -i -a` makes it removable");
            }
            error
        };
        let component = |name: &str| {
            Component::parse(name).map_err(|e| Error::new(Kind::Internal, doing()).because(e))
        };
        let private = self.base.open_dir(&component(PRIVATE)?).map_err(wrong)?;
        let trash = private.open_dir(&component(TRASH)?).map_err(wrong)?;
        let mut outcome = Ok(());
        for name in trash.list().map_err(wrong)? {
            if !name.as_str().starts_with(prefix) {
                continue;
            }
            let stop = || {
                crash_points::mark("remove");
                stop()
            };
            // Not open any more when it is removed: its blocks would stay.
            let subvolume = self.release(&trash, name.as_str());
            match trash.remove_tree(&name, &stop) {
                Ok(_) => self.area.stale_qgroups.add(subvolume),
                Err(error) if error.kind() == BeneathErrorKind::Interrupted => {
                    return Err(wrong(error));
                }
                Err(error) => outcome = Err(wrong(error)),
            }
        }
        outcome
    }

    /// Takes the limit of what is going to be removed from the trash away; gives the subvolume that it is.
    fn release(&self, trash: &Root, name: &str) -> Option<u64> {
        let (volume, _) = name.split_once('.')?;
        let dir = self.area.quotas.opened(trash, name)?;
        self.area.quotas.release(&dir, volume)
    }
}

fn kind(kind: BeneathErrorKind) -> Kind {
    match kind {
        BeneathErrorKind::Interrupted => Kind::Timeout,
        BeneathErrorKind::Busy => Kind::Busy,
        BeneathErrorKind::NoSpace => Kind::OutOfSpace,
        _ => Kind::Internal,
    }
}
