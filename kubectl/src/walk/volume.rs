//! The volume of a claim: why there is none, or whether it is that of the claim and can be used on a node.

use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;

use super::class::{is_ours, not_known_whether};
use super::missing::on_node;
use super::modes;
use super::place::{misplaced, named};
use super::{
    WAIT, chosen_node, controller_of, csi_of, is_young, newest, remedy_of, text_of, volume_name,
};
use crate::advice::{ANEW, OTHER_MODES, Speaker};
use crate::chain::Link;
use crate::found::{Answer, Found};
use crate::ours::{DriverPod, is_on_nodes, node_pod, unscheduled};

/// The link of a claim to its volume.
const BOUND: &str = "bound";
/// The link that is the volume.
pub(super) const VOLUME: &str = "persistent-volume";
/// The reason of the event that the provisioner leaves while it makes a volume.
const BEING_MADE: &str = "Provisioning";
const NO_REASON: &str = "no reason is given";
/// So many pods of a claim that waits are named.
const PODS: usize = 3;

/// A claim that has no volume: what the provisioner says, or why it was not asked.
pub(super) fn unbound(
    found: &Found,
    claim: &PersistentVolumeClaim,
    class: Option<&StorageClass>,
) -> Link {
    let events = found.events.all();
    let waits = class.and_then(|class| class.volume_binding_mode.as_deref())
        == Some("WaitForFirstConsumer");
    let chosen = chosen_node(found);
    if let Some(link) = chosen
        .as_deref()
        .and_then(|node| stranded(found, class, node))
    {
        return link;
    }
    let pod = class.and_then(|class| controller_of(found, &class.provisioner));
    let warning = newest(events, |event| event.type_.as_deref() == Some("Warning"));
    if let Some(event) = warning {
        let log = pod.map(DriverPod::log);
        let message = event.message.as_deref().unwrap_or_default();
        let text = match modes::of_driver(claim, message) {
            Some(modes) => format!("{modes}: {}", text_of(event)),
            None => text_of(event),
        };
        return Link::broken(BOUND, &text, &remedy_of(event, log.as_deref()));
    }
    if waits && chosen.is_none() {
        return not_placed(found);
    }
    let about = about(found, class, chosen.as_deref());
    if let Some(why) = found.events.why_not() {
        return Link::unknown(BOUND, &format!("it has no volume; its events are {why}"));
    }
    let being_made = newest(events, |event| event.reason.as_deref() == Some(BEING_MADE));
    if being_made.is_some() {
        let text = format!("its volume is being made; {about}");
        return Link::unknown(BOUND, &text).or_do("wait, and ask again");
    }
    let selector = claim.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    let remedy = match pod {
        Some(pod) => format!(
            "the last lines of `kubectl -n {} logs {} -c {}` say whether the provisioner sees it",
            pod.namespace,
            pod.name,
            pod.provisioner.as_deref().unwrap_or("external-provisioner")
        ),
        None if selector.is_some() => format!(
            "give a PersistentVolume that fits in size, access mode and class the labels of the claim's `selector`: `kubectl label pv NAME \
             KEY=VALUE`. To be without a selector, or of a class: {ANEW}"
        ),
        None => format!(
            "make a PersistentVolume that fits in size, access mode and class. To be of a class that makes volumes: {ANEW}"
        ),
    };
    let text = format!("it has no volume, and no event says that one is being made; {about}");
    if is_young(claim.metadata.creation_timestamp.as_ref()) {
        return Link::unknown(BOUND, &text).or_do(&format!("{WAIT}{remedy}"));
    }
    Link::broken(BOUND, &text, &remedy)
}

/// A claim for which a node was chosen where nothing makes its volume. No event says so.
fn stranded(found: &Found, class: Option<&StorageClass>, node: &str) -> Option<Link> {
    let again = format!(
        "`kubectl -n {} annotate pvc {} volume.kubernetes.io/selected-node-`: the scheduler then chooses again for the pod that uses it",
        found.namespace, found.name
    );
    let begin = format!("the node {node} was chosen for its volume, and");
    if let Some(machines) = found.machines.there() {
        let all: Vec<_> = machines.iter().map(|one| &one.metadata).collect();
        if !all.iter().any(|one| one.name.as_deref() == Some(node)) {
            let text = format!(
                "{begin} there is none of that name: the nodes are {}",
                named(&all)
            );
            return Some(Link::broken(BOUND, &text, &again));
        }
    }
    let driver = &class?.provisioner;
    let (all, own) = (found.ours.all(), found.serving(driver));
    if !is_on_nodes(all, own) {
        return None;
    }
    let Some(pod) = node_pod(all, own, node) else {
        let cause = on_node(found, driver, node);
        let text = cause.after(&format!(
            "{begin} no pod of the driver is there to make it, as each node has its own provisioner"
        ));
        let remedy = format!("{again}. To have it on {node}: {}", cause.remedy);
        return Some(Link::broken(BOUND, &text, &remedy));
    };
    let csi = found.csi_nodes.get(node).and_then(Answer::there)?;
    if csi.spec.drivers.iter().any(|one| one.name == *driver) {
        return None;
    }
    let text =
        format!("{begin} the kubelet there does not know `{driver}`: its CSINode does not list it");
    let remedy = format!(
        "`kubectl -n {} delete pod {}`: the next one registers again. To have it on another node: {again}",
        pod.namespace, pod.name
    );
    Some(Link::broken(BOUND, &text, &remedy))
}

/// What is known of a claim that waits: the mode of its class, the node chosen, its pods and its latest event.
fn about(found: &Found, class: Option<&StorageClass>, chosen: Option<&str>) -> String {
    let mut all = Vec::new();
    if let Some(class) = class {
        all.push(match class.volume_binding_mode.as_deref() {
            Some("WaitForFirstConsumer") => {
                "its class waits for a pod (WaitForFirstConsumer)".to_owned()
            }
            _ => "its class does not wait for a pod (Immediate)".to_owned(),
        });
    }
    all.extend(chosen.map(|node| format!("the node {node} was chosen")));
    for pod in found.pods.all().iter().take(PODS) {
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        all.push(match node {
            Some(node) => format!("the pod {name} on {node} uses it"),
            None => format!("the pod {name} uses it, and has no node yet"),
        });
    }
    if found.pods.there().is_some_and(Vec::is_empty) {
        all.push("no pod uses it".to_owned());
    }
    all.extend(newest(found.events.all(), |_| true).map(text_of));
    all.join("; ")
}

/// A claim whose class waits for a pod and its node.
fn not_placed(found: &Found) -> Link {
    if let Some(why) = found.pods.why_not() {
        let text = format!("it waits for a pod with a node; the pods are {why}");
        return Link::unknown(BOUND, &text);
    }
    let name = |pod: &Pod| pod.metadata.name.clone().unwrap_or_default();
    let pods = found.pods.all();
    let Some(first) = pods.first() else {
        let text = "its class waits for the first pod (WaitForFirstConsumer), and no pod uses it";
        return Link::absent(BOUND, text)
            .or_do("nothing is wrong: start a pod that uses the claim");
    };
    let by_hand = pods.iter().find_map(|pod| {
        let node = pod.spec.as_ref()?.node_name.as_deref()?;
        Some((name(pod), node))
    });
    if let Some((name, node)) = by_hand {
        let text = format!(
            "its class waits until the scheduler chooses a node (WaitForFirstConsumer), and the pod {name} has `nodeName: {node}`, which \
             passes the scheduler by: no node is ever chosen"
        );
        let remedy = format!(
            "make the pod again with `nodeSelector: {{kubernetes.io/hostname: {node}}}` in place of `nodeName`"
        );
        return Link::broken(BOUND, &text, &remedy);
    }
    let without = pods
        .iter()
        .find_map(|pod| unscheduled(pod).map(|why| (pod, why)));
    if let Some((pod, why)) = without {
        let (said, name) = (Speaker::Scheduler.says(&why), name(pod));
        let text = format!(
            "it waits (WaitForFirstConsumer) for the pod {name}, which gets no node; {said}"
        );
        let remedy = format!(
            "{}: `kubectl -n {} describe pod {name}`",
            Speaker::Scheduler.remedy(&why, None),
            found.namespace
        );
        Link::broken(BOUND, &text, &remedy)
    } else {
        let name = name(first);
        let mut text = format!("it waits (WaitForFirstConsumer) until the pod {name} gets a node");
        if let Some(event) = newest(found.events.all(), |_| true) {
            text = format!("{text}; {}", text_of(event));
        }
        let remedy = format!(
            "wait a minute. If it stays so, the events at the end of `kubectl -n {} describe pod {name}` say what it waits for",
            found.namespace
        );
        Link::unknown(BOUND, &text).or_do(&remedy)
    }
}

/// The volume, and its driver if it is ours.
pub(super) fn persistent_volume<'a>(
    found: &'a Found,
    claim: &PersistentVolumeClaim,
) -> (Link, Option<&'a str>) {
    let broken = |text: &str, remedy: &str| (Link::broken(VOLUME, text, remedy), None);
    let name = volume_name(claim).unwrap_or_default();
    let volume = match &found.volume {
        Some(Answer::There(volume)) => volume,
        Some(Answer::Unknown(why)) => return (Link::unknown(VOLUME, why), None),
        Some(Answer::Missing) | None if is_pending(claim) => {
            let text = format!("the claim names the volume `{name}`, and there is none");
            let remedy = format!(
                "make the PersistentVolume `{name}`, to which the claim is then bound. To have another volume: {ANEW} with another \
                 `volumeName`, or without one"
            );
            return broken(&text, &remedy);
        }
        Some(Answer::Missing) | None => {
            let text = format!("`{name}`, which the claim is bound to, is gone");
            let remedy = "its data may still be on the storage: make the PersistentVolume again under the same name with its handle, which \
                          `kubectl omnibus export-pvs` writes for what is there (docs/lost-cluster.md). Where the data is not needed, delete \
                          the claim";
            return broken(&text, remedy);
        }
    };
    let Some((driver, handle)) = csi_of(volume) else {
        return broken(
            &format!("`{name}` is no volume of a CSI driver"),
            "this program follows volumes of omnibus-csi alone: `kubectl describe pv` names what this one is, such as `hostPath` or `nfs`",
        );
    };
    let text = format!("`{name}`: {handle}, {driver}");
    let known = |link: Link| link.with("handle", handle).with("driver", driver);
    match is_ours(found, driver) {
        Some(false) => {
            let text = format!(
                "`{name}` is a volume of `{driver}`, which is no driver of omnibus-csi in this cluster"
            );
            let remedy = "ask the makers of that driver; if it is omnibus-csi, install it again with this csiDriver.name";
            return broken(&text, remedy);
        }
        None => {
            return (
                known(Link::unknown(VOLUME, &not_known_whether(found, &text))),
                None,
            );
        }
        Some(true) => {}
    }
    let wrong = of_another(found, claim, name, volume)
        .or_else(|| ended(name, volume, log_of(found, driver).as_deref()))
        .or_else(|| not_bound(found, claim, name, volume))
        .or_else(|| misplaced(found, name, volume));
    let link = wrong.unwrap_or_else(|| Link::holds(VOLUME, &text));
    (known(link), Some(driver))
}

/// A volume that is bound to another claim, or kept for one.
fn of_another(
    found: &Found,
    claim: &PersistentVolumeClaim,
    name: &str,
    volume: &PersistentVolume,
) -> Option<Link> {
    let owner = volume.spec.as_ref()?.claim_ref.as_ref()?;
    let is_named =
        is(owner.namespace.as_ref(), &found.namespace) && is(owner.name.as_ref(), &found.name);
    if is_named && (owner.uid.is_none() || owner.uid == claim.metadata.uid) {
        return None;
    }
    let free = format!(
        "`kubectl patch pv {name} --type json -p '[{{\"op\": \"remove\", \"path\": \"/spec/claimRef/uid\"}}]'`"
    );
    if is_named {
        let text = format!(
            "`{name}` belongs to another claim: to {}, one that was there before under the name of this one",
            of(owner)
        );
        let remedy = format!("if its data is meant for this claim, give it the volume: {free}");
        return Some(Link::broken(VOLUME, &text, &remedy));
    }
    let text = format!("`{name}` belongs to another claim: to {}", of(owner));
    let remedy = format!(
        "see whether that claim is still needed: `kubectl -n {} get pvc {}`. If it is, make this one again with another `volumeName` or \
         without one; the spec of a claim cannot be changed. If it is gone and the data is meant for this one, set `spec.claimRef` of the \
         volume to this claim without `uid`: `kubectl edit pv {name}`",
        owner.namespace.as_deref().unwrap_or_default(),
        owner.name.as_deref().unwrap_or_default()
    );
    Some(Link::broken(VOLUME, &text, &remedy))
}

/// A reference without a value may be to any.
fn is(value: Option<&String>, expected: &str) -> bool {
    value.is_none_or(|value| value == expected)
}

/// The claim for people: `namespace/name`.
fn of(owner: &ObjectReference) -> String {
    format!(
        "{}/{}",
        owner.namespace.as_deref().unwrap_or_default(),
        owner.name.as_deref().unwrap_or_default()
    )
}

/// A volume that is being deleted, or that could not be.
fn ended(name: &str, volume: &PersistentVolume, log: Option<&str>) -> Option<Link> {
    if volume.metadata.deletion_timestamp.is_some() {
        let remedy = format!(
            "a deletion cannot be taken back. While a pod still has the volume, copy its data, or set `persistentVolumeReclaimPolicy: Retain` \
             (`kubectl edit pv {name}`), and the data stays on the storage. Else make a new claim, and restore it from a snapshot or a backup"
        );
        return Some(Link::broken(
            VOLUME,
            &format!("`{name}` is being deleted"),
            &remedy,
        ));
    }
    let status = volume.status.as_ref()?;
    if status.phase.as_deref() != Some("Failed") {
        return None;
    }
    let why = status.message.as_deref().unwrap_or(NO_REASON);
    let text = format!("`{name}` has failed: {}", Speaker::Deleter.says(why));
    let remedy = Speaker::Deleter.remedy(why, log);
    Some(Link::broken(VOLUME, &text, &remedy))
}

/// A claim that names a volume, and is not bound to it yet.
fn not_bound(
    found: &Found,
    claim: &PersistentVolumeClaim,
    name: &str,
    volume: &PersistentVolume,
) -> Option<Link> {
    if !is_pending(claim) {
        return None;
    }
    let warning = newest(found.events.all(), |event| {
        event.type_.as_deref() == Some("Warning")
    });
    let modes = modes::of_volume(claim, volume);
    let why: Vec<_> = modes.into_iter().chain(warning.map(text_of)).collect();
    let text = format!("the claim is not bound to `{name}`");
    if why.is_empty() {
        let remedy =
            "wait a minute, and ask again; `kubectl describe pvc` has the events of the claim";
        return Some(Link::unknown(VOLUME, &format!("{text} yet")).or_do(remedy));
    }
    let remedy = warning.map_or_else(|| OTHER_MODES.to_owned(), |event| remedy_of(event, None));
    let text = format!("{text}: {}", why.join(": "));
    Some(Link::broken(VOLUME, &text, &remedy))
}

fn is_pending(claim: &PersistentVolumeClaim) -> bool {
    let status = claim.status.as_ref();
    status.and_then(|status| status.phase.as_deref()) == Some("Pending")
}

fn log_of(found: &Found, driver: &str) -> Option<String> {
    controller_of(found, driver).map(DriverPod::log)
}

/// A growth that failed. No link where none is going on.
pub(super) fn size(found: &Found, claim: &PersistentVolumeClaim) -> Option<Link> {
    const NAME: &str = "size";
    let conditions = claim.status.as_ref()?.conditions.as_ref()?;
    let volume = found.volume.as_ref().and_then(Answer::there);
    let log = volume
        .and_then(csi_of)
        .and_then(|(driver, _)| log_of(found, driver));
    let mut set = conditions.iter().filter(|one| one.status == "True");
    set.find_map(|one| {
        let message = one.message.as_deref().unwrap_or(NO_REASON);
        let speaker = match one.type_.as_str() {
            "ControllerResizeError" => Speaker::Resizer,
            "NodeResizeError" => Speaker::Kubelet,
            "FileSystemResizePending" => {
                let text = "it has grown on the storage, and its filesystem grows on a node";
                return Some(Link::absent(NAME, text).or_do("start a pod that uses the claim"));
            }
            _ => return None,
        };
        let text = format!("it does not grow; {}", speaker.says(message));
        Some(Link::broken(
            NAME,
            &text,
            &speaker.remedy(message, log.as_deref()),
        ))
    })
}
