//! Snapshots of two volumes at one moment, through the program as it is served.

use csi_proto::v1 as csi;
use csi_proto::v1::group_controller_client::GroupControllerClient;
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::Served;
use super::life::{delete, make, same, used};
use crate::lab::calls::{Node, within};
use crate::lab::content;
use crate::lab::life::{LENGTH, step, write};
use crate::volume;

const NAME: &str = "groupsnapshot-0aa4ba5c-6ee9-4d3b-9cf3-0f1e2d3c4b5a";

fn groups(node: &Node) -> GroupControllerClient<Channel> {
    GroupControllerClient::new(node.server.client().channel)
}

async fn taken(node: &Node, volumes: &[String]) -> csi::VolumeGroupSnapshot {
    let request = csi::CreateVolumeGroupSnapshotRequest {
        name: NAME.to_owned(),
        source_volume_ids: volumes.to_vec(),
        ..Default::default()
    };
    let mut groups = groups(node);
    let reply = within("group", groups.create_volume_group_snapshot(request)).await;
    let reply = reply.expect("a group").into_inner();
    reply.group_snapshot.expect("a group")
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
    let ids: Vec<_> = volumes
        .iter()
        .map(|one| one.volume.volume_id.clone())
        .collect();
    let group = taken(node, &ids).await;
    let turned: Vec<_> = ids.iter().rev().cloned().collect();
    assert_eq!(taken(node, &turned).await, group, "it was taken once");
    let members: Vec<_> = group
        .snapshots
        .iter()
        .map(|s| s.snapshot_id.clone())
        .collect();
    let request = csi::GetVolumeGroupSnapshotRequest {
        group_snapshot_id: group.group_snapshot_id.clone(),
        snapshot_ids: members.clone(),
        ..Default::default()
    };
    let found = within("get", groups(node).get_volume_group_snapshot(request)).await;
    let found = found.expect("the group").into_inner().group_snapshot;
    assert_eq!(found.as_ref(), Some(&group));

    step("restore the group");
    for (seed, fixture) in (4..).zip(&volumes) {
        let id = &fixture.volume.volume_id;
        let snapshot = group.snapshots.iter().find(|s| s.source_volume_id == *id);
        let snapshot = snapshot.expect("one of each volume");
        let request = volume::delete_snapshot(&snapshot.snapshot_id);
        let mut controller = node.server.client().controller;
        let refused: Result<_, Status> =
            within("delete one", controller.delete_snapshot(request)).await;
        assert_eq!(
            refused.expect_err("of a group").code(),
            Code::InvalidArgument
        );
        let source = volume::from_snapshot(&snapshot.snapshot_id);
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
    for _ in 0..2 {
        let request = csi::DeleteVolumeGroupSnapshotRequest {
            group_snapshot_id: group.group_snapshot_id.clone(),
            snapshot_ids: members.clone(),
            ..Default::default()
        };
        let mut groups = groups(node);
        let deleted = within("delete", groups.delete_volume_group_snapshot(request)).await;
        deleted.expect("deleted");
    }
    for fixture in &volumes {
        delete(node, fixture).await;
    }
}
