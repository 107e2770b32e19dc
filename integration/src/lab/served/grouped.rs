//! Snapshots of two volumes at one moment, through the program as it is served.

use csi_proto::v1 as csi;
use csi_proto::v1::group_controller_client::GroupControllerClient;
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::Served;
use super::life::{delete, make, same, used};
use crate::lab::calls::{Node, within};
use crate::lab::content;
use crate::lab::fixture::Fixture;
use crate::lab::life::{LENGTH, step, write};
use crate::volume;

const NAME: &str = "groupsnapshot-0aa4ba5c-6ee9-4d3b-9cf3-0f1e2d3c4b5a";

fn groups(node: &Node) -> GroupControllerClient<Channel> {
    GroupControllerClient::new(node.server.client().channel)
}

/// A group of snapshots of these volumes.
pub(super) async fn taken(node: &Node, name: &str, volumes: &[String]) -> csi::VolumeGroupSnapshot {
    let request = csi::CreateVolumeGroupSnapshotRequest {
        name: name.to_owned(),
        source_volume_ids: volumes.to_vec(),
        ..Default::default()
    };
    let mut groups = groups(node);
    let reply = within("group", groups.create_volume_group_snapshot(request)).await;
    let reply = reply.expect("a group").into_inner();
    reply.group_snapshot.expect("a group")
}

/// The id of a volume's snapshot in a group.
pub(super) fn member<'a>(group: &'a csi::VolumeGroupSnapshot, fixture: &Fixture) -> &'a str {
    let id = &fixture.volume.volume_id;
    let snapshot = group.snapshots.iter().find(|s| s.source_volume_id == *id);
    &snapshot.expect("one of each volume").snapshot_id
}

fn ids(group: &csi::VolumeGroupSnapshot) -> Vec<String> {
    let snapshots = group.snapshots.iter();
    snapshots.map(|s| s.snapshot_id.clone()).collect()
}

/// Deletes a group; the second time it is gone already.
pub(super) async fn deleted(node: &Node, group: &csi::VolumeGroupSnapshot) {
    for _ in 0..2 {
        let request = csi::DeleteVolumeGroupSnapshotRequest {
            group_snapshot_id: group.group_snapshot_id.clone(),
            snapshot_ids: ids(group),
            ..Default::default()
        };
        let mut groups = groups(node);
        let deleted = within("delete", groups.delete_volume_group_snapshot(request)).await;
        deleted.expect("deleted");
    }
}

/// Taken twice, found, restored one by one, and deleted as a whole.
///
/// # Panics
/// At whatever is wrong in it.
pub(super) async fn taken_and_restored(node: &Node, served: Served) {
    step("a group");
    let mut volumes = Vec::new();
    for (seed, name) in [(4, "one"), (5, "two")] {
        let fixture = make(node, served, name, served.sizes().0, None).await;
        let pod = used(node, &fixture).await;
        write(&fixture, &pod, &content::bytes(seed, LENGTH));
        node.take_away(&fixture, &[&pod]).await;
        volumes.push(fixture);
    }
    let volume_ids: Vec<_> = volumes
        .iter()
        .map(|one| one.volume.volume_id.clone())
        .collect();
    let group = taken(node, NAME, &volume_ids).await;
    let turned: Vec<_> = volume_ids.iter().rev().cloned().collect();
    assert_eq!(taken(node, NAME, &turned).await, group, "it was taken once");
    let request = csi::GetVolumeGroupSnapshotRequest {
        group_snapshot_id: group.group_snapshot_id.clone(),
        snapshot_ids: ids(&group),
        ..Default::default()
    };
    let found = within("get", groups(node).get_volume_group_snapshot(request)).await;
    let found = found.expect("the group").into_inner().group_snapshot;
    assert_eq!(found.as_ref(), Some(&group));

    step("restore the group");
    for (seed, fixture) in (4..).zip(&volumes) {
        let snapshot = member(&group, fixture);
        let request = volume::delete_snapshot(snapshot);
        let mut controller = node.server.client().controller;
        let refused: Result<_, Status> =
            within("delete one", controller.delete_snapshot(request)).await;
        assert_eq!(
            refused.expect_err("of a group").code(),
            Code::InvalidArgument
        );
        let source = volume::from_snapshot(snapshot);
        let restored = make(node, served, "of-a-group", served.sizes().0, source).await;
        same(
            node,
            &restored,
            &content::bytes(seed, LENGTH),
            "what was restored",
        )
        .await;
        delete(node, &restored).await;
    }
    deleted(node, &group).await;
    for fixture in &volumes {
        delete(node, fixture).await;
    }
}
