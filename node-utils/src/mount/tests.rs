//! The verbs of mounting on the real kernel.

use std::fs;

use rustix::fs::StatVfsMountFlags;

use super::*;
use crate::testing::with_own_mounts;

fn attributes(list: &str) -> Attributes {
    MountOptions::sort(list.split(',')).attributes
}

#[test]
fn both_ways_of_binding_show_the_source_with_the_flags_asked_for() {
    with_own_mounts(|base| {
        let (source, target) = (base.join("s"), base.join("t"));
        fs::create_dir(&source).expect("dir");
        fs::create_dir(&target).expect("dir");
        fs::write(source.join("f"), "x").expect("file");
        for method in [BindMethod::Atomic, BindMethod::TwoSteps] {
            let from = Place::open(&source).expect("open");
            let to = Place::open(&target).expect("open");
            let flags = attributes("ro,noexec,nosuid,nodev,noatime");
            match method {
                BindMethod::Atomic => bind_whole(&from, &to, flags),
                BindMethod::TwoSteps => bind_in_two_steps(&from, &to, flags),
            }
            .expect("bind");
            assert_eq!(fs::read(target.join("f")).expect("read"), b"x");
            let error = fs::write(target.join("g"), "").expect_err("read-only");
            assert_eq!(
                error.kind(),
                std::io::ErrorKind::ReadOnlyFilesystem,
                "{method:?}"
            );
            let there = Place::open(&target).expect("open");
            assert!(there.is_mount_point() && !to.is_mount_point());
            assert!(
                flags.beyond(there.attributes().expect("flags")).is_empty(),
                "{method:?}"
            );
            fs::write(source.join("g"), "").expect("the source stays writable");
            // Even a descriptor that cannot be read keeps a mount busy.
            drop(there);
            assert_eq!(unmount_all_layers(&target).expect("unmount"), 1);
        }
    });
}

#[test]
fn flags_that_the_source_has_are_never_lost() {
    with_own_mounts(|base| {
        for name in ["s", "m", "t"] {
            fs::create_dir(base.join(name)).expect("dir");
        }
        let open = |name: &str| Place::open(&base.join(name)).expect("open");
        bind_whole(open("s"), open("m"), attributes("nosuid,nodev")).expect("bind");
        for method in [bind_whole, bind_in_two_steps] {
            method(open("m"), open("t"), attributes("noexec,relatime")).expect("bind");
            let flags = open("t").mount_flags().expect("flags");
            let all =
                StatVfsMountFlags::NOSUID | StatVfsMountFlags::NODEV | StatVfsMountFlags::NOEXEC;
            assert!(flags.contains(all), "{flags:?}");
            assert_eq!(unmount_all_layers(&base.join("t")).expect("unmount"), 1);
        }
    });
}

#[test]
fn a_mount_in_use_is_busy_and_stays() {
    with_own_mounts(|base| {
        let (source, target) = (base.join("s"), base.join("t"));
        fs::create_dir(&source).expect("dir");
        fs::create_dir(&target).expect("dir");
        let open = |path: &Path| Place::open(path).expect("open");
        bind(open(&source), open(&target), Attributes::default()).expect("bind");
        let held = fs::File::create(target.join("f")).expect("file");
        let error = unmount(&target).expect_err("in use");
        assert!(error.is_busy());
        assert!(is_mounted(&target).expect("look"));
        drop(held);
        assert!(unmount(&target).expect("unmount"));
        assert!(!unmount(&target).expect("nothing is mounted any more"));
        assert!(!is_mounted(&base.join("missing")).expect("look"));
    });
}

#[test]
fn every_layer_goes_and_a_link_to_a_mount_point_is_not_one() {
    with_own_mounts(|base| {
        let (source, target, link) = (base.join("s"), base.join("t"), base.join("l"));
        fs::create_dir(&source).expect("dir");
        fs::create_dir(&target).expect("dir");
        std::os::unix::fs::symlink(&target, &link).expect("link");
        let open = |path: &Path| Place::open(path).expect("open");
        for _ in 0..3 {
            bind(open(&source), open(&target), Attributes::default()).expect("bind");
        }
        assert_eq!(unmount_all_layers(&link).expect("unmount"), 0);
        assert!(!is_mounted(&link).expect("look"));
        let table = MountTable::read().expect("table");
        assert_eq!(table.layers(&target).count(), 3);
        assert_eq!(unmount_all_layers(&target).expect("unmount"), 3);
    });
}

#[test]
fn a_place_and_the_table_tell_the_same_about_a_mount() {
    with_own_mounts(|base| {
        let (source, target) = (base.join("s p"), base.join("t\\p"));
        fs::create_dir(&source).expect("dir");
        fs::create_dir(&target).expect("dir");
        let open = |path: &Path| Place::open(path).expect("open");
        bind(open(&source), open(&target), attributes("ro")).expect("bind");
        let table = MountTable::read().expect("table");
        let place = open(&target);
        let entry = place.entry(&table).expect("entry");
        assert!(entry.is_at(&target) && entry.is_read_only() && !entry.is_deleted());
        assert!(!entry.is_filesystem_read_only());
        assert_eq!(entry.root(), Path::new("/s p"));
        fs::remove_dir(&source).expect("remove");
        let table = MountTable::read().expect("table");
        let place = open(&target);
        assert!(place.is_deleted());
        assert!(place.entry(&table).expect("entry").is_deleted());
    });
}
