//! Volumes with a filesystem on a device: loop devices stand in for those of a storage network.

use std::fs::File;
use std::io::Write as _;

use super::*;
use crate::mount;
use csi_types::capability::FsType;

const MIB: u64 = 1 << 20;

/// The smallest that mkfs.xfs makes, and a bit more.
const XFS: u64 = 320 * MIB;

impl Bench {
    pub(super) fn stage_request(
        &self,
        volume: &str,
        staging: &str,
        access: Access,
    ) -> StageRequest {
        StageRequest {
            staging: self.staging(staging),
            attachment: LoopStorage::attachment(volume),
            capability: VolumeCapability {
                access,
                mode: AccessMode::SingleNodeMultiWriter,
            },
            secrets: StageSecrets::default(),
        }
    }

    pub(super) fn stage_device(&self, volume: &str, staging: &str) -> Result<(), Error> {
        let request = self.stage_request(volume, staging, Access::Mount(MountAccess::default()));
        self.run(self.node.stage(soon(), request))
    }

    pub(super) fn stage_block(&self, volume: &str, staging: &str) -> Result<(), Error> {
        let request = self.stage_request(volume, staging, Access::Block);
        self.run(self.node.stage(soon(), request))
    }

    pub(super) fn device_request(&self, volume: &str, target: &str) -> PublishRequest {
        PublishRequest {
            attachment: LoopStorage::attachment(volume),
            ..self.request(target)
        }
    }

    pub(super) fn run<T>(&self, verb: impl Future<Output = T>) -> T {
        self.runtime.block_on(verb)
    }

    pub(super) fn expand(&self, path: &str, required: u64) -> Result<Option<u64>, Error> {
        let request = ExpandRequest {
            path: AbsolutePath::parse(&self.text(path)).expect("path"),
            required: Some(required),
        };
        self.run(self.node.expand(soon(), request))
    }

    /// Nothing of any volume is left on the machine.
    #[track_caller]
    pub(super) fn nothing_is_left(&self, before: usize) {
        assert_eq!(self.storage.attached(), [], "devices");
        assert_eq!(self.mounts(), before, "mounts");
        let left: Vec<_> = fs::read_dir(self.path("k")).expect("list").collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

#[test]
fn a_volume_on_a_device_lives_its_whole_life_and_leaves_nothing_behind() {
    bench(|bench| {
        let before = bench.mounts();
        bench.storage.put("one", XFS);
        // Growing a mounted ext4 needs a privilege that root in a container may not have.
        let xfs = Access::Mount(MountAccess {
            fs_type: Some(FsType::parse("xfs").expect("name")),
            ..MountAccess::default()
        });
        let request = bench.stage_request("one", "s", xfs);
        bench.run(bench.node.stage(soon(), request)).expect("stage");
        bench
            .publish(bench.device_request("one", "t"))
            .expect("publish");
        bench
            .publish(bench.device_request("one", "t2"))
            .expect("publish");
        fs::write(bench.path("k/t/f"), "content").expect("write");
        assert_eq!(fs::read(bench.path("k/t2/f")).expect("read"), b"content");

        let small = bench
            .stats("k/t")
            .expect("stats")
            .bytes
            .expect("bytes")
            .total;
        bench.storage.grow("one", 2 * XFS);
        assert_eq!(bench.expand("k/t", 2 * XFS).expect("expand"), Some(2 * XFS));
        let large = bench
            .stats("k/t")
            .expect("stats")
            .bytes
            .expect("bytes")
            .total;
        assert!(large > small + XFS / 2, "{small} {large}");

        for target in ["t", "t2"] {
            bench.unpublish(target).expect("unpublish");
        }
        bench.unstage("s").expect("unstage");
        bench.unstage("s").expect("unstage again");
        bench.nothing_is_left(before);

        bench.stage_device("one", "s").expect("stage");
        assert_eq!(fs::read(bench.path("k/s/f")).expect("read"), b"content");
        bench.unstage("s").expect("unstage");
        bench.nothing_is_left(before);
    });
}

#[test]
fn a_stage_of_what_is_staged_is_a_success_without_a_child_process() {
    bench(|bench| {
        bench.storage.put("one", 64 * MIB);
        bench.stage_device("one", "s").expect("stage");
        let children = bench.children.load(Ordering::Relaxed);
        let attaches = bench.storage.attaches.load(Ordering::Relaxed);
        bench.stage_device("one", "s").expect("again");
        assert_eq!(bench.children.load(Ordering::Relaxed), children);
        assert_eq!(bench.storage.attaches.load(Ordering::Relaxed), attaches);
        assert_eq!(bench.layers("k/s"), 1);
    });
}

#[test]
fn a_stage_killed_before_its_filesystem_grew_is_finished_by_the_next() {
    bench(|bench| {
        let total = |bench: &Bench| {
            let stats = bench.stats("k/s").expect("stats");
            stats.bytes.expect("bytes").total
        };
        let xfs = || {
            let access = Access::Mount(MountAccess {
                fs_type: Some(FsType::parse("xfs").expect("name")),
                ..MountAccess::default()
            });
            let request = bench.stage_request("one", "s", access);
            bench.run(bench.node.stage(soon(), request)).expect("stage");
        };
        bench.storage.put("one", XFS);
        xfs();
        let small = total(bench);
        bench.unstage("s").expect("unstage");
        bench.storage.grow("one", 2 * XFS);
        xfs();
        let large = total(bench);
        assert!(
            large > small + XFS / 2,
            "a larger volume is a larger filesystem"
        );
        bench.unstage("s").expect("unstage");

        bench.storage.grow("one", 3 * XFS);
        let device = bench.run(bench.storage.attach(
            &LoopStorage::attachment("one"),
            &StageSecrets::default(),
            Instant::now(),
        ));
        let device = device.expect("attach").0.device;
        fs::create_dir(bench.path("k/s")).expect("dir");
        record::begin(mount::Place::open(&bench.path("k/s")).expect("open")).expect("mark");
        let place = mount::Place::open(&bench.path("k/s")).expect("open");
        let node = device.node(&Kernel::here());
        mount::mount_filesystem(&node, "xfs", &mount::MountOptions::default(), &place)
            .expect("mount");
        drop(place);
        assert_eq!(total(bench), large);
        xfs();
        assert!(total(bench) > large + XFS / 2);
        let children = bench.children.load(Ordering::Relaxed);
        xfs();
        assert_eq!(bench.children.load(Ordering::Relaxed), children);
    });
}

#[test]
fn another_volume_at_the_staging_path_is_a_conflict_and_stays() {
    bench(|bench| {
        for volume in ["one", "two"] {
            bench.storage.put(volume, 64 * MIB);
        }
        bench.stage_device("one", "s").expect("stage");
        refused(bench.stage_device("two", "s"), Kind::Conflict);
        refused(bench.stage_block("one", "s"), Kind::Conflict);
        assert_eq!(bench.storage.attached().len(), 1);
        bench.unstage("s").expect("unstage");
        bench.stage_block("one", "s").expect("stage");
        refused(bench.stage_device("one", "s"), Kind::Conflict);
        refused(bench.stage_block("two", "s"), Kind::Conflict);
        assert_eq!(bench.storage.attached().len(), 1);
    });
}

#[test]
fn a_stage_that_fails_takes_back_what_it_attached() {
    bench(|bench| {
        let before = bench.mounts();
        bench.storage.put("one", 64 * MIB);
        bench
            .storage
            .fails_after_attach
            .store(true, Ordering::Relaxed);
        refused(bench.stage_device("one", "s"), Kind::Unreachable);
        bench.nothing_is_left(before);
        refused(bench.stage_device("missing", "s"), Kind::NotFound);
        bench.nothing_is_left(before);
    });
}

#[test]
fn a_device_that_was_attached_and_never_mounted_is_found_by_the_record() {
    bench(|bench| {
        let before = bench.mounts();
        bench.storage.put("one", 64 * MIB);
        // What a process killed between the attach and the mount leaves.
        fs::create_dir(bench.path("k/s")).expect("dir");
        let place = crate::mount::Place::open(&bench.path("k/s")).expect("open");
        let facts = devices::Facts::parse("storage one").expect("facts");
        record::add(&place, &facts).expect("record");
        drop(place);
        let attached = bench.run(bench.storage.attach(
            &LoopStorage::attachment("one"),
            &StageSecrets::default(),
            Instant::now(),
        ));
        attached.expect("attach");
        bench.unstage("s").expect("unstage");
        bench.nothing_is_left(before);
    });
}

#[test]
fn a_stage_that_fails_takes_back_what_earlier_calls_have_recorded_too() {
    bench(|bench| {
        let before = bench.mounts();
        bench.storage.put("one", 64 * MIB);
        bench.storage.put("old", 64 * MIB);
        // What a call has left that was killed, and that knew another way to the volume.
        fs::create_dir(bench.path("k/s")).expect("dir");
        let place = crate::mount::Place::open(&bench.path("k/s")).expect("open");
        let facts = devices::Facts::parse("storage old").expect("facts");
        record::add(&place, &facts).expect("record");
        let attached = bench.run(bench.storage.attach(
            &LoopStorage::attachment("old"),
            &StageSecrets::default(),
            Instant::now(),
        ));
        attached.expect("attach");
        bench
            .storage
            .fails_after_attach
            .store(true, Ordering::Relaxed);
        refused(bench.stage_device("one", "s"), Kind::Unreachable);
        assert!(record::read(&place).expect("read").is_empty());
        drop(place);
        assert_eq!(bench.storage.attached(), []);
        bench.unstage("s").expect("unstage");
        bench.nothing_is_left(before);
    });
}

#[test]
fn a_volume_without_a_record_is_detached_by_what_the_kernel_says() {
    bench(|bench| {
        let before = bench.mounts();
        bench.storage.put("one", 64 * MIB);
        bench.stage_device("one", "s").expect("stage");
        mount::unmount(&bench.path("k/s")).expect("unmount");
        let place = mount::Place::open(&bench.path("k/s")).expect("open");
        assert_eq!(record::read(&place).expect("read").len(), 1);
        record::clear(&place).expect("clear");
        drop(place);
        bench.stage_device("one", "s").expect("stage");
        bench.unstage("s").expect("unstage");
        bench.nothing_is_left(before);
    });
}

#[test]
fn a_volume_in_use_is_neither_unmounted_nor_detached() {
    bench(|bench| {
        let before = bench.mounts();
        bench.storage.put("one", 64 * MIB);
        bench.stage_device("one", "s").expect("stage");
        let held = fs::File::create(bench.path("k/s/open")).expect("file");
        refused(bench.unstage("s"), Kind::Busy);
        assert_eq!(
            (bench.layers("k/s"), bench.storage.attached().len()),
            (1, 1)
        );
        drop(held);
        bench
            .publish(bench.device_request("one", "t"))
            .expect("publish");
        refused(bench.unstage("s"), Kind::Busy);
        assert_eq!(bench.storage.attached().len(), 1, "a pod still has it");
        bench.unpublish("t").expect("unpublish");
        bench.unstage("s").expect("unstage");
        bench.nothing_is_left(before);
    });
}

#[test]
fn several_readers_never_replay_a_journal() {
    for (kind, size) in [
        ("ext3", 64 * MIB),
        ("ext4", 64 * MIB),
        ("xfs", XFS),
        ("btrfs", 128 * MIB),
    ] {
        bench(move |bench| {
            let request = |volume, staging, mode| {
                let access = Access::Mount(MountAccess {
                    fs_type: Some(FsType::parse(kind).expect("a type")),
                    ..MountAccess::default()
                });
                let mut request = bench.stage_request(volume, staging, access);
                request.capability.mode = mode;
                request
            };
            let write = |volume, staging| request(volume, staging, AccessMode::SingleNodeWriter);
            let read = |volume, staging| request(volume, staging, AccessMode::MultiNodeReaderOnly);
            let stage = |request| bench.run(bench.node.stage(soon(), request));
            let bytes = |name| fs::read(bench.storage.file(name)).expect("an image");

            bench.storage.put("one", size);
            stage(write("one", "s")).expect("staged");
            let file = bench.path("k/s/file");
            fs::write(&file, "content").expect("a file");
            rustix::fs::sync();
            // In use, so that it is kept on the list of what is to be deleted, and in the journal.
            let mut open = File::create(&file).expect("a file");
            fs::write(bench.path("k/s/other"), "more").expect("a file");
            open.write_all(b"later").expect("written");
            open.sync_all().expect("on the disk");
            // As a snapshot of a volume in use has it.
            fs::copy(bench.storage.file("one"), bench.storage.file("two")).expect("copied");
            drop(open);
            bench.unstage("s").expect("unstaged");

            let before = bytes("two");
            let error = stage(read("two", "t")).expect_err("it was not unmounted");
            assert_eq!(error.kind(), Kind::Busy, "{kind}: {}", error.chain());
            assert!(
                error.chain().contains("for writing once"),
                "{}",
                error.chain()
            );
            assert!(bytes("two") == before, "{kind} was written to");

            stage(write("two", "t")).expect("staged for writing");
            let text = fs::read(bench.path("k/t/file")).expect("a file");
            assert_eq!(text, b"later", "{kind}");
            bench.unstage("t").expect("unstaged");
            let before = bytes("two");
            stage(read("two", "t")).expect("several may read it");
            assert_eq!(fs::read(bench.path("k/t/file")).expect("a file"), b"later");
            bench.unstage("t").expect("unstaged");
            assert!(bytes("two") == before, "{kind} was written to");
        });
    }
}
