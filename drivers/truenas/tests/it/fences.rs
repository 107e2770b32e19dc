//! A fence succeeds only if no share lets in a node that it shuts out, whatever an interrupted call has left.

use std::net::IpAddr;
use std::time::Duration;

use csi_types::Network;
use driver_core::{Driver, Error, FenceNetworks, NodeId, VolumeId};
use serde_json::json;
use truenas_sim::{Action, Generation, Rule, Simulator};

use crate::costs::{call, create};
use crate::nodes::{per_node, publish, unpublish};
use crate::taken_over::{rows, run};
use crate::volumes::appliance;

const KIND: &str = "freenas-api-nfs";

fn addresses_of(node: &NodeId) -> Vec<IpAddr> {
    let known = (node.as_str() == "a").then_some(IpAddr::from([10, 0, 0, 1]));
    known.into_iter().collect()
}

async fn fence(driver: &dyn Driver) -> Result<(), Error> {
    let network: Network = "10.0.0.0/24".parse().expect("a network");
    let request = FenceNetworks {
        networks: &[network],
        addresses_of: &addresses_of,
    };
    let fencer = driver.fencer().expect("it fences");
    fencer.fence_networks(&call(), request).await
}

/// Whether any share of the NAS lists node `a`.
async fn is_let_in(nas: &Simulator) -> bool {
    let shares = rows(nas, "sharing.nfs").await;
    let mut hosts = shares.iter().map(|share| share["hosts"].to_string());
    hosts.any(|hosts| hosts.contains("a.lan"))
}

/// A NAS with a volume of each of these names, which node `a` has.
async fn published(names: &[&str]) -> (Simulator, Vec<VolumeId>) {
    let nas = appliance(Generation::V25_10).await;
    nas.faults().set(|settings| settings.idle_timeout = false);
    let driver = per_node(&nas, KIND);
    let mut ids = Vec::new();
    for name in names {
        let id = create(driver.as_ref(), name).await.id;
        let published = publish(driver.as_ref(), &id, "a").await;
        published.unwrap_or_else(|error| panic!("{name}: {}", error.chain()));
        ids.push(id);
    }
    (nas, ids)
}

/// From now on no update of a share reaches the NAS.
fn cut(nas: &Simulator) {
    let rule = Rule::new("sharing.nfs.update", Action::CutBefore);
    nas.faults().add(rule);
}

/// The next process, after the connection is back.
async fn fence_again(nas: &Simulator) {
    nas.faults().clear();
    nas.clock().advance(Duration::from_mins(2));
    let fenced = fence(per_node(nas, KIND).as_ref()).await;
    fenced.unwrap_or_else(|error| panic!("{}", error.chain()));
    assert!(!is_let_in(nas).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fence_after_an_unpublish_whose_share_was_not_changed_shuts_the_node_out() {
    let (nas, ids) = published(&["pvc-1"]).await;
    cut(&nas);
    let left = unpublish(per_node(&nas, KIND).as_ref(), &ids[0], Some("a")).await;
    left.expect_err("cut");
    fence_again(&nas).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fence_that_was_cut_still_finds_a_node_that_only_the_list_has() {
    let (nas, _) = published(&["pvc-1", "pvc-2"]).await;
    // As if the record of the first one had been full.
    let forget = json!([{"key": "omnibus-csi:published", "remove": true}]);
    let forget = json!(["tank/csi/v/pvc-1", {"user_properties_update": forget}]);
    run(&nas, "pool.dataset.update", forget).await;
    cut(&nas);
    let fenced = fence(per_node(&nas, KIND).as_ref()).await;
    fenced.expect_err("cut");
    assert!(is_let_in(&nas).await, "nothing was cut");
    fence_again(&nas).await;
}
