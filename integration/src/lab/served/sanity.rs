//! csi-sanity over a driver that makes and exports its volumes, on real storage.

use std::process::Output;

use super::{Served, storage};
use crate::lab::remains::Remains;
use crate::lab::supply::Access;
use crate::place::Place;
use crate::requirement;
use crate::sanity::{self, PENDING, Questions, SPECS, Spec, ended};
use crate::server::log_of;

/// Enough for each filesystem, and little to format on an emulated processor.
const SIZE: i64 = 512 << 20;

/// What may be skipped, and why.
const SKIPPED: [(&str, &str); 7] = [
    ("ControllerPublishVolume", "every node is let in"),
    ("ControllerUnpublishVolume", "every node is let in"),
    ("ModifyVolume", "nothing of a volume can be modified"),
    (
        "volume attribute class",
        "nothing of a volume can be modified",
    ),
    ("GroupController", "volumes are not cut together"),
    ("NodeExpandVolume", "a share needs nothing done on the node"),
    ("volume lifecycle", "the one without ControllerPublish runs"),
];

/// Every spec runs that the driver's capabilities call for, and none fails.
///
/// # Panics
/// If one fails, or the machine is not as before.
pub async fn nothing_fails(served: Served) {
    let program = requirement::tool_from("csi-sanity", "OMNIBUS_CSI_SANITY")
        .expect("the lab is given csi-sanity");
    let place = Place::new();
    let launch = served.launch(&place);
    let before = (Remains::read(), storage());
    let secrets = secrets(served);
    let told = sanity::run(&program, &launch, &place, &questions(served, secrets.as_ref())).await;
    judge(&told.0, &told.1, &place);
    Remains::back_to(&before.0, "csi-sanity").await;
    assert_eq!(storage(), before.1, "the storage is as before");
}

/// The secrets of its stages, as YAML.
pub(super) fn secrets(served: Served) -> Option<String> {
    let lines = served.secrets().into_iter();
    let lines: Vec<_> = lines
        .map(|(key, value)| format!("  {key}: '{value}'"))
        .collect();
    (!lines.is_empty()).then(|| format!("NodeStageVolumeSecret:\n{}\n", lines.join("\n")))
}

/// What the suite is told of a kind of volumes.
pub(super) fn questions(served: Served, secrets: Option<&String>) -> Questions<'_> {
    Questions {
        secrets: secrets.map(String::as_str),
        is_block: served.access == Access::Block,
        size: Some(SIZE),
        ..Questions::default()
    }
}

/// Nothing failed, and nothing was skipped without a reason.
///
/// # Panics
/// If that is not so.
pub(super) fn judge(specs: &[Spec], output: &Output, place: &Place) {
    let failed: Vec<_> = specs.iter().filter_map(Spec::failed).collect();
    assert!(failed.is_empty(), "{failed:#?}\n{}", log_of(place));
    assert!(output.status.success(), "csi-sanity: {}", output.status);
    let skipped = ended(specs, "skipped");
    let unexpected: Vec<_> = skipped
        .iter()
        .filter(|name| !SKIPPED.iter().any(|(words, _)| name.contains(words)))
        .collect();
    assert!(
        unexpected.is_empty(),
        "skipped without a reason: {unexpected:#?}"
    );
    let passed = ended(specs, "passed").len();
    assert_eq!(passed + skipped.len() + PENDING, SPECS);
    assert!(passed >= AT_LEAST, "only {passed} ran: {skipped:#?}");
}

/// So many ran over directories, which can do less.
const AT_LEAST: usize = 67;
