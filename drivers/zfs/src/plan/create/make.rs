//! The first plan of a new volume: the dataset, with its marks.

use driver_core::{Error, Kind};

use super::incoming::content_of;
use super::{Create, Original};
use crate::id;
use crate::name::SnapshotRef;
use crate::observed::{Dataset, State, System, VolumeKind};
use crate::plan::is_complete;
use crate::property::{Property, PropertyName};
use crate::step::{New, Plan, Step};

/// The content of a source.
struct Content {
    size: Option<u64>,
    block: Option<u64>,
    used: Option<u64>,
}

/// Whether a dataset can be a parent of volumes: it is none itself.
pub fn holds_volumes(parent: &Dataset) -> bool {
    parent.kind == VolumeKind::Filesystem && !parent.is_managed() && !is_complete(parent)
}

/// The error about one that cannot.
pub fn holds_no_others(refused: Error, other: &Dataset) -> Error {
    let why = format!("{} is a volume or a zvol, and holds no others", other.name);
    refused
        .because(why)
        .advise("take it out of zfs.datasetChildren")
}

impl Create<'_> {
    /// The plan that creates the dataset.
    pub(super) fn make(&self, pool: &State) -> Result<Plan, Error> {
        self.check_device(pool.system())?;
        self.check_place(pool)?;
        let mut plan = Plan::about(self.name().clone());
        let Some(from) = &self.from else {
            let size = self.size(None, self.block)?;
            plan.step(Step::Create {
                dataset: self.name().clone(),
                new: match self.kind {
                    VolumeKind::Filesystem => New::Filesystem,
                    VolumeKind::Zvol => New::Zvol {
                        size,
                        block: Some(self.block),
                    },
                },
                properties: self.properties(pool, size)?,
            });
            return Ok(plan);
        };
        let content = self.content(from, pool)?;
        let size = self.size(content.size, content.block.unwrap_or(self.block))?;
        if self.is_limited() && content.used > Some(size) {
            let used = content.used.unwrap_or_default();
            let why = format!("its source has {used} bytes");
            return Err(self.refused(Kind::OutOfRange).because(why));
        }
        let parent = self.name().parent();
        let parent = parent.filter(|_| from.copy || self.is_in_child);
        if let Some(parent) = parent.filter(|parent| pool.dataset(parent).is_none()) {
            // A stream is received into a parent that exists, and not every storage makes one for a clone. That of a
            // clone is there, unless it is a child.
            plan.step(Step::Create {
                dataset: parent,
                new: New::Filesystem,
                properties: Vec::new(),
            });
        }
        if from.helper {
            take(&mut plan, &from.origin, pool)
                .map_err(|why| self.refused(Kind::Conflict).because(why))?;
        }
        let (origin, dataset) = (from.origin.clone(), self.name().clone());
        let properties = self.properties(pool, size)?;
        plan.step(if from.copy {
            Step::Copy {
                from: origin,
                to: dataset,
                properties,
            }
        } else {
            Step::Clone {
                origin,
                dataset,
                properties,
            }
        });
        Ok(plan)
    }

    /// Rejects a new dataset whose name is that of a volume elsewhere, or whose parent is no parent of volumes.
    pub fn check_place(&self, pool: &State) -> Result<(), Error> {
        let wanted = self.policy.contract(self.request);
        let is_named = |found: &&Dataset| {
            let mut names = wanted
                .iter()
                .filter(|property| property.name == PropertyName::VOLUME_NAME);
            names.any(|name| found.properties.own(&name.name) == Some(name.value.as_str()))
        };
        let mut twins = self.twins.iter().filter_map(|twin| pool.dataset(twin));
        let ours = |found: &&Dataset| !self.policy.owner().is_another(found);
        if let Some(twin) = twins.find(|found| is_named(found) && ours(found)) {
            let why = format!("{} exists, and is the volume of this name", twin.name);
            return Err(self.refused(Kind::Conflict).because(why).advise(
                "a volume is in one place alone: ask for it with the same `datasetChild`, or delete it first",
            ));
        }
        let parent = self.name().parent().filter(|_| self.is_in_child);
        let parent = parent.and_then(|parent| pool.dataset(&parent));
        match parent.filter(|parent| !holds_volumes(parent)) {
            Some(other) => Err(holds_no_others(self.refused(Kind::Invalid), other)),
            None => Ok(()),
        }
    }

    /// The properties of every new dataset of this request from its first moment.
    pub(super) fn properties(&self, pool: &State, size: u64) -> Result<Vec<Property>, Error> {
        let mut all = self
            .policy
            .of_volume(self.kind, self.request, &self.class)?;
        let mut lay_over = |property: Property| {
            all.retain(|other| other.name != property.name);
            all.push(property);
        };
        if self.kind == VolumeKind::Filesystem {
            let size = self.policy.size_of_filesystem(size, &self.class);
            size.into_iter().for_each(&mut lay_over);
        }
        let subject = self.export_ref.subject(pool);
        let of_export = self.export_ref.export.properties(&subject)?;
        let share = self.class.share.as_ref();
        of_export
            .into_iter()
            .filter(|property| share.is_none_or(|share| !share.sets(&property.name)))
            .for_each(&mut lay_over);
        Ok(all)
    }

    /// Rejects a zvol whose device name would be too long for the host.
    pub(super) fn check_device(&self, system: Option<&System>) -> Result<(), Error> {
        if self.kind != VolumeKind::Zvol {
            return Ok(());
        }
        let longest = system.map_or(255, |system| {
            let major = system.release.split('.').next().unwrap_or_default();
            let old = major.parse::<u32>().is_ok_and(|major| major < 13);
            if system.name == "FreeBSD" && old {
                63
            } else {
                255
            }
        });
        let length = "zvol/".len() + self.name().as_str().len();
        if length > longest {
            let why = format!("its device would have a name of {length} bytes, not {longest}");
            return Err(self
                .refused(Kind::Invalid)
                .because(why)
                .advise("shorten zfs.datasetParentName, or _private.csi.volume.idTemplate"));
        }
        Ok(())
    }

    /// The content of a source, or why it cannot be one.
    fn content(&self, from: &Original, pool: &State) -> Result<Content, Error> {
        let missing = || {
            let why = format!("{} does not exist", from.named);
            self.refused(Kind::NotFound).because(why)
        };
        let (kind, properties) = content_of(&from.named, pool).ok_or_else(missing)?;
        if kind != self.kind {
            let why = format!("{} is a {kind}, not a {}", from.named, self.kind);
            return Err(self
                .refused(Kind::Invalid)
                .because(why)
                .advise("use a class whose driver makes volumes of that kind"));
        }
        let zvol = self.kind == VolumeKind::Zvol;
        Ok(Content {
            size: properties.number(&PropertyName::VOLSIZE).filter(|_| zvol),
            block: properties.number(&PropertyName::VOLBLOCKSIZE),
            used: properties
                .number(&PropertyName::REFERENCED)
                .filter(|_| !zvol),
        })
    }
}

/// Plans to take a new helper snapshot. An existing one is of an earlier attempt, and its content
/// may be old; if it has clones, it is renamed. `Err` is why it cannot be taken.
pub(in crate::plan) fn take(
    plan: &mut Plan,
    helper: &SnapshotRef,
    pool: &State,
) -> Result<(), String> {
    if let Some(old) = pool.snapshot(helper) {
        if old.csi_name().is_some() && !old.is_doomed() {
            return Err(format!("{helper} is a snapshot of its own, not a helper"));
        }
        if old.is_held() {
            return Err(format!(
                "{helper} is held: see `zfs holds` and `zfs release`"
            ));
        }
        plan.guard(helper.clone(), old.guid);
        if !old.is_doomed() {
            plan.step(Step::DestroySnapshot(helper.clone()));
        }
        // One that is marked for deferred destroy still exists because of a clone or hold.
        if old.is_doomed() || old.is_stood_on() {
            plan.step(Step::Rename {
                snapshot: helper.clone(),
                to: id::aside(old.guid),
            });
        }
    }
    plan.step(Step::Snapshot {
        snapshots: vec![helper.clone()],
        properties: Vec::new(),
    });
    Ok(())
}
