//! csi-sanity, the specification's own suite: every spec runs, none fails, and what is skipped is
//! skipped because it belongs to a capability that we do not advertise.

use std::collections::BTreeSet;

use integration::place::Place;
use integration::requirement;
use integration::sanity::{self, PENDING, Questions, SPECS, Spec, UNATTACHED, ended};
use integration::server::{Launch, log_of};

/// The skipped specs, by the words with which a spec's name begins or which it holds, and why.
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
    (
        "ExpandVolume [Controller",
        "storage of the node grows on the node: NodeExpandVolume runs",
    ),
    (
        "volume lifecycle",
        "with ControllerPublish; the one without it runs",
    ),
    (
        "accessibility requirements",
        "a snapshot is where its volume is",
    ),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn csi_sanity_passes_and_skips_only_what_is_not_advertised() {
    const WHAT: &str = "csi-sanity";
    if !requirement::root(WHAT) {
        return;
    }
    let Some(program) = requirement::tool_from(WHAT, "OMNIBUS_CSI_SANITY") else {
        return;
    };
    let place = Place::new();
    let (specs, output) = sanity::run(
        &program,
        &Launch::local_hostpath(&place),
        &place,
        &Questions::default(),
    )
    .await;
    let failed: Vec<_> = specs.iter().filter_map(Spec::failed).collect();
    assert!(failed.is_empty(), "{failed:#?}\n{}", log_of(&place));
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
    count(&specs);
}

/// With no flag but the socket, as a developer of a driver runs it: the folders of the suite are none of a kubelet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn csi_sanity_passes_with_its_default_folders() {
    const WHAT: &str = "csi-sanity with its default folders";
    if !requirement::root(WHAT) {
        return;
    }
    let Some(program) = requirement::tool_from(WHAT, "OMNIBUS_CSI_SANITY") else {
        return;
    };
    let place = Place::new();
    let folder = place.path().join("tmp");
    std::fs::create_dir(&folder).expect("a folder");
    let questions = Questions {
        default_folders: Some(folder.clone()),
        ..Questions::default()
    };
    // The default of the program.
    let launch = Launch::local_hostpath(&place).set("--kubelet-dir", "/var/lib/kubelet");
    let (specs, output) = sanity::run(&program, &launch, &place, &questions).await;
    let failed: Vec<_> = specs.iter().filter_map(Spec::failed).collect();
    assert!(failed.is_empty(), "{failed:#?}\n{}", log_of(&place));
    assert!(output.status.success());
    count(&specs);
    let asked = log_of(&place).contains("/tmp/csi-");
    assert!(asked, "it asked for other folders: {}", log_of(&place));
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("mounts");
    let below = folder.display().to_string();
    assert!(!mounts.contains(&below), "mounts are left below {below}");
}

/// Everything runs over one of two connections behind the proxy too. `ControllerExpandVolume` and
/// publishing run as well: some connection may need them. The volumes of this one are storage of a node,
/// so that no call checks whether such a volume or such a node exists: those two specs fail.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn csi_sanity_passes_over_a_connection_behind_the_proxy() {
    const WHAT: &str = "csi-sanity over the proxy";
    if !requirement::root(WHAT) {
        return;
    }
    let Some(program) = requirement::tool_from(WHAT, "OMNIBUS_CSI_SANITY") else {
        return;
    };
    let place = Place::new();
    let other = Place::new();
    let files = [("one", &place), ("other", &other)]
        .map(|(name, home)| (name, Launch::local_hostpath(home).config));
    let files = files.iter().map(|(name, text)| (*name, text.as_str()));
    let launch = Launch::proxy(&place.path().join("connections"), "one", files);
    let questions = Questions {
        class: Some("connection: one\n"),
        ..Questions::default()
    };
    let (specs, output) = sanity::run(&program, &launch, &place, &questions).await;
    let failed: Vec<_> = specs.iter().filter_map(Spec::failed).collect();
    let unasked = |name: &str| UNATTACHED.iter().any(|spec| name.ends_with(spec));
    assert!(
        failed.len() == UNATTACHED.len() && failed.iter().all(|(name, _)| unasked(name)),
        "{failed:#?}\n{}",
        log_of(&place)
    );
    assert!(!output.status.success());
    let ran = specs.iter().filter(|spec| spec.state == "passed").count();
    assert_eq!((ran, specs.len()), (RAN_BEHIND_THE_PROXY, SPECS));
}

/// Over a legacy name of that connection everything is as if it were alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn csi_sanity_passes_over_a_legacy_name_as_over_the_driver_alone() {
    const WHAT: &str = "csi-sanity over a legacy name";
    if !requirement::root(WHAT) {
        return;
    }
    let Some(program) = requirement::tool_from(WHAT, "OMNIBUS_CSI_SANITY") else {
        return;
    };
    let place = Place::new();
    let other = Place::new();
    let files = [("one", &place), ("other", &other)]
        .map(|(name, home)| (name, Launch::local_hostpath(home).config));
    let files = files.iter().map(|(name, text)| (*name, text.as_str()));
    let mut launch = Launch::proxy(&place.path().join("connections"), "other", files);
    launch.config += "  legacyNames: {org.old: one}\n";
    let questions = Questions {
        socket: Some(place.path().join("org.old/csi.sock")),
        ..Questions::default()
    };
    let (specs, output) = sanity::run(&program, &launch, &place, &questions).await;
    let failed: Vec<_> = specs.iter().filter_map(Spec::failed).collect();
    assert!(failed.is_empty(), "{failed:#?}\n{}", log_of(&place));
    assert!(output.status.success());
    count(&specs);
}

/// The number of those that pass there: three of `ControllerExpandVolume`, three of `ControllerPublishVolume`, one of
/// `ControllerUnpublishVolume`, and two lives of a volume.
const RAN_BEHIND_THE_PROXY: usize = RAN + 9;

/// Volumes of node-manual are written by hand, which csi-sanity does not do: what makes one first
/// cannot run. Everything else does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn csi_sanity_passes_over_node_manual_where_it_needs_no_controller() {
    const WHAT: &str = "csi-sanity over node-manual";
    let Some(program) = requirement::tool_from(WHAT, "OMNIBUS_CSI_SANITY") else {
        return;
    };
    let place = Place::new();
    let launch = Launch::new("driver: node-manual\n");
    let (specs, _) = sanity::run(&program, &launch, &place, &Questions::default()).await;
    let failed: Vec<_> = specs.iter().filter_map(Spec::failed).collect();
    let other: Vec<_> = failed
        .iter()
        .filter(|(_, text)| !text.contains("volume is not supported by this driver"))
        .collect();
    assert!(other.is_empty(), "{other:#?}\n{}", log_of(&place));
    let passed = specs.iter().filter(|spec| spec.state == "passed");
    assert_eq!((passed.count(), failed.len()), (21, 8), "{failed:#?}");
}

fn count(specs: &[Spec]) {
    let (skipped, pending) = (ended(specs, "skipped"), ended(specs, "pending"));
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
    let ran = ended(specs, "passed").len();
    assert_eq!(
        (ran, skipped.len()),
        (RAN, SPECS - PENDING - RAN),
        "{skipped:#?}"
    );
}

/// The number of those that run.
const RAN: usize = 80;
