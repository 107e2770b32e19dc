//! Replays recorded calls of democratic-csi on our driver, with both answers in one form.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use csi_types::{Access, AccessMode, MountAccess, VolumeCapability};
use driver_core::{
    Call, CreateSnapshot, CreateVolume, Driver, Error, ExpandVolume, Parameters, SizeRange,
    Snapshot, SnapshotId, SnapshotName, Source, Topology, TopologyRequirement, Volume, VolumeId,
    VolumeName,
};
use serde_json::{Map, Value, json};

/// A call, and the answer of democratic-csi: nothing if it failed.
#[derive(Debug, Clone)]
pub(crate) struct Said {
    pub(crate) call: String,
    pub(crate) request: Value,
    pub(crate) answer: Option<Value>,
}

/// A file that was captured of one kind.
pub(crate) fn captured(kind: &str, file: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../zfs/tests/democratic_csi");
    let path = folder.join(kind).join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// All recorded calls of one kind, in order.
pub(crate) fn said(kind: &str) -> Vec<Said> {
    let text = captured(kind, "calls.jsonl");
    let read = |line: &str| {
        let mut line: Value = serde_json::from_str(line).unwrap();
        let answer = line.get_mut("response").map(Value::take);
        assert_ne!(answer.is_some(), line.get("error").is_some(), "{line}");
        Said {
            call: line["call"].as_str().unwrap().to_owned(),
            request: line["request"].take(),
            answer,
        }
    };
    text.lines().map(read).collect()
}

/// The created objects in their final state: an expanded volume is larger than in its answer.
pub(crate) fn made(kind: &str) -> Vec<Said> {
    let all = said(kind);
    let grown: BTreeMap<String, Value> = all
        .iter()
        .filter(|said| said.call == "ControllerExpandVolume")
        .map(|said| {
            (
                said.name().to_owned(),
                said.answered()["capacity_bytes"].take(),
            )
        })
        .collect();
    let mut made: Vec<_> = all
        .into_iter()
        .filter(|said| said.call.starts_with("Create") && said.answer.is_some())
        .collect();
    for said in &mut made {
        if let (Some(bytes), Some(answer)) = (grown.get(said.name()), &mut said.answer) {
            answer["volume"]["capacity_bytes"] = bytes.clone();
        }
    }
    made
}

/// The calls that it failed.
pub(crate) fn failed(kind: &str) -> Vec<Said> {
    let all = said(kind).into_iter();
    all.filter(|said| said.answer.is_none()).collect()
}

pub(crate) fn call() -> Call {
    Call::within(Duration::from_mins(2))
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

fn parameters(request: &Value) -> Parameters {
    let given = request["parameters"].as_object().unwrap().iter();
    Parameters::new(
        given
            .map(|(k, v)| (k.clone(), text(v).to_owned()))
            .collect(),
    )
}

fn size(request: &Value) -> SizeRange {
    let bytes = text(&request["capacity_range"]["required_bytes"]);
    SizeRange::new(bytes.parse().unwrap(), 0).unwrap()
}

fn source(request: &Value) -> Option<Source> {
    let source = &request["volume_content_source"];
    let id = |kind: &str, key: &str| source[kind][key].as_str();
    let snapshot = id("snapshot", "snapshot_id").map(|id| SnapshotId::parse(id).unwrap());
    let volume = id("volume", "volume_id").map(|id| VolumeId::parse(id).unwrap());
    let snapshot = snapshot.map(Source::Snapshot);
    snapshot.or_else(|| volume.map(Source::Volume))
}

/// The request for our driver.
pub(crate) fn creation(driver: &dyn Driver, request: &Value) -> CreateVolume {
    let name = VolumeName::parse(text(&request["name"])).unwrap();
    let parameters = parameters(request);
    CreateVolume {
        id: driver.name_volume(&name, &parameters).unwrap(),
        name,
        size: size(request),
        capabilities: vec![VolumeCapability {
            access: Access::Mount(MountAccess::default()),
            mode: AccessMode::SingleNodeWriter,
        }],
        parameters,
        secrets: BTreeMap::new(),
        source: source(request),
        topology: TopologyRequirement::default(),
    }
}

/// Sends the same request to our driver.
pub(crate) async fn ask(driver: &dyn Driver, said: &Said) -> Result<Value, Error> {
    let request = &said.request;
    Ok(match said.call.as_str() {
        "CreateVolume" => {
            let request = creation(driver, request);
            of_volume(&driver.create_volume(&call(), &request).await?)
        }
        "CreateSnapshot" => {
            let request = CreateSnapshot {
                name: SnapshotName::parse(text(&request["name"])).unwrap(),
                source: VolumeId::parse(text(&request["source_volume_id"])).unwrap(),
                parameters: parameters(request),
                secrets: BTreeMap::new(),
            };
            of_snapshot(&driver.create_snapshot(&call(), &request).await?)
        }
        "ControllerExpandVolume" => {
            let id = VolumeId::parse(text(&request["volume_id"])).unwrap();
            let grown = driver
                .expand_volume(&call(), ExpandVolume::new(&id, size(request)))
                .await?;
            json!({
                "capacity_bytes": grown.capacity.to_string(),
                "node_expansion_required": grown.node_expansion_required,
            })
        }
        other => panic!("{other}"),
    })
}

pub(crate) fn of_volume(volume: &Volume) -> Value {
    let mut answer = json!({
        "volume_id": volume.id.as_str(),
        "capacity_bytes": volume.capacity.unwrap_or_default().to_string(),
        "volume_context": volume.attachment.to_context(),
    });
    let source = volume.source.as_ref().map(|source| match source {
        Source::Snapshot(id) => json!({"snapshot": {"snapshot_id": id.as_str()}}),
        Source::Volume(id) => json!({"volume": {"volume_id": id.as_str()}}),
        Source::Elsewhere(other) => panic!("{other} is of another connection"),
    });
    if let Some(source) = source {
        answer["content_source"] = source;
    }
    let place = |place: &Topology| {
        let segments = place.segments().iter();
        let segments = segments.map(|(key, value)| (key.clone(), Value::from(value.as_str())));
        json!({ "segments": segments.collect::<Map<_, _>>() })
    };
    if !volume.topology.is_empty() {
        answer["accessible_topology"] = volume.topology.iter().map(place).collect();
    }
    answer
}

pub(crate) fn of_snapshot(snapshot: &Snapshot) -> Value {
    json!({
        "snapshot_id": snapshot.id.as_str(),
        "source_volume_id": snapshot.source.as_str(),
        "ready_to_use": snapshot.ready,
    })
}

fn without(map: &mut Value, key: &str) -> Option<Value> {
    map.as_object_mut()
        .and_then(|map: &mut Map<_, _>| map.remove(key))
}

impl Said {
    /// Its object: a new volume or snapshot, or a volume to expand.
    pub(crate) fn name(&self) -> &str {
        let of = |key: &str| self.request[key].as_str();
        of("name").or_else(|| of("volume_id")).unwrap()
    }

    /// The recorded answer, without the fields that only the wire has: the creating driver (which
    /// the proxy adds), the time, and alternative names. The memory pool does not report the size
    /// of a snapshot of a filesystem.
    pub(crate) fn answered(&self) -> Value {
        let mut answer = self.answer.clone().unwrap();
        if let Some(mut volume) = without(&mut answer, "volume") {
            let context = &mut volume["volume_context"];
            assert!(without(context, "provisioner_driver").is_some());
            without(context, "provisioner_driver_instance_id");
            if let Some(source) = volume.get_mut("content_source") {
                without(source, "type");
            }
            return volume;
        }
        if let Some(mut snapshot) = without(&mut answer, "snapshot") {
            without(&mut snapshot, "creation_time");
            without(&mut snapshot, "size_bytes");
            return snapshot;
        }
        answer
    }
}
