//! The Controller service over a driver in memory: replies, limits on the way out, refusals.

use csi_proto::v1::volume_capability::{
    AccessMode, AccessType, BlockVolume, MountVolume, access_mode::Mode,
};
use csi_proto::v1::volume_content_source::{SnapshotSource, Type as Content, VolumeSource};
use driver_core::{Capabilities, Expansion};
use prost::Message;
use tonic::Code;

use super::*;
use crate::testing::{EVERYTHING, Memory, Trouble, plugin};

const CONFIG: &str = "driver: memory";

fn service(driver: &Arc<Memory>, yaml: &str) -> ControllerHandler {
    ControllerHandler(plugin(driver, yaml))
}

fn mounted() -> v1::VolumeCapability {
    v1::VolumeCapability {
        access_mode: Some(AccessMode {
            mode: Mode::SingleNodeWriter.into(),
        }),
        access_type: Some(AccessType::Mount(MountVolume::default())),
    }
}

fn block() -> v1::VolumeCapability {
    v1::VolumeCapability {
        access_type: Some(AccessType::Block(BlockVolume {})),
        ..mounted()
    }
}

fn create(name: &str) -> v1::CreateVolumeRequest {
    v1::CreateVolumeRequest {
        name: name.to_owned(),
        volume_capabilities: vec![mounted()],
        ..v1::CreateVolumeRequest::default()
    }
}

fn source(content: Content) -> v1::VolumeContentSource {
    v1::VolumeContentSource {
        r#type: Some(content),
    }
}

async fn made(
    service: &ControllerHandler,
    request: v1::CreateVolumeRequest,
) -> Result<v1::Volume, Status> {
    let reply = service.create_volume(Request::new(request)).await?;
    Ok(reply.into_inner().volume.expect("a volume"))
}

#[tokio::test]
async fn a_created_volume_says_where_it_is_who_made_it_and_what_of() {
    let driver = Memory::new();
    let service = service(&driver, "{driver: memory, instance_id: i1}");
    let content = source(Content::Volume(VolumeSource {
        volume_id: "old".into(),
    }));
    let mut request = create("a");
    request.volume_content_source = Some(content.clone());
    let volume = made(&service, request).await.expect("created");
    assert_eq!(volume.volume_id, "a");
    assert_eq!(volume.capacity_bytes, 1 << 30);
    assert_eq!(volume.content_source, Some(content));
    let context = [
        ("node_attach_driver", "hostpath"),
        ("path", "/a"),
        ("provisioner_driver", "memory"),
        ("provisioner_driver_instance_id", "i1"),
    ];
    let context = context.map(|(k, v)| (k.to_owned(), v.to_owned()));
    assert_eq!(volume.volume_context, context.into());
    let node = volume.accessible_topology[0].segments.values().next();
    assert_eq!(node.map(String::as_str), Some("node-1"));
}

#[tokio::test]
async fn what_the_orchestrator_could_not_store_is_refused_before_anything_is_made() {
    let driver = Memory::new();
    let service = service(&driver, CONFIG);
    let status = made(&service, create("long"))
        .await
        .expect_err("an id of 129");
    assert_eq!(status.code(), Code::InvalidArgument);
    assert_eq!(driver.asked(), 0);
}

#[tokio::test]
async fn a_volume_that_cannot_be_encoded_is_reported_as_unfinished_and_not_as_done() {
    let driver = Memory::new();
    let service = service(&driver, CONFIG);
    driver.trouble(Trouble::Oversize);
    let status = made(&service, create("a"))
        .await
        .expect_err("a context too long");
    assert_eq!(status.code(), Code::Unavailable, "it exists: not final");
    driver.trouble(Trouble::Oversize);
    let request = v1::CreateSnapshotRequest {
        source_volume_id: "a".into(),
        name: "s".into(),
        ..Default::default()
    };
    let reply = service.create_snapshot(Request::new(request)).await;
    assert_eq!(reply.expect_err("an id of 129").code(), Code::Unavailable);
}

#[tokio::test]
async fn an_unsupported_capability_is_rejected_or_reported_or_has_no_capacity() {
    let driver = Memory::new();
    let service = service(&driver, CONFIG);
    let mut request = create("a");
    request.volume_capabilities.push(block());
    let status = made(&service, request).await.expect_err("a raw device");
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(
        status.message().starts_with("invalid capability"),
        "{}",
        status.message()
    );
    made(&service, create("a")).await.expect("created");

    let validate = |volume_id: &str, capability| {
        let request = v1::ValidateVolumeCapabilitiesRequest {
            volume_id: volume_id.into(),
            volume_capabilities: vec![capability],
            parameters: [("k".into(), "v".into())].into(),
            ..Default::default()
        };
        service.validate_volume_capabilities(Request::new(request))
    };
    let yes = validate("a", mounted()).await.expect("valid").into_inner();
    let confirmed = yes.confirmed.expect("confirmed");
    assert_eq!(confirmed.volume_capabilities, [mounted()]);
    assert_eq!(confirmed.parameters["k"], "v");
    let no = validate("a", block()).await.expect("valid").into_inner();
    assert!(no.confirmed.is_none() && !no.message.is_empty());
    let none = validate("b", mounted()).await.expect_err("no such volume");
    assert_eq!(none.code(), Code::NotFound);

    let room = |capability| {
        let request = v1::GetCapacityRequest {
            volume_capabilities: vec![capability],
            ..Default::default()
        };
        service.get_capacity(Request::new(request))
    };
    let some = room(mounted()).await.expect("room").into_inner();
    assert_eq!(
        (some.available_capacity, some.maximum_volume_size),
        (i64::MAX, Some(5))
    );
    let none = room(block()).await.expect("no room").into_inner();
    assert_eq!(none, v1::GetCapacityResponse::default());
}

#[tokio::test]
async fn a_context_is_confirmed_only_if_it_leads_to_the_volume() {
    let driver = Memory::new();
    let service = service(&driver, CONFIG);
    let volume = made(&service, create("a")).await.expect("created");
    let confirmed = async |key: &str, value: &str| {
        let mut volume_context = volume.volume_context.clone();
        volume_context.insert(key.into(), value.into());
        let request = v1::ValidateVolumeCapabilitiesRequest {
            volume_id: "a".into(),
            volume_capabilities: vec![mounted()],
            volume_context,
            ..Default::default()
        };
        let reply = service.validate_volume_capabilities(Request::new(request));
        let reply = reply.await.expect("an answer").into_inner();
        assert_eq!(reply.confirmed.is_some(), reply.message.is_empty());
        reply.confirmed.is_some()
    };
    assert!(confirmed("path", "/a").await);
    assert!(confirmed("storage.kubernetes.io/csiProvisionerIdentity", "x").await);
    assert!(!confirmed("path", "/b").await);
    assert!(!confirmed("node_attach_driver", "nfs").await);
}

#[tokio::test]
async fn the_access_modes_of_the_configuration_replace_those_of_the_driver() {
    let driver = Memory::new();
    let yaml = "{driver: memory, csi: {access_modes: [MULTI_NODE_READER_ONLY]}}";
    let service = service(&driver, yaml);
    let status = made(&service, create("a")).await.expect_err("a writer");
    assert_eq!(status.code(), Code::InvalidArgument);
    let why = "access mode SINGLE_NODE_WRITER is not supported, only MULTI_NODE_READER_ONLY";
    assert!(status.message().ends_with(why), "{}", status.message());
    let mut request = create("a");
    request.volume_capabilities[0].access_mode = Some(AccessMode {
        mode: Mode::MultiNodeReaderOnly.into(),
    });
    assert!(made(&service, request).await.is_ok());
}

#[tokio::test]
async fn a_volume_that_is_retained_is_deleted_without_asking_the_driver() {
    let driver = Memory::new();
    let yaml = "{driver: memory, _private: {csi: {volume: {deleteStrategy: retain}}}}";
    let service = service(&driver, yaml);
    made(&service, create("a")).await.expect("created");
    let request = v1::DeleteVolumeRequest {
        volume_id: "a".into(),
        ..Default::default()
    };
    assert!(service.delete_volume(Request::new(request)).await.is_ok());
    assert!(driver.has("a"));
}

#[tokio::test]
async fn a_source_is_not_deleted_while_it_is_copied() {
    let driver = Memory::new();
    let service = service(&driver, CONFIG);
    driver.trouble(Trouble::Wait);
    let mut request = create("copy");
    request.volume_content_source = Some(source(Content::Volume(VolumeSource {
        volume_id: "old".into(),
    })));
    let copying = tokio::spawn({
        let service = service.clone();
        async move { made(&service, request).await }
    });
    driver.entered.notified().await;
    let delete = v1::DeleteVolumeRequest {
        volume_id: "old".into(),
        ..Default::default()
    };
    let status = service.delete_volume(Request::new(delete)).await;
    assert_eq!(status.expect_err("in use").code(), Code::Aborted);
    let mut beside = create("second");
    beside.volume_content_source = Some(source(Content::Volume(VolumeSource {
        volume_id: "old".into(),
    })));
    assert!(made(&service, beside).await.is_ok(), "a source is shared");
    driver.go_on.notify_one();
    assert!(copying.await.expect("task").is_ok());
}

#[tokio::test]
async fn pages_hold_every_volume_once_and_never_more_than_a_client_can_receive() {
    let driver = Memory::new();
    let service = service(&driver, CONFIG);
    // 900 contexts of some 3,000 bytes: 2.7 MB in all.
    let ids: Vec<String> = (0..900).map(|n| format!("v{n:04}")).collect();
    driver.fill(ids.clone(), &format!("/{}", "p".repeat(3_000)));
    let mut found = Vec::new();
    let mut token = String::new();
    let mut pages = 0;
    loop {
        let request = v1::ListVolumesRequest {
            max_entries: 0,
            starting_token: token,
        };
        let reply = service
            .list_volumes(Request::new(request))
            .await
            .expect("a page");
        let reply = reply.into_inner();
        assert!(
            reply.encoded_len() <= 1 << 20,
            "{} bytes",
            reply.encoded_len()
        );
        let entries = reply.entries.into_iter();
        found.extend(entries.map(|e| e.volume.expect("a volume").volume_id));
        pages += 1;
        token = reply.next_token;
        if token.is_empty() {
            break;
        }
    }
    assert_eq!(found, ids);
    assert!(pages > 1);
    let foreign = v1::ListVolumesRequest {
        max_entries: 0,
        starting_token: "foreign".into(),
    };
    let status = service.list_volumes(Request::new(foreign)).await;
    assert_eq!(status.expect_err("not ours").code(), Code::Aborted);
}

#[tokio::test]
async fn a_snapshot_that_does_not_exist_is_an_empty_list_and_not_found_by_itself() {
    let driver = Memory::new();
    let service = service(&driver, CONFIG);
    let request = v1::CreateSnapshotRequest {
        source_volume_id: "a".into(),
        name: "s".into(),
        ..Default::default()
    };
    let reply = service
        .create_snapshot(Request::new(request))
        .await
        .expect("cut");
    let snapshot = reply.into_inner().snapshot.expect("a snapshot");
    let list = async |snapshot_id: &str, source_volume_id: &str| {
        let request = v1::ListSnapshotsRequest {
            snapshot_id: snapshot_id.into(),
            source_volume_id: source_volume_id.into(),
            ..Default::default()
        };
        let reply = service.list_snapshots(Request::new(request)).await;
        let entries = reply.expect("a list").into_inner().entries.into_iter();
        entries
            .filter_map(|entry| entry.snapshot)
            .collect::<Vec<_>>()
    };
    for (id, volume) in [("s", ""), ("", "a"), ("s", "a"), ("", "")] {
        assert_eq!(
            list(id, volume).await,
            std::slice::from_ref(&snapshot),
            "{id:?} {volume:?}"
        );
    }
    for (id, volume) in [("t", ""), ("", "b"), ("s", "b"), ("t", "a")] {
        assert_eq!(list(id, volume).await, [], "{id:?} {volume:?}");
    }
    let request = v1::GetSnapshotRequest {
        snapshot_id: "t".into(),
        ..Default::default()
    };
    let status = service.get_snapshot(Request::new(request)).await;
    assert_eq!(status.expect_err("none").code(), Code::NotFound);
}

#[tokio::test]
async fn a_volume_reports_its_condition_where_that_was_advertised() {
    let driver = Memory::new();
    let get = async |yaml: &str| {
        let service = service(&driver, yaml);
        made(&service, create("a")).await.expect("created");
        let request = v1::ControllerGetVolumeRequest {
            volume_id: "a".into(),
        };
        let reply = service.controller_get_volume(Request::new(request)).await;
        let status = reply.expect("found").into_inner().status.expect("a status");
        status.volume_condition
    };
    let with = "{driver: memory, service: {controller: {capabilities: {rpc: [VOLUME_CONDITION]}}}}";
    let condition = get(with).await.expect("as configured");
    assert!(!condition.abnormal && condition.message.starts_with("not examined"));
    assert_eq!(get(CONFIG).await, None, "its storage does not tell");
}

#[tokio::test]
async fn calls_that_a_driver_lacks_are_unimplemented_whatever_is_advertised() {
    let driver = Memory::with(Capabilities::NONE);
    let yaml = "{driver: memory, service: {controller: {capabilities: {rpc: [CREATE_DELETE_VOLUME, \
                PUBLISH_UNPUBLISH_VOLUME, CREATE_DELETE_SNAPSHOT, MODIFY_VOLUME]}}}}";
    let service = service(&driver, yaml);
    let create = service.create_volume(Request::new(create("a"))).await;
    assert_eq!(create.expect_err("lacking").code(), Code::Unimplemented);
    let delete = v1::DeleteVolumeRequest {
        volume_id: "a".into(),
        ..Default::default()
    };
    let delete = service.delete_volume(Request::new(delete)).await;
    assert_eq!(delete.expect_err("lacking").code(), Code::Unimplemented);
    let publish = v1::ControllerPublishVolumeRequest {
        volume_id: "a".into(),
        node_id: "n".into(),
        volume_capability: Some(mounted()),
        ..Default::default()
    };
    let publish = service
        .controller_publish_volume(Request::new(publish))
        .await;
    assert_eq!(publish.expect_err("lacking").code(), Code::Unimplemented);
    let unpublish = v1::ControllerUnpublishVolumeRequest {
        volume_id: "a".into(),
        ..Default::default()
    };
    let unpublish = service
        .controller_unpublish_volume(Request::new(unpublish))
        .await;
    assert_eq!(unpublish.expect_err("lacking").code(), Code::Unimplemented);
    let snapshot = v1::CreateSnapshotRequest {
        source_volume_id: "a".into(),
        name: "s".into(),
        ..Default::default()
    };
    let snapshot = service.create_snapshot(Request::new(snapshot)).await;
    assert_eq!(snapshot.expect_err("lacking").code(), Code::Unimplemented);
    let modify = v1::ControllerModifyVolumeRequest::default();
    let modify = service.controller_modify_volume(Request::new(modify)).await;
    assert_eq!(modify.expect_err("lacking").code(), Code::Unimplemented);
    assert_eq!(driver.asked(), 0);
}

#[tokio::test]
async fn volumes_are_modified_by_mutable_parameters_alone() {
    let driver = Memory::with(Capabilities {
        modify: true,
        ..EVERYTHING
    });
    let service = service(&driver, CONFIG);
    made(&service, create("a")).await.expect("made");
    let modify = async |volume: &str, key: &str, value: &str| {
        let request = v1::ControllerModifyVolumeRequest {
            volume_id: volume.into(),
            mutable_parameters: [(key.to_owned(), value.to_owned())].into(),
            ..Default::default()
        };
        let reply = service.controller_modify_volume(Request::new(request));
        reply.await.map(drop).map_err(|status| status.code())
    };
    assert_eq!(modify("a", "speed", "fast").await, Ok(()));
    assert_eq!(driver.speed("a").as_deref(), Some("fast"));
    assert_eq!(modify("a", "speed", "fast").await, Ok(()), "idempotent");
    for (volume, key, value, code) in [
        ("a", "size", "1", Code::InvalidArgument),
        ("a", "speed", "", Code::InvalidArgument),
        ("b", "speed", "slow", Code::NotFound),
        ("", "speed", "slow", Code::InvalidArgument),
    ] {
        assert_eq!(
            modify(volume, key, value).await,
            Err(code),
            "{volume} {key}"
        );
    }
    assert_eq!(driver.speed("a").as_deref(), Some("fast"));
}

#[tokio::test]
async fn a_source_that_the_driver_cannot_copy_is_an_invalid_request() {
    let driver = Memory::with(Capabilities {
        snapshots: false,
        clones: false,
        expand: Expansion::None,
        ..EVERYTHING
    });
    let service = service(&driver, CONFIG);
    for content in [
        Content::Volume(VolumeSource {
            volume_id: "v".into(),
        }),
        Content::Snapshot(SnapshotSource {
            snapshot_id: "s".into(),
        }),
    ] {
        let mut request = create("a");
        request.volume_content_source = Some(source(content));
        let status = made(&service, request).await.expect_err("no copies");
        assert_eq!(status.code(), Code::InvalidArgument);
    }
    // Each time only for a part that an earlier call started.
    assert_eq!(driver.asked(), 2);
    assert!(!driver.has("a"));
}

#[tokio::test]
async fn hostile_ids_reach_the_driver_as_ids_or_not_at_all() {
    let driver = Memory::new();
    let service = service(&driver, CONFIG);
    for id in [
        "a\u{0}",
        "a\u{1b}[31m",
        "\u{7f}",
        "a\u{85}b",
        &"x".repeat(513),
    ] {
        let request = v1::DeleteVolumeRequest {
            volume_id: id.into(),
            ..Default::default()
        };
        let status = service.delete_volume(Request::new(request)).await;
        let status = status.expect_err("banned");
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(!status.message().chars().any(char::is_control));
    }
    assert_eq!(driver.asked(), 0);
}

#[tokio::test]
async fn a_grown_volume_says_its_size() {
    let driver = Memory::new();
    let service = service(&driver, CONFIG);
    made(&service, create("a")).await.expect("created");
    let expand = |volume_id: &str, capability| {
        let request = v1::ControllerExpandVolumeRequest {
            volume_id: volume_id.into(),
            capacity_range: Some(v1::CapacityRange {
                required_bytes: 5,
                limit_bytes: 0,
            }),
            volume_capability: capability,
            ..Default::default()
        };
        service.controller_expand_volume(Request::new(request))
    };
    let grown = expand("a", None).await.expect("grown").into_inner();
    assert_eq!(
        (grown.capacity_bytes, grown.node_expansion_required),
        (5, false)
    );
    let missing = expand("b", Some(mounted())).await.expect_err("none");
    assert_eq!(missing.code(), Code::NotFound);
    let other = expand("a", Some(block())).await.expect_err("a raw device");
    assert_eq!(other.code(), Code::InvalidArgument);
}
