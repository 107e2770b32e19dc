//! Ids of volumes, the names of their shared folders, and the note in the description of each.
//!
//! DSM takes 32 bytes for a name and 64 for a description (SynologyOpenSource/synology-csi,
//! pkg/models/dsm.go). The note holds the whole id and a digest of what the volume was made of.

use csi_types::hex;
use driver_core::config::CommonConfig;
use driver_core::naming::VolumeNaming;
use driver_core::{Error, Parameters, Source, VolumeId, VolumeName};
use sha2::{Digest, Sha256};

use super::api::Share;

/// The longest name of a shared folder.
pub(super) const LONGEST: usize = 32;
/// The longest id: with the rest of the note within 64 bytes.
const LONGEST_ID: usize = 44;
/// Digits of digests.
const DIGITS: usize = 12;
const MARK: &str = "csi ";
const NONE: &str = "none";
/// Names of shared folders do not tell capital letters apart.
const BANNED: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZ_:.+";

/// The names of volumes.
#[derive(Debug, Clone)]
pub(super) struct ShareNames {
    naming: VolumeNaming,
    prefix: String,
}

/// The text of the description.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Note {
    pub(super) id: VolumeId,
    source: String,
}

fn digest(text: &str) -> String {
    hex(&Sha256::digest(text)[..DIGITS / 2])
}

fn plain(c: char) -> bool {
    c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'
}

// === impl ShareNames ===

impl ShareNames {
    /// `Err` says what is wrong with the prefix.
    pub(super) fn new(prefix: String, common: &CommonConfig) -> Result<Self, String> {
        if prefix.len() > LONGEST - 2 - DIGITS || !prefix.chars().all(plain) {
            return Err("may have 18 letters, digits and dashes at most".to_owned());
        }
        Ok(Self {
            naming: VolumeNaming::new(common).at_most(LONGEST_ID),
            prefix,
        })
    }

    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    pub(super) fn volume_id(
        &self,
        name: &VolumeName,
        parameters: &Parameters,
    ) -> Result<VolumeId, Error> {
        self.naming.volume_id_without(name, parameters, BANNED)
    }

    /// The name of the shared folder: prefix and id, or what fits of them and a digest. `None` for an id
    /// that was never given.
    pub(super) fn share(&self, id: &VolumeId) -> Option<String> {
        let text = id.as_str();
        let given = text.starts_with(|c: char| c.is_ascii_alphanumeric());
        if !given || text.len() > LONGEST_ID || !text.chars().all(plain) {
            return None;
        }
        let whole = format!("{}{text}", self.prefix);
        if whole.len() <= LONGEST {
            return Some(whole);
        }
        let kept = whole[..LONGEST - 1 - DIGITS].trim_end_matches('-');
        Some(format!("{kept}-{}", digest(text)))
    }

    /// The id of the volume of this shared folder, if it is one of ours.
    pub(super) fn id(&self, share: &Share) -> Option<VolumeId> {
        let id = Note::read(&share.desc)?.id;
        let name = self.share(&id)?;
        share.name.eq_ignore_ascii_case(&name).then_some(id)
    }
}

// === impl Note ===

impl Note {
    pub(super) fn read(description: &str) -> Option<Self> {
        let (id, source) = description.strip_prefix(MARK)?.split_once(' ')?;
        Some(Self {
            id: VolumeId::parse(id).ok()?,
            source: source.to_owned(),
        })
    }

    pub(super) fn write(id: &VolumeId, source: Option<&Source>) -> String {
        format!("{MARK}{id} {}", Self::source(source))
    }

    fn source(source: Option<&Source>) -> String {
        match source {
            None => NONE.to_owned(),
            Some(Source::Volume(id)) => digest(&format!("volume {id}")),
            Some(Source::Snapshot(id)) => digest(&format!("snapshot {id}")),
            Some(Source::Elsewhere(source)) => digest(&source.to_string()),
        }
    }

    /// Whether it was made of another volume or a snapshot.
    pub(super) fn is_copy(&self) -> bool {
        self.source != NONE
    }

    /// Whether it was made of that.
    pub(super) fn is_of(&self, source: Option<&Source>) -> bool {
        self.source == Self::source(source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(prefix: &str) -> ShareNames {
        ShareNames::new(prefix.to_owned(), &CommonConfig::default()).expect("a prefix")
    }

    #[test]
    fn names_and_notes_fit_and_tell_volumes_apart() {
        let names = names("k8s-");
        let uuid = |last: char| format!("pvc-f699bc85-3be4-4eb0-9332-020b4714316{last}");
        let mut seen = Vec::new();
        for text in ["a".to_owned(), uuid('1'), uuid('2')] {
            let id = VolumeId::parse(&text).expect("an id");
            let name = names.share(&id).expect("a name");
            assert!(name.len() <= LONGEST && name.starts_with("k8s-"), "{name}");
            assert!(!seen.contains(&name));
            seen.push(name);
            let source = Source::Volume(id.clone());
            let note = Note::write(&id, Some(&source));
            assert!(note.len() <= 64, "{note}");
            let read = Note::read(&note).expect("a note");
            assert!(read.id == id && read.is_of(Some(&source)) && !read.is_of(None));
        }
        for text in ["A", "-a", "a_b", "..", &"a".repeat(LONGEST_ID + 1)] {
            assert_eq!(names.share(&VolumeId::parse(text).expect("an id")), None);
        }
    }
}
