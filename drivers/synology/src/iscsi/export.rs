//! The target that shows a LUN: one of its own, or one that many share.
//!
//! Both are found under any present configuration, which decides only for new volumes. DSM assigns the
//! LUN numbers and reuses free ones.

use driver_core::{Call, Error, Kind};

use super::{Luns, SHARED, Shown};
use crate::answer::Done;
use crate::api::{ListedTarget, Lun, Target};
use crate::config::TargetMode;
use crate::error::Failure;
use crate::lun_name::LunName;
use crate::template::Template;

/// A target that has to show a LUN.
struct Chosen {
    name: String,
    iqn: String,
    /// If it is there.
    id: Option<u64>,
}

// === impl Luns ===

impl Luns {
    /// The target of this volume alone.
    pub(super) fn own<'a>(&self, name: &LunName, targets: &'a [Target]) -> Option<&'a Target> {
        let iqn = self.names.iqn(name.as_str()).ok()?;
        targets.iter().find(|target| target.iqn == iqn.as_str())
    }

    /// The targets that LUNs share, in the order of their numbers.
    pub(super) fn shared<'a>(
        &'a self,
        targets: &'a [Target],
    ) -> impl Iterator<Item = &'a Target> + 'a {
        SHARED.filter_map(|number| {
            let name = self.names.shared(&self.settings.shared.name, number);
            let iqn = self.names.iqn(&name).ok()?;
            targets.iter().find(|target| target.iqn == iqn.as_str())
        })
    }

    /// The way a LUN is shown.
    pub(super) fn shown<'a>(
        &'a self,
        lun: &Lun,
        name: &LunName,
        targets: &'a [Target],
    ) -> Option<Shown<'a>> {
        let own = self.own(name, targets).into_iter();
        own.chain(self.shared(targets)).find_map(|target| {
            let number = target.number_of(&lun.uuid)?;
            Some(Shown { target, number })
        })
    }

    /// Has the LUN shown by a target, and gives that target as it is then. `targets` are those that may show it,
    /// if they were asked for.
    pub(super) async fn show(
        &self,
        call: &Call,
        lun: &Lun,
        name: &LunName,
        template: &Template,
        targets: Option<Vec<Target>>,
    ) -> Result<Target, Error> {
        let doing = format!("show LUN `{}` by a target", name.as_str());
        let failed = |failure: Failure| failure.while_doing(call, doing.clone());
        let is_shared = self.settings.mode == TargetMode::SharedTarget;
        let targets = match targets {
            Some(targets) => targets,
            // A target of a LUN that was just made shows nothing yet: its creation tells whether it is there.
            None if !is_shared => Vec::new(),
            None => self.targets_for(call, name).await.map_err(failed)?,
        };
        if let Some(shown) = self.shown(lun, name, &targets) {
            return Ok(shown.target.clone());
        }
        let chosen = self.choose(name, &targets, &doing)?;
        let id = match chosen.id {
            Some(id) => id,
            None => self.make_target(call, template, &chosen, &doing).await?,
        };
        call.check(&doing)?;
        let mapped = self.client.map(call, &lun.uuid, id).await;
        let targets = self.targets_now(call, name, id).await.map_err(failed)?;
        let target = targets.iter().find(|target| target.iqn == chosen.iqn);
        let target = target.filter(|target| target.number_of(&lun.uuid).is_some());
        let Some(target) = target else {
            return Err(match mapped {
                // The LUN or the target is gone: another call deleted it.
                Err(Failure::Refused(code)) if code.is_no_lun() || code.is_no_target() => {
                    changed(&doing)
                }
                Err(failure) => failure.while_doing(call, doing),
                Ok(()) => changed(&doing),
            });
        };
        // Two calls at once may have chosen two targets: the first in order counts.
        let first = self.shown(lun, name, &targets);
        if let Some(first) = first.filter(|first| first.target.iqn != chosen.iqn) {
            let unmapped = self.client.unmap(call, &lun.uuid, id).await;
            unmapped.map_err(failed)?;
            return Ok(first.target.clone());
        }
        Ok(target.clone())
    }

    /// The target of that id, or all that may show a LUN where many share some.
    async fn targets_now(
        &self,
        call: &Call,
        name: &LunName,
        id: u64,
    ) -> Result<Vec<Target>, Failure> {
        if self.settings.mode == TargetMode::SharedTarget {
            return self.targets_for(call, name).await;
        }
        let found = self.client.target(call, &id.to_string()).await?;
        match found.filter(|target| target.id == id) {
            Some(target) => Ok(vec![target]),
            // Another target has this number as its name.
            None => self.targets_for(call, name).await,
        }
    }

    /// Makes a target, unless it is there already, and gives its id.
    async fn make_target(
        &self,
        call: &Call,
        template: &Template,
        chosen: &Chosen,
        doing: &str,
    ) -> Result<u64, Error> {
        call.check(doing)?;
        let made = self
            .client
            .create_target(call, template, &chosen.name, &chosen.iqn)
            .await;
        if let Ok(Done {
            target: Some(id), ..
        }) = made
        {
            return Ok(id);
        }
        let failed = |failure: Failure| failure.while_doing(call, doing);
        let targets = self.client.targets(call).await.map_err(failed)?;
        let is_it = |target: &ListedTarget| target.iqn == chosen.iqn || target.name == chosen.name;
        let targets = self.client.these(targets, is_it).map_err(failed)?;
        let found = targets.iter().find(|target| target.iqn == chosen.iqn);
        match found {
            Some(target) => Ok(target.id),
            None => call.outcome(Err(no_target(call, chosen, &targets, made, doing))),
        }
    }

    fn choose(&self, name: &LunName, targets: &[Target], doing: &str) -> Result<Chosen, Error> {
        if self.settings.mode == TargetMode::TargetPerLun {
            let iqn = self.names.iqn(name.as_str())?;
            return Ok(Chosen {
                name: name.as_str().to_owned(),
                iqn: iqn.as_str().to_owned(),
                id: self.own(name, targets).map(|own| own.id),
            });
        }
        let shared = &self.settings.shared;
        let most = usize::try_from(shared.luns_per_target).unwrap_or(usize::MAX);
        let mut missing = None;
        for number in 1..=shared.targets {
            let name = self.names.shared(&shared.name, number);
            let iqn = self.names.iqn(&name)?;
            match targets.iter().find(|target| target.iqn == iqn.as_str()) {
                Some(target) if target.mapped_luns.len() < most => {
                    return Ok(Chosen {
                        name,
                        iqn: target.iqn.clone(),
                        id: Some(target.id),
                    });
                }
                Some(_) => {}
                None => {
                    missing.get_or_insert(Chosen {
                        name,
                        iqn: iqn.as_str().to_owned(),
                        id: None,
                    });
                }
            }
        }
        missing.ok_or_else(|| {
            let why = format!(
                "the {} shared targets have {most} LUNs each",
                shared.targets
            );
            Error::new(Kind::OutOfSpace, doing)
                .because(why)
                .advise("raise iscsi.sharedTarget.targets or lunsPerTarget")
        })
    }
}

/// Why there is no target.
fn no_target(
    call: &Call,
    chosen: &Chosen,
    targets: &[Target],
    made: Result<Done, Failure>,
    doing: &str,
) -> Error {
    if let Some(other) = targets.iter().find(|target| target.name == chosen.name) {
        let why = format!(
            "the target `{}` has the IQN {} and not {}",
            other.name, other.iqn, chosen.iqn
        );
        return Error::new(Kind::Conflict, doing)
            .because(why)
            .advise("rename that target, or set iscsi.namePrefix");
    }
    match made {
        Err(failure) => failure.while_doing(call, doing),
        Ok(_) => changed(doing),
    }
}

/// The error of an object that was made and is missing.
pub(super) fn changed(doing: &str) -> Error {
    Error::new(Kind::Pending, doing)
        .because(
            "what was just made is not listed: another call, or an administrator, has changed it",
        )
        .advise("try again")
}
