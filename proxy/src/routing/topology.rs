//! Topology: where volumes can be reached, and where this node is.

pub(crate) mod label;
pub(crate) mod matching;
pub(crate) mod node;
