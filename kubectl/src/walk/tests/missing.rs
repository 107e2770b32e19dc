//! Claims that wait, nodes without a pod of the driver, and nodes with a controller each.

use serde_json::{Value, json};

use super::{Make, chain, connection, event, placed, says, set, unbound, waiting_pod, world};
use crate::chain::State;

/// A driver with a controller on each node, of which `one` alone has its pod.
pub(super) fn on_each_node(world: &mut Value) {
    let all = world["ours"].as_array_mut().expect("pods");
    all.remove(0);
    let args = all[0]["spec"]["containers"][0]["args"].as_array_mut();
    args.expect("arguments")
        .push(json!("--csi-mode=controller"));
}

/// The `DaemonSet` of these pods, with what they ask of a node.
pub(super) fn daemon_set(world: &mut Value, asks: &Value) {
    let mut spec = world["ours"][0]["spec"].clone();
    for (key, value) in asks.as_object().expect("keys") {
        spec[key] = value.clone();
    }
    let template = json!({"metadata": {}, "spec": spec});
    let set_of = json!({
        "metadata": {"name": "csi-node", "namespace": "storage"}, "spec": {"selector": {}, "template": template}
    });
    set(world, "/daemonSets", json!([set_of]));
    let two = json!({"metadata": {"name": "two", "labels": {"zone": "b"}}, "spec": {
        "taints": [{"key": "backup", "value": "yes", "effect": "NoSchedule"}, {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]
    }});
    set(world, "/bare", json!({"two": two}));
}

/// A warning of the controller of `DaemonSets` about one of them.
pub(super) fn refusal(set_of: &str, reason: &str, message: &str) -> Value {
    let mut refusal = event("Warning", reason, message);
    refusal["involvedObject"] =
        json!({"kind": "DaemonSet", "name": set_of, "namespace": "storage"});
    refusal["source"] = json!({"component": "daemonset-controller"});
    refusal
}

/// A claim without a volume, for which a node was chosen.
pub(super) fn chosen(world: &mut Value, node: &str) {
    unbound(world);
    let annotations = json!({"volume.kubernetes.io/selected-node": node});
    set(world, "/claim/metadata/annotations", annotations);
    let mut waits = event("Normal", "ExternalProvisioning", "Waiting for a volume");
    waits["source"] = json!({"component": "persistentvolume-controller"});
    set(world, "/events", json!([waits]));
}

#[test]
fn a_claim_that_waits_has_its_mode_its_node_its_pods_and_its_latest_event() {
    let mut world = world();
    let pod = json!({"metadata": {"name": "web-0"}, "spec": {"containers": []}, "status": {"phase": "Pending"}});
    chosen(&mut world, "one");
    set(&mut world, "/pods", json!([pod]));
    set(
        &mut world,
        "/class/volumeBindingMode",
        json!("WaitForFirstConsumer"),
    );
    let chain = chain(&world);
    let link = |name: &str| {
        chain
            .links
            .iter()
            .find(|link| link.name == name)
            .expect(name)
    };
    assert_eq!(link("claim").state, State::Absent);
    assert_eq!(
        link("claim").text,
        "shop/data: Pending, not bound to a volume"
    );
    let said = "no event says that one is being made; its class waits for a pod (WaitForFirstConsumer); the node one was chosen; the pod web-0 \
                uses it, and has no node yet; the volume controller of Kubernetes says: ExternalProvisioning: Waiting for a volume";
    assert!(link("bound").text.ends_with(said), "{}", link("bound").text);
}

#[test]
fn taints_that_kubernetes_lets_a_daemon_set_onto_and_those_it_tolerates_are_no_cause() {
    let mut world = world();
    on_each_node(&mut world);
    placed(&mut world, "node", "In", "two");
    daemon_set(
        &mut world,
        &json!({"tolerations": [{"key": "backup", "value": "yes"}]}),
    );
    let text = |world: &Value| {
        let chain = chain(world);
        let link = chain.links.iter().find(|link| link.name == "controller");
        link.expect("a controller").text.clone()
    };
    let fits = "the DaemonSet storage/csi-node fits the labels and taints of the node";
    assert!(text(&world).ends_with(fits), "{}", text(&world));
    set(
        &mut world,
        "/daemonSets/0/spec/template/spec/tolerations",
        json!([{"operator": "Exists"}]),
    );
    assert!(text(&world).ends_with(fits), "{}", text(&world));
    let other = json!([{"key": "backup", "value": "no"}]);
    set(
        &mut world,
        "/daemonSets/0/spec/template/spec/tolerations",
        other,
    );
    assert!(
        text(&world).contains("no toleration for the taint backup=yes:NoSchedule of two"),
        "{}",
        text(&world)
    );
    set(
        &mut world,
        "/bare/two",
        json!("not looked at: needs get on it"),
    );
    assert!(
        text(&world).contains("its taints are not looked at: needs get on it"),
        "{}",
        text(&world)
    );
    set(
        &mut world,
        "/daemonSets",
        json!("not looked at: needs list on daemonsets"),
    );
    assert!(
        text(&world).contains("the DaemonSet is not looked at: needs list on daemonsets"),
        "{}",
        text(&world)
    );
}

#[test]
fn a_toleration_is_compared_with_a_taint_by_key_value_effect_and_operator() {
    let mut world = world();
    on_each_node(&mut world);
    placed(&mut world, "node", "In", "two");
    let gpu = json!({"key": "gpu", "value": "yes", "effect": "NoSchedule"});
    let lost = |effect: &str| json!({"key": "node.kubernetes.io/not-ready", "effect": effect});
    let offline = json!({"key": "node.kubernetes.io/network-unavailable", "effect": "NoSchedule"});
    for (asks, taint, is_let_in) in [
        (
            json!({"key": "gpu", "operator": "Equal", "value": "yes"}),
            &gpu,
            true,
        ),
        (
            json!({"key": "gpu", "value": "yes", "effect": "NoSchedule"}),
            &gpu,
            true,
        ),
        (json!({"key": "gpu", "operator": "Exists"}), &gpu, true),
        (
            json!({"operator": "Exists", "effect": "NoSchedule"}),
            &gpu,
            true,
        ),
        (json!({"key": "gpu"}), &gpu, false),
        (
            json!({"key": "gpu", "operator": "Equal", "value": "no"}),
            &gpu,
            false,
        ),
        (
            json!({"key": "gpu", "operator": "Exists", "effect": "NoExecute"}),
            &gpu,
            false,
        ),
        (
            json!({"operator": "Exists", "effect": "NoExecute"}),
            &gpu,
            false,
        ),
        (json!({"key": "disk", "operator": "Exists"}), &gpu, false),
        (json!({"key": "disk"}), &lost("NoExecute"), true),
        (json!({"key": "disk"}), &lost("NoSchedule"), false),
        (json!({"key": "disk"}), &offline, false),
    ] {
        let set_of = json!({"tolerations": [asks], "hostNetwork": false});
        daemon_set(&mut world, &set_of);
        set(&mut world, "/bare/two/spec/taints", json!([taint]));
        let links = chain(&world).links;
        let said = links.into_iter().find(|link| link.name == "controller");
        let said = said.expect("a controller");
        assert_eq!(
            said.text.contains("fits the labels and taints"),
            is_let_in,
            "{asks} {taint}: {}",
            said.text
        );
        let remedy = said.remedy.expect("a remedy");
        let is_taken_off = remedy.contains("kubectl taint");
        assert_eq!(is_taken_off, !is_let_in && taint == &gpu, "{remedy}");
    }
    daemon_set(&mut world, &json!({"hostNetwork": true}));
    set(&mut world, "/bare/two/spec/taints", json!([offline]));
    let drawn = chain(&world).picture(true);
    assert!(drawn.contains("fits the labels and taints"), "{drawn}");
}

#[test]
fn of_the_warnings_of_daemon_sets_those_of_the_driver_and_of_this_node_are_shown() {
    let mut world = world();
    on_each_node(&mut world);
    placed(&mut world, "node", "In", "two");
    daemon_set(
        &mut world,
        &json!({"tolerations": [{"operator": "Exists"}]}),
    );
    for (set_of, reason, message, is_shown) in [
        ("csi-node", "FailedCreate", "exceeded quota: few", true),
        (
            "csi-node",
            "FailedDaemonPod",
            "Found failed daemon pod storage/a on node two, will try to kill it",
            true,
        ),
        (
            "csi-node",
            "FailedDaemonPod",
            "Found failed daemon pod storage/on-two-a on node two-b, will try to kill it",
            false,
        ),
        ("other-node", "FailedCreate", "exceeded quota: few", false),
    ] {
        let refused = refusal(set_of, reason, message);
        set(&mut world, "/refusals", json!([refused]));
        let drawn = chain(&world).picture(true);
        let said = format!("the DaemonSet controller of Kubernetes says: {reason}: {message}");
        assert_eq!(drawn.contains(&said), is_shown, "{drawn}");
    }
    let forbidden = json!("not looked at: needs list on events");
    set(&mut world, "/refusals", forbidden);
    let drawn = chain(&world).picture(true);
    let said = "taints of the node; its events are not looked at: needs list on events";
    assert!(drawn.contains(said), "{drawn}");
}

#[test]
fn where_each_node_has_a_controller_a_fault_of_its_storage_names_the_node() {
    let faults: [(&str, Make); 3] = [
        ("parent", |world| says(world, "/storage/links", "parent")),
        ("storage", |world| {
            set(world, "/storage", json!("it did not answer in 14 s"));
        }),
        ("storage", |world| {
            connection(world, "nas", "bad");
            chosen(world, "one");
        }),
    ];
    for (name, make) in faults {
        for on_nodes in [true, false] {
            let mut world = world();
            make(&mut world);
            if on_nodes {
                on_each_node(&mut world);
            }
            let chain = chain(&world);
            let first = chain.first().expect("a link");
            let of = (first.name.as_ref(), first.node.as_deref());
            let node = on_nodes.then_some("one");
            assert_eq!(of, (name, node), "{}", chain.picture(true));
            let links = chain.links.iter();
            let mut of_all =
                links.filter(|link| ["handle", "connection"].contains(&link.name.as_ref()));
            assert!(of_all.all(|link| link.node.is_none()));
        }
    }
}

#[test]
fn a_mount_that_failed_before_the_pod_had_its_volumes_is_no_news() {
    for (mounted, has_network, is_broken) in [
        ("2026-01-01T00:00:30Z", "True", false),
        ("2026-01-01T00:00:00Z", "True", false),
        // It failed again since.
        ("2025-12-31T23:59:30Z", "True", true),
        ("2026-01-01T00:00:30Z", "False", true),
    ] {
        let mut world = world();
        waiting_pod(&mut world);
        let condition = json!({"type": "PodReadyToStartContainers", "status": has_network, "lastTransitionTime": mounted});
        set(&mut world, "/pods/0/status/conditions", json!([condition]));
        // Its latest time counts, however often it was said.
        let mut failed = event("Warning", "FailedMount", "access denied by server");
        failed["firstTimestamp"] = json!("2025-12-31T23:50:00Z");
        failed["count"] = json!(7);
        set(&mut world, "/warnings", json!([failed]));
        let chain = chain(&world);
        let pod = chain.links.iter().find(|link| link.name == "pod");
        let pod = pod.expect("a pod");
        let is_named = pod.text.contains("access denied by server");
        assert_eq!(is_named, is_broken, "{}", pod.text);
        assert_eq!(pod.state == State::Broken, is_broken, "{}", pod.text);
        let is_over = pod.text.contains("its volumes are mounted");
        assert_eq!(is_over, !is_broken, "{}", pod.text);
    }
}

#[test]
fn the_records_of_a_node_are_worded_to_fit_its_mounts_and_the_pods_that_wait() {
    let text = |world: &Value, name: &str| {
        let chain = chain(world);
        let link = chain.links.iter().find(|link| link.name == name);
        link.expect(name).text.clone()
    };
    let mut world = world();
    says(&mut world, "/nodes/one/links", "mount");
    assert!(text(&world, "staged").starts_with("the kubelet's record says so: /var/lib"));
    let unpublished =
        json!({"link": "published", "state": "absent", "text": "no pod of this node uses it"});
    world["nodes"]["one"]["links"]
        .as_array_mut()
        .unwrap()
        .push(unpublished);
    assert_eq!(text(&world, "published"), "no pod of this node uses it");
    set(&mut world, "/pods/0/status/phase", json!("Pending"));
    assert_eq!(
        text(&world, "published"),
        "in no pod of this node yet; these wait for it: web-0"
    );
    waiting_pod(&mut world);
    assert_eq!(
        text(&world, "staged"),
        "not staged on this node yet, for the pods that wait: web-0"
    );
}
