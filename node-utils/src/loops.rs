//! Read-only views of block devices: loop devices on top of them.
//!
//! A bind mount that is read-only does not prevent writing to the device behind a device
//! node, and to make the device itself read-only would take write access from all users. A
//! read-only loop device on top of it is a device of its own, and the kernel refuses every write
//! to it. Each carries the label of the one path that it was made for, by which it is found again
//! after a crash; those of others are never touched. compat: "Raw block volumes".

use std::path::PathBuf;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::device::{BlockDevice, DeviceNumber, Usage, unreadable};
use crate::kernel::{self, Kernel};
use crate::mount::MountTable;
use crate::sys;
use csi_types::error::{Effect, Error, Kind};

/// Others may take a free number before we do.
const ATTEMPTS: usize = 16;

/// The text that begins the name of each of ours.
const OURS: &str = "omnibus-csi:";

/// Who a loop device was made for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Label(String);

/// A loop device that we made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Loop {
    name: String,
    label: Label,
}

// === impl Label ===

impl Label {
    /// Labels with the same hash on one device are distinguished by what is mounted there.
    pub(crate) fn of(path: &str) -> Self {
        let hash = path.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Self(format!("{OURS}{hash:016x}"))
    }

    fn bytes(&self) -> [u8; sys::loops::NAME] {
        let mut name = [0; sys::loops::NAME];
        for (to, from) in name.iter_mut().zip(self.0.bytes()) {
            *to = from;
        }
        name
    }

    fn parse(name: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(name.split(|byte| *byte == 0).next()?).ok()?;
        text.starts_with(OURS).then(|| Self(text.to_owned()))
    }
}

// === impl Loop ===

impl Loop {
    /// The read-only loop device of `device` for `label`; made if it does not exist.
    pub(crate) fn over(
        kernel: &Kernel,
        device: &BlockDevice,
        label: &Label,
    ) -> Result<Self, Error> {
        let known = Self::all_over(kernel, device)?;
        if let Some(known) = known.into_iter().find(|known| known.label == *label) {
            return Ok(known);
        }
        let node = device.node(kernel);
        let failed = |errno: Errno| {
            let doing = format!("make a read-only device of `{}`", node.display());
            let (kind, advice) = match errno {
                Errno::NOENT | Errno::NXIO | Errno::NOTTY | Errno::NODEV => (
                    Kind::Unsupported,
                    "a read-only block volume needs loop devices: the kernel's module `loop` and \
                     Linux 5.8",
                ),
                _ => (Kind::Internal, "a retry is safe"),
            };
            Error::new(kind, doing).because(errno).advise(advice)
        };
        let backing = open(&node).map_err(failed)?;
        let block_size = device
            .attribute(kernel, "queue/logical_block_size")?
            .and_then(|size| size.parse().ok())
            .unwrap_or(0);
        let control = kernel.dev("loop-control");
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let control = rustix::fs::open(&control, flags, Mode::empty()).map_err(failed)?;
        for _ in 0..ATTEMPTS {
            let name = format!("loop{}", sys::loops::free(&control).map_err(failed)?);
            let fd = open(&kernel.dev(&name)).map_err(failed)?;
            match sys::loops::configure(&fd, &backing, label.bytes(), true, block_size) {
                Ok(()) => {
                    let label = label.clone();
                    return Ok(Self { name, label });
                }
                Err(Errno::BUSY) => {}
                Err(errno) => return Err(failed(errno).with_effect(Effect::Possible)),
            }
        }
        Err(failed(Errno::BUSY))
    }

    /// All of ours on top of `device`, of every user.
    pub(crate) fn all_over(kernel: &Kernel, device: &BlockDevice) -> Result<Vec<Self>, Error> {
        Self::all(kernel, |backing| backing == device.node(kernel))
    }

    /// All of ours with this label, on whatever device.
    pub(crate) fn labelled(kernel: &Kernel, label: &Label) -> Result<Vec<Self>, Error> {
        let mut all = Self::all(kernel, |_| true)?;
        all.retain(|found| found.label == *label);
        Ok(all)
    }

    fn all(kernel: &Kernel, wanted: impl Fn(PathBuf) -> bool) -> Result<Vec<Self>, Error> {
        let directory = kernel.sys("block");
        let names = kernel::list(&directory).map_err(|error| unreadable(&directory, error))?;
        let mut found = Vec::new();
        for name in names.into_iter().filter(|name| name.starts_with("loop")) {
            let path = directory.join(&name).join("loop/backing_file");
            let backing = kernel::read(&path).map_err(|error| unreadable(&path, error))?;
            if backing.is_some_and(|backing| wanted(backing.into()))
                && let Some(label) = label_of(kernel, &name)
            {
                found.push(Self { name, label });
            }
        }
        Ok(found)
    }

    /// The device below, if this number is that of a loop device of ours. Others do not
    /// count.
    pub(crate) fn below(
        kernel: &Kernel,
        number: DeviceNumber,
    ) -> Result<Option<(Self, Option<BlockDevice>)>, Error> {
        let Some(device) = BlockDevice::by_number(kernel, number)? else {
            return Ok(None);
        };
        let Some(backing) = device.attribute(kernel, "loop/backing_file")? else {
            return Ok(None);
        };
        let name = device.name().to_owned();
        let Some(label) = label_of(kernel, &name) else {
            return Ok(None);
        };
        let below = BlockDevice::by_path(kernel, backing.as_ref())?;
        Ok(Some((Self { name, label }, below)))
    }

    /// Its device node.
    pub(crate) fn node(&self, kernel: &Kernel) -> PathBuf {
        kernel.dev(&self.name)
    }

    /// Whether it is shown anywhere.
    pub(crate) fn is_shown(&self, kernel: &Kernel) -> Result<bool, Error> {
        let mounts = MountTable::read()
            .map_err(|error| Error::new(Kind::Internal, "read the mount table").because(error))?;
        Ok(self.shown_at(kernel, &mounts)?.is_some())
    }

    /// The place where it is shown.
    pub(crate) fn shown_at(
        &self,
        kernel: &Kernel,
        mounts: &MountTable,
    ) -> Result<Option<PathBuf>, Error> {
        let device = BlockDevice::by_name(kernel, &self.name)?;
        let usage = device.and_then(|device| device.mounted(kernel, mounts));
        Ok(usage.and_then(|usage| match usage {
            Usage::Mounted(path) | Usage::Bound(path) => Some(path),
            Usage::Held(_) | Usage::Claimed => None,
        }))
    }

    /// Lets it see that the device below has grown.
    pub(crate) fn refresh(&self, kernel: &Kernel) -> Result<(), Error> {
        let refreshed = open(&self.node(kernel)).and_then(sys::loops::refresh);
        refreshed.map_err(|errno| {
            Error::new(Kind::Internal, format!("let {} grow", self.name)).because(errno)
        })
    }

    /// Removes it; the kernel waits until the last descriptor is closed.
    pub(crate) fn remove(&self, kernel: &Kernel) -> Result<(), Error> {
        // Checks the owner again: the number may belong to another device now.
        match open(&self.node(kernel)) {
            Ok(fd) if label_of_open(&fd).as_ref() == Some(&self.label) => {
                match sys::loops::clear(&fd) {
                    Ok(()) | Err(Errno::NXIO) => Ok(()),
                    Err(errno) => Err(Error::new(
                        Kind::Internal,
                        format!("take {} away", self.name),
                    )
                    .because(errno)),
                }
            }
            Ok(_) | Err(Errno::NOENT | Errno::NXIO) => Ok(()),
            Err(errno) => {
                Err(Error::new(Kind::Internal, format!("open {}", self.name)).because(errno))
            }
        }
    }
}

fn label_of(kernel: &Kernel, name: &str) -> Option<Label> {
    label_of_open(&open(&kernel.dev(name)).ok()?)
}

fn label_of_open(fd: impl std::os::fd::AsFd) -> Option<Label> {
    Label::parse(&sys::loops::name(fd).ok()?)
}

fn open(path: &std::path::Path) -> Result<std::os::fd::OwnedFd, Errno> {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}
