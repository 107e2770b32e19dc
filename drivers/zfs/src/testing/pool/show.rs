//! The results of queries and lists.

use std::collections::BTreeMap;

use super::MemoryPool;
use crate::backend::{Entry, ListFilter, ListQuery, Listed};
use crate::id::is_helper;
use crate::name::{DatasetName, Object, SnapshotLeaf, SnapshotRef};
use crate::observed::{
    ALWAYS, Dataset, Guid, Mark, OF_MEMBERS, Query, Snapshot, State, System, VolumeKind,
};
use crate::property::{Origin, Properties, PropertyName, Value};

/// The properties that were requested.
fn asked_for(properties: &Properties, extra: &[PropertyName]) -> Properties {
    let asked = |name: &PropertyName| ALWAYS.contains(name) || extra.contains(name);
    let shown = properties.iter().filter(|(name, _)| asked(name));
    shown.map(|(n, v)| (n.clone(), v.clone())).collect()
}

/// The properties that a query of a family shows of all objects except its head.
fn of_member(properties: &Properties) -> Properties {
    let shown = properties.iter().filter(|(n, _)| OF_MEMBERS.contains(n));
    shown.map(|(n, v)| (n.clone(), v.clone())).collect()
}

impl MemoryPool {
    /// A pool of these queries that does not exist.
    pub fn missing(&self, queries: &[Query]) -> Option<String> {
        let mut pools = queries.iter().flat_map(|query| match query {
            Query::Dataset(name)
            | Query::Family(name)
            | Query::Nearest(name)
            | Query::Marks(name)
            | Query::Pool(name) => vec![name.pool()],
            Query::Snapshot(snapshot) => vec![snapshot.dataset.pool()],
            Query::Named { within, .. } => within.iter().map(DatasetName::pool).collect(),
            Query::System => Vec::new(),
        });
        let there = |pool: &str| self.datasets.keys().any(|name| name.as_str() == pool);
        pools.find(|pool| !there(pool)).map(str::to_owned)
    }

    fn properties(&self, object: &Object) -> Properties {
        let mut properties = Properties::default();
        let mut put = |name: &PropertyName, text: &str, origin| {
            let text = text.to_owned();
            properties.insert(name.clone(), Value { text, origin });
        };
        let (dataset, own) = match object {
            Object::Dataset(name) => (name, self.datasets.get(name).map(|held| &held.own)),
            Object::Snapshot(name) => (&name.dataset, self.snapshots.get(name).map(|cut| &cut.own)),
        };
        let mut above = dataset.with_ancestors();
        if matches!(object, Object::Dataset(_)) {
            above.remove(0);
        }
        for (name, value) in above
            .iter()
            .rev()
            .filter_map(|n| self.datasets.get(n))
            .flat_map(|h| &h.own)
        {
            if name.is_user() {
                put(name, value, Origin::Inherited);
            }
        }
        for (name, value) in own.into_iter().flatten() {
            put(name, value, Origin::Own);
        }
        properties
    }

    fn dataset(&self, name: &DatasetName) -> Option<Dataset> {
        let held = self.datasets.get(name)?;
        let mut properties = self.properties(&name.clone().into());
        let mut fact = |name, text: String| {
            properties.insert(
                name,
                Value {
                    text,
                    origin: Origin::Default,
                },
            );
        };
        fact(PropertyName::CREATETXG, held.txg.to_string());
        fact(PropertyName::CREATION, self.creation(held.txg));
        fact(PropertyName::REFERENCED, held.used.to_string());
        let receiving = u8::from(held.receiving).to_string();
        fact(PropertyName::INCONSISTENT, receiving);
        if let Some(token) = held.token() {
            fact(PropertyName::RESUME_TOKEN, token);
        }
        let left = self.left.get(name).copied().unwrap_or(1 << 40);
        fact(PropertyName::AVAILABLE, left.to_string());
        let is_locked = self.locked.contains(name);
        let key = if is_locked { "unavailable" } else { "-" };
        fact(PropertyName::KEYSTATUS, key.to_owned());
        if let Some(origin) = &held.origin {
            fact(PropertyName::ORIGIN, origin.to_string());
        }
        match held.kind {
            VolumeKind::Filesystem => {
                // Its own value is used, and inherited below.
                if !held.own.contains_key(&PropertyName::MOUNTPOINT) {
                    fact(PropertyName::MOUNTPOINT, format!("{}/{name}", self.altroot));
                }
                let mounted = if held.mounted && !is_locked {
                    "yes"
                } else {
                    "no"
                };
                fact(PropertyName::MOUNTED, mounted.into());
            }
            VolumeKind::Zvol => fact(PropertyName::VOLBLOCKSIZE, held.block.to_string()),
        }
        Some(Dataset {
            name: name.clone(),
            kind: held.kind,
            guid: Guid(held.txg),
            properties,
        })
    }

    fn snapshot(&self, name: &SnapshotRef) -> Option<Snapshot> {
        let cut = self.snapshots.get(name)?;
        let mut properties = self.properties(&name.clone().into());
        let mut fact = |name, text: String| {
            properties.insert(
                name,
                Value {
                    text,
                    origin: Origin::Default,
                },
            );
        };
        fact(PropertyName::CREATETXG, cut.txg.to_string());
        fact(PropertyName::CREATION, self.creation(cut.txg));
        fact(PropertyName::REFERENCED, cut.used.to_string());
        fact(PropertyName::USERREFS, cut.holds.to_string());
        let doomed = if cut.doomed { "on" } else { "off" };
        fact(PropertyName::DEFER_DESTROY, doomed.into());
        if let Some(volsize) = &cut.volsize {
            fact(PropertyName::VOLSIZE, volsize.clone());
        }
        Some(Snapshot {
            name: name.clone(),
            guid: Guid(cut.guid),
            clones: self.clones(name),
            hidden: self.hidden_clones(name),
            properties,
        })
    }

    /// The result of queries: of datasets, only the requested properties.
    pub fn show(&self, queries: &[Query], extra: &[PropertyName]) -> State {
        let mut state = State::default();
        for query in queries {
            match query {
                Query::Dataset(name) => {
                    self.dataset_with(name, extra)
                        .into_iter()
                        .for_each(|d| state.add_dataset(d));
                }
                Query::Snapshot(name) => {
                    self.snapshot_with(name, extra)
                        .into_iter()
                        .for_each(|s| state.add_snapshot(s));
                }
                Query::Family(name) => {
                    if let Some(head) = self.dataset_with(name, extra) {
                        state.add_dataset(head);
                    }
                    let below = |other: &&DatasetName| other.parent().as_ref() == Some(name);
                    for mut member in self
                        .datasets
                        .keys()
                        .filter(below)
                        .filter_map(|d| self.dataset(d))
                    {
                        member.properties = of_member(&member.properties);
                        state.add_dataset(member);
                    }
                    let own = self.snapshots.keys().filter(|s| s.dataset == *name);
                    for mut snapshot in own.filter_map(|s| self.snapshot(s)) {
                        snapshot.properties = of_member(&snapshot.properties);
                        state.add_snapshot(snapshot);
                    }
                }
                Query::Nearest(name) => {
                    let above = name.with_ancestors();
                    let there = above
                        .iter()
                        .filter_map(|name| self.dataset_with(name, extra));
                    there.for_each(|dataset| state.add_dataset(dataset));
                }
                Query::Named { within, name, .. } => {
                    for object in self.named(within, name) {
                        state.add_named(object);
                    }
                }
                Query::Marks(name) => {
                    let of_it = self.marks.iter();
                    for (mark, cut) in of_it.filter(|(mark, _)| mark.dataset == *name) {
                        state.add_mark(Mark {
                            name: mark.clone(),
                            guid: Guid(cut.guid),
                            createtxg: cut.txg,
                        });
                    }
                }
                Query::Pool(name) => state.set_pool(name, self.state.clone()),
                Query::System => state.set_system(System {
                    name: "Linux".into(),
                    release: "6.12".into(),
                }),
            }
        }
        state
    }

    fn hidden_clones(&self, name: &SnapshotRef) -> Vec<String> {
        let added = self.is_added_to(name);
        let added = added.then(|| format!("{}/%recv", name.dataset));
        self.hidden
            .get(name)
            .cloned()
            .into_iter()
            .chain(added)
            .collect()
    }

    /// The number of bytes written to a dataset since a snapshot.
    fn written_since(&self, name: &DatasetName, property: &PropertyName) -> Option<Value> {
        let leaf = property.as_str().strip_prefix("written@")?;
        let snapshot = name.at(&SnapshotLeaf::parse(leaf).ok()?).ok()?;
        let (held, cut) = (self.datasets.get(name)?, self.snapshots.get(&snapshot)?);
        let bytes = if held.content == cut.content {
            0
        } else {
            held.used
        };
        Some(Value {
            text: bytes.to_string(),
            origin: Origin::Own,
        })
    }

    /// A dataset with only the requested properties.
    fn dataset_with(&self, name: &DatasetName, extra: &[PropertyName]) -> Option<Dataset> {
        let mut dataset = self.dataset(name)?;
        for property in extra {
            if let Some(value) = self.written_since(name, property) {
                dataset.properties.insert(property.clone(), value);
            }
        }
        dataset.properties = asked_for(&dataset.properties, extra);
        Some(dataset)
    }

    /// A snapshot with only the requested properties.
    fn snapshot_with(&self, name: &SnapshotRef, extra: &[PropertyName]) -> Option<Snapshot> {
        let mut snapshot = self.snapshot(name)?;
        snapshot.properties = asked_for(&snapshot.properties, extra);
        Some(snapshot)
    }

    fn named(&self, within: &[DatasetName], name: &str) -> Vec<Object> {
        let below = |dataset: &DatasetName| within.iter().any(|w| dataset.below(w).is_some());
        let has = |own: &BTreeMap<PropertyName, String>| {
            own.get(&PropertyName::SNAPSHOT_NAME).map(String::as_str) == Some(name)
        };
        let datasets = self
            .datasets
            .iter()
            .filter(|(name, held)| below(name) && has(&held.own));
        let snapshots = self.snapshots.iter();
        let snapshots = snapshots.filter(|(name, cut)| below(&name.dataset) && has(&cut.own));
        let datasets = datasets.map(|(name, _)| name.clone().into());
        datasets
            .chain(snapshots.map(|(name, _)| name.clone().into()))
            .collect()
    }

    /// One part of a list.
    pub fn list(&self, query: &ListQuery) -> Listed {
        let mut entries = Vec::new();
        for scope in &query.scopes {
            let depth = |name: &DatasetName| match name.below(&scope.parent) {
                Some(rest) => rest.split('/').count() == usize::from(scope.depth),
                None => *name == scope.parent && scope.depth == 0,
            };
            if let Some(kind) = scope.kind {
                let of_kind = self
                    .datasets
                    .iter()
                    .filter(|(n, h)| depth(n) && h.kind == kind);
                let having = of_kind.filter(|(name, held)| match &scope.filter {
                    ListFilter::Having(name) => held.own.contains_key(name),
                    ListFilter::Lacking(having, lacking) => {
                        held.own.contains_key(having) && !held.own.contains_key(lacking)
                    }
                    ListFilter::Empty(mark) => held.own.contains_key(mark) && !self.children(name),
                    ListFilter::Helpers => false,
                });
                entries.extend(
                    having
                        .filter_map(|(n, _)| self.dataset(n))
                        .map(Entry::Dataset),
                );
            } else {
                let all = self.snapshots.iter().filter(|(n, _)| depth(&n.dataset));
                let having = all.filter(|(name, cut)| match &scope.filter {
                    ListFilter::Having(name) => cut.own.contains_key(name),
                    ListFilter::Lacking(having, lacking) => {
                        cut.own.contains_key(having) && !cut.own.contains_key(lacking)
                    }
                    ListFilter::Empty(_) => false,
                    ListFilter::Helpers => is_helper(&name.leaf),
                });
                entries.extend(
                    having
                        .filter_map(|(n, _)| self.snapshot(n))
                        .map(Entry::Snapshot),
                );
            }
        }
        entries.sort_by_key(Entry::cursor);
        entries.retain(|entry| query.after.is_none_or(|after| entry.cursor() > after));
        let more = entries.len() > query.max;
        entries.truncate(query.max);
        let next = entries.last().filter(|_| more).map(Entry::cursor);
        Listed { entries, next }
    }
}
