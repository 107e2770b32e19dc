//! Fences over two connections: those that they are about, and one that cannot fence, or does not answer.

use csi_proto::fence as wire;
use csi_proto::fence::fence_controller_client::FenceControllerClient;
use driver_core::Kind;
use driver_core::contract::fake::{Moment, Trick, Verb};
use omnibus_csi::csi::addons;

use super::*;

const NODE_1: &str = "n=node-1/a=10.0.0.1";
const NODE_2: &str = "n=node-2/a=10.0.1.2,fd00::2";

/// The services of csi-addons of a plugin that is served.
struct Addons {
    client: FenceControllerClient<Channel>,
    _folder: tempfile::TempDir,
}

impl Addons {
    async fn of(served: &Served) -> Self {
        let routes = addons::routes(served.plugin.clone());
        let (channel, folder) = behind_a_socket(routes).await;
        Self {
            client: FenceControllerClient::new(channel),
            _folder: folder,
        }
    }

    async fn fence(&self, cidr: &str, parameters: &[(&str, &str)]) -> Result<(), Status> {
        let request = wire::FenceClusterNetworkRequest {
            parameters: map(parameters),
            secrets: secrets(),
            cidrs: vec![wire::Cidr { cidr: cidr.into() }],
        };
        let mut client = self.client.clone();
        client.fence_cluster_network(request).await.map(drop)
    }

    async fn unfence(&self, cidr: &str, parameters: &[(&str, &str)]) -> Result<(), Status> {
        let request = wire::UnfenceClusterNetworkRequest {
            parameters: map(parameters),
            secrets: secrets(),
            cidrs: vec![wire::Cidr { cidr: cidr.into() }],
        };
        let mut client = self.client.clone();
        client.unfence_cluster_network(request).await.map(drop)
    }

    async fn fenced(&self, parameters: &[(&str, &str)]) -> Result<Vec<String>, Status> {
        let request = wire::ListClusterFenceRequest {
            parameters: map(parameters),
            secrets: secrets(),
        };
        let listed = self.client.clone().list_cluster_fence(request).await?;
        let cidrs = listed.into_inner().cidrs.into_iter();
        Ok(cidrs.map(|one| one.cidr).collect())
    }
}

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    let pair = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    pairs.iter().map(pair).collect()
}

async fn publish(served: &Served, volume: &str, node: &str) -> Result<(), Status> {
    let request = v1::ControllerPublishVolumeRequest {
        volume_id: volume.to_owned(),
        node_id: node.to_owned(),
        volume_capability: Some(mounted()),
        ..Default::default()
    };
    let mut controller = served.controller();
    controller
        .controller_publish_volume(request)
        .await
        .map(drop)
}

/// Two connections, each with a volume on both nodes.
async fn published() -> (Served, [Arc<FakeDriver>; 2], Addons) {
    let (served, drivers) = two().await;
    for volume in ["a/x", "b/y"] {
        served.volume(volume, 4096).await;
    }
    for volume in ["v:a/x", "v:b/y"] {
        for node in [NODE_1, NODE_2] {
            publish(&served, volume, node).await.expect("published");
        }
    }
    let addons = Addons::of(&served).await;
    (served, drivers, addons)
}

fn on(driver: &FakeDriver) -> Vec<String> {
    let nodes = driver.published().into_iter();
    nodes.map(|(_, node)| node.id.to_string()).collect()
}

#[tokio::test]
async fn a_fence_is_about_all_connections_or_those_that_it_names() {
    let (served, [a, b], addons) = published().await;
    let named = [("connection", "a"), ("connections", "a,a")];
    for parameters in named {
        addons
            .fence("10.0.0.0/24", &[parameters])
            .await
            .expect("fenced");
        assert_eq!(
            (on(&a), on(&b)),
            (strings(&["node-2"]), strings(&["node-1", "node-2"]))
        );
    }
    assert_eq!(
        addons.fenced(&[("connection", "b")]).await.expect("a list"),
        strings(&[])
    );
    addons.fence("fd00::/64", &[]).await.expect("fenced");
    assert_eq!((on(&a), on(&b)), (strings(&[]), strings(&["node-1"])));
    assert_eq!(
        addons.fenced(&[]).await.expect("a list"),
        ["10.0.0.0/24", "fd00::/64"]
    );
    let refused = publish(&served, "v:b/y", NODE_2).await.expect_err("fenced");
    is(&refused, Code::FailedPrecondition, "fd00::/64");
    addons.unfence("fd00::/64", &[]).await.expect("lifted");
    publish(&served, "v:b/y", NODE_2).await.expect("published");
    let mut client = addons.client.clone();
    let listed = client.get_fence_clients(wire::GetFenceClientsRequest::default());
    let clients = listed.await.expect("a list").into_inner().clients;
    let cidrs = |client: &wire::ClientDetails| {
        let all = client.addresses.iter().map(|one| one.cidr.clone());
        (client.id.clone(), all.collect::<Vec<_>>())
    };
    let wanted = [
        (NODE_1.to_owned(), strings(&["10.0.0.1/32"])),
        (NODE_2.to_owned(), strings(&["10.0.1.2/32", "fd00::2/128"])),
    ];
    assert_eq!(clients.iter().map(cidrs).collect::<Vec<_>>(), wanted);
    for wrong in [
        ("connection", "c"),
        ("connections", "a,c"),
        ("connection", ""),
    ] {
        let status = addons
            .fence("10.0.1.0/24", &[wrong])
            .await
            .expect_err("refused");
        is(&status, Code::InvalidArgument, "conn");
    }
    assert_eq!(on(&b), strings(&["node-1", "node-2"]));
}

#[tokio::test]
async fn a_connection_that_cannot_fence_refuses_it_before_anything_is_changed() {
    let all = (&FakeDriver::new() as &dyn Driver).capabilities();
    let open = Capabilities {
        fence: false,
        topology: false,
        ..all
    };
    let drivers = [FakeDriver::new(), FakeDriver::new().with_capabilities(open)].map(Arc::new);
    let served = pair(&drivers).await;
    served.volume("a/x", 4096).await;
    publish(&served, "v:a/x", NODE_1).await.expect("published");
    let addons = Addons::of(&served).await;
    let status = addons.fence("10.0.0.0/8", &[]).await.expect_err("refused");
    is(&status, Code::InvalidArgument, "connection `b`");
    is(
        &status,
        Code::InvalidArgument,
        "name the connections that can",
    );
    assert_eq!(on(&drivers[0]), ["node-1"]);
    addons
        .fence("10.0.0.0/8", &[("connection", "a")])
        .await
        .expect("fenced");
    assert_eq!(on(&drivers[0]), strings(&[]));

    // Storage of a node is lost with it.
    let local = Capabilities {
        topology: true,
        ..open
    };
    let drivers = [
        FakeDriver::new(),
        FakeDriver::new().with_capabilities(local),
    ]
    .map(Arc::new);
    let addons = Addons::of(&pair(&drivers).await).await;
    addons.fence("10.0.0.0/8", &[]).await.expect("fenced");
    let named = addons.fence("10.0.0.0/8", &[("connection", "b")]).await;
    is(
        &named.expect_err("refused"),
        Code::InvalidArgument,
        "connection `b`",
    );
    let drivers = [local, local].map(|can| Arc::new(FakeDriver::new().with_capabilities(can)));
    let addons = Addons::of(&pair(&drivers).await).await;
    let status = addons.fence("10.0.0.0/8", &[]).await.expect_err("refused");
    is(&status, Code::InvalidArgument, "connection");
}

#[tokio::test]
async fn a_connection_that_fails_does_not_save_the_node_from_the_others_and_is_no_success() {
    let (_served, [a, b], addons) = published().await;
    for moment in [Moment::BeforeChange, Moment::AfterChange] {
        a.play(Verb::FenceNode, moment, Trick::Fail(Kind::Unreachable));
        let status = addons.fence("10.0.0.0/24", &[]).await.expect_err("not all");
        is(&status, Code::Unavailable, "connection `a`");
        assert_eq!(on(&b), ["node-2"]);
    }
    addons.fence("10.0.0.0/24", &[]).await.expect("fenced");
    assert_eq!(on(&a), ["node-2"]);
}

#[tokio::test]
async fn a_connection_whose_storage_cuts_off_no_node_refuses_it_before_anything_is_changed() {
    let (_served, [a, b], addons) = published().await;
    let play = |kind| b.play(Verb::CheckFence, Moment::BeforeChange, Trick::Fail(kind));
    play(Kind::Unsupported);
    let status = addons.fence("10.0.0.0/24", &[]).await.expect_err("refused");
    for words in ["connection `b`", "name the connections that can"] {
        is(&status, Code::InvalidArgument, words);
    }
    for driver in [&a, &b] {
        assert_eq!(on(driver), strings(&["node-1", "node-2"]));
    }
    assert_eq!(addons.fenced(&[]).await.expect("a list"), strings(&[]));
    // One that does not answer does not save the node from the others.
    play(Kind::Unreachable);
    addons.fence("10.0.0.0/24", &[]).await.expect("fenced");
    for driver in [&a, &b] {
        assert_eq!(on(driver), strings(&["node-2"]));
    }
}
