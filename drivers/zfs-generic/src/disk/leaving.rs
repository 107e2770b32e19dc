//! Who goes and who stays when a node has to reach a disk no more.

use driver_core::{Error, NodeId};
use driver_zfs::export::Subject;

use crate::facts::Facts;
use crate::nodes::{Guests, NodeName, Nodes};

/// What becomes of everybody when one node goes, or all of them.
#[derive(Debug)]
pub(super) struct Leaving {
    /// Those that stay.
    pub(super) left: Guests,
    /// Everybody, with a mark at those that go, where it is not there yet.
    pub(super) marked: Option<Guests>,
    /// What those are called that go, without names that somebody has who stays.
    pub(super) out: Vec<NodeName>,
    /// Whether somebody goes who is remembered.
    pub(super) was_in: bool,
    /// Whether the host may have to do something: somebody goes who is remembered or seen there.
    pub(super) is_in: bool,
}

// === impl Leaving ===

impl Leaving {
    /// What has to become of them; without a node all of them go.
    pub(super) fn plan(
        nodes: &Nodes,
        subject: &Subject<'_>,
        facts: &Facts,
        node: Option<&NodeId>,
    ) -> Result<Self, Error> {
        let guests = nodes.remembered(subject)?;
        nodes.parting(&guests, node, |goer| {
            let left = guests.without(goer);
            let stay = left.names();
            let goes = |text: &str| {
                let stays = stay.iter().any(|name| name.as_str() == text);
                goer.is_none_or(|goer| goer.is_called(text)) && !stays
            };
            let mut out = guests.names_of(goer);
            out.retain(|name| !stay.contains(name));
            let seen = facts.inside().filter(|text| goes(text));
            for name in seen.filter_map(|text| nodes.shown(text)) {
                if !out.contains(&name) {
                    out.push(name);
                }
            }
            let marked = guests.clone().marked(goer);
            Self {
                was_in: left != guests,
                // What has a name that nobody could have configured is put out as well.
                is_in: !out.is_empty() || facts.inside().any(|text| goes(text)),
                marked: (marked != guests).then_some(marked),
                left,
                out,
            }
        })
    }
}
