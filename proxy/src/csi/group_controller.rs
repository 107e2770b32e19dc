//! The `GroupController` service: snapshots of several volumes of one connection, taken at one moment.
//!
//! It is served by every controller, and advertised while a connection offers it.
//! compat: "Group snapshots and changed blocks".

pub(crate) mod decode;

use std::future::Future;
use std::sync::Arc;

use csi_proto::v1;
use csi_proto::v1::group_controller_server::GroupController;
use csi_proto::v1::group_controller_service_capability as capability;
use driver_core::text::GroupSnapshotId;
use driver_core::{
    CREATE_GROUP, Capabilities, CreateGroup, DELETE_GROUP, Error, GET_GROUP, GroupMembers,
    SnapshotId,
};
use tonic::{Request, Response, Status};

use crate::csi::controller::{about_snapshot, at_one_connection, offered_by_any};
use crate::csi::encode;
use crate::csi::plugin::Plugin;
use crate::routing::connection::Connection;
use crate::routing::connections::Handle;
use crate::rpc::in_flight::{Hold, Keys, Object};
use crate::rpc::{Incoming, Rpc};
use decode::{CreateGroupRequest, GroupRequest};

/// The `GroupController` service.
#[derive(Debug, Clone)]
pub(crate) struct GroupControllerHandler(pub(crate) Arc<Plugin>);

type Reply<T> = Result<Response<T>, Status>;

const VOLUMES: &str = "source_volume_ids";
const SNAPSHOTS: &str = "snapshot_ids";

#[tonic::async_trait]
impl GroupController for GroupControllerHandler {
    async fn group_controller_get_capabilities(
        &self,
        _: Request<v1::GroupControllerGetCapabilitiesRequest>,
    ) -> Reply<v1::GroupControllerGetCapabilitiesResponse> {
        self.0
            .runner
            .quick(Rpc::GroupControllerGetCapabilities, || {
                offered_by_any(&self.0, "group snapshots", has_groups)?;
                Ok(capabilities())
            })
    }

    async fn create_volume_group_snapshot(
        &self,
        request: Request<v1::CreateVolumeGroupSnapshotRequest>,
    ) -> Reply<v1::CreateVolumeGroupSnapshotResponse> {
        self.0
            .answer(Rpc::CreateVolumeGroupSnapshot, request, create)
            .await
    }

    async fn delete_volume_group_snapshot(
        &self,
        request: Request<v1::DeleteVolumeGroupSnapshotRequest>,
    ) -> Reply<v1::DeleteVolumeGroupSnapshotResponse> {
        self.0
            .answer(Rpc::DeleteVolumeGroupSnapshot, request, delete)
            .await
    }

    async fn get_volume_group_snapshot(
        &self,
        request: Request<v1::GetVolumeGroupSnapshotRequest>,
    ) -> Reply<v1::GetVolumeGroupSnapshotResponse> {
        self.0
            .answer(Rpc::GetVolumeGroupSnapshot, request, get)
            .await
    }
}

fn has_groups(can: &Capabilities) -> bool {
    can.groups
}

fn capabilities() -> v1::GroupControllerGetCapabilitiesResponse {
    let r#type = capability::rpc::Type::CreateDeleteGetVolumeGroupSnapshot.into();
    let one = v1::GroupControllerServiceCapability {
        r#type: Some(capability::Type::Rpc(capability::Rpc { r#type })),
    };
    v1::GroupControllerGetCapabilitiesResponse {
        capabilities: vec![one],
    }
}

async fn create(
    plugin: Arc<Plugin>,
    incoming: Incoming,
    request: v1::CreateVolumeGroupSnapshotRequest,
) -> Result<v1::CreateVolumeGroupSnapshotResponse, Error> {
    offered_by_any(&plugin, CREATE_GROUP, has_groups)?;
    let request = CreateGroupRequest::try_from(request)?;
    let resolve = |handle| plugin.connections.of_volume(handle);
    let (connection, volumes) = gathered(VOLUMES, &request.volumes, resolve).await?;
    if !connection.can().groups {
        return Err(connection.lacks(CREATE_GROUP));
    }
    let here = connection.scope();
    let name = Object::GroupName(request.name.clone());
    let keys = Keys::none().and(here, name, Hold::Exclusive);
    // As for one snapshot: others may be taken of the same volumes; their deletion has to wait.
    let keys = volumes.iter().fold(keys, |keys, id| {
        keys.and(here, Object::Volume(id.clone()), Hold::Shared)
    });
    let subject = about_snapshot(&connection, request.name.as_str());
    let task = incoming.admit(subject, keys)?;
    let (driver, name) = (connection.driver(), &request.name);
    let cut = driver.create_group(
        &task.call,
        CreateGroup {
            name,
            volumes: &volumes,
            parameters: &request.parameters,
            secrets: &request.secrets,
        },
    );
    let group = task.ask_for_copy(&connection, "create_group", cut).await?;
    let mut reply = encode::created_group(&connection, &group, &volumes)?;
    for (reply, snapshot) in reply.snapshots.iter_mut().zip(&group.snapshots) {
        // By another name of its connection it is still the volume that was asked for.
        if let Some(at) = volumes.iter().position(|id| *id == snapshot.source) {
            let handle = &request.volumes[at];
            handle.as_str().clone_into(&mut reply.source_volume_id);
        }
    }
    Ok(v1::CreateVolumeGroupSnapshotResponse {
        group_snapshot: Some(reply),
    })
}

async fn delete(
    plugin: Arc<Plugin>,
    incoming: Incoming,
    request: v1::DeleteVolumeGroupSnapshotRequest,
) -> Result<v1::DeleteVolumeGroupSnapshotResponse, Error> {
    offered_by_any(&plugin, DELETE_GROUP, has_groups)?;
    let request = GroupRequest::try_from(request)?;
    let (connection, id, snapshots) = members(&plugin, &request).await?;
    if !connection.can().groups {
        return Err(connection.lacks(DELETE_GROUP));
    }
    let here = connection.scope();
    let keys = Keys::none().and(here, Object::Group(id.clone()), Hold::Exclusive);
    let keys = snapshots.iter().fold(keys, |keys, id| {
        keys.and(here, Object::Snapshot(id.clone()), Hold::Exclusive)
    });
    let subject = about_snapshot(&connection, request.group.as_str());
    let task = incoming.admit(subject, keys)?;
    let driver = connection.driver();
    let deletion = driver.delete_group(
        &task.call,
        GroupMembers {
            id: &id,
            snapshots: &snapshots,
            secrets: &request.secrets,
        },
    );
    task.ask_for_deletion(&connection, "delete_group", deletion)
        .await?;
    Ok(v1::DeleteVolumeGroupSnapshotResponse {})
}

async fn get(
    plugin: Arc<Plugin>,
    incoming: Incoming,
    request: v1::GetVolumeGroupSnapshotRequest,
) -> Result<v1::GetVolumeGroupSnapshotResponse, Error> {
    offered_by_any(&plugin, GET_GROUP, has_groups)?;
    let request = GroupRequest::try_from(request)?;
    let (connection, id, snapshots) = members(&plugin, &request).await?;
    if !connection.can().groups {
        return Err(connection.lacks(GET_GROUP));
    }
    let subject = about_snapshot(&connection, request.group.as_str());
    let task = incoming.admit(subject, Keys::none())?;
    let found = connection.driver().get_group(
        &task.call,
        GroupMembers {
            id: &id,
            snapshots: &snapshots,
            secrets: &request.secrets,
        },
    );
    let group = task.ask(&connection, "get_group", found).await?;
    let handle = request.group.as_str();
    let mut reply = encode::group(&connection, &group, handle);
    for (reply, snapshot) in reply.snapshots.iter_mut().zip(&group.snapshots) {
        if let Some(at) = snapshots.iter().position(|id| *id == snapshot.id) {
            let handle = &request.snapshots[at];
            handle.as_str().clone_into(&mut reply.snapshot_id);
        }
    }
    Ok(v1::GetVolumeGroupSnapshotResponse {
        group_snapshot: Some(reply),
    })
}

/// Where a group is, what it is called there, and which snapshots should be in it.
async fn members(
    plugin: &Plugin,
    request: &GroupRequest,
) -> Result<(Arc<Connection>, GroupSnapshotId, Vec<SnapshotId>), Error> {
    let (connection, id) = plugin.connections.owner_of_group(&request.group).await?;
    if request.snapshots.is_empty() {
        return Ok((connection, id, Vec::new()));
    }
    let resolve = |handle| plugin.connections.owner_of_snapshot(handle);
    let (home, snapshots) = gathered(SNAPSHOTS, &request.snapshots, resolve).await?;
    at_one_connection(SNAPSHOTS, "they are", &home, "the group", &connection)?;
    Ok((connection, id, snapshots))
}

/// The one connection where all of these are, and what they are called there.
async fn gathered<'a, H, F>(
    field: &'static str,
    handles: &'a [H],
    resolve: impl Fn(&'a H) -> F,
) -> Result<(Arc<Connection>, Vec<H::Id>), Error>
where
    H: Handle<Id: PartialEq>,
    F: Future<Output = Result<(Arc<Connection>, H::Id), Error>>,
{
    let mut first: Option<(&str, Arc<Connection>)> = None;
    let mut ids = Vec::new();
    for handle in handles {
        let (connection, id) = resolve(handle).await?;
        let (other, home) = first.get_or_insert_with(|| (handle.text(), connection.clone()));
        let (other, this) = (format!("`{other}` is"), format!("`{}`", handle.text()));
        at_one_connection(field, &other, home, &this, &connection).map_err(|error| {
            error.advise("a group has to be on one connection: make one group for each")
        })?;
        if ids.contains(&id) {
            return Err(refused(field).because(format!("{this} is there twice")));
        }
        ids.push(id);
    }
    match first {
        Some((_, connection)) => Ok((connection, ids)),
        None => Err(refused(field).because("is required and missing")),
    }
}

fn refused(field: &str) -> Error {
    Error::invalid(format!("request field `{field}`"))
}
