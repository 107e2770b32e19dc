//! Raw devices, shown as device nodes.

use std::io::{Read as _, Write as _};

use super::*;

const MIB: u64 = 1 << 20;

fn raw(mut request: PublishRequest) -> PublishRequest {
    request.capability.access = Access::Block;
    request
}

fn write(path: &Path, text: &str) -> std::io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

fn read(path: &Path, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    fs::File::open(path)
        .expect("open")
        .read_exact(&mut bytes)
        .expect("read");
    bytes
}

#[test]
fn a_raw_device_lives_its_whole_life_and_leaves_nothing_behind() {
    bench(|bench| {
        let before = bench.mounts();
        bench.storage.put("one", 16 * MIB);
        bench.stage_block("one", "s").expect("stage");
        bench.stage_block("one", "s").expect("again");
        assert_eq!(bench.layers("k/s/block_device"), 1);
        let request = raw(bench.device_request("one", "pod/t"));
        bench.publish(request.clone()).expect("publish");
        bench.publish(request).expect("again");
        assert_eq!(bench.layers("k/pod/t"), 1);
        write(&bench.path("k/pod/t"), "content").expect("write");
        assert_eq!(read(&bench.storage.file("one"), 7), b"content");

        for path in ["k/s", "k/pod/t"] {
            let stats = bench.stats(path).expect("stats");
            assert_eq!(stats.bytes.expect("bytes").total, 16 * MIB);
            assert!(stats.conditions.is_healthy());
        }
        bench.storage.grow("one", 32 * MIB);
        assert_eq!(
            bench.expand("k/pod/t", 32 * MIB).expect("expand"),
            Some(32 * MIB)
        );
        bench.storage.grow("one", 48 * MIB);
        assert_eq!(
            bench.expand("k/s", 48 * MIB).expect("expand"),
            Some(48 * MIB)
        );

        bench.unpublish("pod/t").expect("unpublish");
        fs::remove_dir(bench.path("k/pod")).expect("the parent is the orchestrator's");
        bench.unstage("s").expect("unstage");
        bench.nothing_is_left(before);
        assert_eq!(bench.children.load(Ordering::Relaxed), 0, "child processes");
    });
}

#[test]
fn a_read_only_raw_device_cannot_be_written_and_the_other_publication_can() {
    bench(|bench| {
        let before = bench.mounts();
        bench.storage.put("one", 16 * MIB);
        bench.stage_block("one", "s").expect("stage");
        let read_only = PublishRequest {
            readonly: true,
            ..raw(bench.device_request("one", "ro"))
        };
        bench.publish(read_only.clone()).expect("publish");
        bench.publish(read_only.clone()).expect("again");
        let writable = raw(bench.device_request("one", "rw"));
        bench.publish(writable.clone()).expect("publish");
        write(&bench.path("k/rw"), "content").expect("write");
        let error = write(&bench.path("k/ro"), "evil").expect_err("read-only");
        assert!(
            matches!(
                error.raw_os_error(),
                Some(libc::EPERM | libc::EROFS | libc::EACCES)
            ),
            "{error}"
        );
        assert_eq!(read(&bench.path("k/ro"), 7), b"content");

        let other = |target: &str| PublishRequest {
            target: bench.target(target),
            ..read_only.clone()
        };
        refused(bench.publish(other("rw")), Kind::Conflict);
        let other = PublishRequest {
            target: bench.target("ro"),
            ..writable
        };
        refused(bench.publish(other), Kind::Conflict);

        bench.storage.grow("one", 32 * MIB);
        assert_eq!(
            bench.expand("k/ro", 32 * MIB).expect("expand"),
            Some(32 * MIB)
        );
        let stats = bench.stats("k/ro").expect("stats");
        assert_eq!(stats.bytes.expect("bytes").total, 32 * MIB);

        for target in ["ro", "rw"] {
            bench.unpublish(target).expect("unpublish");
        }
        bench.unstage("s").expect("unstage");
        bench.nothing_is_left(before);
    });
}

#[test]
fn a_read_only_device_of_a_killed_publication_is_found_again_or_removed() {
    bench(|bench| {
        let before = bench.mounts();
        let kernel = Kernel::here();
        bench.storage.put("one", 16 * MIB);
        bench.stage_block("one", "s").expect("stage");
        let device = bench.storage.device("one");
        let faces = || Loop::all_over(&kernel, &device).expect("look").len();
        let killed = || {
            fs::write(bench.path("k/t"), "").expect("file");
            let label = crate::loops::Label::of(&bench.text("k/t"));
            Loop::over(&kernel, &device, &label).expect("made");
            assert_eq!(faces(), 1);
        };
        killed();
        let request = PublishRequest {
            readonly: true,
            ..raw(bench.device_request("one", "t"))
        };
        bench.publish(request).expect("publish");
        assert_eq!(faces(), 1);
        bench.unpublish("t").expect("unpublish");
        assert_eq!(faces(), 0);
        killed();
        bench.unpublish("t").expect("unpublish");
        assert_eq!(faces(), 0);
        killed();
        bench.unstage("s").expect("unstage");
        fs::remove_file(bench.path("k/t")).expect("remove");
        bench.nothing_is_left(before);
    });
}

#[test]
fn a_single_writer_of_a_raw_device_has_one_target() {
    bench(|bench| {
        bench.storage.put("one", 16 * MIB);
        bench.stage_block("one", "s").expect("stage");
        let only = |target: &str, readonly: bool| PublishRequest {
            capability: VolumeCapability {
                access: Access::Block,
                mode: AccessMode::SingleNodeSingleWriter,
            },
            readonly,
            ..bench.device_request("one", target)
        };
        for readonly in [false, true] {
            bench.publish(only("t", readonly)).expect("publish");
            bench.publish(only("t", readonly)).expect("the same again");
            let error = refused(bench.publish(only("other", false)), Kind::Busy);
            assert!(
                error.chain().contains(&bench.text("k/t")),
                "{}",
                error.chain()
            );
            assert!(!bench.path("k/other").exists());
            bench.unpublish("t").expect("unpublish");
        }
        bench.publish(only("other", false)).expect("publish");
    });
}

#[test]
fn layers_that_an_older_driver_stacked_are_one_volume_and_all_go() {
    bench(|bench| {
        let before = bench.mounts();
        bench.storage.put("one", 16 * MIB);
        bench.stage_block("one", "s").expect("stage");
        let node = bench.storage.device("one").node(&Kernel::here());
        for _ in 0..3 {
            bind_plainly(&node, &bench.path("k/s/block_device"));
        }
        fs::write(bench.path("k/t"), "").expect("file");
        for _ in 0..2 {
            bind_plainly(&bench.path("k/s/block_device"), &bench.path("k/t"));
        }
        bench.stage_block("one", "s").expect("stage");
        bench
            .publish(raw(bench.device_request("one", "t")))
            .expect("publish");
        assert_eq!(
            (bench.layers("k/s/block_device"), bench.layers("k/t")),
            (4, 2)
        );
        bench.unpublish("t").expect("unpublish");
        bench.unstage("s").expect("unstage");
        bench.nothing_is_left(before);
    });
}

#[test]
fn a_device_that_is_gone_is_not_taken_for_the_one_that_got_its_number() {
    bench(|bench| {
        let before = bench.mounts();
        bench.storage.put("two", 16 * MIB);
        bench.stage_block("two", "s2").expect("stage");
        // What is left of a volume whose device has gone: its node, deleted, and still shown.
        let number = bench.storage.device("two").number();
        let node = bench.path("node");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        let number = rustix::fs::makedev(number.major, number.minor);
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &node,
            rustix::fs::FileType::BlockDevice,
            mode,
            number,
        )
        .expect("node");
        fs::create_dir(bench.path("k/s")).expect("dir");
        fs::write(bench.path("k/s/block_device"), "").expect("file");
        bind_plainly(&node, &bench.path("k/s/block_device"));
        fs::remove_file(&node).expect("deleted");

        bench.unstage("s").expect("nothing of it is attached");
        assert_eq!(bench.storage.attached().len(), 1, "the other one stays");
        bench.unstage("s2").expect("unstage");
        bench.nothing_is_left(before);
    });
}

#[test]
fn what_is_written_to_a_raw_device_is_never_taken_for_an_unfinished_filesystem() {
    use crate::filesystem::marker;
    bench(|bench| {
        let before = bench.mounts();
        bench.storage.put("one", 64 * MIB);
        let file = || {
            let file = fs::File::options()
                .read(true)
                .write(true)
                .open(bench.storage.file("one"));
            file.expect("volume")
        };
        // As a `mkfs` leaves it that could not do its work.
        marker::set(&file(), 64 * MIB).expect("mark");
        bench.stage_block("one", "s").expect("stage");
        write(&bench.path("k/s/block_device"), "a database of my own").expect("write");
        bench.unstage("s").expect("unstage");
        refused(bench.stage_device("one", "s"), Kind::Busy);
        assert_eq!(read(&bench.storage.file("one"), 10), b"a database");
        bench.nothing_is_left(before);
    });
}

/// A volume that is made of another one has its blocks, however either is used.
#[test]
fn a_filesystem_is_restored_as_a_raw_device_and_a_raw_device_as_a_filesystem() {
    bench(|bench| {
        let before = bench.mounts();
        let copied = |from: &str, to: &str| {
            let (from, to) = (bench.storage.file(from), bench.storage.file(to));
            fs::copy(from, to).expect("copy");
        };
        let blocks = |name: &str| fs::read(bench.storage.file(name)).expect("volume");
        bench.storage.put("mounted", 64 * MIB);
        bench.stage_device("mounted", "s").expect("stage");
        fs::write(bench.path("k/s/f"), "content").expect("write");
        bench.unstage("s").expect("unstage");

        // The device is shown as it is: nothing is mounted, made or changed.
        copied("mounted", "raw");
        let children = bench.children.load(Ordering::Relaxed);
        bench.stage_block("raw", "s").expect("stage");
        let request = raw(bench.device_request("raw", "t"));
        bench.publish(request).expect("publish");
        let shown = fs::read(bench.path("k/t")).expect("read");
        assert!(shown == blocks("mounted"), "other blocks");
        assert_eq!(bench.children.load(Ordering::Relaxed), children);
        bench.unpublish("t").expect("unpublish");
        bench.unstage("s").expect("unstage");
        assert!(blocks("raw") == blocks("mounted"), "changed blocks");

        // A program that restores a backup writes the blocks, and the volume is mounted afterwards.
        bench.storage.put("written", 64 * MIB);
        bench.stage_block("written", "s").expect("stage");
        let device = fs::OpenOptions::new()
            .write(true)
            .open(bench.path("k/s/block_device"));
        let mut device = device.expect("open");
        device.write_all(&shown).expect("write");
        device.sync_all().expect("sync");
        drop(device);
        bench.unstage("s").expect("unstage");
        for volume in ["written", "raw"] {
            let restored = format!("of-{volume}");
            copied(volume, &restored);
            bench.stage_device(&restored, "s").expect("stage");
            assert_eq!(fs::read(bench.path("k/s/f")).expect("read"), b"content");
            bench.unstage("s").expect("unstage");
        }

        // What is no filesystem is never made one.
        bench.storage.put("data", 64 * MIB);
        bench.stage_block("data", "s").expect("stage");
        write(&bench.path("k/s/block_device"), "a database of my own").expect("write");
        bench.unstage("s").expect("unstage");
        copied("data", "kept");
        refused(bench.stage_device("kept", "s"), Kind::Busy);
        assert!(blocks("kept") == blocks("data"), "changed blocks");
        bench.nothing_is_left(before);
    });
}
