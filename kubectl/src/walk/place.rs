//! The nodes that a volume can be used on: its node affinity, against the labels of the nodes and the place of its pods.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{
    NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PersistentVolume, Pod, PodSpec,
};
use kube::core::ObjectMeta;

use super::volume::VOLUME;
use crate::advice::made_again;
use crate::chain::Link;
use crate::found::{Found, runs};

/// So many nodes are named with their labels.
const NAMED: usize = 4;
const AFFINITY: &str = "`nodeAffinity`";

/// A link that does not hold: no node that the volume can be used on, or a pod elsewhere. None where all is well, such as
/// where each pod runs.
pub(super) fn misplaced(found: &Found, name: &str, volume: &PersistentVolume) -> Option<Link> {
    let affinity = volume.spec.as_ref()?.node_affinity.as_ref()?;
    let required = affinity.required.as_ref()?;
    let pods = found.pods.all();
    let ends = |pod: &Pod| pod.metadata.deletion_timestamp.is_some();
    let waiting: Vec<_> = pods.iter().filter(|pod| !runs(pod) && !ends(pod)).collect();
    if waiting.is_empty() && !pods.is_empty() {
        return None;
    }
    let only = format!(
        "`{name}` can be used only on nodes with {}",
        shown(required)
    );
    if let Some(why) = found.machines.why_not() {
        return Some(Link::unknown(
            VOLUME,
            &format!("{only}; the nodes are {why}"),
        ));
    }
    let machines: Vec<_> = found
        .machines
        .all()
        .iter()
        .map(|one| &one.metadata)
        .collect();
    let fitting: Vec<_> = machines
        .iter()
        .copied()
        .filter(|machine| fits(required, machine))
        .collect();
    if fitting.is_empty() {
        let text = format!(
            "no node is fit for the volume: {only}; {}",
            labelled(&machines, required)
        );
        let remedy = format!(
            "bring back the node that had them: `kubectl get nodes --show-labels`; labels of the driver's topology come with its pod on the node. \
             If the data can be used from another node, give that the labels: `kubectl label node NODE KEY=VALUE`. {}",
            made_again(AFFINITY)
        );
        return Some(Link::broken(VOLUME, &text, &remedy));
    }
    waiting.into_iter().find_map(|pod| {
        elsewhere(
            pod,
            &only,
            required,
            (machines.as_slice(), fitting.as_slice()),
        )
    })
}

/// A pod that is on a node, or is bound to nodes, that the volume cannot be used on.
fn elsewhere(
    pod: &Pod,
    only: &str,
    required: &NodeSelector,
    (machines, fitting): (&[&ObjectMeta], &[&ObjectMeta]),
) -> Option<Link> {
    let spec = pod.spec.as_ref()?;
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let there = named(fitting);
    if let Some(node) = spec.node_name.as_deref() {
        let machine = machines
            .iter()
            .find(|one| one.name.as_deref() == Some(node))?;
        if fits(required, machine) {
            return None;
        }
        let text = format!(
            "the pod {name} is on a node that is not fit for the volume: {only}; {}",
            labelled(&[*machine], required)
        );
        let remedy = format!(
            "delete the pod, and let the next one go to {there}: leave out `nodeName`, and see that `nodeSelector` and `affinity` of the pod \
             let it go there. {}",
            made_again(AFFINITY)
        );
        return Some(Link::broken(VOLUME, &text, &remedy));
    }
    if fitting.iter().any(|machine| may_go(pod, machine)) {
        return None;
    }
    let text = format!(
        "`nodeSelector` or `affinity` of the pod {name} keeps it away from the volume: {only} ({there})"
    );
    let remedy = format!(
        "change `nodeSelector` or `affinity` of the pod, so that it may go to {there}. {}",
        made_again(AFFINITY)
    );
    Some(Link::broken(VOLUME, &text, &remedy))
}

/// Whether the pod's own selector and affinity let it go to a node.
fn may_go(pod: &Pod, machine: &ObjectMeta) -> bool {
    let Some(spec) = pod.spec.as_ref() else {
        return true;
    };
    let mut wanted = spec.node_selector.iter().flatten();
    wanted.all(|(key, value)| label(machine, key) == Some(value.as_str()))
        && required_of(spec).is_none_or(|required| fits(required, machine))
}

/// The affinity of pods for nodes without which they do not run there.
pub(super) fn required_of(spec: &PodSpec) -> Option<&NodeSelector> {
    let nodes = spec.affinity.as_ref()?.node_affinity.as_ref()?;
    nodes
        .required_during_scheduling_ignored_during_execution
        .as_ref()
}

// === selectors ===

/// Whether a node fits one of the terms.
pub(super) fn fits(selector: &NodeSelector, machine: &ObjectMeta) -> bool {
    let mut terms = selector.node_selector_terms.iter();
    terms.any(|term| {
        let (labels, fields) = requirements(term);
        // A term that asks for nothing fits no node.
        !(labels.is_empty() && fields.is_empty())
            && labels
                .iter()
                .all(|one| is_met(one, label(machine, &one.key)))
            && fields
                .iter()
                .all(|one| is_met(one, field(machine, &one.key)))
    })
}

fn requirements(
    term: &NodeSelectorTerm,
) -> (&[NodeSelectorRequirement], &[NodeSelectorRequirement]) {
    (
        term.match_expressions.as_deref().unwrap_or_default(),
        term.match_fields.as_deref().unwrap_or_default(),
    )
}

pub(super) fn label<'a>(machine: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    machine.labels.as_ref()?.get(key).map(String::as_str)
}

/// A field of a node. Selectors know its name alone.
fn field<'a>(machine: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    machine.name.as_deref().filter(|_| key == "metadata.name")
}

fn is_met(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let is_listed = value.is_some_and(|value| values.iter().any(|one| one == value));
    let number = |text: &str| text.parse::<i64>().ok();
    let compared = || {
        let limit = number(values.first()?)?;
        Some(number(value?)?.cmp(&limit))
    };
    match requirement.operator.as_str() {
        "In" => is_listed,
        "NotIn" => !is_listed,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compared().is_some_and(std::cmp::Ordering::is_gt),
        "Lt" => compared().is_some_and(std::cmp::Ordering::is_lt),
        // One of a newer Kubernetes.
        _ => true,
    }
}

// === words ===

/// The terms for people.
pub(super) fn shown(selector: &NodeSelector) -> String {
    let terms = selector.node_selector_terms.iter().map(|term| {
        let (labels, fields) = requirements(term);
        let all = labels.iter().chain(fields).map(requirement);
        all.collect::<Vec<_>>().join(" and ")
    });
    terms.collect::<Vec<_>>().join(", or ")
}

fn requirement(one: &NodeSelectorRequirement) -> String {
    let (key, values) = (&one.key, one.values.as_deref().unwrap_or_default());
    let values = values.join(", ");
    match one.operator.as_str() {
        "In" => format!("`{key}` in ({values})"),
        "NotIn" => format!("`{key}` not in ({values})"),
        "Exists" => format!("a label `{key}`"),
        "DoesNotExist" => format!("no label `{key}`"),
        operator => format!("`{key}` {operator} {values}"),
    }
}

/// Nodes with their values of the labels that a selector asks for.
pub(super) fn labelled(machines: &[&ObjectMeta], selector: &NodeSelector) -> String {
    let asked = selector.node_selector_terms.iter().flat_map(|term| {
        let (labels, _) = requirements(term);
        labels.iter().map(|one| one.key.as_str())
    });
    let keys: BTreeSet<&str> = asked.collect();
    let one = |machine: &&ObjectMeta| {
        let name = machine.name.as_deref().unwrap_or_default();
        let labels = keys.iter().map(|key| match label(machine, key) {
            Some(value) => format!("{key}={value}"),
            None => format!("no label {key}"),
        });
        let labels: Vec<_> = labels.collect();
        if labels.is_empty() {
            name.to_owned()
        } else {
            format!("{name} has {}", labels.join(" and "))
        }
    };
    limited(machines.iter().map(one))
}

pub(super) fn named(machines: &[&ObjectMeta]) -> String {
    limited(
        machines
            .iter()
            .map(|one| one.name.clone().unwrap_or_default()),
    )
}

/// The first few of many.
fn limited(all: impl ExactSizeIterator<Item = String>) -> String {
    let count = all.len();
    if count == 0 {
        return "the cluster has no node".to_owned();
    }
    let mut text = all.take(NAMED).collect::<Vec<_>>().join(", ");
    if count > NAMED {
        text = format!("{text}, and {} more", count - NAMED);
    }
    text
}
