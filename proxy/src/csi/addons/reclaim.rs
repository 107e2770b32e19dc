//! Space that a volume does not need any more: a filesystem on a disk gives it back on its node. A controller has nothing to
//! do.

use std::sync::Arc;

use csi_proto::reclaimspace::{
    ControllerReclaimSpaceRequest, ControllerReclaimSpaceResponse, NodeReclaimSpaceRequest,
    NodeReclaimSpaceResponse,
};
use driver_core::{Error, FindVolume, Kind};
use tracing::{debug, info};

use crate::csi::controller::about_volume;
use crate::csi::decode::{NodeReclaimRequest, ReclaimRequest};
use crate::csi::node::jobs::{about, at_target, limits, with_volume};
use crate::csi::plugin::Plugin;
use crate::rpc::Incoming;
use crate::rpc::in_flight::{Hold, Keys};

pub(super) async fn controller(
    plugin: Arc<Plugin>,
    incoming: Incoming,
    request: ControllerReclaimSpaceRequest,
) -> Result<ControllerReclaimSpaceResponse, Error> {
    let request = ReclaimRequest::try_from(request)?;
    let (connection, id) = plugin.connections.of_volume(&request.volume).await?;
    let subject = about_volume(&connection, request.volume.as_str());
    let task = incoming.admit(subject, Keys::none())?;
    let driver = connection.driver();
    let looked_for = FindVolume {
        id: &id,
        secrets: &request.secrets,
    };
    let found = driver.find_volume(&task.call, looked_for);
    match task.ask(&connection, "find_volume", found).await {
        Ok(_) => {}
        // A volume that is made by hand has no controller.
        Err(error) if error.kind() == Kind::Unsupported || !connection.can().volumes => {}
        Err(error) => return Err(error),
    }
    // csi-addons asks it after the node, when all is given back. What the volume takes now, said as before and after, would
    // be shown as nothing reclaimed.
    Ok(ControllerReclaimSpaceResponse::default())
}

pub(super) async fn node(
    plugin: Arc<Plugin>,
    incoming: Incoming,
    request: NodeReclaimSpaceRequest,
) -> Result<NodeReclaimSpaceResponse, Error> {
    let request = NodeReclaimRequest::try_from(request)?;
    let subject = about(&plugin, &request.volume, Some(&request.path));
    let (verbs, id) = (plugin.node.verbs().clone(), request.volume.on_node());
    if request.is_raw {
        let _task = incoming.admit(subject, Keys::none())?;
        debug!("a raw device is not trimmed: only its pod knows which of its blocks are unused");
        return Ok(NodeReclaimSpaceResponse::default());
    }
    // It is not unmounted while it is trimmed, and two do not trim it at once.
    let keys = at_target(&id, &request.path, Hold::Shared);
    let task = incoming.admit(subject, keys)?;
    let trimmed = verbs.trim(limits(&task), request.path).await;
    let trimmed = trimmed.map_err(|error| with_volume(&id, error))?;
    let bytes = trimmed.unwrap_or_default();
    info!(bytes, "trimmed the filesystem of the volume");
    // What the volume takes on its storage is not known here.
    Ok(NodeReclaimSpaceResponse::default())
}
