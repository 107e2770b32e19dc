//! Parameters of classes that no driver reads: misspelt, in most cases.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use driver_core::Parameters;
use driver_core::parameters::{CONNECTION, CONNECTIONS, unscoped};
use tracing::warn;

/// The keys that some driver or the proxy reads, without their scope.
const READ: [&str; 9] = [
    "config",
    "detachedSnapshots",
    "detachedVolumesFromSnapshots",
    "detachedVolumesFromVolumes",
    "driver",
    "fsType",
    "lunSnapshotTemplate",
    "lunTemplate",
    "targetTemplate",
];
/// The beginnings of others: variables of `ObjectiveFS`, and what sidecars add.
const READ_BELOW: [&str; 2] = ["env.", "csi.storage.k8s.io/"];
/// More keys than these are not remembered, and not reported. Classes have a few dozen keys; names that a program makes
/// up must not fill the memory.
const MOST: usize = 256;

/// The keys that were reported: each once.
static REPORTED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Warns of keys that nothing reads but templates. `is_routed`: connections have names. `sets`: a driver of the class sets
/// something by this key.
pub(super) fn warn(parameters: &Parameters, is_routed: bool, sets: impl Fn(&str) -> bool) {
    for key in parameters
        .raw()
        .keys()
        .filter(|key| !is_read(key, is_routed) && !sets(unscoped(key)))
    {
        let mut reported = REPORTED.lock().unwrap_or_else(PoisonError::into_inner);
        if reported.len() < MOST && reported.insert(key.clone()) {
            warn!(
                key = %key.escape_debug(),
                "no driver reads this parameter of a class: it counts in templates of the configuration only. \
                 Correct its spelling, allow it in `zfs.volumeParameters` if it is a property of ZFS, or remove it"
            );
        }
    }
}

fn is_read(key: &str, is_routed: bool) -> bool {
    let own = unscoped(key);
    let routes = [CONNECTION, CONNECTIONS];
    READ.iter().any(|read| own.eq_ignore_ascii_case(read))
        || is_routed && routes.iter().any(|read| own.eq_ignore_ascii_case(read))
        || READ_BELOW.iter().any(|start| own.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_driver_reads_is_known_in_every_scope_and_a_misspelling_is_not() {
        for key in [
            "connection",
            "fstype",
            "env.OBJECTSTORE",
            "csi.storage.k8s.io/pvc/name",
            "democratic-csi.org/detachedSnapshots",
            "democratic-csi.org/nas-1/lunTemplate",
        ] {
            assert!(is_read(key, true), "{key}");
        }
        for key in [
            "conection",
            "bogus",
            "democratic-csi.org/nas-1/lunTemplat",
            "",
        ] {
            assert!(!is_read(key, true), "{key}");
        }
        // Where there is one connection, nothing is chosen by it.
        assert!(!is_read("connection", false));
    }
}
