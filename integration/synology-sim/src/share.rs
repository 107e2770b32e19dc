//! Shared folders: `SYNO.Core.Share`, their snapshots, and who may mount them over NFS.
//!
//! Read from: csi (SynologyOpenSource/synology-csi, pkg/dsm/webapi/share.go and
//! `pkg/dsm/service/share_volume.go`), which says itself where DSM differs: `quota_value` of a clone may
//! be 0 until it is set; mcp (mcp-server-synology), n4s4 and dsmctl for what csi does not send.

use serde_json::{Map, Value, json};

use crate::dsm::Dsm;
use crate::failure::{Failure, code};
use crate::host::Origin;
use crate::params::Params;

/// One shared folder.
#[derive(Debug, Clone)]
pub(crate) struct Share {
    pub(crate) uuid: String,
    pub(crate) name: String,
    pub(crate) path: String,
    pub(crate) description: String,
    /// In MiB; 0 is none.
    pub(crate) quota: u64,
    pub(crate) rules: Value,
    pub(crate) permissions: Vec<Value>,
    pub(crate) snapshots: Vec<ShareSnapshot>,
    pub(crate) origin: Origin,
}

/// One snapshot of a shared folder: its name is a time.
#[derive(Debug, Clone)]
pub(crate) struct ShareSnapshot {
    pub(crate) uuid: String,
    pub(crate) time: String,
    pub(crate) description: String,
    pub(crate) locked: bool,
}

/// csi: models/dsm.go, `MaxShareLen`.
const LONGEST_NAME: usize = 32;
/// csi: models/dsm.go, `MaxShareDescLen`.
const LONGEST_DESCRIPTION: usize = 64;

fn field<'a>(map: &'a Map<String, Value>, key: &str) -> &'a str {
    map.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// csi: the fields of `ShareInfo` and `ShareUpdateInfo`.
fn check_fields(map: &Map<String, Value>) -> Result<(), Failure> {
    const KNOWN: [&str; 12] = [
        "name",
        "vol_path",
        "desc",
        "enable_share_cow",
        "enable_recycle_bin",
        "recycle_bin_admin_only",
        "encryption",
        "share_quota",
        "quota_value",
        "support_snapshot",
        "uuid",
        "name_org",
    ];
    match map.keys().find(|key| !KNOWN.contains(&key.as_str())) {
        Some(key) => Err(Failure::strict(
            code::BAD_SHARE,
            format!("{key} is no field of a share"),
        )),
        None => Ok(()),
    }
}

// === impl Share ===

impl Share {
    fn shown(&self) -> Value {
        json!({
            "name": self.name,
            "vol_path": self.path,
            "desc": self.description,
            "enable_share_cow": false,
            "enable_recycle_bin": false,
            "recycle_bin_admin_only": false,
            "encryption": 0,
            "quota_value": self.quota,
            "support_snapshot": true,
            "share_quota_used": 0.0,
            "uuid": self.uuid,
        })
    }
}

// === impl Dsm ===

impl Dsm {
    pub(crate) fn share_method(
        &mut self,
        api: &str,
        method: &str,
        version: u64,
        params: Params,
    ) -> Result<Value, Failure> {
        match (api, method) {
            ("SYNO.Core.Share", "list") => self.list_shares(params),
            ("SYNO.Core.Share", "get") => self.get_share(params),
            ("SYNO.Core.Share", "create") => self.create_share(params),
            ("SYNO.Core.Share", "clone") => self.clone_share(params),
            ("SYNO.Core.Share", "set") => self.set_share(params),
            ("SYNO.Core.Share", "delete") => self.delete_share(params),
            ("SYNO.Core.Share.Permission", "set") => self.set_permissions(params),
            ("SYNO.Core.Share.Permission", "list") => self.list_permissions(params),
            ("SYNO.Core.Share.Snapshot", "create") => self.create_share_snapshot(params),
            // csi asks for version 2, which knows `additional`.
            ("SYNO.Core.Share.Snapshot", "list") if version == 2 => {
                self.list_share_snapshots(params)
            }
            ("SYNO.Core.Share.Snapshot", "delete") => self.delete_share_snapshot(params),
            ("SYNO.Core.FileServ.NFS.SharePrivilege", "save") => self.save_rules(params),
            ("SYNO.Core.FileServ.NFS.SharePrivilege", "load") => self.load_rules(params),
            ("SYNO.Core.FileServ.NFS", "set") => {
                let mut params = params;
                params.ignore(&["enable_nfs", "enable_nfs_v4", "enabled_minor_ver"]);
                params.done()?;
                Ok(Value::Null)
            }
            ("SYNO.Core.FileServ.NFS", "get") => {
                params.done()?;
                Ok(
                    json!({"enable_nfs": true, "enable_nfs_v4": true, "support_major_ver": 4, "support_minor_ver": 1}),
                )
            }
            _ => Err(Failure::of(code::NO_METHOD)),
        }
    }

    fn share(&mut self, name: &str) -> Result<&mut Share, Failure> {
        let mut shares = self.shares.iter_mut();
        let found = shares.find(|share| share.name.eq_ignore_ascii_case(name));
        found.ok_or_else(|| Failure::of(code::NO_SHARE))
    }

    /// csi: `ShareList`.
    fn list_shares(&mut self, mut params: Params) -> Result<Value, Failure> {
        params.texts("additional")?;
        params.done()?;
        let mut shown: Vec<Value> = self.shares.iter().map(Share::shown).collect();
        shown.extend(self.foreign("shares"));
        Ok(json!({"shares": shown, "total": shown.len()}))
    }

    /// csi: `ShareGet`.
    fn get_share(&mut self, mut params: Params) -> Result<Value, Failure> {
        params.texts("additional")?;
        let name = params.text("name")?;
        params.done()?;
        self.share(&name).map(|share| share.shown())
    }

    /// csi: `ShareCreate`, `createSMBorNFSVolumeByDsm`: on Btrfs only, as quotas and snapshots are.
    fn create_share(&mut self, mut params: Params) -> Result<Value, Failure> {
        let (name, info) = (params.text("name")?, params.map("shareinfo")?);
        params.done()?;
        check_fields(&info)?;
        if field(&info, "name") != name || name.len() > LONGEST_NAME {
            return Err(Failure::of(code::BAD_SHARE));
        }
        let quota = info.get("share_quota").and_then(Value::as_u64).unwrap_or(0);
        self.new_share(&name, field(&info, "vol_path"), field(&info, "desc"), quota)?;
        Ok(json!({"name": name}))
    }

    fn new_share(
        &mut self,
        name: &str,
        path: &str,
        description: &str,
        quota: u64,
    ) -> Result<&mut Share, Failure> {
        if description.len() > LONGEST_DESCRIPTION {
            return Err(Failure::of(code::BAD_SHARE));
        }
        if self.volume(path).is_none() {
            return Err(Failure::of(code::SHARE_FAILED));
        }
        if self.share(name).is_ok() {
            return Err(Failure::of(code::SHARE_EXISTS));
        }
        // No source for how many a model takes.
        if self.shares.len() >= 512 {
            return Err(Failure::of(code::MAX_SHARES));
        }
        let share = Share {
            uuid: self.uuid(),
            name: name.to_owned(),
            path: path.to_owned(),
            description: description.to_owned(),
            quota,
            rules: json!([]),
            permissions: Vec::new(),
            snapshots: Vec::new(),
            origin: Origin::Nothing,
        };
        self.shares.push(share);
        self.share(name)
    }

    /// csi: `ShareClone`, which says that 3300 is the answer to a wrong source or snapshot.
    fn clone_share(&mut self, mut params: Params) -> Result<Value, Failure> {
        let (name, info) = (params.text("name")?, params.map("shareinfo")?);
        let snapshot = params.optional_text("snapshot")?;
        params.done()?;
        check_fields(&info)?;
        if field(&info, "name") != name || name.len() > LONGEST_NAME {
            return Err(Failure::of(code::BAD_SHARE));
        }
        let missing = || Failure::of(code::SHARE_FAILED);
        let keeps_quota = self.options.clones_keep_quota;
        let keeps_description = self.options.clones_keep_description;
        let source = self
            .share(field(&info, "name_org"))
            .map_err(|_| missing())?;
        let volume = source.uuid.clone();
        let origin = match snapshot {
            None => Origin::Volume(volume),
            Some(time) => {
                let mut snapshots = source.snapshots.iter();
                let found = snapshots.find(|known| known.time == time);
                let snapshot = found.ok_or_else(missing)?.uuid.clone();
                Origin::Snapshot { volume, snapshot }
            }
        };
        let path = source.path.clone();
        let quota = if keeps_quota { source.quota } else { 0 };
        let description = if keeps_description {
            source.description.clone()
        } else {
            field(&info, "desc").to_owned()
        };
        let share = self.new_share(&name, &path, &description, quota)?;
        share.origin = origin;
        Ok(json!({"name": name}))
    }

    /// csi: `ShareSet`; dsmctl: `desc`.
    fn set_share(&mut self, mut params: Params) -> Result<Value, Failure> {
        let (name, info) = (params.text("name")?, params.map("shareinfo")?);
        params.done()?;
        check_fields(&info)?;
        let share = self.share(&name)?;
        if let Some(quota) = info.get("share_quota").and_then(Value::as_u64) {
            share.quota = quota;
        }
        if let Some(description) = info.get("desc").and_then(Value::as_str) {
            description.clone_into(&mut share.description);
        }
        Ok(Value::Null)
    }

    /// csi: `ShareDelete`: the name is a list.
    fn delete_share(&mut self, mut params: Params) -> Result<Value, Failure> {
        let names = params.texts("name")?;
        params.done()?;
        for name in names {
            self.share(&name)?;
            self.shares
                .retain(|share| !share.name.eq_ignore_ascii_case(&name));
        }
        Ok(Value::Null)
    }

    /// csi: `SharePermissionSet`.
    fn set_permissions(&mut self, mut params: Params) -> Result<Value, Failure> {
        let name = params.text("name")?;
        let kind = params.text("user_group_type")?;
        let wanted = params.take("permissions").unwrap_or_default();
        params.done()?;
        let entries = wanted
            .as_array()
            .ok_or_else(|| Failure::of(code::PARAMETER))?;
        if !["local_user", "local_group", "system"].contains(&kind.as_str()) {
            return Err(Failure::of(code::PARAMETER));
        }
        let share = self.share(&name)?;
        for entry in entries {
            share
                .permissions
                .retain(|known| known["name"] != entry["name"]);
            share.permissions.push(entry.clone());
        }
        Ok(Value::Null)
    }

    /// csi: `SharePermissionList`; n4s4 asks for a part with `action`, `offset` and `limit`.
    fn list_permissions(&mut self, mut params: Params) -> Result<Value, Failure> {
        let name = params.text("name")?;
        params.text("user_group_type")?;
        params.optional_text("action")?;
        let (offset, limit) = (params.take("offset"), params.take("limit"));
        params.done()?;
        let count = |value: Option<Value>| value.and_then(|value| value.as_u64()?.try_into().ok());
        let (offset, limit) = (
            count(offset).unwrap_or(0),
            count(limit).unwrap_or(self.options.users_listed),
        );
        let all = &self.share(&name)?.permissions;
        let items: Vec<_> = all.iter().skip(offset).take(limit).collect();
        Ok(json!({"items": items, "offset": offset, "total": all.len()}))
    }

    /// csi: `ShareSnapshotCreate`; the answer is the time, such as `GMT+08-2022.01.14-19.18.29`.
    fn create_share_snapshot(&mut self, mut params: Params) -> Result<Value, Failure> {
        let (name, info) = (params.text("name")?, params.map("snapinfo")?);
        params.done()?;
        let (uuid, now) = (self.uuid(), self.now());
        let (hour, minute, second) = (now / 3600 % 24, now / 60 % 60, now % 60);
        let time = format!("GMT+00-2023.11.14-{hour:02}.{minute:02}.{second:02}");
        self.share(&name)?.snapshots.push(ShareSnapshot {
            uuid,
            time: time.clone(),
            description: field(&info, "desc").to_owned(),
            locked: info.get("lock").and_then(Value::as_bool).unwrap_or(true),
        });
        Ok(Value::from(time))
    }

    /// csi: `ShareSnapshotList`.
    fn list_share_snapshots(&mut self, mut params: Params) -> Result<Value, Failure> {
        let name = params.text("name")?;
        params.texts("additional")?;
        params.done()?;
        let snapshots = &self.share(&name)?.snapshots;
        let shown = snapshots.iter().map(|snapshot| {
            json!({
                "ruuid": snapshot.uuid,
                "time": snapshot.time,
                "desc": snapshot.description,
                "lock": snapshot.locked,
                "schedule_snapshot": false,
                "snap_size": "0",
            })
        });
        let shown: Vec<Value> = shown.collect();
        Ok(json!({"total": shown.len(), "snapshots": shown}))
    }

    /// csi: `ShareSnapshotDelete`.
    fn delete_share_snapshot(&mut self, mut params: Params) -> Result<Value, Failure> {
        let (name, times) = (params.text("name")?, params.texts("snapshots")?);
        params.done()?;
        let share = self.share(&name)?;
        share
            .snapshots
            .retain(|snapshot| !times.contains(&snapshot.time));
        Ok(json!([]))
    }

    /// csi: `ShareNfsPrivilegeSave`: the fields of `PrivilegeRule`.
    fn save_rules(&mut self, mut params: Params) -> Result<Value, Failure> {
        const FIELDS: [&str; 7] = [
            "async",
            "client",
            "crossmnt",
            "insecure",
            "privilege",
            "root_squash",
            "security_flavor",
        ];
        let name = params.text("share_name")?;
        let rules = params.take("rule").unwrap_or_default();
        params.done()?;
        let entries = rules
            .as_array()
            .ok_or_else(|| Failure::of(code::PARAMETER))?;
        for rule in entries {
            let map = rule
                .as_object()
                .ok_or_else(|| Failure::of(code::PARAMETER))?;
            if map.len() != FIELDS.len() || map.keys().any(|key| !FIELDS.contains(&key.as_str())) {
                return Err(Failure::strict(code::PARAMETER, format!("rule: {rule}")));
            }
        }
        self.share(&name)?.rules = rules;
        Ok(Value::Null)
    }

    /// csi: `ShareNfsPrivilegeLoad`.
    fn load_rules(&mut self, mut params: Params) -> Result<Value, Failure> {
        let name = params.text("share_name")?;
        params.done()?;
        let share = self.share(&name)?;
        Ok(json!({"share_name": share.name, "rule": share.rules}))
    }
}
