//! Properties of ZFS in the spelling of the API, and back.

use driver_zfs::property::{Property, PropertyName};
use serde_json::{Map, Value, json};

/// Names that the API has for properties of ZFS, where they differ.
const RENAMED: [(&str, &str); 3] = [
    ("dedup", "deduplication"),
    ("special_small_blocks", "special_small_block_size"),
    ("org.freenas:description", "comments"),
];

/// The properties that the API takes as a number of bytes, or of something else.
const NUMBERS: [&str; 9] = [
    "quota",
    "refquota",
    "reservation",
    "refreservation",
    "copies",
    "special_small_block_size",
    "quota_warning",
    "quota_critical",
    "volsize",
];

/// The properties that the API takes as a text, as it is.
const TEXTS: [&str; 2] = ["comments", "managedby"];

/// The properties that the API takes as a word in capitals.
const WORDS: [&str; 15] = [
    "aclmode",
    "acltype",
    "atime",
    "casesensitivity",
    "checksum",
    "compression",
    "deduplication",
    "exec",
    "readonly",
    "recordsize",
    "snapdev",
    "snapdir",
    "sync",
    "xattr",
    "share_type",
];

/// The properties of a dataset for the API, those of users apart.
#[derive(Debug, Default)]
pub(crate) struct Spelled {
    /// Native ones.
    pub(crate) native: Map<String, Value>,
    /// Those of users.
    pub(crate) user: std::collections::BTreeMap<String, String>,
}

/// Why a property cannot be set.
#[derive(Debug, thiserror::Error)]
#[error("the API of TrueNAS sets no property `{0}`, or not to this value")]
pub(crate) struct Unknown(pub(crate) PropertyName);

/// The name of the API.
pub(crate) fn api_name(name: &str) -> &str {
    let renamed = RENAMED.iter().find(|(zfs, _)| *zfs == name);
    renamed.map_or(name, |(_, api)| api)
}

/// The name of ZFS.
pub(crate) fn zfs_name(name: &str) -> &str {
    let renamed = RENAMED.iter().find(|(_, api)| *api == name);
    renamed.map_or(name, |(zfs, _)| zfs)
}

/// Spells properties for the API.
pub(crate) fn spelled<'a>(
    properties: impl IntoIterator<Item = &'a Property>,
) -> Result<Spelled, Unknown> {
    let mut all = Spelled::default();
    for property in properties {
        let (name, text) = (property.name.as_str(), property.value.as_str());
        let api = api_name(name);
        if property.name.is_user() && api == name {
            all.user.insert(name.to_owned(), text.to_owned());
        } else if property.name == PropertyName::CANMOUNT {
            // The API mounts everything.
        } else if let Some(value) = value(api, text) {
            all.native.insert(api.to_owned(), value);
        } else {
            return Err(Unknown(property.name.clone()));
        }
    }
    Ok(all)
}

fn value(name: &str, text: &str) -> Option<Value> {
    if NUMBERS.contains(&name) {
        let number = if text.eq_ignore_ascii_case("none") {
            Some(0)
        } else {
            bytes(text)
        };
        return number.map(Value::from);
    }
    if TEXTS.contains(&name) {
        return Some(json!(text));
    }
    let word = text.to_ascii_uppercase();
    // What ZFS calls the two kinds of access control lists.
    let word = match (name, word.as_str()) {
        ("acltype", "POSIXACL") => "POSIX".to_owned(),
        ("acltype", "NFSV4ACL") => "NFSV4".to_owned(),
        ("recordsize", digits) if digits.bytes().all(|b| b.is_ascii_digit()) => {
            short(digits.parse().ok()?)
        }
        _ => word,
    };
    WORDS.contains(&name).then(|| json!(word))
}

/// A number with a unit, as people write it.
fn bytes(text: &str) -> Option<u64> {
    let text = text.trim().to_ascii_uppercase();
    let text = text.strip_suffix('B').unwrap_or(&text);
    let (digits, shift) = match text.as_bytes().last()? {
        b'K' => (&text[..text.len() - 1], 10),
        b'M' => (&text[..text.len() - 1], 20),
        b'G' => (&text[..text.len() - 1], 30),
        b'T' => (&text[..text.len() - 1], 40),
        _ => (text, 0),
    };
    let number: u64 = digits.parse().ok()?;
    number.checked_mul(1 << shift)
}

/// The size of blocks, as the API spells it: `512`, `16K`, `1M`.
pub(crate) fn short(bytes: u64) -> String {
    if bytes >= 1 << 20 && bytes.is_multiple_of(1 << 20) {
        format!("{}M", bytes >> 20)
    } else if bytes >= 1 << 10 && bytes.is_multiple_of(1 << 10) {
        format!("{}K", bytes >> 10)
    } else {
        bytes.to_string()
    }
}

#[cfg(test)]
mod tests {
    use driver_zfs::property::PropertyValue;

    use super::*;

    fn one(name: &str, value: &str) -> Result<Spelled, Unknown> {
        let name = PropertyName::parse(name).unwrap();
        spelled([&Property::new(name, PropertyValue::parse(value).unwrap())])
    }

    #[test]
    fn properties_are_spelled_as_the_api_wants_them() {
        for (name, value, api, expected) in [
            ("compression", "lz4", "compression", json!("LZ4")),
            ("dedup", "on", "deduplication", json!("ON")),
            ("deduplication", "OFF", "deduplication", json!("OFF")),
            ("refquota", "1073741824", "refquota", json!(1_u64 << 30)),
            ("quota", "10G", "quota", json!(10_u64 << 30)),
            ("refreservation", "none", "refreservation", json!(0)),
            ("recordsize", "131072", "recordsize", json!("128K")),
            ("acltype", "posixacl", "acltype", json!("POSIX")),
            ("org.freenas:description", "Hi", "comments", json!("Hi")),
        ] {
            assert_eq!(one(name, value).unwrap().native[api], expected, "{name}");
        }
        assert_eq!(one("a:b", "C").unwrap().user["a:b"], "C");
        for (name, value) in [
            ("logbias", "latency"),
            ("mountpoint", "/x"),
            ("quota", "much"),
        ] {
            assert!(one(name, value).is_err(), "{name}");
        }
    }
}
