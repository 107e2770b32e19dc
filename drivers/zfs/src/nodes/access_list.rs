//! The access list that a dataset remembers: pairs of the name of a node and a digest of its id.
//!
//! A revocation finds the node by its id: its configured name may have changed since, and its target
//! still knows it by the old name. One pair is `name#digits`; commas separate pairs. A `!` before a
//! pair marks a node whose revocation is in progress. A name alone belongs to a node with an unknown
//! id. `~digits` is a node without a name whose revocation found no entry.

use std::fmt;

use crate::property::MAX_VALUE;
use csi_types::hex;
use driver_core::NodeId;
use sha2::{Digest as _, Sha256};

use super::{Form, NodeName};

/// The bytes of the digest of an id: enough for the nodes of one volume, and a property holds hundreds.
const BYTES: usize = 5;
/// The number of nodes of [`AccessList::gone`] that are remembered. A volume is on one or two nodes at a time, and a
/// property holds 8 KiB.
const MOST_GONE: usize = 8;

/// All nodes that have access.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AccessList {
    entries: Vec<Entry>,
    /// Nodes without a name that were revoked while the list had names without an id. Revoking them
    /// again is not an error.
    gone: Vec<NodeDigest>,
}

/// A node with one of its names.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    name: NodeName,
    id: Option<NodeDigest>,
    /// Its revocation is in progress; no call gives it access.
    is_revoked: bool,
}

/// A digest of the id of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NodeDigest(String);

/// A node whose access is revoked.
#[derive(Clone, Copy)]
pub struct RevokedNode<'a> {
    pub(super) id: &'a NodeDigest,
    /// Its present name, if any.
    pub(super) name: Option<&'a NodeName>,
    /// Whether another id has this name now, too.
    pub(super) shares: &'a dyn Fn(&NodeDigest) -> bool,
}

// === impl NodeDigest ===

impl NodeDigest {
    pub(super) fn of(node: &str) -> Self {
        Self::hash(node.as_bytes())
    }

    fn hash(bytes: &[u8]) -> Self {
        Self(hex(&Sha256::digest(bytes)[..BYTES]))
    }

    /// Of an id that stands there itself, with `%` before two digits of what could end a pair: as it
    /// was remembered at first.
    fn spelt(text: &str) -> Self {
        let mut bytes = Vec::new();
        let mut rest = text.as_bytes();
        while let Some((first, after)) = rest.split_first() {
            let digits = after.get(..2).filter(|_| *first == b'%');
            let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
            let escaped = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
            bytes.push(escaped.unwrap_or(*first));
            rest = escaped.map_or(after, |_| &after[2..]);
        }
        Self::hash(&bytes)
    }
}

// === impl RevokedNode ===

impl fmt::Debug for RevokedNode<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RevokedNode")
            .field("id", &self.id)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl RevokedNode<'_> {
    /// Whether that is its present name.
    pub fn is_called(&self, text: &str) -> bool {
        self.name.is_some_and(|name| name.as_str() == text)
    }

    /// Whether this entry goes with it. One of the same name and another id is what the node was before
    /// it got the id that it has: a target cannot tell the two apart.
    fn takes(&self, entry: &Entry) -> bool {
        let so_called = self.name == Some(&entry.name);
        match &entry.id {
            Some(id) if id == self.id => true,
            Some(id) => so_called && !(self.shares)(id),
            None => so_called,
        }
    }
}

// === impl AccessList ===

impl AccessList {
    /// Parses a text, and skips invalid names.
    pub(super) fn read(form: Form, text: &str) -> Self {
        let mut list = Self::default();
        for entry in text.split(',') {
            if let Some(id) = entry.strip_prefix('~') {
                list.gone.push(NodeDigest(id.to_owned()));
                continue;
            }
            let pair = entry.strip_prefix('!').unwrap_or(entry);
            let (name, id) = if let Some((name, id)) = pair.split_once('#') {
                (name, Some(NodeDigest(id.to_owned())))
            } else if let Some((name, id)) = pair.split_once('=') {
                (name, Some(NodeDigest::spelt(id)))
            } else {
                (pair, None)
            };
            if let Some(name) = form.parse(name) {
                let is_revoked = pair.len() < entry.len();
                list.push(Entry {
                    name,
                    id,
                    is_revoked,
                });
            }
        }
        list
    }

    /// The text.
    pub(super) fn text(&self) -> String {
        let one = |entry: &Entry| {
            let mark = if entry.is_revoked { "!" } else { "" };
            let name = entry.name.as_str();
            match &entry.id {
                Some(id) => format!("{mark}{name}#{}", id.0),
                None => format!("{mark}{name}"),
            }
        };
        let gone = self.gone.iter().map(|id| format!("~{}", id.0));
        let all = self.entries.iter().map(one).chain(gone);
        all.collect::<Vec<_>>().join(",")
    }

    fn push(&mut self, entry: Entry) {
        if !self.entries.contains(&entry) {
            self.entries.push(entry);
        }
    }

    /// Whether the list fits into a property, with everything that later revocations add.
    pub(super) fn fit(&self) -> bool {
        let gone = MOST_GONE * (2 * BYTES + 2);
        self.text().len() + self.entries.len() + gone <= MAX_VALUE
    }

    /// The number of entries.
    pub(super) fn count(&self) -> usize {
        self.entries.len()
    }

    /// With these names added, of nodes with unknown ids.
    #[must_use]
    pub fn and(mut self, names: &[NodeName]) -> Self {
        for name in names {
            if !self.entries.iter().any(|entry| entry.name == *name) {
                self.push(Entry {
                    name: name.clone(),
                    id: None,
                    is_revoked: false,
                });
            }
        }
        self
    }

    /// Without the entries with an unknown id.
    #[must_use]
    pub fn known(mut self) -> Self {
        self.entries.retain(|entry| entry.id.is_some());
        self
    }

    /// Adds a node. A node with a new name keeps its old name until it is revoked: it may be connected
    /// by that name. Other entries with this name are replaced, unless their nodes still have it.
    pub(super) fn admit(
        &mut self,
        node: &NodeId,
        name: &NodeName,
        shares: &dyn Fn(&NodeDigest) -> bool,
    ) {
        let own = NodeDigest::of(node.as_str());
        self.gone.retain(|id| *id != own);
        self.entries.retain(|entry| match &entry.id {
            _ if entry.name != *name => true,
            Some(id) if *id == own => !entry.is_revoked,
            Some(id) => shares(id),
            None => false,
        });
        self.push(Entry {
            name: name.clone(),
            id: Some(own),
            is_revoked: false,
        });
    }

    /// The list with a mark at the revoked node; `None` marks all nodes.
    #[must_use]
    pub fn marked(mut self, revoked: Option<RevokedNode<'_>>) -> Self {
        for entry in &mut self.entries {
            entry.is_revoked |= revoked.is_none_or(|revoked| revoked.takes(entry));
        }
        self
    }

    /// The list without the revoked node; empty for `None`.
    #[must_use]
    pub fn without(&self, revoked: Option<RevokedNode<'_>>) -> Self {
        let Some(revoked) = revoked else {
            return Self::default();
        };
        let mut left = self.clone();
        left.entries.retain(|entry| !revoked.takes(entry));
        if !left.has_strangers() {
            left.gone.clear();
        } else if revoked.name.is_none() && !left.gone.contains(revoked.id) {
            left.gone.push(revoked.id.clone());
            let most = left.gone.len().saturating_sub(MOST_GONE);
            left.gone.drain(..most);
        }
        left
    }

    /// Whether a node has access by this name.
    pub(super) fn lets_in(&self, node: &NodeId, name: &NodeName) -> bool {
        let own = NodeDigest::of(node.as_str());
        let is_it = |entry: &Entry| {
            !entry.is_revoked && entry.name == *name && entry.id.as_ref() == Some(&own)
        };
        self.entries.iter().any(is_it)
    }

    /// Whether an entry has only a name.
    pub(super) fn has_strangers(&self) -> bool {
        self.entries.iter().any(|entry| entry.id.is_none())
    }

    /// Whether a node is, or was, known by its id.
    pub(super) fn knows(&self, node: &NodeId) -> bool {
        let id = NodeDigest::of(node.as_str());
        let ids = self.entries.iter().filter_map(|entry| entry.id.as_ref());
        ids.chain(&self.gone).any(|known| *known == id)
    }

    /// The names of the nodes with access, each once.
    pub fn names(&self) -> Vec<NodeName> {
        self.called(|entry| !entry.is_revoked)
    }

    /// The names of the revoked node, or of all nodes, each once.
    pub fn names_of(&self, revoked: Option<RevokedNode<'_>>) -> Vec<NodeName> {
        self.called(|entry| revoked.is_none_or(|revoked| revoked.takes(entry)))
    }

    fn called(&self, which: impl Fn(&Entry) -> bool) -> Vec<NodeName> {
        let mut names = Vec::new();
        for entry in self.entries.iter().filter(|entry| which(entry)) {
            if !names.contains(&entry.name) {
                names.push(entry.name.clone());
            }
        }
        names
    }

    /// Whether there is nothing to remember.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.gone.is_empty()
    }
}

#[cfg(test)]
mod tests;
