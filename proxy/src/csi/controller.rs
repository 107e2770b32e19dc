//! The Controller service: each call is decoded, finds its connection, and asks a driver.
//!
//! The bodies are in the modules below; this file only connects them to the wire and to the runner.
//! What a driver does not have is answered with UNIMPLEMENTED, whatever was advertised.

mod capacity;
mod creation;
pub(crate) mod decode;
mod health;
mod lists;
pub(crate) mod lost_exports;
#[cfg(test)]
mod model;
#[cfg(test)]
mod multi_connection;
mod pages;
mod publishing;
mod snapshots;
#[cfg(test)]
mod tests;
mod turns;
mod unowned;
mod volumes;

use std::sync::Arc;

use csi_proto::v1;
use csi_proto::v1::controller_server::Controller;
use driver_core::{Capabilities, Error};
use tonic::{Request, Response, Status};

use crate::csi::plugin::Plugin;
use crate::routing::connection::Connection;
use crate::routing::connections::ConnectionName;
use crate::rpc::{Rpc, Subject};

/// The Controller service.
#[derive(Debug, Clone)]
pub(crate) struct ControllerHandler(pub(crate) Arc<Plugin>);

type Reply<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl Controller for ControllerHandler {
    async fn create_volume(
        &self,
        request: Request<v1::CreateVolumeRequest>,
    ) -> Reply<v1::CreateVolumeResponse> {
        self.0
            .answer(Rpc::CreateVolume, request, creation::create)
            .await
    }

    async fn delete_volume(
        &self,
        request: Request<v1::DeleteVolumeRequest>,
    ) -> Reply<v1::DeleteVolumeResponse> {
        self.0
            .answer(Rpc::DeleteVolume, request, volumes::delete)
            .await
    }

    async fn controller_publish_volume(
        &self,
        request: Request<v1::ControllerPublishVolumeRequest>,
    ) -> Reply<v1::ControllerPublishVolumeResponse> {
        self.0
            .answer(Rpc::ControllerPublishVolume, request, publishing::publish)
            .await
    }

    async fn controller_unpublish_volume(
        &self,
        request: Request<v1::ControllerUnpublishVolumeRequest>,
    ) -> Reply<v1::ControllerUnpublishVolumeResponse> {
        self.0
            .answer(
                Rpc::ControllerUnpublishVolume,
                request,
                publishing::unpublish,
            )
            .await
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<v1::ValidateVolumeCapabilitiesRequest>,
    ) -> Reply<v1::ValidateVolumeCapabilitiesResponse> {
        self.0
            .answer(Rpc::ValidateVolumeCapabilities, request, volumes::validate)
            .await
    }

    async fn list_volumes(
        &self,
        request: Request<v1::ListVolumesRequest>,
    ) -> Reply<v1::ListVolumesResponse> {
        self.0
            .answer(Rpc::ListVolumes, request, lists::volumes)
            .await
    }

    async fn get_capacity(
        &self,
        request: Request<v1::GetCapacityRequest>,
    ) -> Reply<v1::GetCapacityResponse> {
        self.0
            .answer(Rpc::GetCapacity, request, capacity::capacity)
            .await
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<v1::ControllerGetCapabilitiesRequest>,
    ) -> Reply<v1::ControllerGetCapabilitiesResponse> {
        self.0.runner.quick(Rpc::ControllerGetCapabilities, || {
            Ok(self.0.advertised()?.controller_reply(&self.0.connections))
        })
    }

    async fn create_snapshot(
        &self,
        request: Request<v1::CreateSnapshotRequest>,
    ) -> Reply<v1::CreateSnapshotResponse> {
        self.0
            .answer(Rpc::CreateSnapshot, request, snapshots::create)
            .await
    }

    async fn delete_snapshot(
        &self,
        request: Request<v1::DeleteSnapshotRequest>,
    ) -> Reply<v1::DeleteSnapshotResponse> {
        self.0
            .answer(Rpc::DeleteSnapshot, request, snapshots::delete)
            .await
    }

    async fn list_snapshots(
        &self,
        request: Request<v1::ListSnapshotsRequest>,
    ) -> Reply<v1::ListSnapshotsResponse> {
        self.0
            .answer(Rpc::ListSnapshots, request, lists::snapshots)
            .await
    }

    async fn get_snapshot(
        &self,
        request: Request<v1::GetSnapshotRequest>,
    ) -> Reply<v1::GetSnapshotResponse> {
        self.0
            .answer(Rpc::GetSnapshot, request, snapshots::get)
            .await
    }

    async fn controller_expand_volume(
        &self,
        request: Request<v1::ControllerExpandVolumeRequest>,
    ) -> Reply<v1::ControllerExpandVolumeResponse> {
        self.0
            .answer(Rpc::ControllerExpandVolume, request, volumes::expand)
            .await
    }

    async fn controller_get_volume(
        &self,
        request: Request<v1::ControllerGetVolumeRequest>,
    ) -> Reply<v1::ControllerGetVolumeResponse> {
        self.0
            .answer(Rpc::ControllerGetVolume, request, volumes::get)
            .await
    }

    async fn controller_get_volume_health(
        &self,
        request: Request<v1::ControllerGetVolumeHealthRequest>,
    ) -> Reply<v1::ControllerGetVolumeHealthResponse> {
        self.0
            .answer(Rpc::ControllerGetVolumeHealth, request, health::get)
            .await
    }

    async fn controller_list_volume_health(
        &self,
        request: Request<v1::ControllerListVolumeHealthRequest>,
    ) -> Reply<v1::ControllerListVolumeHealthResponse> {
        self.0
            .answer(Rpc::ControllerListVolumeHealth, request, health::list)
            .await
    }

    async fn controller_modify_volume(
        &self,
        request: Request<v1::ControllerModifyVolumeRequest>,
    ) -> Reply<v1::ControllerModifyVolumeResponse> {
        self.0
            .answer(Rpc::ControllerModifyVolume, request, volumes::modify)
            .await
    }
}

/// Refuses a verb that the only connection lacks, before anything of the request is looked at: what
/// is not there cannot be asked for wrongly. Among several, each answers for itself.
fn offered(
    plugin: &Plugin,
    verb: &'static str,
    has: impl Fn(&Capabilities) -> bool,
) -> Result<(), Error> {
    match plugin.connections.only() {
        Some(only) if !has(&only.can()) => Err(only.lacks(verb)),
        _ => Ok(()),
    }
}

/// The same where one of several has to have it, or may have it.
pub(crate) fn offered_by_any(
    plugin: &Plugin,
    verb: &'static str,
    has: impl Fn(&Capabilities) -> bool,
) -> Result<(), Error> {
    offered(plugin, verb, &has)?;
    if plugin.connections.offer(has) == Some(false) {
        return Err(Error::unsupported(verb));
    }
    Ok(())
}

/// Refuses the objects of a field that are on one connection while others are on another.
pub(crate) fn at_one_connection(
    field: &str,
    these_are: &str,
    home: &Connection,
    those: &str,
    other: &Connection,
) -> Result<(), Error> {
    let (home, other) = (home.name(), other.name());
    if home == other {
        return Ok(());
    }
    let why = format!("{these_are} on connection `{home}`, and {those} is on connection `{other}`");
    Err(Error::invalid(format!("request field `{field}`")).because(why))
}

/// Names the volume in the log before the request is looked at: a refusal has to say whose it is.
fn record_volume(volume: &str) {
    let subject = Subject {
        volume: (!volume.is_empty()).then(|| volume.to_owned()),
        ..Subject::default()
    };
    subject.record();
}

/// The same for a snapshot.
fn record_snapshot(snapshot: &str) {
    let subject = Subject {
        snapshot: (!snapshot.is_empty()).then(|| snapshot.to_owned()),
        ..Subject::default()
    };
    subject.record();
}

/// A call about a volume.
pub(crate) fn about_volume(connection: &Connection, volume: &str) -> Subject {
    Subject {
        connection: connection.name().text().clone(),
        volume: Some(volume.to_owned()),
        ..Subject::default()
    }
}

/// A call about a snapshot, or a group of them.
pub(crate) fn about_snapshot(connection: &Connection, snapshot: &str) -> Subject {
    Subject {
        connection: connection.name().text().clone(),
        snapshot: Some(snapshot.to_owned()),
        ..Subject::default()
    }
}

/// A call about a connection as a whole, or about several.
fn about(connection: Option<&ConnectionName>) -> Subject {
    Subject {
        connection: connection.map_or_else(Arc::default, |name| name.text().clone()),
        ..Subject::default()
    }
}
