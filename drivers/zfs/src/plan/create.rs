//! Creating a volume: empty, or from a snapshot or a volume, as a clone or as a copy.
//!
//! First the dataset, with its marks from its first moment; then, from its observed state, its
//! size, its permissions and its export; and last the mark that it is complete. An existing dataset
//! is adopted only if it was created by the same request. compat: "ZFS".

mod complete;
mod incoming;
mod make;

use driver_core::{CreateVolume, Effect, Error, Kind};

pub use self::incoming::{Arrival, DropHelper, TakeHelper, content_of, given_up};
pub(super) use self::make::take;
pub use self::make::{holds_no_others, holds_volumes};
use super::{ExportRef, Leftover, Outcome, Verb, is_complete};
use crate::id::At;
use crate::name::{DatasetName, NameError, Object, SnapshotLeaf, SnapshotRef};
use crate::observed::{Dataset, Observed, Query, Request, State, VolumeKind};
use crate::parameter::ClassChoice;
use crate::policy::Policy;
use crate::property::{Property, Value};
use crate::step::{Plan, Step};

/// Creates a volume.
#[derive(Debug)]
pub struct Create<'a> {
    /// The policy for volumes.
    pub policy: &'a Policy,
    /// The kind of volumes.
    pub kind: VolumeKind,
    /// The volume and its export.
    pub export_ref: ExportRef<'a>,
    /// The request.
    pub request: &'a CreateVolume,
    /// The original that it is made from.
    pub from: Option<Original>,
    /// The snapshot that came with its content from another connection, if any: it exists already.
    pub received: Option<SnapshotLeaf>,
    /// The datasets of the volume of this name below the other parents: one of them at most exists.
    pub twins: Vec<DatasetName>,
    /// Whether it is in a child of the parent of volumes.
    pub is_in_child: bool,
    /// The size of the blocks of a new zvol.
    pub block: u64,
    /// The settings of its class.
    pub class: ClassChoice,
}

/// The original that a volume is made from.
#[derive(Debug, Clone)]
pub struct Original {
    /// The object that the caller named.
    pub named: Object,
    /// The snapshot that the content is taken from.
    pub origin: SnapshotRef,
    /// Whether that is a helper snapshot, which this verb takes and removes.
    pub helper: bool,
    /// Whether the content is copied, so that the volume depends on nothing.
    pub copy: bool,
}

// === impl Original ===

impl Original {
    /// A snapshot of the orchestrator, for the volume that will be `dataset`.
    pub fn snapshot(
        at: At,
        helper: &SnapshotLeaf,
        dataset: &DatasetName,
        copy: bool,
    ) -> Result<Self, NameError> {
        Ok(match at {
            At::Attached(origin) => Self {
                named: origin.clone().into(),
                origin,
                helper: false,
                copy,
            },
            At::Detached(source) => Self {
                origin: source.at(helper)?,
                helper: true,
                // A clone cannot leave its pool.
                copy: copy || source.pool() != dataset.pool(),
                named: source.into(),
            },
        })
    }

    /// Another volume.
    pub fn volume(
        source: DatasetName,
        helper: &SnapshotLeaf,
        copy: bool,
    ) -> Result<Self, NameError> {
        Ok(Self {
            origin: source.at(helper)?,
            named: source.into(),
            helper: true,
            copy,
        })
    }
}

/// The dataset after a plan of which all is known that it leaves: it sets only properties of users, and what
/// else it does needs no observation if `is_proved`.
fn completed(dataset: &Dataset, plan: &Plan, is_proved: bool) -> Option<Dataset> {
    let mut completed = dataset.clone();
    for node in &plan.steps {
        match &node.step {
            Step::Set { object, properties } if *object == Object::from(dataset.name.clone()) => {
                if properties.iter().any(|property| !property.name.is_user()) {
                    return None;
                }
                for Property { name, value } in properties {
                    let value = Value::own(value.as_str());
                    completed.properties.insert(name.clone(), value);
                }
            }
            Step::Export(_)
            | Step::Record { .. }
            | Step::Inherit { .. }
            | Step::Permit { .. }
            | Step::Settle(_)
            | Step::DestroySnapshot(_)
                if is_proved => {}
            _ => return None,
        }
    }
    is_complete(&completed).then_some(completed)
}

// === impl Create ===

impl Create<'_> {
    fn name(&self) -> &DatasetName {
        self.export_ref.dataset
    }

    fn refused(&self, kind: Kind) -> Error {
        Error::new(kind, format!("create volume `{}`", self.request.id))
    }

    /// Whether it is a filesystem whose size is its quota.
    fn is_limited(&self) -> bool {
        self.kind == VolumeKind::Filesystem && self.policy.limits(&self.class)
    }

    /// The size to create, at least that of its source.
    fn size(&self, source: Option<u64>, block: u64) -> Result<u64, Error> {
        let refused = || self.refused(Kind::OutOfRange);
        let step = if self.kind == VolumeKind::Zvol {
            block
        } else {
            1
        };
        let size = self.request.size;
        let limit = size.limit();
        let source = source.unwrap_or_default();
        if limit.is_some_and(|limit| source > limit) {
            return Err(refused().because(format!("its source has {source} bytes")));
        }
        let chosen = self.policy.choose(size, step, source);
        chosen.map_err(|error| refused().because(error))
    }
}

impl Verb for Create<'_> {
    type Done = Dataset;

    fn doing(&self) -> String {
        format!("create volume `{}`", self.request.id)
    }

    fn request(&self, pool: &State) -> Result<Request, Error> {
        // An empty volume has no snapshots of ours to remove.
        let alone = self.from.is_none() && self.received.is_none();
        let name = self.name().clone();
        let mut queries = vec![if alone {
            Query::Dataset(name)
        } else {
            Query::Family(name)
        }];
        if self.kind == VolumeKind::Zvol {
            queries.push(Query::System);
        }
        if let Some(from) = &self.from {
            queries.push(match &from.named {
                Object::Dataset(name) => Query::Dataset(name.clone()),
                Object::Snapshot(name) => Query::Snapshot(name.clone()),
            });
            queries.extend(from.helper.then(|| Query::Snapshot(from.origin.clone())));
        }
        let copies = self.from.as_ref().is_some_and(|from| from.copy);
        let parent = self.name().parent();
        let parent = parent.filter(|_| copies || self.is_in_child);
        queries.extend(parent.map(Query::Dataset));
        queries.extend(self.twins.iter().cloned().map(Query::Dataset));
        let of_class = self.class.properties().map(|one| one.name);
        let properties = self.export_ref.export.reads().into_iter();
        Ok(Request {
            queries,
            properties: properties.chain(of_class).collect(),
            export: self.export_ref.commands(pool)?,
            is_new: true,
            known: None,
        })
    }

    fn plan(
        &self,
        asked: &State,
        seen: &Observed,
        _done: usize,
    ) -> Result<Outcome<Dataset>, Error> {
        let Some(dataset) = seen.pool.dataset(self.name()) else {
            if self.received.is_some() {
                let why = format!("the content received into {} is gone", self.name());
                return Err(self.refused(Kind::Pending).because(why));
            }
            // A name that something else is exported under is refused before there is a dataset: ZFS itself may
            // export it as soon as it is made.
            if let Ok(Some(status)) = self.export_ref.status(asked, seen)
                && let Err(error) = status.ensure()
                && error.kind() == Kind::Conflict
            {
                return Err(error);
            }
            return Ok(Outcome::Do(self.make(&seen.pool)?));
        };
        if dataset.is_receiving() {
            return self.arriving(dataset, &seen.pool).map(Outcome::Do);
        }
        let status = self.export_ref.status(asked, seen);
        let status = status.map_err(|error| match self.recognise(dataset, &seen.pool) {
            // It was started, and must not be forgotten because of its export.
            Ok(()) => error.with_effect(Effect::Possible),
            Err(other) => other,
        });
        let Some(status) = status? else {
            return Ok(Outcome::Ask);
        };
        let plan = self.complete(dataset, &seen.pool, &*status)?;
        let is_proved = self.export_ref.export.is_proved_by_acts();
        Ok(if plan.is_empty() {
            Outcome::Done(dataset.clone())
        } else if let Some(completed) = completed(dataset, &plan, is_proved) {
            Outcome::End(plan, completed)
        } else {
            Outcome::Do(plan)
        })
    }

    fn is_begun(&self, seen: &State) -> bool {
        seen.dataset(self.name()).is_some()
    }

    fn noop_under_lock(&self) -> Option<Plan> {
        Some(Plan::about(self.name().clone()))
    }

    fn leftover(&self, seen: &State) -> Leftover {
        if let Some(dataset) = seen.dataset(self.name()) {
            // The part of a copy that ran out of space and cannot resume.
            let part = dataset.is_receiving() && self.is_part(dataset, seen);
            return if part {
                Leftover::OnTheWay(given_up(dataset))
            } else {
                Leftover::Something
            };
        }
        // Only this verb takes it, and without the dataset it has no use.
        let helper = self.from.as_ref().filter(|from| from.helper);
        let helper = helper.and_then(|from| seen.snapshot(&from.origin));
        match helper.filter(|helper| !helper.is_doomed() && helper.csi_name().is_none()) {
            None => Leftover::Nothing,
            Some(helper) => {
                let mut plan = Plan::about(self.name().clone());
                plan.guard(helper.name.clone(), helper.guid);
                plan.step(Step::DestroySnapshot(helper.name.clone()));
                Leftover::OnTheWay(plan)
            }
        }
    }
}
