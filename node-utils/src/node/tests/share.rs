//! Shares, as far as this machine has no server of them: what is refused, and what a failed mount
//! leaves. Whole lives are lived in the lab.

use super::*;
use csi_types::attachment::VolumeContext;

/// This machine has neither Lustre nor a pool: mounting fails at once, and truly.
fn absent(kind: &str) -> Attachment {
    let pairs = [
        ("node_attach_driver", kind),
        ("server", "192.0.2.1@tcp"),
        ("share", "/fs"),
        ("zfs_asset_name", "no-such-pool/volume"),
    ];
    let pairs = pairs.map(|(key, value)| (key.to_owned(), value.to_owned()));
    Attachment::parse(&VolumeContext::from(pairs)).expect("attachment")
}

impl Bench {
    fn stage_share(&self, kind: &str, access: Access) -> Result<(), Error> {
        let request = StageRequest {
            staging: self.staging("s"),
            attachment: absent(kind),
            capability: VolumeCapability {
                access,
                mode: AccessMode::MultiNodeMultiWriter,
            },
            secrets: StageSecrets::default(),
        };
        self.runtime.block_on(self.node.stage(soon(), request))
    }
}

fn mounted() -> Access {
    Access::Mount(MountAccess::default())
}

#[test]
fn a_share_is_no_raw_device_and_nothing_is_made() {
    bench(|bench| {
        for kind in ["nfs", "smb", "lustre"] {
            refused(bench.stage_share(kind, Access::Block), Kind::Invalid);
        }
        assert!(!bench.path("k/s").exists());
        assert_eq!(bench.children.load(Ordering::Relaxed), 0);
    });
}

#[test]
fn a_mount_that_fails_leaves_nothing() {
    bench(|bench| {
        for kind in ["lustre", "zfs-local"] {
            let error = bench
                .stage_share(kind, mounted())
                .expect_err("no such thing");
            assert_eq!(error.effect(), Effect::None, "{}", error.chain());
            assert!(!bench.path("k/s").exists(), "{kind}");
        }
        assert!(bench.children.load(Ordering::Relaxed) >= 2);
    });
}

#[test]
fn a_directory_that_was_there_stays_after_a_mount_that_fails() {
    bench(|bench| {
        fs::create_dir(bench.path("k/s")).expect("dir");
        bench
            .stage_share("lustre", mounted())
            .expect_err("no such thing");
        assert!(bench.path("k/s").is_dir());
    });
}

#[test]
fn what_else_is_mounted_at_the_staging_path_is_neither_used_nor_covered() {
    bench(|bench| {
        bench.stage("one", "s").expect("another volume");
        for kind in ["lustre", "zfs-local"] {
            refused(bench.stage_share(kind, mounted()), Kind::Conflict);
            let request = PublishRequest {
                attachment: absent(kind),
                ..bench.request("t")
            };
            refused(bench.publish(request), Kind::Busy);
        }
        assert_eq!(bench.layers("k/s"), 1);
        assert_eq!(bench.children.load(Ordering::Relaxed), 0);
    });
}
