//! The commands of the program that run in the controller's pod: what they print and their exit code are passed on.

use std::collections::BTreeSet;
use std::io::{self, ErrorKind};

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

use crate::args::{ControllerFlags, RemoteFlags};
use crate::cluster::{Cluster, exit_code};
use crate::complain;
use crate::ours::{DriverPod, LABEL, LABEL_VALUE};

/// The exit code that a shell gives a program whose output is not read any more, such as by `head`.
const READER_GONE: u8 = 141;
/// The commands whose output is objects of the driver.
const WRITES_OBJECTS: [&str; 3] = ["export-pvs", "adopt", "move"];
const CSI_NAME: &str = "--csi-name";

/// Runs a command in the controller's pod.
pub(crate) async fn run(
    cluster: &Cluster,
    command: &str,
    flags: &RemoteFlags,
) -> Result<u8, String> {
    let pod = controller(cluster, &flags.controller).await?;
    let words = words(&pod, command, &flags.arguments);
    let failed = |why| format!("{}: {why}", pod.shown());
    let mut process = cluster.start(&pod, &words).await.map_err(failed)?;
    let (stdout, stderr) = (process.stdout(), process.stderr());
    // At the first failure: a command whose output is not taken away any more does not end.
    let passed = tokio::try_join!(
        pass(stdout, tokio::io::stdout()),
        pass(stderr, tokio::io::stderr())
    );
    match passed {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(READER_GONE),
        passed => passed.map_err(|error| error.to_string())?,
    };
    exit_code(&mut process).await.map_err(failed)
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

async fn pass(
    from: Option<impl AsyncRead + Unpin>,
    mut to: impl AsyncWrite + Unpin,
) -> io::Result<()> {
    if let Some(mut from) = from {
        tokio::io::copy(&mut from, &mut to).await?;
    }
    to.flush().await
}

/// The pod of the controller that the flags choose. A remark on the choice goes to standard error.
pub(crate) async fn controller(
    cluster: &Cluster,
    flags: &ControllerFlags,
) -> Result<DriverPod, String> {
    let pods = cluster.driver_pods().await;
    if let Some(why) = pods.why_not() {
        return Err(format!("the pods of the driver: {why}"));
    }
    let (pod, remark) = choose(pods.all(), flags)?;
    if let Some(remark) = remark {
        complain(&remark);
    }
    Ok(pod.clone())
}

fn choose<'a>(
    pods: &'a [DriverPod],
    flags: &ControllerFlags,
) -> Result<(&'a DriverPod, Option<String>), String> {
    let wanted = |of: Option<&str>, flag: &Option<String>| flag.is_none() || of == flag.as_deref();
    let fitting: Vec<_> = pods
        .iter()
        .filter(|pod| pod.is_controller && wanted(Some(&pod.driver), &flags.driver))
        .filter(|pod| wanted(pod.node.as_deref(), &flags.node))
        .collect();
    let drivers: BTreeSet<_> = fitting.iter().map(|pod| pod.driver.as_str()).collect();
    if drivers.len() > 1 {
        let drivers: Vec<_> = drivers.into_iter().collect();
        return Err(format!(
            "several drivers are installed: name one of {} with --driver",
            drivers.join(", ")
        ));
    }
    let best = fitting
        .iter()
        .min_by_key(|pod| (!pod.runs, pod.sick.is_some()));
    let Some(pod) = best else {
        let of = flags.driver.as_ref().map(|driver| format!(" of {driver}"));
        let on = flags.node.as_ref().map(|node| format!(" on {node}"));
        return Err(format!(
            "there is no pod of a controller{}{}: `kubectl get pods -A -l {LABEL}={LABEL_VALUE}` lists the pods of \
             omnibus-csi",
            of.unwrap_or_default(),
            on.unwrap_or_default()
        ));
    };
    if !pod.runs {
        let sick = pod.sick.as_ref();
        let (text, remedy) = sick.map_or(("it does not run", ""), |sick| {
            (sick.text.as_str(), sick.remedy.as_str())
        });
        return Err(format!("the controller cannot be asked: {text}: {remedy}"));
    }
    let each_node = flags.node.is_none() && fitting.len() > 1 && pod.is_node;
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
