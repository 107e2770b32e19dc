//! The health of a volume as this node sees it: of its sessions and paths, and of what is mounted.
//!
//! sysfs and the mount table answer whatever the storage does, and are read first. Only then is the mount itself looked
//! at, which may hang.

use super::backing::{Backing, backing, topmost};
use super::raw::BLOCK_DEVICE;
use crate::device::BlockDevice;
use crate::kernel::Kernel;
use crate::mount::{MountTable, Place, as_listed};
use crate::{iscsi, nvme};
use csi_types::attachment::AbsolutePath;
use csi_types::error::{Error, Kind};
use csi_types::health::{Condition, ConditionKind, Conditions, Reason};
use csi_types::said;

pub use csi_types::said::{FULL, NO_ANSWER, NO_INODES, NOT_MOUNTED, SESSION_DOWN};

/// Its device has disappeared.
pub const DEVICE_GONE: Reason = Reason::constant("DeviceGone");
/// Its directory was deleted while it was mounted.
pub const DIRECTORY_DELETED: Reason = Reason::constant("DirectoryDeleted");
/// Its filesystem is read-only below a writable mount.
pub const READ_ONLY: Reason = Reason::constant("FilesystemReadOnly");
/// Some of the sessions or connections do not work.
pub const PATH_DOWN: Reason = Reason::constant("PathDown");
/// Sessions or connections that the volume should have are not there.
pub const PATH_MISSING: Reason = Reason::constant("PathMissing");

/// Filesystems of device nodes: what is bound from there is a raw device.
const OF_NODES: [&str; 2] = ["devtmpfs", "tmpfs"];

/// A way to a disk.
struct Way {
    /// The target, or the subsystem, that it goes to.
    to: String,
    /// Its session or controller works.
    is_connected: bool,
    /// The disk can be reached by it.
    is_up: bool,
}

pub(super) fn inaccessible(reason: Reason, message: impl Into<String>) -> Condition {
    Condition::new(ConditionKind::Inaccessible, reason, message)
}

/// The conditions of the device below a path, without touching what is mounted there; none if it has no device.
pub(super) fn of_device_at(kernel: &Kernel, path: &AbsolutePath) -> Result<Conditions, Error> {
    let found = match device_at(kernel, path)? {
        None => device_at(kernel, &path.child(BLOCK_DEVICE))?,
        found => found,
    };
    match found {
        Some(Backing::Device(device)) => of_device(kernel, &device),
        Some(Backing::Gone) => Ok([gone()].into_iter().collect()),
        Some(Backing::Other) | None => Ok(Conditions::default()),
    }
}

pub(super) fn gone() -> Condition {
    inaccessible(
        DEVICE_GONE,
        "the device of the volume has disappeared from this node",
    )
}

/// The source of the mount at a path; `None` if nothing is mounted.
fn device_at(kernel: &Kernel, path: &AbsolutePath) -> Result<Option<Backing>, Error> {
    let unreadable = |error| Error::new(Kind::Internal, "find out what is mounted").because(error);
    let table = MountTable::read().map_err(unreadable)?;
    let listed = as_listed(path.as_path());
    let Some(top) = table.layers(&listed).last() else {
        return Ok(None);
    };
    if !OF_NODES.contains(&&*top.fs_type()) {
        return topmost(kernel, path);
    }
    // A device node answers without its device.
    match Place::open(path.as_path()) {
        Ok(place) if place.block_device().is_some() => backing(kernel, &place).map(Some),
        Ok(_) | Err(_) => Ok(Some(Backing::Other)),
    }
}

/// The conditions of the ways to a disk, or to the disks below a map.
pub(super) fn of_device(kernel: &Kernel, device: &BlockDevice) -> Result<Conditions, Error> {
    Ok(judged(&ways(kernel, device)?, |way| way.is_up))
}

/// The same of its storage, by sessions and controllers alone: a disk that was deleted there says nothing about others.
pub(super) fn of_storage(kernel: &Kernel, device: &BlockDevice) -> Result<Conditions, Error> {
    Ok(judged(&ways(kernel, device)?, |way| way.is_connected))
}

fn judged(ways: &[Way], works: impl Fn(&Way) -> bool) -> Conditions {
    let down: Vec<&Way> = ways.iter().filter(|way| !works(way)).collect();
    let Some(first) = down.first() else {
        return Conditions::default();
    };
    let (all, lost, to) = (ways.len(), down.len(), &first.to);
    let condition = if lost == all {
        inaccessible(SESSION_DOWN, said::not_connected(to))
    } else {
        Condition::new(
            ConditionKind::Degraded,
            PATH_DOWN,
            format!("{lost} of {all} paths do not work: {to}"),
        )
    };
    [condition].into_iter().collect()
}

fn ways(kernel: &Kernel, device: &BlockDevice) -> Result<Vec<Way>, Error> {
    if let Some((to, states)) = nvme::connections_of(kernel, device)? {
        let ways = states.into_iter().map(|is_up| Way {
            to: to.clone(),
            is_connected: is_up,
            is_up,
        });
        return Ok(ways.collect());
    }
    let disk = device.disk(kernel)?;
    let disks = if disk.is_multipath_map(kernel)? {
        let paths = disk.slaves(kernel)?;
        if paths.is_empty() {
            // What is written waits in it for a path that comes back.
            return Ok(vec![Way {
                to: "the storage of its multipath map".to_owned(),
                is_connected: false,
                is_up: false,
            }]);
        }
        paths
    } else {
        vec![disk]
    };
    let mut ways = Vec::new();
    for disk in disks {
        let found = iscsi::session_of(kernel, &disk)?;
        ways.extend(found.map(|session| Way {
            to: session.target,
            is_connected: session.is_logged_in,
            is_up: session.is_logged_in && session.is_offered,
        }));
    }
    Ok(ways)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::testing::Tree;

    /// A target with two disks by two portals, and a map over each.
    const ISCSI: &str = include_str!("../iscsi/captured/two.listing");
    /// A subsystem by two controllers, whose paths the kernel joins.
    const NVME: &str = include_str!("../nvme/captured/native.listing");

    fn of(tree: &Tree, name: &str) -> Option<(ConditionKind, Reason)> {
        let kernel = tree.kernel();
        let device = BlockDevice::by_name(&kernel, name).expect("look");
        let found = of_device(&kernel, &device.expect("a device")).expect("look");
        found.worst().map(|worst| (worst.kind(), worst.reason()))
    }

    #[test]
    fn sessions_of_a_map_are_its_paths_and_that_of_a_disk_is_the_only_one() {
        let tree = Tree::from_listing(ISCSI);
        assert_eq!(of(&tree, "dm-0"), None);
        assert_eq!(of(&tree, "sda"), None);
        let state = |host: u32, session: u32| {
            format!(
                "sys/devices/platform/host{host}/session{session}/iscsi_session/session{session}/state"
            )
        };
        tree.file(&state(6, 8), "FAILED\n");
        let degraded = Some((ConditionKind::Degraded, PATH_DOWN));
        let down = Some((ConditionKind::Inaccessible, SESSION_DOWN));
        assert_eq!(of(&tree, "dm-0"), degraded);
        assert_eq!(of(&tree, "sda"), down);
        tree.file(&state(7, 9), "FAILED\n");
        assert_eq!(of(&tree, "dm-0"), down);
        for (host, session) in [(6, 8), (7, 9)] {
            tree.file(&state(host, session), "LOGGED_IN\n");
        }
        assert_eq!(of(&tree, "dm-0"), None);
    }

    #[test]
    fn a_disk_that_the_kernel_has_given_up_is_a_path_that_does_not_work() {
        let offline = ISCSI.replace(
            "6:0:0:0/state = running",
            "6:0:0:0/state = transport-offline",
        );
        let tree = Tree::from_listing(&offline);
        assert_eq!(
            of(&tree, "dm-0"),
            Some((ConditionKind::Degraded, PATH_DOWN))
        );
        assert_eq!(of(&tree, "dm-1"), None, "another disk of the same sessions");
    }

    #[test]
    fn a_controller_that_is_not_live_is_a_path_that_does_not_work() {
        let tree = Tree::from_listing(NVME);
        assert_eq!(of(&tree, "nvme0n1"), None);
        let state =
            |number: u32| format!("sys/devices/virtual/nvme-fabrics/ctl/nvme{number}/state");
        tree.file(&state(0), "connecting\n");
        assert_eq!(
            of(&tree, "nvme0n1"),
            Some((ConditionKind::Degraded, PATH_DOWN))
        );
        tree.file(&state(1), "resetting\n");
        assert_eq!(
            of(&tree, "nvme0n1"),
            Some((ConditionKind::Inaccessible, SESSION_DOWN))
        );
    }

    #[test]
    fn a_disk_of_this_machine_has_no_sessions() {
        let tree = Tree::new();
        tree.disk("pci0000:00/0000:00:05.0/virtio2", "vda", "254:0", 2048);
        assert_eq!(of(&tree, "vda"), None);
    }
}
