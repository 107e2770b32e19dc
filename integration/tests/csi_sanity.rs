//! csi-sanity, the specification's own suite: every spec runs, none fails, and what is skipped is
//! skipped because it belongs to a capability that we do not advertise.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

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
    let mut server = Launch::local_hostpath(&place).start(&place).await;
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
    let output = tools::run(&sanity, arguments, place.path()).await;
    let specs = read(&report);
    let failed: Vec<_> = specs
        .iter()
        .filter(|spec| !["passed", "skipped", "pending"].contains(&spec.state.as_str()))
        .map(|spec| {
            (
                spec.name(),
                spec.failure.as_ref().map(|failure| &failure.message),
            )
        })
        .collect();
    assert!(failed.is_empty(), "{failed:#?}\n{}", log_of(&place));
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
    count(&specs);
    assert_eq!(
        place.mounts(),
        Vec::<std::path::PathBuf>::new(),
        "mounts are left"
    );
    assert!(server.terminate().await.success());
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
