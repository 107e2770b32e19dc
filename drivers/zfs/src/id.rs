//! Ids of volumes and snapshots, and their datasets and snapshots.
//!
//! A volume id that no ZFS driver could have issued is rejected before any query; such a snapshot
//! id names nothing. compat: "ZFS": a volume is `<datasetParentName>/<id>`, a snapshot
//! `<volume>@<name>`, and a detached one `<volume>/<name>`, a dataset below
//! `<detachedSnapshotsDatasetParentName>`. Volumes in a child of the parent have ids of their own: see [`Child`].

mod child;
mod group;

use driver_core::transfer::CopyTag;
use driver_core::{BackendIdentity, Error, SnapshotId, SnapshotName, VolumeId, naming};

use crate::name::{DatasetName, NameError, Object, SnapshotLeaf, SnapshotRef};
use crate::observed::{Guid, VolumeKind};

use self::child::NotHere;
pub use self::child::{Child, ChildError, is_id_of};
pub use self::group::GroupPlace;

/// The longest id of a volume.
const MAX_VOLUME: usize = 128;
/// Prefixes of helper snapshots: sources of volumes, and sources of detached snapshots.
pub const HELPER: &str = "volume-source-for-";
const FOR_VOLUME: &str = "volume-source-for-volume-";
const FOR_SNAPSHOT: &str = "volume-source-for-snapshot-";
const FOR_COPY: &str = "volume-source-for-copy-";

/// The place of the volumes of a connection, and their kind.
#[derive(Debug, Clone)]
pub struct Layout {
    /// Their parent.
    pub volumes: DatasetName,
    /// The datasets right below it that hold volumes, too.
    pub children: Vec<Child>,
    /// The dataset two levels above detached snapshots.
    pub detached: Option<DatasetName>,
    /// Their kind.
    pub kind: VolumeKind,
}

/// A dataset below which this driver makes others.
#[derive(Debug, Clone, Copy)]
pub struct Parent<'a> {
    /// The dataset.
    pub name: &'a DatasetName,
    /// The key that names it.
    pub key: &'static str,
}

/// A snapshot of the orchestrator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotPlace {
    /// Its volume.
    pub volume: VolumeId,
    /// Its own part of the id.
    pub leaf: SnapshotLeaf,
    /// The object that it is.
    pub at: At,
}

/// The object that a snapshot of the orchestrator is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum At {
    /// A snapshot of the volume's dataset.
    Attached(SnapshotRef),
    /// A dataset of its own.
    Detached(DatasetName),
}

/// Why an id is not one of ours.
#[derive(Debug, thiserror::Error)]
#[error("it is not an id that this driver gives")]
struct Foreign;

/// Why detached snapshots are not available.
#[derive(Debug, thiserror::Error)]
#[error("zfs.detachedSnapshotsDatasetParentName is not configured")]
struct NoDetached;

/// Whether a text can be the last part of the name of a volume, or the name of a child.
fn is_word(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-');
    text.bytes().all(plain) && text.starts_with(|c: char| c.is_ascii_alphanumeric())
}

/// Whether a snapshot is a helper.
pub fn is_helper(leaf: &SnapshotLeaf) -> bool {
    leaf.as_str().starts_with(HELPER)
}

/// Whether a snapshot has the name of a helper for a copy in another connection.
pub fn is_of_copy(leaf: &SnapshotLeaf) -> bool {
    leaf.as_str().starts_with(FOR_COPY)
}

/// Whether the name of a snapshot ends in a random UUID, as `snapshot-<uid>` of external-snapshotter does: it belongs
/// to one request, so no other volume has a snapshot of this name, and it is never taken again.
pub fn is_unique(name: &str) -> bool {
    let Some((prefix, uuid)) = name.as_bytes().split_last_chunk::<36>() else {
        return false;
    };
    let fits = |(at, byte): (usize, &u8)| match at {
        8 | 13 | 18 | 23 => *byte == b'-',
        // Version 4, which is random, of the usual variant.
        14 => *byte == b'4',
        19 => matches!(byte, b'8' | b'9' | b'a' | b'b'),
        _ => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
    };
    prefix.last() == Some(&b'-') && uuid.iter().enumerate().all(fits)
}

/// The helper snapshot that is the source of a new volume.
pub fn helper_for_volume(id: &VolumeId) -> Result<SnapshotLeaf, NameError> {
    SnapshotLeaf::parse(&format!("{FOR_VOLUME}{id}"))
}

/// The helper snapshot that is the source of a detached snapshot.
pub fn helper_for_snapshot(leaf: &SnapshotLeaf) -> Result<SnapshotLeaf, NameError> {
    SnapshotLeaf::parse(&format!("{FOR_SNAPSHOT}{leaf}"))
}

/// The helper snapshot that is the source of a volume of another connection. Whole handles do not
/// fit into names, and volumes of two connections may have the same id: so it is a number that is
/// the same for every attempt at that copy.
pub fn helper_for_copy(tag: &CopyTag) -> SnapshotLeaf {
    SnapshotLeaf::of_number(FOR_COPY, hash(tag.as_str()))
}

/// The two snapshots that a move takes in turn, at either end: that of the moment which both ends have, and the next one.
/// They are helpers of a copy, too.
pub fn helpers_for_move(of: &str) -> [SnapshotLeaf; 2] {
    let named = |turn: u8| SnapshotLeaf::of_number(FOR_COPY, hash(&format!("move {turn} {of}")));
    [named(0), named(1)]
}

/// FNV-1a: stable across versions and machines.
fn hash(text: &str) -> u64 {
    let step = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, step)
}

/// The name for a snapshot that is renamed because its own name is needed, or because it moves to a
/// dataset that may have one of that name. It is a helper from then on, with a unique name.
pub fn aside(guid: Guid) -> SnapshotLeaf {
    SnapshotLeaf::of_number(HELPER, guid.0)
}

/// The last part of the id of a new snapshot, of which at most `longest` bytes may be issued.
pub fn leaf_of(
    name: &SnapshotName,
    volume: &VolumeId,
    longest: usize,
) -> Result<SnapshotLeaf, Error> {
    // `<volume>@<leaf>`
    leaf_within(name, longest.saturating_sub(volume.as_str().len() + 1))
}

fn leaf_within(name: &SnapshotName, room: usize) -> Result<SnapshotLeaf, Error> {
    let refused = || Error::invalid(format!("name snapshot `{}`", name.as_str().escape_debug()));
    let text = if name.as_str().len() > room && room < naming::MIN_LEAF {
        return Err(refused().because("with the id of its volume it would be too long for CSI"));
    } else {
        let leaf = |banned| naming::snapshot_leaf_without(name, room.max(naming::MIN_LEAF), banned);
        let plain = leaf("+");
        // A name with the prefix of a helper must be a helper; without its first letter it has no
        // such prefix.
        if plain.starts_with(HELPER) {
            leaf("+v")
        } else {
            plain
        }
    };
    SnapshotLeaf::parse(&text).map_err(|error| refused().because(error))
}

// === impl Layout ===

impl Layout {
    /// The target of a helper snapshot, if its name contains it.
    pub fn made_of(&self, helper: &SnapshotRef) -> Option<DatasetName> {
        let leaf = helper.leaf.as_str();
        if let Some(id) = leaf.strip_prefix(FOR_VOLUME) {
            return self.volume(&VolumeId::parse(id).ok()?).ok();
        }
        let leaf = leaf.strip_prefix(FOR_SNAPSHOT)?;
        let volume = self.volume_id(&helper.dataset)?;
        let container = self.detached.as_ref()?.child(volume.as_str()).ok()?;
        container.child(leaf).ok()
    }

    /// The dataset to lock for a plan that takes or needs this helper snapshot; `None` if it is not
    /// a helper name of this layout.
    pub fn lock_of_helper(&self, helper: &SnapshotRef) -> Option<DatasetName> {
        let leaf = helper.leaf.as_str();
        if leaf.starts_with(FOR_VOLUME) {
            return self.made_of(helper);
        }
        if leaf.starts_with(FOR_SNAPSHOT) {
            // Helpers of one volume exclude each other.
            return self.made_of(helper)?.parent();
        }
        // A dataset that was set aside (by which connection does not show), or a copy in progress
        // elsewhere.
        let number = leaf
            .strip_prefix(FOR_COPY)
            .or_else(|| leaf.strip_prefix(HELPER))?;
        number.parse::<u64>().ok().map(|_| helper.dataset.clone())
    }

    /// The storage identity of these volumes of `host`: the same only if an id names the same
    /// volume. Children do not count: an id names one volume under each list that has its child, and leads nowhere
    /// under the others.
    pub fn identity(&self, host: &str) -> BackendIdentity {
        let detached = self.detached.as_ref();
        let detached = detached.map_or_else(|| "-".to_owned(), DatasetName::to_string);
        let kind = match self.kind {
            VolumeKind::Filesystem => "filesystems",
            VolumeKind::Zvol => "zvols",
        };
        BackendIdentity(format!("{host}: {kind} of {}, {detached}", self.volumes))
    }

    /// The dataset of a volume.
    pub fn volume(&self, id: &VolumeId) -> Result<DatasetName, Error> {
        let refused = || Error::invalid(format!("volume id `{}`", id.as_str().escape_debug()));
        let place = self.split(id.as_str());
        let (parent, name) = place.map_err(|why| refused().because(why))?;
        parent.child(name).map_err(|error| refused().because(error))
    }

    /// The parent of volumes. The first of them makes it.
    pub fn parent_of_volumes(&self) -> Parent<'_> {
        Parent {
            name: &self.volumes,
            key: "zfs.datasetParentName",
        }
    }

    /// The parent of a snapshot: that of volumes, or the one that the first detached snapshot makes.
    pub fn parent_of(&self, at: &At) -> Parent<'_> {
        match (at, &self.detached) {
            (At::Detached(_), Some(name)) => Parent {
                name,
                key: "zfs.detachedSnapshotsDatasetParentName",
            },
            (At::Attached(snapshot), _) => self.parent_above(&snapshot.dataset),
            (At::Detached(_), None) => self.parent_of_volumes(),
        }
    }

    /// The volume of a dataset, if it can be one.
    pub fn volume_id(&self, name: &DatasetName) -> Option<VolumeId> {
        self.id_of_parts(name.below(&self.volumes)?)
    }

    /// The place of a snapshot id. `NotFound` for an id that no driver of ours can have issued; not for one of a child
    /// that is not listed, which may exist.
    pub fn snapshot(&self, id: &SnapshotId) -> Result<SnapshotPlace, Error> {
        let refused = || Error::not_found(format!("snapshot `{}`", id.as_str().escape_debug()));
        let foreign = || refused().because(Foreign);
        let at = id.as_str().find(['@', '/']).ok_or_else(foreign)?;
        let (volume, leaf) = (&id.as_str()[..at], &id.as_str()[at + 1..]);
        match self.split(volume) {
            Err(NotHere::Foreign(_)) => return Err(foreign()),
            Err(why) => {
                let doing = format!("snapshot id `{}`", id.as_str().escape_debug());
                return Err(Error::invalid(doing).because(why));
            }
            Ok(_) => {}
        }
        let volume = VolumeId::parse(volume).map_err(|_| foreign())?;
        let leaf = SnapshotLeaf::parse(leaf).map_err(|_| foreign())?;
        if id.as_str().as_bytes()[at] == b'@' {
            self.attached(&volume, &leaf)
        } else {
            self.detached(&volume, &leaf)
        }
    }

    /// The snapshot of this name of a volume.
    pub fn attached(&self, volume: &VolumeId, leaf: &SnapshotLeaf) -> Result<SnapshotPlace, Error> {
        let snapshot = self.snapshot_of(volume, leaf)?;
        Ok(SnapshotPlace {
            volume: volume.clone(),
            leaf: leaf.clone(),
            at: At::Attached(snapshot),
        })
    }

    fn snapshot_of(&self, volume: &VolumeId, leaf: &SnapshotLeaf) -> Result<SnapshotRef, Error> {
        self.volume(volume)?.at(leaf).map_err(|error| {
            Error::invalid(format!("snapshot `{leaf}` of volume `{volume}`")).because(error)
        })
    }

    /// The detached snapshot of this name of a volume.
    pub fn detached(&self, volume: &VolumeId, leaf: &SnapshotLeaf) -> Result<SnapshotPlace, Error> {
        let refused = || Error::invalid(format!("detached snapshot `{leaf}` of `{volume}`"));
        let parent = self.detached.as_ref();
        let parent = parent.ok_or_else(|| refused().because(NoDetached))?;
        let dataset = parent
            .child(volume.as_str())
            .and_then(|container| container.child(leaf.as_str()))
            .map_err(|error| refused().because(error))?;
        Ok(SnapshotPlace {
            volume: volume.clone(),
            leaf: leaf.clone(),
            at: At::Detached(dataset),
        })
    }

    /// The snapshot of a dataset or snapshot of the pool, if it can be one.
    pub fn place_of(&self, object: &Object) -> Option<SnapshotPlace> {
        match object {
            Object::Snapshot(snapshot) => {
                let volume = self.volume_id(&snapshot.dataset)?;
                self.attached(&volume, &snapshot.leaf).ok()
            }
            Object::Dataset(dataset) => {
                let below = dataset.below(self.detached.as_ref()?)?;
                let (volume, leaf) = below.split_once('/')?;
                self.split(volume).ok()?;
                let volume = VolumeId::parse(volume).ok()?;
                self.detached(&volume, &SnapshotLeaf::parse(leaf).ok()?)
                    .ok()
            }
        }
    }
}

// === impl SnapshotPlace ===

impl SnapshotPlace {
    /// The snapshot or dataset that it is.
    pub fn object(&self) -> Object {
        match &self.at {
            At::Attached(snapshot) => snapshot.clone().into(),
            At::Detached(dataset) => dataset.clone().into(),
        }
    }

    /// The id that callers know.
    pub fn id(&self) -> Result<SnapshotId, Error> {
        let mark = match self.at {
            At::Attached(_) => '@',
            At::Detached(_) => '/',
        };
        let text = format!("{}{mark}{}", self.volume, self.leaf);
        SnapshotId::parse(&text)
            .map_err(|error| Error::invalid(format!("snapshot id `{text}`")).because(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(super) fn layout() -> Layout {
        Layout {
            volumes: DatasetName::parse("tank/v").unwrap(),
            children: Vec::new(),
            detached: Some(DatasetName::parse("tank/s").unwrap()),
            kind: VolumeKind::Filesystem,
        }
    }

    #[test]
    fn ids_are_those_of_democratic_csi() {
        let id = SnapshotId::parse("pvc-1@snapshot-2").unwrap();
        let place = layout().snapshot(&id).unwrap();
        let expected = SnapshotRef::parse("tank/v/pvc-1@snapshot-2").unwrap();
        assert_eq!(place.at, At::Attached(expected));
        assert_eq!(place.id().unwrap(), id);
        let id = SnapshotId::parse("pvc-1/snapshot-2").unwrap();
        let place = layout().snapshot(&id).unwrap();
        let expected = DatasetName::parse("tank/s/pvc-1/snapshot-2").unwrap();
        assert_eq!(place.at, At::Detached(expected));
        assert_eq!(place.id().unwrap(), id);
    }

    #[test]
    fn a_copy_has_a_helper_of_its_own_that_an_operator_can_remove() {
        let (one, other) = (CopyTag::of("v:a/x"), CopyTag::of("v:b/x"));
        let leaf = helper_for_copy(&one);
        assert_eq!(leaf, helper_for_copy(&one));
        assert_ne!(leaf, helper_for_copy(&other));
        assert!(is_helper(&leaf));
        let source = DatasetName::parse("tank/v/x").unwrap();
        let helper = source.at(&leaf).unwrap();
        assert_eq!(layout().made_of(&helper), None);
        assert_eq!(layout().lock_of_helper(&helper), Some(source));
    }

    #[test]
    fn a_move_has_two_helpers_and_shares_none_of_them_with_a_copy() {
        let [one, other] = helpers_for_move("v:b/x");
        assert_eq!(helpers_for_move("v:b/x"), [one.clone(), other.clone()]);
        assert_ne!(one, other);
        assert!(is_of_copy(&one) && is_of_copy(&other));
        let elsewhere = helpers_for_move("v:c/x");
        let of_copy = helper_for_copy(&CopyTag::of("v:b/x"));
        for leaf in [one, other] {
            assert!(leaf != of_copy && !elsewhere.contains(&leaf), "{leaf}");
        }
    }

    #[test]
    fn only_where_ids_mean_the_same_is_it_the_same_storage() {
        let one = layout();
        let mut others = vec![layout(), layout(), layout()];
        others[0].volumes = DatasetName::parse("tank/w").unwrap();
        others[1].detached = None;
        others[2].kind = VolumeKind::Zvol;
        assert_eq!(one.identity("nas"), layout().identity("nas"));
        let with_children = Layout {
            children: vec![Child::of(&one.volumes, "fast").unwrap()],
            ..layout()
        };
        assert_eq!(one.identity("nas"), with_children.identity("nas"));
        assert_ne!(one.identity("nas"), one.identity("nas2"));
        for other in others {
            assert_ne!(one.identity("nas"), other.identity("nas"), "{other:?}");
        }
    }

    #[test]
    fn ids_that_lead_elsewhere_are_refused() {
        for id in [
            "..",
            "../s",
            "a/b",
            "a b",
            "-a",
            "a@b",
            "x; touch /f",
            "a\nb",
            "\u{e9}",
        ] {
            let id = VolumeId::parse(id).unwrap();
            assert!(layout().volume(&id).is_err(), "{id}");
        }
        for id in [
            "a", "a@", "@a", "a@b@c", "a/b/c", "a/..", "../a@b", "a@b;c", "a@b/c", "a/b@c", "a@b+c",
        ] {
            let id = SnapshotId::parse(id).unwrap();
            assert!(layout().snapshot(&id).is_err(), "{id}");
        }
    }

    #[test]
    fn a_snapshot_without_room_beside_its_volume_is_refused_and_a_long_one_is_shortened() {
        let name = SnapshotName::parse(&"s".repeat(128)).unwrap();
        let volume = VolumeId::parse(&"v".repeat(40)).unwrap();
        assert_eq!(leaf_of(&name, &volume, 128).unwrap().as_str().len(), 87);
        // After the name of a connection.
        assert_eq!(leaf_of(&name, &volume, 100).unwrap().as_str().len(), 59);
        assert!(leaf_of(&name, &volume, 70).is_err());
        let volume = VolumeId::parse(&"v".repeat(128)).unwrap();
        assert!(leaf_of(&name, &volume, 128).is_err());
    }

    #[test]
    fn a_name_is_unique_if_a_random_uuid_ends_it() {
        let uuid = "0aa4ba5c-6ee9-4d3b-9cf3-0f1e2d3c4b5a";
        assert!(is_unique(&format!("snapshot-{uuid}")));
        for name in [
            uuid.to_owned(),
            format!("snapshot{uuid}"),
            format!("snapshot-{uuid}-1"),
            format!("snapshot-{}", uuid.to_uppercase()),
            format!("snapshot-{}", &uuid[..35]),
            format!("snapshot-{}", uuid.replace('-', "0")),
            format!("snapshot-{}", uuid.replace("-4", "-1")),
            format!("snapshot-{}", uuid.replace("-9", "-c")),
            // Of which external-snapshotter keeps eight digits, if it is set so.
            format!("snapshot-{}", &uuid[..8]),
            "snapshot-00000000-0000-0000-0000-000000000000".to_owned(),
            "DeleteSnapshot-volume-1-0AA4BA5C-6EE94D3B".to_owned(),
        ] {
            assert!(!is_unique(&name), "{name}");
        }
    }

    proptest! {
        #[test]
        fn every_name_has_a_leaf_that_is_read_back(name in "\\PC{1,128}") {
            let Ok(name) = SnapshotName::parse(&name) else { return Ok(()) };
            let volume = VolumeId::parse("pvc-1").unwrap();
            let leaf = leaf_of(&name, &volume, 128).unwrap();
            let place = layout().attached(&volume, &leaf).unwrap();
            prop_assert_eq!(layout().snapshot(&place.id().unwrap()).unwrap(), place);
        }
    }
}
