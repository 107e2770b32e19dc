//! The size of the requests to a volume.
//!
//! A target may name no limit of its own, and the kernel then sends what the disk behind it likes best: 32 MiB of
//! a zvol, from Linux 6.11 on. nvmet keeps a list of the pages of each request in one piece of memory. Where no
//! such piece is free it answers with an error, which a filesystem does not survive.
//!
//! The kernel keeps the limit of a disk while it reconnects, and that of the disk over the paths as long as the disk
//! lives. A path that is made anew has none: see `docs/compatibility-calls.md`, "NVMe over fabrics".

use std::time::Duration;

use tokio::time::Instant;
use tracing::warn;

use super::NvmeFacts;
use super::namespace::disks_and_paths;
use crate::blocking::{self, Doing, Limits};
use crate::device::{BlockDevice, not_understood, unreadable};
use crate::kernel::{self, Kernel};
use crate::mount::MountTable;
use csi_types::error::{Error, Kind};

/// The most KiB of one request. nvmet keeps the list of its pages in one piece of memory: 8 KiB of 1 MiB, which
/// its kernel always finds, and 256 KiB of 32 MiB, which it often does not.
const MOST_KIB: u64 = 1024;

/// The time that the limits may take. The kernel waits for requests that are on their way, and a new disk has few.
const LIMITING: Duration = Duration::from_secs(5);

/// Limits the requests to the disks of a volume, and to the map over them if `device` is one. Without the limit
/// the volume works as long as its target has memory, so a failure is a warning.
pub(super) async fn limit(
    kernel: &Kernel,
    facts: &NvmeFacts,
    device: &BlockDevice,
    deadline: Instant,
) {
    // Nothing is held: a limit that is written late does no harm.
    let limits = Limits::until(deadline.min(Instant::now() + LIMITING));
    let doing = Doing::changing(format!("limit the requests to {facts}"));
    let work = {
        let (kernel, facts, device) = (kernel.clone(), facts.clone(), device.clone());
        move || {
            let mounts = MountTable::read();
            let path = kernel.proc("self/mountinfo");
            let mounts = mounts.map_err(|error| unreadable(&path, error))?;
            limit_all(&kernel, &mounts, &facts, &device)
        }
    };
    if let Err(error) = blocking::run(limits, doing, work).await {
        warn!(volume = %facts, error = %error.chain(), "the size of requests to the volume is not limited: a target short of memory may fail large ones");
    }
}

/// Limits what lies above first, and stops at the first failure: a request of a map must fit its paths.
fn limit_all(
    kernel: &Kernel,
    mounts: &MountTable,
    facts: &NvmeFacts,
    device: &BlockDevice,
) -> Result<(), Error> {
    // Large requests may wait in it already.
    if device.is_multipath_map(kernel)? && device.in_use(kernel, mounts)?.is_some() {
        return Ok(());
    }
    limit_one(kernel, device.name())?;
    for name in disks_and_paths(kernel, facts)? {
        limit_one(kernel, &name)?;
    }
    Ok(())
}

/// Lowers the limit of one disk, and never raises it.
fn limit_one(kernel: &Kernel, name: &str) -> Result<(), Error> {
    let path = kernel.sys("class/block").join(name);
    let path = path.join("queue/max_sectors_kb");
    let now = kernel::read(&path).map_err(|error| unreadable(&path, error))?;
    // A kernel that does not say it, or a path that is gone.
    let Some(now) = now else {
        return Ok(());
    };
    let now: u64 = now.parse().map_err(|_| not_understood(&path))?;
    if now <= MOST_KIB {
        return Ok(());
    }
    let written = kernel::write(&path, &MOST_KIB.to_string());
    written.map(drop).map_err(|error| {
        let doing = format!("write {MOST_KIB} to `{}`", path.display());
        Error::new(Kind::Internal, doing).because(error)
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::kernel::testing::Tree;

    /// One subsystem with two namespaces by two routes, captured with native multipath.
    const NATIVE: &str = include_str!("captured/native.listing");
    /// The same without native multipath, and with the maps of multipathd.
    const SEPARATE: &str = include_str!("captured/separate.listing");

    fn attribute(name: &str) -> String {
        format!("sys/class/block/{name}/queue/max_sectors_kb")
    }

    /// Disks with these limits.
    fn tree(listing: &str, limits: &[(&str, &str)]) -> Tree {
        let tree = Tree::from_listing(listing);
        for (name, limit) in limits {
            tree.file(&attribute(name), &format!("{limit}\n"));
        }
        tree
    }

    /// Limits namespace 1, which `name` shows, and returns the names of the disks that were written, in order.
    fn limit_first(tree: &Tree, name: &str) -> Result<Vec<String>, Error> {
        let written = Arc::new(Mutex::new(Vec::new()));
        let names = Arc::clone(&written);
        tree.on_write(move |path, text| {
            assert_eq!(text, "1024");
            let disk = path.ancestors().nth(2).and_then(Path::file_name);
            let disk = disk.expect("disk").to_string_lossy().into_owned();
            names.lock().expect("lock").push(disk);
            true
        });
        let facts = NvmeFacts::parse("nvme 1 nqn.2026-11.lab:dev-a").expect("facts");
        let device = BlockDevice::by_name(&tree.kernel(), name);
        let device = device.expect("look").expect("device");
        let mounts = MountTable::from_text("");
        limit_all(&tree.kernel(), &mounts, &facts, &device)?;
        Ok(written.lock().expect("lock").clone())
    }

    #[test]
    fn the_disk_and_its_hidden_paths_are_limited_once_and_no_other_volume() {
        let all = ["nvme0n2", "nvme0c0n2", "nvme0c1n2"];
        let others = ["nvme0n1", "nvme0c0n1", "nvme0c1n1"];
        let tree = tree(NATIVE, &all.map(|name| (name, "8192")));
        for other in others {
            tree.file(&attribute(other), "8192\n");
        }
        assert_eq!(limit_first(&tree, "nvme0n2").expect("limited"), all);
        for other in others {
            assert_eq!(tree.read(&attribute(other)), "8192\n", "{other}");
        }
        let again = limit_first(&tree, "nvme0n2").expect("limited already");
        assert!(again.is_empty(), "{again:?}");
        // A path that was made anew.
        tree.file(&attribute("nvme0c1n2"), "8192\n");
        let again = limit_first(&tree, "nvme0n2").expect("limited");
        assert_eq!(again, ["nvme0c1n2"]);
    }

    #[test]
    fn a_lower_limit_is_never_raised_and_none_is_no_error() {
        let limits = [("nvme0n2", "512"), ("nvme0c0n2", "1024")];
        let tree = tree(NATIVE, &limits);
        let written = limit_first(&tree, "nvme0n2").expect("nothing to do");
        assert!(written.is_empty(), "{written:?}");
        assert_eq!(tree.read(&attribute("nvme0n2")), "512\n");
        assert!(!tree.path(&attribute("nvme0c1n2")).exists());
    }

    #[test]
    fn a_map_is_limited_before_its_paths_and_not_while_it_is_in_use() {
        let limits = ["dm-1", "nvme2n3", "nvme3n3"].map(|name| (name, "1280"));
        let first = tree(SEPARATE, &limits);
        let written = limit_first(&first, "dm-1").expect("limited");
        assert_eq!(written, ["dm-1", "nvme2n3", "nvme3n3"]);
        let used = tree(SEPARATE, &limits);
        used.map("dm-9", "253:9", "LVM-x", &["dm-1"]);
        let written = limit_first(&used, "dm-1").expect("left alone");
        assert!(written.is_empty(), "{written:?}");
    }

    #[test]
    fn a_limit_that_cannot_be_written_or_understood_is_named() {
        // A number of the kernel that cannot be changed.
        let fixed = Tree::from_listing(NATIVE);
        fixed.link(&attribute("nvme0n2"), "/proc/sys/kernel/ngroups_max");
        let error = limit_first(&fixed, "nvme0n2").expect_err("read-only");
        assert!(
            error.chain().contains("max_sectors_kb"),
            "{}",
            error.chain()
        );
        let strange = tree(NATIVE, &[("nvme0n2", "much")]);
        let error = limit_first(&strange, "nvme0n2").expect_err("no number");
        assert!(
            error.chain().contains("max_sectors_kb"),
            "{}",
            error.chain()
        );
    }
}
