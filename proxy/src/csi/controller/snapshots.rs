//! Calls about one snapshot.

use std::sync::Arc;

use csi_proto::v1;
use driver_core::{CreateSnapshot, DeleteSnapshot, Error, GetSnapshot};

use super::{about_snapshot, about_volume, offered, record_snapshot, record_volume};
use crate::csi::decode::{self, CreateSnapshotRequest};
use crate::csi::encode;
use crate::csi::plugin::Plugin;
use crate::rpc::in_flight::{Hold, Keys, Object};
use crate::rpc::{Incoming, Subject};

pub(super) async fn create(
    plugin: Arc<Plugin>,
    incoming: Incoming,
    request: v1::CreateSnapshotRequest,
) -> Result<v1::CreateSnapshotResponse, Error> {
    record_snapshot(&request.name);
    record_volume(&request.source_volume_id);
    offered(&plugin, "create snapshot", |can| can.snapshots)?;
    let request = CreateSnapshotRequest::try_from(request)?;
    let (connection, source) = plugin.connections.of_volume(&request.source).await?;
    if !connection.can().snapshots {
        return Err(connection.lacks("create snapshot"));
    }
    let here = connection.scope();
    // Several snapshots of one volume may be created concurrently; its deletion must wait.
    let keys = Keys::none()
        .and(
            here,
            Object::SnapshotName(request.name.clone()),
            Hold::Exclusive,
        )
        .and(here, Object::Volume(source.clone()), Hold::Shared);
    let subject = Subject {
        snapshot: Some(request.name.as_str().to_owned()),
        ..about_volume(&connection, request.source.as_str())
    };
    let handle = request.source;
    let wanted = CreateSnapshot {
        name: request.name,
        source,
        parameters: request.parameters,
        secrets: request.secrets,
    };
    let task = incoming.admit(subject, keys)?;
    let cut = connection.driver().create_snapshot(&task.call, &wanted);
    let cut = task.ask_for_copy(&connection, "create_snapshot", cut);
    let snapshot = cut.await?;
    encode::created_snapshot(&connection, &snapshot, &handle)
}

pub(super) async fn delete(
    plugin: Arc<Plugin>,
    incoming: Incoming,
    request: v1::DeleteSnapshotRequest,
) -> Result<v1::DeleteSnapshotResponse, Error> {
    record_snapshot(&request.snapshot_id);
    offered(&plugin, "delete snapshot", |can| can.snapshots)?;
    let (handle, secrets) = decode::delete_snapshot(request)?;
    let (connection, id) = plugin.connections.owner_of_snapshot(&handle).await?;
    if !connection.can().snapshots {
        return Err(connection.lacks("delete snapshot"));
    }
    let object = Object::Snapshot(id.clone());
    let keys = Keys::none().and(connection.scope(), object, Hold::Exclusive);
    let subject = about_snapshot(&connection, handle.as_str());
    let task = incoming.admit(subject, keys)?;
    let deletion = connection.driver().delete_snapshot(
        &task.call,
        DeleteSnapshot {
            id: &id,
            secrets: &secrets,
        },
    );
    task.ask_for_deletion(&connection, "delete_snapshot", deletion)
        .await?;
    Ok(v1::DeleteSnapshotResponse {})
}

pub(super) async fn get(
    plugin: Arc<Plugin>,
    incoming: Incoming,
    request: v1::GetSnapshotRequest,
) -> Result<v1::GetSnapshotResponse, Error> {
    offered(&plugin, "get snapshot", |can| can.get_snapshot)?;
    let (handle, secrets) = decode::get_snapshot(request)?;
    let (connection, id) = plugin.connections.of_snapshot(&handle).await?;
    if !connection.can().get_snapshot {
        return Err(connection.lacks("get snapshot"));
    }
    let subject = about_snapshot(&connection, handle.as_str());
    let task = incoming.admit(subject, Keys::none())?;
    let found = connection.driver().get_snapshot(
        &task.call,
        GetSnapshot {
            id: &id,
            secrets: &secrets,
        },
    );
    let snapshot = task.ask(&connection, "get_snapshot", found).await?;
    let mut reply = encode::snapshot(&connection, &snapshot);
    handle.as_str().clone_into(&mut reply.snapshot_id);
    Ok(v1::GetSnapshotResponse {
        snapshot: Some(reply),
    })
}
