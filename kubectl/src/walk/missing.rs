//! The reason why the driver has no pod: what is to run it, against the labels and taints of the node.

use k8s_openapi::api::core::v1::{Event, Node, Taint, Toleration};
use kube::core::ObjectMeta;

use super::place::{fits, label, labelled, required_of, shown};
use super::{homes, newest, remedy_of, text_of};
use crate::found::{Answer, Found};
use crate::ours::{LABEL, LABEL_VALUE};
use crate::workload::Workload;

const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
const NO_NETWORK: &str = "node.kubernetes.io/network-unavailable";
/// The taints, with their effects, that Kubernetes lets each pod of a `DaemonSet` onto.
const OF_DAEMON_SETS: [(&str, &str); 6] = [
    (NOT_READY, "NoExecute"),
    (UNREACHABLE, "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
];
const HELM: &str = "`helm upgrade` puts it back: `helm list -A` names the release";

/// The reason, if it is known, and the step that fits it.
pub(super) struct Cause {
    why: Option<String>,
    pub(super) remedy: String,
}

// === impl Cause ===

impl Cause {
    fn new(why: &str, remedy: &str) -> Self {
        Self {
            why: Some(why.to_owned()),
            remedy: remedy.to_owned(),
        }
    }

    /// An observation with its reason.
    pub(super) fn after(&self, text: &str) -> String {
        match &self.why {
            Some(why) => format!("{text}: {why}"),
            None => text.to_owned(),
        }
    }
}

/// The workloads of the driver, or that they are not known, with the step `look`.
fn workloads<'a>(found: &'a Found, what: &str, look: &str) -> Result<&'a [Workload], Cause> {
    match &found.workloads {
        Some(Answer::There(all)) => Ok(all),
        Some(Answer::Unknown(why)) => Err(Cause::new(&format!("{what} is {why}"), look)),
        Some(Answer::Missing) | None => Err(Cause {
            why: None,
            remedy: look.to_owned(),
        }),
    }
}

/// The cause for a node without a pod of the driver.
pub(super) fn on_node(found: &Found, driver: &str, node: &str) -> Cause {
    let look = format!(
        "see that the driver's DaemonSet is there, `kubectl get ds -A -l {LABEL}={LABEL_VALUE}`, and that `node.nodeSelector`, \
         `node.affinity` and `node.tolerations` of the chart's values fit the labels and taints of the node: `kubectl describe node {node}`"
    );
    let own = found.serving(driver);
    let all = match workloads(found, "the DaemonSet", &look) {
        Ok(all) => all,
        Err(cause) => return cause,
    };
    let is_of_nodes =
        |one: &&Workload| one.replicas.is_none() && one.pod.driver == own && one.pod.is_node;
    let Some(set) = all.iter().find(is_of_nodes) else {
        return Cause::new("the driver has no DaemonSet", HELM);
    };
    let mut machines = found.machines.all().iter().map(|one| &one.metadata);
    let listed = machines.find(|one| one.name.as_deref() == Some(node));
    let whole = found.bare.get(node);
    let machine = whole
        .and_then(Answer::there)
        .map(|node| &node.metadata)
        .or(listed);
    let Some(machine) = machine else {
        return Cause::new("the node itself is not there or not seen", &look);
    };
    let mut gaps = labels(set, machine);
    if let Some(Answer::There(whole)) = whole {
        gaps.extend(taints(set, whole, node));
    }
    let set_shown = set.shown();
    if !gaps.is_empty() {
        let (whys, steps): (Vec<_>, Vec<_>) = gaps.into_iter().unzip();
        return Cause::new(
            &format!("{set_shown} {}", whys.join(", and ")),
            &steps.join("; and "),
        );
    }
    let fits = match whole {
        Some(Answer::Unknown(why)) => {
            format!("{set_shown} fits the labels of the node; its taints are {why}")
        }
        _ => format!("{set_shown} fits the labels and taints of the node"),
    };
    if let Some(event) = refused(found, set, Some(node)) {
        let text = format!("{fits}; {}", text_of(event));
        return Cause::new(&text, &remedy_of(event, None));
    }
    if matches!(whole, Some(Answer::Unknown(_))) {
        return Cause::new(&fits, &look);
    }
    let remedy = format!(
        "the events at the end of `kubectl -n {} describe ds {}` say why it makes no pod there",
        set.pod.namespace, set.pod.name
    );
    let text = match found.refusals.why_not() {
        Some(why) => format!("{fits}; its events are {why}"),
        None => fits,
    };
    Cause::new(&text, &remedy)
}

/// The latest warning of a `DaemonSet` about pods that are not made, or about the one of this node.
fn refused<'a>(found: &'a Found, set: &Workload, node: Option<&str>) -> Option<&'a Event> {
    let is_between = |char: char| !(char.is_ascii_alphanumeric() || matches!(char, '-' | '.'));
    newest(found.refusals.all(), |event| {
        let (of, message) = (&event.involved_object, event.message.as_deref());
        let mut words = message.unwrap_or_default().split(is_between);
        let is_of_set = of.name.as_ref() == Some(&set.pod.name)
            && of.namespace.as_ref() == Some(&set.pod.namespace);
        // A pod that is not made at all has no node yet.
        let counts =
            event.reason.as_deref() == Some("FailedCreate") || words.any(|word| Some(word) == node);
        is_of_set && counts
    })
}

/// The cause where there is no pod of the controller at all.
pub(super) fn anywhere(found: &Found, driver: &str) -> Cause {
    let own = found.serving(driver);
    let look = format!(
        "`kubectl get deploy,ds -A -l {LABEL}={LABEL_VALUE}` lists what runs it: see whether it is gone, is scaled to 0, or fits no node"
    );
    let all = match workloads(found, "what runs it", &look) {
        Ok(all) => all,
        Err(cause) => return cause,
    };
    let runs_it = |one: &&Workload| one.pod.driver == own && one.pod.is_controller;
    let Some(one) = all.iter().find(runs_it) else {
        return Cause::new("no Deployment or DaemonSet of it is there", HELM);
    };
    let (shown, namespace, name) = (one.shown(), &one.pod.namespace, &one.pod.name);
    match one.replicas {
        Some(0) => Cause::new(
            &format!("{shown} is scaled to 0"),
            &format!("`kubectl -n {namespace} scale deploy {name} --replicas=1`"),
        ),
        Some(_) => Cause::new(
            &format!("{shown} makes none"),
            &format!(
                "the events and conditions of `kubectl -n {namespace} describe deploy,rs` say why, such as a quota of the namespace"
            ),
        ),
        None => {
            if let Some(node) = homes(found).0.first() {
                return on_node(found, driver, node);
            }
            let text = format!("{shown} has no pod on any node");
            match refused(found, one, None) {
                Some(event) => Cause::new(
                    &format!("{text}; {}", text_of(event)),
                    &remedy_of(event, None),
                ),
                None => Cause::new(
                    &text,
                    &format!(
                        "compare its `nodeSelector`, `affinity` and `tolerations` with the nodes: `kubectl -n {namespace} describe ds {name}` \
                         and `kubectl get nodes --show-labels`"
                    ),
                ),
            }
        }
    }
}

/// The labels that a `DaemonSet` asks for and a node has not, each with the step.
fn labels(set: &Workload, machine: &ObjectMeta) -> Vec<(String, String)> {
    let node = machine.name.as_deref().unwrap_or_default();
    let mut gaps = Vec::new();
    for (key, value) in set.spec.node_selector.iter().flatten() {
        let has = label(machine, key);
        if has == Some(value.as_str()) {
            continue;
        }
        let (but, overwrite) = match has {
            Some(other) => (format!("{node} has {key}={other}"), " --overwrite"),
            None => (format!("{node} has no label {key}"), ""),
        };
        gaps.push((
            format!("asks for the label {key}={value} (`nodeSelector`), and {but}"),
            format!(
                "`kubectl label node {node} {key}={value}{overwrite}`, or take that label out of `node.nodeSelector` of the chart's values \
                 and `helm upgrade`"
            ),
        ));
    }
    if let Some(required) = required_of(&set.spec).filter(|required| !fits(required, machine)) {
        gaps.push((
            format!(
                "asks for nodes with {} (`affinity`), and {}",
                shown(required),
                labelled(&[machine], required)
            ),
            "let `node.affinity` of the chart's values take in this node and `helm upgrade`, or give the node such labels: `kubectl label node`"
                .to_owned(),
        ));
    }
    gaps
}

/// The taints of a node that a `DaemonSet` has no toleration for, each with the step.
fn taints(set: &Workload, node: &Node, name: &str) -> Vec<(String, String)> {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    let on_host = set.spec.host_network == Some(true);
    let keeps_away = |taint: &&Taint| {
        let mut tolerations = set.spec.tolerations.iter().flatten();
        let of_kubernetes = (taint.key.as_str(), taint.effect.as_str());
        let added = OF_DAEMON_SETS.contains(&of_kubernetes)
            || on_host && of_kubernetes == (NO_NETWORK, "NoSchedule");
        taint.effect != "PreferNoSchedule"
            && !added
            && !tolerations.any(|one| tolerates(one, taint))
    };
    let gaps = taints.into_iter().flatten().filter(keeps_away);
    gaps.map(|taint| {
        let (key, effect) = (&taint.key, &taint.effect);
        let value = taint.value.as_ref().map(|value| format!("={value}"));
        let value = value.unwrap_or_default();
        let off = if [NOT_READY, UNREACHABLE, NO_NETWORK].contains(&key.as_str()) {
            format!("see what the node lacks, and Kubernetes takes it off: `kubectl describe node {name}`")
        } else {
            format!("take it off the node: `kubectl taint node {name} {key}:{effect}-`")
        };
        (
            format!("has no toleration for the taint {key}{value}:{effect} of {name}"),
            format!("add it to `node.tolerations` of the chart's values and `helm upgrade`, or {off}"),
        )
    })
    .collect()
}

/// Whether a toleration lets pods onto a node with a taint. One without an effect is for each, one without a key for all.
fn tolerates(one: &Toleration, taint: &Taint) -> bool {
    let given = |text: &Option<String>| text.clone().unwrap_or_default();
    let (key, effect) = (given(&one.key), given(&one.effect));
    (effect.is_empty() || effect == taint.effect)
        && (key.is_empty() || key == taint.key)
        && match given(&one.operator).as_str() {
            "" | "Equal" => given(&one.value) == given(&taint.value),
            "Exists" => true,
            // One of a newer Kubernetes is not known to let it in.
            _ => false,
        }
}
