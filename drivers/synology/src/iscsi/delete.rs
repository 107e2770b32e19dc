//! Deletes volumes. DSM deletes a LUN whatever depends on it, together with its snapshots, so the checks
//! run before.

use driver_core::{Call, Error, Kind, VolumeId};

use super::snapshots::{is_ours, keeps_volume};
use super::{Luns, POLLS, VolumeState, pause};
use crate::api::{Lun, Target};
use crate::lun_name::LunName;

// === impl Luns ===

impl Luns {
    pub(super) async fn delete(
        &self,
        call: &Call,
        id: &VolumeId,
        doing: &str,
    ) -> Result<(), Error> {
        // An id that this driver never gives belongs to no volume.
        let Some(name) = self.names.lun(id) else {
            return Ok(());
        };
        call.check(doing)?;
        let mut state = self.observe(call, &name, doing).await?;
        if state.lun.is_none() {
            self.check_nas(call, doing).await?;
            // No source says what every DSM answers for a name that it does not have: the list decides.
            state = self.observe_in_lists(call, &name, doing).await?;
        }
        if let Some(lun) = &state.lun {
            self.refuse_snapshots(call, lun, doing).await?;
        }
        self.hide(call, &name, &state, doing).await?;
        match &state.lun {
            Some(lun) => self.remove(call, lun, doing).await,
            None => Ok(()),
        }
    }

    /// The same as [`Luns::observe`], from the lists of the NAS.
    async fn observe_in_lists(
        &self,
        call: &Call,
        name: &LunName,
        doing: &str,
    ) -> Result<VolumeState, Error> {
        let (luns, targets) = self.observe_all(call, doing).await?;
        let lun = luns.into_iter().find(|lun| lun.name == name.as_str());
        Ok(VolumeState { lun, targets })
    }

    async fn refuse_snapshots(&self, call: &Call, lun: &Lun, doing: &str) -> Result<(), Error> {
        let snapshots = self.client.snapshots_of_listed(call, &lun.uuid).await;
        let snapshots = snapshots.map_err(|failure| failure.while_doing(call, doing))?;
        let kept: Vec<String> = snapshots
            .iter()
            .filter(|snapshot| keeps_volume(snapshot))
            .take(5)
            .map(|snapshot| {
                if is_ours(snapshot) {
                    format!("`{}`", snapshot.description)
                } else if snapshot.is_kept_by_packages {
                    format!(
                        "`{}` (kept by a package, such as replication)",
                        snapshot.name
                    )
                } else {
                    format!("`{}` (locked on the NAS)", snapshot.name)
                }
            })
            .collect();
        if kept.is_empty() {
            return Ok(());
        }
        Err(Error::new(Kind::Busy, doing)
            .because(format!("it has snapshots: {}", kept.join(", ")))
            .advise("delete the snapshots first; DSM would delete them with the LUN"))
    }

    /// Removes the LUN from its targets, and deletes its own target.
    async fn hide(
        &self,
        call: &Call,
        name: &LunName,
        state: &VolumeState,
        doing: &str,
    ) -> Result<(), Error> {
        let uuid = state.lun.as_ref().map(|lun| lun.uuid.as_str());
        if let Some(own) = self.own(name, &state.targets) {
            let mut mapped = own.mapped_luns.iter();
            let is_other = mapped.any(|mapped| Some(mapped.lun_uuid.as_str()) != uuid);
            if is_other {
                let why = format!("its target {} shows another LUN, too", own.iqn);
                return Err(Error::new(Kind::Busy, doing)
                    .because(why)
                    .advise("map that LUN to another target in SAN Manager"));
            }
            call.check(doing)?;
            if let Err(failure) = self.client.delete_target(call, own.id).await {
                let left = self.all_targets(call).await;
                let left = left.map_err(|failure| failure.while_doing(call, doing))?;
                if left.iter().any(|target| target.id == own.id) {
                    return Err(failure.while_doing(call, doing));
                }
            }
        }
        let Some(uuid) = uuid else { return Ok(()) };
        let shared: Vec<u64> = self
            .shared(&state.targets)
            .filter(|target| target.number_of(uuid).is_some())
            .map(|target| target.id)
            .collect();
        for target in shared {
            call.check(doing)?;
            let Err(failure) = self.client.unmap(call, uuid, target).await else {
                continue;
            };
            let left = self.all_targets(call).await;
            let left = left.map_err(|failure| failure.while_doing(call, doing))?;
            let is_left = |known: &Target| known.id == target && known.number_of(uuid).is_some();
            if left.iter().any(is_left) {
                return Err(failure.while_doing(call, doing));
            }
        }
        Ok(())
    }

    /// Deletes the LUN, and waits until it is gone: DSM answers before it is.
    async fn remove(&self, call: &Call, lun: &Lun, doing: &str) -> Result<(), Error> {
        call.check(doing)?;
        let deleted = self.client.delete_lun(call, &lun.uuid).await;
        let mut polls = POLLS;
        loop {
            let left = self.client.lun(call, &lun.uuid).await;
            let left = left.map_err(|failure| failure.while_doing(call, doing))?;
            let Some(left) = left else {
                return Ok(());
            };
            if let Err(failure) = &deleted
                && !left.is_action_locked
            {
                return Err(failure.clone().while_doing(call, doing));
            }
            pause(call, &mut polls).await;
            call.check(doing)?;
        }
    }
}
