//! Every call that changes something on the storage host, what has to be there before it, and what
//! takes it back.

use std::path::PathBuf;
use std::sync::Mutex;

use csi_proto::fence::fence_controller_client::FenceControllerClient;
use csi_proto::fence::{Cidr, FenceClusterNetworkRequest, UnfenceClusterNetworkRequest};
use csi_proto::v1 as csi;
use csi_proto::v1::group_controller_client::GroupControllerClient;
use csi_proto::v1::volume_capability::access_mode::Mode;
use tonic::transport::Channel;
use tonic::{Response, Status};

use crate::client::Client;
use crate::lab::calls::{until_done, within};
use crate::lab::fixture::capability;
use crate::lab::served::Served;
use crate::volume;

/// The name of the volume that others are made of; it stays.
pub const SOURCE: &str = "pvc-source";
/// That of the volume of an operation.
pub const OBJECT: &str = "pvc-object";
/// That of a clone that stands on the volume of an operation.
const STANDS_ON_IT: &str = "pvc-stands-on-it";
const SIZE: i64 = 64 << 20;
const NODE: &str = "node-a";
/// Its network, as `nodes` of the connection has it.
const NETWORK: &str = "192.0.2.7/32";

/// One call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Of nothing.
    Create,
    /// From a snapshot.
    Restore,
    /// From a detached snapshot.
    RestoreDetached,
    /// From a volume.
    Clone,
    /// From a snapshot, as a copy of its own.
    CopySnapshot,
    /// From a volume, as a copy of its own.
    Copy,
    /// A snapshot.
    Snapshot,
    /// A detached snapshot.
    SnapshotDetached,
    /// Of two volumes at one moment.
    Group,
    /// Of a volume that nothing stands on.
    Delete,
    /// Of a clone, with the helper snapshot that it was made of.
    DeleteClone,
    /// Of a volume that a clone stands on.
    DeleteBelowClone,
    /// Of a snapshot.
    DeleteSnapshot,
    /// Of a detached snapshot.
    DeleteDetached,
    /// Of a group of snapshots.
    DeleteGroup,
    /// To twice its size.
    Expand,
    /// `ControllerPublishVolume`.
    Publish,
    /// `ControllerUnpublishVolume`.
    Unpublish,
    /// `ControllerModifyVolume`, of all that a class can change.
    Modify,
    /// Of the network of a node that has a volume.
    Fence,
    /// The end of that.
    Unfence,
}

/// Some of the operations, which are tried one after another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The calls that make a volume.
    Making,
    /// The calls that make a snapshot or take it away.
    Snapshots,
    /// The calls that change a volume or take it away.
    Ending,
    /// Those in which two ways to export the same datasets differ.
    Exporting,
}

/// The state from which each operation starts.
#[derive(Debug)]
pub struct Scene {
    client: Client,
    /// The second socket, of csi-addons.
    addons: PathBuf,
    served: Served,
    /// What ids of volumes have behind their names: drivers of a node mark whose they are.
    mark: String,
    cut: String,
    detached: String,
    /// The group of an operation.
    group: Mutex<Option<csi::VolumeGroupSnapshot>>,
}

// === impl Operation ===

impl Operation {
    /// Those of a driver that lets in nodes by name.
    pub const OF_NODES: [Self; 4] = [Self::Publish, Self::Unpublish, Self::Fence, Self::Unfence];

    /// Whether it is about a group of snapshots.
    pub fn is_of_groups(self) -> bool {
        matches!(self, Self::Group | Self::DeleteGroup)
    }

    /// Whether it is about a fence.
    pub fn is_of_fences(self) -> bool {
        matches!(self, Self::Fence | Self::Unfence)
    }

    /// Whether it makes a volume that holds what its source holds.
    pub fn copies(self) -> bool {
        matches!(
            self,
            Self::Restore | Self::RestoreDetached | Self::Clone | Self::CopySnapshot | Self::Copy
        )
    }
}

// === impl Part ===

impl Part {
    /// All that there is to do, in parts.
    pub const WHOLE: [Self; 3] = [Self::Making, Self::Snapshots, Self::Ending];

    /// Its name in those of cells.
    pub fn name(self) -> &'static str {
        match self {
            Self::Making => "making",
            Self::Snapshots => "snapshots",
            Self::Ending => "ending",
            Self::Exporting => "exporting",
        }
    }

    /// Those of it that every driver knows.
    pub fn operations(self) -> &'static [Operation] {
        match self {
            Self::Making => &[
                Operation::Create,
                Operation::Restore,
                Operation::RestoreDetached,
                Operation::Clone,
                Operation::CopySnapshot,
                Operation::Copy,
            ],
            Self::Snapshots => &[
                Operation::Snapshot,
                Operation::SnapshotDetached,
                Operation::DeleteSnapshot,
                Operation::DeleteDetached,
                Operation::Group,
                Operation::DeleteGroup,
            ],
            Self::Ending => &[
                Operation::Delete,
                Operation::DeleteClone,
                Operation::DeleteBelowClone,
                Operation::Expand,
                Operation::Modify,
            ],
            Self::Exporting => &[
                Operation::Create,
                Operation::Clone,
                Operation::Delete,
                Operation::Expand,
                Operation::Modify,
            ],
        }
    }

    /// Whether it is tried, too, who is let in by name.
    pub fn has_nodes(self) -> bool {
        matches!(self, Self::Ending | Self::Exporting)
    }
}

// === impl Scene ===

impl Scene {
    /// Makes a volume, lets `fill` write to it, and makes its snapshots.
    pub async fn set(
        client: Client,
        addons: PathBuf,
        served: Served,
        fill: impl FnOnce(&str),
    ) -> Self {
        let mut scene = Self {
            client,
            addons,
            served,
            mark: String::new(),
            cut: String::new(),
            detached: String::new(),
            group: Mutex::default(),
        };
        let source = scene.create(SOURCE, None, None).await.expect("a source");
        let (_, mark) = source.split_at(SOURCE.len());
        scene.mark = mark.to_owned();
        fill(&source);
        scene.cut = scene.snapshot("cut", false).await.expect("a snapshot");
        scene.detached = scene.snapshot("detached", true).await.expect("a snapshot");
        scene
    }

    /// Speaks to a server that was started again.
    pub fn with(&mut self, client: Client) {
        self.client = client;
    }

    /// The id of the volume of this name.
    pub fn id(&self, name: &str) -> String {
        format!("{name}{}", self.mark)
    }

    fn of_volume(&self, name: &str) -> Option<csi::VolumeContentSource> {
        volume::from_volume(&self.id(name))
    }

    /// Makes what the operation needs.
    pub async fn prepare(&self, operation: Operation) {
        match operation {
            Operation::Delete
            | Operation::DeleteBelowClone
            | Operation::Expand
            | Operation::Publish
            | Operation::Modify
            | Operation::Group => {
                self.make(OBJECT, None).await;
            }
            Operation::DeleteGroup => {
                self.make(OBJECT, None).await;
                until_done("prepare", || self.group()).await;
            }
            Operation::Unpublish | Operation::Fence => {
                self.make(OBJECT, None).await;
                until_done("publish", || self.publish()).await;
            }
            Operation::Unfence => until_done("fence", || self.fence()).await,
            Operation::DeleteClone => self.make(OBJECT, self.of_volume(SOURCE)).await,
            Operation::DeleteSnapshot => self.cut("second", false).await,
            Operation::DeleteDetached => self.cut("second", true).await,
            _ => {}
        }
        if operation == Operation::DeleteBelowClone {
            self.make(STANDS_ON_IT, self.of_volume(OBJECT)).await;
        }
    }

    /// Makes the call.
    pub async fn act(&self, operation: Operation) -> Result<(), Status> {
        let from = |id: &str| volume::from_snapshot(id);
        match operation {
            Operation::Create => self.object(None, None).await,
            Operation::Restore => self.object(from(&self.cut), None).await,
            Operation::RestoreDetached => self.object(from(&self.detached), None).await,
            Operation::Clone => self.object(self.of_volume(SOURCE), None).await,
            Operation::CopySnapshot => {
                let how = Some("detachedVolumesFromSnapshots");
                self.object(from(&self.cut), how).await
            }
            Operation::Copy => {
                let how = Some("detachedVolumesFromVolumes");
                self.object(self.of_volume(SOURCE), how).await
            }
            Operation::Snapshot => self.snapshot("second", false).await.map(drop),
            Operation::SnapshotDetached => self.snapshot("second", true).await.map(drop),
            Operation::Delete | Operation::DeleteClone | Operation::DeleteBelowClone => {
                self.delete(OBJECT).await
            }
            Operation::DeleteSnapshot => self.delete_snapshot(&self.second(false)).await,
            Operation::DeleteDetached => self.delete_snapshot(&self.second(true)).await,
            Operation::Group => self.group().await,
            Operation::DeleteGroup => self.delete_group().await,
            Operation::Expand => self.expand().await,
            Operation::Publish => self.publish().await,
            Operation::Unpublish => self.unpublish().await,
            Operation::Modify => self.modify().await,
            Operation::Fence => self.fence().await,
            Operation::Unfence => self.unfence().await,
        }
    }

    /// Makes it until it succeeds.
    pub async fn insist(&self, operation: Operation) {
        until_done(&format!("{operation:?}"), || self.act(operation)).await;
    }

    /// Takes all back that the operation and its preparation made.
    pub async fn take_back(&self, operation: Operation) {
        match operation {
            Operation::Snapshot | Operation::SnapshotDetached => {
                let id = self.second(operation == Operation::SnapshotDetached);
                until_done("take back", || self.delete_snapshot(&id)).await;
            }
            Operation::Delete
            | Operation::DeleteClone
            | Operation::DeleteSnapshot
            | Operation::DeleteDetached => {}
            Operation::DeleteBelowClone => self.remove(STANDS_ON_IT).await,
            Operation::Group => {
                until_done("take back", || self.delete_group()).await;
                self.remove(OBJECT).await;
            }
            Operation::Publish => {
                until_done("unpublish", || self.unpublish()).await;
                self.remove(OBJECT).await;
            }
            Operation::Fence => {
                until_done("unfence", || self.unfence()).await;
                self.remove(OBJECT).await;
            }
            Operation::Unfence => until_done("unfence", || self.unfence()).await,
            _ => self.remove(OBJECT).await,
        }
    }

    /// Removes what all of them start from.
    pub async fn clear(&self) {
        for id in [&self.cut, &self.detached] {
            until_done("clear", || self.delete_snapshot(id)).await;
        }
        self.remove(SOURCE).await;
    }

    async fn make(&self, name: &str, source: Option<csi::VolumeContentSource>) {
        let made = || async { self.create(name, source.clone(), None).await.map(drop) };
        until_done("prepare", made).await;
    }

    async fn cut(&self, name: &str, detached: bool) {
        let taken = || async { self.snapshot(name, detached).await.map(drop) };
        until_done("prepare", taken).await;
    }

    async fn remove(&self, name: &str) {
        until_done("remove", || self.delete(name)).await;
    }

    /// What the snapshot of an operation is called by its driver.
    fn second(&self, detached: bool) -> String {
        let like = if detached { &self.detached } else { &self.cut };
        let (volume, _) = like.split_at(self.id(SOURCE).len());
        format!("{volume}{}second", if detached { '/' } else { '@' })
    }

    async fn object(
        &self,
        source: Option<csi::VolumeContentSource>,
        how: Option<&str>,
    ) -> Result<(), Status> {
        let made = self.create(OBJECT, source, how).await?;
        assert_eq!(made, self.id(OBJECT));
        Ok(())
    }

    async fn create(
        &self,
        name: &str,
        source: Option<csi::VolumeContentSource>,
        how: Option<&str>,
    ) -> Result<String, Status> {
        let parameters = how.map(|how| (how.to_owned(), "true".to_owned()));
        let request = csi::CreateVolumeRequest {
            capacity_range: volume::at_least(SIZE),
            volume_capabilities: vec![capability(self.served.access, Mode::SingleNodeMultiWriter)],
            volume_content_source: source,
            ..volume::create(name, &parameters.into_iter().collect())
        };
        let mut controller = self.client.controller.clone();
        let reply = within("create", controller.create_volume(request)).await?;
        let made = reply.into_inner().volume.expect("a volume");
        assert!(made.volume_id.starts_with(name), "{made:?}");
        Ok(made.volume_id)
    }

    async fn snapshot(&self, name: &str, detached: bool) -> Result<String, Status> {
        let request = csi::CreateSnapshotRequest {
            parameters: [("detachedSnapshots".to_owned(), detached.to_string())].into(),
            ..volume::snapshot(name, &self.id(SOURCE))
        };
        let mut controller = self.client.controller.clone();
        let reply = within("snapshot", controller.create_snapshot(request)).await?;
        let snapshot = reply.into_inner().snapshot.expect("a snapshot");
        assert!(snapshot.ready_to_use, "{snapshot:?}");
        Ok(snapshot.snapshot_id)
    }

    async fn delete(&self, name: &str) -> Result<(), Status> {
        let mut controller = self.client.controller.clone();
        let call = controller.delete_volume(volume::delete(&self.id(name)));
        within("delete", call).await.map(drop)
    }

    async fn delete_snapshot(&self, id: &str) -> Result<(), Status> {
        let mut controller = self.client.controller.clone();
        let call = controller.delete_snapshot(volume::delete_snapshot(id));
        within("delete a snapshot", call).await.map(drop)
    }

    fn groups(&self) -> GroupControllerClient<Channel> {
        GroupControllerClient::new(self.client.channel.clone())
    }

    async fn group(&self) -> Result<(), Status> {
        let request = csi::CreateVolumeGroupSnapshotRequest {
            name: "group".to_owned(),
            source_volume_ids: [OBJECT, SOURCE].map(|name| self.id(name)).to_vec(),
            ..Default::default()
        };
        let mut groups = self.groups();
        let taken = within("group", groups.create_volume_group_snapshot(request)).await?;
        *self.group.lock().expect("the last group") = taken.into_inner().group_snapshot;
        Ok(())
    }

    async fn delete_group(&self) -> Result<(), Status> {
        let group = self.group.lock().expect("the last group").clone();
        let group = group.expect("a group");
        let request = csi::DeleteVolumeGroupSnapshotRequest {
            group_snapshot_id: group.group_snapshot_id,
            snapshot_ids: group.snapshots.into_iter().map(|s| s.snapshot_id).collect(),
            ..Default::default()
        };
        let mut groups = self.groups();
        let deleted = groups.delete_volume_group_snapshot(request);
        within("delete a group", deleted).await.map(drop)
    }

    async fn expand(&self) -> Result<(), Status> {
        let request = csi::ControllerExpandVolumeRequest {
            volume_capability: Some(capability(self.served.access, Mode::SingleNodeMultiWriter)),
            ..volume::expand(&self.id(OBJECT), 2 * SIZE)
        };
        let mut controller = self.client.controller.clone();
        let call = controller.controller_expand_volume(request);
        let reply = within("expand", call).await.map(Response::into_inner)?;
        assert_eq!(reply.capacity_bytes, 2 * SIZE);
        Ok(())
    }

    async fn publish(&self) -> Result<(), Status> {
        let request = csi::ControllerPublishVolumeRequest {
            volume_id: self.id(OBJECT),
            node_id: NODE.to_owned(),
            volume_capability: Some(capability(self.served.access, Mode::SingleNodeMultiWriter)),
            ..csi::ControllerPublishVolumeRequest::default()
        };
        let mut controller = self.client.controller.clone();
        let call = controller.controller_publish_volume(request);
        within("publish", call).await.map(drop)
    }

    async fn unpublish(&self) -> Result<(), Status> {
        let request = csi::ControllerUnpublishVolumeRequest {
            volume_id: self.id(OBJECT),
            node_id: NODE.to_owned(),
            ..csi::ControllerUnpublishVolumeRequest::default()
        };
        let mut controller = self.client.controller.clone();
        let call = controller.controller_unpublish_volume(request);
        within("unpublish", call).await.map(drop)
    }

    async fn modify(&self) -> Result<(), Status> {
        let [_, class] = self.served.two_classes();
        let request = csi::ControllerModifyVolumeRequest {
            volume_id: self.id(OBJECT),
            mutable_parameters: volume::parameters(&class),
            ..csi::ControllerModifyVolumeRequest::default()
        };
        let mut controller = self.client.controller.clone();
        let call = controller.controller_modify_volume(request);
        within("modify", call).await.map(drop)
    }

    async fn fence(&self) -> Result<(), Status> {
        let request = FenceClusterNetworkRequest {
            cidrs: network(),
            ..FenceClusterNetworkRequest::default()
        };
        let mut fences = self.fences().await;
        let call = fences.fence_cluster_network(request);
        within("fence", call).await.map(drop)
    }

    async fn unfence(&self) -> Result<(), Status> {
        let request = UnfenceClusterNetworkRequest {
            cidrs: network(),
            ..UnfenceClusterNetworkRequest::default()
        };
        let mut fences = self.fences().await;
        let call = fences.unfence_cluster_network(request);
        within("unfence", call).await.map(drop)
    }

    /// By the second socket, which is another one after each start of the program.
    async fn fences(&self) -> FenceControllerClient<Channel> {
        let client = Client::connect(&self.addons).await;
        FenceControllerClient::new(client.expect("the program serves it").channel)
    }
}

/// The network of the node.
fn network() -> Vec<Cidr> {
    vec![Cidr {
        cidr: NETWORK.to_owned(),
    }]
}
