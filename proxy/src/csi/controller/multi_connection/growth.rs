//! Growth of storage of the nodes. One controller is asked about the volumes of all nodes.

use std::iter;

use csi_proto::v1::node_server::Node;
use driver_core::{Capabilities, Expansion};

use super::*;
use crate::csi::node::NodeHandler;
use crate::routing::connections::LazyConnection;
use crate::testing::EVERYTHING;

/// The connection `a` with storage of this node, and `net` with storage of a network.
fn of_the_node() -> (ControllerHandler, [Arc<Memory>; 2]) {
    let local = Memory::with(Capabilities {
        expand: Expansion::Node,
        ..EVERYTHING
    });
    let drivers = [local, Memory::new()];
    let all = [("a", &drivers[0], ""), ("net", &drivers[1], "")];
    let plugin = multi_connection(&all, Names::default());
    (ControllerHandler(plugin), drivers)
}

fn to(bytes: i64) -> v1::CapacityRange {
    v1::CapacityRange {
        required_bytes: bytes,
        limit_bytes: 0,
    }
}

/// The size that the controller answers, and whether the node has to go on.
async fn grown(service: &ControllerHandler, id: &str, bytes: i64) -> Result<(i64, bool), Status> {
    let request = v1::ControllerExpandVolumeRequest {
        volume_id: id.to_owned(),
        capacity_range: Some(to(bytes)),
        ..Default::default()
    };
    let reply = service.controller_expand_volume(Request::new(request));
    let reply = reply.await?.into_inner();
    Ok((reply.capacity_bytes, reply.node_expansion_required))
}

/// The size that the node answers, for a volume without a device.
async fn grown_on_node(service: &ControllerHandler, id: &str, bytes: i64) -> Result<i64, Status> {
    let request = v1::NodeExpandVolumeRequest {
        volume_id: id.to_owned(),
        volume_path: "/proc".to_owned(),
        capacity_range: Some(to(bytes)),
        ..Default::default()
    };
    let node = NodeHandler(service.0.clone());
    let reply = node.node_expand_volume(Request::new(request)).await?;
    Ok(reply.into_inner().capacity_bytes)
}

#[tokio::test]
async fn a_volume_of_another_node_is_left_to_that_node() {
    let (service, [local, _]) = of_the_node();
    let left = grown(&service, "v:a/x", 5).await;
    assert_eq!(left.expect("not found here"), (5, true));
    // The second one is that of a node without the programs of the storage.
    for kind in [Kind::Unreachable, Kind::Internal] {
        local.trouble(Trouble::Fail(kind, Effect::None));
        let left = grown(&service, "v:a/x", 6).await;
        assert_eq!(left.expect("another node knows"), (6, true), "{kind:?}");
    }
    assert!(local.growths().is_empty(), "nothing is done here");
}

#[tokio::test]
async fn what_may_not_be_on_another_node_is_an_error() {
    let (service, [local, _]) = of_the_node();
    for id in ["v:a/own-x", "v:net/x"] {
        let status = grown(&service, id, 5).await.expect_err(id);
        assert_eq!(status.code(), Code::NotFound, "{id}");
    }
    for (kind, effect) in [
        (Kind::Unreachable, Effect::Possible),
        (Kind::OutOfRange, Effect::None),
        (Kind::Timeout, Effect::None),
    ] {
        local.trouble(Trouble::Fail(kind, effect));
        let status = grown(&service, "v:a/x", 5).await;
        status.expect_err("it is here, or not known to be absent");
    }
}

#[tokio::test]
async fn a_volume_that_is_here_is_grown_by_the_controller_and_the_node_finds_it_done() {
    let (service, [local, _]) = of_the_node();
    local.fill(["x".to_owned()], "/x");
    let done = grown(&service, "v:a/x", 5).await;
    assert_eq!(done.expect("grown"), (5, false));
    let again = grown_on_node(&service, "v:a/x", 5).await;
    assert_eq!(again.expect("as it is"), 5);
}

#[tokio::test]
async fn the_node_grows_its_own_storage_and_says_what_it_does_not_have() {
    let (service, [local, network]) = of_the_node();
    local.fill(["x".to_owned()], "/x");
    let done = grown_on_node(&service, "v:a/x", 7).await;
    assert_eq!(done.expect("grown"), 7);
    assert_eq!(local.growths(), [("x".to_owned(), 7)]);
    let missing = grown_on_node(&service, "v:a/y", 7).await;
    assert_eq!(missing.expect_err("none").code(), Code::NotFound);
    local.trouble(Trouble::Fail(Kind::Unreachable, Effect::None));
    let away = grown_on_node(&service, "v:a/x", 8).await;
    assert_eq!(away.expect_err("away").code(), Code::Unavailable);
    network.fill(["x".to_owned()], "/x");
    let shared = grown_on_node(&service, "v:net/x", 7).await;
    shared.expect("its controller has grown it");
    assert_eq!(network.asked(), 0);
}

#[tokio::test]
async fn a_node_without_the_connection_grows_what_it_has_of_the_volume() {
    let (service, [local, _]) = of_the_node();
    local.fill(["x".to_owned()], "/x");
    service.0.connections.remove(&name("a"));
    for id in ["v:a/x", "made-by-hand", "v:../x"] {
        grown_on_node(&service, id, 5).await.expect(id);
    }
    assert!(local.growths().is_empty());
}

#[tokio::test]
async fn a_node_whose_controllers_are_elsewhere_grows_without_their_connections() {
    let (mut service, [local, _]) = of_the_node();
    let plugin = Arc::get_mut(&mut service.0).expect("it is used here alone");
    plugin.modes.controller = false;
    // As where inline volumes need one of them.
    let connections = &service.0.connections;
    connections.put(LazyConnection::refused(name("bad"), "it is empty"));
    connections.set_incomplete(Some("a folder cannot be read".to_owned()));
    for id in ["v:net/x", "v:bad/x", "v:unknown/x"] {
        grown_on_node(&service, id, 5).await.expect(id);
    }
    assert!(local.growths().is_empty());
}

#[tokio::test]
async fn a_node_that_may_have_the_storage_claims_no_growth_before_it_knows() {
    let (service, _) = of_the_node();
    let connections = &service.0.connections;
    connections.are_being_read(iter::once(&name("new")));
    connections.put(LazyConnection::refused(name("bad"), "it is empty"));
    connections.set_incomplete(Some("a folder cannot be read".to_owned()));
    for (id, code) in [
        ("v:new/x", Code::Aborted),
        ("v:bad/x", Code::Unavailable),
        ("v:unknown/x", Code::Unavailable),
    ] {
        let status = grown_on_node(&service, id, 5).await.expect_err(id);
        assert_eq!(status.code(), code, "{id}: {}", status.message());
    }
}
