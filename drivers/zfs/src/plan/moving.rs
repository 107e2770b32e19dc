//! A volume that comes from another connection in rounds: what has come, the next round, and the end.
//!
//! Its dataset has the marks of its request from the first moment, and one of the move; it gets neither a size nor an
//! export, and is not mounted. Each round leaves a snapshot, one of two in turn: its number is the moment that both ends
//! have. At the end the move's mark gets that number before the snapshot goes, so that a volume with the content of an
//! old moment is never taken for one of a newer moment. compat: "ZFS".

use std::cmp::Reverse;

use driver_core::transfer::Bookmark;
use driver_core::{Error, Kind};

use super::create::{Create, given_up};
use super::destroy::DestroyVolume;
use super::{Outcome, Verb, is_complete};
use crate::name::{DatasetName, SnapshotLeaf, SnapshotRef};
use crate::observed::{Dataset, Guid, Observed, Request, Snapshot, State};
use crate::property::{Property, PropertyName, PropertyValue};
use crate::step::{Plan, Step};

/// The mark of a move while rounds follow each other.
const ROUNDS: &str = "rounds";
/// The advice where nothing more can be received.
pub(crate) const ANEW: &str = "give the move up, and start it anew";

/// The target of a move.
#[derive(Debug)]
pub struct MoveIn<'a> {
    /// The verb that makes a volume of what has come.
    pub create: Create<'a>,
    /// The snapshots that rounds leave, in turn.
    pub moments: [SnapshotRef; 2],
}

/// The part that has come.
#[derive(Debug)]
pub enum Came<'p> {
    /// Nothing.
    Nothing,
    /// A part of the first round.
    Part(&'p Dataset),
    /// All of a round. A part of the next one may have come.
    Rounds {
        /// The target.
        dataset: &'p Dataset,
        /// The snapshot of the last round.
        last: &'p Snapshot,
        /// That of the one before.
        older: Option<&'p Snapshot>,
    },
    /// All of it, with this number; it is being made a volume.
    Ending(Guid),
    /// A volume.
    Volume(&'p Dataset),
}

/// The next round.
#[derive(Debug)]
pub struct NextRound {
    /// The moment that it starts from; none for the first.
    pub since: Option<Guid>,
    /// The place where it resumes, if it was interrupted.
    pub resume: Option<Bookmark>,
    /// The snapshot that it leaves.
    pub to: SnapshotRef,
    /// Whether it makes the dataset.
    pub is_new: bool,
    /// The plan that makes room for it.
    pub before: Option<Plan>,
    /// The plan that ends its part, if it was interrupted.
    pub undo: Option<Plan>,
}

/// Ends the rounds: from then on the content is that of the last moment.
#[derive(Debug)]
pub struct EndMove<'a> {
    /// The target.
    pub target: &'a MoveIn<'a>,
}

/// Removes what a move has left at its target.
#[derive(Debug)]
pub struct GiveUpMove<'a> {
    /// The target.
    pub target: &'a MoveIn<'a>,
    /// The verb that removes it, whether it is a volume or not.
    pub deletion: DestroyVolume<'a>,
}

/// The plan that ends an interrupted round, and keeps the rounds before it.
fn abandoned(dataset: &Dataset) -> Plan {
    let mut plan = Plan::about(dataset.name.clone());
    plan.guard(dataset.name.clone(), dataset.guid);
    plan.step(Step::Abandon(dataset.name.clone()));
    plan
}

// === impl MoveIn ===

impl MoveIn<'_> {
    /// The target.
    pub fn name(&self) -> &DatasetName {
        self.create.export_ref.dataset
    }

    /// The operation, for errors.
    pub fn doing(&self) -> String {
        format!("move a volume to `{}`", self.create.request.id)
    }

    fn refused(&self, kind: Kind, why: impl Into<String>) -> Error {
        Error::new(kind, self.doing()).because(why.into())
    }

    /// The state to observe.
    pub fn request(&self) -> Request {
        Request {
            properties: vec![PropertyName::MOVE],
            ..Request::of(self.create.queries_before())
        }
    }

    /// The properties of the dataset from its first moment.
    pub fn properties(&self, pool: &State) -> Result<Vec<Property>, Error> {
        let mut all = self.create.properties_between(pool)?;
        let mark = PropertyValue::parse(ROUNDS)
            .map_err(|error| self.refused(Kind::Internal, error.to_string()))?;
        all.push(Property::new(PropertyName::MOVE, mark));
        Ok(all)
    }

    /// The move's mark on a dataset that is of this move; otherwise why it is not.
    fn mark<'p>(&self, dataset: &'p Dataset, pool: &State) -> Result<&'p str, Error> {
        self.create
            .recognise(dataset, pool)
            .map_err(|error| error.within(self.doing()))?;
        dataset.properties.own(&PropertyName::MOVE).ok_or_else(|| {
            let name = self.name();
            let what = if is_complete(dataset) {
                "is a volume that no move has made"
            } else {
                "is what another call has left of a copy"
            };
            self.refused(Kind::Conflict, format!("{name} exists, and {what}"))
        })
    }

    /// The snapshots of rounds, the newest first.
    fn found<'p>(&self, pool: &'p State) -> Vec<&'p Snapshot> {
        let moments = self.moments.iter();
        let found = moments.filter_map(|moment| pool.snapshot(moment));
        let mut found: Vec<_> = found.filter(|snapshot| !snapshot.is_doomed()).collect();
        found.sort_by_key(|s| Reverse(s.properties.number(&PropertyName::CREATETXG)));
        found
    }

    /// The part that has come.
    pub fn came<'p>(&self, pool: &'p State) -> Result<Came<'p>, Error> {
        let Some(dataset) = pool.dataset(self.name()) else {
            return Ok(Came::Nothing);
        };
        let mark = self.mark(dataset, pool)?;
        if is_complete(dataset) {
            return Ok(Came::Volume(dataset));
        }
        if dataset.is_receiving() {
            if dataset.resumes().is_none() {
                let why = format!("a copy into {} is still running", self.name());
                return Err(self.refused(Kind::Pending, why));
            }
            return Ok(Came::Part(dataset));
        }
        let found = self.found(pool);
        if let Some(last) = found.first() {
            let (last, older) = (*last, found.get(1).copied());
            return Ok(Came::Rounds {
                dataset,
                last,
                older,
            });
        }
        let guid = mark.parse().map_err(|_| {
            let why = format!("{} no longer has the snapshot of a round", self.name());
            self.refused(Kind::Conflict, why).advise(ANEW)
        })?;
        Ok(Came::Ending(Guid(guid)))
    }

    /// The next round.
    pub fn next(&self, pool: &State) -> Result<NextRound, Error> {
        let [first, second] = &self.moments;
        let round = NextRound {
            since: None,
            resume: None,
            to: first.clone(),
            is_new: false,
            before: None,
            undo: None,
        };
        match self.came(pool)? {
            Came::Volume(_) => {
                let why = format!("{} is a volume already", self.name());
                Err(self.refused(Kind::Conflict, why))
            }
            Came::Ending(_) => {
                let why = format!("{} is being made a volume", self.name());
                Err(self
                    .refused(Kind::Conflict, why)
                    .advise("no round can follow: finish the move, or give it up"))
            }
            Came::Nothing => {
                self.create.check_place(pool)?;
                Ok(NextRound {
                    is_new: true,
                    before: self.create.parent(pool),
                    ..round
                })
            }
            Came::Part(part) => Ok(NextRound {
                resume: part.resumes(),
                undo: Some(given_up(part)),
                ..round
            }),
            Came::Rounds { dataset, last, .. } => {
                let to = if last.name == *first { second } else { first };
                let resume = dataset.resumes();
                Ok(NextRound {
                    since: Some(last.guid),
                    undo: resume.as_ref().map(|_| abandoned(dataset)),
                    before: self.without(to, dataset, pool)?,
                    resume,
                    to: to.clone(),
                    ..round
                })
            }
        }
    }

    /// The plan that removes the snapshot of an older round.
    fn without(
        &self,
        moment: &SnapshotRef,
        dataset: &Dataset,
        pool: &State,
    ) -> Result<Option<Plan>, Error> {
        let Some(old) = pool.snapshot(moment) else {
            return Ok(None);
        };
        if old.is_doomed() || old.is_held() || old.is_stood_on() {
            let why = format!("something keeps {moment}");
            return Err(self
                .refused(Kind::Busy, why)
                .advise("see `zfs holds`, and its property `clones`, on the storage host"));
        }
        let mut plan = Plan::about(self.name().clone());
        plan.guard(dataset.name.clone(), dataset.guid);
        plan.guard(old.name.clone(), old.guid);
        plan.step(Step::DestroySnapshot(old.name.clone()));
        Ok(Some(plan))
    }
}

impl Verb for EndMove<'_> {
    type Done = SnapshotLeaf;

    fn doing(&self) -> String {
        self.target.doing()
    }

    fn request(&self, _: &State) -> Result<Request, Error> {
        Ok(self.target.request())
    }

    fn plan(
        &self,
        _: &State,
        seen: &Observed,
        _done: usize,
    ) -> Result<Outcome<SnapshotLeaf>, Error> {
        let target = self.target;
        let (dataset, last, older) = match target.came(&seen.pool)? {
            Came::Nothing | Came::Part(_) => {
                return Err(target.refused(Kind::Conflict, "no round of it has ended"));
            }
            // The snapshot is gone.
            Came::Ending(_) | Came::Volume(_) => {
                return Ok(Outcome::Done(target.moments[0].leaf.clone()));
            }
            Came::Rounds {
                dataset,
                last,
                older,
            } => (dataset, last, older),
        };
        if dataset.resumes().is_some() {
            return Err(target
                .refused(Kind::Conflict, "its last round was interrupted")
                .advise("run that round again"));
        }
        let mut plan = Plan::about(target.name().clone());
        let mark = Property::new(PropertyName::MOVE, last.guid.0.into());
        if !dataset.properties.has(&mark) {
            plan.step(Step::Set {
                object: dataset.name.clone().into(),
                properties: vec![mark],
            });
        }
        if let Some(older) = older {
            plan.guard(older.name.clone(), older.guid);
            plan.step(Step::DestroySnapshot(older.name.clone()));
        }
        if plan.is_empty() {
            return Ok(Outcome::Done(last.name.leaf.clone()));
        }
        plan.guard(dataset.name.clone(), dataset.guid);
        plan.guard(last.name.clone(), last.guid);
        Ok(Outcome::Do(plan))
    }
}

// === impl GiveUpMove ===

impl GiveUpMove<'_> {
    fn with_mark(mut request: Request) -> Request {
        request.properties.push(PropertyName::MOVE);
        request
    }
}

impl Verb for GiveUpMove<'_> {
    type Done = ();

    fn doing(&self) -> String {
        format!("give up the move to `{}`", self.target.create.request.id)
    }

    fn request(&self, pool: &State) -> Result<Request, Error> {
        self.deletion.request(pool).map(Self::with_mark)
    }

    fn request_after(&self, pool: &State) -> Result<Request, Error> {
        self.deletion.request_after(pool).map(Self::with_mark)
    }

    fn plan(&self, asked: &State, seen: &Observed, done: usize) -> Result<Outcome<()>, Error> {
        let dataset = seen.pool.dataset(self.target.name());
        match dataset {
            // The deletion looks again under the lock, and for the parent.
            None => {}
            Some(found) => {
                self.target.mark(found, &seen.pool)?;
                if is_complete(found) {
                    let why = format!("{} is a volume", found.name);
                    return Err(Error::new(Kind::Conflict, Verb::doing(self)).because(why));
                }
            }
        }
        let mut outcome = self.deletion.plan(asked, seen, done)?;
        if let (Outcome::Do(plan) | Outcome::End(plan, ()), Some(found)) = (&mut outcome, dataset) {
            for mark in [PropertyName::CONTEXT, PropertyName::SUCCESS] {
                plan.guard_property(found, &mark);
            }
        }
        Ok(outcome)
    }
}
