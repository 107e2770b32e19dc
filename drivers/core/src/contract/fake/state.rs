//! The state of the fake driver in memory, and the rules of its verbs.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use csi_types::attachment::Hostpath;
use csi_types::{AbsolutePath, Attachment, Conditions, Network, NodeIdentity};

use crate::driver::GroupSnapshot;
use crate::error::{Error, Kind};
use crate::fence::FenceNetworks;
use crate::made_for::MadeFor;
use crate::parameters::Parameters;
use crate::size::SizeRange;
use crate::text::{GroupSnapshotId, NodeId, SnapshotId, SnapshotName, VolumeId};
use crate::topology::Topology;
use crate::volume::{
    CreateSnapshot, CreateVolume, Expanded, Page, PageRequest, PageToken, Snapshot, SnapshotFilter,
    Source, Volume,
};

use super::SPEED;

mod blocks;
mod groups;

pub(super) use blocks::Ranges;

/// Marks the tokens of this driver.
const TOKEN: &str = "after:";

#[derive(Debug, Default)]
pub(super) struct State(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    volumes: BTreeMap<VolumeId, Volume>,
    snapshots: BTreeMap<SnapshotId, Taken>,
    groups: BTreeMap<GroupSnapshotId, GroupSnapshot>,
    published: BTreeMap<(VolumeId, NodeId), NodeIdentity>,
    fences: BTreeSet<Network>,
    modified: BTreeMap<VolumeId, BTreeMap<String, String>>,
    harmed: BTreeMap<VolumeId, Conditions>,
    /// The content of volumes.
    content: BTreeMap<VolumeId, Content>,
    writes: u64,
}

#[derive(Debug)]
struct Taken {
    /// The name that it was asked for by, unless it was taken with a group.
    name: Option<SnapshotName>,
    snapshot: Snapshot,
    content: Content,
}

/// For each block that was ever written, the number of the last write.
type Content = BTreeMap<u64, u64>;

// === impl State ===

impl State {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn volume_ids(&self) -> Vec<VolumeId> {
        self.lock().volumes.keys().cloned().collect()
    }

    pub(super) fn create_volume(
        &self,
        request: &CreateVolume,
        topology: Vec<Topology>,
    ) -> Result<Volume, Error> {
        let doing = || format!("create volume {}", request.id);
        let speed = request.parameters.raw().get(SPEED);
        let mut inner = self.lock();
        let modified = inner.modified.get(&request.id);
        let has_speed = modified.and_then(|modified| modified.get(SPEED));
        if let Some(volume) = inner.volumes.get(&request.id) {
            let conflict = |why: String| Err(Error::new(Kind::Conflict, doing()).because(why));
            let size = volume.capacity.unwrap_or_default();
            return if volume.source != request.source {
                conflict("it has another source".to_owned())
            } else if !request.size.holds(size) {
                conflict(format!(
                    "it has {size} bytes, and {} are asked for",
                    request.size
                ))
            } else if speed.is_some() && speed != has_speed {
                conflict(format!("it has another {SPEED}"))
            } else {
                Ok(volume.clone())
            };
        }
        let source_exists = match &request.source {
            None => true,
            Some(Source::Volume(id)) => inner.volumes.contains_key(id),
            Some(Source::Snapshot(id)) => inner.snapshots.contains_key(id),
            Some(Source::Elsewhere(_)) => false,
        };
        if !source_exists {
            return Err(Error::not_found(doing()));
        }
        let size = request
            .size
            .choose(1)
            .map_err(|error| Error::new(Kind::OutOfRange, doing()).because(error))?;
        let path = AbsolutePath::parse("/fake")
            .map_err(|error| Error::new(Kind::Internal, doing()).because(error))?
            .child(request.id.as_str());
        let volume = Volume {
            id: request.id.clone(),
            capacity: Some(size),
            attachment: Attachment::Hostpath(Hostpath { path }),
            source: request.source.clone(),
            topology,
            made_for: MadeFor::of(&request.parameters),
            published_to: Vec::new(),
        };
        inner.volumes.insert(volume.id.clone(), volume.clone());
        let set = speed.map(|speed| (SPEED.to_owned(), speed.clone()));
        let set = set.into_iter().collect();
        inner.modified.insert(volume.id.clone(), set);
        Ok(volume)
    }

    pub(super) fn delete_volume(&self, id: &VolumeId) {
        let mut inner = self.lock();
        inner.volumes.remove(id);
        inner.modified.remove(id);
        inner.harmed.remove(id);
        inner.published.retain(|(volume, _), _| volume != id);
    }

    pub(super) fn volume(&self, id: &VolumeId) -> Result<Volume, Error> {
        let missing = || Error::not_found(format!("volume {id}"));
        self.lock().volumes.get(id).cloned().ok_or_else(missing)
    }

    pub(super) fn harm(&self, id: &VolumeId, conditions: Conditions) {
        self.lock().harmed.insert(id.clone(), conditions);
    }

    pub(super) fn conditions(&self, ids: &[VolumeId]) -> Vec<Option<Conditions>> {
        let inner = self.lock();
        let of = |id| {
            inner.volumes.get(id)?;
            Some(inner.harmed.get(id).cloned().unwrap_or_default())
        };
        ids.iter().map(of).collect()
    }

    pub(super) fn list_volumes(&self, page: &PageRequest) -> Result<Page<Volume>, Error> {
        let after = after(page)?.map(VolumeId::parse).transpose();
        let after = after.map_err(|_| foreign_token())?;
        let inner = self.lock();
        let rest = inner.volumes.range((bound(after), Bound::Unbounded));
        Ok(cut(rest.map(|(_, volume)| volume), page.max, |volume| {
            volume.id.as_str()
        }))
    }

    pub(super) fn expand(
        &self,
        id: &VolumeId,
        size: SizeRange,
        node: bool,
    ) -> Result<Expanded, Error> {
        let doing = || format!("expand volume {id}");
        let mut inner = self.lock();
        let volume = inner
            .volumes
            .get_mut(id)
            .ok_or_else(|| Error::not_found(doing()))?;
        let has = volume.capacity.unwrap_or_default();
        let wanted = size.required().unwrap_or(has).max(has);
        if size.limit().is_some_and(|limit| wanted > limit) {
            return Err(Error::new(Kind::OutOfRange, doing()));
        }
        volume.capacity = Some(wanted);
        Ok(Expanded {
            capacity: wanted,
            node_expansion_required: node,
        })
    }

    pub(super) fn create_snapshot(&self, request: &CreateSnapshot) -> Result<Snapshot, Error> {
        let doing = || format!("snapshot volume {}", request.source);
        let mut inner = self.lock();
        let same = |taken: &&Taken| taken.name.as_ref() == Some(&request.name);
        if let Some(taken) = inner.snapshots.values().find(same) {
            return if taken.snapshot.source == request.source {
                Ok(taken.snapshot.clone())
            } else {
                Err(Error::new(Kind::Conflict, doing()))
            };
        }
        let snapshot = inner.cut(&request.source, &request.name, SystemTime::now(), None)?;
        inner.keep(snapshot.clone(), Some(&request.name));
        Ok(snapshot)
    }

    pub(super) fn delete_snapshot(&self, id: &SnapshotId) -> Result<(), Error> {
        let mut inner = self.lock();
        let group = inner
            .snapshots
            .get(id)
            .and_then(|taken| taken.snapshot.group.as_ref());
        if let Some(group) = group {
            return Err(Error::invalid(format!("delete snapshot {id}"))
                .because(format!("it goes with its group {group}")));
        }
        inner.snapshots.remove(id);
        Ok(())
    }

    pub(super) fn snapshot(&self, id: &SnapshotId) -> Result<Snapshot, Error> {
        let missing = || Error::not_found(format!("snapshot {id}"));
        let inner = self.lock();
        let found = inner.snapshots.get(id);
        found
            .map(|taken| taken.snapshot.clone())
            .ok_or_else(missing)
    }

    pub(super) fn list_snapshots(
        &self,
        filter: &SnapshotFilter,
        page: &PageRequest,
    ) -> Result<Page<Snapshot>, Error> {
        let after = after(page)?.map(SnapshotId::parse).transpose();
        let after = after.map_err(|_| foreign_token())?;
        let inner = self.lock();
        let rest = inner.snapshots.range((bound(after), Bound::Unbounded));
        let wanted = rest.map(|(_, taken)| &taken.snapshot).filter(|snapshot| {
            let source = filter.source.as_ref();
            source.is_none_or(|source| *source == snapshot.source)
        });
        Ok(cut(wanted, page.max, |snapshot| snapshot.id.as_str()))
    }

    pub(super) fn publish(&self, id: &VolumeId, node: &NodeIdentity) -> Result<(), Error> {
        let mut inner = self.lock();
        if !inner.volumes.contains_key(id) {
            return Err(Error::not_found(format!("publish volume {id}")));
        }
        let is_in = |network: &&Network| node.addresses.iter().any(|one| network.holds(*one));
        if let Some(network) = inner.fences.iter().find(is_in) {
            let why = format!("the node is in the fenced network {network}");
            return Err(Error::new(Kind::Busy, format!("publish volume {id}")).because(why));
        }
        let key = (id.clone(), node.id.clone());
        inner.published.insert(key, node.clone());
        inner.note_published();
        Ok(())
    }

    /// Takes away what nodes may reach: of this volume or of any, from this node or from any.
    pub(super) fn unpublish(&self, id: Option<&VolumeId>, node: Option<&NodeId>) {
        let meant = |(volume, on): &(VolumeId, NodeId)| {
            id.is_none_or(|id| id == volume) && node.is_none_or(|node| node == on)
        };
        let mut inner = self.lock();
        inner.published.retain(|entry, _| !meant(entry));
        inner.note_published();
    }

    /// Shuts networks out, and takes away what their nodes may reach.
    pub(super) fn fence(&self, request: FenceNetworks<'_>) {
        let mut inner = self.lock();
        inner.fences.extend(request.networks);
        let is_in = |address: &IpAddr| request.networks.iter().any(|one| one.holds(*address));
        inner.published.retain(|_, node| {
            let addresses = (request.addresses_of)(&node.reported);
            !addresses.iter().any(is_in)
        });
        inner.note_published();
    }

    pub(super) fn unfence(&self, networks: &[Network]) {
        let mut inner = self.lock();
        inner.fences.retain(|network| !networks.contains(network));
    }

    pub(super) fn fenced(&self) -> Vec<Network> {
        self.lock().fences.iter().copied().collect()
    }

    pub(super) fn published(&self) -> Vec<(VolumeId, NodeIdentity)> {
        let inner = self.lock();
        let all = inner.published.iter();
        all.map(|((id, _), node)| (id.clone(), node.clone()))
            .collect()
    }

    pub(super) fn modify(&self, id: &VolumeId, parameters: &Parameters) -> Result<(), Error> {
        let mut inner = self.lock();
        if !inner.volumes.contains_key(id) {
            return Err(Error::not_found(format!("modify volume {id}")));
        }
        let modified = inner.modified.entry(id.clone()).or_default();
        modified.extend(parameters.raw().clone());
        Ok(())
    }

    pub(super) fn modified(&self, id: &VolumeId) -> BTreeMap<String, String> {
        self.lock().modified.get(id).cloned().unwrap_or_default()
    }
}

impl Inner {
    /// Shows with each volume the nodes that it is published to.
    fn note_published(&mut self) {
        for (id, volume) in &mut self.volumes {
            let nodes = self.published.iter();
            let nodes = nodes.filter(|((volume, _), _)| volume == id);
            volume.published_to = nodes.map(|(_, node)| node.reported.clone()).collect();
            volume.published_to.sort_unstable();
        }
    }
}

fn foreign_token() -> Error {
    Error::new(Kind::Pending, "a page token that is not ours")
}

/// The id after which a page begins.
fn after(page: &PageRequest) -> Result<Option<&str>, Error> {
    let Some(PageToken(token)) = &page.after else {
        return Ok(None);
    };
    let id = token.strip_prefix(TOKEN).ok_or_else(foreign_token)?;
    Ok(Some(id))
}

fn bound<T>(after: Option<T>) -> Bound<T> {
    after.map_or(Bound::Unbounded, Bound::Excluded)
}

/// The first `max` entries, and where the rest begins if there is one.
fn cut<'a, T: Clone + 'a>(
    mut rest: impl Iterator<Item = &'a T>,
    max: Option<usize>,
    id: impl Fn(&T) -> &str,
) -> Page<T> {
    let max = max.unwrap_or(usize::MAX);
    let entries: Vec<T> = rest.by_ref().take(max).cloned().collect();
    let last = entries.last().filter(|_| rest.next().is_some());
    let next = last.map(|entry| PageToken(format!("{TOKEN}{}", id(entry))));
    Page { entries, next }
}
