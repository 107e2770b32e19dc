//! The seam between the verbs and the ways in which a device comes to this node and goes.
//!
//! The verbs know filesystems, mounts and records; who logs in, connects and scans is behind
//! [`Devices`]. What a detach needs is a line of text, [`Facts`], which outlives the process in
//! the staging record and can be read from sysfs as well.

mod real;

use std::fmt;

use async_trait::async_trait;
use tokio::time::Instant;

use crate::device::{Attached, BlockDevice};
use csi_types::attachment::{Attachment, ZfsLocal};
use csi_types::error::Error;
use csi_types::secrets::StageSecrets;

pub(super) use real::Attachers;

/// What is needed to detach a volume: one line, which begins with the kind of attachment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Facts(String);

/// How devices come and go.
#[async_trait]
pub(super) trait Devices: fmt::Debug + Send + Sync {
    /// Whether the device of a zvol of this node is to be seen. May block.
    fn shows_zvol(&self, zvol: &ZfsLocal) -> Result<bool, Error>;

    /// What a detach of this volume needs, known before it is attached; `None` for a kind that
    /// leaves nothing to detach.
    fn facts(&self, volume: &Attachment) -> Option<Facts>;

    /// The same of a device that is there, from sysfs alone; `None` for one that no attachment
    /// brought. May block.
    fn facts_of(&self, device: &BlockDevice) -> Result<Option<Facts>, Error>;

    /// Whether a device that is there is this volume, from sysfs alone. May block.
    fn is_volume(&self, device: &BlockDevice, volume: &Attachment) -> Result<bool, Error>;

    /// Whether an attachment brought this device, so that what is on it is a volume. May block.
    fn brings(&self, device: &BlockDevice) -> Result<bool, Error> {
        Ok(self.facts_of(device)?.is_some())
    }

    /// What attaching and detaching must not be done at the same time for: the volumes of one
    /// target share its session.
    fn target<'a>(&self, facts: &'a Facts) -> &'a str;

    /// Brings the volume's device to this node. Idempotent.
    async fn attach(
        &self,
        volume: &Attachment,
        secrets: &StageSecrets,
        deadline: Instant,
    ) -> Result<Attached, Error>;

    /// Takes the device away, and the session unless others need it. What is gone is detached. An
    /// error as long as the device is in use.
    async fn detach(&self, facts: &Facts, deadline: Instant) -> Result<(), Error>;

    /// Lets the kernel see the size that the device has now, and waits for `at_least` if that was
    /// promised; that it does not come is for the caller to judge.
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
