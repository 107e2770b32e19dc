//! Nodes that are let in and shut out, and volumes that are changed.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use csi_types::NodeIdentity;
use driver_core::contract::fake::Verb;
use driver_core::{Call, NodeId};
use driver_node_manual::NodeManual;
use omnibus_csi::routing::connections::{Bare, ConnectionName};

use super::*;

/// Publishes, and gives the publish context.
async fn published(
    served: &Served,
    volume: &str,
    node: &str,
) -> Result<BTreeMap<String, String>, Status> {
    let request = v1::ControllerPublishVolumeRequest {
        volume_id: volume.to_owned(),
        node_id: node.to_owned(),
        volume_capability: Some(mounted()),
        secrets: secrets(),
        ..Default::default()
    };
    let mut client = served.controller();
    let published = client.controller_publish_volume(request).await?;
    Ok(published.into_inner().publish_context)
}

async fn unpublished(served: &Served, volume: &str, node: &str) -> Result<(), Status> {
    let request = v1::ControllerUnpublishVolumeRequest {
        volume_id: volume.to_owned(),
        node_id: node.to_owned(),
        secrets: secrets(),
    };
    let mut client = served.controller();
    client.controller_unpublish_volume(request).await.map(drop)
}

async fn modified(served: &Served, volume: &str, key: &str, value: &str) -> Result<(), Status> {
    let request = v1::ControllerModifyVolumeRequest {
        volume_id: volume.to_owned(),
        mutable_parameters: [(key.to_owned(), value.to_owned())].into(),
        secrets: secrets(),
    };
    let mut client = served.controller();
    client.controller_modify_volume(request).await.map(drop)
}

fn fence() -> BTreeMap<String, String> {
    [("storage_fences_nodes".to_owned(), "true".to_owned())].into()
}

fn pairs(driver: &FakeDriver) -> Vec<(String, String)> {
    let all = driver.published().into_iter();
    all.map(|(volume, node)| (volume.to_string(), node.id.to_string()))
        .collect()
}

fn pair_of(volume: &str, node: &str) -> (String, String) {
    (volume.to_owned(), node.to_owned())
}

#[tokio::test]
async fn nodes_are_let_in_and_shut_out_one_by_one_all_at_once_and_of_every_volume() {
    let (served, driver) = alone().await;
    for name in ["x", "y"] {
        served.volume(name, 4096).await;
    }
    for (volume, node) in [
        ("x", "n1"),
        ("x", "n1"),
        ("x", "n2"),
        ("y", "n1"),
        ("y", "n2"),
    ] {
        let context = published(&served, volume, node).await;
        assert_eq!(
            context.expect("published"),
            fence(),
            "its storage knows nodes"
        );
    }
    assert_eq!(driver.published().len(), 4, "the second time it was so");
    let (_, node) = &driver.published()[0];
    assert_eq!(node.name.as_deref(), Some("n1"), "its id is its name");
    let status = published(&served, "z", "n1").await.expect_err("no volume");
    is(&status, Code::NotFound, "z");

    for _ in 0..2 {
        unpublished(&served, "x", "n1").await.expect("unpublished");
    }
    let left = [pair_of("x", "n2"), pair_of("y", "n1"), pair_of("y", "n2")];
    assert_eq!(pairs(&driver), left);
    unpublished(&served, "y", "")
        .await
        .expect("from every node");
    assert_eq!(pairs(&driver), [pair_of("x", "n2")]);

    published(&served, "y", "n2").await.expect("published");
    published(&served, "y", "n1").await.expect("published");
    let node = NodeId::parse("n2").expect("a node");
    let call = Call::within(Duration::from_mins(1));
    let driver_of_connection: &dyn Driver = &*driver;
    let fenced = driver_of_connection.fence_node(&call, &node).await;
    fenced.expect("it is out of all");
    assert_eq!(pairs(&driver), [pair_of("y", "n1")]);
}

#[tokio::test]
async fn a_driver_gets_the_names_of_a_node_and_its_addresses() {
    let (served, [a, b]) = two().await;
    served.volume("a/x", 4096).await;
    let id = "n=node-1/h=host-1/id=ab/vu=77/a=10.0.0.9,10.0.1.9";
    published(&served, "v:a/x", id).await.expect("published");
    let address = |text: &str| text.parse::<IpAddr>().expect("an address");
    let (volume, node) = a.published().remove(0);
    assert_eq!(volume.as_str(), "x");
    let NodeIdentity {
        id,
        reported,
        name,
        iqn,
        nqn,
        addresses,
    } = node;
    assert_eq!(id.as_str(), "node-1", "what its backend calls it");
    assert!(reported.as_str().starts_with("n=node-1/h=host-1/"));
    assert_eq!(name.as_deref(), Some("node-1"));
    let iqn = iqn.map(|iqn| iqn.to_string());
    assert_eq!(iqn.as_deref(), Some("iqn.1993-08.org.debian:01:ab"));
    let nqn = nqn.map(|nqn| nqn.to_string());
    assert_eq!(nqn.as_deref(), Some("nqn.2014-08.org.nvmexpress:uuid:77"));
    assert_eq!(addresses, ["10.0.0.9", "10.0.1.9"].map(address));
    assert_eq!(b.published(), []);
    unpublished(&served, "v:a/x", "")
        .await
        .expect("from every node");
    assert_eq!(a.published(), []);
}

#[tokio::test]
async fn a_volume_is_changed_by_its_mutable_parameters_alone() {
    let (served, driver) = alone().await;
    served.volume("x", 4096).await;
    for _ in 0..2 {
        modified(&served, "x", "speed", "fast")
            .await
            .expect("changed");
    }
    assert_eq!(driver.modified(&id("x"))["speed"], "fast");
    for (key, value, text) in [("color", "red", "`color`"), ("speed", "", "speed")] {
        let status = modified(&served, "x", key, value).await.expect_err(text);
        is(&status, Code::InvalidArgument, text);
    }
    assert_eq!(driver.modified(&id("x")).len(), 1, "nothing was changed");
    let status = modified(&served, "y", "speed", "fast").await;
    is(&status.expect_err("no volume"), Code::NotFound, "y");

    let (served, [a, b]) = two().await;
    served.volume("b/x", 4096).await;
    modified(&served, "v:b/x", "speed", "slow")
        .await
        .expect("changed");
    assert_eq!(b.modified(&id("x"))["speed"], "slow");
    assert_eq!(a.calls(Verb::ModifyVolume), 0);
}

#[tokio::test]
async fn changes_of_volumes_are_advertised_while_a_connection_has_them() {
    let modify = v1::controller_service_capability::rpc::Type::ModifyVolume;
    let modify = v1::controller_service_capability::Rpc {
        r#type: modify.into(),
    };
    let modify = v1::controller_service_capability::Type::Rpc(modify);
    for (has, drivers) in [
        (true, [FakeDriver::new(), without_services()]),
        (false, [without_services(), without_services()]),
    ] {
        let [a, b] = drivers.map(|driver| Arc::new(driver) as Arc<dyn Driver>);
        let served = serve(of_several(PLAIN, &[("a", a), ("b", b)], Names::default())).await;
        let request = v1::ControllerGetCapabilitiesRequest {};
        let mut controller = served.controller();
        let reply = controller.controller_get_capabilities(request);
        let all = reply.await.expect("a list").into_inner().capabilities;
        let times = all.iter().filter(|one| one.r#type == Some(modify));
        assert_eq!(times.count(), usize::from(has));
        let code = if has {
            Code::InvalidArgument
        } else {
            Code::Unimplemented
        };
        served.volume("b/x", 4096).await;
        let status = modified(&served, "v:b/x", "speed", "fast").await;
        is(&status.expect_err("it has none"), code, "");
    }
}

#[tokio::test]
async fn a_new_volume_takes_mutable_parameters_that_can_be_changed_later_and_no_others() {
    let (served, driver) = alone().await;
    let make = async |name: &str, mutable: &[(&str, &str)]| {
        let pair = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        let request = v1::CreateVolumeRequest {
            name: name.to_owned(),
            volume_capabilities: vec![mounted()],
            parameters: [("speed".to_owned(), "slow".to_owned())].into(),
            mutable_parameters: mutable.iter().map(pair).collect(),
            ..Default::default()
        };
        served.controller().create_volume(request).await.map(drop)
    };
    make("x", &[("speed", "fast")]).await.expect("made");
    assert_eq!(driver.modified(&id("x"))["speed"], "fast");
    make("x", &[("speed", "fast")]).await.expect("made again");
    let status = make("x", &[]).await.expect_err("another speed");
    is(&status, Code::AlreadyExists, "speed");
    let color = [("color", "red"), ("speed", "fast")];
    let status = make("y", &color).await.expect_err("no such parameter");
    is(&status, Code::InvalidArgument, "`color`");
    is(&status, Code::InvalidArgument, "speed");
    assert_eq!(driver.volume_ids(), [id("x")]);
    // What the resizer adds says whose the volume is.
    modified(&served, "x", "csi.storage.k8s.io/pvc/name", "data")
        .await
        .expect("nothing to change");
    assert_eq!(driver.modified(&id("x")).len(), 1);

    let served = serve_alone(&Arc::new(without_services())).await;
    let request = v1::CreateVolumeRequest {
        name: "x".to_owned(),
        volume_capabilities: vec![mounted()],
        mutable_parameters: [("speed".to_owned(), "fast".to_owned())].into(),
        ..Default::default()
    };
    let made = served.controller().create_volume(request).await;
    is(
        &made.expect_err("nothing is mutable"),
        Code::InvalidArgument,
        "mutable",
    );
}

#[tokio::test]
async fn a_volume_that_every_node_may_reach_is_attached_where_it_exists() {
    let all = (&FakeDriver::new() as &dyn Driver).capabilities();
    let driver = Arc::new(FakeDriver::new().with_capabilities(Capabilities {
        publish: false,
        topology: false,
        ..all
    }));
    let served = serve_alone(&driver).await;
    served.volume("x", 4096).await;
    for _ in 0..2 {
        let context = published(&served, "x", "n1").await.expect("published");
        assert_eq!(context, BTreeMap::new(), "its storage knows no nodes");
    }
    let status = published(&served, "z", "n1").await.expect_err("no volume");
    is(&status, Code::NotFound, "z");
    for volume in ["x", "x", "z"] {
        unpublished(&served, volume, "n1")
            .await
            .expect("unpublished");
    }
    assert_eq!(driver.published(), [], "there is nothing to let in");
}

#[tokio::test]
async fn a_storage_that_only_records_nodes_is_not_said_to_fence_them() {
    let driver = Arc::new(FakeDriver::new().without_nodes());
    let served = serve_alone(&driver).await;
    served.volume("x", 4096).await;
    let context = published(&served, "x", "n1").await.expect("published");
    assert_eq!(context, BTreeMap::new());
    assert_eq!(pairs(&driver), [pair_of("x", "n1")], "it was asked");
}

/// The nodes of each listed volume; `None` where the list says nothing of them.
async fn listed(served: &Served) -> Vec<(String, Option<Vec<String>>)> {
    let request = v1::ListVolumesRequest::default();
    let reply = served.controller().list_volumes(request).await;
    let entries = reply.expect("a list").into_inner().entries.into_iter();
    let one = |entry: v1::list_volumes_response::Entry| {
        let volume = entry.volume.expect("a volume").volume_id;
        (volume, entry.status.map(|status| status.published_node_ids))
    };
    let mut all: Vec<_> = entries.map(one).collect();
    all.sort();
    all
}

async fn says_that_it_lists_nodes(served: &Served) -> bool {
    use v1::controller_service_capability::{Type, rpc};
    let request = v1::ControllerGetCapabilitiesRequest {};
    let reply = served
        .controller()
        .controller_get_capabilities(request)
        .await;
    let nodes = i32::from(rpc::Type::ListVolumesPublishedNodes);
    let is_it = |c: &v1::ControllerServiceCapability| match &c.r#type {
        Some(Type::Rpc(rpc)) => rpc.r#type == nodes,
        None => false,
    };
    let all = reply.expect("a list").into_inner().capabilities;
    all.iter().any(is_it)
}

async fn nodes_of(served: &Served, volume: &str) -> Vec<String> {
    let request = v1::ControllerGetVolumeRequest {
        volume_id: volume.to_owned(),
    };
    let reply = served.controller().controller_get_volume(request).await;
    let status = reply.expect("a volume").into_inner().status;
    status.expect("a status").published_node_ids
}

#[tokio::test]
async fn lists_show_the_nodes_of_each_volume_by_the_ids_that_the_orchestrator_knows() {
    let (served, _) = alone().await;
    assert!(says_that_it_lists_nodes(&served).await);
    served.volume("x", 4096).await;
    served.volume("y", 4096).await;
    for node in ["n2", "n1", "n2"] {
        published(&served, "x", node).await.expect("published");
    }
    let seen = |x: &[&str]| {
        let of = |name: &str, nodes: &[&str]| (name.to_owned(), Some(strings(nodes)));
        vec![of("x", x), of("y", &[])]
    };
    assert_eq!(listed(&served).await, seen(&["n1", "n2"]));
    assert_eq!(nodes_of(&served, "x").await, ["n1", "n2"]);
    unpublished(&served, "x", "n1").await.expect("unpublished");
    assert_eq!(listed(&served).await, seen(&["n2"]));
    assert_eq!(nodes_of(&served, "x").await, ["n2"]);

    let drivers = [FakeDriver::new(), FakeDriver::new()].map(Arc::new);
    let [a, b] = &drivers;
    let all: [(&str, Arc<dyn Driver>); 2] = [("a", a.clone()), ("b", b.clone())];
    let served = serve(of_several(PLAIN, &all, Names::default())).await;
    assert!(says_that_it_lists_nodes(&served).await);
    served.volume("a/x", 4096).await;
    published(&served, "v:a/x", "n=node-1")
        .await
        .expect("published");
    assert_eq!(a.published()[0].1.id.as_str(), "node-1");
    let nodes = vec!["n=node-1".to_owned()];
    assert_eq!(listed(&served).await, [("v:a/x".to_owned(), Some(nodes))]);
}

/// An attacher asks for a volume again whose list does not have its node: so either all volumes have it, or none.
#[tokio::test]
async fn nodes_are_listed_only_where_every_volume_has_them_under_the_handle_that_it_was_given() {
    let all = (&FakeDriver::new() as &dyn Driver).capabilities();
    let without = Capabilities {
        published_nodes: false,
        ..all
    };
    let that = |can| -> Arc<dyn Driver> { Arc::new(FakeDriver::new().with_capabilities(can)) };
    let by_hand: Arc<dyn Driver> = Arc::new(NodeManual);
    let a = || ConnectionName::parse("a").expect("a name");
    let bare = Names {
        bare: Bare::Of(a()),
        ..Names::default()
    };
    let old = ConnectionName::parse("old").expect("a name");
    let renamed = Names {
        aliases: [(old, a())].into(),
        ..Names::default()
    };
    for (what, other, names, shows) in [
        ("all record", that(all), Names::default(), true),
        ("by hand", by_hand, Names::default(), true),
        ("one does not", that(without), Names::default(), false),
        ("bare handles", that(all), bare, false),
        ("old handles", that(all), renamed, false),
    ] {
        let all: [(&str, Arc<dyn Driver>); 2] = [("a", that(all)), ("b", other)];
        let served = serve(of_several(PLAIN, &all, names)).await;
        assert_eq!(says_that_it_lists_nodes(&served).await, shows, "{what}");
        served.volume("a/x", 4096).await;
        published(&served, "v:a/x", "n=node-1")
            .await
            .expect("published");
        let nodes = listed(&served).await.remove(0).1.unwrap_or_default();
        assert_eq!(!nodes.is_empty(), shows, "{what}");
    }
}
