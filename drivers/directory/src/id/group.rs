//! Groups of snapshots: one name, given to snapshots of several volumes.
//!
//! The id is `<end>+<digits>`: the end of the directory name of each snapshot, and a digest of the ids of the
//! volumes. So the id alone says whether a list of snapshots is that of the group, also once nothing of it is left.

use driver_core::config::IdRoom;
use driver_core::text::GroupSnapshotId;
use driver_core::{Error, SnapshotId, SnapshotName, VolumeId};
use sha2::{Digest, Sha256};

use super::{MAX_ENTRY, NamePart, SnapshotDir, SnapshotHandle, VolumeDir, is_name_byte};
use csi_types::hex;

/// The character between the two parts. No digit is one.
const MARK: char = '+';
/// Bytes of the digest of the volumes.
const DIGEST_BYTES: usize = 8;
/// The first character of a name that is shortened.
const SHORTENED: char = 'g';
/// Bytes of the digest in it.
const NAME_BYTES: usize = 8;

/// A group of snapshots, and where each of them is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupPlace {
    /// Its id.
    pub id: GroupSnapshotId,
    /// Its volumes, sorted, at least one; and the directory of the snapshot of each.
    pub members: Vec<(VolumeDir, SnapshotDir)>,
}

/// The digest of sorted ids. No id has a comma.
fn digits(volumes: &[VolumeDir]) -> String {
    let ids: Vec<_> = volumes.iter().map(VolumeDir::as_str).collect();
    hex(&Sha256::digest(ids.join(","))[..DIGEST_BYTES])
}

fn is_digest(text: &str) -> bool {
    let is_digit = |b: u8| matches!(b, b'0'..=b'9' | b'a'..=b'f');
    text.len() == 2 * DIGEST_BYTES && text.bytes().all(is_digit)
}

// === impl NamePart ===

impl NamePart {
    /// Stands for the name in a group where the name itself does not fit beside a volume.
    pub(crate) fn shortened(&self) -> String {
        let digest = Sha256::digest(self.as_str());
        format!("{SHORTENED}{}", hex(&digest[..NAME_BYTES]))
    }
}

// === impl SnapshotDir ===

impl SnapshotDir {
    /// The directory of the snapshot of a volume whose name ends like this. Nothing is shortened: the volume can be read
    /// from it.
    fn ending(volume: &VolumeDir, end: &str) -> Self {
        Self(format!("{volume}-{end}"))
    }

    fn fits(&self, room: IdRoom) -> bool {
        self.0.len() <= MAX_ENTRY && self.handle().len() <= room.bytes()
    }

    /// The volume, if the name ends like this.
    fn volume_before(&self, end: &str) -> Option<VolumeDir> {
        let head = self.0.strip_suffix(end)?.strip_suffix('-')?;
        VolumeDir::new(head)
    }

    /// Whether it ends like this: then it can be one of a group.
    pub(crate) fn may_end(&self, end: &str) -> bool {
        self.volume_before(end).is_some()
    }
}

// === impl GroupPlace ===

impl GroupPlace {
    /// The group of this name of these volumes.
    pub fn new(name: &SnapshotName, volumes: &[VolumeId], room: IdRoom) -> Result<Self, Error> {
        let refused = || {
            let name = name.as_str().escape_debug();
            Error::invalid(format!("taking group snapshot `{name}`"))
        };
        let sorted: Result<Vec<_>, _> = volumes.iter().map(VolumeDir::parse).collect();
        let mut sorted = sorted?;
        sorted.sort();
        if sorted.is_empty() {
            return Err(refused().because("it has no volumes"));
        }
        let name = NamePart::of(name);
        let fits = |end: &String| {
            let mut volumes = sorted.iter();
            volumes.all(|volume| SnapshotDir::ending(volume, end).fits(room))
        };
        let end = [name.as_str().to_owned(), name.shortened()];
        let end = end.into_iter().find(fits).ok_or_else(|| {
            refused().because("the id of a volume is so long that none of its snapshot has room")
        })?;
        let id = GroupSnapshotId::parse(&format!("{end}{MARK}{}", digits(&sorted)));
        let id = id.map_err(|error| refused().because(error))?;
        Ok(Self::at(id, &end, sorted))
    }

    /// The group of an id, if these are its snapshots. `NotFound` for an id that no driver of ours can have given;
    /// `Invalid` for other snapshots.
    pub fn find(id: &GroupSnapshotId, snapshots: &[SnapshotId]) -> Result<Self, Error> {
        let doing = || format!("finding group snapshot `{}`", id.as_str().escape_debug());
        let foreign =
            || Error::not_found(doing()).because("it is not an id that this driver gives");
        let others = || Error::invalid(doing()).because("the listed snapshots are not its own");
        let (end, digest) = id.as_str().rsplit_once(MARK).ok_or_else(foreign)?;
        if end.is_empty() || !end.bytes().all(is_name_byte) || !is_digest(digest) {
            return Err(foreign());
        }
        let mut sorted = Vec::new();
        for snapshot in snapshots {
            let Ok(SnapshotHandle::Filecopy(dir)) = SnapshotHandle::parse(snapshot) else {
                return Err(others());
            };
            sorted.push(dir.volume_before(end).ok_or_else(others)?);
        }
        sorted.sort();
        if sorted.is_empty() || digits(&sorted) != digest {
            return Err(others());
        }
        Ok(Self::at(id.clone(), end, sorted))
    }

    fn at(id: GroupSnapshotId, end: &str, sorted: Vec<VolumeDir>) -> Self {
        let member = |volume: VolumeDir| {
            let dir = SnapshotDir::ending(&volume, end);
            (volume, dir)
        };
        Self {
            id,
            members: sorted.into_iter().map(member).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use driver_core::Kind;

    fn group(name: &str, ids: &[&str], room: IdRoom) -> Result<GroupPlace, Error> {
        let name = SnapshotName::parse(name).expect("name");
        let id = |id: &&str| VolumeId::parse(id).expect("id");
        let ids: Vec<_> = ids.iter().map(id).collect();
        GroupPlace::new(&name, &ids, room)
    }

    fn made(name: &str, ids: &[&str]) -> GroupPlace {
        group(name, ids, IdRoom::default()).expect("a group")
    }

    fn ids(group: &GroupPlace) -> Vec<SnapshotId> {
        let members = group.members.iter();
        members.map(|(_, dir)| dir.id()).collect()
    }

    #[test]
    fn an_id_is_read_back_with_its_snapshots_in_any_order_and_with_no_others() {
        let one = made("a-g:1", &["b", "a-b"]);
        assert_eq!(one, made("a-g:1", &["a-b", "b"]));
        let mut own = ids(&one);
        assert_eq!(one.members[0].1.as_str(), "a-b-a-g:1");
        own.reverse();
        assert_eq!(GroupPlace::find(&one.id, &own).expect("found"), one);
        let with = |other: &str| vec![own[0].clone(), SnapshotId::parse(other).expect("id")];
        let mut all = vec![Vec::new(), own[..1].to_vec(), with(own[0].as_str())];
        let backup = "snapshot_driver=restic&snapshot_id=0123abcd";
        all.extend(["b-a-h:1", "c-a-g:1", "../a-b-a-g:1", "b", backup].map(with));
        for others in all {
            let error = GroupPlace::find(&one.id, &others).expect_err("others");
            assert_eq!(error.kind(), Kind::Invalid, "{others:?}");
        }
        for other in [made("a-g:1", &["a", "b"]), made("g:1", &["b", "a-b"])] {
            assert_ne!(one.id, other.id);
        }
    }

    #[test]
    fn ids_of_no_driver_of_ours_are_not_found() {
        let snapshot = [SnapshotId::parse("a-g").expect("id")];
        let digest = "0123456789abcdef";
        for id in [
            "g",
            "g+",
            "g+0",
            &format!("+{digest}"),
            &format!("../g+{digest}"),
            "g+0123456789ABCDEF",
        ] {
            let id = GroupSnapshotId::parse(id).expect("id");
            let error = GroupPlace::find(&id, &snapshot).expect_err("foreign");
            assert_eq!(error.kind(), Kind::NotFound, "{id}");
        }
    }

    #[test]
    fn a_name_that_does_not_fit_beside_the_longest_volume_is_shortened_for_all() {
        let name = "groupsnapshot-0aa4ba5c-6ee9-4d3b-9cf3-0f1e2d3c4b5a";
        let volume = "pvc-0aa4ba5c-6ee9-4d3b-9cf3-0f1e2d3c4b5a";
        let plain = made(name, &[volume, "v"]);
        assert!(plain.id.as_str().starts_with(name));
        for taken in [1, 20, 33] {
            let short = group(name, &[volume, "v"], IdRoom::behind(taken)).expect("fits");
            let own = ids(&short);
            assert!(own.iter().all(|id| id.as_str().len() <= 128 - taken));
            assert_eq!(GroupPlace::find(&short.id, &own).expect("found"), short);
            let end = NamePart::of(&SnapshotName::parse(name).expect("name")).shortened();
            assert!(short.members.iter().all(|(_, dir)| dir.may_end(&end)));
        }
        let error = group(name, &[volume, "v"], IdRoom::behind(40)).expect_err("no room");
        assert_eq!(error.kind(), Kind::Invalid);
        assert!(group("g", &[], IdRoom::default()).is_err());
    }
}
