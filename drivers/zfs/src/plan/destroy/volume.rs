//! Deleting a volume.
//!
//! The export is removed right before the dataset, and only if no observed object blocks the
//! dataset and no node is connected to it; if that cannot be destroyed for another reason, the
//! export is restored.

use driver_core::{Error, Kind, VolumeId};

use super::{Doomed, has_parent, parent_again, ties, were_asked, with_parent};
use crate::id::{Layout, Parent};
use crate::observed::{Dataset, Observed, Query, Request, State};
use crate::plan::{ExportRef, Outcome, Verb, blocked, is_complete};
use crate::property::{Property, PropertyName, PropertyValue};
use crate::step::Plan;

/// Removes a volume.
#[derive(Debug)]
pub struct DestroyVolume<'a> {
    /// The layout of the connection.
    pub layout: &'a Layout,
    /// The volume and its export.
    pub export_ref: ExportRef<'a>,
    /// Whether one with snapshots that this driver did not take is kept.
    pub keep_foreign: bool,
}

// === impl DestroyVolume ===

impl DestroyVolume<'_> {
    /// Whether a dataset is a volume of ours, complete or partial. compat: "ZFS": democratic-csi
    /// has left complete ones without a mark.
    fn is_ours(dataset: &Dataset) -> bool {
        let named = dataset.properties.own(&PropertyName::VOLUME_NAME);
        dataset.is_managed() || named.is_some() || is_complete(dataset)
    }

    /// Whether a dataset is a clone that an interrupted call has made, and not given its marks yet: TrueNAS 26
    /// makes clones without properties. It stands on something of ours, and nothing was done with it since.
    fn is_bare_clone(&self, dataset: &Dataset, pool: &State) -> bool {
        let layout = self.layout;
        let mut parents = std::iter::once(&layout.volumes).chain(&layout.detached);
        let origin = dataset.origin();
        let is_near = origin.is_some_and(|o| parents.any(|p| o.dataset.below(p).is_some()));
        is_near && pool.snapshots_of(&dataset.name).is_empty()
    }

    fn id(&self) -> &VolumeId {
        self.export_ref.id
    }

    fn parent(&self) -> Parent<'_> {
        self.layout.parent_above(self.export_ref.dataset)
    }
}

impl Verb for DestroyVolume<'_> {
    type Done = ();

    fn doing(&self) -> String {
        format!("delete volume `{}`", self.id())
    }

    fn request(&self, pool: &State) -> Result<Request, Error> {
        let mut queries = vec![Query::Family(self.export_ref.dataset.clone())];
        queries.extend(ties(self.layout, self.export_ref.dataset, pool));
        queries.extend(parent_again(self.parent(), pool));
        Ok(Request {
            queries,
            properties: self.export_ref.export.reads(),
            export: self.export_ref.commands_to_remove(pool)?,
            ..Request::default()
        })
    }

    fn request_after(&self, pool: &State) -> Result<Request, Error> {
        Ok(with_parent(self.parent(), self.request(pool)?))
    }

    fn plan(&self, asked: &State, seen: &Observed, done: usize) -> Result<Outcome<()>, Error> {
        let doing = self.doing();
        let name = self.export_ref.dataset;
        let Some(status) = self.export_ref.status(asked, seen)? else {
            return Ok(Outcome::Ask);
        };
        let mut plan = Plan::about(name.clone());
        let Some(dataset) = seen.pool.dataset(name) else {
            // Without the lock, a missing one may still be created by the leftover command of a cut
            // connection. Its parent is observed there.
            if done == 0 {
                return Ok(Outcome::Do(plan));
            }
            has_parent(&doing, self.parent(), &seen.pool)?;
            self.export_ref.remove(&mut plan, &*status)?;
            return Ok(if plan.is_empty() {
                Outcome::Done(())
            } else {
                Outcome::Do(plan)
            });
        };
        if !Self::is_ours(dataset) && !self.is_bare_clone(dataset, &seen.pool) {
            let why = format!("{name} exists, and is not a volume of this driver");
            let mark = Property::new(PropertyName::MANAGED, PropertyValue::yes());
            return Err(blocked(&doing, why).advise(format!(
                "if it is one, mark it by `zfs set {mark} {name}` on the storage host"
            )));
        }
        if dataset.kind != self.layout.kind {
            let why = format!("{name} is a {}, not a {}", dataset.kind, self.layout.kind);
            return Err(blocked(&doing, why)
                .advise("it belongs to a connection with another driver: delete it by that one"));
        }
        let doomed = Doomed {
            doing: &doing,
            layout: self.layout,
            dataset,
            pool: &seen.pool,
            keep_foreign: self.keep_foreign,
        };
        if !were_asked(self.layout, name, asked, &seen.pool) {
            return Ok(Outcome::Ask);
        }
        doomed.check()?;
        match self.export_ref.in_use(&doing, &*status) {
            Ok(None) => {}
            Ok(Some(error)) => return Ok(Outcome::InUse(error)),
            // Such a question fails where something else goes at that moment: it is asked again.
            Err(error) if error.kind() == Kind::Unreachable => return Ok(Outcome::InUse(error)),
            Err(error) => return Err(error),
        }
        doomed.release(&mut plan);
        if !doomed.hand_over(&mut plan) {
            return Ok(Outcome::Ask);
        }
        // All final errors come before this.
        plan.wait();
        self.export_ref.remove(&mut plan, &*status)?;
        doomed.destroy(&mut plan);
        Ok(Outcome::End(plan, ()))
    }

    const COMPENSATES: bool = true;

    fn compensate(&self, asked: &State, seen: &Observed) -> Result<Option<Plan>, Error> {
        let whole = seen.pool.dataset(self.export_ref.dataset);
        let whole = whole.filter(|dataset| Self::is_ours(dataset) && is_complete(dataset));
        let status = self.export_ref.status(asked, seen)?;
        let (Some(dataset), Some(status)) = (whole, status) else {
            return Ok(None);
        };
        let mut plan = Plan::about(dataset.name.clone());
        self.export_ref.guard(&mut plan, dataset);
        self.export_ref.add(&mut plan, status.ensure()?);
        Ok((!plan.is_empty()).then_some(plan))
    }
}
