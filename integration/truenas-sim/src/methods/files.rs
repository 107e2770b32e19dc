//! `filesystem.*`: owners, modes and access lists below `/mnt`.

use serde_json::{Map, Value, json};

use super::{Answer, Call, acl, plain, unknown};
use crate::Generation;
use crate::backend::{PermissionChange, Permissions, Problem};
use crate::failure::{EDATASETISLOCKED, EEXIST, EINVAL, ENOENT, Failure, Invalid};
use crate::rows;

pub(super) async fn run(call: &Call, verb: &str) -> Answer {
    match verb {
        "stat" => stat(call).await,
        "listdir" => list(call).await,
        "statfs" => statfs(call).await,
        "mkdir" => mkdir(call).await,
        "setperm" => setperm(call).await,
        "chown" => chown(call).await,
        "setacl" => acl::set(call).await,
        "getacl" => acl::get(call).await,
        _ => Err(unknown(call)),
    }
}

pub(super) async fn look(call: &Call, path: &str) -> Result<Permissions, Failure> {
    if !path.starts_with('/') {
        return Err(Failure::call(
            EINVAL,
            format!("{path}: path must be absolute"),
        ));
    }
    let name = path.trim_start_matches("/mnt/");
    if call
        .find_dataset(name)
        .await?
        .is_some_and(|dataset| dataset.locked())
    {
        // The number is the middleware's; which of these methods answer it was not run.
        return Err(Failure::call(
            EDATASETISLOCKED,
            format!("Dataset {name} is locked"),
        ));
    }
    call.nas
        .backend
        .permissions(path)
        .await
        .map_err(|problem| match problem {
            Problem::Missing(_) => Failure::call(ENOENT, format!("Path {path} not found")),
            other => plain(other),
        })
}

fn name_of(id: i64) -> Value {
    match id {
        0 => json!("root"),
        65_534 => json!("nobody"),
        _ => Value::Null,
    }
}

/// Both texts were recorded on 25.10.6.
async fn stat(call: &Call) -> Answer {
    let path = call.text(0);
    let found = look(call, path).await?;
    Ok(json!({
        "realpath": path,
        "type": "DIRECTORY",
        "size": 2,
        "allocation_size": 512,
        "mode": 0o040_000 | found.mode,
        "mount_id": 100,
        "uid": found.uid,
        "gid": found.gid,
        "atime": 1_795_000_000.0,
        "mtime": 1_795_000_000.0,
        "ctime": 1_795_000_000.0,
        "btime": 1_795_000_000.0,
        "dev": found.device,
        "inode": 34,
        "nlink": 2,
        "acl": found.acl.is_some(),
        "is_mountpoint": found.mount_point,
        "is_ctldir": false,
        "attributes": [],
        "user": name_of(found.uid),
        "group": name_of(found.gid),
    }))
}

async fn statfs(call: &Call) -> Answer {
    let path = call.text(0);
    look(call, path).await?;
    let mut name = path.trim_start_matches("/mnt/").to_owned();
    while call.find_dataset(&name).await?.is_none() {
        name = name
            .rsplit_once('/')
            .map(|(parent, _)| parent.to_owned())
            .unwrap_or_default();
        if name.is_empty() {
            return Err(Failure::call(ENOENT, format!("Path {path} not found")));
        }
    }
    let Some(dataset) = call.find_dataset(&name).await? else {
        return Ok(Value::Null);
    };
    let (used, available) = (dataset.bytes("referenced"), dataset.bytes("available"));
    Ok(json!({
        "flags": ["RW", "ZFS"],
        "fsid": "9f4d0dba9f4d0dba",
        "fstype": "zfs",
        "source": name,
        "dest": format!("/mnt/{name}"),
        "blocksize": 131_072,
        "total_blocks": (used + available) / 131_072,
        "free_blocks": available / 131_072,
        "avail_blocks": available / 131_072,
        "total_bytes": used + available,
        "free_bytes": available,
        "avail_bytes": available,
        "total_bytes_str": (used + available).to_string(),
        "free_bytes_str": available.to_string(),
        "avail_bytes_str": available.to_string(),
    }))
}

async fn mkdir(call: &Call) -> Answer {
    // A plain path up to 22.12, an object later.
    let data = call.object(0);
    let path = match call.params.first() {
        Some(Value::String(path)) => path.clone(),
        _ => rows::text(data, "path").to_owned(),
    };
    let mode = data
        .get("options")
        .and_then(|options| options["mode"].as_str());
    let mode = mode
        .and_then(|mode| u32::from_str_radix(mode, 8).ok())
        .unwrap_or(0o755);
    call.nas
        .backend
        .make_directory(&path, mode)
        .await
        .map_err(|problem| match problem {
            Problem::Exists(_) => Failure::call(EEXIST, format!("{path}: path already exists.")),
            Problem::Missing(_) => {
                Failure::call(ENOENT, format!("{path}: parent directory does not exist."))
            }
            other => plain(other),
        })?;
    Ok(
        json!({"name": path.rsplit('/').next(), "path": path, "realpath": path, "type": "DIRECTORY", "mode": 0o040_000 | mode, "uid": 0, "gid": 0, "acl": false}),
    )
}

pub(super) fn owner(data: &Map<String, Value>, key: &str) -> Option<i64> {
    // -1 leaves it as it is.
    data.get(key).and_then(Value::as_i64).filter(|id| *id >= 0)
}

fn named(data: &Map<String, Value>, key: &str) -> Option<i64> {
    match data.get(key)?.as_str()? {
        "root" | "wheel" => Some(0),
        "nobody" | "nogroup" => Some(65_534),
        _ => None,
    }
}

/// The datasets that are mounted right below. Other files are not kept.
async fn list(call: &Call) -> Answer {
    let path = call.text(0);
    look(call, path).await?;
    let name = path.strip_prefix("/mnt/").unwrap_or_default();
    let scope = crate::backend::Scope::Tree(vec![name.to_owned()]);
    let below = call.nas.backend.datasets(&scope).await.map_err(plain)?;
    let below = below.iter().filter_map(|dataset| {
        let leaf = dataset.name.strip_prefix(name)?.strip_prefix('/')?;
        let entry = json!({"name": leaf, "path": format!("{path}/{leaf}"), "type": "DIRECTORY"});
        (!leaf.contains('/')).then_some(entry)
    });
    crate::query::apply(below.collect(), &call.params[1..])
}

/// The text of the first check was recorded on 25.10.6, where it is the model's own.
async fn setperm(call: &Call) -> Answer {
    let data = call.object(0);
    let attribute = &call.method.args[0].name;
    let option = |key: &str| {
        data.get("options")
            .is_some_and(|options| options[key] == json!(true))
    };
    let given = ["mode", "uid", "gid", "user", "group"]
        .iter()
        .any(|key| data.get(*key).is_some_and(|value| !value.is_null()));
    let modern = call.generation >= Generation::V25_04;
    if !given && !option("stripacl") {
        let text =
            "Payload must either explicitly specify permissions or contain the stripacl option.";
        return Err(Failure::invalid(
            attribute,
            if modern {
                format!("Value error, {text}")
            } else {
                text.to_owned()
            },
        ));
    }
    let mode = match data.get("mode").and_then(Value::as_str) {
        Some(text) => match u32::from_str_radix(text, 8)
            .ok()
            .filter(|mode| *mode <= 0o777)
        {
            Some(mode) => Some(mode),
            None => {
                return Err(Failure::invalid(
                    format!("{attribute}.mode"),
                    "Not a valid integer. Must be between 000 and 777",
                ));
            }
        },
        None => None,
    };
    let path = rows::text(data, "path");
    let found = look(call, path).await?;
    let mut wrong = Vec::new();
    if mode.is_some() && found.acl.is_some() && !option("stripacl") {
        wrong.push(format!(
            "Non-trivial ACL present on [{path}]. Option \"stripacl\" required to change permission."
        ));
    }
    if mode == Some(0) && !call.generation.is_core() {
        wrong.push("Empty permissions are not permitted.".to_owned());
    }
    if !wrong.is_empty() {
        let entry = |text| Invalid::new("filesystem.setperm.mode", text);
        return Err(Failure::Validation(wrong.into_iter().map(entry).collect()));
    }
    let change = PermissionChange {
        uid: owner(data, "uid").or_else(|| named(data, "user")),
        gid: owner(data, "gid").or_else(|| named(data, "group")),
        mode,
        acl: option("stripacl").then_some(None),
    };
    call.nas
        .backend
        .set_permissions(path, change)
        .await
        .map_err(plain)?;
    Ok(Value::Null)
}

async fn chown(call: &Call) -> Answer {
    let data = call.object(0);
    let path = rows::text(data, "path");
    look(call, path).await?;
    let change = PermissionChange {
        uid: owner(data, "uid").or_else(|| named(data, "user")),
        gid: owner(data, "gid").or_else(|| named(data, "group")),
        ..PermissionChange::default()
    };
    if change.uid.is_none() && change.gid.is_none() {
        return Err(Failure::invalid(
            format!("{}.uid", call.method.args[0].name),
            "Please specify either user or group to change.",
        ));
    }
    call.nas
        .backend
        .set_permissions(path, change)
        .await
        .map_err(plain)?;
    Ok(Value::Null)
}

/// `pool.dataset.permission`, up to 24.04.
pub(super) async fn dataset_permission(call: &Call) -> Answer {
    let data = call.object(1);
    let path = format!("/mnt/{}", call.text(0));
    look(call, &path).await?;
    let mode = data
        .get("mode")
        .and_then(Value::as_str)
        .and_then(|mode| u32::from_str_radix(mode, 8).ok());
    let change = PermissionChange {
        mode,
        uid: named(data, "user"),
        gid: named(data, "group"),
        acl: None,
    };
    call.nas
        .backend
        .set_permissions(&path, change)
        .await
        .map_err(plain)?;
    Ok(call.params.get(1).cloned().unwrap_or_default())
}
