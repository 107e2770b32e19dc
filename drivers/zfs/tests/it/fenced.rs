//! Networks that are shut out: who loses access, who gets none, and what a kill in between leaves.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use csi_types::{AccessMode, Network, NodeIdentity};
use driver_core::{
    Driver as _, Effect, Error, FenceNetworks, Fencer as _, Kind, NodeId, PublishVolume,
    Publisher as _, UnpublishVolume,
};
use driver_zfs::ZfsDriver;
use driver_zfs::observed::VolumeKind;
use driver_zfs::property::PropertyName;
use driver_zfs::step::Step;
use driver_zfs::testing::InMemory as _;
use driver_zfs::testing::{EVERY_NODE, MemoryExport, MemoryHost, settings};

use crate::orphans::call;
use crate::short::create;
use crate::world::*;

/// Two volumes: `v0` for `a` and `b`, `v1` for `a` and a node that is known by its address.
async fn published() -> MemoryDriver {
    let driver = with_nodes(true, MemoryHost::new().state().clone());
    for id in 0..2 {
        run(&driver, &create(id, From::Nothing)).await.unwrap();
    }
    for (id, node) in [(0, "a"), (0, "b"), (1, "a"), (1, "10.0.0.3")] {
        publish(&driver, id, node).await.unwrap();
    }
    driver
}

/// The addresses that a node reports with its id.
fn addresses_of(node: &NodeId) -> Vec<IpAddr> {
    let address = match node.as_str() {
        "n=a" => "10.0.0.1",
        "n=b" => "10.0.1.2",
        "n=keyless" => "10.0.0.4",
        _ => return Vec::new(),
    };
    vec![address.parse().unwrap()]
}

fn identity(name: &str) -> NodeIdentity {
    let reported = NodeId::parse(&format!("n={name}")).unwrap();
    NodeIdentity {
        addresses: addresses_of(&reported),
        reported,
        ..NodeIdentity::of(NodeId::parse(name).unwrap())
    }
}

fn networks(texts: &[&str]) -> Vec<Network> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

async fn publish(driver: &MemoryDriver, id: u8, name: &str) -> Result<(), Error> {
    let capability = capability(AccessMode::MultiNodeMultiWriter);
    let (volume, node) = (volume(id), identity(name));
    let request = PublishVolume::new(&volume, &node, &capability, false);
    driver.publish_volume(&call(), request).await.map(drop)
}

async fn fence(driver: &MemoryDriver, texts: &[&str]) -> Result<(), Error> {
    let request = FenceNetworks {
        networks: &networks(texts),
        addresses_of: &addresses_of,
    };
    driver.fence_networks(&call(), request).await
}

async fn unfence(driver: &MemoryDriver, texts: &[&str]) -> Result<(), Error> {
    let request = FenceNetworks {
        networks: &networks(texts),
        addresses_of: &addresses_of,
    };
    driver.unfence_networks(&call(), request).await
}

async fn fenced(driver: &MemoryDriver) -> Vec<String> {
    let networks = driver.fenced_networks(&call()).await.unwrap();
    networks.iter().map(ToString::to_string).collect()
}

fn inside(driver: &MemoryDriver, id: u8) -> Vec<String> {
    let state = driver.backend().state();
    let nodes = state.targets.inside.get(&format!("v{id}"));
    nodes.into_iter().flatten().cloned().collect()
}

/// The same host, seen by another process.
fn restarted(driver: &MemoryDriver) -> MemoryDriver {
    with_nodes(true, driver.backend().state().clone())
}

fn write_record(driver: &MemoryDriver, text: &str) {
    let step = Step::Set {
        object: dataset(0).parent().unwrap().into(),
        properties: vec![set(PropertyName::FENCED, text)],
    };
    driver.backend().state().pool.apply(&step).unwrap();
}

#[tokio::test]
async fn the_nodes_of_a_fenced_network_lose_every_volume_and_get_none_until_it_is_lifted() {
    let driver = published().await;
    fence(&driver, &["10.0.0.0/24"]).await.unwrap();
    assert_eq!(inside(&driver, 0), ["b"]);
    assert!(inside(&driver, 1).is_empty());
    assert_eq!(fenced(&driver).await, ["10.0.0.0/24"]);
    let driver = restarted(&driver);
    for node in ["a", "10.0.0.3"] {
        let error = publish(&driver, 0, node).await.unwrap_err();
        assert_eq!((error.kind(), error.effect()), (Kind::Busy, Effect::None));
        let text = format!("{}; {}", error.chain(), error.advice().unwrap());
        for word in [
            "10.0.0.0/24",
            "Unfenced",
            "zfs inherit omnibus-csi:fenced tank/csi/v",
        ] {
            assert!(text.contains(word), "{word} is not in: {text}");
        }
    }
    publish(&driver, 1, "b").await.unwrap();
    unfence(&driver, &["10.0.0.9/24"]).await.unwrap();
    assert!(fenced(&driver).await.is_empty());
    assert_eq!(inside(&driver, 1), ["b"], "no node is let in by itself");
    publish(&driver, 1, "a").await.unwrap();
    assert_eq!(inside(&driver, 1), ["a", "b"]);
    let things = driver.backend().state().pool.things();
    let parent = &things[&dataset(0).parent().unwrap().into()];
    assert!(!parent.own.contains_key(&PropertyName::FENCED));
}

#[tokio::test]
async fn a_second_fence_and_a_second_lifting_change_nothing() {
    let driver = published().await;
    for _ in 0..2 {
        fence(&driver, &["10.0.0.0/24", "fd00::/64"]).await.unwrap();
        let state = driver.backend().state().clone();
        fence(&driver, &["10.0.0.7/24"]).await.unwrap();
        assert_eq!(driver.backend().state().steps, state.steps);
        assert_eq!(fenced(&driver).await, ["10.0.0.0/24", "fd00::/64"]);
    }
    for _ in 0..2 {
        unfence(&driver, &["10.0.0.0/24"]).await.unwrap();
        assert_eq!(fenced(&driver).await, ["fd00::/64"]);
    }
}

/// A fence that is cut after so many steps.
async fn cut_fence(driver: &MemoryDriver, at: usize) -> Result<(), Error> {
    {
        let mut state = driver.backend().state();
        state.cut_after = Some(state.steps + at);
    }
    let outcome = fence(driver, &["10.0.0.0/24"]).await;
    driver.backend().state().cut_after = None;
    outcome
}

#[tokio::test]
async fn a_fence_that_is_killed_anywhere_is_completed_by_the_next() {
    for at in 0.. {
        let driver = published().await;
        let outcome = cut_fence(&driver, at).await;
        let driver = restarted(&driver);
        if !fenced(&driver).await.is_empty() {
            // Whatever access the killed call left: asking for it ends it.
            publish(&driver, 1, "a").await.unwrap_err();
            assert!(
                !inside(&driver, 1).contains(&"a".to_owned()),
                "cut after {at}"
            );
            let error = publish(&driver, 1, "a").await.unwrap_err();
            assert_eq!((error.kind(), error.effect()), (Kind::Busy, Effect::None));
        }
        fence(&driver, &["10.0.0.0/24"]).await.unwrap();
        assert_eq!(inside(&driver, 0), ["b"], "cut after {at}");
        assert!(inside(&driver, 1).is_empty(), "cut after {at}");
        if outcome.is_ok() {
            assert!(at > 2, "it was never cut");
            return;
        }
    }
}

#[tokio::test]
async fn a_fence_that_is_killed_anywhere_still_finds_a_node_that_one_volume_records() {
    for at in 0.. {
        let driver = published().await;
        write_nodes(&driver, 1, "n=10.0.0.3|10.0.0.3,");
        let outcome = cut_fence(&driver, at).await;
        let driver = restarted(&driver);
        let again = fence(&driver, &["10.0.0.0/24"]).await;
        again.unwrap_or_else(|error| panic!("cut after {at}: {}", error.chain()));
        assert_eq!(inside(&driver, 0), ["b"], "cut after {at}");
        assert!(inside(&driver, 1).is_empty(), "cut after {at}");
        if outcome.is_ok() {
            assert!(at > 2, "it was never cut");
            return;
        }
    }
}

#[tokio::test]
async fn a_volume_that_cannot_be_closed_is_found_again_by_the_record_of_another_one() {
    let driver = published().await;
    write_nodes(&driver, 1, "n=10.0.0.3|10.0.0.3,");
    let target = |text: &str| write(&driver, 1, PropertyName::ISCSI_ASSETS, text);
    target("?");
    for _ in 0..2 {
        let error = fence(&driver, &["10.0.0.1/32"]).await.unwrap_err();
        let text = error.chain();
        assert!(text.contains("the export of volume `v1`"), "{text}");
        assert_eq!(inside(&driver, 1), ["10.0.0.3", "a"]);
    }
    target("v1");
    fence(&driver, &["10.0.0.1/32"]).await.unwrap();
    assert_eq!(inside(&driver, 0), ["b"]);
    assert_eq!(inside(&driver, 1), ["10.0.0.3"]);
}

#[tokio::test]
async fn a_node_whose_publish_is_killed_anywhere_is_found_by_the_fence() {
    for at in 0.. {
        let driver = published().await;
        unpublish(&driver, 1, "a").await;
        {
            let mut state = driver.backend().state();
            state.cut_after = Some(state.steps + at);
        }
        let outcome = publish(&driver, 1, "a").await;
        driver.backend().state().cut_after = None;
        fence(&driver, &["10.0.0.1/32"]).await.unwrap();
        assert_eq!(inside(&driver, 0), ["b"], "cut after {at}");
        assert_eq!(inside(&driver, 1), ["10.0.0.3"], "cut after {at}");
        if outcome.is_ok() {
            return;
        }
    }
}

async fn unpublish(driver: &MemoryDriver, id: u8, name: &str) {
    let (volume, node) = (volume(id), identity(name));
    let request = UnpublishVolume::new(&volume, Some(&node));
    driver.unpublish_volume(&call(), request).await.unwrap();
}

#[tokio::test]
async fn a_node_of_which_no_address_is_known_makes_the_fence_no_success() {
    let driver = published().await;
    publish(&driver, 0, "mute").await.unwrap();
    let error = fence(&driver, &["10.0.0.0/24"]).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.effect()),
        (Kind::Busy, Effect::Possible)
    );
    assert!(error.chain().contains("n=mute"), "{}", error.chain());
    assert_eq!(inside(&driver, 0), ["b", "mute"], "the others are shut out");
    // One that has access keeps it: it may be healthy.
    publish(&driver, 0, "mute").await.unwrap_err();
    assert_eq!(inside(&driver, 0), ["b", "mute"]);
    let error = publish(&driver, 1, "mute").await.unwrap_err();
    assert_eq!(inside(&driver, 1), Vec::<String>::new());
    assert!(
        error.chain().contains("no address of node `n=mute`"),
        "{}",
        error.chain()
    );
    unpublish(&driver, 0, "mute").await;
    fence(&driver, &["10.0.0.0/24"]).await.unwrap();
}

fn write(driver: &MemoryDriver, id: u8, name: PropertyName, text: &str) {
    let step = Step::Set {
        object: dataset(id).into(),
        properties: vec![set(name, text)],
    };
    driver.backend().state().pool.apply(&step).unwrap();
}

/// Sets the nodes that a volume records: as if there had been no room for the others.
fn write_nodes(driver: &MemoryDriver, id: u8, text: &str) {
    write(driver, id, PropertyName::PUBLISHED, text);
}

#[tokio::test]
async fn a_node_that_no_volume_records_makes_the_fence_no_success_until_it_is_out() {
    let driver = published().await;
    write_nodes(&driver, 0, "n=a|a,");
    for _ in 0..2 {
        let error = fence(&driver, &["10.0.0.0/24"]).await.unwrap_err();
        assert_eq!(
            (error.kind(), error.effect()),
            (Kind::Busy, Effect::Possible)
        );
        let text = error.chain();
        assert!(text.contains("`b` of volume `v0`"), "{text}");
        assert_eq!(inside(&driver, 0), ["b"], "the others are shut out");
        assert!(inside(&driver, 1).is_empty());
    }
    unpublish(&driver, 0, "b").await;
    fence(&driver, &["10.0.0.0/24"]).await.unwrap();
}

#[tokio::test]
async fn of_a_node_that_no_volume_records_its_name_may_be_an_address() {
    let driver = published().await;
    write_nodes(&driver, 1, "n=a|a,");
    fence(&driver, &["10.0.1.0/24"]).await.unwrap();
    assert_eq!(inside(&driver, 1), ["10.0.0.3", "a"]);
    let error = fence(&driver, &["10.0.0.0/24"]).await.unwrap_err();
    let text = error.chain();
    assert!(text.contains("`10.0.0.3` of volume `v1`"), "{text}");
}

#[tokio::test]
async fn each_node_is_named_once_whatever_the_number_of_volumes() {
    let driver = published().await;
    let mut export = MemoryExport::new(VolumeKind::Zvol);
    export.nodes = true;
    let named = Arc::clone(&export.named);
    let host = MemoryHost::from_state(driver.backend().state().clone());
    let settings = settings(VolumeKind::Zvol, "").unwrap();
    let driver = ZfsDriver::new(settings, host, export);
    fence(&driver, &["10.0.0.1/32"]).await.unwrap();
    assert_eq!(named.load(Ordering::Relaxed), 3);
}

#[tokio::test]
async fn a_node_that_one_volume_records_is_taken_out_of_all_that_let_it_in() {
    let driver = published().await;
    write_nodes(&driver, 1, "n=10.0.0.3|10.0.0.3,");
    fence(&driver, &["10.0.0.1/32"]).await.unwrap();
    assert_eq!(inside(&driver, 0), ["b"]);
    assert_eq!(inside(&driver, 1), ["10.0.0.3"]);
}

#[tokio::test]
async fn a_record_that_cannot_be_read_is_no_fence_that_is_lifted() {
    let driver = published().await;
    write_record(&driver, "10.0.0.0/24;");
    for error in [
        publish(&driver, 1, "b").await.unwrap_err(),
        fence(&driver, &["10.0.0.0/24"]).await.unwrap_err(),
        unfence(&driver, &["10.0.0.0/24"]).await.unwrap_err(),
        driver.fenced_networks(&call()).await.unwrap_err(),
    ] {
        assert_eq!((error.kind(), error.effect()), (Kind::Busy, Effect::None));
        assert!(
            error.chain().contains("omnibus-csi:fenced"),
            "{}",
            error.chain()
        );
    }
    assert_eq!(inside(&driver, 1), ["10.0.0.3", "a"], "nothing was changed");
}

/// A volume that was published to these nodes before access was per node.
async fn open_for(nodes: &[&str]) -> MemoryDriver {
    let driver = with_nodes(false, MemoryHost::new().state().clone());
    run(&driver, &create(0, From::Nothing)).await.unwrap();
    for node in nodes {
        publish(&driver, 0, node).await.unwrap();
    }
    let every = BTreeSet::from([EVERY_NODE.to_owned()]);
    {
        let mut state = driver.backend().state();
        state.targets.inside.insert("v0".to_owned(), every);
    }
    restarted(&driver)
}

#[tokio::test]
async fn a_volume_that_was_open_before_access_was_per_node_is_closed_by_a_fence() {
    let driver = open_for(&["a"]).await;
    fence(&driver, &["10.0.0.0/24"]).await.unwrap();
    assert!(inside(&driver, 0).is_empty());
    publish(&driver, 0, "b").await.unwrap();
    assert_eq!(inside(&driver, 0), ["b"]);
}

#[tokio::test]
async fn a_node_without_a_key_is_shut_out_and_keeps_no_other_from_being_shut_out() {
    for (nodes, left) in [(["keyless", "b"], &["b"][..]), (["a", "keyless"], &[])] {
        let driver = open_for(&nodes).await;
        fence(&driver, &["10.0.0.0/24"]).await.unwrap();
        assert_eq!(inside(&driver, 0), left);
    }
    // No other node has it.
    let driver = open_for(&["keyless"]).await;
    fence(&driver, &["10.0.0.0/24"]).await.unwrap();
    assert!(inside(&driver, 0).is_empty());
}

#[tokio::test]
async fn clients_are_the_nodes_that_are_recorded() {
    let driver = published().await;
    publish(&driver, 0, "mute").await.unwrap();
    let clients = driver.fence_clients(&call()).await.unwrap();
    let shown = clients.iter().map(|one| {
        let addresses: Vec<String> = one.addresses.iter().map(IpAddr::to_string).collect();
        format!("{} {}", one.node, addresses.join(" "))
    });
    assert_eq!(
        shown.collect::<Vec<_>>(),
        ["n=10.0.0.3 10.0.0.3", "n=a ", "n=b ", "n=mute "]
    );
}

#[tokio::test]
async fn where_every_node_has_access_none_can_be_shut_out() {
    let driver = with_nodes(false, MemoryHost::new().state().clone());
    assert!(driver.fencer().is_none());
    let error = driver.unsupported("fence networks");
    assert_eq!(error.kind(), Kind::Unsupported);
    assert!(error.chain().contains("`nodes`"), "{}", error.chain());
}

#[tokio::test]
async fn a_storage_without_the_parent_of_volumes_is_another_one() {
    let driver = with_nodes(true, MemoryHost::empty().state().clone());
    let error = fence(&driver, &["10.0.0.0/24"]).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unreachable);
    assert!(driver.fenced_networks(&call()).await.is_err());
}

#[tokio::test]
async fn a_host_that_cuts_off_no_node_refuses_the_fence_before_anything_is_changed() {
    let driver = published().await;
    let why = "its kernel shows no controllers";
    driver.backend().state().targets.goes_on = Some(why.to_owned());
    let before = driver.backend().state().steps;
    for _ in 0..2 {
        let error = fence(&driver, &["10.0.0.0/24"]).await.unwrap_err();
        let said = (error.kind(), error.effect());
        assert_eq!(said, (Kind::Unsupported, Effect::None));
        assert!(error.chain().contains(why), "{}", error.chain());
    }
    assert_eq!(driver.backend().state().steps, before);
    assert!(fenced(&driver).await.is_empty());
    assert_eq!(inside(&driver, 0), ["a", "b"]);

    driver.backend().state().targets.goes_on = None;
    fence(&driver, &["10.0.0.0/24"]).await.unwrap();
    assert_eq!(inside(&driver, 0), ["b"]);
    // Another kernel runs now: what was shut out stays out, and can be let in again.
    driver.backend().state().targets.goes_on = Some(why.to_owned());
    publish(&driver, 1, "a").await.unwrap_err();
    unfence(&driver, &["10.0.0.0/24"]).await.unwrap();
    publish(&driver, 1, "a").await.unwrap();
}

#[tokio::test]
async fn a_host_that_cuts_off_no_node_any_more_at_the_end_of_a_fence_makes_it_no_success() {
    let driver = published().await;
    let why = "a node has connected that cannot be ended";
    let request = FenceNetworks {
        networks: &networks(&["10.0.0.0/24"]),
        // It is asked after the host was.
        addresses_of: &|node| {
            driver.backend().state().targets.goes_on = Some(why.to_owned());
            addresses_of(node)
        },
    };
    let error = driver.fence_networks(&call(), request).await.unwrap_err();
    let said = (error.kind(), error.effect());
    assert_eq!(said, (Kind::Busy, Effect::Possible));
    assert!(error.chain().contains(why), "{}", error.chain());
    assert_eq!(fenced(&driver).await, ["10.0.0.0/24"]);
    assert_eq!(inside(&driver, 0), ["b"]);
}
