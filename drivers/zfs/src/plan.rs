//! The algorithm: what is asked and what is planned for each verb, as pure functions.
//!
//! A verb is asked again with what was observed after its last plan, until it says that it is done.
//! It never remembers anything: a plan that was cut anywhere, by a crash here or there, leaves a
//! state from which the same verb plans the rest.

pub mod access;
pub mod create;
pub mod destroy;
pub mod expand;
pub mod orphan;
pub mod owner;
pub mod snapshot;

use driver_core::{Error, Kind, VolumeId};

use crate::export::{Act, Asked, Export, Subject};
use crate::name::{DatasetName, Object, SnapshotRef};
use crate::observed::{Dataset, Observed, Picture, Question};
use crate::property::PropertyName;
use crate::step::{Plan, Step};

/// One verb about one object.
pub trait Verb<R, A>: Send + Sync {
    /// What it gives in the end.
    type Done: Send;

    /// The work and its object, for errors.
    fn doing(&self) -> String;

    /// What has to be observed. `pool` is what was observed before, at first nothing.
    fn question(&self, pool: &Picture) -> Result<Question<R>, Error>;

    /// What has to be observed right after a plan, in the same exchange: whatever shows that it was
    /// done, and what comes then.
    fn question_after(&self, pool: &Picture) -> Result<Question<R>, Error> {
        self.question(pool)
    }

    /// What comes next. `asked` is what the question was made of that `seen` answers; `done` counts
    /// the plans of this call that were done to their end.
    fn plan(
        &self,
        asked: &Picture,
        seen: &Observed<A>,
        done: usize,
    ) -> Result<Outcome<Self::Done, R>, Error>;

    /// Whether [`Verb::regret`] may have something to do.
    const REGRETS: bool = false;

    /// What there is of what this verb makes, where it found no room: what was seen while nobody else
    /// changed it. What was made of nothing and is not there at all leaves room to others.
    fn left(&self, _seen: &Picture) -> Left<R> {
        Left::Something
    }

    /// A plan of nothing, which only waits for its turn, where [`Verb::left`] may say something.
    fn turn(&self) -> Option<Plan<R>> {
        None
    }

    /// What puts right again what callers would miss, where a call fails after it has changed
    /// something.
    fn regret(&self, _asked: &Picture, _seen: &Observed<A>) -> Result<Option<Plan<R>>, Error> {
        Ok(None)
    }
}

/// What comes next.
#[derive(Debug)]
pub enum Outcome<T, R> {
    /// Nothing: this is the end.
    Done(T),
    /// These changes, then another look.
    Do(Plan<R>),
    /// Another question, made of what is seen now.
    Ask,
}

/// What there is of what a verb makes.
#[derive(Debug)]
pub enum Left<R> {
    /// Nothing.
    Nothing,
    /// Nothing but what was made on the way, and how that goes.
    OnTheWay(Plan<R>),
    /// It has been begun, now or earlier, or nobody can tell.
    Something,
}

/// One volume and the way it is exported.
#[derive(Debug)]
pub struct Reach<'a, E> {
    /// How it is exported.
    pub export: &'a E,
    /// Its id.
    pub id: &'a VolumeId,
    /// What it is.
    pub dataset: &'a DatasetName,
    /// How it was asked for.
    pub asked: Option<Asked<'a>>,
}

/// How things stand with an export.
#[derive(Debug)]
pub struct Standing<E: Export> {
    /// What it is called.
    pub asset: E::Asset,
    /// What was seen of it.
    pub facts: E::Facts,
}

// === impl Reach ===

impl<E: Export> Reach<'_, E> {
    /// What has to be looked at.
    pub fn look(&self, pool: &Picture) -> Result<Vec<E::Request>, Error> {
        let subject = self.subject(pool);
        let asset = self.export.asset(&subject)?;
        Ok(self.export.look(&subject, &asset))
    }

    /// How things stand; `None` if the look was at another asset than the one that is remembered.
    /// What a volume that is gone remembered still counts.
    pub fn standing(
        &self,
        asked: &Picture,
        seen: &Observed<E::Answer>,
    ) -> Result<Option<Standing<E>>, Error> {
        let subject = self.subject(&seen.pool);
        let asset = match subject.volume {
            Some(_) => self.export.asset(&subject)?,
            None => self.export.asset(&self.subject(asked))?,
        };
        if self.export.asset(&self.subject(asked))? != asset {
            return Ok(None);
        }
        let facts = self.export.facts(&subject, &asset, &seen.export)?;
        Ok(Some(Standing { asset, facts }))
    }

    /// What is missing until it is exported.
    pub fn establish(
        &self,
        pool: &Picture,
        standing: &Standing<E>,
    ) -> Result<Vec<Step<E::Request>>, Error> {
        let subject = self.subject(pool);
        let acts = self
            .export
            .establish(&subject, &standing.asset, &standing.facts)?;
        Ok(self.steps(acts))
    }

    /// What is missing until nothing of the export is left.
    pub fn withdraw(
        &self,
        pool: &Picture,
        standing: &Standing<E>,
    ) -> Result<Vec<Step<E::Request>>, Error> {
        let subject = self.subject(pool);
        let acts = self
            .export
            .withdraw(&subject, &standing.asset, &standing.facts)?;
        // Properties go with their dataset, or are gone with it.
        let acts = acts.into_iter().filter(|act| matches!(act, Act::Do(_)));
        Ok(self.steps(acts.collect()))
    }

    /// Asks for the dataset to be the same one and, where the export tells nodes apart, for what it
    /// remembers of them to be what it was: what is planned is made of that, and written as a whole.
    pub fn guard(&self, plan: &mut Plan<E::Request>, dataset: &Dataset) {
        plan.guard(dataset.name.clone(), dataset.guid);
        let nodes = self.export.knows_nodes();
        for name in self.export.reads().iter().filter(|_| nodes) {
            plan.guard_property(dataset, name);
        }
    }

    /// Acts as steps.
    pub fn steps(&self, acts: Vec<Act<E::Request>>) -> Vec<Step<E::Request>> {
        let object = || Object::from(self.dataset.clone());
        let step = |act| match act {
            Act::Do(request) => Step::Export(request),
            Act::Remember(property) => Step::Set {
                object: object(),
                properties: vec![property],
            },
            Act::Forget(property) => Step::Inherit {
                object: object(),
                property,
            },
        };
        acts.into_iter().map(step).collect()
    }

    /// The volume as `pool` shows it.
    pub fn subject<'p>(&'p self, pool: &'p Picture) -> Subject<'p> {
        Subject {
            id: self.id,
            dataset: self.dataset,
            request: self.asked,
            volume: pool.dataset(self.dataset),
        }
    }
}

/// Whether a dataset is a volume that was made to its end: nobody else writes volume contexts.
/// compat: "ZFS": not all volumes of democratic-csi bear its other marks.
pub fn is_complete(dataset: &Dataset) -> bool {
    dataset.properties.own(&PropertyName::CONTEXT).is_some()
}

/// The plan that goes on with a copy that was cut. Nothing comes after it: it may end the part instead.
pub(crate) fn going_on<R>(lock: &DatasetName, part: &Dataset, from: &SnapshotRef) -> Plan<R> {
    let mut plan = Plan::about(lock.clone());
    plan.guard(part.name.clone(), part.guid);
    plan.step(Step::GoOn {
        from: from.clone(),
        to: part.name.clone(),
    });
    plan
}

/// An error about something that stands in the way.
pub(crate) fn blocked(doing: &str, why: impl Into<String>) -> Error {
    Error::new(Kind::Busy, doing).because(why.into())
}

/// A few names, for an error.
pub(crate) fn listed<T: ToString>(names: impl IntoIterator<Item = T>) -> String {
    let mut names: Vec<String> = names.into_iter().map(|name| name.to_string()).collect();
    let more = names.len().saturating_sub(8);
    names.truncate(8);
    let mut text = names.join(", ");
    if more > 0 {
        text = format!("{text} and {more} more");
    }
    text
}
