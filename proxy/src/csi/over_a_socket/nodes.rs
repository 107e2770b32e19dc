//! Nodes that are let in and shut out, and volumes that are changed.

use std::net::IpAddr;
use std::time::Duration;

use csi_types::NodeIdentity;
use driver_core::contract::fake::Verb;
use driver_core::{Call, NodeId};

use super::*;

async fn published(served: &Served, volume: &str, node: &str) -> Result<(), Status> {
    let request = v1::ControllerPublishVolumeRequest {
        volume_id: volume.to_owned(),
        node_id: node.to_owned(),
        volume_capability: Some(mounted()),
        secrets: secrets(),
        ..Default::default()
    };
    let mut client = served.controller();
    client.controller_publish_volume(request).await.map(drop)
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
        published(&served, volume, node).await.expect("published");
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
        name,
        iqn,
        nqn,
        addresses,
    } = node;
    assert_eq!(id.as_str(), "node-1", "what its backend calls it");
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
async fn a_volume_that_every_node_may_reach_is_attached_where_it_exists() {
    let all = (&FakeDriver::new() as &dyn Driver).capabilities();
    let driver = Arc::new(FakeDriver::new().with_capabilities(Capabilities {
        publish: false,
        topology: false,
        ..all
    }));
    let served = serve(plugin(&driver, "driver: fake")).await;
    served.volume("x", 4096).await;
    for _ in 0..2 {
        published(&served, "x", "n1").await.expect("published");
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
