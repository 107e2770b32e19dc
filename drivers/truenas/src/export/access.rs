//! Access per node: the names that an export has to list, by what the dataset remembers.
//!
//! An export lists exactly these: what an interrupted call or an administrator added goes with the next call.

use std::fmt;
use std::net::IpAddr;

use csi_types::DhchapKey;
use driver_core::config::ConfigError;
use driver_core::{Error, NodeId};
use driver_zfs::export::{Act, Subject};
use driver_zfs::nodes::{
    Form, ListedNodes, NamedNode, NodeKeys, NodeName, Nodes, NodesConfig, remembered_names,
};
use driver_zfs::plan::is_complete;
use driver_zfs::property::PropertyName;

use crate::command::Command;

/// The names of nodes for an export that lets in only those that a volume is published to.
#[derive(Debug)]
pub(crate) struct Access(Nodes);

/// A node gets access.
pub(super) struct Allowed {
    /// Remembers it.
    pub(super) remember: Act<Command>,
    /// All names from now on.
    pub(super) names: Vec<String>,
}

/// A revocation. Every act is missing if there is nothing to be done.
pub(super) struct Revoked {
    /// Marks the nodes: from now on no call lets them in.
    pub(super) mark: Option<Act<Command>>,
    /// The names that stay.
    pub(super) names: Vec<String>,
    /// The names that were remembered and go.
    pub(super) out: Vec<String>,
    /// Forgets the nodes.
    pub(super) forget: Option<Act<Command>>,
}

/// The property that is read of a dataset, also without access per node: a list that was left by it is removed.
pub(super) fn property() -> Option<PropertyName> {
    Nodes::property().ok()
}

/// Whether nodes are remembered, whatever the configuration says now.
pub(super) fn is_remembered(subject: &Subject<'_>) -> bool {
    forget(subject).is_some()
}

/// Forgets a list that does not count any more.
pub(super) fn forget(subject: &Subject<'_>) -> Option<Act<Command>> {
    let property = property()?;
    subject.remembered(&property)?;
    Some(Act::Forget(property))
}

/// The names that are remembered, whatever the configuration says now.
pub(super) fn remembered(subject: &Subject<'_>, form: Form) -> Result<Vec<String>, Error> {
    remembered_names(form, subject).map(written)
}

/// Whether both have the same names, in whatever order.
pub(super) fn same<'a>(
    left: impl IntoIterator<Item = &'a str>,
    right: impl IntoIterator<Item = &'a str>,
) -> bool {
    let in_order = |names: &mut Vec<&'a str>| {
        names.sort_unstable();
        names.dedup();
    };
    let (mut left, mut right) = (Vec::from_iter(left), Vec::from_iter(right));
    in_order(&mut left);
    in_order(&mut right);
    left == right
}

/// As the API writes it: without the brackets of an address.
fn written(names: Vec<NodeName>) -> Vec<String> {
    let plain = |name: NodeName| name.as_str().trim_matches(['[', ']']).to_owned();
    names.into_iter().map(plain).collect()
}

// === impl Access ===

impl Access {
    /// Checks the section at `key`.
    pub(crate) fn read(config: &NodesConfig, form: Form, key: &str) -> Result<Self, ConfigError> {
        Nodes::read(config, form, key).map(Self)
    }

    /// The names of all nodes that have access.
    pub(super) fn names(&self, subject: &Subject<'_>) -> Result<Vec<String>, Error> {
        Ok(written(self.0.remembered(subject)?.names()))
    }

    /// Whether the dataset remembers that a node has access, or access is not per node.
    pub(super) fn lets_in(access: Option<&Self>, subject: &Subject<'_>, node: &NodeId) -> bool {
        access.is_none_or(|Self(nodes)| nodes.lets_in(subject, node))
    }

    /// A node with the name that it has now, if any.
    pub(super) fn named(access: Option<&Self>, node: &NodeId) -> NamedNode {
        access.map_or_else(
            || NamedNode::nameless(node),
            |Self(nodes)| nodes.named(node),
        )
    }

    /// The entries of the dataset's access list, compared with these nodes.
    pub(super) fn listed(
        access: Option<&Self>,
        subject: &Subject<'_>,
        some: &[NamedNode],
    ) -> ListedNodes {
        let Some(Self(nodes)) = access else {
            return ListedNodes::default();
        };
        let list = nodes.remembered(subject).unwrap_or_default();
        nodes.listed(&list, some)
    }

    /// Whether there is a name for this node, or access is not per node.
    pub(super) fn has_name(access: Option<&Self>, node: &NodeId) -> bool {
        access.is_none_or(|Self(nodes)| nodes.name(node).is_ok())
    }

    /// The name of a node, if access is per node and it has one.
    pub(super) fn name(access: Option<&Self>, node: &NodeId) -> Option<String> {
        let name = access?.0.name(node).ok()?;
        written(vec![name]).pop()
    }

    /// Fails if nodes have to prove who they are, and there is no key of this one.
    pub(super) fn admits(
        access: Option<&Self>,
        keys: &NodeKeys,
        node: &NodeId,
    ) -> Result<(), Error> {
        keys.admit(access.map(|Self(nodes)| nodes), node)
    }

    /// Checks the keys of nodes at `key`.
    pub(crate) fn keys<'a, E: fmt::Display>(
        access: Option<&Self>,
        given: impl IntoIterator<Item = (&'a String, Result<DhchapKey, E>)>,
        key: &str,
    ) -> Result<NodeKeys, ConfigError> {
        NodeKeys::read(given, access.map(|Self(nodes)| nodes), key)
    }

    /// The known addresses of a node.
    pub(super) fn addresses(access: Option<&Self>, node: &NodeId) -> Vec<IpAddr> {
        let addresses = |Self(nodes): &Self| nodes.addresses(node);
        access.map(addresses).unwrap_or_default()
    }

    /// Whether access is per node, and no list is remembered.
    pub(super) fn is_unlisted(access: Option<&Self>, subject: &Subject<'_>) -> bool {
        access.is_some() && !is_remembered(subject)
    }

    /// Adds nodes. `None` if they are listed, or if access is not per node.
    pub(super) fn allow(
        access: Option<&Self>,
        subject: &Subject<'_>,
        more: &[&NodeId],
    ) -> Result<Option<Allowed>, Error> {
        let Some(Self(nodes)) = access else {
            return Ok(None);
        };
        let before = nodes.remembered(subject)?;
        let mut list = before.clone();
        nodes.admit(&mut list, more)?;
        if list == before {
            return Ok(None);
        }
        Ok(Some(Allowed {
            remember: Nodes::remember_new(&list)?,
            names: written(list.names()),
        }))
    }

    /// Removes a node, or all of them. `None` if there is no volume to be reached, or if access is not per node.
    pub(super) fn revoke(
        access: Option<&Self>,
        subject: &Subject<'_>,
        node: Option<&NodeId>,
    ) -> Result<Option<Revoked>, Error> {
        let Some(Self(nodes)) = access else {
            return Ok(None);
        };
        if !subject.volume.is_some_and(is_complete) {
            return Ok(None);
        }
        let before = nodes.remembered(subject)?;
        let (left, marked, mut out) = nodes.with_revoked(&before, node, |revoked| {
            let marked = before.clone().marked(revoked);
            (before.without(revoked), marked, before.names_of(revoked))
        })?;
        let stay = left.names();
        out.retain(|name| !stay.contains(name));
        let changed = |list| (before != list).then(|| Nodes::remember(&list)).transpose();
        Ok(Some(Revoked {
            names: written(stay),
            out: written(out),
            mark: changed(marked)?,
            forget: changed(left)?,
        }))
    }
}
