//! The part of a cluster: it speaks CSI to the server and remembers what it asked for.
//!
//! Everything is noted before it is asked for, so that whatever happens in between can be undone.
//! The order of things is not decided here.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use csi_proto::v1;
use csi_proto::v1::controller_client::ControllerClient;
use csi_proto::v1::identity_client::IdentityClient;
use csi_proto::v1::node_client::NodeClient;
use csi_types::AbsolutePath;
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status};

use super::made::Made;
use super::offers::Offers;
use super::trial::{Size, Trial};
use super::trouble::Trouble;

/// The longest that is waited between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The clients of one server, and what was made through them.
#[derive(Debug)]
pub(super) struct Orchestrator {
    pub(super) trial: Arc<Trial>,
    pub(super) offers: Offers,
    pub(super) made: Made,
    pub(super) node_id: String,
    pub(super) here: Option<v1::Topology>,
    /// What was there before us: never touched, whatever a driver answers.
    pub(super) foreign: BTreeSet<String>,
    identity: IdentityClient<Channel>,
    controller: ControllerClient<Channel>,
    node: NodeClient<Channel>,
}

/// The result of a call.
pub(super) type Answer<T> = Result<T, Trouble>;

// === impl Orchestrator ===

impl Orchestrator {
    /// Connects to a server.
    pub(super) async fn connect(socket: &AbsolutePath, trial: Arc<Trial>) -> Answer<Self> {
        let failed = |error: tonic::transport::Error| {
            Trouble::seen(format!(
                "connect to {socket}: {}",
                crate::process::chain(&error)
            ))
        };
        let endpoint = Endpoint::from_shared(format!("unix://{socket}")).map_err(failed)?;
        let channel = endpoint.connect().await.map_err(failed)?;
        Ok(Self {
            trial,
            offers: Offers::default(),
            made: Made::default(),
            node_id: String::new(),
            here: None,
            foreign: BTreeSet::new(),
            identity: IdentityClient::new(channel.clone()),
            controller: ControllerClient::new(channel.clone()),
            node: NodeClient::new(channel),
        })
    }

    /// The clients, which share one connection.
    pub(super) fn controller(&self) -> ControllerClient<Channel> {
        self.controller.clone()
    }

    pub(super) fn node(&self) -> NodeClient<Channel> {
        self.node.clone()
    }

    /// Waits for the answer to a call, as long as the user does.
    pub(super) async fn ask<T>(
        &self,
        rpc: &str,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Answer<T> {
        match tokio::time::timeout(self.trial.patience, call).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(Trouble::answered(rpc, &status)),
            Err(_) => Err(Trouble::unanswered(rpc, self.trial.patience.as_secs())),
        }
    }

    /// Whether it is ready; waits for it as a sidecar does.
    pub(super) async fn probe(&self) -> Answer<()> {
        let mut pause = Pause::new(self.trial.patience);
        loop {
            let mut identity = self.identity.clone();
            let ready = self
                .ask("Probe", identity.probe(v1::ProbeRequest {}))
                .await?
                .ready;
            if ready.unwrap_or(true) {
                return Ok(());
            }
            if !pause.wait().await {
                return Err(Trouble::seen(
                    "Probe says that it is not ready, and it stays so",
                ));
            }
        }
    }

    /// Who it is.
    pub(super) async fn identify(&self) -> Answer<String> {
        let mut identity = self.identity.clone();
        let request = v1::GetPluginInfoRequest {};
        let info = self
            .ask("GetPluginInfo", identity.get_plugin_info(request))
            .await?;
        Ok(format!("{} {}", info.name, info.vendor_version))
    }

    /// What it can do, and where it stands.
    pub(super) async fn learn(&mut self) -> Answer<()> {
        let (mut identity, mut controller, mut node) =
            (self.identity.clone(), self.controller(), self.node());
        let request = v1::GetPluginCapabilitiesRequest {};
        let call = identity.get_plugin_capabilities(request);
        let plugin = self.ask("GetPluginCapabilities", call).await?;
        let request = v1::ControllerGetCapabilitiesRequest {};
        let call = controller.controller_get_capabilities(request);
        let control = self.ask("ControllerGetCapabilities", call).await?;
        let request = v1::NodeGetCapabilitiesRequest {};
        let call = node.node_get_capabilities(request);
        let nodes = self.ask("NodeGetCapabilities", call).await?;
        self.offers = Offers::new(&plugin, &control, &nodes);
        let info = node.node_get_info(v1::NodeGetInfoRequest {});
        let info = self.ask("NodeGetInfo", info).await?;
        self.node_id = info.node_id;
        self.here = info.accessible_topology.filter(|_| self.offers.topology);
        Ok(())
    }

    /// How much room there is.
    pub(super) async fn capacity(&self) -> Answer<Size> {
        let request = v1::GetCapacityRequest {
            volume_capabilities: vec![self.trial.capability()],
            parameters: self.trial.parameters.clone(),
            accessible_topology: self.here.clone(),
        };
        let mut controller = self.controller();
        let answer = self
            .ask("GetCapacity", controller.get_capacity(request))
            .await?;
        Ok(Size(answer.available_capacity))
    }

    /// The ids of all volumes, page by page.
    pub(super) async fn volume_ids(&self) -> Answer<BTreeSet<String>> {
        let mut ids = BTreeSet::new();
        let mut starting_token = String::new();
        loop {
            let request = v1::ListVolumesRequest {
                max_entries: 0,
                starting_token,
            };
            let mut controller = self.controller();
            let page = self
                .ask("ListVolumes", controller.list_volumes(request))
                .await?;
            let volumes = page.entries.into_iter().filter_map(|entry| entry.volume);
            ids.extend(volumes.map(|volume| volume.volume_id));
            starting_token = page.next_token;
            if starting_token.is_empty() {
                return Ok(ids);
            }
        }
    }

    /// The ids of the snapshots of a volume, or of all volumes, page by page.
    pub(super) async fn snapshot_ids(&self, source: &str) -> Answer<BTreeSet<String>> {
        let mut ids = BTreeSet::new();
        let mut starting_token = String::new();
        loop {
            let request = v1::ListSnapshotsRequest {
                starting_token,
                source_volume_id: source.to_owned(),
                secrets: self.trial.secrets(),
                ..v1::ListSnapshotsRequest::default()
            };
            let mut controller = self.controller();
            let page = self
                .ask("ListSnapshots", controller.list_snapshots(request))
                .await?;
            let snapshots = page.entries.into_iter().filter_map(|entry| entry.snapshot);
            ids.extend(snapshots.map(|snapshot| snapshot.snapshot_id));
            starting_token = page.next_token;
            if starting_token.is_empty() {
                return Ok(ids);
            }
        }
    }
}

/// Growing pauses between attempts, until patience ends.
#[derive(Debug)]
pub(super) struct Pause {
    next: Duration,
    end: tokio::time::Instant,
}

// === impl Pause ===

impl Pause {
    /// Pauses for that long in all.
    pub(super) fn new(patience: Duration) -> Self {
        Self {
            next: Duration::from_millis(50),
            end: tokio::time::Instant::now() + patience,
        }
    }

    /// Pauses; `false` if patience has ended.
    pub(super) async fn wait(&mut self) -> bool {
        if tokio::time::Instant::now() + self.next > self.end {
            return false;
        }
        tokio::time::sleep(self.next).await;
        self.next = (self.next * 2).min(LONGEST_PAUSE);
        true
    }
}
