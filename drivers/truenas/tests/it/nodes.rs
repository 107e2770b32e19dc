//! Access per node: only the nodes that a volume was published to get in, and nothing is left of them.

use std::sync::Arc;
use std::time::Duration;

use csi_types::{AccessMode, NodeIdentity};
use driver_core::config::{Document, NoEnvironment};
use driver_core::{
    DeleteVolume, Driver, Error, Kind, NodeId, PublishVolume, UnpublishVolume, VolumeId,
};
use driver_truenas::from_document;
use secrecy::ExposeSecret;
use serde_json::{Value, json};
use truenas_sim::backend::Session;
use truenas_sim::{Action, Generation, Options, Rule, Simulator};

use crate::costs::{call, create, exchanges, request};
use crate::faults::{everything, retried};
use crate::taken_over::{rows, run};
use crate::volumes::{appliance, config, driver, set_up};

const KINDS: [&str; 3] = ["freenas-api-nfs", "freenas-api-iscsi", "freenas-api-nvmeof"];
const VOLUME: &str = "tank/csi/v/pvc-1";
const ADDRESS: &str = "127.255.255.254";
const INITIATOR: &str = "iqn.2004-10.invalid.omnibus-csi:no-node";

/// Every kind on every generation that has it.
fn all() -> impl Iterator<Item = (Generation, &'static str)> {
    let api = Generation::ALL
        .into_iter()
        .filter(|generation| !generation.is_core());
    let all = api.flat_map(|generation| KINDS.map(|kind| (generation, kind)));
    all.filter(|(generation, kind)| !kind.ends_with("nvmeof") || *generation >= Generation::V25_10)
}

/// The configuration with access per node.
pub(crate) fn for_nodes(nas: &Simulator, kind: &str) -> String {
    let text = config(nas, kind, "");
    match kind.rsplit('-').next() {
        Some("nfs") => text.replace(
            "shareAllowedNetworks: [10.0.0.0/8]",
            "nodes: {nameTemplate: '{{node}}.lan', names: {six: '[2001:db8::6]'}}",
        ),
        Some("iscsi") => text.replace(
            ", targetGroupInitiatorGroup: 1}]",
            "}]\n  nodes: {nameTemplate: 'iqn.2004-10.org.example:{{node}}'}",
        ),
        _ => text.replace(
            "ports: [1]}",
            "ports: [1], nodes: {nameTemplate: 'nqn.2014-08.org.example:{{node}}'}}",
        ),
    }
}

/// The name of a node for such a connection.
pub(crate) fn called(kind: &str, node: &str) -> String {
    match kind.rsplit('-').next() {
        Some("nfs") => format!("{node}.lan"),
        Some("iscsi") => format!("iqn.2004-10.org.example:{node}"),
        _ => format!("nqn.2014-08.org.example:{node}"),
    }
}

pub(crate) fn built(text: &str) -> Arc<dyn Driver> {
    let document = Document::parse(text, &NoEnvironment).expect("a document");
    from_document(&document).unwrap_or_else(|error| panic!("{error}"))
}

pub(crate) fn per_node(nas: &Simulator, kind: &str) -> Arc<dyn Driver> {
    built(&for_nodes(nas, kind))
}

/// For a volume of several nodes.
pub(crate) async fn publish(driver: &dyn Driver, id: &VolumeId, node: &str) -> Result<(), Error> {
    publish_as(driver, id, node, AccessMode::MultiNodeMultiWriter).await
}

async fn publish_as(
    driver: &dyn Driver,
    id: &VolumeId,
    node: &str,
    mode: AccessMode,
) -> Result<(), Error> {
    let mut capability = request(driver, "any", None).capabilities.remove(0);
    capability.mode = mode;
    let node = NodeIdentity::of(NodeId::parse(node).expect("an id"));
    let request = PublishVolume::new(id, &node, &capability, false);
    let publisher = driver.publisher().expect("it publishes");
    publisher.publish_volume(&call(), request).await.map(drop)
}

pub(crate) async fn unpublish(
    driver: &dyn Driver,
    id: &VolumeId,
    node: Option<&str>,
) -> Result<(), Error> {
    let node = node.map(|node| NodeIdentity::of(NodeId::parse(node).expect("an id")));
    let publisher = driver.publisher().expect("it publishes");
    publisher
        .unpublish_volume(&call(), UnpublishVolume::new(id, node.as_ref()))
        .await
}

fn texts(list: &Value) -> Vec<String> {
    let list = list.as_array().expect("a list").iter();
    let mut texts: Vec<_> = list
        .map(|text| text.as_str().expect("a text").to_owned())
        .collect();
    texts.sort();
    texts
}

/// The nodes that get in by what the NAS itself says; `*` for all.
async fn let_in(nas: &Simulator, kind: &str) -> Vec<String> {
    match kind.rsplit('-').next() {
        Some("nfs") => {
            let shares = rows(nas, "sharing.nfs").await;
            assert_eq!(shares.len(), 1, "{shares:?}");
            assert_eq!(shares[0]["enabled"], true);
            let clients = [&shares[0]["hosts"], &shares[0]["networks"]]
                .map(texts)
                .concat();
            let clients = clients.into_iter().filter(|client| client != ADDRESS);
            match (
                texts(&shares[0]["hosts"]).is_empty(),
                clients.collect::<Vec<_>>(),
            ) {
                (true, clients) if clients.is_empty() => vec!["*".to_owned()],
                (_, clients) => clients,
            }
        }
        Some("iscsi") => {
            let targets = rows(nas, "iscsi.target").await;
            assert_eq!(targets.len(), 1, "{targets:?}");
            let lists = rows(nas, "iscsi.initiator").await;
            let list = |id: &Value| lists.iter().find(|list| list["id"] == *id);
            let mut names = Vec::new();
            for group in targets[0]["groups"].as_array().expect("groups") {
                let of_group = list(&group["initiator"]).map(|list| texts(&list["initiators"]));
                let of_group = of_group.filter(|names| !names.is_empty());
                names.extend(of_group.unwrap_or_else(|| vec!["*".to_owned()]));
            }
            names.retain(|name| name != INITIATOR);
            names
        }
        _ => {
            let subsystems = rows(nas, "nvmet.subsys").await;
            assert_eq!(subsystems.len(), 1, "{subsystems:?}");
            if subsystems[0]["allow_any_host"] == true {
                return vec!["*".to_owned()];
            }
            let links = rows(nas, "nvmet.host_subsys").await;
            let names = links.iter().map(|link| link["host"]["hostnqn"].to_string());
            let mut names: Vec<_> = names.map(|name| name.replace('"', "")).collect();
            names.sort();
            names
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_nodes_that_a_volume_was_published_to_get_in() {
    for (generation, kind) in all() {
        let nas = appliance(generation).await;
        let what = format!("{kind} on {generation:?}");
        let before = everything(&nas, generation).await;
        let driver = per_node(&nas, kind);
        let driver = driver.as_ref();
        let done = |outcome: Result<(), Error>| {
            outcome.unwrap_or_else(|error| panic!("{what}: {}", error.chain()));
        };
        let names = |nodes: &[&str]| {
            nodes
                .iter()
                .map(|node| called(kind, node))
                .collect::<Vec<_>>()
        };
        let id = create(driver, "pvc-1").await.id;
        assert_eq!(let_in(&nas, kind).await, names(&[]), "{what}: just made");
        done(publish(driver, &id, "a").await);
        assert_eq!(let_in(&nas, kind).await, names(&["a"]), "{what}");
        let once = everything(&nas, generation).await;
        done(publish(driver, &id, "a").await);
        assert_eq!(everything(&nas, generation).await, once, "{what}: twice");
        done(publish(driver, &id, "b").await);
        assert_eq!(let_in(&nas, kind).await, names(&["a", "b"]), "{what}");
        // Neither a call for the volume nor another driver loses them.
        create(per_node(&nas, kind).as_ref(), "pvc-1").await;
        assert_eq!(let_in(&nas, kind).await, names(&["a", "b"]), "{what}");
        done(unpublish(driver, &id, Some("a")).await);
        assert_eq!(let_in(&nas, kind).await, names(&["b"]), "{what}");
        for gone in ["a", "never"] {
            done(unpublish(driver, &id, Some(gone)).await);
            assert_eq!(let_in(&nas, kind).await, names(&["b"]), "{what}: {gone}");
        }
        done(publish(driver, &id, "a").await);
        done(unpublish(driver, &id, None).await);
        assert_eq!(let_in(&nas, kind).await, names(&[]), "{what}: all are out");
        done(publish(driver, &id, "a").await);
        done(driver.delete_volume(&call(), DeleteVolume::new(&id)).await);
        done(unpublish(driver, &id, Some("a")).await);
        let left = everything(&nas, generation).await;
        let left: Vec<_> = left.difference(&before).collect();
        assert!(
            left.iter().all(|row| row.contains("tank/csi")),
            "{what}: {left:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_of_one_node_is_for_another_one_only_after_it() {
    let mode = AccessMode::SingleNodeMultiWriter;
    for (generation, kind) in all() {
        let nas = appliance(generation).await;
        let what = format!("{kind} on {generation:?}");
        let driver = per_node(&nas, kind);
        let driver = driver.as_ref();
        let id = create(driver, "pvc-1").await.id;
        for _ in 0..2 {
            publish_as(driver, &id, "a", mode).await.expect("published");
        }
        let before = everything(&nas, generation).await;
        let refused = publish_as(driver, &id, "b", mode).await;
        let refused = refused.expect_err("another node has it");
        assert_eq!(refused.kind(), Kind::Busy, "{what}: {}", refused.chain());
        assert!(refused.chain().contains("node `a`"), "{}", refused.chain());
        assert_eq!(everything(&nas, generation).await, before, "{what}");
        assert_eq!(let_in(&nas, kind).await, [called(kind, "a")], "{what}");
        unpublish(driver, &id, Some("a"))
            .await
            .expect("unpublished");
        publish_as(driver, &id, "b", mode).await.expect("published");
        assert_eq!(let_in(&nas, kind).await, [called(kind, "b")], "{what}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_is_held_by_its_node_until_the_access_is_closed() {
    let mode = AccessMode::SingleNodeMultiWriter;
    let closing = [
        "sharing.nfs.update",
        "iscsi.initiator.update",
        "nvmet.host_subsys.delete",
    ];
    for (kind, closing) in KINDS.into_iter().zip(closing) {
        // Killed before the access is closed; after that, before the node is forgotten.
        let forgetting = Rule::new("pool.dataset.update", Action::CutBefore).skip(1);
        for (rule, is_in) in [
            (Rule::new(closing, Action::CutBefore), true),
            (forgetting, false),
        ] {
            let what = format!("{kind}: {rule:?}");
            let nas = appliance(Generation::V25_10).await;
            nas.faults().set(|settings| settings.idle_timeout = false);
            let first = per_node(&nas, kind);
            let id = create(first.as_ref(), "pvc-1").await.id;
            let published = publish_as(first.as_ref(), &id, "a", mode).await;
            published.unwrap_or_else(|error| panic!("{what}: {}", error.chain()));
            nas.faults().add(rule);
            let killed = unpublish(first.as_ref(), &id, Some("a")).await;
            killed.expect_err(&what);
            nas.faults().clear();
            nas.clock().advance(Duration::from_mins(2));
            let still: Vec<_> = is_in.then(|| called(kind, "a")).into_iter().collect();
            assert_eq!(let_in(&nas, kind).await, still, "{what}");
            let next = per_node(&nas, kind);
            let refused = publish_as(next.as_ref(), &id, "b", mode).await;
            let refused = refused.expect_err(&what);
            assert_eq!(refused.kind(), Kind::Busy, "{what}: {}", refused.chain());
            assert_eq!(let_in(&nas, kind).await, still, "{what}: refused");
            retried(&what, async || {
                unpublish(next.as_ref(), &id, Some("a")).await
            })
            .await;
            let published = publish_as(next.as_ref(), &id, "b", mode).await;
            published.unwrap_or_else(|error| panic!("{what}: {}", error.chain()));
            assert_eq!(let_in(&nas, kind).await, [called(kind, "b")], "{what}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_added_by_hand_goes_and_a_host_of_others_stays() {
    for (generation, kind) in all() {
        let nas = appliance(generation).await;
        let driver = per_node(&nas, kind);
        let id = create(driver.as_ref(), "pvc-1").await.id;
        let stranger = called(kind, "stranger");
        match kind.rsplit('-').next() {
            Some("nfs") => {
                let share = rows(&nas, "sharing.nfs").await.remove(0);
                let hosts = json!([share["id"], {"hosts": [stranger]}]);
                run(&nas, "sharing.nfs.update", hosts).await;
            }
            Some("iscsi") => {
                let groups = &rows(&nas, "iscsi.target").await[0]["groups"];
                let list = json!([groups[0]["initiator"], {"initiators": []}]);
                run(&nas, "iscsi.initiator.update", list).await;
            }
            _ => {
                for nqn in [called(kind, "a"), stranger] {
                    run(&nas, "nvmet.host.create", json!([{"hostnqn": nqn}])).await;
                }
                let link = json!([{"host_id": 2, "subsys_id": 1}]);
                run(&nas, "nvmet.host_subsys.create", link).await;
            }
        }
        let exports = driver.exports().expect("exports");
        let is_exported = exports.is_exported(&call(), &id).await.expect("seen");
        assert!(!is_exported, "{kind} on {generation:?}");
        publish(driver.as_ref(), &id, "a").await.expect("published");
        assert_eq!(let_in(&nas, kind).await, [called(kind, "a")], "{kind}");
        unpublish(driver.as_ref(), &id, Some("a"))
            .await
            .expect("unpublished");
        assert_eq!(let_in(&nas, kind).await, Vec::<String>::new(), "{kind}");
        if kind.ends_with("nvmeof") {
            assert_eq!(rows(&nas, "nvmet.host").await.len(), 2, "{generation:?}");
        }
    }
}

/// One row for all volumes: it goes with the last of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_stays_while_another_volume_lets_it_in() {
    for generation in [Generation::V25_10, Generation::V26Rc] {
        let nas = appliance(generation).await;
        let driver = per_node(&nas, KINDS[2]);
        let driver = driver.as_ref();
        let ids = [
            create(driver, "pvc-1").await.id,
            create(driver, "pvc-2").await.id,
        ];
        // At once: both need the same host.
        let both = tokio::join!(publish(driver, &ids[0], "a"), publish(driver, &ids[1], "a"));
        both.0
            .and(both.1)
            .unwrap_or_else(|error| panic!("{}", error.chain()));
        assert_eq!(rows(&nas, "nvmet.host_subsys").await.len(), 2);
        unpublish(driver, &ids[0], Some("a"))
            .await
            .expect("unpublished");
        assert_eq!(rows(&nas, "nvmet.host").await.len(), 1, "{generation:?}");
        driver
            .delete_volume(&call(), DeleteVolume::new(&ids[1]))
            .await
            .expect("deleted");
        assert!(rows(&nas, "nvmet.host").await.is_empty(), "{generation:?}");
        // One gets a host while the other one loses it.
        publish(driver, &ids[0], "a").await.expect("published");
        let other = create(driver, "pvc-3").await.id;
        let both = tokio::join!(
            unpublish(driver, &ids[0], Some("a")),
            publish(driver, &other, "a"),
        );
        both.0
            .and(both.1)
            .unwrap_or_else(|error| panic!("{}", error.chain()));
        assert_eq!(rows(&nas, "nvmet.host_subsys").await.len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_connection_of_the_last_node_ends_with_its_access() {
    let nas = appliance(Generation::V25_10).await;
    let driver = per_node(&nas, KINDS[2]);
    let driver = driver.as_ref();
    let id = create(driver, "pvc-1").await.id;
    let target = rows(&nas, "nvmet.subsys").await[0]["subnqn"]
        .as_str()
        .expect("an NQN")
        .to_owned();
    let model = nas.model().expect("the model");
    for node in ["a", "b"] {
        publish(driver, &id, node).await.expect("published");
        model.connect(Session {
            target: target.clone(),
            initiator: called(KINDS[2], node),
            address: "10.0.0.7".to_owned(),
        });
    }
    // The other one keeps its connection, and its ports.
    unpublish(driver, &id, Some("a"))
        .await
        .expect("unpublished");
    assert_eq!(
        run(&nas, "nvmet.global.sessions", json!([]))
            .await
            .as_array()
            .map(Vec::len),
        Some(2)
    );
    // Interrupted before the end of the connection, and tried again.
    nas.faults().set(|settings| settings.idle_timeout = false);
    let cut = Rule::new("nvmet.global.sessions", Action::CutBefore);
    nas.faults().add(cut);
    unpublish(driver, &id, Some("b")).await.expect_err("cut");
    nas.faults().clear();
    nas.clock().advance(Duration::from_mins(2));
    retried("unpublish", async || {
        unpublish(driver, &id, Some("b")).await
    })
    .await;
    assert_eq!(
        run(&nas, "nvmet.global.sessions", json!([])).await,
        json!([])
    );
    assert_eq!(rows(&nas, "nvmet.port_subsys").await.len(), 1);
}

/// Each stage is interrupted at each of its calls, and tried again: changes of access before and after the call,
/// the others after it.
async fn survives_cuts(generation: Generation, kind: &str) {
    let nas = appliance(generation).await;
    nas.faults().set(|settings| settings.idle_timeout = false);
    create(per_node(&nas, kind).as_ref(), "other").await;
    let before = everything(&nas, generation).await;
    for (stage, action) in [
        (0, Action::CutAfter),
        (1, Action::CutBefore),
        (1, Action::CutAfter),
        (2, Action::CutBefore),
        (2, Action::CutAfter),
        (3, Action::CutAfter),
    ] {
        let mut skip = 0;
        while is_cut(
            &nas,
            kind,
            stage,
            Rule::new("*", action.clone()).skip(skip).times(1),
        )
        .await
        {
            let left = everything(&nas, generation).await;
            assert_eq!(
                left, before,
                "{kind}: stage {stage}: call {skip} {action:?}"
            );
            skip += 1;
        }
        assert!(skip > 2, "{kind}: stage {stage} has {skip} calls");
    }
}

/// The life of a volume with a rule in one stage. Whether that applied to any call.
async fn is_cut(nas: &Simulator, kind: &str, stage: usize, rule: Rule) -> bool {
    let what = format!("{kind}: stage {stage}: {rule:?}");
    let id = request(per_node(nas, kind).as_ref(), "pvc-1", None).id;
    let mut applied = false;
    for number in 0..4 {
        // A driver of its own does not wait longer for each cut, nor does the NAS count its logins.
        nas.clock().advance(Duration::from_mins(2));
        let driver = per_node(nas, kind);
        let driver = driver.as_ref();
        // It is logged in before the rule counts calls.
        let _ = driver
            .lister()
            .expect("lists")
            .get_volume(&call(), &id)
            .await;
        if number == stage {
            nas.faults().add(rule.clone());
        }
        retried(&what, async || match number {
            0 => {
                let asked = request(driver, "pvc-1", None);
                driver.create_volume(&call(), &asked).await.map(drop)
            }
            1 => publish(driver, &id, "a").await,
            2 => unpublish(driver, &id, Some("a")).await,
            _ => driver.delete_volume(&call(), DeleteVolume::new(&id)).await,
        })
        .await;
        if number == stage {
            applied = nas
                .faults()
                .rules()
                .iter()
                .all(|rule| rule.times == Some(0));
            nas.faults().clear();
        }
        if number == 2 && kind.ends_with("nvmeof") {
            assert!(
                rows(nas, "nvmet.host").await.is_empty(),
                "{what}: a host is left"
            );
        }
    }
    applied
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nfs_access_survives_a_cut_at_every_call() {
    survives_cuts(Generation::V24_10, KINDS[0]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn iscsi_access_survives_a_cut_at_every_call() {
    survives_cuts(Generation::V25_10, KINDS[1]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nvmeof_access_survives_a_cut_at_every_call() {
    survives_cuts(Generation::V25_10, KINDS[2]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn volumes_follow_nodes_that_are_added_to_the_configuration_and_removed_from_it() {
    for (generation, kind) in all() {
        let nas = appliance(generation).await;
        let before = everything(&nas, generation).await;
        let (open, closed) = (driver(&nas, kind, ""), per_node(&nas, kind));
        let id = create(open.as_ref(), "pvc-1").await.id;
        let of_all = let_in(&nas, kind).await;
        publish(closed.as_ref(), &id, "a").await.expect("published");
        assert_eq!(let_in(&nas, kind).await, [called(kind, "a")], "{kind}");
        let exports = open.exports().expect("exports");
        assert!(
            !exports.is_exported(&call(), &id).await.expect("seen"),
            "{kind}"
        );
        exports.repair_export(&call(), &id).await.expect("repaired");
        assert_eq!(let_in(&nas, kind).await, of_all, "{kind} on {generation:?}");
        let filters = json!([[["id", "=", VOLUME]]]);
        let found = run(&nas, "pool.dataset.query", filters).await;
        assert!(
            found[0]["user_properties"]
                .get("omnibus-csi:nodes")
                .is_none(),
            "{kind}"
        );
        // Deleted while `nodes` is gone, and before anything was repaired.
        publish(closed.as_ref(), &id, "a").await.expect("published");
        open.delete_volume(&call(), DeleteVolume::new(&id))
            .await
            .expect("deleted");
        let left = everything(&nas, generation).await;
        let left: Vec<_> = left.difference(&before).collect();
        assert!(
            left.iter().all(|row| row.contains("tank/csi")),
            "{kind}: {left:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subsystem_that_an_administrator_closed_stays_closed() {
    let nas = appliance(Generation::V25_10).await;
    let kind = KINDS[2];
    let driver = driver(&nas, kind, "");
    let id = create(driver.as_ref(), "pvc-1").await.id;
    let host = called(kind, "theirs");
    let close = json!([1, {"allow_any_host": false}]);
    run(&nas, "nvmet.subsys.update", close).await;
    let exports = driver.exports().expect("exports");
    // Without a host of theirs it lets in none, which no one wants.
    exports.repair_export(&call(), &id).await.expect("repaired");
    assert_eq!(let_in(&nas, kind).await, ["*"]);
    let close = json!([1, {"allow_any_host": false}]);
    run(&nas, "nvmet.subsys.update", close).await;
    run(&nas, "nvmet.host.create", json!([{"hostnqn": host}])).await;
    let link = json!([{"host_id": 1, "subsys_id": 1}]);
    run(&nas, "nvmet.host_subsys.create", link).await;
    assert!(exports.is_exported(&call(), &id).await.expect("seen"));
    // Something else is missing, and comes back.
    for link in rows(&nas, "nvmet.port_subsys").await {
        run(&nas, "nvmet.port_subsys.delete", json!([link["id"]])).await;
    }
    exports.repair_export(&call(), &id).await.expect("repaired");
    assert_eq!(rows(&nas, "nvmet.port_subsys").await.len(), 1);
    create(driver.as_ref(), "pvc-1").await;
    assert_eq!(let_in(&nas, kind).await, [host]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_of_version_6_is_written_as_the_nas_wants_it() {
    let nas = appliance(Generation::V25_10).await;
    let driver = per_node(&nas, KINDS[0]);
    let id = create(driver.as_ref(), "pvc-1").await.id;
    publish(driver.as_ref(), &id, "six")
        .await
        .expect("published");
    assert_eq!(let_in(&nas, KINDS[0]).await, ["2001:db8::6"]);
    let refused = publish(driver.as_ref(), &id, "a b")
        .await
        .expect_err("no name");
    assert_eq!(refused.kind(), Kind::Invalid);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_lets_in_others_is_refused_with_nodes() {
    let nas = appliance(Generation::V25_10).await;
    for (kind, section) in [
        (
            KINDS[0],
            "nodes: {nameTemplate: '{{node}}'}, shareAllowedHosts: [10.0.0.1]",
        ),
        (KINDS[0], "nodes: {}"),
        (KINDS[0], "nodes: {names: {a: a.lan}, mode: additive}"),
        (KINDS[0], "nodes: {names: {a: '*'}}"),
    ] {
        let text = config(&nas, kind, "").replace("shareAllowedNetworks: [10.0.0.0/8]", section);
        let document = Document::parse(&text, &NoEnvironment).expect("a document");
        let refused = from_document(&document).expect_err("refused");
        assert!(
            refused
                .path()
                .is_some_and(|path| path.starts_with("nfs.nodes")),
            "{refused}"
        );
    }
    let text = for_nodes(&nas, KINDS[1]).replace(
        "targetGroupPortalGroup: 1",
        "targetGroupPortalGroup: 1, targetGroupInitiatorGroup: 1",
    );
    let document = Document::parse(&text, &NoEnvironment).expect("a document");
    let refused = from_document(&document).expect_err("refused");
    assert_eq!(refused.path(), Some("iscsi.nodes"));
    let text = config(&nas, "freenas-api-smb", "").replace(
        "shareHost: 10.0.0.5",
        "shareHost: 10.0.0.5, nodes: {nameTemplate: '{{node}}'}",
    );
    let document = Document::parse(&text, &NoEnvironment).expect("a document");
    let refused = from_document(&document).expect_err("refused");
    assert_eq!(refused.path(), Some("smb.nodes"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_login_that_setup_makes_may_change_access() {
    for (generation, kind) in all() {
        let options = Options::new(generation);
        let nas = Simulator::start(options).await.expect("an appliance");
        set_up(&nas).await;
        let text = for_nodes(&nas, kind);
        let text = text.replace("username: root", "username: csi");
        let key = crate::setup::made(&nas, &text.replace(nas.api_key(), "")).await;
        let text = text.replace(nas.api_key(), key.expose_secret());
        let driver = built(&text);
        let fail = |error: Error| panic!("{kind} on {generation:?}: {}", error.chain());
        let id = create(driver.as_ref(), "pvc-1").await.id;
        publish(driver.as_ref(), &id, "a")
            .await
            .unwrap_or_else(fail);
        unpublish(driver.as_ref(), &id, Some("a"))
            .await
            .unwrap_or_else(fail);
        driver
            .delete_volume(&call(), DeleteVolume::new(&id))
            .await
            .unwrap_or_else(fail);
        let said = driver.examine(&call()).await;
        let lacks = said
            .iter()
            .find(|problem| problem.chain().contains("lacks"));
        assert!(lacks.is_none(), "{kind} on {generation:?}: {lacks:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn access_costs_the_same_whatever_the_number_of_volumes_and_nodes() {
    // Of a share one is the second look at fences, or the mark before a revocation, as of a target.
    for (kind, most) in [(KINDS[0], [6, 6]), (KINDS[1], [7, 8]), (KINDS[2], [9, 11])] {
        let nas = appliance(Generation::V25_10).await;
        let driver = per_node(&nas, kind);
        let driver = driver.as_ref();
        let id = create(driver, "pvc-1").await.id;
        for number in 0..10 {
            let other = create(driver, &format!("filler-{number}")).await.id;
            publish(driver, &other, "a").await.expect("published");
            publish(driver, &id, &format!("n-{number}"))
                .await
                .expect("published");
        }
        nas.faults().set(|settings| settings.round_trip_ms = 120);
        let published = exchanges(&nas, async {
            publish(driver, &id, "b").await.expect("published");
        })
        .await;
        let unpublished = exchanges(&nas, async {
            unpublish(driver, &id, Some("b"))
                .await
                .expect("unpublished");
        })
        .await;
        let costs = [published, unpublished];
        for ((exchanges, _), most) in costs.into_iter().zip(most) {
            assert!(exchanges <= most, "{kind}: {costs:?}");
        }
    }
}
