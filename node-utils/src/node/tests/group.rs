//! Volumes that have to belong to a group.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::*;

const GROUP: u32 = 4321;

fn for_group(bench: &Bench, target: &str) -> PublishRequest {
    let access = MountAccess {
        group: Some(GROUP),
        ..MountAccess::default()
    };
    PublishRequest {
        capability: VolumeCapability {
            access: Access::Mount(access),
            mode: AccessMode::SingleNodeMultiWriter,
        },
        ..bench.request(target)
    }
}

fn owner(path: PathBuf) -> (u32, u32) {
    let stat = fs::symlink_metadata(path).expect("stat");
    (stat.gid(), stat.mode() & 0o7777)
}

fn set_mode(path: PathBuf, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("mode");
}

#[test]
fn everything_in_the_volume_gets_the_group_and_nothing_outside_of_it() {
    bench(|bench| {
        fs::create_dir_all(bench.path("v/one/d/e")).expect("dir");
        fs::write(bench.path("v/one/d/e/program"), "").expect("file");
        fs::write(bench.path("outside"), "").expect("file");
        symlink(bench.path("outside"), bench.path("v/one/d/link")).expect("link");
        symlink(&bench.base, bench.path("v/one/up")).expect("link");
        set_mode(bench.path("v/one/d"), 0o700);
        set_mode(bench.path("v/one/name"), 0o600);
        set_mode(bench.path("v/one/d/e/program"), 0o4700);
        bench.stage("one", "s").expect("stage");
        bench.bind("v/two", "k/s/d/mount");
        fs::write(bench.path("k/s/d/file"), "").expect("file");
        bind_plainly(&bench.path("outside"), &bench.path("k/s/d/file"));
        let before = (owner(bench.path("outside")), owner(bench.path("v/two")));
        bench.publish(for_group(bench, "t")).expect("publish");
        assert_eq!(owner(bench.path("v/one")), (GROUP, 0o2775));
        assert_eq!(owner(bench.path("v/one/d")), (GROUP, 0o2770));
        assert_eq!(owner(bench.path("v/one/name")), (GROUP, 0o660));
        assert_eq!(owner(bench.path("v/one/d/e/program")), (GROUP, 0o4770));
        assert_eq!(owner(bench.path("v/one/d/link")).0, GROUP);
        let after = (owner(bench.path("outside")), owner(bench.path("v/two")));
        assert_eq!(before, after);
    });
}

#[test]
fn a_finished_walk_is_not_repeated_and_an_unfinished_one_is() {
    bench(|bench| {
        bench.stage("one", "s").expect("stage");
        bench.publish(for_group(bench, "t")).expect("publish");
        chown(bench.path("v/one/name"), None, Some(7)).expect("chown");
        bench.publish(for_group(bench, "t2")).expect("publish");
        assert_eq!(
            owner(bench.path("v/one/name")).0,
            7,
            "the pod's own choice stays"
        );
        // As a killed walk leaves it: the root comes last.
        chown(bench.path("v/one"), None, Some(0)).expect("chown");
        bench.publish(for_group(bench, "t3")).expect("publish");
        assert_eq!(owner(bench.path("v/one/name")).0, GROUP);
    });
}

#[test]
fn a_read_only_publication_changes_no_owner() {
    bench(|bench| {
        bench.stage("one", "s").expect("stage");
        let before = owner(bench.path("v/one"));
        let request = PublishRequest {
            readonly: true,
            ..for_group(bench, "t")
        };
        bench.publish(request).expect("publish");
        assert_eq!(owner(bench.path("v/one")), before);
    });
}

#[test]
fn a_pod_that_swaps_directories_for_links_cannot_lead_the_walk_outside() {
    bench(|bench| {
        fs::create_dir_all(bench.path("outside/in")).expect("dir");
        fs::write(bench.path("outside/canary"), "").expect("file");
        bench.stage("one", "s").expect("stage");
        let over = Arc::new(AtomicBool::new(false));
        let swapped = Arc::new(AtomicUsize::new(0));
        let (volume, outside) = (bench.path("v/one"), bench.path("outside"));
        let attacker = std::thread::spawn({
            let (over, swapped) = (Arc::clone(&over), Arc::clone(&swapped));
            move || {
                let (door, aside) = (volume.join("door"), volume.join("aside"));
                fs::create_dir_all(door.join("in")).expect("dir");
                fs::write(door.join("canary"), "").expect("file");
                while !over.load(Ordering::Relaxed) {
                    fs::rename(&door, &aside).expect("rename");
                    symlink(&outside, &door).expect("link");
                    swapped.fetch_add(1, Ordering::Relaxed);
                    fs::remove_file(&door).expect("remove");
                    fs::rename(&aside, &door).expect("rename");
                }
            }
        });
        let before =
            ["outside", "outside/in", "outside/canary"].map(|path| owner(bench.path(path)));
        for _ in 0..100 {
            // Giving up is allowed, leaving the volume is not.
            let _ = bench.publish(for_group(bench, "t"));
            bench.unpublish("t").expect("unpublish");
            chown(bench.path("v/one"), None, Some(0)).expect("chown");
        }
        over.store(true, Ordering::Relaxed);
        attacker.join().expect("attacker");
        assert!(
            swapped.load(Ordering::Relaxed) > 0,
            "the attack never took place"
        );
        let after = ["outside", "outside/in", "outside/canary"].map(|path| owner(bench.path(path)));
        assert_eq!(before, after);
    });
}
