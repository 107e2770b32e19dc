//! Space, files and health.

use super::*;
use crate::testing::{remount, small};

fn reason(stats: &VolumeStats) -> &'static str {
    worst(&stats.conditions)
}

fn worst(conditions: &Conditions) -> &'static str {
    let Some(worst) = conditions.worst() else {
        return "Normal";
    };
    assert!(!worst.message().is_empty());
    worst.reason().as_str()
}

#[test]
fn a_published_and_a_staged_volume_have_statistics_and_other_paths_have_none() {
    bench(|bench| {
        bench.stage("one", "s").expect("stage");
        bench.publish(bench.request("t")).expect("publish");
        fs::write(bench.path("k/t/big"), vec![7; 1 << 20]).expect("write");
        for path in ["k/s", "k/t"] {
            let stats = bench.stats(path).expect("stats");
            let (bytes, inodes) = (stats.bytes.expect("bytes"), stats.inodes.expect("inodes"));
            assert!(
                bytes.used >= 1 << 20 && bytes.total >= bytes.used,
                "{bytes:?}"
            );
            assert!(bytes.available <= bytes.total - bytes.used, "{bytes:?}");
            assert!(inodes.used > 0 && inodes.total >= inodes.used, "{inodes:?}");
            assert_eq!(reason(&stats), "Normal");
        }
        refused(bench.stats("k"), Kind::NotFound);
        refused(bench.stats("k/missing"), Kind::NotFound);
        refused(bench.stats("k/t/big/deeper"), Kind::NotFound);
    });
}

#[test]
fn a_volume_whose_directory_was_deleted_is_abnormal() {
    bench(|bench| {
        bench.stage("one", "s").expect("stage");
        fs::remove_dir_all(bench.path("v/one")).expect("remove");
        assert_eq!(
            reason(&bench.stats("k/s").expect("stats")),
            "DirectoryDeleted"
        );
    });
}

#[test]
fn a_filesystem_that_turned_read_only_is_abnormal_and_a_read_only_publication_is_not() {
    bench(|bench| {
        bench.stage("one", "s").expect("stage");
        bench.publish(bench.request("t")).expect("publish");
        let read_only = PublishRequest {
            readonly: true,
            ..bench.request("ro")
        };
        bench.publish(read_only).expect("publish");
        assert_eq!(reason(&bench.stats("k/ro").expect("stats")), "Normal");
        remount(&bench.base, true);
        assert_eq!(
            reason(&bench.stats("k/t").expect("stats")),
            "FilesystemReadOnly"
        );
        assert_eq!(reason(&bench.stats("k/ro").expect("stats")), "Normal");
        remount(&bench.base, false);
        assert_eq!(reason(&bench.stats("k/t").expect("stats")), "Normal");
    });
}

#[test]
fn a_filesystem_without_inodes_or_room_is_abnormal_until_something_is_removed() {
    bench(|bench| {
        small(&bench.path("v"), c"size=1m,nr_inodes=8");
        fs::create_dir(bench.path("v/one")).expect("dir");
        bench.stage("one", "s").expect("stage");
        let reason = || reason(&bench.stats("k/s").expect("stats"));
        assert_eq!(reason(), "Normal");
        let file = |number: u32| bench.path(&format!("v/one/{number}"));
        let made = (0..8)
            .take_while(|number| fs::write(file(*number), "").is_ok())
            .count();
        assert_eq!(reason(), "NoInodesLeft", "{made} files");
        fs::remove_file(file(0)).expect("remove");
        assert_eq!(reason(), "Normal");
        let _ = fs::write(file(1), vec![7; 2 << 20]);
        assert_eq!(reason(), "FilesystemFull");
        fs::remove_file(file(1)).expect("remove");
        assert_eq!(reason(), "Normal");
    });
}

#[test]
fn the_health_of_a_volume_is_that_of_all_its_paths_and_nothing_is_known_without_one() {
    bench(|bench| {
        bench.stage("one", "s").expect("stage");
        bench.publish(bench.request("t")).expect("publish");
        let health = |paths: &[&str]| {
            let path = |path: &&str| AbsolutePath::parse(&bench.text(path)).expect("path");
            let paths: Vec<_> = paths.iter().map(path).collect();
            let found = bench.run(bench.node.conditions(soon(), &paths));
            worst(&found.expect("an answer"))
        };
        assert_eq!(health(&["k/t", "k/s"]), "Normal");
        assert_eq!(health(&[]), "Normal");
        assert_eq!(health(&["k/missing", "k/s"]), "NotMounted");
        remount(&bench.base, true);
        assert_eq!(health(&["k/t", "k/s"]), "FilesystemReadOnly");
        remount(&bench.base, false);
        fs::remove_dir_all(bench.path("v/one")).expect("remove");
        assert_eq!(health(&["k/t", "k/s"]), "DirectoryDeleted");
    });
}
