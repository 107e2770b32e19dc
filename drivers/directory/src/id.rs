//! Ids of volumes and snapshots, and the directory names they stand for.
//!
//! An id that no directory driver could have made is refused before anything is opened. compat:
//! "local-hostpath": `v/<volume>` and `s/<volume>-<name>`; the handle of a snapshot is
//! `snapshot_driver=filecopy&snapshot_id=<volume>-<name>`, the plain form is read too.

mod group;

use std::fmt;

use csi_types::hex;
use driver_core::config::IdRoom;
use driver_core::{Error, SnapshotId, SnapshotName, VolumeId, naming};
use sha2::{Digest, Sha256};

pub use self::group::GroupPlace;

/// The longest id of a volume.
pub(crate) const MAX_VOLUME: usize = 128;
/// The longest name of a snapshot.
const MAX_NAME: usize = driver_core::text::MAX_STRING;
/// The longest name of a directory entry.
const MAX_ENTRY: usize = 255;
/// At most so much of the readable part of a shortened snapshot remains.
const KEPT: usize = 48;
/// The text that every handle of ours begins with.
const HANDLE: &str = "snapshot_driver=filecopy&snapshot_id=";

/// The directory name of a volume: letters, digits, `_` and `-`, the first a letter or digit.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VolumeDir(String);

/// The directory name of a snapshot: as a volume's, and `:`, `.`, `+` but not first.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SnapshotDir(String);

/// A program that keeps snapshots in a repository of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tool {
    /// restic.
    Restic,
    /// kopia.
    Kopia,
}

/// The id of a snapshot in a repository: 8 to 64 hexadecimal digits.
#[derive(Clone, PartialEq, Eq)]
pub struct BackupId(String);

/// The place where a snapshot is, as its handle says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SnapshotHandle {
    /// It is a directory of the base.
    Filecopy(SnapshotDir),
    /// It is in the repository of a tool.
    Backup(Tool, BackupId),
}

/// The part of a snapshot's directory name that the caller chose.
#[derive(Clone, PartialEq, Eq)]
pub struct NamePart(String);

fn begins_well(text: &str) -> bool {
    text.as_bytes()
        .first()
        .is_some_and(u8::is_ascii_alphanumeric)
}

fn is_volume_byte(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b == b'_' || b == b'-'
}

fn is_name_byte(b: u8) -> bool {
    is_volume_byte(b) || matches!(b, b':' | b'.' | b'+')
}

// === impl VolumeDir ===

impl VolumeDir {
    /// The name, if a volume can have it.
    pub fn new(text: &str) -> Option<Self> {
        (begins_well(text) && text.len() <= MAX_VOLUME && text.bytes().all(is_volume_byte))
            .then(|| Self(text.to_owned()))
    }

    /// Reads the id of a request.
    pub fn parse(id: &VolumeId) -> Result<Self, Error> {
        Self::new(id.as_str()).ok_or_else(|| {
            Error::invalid(format!("volume id `{}`", id.as_str().escape_debug()))
                .because("it is not an id that this driver gives")
        })
    }

    /// The longest that there is room for.
    pub(crate) fn longest(room: usize) -> Self {
        Self("v".repeat(room))
    }

    /// The id that callers know.
    pub fn id(&self) -> VolumeId {
        VolumeId::parse(&self.0).expect("the grammar here is the narrower one")
    }

    /// The name itself.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

// === impl NamePart ===

impl NamePart {
    /// The name that a caller gives to a snapshot; one that cannot be part of a directory name is
    /// mapped to one that can.
    pub fn of(name: &SnapshotName) -> Self {
        Self(naming::snapshot_leaf(name, MAX_NAME))
    }

    /// The name itself.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

// === impl SnapshotDir ===

impl SnapshotDir {
    /// The name, if a snapshot can have it.
    pub fn new(text: &str) -> Option<Self> {
        (begins_well(text) && text.len() <= MAX_ENTRY && text.bytes().all(is_name_byte))
            .then(|| Self(text.to_owned()))
    }

    /// The directory of snapshot `name` of `volume`. A pair whose handle would be longer than there is
    /// room for keeps its beginning and gets a digest of the whole.
    pub fn of(volume: &VolumeDir, name: &NamePart, room: IdRoom) -> Self {
        let plain = Self(format!("{}-{}", volume.0, name.0));
        if plain.0.len() <= MAX_ENTRY && plain.handle().len() <= room.bytes() {
            return plain;
        }
        let rest = HANDLE.len() + SHORTENED.len() + 2 * DIGEST_BYTES;
        let kept = room.bytes().saturating_sub(rest).clamp(1, KEPT);
        let mut short: String = volume.0.chars().take(kept).collect();
        short.push_str(SHORTENED);
        short.push_str(&digits(volume, name));
        Self(short)
    }

    /// Whether this looks like one of the shortened names, whose parts only the record knows.
    pub fn is_shortened(&self) -> bool {
        self.0
            .len()
            .checked_sub(SHORTENED.len() + 2 * DIGEST_BYTES)
            .and_then(|start| self.0.get(start..))
            .and_then(|tail| tail.strip_prefix(SHORTENED))
            .is_some_and(|digits| {
                digits
                    .bytes()
                    .all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
            })
    }

    /// Whether this is the shortened directory of that pair, whatever room there was.
    pub(crate) fn is_shortened_of(&self, volume: &VolumeDir, name: &NamePart) -> bool {
        let end = format!("{SHORTENED}{}", digits(volume, name));
        let head = self.0.strip_suffix(&*end);
        head.is_some_and(|head| volume.0.starts_with(head))
    }

    /// Whether this can be the directory of a snapshot called `name`, of whichever volume.
    pub fn may_be_called(&self, name: &NamePart) -> bool {
        self.is_shortened()
            || self
                .0
                .strip_suffix(&name.0)
                .and_then(|head| head.strip_suffix('-'))
                .is_some_and(|volume| VolumeDir::new(volume).is_some())
    }

    /// Every way to read this name as a volume and a name, the longest volume first.
    pub fn readings(&self) -> impl Iterator<Item = (VolumeDir, &str)> {
        self.0
            .rmatch_indices('-')
            .filter_map(|(dash, _)| Some((VolumeDir::new(&self.0[..dash])?, &self.0[dash + 1..])))
            .filter(|(_, name)| !name.is_empty())
    }

    /// Reads the id of a request: the handle form, or the plain one of older releases.
    pub fn parse(id: &SnapshotId) -> Result<Self, Error> {
        match SnapshotHandle::parse(id)? {
            SnapshotHandle::Filecopy(dir) => Ok(dir),
            SnapshotHandle::Backup(..) => {
                Err(refused(id)
                    .because("it is in a repository, which only its own connection reads"))
            }
        }
    }

    /// The id that callers know. Escapes can make the handle of a directory that another release
    /// made longer than any id that is read: its plain form stands in for it.
    pub fn id(&self) -> SnapshotId {
        SnapshotId::parse(&self.handle())
            .or_else(|_| SnapshotId::parse(&self.0))
            .expect("the grammar here is the narrower one")
    }

    fn handle(&self) -> String {
        let mut handle = HANDLE.to_owned();
        for b in self.0.bytes() {
            match b {
                b':' => handle.push_str("%3A"),
                b'+' => handle.push_str("%2B"),
                _ => handle.push(char::from(b)),
            }
        }
        handle
    }

    /// The name itself.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

// === impl Tool ===

impl Tool {
    /// Every one.
    pub const ALL: [Self; 2] = [Self::Restic, Self::Kopia];

    /// The name of the program.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Restic => "restic",
            Self::Kopia => "kopia",
        }
    }

    /// The one of that name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|tool| tool.name() == name)
    }
}

// === impl BackupId ===

impl BackupId {
    /// The id, if a tool can have given it. A word that means one to the tool, such as `latest`, is none.
    pub fn new(text: &str) -> Option<Self> {
        let is_digit = |b: u8| matches!(b, b'0'..=b'9' | b'a'..=b'f');
        ((8..=64).contains(&text.len()) && text.bytes().all(is_digit))
            .then(|| Self(text.to_owned()))
    }

    /// The id that callers know. compat: "restic".
    pub fn id(&self, tool: Tool) -> SnapshotId {
        let handle = format!("snapshot_driver={}&snapshot_id={}", tool.name(), self.0);
        SnapshotId::parse(&handle).expect("hexadecimal digits")
    }

    /// The id itself.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

// === impl SnapshotHandle ===

fn refused(id: &SnapshotId) -> Error {
    Error::invalid(format!("snapshot id `{}`", id.as_str().escape_debug()))
}

impl SnapshotHandle {
    /// The form that is given out.
    pub fn id(&self) -> SnapshotId {
        match self {
            Self::Filecopy(dir) => dir.id(),
            Self::Backup(tool, id) => id.id(*tool),
        }
    }

    /// Reads the id of a request: the handle form, or the plain one of older releases.
    pub fn parse(id: &SnapshotId) -> Result<Self, Error> {
        let refuse = |why: &str| refused(id).because(why.to_owned());
        let not_ours = || refuse("it is not an id that this driver gives");
        let text = id.as_str();
        if !text.contains('=') {
            return SnapshotDir::new(text)
                .map(Self::Filecopy)
                .ok_or_else(not_ours);
        }
        let (mut driver, mut snapshot) = (None, None);
        for pair in text.split('&') {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let slot = match key {
                "snapshot_driver" => &mut driver,
                "snapshot_id" => &mut snapshot,
                _ => return Err(refuse("it has a part that no id has")),
            };
            let value = decode(value).ok_or_else(|| refuse("its encoding is broken"))?;
            if slot.replace(value).is_some() {
                return Err(refuse("it names a part twice"));
            }
        }
        let Some(driver) = driver else {
            return Err(refuse("it names no snapshot driver"));
        };
        let snapshot = snapshot.as_deref();
        let found = match (&*driver, Tool::parse(&driver)) {
            ("filecopy", _) => snapshot.and_then(SnapshotDir::new).map(Self::Filecopy),
            (_, Some(tool)) => snapshot
                .and_then(BackupId::new)
                .map(|id| Self::Backup(tool, id)),
            _ => {
                return Err(refuse(
                    "it was made by a snapshot driver that this build does not have",
                ));
            }
        };
        found.ok_or_else(not_ours)
    }
}

/// Stands between the readable part and the digest of a shortened name.
const SHORTENED: &str = "-x";
/// Bytes of the digest. With this many a collision is no concern.
const DIGEST_BYTES: usize = 16;

/// The digest of a pair in its shortened name.
fn digits(volume: &VolumeDir, name: &NamePart) -> String {
    let digest = Sha256::digest(format!("{}\0{}", volume.0, name.0));
    hex(&digest[..DIGEST_BYTES])
}

/// Reads `application/x-www-form-urlencoded` text.
fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(b) = rest.next() {
        bytes.push(match b {
            b'+' => b' ',
            b'%' => {
                let mut digit = || char::from(rest.next()?).to_digit(16);
                u8::try_from(digit()? * 16 + digit()?).ok()?
            }
            b => b,
        });
    }
    String::from_utf8(bytes).ok()
}

macro_rules! shown {
    ($name:ident) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }
    };
}

shown!(VolumeDir);
shown!(SnapshotDir);
shown!(NamePart);
shown!(BackupId);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn volume(text: &str) -> VolumeDir {
        VolumeDir::new(text).expect("a volume")
    }

    fn name(text: &str) -> NamePart {
        NamePart::of(&SnapshotName::parse(text).expect("text"))
    }

    fn snapshot(text: &str) -> Result<SnapshotDir, Error> {
        SnapshotDir::parse(&SnapshotId::parse(text).expect("text"))
    }

    #[test]
    fn the_handle_is_that_of_democratic_csi_and_the_plain_form_is_read() {
        let dir = SnapshotDir::of(&volume("pvc-1"), &name("snapshot-a"), IdRoom::default());
        assert_eq!(dir.as_str(), "pvc-1-snapshot-a");
        assert_eq!(
            dir.id().as_str(),
            "snapshot_driver=filecopy&snapshot_id=pvc-1-snapshot-a"
        );
        assert_eq!(snapshot("pvc-1-snapshot-a").expect("plain"), dir);
        let turned = snapshot("snapshot_id=pvc-1-snapshot-a&snapshot_driver=filecopy");
        assert_eq!(turned.expect("order is free"), dir);
        let odd = SnapshotDir::of(&volume("v"), &name("a:b.c+d"), IdRoom::default());
        assert!(odd.id().as_str().ends_with("v-a%3Ab.c%2Bd"));
        assert_eq!(SnapshotDir::parse(&odd.id()).expect("own"), odd);
    }

    #[test]
    fn ids_that_this_driver_never_gives_are_refused() {
        let long = "v".repeat(129);
        for bad in [
            "..",
            ".",
            "../s",
            "a/b",
            "/a",
            "-a",
            "_a",
            "a.b",
            "a b",
            "a\tb",
            "é",
            &long,
            "v:../../x",
        ] {
            assert!(VolumeDir::new(bad).is_none(), "{bad:?}");
        }
        for bad in [
            "..",
            "../v",
            "-a",
            "a/b-c",
            ".a-b",
            "snapshot_driver=filecopy",
            "snapshot_driver=filecopy&snapshot_id=",
            "snapshot_driver=filecopy&snapshot_id=..%2Fv",
            "snapshot_driver=filecopy&snapshot_id=a%2Fb-c",
            "snapshot_driver=filecopy&snapshot_id=a-b%00",
            "snapshot_driver=filecopy&snapshot_id=a-b%0",
            "snapshot_driver=filecopy&snapshot_id=a-b&snapshot_id=a-c",
            "snapshot_driver=filecopy&snapshot_id=a-b&x=1",
            "snapshot_driver=restic&snapshot_id=abc",
            "snapshot_driver=&snapshot_id=a-b",
            "snapshot_id=a-b",
        ] {
            assert!(snapshot(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_pair_too_long_for_a_handle_is_shortened_to_one_that_stays_its_own() {
        let long = volume(&"v".repeat(128));
        let one = SnapshotDir::of(&long, &name(&"n".repeat(128)), IdRoom::default());
        let other = SnapshotDir::of(&long, &name(&"n".repeat(127)), IdRoom::default());
        assert_ne!(one, other);
        assert!(one.is_shortened() && one.id().as_str().len() <= driver_core::text::MAX_STRING);
        assert_eq!(SnapshotDir::parse(&one.id()).expect("own"), one);
        assert!(!SnapshotDir::of(&volume("v"), &name("n"), IdRoom::default()).is_shortened());
    }

    #[test]
    fn behind_the_name_of_a_connection_there_is_less_room_and_a_pair_is_shortened_to_fit() {
        let (one, other) = (
            volume(&format!("pvc-{}", "u".repeat(36))),
            name(&"n".repeat(45)),
        );
        assert!(!SnapshotDir::of(&one, &other, IdRoom::default()).is_shortened());
        for taken in [12, 23, 51] {
            let dir = SnapshotDir::of(&one, &other, IdRoom::behind(taken));
            assert!(dir.is_shortened());
            assert!(dir.is_shortened_of(&one, &other));
            let longer = volume(&format!("{one}-2"));
            assert!(!dir.is_shortened_of(&longer, &other));
            assert!(!dir.is_shortened_of(&one, &name("n")));
            assert!(dir.id().as_str().len() + taken <= driver_core::text::MAX_STRING);
            assert_eq!(SnapshotDir::parse(&dir.id()).expect("own"), dir);
        }
    }

    #[test]
    fn a_foreign_directory_whose_handle_would_be_unreadable_has_its_plain_name() {
        let dir = SnapshotDir::new(&format!("v-{}", ":".repeat(250))).expect("dir");
        assert_eq!(dir.id().as_str(), dir.as_str());
        assert_eq!(SnapshotDir::parse(&dir.id()).expect("own"), dir);
    }

    #[test]
    fn a_name_with_dashes_has_every_reading_the_longest_volume_first() {
        let dir = SnapshotDir::new("a-b-c").expect("dir");
        let readings: Vec<_> = dir.readings().map(|(v, n)| (v.0, n.to_owned())).collect();
        assert_eq!(
            readings,
            [
                ("a-b".to_owned(), "c".to_owned()),
                ("a".to_owned(), "b-c".to_owned())
            ]
        );
        assert!(dir.may_be_called(&name("b-c")) && dir.may_be_called(&name("c")));
        assert!(!dir.may_be_called(&name("a-b-c")) && !dir.may_be_called(&name("d")));
    }

    proptest! {
        #[test]
        fn every_id_given_is_read_back(
            v in "[A-Za-z0-9][A-Za-z0-9_-]{0,127}",
            n in "\\PC{1,40}|[A-Za-z0-9_:.+-]{1,128}",
        ) {
            let dir = SnapshotDir::of(&volume(&v), &name(&n), IdRoom::default());
            prop_assert!(dir.id().as_str().len() <= driver_core::text::MAX_STRING);
            prop_assert_eq!(&SnapshotDir::parse(&dir.id()).expect("own"), &dir);
            prop_assert!(dir.may_be_called(&name(&n)));
        }

        #[test]
        fn no_text_becomes_a_path_that_leaves_its_folder(text in "\\PC{1,200}") {
            if let Ok(id) = SnapshotId::parse(&text)
                && let Ok(dir) = SnapshotDir::parse(&id)
            {
                prop_assert!(!dir.as_str().contains('/') && !dir.as_str().starts_with('.'));
            }
            if let Some(dir) = VolumeDir::new(&text) {
                prop_assert!(!dir.as_str().contains(['/', '.', '\0']));
            }
        }
    }
}
