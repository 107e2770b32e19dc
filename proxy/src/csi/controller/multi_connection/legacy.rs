//! Callers of a legacy name: one of the connections, as if it were alone.

use std::time::Duration;

use csi_proto::v1::identity_server::Identity;

use super::*;
use crate::csi::identity::IdentityHandler;
use crate::routing::connections::{Blueprint, LazyConnection};
use crate::testing::{EVERYTHING, among, under_legacy_name};

fn under(service: &ControllerHandler, connection: &str) -> ControllerHandler {
    ControllerHandler(under_legacy_name(&service.0, connection))
}

#[tokio::test]
async fn handles_without_a_connection_are_of_the_one_of_the_name_and_new_ones_look_the_same() {
    let (service, [a, b]) = two();
    let old = under(&service, "a");
    a.fill(["x".to_owned()], "/x");
    b.fill(["x".to_owned(), "y".to_owned()], "/x");
    let made = made(&old, create("new", &[])).await.expect("made");
    assert_eq!(made.volume_id, "new");
    assert!(a.has("new") && !b.has("new"));
    assert_eq!(listed(&old, 0).await.expect("a list"), ["new", "x"]);
    assert_eq!(listed(&old, 1).await.expect("a list"), ["new", "x"]);
    let mut all = listed(&service, 0).await.expect("a list");
    all.sort();
    assert_eq!(all, ["v:a/new", "v:a/x", "v:b/x", "v:b/y"]);

    deleted(&old, "x").await.expect("deleted");
    assert!(!a.has("x") && b.has("x"));
    deleted(&service, "v:a/new").await.expect("deleted");
    assert!(!a.has("new"));
    // Made when the name was that of a proxy.
    deleted(&old, "v:b/y").await.expect("deleted");
    assert!(!b.has("y"));
}

#[tokio::test]
async fn snapshots_and_copies_of_them_have_such_handles_too() {
    let (service, [a, _]) = two();
    let old = under(&service, "a");
    made(&old, create("v", &[])).await.expect("made");
    let request = v1::CreateSnapshotRequest {
        name: "s".into(),
        source_volume_id: "v".into(),
        ..Default::default()
    };
    let reply = old.create_snapshot(Request::new(request)).await;
    let snapshot = reply.expect("cut").into_inner().snapshot.expect("one");
    assert!(!snapshot.snapshot_id.starts_with("s:"), "{snapshot:?}");
    assert_eq!(snapshot.source_volume_id, "v");
    let request = v1::DeleteSnapshotRequest {
        snapshot_id: format!("s:a/{}", snapshot.snapshot_id),
        ..Default::default()
    };
    let reply = service.delete_snapshot(Request::new(request)).await;
    reply.expect("deleted by its other handle");
    let request = v1::ListSnapshotsRequest {
        snapshot_id: snapshot.snapshot_id,
        ..Default::default()
    };
    let left = old.list_snapshots(Request::new(request)).await;
    assert_eq!(left.expect("a list").into_inner().entries, []);
    assert!(a.has("v"));
}

#[tokio::test]
async fn a_volume_has_one_lock_by_both_of_its_handles() {
    let (service, [a, _]) = two();
    let old = under(&service, "a");
    a.fill(["x".to_owned()], "/x");
    a.trouble(Trouble::Wait);
    let first = tokio::spawn(async move { deleted(&old, "x").await });
    a.entered.notified().await;
    let second = deleted(&service, "v:a/x").await.expect_err("in progress");
    assert_eq!(second.code(), Code::Aborted);
    a.go_on.notify_one();
    first.await.expect("no panic").expect("deleted");
    deleted(&service, "v:a/x").await.expect("deleted already");
}

#[tokio::test]
async fn a_name_whose_connection_is_not_served_says_so_and_is_served_when_it_comes() {
    let (service, _) = two();
    let old = under(&service, "c");
    let words = "connection `c`: it does not exist";
    let refused = [
        made(&old, create("v", &[])).await.map(drop),
        deleted(&old, "v").await,
        listed(&old, 0)
            .await
            .map(drop)
            .map_err(|(_, status)| status),
        old.controller_get_capabilities(Request::new(v1::ControllerGetCapabilitiesRequest {}))
            .await
            .map(drop),
        IdentityHandler(old.0.clone())
            .get_plugin_capabilities(Request::new(v1::GetPluginCapabilitiesRequest {}))
            .await
            .map(drop),
    ];
    for (at, answer) in refused.into_iter().enumerate() {
        let status = answer.expect_err("refused");
        assert!(status.message().contains(words), "{at}: {status:?}");
        let code = if at == 0 {
            // A part of the volume may exist there.
            Code::Unavailable
        } else {
            Code::FailedPrecondition
        };
        assert_eq!(status.code(), code, "{at}: {status:?}");
    }
    let probe = IdentityHandler(old.0.clone());
    probe
        .probe(Request::new(v1::ProbeRequest {}))
        .await
        .expect("it is well");

    let c = Memory::new();
    let connections = &service.0.connections;
    connections.put(LazyConnection::fixed(among("c", &c, "")));
    made(&old, create("v", &[])).await.expect("made");
    assert!(c.has("v"));
    connections.remove(&name("c"));
    deleted(&old, "v").await.expect_err("it is gone again");
}

#[tokio::test]
async fn what_is_advertised_is_what_the_connection_would_advertise_alone() {
    let mut can = EVERYTHING;
    can.snapshots = false;
    can.topology = false;
    let (few, all) = (Memory::with(can), Memory::new());
    let listing = "service: {controller: {capabilities: {rpc: [LIST_VOLUMES]}}}";
    let drivers = [("a", &few, ""), ("b", &all, ""), ("c", &all, listing)];
    let service = ControllerHandler(multi_connection(&drivers, names()));
    let of = async |service: &ControllerHandler| {
        let reply = service
            .controller_get_capabilities(Request::new(v1::ControllerGetCapabilitiesRequest {}));
        let reply = reply.await.expect("an answer").into_inner();
        reply.capabilities.len()
    };
    let (a, b) = (
        of(&under(&service, "a")).await,
        of(&under(&service, "b")).await,
    );
    // That of attaching, which storage of a network has, in place of those of snapshots.
    assert!(a < of(&service).await && a != b, "{a} {b}");
    assert_eq!(of(&under(&service, "c")).await, 1);
    let request = v1::CreateSnapshotRequest {
        name: "s".into(),
        source_volume_id: "v".into(),
        ..Default::default()
    };
    let lacking = under(&service, "a")
        .create_snapshot(Request::new(request))
        .await;
    assert_eq!(
        lacking.expect_err("it has none").code(),
        Code::Unimplemented
    );
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_was_dropped_while_idle_is_built_again_and_stays_while_it_is_used() {
    let (service, [a, _]) = two();
    let old = under(&service, "a");
    let again = a.clone();
    let blueprint = Blueprint::new(move || Ok(among("a", &again, "")));
    let lazy = LazyConnection::new(among("a", &a, ""), blueprint);
    service.0.connections.put(lazy);
    let lazy = service.0.connections.all().remove(0);
    a.fill(["x".to_owned()], "/x");
    tokio::time::advance(Duration::from_hours(2)).await;
    assert!(lazy.let_go(Duration::from_hours(1)));
    assert_eq!(listed(&old, 0).await.expect("a list"), ["x"]);

    a.trouble(Trouble::Wait);
    let busy = tokio::spawn(async move { deleted(&old, "x").await });
    a.entered.notified().await;
    tokio::time::advance(Duration::from_hours(2)).await;
    assert!(!lazy.let_go(Duration::from_hours(1)), "it is in use");
    a.go_on.notify_one();
    busy.await.expect("no panic").expect("deleted");
}
