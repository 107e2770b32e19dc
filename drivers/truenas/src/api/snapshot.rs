//! Snapshots: `zfs.snapshot.*` up to 25.04, `pool.snapshot.*` from 25.10 on.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, json};

use super::dataset::Property;
use super::{Call, Done, Fields, Filter, Request, query};
use crate::metered::LARGEST_ANSWER;
use crate::rows::{Holds, Number, RowMemory, UserProperties};
use crate::{Dialect, Error, Generation, rows};

/// From this length on, the text of a property may have been cut off: ZFS ends it at 1024 bytes or more.
const LONGEST_PROPERTY: usize = 1000;

/// Finds snapshots. 26 reports no properties of users here:
/// [`super::resource::QueryResourceSnapshots`] does.
#[derive(Debug, Clone, Default)]
pub struct QuerySnapshots {
    /// The filters. Name the snapshot (`id`) or the dataset (`dataset`): all snapshots can be many.
    pub filters: Vec<Filter>,
    /// The properties to read; none if empty.
    pub properties: Vec<String>,
    /// Whether to read the holds.
    pub holds: bool,
}

/// Finds snapshots by the name after the `@`, at any depth below a dataset.
#[derive(Debug, Clone)]
pub struct FindSnapshots {
    /// The name after the `@`.
    pub name: String,
    /// The dataset that theirs lie below.
    pub below: String,
}

/// Finds the names of the snapshots of one dataset. Up to 25.10 nothing but names is looked up by dataset: all else
/// reads every snapshot of the NAS.
#[derive(Debug, Clone)]
pub struct NameSnapshots {
    /// The dataset.
    pub dataset: String,
}

/// A snapshot that was found by its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundSnapshot {
    /// `dataset@name`.
    pub id: String,
    /// The memory that it takes, with the other rows of its answer.
    pub memory: RowMemory,
}

/// Gives a snapshot another name. From 25.10 on.
#[derive(Debug, Clone)]
pub struct RenameSnapshot {
    /// `dataset@name`.
    pub id: String,
    /// The new name after the `@`.
    pub name: String,
}

/// A snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// `dataset@name`.
    pub id: String,
    /// The dataset.
    pub dataset: String,
    /// The name after the `@`.
    pub name: String,
    /// The transaction that made it: an order in time within a pool.
    pub txg: u64,
    /// The properties that were asked for.
    pub properties: BTreeMap<String, Property>,
    /// The properties of users.
    pub user_properties: BTreeMap<String, String>,
    /// The tags that hold it, where they were read.
    pub holds: Option<Vec<String>>,
    /// The memory that it takes, with the other rows of its answer.
    pub memory: RowMemory,
}

/// Creates a snapshot.
#[derive(Debug, Clone, Default)]
pub struct CreateSnapshot {
    /// The dataset.
    pub dataset: String,
    /// The name after the `@`.
    pub name: String,
    /// Also of all descendants, at the same instant.
    pub recursive: bool,
    /// Descendants that are left out. From 22.12 on; not together with properties.
    pub exclude: Vec<String>,
    /// Properties of users. On 26 they make this a call of `zfs.resource.snapshot`.
    pub user_properties: BTreeMap<String, String>,
}

/// Deletes a snapshot.
#[derive(Debug, Clone)]
pub struct DeleteSnapshot {
    /// `dataset@name`.
    pub id: String,
    /// If clones or holds keep it, destroy it when the last one goes.
    pub defer: bool,
}

/// Makes a dataset from a snapshot. Properties of users and quotas of the origin are not taken over.
#[derive(Debug, Clone)]
pub struct CloneSnapshot {
    /// `dataset@name`.
    pub snapshot: String,
    /// The path of the new dataset.
    pub dataset: String,
    /// ZFS properties of the clone, as ZFS spells them. Not on CORE.
    pub properties: BTreeMap<String, String>,
}

/// Holds a snapshot, with the tag `truenas`. From 22.12 on.
#[derive(Debug, Clone)]
pub struct HoldSnapshot {
    /// `dataset@name`.
    pub id: String,
}

/// Releases every hold of a snapshot, whatever its tag. From 22.12 on.
#[derive(Debug, Clone)]
pub struct ReleaseSnapshot {
    /// `dataset@name`.
    pub id: String,
}

/// Changes the properties of users of a snapshot. From 22.02 to 25.10; 26 accepts it and does nothing.
#[derive(Debug, Clone, Default)]
pub struct UpdateSnapshot {
    /// `dataset@name`.
    pub id: String,
    /// The properties to set, or to remove with `None`.
    pub user_properties: BTreeMap<String, Option<String>>,
}

// === impl requests ===

impl QuerySnapshots {
    /// Finds one snapshot.
    pub fn by_id(id: &str) -> Self {
        Self {
            filters: vec![Filter::eq("id", id)],
            ..Self::default()
        }
    }

    /// Finds the snapshots of one dataset.
    pub fn of(dataset: &str) -> Self {
        Self {
            filters: vec![Filter::eq("dataset", dataset)],
            ..Self::default()
        }
    }
}

impl Request for QuerySnapshots {
    type Answer = Vec<Snapshot>;

    fn largest(&self) -> usize {
        LARGEST_ANSWER
    }

    fn encode(&self, dialect: &Dialect) -> Result<Call, Error> {
        let mut extra = Map::new();
        if self.holds {
            dialect.needs(Generation::V22_12, "holds of snapshots")?;
            extra.insert("holds".to_owned(), json!(true));
        }
        // Up to 25.10 a list of properties leaves out those of users.
        if dialect.generation() >= Generation::V26 {
            extra.insert("properties".to_owned(), json!(self.properties));
        }
        let method = format!("{}.query", dialect.snapshots());
        Ok(query(method, &self.filters, json!({"extra": extra})))
    }
}

impl Request for FindSnapshots {
    type Answer = Vec<FoundSnapshot>;

    fn largest(&self) -> usize {
        LARGEST_ANSWER
    }

    fn encode(&self, dialect: &Dialect) -> Result<Call, Error> {
        let below = format!("{}/", self.below);
        let filters = if dialect.generation() >= Generation::V26 {
            let pool = below.split('/').next().unwrap_or_default();
            vec![
                Filter::eq("pool", pool),
                Filter::eq("snapshot_name", self.name.as_str()),
                Filter::starts_with("dataset", &below),
            ]
        } else {
            // By these two and the pool alone only names are read.
            vec![
                Filter::ends_with("name", &format!("@{}", self.name)),
                Filter::starts_with("name", &below),
            ]
        };
        Ok(names(dialect, &filters))
    }
}

impl Request for NameSnapshots {
    type Answer = Vec<FoundSnapshot>;

    fn largest(&self) -> usize {
        LARGEST_ANSWER
    }

    fn encode(&self, dialect: &Dialect) -> Result<Call, Error> {
        Ok(names(
            dialect,
            &[Filter::eq("dataset", self.dataset.as_str())],
        ))
    }
}

/// Asks for names alone.
fn names(dialect: &Dialect, filters: &[Filter]) -> Call {
    let mut options = json!({"select": ["name"]});
    if dialect.generation() >= Generation::V26 {
        options["extra"] = json!({"properties": []});
    }
    query(format!("{}.query", dialect.snapshots()), filters, options)
}

impl Request for RenameSnapshot {
    type Answer = Done;

    fn encode(&self, dialect: &Dialect) -> Result<Call, Error> {
        dialect.needs(Generation::V25_10, "renaming of snapshots")?;
        let dataset = self.id.split('@').next().unwrap_or_default();
        Fields::new(dialect)
            .put("new_name", format!("{dataset}@{}", self.name))
            .put("force", true)
            .call_after("pool.snapshot.rename", vec![json!(self.id)])
    }
}

impl Request for CreateSnapshot {
    type Answer = Snapshot;

    fn encode(&self, dialect: &Dialect) -> Result<Call, Error> {
        let fields = Fields::new(dialect)
            .put("dataset", self.dataset.as_str())
            .put("name", self.name.as_str())
            .put("recursive", self.recursive);
        if !self.exclude.is_empty() && !dialect.has_snapshot_exclude() {
            return Err(dialect.lacks("exclusion from recursive snapshots"));
        }
        let exclude = (!self.exclude.is_empty()).then(|| json!(self.exclude));
        let user = (!self.user_properties.is_empty()).then(|| json!(self.user_properties));
        let fields = fields.opt("exclude", exclude.as_ref());
        if user.is_some() && dialect.has_resource_destroy() {
            let fields = fields.opt("user_properties", user.as_ref());
            return fields.call("zfs.resource.snapshot.create");
        }
        fields
            .since(Generation::V22_02, "properties", user.as_ref())
            .call(format!("{}.create", dialect.snapshots()))
    }
}

impl Request for DeleteSnapshot {
    type Answer = Done;

    fn encode(&self, dialect: &Dialect) -> Result<Call, Error> {
        Fields::new(dialect).put("defer", self.defer).call_after(
            format!("{}.delete", dialect.snapshots()),
            vec![json!(self.id)],
        )
    }
}

impl Request for CloneSnapshot {
    type Answer = Done;

    fn encode(&self, dialect: &Dialect) -> Result<Call, Error> {
        let properties = (!self.properties.is_empty()).then(|| json!(self.properties));
        Fields::new(dialect)
            .put("snapshot", self.snapshot.as_str())
            .put("dataset_dst", self.dataset.as_str())
            .since(
                Generation::V22_02,
                "dataset_properties",
                properties.as_ref(),
            )
            .call(format!("{}.clone", dialect.snapshots()))
    }
}

impl Request for HoldSnapshot {
    type Answer = Done;

    fn encode(&self, dialect: &Dialect) -> Result<Call, Error> {
        dialect.needs(Generation::V22_12, "holds of snapshots")?;
        Ok(Call::new(
            format!("{}.hold", dialect.snapshots()),
            vec![json!(self.id)],
        ))
    }
}

impl Request for ReleaseSnapshot {
    type Answer = Done;

    fn encode(&self, dialect: &Dialect) -> Result<Call, Error> {
        dialect.needs(Generation::V22_12, "holds of snapshots")?;
        Ok(Call::new(
            format!("{}.release", dialect.snapshots()),
            vec![json!(self.id)],
        ))
    }
}

impl Request for UpdateSnapshot {
    type Answer = Done;

    fn encode(&self, dialect: &Dialect) -> Result<Call, Error> {
        dialect.needs(Generation::V22_02, "properties of users of snapshots")?;
        if dialect.generation() >= Generation::V26 {
            return Err(dialect.lacks("way to change properties of users of a snapshot"));
        }
        let changes = self.user_properties.iter();
        let update = |(key, value): (&String, &Option<String>)| match value {
            Some(value) => json!({"key": key, "value": value}),
            None => json!({"key": key, "remove": true}),
        };
        let fields = Fields::new(dialect);
        let fields = if dialect.generation() < Generation::V25_10 {
            fields.put(
                "user_properties_update",
                changes.map(update).collect::<Vec<_>>(),
            )
        } else {
            let (set, remove): (Vec<_>, Vec<_>) = changes.partition(|(_, value)| value.is_some());
            let remove: Vec<&String> = remove.into_iter().map(|(key, _)| key).collect();
            fields
                .put(
                    "user_properties_update",
                    set.into_iter().map(update).collect::<Vec<_>>(),
                )
                .put("user_properties_remove", json!(remove))
        };
        fields.call_after(
            format!("{}.update", dialect.snapshots()),
            vec![json!(self.id)],
        )
    }
}

// === impl Snapshot ===

impl Snapshot {
    /// The clones that stand on it, where it says so. ZFS cuts a long list off: such a one says nothing.
    pub fn clones(&self) -> Option<Vec<&str>> {
        let text = self.properties.get("clones")?.raw.as_str();
        let names = || text.split(',').filter(|name| !name.is_empty()).collect();
        match text {
            "none" | "-" => Some(Vec::new()),
            _ if text.len() >= LONGEST_PROPERTY => None,
            _ => Some(names()),
        }
    }
}

impl<'de> Deserialize<'de> for Snapshot {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Raw {
            name: String,
            dataset: String,
            snapshot_name: String,
            #[serde(default)]
            createtxg: Number,
            #[serde(default, deserialize_with = "rows::properties")]
            properties: BTreeMap<String, Property>,
            #[serde(default)]
            user_properties: UserProperties,
            #[serde(default)]
            holds: Holds,
        }
        let raw = Raw::deserialize(deserializer)?;
        rows::charge(raw.name.len() + raw.dataset.len() + raw.snapshot_name.len())?;
        let mut user_properties = BTreeMap::new();
        let mut properties = BTreeMap::new();
        for (name, property) in raw.properties {
            // Properties of users have a colon; up to 25.10 they stand among the others.
            if name.contains(':') {
                user_properties.insert(name, property.raw);
            } else {
                properties.insert(name, property);
            }
        }
        user_properties.extend(raw.user_properties.texts);
        Ok(Self {
            id: raw.name,
            dataset: raw.dataset,
            name: raw.snapshot_name,
            txg: raw.createtxg.0,
            properties,
            user_properties,
            holds: raw.holds.0,
            memory: RowMemory::of_this(),
        })
    }
}

impl<'de> Deserialize<'de> for FoundSnapshot {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Raw {
            name: String,
        }
        let Raw { name } = Raw::deserialize(deserializer)?;
        rows::charge(name.len())?;
        Ok(Self {
            id: name,
            memory: RowMemory::of_this(),
        })
    }
}
