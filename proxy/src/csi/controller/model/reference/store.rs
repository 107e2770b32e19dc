//! The content of a storage, and the effect of its verbs: the contract of drivers, as a table.

use std::collections::{BTreeMap, BTreeSet};

use driver_core::Kind;
use driver_core::contract::fake::Verb;

use super::Object;
use crate::csi::controller::model::storage::{Did, Held};

/// A change.
#[derive(Debug, Clone)]
pub(super) enum Act {
    Create {
        id: String,
        size: u64,
        exact: bool,
        source: Option<Source>,
    },
    Delete(String),
    Expand(String, u64),
    Publish(String, &'static str),
    Unpublish(String, Option<&'static str>),
    Snapshot(&'static str, String),
    DeleteSnapshot(String),
}

/// The source of a volume, in the words of its storage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Source {
    Volume(String),
    Snapshot(String),
    Elsewhere(Elsewhere),
}

/// An object of another storage. The same object is the same source, whichever connection of a shared
/// storage the volume is made by.
#[derive(Debug, Clone)]
pub(super) struct Elsewhere {
    pub(super) at: usize,
    pub(super) what: Box<Source>,
    /// The handle of the volume that is filled from it.
    pub(super) copy: String,
}

impl PartialEq for Elsewhere {
    fn eq(&self, other: &Self) -> bool {
        (self.at, &self.what) == (other.at, &other.what)
    }
}

impl Eq for Elsewhere {}

/// One storage.
#[derive(Debug, Default)]
pub(super) struct Store {
    pub(super) volumes: BTreeMap<String, (u64, Option<Source>)>,
    pub(super) halves: BTreeSet<String>,
    /// By name, with the volume that each is of.
    pub(super) snapshots: BTreeMap<&'static str, String>,
    published: BTreeSet<(String, String)>,
    /// The copies in other storages for which something is kept here.
    pub(super) opened: BTreeSet<String>,
    pub(super) full: bool,
    pub(super) down: bool,
    pub(super) room: u64,
}

// === impl Source ===

impl Source {
    /// It, as the object of a call, if a volume of storage `at` is filled from it.
    pub(super) fn object(&self, at: usize) -> Object {
        match self {
            Self::Volume(id) => Object::Volume(at, id.clone()),
            Self::Snapshot(id) => Object::Snapshot(at, id.clone()),
            Self::Elsewhere(from) => from.what.object(from.at),
        }
    }
}

// === impl Act ===

impl Act {
    pub(super) fn verb(&self) -> Verb {
        match self {
            Self::Create { .. } => Verb::CreateVolume,
            Self::Delete(_) => Verb::DeleteVolume,
            Self::Expand(..) => Verb::ExpandVolume,
            Self::Publish(..) => Verb::PublishVolume,
            Self::Unpublish(..) => Verb::UnpublishVolume,
            Self::Snapshot(..) => Verb::CreateSnapshot,
            Self::DeleteSnapshot(_) => Verb::DeleteSnapshot,
        }
    }

    /// The volume that is filled from another storage, if it is, and its source.
    pub(super) fn copies(&self) -> Option<(&String, &Elsewhere)> {
        match self {
            Self::Create {
                id,
                source: Some(Source::Elsewhere(from)),
                ..
            } => Some((id, from)),
            _ => None,
        }
    }
}

// === impl Store ===

impl Store {
    pub(super) fn new(room: u64) -> Self {
        Self {
            room,
            ..Self::default()
        }
    }

    /// Leaves a partial volume, if the change does that.
    pub(super) fn begin(&mut self, act: &Act, did: Did) {
        if let (Did::Half, Act::Create { id, .. }) = (did, act)
            && !self.volumes.contains_key(id)
        {
            self.halves.insert(id.clone());
        }
    }

    /// Applies a change, and returns the resulting size.
    pub(super) fn apply(&mut self, act: &Act) -> Result<u64, Kind> {
        match act {
            Act::Create {
                id,
                size,
                exact,
                source,
            } => return self.create(id, *size, *exact, source.as_ref()),
            Act::Delete(id) => {
                self.volumes.remove(id);
                self.halves.remove(id);
            }
            Act::Expand(id, size) => {
                let (has, _) = self.volumes.get_mut(id).ok_or(Kind::NotFound)?;
                *has = (*has).max(*size);
                return Ok(*has);
            }
            Act::Publish(id, node) => {
                if !self.volumes.contains_key(id) {
                    return Err(Kind::NotFound);
                }
                self.published.insert((id.clone(), (*node).to_owned()));
            }
            Act::Unpublish(id, node) => {
                let goes = |(volume, on): &(String, String)| {
                    volume == id && node.is_none_or(|node| node == on)
                };
                self.published.retain(|entry| !goes(entry));
            }
            Act::Snapshot(name, source) => match self.snapshots.get(name) {
                Some(of) if of == source => {}
                Some(_) => return Err(Kind::Conflict),
                None if !self.volumes.contains_key(source) => return Err(Kind::NotFound),
                None => drop(self.snapshots.insert(name, source.clone())),
            },
            Act::DeleteSnapshot(id) => {
                self.snapshots
                    .retain(|name, of| *id != format!("{of}@{name}"));
            }
        }
        Ok(0)
    }

    fn create(
        &mut self,
        id: &String,
        size: u64,
        exact: bool,
        source: Option<&Source>,
    ) -> Result<u64, Kind> {
        if let Some((has, of)) = self.volumes.get(id) {
            let fits = *has >= size && (!exact || *has == size) && of.as_ref() == source;
            return if fits { Ok(*has) } else { Err(Kind::Conflict) };
        }
        if self.full {
            return Err(Kind::OutOfSpace);
        }
        if !source.is_none_or(|source| self.has(source)) {
            return Err(Kind::NotFound);
        }
        self.halves.remove(id);
        self.volumes.insert(id.clone(), (size, source.cloned()));
        Ok(size)
    }

    /// Ids of snapshots, and the volumes that they are of.
    pub(super) fn all_snapshots(&self) -> impl Iterator<Item = (String, &String)> {
        let all = self.snapshots.iter();
        all.map(|(name, of)| (format!("{of}@{name}"), of))
    }

    /// Whether it has the source of a volume, or has it elsewhere.
    pub(super) fn has(&self, source: &Source) -> bool {
        match source {
            Source::Volume(id) => self.volumes.contains_key(id),
            Source::Snapshot(id) => self.all_snapshots().any(|(known, _)| known == *id),
            Source::Elsewhere(_) => true,
        }
    }

    pub(super) fn held(&self) -> Held {
        let volumes = self.volumes.iter();
        let snapshots = self.all_snapshots();
        Held {
            volumes: volumes.map(|(id, (size, _))| (id.clone(), *size)).collect(),
            halves: self.halves.clone(),
            snapshots: snapshots.map(|(id, of)| (id, of.clone())).collect(),
            published: self.published.clone(),
            opened: self.opened.clone(),
        }
    }
}
