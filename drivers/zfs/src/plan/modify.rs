//! Changing properties of a volume, all with one command.

use driver_core::{Error, Kind, VolumeId};

use super::{Outcome, Verb, is_complete};
use crate::name::DatasetName;
use crate::observed::{Dataset, Observed, Query, Request, State, VolumeKind};
use crate::parameter::{ClassChoice, Setting, ShareChoice};
use crate::property::{Property, PropertyName, PropertyValue};
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
    /// The wanted settings.
    pub wanted: &'a ClassChoice,
}

// === impl Modify ===

impl Modify<'_> {
    fn volume<'p>(&self, pool: &'p State) -> Option<&'p Dataset> {
        let found = pool.dataset(self.dataset);
        found.filter(|dataset| is_complete(dataset) && dataset.kind == self.kind)
    }

    /// The wanted reservation, if the volume has another one.
    fn reservation(&self, volume: &Dataset) -> Result<Option<Property>, Error> {
        let Some(is_wanted) = self.wanted.reservation else {
            return Ok(None);
        };
        let (has, size) = (volume.reserved(), volume.size());
        let is_so = match (is_wanted, size) {
            (false, _) => has == 0,
            (true, Some(size)) => has >= size,
            (true, None) => has > 0,
        };
        if is_so {
            return Ok(None);
        }
        let value = match (is_wanted, self.kind, size) {
            (false, ..) => PropertyValue::from(0_u64),
            (true, VolumeKind::Zvol, _) => PropertyValue::auto(),
            (true, VolumeKind::Filesystem, Some(size)) => size.into(),
            (true, VolumeKind::Filesystem, None) => {
                return Err(Error::new(Kind::Invalid, self.doing())
                    .because("it has no quota: the size to reserve for it is recorded nowhere")
                    .advise("leave `reservationMode` out of the class of this volume"));
            }
        };
        Ok(Some(Property::new(PropertyName::REFRESERVATION, value)))
    }

    /// The reservation of before, if a plan of this verb may have changed it. ZFS inherits no reservation.
    fn reserved_before(&self, before: &Dataset, now: &Dataset) -> Option<Property> {
        let lacks = |volume: &Dataset| matches!(self.reservation(volume), Ok(Some(_)));
        let is_changed = lacks(before) && !lacks(now);
        is_changed.then(|| Property::new(PropertyName::REFRESERVATION, before.reserved().into()))
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
            properties: self.wanted.properties().map(|one| one.name).collect(),
            ..Request::default()
        })
    }

    fn plan(&self, _asked: &State, seen: &Observed, _done: usize) -> Result<Outcome<()>, Error> {
        let volume = self.volume(&seen.pool);
        let dataset = volume.ok_or_else(|| Error::not_found(self.doing()))?;
        let settings = self.wanted.settings.iter();
        let missing = settings.filter(|one| !one.is_at(dataset));
        let mut properties: Vec<Property> = missing.map(Setting::property).collect();
        let options = self.wanted.share.iter().flat_map(ShareChoice::properties);
        properties.extend(options.filter(|one| !dataset.properties.has(one)));
        properties.extend(self.reservation(dataset)?);
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
        let settings = self.wanted.settings.iter();
        let settings = settings.filter(|one| !one.is_at(before) && one.is_at(now));
        let settings = settings.map(Setting::property);
        let options = self.wanted.share.iter().flat_map(ShareChoice::properties);
        let options = options.filter(|one| !before.properties.has(one) && now.properties.has(one));
        for Property { name, .. } in settings.chain(options) {
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
        let reserved = self.reserved_before(before, now);
        plan.add(reserved.map(|property| Step::Set {
            object: now.name.clone().into(),
            properties: vec![property],
        }));
        Ok((!plan.is_empty()).then_some(plan))
    }
}
