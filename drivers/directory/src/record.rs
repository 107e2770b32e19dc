//! The record of a volume or snapshot: one extended attribute on its directory.
//!
//! It is written before the directory gets its final name, so it appears together with it. Only root can write it,
//! where the filesystem has such attributes and this process may use them. Elsewhere, as on NFS, a pod that mounts the
//! volume can write it too: then a size counts only up to that of the filesystem. Whatever does not read as a record
//! counts as none, and nothing in it is used as a path before it passed the grammar of ids. compat: "local-hostpath":
//! an object without a record, democratic-csi's own, is served all the same.
//!
//! The text is terse on purpose: a record of about 60 bytes lies in the inode itself on ext4, xfs and
//! btrfs. A longer one, as with the names of a claim, may cost a block of its own, to be written with the volume and
//! freed with it.

use std::fmt::Write as _;
use std::os::fd::AsFd;
use std::time::{Duration, SystemTime};

use csi_types::hex;
use driver_core::parameters::{CONNECTION, CONNECTIONS};
use driver_core::text::GroupSnapshotId;
use driver_core::{Elsewhere, MadeFor, Parameters, Source};
use node_utils::shares::may_mount;
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use crate::id::{BackupId, SnapshotDir, SnapshotHandle, Tool, VolumeDir};

/// The names of the attribute. The first is for root alone, and counts where both are there.
pub(crate) const ATTRIBUTES: [&str; 2] = ["trusted.omnibus-csi", "user.omnibus-csi"];
/// The first word of a volume's record: its kind, and the version of the form.
const VOLUME: &str = "v1";
/// The first word of a snapshot's record.
const SNAPSHOT: &str = "s1";
/// Before the claim of a volume.
const CLAIM: &str = "for:";
/// Before its persistent volume.
const PERSISTENT_VOLUME: &str = "pv:";
/// Before the group of a snapshot.
const GROUP: &str = "group:";
/// No record is longer; ext4 keeps 4 KiB for all attributes of a file.
const MAX_RECORD: usize = 2048;
/// The largest size that counts also in a record that a pod can write.
const UNDOUBTED: u64 = 1 << 30;
/// Keys that the provisioner adds of its own accord and that may differ between retries.
const CALLERS_OWN: &str = "csi.storage.k8s.io/";

/// The record of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VolumeRecord {
    pub(crate) capacity: u64,
    pub(crate) source: Option<Source>,
    pub(crate) parameters: String,
    pub(crate) created: SystemTime,
    /// Empty where a pod could have written it.
    pub(crate) made_for: MadeFor,
}

/// The record of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SnapshotRecord {
    pub(crate) name: String,
    pub(crate) source: VolumeDir,
    pub(crate) size: u64,
    pub(crate) created: SystemTime,
    /// The group that it is one of.
    pub(crate) group: Option<GroupSnapshotId>,
}

/// A digest of the parameters that describe a volume; equal for equal requests.
pub(crate) fn digest(parameters: &Parameters) -> String {
    let mut hash = Sha256::new();
    // A volume is the same whichever name of its connection the class goes by.
    let own = |key: &str| key.starts_with(CALLERS_OWN) || [CONNECTION, CONNECTIONS].contains(&key);
    for (key, value) in parameters.raw().iter().filter(|(key, _)| !own(key)) {
        for text in [key, value] {
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text.as_bytes());
        }
    }
    hex(&hash.finalize()[..8])
}

/// Nanoseconds since 1970; a clock before that counts as 1970.
fn to_nanos(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |past| u64::try_from(past.as_nanos()).unwrap_or(u64::MAX))
}

fn from_nanos(nanos: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_nanos(nanos)
}

/// A size that the wire can carry.
fn size(value: u64) -> Option<u64> {
    i64::try_from(value).is_ok().then_some(value)
}

// === impl VolumeRecord ===

impl VolumeRecord {
    pub(crate) fn read(dir: impl AsFd) -> Option<Self> {
        Self::read_as(dir, 0)
    }

    /// The same for a volume of which so many bytes are required: that it has them is believed.
    pub(crate) fn read_as(dir: impl AsFd, required: u64) -> Option<Self> {
        let (text, origin) = read(&dir).ok().flatten()?;
        let mut record = Self::parse(&text)?;
        record.capacity = origin.capped(record.capacity, &dir, required);
        if origin == Origin::Anyone {
            record.made_for = MadeFor::default();
        }
        Some(record)
    }

    pub(crate) fn write(&self, dir: impl AsFd) -> Result<bool, Errno> {
        write(dir, &self.text())
    }

    fn text(&self) -> String {
        let created = to_nanos(self.created);
        let mut text = format!(
            "{VOLUME} {:x} {created:x} {}",
            self.capacity, self.parameters
        );
        if let Some(claim) = &self.made_for.claim {
            let _ = write!(text, " {CLAIM}{claim}");
        }
        if let Some(name) = &self.made_for.persistent_volume {
            let _ = write!(text, " {PERSISTENT_VOLUME}{name}");
        }
        match &self.source {
            Some(Source::Volume(id)) => {
                let _ = write!(text, " volume {id}");
            }
            Some(Source::Snapshot(id)) => {
                let _ = match SnapshotHandle::parse(id) {
                    Ok(SnapshotHandle::Filecopy(dir)) => write!(text, " snapshot {dir}"),
                    Ok(SnapshotHandle::Backup(tool, id)) => write!(text, " {} {id}", tool.name()),
                    Err(_) => Ok(()),
                };
            }
            Some(Source::Elsewhere(source)) => {
                let (word, handle) = source.record();
                let _ = write!(text, " {word} {handle}");
            }
            None => {}
        }
        text
    }

    fn parse(text: &str) -> Option<Self> {
        let mut words = text.splitn(5, ' ');
        if words.next()? != VOLUME {
            return None;
        }
        let capacity = size(number(words.next()?)?)?;
        let created = from_nanos(number(words.next()?)?);
        let parameters = words.next().filter(|word| is_digest(word))?.to_owned();
        let mut rest = words.next();
        let claim = take(&mut rest, CLAIM);
        let persistent_volume = take(&mut rest, PERSISTENT_VOLUME);
        // A handle comes last, as it may hold blanks.
        let mut words = rest.into_iter().flat_map(|rest| rest.splitn(2, ' '));
        let source = match (words.next(), words.next()) {
            (None, None) => None,
            (Some("volume"), Some(id)) => Some(Source::Volume(VolumeDir::new(id)?.id())),
            (Some("snapshot"), Some(dir)) => Some(Source::Snapshot(SnapshotDir::new(dir)?.id())),
            (Some(tool), Some(id)) if Tool::parse(tool).is_some() => {
                Some(Source::Snapshot(BackupId::new(id)?.id(Tool::parse(tool)?)))
            }
            (Some(word), Some(handle)) => Some(Source::Elsewhere(Elsewhere::read(word, handle)?)),
            (_, None) | (None, Some(_)) => return None,
        };
        Some(Self {
            capacity,
            source,
            parameters,
            created,
            made_for: MadeFor::read(claim, persistent_volume),
        })
    }
}

/// Takes the first word away if it begins with `prefix`, and returns the rest of it.
fn take<'a>(rest: &mut Option<&'a str>, prefix: &str) -> Option<&'a str> {
    let text = *rest;
    let (word, after) = match text?.split_once(' ') {
        Some((word, after)) => (word, Some(after)),
        None => (text?, None),
    };
    let found = word.strip_prefix(prefix)?;
    *rest = after;
    Some(found)
}

// === impl SnapshotRecord ===

impl SnapshotRecord {
    /// `None` if there is none. What cannot be read is an error: there may be one.
    pub(crate) fn read(dir: impl AsFd) -> Result<Option<Self>, Errno> {
        let Some((text, origin)) = read(&dir)? else {
            return Ok(None);
        };
        let record = Self::parse(&text).map(|record| Self {
            size: origin.capped(record.size, &dir, 0),
            ..record
        });
        Ok(record)
    }

    pub(crate) fn write(&self, dir: impl AsFd) -> Result<bool, Errno> {
        write(dir, &self.text())
    }

    fn text(&self) -> String {
        let created = to_nanos(self.created);
        let source = self.source.as_str();
        let mut text = format!("{SNAPSHOT} {:x} {created:x} {source} ", self.size);
        if let Some(group) = &self.group {
            let _ = write!(text, "{GROUP}{group} ");
        }
        text.push_str(&self.name);
        text
    }

    fn parse(text: &str) -> Option<Self> {
        // The name comes last, as it may hold blanks.
        let mut words = text.splitn(5, ' ');
        if words.next()? != SNAPSHOT {
            return None;
        }
        let size = size(number(words.next()?)?)?;
        let created = from_nanos(number(words.next()?)?);
        let source = VolumeDir::new(words.next()?)?;
        let rest = words.next()?;
        // A name alone may begin like this, too.
        let of_group = rest.strip_prefix(GROUP);
        let (group, name) = match of_group.and_then(|rest| rest.split_once(' ')) {
            Some((group, name)) => (Some(GroupSnapshotId::parse(group).ok()?), name),
            None => (None, rest),
        };
        let name = Some(name).filter(|name| !name.is_empty())?.to_owned();
        Some(Self {
            name,
            source,
            size,
            created,
            group,
        })
    }
}

/// A number as the records spell it.
fn number(word: &str) -> Option<u64> {
    u64::from_str_radix(word, 16)
        .ok()
        .filter(|_| word.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// Whether a word has the form of [`digest`].
fn is_digest(word: &str) -> bool {
    word.len() == 16 && word.bytes().all(|b| b.is_ascii_hexdigit())
}

/// The possible writers of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    Root,
    /// Or a pod.
    Anyone,
}

impl Origin {
    /// The size that counts. Nothing smaller than what the filesystem has is doubted: it costs an exchange with a server
    /// to ask.
    fn capped(self, size: u64, dir: impl AsFd, required: u64) -> u64 {
        if self == Self::Root || size <= required || size <= UNDOUBTED {
            return size;
        }
        match rustix::fs::fstatvfs(dir) {
            Ok(space) => size.min(space.f_blocks.saturating_mul(space.f_frsize).max(required)),
            Err(_) => size,
        }
    }
}

fn read(dir: impl AsFd) -> Result<Option<(String, Origin)>, Errno> {
    #[cfg(test)]
    testing::read(&dir)?;
    let mut buffer = [0_u8; MAX_RECORD];
    for (name, origin) in ATTRIBUTES.into_iter().zip([Origin::Root, Origin::Anyone]) {
        match rustix::fs::fgetxattr(&dir, name, &mut buffer[..]) {
            Ok(length) => {
                let text = std::str::from_utf8(&buffer[..length]).ok();
                return Ok(text.map(|text| (text.to_owned(), origin)));
            }
            // What is longer than any record is none.
            Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::RANGE) => {}
            // So it is written to the other one, too.
            Err(Errno::PERM | Errno::ACCESS | Errno::INVAL) if origin == Origin::Root => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(None)
}

/// Whether that is the name of a record.
pub(crate) fn is_name(attribute: &[u8]) -> bool {
    ATTRIBUTES.iter().any(|name| name.as_bytes() == attribute)
}

/// Whether the filesystem could keep a record on that directory.
pub(crate) fn can_be_kept(dir: impl AsFd) -> bool {
    let has = |name| rustix::fs::fgetxattr(&dir, name, &mut [0_u8; 0][..]) != Err(Errno::OPNOTSUPP);
    let [of_root, of_all] = ATTRIBUTES;
    has(of_all) || may_mount().is_ok() && has(of_root)
}

/// Whether the filesystem could keep it; one without extended attributes cannot, and objects on it
/// are served like those of democratic-csi.
fn write(dir: impl AsFd, text: &str) -> Result<bool, Errno> {
    let set = |name| rustix::fs::fsetxattr(&dir, name, text.as_bytes(), XattrFlags::empty());
    let [of_root, of_all] = ATTRIBUTES;
    let done = match set(of_root) {
        Err(Errno::PERM | Errno::ACCESS | Errno::OPNOTSUPP | Errno::INVAL) => set(of_all),
        done => {
            // One of before, which pods can write, would count for a version that reads only that.
            if done.is_ok() {
                let _ = rustix::fs::fremovexattr(&dir, of_all);
            }
            done
        }
    };
    match done {
        Ok(()) => Ok(true),
        Err(Errno::OPNOTSUPP) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Records of this thread that cannot be read, and how often records are read.
#[cfg(test)]
pub(crate) mod testing {
    use std::cell::{Cell, RefCell};
    use std::collections::BTreeMap;
    use std::os::fd::AsFd;

    use rustix::io::Errno;

    thread_local! {
        /// By the number of the inode.
        static UNREADABLE: RefCell<BTreeMap<u64, Errno>> = const { RefCell::new(BTreeMap::new()) };
        static READ: Cell<usize> = const { Cell::new(0) };
    }

    /// Lets no record of that inode be read any more.
    pub(crate) fn make_unreadable(inode: u64, errno: Errno) {
        UNREADABLE.with_borrow_mut(|all| all.insert(inode, errno));
    }

    /// Lets all records be read again.
    pub(crate) fn make_readable() {
        UNREADABLE.with_borrow_mut(BTreeMap::clear);
    }

    /// The number of records that this thread has read.
    pub(crate) fn count() -> usize {
        READ.get()
    }

    pub(super) fn read(dir: impl AsFd) -> Result<(), Errno> {
        READ.set(READ.get() + 1);
        let inode = rustix::fs::fstat(dir)?.st_ino;
        let errno = UNREADABLE.with_borrow(|all| all.get(&inode).copied());
        errno.map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn parameters(pairs: &[(&str, &str)]) -> Parameters {
        Parameters::new(
            pairs
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect::<BTreeMap<_, _>>(),
        )
    }

    #[test]
    fn what_is_written_is_read_back() {
        let volume = VolumeDir::new("pvc-1").expect("volume");
        let snapshot = SnapshotDir::new("pvc-1-s:1").expect("snapshot");
        let created = from_nanos(1_234_567_890_123_456_789);
        for source in [
            None,
            Some(Source::Volume(volume.id())),
            Some(Source::Snapshot(snapshot.id())),
            Some(Source::Snapshot(
                BackupId::new("0123abcd").expect("id").id(Tool::Kopia),
            )),
            Elsewhere::read("volume-elsewhere", "v:nas/a b").map(Source::Elsewhere),
            Elsewhere::read("snapshot-elsewhere", "s:nas/a@b").map(Source::Elsewhere),
        ] {
            let record = VolumeRecord {
                capacity: 5,
                source,
                parameters: digest(&parameters(&[])),
                created,
                made_for: MadeFor::default(),
            };
            let claimed = |claim, volume| VolumeRecord {
                made_for: MadeFor::read(claim, volume),
                ..record.clone()
            };
            for record in [
                record.clone(),
                claimed(Some("shop/data"), Some("pvc-1")),
                claimed(Some("shop/data"), None),
                claimed(None, Some("pvc-1")),
            ] {
                assert_eq!(VolumeRecord::parse(&record.text()), Some(record.clone()));
                assert_eq!(SnapshotRecord::parse(&record.text()), None);
            }
        }
        for (name, group) in [
            ("a name with blanks", None),
            ("group:g+0123456789abcdef", None),
            ("g", Some("g+0123456789abcdef")),
            ("group:g", Some("group:g+0123456789abcdef")),
        ] {
            let record = SnapshotRecord {
                name: name.into(),
                source: volume.clone(),
                size: 7,
                created,
                group: group.map(|id| GroupSnapshotId::parse(id).expect("id")),
            };
            assert_eq!(SnapshotRecord::parse(&record.text()), Some(record));
        }
    }

    #[test]
    fn a_record_that_is_not_there_is_none_and_one_that_cannot_be_read_is_an_error() {
        let top = tempfile::tempdir().expect("folder");
        let dir = std::fs::File::open(top.path()).expect("open");
        assert_eq!(SnapshotRecord::read(&dir), Ok(None));
        rustix::fs::fsetxattr(&dir, ATTRIBUTES[1], b"other", XattrFlags::empty()).expect("set");
        assert_eq!(SnapshotRecord::read(&dir), Ok(None), "none of ours");
        // Attributes are not read by such a descriptor.
        let flags = rustix::fs::OFlags::PATH;
        let path = rustix::fs::open(top.path(), flags, rustix::fs::Mode::empty()).expect("open");
        assert_eq!(SnapshotRecord::read(&path), Err(Errno::BADF));
    }

    #[test]
    fn the_record_of_a_plain_volume_fits_into_an_inode() {
        let record = VolumeRecord {
            capacity: 100 << 40,
            source: None,
            parameters: digest(&parameters(&[("a", "b")])),
            created: SystemTime::now(),
            made_for: MadeFor::default(),
        };
        assert!(record.text().len() <= 60, "{}", record.text());
    }

    #[test]
    fn a_record_that_a_pod_forged_is_no_record() {
        let good = "v1 1 0 0123456789abcdef volume a";
        assert!(VolumeRecord::parse(good).is_some());
        for (from, to) in [
            ("v1", "v2"),
            ("v1 1", "v1 -1"),
            ("v1 1", "v1 +1"),
            ("v1 1", "v1 8000000000000000"),
            ("v1 1", "v1 1ffffffffffffffff"),
            ("volume a", "volume ../s"),
            ("volume a", "volume"),
            ("volume a", "volume a b"),
            ("volume a", "snapshot /etc"),
            ("volume a", "other a"),
            ("abcdef", "abcde"),
            ("abcdef", "abcdeg"),
            (" volume a", " "),
        ] {
            let forged = good.replace(from, to);
            assert_eq!(VolumeRecord::parse(&forged), None, "{forged}");
        }
    }

    #[test]
    fn the_digest_ignores_the_provisioner_and_the_choice_of_a_connection_and_nothing_else() {
        let plain = digest(&parameters(&[("a", "b")]));
        let added = parameters(&[("a", "b"), ("csi.storage.k8s.io/pvc/name", "claim")]);
        assert_eq!(digest(&added), plain);
        for choice in [("connection", "nas"), ("connections", "nas,nas-2")] {
            assert_eq!(digest(&parameters(&[("a", "b"), choice])), plain);
        }
        for other in [
            &[("a", "c")][..],
            &[("ab", "")],
            &[],
            &[("a", "b"), ("c", "d")],
        ] {
            assert_ne!(digest(&parameters(other)), plain, "{other:?}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_reading_panic(text in "(v1|s1)?[ 0-9a-f]{0,60}.{0,80}") {
            let _ = VolumeRecord::parse(&text);
            let _ = SnapshotRecord::parse(&text);
        }
    }
}
