//! NFS shares: `sharing.nfs.*`.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::json;

use super::filesystem::Device;
use super::{Call, Done, Fields, Filter, Request, rows};
use crate::metered::LARGEST_ANSWER;
use crate::{Dialect, Error, Generation};

rows! {
    /// Finds NFS shares.
    QueryNfsShares, "sharing.nfs.query", NfsShare, |_| Ok(())
}

/// Finds the shares of a directory.
#[derive(Debug, Clone)]
pub struct FindNfsShares {
    /// The directory.
    pub path: String,
}

/// Finds the shares of several directories.
#[derive(Debug, Clone)]
pub struct FindManyNfsShares {
    /// The directories.
    pub paths: Vec<String>,
}

/// An NFS share.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NfsShare {
    /// Its number.
    pub id: i64,
    /// Its directories: one, except up to 22.02.
    pub paths: Vec<String>,
    /// Its options.
    pub options: NfsOptions,
    /// Whether its dataset is locked, where the NAS says so.
    pub locked: Option<bool>,
}

/// The options of an NFS share. Without hosts and networks it is open to every client.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct NfsOptions {
    /// A comment.
    #[serde(deserialize_with = "super::null_is_default")]
    pub comment: String,
    /// Networks in CIDR notation.
    pub networks: Vec<String>,
    /// Names and addresses of hosts.
    pub hosts: Vec<String>,
    /// Whether writing is refused.
    #[serde(rename = "ro")]
    pub read_only: bool,
    /// The user that root of a client is mapped to.
    pub maproot_user: Option<String>,
    /// And its group.
    pub maproot_group: Option<String>,
    /// The user that all users are mapped to.
    pub mapall_user: Option<String>,
    /// And the group.
    pub mapall_group: Option<String>,
    /// `SYS`, `KRB5`, `KRB5I`, `KRB5P`.
    pub security: Vec<String>,
    /// Whether it is exported.
    #[serde(default = "super::is_enabled")]
    pub enabled: bool,
}

/// Creates an NFS share.
#[derive(Debug, Clone)]
pub struct CreateNfsShare {
    /// The directory.
    pub path: String,
    /// Whether directories below can be mounted. Up to 22.02; left out of what came after, where they
    /// always can.
    pub all_dirs: bool,
    /// Its options.
    pub options: NfsOptions,
}

/// Changes what an NFS share allows.
#[derive(Debug, Clone)]
pub struct UpdateNfsShare {
    /// Its number.
    pub id: i64,
    /// Its options from now on, in full.
    pub options: NfsOptions,
}

/// Deletes an NFS share.
#[derive(Debug, Clone, Copy)]
pub struct DeleteNfsShare {
    /// Its number.
    pub id: i64,
}

/// Finds the clients of NFS 4 with what they hold open. From 22.12 on. The NAS reads and parses all of it each time.
#[derive(Debug, Clone, Copy)]
pub struct FindNfs4Clients;

/// A client of NFS 4.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Nfs4Client {
    /// Its address and port.
    pub address: String,
    /// The name that it gives itself.
    pub name: String,
    /// The filesystems in which it holds something open: a file, a lock, a delegation.
    pub holds: BTreeSet<Device>,
}

impl Request for FindNfs4Clients {
    type Answer = Vec<Nfs4Client>;

    fn largest(&self) -> usize {
        LARGEST_ANSWER
    }

    fn encode(&self, dialect: &Dialect) -> Result<Call, Error> {
        dialect.needs(Generation::V22_12, "list of clients of NFS 4")?;
        Ok(Call::new(
            "nfs.get_nfs4_clients",
            vec![json!([]), json!({})],
        ))
    }
}

impl Request for FindNfsShares {
    type Answer = Vec<NfsShare>;

    fn encode(&self, dialect: &Dialect) -> Result<Call, Error> {
        let filter = if has_several_paths(dialect) {
            Filter::contains("paths", self.path.as_str())
        } else {
            Filter::eq("path", self.path.as_str())
        };
        QueryNfsShares(vec![filter]).encode(dialect)
    }
}

impl Request for FindManyNfsShares {
    type Answer = Vec<NfsShare>;

    fn encode(&self, dialect: &Dialect) -> Result<Call, Error> {
        let paths = self.paths.iter().map(String::as_str);
        let filter = if has_several_paths(dialect) {
            Filter::either(paths.map(|path| Filter::contains("paths", path)))
        } else {
            Filter::any_of("path", paths)
        };
        QueryNfsShares(vec![filter]).encode(dialect)
    }
}

impl Request for CreateNfsShare {
    type Answer = NfsShare;

    fn encode(&self, dialect: &Dialect) -> Result<Call, Error> {
        let fields = Fields::new(dialect);
        let fields = if has_several_paths(dialect) {
            fields
                .put("paths", json!([self.path]))
                .put("alldirs", self.all_dirs)
        } else {
            fields.put("path", self.path.as_str())
        };
        options(fields, &self.options).call("sharing.nfs.create")
    }
}

impl Request for UpdateNfsShare {
    type Answer = NfsShare;

    fn encode(&self, dialect: &Dialect) -> Result<Call, Error> {
        let fields = Fields::new(dialect);
        options(fields, &self.options).call_after("sharing.nfs.update", vec![json!(self.id)])
    }
}

impl Request for DeleteNfsShare {
    type Answer = Done;

    fn encode(&self, _: &Dialect) -> Result<Call, Error> {
        Ok(Call::new("sharing.nfs.delete", vec![json!(self.id)]))
    }
}

fn has_several_paths(dialect: &Dialect) -> bool {
    dialect.generation() <= Generation::V22_02
}

fn options<'a>(fields: Fields<'a>, options: &NfsOptions) -> Fields<'a> {
    fields
        .put("comment", options.comment.as_str())
        .put("networks", json!(options.networks))
        .put("hosts", json!(options.hosts))
        .put("ro", options.read_only)
        .put("maproot_user", json!(options.maproot_user))
        .put("maproot_group", json!(options.maproot_group))
        .put("mapall_user", json!(options.mapall_user))
        .put("mapall_group", json!(options.mapall_group))
        .put("security", json!(options.security))
        .put("enabled", options.enabled)
}

impl<'de> Deserialize<'de> for NfsShare {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Raw {
            id: i64,
            path: Option<String>,
            #[serde(default)]
            paths: Vec<String>,
            locked: Option<bool>,
            #[serde(flatten)]
            options: NfsOptions,
        }
        let raw = Raw::deserialize(deserializer)?;
        Ok(Self {
            id: raw.id,
            paths: raw.path.map_or(raw.paths, |path| vec![path]),
            options: raw.options,
            locked: raw.locked,
        })
    }
}

impl<'de> Deserialize<'de> for Nfs4Client {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        /// A client that goes at this moment has none of it.
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Info {
            address: String,
            name: String,
        }
        #[derive(Deserialize)]
        struct State {
            superblock: Option<String>,
        }
        #[derive(Deserialize)]
        struct Raw {
            #[serde(default, deserialize_with = "super::null_is_default")]
            info: Info,
            #[serde(default, deserialize_with = "super::null_is_default")]
            states: Vec<BTreeMap<String, State>>,
        }
        let raw = Raw::deserialize(deserializer)?;
        let states = raw.states.iter().flat_map(BTreeMap::values);
        let superblocks = states.filter_map(|state| state.superblock.as_deref());
        let device = |text: &str| {
            let strange =
                || <D::Error as serde::de::Error>::custom("a filesystem without a number");
            Device::of_superblock(text).ok_or_else(strange)
        };
        Ok(Self {
            address: raw.info.address,
            name: raw.info.name,
            holds: superblocks.map(device).collect::<Result<_, D::Error>>()?,
        })
    }
}
