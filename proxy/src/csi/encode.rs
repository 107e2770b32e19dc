//! Encodes domain results to replies, within the limits that the specification sets for plugins.
//!
//! An id or a context that an orchestrator cannot store is a defect of a driver: it is reported as
//! an error instead of being sent, and the object is left for a retry or a deletion.

use csi_proto::v1;
use csi_proto::v1::volume_content_source::{SnapshotSource, Type as Content, VolumeSource};
use driver_core::text::{MAX_MAP, MAX_STRING};
use driver_core::{
    Condition, ConditionKind, Conditions, Elsewhere, Error, GroupSnapshot, Kind, Page, Snapshot,
    Source, Topology, Volume, VolumeId,
};
use node_utils::node::{Usage, VolumeStats};

use crate::csi::decode::{MAX_TOKEN, SourceHandle};
use crate::message::printable_within;
use crate::routing::connection::{Connection, map_size};
use crate::routing::connections::VolumeHandle;

/// A volume that was just created. `source` repeats the request.
pub(crate) fn created_volume(
    connection: &Connection,
    volume: &Volume,
    source: Option<&SourceHandle>,
) -> Result<v1::CreateVolumeResponse, Error> {
    let mut reply = self::volume(connection, volume);
    reply.content_source = source.map(content_source);
    checked("volume id", &reply.volume_id)?;
    let bytes = map_size(&reply.volume_context);
    if bytes > MAX_MAP {
        let text = format!("the context of volume `{}` has {bytes} bytes", volume.id);
        return Err(defect(text));
    }
    Ok(v1::CreateVolumeResponse {
        volume: Some(reply),
    })
}

/// The nodes that a volume is published to.
pub(crate) fn published_to(volume: &Volume) -> Vec<String> {
    volume
        .published_to
        .iter()
        .map(ToString::to_string)
        .collect()
}

/// A volume as it exists.
pub(crate) fn volume(connection: &Connection, volume: &Volume) -> v1::Volume {
    v1::Volume {
        capacity_bytes: volume.capacity.map_or(0, bytes),
        volume_id: connection.volume_handle(&volume.id),
        volume_context: connection.context(&volume.attachment),
        content_source: volume
            .source
            .as_ref()
            .map(|source| v1::VolumeContentSource {
                r#type: Some(match source {
                    Source::Snapshot(id) => Content::Snapshot(SnapshotSource {
                        snapshot_id: connection.snapshot_handle(id),
                    }),
                    Source::Volume(id) => Content::Volume(VolumeSource {
                        volume_id: connection.volume_handle(id),
                    }),
                    // The handle as it was when the volume was asked for.
                    Source::Elsewhere(Elsewhere::Snapshot(handle)) => {
                        Content::Snapshot(SnapshotSource {
                            snapshot_id: handle.as_str().to_owned(),
                        })
                    }
                    Source::Elsewhere(Elsewhere::Volume(handle)) => Content::Volume(VolumeSource {
                        volume_id: handle.as_str().to_owned(),
                    }),
                }),
            }),
        accessible_topology: places(connection, &volume.topology),
    }
}

fn content_source(source: &SourceHandle) -> v1::VolumeContentSource {
    let r#type = match source {
        SourceHandle::Snapshot(handle) => Content::Snapshot(SnapshotSource {
            snapshot_id: handle.as_str().to_owned(),
        }),
        SourceHandle::Volume(handle) => Content::Volume(VolumeSource {
            volume_id: handle.as_str().to_owned(),
        }),
    };
    v1::VolumeContentSource {
        r#type: Some(r#type),
    }
}

/// A snapshot that was just created. `source` repeats the request.
pub(crate) fn created_snapshot(
    connection: &Connection,
    snapshot: &Snapshot,
    source: &VolumeHandle,
) -> Result<v1::CreateSnapshotResponse, Error> {
    let mut reply = self::snapshot(connection, snapshot);
    checked("snapshot id", &reply.snapshot_id)?;
    source.as_str().clone_into(&mut reply.source_volume_id);
    Ok(v1::CreateSnapshotResponse {
        snapshot: Some(reply),
    })
}

/// A snapshot as it exists.
pub(crate) fn snapshot(connection: &Connection, snapshot: &Snapshot) -> v1::Snapshot {
    v1::Snapshot {
        size_bytes: bytes(snapshot.size),
        snapshot_id: connection.snapshot_handle(&snapshot.id),
        source_volume_id: connection.volume_handle(&snapshot.source),
        creation_time: Some(snapshot.created.into()),
        ready_to_use: snapshot.ready,
        group_snapshot_id: snapshot
            .group
            .as_ref()
            .map_or_else(String::new, |group| connection.group_handle(group)),
        accessible_topology: places(connection, &snapshot.topology),
    }
}

/// A group that was just taken of these volumes.
pub(crate) fn created_group(
    connection: &Connection,
    group: &GroupSnapshot,
    volumes: &[VolumeId],
) -> Result<v1::VolumeGroupSnapshot, Error> {
    let reply = self::group(connection, group, &connection.group_handle(&group.id));
    checked("group snapshot id", &reply.group_snapshot_id)?;
    for snapshot in &reply.snapshots {
        checked("snapshot id", &snapshot.snapshot_id)?;
    }
    let has = |volume: &VolumeId| {
        group
            .snapshots
            .iter()
            .any(|snapshot| snapshot.source == *volume)
    };
    if group.snapshots.len() != volumes.len() || !volumes.iter().all(has) {
        let text = format!(
            "group snapshot `{}` has not one snapshot for each volume",
            group.id
        );
        return Err(defect(text));
    }
    Ok(reply)
}

/// A group as it exists, under the handle that the orchestrator has.
pub(crate) fn group(
    connection: &Connection,
    group: &GroupSnapshot,
    handle: &str,
) -> v1::VolumeGroupSnapshot {
    let of_group = |snapshot| v1::Snapshot {
        group_snapshot_id: handle.to_owned(),
        ..self::snapshot(connection, snapshot)
    };
    v1::VolumeGroupSnapshot {
        group_snapshot_id: handle.to_owned(),
        snapshots: group.snapshots.iter().map(of_group).collect(),
        creation_time: Some(group.created.into()),
        ready_to_use: group.ready && group.snapshots.iter().all(|snapshot| snapshot.ready),
    }
}

/// The place where a volume or a snapshot of a connection is, which its driver places here.
fn places(connection: &Connection, driver: &[Topology]) -> Vec<v1::Topology> {
    let places = connection.accessibility().of_volume(driver);
    places.iter().map(topology).collect()
}

/// The topology of a node or a volume.
pub(crate) fn topology(topology: &Topology) -> v1::Topology {
    v1::Topology {
        segments: topology.segments().clone(),
    }
}

/// The place where the next page begins, empty at the end. A driver whose entries have longer names shortens
/// them.
pub(crate) fn next_token<T>(page: &Page<T>) -> Result<String, Error> {
    let Some(token) = &page.next else {
        return Ok(String::new());
    };
    if token.0.is_empty() || token.0.len() > MAX_TOKEN {
        let length = token.0.len();
        let text = format!("the token of the next page is {length} bytes long");
        return Err(Error::new(Kind::Internal, text));
    }
    Ok(token.0.clone())
}

/// The condition of a volume in the dialect up to 1.12: one flag and one text. If not all fits, it has all reasons and what
/// is said of the worst. compat: "Capabilities".
pub(crate) fn condition(found: &Conditions) -> v1::VolumeCondition {
    let Some(worst) = found.worst() else {
        return v1::VolumeCondition {
            abnormal: false,
            message: "OK".to_owned(),
        };
    };
    let text = |one: &Condition| format!("{}: {}", one.reason(), one.message());
    let mut message = found.iter().map(text).collect::<Vec<_>>().join("; ");
    if message.len() > MAX_STRING {
        let reasons: Vec<&str> = found.iter().map(|one| one.reason().as_str()).collect();
        message = format!("{}: {}", reasons.join(", "), worst.message());
    }
    v1::VolumeCondition {
        abnormal: true,
        message: printable_within(&message, MAX_STRING),
    }
}

/// The same where the storage does not tell.
pub(crate) fn not_examined() -> v1::VolumeCondition {
    v1::VolumeCondition {
        abnormal: false,
        message: "not examined: the storage does not tell how its volumes are".to_owned(),
    }
}

/// The same in a list that does not wait for it.
pub(crate) fn not_examined_in_time() -> v1::VolumeCondition {
    v1::VolumeCondition {
        abnormal: false,
        message: "not examined: the storage takes longer than a list waits".to_owned(),
    }
}

/// The same where it could not be found out.
pub(crate) fn unknown(why: &str) -> v1::VolumeCondition {
    v1::VolumeCondition {
        abnormal: true,
        message: printable_within(&format!("HealthUnknown: {why}"), MAX_STRING),
    }
}

/// The health of a volume in the dialect from 1.13 on. Under another name of its connection it is still the requested
/// volume.
pub(crate) fn health(volume_id: String, found: &Conditions) -> v1::VolumeHealth {
    let one = |one: &Condition| v1::volume_health::VolumeHealthEntry {
        status: health_type(one.kind()).into(),
        reason: one.reason().to_string(),
        message: printable_within(one.message(), MAX_STRING),
    };
    v1::VolumeHealth {
        volume_id,
        health_statuses: found.iter().map(one).collect(),
    }
}

fn health_type(kind: ConditionKind) -> v1::VolumeHealthErrorType {
    match kind {
        ConditionKind::Degraded => v1::VolumeHealthErrorType::Degraded,
        ConditionKind::Inaccessible => v1::VolumeHealthErrorType::Inaccessible,
        ConditionKind::DataLoss => v1::VolumeHealthErrorType::DataLoss,
    }
}

/// The health of the storages that a node uses. Each condition is of all volumes there.
pub(crate) fn storage_health(found: &Conditions) -> v1::NodeGetStorageHealthResponse {
    use v1::node_get_storage_health_response::StorageBackendHealth;
    let one = |one: &Condition| StorageBackendHealth {
        status: storage_health_type(one.kind()).into(),
        reason: one.reason().to_string(),
        message: printable_within(one.message(), MAX_STRING),
        volume_capability: None,
    };
    v1::NodeGetStorageHealthResponse {
        backend_health: found.iter().map(one).collect(),
    }
}

fn storage_health_type(kind: ConditionKind) -> v1::StorageHealthErrorType {
    match kind {
        ConditionKind::Degraded | ConditionKind::DataLoss => {
            v1::StorageHealthErrorType::StorageDegraded
        }
        ConditionKind::Inaccessible => v1::StorageHealthErrorType::StorageUnreachable,
    }
}

/// The statistics of a mounted volume; its health only if that is advertised.
pub(crate) fn stats(
    stats: &VolumeStats,
    condition: Option<v1::VolumeCondition>,
) -> v1::NodeGetVolumeStatsResponse {
    use v1::volume_usage::Unit;
    let usage = |usage: &Usage, unit: Unit| v1::VolumeUsage {
        available: bytes(usage.available),
        total: bytes(usage.total),
        used: bytes(usage.used),
        unit: unit.into(),
    };
    let of_bytes = stats.bytes.iter().map(|u| usage(u, Unit::Bytes));
    let of_inodes = stats.inodes.iter().map(|u| usage(u, Unit::Inodes));
    v1::NodeGetVolumeStatsResponse {
        usage: of_bytes.chain(of_inodes).collect(),
        volume_condition: condition,
    }
}

/// A size on the wire. Values that do not fit are larger than any storage.
pub(crate) fn bytes(size: u64) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

fn checked(what: &str, id: &str) -> Result<(), Error> {
    if id.len() > MAX_STRING {
        let length = id.len();
        return Err(defect(format!("the {what} `{id}` is {length} bytes long")));
    }
    Ok(())
}

/// A result that cannot be encoded for the orchestrator. It exists: in a call that makes something no defect is
/// final.
fn defect(text: String) -> Error {
    Error::new(Kind::Internal, text)
}

#[cfg(test)]
mod tests {
    use driver_core::Reason;

    use super::*;

    #[test]
    fn the_condition_of_a_volume_fits_into_a_string_of_the_specification() {
        let reason = Reason::constant("InputOutputError");
        let text = format!("`/{}`\n answers with an error", "p".repeat(500));
        let found = [Condition::new(ConditionKind::Inaccessible, reason, text)];
        let stats = VolumeStats {
            bytes: None,
            inodes: None,
            conditions: found.into_iter().collect(),
        };
        assert_eq!(self::stats(&stats, None).volume_condition, None);
        let condition = self::stats(&stats, Some(self::condition(&stats.conditions)))
            .volume_condition
            .expect("a condition");
        assert!(condition.abnormal && condition.message.starts_with("InputOutputError: `/pp"));
        assert_eq!(condition.message.len(), MAX_STRING);
        let health = self::health("v".to_owned(), &stats.conditions);
        let [entry] = &*health.health_statuses else {
            panic!("{health:?}");
        };
        assert_eq!(entry.reason, "InputOutputError");
        assert_eq!(entry.status, 2);
        assert_eq!(entry.message.len(), MAX_STRING);
    }

    #[test]
    fn all_reasons_of_a_condition_are_told_before_its_paths() {
        let full = Reason::constant("PoolFull");
        let silent = Reason::constant("FilesystemDoesNotAnswer");
        let path = format!("did not answer in 1 s: /var/lib/{}", "0".repeat(132));
        let both = [
            Condition::new(ConditionKind::Degraded, full, "no room"),
            Condition::new(ConditionKind::Inaccessible, silent, path),
        ];
        let found = condition(&both.into_iter().collect());
        let begin = "FilesystemDoesNotAnswer, PoolFull: did not answer in 1 s: /var/";
        assert!(found.message.starts_with(begin), "{}", found.message);
        assert!(found.message.len() <= MAX_STRING, "{}", found.message);
    }
}
