//! Datasets and zvols: `pool.dataset.*`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};

use super::{Call, Done, Fields, Filter, Request, query};
use crate::metered::LARGEST_ANSWER;
use crate::rows::{RowMemory, RowProperty, Text, UserProperties};
use crate::{Dialect, Error, Generation, rows};

/// Finds datasets. The NAS walks over all its datasets from 25.10 on, whatever is asked:
/// [`super::resource::QueryResources`] looks up paths instead.
#[derive(Debug, Clone, Default)]
pub struct QueryDatasets {
    /// The filters; all datasets if empty.
    pub filters: Vec<Filter>,
    /// The properties to read; none if empty.
    pub properties: Vec<String>,
    /// Whether to read the properties of users.
    pub user_properties: bool,
    /// Whether to read the names of the snapshots.
    pub snapshots: bool,
    /// Whether the NAS leaves out all that is not read: for lists.
    pub short: bool,
}

/// A dataset or a zvol.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dataset {
    /// Its path, beginning with the pool.
    pub id: String,
    /// Whether it is a zvol.
    pub is_volume: bool,
    /// The path where it is mounted, where that was asked for.
    pub mountpoint: Option<String>,
    /// The properties that were asked for.
    pub properties: BTreeMap<String, Property>,
    /// The properties of users. Their source cannot be relied on: an inherited one looks like a local
    /// one from 25.10 on, so a mark of ownership must name the dataset.
    pub user_properties: BTreeMap<String, String>,
    /// Those properties of users of which the NAS says that they come from a dataset above.
    pub inherited: BTreeSet<String>,
    /// The snapshots that were asked for, as `dataset@name`.
    pub snapshots: Vec<String>,
    /// Whether it is encrypted and its key is not loaded, where the NAS says so.
    pub locked: Option<bool>,
    /// The memory that it takes, with the other rows of its answer.
    pub memory: RowMemory,
}

/// The value of a property. Texts for display are left out: 26 writes some in capitals.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Property {
    /// As ZFS prints it without units.
    pub raw: String,
    /// As a number, if it is one.
    pub number: Option<u64>,
    /// Its source, as far as the NAS says so.
    pub source: Source,
}

/// The source of a value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Source {
    /// It was set on this dataset, or received with it.
    Own,
    /// From a dataset above.
    Inherited,
    /// It is a default, or a fact, or not known.
    #[default]
    Default,
}

/// Creates a dataset.
#[derive(Debug, Clone)]
pub struct CreateDataset {
    /// Its path.
    pub name: String,
    /// The kind of the new dataset.
    pub kind: CreateKind,
    /// Whether missing parents are created. Left out on CORE, where the caller creates them.
    pub create_ancestors: bool,
    /// Its properties in the spelling of the API, such as `compression: "LZ4"`, `refquota`, `comments`.
    pub properties: Map<String, Value>,
    /// Properties of users. Not on CORE; read them back on 26, whose betas drop them.
    pub user_properties: BTreeMap<String, String>,
}

/// The kind of a dataset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CreateKind {
    /// A filesystem.
    Filesystem {
        /// `GENERIC`, `SMB`, and from 24.04 on `NFS`, `MULTIPROTOCOL`, `APPS`.
        share_type: Option<String>,
    },
    /// A zvol.
    Volume {
        /// Its size in bytes, a multiple of the block size.
        size: u64,
        /// Such as `16K`.
        block_size: Option<String>,
        /// Whether its space is not reserved.
        sparse: bool,
        /// Whether it may take more than 80 % of what is free.
        force_size: bool,
    },
}

/// Changes a dataset.
#[derive(Debug, Clone, Default)]
pub struct UpdateDataset {
    /// Its path.
    pub id: String,
    /// The properties to change, in the spelling of the API.
    pub properties: Map<String, Value>,
    /// The properties of users to set, or to remove with `None`. Not on CORE.
    pub user_properties: BTreeMap<String, Option<String>>,
}

/// Deletes a dataset. The NAS removes its shares and extents first, and keeps them removed if the
/// dataset then cannot be destroyed. The betas of 26 answer success for a busy dataset that stays:
/// read it back.
#[derive(Debug, Clone)]
pub struct DeleteDataset {
    /// Its path.
    pub id: String,
    /// With its children and snapshots; from 26 on with the clones of those snapshots, too.
    pub recursive: bool,
    /// Unmount it even if it is in use. Ignored by 26.
    pub force: bool,
}

/// Makes a clone independent of its origin: the origin depends on the clone instead.
#[derive(Debug, Clone)]
pub struct PromoteDataset {
    /// The path of the clone.
    pub id: String,
}

/// Properties that only one kind of dataset has, or that came and went, by name.
const LATER: [(&str, Generation); 1] = [("snapdev", Generation::V22_12)];
const EARLIER: [(&str, Generation); 1] = [("xattr", Generation::V24_04)];

/// Names that the API never takes as a property of a dataset: its own arguments, and those that it has no
/// spelling for.
const NOT_PROPERTIES: [&str; 16] = [
    "name",
    "type",
    "volsize",
    "volblocksize",
    "sparse",
    "force_size",
    "share_type",
    "create_ancestors",
    "user_properties",
    "user_properties_update",
    "logbias",
    "primarycache",
    "secondarycache",
    "volmode",
    "canmount",
    "mountpoint",
];

// === impl QueryDatasets ===

impl QueryDatasets {
    /// Finds one dataset.
    pub fn by_id(id: &str) -> Self {
        Self {
            filters: vec![Filter::eq("id", id)],
            user_properties: true,
            ..Self::default()
        }
    }
}

impl Request for QueryDatasets {
    type Answer = Vec<Dataset>;

    fn largest(&self) -> usize {
        LARGEST_ANSWER
    }

    fn encode(&self, dialect: &Dialect) -> Result<Call, Error> {
        let mut extra = json!({
            "flat": true,
            "properties": self.properties,
        });
        if dialect.has_user_properties() {
            extra["retrieve_user_props"] = json!(self.user_properties);
        }
        if self.snapshots {
            extra["snapshots"] = json!(true);
        }
        // Named datasets are looked up by themselves; everything else is found by a walk.
        let named = matches!(self.filters.as_slice(), [filter] if filter.names_id());
        extra["retrieve_children"] = json!(!named);
        let mut options = json!({"extra": extra});
        if self.short {
            let fields = ["id", "type", "mountpoint", "locked", "user_properties"];
            let fields = fields.map(str::to_owned).into_iter();
            options["select"] = fields.chain(self.properties.iter().cloned()).collect();
        }
        Ok(query("pool.dataset.query", &self.filters, options))
    }
}

impl Request for CreateDataset {
    type Answer = Dataset;

    fn largest(&self) -> usize {
        LARGEST_ANSWER
    }

    fn encode(&self, dialect: &Dialect) -> Result<Call, Error> {
        let fields = Fields::new(dialect).put("name", self.name.as_str());
        let fields = match &self.kind {
            CreateKind::Filesystem { share_type } => fields
                .put("type", "FILESYSTEM")
                .opt("share_type", share_type.as_ref()),
            CreateKind::Volume {
                size,
                block_size,
                sparse,
                force_size,
            } => fields
                .put("type", "VOLUME")
                .put("volsize", *size)
                .put("sparse", *sparse)
                .put("force_size", *force_size)
                .opt("volblocksize", block_size.as_ref()),
        };
        let ancestors = self.create_ancestors && dialect.generation() > Generation::Core;
        let user_properties: Vec<Value> = self
            .user_properties
            .iter()
            .map(|(key, value)| json!({"key": key, "value": value}))
            .collect();
        let some = |list: Vec<Value>| (!list.is_empty()).then_some(list);
        properties(fields, dialect, &self.properties)?
            .opt("create_ancestors", ancestors.then_some(true).as_ref())
            .since(
                Generation::V22_02,
                "user_properties",
                some(user_properties).as_ref(),
            )
            .call("pool.dataset.create")
    }
}

impl Request for UpdateDataset {
    type Answer = Dataset;

    fn largest(&self) -> usize {
        LARGEST_ANSWER
    }

    fn encode(&self, dialect: &Dialect) -> Result<Call, Error> {
        let update = |(key, value): (&String, &Option<String>)| match value {
            Some(value) => json!({"key": key, "value": value}),
            None => json!({"key": key, "remove": true}),
        };
        let updates: Vec<Value> = self.user_properties.iter().map(update).collect();
        let updates = (!updates.is_empty()).then_some(updates);
        // What a zvol has for itself and can change.
        let mut rest = self.properties.clone();
        let size = rest.remove("volsize");
        let force_size = rest.remove("force_size");
        properties(Fields::new(dialect), dialect, &rest)?
            .opt("volsize", size.as_ref())
            .opt("force_size", force_size.as_ref())
            .since(
                Generation::V22_02,
                "user_properties_update",
                updates.as_ref(),
            )
            .call_after("pool.dataset.update", vec![json!(self.id)])
    }
}

impl Request for DeleteDataset {
    type Answer = Done;

    fn encode(&self, dialect: &Dialect) -> Result<Call, Error> {
        Fields::new(dialect)
            .put("recursive", self.recursive)
            .put("force", self.force)
            .call_after("pool.dataset.delete", vec![json!(self.id)])
    }
}

impl Request for PromoteDataset {
    type Answer = Done;

    fn encode(&self, _: &Dialect) -> Result<Call, Error> {
        Ok(Call::new("pool.dataset.promote", vec![json!(self.id)]))
    }
}

fn properties<'a>(
    mut fields: Fields<'a>,
    dialect: &Dialect,
    properties: &Map<String, Value>,
) -> Result<Fields<'a>, Error> {
    for (name, value) in properties {
        let generation = dialect.generation();
        let later = LATER
            .iter()
            .any(|(known, first)| known == name && generation < *first);
        let earlier = EARLIER
            .iter()
            .any(|(known, last)| known == name && generation > *last);
        if later || earlier || NOT_PROPERTIES.contains(&name.as_str()) {
            return Err(dialect.lacks(&format!("dataset property {name} in its API")));
        }
        let value = match (name.as_str(), value.as_str()) {
            ("acltype", Some(acltype)) => json!(acl_type(generation, acltype)),
            _ => value.clone(),
        };
        fields = fields.put(name, value);
    }
    Ok(fields)
}

/// CORE has names of its own for the kinds of ACL.
fn acl_type(generation: Generation, name: &str) -> &str {
    match (generation, name) {
        (Generation::Core, "OFF") => "NOACL",
        (Generation::Core, "NFSV4") => "NFS4ACL",
        (Generation::Core, "POSIX") => "POSIXACL",
        (_, name) => name,
    }
}

// === impl Dataset ===

impl<'de> Deserialize<'de> for Dataset {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct RowVisitor;
        impl<'de> Visitor<'de> for RowVisitor {
            type Value = Dataset;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a dataset")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Dataset, A::Error> {
                let mut row = Dataset::default();
                let (mut id, mut kind) = (Text::default(), Text::default());
                while let Some(name) = map.next_key::<String>()? {
                    match name.as_str() {
                        "id" => id = map.next_value()?,
                        "type" => kind = map.next_value()?,
                        "mountpoint" => row.mountpoint = map.next_value::<Text>()?.0,
                        "locked" => row.locked = map.next_value()?,
                        "user_properties" => {
                            let user: UserProperties = map.next_value()?;
                            row.user_properties = user.texts;
                            row.inherited = user.inherited.into_iter().collect();
                        }
                        "snapshots" => {
                            let found: Vec<SnapshotName> = map.next_value()?;
                            row.snapshots = found.into_iter().filter_map(|row| row.0).collect();
                        }
                        _ => {
                            if let RowProperty(Some(property)) = map.next_value()? {
                                rows::charge_text(name.len())?;
                                row.properties.insert(name, property);
                            }
                        }
                    }
                }
                row.id = id.0.ok_or_else(|| A::Error::missing_field("id"))?;
                let kind = kind.0.ok_or_else(|| A::Error::missing_field("type"))?;
                row.is_volume = kind == "VOLUME";
                rows::charge(row.id.len() + row.mountpoint.as_ref().map_or(0, String::len))?;
                row.memory = RowMemory::of_this();
                Ok(row)
            }
        }
        deserializer.deserialize_map(RowVisitor)
    }
}

/// A snapshot of which only the name is read.
struct SnapshotName(Option<String>);

impl<'de> Deserialize<'de> for SnapshotName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Raw {
            #[serde(default)]
            name: Text,
            #[serde(default)]
            id: Text,
        }
        let Raw { name, id } = Raw::deserialize(deserializer)?;
        let name = name.0.or(id.0);
        rows::charge(name.as_ref().map_or(0, String::len))?;
        Ok(Self(name))
    }
}

impl Dataset {
    /// A property as a number; `None` if it was not read or is none.
    pub fn number(&self, property: &str) -> Option<u64> {
        self.properties.get(property)?.number
    }
}

// === impl Source ===

impl Source {
    /// Reads the word of the API.
    pub(crate) fn of(word: Option<&str>) -> Self {
        match word {
            Some("LOCAL" | "RECEIVED") => Self::Own,
            Some("INHERITED") => Self::Inherited,
            _ => Self::Default,
        }
    }
}
