//! Publishing and unpublishing of volumes of which no connection has to be asked: those made by hand, whose
//! handles name none, and those of a connection that is gone and had let every node in.
//!
//! The orchestrator asks for volumes made by hand, too, because some connection lets its nodes in one
//! by one. Those need nothing; but what shuts a node out may be storage that has no file here yet, or
//! none any more: that handles are nobody's is for the operator to say. compat: "The proxy".

use std::sync::Arc;
use std::time::Duration;

use csi_proto::v1;
use futures_util::{StreamExt, stream};
use tokio::time::{Instant, timeout_at};
use tracing::{debug, warn};

use crate::csi::plugin::Plugin;
use crate::routing::connections::{
    Bare, ConnectionName, Connections, LazyConnection, VolumeHandle,
};
use crate::rpc::in_flight::Keys;
use crate::rpc::{Job, Subject, Task};

/// How many connections are asked at once.
const AT_ONCE: usize = 64;
/// How long they are asked for the sake of advice, all of them together.
const PATIENCE: Duration = Duration::from_secs(5);

/// Nodes reach a volume made by hand as its context says.
pub(super) fn publish(
    plugin: &Plugin,
    handle: &VolumeHandle,
) -> Job<v1::ControllerPublishVolumeResponse> {
    let bare = plugin.connections.bare();
    Job::new(about(handle), Keys::none(), async move |_| {
        match bare {
            Bare::Nobodys => debug!("whoever has made the volume by hand has let its nodes in"),
            Bare::Of(name) => debug!(
                "whoever has made the volume by hand has let its nodes in; to detach it, connection \
                 `{name}` is asked"
            ),
            Bare::Unsaid => warn!(
                "whoever has made the volume by hand has let its nodes in; to detach it will be \
                 refused until `proxy.legacyConnection` is `none`"
            ),
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
        if plugin.connections.bare() == Bare::Nobodys {
            debug!("the volume was made by hand: nobody has let its nodes in");
            return Ok(v1::ControllerUnpublishVolumeResponse::default());
        }
        let of_its_name = of_its_name(&plugin, &task, &handle).await;
        Err(Connections::cannot_shut_out(&handle, &of_its_name))
    })
}

/// The connections that let nodes in one by one and have something of that name: for the advice only, so
/// that one that does not answer changes nothing, and no driver is built for it.
async fn of_its_name(plugin: &Plugin, task: &Task, handle: &VolumeHandle) -> Vec<ConnectionName> {
    let connections = plugin.connections.all().into_iter();
    let there = connections.filter_map(|lazy: Arc<LazyConnection>| lazy.peek());
    let there = there.filter(|connection| connection.can().publish);
    let asked = there.map(|connection| {
        let id = handle.whole().clone();
        async move {
            let found = connection.driver().find_volume(&task.call, &id);
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

/// What a connection that is gone had nothing to do for.
pub(super) fn of_one_that_was_open<T: Default + Send + 'static>(handle: &VolumeHandle) -> Job<T> {
    Job::new(about(handle), Keys::none(), async move |_| {
        debug!("its connection is gone, and had let every node in");
        Ok(T::default())
    })
}

fn about(handle: &VolumeHandle) -> Subject {
    Subject {
        volume: Some(handle.as_str().to_owned()),
        ..Subject::default()
    }
}
