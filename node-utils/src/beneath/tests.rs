//! Working beneath a directory while it is deep, locked, mounted on or under attack.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::*;
use crate::testing::{bind_plainly, with_own_descriptors, with_own_mounts};

const GO_ON: &dyn Fn() -> bool = &|| false;

fn root(path: &Path) -> Root {
    let path = AbsolutePath::parse(path.to_str().expect("text")).expect("path");
    Root::open(&path).expect("open")
}

fn name(text: &str) -> Component {
    Component::parse(text).expect("name")
}

#[test]
fn entries_are_found_listed_in_order_and_removed() {
    let dir = tempfile::tempdir().expect("dir");
    let root = root(dir.path());
    for made in ["b", "a", "a/in"] {
        fs::create_dir(dir.path().join(made)).expect("dir");
    }
    let odd = std::os::unix::ffi::OsStrExt::from_bytes(b"\xff");
    fs::write(dir.path().join::<&std::ffi::OsStr>(odd), "").expect("file");
    assert_eq!(root.list().expect("list"), [name("a"), name("b")]);
    let a = root.open_dir(&name("a")).expect("open");
    assert_eq!(a.list().expect("list"), [name("in")]);
    assert!(root.remove_tree(&name("a"), GO_ON).expect("remove"));
    assert!(!root.remove_tree(&name("a"), GO_ON).expect("gone"));
    let missing = root.open_dir(&name("a")).expect_err("gone");
    assert_eq!(missing.kind(), BeneathErrorKind::NotFound);
    assert!(missing.path().ends_with("/a"));
    symlink("b", dir.path().join("l")).expect("link");
    let link = root.open_dir(&name("l")).expect_err("link");
    assert_eq!(link.kind(), BeneathErrorKind::NotADirectory);
}

#[test]
fn a_tree_of_links_pipes_and_locked_directories_goes_and_what_links_lead_to_stays() {
    let dir = tempfile::tempdir().expect("dir");
    let outside = tempfile::tempdir().expect("dir");
    fs::write(outside.path().join("canary"), "alive").expect("file");
    let tree = dir.path().join("v");
    fs::create_dir_all(tree.join("locked/in")).expect("dir");
    fs::write(tree.join("locked/in/f"), "").expect("file");
    symlink(outside.path(), tree.join("dirlink")).expect("link");
    symlink(outside.path().join("canary"), tree.join("locked/filelink")).expect("link");
    rustix::fs::mkfifoat(rustix::fs::CWD, tree.join("pipe"), Mode::RWXU).expect("pipe");
    for path in ["locked/in", "locked"] {
        fs::set_permissions(tree.join(path), fs::Permissions::from_mode(0o000)).expect("mode");
    }
    assert!(
        root(dir.path())
            .remove_tree(&name("v"), GO_ON)
            .expect("remove")
    );
    assert!(!tree.exists());
    assert_eq!(
        fs::read(outside.path().join("canary")).expect("read"),
        b"alive"
    );
}

#[test]
fn ordinary_users_can_remove_their_locked_directories_too() {
    // Rights are a thread's own: this one gives up those of root.
    let dir = tempfile::tempdir().expect("dir");
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).expect("mode");
    let path = dir.path().to_owned();
    std::thread::spawn(move || {
        if rustix::process::geteuid().is_root() {
            let user = rustix::fs::Uid::from_raw(65534);
            rustix::thread::set_thread_res_uid(user, user, user).expect("become unprivileged");
        }
        let tree = path.join("v");
        fs::create_dir_all(tree.join("locked/in")).expect("dir");
        fs::write(tree.join("locked/f"), "").expect("file");
        for (place, mode) in [("locked/in", 0), ("locked", 0o500), ("", 0)] {
            fs::set_permissions(tree.join(place), fs::Permissions::from_mode(mode)).expect("mode");
        }
        assert!(root(&path).remove_tree(&name("v"), GO_ON).expect("remove"));
        assert!(!tree.exists());
    })
    .join()
    .expect("thread");
}

#[test]
fn ten_thousand_levels_cost_neither_stack_nor_descriptors() {
    with_own_descriptors(|| {
        // In memory where possible: ext4 takes milliseconds for each level.
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        let dir = dir.expect("dir");
        let root = root(dir.path());
        let mut deepest = None;
        for _ in 0..10_000 {
            let place = deepest.as_ref().unwrap_or(&root);
            let flags = OFlags::PATH | OFlags::DIRECTORY;
            rustix::fs::mkdirat(place, "d", Mode::RWXU).expect("make");
            let fd = open_beneath(place, "d", flags, Mounts::Enter).expect("open");
            deepest = Some(Root {
                fd,
                path: root.path.clone(),
            });
        }
        drop(deepest);
        let open = || fs::read_dir("/proc/thread-self/fd").expect("list").count();
        let before = open();
        let (most, parts) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let count = || {
            most.fetch_max(open(), Ordering::Relaxed);
            parts.fetch_max(root.list().expect("list").len(), Ordering::Relaxed);
            false
        };
        assert!(root.remove_tree(&name("d"), &count).expect("remove"));
        assert!(most.into_inner() <= before + 4);
        // Deep parts are moved up: otherwise the time in a container grows with the square of the depth.
        assert_eq!(parts.into_inner(), 2);
        assert_eq!(root.list().expect("list"), []);
    });
}

#[test]
fn a_removal_that_is_stopped_can_be_taken_up_again() {
    let dir = tempfile::tempdir().expect("dir");
    let tree = dir.path().join("v");
    for i in 0..20 {
        fs::create_dir_all(tree.join(format!("{i}/in"))).expect("dir");
    }
    let asked = AtomicUsize::new(0);
    let stop = || asked.fetch_add(1, Ordering::Relaxed) > 30;
    let root = root(dir.path());
    let error = root.remove_tree(&name("v"), &stop).expect_err("stopped");
    assert_eq!(error.kind(), BeneathErrorKind::Interrupted);
    assert!(tree.exists());
    assert!(root.remove_tree(&name("v"), GO_ON).expect("remove"));
}

#[test]
fn a_mount_inside_is_named_and_not_entered() {
    with_own_mounts(|base| {
        let (tree, other) = (base.join("v"), base.join("other"));
        fs::create_dir_all(tree.join("a/mount")).expect("dir");
        fs::create_dir(&other).expect("dir");
        fs::write(other.join("canary"), "alive").expect("file");
        bind_plainly(&other, &tree.join("a/mount"));
        let error = root(base)
            .remove_tree(&name("v"), GO_ON)
            .expect_err("mounted");
        assert_eq!(error.kind(), BeneathErrorKind::Busy);
        assert!(error.path().ends_with("/v/a/mount"), "{}", error.path());
        assert!(other.join("canary").exists());
        // A file can be a mount point too, and so can the top.
        crate::mount::unmount_all_layers(&tree.join("a/mount")).expect("unmount");
        fs::write(tree.join("a/file"), "").expect("file");
        bind_plainly(&other.join("canary"), &tree.join("a/file"));
        let error = root(base)
            .remove_tree(&name("v"), GO_ON)
            .expect_err("mounted");
        assert!(error.path().ends_with("/v/a/file"), "{}", error.path());
        crate::mount::unmount_all_layers(&tree.join("a/file")).expect("unmount");
        bind_plainly(&other, &tree);
        let error = root(base)
            .remove_tree(&name("v"), GO_ON)
            .expect_err("mounted");
        assert_eq!(error.kind(), BeneathErrorKind::Busy);
        crate::mount::unmount_all_layers(&tree).expect("unmount");
        assert!(root(base).remove_tree(&name("v"), GO_ON).expect("remove"));
        assert_eq!(fs::read(other.join("canary")).expect("read"), b"alive");
    });
}

#[test]
fn a_directory_that_is_moved_away_while_it_is_emptied_does_not_take_the_walk_along() {
    let dir = tempfile::tempdir().expect("dir");
    let (parent, outside) = (dir.path().join("v/a"), dir.path().join("outside"));
    let names = ["x1", "x2", "x3"];
    for name in names {
        fs::create_dir_all(parent.join(name)).expect("dir");
        fs::write(parent.join(name).join("f"), "").expect("file");
        fs::write(parent.join(name).join("g"), "").expect("file");
        fs::create_dir_all(outside.join(name)).expect("dir");
        fs::write(outside.join(name).join("canary"), "alive").expect("file");
    }
    let is_half_removed =
        |name: &&str| fs::read_dir(parent.join(name)).is_ok_and(|entries| entries.count() == 1);
    let move_away = || {
        if names.iter().any(is_half_removed) {
            for name in names {
                fs::rename(parent.join(name), outside.join(format!("moved-{name}"))).expect("move");
            }
        }
        false
    };
    let error = root(dir.path())
        .remove_tree(&name("v"), &move_away)
        .expect_err("moved");
    assert_eq!(error.kind(), BeneathErrorKind::Busy);
    for name in names {
        assert!(outside.join(name).join("canary").exists(), "{name}");
    }
    assert!(
        root(dir.path())
            .remove_tree(&name("v"), GO_ON)
            .expect("remove")
    );
}

#[test]
fn a_directory_that_turns_into_a_link_while_it_is_removed_leads_nowhere() {
    let dir = tempfile::tempdir().expect("dir");
    let outside = dir.path().join("outside");
    fs::create_dir(&outside).expect("dir");
    fs::write(outside.join("canary"), "alive").expect("file");
    let over = Arc::new(AtomicBool::new(false));
    let swapped = Arc::new(AtomicUsize::new(0));
    let attacker = std::thread::spawn({
        let (tree, outside, over) = (dir.path().join("v"), outside.clone(), Arc::clone(&over));
        let swapped = Arc::clone(&swapped);
        move || {
            let (door, aside) = (tree.join("door"), tree.join("aside"));
            while !over.load(Ordering::Relaxed) {
                // Whatever of this fails has lost the race, which is as good.
                let _ = fs::create_dir_all(door.join("in"));
                let _ = fs::write(door.join("f"), "");
                let _ = fs::rename(&door, &aside);
                if symlink(&outside, &door).is_ok() {
                    swapped.fetch_add(1, Ordering::Relaxed);
                }
                let _ = fs::remove_file(&door);
                let _ = fs::rename(&aside, &door);
            }
        }
    });
    let root = root(dir.path());
    let mut rounds = 0;
    while rounds < 300 || (swapped.load(Ordering::Relaxed) < 100 && rounds < 20_000) {
        // Losing to an attacker who never tires is allowed, leaving the tree is not.
        let _ = root.remove_tree(&name("v"), GO_ON);
        rounds += 1;
        assert!(outside.join("canary").exists(), "round {rounds}");
    }
    over.store(true, Ordering::Relaxed);
    attacker.join().expect("attacker");
    assert!(
        swapped.load(Ordering::Relaxed) > 0,
        "the attack never took place"
    );
    root.remove_tree(&name("v"), GO_ON).expect("remove");
    assert!(!dir.path().join("v").exists());
    assert_eq!(fs::read(outside.join("canary")).expect("read"), b"alive");
}
