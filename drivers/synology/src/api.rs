//! The calls for LUNs, targets and volumes, and what is read of their answers.

use driver_core::{Call, Capacity, Error, Kind};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::answer::Done;
use crate::client::{Client, Request};
use crate::error::{Code, Failure};
use crate::lenient::{self, Scalar};
use crate::template::Template;

const LUN: &str = "SYNO.Core.ISCSI.LUN";
const TARGET: &str = "SYNO.Core.ISCSI.Target";
/// What is asked for of a target, in addition to its name.
const OF_TARGETS: [&str; 2] = ["mapped_lun", "connected_sessions"];
const VOLUME: &str = "SYNO.Core.Storage.Volume";

/// The number of questions one call asks at once. DSM answers few at once, and others ask as well.
const AT_ONCE: usize = 8;

/// The mark of a copy. compat: "Synology": as democratic-csi, which is what made the other copies.
const CLONE_TYPE: &str = "democratic-csi";

/// A LUN as it is listed, of any package.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct ListedLun {
    #[serde(default, deserialize_with = "lenient::text")]
    pub(crate) uuid: String,
    #[serde(default, deserialize_with = "lenient::text")]
    pub(crate) name: String,
    #[serde(default, deserialize_with = "lenient::number")]
    pub(crate) lun_id: Option<u64>,
    #[serde(default, deserialize_with = "lenient::number")]
    size: Option<u64>,
    #[serde(default, deserialize_with = "lenient::text")]
    description: String,
    #[serde(default, deserialize_with = "lenient::text")]
    type_str: String,
    #[serde(default, deserialize_with = "lenient::text")]
    location: String,
    #[serde(default, deserialize_with = "lenient::flag")]
    is_action_locked: bool,
    #[serde(default, deserialize_with = "lenient::text")]
    status: String,
    #[serde(default, deserialize_with = "lenient::list")]
    dev_attribs: Option<Vec<Attribute>>,
    #[serde(default, deserialize_with = "lenient::list")]
    pub(crate) snapshots: Option<Vec<LunSnapshot>>,
}

/// An attribute of a LUN.
#[derive(Debug, Clone, Deserialize)]
struct Attribute {
    #[serde(default, deserialize_with = "lenient::text")]
    dev_attrib: String,
    #[serde(default, deserialize_with = "lenient::number")]
    enable: Option<u64>,
}

/// A LUN of this driver, or one that could be.
#[derive(Debug, Clone)]
pub(crate) struct Lun {
    pub(crate) uuid: String,
    pub(crate) name: String,
    pub(crate) number: Option<u64>,
    pub(crate) size: u64,
    pub(crate) description: String,
    /// Its type, such as `BLUN`; empty if DSM does not say it.
    pub(crate) kind: String,
    /// Its volume of the NAS.
    pub(crate) location: String,
    /// DSM works on it: it is being made, copied or deleted.
    pub(crate) is_action_locked: bool,
    /// The state of it in a word of DSM; empty if DSM does not say it.
    pub(crate) status: String,
    /// DSM says that it takes no snapshots.
    pub(crate) refuses_snapshots: bool,
    /// Its snapshots; a DSM that does not know `snapshot_info` leaves them out.
    pub(crate) snapshots: Option<Vec<LunSnapshot>>,
}

/// A snapshot of a LUN. What holds its time has several names.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct LunSnapshot {
    #[serde(default, deserialize_with = "lenient::text")]
    pub(crate) uuid: String,
    #[serde(default, deserialize_with = "lenient::text")]
    pub(crate) name: String,
    #[serde(default, deserialize_with = "lenient::text")]
    pub(crate) description: String,
    #[serde(default, deserialize_with = "lenient::number")]
    total_size: Option<u64>,
    #[serde(default, deserialize_with = "lenient::number")]
    create_time: Option<u64>,
    #[serde(default, deserialize_with = "lenient::number")]
    snapshot_time: Option<u64>,
    #[serde(default, deserialize_with = "lenient::number")]
    time: Option<u64>,
    #[serde(default, deserialize_with = "optional_text")]
    pub(crate) taken_by: Option<String>,
    #[serde(default, deserialize_with = "lenient::flag")]
    pub(crate) is_user_locked: bool,
    /// Packages of the NAS keep it, such as Snapshot Replication.
    #[serde(
        default,
        deserialize_with = "lenient::filled",
        rename = "locked_app_keys"
    )]
    pub(crate) is_kept_by_packages: bool,
}

/// A target as it is listed.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct ListedTarget {
    #[serde(default, deserialize_with = "lenient::number")]
    target_id: Option<u64>,
    #[serde(default, deserialize_with = "lenient::text")]
    pub(crate) name: String,
    #[serde(default, deserialize_with = "lenient::text")]
    pub(crate) iqn: String,
    #[serde(default, deserialize_with = "lenient::refused", rename = "is_enabled")]
    is_disabled: bool,
    #[serde(default, deserialize_with = "lenient::list")]
    mapped_luns: Option<Vec<Mapping>>,
    #[serde(default, deserialize_with = "lenient::list")]
    connected_sessions: Option<Vec<Session>>,
}

/// A target.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) id: u64,
    pub(crate) name: String,
    pub(crate) iqn: String,
    /// No initiator is let in.
    pub(crate) is_disabled: bool,
    pub(crate) mapped_luns: Vec<Mapping>,
    /// The initiators that are connected to it, by name and address.
    pub(crate) connected: Vec<String>,
}

/// A session of an initiator.
#[derive(Debug, Clone, Deserialize)]
struct Session {
    #[serde(default, deserialize_with = "lenient::text")]
    iqn: String,
    #[serde(default, deserialize_with = "lenient::text")]
    ip: String,
}

/// A LUN of a target.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Mapping {
    #[serde(default, deserialize_with = "lenient::text")]
    pub(crate) lun_uuid: String,
    #[serde(default, deserialize_with = "lenient::number")]
    pub(crate) mapping_index: Option<u64>,
}

/// A list with rows of others in it. None of it fails before it is known which are asked for.
#[derive(Debug)]
pub(crate) struct Listed<T> {
    request: Request,
    rows: Vec<T>,
}

/// A volume of the NAS.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct NasVolume {
    /// The free bytes, which DSM writes as text.
    #[serde(default, deserialize_with = "lenient::number")]
    pub(crate) size_free_byte: Option<u64>,
    #[serde(default, deserialize_with = "lenient::text")]
    pub(crate) fs_type: String,
    /// Its state in a word of DSM; empty if DSM does not say it.
    #[serde(default, deserialize_with = "lenient::text")]
    pub(crate) status: String,
    #[serde(default, deserialize_with = "lenient::flag")]
    pub(crate) readonly: bool,
}

/// Lists and objects as DSM wraps them.
#[derive(Default, Deserialize)]
struct Wrapped {
    #[serde(default, deserialize_with = "lenient::list")]
    luns: Option<Vec<ListedLun>>,
    #[serde(default, deserialize_with = "lenient::object")]
    lun: Option<ListedLun>,
    #[serde(default, deserialize_with = "lenient::list")]
    targets: Option<Vec<ListedTarget>>,
    #[serde(default, deserialize_with = "lenient::object")]
    target: Option<ListedTarget>,
    #[serde(default, deserialize_with = "lenient::list")]
    snapshots: Option<Vec<LunSnapshot>>,
    #[serde(default, deserialize_with = "lenient::object")]
    volume: Option<NasVolume>,
}

fn optional_text<'de, D>(deserializer: D) -> Result<Option<String>, D::Error>
where
    D: serde::Deserializer<'de>,
{
    Ok(Scalar::deserialize(deserializer)?.text())
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

    pub(crate) fn size(&self) -> u64 {
        self.total_size.unwrap_or(0)
    }
}

// === impl Lun ===

impl Lun {
    /// One that DSM has just made.
    pub(crate) fn made(uuid: &str, name: &str, size: u64, description: &str) -> Self {
        Self {
            uuid: uuid.to_owned(),
            name: name.to_owned(),
            number: None,
            size,
            description: description.to_owned(),
            kind: String::new(),
            location: String::new(),
            is_action_locked: false,
            status: String::new(),
            refuses_snapshots: false,
            snapshots: None,
        }
    }
}

// === impl ListedLun ===

impl ListedLun {
    /// `Err` names the field that is missing or of another type.
    fn read(self) -> Result<Lun, &'static str> {
        let mut attributes = self.dev_attribs.iter().flatten();
        let can_snapshot = attributes.find(|one| one.dev_attrib == "can_snapshot");
        Ok(Lun {
            refuses_snapshots: can_snapshot.is_some_and(|one| one.enable == Some(0)),
            uuid: Some(self.uuid)
                .filter(|uuid| !uuid.is_empty())
                .ok_or("uuid")?,
            name: self.name,
            number: self.lun_id,
            size: self.size.ok_or("size")?,
            description: self.description,
            kind: self.type_str,
            location: self.location,
            is_action_locked: self.is_action_locked,
            status: self.status,
            snapshots: self.snapshots,
        })
    }
}

// === impl ListedTarget ===

impl ListedTarget {
    /// `Err` names the field that is missing or of another type.
    fn read(self) -> Result<Target, &'static str> {
        Ok(Target {
            id: self.target_id.ok_or("target_id")?,
            name: self.name,
            iqn: Some(self.iqn).filter(|iqn| !iqn.is_empty()).ok_or("iqn")?,
            is_disabled: self.is_disabled,
            mapped_luns: self.mapped_luns.unwrap_or_default(),
            connected: {
                let sessions = self.connected_sessions.unwrap_or_default().into_iter();
                let named = sessions.filter(|session| !session.iqn.is_empty());
                named.map(Session::shown).collect()
            },
        })
    }
}

// === impl Session ===

impl Session {
    fn shown(self) -> String {
        match self.ip.as_str() {
            "" => self.iqn,
            ip => format!("{} at {ip}", self.iqn),
        }
    }
}

// === impl Listed ===

impl<T> Listed<T> {
    pub(crate) fn rows(&self) -> &[T] {
        &self.rows
    }
}

// === impl Target ===

impl Target {
    /// The number of that LUN, if it is shown there.
    pub(crate) fn number_of(&self, uuid: &str) -> Option<u64> {
        let mut mapped = self.mapped_luns.iter();
        mapped
            .find(|mapped| mapped.lun_uuid == uuid)
            .and_then(|mapped| mapped.mapping_index)
    }
}

// === impl Client ===

impl Client {
    pub(crate) async fn read<T: DeserializeOwned + Default>(
        &self,
        call: &Call,
        request: &Request,
    ) -> Result<T, Failure> {
        self.send(call, request).await
    }

    /// Changes something. A refusal inside an answer that says success is one.
    pub(crate) async fn change(&self, call: &Call, request: Request) -> Result<Done, Failure> {
        call.changing();
        let done: Done = self.send(call, &request).await?;
        done.refused
            .map_or(Ok(done), |code| Err(Failure::Refused(code)))
    }

    /// The answer lacks that, or it has another type. `object` says in what.
    pub(crate) fn lacks(&self, request: &Request, field: &str, object: &str) -> Failure {
        let of = if object.is_empty() {
            String::new()
        } else {
            format!(" of `{object}`")
        };
        let why = format!("`{field}`{of} is missing or of another type");
        self.odd(why).naming(request)
    }

    /// All LUNs. No types are asked for: a list of types hides those that it does not name.
    pub(crate) async fn luns(&self, call: &Call) -> Result<Listed<ListedLun>, Failure> {
        self.listed(call, json!(["is_action_locked", "status"]))
            .await
    }

    /// The LUNs whose names are wanted, with their snapshots, which some DSM give at once and others one by one.
    pub(crate) async fn luns_with_snapshots(
        &self,
        call: &Call,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<Listed<ListedLun>, Failure> {
        let fields = json!(["is_action_locked", "status", "snapshot_info"]);
        let mut luns = self.listed(call, fields).await?;
        luns.rows.retain(|lun| wanted(&lun.name));
        let mut asked = Vec::new();
        let unsaid = luns.rows.iter_mut();
        for lun in unsaid.filter(|lun| lun.snapshots.is_none() && !lun.uuid.is_empty()) {
            let answer = async move {
                lun.snapshots = Some(self.snapshots(call, &lun.uuid).await?);
                Ok::<_, Failure>(())
            };
            asked.push(answer.boxed());
        }
        few_at_once(asked).await?;
        Ok(luns)
    }

    async fn listed(&self, call: &Call, fields: Value) -> Result<Listed<ListedLun>, Failure> {
        let request = Request::new(LUN, "list").with("additional", fields);
        self.list(call, request, "luns", |answer| answer.luns).await
    }

    /// The rows of a long list, which its answer has under that key.
    async fn list<T>(
        &self,
        call: &Call,
        request: Request,
        key: &'static str,
        rows: impl FnOnce(Wrapped) -> Option<Vec<T>>,
    ) -> Result<Listed<T>, Failure> {
        let request = request.long();
        let answer: Wrapped = self.read(call, &request).await?;
        let rows = rows(answer).ok_or_else(|| self.lacks(&request, key, ""))?;
        Ok(Listed { request, rows })
    }

    /// The LUNs that can be read. One that cannot is read over, unless it is asked for.
    pub(crate) fn readable(
        &self,
        luns: Listed<ListedLun>,
        is_asked: impl Fn(&ListedLun) -> bool,
    ) -> Result<Vec<Lun>, Failure> {
        let mut readable = Vec::new();
        for lun in luns.rows {
            let (name, is_asked) = (lun.name.clone(), is_asked(&lun));
            match lun.read() {
                Ok(lun) => readable.push(lun),
                Err(field) if is_asked => return Err(self.lacks(&luns.request, field, &name)),
                Err(_) => {}
            }
        }
        Ok(readable)
    }

    /// A LUN by its uuid or its name; `None` if it is not there.
    pub(crate) async fn lun(&self, call: &Call, uuid: &str) -> Result<Option<Lun>, Failure> {
        let request = Request::new(LUN, "get")
            .with("uuid", uuid)
            .with("additional", json!(["is_action_locked", "status"]));
        let answer: Wrapped = match self.read(call, &request).await {
            Err(Failure::Refused(code)) if code.is_no_lun() => return Ok(None),
            answer => answer?,
        };
        let lun = answer.lun.map(ListedLun::read);
        let lun = lun.ok_or("lun").and_then(|lun| lun);
        let lun = lun.map_err(|field| self.lacks(&request, field, uuid))?;
        if lun.uuid != uuid && lun.name != uuid {
            return Err(self.odd("it is another LUN").naming(&request));
        }
        Ok(Some(lun))
    }

    pub(crate) async fn create_lun(
        &self,
        call: &Call,
        template: &Template,
        name: &str,
        location: &str,
        size: u64,
    ) -> Result<Done, Failure> {
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
        source: &Lun,
        name: &str,
        location: &str,
        description: &str,
    ) -> Result<Done, Failure> {
        let is_same_pool = source.location.is_empty() || source.location == location;
        let request = Request::new(LUN, "clone")
            .with("src_lun_uuid", source.uuid.as_str())
            .with("dst_lun_name", name)
            .with("dst_location", location)
            .with("is_same_pool", is_same_pool)
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
    ) -> Result<Done, Failure> {
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
        self.change(call, request).await.map(drop)
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
        self.change(call, request).await.map(drop)
    }

    /// A reason of DSM against it stays in force, such as a package that keeps a snapshot. democratic-csi overrides that.
    pub(crate) async fn delete_lun(&self, call: &Call, uuid: &str) -> Result<(), Failure> {
        let request = Request::new(LUN, "delete")
            .with("uuid", "")
            .with("uuids", json!([uuid]))
            .with("is_soft_feas_ignored", false);
        self.change(call, request).await.map(drop)
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
        self.change(call, request).await.map(drop)
    }

    /// All targets.
    pub(crate) async fn targets(&self, call: &Call) -> Result<Listed<ListedTarget>, Failure> {
        let request = Request::new(TARGET, "list").with("additional", json!(OF_TARGETS));
        self.list(call, request, "targets", |answer| answer.targets)
            .await
    }

    /// The targets that are asked for.
    pub(crate) fn these(
        &self,
        targets: Listed<ListedTarget>,
        is_asked: impl Fn(&ListedTarget) -> bool,
    ) -> Result<Vec<Target>, Failure> {
        let Listed { request, rows } = targets;
        let asked = rows.into_iter().filter(|target| is_asked(target));
        asked
            .map(|target| {
                let iqn = target.iqn.clone();
                target
                    .read()
                    .map_err(|field| self.lacks(&request, field, &iqn))
            })
            .collect()
    }

    /// A target by its name or the text of its id; `None` if it is not there.
    pub(crate) async fn target(&self, call: &Call, name: &str) -> Result<Option<Target>, Failure> {
        let request = Request::new(TARGET, "get")
            .with("target_id", name)
            .with("additional", json!(OF_TARGETS));
        let answer: Wrapped = match self.read(call, &request).await {
            Err(Failure::Refused(code)) if code.is_no_target() => return Ok(None),
            answer => answer?,
        };
        let target = answer.target.map(ListedTarget::read);
        let target = target.ok_or("target").and_then(|target| target);
        target
            .map(Some)
            .map_err(|field| self.lacks(&request, field, name))
    }

    pub(crate) async fn create_target(
        &self,
        call: &Call,
        template: &Template,
        name: &str,
        iqn: &str,
    ) -> Result<Done, Failure> {
        let request = with_template(Request::new(TARGET, "create"), template);
        let request = request.with("name", name).with("iqn", iqn);
        self.change(call, request).await
    }

    /// The id goes as text: DSM does not find it as a number.
    pub(crate) async fn delete_target(&self, call: &Call, id: u64) -> Result<(), Failure> {
        let request = Request::new(TARGET, "delete").with("target_id", id.to_string());
        self.change(call, request).await.map(drop)
    }

    /// The snapshots of a LUN; those of one that is gone are none.
    pub(crate) async fn snapshots(
        &self,
        call: &Call,
        lun: &str,
    ) -> Result<Vec<LunSnapshot>, Failure> {
        match self.snapshots_of_listed(call, lun).await {
            Err(Failure::Refused(code)) if code.is_no_lun() => Ok(Vec::new()),
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
        let answer: Wrapped = self.read(call, &request).await?;
        let snapshots = answer.snapshots;
        snapshots.ok_or_else(|| self.lacks(&request, "snapshots", lun))
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
        let request = with_template(Request::new(LUN, "take_snapshot"), template)
            .with("src_lun_uuid", lun)
            .with("taken_by", taken_by)
            .with("description", description);
        let done = self.change(call, request).await?;
        Ok(done.uuid)
    }

    /// compat: "Synology": the parameters are those of democratic-csi.
    pub(crate) async fn delete_snapshot(&self, call: &Call, uuid: &str) -> Result<(), Failure> {
        let request = Request::new(LUN, "delete_snapshot")
            .with("snapshot_uuid", uuid)
            .with("deleted_by", "democratic_csi");
        self.change(call, request).await.map(drop)
    }

    /// The free space of a volume of the NAS.
    pub(crate) async fn free(&self, call: &Call, path: &str) -> Result<Capacity, Error> {
        let doing = format!("look at the free space of {path}");
        let free = self
            .existing_volume(call, path, &doing)
            .await?
            .size_free_byte;
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
        match self.read::<Wrapped>(call, &request).await {
            Err(Failure::Refused(Code::NO_VOLUME)) => Ok(None),
            // A success without a volume is DSM's other way to say so.
            answer => Ok(answer?.volume),
        }
    }

    /// A volume of the NAS that has to be there. One that is not is never an empty storage: it may be another NAS.
    pub(crate) async fn existing_volume(
        &self,
        call: &Call,
        path: &str,
        doing: &str,
    ) -> Result<NasVolume, Error> {
        let volume = self.volume(call, path).await;
        let volume = volume.map_err(|failure| failure.while_doing(call, doing))?;
        volume.ok_or_else(|| {
            Error::new(Kind::Unreachable, doing)
                .because(format!("the NAS has no volume {path}"))
                .advise("correct synology.volume or httpConnection.host, or look at the volume in Storage Manager")
        })
    }
}

/// Questions of one call, a few at once.
pub(crate) async fn few_at_once<T>(
    questions: Vec<BoxFuture<'_, Result<T, Failure>>>,
) -> Result<Vec<T>, Failure> {
    stream::iter(questions)
        .buffered(AT_ONCE)
        .try_collect()
        .await
}

fn with_template(request: Request, template: &Template) -> Request {
    let entries = template.clone().entries();
    entries.fold(request, |request, (key, value)| request.with(&key, value))
}
