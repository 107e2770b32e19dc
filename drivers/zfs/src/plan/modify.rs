//! Changing properties of a volume, all with one command, and what its share allows.
//!
//! An export may have to change for a choice of share options. That comes after the properties, which can be given back,
//! and the record of the choice comes last: a choice that the host refuses is never the one that the next call, or the
//! next check of the export, tries again.

use driver_core::{Error, Kind};

use super::{ExportRef, Outcome, Verb, is_complete};
use crate::observed::{Dataset, Observed, Query, Request, State, VolumeKind};
use crate::parameter::{ClassChoice, Setting, ShareChoice};
use crate::property::{Property, PropertyName, PropertyValue};
use crate::step::{Plan, Step};

/// Changes properties of a volume.
#[derive(Debug)]
pub struct Modify<'a> {
    /// The kind of volumes.
    pub kind: VolumeKind,
    /// The volume, and its export with what is chosen.
    pub export_ref: ExportRef<'a>,
    /// The wanted settings.
    pub wanted: &'a ClassChoice,
}

// === impl Modify ===

impl Modify<'_> {
    fn volume<'p>(&self, pool: &'p State) -> Option<&'p Dataset> {
        let found = pool.dataset(self.export_ref.dataset);
        found.filter(|dataset| is_complete(dataset) && dataset.kind == self.kind)
    }

    /// The choice, if the export makes its options.
    fn by_export(&self) -> Option<&ShareChoice> {
        let share = self.wanted.share.as_ref();
        share.filter(|share| share.is_by_export())
    }

    /// The properties that the dataset lacks, but for the record of a choice that the export makes.
    fn missing(&self, dataset: &Dataset) -> Result<Vec<Property>, Error> {
        let settings = self.wanted.settings.iter();
        let missing = settings.filter(|one| !one.is_at(dataset));
        let mut properties: Vec<Property> = missing.map(Setting::property).collect();
        if self.by_export().is_none() {
            let options = self.wanted.share.iter().flat_map(ShareChoice::properties);
            properties.extend(options.filter(|one| !dataset.properties.has(one)));
        }
        properties.extend(self.reservation(dataset)?);
        Ok(properties)
    }

    fn set(&self, properties: Vec<Property>) -> Option<Step> {
        (!properties.is_empty()).then(|| Step::Set {
            object: self.export_ref.dataset.clone().into(),
            properties,
        })
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
        format!("modify volume `{}`", self.export_ref.id)
    }

    fn request(&self, pool: &State) -> Result<Request, Error> {
        let mut request = Request {
            queries: vec![Query::Dataset(self.export_ref.dataset.clone())],
            properties: self.wanted.properties().map(|one| one.name).collect(),
            ..Request::default()
        };
        if self.by_export().is_some() {
            request.properties.extend(self.export_ref.export.reads());
            request.export = self.export_ref.commands(pool)?;
        }
        Ok(request)
    }

    fn plan(&self, asked: &State, seen: &Observed, _done: usize) -> Result<Outcome<()>, Error> {
        let volume = self.volume(&seen.pool);
        let dataset = volume.ok_or_else(|| Error::not_found(self.doing()))?;
        let mut plan = Plan::about(dataset.name.clone());
        plan.add(self.set(self.missing(dataset)?));
        let mut is_whole = true;
        if let Some(choice) = self.by_export() {
            let Some(status) = self.export_ref.status(asked, seen)? else {
                return Ok(Outcome::Ask);
            };
            self.export_ref.guard(&mut plan, dataset);
            let acts = status.ensure()?;
            is_whole = acts.is_empty() || self.export_ref.export.is_proved_by_acts();
            self.export_ref.add(&mut plan, acts);
            let mark = Some(choice.mark()).filter(|mark| !dataset.properties.has(mark));
            plan.add(self.set(mark.into_iter().collect()));
        } else {
            plan.guard(dataset.name.clone(), dataset.guid);
        }
        Ok(match (plan.is_empty(), is_whole) {
            (true, _) => Outcome::Done(()),
            (false, true) => Outcome::End(plan, ()),
            (false, false) => Outcome::Do(plan),
        })
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

    /// The share is changed after the properties, and one whose change was refused is as it was.
    fn is_given_back(&self, asked: &State, seen: &State) -> bool {
        let (Some(before), Some(now)) = (self.volume(asked), self.volume(seen)) else {
            return false;
        };
        let of_export = self.by_export().map(|_| self.export_ref.export.reads());
        let wanted = self.wanted.properties().map(|one| one.name);
        let mut names = wanted.chain(of_export.into_iter().flatten());
        before.guid == now.guid
            && before.reserved() == now.reserved()
            && names.all(|name| before.properties.own(&name) == now.properties.own(&name))
    }
}
