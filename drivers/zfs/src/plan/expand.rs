//! Expanding a volume. It never shrinks, and one that is large enough keeps its size. A lost export
//! is restored where the export asks for that.

use driver_core::{Error, Expanded, Kind, SizeRange};

use super::{ExportRef, Outcome, Verb, is_complete};
use crate::export::{Act, ExportStatus, Opaque};
use crate::observed::{Dataset, Observed, Query, Request, State, VolumeKind};
use crate::policy::Policy;
use crate::property::{Property, PropertyName};
use crate::step::{FirstTry, Plan, Step, Test};

/// Grows a volume.
#[derive(Debug)]
pub struct Expand<'a> {
    /// The policy for volumes.
    pub policy: &'a Policy,
    /// The kind of volumes.
    pub kind: VolumeKind,
    /// The volume and its export.
    pub export_ref: ExportRef<'a>,
    /// The requested size.
    pub size: SizeRange,
    /// See [`Backend::reserves_by_size`](crate::backend::Backend::reserves_by_size).
    pub reserves_by_size: bool,
}

/// The required size of a volume.
struct Target {
    size: u64,
    properties: Vec<Property>,
}

// === impl Expand ===

impl Expand<'_> {
    fn refused(&self) -> Error {
        Error::new(
            Kind::OutOfRange,
            format!("expand volume `{}`", self.export_ref.id),
        )
    }

    fn target(&self, dataset: &Dataset) -> Result<Target, Error> {
        let block = dataset.properties.number(&PropertyName::VOLBLOCKSIZE);
        let wanted = self
            .policy
            .choose(self.size, block.unwrap_or(1), 0)
            .map_err(|error| self.refused().because(error))?;
        // A limit alone requests no growth, and no shrinking.
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

    /// Whether it restores a lost export.
    fn restores(&self) -> bool {
        self.export_ref.export.is_restored_by_growth()
    }

    /// The acts that announce the new size to the export.
    fn announce(
        &self,
        pool: &State,
        status: Option<&dyn ExportStatus>,
    ) -> Result<Vec<Act<Opaque>>, Error> {
        if let Some(status) = status {
            return status.resize();
        }
        let subject = self.export_ref.subject(pool);
        self.export_ref.export.resize_unseen(&subject)
    }

    /// The properties that must grow. An existing quota is the limit, whatever the configuration
    /// says now; a missing one is not added, as that would reduce the space.
    fn sizes(&self, dataset: &Dataset) -> Vec<PropertyName> {
        match self.kind {
            VolumeKind::Zvol => {
                let is_whole = dataset.size() == Some(dataset.reserved());
                let reserved = self.reserves_by_size && is_whole;
                let reservation = reserved.then_some(PropertyName::REFRESERVATION);
                [PropertyName::VOLSIZE]
                    .into_iter()
                    .chain(reservation)
                    .collect()
            }
            VolumeKind::Filesystem => {
                let quota = dataset.size().map(|_| PropertyName::REFQUOTA);
                let reserved = self.policy.reserves_growth(dataset);
                let reservation = reserved.then_some(PropertyName::REFRESERVATION);
                quota.into_iter().chain(reservation).collect()
            }
        }
    }
}

impl Verb for Expand<'_> {
    type Done = Expanded;

    fn doing(&self) -> String {
        format!("expand volume `{}`", self.export_ref.id)
    }

    fn request(&self, pool: &State) -> Result<Request, Error> {
        Ok(Request {
            queries: vec![Query::Dataset(self.export_ref.dataset.clone())],
            properties: self.export_ref.export.reads(),
            export: if self.restores() {
                self.export_ref.commands(pool)?
            } else {
                Vec::new()
            },
            ..Request::default()
        })
    }

    fn first_try(&self) -> Option<FirstTry> {
        let wanted = self.policy.choose(self.size, 1, 0).ok()?;
        let size = match self.kind {
            VolumeKind::Zvol => PropertyName::VOLSIZE,
            VolumeKind::Filesystem => PropertyName::REFQUOTA,
        };
        // The export may need a change; what is reserved grows with the quota.
        let export = self.announce(&State::default(), None).ok()?;
        let by_size = self.reserves_by_size && self.kind == VolumeKind::Zvol;
        let reserved = by_size || self.policy.may_reserve_growth(self.kind);
        if !export.is_empty() || reserved {
            return None;
        }
        let object = self.export_ref.dataset.clone().into();
        let kind = Test::Is(self.kind.word().to_owned());
        let step = Step::Set {
            object: self.export_ref.dataset.clone().into(),
            properties: vec![Property::new(size.clone(), wanted.into())],
        };
        let first = FirstTry::of(self.export_ref.dataset.clone(), step)
            .expecting(&object, PropertyName::TYPE, kind)
            .expecting(&object, PropertyName::CONTEXT, Test::Own)
            .expecting(&object, size, Test::Below(wanted));
        Some(match self.kind {
            VolumeKind::Zvol => {
                first.expecting(&object, PropertyName::VOLBLOCKSIZE, Test::Divides(wanted))
            }
            VolumeKind::Filesystem => first,
        })
    }

    fn plan(
        &self,
        asked: &State,
        seen: &Observed,
        done: usize,
    ) -> Result<Outcome<Expanded>, Error> {
        let name = self.export_ref.dataset;
        let there = |dataset: &&Dataset| is_complete(dataset) && dataset.kind == self.kind;
        let Some(dataset) = seen.pool.dataset(name).filter(there) else {
            return Err(Error::not_found(self.doing()));
        };
        let target = self.target(dataset)?;
        let restores = self.restores();
        let status = if restores {
            self.export_ref.status(asked, seen)?
        } else {
            None
        };
        let mut plan = Plan::about(name.clone());
        if restores {
            // Restoring the export includes its access list, which others may change concurrently.
            self.export_ref.guard(&mut plan, dataset);
        } else {
            plan.guard(dataset.name.clone(), dataset.guid);
        }
        let missing = !target.properties.is_empty();
        if missing {
            plan.step(Step::Set {
                object: name.clone().into(),
                properties: target.properties,
            });
        }
        let mut whole = !restores;
        let status = status.as_deref();
        if status.is_some_and(|status| !status.can_be_restored()) {
            // compat: "ZFS": democratic-csi sets the size alone, and so it is done here.
            whole = true;
        } else if let Some(status) = status {
            // Restores what the host has lost: the volume is in use.
            let lost = status.ensure()?;
            whole = lost.is_empty() || self.export_ref.export.is_proved_by_acts();
            self.export_ref.add(&mut plan, lost);
        }
        if missing || done == 0 {
            // It is not always visible whether the export knows the new size, so each call
            // announces it once: with the first plan, also if the first observation, which had no
            // facts, used another `export_name`.
            let acts = self.announce(&seen.pool, status)?;
            self.export_ref.add(&mut plan, acts);
        }
        let expanded = Expanded {
            capacity: target.size,
            node_expansion_required: self.kind == VolumeKind::Zvol,
        };
        Ok(match (plan.is_empty(), whole) {
            (false, true) => Outcome::End(plan, expanded),
            (false, false) => Outcome::Do(plan),
            (true, false) if status.is_none() => Outcome::Ask,
            (true, _) => Outcome::Done(expanded),
        })
    }
}
