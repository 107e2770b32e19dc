//! The links of the nodes on which pods use the claim: the driver's pod, its registration, the mounts, and the pods
//! themselves.

use k8s_openapi::api::core::v1::{Event, PersistentVolume, Pod};
use serde_json::Value;

use super::attach::{attached, lost};
use super::missing::on_node;
use super::{by_plugin, is_of_node, newest, remedy_of, text_of, time_of, volume_name};
use crate::advice::Speaker;
use crate::chain::{Link, State};
use crate::found::{Answer, Explained, Found, runs};
use crate::ours::{self, DriverPod, unscheduled};

/// The link that is a pod of the claim.
const POD: &str = "pod";
/// The warnings of a pod that speak of its volumes.
const OF_VOLUMES: [&str; 4] = [
    "FailedAttachVolume",
    "FailedMount",
    "FailedMapVolume",
    "FailedUnMount",
];
/// The warning of a pod that gets no node.
const OF_NODES: &str = "FailedScheduling";
/// The beginning of a message of the kubelet that only sums up others.
const SUM: &str = "Unable to attach or mount volumes";
/// The words before the name of the volume in a message about one.
const FOR_VOLUME: &str = "for volume \"";

pub(super) fn links(found: &Found, driver: &str, links: &mut Vec<Link>) {
    let nodes = found.nodes_of_pods();
    for node in &nodes {
        let pod = ours::node_pod(found.ours.all(), found.serving(driver), node);
        links.push(node_pod(found, driver, node, pod).on(node));
        links.push(registered(found, driver, node, pod).on(node));
    }
    attached(found, driver, &nodes, links);
    for node in &nodes {
        links.extend(mounted(found, node).into_iter().map(|link| link.on(node)));
    }
    if let Some(why) = found.pods.why_not() {
        links.push(Link::unknown(POD, why));
        return;
    }
    for pod in found.pods.all() {
        links.push(of_pod(found, driver, pod));
    }
    if found.pods.all().is_empty() {
        links.push(Link::absent(POD, "no pod uses the claim"));
    }
}

fn node_pod(found: &Found, driver: &str, node: &str, pod: Option<&DriverPod>) -> Link {
    const NAME: &str = "node-pod";
    if let Some(why) = found.ours.why_not() {
        return Link::unknown(NAME, why);
    }
    let Some(pod) = pod else {
        let cause = on_node(found, driver, node);
        let text = cause.after("there is no pod of the driver on this node");
        return Link::broken(NAME, &text, &cause.remedy);
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
                    "`kubectl -n {0} delete pod {1}`: the next one registers again. If it stays so, see that `node.kubeletHostPath` of the \
                     chart's values is the folder of this kubelet; `kubectl -n {0} logs {1} --all-containers` says why the kubelet refused it",
                    pod.namespace, pod.name
                ),
                // It registers by itself then.
                None => on_node(found, driver, node).remedy,
            };
            Link::broken(NAME, &text, &remedy)
        }
        Some(Answer::Missing) => {
            let remedy = "`kubectl get node` shows whether the node is still there and ready. If it is not ready, start its kubelet; if it is \
                          gone, delete the pods on it, so that they come up elsewhere";
            Link::broken(NAME, "the node has no CSINode", remedy)
        }
        Some(Answer::Unknown(why)) => Link::unknown(NAME, why),
        None => Link::unknown(NAME, "not looked at"),
    }
}

// === mounts and pods ===

/// The mounts of a node, as the pod of the driver there sees them.
fn mounted(found: &Found, node: &str) -> Vec<Link> {
    let of = |explained: &Explained| {
        let links = explained.links.iter().filter(|link| is_of_node(link));
        let links = links.cloned().map(by_plugin);
        let mut links: Vec<_> = links.map(|link| as_asked(found, link)).collect();
        agree(found, node, &mut links);
        links
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

/// The words of links that are of records of the kubelet, beside a mount that is gone or a pod that waits: the program on
/// the node knows neither.
fn agree(found: &Found, node: &str, links: &mut [Link]) {
    let is_gone = |link: &Link| link.name == "mount" && link.state == State::Broken;
    let is_gone = links.iter().any(is_gone);
    let waiting = found.pods.all().iter().filter(|pod| {
        let spec = pod.spec.as_ref();
        let on = spec.and_then(|spec| spec.node_name.as_deref());
        on == Some(node) && !runs(pod) && pod.metadata.deletion_timestamp.is_none()
    });
    let waiting: Vec<_> = waiting
        .filter_map(|pod| pod.metadata.name.as_deref())
        .collect();
    for link in links {
        match (link.name.as_ref(), link.state) {
            ("staged", State::Holds) if is_gone => {
                link.text = format!("the kubelet's record says so: {}", link.text);
            }
            ("staged", State::Absent) if !waiting.is_empty() => {
                let pods = waiting.join(", ");
                link.text = format!("not staged on this node yet, for the pods that wait: {pods}");
            }
            ("published", State::Absent) if !waiting.is_empty() => {
                let pods = waiting.join(", ");
                link.text = format!("in no pod of this node yet; these wait for it: {pods}");
            }
            _ => {}
        }
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

fn of_pod(found: &Found, driver: &str, pod: &Pod) -> Link {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    let link = if pod.metadata.deletion_timestamp.is_some() {
        let lost = node.map(|node| format!(". {}", lost(node)));
        Link::unknown(POD, &format!("{name} is ending")).or_do(&format!(
            "wait a minute. If it stays so, the events at the end of `kubectl -n {} describe pod {name}` say what it waits for: \"A pod or a volume \
             does not go away\" in docs/troubleshooting.md{}",
            found.namespace,
            lost.unwrap_or_default()
        ))
    } else if runs(pod) {
        Link::holds(POD, &format!("{name} runs"))
    } else {
        waiting(found, driver, pod, name)
    };
    match node {
        Some(node) => link.on(node),
        None => link,
    }
}

/// A pod that was not started: what is said of its volumes, or why it has no node.
fn waiting(found: &Found, driver: &str, pod: &Pod, name: &str) -> Link {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    let uid = pod.metadata.uid.as_deref();
    let mounted = mounted_at(pod);
    let of_pod: Vec<&Event> = found
        .warnings
        .all()
        .iter()
        .filter(|event| {
            let of = &event.involved_object;
            let same = of.uid.is_none() || of.uid.as_deref() == uid;
            let reason = event.reason.as_deref().unwrap_or_default();
            // What was said before it got its node, or its volumes, is over.
            let counts = if OF_VOLUMES.contains(&reason) {
                mounted.is_none_or(|at| time_of(event) > at)
            } else {
                node.is_none() && reason == OF_NODES
            };
            same && of.name.as_deref() == Some(name) && counts
        })
        .collect();
    let volume = found.claim.there().and_then(volume_name);
    let is_sum = |event: &Event| message_of(event).starts_with(SUM);
    let is_of_another = |event: &Event| volume_of(event).is_some_and(|name| Some(name) != volume);
    let all = || of_pod.iter().copied();
    let said = newest(all(), |event| !is_sum(event) && !is_of_another(event))
        .or_else(|| newest(all(), |event| !is_sum(event)))
        .or_else(|| newest(all(), is_sum));
    if let Some(event) = said {
        let text = format!("{name} waits; {}", text_of(event));
        let remedy = if let Some(other) = volume_of(event).filter(|other| Some(*other) != volume) {
            format!(
                "that is another volume of this pod: see to `{other}` first, among the volumes of the pod or as a PersistentVolume. {}",
                remedy_of(event, None)
            )
        } else {
            let on_node =
                node.and_then(|node| ours::node_pod(found.ours.all(), found.serving(driver), node));
            let log = on_node.map(DriverPod::log);
            remedy_of(event, log.as_deref())
        };
        return Link::broken(POD, &text, &remedy);
    }
    if let (None, Some(why)) = (node, unscheduled(pod)) {
        let text = format!("{name} waits; {}", Speaker::Scheduler.says(&why));
        return Link::broken(POD, &text, &Speaker::Scheduler.remedy(&why, None));
    }
    let text = match found.warnings.why_not() {
        Some(why) => format!("{name} does not run yet; its events are {why}"),
        None if mounted.is_some() => {
            format!(
                "{name} does not run yet; its volumes are mounted, and it waits for its containers, such as for an image"
            )
        }
        None => format!("{name} does not run yet, and no event says that a volume is the reason"),
    };
    Link::unknown(POD, &text).or_do(&format!(
        "the events at the end of `kubectl -n {} describe pod {name}` say what it waits for",
        found.namespace
    ))
}

/// The moment at which a pod had all its volumes: the kubelet makes the network of a pod, and pulls its images, after that.
/// None where it has not, and of a kubelet before 1.29, which does not say so.
fn mounted_at(pod: &Pod) -> Option<i64> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let mut conditions = conditions.iter();
    let made =
        conditions.find(|one| one.type_ == "PodReadyToStartContainers" && one.status == "True")?;
    Some(made.last_transition_time.as_ref()?.0.as_second())
}

fn message_of(event: &Event) -> &str {
    event.message.as_deref().unwrap_or_default()
}

/// The volume that a message names.
fn volume_of(event: &Event) -> Option<&str> {
    let (_, rest) = message_of(event).split_once(FOR_VOLUME)?;
    rest.split_once('"').map(|(name, _)| name)
}
