//! Calls as an orchestrator makes them, and the part of the answers that it keeps.

use std::collections::BTreeMap;

use csi_proto::v1;
use csi_proto::v1::controller_server::Controller;
use csi_proto::v1::volume_capability::{
    AccessMode, AccessType, BlockVolume, MountVolume, access_mode::Mode,
};
use csi_proto::v1::volume_content_source::{SnapshotSource, Type as Content, VolumeSource};
use tonic::{Code, Request, Status};

use super::steps::{Ask, Call, Handle, Origin, Setup, VOLUMES};
use crate::csi::controller::ControllerHandler;

/// The answer to an orchestrator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    /// Success, with this answer.
    Done(String),
    Failed(Code),
    /// It did not wait.
    Left,
    /// All pages of a list, and its error, if any.
    Listed(Vec<String>, Option<Code>),
}

impl Answer {
    /// The outcome of a call, in a word.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Done(_) => "done",
            Self::Failed(_) => "failed",
            Self::Left => "left",
            Self::Listed(_, None) => "listed",
            Self::Listed(_, Some(_)) => "cut",
        }
    }
}

/// More pages than any list here has.
const MANY: usize = 1_000;

/// The parameters of a class.
pub(super) fn class(names: &[&str]) -> BTreeMap<String, String> {
    let key = match names {
        [_] => "connection",
        _ => "connections",
    };
    [(key.to_owned(), names.join(","))].into()
}

// === impl Handle ===

impl Handle {
    pub(super) fn volume(&self) -> String {
        self.text("v:")
    }

    pub(super) fn snapshot(&self) -> String {
        self.text("s:")
    }

    fn text(&self, mark: &str) -> String {
        match self.at {
            Some(at) => format!("{mark}{at}/{}", self.id),
            None => self.id.clone(),
        }
    }
}

pub(super) async fn answer(service: &ControllerHandler, setup: &Setup, call: &Call) -> Answer {
    match call {
        Call::List(max) => return list(service, *max).await,
        Call::ListSnapshots(max) => return list_snapshots(service, *max, String::new()).await,
        Call::ListSnapshotsOf(of) => return list_snapshots(service, 0, of.volume()).await,
        _ => {}
    }
    match one(service, setup, call).await {
        Ok(text) => Answer::Done(text),
        Err(status) => Answer::Failed(status.code()),
    }
}

#[expect(
    clippy::too_many_lines,
    reason = "one arm for each call, and nothing else"
)]
async fn one(service: &ControllerHandler, setup: &Setup, call: &Call) -> Result<String, Status> {
    match call {
        Call::Create(volume, ask) => {
            let request = Request::new(create(setup, *volume, ask));
            let made = service.create_volume(request).await?.into_inner();
            let made = made.volume.unwrap_or_default();
            Ok(format!("{} {}", made.volume_id, made.capacity_bytes))
        }
        Call::Delete(handle) => {
            let request = v1::DeleteVolumeRequest {
                volume_id: handle.volume(),
                ..Default::default()
            };
            let done = service.delete_volume(Request::new(request)).await;
            done.map(|_| String::new())
        }
        Call::Expand(handle, size) => {
            let request = v1::ControllerExpandVolumeRequest {
                volume_id: handle.volume(),
                capacity_range: Some(range(*size, false)),
                ..Default::default()
            };
            let grown = service.controller_expand_volume(Request::new(request));
            Ok(grown.await?.into_inner().capacity_bytes.to_string())
        }
        Call::Publish(handle, node, by_hand) => {
            let key = "node_attach_driver".to_owned();
            let request = v1::ControllerPublishVolumeRequest {
                volume_id: handle.volume(),
                node_id: (*node).to_owned(),
                volume_capability: Some(capability(false)),
                volume_context: by_hand
                    .then(|| (key, "nfs".to_owned()))
                    .into_iter()
                    .collect(),
                ..Default::default()
            };
            let done = service.controller_publish_volume(Request::new(request));
            done.await.map(|_| String::new())
        }
        Call::Unpublish(handle, node) => {
            let request = v1::ControllerUnpublishVolumeRequest {
                volume_id: handle.volume(),
                node_id: node.unwrap_or_default().to_owned(),
                ..Default::default()
            };
            let done = service.controller_unpublish_volume(Request::new(request));
            done.await.map(|_| String::new())
        }
        Call::Get(handle) => {
            let request = v1::ControllerGetVolumeRequest {
                volume_id: handle.volume(),
            };
            let found = service.controller_get_volume(Request::new(request)).await?;
            let found = found.into_inner().volume.unwrap_or_default();
            Ok(format!("{} {}", found.volume_id, found.capacity_bytes))
        }
        Call::Validate(handle) => {
            let request = v1::ValidateVolumeCapabilitiesRequest {
                volume_id: handle.volume(),
                volume_capabilities: vec![capability(false)],
                ..Default::default()
            };
            let valid = service.validate_volume_capabilities(Request::new(request));
            let valid = valid.await?.into_inner();
            Ok(valid.confirmed.is_some().to_string())
        }
        Call::Room(names) => {
            let request = v1::GetCapacityRequest {
                parameters: names.map(class).unwrap_or_default(),
                ..Default::default()
            };
            let room = service.get_capacity(Request::new(request)).await?;
            Ok(room.into_inner().available_capacity.to_string())
        }
        Call::Snapshot(name, source) => {
            let request = v1::CreateSnapshotRequest {
                source_volume_id: source.volume(),
                name: (*name).to_owned(),
                ..Default::default()
            };
            let cut = service.create_snapshot(Request::new(request)).await?;
            Ok(snapshot_text(cut.into_inner().snapshot))
        }
        Call::DeleteSnapshot(handle) => {
            let request = v1::DeleteSnapshotRequest {
                snapshot_id: handle.snapshot(),
                ..Default::default()
            };
            let done = service.delete_snapshot(Request::new(request)).await;
            done.map(|_| String::new())
        }
        Call::GetSnapshot(handle) => {
            let request = v1::GetSnapshotRequest {
                snapshot_id: handle.snapshot(),
                ..Default::default()
            };
            let found = service.get_snapshot(Request::new(request)).await?;
            Ok(snapshot_text(found.into_inner().snapshot))
        }
        Call::List(_) | Call::ListSnapshots(_) | Call::ListSnapshotsOf(_) => Ok(String::new()),
    }
}

fn snapshot_text(snapshot: Option<v1::Snapshot>) -> String {
    let snapshot = snapshot.unwrap_or_default();
    format!("{} of {}", snapshot.snapshot_id, snapshot.source_volume_id)
}

fn range(size: u64, exact: bool) -> v1::CapacityRange {
    let size = i64::try_from(size).expect("a size of a test");
    v1::CapacityRange {
        required_bytes: size,
        limit_bytes: if exact { size } else { 0 },
    }
}

fn capability(block: bool) -> v1::VolumeCapability {
    v1::VolumeCapability {
        access_mode: Some(AccessMode {
            mode: Mode::SingleNodeWriter.into(),
        }),
        access_type: Some(if block {
            AccessType::Block(BlockVolume {})
        } else {
            AccessType::Mount(MountVolume::default())
        }),
    }
}

fn create(setup: &Setup, volume: usize, ask: &Ask) -> v1::CreateVolumeRequest {
    let claim = &setup.claims[volume];
    let source = claim.source.as_ref().map(|from| match from {
        Origin::Volume(handle) => Content::Volume(VolumeSource {
            volume_id: handle.volume(),
        }),
        Origin::Snapshot(handle) => Content::Snapshot(SnapshotSource {
            snapshot_id: handle.snapshot(),
        }),
    });
    let key = "org.democratic-csi.topology/zone";
    let place = |zone: &u8| v1::Topology {
        segments: [(key.to_owned(), format!("z{zone}"))].into(),
    };
    let places: Vec<_> = ask.zones.iter().map(place).collect();
    v1::CreateVolumeRequest {
        name: VOLUMES[volume].to_owned(),
        capacity_range: Some(range(ask.size, ask.exact)),
        volume_capabilities: vec![capability(ask.block)],
        parameters: class(claim.class),
        volume_content_source: source.map(|source| v1::VolumeContentSource {
            r#type: Some(source),
        }),
        accessibility_requirements: (!places.is_empty()).then(|| v1::TopologyRequirement {
            requisite: places.clone(),
            preferred: places,
        }),
        ..Default::default()
    }
}

async fn list(service: &ControllerHandler, max: i32) -> Answer {
    let (mut all, mut token) = (Vec::new(), String::new());
    for _ in 0..MANY {
        let request = v1::ListVolumesRequest {
            max_entries: max,
            starting_token: token,
        };
        let page = match service.list_volumes(Request::new(request)).await {
            Ok(page) => page.into_inner(),
            Err(status) => return Answer::Listed(all, Some(status.code())),
        };
        let volumes = page.entries.into_iter().filter_map(|entry| entry.volume);
        all.extend(volumes.map(|v| format!("{} {}", v.volume_id, v.capacity_bytes)));
        if page.next_token.is_empty() {
            return Answer::Listed(all, None);
        }
        token = page.next_token;
    }
    Answer::Listed(all, Some(Code::Unknown))
}

async fn list_snapshots(service: &ControllerHandler, max: i32, of: String) -> Answer {
    let (mut all, mut token) = (Vec::new(), String::new());
    for _ in 0..MANY {
        let request = v1::ListSnapshotsRequest {
            max_entries: max,
            starting_token: token,
            source_volume_id: of.clone(),
            ..Default::default()
        };
        let page = match service.list_snapshots(Request::new(request)).await {
            Ok(page) => page.into_inner(),
            Err(status) => return Answer::Listed(all, Some(status.code())),
        };
        let snapshots = page.entries.into_iter().filter_map(|entry| entry.snapshot);
        all.extend(snapshots.map(|snapshot| snapshot_text(Some(snapshot))));
        if page.next_token.is_empty() {
            return Answer::Listed(all, None);
        }
        token = page.next_token;
    }
    Answer::Listed(all, Some(Code::Unknown))
}
