//! The nodes that volumes are published to, as lists show them, and the access that follows from them.

use std::collections::BTreeSet;

use csi_types::{AccessMode, NodeIdentity};
use driver_core::{
    Effect, Exports as _, Kind, Lister as _, NodeId, PageRequest, PublishVolume, Publisher as _,
    UnpublishVolume,
};
use driver_zfs::observed::VolumeKind;
use driver_zfs::property::PropertyName;
use driver_zfs::step::Step;
use driver_zfs::testing::InMemory as _;
use driver_zfs::testing::{EVERY_NODE, MemoryHost};

use crate::orphans::call;
use crate::world::*;

fn identity(name: &str) -> NodeIdentity {
    NodeIdentity {
        reported: NodeId::parse(&format!("n={name}")).unwrap(),
        ..NodeIdentity::of(NodeId::parse(name).unwrap())
    }
}

async fn create(driver: &MemoryDriver) {
    let source = From::Nothing;
    let verb = Verb::Create {
        id: 0,
        source,
        copy: false,
    };
    run(driver, &verb).await.unwrap();
}

async fn publish(driver: &MemoryDriver, name: &str) {
    let capability = capability(AccessMode::MultiNodeMultiWriter);
    let (volume, node) = (volume(0), identity(name));
    let request = PublishVolume::new(&volume, &node, &capability, false);
    driver.publish_volume(&call(), request).await.unwrap();
}

async fn unpublish(driver: &MemoryDriver, name: &str) {
    let (volume, node) = (volume(0), identity(name));
    let request = UnpublishVolume::new(&volume, Some(&node));
    driver.unpublish_volume(&call(), request).await.unwrap();
}

async fn listed(driver: &MemoryDriver) -> Vec<String> {
    let page = driver.list_volumes(&call(), &PageRequest::default()).await;
    let volume = page.unwrap().entries.remove(0);
    let same = driver.get_volume(&call(), &volume.id).await.unwrap();
    assert_eq!(same, volume);
    let nodes = volume.published_to.iter();
    nodes.map(ToString::to_string).collect()
}

fn inside(driver: &MemoryDriver) -> Vec<String> {
    let state = driver.backend().state();
    let nodes = state.targets.inside.get("v0");
    nodes.into_iter().flatten().cloned().collect()
}

/// A volume of before `nodes` was configured, published to these nodes, and the same host with it.
async fn switched_on(nodes: &[&str]) -> MemoryDriver {
    let open = with_nodes(false, MemoryHost::new().state().clone());
    create(&open).await;
    for node in nodes {
        publish(&open, node).await;
    }
    let mut state = open.backend().state().clone();
    let every = BTreeSet::from([EVERY_NODE.to_owned()]);
    state.targets.inside.insert("v0".to_owned(), every);
    with_nodes(true, state)
}

#[tokio::test]
async fn the_first_node_that_is_listed_takes_those_with_it_that_the_volume_is_published_to() {
    let driver = switched_on(&["a", "b", "nameless"]).await;
    // So the attacher publishes it again.
    assert!(listed(&driver).await.is_empty());
    run(&driver, &Verb::Expand(0, 2)).await.unwrap();
    assert_eq!(inside(&driver), [EVERY_NODE], "growing shuts out no node");
    publish(&driver, "c").await;
    assert_eq!(inside(&driver), ["a", "b", "c"]);
    assert_eq!(listed(&driver).await, ["n=a", "n=b", "n=c"]);
    unpublish(&driver, "b").await;
    assert_eq!(inside(&driver), ["a", "c"]);
    publish(&driver, "c").await;
    assert_eq!(inside(&driver), ["a", "c"], "the record is not read again");
}

#[tokio::test]
async fn a_repair_closes_a_volume_for_its_nodes_and_leaves_one_open_of_which_none_is_known() {
    let driver = switched_on(&["a", "b"]).await;
    assert!(!driver.is_exported(&call(), &volume(0)).await.unwrap());
    driver.repair_export(&call(), &volume(0)).await.unwrap();
    assert_eq!(inside(&driver), ["a", "b"]);
    assert_eq!(listed(&driver).await, ["n=a", "n=b"]);

    let driver = switched_on(&[]).await;
    assert!(driver.is_exported(&call(), &volume(0)).await.unwrap());
    driver.repair_export(&call(), &volume(0)).await.unwrap();
    create(&driver).await;
    assert_eq!(inside(&driver), [EVERY_NODE]);
    publish(&driver, "a").await;
    assert_eq!(inside(&driver), ["a"]);
}

#[tokio::test]
async fn a_node_without_a_key_is_left_out_and_holds_up_no_other() {
    let before = || switched_on(&["a", "b", "keyless"]);
    let driver = before().await;
    driver.repair_export(&call(), &volume(0)).await.unwrap();
    assert_eq!(inside(&driver), ["a", "b"]);

    let driver = before().await;
    publish(&driver, "c").await;
    assert_eq!(inside(&driver), ["a", "b", "c"]);

    for (gone, left) in [("a", "b"), ("b", "a")] {
        let driver = before().await;
        unpublish(&driver, gone).await;
        assert_eq!(inside(&driver), [left]);
    }
    let driver = before().await;
    unpublish(&driver, "keyless").await;
    assert_eq!(inside(&driver), ["a", "b"]);

    // Its own call is refused, and changes nothing.
    let driver = before().await;
    let capability = capability(AccessMode::MultiNodeMultiWriter);
    let (id, node) = (volume(0), identity("keyless"));
    let asked = PublishVolume::new(&id, &node, &capability, false);
    let error = driver.publish_volume(&call(), asked).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.effect()),
        (Kind::Invalid, Effect::None)
    );
    assert_eq!(inside(&driver), [EVERY_NODE]);
}

#[tokio::test]
async fn switching_on_converges_wherever_the_first_publish_is_cut() {
    for at in 0.. {
        let driver = switched_on(&["a", "b"]).await;
        {
            let mut state = driver.backend().state();
            state.cut_after = Some(state.steps + at);
        }
        let capability = capability(AccessMode::MultiNodeMultiWriter);
        let (id, node) = (volume(0), identity("c"));
        let asked = PublishVolume::new(&id, &node, &capability, false);
        let outcome = driver.publish_volume(&call(), asked).await;
        driver.backend().state().cut_after = None;
        let now = inside(&driver);
        let keeps = |node: &str| {
            now.iter()
                .any(|inside| inside == node || inside == EVERY_NODE)
        };
        assert!(keeps("a") && keeps("b"), "cut after {at}: {now:?}");
        publish(&driver, "c").await;
        assert_eq!(inside(&driver), ["a", "b", "c"], "cut after {at}");
        assert_eq!(listed(&driver).await, ["n=a", "n=b", "n=c"]);
        if outcome.is_ok() {
            assert!(at > 1, "it was never cut");
            return;
        }
    }
}

#[tokio::test]
async fn a_list_that_was_removed_behind_the_driver_is_missed_and_made_again() {
    let driver = with_nodes(true, MemoryHost::new().state().clone());
    create(&driver).await;
    publish(&driver, "a").await;
    publish(&driver, "b").await;
    assert_eq!(listed(&driver).await, ["n=a", "n=b"]);
    {
        let mut state = driver.backend().state();
        let forget = Step::Inherit {
            object: dataset(0).into(),
            property: PropertyName::parse("test:nodes").unwrap(),
        };
        state.pool.apply(&forget).unwrap();
        state.targets.inside.clear();
    }
    assert!(listed(&driver).await.is_empty());
    for (node, now) in [("a", &["n=a"][..]), ("b", &["n=a", "n=b"])] {
        publish(&driver, node).await;
        assert_eq!(listed(&driver).await, now);
    }
    assert_eq!(inside(&driver), ["a", "b"]);
}

#[tokio::test]
async fn a_volume_with_more_nodes_than_can_be_recorded_lets_them_in_all_the_same() {
    let driver = with_nodes(false, MemoryHost::new().state().clone());
    create(&driver).await;
    let names: Vec<_> = (0..40).map(|number| format!("{number:0>250}")).collect();
    for name in &names {
        publish(&driver, name).await;
    }
    let shown = listed(&driver).await.len();
    assert!(0 < shown && shown < names.len(), "{shown}");
    for name in &names {
        unpublish(&driver, name).await;
    }
    assert!(listed(&driver).await.is_empty());
}

#[tokio::test]
async fn a_list_of_ten_thousand_volumes_with_their_nodes_costs_one_exchange_for_each_page() {
    const VOLUMES: usize = 10_000;
    let driver = with_nodes(false, MemoryHost::new().state().clone());
    create(&driver).await;
    {
        let mut state = driver.backend().state();
        let context = r#"{"node_attach_driver":"iscsi","portal":"192.0.2.1:3260","iqn":"iqn.2026-01.example:x","lun":0}"#;
        for number in 1..VOLUMES {
            let name = dataset(0).parent().unwrap();
            let name = name.child(&format!("pvc-{number}")).unwrap();
            let properties = [
                set(PropertyName::MANAGED, "true"),
                set(PropertyName::CONTEXT, context),
                set(PropertyName::VOLSIZE, &SIZE.to_string()),
                set(PropertyName::PUBLISHED, "n=worker-1,n=worker-2,"),
            ];
            let kind = VolumeKind::Zvol;
            state.pool.insert(&name, kind, &properties, None);
        }
    }
    let before = driver.backend().state().exchanges;
    let (mut page, mut pages, mut shown) = (PageRequest::default(), 0, 0);
    loop {
        let listed = driver.list_volumes(&call(), &page).await.unwrap();
        pages += 1;
        let volumes = listed.entries.iter();
        shown += volumes.filter(|v| v.published_to.len() == 2).count();
        page.after = listed.next;
        if page.after.is_none() {
            break;
        }
    }
    assert_eq!((shown, pages), (VOLUMES - 1, 5));
    assert_eq!(driver.backend().state().exchanges - before, pages);
}
