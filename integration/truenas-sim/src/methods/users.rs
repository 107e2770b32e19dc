//! `user.*`, `group.query` and `privilege.*`.
//!
//! The checks and their texts were read from `plugins/account.py` and `plugins/account_/privilege.py` of
//! TS-25.10.6, the fields from `api/v25_10_0/{user,group,privilege}.py` and their kin of the other
//! releases.

use serde_json::{Map, Value, json};

use super::{Answer, Call, unknown};
use crate::Generation;
use crate::accounts::User;
use crate::failure::{EEXIST, Failure, Invalid};
use crate::nas::Nas;
use crate::random;
use crate::rows::{self, Row};
use crate::table::Table;

/// The ids and numbers of users that came with the options lie below.
pub(super) const FIRST: i64 = 3000;
/// `DEFAULT_HOME_PATH` of `plugins/account_/constants.py`.
const NO_HOME: &str = "/var/empty";

pub(super) fn run(call: &Call, service: &str, verb: &str) -> Answer {
    match (service, verb) {
        ("user", "query") => call.query(all(call)),
        ("user", "create") => create(call),
        ("user", "update") => update(call),
        ("group", "query") => call.query(groups(call)),
        ("privilege", "query") => {
            let rows: Vec<Row> = call.nas.rows().all("privilege").cloned().collect();
            call.query(rows.into_iter().map(|row| privilege(call, row)).collect())
        }
        ("privilege", "create") => grant(call),
        ("privilege", "update") => change(call),
        _ => Err(unknown(call)),
    }
}

/// The rights of a user: by the options, and by the privileges of the primary group.
pub(crate) fn roles(nas: &Nas, user: &str) -> Option<Vec<String>> {
    let mut roles = nas.accounts().roles(user)?;
    let rows = nas.rows();
    let gid = rows
        .all("user")
        .find(|row| rows::text(row, "username") == user)
        .map(|row| rows::number(row, "id") + FIRST);
    for privilege in rows.all("privilege") {
        let groups = privilege.get("local_groups").and_then(Value::as_array);
        if groups.is_some_and(|groups| groups.iter().any(|id| id.as_i64() == gid)) {
            roles.extend(rows::texts(privilege, "roles"));
        }
    }
    Some(roles)
}

fn all(call: &Call) -> Vec<Value> {
    let names: Vec<String> = call.nas.accounts().users.keys().cloned().collect();
    let made: Vec<Row> = call.nas.rows().all("user").cloned().collect();
    let fixed = names.iter().enumerate().filter_map(|(index, name)| {
        let uid = if name == "root" { 0 } else { 2000 + index };
        let is_made = made.iter().any(|row| rows::text(row, "username") == name);
        (!is_made).then(|| json!({"id": index + 1, "uid": uid, "username": name, "full_name": name, "builtin": name == "root", "locked": false, "local": true, "roles": roles(&call.nas, name).unwrap_or_else(|| vec!["FULL_ADMIN".to_owned()]), "group": {"id": 1, "bsdgrp_gid": 0, "bsdgrp_group": "wheel"}}))
    });
    let fixed: Vec<Value> = fixed.collect();
    let made = made.into_iter().map(|row| user(call, row));
    fixed.into_iter().chain(made).collect()
}

/// A user as it is shown. Its primary group has the same number and name.
fn user(call: &Call, mut row: Row) -> Value {
    let id = rows::number(&row, "id") + FIRST;
    let name = rows::text(&row, "username").to_owned();
    let keys: Vec<i64> = {
        let accounts = call.nas.accounts();
        let own = accounts.keys.iter().filter(|(_, key)| key.user == name);
        own.map(|(id, _)| *id).collect()
    };
    let more = json!({
        "id": id,
        "uid": id,
        "group": {"id": id, "bsdgrp_gid": id, "bsdgrp_group": name, "bsdgrp_builtin": false},
        "builtin": false,
        "local": true,
        "immutable": false,
        "unixhash": "********",
        "smbhash": "********",
        "twofactor_auth_configured": false,
        "roles": roles(&call.nas, &name),
        "api_keys": keys,
    });
    row.extend(more.as_object().cloned().unwrap_or_default());
    row.remove("password");
    let known = Table::of(call.generation).method("user.create");
    for field in known.into_iter().flat_map(|method| &method.result) {
        row.entry(field.clone()).or_insert(Value::Null);
    }
    row.retain(|key, _| known.is_some_and(|method| method.result.contains(key)));
    Value::Object(row)
}

fn checked(call: &Call, at: &str, data: &Row, old: Option<&Row>) -> Result<(), Failure> {
    let mut errors = Vec::new();
    let mut wrong = |field: &str, text: String| {
        errors.push(Invalid::new(format!("{at}.{field}"), text));
    };
    let given = |key: &str| data.get(key).filter(|value| !value.is_null());
    let now = |key: &str| data.get(key).or_else(|| old?.get(key));
    let holds = |key: &str| now(key) == Some(&json!(true));
    if let Some(name) = given("username").and_then(Value::as_str) {
        let start = |c: char| c.is_ascii_alphabetic() || c == '_';
        let inner = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        if !name.starts_with(start) || !name.chars().all(inner) {
            return Err(Failure::invalid(
                format!("{at}.username"),
                "Value error, Cannot start with or contain such a character",
            ));
        }
        let others = call.nas.accounts();
        if old.is_none() && others.users.contains_key(name) {
            let text = format!("The username \"{name}\" already exists.");
            let taken = Invalid::new(format!("{at}.username"), text);
            return Err(Failure::Validation(vec![taken.errno(EEXIST)]));
        }
    }
    if holds("smb") && holds("password_disabled") {
        let text = "Password authentication may not be disabled for SMB users.";
        wrong("password_disabled", text.to_owned());
    }
    let has_password =
        given("password").is_some() || data.get("random_password") == Some(&json!(true));
    if old.is_none() && !has_password && !holds("password_disabled") {
        wrong("password", "Password is required".to_owned());
    }
    if has_password && holds("password_disabled") {
        let text = "Leave \"Password\" blank when \"Disable password login\" is checked.";
        wrong("password_disabled", text.to_owned());
    }
    let home = now("home").and_then(Value::as_str).unwrap_or(NO_HOME);
    if home != NO_HOME && !home.starts_with("/mnt/") {
        wrong(
            "home",
            "\"Home Directory\" must begin with /mnt or set to /var/empty.".to_owned(),
        );
    }
    if given("sshpubkey").is_some() && !home.starts_with("/mnt") {
        wrong(
            "sshpubkey",
            format!(
                "{home}: the user home directory must be set to a writable path located within a data pool."
            ),
        );
    }
    for list in ["sudo_commands", "sudo_commands_nopasswd"] {
        for (index, command) in rows::texts(data, list).iter().enumerate() {
            if command != "ALL" && !command.starts_with('/') {
                let text = "Executable must be an absolute path".to_owned();
                wrong(&format!("{list}.{index}"), text);
            }
        }
    }
    if errors.is_empty() {
        Ok(())
    } else {
        Err(Failure::Validation(errors))
    }
}

fn create(call: &Call) -> Answer {
    let mut data = call.object(0).clone();
    let has_group = data.get("group").is_some_and(|group| !group.is_null());
    if has_group == rows::flag(&data, "group_create") {
        let text = "Enter either a group name or create a new group to continue.";
        return Err(Failure::invalid("user_create.group", text));
    }
    if has_group {
        // Users in the groups of others are not kept.
        return Err(unknown(call));
    }
    checked(call, "user_create", &data, None)?;
    for key in [
        "group_create",
        "home_create",
        "home_mode",
        "uid",
        "random_password",
    ] {
        data.remove(key);
    }
    let password = data
        .remove("password")
        .and_then(|text| text.as_str().map(str::to_owned));
    let name = rows::text(&data, "username").to_owned();
    call.nas.accounts().users.insert(
        name,
        User {
            password: password.clone().unwrap_or_else(|| random::hex(32)),
            roles: Some(Vec::new()),
            otp: None,
        },
    );
    let id = call.nas.rows().insert("user", data);
    let row = call.nas.rows().get("user", id).cloned().unwrap_or_default();
    let mut shown = user(call, row);
    shown["password"] = json!(password);
    Ok(shown)
}

fn update(call: &Call) -> Answer {
    let id = call.number(0);
    let missing = || Failure::not_found(None, format!("User {id} does not exist"));
    let old = call.nas.rows().get("user", id - FIRST).cloned();
    let mut row = old.clone().ok_or_else(missing)?;
    let data = call.object(1);
    checked(call, "user_update", data, old.as_ref())?;
    row.extend(data.clone());
    if let Some(password) = row.remove("password").filter(Value::is_string) {
        let name = rows::text(&row, "username");
        if let Some(user) = call.nas.accounts().users.get_mut(name) {
            password
                .as_str()
                .unwrap_or_default()
                .clone_into(&mut user.password);
        }
    }
    row.retain(|key, _| !["home_create", "home_mode", "random_password"].contains(&key.as_str()));
    if let Some(kept) = call.nas.rows().get_mut("user", id - FIRST) {
        kept.clone_from(&row);
    }
    Ok(user(call, row))
}

fn groups(call: &Call) -> Vec<Value> {
    let group = |id: i64, gid: i64, name: &str, builtin: bool| json!({"id": id, "gid": gid, "name": name, "group": name, "builtin": builtin, "local": true});
    let fixed = [(1, 0, "wheel"), (2, 65_534, "nogroup"), (3, 100, "users")];
    let fixed = fixed.map(|(id, gid, name)| group(id, gid, name, true));
    let rows = call.nas.rows();
    let made = rows.all("user").map(|row| {
        let id = rows::number(row, "id") + FIRST;
        group(id, id, rows::text(row, "username"), false)
    });
    fixed.into_iter().chain(made).collect()
}

fn privilege(call: &Call, mut row: Row) -> Value {
    let known = groups(call);
    let ids = row
        .get("local_groups")
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default();
    let shown = ids.iter().map(|gid| {
        let found = known.iter().find(|group| &group["gid"] == gid);
        found
            .cloned()
            .unwrap_or_else(|| json!({"gid": gid, "sid": null, "group": null}))
    });
    row.insert("local_groups".to_owned(), shown.collect());
    row.insert("builtin_name".to_owned(), Value::Null);
    Value::Object(row)
}

fn fits(call: &Call, at: &str, row: &Map<String, Value>, id: Option<i64>) -> Result<(), Failure> {
    let mut errors = Vec::new();
    let same =
        |other: &Row| other.get("name") == row.get("name") && Some(rows::number(other, "id")) != id;
    if call.nas.rows().all("privilege").any(same) {
        errors.push(Invalid::new(
            format!("{at}.name"),
            "Object with this name already exists",
        ));
    }
    let known = groups(call);
    let ids = row.get("local_groups").and_then(Value::as_array);
    for (index, gid) in ids.into_iter().flatten().enumerate() {
        if !known.iter().any(|group| &group["gid"] == gid) {
            let text = format!(
                "{gid}: local group does not exist. This error may be addressed by either re-creating the missing \
                 group with the specified group id or removing this entry from the privilege."
            );
            errors.push(Invalid::new(format!("{at}.local_groups.{index}"), text));
        }
    }
    let table = Table::of(call.generation);
    for (index, role) in rows::texts(row, "roles").iter().enumerate() {
        if !table.has_role(role) {
            errors.push(Invalid::new(format!("{at}.roles.{index}"), "Invalid role"));
        }
    }
    if errors.is_empty() {
        Ok(())
    } else {
        Err(Failure::Validation(errors))
    }
}

fn grant(call: &Call) -> Answer {
    let data = call.object(0).clone();
    fits(call, "privilege_create", &data, None)?;
    let id = call.nas.rows().insert("privilege", data);
    let row = call.nas.rows().get("privilege", id).cloned();
    Ok(privilege(call, row.unwrap_or_default()))
}

fn change(call: &Call) -> Answer {
    let id = call.number(0);
    let missing = || Failure::not_found(None, format!("Privilege {id} does not exist"));
    let old = call.nas.rows().get("privilege", id).cloned();
    let mut row = old.ok_or_else(missing)?;
    row.extend(call.object(1).clone());
    fits(call, "privilege_update", &row, Some(id))?;
    if let Some(kept) = call.nas.rows().get_mut("privilege", id) {
        kept.clone_from(&row);
    }
    Ok(privilege(call, row))
}

/// The releases that limit a key by a list of methods, and not by the roles of its user.
pub(crate) fn keys_have_lists(generation: Generation) -> bool {
    generation < Generation::V25_04
}
