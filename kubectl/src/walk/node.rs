//! The links of the nodes on which pods use the claim: the driver's pod, its registration, the attachment, the mounts,
//! and the pods themselves.

use k8s_openapi::api::core::v1::{PersistentVolume, Pod};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use serde_json::Value;

use super::{by_plugin, is_of_node, text_of, time_of, volume_name};
use crate::chain::{Link, State};
use crate::found::{Answer, Explained, Found, runs};
use crate::ours::{self, DriverPod};

/// The warnings of a pod that speak of its volumes.
const OF_VOLUMES: [&str; 5] = [
    "FailedAttachVolume",
    "FailedMount",
    "FailedMapVolume",
    "FailedUnMount",
    "FailedScheduling",
];

pub(super) fn links(found: &Found, driver: &str, links: &mut Vec<Link>) {
    let nodes = found.nodes_of_pods();
    for node in &nodes {
        let pod = ours::node_pod(found.ours.all(), found.serving(driver), node);
        links.push(node_pod(found, pod).on(node));
        links.push(registered(found, driver, node, pod).on(node));
    }
    attached(found, driver, &nodes, links);
    for node in &nodes {
        links.extend(mounted(found, node).into_iter().map(|link| link.on(node)));
    }
    if let Some(why) = found.pods.why_not() {
        links.push(Link::unknown("pod", why));
        return;
    }
    for pod in found.pods.all() {
        links.push(of_pod(found, pod));
    }
    if found.pods.all().is_empty() {
        links.push(Link::absent("pod", "no pod uses the claim"));
    }
}

fn node_pod(found: &Found, pod: Option<&DriverPod>) -> Link {
    const NAME: &str = "node-pod";
    if let Some(why) = found.ours.why_not() {
        return Link::unknown(NAME, why);
    }
    let Some(pod) = pod else {
        let text = "there is no pod of the driver on this node";
        let remedy = "see whether `node.nodeSelector` and `node.tolerations` of the chart's values fit the labels and taints of the node";
        return Link::broken(NAME, text, remedy);
    };
    match &pod.sick {
        Some(sick) => Link::broken(NAME, &sick.text, &sick.remedy),
        None => Link::holds(NAME, &pod.well()).with("restarts", pod.restarts),
    }
}

/// Whether the kubelet of the node knows the driver.
fn registered(found: &Found, driver: &str, node: &str, pod: Option<&DriverPod>) -> Link {
    const NAME: &str = "registered";
    match found.csi_nodes.get(node) {
        Some(Answer::There(csi)) if csi.spec.drivers.iter().any(|one| one.name == driver) => {
            Link::holds(NAME, &format!("the kubelet knows {driver}"))
        }
        Some(Answer::There(_)) => {
            let text =
                format!("the kubelet does not know `{driver}`: its CSINode does not list it");
            let remedy = match pod {
                Some(pod) => format!(
                    "`kubectl -n {} logs {} -c {}` says why the kubelet refused it; see that `node.kubeletHostPath` is the folder of \
                     this kubelet",
                    pod.namespace, pod.name, pod.container
                ),
                None => "it registers itself once its pod runs there".to_owned(),
            };
            Link::broken(NAME, &text, &remedy)
        }
        Some(Answer::Missing) => {
            let remedy =
                "see whether the node is still there and its kubelet runs: `kubectl get node`";
            Link::broken(NAME, "the node has no CSINode", remedy)
        }
        Some(Answer::Unknown(why)) => Link::unknown(NAME, why),
        None => Link::unknown(NAME, "not looked at"),
    }
}

// === attachments ===

/// The attachments of the volume, on the nodes of its pods and on others.
fn attached(found: &Found, driver: &str, nodes: &[String], links: &mut Vec<Link>) {
    const NAME: &str = "attached";
    let drivers = found.drivers.all().iter();
    let object = drivers
        .into_iter()
        .find(|one| one.metadata.name.as_deref() == Some(driver));
    if object.is_some_and(|one| one.spec.attach_required == Some(false)) {
        links.push(Link::absent(
            NAME,
            "volumes of this driver are not attached",
        ));
        return;
    }
    if let Some(why) = found.attachments.why_not() {
        links.push(Link::unknown(NAME, why));
        return;
    }
    let volume = found.claim.there().and_then(volume_name);
    let all: Vec<_> = found
        .attachments
        .all()
        .iter()
        .filter(|one| one.spec.source.persistent_volume_name.as_deref() == volume)
        .collect();
    for one in &all {
        let node = &one.spec.node_name;
        let is_used = nodes.contains(node);
        links.push(attachment(one, is_used).on(node));
    }
    // A driver that does not attach has none, and whether this is one may not be known.
    if let (Some(why), true) = (found.drivers.why_not(), all.is_empty()) {
        links.push(Link::unknown(NAME, why));
        return;
    }
    let others: Vec<_> = all.iter().map(|one| one.spec.node_name.as_str()).collect();
    for node in nodes.iter().filter(|node| !others.contains(&node.as_str())) {
        let (text, remedy) = if others.is_empty() {
            (
                "there is no VolumeAttachment for this node".to_owned(),
                "the controller manager makes it: `kubectl describe pod` and its log say what it waits for",
            )
        } else {
            (
                format!("it is not attached here, but to {}", others.join(", ")),
                "a ReadWriteOnce volume is on one node at a time: end the pods on the other; if that node is dead, give it the taint \
                 node.kubernetes.io/out-of-service",
            )
        };
        links.push(Link::broken(NAME, &text, remedy).on(node));
    }
    if all.is_empty() && nodes.is_empty() {
        links.push(Link::absent(
            NAME,
            "it is attached to no node, and no pod on a node uses it",
        ));
    }
}

fn attachment(one: &VolumeAttachment, is_used: bool) -> Link {
    const NAME: &str = "attached";
    let name = one.metadata.name.as_deref().unwrap_or_default();
    let status = one.status.as_ref();
    let said = |error: Option<&k8s_openapi::api::storage::v1::VolumeError>| {
        error.map(|error| {
            error
                .message
                .clone()
                .unwrap_or_else(|| "no reason is given".to_owned())
        })
    };
    let attach = said(status.and_then(|status| status.attach_error.as_ref()));
    let detach = said(status.and_then(|status| status.detach_error.as_ref()));
    let link = if one.metadata.deletion_timestamp.is_some() {
        let why = detach.unwrap_or_else(|| "no reason is given".to_owned());
        let text = format!("it is being detached, and stays: {why}");
        let remedy = "do what the message says: the attacher asks again by itself. If the node is gone, delete the Node, or give it the \
                      taint node.kubernetes.io/out-of-service";
        Link::broken(NAME, &text, remedy)
    } else if let Some(why) = attach {
        let remedy = "do what the message says: the attacher asks again by itself";
        Link::broken(NAME, &format!("it cannot be attached: {why}"), remedy)
    } else if status.is_some_and(|status| status.attached) {
        let text = if is_used {
            "it is attached"
        } else {
            "it is attached, and no pod uses it here"
        };
        Link::holds(NAME, text)
    } else {
        let remedy = "if it stays so, see the log of csi-attacher in the controller's pod";
        Link::unknown(NAME, "it is being attached").or_do(remedy)
    };
    link.with("attachment", name)
}

// === mounts and pods ===

/// The mounts of a node, as the pod of the driver there sees them.
fn mounted(found: &Found, node: &str) -> Vec<Link> {
    let of = |explained: &Explained| {
        let links = explained.links.iter().filter(|link| is_of_node(link));
        let links = links.cloned().map(by_plugin);
        links.map(|link| as_asked(found, link)).collect()
    };
    match found.nodes.get(node) {
        Some(Answer::There(explained)) => of(explained),
        Some(Answer::Unknown(why)) => vec![Link::unknown("staged", why)],
        // The controller is on this node, and has said it.
        Some(Answer::Missing) => {
            let storage = found.storage.as_ref().and_then(Answer::there);
            storage.map(of).unwrap_or_default()
        }
        None => vec![Link::unknown(
            "staged",
            "not looked at: no pod of the driver there can be asked",
        )],
    }
}

/// A mount that is read-only, which neither the volume nor its pod asks for, is a broken link: the node does not know
/// what was asked for.
fn as_asked(found: &Found, mut link: Link) -> Link {
    let fact = |name: &str| link.facts.get(name);
    let is_read_only = fact("read_only").and_then(Value::as_bool) == Some(true);
    let volume = found.volume.as_ref().and_then(Answer::there);
    let pod = fact("pod").and_then(Value::as_str);
    let may_be_asked =
        volume.is_none_or(is_read_by_all) || pod.is_some_and(|uid| may_be_read_by(found, uid));
    if link.state != State::Holds || !is_read_only || may_be_asked {
        return link;
    }
    link.state = State::Broken;
    let text = ", which neither the PersistentVolume nor a pod asks for";
    link.text.push_str(text);
    link.or_do(
        "delete the pods that use it on this node, so that it is staged anew for the next one; the kernel's log of the \
         node may say why. If it is read-only again, the storage may write-protect it",
    )
}

/// Whether a volume is to be mounted read-only for each pod.
fn is_read_by_all(volume: &PersistentVolume) -> bool {
    let Some(spec) = &volume.spec else {
        return true;
    };
    let modes = spec.access_modes.iter().flatten();
    let options = spec.mount_options.iter().flatten();
    let mut words = options.flat_map(|option| option.split(','));
    let csi = spec.csi.as_ref();
    modes.into_iter().any(|mode| mode == "ReadOnlyMany")
        || words.any(|word| word.trim() == "ro")
        || csi.is_some_and(|csi| csi.read_only == Some(true))
}

/// Whether a pod takes the claim read-only. One that is not known may.
fn may_be_read_by(found: &Found, uid: &str) -> bool {
    let mut pods = found.pods.all().iter();
    let Some(pod) = pods.find(|pod| pod.metadata.uid.as_deref() == Some(uid)) else {
        return true;
    };
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_ref());
    let claims = volumes
        .into_iter()
        .flatten()
        .filter_map(|volume| volume.persistent_volume_claim.as_ref());
    let mut ours = claims.filter(|claim| claim.claim_name == found.name);
    ours.any(|claim| claim.read_only == Some(true))
}

fn of_pod(found: &Found, pod: &Pod) -> Link {
    const NAME: &str = "pod";
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let link = if pod.metadata.deletion_timestamp.is_some() {
        Link::unknown(NAME, &format!("{name} is ending"))
            .or_do("if it stays so, `kubectl describe pod` says what it waits for")
    } else if runs(pod) {
        Link::holds(NAME, &format!("{name} runs"))
    } else {
        waiting(found, pod, name)
    };
    match pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) {
        Some(node) => link.on(node),
        None => link,
    }
}

/// A pod that was not started: what is said of its volumes.
fn waiting(found: &Found, pod: &Pod, name: &str) -> Link {
    const NAME: &str = "pod";
    let uid = pod.metadata.uid.as_deref();
    let warnings = found.warnings.all().iter().filter(|event| {
        let of = &event.involved_object;
        let same = of.uid.is_none() || of.uid.as_deref() == uid;
        let reason = event.reason.as_deref().unwrap_or_default();
        same && of.name.as_deref() == Some(name) && OF_VOLUMES.contains(&reason)
    });
    if let Some(event) = warnings.max_by_key(|event| time_of(event)) {
        let remedy = "do what the message says: the kubelet asks again by itself; docs/troubleshooting.md lists such messages";
        return Link::broken(NAME, &format!("{name} waits: {}", text_of(event)), remedy);
    }
    match found.warnings.why_not() {
        Some(why) => Link::unknown(
            NAME,
            &format!("{name} does not run yet; its events are {why}"),
        ),
        None => Link::unknown(
            NAME,
            &format!("{name} does not run yet, and no event says that a volume is the reason"),
        ),
    }
}
