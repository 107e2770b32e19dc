//! The services of csi-addons, by the whole program over its second socket.

use std::collections::BTreeMap;
use std::path::PathBuf;

use csi_proto::fence::fence_controller_client::FenceControllerClient;
use csi_proto::fence::{
    Cidr, FenceClusterNetworkRequest, GetFenceClientsRequest, ListClusterFenceRequest,
    UnfenceClusterNetworkRequest,
};
use csi_proto::identity::capability::{Type, network_fence, reclaim_space, service};
use csi_proto::identity::identity_client::IdentityClient;
use csi_proto::identity::{GetCapabilitiesRequest, GetIdentityRequest, ProbeRequest};
use csi_proto::reclaimspace::reclaim_space_controller_client::ReclaimSpaceControllerClient;
use csi_proto::reclaimspace::reclaim_space_node_client::ReclaimSpaceNodeClient;
use csi_proto::reclaimspace::{ControllerReclaimSpaceRequest, NodeReclaimSpaceRequest};
use csi_proto::v1 as csi;
use csi_proto::v1::volume_capability::access_mode::Mode;
use csi_proto::v1::volume_capability::{AccessType, BlockVolume};
use integration::client::Client;
use integration::place::Place;
use integration::server::{Launch, Server, log_of};
use integration::volume;
use serde_json::{Value, json};
use tonic::transport::Channel;
use tonic::{Code, Status};
use truenas_sim::{Generation, Options, Simulator};

use crate::truenas::{by_key, config, nas};

const SECRET: &str = "hunter2-of-the-fence";

fn socket(place: &Place) -> PathBuf {
    place.path().join("addons.sock")
}

async fn started(launch: &Launch, place: &Place) -> (Server, Channel) {
    let flag = format!("unix://{}", socket(place).display());
    let launch = launch.clone().set("--csi-addons-address", &flag);
    let server = launch.start(place).await;
    let addons = Client::connect(&socket(place)).await.expect("a socket");
    (server, addons.channel)
}

/// A NAS whose shares let in nodes by their addresses.
fn shares(nas: &Simulator) -> Launch {
    let mut config = config(nas, "truenas-api-nfs", by_key(nas));
    let names = json!({"node-a": "10.0.0.1", "node-b": "10.0.1.2"});
    config["nfs"]["nodes"] = json!({"names": names});
    // It would let in others.
    let section = config["nfs"].as_object_mut().expect("a section");
    section.remove("shareAllowedNetworks");
    Launch::new(config.to_string())
}

async fn create(client: &Client, name: &str) -> String {
    let asked = volume::create(name, &volume::parameters(&[]));
    client.volume(asked).await.expect("a volume").volume_id
}

async fn publish(client: &Client, id: &str, node: &str) -> Result<(), Status> {
    let request = csi::ControllerPublishVolumeRequest {
        volume_id: id.to_owned(),
        node_id: node.to_owned(),
        volume_capability: Some(volume::mounted(Mode::MultiNodeSingleWriter)),
        ..csi::ControllerPublishVolumeRequest::default()
    };
    let mut controller = client.controller.clone();
    controller
        .controller_publish_volume(request)
        .await
        .map(drop)
}

fn cidrs(texts: &[&str]) -> Vec<Cidr> {
    let cidr = |text: &&str| Cidr {
        cidr: (*text).to_owned(),
    };
    texts.iter().map(cidr).collect()
}

fn secrets() -> BTreeMap<String, String> {
    [("key".to_owned(), SECRET.to_owned())].into()
}

async fn fence(addons: &Channel, texts: &[&str]) -> Result<(), Status> {
    let request = FenceClusterNetworkRequest {
        secrets: secrets(),
        cidrs: cidrs(texts),
        ..FenceClusterNetworkRequest::default()
    };
    let mut client = FenceControllerClient::new(addons.clone());
    client.fence_cluster_network(request).await.map(drop)
}

async fn unfence(addons: &Channel, texts: &[&str]) -> Result<(), Status> {
    let request = UnfenceClusterNetworkRequest {
        secrets: secrets(),
        cidrs: cidrs(texts),
        ..UnfenceClusterNetworkRequest::default()
    };
    let mut client = FenceControllerClient::new(addons.clone());
    client.unfence_cluster_network(request).await.map(drop)
}

async fn fenced(addons: &Channel) -> Vec<String> {
    let request = ListClusterFenceRequest {
        secrets: secrets(),
        ..ListClusterFenceRequest::default()
    };
    let mut client = FenceControllerClient::new(addons.clone());
    let listed = client.list_cluster_fence(request).await.expect("a list");
    let listed = listed.into_inner().cidrs.into_iter();
    listed.map(|one| one.cidr).collect()
}

/// The hosts of all shares of the NAS.
async fn let_in(nas: &Simulator) -> Vec<String> {
    let shares = nas.call("sharing.nfs.query", vec![]).await.expect("rows");
    let shares = shares.as_array().cloned().unwrap_or_default();
    let hosts = shares.iter().filter_map(|share| share["hosts"].as_array());
    let hosts = hosts.flatten().filter_map(Value::as_str);
    // A share that lets in none has a host that is no node.
    let hosts = hosts.filter(|host| host.starts_with("10."));
    let mut hosts: Vec<_> = hosts.map(str::to_owned).collect();
    hosts.sort();
    hosts
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_fenced_loses_its_volumes_and_gets_none_also_from_the_next_process() {
    for generation in [Generation::V24_10, Generation::V25_10] {
        let nas = nas(Options::new(generation)).await;
        let place = Place::new();
        let (mut server, addons) = started(&shares(&nas), &place).await;
        let client = server.client();
        let (one, two) = (
            create(&client, "pvc-1").await,
            create(&client, "pvc-2").await,
        );
        for (id, node) in [(&one, "node-a"), (&one, "node-b"), (&two, "node-a")] {
            publish(&client, id, node).await.expect("published");
        }
        assert!(fenced(&addons).await.is_empty());
        let clients = FenceControllerClient::new(addons.clone())
            .get_fence_clients(GetFenceClientsRequest::default())
            .await;
        let clients = clients.expect("a list").into_inner().clients.into_iter();
        let clients: Vec<_> = clients.map(|one| (one.id, one.addresses)).collect();
        let wanted = [("node-a", "10.0.0.1/32"), ("node-b", "10.0.1.2/32")];
        let wanted = wanted.map(|(node, cidr)| (node.to_owned(), cidrs(&[cidr])));
        assert_eq!(clients, wanted);

        for _ in 0..2 {
            fence(&addons, &["10.0.0.0/24"]).await.expect("fenced");
            assert_eq!(let_in(&nas).await, ["10.0.1.2"], "{generation:?}");
        }
        let refused = publish(&client, &two, "node-a").await.expect_err("refused");
        assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
        for word in ["10.0.0.0/24", "fenceState: Unfenced", "omnibus-csi:fenced"] {
            assert!(refused.message().contains(word), "{refused:?}");
        }

        server.kill().await;
        let (mut server, addons) = started(&shares(&nas), &place).await;
        let client = server.client();
        assert_eq!(fenced(&addons).await, ["10.0.0.0/24"]);
        let refused = publish(&client, &two, "node-a").await.expect_err("refused");
        assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
        publish(&client, &two, "node-b").await.expect("published");
        for _ in 0..2 {
            unfence(&addons, &["10.0.0.0/24"]).await.expect("lifted");
        }
        assert!(fenced(&addons).await.is_empty());
        publish(&client, &two, "node-a").await.expect("published");
        assert_eq!(let_in(&nas).await, ["10.0.0.1", "10.0.1.2", "10.0.1.2"]);
        assert!(server.terminate().await.success());
        assert!(!socket(&place).exists(), "the socket goes with its server");
        assert!(!log_of(&place).contains(SECRET));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_is_wrong_changes_nothing() {
    let nas = nas(Options::new(Generation::V25_10)).await;
    let place = Place::new();
    let (mut server, addons) = started(&shares(&nas), &place).await;
    let client = server.client();
    let id = create(&client, "pvc-1").await;
    publish(&client, &id, "node-a").await.expect("published");
    let wrong: [&[&str]; 5] = [
        &[],
        &[""],
        &["10.0.0.1"],
        &["10.0.0.0/8", "node-a"],
        &["::/129"],
    ];
    for texts in wrong {
        for answer in [fence(&addons, texts).await, unfence(&addons, texts).await] {
            let status = answer.expect_err("refused");
            assert_eq!(
                status.code(),
                Code::InvalidArgument,
                "{texts:?}: {status:?}"
            );
            assert!(status.message().contains("cidrs"), "{status:?}");
        }
    }
    assert!(fenced(&addons).await.is_empty());
    assert_eq!(let_in(&nas).await, ["10.0.0.1"]);
    assert!(server.terminate().await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_identity_is_that_of_the_driver_and_says_what_is_served() {
    let nas = nas(Options::new(Generation::V25_10)).await;
    let place = Place::new();
    for (launch, fences) in [
        (shares(&nas), true),
        (Launch::local_hostpath(&place), false),
    ] {
        let (mut server, addons) = started(&launch, &place).await;
        let mut identity = IdentityClient::new(addons.clone());
        let own = identity.get_identity(GetIdentityRequest {}).await;
        assert_eq!(
            own.expect("an answer").into_inner().name,
            "org.omnibus-csi.test"
        );
        let ready = identity.probe(ProbeRequest {}).await;
        assert_eq!(ready.expect("an answer").into_inner().ready, Some(true));
        let can = capabilities(&addons).await;
        let has = |what: &dyn Fn(&Type) -> bool| can.iter().any(what);
        for half in [service::Type::ControllerService, service::Type::NodeService] {
            assert!(has(
                &|one| matches!(one, Type::Service(it) if it.r#type() == half)
            ));
        }
        for way in [reclaim_space::Type::Offline, reclaim_space::Type::Online] {
            assert!(has(
                &|one| matches!(one, Type::ReclaimSpace(it) if it.r#type() == way)
            ));
        }
        for way in [
            network_fence::Type::NetworkFence,
            network_fence::Type::GetClientsToFence,
        ] {
            let offered = has(&|one| matches!(one, Type::NetworkFence(it) if it.r#type() == way));
            assert_eq!(offered, fences, "{way:?}");
        }
        if !fences {
            let status = fence(&addons, &["10.0.0.0/8"]).await.expect_err("refused");
            assert_eq!(status.code(), Code::Unimplemented, "{status:?}");
        }
        assert!(server.terminate().await.success());
    }
    let mut server = Launch::local_hostpath(&place).start(&place).await;
    assert!(!socket(&place).exists(), "it is off by default");
    assert!(server.terminate().await.success());
}

/// What the process says that it serves.
async fn capabilities(addons: &Channel) -> Vec<Type> {
    let mut identity = IdentityClient::new(addons.clone());
    let can = identity.get_capabilities(GetCapabilitiesRequest {}).await;
    let can = can.expect("an answer").into_inner().capabilities;
    can.into_iter().filter_map(|one| one.r#type).collect()
}

// A job takes any process on the node of the volume that says `ONLINE`, and `UNIMPLEMENTED` for an answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_half_offers_no_other_way_to_reclaim_space_than_its_own() {
    let place = Place::new();
    for (mode, own) in [
        ("controller", reclaim_space::Type::Offline),
        ("node", reclaim_space::Type::Online),
    ] {
        let launch = Launch::local_hostpath(&place).set("--csi-mode", mode);
        let (mut server, addons) = started(&launch, &place).await;
        let can = capabilities(&addons).await;
        let ways = can.iter().filter_map(|one| match one {
            Type::ReclaimSpace(it) => Some(it.r#type()),
            _ => None,
        });
        assert_eq!(ways.collect::<Vec<_>>(), [own], "{mode}");
        assert!(server.terminate().await.success());
    }
}

async fn reclaim(addons: &Channel, request: NodeReclaimSpaceRequest) -> Result<(), Status> {
    let mut client = ReclaimSpaceNodeClient::new(addons.clone());
    let answer = client.node_reclaim_space(request).await?.into_inner();
    assert!(answer.pre_usage.is_none() && answer.post_usage.is_none());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_raw_device_is_left_alone_and_what_cannot_be_trimmed_is_named() {
    let place = Place::new();
    let (mut server, addons) = started(&Launch::local_hostpath(&place), &place).await;
    let id = create(&server.client(), "pvc-1").await;
    let mount = volume::create("any", &volume::parameters(&[]))
        .volume_capabilities
        .pop();
    let request = NodeReclaimSpaceRequest {
        volume_id: id.clone(),
        staging_target_path: place.node().join("s").display().to_string(),
        volume_capability: mount.clone(),
        secrets: secrets(),
        ..NodeReclaimSpaceRequest::default()
    };
    let absent = reclaim(&addons, request.clone())
        .await
        .expect_err("nothing is there");
    assert_eq!(absent.code(), Code::NotFound, "{absent:?}");
    let mut raw = request.clone();
    let capability = raw.volume_capability.as_mut().expect("a capability");
    capability.access_type = Some(AccessType::Block(BlockVolume {}));
    reclaim(&addons, raw).await.expect("nothing to do");
    let other = format!("/k/csi/{}/globalmount", "0".repeat(64));
    for (field, request) in [
        (
            "volume_id",
            NodeReclaimSpaceRequest {
                volume_id: String::new(),
                ..request.clone()
            },
        ),
        (
            "staging_target_path",
            NodeReclaimSpaceRequest {
                staging_target_path: String::new(),
                ..request.clone()
            },
        ),
        (
            "staging_target_path",
            NodeReclaimSpaceRequest {
                staging_target_path: "s".into(),
                ..request.clone()
            },
        ),
        (
            "staging_target_path",
            NodeReclaimSpaceRequest {
                staging_target_path: other,
                ..request.clone()
            },
        ),
    ] {
        let status = reclaim(&addons, request).await.expect_err(field);
        assert_eq!(status.code(), Code::InvalidArgument, "{field}: {status:?}");
        assert!(status.message().contains(field), "{status:?}");
    }

    let mut controller = ReclaimSpaceControllerClient::new(addons);
    let request = |id: &str| ControllerReclaimSpaceRequest {
        volume_id: id.to_owned(),
        parameters: [("server".to_owned(), "any".to_owned())].into(),
        secrets: secrets(),
    };
    let answer = controller.controller_reclaim_space(request(&id)).await;
    let answer = answer.expect("an answer").into_inner();
    assert!(answer.pre_usage.is_none() && answer.post_usage.is_none());
    let missing = controller.controller_reclaim_space(request("pvc-2")).await;
    assert_eq!(missing.expect_err("missing").code(), Code::NotFound);
    let empty = controller.controller_reclaim_space(request("")).await;
    assert_eq!(empty.expect_err("wrong").code(), Code::InvalidArgument);
    assert!(server.terminate().await.success());
    assert!(!log_of(&place).contains(SECRET));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_controller_does_not_say_that_nothing_of_a_disk_was_reclaimed() {
    let nas = nas(Options::new(Generation::V25_10)).await;
    let place = Place::new();
    let config = config(&nas, "truenas-api-iscsi", by_key(&nas));
    let launch = Launch::new(config.to_string());
    let (mut server, addons) = started(&launch, &place).await;
    let id = create(&server.client(), "pvc-1").await;
    let request = ControllerReclaimSpaceRequest {
        volume_id: id,
        ..ControllerReclaimSpaceRequest::default()
    };
    let mut controller = ReclaimSpaceControllerClient::new(addons.clone());
    let answer = controller.controller_reclaim_space(request).await;
    let answer = answer.expect("an answer").into_inner();
    // Two equal numbers are shown as nothing reclaimed, whatever the node has trimmed.
    assert!(answer.pre_usage.is_none() && answer.post_usage.is_none());
    // Every node reaches its disks.
    let status = fence(&addons, &["10.0.0.0/8"]).await.expect_err("refused");
    assert_eq!(status.code(), Code::Unimplemented, "{status:?}");
    assert!(status.message().contains("`nodes`"), "{status:?}");
    assert!(server.terminate().await.success());
}
