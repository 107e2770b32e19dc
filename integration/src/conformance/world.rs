//! One server in a folder of its own, and what every check asks of it in the end.

use std::fmt::{self, Debug};
use std::fs;
use std::path::{Path, PathBuf};

use csi_proto::v1::{
    ControllerExpandVolumeRequest, ControllerGetVolumeRequest, CreateSnapshotRequest,
    CreateVolumeRequest, ListSnapshotsRequest, NodeStageVolumeRequest, Snapshot, Volume,
};
use tokio::sync::OnceCell;
use tonic::{Code, Response, Status};

use crate::client::Client;
use crate::place::Place;
use crate::server::{Launch, Server, log_of};
use crate::tree::Tree;
use crate::{volume, wait};

use super::Target;
use super::load::Load;
use super::messages;

/// A running server with its target, its folder and its clients.
pub struct World<'a> {
    /// The tested program.
    pub target: &'a dyn Target,
    /// The place where it lives.
    pub place: Place,
    /// The running program.
    pub server: Server,
    /// Clients of it.
    pub client: Client,
    /// The load of the connections beside the tested one.
    load: Option<Load>,
    grows_on_the_node: OnceCell<bool>,
    /// Whether it also serves csi-addons.
    pub has_addons: bool,
    empty: Tree,
    canary: Tree,
}

/// The outcome of a call.
pub type Outcome<T> = Result<Response<T>, Status>;

/// The start of a server, with csi-addons or without.
fn launch(target: &dyn Target, place: &Place, has_addons: bool) -> Launch {
    let launch = target.launch(place);
    if !has_addons {
        return launch;
    }
    let address = format!("unix://{}", addons_socket(place).display());
    launch.set("--csi-addons-address", &address)
}

fn addons_socket(place: &Place) -> PathBuf {
    place.path().join("addons.sock")
}

// === impl World ===

impl<'a> World<'a> {
    /// A server in a new folder.
    pub async fn start(target: &'a dyn Target) -> Self {
        Self::start_with(target, |launch| launch).await
    }

    /// A server in a new folder, started in a way of its own.
    pub async fn start_with(target: &'a dyn Target, change: impl FnOnce(Launch) -> Launch) -> Self {
        Self::start_in_place(target, false, change).await
    }

    /// A server in a new folder that also serves csi-addons.
    pub async fn start_with_addons(target: &'a dyn Target) -> Self {
        Self::start_in_place(target, true, |launch| launch).await
    }

    async fn start_in_place(
        target: &'a dyn Target,
        has_addons: bool,
        change: impl FnOnce(Launch) -> Launch,
    ) -> Self {
        let place = Place::new();
        let server = change(launch(target, &place, has_addons))
            .start(&place)
            .await;
        let client = server.client();
        Self {
            load: Some(Load::begin(&client, target)),
            grows_on_the_node: OnceCell::new(),
            has_addons,
            empty: target.backend(&place).without_folder_times(),
            canary: Tree::read(&place.canary()),
            target,
            place,
            server,
            client,
        }
    }

    /// A connection to the services of csi-addons.
    pub async fn addons(&self) -> Client {
        let socket = addons_socket(&self.place);
        // The first socket may be served before it.
        wait::until_answered("the second socket", async || {
            Client::connect(&socket).await.ok()
        })
        .await
    }

    /// Kills the server as a crash does and starts another one on the same state.
    pub async fn crash(&mut self) {
        self.end_load().await;
        self.server.kill().await;
        self.start_again().await;
    }

    /// Starts another server on the same state.
    pub async fn start_again(&mut self) {
        if let Some(load) = self.load.take() {
            load.end_after_the_program().await;
        }
        let launch = launch(self.target, &self.place, self.has_addons);
        self.server = launch.start(&self.place).await;
        self.client = self.server.client();
        self.load = Some(Load::begin(&self.client, self.target));
    }

    /// Nothing went wrong beside what is tested, while the server lives.
    async fn end_load(&mut self) {
        if let Some(load) = self.load.take() {
            load.end().await;
        }
    }

    /// The state of the backend, without the times of folders.
    pub fn backend(&self) -> Tree {
        self.target.backend(&self.place).without_folder_times()
    }

    /// Asserts that the backend is as it was.
    pub fn unchanged(&self, before: &Tree, what: &str) {
        let difference = before.difference(&self.backend());
        assert!(
            difference.is_empty(),
            "{what} changed the backend:\n{difference}"
        );
        let canary = self.canary.difference(&Tree::read(&self.place.canary()));
        assert!(canary.is_empty(), "{what} left the backend:\n{canary}");
    }

    /// Asserts that the backend is as empty as it was when the server was first started, and that
    /// nothing is mounted.
    pub fn is_empty(&self, what: &str) {
        let left: Vec<_> = self
            .backend()
            .0
            .into_keys()
            .filter(|path| !self.empty.0.contains_key(path))
            .collect();
        assert!(left.is_empty(), "{what} left something behind: {left:?}");
        let mounts = self.place.mounts();
        assert!(mounts.is_empty(), "{what} left mounts: {mounts:?}");
    }

    /// The end: the server lives, never panicked, touched nothing beside its backend, left nothing
    /// in it, and stops when it is asked to.
    pub async fn end(mut self) {
        assert!(
            self.server.is_alive(),
            "the server died:\n{}",
            log_of(&self.place)
        );
        self.end_load().await;
        self.is_empty("this check");
        self.never_panicked();
        let canary = self.canary.difference(&Tree::read(&self.place.canary()));
        assert!(
            canary.is_empty(),
            "something beside the backend changed: {canary}"
        );
        let children = self.server.process().children();
        assert!(children.is_empty(), "processes are left: {children:?}");
        let status = self.server.terminate().await;
        assert!(status.success(), "SIGTERM ended it with {status}");
        for socket in [self.place.socket(), addons_socket(&self.place)] {
            assert!(!socket.exists(), "{} is left", socket.display());
        }
    }

    /// Asserts that no panic is in the log.
    pub fn never_panicked(&self) {
        let log = log_of(&self.place);
        let panic = log.lines().find(|line| line.contains("panicked"));
        assert!(panic.is_none(), "a call panicked: {panic:?}");
    }

    /// A request for a new volume.
    pub fn create(&self, name: &str) -> CreateVolumeRequest {
        volume::create(name, &self.target.parameters())
    }

    /// A request for a new snapshot.
    pub fn snapshot(&self, name: &str, volume_id: &str) -> CreateSnapshotRequest {
        CreateSnapshotRequest {
            parameters: self.target.snapshot_parameters(),
            ..volume::snapshot(name, volume_id)
        }
    }

    /// Makes a volume.
    pub async fn volume(&self, name: &str) -> Volume {
        self.make(self.create(name)).await
    }

    /// Makes what is asked for.
    pub async fn make(&self, request: CreateVolumeRequest) -> Volume {
        if let Some(made) = self.target.by_hand(&self.place, &request.name) {
            return made;
        }
        let name = request.name.clone();
        let made = self.client.volume(request).await;
        made.unwrap_or_else(|failure| panic!("{name}: {failure}"))
    }

    /// Removes a volume.
    pub async fn remove(&self, volume_id: &str) {
        if self.target.by_hand(&self.place, volume_id).is_some() {
            self.target.end_by_hand(&self.place, volume_id);
            return;
        }
        let gone = self.client.delete_volume(volume::delete(volume_id)).await;
        gone.unwrap_or_else(|failure| panic!("{volume_id}: {failure}"));
    }

    /// Takes a snapshot.
    pub async fn cut(&self, name: &str, volume_id: &str) -> Snapshot {
        let cut = self.client.snapshot(self.snapshot(name, volume_id)).await;
        cut.unwrap_or_else(|failure| panic!("{name}: {failure}"))
    }

    /// Removes a snapshot.
    pub async fn remove_snapshot(&self, snapshot_id: &str) {
        let request = volume::delete_snapshot(snapshot_id);
        let gone = self.client.delete_snapshot(request).await;
        gone.unwrap_or_else(|failure| panic!("{snapshot_id}: {failure}"));
    }

    /// The ids of all volumes.
    pub async fn volume_ids(&self) -> Vec<String> {
        let ids = self.client.volume_ids().await;
        ids.expect("volumes are listed").into_iter().collect()
    }

    /// The ids of all snapshots.
    pub async fn snapshot_ids(&self) -> Vec<String> {
        let request = ListSnapshotsRequest::default();
        let ids = self.client.snapshot_ids(request).await;
        ids.expect("snapshots are listed").into_iter().collect()
    }

    /// A staging path of this volume, which the orchestrator has to make.
    pub fn staging(&self, volume: &Volume) -> PathBuf {
        let path = self
            .place
            .node()
            .join(format!("stage-{}", in_one_word(&volume.volume_id)));
        fs::create_dir_all(&path).expect("a folder for staging");
        path
    }

    /// A target path, which the driver has to make.
    pub fn pod(&self, name: &str) -> PathBuf {
        self.place.node().join(format!("pod-{}", in_one_word(name)))
    }

    /// A request to stage a volume.
    pub fn stage(&self, volume: &Volume, staging: &Path) -> NodeStageVolumeRequest {
        NodeStageVolumeRequest {
            secrets: self.target.secrets(),
            ..volume::stage(volume, staging)
        }
    }

    /// Stages and publishes a volume, and gives the path at which it can be used.
    pub async fn mount(&self, volume: &Volume) -> PathBuf {
        let (staging, pod) = (self.staging(volume), self.pod(&volume.volume_id));
        let request = self.stage(volume, &staging);
        let staged = self.client.node_stage_volume(request).await;
        staged.unwrap_or_else(|failure| panic!("{failure}"));
        let request = volume::publish(volume, &staging, &pod);
        let published = self.client.node_publish_volume(request).await;
        published.unwrap_or_else(|failure| panic!("{failure}"));
        pod
    }

    /// Whether volumes grow on the node only, as storage of the node does.
    pub async fn grows_on_the_node(&self) -> bool {
        let ask = || async {
            let offered = messages::offered(&self.client).await;
            offered.contains("NodeExpandVolume") && !offered.contains("ControllerExpandVolume")
        };
        *self.grows_on_the_node.get_or_init(ask).await
    }

    /// Grows a volume by the service that offers it; the node does so at `path`, where a volume is
    /// mounted. What the controller leaves to the node of a volume that it does not have is asked of the node, too.
    pub async fn expand(
        &self,
        request: ControllerExpandVolumeRequest,
        path: &Path,
    ) -> Outcome<i64> {
        let mut client = self.client.clone();
        if !self.grows_on_the_node().await {
            let asked = request.clone();
            let reply = client.controller.controller_expand_volume(asked).await?;
            let is_left =
                reply.get_ref().node_expansion_required && self.is_absent(&request.volume_id).await;
            if !is_left {
                return Ok(reply.map(|reply| reply.capacity_bytes));
            }
        }
        let request = volume::expand_on_node(&request, path);
        let reply = client.node.node_expand_volume(request).await?;
        Ok(reply.map(|reply| reply.capacity_bytes))
    }

    async fn is_absent(&self, id: &str) -> bool {
        let volume_id = id.to_owned();
        let request = ControllerGetVolumeRequest { volume_id };
        let mut controller = self.client.controller.clone();
        let found = controller.controller_get_volume(request).await;
        found.is_err_and(|status| status.code() == Code::NotFound)
    }

    /// Takes a volume from a pod.
    pub async fn unpublish(&self, volume: &Volume, pod: &Path) {
        let request = volume::unpublish(volume, pod);
        let gone = self.client.node_unpublish_volume(request).await;
        gone.unwrap_or_else(|failure| panic!("{failure}"));
    }

    /// Takes a volume from this node.
    pub async fn unstage(&self, volume: &Volume) {
        let request = volume::unstage(volume, &self.staging(volume));
        let gone = self.client.node_unstage_volume(request).await;
        gone.unwrap_or_else(|failure| panic!("{failure}"));
    }

    /// The reverse of [`World::mount`].
    pub async fn unmount(&self, volume: &Volume) {
        let pod = self.pod(&volume.volume_id);
        self.unpublish(volume, &pod).await;
        self.unstage(volume).await;
        assert!(!pod.exists(), "the target path is left");
    }
}

impl Debug for World<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World")
            .field("target", &self.target.name())
            .field("place", &self.place)
            .finish_non_exhaustive()
    }
}

/// A handle of the proxy has a slash in it, which the orchestrator keeps out of its paths.
fn in_one_word(id: &str) -> String {
    id.replace('/', "_")
}

/// The code of an outcome.
pub fn code<T>(outcome: &Outcome<T>) -> Code {
    outcome.as_ref().map_or_else(Status::code, |_| Code::Ok)
}

/// Whether an answer says to ask again: something is in the way, or the end of the work was not seen.
pub fn asks_again(code: Code) -> bool {
    matches!(
        code,
        Code::Aborted | Code::Unavailable | Code::DeadlineExceeded
    )
}

/// Asserts that a call ended with one of these codes, and that its message, if it has one, may be
/// shown to a user: one line, no details.
pub fn ends_with<T: Debug>(outcome: Outcome<T>, codes: &[Code], what: &str) {
    assert!(
        codes.contains(&code(&outcome)),
        "{what}: expected {codes:?}, got {outcome:?}"
    );
    if let Err(status) = outcome {
        assert!(status.details().is_empty(), "{what}: details must be empty");
        // Calls of a service that is not served are answered by the library, without a message.
        let silent = status.message().is_empty() && status.code() != Code::Unimplemented;
        assert!(!silent, "{what}: says nothing");
        let control = status.message().chars().find(|c| c.is_control());
        assert_eq!(control, None, "{what}: {:?}", status.message());
    }
}
