//! Namespaces: the disks of a subsystem, and a refresh of their size.
//!
//! With native multipath the kernel joins the paths itself: the disk hangs below the subsystem, and
//! the paths are hidden disks with a `c` in their name. Without it each controller has a disk of
//! its own. The number in a disk's name is not the number of the namespace.

use std::time::Duration;

use futures_util::future::try_join_all;
use tokio::time::Instant;

use super::NvmeFacts;
use super::controller::{Controller, State};
use crate::device::{BlockDevice, look, multipath, set, unreadable, until};
use crate::kernel::{self, Kernel};
use crate::tools::Tools;
use csi_types::attachment::{Nqn, Nsid};
use csi_types::error::{Error, Kind};

/// The time that a scan may take to show a new size. The kernel scans in the background, one command to
/// the target for each namespace.
const SCAN: Duration = Duration::from_secs(10);

/// The time to wait for a new size that was not announced. A target that announces sizes has done so by then.
const MAYBE: Duration = Duration::from_secs(1);

/// One disk of a subsystem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Namespace {
    pub(super) device: BlockDevice,
    pub(super) nsid: u32,
    /// Whether the kernel joins the paths to it.
    pub(super) is_joined: bool,
}

// === impl Namespace ===

impl Namespace {
    /// The disks of a subsystem, by the numbers of their namespaces.
    pub(super) fn of(kernel: &Kernel, nqn: &Nqn) -> Result<Vec<Self>, Error> {
        let mut found = Vec::new();
        for (name, is_joined) in entries(kernel, nqn)? {
            if is_disk(&name) {
                found.extend(Self::read(kernel, &name, is_joined)?);
            }
        }
        found.sort_unstable_by(|a, b| (a.nsid, &a.device).cmp(&(b.nsid, &b.device)));
        Ok(found)
    }

    fn read(kernel: &Kernel, name: &str, is_joined: bool) -> Result<Option<Self>, Error> {
        let Some(device) = BlockDevice::by_name(kernel, name)? else {
            return Ok(None);
        };
        let nsid = device.attribute(kernel, "nsid")?;
        Ok(nsid.and_then(|nsid| nsid.parse().ok()).map(|nsid| Self {
            device,
            nsid,
            is_joined,
        }))
    }
}

/// The names of the disks of a volume, hidden paths as well: the disk over the paths first, if there is one.
pub(super) fn disks_and_paths(kernel: &Kernel, facts: &NvmeFacts) -> Result<Vec<String>, Error> {
    let mut names = Vec::new();
    for (name, _) in entries(kernel, facts.nqn())? {
        if !is_disk(&name) && !is_path(&name) {
            continue;
        }
        let path = kernel.sys("class/block").join(&name).join("nsid");
        let nsid = kernel::read(&path).map_err(|error| unreadable(&path, error))?;
        if nsid.is_some_and(|nsid| nsid == facts.nsid().to_string()) {
            names.push(name);
        }
    }
    Ok(names)
}

/// The names in the directory of a subsystem, for which the second is true, then those in the directories of its
/// controllers.
fn entries(kernel: &Kernel, nqn: &Nqn) -> Result<Vec<(String, bool)>, Error> {
    let mut found = Vec::new();
    for (class, is_joined) in [("class/nvme-subsystem", true), ("class/nvme", false)] {
        let class = kernel.sys(class);
        for name in kernel::list(&class).map_err(|error| unreadable(&class, error))? {
            let directory = class.join(name);
            let path = directory.join("subsysnqn");
            let ours = kernel::read(&path).map_err(|error| unreadable(&path, error))?;
            if ours.as_deref() != Some(nqn.as_str()) {
                continue;
            }
            let names = kernel::list(&directory);
            let names = names.map_err(|error| unreadable(&directory, error))?;
            found.extend(names.into_iter().map(|name| (name, is_joined)));
        }
    }
    Ok(found)
}

/// Whether this is the name of a disk, `nvme0n1`, and not of a hidden path, `nvme0c1n1`, or of a
/// partition.
fn is_disk(name: &str) -> bool {
    name.strip_prefix("nvme")
        .and_then(|rest| rest.split_once('n'))
        .is_some_and(|(left, right)| is_number(left) && is_number(right))
}

/// Whether this is the name of a hidden path.
fn is_path(name: &str) -> bool {
    name.strip_prefix("nvme")
        .and_then(|rest| rest.split_once('c'))
        .and_then(|(disk, rest)| Some((disk, rest.split_once('n')?)))
        .is_some_and(|(disk, (left, right))| [disk, left, right].into_iter().all(is_number))
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// The volume that a disk, a partition of it or a map over it shows, if it came over a network.
pub fn facts_of(kernel: &Kernel, device: &BlockDevice) -> Result<Option<NvmeFacts>, Error> {
    let mut disk = device.disk(kernel)?;
    if disk.is_multipath_map(kernel)? {
        match disk.slaves(kernel)?.into_iter().next() {
            Some(path) => disk = path,
            None => return Ok(None),
        }
    }
    if !is_disk(disk.name()) {
        return Ok(None);
    }
    // Both a subsystem and a controller say to which subsystem they belong.
    let (Some(nqn), Some(nsid)) = (
        disk.attribute(kernel, "device/subsysnqn")?,
        disk.attribute(kernel, "nsid")?,
    ) else {
        return Ok(None);
    };
    let (Ok(nqn), Ok(nsid)) = (Nqn::parse(&nqn), Nsid::parse(&nsid)) else {
        return Ok(None);
    };
    let over_network = !Controller::of(kernel, &nqn)?.is_empty();
    Ok(over_network.then_some(NvmeFacts { nqn, nsid }))
}

/// Makes the kernel refresh the size of the volume, and returns it. Waits for
/// `at_least` if it was announced; the caller checks the result.
pub async fn rescan(
    tools: &Tools,
    kernel: &Kernel,
    device: &BlockDevice,
    at_least: Option<u64>,
    deadline: Instant,
) -> Result<u64, Error> {
    let doing = format!("ask for the size of {device} anew");
    let (of, kernel_of) = (device.clone(), kernel.clone());
    let (before, controllers) = look(deadline, &doing, move || {
        let facts = facts_of(&kernel_of, &of)?.ok_or_else(|| of.is_gone("find the target of"))?;
        let controllers = Controller::of(&kernel_of, facts.nqn())?;
        Ok((of.size(&kernel_of)?, controllers))
    })
    .await?;
    ask_all(kernel, &controllers, deadline).await?;
    let is_map = {
        let (of, kernel_of) = (device.clone(), kernel.clone());
        look(deadline, &doing, move || of.is_multipath_map(&kernel_of)).await?
    };
    let patience = if at_least.is_some() { SCAN } else { MAYBE };
    let grown = {
        let (of, kernel_of) = (device.clone(), kernel.clone());
        move || {
            let disks = if is_map {
                of.slaves(&kernel_of)?
            } else {
                vec![of.clone()]
            };
            let mut size = u64::MAX;
            for disk in disks {
                size = size.min(disk.size(&kernel_of)?);
            }
            let done = at_least.map_or(size != before, |wanted| size >= wanted);
            Ok(done.then_some(()))
        }
    };
    until(deadline.min(Instant::now() + patience), &doing, grown).await?;
    if is_map {
        multipath::resize(tools.host(), kernel, device, deadline).await?;
    }
    let (of, kernel_of) = (device.clone(), kernel.clone());
    look(deadline, &doing, move || of.size(&kernel_of)).await
}

/// Makes these controllers rescan their subsystem. One that is connecting rescans by itself afterwards.
pub(super) async fn ask_all(
    kernel: &Kernel,
    controllers: &[Controller],
    deadline: Instant,
) -> Result<(), Error> {
    let live = controllers
        .iter()
        .filter(|controller| controller.state == State::Live);
    let asked = live.map(|controller| {
        let path = controller.directory(kernel).join("rescan_controller");
        set(path, "1", deadline)
    });
    if try_join_all(asked).await?.contains(&true) {
        return Ok(());
    }
    Err(
        Error::new(Kind::Unreachable, "ask the target what it offers")
            .advise("no connection to it works at the moment; the kernel keeps trying"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_paths_partitions_and_character_devices_are_no_disks() {
        for name in ["nvme0n1", "nvme12n345"] {
            assert!(is_disk(name) && !is_path(name), "{name}");
        }
        for name in ["nvme0c0n1", "nvme12c3n45"] {
            assert!(is_path(name) && !is_disk(name), "{name}");
        }
        for name in [
            "nvme0",
            "nvme0n1p1",
            "nvme0c0n1p1",
            "nvme0cn1",
            "nvmec0n1",
            "nvme0c0",
            "ng0n1",
            "ng0c0n1",
            "nvmen1",
            "nvme0n",
            "sda",
            "",
        ] {
            assert!(!is_disk(name) && !is_path(name), "{name}");
        }
    }
}
