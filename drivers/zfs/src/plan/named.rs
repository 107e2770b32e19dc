//! Other snapshots of a name: a name belongs to one snapshot of the orchestrator, or to one group of them. A deleted one
//! that something keeps gives it way.

use std::collections::BTreeSet;

use driver_core::{Error, Kind};

use crate::id::{self, Layout};
use crate::name::{DatasetName, Object, SnapshotLeaf};
use crate::observed::{Query, Snapshot, State};
use crate::property::{PropertyName, PropertyValue};
use crate::step::{Plan, Step};

/// The search for them.
#[derive(Debug)]
pub(super) struct OtherNames<'a> {
    pub(super) layout: &'a Layout,
    /// The name, as the property holds it.
    pub(super) name: PropertyValue,
    /// The objects that the name is wanted for.
    pub(super) itself: BTreeSet<Object>,
    /// An object that has the name, whatever its property says.
    pub(super) twin: Option<Object>,
}

// === impl OtherNames ===

impl OtherNames<'_> {
    /// The query for them, also below this parent of detached snapshots.
    pub(super) fn query(&self, detached: Option<&DatasetName>, leaf: &SnapshotLeaf) -> Query {
        let parents = std::iter::once(&self.layout.volumes).chain(detached);
        Query::Named {
            within: parents.cloned().collect(),
            has_children: !self.layout.children.is_empty(),
            name: self.name.as_str().to_owned(),
            leaf: leaf.clone(),
        }
    }

    /// The objects that were found. Some of them may be marked for deferred destroy.
    pub(super) fn found(&self, pool: &State) -> Vec<Object> {
        let named = pool.named().iter().filter(|object| {
            let is_ours = self.layout.place_of(object).is_some();
            is_ours && !self.itself.contains(object)
        });
        let twin = self.twin.as_ref().filter(|twin| match twin {
            Object::Dataset(name) => pool.dataset(name).is_some(),
            Object::Snapshot(name) => pool.snapshot(name).is_some(),
        });
        let mut found: Vec<Object> = named.cloned().collect();
        found.extend(twin.filter(|twin| !pool.named().contains(twin)).cloned());
        found
    }

    /// Whether another one has the name; `None` if that needs another observation.
    pub(super) fn is_taken(&self, asked: &State, pool: &State) -> Option<bool> {
        let mut taken = false;
        for object in self.found(pool) {
            let name = match &object {
                Object::Dataset(name) => pool
                    .dataset(name)
                    .map(|dataset| dataset.properties.own(&PropertyName::SNAPSHOT_NAME)),
                Object::Snapshot(name) => pool
                    .snapshot(name)
                    .map(|snapshot| snapshot.csi_name().filter(|_| !snapshot.is_doomed())),
            };
            taken |= match name {
                Some(name) => name == Some(self.name.as_str()),
                // Observed, and gone since.
                None if asked.named().contains(&object) => false,
                None => return None,
            };
        }
        Some(taken)
    }
}

/// Moves a deleted snapshot that something keeps out of the way of a new one.
pub(super) fn put_aside(
    plan: &mut Plan,
    old: &Snapshot,
    refused: impl FnOnce(Kind) -> Error,
) -> Result<(), Error> {
    let name = &old.name;
    // Under another name, `zfs release` would not find it.
    if old.is_held() {
        let why = format!("{name} was deleted, and a hold keeps it");
        return Err(refused(Kind::Busy).because(why).advise(format!(
            "see `zfs holds {name}` and `zfs release` on the storage host"
        )));
    }
    plan.guard(name.clone(), old.guid);
    plan.step(Step::Rename {
        snapshot: name.clone(),
        to: id::aside(old.guid),
    });
    Ok(())
}
