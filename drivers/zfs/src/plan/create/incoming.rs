//! Content to another host, or from one: what exists of it, and what is created for it.
//!
//! The stream itself is not a step of a plan: its length is unbounded, and it may resume where it
//! was interrupted. This module knows from which snapshot it starts, and the requirements for the
//! dataset that it fills.

use driver_core::{Error, Kind};

use super::{Create, take};
use crate::name::{DatasetName, Object, SnapshotRef};
use crate::observed::{Dataset, Observed, Query, Request, Snapshot, State, VolumeKind};
use crate::plan::{Outcome, Verb, is_complete};
use crate::property::{Properties, Property, PropertyName};
use crate::step::{New, Plan, Step};

/// The part that exists of a volume that is filled from elsewhere.
#[derive(Debug)]
pub enum Arrival {
    /// Nothing.
    Nothing,
    /// A part, which can resume.
    Part(Dataset),
    /// All of the content: only the rest of a volume is missing, or nothing.
    Content,
}

/// Takes the helper snapshot that is the source of a copy elsewhere.
#[derive(Debug)]
pub struct TakeHelper {
    /// The dataset that is copied.
    pub of: DatasetName,
    /// The helper.
    pub helper: SnapshotRef,
}

/// Removes it.
#[derive(Debug)]
pub struct DropHelper {
    /// The dataset that is copied.
    pub of: DatasetName,
    /// The helper.
    pub helper: SnapshotRef,
}

/// The content of a source, if it exists and is complete.
pub fn content_of<'p>(named: &Object, pool: &'p State) -> Option<(VolumeKind, &'p Properties)> {
    match named {
        Object::Snapshot(name) => {
            let there = |snapshot: &&Snapshot| !snapshot.is_doomed();
            let snapshot = pool.snapshot(name).filter(there)?;
            let zvol = snapshot.properties.number(&PropertyName::VOLSIZE).is_some();
            let kind = if zvol {
                VolumeKind::Zvol
            } else {
                VolumeKind::Filesystem
            };
            Some((kind, &snapshot.properties))
        }
        Object::Dataset(name) => {
            let whole = |source: &&Dataset| {
                let made = source.properties.own(&PropertyName::SUCCESS).is_some();
                is_complete(source) || (source.is_managed() && made)
            };
            let dataset = pool.dataset(name).filter(whole)?;
            Some((dataset.kind, &dataset.properties))
        }
    }
}

// === impl Create ===

impl Create<'_> {
    /// The queries before a stream is received.
    pub fn queries_before(&self) -> Vec<Query> {
        let mut queries = vec![Query::Family(self.name().clone())];
        queries.extend(self.name().parent().map(Query::Dataset));
        queries.extend(self.twins.iter().cloned().map(Query::Dataset));
        if self.kind == VolumeKind::Zvol {
            queries.push(Query::System);
        }
        queries
    }

    /// The part of the volume that exists.
    pub fn arrival(&self, pool: &State) -> Result<Arrival, Error> {
        let Some(dataset) = pool.dataset(self.name()) else {
            return Ok(Arrival::Nothing);
        };
        if !dataset.is_receiving() {
            return Ok(Arrival::Content);
        }
        self.recognise(dataset, pool)?;
        if dataset.resumes().is_none() {
            let why = format!("a copy into {} is still running", self.name());
            return Err(self.refused(Kind::Pending).because(why));
        }
        Ok(Arrival::Part(dataset.clone()))
    }

    /// The properties of a dataset of that size from its first moment.
    pub fn properties_of(&self, pool: &State, least: u64) -> Result<Vec<Property>, Error> {
        self.check_device(pool.system())?;
        let size = self.size(Some(least), self.block)?;
        self.properties(pool, size)
    }

    /// The properties of a dataset that is filled in rounds, from its first moment. Its size and its export come when it
    /// is completed: until then nothing reaches it, and its source may grow.
    pub fn properties_between(&self, pool: &State) -> Result<Vec<Property>, Error> {
        self.check_device(pool.system())?;
        let mut all = self
            .policy
            .of_volume(self.kind, self.request, &self.class)?;
        all.retain(|property| property.name != PropertyName::REFQUOTA);
        Ok(all)
    }

    /// The parent of a received stream must exist.
    pub fn parent(&self, pool: &State) -> Option<Plan> {
        let parent = self.name().parent()?;
        if pool.dataset(&parent).is_some() {
            return None;
        }
        let mut plan = Plan::about(self.name().clone());
        plan.step(Step::Create {
            dataset: parent,
            new: New::Filesystem,
            properties: Vec::new(),
        });
        Some(plan)
    }
}

/// The plan that removes a part that cannot resume.
pub fn given_up(part: &Dataset) -> Plan {
    let mut plan = Plan::about(part.name.clone());
    plan.guard(part.name.clone(), part.guid);
    plan.step(Step::DestroyDataset(part.name.clone()));
    plan
}

impl Verb for TakeHelper {
    type Done = ();

    fn doing(&self) -> String {
        format!("take snapshot {}", self.helper)
    }

    fn request(&self, _: &State) -> Result<Request, Error> {
        let of = Query::Dataset(self.of.clone());
        Ok(Request::of([of, Query::Snapshot(self.helper.clone())]))
    }

    fn plan(&self, _: &State, seen: &Observed, done: usize) -> Result<Outcome<()>, Error> {
        if done > 0 {
            return Ok(Outcome::Done(()));
        }
        let doing = || Verb::doing(self);
        if content_of(&self.of.clone().into(), &seen.pool).is_none() {
            let why = format!("{} does not exist", self.of);
            return Err(Error::not_found(doing()).because(why));
        }
        let mut plan = Plan::about(self.of.clone());
        take(&mut plan, &self.helper, &seen.pool)
            .map_err(|why| Error::new(Kind::Conflict, doing()).because(why))?;
        Ok(Outcome::Do(plan))
    }
}

impl Verb for DropHelper {
    type Done = ();

    fn doing(&self) -> String {
        format!("remove snapshot {}", self.helper)
    }

    fn request(&self, _: &State) -> Result<Request, Error> {
        Ok(Request::of([Query::Snapshot(self.helper.clone())]))
    }

    fn plan(&self, _: &State, seen: &Observed, _: usize) -> Result<Outcome<()>, Error> {
        let helper = seen.pool.snapshot(&self.helper);
        let ours = |helper: &&Snapshot| helper.csi_name().is_none() && !helper.is_doomed();
        let Some(helper) = helper.filter(ours) else {
            return Ok(Outcome::Done(()));
        };
        let mut plan = Plan::about(self.of.clone());
        plan.guard(helper.name.clone(), helper.guid);
        plan.step(Step::DestroySnapshot(helper.name.clone()));
        Ok(Outcome::Do(plan))
    }
}
