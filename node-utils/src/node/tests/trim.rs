//! Unused blocks that go back to the storage: what is trimmed, and what is not.

use std::fs::File;
use std::os::unix::fs::MetadataExt as _;

use super::*;
use csi_types::capability::FsType;

const MIB: u64 = 1 << 20;
/// The smallest that mkfs.xfs makes, and a bit more.
const SIZE: u64 = 320 * MIB;
/// The bytes of a file.
const WRITTEN: usize = 64 << 20;

impl Bench {
    fn trim(&self, path: &str) -> Result<Option<u64>, Error> {
        self.trim_until(path, soon())
    }

    fn trim_until(&self, path: &str, limits: Limits) -> Result<Option<u64>, Error> {
        let path = AbsolutePath::parse(&self.text(path)).expect("path");
        self.run(self.node.trim(limits, path))
    }

    /// Trims until a volume takes no more than `aim`, and gives what it takes then or when the patience ends.
    fn trim_until_less(&self, name: &str, aim: u64, patience: Instant) -> Result<u64, Error> {
        loop {
            assert!(self.trim("k/s")?.is_some());
            let taken = self.taken(name);
            if taken <= aim || Instant::now() > patience {
                return Ok(taken);
            }
            self.run(async { tokio::time::sleep(Duration::from_millis(100)).await });
        }
    }

    /// The bytes that a volume takes on its storage.
    fn taken(&self, name: &str) -> u64 {
        let meta = fs::metadata(self.storage.file(name)).expect("a volume");
        meta.blocks() * 512
    }
}

#[test]
fn deleted_files_give_their_blocks_back_on_each_filesystem() {
    bench(|bench| {
        for kind in ["ext4", "xfs"] {
            bench.storage.put(kind, SIZE);
            let mount = Access::Mount(MountAccess {
                fs_type: Some(FsType::parse(kind).expect("name")),
                ..MountAccess::default()
            });
            let request = bench.stage_request(kind, "s", mount);
            bench.run(bench.node.stage(soon(), request)).expect("stage");
            fs::write(bench.path("k/s/f"), vec![1; WRITTEN]).expect("write");
            let disk = || File::open(bench.path("k/s")).expect("open");
            rustix::fs::syncfs(disk()).expect("sync");
            let full = bench.taken(kind);
            fs::remove_file(bench.path("k/s/f")).expect("remove");
            rustix::fs::syncfs(disk()).expect("sync");
            // XFS frees the blocks of a removed file a while after the removal.
            let patience = Instant::now() + Duration::from_mins(1);
            for _ in 0..2 {
                match bench.trim_until_less(kind, full - 60 * MIB, patience) {
                    Ok(taken) => assert!(taken <= full - 60 * MIB, "{kind}: {taken} of {full}"),
                    // The filesystem below the loop device cannot.
                    Err(error) => {
                        assert_eq!(error.kind(), Kind::Unsupported, "{}", error.chain());
                        eprintln!("not tested: {}", error.chain());
                    }
                }
            }
            bench.unstage("s").expect("unstage");
        }
    });
}

#[test]
fn a_raw_device_keeps_its_content_and_what_is_not_a_disk_of_ours_is_not_trimmed() {
    bench(|bench| {
        let absent = bench.trim("k/s").expect_err("nothing is there");
        assert_eq!(absent.kind(), Kind::NotFound);

        bench.storage.put("one", 64 * MIB);
        fs::write(bench.storage.file("one"), vec![7; WRITTEN]).expect("write");
        bench.stage_block("one", "s").expect("stage");
        let before = bench.taken("one");
        assert_eq!(bench.trim("k/s").expect("nothing to do"), None);
        assert_eq!(bench.taken("one"), before);
        bench.unstage("s").expect("unstage");

        fs::create_dir(bench.path("k/d")).expect("dir");
        bind_plainly(&bench.path("v/one"), &bench.path("k/d"));
        let error = bench.trim("k/d").expect_err("a directory");
        assert_eq!(
            (error.kind(), error.effect()),
            (Kind::Unsupported, Effect::None)
        );
    });
}

#[test]
fn a_trim_whose_time_is_over_is_no_success() {
    bench(|bench| {
        bench.storage.put("one", 64 * MIB);
        bench.stage_device("one", "s").expect("stage");
        let over = Limits::until(Instant::now());
        let error = bench.trim_until("k/s", over).expect_err("late");
        assert_eq!(error.kind(), Kind::Timeout);
        bench.unstage("s").expect("unstage");
    });
}
