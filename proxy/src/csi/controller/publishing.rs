//! `ControllerPublishVolume` and `ControllerUnpublishVolume`.
//!
//! For a backend that gives access to every node these calls change no access, and record the node at most. They are
//! offered all the same: only then does the orchestrator wait with a deletion until no node has the volume. compat:
//! "Attaching", "The proxy".

use std::sync::Arc;

use csi_proto::v1;
use csi_types::NodeIdentity;
use csi_types::attachment::{FENCES_NODES_KEY, Iqn, Nqn};
use driver_core::config::ControllerCapability;
use driver_core::{Effect, Error, FindVolume, Found, Kind, NodeId, PublishVolume, UnpublishVolume};
use tracing::debug;

use super::{about_volume, offered, record_volume, unowned};
use crate::csi::advertise::attaches;
use crate::csi::decode::{ControllerPublishRequest, ControllerUnpublishRequest};
use crate::csi::plugin::Plugin;
use crate::routing::connection::Connection;
use crate::routing::node_id::NodeIdentity as ReportedId;
use crate::rpc::in_flight::{Hold, Keys, Object};
use crate::rpc::{Incoming, Subject, Task};

pub(super) async fn publish(
    plugin: Arc<Plugin>,
    incoming: Incoming,
    request: v1::ControllerPublishVolumeRequest,
) -> Result<v1::ControllerPublishVolumeResponse, Error> {
    record_volume(&request.volume_id);
    asked_for(&plugin, "publish volume")?;
    let request = ControllerPublishRequest::try_from(request)?;
    if request.readonly {
        return Err(Error::invalid("request field `readonly`")
            .advise("PUBLISH_READONLY is not supported by this driver"));
    }
    // Nodes reach it by its context. A volume that a driver created must be published there.
    if request.by_hand && plugin.connections.is_bare_volume(&request.volume) {
        return unowned::publish(&plugin, incoming, &request.volume);
    }
    let (connection, id) = plugin.connections.of_volume(&request.volume).await?;
    // A volume made by hand has no place for a record.
    let is_asked = connection.can().publish && (knows_nodes(&connection) || !request.by_hand);
    let node = if is_asked {
        connection.allow(std::slice::from_ref(&request.capability))?;
        Some(called(&plugin, &connection, &request.node)?)
    } else {
        None
    };
    let object = Object::Volume(id.clone());
    let keys = Keys::none().and(connection.scope(), object, Hold::Exclusive);
    let subject = Subject {
        node: Some(name_of(&plugin, &request.node)),
        ..about_volume(&connection, request.volume.as_str())
    };
    let task = incoming.admit(subject, keys)?;
    if let Some(node) = node {
        let driver = connection.driver();
        // Where a volume made by hand is, its context says.
        let is_fenced = knows_nodes(&connection) && !request.by_hand;
        let request = PublishVolume {
            id: &id,
            node: &node,
            capability: &request.capability,
            readonly: request.readonly,
            secrets: &request.secrets,
        };
        let access = driver.publish_volume(&task.call, request);
        task.ask(&connection, "publish_volume", access).await?;
        return Ok(v1::ControllerPublishVolumeResponse {
            publish_context: is_fenced
                .then(|| (FENCES_NODES_KEY.to_owned(), true.to_string()))
                .into_iter()
                .collect(),
        });
    }
    debug!("every node may reach the volumes of this connection");
    if attaches(&connection.can()) && !request.by_hand {
        let looked_for = FindVolume {
            id: &id,
            secrets: &request.secrets,
        };
        exists(&task, &connection, looked_for).await?;
    }
    Ok(v1::ControllerPublishVolumeResponse::default())
}

/// Refuses to attach a volume that its storage does not have.
async fn exists(
    task: &Task,
    connection: &Connection,
    request: FindVolume<'_>,
) -> Result<(), Error> {
    let found = connection.driver().find_volume(&task.call, request);
    match task.ask(connection, "find_volume", found).await {
        // Some look with the secrets of a class only, which an attachment does not have.
        Err(error) if error.kind() == Kind::Unsupported => Ok(()),
        Err(error) => Err(error),
        Ok(Found::Whole) => Ok(()),
        Ok(Found::Begun) => Err(Error::new(Kind::Busy, format!("volume `{}`", request.id))
            .because("it is not complete: its creation was interrupted")),
    }
}

pub(super) async fn unpublish(
    plugin: Arc<Plugin>,
    incoming: Incoming,
    request: v1::ControllerUnpublishVolumeRequest,
) -> Result<v1::ControllerUnpublishVolumeResponse, Error> {
    record_volume(&request.volume_id);
    asked_for(&plugin, "unpublish volume")?;
    let request = ControllerUnpublishRequest::try_from(request)?;
    if plugin.connections.is_stray_volume(&request.volume) {
        return unowned::unpublish(&plugin, incoming, &request.volume).await;
    }
    let is_bare = plugin.connections.is_bare_volume(&request.volume);
    let (connection, id) = plugin.connections.of_volume(&request.volume).await?;
    let from = request.node.as_ref().map(|node| name_of(&plugin, node));
    // A driver without records is not asked, whatever the node is called there.
    let node = match request.node.as_ref().filter(|_| connection.can().publish) {
        None => Ok(None),
        Some(node) => called(&plugin, &connection, node)
            .map(Some)
            .map_err(|error| unknown_name(&connection, node, &error)),
    };
    let object = Object::Volume(id.clone());
    let keys = Keys::none().and(connection.scope(), object, Hold::Exclusive);
    let subject = Subject {
        node: from,
        ..about_volume(&connection, request.volume.as_str())
    };
    let task = incoming.admit(subject, keys)?;
    if connection.can().publish {
        let driver = connection.driver();
        let looked_for = FindVolume {
            id: &id,
            secrets: &request.secrets,
        };
        let node = match node {
            Ok(node) => node,
            // For a deleted volume, the access of all nodes is revoked.
            Err(error) => {
                let found = driver.find_volume(&task.call, looked_for);
                match task.ask(&connection, "find_volume", found).await {
                    Err(gone) if gone.kind() == Kind::NotFound => None,
                    Err(foreign) if is_bare && foreign.kind() == Kind::Invalid => None,
                    _ => return Err(error),
                }
            }
        };
        let removal = driver.unpublish_volume(
            &task.call,
            UnpublishVolume {
                id: &id,
                node: node.as_ref(),
                secrets: &request.secrets,
            },
        );
        match task.ask(&connection, "unpublish_volume", removal).await {
            Err(error)
                if (is_bare || !knows_nodes(&connection))
                    && is_foreign(&task, &connection, looked_for, &error).await =>
            {
                debug!("no driver of this connection issues such ids");
            }
            ended => ended?,
        }
    } else {
        debug!("every node may reach the volumes of this connection");
    }
    Ok(v1::ControllerUnpublishVolumeResponse {})
}

/// The name of the node at the backend is unknown: it got access under a name that the
/// configuration no longer contains. Revoking another name would report success without effect.
/// This is not `NotFound`, because some orchestrators take that for success.
fn unknown_name(connection: &Connection, node: &NodeId, error: &Error) -> Error {
    let doing = format!("revoke access of node `{node}`");
    Error::new(Kind::Busy, doing)
        .because(format!(
            "connection `{}` has no name for that node at its backend: {}",
            connection.name(),
            error.chain()
        ))
        .advise(
            "put its entry back in `proxy.perDriver.nodeIdMap`, or whatever named it when the volume was \
             published, until the volume is unpublished there",
        )
}

/// Whether a driver rejects an id that it cannot have issued: it was chosen by a person, for a
/// volume made by hand, and no access has to be revoked for that one.
async fn is_foreign(
    task: &Task,
    connection: &Connection,
    request: FindVolume<'_>,
    error: &Error,
) -> bool {
    if (error.kind(), error.effect()) != (Kind::Invalid, Effect::None) {
        return false;
    }
    let found = connection.driver().find_volume(&task.call, request);
    let found = task.ask(connection, "find_volume", found).await;
    found.is_err_and(|error| matches!(error.kind(), Kind::Invalid | Kind::NotFound))
}

/// Whether the storage gives access to some nodes only.
fn knows_nodes(connection: &Connection) -> bool {
    let driver = connection.driver();
    driver
        .publisher()
        .is_some_and(driver_core::Publisher::knows_nodes)
}

/// Rejects a call that no orchestrator makes without the advertised capability.
fn asked_for(plugin: &Plugin, verb: &'static str) -> Result<(), Error> {
    offered(plugin, verb, attaches)?;
    let advertised = plugin.advertised()?;
    if plugin.connections.is_routed()
        && !advertised
            .controller
            .contains(&ControllerCapability::PublishUnpublishVolume)
    {
        return Err(Error::unsupported(verb));
    }
    Ok(())
}

/// The name of a node, for people.
fn name_of(plugin: &Plugin, node: &NodeId) -> String {
    let reported = plugin.info.ids().and_then(|ids| ids.read(node));
    let name = reported.and_then(|identity| identity.node_name);
    name.unwrap_or_else(|| node.as_str().to_owned())
}

/// The name of a node at the backend of a connection. A backend that gives access to every node has none for it, or
/// any.
fn called(plugin: &Plugin, connection: &Connection, node: &NodeId) -> Result<NodeIdentity, Error> {
    match named(plugin, connection, node) {
        Err(_) if !knows_nodes(connection) => Ok(NodeIdentity::of(node.clone())),
        named => named,
    }
}

/// The name of a node at the backend of a connection. An id without parts is the name of a node, as
/// without the proxy. compat: "Node ids of the proxy".
fn named(plugin: &Plugin, connection: &Connection, node: &NodeId) -> Result<NodeIdentity, Error> {
    let Some(ids) = plugin.info.ids() else {
        // The id of such a node is its name.
        return Ok(NodeIdentity {
            name: Some(node.as_str().to_owned()),
            ..NodeIdentity::of(node.clone())
        });
    };
    let reported = match ids.read(node) {
        Some(identity) => identity,
        None if !node.as_str().contains('=') => ReportedId {
            node_name: Some(node.as_str().to_owned()),
            ..ReportedId::default()
        },
        None => {
            return Err(Error::not_found(format!("node `{node}`"))
                .because("no node of this driver has such an id"));
        }
    };
    let id = connection.nodes().of(node, &reported)?;
    Ok(NodeIdentity {
        iqn: reported.iqn.and_then(|text| Iqn::parse(&text).ok()),
        nqn: reported.nqn.and_then(|text| Nqn::parse(&text).ok()),
        name: reported.node_name,
        addresses: reported.addresses,
        reported: node.clone(),
        id,
    })
}
