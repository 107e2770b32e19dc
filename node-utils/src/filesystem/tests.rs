//! On real loop devices, with the real tools.
#![expect(
    clippy::disallowed_methods,
    reason = "devices and filesystems are made as others make them"
)]

use csi_types::FsType;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use exec::Local;
use exec::testing::Scripted;
use rustix::mount::MountFlags;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::time::Instant;

use super::*;
use crate::requirement::this_test_could_not_run;
use crate::testing::with_own_mounts;
use crate::tools::Tools;
use csi_types::attachment::AbsolutePath;

const MIB: u64 = 1 << 20;

/// A loop device over a file of its own.
struct Disk {
    folder: TempDir,
    node: PathBuf,
    runtime: Runtime,
}

impl Disk {
    /// `None` where there is no loop device to be had, which is said.
    fn new(size: u64) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a folder");
        let image = folder.path().join("image");
        let file = File::create(&image).expect("an image");
        file.set_len(size).expect("a size");
        let made = Command::new("losetup")
            .args(["--find", "--show"])
            .arg(&image)
            .output()
            .expect("losetup");
        if !made.status.success() {
            let why = String::from_utf8_lossy(&made.stderr).into_owned();
            this_test_could_not_run(&format!("no loop device: {why}"));
            return None;
        }
        let node = String::from_utf8(made.stdout).expect("a path");
        Some(Self {
            folder,
            node: PathBuf::from(node.trim()),
            runtime: tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime"),
        })
    }

    fn device(&self) -> BlockDevice {
        let device = BlockDevice::by_path(&Kernel::here(), &self.node);
        device.expect("sysfs").expect("a device")
    }

    fn image(&self) -> File {
        let path = self.folder.path().join("image");
        File::options()
            .read(true)
            .write(true)
            .open(path)
            .expect("an image")
    }

    /// Makes the device show what is in its file now.
    fn refresh(&self) {
        self.image().sync_all().expect("synced");
        tool("blockdev", &["--flushbufs"], &self.node);
    }

    fn resize(&self, size: u64) {
        self.image().set_len(size).expect("a size");
        tool("losetup", &["-c"], &self.node);
    }

    fn probe(&self) -> Result<Content, Error> {
        let (tools, kernel) = (tools(), Kernel::here());
        self.runtime
            .block_on(probe(&tools, &kernel, &self.device(), soon()))
    }

    fn ensure(&self, kind: FilesystemKind) -> Result<Ensured, Error> {
        let (tools, kernel) = (tools(), Kernel::here());
        let settings = FilesystemSettings::default();
        let device = self.device();
        let ensured = ensure(&tools, &kernel, &device, kind, &settings, soon());
        self.runtime.block_on(ensured)
    }

    #[track_caller]
    fn make(&self, kind: FilesystemKind) {
        let ensured = self.ensure(kind);
        assert_eq!(ensured.expect("made"), Ensured::Made, "{kind}");
    }

    /// Nothing is made where something is.
    #[track_caller]
    fn keeps(&self, kind: FilesystemKind, what: &str) {
        match self.ensure(kind) {
            Ok(ensured) => assert!(matches!(ensured, Ensured::Found(_)), "{what}"),
            Err(error) => assert_eq!(error.kind(), Kind::Busy, "{what}: {}", error.chain()),
        }
    }

    fn digest(&self) -> Vec<u8> {
        tool("sync", &[], self.folder.path());
        let summed = Command::new("sha256sum")
            .arg(&self.node)
            .output()
            .expect("sha256sum");
        summed.stdout
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("-d").arg(&self.node).output();
    }
}

fn tools() -> Tools {
    Tools::all_through(Arc::new(Local::new()))
}

fn soon() -> Instant {
    Instant::now() + Duration::from_mins(2)
}

fn tool(program: &str, options: &[&str], path: &Path) {
    let done = Command::new(program).args(options).arg(path).output();
    let done = done.unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(done.status.success(), "{program}: {done:?}");
}

/// Content that another program may have left on a device, and how to write it.
type Left<'a> = (&'a str, Box<dyn Fn() + 'a>);

/// Whether this process has `CAP_SYS_RESOURCE`.
fn may_resize() -> bool {
    let status = fs::read_to_string("/proc/self/status").expect("status");
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = u64::from_str_radix(line.expect("capabilities").trim(), 16).expect("hex");
    effective & (1 << 24) != 0
}

/// Large enough for each of them.
fn room(kind: FilesystemKind) -> u64 {
    match kind {
        FilesystemKind::Xfs => 320 * MIB,
        FilesystemKind::Btrfs => 128 * MIB,
        _ => 64 * MIB,
    }
}

#[test]
fn a_filesystem_is_made_once_and_never_over_another() {
    for kind in FilesystemKind::ALL {
        let Some(disk) = Disk::new(room(kind)) else {
            return;
        };
        assert_eq!(disk.probe().expect("probed"), Content::Blank, "{kind}");
        disk.make(kind);
        let found = disk.probe().expect("probed");
        assert!(
            matches!(&found, Content::Filesystem { kind: found, uuid: Some(_) } if *found == kind),
            "{kind}: {found:?}"
        );
        let before = disk.digest();
        for other in FilesystemKind::ALL {
            disk.keeps(other, "another filesystem");
        }
        assert_eq!(disk.digest(), before, "{kind} was written to");
        let image = disk.image();
        assert!(!marker::is_set(&image, room(kind)).expect("read"), "{kind}");
    }
}

#[test]
fn what_others_left_is_never_taken_for_nothing() {
    let Some(disk) = Disk::new(64 * MIB) else {
        return;
    };
    let put = |at: u64, bytes: &[u8]| disk.image().write_all_at(bytes, at).expect("written");
    let clean = || {
        let image = disk.image();
        image.set_len(0).expect("emptied");
        image.set_len(64 * MIB).expect("a size");
        disk.refresh();
    };
    let script = |text: &str| {
        use std::io::Write as _;
        let mut child = Command::new("sfdisk")
            .arg("--quiet")
            .arg(disk.folder.path().join("image"))
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::null())
            .spawn()
            .expect("sfdisk");
        let mut input = child.stdin.take().expect("its input");
        input.write_all(text.as_bytes()).expect("written");
        drop(input);
        assert!(child.wait().expect("an end").success());
    };
    let image = disk.folder.path().join("image");
    let left: Vec<Left<'_>> = vec![
        ("swap", Box::new(|| tool("mkswap", &[], &image))),
        ("ext2", Box::new(|| tool("mkfs.ext2", &["-q"], &image))),
        ("gpt", Box::new(|| script("label: gpt\n,\n"))),
        ("dos", Box::new(|| script("label: dos\n,\n"))),
        ("luks", Box::new(|| put(0, b"LUKS\xba\xbe\0\x01aes\0"))),
        ("a first byte", Box::new(|| put(0, &[1]))),
        ("a byte of a boot sector", Box::new(|| put(511, &[0xaa]))),
        ("a byte at 3 MiB", Box::new(|| put(3 * MIB, &[1]))),
        ("a last byte", Box::new(|| put(64 * MIB - 1, &[1]))),
        ("text", Box::new(|| put(1 << 16, b"a database of my own"))),
    ];
    for (what, leave) in left {
        clean();
        assert_eq!(disk.probe().expect("probed"), Content::Blank);
        leave();
        disk.refresh();
        let before = disk.digest();
        let found = disk.probe();
        assert!(
            !matches!(
                found,
                Ok(Content::Blank | Content::Unfinished | Content::Filesystem { .. })
            ),
            "{what}: {found:?}"
        );
        for kind in [FilesystemKind::Ext4, FilesystemKind::Xfs] {
            disk.keeps(kind, what);
        }
        assert_eq!(disk.digest(), before, "{what} was written to");
    }
}

#[test]
fn a_making_that_was_killed_is_taken_up_again() {
    for kind in [
        FilesystemKind::Ext4,
        FilesystemKind::Xfs,
        FilesystemKind::Btrfs,
    ] {
        let size = room(kind);
        let Some(disk) = Disk::new(size) else { return };
        let image = disk.image();
        marker::set(&image, size).expect("marked");
        image.write_all_at(&[7; 4096], 9 << 12).expect("written");
        disk.refresh();
        assert_eq!(disk.probe().expect("probed"), Content::Unfinished);
        disk.make(kind);
        assert!(matches!(disk.probe(), Ok(Content::Filesystem { .. })));

        // Killed after the last step of mkfs: what was never mounted may not be whole.
        disk.refresh();
        marker::set(&disk.image(), size).expect("marked");
        disk.refresh();
        if kind == FilesystemKind::Ext4 {
            assert_eq!(disk.probe().expect("probed"), Content::Unfinished);
            disk.make(kind);
            disk.refresh();
            // The time of a mount, as the kernel notes it.
            let image = disk.image();
            image.write_all_at(&[1], 1024 + 0x2c).expect("written");
            marker::set(&image, size).expect("marked");
            disk.refresh();
        }
        // In all else there may be something: the mark goes when it is seen.
        let before = disk.probe().expect("probed");
        assert!(matches!(before, Content::Filesystem { .. }));
        assert_eq!(disk.probe().expect("probed"), before);
        disk.refresh();
        assert!(!marker::is_set(&disk.image(), size).expect("read"));
    }
}

#[test]
fn the_mark_outlives_all_that_the_making_does() {
    use exec::testing::{Fault, Flaky};
    for kind in [
        FilesystemKind::Ext3,
        FilesystemKind::Ext4,
        FilesystemKind::Xfs,
        FilesystemKind::Btrfs,
    ] {
        let size = room(kind);
        let Some(disk) = Disk::new(size) else { return };
        // The first command makes the filesystem. It completes, but its result is lost.
        let lost = Flaky::new(Arc::new(Local::new()), 0, Fault::After);
        let tools = Tools::all_through(Arc::new(lost));
        let (kernel, device) = (Kernel::here(), disk.device());
        let settings = FilesystemSettings::default();
        let ensured = ensure(&tools, &kernel, &device, kind, &settings, soon());
        disk.runtime.block_on(ensured).expect_err("lost");
        disk.refresh();
        let image = disk.image();
        assert!(marker::is_set(&image, size).expect("read"), "{kind}");
        // As if it had been killed before its last writes, those of the superblock.
        for at in [0, 1024, 1 << 16] {
            image.write_all_at(&[0; 1024], at).expect("written");
        }
        image.write_all_at(&[7; 4096], 9 << 12).expect("written");
        disk.refresh();
        assert_eq!(disk.probe().expect("probed"), Content::Unfinished, "{kind}");
        disk.make(kind);
        disk.refresh();
        assert!(!marker::is_set(&disk.image(), size).expect("read"));
    }
}

#[test]
fn a_making_that_never_began_leaves_no_mark() {
    use exec::testing::Reply;
    let Some(disk) = Disk::new(64 * MIB) else {
        return;
    };
    let (kernel, device) = (Kernel::here(), disk.device());
    let node = disk.node.display();
    let script = Scripted::new().expect(format!("mkfs.exfat {node}"), Reply::missing());
    let tools = Tools::all_through(Arc::new(script));
    let settings = FilesystemSettings::default();
    let kind = FilesystemKind::Exfat;
    let ensured = ensure(&tools, &kernel, &device, kind, &settings, soon());
    let error = disk.runtime.block_on(ensured).expect_err("no such tool");
    assert!(error.chain().contains("exfatprogs"), "{}", error.chain());
    disk.refresh();
    assert!(!marker::is_set(&disk.image(), 64 * MIB).expect("read"));
    assert_eq!(disk.probe().expect("probed"), Content::Blank);
}

#[test]
fn an_xfs_that_was_never_finished_is_made_again() {
    let Some(disk) = Disk::new(320 * MIB) else {
        return;
    };
    disk.make(FilesystemKind::Xfs);
    disk.refresh();
    // What mkfs.xfs writes first and clears last; read in its source.
    disk.image().write_all_at(&[1], 126).expect("written");
    disk.refresh();
    assert_eq!(disk.probe().expect("probed"), Content::Unfinished);
    disk.make(FilesystemKind::Xfs);
    let found = disk.probe().expect("probed");
    assert!(matches!(found, Content::Filesystem { .. }), "{found:?}");
}

#[test]
fn a_sound_filesystem_passes_its_check() {
    for kind in [
        FilesystemKind::Ext3,
        FilesystemKind::Ext4,
        FilesystemKind::Xfs,
        FilesystemKind::Btrfs,
    ] {
        let Some(disk) = Disk::new(room(kind)) else {
            return;
        };
        disk.make(kind);
        let (tools, kernel, device) = (tools(), Kernel::here(), disk.device());
        let options = CheckOptions::default();
        let checked = check(&tools, &kernel, &device, kind, &options, soon());
        disk.runtime
            .block_on(checked)
            .unwrap_or_else(|error| panic!("{kind}: {}", error.chain()));
    }
}

#[test]
fn a_mounted_filesystem_grows_once_and_then_costs_no_program() {
    for kind in [
        FilesystemKind::Ext4,
        FilesystemKind::Xfs,
        FilesystemKind::Btrfs,
    ] {
        with_own_mounts(move |base| {
            let size = room(kind);
            let Some(disk) = Disk::new(size) else { return };
            disk.make(kind);
            let point = base.join("point");
            fs::create_dir(&point).expect("a directory");
            rustix::mount::mount(&disk.node, &point, kind.name(), MountFlags::empty(), None)
                .unwrap_or_else(|error| panic!("{kind}: {error}"));
            let path = AbsolutePath::parse(point.to_str().expect("text")).expect("a path");
            let (kernel, device) = (Kernel::here(), disk.device());
            let grow = |tools: &Tools| {
                let grown = grow_mounted(tools, &kernel, &device, kind, &path, soon());
                disk.runtime.block_on(grown)
            };
            let blocks = || {
                let vfs = rustix::fs::statvfs(&point).expect("statistics");
                vfs.f_blocks * vfs.f_frsize
            };
            let none = Scripted::new();
            grow(&Tools::all_through(Arc::new(none))).expect("nothing to do");
            let before = blocks();
            disk.resize(size * 2);
            if let Err(error) = grow(&tools()) {
                // Some containers lack the capability that ext4 needs; the error must say so.
                let advice = error.advice().unwrap_or_default();
                assert!(advice.contains("SYS_RESOURCE"), "{kind}: {}", error.chain());
                assert!(
                    kind == FilesystemKind::Ext4 && !may_resize(),
                    "{}",
                    error.chain()
                );
                return;
            }
            assert!(
                blocks() > before + size / 2,
                "{kind}: {before} to {}",
                blocks()
            );
            rustix::mount::unmount(&point, rustix::mount::UnmountFlags::empty()).expect("unmount");
            grow(&Tools::all_through(Arc::new(Scripted::new()))).expect("nothing to do");
        });
    }
}

#[test]
fn a_tool_that_is_missing_is_named_with_its_package() {
    let Some(disk) = Disk::new(64 * MIB) else {
        return;
    };
    let nowhere = Tools::all_through(Arc::new(Local::searching(["/nonexistent"])));
    let (kernel, device) = (Kernel::here(), disk.device());
    // Nothing to find: no program runs.
    let found = disk
        .runtime
        .block_on(probe(&nowhere, &kernel, &device, soon()));
    assert_eq!(found.expect("probed"), Content::Blank);
    assert!(
        disk.runtime
            .block_on(async {
                let settings = FilesystemSettings::default();
                ensure(
                    &nowhere,
                    &kernel,
                    &device,
                    FilesystemKind::Xfs,
                    &settings,
                    soon(),
                )
                .await
            })
            .is_err()
    );
    assert_eq!(disk.probe().expect("probed"), Content::Blank);
    disk.image().write_all_at(&[1], 512).expect("written");
    disk.refresh();
    let found = disk
        .runtime
        .block_on(probe(&nowhere, &kernel, &device, soon()));
    let error = found.expect_err("no blkid");
    assert!(error.chain().contains("util-linux"), "{}", error.chain());
}

#[test]
fn the_type_that_was_asked_for_is_judged_by_its_name() {
    let wanted = |name: &str| FilesystemKind::wanted(Some(&FsType::parse(name).expect("a name")));
    assert_eq!(
        FilesystemKind::wanted(None).expect("default"),
        FilesystemKind::Ext4
    );
    for kind in FilesystemKind::ALL {
        assert_eq!(wanted(kind.name()).expect("known"), kind);
    }
    let old = wanted("ext4dev").expect_err("no such tool");
    assert!(old.chain().contains("`ext4`"), "{}", old.chain());
    let none = wanted("zfs").expect_err("not made here");
    assert!(none.chain().contains("btrfs"), "{}", none.chain());
}
