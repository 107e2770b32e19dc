//! `SYNO.Core.ISCSI.LUN`: LUNs, copies of them, and which targets show them.
//!
//! Read from: csi (SynologyOpenSource/synology-csi, pkg/dsm/webapi/iscsi.go), dcsi (democratic-csi,
//! src/driver/controller-synology), n4s4 (N4S4/synology-api, `synology_api/core_iscsi.py`), pve
//! (jasoncheng7115/jt-pve-storage-synology, docs/TESTING.md), dsmctl (ychiu1211/dsmctl,
//! internal/synology/operations/sanmutation).

use serde_json::{Value, json};

use crate::dsm::Dsm;
use crate::failure::{Failure, code};
use crate::host::Origin;
use crate::params::Params;
use crate::snapshot::Snapshot;

/// One LUN.
#[derive(Debug, Clone)]
pub(crate) struct Lun {
    pub(crate) id: u64,
    pub(crate) uuid: String,
    pub(crate) name: String,
    pub(crate) description: String,
    pub(crate) location: String,
    pub(crate) size: u64,
    pub(crate) kind: String,
    pub(crate) attributes: Value,
    pub(crate) snapshots: Vec<Snapshot>,
    pub(crate) origin: Origin,
    /// So many more lists show it as being worked on.
    pub(crate) locked: usize,
    /// It is going: so many more lists show it.
    pub(crate) going: Option<usize>,
}

/// The types, whether they are thin and which filesystem they need. csi: models/dsm.go; dcsi:
/// examples/synology-iscsi.yaml; n4s4: the comment of the class `LUN`.
const TYPES: [(&str, u64, bool, &str); 5] = [
    ("BLUN", 263, true, "btrfs"),
    ("BLUN_THICK", 259, false, "btrfs"),
    ("THIN", 1, true, ""),
    ("ADV", 3, true, "ext4"),
    ("FILE", 2, false, ""),
];

/// n4s4: `LUN.create`. The two of flushing came with DSM 7.
const ATTRIBUTES: [(&str, bool); 7] = [
    ("emulate_3pc", false),
    ("emulate_tpws", false),
    ("emulate_caw", false),
    ("emulate_tpu", false),
    ("can_snapshot", false),
    ("emulate_fua_write", true),
    ("emulate_sync_cache", true),
];

/// The longest name. pve (observed): 256 bytes are refused, 255 too, but the LUN is made.
const LONGEST_NAME: usize = 255;

// === impl Lun ===

impl Lun {
    pub(crate) fn is_thick(&self) -> bool {
        let mut types = TYPES.iter();
        types.any(|(name, _, thin, _)| *name == self.kind && !thin)
    }

    pub(crate) fn is_there(&self) -> bool {
        self.going.is_none()
    }

    /// n4s4: the examples of `LUN.list` and `LUN.get`. `snapshots` comes with `snapshot_info`, which is
    /// read of DSM 7 only.
    fn shown(&self, additional: &[String], is_7: bool) -> Value {
        let number = TYPES.iter().find(|(name, ..)| *name == self.kind);
        let mut shown = json!({
            "block_size": 512,
            "create_from": "",
            "description": self.description,
            "dev_attribs": self.attributes,
            "location": self.location,
            "lun_id": self.id,
            "name": self.name,
            "restored_time": 0,
            "size": self.size,
            "type": number.map_or(0, |(_, number, ..)| *number),
            "type_str": self.kind,
            "uuid": self.uuid,
            "vpd_unit_sn": self.uuid,
        });
        let asked = |name: &str| additional.iter().any(|asked| asked == name);
        if asked("is_action_locked") {
            shown["is_action_locked"] = Value::from(self.locked > 0 || self.going.is_some());
        }
        if asked("status") {
            shown["status"] = Value::from("normal");
        }
        if asked("allocated_size") {
            shown["allocated_size"] = Value::from(if self.is_thick() { self.size } else { 0 });
        }
        if asked("snapshot_info") && is_7 {
            shown["snapshots"] = self.snapshots.iter().map(Snapshot::shown_in_lun).collect();
        }
        shown
    }
}

/// pve (observed): letters, digits, `-`, `.` and `:`.
fn check_name(name: &str) -> Result<(), Failure> {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | ':');
    if name.is_empty() || name.len() > LONGEST_NAME || !name.chars().all(legal) {
        return Err(Failure::of(code::BAD_NAME));
    }
    Ok(())
}

// === impl Dsm ===

impl Dsm {
    pub(crate) fn lun_method(&mut self, method: &str, params: Params) -> Result<Value, Failure> {
        match method {
            "list" => self.list_luns(params),
            "create" => self.create_lun(params),
            "set" => self.set_lun(params),
            "delete" => self.delete_luns(params),
            "clone" => self.clone_lun(params),
            "clone_snapshot" => self.clone_snapshot(params),
            "map_target" => self.map(params, true),
            "unmap_target" => self.map(params, false),
            "take_snapshot" => self.take_snapshot(params),
            "list_snapshot" => self.list_snapshots(params),
            "delete_snapshot" => self.delete_snapshot(params),
            _ => Err(Failure::of(code::NO_METHOD)),
        }
    }

    pub(crate) fn lun(&mut self, uuid: &str) -> Option<&mut Lun> {
        let mut luns = self.luns.iter_mut();
        luns.find(|lun| lun.uuid == uuid && lun.is_there())
    }

    /// csi: `LunList`; n4s4: `LUN.list`. dcsi: what is being deleted is listed for a while.
    fn list_luns(&mut self, mut params: Params) -> Result<Value, Failure> {
        let additional = params.texts("additional")?;
        params.texts("types")?;
        let location = params.optional_text("location")?;
        params.done()?;
        let is_7 = self.options.version.is_7();
        let luns = self.luns.iter();
        let shown: Vec<Value> = luns
            .filter(|lun| location.as_ref().is_none_or(|path| *path == lun.location))
            .map(|lun| lun.shown(&additional, is_7))
            .collect();
        for lun in &mut self.luns {
            lun.locked = lun.locked.saturating_sub(1);
        }
        self.luns.retain_mut(|lun| match &mut lun.going {
            None => true,
            Some(0) => false,
            Some(left) => {
                *left -= 1;
                *left > 0
            }
        });
        Ok(json!({"luns": shown}))
    }

    /// csi: `LunCreate`; dcsi: `CreateLun`; n4s4: `LUN.create`.
    fn create_lun(&mut self, mut params: Params) -> Result<Value, Failure> {
        let name = params.text("name")?;
        let size = params.number("size")?;
        let location = params.text("location")?;
        let kind = params.optional_text("type")?.unwrap_or_default();
        let description = params.optional_text("description")?.unwrap_or_default();
        let attributes = params.take("dev_attribs").unwrap_or_else(|| json!([]));
        params.done()?;
        self.check_attributes(&attributes)?;
        check_name(&name)?;
        let (.., thin, needs) = TYPES
            .iter()
            .find(|(known, ..)| *known == kind)
            .ok_or_else(|| Failure::of(code::BAD_TYPE))?;
        let filesystem = self
            .volume(&location)
            .map(|volume| volume.filesystem.clone());
        // No source for the code of a location that is not there.
        let filesystem = filesystem.ok_or_else(|| Failure::of(code::NO_VOLUME))?;
        if !needs.is_empty() && *needs != filesystem {
            return Err(Failure::of(code::TYPE_OF_FILESYSTEM));
        }
        if size == 0 || (!thin && size > self.free(&location)) {
            return Err(Failure::of(code::NO_SPACE));
        }
        let is_long = name.len() == LONGEST_NAME;
        let lun = self.new_lun(&name, &location, size)?;
        lun.kind = kind;
        lun.description = description;
        lun.attributes = attributes;
        if is_long {
            return Err(Failure::of(code::LONG_NAME_MADE));
        }
        Ok(json!({"lun_id": lun.id, "uuid": lun.uuid}))
    }

    fn check_attributes(&self, attributes: &Value) -> Result<(), Failure> {
        let refused = || Failure::strict(code::PARAMETER, format!("dev_attribs: {attributes}"));
        for attribute in attributes.as_array().ok_or_else(refused)? {
            let name = attribute["dev_attrib"].as_str().ok_or_else(refused)?;
            let is_number = attribute["enable"].as_u64().is_some_and(|on| on < 2);
            let known = ATTRIBUTES
                .iter()
                .any(|(known, of_7)| *known == name && (!of_7 || self.options.version.is_7()));
            if !known || !is_number || attribute.as_object().is_none_or(|map| map.len() != 2) {
                return Err(refused());
            }
        }
        Ok(())
    }

    fn new_lun(&mut self, name: &str, location: &str, size: u64) -> Result<&mut Lun, Failure> {
        if self.luns.iter().any(|lun| lun.name == name) {
            return Err(Failure::of(code::LUN_EXISTS));
        }
        if self.luns.len() >= self.options.most.0 {
            return Err(Failure::of(code::MAX_LUNS));
        }
        let lun = Lun {
            id: self.number(),
            uuid: self.uuid(),
            name: name.to_owned(),
            description: String::new(),
            location: location.to_owned(),
            size,
            kind: String::new(),
            attributes: json!([]),
            snapshots: Vec::new(),
            origin: Origin::Nothing,
            locked: 0,
            going: None,
        };
        self.luns.push(lun);
        self.luns
            .last_mut()
            .ok_or_else(|| Failure::of(code::NO_LUN))
    }

    /// csi: `LunUpdate`; dcsi: `ExpandISCSILun`; n4s4: `LUN.set`; dsmctl: `description`,
    /// `is_soft_feas_ignored`. No source for the answer to a smaller size.
    fn set_lun(&mut self, mut params: Params) -> Result<Value, Failure> {
        let uuid = params.text("uuid")?;
        let size = params
            .take("new_size")
            .map(|size| size.as_u64().ok_or_else(|| Failure::of(code::PARAMETER)))
            .transpose()?;
        let description = params.optional_text("description")?;
        params.boolean("is_soft_feas_ignored")?;
        params.done()?;
        let known = self.luns.iter().find(|lun| lun.uuid == uuid);
        let (location, old, thick) = known
            .map(|lun| (lun.location.clone(), lun.size, lun.is_thick()))
            .ok_or_else(|| Failure::of(code::NO_LUN))?;
        if let Some(size) = size {
            if size < old {
                return Err(Failure::strict(code::PARAMETER, "a LUN is made smaller"));
            }
            if thick && size - old > self.free(&location) {
                return Err(Failure::of(code::NO_SPACE));
            }
        }
        let lun = self.lun(&uuid).ok_or_else(|| Failure::of(code::NO_LUN))?;
        lun.size = size.unwrap_or(lun.size);
        lun.description = description.unwrap_or_else(|| lun.description.clone());
        Ok(Value::Null)
    }

    /// dcsi: `DeleteLun`, which waits until the LUN is listed no more; n4s4: `LUN.delete`. pve
    /// (observed): neither snapshots nor mappings keep a LUN; its snapshots go with it.
    fn delete_luns(&mut self, mut params: Params) -> Result<Value, Failure> {
        let one = params
            .optional_text("uuid")?
            .filter(|uuid| !uuid.is_empty());
        let many = params.texts("uuids")?;
        params.boolean("is_soft_feas_ignored")?;
        params.done()?;
        let lag = self.options.lag;
        for uuid in one.into_iter().chain(many) {
            let lun = self.lun(&uuid).ok_or_else(|| Failure::of(code::NO_LUN))?;
            lun.going = Some(lag);
            lun.snapshots.clear();
            for target in &mut self.targets {
                target.mapped.retain(|_, mapped| *mapped != uuid);
            }
        }
        if lag == 0 {
            self.luns.retain(Lun::is_there);
        }
        Ok(Value::Null)
    }

    /// csi: `LunClone`, `waitCloneFinished`; dcsi: `CreateClonedVolume`; n4s4: `LUN.clone`.
    fn clone_lun(&mut self, mut params: Params) -> Result<Value, Failure> {
        let source = params.text("src_lun_uuid")?;
        let name = params.text("dst_lun_name")?;
        let location = params.optional_text("dst_location")?;
        let description = params.optional_text("description")?;
        params.optional_text("clone_type")?;
        params.boolean("is_same_pool")?;
        params.done()?;
        let source = self.lun(&source).ok_or_else(|| Failure::of(code::NO_LUN))?;
        let mut source = source.clone();
        source.location = location.unwrap_or(source.location);
        let origin = Origin::Volume(source.uuid.clone());
        let uuid = self.copied(&source, origin, &name, description)?;
        Ok(json!({"dst_lun_uuid": uuid}))
    }

    /// csi: `SnapshotClone`; dcsi: `CreateVolumeFromSnapshot`.
    fn clone_snapshot(&mut self, mut params: Params) -> Result<Value, Failure> {
        let source = params.text("src_lun_uuid")?;
        let snapshot = params.text("snapshot_uuid")?;
        let name = params.text("cloned_lun_name")?;
        let description = params.optional_text("description")?;
        params.optional_text("clone_type")?;
        params.done()?;
        let source = self.lun(&source).ok_or_else(|| Failure::of(code::NO_LUN))?;
        let mut snapshots = source.snapshots.iter();
        let snapshot = snapshots.find(|known| known.uuid == snapshot);
        let snapshot = snapshot.ok_or_else(|| Failure::of(code::NO_SNAPSHOT))?;
        let origin = Origin::Snapshot {
            volume: source.uuid.clone(),
            snapshot: snapshot.uuid.clone(),
        };
        let (size, mut source) = (snapshot.size, source.clone());
        source.size = size;
        let uuid = self.copied(&source, origin, &name, description)?;
        Ok(json!({"cloned_lun_uuid": uuid}))
    }

    fn copied(
        &mut self,
        source: &Lun,
        origin: Origin,
        name: &str,
        description: Option<String>,
    ) -> Result<String, Failure> {
        check_name(name)?;
        let lag = self.options.lag;
        let lun = self.new_lun(name, &source.location, source.size)?;
        lun.origin = origin;
        lun.kind.clone_from(&source.kind);
        lun.attributes = source.attributes.clone();
        lun.description = description.unwrap_or_default();
        lun.locked = lag;
        Ok(lun.uuid.clone())
    }

    /// csi: `LunMapTarget`; dcsi: `MapLun`; n4s4: `LUN.map_target`, `LUN.unmap_target`. pve (observed):
    /// both change only the targets that are named; the first number is 1, and a free one is used again.
    fn map(&mut self, mut params: Params, on: bool) -> Result<Value, Failure> {
        let uuid = params.text("uuid")?;
        let targets: Vec<u64> = params
            .take("target_ids")
            .and_then(|ids| serde_json::from_value(ids).ok())
            .ok_or_else(|| Failure::strict(code::PARAMETER, "target_ids is no list of numbers"))?;
        params.done()?;
        if self.lun(&uuid).is_none() {
            return Err(Failure::of(code::BAD_UUID));
        }
        for id in targets {
            let target = self
                .target(id)
                .ok_or_else(|| Failure::of(code::NO_TARGET))?;
            if !on {
                target.mapped.retain(|_, mapped| *mapped != uuid);
            } else if target.mapped.values().all(|mapped| *mapped != uuid) {
                let free = (1..=16_383).find(|number| !target.mapped.contains_key(number));
                target.mapped.insert(free.unwrap_or(u64::MAX), uuid.clone());
            }
        }
        Ok(Value::Null)
    }
}
