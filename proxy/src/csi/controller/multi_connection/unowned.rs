//! Handles without a connection if no legacy connection is configured.

use std::time::Duration;

use csi_proto::v1::volume_capability::BlockVolume;
use driver_core::Capabilities;
use tokio::time::Instant;

use super::lacking::publication;
use super::*;
use crate::routing::connections::{Blueprint, LazyConnection};
use crate::testing::among;

fn one(names: Names) -> (ControllerHandler, Arc<Memory>) {
    let driver = Memory::new();
    let all = [("a", &driver, "")];
    (ControllerHandler(multi_connection(&all, names)), driver)
}

async fn unsnapped(service: &ControllerHandler, id: &str) -> Result<(), Status> {
    let request = v1::DeleteSnapshotRequest {
        snapshot_id: id.to_owned(),
        ..Default::default()
    };
    service
        .delete_snapshot(Request::new(request))
        .await
        .map(drop)
}

async fn grown(service: &ControllerHandler, id: &str) -> Result<(), Status> {
    let request = v1::ControllerExpandVolumeRequest {
        volume_id: id.to_owned(),
        capacity_range: Some(csi_proto::v1::CapacityRange {
            required_bytes: 1 << 30,
            limit_bytes: 0,
        }),
        ..Default::default()
    };
    let reply = service.controller_expand_volume(Request::new(request));
    reply.await.map(drop)
}

#[tokio::test]
async fn a_volume_of_an_unknown_connection_is_never_reported_as_deleted() {
    let (service, driver) = one(Names::default());
    driver.fill(["pvc-1".to_owned()], "/x");
    // Nor handles of other objects, nor unknown ones.
    for id in ["pvc-1", "pvc-2", "V:a/pvc-1", "s:a/pvc-1", "g:a/pvc-1"] {
        for refused in [deleted(&service, id).await, grown(&service, id).await] {
            let status = refused.expect_err(id);
            assert_eq!(status.code(), Code::FailedPrecondition, "{id}");
            for part in ["names no connection", "legacyConnection", "by hand"] {
                assert!(status.message().contains(part), "{}", status.message());
            }
        }
    }
    for id in ["snapshot-1", "v:a/snapshot-1"] {
        let status = unsnapped(&service, id).await.expect_err(id);
        assert_eq!(status.code(), Code::FailedPrecondition, "{id}");
    }
    assert!(driver.has("pvc-1"));
    assert_eq!(driver.asked(), 0, "no connection is asked for a success");
    service.0.connections.remove(&name("a"));
    let status = deleted(&service, "pvc-1").await.expect_err("no connection");
    assert_eq!(status.code(), Code::FailedPrecondition);
}

#[tokio::test]
async fn a_query_for_an_unknown_volume_returns_not_found() {
    let (service, _) = one(Names::default());
    let request = v1::ControllerGetVolumeRequest {
        volume_id: "pvc-1".into(),
    };
    let found = service.controller_get_volume(Request::new(request)).await;
    let status = found.expect_err("no connection has it");
    assert_eq!(status.code(), Code::NotFound);
    assert!(
        status.message().contains("legacyConnection"),
        "{}",
        status.message()
    );
    let request = v1::ListSnapshotsRequest {
        snapshot_id: "snapshot-1".into(),
        ..Default::default()
    };
    let listed = service.list_snapshots(Request::new(request)).await;
    assert!(listed.expect("a list").into_inner().entries.is_empty());
}

#[tokio::test]
async fn what_belongs_to_a_connection_is_asked_for_nowhere_else() {
    let (service, driver) = one(Names {
        bare: Bare::Of(name("a")),
        ..Names::default()
    });
    driver.fill(["pvc-1".to_owned()], "/x");
    deleted(&service, "pvc-1").await.expect("deleted");
    assert!(!driver.has("pvc-1"));
    assert_eq!(driver.asked(), 1);
}

async fn published(service: &ControllerHandler, context: &[(&str, &str)]) -> Code {
    let request = v1::ControllerPublishVolumeRequest {
        volume_id: "by-hand".into(),
        volume_context: parameters(context),
        ..publication("n=node-1")
    };
    publish(service, request).await
}

async fn publish(service: &ControllerHandler, request: v1::ControllerPublishVolumeRequest) -> Code {
    let published = service.controller_publish_volume(Request::new(request));
    published
        .await
        .map_or_else(|status| status.code(), |_| Code::Ok)
}

async fn unpublished(service: &ControllerHandler) -> Code {
    let unpublished = unpublish(service).await;
    unpublished.map_or_else(|status| status.code(), |()| Code::Ok)
}

async fn unpublish(service: &ControllerHandler) -> Result<(), Status> {
    unpublish_volume(service, "by-hand").await
}

async fn unpublish_volume(service: &ControllerHandler, volume: &str) -> Result<(), Status> {
    let request = v1::ControllerUnpublishVolumeRequest {
        volume_id: volume.into(),
        node_id: "n=node-1".into(),
        ..Default::default()
    };
    let unpublished = service.controller_unpublish_volume(Request::new(request));
    unpublished.await.map(drop)
}

#[tokio::test]
async fn what_was_made_by_hand_is_published_without_a_connection() {
    let plain = Memory::new();
    let guarded = guarded();
    let both = [("a", &plain, ""), ("b", &guarded, "")];
    let service = ControllerHandler(multi_connection(&both, Names::default()));
    let nfs = ("node_attach_driver", "nfs");
    for (context, expected) in [
        (&[nfs][..], Code::Ok),
        (&[nfs, ("provisioner_driver", "node-manual")], Code::Ok),
        (&[nfs, ("provisioner_driver", "memory")], Code::NotFound),
        (&[], Code::NotFound),
    ] {
        assert_eq!(published(&service, context).await, expected, "{context:?}");
    }
    assert!(guarded.nodes().is_empty() && plain.nodes().is_empty());
}

fn guarded() -> Arc<Memory> {
    Memory::with(Capabilities {
        publish: true,
        ..crate::testing::EVERYTHING
    })
}

#[tokio::test]
async fn no_node_is_said_to_be_shut_out_of_what_may_be_on_storage_that_is_not_here() {
    let (plain, guarded) = (Memory::new(), guarded());
    let both = [("a", &plain, ""), ("b", &guarded, "")];
    let service = ControllerHandler(multi_connection(&both, Names::default()));
    // Its file may come later, or be gone: that no connection has it proves nothing.
    let status = unpublish(&service).await.expect_err("no connection has it");
    assert_eq!(status.code(), Code::FailedPrecondition);
    let message = status.message();
    assert!(message.contains("`none`"), "{message}");
    guarded.fill(["by-hand".to_owned()], "/x");
    let status = unpublish(&service).await.expect_err("`b` has it");
    assert_eq!(status.code(), Code::FailedPrecondition);
    let message = status.message();
    assert!(
        message.contains("connection `b` has something"),
        "{message}"
    );
    // An invalid file or a connection that does not answer changes nothing.
    guarded.trouble(Trouble::Fail(Kind::Unreachable, Effect::None));
    assert_eq!(unpublished(&service).await, Code::FailedPrecondition);
    for connection in ["a", "b"] {
        service.0.connections.remove(&name(connection));
    }
    assert_eq!(unpublished(&service).await, Code::FailedPrecondition);
    assert!(guarded.nodes().is_empty() && plain.nodes().is_empty());
}

#[tokio::test]
async fn a_volume_configured_as_unowned_asks_no_connection_and_a_bad_file_does_no_harm() {
    let guarded = guarded();
    let names = Names {
        bare: Bare::Nobodys,
        ..Names::default()
    };
    let service = ControllerHandler(multi_connection(&[("b", &guarded, "")], names));
    let connections = &service.0.connections;
    connections.put(LazyConnection::refused(name("c"), "a mistake in it"));
    assert_eq!(unpublished(&service).await, Code::Ok);
    assert_eq!(guarded.asked(), 0);
    // A deletion is different: it is unknown whether it is gone.
    let status = deleted(&service, "by-hand")
        .await
        .expect_err("it may exist");
    assert_eq!(status.code(), Code::FailedPrecondition);
}

fn of_b() -> Names {
    Names {
        bare: Bare::Of(name("b")),
        ..Names::default()
    }
}

/// Made by hand, and used as a disk.
fn disk_by_hand() -> v1::ControllerPublishVolumeRequest {
    let mut request = v1::ControllerPublishVolumeRequest {
        volume_id: "by-hand".into(),
        volume_context: parameters(&[("node_attach_driver", "iscsi")]),
        ..publication("n=node-1")
    };
    let capability = request.volume_capability.as_mut().expect("a capability");
    capability.access_type = Some(AccessType::Block(BlockVolume {}));
    request
}

#[tokio::test]
async fn what_was_made_by_hand_is_attached_and_detached_beside_a_deployment_that_was_taken_over() {
    let guarded = guarded();
    let service = ControllerHandler(multi_connection(&[("b", &guarded, "")], of_b()));
    // Its own driver only has files, and is not asked.
    assert_eq!(publish(&service, disk_by_hand()).await, Code::Ok);
    assert_eq!(guarded.asked(), 0);
    // The volumes of that driver belong to it.
    let made = [
        ("node_attach_driver", "nfs"),
        ("provisioner_driver", "memory"),
    ];
    assert_eq!(published(&service, &made).await, Code::Ok);
    assert_eq!(guarded.nodes(), ["+node-1"]);
    // The owner of the volume is unknown when it is detached; a missing volume has no access to
    // revoke.
    assert_eq!(unpublished(&service).await, Code::Ok);
    // Nor ids that no driver can have issued.
    let foreign = || guarded.trouble(Trouble::Fail(Kind::Invalid, Effect::None));
    foreign();
    assert_eq!(unpublished(&service).await, Code::Ok);
    foreign();
    let named = unpublish_volume(&service, "v:b/by-hand").await;
    assert_eq!(named.expect_err("no such id").code(), Code::InvalidArgument);
    // Nor with any name of the node.
    let yaml = "proxy: {perDriver: {nodeIdType: iqn}}";
    let by_iqn = ControllerHandler(multi_connection(&[("b", &guarded, yaml)], of_b()));
    foreign();
    assert_eq!(unpublished(&by_iqn).await, Code::Ok);
    assert_eq!(guarded.nodes().last().map(String::as_str), Some("-*"));
    // But not for an existing one.
    guarded.fill(["by-hand".to_owned()], "/x");
    foreign();
    let refused = unpublish(&service).await.expect_err("it is there");
    assert_eq!(refused.code(), Code::InvalidArgument);
    guarded.trouble(Trouble::Fail(Kind::Invalid, Effect::Possible));
    let refused = unpublish(&service).await.expect_err("it may be half done");
    assert_eq!(refused.code(), Code::Unavailable);
}

#[tokio::test]
async fn where_every_node_is_let_in_no_way_of_use_is_refused_and_nothing_is_asked() {
    let plain = Memory::new();
    let service = ControllerHandler(multi_connection(&[("b", &plain, "")], of_b()));
    for volume in ["v:b/v", "by-hand"] {
        let mut request = disk_by_hand();
        request.volume_id = volume.into();
        request.volume_context.clear();
        assert_eq!(publish(&service, request).await, Code::Ok, "{volume}");
        unpublish_volume(&service, volume).await.expect(volume);
    }
    assert_eq!(plain.asked(), 0);
}

#[tokio::test]
async fn volumes_of_a_connection_that_is_not_there_neither_attach_nor_detach() {
    let (plain, guarded) = (Memory::new(), guarded());
    let both = [("b", &plain, ""), ("c", &guarded, "")];
    let service = ControllerHandler(multi_connection(&both, of_b()));
    let connections = &service.0.connections;
    let of = |volume: &str| v1::ControllerPublishVolumeRequest {
        volume_id: volume.into(),
        ..publication("n=node-1")
    };
    for name_of_one in ["b", "c"] {
        connections.remove(&name(name_of_one));
    }
    // Whether nodes were let in one by one is known to its file alone.
    for volume in ["v:b/v", "by-hand", "v:c/v", "v:never/v"] {
        let refused = publish(&service, of(volume)).await;
        assert_eq!(refused, Code::FailedPrecondition, "{volume}");
        let refused = unpublish_volume(&service, volume).await.expect_err(volume);
        assert_eq!(refused.code(), Code::FailedPrecondition, "{volume}");
        let status = deleted(&service, volume).await.expect_err(volume);
        assert_eq!(status.code(), Code::FailedPrecondition, "{volume}");
    }
    assert_eq!((plain.asked(), guarded.asked()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn advice_waits_only_briefly_for_connections_and_builds_no_driver() {
    let drivers = [(); 3].map(|()| guarded());
    let [a, b, c] = &drivers;
    let all = [("a", a, ""), ("b", b, ""), ("c", c, "")];
    let service = ControllerHandler(multi_connection(&all, Names::default()));
    a.trouble(Trouble::Wait);
    b.trouble(Trouble::Wait);
    c.fill(["by-hand".to_owned()], "/x");
    let rebuilt = guarded();
    let again = {
        let rebuilt = rebuilt.clone();
        Blueprint::new(move || Ok(among("d", &rebuilt, "")))
    };
    let lazy = LazyConnection::new(among("d", &rebuilt, ""), again);
    assert!(lazy.let_go(Duration::ZERO));
    service.0.connections.put(lazy);
    let start = Instant::now();
    let status = unpublish(&service).await.expect_err("`c` has it");
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(status.message().contains("connection `c` has something"));
    assert_eq!(start.elapsed(), Duration::from_secs(5));
    assert_eq!(rebuilt.asked(), 0);
    let connections = service.0.connections.all();
    let d = connections.iter().find(|lazy| lazy.name() == &name("d"));
    assert!(d.expect("there").peek().is_none(), "it was built for that");
}
