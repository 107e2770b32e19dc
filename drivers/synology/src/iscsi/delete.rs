//! Deletes volumes. DSM deletes a LUN whatever depends on it, together with its snapshots, so the checks
//! run before.

use driver_core::{Call, Error, Kind, VolumeId};

use super::snapshots::{is_ours, keeps_volume};
use super::{Luns, NasState, POLL_PAUSES, pause};
use crate::api::{Lun, Target};
use crate::lun_name::LunName;

// === impl Luns ===

impl Luns {
    pub(super) async fn delete(&self, call: &Call, id: &VolumeId) -> Result<(), Error> {
        let doing = format!("delete volume `{id}`");
        // An id that this driver never gives belongs to no volume.
        let Some(name) = self.names.lun(id) else {
            return Ok(());
        };
        call.check(&doing)?;
        let state = self.observe(call, &doing).await?;
        let lun = state.lun(&name).cloned();
        if let Some(lun) = &lun {
            self.refuse_snapshots(call, lun, &doing).await?;
        }
        self.hide(call, &name, lun.as_ref(), state, &doing).await?;
        match lun {
            Some(lun) => self.remove(call, &lun, &doing).await,
            None => Ok(()),
        }
    }

    async fn refuse_snapshots(&self, call: &Call, lun: &Lun, doing: &str) -> Result<(), Error> {
        let snapshots = self.client.snapshots_of_listed(call, &lun.uuid).await;
        let snapshots = snapshots.map_err(|failure| failure.of_listed(call, doing))?;
        let kept: Vec<String> = snapshots
            .iter()
            .filter(|snapshot| keeps_volume(snapshot))
            .take(5)
            .map(|snapshot| {
                if is_ours(snapshot) {
                    format!("`{}`", snapshot.description)
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
        lun: Option<&Lun>,
        state: NasState,
        doing: &str,
    ) -> Result<(), Error> {
        let uuid = lun.map(|lun| lun.uuid.as_str());
        let own = self.own(name, &state.targets).cloned();
        if let Some(own) = &own {
            let mut mapped = own.mapped_luns.iter();
            let is_other = mapped.any(|mapped| Some(mapped.lun_uuid.as_str()) != uuid);
            if is_other {
                let why = format!("its target {} shows another LUN, too", own.iqn);
                return Err(Error::new(Kind::Busy, doing)
                    .because(why)
                    .advise("map that LUN to another target in SAN Manager"));
            }
            call.check(doing)?;
            let deleted = self.client.delete_target(call, own.id).await;
            let left = self.observe(call, doing).await?;
            let is_left = |target: &Target| target.id == own.id;
            if left.targets.iter().any(is_left) {
                return Err(match deleted {
                    Err(failure) => failure.while_doing(call, doing),
                    Ok(()) => still_there(call, doing, "the target"),
                });
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
            let unmapped = self.client.unmap(call, uuid, target).await;
            let left = self.observe(call, doing).await?;
            let is_left = |known: &Target| known.id == target && known.number_of(uuid).is_some();
            if left.targets.iter().any(is_left) {
                return Err(match unmapped {
                    Err(failure) => failure.while_doing(call, doing),
                    Ok(()) => still_there(call, doing, "the mapping"),
                });
            }
        }
        Ok(())
    }

    /// Deletes the LUN, and waits until it is gone: DSM answers before it is.
    async fn remove(&self, call: &Call, lun: &Lun, doing: &str) -> Result<(), Error> {
        call.check(doing)?;
        let deleted = self.client.delete_lun(call, &lun.uuid).await;
        let mut wait = POLL_PAUSES.0;
        loop {
            let luns = self.client.luns(call).await;
            let luns = luns.map_err(|failure| failure.while_doing(call, doing))?;
            let Some(left) = luns.iter().find(|known| known.uuid == lun.uuid) else {
                return Ok(());
            };
            if let Err(failure) = &deleted
                && !left.is_action_locked
            {
                return Err(failure.clone().while_doing(call, doing));
            }
            pause(call, &mut wait).await;
            call.check(doing)?;
        }
    }
}

fn still_there(call: &Call, doing: &str, what: &str) -> Error {
    Error::new(Kind::Internal, doing)
        .with_effect(call.effect())
        .because(format!(
            "DSM said that {what} was taken away, and it is still there"
        ))
        .advise("look into SAN Manager, and try again")
}
