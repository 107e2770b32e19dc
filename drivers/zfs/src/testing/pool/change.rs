//! The effect of steps on the pool, and what it rejects.

use std::collections::BTreeMap;

use csi_types::AbsolutePath;
use driver_core::{Effect, Error, Kind};

use super::transfer::mark;
use super::{Cut, Held, MemoryPool, Room};
use crate::name::{DatasetName, MarkRef, Object, SnapshotLeaf, SnapshotRef};
use crate::observed::VolumeKind;
use crate::property::{Property, PropertyName};
use crate::step::{Failed, New, Next, Step};

fn refused(next: Next, kind: Kind, what: impl std::fmt::Display) -> Failed {
    Failed {
        next,
        error: Error::new(kind, what.to_string()),
    }
}

fn missing(what: impl std::fmt::Display) -> Failed {
    let text = format!("{what} does not exist");
    refused(Next::Observe, Kind::NotFound, text)
}

/// The effect before the failure is unknown.
fn no_room(what: impl std::fmt::Display) -> Failed {
    let mut failed = refused(
        Next::Tell,
        Kind::OutOfSpace,
        format!("{what}: out of space"),
    );
    failed.error = failed.error.with_effect(Effect::Possible);
    failed
}

fn exists(what: impl std::fmt::Display) -> Failed {
    let text = format!("{what} exists");
    refused(Next::Observe, Kind::Conflict, text)
}

impl Held {
    /// It has the content of that snapshot.
    pub(super) fn fill(&mut self, cut: &Cut) {
        self.content = cut.content;
        self.used = cut.used;
        let volsize = cut.volsize.clone();
        self.own
            .extend(volsize.map(|volsize| (PropertyName::VOLSIZE, volsize)));
    }
}

impl MemoryPool {
    /// Applies one step like ZFS: completely or not at all.
    pub fn apply(&mut self, step: &Step) -> Result<(), Failed> {
        match step {
            Step::Create {
                dataset,
                new,
                properties,
            } => self.create(dataset, new, properties),
            Step::Snapshot {
                snapshots,
                properties,
            } => self.cut(snapshots, properties),
            Step::Clone {
                origin,
                dataset,
                properties,
            } => self.clone_of(origin, dataset, properties),
            Step::Copy {
                from,
                to,
                properties,
            } => {
                self.begin_copy(from, to, properties)?;
                self.end_copy(to, Some(from))
            }
            Step::GoOn { from, to } => self.go_on(from, to),
            Step::Abandon(name) => {
                self.abandon(name);
                Ok(())
            }
            Step::Set { object, properties } => self.set(object, properties),
            Step::Inherit { object, property } => {
                self.own_mut(object)?.remove(property);
                Ok(())
            }
            Step::Rename { snapshot, to } => self.rename(snapshot, to),
            Step::Promote(name) => self.promote(name),
            // Never a failure.
            Step::Mark(snapshot, mark) => {
                self.bookmark(snapshot, mark);
                Ok(())
            }
            Step::DestroyMark(mark) => {
                self.marks.remove(mark);
                Ok(())
            }
            Step::DestroySnapshot(name) => {
                if let Some(cut) = self.snapshots.get_mut(name) {
                    cut.doomed = true;
                }
                self.sweep();
                Ok(())
            }
            Step::DestroyEmpty(name) if self.children(name) || self.has_files(name) => Ok(()),
            Step::DestroyDataset(name) | Step::DestroyEmpty(name) => {
                if self.refuse_destruction {
                    let text = format!("cannot destroy {name}: permission denied");
                    return Err(refused(Next::Tell, Kind::Denied, text));
                }
                // A resumable part is destroyed like any other dataset.
                let running = |held: &Held| held.receiving && held.arrived.is_none();
                let receiving = self.datasets.get(name).is_some_and(running);
                if receiving || self.busy.contains(name) {
                    let text = format!("{name} is busy");
                    return Err(refused(Next::Wait, Kind::Busy, text));
                }
                if self.children(name) {
                    let text = format!("{name} has children");
                    return Err(refused(Next::Observe, Kind::Busy, text));
                }
                self.datasets.remove(name);
                self.marks.retain(|mark, _| mark.dataset != *name);
                self.sweep();
                Ok(())
            }
            Step::Mount(name) => {
                let held = self.datasets.get_mut(name).ok_or_else(|| missing(name))?;
                held.mounted = true;
                Ok(())
            }
            Step::Permit { path, .. } => self.permit(path),
            Step::Settle(_) | Step::Record { .. } | Step::Export(_) => Ok(()),
        }
    }

    fn abandon(&mut self, name: &DatasetName) {
        if let Some(held) = self.datasets.get_mut(name) {
            held.beside = None;
        }
        self.sweep();
    }

    fn bookmark(&mut self, snapshot: &SnapshotRef, mark: &MarkRef) {
        let cut = self.snapshots.get(snapshot).cloned();
        let cut = cut.filter(|_| !self.marks.contains_key(mark));
        self.marks.extend(cut.map(|cut| (mark.clone(), cut)));
    }

    /// Permissions without a mount are lost.
    fn permit(&self, path: &AbsolutePath) -> Result<(), Failed> {
        let below = path.as_str().strip_prefix(self.altroot.as_str());
        let name = DatasetName::parse(below.unwrap_or_default().trim_start_matches('/'));
        if name.is_ok_and(|name| self.is_mounted(&name)) {
            return Ok(());
        }
        let text = format!("nothing is mounted at {path}");
        Err(refused(Next::Tell, Kind::Internal, text))
    }

    fn cut(&mut self, snapshots: &[SnapshotRef], properties: &[Property]) -> Result<(), Failed> {
        for snapshot in snapshots {
            if !self.datasets.contains_key(&snapshot.dataset) {
                return Err(missing(&snapshot.dataset));
            }
            if self.snapshots.contains_key(snapshot) {
                return Err(exists(snapshot));
            }
        }
        let txg = self.txg + 1;
        for snapshot in snapshots {
            self.insert_snapshot(snapshot, properties);
            if let Some(cut) = self.snapshots.get_mut(snapshot) {
                cut.txg = txg;
            }
        }
        Ok(())
    }

    fn clone_of(
        &mut self,
        origin: &SnapshotRef,
        dataset: &DatasetName,
        properties: &[Property],
    ) -> Result<(), Failed> {
        let (kind, cut) = self.source(origin)?;
        // With -p, what exists is fine, whatever it is.
        if self.datasets.contains_key(dataset) {
            return Ok(());
        }
        if self.is_full() {
            return Err(no_room(dataset));
        }
        self.insert(dataset, kind, properties, None);
        if let Some(held) = self.datasets.get_mut(dataset) {
            held.fill(&cut);
            held.origin = Some(origin.clone());
        }
        Ok(())
    }

    /// A received dataset exists, with its name and its properties, before its content.
    pub fn begin_copy(
        &mut self,
        from: &SnapshotRef,
        to: &DatasetName,
        properties: &[Property],
    ) -> Result<(), Failed> {
        let (kind, _) = self.source(from)?;
        if self.datasets.contains_key(to) {
            return Err(exists(to));
        }
        let parent = to.parent();
        if self.refuse_copies || parent.is_none_or(|parent| !self.datasets.contains_key(&parent)) {
            return Err(missing(to));
        }
        self.insert(to, kind, properties, None);
        if let Some(held) = self.datasets.get_mut(to) {
            (held.receiving, held.mounted) = (true, false);
        }
        Ok(())
    }

    /// The content has arrived, with its snapshot, which has the GUID of the sent one; or the
    /// stream ended early, and leaves a resumable part, or nothing.
    pub fn end_copy(&mut self, to: &DatasetName, from: Option<&SnapshotRef>) -> Result<(), Failed> {
        let stays = |held: &Held| held.arrived.is_some();
        let sent = from.and_then(|from| self.source(from).ok());
        let (false, Some((_, sent))) = (self.is_full(), sent) else {
            if !self.datasets.get(to).is_some_and(stays) {
                self.datasets.remove(to);
            }
            return if self.is_full() {
                Err(no_room(to))
            } else {
                Ok(())
            };
        };
        if let Some(held) = self.datasets.get_mut(to) {
            (held.receiving, held.arrived) = (false, None);
            held.fill(&sent);
        }
        let mark = from.and_then(|from| to.at(&from.leaf).ok());
        if let (Some(mark), Some(from)) = (mark, from) {
            self.receive_snapshot(&mark, from);
        }
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.room == Room::None
    }

    fn set(&mut self, object: &Object, properties: &[Property]) -> Result<(), Failed> {
        if let Some(fixed) = properties.iter().find(|p| p.name.is_for_new_only()) {
            let text = format!("'{}' is readonly", fixed.name);
            return Err(refused(Next::Tell, Kind::Invalid, text));
        }
        let reserves =
            |p: &Property| p.name == PropertyName::REFRESERVATION && p.value.as_str() != "0";
        if let Object::Dataset(name) = object {
            let kept = self.snapshots.keys().any(|kept| kept.dataset == *name);
            if self.room == Room::Tight && kept && properties.iter().any(reserves) {
                return Err(no_room(name));
            }
        }
        let refusal = self.refuse_property.clone();
        let own = self.own_mut(object)?;
        // The reservation of all of a zvol grows with it.
        let is_whole = own.get(&PropertyName::VOLSIZE) == own.get(&PropertyName::REFRESERVATION);
        let is_given = properties
            .iter()
            .any(|p| p.name == PropertyName::REFRESERVATION);
        for Property { name, value } in properties {
            if refusal.as_ref() != Some(name) {
                if *name == PropertyName::VOLSIZE && is_whole && !is_given {
                    own.insert(PropertyName::REFRESERVATION, value.to_string());
                }
                let is_auto = *name == PropertyName::REFRESERVATION && value.as_str() == "auto";
                let size = own.get(&PropertyName::VOLSIZE).filter(|_| is_auto).cloned();
                own.insert(name.clone(), size.unwrap_or_else(|| value.to_string()));
            }
        }
        match refusal.filter(|refused| properties.iter().any(|p| p.name == *refused)) {
            None => Ok(()),
            Some(name) => {
                let text = format!("pool must be upgraded to set '{name}' to this value");
                Err(refused(Next::Tell, Kind::Invalid, text))
            }
        }
    }

    /// Keeps a partial receive if the rest does not arrive.
    pub fn keep_part(&mut self, to: &DatasetName, from: &SnapshotRef) {
        let token = self.snapshots.get(from).map(|cut| mark(cut, from));
        if let (Some(held), Some(token)) = (self.datasets.get_mut(to), token) {
            held.arrived = Some((token, 1));
        }
    }

    fn go_on(&mut self, from: &SnapshotRef, to: &DatasetName) -> Result<(), Failed> {
        let held = self.datasets.get(to).ok_or_else(|| missing(to))?;
        let Some((token, _)) = held.arrived.as_ref().filter(|_| held.receiving) else {
            return Ok(());
        };
        let sent = self.snapshots.get(from);
        if sent.is_some_and(|sent| mark(sent, from) == *token) {
            return self.end_copy(to, Some(from));
        }
        self.datasets.remove(to);
        Ok(())
    }

    fn rename(&mut self, snapshot: &SnapshotRef, to: &SnapshotLeaf) -> Result<(), Failed> {
        let new = snapshot.dataset.at(to).map_err(missing)?;
        if self.snapshots.contains_key(&new) {
            return Err(exists(new));
        }
        let cut = self
            .snapshots
            .remove(snapshot)
            .ok_or_else(|| missing(snapshot))?;
        self.snapshots.insert(new.clone(), cut);
        self.reparent(snapshot, &new);
        Ok(())
    }

    fn create(
        &mut self,
        dataset: &DatasetName,
        new: &New,
        properties: &[Property],
    ) -> Result<(), Failed> {
        for parent in dataset.with_ancestors().iter().skip(1).rev() {
            if !self.datasets.contains_key(parent) {
                if parent.parent().is_none() {
                    return Err(missing(parent));
                }
                self.insert(parent, VolumeKind::Filesystem, &[], None);
            }
        }
        // With -p, what exists is fine, whatever it is.
        if self.datasets.contains_key(dataset) {
            return Ok(());
        }
        if self.is_full() {
            return Err(no_room(dataset));
        }
        match new {
            New::Filesystem => self.insert(dataset, VolumeKind::Filesystem, properties, None),
            New::Zvol { size, block } => {
                self.insert(dataset, VolumeKind::Zvol, properties, None);
                if let Some(held) = self.datasets.get_mut(dataset) {
                    held.block = block.unwrap_or(held.block);
                    held.own.insert(PropertyName::VOLSIZE, size.to_string());
                    let reserved = held.own.entry(PropertyName::REFRESERVATION);
                    reserved.or_insert_with(|| size.to_string());
                }
            }
        }
        Ok(())
    }

    fn source(&self, name: &SnapshotRef) -> Result<(VolumeKind, Cut), Failed> {
        let cut = self.snapshots.get(name).ok_or_else(|| missing(name))?;
        let held = self
            .datasets
            .get(&name.dataset)
            .ok_or_else(|| missing(name))?;
        Ok((held.kind, cut.clone()))
    }

    fn own_mut(&mut self, object: &Object) -> Result<&mut BTreeMap<PropertyName, String>, Failed> {
        let own = match object {
            Object::Dataset(name) => self.datasets.get_mut(name).map(|held| &mut held.own),
            Object::Snapshot(name) => self.snapshots.get_mut(name).map(|cut| &mut cut.own),
        };
        own.ok_or_else(|| missing(object))
    }

    /// Moves clones from one snapshot to another.
    fn reparent(&mut self, from: &SnapshotRef, to: &SnapshotRef) {
        for held in self.datasets.values_mut() {
            if held.origin.as_ref() == Some(from) {
                held.origin = Some(to.clone());
            }
        }
    }

    fn promote(&mut self, name: &DatasetName) -> Result<(), Failed> {
        let heir = self.datasets.get(name).ok_or_else(|| missing(name))?;
        let origin = heir.origin.clone();
        let origin = origin
            .ok_or_else(|| refused(Next::Observe, Kind::Internal, format!("{name} is no clone")))?;
        let newest = self
            .snapshots
            .get(&origin)
            .ok_or_else(|| missing(&origin))?
            .txg;
        let moving: Vec<_> = self
            .snapshots
            .iter()
            .filter(|(other, cut)| other.dataset == origin.dataset && cut.txg <= newest)
            .filter_map(|(other, _)| Some((other.clone(), name.at(&other.leaf).ok()?)))
            .collect();
        if let Some((_, new)) = moving
            .iter()
            .find(|(_, new)| self.snapshots.contains_key(new))
        {
            let text = format!("{new} is in conflict");
            return Err(refused(Next::Tell, Kind::Busy, text));
        }
        let above = self
            .datasets
            .get(&origin.dataset)
            .and_then(|held| held.origin.clone());
        let own_origin = name.at(&origin.leaf).map_err(missing)?;
        for (old, new) in moving {
            if let Some(cut) = self.snapshots.remove(&old) {
                self.snapshots.insert(new.clone(), cut);
            }
            self.reparent(&old, &new);
        }
        if let Some(held) = self.datasets.get_mut(name) {
            held.origin = above;
        }
        if let Some(held) = self.datasets.get_mut(&origin.dataset) {
            held.origin = Some(own_origin);
        }
        Ok(())
    }

    /// Destroys snapshots marked for deferred destroy that have no clones or holds.
    fn sweep(&mut self) {
        let gone: Vec<_> = self
            .snapshots
            .iter()
            .filter(|(name, cut)| cut.doomed && cut.holds == 0 && self.clones(name).is_empty())
            .filter(|(name, _)| !self.is_added_to(name))
            .map(|(name, _)| name.clone())
            .collect();
        for name in gone {
            self.snapshots.remove(&name);
        }
    }
}
