//! Topology that an orchestrator can store: Kubernetes makes labels of nodes of it.

use driver_core::Topology;

/// The longest part of a topology key, and the longest topology value.
const MAX_LABEL: usize = 63;

/// Whether an orchestrator can store a topology of ours.
pub(crate) fn is_topology(place: &Topology) -> bool {
    let segments = place.segments();
    segments
        .iter()
        .all(|(key, value)| is_topology_key(key) && is_label(value))
}

/// Whether `key` can be a topology key.
pub(crate) fn is_topology_key(key: &str) -> bool {
    match key.split_once('/') {
        None => is_label(key),
        Some((prefix, name)) => {
            let domain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-.".contains(&b);
            is_label(prefix) && prefix.bytes().all(domain) && is_label(name)
        }
    }
}

/// 1 to 63 letters, digits, `-`, `_` and `.`, with a letter or digit at both ends.
pub(crate) fn is_label(text: &str) -> bool {
    let edge = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_alphanumeric());
    let inner = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    text.len() <= MAX_LABEL
        && text.bytes().all(inner)
        && edge(text.bytes().next())
        && edge(text.bytes().last())
}
