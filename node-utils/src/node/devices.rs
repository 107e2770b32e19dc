//! The interface between the verbs and the protocols that attach a device to this node.
//!
//! The verbs know filesystems, mounts and records; login, connect and scan are behind [`Devices`]. A
//! detach needs a line of text, [`Facts`], which survives the process in the staging record and can be
//! read from sysfs as well.

mod real;

use std::fmt;

use async_trait::async_trait;
use tokio::time::Instant;

use crate::device::{Attached, BlockDevice, StageLock};
use csi_types::attachment::{Attachment, ZfsLocal};
use csi_types::error::Error;
use csi_types::secrets::StageSecrets;

pub(super) use real::Attachers;

/// The facts that are needed to detach a volume: one line, which begins with the kind of attachment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Facts(String);

/// Attaches and detaches devices.
#[async_trait]
pub(super) trait Devices: fmt::Debug + Send + Sync {
    /// Whether the device of a zvol of this node exists. May block.
    fn shows_zvol(&self, zvol: &ZfsLocal) -> Result<bool, Error>;

    /// The facts that a detach of this volume needs, known before it is attached; `None` for a kind
    /// without a detach.
    fn facts(&self, volume: &Attachment) -> Option<Facts>;

    /// The same for an existing device, from sysfs alone; `None` if no attachment made it. May block.
    fn facts_of(&self, device: &BlockDevice) -> Result<Option<Facts>, Error>;

    /// Whether an existing device is this volume, from sysfs alone. May block.
    fn is_volume(&self, device: &BlockDevice, volume: &Attachment) -> Result<bool, Error>;

    /// Whether an attachment made this device, so that its content is a volume. May block.
    fn brings(&self, device: &BlockDevice) -> Result<bool, Error> {
        Ok(self.facts_of(device)?.is_some())
    }

    /// Attaches the volume's device to this node, with its device node. Idempotent. What it shares with other volumes
    /// is not detached while the lock is held.
    async fn attach(
        &self,
        volume: &Attachment,
        secrets: &StageSecrets,
        deadline: Instant,
    ) -> Result<(Attached, Option<StageLock>), Error>;

    /// The addresses of a volume in use by which it has no way beside one that works, which an attach opens again. From
    /// sysfs alone.
    async fn lacking(
        &self,
        device: &BlockDevice,
        volume: &Attachment,
        deadline: Instant,
    ) -> Result<Vec<String>, Error>;

    /// Removes the device, and closes the session unless others need it. Idempotent. An error while the
    /// device is in use.
    async fn detach(&self, facts: &Facts, deadline: Instant) -> Result<(), Error>;

    /// Makes the kernel refresh the size of the device, and waits for `at_least` if given. The caller
    /// checks the result.
    async fn rescan(
        &self,
        device: &BlockDevice,
        at_least: Option<u64>,
        deadline: Instant,
    ) -> Result<(), Error>;
}

// === impl Facts ===

impl Facts {
    /// Reads one line; `None` if it cannot be one.
    pub(super) fn parse(line: &str) -> Option<Self> {
        let is_bad = |c: char| c.is_control();
        (!line.trim().is_empty() && !line.contains(is_bad)).then(|| Self(line.to_owned()))
    }

    /// The line.
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Facts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
