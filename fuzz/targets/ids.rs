//! Names, ids and snapshot handles: the text types, the naming rules and the directory ids.
//!
//! Input: a limit in bytes, a volume, and two names, as parts.
#![no_main]

use driver_core::config::{Document, IdRoom, NoEnvironment};
use driver_core::naming::{MIN_LEAF, VolumeNaming, snapshot_leaf};
use driver_core::{NodeId, Parameters, SnapshotId, SnapshotName, VolumeId, VolumeName};
use driver_directory::id::{NamePart, SnapshotDir, VolumeDir};
use fuzz::{is_csi_text, one_line};
use libfuzzer_sys::{Corpus, fuzz_target};
use node_utils::Component;
use std::collections::BTreeMap;
use std::sync::LazyLock;

static NAMING: LazyLock<VolumeNaming> = LazyLock::new(|| {
    let document = Document::parse("driver: d\n", &NoEnvironment).expect("a document");
    VolumeNaming::new(&document.common().expect("the common keys"))
});

/// The most bytes that the name of a connection takes of a handle: its 48 bytes, `v:` and `/`.
const LONGEST_CONNECTION: usize = 51;

fuzz_target!(|data: &[u8]| -> Corpus {
    let Some(mut parts) = fuzz::parts(data) else {
        return Corpus::Reject;
    };
    let limit = parts
        .next()
        .and_then(|limit| limit.parse().ok())
        .unwrap_or(128);
    let [volume, one, other] = [(); 3].map(|()| parts.next().unwrap_or_default());
    for text in [volume, one, other] {
        texts(text);
        directories(text);
    }
    names(limit, one, other);
    snapshots(limit % (LONGEST_CONNECTION + 1), volume, one, other);
    Corpus::Keep
});

/// Each type accepts exactly what the specification allows, and returns it unchanged.
fn texts(text: &str) {
    macro_rules! judge {
        ($($name:ident: $limit:expr),+) => {$(
            match $name::parse(text) {
                Ok(parsed) => {
                    assert!(is_csi_text(text, $limit), "accepted: {text:?}");
                    assert_eq!((parsed.as_str(), parsed.to_string().as_str()), (text, text));
                    assert_eq!($name::parse(parsed.as_str()), Ok(parsed));
                }
                Err(error) => {
                    assert!(!is_csi_text(text, $limit), "refused: {text:?}");
                    one_line(error);
                }
            }
        )+};
    }
    judge!(VolumeName: 128, SnapshotName: 128, VolumeId: 512, SnapshotId: 512, NodeId: 256);
}

/// An id is read back as its directory, and is a single directory entry.
fn directories(text: &str) {
    if let Ok(id) = VolumeId::parse(text) {
        match VolumeDir::parse(&id) {
            Ok(dir) => {
                assert_eq!((dir.as_str(), dir.id().as_str()), (text, text));
                Component::parse(dir.as_str()).expect("a directory entry");
                assert!(text.len() <= 128 && !text.contains('.'));
            }
            Err(error) => drop(one_line(error.chain())),
        }
    }
    if let Ok(id) = SnapshotId::parse(text) {
        match SnapshotDir::parse(&id) {
            Ok(dir) => {
                Component::parse(dir.as_str()).expect("a directory entry");
                assert_eq!(SnapshotDir::parse(&dir.id()).expect("our own id"), dir);
                let readings: Vec<_> = dir.readings().collect();
                for (volume, name) in &readings {
                    assert_eq!(format!("{volume}-{name}"), dir.as_str());
                }
            }
            Err(error) => drop(one_line(error.chain())),
        }
    }
}

/// A name has one id, no other name has it, and it fits.
fn names(limit: usize, one: &str, other: &str) {
    let naming = NAMING.clone().at_most(limit);
    let id = |name: &str| {
        let name = VolumeName::parse(name).ok()?;
        let id = naming.volume_id(&name, &Parameters::new(BTreeMap::new()));
        let id = id.expect("every name has an id");
        assert!(id.as_str().len() <= limit.clamp(MIN_LEAF, 128));
        VolumeDir::parse(&id).expect("an id that drivers read");
        Some(id)
    };
    if let (Some(first), Some(second)) = (id(one), id(other)) {
        assert_eq!(
            first == second,
            one == other,
            "{first} for {one:?} and {other:?}"
        );
    }
    let leaf = |name: &str| {
        let leaf = snapshot_leaf(&SnapshotName::parse(name).ok()?, limit);
        assert!(leaf.len() <= limit.max(MIN_LEAF));
        Component::parse(&leaf).expect("a directory entry");
        Some(leaf)
    };
    if let (Some(first), Some(second)) = (leaf(one), leaf(other)) {
        assert_eq!(
            first == second,
            one == other,
            "{first} for {one:?} and {other:?}"
        );
    }
}

/// The handle of a snapshot fits into the remaining bytes, is read back, and contains its volume
/// and name.
fn snapshots(taken: usize, volume: &str, one: &str, other: &str) {
    let (Some(volume), Ok(one), Ok(other)) = (
        VolumeDir::new(volume),
        SnapshotName::parse(one),
        SnapshotName::parse(other),
    ) else {
        return;
    };
    let same = one == other;
    let (one, other) = (NamePart::of(&one), NamePart::of(&other));
    let room = IdRoom::behind(taken);
    let dir = SnapshotDir::of(&volume, &one, room);
    let id = dir.id();
    assert!(id.as_str().len() <= room.bytes() && is_csi_text(id.as_str(), 128));
    assert_eq!(SnapshotDir::parse(&id).expect("our own id"), dir);
    assert!(dir.may_be_called(&one));
    if !dir.is_shortened() {
        assert!(
            dir.readings()
                .any(|reading| reading == (volume.clone(), one.as_str()))
        );
    }
    assert_eq!(SnapshotDir::of(&volume, &other, room) == dir, same);
}
