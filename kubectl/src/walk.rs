//! The walk from a claim to its pods, over what was read. It asks nothing, so that each fault can be tried without a
//! cluster.
//!
//! A cause comes before its effects: the class before the volume that is not made, the controller and the storage before
//! an attachment that fails. So the first broken link is the one to repair.

use k8s_openapi::api::core::v1::{Event, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;

use class::{class, connection, is_ours, not_known_whether};

use crate::chain::Link;
use crate::found::{Answer, Found, nodes_of};
use crate::ours::{self, LABEL, LABEL_VALUE, unscheduled};

mod class;
mod node;
#[cfg(test)]
mod tests;

/// The reason of the event that the provisioner leaves while it makes a volume.
const BEING_MADE: &str = "Provisioning";

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
    links.extend(storage(found));
    links.extend(size(claim));
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
    let mut nodes = nodes_of(found.pods.all());
    let chosen = found.claim.there().and_then(|claim| {
        let annotations = claim.metadata.annotations.as_ref()?;
        annotations.get("volume.kubernetes.io/selected-node")
    });
    nodes.extend(chosen.cloned());
    let volume = found.volume.as_ref().and_then(Answer::there);
    nodes.extend(volume.into_iter().flat_map(places));
    let all = found.ours.all();
    // Values of a topology that are no names of nodes, such as zones.
    nodes.retain(|node| all.iter().any(|pod| pod.node.as_ref() == Some(node)));
    ours::controller_for(all, found.serving(driver), &nodes)
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
    let wanted = terms.flat_map(|term| term.match_expressions.iter().flatten());
    wanted
        .flat_map(|wanted| wanted.values.iter().flatten().cloned())
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
                "wait; `kubectl describe pvc` names the finalizers that it waits for".to_owned(),
            )
        } else {
            (
                "it is being deleted, and waits for the pods that use it",
                format!("delete the pods that use it: {}", pods.join(", ")),
            )
        };
        return (Link::broken("claim", text, &remedy), Some(claim));
    }
    let phase = claim
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    let text = format!("{namespace}/{name}: {}", phase.unwrap_or("new"));
    (Link::holds("claim", &text), Some(claim))
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
        let text = format!("no pod of the controller of `{driver}` is there");
        let remedy = format!(
            "`kubectl get deploy,ds -A -l {LABEL}={LABEL_VALUE}` shows whether it is scaled to 0; `helm upgrade` puts back what was removed"
        );
        return Some(Link::broken("controller", &text, &remedy));
    };
    Some(match &pod.sick {
        Some(sick) => Link::broken("controller", &sick.text, &sick.remedy),
        None => Link::holds("controller", &pod.well()).with("restarts", pod.restarts),
    })
}

// === the volume ===

/// A claim that has no volume: what the provisioner says, or why it was not asked.
fn unbound(found: &Found, claim: &PersistentVolumeClaim, class: Option<&StorageClass>) -> Link {
    let events = found.events.all();
    let newest = |is: &dyn Fn(&Event) -> bool| {
        let fitting = events.iter().filter(|event| is(event));
        fitting.max_by_key(|event| time_of(event))
    };
    let waits = class.and_then(|class| class.volume_binding_mode.as_deref())
        == Some("WaitForFirstConsumer");
    let chosen = claim.metadata.annotations.as_ref();
    let chosen = chosen.is_some_and(|all| all.contains_key("volume.kubernetes.io/selected-node"));
    let warning = newest(&|event| event.type_.as_deref() == Some("Warning"));
    if let Some(event) = warning {
        let remedy = "do what the message says: the provisioner asks again by itself. `kubectl omnibus check` looks at the \
                      configuration and the storage";
        return Link::broken("bound", &text_of(event), remedy);
    }
    if waits && !chosen {
        return not_placed(found);
    }
    if let Some(why) = found.events.why_not() {
        return Link::unknown("bound", &format!("it has no volume; its events are {why}"));
    }
    let being_made = newest(&|event| event.reason.as_deref() == Some(BEING_MADE));
    if let Some(event) = being_made {
        return Link::unknown(
            "bound",
            &format!("its volume is being made: {}", text_of(event)),
        );
    }
    let remedy = match class.and_then(|class| controller_of(found, &class.provisioner)) {
        Some(pod) => format!(
            "`kubectl -n {} logs {} -c csi-provisioner` says whether the provisioner sees it",
            pod.namespace, pod.name
        ),
        None => "make a PersistentVolume that fits, or a claim with a class".to_owned(),
    };
    Link::broken(
        "bound",
        "it has no volume, and no event says that one is being made",
        &remedy,
    )
}

/// A claim whose class waits for a pod and its node.
fn not_placed(found: &Found) -> Link {
    if let Some(why) = found.pods.why_not() {
        return Link::unknown(
            "bound",
            &format!("it waits for a pod with a node; the pods are {why}"),
        );
    }
    let pods = found.pods.all();
    let Some(pod) = pods.first() else {
        let text = "its class waits for the first pod (WaitForFirstConsumer), and no pod uses it";
        return Link::absent("bound", text)
            .or_do("nothing is wrong: start a pod that uses the claim");
    };
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    match pods.iter().find_map(unscheduled) {
        Some(why) => {
            let remedy = format!(
                "make room for the pod: `kubectl -n {} describe pod {name}` names what each node lacks",
                found.namespace
            );
            Link::broken(
                "bound",
                &format!("it waits for a node for the pod {name}: {why}"),
                &remedy,
            )
        }
        None => Link::unknown(
            "bound",
            &format!("it waits until the pod {name} gets a node"),
        ),
    }
}

/// The volume, and its driver if it is ours.
fn persistent_volume<'a>(
    found: &'a Found,
    claim: &PersistentVolumeClaim,
) -> (Link, Option<&'a str>) {
    const NAME: &str = "persistent-volume";
    let broken = |text: &str, remedy: &str| (Link::broken(NAME, text, remedy), None);
    let name = volume_name(claim).unwrap_or_default();
    let volume = match &found.volume {
        Some(Answer::There(volume)) => volume,
        Some(Answer::Unknown(why)) => return (Link::unknown(NAME, why), None),
        Some(Answer::Missing) | None => {
            let text = format!("`{name}`, which the claim is bound to, is gone");
            let remedy = "its data may still be on the storage: make the PersistentVolume again with its handle, or delete the claim";
            return broken(&text, remedy);
        }
    };
    let Some((driver, handle)) = csi_of(volume) else {
        return broken(
            &format!("`{name}` is no volume of a CSI driver"),
            "this program follows volumes of omnibus-csi alone",
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
                known(Link::unknown(NAME, &not_known_whether(found, &text))),
                None,
            );
        }
        Some(true) => {}
    }
    let owner = volume
        .spec
        .as_ref()
        .and_then(|spec| spec.claim_ref.as_ref());
    let owner = owner.and_then(|owner| owner.uid.as_ref());
    let phase = volume
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    let link = if owner.is_some() && owner != claim.metadata.uid.as_ref() {
        let remedy = "it was bound to a claim that is gone: if its data is meant for this one, clear `spec.claimRef.uid` of the volume";
        Link::broken(NAME, &format!("`{name}` belongs to another claim"), remedy)
    } else if volume.metadata.deletion_timestamp.is_some() {
        let remedy = "make a new claim, and restore it from a snapshot or a backup; `kubectl describe pv` says what its deletion waits for";
        Link::broken(NAME, &format!("`{name}` is being deleted"), remedy)
    } else if phase == Some("Failed") {
        let why = volume
            .status
            .as_ref()
            .and_then(|status| status.message.as_deref());
        let text = format!(
            "`{name}` has failed: {}",
            why.unwrap_or("no reason is given")
        );
        Link::broken(
            NAME,
            &text,
            "do what the message says; `kubectl describe pv` has the events",
        )
    } else {
        Link::holds(NAME, &text)
    };
    (known(link), Some(driver))
}

/// The names of links that are on a node.
const OF_NODES: [&str; 5] = ["staged", "session", "device", "mount", "published"];

fn is_of_node(link: &Link) -> bool {
    OF_NODES.contains(&link.name.as_ref())
}

/// The controller's links of the storage. Its remedies name its own program, which is reached by this one.
fn storage(found: &Found) -> Vec<Link> {
    match &found.storage {
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
    }
}

/// The link for people outside of the pod: control characters gone, and the commands those of this program.
fn by_plugin(mut link: Link) -> Link {
    let change = |text: &str| {
        let mut words = Vec::new();
        for word in crate::chain::printable(text).split(' ') {
            if !word.starts_with("--driver-config-file=") {
                words.push(word.replace("`omnibus-csi", "`kubectl omnibus"));
            } else if let Some(end) = word.strip_suffix('`').and(words.last_mut()) {
                end.push('`');
            }
        }
        words.join(" ")
    };
    link.name = crate::chain::printable(&link.name).into();
    link.node = link.node.as_deref().map(crate::chain::printable);
    link.text = crate::chain::printable(&link.text);
    link.remedy = link.remedy.as_deref().map(change);
    link
}

/// A growth that failed. No link where none is going on.
fn size(claim: &PersistentVolumeClaim) -> Option<Link> {
    let conditions = claim.status.as_ref()?.conditions.as_ref()?;
    conditions
        .iter()
        .filter(|one| one.status == "True")
        .find_map(|one| {
            let message = one.message.as_deref().unwrap_or("no reason is given");
            match one.type_.as_str() {
                "ControllerResizeError" | "NodeResizeError" => {
                    let remedy = "do what the message says: the resizer asks again by itself";
                    Some(Link::broken(
                        "size",
                        &format!("it does not grow: {message}"),
                        remedy,
                    ))
                }
                "FileSystemResizePending" => {
                    let text = "it has grown on the storage, and its filesystem grows on a node";
                    Some(Link::absent("size", text).or_do("start a pod that uses the claim"))
                }
                _ => None,
            }
        })
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

fn text_of(event: &Event) -> String {
    let reason = event.reason.as_deref().unwrap_or("Event");
    format!("{reason}: {}", event.message.as_deref().unwrap_or_default())
}
