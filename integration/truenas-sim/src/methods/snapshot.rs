//! `zfs.snapshot.*` up to 25.04 and `pool.snapshot.*` from 25.10.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{Answer, Call, entry, plain, unknown};
use crate::Generation;
use crate::backend::{Problem, Scope, Snapshot};
use crate::failure::{EBUSY, EEXIST, EFAULT, ENOENT, Failure, Invalid};
use crate::rows;

/// The only tag that these methods know.
const TAG: &str = "truenas";

pub(super) async fn run(call: &Call, verb: &str) -> Answer {
    match verb {
        "query" => query(call).await,
        "get_instance" => get_instance(call).await,
        "create" => create(call).await,
        "delete" | "remove" => delete(call).await,
        "clone" => clone(call).await,
        "hold" => hold(call, true).await,
        "release" => hold(call, false).await,
        "rollback" => rollback(call).await,
        "rename" => rename(call).await,
        "update" => update(call).await,
        _ => Err(unknown(call)),
    }
}

pub(super) async fn find(call: &Call, name: &str) -> Result<Option<Snapshot>, Failure> {
    let dataset = name.split_once('@').map_or(name, |(dataset, _)| dataset);
    let scope = Scope::Exact(vec![dataset.to_owned()]);
    let snapshots = call.nas.backend.snapshots(&scope).await.map_err(plain)?;
    Ok(snapshots.into_iter().find(|snapshot| snapshot.name == name))
}

fn missing(call: &Call, name: &str) -> Failure {
    let noun = if call.generation >= Generation::V25_10 {
        "PoolSnapshot"
    } else {
        "ZFSSnapshot"
    };
    Failure::not_found(None, format!("{noun} {name} does not exist"))
}

async fn query(call: &Call) -> Answer {
    let extra = call.object(1).get("extra").cloned().unwrap_or_default();
    let number = |name: &str| {
        extra
            .get(name)
            .and_then(Value::as_u64)
            .filter(|number| *number > 0)
    };
    let (min, max) = (
        number("min_txg").unwrap_or(0),
        number("max_txg").unwrap_or(u64::MAX),
    );
    let holds = extra.get("holds") == Some(&json!(true));
    // 26 reads none unless some are named.
    let named = extra
        .get("properties")
        .and_then(Value::as_array)
        .is_some_and(|list| !list.is_empty());
    let properties = named || !call.generation.is_26();
    call.pay_for_snapshots(&read_for(call)).await?;
    let snapshots = call
        .nas
        .backend
        .snapshots(&Scope::All)
        .await
        .map_err(plain)?;
    let rows = snapshots
        .iter()
        .filter(|snapshot| (min..=max).contains(&snapshot.createtxg))
        .map(|snapshot| entry::snapshot(call.generation, snapshot, holds, properties))
        .collect();
    call.query(rows)
}

/// Of which datasets a query reads the snapshots.
///
/// Up to 25.10 a single filter by `id` or `name` is looked up; where only names or their number are asked for, the
/// datasets that filters name are read; everything else reads the whole NAS. 26 reads what filters name.
fn read_for(call: &Call) -> Scope {
    let filters = call.params.first().and_then(Value::as_array);
    let filters = filters.map(Vec::as_slice).unwrap_or_default();
    let named = |filter: &Value| -> Vec<String> {
        let texts = match (&filter[1], &filter[2]) {
            (Value::String(equal), Value::String(text)) if equal == "=" => vec![text.clone()],
            (Value::String(among), list @ Value::Array(_)) if among == "in" => {
                rows::texts(&Map::from_iter([("in".to_owned(), list.clone())]), "in")
            }
            _ => Vec::new(),
        };
        let dataset = |text: String| text.split('@').next().unwrap_or_default().to_owned();
        texts.into_iter().map(dataset).collect()
    };
    let by = |names: &[&str]| -> Vec<String> {
        let wanted = filters
            .iter()
            .filter(|filter| names.iter().any(|name| filter[0] == *name));
        wanted.flat_map(named).collect()
    };
    let (exact, pools) = if call.generation.is_26() {
        (by(&["id", "name", "dataset"]), by(&["pool"]))
    } else {
        let options = call.object(1);
        let names_only = options.get("select") == Some(&json!(["name"]))
            || options.get("count") == Some(&json!(true));
        let plain = ["name", "pool", "dataset"];
        let plain = filters
            .iter()
            .all(|filter| plain.iter().any(|name| filter[0] == *name));
        match filters {
            _ if names_only && plain => (by(&["dataset"]), by(&["pool"])),
            [one] if one[1] == "=" => (by(&["id", "name"]), Vec::new()),
            _ => (Vec::new(), Vec::new()),
        }
    };
    match (exact.is_empty(), pools.is_empty()) {
        (false, _) => Scope::Exact(exact),
        (true, false) => Scope::Tree(pools),
        (true, true) => Scope::All,
    }
}

async fn get_instance(call: &Call) -> Answer {
    let name = call.text(0);
    let found = find(call, name).await?.ok_or_else(|| missing(call, name))?;
    let extra = call.object(1).get("extra").cloned().unwrap_or_default();
    let holds = extra.get("holds") == Some(&json!(true));
    Ok(entry::snapshot(
        call.generation,
        &found,
        holds,
        !call.generation.is_26(),
    ))
}

async fn create(call: &Call) -> Answer {
    let data = call.object(0);
    let dataset = rows::text(data, "dataset").to_owned();
    let name = match data.get("name").and_then(Value::as_str) {
        Some(name) => name.to_owned(),
        None => match data.get("naming_schema").and_then(Value::as_str) {
            Some(schema) => expand_schema(schema),
            None => {
                return Err(Failure::invalid(
                    "snapshot_create.naming_schema",
                    "Either name or naming schema must be specified",
                ));
            }
        },
    };
    let recursive = data.get("recursive") == Some(&json!(true));
    let exclude = rows::texts(data, "exclude");
    if !exclude.is_empty() && !recursive {
        return Err(Failure::invalid(
            "snapshot_create.exclude",
            "This option has no sense for non-recursive snapshots",
        ));
    }
    let user: BTreeMap<String, String> = data
        .get("properties")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .collect();
    if !exclude.is_empty() && (!user.is_empty() || data.get("vmware_sync") == Some(&json!(true))) {
        return Err(Failure::invalid(
            "snapshot_create.properties",
            "This option is not supported when excluding datasets",
        ));
    }
    let full = format!("{dataset}@{name}");
    make(call, &dataset, &name, recursive, &exclude, &user)
        .await
        .map_err(|problem| create_failure(call, &full, problem))?;
    let made = find(call, &full)
        .await?
        .ok_or_else(|| missing(call, &full))?;
    let shown = entry::snapshot(call.generation, &as_made(call, made), false, true);
    call.nas.emit(
        "added",
        "pool.snapshot.query",
        &json!(full),
        Some(&shown),
        None,
    );
    Ok(shown)
}

/// A new snapshot as it is answered: 26 has two of its properties only.
pub(super) fn as_made(call: &Call, mut made: Snapshot) -> Snapshot {
    if call.generation.is_26() {
        let shown = |name: &String| matches!(name.as_str(), "creation" | "createtxg");
        made.properties.retain(|name, _| shown(name));
    }
    made
}

/// One snapshot of a dataset, or of all below that are not excluded, at one point in time.
pub(super) async fn make(
    call: &Call,
    dataset: &str,
    name: &str,
    recursive: bool,
    exclude: &[String],
    user: &BTreeMap<String, String>,
) -> Result<(), Problem> {
    let scope = if recursive {
        Scope::Tree(vec![dataset.to_owned()])
    } else {
        Scope::Exact(vec![dataset.to_owned()])
    };
    let found = call.nas.backend.datasets(&scope).await?;
    if !found.iter().any(|each| each.name == dataset) {
        return Err(Problem::Missing(dataset.to_owned()));
    }
    let names: Vec<String> = found
        .into_iter()
        .map(|each| each.name)
        .filter(|each| !exclude.contains(each))
        .collect();
    call.nas.backend.create_snapshots(&names, name, user).await
}

fn create_failure(call: &Call, full: &str, problem: Problem) -> Failure {
    let is_26 = call.generation.is_26();
    match problem {
        Problem::Exists(name) if is_26 => {
            let short = name
                .split_once('@')
                .map_or(name.as_str(), |(_, short)| short);
            let text = format!("{short} already exists.");
            Failure::Single(Invalid::new("pool.snapshot.create", text).errno(EEXIST))
        }
        Problem::Exists(name) => {
            let text = format!(
                "Failed to snapshot {name}: cannot create snapshot '{name}': dataset already exists"
            );
            // An error number of its own came with 23.10.
            Failure::call(
                if call.generation >= Generation::V24_10 {
                    EEXIST
                } else {
                    EFAULT
                },
                text,
            )
        }
        Problem::Missing(name) if is_26 => path_not_found(&name),
        Problem::Missing(name) => Failure::call(
            EFAULT,
            format!("Failed to snapshot {full}: Dataset {name} not found"),
        ),
        other => Failure::call(EFAULT, format!("Failed to snapshot {full}: {other}")),
    }
}

/// An exception of 26 that most methods let through, so that it counts as unexpected.
fn path_not_found(path: &str) -> Failure {
    Failure::Exception {
        class: "ZFSPathNotFoundException".to_owned(),
        text: format!("'{path}' not found"),
    }
}

/// A snapshot that is not there: py-libzfs up to 25.10, 26 by its own exception.
fn not_found(call: &Call, action: &str, name: &str) -> Failure {
    if call.generation.is_26() {
        return path_not_found(name);
    }
    Failure::call(
        EFAULT,
        format!("Failed to {action} snapshot: Snapshot {name} not found"),
    )
}

fn expand_schema(schema: &str) -> String {
    let fixed = [
        ("%Y", "2026"),
        ("%m", "11"),
        ("%d", "23"),
        ("%H", "12"),
        ("%M", "00"),
        ("%S", "00"),
    ];
    fixed
        .iter()
        .fold(schema.to_owned(), |text, (from, to)| text.replace(from, to))
}

async fn delete(call: &Call) -> Answer {
    let name = call.text(0).to_owned();
    let option = |key: &str| call.object(1).get(key) == Some(&json!(true));
    let (defer, recursive) = (option("defer"), option("recursive"));
    let found = find(call, &name).await?;
    let found = found.ok_or_else(|| nothing_to_delete(call, &name))?;
    if call.generation.is_26() && recursive {
        // Takes the clones along.
        for clone in &found.clones {
            let how = crate::backend::Destroy {
                recursive: true,
                clones: true,
            };
            call.nas
                .backend
                .destroy_dataset(clone, how)
                .await
                .map_err(plain)?;
        }
    }
    let names = if recursive {
        same_name(call, &name).await?
    } else {
        vec![name.clone()]
    };
    for each in names {
        let result = call.nas.backend.destroy_snapshot(&each, defer).await;
        result.map_err(|problem| delete_failure(call, &each, problem))?;
    }
    call.nas
        .emit("removed", "pool.snapshot.query", &json!(name), None, None);
    Ok(json!(true))
}

/// Read: every release says "not found", and only from 24.10 on with a number of its own.
fn nothing_to_delete(call: &Call, name: &str) -> Failure {
    if call.generation.is_26() {
        return Failure::not_found(None, format!("'{name}' not found"));
    }
    let text = format!("Snapshot {name} not found");
    if call.generation >= Generation::V24_10 {
        Failure::not_found(None, text)
    } else {
        Failure::call(EFAULT, text)
    }
}

/// The snapshots of this name of a dataset and of all below.
pub(super) async fn same_name(call: &Call, name: &str) -> Result<Vec<String>, Failure> {
    let (dataset, short) = name.split_once('@').unwrap_or((name, ""));
    let scope = Scope::Tree(vec![dataset.to_owned()]);
    let snapshots = call.nas.backend.snapshots(&scope).await.map_err(plain)?;
    let end = format!("@{short}");
    Ok(snapshots
        .into_iter()
        .map(|snapshot| snapshot.name)
        .filter(|each| each.ends_with(&end))
        .collect())
}

fn delete_failure(call: &Call, name: &str, problem: Problem) -> Failure {
    let modern = call.generation >= Generation::V24_10;
    match problem {
        Problem::HasClones(_, clones) if call.generation.is_26() => Failure::Single(
            Invalid::new(
                "zfs.resource.snapshot.destroy",
                format!("'{name}' has the following clones: {}", clones.join(",")),
            )
            .errno(EBUSY),
        ),
        Problem::HasClones(_, clones) if modern => {
            let text = format!(
                "Please set this attribute as '{name}' snapshot has dependent clones: {}",
                clones.join(", ")
            );
            Failure::invalid("options.defer", text)
        }
        Problem::Held(_) if call.generation.is_26() => Failure::Single(
            Invalid::new(
                "zfs.resource.snapshot.destroy",
                format!("'{name}' has holds"),
            )
            .errno(EBUSY),
        ),
        Problem::Held(_) if modern => {
            Failure::call(EBUSY, format!("Failed to delete snapshot: {problem}"))
        }
        other => Failure::call(EFAULT, format!("Failed to delete snapshot: {other}")),
    }
}

async fn clone(call: &Call) -> Answer {
    let data = call.object(0);
    let (snapshot, target) = (
        rows::text(data, "snapshot"),
        rows::text(data, "dataset_dst"),
    );
    let properties = zfs_map(data.get("dataset_properties").and_then(Value::as_object));
    if call.generation.is_26() {
        return clone_of_26(call, snapshot, target, properties).await;
    }
    call.nas
        .backend
        .clone_snapshot(snapshot, target, properties)
        .await
        .map_err(|problem| match problem {
            Problem::Missing(name) if name == snapshot => not_found(call, "clone", &name),
            other => Failure::call(EFAULT, format!("Failed to clone snapshot: {other}")),
        })?;
    Ok(json!(true))
}

async fn clone_of_26(
    call: &Call,
    snapshot: &str,
    target: &str,
    properties: BTreeMap<String, String>,
) -> Answer {
    if find(call, snapshot).await?.is_none() {
        return Err(path_not_found(snapshot));
    }
    if call.find_dataset(target).await?.is_some() {
        return Err(Failure::Exception {
            class: "ZFSPathAlreadyExistsException".to_owned(),
            text: format!("'{target}' already exists"),
        });
    }
    refuse_properties(call, &properties)?;
    let cloned = call
        .nas
        .backend
        .clone_snapshot(snapshot, target, properties);
    cloned.await.map_err(plain)?;
    Ok(json!(true))
}

/// 26 passes the properties of a clone on as native ones, so a user property is none. BETA.1 refused native ones,
/// too: it looked for them among those of a snapshot.
pub(super) fn refuse_properties(
    call: &Call,
    properties: &BTreeMap<String, String>,
) -> Result<(), Failure> {
    let beta_1 = call.nas.faults.settings().clones_without_properties;
    match properties.keys().find(|name| beta_1 || name.contains(':')) {
        Some(name) => Err(Failure::Exception {
            class: "ValueError".to_owned(),
            text: format!("{name}: not a valid ZFS property."),
        }),
        None => Ok(()),
    }
}

/// A raw map of properties, texts or numbers.
pub(super) fn zfs_map(map: Option<&Map<String, Value>>) -> BTreeMap<String, String> {
    let raw = |value: &Value| {
        value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned)
    };
    map.into_iter()
        .flatten()
        .map(|(key, value)| (key.clone(), raw(value)))
        .collect()
}

async fn hold(call: &Call, set: bool) -> Answer {
    let name = call.text(0).to_owned();
    if find(call, &name).await?.is_none() {
        return Err(not_found(call, if set { "hold" } else { "release" }, &name));
    }
    let recursive = call.object(1).get("recursive") == Some(&json!(true));
    let names = if recursive {
        same_name(call, &name).await?
    } else {
        vec![name]
    };
    for each in names {
        // A release takes every tag away.
        let tag = set.then_some(TAG);
        call.nas
            .backend
            .hold(&each, tag, set)
            .await
            .map_err(plain)?;
    }
    Ok(Value::Null)
}

async fn rollback(call: &Call) -> Answer {
    let name = call.text(0);
    let option = |key: &str| call.object(1).get(key) == Some(&json!(true));
    let newer = option("recursive") || option("recursive_clones");
    call.nas
        .backend
        .rollback(name, newer)
        .await
        .map_err(|problem| match problem {
            Problem::Missing(_) if call.generation.is_26() => path_not_found(name),
            // Of the command `zfs`, which opens the snapshot first.
            other => Failure::call(EFAULT, format!("Failed to rollback snapshot: {other}")),
        })?;
    Ok(Value::Null)
}

async fn rename(call: &Call) -> Answer {
    let (name, options) = (call.text(0), call.object(1));
    let refused =
        |field: &str, text: &str| Invalid::new(format!("pool.snapshot.rename.{field}"), text);
    if options.get("force") != Some(&json!(true)) {
        let text = "No safety checks are performed when renaming ZFS resources; this may break existing usages. If \
                    you understand the risks, please set force and proceed.";
        return Err(Failure::Single(refused("force", text)));
    }
    let new_name = rows::text(options, "new_name");
    if new_name.split('@').next() != name.split('@').next() {
        let text = "Old and new snapshot must be part of the same ZFS dataset";
        let entry = refused("new_name", text);
        return Err(if call.generation.is_26() {
            Failure::Single(entry)
        } else {
            Failure::Validation(vec![entry])
        });
    }
    let renamed = call.nas.backend.rename_snapshot(name, new_name).await;
    renamed.map_err(|problem| {
        let on_26 = |text: String, errno: i32| {
            Failure::Single(Invalid::new("zfs.resource.rename", text).errno(errno))
        };
        match problem {
            Problem::Missing(_) if call.generation.is_26() => {
                on_26(format!("'{name}' not found"), ENOENT)
            }
            Problem::Exists(_) if call.generation.is_26() => {
                on_26(format!("'{new_name}' already exists"), EEXIST)
            }
            Problem::Missing(_) => not_found(call, "rename", name),
            other => Failure::call(EFAULT, format!("Failed to rename snapshot: {other}")),
        }
    })?;
    Ok(Value::Null)
}

async fn update(call: &Call) -> Answer {
    // Recorded on 26: accepted, without effect, null.
    if call.generation.is_26() {
        return Ok(Value::Null);
    }
    let (name, data) = (call.text(0), call.object(1));
    if find(call, name).await?.is_none() {
        return Err(Failure::call(EFAULT, format!("Snapshot {name} not found")));
    }
    let mut changes = Vec::new();
    for property in data
        .get("user_properties_update")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        let value = property
            .get("value")
            .and_then(Value::as_str)
            .map(str::to_owned);
        changes.push((
            property["key"].as_str().unwrap_or_default().to_owned(),
            value,
        ));
    }
    changes.extend(
        rows::texts(data, "user_properties_remove")
            .into_iter()
            .map(|key| (key, None)),
    );
    call.nas
        .backend
        .set_snapshot_properties(name, changes)
        .await
        .map_err(plain)?;
    let found = find(call, name).await?.ok_or_else(|| missing(call, name))?;
    Ok(entry::snapshot(call.generation, &found, false, true))
}
