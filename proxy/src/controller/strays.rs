//! Publishing and unpublishing of volumes whose handles name no connection, where
//! `proxy.legacyConnection` names none for them.
//!
//! The orchestrator asks for volumes made by hand, too, because some connection lets its nodes in one
//! by one. Those need nothing; but what shuts a node out may be storage that has no file here yet, or
//! none any more: that handles are nobody's is for the operator to say. compat: "The proxy".

use std::sync::Arc;

use csi_proto::v1;
use futures_util::{StreamExt, stream};
use tracing::{debug, warn};

use crate::connections::{ConnectionName, Connections, Slot, VolumeHandle};
use crate::inflight::Keys;
use crate::rpc::{Job, Subject, Task};
use crate::service::Plugin;

/// How many connections are asked at once.
const AT_ONCE: usize = 8;

/// Nodes reach a volume made by hand as its context says.
pub(super) fn publish(
    plugin: &Plugin,
    handle: &VolumeHandle,
) -> Job<v1::ControllerPublishVolumeResponse> {
    let is_said = plugin.connections.strays_are_nobodys();
    Job::new(about(handle), Keys::none(), async move |_| {
        if is_said {
            debug!("whoever has made the volume by hand has let its nodes in");
        } else {
            warn!(
                "whoever has made the volume by hand has let its nodes in; to detach it will be \
                 refused until `proxy.legacyConnection` is `none`"
            );
        }
        Ok(v1::ControllerPublishVolumeResponse::default())
    })
}

/// A node is shut out of what is nobody's. Of anything else it is not known to be: that no storage of
/// today has it proves nothing about the one that let the node in.
pub(super) fn unpublish(
    plugin: &Arc<Plugin>,
    handle: &VolumeHandle,
) -> Job<v1::ControllerUnpublishVolumeResponse> {
    let (subject, plugin, handle) = (about(handle), plugin.clone(), handle.clone());
    Job::new(subject, Keys::none(), async move |task| {
        if plugin.connections.strays_are_nobodys() {
            debug!("the volume was made by hand: nobody has let its nodes in");
            return Ok(v1::ControllerUnpublishVolumeResponse::default());
        }
        let of_its_name = of_its_name(&plugin, &task, &handle).await;
        Err(Connections::cannot_shut_out(&handle, &of_its_name))
    })
}

/// The connections that let nodes in one by one and have something of that name: for the advice only, so
/// that one that does not answer changes nothing.
async fn of_its_name(plugin: &Plugin, task: &Task, handle: &VolumeHandle) -> Vec<ConnectionName> {
    let asked = plugin.connections.all().into_iter().map(|slot: Arc<Slot>| {
        let id = handle.whole().clone();
        async move {
            let connection = slot.look().await.ok()?;
            if !connection.can().publish {
                return None;
            }
            let found = connection.driver().find_volume(&task.call, &id);
            let found = task.ask_patiently(&connection, "find_volume", found).await;
            found.ok().map(|_| connection.name().clone())
        }
    });
    let found = stream::iter(asked).buffered(AT_ONCE);
    found.filter_map(std::future::ready).collect().await
}

fn about(handle: &VolumeHandle) -> Subject {
    Subject {
        volume: Some(handle.as_str().to_owned()),
        ..Subject::default()
    }
}
