//! The reading: three rounds of questions, each asked at the same time. The claim and what can be found without it; what
//! the claim names; and last `omnibus-csi explain` in the pods of the driver.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::join_all;
use k8s_openapi::api::core::v1::{Event, PersistentVolumeClaim, Pod};
use kube::api::ListParams;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use crate::chain::printable;
use crate::cluster::Cluster;
use crate::found::{Answer, Around, Connections, Explained, Found, nodes_of};
use crate::ours::{self, DriverPod};
use crate::walk::{chosen_node, class_name, controller_of, csi_of, volume_name, without_pod};

/// The time for all commands in pods, which run at the same time. The program in them takes up to 10 s for a storage
/// that is silent, and then says so.
const IN_PODS: Duration = Duration::from_secs(14);
/// The exit codes of a command that gives an answer: all is well, something is broken, something is not known.
const ANSWERS: [u8; 3] = [0, 1, 2];

/// The exit code of `connections` where the configuration has no folder of connections: a driver with one storage.
const NO_FOLDER: u8 = 64;

/// Everything about one claim.
pub(crate) async fn read(cluster: &Cluster, namespace: &str, name: &str) -> Found {
    let (claim, events, around) = tokio::join!(
        cluster.get_in(namespace, name),
        events(cluster, namespace, name),
        around(cluster, namespace),
    );
    Box::pin(led_to(cluster, (namespace, name), (claim, events), around)).await
}

/// Everything about a claim that was listed.
pub(crate) async fn read_listed(
    cluster: &Cluster,
    (namespace, name): (&str, &str),
    claim: PersistentVolumeClaim,
    around: Around,
) -> Found {
    let events = events(cluster, namespace, name).await;
    let read = (Answer::There(claim), events);
    Box::pin(led_to(cluster, (namespace, name), read, around)).await
}

/// The events of a claim.
async fn events(cluster: &Cluster, namespace: &str, name: &str) -> Answer<Vec<Event>> {
    let of_claim = ListParams::default().fields(&format!(
        "involvedObject.kind=PersistentVolumeClaim,involvedObject.name={name}"
    ));
    cluster.list_in(namespace, &of_claim).await
}

/// What can be asked without a claim.
pub(crate) async fn around(cluster: &Cluster, namespace: &str) -> Around {
    let warnings = ListParams::default().fields("involvedObject.kind=Pod,type=Warning");
    let all = ListParams::default();
    let (warnings, pods, drivers, ours, attachments, machines) = tokio::join!(
        cluster.list_in(namespace, &warnings),
        cluster.list_in(namespace, &all),
        cluster.list(),
        cluster.driver_pods(),
        cluster.list(),
        cluster.nodes(),
    );
    Around {
        warnings,
        pods,
        drivers,
        ours,
        attachments,
        machines,
    }
}

/// The same, and where the claim leads.
async fn led_to(
    cluster: &Cluster,
    (namespace, name): (&str, &str),
    (claim, events): (Answer<PersistentVolumeClaim>, Answer<Vec<Event>>),
    around: Around,
) -> Found {
    let pods = around
        .pods
        .map(|pods| pods.into_iter().filter(|pod| uses(pod, name)).collect());
    let mut found = Found {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        claim,
        events,
        warnings: around.warnings,
        class: None,
        volume: None,
        pods,
        drivers: around.drivers,
        ours: around.ours,
        attachments: around.attachments,
        machines: around.machines,
        csi_nodes: BTreeMap::new(),
        workloads: None,
        refusals: Answer::There(Vec::new()),
        bare: BTreeMap::new(),
        connections: None,
        storage: None,
        nodes: BTreeMap::new(),
    };
    if found.claim.there().is_none() {
        return found;
    }
    named(cluster, &mut found).await;
    missing(cluster, &mut found).await;
    explained(cluster, &mut found).await;
    found
}

/// The objects that the claim and its pods name.
async fn named(cluster: &Cluster, found: &mut Found) {
    let claim = found.claim.there();
    let (class, volume) = (claim.and_then(class_name), claim.and_then(volume_name));
    let mut nodes = nodes_of(found.pods.all());
    if let Some(chosen) = chosen_node(found).filter(|node| !nodes.contains(node)) {
        nodes.push(chosen);
    }
    let (class, volume, csi_nodes) = tokio::join!(
        optional(class, |name| cluster.get(name)),
        optional(volume, |name| cluster.get(name)),
        join_all(nodes.iter().map(|node| cluster.get(node))),
    );
    found.csi_nodes = nodes.into_iter().zip(csi_nodes).collect();
    (found.class, found.volume) = (class, volume);
}

/// What is to run the driver's pods, and the nodes without one.
async fn missing(cluster: &Cluster, found: &mut Found) {
    let Some(nodes) = without_pod(found) else {
        return;
    };
    let (workloads, refusals, bare) = tokio::join!(
        cluster.workloads(),
        cluster.refusals(),
        join_all(nodes.iter().map(|node| cluster.get(node))),
    );
    (found.workloads, found.refusals) = (Some(workloads), refusals);
    found.bare = nodes.into_iter().zip(bare).collect();
}

async fn optional<'a, T, F: Future<Output = T>>(
    name: Option<&'a str>,
    ask: impl FnOnce(&'a str) -> F,
) -> Option<T> {
    Some(ask(name?).await)
}

/// The answers of the program in the pods of the controller and of the nodes: of the volume, or of the connections where a
/// volume is to be made.
async fn explained(cluster: &Cluster, found: &mut Found) {
    let until = Instant::now() + IN_PODS;
    let volume = found.volume.as_ref().and_then(Answer::there);
    let Some((driver, handle)) = volume.and_then(csi_of) else {
        found.connections = connections(cluster, found, until).await;
        return;
    };
    let controller = controller_of(found, driver).filter(|pod| pod.runs);
    let all = nodes_of(found.pods.all());
    // Of a pod that has both halves, one answer has all links.
    let (both, nodes): (Vec<_>, Vec<_>) = all
        .into_iter()
        .filter_map(|node| {
            let pod = ours::node_pod(found.ours.all(), found.serving(driver), &node)?;
            pod.runs.then_some((node, pod))
        })
        .partition(|(_, pod)| controller.is_some_and(|controller| controller.name == pod.name));
    let of_nodes = nodes
        .iter()
        .map(|(_, pod)| explain(cluster, pod, (driver, handle), "--node-only", until));
    let of_storage = async {
        let pod = controller?;
        Some(explain(cluster, pod, (driver, handle), "", until).await)
    };
    let (of_storage, of_nodes) = tokio::join!(of_storage, join_all(of_nodes));
    let nodes = nodes.iter().map(|(node, _)| node.clone()).zip(of_nodes);
    let both = both.iter().map(|(node, _)| (node.clone(), Answer::Missing));
    let nodes = nodes.chain(both).collect();
    (found.storage, found.nodes) = (of_storage, nodes);
}

/// `omnibus-csi connections` in the controller of the claim's class.
async fn connections(
    cluster: &Cluster,
    found: &Found,
    until: Instant,
) -> Option<Answer<Connections>> {
    let class = found.class.as_ref().and_then(Answer::there)?;
    let pod = controller_of(found, &class.provisioner).filter(|pod| pod.runs)?;
    let mut command = pod.command("connections");
    command.push("--json".to_owned());
    Some(ask(cluster, pod, &command, Some(NO_FOLDER), until).await)
}

/// `omnibus-csi explain` in one pod, of a handle of this driver: the own name or a legacy one.
async fn explain(
    cluster: &Cluster,
    pod: &DriverPod,
    (driver, handle): (&str, &str),
    more: &str,
    until: Instant,
) -> Answer<Explained> {
    let mut command = pod.command("explain");
    command.push("--json".to_owned());
    command.push(format!("--kubelet-dir={}", pod.kubelet_dir));
    if !more.is_empty() {
        command.push(more.to_owned());
    } else if driver != pod.driver {
        command.push(format!("--csi-name={driver}"));
    }
    // What begins with a dash is a handle, too.
    command.extend(["--".to_owned(), handle.to_owned()]);
    ask(cluster, pod, &command, None, until).await
}

/// The JSON that a command in a pod prints. `none` is the exit code with which it says that there is nothing.
async fn ask<T: DeserializeOwned>(
    cluster: &Cluster,
    pod: &DriverPod,
    command: &[String],
    none: Option<u8>,
    until: Instant,
) -> Answer<T> {
    let at = pod.shown();
    let output = match tokio::time::timeout_at(until, cluster.run(pod, command)).await {
        Ok(Ok(output)) => output,
        Ok(Err(why)) => return Answer::Unknown(format!("{why} ({at})")),
        Err(_) => {
            let text = format!(
                "not looked at: {at} did not answer in {} s",
                IN_PODS.as_secs()
            );
            return Answer::Unknown(text);
        }
    };
    match serde_json::from_slice(&output.stdout) {
        Ok(said) if ANSWERS.contains(&output.code) => Answer::There(said),
        _ if none == Some(output.code) => Answer::Missing,
        _ => {
            let said = printable(&String::from_utf8_lossy(&output.stderr));
            let command = command.get(..2).unwrap_or_default().join(" ");
            Answer::Unknown(format!(
                "not looked at: `{command}` in {at} ended with {}: {said}",
                output.code
            ))
        }
    }
}

/// Whether a pod that has not ended uses the claim, by its name or as a volume of its own.
fn uses(pod: &Pod, claim: &str) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    if matches!(phase, Some("Succeeded" | "Failed")) {
        return false;
    }
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_ref());
    volumes.into_iter().flatten().any(|volume| {
        let named = volume.persistent_volume_claim.as_ref();
        let own = volume
            .ephemeral
            .as_ref()
            .map(|_| format!("{name}-{}", volume.name));
        named.is_some_and(|named| named.claim_name == claim) || own.as_deref() == Some(claim)
    })
}
