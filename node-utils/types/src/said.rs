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

/// Nothing more can be written: the filesystem or a quota is full.
pub const FULL: Reason = Reason::constant("FilesystemFull");
/// No more files can be made: the filesystem or a quota has no inodes left.
pub const NO_INODES: Reason = Reason::constant("NoInodesLeft");
/// What is mounted is another directory than that of the volume.
pub const ANOTHER_DIRECTORY: Reason = Reason::constant("AnotherDirectory");

/// The sentence of [`FULL`]. Root may have a reserve.
pub const IS_FULL: &str = "it is full: less than 1 MiB is left without root's reserve";
/// With less than this left nothing of any size can be written, in bytes.
const NO_ROOM: u64 = 1 << 20;

/// The sentence of [`EXPORT_MISSING`].
pub const NOT_EXPORTED: &str = "the export is missing, disabled or incomplete";

/// Whether a filesystem or quota of this size, with so much left to all but root, is [`FULL`]. Both are in bytes. Of a small
/// one it takes less than a hundredth: it would never have room otherwise. One that counts nothing has room.
pub fn is_full(left: u64, total: u64) -> bool {
    left < NO_ROOM.min(total / 100)
}

/// The sentence of [`NOT_MOUNTED`].
pub fn not_mounted(path: impl Display) -> String {
    format!("nothing is mounted at {path}")
}

/// The sentence of [`NO_INODES`].
pub fn no_inodes(total: u64) -> String {
    format!("no inodes are left ({total} of {total} files)")
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
    fn little_left_is_full_by_the_size_of_what_it_is_left_of() {
        assert!(is_full(NO_ROOM - 1, 1 << 40) && !is_full(NO_ROOM, 1 << 40));
        assert!(!is_full(NO_ROOM / 2, NO_ROOM), "a small quota has room");
        assert!(is_full(4096, NO_ROOM) && is_full(0, NO_ROOM));
        assert!(!is_full(0, 0), "it counts nothing");
    }

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
            (IS_FULL.to_owned(), ""),
            (no_inodes(1 << 30), ""),
            (not_mounted(&path), path.as_str()),
            (no_answer(&path, Duration::from_secs(10)), path.as_str()),
            (not_connected(&iqn), iqn.as_str()),
        ] {
            let fact = text.strip_suffix(about).expect("the fact comes first");
            assert!(!fact.is_empty() && fact.len() < 64, "{fact}");
        }
    }
}
