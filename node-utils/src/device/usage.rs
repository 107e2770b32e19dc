//! Whether a device is in use, and how.

use std::fmt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use tokio::time::Instant;

use super::{BlockDevice, DeviceNumber, unreadable};
use crate::blocking::{self, Doing, Limits};
use crate::kernel::{self, Kernel};
use crate::mount::{MountEntry, MountTable};
use csi_types::attachment::DatasetName;
use csi_types::error::{Error, Kind};

/// The user of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Usage {
    /// A filesystem on it, or on one of its partitions, is mounted here.
    Mounted(PathBuf),
    /// Its device node is shown here, as block volumes are.
    Bound(PathBuf),
    /// This device lies on top of it.
    Held(BlockDevice),
    /// It is claimed: mounted in another namespace, used as swap, being formatted.
    Claimed,
}

/// The way a zvol of this node is used; `None` if it is not. `NotFound`: the node shows no device of it, so that nothing is
/// known of its users.
pub async fn zvol_in_use(
    kernel: &Kernel,
    zvol: &DatasetName,
    deadline: Instant,
) -> Result<Option<Usage>, Error> {
    let doing = format!("look for users of the zvol `{zvol}`");
    let work = {
        let (kernel, doing) = (kernel.clone(), doing.clone());
        let path = kernel.dev("zvol").join(zvol.as_str());
        move || {
            let device = BlockDevice::by_path(&kernel, &path)?.ok_or_else(|| {
                Error::not_found(doing.as_str())
                    .because(format!("there is no device {}", path.display()))
                    .advise("is its pool imported here, and its volmode other than none?")
            })?;
            let failed = |error| Error::new(Kind::Internal, doing.as_str()).because(error);
            let mounts = MountTable::read().map_err(failed)?;
            device.in_use(&kernel, &mounts)
        }
    };
    blocking::run(Limits::until(deadline), Doing::reading(doing), work).await
}

// === impl Usage ===

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mounted(path) => write!(f, "mounted at `{}`", path.display()),
            Self::Bound(path) => write!(f, "shown as a device at `{}`", path.display()),
            Self::Held(holder) => write!(f, "held by {holder}"),
            Self::Claimed => f.write_str("claimed by the kernel or another process"),
        }
    }
}

impl BlockDevice {
    /// The way the device or one of its partitions is used; `None` if it is not. Opens the device, which
    /// can block as long as it does not answer.
    pub fn in_use(&self, kernel: &Kernel, mounts: &MountTable) -> Result<Option<Usage>, Error> {
        let mut devices = self.partitions(kernel)?;
        devices.push(self.clone());
        for device in &devices {
            if let Some(usage) = device.mounted(kernel, mounts) {
                return Ok(Some(usage));
            }
            let mut holders = device.holders(kernel)?.into_iter();
            // A partition map lies on its disk, but is asked itself.
            if let Some(holder) = holders.find(|holder| !devices.contains(holder)) {
                return Ok(Some(Usage::Held(holder)));
            }
            if let Some(above) = device.loop_above(kernel)? {
                return Ok(Some(Usage::Held(above)));
            }
        }
        for device in &devices {
            // A device with partition maps is claimed by them, and they were checked.
            let is_below = devices
                .iter()
                .any(|other| other != device && device.is_below(kernel, other));
            if !is_below && device.is_claimed(kernel)? {
                return Ok(Some(Usage::Claimed));
            }
        }
        Ok(None)
    }

    /// A loop device on top of it, which sysfs does not list among the holders and which claims
    /// nothing.
    fn loop_above(&self, kernel: &Kernel) -> Result<Option<Self>, Error> {
        let directory = kernel.sys("block");
        let names = kernel::list(&directory).map_err(|error| unreadable(&directory, error))?;
        let node = self.node(kernel);
        for name in names.iter().filter(|name| name.starts_with("loop")) {
            let path = directory.join(name).join("loop/backing_file");
            let backing = kernel::read(&path).map_err(|error| unreadable(&path, error))?;
            if backing.is_some_and(|backing| Path::new(&backing) == node) {
                return Self::by_name(kernel, name);
            }
        }
        Ok(None)
    }

    fn is_below(&self, kernel: &Kernel, other: &Self) -> bool {
        self.holders(kernel)
            .is_ok_and(|holders| holders.contains(other))
    }

    /// The place where this very device is mounted, or its node bound.
    pub fn mounted(&self, kernel: &Kernel, mounts: &MountTable) -> Option<Usage> {
        let node = self.node(kernel);
        mounts.entries().find_map(|entry| {
            if DeviceNumber::from(entry.device) == self.number {
                return Some(Usage::Mounted(entry.point().into_owned()));
            }
            // btrfs shows a number of its own; its source is the device it was mounted by.
            if entry.fs_type() == "btrfs" && Path::new(&*entry.source()) == node {
                return Some(Usage::Mounted(entry.point().into_owned()));
            }
            self.is_bound_by(kernel, &entry)
                .then(|| Usage::Bound(entry.point().into_owned()))
        })
    }

    /// Whether this mount shows the device's node and nothing else.
    fn is_bound_by(&self, kernel: &Kernel, entry: &MountEntry<'_>) -> bool {
        let name = self.name.replace('!', "/");
        if !entry.root().ends_with(&name) || entry.is_deleted() {
            return false;
        }
        match &*entry.fs_type() {
            "devtmpfs" => true,
            // A `/dev` that a container runtime made. Reading it cannot block.
            "tmpfs" => {
                let number = kernel.device_number(&entry.point());
                number.is_ok_and(|number| number == Some(self.number))
            }
            _ => false,
        }
    }

    /// Whether the kernel refuses it to us for ourselves alone. The open is for reading and ends at
    /// once: it changes nothing and makes udev look at nothing.
    pub(crate) fn is_claimed(&self, kernel: &Kernel) -> Result<bool, Error> {
        let node = self.node(kernel);
        if !self.has_node(kernel)? {
            // Without a node it cannot be opened; sysfs was checked already.
            return Ok(false);
        }
        let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::NONBLOCK | OFlags::CLOEXEC;
        match rustix::fs::open(&node, flags, Mode::empty()) {
            Err(Errno::BUSY) => Ok(true),
            // The errors: no disk behind the node any more, or one that is being taken away.
            Ok(_) | Err(Errno::NOENT | Errno::NXIO | Errno::NODEV | Errno::NOMEDIUM) => Ok(false),
            Err(errno) => Err(unreadable(&node, errno.into())),
        }
    }
}
