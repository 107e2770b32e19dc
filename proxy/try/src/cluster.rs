//! The part of a cluster: what each step asks of the server.
//!
//! What is made is noted before it is asked for, and the note is taken away once it is certainly gone.
//! Nothing is deleted but what a call of ours has made.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use csi_proto::v1;
use csi_proto::v1::plugin_capability::{Type as PluginCapability, service::Type as Service};
use csi_proto::v1::volume_usage::Unit;
use csi_types::AbsolutePath;
use tokio::time::{Instant, sleep};

use crate::Program;
use crate::client::{Answer, Client, Failure};
use crate::content::Edition;
use crate::flags::{Access, Flags, Size};
use crate::folder::Folder;
use crate::journal::{Journal, Made, Role};
use crate::requests;
use crate::step::Step;

/// The time that a storage that does not answer is asked again after a failure.
const PERSISTENCE: Duration = Duration::from_secs(15);
/// The time between two attempts. A person waits, and a snapshot is ready after a second or two.
const PAUSE: Duration = Duration::from_millis(300);

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
}

mod undo;

// === impl Cluster ===

impl<P: Program> Cluster<P> {
    /// Nothing is asked of `program` yet.
    pub(crate) fn new(program: P, flags: Flags, folder: Folder, journal: Journal) -> Answer<Self> {
        let client = client_of(&folder, flags.patience())?;
        Ok(Self {
            flags,
            folder,
            journal,
            offered: BTreeSet::new(),
            program,
            client,
            node_id: String::new(),
            here: None,
        })
    }

    /// Does a step; says in a few words what came of it.
    pub(crate) async fn work(&mut self, step: Step) -> Answer<String> {
        use Edition::{First, Second};
        use Role::{Clone, Original, Restored, Snapshot};
        match step {
            Step::Serve => self.serve(),
            Step::Probe => self.probe().await,
            Step::Identify => self.identify().await,
            Step::Capabilities => self.learn().await,
            Step::Reach => self.reach().await,
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
            Step::ListVolumes => self.find(false).await,
            Step::ListSnapshots => self.find(true).await,
            Step::Unpublish | Step::Unstage | Step::Detach => self.withdraw_all(step).await,
            Step::DeleteCopies => self.delete(&[Clone, Restored]).await,
            Step::DeleteSnapshot => self.delete(&[Snapshot]).await,
            Step::DeleteVolume => self.delete(&[Original]).await,
            Step::DeleteAgain => self.delete_again().await,
            Step::NothingLeft => self.nothing_left().await,
            Step::Stop => self.stop().await,
        }
    }

    fn serve(&mut self) -> Answer<String> {
        let served = self.program.start(&self.folder.socket());
        served.map_err(Failure::seen)?;
        Ok("csi.sock".to_owned())
    }

    /// Whether it is ready; waits for it as a sidecar does.
    async fn probe(&self) -> Answer<String> {
        let end = Instant::now() + self.client.patience;
        while self.client.probe(v1::ProbeRequest {}).await?.ready == Some(false) {
            pause(end, "Probe says that it is not ready, and it stays so").await?;
        }
        Ok(String::new())
    }

    async fn identify(&self) -> Answer<String> {
        let request = v1::GetPluginInfoRequest {};
        let info = self.client.get_plugin_info(request).await?;
        Ok(format!("{} {}", info.name, info.vendor_version))
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
        let request = v1::NodeGetInfoRequest {};
        let info = self.client.node_get_info(request).await?;
        self.node_id = info.node_id;
        self.here = info.accessible_topology.filter(|_| has_places);
        Ok(format!("{} calls", self.offered.len()))
    }

    /// Whether the storage answers: every later step would fail otherwise, with words of its own. A list may fail
    /// where no volume was ever made, and in a repository that was never used, so it is asked for room first.
    /// What is listed is never touched.
    async fn reach(&mut self) -> Answer<String> {
        let answers = self.offered.contains("GetCapacity");
        if answers {
            self.capacity().await?;
        }
        if self.offered.contains("ListVolumes") {
            match self.client.volume_ids().await {
                Ok(volumes) => self.journal.foreign = volumes,
                Err(failure) if !answers => return Err(failure),
                Err(_) => {}
            }
        }
        if let Ok(snapshots) = self.listed_snapshots().await {
            self.journal.foreign.extend(snapshots);
        }
        Ok(String::new())
    }

    async fn capacity(&self) -> Answer<String> {
        let request = v1::GetCapacityRequest {
            volume_capabilities: vec![self.flags.capability()],
            parameters: self.flags.parameters(),
            accessible_topology: self.here.clone(),
        };
        let capacity = self.client.get_capacity(request).await?;
        Ok(match capacity.available_capacity {
            0 => "nothing free for such volumes".to_owned(),
            free => format!("{} free", Size(free)),
        })
    }

    /// Makes a volume or a snapshot, and waits until it can be used.
    async fn create(&mut self, role: Role) -> Answer<String> {
        self.journal.ask(role)?;
        let end = Instant::now() + self.client.patience;
        while !self.ask_for(role).await? {
            pause(end, "the snapshot does not become ready to use").await?;
        }
        let made = self.journal.there(role)?;
        match (Size(made.volume.capacity_bytes), Size(self.journal.size)) {
            (Size(0), _) => Ok(self.name(role)),
            (size, wanted) if size < wanted => Err(too_small(size, wanted)),
            (size, _) => Ok(format!("{}, {size}", made.id)),
        }
    }

    fn name(&self, role: Role) -> String {
        format!("{}-{}", self.folder.name(), role.suffix())
    }

    /// Asks for what may have been asked for before, and notes what the answer says about it. Whether it
    /// can be used.
    async fn ask_for(&mut self, role: Role) -> Answer<bool> {
        let answer = match role {
            Role::Snapshot => self.ask_for_snapshot().await,
            _ => self.ask_for_volume(role).await,
        };
        match answer {
            Ok((id, volume, ready)) => {
                let note = |made: &mut Made| (made.id, made.volume) = (id, volume);
                self.journal.note(role, note).map(|()| ready)
            }
            Err(failure) => {
                // Nothing of ours is there, unless the answer leaves that open.
                let gone = !failure.is_open();
                self.journal.note(role, |made| made.gone = gone)?;
                Err(failure)
            }
        }
    }

    async fn ask_for_volume(&self, role: Role) -> Answer<(String, v1::Volume, bool)> {
        let source = match role {
            Role::Restored => requests::from_snapshot(&self.journal.there(Role::Snapshot)?.id),
            Role::Clone => requests::from_volume(&self.journal.there(Role::Original)?.id),
            _ => None,
        };
        let here = self.here.clone().map(|here| v1::TopologyRequirement {
            requisite: vec![here.clone()],
            preferred: vec![here],
        });
        let name = self.name(role);
        let request = v1::CreateVolumeRequest {
            capacity_range: requests::at_least(self.journal.size),
            volume_capabilities: vec![self.flags.capability()],
            secrets: self.flags.secrets(),
            volume_content_source: source,
            accessibility_requirements: here,
            ..requests::create(&name, &self.flags.parameters())
        };
        let volume = self.client.volume(request).await?;
        let id = volume.volume_id.clone();
        let mut ours = self.journal.known();
        if self.journal.foreign.contains(&id) || ours.any(|made| made.role != role && made.id == id)
        {
            return Err(Failure::seen(format!(
                "CreateVolume gave out `{id}`, which was there before and is left alone: names of \
                 different volumes lead to one id"
            )));
        }
        Ok((id, volume, true))
    }

    async fn ask_for_snapshot(&self) -> Answer<(String, v1::Volume, bool)> {
        let source = self.journal.there(Role::Original)?.id;
        let name = self.name(Role::Snapshot);
        let request = v1::CreateSnapshotRequest {
            secrets: self.flags.secrets(),
            parameters: self.flags.snapshot_parameters(),
            ..requests::snapshot(&name, &source)
        };
        let snapshot = self.client.snapshot(request).await?;
        let ready = snapshot.ready_to_use;
        Ok((snapshot.snapshot_id, v1::Volume::default(), ready))
    }

    /// Lets this node in.
    async fn attach(&mut self, role: Role) -> Answer<String> {
        let made = self.journal.there(role)?;
        let request = v1::ControllerPublishVolumeRequest {
            volume_id: made.id,
            node_id: self.node_id.clone(),
            volume_capability: Some(self.flags.capability()),
            readonly: false,
            secrets: self.flags.secrets(),
            volume_context: made.volume.volume_context,
        };
        let answer = self.client.controller_publish_volume(request).await?;
        let note = |made: &mut Made| made.publish_context = answer.publish_context;
        self.journal.note(role, note)?;
        Ok(self.node_id.clone())
    }

    /// Makes it ready on this node.
    async fn stage(&self, role: Role) -> Answer<String> {
        let made = self.journal.there(role)?;
        let (staging, _) = self.paths(role);
        // A kubelet makes this directory before it asks.
        make_folder(staging.as_path())?;
        let request = v1::NodeStageVolumeRequest {
            publish_context: made.publish_context,
            volume_capability: Some(self.flags.capability()),
            secrets: self.flags.secrets(),
            ..requests::stage(&made.volume, staging.as_path())
        };
        self.client.node_stage_volume(request).await?;
        Ok(String::new())
    }

    /// Gives it to a pod.
    async fn publish(&self, role: Role) -> Answer<String> {
        let made = self.journal.there(role)?;
        let (staging, target) = self.paths(role);
        make_folder(target.as_path().parent().unwrap_or(target.as_path()))?;
        let mut request = v1::NodePublishVolumeRequest {
            publish_context: made.publish_context,
            volume_capability: Some(self.flags.capability()),
            secrets: self.flags.secrets(),
            ..requests::publish(&made.volume, staging.as_path(), target.as_path())
        };
        if !self.offered.contains("NodeStageVolume") {
            request.staging_target_path.clear();
        }
        self.client.node_publish_volume(request).await?;
        Ok(format!("node/{}/pod/volume", role.suffix()))
    }

    /// The whole way of a volume to its pod.
    async fn bring(&mut self, role: Role) -> Answer<String> {
        if self.offered.contains("ControllerPublishVolume") {
            self.attach(role).await?;
        }
        if self.offered.contains("NodeStageVolume") {
            self.stage(role).await?;
        }
        self.publish(role).await
    }

    /// The path where it is staged, and where a pod sees it.
    fn paths(&self, role: Role) -> (AbsolutePath, AbsolutePath) {
        let folder = self.folder.path().child("node").child(role.suffix());
        (folder.child("staging"), folder.child("pod").child("volume"))
    }

    async fn write(&self, role: Role, edition: Edition) -> Answer<String> {
        self.on_files(role, move |target, access| edition.write(target, access))
            .await?;
        Ok("1 MiB, flushed".to_owned())
    }

    async fn compare(&self, role: Role, edition: Edition) -> Answer<String> {
        self.on_files(role, move |target, access| edition.compare(target, access))
            .await?;
        Ok("every byte is the same".to_owned())
    }

    /// Works on a published volume, where that may block.
    async fn on_files(
        &self,
        role: Role,
        work: impl FnOnce(&Path, Access) -> Result<(), String> + Send + 'static,
    ) -> Answer<()> {
        let ((_, target), access) = (self.paths(role), self.flags.access);
        let done = tokio::task::spawn_blocking(move || work(target.as_path(), access)).await;
        let done = done.unwrap_or_else(|error| Err(error.to_string()));
        done.map_err(Failure::seen)
    }

    /// Writes to the copies and finds the original as it was.
    async fn independent(&self) -> Answer<String> {
        for role in [Role::Restored, Role::Clone] {
            if self.journal.there(role).is_ok() {
                self.write(role, Edition::Other).await?;
            }
        }
        self.compare(Role::Original, Edition::Second).await?;
        Ok("the original is unchanged".to_owned())
    }

    async fn stats(&self) -> Answer<String> {
        let (staging, target) = self.paths(Role::Original);
        let request = v1::NodeGetVolumeStatsRequest {
            volume_id: self.journal.there(Role::Original)?.id,
            volume_path: target.to_string(),
            staging_target_path: staging.to_string(),
        };
        let answer = self.client.node_get_volume_stats(request).await?;
        let condition = condition(answer.volume_condition)?;
        let mut usage = answer.usage.iter();
        let bytes = usage.find(|usage| usage.unit() == Unit::Bytes);
        let usage = bytes.copied().unwrap_or_default();
        let (used, total) = (Size(usage.used), Size(usage.total));
        Ok(match self.flags.access {
            Access::Block => format!("{total} in all{condition}"),
            Access::Mount => format!("{used} of {total} used{condition}"),
        })
    }

    /// Grows the original to twice its size, on the storage and on the node.
    async fn expand(&self) -> Answer<String> {
        let id = self.journal.there(Role::Original)?.id;
        let wanted = Size(self.journal.size.saturating_mul(2));
        let (mut size, mut on_node) = (wanted, true);
        let request = v1::ControllerExpandVolumeRequest {
            secrets: self.flags.secrets(),
            volume_capability: Some(self.flags.capability()),
            ..requests::expand(&id, wanted.0)
        };
        if self.offered.contains("ControllerExpandVolume") {
            let request = request.clone();
            let answer = self.client.controller_expand_volume(request).await?;
            (size, on_node) = (Size(answer.capacity_bytes), answer.node_expansion_required);
        }
        if size < wanted {
            return Err(too_small(size, wanted));
        }
        if on_node {
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
        let volume_id = self.journal.there(Role::Original)?.id;
        let request = v1::ControllerGetVolumeRequest { volume_id };
        let answer = self.client.controller_get_volume(request).await?;
        let status = answer.status.unwrap_or_default();
        Ok(format!(
            "it is there{}",
            condition(status.volume_condition)?
        ))
    }

    /// The ids of all volumes and all snapshots, as far as they are listed.
    async fn listed(&self) -> Answer<BTreeSet<String>> {
        let mut ids = BTreeSet::new();
        if self.offered.contains("ListVolumes") {
            ids.extend(self.client.volume_ids().await?);
        }
        ids.extend(self.listed_snapshots().await?);
        Ok(ids)
    }

    async fn listed_snapshots(&self) -> Answer<BTreeSet<String>> {
        if !self.offered.contains("ListSnapshots") {
            return Ok(BTreeSet::new());
        }
        let request = v1::ListSnapshotsRequest {
            secrets: self.flags.secrets(),
            ..v1::ListSnapshotsRequest::default()
        };
        self.client.snapshot_ids(request).await
    }

    async fn find(&self, snapshots: bool) -> Answer<String> {
        let listed = self.listed().await?;
        let mut ours = self.journal.known();
        let wanted = |made: &Made| (made.role == Role::Snapshot) == snapshots;
        match ours.find(|made| wanted(made) && !listed.contains(&made.id)) {
            Some(made) => {
                let what = made.in_words(self.folder.name());
                Err(Failure::seen(format!("the list does not have {what}")))
            }
            None => Ok(String::new()),
        }
    }
}

/// Clients of the server in this folder; the first call connects.
fn client_of(folder: &Folder, patience: Duration) -> Answer<Client> {
    let client = Client::lazy(folder.socket().as_path());
    let client = client.map_err(|error| Failure::seen(error.to_string()))?;
    Ok(Client { patience, ..client })
}

fn too_small(size: Size, wanted: Size) -> Failure {
    Failure::seen(format!("the volume has {size}, {wanted} was asked for"))
}

/// Waits a moment, or fails with these words if it is too late for that.
async fn pause(end: Instant, too_late: &str) -> Answer<()> {
    if Instant::now() + PAUSE > end {
        return Err(Failure::seen(too_late));
    }
    sleep(PAUSE).await;
    Ok(())
}

fn make_folder(path: &Path) -> Answer<()> {
    let failed = |error| Failure::seen(format!("make {}: {error}", path.display()));
    fs::create_dir_all(path).map_err(failed)
}

fn condition(condition: Option<v1::VolumeCondition>) -> Answer<&'static str> {
    match condition {
        Some(bad) if bad.abnormal => {
            let what = format!("the volume is not healthy: {}", bad.message);
            Err(Failure::seen(what))
        }
        Some(_) => Ok(", healthy"),
        None => Ok(""),
    }
}
