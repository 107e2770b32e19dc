//! Taking a snapshot: of the volume's dataset, or as a dataset of its own.
//!
//! An attached one is complete in one step. A detached one is a copy of a helper snapshot, and is
//! marked when the helpers are gone. Where a copy gets its properties after its content, an interrupted
//! one is recognised by the helper that came with it. A name belongs to one snapshot: the host is
//! searched for others, unless the name itself is unique. That search grows with the number of volumes.

use std::collections::BTreeSet;

use driver_core::{Error, Kind, SnapshotName};

use super::create::take;
use super::destroy::of_container;
use super::named::{OtherNames, put_aside};
use super::owner::Owner;
use super::{Leftover, Outcome, Verb, going_on, is_complete};
use crate::id::{self, At, Layout, SnapshotPlace};
use crate::name::{DatasetName, NameError, Object, SnapshotRef};
use crate::observed::{Dataset, Observed, Query, Request, Snapshot, State, VolumeKind};
use crate::policy::value_of;
use crate::property::{Properties, Property, PropertyName, PropertyValue};
use crate::step::{New, Plan, Step};

/// The marks that a dataset has once something was made of it.
const MARKS: [PropertyName; 7] = [
    PropertyName::MANAGED,
    PropertyName::VOLUME_NAME,
    PropertyName::SNAPSHOT_NAME,
    PropertyName::PROVISIONER,
    PropertyName::INSTANCE,
    PropertyName::CONTEXT,
    PropertyName::CONTAINER,
];

/// Takes a snapshot.
#[derive(Debug)]
pub struct TakeSnapshot<'a> {
    /// The layout of the connection.
    pub layout: &'a Layout,
    /// The connection that takes it.
    pub owner: Owner<'a>,
    /// The place of the new snapshot.
    pub place: SnapshotPlace,
    /// The requested name.
    pub name: &'a SnapshotName,
    /// The dataset of its volume.
    pub source: DatasetName,
    /// Its properties from its first moment, except the mark that it is complete.
    pub properties: Vec<Property>,
}

/// A snapshot of the orchestrator that exists.
#[derive(Debug, Clone)]
pub struct Taken {
    /// Its place.
    pub place: SnapshotPlace,
    /// The known properties of it.
    pub properties: Properties,
}

/// The lock for a detached snapshot: the container of all those of its volume.
fn lock_of(name: &DatasetName) -> DatasetName {
    name.parent().unwrap_or_else(|| name.clone())
}

/// The marks of a snapshot of ours. compat: "ZFS".
pub fn contract(name: &SnapshotName, place: &SnapshotPlace) -> Vec<Property> {
    vec![
        Property::new(PropertyName::SNAPSHOT_NAME, value_of(name.as_str())),
        Property::new(
            PropertyName::SNAPSHOT_SOURCE,
            value_of(place.volume.as_str()),
        ),
        Property::new(PropertyName::MANAGED, PropertyValue::yes()),
    ]
}

// === impl TakeSnapshot ===

impl TakeSnapshot<'_> {
    fn refused(&self, kind: Kind) -> Error {
        let (leaf, volume) = (&self.place.leaf, &self.place.volume);
        Error::new(kind, format!("take snapshot `{leaf}` of volume `{volume}`"))
    }

    fn too_long(&self) -> impl Fn(NameError) -> Error + '_ {
        |error| self.refused(Kind::Invalid).because(error)
    }

    fn text(&self) -> PropertyValue {
        value_of(self.name.as_str())
    }

    fn helper(&self) -> Result<SnapshotRef, NameError> {
        self.source.at(&id::helper_for_snapshot(&self.place.leaf)?)
    }

    /// The queries for the snapshot and its volume.
    fn queries(&self) -> Result<Vec<Query>, Error> {
        let mut queries = vec![Query::Dataset(self.source.clone())];
        match &self.place.at {
            At::Attached(snapshot) => queries.push(Query::Snapshot(snapshot.clone())),
            At::Detached(dataset) => {
                queries.push(Query::Family(dataset.clone()));
                queries.extend(dataset.parent().map(Query::Dataset));
                queries.push(Query::Snapshot(self.helper().map_err(self.too_long())?));
            }
        }
        Ok(queries)
    }

    /// The parent of detached snapshots, where this one needs its pool: a plain snapshot does not need that of
    /// detached ones. compat: "ZFS".
    fn detached_parent(&self) -> Option<&DatasetName> {
        self.layout.detached.as_ref().filter(|detached| {
            let same_pool = detached.pool() == self.layout.volumes.pool();
            same_pool || matches!(self.place.at, At::Detached(_))
        })
    }

    /// The snapshot of this name and volume that is detached where this one is not, and the other way round.
    fn twin(&self) -> Option<Object> {
        let (volume, leaf) = (&self.place.volume, &self.place.leaf);
        let place = match self.place.at {
            At::Attached(_) => {
                self.detached_parent()?;
                self.layout.detached(volume, leaf)
            }
            At::Detached(_) => self.layout.attached(volume, leaf),
        };
        place.ok().map(|place| place.object())
    }

    /// Other snapshots of this name.
    fn others(&self) -> OtherNames<'_> {
        OtherNames {
            layout: self.layout,
            name: self.text(),
            itself: BTreeSet::from([self.place.object()]),
            twin: self.twin(),
        }
    }

    /// Whether the existing snapshot was taken by this request; otherwise why not.
    fn recognise(&self, properties: &Properties) -> Result<(), Error> {
        let own = |name| properties.own(&name);
        let name = own(PropertyName::SNAPSHOT_NAME) == Some(self.text().as_str());
        let volume = own(PropertyName::SNAPSHOT_SOURCE);
        let volume = volume.is_none_or(|volume| volume == self.place.volume.as_str());
        if name && volume && own(PropertyName::GROUP).is_none() {
            return Ok(());
        }
        let why = format!(
            "{} exists, and was not taken by this request",
            self.place.object()
        );
        Err(self.refused(Kind::Conflict).because(why))
    }

    /// The same for a dataset, by its marks: its volume may be gone, and another connection may
    /// have one of that name by now. An attached snapshot is on its volume.
    fn recognise_copy(&self, copy: &Dataset) -> Result<(), Error> {
        if self.owner.is_another(copy) {
            let why = format!("{} is of another driver or instance_id", copy.name);
            return Err(self.refused(Kind::Conflict).because(why));
        }
        self.recognise(&copy.properties)
    }

    /// Whether a dataset without any of our marks is the copy that this request made: all of its content is
    /// there, with the helper that was sent, which no other program takes.
    fn is_bare_copy(&self, copy: &Dataset, pool: &State) -> bool {
        let bare = MARKS.iter().all(|mark| copy.properties.own(mark).is_none());
        let Ok(helper) = self.helper() else {
            return false;
        };
        let came = copy.name.at(&helper.leaf);
        let came = came.ok().and_then(|name| pool.snapshot(&name));
        let Some(came) = came.filter(|came| !came.is_doomed() && came.csi_name().is_none()) else {
            return false;
        };
        let same = match pool.snapshot(&helper) {
            Some(sent) => sent.guid == came.guid,
            // It goes with its volume.
            None => pool.dataset(&self.source).is_none(),
        };
        bare && same && copy.kind == self.layout.kind && !copy.is_receiving()
    }

    fn attached(&self, name: &SnapshotRef, pool: &State) -> Result<Outcome<Taken>, Error> {
        let mut plan = Plan::about(self.source.clone());
        match pool.snapshot(name) {
            Some(old) if old.is_doomed() => {
                put_aside(&mut plan, old, |kind| self.refused(kind))?;
            }
            Some(snapshot) => {
                self.recognise(&snapshot.properties)?;
                if !snapshot.properties.has(&success()) {
                    plan.guard(name.clone(), snapshot.guid);
                    plan.step(marked(name.clone()));
                    return Ok(Outcome::Do(plan));
                }
                return Ok(Outcome::Done(self.taken(&snapshot.properties)));
            }
            None => {}
        }
        let mut properties = self.properties.clone();
        properties.push(success());
        plan.step(Step::Snapshot {
            snapshots: vec![name.clone()],
            properties,
        });
        Ok(Outcome::Do(plan))
    }

    fn detached(&self, name: &DatasetName, pool: &State) -> Result<Outcome<Taken>, Error> {
        let helper = self.helper().map_err(self.too_long())?;
        let on_copy = name.at(&helper.leaf).map_err(self.too_long())?;
        let mut plan = Plan::about(lock_of(name));
        if let Some(dataset) = pool.dataset(name) {
            if dataset.is_receiving() {
                if dataset.resumes().is_none() && !self.owner.is_another(dataset) {
                    let why = format!("a copy into {name} is still running");
                    return Err(self.refused(Kind::Pending).because(why));
                }
                self.recognise_copy(dataset)?;
                return Ok(Outcome::Do(going_on(&plan.lock, dataset, &helper)));
            }
            if self.is_bare_copy(dataset, pool) {
                let fit = self.properties.iter();
                let fit = fit.filter(|property| !property.name.is_for_new_only());
                plan.step(Step::Set {
                    object: name.clone().into(),
                    properties: fit.cloned().collect(),
                });
            } else {
                self.recognise_copy(dataset)?;
            }
            let left = |s: &&Snapshot| !s.is_doomed() && s.csi_name().is_none();
            let seen = [&helper, &on_copy].map(|name| pool.snapshot(name));
            for left in seen.into_iter().flatten().filter(left) {
                plan.guard(left.name.clone(), left.guid);
                plan.step(Step::DestroySnapshot(left.name.clone()));
            }
            if !dataset.properties.has(&success()) {
                plan.step(marked(name.clone()));
            }
            if plan.is_empty() {
                return Ok(Outcome::Done(self.taken(&dataset.properties)));
            }
            plan.guard(name.clone(), dataset.guid);
            return Ok(Outcome::Do(plan));
        }
        let container = name
            .parent()
            .filter(|container| pool.dataset(container).is_none());
        plan.add(container.map(|dataset| Step::Create {
            dataset,
            new: New::Filesystem,
            properties: of_container(self.owner),
        }));
        take(&mut plan, &helper, pool).map_err(|why| self.refused(Kind::Conflict).because(why))?;
        plan.step(Step::Copy {
            from: helper.clone(),
            to: name.clone(),
            properties: self.properties.clone(),
        });
        plan.add([helper, on_copy].map(Step::DestroySnapshot));
        plan.step(marked(name.clone()));
        Ok(Outcome::Do(plan))
    }

    /// Whether this snapshot is a complete dataset except for its mark, or a part that resumes or
    /// is removed.
    fn stands_alone(&self, pool: &State) -> bool {
        let At::Detached(name) = &self.place.at else {
            return false;
        };
        let stays = |copy: &&Dataset| !copy.is_receiving() || copy.resumes().is_some();
        let copy = pool.dataset(name).filter(stays);
        copy.is_some_and(|copy| {
            let marked = copy.is_managed() && self.recognise_copy(copy).is_ok();
            marked || self.is_bare_copy(copy, pool)
        })
    }

    fn taken(&self, properties: &Properties) -> Taken {
        Taken {
            place: self.place.clone(),
            properties: properties.clone(),
        }
    }
}

pub(super) fn success() -> Property {
    Property::new(PropertyName::SUCCESS, PropertyValue::yes())
}

fn marked(object: impl Into<Object>) -> Step {
    Step::Set {
        object: object.into(),
        properties: vec![success()],
    }
}

impl Verb for TakeSnapshot<'_> {
    type Done = Taken;

    fn doing(&self) -> String {
        format!(
            "take snapshot `{}` of `{}`",
            self.place.leaf, self.place.volume
        )
    }

    fn request(&self, pool: &State) -> Result<Request, Error> {
        let mut queries = self.queries()?;
        let others = self.others();
        let twin = if id::is_unique(self.name.as_str()) {
            self.twin()
        } else {
            queries.push(others.query(self.detached_parent(), &self.place.leaf));
            None
        };
        // The objects that may have the name, by the last observation.
        let found = others.found(pool).into_iter().chain(twin);
        queries.extend(found.map(Query::of));
        Ok(Request {
            is_new: true,
            ..Request::of(queries)
        })
    }

    /// No further check for another snapshot of that name: it was made before the plan, it scans
    /// the whole pool, and it no longer decides anything.
    fn request_after(&self, _pool: &State) -> Result<Request, Error> {
        Ok(Request::of(self.queries()?))
    }

    fn plan(&self, asked: &State, seen: &Observed, _done: usize) -> Result<Outcome<Taken>, Error> {
        let there = |source: &&Dataset| is_complete(source) && source.kind == self.layout.kind;
        let is_there = seen.pool.dataset(&self.source).as_ref().is_some_and(there);
        // A copy of an earlier call no longer needs its volume, and has no owner until it is
        // marked.
        if !is_there && !self.stands_alone(&seen.pool) {
            return Err(self
                .refused(Kind::NotFound)
                .because("there is no such volume"));
        }
        let others = self.others();
        match others.is_taken(asked, &seen.pool) {
            None => return Ok(Outcome::Ask),
            Some(true) => {
                let names = super::listed(others.found(&seen.pool));
                let why = format!("another snapshot has this name: {names}");
                return Err(self.refused(Kind::Conflict).because(why));
            }
            Some(false) => {}
        }
        match &self.place.at {
            At::Attached(snapshot) => self.attached(snapshot, &seen.pool),
            At::Detached(dataset) => self.detached(dataset, &seen.pool),
        }
    }

    fn is_begun(&self, seen: &State) -> bool {
        match &self.place.at {
            At::Attached(name) => seen.snapshot(name).is_some_and(|there| !there.is_doomed()),
            At::Detached(name) => seen.dataset(name).is_some(),
        }
    }

    fn noop_under_lock(&self) -> Option<Plan> {
        match &self.place.at {
            At::Attached(_) => None,
            At::Detached(name) => Some(Plan::about(lock_of(name))),
        }
    }

    fn leftover(&self, seen: &State) -> Leftover {
        let (At::Detached(name), Ok(helper)) = (&self.place.at, self.helper()) else {
            return Leftover::Something;
        };
        let mut plan = Plan::about(lock_of(name));
        if let Some(part) = seen.dataset(name) {
            let ours = part.is_receiving() && part.resumes().is_some();
            if !ours || self.recognise_copy(part).is_err() {
                return Leftover::Something;
            }
            plan.guard(name.clone(), part.guid);
            plan.step(Step::DestroyDataset(name.clone()));
        }
        // Only this verb takes it.
        let ours = |helper: &&Snapshot| !helper.is_doomed() && helper.csi_name().is_none();
        if let Some(helper) = seen.snapshot(&helper).filter(ours) {
            plan.guard(helper.name.clone(), helper.guid);
            plan.step(Step::DestroySnapshot(helper.name.clone()));
        }
        if plan.is_empty() {
            Leftover::Nothing
        } else {
            Leftover::OnTheWay(plan)
        }
    }
}

// === impl Taken ===

impl Taken {
    /// The bytes that a volume made of it needs at least.
    pub fn size(&self, kind: VolumeKind) -> u64 {
        let number = |name| self.properties.number(&name).unwrap_or_default();
        match kind {
            VolumeKind::Zvol => number(PropertyName::VOLSIZE),
            VolumeKind::Filesystem => {
                number(PropertyName::REFERENCED).max(number(PropertyName::LOGICALREFERENCED))
            }
        }
    }
}
