//! Several paths to one disk as one device: the maps of the host's multipath daemon.
//!
//! The daemon makes the maps; we find them in sysfs by their uuid, wait for them, and ask the
//! daemon to resize or remove them. LVM and encryption make maps too, which are not ours to touch.
//! Whether something was done is read from sysfs; the daemon's words are only for messages.

mod daemon;
#[cfg(test)]
mod tests;

use std::time::Duration;

use exec::{Command, Program, Runner};
use tokio::time::Instant;
use tracing::warn;

pub use daemon::Daemon;

use super::{BlockDevice, Identity, look, unreadable, until};
use crate::kernel::{self, Kernel};
use crate::mount::MountTable;
use csi_types::backoff::Backoff;
use csi_types::error::{Effect, Error, Kind};

const MULTIPATH: Program = Program::constant("multipath");

/// The time that udev may take to say what it thinks of a disk. It needs milliseconds where it runs.
const UDEV: Duration = Duration::from_secs(3);

/// The time that the daemon may take to make a map. It needs a second or two; on a busy host where every
/// volume is attached at once after a reboot, many.
const MAP: Duration = Duration::from_secs(30);

/// The time to retry while a map is held open: udev reads a device after each unmount.
const RETRY_PERIOD: Duration = Duration::from_secs(5);

/// The map over these disks, if there is one. Disks in two maps are two volumes, and an error.
pub fn map_over(kernel: &Kernel, paths: &[BlockDevice]) -> Result<Option<BlockDevice>, Error> {
    let mut found: Option<BlockDevice> = None;
    for path in paths {
        for holder in path.holders(kernel)? {
            if !holder.is_multipath_map(kernel)? {
                continue;
            }
            match &found {
                Some(map) if *map != holder => {
                    let doing = format!("find the multipath map over {}", names(paths));
                    return Err(Error::new(Kind::Internal, doing)
                        .advise(format!("they are in two maps, {map} and {holder}")));
                }
                _ => found = Some(holder),
            }
        }
    }
    Ok(found)
}

/// What all these disks say they are. Two that say different things are two volumes, and an error.
pub fn identity_of(kernel: &Kernel, paths: &[BlockDevice]) -> Result<Option<Identity>, Error> {
    let mut known: Option<Identity> = None;
    for path in paths {
        let Some(identity) = path.wwid(kernel)? else {
            continue;
        };
        match &known {
            Some(other) if *other != identity => {
                let doing = format!("compare the volumes behind {}", names(paths));
                return Err(Error::new(Kind::Internal, doing).advise(format!(
                    "the portals show different volumes, {other} and {identity}"
                )));
            }
            _ => known = Some(identity),
        }
    }
    Ok(known)
}

/// The one device to use for these disks, which are paths to one volume: the map if there is or is
/// going to be one.
///
/// Without a multipath daemon it is one of the disks: the volume works and lives as long as that
/// path. With one, several disks are waited for to become a map: using one of them
/// directly would prevent the daemon from making it.
pub async fn assemble(
    kernel: &Kernel,
    paths: &[BlockDevice],
    deadline: Instant,
) -> Result<BlockDevice, Error> {
    let doing = format!("find the device over {}", names(paths));
    let first = {
        let (kernel, paths) = (kernel.clone(), paths.to_vec());
        move || First::look(&kernel, &paths)
    };
    let First { map, daemon, disk } = look(deadline, &doing, first).await?;
    if let Some(map) = map {
        return Ok(map);
    }
    let disk = disk.ok_or_else(|| Error::new(Kind::Internal, doing.clone()))?;
    if daemon == Daemon::Absent {
        if paths.len() > 1 {
            warn!(%disk, paths = %names(paths), "no multipath daemon runs on this host: only one path is used");
        }
        return Ok(disk);
    }
    if paths.len() == 1 && !is_claimed(kernel, &disk, deadline).await? {
        return Ok(disk);
    }
    let soon = deadline.min(Instant::now() + MAP);
    let search = {
        let (kernel, paths) = (kernel.clone(), paths.to_vec());
        move || map_over(&kernel, &paths)
    };
    until(soon, &doing, search).await?.ok_or_else(|| {
        Error::new(Kind::Timeout, doing).advise(
            "the host's multipath daemon has not made a map of them; do `find_multipaths` and the \
             blacklist in its configuration allow it?",
        )
    })
}

/// The state before any wait.
struct First {
    map: Option<BlockDevice>,
    daemon: Daemon,
    disk: Option<BlockDevice>,
}

impl First {
    fn look(kernel: &Kernel, paths: &[BlockDevice]) -> Result<Self, Error> {
        let mounts = MountTable::read();
        let mounts = mounts.map_err(|error| unreadable(&kernel.proc("self/mountinfo"), error))?;
        // One that is mounted already stays the one, whichever order the portals have today.
        let in_use = paths
            .iter()
            .find(|path| path.mounted(kernel, &mounts).is_some());
        Ok(Self {
            map: map_over(kernel, paths)?,
            daemon: Daemon::find(kernel)?,
            disk: in_use.or(paths.first()).cloned(),
        })
    }
}

/// Whether udev says that the daemon takes this disk, as it may do with a single path too.
async fn is_claimed(kernel: &Kernel, disk: &BlockDevice, deadline: Instant) -> Result<bool, Error> {
    let file = kernel.file(format!("run/udev/data/b{}", disk.number()));
    let said = {
        let running = kernel.file("run/udev/control");
        move || {
            let text = kernel::read(&file).map_err(|error| unreadable(&file, error))?;
            // If the host's udev is not visible, no event will come.
            if text.is_none() && running.exists() {
                return Ok(None);
            }
            Ok(Some(text.unwrap_or_default()))
        }
    };
    let soon = deadline.min(Instant::now() + UDEV);
    let text = until(soon, &format!("ask udev about {disk}"), said).await?;
    let text = text.unwrap_or_default();
    Ok(text
        .lines()
        .any(|line| line == "E:DM_MULTIPATH_DEVICE_PATH=1"))
}

/// Has the map take over the size of its disks, which were asked anew before.
pub async fn resize(
    host: &dyn Runner,
    kernel: &Kernel,
    map: &BlockDevice,
    deadline: Instant,
) -> Result<(), Error> {
    let doing = format!("resize the multipath map {map}");
    if fits(kernel, map, deadline).await? {
        return Ok(());
    }
    let said = tell(host, kernel, map, Order::Resize, deadline).await?;
    let follows = {
        let (kernel, map) = (kernel.clone(), map.clone());
        move || Ok(fits_now(&kernel, &map)?.then_some(()))
    };
    until(deadline.min(Instant::now() + RETRY_PERIOD), &doing, follows)
        .await?
        .ok_or_else(|| {
            Error::new(Kind::Unreachable, doing).advise(format!(
                "its size does not follow that of its paths; multipath said: {said}"
            ))
        })
}

async fn fits(kernel: &Kernel, map: &BlockDevice, deadline: Instant) -> Result<bool, Error> {
    let work = {
        let (kernel, map) = (kernel.clone(), map.clone());
        move || fits_now(&kernel, &map)
    };
    look(deadline, &format!("compare the sizes below {map}"), work).await
}

/// Whether the map is as large as the smallest of its disks.
fn fits_now(kernel: &Kernel, map: &BlockDevice) -> Result<bool, Error> {
    let mut smallest = None;
    for path in map.slaves(kernel)? {
        let size = path.size(kernel)?;
        smallest = Some(smallest.map_or(size, |least: u64| least.min(size)));
    }
    Ok(smallest.is_none_or(|size| map.size(kernel).is_ok_and(|now| now == size)))
}

/// Flushes and removes a map. A missing map is a success, a map in use is an error.
/// It must run before the last path is removed: a map without paths may block its writes, and the
/// processes that wait for them, forever.
pub async fn remove(
    host: &dyn Runner,
    kernel: &Kernel,
    map: &BlockDevice,
    deadline: Instant,
) -> Result<(), Error> {
    let doing = format!("remove the multipath map {map}");
    let last_try = deadline.min(Instant::now() + RETRY_PERIOD);
    let mut backoff = Backoff::of_processes();
    loop {
        let (of, kernel_of) = (map.clone(), kernel.clone());
        let usage = look(deadline, &doing, move || {
            if !of.exists(&kernel_of)? {
                return Ok(None);
            }
            let mounts = MountTable::read();
            let mounts =
                mounts.map_err(|error| unreadable(&kernel_of.proc("self/mountinfo"), error))?;
            Ok(Some(of.in_use(&kernel_of, &mounts)?))
        });
        let said = match usage.await? {
            None => return Ok(()),
            Some(None) => tell(host, kernel, map, Order::Remove, deadline).await?,
            Some(Some(usage)) => usage.to_string(),
        };
        let next = Instant::now() + backoff.pause();
        if next >= last_try {
            return Err(Error::new(Kind::Busy, doing)
                .with_effect(Effect::Possible)
                .advise(format!("the kernel still shows it: {said}")));
        }
        tokio::time::sleep_until(next).await;
    }
}

/// The order to the daemon, or its tool, about a map.
#[derive(Debug, Clone, Copy)]
enum Order {
    Resize,
    Remove,
}

/// Sends the command to the daemon, or runs the host's tool if the daemon cannot be reached; returns the output.
async fn tell(
    host: &dyn Runner,
    kernel: &Kernel,
    map: &BlockDevice,
    order: Order,
    deadline: Instant,
) -> Result<String, Error> {
    let doing = format!("speak to the multipath daemon about {map}");
    let (of, kernel_of) = (map.clone(), kernel.clone());
    let (said, name) = look(deadline, &doing, move || {
        let words = match order {
            Order::Resize => format!("resize map {}", of.name()),
            Order::Remove => format!("remove map {}", of.name()),
        };
        let said = Daemon::find(&kernel_of)?.ask(&words, deadline)?;
        Ok((said, of.attribute(&kernel_of, "dm/name")?))
    })
    .await?;
    match (said, name) {
        (Some(said), _) => Ok(said),
        (None, None) => Ok("it has no name any more".to_owned()),
        (None, Some(name)) => {
            let option = match order {
                Order::Resize => "-r",
                Order::Remove => "-f",
            };
            let left = deadline.saturating_duration_since(Instant::now());
            let command = Command::new(MULTIPATH).arg(option).arg(name).within(left);
            Ok(match host.run_checked(&command).await {
                Ok(output) => output.text().trim().to_owned(),
                Err(error) => Error::new(Kind::Internal, doing).because(error).chain(),
            })
        }
    }
}

fn names(paths: &[BlockDevice]) -> String {
    let names: Vec<&str> = paths.iter().map(BlockDevice::name).collect();
    names.join(", ")
}
