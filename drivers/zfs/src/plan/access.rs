//! Letting a node reach a volume, and stopping it.

use driver_core::{Error, NodeId};

use super::owner::Owner;
use super::{Outcome, Reach, Verb, is_complete};
use crate::export::Export;
use crate::observed::{Dataset, Look, Observed, Picture, Question, VolumeKind};
use crate::step::Plan;

/// Changes who reaches a volume.
#[derive(Debug)]
pub struct Access<'a, E> {
    /// What volumes are.
    pub kind: VolumeKind,
    /// The volume and its export.
    pub reach: Reach<'a, E>,
    /// What is wanted.
    pub wish: Wish<'a>,
}

/// Who is to reach a volume.
#[derive(Debug, Clone, Copy)]
pub enum Wish<'a> {
    /// Whoever reached it before: what the host has lost is put back. Nobody has asked for this very
    /// volume, so one that a connection with another export made is none of this one.
    Present(Owner<'a>),
    /// This node, too.
    Allow(&'a NodeId),
    /// Not this node, or nobody, any more.
    Revoke(Option<&'a NodeId>),
}

impl<E: Export> Verb<E::Request, E::Answer> for Access<'_, E> {
    type Done = ();

    fn doing(&self) -> String {
        let verb = match self.wish {
            Wish::Present(_) => "repair the export of",
            Wish::Allow(_) => "publish",
            Wish::Revoke(_) => "unpublish",
        };
        format!("{verb} volume `{}`", self.reach.id)
    }

    fn question(&self, pool: &Picture) -> Result<Question<E::Request>, Error> {
        Ok(Question {
            looks: vec![Look::Dataset(self.reach.dataset.clone())],
            properties: self.reach.export.reads(),
            export: self.reach.look(pool)?,
        })
    }

    fn plan(
        &self,
        asked: &Picture,
        seen: &Observed<E::Answer>,
        _done: usize,
    ) -> Result<Outcome<(), E::Request>, Error> {
        let there = |dataset: &&Dataset| is_complete(dataset) && dataset.kind == self.kind;
        let ours = |dataset: &&Dataset| match self.wish {
            Wish::Present(owner) => !owner.is_another(dataset),
            Wish::Allow(_) | Wish::Revoke(_) => true,
        };
        let dataset = seen.pool.dataset(self.reach.dataset);
        let dataset = dataset.filter(there).filter(ours);
        if matches!(self.wish, Wish::Present(_)) && dataset.is_none() {
            // Before its export is looked into: that of another one may be nothing for this one to read.
            return Err(Error::not_found(self.doing()));
        }
        let Some(standing) = self.reach.standing(asked, seen)? else {
            return Ok(Outcome::Ask);
        };
        let subject = self.reach.subject(&seen.pool);
        let (export, asset, facts) = (self.reach.export, &standing.asset, &standing.facts);
        let mut plan = Plan::about(self.reach.dataset.clone());
        // Another controller may let somebody in, or put somebody out, before this plan has its turn.
        if let Some(seen) = seen.pool.dataset(self.reach.dataset) {
            self.reach.guard(&mut plan, seen);
        }
        let acts = match self.wish {
            Wish::Present(_) | Wish::Allow(_) => {
                dataset.ok_or_else(|| Error::not_found(self.doing()))?;
                // What the host has lost is put back first.
                plan.steps = self.reach.establish(&seen.pool, &standing)?;
                match self.wish {
                    Wish::Allow(node) => export.allow(&subject, asset, facts, node)?,
                    _ => Vec::new(),
                }
            }
            // A volume that is gone is reached by nobody, unless its export was left behind.
            Wish::Revoke(node) => export.revoke(&subject, asset, facts, node)?,
        };
        plan.steps.extend(self.reach.steps(acts));
        Ok(if plan.is_empty() {
            Outcome::Done(())
        } else {
            Outcome::Do(plan)
        })
    }
}
