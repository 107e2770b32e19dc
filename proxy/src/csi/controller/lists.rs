//! Lists of volumes and snapshots: of one connection, or of all of them.

use std::sync::Arc;

use csi_proto::v1;
use driver_core::{Capabilities, Error, GetSnapshot, Kind, Page, PageRequest, SnapshotFilter};

use super::pages::{self, Listed, Listing};
use super::{about, about_snapshot, about_volume, health, offered};
use crate::csi::decode::{self, ListSnapshotsRequest};
use crate::csi::encode;
use crate::csi::plugin::Plugin;
use crate::routing::connection::Connection;
use crate::rpc::in_flight::Keys;
use crate::rpc::{Incoming, Task};

pub(super) async fn volumes(
    plugin: Arc<Plugin>,
    incoming: Incoming,
    request: v1::ListVolumesRequest,
) -> Result<v1::ListVolumesResponse, Error> {
    offered(&plugin, "list volumes", |can| can.list_volumes)?;
    let page = decode::page(request.max_entries, request.starting_token)?;
    let task = incoming.admit(about(None), Keys::none())?;
    let what = Volumes {
        with_condition: plugin.advertised()?.has_condition(&plugin.connections),
        with_nodes: plugin.advertised()?.lists_nodes(&plugin.connections),
    };
    let listed = if let Some(only) = plugin.connections.sole().await? {
        pages::of_one(&task, &only, page, &what).await?
    } else {
        pages::of_all(
            &task,
            plugin.connections.listed(),
            page,
            &what,
            &plugin.states,
        )
        .await?
    };
    let Listed {
        entries,
        next_token,
    } = listed;
    Ok(v1::ListVolumesResponse {
        entries,
        next_token,
    })
}

pub(super) async fn snapshots(
    plugin: Arc<Plugin>,
    incoming: Incoming,
    request: v1::ListSnapshotsRequest,
) -> Result<v1::ListSnapshotsResponse, Error> {
    offered(&plugin, "list snapshots", |can| can.list_snapshots)?;
    let request = ListSnapshotsRequest::decode(request)?;
    let (snapshot, source) = (&request.snapshot, &request.source);
    let stray = snapshot
        .as_ref()
        .is_some_and(|handle| plugin.connections.is_stray_snapshot(handle))
        || source
            .as_ref()
            .is_some_and(|handle| plugin.connections.is_stray_volume(handle));
    if stray {
        // No object here has such a handle.
        let _task = incoming.admit(about(None), Keys::none())?;
        return Ok(v1::ListSnapshotsResponse::default());
    }
    if request.snapshot.is_some() {
        return one_snapshot(plugin, incoming, request).await;
    }
    if let Some(handle) = request.source {
        let (connection, id) = plugin.connections.of_volume(&handle).await?;
        if !connection.can().list_snapshots {
            return Err(connection.lacks("list snapshots"));
        }
        let subject = about_volume(&connection, handle.as_str());
        let filter = SnapshotFilter {
            source: Some(id),
            secrets: request.secrets,
        };
        let task = incoming.admit(subject, Keys::none())?;
        let listed = pages::of_one(&task, &connection, request.page, &filter).await?;
        let mut reply = reply(listed);
        // Under another name of its connection it is still the requested volume.
        for snapshot in reply.entries.iter_mut().filter_map(|e| e.snapshot.as_mut()) {
            handle.as_str().clone_into(&mut snapshot.source_volume_id);
        }
        return Ok(reply);
    }
    let task = incoming.admit(about(None), Keys::none())?;
    let filter = SnapshotFilter {
        source: None,
        secrets: request.secrets,
    };
    let page = request.page;
    let listed = if let Some(only) = plugin.connections.sole().await? {
        pages::of_one(&task, &only, page, &filter).await?
    } else {
        pages::of_all(
            &task,
            plugin.connections.listed(),
            page,
            &filter,
            &plugin.states,
        )
        .await?
    };
    Ok(reply(listed))
}

fn reply(listed: Listed<v1::list_snapshots_response::Entry>) -> v1::ListSnapshotsResponse {
    v1::ListSnapshotsResponse {
        entries: listed.entries,
        next_token: listed.next_token,
    }
}

/// The list with that one snapshot, empty if it does not exist.
async fn one_snapshot(
    plugin: Arc<Plugin>,
    incoming: Incoming,
    request: ListSnapshotsRequest,
) -> Result<v1::ListSnapshotsResponse, Error> {
    let missing = || Error::invalid("request field `snapshot_id`");
    let handle = request.snapshot.ok_or_else(missing)?;
    let (connection, id) = plugin.connections.of_snapshot(&handle).await?;
    if !connection.can().get_snapshot {
        return Err(connection.lacks("get snapshot"));
    }
    let subject = about_snapshot(&connection, handle.as_str());
    let source = match request.source {
        None => None,
        Some(source) => {
            let (home, id) = plugin.connections.of_volume(&source).await?;
            Some((source, home, id))
        }
    };
    let task = incoming.admit(subject, Keys::none())?;
    let found = connection.driver().get_snapshot(
        &task.call,
        GetSnapshot {
            id: &id,
            secrets: &request.secrets,
        },
    );
    let found = match task.ask(&connection, "get_snapshot", found).await {
        Ok(found) => found,
        Err(error) if error.kind() == Kind::NotFound => {
            return Ok(v1::ListSnapshotsResponse::default());
        }
        Err(error) => return Err(error),
    };
    let of = |(_, home, id): &(_, Arc<Connection>, _)| {
        home.scope() == connection.scope() && *id == found.source
    };
    let wanted = source.as_ref().is_none_or(of);
    let mut entry = SnapshotFilter::default().entry(&connection, &found);
    if let Some(snapshot) = &mut entry.snapshot {
        handle.as_str().clone_into(&mut snapshot.snapshot_id);
        if let Some((source, ..)) = &source {
            source.as_str().clone_into(&mut snapshot.source_volume_id);
        }
    }
    Ok(v1::ListSnapshotsResponse {
        entries: wanted.then_some(entry).into_iter().collect(),
        next_token: String::new(),
    })
}

/// All volumes.
struct Volumes {
    with_condition: bool,
    with_nodes: bool,
}

impl Listing for Volumes {
    type Found = (driver_core::Volume, Option<v1::VolumeCondition>);
    type Entry = v1::list_volumes_response::Entry;

    fn has(&self, can: &Capabilities) -> bool {
        can.list_volumes
    }

    async fn ask(
        &self,
        task: &Task,
        connection: &Connection,
        page: &PageRequest,
    ) -> Result<Page<Self::Found>, Error> {
        let listing = connection.driver().list_volumes(&task.call, page);
        let listed = task
            .ask_patiently(connection, "list_volumes", listing)
            .await?;
        let conditions = if self.with_condition {
            let found = health::in_a_list(task, connection, &listed.entries).await;
            found.into_iter().map(Some).collect()
        } else {
            vec![None; listed.entries.len()]
        };
        Ok(Page {
            entries: listed.entries.into_iter().zip(conditions).collect(),
            next: listed.next,
        })
    }

    fn entry(&self, connection: &Connection, (found, condition): &Self::Found) -> Self::Entry {
        let status = v1::list_volumes_response::VolumeStatus {
            published_node_ids: if self.with_nodes {
                encode::published_to(found)
            } else {
                Vec::new()
            },
            volume_condition: condition.clone(),
        };
        let has_status = self.with_condition || self.with_nodes;
        v1::list_volumes_response::Entry {
            volume: Some(encode::volume(connection, found)),
            status: has_status.then_some(status),
        }
    }
}

impl Listing for SnapshotFilter {
    type Found = driver_core::Snapshot;
    type Entry = v1::list_snapshots_response::Entry;

    fn has(&self, can: &Capabilities) -> bool {
        can.list_snapshots
    }

    async fn ask(
        &self,
        task: &Task,
        connection: &Connection,
        page: &PageRequest,
    ) -> Result<Page<driver_core::Snapshot>, Error> {
        let listing = connection.driver().list_snapshots(&task.call, self, page);
        task.ask_patiently(connection, "list_snapshots", listing)
            .await
    }

    fn entry(&self, connection: &Connection, found: &driver_core::Snapshot) -> Self::Entry {
        v1::list_snapshots_response::Entry {
            snapshot: Some(encode::snapshot(connection, found)),
        }
    }
}
