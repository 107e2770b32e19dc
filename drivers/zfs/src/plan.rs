//! The algorithm: the request and the plan of each verb, as pure functions.
//!
//! After each plan the verb is planned again from the observed state, until it is done. It keeps no
//! state: a plan that is interrupted anywhere, by a crash on either side, leaves a state from which
//! the same verb plans the rest.

pub mod access;
pub mod adopt;
pub mod create;
pub mod destroy;
pub mod expand;
pub mod fence;
pub mod group;
pub mod modify;
pub mod moving;
mod named;
pub mod orphan;
pub mod owner;
pub mod snapshot;

use driver_core::{Error, Kind, VolumeId};

use crate::export::{Act, AnyExport, Asked, ExportStatus, Opaque, Subject};
use crate::name::{DatasetName, Object, SnapshotRef};
use crate::observed::{Dataset, Observed, Request, State};
use crate::property::PropertyName;
use crate::step::{FirstTry, Plan, Step};

/// One verb about one object.
pub trait Verb: Send + Sync {
    /// Its result.
    type Done: Send;

    /// The operation and its object, for errors.
    fn doing(&self) -> String;

    /// The state to observe. `pool` is the previous observation, at first empty.
    fn request(&self, pool: &State) -> Result<Request, Error>;

    /// The state to observe right after a plan, in the same exchange: it must show whether the plan
    /// was applied, and what the next plan needs.
    fn request_after(&self, pool: &State) -> Result<Request, Error> {
        self.request(pool)
    }

    /// The next step. `asked` is the state that the request for `seen` was made from; `done` counts
    /// the completed plans of this call.
    fn plan(
        &self,
        asked: &State,
        seen: &Observed,
        done: usize,
    ) -> Result<Outcome<Self::Done>, Error>;

    /// Whether there is something of what this verb makes, by this call or an earlier one: then no failure
    /// proves that there is nothing of it.
    fn is_begun(&self, _seen: &State) -> bool {
        false
    }

    /// The step that a backend may do with the first observation, if the usual case is one step: that saves the second
    /// exchange and the query under the lock.
    fn first_try(&self) -> Option<FirstTry> {
        None
    }

    /// The result of the first try if that was done and nothing was observed.
    fn result_of_first_try(&self) -> Option<Self::Done> {
        None
    }

    /// Whether [`Verb::compensate`] may have something to do.
    const COMPENSATES: bool = false;

    /// The part of the verb's result that exists after the pool ran out of space, as observed under the
    /// lock. If nothing was created, the caller may use another connection.
    fn leftover(&self, _seen: &State) -> Leftover {
        Leftover::Something
    }

    /// An empty plan that only takes the lock, if [`Verb::leftover`] may return something.
    fn noop_under_lock(&self) -> Option<Plan> {
        None
    }

    /// The plan that restores what callers would miss if a call fails after it has changed
    /// something.
    fn compensate(&self, _asked: &State, _seen: &Observed) -> Result<Option<Plan>, Error> {
        Ok(None)
    }

    /// Whether nothing is left of the plan that was made from `asked` and was refused, as seen after the compensation.
    fn is_given_back(&self, _asked: &State, _seen: &State) -> bool {
        false
    }
}

/// The next action.
#[derive(Debug)]
pub enum Outcome<T> {
    /// Nothing: the verb is done.
    Done(T),
    /// These changes, then another observation.
    Do(Plan),
    /// These changes. If they succeed the verb is done, without another observation.
    End(Plan, T),
    /// The object is in use: another observation after a pause, and this error if it stays so.
    InUse(Error),
    /// Another request, made from the current state.
    Ask,
}

/// The part of the result of a verb that exists.
#[derive(Debug)]
pub enum Leftover {
    /// Nothing.
    Nothing,
    /// Only intermediate objects, and how to remove them.
    OnTheWay(Plan),
    /// It was started, now or earlier, or this is unknown.
    Something,
}

/// One volume and its export.
#[derive(Debug)]
pub struct ExportRef<'a> {
    /// Its export.
    pub export: &'a dyn AnyExport,
    /// Its id.
    pub id: &'a VolumeId,
    /// Its dataset.
    pub dataset: &'a DatasetName,
    /// Its request.
    pub asked: Option<Asked<'a>>,
    /// The choice of share options that the class of a request makes.
    pub chosen: Option<&'a str>,
}

// === impl ExportRef ===

impl ExportRef<'_> {
    /// The queries.
    pub fn commands(&self, pool: &State) -> Result<Vec<Opaque>, Error> {
        self.export.observe(&self.subject(pool))
    }

    /// The queries before a removal.
    pub fn commands_to_remove(&self, pool: &State) -> Result<Vec<Opaque>, Error> {
        self.export.observe_to_remove(&self.subject(pool))
    }

    /// The queries before an adoption.
    pub fn commands_to_adopt(&self, pool: &State) -> Result<Vec<Opaque>, Error> {
        self.export.observe_to_adopt(&self.subject(pool))
    }

    /// The status; `None` if another name than the recorded one was observed. The record of a deleted
    /// volume still counts.
    pub fn status<'p>(
        &'p self,
        asked: &State,
        seen: &'p Observed,
    ) -> Result<Option<Box<dyn ExportStatus + 'p>>, Error> {
        let subject = self.subject(&seen.pool);
        self.export
            .status(&self.subject(asked), subject, &seen.export)
    }

    /// The acts that are missing until nothing of the export is left.
    pub fn remove(&self, plan: &mut Plan, status: &dyn ExportStatus) -> Result<(), Error> {
        // Properties go with their dataset, or are gone with it.
        let acts = status.remove()?.into_iter();
        self.add(plan, acts.filter(Act::is_request).collect());
        Ok(())
    }

    /// The error while a node is connected: its disk must not be taken away.
    pub fn in_use(&self, doing: &str, status: &dyn ExportStatus) -> Result<Option<Error>, Error> {
        let mut nodes = status.connected()?;
        nodes.sort_unstable();
        nodes.dedup();
        let advice = "unmount the volume on that node and disconnect it; for a node that is gone see \"A volume that \
             is in use\" in docs/troubleshooting.md";
        let why = || format!("it is in use: connected is {}", listed(&nodes));
        Ok((!nodes.is_empty()).then(|| blocked(doing, why()).advise(advice)))
    }

    /// Guards that the dataset is the same and, if the export has access per node, that its record
    /// is unchanged: the plan is made from that record, and writes it as a whole.
    pub fn guard(&self, plan: &mut Plan, dataset: &Dataset) {
        plan.guard(dataset.name.clone(), dataset.guid);
        let nodes = self.export.is_per_node();
        for name in self.export.reads().iter().filter(|_| nodes) {
            plan.guard_property(dataset, name);
        }
    }

    /// Adds acts to a plan. Records that follow each other are one step.
    pub fn add(&self, plan: &mut Plan, acts: Vec<Act<Opaque>>) {
        let object = || Object::from(self.dataset.clone());
        let mut acts = acts.into_iter().peekable();
        while let Some(act) = acts.next() {
            match act {
                Act::Do(request) => plan.step(Step::Export(request)),
                Act::Task(task) => plan.task(task),
                Act::Remember(property) => {
                    let follows = property.name.is_user();
                    let mut properties = vec![property];
                    let is_record = |act: &Act<Opaque>| match act {
                        Act::Remember(next) => follows && next.name.is_user(),
                        _ => false,
                    };
                    while let Some(Act::Remember(next)) = acts.next_if(is_record) {
                        properties.push(next);
                    }
                    plan.step(Step::Set {
                        object: object(),
                        properties,
                    });
                }
                Act::Record(property, of) => plan.step(Step::Record {
                    object: object(),
                    property,
                    of,
                }),
                Act::Forget(property) => plan.step(Step::Inherit {
                    object: object(),
                    property,
                }),
            }
        }
    }

    /// The volume as `pool` shows it.
    pub fn subject<'p>(&'p self, pool: &'p State) -> Subject<'p> {
        Subject {
            id: self.id,
            dataset: self.dataset,
            request: self.asked,
            chosen: self.chosen,
            volume: pool.dataset(self.dataset),
        }
    }
}

/// Whether a dataset is a completed volume: only this driver writes volume contexts. compat: "ZFS":
/// not all volumes of democratic-csi bear its other marks.
pub fn is_complete(dataset: &Dataset) -> bool {
    dataset.properties.own(&PropertyName::CONTEXT).is_some()
}

/// The plan that resumes an interrupted copy. It must be the last one: it may end the part instead.
pub(crate) fn going_on(lock: &DatasetName, part: &Dataset, from: &SnapshotRef) -> Plan {
    let mut plan = Plan::about(lock.clone());
    plan.guard(part.name.clone(), part.guid);
    plan.step(Step::GoOn {
        from: from.clone(),
        to: part.name.clone(),
    });
    plan
}

/// An error about an obstacle.
pub(crate) fn blocked(doing: &str, why: impl Into<String>) -> Error {
    Error::new(Kind::Busy, doing).because(why.into())
}

/// A few names, for an error.
pub fn listed<T: ToString>(names: impl IntoIterator<Item = T>) -> String {
    let mut names: Vec<String> = names.into_iter().map(|name| name.to_string()).collect();
    let more = names.len().saturating_sub(8);
    names.truncate(8);
    let mut text = names.join(", ");
    if more > 0 {
        text = format!("{text} and {more} more");
    }
    text
}
