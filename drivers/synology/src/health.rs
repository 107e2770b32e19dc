//! The health of what volumes lie on: of the volume of the NAS, and of a LUN.
//!
//! Synology documents no words for it. Its own CSI driver passes over a volume that is `crashed`, `read_only` or
//! `deleting`, and one without fault is `normal`. DSM has more words for volumes that work as they should: while it scrubs
//! one, and as long as a disk of it is not on the list of Synology. So only a word that is known to name a fault is one.

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
/// The beginnings of the words for what has one.
const FAULTS: [(&str, Fault); 4] = [
    ("degrade", Fault::Degraded),
    ("read_only", Fault::ReadOnly),
    ("crashed", Fault::Unusable),
    ("deleting", Fault::Unusable),
];

const POOL_DEGRADED: Reason = Reason::constant("PoolDegraded");
const POOL_UNUSABLE: Reason = Reason::constant("PoolUnusable");
const POOL_UNKNOWN: Reason = Reason::constant("PoolUnknown");
const POOL_FULL: Reason = Reason::constant("PoolFull");
const READ_ONLY: Reason = Reason::constant("FilesystemReadOnly");
const LUN_DEGRADED: Reason = Reason::constant("LunDegraded");
const LUN_UNUSABLE: Reason = Reason::constant("LunUnusable");

/// A fault of a volume of the NAS, or of a LUN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Degraded,
    ReadOnly,
    Unusable,
}

/// The fault that a word of DSM names; `of` is for the log.
fn fault(of: &str, word: &str) -> Option<Fault> {
    let named = FAULTS.iter().find(|(begin, _)| word.starts_with(begin));
    if named.is_none() && !matches!(word, "" | NORMAL) {
        tracing::debug!(of, because = shown(word), "a state that names no fault");
    }
    named.map(|(_, fault)| *fault)
}

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

/// The condition of a volume that some of its clients cannot use.
pub(crate) fn partly_exported(why: &str) -> Condition {
    degraded(EXPORT_MISSING, format!("{NOT_EXPORTED}: {why}"))
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
    let fault = fault(path, &volume.status);
    match fault {
        Some(Fault::Unusable) => all.add(inaccessible(POOL_UNUSABLE, why)),
        Some(Fault::Degraded) => all.add(degraded(POOL_DEGRADED, why)),
        None if volume.status.is_empty() => {
            let why = format!("DSM does not say how its volume {path} is");
            all.add(degraded(POOL_UNKNOWN, why));
        }
        Some(Fault::ReadOnly) | None => {}
    }
    if volume.readonly || fault == Some(Fault::ReadOnly) {
        let why = format!("volume {path} of the NAS is read-only: see Storage Manager");
        all.add(degraded(READ_ONLY, why));
    }
    if volume.size_free_byte.is_some_and(|free| free < NO_ROOM) {
        let why = format!("volume {path} of the NAS has no room left");
        all.add(degraded(POOL_FULL, why));
    }
    all
}

/// The conditions of the volume of the NAS that are those of a LUN on it. What a thick LUN may hold is reserved for it.
pub(crate) fn of_place(lun: &Lun, common: &Conditions) -> Conditions {
    let is_thick = lun.kind == "FILE" || lun.kind.contains("THICK");
    let counts = |one: &&Condition| !is_thick || one.reason() != POOL_FULL;
    common.iter().filter(counts).cloned().collect()
}

/// The condition of a LUN, also while DSM works on it. One that is being deleted is as it should be.
pub(crate) fn of_lun(lun: &Lun) -> Option<Condition> {
    let word = shown(&lun.status);
    let why = format!("LUN `{}` is `{word}`: see SAN Manager", lun.name);
    match fault(&lun.name, &lun.status)? {
        Fault::Unusable if lun.status.starts_with("deleting") => None,
        Fault::Unusable => Some(inaccessible(LUN_UNUSABLE, why)),
        Fault::Degraded | Fault::ReadOnly => Some(degraded(LUN_DEGRADED, why)),
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
    fn a_volume_of_the_nas_is_ill_by_the_words_that_name_a_fault() {
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
            (r#"{"status": "degraded_repairing"}"#, vec!["PoolDegraded"]),
            (r#"{"status": "crashed"}"#, vec!["PoolUnusable"]),
            (r#"{"status": "deleting"}"#, vec!["PoolUnusable"]),
            (r#"{"status": "has_acceptable_disk"}"#, vec![]),
            (r#"{"status": "data_scrubbing"}"#, vec![]),
            ("{}", vec!["PoolUnknown"]),
        ] {
            assert_eq!(reasons(text), expected, "{text}");
        }
        let gone = of_nas_volume("/volume1", None);
        assert_eq!(gone.worst().map(Condition::reason), Some(POOL_UNUSABLE));
    }

    #[test]
    fn a_lun_is_ill_by_the_words_that_name_a_fault_also_while_dsm_works_on_it() {
        for (status, expected) in [
            ("normal", None),
            ("", None),
            ("cloning", None),
            ("deleting", None),
            ("degrade", Some(LUN_DEGRADED)),
            ("crashed", Some(LUN_UNUSABLE)),
        ] {
            for is_action_locked in [false, true] {
                let lun = Lun {
                    status: status.to_owned(),
                    is_action_locked,
                    ..Lun::made("uuid", "pvc-1", 1, "")
                };
                let found = of_lun(&lun).map(|one| one.reason());
                assert_eq!(found, expected, "{status}: {is_action_locked}");
            }
        }
    }

    #[test]
    fn a_volume_without_room_is_no_condition_of_a_thick_lun() {
        let text = r#"{"status": "degrade", "size_free_byte": "9"}"#;
        let common = of_nas_volume("/volume1", Some(&volume(text)));
        for (kind, expected) in [
            ("BLUN", vec!["PoolDegraded", "PoolFull"]),
            ("THIN", vec!["PoolDegraded", "PoolFull"]),
            ("", vec!["PoolDegraded", "PoolFull"]),
            ("BLUN_THICK", vec!["PoolDegraded"]),
            ("CINDER_BLUN_THICK", vec!["PoolDegraded"]),
            ("FILE", vec!["PoolDegraded"]),
        ] {
            let lun = Lun {
                kind: kind.to_owned(),
                ..Lun::made("uuid", "pvc-1", 1, "")
            };
            let found = of_place(&lun, &common);
            let found: Vec<_> = found.iter().map(|one| one.reason().as_str()).collect();
            assert_eq!(found, expected, "{kind}");
        }
    }

    #[test]
    fn a_word_that_is_none_is_not_shown() {
        let odd = volume(r#"{"status": "crashed\nb"}"#);
        let odd = of_nas_volume("/volume1", Some(&odd));
        let text = odd.worst().map(Condition::message).unwrap_or_default();
        assert!(text.contains("something else"), "{text}");
    }
}
