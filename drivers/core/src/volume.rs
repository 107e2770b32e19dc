//! The requests and answers of drivers: volumes, snapshots, pages.
//!
//! Every value here is already checked; a driver adds only the rules of its own backend. The wire
//! forms are the proxy's business.

use std::collections::BTreeMap;
use std::fmt;
use std::time::SystemTime;

use csi_types::{Attachment, VolumeCapability};
use secrecy::SecretString;

use crate::made_for::MadeFor;
use crate::parameters::Parameters;
use crate::size::SizeRange;
use crate::text::{GroupSnapshotId, NodeId, SnapshotId, SnapshotName, VolumeId, VolumeName};
use crate::topology::{Topology, TopologyRequirement};

/// The secrets of one request. Never prints a value.
pub type Secrets = BTreeMap<String, SecretString>;

/// A volume to create.
#[derive(Debug, Clone)]
pub struct CreateVolume {
    /// The caller's name: the idempotency key.
    pub name: VolumeName,
    /// The id that this driver gives to that name, see [`crate::Driver::name_volume`].
    pub id: VolumeId,
    /// The requested size.
    pub size: SizeRange,
    /// Every capability that it must have; never empty.
    pub capabilities: Vec<VolumeCapability>,
    /// Parameters of the class, mutable ones already laid over them.
    pub parameters: Parameters,
    /// Secrets of the class.
    pub secrets: Secrets,
    /// Its content source.
    pub source: Option<Source>,
    /// Its required topology.
    pub topology: TopologyRequirement,
}

/// The source of a new volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// The content of a snapshot.
    Snapshot(SnapshotId),
    /// The present content of another volume.
    Volume(VolumeId),
    /// The content of another connection. It is imported by [`crate::Transfer::import`] and in no
    /// other way.
    Elsewhere(Elsewhere),
}

/// A snapshot or a volume of another connection, by the handle that the caller uses. A driver
/// treats it as opaque text, the same for every request for that volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Elsewhere {
    /// The content of a snapshot.
    Snapshot(SnapshotId),
    /// The present content of a volume.
    Volume(VolumeId),
}

/// A volume as it exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volume {
    /// Its id.
    pub id: VolumeId,
    /// Its size in bytes; `None` where nothing limits it.
    pub capacity: Option<u64>,
    /// The way a node reaches it.
    pub attachment: Attachment,
    /// The source that it was filled with, as far as that is recorded.
    pub source: Option<Source>,
    /// The place where it is reachable; empty means everywhere.
    pub topology: Vec<Topology>,
    /// The claim that it was made for, as far as that is recorded.
    pub made_for: MadeFor,
    /// The nodes that it is published to, by the ids that they report, in order. Empty for a driver that does not
    /// [record](crate::Publisher::records) them.
    pub published_to: Vec<NodeId>,
}

/// What there is of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// All of it: it can be used.
    Whole,
    /// The leftover of a creation that is incomplete or still running. Creating the volume again
    /// finishes it, and deleting it removes it.
    Begun,
}

/// The outcome of an expansion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expanded {
    /// The size it has now.
    pub capacity: u64,
    /// Whether the node still has to grow something.
    pub node_expansion_required: bool,
}

/// A query for free space.
#[derive(Debug, Clone, Default)]
pub struct CapacityQuery {
    /// The parameters of the class that asks.
    pub parameters: Parameters,
    /// The topology; `None` means anywhere.
    pub topology: Option<Topology>,
}

/// Free space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Capacity {
    /// Bytes that new volumes can use.
    pub available: u64,
    /// The largest volume that can be made, if that is known.
    pub maximum_volume_size: Option<u64>,
    /// The smallest volume that can be made, if there is one.
    pub minimum_volume_size: Option<u64>,
}

/// A snapshot to create.
#[derive(Debug, Clone)]
pub struct CreateSnapshot {
    /// The caller's name: the idempotency key, together with the source.
    pub name: SnapshotName,
    /// The volume to be snapshotted.
    pub source: VolumeId,
    /// Parameters of the class.
    pub parameters: Parameters,
    /// Secrets of the class.
    pub secrets: Secrets,
}

/// A snapshot as it exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Its id.
    pub id: SnapshotId,
    /// The volume it was taken of.
    pub source: VolumeId,
    /// The bytes that a volume restored from it needs at least.
    pub size: u64,
    /// When it was cut; the same on every reply.
    pub created: SystemTime,
    /// Whether volumes can be made of it now.
    pub ready: bool,
    /// The place where it is reachable; empty means everywhere.
    pub topology: Vec<Topology>,
    /// The group that it was taken with, if it was.
    pub group: Option<GroupSnapshotId>,
}

/// The snapshots to list.
#[derive(Debug, Clone, Default)]
pub struct SnapshotFilter {
    /// Only those of this volume.
    pub source: Option<VolumeId>,
    /// Secrets of the class.
    pub secrets: Secrets,
}

/// The requested page of a list.
#[derive(Debug, Clone, Default)]
pub struct PageRequest {
    /// The most entries; `None` leaves it to the driver.
    pub max: Option<usize>,
    /// The place to continue, from [`Page::next`].
    pub after: Option<PageToken>,
}

/// The place where the next page of a list begins. Its text belongs to the driver, at most 99 bytes: a list
/// over several connections adds to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageToken(pub String);

/// One part of a list.
#[derive(Debug, Clone)]
pub struct Page<T> {
    /// The entries.
    pub entries: Vec<T>,
    /// The place to continue; `None` at the end.
    pub next: Option<PageToken>,
}

/// The identity of the storage of a driver: two drivers with equal identities can reach each
/// other's volumes without a copy over the network.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct BackendIdentity(pub String);

// === impl Page ===

impl<T> Page<T> {
    /// The same page of something else.
    pub fn map<U>(self, of: impl FnMut(T) -> U) -> Page<U> {
        Page {
            entries: self.entries.into_iter().map(of).collect(),
            next: self.next,
        }
    }
}

// === impl Elsewhere ===

impl Elsewhere {
    const SNAPSHOT: &str = "snapshot-elsewhere";
    const VOLUME: &str = "volume-elsewhere";

    /// Its kind in one word, and its handle: as drivers record it.
    pub fn record(&self) -> (&'static str, &str) {
        match self {
            Self::Snapshot(handle) => (Self::SNAPSHOT, handle.as_str()),
            Self::Volume(handle) => (Self::VOLUME, handle.as_str()),
        }
    }

    /// Reads what [`Elsewhere::record`] gave; `None` for anything else.
    pub fn read(word: &str, handle: &str) -> Option<Self> {
        match word {
            Self::SNAPSHOT => SnapshotId::parse(handle).ok().map(Self::Snapshot),
            Self::VOLUME => VolumeId::parse(handle).ok().map(Self::Volume),
            _ => None,
        }
    }
}

impl fmt::Display for Elsewhere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Snapshot(handle) => write!(f, "snapshot `{}`", handle.as_str().escape_debug()),
            Self::Volume(handle) => write!(f, "volume `{}`", handle.as_str().escape_debug()),
        }
    }
}

impl fmt::Debug for BackendIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
