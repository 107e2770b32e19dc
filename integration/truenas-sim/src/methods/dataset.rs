//! `pool.*` and `pool.dataset.*`: reading, promoting, renaming, keys.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::entry::{self, Wanted};
use super::{Answer, Call, dataset_change, plain, unknown};
use crate::Generation;
use crate::backend::{Dataset, Pool, Problem, Scope};
use crate::failure::{EBADMSG, EFAULT, EINVAL, ENOENT, Failure, Invalid};
use crate::query;
use crate::rows;

pub(super) async fn run(call: &Call, service: &str, verb: &str) -> Answer {
    if service == "pool" {
        return pools(call, verb).await;
    }
    match verb {
        "query" => list(call).await,
        "get_instance" => get_instance(call).await,
        "create" => dataset_change::create(call).await,
        "update" => dataset_change::update(call).await,
        "delete" => dataset_change::delete(call).await,
        "promote" => promote(call).await,
        "rename" => rename(call).await,
        "lock" => lock(call).await,
        "unlock" => unlock(call).await,
        "attachments" => attachments(call).await,
        "processes" => Ok(json!([])),
        "recommended_zvol_blocksize" => Ok(json!("16K")),
        "snapshot_count" => {
            let scope = Scope::Exact(vec![call.text(0).to_owned()]);
            Ok(json!(
                call.nas
                    .backend
                    .snapshots(&scope)
                    .await
                    .map_err(plain)?
                    .len()
            ))
        }
        "destroy_snapshots" => destroy_snapshots(call).await,
        "permission" => super::files::dataset_permission(call).await,
        _ => Err(unknown(call)),
    }
}

async fn pools(call: &Call, verb: &str) -> Answer {
    let pools = call.nas.backend.pools().await.map_err(plain)?;
    let pools: Vec<Value> = pools
        .iter()
        .enumerate()
        .map(|(index, pool)| show_pool(index + 1, pool, call.nas.generation()))
        .collect();
    if verb == "query" {
        return call.query(pools);
    }
    let id = call.number(0);
    let found = pools.into_iter().find(|pool| pool["id"] == json!(id));
    found.ok_or_else(|| Failure::not_found(None, format!("Pool {id} does not exist")))
}

/// Before 24.10 the status is that of the disks, which a pool that is suspended may all have.
fn show_pool(id: usize, pool: &Pool, generation: Generation) -> Value {
    let status = match pool.status.as_str() {
        "SUSPENDED" if generation < Generation::V24_10 => "ONLINE",
        status => status,
    };
    let code = match pool.status.as_str() {
        "ONLINE" => "OK",
        "SUSPENDED" => "IO_FAILURE_WAIT",
        _ => "UNKNOWN",
    };
    let free = pool.size.saturating_sub(pool.allocated);
    json!({
        "id": id,
        "name": pool.name,
        "guid": format!("{}", 0x1234_5678_9abc_u64 + id as u64),
        "path": format!("/mnt/{}", pool.name),
        "status": status,
        "healthy": pool.status == "ONLINE",
        "warning": false,
        "status_code": code,
        "status_detail": null,
        "size": pool.size,
        "size_str": pool.size.to_string(),
        "allocated": pool.allocated,
        "allocated_str": pool.allocated.to_string(),
        "free": free,
        "free_str": free.to_string(),
        "freeing": 0,
        "freeing_str": "0",
        "fragmentation": "0",
        "is_decrypted": true,
        "is_upgraded": true,
        "autotrim": {"value": "off", "rawvalue": "off", "parsed": "off", "source": "DEFAULT"},
        "scan": null,
        "topology": {"data": [], "cache": [], "log": [], "spare": [], "special": [], "dedup": []},
    })
}

/// Options below `options.extra`, as Python reads them: what is not false counts as true.
pub(super) struct Extra<'a>(&'a Value);

impl<'a> Extra<'a> {
    pub(super) fn of(call: &'a Call) -> Self {
        Self(call.object(1).get("extra").unwrap_or(&Value::Null))
    }

    pub(super) fn flag(&self, name: &str, default: bool) -> bool {
        match self.0.get(name) {
            None => default,
            Some(Value::Null) => false,
            Some(Value::Bool(flag)) => *flag,
            Some(Value::Number(number)) => number.as_f64() != Some(0.0),
            Some(Value::String(text)) => !text.is_empty(),
            Some(Value::Array(items)) => !items.is_empty(),
            Some(Value::Object(fields)) => !fields.is_empty(),
        }
    }

    /// `None` where the option is absent.
    fn list(&self, name: &str) -> Option<Vec<String>> {
        let names = self.0.get(name)?.as_array()?.iter();
        Some(
            names
                .filter_map(|each| each.as_str().map(str::to_owned))
                .collect(),
        )
    }

    fn wanted(&self) -> Wanted {
        Wanted {
            properties: self.list("properties"),
            user_properties: self.flag("retrieve_user_props", true),
        }
    }
}

async fn list(call: &Call) -> Answer {
    let extra = Extra::of(call);
    let wanted = extra.wanted();
    let mut datasets = call
        .nas
        .backend
        .datasets(&scope(call))
        .await
        .map_err(plain)?;
    datasets.retain(|dataset| !hidden(&dataset.name));
    let mut entries: BTreeMap<String, Value> = datasets
        .iter()
        .map(|dataset| {
            (
                dataset.name.clone(),
                entry::dataset(call.generation, dataset, &wanted),
            )
        })
        .collect();
    add_snapshots(call, &extra, &mut entries).await?;
    let flat = extra.flag("flat", true);
    if extra.flag("retrieve_children", true) {
        nest(&mut entries);
    }
    let rows = entries
        .into_iter()
        .filter(|(name, _)| flat || !name.contains('/'))
        .map(|(_, entry)| entry)
        .collect();
    // 25.10 and 26 count without the filters.
    let count = call.object(1).get("count") == Some(&json!(true));
    if count && call.generation >= Generation::V25_10 {
        return query::apply(rows, &[json!([]), json!({"count": true})]);
    }
    call.query(rows)
}

/// The list of snapshots of each dataset and their number, if they are asked for. A dataset without any has
/// an empty list. Up to 25.04 `snapshots_recursive` adds those of the datasets below.
async fn add_snapshots(
    call: &Call,
    extra: &Extra<'_>,
    entries: &mut BTreeMap<String, Value>,
) -> Result<(), Failure> {
    let old = call.generation < Generation::V25_10;
    let below = old && extra.flag("snapshots_recursive", false);
    let shown = extra.flag("snapshots", false) || below;
    let counted = extra.flag("snapshots_count", false);
    if !shown && !counted {
        return Ok(());
    }
    let properties = match extra.0.get("snapshots_properties") {
        Some(Value::Null) => None,
        _ => Some(extra.list("snapshots_properties").unwrap_or_default()),
    };
    let names = entries.keys().cloned().collect();
    let scope = if below {
        Scope::Tree(names)
    } else {
        Scope::Exact(names)
    };
    // Up to 25.04 one filter by name is looked up; all else, and every query later, reads the whole NAS.
    let filters = call.params.first().and_then(Value::as_array);
    let looked_up = old && filters.is_none_or(|filters| filters.len() == 1);
    let read = if looked_up { &scope } else { &Scope::All };
    call.pay_for_snapshots(read).await?;
    let all = call.nas.backend.snapshots(&scope).await.map_err(plain)?;
    for (name, entry) in entries {
        let own = all.iter().filter(|snapshot| {
            let of = snapshot.dataset();
            of == name || below && of.starts_with(&format!("{name}/"))
        });
        let list: Vec<Value> = own
            .map(|each| entry::snapshot_of_dataset(call.generation, each, properties.as_deref()))
            .collect();
        if counted {
            entry["snapshot_count"] = json!(list.len());
        }
        if shown {
            entry["snapshots"] = json!(list);
        }
    }
    Ok(())
}

/// A query for one dataset by its name needs that one and what is below it; the filters come later.
fn scope(call: &Call) -> Scope {
    let filters = call.params.first().and_then(Value::as_array);
    let named = filters.into_iter().flatten().find_map(|filter| {
        let by_name = (filter[0] == "id" || filter[0] == "name") && filter[1] == "=";
        filter[2].as_str().filter(|_| by_name)
    });
    match named {
        Some(name) if call.object(1).get("count") != Some(&json!(true)) => {
            Scope::Tree(vec![name.to_owned()])
        }
        _ => Scope::All,
    }
}

fn hidden(name: &str) -> bool {
    name.split('/')
        .any(|part| part == ".system" || part.starts_with("ix-"))
        || name.starts_with("boot-pool")
}

fn nest(entries: &mut BTreeMap<String, Value>) {
    // The deepest first, so that each takes its own children along.
    let names: Vec<String> = entries.keys().rev().cloned().collect();
    for name in names {
        let Some((parent, _)) = name.rsplit_once('/') else {
            continue;
        };
        let child = entries[&name].clone();
        if let Some(Value::Array(children)) =
            entries.get_mut(parent).map(|entry| &mut entry["children"])
        {
            children.insert(0, child);
        }
    }
}

pub(super) async fn shown(call: &Call, name: &str) -> Answer {
    let wanted = Wanted {
        properties: None,
        user_properties: true,
    };
    let dataset = call
        .find_dataset(name)
        .await?
        .ok_or_else(|| missing(name))?;
    Ok(entry::dataset(call.generation, &dataset, &wanted))
}

pub(super) fn missing(name: &str) -> Failure {
    Failure::not_found(None, format!("PoolDataset {name} does not exist"))
}

/// The options count here as in a query.
async fn get_instance(call: &Call) -> Answer {
    let (name, extra) = (call.text(0), Extra::of(call));
    let scope = Scope::Tree(vec![name.to_owned()]);
    let found = call.nas.backend.datasets(&scope).await.map_err(plain)?;
    let shown = |each: &Dataset| {
        let entry = entry::dataset(call.generation, each, &extra.wanted());
        (each.name.clone(), entry)
    };
    let mut entries: BTreeMap<String, Value> = found.iter().map(shown).collect();
    add_snapshots(call, &extra, &mut entries).await?;
    if extra.flag("retrieve_children", true) {
        nest(&mut entries);
    }
    entries.remove(name).ok_or_else(|| missing(name))
}

async fn promote(call: &Call) -> Answer {
    let name = call.text(0);
    let result = call.nas.backend.promote(name).await;
    result.map_err(|problem| match problem {
        Problem::NotAClone(_) if call.generation.is_26() => Failure::Single(Invalid::new(
            "pool.dataset.promote",
            format!("'{name}' is ineligible for promotion."),
        )),
        Problem::NotAClone(_) => Failure::call(EBADMSG, "Only cloned datasets can be promoted."),
        Problem::Missing(_) => Failure::call(ENOENT, format!("Dataset \"{name}\" does not exist.")),
        other => plain(other),
    })?;
    Ok(Value::Null)
}

async fn rename(call: &Call) -> Answer {
    let (name, options) = (call.text(0), call.object(1));
    let new_name = options
        .get("new_name")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let refused = |text: &str| Failure::invalid("pool.dataset.rename", text);
    if options.get("recursive") == Some(&json!(true)) {
        return Err(refused("recursive is only valid for snapshots"));
    }
    if options.get("force") != Some(&json!(true)) {
        return Err(refused(
            "No safety checks are performed when renaming ZFS resources; set force=True to override",
        ));
    }
    call.nas
        .backend
        .rename_dataset(name, new_name)
        .await
        .map_err(|problem| match problem {
            Problem::Missing(_) => missing(name),
            other => plain(other),
        })?;
    Ok(Value::Null)
}

async fn lock(call: &Call) -> Answer {
    let name = call.text(0);
    let dataset = call
        .find_dataset(name)
        .await?
        .ok_or_else(|| missing(name))?;
    if dataset.raw("encryptionroot") != name || dataset.raw("keyformat") != "passphrase" {
        let text = "Only datasets which are encrypted with passphrase can be locked";
        return Err(Failure::invalid("id", text));
    }
    if dataset.locked() {
        return Err(Failure::invalid("id", "Dataset is already locked"));
    }
    call.nas.backend.set_key(name, None).await.map_err(plain)?;
    Ok(json!(true))
}

/// A wrong passphrase ends the job with success, and a map of what failed.
async fn unlock(call: &Call) -> Answer {
    let name = call.text(0);
    let dataset = call
        .find_dataset(name)
        .await?
        .ok_or_else(|| missing(name))?;
    if dataset.raw("encryptionroot").is_empty() {
        return Err(Failure::invalid("id", "Dataset is not encrypted"));
    }
    if !dataset.locked() {
        return Err(Failure::invalid(
            "unlock_options.id",
            format!("{name} dataset is not locked"),
        ));
    }
    let mut unlocked = Vec::new();
    let mut failed = serde_json::Map::new();
    for given in call
        .object(1)
        .get("datasets")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        let each = given["name"].as_str().unwrap_or_default();
        let key = given
            .get("passphrase")
            .or_else(|| given.get("key"))
            .and_then(Value::as_str);
        if call.nas.backend.set_key(each, key).await.map_err(plain)? && key.is_some() {
            unlocked.push(json!(each));
        } else {
            failed.insert(
                each.to_owned(),
                json!({"error": "Invalid Key", "skipped": []}),
            );
        }
    }
    if unlocked.is_empty() && failed.is_empty() {
        failed.insert(
            name.to_owned(),
            json!({"error": "Missing key", "skipped": []}),
        );
    }
    Ok(json!({"unlocked": unlocked, "failed": failed}))
}

async fn attachments(call: &Call) -> Answer {
    let name = call.text(0);
    call.find_dataset(name)
        .await?
        .ok_or_else(|| missing(name))?;
    let root = format!("/mnt/{name}");
    let volume = format!("zvol/{name}");
    let inside =
        |path: &str| path == root || path.starts_with(&format!("{root}/")) || path == volume;
    let kept = call.nas.rows();
    let mut result = Vec::new();
    let tables = [
        ("NFS Share", "nfs", "sharing.nfs", "path", "path"),
        ("SMB Share", "cifs", "sharing.smb", "path", "name"),
        (
            "iSCSI Extent",
            "iscsitarget",
            "iscsi.extent",
            "disk",
            "name",
        ),
        (
            "NVMe-oF Namespace",
            "nvmet",
            "nvmet.namespace",
            "device_path",
            "device_path",
        ),
    ];
    for (kind, service, table, key, label) in tables {
        let found: Vec<_> = kept
            .all(table)
            .filter(|row| inside(rows::text(row, key)))
            .map(|row| row[label].clone())
            .collect();
        if !found.is_empty() {
            result.push(json!({"type": kind, "service": service, "attachments": found}));
        }
    }
    Ok(json!(result))
}

/// Only from 22.02 to 25.10.
async fn destroy_snapshots(call: &Call) -> Answer {
    let (name, options) = (call.text(0), call.object(1));
    call.find_dataset(name)
        .await?
        .ok_or_else(|| missing(name))?;
    let all = options.get("all") == Some(&json!(true));
    let named: Vec<&str> = options
        .get("snapshots")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    if !all && named.is_empty() {
        return Err(Failure::call(
            EINVAL,
            "Either all or snapshots must be specified",
        ));
    }
    let scope = match options.get("recursive") {
        Some(Value::Bool(true)) => Scope::Tree(vec![name.to_owned()]),
        _ => Scope::Exact(vec![name.to_owned()]),
    };
    let mut destroyed = Vec::new();
    for snapshot in call.nas.backend.snapshots(&scope).await.map_err(plain)? {
        let short = snapshot
            .name
            .split_once('@')
            .map_or("", |(_, name)| name)
            .to_owned();
        if all || named.contains(&short.as_str()) {
            let result = call
                .nas
                .backend
                .destroy_snapshot(&snapshot.name, false)
                .await;
            result.map_err(|problem| {
                Failure::call(EFAULT, format!("Failed to destroy snapshots: {problem}"))
            })?;
            destroyed.push(json!(snapshot.name));
        }
    }
    Ok(json!(destroyed))
}

/// Why a dataset cannot be the parent of a new one.
pub(super) fn parent_problem(parent: &Dataset) -> Option<&'static str> {
    match parent.kind {
        crate::backend::Kind::Volume => Some("Parent dataset cannot be a volume."),
        crate::backend::Kind::Filesystem if parent.raw("readonly") == "on" => {
            Some("Turn off readonly mode on the parent dataset to create a child dataset")
        }
        crate::backend::Kind::Filesystem => None,
    }
}
