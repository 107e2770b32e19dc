use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::walk;
use crate::chain::{Chain, State};
use crate::found::{Answer, Found};
use crate::ours::DriverPod;
use crate::workload::Workload;

mod attach;
mod faults;
mod missing;

use faults::{OF_CLAIMS, OF_THE_DRIVER};

/// A claim that works, as JSON: a fault is a change to it. `null` is an object that is missing, a text an answer that is
/// not known.
fn world() -> Value {
    serde_json::from_str(include_str!("../../tests/world.json")).expect("JSON")
}

fn answer<T: DeserializeOwned>(value: &Value) -> Answer<T> {
    match value {
        Value::Null => Answer::Missing,
        Value::String(why) => Answer::Unknown(why.clone()),
        value => Answer::There(serde_json::from_value(value.clone()).expect("an object")),
    }
}

fn by_node<T: DeserializeOwned>(value: &Value) -> BTreeMap<String, Answer<T>> {
    let all = value.as_object().expect("nodes").iter();
    all.map(|(node, value)| (node.clone(), answer(value)))
        .collect()
}

/// What is to run the driver's pods; none where it was not asked for.
fn workloads(world: &Value) -> Option<Answer<Vec<Workload>>> {
    let sets: Answer<Vec<DaemonSet>> = answer(world.get("daemonSets")?);
    let deployments: Answer<Vec<Deployment>> =
        answer(world.get("deployments").unwrap_or(&json!([])));
    Some(sets.map(|sets| {
        let sets = sets.iter().filter_map(Workload::of_daemon_set);
        let deployments = deployments.all().iter();
        sets.chain(deployments.filter_map(Workload::of_deployment))
            .collect()
    }))
}

fn chain(world: &Value) -> Chain {
    let optional = |key: &str| world.get(key).is_some();
    let ours: Answer<Vec<_>> = answer(&world["ours"]);
    let found = Found {
        namespace: "shop".to_owned(),
        name: "data".to_owned(),
        claim: answer(&world["claim"]),
        events: answer(&world["events"]),
        warnings: answer(&world["warnings"]),
        class: optional("class").then(|| answer(&world["class"])),
        volume: optional("volume").then(|| answer(&world["volume"])),
        pods: answer(&world["pods"]),
        drivers: answer(&world["drivers"]),
        ours: ours.map(|pods| pods.iter().filter_map(DriverPod::of).collect()),
        attachments: answer(&world["attachments"]),
        machines: answer(&world["machines"]),
        csi_nodes: by_node(&world["csiNodes"]),
        workloads: workloads(world),
        refusals: answer(&world["refusals"]),
        bare: by_node(world.get("bare").unwrap_or(&json!({}))),
        connections: optional("connections").then(|| answer(&world["connections"])),
        storage: optional("storage").then(|| answer(&world["storage"])),
        nodes: by_node(&world["nodes"]),
    };
    Chain::new("shop", "data", walk(&found))
}

/// Changes the world at a path like `/ours/0/status`. A path that does not exist yet is made in its parent.
fn set(world: &mut Value, path: &str, value: Value) {
    let (parent, key) = path.rsplit_once('/').expect("a path");
    let parent = world.pointer_mut(parent).expect(path);
    match parent {
        Value::Array(all) => all[key.parse::<usize>().expect("an index")] = value,
        parent => parent[key] = value,
    }
}

/// A claim that has no volume yet.
fn unbound(world: &mut Value) {
    set(world, "/claim/status/phase", json!("Pending"));
    set(world, "/claim/spec", json!({"storageClassName": "fast"}));
    set(world, "/attachments", json!([]));
    set(world, "/pods", json!([]));
    for gone in ["volume", "storage"] {
        world.as_object_mut().expect("a world").remove(gone);
    }
}

/// A claim that has no volume yet, and the health of its connection.
fn connection(world: &mut Value, name: &str, health: &str) {
    unbound(world);
    let warning = event(
        "Warning",
        "ProvisioningFailed",
        "no available topology found",
    );
    set(world, "/events", json!([warning]));
    let error = json!("no connection to 192.0.2.7:22");
    let row = json!({"name": name, "driver": "zfs-generic-nfs", "health": health, "error": error});
    set(
        world,
        "/connections",
        json!({"connections": [row], "odd": []}),
    );
}

fn event(kind: &str, reason: &str, message: &str) -> Value {
    json!({
        "metadata": {}, "involvedObject": {"name": "web-0"}, "type": kind, "reason": reason, "message": message,
        "lastTimestamp": "2026-01-01T00:00:00Z"
    })
}

fn crashing(exit_code: i32) -> Value {
    json!([{
        "name": "csi-driver", "ready": false, "restartCount": 7, "image": "", "imageID": "",
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": {"exitCode": exit_code, "reason": "Error"}}
    }])
}

fn image_missing() -> Value {
    json!([{
        "name": "csi-driver", "ready": false, "restartCount": 0, "image": "", "imageID": "",
        "state": {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}
    }])
}

/// A claim that has no volume yet, for this reason.
fn fails(world: &mut Value, message: &str) {
    unbound(world);
    let warning = event("Warning", "ProvisioningFailed", message);
    set(world, "/events", json!([warning]));
}

/// A volume that can be used only on nodes with such a label.
fn placed(world: &mut Value, key: &str, operator: &str, value: &str) {
    let values: Vec<_> = [value]
        .into_iter()
        .filter(|value| !value.is_empty())
        .collect();
    let asked = json!([{"key": key, "operator": operator, "values": values}]);
    let terms = json!([{"matchExpressions": asked}]);
    let affinity = json!({"required": {"nodeSelectorTerms": terms}});
    set(world, "/volume/spec/nodeAffinity", affinity);
}

fn waiting_pod(world: &mut Value) {
    set(world, "/pods/0/status/phase", json!("Pending"));
    let staged = json!([{"link": "staged", "state": "absent", "text": "no record"}]);
    set(world, "/nodes/one/links", staged);
}

fn says(world: &mut Value, at: &str, broken: &str) {
    let links = world
        .pointer_mut(at)
        .and_then(Value::as_array_mut)
        .expect(at);
    let place = links
        .iter()
        .position(|link| link["link"] == broken)
        .expect(broken);
    links.truncate(place);
    links.push(json!({
        "link": broken, "state": "broken", "text": "it is missing",
        "remedy": "`omnibus-csi exports --driver-config-file=/config/c.yaml --connection=nas --repair` puts it back"
    }));
}

/// A mount of the node, of the pod if it is a target, that is read-only.
fn read_only(world: &mut Value, link: usize) {
    let link = &mut world["nodes"]["one"]["links"][link];
    link["text"] = json!("mounted, read-only");
    link["facts"] = json!({"read_only": true});
    if link["link"] == "published" {
        link["facts"]["pod"] = json!("pod-1");
    }
}

fn read_by_pod(world: &mut Value) {
    let volume = "/pods/0/spec/volumes/0/persistentVolumeClaim/readOnly";
    set(world, volume, json!(true));
}

#[test]
fn each_fault_names_its_own_link_first_and_says_what_to_do() {
    for fault in OF_CLAIMS.iter().chain(OF_THE_DRIVER) {
        let mut world = world();
        (fault.make)(&mut world);
        let chain = chain(&world);
        let drawn = chain.picture(true);
        assert_eq!(
            chain.broken.as_deref(),
            Some(fault.link),
            "{}:\n{drawn}",
            fault.name
        );
        assert_eq!(chain.exit_code(), 1, "{}", fault.name);
        let broken = chain.links.iter().find(|link| link.state == State::Broken);
        let broken = broken.expect("a broken link");
        let remedy = broken.remedy.as_deref().expect("a remedy");
        let text = match &broken.node {
            Some(node) => format!("{node}: {}", broken.text),
            None => broken.text.clone(),
        };
        assert!(text.contains(fault.says[0]), "{}: {text}", fault.name);
        assert!(remedy.contains(fault.says[1]), "{}: {remedy}", fault.name);
        assert!(drawn.contains(&format!("\ndo: {remedy}\n")), "{drawn}");
        assert!(!drawn.contains("`omnibus-csi"), "{drawn}");
    }
}

#[test]
fn sound_claims_have_no_broken_link() {
    let unused: fn(&mut Value) = |world| {
        set(world, "/pods", json!([]));
        set(world, "/attachments", json!([]));
        set(world, "/csiNodes", json!({}));
    };
    let waits: fn(&mut Value) = |world| {
        unbound(world);
        set(
            world,
            "/class/volumeBindingMode",
            json!("WaitForFirstConsumer"),
        );
        set(
            world,
            "/events",
            json!([event("Normal", "WaitForFirstConsumer", "waits")]),
        );
    };
    let by_hand: fn(&mut Value) = |world| set(world, "/claim/spec/storageClassName", json!(""));
    let on_nodes: fn(&mut Value) = |world| {
        let controller = json!([
            "--csi-name",
            "org.example.csi",
            "--driver-config-file",
            "/c.yaml",
            "--csi-mode",
            "node",
            "controller"
        ]);
        world["ours"].as_array_mut().unwrap().remove(0);
        set(world, "/ours/0/spec/containers/0/args", controller);
        set(world, "/drivers/0/spec/attachRequired", json!(false));
        set(world, "/attachments", json!([]));
        // The controller of the node has said it all.
        let staged = json!({"link": "staged", "state": "holds", "text": "here"});
        world["storage"]["links"]
            .as_array_mut()
            .unwrap()
            .push(staged);
        set(world, "/nodes/one", Value::Null);
    };
    let class_gone: fn(&mut Value) = |world| set(world, "/class", Value::Null);
    // The driver's name is a legacy one of a release whose own is another.
    let legacy: fn(&mut Value) = |world| {
        let release = json!({"app.kubernetes.io/instance": "csi", "app.kubernetes.io/part-of": "omnibus-csi"});
        let helm = json!({"meta.helm.sh/release-namespace": "storage"});
        set(world, "/drivers/0/metadata/labels", release.clone());
        set(world, "/drivers/0/metadata/annotations", helm);
        for pod in world["ours"].as_array_mut().unwrap() {
            pod["metadata"]["labels"] = release.clone();
            let args = &mut pod["spec"]["containers"][0]["args"];
            *args = serde_json::from_str(
                &args
                    .to_string()
                    .replace("org.example.csi", "org.example.fleet"),
            )
            .unwrap();
        }
    };
    let grown: fn(&mut Value) = |world| {
        let pending = json!([{"type": "FileSystemResizePending", "status": "True"}]);
        set(world, "/claim/status/conditions", pending);
    };
    all_hold(&[
        ("as it is", (|_| {}) as fn(&mut Value)),
        ("a legacy name", legacy),
        ("no pod uses it", unused),
        ("it waits for its first pod", waits),
        ("made by hand", by_hand),
        ("a controller on each node", on_nodes),
        ("its class is gone", class_gone),
        ("its filesystem has yet to grow", grown),
    ]);
}

#[test]
fn a_volume_that_its_pods_can_use_where_they_are_is_in_its_place() {
    let free: fn(&mut Value) = |world| {
        set(world, "/pods", json!([]));
        set(world, "/attachments", json!([]));
        placed(world, "zone", "NotIn", "b");
    };
    let let_in: fn(&mut Value) = |world| placed(world, "zone", "In", "c");
    all_hold(&[
        ("a node has its place, and no pod uses it", free),
        ("a pod that runs was let in", let_in),
    ]);
    for (key, operator, value) in [
        ("zone", "In", "a"),
        ("zone", "NotIn", "b"),
        ("disk", "Exists", ""),
        ("rack", "DoesNotExist", ""),
        ("disk", "Gt", "8"),
        ("disk", "Lt", "10"),
    ] {
        let mut world = world();
        waiting_pod(&mut world);
        placed(&mut world, key, operator, value);
        let chain = chain(&world);
        let link = chain
            .links
            .iter()
            .find(|link| link.name == "persistent-volume");
        assert_eq!(
            link.expect("a link").state,
            State::Holds,
            "{key} {operator} {value}"
        );
    }
}

#[test]
fn claims_that_are_asked_for_read_only_have_no_broken_link() {
    let read: fn(&mut Value) = |world| {
        read_only(world, 3);
        read_by_pod(world);
    };
    let read_by_another: fn(&mut Value) = |world| {
        read_only(world, 3);
        set(world, "/nodes/one/links/3/facts/pod", json!("pod-2"));
    };
    let read_many: fn(&mut Value) = |world| {
        read_only(world, 2);
        read_only(world, 3);
        set(world, "/volume/spec/accessModes", json!(["ReadOnlyMany"]));
    };
    let options: fn(&mut Value) = |world| {
        read_only(world, 2);
        set(world, "/volume/spec/mountOptions", json!(["noatime,ro"]));
    };
    let read_by_all: fn(&mut Value) = |world| {
        read_only(world, 2);
        set(world, "/volume/spec/csi/readOnly", json!(true));
    };
    all_hold(&[
        ("its pod takes it read-only", read),
        ("a pod that is not known has it read-only", read_by_another),
        ("its access mode is read-only", read_many),
        ("its mount options say read-only", options),
        ("it is read-only for each pod", read_by_all),
    ]);
}

type Make = fn(&mut Value);

fn all_hold(worlds: &[(&str, Make)]) {
    for (name, make) in worlds {
        let mut world = world();
        make(&mut world);
        let chain = chain(&world);
        let drawn = chain.picture(true);
        assert_eq!(chain.state, State::Holds, "{name}:\n{drawn}");
        assert_eq!(chain.exit_code(), 0, "{name}");
        let waits = drawn.contains("\nwaits for its first pod\n");
        assert!(waits || drawn.contains("\nall links hold\n"), "{drawn}");
        assert_eq!(waits, *name == "it waits for its first pod", "{drawn}");
    }
}

#[test]
fn the_links_of_a_node_are_together_also_where_its_controller_has_said_them() {
    let mut world = world();
    let links = json!([
        {"link": "volume", "state": "holds", "text": "it is there"},
        {"link": "mount", "state": "holds", "text": "mounted"}
    ]);
    set(&mut world, "/storage/links", links);
    set(&mut world, "/nodes/one", Value::Null);
    let chain = chain(&world);
    let place = |name: &str| chain.links.iter().position(|link| link.name == name);
    assert!(place("volume") < place("node-pod") && place("registered") < place("mount"));
    let mount = chain.links.iter().find(|link| link.name == "mount");
    assert_eq!(mount.expect("a mount").node.as_deref(), Some("one"));
}

#[test]
fn what_a_right_does_not_let_one_see_is_named_and_never_counts_as_sound() {
    for (path, link) in [
        ("/claim", "claim"),
        ("/class", "class"),
        ("/volume", "persistent-volume"),
        ("/pods", "pod"),
        ("/drivers", "class"),
        ("/ours", "controller"),
        ("/attachments", "attached"),
        ("/csiNodes/one", "registered"),
        ("/storage", "storage"),
        ("/connections", "connection"),
        ("/nodes/one", "staged"),
        ("/machines", "persistent-volume"),
    ] {
        let mut world = world();
        if path == "/machines" {
            set(&mut world, "/pods", json!([]));
            placed(&mut world, "zone", "In", "c");
        }
        if path == "/connections" {
            unbound(&mut world);
            set(
                &mut world,
                "/class/volumeBindingMode",
                json!("WaitForFirstConsumer"),
            );
        }
        set(&mut world, path, json!("not looked at: needs get on it"));
        if path == "/drivers" {
            // The pods do not name it either.
            set(&mut world, "/ours", json!([]));
        }
        let chain = chain(&world);
        let drawn = chain.picture(true);
        assert_eq!(
            (chain.broken.as_deref(), chain.exit_code()),
            (None, 2),
            "{path}:\n{drawn}"
        );
        let unknown: Vec<_> = chain
            .links
            .iter()
            .filter(|one| one.state == State::Unknown)
            .collect();
        let named = unknown.iter().find(|one| one.name == link).expect(&drawn);
        assert!(
            named.text.contains("needs get on it"),
            "{path}: {}",
            named.text
        );
    }
}

#[test]
fn a_text_of_the_cluster_cannot_command_a_terminal() {
    let mut world = world();
    unbound(&mut world);
    let warning = event(
        "Warning",
        "ProvisioningFailed",
        "\u{1b}]0;owned\u{7}\nall links hold",
    );
    set(&mut world, "/events", json!([warning]));
    let drawn = chain(&world).picture(false);
    assert!(
        !drawn.contains('\u{1b}') && !drawn.contains('\u{7}'),
        "{drawn}"
    );
    assert!(!drawn.contains("\nall links hold"), "{drawn}");
}
