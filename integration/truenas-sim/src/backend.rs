//! The storage behind the protocols: datasets, files, exports, services.
//!
//! The rows of shares, targets and jobs are kept in front of it; a backend is shown the rows after
//! each change and makes them true. [`crate::model::Model`] does so in memory, the one in `host` on the
//! storage of this machine. That one runs commands, so that every method is async and answers with facts
//! only: which error a release makes of a [`Problem`] is decided by the methods.

use std::collections::BTreeMap;
use std::fmt;

use async_trait::async_trait;

use crate::rows::Rows;

/// A file system or a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Mounted below `/mnt`.
    Filesystem,
    /// A block device below `/dev/zvol`.
    Volume,
}

/// The place where the value of a property comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// Set on the dataset itself.
    Local,
    /// The default of ZFS.
    Default,
    /// Set on this ancestor.
    Inherited(String),
    /// Read only.
    None,
}

/// A value as `zfs get -p` prints it.
#[derive(Debug, Clone)]
pub struct Property {
    /// The exact value.
    pub raw: String,
    /// The place where it comes from.
    pub source: Source,
}

/// A dataset with all its properties.
#[derive(Debug, Clone)]
pub struct Dataset {
    /// The full name.
    pub name: String,
    /// Its kind.
    pub kind: Kind,
    /// Native properties by their name in ZFS.
    pub properties: BTreeMap<String, Property>,
    /// User properties, inherited ones included.
    pub user: BTreeMap<String, Property>,
}

impl Dataset {
    /// The raw value of a native property.
    pub fn raw(&self, property: &str) -> &str {
        self.properties
            .get(property)
            .map_or("", |property| property.raw.as_str())
    }

    /// A native property that is a number of bytes.
    pub fn bytes(&self, property: &str) -> u64 {
        self.raw(property).parse().unwrap_or_default()
    }

    /// The pool that it is in.
    pub fn pool(&self) -> &str {
        self.name.split('/').next().unwrap_or_default()
    }

    /// Whether its key is not loaded.
    pub fn locked(&self) -> bool {
        self.raw("keystatus") == "unavailable"
    }
}

/// A snapshot.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// `dataset@name`.
    pub name: String,
    /// The transaction group it was made in.
    pub createtxg: u64,
    /// Native properties.
    pub properties: BTreeMap<String, Property>,
    /// User properties set on the snapshot itself.
    pub user: BTreeMap<String, String>,
    /// Tags and the time when each was set.
    pub holds: BTreeMap<String, u64>,
    /// Datasets that were cloned from it.
    pub clones: Vec<String>,
}

impl Snapshot {
    /// The dataset it is of.
    pub fn dataset(&self) -> &str {
        self.name.split_once('@').map_or("", |(dataset, _)| dataset)
    }
}

/// A pool.
#[derive(Debug, Clone)]
pub struct Pool {
    /// Its name.
    pub name: String,
    /// Its size in bytes.
    pub size: u64,
    /// Bytes in use.
    pub allocated: u64,
    /// `ONLINE`, `DEGRADED`, …
    pub status: String,
}

/// The datasets that are asked for.
#[derive(Debug, Clone)]
pub enum Scope {
    /// All of them.
    All,
    /// These.
    Exact(Vec<String>),
    /// These and all below.
    Tree(Vec<String>),
}

/// A dataset to be made.
#[derive(Debug, Clone)]
pub struct NewDataset {
    /// The full name.
    pub name: String,
    /// Its kind.
    pub kind: Kind,
    /// Native properties by their name in ZFS.
    pub properties: BTreeMap<String, String>,
    /// User properties.
    pub user: BTreeMap<String, String>,
    /// The key, if it becomes the root of an encryption.
    pub key: Option<String>,
    /// Missing ancestors are made, too.
    pub ancestors: bool,
}

/// The way a dataset is destroyed.
#[derive(Debug, Clone, Copy, Default)]
pub struct Destroy {
    /// Children and snapshots, too.
    pub recursive: bool,
    /// Clones of the snapshots, too, in any dataset; holds do not stop it.
    pub clones: bool,
}

/// Owner, group and mode of a file, as `stat` shows them.
#[derive(Debug, Clone, PartialEq)]
pub struct Permissions {
    /// The owner.
    pub uid: i64,
    /// The group.
    pub gid: i64,
    /// The permission bits.
    pub mode: u32,
    /// Whether there is more than the mode says.
    pub acl: Option<serde_json::Value>,
    /// Whether a dataset is mounted here.
    pub mount_point: bool,
    /// The number of its filesystem, as in `stat(2)`.
    pub device: u64,
}

/// A change of permissions.
#[derive(Debug, Clone, Default)]
pub struct PermissionChange {
    /// The new owner.
    pub uid: Option<i64>,
    /// The new group.
    pub gid: Option<i64>,
    /// The new mode.
    pub mode: Option<u32>,
    /// The new access list; `Some(None)` removes it.
    pub acl: Option<Option<serde_json::Value>>,
}

/// An initiator or host that is connected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// The target's name, or the subsystem's.
    pub target: String,
    /// The IQN or NQN of the other side.
    pub initiator: String,
    /// Its address.
    pub address: String,
}

/// A client of NFS 4.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NfsClient {
    /// The name that it has sent.
    pub name: String,
    /// Its address and port.
    pub address: String,
    /// The filesystems in which it holds a file open, once for each: their numbers, as in `stat(2)`.
    pub holds: Vec<u64>,
}

/// A connection to an SMB share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SmbConnection {
    /// The name of the share.
    pub share: String,
    /// The address of the client.
    pub machine: String,
}

/// Why a backend did not do what it was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Problem {
    /// There is no such dataset, snapshot, pool or file.
    Missing(String),
    /// The name is taken.
    Exists(String),
    /// In use.
    Busy(String),
    /// There are datasets below.
    HasChildren(String),
    /// There are snapshots.
    HasSnapshots(String),
    /// There are clones of a snapshot.
    HasClones(String, Vec<String>),
    /// A hold.
    Held(String),
    /// The pool or a quota is full.
    NoSpace(String),
    /// Not a clone.
    NotAClone(String),
    /// Snapshots that are newer than the one asked for.
    NewerSnapshots(Vec<String>),
    /// Anything else, in the words of ZFS.
    Other(String),
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(name) => write!(f, "cannot open '{name}': dataset does not exist"),
            Self::Exists(name) => write!(f, "cannot create '{name}': dataset already exists"),
            Self::Busy(name) => write!(f, "cannot destroy '{name}': dataset is busy"),
            Self::HasChildren(name) | Self::HasSnapshots(name) => {
                write!(
                    f,
                    "cannot destroy '{name}': filesystem has children\nuse '-r' to destroy the following datasets"
                )
            }
            Self::HasClones(name, clones) => {
                write!(
                    f,
                    "cannot destroy '{name}': snapshot has dependent clones: {}",
                    clones.join(", ")
                )
            }
            Self::Held(name) => write!(f, "cannot destroy snapshot {name}: dataset is busy"),
            Self::NoSpace(name) => write!(f, "cannot create '{name}': out of space"),
            Self::NotAClone(name) => write!(f, "cannot promote '{name}': not a cloned filesystem"),
            Self::NewerSnapshots(names) => {
                write!(
                    f,
                    "cannot rollback: more recent snapshots or bookmarks exist: {}",
                    names.join(", ")
                )
            }
            Self::Other(text) => f.write_str(text),
        }
    }
}

type Answer<T> = Result<T, Problem>;

/// The storage of one simulated NAS.
#[async_trait]
pub trait Backend: fmt::Debug + Send + Sync {
    /// All pools.
    async fn pools(&self) -> Answer<Vec<Pool>>;
    /// The datasets of the scope; names that do not exist are left out.
    async fn datasets(&self, scope: &Scope) -> Answer<Vec<Dataset>>;
    /// Makes a dataset and mounts it.
    async fn create_dataset(&self, new: NewDataset) -> Answer<()>;
    /// Sets native and user properties; `None` inherits or removes.
    async fn set_properties(
        &self,
        name: &str,
        changes: Vec<(String, Option<String>)>,
    ) -> Answer<()>;
    /// Destroys a dataset.
    async fn destroy_dataset(&self, name: &str, how: Destroy) -> Answer<()>;
    /// Makes a clone independent of its origin.
    async fn promote(&self, name: &str) -> Answer<()>;
    /// Renames a dataset with all that is below.
    async fn rename_dataset(&self, name: &str, new_name: &str) -> Answer<()>;
    /// Loads (`Some`) or unloads the key of an encryption root.
    async fn set_key(&self, name: &str, key: Option<&str>) -> Answer<bool>;

    /// The snapshots of the datasets of the scope.
    async fn snapshots(&self, scope: &Scope) -> Answer<Vec<Snapshot>>;
    /// Makes one snapshot of each dataset, all at one point in time, or none.
    async fn create_snapshots(
        &self,
        datasets: &[String],
        name: &str,
        user: &BTreeMap<String, String>,
    ) -> Answer<()>;
    /// Destroys a snapshot; with `defer` once its last clone and hold are gone.
    async fn destroy_snapshot(&self, name: &str, defer: bool) -> Answer<()>;
    /// Makes a dataset from a snapshot.
    async fn clone_snapshot(
        &self,
        snapshot: &str,
        target: &str,
        properties: BTreeMap<String, String>,
    ) -> Answer<()>;
    /// Sets a hold, or takes it away; no tag takes all of them away.
    async fn hold(&self, snapshot: &str, tag: Option<&str>, set: bool) -> Answer<()>;
    /// Sets or removes user properties of a snapshot.
    async fn set_snapshot_properties(
        &self,
        name: &str,
        changes: Vec<(String, Option<String>)>,
    ) -> Answer<()>;
    /// Goes back to a snapshot; with `newer` the newer ones are destroyed.
    async fn rollback(&self, snapshot: &str, newer: bool) -> Answer<()>;
    /// Renames a snapshot within its dataset.
    async fn rename_snapshot(&self, snapshot: &str, new_name: &str) -> Answer<()>;
    /// Copies a dataset as of the snapshot into a new dataset, which gets the same snapshot; with
    /// `snapshot_user` that one keeps its user properties.
    async fn copy(
        &self,
        snapshot: &str,
        target: &str,
        properties: &BTreeMap<String, String>,
        snapshot_user: bool,
    ) -> Answer<()>;

    /// Owner and mode of a path below `/mnt`.
    async fn permissions(&self, path: &str) -> Answer<Permissions>;
    /// Changes them.
    async fn set_permissions(&self, path: &str, change: PermissionChange) -> Answer<()>;
    /// Makes a directory.
    async fn make_directory(&self, path: &str, mode: u32) -> Answer<()>;

    /// Makes the exports as the rows say; services that do not run export nothing.
    async fn apply_exports(&self, rows: &Rows) -> Answer<()>;
    /// The connected sessions.
    async fn sessions(&self) -> Answer<Vec<Session>>;
    /// The clients of NFS 4.
    async fn nfs_clients(&self) -> Answer<Vec<NfsClient>>;
    /// The connections to SMB shares.
    async fn smb_connections(&self) -> Answer<Vec<SmbConnection>>;
    /// A subsystem has left one of its ports: the kernel ends the connections there.
    async fn left_port(&self, subsystem: &str);
}
