//! The six calls of a node, as an orchestrator makes them, each within a bounded time.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;

use csi_proto::v1 as csi;
use tokio::time::timeout;
use tonic::{Code, Request, Response, Status};

use super::fixture::Fixture;
use super::pair::Far;
use crate::place::Place;
use crate::server::{Launch, Server, log_of};
use crate::volume;

/// The time that kubelet waits for a call.
pub const KUBELET: Duration = Duration::from_mins(2);

/// A node in a folder of its own: the real program, its paths, and whose volumes it has.
#[derive(Debug)]
pub struct Node {
    /// The place where it lives.
    pub place: Place,
    /// The running program.
    pub server: Server,
    launch: Launch,
    far: Option<Far>,
    /// The driver whose staging paths are where the kubelet has them.
    kubelet_of: Option<&'static str>,
}

// === impl Node ===

impl Node {
    /// The program as a node for hand-made volumes.
    pub async fn start() -> Self {
        Self::start_with(Launch::new("driver: node-manual\n").set("--csi-mode", "node")).await
    }

    /// The program, started in a way of its own.
    pub async fn start_with(launch: Launch) -> Self {
        let place = Place::new();
        let server = launch.start(&place).await;
        Self {
            place,
            server,
            launch,
            far: None,
            kubelet_of: None,
        }
    }

    /// The program on the other machine of a pair, where its paths are, and reached from here.
    pub async fn start_far(launch: Launch, far: Far) -> Self {
        let place = Place::new();
        far.settle(&place, &launch.config);
        let launch = far.launch(launch, &place);
        let server = launch.start(&place).await;
        Self {
            place,
            server,
            launch,
            far: Some(far),
            kubelet_of: None,
        }
    }

    /// With staging paths where the kubelet has those of a driver, at which the program looks by itself.
    #[must_use]
    pub fn below_the_kubelet(mut self, driver: &'static str) -> Self {
        self.kubelet_of = Some(driver);
        self
    }

    /// Kills the program as a crash does, and starts it again on what is left.
    pub async fn crash(&mut self) {
        self.server.kill().await;
        self.start_again().await;
    }

    /// Starts the program again.
    pub async fn start_again(&mut self) {
        self.server = self.launch.start(&self.place).await;
    }

    /// The staging path of a volume, made by the orchestrator.
    pub fn staging(&self, fixture: &Fixture) -> PathBuf {
        let id = fixture.volume.volume_id.replace('/', "_");
        let path = self.kubelet_of.map_or_else(
            || self.place.node().join(format!("staging-{id}")),
            |driver| {
                let plugins = self.place.node().join("plugins/kubernetes.io/csi");
                plugins.join(driver).join(&id).join("globalmount")
            },
        );
        if let Some(far) = &self.far {
            // As below: what is mounted there may be dead.
            let shown = path.display();
            far.run(&[&format!(
                "grep -qF ' {shown} ' /proc/mounts || mkdir -p {shown}"
            )]);
            return path;
        }
        let above = path.parent().expect("a folder above");
        std::fs::create_dir_all(above).expect("a folder of the tests");
        // Without a check whether it exists: a filesystem that is mounted there may not answer.
        match std::fs::create_dir(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                panic!("{}: {error}", path.display())
            }
            _ => path,
        }
    }

    /// A target path, which the program has to make.
    pub fn pod(&self, name: &str) -> PathBuf {
        self.place.node().join(format!("pod-{name}"))
    }

    /// A request to stage.
    pub fn stage_request(&self, fixture: &Fixture) -> csi::NodeStageVolumeRequest {
        csi::NodeStageVolumeRequest {
            volume_capability: Some(fixture.capability.clone()),
            secrets: fixture.secrets.clone(),
            publish_context: fixture.published.get().cloned().unwrap_or_default(),
            ..volume::stage(&fixture.volume, &self.staging(fixture))
        }
    }

    /// A request to publish.
    pub fn publish_request(&self, fixture: &Fixture, pod: &Path) -> csi::NodePublishVolumeRequest {
        csi::NodePublishVolumeRequest {
            volume_capability: Some(fixture.capability.clone()),
            ..volume::publish(&fixture.volume, &self.staging(fixture), pod)
        }
    }

    /// A call that does next to nothing.
    pub async fn probe(&self) -> Result<(), Status> {
        let mut identity = self.server.client().identity;
        within("probe", identity.probe(csi::ProbeRequest {}))
            .await
            .map(drop)
    }

    /// Stages.
    pub async fn stage(&self, fixture: &Fixture) -> Result<(), Status> {
        let request = self.stage_request(fixture);
        let mut node = self.server.client().node;
        within("stage", node.node_stage_volume(request))
            .await
            .map(drop)
    }

    /// Unstages.
    pub async fn unstage(&self, fixture: &Fixture) -> Result<(), Status> {
        let request = volume::unstage(&fixture.volume, &self.staging(fixture));
        let mut node = self.server.client().node;
        within("unstage", node.node_unstage_volume(request))
            .await
            .map(drop)
    }

    /// Publishes at the path of a pod.
    pub async fn publish(&self, fixture: &Fixture, pod: &Path) -> Result<(), Status> {
        self.publish_as(self.publish_request(fixture, pod)).await
    }

    /// Publishes what the request says.
    pub async fn publish_as(&self, request: csi::NodePublishVolumeRequest) -> Result<(), Status> {
        let mut node = self.server.client().node;
        within("publish", node.node_publish_volume(request))
            .await
            .map(drop)
    }

    /// Unpublishes from the path of a pod.
    pub async fn unpublish(&self, fixture: &Fixture, pod: &Path) -> Result<(), Status> {
        let request = volume::unpublish(&fixture.volume, pod);
        let mut node = self.server.client().node;
        within("unpublish", node.node_unpublish_volume(request))
            .await
            .map(drop)
    }

    /// What is used at a path.
    pub async fn stats(
        &self,
        fixture: &Fixture,
        path: &Path,
    ) -> Result<csi::NodeGetVolumeStatsResponse, Status> {
        let request = csi::NodeGetVolumeStatsRequest {
            volume_id: fixture.volume.volume_id.clone(),
            volume_path: path.display().to_string(),
            staging_target_path: self.staging(fixture).display().to_string(),
        };
        let mut node = self.server.client().node;
        within("stats", node.node_get_volume_stats(request))
            .await
            .map(Response::into_inner)
    }

    /// Grows what is at a path to what the storage now has.
    pub async fn expand(&self, fixture: &Fixture, path: &Path, bytes: u64) -> Result<(), Status> {
        let request = csi::NodeExpandVolumeRequest {
            volume_id: fixture.volume.volume_id.clone(),
            volume_path: path.display().to_string(),
            staging_target_path: self.staging(fixture).display().to_string(),
            capacity_range: volume::at_least(i64::try_from(bytes).expect("a size")),
            volume_capability: Some(fixture.capability.clone()),
            ..csi::NodeExpandVolumeRequest::default()
        };
        let mut node = self.server.client().node;
        within("expand", node.node_expand_volume(request))
            .await
            .map(drop)
    }

    /// The id by which this node reports itself.
    ///
    /// # Panics
    /// If it does not.
    pub async fn id(&self) -> String {
        let mut client = self.server.client().node;
        let info = within("info", client.node_get_info(csi::NodeGetInfoRequest {})).await;
        info.expect("an answer").into_inner().node_id
    }

    /// Publishes to a node by its id, as an attacher does.
    pub async fn attach(&self, fixture: &Fixture, node_id: &str) -> Result<(), Status> {
        let request = csi::ControllerPublishVolumeRequest {
            volume_id: fixture.volume.volume_id.clone(),
            node_id: node_id.to_owned(),
            volume_capability: Some(fixture.capability.clone()),
            volume_context: fixture.volume.volume_context.clone(),
            ..csi::ControllerPublishVolumeRequest::default()
        };
        let mut controller = self.server.client().controller;
        let answer = within("attach", controller.controller_publish_volume(request)).await?;
        let context = answer.into_inner().publish_context;
        let known = fixture.published.get_or_init(|| context.clone());
        assert_eq!(*known, context, "it is the same for each node");
        Ok(())
    }

    /// Unpublishes from a node by its id, as an attacher does.
    pub async fn detach(&self, fixture: &Fixture, node_id: &str) -> Result<(), Status> {
        let request = csi::ControllerUnpublishVolumeRequest {
            volume_id: fixture.volume.volume_id.clone(),
            node_id: node_id.to_owned(),
            ..csi::ControllerUnpublishVolumeRequest::default()
        };
        let mut controller = self.server.client().controller;
        within("detach", controller.controller_unpublish_volume(request))
            .await
            .map(drop)
    }

    /// Deletes a volume, as often as an orchestrator would try.
    ///
    /// # Panics
    /// If it does not go.
    pub async fn deleted(&self, fixture: &Fixture) {
        let client = self.server.client().controller;
        until_done("delete", || {
            let mut controller = client.clone();
            let request = volume::delete(&fixture.volume.volume_id);
            async move {
                within("delete", controller.delete_volume(request))
                    .await
                    .map(drop)
            }
        })
        .await;
    }

    /// Takes a volume away wholly, as often as an orchestrator would try.
    ///
    /// # Panics
    /// If it does not go.
    pub async fn take_away(&self, fixture: &Fixture, pods: &[&Path]) {
        for pod in pods {
            until_done("unpublish", || self.unpublish(fixture, pod)).await;
        }
        until_done("unstage", || self.unstage(fixture)).await;
    }

    /// The end: it lives, never panicked, left no process, and stops when it is asked to.
    ///
    /// # Panics
    /// If one of that is not so.
    pub async fn end(mut self) {
        assert!(self.server.is_alive(), "the program died");
        let log = log_of(&self.place);
        let panic = log.lines().find(|line| line.contains("panicked"));
        assert_eq!(panic, None, "a call panicked");
        let children = self.server.process().children();
        assert!(children.is_empty(), "processes are left: {children:?}");
        let status = self.server.terminate().await;
        assert!(status.success(), "SIGTERM ended it with {status}");
    }
}

/// A request that says how long its caller waits.
pub fn timed<T>(message: T, limit: Duration) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(limit);
    request
}

/// Bounds a call.
///
/// # Panics
/// If the call takes longer than kubelet would wait.
pub async fn within<T>(
    what: &str,
    call: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<Response<T>, Status> {
    timeout(KUBELET, call)
        .await
        .unwrap_or_else(|_| panic!("{what} did not answer within {KUBELET:?}"))
}

/// Repeats a call, as an orchestrator does, until it succeeds.
///
/// # Panics
/// If it does not within a few minutes.
pub async fn until_done<T, F: Future<Output = Result<T, Status>>>(
    what: &str,
    call: impl FnMut() -> F,
) -> T {
    until_done_within(2 * KUBELET, what, call).await
}

/// The same of one of many calls at once, which take so long together.
///
/// # Panics
/// If it does not succeed within that time.
pub async fn until_done_within<T, F: Future<Output = Result<T, Status>>>(
    limit: Duration,
    what: &str,
    mut call: impl FnMut() -> F,
) -> T {
    let deadline = tokio::time::Instant::now() + limit;
    let mut pause = Duration::from_millis(200);
    loop {
        let status = match call().await {
            Ok(reply) => return reply,
            Err(status) => status,
        };
        assert!(
            tokio::time::Instant::now() < deadline,
            "{what} never succeeds: {status:?}"
        );
        // An orchestrator, too, waits longer each time.
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(5));
    }
}

/// Asserts that a call is refused with one of some codes, and gives the message.
///
/// # Panics
/// If it succeeds or fails otherwise.
pub fn refused<T: std::fmt::Debug>(
    outcome: Result<T, Status>,
    codes: &[Code],
    what: &str,
) -> String {
    match outcome {
        Ok(reply) => panic!("{what}: succeeded with {reply:?}"),
        Err(status) => {
            assert!(codes.contains(&status.code()), "{what}: {status:?}");
            status.message().to_owned()
        }
    }
}
