//! The whole life of a volume on a node: stage, publish twice, write, read back, grow, count, take
//! away; then the bytes on the storage side, and nothing left in the kernel.

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;

use csi_proto::v1::volume_usage::Unit;

use super::calls::Node;
use super::command::run;
use super::content;
use super::fixture::{Access, ExportKind, Fixture, LARGER, SIZE};
use super::leftovers::Leftovers;

/// The name of the file in a volume.
pub const FILE: &str = "content";
/// The length of what is written.
pub const LENGTH: usize = 3 << 20;
/// The place where a device is written: neither its begin nor its end.
const OFFSET: u64 = 17 << 20;

/// The calls of the whole life; a device is also grown.
pub const CALLS: [&str; 5] = [
    "NodeStageVolume",
    "NodePublishVolume",
    "NodeGetVolumeStats",
    "NodeUnpublishVolume",
    "NodeUnstageVolume",
];

/// The whole life.
///
/// # Panics
/// At whatever is wrong in it.
pub async fn whole(export_kind: ExportKind, access: Access) {
    let fixture = export_kind.fixture("life", access);
    let before = Leftovers::read();
    let node = Node::start().await;
    let (first, second) = (node.pod("first"), node.pod("second"));
    let seed = 42;

    step("stage");
    node.stage(&fixture).await.expect("staged");
    let staged = Leftovers::read();
    node.stage(&fixture).await.expect("staged again");
    assert_eq!(
        Leftovers::read(),
        staged,
        "what is staged is not staged twice"
    );

    step("publish");
    for pod in [&first, &second, &first] {
        node.publish(&fixture, pod).await.expect("published");
    }

    step("write");
    write(&fixture, &first, &content::bytes(seed, LENGTH));
    let read = read(&fixture, &second);
    content::same(&content::bytes(seed, LENGTH), &read, "the second pod");

    step("statistics");
    statistics(&node, &fixture, &first).await;
    if fixture.is_device() {
        step("grow");
        grow(&node, &fixture, &first).await;
        let read = self::read(&fixture, &first);
        content::same(&content::bytes(seed, LENGTH), &read, "after growing");
    }

    step("take away");
    for pod in [&first, &second, &second] {
        node.unpublish(&fixture, pod).await.expect("unpublished");
        assert!(!pod.exists(), "an unpublished target is gone");
    }
    for _ in 0..2 {
        node.unstage(&fixture).await.expect("unstaged");
    }
    Leftovers::back_to(&before, "the whole life").await;
    node.end().await;

    step("look at the storage side");
    fixture.remove();
    content::same(
        &content::bytes(seed, LENGTH),
        &stored(&fixture),
        "the storage side",
    );
}

/// The whole life where the host's root is below `/host`, as in a container, with all that is
/// mounted in it, so that the program calls the host's tools by chroot.
///
/// # Panics
/// At whatever is wrong in it.
pub async fn whole_in_a_container(export_kind: ExportKind, access: Access) {
    fs::create_dir("/host").expect("no host's root yet");
    run(&["mount", "--rbind", "/", "/host"]);
    whole(export_kind, access).await;
}

/// Says how far a cell is.
#[expect(clippy::print_stderr, reason = "progress of a cell")]
pub fn step(what: &str) {
    eprintln!("- {what}");
}

/// Writes to a volume through the path of a pod, down to the storage.
///
/// # Panics
/// If it cannot be written.
pub fn write(fixture: &Fixture, pod: &Path, bytes: &[u8]) {
    let mut file = match fixture.access {
        Access::Mount(_) => File::create(pod.join(FILE)).expect("a file can be made"),
        Access::Block => {
            let mut device = OpenOptions::new()
                .write(true)
                .open(pod)
                .expect("the device can be written");
            device.seek(SeekFrom::Start(OFFSET)).expect("an offset");
            device
        }
    };
    file.write_all(bytes).expect("it can be written");
    file.sync_all().expect("it reaches the storage");
}

/// Reads through the path of a pod what [`write()`] wrote.
///
/// # Panics
/// If it cannot be read.
pub fn read(fixture: &Fixture, pod: &Path) -> Vec<u8> {
    match fixture.access {
        Access::Mount(_) => fs::read(pod.join(FILE)).expect("the file is there"),
        Access::Block => {
            let mut device = File::open(pod).expect("the device can be read");
            device.seek(SeekFrom::Start(OFFSET)).expect("an offset");
            let mut bytes = vec![0; LENGTH];
            device.read_exact(&mut bytes).expect("the device has them");
            bytes
        }
    }
}

/// What the storage has of what [`write()`] wrote, when no node has the volume.
///
/// # Panics
/// If it cannot be read.
pub fn stored(fixture: &Fixture) -> Vec<u8> {
    match fixture.access {
        Access::Mount(_) => fixture.stored(FILE),
        Access::Block => fixture.zvol().raw(OFFSET, LENGTH),
    }
}

/// The size that a pod sees: of the device, or of the filesystem.
///
/// # Panics
/// If it cannot be seen.
pub fn size(fixture: &Fixture, pod: &Path) -> u64 {
    match fixture.access {
        Access::Mount(_) => {
            let counts = rustix::fs::statvfs(pod).expect("a filesystem");
            counts.f_blocks * counts.f_frsize
        }
        Access::Block => {
            let mut device = File::open(pod).expect("the device can be read");
            device.seek(SeekFrom::End(0)).expect("a device has an end")
        }
    }
}

async fn statistics(node: &Node, fixture: &Fixture, pod: &Path) {
    let reply = node.stats(fixture, pod).await.expect("statistics");
    let bytes = reply
        .usage
        .iter()
        .find(|usage| usage.unit() == Unit::Bytes)
        .expect("bytes are counted");
    let total = u64::try_from(bytes.total).expect("a size");
    let seen = size(fixture, pod);
    match fixture.access {
        Access::Block => assert_eq!((total, seen), (SIZE, SIZE), "the size of the zvol"),
        // A dataset is as large as what it holds and what the pool has left, which changes.
        Access::Mount(_) if !fixture.is_device() => {
            assert!(
                total.abs_diff(seen) < seen / 50,
                "{total} bytes, not {seen}"
            );
        }
        Access::Mount(_) => {
            assert_eq!(total, seen, "the size that a pod sees");
            let written = i64::try_from(LENGTH).expect("small");
            assert!(bytes.used >= written, "what was written is used: {bytes:?}");
            assert!(bytes.available > 0 && bytes.available <= bytes.total - written);
        }
    }
}

async fn grow(node: &Node, fixture: &Fixture, pod: &Path) {
    let small = size(fixture, pod);
    fixture.grow(LARGER);
    node.expand(fixture, pod, LARGER).await.expect("expanded");
    let large = size(fixture, pod);
    match fixture.access {
        Access::Block => assert_eq!(large, LARGER),
        // What a filesystem keeps for itself does not grow with it.
        Access::Mount(_) => assert!(
            large >= small + (LARGER - SIZE) * 9 / 10,
            "the filesystem had {small} bytes and now has {large}"
        ),
    }
}
