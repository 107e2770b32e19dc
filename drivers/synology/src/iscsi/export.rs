//! Which target shows a LUN: one of its own, or one that many share.
//!
//! Both are found under any present configuration, which decides only for new volumes. DSM assigns the
//! LUN numbers and reuses free ones.

use driver_core::{Call, Error, Kind};

use super::{Luns, NasState, Shown};
use crate::api::{Lun, Target};
use crate::config::TargetMode;
use crate::lun_name::LunName;
use crate::template::Template;

/// A target that has to show a LUN.
struct Chosen {
    name: String,
    iqn: String,
    exists: bool,
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
        // More than the configuration has now: it may have had more.
        (1..=256).filter_map(|number| {
            let name = self.names.shared(&self.settings.shared.name, number);
            let iqn = self.names.iqn(&name).ok()?;
            targets.iter().find(|target| target.iqn == iqn.as_str())
        })
    }

    /// How a LUN is shown.
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

    /// Maps the LUN to a target.
    pub(super) async fn show(
        &self,
        call: &Call,
        lun: &Lun,
        name: &LunName,
        template: &Template,
        mut state: NasState,
    ) -> Result<NasState, Error> {
        let doing = format!("show LUN `{}` by a target", name.as_str());
        if self.shown(lun, name, &state.targets).is_some() {
            return Ok(state);
        }
        let chosen = self.choose(name, &state.targets, &doing)?;
        if !chosen.exists {
            call.check(&doing)?;
            let made = self
                .client
                .create_target(call, template, &chosen.name, &chosen.iqn)
                .await;
            state = self.observe(call, &doing).await?;
            let exists = |target: &Target| target.iqn == chosen.iqn;
            if !state.targets.iter().any(exists) {
                return Err(no_target(call, &chosen, &state.targets, made, &doing));
            }
        }
        let find = |state: &NasState| {
            let mut targets = state.targets.iter();
            targets.find(|target| target.iqn == chosen.iqn).cloned()
        };
        let target = find(&state).ok_or_else(|| changed(call, &doing))?;
        if target.number_of(&lun.uuid).is_none() {
            call.check(&doing)?;
            let mapped = self.client.map(call, &lun.uuid, target.id).await;
            state = self.observe(call, &doing).await?;
            if find(&state)
                .and_then(|target| target.number_of(&lun.uuid))
                .is_none()
            {
                return Err(match mapped {
                    // The LUN is gone: another call deleted it.
                    Err(failure) => {
                        let error = failure.while_doing(call, doing.clone());
                        if error.kind() == Kind::NotFound {
                            changed(call, &doing)
                        } else {
                            error
                        }
                    }
                    Ok(()) => changed(call, &doing),
                });
            }
        }
        // Two calls at once may have chosen two targets: the first in order counts.
        let first = self.shown(lun, name, &state.targets);
        if first.is_some_and(|first| first.target.iqn != chosen.iqn) {
            let unmapped = self.client.unmap(call, &lun.uuid, target.id).await;
            unmapped.map_err(|failure| failure.while_doing(call, doing.clone()))?;
            state = self.observe(call, &doing).await?;
        }
        Ok(state)
    }

    fn choose(&self, name: &LunName, targets: &[Target], doing: &str) -> Result<Chosen, Error> {
        if self.settings.mode == TargetMode::TargetPerLun {
            let iqn = self.names.iqn(name.as_str())?;
            return Ok(Chosen {
                name: name.as_str().to_owned(),
                iqn: iqn.as_str().to_owned(),
                exists: self.own(name, targets).is_some(),
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
                        exists: true,
                    });
                }
                Some(_) => {}
                None => {
                    missing.get_or_insert(Chosen {
                        name,
                        iqn: iqn.as_str().to_owned(),
                        exists: false,
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
    made: Result<(), crate::error::Failure>,
    doing: &str,
) -> Error {
    if let Some(other) = targets.iter().find(|target| target.name == chosen.name) {
        let why = format!(
            "the target `{}` has the IQN {} and not {}",
            other.name, other.iqn, chosen.iqn
        );
        return Error::new(Kind::Conflict, doing)
            .with_effect(call.effect())
            .because(why)
            .advise("rename that target, or set iscsi.namePrefix");
    }
    match made {
        Err(failure) => failure.while_doing(call, doing),
        Ok(()) => changed(call, doing),
    }
}

/// The error of an object that was made and is missing.
pub(super) fn changed(call: &Call, doing: &str) -> Error {
    Error::new(Kind::Pending, doing)
        .with_effect(call.effect())
        .because(
            "what was just made is not listed: another call, or an administrator, has changed it",
        )
        .advise("try again")
}
