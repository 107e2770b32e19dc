//! The part of a cluster: what each step asks of the server, and how everything is undone.
//!
//! Everything is noted before it is asked for, and the note is taken away once it is certainly undone.
//! Nothing is deleted but what a call of ours has made.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::mem;
use std::time::Duration;

use csi_proto::v1;
use csi_proto::v1::plugin_capability::{Type as PluginCapability, service::Type as Service};
use csi_proto::v1::volume_usage::Unit;
use tokio::time::Instant;

use crate::Program;
use crate::client::{Answer, CLONE, Client, Failure};
use crate::content::{Edition, LENGTH};
use crate::flags::{Flags, Size};
use crate::folder::Folder;
use crate::journal::{Journal, Role};
use crate::requests;
use crate::step::Step;

/// How long a storage that does not answer is asked again after a failure.
const PERSISTENCE: Duration = Duration::from_secs(15);
/// The longest pause between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The client of one server, and what was made through it.
#[derive(Debug)]
pub(crate) struct Cluster<P> {
    pub(crate) flags: Flags,
    pub(crate) folder: Folder,
    pub(crate) journal: Journal,
    /// The names of the calls that are offered.
    pub(crate) offered: BTreeSet<&'static str>,
    program: P,
    client: Client,
    node_id: String,
    here: Option<v1::Topology>,
    /// What was there before us: never touched, whatever a driver answers.
    foreign: BTreeSet<String>,
}

/// Growing pauses between attempts, until patience ends.
struct Pause {
    next: Duration,
    end: Instant,
}

// === impl Cluster ===

impl<P: Program> Cluster<P> {
    /// Nothing is asked of `program` yet.
    pub(crate) fn new(program: P, flags: Flags, folder: Folder, journal: Journal) -> Answer<Self> {
        let client = client_of(&folder)?;
        Ok(Self {
            client: Client {
                patience: flags.patience(),
                ..client
            },
            flags,
            folder,
            journal,
            offered: BTreeSet::new(),
            program,
            node_id: String::new(),
            here: None,
            foreign: BTreeSet::new(),
        })
    }

    /// Does a step; says in a few words what came of it.
    pub(crate) async fn work(&mut self, step: Step) -> Answer<String> {
        use Edition::{First, Second};
        use Role::{Clone, Original, Restored, Snapshot};
        match step {
            Step::Serve => {
                let served = self.program.start(&self.folder.socket());
                served
                    .map(|()| "csi.sock".to_owned())
                    .map_err(Failure::seen)
            }
            Step::Probe => self.probe().await,
            Step::Identify => {
                let info = self
                    .client
                    .get_plugin_info(v1::GetPluginInfoRequest {})
                    .await?;
                Ok(format!("{} {}", info.name, info.vendor_version))
            }
            Step::Capabilities => self.learn().await,
            Step::Recover => self.recover().await,
            Step::Capacity => self.capacity().await,
            Step::Create => self.create(Original).await,
            Step::Attach => self.attach(Original).await,
            Step::Stage => self.stage(Original).await,
            Step::Publish => self.publish(Original).await,
            Step::Write => self.write(Original, First).await,
            Step::Stats => self.stats().await,
            Step::Snapshot => self.create(Snapshot).await,
            Step::Change => self.write(Original, Second).await,
            Step::Restore => self.create(Restored).await,
            Step::UseRestored => self.bring(Restored).await,
            Step::CompareRestored => self.compare(Restored, First).await,
            Step::Clone => self.create(Clone).await,
            Step::UseClone => self.bring(Clone).await,
            Step::CompareClone => self.compare(Clone, Second).await,
            Step::Independent => self.independent().await,
            Step::Expand => self.expand().await,
            Step::Health => self.health().await,
            Step::ListVolumes => self.find_volumes().await,
            Step::ListSnapshots => self.find_snapshot().await,
            Step::Unpublish | Step::Unstage | Step::Detach => self.withdraw_all(step).await,
            Step::DeleteCopies => self.delete_all(&[Clone, Restored]).await,
            Step::DeleteSnapshot => self.delete_all(&[Snapshot]).await,
            Step::DeleteVolume => self.delete_all(&[Original]).await,
            Step::DeleteAgain => self.delete_again().await,
            Step::NothingLeft => self.nothing_left().await,
            Step::Stop => self.stop().await,
        }
    }

    fn offers(&self, call: &str) -> bool {
        self.offered.contains(call)
    }

    fn name(&self, role: Role) -> String {
        format!("{}-{}", self.folder.name(), role.suffix())
    }

    /// Whether it is ready; waits for it as a sidecar does.
    async fn probe(&self) -> Answer<String> {
        let mut pause = Pause::new(self.client.patience);
        while self.client.probe(v1::ProbeRequest {}).await?.ready == Some(false) {
            if !pause.wait().await {
                return Err(Failure::seen(
                    "Probe says that it is not ready, and it stays so",
                ));
            }
        }
        Ok(String::new())
    }

    /// What it can do, and where it stands.
    async fn learn(&mut self) -> Answer<String> {
        let request = v1::GetPluginCapabilitiesRequest {};
        let plugin = self.client.get_plugin_capabilities(request).await?;
        let has_places = plugin.capabilities.iter().any(|capability| {
            matches!(&capability.r#type, Some(PluginCapability::Service(service))
                if service.r#type() == Service::VolumeAccessibilityConstraints)
        });
        self.offered = self.client.offered().await?;
        let info = self.client.node_get_info(v1::NodeGetInfoRequest {}).await?;
        self.node_id = info.node_id;
        self.here = info.accessible_topology.filter(|_| has_places);
        let words = [
            ("snapshots", self.offers("CreateSnapshot")),
            ("clones", self.offers(CLONE)),
            (
                "growth",
                self.offers("ControllerExpandVolume") || self.offers("NodeExpandVolume"),
            ),
            (
                "lists",
                self.offers("ListVolumes") || self.offers("ListSnapshots"),
            ),
            ("stats", self.offers("NodeGetVolumeStats")),
        ];
        let words: Vec<_> = words
            .iter()
            .filter_map(|(word, has)| has.then_some(*word))
            .collect();
        Ok(words.join(", "))
    }

    /// Cleans up after runs on the same storage that were killed.
    async fn recover(&mut self) -> Answer<String> {
        let mut count = 0;
        for folder in Folder::all() {
            let Some(journal) = Journal::of_the_dead(&folder) else {
                continue;
            };
            let here = journal.config == self.journal.config;
            if journal.config.is_some() && here {
                let own = mem::replace(&mut self.journal, journal);
                let own = (mem::replace(&mut self.folder, folder.clone()), own);
                let problems = self.clean_up().await;
                let left = self.journal.remains(folder.name());
                (self.folder, self.journal) = own;
                if !left.is_empty() {
                    let (left, problems) = (left.join(", "), problems.join("; "));
                    let what = format!("{} names {left}: {problems}", folder.path());
                    return Err(Failure::seen(what));
                }
            } else if journal.config.is_some() {
                continue;
            }
            folder.remove().map_err(Failure::seen)?;
            count += 1;
        }
        if self.offers("ListVolumes") {
            self.foreign = self.client.volume_ids().await?;
        }
        Ok(match count {
            0 => "there were none".to_owned(),
            1 => "1 run".to_owned(),
            count => format!("{count} runs"),
        })
    }

    async fn capacity(&self) -> Answer<String> {
        let request = v1::GetCapacityRequest {
            volume_capabilities: vec![self.flags.capability()],
            parameters: self.parameters(),
            accessible_topology: self.here.clone(),
        };
        let capacity = self.client.get_capacity(request).await?.available_capacity;
        Ok(format!("{} free", Size(capacity)))
    }

    fn parameters(&self) -> BTreeMap<String, String> {
        self.flags.parameters.iter().cloned().collect()
    }

    /// Makes a volume or a snapshot, and waits until it can be used.
    async fn create(&mut self, role: Role) -> Answer<String> {
        self.journal.ask(role)?;
        let mut pause = Pause::new(self.client.patience);
        while !self.ask_for(role).await? {
            if !pause.wait().await {
                return Err(Failure::seen("the snapshot does not become ready to use"));
            }
        }
        let Some(made) = self.journal.there(role).filter(|_| role != Role::Snapshot) else {
            return Ok(self.name(role));
        };
        let (volume, wanted) = (&made.volume, Size(self.journal.size));
        let size = match volume.capacity_bytes {
            0 => wanted,
            bytes => Size(bytes),
        };
        if size < wanted {
            let what = format!("the volume has {size}, {wanted} was asked for");
            return Err(Failure::seen(what));
        }
        if role != Role::Original && volume.content_source.is_none() {
            let what = "CreateVolume does not say what the volume was made from";
            return Err(Failure::seen(what));
        }
        Ok(format!("{}, {size}", volume.volume_id))
    }

    /// Asks for what may have been asked for before, and notes what the answer says about it. Whether it
    /// can be used.
    async fn ask_for(&mut self, role: Role) -> Answer<bool> {
        let answer = match role {
            Role::Snapshot => self.ask_for_snapshot().await,
            Role::Original | Role::Restored | Role::Clone => self.ask_for_volume(role).await,
        };
        match answer {
            Ok((volume, ready)) => {
                let note = |made: &mut crate::journal::Made| {
                    made.id = Some(volume.volume_id.clone());
                    made.volume = volume;
                };
                self.journal.note(role, note).map(|()| ready)
            }
            Err(failure) => {
                // Nothing of ours is there, unless the answer leaves that open.
                let gone = failure.code.is_none() || !failure.is_open();
                self.journal.note(role, |made| made.gone = gone)?;
                Err(failure)
            }
        }
    }

    async fn ask_for_volume(&self, role: Role) -> Answer<(v1::Volume, bool)> {
        let source = match role {
            Role::Restored => requests::from_snapshot(&self.journal.id(Role::Snapshot)?),
            Role::Clone => requests::from_volume(&self.journal.id(Role::Original)?),
            Role::Original | Role::Snapshot => None,
        };
        let volume = self.client.volume(v1::CreateVolumeRequest {
            capacity_range: requests::at_least(self.journal.size),
            volume_capabilities: vec![self.flags.capability()],
            secrets: self.flags.secrets(),
            volume_content_source: source,
            accessibility_requirements: self.here.clone().map(|here| v1::TopologyRequirement {
                requisite: vec![here.clone()],
                preferred: vec![here],
            }),
            ..requests::create(&self.name(role), &self.parameters())
        });
        let volume = volume.await?;
        let id = &volume.volume_id;
        let mut ours = self.journal.ids();
        if self.foreign.contains(id) || ours.any(|(made, other)| made.role != role && other == id) {
            return Err(Failure::seen(format!(
                "CreateVolume gave out `{id}`, which was there before and is left alone: names of \
                 different volumes lead to one id"
            )));
        }
        Ok((volume, true))
    }

    async fn ask_for_snapshot(&self) -> Answer<(v1::Volume, bool)> {
        let source = self.journal.id(Role::Original)?;
        let request = v1::CreateSnapshotRequest {
            secrets: self.flags.secrets(),
            parameters: self.flags.snapshot_parameters.iter().cloned().collect(),
            ..requests::snapshot(&self.name(Role::Snapshot), &source)
        };
        let snapshot = self.client.snapshot(request).await?;
        let volume_id = snapshot.snapshot_id;
        let volume = v1::Volume {
            volume_id,
            ..v1::Volume::default()
        };
        Ok((volume, snapshot.ready_to_use))
    }

    /// Lets this node in.
    async fn attach(&mut self, role: Role) -> Answer<String> {
        let volume_id = self.journal.id(role)?;
        self.journal.note(role, |made| made.attached = true)?;
        let request = v1::ControllerPublishVolumeRequest {
            volume_id,
            node_id: self.node_id.clone(),
            volume_capability: Some(self.flags.capability()),
            readonly: false,
            secrets: self.flags.secrets(),
            volume_context: self.volume(role)?.volume_context,
        };
        let answer = self.client.controller_publish_volume(request).await?;
        self.journal
            .note(role, |made| made.publish_context = answer.publish_context)?;
        Ok(self.node_id.clone())
    }

    fn volume(&self, role: Role) -> Answer<v1::Volume> {
        self.journal.id(role)?;
        let made = self.journal.there(role);
        Ok(made.map(|made| made.volume.clone()).unwrap_or_default())
    }

    fn publish_context(&self, role: Role) -> BTreeMap<String, String> {
        let made = self.journal.there(role);
        made.map(|made| made.publish_context.clone())
            .unwrap_or_default()
    }

    /// Makes it ready on this node.
    async fn stage(&mut self, role: Role) -> Answer<String> {
        let staging = self.folder.staging(role.suffix());
        let volume = self.volume(role)?;
        // A kubelet makes this directory before it asks.
        fs::create_dir_all(staging.as_path()).map_err(|e| Failure::seen(e.to_string()))?;
        self.journal.note(role, |made| made.staged = true)?;
        let request = v1::NodeStageVolumeRequest {
            publish_context: self.publish_context(role),
            volume_capability: Some(self.flags.capability()),
            secrets: self.flags.secrets(),
            ..requests::stage(&volume, staging.as_path())
        };
        self.client.node_stage_volume(request).await?;
        Ok(String::new())
    }

    /// Gives it to a pod.
    async fn publish(&mut self, role: Role) -> Answer<String> {
        let (staging, target) = self.paths(role);
        let volume = self.volume(role)?;
        let pod = target.as_path().parent().map_or(Ok(()), fs::create_dir_all);
        pod.map_err(|error| Failure::seen(error.to_string()))?;
        self.journal.note(role, |made| made.published = true)?;
        let mut request = v1::NodePublishVolumeRequest {
            publish_context: self.publish_context(role),
            volume_capability: Some(self.flags.capability()),
            secrets: self.flags.secrets(),
            ..requests::publish(&volume, staging.as_path(), target.as_path())
        };
        if !self.offers("NodeStageVolume") {
            request.staging_target_path.clear();
        }
        self.client.node_publish_volume(request).await?;
        Ok(format!("node/{}/pod/volume", role.suffix()))
    }

    /// The whole way of a volume to its pod.
    async fn bring(&mut self, role: Role) -> Answer<String> {
        if self.offers("ControllerPublishVolume") {
            self.attach(role).await?;
        }
        if self.offers("NodeStageVolume") {
            self.stage(role).await?;
        }
        self.publish(role).await
    }

    fn paths(&self, role: Role) -> (csi_types::AbsolutePath, csi_types::AbsolutePath) {
        let volume = role.suffix();
        (self.folder.staging(volume), self.folder.target(volume))
    }

    async fn write(&self, role: Role, edition: Edition) -> Answer<String> {
        let (target, access) = (self.folder.target(role.suffix()), self.flags.access);
        blocking(move || edition.write(target.as_path(), access)).await?;
        let size = Size(i64::try_from(LENGTH).unwrap_or(i64::MAX));
        Ok(format!("{size}, flushed"))
    }

    async fn compare(&self, role: Role, edition: Edition) -> Answer<String> {
        let (target, access) = (self.folder.target(role.suffix()), self.flags.access);
        blocking(move || edition.compare(target.as_path(), access)).await?;
        Ok("every byte is the same".to_owned())
    }

    /// Writes to the copies and finds the original as it was.
    async fn independent(&self) -> Answer<String> {
        for role in [Role::Restored, Role::Clone] {
            if self.journal.there(role).is_some() {
                self.write(role, Edition::Other).await?;
            }
        }
        self.compare(Role::Original, Edition::Second).await?;
        Ok("the original is unchanged".to_owned())
    }

    async fn stats(&self) -> Answer<String> {
        let (staging, target) = self.paths(Role::Original);
        let request = v1::NodeGetVolumeStatsRequest {
            volume_id: self.journal.id(Role::Original)?,
            volume_path: target.to_string(),
            staging_target_path: staging.to_string(),
        };
        let answer = self.client.node_get_volume_stats(request).await?;
        let condition = condition(answer.volume_condition.as_ref())?;
        let mut usage = answer.usage.iter();
        Ok(match usage.find(|usage| usage.unit() == Unit::Bytes) {
            Some(usage) => {
                let (used, total) = (Size(usage.used), Size(usage.total));
                format!("{used} of {total} used{condition}")
            }
            None => format!("no figures{condition}"),
        })
    }

    /// Grows the original to twice its size, on the storage and on the node.
    async fn expand(&mut self) -> Answer<String> {
        let volume_id = self.journal.id(Role::Original)?;
        let wanted = Size(self.journal.size.saturating_mul(2));
        let (mut size, mut on_node) = (wanted, true);
        let request = v1::ControllerExpandVolumeRequest {
            secrets: self.flags.secrets(),
            volume_capability: Some(self.flags.capability()),
            ..requests::expand(&volume_id, wanted.0)
        };
        if self.offers("ControllerExpandVolume") {
            let answer = self
                .client
                .controller_expand_volume(request.clone())
                .await?;
            (size, on_node) = (Size(answer.capacity_bytes), answer.node_expansion_required);
        }
        if size < wanted {
            let what = format!("it has {size} now, {wanted} was asked for");
            return Err(Failure::seen(what));
        }
        if on_node {
            if !self.offers("NodeExpandVolume") {
                let what = "the node has to grow it too, and does not offer that";
                return Err(Failure::seen(what));
            }
            let (staging, target) = self.paths(Role::Original);
            let request = v1::NodeExpandVolumeRequest {
                staging_target_path: staging.to_string(),
                secrets: self.flags.secrets(),
                ..requests::expand_on_node(&request, target.as_path())
            };
            self.client.node_expand_volume(request).await?;
        }
        self.compare(Role::Original, Edition::Second).await?;
        Ok(format!("from {} to {size}", self.flags.size))
    }

    async fn health(&self) -> Answer<String> {
        let volume_id = self.journal.id(Role::Original)?;
        let request = v1::ControllerGetVolumeRequest { volume_id };
        let answer = self.client.controller_get_volume(request).await?;
        let status = answer.status.unwrap_or_default();
        let condition = condition(status.volume_condition.as_ref())?;
        Ok(format!("it is there{condition}"))
    }

    async fn find_volumes(&self) -> Answer<String> {
        let listed = self.client.volume_ids().await?;
        let ours = self.journal.ids();
        let ours: Vec<_> = ours
            .filter(|(made, _)| made.role != Role::Snapshot)
            .collect();
        match ours.iter().find(|(_, id)| !listed.contains(*id)) {
            Some((_, id)) => Err(Failure::seen(format!("the list does not have `{id}`"))),
            None => Ok(format!("{} of ours among {}", ours.len(), listed.len())),
        }
    }

    async fn snapshots_of(&self, source_volume_id: String) -> Answer<BTreeSet<String>> {
        let request = v1::ListSnapshotsRequest {
            source_volume_id,
            secrets: self.flags.secrets(),
            ..v1::ListSnapshotsRequest::default()
        };
        self.client.snapshot_ids(request).await
    }

    async fn find_snapshot(&self) -> Answer<String> {
        let id = self.journal.id(Role::Snapshot)?;
        let listed = self.snapshots_of(self.journal.id(Role::Original)?).await?;
        match (listed.contains(&id), listed.len()) {
            (true, 1) => Ok("the only one of this volume".to_owned()),
            (true, _) => {
                let what = "the list of this volume's snapshots has others, too";
                Err(Failure::seen(what))
            }
            (false, _) => Err(Failure::seen("the list does not have it")),
        }
    }

    async fn withdraw_all(&mut self, step: Step) -> Answer<String> {
        let mut count = 0;
        for role in self.journal.backwards() {
            count += usize::from(role != Role::Snapshot);
            match step {
                Step::Unpublish => self.unpublish(role).await?,
                Step::Unstage => self.unstage(role).await?,
                _ => self.detach(role).await?,
            }
        }
        Ok(volumes(count))
    }

    /// Takes a volume from its pod.
    async fn unpublish(&mut self, role: Role) -> Answer<()> {
        if let Some(volume_id) = self.journal.id_if(role, |made| made.published) {
            let target_path = self.folder.target(role.suffix()).to_string();
            let request = v1::NodeUnpublishVolumeRequest {
                volume_id,
                target_path,
            };
            self.client.node_unpublish_volume(request).await?;
            self.journal.note(role, |made| made.published = false)?;
        }
        Ok(())
    }

    /// Takes a volume from this node.
    async fn unstage(&mut self, role: Role) -> Answer<()> {
        if let Some(volume_id) = self.journal.id_if(role, |made| made.staged) {
            let staging_target_path = self.folder.staging(role.suffix()).to_string();
            let request = v1::NodeUnstageVolumeRequest {
                volume_id,
                staging_target_path,
            };
            self.client.node_unstage_volume(request).await?;
            self.journal.note(role, |made| made.staged = false)?;
        }
        Ok(())
    }

    /// Lets this node in no longer.
    async fn detach(&mut self, role: Role) -> Answer<()> {
        if let Some(volume_id) = self.journal.id_if(role, |made| made.attached) {
            let (node_id, secrets) = (self.node_id.clone(), self.flags.secrets());
            let request = v1::ControllerUnpublishVolumeRequest {
                volume_id,
                node_id,
                secrets,
            };
            self.client.controller_unpublish_volume(request).await?;
            self.journal.note(role, |made| made.attached = false)?;
        }
        Ok(())
    }

    async fn delete_all(&mut self, roles: &[Role]) -> Answer<String> {
        let mut count = 0;
        for role in roles {
            count += usize::from(self.journal.there(*role).is_some());
            self.delete(*role).await?;
        }
        Ok(match roles {
            [_] => String::new(),
            _ => volumes(count),
        })
    }

    /// Deletes what is there.
    async fn delete(&mut self, role: Role) -> Answer<()> {
        if let Some(id) = self.journal.id_if(role, |_| true) {
            self.delete_id(role, &id).await?;
            self.journal.note(role, |made| made.gone = true)?;
        }
        Ok(())
    }

    async fn delete_id(&self, role: Role, id: &str) -> Answer<()> {
        let secrets = self.flags.secrets();
        if role == Role::Snapshot {
            let request = v1::DeleteSnapshotRequest {
                secrets,
                ..requests::delete_snapshot(id)
            };
            return self.client.delete_snapshot(request).await.map(drop);
        }
        let request = v1::DeleteVolumeRequest {
            secrets,
            ..requests::delete(id)
        };
        self.client.delete_volume(request).await.map(drop)
    }

    async fn delete_again(&self) -> Answer<String> {
        for (made, id) in self.journal.ids() {
            self.delete_id(made.role, id).await?;
        }
        let count = self.journal.ids().count();
        Ok(format!("{count} answers, all the same"))
    }

    /// Looks everywhere where something could be left.
    async fn nothing_left(&self) -> Answer<String> {
        let mut left = self.journal.remains(self.folder.name());
        let mounts = self
            .folder
            .mounts()
            .map_err(|e| Failure::seen(e.to_string()))?;
        left.extend(
            mounts
                .iter()
                .map(|path| format!("mount {}", path.display())),
        );
        let mut looked = vec!["mounts"];
        let mut listed = BTreeSet::new();
        if self.offers("ListVolumes") {
            listed.extend(self.client.volume_ids().await?);
            looked.push("volumes");
        }
        if self.offers("ListSnapshots") {
            listed.extend(self.snapshots_of(String::new()).await?);
            looked.push("snapshots");
        }
        let ours = self.journal.ids().filter(|(_, id)| listed.contains(*id));
        left.extend(ours.map(|(made, id)| format!("the {} `{id}`", made.role.kind())));
        match left.as_slice() {
            [] => Ok(format!("no {}", looked.join(", "))),
            left => Err(Failure::seen(format!("still there: {}", left.join(", ")))),
        }
    }

    /// Stops the server, and removes the folder unless the next run needs it to clean up.
    pub(crate) async fn stop(&mut self) -> Answer<String> {
        // The server waits for its clients to leave.
        self.client = client_of(&self.folder)?;
        self.program.stop().await.map_err(Failure::seen)?;
        let left = self.journal.remains(self.folder.name());
        if left.is_empty() || self.journal.config.is_none() {
            self.folder.remove().map_err(Failure::seen)?;
        }
        Ok(String::new())
    }

    /// Undoes everything that was asked for, as far as that can be done; says what stood in the way.
    pub(crate) async fn clean_up(&mut self) -> Vec<String> {
        let mut pause = Pause::new(PERSISTENCE);
        loop {
            let mut problems = Vec::new();
            // Copies before the snapshot, the snapshot before its source.
            for role in self.journal.backwards() {
                problems.extend(self.undo(role).await.err());
            }
            if !problems.iter().any(Failure::is_open) || !pause.wait().await {
                return problems.into_iter().map(|failure| failure.what).collect();
            }
        }
    }

    /// Undoes one thing. What is in use is not deleted: that could destroy more than it.
    async fn undo(&mut self, role: Role) -> Answer<()> {
        self.unpublish(role).await?;
        self.unstage(role).await?;
        self.detach(role).await?;
        let unknown = self
            .journal
            .there(role)
            .is_some_and(|made| made.id.is_none());
        // The answer was lost: to ask again tells what there is.
        if unknown
            && let Err(failure) = self.ask_for(role).await
            && failure.is_open()
        {
            if failure.is_at_work() || self.is_perhaps_listed(role).await {
                return Err(failure);
            }
            self.journal.note(role, |made| made.gone = true)?;
        }
        self.delete(role).await
    }

    /// Whether something whose id we do not know may be there: unless the list says otherwise.
    async fn is_perhaps_listed(&self, role: Role) -> bool {
        let known: BTreeSet<_> = self.journal.ids().map(|(_, id)| id).collect();
        let listed = match (role, self.journal.id(Role::Original)) {
            (Role::Snapshot, Ok(source)) if self.offers("ListSnapshots") => {
                self.snapshots_of(source).await
            }
            (Role::Original | Role::Restored | Role::Clone, _) if self.offers("ListVolumes") => {
                self.client.volume_ids().await
            }
            _ => return true,
        };
        let ours = |id: &String| self.foreign.contains(id) || known.contains(id);
        listed.map_or(true, |ids| !ids.iter().all(ours))
    }
}

fn client_of(folder: &Folder) -> Answer<Client> {
    let client = Client::lazy(folder.socket().as_path());
    client.map_err(|error| Failure::seen(crate::screen::chain(&error)))
}

/// Works on files, where that may block.
async fn blocking(work: impl FnOnce() -> Result<(), String> + Send + 'static) -> Answer<()> {
    let done = tokio::task::spawn_blocking(work).await;
    let done = done.unwrap_or_else(|error| Err(error.to_string()));
    done.map_err(Failure::seen)
}

fn volumes(count: usize) -> String {
    match count {
        1 => "1 volume".to_owned(),
        _ => format!("{count} volumes"),
    }
}

fn condition(condition: Option<&v1::VolumeCondition>) -> Answer<&'static str> {
    match condition {
        Some(bad) if bad.abnormal => {
            let what = format!("the volume is not healthy: {}", bad.message);
            Err(Failure::seen(what))
        }
        Some(_) => Ok(", healthy"),
        None => Ok(""),
    }
}

// === impl Pause ===

impl Pause {
    /// Pauses for that long in all.
    fn new(patience: Duration) -> Self {
        let next = Duration::from_millis(50);
        let end = Instant::now() + patience;
        Self { next, end }
    }

    /// Pauses; `false` if patience has ended.
    async fn wait(&mut self) -> bool {
        if Instant::now() + self.next > self.end {
            return false;
        }
        tokio::time::sleep(self.next).await;
        self.next = (self.next * 2).min(LONGEST_PAUSE);
        true
    }
}
