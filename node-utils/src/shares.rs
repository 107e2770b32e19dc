//! Shares that this process mounts for itself and keeps mounted, such as the base of a controller.
//!
//! They are mounted as the node mounts volumes, by [`crate::mounting`]. Each use looks first whether the
//! share is mounted and answers, on a thread of its own and within a bounded time. One that does not
//! answer is waited for, as long as copies on it move bytes or a failover of its server may take. After that it is
//! taken away, which ends the calls that wait for it, and is mounted again.
//!
//! What this process has mounted is unmounted when its last user is dropped, and by [`unmount_all`] at the
//! end of the program. What was mounted before is used as it is, and stays.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::fs::{AtFlags, StatxFlags};
use rustix::io::Errno;
use rustix::thread::CapabilitySet;
use tokio::time::Instant;

use crate::mount::{self, MountTable, Place, as_listed};
use crate::mounting::{self, MountRequest};
use crate::node::take_away;
use crate::tools::Tools;
use csi_types::attachment::{AbsolutePath, Attachment};
use csi_types::capability::MountAccess;
use csi_types::error::{Error, Kind};
use csi_types::secrets::StageSecrets;

/// The time that a mounted share may take to answer. As long as a caller waits for a thread.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);
/// The time that a share may be silent, with no copy on it that moves bytes, before it is taken away. A failover of a
/// server takes up to two minutes.
const PATIENCE: Duration = Duration::from_mins(3);
/// What it is left at least where a call has less time than that, and needs the rest to mount it again.
const LEAST: Duration = Duration::from_secs(5);
/// The time that an answer counts. A copy of many files asks once, and not for each.
const FRESH: Duration = Duration::from_secs(1);
/// The time that the kernel may take to let go of a share. Without open files it does so at once.
const LETS_GO_WITHIN: Duration = Duration::from_secs(5);

/// The mounts of this process, by path. Several users of one path share what is mounted there.
static POINTS: Mutex<BTreeMap<AbsolutePath, Point>> = Mutex::new(BTreeMap::new());

/// A share, and where it is mounted while it is used.
#[derive(Debug)]
pub struct ShareMount {
    tools: Tools,
    attachment: Attachment,
    access: MountAccess,
    point: AbsolutePath,
    is_own_folder: bool,
    answers_within: Duration,
    patience: Duration,
    /// Since when it has not answered, if it does not.
    silent_since: Mutex<Option<Instant>>,
    /// One attempt at a time, and how the last one ended.
    turn: tokio::sync::Mutex<Option<Failure>>,
    /// When it answered last.
    answered: Mutex<Option<Instant>>,
}

/// One path at which this process may mount.
#[derive(Debug, Default)]
struct Point {
    users: usize,
    /// The way it was mounted by this process; `None` if it was not.
    mounted: Option<MountAccess>,
    is_own_folder: bool,
    /// Folders that were made to mount it, the outermost first.
    made: Vec<PathBuf>,
}

/// The number of a filesystem, as `stat` and the mount table show it.
type FilesystemId = (u32, u32);

/// When copies on these filesystems moved bytes last.
static MOVED: Mutex<BTreeMap<FilesystemId, Instant>> = Mutex::new(BTreeMap::new());

/// A copy on a filesystem. While it moves bytes, a share is not taken for one that hangs.
#[derive(Debug, Clone, Copy)]
pub struct CopyActivity(Option<FilesystemId>);

/// Why the last attempt failed: those that waited for it do not try the same again.
#[derive(Debug)]
struct Failure {
    at: Instant,
    cause: String,
    advice: Option<String>,
}

/// The state of the path.
enum State {
    Nothing,
    Answers,
    /// This share, which has to be mounted again.
    Stale(Stale),
    /// Something else, from this source.
    Other(String),
}

/// Why a share is mounted again.
enum Stale {
    /// It cannot be used as it is mounted.
    Unusable(String),
    /// It has options that this only user of it no longer has.
    Changed,
}

/// The process may not mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this process may not mount: it needs root and the capability CAP_SYS_ADMIN")]
pub struct MayNotMount;

/// Whether this process may mount at all.
pub fn may_mount() -> Result<(), MayNotMount> {
    match rustix::thread::capabilities(None) {
        Ok(sets) if !sets.effective.contains(CapabilitySet::SYS_ADMIN) => Err(MayNotMount),
        _ => Ok(()),
    }
}

/// Unmounts all that this process has mounted for itself: for the end of the program.
pub fn unmount_all(time: Duration) {
    let (done, all) = std::sync::mpsc::channel();
    let mounted = {
        let mut points = points();
        let mounted = points.iter_mut();
        let mounted = mounted.filter_map(|(path, point)| {
            let made = point.folders(path);
            point.mounted.take().map(|_| (path.clone(), made))
        });
        mounted.collect::<Vec<_>>()
    };
    let count = mounted.len();
    for (path, made) in mounted {
        let done = done.clone();
        // One that hangs must not keep the others.
        std::thread::spawn(move || {
            unmount(&path, &made);
            let _ = done.send(());
        });
    }
    let end = std::time::Instant::now() + time;
    for _ in 0..count {
        let left = end.saturating_duration_since(std::time::Instant::now());
        if all.recv_timeout(left).is_err() {
            break;
        }
    }
}

fn points() -> MutexGuard<'static, BTreeMap<AbsolutePath, Point>> {
    POINTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Detaches what this process has mounted: its server is not waited for. `made` are the folders to be removed, the
/// outermost first.
fn unmount(path: &AbsolutePath, made: &[PathBuf]) {
    match mount::unmount_dead(path.as_path()) {
        Ok(_) => tracing::info!(%path, "unmounted the share"),
        Err(error) => tracing::warn!(%path, error = %error, "the share cannot be unmounted"),
    }
    remove_folders(made);
}

/// Removes folders that are empty, and that nothing is mounted at.
fn remove_folders(made: &[PathBuf]) {
    for folder in made.iter().rev() {
        let _ = std::fs::remove_dir(folder);
    }
}

/// Runs `work`, which may hang, on a thread of its own: those of the connection may all hang already.
async fn on_own_thread<T: Send + 'static>(
    until: Instant,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (done, outcome) = tokio::sync::oneshot::channel();
    let span = tracing::Span::current();
    let thread = std::thread::Builder::new().name("share".to_owned());
    let started = thread.spawn(move || {
        let _ = done.send(span.in_scope(work));
    });
    started.ok()?;
    tokio::time::timeout_at(until, outcome).await.ok()?.ok()
}

// === impl CopyActivity ===

impl CopyActivity {
    /// A copy to or from the filesystem of `fd`. Asks no server.
    pub fn on(fd: impl AsFd) -> Self {
        let at = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let found = rustix::fs::statx(fd, c"", at, StatxFlags::TYPE).ok();
        Self(found.map(|found| (found.stx_dev_major, found.stx_dev_minor)))
    }

    /// When a copy last moved bytes there.
    #[cfg(any(test, feature = "testing"))]
    pub fn last_moved(self) -> Option<Instant> {
        moved().get(&self.0?).copied()
    }

    /// Says that it has moved bytes just now.
    pub fn has_moved(self) {
        if let Some(device) = self.0 {
            moved().insert(device, Instant::now());
        }
    }
}

fn moved() -> MutexGuard<'static, BTreeMap<FilesystemId, Instant>> {
    MOVED.lock().unwrap_or_else(PoisonError::into_inner)
}

// === impl Point ===

impl Point {
    /// The folders to be removed with the mount at `path`.
    fn folders(&self, path: &AbsolutePath) -> Vec<PathBuf> {
        let own = path.as_path();
        let is_own = self.is_own_folder && !self.made.iter().any(|made| made == own);
        let mut all = self.made.clone();
        all.extend(is_own.then(|| own.to_path_buf()));
        all
    }
}

// === impl ShareMount ===

impl ShareMount {
    /// A share to be mounted at `point`: in a folder of this process alone, or where an administrator
    /// may mount it as well. Touches neither.
    pub fn new(
        tools: Tools,
        attachment: Attachment,
        access: MountAccess,
        point: AbsolutePath,
        is_own_folder: bool,
    ) -> Self {
        points().entry(point.clone()).or_default().users += 1;
        Self {
            tools,
            attachment,
            access,
            point,
            is_own_folder,
            answers_within: ANSWERS_WITHIN,
            patience: PATIENCE,
            silent_since: Mutex::new(None),
            turn: tokio::sync::Mutex::new(None),
            answered: Mutex::new(None),
        }
    }

    /// Whether only this process mounts there, or it has done so.
    pub fn is_kept(&self) -> bool {
        self.is_own_folder || self.mounted_by_us().is_some()
    }

    /// Returns once the share is mounted and answers.
    ///
    /// The error is `Timeout` at the deadline, else always `Unreachable`, whatever kept it from being mounted:
    /// of what is on the share nothing is known then.
    pub async fn ensure(&self, deadline: Instant) -> Result<(), Error> {
        if self.answered_lately() {
            return Ok(());
        }
        let asked = Instant::now();
        let turn = tokio::time::timeout_at(deadline, self.turn.lock()).await;
        let waits = |_| self.failed(deadline, "another call still tries to", None);
        let mut last = turn.map_err(waits)?;
        if self.answered_lately() {
            return Ok(());
        }
        if let Some(failure) = last.as_ref().filter(|failure| failure.at >= asked) {
            return Err(self.failed(deadline, failure.cause.clone(), failure.advice.clone()));
        }
        match self.mount_or_repair(deadline).await {
            Ok(()) => {
                *last = None;
                *self.answered() = Some(Instant::now());
                Ok(())
            }
            Err(failure) => {
                let error = self.failed(deadline, failure.cause.clone(), failure.advice.clone());
                *last = Some(failure);
                Err(error)
            }
        }
    }

    async fn mount_or_repair(&self, deadline: Instant) -> Result<(), Failure> {
        let stale = match self.look(deadline).await? {
            State::Answers => {
                if self.is_own_folder {
                    // Left by a process that was killed.
                    self.found_mounted();
                }
                return Ok(());
            }
            State::Other(source) => {
                let cause = format!("`{}` is mounted there", source.escape_debug());
                return Err(Failure::because(cause, Some("unmount it".to_owned())));
            }
            State::Stale(why) => Some(why),
            State::Nothing => None,
        };
        may_mount().map_err(|error| {
            let advice = if self.is_own_folder {
                "give this process the right to, or mount the share yourself and set \
                 `controllerBasePath`"
                    .to_owned()
            } else {
                let point = &self.point;
                format!("mount it at `{point}`, or give this process the right to")
            };
            Failure::because(error.to_string(), Some(advice))
        })?;
        let path = &self.point;
        match stale {
            Some(Stale::Unusable(why)) => {
                tracing::warn!(%path, error = why, "the share is mounted again");
                let by_force = |point: &AbsolutePath| {
                    take_away(point).map(drop).map_err(|error| error.chain())
                };
                self.remove(deadline, by_force).await?;
            }
            Some(Stale::Changed) => {
                tracing::info!(%path, "the options of the share have changed: it is mounted again");
                // It answers, so calls that use it end as they would have.
                let detached = |point: &AbsolutePath| {
                    let ended = mount::unmount_dead(point.as_path());
                    ended.map(drop).map_err(|error| error.to_string())
                };
                self.remove(deadline, detached).await?;
            }
            None => {}
        }
        self.mount(deadline).await
    }

    /// Removes what is mounted there, as `unmount` does it.
    async fn remove(
        &self,
        deadline: Instant,
        unmount: impl FnOnce(&AbsolutePath) -> Result<(), String> + Send + 'static,
    ) -> Result<(), Failure> {
        let until = deadline.min(Instant::now() + LETS_GO_WITHIN);
        let point = self.point.clone();
        let cause = match on_own_thread(until, move || unmount(&point)).await {
            Some(Ok(())) => return Ok(()),
            Some(Err(cause)) => cause,
            None => "the kernel does not let go of it".to_owned(),
        };
        Err(Failure::because(cause, None))
    }

    async fn mount(&self, deadline: Instant) -> Result<(), Failure> {
        let (point, is_own_folder) = (self.point.clone(), self.is_own_folder);
        let make = move || make_folder(&point, is_own_folder);
        let made = on_own_thread(deadline, make).await;
        let made = made
            .unwrap_or_else(|| Err(std::io::ErrorKind::TimedOut.into()))
            .map_err(|error| Failure::because(format!("its directory: {error}"), None))?;
        if !made.is_empty() {
            points().entry(self.point.clone()).or_default().made = made;
        }
        let request = MountRequest {
            attachment: &self.attachment,
            access: &self.access,
            secrets: &StageSecrets::default(),
            staging: &self.point,
        };
        // First: if the call is given up, what it has mounted is still unmounted at the end.
        self.set_mounted();
        let mounted = mounting::mount(&self.tools, request, deadline).await;
        if mounted.is_err() {
            let folders = points()
                .get(&self.point)
                .map(|point| point.folders(&self.point));
            let remove = move || remove_folders(&folders.unwrap_or_default());
            let _ = on_own_thread(deadline, remove).await;
        }
        if mounted.is_err() && !self.is_own_folder {
            // What is mounted there later is not ours.
            self.set_unmounted();
        }
        mounted.map_err(|error| {
            let advice = error.advice().map(str::to_owned);
            let chain = error.chain();
            let cause = match &advice {
                Some(advice) => chain.trim_end_matches(&format!(" ({advice})")).to_owned(),
                None => chain,
            };
            Failure::because(cause, advice)
        })?;
        // A new mount is waited for as long as the first one.
        *self
            .silent_since
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = None;
        tracing::info!(path = %self.point, "mounted the share");
        Ok(())
    }

    async fn look(&self, deadline: Instant) -> Result<State, Failure> {
        let until = deadline.min(Instant::now() + self.answers_within);
        let (attachment, point) = (self.attachment.clone(), self.point.clone());
        let listed = on_own_thread(until, move || listed(&attachment, &point)).await;
        let device = match listed {
            Some(Ok((State::Answers, device))) => device,
            Some(Ok((state, _))) => return Ok(state),
            Some(Err(error)) => return Err(Failure::because(error.to_string(), None)),
            None => return Err(Failure::because("the kernel does not answer".into(), None)),
        };
        let half = deadline.saturating_duration_since(Instant::now()) / 2;
        let patience = self.answers_within.min(half.max(LEAST));
        let until = deadline.min(Instant::now() + patience);
        let point = self.point.clone();
        let unusable = |why| State::Stale(Stale::Unusable(why));
        let ask = move || Place::open(point.as_path()).and_then(rustix::fs::fstatvfs);
        let asked = Instant::now();
        let answer = on_own_thread(until, ask).await;
        let silent = self.silent_for(answer.is_none(), asked, device);
        Ok(match answer {
            Some(Ok(_)) if self.has_changed() => State::Stale(Stale::Changed),
            Some(Ok(_)) => State::Answers,
            Some(Err(errno)) => unusable(std::io::Error::from(errno).to_string()),
            None if until == deadline => {
                return Err(Failure::because("it does not answer".into(), None));
            }
            None if silent < self.patience => {
                let cause = format!(
                    "it has not answered for {} s; it is waited for, and mounted again after {} s",
                    silent.as_secs(),
                    self.patience.as_secs()
                );
                return Err(Failure::because(cause, None));
            }
            None => unusable(format!("no answer for {silent:?}")),
        })
    }

    /// The time that it has given no sign of life.
    fn silent_for(
        &self,
        is_silent: bool,
        asked: Instant,
        device: Option<FilesystemId>,
    ) -> Duration {
        let mut since = self
            .silent_since
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if !is_silent {
            *since = None;
            return Duration::ZERO;
        }
        let since = *since.get_or_insert(asked);
        let moved = device.and_then(|device| moved().get(&device).copied());
        since.max(moved.unwrap_or(since)).elapsed()
    }

    fn failed(&self, deadline: Instant, cause: impl Into<String>, advice: Option<String>) -> Error {
        let doing = format!("mount the share for this process at `{}`", self.point);
        let kind = if Instant::now() < deadline {
            Kind::Unreachable
        } else {
            Kind::Timeout
        };
        let error = Error::new(kind, doing).because(cause.into());
        match advice {
            Some(advice) => error.advise(advice),
            None => error,
        }
    }

    fn answered(&self) -> MutexGuard<'_, Option<Instant>> {
        self.answered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answered_lately(&self) -> bool {
        self.answered().is_some_and(|at| at.elapsed() < FRESH)
    }

    fn mounted_by_us(&self) -> Option<MountAccess> {
        let points = points();
        points
            .get(&self.point)
            .and_then(|point| point.mounted.clone())
    }

    /// Whether this process has mounted it with other options, and no other user needs those.
    fn has_changed(&self) -> bool {
        let points = points();
        points.get(&self.point).is_some_and(|point| {
            let is_other = |access: &MountAccess| *access != self.access;
            point.users == 1 && point.mounted.as_ref().is_some_and(is_other)
        })
    }

    fn set_unmounted(&self) {
        if let Some(point) = points().get_mut(&self.point) {
            point.mounted = None;
        }
    }

    fn found_mounted(&self) {
        if self.mounted_by_us().is_none() {
            self.set_mounted();
        }
    }

    fn set_mounted(&self) {
        let mut points = points();
        let point = points.entry(self.point.clone()).or_default();
        point.mounted = Some(self.access.clone());
        point.is_own_folder = self.is_own_folder;
    }
}

impl Drop for ShareMount {
    fn drop(&mut self) {
        let last = {
            let mut points = points();
            let Some(point) = points.get_mut(&self.point) else {
                return;
            };
            point.users -= 1;
            if point.users > 0 {
                return;
            }
            points.remove(&self.point)
        };
        if let Some(point) = last.filter(|point| point.mounted.is_some()) {
            unmount(&self.point, &point.folders(&self.point));
        }
    }
}

// === impl Failure ===

impl Failure {
    fn because(cause: String, advice: Option<String>) -> Self {
        Self {
            at: Instant::now(),
            cause,
            advice,
        }
    }
}

/// Makes the folder; gives those that were made, the outermost first. One of this process alone may be made by no other
/// user, nor be a link.
fn make_folder(point: &AbsolutePath, is_own_folder: bool) -> std::io::Result<Vec<PathBuf>> {
    use std::os::unix::fs::MetadataExt as _;
    let is_missing = |path: &&Path| matches!(rustix::fs::lstat(*path), Err(Errno::NOENT));
    let missing = point.as_path().ancestors().take_while(is_missing);
    let mut made: Vec<PathBuf> = missing.map(Path::to_path_buf).collect();
    made.reverse();
    std::fs::create_dir_all(point.as_path())?;
    let found = std::fs::symlink_metadata(point.as_path())?;
    let is_ours = found.is_dir() && found.uid() == rustix::process::geteuid().as_raw();
    if is_own_folder && !is_ours {
        return Err(std::io::Error::other("it was made by another user"));
    }
    Ok(made)
}

/// What the mount table shows; the server is not asked.
fn listed(
    attachment: &Attachment,
    point: &AbsolutePath,
) -> std::io::Result<(State, Option<FilesystemId>)> {
    let table = MountTable::read()?;
    let point = as_listed(point.as_path());
    let Some(entry) = table.layers(&point).last() else {
        return Ok((State::Nothing, None));
    };
    let state = if mounting::is_mount_of(attachment, &entry) {
        State::Answers
    } else {
        State::Other(entry.source().into_owned())
    };
    Ok((state, Some(entry.device)))
}
