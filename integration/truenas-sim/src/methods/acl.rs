//! `filesystem.getacl` and `filesystem.setacl`.
//!
//! Read from `plugins/filesystem_/acl.py` and `utils.py` of TS-25.10.6. Which kind of list a directory has is
//! what `acltype` of its dataset says; on CORE it is always that of NFS 4.

use serde_json::{Map, Value, json};

use super::files::{look, owner};
use super::{Answer, Call, plain};
use crate::backend::PermissionChange;
use crate::failure::{Failure, Invalid};
use crate::rows;

/// `EOPNOTSUPP`.
const EOPNOTSUPP: i32 = 95;

/// The kind of the lists of a dataset.
async fn kind(call: &Call, path: &str) -> Result<&'static str, Failure> {
    if call.generation.is_core() {
        return Ok("NFS4");
    }
    let mut name = path.trim_start_matches("/mnt/");
    loop {
        if let Some(dataset) = call.find_dataset(name).await? {
            return Ok(match dataset.raw("acltype") {
                "nfsv4" => "NFS4",
                "off" => "DISABLED",
                _ => "POSIX1E",
            });
        }
        match name.rsplit_once('/') {
            Some((parent, _)) => name = parent,
            None => return Ok("POSIX1E"),
        }
    }
}

pub(super) async fn get(call: &Call) -> Answer {
    shown(call, call.text(0), call.flag(2)).await
}

/// A list as it is shown: what a mode says where there is none.
async fn shown(call: &Call, path: &str, names: bool) -> Answer {
    let found = look(call, path).await?;
    let kind = kind(call, path).await?;
    let bits = |shift: u32| {
        let bits = found.mode >> shift;
        [bits & 4 != 0, bits & 2 != 0, bits & 1 != 0]
    };
    let posix = |tag: &str, shift: u32| {
        let [read, write, execute] = bits(shift);
        json!({"default": false, "tag": tag, "id": -1, "perms": {"READ": read, "WRITE": write, "EXECUTE": execute}})
    };
    let nfs4 = |tag: &str, shift: u32| {
        let [read, write, execute] = bits(shift);
        json!({"tag": tag, "id": -1, "type": "ALLOW", "perms": {"READ_DATA": read, "WRITE_DATA": write, "EXECUTE": execute}, "flags": {"BASIC": "NOINHERIT"}})
    };
    let trivial = match kind {
        "NFS4" => json!([nfs4("owner@", 6), nfs4("group@", 3), nfs4("everyone@", 0)]),
        "DISABLED" => Value::Null,
        _ => json!([
            posix("USER_OBJ", 6),
            posix("GROUP_OBJ", 3),
            posix("OTHER", 0)
        ]),
    };
    let mut list = found.acl.clone().unwrap_or(trivial);
    for entry in list.as_array_mut().into_iter().flatten() {
        if names {
            entry["who"] = json!(name_of(call, entry));
        }
    }
    Ok(json!({
        "path": path,
        "uid": found.uid,
        "gid": found.gid,
        "user": null,
        "group": null,
        "acltype": kind,
        "trivial": found.acl.is_none(),
        "acl": list,
    }))
}

/// The accounts that an entry can name, with their numbers.
fn accounts(call: &Call, tag: &str) -> Vec<(String, i64)> {
    let made = call.nas.rows();
    let made = made.all("user").map(|row| {
        let id = rows::number(row, "id") + super::users::FIRST;
        (rows::text(row, "username").to_owned(), id)
    });
    let fixed: &[(&str, i64)] = match tag {
        "USER" => &[("root", 0), ("nobody", 65_534)],
        _ => &[("wheel", 0), ("nogroup", 65_534), ("builtin_users", 545)],
    };
    let fixed = fixed.iter().map(|(name, id)| ((*name).to_owned(), *id));
    fixed.chain(made).collect()
}

fn name_of(call: &Call, entry: &Value) -> Option<String> {
    let tag = entry["tag"]
        .as_str()
        .filter(|tag| ["USER", "GROUP"].contains(tag))?;
    let mut known = accounts(call, tag).into_iter();
    known
        .find(|(_, id)| entry["id"] == *id)
        .map(|(name, _)| name)
}

pub(super) async fn set(call: &Call) -> Answer {
    let data = call.object(0);
    let path = rows::text(data, "path");
    look(call, path).await?;
    let kind = kind(call, path).await?;
    let asked = data.get("acltype").and_then(Value::as_str);
    if asked.is_some_and(|asked| asked != kind) {
        let text = "ACL type is invalid for selected path";
        return Err(Failure::Single(Invalid::new(
            "filesystem.setacl.dacl.acltype",
            text,
        )));
    }
    if kind == "DISABLED" {
        return Err(Failure::call(
            EOPNOTSUPP,
            format!("{path}: ACLs disabled on path."),
        ));
    }
    let strip = data
        .get("options")
        .is_some_and(|options| options["stripacl"] == json!(true));
    let list = numbered(call, data)?;
    let errors = if kind == "NFS4" {
        wrong_nfs4(&list)
    } else {
        wrong_posix(&list, strip)
    };
    if !errors.is_empty() {
        return Err(Failure::Validation(errors));
    }
    let change = PermissionChange {
        uid: owner(data, "uid"),
        gid: owner(data, "gid"),
        mode: None,
        acl: Some((!strip).then_some(Value::Array(list))),
    };
    let set = call.nas.backend.set_permissions(path, change).await;
    set.map_err(plain)?;
    shown(call, path, false).await
}

/// The entries with numbers in the place of names.
fn numbered(call: &Call, data: &Map<String, Value>) -> Result<Vec<Value>, Failure> {
    let list = data.get("dacl").and_then(Value::as_array).cloned();
    let mut list = list.unwrap_or_default();
    for (index, entry) in list.iter_mut().enumerate() {
        let name = entry["who"].as_str().unwrap_or_default().to_owned();
        let tag = entry["tag"].as_str().unwrap_or_default().to_owned();
        if let Some(entry) = entry.as_object_mut() {
            entry.remove("who");
            let id = entry.entry("id").or_insert(Value::Null);
            if id.is_null() {
                *id = json!(-1);
            }
        }
        if name.is_empty() || entry["id"] != -1 {
            continue;
        }
        let refuse = |text: String| {
            Err(Failure::Single(Invalid::new(
                format!("filesystem.setacl.{index}.who"),
                text,
            )))
        };
        if !["USER", "GROUP"].contains(&tag.as_str()) {
            return refuse("Name may only be specified for USER and GROUP entries".to_owned());
        }
        match accounts(call, &tag)
            .into_iter()
            .find(|(known, _)| *known == name)
        {
            Some((_, id)) => entry["id"] = json!(id),
            None => return refuse(format!("{name}: account does not exist")),
        }
    }
    Ok(list)
}

/// `validate_nfs4_ace_full`.
fn wrong_nfs4(list: &[Value]) -> Vec<Invalid> {
    let special = |entry: &Value| entry["tag"].as_str().is_some_and(|tag| tag.ends_with('@'));
    let wrong = list
        .iter()
        .enumerate()
        .filter(|(_, entry)| special(entry) && entry["type"] == "DENY");
    wrong
        .map(|(index, entry)| {
            let tag = entry["tag"].as_str().unwrap_or_default();
            let text = format!("{tag}: DENY entries for specified tag are not permitted.");
            Invalid::new(format!("filesystem.setacl.dacl.{index}.tag"), text)
        })
        .collect()
}

/// `gen_aclstring_posix1e`.
fn wrong_posix(list: &[Value], strip: bool) -> Vec<Invalid> {
    let mut errors = Vec::new();
    let mut wrong = |text: String| errors.push(Invalid::new("filesystem_acl.dacl", text));
    if strip {
        if !list.is_empty() {
            wrong("Simulatenously setting and removing ACL from path is invalid.".to_owned());
        }
        return errors;
    }
    for default in [false, true] {
        let count = |tag: &str| {
            let of = |entry: &&Value| entry["tag"] == tag && entry["default"] == default;
            list.iter().filter(of).count()
        };
        let word = if default { "default " } else { "" };
        let any = list.iter().any(|entry| entry["default"] == default);
        for tag in ["USER_OBJ", "GROUP_OBJ", "OTHER", "MASK"] {
            if count(tag) > 1 {
                wrong(format!(
                    "More than one {} {tag} entry is not permitted",
                    word.trim_end()
                ));
            }
            if tag != "MASK" && count(tag) == 0 && (any || !default) {
                wrong(format!("Presence of {word}[{tag}] entry is required."));
            }
        }
        if count("USER") + count("GROUP") > 0 && count("MASK") == 0 {
            wrong(format!(
                "Named {word}(user or group) POSIX ACL entries require a {word}mask entry to be present in the ACL."
            ));
        }
    }
    errors
}
