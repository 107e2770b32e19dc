//! Removing what was deleted, and what killed processes left.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use driver_core::{Call, Effect, Error, Kind};
use node_utils::beneath::{BeneathError, BeneathErrorKind};
use node_utils::{AbsolutePath, Component, Root};
use rustix::fs::AtFlags;
use rustix::io::Errno;

use super::{Bench, LockFile, MAKERS, MAKING, PASSING, PRIVATE, TRASH, Workshop, trash_prefix};
use crate::disk;
use crate::failure::failed;
use crate::stop;
use crate::store::Shelf;

// === impl Workshop ===

impl Workshop {
    /// Removes leftovers, if there can be any, for about that long: those in the trash, and what is
    /// in the making by a process that is dead. What time does not suffice for waits for the next
    /// call; what cannot be removed, for the next start.
    pub(crate) fn tidy(&self, base: &AbsolutePath, time: Duration) {
        if !self.untidy.swap(false, Ordering::AcqRel) {
            return;
        }
        let until = Instant::now() + time;
        let tidied = Root::open(base)
            .map_err(|error| Error::new(Kind::Unreachable, "removing leftovers").because(error))
            .and_then(|base| self.remove_leftovers(&base, until));
        match tidied {
            Ok(()) => {}
            Err(error) if error.kind() == Kind::Timeout => {
                self.untidy.store(true, Ordering::Release);
                tracing::info!(base = %base, "leftovers of earlier work remain for the next call");
            }
            Err(error) => tracing::warn!(
                base = %base,
                error = error.chain(),
                "leftovers of earlier work remain until the next start"
            ),
        }
    }

    fn remove_leftovers(&self, base: &Root, until: Instant) -> Result<(), Error> {
        let fail = |errno| failed(format!("removing leftovers in {}", base.path()), errno);
        let private = match disk::open_path(base, PRIVATE) {
            Err(Errno::NOENT) => None,
            done => Some(done.map_err(fail)?),
        };
        let makers = private.map(|private| disk::open_path(private, MAKERS));
        let makers = match makers {
            None | Some(Err(Errno::NOENT)) => None,
            Some(done) => Some(done.map_err(fail)?),
        };
        let is_left = |name: &str| {
            let maker = name.split('.').next().unwrap_or(name);
            let held = makers
                .as_ref()
                .is_some_and(|makers| LockFile::is_held(makers, maker) != Ok(false));
            maker != self.maker && !held
        };
        remove_passing(base, &is_left).map_err(fail)?;
        if makers.is_none() {
            return Ok(());
        }
        let bench = self.open(base)?;
        bench.clear_making(&is_left).map_err(fail)?;
        bench.remove_dead_locks().map_err(fail)?;
        bench.empty_trash("", &|| Instant::now() >= until)
    }
}

/// Removes empty volumes that nobody gave a name. One that a living process is just making is made
/// again by it at once.
fn remove_passing(base: &Root, is_left: &dyn Fn(&str) -> bool) -> Result<(), Errno> {
    let shelf = match disk::open_dir(base, Shelf::Volumes.dir()) {
        Err(Errno::NOENT) => return Ok(()),
        done => done?,
    };
    for (name, _) in disk::entries(shelf.as_fd())? {
        let passing = name
            .to_str()
            .ok()
            .and_then(|name| name.strip_prefix(PASSING));
        if passing.is_some_and(is_left) {
            let _ = rustix::fs::unlinkat(&shelf, name.as_c_str(), AtFlags::REMOVEDIR);
        }
    }
    Ok(())
}

// === impl Bench ===

impl Bench<'_> {
    fn clear_making(&self, is_left: &dyn Fn(&str) -> bool) -> Result<(), Errno> {
        let making = disk::open_dir(&self.private, MAKING)?;
        // The list comes first: whose lock is free after that has nothing in it that lives.
        for (name, _) in disk::entries(making.as_fd())? {
            let Some(name) = name.to_str().ok().filter(|name| is_left(name)) else {
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
        let makers = disk::open_dir(&self.private, MAKERS)?;
        for (name, _) in disk::entries(makers.as_fd())? {
            if let Ok(name) = name.to_str() {
                LockFile::remove_unheld(makers.as_fd(), name)?;
            }
        }
        Ok(())
    }

    /// Takes apart what was `name` on `shelf`, including what an earlier call did not finish.
    pub(crate) fn finish_removal(&self, call: &Call, shelf: &str, name: &str) -> Result<(), Error> {
        self.empty_trash(&trash_prefix(shelf, name), &|| call.remaining().is_zero())
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
                stop::mark("remove");
                stop()
            };
            match trash.remove_tree(&name, &stop) {
                Ok(_) => {}
                Err(error) if error.kind() == BeneathErrorKind::Interrupted => {
                    return Err(wrong(error));
                }
                Err(error) => outcome = Err(wrong(error)),
            }
        }
        outcome
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
