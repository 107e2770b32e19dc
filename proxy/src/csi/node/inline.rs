//! Volumes that live and die with a pod.
//!
//! Nothing is remembered of them: which connection has one is asked of all that may. A volume whose pod is
//! gone is unpublished as the kubelet would have it unpublished. compat: "Inline volumes".

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use csi_proto::v1;
use csi_types::{AbsolutePath, Access, VolumeCapability, VolumeContext};
use driver_core::parameters::CONNECTION;
use driver_core::{Call, Error, InlineMount, InlineVolume, Kind, VolumeId};
use node_utils::node::{StagingPath, pods};
use node_utils::{blocking, node};
use tokio_util::task::AbortOnDropHandle;
use tracing::{info, warn};

use super::decode::PublishRequest;
use super::jobs;
use super::service::{is_ephemeral, is_inline};
use crate::csi::plugin::Plugin;
use crate::routing::connection::Connection;
use crate::routing::connections::{ConnectionName, LazyConnection};
use crate::rpc::{Rpc, Task};

/// The interval at which volumes without a pod are searched for. Such a volume is left by a node that lost its power,
/// and costs space alone.
const EVERY: Duration = Duration::from_mins(5);
/// The time that one connection may take to list its volumes. As long as a query may take.
const PATIENCE: Duration = Duration::from_mins(1);

/// The connection that makes a volume for a pod, if that is what is asked for.
pub(super) async fn meant(
    plugin: &Plugin,
    id: &VolumeId,
    context: &VolumeContext,
) -> Result<Option<Arc<Connection>>, Error> {
    if !plugin.connections.is_routed() {
        // Volumes of a connection that is not served are published, too.
        let lazy = plugin.connections.all().into_iter().next();
        let Some(lazy) = lazy.filter(|lazy| lazy.can().inline) else {
            return Ok(None);
        };
        return lazy.open().await.map(Some);
    }
    // In the context of any other volume the key has no meaning.
    let Some(name) = context
        .get(CONNECTION)
        .filter(|_| is_ephemeral(id, context))
    else {
        return Ok(None);
    };
    let refused = || Error::invalid(format!("inline volume `{id}`"));
    if !is_inline(id) {
        return Err(
            refused().because("its handle is not one that the kubelet gives to a volume of a pod")
        );
    }
    let name = ConnectionName::parse(name).map_err(|error| {
        refused()
            .because(error)
            .advise("see the attribute `connection`")
    })?;
    let connection = plugin.connections.named_connection(&name).await;
    let connection = connection.map_err(|error| {
        let advice =
            "this node reads the files of connections only with `proxy.inlineVolumes: true`";
        let advice = error.advice().unwrap_or(advice).to_owned();
        Error::new(error.kind(), format!("inline volume `{id}`"))
            .because(error)
            .advise(advice)
    })?;
    if connection.can().inline {
        return Ok(Some(connection));
    }
    Err(refused()
        .because(format!(
            "connection `{name}` has a driver without inline volumes"
        ))
        .advise("name another one in the attribute `connection`"))
}

/// Refuses what the author of a pod may not ask for.
pub(super) fn allow(
    connection: &Connection,
    id: &VolumeId,
    request: &PublishRequest,
) -> Result<(), Error> {
    let rules = connection.inline_rules();
    rules.allow(id, request.target.path(), &request.context)?;
    connection.allow(std::slice::from_ref(&request.capability))?;
    match &request.capability.access {
        Access::Mount(mount) if !mount.flags.is_empty() => Err(Error::invalid(format!(
            "invalid capability: inline volume `{id}`"
        ))
        .because("a pod cannot give mount options to it")),
        _ => Ok(()),
    }
}

/// Makes a volume, and mounts it at its target.
pub(super) async fn publish(
    plugin: &Plugin,
    task: &Task,
    connection: &Connection,
    id: &VolumeId,
    request: &PublishRequest,
) -> Result<(), Error> {
    let inline = connection.driver().inline();
    let inline = inline.ok_or_else(|| connection.lacks("make inline volume"))?;
    let target = request.target.path();
    let wanted = InlineVolume {
        id,
        target,
        readonly: request.readonly,
        attributes: &request.context,
        secrets: &request.secrets,
    };
    let made = inline.make_inline(&task.call, &wanted);
    match task.ask(connection, "make_inline", made).await? {
        InlineMount::Mounted => Ok(()),
        InlineMount::Attachment(attachment) => {
            let staging = StagingPath::new(target.clone())
                .map_err(|error| Error::invalid(format!("target `{target}`")).because(error))?;
            let wanted = node::StageRequest {
                staging,
                attachment,
                capability: plain(&request.capability),
                secrets: csi_types::StageSecrets::default(),
            };
            let mounted = plugin.node.verbs().stage(jobs::limits(task), wanted).await;
            task.call.outcome(mounted)
        }
    }
}

/// A capability without what other volumes have done for a group when they are mounted.
fn plain(capability: &VolumeCapability) -> VolumeCapability {
    let mut plain = capability.clone();
    if let Access::Mount(mount) = &mut plain.access {
        mount.group = None;
    }
    plain
}

/// The connections that may have a volume of a handle.
#[derive(Debug, Default)]
pub(super) struct Owners {
    known: Vec<Arc<LazyConnection>>,
    /// Why it cannot be said of another one whether it has the volume.
    unknown: Option<Error>,
}

impl Owners {
    /// Those of this process.
    pub(super) fn of(plugin: &Plugin, id: &VolumeId) -> Result<Self, Error> {
        let mut known = plugin.connections.all();
        let unusable = known.iter().find_map(|lazy| lazy.usable().err());
        known.retain(|lazy| lazy.can().inline);
        if !plugin.connections.is_routed() {
            let unknown = unusable.filter(|_| is_inline(id));
            return Ok(Self { known, unknown });
        }
        if !is_inline(id) {
            return Ok(Self::default());
        }
        match plugin.connections.unknown() {
            // One that is not known may have it.
            Some(unknown) => Err(unknown),
            None => Ok(Self {
                known,
                unknown: unusable,
            }),
        }
    }

    /// Whether no connection can have it.
    pub(super) fn are_none(&self) -> bool {
        self.known.is_empty() && self.unknown.is_none()
    }
}

/// Removes what is left of a volume when nothing is mounted at its target any more.
pub(super) async fn remove(
    task: &Task,
    owners: Owners,
    id: &VolumeId,
    target: &AbsolutePath,
) -> Result<(), Error> {
    let mut found = false;
    for lazy in &owners.known {
        let connection = lazy.look().await?;
        if let Some(inline) = connection.driver().inline() {
            // As a rule every connection can be used, and nothing has to be listed.
            if owners.unknown.is_some() && !found {
                let listed = inline.list_inline(&task.call);
                let listed = task.ask(&connection, "list_inline", listed).await?;
                found = listed.iter().any(|volume| volume.id == *id);
            }
            let removal = inline.remove_inline(&task.call, id, target);
            task.ask_for_deletion(&connection, "remove_inline", removal)
                .await?;
        }
    }
    match owners.unknown {
        Some(error) if !found => Err(match error.kind() {
            Kind::Busy => error.advise(
                "it may have the volume: repair its file, or remove it if it has none of any pod",
            ),
            _ => error,
        }),
        _ => Ok(()),
    }
}

/// Unpublishes volumes whose pods are gone, now and then, until what is returned is dropped.
pub(crate) fn reap(plugin: &Arc<Plugin>) -> AbortOnDropHandle<()> {
    let plugin = Arc::clone(plugin);
    AbortOnDropHandle::new(tokio::spawn(async move {
        loop {
            tokio::time::sleep(EVERY).await;
            reap_once(&plugin).await;
        }
    }))
}

/// Unpublishes all volumes whose pods are gone; one that cannot be waits for the next time.
pub(crate) async fn reap_once(plugin: &Arc<Plugin>) {
    for lazy in plugin.connections.all() {
        if !lazy.can().inline {
            continue;
        }
        let listed = async {
            let connection = lazy.look().await?;
            let call = Call::within(PATIENCE);
            match connection.driver().inline() {
                Some(inline) => inline.list_inline(&call).await,
                None => Ok(Vec::new()),
            }
        };
        let found = match listed.await {
            Ok(found) => found,
            Err(error) => {
                let (connection, error) = (lazy.name(), error.chain());
                warn!(%connection, error, "volumes without a pod were not searched for");
                continue;
            }
        };
        for volume in found {
            let target = volume.target.clone();
            let gone = blocking::spawn(move || pods::is_gone(&target)).await;
            if !matches!(gone, Ok(Ok(true))) {
                continue;
            }
            let (id, path) = (volume.id.as_str().to_owned(), volume.target.to_string());
            info!(volume = id, path, "its pod is gone: unpublishing it");
            let request = v1::NodeUnpublishVolumeRequest {
                volume_id: id,
                target_path: path,
            };
            // As if the kubelet had asked: a failure is logged, and tried again.
            let request = tonic::Request::new(request);
            drop(
                plugin
                    .answer(Rpc::NodeUnpublishVolume, request, jobs::unpublish)
                    .await,
            );
        }
    }
}
