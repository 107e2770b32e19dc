use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::walk;
use crate::chain::{Chain, State};
use crate::found::{Answer, Found};
use crate::ours::DriverPod;

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
        csi_nodes: by_node(&world["csiNodes"]),
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

struct Fault {
    name: &'static str,
    /// The change that makes it of a sound claim.
    make: fn(&mut Value),
    link: &'static str,
    /// Parts of the text and of the remedy.
    says: [&'static str; 2],
}

const fn fault(
    name: &'static str,
    make: fn(&mut Value),
    link: &'static str,
    says: [&'static str; 2],
) -> Fault {
    Fault {
        name,
        make,
        link,
        says,
    }
}

#[rustfmt::skip]
const OF_CLAIMS: &[Fault] = &[
    fault("no such claim", |w| set(w, "/claim", Value::Null), "claim", ["no claim `data` in the namespace shop", "-n"]),
    fault("claim in deletion, in use", |w| set(w, "/claim/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z")),
        "claim", ["waits for the pods", "web-0"]),
    fault("no class and no default", |w| { unbound(w); set(w, "/claim/spec", json!({})); }, "class", ["no default", "name a class"]),
    fault("a class that is not there", |w| { unbound(w); set(w, "/class", Value::Null); }, "class", ["no StorageClass `fast`", "storageClasses"]),
    fault("a class of another driver", |w| { unbound(w); set(w, "/class/provisioner", json!("ebs.example")); },
        "class", ["`ebs.example`", "org.example.csi"]),
    fault("a class of a driver that is not installed", |w| {
        unbound(w); set(w, "/drivers", json!([])); set(w, "/ours", json!([]));
    }, "class", ["no driver of omnibus-csi", "install the driver"]),
    fault("provisioning fails", |w| {
        unbound(w);
        set(w, "/events", json!([event("Normal", "Provisioning", "asked"), event("Warning", "ProvisioningFailed", "nas: pool is full")]));
    }, "bound", ["pool is full", "do what the message says"]),
    fault("no provisioner takes it", |w| { unbound(w); set(w, "/events", json!([event("Normal", "ExternalProvisioning", "waits")])); },
        "bound", ["no event says that one is being made", "logs csi-controller -c csi-provisioner"]),
    fault("a class names a connection that is not there", |w| connection(w, "other", "good"),
        "connection", ["no connection `nas`", "connections"]),
    fault("the file of its connection is wrong", |w| connection(w, "nas", "invalid"), "connection", ["192.0.2.7", "kubectl omnibus check"]),
    fault("its storage is down", |w| connection(w, "nas", "bad"), "storage", ["192.0.2.7", "storage runs"]),
    fault("one of several storages is down", |w| {
        connection(w, "nas", "bad"); set(w, "/class/parameters", json!({"connections": "nas, nas"}));
    }, "storage", ["192.0.2.7", "storage runs"]),
    fault("its storage is well, and refuses", |w| connection(w, "nas", "good"), "bound", ["no available topology", "message"]),
    fault("a driver without names of connections", |w| { connection(w, "nas", "good"); set(w, "/connections", Value::Null); },
        "bound", ["no available topology", "message"]),
    fault("its pod gets no node", |w| {
        let pods = json!([{"metadata": {"name": "web-0"}, "spec": {"containers": []}, "status": {"phase": "Pending", "conditions": [
            {"type": "PodScheduled", "status": "False", "message": "0/3 nodes have enough free storage"}]}}]);
        unbound(w); set(w, "/pods", pods); set(w, "/class/volumeBindingMode", json!("WaitForFirstConsumer"));
    }, "bound", ["enough free storage", "describe pod web-0"]),
    fault("growth fails", |w| set(w, "/claim/status/conditions", json!([
        {"type": "ControllerResizeError", "status": "True", "message": "quota"}])), "size", ["quota", "resizer"]),
    fault("the volume is lost", |w| { set(w, "/claim/status/phase", json!("Lost")); set(w, "/volume", Value::Null); },
        "persistent-volume", ["is gone", "may still be on the storage"]),
    fault("the volume is of another driver", |w| set(w, "/volume/spec/csi/driver", json!("ebs.example")),
        "persistent-volume", ["`ebs.example`", "makers"]),
    fault("the volume is of no CSI driver", |w| set(w, "/volume/spec", json!({"nfs": {"server": "a", "path": "/b"}})),
        "persistent-volume", ["no volume of a CSI driver", "alone"]),
    fault("the volume belongs to another claim", |w| set(w, "/volume/spec/claimRef/uid", json!("claim-0")),
        "persistent-volume", ["another claim", "claimRef"]),
    fault("the volume is being deleted", |w| set(w, "/volume/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z")),
        "persistent-volume", ["being deleted", "restore"]),
    fault("the volume failed", |w| set(w, "/volume/status", json!({"phase": "Failed", "message": "has snapshots"})),
        "persistent-volume", ["has snapshots", "events"]),
];

#[rustfmt::skip]
const OF_THE_DRIVER: &[Fault] = &[
    fault("no controller", |w| { w["ours"].as_array_mut().unwrap().remove(0); }, "controller", ["no pod of the controller", "scaled to 0"]),
    fault("the controller's configuration is wrong", |w| set(w, "/ours/0/status/containerStatuses", crashing(64)),
        "controller", ["exit code 64", "configuration is wrong"]),
    fault("the controller crashes, and the claim waits", |w| { unbound(w); set(w, "/ours/0/status/containerStatuses", crashing(1)); },
        "controller", ["7 times", "--previous"]),
    fault("a sidecar does not run", |w| set(w, "/ours/0/status/containerStatuses/1/ready", json!(false)),
        "controller", ["csi-provisioner is not ready", "describe pod csi-controller"]),
    fault("the connection is gone", |w| says(w, "/storage/links", "connection"), "connection", ["missing", "kubectl omnibus exports --connection=nas"]),
    fault("the storage is silent", |w| says(w, "/storage/links", "storage"), "storage", ["missing", "repair"]),
    fault("the pool is gone", |w| says(w, "/storage/links", "parent"), "parent", ["missing", "repair"]),
    fault("the dataset is gone", |w| says(w, "/storage/links", "volume"), "volume", ["missing", "repair"]),
    fault("the export is gone", |w| says(w, "/storage/links", "export"), "export", ["missing", "`kubectl omnibus exports --connection=nas --repair` puts"]),
    fault("no pod of the driver on the node", |w| { w["ours"].as_array_mut().unwrap().pop(); }, "node-pod", ["one", "node.tolerations"]),
    fault("no such pod beside a controller that mounts for itself", |w| {
        w["ours"].as_array_mut().unwrap().pop();
        set(w, "/ours/0/metadata/labels", json!({"app.kubernetes.io/component": "controller"}));
        set(w, "/ours/0/spec/nodeName", json!("one"));
        w["ours"][0]["spec"]["containers"][0]["args"].as_array_mut().unwrap().push(json!("--csi-mode=node"));
    }, "node-pod", ["no pod of the driver", "node.tolerations"]),
    fault("the node's pod crashes", |w| set(w, "/ours/1/status/containerStatuses", crashing(137)),
        "node-pod", ["exit code 137", "--previous"]),
    fault("the node has no image", |w| set(w, "/ours/1/status/containerStatuses", image_missing()),
        "node-pod", ["ImagePullBackOff", "docs/install.md"]),
    fault("the driver is not registered", |w| set(w, "/csiNodes/one/spec/drivers", json!([])),
        "registered", ["does not list it", "kubeletHostPath"]),
    fault("the node is gone", |w| set(w, "/csiNodes/one", Value::Null), "registered", ["no CSINode", "kubectl get node"]),
    fault("it cannot be attached", |w| set(w, "/attachments/0/status", json!({"attached": false, "attachError": {"message": "no login"}})),
        "attached", ["no login", "attacher asks again"]),
    fault("its detachment hangs", |w| {
        set(w, "/attachments/0/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z"));
        set(w, "/attachments/0/status/detachError", json!({"message": "silent"}));
    }, "attached", ["stays: silent", "out-of-service"]),
    fault("another node has it", |w| set(w, "/attachments/0/spec/nodeName", json!("two")), "attached", ["but to two", "one node at a time"]),
    fault("no attachment is made", |w| set(w, "/attachments", json!([])), "attached", ["no VolumeAttachment", "controller manager"]),
    fault("the session is down", |w| says(w, "/nodes/one/links", "mount"), "mount", ["missing", "repair"]),
    fault("the staging mount is read-only", |w| read_only(w, 2), "mount", ["neither the PersistentVolume nor a pod", "staged anew"]),
    fault("the pod's mount is read-only", |w| read_only(w, 3), "published", ["neither the PersistentVolume nor a pod", "kernel's log"]),
    fault("the staging mount is read-only, and the pod alone reads", |w| {
        read_only(w, 2); read_by_pod(w);
    }, "mount", ["one: mounted, read-only, which", "staged anew"]),
    fault("the pod's mount fails", |w| {
        waiting_pod(w); set(w, "/warnings", json!([event("Warning", "FailedMount", "access denied")]));
    }, "pod", ["access denied", "troubleshooting.md"]),
    fault("two causes: the first is named", |w| {
        waiting_pod(w); set(w, "/warnings", json!([event("Warning", "FailedMount", "no such file")])); says(w, "/storage/links", "export");
    }, "export", ["missing", "repair"]),
];

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
        assert!(drawn.ends_with(&format!("do: {remedy}\n")), "{drawn}");
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
        assert!(drawn.contains("\nall links hold\n"), "{drawn}");
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
    ] {
        let mut world = world();
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
