//! One SCSI disk: refreshing its identity and size, and removing it.
//!
//! The kernel reads the identity and size of a disk when it is found and later only on request. So a
//! number on a target that now belongs to another volume shows the old one until a refresh. Nothing
//! here depends on the transport. The source is the kernel's `scsi_sysfs`.

use tokio::time::Instant;

use super::{BlockDevice, Identity, look, set, unreadable};
use crate::kernel::{self, Kernel};
use csi_types::error::{Error, Kind};

/// The identity that a disk has reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fingerprint {
    /// Its identifier as the kernel understood it.
    pub identity: Option<Identity>,
    /// Page 0x83 as it came; it may hold more than the kernel understood.
    page: Option<Vec<u8>>,
}

/// Whether a disk shows the same volume after a refresh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked {
    /// It does, or it never had an identity.
    Same(Option<Identity>),
    /// It shows another one: everything known about its content is stale.
    Changed {
        /// The identity before.
        before: Option<Identity>,
        /// The identity now.
        now: Option<Identity>,
    },
}

/// The data that the kernel has cached about the disk.
pub fn fingerprint(kernel: &Kernel, disk: &BlockDevice) -> Result<Fingerprint, Error> {
    let path = disk.directory(kernel).join("device/vpd_pg83");
    let page = match kernel::read_bytes(&path) {
        // EINVAL: it has no such page.
        Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => None,
        result => result.map_err(|error| unreadable(&path, error))?,
    };
    let identity = disk.wwid(kernel)?;
    Ok(Fingerprint { identity, page })
}

/// Makes the kernel refresh the identity and size of the disk. Blocks while the disk does not answer.
pub async fn rescan(kernel: &Kernel, disk: &BlockDevice, deadline: Instant) -> Result<(), Error> {
    let path = disk.directory(kernel).join("device/rescan");
    if set(path, "1", deadline).await? {
        Ok(())
    } else {
        Err(disk.is_gone("rescan"))
    }
}

/// Refreshes the disk, and returns whether it is still the same volume.
pub async fn ask(kernel: &Kernel, disk: &BlockDevice, deadline: Instant) -> Result<Asked, Error> {
    let print = || {
        let (kernel, disk) = (kernel.clone(), disk.clone());
        move || fingerprint(&kernel, &disk)
    };
    let doing = format!("read the identity of {disk}");
    let before = look(deadline, &doing, print()).await?;
    rescan(kernel, disk, deadline).await?;
    let now = look(deadline, &doing, print()).await?;
    if before == now {
        return Ok(Asked::Same(now.identity));
    }
    Ok(Asked::Changed {
        before: before.identity,
        now: now.identity,
    })
}

/// Removes the disk from the kernel; a missing disk is a success. The caller must have checked that it
/// is not in use: the kernel does not.
pub async fn remove(kernel: &Kernel, disk: &BlockDevice, deadline: Instant) -> Result<(), Error> {
    let there = {
        let (kernel, disk) = (kernel.clone(), disk.clone());
        move || disk.exists(&kernel)
    };
    let doing = format!("remove {disk}");
    if !look(deadline, &doing, there).await? {
        return Ok(());
    }
    set(disk.directory(kernel).join("device/delete"), "1", deadline).await?;
    if disk.wait_until_gone(kernel, deadline).await? {
        return Ok(());
    }
    Err(Error::new(Kind::Timeout, doing).advise("the kernel still shows it"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::kernel::testing::Tree;

    const HOME: &str = "platform/host2/session1/target2:0:0/2:0:0:0";

    fn tree() -> (Tree, BlockDevice) {
        let tree = Tree::new();
        tree.disk(HOME, "sda", "8:0", 2048)
            .link(
                &format!("sys/devices/{HOME}/block/sda/device"),
                "../../../2:0:0:0",
            )
            .file(&format!("sys/devices/{HOME}/wwid"), "naa.1\n")
            .file(&format!("sys/devices/{HOME}/vpd_pg83"), "page one")
            .file(&format!("sys/devices/{HOME}/rescan"), "")
            .file(&format!("sys/devices/{HOME}/delete"), "");
        let disk = BlockDevice::by_name(&tree.kernel(), "sda");
        let disk = disk.expect("look").expect("disk");
        (tree, disk)
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(5)
    }

    #[tokio::test]
    async fn a_disk_that_says_the_same_again_is_the_same_and_was_asked() {
        let (tree, disk) = tree();
        let asked = ask(&tree.kernel(), &disk, soon()).await.expect("asked");
        assert_eq!(asked, Asked::Same(Identity::parse("naa.1")));
        assert_eq!(tree.read(&format!("sys/devices/{HOME}/rescan")), "1");
    }

    #[tokio::test]
    async fn a_page_that_differs_is_another_volume_although_the_identifier_stayed() {
        let (tree, disk) = tree();
        let kernel = tree.kernel();
        let before = fingerprint(&kernel, &disk).expect("print");
        tree.file(&format!("sys/devices/{HOME}/vpd_pg83"), "page two");
        assert_ne!(fingerprint(&kernel, &disk).expect("print"), before);
    }

    #[tokio::test]
    async fn a_disk_that_is_gone_cannot_be_asked_but_counts_as_removed() {
        let (tree, disk) = tree();
        let kernel = tree.kernel();
        tree.remove("sys/class/block/sda");
        let error = ask(&kernel, &disk, soon()).await.expect_err("gone");
        assert_eq!(error.kind(), Kind::Unreachable);
        remove(&kernel, &disk, soon()).await.expect("gone already");
        assert_eq!(tree.read(&format!("sys/devices/{HOME}/delete")), "");
    }

    #[tokio::test(start_paused = true)]
    async fn a_disk_that_stays_is_not_said_to_be_removed() {
        let (tree, disk) = tree();
        let kernel = tree.kernel();
        let error = remove(&kernel, &disk, soon()).await.expect_err("it stays");
        assert_eq!(error.kind(), Kind::Timeout);
        assert_eq!(tree.read(&format!("sys/devices/{HOME}/delete")), "1");
    }

    #[tokio::test]
    async fn the_name_of_a_removed_disk_that_went_to_another_is_left_alone() {
        let (tree, disk) = tree();
        tree.file("sys/class/block/sda/dev", "8:16\n");
        remove(&tree.kernel(), &disk, soon())
            .await
            .expect("gone already");
        assert_eq!(tree.read(&format!("sys/devices/{HOME}/delete")), "");
    }
}
