//! Groups of snapshots: one name, taken of several volumes at one moment.
//!
//! The id is `<name>+<digits>`: the name that each snapshot has on its volume, and a hash of the volumes. So
//! the id alone says whether a list of snapshots is that of the group, also once nothing of it is left.

use driver_core::text::GroupSnapshotId;
use driver_core::{Error, SnapshotId, SnapshotName, VolumeId};

use super::{At, Foreign, Layout, Parent, SnapshotPlace, hash, leaf_within};
use crate::name::{DatasetName, SnapshotLeaf, SnapshotRef};

/// The character between the name and the hash. No name of a snapshot has it.
const MARK: char = '+';
/// The hexadecimal digits of the hash.
const DIGITS: usize = 16;
/// The most snapshots of a group: all of them are arguments of one command, of which FreeBSD takes half a
/// megabyte.
const MOST: usize = 1_000;

/// A group of snapshots, and where each of them is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupPlace {
    /// Its id.
    pub id: GroupSnapshotId,
    /// Its snapshots, by the ids of their volumes, at least one; and what callers know of each.
    pub members: Vec<(SnapshotRef, SnapshotPlace)>,
}

/// The hash of sorted ids. No id has a comma.
fn digits(volumes: &[&VolumeId]) -> String {
    let ids: Vec<_> = volumes.iter().map(|id| id.as_str()).collect();
    format!("{:0DIGITS$x}", hash(&ids.join(",")))
}

// === impl Layout ===

impl Layout {
    /// The group of this name of these volumes. At most `longest` bytes may be issued as an id.
    pub fn new_group(
        &self,
        name: &SnapshotName,
        volumes: &[VolumeId],
        longest: usize,
    ) -> Result<GroupPlace, Error> {
        let refused = || {
            let name = name.as_str().escape_debug();
            Error::invalid(format!("take group snapshot `{name}`"))
        };
        if volumes.len() > MOST {
            let why = format!("it has {} volumes, and {MOST} is the most", volumes.len());
            return Err(refused().because(why).advise("make several groups"));
        }
        let mut sorted: Vec<&VolumeId> = volumes.iter().collect();
        sorted.sort();
        // Each snapshot has the same name, which fits beside the longest id and beside the hash.
        let beside = sorted.iter().map(|id| id.as_str().len() + 1).max();
        let beside = beside.ok_or_else(|| refused().because("it has no volumes"))?;
        let leaf = leaf_within(name, longest.saturating_sub(beside.max(1 + DIGITS)))?;
        let id = GroupSnapshotId::parse(&format!("{leaf}{MARK}{}", digits(&sorted)));
        let id = id.map_err(|error| refused().because(error))?;
        self.group_at(id, &leaf, &sorted)
    }

    /// The group of an id, if these are its snapshots. `NotFound` for an id that no driver of ours can have
    /// issued; `Invalid` for other snapshots.
    pub fn group(
        &self,
        id: &GroupSnapshotId,
        snapshots: &[SnapshotId],
    ) -> Result<GroupPlace, Error> {
        let doing = || format!("find group snapshot `{}`", id.as_str().escape_debug());
        let foreign = || Error::not_found(doing()).because(Foreign);
        let others = || Error::invalid(doing()).because("the listed snapshots are not its own");
        let (leaf, hash) = id.as_str().rsplit_once(MARK).ok_or_else(foreign)?;
        let leaf = SnapshotLeaf::parse(leaf).map_err(|_| foreign())?;
        let hex = |b: u8| b.is_ascii_digit() || matches!(b, b'a'..=b'f');
        if hash.len() != DIGITS || !hash.bytes().all(hex) {
            return Err(foreign());
        }
        let mut volumes = Vec::new();
        for snapshot in snapshots {
            let place = self.snapshot(snapshot).map_err(|_| others())?;
            if !matches!(place.at, At::Attached(_)) || place.leaf != leaf {
                return Err(others());
            }
            volumes.push(place.volume);
        }
        let mut sorted: Vec<&VolumeId> = volumes.iter().collect();
        sorted.sort();
        if sorted.is_empty() || digits(&sorted) != hash {
            return Err(others());
        }
        self.group_at(id.clone(), &leaf, &sorted)
    }

    fn group_at(
        &self,
        id: GroupSnapshotId,
        leaf: &SnapshotLeaf,
        volumes: &[&VolumeId],
    ) -> Result<GroupPlace, Error> {
        let member = |volume: &&VolumeId| {
            let snapshot = self.snapshot_of(volume, leaf)?;
            let place = SnapshotPlace {
                volume: (*volume).clone(),
                leaf: leaf.clone(),
                at: At::Attached(snapshot.clone()),
            };
            Ok((snapshot, place))
        };
        let members = volumes.iter().map(member).collect::<Result<_, Error>>()?;
        Ok(GroupPlace { id, members })
    }
}

// === impl GroupPlace ===

impl GroupPlace {
    /// Its snapshots.
    pub fn snapshots(&self) -> impl Iterator<Item = &SnapshotRef> {
        self.members.iter().map(|(snapshot, _)| snapshot)
    }

    /// The parents of its volumes.
    pub fn parents<'l>(&self, layout: &'l Layout) -> Vec<Parent<'l>> {
        layout.parents_above(self.snapshots().map(|snapshot| &snapshot.dataset))
    }

    /// The dataset to lock for a plan about it: the same, however its snapshots are listed.
    pub fn lock(&self) -> DatasetName {
        self.members[0].0.dataset.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::tests::layout;
    use driver_core::Kind;

    fn group(name: &str, ids: &[&str], longest: usize) -> Result<GroupPlace, Error> {
        let name = SnapshotName::parse(name).unwrap();
        let ids: Vec<_> = ids.iter().map(|id| VolumeId::parse(id).unwrap()).collect();
        layout().new_group(&name, &ids, longest)
    }

    fn ids(group: &GroupPlace) -> Vec<SnapshotId> {
        let places = group.members.iter();
        places.map(|(_, place)| place.id().unwrap()).collect()
    }

    #[test]
    fn an_id_is_read_back_with_its_snapshots_in_any_order_and_with_no_others() {
        let made = group("g", &["b", "a"], 128).unwrap();
        assert_eq!(made, group("g", &["a", "b"], 128).unwrap());
        let mut own = ids(&made);
        assert_eq!(own[0].as_str(), "a@g");
        own.reverse();
        assert_eq!(layout().group(&made.id, &own).unwrap(), made);
        let with = |other: &str| vec![own[0].clone(), SnapshotId::parse(other).unwrap()];
        let mut all = vec![Vec::new(), own[..1].to_vec(), with("b@g")];
        all.extend(["a@h", "a/g", "c@g", "a"].map(with));
        for others in all {
            let error = layout().group(&made.id, &others).unwrap_err();
            assert_eq!(error.kind(), Kind::Invalid, "{others:?}");
        }
        for other in [group("g", &["a", "bc"], 128), group("h", &["a", "b"], 128)] {
            assert_ne!(made.id, other.unwrap().id);
        }
    }

    #[test]
    fn ids_of_no_driver_of_ours_are_not_found() {
        let snapshot = [SnapshotId::parse("a@g").unwrap()];
        let hash = "0123456789abcdef";
        for id in [
            "g",
            "g+",
            "g+0",
            &format!("+{hash}"),
            &format!("a/b+{hash}"),
            "g+0123456789ABCDEF",
        ] {
            let id = GroupSnapshotId::parse(id).unwrap();
            let error = layout().group(&id, &snapshot).unwrap_err();
            assert_eq!(error.kind(), Kind::NotFound, "{id}");
        }
    }

    #[test]
    fn ids_fit_into_the_room_beside_the_longest_volume() {
        let (name, volume) = ("s".repeat(128), "v".repeat(40));
        for (volume, longest) in [("v", 128), (&*volume, 128), (&*volume, 99)] {
            let made = group(&name, &[volume, "w"], longest).unwrap();
            assert!(made.id.as_str().len() <= longest, "{}", made.id);
            for id in ids(&made) {
                assert!(id.as_str().len() <= longest, "{id}");
            }
        }
        assert!(group(&name, &[&"v".repeat(128)], 128).is_err());
    }

    #[test]
    fn a_group_that_one_command_does_not_take_is_refused() {
        let many: Vec<_> = (0..=MOST).map(|n| format!("v{n}")).collect();
        let many: Vec<_> = many.iter().map(String::as_str).collect();
        assert!(group("g", &many[..MOST], 128).is_ok());
        let error = group("g", &many, 128).unwrap_err().chain();
        assert!(error.contains("1000 is the most"), "{error}");
        assert!(group("g", &[], 128).is_err());
    }
}
