//! Calls about one volume, and about room for new ones.

use std::sync::Arc;

use csi_proto::v1;
use driver_core::config::ControllerCapability;
use driver_core::text::MAX_STRING;
use driver_core::{CreateVolume, Error, Expansion, Source};
use node_utils::{Attachment, VolumeContext};
use tracing::info;

use super::{about, about_volume, offered};
use crate::connection::Connection;
use crate::decode::{
    self, CapacityRequest, ControllerPublishRequest, ControllerUnpublishRequest,
    CreateVolumeRequest, ExpandRequest, SourceHandle, ValidateRequest,
};
use crate::dispatch::Connections;
use crate::encode;
use crate::inflight::{Hold, Keys, Object};
use crate::rpc::Job;
use crate::service::Plugin;
use crate::status::printable_within;

pub(super) fn create(
    plugin: &Arc<Plugin>,
    request: v1::CreateVolumeRequest,
) -> Result<Job<v1::CreateVolumeResponse>, Error> {
    offered(plugin, "create volume", |can| can.volumes)?;
    let request = CreateVolumeRequest::try_from(request)?;
    let connection = plugin.connections.leading().clone();
    if !connection.driver().capabilities().volumes {
        return Err(connection.driver().unsupported("create volume"));
    }
    connection.allow(&request.capabilities)?;
    let id = connection.name_volume(&request.name, &request.parameters)?;
    let here = connection.name();
    // The id comes first: by it the runner remembers a volume whose fate is unknown.
    let mut keys = Keys::none()
        .and(here, Object::Volume(id.clone()), Hold::Exclusive)
        .and(
            here,
            Object::VolumeName(request.name.clone()),
            Hold::Exclusive,
        );
    let mut source = None;
    if let Some(handle) = &request.source {
        let (object, found) = source_of(&plugin.connections, &connection, handle)?;
        keys = keys.and(here, object, Hold::Shared);
        source = Some(found);
    }
    let subject = about_volume(&connection, id.as_str());
    let handle = request.source;
    let wanted = CreateVolume {
        name: request.name,
        id,
        size: request.size,
        capabilities: request.capabilities,
        parameters: request.parameters,
        secrets: request.secrets,
        source,
        topology: request.topology,
    };
    Ok(Job::new(subject, keys, async move |task| {
        let driver = connection.driver();
        let made = driver.create_volume(&task.call, &wanted);
        let volume = task.ask("create_volume", made).await?;
        encode::created_volume(&connection, &volume, handle.as_ref())
    }))
}

/// What a new volume of `connection` is filled with, and what must not be deleted meanwhile.
fn source_of(
    connections: &Connections,
    connection: &Arc<Connection>,
    handle: &SourceHandle,
) -> Result<(Object, Source), Error> {
    let can = connection.driver().capabilities();
    let (home, object, source, able) = match handle {
        SourceHandle::Snapshot(handle) => {
            let (home, id) = connections.of_snapshot(handle);
            let source = Source::Snapshot(id.clone());
            (home, Object::Snapshot(id), source, can.snapshots)
        }
        SourceHandle::Volume(handle) => {
            let (home, id) = connections.of_volume(handle);
            let source = Source::Volume(id.clone());
            (home, Object::Volume(id), source, can.clones)
        }
    };
    // Not UNIMPLEMENTED: the call itself is served.
    if !able {
        return Err(Error::invalid(format!("fill a volume from {object}"))
            .advise("this driver cannot make volumes of such a source"));
    }
    if !Arc::ptr_eq(&home, connection) {
        return Err(Error::invalid(format!("fill a volume from {object}"))
            .advise("the source is in another connection"));
    }
    Ok((object, source))
}

pub(super) fn delete(
    plugin: &Arc<Plugin>,
    request: v1::DeleteVolumeRequest,
) -> Result<Job<v1::DeleteVolumeResponse>, Error> {
    offered(plugin, "delete volume", |can| can.volumes)?;
    let handle = decode::delete_volume(request)?;
    let (connection, id) = plugin.connections.of_volume(&handle);
    if !connection.driver().capabilities().volumes {
        return Err(connection.driver().unsupported("delete volume"));
    }
    let object = Object::Volume(id.clone());
    let keys = Keys::none().and(connection.name(), object, Hold::Exclusive);
    let subject = about_volume(&connection, handle.as_str());
    Ok(Job::new(subject, keys, async move |task| {
        if connection.retains() {
            info!("the volume is retained, as `_private.csi.volume.deleteStrategy` says");
        } else {
            let deletion = connection.driver().delete_volume(&task.call, &id);
            task.ask("delete_volume", deletion).await?;
        }
        Ok(v1::DeleteVolumeResponse {})
    }))
}

#[expect(clippy::needless_pass_by_value, reason = "all jobs have one shape")]
pub(super) fn get(
    plugin: &Arc<Plugin>,
    request: v1::ControllerGetVolumeRequest,
) -> Result<Job<v1::ControllerGetVolumeResponse>, Error> {
    offered(plugin, "get volume", |can| can.get_volume)?;
    let handle = decode::get_volume(&request)?;
    let (connection, id) = plugin.connections.of_volume(&handle);
    let subject = about_volume(&connection, handle.as_str());
    Ok(Job::new(subject, Keys::none(), async move |task| {
        let found = connection.driver().get_volume(&task.call, &id);
        let volume = task.ask("get_volume", found).await?;
        let condition = with_condition(&connection).then(encode::normal);
        Ok(v1::ControllerGetVolumeResponse {
            volume: Some(encode::volume(&connection, &volume)),
            status: Some(v1::controller_get_volume_response::VolumeStatus {
                published_node_ids: Vec::new(),
                volume_condition: condition,
            }),
        })
    }))
}

/// Whether the orchestrator was told to expect the condition of volumes.
pub(super) fn with_condition(connection: &Connection) -> bool {
    let advertised = &connection.advertised().controller;
    advertised.contains(&ControllerCapability::VolumeCondition)
}

pub(super) fn validate(
    plugin: &Arc<Plugin>,
    request: v1::ValidateVolumeCapabilitiesRequest,
) -> Result<Job<v1::ValidateVolumeCapabilitiesResponse>, Error> {
    let request = ValidateRequest::try_from(request)?;
    let (connection, id) = plugin.connections.of_volume(&request.volume);
    let subject = about_volume(&connection, request.volume.as_str());
    Ok(Job::new(subject, Keys::none(), async move |task| {
        let driver = connection.driver();
        let mut wrong = None;
        if driver.capabilities().get_volume && !request.echo.volume_context.is_empty() {
            let found = driver.get_volume(&task.call, &id);
            let volume = task.ask("get_volume", found).await?;
            wrong = other_way(&volume.attachment, &request.echo.volume_context);
        } else {
            let found = driver.find_volume(&task.call, &id);
            task.ask("find_volume", found).await?;
        }
        Ok(match connection.refusal(&request.capabilities).or(wrong) {
            None => v1::ValidateVolumeCapabilitiesResponse {
                confirmed: Some(request.echo),
                message: String::new(),
            },
            Some(reason) => v1::ValidateVolumeCapabilitiesResponse {
                confirmed: None,
                message: printable_within(&reason, MAX_STRING),
            },
        })
    }))
}

/// What a context says about the way to a volume that is not so; to confirm it would be a lie. Keys
/// that are no part of the way are the orchestrator's.
fn other_way(attachment: &Attachment, context: &VolumeContext) -> Option<String> {
    let differs = |(key, value): &(String, String)| context.get(key).is_some_and(|v| v != value);
    let (key, _) = attachment.to_context().into_iter().find(differs)?;
    Some(format!("this volume has another `{key}` in its context"))
}

pub(super) fn capacity(
    plugin: &Arc<Plugin>,
    request: v1::GetCapacityRequest,
) -> Result<Job<v1::GetCapacityResponse>, Error> {
    offered(plugin, "capacity", |can| can.capacity)?;
    let request = CapacityRequest::try_from(request)?;
    let connection = plugin.connections.leading().clone();
    Ok(Job::new(
        about(&connection),
        Keys::none(),
        async move |task| {
            let room = connection.driver().capacity(&task.call, &request.query);
            let room = task.ask("capacity", room).await?;
            // There is no room at all for a volume that cannot be made. compat: "Capabilities".
            if connection.refusal(&request.capabilities).is_some() {
                return Ok(v1::GetCapacityResponse::default());
            }
            Ok(v1::GetCapacityResponse {
                available_capacity: encode::bytes(room.available),
                maximum_volume_size: room.maximum_volume_size.map(encode::bytes),
                minimum_volume_size: room.minimum_volume_size.map(encode::bytes),
            })
        },
    ))
}

pub(super) fn expand(
    plugin: &Arc<Plugin>,
    request: v1::ControllerExpandVolumeRequest,
) -> Result<Job<v1::ControllerExpandVolumeResponse>, Error> {
    offered(plugin, "expand volume", |can| can.expand != Expansion::None)?;
    let request = ExpandRequest::try_from(request)?;
    let (connection, id) = plugin.connections.of_volume(&request.volume);
    connection.allow(request.capability.as_slice())?;
    let object = Object::Volume(id.clone());
    let keys = Keys::none().and(connection.name(), object, Hold::Exclusive);
    let subject = about_volume(&connection, request.volume.as_str());
    Ok(Job::new(subject, keys, async move |task| {
        let driver = connection.driver();
        let growth = driver.expand_volume(&task.call, &id, request.size);
        let expanded = task.ask("expand_volume", growth).await?;
        Ok(v1::ControllerExpandVolumeResponse {
            capacity_bytes: encode::bytes(expanded.capacity),
            node_expansion_required: expanded.node_expansion_required,
        })
    }))
}

pub(super) fn publish(
    plugin: &Arc<Plugin>,
    request: v1::ControllerPublishVolumeRequest,
) -> Result<Job<v1::ControllerPublishVolumeResponse>, Error> {
    offered(plugin, "publish volume", |can| can.publish)?;
    let request = ControllerPublishRequest::try_from(request)?;
    let (connection, id) = plugin.connections.of_volume(&request.volume);
    if !connection.driver().capabilities().publish {
        return Err(connection.driver().unsupported("publish volume"));
    }
    connection.allow(std::slice::from_ref(&request.capability))?;
    if request.readonly {
        return Err(Error::invalid("request field `readonly`")
            .advise("PUBLISH_READONLY is not supported by this driver"));
    }
    let object = Object::Volume(id.clone());
    let keys = Keys::none().and(connection.name(), object, Hold::Exclusive);
    let subject = about_volume(&connection, request.volume.as_str());
    Ok(Job::new(subject, keys, async move |task| {
        let driver = connection.driver();
        let access = driver.publish_volume(&task.call, &id, &request.node, &request.capability);
        task.ask("publish_volume", access).await?;
        Ok(v1::ControllerPublishVolumeResponse::default())
    }))
}

pub(super) fn unpublish(
    plugin: &Arc<Plugin>,
    request: v1::ControllerUnpublishVolumeRequest,
) -> Result<Job<v1::ControllerUnpublishVolumeResponse>, Error> {
    offered(plugin, "unpublish volume", |can| can.publish)?;
    let request = ControllerUnpublishRequest::try_from(request)?;
    let (connection, id) = plugin.connections.of_volume(&request.volume);
    if !connection.driver().capabilities().publish {
        return Err(connection.driver().unsupported("unpublish volume"));
    }
    let object = Object::Volume(id.clone());
    let keys = Keys::none().and(connection.name(), object, Hold::Exclusive);
    let subject = about_volume(&connection, request.volume.as_str());
    Ok(Job::new(subject, keys, async move |task| {
        let driver = connection.driver();
        let removal = driver.unpublish_volume(&task.call, &id, request.node.as_ref());
        task.ask("unpublish_volume", removal).await?;
        Ok(v1::ControllerUnpublishVolumeResponse {})
    }))
}
