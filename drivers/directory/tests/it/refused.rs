//! A base that cannot be written: every verb says so once and for all, and nothing is in doubt.

use std::path::Path;

use crate::common::{call, cannot, driver, id, parameters, request};
use crate::fidelity::Image;
use driver_core::{
    Call, CreateSnapshot, DeleteSnapshot, DeleteVolume, Driver, Effect, Error, ExpandVolume,
    Expander as _, Kind, SizeRange, SnapshotName, Snapshots as _, Source,
};
use driver_directory::DirectoryDriver;
use rustix::fs::{IFlags, Mode, OFlags};

fn snapshot(name: &str) -> CreateSnapshot {
    CreateSnapshot {
        name: SnapshotName::parse(name).expect("name"),
        source: id("pvc-1"),
        parameters: parameters(&[]),
        secrets: std::collections::BTreeMap::new(),
    }
}

/// Every verb that changes something, each with a call of its own.
async fn outcomes(driver: &DirectoryDriver) -> Vec<(&'static str, Call, Result<(), Error>)> {
    let calls: [Call; 7] = std::array::from_fn(|_| call());
    let mut clone = request("copy");
    clone.source = Some(Source::Volume(id("pvc-1")));
    let size = SizeRange::new(1 << 40, 0).expect("range");
    let taken = crate::common::snapshot_id("pvc-1-old");
    let create = driver.create_volume(&calls[0], &request("new")).await;
    let copy = driver.create_volume(&calls[1], &clone).await;
    let expand = driver
        .expand_volume(&calls[2], ExpandVolume::new(&id("pvc-1"), size))
        .await;
    let take = driver.create_snapshot(&calls[3], &snapshot("new")).await;
    let results = [
        ("create", create.map(drop)),
        ("clone", copy.map(drop)),
        ("expand", expand.map(drop)),
        ("snapshot", take.map(drop)),
        (
            "delete snapshot",
            driver
                .delete_snapshot(&calls[4], DeleteSnapshot::new(&taken))
                .await,
        ),
        (
            "delete empty",
            driver
                .delete_volume(&calls[5], DeleteVolume::new(&id("empty")))
                .await,
        ),
        (
            "delete",
            driver
                .delete_volume(&calls[6], DeleteVolume::new(&id("pvc-1")))
                .await,
        ),
    ];
    let both = results.into_iter().zip(calls);
    both.map(|((verb, result), call)| (verb, call, result))
        .collect()
}

async fn set_up(base: &Path) -> DirectoryDriver {
    let driver = driver(base, "");
    for name in ["pvc-1", "empty"] {
        let made = driver.create_volume(&call(), &request(name)).await;
        made.expect("volume");
    }
    std::fs::write(base.join("v/pvc-1/file"), "x").expect("file");
    let taken = driver.create_snapshot(&call(), &snapshot("old")).await;
    taken.expect("snapshot");
    driver
}

#[tokio::test]
async fn on_a_read_only_filesystem_nothing_is_in_doubt() {
    let image = match Image::mount("ext4", &["mkfs.ext4", "-q", "-F"]) {
        Ok(image) => image,
        Err(why) => return cannot(&why),
    };
    let driver = set_up(&image.path()).await;
    image.read_only(true);
    for (verb, call, result) in outcomes(&driver).await {
        let error = result.expect_err(verb);
        let seen = (error.kind(), error.effect(), call.effect());
        let wanted = (Kind::Internal, Effect::None, Effect::None);
        assert_eq!(seen, wanted, "{verb}: {}", error.chain());
        assert!(error.advice().is_some(), "{verb}");
    }
    let there = driver.create_volume(&call(), &request("empty")).await;
    there.expect("an earlier call has made it");
    let gone = driver
        .delete_volume(&call(), DeleteVolume::new(&id("gone")))
        .await;
    gone.expect("an earlier call has deleted it");
    image.read_only(false);
    for (verb, call, result) in outcomes(&driver).await {
        result.unwrap_or_else(|error| panic!("{verb}: {}", error.chain()));
        assert_eq!(call.effect(), Effect::Possible, "{verb}");
    }
    assert!(crate::common::leftovers(&image.path()).is_empty());
}

/// Sets or clears the flag that keeps even root from changing a directory or file.
fn immutable(path: &Path, on: bool) -> Result<(), rustix::io::Errno> {
    let file = rustix::fs::open(path, OFlags::RDONLY, Mode::empty())?;
    let flags = rustix::fs::ioctl_getflags(&file)?;
    let wanted = if on {
        flags | IFlags::IMMUTABLE
    } else {
        flags - IFlags::IMMUTABLE
    };
    rustix::fs::ioctl_setflags(&file, wanted)
}

#[tokio::test]
async fn what_cannot_be_removed_does_not_keep_what_can() {
    let place = crate::common::Place::new();
    let (driver, base) = (set_up(&place.base()).await, place.base());
    let file = base.join("v/pvc-1/file");
    if let Err(errno) = immutable(&file, true) {
        return cannot(&format!("making a file immutable: {errno}"));
    }
    let error = driver
        .delete_volume(&call(), DeleteVolume::new(&id("pvc-1")))
        .await;
    let error = error.expect_err("an immutable file");
    let seen = (error.kind(), error.effect());
    assert_eq!(seen, (Kind::Internal, Effect::Possible));
    assert!(
        error
            .advice()
            .is_some_and(|advice| advice.contains("chattr"))
    );
    let trash = base.join(".omnibus-csi/trash");
    let mut entries = std::fs::read_dir(&trash).expect("list");
    let stuck = entries.next().expect("one").expect("entry").path();
    for name in ["0", "z"] {
        std::fs::create_dir_all(trash.join(name).join("sub")).expect("folders");
    }
    // A process that starts finds all three.
    let next = crate::common::driver(&base, "");
    let made = next.create_volume(&call(), &request("later")).await;
    made.expect("volume");
    assert_eq!(std::fs::read_dir(&trash).expect("list").count(), 1);
    immutable(&stuck.join("file"), false).expect("flag");
    let again = driver
        .delete_volume(&call(), DeleteVolume::new(&id("pvc-1")))
        .await;
    again.expect("a retry ends it");
    assert!(crate::common::leftovers(&base).is_empty());
}
