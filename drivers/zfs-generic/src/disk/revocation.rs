//! Who goes and who stays when a node has to reach a disk no more.

use driver_core::{Error, NodeId};
use driver_zfs::export::Subject;

use crate::facts::Facts;
use crate::nodes::{AccessList, NodeName, Nodes};

/// What becomes of everybody when one node goes, or all of them.
#[derive(Debug)]
pub(super) struct Revocation {
    /// Those that stay.
    pub(super) left: AccessList,
    /// Everybody, with a mark at those that go, where it is not there yet.
    pub(super) marked: Option<AccessList>,
    /// What those are called that go, without names that somebody has who stays.
    pub(super) out: Vec<NodeName>,
    /// Whether somebody goes who is remembered.
    pub(super) was_in: bool,
    /// Whether the host may have to do something: somebody goes who is remembered or seen there.
    pub(super) is_in: bool,
}

// === impl Revocation ===

impl Revocation {
    /// What has to become of them; without a node all of them go.
    pub(super) fn plan(
        nodes: &Nodes,
        subject: &Subject<'_>,
        facts: &Facts,
        node: Option<&NodeId>,
    ) -> Result<Self, Error> {
        let access_list = nodes.remembered(subject)?;
        nodes.parting(&access_list, node, |revoked| {
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
                // What has a name that nobody could have configured is put out as well.
                is_in: !out.is_empty() || facts.inside().any(|text| goes(text)),
                marked: (marked != access_list).then_some(marked),
                left,
                out,
            }
        })
    }
}
