//! The Node service: each call is decoded, finds its attachment, and asks the node's verbs.
//!
//! The context of a volume decides what it is, whichever driver created it; the driver of this
//! process only decides how it may be used. This module never touches a mount itself.

pub(crate) mod decode;
pub mod info;
pub(crate) mod inline;
pub(crate) mod jobs;
pub mod programs;
pub mod service;
pub(crate) mod staged;

use std::sync::Arc;

use csi_proto::v1;
use csi_proto::v1::node_server::Node;
use tonic::{Request, Response, Status};

use crate::csi::plugin::Plugin;
use crate::rpc::Rpc;

/// The Node service.
#[derive(Debug, Clone)]
pub(crate) struct NodeHandler(pub(crate) Arc<Plugin>);

type Reply<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl Node for NodeHandler {
    async fn node_stage_volume(
        &self,
        request: Request<v1::NodeStageVolumeRequest>,
    ) -> Reply<v1::NodeStageVolumeResponse> {
        self.0
            .answer(Rpc::NodeStageVolume, request, jobs::stage)
            .await
    }

    async fn node_unstage_volume(
        &self,
        request: Request<v1::NodeUnstageVolumeRequest>,
    ) -> Reply<v1::NodeUnstageVolumeResponse> {
        self.0
            .answer(Rpc::NodeUnstageVolume, request, jobs::unstage)
            .await
    }

    async fn node_publish_volume(
        &self,
        request: Request<v1::NodePublishVolumeRequest>,
    ) -> Reply<v1::NodePublishVolumeResponse> {
        self.0
            .answer(Rpc::NodePublishVolume, request, jobs::publish)
            .await
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<v1::NodeUnpublishVolumeRequest>,
    ) -> Reply<v1::NodeUnpublishVolumeResponse> {
        self.0
            .answer(Rpc::NodeUnpublishVolume, request, jobs::unpublish)
            .await
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<v1::NodeGetVolumeStatsRequest>,
    ) -> Reply<v1::NodeGetVolumeStatsResponse> {
        self.0
            .answer(Rpc::NodeGetVolumeStats, request, jobs::stats)
            .await
    }

    async fn node_get_volume_health(
        &self,
        request: Request<v1::NodeGetVolumeHealthRequest>,
    ) -> Reply<v1::NodeGetVolumeHealthResponse> {
        self.0
            .answer(Rpc::NodeGetVolumeHealth, request, jobs::health)
            .await
    }

    async fn node_get_storage_health(
        &self,
        request: Request<v1::NodeGetStorageHealthRequest>,
    ) -> Reply<v1::NodeGetStorageHealthResponse> {
        self.0
            .answer(Rpc::NodeGetStorageHealth, request, jobs::storage_health)
            .await
    }

    async fn node_expand_volume(
        &self,
        request: Request<v1::NodeExpandVolumeRequest>,
    ) -> Reply<v1::NodeExpandVolumeResponse> {
        self.0
            .answer(Rpc::NodeExpandVolume, request, jobs::expand)
            .await
    }

    async fn node_get_capabilities(
        &self,
        _: Request<v1::NodeGetCapabilitiesRequest>,
    ) -> Reply<v1::NodeGetCapabilitiesResponse> {
        self.0.runner.quick(Rpc::NodeGetCapabilities, || {
            Ok(self.0.advertised_on_node().node_reply())
        })
    }

    async fn node_get_info(
        &self,
        request: Request<v1::NodeGetInfoRequest>,
    ) -> Reply<v1::NodeGetInfoResponse> {
        self.0.answer(Rpc::NodeGetInfo, request, jobs::info).await
    }
}
