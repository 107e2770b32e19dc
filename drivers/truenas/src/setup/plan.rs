//! The calls that are missing, in their order.

use secrecy::SecretString;
use serde_json::{Map, Value, json};

use super::{Raw, Seen, Shell, Wanted, allow};
use crate::api::{Call, Fields};
use crate::check;
use crate::{Client, Dialect, Error, Generation, Kind};

/// Stands for the number of the group of a user that is not made yet.
pub(super) const GROUP: &str = "@group@";

/// The calls that are missing.
#[derive(Debug)]
pub struct Plan {
    pub(super) user: String,
    pub(super) steps: Vec<Step>,
    dialect: Dialect,
    /// Notes for the operator, about things to know or to do by hand.
    pub notes: Vec<String>,
    /// The key is there, is not replaced, and opens nothing any more.
    pub revoked: bool,
}

/// One call.
#[derive(Debug)]
pub(super) struct Step {
    /// Its description.
    pub(super) doing: String,
    pub(super) call: Call,
    /// It answers with the user whose group gets the privilege.
    makes_user: bool,
}

/// The result of the calls.
#[derive(Debug, Default)]
pub struct Made {
    /// The description of each call that was made.
    pub done: Vec<String>,
    /// The new API key, which the NAS shows only once.
    pub key: Option<SecretString>,
}

impl Wanted {
    /// The calls that are missing. `renew`: a key that is there is replaced.
    pub fn plan(&self, dialect: &Dialect, seen: &Seen, renew: bool) -> Result<Plan, Error> {
        let generation = dialect.generation();
        let mut plan = Plan {
            user: self.user.clone(),
            steps: Vec::new(),
            dialect: dialect.clone(),
            notes: self.notes.clone(),
            revoked: false,
        };
        if generation == Generation::Core {
            return Err(self.by_hand());
        }
        if self.by_password {
            let note = "the configuration logs in with a password, which is not changed: set \
                        `httpConnection.apiKey` to the key instead";
            plan.notes.push(note.to_owned());
        }
        if generation < Generation::V25_04 {
            plan.notes.push(format!(
                "{} limits a key by a list of calls, and roles do not matter for it. An upgrade to 25.04 \
                 revokes such a key: run this command again after it",
                dialect.version().text()
            ));
            plan.notes.extend(self.shell.as_ref().map(Shell::in_words));
        } else {
            self.users(&mut plan, seen)?;
            self.grant(&mut plan, seen)?;
        }
        self.key_of(&mut plan, seen, renew)?;
        Ok(plan)
    }

    /// A key of CORE has full rights, so that none is made in the operator's name.
    fn by_hand(&self) -> Error {
        let shell = self
            .shell
            .as_ref()
            .map(|shell| format!(", and {}", shell.in_words()));
        let message = format!(
            "CORE has no roles, and its API keys may do everything: make a key in its web pages{}. There \
             the programs are /sbin/zfs, /bin/chmod, /usr/sbin/chown and /bin/setfacl",
            shell.unwrap_or_default()
        );
        Error::new(Kind::Unsupported, message)
    }

    fn users(&self, plan: &mut Plan, seen: &Seen) -> Result<(), Error> {
        let shell = self.shell.as_ref();
        let own = shell.filter(|shell| shell.user == self.user);
        let other = shell.filter(|shell| shell.user != self.user);
        let wanted = [(&self.user, own)].into_iter();
        let wanted = wanted.chain(other.map(|shell| (&shell.user, Some(shell))));
        for (name, shell) in wanted {
            let found = seen.users.iter().find(|row| row["username"] == **name);
            match found {
                None => plan.make(name, shell, *name == self.user)?,
                Some(row) => plan.complete(name, shell, row),
            }
        }
        Ok(())
    }

    fn grant(&self, plan: &mut Plan, seen: &Seen) -> Result<(), Error> {
        let generation = plan.dialect.generation();
        let mut roles = check::roles(generation, &self.needs);
        if self.looks {
            roles.push(check::LOOKS);
        }
        if self.needs.datasets {
            roles.push(check::POOLS);
        }
        if generation == Generation::V25_04 && self.needs.datasets {
            plan.notes.push(format!(
                "on 25.04 clones, holds and copies need full administration: this login makes no volumes \
                 from snapshots or volumes, and no detached snapshots. To have them, add the role \
                 FULL_ADMIN to the privilege `{}`",
                self.privilege()
            ));
        }
        let user = seen.users.iter().find(|row| row["username"] == self.user);
        let group = match user {
            None => json!(GROUP),
            Some(row) => own_group(&self.user, row)?,
        };
        let doing = format!("give the group of {} its roles", self.user);
        let Some(found) = &seen.privilege else {
            let call = Fields::new(&plan.dialect)
                .put("name", self.privilege())
                .put("local_groups", json!([group]))
                .put("roles", json!(roles))
                .put("web_shell", false)
                .call("privilege.create")?;
            plan.add(doing, call);
            return Ok(());
        };
        let known = texts(&found["roles"]);
        let all = union(known.clone(), roles.into_iter().map(str::to_owned));
        let listed = found["local_groups"].as_array();
        // One that is gone has no name, and is refused.
        let listed = listed
            .into_iter()
            .flatten()
            .filter(|row| !row["group"].is_null());
        let mut groups: Vec<Value> = listed.map(|row| row["gid"].clone()).collect();
        let is_in = groups.contains(&group);
        if is_in && all == known {
            return Ok(());
        }
        if !is_in {
            groups.push(group);
        }
        let call = Fields::new(&plan.dialect)
            .put("roles", json!(all))
            .put("local_groups", json!(groups))
            .call_after("privilege.update", vec![found["id"].clone()])?;
        plan.add(doing, call);
        Ok(())
    }

    fn key_of(&self, plan: &mut Plan, seen: &Seen, renew: bool) -> Result<(), Error> {
        let generation = plan.dialect.generation();
        let name = self.key(generation);
        let has_user = generation >= Generation::V25_04;
        let Some(found) = &seen.key else {
            let fields = Fields::new(&plan.dialect).put("name", name.clone());
            let fields = if has_user {
                fields.put("username", self.user.clone())
            } else {
                fields.put("allowlist", allow::list(&plan.dialect, &self.needs))
            };
            plan.add(
                format!("make the API key {name}"),
                fields.call("api_key.create")?,
            );
            return Ok(());
        };
        if has_user && found["username"] != self.user {
            let message =
                format!("the API key {name} is of another user: delete or rename it on TrueNAS");
            return Err(Error::new(Kind::Exists, message));
        }
        if !renew {
            plan.revoked = found["revoked"] == true;
            let state = if plan.revoked {
                "was revoked"
            } else {
                "is there"
            };
            plan.notes.push(format!(
                "the API key {name} {state}, and TrueNAS shows no key twice: `--new-key` replaces it, and \
                 ends the old one"
            ));
            return Ok(());
        }
        let mut fields = Fields::new(&plan.dialect).put("reset", true);
        if !has_user {
            fields = fields.put("allowlist", allow::list(&plan.dialect, &self.needs));
        }
        let call = fields.call_after("api_key.update", vec![found["id"].clone()])?;
        plan.add(format!("replace the API key {name}"), call);
        Ok(())
    }
}

/// The group of a user, if it is that of this user alone.
fn own_group(user: &str, row: &Value) -> Result<Value, Error> {
    let group = &row["group"];
    if group["bsdgrp_group"] == user && row["builtin"] != true {
        return Ok(group["bsdgrp_gid"].clone());
    }
    let message = format!(
        "the user {user} is there, and its primary group is {}: all of its members would get the roles. \
         Set httpConnection.username to the name of a new user",
        group["bsdgrp_group"]
    );
    Err(Error::new(Kind::Exists, message))
}

fn texts(list: &Value) -> Vec<String> {
    let list = list.as_array().into_iter().flatten();
    list.filter_map(Value::as_str).map(str::to_owned).collect()
}

/// A list and what it lacks of another one.
fn union(mut list: Vec<String>, more: impl IntoIterator<Item = String>) -> Vec<String> {
    for text in more {
        if !list.contains(&text) {
            list.push(text);
        }
    }
    list
}

// === impl Plan ===

impl Plan {
    /// The description of each call.
    pub fn steps(&self) -> impl Iterator<Item = &str> {
        self.steps.iter().map(|step| step.doing.as_str())
    }

    /// The calls in their order, as they are sent.
    pub fn calls(&self) -> impl Iterator<Item = &Call> {
        self.steps.iter().map(|step| &step.call)
    }

    /// Whether a new API key is made, or one is replaced.
    pub fn makes_key(&self) -> bool {
        let mut methods = self.steps.iter().map(|step| step.call.method.as_ref());
        methods.any(|method| matches!(method, "api_key.create" | "api_key.update"))
    }

    fn add(&mut self, doing: String, call: Call) {
        self.steps.push(Step {
            doing,
            call,
            makes_user: false,
        });
    }

    fn make(&mut self, name: &str, shell: Option<&Shell>, gets_roles: bool) -> Result<(), Error> {
        let password = shell.and_then(|shell| shell.password.as_ref());
        let mut fields = Fields::new(&self.dialect)
            .put("username", name)
            .put("full_name", "omnibus-csi")
            .put("group_create", true)
            .put("smb", false)
            .put("password_disabled", password.is_none())
            .secret("password", password);
        if let Some(shell) = shell {
            fields = fields
                .put("shell", "/usr/bin/bash")
                .put("ssh_password_enabled", password.is_some())
                .put("sudo_commands_nopasswd", json!(shell.commands));
            if let Some(key) = &shell.public_key {
                fields = fields
                    .put("home", format!("/mnt/{}", shell.pool))
                    .put("home_create", true)
                    .put("sshpubkey", key.clone());
            }
        } else {
            fields = fields.put("shell", "/usr/sbin/nologin");
        }
        self.steps.push(Step {
            doing: format!("make the user {name} with a group of its own"),
            call: fields.call("user.create")?,
            makes_user: gets_roles,
        });
        Ok(())
    }

    /// The calls and notes for what a user that is there lacks.
    fn complete(&mut self, name: &str, shell: Option<&Shell>, row: &Value) {
        if row["locked"] == true {
            self.notes
                .push(format!("the user {name} is locked: unlock it on TrueNAS"));
        }
        let Some(shell) = shell else { return };
        let mut changes = Map::new();
        let known = texts(&row["sudo_commands_nopasswd"]);
        let all = union(known.clone(), shell.commands.iter().cloned());
        if all != known && !known.iter().any(|command| command == "ALL") {
            changes.insert("sudo_commands_nopasswd".to_owned(), json!(all));
        }
        let keys = row["sshpubkey"].as_str().unwrap_or_default();
        if let Some(key) = &shell.public_key
            && !keys.contains(key.as_str())
        {
            let keys = [keys.trim_end(), key]
                .into_iter()
                .filter(|key| !key.is_empty());
            let keys: Vec<&str> = keys.collect();
            changes.insert("sshpubkey".to_owned(), json!(keys.join("\n")));
            if row["home"] == "/var/empty" {
                changes.insert("home".to_owned(), json!(format!("/mnt/{}", shell.pool)));
                changes.insert("home_create".to_owned(), json!(true));
            }
        }
        if row["shell"] == "/usr/sbin/nologin" {
            changes.insert("shell".to_owned(), json!("/usr/bin/bash"));
        }
        if shell.password.is_some() && row["ssh_password_enabled"] != true {
            self.notes.push(format!(
                "the user {name} is there: its password is not changed. Allow it for SSH on TrueNAS"
            ));
        }
        if !changes.is_empty() {
            let call = Call::new(
                "user.update",
                vec![row["id"].clone(), Value::Object(changes)],
            );
            self.add(format!("let {name} log in by SSH, and use sudo"), call);
        }
    }

    /// Carries it out. What was done before a failure stays, and is found by the next run.
    pub async fn carry_out(self, nas: &Client) -> Result<Made, Error> {
        let mut made = Made::default();
        let mut group = Value::Null;
        for step in self.steps {
            let mut call = step.call;
            for param in &mut call.params {
                fill(param, &group);
            }
            let answer = nas.call(&Raw(call)).await;
            let answer = answer.map_err(|error| error.context(step.doing.clone()))?;
            if step.makes_user {
                group = own_group(&self.user, &answer)?;
            }
            let key = answer.get("key").and_then(Value::as_str);
            made.key = key.map(SecretString::from).or(made.key);
            made.done.push(step.doing);
        }
        Ok(made)
    }
}

/// Puts the number of the group where it stands for it.
fn fill(value: &mut Value, group: &Value) {
    match value {
        Value::String(text) if text == GROUP => value.clone_from(group),
        Value::Array(all) => all.iter_mut().for_each(|value| fill(value, group)),
        Value::Object(all) => all.values_mut().for_each(|value| fill(value, group)),
        _ => {}
    }
}
