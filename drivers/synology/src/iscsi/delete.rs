//! Deletes volumes. DSM deletes a LUN whatever depends on it, together with its snapshots, so the checks
//! run before.

use std::time::Duration;

use driver_core::{Backoff, Call, Error, Kind, VolumeId};
use futures_util::future::try_join;
use tokio::time::Instant;

use super::snapshots::{is_ours, keeps_volume};
use super::{Luns, POLLS, VolumeState, pause};
use crate::api::{ListedLun, Lun, Target};
use crate::error::{Failure, unless_done};
use crate::lun_name::LunName;

/// How long a deletion waits for a node that is connected. A node that leaves does so within seconds; the caller asks
/// again.
const PATIENCE: Duration = Duration::from_secs(30);
/// The time of the look after a pause: no pause begins with less left, so that the caller hears what is in use.
const AGAIN: Duration = Duration::from_secs(1);
/// The pauses before it is looked for again. A logout takes less than a second.
const IN_USE: Backoff = Backoff::new(Duration::from_millis(250), PATIENCE);

// === impl Luns ===

impl Luns {
    /// Waits while a node is connected, and lets other calls work in between.
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
        let (mut pauses, end) = (IN_USE, Instant::now() + PATIENCE);
        loop {
            let turn = self.turn(call, doing).await?;
            let Some(in_use) = self.delete_unused(call, &name, doing).await? else {
                return Ok(());
            };
            drop(turn);
            let next = Instant::now() + pauses.pause();
            // The caller hears what it is before its time is over.
            if next + AGAIN >= end.min(call.deadline()) {
                return Err(in_use);
            }
            tokio::time::sleep_until(next).await;
        }
    }

    /// Deletes a volume; the error if a node is connected to it.
    async fn delete_unused(
        &self,
        call: &Call,
        name: &LunName,
        doing: &str,
    ) -> Result<Option<Error>, Error> {
        call.check(doing)?;
        let mut state = self.observe(call, name, doing).await?;
        let is_on_its_way =
            |lun: &Lun| lun.is_action_locked && self.shown(lun, name, &state.targets).is_none();
        if state.lun.as_ref().is_some_and(is_on_its_way) {
            // It is being made, or goes since an earlier call: until then DSM refuses what is asked of it.
            self.settled(call, name, doing).await?;
            // A target may show it now.
            state = self.observe(call, name, doing).await?;
        }
        if state.lun.is_none() {
            self.check_nas(call, doing).await?;
            // No source says what every DSM answers for a name that it does not have: the list decides.
            state = self.observe_in_lists(call, name, doing).await?;
        }
        if let Some(lun) = &state.lun {
            self.refuse_snapshots(call, lun, doing).await?;
            if let Some(in_use) = self.in_use(name, &state, doing) {
                return Ok(Some(in_use));
            }
        }
        self.hide(call, name, &state, doing).await?;
        if let Some(lun) = &state.lun {
            self.remove(call, lun, doing).await?;
        }
        Ok(None)
    }

    /// The error while an initiator is connected to the target of a volume. Who uses which LUN of a shared target, DSM
    /// does not say.
    fn in_use(&self, name: &LunName, state: &VolumeState, doing: &str) -> Option<Error> {
        let own = self.own(name, &state.targets)?;
        if own.connected.is_empty() {
            return None;
        }
        let why = format!("it is in use: connected is {}", own.connected.join(", "));
        let advice = "unmount the volume on that node and disconnect it; for a node that is gone see \"A volume that \
             is in use\" in docs/troubleshooting.md";
        Some(Error::new(Kind::Busy, doing).because(why).advise(advice))
    }

    /// The same as [`Luns::observe`], from the lists of the NAS.
    async fn observe_in_lists(
        &self,
        call: &Call,
        name: &LunName,
        doing: &str,
    ) -> Result<VolumeState, Error> {
        let look = async {
            let (luns, targets) =
                try_join(self.client.luns(call), self.targets_for(call, name)).await?;
            let is_it = |lun: &ListedLun| lun.name == name.as_str();
            let mut luns = self.client.readable(luns, is_it)?.into_iter();
            let lun = luns.find(|lun| lun.name == name.as_str());
            Ok(VolumeState { lun, targets })
        };
        look.await
            .map_err(|failure: Failure| failure.while_doing(call, doing))
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
            let deleted = self.client.delete_target(call, own.id).await;
            let look = async {
                let left = self.targets_for(call, name).await?;
                Ok::<_, Failure>(left.iter().all(|target| target.id != own.id))
            };
            unless_done(call, doing, deleted, look).await?;
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
            let look = async {
                let left = self.targets_for(call, name).await?;
                let is_left =
                    |known: &Target| known.id == target && known.number_of(uuid).is_some();
                Ok::<_, Failure>(!left.iter().any(is_left))
            };
            unless_done(call, doing, unmapped, look).await?;
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
