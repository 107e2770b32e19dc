//! The cluster, with the rights of a kubeconfig: one question with a limit, and one command in a pod.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{Event, Node, PersistentVolumeClaim, Pod};
use kube::api::{AttachParams, AttachedProcess, ListParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::PartialObjectMeta;
use kube::{Api, Client, Config, Resource};
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::chain::{RIGHT, printable};
use crate::found::Answer;
use crate::ours::{DriverPod, LABEL, LABEL_VALUE};
use crate::workload::Workload;

/// The time that the API server may take for one answer.
const PATIENCE: Duration = Duration::from_secs(4);
/// The length of what a command in a pod may print where it is read as a whole.
const LONGEST_ANSWER: u64 = 4 << 20;

/// The API server, and where to look in the cluster.
pub(crate) struct Cluster {
    pub(crate) client: Client,
    /// The namespace of the kubeconfig's context.
    pub(crate) namespace: String,
    /// The only namespace to look for pods of the driver in.
    pub(crate) driver_namespace: Option<String>,
}

/// The output of a command in a pod, and its exit code.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) code: u8,
}

// === impl Cluster ===

impl Cluster {
    pub(crate) async fn connect(
        file: Option<PathBuf>,
        context: Option<String>,
        driver_namespace: Option<String>,
    ) -> Result<Self, String> {
        let options = KubeConfigOptions {
            context,
            ..KubeConfigOptions::default()
        };
        let config = match file {
            Some(file) => {
                let read = Kubeconfig::read_from(&file).map_err(|error| chained(&error))?;
                Config::from_custom_kubeconfig(read, &options).await
            }
            None => Config::from_kubeconfig(&options).await,
        };
        let mut config =
            config.map_err(|error| format!("read the kubeconfig: {}", chained(&error)))?;
        config.connect_timeout = Some(PATIENCE);
        // One that does not answer is named at once. The answers here are asked for again by a person.
        config.default_retry = false;
        let namespace = config.default_namespace.clone();
        let client = Client::try_from(config).map_err(|error| chained(&error))?;
        Ok(Self {
            client,
            namespace,
            driver_namespace,
        })
    }

    /// One object of the whole cluster.
    pub(crate) async fn get<K>(&self, name: &str) -> Answer<K>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        let api = Api::<K>::all(self.client.clone());
        ask(&rights::<K>("get", None), api.get(name)).await
    }

    /// One object of a namespace.
    pub(crate) async fn get_in<K>(&self, namespace: &str, name: &str) -> Answer<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + Debug,
    {
        let api = Api::<K>::namespaced(self.client.clone(), namespace);
        ask(&rights::<K>("get", Some(namespace)), api.get(name)).await
    }

    /// All objects of the whole cluster.
    pub(crate) async fn list<K>(&self) -> Answer<Vec<K>>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        let api = Api::<K>::all(self.client.clone());
        list(&rights::<K>("list", None), &api, &ListParams::default()).await
    }

    /// The objects of a namespace that fit.
    pub(crate) async fn list_in<K>(&self, namespace: &str, which: &ListParams) -> Answer<Vec<K>>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + Debug,
    {
        let api = Api::<K>::namespaced(self.client.clone(), namespace);
        list(&rights::<K>("list", Some(namespace)), &api, which).await
    }

    /// The claims of a namespace, or of all.
    pub(crate) async fn claims(
        &self,
        namespace: Option<&str>,
    ) -> Answer<Vec<PersistentVolumeClaim>> {
        match namespace {
            Some(namespace) => self.list_in(namespace, &ListParams::default()).await,
            None => self.list().await,
        }
    }

    /// Names and labels of all nodes. Whole nodes would be large: each lists its images.
    pub(crate) async fn nodes(&self) -> Answer<Vec<PartialObjectMeta<Node>>> {
        let api = Api::<Node>::all(self.client.clone());
        // From the cache of the API server, as each list here.
        let which = ListParams::default().match_any();
        let asked = ask(&rights::<Node>("list", None), api.list_metadata(&which)).await;
        asked.map(|list| list.items)
    }

    /// The pods of omnibus-csi.
    pub(crate) async fn driver_pods(&self) -> Answer<Vec<DriverPod>> {
        let which = ListParams::default().labels(&format!("{LABEL}={LABEL_VALUE}"));
        let pods: Answer<Vec<Pod>> = if let Some(namespace) = &self.driver_namespace {
            self.list_in(namespace, &which).await
        } else {
            let needs = rights::<Pod>("list", None);
            let api = Api::all(self.client.clone());
            match list(&needs, &api, &which).await {
                Answer::Unknown(why) if why.contains(&needs) => {
                    Answer::Unknown(format!("{why}; with --driver-namespace, in that one alone"))
                }
                pods => pods,
            }
        };
        let pods = pods.map(|pods| pods.iter().filter_map(DriverPod::of).collect::<Vec<_>>());
        match &pods {
            Answer::There(found) => found_twice(found).map_or(pods, Answer::Unknown),
            _ => pods,
        }
    }

    /// The `DaemonSets` and Deployments of omnibus-csi.
    pub(crate) async fn workloads(&self) -> Answer<Vec<Workload>> {
        let which = ListParams::default().labels(&format!("{LABEL}={LABEL_VALUE}"));
        let (sets, deployments) = tokio::join!(
            self.beside_driver::<DaemonSet>(&which),
            self.beside_driver::<Deployment>(&which),
        );
        let sets = match sets {
            Answer::There(sets) => sets,
            other => return other.map(|_| Vec::new()),
        };
        let deployments = match deployments {
            Answer::There(deployments) => deployments,
            other => return other.map(|_| Vec::new()),
        };
        let sets = sets.iter().filter_map(Workload::of_daemon_set);
        let deployments = deployments.iter().filter_map(Workload::of_deployment);
        let all: Vec<_> = sets.chain(deployments).collect();
        let pods: Vec<_> = all.iter().map(|one| one.pod.clone()).collect();
        found_twice(&pods).map_or(Answer::There(all), Answer::Unknown)
    }

    /// The warnings of `DaemonSets`.
    pub(crate) async fn refusals(&self) -> Answer<Vec<Event>> {
        let which = ListParams::default().fields("involvedObject.kind=DaemonSet,type=Warning");
        self.beside_driver(&which).await
    }

    /// The objects that fit, in the namespace of the driver; where that is not given, in all.
    async fn beside_driver<K>(&self, which: &ListParams) -> Answer<Vec<K>>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + Debug,
    {
        if let Some(namespace) = &self.driver_namespace {
            return self.list_in(namespace, which).await;
        }
        let api = Api::<K>::all(self.client.clone());
        list(&rights::<K>("list", None), &api, which).await
    }

    /// Starts a command in the container of the driver.
    pub(crate) async fn start(
        &self,
        pod: &DriverPod,
        command: &[String],
    ) -> Result<AttachedProcess, String> {
        let api = Api::<Pod>::namespaced(self.client.clone(), &pod.namespace);
        let how = AttachParams::default()
            .container(&pod.container)
            .stdin(false);
        let started = api.exec(&pod.name, command, &how).await;
        started.map_err(|error| {
            refused(
                &format!("get and create on pods/exec in {}", pod.namespace),
                &error,
            )
        })
    }

    /// Runs a command in the container of the driver, and reads what it prints.
    pub(crate) async fn run(&self, pod: &DriverPod, command: &[String]) -> Result<Output, String> {
        let mut process = self.start(pod, command).await?;
        let (stdout, stderr) = (process.stdout(), process.stderr());
        let (stdout, stderr) = tokio::join!(read(stdout), read(stderr));
        Ok(Output {
            stdout,
            stderr,
            code: exit_code(&mut process).await?,
        })
    }
}

/// The exit code of a command whose output was read to its end.
pub(crate) async fn exit_code(process: &mut AttachedProcess) -> Result<u8, String> {
    let status = match process.take_status() {
        Some(status) => status.await,
        None => None,
    };
    let status = status.ok_or("the connection to the pod broke off")?;
    if status.status.as_deref() == Some("Success") {
        return Ok(0);
    }
    let causes = status.details.and_then(|details| details.causes);
    let code = causes.into_iter().flatten().find_map(|cause| {
        let code = cause
            .message
            .filter(|_| cause.reason.as_deref() == Some("ExitCode"));
        code?.parse().ok()
    });
    code.ok_or_else(|| {
        printable(
            &status
                .message
                .unwrap_or_else(|| "no reason is given".to_owned()),
        )
    })
}

async fn read(stream: Option<impl AsyncRead + Unpin>) -> Vec<u8> {
    let mut all = Vec::new();
    if let Some(stream) = stream {
        // A connection that breaks off is seen by the status that does not come.
        let _ = stream.take(LONGEST_ANSWER).read_to_end(&mut all).await;
    }
    all
}

/// The words for a right: a verb, the kind, and where.
fn rights<K: Resource<DynamicType = ()>>(verb: &str, namespace: Option<&str>) -> String {
    let kind = K::plural(&());
    match namespace {
        Some(namespace) => format!("{verb} on {kind} in {namespace}"),
        None => format!("{verb} on {kind} in the whole cluster"),
    }
}

async fn list<K>(needs: &str, api: &Api<K>, which: &ListParams) -> Answer<Vec<K>>
where
    K: Clone + DeserializeOwned + Debug,
{
    // From the cache of the API server: large lists cost it little.
    let which = which.clone().match_any();
    ask(needs, api.list(&which)).await.map(|list| list.items)
}

/// One question.
async fn ask<T>(needs: &str, question: impl Future<Output = kube::Result<T>>) -> Answer<T> {
    match tokio::time::timeout(PATIENCE, question).await {
        Ok(Ok(value)) => Answer::There(value),
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => Answer::Missing,
        Ok(Err(error)) => Answer::Unknown(refused(needs, &error)),
        Err(_) => Answer::Unknown(format!(
            "not looked at: the API server did not answer in {} s",
            PATIENCE.as_secs()
        )),
    }
}

/// Why there is no answer. `needs` is the right that the question takes.
pub(crate) fn refused(needs: &str, error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if status.code == 403 => format!("{RIGHT}{needs}"),
        kube::Error::Api(status) if status.code == 401 => {
            "not looked at: the API server does not accept the login of the kubeconfig".to_owned()
        }
        kube::Error::Api(status) => format!("not looked at: {}", printable(&status.message)),
        error => format!("not looked at: {}", chained(error)),
    }
}

/// An error with its causes, on one line, each text once.
fn chained(error: &impl std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = error.source();
    }
    printable(&without_logins(&text))
}

/// The text without the logins of its URLs, as that of a proxy may have one.
fn without_logins(text: &str) -> String {
    let mut parts = text.split("://");
    let mut clean = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let ends = |char: char| char.is_whitespace() || matches!(char, '/' | '?' | '#' | '"' | '`');
        let host = part.find(ends).unwrap_or(part.len());
        let after = part[..host].rfind('@').map(|at| &part[at..]);
        clean.push_str("://");
        match after {
            Some(after) => {
                clean.push_str("***");
                clean.push_str(after);
            }
            None => clean.push_str(part),
        }
    }
    clean
}

/// Anyone may give a pod of their own the labels and the arguments of ours. A driver runs in one namespace: where its pods
/// are in several, none is believed.
pub(crate) fn found_twice(pods: &[DriverPod]) -> Option<String> {
    let mut places: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for pod in pods {
        let of = places.entry(pod.driver.as_str()).or_default();
        of.insert(pod.namespace.as_str());
    }
    let (driver, places) = places.into_iter().find(|(_, of)| of.len() > 1)?;
    let places: Vec<_> = places.into_iter().collect();
    Some(format!(
        "not looked at: pods in {} say that they are the driver {}: name its namespace with --driver-namespace",
        places.join(", "),
        crate::chain::printable(driver)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A proxy that is not supported is named by the library with all of its URL.
    #[tokio::test]
    async fn the_password_of_a_proxy_is_in_no_error() {
        for proxy in [
            "socks5://anna:sesame@proxy.example:1080",
            "ftp://anna:sesame@proxy.example",
            "ftp://anna:s%40sam@e@proxy.example/a@b",
        ] {
            let mut config = Config::new("https://10.0.0.1".parse().expect("a URL"));
            config.proxy_url = Some(proxy.parse().expect("a URL"));
            let refused = Client::try_from(config).err().expect("no such proxy");
            let text = chained(&refused);
            assert!(text.contains("://***@proxy.example"), "{text}");
            assert!(!text.contains("sesame") && !text.contains("sam"), "{text}");
        }
        let plain = "read https://10.0.0.1/api?of=a@b: it is a@b, \"http://c:d@e\"";
        let clean = "read https://10.0.0.1/api?of=a@b: it is a@b, \"http://***@e\"";
        assert_eq!(without_logins(plain), clean);
    }
}
