//! Taking a group of snapshots: all in one step, so that there is all of it or nothing.

use driver_core::{Error, Kind, SnapshotName};

use super::named::{OtherNames, put_aside};
use super::snapshot::{Taken, success};
use super::{Outcome, Verb, is_complete, listed};
use crate::id::{self, GroupPlace, Layout};
use crate::observed::{Dataset, Observed, Query, Request, Snapshot, State};
use crate::policy::value_of;
use crate::property::{Property, PropertyName, PropertyValue};
use crate::step::{Plan, Step};

/// Takes a group of snapshots.
#[derive(Debug)]
pub struct TakeGroup<'a> {
    /// The layout of the connection.
    pub layout: &'a Layout,
    /// The id and the members of the new group.
    pub group: GroupPlace,
    /// The requested name.
    pub name: &'a SnapshotName,
    /// The properties of each snapshot from its first moment, except the mark that it is complete.
    pub properties: Vec<Property>,
}

/// The marks of each snapshot of a group: the same for all, because one command takes them. The volume of a
/// snapshot is that of its dataset. compat: "ZFS".
pub fn contract(name: &SnapshotName, group: &GroupPlace) -> Vec<Property> {
    vec![
        Property::new(PropertyName::SNAPSHOT_NAME, value_of(name.as_str())),
        Property::new(PropertyName::GROUP, value_of(group.id.as_str())),
        Property::new(PropertyName::MANAGED, PropertyValue::yes()),
    ]
}

// === impl GroupPlace ===

impl GroupPlace {
    /// Those of its snapshots that exist.
    pub fn left<'p>(&self, pool: &'p State) -> Vec<&'p Snapshot> {
        let own = |snapshot: &&Snapshot| {
            !snapshot.is_doomed() && snapshot.group() == Some(self.id.as_str())
        };
        let seen = self.snapshots().filter_map(|name| pool.snapshot(name));
        seen.filter(own).collect()
    }

    /// All of its snapshots; `None` if one is missing.
    pub fn taken(&self, pool: &State) -> Option<Vec<Taken>> {
        let left = self.left(pool);
        let all = left.len() == self.members.len();
        let taken = self
            .members
            .iter()
            .zip(left)
            .map(|((_, place), found)| Taken {
                place: place.clone(),
                properties: found.properties.clone(),
            });
        all.then(|| taken.collect())
    }
}

// === impl TakeGroup ===

impl TakeGroup<'_> {
    fn refused(&self, kind: Kind) -> Error {
        Error::new(kind, self.doing())
    }

    fn others(&self) -> OtherNames<'_> {
        let itself = self.group.snapshots().cloned();
        OtherNames {
            layout: self.layout,
            name: value_of(self.name.as_str()),
            itself: itself.map(Into::into).collect(),
            twin: None,
        }
    }

    /// The queries for the snapshots and their volumes.
    fn queries(&self) -> Vec<Query> {
        let datasets = self.group.snapshots();
        let datasets = datasets.map(|snapshot| Query::Dataset(snapshot.dataset.clone()));
        let snapshots = self.group.snapshots().cloned().map(Query::Snapshot);
        datasets.chain(snapshots).collect()
    }
}

impl Verb for TakeGroup<'_> {
    type Done = Vec<Taken>;

    fn doing(&self) -> String {
        let count = self.group.members.len();
        format!("take group snapshot `{}` of {count} volumes", self.group.id)
    }

    fn request(&self, pool: &State) -> Result<Request, Error> {
        let mut queries = self.queries();
        let others = self.others();
        if let Some((_, first)) = self.group.members.first()
            && !id::is_unique(self.name.as_str())
        {
            let detached = self.layout.detached.as_ref();
            let detached = detached.filter(|name| name.pool() == self.layout.volumes.pool());
            queries.push(others.query(detached, &first.leaf));
        }
        queries.extend(others.found(pool).into_iter().map(Query::of));
        Ok(Request {
            is_new: true,
            ..Request::of(queries)
        })
    }

    /// No further search for the name: see [`super::snapshot::TakeSnapshot`].
    fn request_after(&self, _pool: &State) -> Result<Request, Error> {
        Ok(Request::of(self.queries()))
    }

    fn plan(
        &self,
        asked: &State,
        seen: &Observed,
        _done: usize,
    ) -> Result<Outcome<Vec<Taken>>, Error> {
        let pool = &seen.pool;
        let there = |source: &&Dataset| is_complete(source) && source.kind == self.layout.kind;
        let missing = self.group.members.iter().filter(|(snapshot, _)| {
            let dataset = pool.dataset(&snapshot.dataset);
            dataset.is_none_or(|source| !there(&source))
        });
        let missing: Vec<_> = missing.map(|(_, place)| &place.volume).collect();
        if !missing.is_empty() {
            let why = format!("there is no volume {}", listed(missing));
            return Err(self.refused(Kind::NotFound).because(why));
        }
        let others = self.others();
        match others.is_taken(asked, pool) {
            None => return Ok(Outcome::Ask),
            Some(true) => {
                let why = format!("the name is taken by {}", listed(others.found(pool)));
                return Err(self.refused(Kind::Conflict).because(why));
            }
            Some(false) => {}
        }
        if let Some(taken) = self.group.taken(pool) {
            return Ok(Outcome::Done(taken));
        }
        let mut plan = Plan::about(self.group.lock());
        let own = self.group.left(pool);
        let seen = self
            .group
            .snapshots()
            .filter_map(|name| pool.snapshot(name));
        for old in seen {
            if !old.is_doomed() {
                let why = if own.is_empty() {
                    format!("{} exists, and is not of this group", old.name)
                } else {
                    format!("{} of its snapshots are left of a deletion", own.len())
                };
                return Err(self.refused(Kind::Conflict).because(why));
            }
            put_aside(&mut plan, old, |kind| self.refused(kind))?;
        }
        let mut properties = self.properties.clone();
        properties.push(success());
        plan.step(Step::Snapshot {
            snapshots: self.group.snapshots().cloned().collect(),
            properties,
        });
        Ok(Outcome::Do(plan))
    }

    fn is_begun(&self, seen: &State) -> bool {
        !self.group.left(seen).is_empty()
    }
}
