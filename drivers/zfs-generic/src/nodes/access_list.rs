//! Who was let in, as a dataset remembers it: pairs of a name and what tells the id of the node that was
//! called so from others.
//!
//! The id is what a node is found by when it has to go: what it is called may have been configured anew
//! since, and its target still knows it by the old name. One pair is `name#digits`, with a comma between
//! pairs, and `!` before it while its node is being put out; a name alone is of a node whose id nobody
//! knows, and `~digits` is of a node that was put out as far as anybody could tell.

use std::fmt::Write as _;

use driver_core::NodeId;
use driver_zfs::property::MAX_VALUE;
use sha2::{Digest as _, Sha256};

use super::{Form, NodeName};

/// The bytes of a hash that tell the nodes of one volume apart: a property holds hundreds of them.
const BYTES: usize = 5;
/// How many of those that are gone are remembered.
const MOST_GONE: usize = 8;

/// Everybody who was let in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct AccessList {
    access_list: Vec<Guest>,
    /// Nodes that nobody has a name for any more, put out while there were names without an id: to
    /// ask for it again is no error.
    gone: Vec<GuestId>,
}

/// One of them, by one of its names.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Guest {
    name: NodeName,
    id: Option<GuestId>,
    /// It is being put out, so nobody lets it in any more.
    leaves: bool,
}

/// What tells the id of a node from others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct GuestId(String);

/// A node that goes.
#[derive(Clone, Copy)]
pub(crate) struct RevokedNode<'a> {
    pub(super) node: &'a NodeId,
    /// What it is called today, if anything.
    pub(super) name: Option<&'a NodeName>,
    /// Whether another id is called so today, too.
    pub(super) shares: &'a dyn Fn(&GuestId) -> bool,
}

// === impl GuestId ===

impl GuestId {
    pub(super) fn of(node: &str) -> Self {
        Self::hash(node.as_bytes())
    }

    fn hash(bytes: &[u8]) -> Self {
        let mut text = String::new();
        for byte in &Sha256::digest(bytes)[..BYTES] {
            // Writing to a text does not fail.
            let _ = write!(text, "{byte:02x}");
        }
        Self(text)
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

impl RevokedNode<'_> {
    /// Whether that is what it is called today.
    pub(crate) fn is_called(&self, text: &str) -> bool {
        self.name.is_some_and(|name| name.as_str() == text)
    }

    /// Whether this guest goes with it. One of the same name and another id is what the node was before
    /// it got the id that it has: a target cannot tell the two apart.
    fn takes(&self, guest: &Guest) -> bool {
        let so_called = self.name == Some(&guest.name);
        match &guest.id {
            Some(id) if *id == GuestId::of(self.node.as_str()) => true,
            Some(id) => so_called && !(self.shares)(id),
            None => so_called,
        }
    }
}

// === impl AccessList ===

impl AccessList {
    /// Those in a text, without names that are none.
    pub(super) fn read(form: Form, text: &str) -> Self {
        let mut access_list = Self::default();
        for entry in text.split(',') {
            if let Some(id) = entry.strip_prefix('~') {
                access_list.gone.push(GuestId(id.to_owned()));
                continue;
            }
            let pair = entry.strip_prefix('!').unwrap_or(entry);
            let (name, id) = if let Some((name, id)) = pair.split_once('#') {
                (name, Some(GuestId(id.to_owned())))
            } else if let Some((name, id)) = pair.split_once('=') {
                (name, Some(GuestId::spelt(id)))
            } else {
                (pair, None)
            };
            if let Some(name) = form.parse(name) {
                let leaves = pair.len() < entry.len();
                access_list.push(Guest { name, id, leaves });
            }
        }
        access_list
    }

    /// The text.
    pub(super) fn text(&self) -> String {
        let one = |guest: &Guest| {
            let mark = if guest.leaves { "!" } else { "" };
            let name = guest.name.as_str();
            match &guest.id {
                Some(id) => format!("{mark}{name}#{}", id.0),
                None => format!("{mark}{name}"),
            }
        };
        let gone = self.gone.iter().map(|id| format!("~{}", id.0));
        let all = self.access_list.iter().map(one).chain(gone);
        all.collect::<Vec<_>>().join(",")
    }

    fn push(&mut self, guest: Guest) {
        if !self.access_list.contains(&guest) {
            self.access_list.push(guest);
        }
    }

    /// Whether a property holds them, also with all that putting them out will add.
    pub(super) fn fit(&self) -> bool {
        let gone = MOST_GONE * (2 * BYTES + 2);
        self.text().len() + self.access_list.len() + gone <= MAX_VALUE
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.access_list.len()
    }

    /// With these names, too, whoever they are of.
    pub(crate) fn and(mut self, names: &[NodeName]) -> Self {
        for name in names {
            if !self.access_list.iter().any(|guest| guest.name == *name) {
                self.push(Guest {
                    name: name.clone(),
                    id: None,
                    leaves: false,
                });
            }
        }
        self
    }

    /// Without those whose id nobody knows.
    pub(crate) fn known(mut self) -> Self {
        self.access_list.retain(|guest| guest.id.is_some());
        self
    }

    /// Lets in a node. One that is called otherwise now keeps its other name until it goes: it may be
    /// connected by that. Whoever was called so before, and is not today, was this node.
    pub(super) fn admit(
        &mut self,
        node: &NodeId,
        name: &NodeName,
        shares: &dyn Fn(&GuestId) -> bool,
    ) {
        let own = GuestId::of(node.as_str());
        self.gone.retain(|id| *id != own);
        self.access_list.retain(|guest| match &guest.id {
            _ if guest.name != *name => true,
            Some(id) if *id == own => !guest.leaves,
            Some(id) => shares(id),
            None => false,
        });
        self.push(Guest {
            name: name.clone(),
            id: Some(own),
            leaves: false,
        });
    }

    /// The same, with a mark at those that go; without a node all of them do.
    pub(crate) fn marked(mut self, revoked: Option<RevokedNode<'_>>) -> Self {
        for guest in &mut self.access_list {
            guest.leaves |= revoked.is_none_or(|revoked| revoked.takes(guest));
        }
        self
    }

    /// Those that stay when a node goes; without a node nobody stays.
    pub(crate) fn without(&self, revoked: Option<RevokedNode<'_>>) -> Self {
        let Some(revoked) = revoked else {
            return Self::default();
        };
        let mut left = self.clone();
        left.access_list.retain(|guest| !revoked.takes(guest));
        if !left.has_strangers() {
            left.gone.clear();
        } else if revoked.name.is_none() && !left.gone.contains(&GuestId::of(revoked.node.as_str()))
        {
            left.gone.push(GuestId::of(revoked.node.as_str()));
            let most = left.gone.len().saturating_sub(MOST_GONE);
            left.gone.drain(..most);
        }
        left
    }

    /// Whether any of them can only be told by its name.
    pub(super) fn has_strangers(&self) -> bool {
        self.access_list.iter().any(|guest| guest.id.is_none())
    }

    /// Whether a node is, or was, known by its id.
    pub(super) fn knows(&self, node: &NodeId) -> bool {
        let id = GuestId::of(node.as_str());
        let access_list = self
            .access_list
            .iter()
            .filter_map(|guest| guest.id.as_ref());
        access_list.chain(&self.gone).any(|known| *known == id)
    }

    /// What they are called that get in, each name once.
    pub(crate) fn names(&self) -> Vec<NodeName> {
        self.called(|guest| !guest.leaves)
    }

    /// What they are called that go, each name once.
    pub(crate) fn names_of(&self, revoked: Option<RevokedNode<'_>>) -> Vec<NodeName> {
        self.called(|guest| revoked.is_none_or(|revoked| revoked.takes(guest)))
    }

    fn called(&self, which: impl Fn(&Guest) -> bool) -> Vec<NodeName> {
        let mut names = Vec::new();
        for guest in self.access_list.iter().filter(|guest| which(guest)) {
            if !names.contains(&guest.name) {
                names.push(guest.name.clone());
            }
        }
        names
    }

    /// Whether there are none, and nothing to remember of those that were.
    pub(crate) fn is_empty(&self) -> bool {
        self.access_list.is_empty() && self.gone.is_empty()
    }
}

#[cfg(test)]
mod tests;
