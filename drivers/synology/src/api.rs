//! The calls for LUNs, targets and volumes, and what is read of their answers.

use driver_core::{Call, Capacity, Error, Kind};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::client::{Client, Request};
use crate::error::{Code, Failure};
use crate::template::Template;

const LUN: &str = "SYNO.Core.ISCSI.LUN";
const TARGET: &str = "SYNO.Core.ISCSI.Target";
const VOLUME: &str = "SYNO.Core.Storage.Volume";

/// What a copy is marked with. compat: "Synology": as democratic-csi, which is what made the other copies.
const CLONE_TYPE: &str = "democratic-csi";

/// A LUN.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Lun {
    pub(crate) uuid: String,
    pub(crate) name: String,
    #[serde(default, rename = "lun_id")]
    pub(crate) number: Option<u64>,
    pub(crate) size: u64,
    #[serde(default)]
    pub(crate) description: String,
    /// DSM works on it: it is being copied or deleted.
    #[serde(default)]
    pub(crate) is_action_locked: bool,
    /// Its snapshots; a DSM that does not know `snapshot_info` leaves them out.
    #[serde(default)]
    pub(crate) snapshots: Option<Vec<LunSnapshot>>,
}

/// A snapshot of a LUN. What holds its time has several names.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct LunSnapshot {
    pub(crate) uuid: String,
    #[serde(default)]
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) description: String,
    #[serde(default)]
    pub(crate) total_size: u64,
    #[serde(default)]
    create_time: Option<u64>,
    #[serde(default)]
    snapshot_time: Option<u64>,
    #[serde(default)]
    time: Option<u64>,
    #[serde(default)]
    pub(crate) taken_by: Option<String>,
    #[serde(default)]
    pub(crate) is_user_locked: bool,
}

/// A target.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Target {
    #[serde(rename = "target_id")]
    pub(crate) id: u64,
    pub(crate) name: String,
    pub(crate) iqn: String,
    #[serde(default)]
    pub(crate) mapped_luns: Vec<Mapping>,
}

/// A LUN of a target.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Mapping {
    pub(crate) lun_uuid: String,
    pub(crate) mapping_index: i64,
}

/// A volume of the NAS.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct NasVolume {
    size_free_byte: Value,
    #[serde(default)]
    pub(crate) fs_type: String,
}

// === impl LunSnapshot ===

impl LunSnapshot {
    /// When it was taken, in seconds since 1970.
    pub(crate) fn seconds(&self) -> u64 {
        self.time
            .or(self.create_time)
            .or(self.snapshot_time)
            .unwrap_or(0)
    }
}

// === impl NasVolume ===

impl NasVolume {
    /// The free bytes, which DSM writes as text.
    pub(crate) fn free(&self) -> Option<u64> {
        match &self.size_free_byte {
            Value::String(text) => text.parse().ok(),
            other => other.as_u64(),
        }
    }
}

// === impl Target ===

impl Target {
    /// The number of that LUN, if it is shown there.
    pub(crate) fn number_of(&self, uuid: &str) -> Option<i64> {
        let mut mapped = self.mapped_luns.iter();
        mapped
            .find(|mapped| mapped.lun_uuid == uuid)
            .map(|mapped| mapped.mapping_index)
    }
}

// === impl Client ===

impl Client {
    pub(crate) async fn read<T: DeserializeOwned>(
        &self,
        call: &Call,
        request: Request,
        key: &'static str,
    ) -> Result<T, Failure> {
        let mut data = self.send(call, &request).await?;
        let value = data.get_mut(key).map(Value::take).unwrap_or_default();
        serde_json::from_value(value).map_err(|_| self.odd("a field is missing or of another type"))
    }

    pub(crate) async fn change(&self, call: &Call, request: Request) -> Result<(), Failure> {
        call.changing();
        self.send(call, &request).await.map(drop)
    }

    /// All LUNs. No types are asked for: a list of types hides those that it does not name.
    pub(crate) async fn luns(&self, call: &Call) -> Result<Vec<Lun>, Failure> {
        let fields = json!(["is_action_locked", "status"]);
        let request = Request::new(LUN, "list").with("additional", fields);
        self.read(call, request, "luns").await
    }

    /// All LUNs with their snapshots, which some DSM give at once and others one by one.
    pub(crate) async fn luns_with_snapshots(&self, call: &Call) -> Result<Vec<Lun>, Failure> {
        let fields = json!(["is_action_locked", "status", "snapshot_info"]);
        let request = Request::new(LUN, "list").with("additional", fields);
        let mut luns: Vec<Lun> = self.read(call, request, "luns").await?;
        for lun in &mut luns {
            if lun.snapshots.is_none() {
                lun.snapshots = Some(self.snapshots(call, &lun.uuid).await?);
            }
        }
        Ok(luns)
    }

    pub(crate) async fn create_lun(
        &self,
        call: &Call,
        template: &Template,
        name: &str,
        location: &str,
        size: u64,
    ) -> Result<(), Failure> {
        let mut request = with_template(Request::new(LUN, "create"), template);
        request = request
            .with("name", name)
            .with("location", location)
            .with("size", size);
        self.change(call, request).await
    }

    /// compat: "Synology": the parameters are those of democratic-csi.
    pub(crate) async fn clone_lun(
        &self,
        call: &Call,
        source: &str,
        name: &str,
        location: &str,
        description: &str,
    ) -> Result<(), Failure> {
        let request = Request::new(LUN, "clone")
            .with("src_lun_uuid", source)
            .with("dst_lun_name", name)
            .with("dst_location", location)
            .with("is_same_pool", true)
            .with("clone_type", CLONE_TYPE)
            .with("description", description);
        self.change(call, request).await
    }

    /// compat: "Synology": the parameters are those of democratic-csi.
    pub(crate) async fn clone_snapshot(
        &self,
        call: &Call,
        source: &str,
        snapshot: &str,
        name: &str,
        description: &str,
    ) -> Result<(), Failure> {
        let request = Request::new(LUN, "clone_snapshot")
            .with("src_lun_uuid", source)
            .with("snapshot_uuid", snapshot)
            .with("cloned_lun_name", name)
            .with("clone_type", CLONE_TYPE)
            .with("description", description);
        self.change(call, request).await
    }

    pub(crate) async fn resize_lun(
        &self,
        call: &Call,
        uuid: &str,
        size: u64,
    ) -> Result<(), Failure> {
        let request = Request::new(LUN, "set")
            .with("uuid", uuid)
            .with("new_size", size);
        self.change(call, request).await
    }

    pub(crate) async fn describe_lun(
        &self,
        call: &Call,
        uuid: &str,
        text: &str,
    ) -> Result<(), Failure> {
        let request = Request::new(LUN, "set")
            .with("uuid", uuid)
            .with("description", text);
        self.change(call, request).await
    }

    /// compat: "Synology": the parameters are those of democratic-csi.
    pub(crate) async fn delete_lun(&self, call: &Call, uuid: &str) -> Result<(), Failure> {
        let request = Request::new(LUN, "delete")
            .with("uuid", "")
            .with("uuids", json!([uuid]))
            .with("is_soft_feas_ignored", true);
        self.change(call, request).await
    }

    pub(crate) async fn map(&self, call: &Call, lun: &str, target: u64) -> Result<(), Failure> {
        self.mapping(call, "map_target", lun, target).await
    }

    pub(crate) async fn unmap(&self, call: &Call, lun: &str, target: u64) -> Result<(), Failure> {
        self.mapping(call, "unmap_target", lun, target).await
    }

    async fn mapping(
        &self,
        call: &Call,
        method: &'static str,
        lun: &str,
        target: u64,
    ) -> Result<(), Failure> {
        let request = Request::new(LUN, method)
            .with("uuid", lun)
            .with("target_ids", json!([target]));
        self.change(call, request).await
    }

    pub(crate) async fn targets(&self, call: &Call) -> Result<Vec<Target>, Failure> {
        let request = Request::new(TARGET, "list").with("additional", json!(["mapped_lun"]));
        self.read(call, request, "targets").await
    }

    pub(crate) async fn create_target(
        &self,
        call: &Call,
        template: &Template,
        name: &str,
        iqn: &str,
    ) -> Result<(), Failure> {
        let request = with_template(Request::new(TARGET, "create"), template);
        let request = request.with("name", name).with("iqn", iqn);
        self.change(call, request).await
    }

    /// The id goes as text: DSM does not find it as a number.
    pub(crate) async fn delete_target(&self, call: &Call, id: u64) -> Result<(), Failure> {
        let request = Request::new(TARGET, "delete").with("target_id", id.to_string());
        self.change(call, request).await
    }

    /// The snapshots of a LUN; those of one that is gone are none.
    pub(crate) async fn snapshots(
        &self,
        call: &Call,
        lun: &str,
    ) -> Result<Vec<LunSnapshot>, Failure> {
        match self.snapshots_of_listed(call, lun).await {
            Err(Failure::Refused(Code(18_990_531 | 18_990_505))) => Ok(Vec::new()),
            snapshots => snapshots,
        }
    }

    /// The snapshots of a LUN that has to be there.
    pub(crate) async fn snapshots_of_listed(
        &self,
        call: &Call,
        lun: &str,
    ) -> Result<Vec<LunSnapshot>, Failure> {
        let request = Request::new(LUN, "list_snapshot").with("src_lun_uuid", lun);
        self.read(call, request, "snapshots").await
    }

    /// compat: "Synology": the parameters are those of democratic-csi.
    pub(crate) async fn take_snapshot(
        &self,
        call: &Call,
        template: &Template,
        lun: &str,
        taken_by: &str,
        description: &str,
    ) -> Result<Option<String>, Failure> {
        call.changing();
        let request = with_template(Request::new(LUN, "take_snapshot"), template)
            .with("src_lun_uuid", lun)
            .with("taken_by", taken_by)
            .with("description", description);
        let data = self.send(call, &request).await?;
        Ok(data["snapshot_uuid"].as_str().map(str::to_owned))
    }

    /// compat: "Synology": the parameters are those of democratic-csi.
    pub(crate) async fn delete_snapshot(&self, call: &Call, uuid: &str) -> Result<(), Failure> {
        let request = Request::new(LUN, "delete_snapshot")
            .with("snapshot_uuid", uuid)
            .with("deleted_by", "democratic_csi");
        self.change(call, request).await
    }

    /// What is free on a volume of the NAS.
    pub(crate) async fn free(&self, call: &Call, path: &str) -> Result<Capacity, Error> {
        let doing = format!("look at the free space of {path}");
        let volume = self.volume(call, path).await;
        let volume = volume.map_err(|failure| failure.while_doing(call, doing.clone()))?;
        let missing = || {
            Error::new(Kind::Invalid, doing.clone())
                .because("the NAS has no such volume")
                .advise("correct synology.volume")
        };
        let free = volume.ok_or_else(missing)?.free();
        let odd = || Error::new(Kind::Internal, doing.clone()).because("DSM gives no number");
        Ok(Capacity {
            available: free.ok_or_else(odd)?,
            ..Capacity::default()
        })
    }

    /// A volume of the NAS; `None` if it has none of that path.
    pub(crate) async fn volume(
        &self,
        call: &Call,
        path: &str,
    ) -> Result<Option<NasVolume>, Failure> {
        let request = Request::new(VOLUME, "get").with("volume_path", path);
        match self.read(call, request, "volume").await {
            Err(Failure::Refused(Code::NO_VOLUME)) => Ok(None),
            volume => volume,
        }
    }
}

fn with_template(request: Request, template: &Template) -> Request {
    let entries = template.clone().entries();
    entries.fold(request, |request, (key, value)| request.with(&key, value))
}
