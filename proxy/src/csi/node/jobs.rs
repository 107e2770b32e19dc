//! The work of the calls of a node, and what each holds exclusively.
//!
//! The guard moves into the work: a thread that hangs in a system call and may still change
//! something keeps its volume locked after its caller got `DeadlineExceeded`.

use std::sync::{Arc, LazyLock};

use csi_proto::v1;
use csi_types::{AbsolutePath, Attachment};
use driver_core::config::NodeCapability;
use driver_core::{Effect, Error, ExpandVolume, Expansion, Kind, VolumeId};
use node_utils::{Limits, blocking, node};
use tracing::warn;

use crate::csi::decode::{self, NodeExpandRequest, PublishRequest, StageRequest, UnpublishRequest};
use crate::csi::encode;
use crate::csi::node::inline::{self, Owners};
use crate::csi::node::service::for_staging;
use crate::csi::plugin::Plugin;
use crate::message;
use crate::routing::connection::Connection;
use crate::routing::connections::VolumeHandle;
use crate::rpc::in_flight::{Hold, Keys, Object};
use crate::rpc::{Incoming, Subject, Task};

pub(super) async fn stage(
    plugin: Arc<Plugin>,
    incoming: Incoming,
    request: v1::NodeStageVolumeRequest,
) -> Result<v1::NodeStageVolumeResponse, Error> {
    let request = StageRequest::try_from(request)?;
    let subject = about(&plugin, &request.volume, Some(request.staging.path()));
    let (node, id) = (&plugin.node, request.volume.on_node());
    let (context, mut attachment) = node.attachment(&id, &request.context)?;
    if let Attachment::Nvmeof(volume) = &mut attachment {
        // Who writes the context of a volume cannot claim it.
        volume.is_fenced = request.is_fenced;
    }
    node.allow_attached(&attachment, &request.capability)?;
    let verbs = node.verbs_for(&id, context)?;
    let secret = node.secret_flags(context, &request.secrets)?;
    let capability = for_staging(&verbs, node.on_node(request.capability), &secret);
    let secrets = node.stage_secrets(&attachment, context, &request.secrets)?;
    let keys = alone(&id, request.staging.path());
    let task = incoming.admit(subject, keys)?;
    let is_directory = matches!(attachment, Attachment::Hostpath(_));
    if !secret.is_empty() && takes_no_flags_when_staged(&attachment) {
        let dropped = secret.iter().count();
        warn!(
            dropped,
            "ignored the mount options of the stage secret: a directory takes its options when it is \
             published"
        );
    }
    let wanted = node::StageRequest {
        staging: request.staging,
        attachment,
        capability,
        secrets,
    };
    if let Err(error) = verbs.stage(limits(&task), wanted).await {
        let error = if is_directory && error.kind() == Kind::NotFound {
            why_missing(&plugin, &task, &request.volume, error).await
        } else {
            error
        };
        return Err(with_volume(&id, error));
    }
    Ok(v1::NodeStageVolumeResponse {})
}

/// The error of a directory that is not there. That its base is not mounted looks the same here; its driver knows.
async fn why_missing(plugin: &Plugin, task: &Task, volume: &VolumeHandle, error: Error) -> Error {
    let Ok((connection, _)) = plugin.connections.of_volume(volume).await else {
        return error;
    };
    let probe = async { Ok(connection.driver().probe(&task.call).await) };
    let problems = task.ask(&connection, "probe", probe).await;
    let mut problems = problems.into_iter().flatten();
    let away = problems.find(|problem| problem.kind() == Kind::Unreachable);
    away.map_or(error, |problem| connection.explain(problem))
}

/// compat: "Mount flags".
fn takes_no_flags_when_staged(attachment: &Attachment) -> bool {
    matches!(attachment, Attachment::Hostpath(_))
}

pub(super) async fn unstage(
    plugin: Arc<Plugin>,
    incoming: Incoming,
    request: v1::NodeUnstageVolumeRequest,
) -> Result<v1::NodeUnstageVolumeResponse, Error> {
    let (handle, staging) = decode::unstage(&request)?;
    let (verbs, id) = (plugin.node.verbs().clone(), handle.on_node());
    let keys = alone(&id, staging.path());
    let subject = about(&plugin, &handle, Some(staging.path()));
    let task = incoming.admit(subject, keys)?;
    let unstaged = verbs.unstage(limits(&task), staging).await;
    unstaged.map_err(|error| with_volume(&id, error))?;
    Ok(v1::NodeUnstageVolumeResponse {})
}

pub(super) async fn publish(
    plugin: Arc<Plugin>,
    incoming: Incoming,
    request: v1::NodePublishVolumeRequest,
) -> Result<v1::NodePublishVolumeResponse, Error> {
    let request = PublishRequest::try_from(request)?;
    let subject = about(&plugin, &request.volume, Some(request.target.path()));
    let (node, id) = (&plugin.node, request.volume.on_node());
    if let Some(connection) = inline::meant(&plugin, &id, &request.context).await? {
        return publish_inline(&plugin, incoming, subject, connection, request).await;
    }
    let (context, attachment) = node.attachment(&id, &request.context)?;
    node.allow_attached(&attachment, &request.capability)?;
    // An inline volume has none, and is rejected: its attributes come from the author of the pod.
    let staging = request.staging.ok_or_else(|| unstaged(&id))?;
    let verbs = node.verbs_for(&id, context)?;
    // Two calls for one volume must not both find it unpublished.
    let hold = if request.capability.mode.has_one_target() {
        Hold::Exclusive
    } else {
        Hold::Shared
    };
    let keys = at_target(&id, request.target.path(), hold);
    let wanted = node::PublishRequest {
        staging,
        target: request.target,
        attachment,
        capability: node.on_node(request.capability),
        readonly: request.readonly,
    };
    let task = incoming.admit(subject, keys)?;
    let published = verbs.publish(limits(&task), wanted).await;
    published.map_err(|error| with_volume(&id, error))?;
    Ok(v1::NodePublishVolumeResponse {})
}

async fn publish_inline(
    plugin: &Plugin,
    incoming: Incoming,
    subject: Subject,
    connection: Arc<Connection>,
    request: PublishRequest,
) -> Result<v1::NodePublishVolumeResponse, Error> {
    let id = request.volume.on_node();
    inline::allow(&connection, &id, &request)?;
    let subject = Subject {
        connection: connection.name().text().clone(),
        ..subject
    };
    let keys = alone(&id, request.target.path());
    let task = incoming.admit(subject, keys)?;
    let published = inline::publish(plugin, &task, &connection, &id, &request).await;
    published.map_err(|error| with_volume(&id, error))?;
    Ok(v1::NodePublishVolumeResponse {})
}

fn unstaged(id: &VolumeId) -> Error {
    Error::new(Kind::Busy, format!("volume `{id}`"))
        .because(MissingStage)
        .advise("this plugin stages volumes; stage it first")
}

/// The code for this is not the one for a missing field: the specification has its own.
#[derive(Debug, thiserror::Error)]
#[error("request field `staging_target_path` is missing")]
struct MissingStage;

pub(super) async fn unpublish(
    plugin: Arc<Plugin>,
    incoming: Incoming,
    request: v1::NodeUnpublishVolumeRequest,
) -> Result<v1::NodeUnpublishVolumeResponse, Error> {
    let request = UnpublishRequest::try_from(request)?;
    let (verbs, id) = (plugin.node.verbs().clone(), request.volume.on_node());
    let owners = Owners::of(&plugin, &id)?;
    let hold = if owners.are_none() {
        Hold::Shared
    } else {
        Hold::Exclusive
    };
    let keys = at_target(&id, request.target.path(), hold);
    let subject = about(&plugin, &request.volume, Some(request.target.path()));
    let task = incoming.admit(subject, keys)?;
    let target = request.target.path().clone();
    let removed = verbs.unpublish(limits(&task), request.target).await;
    removed.map_err(|error| with_volume(&id, error))?;
    let removed = inline::remove(&task, owners, &id, &target).await;
    removed.map_err(|error| with_volume(&id, error.with_effect(Effect::Possible)))?;
    Ok(v1::NodeUnpublishVolumeResponse {})
}

pub(super) async fn stats(
    plugin: Arc<Plugin>,
    incoming: Incoming,
    request: v1::NodeGetVolumeStatsRequest,
) -> Result<v1::NodeGetVolumeStatsResponse, Error> {
    let (handle, path) = decode::stats(&request)?;
    let id = handle.on_node();
    let Some(path) = path else {
        return Err(nowhere(&id));
    };
    let subject = about(&plugin, &handle, Some(&path));
    let task = incoming.admit(subject, Keys::none())?;
    let verbs = plugin.node.verbs();
    let advertised = plugin.advertised_on_node();
    if !advertised.node.contains(&NodeCapability::VolumeCondition) {
        let found = verbs.stats(limits(&task), path).await;
        let stats = found.map_err(|error| with_volume(&id, error))?;
        return Ok(encode::stats(&stats, None));
    }
    // The kubelet asks for one volume after the other.
    let found = verbs.stats_soon(limits(&task), path.clone()).await;
    let stats = found.map_err(|error| with_volume(&id, error))?;
    // The numbers are not lost for a device that cannot be looked at.
    Ok(match verbs.device_conditions(limits(&task), path).await {
        Ok(mut conditions) => {
            conditions.extend(stats.conditions.iter().cloned());
            encode::stats(&stats, Some(encode::condition(&conditions)))
        }
        Err(error) => {
            let error = message::of(&with_volume(&id, error));
            encode::stats(&stats, Some(encode::unknown(&error)))
        }
    })
}

pub(super) async fn health(
    plugin: Arc<Plugin>,
    incoming: Incoming,
    request: v1::NodeGetVolumeHealthRequest,
) -> Result<v1::NodeGetVolumeHealthResponse, Error> {
    let (handle, paths) = decode::node_health(&request)?;
    let id = handle.on_node();
    let subject = about(&plugin, &handle, paths.first());
    let task = incoming.admit(subject, Keys::none())?;
    let found = plugin.node.verbs().conditions(limits(&task), &paths).await;
    let conditions = found.map_err(|error| with_volume(&id, error))?;
    Ok(v1::NodeGetVolumeHealthResponse {
        volume_health: Some(encode::health(handle.as_str().to_owned(), &conditions)),
    })
}

/// The storages of all connections that have volumes on this node. No secret is needed to look at them.
pub(super) async fn storage_health(
    plugin: Arc<Plugin>,
    incoming: Incoming,
    _: v1::NodeGetStorageHealthRequest,
) -> Result<v1::NodeGetStorageHealthResponse, Error> {
    let task = incoming.admit(Subject::default(), Keys::none())?;
    let (verbs, name) = (plugin.node.verbs(), plugin.name.as_str());
    let found = verbs.storage_conditions(limits(&task), name).await?;
    Ok(encode::storage_health(&found))
}

pub(super) async fn expand(
    plugin: Arc<Plugin>,
    incoming: Incoming,
    request: v1::NodeExpandVolumeRequest,
) -> Result<v1::NodeExpandVolumeResponse, Error> {
    let request = NodeExpandRequest::try_from(request)?;
    let subject = Subject {
        size: request.size.required(),
        ..about(&plugin, &request.volume, request.path.as_ref())
    };
    let (verbs, id) = (plugin.node.verbs().clone(), request.volume.on_node());
    let allowed = request.capability.as_ref();
    allowed.map_or(Ok(()), |capability| plugin.node.allow(capability))?;
    let mut keys = Keys::none().and(&HERE, Object::OnNode(id.clone()), Hold::Exclusive);
    let Some(path) = request.path else {
        return Err(nowhere(&id));
    };
    // Storage of this node is expanded here; the controller of another node could not reach it.
    let local = of_this_node(&plugin, &request.volume).await?;
    if let Some((connection, id)) = &local {
        let object = Object::Volume(id.clone());
        keys = keys.and(connection.scope(), object, Hold::Exclusive);
    }
    let size = request.size;
    let wanted = node::ExpandRequest {
        path,
        required: request.size.required(),
    };
    let task = incoming.admit(subject, keys)?;
    let mut expanded = None;
    if let Some((connection, id)) = &local {
        let growth = connection.driver().expand_volume(
            &task.call,
            ExpandVolume {
                id,
                size,
                secrets: &request.secrets,
            },
        );
        let grown = task.ask(connection, "expand_volume", growth).await?;
        expanded = Some(grown.capacity);
    }
    let grown = verbs.expand(limits(&task), wanted).await;
    let capacity = grown.map_err(|error| with_volume(&id, error))?.or(expanded);
    Ok(v1::NodeExpandVolumeResponse {
        capacity_bytes: capacity.map_or(0, encode::bytes),
    })
}

/// The connection of a volume that is storage of this node, and its id there. None where its connection is of another
/// kind, or is not served here, or where the controllers of connections are in other processes.
async fn of_this_node(
    plugin: &Plugin,
    volume: &VolumeHandle,
) -> Result<Option<(Arc<Connection>, VolumeId)>, Error> {
    let connections = &plugin.connections;
    if connections.sole_on_node().await?.is_none() {
        // Storage of the nodes has its controller in this process. One without knows of connections at most what inline
        // volumes need.
        if !plugin.modes.controller {
            return Ok(None);
        }
        let known = connections.known_of_volume(volume).map_err(tried_again)?;
        if known.is_none_or(|known| known.can().expand != Expansion::Node) {
            return Ok(None);
        }
    }
    // A handle may name the connection all the same.
    let (connection, id) = connections.of_volume(volume).await?;
    let is_here = connection.can().expand == Expansion::Node;
    Ok(is_here.then_some((connection, id)))
}

/// What is known later. After `FAILED_PRECONDITION` the kubelet would wait for the next mount.
fn tried_again(error: Error) -> Error {
    match error.kind() {
        Kind::Busy => error.of_kind(Kind::Unreachable),
        _ => error,
    }
}

fn nowhere(id: &VolumeId) -> Error {
    Error::not_found(format!("volume {id} at a relative path"))
}

pub(super) async fn info(
    plugin: Arc<Plugin>,
    incoming: Incoming,
    _: v1::NodeGetInfoRequest,
) -> Result<v1::NodeGetInfoResponse, Error> {
    let _task = incoming.admit(Subject::default(), Keys::none())?;
    let node_id = plugin.info.id().as_str().to_owned();
    let place = if let Some(only) = plugin.connections.sole_on_node().await? {
        only.driver().node_topology()
    } else {
        let place = blocking::spawn(move || plugin.info.place()).await;
        place.map_err(|join| Error::new(Kind::Internal, "tell the place").because(join))?
    };
    Ok(v1::NodeGetInfoResponse {
        node_id,
        // The orchestrator decides.
        max_volumes_per_node: 0,
        accessible_topology: place.as_ref().map(encode::topology),
    })
}

/// What a node works on belongs to the node, not to a connection.
static HERE: LazyLock<Arc<str>> = LazyLock::new(Arc::default);

/// Stage and unstage hold the volume and the path exclusively.
fn alone(id: &VolumeId, path: &AbsolutePath) -> Keys {
    Keys::none()
        .and(&HERE, Object::OnNode(id.clone()), Hold::Exclusive)
        .and(&HERE, Object::Path(path.clone()), Hold::Exclusive)
}

/// Publishing shares the volume with other targets, but not with staging.
pub(crate) fn at_target(id: &VolumeId, path: &AbsolutePath, volume: Hold) -> Keys {
    Keys::none()
        .and(&HERE, Object::Path(path.clone()), Hold::Exclusive)
        .and(&HERE, Object::OnNode(id.clone()), volume)
}

/// A call about a volume at a path. It is recorded at once, so that rejected calls name it, too.
pub(crate) fn about(
    plugin: &Plugin,
    volume: &VolumeHandle,
    path: Option<&AbsolutePath>,
) -> Subject {
    let subject = Subject {
        connection: plugin.connections.name_of(volume).text().clone(),
        volume: Some(volume.as_str().to_owned()),
        path: path.map(ToString::to_string),
        ..Subject::default()
    };
    subject.record();
    subject
}

pub(crate) fn limits(task: &Task) -> Limits {
    Limits::until(task.call.deadline()).holding(task.guard())
}

/// Adds the volume to an error of a verb.
pub(crate) fn with_volume(id: &VolumeId, error: Error) -> Error {
    error.within(format!("volume `{id}`"))
}
