//! `pool.dataset.create`, `.update` and `.delete`.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::entry::{KEPT_AS_USER, PROPERTIES, Read};
use super::{Answer, Call, dataset, plain};
use crate::Generation;
use crate::backend::{Dataset, Destroy, Kind, NewDataset, Problem};
use crate::failure::{EBUSY, EFAULT, ENOTEMPTY, Failure, Invalid};
use crate::rows;

/// `128K` and the like, as both creates and updates take them.
pub(super) fn parse_size(text: &str) -> Option<u64> {
    let text = text
        .strip_suffix('B')
        .filter(|rest| rest.chars().all(|c| c.is_ascii_digit()))
        .unwrap_or(text);
    let (digits, unit) = match text.strip_suffix(['K', 'M', 'G', 'T']) {
        Some(digits) => (digits, &text[digits.len()..]),
        None => (text, ""),
    };
    let factor = match unit {
        "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        "T" => 1 << 40,
        _ => 1,
    };
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

/// The native and user properties that fields of a create or an update stand for; `None` inherits.
fn changes(data: &Map<String, Value>) -> Vec<(String, Option<String>)> {
    let mut changes = Vec::new();
    for (field, value) in data {
        let kept = KEPT_AS_USER.iter().find(|(name, _)| name == field);
        let native = PROPERTIES.iter().find(|(name, _, _)| name == field);
        let raw = match value {
            Value::String(text) if text == "INHERIT" => None,
            Value::Null => Some("0".to_owned()),
            Value::String(text) => match native {
                Some((_, _, Read::Bytes)) => parse_size(text).map(|size| size.to_string()),
                Some(_) => Some(text.to_lowercase()),
                None => Some(text.clone()),
            },
            other => Some(other.to_string()),
        };
        if let Some((_, key)) = kept {
            changes.push(((*key).to_owned(), raw));
        } else if let Some((_, zfs, _)) = native {
            changes.push(((*zfs).to_owned(), raw));
        }
    }
    changes
}

pub(super) async fn create(call: &Call) -> Answer {
    let data = call.object(0);
    let name = rows::text(data, "name").to_owned();
    let volume = data.get("type") == Some(&json!("VOLUME"));
    let mut errors = Vec::new();
    check_place(call, data, &name, &mut errors).await?;
    let parent = existing_parent(call, &name).await?;
    if volume {
        check_volume(data, parent.as_ref(), &mut errors);
    }
    check_encryption(data, parent.as_ref(), &mut errors);
    let user = user_properties(call, data, &mut errors);
    if !errors.is_empty() {
        return Err(Failure::Validation(errors));
    }
    let new = new_dataset(&name, data, user);
    call.nas
        .backend
        .create_dataset(new)
        .await
        .map_err(|problem| {
            let errno = if matches!(problem, Problem::NoSpace(_)) {
                crate::failure::ENOSPC
            } else {
                EFAULT
            };
            Failure::call(errno, format!("Failed to create dataset: {problem}"))
        })?;
    let smb = data.get("share_type") == Some(&json!("SMB"));
    if smb && !volume {
        let entry = |tag: &str, perms: &str| json!({"tag": tag, "id": -1, "type": "ALLOW", "perms": {"BASIC": perms}, "flags": {"BASIC": "INHERIT"}});
        let change = crate::backend::PermissionChange {
            mode: Some(0o770),
            acl: Some(Some(json!([
                entry("owner@", "FULL_CONTROL"),
                entry("group@", "MODIFY"),
            ]))),
            ..Default::default()
        };
        call.nas
            .backend
            .set_permissions(&format!("/mnt/{name}"), change)
            .await
            .map_err(plain)?;
    }
    let shown = dataset::shown(call, &name).await?;
    call.nas.emit(
        "added",
        "pool.dataset.query",
        &json!(name),
        Some(&shown),
        None,
    );
    Ok(shown)
}

/// The dataset that the backend makes.
fn new_dataset(
    name: &str,
    data: &Map<String, Value>,
    user: BTreeMap<String, String>,
) -> NewDataset {
    let volume = data.get("type") == Some(&json!("VOLUME"));
    let mut properties = BTreeMap::new();
    let mut all_user = user;
    for (key, value) in changes(data) {
        let Some(value) = value else { continue };
        if key.contains(':') {
            all_user.insert(key, value)
        } else {
            properties.insert(key, value)
        };
    }
    if volume {
        let size = data
            .get("volsize")
            .and_then(Value::as_u64)
            .unwrap_or_default();
        properties.insert("volsize".to_owned(), size.to_string());
        properties
            .entry("volblocksize".to_owned())
            .or_insert_with(|| "16384".to_owned());
        if data.get("sparse") != Some(&json!(true)) {
            properties
                .entry("refreservation".to_owned())
                .or_insert_with(|| size.to_string());
        }
    }
    if !volume {
        // `plugins/zfs_/dataset.py` of TS-25.10.6.
        let sa = || "sa".to_owned();
        properties.entry("xattr".to_owned()).or_insert_with(sa);
    }
    if data.get("share_type") == Some(&json!("SMB")) && !volume {
        // `plugins/pool_/dataset.py` of TS-25.10.6.
        properties.extend(
            [
                ("casesensitivity", "insensitive"),
                ("acltype", "nfsv4"),
                ("aclmode", "restricted"),
            ]
            .map(|(name, value)| (name.to_owned(), value.to_owned())),
        );
    }
    let key = new_key(data, &mut properties);
    NewDataset {
        name: name.to_owned(),
        kind: if volume {
            Kind::Volume
        } else {
            Kind::Filesystem
        },
        properties,
        user: all_user,
        key,
        ancestors: data.get("create_ancestors") == Some(&json!(true)),
    }
}

/// The name, the pool, the parent, and whether the place is free.
async fn check_place(
    call: &Call,
    data: &Map<String, Value>,
    name: &str,
    errors: &mut Vec<Invalid>,
) -> Result<(), Failure> {
    let attribute = "pool_dataset_create.name";
    let Some((parent, _)) = name.rsplit_once('/') else {
        errors.push(Invalid::new(
            attribute,
            "You need a full name, e.g. pool/newdataset",
        ));
        return Ok(());
    };
    if name.len() > 200 {
        errors.push(Invalid::new(
            attribute,
            "Dataset name must not be longer than 200 characters",
        ));
    }
    let pool = name.split('/').next().unwrap_or_default();
    if call.find_dataset(pool).await?.is_none() {
        errors.push(Invalid::new(
            attribute,
            format!("zpool ({pool}) does not exist."),
        ));
        return Ok(());
    }
    match call.find_dataset(parent).await? {
        None if data.get("create_ancestors") != Some(&json!(true)) => {
            errors.push(Invalid::new(
                attribute,
                format!("Parent dataset ({parent}) does not exist."),
            ));
        }
        None => {}
        Some(parent) => errors
            .extend(dataset::parent_problem(&parent).map(|text| Invalid::new(attribute, text))),
    }
    // A path is what is looked for: an existing volume is found by ZFS alone, later.
    if call
        .nas
        .backend
        .permissions(&format!("/mnt/{name}"))
        .await
        .is_ok()
    {
        errors.push(Invalid::new(
            attribute,
            format!("Path /mnt/{name} already exists"),
        ));
    }
    Ok(())
}

async fn existing_parent(call: &Call, name: &str) -> Result<Option<Dataset>, Failure> {
    let mut name = name;
    while let Some((parent, _)) = name.rsplit_once('/') {
        if let Some(found) = call.find_dataset(parent).await? {
            return Ok(Some(found));
        }
        name = parent;
    }
    Ok(None)
}

fn check_volume(data: &Map<String, Value>, parent: Option<&Dataset>, errors: &mut Vec<Invalid>) {
    let attribute = "pool_dataset_create.volsize";
    let Some(size) = data.get("volsize").and_then(Value::as_u64) else {
        errors.push(Invalid::new(attribute, "This field is required for VOLUME"));
        return;
    };
    let block = data
        .get("volblocksize")
        .and_then(Value::as_str)
        .and_then(parse_size)
        .unwrap_or(16_384);
    if size == 0 || !size.is_multiple_of(block) {
        errors.push(Invalid::new(
            attribute,
            "Volume size should be a multiple of volume block size",
        ));
    }
    let available = parent
        .map(|parent| parent.bytes("available"))
        .unwrap_or_default();
    let forced = data.get("force_size") == Some(&json!(true));
    if !forced && u128::from(size) * 10 > u128::from(available) * 8 {
        let text = "It is not recommended to use more than 80% of your available space for VOLUME";
        errors.push(Invalid::new(attribute, text));
    }
}

fn check_encryption(
    data: &Map<String, Value>,
    parent: Option<&Dataset>,
    errors: &mut Vec<Invalid>,
) {
    let encrypts = data.get("encryption") == Some(&json!(true));
    let inherits = data.get("inherit_encryption") != Some(&json!(false));
    let parent_encrypted = parent.is_some_and(|parent| !parent.raw("encryptionroot").is_empty());
    if parent.is_some_and(Dataset::locked) {
        errors.push(Invalid::new(
            "pool_dataset_create.name",
            "Parent dataset is locked, please unlock it first",
        ));
    }
    if parent_encrypted && !inherits && !encrypts {
        let text = "Cannot create an unencrypted dataset within an encrypted dataset";
        errors.push(Invalid::new("pool_dataset_create.encryption", text));
    }
    if encrypts && inherits {
        let text = "Must be disabled when encryption is enabled";
        errors.push(Invalid::new("pool_dataset_create.inherit_encryption", text));
    }
    let passphrase = data
        .get("encryption_options")
        .and_then(|options| options.get("passphrase"));
    let by_key = encrypts && passphrase.is_none_or(Value::is_null);
    if by_key && parent.is_some_and(|parent| parent.raw("keyformat") == "passphrase") {
        let text = "Passphrase encrypted datasets cannot have children encrypted with a key";
        errors.push(Invalid::new("pool_dataset_create.encryption", text));
    }
}

fn new_key(data: &Map<String, Value>, properties: &mut BTreeMap<String, String>) -> Option<String> {
    if data.get("encryption") != Some(&json!(true)) {
        return None;
    }
    let option = |name: &str| {
        data.get("encryption_options")
            .and_then(|options| options.get(name))
    };
    let passphrase = option("passphrase").and_then(Value::as_str);
    let format = if passphrase.is_some() {
        "passphrase"
    } else {
        "hex"
    };
    properties.insert("keyformat".to_owned(), format.to_owned());
    if let Some(algorithm) = option("algorithm").and_then(Value::as_str) {
        properties.insert("encryption".to_owned(), algorithm.to_lowercase());
    }
    let key = passphrase.or_else(|| option("key").and_then(Value::as_str));
    Some(key.map_or_else(|| crate::random::hex(64), str::to_owned))
}

/// The 26 betas take user properties and drop them; later builds check them.
fn user_properties(
    call: &Call,
    data: &Map<String, Value>,
    errors: &mut Vec<Invalid>,
) -> BTreeMap<String, String> {
    let mut result = BTreeMap::new();
    if call.generation == Generation::V26Beta {
        return result;
    }
    let list = data.get("user_properties").and_then(Value::as_array);
    for (index, property) in list.into_iter().flatten().enumerate() {
        let key = property["key"].as_str().unwrap_or_default();
        let value = property["value"].as_str().unwrap_or_default();
        if call.generation == Generation::V26Rc {
            let attribute = format!("pool_dataset_create.user_properties.{index}.key");
            if let Some(text) = bad_user_property(key) {
                errors.push(Invalid::new(attribute, text));
                continue;
            }
            if result.contains_key(key) {
                errors.push(Invalid::new(
                    attribute,
                    format!("{key} is specified more than once"),
                ));
            }
        }
        result.insert(key.to_owned(), value.to_owned());
    }
    result
}

fn bad_user_property(key: &str) -> Option<String> {
    if key == "org.freenas:description" {
        return Some(format!(
            "{key} is managed by TrueNAS, use the 'comments' field to set it"
        ));
    }
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_.:".contains(c);
    (!key.chars().all(plain)).then(|| format!("{key} is not a valid ZFS user property name"))
}

pub(super) async fn update(call: &Call) -> Answer {
    let (name, data) = (call.text(0).to_owned(), call.object(1));
    let Some(found) = call.find_dataset(&name).await? else {
        return Err(Failure::not_found(
            Some("id"),
            format!("{name} does not exist"),
        ));
    };
    let mut errors = Vec::new();
    let mut properties = changes(data);
    if let Some(size) = data.get("volsize").and_then(Value::as_u64) {
        check_growth(&found, data, size, &mut errors);
        properties.push(("volsize".to_owned(), Some(size.to_string())));
        let block = found.bytes("volblocksize");
        let whole = whole_reservation(found.bytes("volsize"), block);
        if found.bytes("refreservation") == whole && !data.contains_key("refreservation") {
            let whole = whole_reservation(size, block);
            properties.push(("refreservation".to_owned(), Some(whole.to_string())));
        }
    }
    if found.kind == Kind::Volume {
        for field in [
            "quota",
            "refquota",
            "recordsize",
            "atime",
            "aclmode",
            "acltype",
            "snapdir",
        ] {
            if data.contains_key(field) {
                let attribute = format!("pool_dataset_update.{field}");
                errors.push(Invalid::new(
                    attribute,
                    "This field is not valid for VOLUME",
                ));
            }
        }
    }
    for list in ["user_properties_update", "user_properties"] {
        for property in data
            .get(list)
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
        {
            let key = property["key"].as_str().unwrap_or_default().to_owned();
            let removed = property.get("remove") == Some(&json!(true));
            let value = property
                .get("value")
                .and_then(Value::as_str)
                .filter(|_| !removed);
            properties.push((key, value.map(str::to_owned)));
        }
    }
    if !errors.is_empty() {
        return Err(Failure::Validation(errors));
    }
    call.nas
        .backend
        .set_properties(&name, properties)
        .await
        .map_err(|problem| Failure::call(EFAULT, format!("Failed to update dataset: {problem}")))?;
    let shown = dataset::shown(call, &name).await?;
    call.nas.emit(
        "changed",
        "pool.dataset.query",
        &json!(name),
        Some(&shown),
        None,
    );
    Ok(shown)
}

/// What ZFS reserves for all of a volume on a pool without parity: its data, and the blocks that point at them. Only
/// exactly that grows with it.
fn whole_reservation(size: u64, block: u64) -> u64 {
    let (mut blocks, mut pointing) = (size / block.max(1), 7);
    while blocks > 1 {
        blocks = blocks.div_ceil(1024);
        pointing += blocks;
    }
    // Each is kept twice, and is 128K.
    size + pointing * 2 * (128 << 10)
}

fn check_growth(found: &Dataset, data: &Map<String, Value>, size: u64, errors: &mut Vec<Invalid>) {
    let attribute = "pool_dataset_update.volsize";
    if found.kind != Kind::Volume {
        errors.push(Invalid::new(
            attribute,
            "This field is not valid for FILESYSTEM",
        ));
        return;
    }
    let now = found.bytes("volsize");
    if size < now {
        errors.push(Invalid::new(
            attribute,
            "You cannot shrink a zvol from GUI, this may lead to data loss.",
        ));
    }
    if !size.is_multiple_of(found.bytes("volblocksize").max(1)) {
        errors.push(Invalid::new(
            attribute,
            "Volume size should be a multiple of volume block size",
        ));
    }
    let forced = data.get("force_size") == Some(&json!(true));
    let room = u128::from(found.bytes("available")) + u128::from(now);
    if size > now && !forced && u128::from(size) * 10 > room * 8 {
        let text = "It is not recommended to use more than 80% of your available space for VOLUME";
        errors.push(Invalid::new(attribute, text));
    }
}

pub(super) async fn delete(call: &Call) -> Answer {
    let name = call.text(0).to_owned();
    let option = |key: &str| call.object(1).get(key) == Some(&json!(true));
    let Some(found) = call.find_dataset(&name).await? else {
        return Err(dataset::missing(&name));
    };
    if !name.contains('/') {
        let text = "Root dataset cannot be deleted, export the pool to destroy it";
        return Err(Failure::call(crate::failure::EINVAL, text));
    }
    // Before the destroy: a destroy that fails leaves the volume without its exports.
    remove_attachments(call, &found);
    call.apply_exports().await?;
    let is_26 = call.generation.is_26();
    let recursive = option("recursive");
    if call.nas.faults.take_busy(&name) {
        // The betas of 26 say that it was deleted.
        if call.generation == Generation::V26Beta {
            return Ok(json!(true));
        }
        return Err(destroy_failure(call, &name, &Problem::Busy(name.clone())));
    }
    // 26 destroys clones together with what they were made from.
    let how = Destroy {
        recursive,
        clones: is_26 && recursive,
    };
    let result = call.nas.backend.destroy_dataset(&name, how).await;
    result.map_err(|problem| destroy_failure(call, &name, &problem))?;
    call.nas
        .emit("removed", "pool.dataset.query", &json!(name), None, None);
    Ok(json!(true))
}

fn destroy_failure(call: &Call, name: &str, problem: &Problem) -> Failure {
    let text = format!("Failed to delete dataset: {problem}");
    match problem {
        Problem::HasChildren(_) => Failure::call(
            ENOTEMPTY,
            format!("Failed to delete dataset: cannot destroy '{name}': filesystem has children"),
        ),
        Problem::HasSnapshots(_) if call.generation.is_26() => Failure::Single(
            Invalid::new(
                "zfs.resource.destroy",
                format!("'{name}' has snapshots. Set recursive=True to remove them."),
            )
            .errno(ENOTEMPTY),
        ),
        // CORE recognises another text than the one that ZFS prints.
        Problem::Busy(_) | Problem::Held(_) if !call.generation.is_core() => {
            Failure::call(EBUSY, text)
        }
        _ => Failure::call(EFAULT, text),
    }
}

/// Shares, extents, targets, namespaces and tasks of a dataset and of all below.
fn remove_attachments(call: &Call, dataset: &Dataset) {
    let root = format!("/mnt/{}", dataset.name);
    let below_root = format!("{root}/");
    let volume = format!("zvol/{}", dataset.name);
    let below_volume = format!("{volume}/");
    let inside = |path: &str| {
        path == root
            || path.starts_with(&below_root)
            || path == volume
            || path.starts_with(&below_volume)
    };
    let mut kept = call.nas.rows();
    kept.take("sharing.nfs", |row| {
        inside(rows::text(row, "path")) || rows::texts(row, "paths").iter().any(|path| inside(path))
    });
    kept.take("sharing.smb", |row| inside(rows::text(row, "path")));
    kept.take("pool.snapshottask", |row| {
        inside(&format!("/mnt/{}", rows::text(row, "dataset")))
    });
    kept.take("nvmet.namespace", |row| {
        inside(rows::text(row, "device_path"))
    });
    let extents = kept.take("iscsi.extent", |row| {
        inside(rows::text(row, "disk")) || inside(rows::text(row, "path"))
    });
    let ids: Vec<i64> = extents.iter().map(|row| rows::number(row, "id")).collect();
    let links = kept.take("iscsi.targetextent", |row| {
        ids.contains(&rows::number(row, "extent"))
    });
    for target in links.iter().map(|row| rows::number(row, "target")) {
        // A target that is left without any extent goes, too.
        if kept
            .all("iscsi.targetextent")
            .all(|row| rows::number(row, "target") != target)
        {
            kept.remove("iscsi.target", target);
        }
    }
}
