//! The attributes that a snapshot keeps, attribute by attribute, on every filesystem that can be had here.

use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{Place, call, cannot, driver, id, leftovers, request};
use crate::fidelity::{Image, describe, plant};
use crate::pending::ready;
use driver_core::{DeleteSnapshot, DeleteVolume, Driver, Kind, Snapshots as _, Source};
use rustix::fs::{Mode, OFlags};

/// A driver on `base`, which belongs to another user.
async fn copies_are_whole_on(base: &Path, reflink: bool) {
    let driver = driver(base, "");
    driver
        .create_volume(&call(), &request("pvc-1"))
        .await
        .expect("volume");
    let source = base.join("v/pvc-1");
    let planted = plant(&source);
    let before = describe(&source);
    assert!(before.len() >= planted, "{} of {planted}", before.len());
    let taken = ready(&driver, "pvc-1", "s").await.expect("snapshot");
    assert_eq!(describe(&source), before, "the source is as it was");
    assert_eq!(describe(&base.join("s/pvc-1-s")), before, "snapshot");
    for (name, from) in [
        ("pvc-2", Source::Snapshot(taken.id.clone())),
        ("pvc-3", Source::Volume(id("pvc-1"))),
    ] {
        let mut wanted = request(name);
        wanted.source = Some(from);
        driver.create_volume(&call(), &wanted).await.expect("copy");
        assert_eq!(describe(&base.join("v").join(name)), before, "{name}");
    }
    let file = std::fs::File::create(source.join("large")).expect("file");
    let block = vec![7_u8; 1 << 20];
    for number in 0..32 {
        file.write_all_at(&block, number << 20).expect("write");
    }
    file.sync_all().expect("sync");
    let free = || rustix::fs::statvfs(base).expect("space").f_bfree * 4096;
    let space = free();
    let mut wanted = request("pvc-4");
    wanted.source = Some(Source::Volume(id("pvc-1")));
    driver.create_volume(&call(), &wanted).await.expect("copy");
    let copy = std::fs::read(base.join("v/pvc-4/large")).expect("copy");
    assert!(copy.len() == 32 << 20 && copy.iter().all(|byte| *byte == 7));
    if reflink {
        let used = space.saturating_sub(free());
        assert!(
            used < 16 << 20,
            "{used} bytes for a copy that shares its data"
        );
    }
    for name in ["pvc-1", "pvc-2", "pvc-3", "pvc-4"] {
        driver
            .delete_volume(&call(), DeleteVolume::new(&id(name)))
            .await
            .expect("delete");
    }
    driver
        .delete_snapshot(&call(), DeleteSnapshot::new(&taken.id))
        .await
        .expect("delete");
    assert!(leftovers(base).is_empty());
    let left = |shelf| std::fs::read_dir(base.join(shelf)).expect("list").count();
    assert_eq!((left("v"), left("s")), (0, 0));
}

#[tokio::test]
async fn a_copy_keeps_every_attribute_where_files_are_streamed() {
    let place = Place::new();
    copies_are_whole_on(&place.base(), false).await;
}

#[tokio::test]
async fn a_copy_keeps_every_attribute_and_shares_its_data_on_btrfs() {
    match Image::mount("btrfs", &["mkfs.btrfs", "-q"]) {
        Ok(image) => copies_are_whole_on(&image.path(), true).await,
        Err(why) => cannot(&why),
    }
}

#[tokio::test]
async fn a_copy_keeps_every_attribute_and_shares_its_data_on_xfs() {
    match Image::mount("xfs", &["mkfs.xfs", "-q"]) {
        Ok(image) => copies_are_whole_on(&image.path(), true).await,
        Err(why) => cannot(&why),
    }
}

#[tokio::test]
async fn a_full_disk_fails_the_copy_and_the_copy_alone() {
    let image = match Image::mount("ext4", &["mkfs.ext4", "-q", "-F"]) {
        Ok(image) => image,
        Err(why) => return cannot(&why),
    };
    let base = image.path();
    let driver = driver(&base, "");
    driver
        .create_volume(&call(), &request("pvc-1"))
        .await
        .expect("volume");
    let file = base.join("v/pvc-1/large");
    let size = usize::try_from(crate::fidelity::IMAGE_SIZE * 6 / 10).expect("size");
    std::fs::write(&file, vec![1_u8; size]).expect("file");
    let mut wanted = request("pvc-2");
    wanted.source = Some(Source::Volume(id("pvc-1")));
    let full = driver
        .create_volume(&call(), &wanted)
        .await
        .expect_err("full");
    assert_eq!(full.kind(), Kind::OutOfSpace, "{}", full.chain());
    assert!(!base.join("v/pvc-2").exists());
    assert!(
        leftovers(&base).is_empty(),
        "the room is free again at once"
    );
    std::fs::File::options()
        .write(true)
        .open(&file)
        .expect("file")
        .set_len(10)
        .expect("cut");
    driver
        .create_volume(&call(), &wanted)
        .await
        .expect("a retry converges");
    assert!(leftovers(&base).is_empty());
}

/// Opens or makes directories one in the other; gives the last one and how many there are.
fn dig(top: &Path, make: Option<usize>) -> (OwnedFd, usize) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let mut dir = rustix::fs::open(top, flags, Mode::empty()).expect("top");
    let mut depth = 0;
    loop {
        if make.is_some_and(|wanted| depth < wanted) {
            rustix::fs::mkdirat(&dir, "down", Mode::RWXU).expect("make");
        }
        match rustix::fs::openat(&dir, "down", flags, Mode::empty()) {
            Ok(next) => (dir, depth) = (next, depth + 1),
            Err(_) => return (dir, depth),
        }
    }
}

#[tokio::test]
async fn a_tree_deeper_than_any_path_is_copied_and_removed() {
    const DEPTH: usize = 1_000;
    let place = Place::new();
    let path = place.volume("pvc-1").await;
    let (bottom, _) = dig(&path, Some(DEPTH));
    let flags = OFlags::WRONLY | OFlags::CREATE;
    drop(rustix::fs::openat(&bottom, "treasure", flags, Mode::RUSR).expect("file"));
    drop(bottom);
    place.snapshot("pvc-1", "s").await.expect("snapshot");
    let (bottom, depth) = dig(&place.base().join("s/pvc-1-s"), None);
    assert_eq!(depth, DEPTH);
    rustix::fs::accessat(
        &bottom,
        "treasure",
        rustix::fs::Access::EXISTS,
        rustix::fs::AtFlags::empty(),
    )
    .expect("the file at the bottom");
    drop(bottom);
    place
        .driver
        .delete_volume(&call(), DeleteVolume::new(&id("pvc-1")))
        .await
        .expect("delete");
    let snapshot = crate::common::snapshot_id("pvc-1-s");
    place
        .driver
        .delete_snapshot(&call(), DeleteSnapshot::new(&snapshot))
        .await
        .expect("delete");
    assert!(leftovers(&place.base()).is_empty());
}

/// Makes, moves and removes files and directories until it is to stop.
fn churn(top: &Path, stop: &AtomicBool) {
    for number in 0_u64.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let (here, there) = (top.join(format!("d{}", number % 5)), top.join("moved"));
        let _ = std::fs::create_dir_all(here.join("a/b"));
        let _ = std::fs::write(here.join("a/b").join(number.to_string()), vec![1; 9_000]);
        let _ = std::fs::rename(here.join("a"), &there);
        let _ = std::fs::remove_dir_all(&there);
        let _ = symlink("/etc", &there);
        let _ = std::fs::remove_file(&there);
        let _ = std::fs::remove_dir_all(&here);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_that_changes_while_it_is_copied_is_copied_all_the_same() {
    let place = Place::new();
    let path = place.volume("pvc-1").await;
    std::fs::create_dir(path.join("still")).expect("folder");
    std::fs::write(path.join("still/file"), "still").expect("file");
    let stop = Arc::new(AtomicBool::new(false));
    let thread = std::thread::spawn({
        let (path, stop) = (path.clone(), Arc::clone(&stop));
        move || churn(&path, &stop)
    });
    for number in 0..30 {
        let taken = place.snapshot("pvc-1", &format!("s{number}")).await;
        let outcome = taken.map_err(|error| error.chain());
        if outcome.is_err() {
            stop.store(true, Ordering::Relaxed);
        }
        outcome.expect("snapshot");
        let copy = place.base().join(format!("s/pvc-1-s{number}/still/file"));
        assert_eq!(std::fs::read_to_string(copy).expect("file"), "still");
    }
    stop.store(true, Ordering::Relaxed);
    thread.join().expect("thread");
    assert!(leftovers(&place.base()).is_empty());
}

#[tokio::test]
async fn the_size_of_a_snapshot_is_that_of_its_volume_so_that_claims_of_it_are_large_enough() {
    let place = Place::new();
    let mut wanted = request("pvc-1");
    wanted.size = driver_core::SizeRange::new(5 << 30, 0).expect("range");
    place.create(&wanted).await.expect("volume");
    let path = place.base().join("v/pvc-1");
    let hole = std::fs::File::create(path.join("hole")).expect("file");
    hole.set_len(1 << 40).expect("hole");
    std::fs::write(path.join("data"), vec![1_u8; 3 << 20]).expect("file");
    let taken = place.snapshot("pvc-1", "s").await.expect("snapshot");
    assert_eq!(taken.size, 5 << 30);
    let copy = place
        .base()
        .join("s/pvc-1-s/hole")
        .metadata()
        .expect("hole");
    assert_eq!((copy.len(), copy.blocks()), (1 << 40, 0));
    // Of a volume of democratic-csi no size is known.
    std::fs::create_dir(place.base().join("v/theirs")).expect("folder");
    std::fs::write(place.base().join("v/theirs/data"), vec![1_u8; 3 << 20]).expect("file");
    let taken = place.snapshot("theirs", "t").await.expect("snapshot");
    assert!((3 << 20..4 << 20).contains(&taken.size), "{}", taken.size);
}
