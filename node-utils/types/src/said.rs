//! The sentences and words about broken links of a volume. A condition, the event that is made of it, and `explain` say the
//! same, so that one can be found by the other. The fact comes first and what it is about last: up to 1.12 a condition has 128
//! bytes, and the path of a volume may be longer.

use std::fmt::Display;
use std::time::Duration;

use crate::health::Reason;

/// The export of a volume is not there, or not as it should be.
pub const EXPORT_MISSING: Reason = Reason::constant("ExportMissing");
/// Nothing is mounted where the volume should be.
pub const NOT_MOUNTED: Reason = Reason::constant("NotMounted");
/// What is mounted, or its server, does not answer.
pub const NO_ANSWER: Reason = Reason::constant("FilesystemDoesNotAnswer");
/// No session or connection with the storage works.
pub const SESSION_DOWN: Reason = Reason::constant("SessionDown");

/// The sentence of [`EXPORT_MISSING`].
pub const NOT_EXPORTED: &str = "the export is missing, disabled or incomplete";

/// The sentence of [`NOT_MOUNTED`].
pub fn not_mounted(path: impl Display) -> String {
    format!("nothing is mounted at {path}")
}

/// The sentence of [`NO_ANSWER`].
pub fn no_answer(what: impl Display, within: Duration) -> String {
    format!("{}: {what}", late(within))
}

/// The end of a sentence about what is waited for no longer.
pub fn late(within: Duration) -> String {
    format!("did not answer in {} s", within.as_secs())
}

/// The sentence of [`SESSION_DOWN`]. The other end is a target or a subsystem.
pub fn not_connected(with: impl Display) -> String {
    format!("this node has no working connection with {with}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fact_fits_into_a_condition_up_to_1_12_whatever_the_path() {
        let driver = "org.democratic-csi.node-manual-volumes";
        let hash = "0".repeat(64);
        let path =
            format!("/var/lib/kubelet/plugins/kubernetes.io/csi/{driver}/{hash}/globalmount");
        assert!(path.len() >= 140, "{}", path.len());
        let iqn = format!("iqn.2005-10.org.freenas.ctl:{}", "a".repeat(190));
        for (text, about) in [
            (NOT_EXPORTED.to_owned(), ""),
            (not_mounted(&path), path.as_str()),
            (no_answer(&path, Duration::from_secs(10)), path.as_str()),
            (not_connected(&iqn), iqn.as_str()),
        ] {
            let fact = text.strip_suffix(about).expect("the fact comes first");
            assert!(!fact.is_empty() && fact.len() < 64, "{fact}");
        }
    }
}
