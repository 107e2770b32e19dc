//! The record of a volume or snapshot: one extended attribute on its directory.
//!
//! It is written before the directory gets its final name, so it appears together with it. A pod
//! that mounts the volume can write it too: whatever does not read as a record counts as none, and
//! nothing in it is used as a path before it passed the grammar of ids. compat: "local-hostpath": an
//! object without a record, democratic-csi's own, is served all the same.

use std::fmt::Write as _;
use std::os::fd::AsFd;
use std::time::{Duration, SystemTime};

use driver_core::{Parameters, Source};
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::id::{SnapshotDir, VolumeDir};

/// The name of the attribute.
pub(crate) const ATTRIBUTE: &str = "user.omnibus-csi";
/// The form of records that this release writes.
const VERSION: u32 = 1;
/// No record is longer; ext4 keeps 4 KiB for all attributes of a file.
const MAX_RECORD: usize = 2048;
/// Keys that the provisioner adds of its own accord and that may differ between retries.
const CALLERS_OWN: &str = "csi.storage.k8s.io/";

/// What is remembered about a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VolumeRecord {
    pub(crate) capacity: u64,
    pub(crate) source: Option<Source>,
    pub(crate) parameters: String,
    pub(crate) created: SystemTime,
}

/// What is remembered about a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SnapshotRecord {
    pub(crate) name: String,
    pub(crate) source: VolumeDir,
    pub(crate) size: u64,
    pub(crate) created: SystemTime,
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "lowercase")]
enum Written {
    Volume {
        v: u32,
        capacity: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        volume: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        snapshot: Option<String>,
        parameters: String,
        created: u64,
    },
    Snapshot {
        v: u32,
        name: String,
        volume: String,
        size: u64,
        created: u64,
    },
}

/// A digest of the parameters that describe a volume; equal for equal wishes.
pub(crate) fn digest(parameters: &Parameters) -> String {
    let mut hash = Sha256::new();
    let own = |key: &str| key.starts_with(CALLERS_OWN);
    for (key, value) in parameters.raw().iter().filter(|(key, _)| !own(key)) {
        for text in [key, value] {
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text.as_bytes());
        }
    }
    let half = &hash.finalize()[..16];
    half.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
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
        Self::parse(&read(dir)?)
    }

    pub(crate) fn write(&self, dir: impl AsFd) -> Result<bool, Errno> {
        write(dir, &self.text())
    }

    fn text(&self) -> Vec<u8> {
        let (volume, snapshot) = match &self.source {
            Some(Source::Volume(id)) => (Some(id.as_str().to_owned()), None),
            Some(Source::Snapshot(id)) => (
                None,
                SnapshotDir::parse(id)
                    .ok()
                    .map(|dir| dir.as_str().to_owned()),
            ),
            None => (None, None),
        };
        to_text(&Written::Volume {
            v: VERSION,
            capacity: self.capacity,
            volume,
            snapshot,
            parameters: self.parameters.clone(),
            created: to_nanos(self.created),
        })
    }

    fn parse(text: &[u8]) -> Option<Self> {
        let Written::Volume {
            v: VERSION,
            capacity,
            volume,
            snapshot,
            parameters,
            created,
        } = serde_json::from_slice(text).ok()?
        else {
            return None;
        };
        let source = match (volume, snapshot) {
            (None, None) => None,
            (Some(volume), None) => Some(Source::Volume(VolumeDir::new(&volume)?.id())),
            (None, Some(snapshot)) => Some(Source::Snapshot(SnapshotDir::new(&snapshot)?.id())),
            (Some(_), Some(_)) => return None,
        };
        Some(Self {
            capacity: size(capacity)?,
            source,
            parameters,
            created: from_nanos(created),
        })
    }
}

// === impl SnapshotRecord ===

impl SnapshotRecord {
    pub(crate) fn read(dir: impl AsFd) -> Option<Self> {
        Self::parse(&read(dir)?)
    }

    pub(crate) fn write(&self, dir: impl AsFd) -> Result<bool, Errno> {
        write(dir, &self.text())
    }

    fn text(&self) -> Vec<u8> {
        to_text(&Written::Snapshot {
            v: VERSION,
            name: self.name.clone(),
            volume: self.source.as_str().to_owned(),
            size: self.size,
            created: to_nanos(self.created),
        })
    }

    fn parse(text: &[u8]) -> Option<Self> {
        let Written::Snapshot {
            v: VERSION,
            name,
            volume,
            size: bytes,
            created,
        } = serde_json::from_slice(text).ok()?
        else {
            return None;
        };
        Some(Self {
            name,
            source: VolumeDir::new(&volume)?,
            size: size(bytes)?,
            created: from_nanos(created),
        })
    }
}

fn to_text(written: &Written) -> Vec<u8> {
    serde_json::to_vec(written).expect("text and numbers only")
}

fn read(dir: impl AsFd) -> Option<Vec<u8>> {
    let mut buffer = [0_u8; MAX_RECORD];
    let length = rustix::fs::fgetxattr(dir, ATTRIBUTE, &mut buffer[..]).ok()?;
    Some(buffer[..length].to_vec())
}

/// Whether the filesystem could keep it; one without extended attributes cannot, and objects on it
/// are served like those of democratic-csi.
fn write(dir: impl AsFd, text: &[u8]) -> Result<bool, Errno> {
    match rustix::fs::fsetxattr(dir, ATTRIBUTE, text, XattrFlags::empty()) {
        Ok(()) => Ok(true),
        Err(Errno::OPNOTSUPP) => Ok(false),
        Err(errno) => Err(errno),
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
        ] {
            let record = VolumeRecord {
                capacity: 5,
                source,
                parameters: digest(&parameters(&[])),
                created,
            };
            assert_eq!(VolumeRecord::parse(&record.text()), Some(record.clone()));
            assert_eq!(SnapshotRecord::parse(&record.text()), None);
        }
        let record = SnapshotRecord {
            name: "s:1".into(),
            source: volume,
            size: 7,
            created,
        };
        assert_eq!(SnapshotRecord::parse(&record.text()), Some(record));
    }

    #[test]
    fn a_record_that_a_pod_forged_is_no_record() {
        let good = r#"{"is":"volume","v":1,"capacity":1,"parameters":"x","created":0}"#;
        assert!(VolumeRecord::parse(good.as_bytes()).is_some());
        for (from, to) in [
            ("\"v\":1", "\"v\":2"),
            ("\"capacity\":1", "\"capacity\":-1"),
            ("\"capacity\":1", "\"capacity\":9223372036854775808"),
            ("\"created\":0", "\"created\":0,\"volume\":\"../s\""),
            ("\"created\":0", "\"created\":0,\"snapshot\":\"/etc\""),
            (
                "\"created\":0",
                "\"created\":0,\"snapshot\":\"a-b\",\"volume\":\"a\"",
            ),
            ("}", ""),
        ] {
            let forged = good.replace(from, to);
            assert_eq!(VolumeRecord::parse(forged.as_bytes()), None, "{forged}");
        }
    }

    #[test]
    fn the_digest_ignores_what_the_provisioner_adds_and_nothing_else() {
        let plain = digest(&parameters(&[("a", "b")]));
        let added = parameters(&[("a", "b"), ("csi.storage.k8s.io/pvc/name", "claim")]);
        assert_eq!(digest(&added), plain);
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
        fn no_bytes_make_reading_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = VolumeRecord::parse(&bytes);
            let _ = SnapshotRecord::parse(&bytes);
        }
    }
}
