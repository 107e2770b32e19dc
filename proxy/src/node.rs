//! The Node service: each call is decoded, finds its attachment, and asks the node's verbs.
//!
//! A volume is what its context says, whichever driver made it; the driver of this process only
//! judges how it may be used. Nothing here touches a mount itself.

mod jobs;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use csi_proto::v1;
use csi_proto::v1::node_server::Node;
use tonic::{Request, Response, Status};

use crate::encode;
use crate::rpc::Rpc;
use crate::service::Plugin;

/// The Node service.
#[derive(Debug, Clone)]
pub(crate) struct NodeService(pub(crate) Arc<Plugin>);

type Reply<T> = Result<Response<T>, Status>;

/// Passes a request to the function that makes a job of it.
macro_rules! detached {
    ($self:ident, $rpc:ident, $request:ident, $job:path) => {{
        let plugin = $self.0.clone();
        let request = $request.into_inner();
        $self
            .0
            .runner
            .detached(Rpc::$rpc, move || $job(&plugin, request))
            .await
    }};
}

#[tonic::async_trait]
impl Node for NodeService {
    async fn node_stage_volume(
        &self,
        request: Request<v1::NodeStageVolumeRequest>,
    ) -> Reply<v1::NodeStageVolumeResponse> {
        detached!(self, NodeStageVolume, request, jobs::stage)
    }

    async fn node_unstage_volume(
        &self,
        request: Request<v1::NodeUnstageVolumeRequest>,
    ) -> Reply<v1::NodeUnstageVolumeResponse> {
        detached!(self, NodeUnstageVolume, request, jobs::unstage)
    }

    async fn node_publish_volume(
        &self,
        request: Request<v1::NodePublishVolumeRequest>,
    ) -> Reply<v1::NodePublishVolumeResponse> {
        detached!(self, NodePublishVolume, request, jobs::publish)
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<v1::NodeUnpublishVolumeRequest>,
    ) -> Reply<v1::NodeUnpublishVolumeResponse> {
        detached!(self, NodeUnpublishVolume, request, jobs::unpublish)
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<v1::NodeGetVolumeStatsRequest>,
    ) -> Reply<v1::NodeGetVolumeStatsResponse> {
        detached!(self, NodeGetVolumeStats, request, jobs::stats)
    }

    async fn node_expand_volume(
        &self,
        request: Request<v1::NodeExpandVolumeRequest>,
    ) -> Reply<v1::NodeExpandVolumeResponse> {
        detached!(self, NodeExpandVolume, request, jobs::expand)
    }

    async fn node_get_capabilities(
        &self,
        _: Request<v1::NodeGetCapabilitiesRequest>,
    ) -> Reply<v1::NodeGetCapabilitiesResponse> {
        self.0.runner.quick(Rpc::NodeGetCapabilities, || {
            Ok(self.0.connections.leading().advertised().node_reply())
        })
    }

    async fn node_get_info(
        &self,
        _: Request<v1::NodeGetInfoRequest>,
    ) -> Reply<v1::NodeGetInfoResponse> {
        self.0.runner.quick(Rpc::NodeGetInfo, || {
            let driver = self.0.connections.leading().driver();
            Ok(v1::NodeGetInfoResponse {
                node_id: self.0.node_id.as_str().to_owned(),
                // The orchestrator decides.
                max_volumes_per_node: 0,
                accessible_topology: driver.node_topology().as_ref().map(encode::topology),
            })
        })
    }
}
