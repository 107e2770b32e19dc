//! From stage to unstage, once, twice, half and in the wrong order.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::mpsc;

use super::*;
use crate::mount;

#[test]
fn a_volume_lives_its_whole_life_and_leaves_nothing_behind() {
    bench(|bench| {
        let before = bench.mounts();
        bench.stage("one", "s").expect("stage");
        bench.publish(bench.request("t")).expect("publish");
        assert_eq!(bench.mounts(), before + 2);
        fs::write(bench.path("k/t/new"), "content").expect("write");
        assert_eq!(fs::read(bench.path("v/one/new")).expect("read"), b"content");
        bench.unpublish("t").expect("unpublish");
        bench.unstage("s").expect("unstage");
        assert_eq!(bench.mounts(), before);
        assert!(!bench.path("k/t").exists() && !bench.path("k/s").exists());
        assert_eq!(fs::read(bench.path("v/one/new")).expect("read"), b"content");
    });
}

#[test]
fn what_other_programs_mount_and_unmount_is_not_counted() {
    bench(|bench| {
        let elsewhere = tempfile::tempdir().expect("a folder");
        bind_plainly(elsewhere.path(), elsewhere.path());
        bench.stage("one", "s").expect("stage");
        let before = bench.mounts();
        mount::unmount_all_layers(elsewhere.path()).expect("unmount");
        assert_eq!(bench.mounts(), before);
        bench.unstage("s").expect("unstage");
        assert_eq!(bench.mounts(), before - 1);
    });
}

#[test]
fn every_verb_may_be_called_again() {
    bench(|bench| {
        for _ in 0..3 {
            bench.stage("one", "s").expect("stage");
        }
        for _ in 0..3 {
            bench.publish(bench.request("t")).expect("publish");
        }
        assert_eq!((bench.layers("k/s"), bench.layers("k/t")), (1, 1));
        for _ in 0..3 {
            bench.unpublish("t").expect("unpublish");
        }
        for _ in 0..3 {
            bench.unstage("s").expect("unstage");
        }
    });
}

#[test]
fn directories_that_are_made_on_the_way_are_closed_to_others() {
    bench(|bench| {
        bench.stage("one", "a/b/s").expect("stage");
        bench.unstage("a/b/s").expect("unstage");
        for made in ["k/a", "k/a/b"] {
            let mode = fs::metadata(bench.path(made))
                .expect("stat")
                .permissions()
                .mode();
            assert_eq!(mode & 0o7777, 0o750, "{made}");
        }
    });
}

#[test]
fn a_volume_that_does_not_exist_is_not_found_and_leaves_nothing() {
    bench(|bench| {
        refused(bench.stage("three", "s"), Kind::NotFound);
        assert!(!bench.path("k/s").exists());
        fs::write(bench.path("v/file"), "").expect("file");
        refused(bench.stage("file", "s"), Kind::Invalid);
        symlink(bench.path("v/one"), bench.path("v/link")).expect("link");
        refused(bench.stage("link", "s"), Kind::Invalid);
        assert!(!bench.path("k/s").exists());
    });
}

#[test]
fn another_volume_at_the_staging_path_is_a_conflict_and_stays() {
    bench(|bench| {
        bench.stage("two", "s").expect("stage");
        refused(bench.stage("one", "s"), Kind::Conflict);
        assert_eq!(fs::read(bench.path("k/s/name")).expect("read"), b"two");
        assert_eq!(bench.layers("k/s"), 1);
    });
}

#[test]
fn a_staged_volume_whose_directory_was_deleted_is_replaced() {
    bench(|bench| {
        bench.stage("one", "s").expect("stage");
        bench.publish(bench.request("t")).expect("publish");
        fs::remove_dir_all(bench.path("v/one")).expect("remove");
        let publish = || bench.publish(bench.request("t2"));
        refused(publish(), Kind::Busy);
        fs::create_dir(bench.path("v/one")).expect("dir");
        refused(publish(), Kind::Busy);
        assert!(!bench.path("k/t2").exists());
        let _in_use = fs::File::open(bench.path("k/s")).expect("open");
        bench.stage("one", "s").expect("stage over the dead one");
        bench
            .publish(bench.request("t"))
            .expect("publish over the dead one");
        assert_eq!((bench.layers("k/s"), bench.layers("k/t")), (1, 1));
        fs::write(bench.path("k/t/f"), "").expect("write");
        assert!(bench.path("v/one/f").exists());
    });
}

#[test]
fn an_error_after_a_dead_mount_was_taken_away_does_not_claim_that_nothing_changed() {
    bench(|bench| {
        bench.stage("two", "s").expect("stage");
        let error = refused(bench.stage("one", "s"), Kind::Conflict);
        assert_eq!(error.effect(), Effect::None);
        fs::create_dir(bench.path("v/dead")).expect("dir");
        bench.bind("v/dead", "k/s");
        fs::remove_dir(bench.path("v/dead")).expect("remove");
        let error = refused(bench.stage("one", "s"), Kind::Conflict);
        assert_eq!(error.effect(), Effect::Possible);
        assert_eq!(bench.layers("k/s"), 1);

        for file in ["v/file", "k/file"] {
            fs::write(bench.path(file), "").expect("file");
        }
        bind_plainly(&bench.path("v/file"), &bench.path("k/file"));
        fs::remove_file(bench.path("v/file")).expect("remove");
        let error = refused(bench.stage("one", "file"), Kind::Busy);
        assert_eq!(error.effect(), Effect::Possible);
        let error = refused(bench.stage("one", "file"), Kind::Busy);
        assert_eq!(error.effect(), Effect::None);
    });
}

#[test]
fn a_refusal_that_leaves_directories_behind_does_not_claim_that_nothing_changed() {
    bench(|bench| {
        bench.stage("one", "s").expect("stage");
        let only = |target: &str| PublishRequest {
            capability: capability(AccessMode::SingleNodeSingleWriter, ""),
            ..bench.request(target)
        };
        bench.publish(only("t")).expect("publish");
        let error = refused(bench.publish(only("new")), Kind::Busy);
        assert_eq!(error.effect(), Effect::None);
        let error = refused(bench.publish(only("a/new")), Kind::Busy);
        assert_eq!(error.effect(), Effect::Possible);
        assert!(bench.path("k/a").exists() && !bench.path("k/a/new").exists());
    });
}

#[test]
fn an_unstage_that_unmounts_and_finds_content_below_does_not_claim_that_nothing_changed() {
    bench(|bench| {
        fs::create_dir(bench.path("k/s")).expect("dir");
        fs::write(bench.path("k/s/f"), "data").expect("file");
        bench.bind("v/one", "k/s");
        let error = refused(bench.unstage("s"), Kind::Busy);
        assert_eq!(error.effect(), Effect::Possible);
        assert_eq!(bench.layers("k/s"), 0);
        let error = refused(bench.unstage("s"), Kind::Busy);
        assert_eq!(error.effect(), Effect::None);
        assert_eq!(fs::read(bench.path("k/s/f")).expect("read"), b"data");
    });
}

#[test]
fn what_an_older_driver_mounted_is_taken_over() {
    bench(|bench| {
        bench.bind("v/one", "k/s");
        bench.bind("k/s", "k/t");
        bench.stage("one", "s").expect("stage");
        bench.publish(bench.request("t")).expect("publish");
        assert_eq!((bench.layers("k/s"), bench.layers("k/t")), (1, 1));
        bench.unpublish("t").expect("unpublish");
        bench.unstage("s").expect("unstage");
    });
}

#[test]
fn each_half_done_state_is_completed_by_a_retry_and_undone_by_the_opposite() {
    let states: [fn(&Bench); 5] = [
        |_| {},
        |bench| fs::create_dir(bench.path("k/s")).expect("dir"),
        |bench| bench.bind("v/one", "k/s"),
        |bench| {
            bench.bind("v/one", "k/s");
            fs::create_dir(bench.path("k/t")).expect("dir");
        },
        |bench| {
            bench.bind("v/one", "k/s");
            bench.bind("v/one", "k/t");
            bench.bind("v/one", "k/t");
        },
    ];
    for prepare in states {
        bench(move |bench| {
            prepare(bench);
            bench.stage("one", "s").expect("stage");
            bench.publish(bench.request("t")).expect("publish");
            assert_eq!(fs::read(bench.path("k/t/name")).expect("read"), b"one");
            bench.unpublish("t").expect("unpublish");
            bench.unstage("s").expect("unstage");
        });
        bench(move |bench| {
            prepare(bench);
            bench.unpublish("t").expect("unpublish");
            bench.unstage("s").expect("unstage");
            assert!(!bench.path("k/t").exists() && !bench.path("k/s").exists());
            assert_eq!(fs::read(bench.path("v/one/name")).expect("read"), b"one");
        });
    }
}

#[test]
fn unpublish_deletes_an_empty_target_and_no_link_and_nothing_with_content() {
    bench(|bench| {
        fs::write(bench.path("k/empty"), "").expect("file");
        bench.unpublish("empty").expect("unpublish");
        assert!(!bench.path("k/empty").exists());

        fs::write(bench.path("k/full"), "data").expect("file");
        refused(bench.unpublish("full"), Kind::Busy);
        assert_eq!(fs::read(bench.path("k/full")).expect("read"), b"data");

        fs::create_dir(bench.path("k/dir")).expect("dir");
        fs::write(bench.path("k/dir/f"), "data").expect("file");
        let error = refused(bench.unpublish("dir"), Kind::Busy);
        assert_eq!(error.effect(), Effect::None);
        refused(bench.unstage("dir"), Kind::Busy);
        assert!(bench.path("k/dir/f").exists());

        bench.bind("v/one", "k/mounted");
        symlink(bench.path("k/mounted"), bench.path("k/link")).expect("link");
        refused(bench.unpublish("link"), Kind::Busy);
        assert!(bench.path("k/link").is_symlink());
        assert_eq!(
            bench.layers("k/mounted"),
            1,
            "what a link leads to is not touched"
        );

        fs::write(bench.path("k/f"), "").expect("file");
        for _ in 0..2 {
            bind_plainly(&bench.path("v/one/name"), &bench.path("k/f"));
        }
        bench.unpublish("f").expect("unpublish");
        assert!(!bench.path("k/f").exists() && bench.path("v/one/name").exists());
        bench
            .unpublish("missing/deep/below")
            .expect("nothing there");
        bench
            .unpublish("mounted/name/below")
            .expect("nothing can be there");
    });
}

#[test]
fn a_volume_in_use_is_busy_stays_mounted_and_goes_when_it_is_free() {
    bench(|bench| {
        bench.stage("one", "s").expect("stage");
        bench.publish(bench.request("t")).expect("publish");
        let held = fs::File::create(bench.path("k/t/open")).expect("file");
        let error = refused(bench.unpublish("t"), Kind::Busy);
        assert_eq!(error.effect(), Effect::None);
        assert!(is_mounted(&bench.path("k/t")).expect("look"));
        drop(held);
        bench.unpublish("t").expect("unpublish");
    });
}

#[test]
fn a_raw_device_cannot_be_made_of_a_directory() {
    bench(|bench| {
        let block = VolumeCapability {
            access: Access::Block,
            mode: AccessMode::SingleNodeWriter,
        };
        let request = StageRequest {
            staging: bench.staging("s"),
            attachment: bench.attachment("one"),
            capability: block.clone(),
            secrets: StageSecrets::default(),
        };
        let stage = bench.runtime.block_on(bench.node.stage(soon(), request));
        refused(stage, Kind::Invalid);
        bench.stage("one", "s").expect("stage");
        let mut request = bench.request("t");
        request.capability = block;
        refused(bench.publish(request), Kind::Invalid);
        assert!(!bench.path("k/t").exists());
    });
}

#[test]
fn a_call_that_comes_too_late_changes_nothing() {
    bench(|bench| {
        bench.stage("one", "s").expect("stage");
        let late = Limits::until(Instant::now());
        let result = bench.node.publish(late, bench.request("t"));
        let error = refused(bench.runtime.block_on(result), Kind::Timeout);
        assert_eq!(error.effect(), Effect::None);
        assert!(!bench.path("k/t").exists());
    });
}

#[test]
fn expanding_a_directory_needs_it_to_be_mounted() {
    bench(|bench| {
        let expand = |relative: &str| {
            let request = ExpandRequest {
                path: AbsolutePath::parse(&bench.text(relative)).expect("path"),
                required: Some(1 << 30),
            };
            bench.runtime.block_on(bench.node.expand(soon(), request))
        };
        bench.stage("one", "s").expect("stage");
        assert_eq!(expand("k/s").expect("expand"), None);
        refused(expand("k"), Kind::NotFound);
        refused(expand("k/missing"), Kind::NotFound);
    });
}

#[test]
fn a_publication_beside_a_hung_call_is_not_held_up() {
    bench(|bench| {
        bench.stage("one", "s").expect("stage");
        let (release, hung) = mpsc::channel::<()>();
        let guard = std::sync::Arc::new(());
        let limits = Limits::until(Instant::now() + Duration::from_millis(20))
            .holding(std::sync::Arc::clone(&guard));
        let doing = blocking::Doing::changing("hang".to_owned());
        let result = bench
            .runtime
            .block_on(blocking::run(limits, doing, move || {
                let _ = hung.recv();
                Ok(())
            }));
        refused(result, Kind::Timeout);
        assert_eq!(std::sync::Arc::strong_count(&guard), 2, "still held");
        bench.publish(bench.request("t")).expect("publish");
        mount::unmount_all_layers(&bench.path("k/t")).expect("unmount");
        drop(release);
        while std::sync::Arc::strong_count(&guard) > 1 {
            std::thread::yield_now();
        }
    });
}
