//! Block devices as sysfs shows them now; nothing is remembered.
//!
//! A device is its number and its name; everything else is read on demand. This module knows only
//! what all disks have in common and what lies on top of them, not iSCSI or NVMe. The source is
//! sysfs(5); every call reads it and must run on a thread that may block.

mod identity;
pub mod multipath;
pub mod scsi;
mod target_lock;
mod usage;
mod wait;

#[cfg(test)]
mod tests;

use std::fmt;
use std::path::{Path, PathBuf};

pub use identity::Identity;
pub(crate) use target_lock::DetachLock;
pub use target_lock::StageLock;
pub use usage::{Usage, zvol_in_use};
pub use wait::until;

use tokio::time::Instant;

use crate::blocking::{self, Doing, Limits};
use crate::kernel::{self, Kernel};
use csi_types::error::{Error, Kind};

/// The unit of `size` in sysfs, whatever the device's own blocks are.
const SECTOR: u64 = 512;

/// Major and minor number of a block device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceNumber {
    /// The number of the driver.
    pub major: u32,
    /// The number of the device.
    pub minor: u32,
}

/// A block device: `sda`, `nvme0n1`, `dm-3`, `zd16`, `loop0`, or a partition.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockDevice {
    number: DeviceNumber,
    name: String,
}

/// The result of attaching a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attached {
    /// The device to mount: the multipath map if there is one, otherwise the disk.
    pub device: BlockDevice,
    /// The disks below it; of a single disk, that disk.
    pub paths: Vec<BlockDevice>,
    /// The volume it is, if the device says so.
    pub identity: Option<Identity>,
}

// === impl DeviceNumber ===

impl DeviceNumber {
    /// From `st_rdev` or `st_dev`.
    pub fn from_raw(raw: u64) -> Self {
        Self {
            major: rustix::fs::major(raw),
            minor: rustix::fs::minor(raw),
        }
    }

    /// Reads `major:minor`.
    pub fn parse(text: &str) -> Option<Self> {
        let (major, minor) = text.trim().split_once(':')?;
        Some(Self {
            major: major.parse().ok()?,
            minor: minor.parse().ok()?,
        })
    }
}

impl fmt::Display for DeviceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

impl From<(u32, u32)> for DeviceNumber {
    fn from((major, minor): (u32, u32)) -> Self {
        Self { major, minor }
    }
}

// === impl BlockDevice ===

impl BlockDevice {
    /// The device with this number, if there is one.
    pub fn by_number(kernel: &Kernel, number: DeviceNumber) -> Result<Option<Self>, Error> {
        let link = kernel.sys("dev/block").join(number.to_string());
        let target = match std::fs::read_link(&link) {
            Err(error) if kernel::is_absence(&error) => return Ok(None),
            result => result.map_err(|error| unreadable(&link, error))?,
        };
        let name = target.file_name().and_then(|name| name.to_str());
        let name = name.ok_or_else(|| not_understood(&link))?.to_owned();
        Ok(Some(Self { number, name }))
    }

    /// The device with this name in the kernel, if there is one.
    pub fn by_name(kernel: &Kernel, name: &str) -> Result<Option<Self>, Error> {
        if name.is_empty() || name.contains('/') || name == "." || name == ".." {
            return Ok(None);
        }
        let path = kernel.sys("class/block").join(name).join("dev");
        let Some(text) = kernel::read(&path).map_err(|error| unreadable(&path, error))? else {
            return Ok(None);
        };
        let number = DeviceNumber::parse(&text).ok_or_else(|| not_understood(&path))?;
        let name = name.to_owned();
        Ok(Some(Self { number, name }))
    }

    /// The device that a path stands for, links followed: `/dev/sda`, a link of udev, or a device
    /// node that was bound somewhere. `None` if there is nothing, or something else.
    pub fn by_path(kernel: &Kernel, path: &Path) -> Result<Option<Self>, Error> {
        let number = kernel.device_number(path);
        match number.map_err(|error| unreadable(path, error))? {
            Some(number) => Self::by_number(kernel, number),
            None => Ok(None),
        }
    }

    /// Its number.
    pub fn number(&self) -> DeviceNumber {
        self.number
    }

    /// Its name in the kernel.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its device node. Whether it is there already is another question: see
    /// [`BlockDevice::has_node`].
    pub fn node(&self, kernel: &Kernel) -> PathBuf {
        // The kernel's way to write a slash in a name.
        kernel.dev(self.name.replace('!', "/"))
    }

    /// Whether its device node is there and really is this device's.
    pub fn has_node(&self, kernel: &Kernel) -> Result<bool, Error> {
        let path = self.node(kernel);
        let number = kernel.device_number(&path);
        Ok(number.map_err(|error| unreadable(&path, error))? == Some(self.number))
    }

    /// Whether a device of this number and name is still there. A name alone may have passed on to
    /// another device.
    pub fn exists(&self, kernel: &Kernel) -> Result<bool, Error> {
        Ok(Self::by_name(kernel, &self.name)?.as_ref() == Some(self))
    }

    /// Its directory in sysfs.
    pub fn directory(&self, kernel: &Kernel) -> PathBuf {
        kernel.sys("class/block").join(&self.name)
    }

    /// One of its attributes, such as `size` or `device/state`; `None` if it has none such.
    pub fn attribute(&self, kernel: &Kernel, name: &str) -> Result<Option<String>, Error> {
        let path = self.directory(kernel).join(name);
        kernel::read(&path).map_err(|error| unreadable(&path, error))
    }

    /// Its size in bytes. An error if the device is gone.
    pub fn size(&self, kernel: &Kernel) -> Result<u64, Error> {
        let sectors = self
            .attribute(kernel, "size")?
            .ok_or_else(|| self.is_gone("read the size of"))?;
        let bytes = sectors
            .parse::<u64>()
            .ok()
            .and_then(|n| n.checked_mul(SECTOR));
        bytes.ok_or_else(|| not_understood(&self.directory(kernel).join("size")))
    }

    /// Whether the kernel refuses to write to it. An error if the device is gone.
    pub fn read_only(&self, kernel: &Kernel) -> Result<bool, Error> {
        let flag = self.attribute(kernel, "ro")?;
        Ok(flag.ok_or_else(|| self.is_gone("read the state of"))? != "0")
    }

    /// Whether it is written zone by zone, as shingled disks are. Older kernels do not say.
    pub fn is_zoned(&self, kernel: &Kernel) -> Result<bool, Error> {
        let model = self.disk(kernel)?.attribute(kernel, "queue/zoned")?;
        Ok(model.is_some_and(|model| model != "none"))
    }

    /// Of a partition, its number on the disk.
    pub fn partition_number(&self, kernel: &Kernel) -> Result<Option<u32>, Error> {
        if let Some(number) = self.attribute(kernel, "partition")? {
            return Ok(number.parse().ok());
        }
        // The kernel knows no partitions of a map: kpartx makes a map of each, and says so.
        let Some(uuid) = self.attribute(kernel, "dm/uuid")? else {
            return Ok(None);
        };
        let number = uuid
            .strip_prefix("part")
            .and_then(|rest| rest.split_once('-'));
        Ok(number.and_then(|(number, _)| number.parse().ok()))
    }

    /// Of a partition, the disk it is on; a disk is its own.
    pub fn disk(&self, kernel: &Kernel) -> Result<Self, Error> {
        if self.partition_number(kernel)?.is_none() {
            return Ok(self.clone());
        }
        if let Some(map) = self.slaves(kernel)?.into_iter().next() {
            return Ok(map);
        }
        let directory = self.directory(kernel);
        let real = std::fs::canonicalize(&directory);
        let real = real.map_err(|error| unreadable(&directory, error))?;
        let parent = real.parent().and_then(Path::file_name);
        let name = parent.and_then(|name| name.to_str()).unwrap_or_default();
        Self::by_name(kernel, name)?.ok_or_else(|| self.is_gone("find the disk of"))
    }

    /// Its partitions, by number.
    pub fn partitions(&self, kernel: &Kernel) -> Result<Vec<Self>, Error> {
        let mut candidates = self.holders(kernel)?;
        let directory = self.directory(kernel);
        for name in kernel::list(&directory).map_err(|error| unreadable(&directory, error))? {
            // Partitions are named after their disk; most of the other entries are attributes.
            if name.starts_with(&self.name) {
                candidates.extend(Self::by_name(kernel, &name)?);
            }
        }
        let mut numbered = Vec::new();
        for candidate in candidates {
            if let Some(number) = candidate.partition_number(kernel)? {
                numbered.push((number, candidate));
            }
        }
        numbered.sort_unstable();
        Ok(numbered
            .into_iter()
            .map(|(_, partition)| partition)
            .collect())
    }

    /// The devices that lie directly on top of it: maps of the device mapper, software RAID.
    pub fn holders(&self, kernel: &Kernel) -> Result<Vec<Self>, Error> {
        self.listed(kernel, "holders")
    }

    /// The devices that it lies directly on.
    pub fn slaves(&self, kernel: &Kernel) -> Result<Vec<Self>, Error> {
        self.listed(kernel, "slaves")
    }

    fn listed(&self, kernel: &Kernel, relation: &str) -> Result<Vec<Self>, Error> {
        let directory = self.directory(kernel).join(relation);
        let names = kernel::list(&directory).map_err(|error| unreadable(&directory, error))?;
        let mut devices = Vec::with_capacity(names.len());
        for name in names {
            // One that vanished between two reads is no longer related.
            devices.extend(Self::by_name(kernel, &name)?);
        }
        Ok(devices)
    }

    /// The error for a device that is gone.
    pub(crate) fn is_gone(&self, doing: &str) -> Error {
        Error::new(Kind::Unreachable, format!("{doing} {self}"))
            .advise("the device has disappeared; a retry attaches it again")
    }
}

impl fmt::Display for BlockDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// Writes an attribute on a thread that may block; `false` if it, or its device, is gone.
pub(crate) async fn set(
    path: PathBuf,
    text: &'static str,
    deadline: Instant,
) -> Result<bool, Error> {
    let doing = format!("write {text} to `{}`", path.display());
    let work = {
        let doing = doing.clone();
        move || {
            let failed = |error| Error::new(Kind::Internal, doing).because(error);
            kernel::write(&path, text).map_err(failed)
        }
    };
    blocking::run(Limits::until(deadline), Doing::changing(doing), work).await
}

/// Reads the state of the kernel once, on a thread that may block.
pub(crate) async fn look<T: Send + 'static>(
    deadline: Instant,
    doing: &str,
    look: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    blocking::run(
        Limits::until(deadline),
        Doing::reading(doing.to_owned()),
        look,
    )
    .await
}

pub(crate) fn unreadable(path: &Path, error: std::io::Error) -> Error {
    Error::new(Kind::Internal, format!("read `{}`", path.display())).because(error)
}

pub(crate) fn not_understood(path: &Path) -> Error {
    let doing = format!("understand what the kernel says in `{}`", path.display());
    Error::new(Kind::Internal, doing)
}
