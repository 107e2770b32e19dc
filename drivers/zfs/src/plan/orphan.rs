//! Orphans of interrupted verbs that were never retried: how they are proven, and how they are
//! removed.
//!
//! Everything that a verb creates is marked from its first moment, and gets its last mark only when
//! it is complete. So an object that has the first marks but not the last one, and is old enough,
//! is an orphan. It is removed like a volume or snapshot, if it is unchanged when the removal gets
//! the lock: an object that was completed since stays. compat: "ZFS".

use std::time::{Duration, SystemTime};

use driver_core::{Elsewhere, Error, Kind, OrphanKind, VolumeId};

use super::destroy::is_only_container;
use super::owner::Owner;
use super::{Outcome, Verb, is_complete};
use crate::id::{Layout, SnapshotPlace, is_helper, is_of_copy};
use crate::name::{DatasetName, Object, SnapshotRef};
use crate::observed::{Dataset, Guid, Observed, Query, Request, Snapshot, State};
use crate::property::{Properties, PropertyName};
use crate::step::{Plan, Step};

/// The time that a copy may pause, between connections or in one: before that neither its part nor the
/// helper that it resumes from is an orphan.
const COPYING: Duration = Duration::from_hours(7 * 24);

/// The search for orphans.
#[derive(Debug, Clone, Copy)]
pub struct OrphanScope<'a> {
    /// The layout of the connection.
    pub layout: &'a Layout,
    /// Their owner.
    pub owner: Owner<'a>,
    /// Only objects created before.
    pub before: SystemTime,
    /// The same for parts of copies, and for helpers of copies in other connections. Their readers
    /// are not visible here, and may pause for long between two attempts.
    pub before_of_copies: SystemTime,
}

/// An orphan, and what is needed to remove it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remains {
    /// A partial volume.
    Volume(VolumeId),
    /// A partial detached snapshot.
    Snapshot(SnapshotPlace),
    /// A helper snapshot, and the dataset to lock while it is in use.
    Helper(SnapshotRef, DatasetName),
    /// An empty dataset for detached snapshots.
    Container(DatasetName),
}

/// When something was made.
pub fn created(properties: &Properties) -> Option<SystemTime> {
    let seconds = properties.number(&PropertyName::CREATION)?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

// === impl OrphanScope ===

impl<'a> OrphanScope<'a> {
    /// Finds all objects of this owner in this layout that were created before.
    pub fn new(layout: &'a Layout, owner: Owner<'a>, before: SystemTime, now: SystemTime) -> Self {
        let copies = now.checked_sub(COPYING).unwrap_or(SystemTime::UNIX_EPOCH);
        Self {
            layout,
            owner,
            before,
            before_of_copies: before.min(copies),
        }
    }

    /// The kind of remains that a dataset is, if it is an orphan.
    pub fn dataset(&self, dataset: &Dataset) -> Option<Remains> {
        let own = |name| dataset.properties.own(&name);
        // A running copy may have started long ago. A copy that can resume may pause for as long as
        // its source is kept; if it still runs after that, ZFS refuses to remove it. So may a volume that comes in
        // rounds.
        let (before, runs) = match (dataset.is_receiving(), dataset.resumes()) {
            (false, _) if is_from_elsewhere(dataset) => (self.before_of_copies, false),
            (false, _) => (self.before, false),
            (true, Some(_)) => (self.before_of_copies, false),
            (true, None) => (self.before, true),
        };
        let whole = is_complete(dataset) || own(PropertyName::SUCCESS).is_some();
        if !is_older(&dataset.properties, before) || runs || whole {
            return None;
        }
        // A connection with another export, or of another cluster, may have objects under the same
        // parents.
        if !self.owner.made(dataset) {
            return None;
        }
        if is_only_container(dataset) {
            let parent = dataset.name.parent();
            let one_of_ours = parent.is_some() && parent == self.layout.detached;
            return one_of_ours.then(|| Remains::Container(dataset.name.clone()));
        }
        if !dataset.is_managed() || dataset.kind != self.layout.kind {
            return None;
        }
        if let Some(id) = self.layout.volume_id(&dataset.name) {
            own(PropertyName::VOLUME_NAME)?;
            return Some(Remains::Volume(id));
        }
        own(PropertyName::SNAPSHOT_NAME)?;
        let place = self.layout.place_of(&Object::from(dataset.name.clone()))?;
        Some(Remains::Snapshot(place))
    }

    /// The kind of a snapshot, if it is an orphan. A snapshot of a partial dataset is removed with
    /// that.
    pub fn snapshot(&self, snapshot: &Snapshot) -> Option<Remains> {
        let properties = &snapshot.properties;
        let helper = is_helper(&snapshot.name.leaf) && snapshot.csi_name().is_none();
        let needed = snapshot.is_stood_on()
            || snapshot.is_doomed()
            || properties.number(&PropertyName::USERREFS) > Some(0);
        // It shows the properties of its dataset.
        let shows = |name| properties.get(&name).is_some();
        let dataset = &snapshot.name.dataset;
        let lies_right = self.layout.volume_id(dataset).is_some()
            || self.layout.place_of(&dataset.clone().into()).is_some();
        let marked = properties.get(&PropertyName::MANAGED) == Some("true");
        let ours = lies_right && marked && self.owner.made_what_shows(properties);
        let whole = shows(PropertyName::CONTEXT) || shows(PropertyName::SUCCESS);
        let before = if is_of_copy(&snapshot.name.leaf) {
            self.before_of_copies
        } else {
            self.before
        };
        if !is_older(properties, before) || !helper || needed || !ours || !whole {
            return None;
        }
        let lock = self.layout.lock_of_helper(&snapshot.name)?;
        Some(Remains::Helper(snapshot.name.clone(), lock))
    }
}

/// Whether its content comes from another connection.
fn is_from_elsewhere(dataset: &Dataset) -> bool {
    let own = |name| dataset.properties.own(&name);
    let source = own(PropertyName::SOURCE_KIND).zip(own(PropertyName::SOURCE_ID));
    source.is_some_and(|(kind, id)| Elsewhere::read(kind, id).is_some())
}

fn is_older(properties: &Properties, before: SystemTime) -> bool {
    created(properties).is_some_and(|created| created < before)
}

// === impl Remains ===

impl Remains {
    /// The kind that callers see.
    pub fn kind(&self) -> OrphanKind {
        match self {
            Self::Volume(_) => OrphanKind::HalfVolume,
            Self::Snapshot(_) => OrphanKind::HalfSnapshot,
            Self::Helper(..) => OrphanKind::Helper,
            Self::Container(_) => OrphanKind::Container,
        }
    }
}

/// Why an object is not removed.
fn not_one(doing: String, object: impl Into<Object>) -> Error {
    let why = format!("{} is not an orphan, or no longer one", object.into());
    Error::new(Kind::Conflict, doing).because(why)
}

/// Removes a dataset that is still partial.
#[derive(Debug)]
pub struct RemoveHalf<'a, V> {
    /// The search, which says what is an orphan.
    pub scope: OrphanScope<'a>,
    /// The verb that removes it, whether it is an orphan or not.
    pub deletion: V,
    /// Its name.
    pub dataset: DatasetName,
    /// Its GUID, which tells it from another one of that name.
    pub guid: Guid,
}

impl<V: Verb<Done = ()>> Verb for RemoveHalf<'_, V> {
    type Done = ();

    fn doing(&self) -> String {
        format!("remove orphan {}", self.dataset)
    }

    fn request(&self, pool: &State) -> Result<Request, Error> {
        self.deletion.request(pool)
    }

    fn request_after(&self, pool: &State) -> Result<Request, Error> {
        self.deletion.request_after(pool)
    }

    fn plan(&self, asked: &State, seen: &Observed, done: usize) -> Result<Outcome<()>, Error> {
        let dataset = seen.pool.dataset(&self.dataset);
        // A concurrent retry or delete is allowed.
        match dataset {
            None if done == 0 => return Ok(Outcome::Done(())),
            Some(other) if other.guid != self.guid => return Ok(Outcome::Done(())),
            Some(whole) if self.scope.dataset(whole).is_none() => {
                let doing = Verb::doing(self);
                return Err(not_one(doing, self.dataset.clone()));
            }
            _ => {}
        }
        let outcome = self.deletion.plan(asked, seen, done)?;
        let mut outcome = outcome;
        if let (Outcome::Do(plan) | Outcome::End(plan, ()), Some(dataset)) = (&mut outcome, dataset)
        {
            for mark in [PropertyName::CONTEXT, PropertyName::SUCCESS] {
                plan.guard_property(dataset, &mark);
            }
        }
        Ok(outcome)
    }
}

/// Removes a helper snapshot without clones, or an empty dataset for detached snapshots.
#[derive(Debug)]
pub struct RemoveSmall<'a> {
    /// The search, which says what is an orphan.
    pub scope: OrphanScope<'a>,
    /// The object to remove.
    pub object: Object,
    /// Its GUID, which tells it from another one of that name.
    pub guid: Guid,
}

// === impl RemoveSmall ===

impl RemoveSmall<'_> {
    /// The dataset into which it may be copied right now.
    fn copy(&self) -> Option<DatasetName> {
        match &self.object {
            Object::Dataset(_) => None,
            Object::Snapshot(name) => self.scope.layout.made_of(name),
        }
    }
}

/// Whether a copy into a dataset is running.
pub fn is_being_copied(pool: &State, name: &DatasetName) -> bool {
    pool.dataset(name).is_some_and(Dataset::is_receiving)
}

impl Verb for RemoveSmall<'_> {
    type Done = ();

    fn doing(&self) -> String {
        format!("remove orphan {}", self.object)
    }

    fn request(&self, _pool: &State) -> Result<Request, Error> {
        let itself = match &self.object {
            Object::Dataset(name) => Query::Dataset(name.clone()),
            Object::Snapshot(name) => Query::Snapshot(name.clone()),
        };
        let copy = self.copy().map(Query::Dataset);
        Ok(Request::of(std::iter::once(itself).chain(copy)))
    }

    fn plan(&self, _asked: &State, seen: &Observed, done: usize) -> Result<Outcome<()>, Error> {
        let (found, remains) = match &self.object {
            Object::Dataset(name) => {
                let found = seen.pool.dataset(name);
                let guid = found.map(|found| found.guid);
                (guid, found.and_then(|found| self.scope.dataset(found)))
            }
            Object::Snapshot(name) => {
                let found = seen.pool.snapshot(name);
                let there = found.filter(|found| !found.is_doomed());
                let guid = there.map(|found| found.guid);
                (guid, found.and_then(|found| self.scope.snapshot(found)))
            }
        };
        if found != Some(self.guid) {
            return Ok(Outcome::Done(()));
        }
        let (lock, step) = match remains {
            Some(Remains::Helper(name, lock)) => (lock, Step::DestroySnapshot(name)),
            // It was kept, because it is not empty.
            Some(Remains::Container(name)) if done == 0 => (name.clone(), Step::DestroyEmpty(name)),
            _ => {
                let doing = Verb::doing(self);
                return Err(not_one(doing, self.object.clone()));
            }
        };
        if let Some(copy) = self.copy().filter(|copy| is_being_copied(&seen.pool, copy)) {
            let why = format!("a copy into {copy} is still running");
            return Err(Error::new(Kind::Pending, Verb::doing(self)).because(why));
        }
        let mut plan = Plan::about(lock);
        plan.guard(self.object.clone(), self.guid);
        plan.step(step);
        Ok(Outcome::Do(plan))
    }
}
