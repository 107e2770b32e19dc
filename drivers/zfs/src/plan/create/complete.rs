//! The further plans of a new volume: the existing dataset is checked, completed and marked.

use csi_types::{AbsolutePath, Attachment};
use driver_core::{Effect, Error, Kind};

use super::{Create, Original};
use crate::context;
use crate::export::{Act, ExportStatus};
use crate::name::DatasetName;
use crate::observed::{Dataset, Snapshot, State, VolumeKind};
use crate::parameter::{Setting, ShareChoice};
use crate::plan::{going_on, is_complete};
use crate::property::{Property, PropertyName, PropertyValue};
use crate::step::{Plan, Step};

/// Why the existing dataset does not match the request.
#[derive(Debug, thiserror::Error)]
#[error("{dataset} exists, and {why}")]
struct Other {
    dataset: DatasetName,
    why: String,
}

/// Set by ZFS at the end of a stream: a resumed stream does not bring it.
const LATE: [PropertyName; 2] = [PropertyName::REFQUOTA, PropertyName::SHARESMB];

/// The last mark.
fn success() -> Property {
    Property::new(PropertyName::SUCCESS, PropertyValue::yes())
}

/// Whether a snapshot provably came with the copy of that original: only this driver takes helpers,
/// and any other snapshot must have the GUID of the one that was sent, not just its name.
fn is_mark_of(from: &Original, mark: &Snapshot, pool: &State) -> bool {
    let sent = pool.snapshot(&from.origin);
    from.helper || sent.is_some_and(|sent| sent.guid == mark.guid)
}

impl Create<'_> {
    fn conflict(&self, why: impl Into<String>) -> Error {
        let (dataset, why) = (self.name().clone(), why.into());
        self.refused(Kind::Conflict)
            .because(Other { dataset, why })
            .advise("delete the existing one, or request another name, or the same source and size")
    }

    /// The remaining helper snapshots of an existing volume.
    fn leftovers<'p>(
        &self,
        dataset: &Dataset,
        pool: &'p State,
    ) -> impl Iterator<Item = &'p Snapshot> {
        let from = self.from.as_ref();
        let helper = from.filter(|from| from.helper);
        let helper = helper.and_then(|from| pool.snapshot(&from.origin));
        let mark = self.mark(pool).filter(|mark| {
            let proved = from.is_some_and(|from| is_mark_of(from, mark, pool));
            proved || self.received.is_some() || !is_complete(dataset)
        });
        let ours = |s: &&Snapshot| !s.is_doomed() && s.csi_name().is_none();
        helper.into_iter().chain(mark).filter(ours)
    }

    /// The snapshot that seems to have come with the copy, by its name.
    fn mark<'p>(&self, pool: &'p State) -> Option<&'p Snapshot> {
        // A dataset that started as a copy stays one, even if its class has changed since.
        let started = pool.dataset(self.name());
        let started = started.is_some_and(|found| found.origin().is_none() && !is_complete(found));
        let from = self.from.as_ref().filter(|from| from.copy || started);
        let leaf = from
            .map(|from| &from.origin.leaf)
            .or(self.received.as_ref())?;
        pool.snapshot(&self.name().at(leaf).ok()?)
    }

    /// Rejects a dataset with the marks of another connection: equal names of two clusters that
    /// share a parent are two volumes. compat: "ZFS".
    pub(super) fn refuse_another(&self, dataset: &Dataset) -> Result<(), Error> {
        if self.policy.owner().is_another(dataset) {
            return Err(self.conflict("is of another driver or instance_id"));
        }
        Ok(())
    }

    /// Whether the existing dataset was created by this request; otherwise why not.
    pub(in crate::plan) fn recognise(&self, dataset: &Dataset, pool: &State) -> Result<(), Error> {
        if dataset.kind != self.kind {
            return Err(self.conflict(format!("is a {}", dataset.kind)));
        }
        self.refuse_another(dataset)?;
        if !dataset.is_managed() {
            if self.is_bare_clone(dataset) {
                return Ok(());
            }
            // democratic-csi sets the properties of a copy afterwards; a crash can come in between.
            let mark = self.from.as_ref().zip(self.mark(pool));
            if mark.is_some_and(|(from, mark)| is_mark_of(from, mark, pool)) {
                return Ok(());
            }
            return Err(self.conflict("is not a volume of this driver"));
        }
        let wanted = self.policy.contract(self.request);
        for (name, what) in [
            (PropertyName::VOLUME_NAME, "has another name"),
            (PropertyName::SOURCE_KIND, "has another source"),
            (PropertyName::SOURCE_ID, "has another source"),
        ] {
            let of_request = wanted
                .iter()
                .find(|p| p.name == name)
                .map(|p| p.value.as_str());
            let own = dataset.properties.own(&name);
            // democratic-csi 1.0 did not record the name.
            let unknown = name == PropertyName::VOLUME_NAME && own.is_none();
            if own != of_request && !unknown {
                return Err(self.conflict(what));
            }
        }
        Ok(())
    }

    /// Whether it is the clone of this request that an interrupted call has not given its marks yet: TrueNAS 26
    /// makes clones without properties. Only this request names a volume after this dataset.
    fn is_bare_clone(&self, dataset: &Dataset) -> bool {
        let from = self.from.as_ref().filter(|from| !from.copy);
        let unnamed = dataset.properties.own(&PropertyName::VOLUME_NAME).is_none();
        unnamed
            && !is_complete(dataset)
            && from.is_some_and(|from| dataset.origin().as_ref() == Some(&from.origin))
    }

    /// Whether it is a partial copy of this request that can resume.
    pub(super) fn is_part(&self, dataset: &Dataset, pool: &State) -> bool {
        self.from.is_some() && dataset.resumes().is_some() && self.recognise(dataset, pool).is_ok()
    }

    /// The plan for a dataset without its complete content.
    pub(super) fn arriving(&self, dataset: &Dataset, pool: &State) -> Result<Plan, Error> {
        self.refuse_another(dataset)?;
        if dataset.resumes().is_some() {
            self.recognise(dataset, pool)?;
            if let Some(from) = &self.from {
                return Ok(going_on(self.name(), dataset, &from.origin));
            }
        }
        let why = format!("a copy into {} is still running", self.name());
        Err(self.refused(Kind::Pending).because(why))
    }

    /// The required size of the existing dataset.
    fn resized(&self, dataset: &Dataset) -> Result<Vec<Property>, Error> {
        let limited = self.kind == VolumeKind::Zvol || self.is_limited();
        let current = dataset.size().filter(|_| limited);
        if is_complete(dataset) {
            return match current {
                Some(size) if !self.request.size.holds(size) => {
                    let asked = self.request.size;
                    Err(self.conflict(format!("has {size} bytes, and {asked} are asked for")))
                }
                _ => Ok(Vec::new()),
            };
        }
        let block = dataset.properties.number(&PropertyName::VOLBLOCKSIZE);
        match self.kind {
            VolumeKind::Zvol => {
                // It is not shown before the zvol is complete, and may be larger than that.
                let Some(current) = current else {
                    let why = format!("the size of {} is not known yet", self.name());
                    return Err(self.refused(Kind::Pending).because(why));
                };
                let size = self.size(Some(current), block.unwrap_or(self.block));
                let size = size.map_err(|_| self.conflict("is larger than that"))?;
                let wanted = Property::new(PropertyName::VOLSIZE, size.into());
                Ok(if current < size { vec![wanted] } else { vec![] })
            }
            VolumeKind::Filesystem => {
                // Data received from another connection was not measured before.
                let held = self.received.is_some().then(|| dataset.held());
                let size = self.size(held, 1)?;
                let wanted = self.policy.size_of_filesystem(size, &self.class);
                Ok(wanted
                    .into_iter()
                    .filter(|p| !dataset.properties.has(p))
                    .collect())
            }
        }
    }

    /// The plan that completes the existing dataset; empty if it is complete.
    pub(super) fn complete(
        &self,
        dataset: &Dataset,
        pool: &State,
        status: &dyn ExportStatus,
    ) -> Result<Plan, Error> {
        self.recognise(dataset, pool)?;
        let resized = self.resized(dataset)?;
        let other = self.class.lacking(dataset);
        if let Some(other) = other.filter(|_| is_complete(dataset)) {
            return Err(self.conflict(format!("does not have {other}, which its class asks for")));
        }
        // From here on it is the requested volume, in progress or complete: the caller must not
        // forget it.
        self.rest(dataset, pool, status, resized)
            .map_err(|error| error.with_effect(Effect::Possible))
    }

    /// The same for a dataset that is this volume, with its required size.
    fn rest(
        &self,
        dataset: &Dataset,
        pool: &State,
        status: &dyn ExportStatus,
        resized: Vec<Property>,
    ) -> Result<Plan, Error> {
        let mut plan = Plan::about(self.name().clone());
        let complete = is_complete(dataset);
        let own = |property: &Property| dataset.properties.has(property);
        let mut properties = resized;
        if !dataset.is_managed() {
            // A copy without marks has the creation-only properties of its source.
            let all = self
                .policy
                .of_volume(self.kind, self.request, &self.class)?;
            properties.extend(
                all.into_iter()
                    .filter(|property| !property.name.is_for_new_only()),
            );
        } else if !complete {
            let contract = self.policy.contract(self.request);
            properties.extend(contract.into_iter().filter(|property| !own(property)));
            properties.extend(self.late(dataset, status)?);
            // The class may have changed since an attempt that made it.
            let settings = self.class.settings.iter();
            let missing = settings.filter(|one| !one.is_shown(dataset));
            properties.extend(missing.map(Setting::property));
            let share = self.class.share.iter().filter(|one| !one.is_of(dataset));
            let options = share.flat_map(ShareChoice::properties);
            properties.extend(options.filter(|property| !own(property)));
            properties.extend(self.unwanted(dataset));
        }
        if !properties.is_empty() {
            let object = self.name().clone().into();
            plan.step(Step::Set { object, properties });
        }
        for left in self.leftovers(dataset, pool) {
            plan.guard(left.name.clone(), left.guid);
            plan.step(Step::DestroySnapshot(left.name.clone()));
        }
        if !complete {
            // After its size: ZFS turns it into a number. And after the snapshots: the space that
            // they hold would have to be free once more.
            plan.add(self.reservation(dataset).map(|property| Step::Set {
                object: self.name().clone().into(),
                properties: vec![property],
            }));
            plan.add(self.permitted(dataset)?);
        }
        let acts = status.ensure()?;
        if self.kind == VolumeKind::Zvol && acts.iter().any(Act::is_request) {
            plan.step(Step::Settle(self.name().clone()));
        }
        let established = acts.is_empty();
        self.export_ref.add(&mut plan, acts);
        if complete {
            let mut properties = self.moved(dataset, status)?;
            properties.extend(Some(success()).filter(|mark| !own(mark)));
            if !properties.is_empty() {
                plan.step(Step::Set {
                    object: self.name().clone().into(),
                    properties,
                });
            }
        } else {
            plan.add(self.marked(status, established)?);
        }
        if !plan.is_empty() {
            self.export_ref.guard(&mut plan, dataset);
        }
        Ok(plan)
    }

    /// The configured properties that an interrupted copy lacks. Sizes and exports are handled
    /// separately.
    fn late(&self, dataset: &Dataset, status: &dyn ExportStatus) -> Result<Vec<Property>, Error> {
        let of_export = status.properties();
        let sized = self.is_limited();
        let mut all = self
            .policy
            .of_volume(self.kind, self.request, &self.class)?;
        all.retain(|property| {
            let name = &property.name;
            let of_size = sized && *name == PropertyName::REFQUOTA;
            let of_share = self.class.share.as_ref();
            let elsewhere = of_size
                || of_share.is_some_and(|share| share.sets(name))
                || of_export.iter().any(|other| other.name == *name);
            LATE.contains(name) && !elsewhere && !dataset.properties.has(property)
        });
        Ok(all)
    }

    /// The quota and the reservation of an earlier attempt, if the class now says that there is none.
    fn unwanted(&self, dataset: &Dataset) -> Vec<Property> {
        let is_limited = self.kind == VolumeKind::Filesystem && dataset.size().is_some();
        let quota = is_limited && self.class.quota == Some(false);
        let reservation = dataset.reserved() > 0 && self.class.reservation == Some(false);
        [
            (PropertyName::REFQUOTA, quota),
            (PropertyName::REFRESERVATION, reservation),
        ]
        .into_iter()
        .filter(|(_, is_unwanted)| *is_unwanted)
        .map(|(name, _)| Property::new(name, 0.into()))
        .collect()
    }

    /// The missing reservation of a zvol that was not created empty, or by an attempt whose class said that there is none.
    fn reservation(&self, dataset: &Dataset) -> Option<Property> {
        let is_filled = self.from.is_some() || self.received.is_some();
        let is_short = self.class.reservation == Some(true) && dataset.reserved() == 0;
        let reserves = self.kind == VolumeKind::Zvol && (is_filled || is_short);
        reserves
            .then(|| self.policy.reservation_of_copy(&self.class))
            .flatten()
    }

    /// A filesystem is mounted, and its root gets the configured permissions. Changes to a
    /// directory without a mount are lost with the next mount.
    fn permitted(&self, dataset: &Dataset) -> Result<Vec<Step>, Error> {
        if self.kind != VolumeKind::Filesystem {
            return Ok(Vec::new());
        }
        let is = |name, value| dataset.properties.get(&name) == Some(value);
        let path = dataset.mountpoint().map(AbsolutePath::parse);
        let Some(Ok(path)) = path.filter(|_| !is(PropertyName::CANMOUNT, "off")) else {
            if self.policy.permissions.is_empty() {
                return Ok(Vec::new());
            }
            return Err(self
                .refused(Kind::Invalid)
                .because("ZFS does not mount it, so permissions cannot be set")
                .advise("permissions need a mountpoint: see zfs.datasetProperties"));
        };
        let mut steps = Vec::new();
        if !is(PropertyName::MOUNTED, "yes") {
            steps.push(Step::Mount(self.name().clone()));
        }
        let permissions = self.policy.permissions.iter().cloned();
        steps.extend(permissions.map(|permission| Step::Permit {
            path: path.clone(),
            permission,
        }));
        Ok(steps)
    }

    /// The volume context, if the recorded one differs from that of the configuration and the
    /// dataset.
    fn moved(&self, dataset: &Dataset, status: &dyn ExportStatus) -> Result<Vec<Property>, Error> {
        // A filesystem that ZFS does not mount keeps its recorded path.
        let Ok(Some(current)) = status.attachment() else {
            return Ok(Vec::new());
        };
        let recorded = dataset.properties.own(&PropertyName::CONTEXT);
        let recorded = recorded.and_then(|text| context::from_json(text).ok());
        if recorded.as_ref() == Some(&current) {
            return Ok(Vec::new());
        }
        Ok(vec![self.context_of(&current)?])
    }

    fn context_of(&self, attachment: &Attachment) -> Result<Property, Error> {
        let value = PropertyValue::parse(context::to_json(attachment))
            .map_err(|error| self.refused(Kind::Internal).because(error))?;
        Ok(Property::new(PropertyName::CONTEXT, value))
    }

    /// The mark that it is complete, with its attachment, as soon as that is known.
    fn marked(&self, status: &dyn ExportStatus, established: bool) -> Result<Option<Step>, Error> {
        let Some(attachment) = status.attachment()? else {
            let why = "its export exists, but has no attachment";
            return if established {
                Err(self.refused(Kind::Internal).because(why))
            } else {
                Ok(None)
            };
        };
        Ok(Some(Step::Set {
            object: self.name().clone().into(),
            properties: vec![self.context_of(&attachment)?, success()],
        }))
    }
}
