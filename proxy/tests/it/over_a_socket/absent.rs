//! Drivers that lack what has a service of its own.

use super::*;

/// What each call of the two services, and each of the controller that a driver may lack, answers.
async fn answers(served: &Served, connection: &str) -> Vec<(&'static str, Status)> {
    let (volume, snapshot, group) = match connection {
        "" => ("x".to_owned(), "x@s".to_owned(), "g".to_owned()),
        name => (
            format!("v:{name}/x"),
            format!("s:{name}/s"),
            format!("g:{name}/g"),
        ),
    };
    let create = v1::CreateVolumeGroupSnapshotRequest {
        name: "g".into(),
        source_volume_ids: vec![volume],
        ..Default::default()
    };
    let delete = v1::DeleteVolumeGroupSnapshotRequest {
        group_snapshot_id: group.clone(),
        snapshot_ids: vec![snapshot.clone()],
        ..Default::default()
    };
    let get = v1::GetVolumeGroupSnapshotRequest {
        group_snapshot_id: group,
        snapshot_ids: vec![snapshot.clone()],
        ..Default::default()
    };
    let allocated = v1::GetMetadataAllocatedRequest {
        snapshot_id: snapshot.clone(),
        ..Default::default()
    };
    let delta = v1::GetMetadataDeltaRequest {
        base_snapshot_id: snapshot.clone(),
        target_snapshot_id: snapshot,
        ..Default::default()
    };
    let (mut groups, mut ranges) = (served.groups(), served.ranges());
    let create = groups.create_volume_group_snapshot(create).await.err();
    let delete = groups.delete_volume_group_snapshot(delete).await.err();
    let get = groups.get_volume_group_snapshot(get).await.err();
    let allocated = ranges.get_metadata_allocated(allocated).await.err();
    let delta = ranges.get_metadata_delta(delta).await.err();
    let all = [
        ("CreateVolumeGroupSnapshot", create),
        ("DeleteVolumeGroupSnapshot", delete),
        ("GetVolumeGroupSnapshot", get),
        ("GetMetadataAllocated", allocated),
        ("GetMetadataDelta", delta),
    ];
    all.map(|(call, status)| (call, status.expect(call))).into()
}

async fn group_capabilities(served: &Served) -> Result<usize, Status> {
    let request = v1::GroupControllerGetCapabilitiesRequest {};
    let reply = served
        .groups()
        .group_controller_get_capabilities(request)
        .await;
    Ok(reply?.into_inner().capabilities.len())
}

#[tokio::test]
async fn what_the_only_driver_lacks_is_unimplemented_and_not_advertised() {
    let driver = Arc::new(without_services());
    let served = serve_alone(&driver).await;
    assert_eq!(served.advertised().await, [1, 2], "controller and topology");
    for (call, status) in answers(&served, "").await {
        assert_eq!(status.code(), Code::Unimplemented, "{call}: {status:?}");
    }
    let status = group_capabilities(&served).await.expect_err("no groups");
    is(&status, Code::Unimplemented, "");
    let modify = v1::ControllerModifyVolumeRequest::default();
    let status = served.controller().controller_modify_volume(modify).await;
    is(&status.expect_err("no modifier"), Code::Unimplemented, "");
}

#[tokio::test]
async fn what_no_connection_has_is_unimplemented_and_not_advertised() {
    let served = pair(&[without_services(), without_services()].map(Arc::new)).await;
    assert_eq!(served.advertised().await, [1, 2], "controller and topology");
    for (call, status) in answers(&served, "a").await {
        assert_eq!(status.code(), Code::Unimplemented, "{call}: {status:?}");
    }
    let status = group_capabilities(&served).await.expect_err("no groups");
    is(&status, Code::Unimplemented, "");
}

#[tokio::test]
async fn what_one_connection_of_two_has_is_advertised_and_the_other_says_that_it_lacks_it() {
    let drivers = [FakeDriver::new(), without_services()].map(Arc::new);
    let served = pair(&drivers).await;
    assert_eq!(served.advertised().await, [1, 2, 3, 4]);
    assert_eq!(group_capabilities(&served).await.expect("groups"), 1);
    for name in ["a/x", "b/x"] {
        served.volume(name, 4096).await;
    }
    for (call, status) in answers(&served, "b").await {
        assert_eq!(status.code(), Code::InvalidArgument, "{call}: {status:?}");
        assert!(status.message().contains("`b`"), "{call}: {status:?}");
    }
}

#[tokio::test]
async fn a_list_of_the_configuration_decides_what_is_advertised_and_not_what_is_served() {
    let driver = Arc::new(FakeDriver::new());
    let list =
        "{driver: fake, service: {identity: {capabilities: {service: [CONTROLLER_SERVICE]}}}}";
    let served = serve(of_one(driver, list)).await;
    assert_eq!(served.advertised().await, [1]);
    assert_eq!(group_capabilities(&served).await.expect("groups"), 1);
}
