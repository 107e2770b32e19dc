//! Publishing and unpublishing without a connection: volumes made by hand, whose handles name none,
//! and volumes of a removed connection that gave access to every node.
//!
//! The orchestrator also publishes volumes made by hand if some connection manages access per node.
//! Publishing them needs no action. Unpublishing may concern storage that has no file here yet, or
//! no longer: only the operator can say that such handles belong to no connection. compat: "The
//! proxy".

use std::sync::Arc;
use std::time::Duration;

use csi_proto::v1;
use driver_core::{Error, FindVolume};
use futures_util::{StreamExt, stream};
use tokio::time::{Instant, timeout_at};
use tracing::{debug, warn};

use crate::csi::plugin::Plugin;
use crate::routing::connections::{
    Bare, ConnectionName, Connections, LazyConnection, VolumeHandle,
};
use crate::rpc::in_flight::Keys;
use crate::rpc::{Incoming, Subject, Task};

/// The number of connections that are asked at once. All of most deployments: a person reads the advice.
const AT_ONCE: usize = 64;
/// The time limit for the advice, for all connections together. The call is an error already, and its caller waits 10
/// s.
const PATIENCE: Duration = Duration::from_secs(5);

/// Publishes a volume made by hand: nodes reach it by its context.
pub(super) fn publish(
    plugin: &Plugin,
    incoming: Incoming,
    handle: &VolumeHandle,
) -> Result<v1::ControllerPublishVolumeResponse, Error> {
    let _task = incoming.admit(about(handle), Keys::none())?;
    match plugin.connections.bare() {
        Bare::Nobodys => debug!("the volume was made by hand: its access is not managed here"),
        Bare::Of(name) => debug!(
            "the volume was made by hand: its access is not managed here; connection `{name}` will \
             be asked to detach it"
        ),
        Bare::Unsaid => warn!(
            "the volume was made by hand: its access is not managed here; detaching it will be \
             rejected until `proxy.legacyConnection` is `none`"
        ),
    }
    Ok(v1::ControllerPublishVolumeResponse::default())
}

/// Succeeds for volumes that belong to no connection. For any other it is unknown whether the node
/// still has access: that no current connection has the volume proves nothing about the one that
/// gave access.
pub(super) async fn unpublish(
    plugin: &Plugin,
    incoming: Incoming,
    handle: &VolumeHandle,
) -> Result<v1::ControllerUnpublishVolumeResponse, Error> {
    let task = incoming.admit(about(handle), Keys::none())?;
    if plugin.connections.bare() == Bare::Nobodys {
        debug!("the volume was made by hand: no access has to be revoked");
        return Ok(v1::ControllerUnpublishVolumeResponse::default());
    }
    let of_its_name = of_its_name(plugin, &task, handle).await;
    Err(Connections::cannot_shut_out(handle, &of_its_name))
}

/// The connections that manage access per node and have an object of that name. This is only for
/// the advice: a connection that does not answer changes nothing, and no driver is built for it.
async fn of_its_name(plugin: &Plugin, task: &Task, handle: &VolumeHandle) -> Vec<ConnectionName> {
    let connections = plugin.connections.all().into_iter();
    let there = connections.filter_map(|lazy: Arc<LazyConnection>| lazy.peek());
    let there = there.filter(|connection| connection.can().publish);
    let asked = there.map(|connection| {
        let id = handle.whole().clone();
        async move {
            let found = connection
                .driver()
                .find_volume(&task.call, FindVolume::new(&id));
            let found = task.ask_patiently(&connection, "find_volume", found).await;
            found.ok().map(|_| connection.name().clone())
        }
    });
    let mut asked = stream::iter(asked).buffer_unordered(AT_ONCE);
    let (mut names, until) = (Vec::new(), Instant::now() + PATIENCE);
    while let Ok(Some(found)) = timeout_at(until, asked.next()).await {
        names.extend(found);
    }
    names.sort();
    names
}

fn about(handle: &VolumeHandle) -> Subject {
    Subject {
        volume: Some(handle.as_str().to_owned()),
        ..Subject::default()
    }
}
