//! The decisions of the Node service before it calls the node's verbs, and how it encodes their
//! errors.

use std::sync::Arc;

use csi_proto::v1;
use csi_proto::v1::controller_client::ControllerClient;
use csi_proto::v1::node_client::NodeClient;
use csi_proto::v1::volume_capability::{
    AccessMode, AccessType, BlockVolume, MountVolume, access_mode::Mode,
};
use driver_core::contract::fake::FakeDriver;
use driver_core::text::MAX_MAP;
use omnibus_csi::telemetry::metrics::Metrics;
use tonic::service::Routes;
use tonic::{Code, Request, Status};

use crate::log::{heard, listen};
use crate::served::{of_file, of_one, process};

const CONFIG: &str = "driver: fake";

fn service(yaml: &str) -> NodeClient<Routes> {
    let app = of_one(Arc::new(FakeDriver::new()), yaml);
    NodeClient::new(process(app, &Metrics::new()).routes())
}

fn mounted() -> v1::VolumeCapability {
    v1::VolumeCapability {
        access_mode: Some(AccessMode {
            mode: Mode::SingleNodeMultiWriter.into(),
        }),
        access_type: Some(AccessType::Mount(MountVolume::default())),
    }
}

fn stage(dir: &tempfile::TempDir) -> v1::NodeStageVolumeRequest {
    let at = |name: &str| dir.path().join(name).display().to_string();
    v1::NodeStageVolumeRequest {
        volume_id: "v".into(),
        staging_target_path: at("staging"),
        volume_capability: Some(mounted()),
        volume_context: [
            ("node_attach_driver".to_owned(), "hostpath".to_owned()),
            ("path".to_owned(), at("absent")),
        ]
        .into(),
        ..Default::default()
    }
}

async fn staged(yaml: &str, request: v1::NodeStageVolumeRequest) -> Status {
    let reply = service(yaml).node_stage_volume(Request::new(request)).await;
    reply.expect_err("nothing here can be staged")
}

#[tokio::test]
async fn a_node_tells_its_name_and_its_place() {
    let mut service = service(CONFIG);
    let reply = service
        .node_get_info(Request::new(v1::NodeGetInfoRequest {}))
        .await;
    let info = reply.expect("an answer").into_inner();
    assert_eq!(
        (info.node_id.as_str(), info.max_volumes_per_node),
        ("node-1", 0)
    );
    let place = info.accessible_topology.expect("a place").segments;
    let key = "org.democratic-csi.topology/node".to_owned();
    assert_eq!(place, [(key, "fake-node".to_owned())].into());
}

#[tokio::test]
async fn a_context_that_names_no_way_to_the_volume_is_invalid() {
    let dir = tempfile::tempdir().expect("folder");
    for (key, value) in [
        ("node_attach_driver", ""),
        ("node_attach_driver", "carrier-pigeon"),
        ("path", ""),
        ("path", "../etc"),
        ("path", "/a/../b"),
    ] {
        let mut request = stage(&dir);
        request.volume_context.insert(key.into(), value.into());
        let status = staged(CONFIG, request).await;
        assert_eq!(status.code(), Code::InvalidArgument, "{key}={value:?}");
    }
}

#[tokio::test]
async fn a_volume_without_a_context_is_looked_up_in_the_configuration() {
    let dir = tempfile::tempdir().expect("folder");
    let mut request = stage(&dir);
    request.volume_context.clear();
    let nothing = staged(CONFIG, request.clone()).await;
    assert_eq!(nothing.code(), Code::InvalidArgument);
    let yaml = "{driver: fake, _private: {volume_context: {v: {node_attach_driver: hostpath, \
                path: /no/such/directory/anywhere}}}}";
    let known = staged(yaml, request).await;
    assert_eq!(known.code(), Code::NotFound, "{}", known.message());
    assert!(
        known.message().contains("volume `v`"),
        "{}",
        known.message()
    );
}

#[tokio::test]
async fn whose_secrets_count_is_said_by_the_context_of_the_configuration_too() {
    let dir = tempfile::tempdir().expect("folder");
    let mut request = stage(&dir);
    request.volume_context.clear();
    let key = "democratic-csi.org/fake/mount_flags".to_owned();
    request.secrets = [(key, "no option".to_owned())].into();
    let of = |more: &str| {
        format!(
            "{{driver: fake, _private: {{volume_context: {{v: {{node_attach_driver: hostpath, \
             path: /no/such/directory/anywhere{more}}}}}}}}}"
        )
    };
    let ours = staged(&of(""), request.clone()).await;
    assert_eq!(ours.code(), Code::InvalidArgument, "{}", ours.message());
    let of_another = staged(&of(", provisioner_driver: other"), request).await;
    let (code, message) = (of_another.code(), of_another.message());
    assert_eq!(code, Code::NotFound, "{message}");
}

#[tokio::test]
async fn a_way_of_use_that_the_driver_lacks_is_refused_when_staging() {
    let dir = tempfile::tempdir().expect("folder");
    let mut request = stage(&dir);
    request.volume_capability = Some(v1::VolumeCapability {
        access_type: Some(AccessType::Block(BlockVolume {})),
        ..mounted()
    });
    let status = staged(CONFIG, request).await;
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(
        status.message().contains("block access"),
        "{}",
        status.message()
    );
}

#[tokio::test]
async fn mount_flags_of_a_secret_are_checked_and_never_shown() {
    let dir = tempfile::tempdir().expect("folder");
    let mut request = stage(&dir);
    let key = "democratic-csi.org/fake/mount_flags".to_owned();
    request.secrets = [(key, "password=hunter2 x".to_owned())].into();
    let status = staged(CONFIG, request.clone()).await;
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(
        !status.message().contains("hunter2"),
        "{}",
        status.message()
    );
    // Those of another driver do not apply.
    let key = "provisioner_driver".to_owned();
    request.volume_context.insert(key, "other".to_owned());
    assert_eq!(staged(CONFIG, request).await.code(), Code::NotFound);
}

#[tokio::test]
async fn mount_flags_of_a_secret_that_have_no_effect_are_said_to_have_none() {
    let dir = tempfile::tempdir().expect("folder");
    let mut request = stage(&dir);
    listen();
    staged(CONFIG, request.clone()).await;
    assert!(!heard().contains("stage secret"), "there is none");
    request.secrets = [("mount_flags".to_owned(), "ro,hunter2".to_owned())].into();
    staged(CONFIG, request).await;
    let text = heard();
    let line = text.lines().find(|l| l.contains("stage secret"));
    let line = line.expect("a line about them");
    assert!(
        line.contains("ignored") && line.contains("dropped=2"),
        "{line}"
    );
    assert!(line.contains("volume=v"), "{line}");
    assert!(!text.contains("hunter2"), "{text}");
}

#[tokio::test]
async fn publishing_what_was_not_staged_is_a_precondition_and_not_a_missing_field() {
    let dir = tempfile::tempdir().expect("folder");
    let staged = stage(&dir);
    let request = v1::NodePublishVolumeRequest {
        volume_id: "v".into(),
        target_path: dir.path().join("target").display().to_string(),
        volume_capability: Some(mounted()),
        volume_context: staged.volume_context,
        ..Default::default()
    };
    listen();
    let reply = service(CONFIG)
        .node_publish_volume(Request::new(request.clone()))
        .await;
    assert_eq!(
        reply.expect_err("no staging path").code(),
        Code::FailedPrecondition
    );
    let text = heard();
    let line = text.lines().find(|line| line.contains("was refused"));
    let line = line.expect("a pod waits for it");
    for part in [
        "WARN",
        "NodePublishVolume was refused",
        "volume=v",
        "/target",
    ] {
        assert!(line.contains(part), "{part}: {line}");
    }
    let request = v1::NodePublishVolumeRequest {
        staging_target_path: staged.staging_target_path,
        ..request
    };
    let reply = service(CONFIG)
        .node_publish_volume(Request::new(request))
        .await;
    assert_eq!(
        reply.expect_err("not staged").code(),
        Code::FailedPrecondition
    );
    assert!(!dir.path().join("target").exists());
}

#[tokio::test]
async fn what_is_not_there_is_unstaged_and_unpublished_and_has_no_statistics() {
    let dir = tempfile::tempdir().expect("folder");
    let at = |name: &str| dir.path().join(name).display().to_string();
    let mut service = service(CONFIG);
    let unstage = v1::NodeUnstageVolumeRequest {
        volume_id: "v".into(),
        staging_target_path: at("staging"),
    };
    assert!(
        service
            .node_unstage_volume(Request::new(unstage))
            .await
            .is_ok()
    );
    let unpublish = v1::NodeUnpublishVolumeRequest {
        volume_id: "v".into(),
        target_path: at("target"),
    };
    assert!(
        service
            .node_unpublish_volume(Request::new(unpublish))
            .await
            .is_ok()
    );
    let stats = v1::NodeGetVolumeStatsRequest {
        volume_id: "v".into(),
        volume_path: at("target"),
        ..Default::default()
    };
    let reply = service.node_get_volume_stats(Request::new(stats)).await;
    assert_eq!(reply.expect_err("nothing mounted").code(), Code::NotFound);
    let stats = v1::NodeGetVolumeStatsRequest {
        volume_id: "v".into(),
        volume_path: "some/path".into(),
        ..Default::default()
    };
    let reply = service.node_get_volume_stats(Request::new(stats)).await;
    assert_eq!(reply.expect_err("nowhere").code(), Code::NotFound);
    let expand = v1::NodeExpandVolumeRequest {
        volume_id: "v".into(),
        volume_path: at("target"),
        ..Default::default()
    };
    let reply = service.node_expand_volume(Request::new(expand)).await;
    assert_eq!(reply.expect_err("nothing mounted").code(), Code::NotFound);
}

#[tokio::test]
async fn a_way_of_use_that_the_driver_lacks_is_refused_when_a_volume_grows() {
    let dir = tempfile::tempdir().expect("folder");
    let expand = v1::NodeExpandVolumeRequest {
        volume_id: "v".into(),
        volume_path: dir.path().display().to_string(),
        volume_capability: Some(v1::VolumeCapability {
            access_type: Some(AccessType::Block(BlockVolume {})),
            ..mounted()
        }),
        ..Default::default()
    };
    let reply = service(CONFIG)
        .node_expand_volume(Request::new(expand))
        .await;
    assert_eq!(
        reply.expect_err("a raw device").code(),
        Code::InvalidArgument
    );
}

#[tokio::test]
async fn storage_of_the_node_is_grown_by_the_node() {
    let dir = tempfile::tempdir().expect("folder");
    let base = dir.path().display();
    let yaml = format!(
        "{{driver: local-hostpath, local-hostpath: {{shareBasePath: {base}, controllerBasePath: {base}}}}}"
    );
    let plugin = process(of_file(&yaml), &Metrics::new());
    let mut controller = ControllerClient::new(plugin.clone().routes());
    let create = v1::CreateVolumeRequest {
        name: "v".into(),
        capacity_range: Some(range(1 << 20)),
        volume_capabilities: vec![mounted()],
        ..Default::default()
    };
    let made = controller.create_volume(Request::new(create)).await;
    let volume = made.expect("made").into_inner().volume.expect("volume");
    let expand = v1::NodeExpandVolumeRequest {
        volume_id: volume.volume_id.clone(),
        volume_path: dir.path().join("target").display().to_string(),
        capacity_range: Some(range(1 << 30)),
        ..Default::default()
    };
    // Without root nothing is mounted here; the size is set before the mount is checked.
    let reply = NodeClient::new(plugin.routes())
        .node_expand_volume(Request::new(expand))
        .await;
    assert_eq!(reply.expect_err("nothing mounted").code(), Code::NotFound);
    let get = v1::ControllerGetVolumeRequest {
        volume_id: volume.volume_id,
    };
    let found = controller.controller_get_volume(Request::new(get)).await;
    let found = found.expect("found").into_inner().volume.expect("volume");
    assert_eq!(found.capacity_bytes, 1 << 30);
}

fn range(bytes: i64) -> v1::CapacityRange {
    v1::CapacityRange {
        required_bytes: bytes,
        limit_bytes: 0,
    }
}

#[tokio::test]
async fn a_context_beyond_the_limit_is_refused_before_anything_is_touched() {
    let dir = tempfile::tempdir().expect("folder");
    let mut request = stage(&dir);
    request
        .volume_context
        .insert("k".into(), "v".repeat(MAX_MAP));
    assert_eq!(staged(CONFIG, request).await.code(), Code::InvalidArgument);
    assert!(!dir.path().join("staging").exists());
}
