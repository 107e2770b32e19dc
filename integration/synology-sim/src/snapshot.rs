//! Snapshots of LUNs: methods of `SYNO.Core.ISCSI.LUN`.
//!
//! Read from: the same as [`crate::lun`].

use serde_json::{Value, json};

use crate::dsm::Dsm;
use crate::failure::{Failure, code};
use crate::params::Params;

/// One snapshot.
#[derive(Debug, Clone)]
pub(crate) struct Snapshot {
    pub(crate) id: u64,
    pub(crate) uuid: String,
    pub(crate) name: String,
    pub(crate) description: String,
    pub(crate) parent: String,
    pub(crate) parent_id: u64,
    pub(crate) size: u64,
    pub(crate) time: u64,
    pub(crate) taken_by: String,
    pub(crate) locked: bool,
    /// The packages of the NAS that keep it.
    pub(crate) packages: Vec<String>,
    pub(crate) path: String,
}

// === impl Snapshot ===

impl Snapshot {
    /// Whether a package of the NAS keeps it.
    pub(crate) fn is_kept(&self) -> bool {
        !self.packages.is_empty()
    }

    /// pve (observed): the fields; csi: `SnapshotInfo`; n4s4: `locked_app_keys`. dcsi reads `time`, which DSM 7 does not give (pve, n4s4).
    fn shown(&self, is_7: bool) -> Value {
        let mut shown = json!({
            "create_time": self.time,
            "description": self.description,
            "is_app_consistent": false,
            "is_user_locked": self.locked,
            "mapped_size": 0,
            "name": self.name,
            "parent_lun_id": self.parent_id,
            "parent_uuid": self.parent,
            "root_path": self.path,
            "snapshot_id": self.id,
            "snapshot_time": self.time,
            "status": "Healthy",
            "taken_by": self.taken_by,
            "total_size": self.size,
            "type": 1,
            "uuid": self.uuid,
            "version": 2,
        });
        if self.is_kept() {
            shown["locked_app_keys"] = json!(self.packages);
        }
        if !is_7 {
            shown["time"] = Value::from(self.time);
        }
        shown
    }

    /// n4s4: the example of `LUN.list`: the status is a map there.
    pub(crate) fn shown_in_lun(&self) -> Value {
        let mut shown = self.shown(true);
        shown["status"] =
            json!({"progress": {"percent": -1, "step": "waiting"}, "type": "Healthy"});
        shown
    }
}

// === impl Dsm ===

impl Dsm {
    /// csi: `SnapshotCreate`; dcsi: `CreateSnapshot`. pve (observed): an empty `taken_by` becomes
    /// `webapi`, and a LUN has snapshots only with `can_snapshot`; no source for the code without it. The help of
    /// DSM 6.2.4: LUNs on ext4 have none; csi, issue 22. Each source sends `is_locked` and `is_app_consistent`.
    pub(crate) fn take_snapshot(&mut self, mut params: Params) -> Result<Value, Failure> {
        let source = params.text("src_lun_uuid")?;
        let name = params.optional_text("snapshot_name")?;
        let description = params.optional_text("description")?.unwrap_or_default();
        let taken_by = params.optional_text("taken_by")?.unwrap_or_default();
        let has_both = params.has("is_locked") && params.has("is_app_consistent");
        if self.options.strict && !has_both {
            return Err(Failure::of(code::MISSING));
        }
        let locked = params.boolean("is_locked")?;
        params.boolean("is_app_consistent")?;
        params.done()?;
        let (uuid, time, most) = (self.uuid(), self.now(), self.options.most.2);
        let (capital, id) = (self.options.capital_uuids, self.number());
        let lun = self.lun_or_name(&source);
        let lun = lun.ok_or_else(|| Failure::of(code::NO_LUN))?;
        let location = lun.location.clone();
        let is_btrfs = self
            .volume(&location)
            .is_some_and(|volume| volume.filesystem == "btrfs");
        let lun = self.lun_or_name(&source);
        let lun = lun.ok_or_else(|| Failure::of(code::NO_LUN))?;
        if lun.is_thick() || !is_btrfs {
            return Err(Failure::of(code::BAD_TYPE));
        }
        if lun.snapshots.len() >= most {
            return Err(Failure::of(code::MAX_SNAPSHOTS));
        }
        let name = name.unwrap_or_else(|| format!("{}-{time}", lun.name));
        lun.snapshots.push(Snapshot {
            id,
            uuid: uuid.clone(),
            name,
            description,
            parent: lun.uuid.clone(),
            parent_id: lun.id,
            size: lun.size,
            time,
            taken_by: if taken_by.is_empty() {
                "webapi".to_owned()
            } else {
                taken_by
            },
            locked,
            packages: Vec::new(),
            path: lun.location.clone(),
        });
        let answered = if capital { uuid.to_uppercase() } else { uuid };
        Ok(json!({"snapshot_uuid": answered}))
    }

    /// csi: `SnapshotList`; dcsi: `GetSnapshots`. pve (observed): 18990531 for a LUN that is gone.
    pub(crate) fn list_snapshots(&mut self, mut params: Params) -> Result<Value, Failure> {
        let lun = params.text("src_lun_uuid")?;
        params.done()?;
        let is_7 = self.options.version.is_7();
        let lun = self.lun(&lun).ok_or_else(|| Failure::of(code::NO_LUN))?;
        let snapshots = lun.snapshots.iter();
        let shown: Vec<Value> = snapshots.map(|one| one.shown(is_7)).collect();
        Ok(json!({"count": shown.len(), "snapshots": shown}))
    }

    /// csi: `SnapshotGet`; cinder: `_get_snapshot_info`, with `is_action_locked`.
    pub(crate) fn get_snapshot(&mut self, mut params: Params) -> Result<Value, Failure> {
        let uuid = params.text("snapshot_uuid")?;
        let additional = params.texts("additional")?;
        params.done()?;
        let is_7 = self.options.version.is_7();
        let mut all = self.luns.iter().flat_map(|lun| &lun.snapshots);
        let found = all.find(|known| known.uuid == uuid);
        let mut shown = found
            .ok_or_else(|| Failure::of(code::NO_SNAPSHOT))?
            .shown(is_7);
        if additional.iter().any(|asked| asked == "is_action_locked") {
            shown["is_action_locked"] = Value::from(false);
        }
        Ok(json!({"snapshot": shown}))
    }

    /// csi: `SnapshotDelete`; dcsi: `DeleteSnapshot`. pve (observed): a copy of it does not keep it.
    pub(crate) fn delete_snapshot(&mut self, mut params: Params) -> Result<Value, Failure> {
        let uuid = params.text("snapshot_uuid")?;
        params.optional_text("deleted_by")?;
        params.done()?;
        for lun in &mut self.luns {
            let mut snapshots = lun.snapshots.iter();
            if let Some(at) = snapshots.position(|known| known.uuid.eq_ignore_ascii_case(&uuid)) {
                lun.snapshots.remove(at);
                return Ok(Value::Null);
            }
        }
        Err(Failure::of(code::NO_SNAPSHOT))
    }
}
