//! Multipath maps and SCSI disks with the kernel's pretended ones and the real daemon.
//!
//! It loads `scsi_debug`, which shows one disk by two hosts, and unloads it. It needs root, a
//! running multipathd with `find_multipaths yes`, and a machine that may be changed: it is run in
//! the lab, by `cargo test -p node-utils --test multipath_in_the_lab -- --ignored --test-threads 1`.

use std::fs;
use std::path::Path;
use std::time::Duration;

use csi_types::Kind;
use exec::{Command, Local, Program, Runner};
use node_utils::device::multipath::{self, Daemon};
use node_utils::device::scsi::{self, Asked};
use node_utils::device::{BlockDevice, Usage};
use node_utils::kernel::Kernel;
use node_utils::mount::MountTable;
use tokio::time::Instant;

const DRIVER: &str = "/sys/bus/pseudo/drivers/scsi_debug";

/// One disk, by two ways.
struct Disks {
    local: Local,
    kernel: Kernel,
}

impl Disks {
    async fn new() -> Self {
        let disks = Self {
            local: Local::new(),
            kernel: Kernel::here(),
        };
        // Two hosts that do not put their own number into the identity of their disk.
        let options = ["vpd_use_hostno=0", "add_host=2", "dev_size_mb=64"];
        disks
            .run("modprobe", &[&["scsi_debug"], &options[..]].concat())
            .await;
        disks
    }

    async fn run(&self, program: &'static str, arguments: &[&str]) {
        let command = Command::new(Program::constant(program)).args(arguments.iter().copied());
        let done = self.local.perform(&command).await;
        done.unwrap_or_else(|error| panic!("{error}"));
    }

    /// The two disks, once the kernel has found them.
    async fn paths(&self) -> Vec<BlockDevice> {
        let deadline = soon();
        loop {
            let mut found = Vec::new();
            for name in fs::read_dir("/sys/class/block").expect("list").flatten() {
                let name = name.file_name().into_string().expect("text");
                let model = format!("/sys/class/block/{name}/device/model");
                if fs::read_to_string(model).is_ok_and(|model| model.trim() == "scsi_debug") {
                    found.extend(BlockDevice::by_name(&self.kernel, &name).expect("look"));
                }
            }
            if found.len() == 2 {
                return found;
            }
            assert!(Instant::now() < deadline, "there are {found:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    fn usage(&self, device: &BlockDevice, mounts: &MountTable) -> Option<Usage> {
        device.in_use(&self.kernel, mounts).expect("usage")
    }

    async fn unload(self, paths: &[BlockDevice]) {
        // multipathd may still make a map of what it saw, and udev have a last look at what has been removed.
        let deadline = soon();
        let command = Command::new(Program::constant("modprobe")).args(["-r", "scsi_debug"]);
        while let Err(error) = self.local.perform(&command).await {
            assert!(Instant::now() < deadline, "{error}");
            for path in paths.chunks(1) {
                if let Some(map) = multipath::map_over(&self.kernel, path).expect("look") {
                    let removed = multipath::remove(&self.local, &self.kernel, &map, deadline);
                    removed.await.expect("removed");
                }
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

fn set(attribute: &str, text: &str) {
    fs::write(Path::new(DRIVER).join(attribute), text).expect(attribute);
}

fn soon() -> Instant {
    Instant::now() + Duration::from_mins(5)
}

#[tokio::test]
#[ignore = "loads a driver and makes multipath maps: for the lab"]
async fn a_map_is_awaited_used_grown_and_removed_before_its_paths() {
    let disks = Disks::new().await;
    let (kernel, host) = (&disks.kernel, &disks.local);
    let paths = disks.paths().await;
    assert_eq!(Daemon::find(kernel).expect("look"), Daemon::Here);
    let identity = multipath::identity_of(kernel, &paths).expect("one volume");
    let began = Instant::now();
    let map = multipath::assemble(kernel, &paths, soon())
        .await
        .expect("map");
    eprintln!(
        "{map} over {paths:?}, {identity:?}, after {:?}",
        began.elapsed()
    );
    map.wait_for_node(kernel, soon()).await.expect("node");
    assert!(map.is_multipath_map(kernel).expect("look"));
    assert_eq!(map.wwid(kernel).expect("wwid"), identity);
    let nothing = MountTable::from_text("");
    assert_eq!(
        disks.usage(&paths[0], &nothing),
        Some(Usage::Held(map.clone()))
    );
    assert_eq!(disks.usage(&map, &nothing), None);

    let mounted = tempfile::tempdir_in("/var/tmp").expect("directory");
    let at = mounted.path().display().to_string();
    let node = map.node(kernel).display().to_string();
    disks.run("mkfs.ext4", &["-q", &node]).await;
    disks.run("mount", &[&node, &at]).await;
    let seen = disks.usage(&map, &MountTable::read().expect("table"));
    assert_eq!(seen, Some(Usage::Mounted(mounted.path().to_owned())));
    let busy = multipath::remove(host, kernel, &map, soon()).await;
    assert_eq!(busy.expect_err("mounted").kind(), Kind::Busy);

    set("virtual_gb", "1");
    for path in &paths {
        scsi::rescan(kernel, path, soon()).await.expect("rescanned");
        assert_eq!(path.size(kernel).expect("size"), 1 << 30);
    }
    multipath::resize(host, kernel, &map, soon())
        .await
        .expect("resized");
    assert_eq!(map.size(kernel).expect("size"), 1 << 30);

    disks.run("umount", &[&at]).await;
    let began = Instant::now();
    multipath::remove(host, kernel, &map, soon())
        .await
        .expect("removed");
    eprintln!("removed after {:?}", began.elapsed());
    assert!(!map.exists(kernel).expect("look"));
    for path in &paths {
        scsi::remove(kernel, path, soon()).await.expect("removed");
        assert!(!path.exists(kernel).expect("look"));
        scsi::remove(kernel, path, soon())
            .await
            .expect("gone already");
    }
    set("virtual_gb", "0");
    disks.unload(&[]).await;
}

#[tokio::test]
#[ignore = "loads a driver: for the lab"]
async fn a_disk_that_has_become_another_volume_says_so_when_asked() {
    let disks = Disks::new().await;
    let kernel = &disks.kernel;
    let paths = disks.paths().await;
    let before = paths[0].wwid(kernel).expect("wwid");
    let asked = scsi::ask(kernel, &paths[0], soon()).await.expect("asked");
    assert_eq!(asked, Asked::Same(before.clone()));
    set("vpd_use_hostno", "1");
    // The cached value is still the old one.
    assert_eq!(paths[0].wwid(kernel).expect("wwid"), before);
    let asked = scsi::ask(kernel, &paths[0], soon()).await.expect("asked");
    eprintln!("{asked:?}");
    let Asked::Changed { before: old, now } = asked else {
        panic!("it is another volume now");
    };
    assert_eq!(old, before);
    assert_ne!(now, before);
    disks.unload(&paths).await;
}
