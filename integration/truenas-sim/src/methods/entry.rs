//! Datasets and snapshots as the API shows them.

use serde_json::{Map, Value, json};

use crate::Generation;
use crate::backend::{Dataset, Kind, Property, Snapshot, Source};

/// The name of the API, the name in ZFS, and how the value is read.
pub(super) const PROPERTIES: [(&str, &str, Read); 35] = [
    ("aclmode", "aclmode", Read::Word),
    ("acltype", "acltype", Read::Word),
    ("atime", "atime", Read::Switch),
    ("available", "available", Read::Bytes),
    ("casesensitivity", "casesensitivity", Read::Word),
    ("checksum", "checksum", Read::Word),
    ("compression", "compression", Read::Word),
    ("compressratio", "compressratio", Read::Text),
    ("copies", "copies", Read::Number),
    ("creation", "creation", Read::Date),
    ("deduplication", "dedup", Read::Word),
    ("encryption_algorithm", "encryption", Read::Word),
    ("exec", "exec", Read::Switch),
    ("key_format", "keyformat", Read::Word),
    ("mountpoint", "mountpoint", Read::Text),
    ("origin", "origin", Read::Text),
    ("pbkdf2iters", "pbkdf2iters", Read::Text),
    ("quota", "quota", Read::Limit),
    ("readonly", "readonly", Read::Switch),
    ("recordsize", "recordsize", Read::Bytes),
    ("refquota", "refquota", Read::Limit),
    ("refreservation", "refreservation", Read::Limit),
    ("reservation", "reservation", Read::Limit),
    ("snapdev", "snapdev", Read::Word),
    ("snapdir", "snapdir", Read::Word),
    (
        "special_small_block_size",
        "special_small_blocks",
        Read::Text,
    ),
    ("sync", "sync", Read::Word),
    ("used", "used", Read::Bytes),
    ("usedbychildren", "usedbychildren", Read::Bytes),
    ("usedbydataset", "usedbydataset", Read::Bytes),
    ("usedbyrefreservation", "usedbyrefreservation", Read::Bytes),
    ("usedbysnapshots", "usedbysnapshots", Read::Bytes),
    ("volblocksize", "volblocksize", Read::Bytes),
    ("volsize", "volsize", Read::Bytes),
    ("xattr", "xattr", Read::Switch),
];

/// Properties of the API that are user properties in ZFS.
pub(super) const KEPT_AS_USER: [(&str, &str); 6] = [
    ("comments", "org.freenas:description"),
    ("managedby", "org.truenas:managedby"),
    ("quota_warning", "org.freenas:quota_warning"),
    ("quota_critical", "org.freenas:quota_critical"),
    ("refquota_warning", "org.freenas:refquota_warning"),
    ("refquota_critical", "org.freenas:refquota_critical"),
];

/// The way a raw value becomes `parsed` and `value`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Read {
    Text,
    /// Shown in capitals.
    Word,
    /// `on` and `off` are true and false, and any other word is nothing.
    Switch,
    Number,
    Bytes,
    /// 0 is none.
    Limit,
    Date,
}

/// Options of `pool.dataset.query` below `extra`.
pub(super) struct Wanted {
    /// `None`: all of them.
    pub(super) properties: Option<Vec<String>>,
    pub(super) user_properties: bool,
}

pub(super) fn source(source: &Source) -> &'static str {
    match source {
        Source::Local => "LOCAL",
        Source::Default => "DEFAULT",
        Source::Inherited(_) => "INHERITED",
        Source::None => "NONE",
    }
}

/// `1073741824` is `1G`, as `zfs get` prints it.
pub(super) fn short_size(bytes: u64) -> String {
    let units = ["B", "K", "M", "G", "T", "P"];
    let mut unit = 0;
    let mut size = bytes;
    while unit + 1 < units.len() && size >= 1024 && size.is_multiple_of(1024) {
        size /= 1024;
        unit += 1;
    }
    format!("{size}{}", units[unit])
}

fn shown(property: &Property, read: Read) -> Value {
    let raw = property.raw.as_str();
    let number = raw.parse::<u64>().ok();
    let (parsed, value) = match read {
        Read::Text => (json!(raw), json!(raw)),
        Read::Word => (json!(raw), json!(raw.to_uppercase())),
        Read::Switch => {
            let is_on = ["on", "off"].contains(&raw).then_some(raw == "on");
            (json!(is_on), json!(raw.to_uppercase()))
        }
        Read::Number => (json!(number), json!(raw)),
        Read::Limit if number == Some(0) => (Value::Null, Value::Null),
        Read::Bytes | Read::Limit => (json!(number), json!(number.map(short_size))),
        Read::Date => (
            json!({"$date": number.unwrap_or_default() * 1000}),
            json!(raw),
        ),
    };
    let info = match &property.source {
        Source::Inherited(from) => json!(from),
        _ => Value::Null,
    };
    json!({"parsed": parsed, "rawvalue": raw, "value": value, "source": source(&property.source), "source_info": info})
}

/// An entry of `pool.dataset.query`, without children.
pub(super) fn dataset(generation: Generation, dataset: &Dataset, wanted: &Wanted) -> Value {
    let asked = |name: &str| {
        wanted
            .properties
            .as_ref()
            .is_none_or(|list| list.iter().any(|each| each == name))
    };
    let mut entry = Map::new();
    for (name, zfs, read) in PROPERTIES {
        // The ZFS of 26 has it for zvols, too, and the middleware of 26 reads it as a number.
        let is_of_26 = zfs == "special_small_blocks";
        if is_of_26 && dataset.kind == Kind::Volume && !generation.is_26() {
            continue;
        }
        let read = if is_of_26 && generation.is_26() {
            Read::Number
        } else {
            read
        };
        if let Some(property) = dataset.properties.get(zfs).filter(|_| asked(zfs)) {
            entry.insert(name.to_owned(), shown(property, read));
        }
    }
    for (name, key) in KEPT_AS_USER {
        if let Some(property) = dataset.user.get(key).filter(|_| asked(name)) {
            entry.insert(name.to_owned(), shown(property, Read::Text));
        }
    }
    entry.insert("id".to_owned(), json!(dataset.name));
    entry.insert("name".to_owned(), json!(dataset.name));
    entry.insert("pool".to_owned(), json!(dataset.pool()));
    entry.insert(
        "type".to_owned(),
        json!(if dataset.kind == Kind::Volume {
            "VOLUME"
        } else {
            "FILESYSTEM"
        }),
    );
    let mounted = dataset.kind == Kind::Filesystem;
    entry.insert(
        "mountpoint".to_owned(),
        if mounted {
            json!(format!("/mnt/{}", dataset.name))
        } else {
            Value::Null
        },
    );
    entry.insert("children".to_owned(), json!([]));
    if generation.is_26() {
        entry.insert("tier".to_owned(), Value::Null);
    }
    // Read of 26: with a list of properties these four come only if their properties are in it.
    if !generation.is_26()
        || ["encryption", "keyformat", "encryptionroot", "keystatus"]
            .into_iter()
            .all(asked)
    {
        let root = dataset.raw("encryptionroot");
        entry.insert("encrypted".to_owned(), json!(!root.is_empty()));
        entry.insert(
            "encryption_root".to_owned(),
            if root.is_empty() {
                Value::Null
            } else {
                json!(root)
            },
        );
        entry.insert(
            "key_loaded".to_owned(),
            json!(!root.is_empty() && !dataset.locked()),
        );
        entry.insert("locked".to_owned(), json!(dataset.locked()));
    }
    if wanted.user_properties && !generation.is_core() {
        entry.insert(
            "user_properties".to_owned(),
            user_properties(generation, dataset),
        );
    }
    Value::Object(entry)
}

fn user_properties(generation: Generation, dataset: &Dataset) -> Value {
    let own = |key: &String| !KEPT_AS_USER.iter().any(|(_, kept)| kept == key);
    let show = |(key, property): (&String, &Property)| {
        // 25.10 and 26 say LOCAL even of what is inherited.
        let source = if generation >= Generation::V25_10 {
            "LOCAL"
        } else {
            source(&property.source)
        };
        let raw = &property.raw;
        (
            key.clone(),
            json!({"value": raw, "rawvalue": raw, "parsed": raw, "source": source}),
        )
    };
    Value::Object(
        dataset
            .user
            .iter()
            .filter(|(key, _)| own(key))
            .map(show)
            .collect(),
    )
}

/// An entry of `pool.snapshot.query` and its predecessors.
pub(super) fn snapshot(
    generation: Generation,
    snapshot: &Snapshot,
    holds: bool,
    properties: bool,
) -> Value {
    let mut entry = bare_snapshot(snapshot);
    entry["properties"] = if properties {
        snapshot_properties(snapshot, None, !generation.is_26())
    } else {
        json!({})
    };
    if holds {
        entry["holds"] = snapshot
            .holds
            .keys()
            .map(|tag| (tag.clone(), json!(1)))
            .collect::<Map<_, _>>()
            .into();
    }
    entry
}

fn bare_snapshot(snapshot: &Snapshot) -> Value {
    let (dataset, name) = snapshot.name.split_once('@').unwrap_or_default();
    json!({
        "id": snapshot.name,
        "name": snapshot.name,
        "pool": dataset.split('/').next(),
        "dataset": dataset,
        "snapshot_name": name,
        "type": "SNAPSHOT",
        "createtxg": snapshot.createtxg.to_string(),
    })
}

/// Native properties, all or the named ones, and user properties.
fn snapshot_properties(snapshot: &Snapshot, wanted: Option<&[String]>, user: bool) -> Value {
    let asked = |name: &str| wanted.is_none_or(|list| list.iter().any(|each| each == name));
    let mut properties = Map::new();
    for (key, property) in snapshot.properties.iter().filter(|(key, _)| asked(key)) {
        let read = match key.as_str() {
            "used" | "referenced" | "volsize" => Read::Bytes,
            "creation" => Read::Date,
            _ => Read::Text,
        };
        let mut value = shown(property, read);
        if let Value::Object(fields) = &mut value {
            fields.remove("source_info");
        }
        properties.insert(key.clone(), value);
    }
    for (key, raw) in snapshot.user.iter().filter(|_| user) {
        let value = json!({"value": raw, "rawvalue": raw, "parsed": raw, "source": "INHERITED"});
        properties.insert(key.clone(), value);
    }
    Value::Object(properties)
}

/// An item of `snapshots` of a dataset. `None` asks for all properties.
///
/// Up to 25.04 (py-libzfs) `name` always comes with the others, and all user properties, but nothing at all where
/// only `name` and `createtxg` are asked for. From 25.10 on there are native properties only.
pub(super) fn snapshot_of_dataset(
    generation: Generation,
    snapshot: &Snapshot,
    wanted: Option<&[String]>,
) -> Value {
    let mut entry = bare_snapshot(snapshot);
    let old = generation < Generation::V25_10;
    let simple = |list: &[String]| {
        let free = |name: &String| old && (name == "name" || name == "createtxg");
        list.iter().all(free)
    };
    if wanted.is_some_and(simple) {
        return entry;
    }
    let mut properties = snapshot_properties(snapshot, wanted, old);
    if old || wanted.is_none_or(|list| list.iter().any(|each| each == "name")) {
        let name = &snapshot.name;
        properties["name"] =
            json!({"value": name, "rawvalue": name, "parsed": name, "source": "NONE"});
    }
    entry["properties"] = properties;
    entry
}
