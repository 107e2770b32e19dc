//! Each call that only reads, where a program offers it, about a volume or a snapshot that is there.

use std::collections::BTreeSet;
use std::path::Path;

use csi_proto::v1 as csi;
use tonic::{Response, Status};

use crate::client::Client;

/// The end of one call.
pub type Outcome = Result<(), String>;

/// A call and how it ended.
type Read = (&'static str, Outcome);

/// The reading calls of the controller about a volume.
pub async fn of_a_volume(
    client: &Client,
    offered: &BTreeSet<&'static str>,
    made: &csi::Volume,
    capability: csi::VolumeCapability,
) -> Vec<Read> {
    let mut controller = client.controller.clone();
    let volume_id = made.volume_id.clone();
    let mut done = Vec::new();
    let request = csi::ValidateVolumeCapabilitiesRequest {
        volume_id: volume_id.clone(),
        volume_context: made.volume_context.clone(),
        volume_capabilities: vec![capability],
        ..Default::default()
    };
    let answer = controller.validate_volume_capabilities(request).await;
    done.push(("ValidateVolumeCapabilities", outcome(answer)));
    for call in offered.iter().copied() {
        let ended = match call {
            "GetCapacity" => outcome(
                controller
                    .get_capacity(csi::GetCapacityRequest::default())
                    .await,
            ),
            "ListVolumes" => listed(client.volume_ids().await, &volume_id),
            "ControllerGetVolume" => {
                let volume_id = volume_id.clone();
                let request = csi::ControllerGetVolumeRequest { volume_id };
                outcome(controller.controller_get_volume(request).await)
            }
            "ControllerModifyVolume" => {
                let request = csi::ControllerModifyVolumeRequest {
                    volume_id: volume_id.clone(),
                    ..Default::default()
                };
                outcome(controller.controller_modify_volume(request).await)
            }
            "ControllerGetVolumeHealth" => {
                let request = csi::ControllerGetVolumeHealthRequest {
                    volume_id: volume_id.clone(),
                    ..Default::default()
                };
                outcome(controller.controller_get_volume_health(request).await)
            }
            "ControllerListVolumeHealth" => {
                let request = csi::ControllerListVolumeHealthRequest::default();
                outcome(controller.controller_list_volume_health(request).await)
            }
            _ => continue,
        };
        done.push((call, ended));
    }
    done
}

/// The reading calls of the controller about a snapshot.
pub async fn of_a_snapshot(
    client: &Client,
    offered: &BTreeSet<&'static str>,
    snapshot_id: &str,
) -> Vec<Read> {
    let mut done = Vec::new();
    if offered.contains("ListSnapshots") {
        let ids = client
            .snapshot_ids(csi::ListSnapshotsRequest::default())
            .await;
        done.push(("ListSnapshots", listed(ids, snapshot_id)));
    }
    if offered.contains("GetSnapshot") {
        let request = csi::GetSnapshotRequest {
            snapshot_id: snapshot_id.to_owned(),
            ..Default::default()
        };
        let answer = client.controller.clone().get_snapshot(request).await;
        done.push(("GetSnapshot", outcome(answer)));
    }
    done
}

/// The calls of the node about a volume that a pod uses, and about its storage.
pub async fn of_a_node(
    client: &Client,
    offered: &BTreeSet<&'static str>,
    made: &csi::Volume,
    staging: &Path,
    target: &Path,
) -> Vec<Read> {
    let mut node = client.node.clone();
    let mut done = Vec::new();
    if offered.contains("NodeGetVolumeHealth") {
        let request = csi::NodeGetVolumeHealthRequest {
            volume_id: made.volume_id.clone(),
            volume_publish_path: target.display().to_string(),
            staging_target_path: staging.display().to_string(),
        };
        let answer = node.node_get_volume_health(request).await;
        done.push(("NodeGetVolumeHealth", outcome(answer)));
    }
    if offered.contains("NodeGetStorageHealth") {
        let request = csi::NodeGetStorageHealthRequest::default();
        let answer = node.node_get_storage_health(request).await;
        done.push(("NodeGetStorageHealth", outcome(answer)));
    }
    done
}

/// A list that has to name it.
fn listed(ids: csi_try::client::Answer<BTreeSet<String>>, id: &str) -> Outcome {
    let ids = ids.map_err(|failure| failure.to_string())?;
    ids.contains(id)
        .then_some(())
        .ok_or_else(|| "it is not in the list".to_owned())
}

fn outcome<T>(answer: Result<Response<T>, Status>) -> Outcome {
    answer
        .map(drop)
        .map_err(|status| format!("{:?}: {}", status.code(), status.message()))
}
