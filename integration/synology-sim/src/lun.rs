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
use crate::target::Target;
use crate::version::Version;

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
    /// Those that were asked for.
    pub(crate) attributes: Value,
    pub(crate) snapshots: Vec<Snapshot>,
    pub(crate) origin: Origin,
    /// So many more lists show it as being worked on.
    pub(crate) locked: usize,
    /// It is going: so many more lists show it.
    pub(crate) going: Option<usize>,
}

/// The types, whether they are thin and which filesystem they need. csi: models/dsm.go; dcsi:
/// examples/synology-iscsi.yaml; n4s4: the comment of the class `LUN`; cinder: its own type.
const TYPES: [(&str, u64, bool, &str); 6] = [
    ("BLUN", 263, true, "btrfs"),
    ("BLUN_THICK", 259, false, "btrfs"),
    ("THIN", 1, true, ""),
    ("ADV", 3, true, "ext4"),
    ("FILE", 2, false, ""),
    ("CINDER", 0, true, ""),
];

/// The least size. dcsi, issue 497; Synology's specification of its models. pve (observed): DSM 7.1.1 takes
/// less.
const LEAST: u64 = 1 << 30;
/// The least size of a LUN of the type `ADV`: the help of DSM 6.2.4; csi, issue 23: a smaller one is made, and
/// cannot be loaded.
const LEAST_ADVANCED: u64 = 10 << 30;

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

    /// Whether it is this LUN: by its uuid, or by its name, as csi and cinder ask.
    fn is(&self, uuid_or_name: &str) -> bool {
        self.uuid == uuid_or_name || self.name == uuid_or_name
    }

    /// All attributes: those that were asked for, and the defaults. pve (observed): a thick LUN has
    /// `can_snapshot` 0; csi, issue 23: a thin one has 1, and `emulate_tpu` 0.
    fn shown_attributes(&self, is_7: bool) -> Value {
        let asked = self.attributes.as_array().into_iter().flatten();
        let asked: Vec<&Value> = asked.collect();
        let all = ATTRIBUTES.iter().filter(|(_, of_7)| !of_7 || is_7);
        all.map(|(name, _)| {
            let default = u64::from(*name == "can_snapshot" && !self.is_thick());
            let mut asked = asked.iter();
            let given = asked.find(|entry| entry["dev_attrib"] == **name);
            let enable = given.map_or(Value::from(default), |entry| entry["enable"].clone());
            json!({"dev_attrib": name, "enable": enable})
        })
        .collect()
    }

    /// One more look at it: what DSM works on ends. Whether it is still there.
    fn looked(&mut self) -> bool {
        self.locked = self.locked.saturating_sub(1);
        match &mut self.going {
            None => true,
            Some(0) => false,
            Some(left) => {
                *left -= 1;
                *left > 0
            }
        }
    }

    /// n4s4: the examples of `LUN.list` and `LUN.get`; pve (observed): the fields. `snapshots` comes with
    /// `snapshot_info`, which is read of DSM 7 only; DSM 7.0.1 says `null` for none
    /// (synoiscsiwebapi; csi, issue 23).
    fn shown(&self, additional: &[String], version: Version) -> Value {
        let number = TYPES.iter().find(|(name, ..)| *name == self.kind);
        let mut shown = json!({
            "block_size": 512,
            "create_from": "",
            "description": self.description,
            "dev_attribs": self.shown_attributes(version.is_7()),
            "dev_attribs_bitmap": 0,
            "dev_config": "",
            "dev_qos": {},
            "direct_io_pattern": 0,
            "flashcache_id": "",
            "flashcache_status": "",
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
        if asked("allocated_size") {
            shown["allocated_size"] = Value::from(if self.is_thick() { self.size } else { 0 });
        }
        if asked("snapshot_info") && version.is_7() {
            let snapshots = self.snapshots.iter().map(Snapshot::shown_in_lun);
            shown["snapshots"] = match version {
                Version::V7_0 if self.snapshots.is_empty() => Value::Null,
                _ => snapshots.collect(),
            };
        }
        shown
    }
}

/// pve (observed): letters, digits, `-`, `.`, `:` and `\`.
fn check_name(name: &str) -> Result<(), Failure> {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | ':' | '\\');
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
            "get" => self.get_lun(params),
            "create" => self.create_lun(params),
            "set" => self.set_lun(params),
            "delete" => self.delete_luns(params),
            "clone" => self.clone_lun(params),
            "clone_snapshot" => self.clone_snapshot(params),
            "map_target" => self.map(params, true),
            "unmap_target" => self.map(params, false),
            "take_snapshot" => self.take_snapshot(params),
            "list_snapshot" => self.list_snapshots(params),
            "get_snapshot" => self.get_snapshot(params),
            "delete_snapshot" => self.delete_snapshot(params),
            _ => Err(Failure::of(code::NO_METHOD)),
        }
    }

    pub(crate) fn lun(&mut self, uuid: &str) -> Option<&mut Lun> {
        let mut luns = self.luns.iter_mut();
        luns.find(|lun| lun.uuid == uuid && lun.is_there())
    }

    /// By its uuid or its name. cinder: `set`, `take_snapshot` and `clone_snapshot` take a name.
    pub(crate) fn lun_or_name(&mut self, uuid_or_name: &str) -> Option<&mut Lun> {
        let mut luns = self.luns.iter_mut();
        luns.find(|lun| lun.is(uuid_or_name) && lun.is_there())
    }

    /// cinder: `is_lun_mapped` asks so whether a target shows it.
    fn shown_lun(&self, lun: &Lun, additional: &[String]) -> Value {
        let mut shown = lun.shown(additional, self.options.version);
        if additional.iter().any(|asked| asked == "status") {
            shown["status"] = Value::from(self.status(&lun.name));
        }
        if additional.iter().any(|asked| asked == "is_mapped") {
            let mut targets = self.targets.iter();
            let shows = |target: &Target| target.mapped.values().any(|uuid| *uuid == lun.uuid);
            shown["is_mapped"] = Value::from(targets.any(shows));
        }
        shown
    }

    /// csi: `LunGet`, cinder: `_get_lun_info`, with a uuid or a name; cinder: 18990505 for one that is not there.
    fn get_lun(&mut self, mut params: Params) -> Result<Value, Failure> {
        let uuid = params.text("uuid")?;
        let additional = params.texts("additional")?;
        params.done()?;
        let at = self.luns.iter().position(|lun| lun.is(&uuid));
        let at = at.ok_or_else(|| Failure::of(code::BAD_UUID))?;
        let shown = self.shown_lun(&self.luns[at], &additional);
        if !self.luns[at].looked() {
            self.luns.remove(at);
        }
        Ok(json!({"lun": shown}))
    }

    /// csi: `LunList`; n4s4: `LUN.list`. dcsi: what is being deleted is listed for a while.
    fn list_luns(&mut self, mut params: Params) -> Result<Value, Failure> {
        let additional = params.texts("additional")?;
        params.texts("types")?;
        let location = params.optional_text("location")?;
        params.done()?;
        let luns = self.luns.iter();
        let mut shown: Vec<Value> = luns
            .filter(|lun| location.as_ref().is_none_or(|path| *path == lun.location))
            .map(|lun| self.shown_lun(lun, &additional))
            .collect();
        shown.extend(self.foreign("luns"));
        self.luns.retain_mut(Lun::looked);
        Ok(json!({"luns": shown}))
    }

    /// csi: `LunCreate`; dcsi: `CreateLun`, and `direct_io_pattern` in docs/storage-class-parameters.md; n4s4:
    /// `LUN.create`. pve (observed): a new LUN is action-locked for a second, which delays nothing.
    fn create_lun(&mut self, mut params: Params) -> Result<Value, Failure> {
        let name = params.text("name")?;
        let size = params.number("size")?;
        let location = params.text("location")?;
        let kind = params.optional_text("type")?.unwrap_or_default();
        let description = params.optional_text("description")?.unwrap_or_default();
        let attributes = params.take("dev_attribs").unwrap_or_else(|| json!([]));
        params.ignore(&["direct_io_pattern"]);
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
        let filesystem = filesystem.ok_or_else(|| Failure::of(code::BAD_LOCATION))?;
        if !needs.is_empty() && *needs != filesystem {
            return Err(Failure::of(code::TYPE_OF_FILESYSTEM));
        }
        if size < LEAST {
            return Err(Failure::of(code::BAD_SIZE));
        }
        if !thin && size > self.free(&location) {
            return Err(Failure::of(code::NO_SPACE));
        }
        let is_long = name.len() == LONGEST_NAME;
        let lag = self.options.lag;
        let lun = self.new_lun(&name, &location, size)?;
        lun.locked = lag;
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
    /// `is_soft_feas_ignored`; cinder: `new_name`. No source for the answer to a smaller size.
    fn set_lun(&mut self, mut params: Params) -> Result<Value, Failure> {
        let uuid = params.text("uuid")?;
        let size = params
            .take("new_size")
            .map(|size| size.as_u64().ok_or_else(|| Failure::of(code::PARAMETER)))
            .transpose()?;
        let description = params.optional_text("description")?;
        let name = params.optional_text("new_name")?;
        params.boolean("is_soft_feas_ignored")?;
        params.done()?;
        name.as_deref().map_or(Ok(()), check_name)?;
        let known = self.luns.iter().find(|lun| lun.is(&uuid));
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
        let lun = self.lun_or_name(&uuid);
        let lun = lun.ok_or_else(|| Failure::of(code::NO_LUN))?;
        lun.name = name.unwrap_or_else(|| lun.name.clone());
        lun.size = size.unwrap_or(lun.size);
        lun.description = description.unwrap_or_else(|| lun.description.clone());
        Ok(Value::Null)
    }

    /// dcsi: `DeleteLun`, which waits until the LUN is listed no more; n4s4: `LUN.delete`. pve
    /// (observed): neither snapshots nor mappings keep a LUN; its snapshots go with it. n4s4: a package keeps a snapshot
    /// (`locked_app_keys`); dcsi overrides that by `is_soft_feas_ignored`, dsmctl does not. No source for the code.
    fn delete_luns(&mut self, mut params: Params) -> Result<Value, Failure> {
        let one = params
            .optional_text("uuid")?
            .filter(|uuid| !uuid.is_empty());
        let many = params.texts("uuids")?;
        let is_overridden = params.boolean("is_soft_feas_ignored")?;
        params.done()?;
        let lag = self.options.lag;
        for uuid in one.into_iter().chain(many) {
            let lun = self.lun(&uuid).ok_or_else(|| Failure::of(code::NO_LUN))?;
            if !is_overridden && lun.snapshots.iter().any(Snapshot::is_kept) {
                return Err(Failure::of(code::SNAPSHOT_KEPT));
            }
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
        let same_pool = params.boolean("is_same_pool")?;
        params.done()?;
        let source = self.lun(&source).ok_or_else(|| Failure::of(code::NO_LUN))?;
        let mut source = source.clone();
        let stays = location.as_ref().is_none_or(|to| *to == source.location);
        if same_pool && !stays {
            let why = "`is_same_pool` for a copy to another volume";
            return Err(Failure::strict(code::PARAMETER, why));
        }
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
        let source = self.lun_or_name(&source);
        let source = source.ok_or_else(|| Failure::of(code::NO_LUN))?;
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
        let (lag, keeps) = (self.options.lag, self.options.clones_keep_description);
        let lun = self.new_lun(name, &source.location, source.size)?;
        lun.origin = origin;
        lun.kind.clone_from(&source.kind);
        lun.attributes = source.attributes.clone();
        lun.description = if keeps {
            source.description.clone()
        } else {
            description.unwrap_or_default()
        };
        lun.locked = lag;
        Ok(lun.uuid.clone())
    }

    /// csi: `LunMapTarget`; dcsi: `MapLun`; n4s4: `LUN.map_target`, `LUN.unmap_target`. pve (observed):
    /// both change only the targets that are named; the first number is 1, and a free one is used again.
    /// cinder: the ids are texts.
    fn map(&mut self, mut params: Params, on: bool) -> Result<Value, Failure> {
        let uuid = params.text("uuid")?;
        let targets = params.take("target_ids");
        let targets = targets.as_ref().and_then(Value::as_array);
        let id = |id: &Value| id.as_u64().or_else(|| id.as_str()?.parse().ok());
        let targets: Option<Vec<u64>> = targets.and_then(|ids| ids.iter().map(id).collect());
        let targets = targets.ok_or_else(|| Failure::of(code::PARAMETER))?;
        params.done()?;
        let lun = self.lun(&uuid).ok_or_else(|| Failure::of(code::BAD_UUID))?;
        if on && lun.kind == "ADV" && lun.size < LEAST_ADVANCED {
            return Err(Failure::of(code::CANNOT_LOAD));
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
