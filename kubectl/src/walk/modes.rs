//! The access modes that a claim asks for, and its volume or its driver does not give.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};

/// The access modes of Kubernetes, each with those of CSI that stand for it.
const OF_CSI: [(&str, &[&str]); 4] = [
    (
        "ReadWriteOnce",
        &["SINGLE_NODE_WRITER", "SINGLE_NODE_MULTI_WRITER"],
    ),
    ("ReadWriteOncePod", &["SINGLE_NODE_SINGLE_WRITER"]),
    ("ReadOnlyMany", &["MULTI_NODE_READER_ONLY"]),
    ("ReadWriteMany", &["MULTI_NODE_MULTI_WRITER"]),
];
/// The words of a driver between the mode that it refuses and those that it gives.
const ONLY: &str = " is not supported, only ";

/// The modes of a claim and of a volume that lacks one of them.
pub(super) fn of_volume(
    claim: &PersistentVolumeClaim,
    volume: &PersistentVolume,
) -> Option<String> {
    let spec = volume.spec.as_ref()?;
    let (asked, given) = (
        asked(claim),
        spec.access_modes.as_deref().unwrap_or_default(),
    );
    let fits = asked.iter().all(|mode| given.contains(mode));
    (!fits).then(|| {
        let (asked, given) = (asked.join(", "), given.join(", "));
        format!("the claim asks for {asked}, and the volume gives {given}")
    })
}

/// The modes of a claim and of a driver that refuses one of them with this message.
pub(super) fn of_driver(claim: &PersistentVolumeClaim, message: &str) -> Option<String> {
    let (refused, given) = message.split_once(ONLY)?;
    if !refused.contains("access mode ") {
        return None;
    }
    let is_between = |char: char| !(char.is_ascii_uppercase() || char == '_');
    let named: Vec<_> = given.split(is_between).collect();
    let given = OF_CSI
        .iter()
        .filter(|(_, names)| names.iter().any(|name| named.contains(name)));
    let given: Vec<_> = given.map(|(mode, _)| *mode).collect();
    let (asked, given) = (asked(claim).join(", "), given.join(", "));
    Some(format!(
        "the claim asks for {asked}, and the driver gives {given}"
    ))
}

fn asked(claim: &PersistentVolumeClaim) -> &[String] {
    let spec = claim.spec.as_ref();
    let modes = spec.and_then(|spec| spec.access_modes.as_deref());
    modes.unwrap_or_default()
}
