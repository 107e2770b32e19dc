//! Keys by which nodes prove to subsystems who they are: DH-CHAP.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use driver_core::config::{ConfigError, Document, NoEnvironment};
use driver_core::{Driver, Kind, VolumeId};
use driver_truenas::from_document;
use serde_json::{Value, json};
use truenas_sim::{Action, Generation, Rule, Simulator};

use crate::costs::{call, create};
use crate::faults::retried;
use crate::nodes::{built, called, for_nodes, per_node, publish, unpublish};
use crate::secrets::Log;
use crate::taken_over::{rows, run};
use crate::volumes::appliance;

const KIND: &str = "freenas-api-nvmeof";
const VOLUME: &str = "tank/csi/v/pvc-1";
const OLD: &str = "DHHC-1:00:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:";
const NEW: &str = "DHHC-1:01:ZWZnaGlqa2xtbm9wcXJzdHV2d3h5ent8fX5/gIGCg4QqhWEu:";
const LONG: &str =
    "DHHC-1:02:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAhIiMkJSYnKCkqKywtLi8wyg3Bcw==:";

/// Every generation that has subsystems.
fn all() -> impl Iterator<Item = Generation> {
    let all = Generation::ALL.into_iter();
    all.filter(|generation| *generation >= Generation::V25_10)
}

/// The configuration with these keys of nodes.
fn with_keys(nas: &Simulator, keys: &[(&str, &str)]) -> String {
    let keys = keys.iter().map(|(node, key)| format!("{node}: '{key}'"));
    let keys: Vec<String> = keys.collect();
    let keys = format!("ports: [1], dhchapKeys: {{{}}}", keys.join(", "));
    for_nodes(nas, KIND).replace("ports: [1]", &keys)
}

fn keyed(nas: &Simulator, keys: &[(&str, &str)]) -> Arc<dyn Driver> {
    built(&with_keys(nas, keys))
}

async fn published(driver: &dyn Driver, id: &VolumeId, node: &str) {
    let done = publish(driver, id, node).await;
    done.unwrap_or_else(|error| panic!("{node}: {}", error.chain()));
}

async fn unpublished(driver: &dyn Driver, id: &VolumeId, node: &str) {
    let done = unpublish(driver, id, Some(node)).await;
    done.unwrap_or_else(|error| panic!("{node}: {}", error.chain()));
}

/// The hosts and their keys.
async fn hosts(nas: &Simulator) -> Vec<(String, Option<String>)> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let hosts = rows(nas, "nvmet.host").await.into_iter().map(|host| {
        let name = text(&host["hostnqn"]).expect("a name");
        (name, text(&host["dhchap_key"]))
    });
    hosts.collect()
}

/// The hosts that are let in.
async fn inside(nas: &Simulator) -> BTreeSet<String> {
    let links = rows(nas, "nvmet.host_subsys").await.into_iter();
    let names = links.map(|link| link["host"]["hostnqn"].as_str().map(str::to_owned));
    names.map(|name| name.expect("a name")).collect()
}

fn of(node: &str, key: Option<&str>) -> (String, Option<String>) {
    (called(KIND, node), key.map(str::to_owned))
}

fn names(nodes: &[&str]) -> BTreeSet<String> {
    nodes.iter().map(|node| called(KIND, node)).collect()
}

/// All that a refused call could have changed.
async fn everything(nas: &Simulator) -> String {
    let mut all = String::new();
    for service in ["nvmet.host", "nvmet.host_subsys", "nvmet.subsys"] {
        all += &json!(rows(nas, service).await).to_string();
    }
    let filters = json!([[["id", "=", VOLUME]]]);
    let dataset = run(nas, "pool.dataset.query", filters).await;
    all + &dataset[0]["user_properties"].to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_is_asked_for_its_key_while_it_has_access() {
    for generation in all() {
        let nas = appliance(generation).await;
        let driver = keyed(&nas, &[("a", OLD), ("b", NEW), ("c", LONG)]);
        let driver = driver.as_ref();
        let id = create(driver, "pvc-1").await.id;
        for node in ["a", "b", "c"] {
            published(driver, &id, node).await;
        }
        let expected = [of("a", Some(OLD)), of("b", Some(NEW)), of("c", Some(LONG))];
        assert_eq!(hosts(&nas).await, expected, "{generation:?}");
        let once = everything(&nas).await;
        published(driver, &id, "a").await;
        assert_eq!(everything(&nas).await, once, "{generation:?}: twice");
        for node in ["a", "b", "c"] {
            unpublished(driver, &id, node).await;
        }
        assert_eq!(hosts(&nas).await, [], "{generation:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_key_of_a_node_is_there_when_any_call_for_the_volume_ends() {
    for generation in all() {
        let nas = appliance(generation).await;
        let id = {
            let driver = per_node(&nas, KIND);
            let id = create(driver.as_ref(), "pvc-1").await.id;
            for node in ["a", "b"] {
                published(driver.as_ref(), &id, node).await;
            }
            id
        };
        let before = rows(&nas, "nvmet.host_subsys").await;
        // The one of `b` is not named, and stays as it is.
        for (round, key) in [OLD, NEW, OLD].into_iter().enumerate() {
            let driver = keyed(&nas, &[("a", key)]);
            let exports = driver.exports().expect("exports");
            let is_exported = exports.is_exported(&call(), &id).await.expect("seen");
            assert!(!is_exported, "{generation:?} {round}");
            if round == 1 {
                exports.repair_export(&call(), &id).await.expect("repaired");
            } else {
                published(driver.as_ref(), &id, "a").await;
            }
            assert_eq!(hosts(&nas).await, [of("a", Some(key)), of("b", None)]);
            let is_exported = exports.is_exported(&call(), &id).await.expect("seen");
            assert!(is_exported, "{generation:?} {round}");
        }
        // None of them was out in between.
        let ids = |rows: &[Value]| rows.iter().map(|row| row["id"].clone()).collect::<Vec<_>>();
        assert_eq!(ids(&rows(&nas, "nvmet.host_subsys").await), ids(&before));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_without_a_key_is_refused_before_anything_changes_and_can_be_put_out() {
    for generation in all() {
        let nas = appliance(generation).await;
        let open = per_node(&nas, KIND);
        let driver = keyed(&nas, &[("a", OLD)]);
        let driver = driver.as_ref();
        let id = create(driver, "pvc-1").await.id;
        published(driver, &id, "a").await;
        let before = everything(&nas).await;
        let refused = publish(driver, &id, "b").await.expect_err("no key");
        assert_eq!(refused.kind(), Kind::Invalid, "{}", refused.chain());
        let text = refused.chain();
        assert!(text.contains("dhchapKeys") && text.contains(&called(KIND, "b")));
        assert_eq!(everything(&nas).await, before, "{generation:?}");
        published(open.as_ref(), &id, "b").await;
        unpublished(driver, &id, "b").await;
        assert_eq!(inside(&nas).await, names(&["a"]), "{generation:?}");
        assert_eq!(hosts(&nas).await, [of("a", Some(OLD))], "{generation:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_of_others_keeps_its_key_and_only_its_node_is_refused() {
    for generation in all() {
        for theirs in [Some(NEW), None] {
            let nas = appliance(generation).await;
            let host = json!([{"hostnqn": called(KIND, "a"), "dhchap_key": theirs}]);
            run(&nas, "nvmet.host.create", host).await;
            let driver = keyed(&nas, &[("a", OLD), ("b", OLD)]);
            let driver = driver.as_ref();
            let id = create(driver, "pvc-1").await.id;
            let before = everything(&nas).await;
            let refused = publish(driver, &id, "a").await.expect_err("another key");
            assert_eq!(refused.kind(), Kind::Conflict, "{}", refused.chain());
            assert!(!refused.chain().contains("DHHC"), "{}", refused.chain());
            assert_eq!(everything(&nas).await, before, "{generation:?}");
            published(driver, &id, "b").await;
            assert_eq!(inside(&nas).await, names(&["b"]), "{generation:?}");
            // It was let in before there were keys, and stays, but is not published again.
            published(per_node(&nas, KIND).as_ref(), &id, "a").await;
            publish(driver, &id, "a").await.expect_err("another key");
            published(driver, &id, "b").await;
            assert_eq!(inside(&nas).await, names(&["a", "b"]), "{generation:?}");
            // The administrator gives it the key.
            run(&nas, "nvmet.host.update", json!([1, {"dhchap_key": OLD}])).await;
            published(driver, &id, "a").await;
            for node in ["a", "b"] {
                unpublished(driver, &id, node).await;
            }
            assert_eq!(hosts(&nas).await, [of("a", Some(OLD))], "{generation:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_became_that_of_others_holds_up_no_other_node() {
    let nas = appliance(Generation::V25_10).await;
    let driver = keyed(&nas, &[("a", OLD), ("b", OLD)]);
    let driver = driver.as_ref();
    let id = create(driver, "pvc-1").await.id;
    published(driver, &id, "a").await;
    let links = rows(&nas, "nvmet.host_subsys").await;
    run(&nas, "nvmet.host_subsys.delete", json!([links[0]["id"]])).await;
    let theirs = json!([1, {"dhchap_key": NEW, "dhchap_hash": "SHA-512"}]);
    run(&nas, "nvmet.host.update", theirs).await;
    published(driver, &id, "b").await;
    assert_eq!(inside(&nas).await, names(&["b"]));
    let exports = driver.exports().expect("exports");
    exports.repair_export(&call(), &id).await.expect("repaired");
    let refused = publish(driver, &id, "a").await.expect_err("another key");
    assert_eq!(refused.kind(), Kind::Conflict, "{}", refused.chain());
    unpublished(driver, &id, "a").await;
    assert_eq!(hosts(&nas).await, [of("a", Some(NEW)), of("b", Some(OLD))]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_volume_is_closed_for_all_its_nodes_with_their_keys() {
    let nas = appliance(Generation::V26Rc).await;
    let open = crate::volumes::driver(&nas, KIND, "");
    let id = create(open.as_ref(), "pvc-1").await.id;
    for node in ["a", "b", "keyless"] {
        published(open.as_ref(), &id, node).await;
    }
    let driver = keyed(&nas, &[("a", OLD), ("b", NEW)]);
    published(driver.as_ref(), &id, "a").await;
    assert_eq!(inside(&nas).await, names(&["a", "b"]));
    let mut found = hosts(&nas).await;
    found.sort();
    assert_eq!(found, [of("a", Some(OLD)), of("b", Some(NEW))]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_the_configuration_has_no_more_stays_with_its_host() {
    let nas = appliance(Generation::V25_10).await;
    let driver = keyed(&nas, &[("a", OLD)]);
    let id = create(driver.as_ref(), "pvc-1").await.id;
    published(driver.as_ref(), &id, "a").await;
    let without = per_node(&nas, KIND);
    published(without.as_ref(), &id, "a").await;
    assert_eq!(hosts(&nas).await, [of("a", Some(OLD))]);
    unpublished(without.as_ref(), &id, "a").await;
    assert_eq!(inside(&nas).await, names(&[]));
    assert_eq!(hosts(&nas).await, [of("a", Some(OLD))]);
    // With another key in the configuration it is taken again.
    let driver = keyed(&nas, &[("a", NEW)]);
    published(driver.as_ref(), &id, "a").await;
    assert_eq!(hosts(&nas).await, [of("a", Some(NEW))]);
    unpublished(driver.as_ref(), &id, "a").await;
    assert_eq!(hosts(&nas).await, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subsystem_with_a_key_of_an_administrator_stays_closed_where_all_may_get_in() {
    let nas = appliance(Generation::V25_10).await;
    let driver = crate::volumes::driver(&nas, KIND, "");
    let id = create(driver.as_ref(), "pvc-1").await.id;
    let close = json!([1, {"allow_any_host": false}]);
    run(&nas, "nvmet.subsys.update", close).await;
    let theirs = called(KIND, "theirs");
    let host = json!([{"hostnqn": theirs, "dhchap_key": OLD, "dhchap_hash": "SHA-384"}]);
    run(&nas, "nvmet.host.create", host).await;
    let link = json!([{"host_id": 1, "subsys_id": 1}]);
    run(&nas, "nvmet.host_subsys.create", link).await;
    let exports = driver.exports().expect("exports");
    exports.repair_export(&call(), &id).await.expect("repaired");
    assert_eq!(inside(&nas).await, names(&["theirs"]));
    assert_eq!(rows(&nas, "nvmet.subsys").await[0]["allow_any_host"], false);
}

/// A connection that ends after each call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_no_call_is_a_node_in_without_its_key() {
    for has_host in [false, true] {
        let nas = appliance(Generation::V25_10).await;
        nas.faults().set(|settings| settings.idle_timeout = false);
        let id = create(per_node(&nas, KIND).as_ref(), "pvc-1").await.id;
        let other = create(per_node(&nas, KIND).as_ref(), "pvc-2").await.id;
        let mut skip = 0;
        loop {
            if has_host {
                // Another volume has made the host, without a key.
                published(per_node(&nas, KIND).as_ref(), &other, "a").await;
            }
            nas.clock().advance(Duration::from_mins(2));
            let driver = keyed(&nas, &[("a", OLD)]);
            let driver = driver.as_ref();
            let lister = driver.lister().expect("lists");
            let _ = lister.get_volume(&call(), &id).await;
            let rule = Rule::new("*", Action::CutAfter).skip(skip).times(1);
            nas.faults().add(rule);
            let _ = publish(driver, &id, "a").await;
            let rules = nas.faults().rules();
            let was_cut = rules.iter().all(|rule| rule.times == Some(0));
            nas.faults().clear();
            let is_in = |link: &Value| link["subsys"]["name"] == "pvc-1";
            let links = rows(&nas, "nvmet.host_subsys").await;
            for link in links.iter().filter(|link| is_in(link)) {
                assert_eq!(link["host"]["dhchap_key"], OLD, "{has_host} {skip}");
            }
            nas.clock().advance(Duration::from_mins(2));
            retried("publish", async || publish(driver, &id, "a").await).await;
            assert_eq!(hosts(&nas).await, [of("a", Some(OLD))]);
            for id in [&id, &other] {
                retried("unpublish", async || unpublish(driver, id, Some("a")).await).await;
            }
            assert_eq!(hosts(&nas).await, [], "{has_host} {skip}");
            if !was_cut {
                break;
            }
            skip += 1;
        }
        assert!(skip > 2, "{has_host}: {skip} calls");
    }
}

#[tokio::test]
async fn no_key_is_in_the_log_or_in_an_error() {
    let (log, _guard) = Log::kept();
    let nas = appliance(Generation::V26Rc).await;
    let driver = keyed(&nas, &[("a", OLD), ("b", OLD)]);
    let driver = driver.as_ref();
    let id = create(driver, "pvc-1").await.id;
    published(driver, &id, "a").await;
    published(keyed(&nas, &[("a", NEW)]).as_ref(), &id, "a").await;
    let host = json!([{"hostnqn": called(KIND, "b"), "dhchap_key": NEW}]);
    run(&nas, "nvmet.host.create", host).await;
    log.note(&publish(driver, &id, "b").await.expect_err("another key"));
    for method in ["nvmet.host.update", "nvmet.host.query"] {
        let refuse = Rule::new(method, Action::CutAfter).times(1);
        nas.faults().add(refuse);
        if let Err(error) = publish(driver, &id, "a").await {
            log.note(&error);
        }
        nas.faults().clear();
    }
    let text = log.text();
    assert!(text.contains("connected to TrueNAS"), "the log is read");
    for key in [OLD, NEW] {
        let secret = &key[10..30];
        assert!(!text.contains(secret), "{text}");
    }
}

fn refused(text: &str) -> ConfigError {
    let document = Document::parse(text, &NoEnvironment).expect("a document");
    from_document(&document).expect_err("refused")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_that_cannot_be_right_are_refused_with_their_place_and_not_shown() {
    let nas = appliance(Generation::V25_10).await;
    let good = with_keys(&nas, &[("a", OLD)]);
    built(&good);
    let nodes = ", nodes: {nameTemplate: 'nqn.2014-08.org.example:{{node}}'}";
    for text in [
        good.replace("AQID", "AQIE"),
        good.replace("DHHC-1", "AQIDBAUG"),
        good.replace("{a: ", "{'a b': "),
        good.replace(nodes, ""),
        with_keys(&nas, &[("a", OLD), ("b", NEW)]).replace(":{{node}}", ":all"),
        // TrueNAS wants 32 bytes of this hash.
        with_keys(&nas, &[("a", &LONG.replace(":02:", ":01:"))]),
    ] {
        let error = refused(&text);
        assert_eq!(error.path(), Some("nvmeof.dhchapKeys"), "{error}");
        assert!(!error.to_string().contains("BAUGBwgJ"), "{error}");
    }
    // What has no hash may have any length.
    built(&with_keys(&nas, &[("a", &LONG.replace(":02:", ":00:"))]));
}
