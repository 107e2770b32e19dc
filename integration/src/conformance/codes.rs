//! The code that each wrong request gets, and that it changes nothing.

use csi_proto::v1 as csi;
use csi_proto::v1::volume_capability::access_mode::Mode;
use tonic::Code;

use super::optional::Optional;
use super::world::{World, code, ends_with};
use super::{Target, messages};
use crate::requirement;
use crate::volume;

/// Each required field of each request, left out: `INVALID_ARGUMENT`, and nothing is changed.
pub async fn a_request_without_what_it_needs_is_invalid(target: &dyn Target) {
    if !requirement::root("requests to the node") {
        return;
    }
    let world = World::start(target).await;
    let scene = messages::Scene::set(&world).await;
    let before = world.backend();
    let mut tried = 0;
    for request in scene.requests() {
        for field in request.required {
            let mut message = request.message.clone();
            message.clear_field_by_name(field);
            let what = format!("{} without {field}", request.method.name());
            let outcome = messages::call(&world.client, &request.method, &message).await;
            ends_with(outcome, &[Code::InvalidArgument], &what);
            world.unchanged(&before, &what);
            tried += 1;
        }
    }
    assert!(tried >= 24, "only {tried} required fields are known");
    scene.clear(&world).await;
    world.end().await;
}

/// Unknown volumes, snapshots and sources.
pub async fn what_does_not_exist_is_not_found_and_is_gone_already(target: &dyn Target) {
    let world = World::start(target).await;
    let there = world.volume("there").await;
    let ghost_snapshot = world.cut("ghost", &there.volume_id).await.snapshot_id;
    world.remove_snapshot(&ghost_snapshot).await;
    let ghost = csi::Volume {
        volume_id: "ghost".into(),
        ..there.clone()
    };
    let before = world.backend();
    let controller = &mut world.client.clone().controller;
    let missing = &[Code::NotFound];

    let request = csi::ValidateVolumeCapabilitiesRequest {
        volume_id: "ghost".into(),
        volume_capabilities: vec![volume::mounted(Mode::SingleNodeWriter)],
        ..Default::default()
    };
    let outcome = controller.validate_volume_capabilities(request).await;
    ends_with(outcome, missing, "validate");
    let volume_id = "ghost".to_owned();
    let request = csi::ControllerGetVolumeRequest { volume_id };
    ends_with(
        controller.controller_get_volume(request).await,
        missing,
        "get",
    );
    let request = volume::expand("ghost", 2 * volume::SIZE);
    let nowhere = world.pod("ghost");
    ends_with(world.expand(request, &nowhere).await, missing, "expand");
    let request = world.snapshot("s", "ghost");
    ends_with(
        controller.create_snapshot(request).await,
        missing,
        "snapshot of nothing",
    );
    let request = csi::GetSnapshotRequest {
        snapshot_id: ghost_snapshot.clone(),
        ..Default::default()
    };
    ends_with(
        controller.get_snapshot(request).await,
        missing,
        "get snapshot",
    );
    for source in [
        volume::from_volume("ghost"),
        volume::from_snapshot(&ghost_snapshot),
    ] {
        let request = csi::CreateVolumeRequest {
            volume_content_source: source,
            ..world.create("child")
        };
        ends_with(
            controller.create_volume(request).await,
            missing,
            "child of nothing",
        );
    }
    world.unchanged(&before, "a call about what does not exist");

    gone_already(&world, ghost_snapshot).await;
    world.unchanged(&before, "deleting what does not exist");
    missing_on_the_node(&world, &ghost).await;
    world.unchanged(&before, "a node call about what does not exist");
    world.remove(&there.volume_id).await;
    world.end().await;
}

async fn gone_already(world: &World<'_>, ghost_snapshot: String) {
    let controller = &mut world.client.clone().controller;
    let outcome = controller.delete_volume(volume::delete("ghost")).await;
    ends_with(outcome, &[Code::Ok], "delete nothing");
    let outcome = controller
        .delete_snapshot(volume::delete_snapshot(&ghost_snapshot))
        .await;
    ends_with(outcome, &[Code::Ok], "delete no snapshot");
    let request = csi::ListSnapshotsRequest {
        snapshot_id: ghost_snapshot,
        ..Default::default()
    };
    let listed = controller
        .list_snapshots(request)
        .await
        .expect("an empty list");
    assert!(
        listed.into_inner().entries.is_empty(),
        "a missing snapshot is an empty list"
    );
    let request = csi::ListSnapshotsRequest {
        source_volume_id: "ghost".into(),
        ..Default::default()
    };
    let listed = controller
        .list_snapshots(request)
        .await
        .expect("an empty list");
    assert!(
        listed.into_inner().entries.is_empty(),
        "no volume, no snapshots"
    );
}

async fn missing_on_the_node(world: &World<'_>, ghost: &csi::Volume) {
    let node = &mut world.client.clone().node;
    let pod = world.pod("ghost");
    let path = |path: std::path::PathBuf| path.display().to_string();
    let request = csi::NodeGetVolumeStatsRequest {
        volume_id: "ghost".into(),
        volume_path: path(pod.clone()),
        ..Default::default()
    };
    ends_with(
        node.node_get_volume_stats(request).await,
        &[Code::NotFound],
        "stats",
    );
    let outcome = node
        .node_unpublish_volume(volume::unpublish(ghost, &pod))
        .await;
    ends_with(outcome, &[Code::Ok], "unpublish nothing");
    let staging = world.staging(ghost);
    let outcome = node
        .node_unstage_volume(volume::unstage(ghost, &staging))
        .await;
    ends_with(outcome, &[Code::Ok], "unstage nothing");
    let outcome = node
        .node_publish_volume(volume::publish(ghost, &staging, &pod))
        .await;
    // The context is that of another volume, which some drivers notice first.
    let refusals = &[
        Code::FailedPrecondition,
        Code::NotFound,
        Code::InvalidArgument,
    ];
    ends_with(outcome, refusals, "publish what is not staged");
    assert!(!pod.exists(), "a refused publish leaves no target path");
}

/// Every call of every service that is not advertised: UNIMPLEMENTED.
pub async fn a_call_that_is_not_advertised_is_unimplemented(target: &dyn Target) {
    let world = World::start(target).await;
    let offered = messages::offered(&world.client).await;
    let mut refused = 0;
    for method in messages::methods() {
        // A node with nothing to grow may still answer `NodeExpandVolume`.
        if offered.contains(method.name()) || method.name() == "NodeExpandVolume" {
            continue;
        }
        let message = messages::complete(&method.input());
        let outcome = messages::call(&world.client, &method, &message).await;
        ends_with(outcome, &[Code::Unimplemented], method.full_name());
        refused += 1;
    }
    let own = target.optional();
    let has_all = [
        Optional::Publish,
        Optional::Groups,
        Optional::Modify,
        Optional::Health,
    ];
    let has_all = has_all.iter().all(|what| own.contains(what));
    assert!(
        refused > 0 || has_all,
        "a driver that lacks something has to refuse it"
    );
    world.end().await;
}

/// What is advertised works, as far as a call without effect can tell.
pub async fn capabilities_name_exactly_the_calls_that_work(target: &dyn Target) {
    let world = World::start(target).await;
    for method in messages::methods() {
        if !messages::offered(&world.client)
            .await
            .contains(method.name())
        {
            continue;
        }
        let message = prost_reflect::DynamicMessage::new(method.input());
        let outcome = messages::call(&world.client, &method, &message).await;
        let works = code(&outcome) != Code::Unimplemented && code(&outcome) != Code::Internal;
        assert!(works, "{} is advertised: {outcome:?}", method.full_name());
    }
    world.end().await;
}

/// Negative, crossed and impossible sizes.
pub async fn a_size_that_makes_no_sense_is_refused(target: &dyn Target) {
    let world = World::start(target).await;
    let there = world.volume("there").await;
    let pod = world.mount(&there).await;
    let before = world.backend();
    let refusals = &[Code::OutOfRange, Code::InvalidArgument];
    for (required_bytes, limit_bytes) in
        [(-1, 0), (0, -1), (2 << 20, 1 << 20), (i64::MIN, i64::MAX)]
    {
        let capacity_range = Some(csi::CapacityRange {
            required_bytes,
            limit_bytes,
        });
        let what = format!("{required_bytes} to {limit_bytes} bytes");
        let request = csi::CreateVolumeRequest {
            capacity_range,
            ..world.create("sized")
        };
        let outcome = world.client.clone().controller.create_volume(request).await;
        ends_with(outcome, refusals, &what);
        let request = csi::ControllerExpandVolumeRequest {
            capacity_range,
            ..volume::expand(&there.volume_id, 0)
        };
        ends_with(world.expand(request, &pod).await, refusals, &what);
        world.unchanged(&before, &what);
    }
    world.unmount(&there).await;
    world.remove(&there.volume_id).await;
    world.end().await;
}

/// Access types, filesystems and modes that are not offered, and modes that do not exist.
pub async fn a_use_that_is_not_offered_is_refused(target: &dyn Target) {
    let world = World::start(target).await;
    let before = world.backend();
    let mut with_fs = volume::mounted(Mode::SingleNodeWriter);
    let mut unknown_mode = volume::mounted(Mode::SingleNodeWriter);
    unknown_mode.access_mode = Some(csi::volume_capability::AccessMode { mode: 99 });
    if let Some(csi::volume_capability::AccessType::Mount(mount)) = &mut with_fs.access_type {
        mount.fs_type = "no-such-fs".into();
    }
    let untyped = csi::VolumeCapability {
        access_type: None,
        ..volume::mounted(Mode::SingleNodeWriter)
    };
    let modeless = csi::VolumeCapability {
        access_mode: None,
        ..volume::mounted(Mode::SingleNodeWriter)
    };
    for (what, capability) in [
        ("an unknown filesystem", with_fs),
        ("an unknown mode", unknown_mode),
        ("no access type", untyped),
        ("no access mode", modeless),
    ] {
        // One good capability does not make up for a bad one.
        let request = csi::CreateVolumeRequest {
            volume_capabilities: vec![volume::mounted(Mode::SingleNodeWriter), capability],
            ..world.create("used")
        };
        let outcome = world.client.clone().controller.create_volume(request).await;
        ends_with(outcome, &[Code::InvalidArgument], what);
        world.unchanged(&before, what);
    }
    world.end().await;
}

/// A topology that this driver's volumes cannot have.
pub async fn a_place_that_cannot_be_reached_is_exhausted(target: &dyn Target) {
    let world = World::start(target).await;
    if let Some(segments) = target.elsewhere() {
        let before = world.backend();
        let request = csi::CreateVolumeRequest {
            accessibility_requirements: Some(csi::TopologyRequirement {
                requisite: vec![csi::Topology { segments }],
                preferred: Vec::new(),
            }),
            ..world.create("elsewhere")
        };
        let outcome = world.client.clone().controller.create_volume(request).await;
        ends_with(outcome, &[Code::ResourceExhausted], "a place elsewhere");
        world.unchanged(&before, "a place elsewhere");
    }
    world.end().await;
}

/// Tokens that no list gave out, and numbers of entries below zero.
pub async fn a_token_that_was_never_given_is_aborted(target: &dyn Target) {
    let world = World::start(target).await;
    let controller = &mut world.client.clone().controller;
    for token in [
        "nonsense",
        "-1",
        "0x10",
        "%00",
        "../../etc",
        "v/there",
        "99999999999999999999",
    ] {
        let starting_token = token.to_owned();
        let request = csi::ListVolumesRequest {
            starting_token: starting_token.clone(),
            ..Default::default()
        };
        ends_with(
            controller.list_volumes(request).await,
            &[Code::Aborted],
            token,
        );
        let request = csi::ListSnapshotsRequest {
            starting_token,
            ..Default::default()
        };
        ends_with(
            controller.list_snapshots(request).await,
            &[Code::Aborted],
            token,
        );
    }
    let request = csi::ListVolumesRequest {
        max_entries: -1,
        ..Default::default()
    };
    ends_with(
        controller.list_volumes(request).await,
        &[Code::InvalidArgument],
        "-1 volumes",
    );
    let request = csi::ListSnapshotsRequest {
        max_entries: -1,
        ..Default::default()
    };
    ends_with(
        controller.list_snapshots(request).await,
        &[Code::InvalidArgument],
        "-1 snapshots",
    );
    world.end().await;
}
