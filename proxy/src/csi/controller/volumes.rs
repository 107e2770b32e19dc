//! Calls about one volume that exists.

use std::sync::Arc;

use csi_proto::v1;
use csi_types::{Attachment, VolumeContext};
use driver_core::text::MAX_STRING;
use driver_core::{
    DeleteVolume, Effect, Error, ExpandVolume, Expanded, Expansion, FindVolume, Found, Kind,
    Modifier, ModifyVolume, Parameters, SizeRange, VolumeId,
};
use tracing::info;

use super::{about_volume, health, offered, offered_by_any, record_volume};
use crate::csi::decode::{self, ExpandRequest, ModifyRequest, ValidateRequest};
use crate::csi::encode;
use crate::csi::plugin::Plugin;
use crate::message::{self, printable_within};
use crate::routing::connection::Connection;
use crate::rpc::in_flight::{Hold, Keys, Object};
use crate::rpc::{Incoming, Subject};

pub(super) async fn delete(
    plugin: Arc<Plugin>,
    incoming: Incoming,
    request: v1::DeleteVolumeRequest,
) -> Result<v1::DeleteVolumeResponse, Error> {
    record_volume(&request.volume_id);
    offered(&plugin, "delete volume", |can| can.volumes)?;
    let (handle, secrets) = decode::delete_volume(request)?;
    let (connection, id) = plugin.connections.owner_of_volume(&handle).await?;
    if !connection.can().volumes {
        return Err(connection.lacks("delete volume"));
    }
    let object = Object::Volume(id.clone());
    let keys = Keys::none().and(connection.scope(), object, Hold::Exclusive);
    let subject = about_volume(&connection, handle.as_str());
    let task = incoming.admit(subject, keys)?;
    if connection.retains() {
        info!("kept the volume on its storage: `_private.csi.volume.deleteStrategy` is `retain`");
    } else {
        let driver = connection.driver();
        let deletion = driver.delete_volume(
            &task.call,
            DeleteVolume {
                id: &id,
                secrets: &secrets,
            },
        );
        task.ask_for_deletion(&connection, "delete_volume", deletion)
            .await?;
    }
    Ok(v1::DeleteVolumeResponse {})
}

pub(super) async fn get(
    plugin: Arc<Plugin>,
    incoming: Incoming,
    request: v1::ControllerGetVolumeRequest,
) -> Result<v1::ControllerGetVolumeResponse, Error> {
    offered(&plugin, "get volume", |can| can.get_volume)?;
    let handle = decode::get_volume(&request)?;
    let (connection, id) = plugin.connections.of_volume(&handle).await?;
    if !connection.can().get_volume {
        return Err(connection.lacks("get volume"));
    }
    let subject = about_volume(&connection, handle.as_str());
    let with_condition = plugin.advertised()?.has_condition(&plugin.connections);
    let task = incoming.admit(subject, Keys::none())?;
    let found = connection.driver().get_volume(&task.call, &id);
    let found = task.ask(&connection, "get_volume", found).await?;
    let condition = if with_condition {
        Some(health::of_one(&task, &connection, &id).await?)
    } else {
        None
    };
    let mut volume = encode::volume(&connection, &found);
    // Under another name of its connection it is still the requested volume.
    handle.as_str().clone_into(&mut volume.volume_id);
    Ok(v1::ControllerGetVolumeResponse {
        volume: Some(volume),
        status: Some(v1::controller_get_volume_response::VolumeStatus {
            published_node_ids: encode::published_to(&found),
            volume_condition: condition,
        }),
    })
}

pub(super) async fn validate(
    plugin: Arc<Plugin>,
    incoming: Incoming,
    request: v1::ValidateVolumeCapabilitiesRequest,
) -> Result<v1::ValidateVolumeCapabilitiesResponse, Error> {
    let request = ValidateRequest::try_from(request)?;
    let (connection, id) = plugin.connections.of_volume(&request.volume).await?;
    let subject = about_volume(&connection, request.volume.as_str());
    let task = incoming.admit(subject, Keys::none())?;
    let driver = connection.driver();
    let mut wrong = None;
    if connection.can().get_volume && !request.echo.volume_context.is_empty() {
        let found = driver.get_volume(&task.call, &id);
        let volume = task.ask(&connection, "get_volume", found).await?;
        wrong = other_way(&volume.attachment, &request.echo.volume_context);
    } else {
        let found = driver.find_volume(
            &task.call,
            FindVolume {
                id: &id,
                secrets: &request.secrets,
            },
        );
        let found = task.ask(&connection, "find_volume", found).await?;
        if found == Found::Begun {
            return Err(Error::not_found(format!("volume `{id}`")).because("it is not complete"));
        }
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
}

/// A key of the context that differs from the attachment of the volume, which must not be
/// confirmed. Keys that are not part of the attachment belong to the orchestrator.
fn other_way(attachment: &Attachment, context: &VolumeContext) -> Option<String> {
    let differs = |(key, value): &(String, String)| context.get(key).is_some_and(|v| v != value);
    let (key, _) = attachment.to_context().into_iter().find(differs)?;
    Some(format!("this volume has another `{key}` in its context"))
}

pub(super) async fn expand(
    plugin: Arc<Plugin>,
    incoming: Incoming,
    request: v1::ControllerExpandVolumeRequest,
) -> Result<v1::ControllerExpandVolumeResponse, Error> {
    record_volume(&request.volume_id);
    offered(&plugin, "expand volume", |can| {
        !matches!(can.expand, Expansion::None | Expansion::Node)
    })?;
    let request = ExpandRequest::try_from(request)?;
    let (connection, id) = plugin.connections.owner_of_volume(&request.volume).await?;
    if connection.can().expand == Expansion::None {
        return Err(connection.lacks("expand volume"));
    }
    connection.allow(request.capability.as_slice())?;
    let object = Object::Volume(id.clone());
    let keys = Keys::none().and(connection.scope(), object, Hold::Exclusive);
    let subject = Subject {
        size: request.size.required(),
        ..about_volume(&connection, request.volume.as_str())
    };
    let task = incoming.admit(subject, keys)?;
    let driver = connection.driver();
    let growth = driver.expand_volume(
        &task.call,
        ExpandVolume {
            id: &id,
            size: request.size,
            secrets: &request.secrets,
        },
    );
    let expanded = match task.ask(&connection, "expand_volume", growth).await {
        Ok(expanded) => expanded,
        Err(error) => left_to_its_node(&connection, &id, request.size, error)?,
    };
    Ok(v1::ControllerExpandVolumeResponse {
        capacity_bytes: encode::bytes(expanded.capacity),
        node_expansion_required: expanded.node_expansion_required,
    })
}

/// The growth of a volume that this node does not have, if it may be storage of another one: behind the proxy one
/// controller is asked about the volumes of all nodes. Nothing is done here; the node of the volume has to do it.
fn left_to_its_node(
    connection: &Connection,
    id: &VolumeId,
    size: SizeRange,
    error: Error,
) -> Result<Expanded, Error> {
    // `Internal` is also that of a node without the programs of the storage.
    let is_not_here = matches!(
        error.kind(),
        Kind::NotFound | Kind::Unreachable | Kind::Internal
    );
    let expander = connection.driver().expander();
    let may_be_elsewhere = expander.is_some_and(|expander| expander.may_be_elsewhere(id));
    match size.required() {
        Some(capacity)
            if is_not_here
                && may_be_elsewhere
                && connection.is_routed()
                && error.effect() == Effect::None =>
        {
            info!(
                error = message::without_advice(&error),
                "left the growth to the node of the volume"
            );
            Ok(Expanded {
                capacity,
                node_expansion_required: true,
            })
        }
        _ => Err(error),
    }
}

pub(super) async fn modify(
    plugin: Arc<Plugin>,
    incoming: Incoming,
    request: v1::ControllerModifyVolumeRequest,
) -> Result<v1::ControllerModifyVolumeResponse, Error> {
    record_volume(&request.volume_id);
    offered_by_any(&plugin, "modify volume", |can| can.modify)?;
    let request = ModifyRequest::try_from(request)?;
    let (connection, id) = plugin.connections.owner_of_volume(&request.volume).await?;
    let Some(modifier) = connection.driver().modifier() else {
        return Err(connection.lacks("modify volume"));
    };
    let of_new = connection.driver().class_keys();
    only_mutable(modifier, of_new, &request.parameters, || {
        format!("modify volume `{id}`")
    })?;
    let object = Object::Volume(id.clone());
    let keys = Keys::none().and(connection.scope(), object, Hold::Exclusive);
    let subject = about_volume(&connection, request.volume.as_str());
    let task = incoming.admit(subject, keys)?;
    let driver = connection.driver();
    let change = driver.modify_volume(
        &task.call,
        ModifyVolume {
            id: &id,
            parameters: &request.parameters,
            secrets: &request.secrets,
        },
    );
    task.ask(&connection, "modify_volume", change).await?;
    Ok(v1::ControllerModifyVolumeResponse {})
}

/// Refuses a mutable parameter that cannot be changed: whatever a class of attributes says, volumes can be given later, too.
/// `of_new` are the parameters that count for new volumes.
pub(super) fn only_mutable(
    modifier: &dyn Modifier,
    of_new: &[&str],
    parameters: &Parameters,
    doing: impl Fn() -> String,
) -> Result<(), Error> {
    let mutable = modifier.mutable_keys();
    let fixed = |key: &&String| !mutable.contains(&key.as_str());
    match parameters.raw().keys().find(fixed) {
        None => Ok(()),
        Some(key) => {
            let why = if of_new.contains(&key.as_str()) {
                ": a volume keeps what the StorageClass gave it when it was made"
            } else {
                ""
            };
            let key = key.escape_debug();
            Err(Error::invalid(doing())
                .because(format!("parameter `{key}` is not mutable{why}"))
                .advise(format!(
                    "the mutable parameters are: {}",
                    mutable.join(", ")
                )))
        }
    }
}
