//! Making: volumes, snapshots, and the way of a volume to a pod.

use csi_proto::v1;
use csi_proto::v1::volume_content_source::{SnapshotSource, Type as SourceType, VolumeSource};

use super::folder::MountPoints;
use super::made::{Made, MadeSnapshot, MadeVolume, Role, State};
use super::orchestrator::{Answer, Orchestrator, Pause};
use super::trial::Size;
use super::trouble::Trouble;

/// What a volume is made from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    Nothing,
    Snapshot,
    Original,
}

// === impl Orchestrator ===

impl Orchestrator {
    /// Makes a volume; says what became of it.
    pub(super) async fn create(&mut self, role: Role, origin: Origin) -> Answer<String> {
        let request = v1::CreateVolumeRequest {
            name: format!("{}-{}", self.trial.name, role.suffix()),
            capacity_range: Some(self.trial.size.range()),
            volume_capabilities: vec![self.trial.capability()],
            parameters: self.trial.parameters.clone(),
            secrets: self.trial.secrets(),
            volume_content_source: self.source(origin)?,
            accessibility_requirements: self.here.clone().map(|here| v1::TopologyRequirement {
                requisite: vec![here.clone()],
                preferred: vec![here],
            }),
            ..v1::CreateVolumeRequest::default()
        };
        self.made.volumes.push(MadeVolume {
            role,
            request,
            state: State::Unknown,
            points: None,
            publish_context: std::collections::BTreeMap::new(),
            attached: false,
            staged: false,
            published: false,
        });
        let volume = self.create_again(role).await?;
        let size = match volume.capacity_bytes {
            0 => self.trial.size,
            bytes => Size(bytes),
        };
        if size < self.trial.size {
            let wanted = self.trial.size;
            return Err(Trouble::seen(format!(
                "the volume has {size}, {wanted} was asked for"
            )));
        }
        if origin != Origin::Nothing && volume.content_source.is_none() {
            return Err(Trouble::seen(
                "CreateVolume does not say what the volume was made from",
            ));
        }
        Ok(format!("{}, {size}", volume.volume_id))
    }

    fn source(&self, origin: Origin) -> Answer<Option<v1::VolumeContentSource>> {
        let missing = || Trouble::seen("what it is to be made from is not there");
        let source = match origin {
            Origin::Nothing => return Ok(None),
            Origin::Snapshot => {
                let id = self
                    .made
                    .snapshot
                    .as_ref()
                    .and_then(|snapshot| snapshot.state.there());
                SourceType::Snapshot(SnapshotSource {
                    snapshot_id: id.ok_or_else(missing)?.clone(),
                })
            }
            Origin::Original => SourceType::Volume(VolumeSource {
                volume_id: self.made.id(Role::Original).ok_or_else(missing)?.to_owned(),
            }),
        };
        Ok(Some(v1::VolumeContentSource {
            r#type: Some(source),
        }))
    }

    /// Asks for a volume that was asked for, and notes what the answer says about it.
    pub(super) async fn create_again(&mut self, role: Role) -> Answer<v1::Volume> {
        let missing = || Trouble::seen("CreateVolume was answered without a volume");
        let made = self.made.volume(role).ok_or_else(missing)?;
        let mut controller = self.controller();
        let call = controller.create_volume(made.request.clone());
        let answer = self.ask("CreateVolume", call).await;
        let answer = answer.and_then(|answer| answer.volume.ok_or_else(missing));
        let (state, answer) = match answer {
            Ok(volume) if self.is_foreign(role, &volume.volume_id) => {
                let id = volume.volume_id;
                let what = format!(
                    "CreateVolume gave out `{id}`, which was there before and is left alone: \
                     names of different volumes lead to one id"
                );
                (State::Never, Err(Trouble::seen(what)))
            }
            Ok(volume) => (State::There(volume.clone()), Ok(volume)),
            Err(trouble) if trouble.code.is_some() && !trouble.is_open() => {
                (State::Never, Err(trouble))
            }
            Err(trouble) => (State::Unknown, Err(trouble)),
        };
        if let Some(made) = self.made.volume_mut(role) {
            made.state = state;
        }
        answer
    }

    /// Whether this id was there before, or is that of another volume of ours.
    fn is_foreign(&self, role: Role, id: &str) -> bool {
        let others = self
            .made
            .volumes
            .iter()
            .filter(|volume| volume.role != role);
        let mut others = others.filter_map(|volume| volume.state.ever());
        self.foreign.contains(id) || others.any(|volume| volume.volume_id == id)
    }

    /// Takes a snapshot of the original and waits until it can be used; says its name.
    pub(super) async fn snapshot(&mut self) -> Answer<String> {
        let source = self.made.id(Role::Original).unwrap_or_default().to_owned();
        self.made.snapshot = Some(MadeSnapshot {
            request: v1::CreateSnapshotRequest {
                source_volume_id: source,
                name: format!("{}-snapshot", self.trial.name),
                secrets: self.trial.secrets(),
                parameters: self.trial.snapshot_parameters.clone(),
                ..v1::CreateSnapshotRequest::default()
            },
            state: State::Unknown,
        });
        let mut pause = Pause::new(self.trial.patience);
        loop {
            let snapshot = self.snapshot_again().await?;
            if snapshot.ready_to_use {
                return Ok(format!("{}-snapshot", self.trial.name));
            }
            if !pause.wait().await {
                return Err(Trouble::seen("the snapshot does not become ready"));
            }
        }
    }

    /// Asks for the snapshot that was asked for, and notes what the answer says about it.
    pub(super) async fn snapshot_again(&mut self) -> Answer<v1::Snapshot> {
        let missing = || Trouble::seen("CreateSnapshot was answered without a snapshot");
        let Made {
            snapshot: Some(made),
            ..
        } = &self.made
        else {
            return Err(missing());
        };
        let mut controller = self.controller();
        let call = controller.create_snapshot(made.request.clone());
        let answer = self.ask("CreateSnapshot", call).await;
        let answer = answer.and_then(|answer| answer.snapshot.ok_or_else(missing));
        let state = match &answer {
            Ok(snapshot) => State::There(snapshot.snapshot_id.clone()),
            Err(trouble) if trouble.code.is_some() && !trouble.is_open() => State::Never,
            Err(_) => State::Unknown,
        };
        if let Some(made) = &mut self.made.snapshot {
            made.state = state;
        }
        answer
    }

    /// Lets this node in.
    pub(super) async fn attach(&mut self, role: Role) -> Answer<()> {
        let node_id = self.node_id.clone();
        let (capability, secrets) = (self.trial.capability(), self.trial.secrets());
        let (volume, made) = self.there(role)?;
        made.attached = true;
        let request = v1::ControllerPublishVolumeRequest {
            volume_id: volume.volume_id,
            node_id,
            volume_capability: Some(capability),
            readonly: false,
            secrets,
            volume_context: volume.volume_context,
        };
        let mut controller = self.controller();
        let call = controller.controller_publish_volume(request);
        let answer = self.ask("ControllerPublishVolume", call).await?;
        self.there(role)?.1.publish_context = answer.publish_context;
        Ok(())
    }

    /// Makes it ready on this node.
    pub(super) async fn stage(&mut self, role: Role, points: MountPoints) -> Answer<()> {
        let (capability, secrets) = (self.trial.capability(), self.trial.secrets());
        let (volume, made) = self.there(role)?;
        made.staged = true;
        let request = v1::NodeStageVolumeRequest {
            volume_id: volume.volume_id,
            publish_context: made.publish_context.clone(),
            staging_target_path: points.staging.to_string(),
            volume_capability: Some(capability),
            secrets,
            volume_context: volume.volume_context,
        };
        made.points = Some(points);
        let mut node = self.node();
        self.ask("NodeStageVolume", node.node_stage_volume(request))
            .await
            .map(drop)
    }

    /// Gives it to a pod.
    pub(super) async fn publish(&mut self, role: Role, points: MountPoints) -> Answer<()> {
        let (capability, secrets) = (self.trial.capability(), self.trial.secrets());
        let staging = self.offers.stage.then(|| points.staging.to_string());
        let (volume, made) = self.there(role)?;
        made.published = true;
        let request = v1::NodePublishVolumeRequest {
            volume_id: volume.volume_id,
            publish_context: made.publish_context.clone(),
            staging_target_path: staging.unwrap_or_default(),
            target_path: points.target.to_string(),
            volume_capability: Some(capability),
            readonly: false,
            secrets,
            volume_context: volume.volume_context,
        };
        made.points = Some(points);
        let mut node = self.node();
        self.ask("NodePublishVolume", node.node_publish_volume(request))
            .await
            .map(drop)
    }

    /// Grows the original to twice its size, on the storage and on the node.
    pub(super) async fn expand(&mut self) -> Answer<Size> {
        let wanted = self.trial.size.doubled();
        let (capability, secrets) = (self.trial.capability(), self.trial.secrets());
        let (volume, made) = self.there(Role::Original)?;
        let points = made.points.clone();
        let (mut size, mut on_node) = (wanted, true);
        if self.offers.expand_controller {
            let request = v1::ControllerExpandVolumeRequest {
                volume_id: volume.volume_id.clone(),
                capacity_range: Some(wanted.range()),
                secrets: secrets.clone(),
                volume_capability: Some(capability.clone()),
            };
            let mut controller = self.controller();
            let call = controller.controller_expand_volume(request);
            let answer = self.ask("ControllerExpandVolume", call).await?;
            (size, on_node) = (Size(answer.capacity_bytes), answer.node_expansion_required);
        }
        if size < wanted {
            return Err(Trouble::seen(format!(
                "it has {size} now, {wanted} was asked for"
            )));
        }
        if let (true, Some(points)) = (on_node, points) {
            if !self.offers.expand_node {
                return Err(Trouble::seen(
                    "the node has to grow it too, and does not offer that",
                ));
            }
            let request = v1::NodeExpandVolumeRequest {
                volume_id: volume.volume_id,
                volume_path: points.target.to_string(),
                capacity_range: Some(size.range()),
                staging_target_path: points.staging.to_string(),
                volume_capability: Some(capability),
                secrets,
            };
            let mut node = self.node();
            self.ask("NodeExpandVolume", node.node_expand_volume(request))
                .await?;
        }
        Ok(size)
    }

    /// A volume that is there, and the note of it.
    pub(super) fn there(&mut self, role: Role) -> Answer<(v1::Volume, &mut MadeVolume)> {
        let made = self.made.volume_mut(role);
        made.and_then(|made| Some((made.state.there()?.clone(), made)))
            .ok_or_else(|| Trouble::seen("the volume is not there"))
    }
}
