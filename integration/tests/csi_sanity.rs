//! csi-sanity, the specification's own suite: every spec runs, none fails, and what is skipped is
//! skipped because it belongs to a capability that we do not advertise.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Output;

use integration::place::Place;
use integration::requirement;
use integration::server::{Launch, log_of};
use integration::tools;
use serde::Deserialize;

/// The specs of v5.5.0, and those among them that its authors switched off.
const SPECS: usize = 96;
const PENDING: usize = 1;

/// What is skipped, by the words with which a spec's name begins or which it holds, and why.
const SKIPPED: [(&str, &str); 7] = [
    (
        "ControllerPublishVolume",
        "a directory is on its node: nothing is published",
    ),
    (
        "ControllerUnpublishVolume",
        "a directory is on its node: nothing is published",
    ),
    (
        "ModifyVolume",
        "a directory has nothing that could be modified",
    ),
    (
        "volume attribute class",
        "a directory has nothing that could be modified",
    ),
    ("GroupController", "directories cannot be cut together"),
    (
        "NodeExpandVolume",
        "a directory needs nothing done on the node to grow",
    ),
    (
        "volume lifecycle",
        "with ControllerPublish; the one without it runs",
    ),
];

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Suite {
    spec_reports: Vec<Spec>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Spec {
    container_hierarchy_texts: Option<Vec<String>>,
    leaf_node_type: String,
    leaf_node_text: String,
    state: String,
    failure: Option<Failure>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Failure {
    message: String,
}

impl Spec {
    fn name(&self) -> String {
        let mut words = self.container_hierarchy_texts.clone().unwrap_or_default();
        words.push(self.leaf_node_text.clone());
        words.join(" ")
    }

    /// Its name and what it says, if it failed.
    fn failed(&self) -> Option<(String, String)> {
        let fine = ["passed", "skipped", "pending"].contains(&self.state.as_str());
        let told = self.failure.as_ref().map(|failure| failure.message.clone());
        (!fine).then(|| (self.name(), told.unwrap_or_default()))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn csi_sanity_passes_and_skips_only_what_is_not_advertised() {
    const WHAT: &str = "csi-sanity";
    if !requirement::root(WHAT) {
        return;
    }
    let Some(sanity) = requirement::tool_from(WHAT, "OMNIBUS_CSI_SANITY") else {
        return;
    };
    let place = Place::new();
    let (specs, output) = run(&sanity, &Launch::local_hostpath(&place), &place).await;
    let failed: Vec<_> = specs.iter().filter_map(Spec::failed).collect();
    assert!(failed.is_empty(), "{failed:#?}\n{}", log_of(&place));
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
    count(&specs);
}

/// Volumes of node-manual are written by hand, which csi-sanity does not do: what makes one first
/// cannot run. Everything else does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn csi_sanity_passes_over_node_manual_wherever_it_needs_no_controller() {
    const WHAT: &str = "csi-sanity over node-manual";
    let Some(sanity) = requirement::tool_from(WHAT, "OMNIBUS_CSI_SANITY") else {
        return;
    };
    let place = Place::new();
    let (specs, _) = run(&sanity, &Launch::new("driver: node-manual\n"), &place).await;
    let failed: Vec<_> = specs.iter().filter_map(Spec::failed).collect();
    let other: Vec<_> = failed
        .iter()
        .filter(|(_, told)| !told.contains("volume is not supported by this driver"))
        .collect();
    assert!(other.is_empty(), "{other:#?}\n{}", log_of(&place));
    let passed = specs.iter().filter(|spec| spec.state == "passed");
    assert_eq!((passed.count(), failed.len()), (19, 7), "{failed:#?}");
}

/// Runs the suite over a server in `place`, and looks at what is left.
async fn run(sanity: &Path, launch: &Launch, place: &Place) -> (Vec<Spec>, Output) {
    let mut server = launch.start(place).await;
    let report = place.path().join("report.json");
    let path = |name: &str| place.node().join(name).display().to_string();
    let arguments = [
        format!("--csi.endpoint=unix://{}", place.socket().display()),
        format!("--csi.mountdir={}", path("target")),
        format!("--csi.stagingdir={}", path("staging")),
        "--csi.testvolumeaccesstype=mount".to_owned(),
        format!("--ginkgo.json-report={}", report.display()),
        "--ginkgo.no-color".to_owned(),
    ];
    let output = tools::run(sanity, arguments, place.path()).await;
    let specs = read(&report);
    assert_eq!(
        place.mounts(),
        Vec::<std::path::PathBuf>::new(),
        "mounts are left"
    );
    assert!(server.terminate().await.success());
    (specs, output)
}

fn read(report: &Path) -> Vec<Spec> {
    let text = fs::read_to_string(report).expect("csi-sanity wrote its report");
    let suites: Vec<Suite> = serde_json::from_str(&text).expect("a report of ginkgo");
    let specs = suites.into_iter().flat_map(|suite| suite.spec_reports);
    specs.filter(|spec| spec.leaf_node_type == "It").collect()
}

fn count(specs: &[Spec]) {
    let names = |state: &str| -> Vec<String> {
        specs
            .iter()
            .filter(|spec| spec.state == state)
            .map(Spec::name)
            .collect()
    };
    let (skipped, pending) = (names("skipped"), names("pending"));
    let unexpected: Vec<_> = skipped
        .iter()
        .filter(|name| !SKIPPED.iter().any(|(words, _)| name.contains(words)))
        .collect();
    assert!(
        unexpected.is_empty(),
        "skipped without a reason: {unexpected:#?}"
    );
    let used: BTreeSet<_> = SKIPPED
        .iter()
        .filter(|(words, _)| skipped.iter().any(|name| name.contains(words)))
        .map(|(words, _)| *words)
        .collect();
    let all: BTreeSet<_> = SKIPPED.iter().map(|(words, _)| *words).collect();
    assert_eq!(used, all, "reasons that no skipped spec needs");
    assert_eq!(
        specs.len(),
        SPECS,
        "csi-sanity has other specs than the pinned version"
    );
    assert_eq!(pending.len(), PENDING, "{pending:#?}");
    let ran = names("passed").len();
    assert_eq!(
        (ran, skipped.len()),
        (RAN, SPECS - PENDING - RAN),
        "{skipped:#?}"
    );
}

/// So many run.
const RAN: usize = 67;
