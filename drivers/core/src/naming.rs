//! Maps names to ids of volumes and snapshots. The mapping is stable.
//!
//! An id is a pure function of name, parameters and configuration. A name that democratic-csi
//! accepts has the same id here; any other is mapped to an id of its own. The one exception is a
//! name that ends like a mapped one, see `fitted`. compat: "Identifiers".

use crc::{CRC_8_SMBUS, CRC_16_ARC, CRC_32_ISO_HDLC, Crc};
use csi_types::hex;
use md5::{Digest, Md5};
use serde::Serialize;
use sha2::Sha256;

use crate::config::{CommonConfig, IdHash};
use crate::error::Error;
use crate::parameters::Parameters;
use crate::template::Template;
use crate::text::{MAX_STRING, SnapshotName, VolumeId, VolumeName};

/// The separator between the rest of a name and its hash.
const MARK: &str = "-x-";
/// Hexadecimal digits of that hash: 128 bits, so that collisions cannot be found.
const DIGITS: usize = 32;
/// The least space that [`snapshot_leaf`] needs: a letter, the separator and the hash.
pub const MIN_LEAF: usize = 1 + MARK.len() + DIGITS;

/// The way ids of the volumes of one connection are made.
#[derive(Debug, Clone)]
pub struct VolumeNaming {
    template: Option<Template>,
    hash: Option<IdHash>,
    limit: usize,
}

/// The variables of a template for ids.
#[derive(Serialize)]
struct NameData<'a> {
    name: &'a str,
    parameters: &'a std::collections::BTreeMap<String, String>,
}

// === impl VolumeNaming ===

impl VolumeNaming {
    /// The naming of a configuration.
    pub fn new(config: &CommonConfig) -> Self {
        let volume = &config.private.csi.volume;
        Self {
            template: volume.id_template.clone(),
            hash: volume.id_hash.strategy,
            limit: config.id_room.bytes(),
        }
        .at_most(MAX_STRING)
    }

    /// Ids of at most `limit` bytes, for drivers and handles with less space than the specification
    /// allows. Less than [`MIN_LEAF`] counts as [`MIN_LEAF`].
    #[must_use]
    pub fn at_most(mut self, limit: usize) -> Self {
        self.limit = limit.min(self.limit).clamp(MIN_LEAF, MAX_STRING);
        self
    }

    /// Ids that leave this many bytes for what comes before them.
    #[must_use]
    pub fn behind(self, taken: usize) -> Self {
        let limit = self.limit.saturating_sub(taken);
        self.at_most(limit)
    }

    /// The id of the volume of this name.
    pub fn volume_id(&self, name: &VolumeName, parameters: &Parameters) -> Result<VolumeId, Error> {
        let refused = || Error::invalid(format!("name volume `{}`", name.as_str().escape_debug()));
        let mut id = name.as_str().to_owned();
        if let Some(template) = &self.template {
            let data = NameData {
                name: name.as_str(),
                parameters: parameters.raw(),
            };
            id = template
                .render(&data)
                .map_err(|error| refused().because(error).advise(ADVICE))?;
            if id.is_empty() {
                return Err(refused().because(EmptyId).advise(ADVICE));
            }
        }
        if let Some(hash) = self.hash {
            id = hashed(hash, &id);
        }
        let first = |c: char| c.is_ascii_alphanumeric();
        let word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        let id = if id.starts_with(first) {
            fitted(&id, word, self.limit)
        } else {
            mapped(&id, word, self.limit)
        };
        VolumeId::parse(&id).map_err(|error| refused().because(error))
    }

    /// The same for backends that do not accept all characters of an id: one that contains one of
    /// `banned` is mapped.
    pub fn volume_id_without(
        &self,
        name: &VolumeName,
        parameters: &Parameters,
        banned: &str,
    ) -> Result<VolumeId, Error> {
        let id = self.volume_id(name, parameters)?;
        let is_plain = |c: char| !banned.contains(c);
        if id.as_str().chars().all(is_plain) {
            return Ok(id);
        }
        let word = |c: char| is_plain(c) && (c.is_ascii_alphanumeric() || matches!(c, '_' | '-'));
        let mapped = mapped(id.as_str(), word, self.limit);
        VolumeId::parse(&mapped)
            .map_err(|error| Error::invalid(format!("name volume `{id}`")).because(error))
    }
}

const ADVICE: &str = "see _private.csi.volume.idTemplate in the configuration";

/// A template with an empty result.
#[derive(Debug, thiserror::Error)]
#[error("the id template gives an empty id")]
struct EmptyId;

/// The last part of the id of a snapshot: its name, unchanged if possible.
///
/// `max` is the space left next to the id of the volume. Less than [`MIN_LEAF`] counts as
/// [`MIN_LEAF`]: a caller that may have less must check first.
pub fn snapshot_leaf(name: &SnapshotName, max: usize) -> String {
    snapshot_leaf_without(name, max, "")
}

/// The same for backends that do not accept all of these characters: a name that contains one of
/// `banned` is mapped.
pub fn snapshot_leaf_without(name: &SnapshotName, max: usize, banned: &str) -> String {
    let max = max.max(MIN_LEAF);
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-:.+".contains(c);
    let word = |c: char| plain(c) && !banned.contains(c);
    let name = name.as_str();
    if matches!(name, "." | "..") {
        mapped(name, word, max)
    } else {
        fitted(name, word, max)
    }
}

/// `text` itself if it is plain and short enough, or else mapped. Text that looks mapped is mapped
/// too: otherwise a user who knows a name could choose another one with the same id. Existing
/// volumes are addressed by their ids and not affected; a creation by such a name (repeated, or to
/// find a retained volume again) makes another volume than with democratic-csi.
fn fitted(text: &str, word: impl Fn(char) -> bool, max: usize) -> String {
    if text.len() <= max && text.chars().all(&word) && !looks_mapped(text) {
        text.to_owned()
    } else {
        mapped(text, word, max)
    }
}

/// `text`, of which all characters may be used, or as much of it as fits into `max` with a hash of all of it. Less than
/// [`MIN_LEAF`] counts as [`MIN_LEAF`].
pub fn shortened(text: &str, max: usize) -> String {
    let max = max.max(MIN_LEAF);
    if text.len() <= max {
        text.to_owned()
    } else {
        mapped(text, |_| true, max)
    }
}

/// The usable part of `text`, and a hash of all of it. `max` is at least [`MIN_LEAF`].
fn mapped(text: &str, word: impl Fn(char) -> bool, max: usize) -> String {
    let room = max - MARK.len() - DIGITS;
    let kept: String = text
        .chars()
        .map(|c| if word(c) { c } else { '-' })
        .skip_while(|c| !c.is_ascii_alphanumeric())
        .take(room)
        .collect();
    let kept = kept.trim_end_matches('-');
    let kept = if kept.is_empty() { "n" } else { kept };
    // As long as the id, not as `max`: a caller may pass any number.
    let mut id = String::with_capacity(kept.len() + MARK.len() + DIGITS);
    id.push_str(kept);
    id.push_str(MARK);
    id.push_str(&hex(&Sha256::digest(text)[..DIGITS / 2]));
    id
}

fn looks_mapped(text: &str) -> bool {
    let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    text.len()
        .checked_sub(DIGITS)
        .and_then(|at| text.split_at_checked(at))
        .is_some_and(|(start, end)| start.ends_with(MARK) && end.bytes().all(hex))
}

fn hashed(hash: IdHash, text: &str) -> String {
    let bytes = text.as_bytes();
    match hash {
        IdHash::Md5 => hex(&Md5::digest(bytes)),
        IdHash::Crc8 => Crc::<u8>::new(&CRC_8_SMBUS).checksum(bytes).to_string(),
        IdHash::Crc16 => Crc::<u16>::new(&CRC_16_ARC).checksum(bytes).to_string(),
        IdHash::Crc32 => Crc::<u32>::new(&CRC_32_ISO_HDLC)
            .checksum(bytes)
            .to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashSet};

    use proptest::prelude::*;

    use super::*;
    use crate::config::{Document, NoEnvironment};
    use crate::error::Kind;

    fn naming(volume: &str) -> VolumeNaming {
        let text = format!("driver: d\n_private: {{csi: {{volume: {{{volume}}}}}}}\n");
        let document = Document::parse(&text, &NoEnvironment).unwrap();
        VolumeNaming::new(&document.common().unwrap())
    }

    fn id(naming: &VolumeNaming, name: &str) -> Result<String, Error> {
        let parameters = Parameters::new(BTreeMap::from([("a".to_owned(), "A".to_owned())]));
        let name = VolumeName::parse(name).unwrap();
        naming
            .volume_id(&name, &parameters)
            .map(|id| id.as_str().to_owned())
    }

    #[test]
    fn plain_names_are_ids_up_to_the_limit_of_the_specification() {
        let naming = naming("");
        for name in ["pvc-1", "a", "0_-", &"n".repeat(128)] {
            assert_eq!(id(&naming, name).unwrap(), name);
        }
    }

    #[test]
    fn hashes_are_those_of_democratic_csi() {
        for (strategy, expected) in [
            ("md5", "e9978977b7ad869bd02d5ffb0407afc1"),
            ("CRC8", "112"),
            ("Crc16", "6519"),
            ("crc32", "1254213438"),
        ] {
            let naming = naming(&format!("idHash: {{strategy: {strategy}}}"));
            assert_eq!(id(&naming, "pvc-1").unwrap(), expected);
        }
    }

    #[test]
    fn a_template_comes_before_the_hash_and_an_empty_result_is_refused() {
        let template = "idTemplate: '{{parameters.a}}-{{name}}'";
        assert_eq!(id(&naming(template), "x").unwrap(), "A-x");
        let both = naming("idTemplate: 'pvc-1{{parameters.none}}', idHash: {strategy: crc8}");
        assert_eq!(id(&both, "x").unwrap(), "112");
        let error = id(&naming("idTemplate: '{{parameters.none}}'"), "x").unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid);
        assert!(error.chain().contains("idTemplate"), "{}", error.chain());
    }

    #[test]
    fn mapped_names_keep_what_can_be_read_and_are_pinned_for_ever() {
        let naming = naming("");
        for (name, expected) in [
            ("job[0]", "job-0-x-a569039e8613acae235addc9b99a99fe"),
            ("-pvc", "pvc-x-041915e4d2e5a90d1db0aa89a85d7cd2"),
            ("\u{e9}", "n-x-4a99557e4033c3539de2eb65472017ca"),
        ] {
            assert_eq!(id(&naming, name).unwrap(), expected);
        }
    }

    #[test]
    fn a_name_that_looks_mapped_cannot_take_the_id_of_another() {
        let naming = naming("");
        let first = id(&naming, "job[0]").unwrap();
        assert_ne!(id(&naming, &first).unwrap(), first);
    }

    #[test]
    fn snapshot_names_have_their_own_alphabet_and_a_room() {
        let leaf = |name: &str, max| snapshot_leaf(&SnapshotName::parse(name).unwrap(), max);
        for name in ["a.b:c+d_e-f", "-x", &"s".repeat(100)] {
            assert_eq!(leaf(name, 100), name);
        }
        for name in ["a/b", "..", ".", "a b", &"s".repeat(101)] {
            let leaf = leaf(name, 100);
            assert_ne!(leaf, *name);
            assert!(leaf.len() <= 100 && !leaf.contains(['/', ' ']));
        }
        assert!(leaf("a/b", usize::MAX).starts_with("a-b-x-"));
        for max in 0..=MIN_LEAF {
            assert_eq!(leaf(&"s".repeat(101), max).len(), MIN_LEAF);
            assert_eq!(leaf(&"s".repeat(MIN_LEAF), max), "s".repeat(MIN_LEAF));
        }
    }

    #[test]
    fn ids_fit_a_narrower_limit() {
        let naming = naming("").at_most(60);
        assert_eq!(id(&naming, &"n".repeat(60)).unwrap(), "n".repeat(60));
        assert_eq!(id(&naming, &"n".repeat(61)).unwrap().len(), 60);
        let behind = naming.behind(10);
        assert_eq!(id(&behind, &"n".repeat(50)).unwrap(), "n".repeat(50));
        assert_eq!(id(&behind, &"n".repeat(51)).unwrap().len(), 50);
    }

    proptest! {
        #[test]
        fn every_name_has_one_id_of_its_own_within_the_alphabet(
            names in proptest::collection::hash_set("[a-b\\[ é\t/._-]{1,6}|\\PC{1,40}", 1..20),
            limit in 0usize..200,
        ) {
            let naming = naming("").at_most(limit);
            let mut ids = HashSet::new();
            for name in names.iter().filter(|name| VolumeName::parse(name).is_ok()) {
                let id = id(&naming, name).unwrap();
                prop_assert!(id.len() <= limit.clamp(MIN_LEAF, 128));
                prop_assert!(id.starts_with(|c: char| c.is_ascii_alphanumeric()));
                prop_assert!(id.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c)));
                prop_assert!(ids.insert(id));
            }
        }
    }
}
