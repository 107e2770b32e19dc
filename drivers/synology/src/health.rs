//! The health of what volumes lie on: of the volume of the NAS, and of a LUN.
//!
//! Synology documents no words for it. Its own CSI driver passes over a volume that is `crashed`, `read_only` or
//! `deleting`, and one without fault is `normal`: any other word is shown as it is, and is never healthy.

use std::collections::{BTreeMap, BTreeSet};

use csi_types::said::{EXPORT_MISSING, NOT_EXPORTED};
use driver_core::{Call, Condition, ConditionKind, Conditions, Error, Reason};

use crate::api::{Lun, NasVolume};
use crate::client::Client;
use crate::error::Failure;

/// With less than this left nothing of any size can be written, in bytes.
const NO_ROOM: u64 = 1 << 20;
/// The longest word of DSM that is shown.
const LONGEST_WORD: usize = 32;
/// The word for what has no fault.
const NORMAL: &str = "normal";

const POOL_DEGRADED: Reason = Reason::constant("PoolDegraded");
const POOL_UNUSABLE: Reason = Reason::constant("PoolUnusable");
const POOL_UNKNOWN: Reason = Reason::constant("PoolUnknown");
const POOL_FULL: Reason = Reason::constant("PoolFull");
const READ_ONLY: Reason = Reason::constant("FilesystemReadOnly");
const LUN_DEGRADED: Reason = Reason::constant("LunDegraded");
const LUN_UNUSABLE: Reason = Reason::constant("LunUnusable");

/// A word of DSM as it can be shown.
fn shown(word: &str) -> &str {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    if word.len() <= LONGEST_WORD && word.chars().all(is_plain) {
        word
    } else {
        "something else"
    }
}

fn degraded(reason: Reason, why: String) -> Condition {
    Condition::new(ConditionKind::Degraded, reason, why)
}

fn inaccessible(reason: Reason, why: String) -> Condition {
    Condition::new(ConditionKind::Inaccessible, reason, why)
}

/// The condition of a volume that nothing shows to nodes.
pub(crate) fn not_exported(why: &str) -> Condition {
    inaccessible(EXPORT_MISSING, format!("{NOT_EXPORTED}: {why}"))
}

/// The conditions of a volume of the NAS, which all volumes on it share.
fn of_nas_volume(path: &str, volume: Option<&NasVolume>) -> Conditions {
    let Some(volume) = volume else {
        let why = format!("the NAS has no volume {path}: see Storage Manager");
        return [inaccessible(POOL_UNUSABLE, why)].into_iter().collect();
    };
    let word = shown(&volume.status);
    let why = format!("volume {path} of the NAS is `{word}`: see Storage Manager");
    let mut all = Conditions::default();
    match volume.status.as_str() {
        NORMAL | "read_only" => {}
        "crashed" | "deleting" => all.add(inaccessible(POOL_UNUSABLE, why)),
        "" => {
            let why = format!("DSM does not say how its volume {path} is");
            all.add(degraded(POOL_UNKNOWN, why));
        }
        _ => all.add(degraded(POOL_DEGRADED, why)),
    }
    if volume.readonly || volume.status == "read_only" {
        let why = format!("volume {path} of the NAS is read-only: see Storage Manager");
        all.add(degraded(READ_ONLY, why));
    }
    if volume.size_free_byte.is_some_and(|free| free < NO_ROOM) {
        let why = format!("volume {path} of the NAS has no room left");
        all.add(degraded(POOL_FULL, why));
    }
    all
}

/// The condition of a LUN. One that DSM works on has no state to rely on, and where DSM says nothing of it that of its
/// volume counts.
pub(crate) fn of_lun(lun: &Lun) -> Option<Condition> {
    if lun.is_action_locked {
        return None;
    }
    let word = shown(&lun.status);
    let why = format!("LUN `{}` is `{word}`: see SAN Manager", lun.name);
    match lun.status.as_str() {
        NORMAL | "" => None,
        "crashed" => Some(inaccessible(LUN_UNUSABLE, why)),
        _ => Some(degraded(LUN_DEGRADED, why)),
    }
}

/// The conditions of these volumes of the NAS, by their paths.
pub(crate) async fn of_nas_volumes<'a>(
    client: &Client,
    call: &Call,
    paths: BTreeSet<&'a str>,
    doing: &str,
) -> Result<BTreeMap<&'a str, Conditions>, Error> {
    let mut all = BTreeMap::new();
    for path in paths {
        let volume = client.volume(call, path).await;
        let volume = volume.map_err(|failure: Failure| failure.while_doing(call, doing))?;
        all.insert(path, of_nas_volume(path, volume.as_ref()));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(text: &str) -> NasVolume {
        serde_json::from_str(text).expect("a volume")
    }

    fn reasons(text: &str) -> Vec<&'static str> {
        let found = of_nas_volume("/volume1", Some(&volume(text)));
        found.iter().map(|one| one.reason().as_str()).collect()
    }

    #[test]
    fn what_dsm_does_not_call_normal_is_never_healthy() {
        for (text, expected) in [
            (
                r#"{"status": "normal", "size_free_byte": "9000000"}"#,
                vec![],
            ),
            (
                r#"{"status": "normal", "size_free_byte": "9"}"#,
                vec!["PoolFull"],
            ),
            (
                r#"{"status": "normal", "readonly": true}"#,
                vec!["FilesystemReadOnly"],
            ),
            (r#"{"status": "read_only"}"#, vec!["FilesystemReadOnly"]),
            (r#"{"status": "degrade"}"#, vec!["PoolDegraded"]),
            (r#"{"status": "crashed"}"#, vec!["PoolUnusable"]),
            ("{}", vec!["PoolUnknown"]),
        ] {
            assert_eq!(reasons(text), expected, "{text}");
        }
        let gone = of_nas_volume("/volume1", None);
        assert_eq!(gone.worst().map(Condition::reason), Some(POOL_UNUSABLE));
    }

    #[test]
    fn a_word_that_is_none_is_not_shown() {
        let odd = of_nas_volume("/volume1", Some(&volume(r#"{"status": "a\nb"}"#)));
        let text = odd.worst().map(Condition::message).unwrap_or_default();
        assert!(text.contains("something else"), "{text}");
    }
}
