//! The commands of the program that run in the controller's pod: what they print and their exit code are passed on.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use tokio::io::{AsyncWrite, AsyncWriteExt};

use crate::args::{ControllerFlags, RemoteFlags};
use crate::chain::{CANNOT_TELL, printable};
use crate::cluster::{Cluster, exit_code};
use crate::found::Answer;
use crate::ours::{DriverPod, LABEL, LABEL_VALUE, is_on_nodes};
use crate::output::{Heard, pass};
use crate::{EX_USAGE, complain, say};

/// The exit code that a shell gives a program whose output is not read any more, such as by `head`.
const READER_GONE: u8 = 141;
/// The commands whose output is objects of the driver.
const WRITES_OBJECTS: [&str; 3] = ["export-pvs", "adopt", "move"];
const CSI_NAME: &str = "--csi-name";
const CONNECTIONS: &str = "connections";
/// The commands that only look, unless one of the flags below is given: they run in each controller.
const LOOKS: [&str; 4] = [CONNECTIONS, "orphans", "exports", "check"];
const CHANGES: [&str; 2] = ["--remove", "--repair"];
const HELP: [&str; 2] = ["--help", "-h"];
const JSON: [&str; 1] = ["--json"];
/// The words of `connections` for a driver without a folder of connections.
const SINGLE: &str = "one connection without a name";
/// The words of `orphans` and `exports` where no connection could be asked.
const NOTHING: &str = "nothing was looked at";

/// The time for which one of several controllers may be silent. In it, a storage may take two minutes for one answer.
const SILENT: Duration = Duration::from_mins(5);
/// The time after which, and at which intervals, its silence is reported. A command in a pod that waits for a storage
/// says so every five seconds.
const REPORTED: Duration = Duration::from_secs(30);

/// Runs a command in the controller's pod; one that only looks, in each.
pub(crate) async fn run(
    cluster: &Cluster,
    command: &str,
    flags: &RemoteFlags,
) -> Result<u8, String> {
    let pods = pods(cluster).await?;
    let words = &flags.arguments;
    let is_given = |flags: &[&str]| words.iter().any(|word| flags.contains(&word.as_str()));
    if !LOOKS.contains(&command) || is_given(&CHANGES) {
        let pod = chosen(&pods, &flags.controller)?;
        // A change takes its time, and is not given up halfway.
        let code = Box::pin(in_pod(cluster, pod, command, words, None)).await?;
        return Ok(code.unwrap_or(CANNOT_TELL));
    }
    let mut all = each(&pods, &flags.controller)?;
    if is_given(&HELP) {
        all.truncate(1);
    }
    let (count, is_alone) = (all.len(), all.len() == 1);
    let (mut codes, mut unanswered) = (Vec::new(), Vec::new());
    for pod in all {
        if !is_alone {
            head(pod, &pods, is_given(&JSON));
        }
        let done = look(cluster, pod, command, words, is_alone);
        match Box::pin(done).await {
            Err(why) if is_alone => return Err(why),
            Err(why) => {
                complain(&why);
                codes.push(CANNOT_TELL);
                unanswered.push(named(pod, &pods));
            }
            Ok(Some(READER_GONE)) => return Ok(READER_GONE),
            // A driver without a connection is no failure beside others.
            Ok(code) => codes.extend(code),
        }
    }
    if !unanswered.is_empty() {
        complain(&missing(&unanswered, count));
    }
    let worst = codes.into_iter().max_by_key(|code| match *code {
        0 => 0,
        CANNOT_TELL => 1,
        1 => 2,
        _ => 3,
    });
    Ok(worst.unwrap_or(CANNOT_TELL))
}

/// One of several controllers, for people.
fn named(pod: &DriverPod, pods: &[DriverPod]) -> String {
    let node = pod.node.as_ref().filter(|_| is_on_nodes(pods, &pod.driver));
    let node = node.map(|node| format!(", node {node}"));
    format!("{}{}", pod.driver, node.unwrap_or_default())
}

/// The last line where controllers did not answer. Their own lines may be far above.
fn missing(unanswered: &[String], count: usize) -> String {
    format!(
        "{} of {count} controllers did not answer: {}. What was printed is of the others; with --driver and --node one is asked \
         alone, and waited for",
        unanswered.len(),
        unanswered.join("; ")
    )
}

/// The line before the answer of one of several controllers. Not among JSON.
fn head(pod: &DriverPod, pods: &[DriverPod], is_json: bool) {
    let text = printable(&named(pod, pods));
    if is_json {
        complain(&text);
    } else {
        say(&format!("=== {text} ===\n"));
    }
}

/// Runs a command that only looks, unless it is known that the pod does not answer. Of several, one that is silent is not
/// to keep the others from being asked.
async fn look(
    cluster: &Cluster,
    pod: &DriverPod,
    command: &str,
    arguments: &[String],
    is_alone: bool,
) -> Result<Option<u8>, String> {
    ready(pod)?;
    if !is_alone {
        Box::pin(reached(cluster, pod)).await?;
    }
    let limit = (!is_alone).then_some(SILENT);
    Box::pin(in_pod(cluster, pod, command, arguments, limit)).await
}

/// Whether the node of a pod is ready, as far as that is known.
async fn reached(cluster: &Cluster, pod: &DriverPod) -> Result<(), String> {
    let Some(name) = pod.node.as_deref() else {
        return Ok(());
    };
    let node: Answer<Node> = cluster.get(name).await;
    if node.there().is_some_and(is_lost) {
        return Err(format!(
            "{}: not asked, as the node {name} is not ready: `kubectl describe node {name}` says why",
            pod.shown()
        ));
    }
    Ok(())
}

/// Whether a node is known not to be ready.
fn is_lost(node: &Node) -> bool {
    let status = node.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|one| one.type_ == "Ready" && one.status != "True")
}

/// Runs a command in one pod: its exit code, or none where it says that there was no connection to ask.
async fn in_pod(
    cluster: &Cluster,
    pod: &DriverPod,
    command: &str,
    arguments: &[String],
    limit: Option<Duration>,
) -> Result<Option<u8>, String> {
    let may_be_single = command == CONNECTIONS && !arguments.iter().any(|word| word == JSON[0]);
    let mut held: Vec<u8> = Vec::new();
    let mut stderr = tokio::io::stderr();
    let errors: &mut (dyn AsyncWrite + Unpin) = if may_be_single {
        &mut held
    } else {
        &mut stderr
    };
    let command = words(pod, command, arguments);
    let (code, end) = passed(cluster, pod, &command, errors, limit).await?;
    let said = String::from_utf8_lossy(&held);
    if code == EX_USAGE && said.contains(SINGLE) {
        say("one storage without a name; `check` says of it:\n");
        let check = words(pod, "check", arguments);
        let (code, _) = passed(cluster, pod, &check, &mut stderr, limit).await?;
        return Ok(Some(code));
    }
    // The reader may be gone, and the exit code says enough.
    let _ = stderr.write_all(&held).await;
    let _ = stderr.flush().await;
    let looked = code != 0 || !String::from_utf8_lossy(&end).contains(NOTHING);
    Ok(looked.then_some(code))
}

/// Runs words in a pod and passes on what they print: the exit code, and the end of standard output. A command that is
/// silent for longer than the limit is given up.
async fn passed(
    cluster: &Cluster,
    pod: &DriverPod,
    words: &[String],
    errors: &mut (dyn AsyncWrite + Unpin),
    limit: Option<Duration>,
) -> Result<(u8, Vec<u8>), String> {
    let heard = Heard::now();
    let done = Box::pin(heard_out(cluster, pod, words, errors, &heard));
    let Some(limit) = limit else {
        return done.await;
    };
    let report = |silent: Duration| {
        complain(&format!(
            "{}: nothing was heard of it for {} s; after {} s it is given up",
            pod.shown(),
            silent.as_secs(),
            limit.as_secs()
        ));
    };
    tokio::select! {
        done = done => done,
        () = heard.silence(limit, REPORTED, report) => {
            let node = pod.node.as_deref().unwrap_or_default();
            Err(format!(
                "{}: it was given up, as nothing was heard of it for {} s: `kubectl get node {node}` shows whether its node is ready; with \
                 --driver and --node it is waited for",
                pod.shown(),
                limit.as_secs()
            ))
        }
    }
}

async fn heard_out(
    cluster: &Cluster,
    pod: &DriverPod,
    words: &[String],
    errors: &mut (dyn AsyncWrite + Unpin),
    heard: &Heard,
) -> Result<(u8, Vec<u8>), String> {
    let failed = |why| format!("{}: {why}", pod.shown());
    let mut process = cluster.start(pod, words).await.map_err(failed)?;
    let (stdout, stderr) = (process.stdout(), process.stderr());
    // At the first failure: a command whose output is not taken away any more does not end.
    let passed = tokio::try_join!(
        pass(stdout, tokio::io::stdout(), heard),
        pass(stderr, errors, heard)
    );
    let (end, _) = match passed {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => {
            return Ok((READER_GONE, Vec::new()));
        }
        passed => passed.map_err(|error| error.to_string())?,
    };
    let code = exit_code(&mut process).await.map_err(failed)?;
    Ok((code, end))
}

/// The command in the pod. One that writes objects needs the name of the driver, which the pod has.
fn words(pod: &DriverPod, command: &str, arguments: &[String]) -> Vec<String> {
    let mut words = pod.command(command);
    let is_named = arguments.iter().any(|word| word.starts_with(CSI_NAME));
    if WRITES_OBJECTS.contains(&command) && !is_named {
        words.push(format!("{CSI_NAME}={}", pod.driver));
    }
    words.extend(arguments.iter().cloned());
    words
}

/// The pods of all drivers.
async fn pods(cluster: &Cluster) -> Result<Vec<DriverPod>, String> {
    let pods = cluster.driver_pods().await;
    match pods.why_not() {
        Some(why) => Err(format!("the pods of the driver: {why}")),
        None => Ok(pods.all().to_vec()),
    }
}

/// The pod of the controller that the flags choose. A remark on the choice goes to standard error.
pub(crate) async fn controller(
    cluster: &Cluster,
    flags: &ControllerFlags,
) -> Result<DriverPod, String> {
    let pods = pods(cluster).await?;
    chosen(&pods, flags).cloned()
}

fn chosen<'a>(pods: &'a [DriverPod], flags: &ControllerFlags) -> Result<&'a DriverPod, String> {
    let (pod, remark) = choose(pods, flags)?;
    if let Some(remark) = remark {
        complain(&remark);
    }
    Ok(pod)
}

/// The controllers that the flags leave, of all drivers; at least one.
fn fitting<'a>(
    pods: &'a [DriverPod],
    flags: &ControllerFlags,
) -> Result<Vec<&'a DriverPod>, String> {
    let wanted = |of: Option<&str>, flag: &Option<String>| flag.is_none() || of == flag.as_deref();
    let fitting: Vec<_> = pods
        .iter()
        .filter(|pod| pod.is_controller && wanted(Some(&pod.driver), &flags.driver))
        .filter(|pod| wanted(pod.node.as_deref(), &flags.node))
        .collect();
    if !fitting.is_empty() {
        return Ok(fitting);
    }
    let of = flags.driver.as_ref().map(|driver| format!(" of {driver}"));
    let on = flags.node.as_ref().map(|node| format!(" on {node}"));
    Err(format!(
        "there is no pod of a controller{}{}: `kubectl get pods -A -l {LABEL}={LABEL_VALUE}` lists the pods of \
         omnibus-csi",
        of.unwrap_or_default(),
        on.unwrap_or_default()
    ))
}

/// One controller of each driver, or where each node has one, that of each node.
fn each<'a>(pods: &'a [DriverPod], flags: &ControllerFlags) -> Result<Vec<&'a DriverPod>, String> {
    let mut best: BTreeMap<_, &DriverPod> = BTreeMap::new();
    for pod in fitting(pods, flags)? {
        let node = pod
            .node
            .as_deref()
            .filter(|_| is_on_nodes(pods, &pod.driver));
        let place = best.entry((pod.driver.as_str(), node)).or_insert(pod);
        if worth(pod) < worth(place) {
            *place = pod;
        }
    }
    Ok(best.into_values().collect())
}

/// The better ones are less.
fn worth(pod: &DriverPod) -> (bool, bool) {
    (!pod.runs, pod.sick.is_some())
}

/// Whether a command can be run in a pod.
fn ready(pod: &DriverPod) -> Result<(), String> {
    if pod.runs {
        return Ok(());
    }
    let sick = pod.sick.as_ref();
    let (text, remedy) = sick.map_or(("it does not run", ""), |sick| {
        (sick.text.as_str(), sick.remedy.as_str())
    });
    Err(format!("the controller cannot be asked: {text}: {remedy}"))
}

fn choose<'a>(
    pods: &'a [DriverPod],
    flags: &ControllerFlags,
) -> Result<(&'a DriverPod, Option<String>), String> {
    let fitting = fitting(pods, flags)?;
    let drivers: BTreeSet<_> = fitting.iter().map(|pod| pod.driver.as_str()).collect();
    if drivers.len() > 1 {
        let drivers: Vec<_> = drivers.into_iter().collect();
        return Err(format!(
            "several drivers are installed: name one of {} with --driver",
            drivers.join(", ")
        ));
    }
    let count = fitting.len();
    let Some(pod) = fitting.into_iter().min_by_key(|pod| worth(pod)) else {
        return Err("there is no pod of a controller".to_owned());
    };
    ready(pod)?;
    let each_node = flags.node.is_none() && count > 1 && pod.is_node;
    let remark = each_node.then(|| {
        let node = pod.node.as_deref().unwrap_or_default();
        format!("each node has a controller, and this is that of {node}: --node names another")
    });
    Ok((pod, remark))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;

    use super::*;
    use crate::cluster::found_twice;

    fn pod(name: &str, driver: &str, node: &str, modes: &[&str], running: bool) -> DriverPod {
        let mut args = vec![
            format!("--csi-name={driver}"),
            "--driver-config-file=/c.yaml".to_owned(),
        ];
        args.extend(modes.iter().map(|mode| format!("--csi-mode={mode}")));
        let state = if running {
            json!({"running": {}})
        } else {
            json!({"waiting": {"reason": "CrashLoopBackOff"}})
        };
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "storage"},
            "spec": {"nodeName": node, "containers": [{"name": "csi-driver", "args": args}]},
            "status": {"phase": "Running", "containerStatuses": [
                {"name": "csi-driver", "ready": false, "restartCount": 0, "image": "", "imageID": "", "state": state}
            ]}
        }))
        .expect("a pod");
        DriverPod::of(&pod).expect("a pod of the driver")
    }

    fn flags(driver: Option<&str>, node: Option<&str>) -> ControllerFlags {
        ControllerFlags {
            driver: driver.map(str::to_owned),
            node: node.map(str::to_owned),
        }
    }

    #[test]
    fn the_controller_is_chosen_by_driver_and_node_and_one_that_runs_is_preferred() {
        let pods = [
            pod("a-node", "a", "one", &["node"], true),
            pod("a-old", "a", "one", &["controller"], false),
            pod("a-new", "a", "two", &["controller"], true),
            pod("b-one", "b", "one", &["node", "controller"], true),
            pod("b-two", "b", "two", &[], true),
        ];
        let chosen = |driver, node| {
            choose(&pods, &flags(driver, node)).map(|(pod, remark)| (pod.name.as_str(), remark))
        };
        let several = chosen(None, None).expect_err("which driver?");
        assert!(several.contains("a, b") && several.contains("--driver"));
        assert_eq!(chosen(Some("a"), None), Ok(("a-new", None)));
        assert_eq!(chosen(Some("b"), Some("two")), Ok(("b-two", None)));
        let (name, remark) = chosen(Some("b"), None).expect("a controller");
        assert_eq!(name, "b-one");
        assert!(remark.expect("a remark").contains("--node"));
        let ill = chosen(Some("a"), Some("one")).expect_err("it crashes");
        assert!(ill.contains("CrashLoopBackOff"), "{ill}");
        let none = chosen(Some("c"), None).expect_err("no such driver");
        assert!(none.contains("no pod of a controller of c"), "{none}");
    }

    #[test]
    fn a_command_that_looks_is_for_one_pod_of_each_driver_or_of_each_node() {
        let pods = [
            pod("a-node", "a", "one", &["node"], true),
            pod("a-old", "a", "one", &["controller"], false),
            pod("a-new", "a", "two", &["controller"], true),
            pod("b-one", "b", "one", &["node", "controller"], true),
            pod("b-ill", "b", "two", &[], false),
        ];
        let names = |driver, node| {
            let all = each(&pods, &flags(driver, node));
            all.map(|all| all.iter().map(|pod| pod.name.as_str()).collect::<Vec<_>>())
        };
        assert_eq!(names(None, None), Ok(vec!["a-new", "b-one", "b-ill"]));
        assert_eq!(names(Some("b"), Some("one")), Ok(vec!["b-one"]));
        assert!(names(Some("c"), None).is_err());
        let ill = ready(&pods[4]).expect_err("it crashes");
        assert!(ill.contains("CrashLoopBackOff"), "{ill}");
    }

    #[test]
    fn pods_of_one_driver_in_two_namespaces_are_not_believed() {
        let ours = pod("ctl", "nas", "n1", &["controller"], true);
        let mut theirs = pod("posing", "nas", "n2", &["controller"], true);
        let both = [ours.clone(), theirs.clone()];
        assert_eq!(found_twice(&both), None);
        theirs.namespace = "tenant".to_owned();
        let said = found_twice(&[ours, theirs]).expect("one may pose");
        assert!(
            said.contains("storage, tenant") && said.contains("--driver-namespace"),
            "{said}"
        );
    }
}
