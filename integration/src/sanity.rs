//! csi-sanity, the suite of the specification, run against a server, and the result of each spec.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use serde::Deserialize;

use crate::place::Place;
use crate::server::Launch;
use crate::tools;

/// The specs of v5.6.0.
pub const SPECS: usize = 103;
/// Those that its authors disabled.
pub const PENDING: usize = 1;

/// Fails where every node may reach the volumes: the controller has no list of the nodes.
pub const ANY_NODE: [&str; 1] = [NODE_MISSING];
/// Fail where the proxy offers publishing and the volumes are storage of a node: no call checks them.
pub const UNATTACHED: [&str; 2] = [
    "ControllerPublishVolume should fail when the volume does not exist",
    NODE_MISSING,
];
const NODE_MISSING: &str = "ControllerPublishVolume should fail when the node does not exist";

/// The settings of the suite, except the address of the server.
#[derive(Debug, Default)]
pub struct Questions<'a> {
    /// Parameters of its class, as YAML.
    pub class: Option<&'a str>,
    /// Parameters of its class of attributes, as YAML.
    pub attributes: Option<&'a str>,
    /// Secrets of each call, as YAML.
    pub secrets: Option<&'a str>,
    /// Whether its volumes are devices.
    pub is_block: bool,
    /// The size of its volumes, if not the default of 10 GiB.
    pub size: Option<i64>,
    /// The folder for temporary files below which it has its own folders, instead of those of the kubelet.
    pub default_folders: Option<PathBuf>,
    /// The socket of the server, if not the usual one.
    pub socket: Option<PathBuf>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Suite {
    spec_reports: Vec<Spec>,
}

/// One spec, and how it ended.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Spec {
    container_hierarchy_texts: Option<Vec<String>>,
    leaf_node_type: String,
    leaf_node_text: String,
    /// `passed`, `skipped`, `pending`, or the kind of failure.
    pub state: String,
    failure: Option<Failure>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Failure {
    message: String,
}

// === impl Spec ===

impl Spec {
    /// Its name, with the names of its groups.
    pub fn name(&self) -> String {
        let mut words = self.container_hierarchy_texts.clone().unwrap_or_default();
        words.push(self.leaf_node_text.clone());
        words.join(" ")
    }

    /// Its name and message, if it failed.
    pub fn failed(&self) -> Option<(String, String)> {
        let fine = ["passed", "skipped", "pending"].contains(&self.state.as_str());
        let message = self.failure.as_ref().map(|failure| failure.message.clone());
        (!fine).then(|| (self.name(), message.unwrap_or_default()))
    }
}

/// The names of the specs with this state.
pub fn ended(specs: &[Spec], state: &str) -> Vec<String> {
    let those = specs.iter().filter(|spec| spec.state == state);
    those.map(Spec::name).collect()
}

/// Runs the suite against a server in `place`, and checks what is left.
///
/// # Panics
/// If something stays mounted, or the server does not stop.
pub async fn run(
    sanity: &Path,
    launch: &Launch,
    place: &Place,
    questions: &Questions<'_>,
) -> (Vec<Spec>, Output) {
    let mut server = launch.start(place).await;
    let specs = ask(sanity, place, questions).await;
    let none: [PathBuf; 0] = [];
    assert_eq!(place.mounts(), none, "mounts are left");
    assert!(server.terminate().await.success());
    specs
}

/// Runs the suite against a running server.
pub async fn ask(sanity: &Path, place: &Place, questions: &Questions<'_>) -> (Vec<Spec>, Output) {
    let report = place.path().join("report.json");
    let path = |name: &str| place.node().join(name).display().to_string();
    let access = if questions.is_block { "block" } else { "mount" };
    let socket = questions.socket.clone().unwrap_or_else(|| place.socket());
    let mut arguments = vec![
        format!("--csi.endpoint=unix://{}", socket.display()),
        format!("--csi.testvolumeaccesstype={access}"),
        format!("--ginkgo.json-report={}", report.display()),
        "--ginkgo.no-color".to_owned(),
    ];
    if questions.default_folders.is_none() {
        arguments.push(format!("--csi.mountdir={}", path("target")));
        arguments.push(format!("--csi.stagingdir={}", path("staging")));
    }
    if let Some(size) = questions.size {
        arguments.push(format!("--csi.testvolumesize={size}"));
        arguments.push(format!("--csi.testvolumeexpandsize={}", size / 2 * 3));
    }
    for (flag, text) in [
        ("testvolumeparameters", questions.class),
        ("testvolumemutableparameters", questions.attributes),
        ("secrets", questions.secrets),
    ] {
        if let Some(text) = text {
            let file: PathBuf = place.path().join(flag);
            fs::write(&file, text).expect("a file");
            arguments.push(format!("--csi.{flag}={}", file.display()));
        }
    }
    let output = match &questions.default_folders {
        None => tools::run(sanity, arguments, place.path()).await,
        Some(folder) => {
            let of = [
                format!("TMPDIR={}", folder.display()),
                sanity.display().to_string(),
            ];
            let all = of.into_iter().chain(arguments);
            tools::run(Path::new("env"), all, place.path()).await
        }
    };
    (read(&report), output)
}

fn read(report: &Path) -> Vec<Spec> {
    let text = fs::read_to_string(report).expect("csi-sanity wrote its report");
    let suites: Vec<Suite> = serde_json::from_str(&text).expect("a report of ginkgo");
    let specs = suites.into_iter().flat_map(|suite| suite.spec_reports);
    specs.filter(|spec| spec.leaf_node_type == "It").collect()
}
