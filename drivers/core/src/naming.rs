//! Names to ids: which volume and which snapshot a name means, for ever.
//!
//! An id is a pure function of name, parameters and configuration. What democratic-csi accepts
//! gives the same id here; what it refuses is mapped to an id of its own. compat: "Identifiers".

use std::fmt::Write as _;

use crc::{CRC_8_SMBUS, CRC_16_ARC, CRC_32_ISO_HDLC, Crc};
use md5::{Digest, Md5};
use serde::Serialize;
use sha2::Sha256;

use crate::config::{CommonConfig, IdHash};
use crate::error::Error;
use crate::parameters::Parameters;
use crate::template::Template;
use crate::text::{MAX_STRING, SnapshotName, VolumeId, VolumeName};

/// Stands between what is left of a name and its hash.
const MARK: &str = "-x-";
/// Hexadecimal digits of that hash: 128 bits, so that nobody finds two names with one id.
const DIGITS: usize = 32;
/// The least room that [`snapshot_leaf`] needs: a letter, the mark and the hash.
pub const MIN_LEAF: usize = 1 + MARK.len() + DIGITS;

/// How volumes of one connection get their ids.
#[derive(Debug, Clone)]
pub struct VolumeNaming {
    template: Option<Template>,
    hash: Option<IdHash>,
    limit: usize,
}

/// What a template for ids sees.
#[derive(Serialize)]
struct NameData<'a> {
    name: &'a str,
    parameters: &'a std::collections::BTreeMap<String, String>,
}

// === impl VolumeNaming ===

impl VolumeNaming {
    /// The naming that a configuration asks for.
    pub fn new(config: &CommonConfig) -> Self {
        let volume = &config.private.csi.volume;
        Self {
            template: volume.id_template.clone(),
            hash: volume.id_hash.strategy,
            limit: MAX_STRING,
        }
    }

    /// Ids of at most `limit` bytes, for drivers and handles with less room than the specification
    /// gives. Less than [`MIN_LEAF`] counts as that.
    #[must_use]
    pub fn at_most(mut self, limit: usize) -> Self {
        self.limit = limit.clamp(MIN_LEAF, MAX_STRING);
        self
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
}

const ADVICE: &str = "see _private.csi.volume.idTemplate in the configuration";

/// A template that gives nothing.
#[derive(Debug, thiserror::Error)]
#[error("the id template gives an empty id")]
struct EmptyId;

/// The last part of the id of a snapshot: its name, as it is if that can be.
///
/// `max` is the room that is left beside the id of the volume, at least [`MIN_LEAF`].
pub fn snapshot_leaf(name: &SnapshotName, max: usize) -> String {
    let word = |c: char| c.is_ascii_alphanumeric() || "_-:.+".contains(c);
    let name = name.as_str();
    if matches!(name, "." | "..") {
        mapped(name, word, max)
    } else {
        fitted(name, word, max)
    }
}

/// `text` itself if it is plain and short enough, or else mapped. Text that looks as if it had been
/// mapped is mapped too: otherwise two names could have one id.
fn fitted(text: &str, word: impl Fn(char) -> bool, max: usize) -> String {
    if text.len() <= max && text.chars().all(&word) && !looks_mapped(text) {
        text.to_owned()
    } else {
        mapped(text, word, max)
    }
}

/// What can be kept of `text`, and a hash of all of it.
fn mapped(text: &str, word: impl Fn(char) -> bool, max: usize) -> String {
    let room = max.max(MIN_LEAF) - MARK.len() - DIGITS;
    let kept: String = text
        .chars()
        .map(|c| if word(c) { c } else { '-' })
        .skip_while(|c| !c.is_ascii_alphanumeric())
        .take(room)
        .collect();
    let kept = kept.trim_end_matches('-');
    let mut id = String::with_capacity(max);
    id.push_str(if kept.is_empty() { "n" } else { kept });
    id.push_str(MARK);
    push_hex(&mut id, &Sha256::digest(text)[..DIGITS / 2]);
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
        IdHash::Md5 => {
            let mut id = String::with_capacity(32);
            push_hex(&mut id, &Md5::digest(bytes));
            id
        }
        IdHash::Crc8 => Crc::<u8>::new(&CRC_8_SMBUS).checksum(bytes).to_string(),
        IdHash::Crc16 => Crc::<u16>::new(&CRC_16_ARC).checksum(bytes).to_string(),
        IdHash::Crc32 => Crc::<u32>::new(&CRC_32_ISO_HDLC)
            .checksum(bytes)
            .to_string(),
    }
}

fn push_hex(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
}
