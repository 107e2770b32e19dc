//! The attachments of a volume: on the nodes of its pods, and on others.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::storage::v1::VolumeAttachment;

use super::{WAIT, controller_of, is_young, volume_name};
use crate::advice::Speaker;
use crate::chain::Link;
use crate::found::{Answer, Found};
use crate::ours::DriverPod;

const NAME: &str = "attached";

/// The attachments of the volume, on the nodes of its pods and on others.
pub(super) fn attached(found: &Found, driver: &str, nodes: &[String], links: &mut Vec<Link>) {
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
        let log = controller_of(found, driver).map(DriverPod::log);
        links.push(attachment(one, is_used, log.as_deref()).on(node));
    }
    // A driver that does not attach has none, and whether this is one may not be known.
    if let (Some(why), true) = (found.drivers.why_not(), all.is_empty()) {
        links.push(Link::unknown(NAME, why));
        return;
    }
    let others: Vec<_> = all.iter().map(|one| one.spec.node_name.as_str()).collect();
    for node in nodes.iter().filter(|node| !others.contains(&node.as_str())) {
        links.push(not_attached(found, node, &others).on(node));
    }
    if all.is_empty() && nodes.is_empty() {
        links.push(Link::absent(
            NAME,
            "it is attached to no node, and no pod on a node uses it",
        ));
    }
}

/// A node of pods without an attachment. `others` are the nodes that have one.
fn not_attached(found: &Found, node: &str, others: &[&str]) -> Link {
    let is_here = |pod: &&Pod| {
        let spec = pod.spec.as_ref();
        spec.and_then(|spec| spec.node_name.as_deref()) == Some(node)
    };
    let pods = found.pods.all().iter().filter(is_here);
    let staying: Vec<_> = pods
        .filter(|pod| pod.metadata.deletion_timestamp.is_none())
        .collect();
    if staying.is_empty() {
        return Link::absent(
            NAME,
            "it is not attached here, and the pods that use it here are ending",
        );
    }
    let mut created = staying
        .iter()
        .map(|pod| pod.metadata.creation_timestamp.as_ref());
    let is_new = created.all(is_young);
    if !others.is_empty() && !is_for_many(found) {
        let lost: Vec<_> = others.iter().map(|node| lost(node)).collect();
        let remedy = format!(
            "delete the pods that use it on the other, and what still makes them there: a ReadWriteOnce volume is on one node at a time. {}",
            lost.join(". ")
        );
        let text = format!("it is not attached here, but to {}", others.join(", "));
        return if is_new {
            Link::unknown(NAME, &text).or_do(&format!("{WAIT}{remedy}"))
        } else {
            Link::broken(NAME, &text, &remedy)
        };
    }
    let remedy = format!(
        "wait a minute: the controller manager of Kubernetes makes it. If it stays so, the events at the end of `kubectl -n {} describe pod` say \
         what it waits for; if there are none, see that it runs: `kubectl -n kube-system get pods`",
        found.namespace
    );
    let missing = "there is no VolumeAttachment for this node";
    if is_new {
        Link::unknown(NAME, missing).or_do(&remedy)
    } else {
        Link::broken(NAME, missing, &remedy)
    }
}

/// Whether several nodes may have the volume at once.
fn is_for_many(found: &Found) -> bool {
    let volume = found.volume.as_ref().and_then(Answer::there);
    let spec = volume.and_then(|volume| volume.spec.as_ref());
    let modes = spec.and_then(|spec| spec.access_modes.as_ref());
    let mut modes = modes.into_iter().flatten();
    modes.any(|mode| mode == "ReadWriteMany" || mode == "ReadOnlyMany")
}

/// The step for a node that does not come back.
pub(super) fn lost(node: &str) -> String {
    format!(
        "If {node} is lost for good: be sure that it does not run, then `kubectl taint node {node} \
         node.kubernetes.io/out-of-service=nodeshutdown:NoExecute`, and remove the taint when it was restarted: \"A node is lost\" in \
         docs/outages.md"
    )
}

fn attachment(one: &VolumeAttachment, is_used: bool, log: Option<&str>) -> Link {
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
    let deleted = one.metadata.deletion_timestamp.as_ref();
    let link = if detach.is_none() && is_young(deleted) {
        let remedy = format!(
            "{WAIT}see that the container `external-attacher` of the controller's pod runs"
        );
        Link::unknown(NAME, "it is being detached").or_do(&remedy)
    } else if deleted.is_some() {
        let (text, remedy) = match detach {
            Some(why) => (
                format!("it is being detached, and stays; {}", Speaker::Attacher.says(&why)),
                Speaker::Attacher.remedy(&why, log),
            ),
            None => (
                "it is being detached, and stays".to_owned(),
                "wait a minute. If it stays so, see that the container `external-attacher` of the controller's pod runs".to_owned(),
            ),
        };
        Link::broken(
            NAME,
            &text,
            &format!("{remedy}. {}", lost(&one.spec.node_name)),
        )
    } else if let Some(why) = attach {
        let said = Speaker::Attacher.says(&why);
        let text = format!("it cannot be attached; {said}");
        Link::broken(NAME, &text, &Speaker::Attacher.remedy(&why, log))
    } else if status.is_some_and(|status| status.attached) {
        let text = if is_used {
            "it is attached"
        } else {
            "it is attached, and no pod uses it here"
        };
        Link::holds(NAME, text)
    } else {
        let remedy = "wait a minute. If it stays so, see that the container `external-attacher` of the controller's pod runs: the last lines of its \
                      log say what it waits for";
        Link::unknown(NAME, "it is being attached").or_do(remedy)
    };
    link.with("attachment", name)
}
