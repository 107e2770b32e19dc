//! What nobody owns: listed like volumes and snapshots, and removed one by one.
//!
//! The host leaves out what is whole, so that a page of ten thousand volumes has no rows if none is half
//! made; what is left is judged here, by what `plan::orphan` takes for proof.

use std::time::SystemTime;

use driver_core::{Call, Error, Kind, Orphan, Page, PageRequest};

use super::ZfsDriver;
use crate::backend::{Backend, Entry, Shelf, Wanted};
use crate::export::Export;
use crate::name::{DatasetName, Object};
use crate::observed::{Guid, Look, VolumeKind};
use crate::plan::destroy::{DeleteSnapshot, DeleteVolume};
use crate::plan::orphan::{Estate, Remains, RemoveHalf, RemoveSmall, created, is_being_copied};
use crate::property::PropertyName;

impl<B, E> ZfsDriver<B, E>
where
    B: Backend,
    E: Export<Request = B::Request, Answer = B::Answer>,
{
    fn estate(&self, before: SystemTime) -> Estate<'_> {
        let owner = self.settings.policy.owner();
        Estate::new(self.layout(), owner, before, SystemTime::now())
    }

    /// Where they may lie.
    fn orphan_shelves(&self) -> Vec<Shelf> {
        let layout = self.layout();
        let shelf = |parent: &DatasetName, depth, kind, wanted| Shelf {
            parent: parent.clone(),
            depth,
            kind,
            wanted,
        };
        let half = |having| Wanted::Lacking(having, PropertyName::SUCCESS);
        let (kind, volumes) = (Some(layout.kind), &layout.volumes);
        let mut shelves = vec![
            shelf(volumes, 1, kind, half(PropertyName::VOLUME_NAME)),
            shelf(volumes, 1, None, Wanted::Helpers),
        ];
        if let Some(detached) = &layout.detached {
            let containers = Wanted::Empty(PropertyName::CONTAINER);
            let filesystem = Some(VolumeKind::Filesystem);
            shelves.extend([
                shelf(detached, 1, filesystem, containers),
                shelf(detached, 2, kind, half(PropertyName::SNAPSHOT_NAME)),
                shelf(detached, 2, None, Wanted::Helpers),
            ]);
        }
        shelves
    }

    pub(super) async fn orphans_on_page(
        &self,
        call: &Call,
        before: SystemTime,
        page: &PageRequest,
    ) -> Result<Page<Orphan>, Error> {
        let estate = self.estate(before);
        let shelves = self.orphan_shelves();
        let show = |entry: &Entry| orphan(&estate, entry);
        let mut found = self.page(call, "o", shelves, page, show).await?;
        // A copy may be running from a helper for days.
        let copies = |(_, copy): &(Orphan, Option<DatasetName>)| copy.clone().map(Look::Dataset);
        let looks: Vec<Look> = found.entries.iter().filter_map(copies).collect();
        if !looks.is_empty() {
            let pool = self.look(call, looks).await?;
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
        let estate = self.estate(before);
        let name = || format!("remove orphan {}", orphan.object.escape_debug());
        let refused = |why: String| Error::new(Kind::Conflict, name()).because(why);
        let object = Object::parse(&orphan.object).map_err(|error| refused(error.to_string()))?;
        let guid = orphan.identity.parse().map(Guid);
        let guid = guid.map_err(|_| refused("it is not known which one".to_owned()))?;
        let layout = self.layout();
        let (volume, place) = match &object {
            Object::Dataset(dataset) => (layout.volume_id(dataset), layout.place_of(&object)),
            Object::Snapshot(_) => (None, None),
        };
        // What is somewhere else is no orphan, and the last of these says so.
        match (object, volume, place) {
            (Object::Dataset(dataset), Some(id), _) => {
                let deletion = DeleteVolume {
                    layout,
                    reach: self.reach(&id, &dataset),
                };
                let verb = RemoveHalf {
                    estate,
                    deletion,
                    dataset: dataset.clone(),
                    guid,
                };
                self.converge(call, &verb).await
            }
            (Object::Dataset(dataset), None, Some(place)) => {
                let deletion = DeleteSnapshot { layout, place };
                let verb = RemoveHalf {
                    estate,
                    deletion,
                    dataset,
                    guid,
                };
                self.converge(call, &verb).await
            }
            (object, _, _) => {
                let verb = RemoveSmall {
                    estate,
                    object,
                    guid,
                };
                self.converge(call, &verb).await
            }
        }
    }
}

/// An orphan, and what may be copied from it.
fn orphan(estate: &Estate<'_>, entry: &Entry) -> Option<(Orphan, Option<DatasetName>)> {
    let (remains, object, guid, properties): (Remains, Object, Guid, _) = match entry {
        Entry::Dataset(dataset) => (
            estate.dataset(dataset)?,
            dataset.name.clone().into(),
            dataset.guid,
            &dataset.properties,
        ),
        Entry::Snapshot(snapshot) => (
            estate.snapshot(snapshot)?,
            snapshot.name.clone().into(),
            snapshot.guid,
            &snapshot.properties,
        ),
    };
    let copy = match &object {
        Object::Snapshot(helper) => estate.layout.made_of(helper),
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
