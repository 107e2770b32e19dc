//! Devices in trees that look like sysfs.

use std::path::Path;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use tokio::time::Instant;

use super::*;
use crate::kernel::testing::Tree;
use crate::mount::MountTable;

const SCSI: &str = "platform/host2/session1/target2:0:0/2:0:0:0";

fn tree() -> Tree {
    let tree = Tree::new();
    tree.disk(SCSI, "sda", "8:0", 2_097_152)
        .partition(SCSI, "sda", 1, "8:1")
        .partition(SCSI, "sda", 10, "8:10")
        .partition(SCSI, "sda", 2, "8:2")
        .file(&format!("sys/devices/{SCSI}/wwid"), "naa.6001405aabb\n")
        .link(
            &format!("sys/devices/{SCSI}/block/sda/device"),
            "../../../2:0:0:0",
        );
    tree
}

fn named(kernel: &Kernel, name: &str) -> BlockDevice {
    BlockDevice::by_name(kernel, name)
        .expect("look")
        .expect("device")
}

fn names(devices: &[BlockDevice]) -> Vec<&str> {
    devices.iter().map(BlockDevice::name).collect()
}

fn nothing_mounted() -> MountTable {
    MountTable::from_text("")
}

#[test]
fn a_device_is_the_same_however_it_was_found() {
    let tree = tree();
    tree.link("dev/disk/by-id/wwn-1", "../../sda");
    let kernel = tree.kernel();
    let device = named(&kernel, "sda");
    assert_eq!(device.number(), DeviceNumber { major: 8, minor: 0 });
    assert_eq!(device.size(&kernel).expect("size"), 1 << 30);
    assert!(!device.read_only(&kernel).expect("ro"));
    for path in [kernel.dev("sda"), kernel.dev("disk/by-id/wwn-1")] {
        assert_eq!(
            BlockDevice::by_path(&kernel, &path).expect("look"),
            Some(device.clone())
        );
    }
    let number = DeviceNumber { major: 8, minor: 0 };
    assert_eq!(
        BlockDevice::by_number(&kernel, number).expect("look"),
        Some(device)
    );
}

#[test]
fn what_is_not_there_is_nothing_and_no_error() {
    let tree = tree();
    let kernel = tree.kernel();
    for name in ["sdb", "", ".", "..", "../block/sda", "/"] {
        assert_eq!(
            BlockDevice::by_name(&kernel, name).expect("look"),
            None,
            "{name}"
        );
    }
    let number = DeviceNumber { major: 9, minor: 9 };
    assert_eq!(BlockDevice::by_number(&kernel, number).expect("look"), None);
    assert_eq!(
        BlockDevice::by_path(&kernel, Path::new("/no/thing")).expect("look"),
        None
    );
}

#[test]
fn a_vanished_device_has_no_size_and_a_name_that_passed_on_is_another_device() {
    let tree = tree();
    let kernel = tree.kernel();
    let device = named(&kernel, "sda");
    assert!(device.exists(&kernel).expect("look"));
    tree.file("sys/class/block/sda/dev", "8:16\n");
    assert!(!device.exists(&kernel).expect("look"));
    tree.remove("sys/class/block/sda");
    assert_eq!(
        device.size(&kernel).expect_err("gone").kind(),
        Kind::Unreachable
    );
}

#[test]
fn partitions_are_ordered_by_number_and_lead_back_to_their_disk() {
    let tree = tree();
    let kernel = tree.kernel();
    let disk = named(&kernel, "sda");
    let partitions = disk.partitions(&kernel).expect("partitions");
    assert_eq!(names(&partitions), ["sda1", "sda2", "sda10"]);
    assert_eq!(partitions[2].disk(&kernel).expect("disk"), disk);
    assert_eq!(disk.disk(&kernel).expect("disk"), disk);
    let identity = partitions[0]
        .wwid(&kernel)
        .expect("wwid")
        .expect("identity");
    assert_eq!(identity.as_str(), "naa.6001405aabb");
}

#[test]
fn the_partitions_of_a_multipath_map_are_the_maps_of_kpartx() {
    let tree = tree();
    tree.map("dm-0", "254:0", "mpath-36001405aabb", &["sda"]);
    tree.map("dm-1", "254:1", "part1-mpath-36001405aabb", &["dm-0"]);
    let kernel = tree.kernel();
    let map = named(&kernel, "dm-0");
    let partitions = map.partitions(&kernel).expect("partitions");
    assert_eq!(names(&partitions), ["dm-1"]);
    assert_eq!(partitions[0].disk(&kernel).expect("disk"), map);
    let identity = partitions[0]
        .wwid(&kernel)
        .expect("wwid")
        .expect("identity");
    assert!(identity.is("naa.6001405AABB"));
    assert_eq!(
        map.in_use(&kernel, &nothing_mounted()).expect("usage"),
        None
    );
    let table = MountTable::from_text("30 1 254:1 / /data rw - ext4 /dev/mapper/a-part1 rw\n");
    let usage = map.in_use(&kernel, &table).expect("usage");
    assert_eq!(usage, Some(Usage::Mounted("/data".into())));
}

#[test]
fn a_logical_volume_has_no_identity_and_holds_what_it_lies_on() {
    let tree = tree();
    tree.map("dm-0", "254:0", "LVM-abc", &["sda2"]);
    let kernel = tree.kernel();
    let volume = named(&kernel, "dm-0");
    assert!(!volume.is_multipath_map(&kernel).expect("look"));
    assert_eq!(volume.wwid(&kernel).expect("wwid"), None);
    let usage = named(&kernel, "sda").in_use(&kernel, &nothing_mounted());
    assert_eq!(usage.expect("usage"), Some(Usage::Held(volume)));
}

#[test]
fn a_disk_is_in_use_however_it_or_a_partition_is_shown() {
    let tree = tree();
    let kernel = tree.kernel();
    let node = kernel.dev("sda").display().to_string();
    tree.file("bound", "8:0\n");
    let bound = tree.path("bound").display().to_string();
    let disk = named(&kernel, "sda");
    let cases = [
        (
            "40 1 8:0 / /mnt/a rw - ext4 /dev/x rw".to_owned(),
            Some(Usage::Mounted("/mnt/a".into())),
        ),
        (
            "40 1 8:2 /sub /mnt/a rw - xfs /dev/x rw".to_owned(),
            Some(Usage::Mounted("/mnt/a".into())),
        ),
        (
            format!("40 1 0:50 / /mnt/b rw - btrfs {node} rw"),
            Some(Usage::Mounted("/mnt/b".into())),
        ),
        (
            "40 1 0:5 /sda /stage/block rw - devtmpfs udev rw".to_owned(),
            Some(Usage::Bound("/stage/block".into())),
        ),
        (
            "40 1 0:5 /sda2 /stage/block rw - devtmpfs dev rw".to_owned(),
            Some(Usage::Bound("/stage/block".into())),
        ),
        (
            format!("40 1 0:9 /x/sda {bound} rw - tmpfs tmpfs rw"),
            Some(Usage::Bound(bound.clone().into())),
        ),
        // Another node of that name, the node of a device that is gone, and a directory.
        (format!("40 1 0:9 /x/sda {node}2 rw - tmpfs tmpfs rw"), None),
        (
            "40 1 0:5 /sda//deleted /stage/block rw - devtmpfs udev rw".to_owned(),
            None,
        ),
        (
            "40 1 0:5 /sdaa /stage/block rw - devtmpfs udev rw".to_owned(),
            None,
        ),
        (
            "40 1 8:16 /sda /mnt/c rw - ext4 /dev/sdb rw".to_owned(),
            None,
        ),
    ];
    for (line, expected) in cases {
        let usage = disk.in_use(&kernel, &MountTable::from_text(line.clone()));
        assert_eq!(usage.expect("usage"), expected, "{line}");
    }
}

#[test]
fn a_name_with_a_slash_has_its_node_in_a_directory() {
    let tree = Tree::new();
    tree.disk("virtual", "cciss!c0d0", "104:0", 8);
    let kernel = tree.kernel();
    let device = named(&kernel, "cciss!c0d0");
    assert_eq!(device.node(&kernel), kernel.dev("cciss/c0d0"));
    assert!(device.has_node(&kernel).expect("look"));
}

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "a loop device is made as others make them"
)]
fn an_exclusive_open_tells_of_a_use_that_the_table_does_not_show() {
    let image = tempfile::NamedTempFile::new().expect("image");
    image.as_file().set_len(1 << 20).expect("size");
    let made = std::process::Command::new("losetup")
        .args(["--find", "--show"])
        .arg(image.path())
        .output()
        .expect("losetup");
    if !made.status.success() {
        let why = String::from_utf8_lossy(&made.stderr).into_owned();
        crate::requirement::could_not_run("an exclusive open", &why);
        return;
    }
    let node = String::from_utf8(made.stdout).expect("a path");
    let node = Path::new(node.trim());
    let seen = || {
        let kernel = Kernel::here();
        let device = BlockDevice::by_path(&kernel, node)?.expect("device");
        device.in_use(&kernel, &nothing_mounted())
    };
    let flags = OFlags::RDWR | OFlags::EXCL | OFlags::CLOEXEC;
    let claim = rustix::fs::open(node, flags, Mode::empty());
    let claimed = seen();
    drop(claim);
    let free = seen();
    let _ = std::process::Command::new("losetup")
        .arg("-d")
        .arg(node)
        .output();
    assert_eq!(claimed.expect("usage"), Some(Usage::Claimed));
    assert_eq!(free.expect("usage"), None);
}

#[tokio::test(start_paused = true)]
async fn a_node_is_waited_for_until_the_deadline_and_no_longer() {
    let tree = tree();
    let kernel = tree.kernel();
    let device = named(&kernel, "sda");
    let node = kernel.dev("sda");
    std::fs::remove_file(&node).expect("remove");
    let deadline = Instant::now() + Duration::from_secs(5);
    let late = device
        .wait_for_node(&kernel, deadline)
        .await
        .expect_err("no node");
    assert_eq!(late.kind(), Kind::Timeout);
    let deadline = Instant::now() + Duration::from_secs(5);
    let waits = device.wait_for_node(&kernel, deadline);
    let comes = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        // First the node of another device, then ours.
        std::fs::write(&node, "8:16\n").expect("write");
        tokio::time::sleep(Duration::from_secs(1)).await;
        std::fs::write(&node, "8:0\n").expect("write");
    };
    let began = Instant::now();
    tokio::join!(async { waits.await.expect("node") }, comes);
    assert!(began.elapsed() >= Duration::from_secs(2));
}

#[tokio::test(start_paused = true)]
async fn a_device_that_does_not_go_is_not_said_to_be_gone() {
    let tree = tree();
    let kernel = tree.kernel();
    let device = named(&kernel, "sda");
    let deadline = Instant::now() + Duration::from_secs(5);
    assert!(
        !device
            .wait_until_gone(&kernel, deadline)
            .await
            .expect("wait")
    );
    tree.remove("sys/class/block/sda");
    let deadline = Instant::now() + Duration::from_secs(5);
    assert!(
        device
            .wait_until_gone(&kernel, deadline)
            .await
            .expect("wait")
    );
}
