//! Deleting a snapshot of the orchestrator: one of a volume, or one that is a dataset.
//!
//! A detached one is in a container, a dataset with all detached snapshots of its volume, which is
//! destroyed with the last of them. The container is known by our mark, or by the snapshot of
//! democratic-csi in it. A container with files stays.

use driver_core::Error;

use super::{Doomed, has_parent, parent_again, ties, were_asked, with_parent};
use crate::id::{self, At, Layout, Parent, SnapshotPlace};
use crate::name::{DatasetName, MarkRef, SnapshotRef};
use crate::observed::{Dataset, Observed, Query, Request, Snapshot, State, VolumeKind};
use crate::plan::owner::Owner;
use crate::plan::{Outcome, Verb, blocked};
use crate::policy::value_of;
use crate::property::{Property, PropertyName, PropertyValue};
use crate::step::{FirstTry, Plan, Step, Test};

/// A marked filesystem that refers to more than this contains files that were added since. Empty
/// ones refer to some hundred KiB at most, on the widest stripes. One that refers to less may still
/// contain small files: [`Step::DestroyEmpty`] checks for those.
const EMPTY: u64 = 1 << 20;

const NOT_OURS: &str = "if it is not needed, destroy it on the storage host";

/// Removes a snapshot.
#[derive(Debug)]
pub struct DestroySnapshot<'a> {
    /// The layout of the connection.
    pub layout: &'a Layout,
    /// The snapshot.
    pub place: SnapshotPlace,
    /// The connection that deletes it.
    pub owner: Owner<'a>,
    /// Whether a detached one with snapshots that this driver did not take is kept.
    pub keep_foreign: bool,
    /// [`Backend::asks_one_by_one`](crate::backend::Backend::asks_one_by_one): a detached one is destroyed
    /// before all of it was observed.
    pub asks_little: bool,
    /// Whether an attached one leaves a bookmark, so that what differs from it can still be said.
    pub leaves_mark: bool,
}

/// The most bookmarks of a volume, each of a deleted snapshot: a weekly backup beside hourly ones finds the base of
/// the week before, which is 168 deletions old. They hold no blocks, and to look at all of them takes milliseconds.
const MOST_MARKS: usize = 256;

/// Whether a dataset is a snapshot of ours, complete or partial.
fn is_ours(dataset: &Dataset) -> bool {
    let named = dataset.properties.own(&PropertyName::SNAPSHOT_NAME);
    dataset.is_managed() || named.is_some()
}

/// Whether a dataset was created to hold detached snapshots and has no other use since.
/// democratic-csi leaves no mark on those that it creates. compat: "ZFS".
pub(in crate::plan) fn is_only_container(dataset: &Dataset) -> bool {
    let used = dataset.properties.number(&PropertyName::REFERENCED);
    dataset.is_container() && used.is_some_and(|used| used < EMPTY)
}

// === impl DestroySnapshot ===

impl DestroySnapshot<'_> {
    /// Done, if this was observed under the lock, with its parent: a missing one may still be created by the
    /// leftover command of a cut connection.
    fn absent(&self, plan: Plan, pool: &State, done: usize) -> Result<Outcome<()>, Error> {
        if done == 0 {
            return Ok(Outcome::Do(plan));
        }
        has_parent(&self.doing_it(), self.parent(), pool)?;
        Ok(Outcome::Done(()))
    }

    fn attached(
        &self,
        name: &SnapshotRef,
        pool: &State,
        done: usize,
    ) -> Result<Outcome<()>, Error> {
        let mut plan = Plan::about(name.dataset.clone());
        let there = |snapshot: &&Snapshot| !snapshot.is_doomed();
        let Some(snapshot) = pool.snapshot(name).filter(there) else {
            return self.absent(plan, pool, done);
        };
        if snapshot.csi_name().is_none() {
            let why = format!("{name} exists, and is not a snapshot of this driver");
            return Err(blocked(&self.doing_it(), why).advise(NOT_OURS));
        }
        if let Some(group) = snapshot.group() {
            let why = format!(
                "it was taken with the group snapshot `{}`",
                group.escape_debug()
            );
            return Err(Error::invalid(self.doing_it())
                .because(why)
                .advise("delete the group snapshot: its snapshots go together"));
        }
        plan.guard(name.clone(), snapshot.guid);
        if self.leaves_mark {
            mark(&mut plan, snapshot, pool);
        }
        plan.step(Step::DestroySnapshot(name.clone()));
        Ok(Outcome::End(plan, ()))
    }

    fn detached(
        &self,
        name: &DatasetName,
        asked: &State,
        pool: &State,
        done: usize,
    ) -> Result<Outcome<()>, Error> {
        let doing = self.doing_it();
        let container = name.parent();
        let mut plan = Plan::about(container.clone().unwrap_or_else(|| name.clone()));
        let container = container.as_ref().and_then(|name| pool.dataset(name));
        let container = container.filter(|container| {
            is_only_container(container) || self.is_legacy_container(container, pool.dataset(name))
        });
        let Some(dataset) = pool.dataset(name) else {
            if let Some(container) = container {
                emptied(&mut plan, container);
            }
            return self.absent(plan, pool, done);
        };
        if !is_ours(dataset) {
            let why = format!("{name} exists, and is not a snapshot of this driver");
            return Err(blocked(&doing, why).advise(NOT_OURS));
        }
        let doomed = Doomed {
            doing: &doing,
            layout: self.layout,
            dataset,
            pool,
            keep_foreign: self.keep_foreign,
        };
        // At first only the dataset itself may have been observed. The storage refuses to destroy one with
        // anything on or below it; then all of that is observed.
        let is_bare = self.asks_little && asked.dataset(name).is_none();
        let is_plain = dataset.origin().is_none() && !dataset.is_receiving();
        if !is_bare || !is_plain {
            if is_bare || !were_asked(self.layout, name, asked, pool) {
                return Ok(Outcome::Ask);
            }
            doomed.check()?;
            doomed.release(&mut plan);
            if !doomed.hand_over(&mut plan) {
                return Ok(Outcome::Ask);
            }
        }
        if let Some(container) = container.filter(|container| !container.is_container()) {
            // A retry finds the container by its mark after the snapshot in it is gone. The mark is set
            // last: a marked container is complete.
            let mut properties = self.owner.marks();
            properties.push(Property::new(PropertyName::CONTAINER, PropertyValue::yes()));
            plan.guard(container.name.clone(), container.guid);
            plan.step(Step::Set {
                object: container.name.clone().into(),
                properties,
            });
        }
        doomed.destroy(&mut plan);
        if let Some(container) = container {
            emptied(&mut plan, container);
        }
        Ok(Outcome::End(plan, ()))
    }

    /// Whether democratic-csi created it to hold detached snapshots. It has no mark then, so the
    /// snapshot in it is the proof: a complete one, of the volume that the container is named
    /// after. compat: "ZFS".
    fn is_legacy_container(&self, container: &Dataset, snapshot: Option<&Dataset>) -> bool {
        let volume = self.place.volume.as_str();
        let ours = |snapshot: &Dataset| {
            let source = snapshot.properties.own(&PropertyName::SNAPSHOT_SOURCE);
            let whole = snapshot.properties.own(&PropertyName::SUCCESS).is_some();
            snapshot.is_managed() && whole && source == Some(volume)
        };
        let used = container.properties.number(&PropertyName::REFERENCED);
        let marks = [
            PropertyName::MANAGED,
            PropertyName::VOLUME_NAME,
            PropertyName::SNAPSHOT_NAME,
            PropertyName::CONTEXT,
        ];
        let unused = |name: &PropertyName| container.properties.own(name).is_none();
        container.kind == VolumeKind::Filesystem
            && container.name.leaf() == volume
            && used.is_some_and(|used| used < EMPTY)
            && marks.iter().all(unused)
            && snapshot.is_some_and(ours)
    }

    fn parent(&self) -> Parent<'_> {
        self.layout.parent_of(&self.place.at)
    }

    fn doing_it(&self) -> String {
        format!(
            "delete snapshot `{}` of `{}`",
            self.place.leaf, self.place.volume
        )
    }
}

/// The properties of a dataset that holds detached snapshots. It is never mounted, so that no files
/// are added by accident.
pub(in crate::plan) fn of_container(owner: Owner<'_>) -> Vec<Property> {
    let mut all = vec![
        Property::new(PropertyName::CONTAINER, PropertyValue::yes()),
        Property::new(PropertyName::CANMOUNT, value_of("off")),
    ];
    all.extend(owner.marks());
    all
}

/// Plans the bookmark of a snapshot; the oldest ones give way to it. One of an earlier snapshot of this name does, too.
pub(super) fn mark(plan: &mut Plan, snapshot: &Snapshot, pool: &State) {
    let Some(name) = MarkRef::of(&snapshot.name) else {
        return;
    };
    let found = pool.mark(&name);
    if found.is_some_and(|found| found.guid == snapshot.guid) {
        return;
    }
    plan.add(found.map(|found| Step::DestroyMark(found.name.clone())));
    let others = pool.marks_of(&name.dataset).into_iter();
    let others: Vec<_> = others.filter(|other| other.name != name).collect();
    let too_many = (others.len() + 1).saturating_sub(MOST_MARKS);
    let oldest = others.into_iter().take(too_many);
    plan.add(oldest.map(|other| Step::DestroyMark(other.name.clone())));
    plan.step(Step::Mark(snapshot.name.clone(), name));
}

/// Plans the destruction of a container, if it is empty then.
fn emptied(plan: &mut Plan, container: &Dataset) {
    plan.guard(container.name.clone(), container.guid);
    plan.step(Step::DestroyEmpty(container.name.clone()));
}

impl Verb for DestroySnapshot<'_> {
    type Done = ();

    fn doing(&self) -> String {
        self.doing_it()
    }

    fn request(&self, pool: &State) -> Result<Request, Error> {
        let mut queries: Vec<Query> = match &self.place.at {
            At::Attached(snapshot) => {
                let marks = self
                    .leaves_mark
                    .then(|| Query::Marks(snapshot.dataset.clone()));
                let snapshot = Query::Snapshot(snapshot.clone());
                std::iter::once(snapshot).chain(marks).collect()
            }
            At::Detached(dataset) => {
                let itself = match pool.dataset(dataset) {
                    None if self.asks_little => Query::Dataset(dataset.clone()),
                    _ => Query::Family(dataset.clone()),
                };
                // The rest of the container is not needed here, and may be large.
                let container = dataset.parent().map(Query::Dataset);
                let ties = ties(self.layout, dataset, pool);
                std::iter::once(itself)
                    .chain(container)
                    .chain(ties)
                    .collect()
            }
        };
        queries.extend(parent_again(self.parent(), pool));
        Ok(Request::of(queries))
    }

    fn request_after(&self, pool: &State) -> Result<Request, Error> {
        Ok(with_parent(self.parent(), self.request(pool)?))
    }

    fn first_try(&self) -> Option<FirstTry> {
        let (At::Attached(snapshot), false) = (&self.place.at, self.leaves_mark) else {
            return None;
        };
        let object = snapshot.clone().into();
        let step = Step::DestroySnapshot(snapshot.clone());
        Some(
            FirstTry::of(snapshot.dataset.clone(), step)
                .expecting(&object, PropertyName::SNAPSHOT_NAME, Test::Own)
                .expecting(&object, PropertyName::GROUP, Test::Is("-".into()))
                .expecting(&object, PropertyName::DEFER_DESTROY, Test::Is("off".into()))
                .unique(id::is_unique(snapshot.leaf.as_str())),
        )
    }

    fn result_of_first_try(&self) -> Option<()> {
        Some(())
    }

    fn plan(&self, asked: &State, seen: &Observed, done: usize) -> Result<Outcome<()>, Error> {
        match &self.place.at {
            At::Attached(snapshot) => self.attached(snapshot, &seen.pool, done),
            At::Detached(dataset) => self.detached(dataset, asked, &seen.pool, done),
        }
    }
}
