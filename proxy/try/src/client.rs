//! One server as its users see it: typed clients over its unix socket, and the calls of a volume's life,
//! with answers that are waited for only so long. `try` and the tests make their calls through it.

use std::collections::BTreeSet;
use std::fmt;
use std::future::Future;
use std::path::Path;
use std::time::Duration;

use csi_proto::v1;
use csi_proto::v1::controller_client::ControllerClient;
use csi_proto::v1::identity_client::IdentityClient;
use csi_proto::v1::node_client::NodeClient;
use tonic::transport::{Channel, Endpoint, Error};
use tonic::{Code, Response, Status};

/// One connection with a client for each service. Clones share the connection.
#[derive(Debug, Clone)]
pub struct Client {
    /// The Identity service.
    pub identity: IdentityClient<Channel>,
    /// The Controller service.
    pub controller: ControllerClient<Channel>,
    /// The Node service.
    pub node: NodeClient<Channel>,
    /// The connection itself, for calls without a type.
    pub channel: Channel,
    /// The time that an answer is waited for.
    pub patience: Duration,
}

/// Why something could not be done.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The event, in one line.
    pub what: String,
    /// The code of the answer, if there was one.
    pub code: Option<Code>,
}

/// The result of a call.
pub type Answer<T> = Result<T, Failure>;

/// The name of the capability to copy a volume, which is no call of its own.
pub const CLONE: &str = "clone";

/// Calls that every driver answers.
const ALWAYS: [&str; 9] = [
    "GetPluginInfo",
    "GetPluginCapabilities",
    "Probe",
    "ControllerGetCapabilities",
    "ValidateVolumeCapabilities",
    "NodeGetCapabilities",
    "NodeGetInfo",
    "NodePublishVolume",
    "NodeUnpublishVolume",
];

macro_rules! calls {
    ($($client:ident.$name:ident($request:ident) -> $reply:ident;)*) => {
        /// The calls, one by one.
        impl Client {
            $(
                #[doc = concat!("Sends a `", stringify!($request), "`.")]
                pub async fn $name(&self, request: v1::$request) -> Answer<v1::$reply> {
                    let rpc = stringify!($request).trim_end_matches("Request");
                    self.ask(rpc, self.$client.clone().$name(request)).await
                }
            )*
        }
    };
}

calls! {
    identity.probe(ProbeRequest) -> ProbeResponse;
    identity.get_plugin_info(GetPluginInfoRequest) -> GetPluginInfoResponse;
    identity.get_plugin_capabilities(GetPluginCapabilitiesRequest) -> GetPluginCapabilitiesResponse;
    controller.controller_get_capabilities(ControllerGetCapabilitiesRequest)
        -> ControllerGetCapabilitiesResponse;
    controller.get_capacity(GetCapacityRequest) -> GetCapacityResponse;
    controller.create_volume(CreateVolumeRequest) -> CreateVolumeResponse;
    controller.delete_volume(DeleteVolumeRequest) -> DeleteVolumeResponse;
    controller.list_volumes(ListVolumesRequest) -> ListVolumesResponse;
    controller.create_snapshot(CreateSnapshotRequest) -> CreateSnapshotResponse;
    controller.delete_snapshot(DeleteSnapshotRequest) -> DeleteSnapshotResponse;
    controller.list_snapshots(ListSnapshotsRequest) -> ListSnapshotsResponse;
    controller.controller_publish_volume(ControllerPublishVolumeRequest)
        -> ControllerPublishVolumeResponse;
    controller.controller_unpublish_volume(ControllerUnpublishVolumeRequest)
        -> ControllerUnpublishVolumeResponse;
    controller.controller_expand_volume(ControllerExpandVolumeRequest)
        -> ControllerExpandVolumeResponse;
    controller.controller_get_volume(ControllerGetVolumeRequest)
        -> ControllerGetVolumeResponse;
    node.node_get_capabilities(NodeGetCapabilitiesRequest) -> NodeGetCapabilitiesResponse;
    node.node_get_info(NodeGetInfoRequest) -> NodeGetInfoResponse;
    node.node_stage_volume(NodeStageVolumeRequest) -> NodeStageVolumeResponse;
    node.node_unstage_volume(NodeUnstageVolumeRequest) -> NodeUnstageVolumeResponse;
    node.node_publish_volume(NodePublishVolumeRequest) -> NodePublishVolumeResponse;
    node.node_unpublish_volume(NodeUnpublishVolumeRequest) -> NodeUnpublishVolumeResponse;
    node.node_expand_volume(NodeExpandVolumeRequest) -> NodeExpandVolumeResponse;
    node.node_get_volume_stats(NodeGetVolumeStatsRequest) -> NodeGetVolumeStatsResponse;
}

// === impl Client ===

impl Client {
    /// Connects to a socket on which a server listens already.
    pub async fn connect(socket: &Path) -> Result<Self, Error> {
        Ok(Self::over(endpoint(socket)?.connect().await?))
    }

    /// Connects to a socket with the first call.
    pub fn lazy(socket: &Path) -> Result<Self, Error> {
        Ok(Self::over(endpoint(socket)?.connect_lazy()))
    }

    /// Clients over a connection.
    pub fn over(channel: Channel) -> Self {
        Self {
            identity: IdentityClient::new(channel.clone()),
            controller: ControllerClient::new(channel.clone()),
            node: NodeClient::new(channel.clone()),
            channel,
            patience: Duration::from_mins(10),
        }
    }

    async fn ask<T>(
        &self,
        rpc: &str,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Answer<T> {
        match tokio::time::timeout(self.patience, call).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => {
                let (code, message) = (status.code(), status.message());
                let what = format!("{rpc} answered {}: {message}", code_name(code));
                let code = Some(code);
                Err(Failure { what, code })
            }
            Err(_) => Err(Failure {
                what: format!("{rpc} was not answered within {:?}", self.patience),
                code: Some(Code::DeadlineExceeded),
            }),
        }
    }

    /// Makes a volume.
    pub async fn volume(&self, request: v1::CreateVolumeRequest) -> Answer<v1::Volume> {
        let volume = self.create_volume(request).await?.volume;
        volume.ok_or_else(|| Failure::seen("CreateVolume was answered without a volume"))
    }

    /// Takes a snapshot.
    pub async fn snapshot(&self, request: v1::CreateSnapshotRequest) -> Answer<v1::Snapshot> {
        let snapshot = self.create_snapshot(request).await?.snapshot;
        snapshot.ok_or_else(|| Failure::seen("CreateSnapshot was answered without a snapshot"))
    }

    /// The ids of all volumes, page by page.
    pub async fn volume_ids(&self) -> Answer<BTreeSet<String>> {
        let mut request = v1::ListVolumesRequest::default();
        let mut ids = BTreeSet::new();
        loop {
            let page = self.list_volumes(request.clone()).await?;
            let volumes = page.entries.into_iter().filter_map(|entry| entry.volume);
            ids.extend(volumes.map(|volume| volume.volume_id));
            request.starting_token = page.next_token;
            if request.starting_token.is_empty() {
                return Ok(ids);
            }
        }
    }

    /// The ids of the snapshots that are asked for, page by page.
    pub async fn snapshot_ids(
        &self,
        mut request: v1::ListSnapshotsRequest,
    ) -> Answer<BTreeSet<String>> {
        let mut ids = BTreeSet::new();
        loop {
            let page = self.list_snapshots(request.clone()).await?;
            let snapshots = page.entries.into_iter().filter_map(|entry| entry.snapshot);
            ids.extend(snapshots.map(|snapshot| snapshot.snapshot_id));
            request.starting_token = page.next_token;
            if request.starting_token.is_empty() {
                return Ok(ids);
            }
        }
    }

    /// The names of the calls that the server offers, and [`CLONE`].
    pub async fn offered(&self) -> Answer<BTreeSet<&'static str>> {
        use v1::controller_service_capability::Type as OfController;
        use v1::node_service_capability::Type as OfNode;
        let mut names = BTreeSet::from(ALWAYS);
        let request = v1::ControllerGetCapabilitiesRequest {};
        for capability in self
            .controller_get_capabilities(request)
            .await?
            .capabilities
        {
            if let Some(OfController::Rpc(rpc)) = capability.r#type {
                names.extend(controller_methods(rpc.r#type()));
            }
        }
        let request = v1::NodeGetCapabilitiesRequest {};
        for capability in self.node_get_capabilities(request).await?.capabilities {
            if let Some(OfNode::Rpc(rpc)) = capability.r#type {
                names.extend(node_methods(rpc.r#type()));
            }
        }
        Ok(names)
    }
}

fn endpoint(socket: &Path) -> Result<Endpoint, Error> {
    let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display()))?;
    Ok(endpoint.connect_timeout(Duration::from_secs(10)))
}

fn controller_methods(
    capability: v1::controller_service_capability::rpc::Type,
) -> &'static [&'static str] {
    use v1::controller_service_capability::rpc::Type;
    match capability {
        Type::CreateDeleteVolume => &["CreateVolume", "DeleteVolume"],
        Type::PublishUnpublishVolume => &["ControllerPublishVolume", "ControllerUnpublishVolume"],
        Type::ListVolumes => &["ListVolumes"],
        Type::GetCapacity => &["GetCapacity"],
        Type::CreateDeleteSnapshot => &["CreateSnapshot", "DeleteSnapshot"],
        Type::ListSnapshots => &["ListSnapshots"],
        Type::CloneVolume => &[CLONE],
        Type::ExpandVolume => &["ControllerExpandVolume"],
        Type::GetVolume => &["ControllerGetVolume"],
        Type::ModifyVolume => &["ControllerModifyVolume"],
        Type::GetSnapshot => &["GetSnapshot"],
        Type::GetVolumeHealth => &["ControllerGetVolumeHealth"],
        Type::ListVolumeHealth => &["ControllerListVolumeHealth"],
        _ => &[],
    }
}

fn node_methods(capability: v1::node_service_capability::rpc::Type) -> &'static [&'static str] {
    use v1::node_service_capability::rpc::Type;
    match capability {
        Type::StageUnstageVolume => &["NodeStageVolume", "NodeUnstageVolume"],
        Type::GetVolumeStats => &["NodeGetVolumeStats"],
        Type::ExpandVolume => &["NodeExpandVolume"],
        Type::GetVolumeHealth => &["NodeGetVolumeHealth"],
        Type::GetStorageHealth => &["NodeGetStorageHealth"],
        _ => &[],
    }
}

// === impl Failure ===

impl Failure {
    /// Something that the caller saw itself.
    pub fn seen(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            code: None,
        }
    }

    /// Whether the call may have changed something, or may still change it.
    pub(crate) fn is_open(&self) -> bool {
        use Code::{Aborted, Cancelled, DeadlineExceeded, Unavailable, Unknown};
        matches!(
            self.code,
            Some(Aborted | Cancelled | DeadlineExceeded | Unavailable | Unknown)
        )
    }

    /// The meaning of the code, where it says more than that something failed.
    pub(crate) fn code_says(&self) -> Option<&'static str> {
        Some(match self.code? {
            Code::InvalidArgument => {
                "The driver finds the request itself wrong: compare --parameter, --access and \
                 --size with what it documents."
            }
            Code::NotFound => "What the call is about is not there.",
            Code::AlreadyExists => "Something of that name is there, made from another request.",
            Code::OutOfRange => "This size cannot be had: choose another one with --size.",
            Code::ResourceExhausted => "There is no room, or none at the place that is allowed.",
            Code::FailedPrecondition => "It is in a state that forbids this: in use, or needed.",
            Code::Aborted => "Another call is at work on the same object; a cluster asks again.",
            Code::Unauthenticated | Code::PermissionDenied => {
                "The storage refuses these credentials, or what they may do."
            }
            Code::Unimplemented => {
                "The driver advertises this and does not have it: a defect, please report it."
            }
            Code::Unavailable => {
                "The storage did not answer, or the outcome is not known; a cluster asks again."
            }
            Code::DeadlineExceeded => {
                "It took too long, and may still be at work; --timeout allows more."
            }
            _ => return None,
        })
    }

    /// Whether the request itself is to blame, and not the storage.
    pub(crate) fn blames_the_request(&self) -> bool {
        use Code::{AlreadyExists, InvalidArgument, OutOfRange, Unimplemented};
        matches!(
            self.code,
            Some(AlreadyExists | InvalidArgument | OutOfRange | Unimplemented)
        )
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

/// The name of a code in the specification: `INVALID_ARGUMENT`.
pub(crate) fn code_name(code: Code) -> String {
    let mut name = String::new();
    for c in format!("{code:?}").chars() {
        if c.is_ascii_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(c.to_ascii_uppercase());
    }
    name
}
