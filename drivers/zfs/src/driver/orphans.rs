//! Orphans: listed like volumes and snapshots, and removed one by one.
//!
//! The host filters out complete objects, so that a page of ten thousand volumes has no rows if
//! none is partial; this module judges the rest by the proofs of `plan::orphan`.

use std::time::SystemTime;

use driver_core::{Call, Error, Kind, Orphan, Page, PageRequest};

use super::ZfsDriver;
use crate::backend::{Entry, ListFilter, ListScope};
use crate::name::{DatasetName, Object};
use crate::observed::{Guid, Query, VolumeKind};
use crate::plan::destroy::{DestroySnapshot, DestroyVolume};
use crate::plan::orphan::{
    OrphanScope, Remains, RemoveHalf, RemoveSmall, created, is_being_copied,
};
use crate::property::PropertyName;

impl ZfsDriver {
    fn orphan_scope(&self, before: SystemTime) -> OrphanScope<'_> {
        let owner = self.settings.policy.owner();
        OrphanScope::new(self.layout(), owner, before, SystemTime::now())
    }

    /// The places where they may be.
    fn orphan_list_scopes(&self, with_detached: bool) -> Vec<ListScope> {
        let layout = self.layout();
        let scope = |parent: &DatasetName, depth, kind, filter| ListScope {
            parent: parent.clone(),
            depth,
            kind,
            filter,
        };
        let half = |having| ListFilter::Lacking(having, PropertyName::SUCCESS);
        let kind = Some(layout.kind);
        let mut scopes = Vec::new();
        for parent in layout.parents() {
            scopes.extend([
                scope(parent, 1, kind, half(PropertyName::VOLUME_NAME)),
                scope(parent, 1, None, ListFilter::Helpers),
            ]);
        }
        if let Some(detached) = layout.detached.as_ref().filter(|_| with_detached) {
            let containers = ListFilter::Empty(PropertyName::CONTAINER);
            let filesystem = Some(VolumeKind::Filesystem);
            scopes.extend([
                scope(detached, 1, filesystem, containers),
                scope(detached, 2, kind, half(PropertyName::SNAPSHOT_NAME)),
                scope(detached, 2, None, ListFilter::Helpers),
            ]);
        }
        scopes
    }

    pub(super) async fn orphans_on_page(
        &self,
        call: &Call,
        before: SystemTime,
        page: &PageRequest,
    ) -> Result<Page<Orphan>, Error> {
        let scope = self.orphan_scope(before);
        let scopes = self.orphan_list_scopes(true);
        let show = |entry: &Entry| orphan(&scope, entry);
        let mut found = match self.page(call, "o", scopes, page, show).await {
            Err(error) if self.misses_detached_pool(&error) => {
                let scopes = self.orphan_list_scopes(false);
                self.page(call, "o", scopes, page, show).await?
            }
            listed => listed?,
        };
        // A copy from a helper may run for days.
        let copies = |(_, copy): &(Orphan, Option<DatasetName>)| copy.clone().map(Query::Dataset);
        let queries: Vec<Query> = found.entries.iter().filter_map(copies).collect();
        if !queries.is_empty() {
            let pool = self.observe(call, queries).await?;
            let runs = |copy: &DatasetName| is_being_copied(&pool, copy);
            found
                .entries
                .retain(|(_, copy)| !copy.as_ref().is_some_and(runs));
        }
        Ok(Page {
            entries: found
                .entries
                .into_iter()
                .map(|(orphan, _)| orphan)
                .collect(),
            next: found.next,
        })
    }

    pub(super) async fn without_orphan(
        &self,
        call: &Call,
        before: SystemTime,
        orphan: &Orphan,
    ) -> Result<(), Error> {
        let scope = self.orphan_scope(before);
        let name = || format!("remove orphan {}", orphan.object.escape_debug());
        let refused = |why: String| Error::new(Kind::Conflict, name()).because(why);
        let object = Object::parse(&orphan.object).map_err(|error| refused(error.to_string()))?;
        let guid = orphan.identity.parse().map(Guid);
        let guid = guid.map_err(|_| refused("its identity is not a GUID".to_owned()))?;
        let layout = self.layout();
        let (volume, place) = match &object {
            Object::Dataset(dataset) => (layout.volume_id(dataset), layout.place_of(&object)),
            Object::Snapshot(_) => (None, None),
        };
        // An object that is somewhere else is no orphan; the last of these errors says that.
        match (object, volume, place) {
            (Object::Dataset(dataset), Some(id), _) => {
                let deletion = DestroyVolume {
                    layout,
                    export_ref: self.export_ref(&id, &dataset),
                    keep_foreign: true,
                };
                let verb = RemoveHalf {
                    scope,
                    deletion,
                    dataset: dataset.clone(),
                    guid,
                };
                self.converge(call, &verb).await
            }
            (Object::Dataset(dataset), None, Some(place)) => {
                let deletion = DestroySnapshot {
                    layout,
                    place,
                    owner: self.settings.policy.owner(),
                    keep_foreign: true,
                    asks_little: self.backend.asks_one_by_one(),
                    leaves_mark: false,
                };
                let verb = RemoveHalf {
                    scope,
                    deletion,
                    dataset,
                    guid,
                };
                self.converge(call, &verb).await
            }
            (object, _, _) => {
                let verb = RemoveSmall {
                    scope,
                    object,
                    guid,
                };
                self.converge(call, &verb).await
            }
        }
    }
}

/// An orphan, and what may be copied from it.
fn orphan(scope: &OrphanScope<'_>, entry: &Entry) -> Option<(Orphan, Option<DatasetName>)> {
    let (remains, object, guid, properties): (Remains, Object, Guid, _) = match entry {
        Entry::Dataset(dataset) => (
            scope.dataset(dataset)?,
            dataset.name.clone().into(),
            dataset.guid,
            &dataset.properties,
        ),
        Entry::Snapshot(snapshot) => (
            scope.snapshot(snapshot)?,
            snapshot.name.clone().into(),
            snapshot.guid,
            &snapshot.properties,
        ),
    };
    let copy = match &object {
        Object::Snapshot(helper) => scope.layout.made_of(helper),
        Object::Dataset(_) => None,
    };
    let orphan = Orphan {
        kind: remains.kind(),
        object: object.to_string(),
        identity: guid.to_string(),
        created: created(properties)?,
    };
    Some((orphan, copy))
}
