//! Calls the generated servers through the generated clients, without a socket: a server is a service
//! that a client can use as its channel. What the calls mean is tested where they are
//! implemented.

use csi_proto::fence::fence_controller_server::{FenceController, FenceControllerServer};
use csi_proto::identity::identity_server as addons_identity;
use csi_proto::reclaimspace::reclaim_space_controller_server::{
    ReclaimSpaceController, ReclaimSpaceControllerServer,
};
use csi_proto::reclaimspace::reclaim_space_node_server::{
    ReclaimSpaceNode, ReclaimSpaceNodeServer,
};
use csi_proto::v1;
use csi_proto::v1::controller_client::ControllerClient;
use csi_proto::v1::controller_server::{Controller, ControllerServer};
use csi_proto::v1::group_controller_server::{GroupController, GroupControllerServer};
use csi_proto::v1::identity_server::{Identity, IdentityServer};
use csi_proto::v1::node_server::{Node, NodeServer};
use csi_proto::v1::snapshot_metadata_client::SnapshotMetadataClient;
use csi_proto::v1::snapshot_metadata_server::{SnapshotMetadata, SnapshotMetadataServer};
use prost_reflect::{DescriptorPool, MethodDescriptor};
use tonic::body::Body;
use tonic::client::{Grpc, GrpcService};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::{Code, Request, Response, Status};
use tonic_prost::ProstCodec;

/// Implements every service and no call of any.
struct Bare;

impl Controller for Bare {}
impl GroupController for Bare {}
impl Identity for Bare {}
impl Node for Bare {}
impl SnapshotMetadata for Bare {}
impl addons_identity::Identity for Bare {}
impl FenceController for Bare {}
impl ReclaimSpaceController for Bare {}
impl ReclaimSpaceNode for Bare {}

/// Calls a method with an empty message, by its name in the descriptor.
async fn call<S>(server: S, method: &MethodDescriptor) -> Status
where
    S: GrpcService<Body>,
    S::ResponseBody: Send + 'static,
    <S::ResponseBody as tonic::codegen::Body>::Error: Into<tonic::codegen::StdError>,
{
    let mut client = Grpc::new(server);
    let service = method.parent_service().full_name().to_owned();
    let path = PathAndQuery::try_from(format!("/{service}/{}", method.name())).unwrap();
    let codec = ProstCodec::<(), ()>::default();
    client
        .ready()
        .await
        .map_err(Into::into)
        .unwrap_or_else(|_| panic!("servers are ready"));
    if method.is_server_streaming() {
        client
            .server_streaming(Request::new(()), path, codec)
            .await
            .err()
            .unwrap()
    } else {
        client
            .unary(Request::new(()), path, codec)
            .await
            .unwrap_err()
    }
}

#[tokio::test]
async fn every_call_without_an_implementation_is_routed_and_answers_unimplemented() {
    let pool = DescriptorPool::decode(csi_proto::FILE_DESCRIPTOR_SET).unwrap();
    for service in pool.services() {
        for method in service.methods() {
            let status = match service.name() {
                "Controller" => call(ControllerServer::new(Bare), &method).await,
                "GroupController" => call(GroupControllerServer::new(Bare), &method).await,
                "Identity" => call(IdentityServer::new(Bare), &method).await,
                "Node" => call(NodeServer::new(Bare), &method).await,
                "SnapshotMetadata" => call(SnapshotMetadataServer::new(Bare), &method).await,
                other => panic!("{other} is a new service"),
            };
            assert_eq!(status.code(), Code::Unimplemented, "{}", method.full_name());
            // A path that leads nowhere is unimplemented too, but has nothing to say.
            assert_eq!(
                status.message(),
                "Not yet implemented",
                "{}",
                method.full_name()
            );
        }
    }
}

#[tokio::test]
async fn the_same_of_csi_addons() {
    let pool = DescriptorPool::decode(csi_proto::ADDONS_DESCRIPTOR_SET).unwrap();
    for service in pool.services().filter(|it| it.package_name() != "csi.v1") {
        for method in service.methods() {
            let status = match service.full_name() {
                "identity.Identity" => {
                    call(addons_identity::IdentityServer::new(Bare), &method).await
                }
                "fence.FenceController" => call(FenceControllerServer::new(Bare), &method).await,
                "reclaimspace.ReclaimSpaceController" => {
                    call(ReclaimSpaceControllerServer::new(Bare), &method).await
                }
                "reclaimspace.ReclaimSpaceNode" => {
                    call(ReclaimSpaceNodeServer::new(Bare), &method).await
                }
                other => panic!("{other} is a new service"),
            };
            assert_eq!(
                (status.code(), status.message()),
                (Code::Unimplemented, "Not yet implemented"),
                "{}",
                method.full_name()
            );
        }
    }
}

/// Answers with what it was asked.
struct Echo;

#[tonic::async_trait]
impl Controller for Echo {
    async fn create_volume(
        &self,
        request: Request<v1::CreateVolumeRequest>,
    ) -> Result<Response<v1::CreateVolumeResponse>, Status> {
        let request = request.into_inner();
        Ok(Response::new(v1::CreateVolumeResponse {
            volume: Some(v1::Volume {
                volume_id: request.name,
                volume_context: request.secrets,
                ..Default::default()
            }),
        }))
    }
}

#[tokio::test]
async fn masking_is_for_printing_only_and_secrets_still_travel() {
    let mut client = ControllerClient::new(ControllerServer::new(Echo));
    let secrets = [("user".to_owned(), "root".to_owned())];
    let request = v1::CreateVolumeRequest {
        name: "pvc-1".to_owned(),
        secrets: secrets.clone().into(),
        ..Default::default()
    };
    let volume = client
        .create_volume(request)
        .await
        .unwrap()
        .into_inner()
        .volume
        .unwrap();
    assert_eq!(volume.volume_id, "pvc-1");
    assert_eq!(volume.volume_context, secrets.into());
}

#[tonic::async_trait]
impl SnapshotMetadata for Echo {
    async fn get_metadata_allocated(
        &self,
        request: Request<v1::GetMetadataAllocatedRequest>,
    ) -> Result<Response<tonic::codegen::BoxStream<v1::GetMetadataAllocatedResponse>>, Status> {
        let first = request.into_inner().starting_offset;
        let ranges = (first..first + 3).map(|byte_offset| {
            Ok(v1::GetMetadataAllocatedResponse {
                block_metadata: vec![v1::BlockMetadata {
                    byte_offset,
                    size_bytes: 1,
                }],
                ..Default::default()
            })
        });
        Ok(Response::new(Box::pin(tokio_stream::iter(
            ranges.collect::<Vec<_>>(),
        ))))
    }
}

#[tokio::test]
async fn a_stream_of_ranges_arrives_whole_and_in_order() {
    let mut client = SnapshotMetadataClient::new(SnapshotMetadataServer::new(Echo));
    let request = v1::GetMetadataAllocatedRequest {
        starting_offset: 7,
        ..Default::default()
    };
    let mut stream = client
        .get_metadata_allocated(request)
        .await
        .unwrap()
        .into_inner();
    let mut offsets = Vec::new();
    while let Some(message) = stream.message().await.unwrap() {
        offsets.extend(message.block_metadata.iter().map(|range| range.byte_offset));
    }
    assert_eq!(offsets, [7, 8, 9]);
}
