//! `zfs.resource.*`: what asks ZFS directly. Reading from 25.10 on, the rest from 26 on. It has
//! roles of its own.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};

use super::dataset::{Dataset, Property};
use super::snapshot::Snapshot;
use super::{Call, Done, Fields, Request};
use crate::metered::LARGEST_ANSWER;
use crate::rows::{RowMemory, UserProperties};
use crate::{Dialect, Error, Generation, rows};

/// Reads datasets by their paths, without a walk over the pools. A path that is missing is an error
/// on 25.10 and left out of the answer on 26.
#[derive(Debug, Clone, Default)]
pub struct QueryResources {
    /// The paths.
    pub paths: Vec<String>,
    /// The properties to read; none if empty.
    pub properties: Vec<String>,
    /// Also what lies so many levels below; on 25.10 all that lies below.
    pub depth: Option<u8>,
}

/// Reads the snapshots of datasets, or snapshots, by their paths, with the properties of users. From
/// 26 on. A path that is missing is an error.
#[derive(Debug, Clone, Default)]
pub struct QueryResourceSnapshots {
    /// Paths of datasets, or `dataset@name`.
    pub paths: Vec<String>,
    /// The properties to read; none if empty.
    pub properties: Vec<String>,
    /// Also of descendants.
    pub recursive: bool,
    /// Whether to read the holds.
    pub holds: bool,
}

/// Destroys a dataset that has nothing in it, on it or from it. From 26 on. Shares and extents of it
/// stay, so they must be gone before.
#[derive(Debug, Clone)]
pub struct DestroyResource {
    /// Its path.
    pub path: String,
}

/// A row of the answer of `zfs.resource.query`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resource(pub Dataset);

impl Request for QueryResources {
    type Answer = Vec<Resource>;

    fn largest(&self) -> usize {
        LARGEST_ANSWER
    }

    fn encode(&self, dialect: &Dialect) -> Result<Call, Error> {
        dialect.needs(Generation::V25_10, "zfs.resource")?;
        Fields::new(dialect)
            .put("paths", json!(self.paths))
            .put("properties", names(&self.properties))
            .put("get_user_properties", true)
            .put("get_source", true)
            .opt("get_children", self.depth.map(|_| true).as_ref())
            .opt(
                "max_depth",
                self.depth
                    .filter(|_| dialect.has_resource_destroy())
                    .as_ref(),
            )
            .call("zfs.resource.query")
    }
}

impl Request for QueryResourceSnapshots {
    type Answer = Vec<Snapshot>;

    fn largest(&self) -> usize {
        LARGEST_ANSWER
    }

    fn encode(&self, dialect: &Dialect) -> Result<Call, Error> {
        dialect.needs(Generation::V26, "zfs.resource.snapshot")?;
        Fields::new(dialect)
            .put("paths", json!(self.paths))
            .put("properties", names(&self.properties))
            .put("recursive", self.recursive)
            .put("get_user_properties", true)
            .put("get_holds", self.holds)
            .call("zfs.resource.snapshot.query")
    }
}

impl Request for DestroyResource {
    type Answer = Done;

    fn encode(&self, dialect: &Dialect) -> Result<Call, Error> {
        dialect.needs(Generation::V26, "zfs.resource.destroy")?;
        // Never recursive: it would destroy the clones of the snapshots, too.
        Fields::new(dialect)
            .put("path", self.path.as_str())
            .put("recursive", false)
            .call("zfs.resource.destroy")
    }
}

/// An empty list means the default ones here; no properties are asked for with null.
fn names(properties: &[String]) -> Value {
    if properties.is_empty() {
        Value::Null
    } else {
        json!(properties)
    }
}

impl<'de> Deserialize<'de> for Resource {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Raw {
            name: String,
            #[serde(rename = "type")]
            kind: String,
            #[serde(default, deserialize_with = "rows::properties")]
            properties: BTreeMap<String, Property>,
            #[serde(default)]
            user_properties: UserProperties,
        }
        let raw = Raw::deserialize(deserializer)?;
        rows::charge(raw.name.len())?;
        let properties = raw.properties;
        Ok(Self(Dataset {
            id: raw.name,
            is_volume: raw.kind == "VOLUME",
            mountpoint: properties
                .get("mountpoint")
                .map(|mountpoint| mountpoint.raw.clone()),
            properties,
            user_properties: raw.user_properties.texts,
            memory: RowMemory::of_this(),
            ..Dataset::default()
        }))
    }
}
