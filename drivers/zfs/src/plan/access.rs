//! Granting a node access to a volume, and revoking it.

use csi_types::Attachment;
use driver_core::{Error, NodeId};

use super::owner::Owner;
use super::{ExportRef, Outcome, Verb, blocked, is_complete};
use crate::context;
use crate::observed::{Dataset, Observed, Query, Request, State, VolumeKind};
use crate::property::PropertyName;
use crate::step::Plan;

/// Changes the access to a volume.
#[derive(Debug)]
pub struct Access<'a> {
    /// What volumes are.
    pub kind: VolumeKind,
    /// The volume and its export.
    pub export_ref: ExportRef<'a>,
    /// What is wanted.
    pub change: AccessChange<'a>,
}

/// The change of the access to a volume.
#[derive(Debug, Clone, Copy)]
pub enum AccessChange<'a> {
    /// The nodes that had access before: restores what the host has lost. No caller asked for this
    /// particular volume, so volumes of a connection with another export are skipped.
    Present(Owner<'a>),
    /// This node, too.
    Allow(&'a NodeId),
    /// Revokes the access of this node, or of all nodes.
    Revoke(Option<&'a NodeId>),
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

    fn doing_it(&self) -> String {
        let verb = match self.change {
            AccessChange::Present(_) => "repair the export of",
            AccessChange::Allow(_) => "publish",
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
        Ok(Request {
            queries: vec![Query::Dataset(self.export_ref.dataset.clone())],
            properties: self.export_ref.export.reads(),
            export: self.export_ref.commands(pool)?,
            ..Request::default()
        })
    }

    fn plan(&self, asked: &State, seen: &Observed, _done: usize) -> Result<Outcome<()>, Error> {
        let there = |dataset: &&Dataset| is_complete(dataset) && dataset.kind == self.kind;
        let ours = |dataset: &&Dataset| match self.change {
            AccessChange::Present(owner) => !owner.is_another(dataset),
            AccessChange::Allow(_) | AccessChange::Revoke(_) => true,
        };
        let dataset = seen.pool.dataset(self.export_ref.dataset);
        let dataset = dataset.filter(there).filter(ours);
        if matches!(self.change, AccessChange::Present(_)) && dataset.is_none() {
            // Before its export is read: this driver may not be able to read that of another one.
            return Err(Error::not_found(self.doing()));
        }
        let Some(status) = self.export_ref.status(asked, seen)? else {
            return Ok(Outcome::Ask);
        };
        let mut plan = Plan::about(self.export_ref.dataset.clone());
        // Another controller may change the access list before this plan gets the lock.
        if let Some(seen) = seen.pool.dataset(self.export_ref.dataset) {
            self.export_ref.guard(&mut plan, seen);
        }
        let acts = match self.change {
            AccessChange::Present(_) | AccessChange::Allow(_) => {
                dataset.ok_or_else(|| Error::not_found(self.doing()))?;
                // Restores what the host has lost first.
                self.export_ref.add(&mut plan, status.ensure()?);
                match self.change {
                    AccessChange::Allow(node) => status.allow(node)?,
                    _ => Vec::new(),
                }
            }
            // A deleted volume has no access to revoke, unless its export was left behind.
            AccessChange::Revoke(node) => status.revoke(node)?,
        };
        self.export_ref.add(&mut plan, acts);
        if let (AccessChange::Present(_), true, Some(dataset)) =
            (self.change, plan.is_empty(), dataset)
        {
            self.check_place(dataset, status.attachment()?)?;
        }
        Ok(if plan.is_empty() {
            Outcome::Done(())
        } else {
            Outcome::Do(plan)
        })
    }
}
