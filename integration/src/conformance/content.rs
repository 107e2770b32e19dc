//! The content of a volume, after snapshots, restores and clones.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;

use csi_proto::v1 as csi;
use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags};

use super::world::World;
use super::{Holds, Target};
use crate::requirement;
use crate::tree::Tree;
use crate::volume;

/// Everything that a copy can get wrong, as far as the filesystem can hold it.
fn furnish(root: &Path, holds: Holds) {
    let at = |name: &str| root.join(name);
    fs::create_dir(at("folder")).expect("a folder");
    fs::write(at("folder/file"), "content").expect("a file");
    fs::write(at("empty"), "").expect("a file");
    fs::write(
        at("large"),
        (0..300_000_u32)
            .flat_map(u32::to_le_bytes)
            .collect::<Vec<_>>(),
    )
    .expect("a file");
    let sparse = fs::File::create(at("sparse")).expect("a file");
    sparse.set_len(6 << 20).expect("a hole");
    rustix::io::pwrite(&sparse, b"island", 3 << 20).expect("an island");
    if holds < Holds::Owners {
        fs::write(at("same-file"), "content").expect("a file");
        return;
    }
    fs::write(at("name\nwith a newline and é"), "x").expect("a file");
    fs::hard_link(at("folder/file"), at("same-file")).expect("a link");
    symlink("/nowhere/at all", at("dangling")).expect("a link");
    symlink("folder/file", at("relative")).expect("a link");
    rustix::fs::mknodat(
        CWD,
        at("fifo"),
        FileType::Fifo,
        Mode::from_raw_mode(0o640),
        0,
    )
    .expect("a fifo");
    fs::write(at("odd-mode"), "x").expect("a file");
    rustix::fs::chown(
        at("odd-mode"),
        Some(rustix::fs::Uid::from_raw(1234)),
        Some(rustix::fs::Gid::from_raw(5678)),
    )
    .expect("an owner");
    fs::set_permissions(at("odd-mode"), fs::Permissions::from_mode(0o6751)).expect("a mode");
    if holds == Holds::Everything {
        attributes(root);
    }
    mark(root);
}

/// Attributes, and an ACL that lets user 1234 read.
fn attributes(root: &Path) {
    let at = |name: &str| root.join(name);
    rustix::fs::lsetxattr(at("folder/file"), "user.note", b"kept", XattrFlags::empty())
        .expect("an attribute");
    rustix::fs::lsetxattr(at("folder"), "trusted.note", b"kept", XattrFlags::empty())
        .expect("an attribute");
    // Version 2, then tag, permissions and id of each entry.
    let mut acl = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in [
        (1_u16, 6_u16, u32::MAX),
        (2, 4, 1234),
        (4, 4, u32::MAX),
        (16, 4, u32::MAX),
        (32, 0, u32::MAX),
    ] {
        acl.extend(tag.to_le_bytes());
        acl.extend(permissions.to_le_bytes());
        acl.extend(id.to_le_bytes());
    }
    rustix::fs::lsetxattr(
        at("empty"),
        "system.posix_acl_access",
        &acl,
        XattrFlags::empty(),
    )
    .expect("an ACL");
}

/// A closed folder, times of long ago.
fn mark(root: &Path) {
    let at = |name: &str| root.join(name);
    fs::create_dir(at("closed")).expect("a folder");
    fs::write(at("closed/file"), "x").expect("a file");
    fs::set_permissions(at("closed"), fs::Permissions::from_mode(0o000)).expect("a mode");
    let then = Timespec {
        tv_sec: 981_173_106,
        tv_nsec: 123_456_789,
    };
    let times = Timestamps {
        last_access: then,
        last_modification: then,
    };
    for name in [
        "folder/file",
        "empty",
        "dangling",
        "fifo",
        "folder",
        "closed",
    ] {
        rustix::fs::utimensat(CWD, at(name), &times, AtFlags::SYMLINK_NOFOLLOW).expect("a time");
    }
}

async fn tree_of(world: &World<'_>, volume: &csi::Volume) -> Tree {
    let pod = world.mount(volume).await;
    let tree = Tree::read_content(&pod);
    let counts_blocks = world.target.holds() >= Holds::Owners;
    if counts_blocks && let Ok(sparse) = fs::metadata(pod.join("sparse")) {
        assert!(
            sparse.blocks() * 512 < 1 << 20,
            "holes are filled: {} blocks",
            sparse.blocks()
        );
    }
    world.unmount(volume).await;
    tree
}

fn same(expected: &Tree, got: &Tree, what: &str) {
    let difference = expected.difference(got);
    assert!(difference.is_empty(), "{what} differs:\n{difference}");
}

/// Whatever happens to the volume after the cut.
pub async fn a_restored_snapshot_is_the_volume_at_the_time_of_the_cut(target: &dyn Target) {
    if !requirement::root("contents of snapshots") {
        return;
    }
    let world = World::start(target).await;
    let source = world.volume("source").await;
    furnish(&world.mount(&source).await, target.holds());
    world.unmount(&source).await;
    let then = tree_of(&world, &source).await;
    let cut = world.cut("cut", &source.volume_id).await;
    assert!(cut.ready_to_use, "a snapshot that nothing polls");
    let pod = world.mount(&source).await;
    fs::write(pod.join("folder/file"), "other content").expect("changed");
    fs::remove_file(pod.join("large")).expect("removed");
    fs::write(pod.join("new"), "x").expect("added");
    world.unmount(&source).await;
    let now = tree_of(&world, &source).await;
    assert!(!then.difference(&now).is_empty(), "the volume was changed");
    // The same cut, asked for again, is not a new cut.
    world.cut("cut", &source.volume_id).await;
    let restore = |name: &str| csi::CreateVolumeRequest {
        volume_content_source: volume::from_snapshot(&cut.snapshot_id),
        capacity_range: volume::at_least(2 * volume::SIZE),
        ..world.create(name)
    };
    let first = world.make(restore("first")).await;
    assert!(
        first.capacity_bytes >= 2 * volume::SIZE,
        "larger than its source"
    );
    same(&then, &tree_of(&world, &first).await, "the restored volume");
    same(&now, &tree_of(&world, &source).await, "the source");
    let pod = world.mount(&first).await;
    fs::write(pod.join("folder/file"), "a third content").expect("a restored volume is its own");
    world.unmount(&first).await;
    world.remove(&source.volume_id).await;
    let second = world.make(restore("second")).await;
    same(
        &then,
        &tree_of(&world, &second).await,
        "the second restored volume",
    );
    world.remove_snapshot(&cut.snapshot_id).await;
    same(
        &then,
        &tree_of(&world, &second).await,
        "a volume whose snapshot is gone",
    );
    world.remove(&first.volume_id).await;
    world.remove(&second.volume_id).await;
    world.end().await;
}

/// A change of either does not show in the other.
pub async fn a_clone_is_its_source_and_then_its_own(target: &dyn Target) {
    if !requirement::root("contents of clones") {
        return;
    }
    let world = World::start(target).await;
    let source = world.volume("source").await;
    furnish(&world.mount(&source).await, target.holds());
    world.unmount(&source).await;
    let then = tree_of(&world, &source).await;
    let request = csi::CreateVolumeRequest {
        volume_content_source: volume::from_volume(&source.volume_id),
        ..world.create("clone")
    };
    let clone = world.make(request).await;
    same(&then, &tree_of(&world, &clone).await, "the clone");
    let pod = world.mount(&source).await;
    fs::write(pod.join("large"), "small").expect("changed");
    world.unmount(&source).await;
    same(
        &then,
        &tree_of(&world, &clone).await,
        "the clone of a source that changed",
    );
    let pod = world.mount(&clone).await;
    fs::remove_file(pod.join("same-file")).expect("removed");
    world.unmount(&clone).await;
    let kept = tree_of(&world, &source).await;
    assert!(
        kept.0.contains_key(Path::new("same-file")),
        "the source lost a file of its clone"
    );
    world.remove(&source.volume_id).await;
    world.remove(&clone.volume_id).await;
    world.end().await;
}
