//! Unmounting what may not answer.
//!
//! An unmount, or a look at what is mounted, can wait for a server for ever. It gets a share of the
//! time; then, if the mount table says that the filesystem depends on somebody else, what waits for
//! it is told that it failed and the mount is taken out of sight, and the work is tried again. The
//! same is done if somebody uses it who will never come back from there, as our own looks do. Where
//! the same filesystem is mounted elsewhere nobody is told anything: others use it there. One on a
//! device always answers in the end, and is never treated so. Whoever works on other volumes is on
//! other threads.

use std::time::Duration;

use tokio::time::Instant;

use super::mount_failed;
use super::slot::is_lost;
use crate::blocking::{self, Doing, Terms};
use crate::mount::{self, MountEntry, MountTable, Place, as_listed};
use csi_types::attachment::AbsolutePath;
use csi_types::error::{Error, Kind};

/// More layers than anybody stacks.
const LAYERS: usize = 64;

/// Runs `work`, which unmounts what is at or directly below `path`.
pub(super) async fn patiently<T: Send + 'static>(
    terms: &Terms,
    doing: &str,
    path: &AbsolutePath,
    patience: Duration,
    work: impl Fn() -> Result<T, Error> + Clone + Send + 'static,
) -> Result<T, Error> {
    let now = Instant::now();
    let share = patience.min(terms.deadline().saturating_duration_since(now) / 2);
    let first = run(&terms.no_later_than(now + share), doing, work.clone()).await;
    let Err(error) = first else { return first };
    let is_silent = match error.kind() {
        Kind::Timeout => true,
        Kind::Busy => !answers(&terms.no_later_than(Instant::now() + share), path).await,
        _ => false,
    };
    if !is_silent || terms.deadline() <= Instant::now() {
        return Err(error);
    }
    let silent = path.clone();
    // The kernel says goodbye to a server of NFS 4 even then, for minutes if that is silent.
    let soon = terms.no_later_than(Instant::now() + share);
    let forced = run(&soon, doing, move || take_away(&silent)).await?;
    if forced == 0 {
        return Err(error);
    }
    run(terms, doing, work).await
}

async fn run<T: Send + 'static>(
    terms: &Terms,
    doing: &str,
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    blocking::run(terms.clone(), Doing::changing(doing.to_owned()), work).await
}

/// Whether whatever is mounted at `path` lets itself be looked at. What depends on nobody else is not
/// even asked.
async fn answers(terms: &Terms, path: &AbsolutePath) -> bool {
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
    let answered = blocking::run(terms.clone(), Doing::reading(doing), work).await;
    answered.unwrap_or(false)
}

/// Takes every filesystem at `path` that depends on somebody else out of sight, from the top; says
/// how many there were.
fn take_away(path: &AbsolutePath) -> Result<usize, Error> {
    let point = as_listed(path.as_path());
    for count in 0..LAYERS {
        let table = MountTable::read().map_err(|error| {
            Error::new(Kind::Internal, format!("find what is mounted at `{path}`")).because(error)
        })?;
        let Some(top) = table.layers(&point).last().filter(MountEntry::is_remote) else {
            return Ok(count);
        };
        // Volumes of one share are one filesystem: what waits for the others goes on waiting.
        let is_shared = table
            .entries()
            .any(|other| other.device == top.device && !table.is_same_mount(&other, &top));
        tracing::warn!(%path, is_shared, "the filesystem that is mounted there does not answer; it is taken away by force");
        let taken = if is_shared {
            mount::unmount_dead(path.as_path())
        } else {
            mount::unmount_silent(path.as_path())
        };
        taken.map_err(|error| mount_failed(format!("unmount `{path}` by force"), error))?;
    }
    Ok(LAYERS)
}
