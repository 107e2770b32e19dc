//! The changes when the access of a node to a disk is revoked.

use driver_core::{Error, NodeId};
use driver_zfs::export::Subject;
use driver_zfs::published::PublishedNodes;

use crate::facts::Facts;
use driver_zfs::nodes::{AccessList, NodeName, Nodes};

/// The revocation of one node, or of all nodes.
#[derive(Debug)]
pub(super) struct Revocation {
    /// The access list without the revoked nodes.
    pub(super) left: AccessList,
    /// The access list with a mark at the revoked nodes; `None` if they have it already.
    pub(super) marked: Option<AccessList>,
    /// The names of the revoked nodes, without names that a remaining node shares.
    pub(super) out: Vec<NodeName>,
    /// Whether the dataset remembers a revoked node, or records it while every node has access.
    pub(super) was_in: bool,
    /// Whether the host may need a change: a revoked node is remembered or seen there.
    pub(super) is_in: bool,
}

// === impl Revocation ===

impl Revocation {
    /// Plans the revocation of `node`, or of all nodes if it is `None`.
    pub(super) fn plan(
        nodes: &Nodes,
        subject: &Subject<'_>,
        facts: &Facts,
        node: Option<&NodeId>,
    ) -> Result<Self, Error> {
        let mut access_list = nodes.remembered(subject)?;
        if access_list.is_empty() && facts.lets_in_all() {
            // None was listed yet. One that the volume is published to has access all the same. What else has it is not
            // known: a node without a record changes nothing.
            let recorded = subject.volume.map(PublishedNodes::of).unwrap_or_default();
            let goes = |id: &&NodeId| node.is_none_or(|node| node == *id) && nodes.name(id).is_ok();
            let open: Vec<&NodeId> = recorded.iter().map(|(_, id)| id).filter(goes).collect();
            nodes.admit(&mut access_list, &open)?;
        }
        nodes.with_revoked(&access_list, node, |revoked| {
            let left = access_list.without(revoked);
            let stay = left.names();
            let goes = |text: &str| {
                let stays = stay.iter().any(|name| name.as_str() == text);
                revoked.is_none_or(|revoked| revoked.is_called(text)) && !stays
            };
            let mut out = access_list.names_of(revoked);
            out.retain(|name| !stay.contains(name));
            let seen = facts.inside().filter(|text| goes(text));
            for name in seen.filter_map(|text| nodes.shown(text)) {
                if !out.contains(&name) {
                    out.push(name);
                }
            }
            let marked = access_list.clone().marked(revoked);
            Self {
                was_in: left != access_list,
                // A node whose name could not have been configured is revoked as well.
                is_in: !out.is_empty() || facts.inside().any(|text| goes(text)),
                marked: (marked != access_list).then_some(marked),
                left,
                out,
            }
        })
    }
}
