//! Granting a node access to a volume, and revoking it.

use csi_types::{Attachment, NodeIdentity};
use driver_core::{Error, Kind, NodeId};

use super::owner::Owner;
use super::{ExportRef, Outcome, Verb, blocked, is_complete, listed};
use crate::context;
use crate::export::{Act, ExportStatus, Opaque, Subject};
use crate::fenced::{Fenced, Side};
use crate::name::DatasetName;
use crate::observed::{Dataset, Observed, Query, Request, State, VolumeKind};
use crate::property::PropertyName;
use crate::published::PublishedNodes;
use crate::step::Plan;

/// Changes the access to a volume.
#[derive(Debug)]
pub struct Access<'a> {
    /// The kind of volumes.
    pub kind: VolumeKind,
    /// The volume and its export.
    pub export_ref: ExportRef<'a>,
    /// The wanted change.
    pub change: AccessChange<'a>,
    /// The parent of volumes, which records the networks that are shut out; `None` where access is not per node, so that
    /// none can be.
    pub fenced_by: Option<&'a DatasetName>,
    /// Whether it is for a fence. Then an export that is still open is closed before a node is revoked, and a node of which
    /// no address is known loses what it just got.
    pub is_strict: bool,
}

/// The change of the access to a volume.
#[derive(Debug, Clone, Copy)]
pub enum AccessChange<'a> {
    /// The nodes that had access before: restores what the host has lost. No caller asked for this
    /// particular volume, so volumes of a connection with another export are skipped.
    Present(Owner<'a>),
    /// This node, too. It is recorded, also where every node has access. A node in a network that is shut out loses the
    /// access that it has; then it is refused.
    Allow {
        /// The node.
        node: &'a NodeIdentity,
        /// Whether the access mode of the request is for one node. Where access is per node, a volume that is recorded for
        /// another one is then refused.
        is_only: bool,
    },
    /// Revokes the access of this node, or of all nodes, and removes the record of it.
    Revoke(Option<&'a NodeIdentity>),
}

impl Access<'_> {
    /// Rejects a volume whose recorded attachment is not `current`.
    fn check_place(&self, dataset: &Dataset, current: Option<Attachment>) -> Result<(), Error> {
        let text = dataset.properties.own(&PropertyName::CONTEXT);
        let recorded = text.map(context::from_json).transpose()?;
        let (Some(current), Some(recorded)) = (current, recorded) else {
            return Ok(());
        };
        if place(&current) == place(&recorded) {
            return Ok(());
        }
        let [current, recorded] = [&current, &recorded].map(context::to_json);
        let why = format!("its volume context is {recorded}, and it is exported as {current}");
        Err(blocked(&self.doing_it(), why).advise(
            "set the dataset back, or create its PersistentVolume again with the new context",
        ))
    }

    /// Why the node must not have access, and whether it is surely in a network that is shut out.
    ///
    /// A fence is recorded before it looks for nodes with access. So a node that gets access in between is found by the
    /// fence, or sees it when the driver asks again after its plan: a backend may not read the parent twice for one verb.
    fn fenced(&self, seen: &Observed) -> Result<Option<(Error, bool)>, Error> {
        let (AccessChange::Allow { node, .. }, Some(parent)) = (self.change, self.fenced_by) else {
            return Ok(None);
        };
        let Some(dataset) = seen.pool.dataset(parent) else {
            return Ok(None);
        };
        let mut addresses = node.addresses.clone();
        addresses.extend(self.export_ref.export.addresses(&node.id));
        let reported = &node.reported;
        let (why, is_in) = match Fenced::of(dataset)?.side(&addresses) {
            Side::Out => return Ok(None),
            Side::In(network) => {
                let why = format!("node `{reported}` is in the fenced network {network}");
                (why, true)
            }
            Side::Unknown => {
                let why = format!(
                    "networks are fenced, and no address of node `{reported}` is known: see \
                     `proxy.nodeId.parts.addresses`, and `addresses` in `nodes`"
                );
                (why, false)
            }
        };
        let name = PropertyName::FENCED;
        let refused = Error::new(Kind::Busy, self.doing_it()).because(why).advise(format!(
            "once the node is safe, lift the fence: set `fenceState: Unfenced` in its NetworkFence, or without csi-addons \
             run `zfs inherit {name} {parent}` on the storage"
        ));
        Ok(Some((refused, is_in)))
    }

    /// Rejects a node that asks for a volume of one node while another one is recorded. One that is recorded itself has
    /// the volume already, and is not rejected: a publish that was interrupted is repeated, and lost access restored.
    ///
    /// The plan has a guard on the record. So of two nodes that ask at once the first to be recorded gets the volume, and
    /// the other one finds it here. A node leaves the record only after its access.
    fn check_only(&self, dataset: &Dataset) -> Result<(), Error> {
        let AccessChange::Allow {
            node,
            is_only: true,
        } = self.change
        else {
            return Ok(());
        };
        let recorded = PublishedNodes::of(dataset);
        if !self.export_ref.export.is_per_node() || recorded.is_empty() || recorded.has(node) {
            return Ok(());
        }
        let others: Vec<String> = recorded
            .iter()
            .map(|(one, _)| format!("node `{one}`"))
            .collect();
        let why = format!(
            "it is published to {}, and the access mode of this request is for one node",
            listed(&others)
        );
        let (record, dataset) = (PropertyName::PUBLISHED, self.export_ref.dataset);
        Err(Error::new(Kind::Busy, self.doing_it()).because(why).advise(format!(
            "unpublish it there first: Kubernetes does when the pods have left that node, or when a lost node has the taint \
             `node.kubernetes.io/out-of-service`; for a node that does not exist any more run `zfs inherit {record} \
             {dataset}` on the storage"
        )))
    }

    /// The change in the record of the volume's nodes.
    fn recorded(
        &self,
        dataset: &Dataset,
        change: AccessChange<'_>,
    ) -> Result<Option<Act<Opaque>>, Error> {
        let before = PublishedNodes::of(dataset);
        let mut after = before.clone();
        match change {
            AccessChange::Present(_) => {}
            AccessChange::Allow { node, .. } => {
                if !after.add(node) {
                    let (volume, node) = (self.export_ref.id, &node.reported);
                    tracing::warn!(%volume, %node, "the dataset has no room to record another node: lists do not show it");
                }
            }
            AccessChange::Revoke(node) => after.remove(node),
        }
        if after == before {
            return Ok(None);
        }
        let property = after.property()?;
        Ok(Some(property.map_or(
            Act::Forget(PropertyName::PUBLISHED),
            Act::Remember,
        )))
    }

    /// The acts that are missing until the volume is exported, and until this node has access. An export that is still
    /// open is closed for the nodes that it is published to already, all at once: they are listed before it is closed.
    fn allow(
        &self,
        dataset: &Dataset,
        status: &dyn ExportStatus,
        node: Option<&NodeId>,
    ) -> Result<Vec<Act<Opaque>>, Error> {
        if !status.is_open() {
            let mut acts = match node {
                Some(_) => status.prepare()?,
                None => status.ensure()?,
            };
            let node = node.map(|node| status.allow(&[node])).transpose()?;
            acts.extend(node.into_iter().flatten());
            return Ok(acts);
        }
        let recorded = PublishedNodes::of(dataset);
        let mut nodes: Vec<&NodeId> = node.into_iter().collect();
        let export = self.export_ref.export;
        for (reported, id) in recorded.iter().filter(|(_, id)| Some(*id) != node) {
            if export.names(id) && export.admits(id).is_ok() {
                nodes.push(id);
            } else {
                let volume = self.export_ref.id;
                tracing::warn!(%volume, node = %reported, "loses access: the configuration does not say what it is called, or has no key of it");
            }
        }
        if nodes.is_empty() {
            return Ok(Vec::new());
        }
        let mut acts = status.allow(&nodes)?;
        acts.retain(|act| !act.is_request());
        Ok(acts)
    }

    /// The acts before access is revoked from one node while others have the volume: an export that is still open is
    /// closed for all of them first, or they would lose it together with that one. Without others the revocation closes it.
    fn before_revoking(
        &self,
        dataset: Option<&Dataset>,
        status: &dyn ExportStatus,
        change: AccessChange<'_>,
        done: usize,
    ) -> Result<Vec<Act<Opaque>>, Error> {
        let AccessChange::Revoke(Some(node)) = change else {
            return Ok(Vec::new());
        };
        let Some(dataset) = dataset else {
            return Ok(Vec::new());
        };
        let recorded = PublishedNodes::of(dataset);
        let has_others = recorded.iter().any(|(_, id)| *id != node.id);
        if !has_others && !self.is_strict {
            return Ok(Vec::new());
        }
        let has_name = self.export_ref.export.names(&node.id);
        if status.is_open() {
            return self.allow(dataset, status, has_name.then_some(&node.id));
        }
        // It was open before this call, and the list, which has this node, too, is not applied yet.
        if done > 0 && (!has_name || self.remembers(dataset, &node.id)) {
            return status.ensure();
        }
        Ok(Vec::new())
    }

    /// Whether the dataset remembers that this node has access.
    fn remembers(&self, dataset: &Dataset, node: &NodeId) -> bool {
        let subject = Subject {
            id: self.export_ref.id,
            dataset: self.export_ref.dataset,
            request: None,
            chosen: None,
            volume: Some(dataset),
        };
        self.export_ref.export.lets_in(&subject, node)
    }

    fn doing_it(&self) -> String {
        let verb = match self.change {
            AccessChange::Present(_) => "repair the export of",
            AccessChange::Allow { .. } => "publish",
            AccessChange::Revoke(_) => "unpublish",
        };
        format!("{verb} volume `{}`", self.export_ref.id)
    }
}

/// The export of an attachment, without the address of its host, which comes from the configuration
/// and may change.
fn place(attachment: &Attachment) -> Option<String> {
    Some(match attachment {
        Attachment::Nfs(share) | Attachment::Smb(share) => share.share.as_str().to_owned(),
        Attachment::Iscsi(disk) => disk.iqn.to_string(),
        Attachment::Nvmeof(disk) => disk.nqn.to_string(),
        Attachment::ZfsLocal(local) => local.asset.to_string(),
        _ => return None,
    })
}

impl Verb for Access<'_> {
    type Done = ();

    fn doing(&self) -> String {
        self.doing_it()
    }

    fn request(&self, pool: &State) -> Result<Request, Error> {
        let mut queries = vec![Query::Dataset(self.export_ref.dataset.clone())];
        let mut properties = self.export_ref.export.reads();
        if let (AccessChange::Allow { .. }, Some(parent)) = (self.change, self.fenced_by) {
            queries.push(Query::Dataset(parent.clone()));
            properties.push(PropertyName::FENCED);
        }
        Ok(Request {
            queries,
            properties,
            export: self.export_ref.commands(pool)?,
            ..Request::default()
        })
    }

    fn plan(&self, asked: &State, seen: &Observed, done: usize) -> Result<Outcome<()>, Error> {
        let (refusal, change) = match (self.fenced(seen)?, self.change) {
            // Its own access ends, and no other's: a node without a known address may be a healthy one that had it before.
            (Some((refusal, is_in)), AccessChange::Allow { node, .. })
                if is_in || self.is_strict || done > 0 =>
            {
                (Some(refusal), AccessChange::Revoke(Some(node)))
            }
            (Some((refusal, _)), _) => return Err(refusal),
            (None, change) => (None, change),
        };
        let there = |dataset: &&Dataset| is_complete(dataset) && dataset.kind == self.kind;
        let ours = |dataset: &&Dataset| match change {
            AccessChange::Present(owner) => !owner.is_another(dataset),
            AccessChange::Allow { .. } | AccessChange::Revoke(_) => true,
        };
        let dataset = seen.pool.dataset(self.export_ref.dataset);
        let dataset = dataset.filter(there).filter(ours);
        if matches!(change, AccessChange::Present(_)) && dataset.is_none() {
            // Before its export is read: this driver may not be able to read that of another one.
            return Err(Error::not_found(self.doing()));
        }
        let Some(status) = self.export_ref.status(asked, seen)? else {
            return Ok(Outcome::Ask);
        };
        let mut plan = Plan::about(self.export_ref.dataset.clone());
        let on_storage = seen.pool.dataset(self.export_ref.dataset);
        // Another controller may change the access list before this plan gets the lock.
        if let Some(seen) = on_storage {
            self.export_ref.guard(&mut plan, seen);
        }
        let record = on_storage.map(|dataset| self.recorded(dataset, change));
        let record = record.transpose()?.flatten();
        if let Some(seen) = on_storage.filter(|_| record.is_some()) {
            plan.guard_property(seen, &PropertyName::PUBLISHED);
        }
        let acts = match change {
            AccessChange::Present(_) | AccessChange::Allow { .. } => {
                let dataset = dataset.ok_or_else(|| Error::not_found(self.doing()))?;
                let node = match change {
                    AccessChange::Allow { node, .. } => Some(&node.id),
                    _ => None,
                };
                // A node that is revoked, or was recorded by an earlier call, is not refused.
                node.map_or(Ok(()), |node| self.export_ref.export.admits(node))?;
                self.check_only(dataset)?;
                // The record first: every node with access is in it.
                let acts = self.allow(dataset, &*status, node)?;
                record.into_iter().chain(acts).collect()
            }
            // A deleted volume has no access to revoke, unless its export was left behind.
            AccessChange::Revoke(node) => {
                let first = self.before_revoking(dataset, &*status, change, done)?;
                if !first.is_empty() {
                    self.export_ref.add(&mut plan, first);
                    return Ok(Outcome::Do(plan));
                }
                let mut acts = status.revoke(node.map(|node| &node.id))?;
                // With the access list: what an interrupted call leaves of both, a retry finds by the export.
                let is_list = |act: &Act<Opaque>| match act {
                    Act::Remember(property) => property.name.is_user(),
                    Act::Forget(_) => true,
                    _ => false,
                };
                let last = acts.iter().rposition(is_list);
                // A fence finds a node by the record, so that goes last.
                let is_of_fence = self.is_strict || refusal.is_some();
                let last = last.filter(|_| !is_of_fence);
                let place = last.map_or(acts.len(), |last| last + 1);
                acts.splice(place..place, record);
                acts
            }
        };
        self.export_ref.add(&mut plan, acts);
        if let (AccessChange::Present(_), true, Some(dataset)) = (change, plan.is_empty(), dataset)
        {
            self.check_place(dataset, status.attachment()?)?;
        }
        if !plan.is_empty() {
            return Ok(Outcome::Do(plan));
        }
        refusal.map_or(Ok(Outcome::Done(())), Err)
    }
}
