//! Changing properties of a volume, all with one command.

use driver_core::{Error, VolumeId};

use super::{Outcome, Verb, is_complete};
use crate::name::DatasetName;
use crate::observed::{Dataset, Observed, Query, Request, State, VolumeKind};
use crate::parameter::Setting;
use crate::property::{Property, PropertyValue};
use crate::step::{Plan, Step};

/// Changes properties of a volume.
#[derive(Debug)]
pub struct Modify<'a> {
    /// What volumes are.
    pub kind: VolumeKind,
    /// The volume.
    pub id: &'a VolumeId,
    /// Its dataset.
    pub dataset: &'a DatasetName,
    /// The wanted values.
    pub wanted: &'a [Setting],
}

// === impl Modify ===

impl Modify<'_> {
    fn volume<'p>(&self, pool: &'p State) -> Option<&'p Dataset> {
        let found = pool.dataset(self.dataset);
        found.filter(|dataset| is_complete(dataset) && dataset.kind == self.kind)
    }
}

impl Verb for Modify<'_> {
    type Done = ();

    fn doing(&self) -> String {
        format!("modify volume `{}`", self.id)
    }

    fn request(&self, _pool: &State) -> Result<Request, Error> {
        Ok(Request {
            queries: vec![Query::Dataset(self.dataset.clone())],
            properties: self.wanted.iter().map(|one| one.property().name).collect(),
            ..Request::default()
        })
    }

    fn plan(&self, _asked: &State, seen: &Observed, _done: usize) -> Result<Outcome<()>, Error> {
        let volume = self.volume(&seen.pool);
        let dataset = volume.ok_or_else(|| Error::not_found(self.doing()))?;
        let missing = self.wanted.iter().filter(|one| !one.is_at(dataset));
        let properties: Vec<Property> = missing.map(Setting::property).collect();
        if properties.is_empty() {
            return Ok(Outcome::Done(()));
        }
        let mut plan = Plan::about(dataset.name.clone());
        plan.guard(dataset.name.clone(), dataset.guid);
        plan.step(Step::Set {
            object: dataset.name.clone().into(),
            properties,
        });
        Ok(Outcome::End(plan, ()))
    }

    const COMPENSATES: bool = true;

    /// ZFS may refuse one property of a command, such as a compression that its pool has no feature for, and set the
    /// others: they get back what they had.
    fn compensate(&self, asked: &State, seen: &Observed) -> Result<Option<Plan>, Error> {
        let (Some(before), Some(now)) = (self.volume(asked), self.volume(&seen.pool)) else {
            return Ok(None);
        };
        let mut plan = Plan::about(now.name.clone());
        plan.guard(before.name.clone(), before.guid);
        let changed = self
            .wanted
            .iter()
            .filter(|one| !one.is_at(before) && one.is_at(now));
        for name in changed.map(|one| one.property().name) {
            let object = now.name.clone().into();
            let had = before.properties.own(&name).map(PropertyValue::parse);
            plan.step(match had {
                Some(Ok(value)) => Step::Set {
                    object,
                    properties: vec![Property::new(name, value)],
                },
                _ => Step::Inherit {
                    object,
                    property: name,
                },
            });
        }
        Ok((!plan.is_empty()).then_some(plan))
    }
}
