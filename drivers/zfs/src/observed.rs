//! Queries and the observed state: a part of a pool at one moment.
//!
//! A request is a list of queries; the state contains the objects of them that exist. An object
//! that was queried and is not in the state does not exist; any other is unknown, and a plan must
//! not depend on it.

use std::collections::BTreeMap;
use std::fmt;

use driver_core::transfer::Bookmark;

use crate::export::Opaque;
use crate::name::{DatasetName, MarkRef, Object, SnapshotLeaf, SnapshotRef};
use crate::property::{Properties, PropertyName};

/// Distinguishes an object from a later one of the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Guid(pub u64);

/// The two kinds of datasets that are volumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum VolumeKind {
    /// A tree of files.
    Filesystem,
    /// A disk.
    Zvol,
}

/// A dataset that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dataset {
    /// Its name.
    pub name: DatasetName,
    /// Its kind.
    pub kind: VolumeKind,
    /// Its GUID, which tells it from a later one of the same name.
    pub guid: Guid,
    /// The rest of what is known of it.
    pub properties: Properties,
}

/// A snapshot that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Its name.
    pub name: SnapshotRef,
    /// Its GUID, which tells it from a later one of the same name.
    pub guid: Guid,
    /// Its clones.
    pub clones: Vec<DatasetName>,
    /// Clones that cannot be named in a command: the target of a running incremental `zfs receive`.
    pub hidden: Vec<String>,
    /// The rest of what is known of it.
    pub properties: Properties,
}

/// A bookmark that a deleted snapshot has left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    /// Its name.
    pub name: MarkRef,
    /// That of the snapshot.
    pub guid: Guid,
    /// The transaction in which the snapshot was taken.
    pub createtxg: u64,
}

/// The state of a pool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum PoolState {
    /// All of it works.
    #[default]
    Online,
    /// It works, and lacks a device.
    Degraded,
    /// Nothing in it can be read and written, and how `zpool` calls that.
    Unusable(String),
    /// The login may not look at it.
    Unknown,
}

/// One query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Query {
    /// A dataset.
    Dataset(DatasetName),
    /// A dataset, its snapshots and its children, for which only [`OF_MEMBERS`] is shown.
    Family(DatasetName),
    /// A snapshot.
    Snapshot(SnapshotRef),
    /// All objects that may have the snapshot name `name` of the orchestrator: a snapshot of a
    /// volume, or a dataset two levels below a parent. The host filters by the property or by the
    /// name that such a snapshot has, so each result must still be checked.
    Named {
        /// The parents of volumes and of detached snapshots.
        within: Vec<DatasetName>,
        /// Whether volumes are in children of their parent, too.
        has_children: bool,
        /// The name, as the property holds it.
        name: String,
        /// The last part of the name of such a snapshot.
        leaf: SnapshotLeaf,
    },
    /// The bookmarks that deleted snapshots of a dataset have left.
    Marks(DatasetName),
    /// A dataset, or its nearest existing ancestor: for free space.
    Nearest(DatasetName),
    /// The state of the pool of a dataset. If it is suspended the whole request fails, unless nothing else is asked:
    /// every other query would wait for the pool.
    Pool(DatasetName),
    /// The operating system of the host.
    System,
}

/// The properties that every query shows. Others must be requested.
pub static ALWAYS: [PropertyName; 35] = [
    PropertyName::TYPE,
    PropertyName::GUID,
    PropertyName::CREATETXG,
    PropertyName::CREATION,
    PropertyName::ORIGIN,
    PropertyName::CLONES,
    PropertyName::DEFER_DESTROY,
    PropertyName::USERREFS,
    PropertyName::INCONSISTENT,
    PropertyName::RESUME_TOKEN,
    PropertyName::MOUNTPOINT,
    PropertyName::CANMOUNT,
    PropertyName::MOUNTED,
    PropertyName::REFQUOTA,
    PropertyName::REFRESERVATION,
    PropertyName::REFERENCED,
    PropertyName::LOGICALREFERENCED,
    PropertyName::AVAILABLE,
    PropertyName::VOLSIZE,
    PropertyName::VOLBLOCKSIZE,
    PropertyName::MANAGED,
    PropertyName::VOLUME_NAME,
    PropertyName::PROVISIONER,
    PropertyName::INSTANCE,
    PropertyName::SOURCE_KIND,
    PropertyName::SOURCE_ID,
    PropertyName::CONTEXT,
    PropertyName::SUCCESS,
    PropertyName::SNAPSHOT_NAME,
    PropertyName::SNAPSHOT_SOURCE,
    PropertyName::GROUP,
    PropertyName::CONTAINER,
    PropertyName::CLAIM,
    PropertyName::PERSISTENT_VOLUME,
    PropertyName::PUBLISHED,
];

/// The properties that [`Query::Family`] shows of snapshots and of datasets below: there may be
/// thousands of them, and most are not ours.
pub static OF_MEMBERS: [PropertyName; 9] = [
    PropertyName::TYPE,
    PropertyName::GUID,
    PropertyName::CREATETXG,
    PropertyName::CLONES,
    PropertyName::DEFER_DESTROY,
    PropertyName::USERREFS,
    PropertyName::MANAGED,
    PropertyName::SNAPSHOT_NAME,
    PropertyName::SNAPSHOT_SOURCE,
];

/// All queries of one exchange.
#[derive(Debug, Clone, Default)]
pub struct Request {
    /// Objects of the pool.
    pub queries: Vec<Query>,
    /// The properties to read in addition to [`ALWAYS`].
    pub properties: Vec<PropertyName>,
    /// Additional queries of the export.
    pub export: Vec<Opaque>,
    /// Whether it is about something that is yet to be made. The answer does not depend on it: it is for a
    /// backend that asks for what is missing in another way.
    pub is_new: bool,
    /// [`Observed::kept`] of the last observation of the same verb. It may be used for what has not been
    /// changed since; a backend that keeps nothing reads all.
    pub known: Option<Opaque>,
}

/// The observed state.
#[derive(Debug, Clone)]
pub struct Observed {
    /// Objects of the pool.
    pub pool: State,
    /// One answer for each request of the export, in order.
    pub export: Vec<Opaque>,
    /// The state that the backend itself keeps of it, for the next request of the same verb.
    pub kept: Option<Opaque>,
}

/// The observed objects of a pool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct State {
    datasets: BTreeMap<DatasetName, Dataset>,
    snapshots: BTreeMap<SnapshotRef, Snapshot>,
    marks: BTreeMap<MarkRef, Mark>,
    pools: BTreeMap<String, PoolState>,
    named: Vec<Object>,
    system: Option<System>,
}

/// The operating system of a host: `uname -s` and `uname -r`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct System {
    /// Its name: `Linux`, `FreeBSD`.
    pub name: String,
    /// Its release: `6.1.0-28-amd64`, `13.2-RELEASE`.
    pub release: String,
}

// === impl VolumeKind ===

impl VolumeKind {
    /// The word of the property `type`, and of `zfs list -t`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Filesystem => "filesystem",
            Self::Zvol => "volume",
        }
    }

    /// Reads the property `type`.
    pub fn parse(word: &str) -> Option<Self> {
        match word {
            "filesystem" => Some(Self::Filesystem),
            "volume" => Some(Self::Zvol),
            _ => None,
        }
    }
}

// === impl Dataset ===

impl Dataset {
    /// Whether it has our mark itself, not inherited.
    pub fn is_managed(&self) -> bool {
        self.properties.own(&PropertyName::MANAGED) == Some("true")
    }

    /// Whether it was created to hold detached snapshots.
    pub fn is_container(&self) -> bool {
        let mark = self.properties.own(&PropertyName::CONTAINER);
        self.kind == VolumeKind::Filesystem && mark == Some("true")
    }

    /// Whether a copy into it is still running: it has its name and properties already, but not all
    /// of its content, nor its snapshot.
    pub fn is_receiving(&self) -> bool {
        self.properties.number(&PropertyName::INCONSISTENT) > Some(0)
    }

    /// The place where an interrupted receive can resume. It may still be running: ZFS does not show that,
    /// and rejects a second receiver.
    pub fn resumes(&self) -> Option<Bookmark> {
        let token = self.properties.get(&PropertyName::RESUME_TOKEN)?;
        let whole = |token: &&str| !matches!(*token, "" | "-");
        Bookmark::parse(Some(token).filter(whole)?).ok()
    }

    /// Its size in bytes, uncompressed if that is larger.
    pub fn held(&self) -> u64 {
        held(&self.properties)
    }

    /// Its origin, if it is a clone.
    pub fn origin(&self) -> Option<SnapshotRef> {
        SnapshotRef::parse(self.properties.get(&PropertyName::ORIGIN)?).ok()
    }

    /// The size that callers see: that of a zvol, or the quota of a filesystem.
    pub fn size(&self) -> Option<u64> {
        let name = match self.kind {
            VolumeKind::Zvol => PropertyName::VOLSIZE,
            VolumeKind::Filesystem => PropertyName::REFQUOTA,
        };
        self.properties.number(&name).filter(|size| *size > 0)
    }

    /// The bytes that are reserved for it.
    pub fn reserved(&self) -> u64 {
        let reserved = self.properties.number(&PropertyName::REFRESERVATION);
        reserved.unwrap_or_default()
    }

    /// The path where it is mounted, if ZFS mounts it.
    pub fn mountpoint(&self) -> Option<&str> {
        let path = self.properties.get(&PropertyName::MOUNTPOINT)?;
        path.starts_with('/').then_some(path)
    }
}

/// The larger of the stored and the uncompressed size: another pool may not compress.
pub(crate) fn held(properties: &Properties) -> u64 {
    let number = |name| properties.number(&name).unwrap_or_default();
    number(PropertyName::REFERENCED).max(number(PropertyName::LOGICALREFERENCED))
}

// === impl Snapshot ===

impl Snapshot {
    /// The name that the orchestrator gave to this object, not inherited.
    pub fn csi_name(&self) -> Option<&str> {
        self.properties.own(&PropertyName::SNAPSHOT_NAME)
    }

    /// The group that it was taken with.
    pub fn group(&self) -> Option<&str> {
        self.properties.own(&PropertyName::GROUP)
    }

    /// Whether it has clones, which keep it.
    pub fn is_stood_on(&self) -> bool {
        !self.clones.is_empty() || !self.hidden.is_empty()
    }

    /// Whether a user hold keeps it, or may: what was not read is not known.
    pub fn is_held(&self) -> bool {
        self.properties.number(&PropertyName::USERREFS) != Some(0)
    }

    /// Whether it is marked for deferred destroy, and waits for the last of its clones and holds.
    pub fn is_doomed(&self) -> bool {
        self.properties.get(&PropertyName::DEFER_DESTROY) == Some("on")
    }
}

// === impl PoolState ===

impl PoolState {
    /// Reads the word of `zpool` and of TrueNAS.
    pub fn parse(word: &str) -> Option<Self> {
        match word {
            "ONLINE" => Some(Self::Online),
            "DEGRADED" => Some(Self::Degraded),
            "SUSPENDED" | "FAULTED" | "UNAVAIL" | "OFFLINE" | "REMOVED" => {
                Some(Self::Unusable(word.to_owned()))
            }
            _ => None,
        }
    }

    /// Whether nothing in it can be read and written.
    pub fn is_unusable(&self) -> bool {
        matches!(self, Self::Unusable(_))
    }
}

// === impl Query ===

impl Query {
    /// An object alone.
    pub fn of(object: Object) -> Self {
        match object {
            Object::Snapshot(snapshot) => Self::Snapshot(snapshot),
            Object::Dataset(dataset) => Self::Dataset(dataset),
        }
    }
}

// === impl Request ===

impl Request {
    /// Objects of the pool alone.
    pub fn of(queries: impl IntoIterator<Item = Query>) -> Self {
        Self {
            queries: queries.into_iter().collect(),
            ..Self::default()
        }
    }
}

// === impl State ===

impl State {
    /// Adds a dataset.
    pub fn add_dataset(&mut self, dataset: Dataset) {
        self.datasets.insert(dataset.name.clone(), dataset);
    }

    /// Adds a snapshot.
    pub fn add_snapshot(&mut self, snapshot: Snapshot) {
        self.snapshots.insert(snapshot.name.clone(), snapshot);
    }

    /// Adds a bookmark.
    pub fn add_mark(&mut self, mark: Mark) {
        self.marks.insert(mark.name.clone(), mark);
    }

    /// Adds an object that [`Query::Named`] found.
    pub fn add_named(&mut self, object: Object) {
        self.named.push(object);
    }

    /// Says how a pool is.
    pub fn set_pool(&mut self, of: &DatasetName, state: PoolState) {
        self.pools.insert(of.pool().to_owned(), state);
    }

    /// Says what the host runs.
    pub fn set_system(&mut self, system: System) {
        self.system = Some(system);
    }

    /// A dataset, if it exists.
    pub fn dataset(&self, name: &DatasetName) -> Option<&Dataset> {
        self.datasets.get(name)
    }

    /// A snapshot, if it exists.
    pub fn snapshot(&self, name: &SnapshotRef) -> Option<&Snapshot> {
        self.snapshots.get(name)
    }

    /// A bookmark, if it exists.
    pub fn mark(&self, name: &MarkRef) -> Option<&Mark> {
        self.marks.get(name)
    }

    /// The bookmarks of a dataset, oldest first.
    pub fn marks_of(&self, name: &DatasetName) -> Vec<&Mark> {
        let of_it = self.marks.values();
        let mut found: Vec<_> = of_it.filter(|mark| mark.name.dataset == *name).collect();
        found.sort_by_key(|mark| mark.createtxg);
        found
    }

    /// The snapshots of a dataset, oldest first.
    pub fn snapshots_of(&self, name: &DatasetName) -> Vec<&Snapshot> {
        let of_it = self.snapshots.values();
        let mut found: Vec<_> = of_it.filter(|s| s.name.dataset == *name).collect();
        found.sort_by_key(|s| s.properties.number(&PropertyName::CREATETXG));
        found
    }

    /// The datasets right below one.
    pub fn children_of(&self, name: &DatasetName) -> Vec<&Dataset> {
        let datasets = self.datasets.values();
        let child = |dataset: &&Dataset| dataset.name.parent().as_ref() == Some(name);
        datasets.filter(child).collect()
    }

    /// A dataset, or its nearest observed ancestor.
    pub fn nearest(&self, name: &DatasetName) -> Option<&Dataset> {
        let mut above = name.with_ancestors().into_iter();
        above.find_map(|name| self.datasets.get(&name))
    }

    /// The objects that [`Query::Named`] found.
    pub fn named(&self) -> &[Object] {
        &self.named
    }

    /// The state of the pool of a dataset, if requested and known.
    pub fn pool(&self, of: &DatasetName) -> Option<&PoolState> {
        self.pools.get(of.pool())
    }

    /// The operating system of the host, if requested.
    pub fn system(&self) -> Option<&System> {
        self.system.as_ref()
    }
}

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for VolumeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// For errors: the query.
impl fmt::Display for Query {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dataset(name) | Self::Family(name) | Self::Nearest(name) => {
                write!(f, "look at {name}")
            }
            Self::Snapshot(name) => write!(f, "look at {name}"),
            Self::Marks(name) => write!(f, "look at the bookmarks of {name}"),
            Self::Named { within, .. } => {
                let within: Vec<_> = within.iter().map(DatasetName::as_str).collect();
                write!(
                    f,
                    "look for a snapshot by its name in {}",
                    within.join(", ")
                )
            }
            Self::Pool(name) => write!(f, "look at the pool `{}`", name.pool()),
            Self::System => f.write_str("ask for the operating system"),
        }
    }
}
