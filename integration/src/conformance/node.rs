//! The node: staging, publishing, read-only, single writers, statistics.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use csi_proto::v1 as csi;
use csi_proto::v1::volume_capability::AccessType;
use csi_proto::v1::volume_capability::access_mode::Mode;
use tonic::Code;

use super::Target;
use super::world::{World, code, ends_with};
use crate::requirement;
use crate::volume;

/// Also when the server was killed in between.
pub async fn staging_and_publishing_twice_is_doing_it_once(target: &dyn Target) {
    if !requirement::root("staging and publishing twice") {
        return;
    }
    let mut world = World::start(target).await;
    let twice = world.volume("twice").await;
    let pod = world.mount(&twice).await;
    fs::write(pod.join("file"), "content").expect("it can be written");
    let mounts = world.place.mounts();
    assert!(!mounts.is_empty(), "something is mounted");
    for _ in 0..2 {
        assert_eq!(world.mount(&twice).await, pod);
        assert_eq!(world.place.mounts(), mounts, "nothing is mounted twice");
        world.crash().await;
        let still = fs::read(pod.join("file")).expect("a pod does not notice");
        assert_eq!(still, b"content");
    }
    for _ in 0..2 {
        world.unmount(&twice).await;
        assert!(world.place.mounts().is_empty(), "nothing is left mounted");
        world.crash().await;
    }
    world.remove(&twice.volume_id).await;
    world.end().await;
}

/// On the staging path and on the target path.
pub async fn another_capability_on_the_same_path_already_exists(target: &dyn Target) {
    if !requirement::root("publishing with another capability") {
        return;
    }
    let world = World::start(target).await;
    let shared = csi::CreateVolumeRequest {
        volume_capabilities: vec![
            volume::mounted(target.many_writers()),
            volume::mounted(Mode::MultiNodeReaderOnly),
        ],
        ..world.create("shared")
    };
    let shared = world.make(shared).await;
    let (staging, pod) = (world.staging(&shared), world.pod("shared"));
    let node = &mut world.client.clone().node;
    let many = Some(volume::mounted(target.many_writers()));
    let request = csi::NodeStageVolumeRequest {
        volume_capability: many.clone(),
        ..world.stage(&shared, &staging)
    };
    node.node_stage_volume(request).await.expect("staged");
    let request = csi::NodePublishVolumeRequest {
        volume_capability: many,
        ..volume::publish(&shared, &staging, &pod)
    };
    node.node_publish_volume(request.clone())
        .await
        .expect("published");
    let readonly = csi::NodePublishVolumeRequest {
        readonly: true,
        ..request.clone()
    };
    let outcome = node.node_publish_volume(readonly).await;
    ends_with(
        outcome,
        &[Code::AlreadyExists],
        "read-only where it is writable",
    );
    fs::write(pod.join("file"), "x").expect("the first publish still counts");
    // A second pod of the same node, and a third one that only reads.
    for (name, readonly) in [("second", false), ("third", true)] {
        let target_path = world.pod(name);
        let request = csi::NodePublishVolumeRequest {
            target_path: target_path.display().to_string(),
            readonly,
            ..request.clone()
        };
        node.node_publish_volume(request)
            .await
            .expect("many writers");
        assert_eq!(fs::write(target_path.join("file"), "y").is_err(), readonly);
        world.unpublish(&shared, &target_path).await;
    }
    world.unpublish(&shared, &pod).await;
    world.unstage(&shared).await;
    world.remove(&shared.volume_id).await;
    world.end().await;
}

/// Kubelets before 1.27 call every `ReadWriteOnce` volume `SINGLE_NODE_WRITER`.
pub async fn pods_of_a_node_share_a_volume_unless_they_ask_to_be_alone(target: &dyn Target) {
    if !requirement::root("several pods of one node") {
        return;
    }
    let world = World::start(target).await;
    for mode in [Mode::SingleNodeWriter, Mode::SingleNodeMultiWriter] {
        let capability = volume::mounted(mode);
        let request = csi::CreateVolumeRequest {
            volume_capabilities: vec![capability.clone()],
            ..world.create("shared")
        };
        let shared = world.make(request).await;
        let staging = world.staging(&shared);
        let pods = ["first", "second"].map(|name| world.pod(name));
        let node = &mut world.client.clone().node;
        let request = csi::NodeStageVolumeRequest {
            volume_capability: Some(capability.clone()),
            ..world.stage(&shared, &staging)
        };
        node.node_stage_volume(request).await.expect("staged");
        for pod in &pods {
            let request = csi::NodePublishVolumeRequest {
                volume_capability: Some(capability.clone()),
                ..volume::publish(&shared, &staging, pod)
            };
            let published = node.node_publish_volume(request).await;
            published.unwrap_or_else(|status| panic!("{mode:?}: {status}"));
        }
        fs::write(pods[0].join("file"), "x").expect("the first may write");
        assert_eq!(fs::read(pods[1].join("file")).expect("one volume"), b"x");
        for pod in &pods {
            world.unpublish(&shared, pod).await;
        }
        world.unstage(&shared).await;
        world.remove(&shared.volume_id).await;
    }
    world.end().await;
}

/// `SINGLE_NODE_SINGLE_WRITER`: one target path at a time, also after a crash.
pub async fn a_single_writer_is_alone(target: &dyn Target) {
    if !requirement::root("single writers") {
        return;
    }
    let mut world = World::start(target).await;
    let capability = volume::mounted(Mode::SingleNodeSingleWriter);
    let request = csi::CreateVolumeRequest {
        volume_capabilities: vec![capability.clone()],
        ..world.create("single")
    };
    let single = world.make(request).await;
    let staging = world.staging(&single);
    let (first, second) = (world.pod("first"), world.pod("second"));
    let request = csi::NodeStageVolumeRequest {
        volume_capability: Some(capability.clone()),
        ..world.stage(&single, &staging)
    };
    world
        .client
        .node
        .node_stage_volume(request)
        .await
        .expect("staged");
    let publish = |pod: &Path| csi::NodePublishVolumeRequest {
        volume_capability: Some(capability.clone()),
        ..volume::publish(&single, &staging, pod)
    };
    world
        .client
        .node
        .node_publish_volume(publish(&first))
        .await
        .expect("published");
    for _ in 0..2 {
        let outcome = world
            .client
            .node
            .node_publish_volume(publish(&second))
            .await;
        ends_with(outcome, &[Code::FailedPrecondition], "a second writer");
        assert!(!second.exists(), "a refused publish leaves no target path");
        let again = world.client.node.node_publish_volume(publish(&first)).await;
        again.expect("the same writer");
        world.crash().await;
    }
    world.unpublish(&single, &first).await;
    world
        .client
        .node
        .node_publish_volume(publish(&second))
        .await
        .expect("now it is its turn");
    world.unpublish(&single, &second).await;
    world.unstage(&single).await;
    world.remove(&single.volume_id).await;
    world.end().await;
}

/// `readonly`, and the modes that only read.
pub async fn read_only_is_enforced_by_the_kernel(target: &dyn Target) {
    if !requirement::root("read-only mounts") {
        return;
    }
    let world = World::start(target).await;
    let modes = [
        (Mode::SingleNodeWriter, true),
        (Mode::SingleNodeReaderOnly, false),
        (Mode::MultiNodeReaderOnly, false),
    ];
    for (mode, readonly) in modes {
        let what = format!("{mode:?}, readonly={readonly}");
        let capability = volume::mounted(mode);
        let writer = volume::mounted(Mode::SingleNodeWriter);
        let request = csi::CreateVolumeRequest {
            volume_capabilities: vec![capability.clone(), writer.clone()],
            ..world.create("read-only")
        };
        let made = world.make(request).await;
        let (staging, pod) = (world.staging(&made), world.pod("read-only"));
        let node = &mut world.client.clone().node;
        if mode == Mode::MultiNodeReaderOnly {
            // Readers do not make the filesystem of a new disk: a writer stages it before.
            let request = csi::NodeStageVolumeRequest {
                volume_capability: Some(writer),
                ..world.stage(&made, &staging)
            };
            let staged = node.node_stage_volume(request).await;
            staged.unwrap_or_else(|status| panic!("{what}, staged for writing: {status}"));
            world.unstage(&made).await;
        }
        let request = csi::NodeStageVolumeRequest {
            volume_capability: Some(capability.clone()),
            ..world.stage(&made, &staging)
        };
        node.node_stage_volume(request)
            .await
            .unwrap_or_else(|status| panic!("{what}: {status}"));
        let request = csi::NodePublishVolumeRequest {
            volume_capability: Some(capability),
            readonly,
            ..volume::publish(&made, &staging, &pod)
        };
        node.node_publish_volume(request)
            .await
            .unwrap_or_else(|status| panic!("{what}: {status}"));
        let refused = fs::write(pod.join("file"), "x").expect_err(&what);
        assert_eq!(
            refused.kind(),
            std::io::ErrorKind::ReadOnlyFilesystem,
            "{what}"
        );
        fs::read_dir(&pod).expect("it can be read");
        world.unpublish(&made, &pod).await;
        world.unstage(&made).await;
        world.remove(&made.volume_id).await;
    }
    world.end().await;
}

/// An empty folder that a crash left, a path that is not there; never the content of a volume.
pub async fn unpublishing_removes_the_target_whatever_it_is(target: &dyn Target) {
    if !requirement::root("unpublishing odd targets") {
        return;
    }
    let world = World::start(target).await;
    let made = world.volume("made").await;
    let node = &mut world.client.clone().node;
    let folder = world.pod("empty-folder");
    fs::create_dir(&folder).expect("a folder");
    let gone = node
        .node_unpublish_volume(volume::unpublish(&made, &folder))
        .await;
    gone.expect("an empty folder is removed");
    assert!(!folder.exists());

    // Something that is not ours: refused or left alone, never emptied.
    let full = world.pod("full-folder");
    fs::create_dir(&full).expect("a folder");
    fs::write(full.join("precious"), "data").expect("a file");
    let outcome = node
        .node_unpublish_volume(volume::unpublish(&made, &full))
        .await;
    assert_ne!(
        code(&outcome),
        Code::Ok,
        "what is left cannot be called unpublished"
    );
    assert_eq!(
        fs::read(full.join("precious")).expect("still there"),
        b"data"
    );
    fs::remove_dir_all(&full).expect("removed by the test");

    // Mounted twice, one upon the other, as a race of an older plugin may have left it.
    let pod = world.mount(&made).await;
    fs::write(pod.join("file"), "content").expect("written");
    world.unmount(&made).await;
    let pod = world.mount(&made).await;
    assert_eq!(fs::read(pod.join("file")).expect("kept"), b"content");
    world.unmount(&made).await;
    world.remove(&made.volume_id).await;
    world.end().await;
}

/// Bytes and inodes; used is not more than total.
pub async fn statistics_count_what_is_there(target: &dyn Target) {
    if !requirement::root("statistics of a volume") {
        return;
    }
    let world = World::start(target).await;
    let made = world.volume("counted").await;
    let pod = world.mount(&made).await;
    let request = csi::NodeGetVolumeStatsRequest {
        volume_id: made.volume_id.clone(),
        volume_path: pod.display().to_string(),
        ..Default::default()
    };
    let node = &mut world.client.clone().node;
    let reply = node
        .node_get_volume_stats(request.clone())
        .await
        .expect("statistics");
    let usage = reply.into_inner().usage;
    let units: Vec<_> = usage.iter().map(csi::VolumeUsage::unit).collect();
    assert!(units.contains(&csi::volume_usage::Unit::Bytes), "{units:?}");
    for line in &usage {
        assert!(
            line.total >= line.used && line.used >= 0 && line.available >= 0,
            "{line:?}"
        );
    }
    let elsewhere = csi::NodeGetVolumeStatsRequest {
        volume_path: world.place.canary().display().to_string(),
        ..request
    };
    let outcome = node.node_get_volume_stats(elsewhere).await;
    ends_with(
        outcome,
        &[Code::NotFound],
        "a volume that is not at that path",
    );
    world.unmount(&made).await;
    world.remove(&made.volume_id).await;
    world.end().await;
}

/// `VOLUME_MOUNT_GROUP`: the group owns the volume and may write, new files inherit it.
pub async fn the_group_of_a_mount_can_write(target: &dyn Target) {
    if !requirement::root("the group of a mount") {
        return;
    }
    let world = World::start(target).await;
    let reply = world
        .client
        .clone()
        .node
        .node_get_capabilities(csi::NodeGetCapabilitiesRequest {})
        .await;
    let offered = reply
        .expect("capabilities")
        .into_inner()
        .capabilities
        .into_iter()
        .any(|capability| {
            matches!(capability.r#type, Some(csi::node_service_capability::Type::Rpc(rpc))
            if rpc.r#type() == csi::node_service_capability::rpc::Type::VolumeMountGroup)
        });
    if offered {
        const GROUP: u32 = 4711;
        let mut capability = volume::mounted(Mode::SingleNodeWriter);
        if let Some(AccessType::Mount(mount)) = &mut capability.access_type {
            mount.volume_mount_group = GROUP.to_string();
        }
        let request = csi::CreateVolumeRequest {
            volume_capabilities: vec![capability.clone()],
            ..world.create("grouped")
        };
        let made = world.make(request).await;
        let (staging, pod) = (world.staging(&made), world.pod("grouped"));
        let node = &mut world.client.clone().node;
        let request = csi::NodeStageVolumeRequest {
            volume_capability: Some(capability.clone()),
            ..world.stage(&made, &staging)
        };
        node.node_stage_volume(request).await.expect("staged");
        let request = csi::NodePublishVolumeRequest {
            volume_capability: Some(capability),
            ..volume::publish(&made, &staging, &pod)
        };
        node.node_publish_volume(request).await.expect("published");
        let metadata = fs::metadata(&pod).expect("the volume");
        assert_eq!(metadata.gid(), GROUP);
        assert_eq!(
            metadata.permissions().mode() & 0o2070,
            0o2070,
            "set-gid and writable"
        );
        fs::write(pod.join("file"), "x").expect("written");
        assert_eq!(
            fs::metadata(pod.join("file")).expect("the file").gid(),
            GROUP
        );
        world.unpublish(&made, &pod).await;
        world.unstage(&made).await;
        world.remove(&made.volume_id).await;
    }
    world.end().await;
}
