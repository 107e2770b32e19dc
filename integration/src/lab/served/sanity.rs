//! csi-sanity over a driver that makes and exports its volumes, on real storage.

use std::process::Output;

use super::{Served, storage};
use crate::lab::fixture::Access;
use crate::lab::leftovers::Leftovers;
use crate::place::Place;
use crate::requirement;
use crate::sanity::{self, ANY_NODE, PENDING, Questions, SPECS, Spec, ended};
use crate::server::log_of;

/// The skipped specs, and why.
const SKIPPED: [(&str, &str); 3] = [
    (
        "accessibility requirements",
        "a snapshot is where its volume is",
    ),
    (
        "node max attach limit",
        "a node reports no number of volumes",
    ),
    (
        "already published but is incompatible",
        "nothing is published read-only",
    ),
];

/// The specs that are also skipped where no class of attributes changes a volume.
const SKIPPED_WITHOUT_CHANGES: [&str; 2] = ["ModifyVolume", "volume attribute class"];

/// The specs that are also skipped where no snapshots are taken at one moment.
const SKIPPED_WITHOUT_GROUPS: &str = "GroupController";
/// The specs that are also skipped where the storage is that of the node.
const SKIPPED_UNATTACHED: [&str; 3] = [
    "ControllerPublishVolume",
    "ControllerUnpublishVolume",
    "volume lifecycle",
];

/// The specs that are also skipped where a volume grows without the node.
const SKIPPED_OF_SHARES: &str = "NodeExpandVolume";
/// The specs that are also skipped where the node alone expands a volume.
const SKIPPED_OF_THE_NODE: &str = "ExpandVolume [Controller Server]";

/// How many run, how many of these expand by the controller, and how many more run where a node expands, volumes are
/// attached, groups are taken, or classes of attributes change volumes.
const RAN: usize = 73;
const RAN_OF_THE_CONTROLLER: usize = 3;
const RAN_OF_EXPANSION: usize = 4;
const RAN_ATTACHED: usize = 7;
const RAN_OF_GROUPS: usize = 6;
const RAN_OF_CHANGES: usize = 8;

/// A line of the section `zfs`: what classes may set, and a class that sets it.
pub(super) const ALLOWED: &str = "  volumeParameters: [compression]\n";
const ATTRIBUTES: &str = "compression: lz4\n";

/// Every spec runs that the driver's capabilities call for, and none fails.
///
/// # Panics
/// If one fails, or the machine is not as before.
pub async fn nothing_fails(served: Served) {
    let program = requirement::tool_from("csi-sanity", "OMNIBUS_CSI_SANITY")
        .expect("the lab is given csi-sanity");
    let place = Place::new();
    let launch = served.launch_with(&place, ALLOWED);
    let before = (Leftovers::read(), storage());
    let secrets = secrets(served);
    let report = sanity::run(
        &program,
        &launch,
        &place,
        &questions(served, secrets.as_ref()),
    )
    .await;
    let failing = if served.is_expanded_by_the_controller() {
        ANY_NODE.as_slice()
    } else {
        &[]
    };
    let passed = judge(served, &report.0, &report.1, &place, failing);
    assert_eq!(passed, due(served), "as many as its capabilities call for");
    Leftovers::back_to(&before.0, "csi-sanity").await;
    assert_eq!(storage(), before.1, "the storage is as before");
}

/// How many run where a driver is alone in a process.
pub(super) fn due(served: Served) -> usize {
    let of_groups = if served.takes_groups() {
        RAN_OF_GROUPS
    } else {
        0
    };
    let of_changes = if served.takes_changes() {
        RAN_OF_CHANGES
    } else {
        0
    };
    of_groups
        + of_changes
        + match (served.is_expanded_by_the_controller(), served.is_device()) {
            (true, true) => RAN + RAN_OF_EXPANSION + RAN_ATTACHED,
            (true, false) => RAN + RAN_ATTACHED,
            (false, _) => RAN + RAN_OF_EXPANSION - RAN_OF_THE_CONTROLLER,
        }
}

/// The secrets of its stages, as YAML.
pub(super) fn secrets(served: Served) -> Option<String> {
    let lines = served.secrets().into_iter();
    let lines: Vec<_> = lines
        .map(|(key, value)| format!("  {key}: '{value}'"))
        .collect();
    (!lines.is_empty()).then(|| format!("NodeStageVolumeSecret:\n{}\n", lines.join("\n")))
}

/// The settings of the suite for a kind of volumes.
pub(super) fn questions(served: Served, secrets: Option<&String>) -> Questions<'_> {
    Questions {
        attributes: served.takes_changes().then_some(ATTRIBUTES),
        secrets: secrets.map(String::as_str),
        is_block: served.access == Access::Block,
        size: i64::try_from(served.sizes().0).ok(),
        ..Questions::default()
    }
}

/// Only the specs whose names end with `failing` failed, each once, and nothing was skipped without a
/// reason; how many passed.
///
/// # Panics
/// If that is not so.
pub(super) fn judge(
    served: Served,
    specs: &[Spec],
    output: &Output,
    place: &Place,
    failing: &[&str],
) -> usize {
    let failed: Vec<_> = specs.iter().filter_map(Spec::failed).collect();
    let names = || failed.iter().map(|(name, _)| name);
    let times = |words: &str| names().filter(|name| name.ends_with(words)).count();
    assert!(
        failed.len() == failing.len() && failing.iter().all(|words| times(words) == 1),
        "{failed:#?}\n{}",
        log_of(place)
    );
    assert_eq!(
        output.status.success(),
        failing.is_empty(),
        "csi-sanity: {}",
        output.status
    );
    let skipped = ended(specs, "skipped");
    let of_the_node = !served.is_expanded_by_the_controller();
    let share = !served.is_device() && !of_the_node;
    let known = |name: &str| {
        let always = SKIPPED.iter().any(|(words, _)| name.contains(words));
        always
            || (!served.takes_groups() && name.contains(SKIPPED_WITHOUT_GROUPS))
            || (!served.takes_changes()
                && SKIPPED_WITHOUT_CHANGES
                    .iter()
                    .any(|words| name.contains(words)))
            || (share && name.contains(SKIPPED_OF_SHARES))
            || (of_the_node && name.contains(SKIPPED_OF_THE_NODE))
            || (of_the_node && SKIPPED_UNATTACHED.iter().any(|words| name.contains(words)))
    };
    let unexpected: Vec<_> = skipped.iter().filter(|name| !known(name)).collect();
    assert!(
        unexpected.is_empty(),
        "skipped without a reason: {unexpected:#?}"
    );
    let passed = ended(specs, "passed").len();
    assert_eq!(passed + failed.len() + skipped.len() + PENDING, SPECS);
    passed
}
