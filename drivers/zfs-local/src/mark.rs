//! The mark of the node in the id of a volume.
//!
//! The pool of one node does not know the volumes of another, so a missing volume may be deleted or
//! elsewhere. The id ends with a mark of the node that created it, which decides. compat: "ZFS of
//! the node": ids of democratic-csi have none.

use driver_core::{NodeId, VolumeId};
use sha2::{Digest as _, Sha256};

/// The prefix of the mark. No group of a UUID begins like that.
const START: &str = "-n";
/// Hexadecimal digits of the hash of a node.
const DIGITS: usize = 8;

/// The end of the ids of one node's volumes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeMark(String);

// === impl NodeMark ===

impl NodeMark {
    /// The bytes that it takes of an id.
    pub const LENGTH: usize = START.len() + DIGITS;

    /// That of a node.
    pub fn of(node: &NodeId) -> Self {
        let digest = Sha256::digest(node.as_str().as_bytes());
        let hash = u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]]);
        Self(format!("{START}{hash:08x}"))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// An id with this mark, without it.
    pub fn strip<'a>(&self, id: &'a VolumeId) -> Option<&'a str> {
        id.as_str().strip_suffix(self.as_str())
    }

    /// Whether an id has the mark of another node.
    pub fn is_foreign(&self, id: &VolumeId) -> bool {
        let id = id.as_str();
        let end = id.len().checked_sub(Self::LENGTH);
        // Ids from elsewhere may contain any character.
        let Some(end) = end.and_then(|at| id.get(at..)) else {
            return false;
        };
        let lower = |b: u8| b.is_ascii_digit() || matches!(b, b'a'..=b'f');
        let hash = end.strip_prefix(START);
        hash.is_some_and(|hash| hash.bytes().all(lower)) && end != self.as_str()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn mark(node: &str) -> NodeMark {
        NodeMark::of(&NodeId::parse(node).unwrap())
    }

    #[test]
    fn marks_stay_the_same_for_ever() {
        assert_eq!(mark("node-1").as_str(), "-n35971be6");
        assert_eq!(mark("node-1").as_str().len(), NodeMark::LENGTH);
    }

    #[test]
    fn an_id_without_a_mark_belongs_to_no_other_node() {
        for id in [
            "pvc-0a1b2c3d-0000-4000-8000-0123456789ab",
            "a",
            "-n0123456",
            "x-n0123456",
            "x-n0123456G",
            "x-N01234567",
            "éééééééé",
            "xé12345678",
        ] {
            let id = VolumeId::parse(id).unwrap();
            assert!(!mark("node-1").is_foreign(&id), "{id}");
        }
    }

    proptest! {
        #[test]
        fn each_node_knows_its_own_ids_and_those_of_others(id in "[a-z0-9][a-z0-9_-]{0,40}") {
            let (one, other) = (mark("one"), mark("other"));
            let marked = VolumeId::parse(&format!("{id}{}", one.as_str())).unwrap();
            prop_assert_eq!(one.strip(&marked), Some(id.as_str()));
            prop_assert!(!one.is_foreign(&marked));
            prop_assert!(other.is_foreign(&marked));
            prop_assert_eq!(other.strip(&marked), None);
        }
    }
}
