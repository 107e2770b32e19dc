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
use crate::observed::{Dataset, Observed, Request, State};
use crate::property::PropertyName;
use crate::step::{Guess, Plan, Step};

/// One verb about one object.
pub trait Verb<R, A>: Send + Sync {
    /// What it gives in the end.
    type Done: Send;

    /// The work and its object, for errors.
    fn doing(&self) -> String;

    /// What has to be observed. `pool` is what was observed before, at first nothing.
    fn request(&self, pool: &State) -> Result<Request<R>, Error>;

    /// What has to be observed right after a plan, in the same exchange: whatever shows that it was
    /// done, and what comes then.
    fn request_after(&self, pool: &State) -> Result<Request<R>, Error> {
        self.request(pool)
    }

    /// What comes next. `asked` is what the question was made of that `seen` answers; `done` counts
    /// the plans of this call that were done to their end.
    fn plan(
        &self,
        asked: &State,
        seen: &Observed<A>,
        done: usize,
    ) -> Result<Outcome<Self::Done, R>, Error>;

    /// What the plan is where all is as usual: saves the second exchange and the look under the lock.
    fn guess(&self) -> Option<Guess<R>> {
        None
    }

    /// What it gives in the end where the guess was right and nothing else has to be seen.
    fn guessed(&self) -> Option<Self::Done> {
        None
    }

    /// Whether [`Verb::compensate`] may have something to do.
    const COMPENSATES: bool = false;

    /// What there is of what this verb makes, where it found no room: what was seen while nobody else
    /// changed it. What was made of nothing and is not there at all leaves room to others.
    fn leftover(&self, _seen: &State) -> Leftover<R> {
        Leftover::Something
    }

    /// A plan of nothing, which only waits for its turn, where [`Verb::leftover`] may say something.
    fn noop_under_lock(&self) -> Option<Plan<R>> {
        None
    }

    /// What puts right again what callers would miss, where a call fails after it has changed
    /// something.
    fn compensate(&self, _asked: &State, _seen: &Observed<A>) -> Result<Option<Plan<R>>, Error> {
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
    /// These changes. Done without a failure they are the end, and nothing has to be looked at again.
    End(Plan<R>, T),
    /// Another question, made of what is seen now.
    Ask,
}

/// What there is of what a verb makes.
#[derive(Debug)]
pub enum Leftover<R> {
    /// Nothing.
    Nothing,
    /// Nothing but what was made on the way, and how that goes.
    OnTheWay(Plan<R>),
    /// It has been begun, now or earlier, or nobody can tell.
    Something,
}

/// One volume and the way it is exported.
#[derive(Debug)]
pub struct ExportRef<'a, E> {
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
pub struct ExportStatus<E: Export> {
    /// What it is called.
    pub export_name: E::Name,
    /// What was seen of it.
    pub facts: E::Facts,
}

// === impl ExportRef ===

impl<E: Export> ExportRef<'_, E> {
    /// What has to be looked at.
    pub fn commands(&self, pool: &State) -> Result<Vec<E::Command>, Error> {
        let subject = self.subject(pool);
        let export_name = self.export.export_name(&subject)?;
        Ok(self.export.observe(&subject, &export_name))
    }

    /// What has to be looked at before it is removed.
    pub fn commands_to_remove(&self, pool: &State) -> Result<Vec<E::Command>, Error> {
        let subject = self.subject(pool);
        let export_name = self.export.export_name(&subject)?;
        Ok(self.export.observe_to_remove(&subject, &export_name))
    }

    /// How things stand; `None` if the look was at another `export_name` than the one that is remembered.
    /// What a volume that is gone remembered still counts.
    pub fn status(
        &self,
        asked: &State,
        seen: &Observed<E::Output>,
    ) -> Result<Option<ExportStatus<E>>, Error> {
        let subject = self.subject(&seen.pool);
        let export_name = match subject.volume {
            Some(_) => self.export.export_name(&subject)?,
            None => self.export.export_name(&self.subject(asked))?,
        };
        if self.export.export_name(&self.subject(asked))? != export_name {
            return Ok(None);
        }
        let facts = self.export.facts(&subject, &export_name, &seen.export)?;
        Ok(Some(ExportStatus { export_name, facts }))
    }

    /// What is missing until it is exported.
    pub fn ensure(
        &self,
        pool: &State,
        status: &ExportStatus<E>,
    ) -> Result<Vec<Step<E::Command>>, Error> {
        let subject = self.subject(pool);
        let acts = self
            .export
            .ensure(&subject, &status.export_name, &status.facts)?;
        Ok(self.steps(acts))
    }

    /// What is missing until nothing of the export is left.
    pub fn remove(
        &self,
        pool: &State,
        status: &ExportStatus<E>,
    ) -> Result<Vec<Step<E::Command>>, Error> {
        let subject = self.subject(pool);
        let acts = self
            .export
            .remove(&subject, &status.export_name, &status.facts)?;
        // Properties go with their dataset, or are gone with it.
        let acts = acts.into_iter().filter(|act| matches!(act, Act::Do(_)));
        Ok(self.steps(acts.collect()))
    }

    /// Asks for the dataset to be the same one and, where the export tells nodes apart, for what it
    /// remembers of them to be what it was: what is planned is made of that, and written as a whole.
    pub fn guard(&self, plan: &mut Plan<E::Command>, dataset: &Dataset) {
        plan.guard(dataset.name.clone(), dataset.guid);
        let nodes = self.export.is_per_node();
        for name in self.export.reads().iter().filter(|_| nodes) {
            plan.guard_property(dataset, name);
        }
    }

    /// Acts as steps.
    pub fn steps(&self, acts: Vec<Act<E::Command>>) -> Vec<Step<E::Command>> {
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
    pub fn subject<'p>(&'p self, pool: &'p State) -> Subject<'p> {
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
