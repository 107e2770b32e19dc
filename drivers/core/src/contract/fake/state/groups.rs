//! Snapshots of one volume, and of several at one moment.

use std::time::SystemTime;

use super::{Inner, State, Taken};
use crate::driver::GroupSnapshot;
use crate::error::{Error, Kind};
use crate::naming::snapshot_leaf;
use crate::text::{GroupSnapshotId, MAX_STRING, SnapshotId, SnapshotName, VolumeId};
use crate::volume::Snapshot;

// === impl Inner ===

impl Inner {
    /// A snapshot of a volume as it is now, which is not kept yet.
    pub(super) fn cut(
        &self,
        source: &VolumeId,
        name: &SnapshotName,
        created: SystemTime,
        group: Option<&GroupSnapshotId>,
    ) -> Result<Snapshot, Error> {
        let doing = || format!("snapshot volume {source}");
        let missing = || Error::not_found(doing());
        let volume = self.volumes.get(source).ok_or_else(missing)?;
        let mark = if group.is_some() { "@@" } else { "@" };
        let room = MAX_STRING - source.as_str().len() - mark.len();
        let leaf = snapshot_leaf(name, room);
        let id = SnapshotId::parse(&format!("{source}{mark}{leaf}"))
            .map_err(|error| Error::new(Kind::Internal, doing()).because(error))?;
        Ok(Snapshot {
            id,
            source: source.clone(),
            size: volume.capacity.unwrap_or_default(),
            created,
            ready: true,
            topology: volume.topology.clone(),
            group: group.cloned(),
        })
    }

    pub(super) fn keep(&mut self, snapshot: Snapshot, name: Option<&SnapshotName>) {
        let content = self.content.get(&snapshot.source);
        let taken = Taken {
            name: name.cloned(),
            content: content.cloned().unwrap_or_default(),
            snapshot,
        };
        self.snapshots.insert(taken.snapshot.id.clone(), taken);
    }

    /// The group, whose snapshots are these.
    fn group(
        &self,
        id: &GroupSnapshotId,
        snapshots: &[SnapshotId],
    ) -> Result<Option<&GroupSnapshot>, Error> {
        let Some(group) = self.groups.get(id) else {
            return Ok(None);
        };
        let own = group.snapshots.iter().map(|snapshot| &snapshot.id);
        if !same(own, snapshots) {
            return Err(Error::invalid(format!("group snapshot {id}"))
                .because("the snapshots are not those of the group"));
        }
        Ok(Some(group))
    }
}

/// Whether these are the same, in whichever order.
fn same<'a, T: Ord + 'a>(some: impl Iterator<Item = &'a T>, others: &'a [T]) -> bool {
    let (mut some, mut others): (Vec<_>, Vec<_>) = (some.collect(), others.iter().collect());
    some.sort();
    others.sort();
    some == others
}

// === impl State ===

impl State {
    pub(in super::super) fn create_group(
        &self,
        name: &SnapshotName,
        volumes: &[VolumeId],
    ) -> Result<GroupSnapshot, Error> {
        let doing = || format!("snapshot a group of {} volumes", volumes.len());
        let id = GroupSnapshotId::parse(&format!("group-{}", snapshot_leaf(name, 100)))
            .map_err(|error| Error::new(Kind::Internal, doing()).because(error))?;
        let mut inner = self.lock();
        if let Some(group) = inner.groups.get(&id) {
            let own = group.snapshots.iter().map(|snapshot| &snapshot.source);
            return if same(own, volumes) {
                Ok(group.clone())
            } else {
                Err(Error::new(Kind::Conflict, doing()))
            };
        }
        let created = SystemTime::now();
        let cut = |volume| inner.cut(volume, name, created, Some(&id));
        let snapshots = volumes.iter().map(cut).collect::<Result<Vec<_>, _>>()?;
        for snapshot in &snapshots {
            inner.keep(snapshot.clone(), None);
        }
        let group = GroupSnapshot {
            id: id.clone(),
            snapshots,
            created,
            ready: true,
        };
        inner.groups.insert(id, group.clone());
        Ok(group)
    }

    pub(in super::super) fn delete_group(
        &self,
        id: &GroupSnapshotId,
        snapshots: &[SnapshotId],
    ) -> Result<(), Error> {
        let mut inner = self.lock();
        if inner.group(id, snapshots)?.is_some() {
            inner.groups.remove(id);
            inner
                .snapshots
                .retain(|_, taken| taken.snapshot.group.as_ref() != Some(id));
        }
        Ok(())
    }

    pub(in super::super) fn get_group(
        &self,
        id: &GroupSnapshotId,
        snapshots: &[SnapshotId],
    ) -> Result<GroupSnapshot, Error> {
        let missing = || Error::not_found(format!("group snapshot {id}"));
        let inner = self.lock();
        inner.group(id, snapshots)?.cloned().ok_or_else(missing)
    }
}
