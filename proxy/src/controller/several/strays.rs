//! Handles that name no connection where none is configured for them.

use driver_core::Capabilities;

use super::*;
use crate::connections::Slot;

fn one(names: Names) -> (ControllerService, Arc<Memory>) {
    let driver = Memory::new();
    let all = [("a", &driver, "")];
    (ControllerService(several(&all, names)), driver)
}

async fn unsnapped(service: &ControllerService, id: &str) -> Result<(), Status> {
    let request = v1::DeleteSnapshotRequest {
        snapshot_id: id.to_owned(),
        ..Default::default()
    };
    service
        .delete_snapshot(Request::new(request))
        .await
        .map(drop)
}

async fn grown(service: &ControllerService, id: &str) -> Result<(), Status> {
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
async fn what_nobody_knows_the_connection_of_is_never_said_to_be_deleted() {
    let (service, driver) = one(Names::default());
    driver.fill(["pvc-1".to_owned()], "/x");
    // Nor what looks like the handle of something else, nor what no storage of these has.
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
    assert_eq!(
        driver.asked(),
        0,
        "nobody is asked for the sake of a success"
    );
    service.0.connections.remove(&name("a"));
    let status = deleted(&service, "pvc-1").await.expect_err("nobody at all");
    assert_eq!(status.code(), Code::FailedPrecondition);
}

#[tokio::test]
async fn a_question_about_what_nobody_knows_is_answered_with_not_found() {
    let (service, _) = one(Names::default());
    let request = v1::ControllerGetVolumeRequest {
        volume_id: "pvc-1".into(),
    };
    let found = service.controller_get_volume(Request::new(request)).await;
    let status = found.expect_err("nobody has it");
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

async fn published(service: &ControllerService, context: &[(&str, &str)]) -> Code {
    let request = v1::ControllerPublishVolumeRequest {
        volume_id: "by-hand".into(),
        node_id: "n=node-1".into(),
        volume_capability: Some(mounted()),
        volume_context: parameters(context),
        ..Default::default()
    };
    let published = service.controller_publish_volume(Request::new(request));
    published
        .await
        .map_or_else(|status| status.code(), |_| Code::Ok)
}

async fn unpublished(service: &ControllerService) -> Code {
    let unpublished = unpublish(service).await;
    unpublished.map_or_else(|status| status.code(), |()| Code::Ok)
}

async fn unpublish(service: &ControllerService) -> Result<(), Status> {
    let request = v1::ControllerUnpublishVolumeRequest {
        volume_id: "by-hand".into(),
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
    let service = ControllerService(several(&both, Names::default()));
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
    let service = ControllerService(several(&both, Names::default()));
    // Its file may come, or be gone: nobody has it, and that proves nothing.
    let status = unpublish(&service).await.expect_err("nobody has it");
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
    // One bad file or one that does not answer says nothing else.
    guarded.trouble(Trouble::Fail(Kind::Unreachable, Effect::None));
    assert_eq!(unpublished(&service).await, Code::FailedPrecondition);
    for connection in ["a", "b"] {
        service.0.connections.remove(&name(connection));
    }
    assert_eq!(unpublished(&service).await, Code::FailedPrecondition);
    assert!(guarded.nodes().is_empty() && plain.nodes().is_empty());
}

#[tokio::test]
async fn of_what_is_said_to_be_nobodys_nobody_is_asked_and_a_bad_file_hurts_nobody() {
    let guarded = guarded();
    let names = Names {
        bare: Bare::Nobodys,
        ..Names::default()
    };
    let service = ControllerService(several(&[("b", &guarded, "")], names));
    let connections = &service.0.connections;
    connections.put(Slot::refused(name("c"), "a mistake in it"));
    assert_eq!(unpublished(&service).await, Code::Ok);
    assert_eq!(guarded.asked(), 0);
    // To delete it is something else: nobody knows that it is gone.
    let status = deleted(&service, "by-hand")
        .await
        .expect_err("it may exist");
    assert_eq!(status.code(), Code::FailedPrecondition);
}
