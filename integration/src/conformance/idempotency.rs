//! Asking twice is asking once; asking for something else under the same name is refused.

use csi_proto::v1 as csi;
use csi_proto::v1::volume_capability::access_mode::Mode;
use std::slice;
use tonic::Code;

use super::Target;
use super::world::{World, code, ends_with};
use crate::volume;

/// Also after a crash, for nothing is kept in memory.
pub async fn the_same_volume_asked_for_twice_is_the_same_volume(target: &dyn Target) {
    let mut world = World::start(target).await;
    let first = world.volume("twice").await;
    let before = world.backend();
    assert_eq!(world.volume("twice").await, first);
    world.crash().await;
    assert_eq!(world.volume("twice").await, first);
    world.unchanged(&before, "the same request again");
    assert_eq!(world.volume_ids().await, slice::from_ref(&first.volume_id));
    let volume_id = first.volume_id.clone();
    let request = csi::ControllerGetVolumeRequest { volume_id };
    let got = world
        .client
        .clone()
        .controller
        .controller_get_volume(request)
        .await;
    assert_eq!(
        got.expect("it exists").into_inner().volume,
        Some(first.clone())
    );
    for _ in 0..2 {
        world.remove(&first.volume_id).await;
        world.is_empty("delete");
    }
    world.crash().await;
    world.remove(&first.volume_id).await;
    world.end().await;
}

/// Another size, another source.
pub async fn another_volume_of_the_same_name_already_exists(target: &dyn Target) {
    let mut world = World::start(target).await;
    let plain = world.volume("plain").await;
    let other = world.volume("other").await;
    let cut = world.cut("cut", &plain.volume_id).await;
    let child = csi::CreateVolumeRequest {
        volume_content_source: volume::from_snapshot(&cut.snapshot_id),
        ..world.create("child")
    };
    let made = world.make(child.clone()).await;
    assert_eq!(made.content_source, child.volume_content_source);
    assert_eq!(world.make(child.clone()).await, made);
    let before = world.backend();
    let conflicts = conflicts(&world, &plain, &cut, &child);
    for round in 0..2 {
        for (what, request) in &conflicts {
            let outcome = world
                .client
                .clone()
                .controller
                .create_volume(request.clone())
                .await;
            ends_with(
                outcome,
                &[Code::AlreadyExists],
                &format!("{what}, round {round}"),
            );
        }
        world.unchanged(&before, "a conflict");
        world.crash().await;
    }
    // A wider wish that the volume meets is the same wish.
    let wider = csi::CreateVolumeRequest {
        capacity_range: volume::at_least(volume::SIZE / 2),
        ..world.create("plain")
    };
    let outcome = world.client.clone().controller.create_volume(wider).await;
    ends_with(outcome, &[Code::Ok], "less than there is");
    world.remove_snapshot(&cut.snapshot_id).await;
    for id in [made.volume_id, other.volume_id, plain.volume_id] {
        world.remove(&id).await;
    }
    world.end().await;
}

/// Requests that take a name for something else.
fn conflicts(
    world: &World<'_>,
    plain: &csi::Volume,
    cut: &csi::Snapshot,
    child: &csi::CreateVolumeRequest,
) -> [(&'static str, csi::CreateVolumeRequest); 5] {
    [
        (
            "a larger volume",
            csi::CreateVolumeRequest {
                capacity_range: volume::at_least(2 * volume::SIZE),
                ..world.create("plain")
            },
        ),
        (
            "a smaller limit",
            csi::CreateVolumeRequest {
                capacity_range: Some(csi::CapacityRange {
                    required_bytes: 0,
                    limit_bytes: volume::SIZE / 2,
                }),
                ..world.create("plain")
            },
        ),
        (
            "a source where there was none",
            csi::CreateVolumeRequest {
                volume_content_source: volume::from_snapshot(&cut.snapshot_id),
                ..world.create("plain")
            },
        ),
        ("no source where there was one", world.create("child")),
        (
            "a volume instead of a snapshot",
            csi::CreateVolumeRequest {
                volume_content_source: volume::from_volume(&plain.volume_id),
                ..child.clone()
            },
        ),
    ]
}

/// With the same time of creation; another volume's snapshot of that name is refused.
pub async fn the_same_snapshot_asked_for_twice_is_the_same_snapshot(target: &dyn Target) {
    let mut world = World::start(target).await;
    let (one, two) = (world.volume("one").await, world.volume("two").await);
    let first = world.cut("cut", &one.volume_id).await;
    assert!(first.creation_time.is_some(), "a snapshot has a time");
    assert_eq!(first.source_volume_id, one.volume_id);
    let before = world.backend();
    for _ in 0..2 {
        assert_eq!(world.cut("cut", &one.volume_id).await, first);
        let request = world.snapshot("cut", &two.volume_id);
        let outcome = world
            .client
            .clone()
            .controller
            .create_snapshot(request)
            .await;
        ends_with(
            outcome,
            &[Code::AlreadyExists],
            "a name taken by another volume's snapshot",
        );
        world.unchanged(&before, "the same snapshot again");
        let request = csi::GetSnapshotRequest {
            snapshot_id: first.snapshot_id.clone(),
            ..Default::default()
        };
        let got = world.client.clone().controller.get_snapshot(request).await;
        assert_eq!(
            got.expect("it exists").into_inner().snapshot,
            Some(first.clone())
        );
        world.crash().await;
    }
    for _ in 0..2 {
        world.remove_snapshot(&first.snapshot_id).await;
        assert!(world.snapshot_ids().await.is_empty());
    }
    // The name is free again.
    let second = world.cut("cut", &two.volume_id).await;
    world.remove_snapshot(&second.snapshot_id).await;
    world.remove(&one.volume_id).await;
    world.remove(&two.volume_id).await;
    world.end().await;
}

/// `DeleteVolume` of a volume with snapshots: either they survive, or it is refused unaltered.
pub async fn a_snapshot_outlives_its_volume_or_holds_it(target: &dyn Target) {
    let world = World::start(target).await;
    let source = world.volume("source").await;
    let cut = world.cut("cut", &source.volume_id).await;
    let before = world.backend();
    let request = volume::delete(&source.volume_id);
    let outcome = world.client.clone().controller.delete_volume(request).await;
    if code(&outcome) == Code::FailedPrecondition {
        world.unchanged(&before, "a refused deletion");
        world.remove_snapshot(&cut.snapshot_id).await;
        world.remove(&source.volume_id).await;
    } else {
        ends_with(outcome, &[Code::Ok], "delete a volume with snapshots");
        assert_eq!(
            world.snapshot_ids().await,
            slice::from_ref(&cut.snapshot_id)
        );
        let request = csi::CreateVolumeRequest {
            volume_content_source: volume::from_snapshot(&cut.snapshot_id),
            ..world.create("heir")
        };
        let heir = world.make(request).await;
        world.remove_snapshot(&cut.snapshot_id).await;
        world.remove(&heir.volume_id).await;
    }
    world.end().await;
}

/// Larger is made, smaller is as it is, beyond a limit is out of range.
pub async fn a_volume_only_grows(target: &dyn Target) {
    let mut world = World::start(target).await;
    let grown = world.volume("grown").await;
    assert!(grown.capacity_bytes >= volume::SIZE);
    let pod = world.mount(&grown).await;
    let mut last = grown.capacity_bytes;
    for bytes in [
        2 * volume::SIZE,
        2 * volume::SIZE,
        volume::SIZE,
        3 * volume::SIZE,
    ] {
        let request = csi::ControllerExpandVolumeRequest {
            volume_capability: Some(volume::mounted(Mode::SingleNodeWriter)),
            ..volume::expand(&grown.volume_id, bytes)
        };
        let reply = world.expand(request, &pod).await;
        let capacity = reply.expect("it grows").into_inner();
        assert!(
            capacity >= bytes && capacity >= last,
            "{bytes} asked, {capacity} got"
        );
        last = capacity;
        world.crash().await;
        let volume_id = grown.volume_id.clone();
        let request = csi::ControllerGetVolumeRequest { volume_id };
        let got = world
            .client
            .clone()
            .controller
            .controller_get_volume(request)
            .await;
        let volume = got
            .expect("it exists")
            .into_inner()
            .volume
            .expect("a volume");
        assert_eq!(
            volume.capacity_bytes, last,
            "what was replied is remembered"
        );
    }
    let request = csi::ControllerExpandVolumeRequest {
        capacity_range: Some(csi::CapacityRange {
            required_bytes: 0,
            limit_bytes: volume::SIZE,
        }),
        ..volume::expand(&grown.volume_id, 0)
    };
    let outcome = world.expand(request, &pod).await;
    ends_with(outcome, &[Code::OutOfRange], "a limit below what there is");
    world.unmount(&grown).await;
    world.remove(&grown.volume_id).await;
    world.end().await;
}
