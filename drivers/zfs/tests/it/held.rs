//! Volumes of one node, where access is per node: no second node gets in beside the one that has it.

use csi_types::{AccessMode, NodeIdentity};
use driver_core::{
    Effect, Error, Kind, Lister as _, NodeId, PublishVolume, Publisher as _, UnpublishVolume,
};
use driver_zfs::property::PropertyName;
use driver_zfs::step::Step;
use driver_zfs::testing::InMemory as _;
use driver_zfs::testing::MemoryHost;

use crate::orphans::call;
use crate::short::create;
use crate::world::*;

const OF_ONE_NODE: [AccessMode; 4] = [
    AccessMode::SingleNodeWriter,
    AccessMode::SingleNodeReaderOnly,
    AccessMode::SingleNodeSingleWriter,
    AccessMode::SingleNodeMultiWriter,
];
const OF_SEVERAL: [AccessMode; 3] = [
    AccessMode::MultiNodeReaderOnly,
    AccessMode::MultiNodeSingleWriter,
    AccessMode::MultiNodeMultiWriter,
];

fn identity(name: &str) -> NodeIdentity {
    NodeIdentity {
        reported: NodeId::parse(&format!("n={name}")).unwrap(),
        ..NodeIdentity::of(NodeId::parse(name).unwrap())
    }
}

async fn made(nodes: bool) -> MemoryDriver {
    let driver = with_nodes(nodes, MemoryHost::new().state().clone());
    run(&driver, &create(0, From::Nothing)).await.unwrap();
    driver
}

async fn publish_as(
    driver: &MemoryDriver,
    node: &NodeIdentity,
    mode: AccessMode,
) -> Result<(), Error> {
    let (volume, capability) = (volume(0), capability(mode));
    let request = PublishVolume::new(&volume, node, &capability, false);
    driver.publish_volume(&call(), request).await.map(drop)
}

async fn publish(driver: &MemoryDriver, name: &str, mode: AccessMode) -> Result<(), Error> {
    publish_as(driver, &identity(name), mode).await
}

/// For a volume of one node.
async fn publish_alone(driver: &MemoryDriver, name: &str) -> Result<(), Error> {
    publish(driver, name, AccessMode::SingleNodeWriter).await
}

async fn unpublish(driver: &MemoryDriver, name: &str) -> Result<(), Error> {
    let (volume, node) = (volume(0), identity(name));
    let request = UnpublishVolume::new(&volume, Some(&node));
    driver.unpublish_volume(&call(), request).await
}

fn inside(driver: &MemoryDriver) -> Vec<String> {
    let state = driver.backend().state();
    let nodes = state.targets.inside.get("v0");
    nodes.into_iter().flatten().cloned().collect()
}

/// The nodes of the volume, by what its lists show.
async fn shown(driver: &MemoryDriver) -> Vec<String> {
    let volume = driver.get_volume(&call(), &volume(0)).await.unwrap();
    let nodes = volume.published_to.iter();
    nodes.map(ToString::to_string).collect()
}

/// The refusal names the node that has the volume, and nothing was changed.
fn assert_held(refused: Result<(), Error>, holder: &str) {
    let error = refused.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (Kind::Busy, Effect::None));
    let advice = error.advice().unwrap_or_default();
    let text = format!("{}; {advice}", error.chain());
    for word in [
        format!("published to node `{holder}`").as_str(),
        "out-of-service",
        "zfs inherit omnibus-csi:published tank/csi/v/v0",
    ] {
        assert!(text.contains(word), "{word} is not in: {text}");
    }
}

/// Cuts the storage off after so many more steps.
fn cut(driver: &MemoryDriver, at: Option<usize>) {
    let mut state = driver.backend().state();
    state.cut_after = at.map(|at| state.steps + at);
}

#[tokio::test]
async fn a_volume_of_one_node_is_refused_to_another_one_until_it_is_unpublished() {
    for mode in OF_ONE_NODE {
        let driver = made(true).await;
        for _ in 0..2 {
            publish(&driver, "a", mode).await.unwrap();
        }
        let before = driver.backend().state().steps;
        for _ in 0..2 {
            assert_held(publish(&driver, "b", mode).await, "n=a");
        }
        assert_eq!(driver.backend().state().steps, before, "nothing was done");
        assert_eq!(shown(&driver).await, ["n=a"]);
        publish(&driver, "a", mode).await.unwrap();
        unpublish(&driver, "a").await.unwrap();
        publish(&driver, "b", mode).await.unwrap();
        assert_eq!(inside(&driver), ["b"]);
        assert_held(publish(&driver, "a", mode).await, "n=b");
    }
}

#[tokio::test]
async fn a_volume_of_several_nodes_is_for_all_of_them() {
    for mode in OF_SEVERAL {
        let driver = made(true).await;
        publish(&driver, "a", mode).await.unwrap();
        publish(&driver, "b", mode).await.unwrap();
        assert_eq!(inside(&driver), ["a", "b"]);
        // Each of them has it already; a third one does not.
        publish_alone(&driver, "b").await.unwrap();
        assert_held(publish_alone(&driver, "c").await, "n=a`, node `n=b");
        assert_eq!(inside(&driver), ["a", "b"]);
    }
}

#[tokio::test]
async fn a_node_that_reports_another_id_is_the_same_one() {
    let driver = made(true).await;
    publish_alone(&driver, "a").await.unwrap();
    let moved = NodeIdentity {
        reported: NodeId::parse("n=a/a=10.0.0.9").unwrap(),
        ..identity("a")
    };
    let renamed = NodeIdentity {
        id: NodeId::parse("iqn.a").unwrap(),
        ..identity("a")
    };
    for same in [moved, renamed] {
        let published = publish_as(&driver, &same, AccessMode::SingleNodeWriter).await;
        published.unwrap_or_else(|error| panic!("{same:?}: {}", error.chain()));
    }
    assert_held(publish_alone(&driver, "b").await, "n=a");
}

#[tokio::test]
async fn where_every_node_has_access_a_record_holds_nothing() {
    let driver = made(false).await;
    publish_alone(&driver, "a").await.unwrap();
    publish_alone(&driver, "b").await.unwrap();
    assert_eq!(shown(&driver).await, ["n=a", "n=b"]);
}

#[tokio::test]
async fn wherever_a_publish_is_killed_one_node_gets_the_volume() {
    for at in 0.. {
        let driver = made(true).await;
        cut(&driver, Some(at));
        let outcome = publish_alone(&driver, "a").await;
        cut(&driver, None);
        let driver = with_nodes(true, driver.backend().state().clone());
        let other = publish_alone(&driver, "b").await;
        let again = publish_alone(&driver, "a").await;
        let has_it = match (other, again) {
            (Ok(()), refused) => {
                assert_held(refused, "n=b");
                "b"
            }
            (refused, again) => {
                assert_held(refused, "n=a");
                again.unwrap_or_else(|error| panic!("cut after {at}: {}", error.chain()));
                "a"
            }
        };
        assert_eq!(inside(&driver), [has_it], "cut after {at}");
        if outcome.is_ok() {
            assert_eq!(has_it, "a");
            assert!(at > 1, "it was never cut");
            return;
        }
    }
}

#[tokio::test]
async fn wherever_an_unpublish_is_killed_no_other_node_gets_in_beside() {
    for at in 0.. {
        let driver = made(true).await;
        publish_alone(&driver, "a").await.unwrap();
        cut(&driver, Some(at));
        let outcome = unpublish(&driver, "a").await;
        cut(&driver, None);
        let driver = with_nodes(true, driver.backend().state().clone());
        let other = publish_alone(&driver, "b").await;
        if other.is_ok() {
            assert_eq!(inside(&driver), ["b"], "cut after {at}");
        } else {
            assert!(outcome.is_err(), "it was unpublished");
            assert_held(other, "n=a");
        }
        unpublish(&driver, "a").await.unwrap();
        publish_alone(&driver, "b").await.unwrap();
        assert_eq!(inside(&driver), ["b"], "cut after {at}");
        if outcome.is_ok() {
            assert!(at > 1, "it was never cut");
            return;
        }
    }
}

#[tokio::test]
async fn of_two_nodes_at_once_the_first_to_be_recorded_gets_it() {
    let driver = made(true).await;
    driver.backend().before_next_plan(|state| {
        let record = Step::Set {
            object: dataset(0).into(),
            properties: vec![set(PropertyName::PUBLISHED, "n=b|b,")],
        };
        state.pool.apply(&record).unwrap();
    });
    // Its own plan was started.
    let refused = publish_alone(&driver, "a").await.unwrap_err();
    assert_eq!(refused.kind(), Kind::Busy, "{}", refused.chain());
    assert_held(publish_alone(&driver, "a").await, "n=b");
    assert_eq!(shown(&driver).await, [""; 0]);
    assert!(inside(&driver).is_empty());
    publish_alone(&driver, "b").await.unwrap();
    assert_eq!(inside(&driver), ["b"]);
}

#[tokio::test]
async fn a_record_of_a_node_that_does_not_exist_any_more_is_removed_by_hand() {
    let driver = made(true).await;
    publish_alone(&driver, "gone").await.unwrap();
    assert_held(publish_alone(&driver, "a").await, "n=gone");
    let inherit = Step::Inherit {
        object: dataset(0).into(),
        property: PropertyName::PUBLISHED,
    };
    driver.backend().state().pool.apply(&inherit).unwrap();
    publish_alone(&driver, "a").await.unwrap();
    assert_eq!(shown(&driver).await, ["n=a"]);
}
