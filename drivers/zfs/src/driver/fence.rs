//! Shutting networks out: the record at the parent of volumes, and the nodes that lose their access.
//!
//! The volumes are listed after the record was written. A node that is published to sees the record before it gets
//! access, or right after it, see [`Access`](crate::plan::access::Access).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use async_trait::async_trait;
use csi_types::{Network, NodeIdentity};
use driver_core::fence::FENCE;
use driver_core::{
    Call, Effect, Error, FenceClient, FenceNetworks, Fencer, Kind, NodeId, VolumeId,
};
use futures_util::future::join_all;

use super::ZfsDriver;
use super::results::MAX_PAGE;
use crate::backend::{Cursor, Entry, ListQuery};
use crate::export::Subject;
use crate::fenced::{Fenced, Side};
use crate::nodes::{ListedNodes, NamedNode};
use crate::observed::{Dataset, Query, Request};
use crate::plan::access::AccessChange;
use crate::plan::destroy::has_parent;
use crate::plan::fence::{Fence, FenceChange};
use crate::plan::listed;
use crate::property::PropertyName;
use crate::published::PublishedNodes;

/// The number of volumes that lose a node at once. Each is a command of its own; a host takes about so many side by
/// side.
const AT_ONCE: usize = 8;

/// The nodes that volumes are published to, by what the backend calls them, each with the ids that it reports.
type Nodes = BTreeMap<NodeId, BTreeSet<NodeId>>;

/// A volume that lets in a node that is shut out.
struct LetIn {
    volume: VolumeId,
    node: NodeIdentity,
    /// Whether its own record proves that the node is in the networks.
    is_proved: bool,
}

impl ZfsDriver {
    /// Whether a node can be shut out: access is per node, and one that loses it is surely cut off. Where that depends
    /// on the host, the host is asked at each fence.
    pub(super) fn can_fence(&self) -> bool {
        self.settings.place.is_none() && self.export.is_per_node() && self.export.cuts_off()
    }

    /// Why a node that loses its access may go on, as the host says now.
    async fn may_go_on(&self, call: &Call) -> Result<Option<String>, Error> {
        let export = self.export.ask_to_cut_off();
        if export.is_empty() {
            return Ok(None);
        }
        let request = Request {
            export,
            ..Request::default()
        };
        let seen = self.backend.observe(call, &request).await?;
        self.heard();
        self.export.refuses_to_cut_off(&seen.export)
    }

    async fn change_fence(&self, call: &Call, change: FenceChange<'_>) -> Result<(), Error> {
        let parent = self.layout().parent_of_volumes();
        self.converge(call, &Fence { parent, change }).await
    }

    /// A page of complete volumes, and where the next one begins.
    async fn some_volumes(
        &self,
        call: &Call,
        after: Option<Cursor>,
    ) -> Result<(Vec<Dataset>, Option<Cursor>), Error> {
        call.check("look at the nodes of all volumes")?;
        let query = ListQuery {
            scopes: self.volume_scopes(),
            after,
            max: MAX_PAGE,
            properties: self.of_access(),
        };
        let page = self.backend.list(call, &query).await?;
        self.heard();
        // Those of another connection are shut out by that one, which knows what its export calls nodes.
        let owner = self.settings.policy.owner();
        let datasets = page.entries.into_iter().filter_map(|entry| match entry {
            Entry::Dataset(dataset) => Some(dataset).filter(|one| !owner.is_another(one)),
            Entry::Snapshot(_) => None,
        });
        Ok((datasets.collect(), page.next))
    }

    /// All nodes that a volume is published to.
    async fn all_nodes(&self, call: &Call) -> Result<Nodes, Error> {
        let (mut nodes, mut after) = (Nodes::new(), None);
        loop {
            let (datasets, next) = self.some_volumes(call, after).await?;
            for recorded in datasets.iter().map(PublishedNodes::of) {
                for (reported, id) in recorded.iter() {
                    let ids = nodes.entry(id.clone()).or_default();
                    ids.insert(reported.clone());
                }
            }
            after = next;
            if after.is_none() {
                return Ok(nodes);
            }
        }
    }

    /// Stops the nodes of these networks from reaching any volume.
    async fn shut_out(&self, call: &Call, request: FenceNetworks<'_>) -> Result<(), Error> {
        let fenced = Fenced::these(request.networks);
        let nodes = self.all_nodes(call).await?;
        let known: Vec<NamedNode> = nodes.keys().map(|id| self.export.named(id)).collect();
        let (mut out, mut unknown) = (Nodes::new(), BTreeSet::new());
        for (id, reported) in nodes {
            let configured = self.export.addresses(&id);
            let (mut addresses, mut proofs) = (Vec::new(), BTreeSet::new());
            for one in &reported {
                let mut own = (request.addresses_of)(one);
                own.extend(&configured);
                if let Side::In(_) = fenced.side(&own) {
                    proofs.insert(one.clone());
                }
                addresses.extend(own);
            }
            match fenced.side(&addresses) {
                Side::In(_) => drop(out.insert(id, proofs)),
                Side::Out => {}
                Side::Unknown => unknown.extend(reported.iter().map(|one| format!("`{one}`"))),
            }
        }
        if out.is_empty() {
            let networks = listed(request.networks);
            tracing::warn!("no node that a volume is published to has an address in {networks}");
        }
        let unrecorded = self.revoke_everywhere(call, &out, &known).await?;
        for (name, volume) in unrecorded {
            let address: Option<IpAddr> = name.trim_matches(['[', ']']).parse().ok();
            if fenced.side(address.as_slice()) != Side::Out {
                unknown.insert(format!("`{name}` of volume `{volume}`"));
            }
        }
        if unknown.is_empty() {
            return Ok(());
        }
        Err(Error::new(Kind::Busy, "fence networks")
            .because(format!(
                "volumes let in nodes of which no address is known, or no id, and which may be in them: {}",
                listed(&unknown)
            ))
            .advise(
                "let nodes tell their addresses, see `proxy.nodeId.parts.addresses`, or list them in `nodes`; unpublish \
                 a volume that is named from its node; what is known to be in these networks is shut out",
            ))
    }

    /// Takes these nodes out of each volume that lets one in. Of each, `out` has the ids that prove that it is in the
    /// networks. Goes on after a failure, and returns the first. Without one, the names of nodes that volumes remember and
    /// none records, each with one of the volumes.
    ///
    /// A retry knows a node by the volumes that record it. So these come last, and one of them stays as it is while
    /// another volume still lets the node in.
    async fn revoke_everywhere(
        &self,
        call: &Call,
        out: &Nodes,
        known: &[NamedNode],
    ) -> Result<BTreeMap<String, VolumeId>, Error> {
        let (mut inside, mut after) = (Vec::new(), None);
        let mut unrecorded = BTreeMap::new();
        loop {
            let (datasets, next) = self.some_volumes(call, after).await?;
            for dataset in &datasets {
                let Some(volume) = self.layout().volume_id(&dataset.name) else {
                    continue;
                };
                let listed = self.listed(&volume, dataset, known);
                inside.extend(let_in(&volume, dataset, &listed.nodes, out));
                unrecorded.extend(listed.others.into_iter().map(|name| (name, volume.clone())));
            }
            after = next;
            if after.is_none() {
                break;
            }
        }
        let (mut proved, others): (Vec<LetIn>, Vec<LetIn>) =
            inside.into_iter().partition(|one| one.is_proved);
        let mut failed = self.revoke_all(call, &others).await;
        let mut still_in: BTreeSet<NodeId> = failed.iter().map(|(node, _)| node.clone()).collect();
        proved.retain(|one| !still_in.remove(&one.node.id));
        failed.extend(self.revoke_all(call, &proved).await);
        let first = failed.into_iter().next();
        first.map_or(Ok(unrecorded), |(_, error)| Err(error))
    }

    /// The nodes that could not be taken out of a volume, each with the reason.
    async fn revoke_all(&self, call: &Call, inside: &[LetIn]) -> Vec<(NodeId, Error)> {
        let mut failed = Vec::new();
        for some in inside.chunks(AT_ONCE) {
            let mut revoked = Vec::new();
            for one in some {
                revoked.push(self.without_node(call, &one.volume, &one.node));
            }
            for (one, revoked) in some.iter().zip(join_all(revoked).await) {
                failed.extend(revoked.err().map(|error| (one.node.id.clone(), error)));
            }
        }
        failed
    }

    async fn without_node(
        &self,
        call: &Call,
        volume: &VolumeId,
        node: &NodeIdentity,
    ) -> Result<(), Error> {
        let revoked = self.access_at_fence(call, volume, AccessChange::Revoke(Some(node)));
        let revoked = revoked.await;
        revoked.map_err(|error| error.within(format!("fence node `{}`", node.reported)))
    }

    /// The entries of the access list of a volume, compared with known nodes and those that it records. The others
    /// are recorded nowhere: its record was full, or is older than the access.
    fn listed(&self, volume: &VolumeId, dataset: &Dataset, known: &[NamedNode]) -> ListedNodes {
        let subject = subject(volume, dataset);
        let mut listed = self.export.listed(&subject, known);
        if listed.others.is_empty() {
            return listed;
        }
        // A node that was published to since then has looked at the fence itself.
        let own = PublishedNodes::of(dataset);
        let own: Vec<NamedNode> = own.iter().map(|(_, id)| self.export.named(id)).collect();
        let others = self.export.listed(&subject, &own).others;
        listed.others.retain(|name| others.contains(name));
        listed
    }
}

/// The nodes among `out` that a volume lets in, listed or recorded.
fn let_in(
    volume: &VolumeId,
    dataset: &Dataset,
    listed: &BTreeSet<NodeId>,
    out: &Nodes,
) -> Vec<LetIn> {
    let recorded = PublishedNodes::of(dataset);
    let mut inside = Vec::new();
    for (id, proofs) in out {
        let is_recorded = recorded.iter().any(|(_, recorded)| recorded == id);
        // Also where a call that took it out was interrupted.
        if !is_recorded && !listed.contains(id) {
            continue;
        }
        let is_proved =
            |(reported, recorded): (&NodeId, &NodeId)| recorded == id && proofs.contains(reported);
        let node = NodeIdentity::of(id.clone());
        let reported = proofs.first().unwrap_or(id).clone();
        inside.push(LetIn {
            volume: volume.clone(),
            node: NodeIdentity { reported, ..node },
            is_proved: recorded.iter().any(is_proved),
        });
    }
    inside
}

fn subject<'a>(volume: &'a VolumeId, dataset: &'a Dataset) -> Subject<'a> {
    Subject {
        id: volume,
        dataset: &dataset.name,
        request: None,
        chosen: None,
        volume: Some(dataset),
    }
}

#[async_trait]
impl Fencer for ZfsDriver {
    async fn fence_networks(&self, call: &Call, request: FenceNetworks<'_>) -> Result<(), Error> {
        self.check_fence(call).await?;
        self.change_fence(call, FenceChange::Add(request.networks))
            .await?;
        let shut_out = async {
            self.shut_out(call, request).await?;
            // A node that has connected since the first look may be one that cannot be cut off.
            let why = self.may_go_on(call).await?;
            why.map_or(
                Ok(()),
                |why| Err(Error::new(Kind::Busy, FENCE).because(why)),
            )
        }
        .await;
        // The record is there, by this call or an earlier one.
        shut_out.map_err(|error| error.with_effect(Effect::Possible))
    }

    async fn unfence_networks(&self, call: &Call, request: FenceNetworks<'_>) -> Result<(), Error> {
        self.change_fence(call, FenceChange::Remove(request.networks))
            .await
    }

    async fn fenced_networks(&self, call: &Call) -> Result<Vec<Network>, Error> {
        let parent = self.layout().parent_of_volumes();
        let request = Request {
            properties: vec![PropertyName::FENCED],
            ..Request::of([Query::Dataset(parent.name.clone())])
        };
        let pool = self.observe_with(call, request).await?;
        has_parent("list fenced networks", parent, &pool)?;
        let fenced = pool.dataset(parent.name).map(Fenced::of).transpose()?;
        Ok(fenced.unwrap_or_default().iter().copied().collect())
    }

    async fn fence_clients(&self, call: &Call) -> Result<Vec<FenceClient>, Error> {
        let nodes = self.all_nodes(call).await?;
        let mut clients = Vec::new();
        for (id, reported) in nodes {
            let addresses = self.export.addresses(&id);
            clients.extend(reported.into_iter().map(|node| FenceClient {
                node,
                addresses: addresses.clone(),
            }));
        }
        Ok(clients)
    }

    async fn check_fence(&self, call: &Call) -> Result<(), Error> {
        let why = self.may_go_on(call).await?;
        why.map_or(Ok(()), |why| Err(Error::unsupported(FENCE).because(why)))
    }
}
