//! `SYNO.Core.ISCSI.Target`.
//!
//! Read from: the same as [`crate::lun`].

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::dsm::Dsm;
use crate::failure::{Failure, code};
use crate::params::Params;

/// One target.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) id: u64,
    pub(crate) name: String,
    pub(crate) iqn: String,
    pub(crate) auth_type: u64,
    /// A user and a password.
    pub(crate) chap: (String, String),
    pub(crate) mutual_chap: (String, String),
    pub(crate) max_sessions: u64,
    /// The LUNs by their numbers.
    pub(crate) mapped: BTreeMap<u64, String>,
    /// The initiators that are connected, and their addresses.
    pub(crate) connected: Vec<(String, String)>,
}

// === impl Target ===

impl Target {
    /// n4s4: the example of `Target.list`: passwords are never shown.
    fn shown(&self, additional: &[String]) -> Value {
        let mut shown = json!({
            "auth_type": self.auth_type,
            "has_data_checksum": false,
            "has_header_checksum": false,
            "iqn": self.iqn,
            "is_default_target": false,
            "is_enabled": true,
            "mapping_index": -1,
            "max_recv_seg_bytes": 262_144,
            "max_send_seg_bytes": 262_144,
            "max_sessions": self.max_sessions,
            "mutual_password": "",
            "mutual_user": self.mutual_chap.0,
            "name": self.name,
            "network_portals": [{"interface_name": "all", "ip": "", "port": 3260}],
            "password": "",
            "target_id": self.id,
            "user": self.chap.0,
        });
        let asked = |name: &str| additional.iter().any(|asked| asked == name);
        if asked("mapped_lun") {
            let mapped = self.mapped.iter();
            shown["mapped_luns"] = mapped
                .map(|(number, lun)| json!({"lun_uuid": lun, "mapping_index": number}))
                .collect();
        }
        if asked("connected_sessions") {
            let connected = self.connected.iter();
            // csi: `ConncetedSession`.
            shown["connected_sessions"] = connected
                .map(|(iqn, ip)| json!({"iqn": iqn, "ip": ip}))
                .collect();
        }
        if asked("status") {
            shown["status"] = Value::from("online");
        }
        if asked("acls") {
            shown["acls"] = json!([]);
        }
        shown
    }
}

/// No source for the length of a CHAP password but the form of DSM, which takes 12 to 16 characters.
fn check_chap((user, password): &(String, String)) -> Result<(), Failure> {
    if user.is_empty() || !(12..=16).contains(&password.len()) {
        return Err(Failure::of(code::BAD_CHAP));
    }
    Ok(())
}

// === impl Dsm ===

impl Dsm {
    pub(crate) fn target_method(&mut self, method: &str, params: Params) -> Result<Value, Failure> {
        match method {
            "list" => self.list_targets(params),
            "get" => self.get_target(params),
            "set" => self.set_target(params),
            "create" => self.create_target(params),
            "delete" => self.delete_target(params),
            _ => Err(Failure::of(code::NO_METHOD)),
        }
    }

    /// csi: `TargetGet`, by an id or a name.
    fn get_target(&mut self, mut params: Params) -> Result<Value, Failure> {
        let target = params.text("target_id")?;
        let additional = params.texts("additional")?;
        params.done()?;
        let target = self.target_or_name(&target)?;
        let mut shown = target.shown(&additional);
        let is_enabled = !self
            .disabled
            .contains(shown["name"].as_str().unwrap_or_default());
        shown["is_enabled"] = Value::from(is_enabled);
        Ok(json!({"target": shown}))
    }

    /// csi: `TargetSet`.
    fn set_target(&mut self, mut params: Params) -> Result<Value, Failure> {
        let target = params.text("target_id")?;
        let max_sessions = params.number("max_sessions")?;
        params.done()?;
        self.target_or_name(&target)?.max_sessions = max_sessions;
        Ok(Value::Null)
    }

    fn target_or_name(&mut self, target: &str) -> Result<&mut Target, Failure> {
        let mut targets = self.targets.iter_mut();
        let found = targets.find(|known| known.name == target || known.id.to_string() == target);
        found.ok_or_else(|| Failure::of(code::NO_TARGET))
    }

    pub(crate) fn target(&mut self, id: u64) -> Option<&mut Target> {
        self.targets.iter_mut().find(|target| target.id == id)
    }

    /// csi: `TargetList`; dcsi: `ListTargets`; n4s4: `Target.list`.
    fn list_targets(&mut self, mut params: Params) -> Result<Value, Failure> {
        let additional = params.texts("additional")?;
        params.done()?;
        let targets = self.targets.iter();
        let mut shown: Vec<Value> = targets.map(|target| target.shown(&additional)).collect();
        for target in &mut shown {
            let name = target["name"].as_str().unwrap_or_default();
            target["is_enabled"] = Value::from(!self.disabled.contains(name));
        }
        shown.extend(self.foreign("targets"));
        Ok(json!({"targets": shown}))
    }

    /// csi: `TargetCreate`; n4s4: `Target.create`, which also says that one session is the default;
    /// dsmctl: mutual CHAP is 2; dcsi, docs/storage-class-parameters.md: the parameters that change nothing here.
    /// `auth_type` is in each of them.
    fn create_target(&mut self, mut params: Params) -> Result<Value, Failure> {
        let (name, iqn) = (params.text("name")?, params.text("iqn")?);
        let auth_type = if self.options.strict || params.has("auth_type") {
            params.number("auth_type")?
        } else {
            0
        };
        if auth_type > 2 {
            return Err(Failure::of(code::BAD_AUTH_TYPE));
        }
        params.ignore(&[
            "has_header_checksum",
            "has_data_checksum",
            "multi_sessions",
            "max_recv_seg_bytes",
            "max_send_seg_bytes",
        ]);
        let max_sessions = params.take("max_sessions").map_or(Ok(1), |value| {
            value.as_u64().ok_or_else(|| Failure::of(code::PARAMETER))
        })?;
        let mut text = |key| Ok(params.optional_text(key)?.unwrap_or_default());
        let chap = (text("user")?, text("password")?);
        let mutual_chap = (text("mutual_user")?, text("mutual_password")?);
        params.done()?;
        if auth_type >= 1 {
            check_chap(&chap)?;
        }
        if auth_type == 2 {
            check_chap(&mutual_chap)?;
        }
        if self.targets.iter().any(|target| target.name == name) {
            return Err(Failure::of(code::TARGET_EXISTS));
        }
        if self.targets.iter().any(|target| target.iqn == iqn) {
            return Err(Failure::of(code::IQN_EXISTS));
        }
        if self.targets.len() >= self.options.most.1 {
            return Err(Failure::of(code::MAX_TARGETS));
        }
        let id = self.number();
        self.targets.push(Target {
            id,
            name,
            iqn,
            auth_type,
            chap,
            mutual_chap,
            max_sessions,
            mapped: BTreeMap::new(),
            connected: Vec::new(),
        });
        Ok(json!({"target_id": id}))
    }

    /// csi: `TargetDelete`; n4s4: `Target.delete`. pve (observed): an id that is a number and no text is
    /// refused with 18990710.
    fn delete_target(&mut self, mut params: Params) -> Result<Value, Failure> {
        let id = params.take("target_id");
        params.done()?;
        let id = id.and_then(|id| id.as_str()?.parse::<u64>().ok());
        let at = self.targets.iter().position(|target| Some(target.id) == id);
        let at = at.ok_or_else(|| Failure::of(code::NO_TARGET))?;
        self.targets.remove(at);
        Ok(Value::Null)
    }
}
