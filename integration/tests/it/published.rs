//! The nodes that a volume is published to, as an attacher reads and repairs them, over a NAS, here the simulator.

use csi_proto::v1 as csi;
use csi_proto::v1::volume_capability::access_mode::Mode;
use integration::client::Client;
use integration::place::Place;
use integration::server::{Launch, Server};
use integration::volume;
use serde_json::{Value, json};
use tonic::{Code, Status};
use truenas_sim::{Generation, Options, Simulator};

use crate::truenas::{by_key, config, nas};

const DATASET: &str = "tank/csi/v/pvc-1";
const SHARED: &str = "freenas-api-nfs";

async fn publish(client: &Client, id: &str, node: &str) {
    let published = publish_as(client, id, node, Mode::MultiNodeSingleWriter).await;
    published.expect("published");
}

async fn publish_as(client: &Client, id: &str, node: &str, mode: Mode) -> Result<(), Status> {
    let request = csi::ControllerPublishVolumeRequest {
        volume_id: id.to_owned(),
        node_id: node.to_owned(),
        volume_capability: Some(volume::mounted(mode)),
        ..csi::ControllerPublishVolumeRequest::default()
    };
    let mut controller = client.controller.clone();
    let published = controller.controller_publish_volume(request).await;
    published.map(drop)
}

async fn unpublish(client: &Client, id: &str, node: &str) {
    let request = csi::ControllerUnpublishVolumeRequest {
        volume_id: id.to_owned(),
        node_id: node.to_owned(),
        ..csi::ControllerUnpublishVolumeRequest::default()
    };
    let mut controller = client.controller.clone();
    let gone = controller.controller_unpublish_volume(request).await;
    gone.expect("unpublished");
}

/// The nodes of a volume; the list and the volume by itself say the same.
async fn shown(client: &Client, id: &str) -> Vec<String> {
    let mut controller = client.controller.clone();
    let request = csi::ListVolumesRequest::default();
    let listed = controller.list_volumes(request).await.expect("a list");
    let mut entries = listed.into_inner().entries.into_iter();
    let is_it = |entry: &csi::list_volumes_response::Entry| {
        entry.volume.as_ref().is_some_and(|v| v.volume_id == id)
    };
    let entry = entries.find(is_it).expect("it is listed");
    let nodes = entry.status.expect("a status").published_node_ids;
    let request = csi::ControllerGetVolumeRequest {
        volume_id: id.to_owned(),
    };
    let one = controller.controller_get_volume(request).await;
    let one = one.expect("a volume").into_inner().status;
    assert_eq!(one.expect("a status").published_node_ids, nodes);
    nodes
}

async fn served(nas: &Simulator, place: &Place, kind: &str, per_node: bool) -> Server {
    let mut config = config(nas, kind, by_key(nas));
    if per_node {
        let (section, name) = match kind {
            SHARED => ("nfs", "{{node}}.lan"),
            _ => ("iscsi", "iqn.2004-10.org.example:{{node}}"),
        };
        config[section]["nodes"] = json!({"nameTemplate": name});
        let section = config[section].as_object_mut().expect("a section");
        // Both would let in others.
        section.remove("shareAllowedNetworks");
        if section.contains_key("targetGroups") {
            section.insert(
                "targetGroups".to_owned(),
                json!([{"targetGroupPortalGroup": 1}]),
            );
        }
    }
    let server = Launch::new(config.to_string()).start(place).await;
    let offered = server.client().offered().await.expect("capabilities");
    assert!(offered.contains("ListVolumes"), "{offered:?}");
    server
}

async fn row(nas: &Simulator, service: &str) -> Value {
    let all = nas.call(&format!("{service}.query"), vec![]).await;
    all.expect("rows")
        .as_array()
        .expect("a list")
        .last()
        .cloned()
        .expect("a row")
}

/// The names that the NAS lets in; of a share that all may reach, its networks.
async fn let_in(nas: &Simulator, kind: &str) -> Vec<String> {
    let names = if kind == SHARED {
        let share = row(nas, "sharing.nfs").await;
        [&share["networks"], &share["hosts"]]
            .into_iter()
            .filter_map(Value::as_array)
            .flatten()
            .cloned()
            .collect()
    } else {
        row(nas, "iscsi.initiator").await["initiators"]
            .as_array()
            .cloned()
            .unwrap_or_default()
    };
    let mut names: Vec<String> = names
        .iter()
        .filter_map(|name| Some(name.as_str()?.to_owned()))
        .collect();
    names.sort();
    names
}

async fn create(client: &Client) -> String {
    let asked = volume::create("pvc-1", &volume::parameters(&[]));
    client.volume(asked).await.expect("a volume").volume_id
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_have_the_nodes_of_a_volume_and_publishing_again_restores_what_is_missing() {
    for (generation, kind) in [
        (Generation::V25_10, SHARED),
        (Generation::V24_10, "freenas-api-iscsi"),
    ] {
        let nas = nas(Options::new(generation)).await;
        let place = Place::new();
        let mut server = served(&nas, &place, kind, true).await;
        let client = server.client();
        let id = create(&client).await;
        let called = |node: &str| match kind {
            SHARED => format!("{node}.lan"),
            _ => format!("iqn.2004-10.org.example:{node}"),
        };
        assert!(shown(&client, &id).await.is_empty());
        for node in ["node-a", "node-b", "node-b"] {
            publish(&client, &id, node).await;
        }
        assert_eq!(shown(&client, &id).await, ["node-a", "node-b"]);
        unpublish(&client, &id, "node-a").await;
        assert_eq!(shown(&client, &id).await, ["node-b"], "{kind}");
        assert_eq!(let_in(&nas, kind).await, [called("node-b")]);

        // What is taken away behind the driver is missed in the list, and comes back.
        let forget =
            json!({"user_properties_update": [{"key": "omnibus-csi:nodes", "remove": true}]});
        let changed = nas.call("pool.dataset.update", vec![json!(DATASET), forget]);
        changed.await.expect("changed");
        assert!(shown(&client, &id).await.is_empty(), "{kind}");
        publish(&client, &id, "node-b").await;
        assert_eq!(shown(&client, &id).await, ["node-b"]);
        assert_eq!(let_in(&nas, kind).await, [called("node-b")], "{kind}");

        // The storage remembers it, not the process.
        server.kill().await;
        let mut server = served(&nas, &place, kind, true).await;
        assert_eq!(shown(&server.client(), &id).await, ["node-b"]);
        unpublish(&server.client(), &id, "node-b").await;
        assert!(shown(&server.client(), &id).await.is_empty());
        assert!(server.terminate().await.success());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_of_one_node_is_refused_to_another_one_also_by_the_next_process() {
    let mode = Mode::SingleNodeMultiWriter;
    let nas = nas(Options::new(Generation::V25_10)).await;
    let place = Place::new();
    let mut server = served(&nas, &place, SHARED, true).await;
    let id = create(&server.client()).await;
    let published = publish_as(&server.client(), &id, "node-a", mode).await;
    published.expect("published");
    for _ in 0..2 {
        let client = server.client();
        let refused = publish_as(&client, &id, "node-b", mode).await;
        let refused = refused.expect_err("node-a has it");
        assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
        for word in ["`node-a`", "out-of-service", "omnibus-csi:published"] {
            assert!(refused.message().contains(word), "{refused:?}");
        }
        assert_eq!(let_in(&nas, SHARED).await, ["node-a.lan"]);
        server.kill().await;
        server = served(&nas, &place, SHARED, true).await;
    }
    let client = server.client();
    unpublish(&client, &id, "node-a").await;
    let published = publish_as(&client, &id, "node-b", mode).await;
    published.expect("published");
    assert_eq!(let_in(&nas, SHARED).await, ["node-b.lan"]);
    assert!(server.terminate().await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_have_a_volume_keep_it_when_access_per_node_is_switched_on() {
    for is_published_first in [true, false] {
        switched_on(is_published_first).await;
    }
}

/// With the next call after that, which publishes the volume again or takes it from a node.
async fn switched_on(is_published_first: bool) {
    let nas = nas(Options::new(Generation::V25_10)).await;
    let place = Place::new();
    let mut server = served(&nas, &place, SHARED, false).await;
    let id = create(&server.client()).await;
    for node in ["node-a", "node-b"] {
        publish(&server.client(), &id, node).await;
    }
    assert_eq!(shown(&server.client(), &id).await, ["node-a", "node-b"]);
    let all = let_in(&nas, SHARED).await;
    assert!(server.terminate().await.success());

    let mut server = served(&nas, &place, SHARED, true).await;
    let client = server.client();
    // So the attacher publishes it again; until then every node has access.
    assert!(shown(&client, &id).await.is_empty());
    assert_eq!(create(&client).await, id);
    assert_eq!(let_in(&nas, SHARED).await, all);
    if is_published_first {
        publish(&client, &id, "node-a").await;
        assert_eq!(let_in(&nas, SHARED).await, ["node-a.lan", "node-b.lan"]);
        assert_eq!(shown(&client, &id).await, ["node-a", "node-b"]);
    }
    unpublish(&client, &id, "node-a").await;
    assert_eq!(let_in(&nas, SHARED).await, ["node-b.lan"]);
    assert_eq!(shown(&client, &id).await, ["node-b"]);
    assert!(server.terminate().await.success());
}
