//! The Controller service: each call is decoded, finds its connection, and asks a driver.
//!
//! The bodies are in `volumes`, `snapshots` and `lists`; this file only connects them to the wire
//! and to the runner. What a driver does not have is answered with UNIMPLEMENTED, whatever was
//! advertised.

mod lists;
mod snapshots;
#[cfg(test)]
mod tests;
mod volumes;

use std::sync::Arc;

use csi_proto::v1;
use csi_proto::v1::controller_server::Controller;
use driver_core::Error;
use tonic::{Request, Response, Status};

use crate::connection::Connection;
use crate::rpc::{Rpc, Subject};
use crate::service::Plugin;

/// The Controller service.
#[derive(Debug, Clone)]
pub(crate) struct ControllerService(pub(crate) Arc<Plugin>);

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
impl Controller for ControllerService {
    async fn create_volume(
        &self,
        request: Request<v1::CreateVolumeRequest>,
    ) -> Reply<v1::CreateVolumeResponse> {
        detached!(self, CreateVolume, request, volumes::create)
    }

    async fn delete_volume(
        &self,
        request: Request<v1::DeleteVolumeRequest>,
    ) -> Reply<v1::DeleteVolumeResponse> {
        detached!(self, DeleteVolume, request, volumes::delete)
    }

    async fn controller_publish_volume(
        &self,
        request: Request<v1::ControllerPublishVolumeRequest>,
    ) -> Reply<v1::ControllerPublishVolumeResponse> {
        detached!(self, ControllerPublishVolume, request, volumes::publish)
    }

    async fn controller_unpublish_volume(
        &self,
        request: Request<v1::ControllerUnpublishVolumeRequest>,
    ) -> Reply<v1::ControllerUnpublishVolumeResponse> {
        detached!(self, ControllerUnpublishVolume, request, volumes::unpublish)
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<v1::ValidateVolumeCapabilitiesRequest>,
    ) -> Reply<v1::ValidateVolumeCapabilitiesResponse> {
        detached!(self, ValidateVolumeCapabilities, request, volumes::validate)
    }

    async fn list_volumes(
        &self,
        request: Request<v1::ListVolumesRequest>,
    ) -> Reply<v1::ListVolumesResponse> {
        detached!(self, ListVolumes, request, lists::volumes)
    }

    async fn get_capacity(
        &self,
        request: Request<v1::GetCapacityRequest>,
    ) -> Reply<v1::GetCapacityResponse> {
        detached!(self, GetCapacity, request, volumes::capacity)
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<v1::ControllerGetCapabilitiesRequest>,
    ) -> Reply<v1::ControllerGetCapabilitiesResponse> {
        self.0.runner.quick(Rpc::ControllerGetCapabilities, || {
            Ok(self.0.connections.leading().advertised().controller_reply())
        })
    }

    async fn create_snapshot(
        &self,
        request: Request<v1::CreateSnapshotRequest>,
    ) -> Reply<v1::CreateSnapshotResponse> {
        detached!(self, CreateSnapshot, request, snapshots::create)
    }

    async fn delete_snapshot(
        &self,
        request: Request<v1::DeleteSnapshotRequest>,
    ) -> Reply<v1::DeleteSnapshotResponse> {
        detached!(self, DeleteSnapshot, request, snapshots::delete)
    }

    async fn list_snapshots(
        &self,
        request: Request<v1::ListSnapshotsRequest>,
    ) -> Reply<v1::ListSnapshotsResponse> {
        detached!(self, ListSnapshots, request, lists::snapshots)
    }

    async fn get_snapshot(
        &self,
        request: Request<v1::GetSnapshotRequest>,
    ) -> Reply<v1::GetSnapshotResponse> {
        detached!(self, GetSnapshot, request, snapshots::get)
    }

    async fn controller_expand_volume(
        &self,
        request: Request<v1::ControllerExpandVolumeRequest>,
    ) -> Reply<v1::ControllerExpandVolumeResponse> {
        detached!(self, ControllerExpandVolume, request, volumes::expand)
    }

    async fn controller_get_volume(
        &self,
        request: Request<v1::ControllerGetVolumeRequest>,
    ) -> Reply<v1::ControllerGetVolumeResponse> {
        detached!(self, ControllerGetVolume, request, volumes::get)
    }

    async fn controller_modify_volume(
        &self,
        _: Request<v1::ControllerModifyVolumeRequest>,
    ) -> Reply<v1::ControllerModifyVolumeResponse> {
        // No driver has a mutable parameter yet; those of CreateVolume are ordinary ones.
        self.0.runner.quick(Rpc::ControllerModifyVolume, || {
            Err(Error::unsupported("modify volume"))
        })
    }
}

/// A call about a volume.
fn about_volume(connection: &Connection, volume: &str) -> Subject {
    Subject {
        connection: connection.name().clone(),
        volume: Some(volume.to_owned()),
        snapshot: None,
    }
}

/// A call about a snapshot.
fn about_snapshot(connection: &Connection, snapshot: &str) -> Subject {
    Subject {
        connection: connection.name().clone(),
        volume: None,
        snapshot: Some(snapshot.to_owned()),
    }
}

/// A call about a connection as a whole.
fn about(connection: &Connection) -> Subject {
    Subject {
        connection: connection.name().clone(),
        ..Subject::default()
    }
}
