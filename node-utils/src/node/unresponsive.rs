//! Unmounting filesystems that may not respond.
//!
//! An unmount, or a read of a mount, can wait for a server forever. It gets a share of the time. After that, if the
//! mount table shows a remote filesystem, processes that wait for it get an error, the mount is detached, and the work
//! is tried again. The same is done if it is busy because of processes that will never return from it, such as our own
//! reads. If the same filesystem is mounted elsewhere it is only detached, because others use it there. A filesystem on
//! a device always responds in the end and is never treated like this. Work on other volumes uses other threads.

use std::time::Duration;

use tokio::time::Instant;

use super::mount_failed;
use super::mount_target::is_lost;
use crate::blocking::{self, Doing, Limits, Purpose};
use crate::mount::{self, MountEntry, MountTable, Place, as_listed};
use csi_types::attachment::AbsolutePath;
use csi_types::error::{Error, Kind};

/// An upper bound of stacked mounts.
const LAYERS: usize = 64;

/// Runs `work`, which unmounts what is at or directly below `path`.
pub(super) async fn unmount_or_force<T: Send + 'static>(
    limits: &Limits,
    doing: &str,
    path: &AbsolutePath,
    unmount_timeout: Duration,
    work: impl Fn() -> Result<T, Error> + Clone + Send + 'static,
) -> Result<T, Error> {
    let now = Instant::now();
    let share = unmount_timeout.min(limits.deadline().saturating_duration_since(now) / 2);
    let first = run(&limits.no_later_than(now + share), doing, work.clone()).await;
    let Err(error) = first else { return first };
    let is_silent = match error.kind() {
        Kind::Timeout => true,
        // Others that unmount from there wait already.
        _ if blocking::is_for_want_of_a_thread(&error) => true,
        Kind::Busy => !answers(&limits.no_later_than(Instant::now() + share), path).await,
        _ => false,
    };
    if !is_silent || limits.deadline() <= Instant::now() {
        return Err(error);
    }
    let silent = path.clone();
    // The kernel waits for a server of NFS 4 even then, for minutes if that does not respond.
    let soon = limits.no_later_than(Instant::now() + share);
    let forced = run(&soon, doing, move || take_away(&silent));
    let forced = blocking::meant_for(Purpose::Force, forced).await?;
    if forced == 0 {
        return Err(error);
    }
    let again = run(limits, doing, work).await;
    again.map_err(|error| error.after_change(true))
}

async fn run<T: Send + 'static>(
    limits: &Limits,
    doing: &str,
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    blocking::run(limits.clone(), Doing::changing(doing.to_owned()), work).await
}

/// Whether the filesystem mounted at `path` responds. Local filesystems are not asked.
async fn answers(limits: &Limits, path: &AbsolutePath) -> bool {
    let (look, doing) = (path.clone(), format!("look at `{path}`"));
    let work = move || {
        let point = as_listed(look.as_path());
        let table = MountTable::read().ok();
        let is_remote = table.is_some_and(|table| {
            table
                .layers(&point)
                .last()
                .is_some_and(|top| top.is_remote())
        });
        let errno = is_remote
            .then(|| Place::open(look.as_path()).and_then(rustix::fs::fstatvfs))
            .and_then(Result::err);
        Ok(!errno.is_some_and(is_lost))
    };
    let answered = blocking::run(limits.clone(), Doing::reading(doing), work).await;
    answered.unwrap_or(false)
}

/// Detaches every remote filesystem at `path`, from the top; returns how many.
pub(crate) fn take_away(path: &AbsolutePath) -> Result<usize, Error> {
    let point = as_listed(path.as_path());
    for count in 0..LAYERS {
        let table = MountTable::read().map_err(|error| {
            Error::new(Kind::Internal, format!("find what is mounted at `{path}`")).because(error)
        })?;
        let Some(top) = table.layers(&point).last().filter(MountEntry::is_remote) else {
            return Ok(count);
        };
        // Volumes of one share are one filesystem: processes that use the others must not be interrupted.
        let is_shared = table
            .entries()
            .any(|other| other.device == top.device && !table.is_same_mount(&other, &top));
        tracing::warn!(%path, is_shared, "the filesystem that is mounted there does not answer; it is taken away by force");
        let taken = if is_shared {
            mount::unmount_dead(path.as_path())
        } else {
            mount::unmount_silent(path.as_path())
        };
        taken.map_err(|error| {
            mount_failed(format!("unmount `{path}` by force"), error).after_change(count > 0)
        })?;
    }
    Ok(LAYERS)
}
