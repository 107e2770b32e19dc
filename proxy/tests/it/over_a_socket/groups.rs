//! Groups of snapshots.

use driver_core::contract::fake::{Gate, Moment, Trick, Verb};

use super::*;
use crate::log;

async fn grouped(
    served: &Served,
    name: &str,
    volumes: &[&str],
) -> Result<v1::VolumeGroupSnapshot, Status> {
    let request = v1::CreateVolumeGroupSnapshotRequest {
        name: name.to_owned(),
        source_volume_ids: strings(volumes),
        secrets: secrets(),
        ..Default::default()
    };
    let reply = served
        .groups()
        .create_volume_group_snapshot(request)
        .await?;
    Ok(reply.into_inner().group_snapshot.expect("a group"))
}

async fn got(
    served: &Served,
    group: &str,
    snapshots: &[String],
) -> Result<v1::VolumeGroupSnapshot, Status> {
    let request = v1::GetVolumeGroupSnapshotRequest {
        group_snapshot_id: group.to_owned(),
        snapshot_ids: snapshots.to_vec(),
        secrets: secrets(),
    };
    let reply = served.groups().get_volume_group_snapshot(request).await?;
    Ok(reply.into_inner().group_snapshot.expect("a group"))
}

async fn deleted(served: &Served, group: &str, snapshots: &[String]) -> Result<(), Status> {
    let request = v1::DeleteVolumeGroupSnapshotRequest {
        group_snapshot_id: group.to_owned(),
        snapshot_ids: snapshots.to_vec(),
        secrets: secrets(),
    };
    let mut client = served.groups();
    client.delete_volume_group_snapshot(request).await.map(drop)
}

fn members(group: &v1::VolumeGroupSnapshot) -> Vec<String> {
    let ids = group.snapshots.iter().map(|s| s.snapshot_id.clone());
    ids.collect()
}

fn sources(group: &v1::VolumeGroupSnapshot) -> Vec<&str> {
    let ids = group.snapshots.iter().map(|s| &*s.source_volume_id);
    ids.collect()
}

#[tokio::test]
async fn a_group_is_made_once_found_and_deleted_whole_and_its_snapshots_know_it() {
    log::listen();
    let (served, _) = alone().await;
    assert!(served.advertised().await.contains(&3));
    let request = v1::GroupControllerGetCapabilitiesRequest {};
    let reply = served
        .groups()
        .group_controller_get_capabilities(request)
        .await;
    assert_eq!(reply.expect("a list").into_inner().capabilities.len(), 1);
    for name in ["x", "y", "z"] {
        served.volume(name, 4096).await;
    }

    let group = grouped(&served, "g", &["x", "y"]).await.expect("a group");
    let id = &*group.group_snapshot_id;
    assert!(group.ready_to_use && group.creation_time.is_some());
    assert_eq!(sources(&group), ["x", "y"]);
    let of_group = |snapshot: &v1::Snapshot| snapshot.group_snapshot_id == id;
    assert!(group.snapshots.iter().all(of_group));
    let again = grouped(&served, "g", &["y", "x"]).await;
    assert_eq!(again.expect("the same"), group, "it was made once");
    for others in [&["x", "z"][..], &["x"]] {
        let status = grouped(&served, "g", others).await.expect_err("others");
        is(&status, Code::AlreadyExists, "");
    }

    let own = served.snapshot("z", "s").await;
    let listed = served.snapshots().await;
    let (of_a_group, single): (Vec<_>, Vec<_>) = listed.into_iter().partition(of_group);
    assert_eq!(of_a_group, group.snapshots);
    assert_eq!(single[0].snapshot_id, own);
    assert_eq!(single[0].group_snapshot_id, "");
    let ids = members(&group);
    let turned: Vec<_> = ids.iter().rev().cloned().collect();
    assert_eq!(got(&served, id, &turned).await.expect("found"), group);
    let status = served.delete_snapshot(&ids[0]).await.expect_err("a member");
    is(&status, Code::InvalidArgument, "group");
    for wrong in [&ids[..1], &[ids[0].clone(), own.clone()], &[]] {
        let status = got(&served, id, wrong).await.expect_err("others");
        is(&status, Code::InvalidArgument, "");
        let status = deleted(&served, id, wrong).await.expect_err("others");
        is(&status, Code::InvalidArgument, "");
    }

    for _ in 0..2 {
        deleted(&served, id, &ids).await.expect("deleted");
    }
    for (missing, list) in [(id, &ids[..]), ("no-such-group", &[])] {
        let status = got(&served, missing, list).await.expect_err("gone");
        is(&status, Code::NotFound, "");
        deleted(&served, missing, list).await.expect("gone");
    }
    assert_eq!(served.snapshots().await.len(), 1, "the other one is left");
    served.counts(
        "omnibus_csi_rpc_total{rpc=\"CreateVolumeGroupSnapshot\",code=\"OK\",connection=\"\"} 2",
    );
    let heard = log::heard();
    assert!(
        heard.contains("CreateVolumeGroupSnapshot succeeded"),
        "{heard}"
    );
    assert!(!heard.contains(SECRET), "{heard}");
}

#[tokio::test]
async fn a_group_that_cannot_be_made_leaves_nothing_and_says_why() {
    let (served, driver) = alone().await;
    served.volume("x", 4096).await;
    for (volumes, code, text) in [
        (&["x", "missing"][..], Code::NotFound, "missing"),
        (&["x", "x"], Code::InvalidArgument, "`x` is there twice"),
        (&["x", ""], Code::InvalidArgument, "source_volume_ids"),
        (&[], Code::InvalidArgument, "source_volume_ids"),
    ] {
        let status = grouped(&served, "g", volumes).await.expect_err(text);
        is(&status, code, text);
    }
    let status = grouped(&served, "", &["x"]).await.expect_err("no name");
    is(&status, Code::InvalidArgument, "name");
    let mut request = v1::CreateVolumeGroupSnapshotRequest {
        name: "g".into(),
        source_volume_ids: strings(&["x"]),
        ..Default::default()
    };
    request.secrets.insert(format!("{SECRET} "), SECRET.into());
    let reply = served.groups().create_volume_group_snapshot(request).await;
    is(&reply.expect_err("a key"), Code::InvalidArgument, "secrets");
    assert_eq!(
        driver.calls(Verb::CreateGroup),
        1,
        "the rest was not asked for"
    );
    assert_eq!(served.snapshots().await, []);
}

#[tokio::test]
async fn a_group_that_is_being_made_keeps_others_out_and_outlives_its_client() {
    let (served, driver) = alone().await;
    for name in ["x", "y"] {
        served.volume(name, 4096).await;
    }
    let gate = Gate::new();
    let trick = Trick::Block(gate.clone());
    driver.play(Verb::CreateGroup, Moment::BeforeChange, trick);
    {
        let first = std::pin::pin!(grouped(&served, "g", &["x", "y"]));
        // The client leaves while the work is under way.
        tokio::select! {
            _ = first => panic!("the work waits"),
            () = gate.reached() => {}
        }
    }
    let status = grouped(&served, "g", &["x"]).await.expect_err("the name");
    is(&status, Code::Aborted, "CreateVolumeGroupSnapshot");
    let request = v1::DeleteVolumeRequest {
        volume_id: "y".into(),
        ..Default::default()
    };
    let status = served.controller().delete_volume(request).await;
    is(&status.expect_err("a source"), Code::Aborted, "volume `y`");
    gate.open();
    served.idle().await;
    let group = grouped(&served, "g", &["x", "y"])
        .await
        .expect("it is there");
    assert_eq!(driver.calls(Verb::CreateGroup), 2);
    deleted(&served, &group.group_snapshot_id, &members(&group))
        .await
        .expect("nothing is locked");
}

#[tokio::test]
async fn groups_that_have_a_volume_in_common_do_not_wait_for_each_other() {
    let (served, driver) = alone().await;
    for name in ["x", "y", "z"] {
        served.volume(name, 4096).await;
    }
    let gate = Gate::new();
    let trick = Trick::Block(gate.clone());
    driver.play(Verb::CreateGroup, Moment::BeforeChange, trick);
    let second = async {
        gate.reached().await;
        let group = grouped(&served, "h", &["z", "y"]).await;
        gate.open();
        group.expect("beside the first")
    };
    let (first, second) = tokio::join!(grouped(&served, "g", &["y", "x"]), second);
    assert_eq!(sources(&first.expect("a group")), ["y", "x"]);
    assert_eq!(sources(&second), ["z", "y"]);
}

#[tokio::test]
async fn what_became_of_a_group_is_not_said_to_be_known_when_it_is_not() {
    let (served, driver) = alone().await;
    served.volume("x", 4096).await;
    let fail = |kind| Trick::Fail(kind);
    let verb = Verb::CreateGroup;
    driver.play(verb, Moment::AfterChange, fail(driver_core::Kind::Internal));
    driver.play(
        verb,
        Moment::BeforeChange,
        fail(driver_core::Kind::Internal),
    );
    for _ in 0..2 {
        let status = grouped(&served, "g", &["x"]).await.expect_err("half-way");
        is(&status, Code::Unavailable, "");
    }
    grouped(&served, "g", &["x"]).await.expect("it is there");
}

#[tokio::test]
async fn a_group_is_of_one_connection_and_its_handles_say_of_which() {
    let (served, [a, b]) = two().await;
    assert!(served.advertised().await.contains(&3));
    for name in ["a/x", "a/y", "b/x"] {
        served.volume(name, 4096).await;
    }
    let status = grouped(&served, "g", &["v:a/x", "v:b/x"]).await;
    let status = status.expect_err("two connections");
    is(
        &status,
        Code::InvalidArgument,
        "`v:a/x` is on connection `a`, and `v:b/x` is on connection `b`",
    );
    assert_eq!(
        (a.calls(Verb::CreateGroup), b.calls(Verb::CreateGroup)),
        (0, 0)
    );

    let group = grouped(&served, "g", &["v:a/x", "v:a/y"])
        .await
        .expect("a group");
    let other = grouped(&served, "g", &["v:b/x"])
        .await
        .expect("another one");
    let id = &*group.group_snapshot_id;
    assert!(id.starts_with("g:a/") && other.group_snapshot_id.starts_with("g:b/"));
    assert_eq!(sources(&group), ["v:a/x", "v:a/y"]);
    let ids = members(&group);
    assert!(ids.iter().all(|id| id.starts_with("s:a/")), "{ids:?}");
    let listed = served.snapshots().await;
    let of_group = listed.iter().filter(|s| s.group_snapshot_id == id);
    assert_eq!(of_group.count(), 2);
    assert_eq!(got(&served, id, &ids).await.expect("found"), group);

    let foreign = [ids[0].clone(), members(&other)[0].clone()];
    let status = deleted(&served, id, &foreign)
        .await
        .expect_err("of another");
    is(&status, Code::InvalidArgument, "connection `b`");
    let status = deleted(&served, id, &members(&other))
        .await
        .expect_err("of another");
    is(&status, Code::InvalidArgument, "connection `b`");
    let status = deleted(&served, "g:c/group", &ids)
        .await
        .expect_err("nowhere");
    is(&status, Code::FailedPrecondition, "connection `c`");
    let status = deleted(&served, "group", &ids)
        .await
        .expect_err("no connection");
    is(&status, Code::FailedPrecondition, "names no connection");
    deleted(&served, id, &ids).await.expect("deleted");
    let left = served.snapshots().await;
    assert_eq!(left, other.snapshots, "of the other connection");
}
