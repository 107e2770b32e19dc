//! Deletion: the rules for both volumes and detached snapshots.
//!
//! Children, CSI snapshots, held snapshots and clones outside of our datasets block a deletion.
//! Other snapshots of the dataset are destroyed with it, unless `zfs.deletion.keepForeignSnapshots`
//! keeps those that this driver did not take. A clone among our volumes that depends on one is
//! promoted first.
//!
//! Nothing is destroyed recursively. Every destroyed, renamed or promoted object must be the one
//! that was observed: one that appears in between makes the plan fail.

mod group;
mod snapshot;
mod volume;

use driver_core::{Error, Kind};

pub use self::group::DestroyGroup;
pub use self::snapshot::DestroySnapshot;
pub(super) use self::snapshot::{is_only_container, of_container};
pub use self::volume::DestroyVolume;
use super::{blocked, is_complete, listed};
use crate::id::{self, At, Layout, Parent};
use crate::name::{DatasetName, SnapshotRef};
use crate::observed::{Dataset, Query, Request, Snapshot, State};
use crate::property::PropertyName;
use crate::step::{Plan, Step};

/// A dataset to delete, and what is known of it.
struct Doomed<'a> {
    /// The operation, for errors.
    doing: &'a str,
    layout: &'a Layout,
    dataset: &'a Dataset,
    pool: &'a State,
    keep_foreign: bool,
}

/// The objects that must be observed, in addition to a dataset and its snapshots, before it can be
/// destroyed. The list depends on the dataset itself: a query names what the last state, `asked`, contains,
/// and the answer, `seen`, is complete only if it contains nothing else, see [`were_asked`].
fn ties(layout: &Layout, name: &DatasetName, pool: &State) -> Vec<Query> {
    let Some(dataset) = pool.dataset(name) else {
        return Vec::new();
    };
    let snapshots = pool.snapshots_of(name);
    let origin = dataset.origin().filter(|o| id::is_helper(&o.leaf));
    let original = original(layout, dataset).filter(|_| is_complete(dataset));
    let original = original.filter(|o| snapshots.iter().any(|s| is_copy_of(s, o)));
    let near = heir(layout, &snapshots).and_then(Result::ok);
    let queries = origin.into_iter().chain(original).map(Query::Snapshot);
    queries.chain(near.cloned().map(Query::Dataset)).collect()
}

/// Whether the dependencies of the dataset were queried, when `asked` was the last known state.
fn were_asked(layout: &Layout, name: &DatasetName, asked: &State, seen: &State) -> bool {
    let known = ties(layout, name, asked);
    let wanted = ties(layout, name, seen);
    wanted.iter().all(|query| known.contains(query))
}

/// The source snapshot of a volume, by its records.
fn original(layout: &Layout, dataset: &Dataset) -> Option<SnapshotRef> {
    let id = dataset.properties.own(&PropertyName::SOURCE_ID)?;
    let id = driver_core::SnapshotId::parse(id).ok()?;
    match layout.snapshot(&id).ok()?.at {
        At::Attached(snapshot) => Some(snapshot),
        At::Detached(_) => None,
    }
}

/// Whether a snapshot can have come with a copy of that one: by its name.
fn is_copy_of(snapshot: &Snapshot, original: &SnapshotRef) -> bool {
    snapshot.csi_name().is_none() && snapshot.name.leaf == original.leaf
}

/// The clone to promote, so that all snapshots with clones move to it; `Err` if all clones are
/// outside of our datasets, `None` if there are none.
fn heir<'p>(
    layout: &Layout,
    snapshots: &[&'p Snapshot],
) -> Option<Result<&'p DatasetName, &'p [DatasetName]>> {
    // The newest snapshot with a clone: all older ones move with it.
    let mut newest_first = snapshots.iter().rev().copied();
    let newest = newest_first.find(|s| !s.clones.is_empty())?;
    let near = |clone: &&DatasetName| {
        let mut parents = std::iter::once(&layout.volumes).chain(&layout.detached);
        parents.any(|parent| clone.below(parent).is_some())
    };
    let heir = newest.clones.iter().find(near);
    Some(heir.ok_or(newest.clones.as_slice()))
}

/// Refuses to take what is missing for deleted where its parent is missing, too: that is made with the first volume,
/// or with the first detached snapshot, so this is another storage, or its name is misspelt.
pub(crate) fn has_parent(doing: &str, parent: Parent<'_>, pool: &State) -> Result<(), Error> {
    let Parent { name, key } = parent;
    if pool.dataset(name).is_some() {
        return Ok(());
    }
    let advice = format!(
        "see {key}, and whether this is the storage that the connection means; if it was destroyed on purpose, \
         make it again, empty"
    );
    Err(Error::new(Kind::Unreachable, doing)
        .because(format!("{name} does not exist"))
        .advise(advice))
}

/// The same for what is below several parents.
pub(crate) fn have_parents(doing: &str, parents: &[Parent<'_>], pool: &State) -> Result<(), Error> {
    let mut parents = parents.iter();
    parents.try_for_each(|parent| has_parent(doing, *parent, pool))
}

/// The parent, where the last observation had it: what is missing was looked for below it then.
fn parent_again(parent: Parent<'_>, pool: &State) -> Option<Query> {
    let parent = pool.dataset(parent.name)?;
    Some(Query::Dataset(parent.name.clone()))
}

/// The same request, with the parent: see [`has_parent`].
fn with_parent(parent: Parent<'_>, mut request: Request) -> Request {
    let parent = Query::Dataset(parent.name.clone());
    if !request.queries.contains(&parent) {
        request.queries.push(parent);
    }
    request
}

// === impl Doomed ===

impl Doomed<'_> {
    /// Rejects a dataset that must not be deleted now.
    fn check(&self) -> Result<(), Error> {
        let (doing, name) = (self.doing, &self.dataset.name);
        // A resumable one may have ended: if it still runs, ZFS reports that.
        if self.dataset.is_receiving() && self.dataset.resumes().is_none() {
            let why = format!("a copy into {name} is still running");
            return Err(Error::new(Kind::Pending, doing).because(why));
        }
        let children = self.pool.children_of(name);
        if !children.is_empty() {
            let names = listed(children.iter().map(|child| &child.name));
            let why = format!("there are datasets below it: {names}");
            return Err(
                blocked(doing, why).advise("move them away or destroy them on the storage host")
            );
        }
        let snapshots = self.pool.snapshots_of(name);
        let ours = |snapshot: &&&Snapshot| !snapshot.is_doomed() && snapshot.csi_name().is_some();
        let of_orchestrator: Vec<_> = snapshots.iter().filter(ours).map(|s| &s.name).collect();
        if !of_orchestrator.is_empty() {
            let why = format!("it has snapshots: {}", listed(of_orchestrator));
            return Err(blocked(doing, why).advise("delete these snapshots first"));
        }
        let others = snapshots.iter().filter(|snapshot| !self.is_free(snapshot));
        let others: Vec<_> = others.map(|snapshot| &snapshot.name).collect();
        if !others.is_empty() {
            let why = format!("it has snapshots of other programs: {}", listed(others));
            return Err(blocked(doing, why).advise(
                "destroy them on the storage host, or see zfs.deletion.keepForeignSnapshots",
            ));
        }
        if let Some(held) = snapshots.iter().find(|snapshot| snapshot.is_held()) {
            let known = held.properties.number(&PropertyName::USERREFS).is_some();
            let why = if known {
                format!("snapshot {} is held", held.name)
            } else {
                format!("whether snapshot {} is held is not known", held.name)
            };
            return Err(
                blocked(doing, why).advise("see `zfs holds` and `zfs release` on the storage host")
            );
        }
        let received = |snapshot: &&&Snapshot| !snapshot.hidden.is_empty();
        if let Some(snapshot) = snapshots.iter().find(received)
            && !self.has_interrupted_round()
        {
            let why = format!("a `zfs receive` into {} is still running", snapshot.name);
            return Err(blocked(doing, why)
                .advise("let it end, or end it by `zfs receive -A` on the storage host"));
        }
        if let Some(Err(clones)) = heir(self.layout, &snapshots) {
            let why = format!("it has clones: {}", listed(clones));
            return Err(
                blocked(doing, why).advise("promote or destroy that clone on the storage host")
            );
        }
        Ok(())
    }

    /// Whether a round of a move into it was interrupted. It may still run: if so, ZFS reports that.
    fn has_interrupted_round(&self) -> bool {
        let resumes = self.dataset.resumes().is_some();
        resumes && !self.dataset.is_receiving() && !is_complete(self.dataset)
    }

    /// Whether a snapshot may be destroyed with the dataset.
    fn is_free(&self, snapshot: &Snapshot) -> bool {
        if !self.keep_foreign {
            return true;
        }
        let helper = id::is_helper(&snapshot.name.leaf) && snapshot.csi_name().is_none();
        snapshot.is_doomed() || helper || self.came_with_copy(snapshot)
    }

    /// For an incomplete volume the name is proof, because only this driver created it. For a
    /// complete one the GUID must match: a received snapshot has the GUID of the one that was sent.
    fn came_with_copy(&self, snapshot: &Snapshot) -> bool {
        let original = original(self.layout, self.dataset);
        let Some(original) = original.filter(|o| is_copy_of(snapshot, o)) else {
            return false;
        };
        let sent = self.pool.snapshot(&original);
        !is_complete(self.dataset) || sent.is_some_and(|sent| sent.guid == snapshot.guid)
    }

    /// Plans the steps that remove the snapshots of the dataset and the helper that it is a clone
    /// of.
    fn release(&self, plan: &mut Plan) {
        if self.has_interrupted_round() {
            // It keeps the snapshot that it adds to.
            plan.step(Step::Abandon(self.dataset.name.clone()));
        }
        self.doom_origin(plan);
        let snapshots = self.pool.snapshots_of(&self.dataset.name);
        // Snapshots marked for deferred destroy need no further step, and a new snapshot that takes
        // such a name is another one.
        for snapshot in snapshots.iter().filter(|snapshot| !snapshot.is_doomed()) {
            plan.guard(snapshot.name.clone(), snapshot.guid);
            plan.step(Step::DestroySnapshot(snapshot.name.clone()));
        }
        for snapshot in snapshots.iter().filter(|s| !s.clones.is_empty()) {
            let to = id::aside(snapshot.guid);
            if snapshot.is_doomed() {
                plan.guard(snapshot.name.clone(), snapshot.guid);
            }
            if snapshot.name.leaf != to {
                let snapshot = snapshot.name.clone();
                plan.step(Step::Rename { snapshot, to });
            }
        }
    }

    /// Marks the origin of the dataset, a helper snapshot, for deferred destroy, so that it is
    /// destroyed with the dataset. This driver marks its helpers from the beginning; democratic-csi
    /// only does so at the deletion. A snapshot of the orchestrator may have a name like that, too.
    fn doom_origin(&self, plan: &mut Plan) {
        let origin = self.dataset.origin().filter(|o| id::is_helper(&o.leaf));
        let origin = origin.and_then(|name| self.pool.snapshot(&name));
        let helper = |s: &&Snapshot| s.csi_name().is_none() && !s.is_doomed();
        if let Some(origin) = origin.filter(helper) {
            plan.guard(origin.name.clone(), origin.guid);
            plan.step(Step::DestroySnapshot(origin.name.clone()));
        }
    }

    /// Plans the promotion of a clone, which takes over the snapshots with clones; false if that
    /// clone was gone when it was read, so that another observation is needed.
    fn hand_over(&self, plan: &mut Plan) -> bool {
        let snapshots = self.pool.snapshots_of(&self.dataset.name);
        if let Some(Ok(heir)) = heir(self.layout, &snapshots) {
            let Some(heir) = self.pool.dataset(heir) else {
                return false;
            };
            plan.guard(heir.name.clone(), heir.guid);
            plan.step(Step::Promote(heir.name.clone()));
        }
        true
    }

    /// Plans the destruction of the dataset.
    fn destroy(&self, plan: &mut Plan) {
        plan.guard(self.dataset.name.clone(), self.dataset.guid);
        plan.step(Step::DestroyDataset(self.dataset.name.clone()));
    }
}
