//! The rows that were read of the pool, as the algorithm sees them.
//!
//! Two things the API does not say are made up for. What tells a dataset from another one of its name is
//! when it was made, since only some generations show its guid. And whether a property of a user is a
//! dataset's own is not always said: then it is, unless the dataset above has the same value.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use driver_core::{Error, Kind};
use driver_zfs::backend::Cursor;
use driver_zfs::id;
use driver_zfs::name::{DatasetName, Object, SnapshotLeaf, SnapshotRef};
use driver_zfs::observed::{Dataset, Guid, Query, Snapshot, State, System, VolumeKind};
use driver_zfs::property::{Origin, Properties, PropertyName, Value};

use super::native::zfs_name;
use crate::api::dataset::{Dataset as ApiDataset, Property, Source};
use crate::api::snapshot::Snapshot as ApiSnapshot;
use crate::rows::RowMemory;

/// The rows that were read. A clone has the same rows, so that it takes little memory.
#[derive(Debug, Clone, Default)]
pub(super) struct PoolRows {
    /// Whether sources of properties of users are not said.
    pub(super) by_resource: bool,
    pub(super) datasets: BTreeMap<String, Arc<ApiDataset>>,
    pub(super) snapshots: BTreeMap<String, Arc<ApiSnapshot>>,
    /// The clones of snapshots: the snapshot and the clone.
    pub(super) clones: BTreeSet<(String, String)>,
    /// The objects that were found by the name of a snapshot.
    pub(super) named: Vec<(Object, RowMemory)>,
    /// The datasets that are being copied into.
    pub(super) copying: BTreeSet<String>,
}

/// FNV-1a.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn odd(what: &str, why: &str) -> Error {
    Error::new(Kind::Internal, format!("read what TrueNAS says of {what}")).because(why.to_owned())
}

fn raw(dataset: &ApiDataset, name: &str) -> Option<String> {
    dataset.properties.get(name).map(|p| p.raw.clone())
}

/// The place of a dataset in lists, and the time when it was made, which tells it from another one of its name.
pub(super) fn cursor_of(dataset: &ApiDataset) -> Option<Cursor> {
    let creation = dataset.properties.get("creation")?;
    Some(Cursor {
        createtxg: creation.number.unwrap_or_default(),
        guid: hash(&format!("{} {}", creation.raw, dataset.id)),
    })
}

// === impl PoolRows ===

impl PoolRows {
    /// Adds a dataset.
    pub(super) fn add(&mut self, dataset: impl Into<Arc<ApiDataset>>) {
        let dataset = dataset.into();
        self.add_clone(&dataset);
        // What is known with more properties counts.
        let known = self.datasets.get(&dataset.id);
        if known.is_none_or(|known| known.properties.len() <= dataset.properties.len()) {
            self.datasets.insert(dataset.id.clone(), dataset);
        }
    }

    /// Adds what is only known to stand on a snapshot.
    pub(super) fn add_clone(&mut self, dataset: &ApiDataset) {
        if let Some(origin) = raw(dataset, "origin").filter(|origin| origin.contains('@')) {
            self.clones.insert((origin, dataset.id.clone()));
        }
    }

    /// Adds a snapshot, and the clones that it names.
    pub(super) fn add_snapshot(&mut self, snapshot: ApiSnapshot) {
        let clones = snapshot.clones().unwrap_or_default().into_iter();
        let clones = clones.map(|clone| (snapshot.id.clone(), clone.to_owned()));
        self.clones.extend(clones);
        self.snapshots
            .insert(snapshot.id.clone(), Arc::new(snapshot));
    }

    /// Adds datasets and snapshots.
    pub(super) fn extend(&mut self, datasets: Vec<ApiDataset>, snapshots: Vec<ApiSnapshot>) {
        for dataset in datasets {
            self.add(dataset);
        }
        for snapshot in snapshots {
            self.add_snapshot(snapshot);
        }
    }

    /// Whether an object was read.
    pub(super) fn has(&self, object: &Object) -> bool {
        match object {
            Object::Dataset(name) => self.datasets.contains_key(name.as_str()),
            Object::Snapshot(name) => self.snapshots.contains_key(&name.to_string()),
        }
    }

    /// Takes out a dataset with all that is on and below it.
    pub(super) fn forget(&mut self, name: &DatasetName) {
        let below = format!("{name}/");
        let is_of_it = |id: &str| id == name.as_str() || id.starts_with(&below);
        self.datasets.retain(|id, _| !is_of_it(id));
        self.copying.retain(|id| !is_of_it(id));
        self.snapshots
            .retain(|_, snapshot| !is_of_it(&snapshot.dataset));
        self.clones.retain(|(origin, clone)| {
            let dataset = origin.split('@').next().unwrap_or_default();
            !is_of_it(dataset) && !is_of_it(clone)
        });
    }

    /// Takes out a dataset, without what is on and below it.
    pub(super) fn forget_row(&mut self, name: &DatasetName) {
        self.datasets.remove(name.as_str());
        self.copying.remove(name.as_str());
    }

    /// Takes out a snapshot.
    pub(super) fn forget_snapshot(&mut self, name: &SnapshotRef) {
        self.snapshots.remove(&name.to_string());
    }

    /// A dataset stands on a snapshot.
    pub(super) fn stands_on(&mut self, origin: &SnapshotRef, clone: &DatasetName) {
        self.clones.insert((origin.to_string(), clone.to_string()));
    }

    /// A snapshot was destroyed: it is gone, unless something keeps it.
    pub(super) fn doom(&mut self, name: &SnapshotRef) {
        let id = name.to_string();
        let has_clones = self.clones.iter().any(|(origin, _)| *origin == id);
        let is_held = |snapshot: &ApiSnapshot| {
            let mut holds = snapshot.holds.iter().flatten();
            holds.next().is_some()
        };
        match self.snapshots.get_mut(&id) {
            Some(snapshot) if has_clones || is_held(snapshot) => {
                let on = Property {
                    raw: "on".to_owned(),
                    number: None,
                    source: Source::Default,
                };
                Arc::make_mut(snapshot)
                    .properties
                    .insert("defer_destroy".to_owned(), on);
            }
            _ => self.forget_snapshot(name),
        }
    }

    /// Lays over what was read later.
    pub(super) fn lay(&mut self, later: Self) {
        self.by_resource |= later.by_resource;
        self.datasets.extend(later.datasets);
        self.snapshots.extend(later.snapshots);
        self.clones.extend(later.clones);
        self.named.extend(later.named);
        self.copying.extend(later.copying);
    }

    /// Whether a dataset that was read bears none of our marks of its own, as a copy does until it is whole.
    pub(super) fn may_be_a_part(&self, name: &DatasetName) -> bool {
        let marks = [PropertyName::MANAGED, PropertyName::CONTAINER];
        let found = self.datasets.get(name.as_str());
        // The parent of volumes may bear no mark, as an administrator may have created it: a dataset
        // with children is excluded.
        found.is_some_and(|found| {
            let bare = |mark: &PropertyName| {
                let text = found.user_properties.get(mark.as_str());
                text.is_none_or(|text| self.is_inherited(found, mark.as_str(), text))
            };
            marks.iter().all(bare) && !self.has_below(name)
        })
    }

    /// Whether anything of a pool was read.
    pub(super) fn has_in_pool(&self, pool: &str) -> bool {
        let is_in_it = |id: &str| id.split(['/', '@']).next() == Some(pool);
        let mut datasets = self.datasets.keys();
        let mut snapshots = self.snapshots.keys();
        datasets.any(|id| is_in_it(id)) || snapshots.any(|id| is_in_it(id))
    }

    /// The datasets that say whether snapshots bear a name of their own, where the snapshots do not show it by
    /// themselves: one of ours names the volume that it is of.
    pub(super) fn above_snapshots(&self) -> BTreeSet<DatasetName> {
        let shows = |snapshot: &ApiSnapshot| {
            let text = |name: PropertyName| snapshot.user_properties.get(name.as_str());
            let volume = text(PropertyName::SNAPSHOT_SOURCE);
            let of_it = volume.is_some_and(|volume| id::is_id_of(volume, &snapshot.dataset));
            let is_helper = SnapshotLeaf::parse(&snapshot.name).is_ok_and(|it| id::is_helper(&it));
            text(PropertyName::SNAPSHOT_NAME).is_none() || (of_it && !is_helper)
        };
        let unknown = self
            .snapshots
            .values()
            .filter(|snapshot| !shows(snapshot) && !self.datasets.contains_key(&snapshot.dataset));
        unknown
            .filter_map(|snapshot| DatasetName::parse(&snapshot.dataset).ok())
            .collect()
    }

    fn has_below(&self, name: &DatasetName) -> bool {
        let prefix = format!("{name}/");
        self.datasets.keys().any(|id| id.starts_with(&prefix))
    }

    /// The state that answers these queries. A dataset that is not there is missing only if its pool is
    /// there.
    pub(super) fn state(&self, queries: &[Query]) -> Result<State, Error> {
        let mut state = State::default();
        for query in queries {
            match query {
                Query::Dataset(name) => self.show(&mut state, name)?,
                Query::Family(name) => {
                    self.show(&mut state, name)?;
                    for id in self.datasets.keys() {
                        if let Ok(below) = DatasetName::parse(id)
                            && below.parent().as_ref() == Some(name)
                        {
                            self.show(&mut state, &below)?;
                        }
                    }
                    for snapshot in self.snapshots.values() {
                        if snapshot.dataset == name.as_str() {
                            state.add_snapshot(self.snapshot(snapshot)?);
                        }
                    }
                }
                Query::Snapshot(name) => {
                    self.find_pool(&name.dataset)?;
                    if let Some(snapshot) = self.snapshots.get(&name.to_string()) {
                        state.add_snapshot(self.snapshot(snapshot)?);
                    }
                }
                Query::Named { .. } | Query::Marks(_) | Query::Pool(_) => {}
                Query::Nearest(name) => {
                    self.find_pool(name)?;
                    for name in name.with_ancestors() {
                        self.show(&mut state, &name)?;
                    }
                }
                Query::System => state.set_system(System {
                    name: "Linux".to_owned(),
                    release: "6".to_owned(),
                }),
            }
        }
        for (object, _) in &self.named {
            state.add_named(object.clone());
        }
        Ok(state)
    }

    fn show(&self, state: &mut State, name: &DatasetName) -> Result<(), Error> {
        match self.datasets.get(name.as_str()) {
            Some(dataset) => state.add_dataset(self.dataset(name, dataset)?),
            None => self.find_pool(name)?,
        }
        Ok(())
    }

    fn find_pool(&self, name: &DatasetName) -> Result<(), Error> {
        let pool = name.pool();
        if self.has_in_pool(pool) {
            return Ok(());
        }
        Err(Error::new(Kind::Unreachable, format!("find pool `{pool}`"))
            .because("TrueNAS shows no such pool")
            .advise("see whether it is imported, and whether the user may read datasets"))
    }

    /// A dataset, as the algorithm sees it.
    pub(super) fn dataset(
        &self,
        name: &DatasetName,
        dataset: &ApiDataset,
    ) -> Result<Dataset, Error> {
        let kind = if dataset.is_volume {
            VolumeKind::Zvol
        } else {
            VolumeKind::Filesystem
        };
        let cursor = cursor_of(dataset);
        let cursor = cursor.ok_or_else(|| odd(&dataset.id, "it has no time of creation"))?;
        let seconds = cursor.createtxg;
        let mut properties = Properties::default();
        let mut put = |name: &str, text: String, origin| {
            if let Ok(name) = PropertyName::parse(name) {
                properties.insert(name, Value { text, origin });
            }
        };
        for (name, property) in &dataset.properties {
            let origin = match property.source {
                Source::Own => Origin::Own,
                Source::Inherited => Origin::Inherited,
                Source::Default => Origin::Default,
            };
            put(zfs_name(name), property.raw.clone(), origin);
        }
        for (name, text) in &dataset.user_properties {
            let origin = if self.is_inherited(dataset, name, text) {
                Origin::Inherited
            } else {
                Origin::Own
            };
            put(name, text.clone(), origin);
        }
        let fact = Origin::Default;
        put("type", kind.word().to_owned(), fact);
        put("createtxg", seconds.to_string(), fact);
        if let Some(mountpoint) = &dataset.mountpoint {
            put("mountpoint", mountpoint.clone(), fact);
            let is_said = dataset.properties.contains_key("mounted");
            if dataset.locked != Some(true) && !is_said {
                put("mounted", "yes".to_owned(), fact);
            }
        }
        if let Some(is_locked) = dataset.locked {
            let key = if is_locked {
                "unavailable"
            } else {
                "available"
            };
            put("keystatus", key.to_owned(), fact);
        }
        let number = |name: &str| dataset.properties.get(name).and_then(|p| p.number);
        if number("referenced").is_none()
            && let Some(used) = number("usedbydataset")
        {
            put("referenced", used.to_string(), fact);
        }
        if self.copying.contains(&dataset.id) {
            put("inconsistent", "1".to_owned(), fact);
        }
        Ok(Dataset {
            name: name.clone(),
            kind,
            guid: Guid(cursor.guid),
            properties,
        })
    }

    fn is_inherited(&self, dataset: &ApiDataset, name: &str, text: &str) -> bool {
        if dataset.inherited.contains(name) {
            return true;
        }
        let parent = dataset.id.rsplit_once('/').map(|(parent, _)| parent);
        let parent = parent.and_then(|parent| self.datasets.get(parent));
        let above = parent.and_then(|parent| parent.user_properties.get(name));
        self.by_resource && above.is_some_and(|above| above == text)
    }

    /// A snapshot, as the algorithm sees it. A snapshot shows what its dataset has as well: a name is its
    /// own unless the dataset has the same one.
    pub(super) fn snapshot(&self, snapshot: &ApiSnapshot) -> Result<Snapshot, Error> {
        let name = SnapshotRef::parse(&snapshot.id)
            .map_err(|error| odd(&snapshot.id, &error.to_string()))?;
        let of = self.datasets.get(&snapshot.dataset);
        let names = [PropertyName::SNAPSHOT_NAME, PropertyName::SNAPSHOT_SOURCE];
        let mut properties = Properties::default();
        let mut put = |name: &str, text: &str, origin| {
            if let Ok(name) = PropertyName::parse(name) {
                let text = text.to_owned();
                properties.insert(name, Value { text, origin });
            }
        };
        for (name, property) in &snapshot.properties {
            put(name, &property.raw, Origin::Default);
        }
        for (key, text) in &snapshot.user_properties {
            let above = of.and_then(|dataset| dataset.user_properties.get(key));
            let shown = names.iter().any(|name| name.as_str() == key) && above == Some(text);
            let origin = if shown {
                Origin::Inherited
            } else {
                Origin::Own
            };
            put(key, text, origin);
        }
        put("type", "snapshot", Origin::Default);
        put("createtxg", &snapshot.txg.to_string(), Origin::Default);
        // Where no tags were read their number may have been; else it is not known.
        if let Some(holds) = &snapshot.holds {
            put("userrefs", &holds.len().to_string(), Origin::Default);
        }
        let volume = of.filter(|dataset| dataset.is_volume);
        if let Some(block) = volume.and_then(|dataset| raw(dataset, "volblocksize")) {
            put("volblocksize", &block, Origin::Default);
        }
        let guid = snapshot.properties.get("guid").and_then(|guid| guid.number);
        let guid = guid.unwrap_or_else(|| hash(&format!("{} {}", snapshot.txg, snapshot.id)));
        let clones = self
            .clones
            .iter()
            .filter(|(origin, _)| *origin == snapshot.id);
        let clones = clones.filter_map(|(_, clone)| DatasetName::parse(clone).ok());
        Ok(Snapshot {
            name,
            guid: Guid(guid),
            clones: clones.collect(),
            hidden: Vec::new(),
            properties,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn is_held(more: &Value) -> bool {
        let mut row = json!({
            "name": "tank/v@s",
            "dataset": "tank/v",
            "snapshot_name": "s",
            "createtxg": "7",
        });
        let more = more.as_object().expect("fields").clone();
        row.as_object_mut().expect("an object").extend(more);
        let read: ApiSnapshot = serde_json::from_value(row).expect("a snapshot");
        let shown = PoolRows::default().snapshot(&read).expect("shown");
        shown.is_held()
    }

    #[test]
    fn holds_that_were_not_read_are_not_taken_for_none() {
        // 22.02 lists no tags, and counts them.
        let counted = |count: &str| json!({"properties": {"userrefs": {"rawvalue": count}}});
        for (more, held) in [
            (json!({"holds": {}}), false),
            (json!({"holds": []}), false),
            (json!({"holds": {"truenas": 1}}), true),
            (json!({"holds": ["truenas"]}), true),
            (counted("0"), false),
            (counted("1"), true),
            (json!({}), true),
            (json!({"holds": null}), true),
        ] {
            assert_eq!(is_held(&more), held, "{more}");
        }
    }
}
