//! The place where a volume can be reached: segments of nodes, and what a caller requires of them.
//!
//! Keys and values follow the label rules of the specification. Matching is the specification's:
//! some requisite term has to fit, preferred terms give the order.

use std::collections::BTreeMap;

/// The key under which local storage names its node. compat: "Topology".
pub const NODE_KEY: &str = "org.democratic-csi.topology/node";

/// One set of nodes: those that carry all of these segments.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Topology(BTreeMap<String, String>);

/// The demands of a caller on the place of a new volume.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TopologyRequirement {
    /// The volume has to be reachable from at least one of these, if there are any.
    pub requisite: Vec<Topology>,
    /// The order in which to try them. A wish: nothing is refused because of it.
    pub preferred: Vec<Topology>,
}

// === impl Topology ===

impl Topology {
    /// Segments that the decoder has checked.
    pub fn new(segments: BTreeMap<String, String>) -> Self {
        Self(segments)
    }

    /// The one node of local storage.
    pub fn node(node_id: &str) -> Self {
        Self(BTreeMap::from([(NODE_KEY.to_owned(), node_id.to_owned())]))
    }

    /// The segments, sorted by key.
    pub fn segments(&self) -> &BTreeMap<String, String> {
        &self.0
    }

    /// Whether a volume that is reachable in `self` is reachable by nodes of `term`: every key that
    /// `self` has is in `term` with the same value.
    pub fn reaches(&self, term: &Self) -> bool {
        self.0
            .iter()
            .all(|(key, value)| term.0.get(key) == Some(value))
    }
}

// === impl TopologyRequirement ===

impl TopologyRequirement {
    /// Whether a volume reachable in `place` satisfies this requirement.
    pub fn accepts(&self, place: &Topology) -> bool {
        self.requisite.is_empty() || self.requisite.iter().any(|term| place.reaches(term))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_requisite_term_that_fits_is_enough() {
        let here = Topology::node("a");
        let both = TopologyRequirement {
            requisite: vec![Topology::node("b"), Topology::node("a")],
            preferred: vec![],
        };
        assert!(both.accepts(&here));
        let other = TopologyRequirement {
            requisite: vec![Topology::node("b")],
            preferred: vec![],
        };
        assert!(!other.accepts(&here));
        assert!(TopologyRequirement::default().accepts(&here));
    }

    #[test]
    fn a_preference_that_does_not_fit_refuses_nothing() {
        let elsewhere = TopologyRequirement {
            requisite: vec![],
            preferred: vec![Topology::node("b")],
        };
        assert!(elsewhere.accepts(&Topology::node("a")));
    }
}
