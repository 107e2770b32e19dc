//! The volumes that are staged here, looked at and repaired without a call.
//!
//! A repair only adds: a way to a device that is missing beside one that works, as an attach opens it. Anything else
//! would be done below a running pod, and is left to the next stage: a filesystem that turned read-only has lost writes
//! and is checked before it is mounted again, and open files of a share keep their handles.

use std::slice;
use std::sync::Arc;

use tokio::time::Instant;

use super::backing::{Backing, topmost};
use super::{Node, PROBE, health, record, stage, storages};
use crate::blocking::{self, Doing, Limits, Purpose, Source};
use crate::device::BlockDevice;
use csi_types::attachment::{AbsolutePath, Attachment};
use csi_types::error::{Error, Kind};
use csi_types::health::{Condition, ConditionKind, Conditions};
use csi_types::secrets::StageSecrets;

/// A look at a staged volume.
#[derive(Debug, Clone, Default)]
pub struct StagedHealth {
    /// What is wrong.
    pub conditions: Conditions,
    /// The addresses of its storage by which it has no way, while it has one by another.
    pub lacking: Vec<String>,
}

// === impl Node ===

impl Node {
    /// The paths at which the kubelet has staged mounted volumes for drivers of these names, each with its server or disk.
    pub async fn staged(
        &self,
        limits: Limits,
        drivers: &[String],
    ) -> Result<Vec<(AbsolutePath, String)>, Error> {
        let doing = Doing::reading("find the volumes that are staged here".to_owned());
        let drivers = drivers.to_vec();
        let found = blocking::run(limits, doing, move || storages::staged(&drivers));
        self.account(None, Purpose::Look).on_account(found).await
    }

    /// What is wrong with a staged volume, within twice [`PROBE`] whatever hangs: as [`Node::conditions`], and ways to its
    /// device that are missing. While its device cannot be reached nothing that is mounted is touched.
    pub async fn look(
        &self,
        limits: Limits,
        staging: &AbsolutePath,
    ) -> Result<StagedHealth, Error> {
        let soon = || limits.no_later_than(Instant::now() + PROBE);
        let mut found = self.device_conditions(soon(), staging.clone()).await?;
        if !is_away(&found) {
            found = self.conditions(soon(), slice::from_ref(staging)).await?;
        }
        let mut seen = StagedHealth {
            conditions: found,
            lacking: Vec::new(),
        };
        if is_away(&seen.conditions) {
            return Ok(seen);
        }
        let limits = soon();
        if let Some((device, volume)) = self.recorded(&limits, staging).await? {
            let devices = &self.context.devices;
            seen.lacking = devices.lacking(&device, &volume, limits.deadline()).await?;
            if !seen.lacking.is_empty() {
                let count = seen.lacking.len();
                let text = format!("{count} of its sessions or connections are not there");
                let (kind, reason) = (ConditionKind::Degraded, health::PATH_MISSING);
                seen.conditions.add(Condition::new(kind, reason, text));
            }
        }
        Ok(seen)
    }

    /// Opens the ways to the device of a staged volume that are missing, as an attach does, and without a secret. An
    /// error if some still are.
    pub async fn reconnect(&self, limits: Limits, staging: &AbsolutePath) -> Result<(), Error> {
        let Some((device, volume)) = self.recorded(&limits, staging).await? else {
            return Ok(());
        };
        let (devices, deadline) = (&self.context.devices, limits.deadline());
        let lacking = devices.lacking(&device, &volume, deadline).await?;
        if lacking.is_empty() {
            return Ok(());
        }
        let work = async {
            let attached = devices
                .attach(&volume, &StageSecrets::default(), deadline)
                .await;
            // An unstage that comes now waits for the lock of what is attached, and detaches that. One that was over
            // before has left this to us.
            let after = limits.at_least_until(Instant::now() + stage::UNDOING);
            if let Ok(None) = self.recorded(&after, staging).await {
                drop(attached);
                return match devices.facts(&volume) {
                    Some(facts) => devices.detach(&facts, after.deadline()).await,
                    None => Ok(()),
                };
            }
            drop(attached?);
            let left = devices.lacking(&device, &volume, after.deadline()).await?;
            if left.is_empty() {
                return Ok(());
            }
            let (doing, left) = (format!("reconnect `{staging}`"), left.join(", "));
            Err(Error::new(Kind::Unreachable, doing)
                .because(format!("there is still no session or connection by {left}")))
        };
        let source = Source::of_volume(&volume);
        self.account(source, Purpose::Change).on_account(work).await
    }

    /// The device that is mounted at a path, and the volume as it was recorded when it was staged; `None` if that is not
    /// mounted there.
    async fn recorded(
        &self,
        limits: &Limits,
        staging: &AbsolutePath,
    ) -> Result<Option<(BlockDevice, Attachment)>, Error> {
        let doing = Doing::reading(format!("read what is recorded at `{staging}`"));
        let (context, path) = (Arc::clone(&self.context), staging.clone());
        let look = move || {
            let Some(Backing::Device(device)) = topmost(&context.kernel, &path)? else {
                return Ok(None);
            };
            let Some(volume) = record::ways(&path) else {
                return Ok(None);
            };
            let is_volume = context.devices.is_volume(&device, &volume)?;
            Ok(is_volume.then_some((device, volume)))
        };
        let found = blocking::run(limits.clone(), doing, look);
        self.account(None, Purpose::Look).on_account(found).await
    }
}

/// Whether what is wrong is more than that the volume can be used and not as it should.
fn is_away(found: &Conditions) -> bool {
    let worst = found.worst();
    worst.is_some_and(|worst| worst.kind() != ConditionKind::Degraded)
}
