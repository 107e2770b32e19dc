//! The walk from a claim to its pods, over what was read. It asks nothing, so that each fault can be tried without a
//! cluster.
//!
//! A cause comes before its effects: the class before the volume that is not made, the controller and the storage before
//! an attachment that fails. So the first broken link is the one to repair.

use std::time::{SystemTime, UNIX_EPOCH};

use k8s_openapi::api::core::v1::{Event, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::core::ObjectMeta;

use class::{class, connection, is_ours, not_known_whether};
use volume::{persistent_volume, size, unbound};

use crate::advice::{self, Speaker};
use crate::chain::{Link, printable};
use crate::found::{Answer, Found, nodes_of};
use crate::ours;

mod attach;
mod class;
mod missing;
mod modes;
mod node;
mod place;
#[cfg(test)]
mod tests;
mod volume;

/// All links, up to where nothing more can be there.
pub(crate) fn walk(found: &Found) -> Vec<Link> {
    let mut links = Vec::new();
    let (link, claim) = claim(found);
    links.push(link);
    let Some(claim) = claim else {
        return links;
    };
    let bound = volume_name(claim).is_some();
    let (link, class) = class(found, claim, bound);
    links.extend(link);
    let volume = found.volume.as_ref().and_then(Answer::there);
    let driver = driver_of(volume).or(class.map(|class| class.provisioner.as_str()));
    links.extend(driver.and_then(|driver| controller(found, driver)));
    if !bound {
        links.extend(class.and_then(|class| connection(found, class)));
        links.push(unbound(found, claim, class));
        return links;
    }
    let (link, driver) = persistent_volume(found, claim);
    links.push(link);
    let Some(driver) = driver else {
        return links;
    };
    links.extend(storage(found, driver));
    links.extend(size(found, claim));
    node::links(found, driver, &mut links);
    links
}

/// Whether the claim is known to be of no driver of omnibus-csi, by its volume or else by its class.
pub(crate) fn is_of_others(found: &Found) -> bool {
    let volume = found.volume.as_ref().and_then(Answer::there);
    let class = found.class.as_ref().and_then(Answer::there);
    match volume {
        Some(volume) => {
            csi_of(volume).is_none_or(|(driver, _)| is_ours(found, driver) == Some(false))
        }
        None => class.is_some_and(|class| is_ours(found, &class.provisioner) == Some(false)),
    }
}

/// The volume that a claim names.
pub(crate) fn volume_name(claim: &PersistentVolumeClaim) -> Option<&str> {
    let name = claim.spec.as_ref()?.volume_name.as_deref();
    name.filter(|name| !name.is_empty())
}

/// The class that a claim names; an empty name is that of no class.
pub(crate) fn class_name(claim: &PersistentVolumeClaim) -> Option<&str> {
    let name = claim.spec.as_ref()?.storage_class_name.as_deref();
    name.filter(|name| !name.is_empty())
}

/// The driver of a volume, and its handle.
pub(crate) fn csi_of(volume: &PersistentVolume) -> Option<(&str, &str)> {
    let csi = volume.spec.as_ref()?.csi.as_ref()?;
    Some((&csi.driver, &csi.volume_handle))
}

fn driver_of(volume: Option<&PersistentVolume>) -> Option<&str> {
    volume.and_then(csi_of).map(|(driver, _)| driver)
}

/// The pod to ask about the storage: where there is a controller on each node, that of the volume's node.
pub(crate) fn controller_of<'a>(found: &'a Found, driver: &'a str) -> Option<&'a ours::DriverPod> {
    let (all, own) = (found.ours.all(), found.serving(driver));
    let (mut nodes, _) = homes(found);
    if found.volume.is_none() {
        // The link `bound` says that a node was chosen which has none.
        nodes.retain(|node| ours::node_pod(all, own, node).is_some());
    }
    ours::controller_for(all, own, &nodes)
}

/// The node that the scheduler chose for a claim.
pub(crate) fn chosen_node(found: &Found) -> Option<String> {
    let annotations = found.claim.there()?.metadata.annotations.as_ref()?;
    let node = annotations.get("volume.kubernetes.io/selected-node")?;
    (!node.is_empty()).then(|| node.clone())
}

/// The nodes whose controller serves a claim, where each node has one, with the words for them.
fn homes(found: &Found) -> (Vec<String>, &'static str) {
    let (pods, machines) = (found.ours.all(), found.machines.all());
    // Values of a topology may be no names of nodes, such as zones.
    let is_node = |node: &String| {
        let named = |one: &ObjectMeta| one.name.as_ref() == Some(node);
        pods.iter().any(|pod| pod.node.as_ref() == Some(node))
            || machines.iter().any(|one| named(&one.metadata))
    };
    let volume = found.volume.as_ref().and_then(Answer::there);
    let mut nodes: Vec<_> = volume.into_iter().flat_map(places).collect();
    nodes.retain(is_node);
    if !nodes.is_empty() {
        return (nodes, "the node of the volume");
    }
    if let Some(node) = chosen_node(found).filter(is_node) {
        return (vec![node], "the node that was chosen for the claim");
    }
    let mut nodes = nodes_of(found.pods.all());
    nodes.retain(is_node);
    (nodes, "the node of its pod")
}

/// The nodes that need a pod of the driver and have none; no list where no pod is missing.
pub(crate) fn without_pod(found: &Found) -> Option<Vec<String>> {
    let volume = found.volume.as_ref().and_then(Answer::there);
    let class = found.class.as_ref().and_then(Answer::there);
    let driver = driver_of(volume).or(class.map(|class| class.provisioner.as_str()))?;
    let all = found.ours.there()?;
    if is_ours(found, driver) == Some(false) {
        return None;
    }
    let own = found.serving(driver);
    let is_controlled = all.iter().any(|pod| pod.driver == own && pod.is_controller);
    let mut nodes = nodes_of(found.pods.all());
    if !is_controlled || ours::is_on_nodes(all, own) {
        nodes.extend(homes(found).0);
    }
    nodes.retain(|node| ours::node_pod(all, own, node).is_none());
    nodes.sort();
    nodes.dedup();
    (!is_controlled || !nodes.is_empty()).then_some(nodes)
}

/// The values of the topology of a volume. Where storage is on a node, one is its name.
fn places(volume: &PersistentVolume) -> Vec<String> {
    let affinity = volume
        .spec
        .as_ref()
        .and_then(|spec| spec.node_affinity.as_ref());
    let terms = affinity.and_then(|affinity| affinity.required.as_ref());
    let terms = terms
        .into_iter()
        .flat_map(|required| &required.node_selector_terms);
    let wanted = terms.flat_map(|term| {
        let fields = term.match_fields.iter().flatten();
        let names = fields.filter(|one| one.key == "metadata.name");
        term.match_expressions.iter().flatten().chain(names)
    });
    // The values of others, such as `NotIn`, are no places of the volume.
    let wanted = wanted.filter(|one| one.operator == "In");
    wanted
        .flat_map(|one| one.values.iter().flatten().cloned())
        .collect()
}

fn claim(found: &Found) -> (Link, Option<&PersistentVolumeClaim>) {
    let (namespace, name) = (&found.namespace, &found.name);
    let claim = match &found.claim {
        Answer::There(claim) => claim,
        Answer::Missing => {
            let text = format!("there is no claim `{name}` in the namespace {namespace}");
            let remedy = "`kubectl get pvc -A` lists all claims: name its namespace with -n";
            return (Link::broken("claim", &text, remedy), None);
        }
        Answer::Unknown(why) => return (Link::unknown("claim", why), None),
    };
    if claim.metadata.deletion_timestamp.is_some() {
        let pods = found.pods.all().iter();
        let pods: Vec<_> = pods
            .filter_map(|pod| pod.metadata.name.as_deref())
            .collect();
        let (text, remedy) = if pods.is_empty() {
            (
                "it is being deleted",
                format!(
                    "wait a minute. If it stays so, `kubectl -n {namespace} get pvc {name} -o yaml` has what it waits for under `finalizers`: with \
                     kubernetes.io/pvc-protection a pod that has not ended, which `kubectl -n {namespace} describe pvc {name}` names as \
                     `Used By`; another is of the program in its name"
                ),
            )
        } else {
            (
                "it is being deleted, and waits for the pods that use it",
                format!(
                    "delete the pods that use it: `kubectl -n {namespace} delete pod {}`; what makes them, such as a Deployment, has to be scaled \
                     to 0, else new ones come",
                    pods.join(" ")
                ),
            )
        };
        return (Link::broken("claim", text, &remedy), Some(claim));
    }
    let phase = claim
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    let text = format!("{namespace}/{name}: {}", phase.unwrap_or("new"));
    let link = if matches!(phase, None | Some("Pending")) {
        // It is there, and that is not what was asked for.
        Link::absent("claim", &format!("{text}, not bound to a volume"))
    } else {
        Link::holds("claim", &text)
    };
    (link, Some(claim))
}

// === the controller ===

/// The pod of the controller. None where the driver is known to be another.
fn controller(found: &Found, driver: &str) -> Option<Link> {
    let known = is_ours(found, driver);
    if known == Some(false) {
        return None;
    }
    if let Some(why) = found.ours.why_not() {
        return Some(Link::unknown("controller", why));
    }
    let Some(pod) = controller_of(found, driver) else {
        if known.is_none() {
            let text = not_known_whether(found, driver);
            return Some(Link::unknown("controller", &text));
        }
        let text = format!("no pod of the controller of `{driver}` is");
        let (nodes, of) = homes(found);
        let on_nodes = ours::is_on_nodes(found.ours.all(), found.serving(driver));
        let (text, cause) = match nodes.first().filter(|_| on_nodes) {
            Some(node) => (
                format!("{text} on {node}, {of}"),
                missing::on_node(found, driver, node),
            ),
            None => (format!("{text} there"), missing::anywhere(found, driver)),
        };
        return Some(Link::broken(
            "controller",
            &cause.after(&text),
            &cause.remedy,
        ));
    };
    Some(match &pod.sick {
        Some(sick) => Link::broken("controller", &sick.text, &sick.remedy),
        None => Link::holds("controller", &pod.well()).with("restarts", pod.restarts),
    })
}

// === what the program in the pods says ===

/// The names of links that are on a node.
const OF_NODES: [&str; 5] = ["staged", "session", "device", "mount", "published"];

fn is_of_node(link: &Link) -> bool {
    OF_NODES.contains(&link.name.as_ref())
}

/// The controller's links of the storage. Its remedies name its own program, which is reached by this one.
fn storage(found: &Found, driver: &str) -> Vec<Link> {
    let links: Vec<Link> = match &found.storage {
        Some(Answer::There(explained)) => {
            let links = explained.links.iter().filter(|link| !is_of_node(link));
            links.cloned().map(by_plugin).collect()
        }
        Some(Answer::Unknown(why)) => vec![Link::unknown("storage", why)],
        Some(Answer::Missing) | None => {
            vec![Link::unknown(
                "storage",
                "not looked at: no pod of the controller can be asked",
            )]
        }
    };
    let links = links.into_iter();
    links.map(|link| seen_from(found, driver, link)).collect()
}

/// The links that are the same wherever a controller is.
const OF_ANY_NODE: [&str; 2] = ["handle", "connection"];

/// A link of the storage with the node of the controller that looked, where each node has one: it sees the storage of its
/// node alone.
fn seen_from(found: &Found, driver: &str, link: Link) -> Link {
    let pod = controller_of(found, driver);
    let pod = pod.filter(|pod| ours::is_on_nodes(found.ours.all(), &pod.driver));
    match pod.and_then(|pod| pod.node.as_deref()) {
        Some(node) if !OF_ANY_NODE.contains(&link.name.as_ref()) => link.on(node),
        _ => link,
    }
}

/// The link for people outside of the pod: control characters gone, and the commands those of this program.
fn by_plugin(mut link: Link) -> Link {
    link.name = printable(&link.name).into();
    link.node = link.node.as_deref().map(printable);
    link.text = printable(&link.text);
    link.remedy = link.remedy.as_deref().map(advice::by_plugin);
    link
}

// === times ===

/// The seconds within which a controller of Kubernetes may not have seen a change yet.
const YOUNG: u64 = 30;
/// The beginning of a remedy for what may come by itself.
const WAIT: &str = "wait a minute. If it stays so, ";

/// Whether something was changed just now. Clocks may differ a little.
fn is_young(changed: Option<&Time>) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |since| since.as_secs());
    changed
        .and_then(|time| u64::try_from(time.0.as_second()).ok())
        .is_some_and(|changed| changed.abs_diff(now) < YOUNG)
}

// === events ===

/// The moment of an event, to find the newest. Some writers fill in only one of the fields.
fn time_of(event: &Event) -> i64 {
    let series = event
        .series
        .as_ref()
        .and_then(|series| series.last_observed_time.as_ref());
    let precise = series
        .or(event.event_time.as_ref())
        .map(|time| time.0.as_second());
    let last = event.last_timestamp.as_ref().map(|time| time.0.as_second());
    precise.max(last).unwrap_or_default()
}

/// The words of an event, with who says it.
fn text_of(event: &Event) -> String {
    let reason = event.reason.as_deref().unwrap_or("Event");
    let message = event.message.as_deref().unwrap_or_default();
    Speaker::of(event).says(&format!("{reason}: {message}"))
}

/// The step that an event asks for. `log` as of [`Speaker::remedy`].
fn remedy_of(event: &Event, log: Option<&str>) -> String {
    let message = event.message.as_deref().unwrap_or_default();
    Speaker::of(event).remedy(message, log)
}

/// The newest of the events that fit.
fn newest<'a>(
    events: impl IntoIterator<Item = &'a Event>,
    is: impl Fn(&Event) -> bool,
) -> Option<&'a Event> {
    let fitting = events.into_iter().filter(|event| is(event));
    fitting.max_by_key(|event| time_of(event))
}
