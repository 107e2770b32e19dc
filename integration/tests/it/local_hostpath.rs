//! The conformance suite over local-hostpath, and groups of snapshots, which its classes have to ask for.

use csi_proto::v1 as csi;
use csi_proto::v1::group_controller_client::GroupControllerClient;
use integration::conformance::World;
use integration::conformance::local_hostpath::LocalHostpath;
use integration::suite;
use integration::volume;
use tonic::Code;
use tonic::transport::Channel;

suite!(LocalHostpath);

fn groups(world: &World<'_>) -> GroupControllerClient<Channel> {
    GroupControllerClient::new(world.client.channel.clone())
}

fn members(group: &csi::VolumeGroupSnapshot) -> Vec<String> {
    let ids = group.snapshots.iter().map(|one| one.snapshot_id.clone());
    ids.collect()
}

async fn taken(
    world: &World<'_>,
    request: csi::CreateVolumeGroupSnapshotRequest,
) -> csi::VolumeGroupSnapshot {
    let reply = groups(world).create_volume_group_snapshot(request).await;
    let reply = reply.expect("a group").into_inner();
    reply.group_snapshot.expect("a group")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_is_taken_one_after_the_other_where_its_class_says_so() {
    let mut world = World::start(&LocalHostpath).await;
    let mut ids = Vec::new();
    for name in ["one", "two"] {
        ids.push(world.volume(name).await.volume_id);
    }
    let request = |consistency: Option<&str>| csi::CreateVolumeGroupSnapshotRequest {
        name: "group".to_owned(),
        source_volume_ids: ids.clone(),
        parameters: consistency
            .map(|value| ("consistency".to_owned(), value.to_owned()))
            .into_iter()
            .collect(),
        ..Default::default()
    };
    let before = world.backend();
    for (consistency, said) in [(None, "consistency: none"), (Some("crash"), "`crash`")] {
        let reply = groups(&world)
            .create_volume_group_snapshot(request(consistency))
            .await;
        let status = reply.expect_err("more than there is");
        assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
        assert!(status.message().contains(said), "{status:?}");
        world.unchanged(&before, said);
    }

    let group = taken(&world, request(Some("none"))).await;
    world.crash().await;
    assert_eq!(taken(&world, request(Some("none"))).await, group);
    let mut listed = world.snapshot_ids().await;
    listed.sort();
    assert_eq!(listed, members(&group));
    let of_group = csi::GetVolumeGroupSnapshotRequest {
        group_snapshot_id: group.group_snapshot_id.clone(),
        snapshot_ids: listed.clone(),
        ..Default::default()
    };
    let got = groups(&world)
        .get_volume_group_snapshot(of_group.clone())
        .await;
    let got = got.expect("it is there").into_inner().group_snapshot;
    assert_eq!(got.as_ref(), Some(&group));
    let one = volume::delete_snapshot(&listed[0]);
    let mut controller = world.client.controller.clone();
    let status = controller.delete_snapshot(one).await;
    let status = status.expect_err("of a group");
    assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");

    for _ in 0..2 {
        let request = csi::DeleteVolumeGroupSnapshotRequest {
            group_snapshot_id: group.group_snapshot_id.clone(),
            snapshot_ids: listed.clone(),
            ..Default::default()
        };
        let deleted = groups(&world).delete_volume_group_snapshot(request).await;
        deleted.expect("deleted");
        world.unchanged(&before, "a deleted group");
    }
    let gone = groups(&world).get_volume_group_snapshot(of_group).await;
    assert_eq!(gone.expect_err("gone").code(), Code::NotFound);
    for id in &ids {
        world.remove(id).await;
    }
    world.end().await;
}
