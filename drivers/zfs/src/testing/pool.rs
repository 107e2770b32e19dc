//! The pool: datasets, snapshots, clones and the rules between them.

mod captured;
mod change;
mod show;
mod transfer;

use std::collections::{BTreeMap, BTreeSet};

pub(super) use transfer::Piece;

use crate::name::{DatasetName, MarkRef, Object, SnapshotRef};
use crate::observed::{Guid, PoolState, VolumeKind};
use crate::property::{Property, PropertyName};
use crate::step::{Guard, Still};

/// The free space of a pool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Room {
    /// For everything.
    #[default]
    Enough,
    /// Only for written data: space that a snapshot holds cannot be reserved once more.
    Tight,
    /// None.
    None,
}

/// A pool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemoryPool {
    datasets: BTreeMap<DatasetName, Held>,
    snapshots: BTreeMap<SnapshotRef, Cut>,
    /// Bookmarks: what is left of a snapshot.
    marks: BTreeMap<MarkRef, Cut>,
    /// The datasets that are in use and so cannot be destroyed.
    busy: BTreeSet<DatasetName>,
    /// The targets of running incremental `zfs receive`, by the snapshot that they start from.
    hidden: BTreeMap<SnapshotRef, String>,
    /// Whether copies fail as if their parent did not exist.
    pub refuse_copies: bool,
    /// The free space.
    pub room: Room,
    /// Whether the login may do everything except destroy datasets.
    pub refuse_destruction: bool,
    /// A property that it refuses to set, after all others of the same step: a feature of the pool is missing.
    pub refuse_property: Option<PropertyName>,
    /// Its state. A pool that is suspended answers nothing else.
    pub state: PoolState,
    /// The folder below which its filesystems are mounted: `/mnt` on TrueNAS, empty elsewhere.
    pub altroot: String,
    /// Encrypted datasets whose key is not loaded.
    pub locked: BTreeSet<DatasetName>,
    /// The bytes that are left for some datasets.
    pub left: BTreeMap<DatasetName, u64>,
    /// The creation time of all its objects, in seconds after the first pool.
    pub later: u64,
    /// The last transaction.
    txg: u64,
}

/// When the first pool was made, in seconds.
const FIRST: u64 = 1_700_000_000;

/// The state of a dataset or snapshot, for comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Thing {
    /// Its GUID, which tells it from another one of its name.
    pub guid: Guid,
    /// Its content.
    pub content: u64,
    /// Its own properties.
    pub own: BTreeMap<PropertyName, String>,
    /// Whether it is a snapshot marked for deferred destroy.
    pub doomed: bool,
    /// Whether it is a snapshot with a user hold.
    pub held: bool,
}

/// A dataset.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Held {
    kind: VolumeKind,
    txg: u64,
    origin: Option<SnapshotRef>,
    own: BTreeMap<PropertyName, String>,
    content: u64,
    used: u64,
    /// Whether it is a filesystem that is mounted.
    mounted: bool,
    /// Whether it contains files of others, however small.
    files: bool,
    block: u64,
    receiving: bool,
    /// Of a received stream: its snapshot, and how many of its pieces have arrived.
    arrived: Option<(String, u64)>,
    /// Of a stream of what differs, which is received beside the content: the snapshot that it starts from, its own, and
    /// how many of its pieces have arrived.
    beside: Option<(u64, String, u64)>,
}

/// A snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Cut {
    txg: u64,
    guid: u64,
    own: BTreeMap<PropertyName, String>,
    content: u64,
    used: u64,
    volsize: Option<String>,
    doomed: bool,
    holds: u64,
}

fn own(properties: &[Property]) -> BTreeMap<PropertyName, String> {
    let pair = |property: &Property| (property.name.clone(), property.value.to_string());
    properties.iter().map(pair).collect()
}

// === impl MemoryPool ===

impl MemoryPool {
    /// An empty pool of this name.
    pub fn with_root(name: &str) -> Self {
        let mut pool = Self::default();
        if let Ok(name) = DatasetName::parse(name) {
            pool.insert(&name, VolumeKind::Filesystem, &[], None);
        }
        pool
    }

    /// Creates a dataset, as another user of the pool would.
    pub fn insert(
        &mut self,
        name: &DatasetName,
        kind: VolumeKind,
        properties: &[Property],
        origin: Option<SnapshotRef>,
    ) {
        self.txg += 1;
        let held = Held {
            kind,
            txg: self.txg,
            origin,
            own: own(properties),
            content: self.txg,
            used: 1 << 10,
            mounted: kind == VolumeKind::Filesystem,
            files: false,
            block: 16 << 10,
            receiving: false,
            arrived: None,
            beside: None,
        };
        self.datasets.insert(name.clone(), held);
    }

    /// Takes a snapshot, as another user of the pool would.
    pub fn insert_snapshot(&mut self, name: &SnapshotRef, properties: &[Property]) {
        self.txg += 1;
        let Some(held) = self.datasets.get(&name.dataset) else {
            return;
        };
        let cut = Cut {
            txg: self.txg,
            guid: self.txg,
            own: own(properties),
            content: held.content,
            used: held.used,
            volsize: held.own.get(&PropertyName::VOLSIZE).cloned(),
            doomed: false,
            holds: 0,
        };
        self.snapshots.insert(name.clone(), cut);
    }

    /// Adds a snapshot that arrives as part of a stream.
    pub fn receive_snapshot(&mut self, name: &SnapshotRef, sent: &SnapshotRef) {
        let guid = self.snapshots.get(sent).map(|sent| sent.guid);
        self.insert_snapshot(name, &[]);
        if let (Some(cut), Some(guid)) = (self.snapshots.get_mut(name), guid) {
            cut.guid = guid;
        }
    }

    /// Holds a snapshot, as `zfs hold` does.
    pub fn hold(&mut self, name: &SnapshotRef) {
        if let Some(cut) = self.snapshots.get_mut(name) {
            cut.holds += 1;
        }
    }

    /// Starts to receive on top of a snapshot, as `zfs receive` of an incremental stream does.
    pub fn receive_upon(&mut self, name: &SnapshotRef) {
        let hidden = format!("{}/%recv", name.dataset);
        self.hidden.insert(name.clone(), hidden);
    }

    /// Whether a part of what differs has arrived on top of a snapshot.
    fn is_added_to(&self, name: &SnapshotRef) -> bool {
        let beside = |held: &Held| held.beside.as_ref().map(|(since, ..)| *since);
        let since = self.datasets.get(&name.dataset).and_then(beside);
        since.is_some() && since == self.snapshots.get(name).map(|cut| cut.guid)
    }

    /// Marks a dataset as in use, so that it cannot be destroyed, or as free again.
    pub fn occupy(&mut self, name: &DatasetName, busy: bool) {
        if busy {
            self.busy.insert(name.clone());
        } else {
            self.busy.remove(name);
        }
    }

    /// All objects.
    pub fn things(&self) -> BTreeMap<Object, Thing> {
        let datasets = self.datasets.iter().map(|(name, held)| {
            let thing = Thing {
                guid: Guid(held.txg),
                content: held.content,
                own: held.own.clone(),
                doomed: false,
                held: false,
            };
            (name.clone().into(), thing)
        });
        let snapshots = self.snapshots.iter().map(|(name, cut)| {
            let thing = Thing {
                guid: Guid(cut.guid),
                content: cut.content,
                own: cut.own.clone(),
                doomed: cut.doomed,
                held: cut.holds > 0,
            };
            (name.clone().into(), thing)
        });
        datasets.chain(snapshots).collect()
    }

    /// The facts of datasets that are not properties of their own: type, origin and the blocks of
    /// zvols.
    pub fn facts(&self) -> BTreeMap<DatasetName, BTreeMap<PropertyName, String>> {
        let facts = |held: &Held| {
            let mut facts = BTreeMap::from([(PropertyName::TYPE, held.kind.to_string())]);
            if let Some(origin) = &held.origin {
                facts.insert(PropertyName::ORIGIN, origin.to_string());
            }
            if held.kind == VolumeKind::Zvol {
                facts.insert(PropertyName::VOLBLOCKSIZE, held.block.to_string());
            }
            facts
        };
        let all = self.datasets.iter();
        all.map(|(name, held)| (name.clone(), facts(held)))
            .collect()
    }

    /// Writes to a dataset, which changes its content.
    pub fn write(&mut self, name: &DatasetName) {
        self.txg += 1;
        if let Some(held) = self.datasets.get_mut(name) {
            held.content = self.txg;
            held.used = 4 << 20;
            held.files = true;
        }
    }

    /// Adds files to a filesystem that are too small to change its size.
    pub fn write_little(&mut self, name: &DatasetName) {
        self.txg += 1;
        if let Some(held) = self.datasets.get_mut(name) {
            held.content = self.txg;
            held.files = true;
        }
    }

    /// Unmounts a filesystem, as another user of the host would.
    pub fn unmount(&mut self, name: &DatasetName) {
        if let Some(held) = self.datasets.get_mut(name) {
            held.mounted = false;
        }
    }

    /// Whether a filesystem is mounted.
    pub fn is_mounted(&self, name: &DatasetName) -> bool {
        self.datasets.get(name).is_some_and(|held| held.mounted)
    }

    /// Whether a copy into a dataset is still running.
    pub fn is_receiving(&self, name: &DatasetName) -> bool {
        self.datasets.get(name).is_some_and(|held| held.receiving)
    }

    /// The snapshot of a part.
    pub fn arrives_from(&self, name: &DatasetName) -> Option<SnapshotRef> {
        let (token, _) = self.datasets.get(name)?.arrived.as_ref()?;
        let is = |(name, cut): &(&SnapshotRef, &Cut)| transfer::mark(cut, name) == *token;
        self.snapshots.iter().find(is).map(|(name, _)| name.clone())
    }

    /// Replaces a snapshot by a new one of the same name.
    pub fn take_again(&mut self, name: &SnapshotRef) {
        self.txg += 1;
        if let Some(cut) = self.snapshots.get_mut(name) {
            cut.guid = self.txg;
        }
    }

    /// The content of a dataset.
    pub fn content(&self, name: &DatasetName) -> Option<u64> {
        self.datasets.get(name).map(|held| held.content)
    }

    /// The number of bytes that a dataset refers to.
    pub fn used(&self, name: &DatasetName) -> Option<u64> {
        self.datasets.get(name).map(|held| held.used)
    }

    /// The content of a snapshot.
    pub fn content_of(&self, name: &SnapshotRef) -> Option<u64> {
        self.snapshots.get(name).map(|cut| cut.content)
    }

    fn creation(&self, txg: u64) -> String {
        (FIRST + self.later + txg).to_string()
    }

    /// Every dataset and snapshot with its own properties, without what differs between runs:
    /// transactions.
    pub fn shape(&self) -> BTreeMap<String, String> {
        let datasets = self.datasets.iter().map(|(name, held)| {
            let origin = held.origin.as_ref().map(ToString::to_string);
            let shape = format!("{} {origin:?} {:?}", held.kind, held.own);
            (name.to_string(), shape)
        });
        let snapshots = self.snapshots.iter().map(|(name, cut)| {
            let shape = format!("doomed {} {:?}", cut.doomed, cut.own);
            (name.to_string(), shape)
        });
        let marks = self
            .marks
            .keys()
            .map(|name| (name.to_string(), String::new()));
        datasets.chain(snapshots).chain(marks).collect()
    }

    /// The GUID, which tells an object from another one of its name.
    pub fn guid(&self, object: &Object) -> Option<Guid> {
        match object {
            Object::Dataset(name) => self.datasets.get(name).map(|held| Guid(held.txg)),
            Object::Snapshot(name) => self.snapshots.get(name).map(|cut| Guid(cut.guid)),
        }
    }

    /// Whether an object has this own value in a property, or none.
    pub fn has(&self, object: &Object, name: &PropertyName, text: Option<&str>) -> bool {
        let own = match object {
            Object::Dataset(name) => self.datasets.get(name).map(|held| &held.own),
            Object::Snapshot(name) => self.snapshots.get(name).map(|cut| &cut.own),
        };
        let has = |own: &BTreeMap<PropertyName, String>| {
            let value = own.get(name).map(String::as_str);
            value.filter(|value| !matches!(*value, "" | "-")) == text
        };
        own.is_some_and(has)
    }

    /// Whether a guard holds.
    pub fn passes(&self, guard: &Guard) -> bool {
        match &guard.still {
            Still::Itself(guid) => self.guid(&guard.object) == Some(*guid),
            Still::Has(name, text) => self.has(&guard.object, name, text.as_deref()),
        }
    }

    fn clones(&self, name: &SnapshotRef) -> Vec<DatasetName> {
        let of_it = self
            .datasets
            .iter()
            .filter(|(_, held)| held.origin.as_ref() == Some(name));
        of_it.map(|(name, _)| name.clone()).collect()
    }

    fn has_files(&self, name: &DatasetName) -> bool {
        self.datasets.get(name).is_some_and(|held| held.files)
    }

    fn children(&self, name: &DatasetName) -> bool {
        let below = self
            .datasets
            .keys()
            .any(|other| other.below(name).is_some());
        below
            || self
                .snapshots
                .keys()
                .any(|snapshot| snapshot.dataset == *name)
    }
}
