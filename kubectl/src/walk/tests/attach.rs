//! Attachments on nodes other than that of the pod, and objects that are a few seconds old.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::{chain, set, unbound, world};
use crate::chain::{Link, State};

/// A second pod that uses the claim, on a node of its own.
fn second_pod(world: &mut Value, node: &str) {
    let mut pod = world["pods"][0].clone();
    pod["metadata"]["name"] = json!("web-1");
    pod["metadata"]["uid"] = json!("pod-2");
    pod["spec"]["nodeName"] = json!(node);
    world["pods"].as_array_mut().unwrap().push(pod);
}

/// The link of the attachment on a node.
fn attached(world: &Value, node: &str) -> Link {
    let links = chain(world).links;
    let is_it = |link: &Link| link.name == "attached" && link.node.as_deref() == Some(node);
    links.into_iter().find(is_it).expect("a link")
}

#[test]
fn a_volume_for_many_nodes_is_not_said_to_be_on_the_wrong_one() {
    for (mode, is_for_many) in [
        ("ReadWriteMany", true),
        ("ReadOnlyMany", true),
        ("ReadWriteOnce", false),
        ("ReadWriteOncePod", false),
    ] {
        let mut world = world();
        set(&mut world, "/volume/spec/accessModes", json!([mode]));
        second_pod(&mut world, "two");
        let link = attached(&world, "two");
        assert_eq!(link.state, State::Broken, "{mode}");
        let remedy = link.remedy.expect("a remedy");
        assert_eq!(
            link.text.contains("no VolumeAttachment"),
            is_for_many,
            "{mode}"
        );
        assert_eq!(remedy.contains("delete the pods"), !is_for_many, "{remedy}");
        assert_eq!(remedy.contains("out-of-service"), !is_for_many, "{remedy}");
    }
}

#[test]
fn a_node_whose_pods_are_all_ending_needs_no_attachment() {
    let mut world = world();
    second_pod(&mut world, "two");
    set(
        &mut world,
        "/pods/1/metadata/deletionTimestamp",
        json!("2026-01-01T00:00:00Z"),
    );
    assert_eq!(attached(&world, "two").state, State::Absent);
    second_pod(&mut world, "two");
    assert_eq!(attached(&world, "two").state, State::Broken);
}

#[test]
fn the_step_for_a_lost_node_names_it_and_the_page() {
    let mut world = world();
    set(&mut world, "/attachments/0/spec/nodeName", json!("two"));
    let remedy = attached(&world, "one").remedy.expect("a remedy");
    for part in [
        "be sure that it does not run",
        "`kubectl taint node two node.kubernetes.io/out-of-service",
        "\"A node is lost\" in docs/outages.md",
    ] {
        assert!(remedy.contains(part), "{remedy}");
    }
    assert!(!remedy.contains("delete node"), "{remedy}");
}

/// The moment so many seconds ago.
fn ago(seconds: i64) -> Value {
    json!((Timestamp::now() - SignedDuration::from_secs(seconds)).to_string())
}

#[test]
fn what_has_just_begun_is_not_said_to_be_broken() {
    type Make = fn(&mut Value, Value);
    let no_event: Make = |world, at| {
        unbound(world);
        set(world, "/claim/metadata/creationTimestamp", at);
    };
    let no_attachment: Make = |world, at| {
        set(world, "/attachments", json!([]));
        set(world, "/pods/0/metadata/creationTimestamp", at);
    };
    let on_another: Make = |world, at| {
        set(world, "/attachments/0/spec/nodeName", json!("two"));
        set(world, "/pods/0/metadata/creationTimestamp", at);
    };
    let detached: Make = |world, at| set(world, "/attachments/0/metadata/deletionTimestamp", at);
    for (link, make) in [
        ("bound", no_event),
        ("attached", no_attachment),
        ("attached", on_another),
        ("attached", detached),
    ] {
        for (seconds, code) in [(5, 2), (90, 1)] {
            let mut world = world();
            make(&mut world, ago(seconds));
            let chain = chain(&world);
            let drawn = chain.picture(true);
            assert_eq!(chain.exit_code(), code, "{drawn}");
            let first = chain.first().expect("a link");
            assert_eq!(first.name, link, "{drawn}");
            let remedy = first.remedy.as_deref().expect("a remedy");
            assert!(code == 1 || remedy.starts_with("wait a minute"), "{remedy}");
        }
    }
}
