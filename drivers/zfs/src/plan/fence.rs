//! Recording which networks are shut out, and lifting that.

use csi_types::Network;
use driver_core::Error;

use super::destroy::has_parent;
use super::{Outcome, Verb};
use crate::fenced::Fenced;
use crate::id::Parent;
use crate::observed::{Observed, Query, Request, State};
use crate::property::PropertyName;
use crate::step::{Plan, Step};

/// Changes the record of the networks that are shut out.
#[derive(Debug)]
pub struct Fence<'a> {
    /// The parent of volumes.
    pub parent: Parent<'a>,
    /// The wanted change.
    pub change: FenceChange<'a>,
}

/// The change of the record.
#[derive(Debug, Clone, Copy)]
pub enum FenceChange<'a> {
    /// These are shut out, too.
    Add(&'a [Network]),
    /// These are not any more.
    Remove(&'a [Network]),
}

impl Verb for Fence<'_> {
    type Done = ();

    fn doing(&self) -> String {
        match self.change {
            FenceChange::Add(_) => "fence networks".to_owned(),
            FenceChange::Remove(_) => "lift the fence of networks".to_owned(),
        }
    }

    fn request(&self, _pool: &State) -> Result<Request, Error> {
        Ok(Request {
            queries: vec![Query::Dataset(self.parent.name.clone())],
            properties: vec![PropertyName::FENCED],
            ..Request::default()
        })
    }

    fn plan(&self, _asked: &State, seen: &Observed, _done: usize) -> Result<Outcome<()>, Error> {
        has_parent(&self.doing(), self.parent, &seen.pool)?;
        let Some(parent) = seen.pool.dataset(self.parent.name) else {
            return Ok(Outcome::Done(()));
        };
        let before = Fenced::of(parent)?;
        let after = match self.change {
            FenceChange::Add(networks) => before.clone().and(networks),
            FenceChange::Remove(networks) => before.clone().without(networks),
        };
        if after == before {
            return Ok(Outcome::Done(()));
        }
        let mut plan = Plan::about(parent.name.clone());
        plan.guard(parent.name.clone(), parent.guid);
        plan.guard_property(parent, &PropertyName::FENCED);
        let object = parent.name.clone().into();
        plan.step(match after.property()? {
            Some(property) => Step::Set {
                object,
                properties: vec![property],
            },
            None => Step::Inherit {
                object,
                property: PropertyName::FENCED,
            },
        });
        Ok(Outcome::Do(plan))
    }
}
