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
    pub(crate) uuid: String,
    pub(crate) name: String,
    pub(crate) description: String,
    pub(crate) parent: String,
    pub(crate) size: u64,
    pub(crate) time: u64,
    pub(crate) taken_by: String,
    pub(crate) locked: bool,
    pub(crate) path: String,
}

// === impl Snapshot ===

impl Snapshot {
    /// csi: `SnapshotInfo`; dcsi reads `time`, `total_size`, `description`, `parent_uuid`.
    fn shown(&self) -> Value {
        json!({
            "create_time": self.time,
            "description": self.description,
            "is_app_consistent": false,
            "is_user_locked": self.locked,
            "name": self.name,
            "parent_uuid": self.parent,
            "root_path": self.path,
            "status": "Healthy",
            "taken_by": self.taken_by,
            "time": self.time,
            "total_size": self.size,
            "uuid": self.uuid,
        })
    }

    /// n4s4: the example of `LUN.list`: the status is a map there, and the time has another name.
    pub(crate) fn shown_in_lun(&self) -> Value {
        let mut shown = self.shown();
        shown["status"] =
            json!({"progress": {"percent": -1, "step": "waiting"}, "type": "Healthy"});
        if let Some(map) = shown.as_object_mut() {
            map.remove("time");
        }
        shown["snapshot_time"] = Value::from(self.time);
        shown
    }
}

// === impl Dsm ===

impl Dsm {
    /// csi: `SnapshotCreate`; dcsi: `CreateSnapshot`. pve (observed): an empty `taken_by` becomes
    /// `webapi`, and a LUN has snapshots only with `can_snapshot`; no source for the code without it.
    pub(crate) fn take_snapshot(&mut self, mut params: Params) -> Result<Value, Failure> {
        let lun = params.text("src_lun_uuid")?;
        let name = params.optional_text("snapshot_name")?;
        let description = params.optional_text("description")?.unwrap_or_default();
        let taken_by = params.optional_text("taken_by")?.unwrap_or_default();
        let locked = params.boolean("is_locked")?;
        params.boolean("is_app_consistent")?;
        params.done()?;
        let (uuid, time, most) = (self.uuid(), self.now(), self.options.most.2);
        let capital = self.options.capital_uuids;
        let lun = self.lun(&lun).ok_or_else(|| Failure::of(code::NO_LUN))?;
        if lun.is_thick() {
            return Err(Failure::of(code::BAD_TYPE));
        }
        if lun.snapshots.len() >= most {
            return Err(Failure::of(code::MAX_SNAPSHOTS));
        }
        let name = name.unwrap_or_else(|| format!("{}-{time}", lun.name));
        lun.snapshots.push(Snapshot {
            uuid: uuid.clone(),
            name,
            description,
            parent: lun.uuid.clone(),
            size: lun.size,
            time,
            taken_by: if taken_by.is_empty() {
                "webapi".to_owned()
            } else {
                taken_by
            },
            locked,
            path: lun.location.clone(),
        });
        let answered = if capital { uuid.to_uppercase() } else { uuid };
        Ok(json!({"snapshot_uuid": answered}))
    }

    /// csi: `SnapshotList`; dcsi: `GetSnapshots`. pve (observed): 18990531 for a LUN that is gone.
    pub(crate) fn list_snapshots(&mut self, mut params: Params) -> Result<Value, Failure> {
        let lun = params.text("src_lun_uuid")?;
        params.done()?;
        let lun = self.lun(&lun).ok_or_else(|| Failure::of(code::NO_LUN))?;
        let shown: Vec<Value> = lun.snapshots.iter().map(Snapshot::shown).collect();
        Ok(json!({"snapshots": shown}))
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
