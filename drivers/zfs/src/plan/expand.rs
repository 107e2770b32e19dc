//! Growing a volume. It never shrinks, and one that is large enough stays as it is. An export that is lost
//! is put back.

use driver_core::{Error, Expanded, Kind, SizeRange};

use super::{Outcome, Reach, Standing, Verb, is_complete};
use crate::export::{Act, Export};
use crate::observed::{Dataset, Look, Observed, Picture, Question, VolumeKind};
use crate::policy::Policy;
use crate::property::{Property, PropertyName};
use crate::step::{Plan, Step};

/// Grows a volume.
#[derive(Debug)]
pub struct Expand<'a, E> {
    /// How volumes are wanted.
    pub policy: &'a Policy,
    /// What volumes are.
    pub kind: VolumeKind,
    /// The volume and its export.
    pub reach: Reach<'a, E>,
    /// The wanted size.
    pub size: SizeRange,
}

/// What a volume has to become.
struct Target {
    size: u64,
    properties: Vec<Property>,
}

// === impl Expand ===

impl<E: Export> Expand<'_, E> {
    fn refused(&self) -> Error {
        Error::new(
            Kind::OutOfRange,
            format!("expand volume `{}`", self.reach.id),
        )
    }

    fn target(&self, dataset: &Dataset) -> Result<Target, Error> {
        let block = dataset.properties.number(&PropertyName::VOLBLOCKSIZE);
        let wanted = self
            .size
            .choose(block.unwrap_or(1))
            .map_err(|error| self.refused().because(error))?;
        // A limit alone asks for no growth, and is no wish to shrink.
        let enough = dataset.size().filter(|size| *size >= wanted);
        if let Some(size) = enough
            && self.size.limit().is_some_and(|limit| size > limit)
        {
            let why = format!("it has {size} bytes already");
            return Err(self.refused().because(why));
        }
        let smaller = |name: &PropertyName| dataset.properties.number(name) < Some(wanted);
        let names = self.sizes(dataset).into_iter().filter(smaller);
        Ok(Target {
            size: enough.unwrap_or(wanted),
            properties: names
                .map(|name| Property::new(name, wanted.into()))
                .collect(),
        })
    }

    /// What tells the export of its size.
    fn told(
        &self,
        pool: &Picture,
        standing: Option<&Standing<E>>,
    ) -> Result<Vec<Act<E::Request>>, Error> {
        let subject = self.reach.subject(pool);
        let export = self.reach.export;
        match standing {
            Some(standing) => export.resize(&subject, &standing.asset, Some(&standing.facts)),
            None => export.resize(&subject, &export.asset(&subject)?, None),
        }
    }

    /// What has to grow. A quota that the dataset has is its limit, whatever the configuration says
    /// by now; one that it has not would be less than it has.
    fn sizes(&self, dataset: &Dataset) -> Vec<PropertyName> {
        match self.kind {
            VolumeKind::Zvol => vec![PropertyName::VOLSIZE],
            VolumeKind::Filesystem => {
                let quota = dataset.size().map(|_| PropertyName::REFQUOTA);
                let reserved = self.policy.reservation;
                let reservation = reserved.then_some(PropertyName::REFRESERVATION);
                quota.into_iter().chain(reservation).collect()
            }
        }
    }
}

impl<E: Export> Verb<E::Request, E::Answer> for Expand<'_, E> {
    type Done = Expanded;

    fn doing(&self) -> String {
        format!("expand volume `{}`", self.reach.id)
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
        done: usize,
    ) -> Result<Outcome<Expanded, E::Request>, Error> {
        let name = self.reach.dataset;
        let there = |dataset: &&Dataset| is_complete(dataset) && dataset.kind == self.kind;
        let Some(dataset) = seen.pool.dataset(name).filter(there) else {
            return Err(Error::not_found(self.doing()));
        };
        let target = self.target(dataset)?;
        let standing = self.reach.standing(asked, seen)?;
        let mut plan = Plan::about(name.clone());
        // What is put back names the nodes that are let in: others may change that meanwhile.
        self.reach.guard(&mut plan, dataset);
        let missing = !target.properties.is_empty();
        if missing {
            plan.step(Step::Set {
                object: name.clone().into(),
                properties: target.properties,
            });
        }
        if let Some(standing) = &standing {
            // What the host has lost is put back: somebody wants to use it.
            plan.steps
                .extend(self.reach.establish(&seen.pool, standing)?);
        }
        if missing || done == 0 {
            // Whether it knows the new size cannot always be seen, so it is told once in each call: with
            // the first plan, also where the first look, which knew nothing, was at another asset.
            let acts = self.told(&seen.pool, standing.as_ref())?;
            plan.steps.extend(self.reach.steps(acts));
        }
        if !plan.is_empty() {
            return Ok(Outcome::Do(plan));
        }
        if standing.is_none() {
            return Ok(Outcome::Ask);
        }
        Ok(Outcome::Done(Expanded {
            capacity: target.size,
            node_expansion_required: self.kind == VolumeKind::Zvol,
        }))
    }
}
