//! The seam between the verbs and what knows filesystems.
//!
//! The verbs mount and unmount; what is on a device, how it is made, checked and grown is behind
//! [`Filesystems`]. A device that holds anything but one known filesystem, or that cannot be read,
//! is never written to: that is the promise of whoever is behind it.

use std::fmt;

use async_trait::async_trait;
use tokio::time::Instant;

use crate::attachment::AbsolutePath;
use crate::capability::FsType;
use crate::device::BlockDevice;
use crate::error::{Error, Kind};

/// A filesystem on a device, ready to be mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ready {
    /// What to mount: the disk, or a partition of it.
    pub(super) device: BlockDevice,
    /// What is on it, whatever was asked for.
    pub(super) kind: FsType,
}

/// What is known about filesystems.
#[async_trait]
pub(super) trait Filesystems: fmt::Debug + Send + Sync {
    /// Finds the filesystem on the device; makes the wanted one if there is provably nothing, and
    /// checks it if the operator wants that.
    async fn prepare(
        &self,
        device: &BlockDevice,
        wanted: Option<&FsType>,
        deadline: Instant,
    ) -> Result<Ready, Error>;

    /// Finds the filesystem on the device and changes nothing.
    async fn find(&self, device: &BlockDevice, deadline: Instant) -> Result<Ready, Error>;

    /// Grows the filesystem that is mounted at `path` to the size of its device, and before that
    /// the partition it may be on to the size of its disk.
    async fn grow(
        &self,
        device: &BlockDevice,
        path: &AbsolutePath,
        deadline: Instant,
    ) -> Result<(), Error>;
}

/// Of this build: nothing is known about filesystems on devices.
#[derive(Debug)]
pub(super) struct Unknown;

// === impl Ready ===

impl Ready {
    /// What the kernel calls it.
    pub(super) fn in_kernel(&self) -> &str {
        match self.kind.as_str() {
            "ntfs" => "ntfs3",
            kind => kind,
        }
    }

    /// Whether its files belong to nobody, so that a mount option says to which group they do.
    pub(super) fn takes_group(&self) -> bool {
        matches!(self.kind.as_str(), "vfat" | "exfat" | "ntfs")
    }

    /// Whether a copy of it may be mounted beside it only if it is told not to mind.
    pub(super) fn minds_its_twin(&self) -> bool {
        self.kind.as_str() == "xfs"
    }
}

// === impl Unknown ===

fn unknown(device: &BlockDevice) -> Error {
    Error::new(Kind::Unsupported, format!("use a filesystem on {device}"))
        .advise("this build serves such volumes as raw devices only")
}

#[async_trait]
impl Filesystems for Unknown {
    async fn prepare(
        &self,
        device: &BlockDevice,
        _: Option<&FsType>,
        _: Instant,
    ) -> Result<Ready, Error> {
        Err(unknown(device))
    }

    async fn find(&self, device: &BlockDevice, _: Instant) -> Result<Ready, Error> {
        Err(unknown(device))
    }

    async fn grow(&self, device: &BlockDevice, _: &AbsolutePath, _: Instant) -> Result<(), Error> {
        Err(unknown(device))
    }
}
