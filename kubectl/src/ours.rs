//! The pods of omnibus-csi: found by a label that its chart gives, known by the arguments of their program.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod};
use k8s_openapi::api::storage::v1::CSIDriver;

use crate::advice::Speaker;

/// The label of everything that the chart makes.
pub(crate) const LABEL: &str = "app.kubernetes.io/part-of";
pub(crate) const LABEL_VALUE: &str = "omnibus-csi";
/// The label for the half that a pod is for. A controller may have the node's half as well, to mount for itself.
const COMPONENT: &str = "app.kubernetes.io/component";
/// The label for the release that an object is of, and what helm adds for its namespace.
const RELEASE: &str = "app.kubernetes.io/instance";
const RELEASE_NAMESPACE: &str = "meta.helm.sh/release-namespace";
/// The container of the program in the pods of the chart.
const CONTAINER: &str = "csi-driver";
const KUBELET_DIR: &str = "/var/lib/kubelet";

/// One pod of the driver.
#[derive(Debug, Clone)]
pub(crate) struct DriverPod {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) node: Option<String>,
    pub(crate) container: String,
    /// The name of the driver in the cluster.
    pub(crate) driver: String,
    /// Its release of the chart.
    release: Option<String>,
    pub(crate) config_file: String,
    pub(crate) kubelet_dir: String,
    pub(crate) is_controller: bool,
    pub(crate) is_node: bool,
    /// The container of the provisioner, if it has one.
    pub(crate) provisioner: Option<String>,
    /// The port of the console, if it is on.
    pub(crate) console: Option<u16>,
    pub(crate) restarts: i32,
    /// Whether the program itself runs, so that a command can be run beside it.
    pub(crate) runs: bool,
    /// Why the pod cannot do its work.
    pub(crate) sick: Option<Sick>,
}

/// The illness of a pod.
#[derive(Debug, Clone)]
pub(crate) struct Sick {
    pub(crate) text: String,
    pub(crate) remedy: String,
}

/// The pod to ask about a volume of this driver: that of a Deployment, or where there is a controller on each node, one
/// of these nodes. One that is ready is preferred.
pub(crate) fn controller_for<'a>(
    pods: &'a [DriverPod],
    driver: &str,
    nodes: &[String],
) -> Option<&'a DriverPod> {
    let mut all: Vec<_> = pods
        .iter()
        .filter(|pod| pod.driver == driver && pod.is_controller)
        .collect();
    if !nodes.is_empty() && is_on_nodes(pods, driver) {
        all.retain(|pod| pod.node.as_ref().is_some_and(|node| nodes.contains(node)));
    }
    all.into_iter().min_by_key(|pod| pod.sick.is_some())
}

/// Whether each node has a controller of the driver, which serves that node alone.
pub(crate) fn is_on_nodes(pods: &[DriverPod], driver: &str) -> bool {
    let mut all = pods
        .iter()
        .filter(|pod| pod.driver == driver && pod.is_controller)
        .peekable();
    all.peek().is_some() && all.all(|pod| pod.is_node)
}

/// The pod of the driver's node half on a node.
pub(crate) fn node_pod<'a>(
    pods: &'a [DriverPod],
    driver: &str,
    node: &str,
) -> Option<&'a DriverPod> {
    let here = pods
        .iter()
        .filter(|pod| pod.driver == driver && pod.is_node && pod.node.as_deref() == Some(node));
    // While a pod is replaced, both are there.
    here.min_by_key(|pod| pod.sick.is_some())
}

/// The own name of the driver that serves this one: another where it is a legacy name of a release.
pub(crate) fn serving<'a>(
    pods: &'a [DriverPod],
    drivers: &[CSIDriver],
    driver: &'a str,
) -> &'a str {
    if pods.iter().any(|pod| pod.driver == driver) {
        return driver;
    }
    let object = drivers
        .iter()
        .find(|one| one.metadata.name.as_deref() == Some(driver));
    let of =
        |all: Option<&'_ BTreeMap<String, String>>, key| all.and_then(|all| all.get(key)).cloned();
    let release = object.and_then(|one| of(one.metadata.labels.as_ref(), RELEASE));
    let namespace = object.and_then(|one| of(one.metadata.annotations.as_ref(), RELEASE_NAMESPACE));
    let pod = pods.iter().find(|pod| {
        release.is_some()
            && pod.release == release
            && namespace.as_ref().is_none_or(|name| *name == pod.namespace)
    });
    pod.map_or(driver, |pod| &pod.driver)
}

// === impl DriverPod ===

impl DriverPod {
    /// A pod with the label, if the program serves in it.
    pub(crate) fn of(pod: &Pod) -> Option<Self> {
        let spec = pod.spec.as_ref()?;
        let serves = |container: &&Container| flag(&words(container), "csi-name").is_some();
        let named = |container: &&Container| container.name == CONTAINER;
        let mut containers = spec.containers.iter().filter(serves);
        let container = containers
            .clone()
            .find(named)
            .or_else(|| containers.next())?;
        let words = words(container);
        let modes = modes(&words);
        let has = |half| modes.is_empty() || modes.contains(&half);
        let label = |name: &str| pod.metadata.labels.as_ref()?.get(name).map(String::as_str);
        let component = label(COMPONENT);
        let console = flag(&words, "console-address");
        let kubelet = container.volume_mounts.iter().flatten();
        let kubelet = kubelet
            .into_iter()
            .find(|mount| mount.name == "kubelet-dir");
        Some(Self {
            namespace: pod.metadata.namespace.clone()?,
            name: pod.metadata.name.clone()?,
            node: spec.node_name.clone(),
            container: container.name.clone(),
            driver: flag(&words, "csi-name")?.to_owned(),
            release: label(RELEASE).map(str::to_owned),
            config_file: flag(&words, "driver-config-file")?.to_owned(),
            kubelet_dir: kubelet
                .map_or(KUBELET_DIR, |mount| &mount.mount_path)
                .to_owned(),
            is_controller: has("controller"),
            is_node: has("node") && component != Some("controller"),
            provisioner: spec
                .containers
                .iter()
                .map(|container| &container.name)
                .find(|name| name.contains("provisioner"))
                .cloned(),
            console: console.and_then(|address| address.rsplit(':').next()?.parse().ok()),
            restarts: restarts(pod),
            runs: statuses(pod).any(|status| status.name == container.name && is_running(status)),
            sick: sick(pod),
        })
    }

    /// The pod for people: `namespace/name`.
    pub(crate) fn shown(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// The words for a pod that works.
    pub(crate) fn well(&self) -> String {
        match self.restarts {
            0 => format!("{} is ready", self.shown()),
            1 => format!("{} is ready, after one restart", self.shown()),
            count => format!("{} is ready, after {count} restarts", self.shown()),
        }
    }

    /// The command that shows its log.
    pub(crate) fn log(&self) -> String {
        format!(
            "`kubectl -n {} logs {} -c {}`",
            self.namespace, self.name, self.container
        )
    }

    /// A command of the program in this pod, with its configuration.
    pub(crate) fn command(&self, command: &str) -> Vec<String> {
        vec![
            "omnibus-csi".to_owned(),
            command.to_owned(),
            format!("--driver-config-file={}", self.config_file),
        ]
    }
}

fn words(container: &Container) -> Vec<&str> {
    let all = container.command.iter().chain(&container.args).flatten();
    all.map(String::as_str).collect()
}

/// The value of a flag, as `--name=value` or `--name value`.
fn flag<'a>(words: &[&'a str], name: &str) -> Option<&'a str> {
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let Some(rest) = word
            .strip_prefix("--")
            .and_then(|word| word.strip_prefix(name))
        else {
            continue;
        };
        match rest.strip_prefix('=') {
            Some(value) => return Some(value),
            None if rest.is_empty() => return words.next().copied(),
            None => {}
        }
    }
    None
}

/// The halves that a command line names; none for both. A flag may have several values: `--csi-mode node controller`.
fn modes<'a>(words: &[&'a str]) -> Vec<&'a str> {
    let mut modes = Vec::new();
    let mut open = false;
    for word in words {
        if let Some(value) = word.strip_prefix("--csi-mode=") {
            modes.push(value);
        } else if *word == "--csi-mode" {
            open = true;
        } else if word.starts_with('-') {
            open = false;
        } else if open {
            modes.push(word);
        }
    }
    modes
}

fn statuses(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let status = pod.status.as_ref();
    let all = status.and_then(|status| status.container_statuses.as_ref());
    all.into_iter().flatten()
}

fn is_running(status: &ContainerStatus) -> bool {
    let state = status.state.as_ref();
    status.ready || state.is_some_and(|state| state.running.is_some())
}

fn restarts(pod: &Pod) -> i32 {
    statuses(pod).map(|status| status.restart_count).sum()
}

/// The reason why a pod is not ready; none if it is.
fn sick(pod: &Pod) -> Option<Sick> {
    let (namespace, name) = (
        pod.metadata.namespace.as_deref().unwrap_or_default(),
        pod.metadata.name.as_deref().unwrap_or_default(),
    );
    let describe = format!(
        "wait a minute. If it stays so, the events at the end of `kubectl -n {namespace} describe pod {name}` name what is missing, such as \
         a Secret or a folder of the host"
    );
    let say = |text: &str, remedy: &str| Sick {
        text: format!("{namespace}/{name} {text}"),
        remedy: remedy.to_owned(),
    };
    if pod.metadata.deletion_timestamp.is_some() {
        let remedy = "wait for the one that replaces it; where its node is gone for good: \"A node is lost\" in docs/outages.md";
        return Some(say("is being deleted", remedy));
    }
    if let Some(status) = statuses(pod).find(|status| !status.ready) {
        let log = format!("kubectl -n {namespace} logs {name} -c {}", status.name);
        let (text, remedy) = of_container(status, describe, &log);
        return Some(say(&text, &remedy));
    }
    if let Some(why) = unscheduled(pod) {
        let text = format!("has no node; {}", Speaker::Scheduler.says(&why));
        return Some(say(&text, &Speaker::Scheduler.remedy(&why, None)));
    }
    // The containers of a running pod have said that they are ready.
    let phase = pod.status.as_ref()?.phase.as_deref()?;
    let remedy = match phase {
        "Running" => return None,
        "Failed" | "Succeeded" => format!(
            "`kubectl -n {namespace} delete pod {name}`: another takes its place. `kubectl -n {namespace} describe pod {name}` says why it \
             ended, such as a full disk of the node"
        ),
        "Unknown" => "see whether its node runs: `kubectl get nodes`".to_owned(),
        _ => describe,
    };
    Some(say(&format!("is {phase}"), &remedy))
}

/// Why a container is not ready, and what to do.
fn of_container(status: &ContainerStatus, describe: String, log: &str) -> (String, String) {
    let container = &status.name;
    let state = status.state.as_ref();
    let waiting = state.and_then(|state| state.waiting.as_ref());
    let last = status.last_state.as_ref();
    let last = last.and_then(|last| last.terminated.as_ref());
    let ended = state.and_then(|state| state.terminated.as_ref()).or(last);
    let reason = waiting.and_then(|waiting| waiting.reason.as_deref());
    match (reason, ended) {
        (Some(reason), _) if reason.contains("Image") => {
            let message = waiting.and_then(|waiting| waiting.message.as_deref());
            let message = message.unwrap_or("no more is said");
            let remedy = "load the image on the node or into the registry that the chart names: \"The image\" in docs/install.md";
            (
                format!("cannot start {container}: {reason}: {message}"),
                remedy.to_owned(),
            )
        }
        (_, Some(ended)) => {
            let (count, code) = (status.restart_count, ended.exit_code);
            let reason = ended.reason.as_deref().unwrap_or("Error");
            let text = format!(
                "has {container} restarted {count} times, which ended last with exit code {code} ({reason})"
            );
            let why = format!("the last lines of `{log} --previous` say why");
            let remedy = match (code, reason) {
                (64, _) => format!(
                    "its command line or its configuration is wrong: {why}, and name the flag or the key to correct in the chart's values"
                ),
                (_, "OOMKilled") => {
                    "raise its memory limit: `resources` of this container in the chart's values"
                        .to_owned()
                }
                _ => why,
            };
            (text, remedy)
        }
        (Some(reason), None) => {
            let message = waiting.and_then(|waiting| waiting.message.as_deref());
            let message = message.map(|message| format!(": {message}"));
            let message = message.unwrap_or_default();
            (
                format!("does not start {container}: {reason}{message}"),
                describe,
            )
        }
        (None, None) => (
            format!("runs, but {container} is not ready"),
            format!(
                "wait a minute. If it stays so, the last lines of `{log}` say what it waits for"
            ),
        ),
    }
}

/// Why a pod was not given a node.
pub(crate) fn unscheduled(pod: &Pod) -> Option<String> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let condition = conditions
        .iter()
        .find(|condition| condition.type_ == "PodScheduled" && condition.status == "False")?;
    let message = condition.message.clone();
    Some(message.unwrap_or_else(|| "the scheduler does not say why".to_owned()))
}
