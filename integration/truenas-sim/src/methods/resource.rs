//! `zfs.resource.*` and `zfs.resource.snapshot.*` of 25.10 and 26.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{Answer, Call, entry, plain, snapshot, unknown};
use crate::backend::{Dataset, Destroy, Kind, Problem, Property, Scope, Snapshot};
use crate::failure::{EACCES, EBUSY, EEXIST, EINVAL, ENOENT, ENOTEMPTY, Failure, Invalid};
use crate::rows;

pub(super) async fn run(call: &Call, name: &str) -> Answer {
    match name {
        "zfs.resource.query" => query(call).await,
        "zfs.resource.destroy" => destroy(call).await,
        "zfs.resource.snapshot.query" => snapshot_query(call).await,
        "zfs.resource.snapshot.count" => count(call).await,
        "zfs.resource.snapshot.create" => create(call).await,
        "zfs.resource.snapshot.destroy" => snapshot_destroy(call).await,
        "zfs.resource.snapshot.clone" => clone(call).await,
        "zfs.resource.snapshot.hold" => hold(call).await,
        "zfs.resource.snapshot.release" => release(call).await,
        "zfs.resource.snapshot.holds" => holds(call).await,
        "zfs.resource.snapshot.rename" => rename(call).await,
        "zfs.resource.snapshot.rollback" => rollback(call).await,
        _ => Err(unknown(call)),
    }
}

fn single(attribute: &str, text: impl Into<String>, errno: i32) -> Failure {
    Failure::Single(Invalid::new(attribute, text).errno(errno))
}

fn option(call: &Call, key: &str) -> bool {
    call.object(0).get(key) == Some(&json!(true))
}

fn protected(path: &str) -> bool {
    path.starts_with("boot-pool") || path.split(['/', '@']).any(|part| part == ".system")
}

fn raw(property: &Property, source: bool) -> Value {
    let number = property.raw.parse::<i64>();
    let value = number.map_or_else(|_| json!(property.raw), |number| json!(number));
    let shown_source =
        source.then(|| json!({"type": entry::source(&property.source), "value": null}));
    json!({"raw": property.raw, "value": value, "source": shown_source})
}

fn properties(all: &BTreeMap<String, Property>, call: &Call, default_all: bool) -> Value {
    let source = option(call, "get_source");
    match call.object(0).get("properties") {
        Some(Value::Array(names)) if !names.is_empty() || !default_all => all
            .iter()
            .filter(|(name, _)| names.iter().any(|each| each.as_str() == Some(name)))
            .map(|(name, property)| (name.clone(), raw(property, source)))
            .collect::<Map<_, _>>()
            .into(),
        Some(Value::Null) => Value::Null,
        _ => all
            .iter()
            .map(|(name, property)| (name.clone(), raw(property, source)))
            .collect::<Map<_, _>>()
            .into(),
    }
}

fn resource(call: &Call, dataset: &Dataset) -> Value {
    let user = option(call, "get_user_properties").then(|| {
        dataset
            .user
            .iter()
            .map(|(key, property)| (key.clone(), json!(property.raw)))
            .collect::<Map<_, _>>()
    });
    let mut entry = json!({
        "name": dataset.name,
        "pool": dataset.pool(),
        "type": if dataset.kind == Kind::Volume { "VOLUME" } else { "FILESYSTEM" },
        "guid": dataset.bytes("guid"),
        "createtxg": dataset.bytes("createtxg"),
        "properties": properties(&dataset.properties, call, true),
        "user_properties": user,
        "children": null,
    });
    if call.generation.is_26() {
        entry["tier"] = Value::Null;
    }
    entry
}

async fn query(call: &Call) -> Answer {
    let attribute = "zfs.resource.query";
    let paths = rows::texts(call.object(0), "paths");
    if paths.iter().any(|path| path.contains('@')) {
        let text = if call.generation.is_26() {
            "Use `zfs.resource.snapshot.query` to query snapshot information."
        } else {
            "Querying snapshot information is unsupported at this time."
        };
        return Err(single(attribute, text, EINVAL));
    }
    check_unique(call, &paths)?;
    if option(call, "get_children") {
        check_overlap(attribute, &paths, "get_children")?;
    }
    let depth = call.object(0).get("max_depth").and_then(Value::as_u64);
    let depth = depth.and_then(|depth| usize::try_from(depth).ok());
    let depth = depth.filter(|depth| *depth > 0);
    let children = option(call, "get_children") || depth.is_some();
    let scope = match (paths.is_empty(), children) {
        (true, true) => Scope::All,
        (true, false) => {
            let pools = call.nas.backend.pools().await.map_err(plain)?;
            Scope::Exact(pools.into_iter().map(|pool| pool.name).collect())
        }
        (false, true) => Scope::Tree(paths.clone()),
        (false, false) => Scope::Exact(paths.clone()),
    };
    let found = call.nas.backend.datasets(&scope).await.map_err(plain)?;
    let unknown = paths
        .iter()
        .find(|path| !found.iter().any(|dataset| dataset.name == **path));
    // 26 answers an empty list for a path that is not there; 25.10 an error.
    if let Some(path) = unknown.filter(|_| !call.generation.is_26()) {
        return Err(single(attribute, format!("'{path}': not found"), ENOENT));
    }
    let near = |name: &str| {
        let below = |root: &String| Some(name.strip_prefix(root.as_str())?.matches('/').count());
        let nearest = paths.iter().filter_map(below).min();
        let nearest = nearest.unwrap_or_else(|| name.matches('/').count());
        depth.is_none_or(|depth| nearest <= depth)
    };
    let mut rows: BTreeMap<String, Value> = found
        .iter()
        .filter(|dataset| near(&dataset.name))
        .map(|dataset| (dataset.name.clone(), resource(call, dataset)))
        .collect();
    if option(call, "nest_results") {
        nest(&mut rows);
    }
    // Each path with what is below, as they were asked for.
    let place = |name: &str| {
        let above = |path: &String| name == path || name.starts_with(&format!("{path}/"));
        paths.iter().rposition(above)
    };
    let mut rows: Vec<(String, Value)> = rows.into_iter().collect();
    rows.sort_by_key(|(name, _)| {
        let exact = paths.iter().position(|path| path == name);
        exact.or_else(|| place(name))
    });
    Ok(rows.into_iter().map(|(_, row)| row).collect())
}

fn nest(rows: &mut BTreeMap<String, Value>) {
    let names: Vec<String> = rows.keys().rev().cloned().collect();
    for name in names {
        let Some((parent, _)) = name
            .rsplit_once('/')
            .filter(|(parent, _)| rows.contains_key(*parent))
        else {
            continue;
        };
        let parent = parent.to_owned();
        let Some(child) = rows.remove(&name) else {
            continue;
        };
        if let Some(parent) = rows.get_mut(&parent) {
            match &mut parent["children"] {
                Value::Array(children) => children.insert(0, child),
                empty => *empty = json!([child]),
            }
        }
    }
}

/// The check of the model: 26 takes a set, too, which JSON has none of.
fn check_unique(call: &Call, paths: &[String]) -> Result<(), Failure> {
    let mut before = paths.iter().enumerate();
    if !before.any(|(index, path)| paths[..index].contains(path)) {
        return Ok(());
    }
    let unique = "List must be unique";
    if !call.generation.is_26() {
        return Err(Failure::invalid("data.paths", unique));
    }
    let list = "data.paths.function-after[_validate_unique_list(), list[constrained-str]]";
    let set = "data.paths.set[constrained-str]";
    Err(Failure::Validation(vec![
        Invalid::new(list, unique),
        Invalid::new(set, "Input should be a valid set"),
    ]))
}

fn check_overlap(attribute: &str, paths: &[String], option: &str) -> Result<(), Failure> {
    let below = |path: &String| {
        let mut others = paths.iter();
        others.any(|other| path.starts_with(&format!("{other}/")))
    };
    if paths.iter().any(below) {
        let text = format!(
            "Paths must be non-overlapping - no path can be relative to another when {option} is set to True."
        );
        return Err(single(attribute, text, EINVAL));
    }
    Ok(())
}

async fn destroy(call: &Call) -> Answer {
    let attribute = "zfs.resource.destroy";
    let path = rows::text(call.object(0), "path").to_owned();
    let refused = |text: &str| Err(single(attribute, text, EINVAL));
    if path.starts_with('/') {
        return refused("Path must not be absolute.");
    }
    if path.ends_with('/') {
        return refused("Path must not end with a forward-slash.");
    }
    if path.contains('@') {
        return refused("Use `zfs.resource.snapshot.destroy` to destroy snapshots.");
    }
    if protected(&path) {
        return Err(single(
            attribute,
            format!("'{path}' is a protected path."),
            EACCES,
        ));
    }
    if !path.contains('/') {
        return refused("Destroying the root filesystem is not allowed.");
    }
    let recursive = option(call, "recursive");
    if call.nas.faults.take_busy(&path) {
        return Err(Failure::call(
            2008,
            format!("Failed to destroy '{path}': dataset is busy"),
        ));
    }
    let how = Destroy {
        recursive,
        clones: recursive,
    };
    call.nas
        .backend
        .destroy_dataset(&path, how)
        .await
        .map_err(|problem| match problem {
            Problem::Missing(_) => single(attribute, format!("'{path}' does not exist."), ENOENT),
            Problem::HasChildren(_) => single(
                attribute,
                format!("'{path}' has children. Set recursive=True to remove them."),
                ENOTEMPTY,
            ),
            Problem::HasSnapshots(_) => single(
                attribute,
                format!("'{path}' has snapshots. Set recursive=True to remove them."),
                ENOTEMPTY,
            ),
            Problem::HasClones(..) => single(attribute, format!("'{path}' has clones."), EBUSY),
            other => plain(other),
        })?;
    call.nas
        .emit("removed", "pool.dataset.query", &json!(path), None, None);
    Ok(Value::Null)
}

fn shown(call: &Call, snapshot: &Snapshot) -> Value {
    let (dataset, name) = snapshot.name.split_once('@').unwrap_or_default();
    let guid = snapshot
        .properties
        .get("guid")
        .and_then(|guid| guid.raw.parse::<u64>().ok());
    json!({
        "name": snapshot.name,
        "dataset": dataset,
        "snapshot_name": name,
        "pool": dataset.split('/').next(),
        "type": "SNAPSHOT",
        "guid": guid,
        "createtxg": snapshot.createtxg,
        "properties": properties(&snapshot.properties, call, false),
        "user_properties": option(call, "get_user_properties").then(|| json!(snapshot.user)),
        "holds": option(call, "get_holds").then(|| json!(snapshot.holds)),
    })
}

async fn snapshot_query(call: &Call) -> Answer {
    let attribute = "zfs.resource.snapshot.query";
    let data = call.object(0);
    let paths = rows::texts(data, "paths");
    check_unique(call, &paths)?;
    if option(call, "recursive") {
        let datasets = paths.iter().filter(|path| !path.contains('@'));
        let datasets: Vec<String> = datasets.cloned().collect();
        check_overlap(attribute, &datasets, "recursive")?;
    }
    let datasets: Vec<String> = paths
        .iter()
        .map(|path| {
            path.split_once('@')
                .map_or(path.as_str(), |(dataset, _)| dataset)
                .to_owned()
        })
        .collect();
    let scope = match (paths.is_empty(), option(call, "recursive")) {
        (true, true) => Scope::All,
        (true, false) => {
            let pools = call.nas.backend.pools().await.map_err(plain)?;
            Scope::Exact(pools.into_iter().map(|pool| pool.name).collect())
        }
        (false, true) => Scope::Tree(datasets.clone()),
        (false, false) => Scope::Exact(datasets.clone()),
    };
    let known = call
        .nas
        .backend
        .datasets(&Scope::Exact(datasets.clone()))
        .await
        .map_err(plain)?;
    call.pay_for_snapshots(&scope).await?;
    let all = call.nas.backend.snapshots(&scope).await.map_err(plain)?;
    for path in &paths {
        let there = if path.contains('@') {
            all.iter().any(|snapshot| snapshot.name == *path)
        } else {
            known.iter().any(|dataset| dataset.name == *path)
        };
        if !there {
            return Err(single(attribute, format!("'{path}' not found"), ENOENT));
        }
    }
    let number = |key: &str| {
        data.get(key)
            .and_then(Value::as_u64)
            .filter(|number| *number > 0)
    };
    let (min, max) = (
        number("min_txg").unwrap_or(0),
        number("max_txg").unwrap_or(u64::MAX),
    );
    let asked = |snapshot: &&Snapshot| {
        let named = paths.is_empty()
            || paths
                .iter()
                .any(|path| !path.contains('@') || *path == snapshot.name);
        named && (min..=max).contains(&snapshot.createtxg)
    };
    Ok(all
        .iter()
        .filter(asked)
        .map(|snapshot| shown(call, snapshot))
        .collect())
}

async fn count(call: &Call) -> Answer {
    let paths = rows::texts(call.object(0), "paths");
    let scope = Scope::Exact(paths.clone());
    let known = call.nas.backend.datasets(&scope).await.map_err(plain)?;
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    for path in &paths {
        if !known.iter().any(|dataset| dataset.name == *path) {
            return Err(single(
                "zfs.resource.snapshot.count",
                format!("'{path}' not found"),
                ENOENT,
            ));
        }
        counts.insert(path.clone(), 0);
    }
    for snapshot in call.nas.backend.snapshots(&scope).await.map_err(plain)? {
        *counts.entry(snapshot.dataset().to_owned()).or_default() += 1;
    }
    Ok(json!(counts))
}

async fn create(call: &Call) -> Answer {
    let attribute = "zfs.resource.snapshot.create";
    let data = call.object(0);
    let (dataset, name) = (rows::text(data, "dataset"), rows::text(data, "name"));
    if dataset.contains('@') {
        return Err(single(
            attribute,
            "dataset must be a dataset path (not containing '@').",
            EINVAL,
        ));
    }
    if name.contains(['@', '/']) {
        return Err(single(
            attribute,
            "name must be a snapshot name (not containing '@' or '/').",
            EINVAL,
        ));
    }
    if protected(dataset) {
        return Err(single(
            attribute,
            format!("'{dataset}' is a protected path."),
            EACCES,
        ));
    }
    let user = snapshot::zfs_map(data.get("user_properties").and_then(Value::as_object));
    let exclude = rows::texts(data, "exclude");
    let made = snapshot::make(
        call,
        dataset,
        name,
        option(call, "recursive"),
        &exclude,
        &user,
    )
    .await;
    made.map_err(|problem| match problem {
        Problem::Exists(name) => single(attribute, format!("'{name}' already exists"), EEXIST),
        Problem::Missing(name) => single(attribute, format!("'{name}' not found"), ENOENT),
        other => plain(other),
    })?;
    find(call, attribute, &format!("{dataset}@{name}"))
        .await
        .map(|made| shown(call, &snapshot::as_made(call, made)))
}

async fn find(call: &Call, attribute: &str, name: &str) -> Result<Snapshot, Failure> {
    let found = snapshot::find(call, name).await?;
    found.ok_or_else(|| single(attribute, format!("'{name}' not found"), ENOENT))
}

async fn snapshot_destroy(call: &Call) -> Answer {
    let attribute = "zfs.resource.snapshot.destroy";
    let path = rows::text(call.object(0), "path").to_owned();
    let all = option(call, "all_snapshots");
    if protected(&path) {
        return Err(single(
            attribute,
            format!("'{path}' is a protected path."),
            EACCES,
        ));
    }
    if !all && !path.contains('@') {
        let text = "Path must be a snapshot path (containing '@'). Use all_snapshots=True to destroy all snapshots \
                    for a dataset.";
        return Err(single(attribute, text, EINVAL));
    }
    if all && path.contains('@') {
        return Err(single(
            attribute,
            "Path must be a dataset path (not containing '@') with all_snapshots.",
            EINVAL,
        ));
    }
    let recursive = option(call, "recursive");
    let names = if all {
        let scope = if recursive {
            Scope::Tree(vec![path])
        } else {
            Scope::Exact(vec![path])
        };
        let found = call.nas.backend.snapshots(&scope).await.map_err(plain)?;
        found.into_iter().map(|snapshot| snapshot.name).collect()
    } else {
        let found = find(call, attribute, &path).await?;
        if recursive {
            for clone in &found.clones {
                let how = Destroy {
                    recursive: true,
                    clones: true,
                };
                call.nas
                    .backend
                    .destroy_dataset(clone, how)
                    .await
                    .map_err(plain)?;
            }
            snapshot::same_name(call, &path).await?
        } else {
            vec![path]
        }
    };
    for name in names {
        let result = call
            .nas
            .backend
            .destroy_snapshot(&name, option(call, "defer"))
            .await;
        result.map_err(|problem| match problem {
            Problem::HasClones(_, clones) => single(
                attribute,
                format!("'{name}' has the following clones: {}", clones.join(",")),
                EBUSY,
            ),
            Problem::Held(_) => single(attribute, format!("'{name}' has holds"), EBUSY),
            other => plain(other),
        })?;
    }
    Ok(Value::Null)
}

async fn clone(call: &Call) -> Answer {
    let attribute = "zfs.resource.snapshot.clone";
    let data = call.object(0);
    let (source, target) = (rows::text(data, "snapshot"), rows::text(data, "dataset"));
    for path in [source, target] {
        if protected(path) {
            return Err(single(
                attribute,
                format!("'{path}' is a protected path."),
                EACCES,
            ));
        }
    }
    find(call, attribute, source).await?;
    let properties = snapshot::zfs_map(data.get("properties").and_then(Value::as_object));
    snapshot::refuse_properties(call, &properties)?;
    call.nas
        .backend
        .clone_snapshot(source, target, properties)
        .await
        .map_err(|problem| match problem {
            Problem::Exists(name) => single(attribute, format!("'{name}' already exists"), EEXIST),
            Problem::Missing(name) => single(attribute, format!("'{name}' not found"), ENOENT),
            other => plain(other),
        })?;
    Ok(Value::Null)
}

async fn names_of(call: &Call, attribute: &str) -> Result<Vec<String>, Failure> {
    let path = rows::text(call.object(0), "path").to_owned();
    find(call, attribute, &path).await?;
    if option(call, "recursive") {
        snapshot::same_name(call, &path).await
    } else {
        Ok(vec![path])
    }
}

async fn hold(call: &Call) -> Answer {
    let tag = call
        .object(0)
        .get("tag")
        .and_then(Value::as_str)
        .unwrap_or("truenas");
    for name in names_of(call, "zfs.resource.snapshot.hold").await? {
        call.nas
            .backend
            .hold(&name, Some(tag), true)
            .await
            .map_err(plain)?;
    }
    Ok(Value::Null)
}

async fn release(call: &Call) -> Answer {
    let tag = call.object(0).get("tag").and_then(Value::as_str);
    for name in names_of(call, "zfs.resource.snapshot.release").await? {
        call.nas
            .backend
            .hold(&name, tag, false)
            .await
            .map_err(plain)?;
    }
    Ok(Value::Null)
}

async fn holds(call: &Call) -> Answer {
    let path = rows::text(call.object(0), "path");
    let found = find(call, "zfs.resource.snapshot.holds", path).await?;
    Ok(json!(found.holds.keys().collect::<Vec<_>>()))
}

async fn rename(call: &Call) -> Answer {
    let attribute = "zfs.resource.snapshot.rename";
    let data = call.object(0);
    let (name, new_name) = (
        rows::text(data, "current_name"),
        rows::text(data, "new_name"),
    );
    let dataset = |name: &str| name.split_once('@').map(|(dataset, _)| dataset.to_owned());
    find(call, attribute, name).await?;
    if dataset(name) != dataset(new_name) {
        return Err(single(
            attribute,
            format!("cannot rename '{name}' to another dataset"),
            EINVAL,
        ));
    }
    call.nas
        .backend
        .rename_snapshot(name, new_name)
        .await
        .map_err(|problem| match problem {
            Problem::Exists(name) => single(attribute, format!("'{name}' already exists"), EEXIST),
            other => plain(other),
        })?;
    Ok(Value::Null)
}

async fn rollback(call: &Call) -> Answer {
    let attribute = "zfs.resource.snapshot.rollback";
    let path = rows::text(call.object(0), "path");
    find(call, attribute, path).await?;
    let newer = option(call, "recursive") || option(call, "recursive_clones");
    call.nas
        .backend
        .rollback(path, newer)
        .await
        .map_err(|problem| match problem {
            Problem::NewerSnapshots(names) => {
                let text = format!(
                    "Cannot rollback: more recent snapshots or bookmarks exist: {}",
                    names.join(", ")
                );
                single(attribute, text, EINVAL)
            }
            other => plain(other),
        })?;
    Ok(Value::Null)
}
