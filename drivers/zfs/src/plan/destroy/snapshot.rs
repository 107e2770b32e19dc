//! Deleting a snapshot of the orchestrator: one of a volume, or one that is a dataset.
//!
//! A detached one lies in a dataset that holds those of its volume and goes with the last of them.
//! That container is known by our mark, or by the snapshot of democratic-csi in it. One with files in
//! it stays.

use driver_core::Error;

use super::{Doomed, ties, were_asked};
use crate::id::{At, Layout, SnapshotPlace};
use crate::name::{DatasetName, SnapshotRef};
use crate::observed::{Dataset, Observed, Query, Request, Snapshot, State, VolumeKind};
use crate::plan::owner::Owner;
use crate::plan::{Outcome, Verb, blocked};
use crate::policy::value_of;
use crate::property::{Property, PropertyName, PropertyValue};
use crate::step::{Guess, Plan, Step, Test};

/// A marked filesystem that refers to more holds files that somebody has put there since. Empty ones
/// refer to some hundred KiB at most, on the widest stripes. One that refers to less may hold small
/// files: whoever destroys it looks for those ([`Step::DestroyEmpty`]).
const EMPTY: u64 = 1 << 20;

const NOT_OURS: &str = "whoever made it can destroy it on the storage host";

/// Removes a snapshot.
#[derive(Debug)]
pub struct DeleteSnapshot<'a> {
    /// Where things lie.
    pub layout: &'a Layout,
    /// The snapshot.
    pub place: SnapshotPlace,
    /// Who deletes it.
    pub owner: Owner<'a>,
    /// Whether a detached one with snapshots that this driver did not take is kept.
    pub keep_foreign: bool,
}

/// Whether a dataset is a snapshot of ours, be it half made.
fn is_ours(dataset: &Dataset) -> bool {
    let named = dataset.properties.own(&PropertyName::SNAPSHOT_NAME);
    dataset.is_managed() || named.is_some()
}

/// Whether a dataset was made to hold detached snapshots, and nobody has used it for anything else.
/// democratic-csi leaves no mark on those that it makes. compat: "ZFS".
pub(in crate::plan) fn is_only_container(dataset: &Dataset) -> bool {
    let used = dataset.properties.number(&PropertyName::REFERENCED);
    dataset.is_container() && used.is_some_and(|used| used < EMPTY)
}

// === impl DeleteSnapshot ===

impl DeleteSnapshot<'_> {
    /// The end, if this was looked at under the lock: what is not there may be in the making, by
    /// what a cut connection left running.
    fn absent<R>(plan: Plan<R>, done: usize) -> Outcome<(), R> {
        if done > 0 {
            Outcome::Done(())
        } else {
            Outcome::Do(plan)
        }
    }

    fn attached<R>(
        &self,
        name: &SnapshotRef,
        pool: &State,
        done: usize,
    ) -> Result<Outcome<(), R>, Error> {
        let mut plan = Plan::about(name.dataset.clone());
        let there = |snapshot: &&Snapshot| !snapshot.is_doomed();
        let Some(snapshot) = pool.snapshot(name).filter(there) else {
            return Ok(Self::absent(plan, done));
        };
        if snapshot.csi_name().is_none() {
            let why = format!("{name} exists, and is not a snapshot of this driver");
            return Err(blocked(&self.doing_it(), why).advise(NOT_OURS));
        }
        plan.guard(name.clone(), snapshot.guid);
        plan.step(Step::DestroySnapshot(name.clone()));
        Ok(Outcome::End(plan, ()))
    }

    fn detached<R>(
        &self,
        name: &DatasetName,
        asked: &State,
        pool: &State,
        done: usize,
    ) -> Result<Outcome<(), R>, Error> {
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
            return Ok(Self::absent(plan, done));
        };
        if !is_ours(dataset) {
            let why = format!("{name} exists, and is not a snapshot of this driver");
            return Err(blocked(&doing, why).advise(NOT_OURS));
        }
        if !were_asked(self.layout, name, asked, pool) {
            return Ok(Outcome::Ask);
        }
        let doomed = Doomed {
            doing: &doing,
            layout: self.layout,
            dataset,
            pool,
            keep_foreign: self.keep_foreign,
        };
        doomed.check()?;
        doomed.release(&mut plan);
        if !doomed.hand_over(&mut plan) {
            return Ok(Outcome::Ask);
        }
        if let Some(container) = container.filter(|container| !container.is_container()) {
            // A retry knows it by the mark, when the snapshot in it is gone.
            let mut properties = vec![Property::new(PropertyName::CONTAINER, PropertyValue::yes())];
            properties.extend(self.owner.marks());
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

    /// Whether democratic-csi made it to hold detached snapshots. It leaves no mark, so the snapshot
    /// in it says so: a whole one, of the volume that the container is named after. compat: "ZFS".
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

    fn doing_it(&self) -> String {
        format!(
            "delete snapshot `{}` of `{}`",
            self.place.leaf, self.place.volume
        )
    }
}

/// What a dataset has that is made to hold detached snapshots. It is never mounted, so that nobody puts
/// files into it without saying so.
pub(in crate::plan) fn of_container(owner: Owner<'_>) -> Vec<Property> {
    let mut all = vec![
        Property::new(PropertyName::CONTAINER, PropertyValue::yes()),
        Property::new(PropertyName::CANMOUNT, value_of("off")),
    ];
    all.extend(owner.marks());
    all
}

/// Plans the end of a container, if nothing is in it then.
fn emptied<R>(plan: &mut Plan<R>, container: &Dataset) {
    plan.guard(container.name.clone(), container.guid);
    plan.step(Step::DestroyEmpty(container.name.clone()));
}

impl<R, A> Verb<R, A> for DeleteSnapshot<'_> {
    type Done = ();

    fn doing(&self) -> String {
        self.doing_it()
    }

    fn request(&self, pool: &State) -> Result<Request<R>, Error> {
        Ok(Request::of(match &self.place.at {
            At::Attached(snapshot) => vec![Query::Snapshot(snapshot.clone())],
            At::Detached(dataset) => {
                // What else is in the container is no business of this one, and may be a lot.
                let container = dataset.parent().map(Query::Dataset);
                let itself = Query::Family(dataset.clone());
                let ties = ties(self.layout, dataset, pool);
                std::iter::once(itself)
                    .chain(container)
                    .chain(ties)
                    .collect()
            }
        }))
    }

    fn guess(&self) -> Option<Guess<R>> {
        let At::Attached(snapshot) = &self.place.at else {
            return None;
        };
        let object = snapshot.clone().into();
        let step = Step::DestroySnapshot(snapshot.clone());
        Some(
            Guess::of(snapshot.dataset.clone(), step)
                .expecting(&object, PropertyName::SNAPSHOT_NAME, Test::Own)
                .expecting(&object, PropertyName::DEFER_DESTROY, Test::Is("off".into())),
        )
    }

    fn guessed(&self) -> Option<()> {
        Some(())
    }

    fn plan(
        &self,
        asked: &State,
        seen: &Observed<A>,
        done: usize,
    ) -> Result<Outcome<(), R>, Error> {
        match &self.place.at {
            At::Attached(snapshot) => self.attached(snapshot, &seen.pool, done),
            At::Detached(dataset) => self.detached(dataset, asked, &seen.pool, done),
        }
    }
}
