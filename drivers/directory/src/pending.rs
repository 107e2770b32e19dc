//! Snapshots by `filecopy` whose copy takes longer than their caller should wait.
//!
//! The call is answered in time, with a snapshot that is not ready, and the copy goes on. What is kept of it is
//! the work of this process, not a record of a snapshot: a copy that was killed leaves nothing that looks like one,
//! and the next call for the snapshot makes it again. So it is with one that failed: the log has its error.
//!
//! It is kept for the process, by the base: a driver that was dropped while it was idle, and built again, finds it.

mod groups;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use driver_core::text::GroupSnapshotId;
use driver_core::{Call, Error, GetSnapshot, Kind, Snapshot, Snapshots as _, Topology};

use crate::driver::DirectoryDriver;
use crate::id::{SnapshotDir, VolumeDir};
use crate::snapshots::WantedSnapshot;

/// The time that the caller of a snapshot waits for it to be ready. The snapshotter of Kubernetes gives up after a
/// minute by default, and asks again while a snapshot is not ready.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// Copies of one base that go on after the answer. More would use up the threads of the connection: their callers
/// wait.
const MOST: usize = 8;

/// By the base, and the directory that the snapshot gets.
static COPIES: Mutex<BTreeMap<(String, String), PendingCopy>> = Mutex::new(BTreeMap::new());

/// A copy in progress.
#[derive(Debug)]
struct PendingCopy {
    wanted: WantedSnapshot,
    created: SystemTime,
    /// The recorded size of the volume.
    size: u64,
    call: Call,
    /// Its caller was answered: the snapshot is known, and not ready.
    is_answered: bool,
}

/// The copies of one base.
#[derive(Debug, Clone)]
pub(crate) struct PendingCopies {
    base: String,
}

/// The answer for a snapshot by a copy.
pub(crate) struct TakenSnapshot {
    pub(crate) snapshot: Snapshot,
    /// Its copy is the work of this call: it was not there before.
    pub(crate) is_new: bool,
}

/// What a call for a snapshot finds.
enum Found {
    /// Nothing: the copy is its work.
    Nothing(CopyWork),
    /// A copy that goes on.
    Answered,
    /// One whose caller waits.
    Awaited,
    /// A copy of another volume that gets the same name.
    Taken(Error),
}

/// A copy to be made, which is over when this is dropped.
struct CopyWork {
    copies: PendingCopies,
    name: String,
    created: SystemTime,
}

fn all() -> MutexGuard<'static, BTreeMap<(String, String), PendingCopy>> {
    COPIES.lock().unwrap_or_else(PoisonError::into_inner)
}

// === impl PendingCopies ===

impl PendingCopies {
    /// A snapshot whose copy goes on.
    pub(crate) fn snapshot(&self, dir: &SnapshotDir, topology: Vec<Topology>) -> Option<Snapshot> {
        let all = all();
        let pending = all.get(&self.key(dir.as_str()))?;
        pending.is_answered.then(|| Snapshot {
            id: dir.id(),
            source: pending.wanted.volume.id(),
            size: pending.size,
            created: pending.created,
            ready: false,
            topology,
            group: pending.wanted.group.clone(),
        })
    }

    pub(crate) fn new(base: String) -> Self {
        Self { base }
    }

    fn key(&self, name: &str) -> (String, String) {
        (self.base.clone(), name.to_owned())
    }

    fn begin(&self, wanted: &WantedSnapshot, size: u64, call: &Call) -> Found {
        let (dir, name) = (&wanted.dir, &wanted.name);
        let key = self.key(dir.as_str());
        let mut all = all();
        let mut others = all.iter().filter(|((base, _), _)| *base == self.base);
        if let Some((_, other)) = others.find(|(_, other)| other.has_name_of(wanted)) {
            let error = Error::new(Kind::Conflict, format!("snapshot {name} exists"));
            let volume = &other.wanted.volume;
            return Found::Taken(error.because(format!("it is one of volume {volume}")));
        }
        match all.get(&key) {
            Some(pending) if pending.is_answered => return Found::Answered,
            Some(_) => return Found::Awaited,
            None => {}
        }
        let created = SystemTime::now();
        let pending = PendingCopy {
            wanted: wanted.clone(),
            created,
            size,
            call: call.clone(),
            is_answered: false,
        };
        all.insert(key, pending);
        Found::Nothing(CopyWork {
            copies: self.clone(),
            name: dir.to_string(),
            created,
        })
    }

    /// Lets a copy go on without its caller; `false` if it is over, or if too many do.
    fn answer(&self, dir: &SnapshotDir, created: SystemTime) -> bool {
        let mut all = all();
        let known = all
            .iter()
            .filter(|((base, _), pending)| *base == self.base && pending.is_answered);
        if known.count() >= MOST {
            return false;
        }
        let found = all.get_mut(&self.key(dir.as_str()));
        let found = found.filter(|pending| pending.created == created);
        found.is_some_and(|pending| {
            pending.is_answered = true;
            true
        })
    }

    /// The directories that snapshots get which are not ready.
    pub(crate) fn names(&self) -> Vec<String> {
        let all = all();
        let known = all
            .iter()
            .filter(|((base, _), pending)| *base == self.base && pending.is_answered);
        known.map(|((_, name), _)| name.clone()).collect()
    }

    /// The group of a snapshot whose copy goes on.
    pub(crate) fn group(&self, dir: &SnapshotDir) -> Option<GroupSnapshotId> {
        let all = all();
        let pending = all.get(&self.key(dir.as_str()))?;
        pending.wanted.group.clone()
    }

    /// Stops the copy for a snapshot of that group, or of none; an error as long as it goes on.
    pub(crate) fn stop(
        &self,
        dir: &SnapshotDir,
        group: Option<&GroupSnapshotId>,
        doing: &str,
    ) -> Result<(), Error> {
        let all = all();
        let pending = all.get(&self.key(dir.as_str()));
        let Some(pending) = pending.filter(|one| one.wanted.group.as_ref() == group) else {
            return Ok(());
        };
        pending.call.cancel();
        Err(Error::new(Kind::Pending, doing)
            .because("it is not ready: its copy has been stopped, and has not ended yet"))
    }

    /// Refuses to delete a volume of which a copy goes on.
    pub(crate) fn refuse_source(&self, volume: &VolumeDir) -> Result<(), Error> {
        let all = all();
        let mut copies = all.iter();
        let found = copies
            .find(|((base, _), pending)| *base == self.base && pending.wanted.volume == *volume);
        found.map_or(Ok(()), |((_, name), _)| {
            Err(
                Error::new(Kind::Pending, format!("deleting volume {volume}"))
                    .because(format!("snapshot {name} of it is still being copied")),
            )
        })
    }
}

// === impl PendingCopy ===

impl PendingCopy {
    /// Whether it gets the same name, of another volume, and not as one of the same group.
    fn has_name_of(&self, wanted: &WantedSnapshot) -> bool {
        let own = &self.wanted;
        let is_of_group = own.group.is_some() && own.group == wanted.group;
        own.name == wanted.name && own.volume != wanted.volume && !is_of_group
    }
}

// === impl CopyWork ===

impl CopyWork {
    /// Ends the work; gives its outcome back if its caller waits for it.
    fn end(self, outcome: Result<Snapshot, Error>) -> Option<Result<Snapshot, Error>> {
        let ended = all().remove(&self.copies.key(&self.name));
        let Some(ended) = ended.filter(|ended| ended.is_answered) else {
            return Some(outcome);
        };
        if let Err(error) = outcome
            && !ended.call.is_cancelled()
        {
            tracing::warn!(
                snapshot = self.name,
                error = error.chain(),
                "the copy has failed after its caller was answered; the next call makes it again"
            );
        }
        None
    }
}

impl Drop for CopyWork {
    fn drop(&mut self) {
        let mut all = all();
        let key = self.copies.key(&self.name);
        let pending = all.get(&key);
        // Once it has ended, it may be that of another call.
        if pending.is_some_and(|one| one.created == self.created) {
            all.remove(&key);
        }
    }
}

// === impl TakenSnapshot ===

impl TakenSnapshot {
    /// That of a call whose copy began then.
    fn of(snapshot: Snapshot, created: SystemTime) -> Self {
        let is_new = snapshot.created == created;
        Self { snapshot, is_new }
    }
}

// === impl DirectoryDriver ===

impl DirectoryDriver {
    /// Answers snapshots after that time, ready or not.
    #[must_use]
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Takes a snapshot by a copy. If that takes longer than `patience`, the answer is one that is not ready; without it the
    /// caller waits.
    pub(crate) async fn copied_snapshot(
        &self,
        call: &Call,
        wanted: WantedSnapshot,
        patience: Option<Duration>,
    ) -> Result<TakenSnapshot, Error> {
        let doing = wanted.doing();
        let pending = &self.directories.pending;
        let source = wanted.volume.clone();
        let size = self.run(call, "looking for the volume", move |directories, _| {
            directories.recorded_size(&source)
        });
        let size = size.await?;
        let dir = wanted.dir.clone();
        let work = match pending.begin(&wanted, size.unwrap_or_default(), call) {
            Found::Nothing(work) => work,
            Found::Answered if wanted.group.is_none() => {
                let snapshot = self.unready(call, &dir, &doing).await?;
                return Ok(TakenSnapshot {
                    snapshot,
                    is_new: false,
                });
            }
            Found::Answered | Found::Awaited => {
                return Err(Error::new(Kind::Pending, doing).because("another call is taking it"));
            }
            Found::Taken(error) => return Err(error),
        };
        let created = work.created;
        let (directories, copy_call) = (Arc::clone(&self.directories), call.clone());
        let share = self.share.clone();
        let copy = move || {
            let made = directories.create_snapshot(&copy_call, &wanted, work.created);
            let outcome = work.end(made);
            // A share that this process has mounted stays as long as it is copied from.
            drop(share);
            outcome
        };
        let mut task = node_utils::blocking::spawn_on_account("taking a snapshot", copy).await?;
        let taken = |snapshot| TakenSnapshot::of(snapshot, created);
        let Some(patience) = patience else {
            return ended(task.await, &doing).map(taken);
        };
        if let Ok(done) = tokio::time::timeout(patience, &mut task).await {
            return ended(done, &doing).map(taken);
        }
        // Kubernetes keeps the size of the first answer.
        if size.is_none() || !pending.answer(&dir, created) {
            return ended(task.await, &doing).map(taken);
        }
        tracing::info!(doing, "the copy goes on, and the snapshot is not ready yet");
        self.unready(call, &dir, &doing).await.map(taken)
    }

    /// A snapshot whose copy went on a moment ago.
    async fn unready(
        &self,
        call: &Call,
        dir: &SnapshotDir,
        doing: &str,
    ) -> Result<Snapshot, Error> {
        let found = self.get_snapshot(call, GetSnapshot::new(&dir.id())).await;
        found.map_err(|error| match error.kind() {
            // Not found: to the caller that would be its volume.
            Kind::NotFound => Error::new(Kind::Pending, doing).because("its copy has just ended"),
            _ => error,
        })
    }
}

/// The outcome of a copy whose caller has waited for it.
fn ended(
    done: Result<Option<Result<Snapshot, Error>>, tokio::task::JoinError>,
    doing: &str,
) -> Result<Snapshot, Error> {
    let defect = || Error::new(Kind::Internal, doing);
    match done {
        Ok(Some(outcome)) => outcome,
        Ok(None) => Err(defect().because("its outcome went to another call")),
        Err(join) => Err(defect().because(join)),
    }
}
