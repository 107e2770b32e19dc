//! Groups of snapshots that are taken one after the other: only where the class says so, whole or not at all.

use std::path::PathBuf;
use std::time::Duration;

use driver_core::{
    CreateGroup, DeleteSnapshot, DeleteVolume, Driver as _, Effect, Error, GetSnapshot,
    GroupMembers, GroupSnapshot, Groups as _, Kind, SnapshotId, SnapshotName, Snapshots as _,
};
use driver_directory::DirectoryDriver;
use rustix::fs::XattrFlags;

use crate::common::{
    Place, call, driver, id, leftovers, listed, parameters, request, restore, snapshot, snapshot_id,
};
use crate::pending::{NameLock, ask};

const NONE: &[(&str, &str)] = &[("consistency", "none")];
const BOTH: [&str; 2] = ["pvc-1", "pvc-2"];

/// A base with two volumes, each with its name as content.
async fn place() -> Place {
    let place = Place::new();
    for name in BOTH {
        let path = place.volume(name).await;
        std::fs::write(path.join("file"), name).expect("file");
    }
    place
}

async fn take(
    driver: &DirectoryDriver,
    (name, volumes): (&str, &[&str]),
    class: &[(&str, &str)],
) -> Result<GroupSnapshot, Error> {
    let name = SnapshotName::parse(name).expect("name");
    let volumes: Vec<_> = volumes.iter().map(|volume| id(volume)).collect();
    let class = parameters(class);
    let request = CreateGroup::new(&name, &volumes, &class);
    driver.create_group(&call(), request).await
}

fn members(group: &GroupSnapshot) -> Vec<SnapshotId> {
    let ids = group.snapshots.iter().map(|snapshot| snapshot.id.clone());
    ids.collect()
}

async fn get(driver: &DirectoryDriver, group: &GroupSnapshot) -> Result<GroupSnapshot, Error> {
    let members = members(group);
    let request = GroupMembers::new(&group.id, &members);
    driver.get_group(&call(), request).await
}

async fn delete(driver: &DirectoryDriver, group: &GroupSnapshot) -> Result<(), Error> {
    let members = members(group);
    let request = GroupMembers::new(&group.id, &members);
    driver.delete_group(&call(), request).await
}

async fn delete_one(driver: &DirectoryDriver, id: &SnapshotId) -> Result<(), Error> {
    driver
        .delete_snapshot(&call(), DeleteSnapshot::new(id))
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_class_without_the_parameter_is_refused_by_its_name_and_so_are_other_values() {
    let place = place().await;
    for (class, said) in [
        (&[("consistency", "None")][..], "`None`"),
        (&[], "`consistency: none`"),
        (&[("consistency", "")], "`none`"),
        (&[("consistency", "crash")], "`crash`"),
        (&[("consistency", "none"), ("driver", "restic")], "restic"),
        (&[("consistency", "none"), ("driver", "kopia")], "kopia"),
        (&[("consistency", "none"), ("driver", "other")], "other"),
    ] {
        let error = take(&place.driver, ("g", &BOTH), class).await;
        let error = error.expect_err(said);
        let known = (error.kind(), error.effect());
        assert_eq!(known, (Kind::Invalid, Effect::None), "{class:?}");
        assert!(error.chain().contains(said), "{}", error.chain());
    }
    assert_eq!(listed(&place.driver, 10).await, []);
    // A connection whose snapshots are backups takes groups as a class that says `filecopy`.
    let base = place.base();
    let backups = driver(&base, "  snapshots: {default_driver: restic}\n");
    let error = take(&backups, ("g", &BOTH), NONE).await;
    let error = error.expect_err("backups").chain();
    assert!(error.contains("driver: filecopy"), "{error}");
    let class = [NONE[0], ("driver", "filecopy")];
    let taken = take(&backups, ("g", &BOTH), &class).await;
    taken.expect("copies");
    let error = take(&place.driver, ("g", &BOTH), &[]).await;
    let error = error.expect_err("no longer");
    assert_eq!(error.effect(), Effect::Possible, "there is one");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_snapshot_is_restored_alone_and_goes_with_its_group_only() {
    let place = place().await;
    let driver = &place.driver;
    let group = take(driver, ("g", &BOTH), NONE).await.expect("a group");
    assert!(group.ready);
    let times = group.snapshots.iter().map(|one| one.created);
    assert_eq!(times.min(), Some(group.created));
    for (name, one) in BOTH.iter().zip(&group.snapshots) {
        assert_eq!((&one.source, one.size), (&id(name), 1 << 20));
        assert_eq!(one.group.as_ref(), Some(&group.id));
        let found = driver
            .get_snapshot(&call(), GetSnapshot::new(&one.id))
            .await;
        assert_eq!(found.expect("found"), *one);
        let error = delete_one(driver, &one.id).await.expect_err("of a group");
        assert_eq!(error.kind(), Kind::Invalid);
        assert!(error.chain().contains(group.id.as_str()));
        let restored = format!("restored-{name}");
        restore(driver, &one.id, &restored).await.expect("restored");
        let file = place.base().join("v").join(&restored).join("file");
        assert_eq!(std::fs::read_to_string(file).expect("file"), *name);
    }
    // A snapshot outlives its volume, and so does the group.
    for name in BOTH {
        let name = id(name);
        let deleted = driver
            .delete_volume(&call(), DeleteVolume::new(&name))
            .await;
        deleted.expect("deleted");
    }
    let again = take(driver, ("g", &["pvc-2", "pvc-1"]), NONE).await;
    assert_eq!(again.expect("the same"), group);
    assert_eq!(get(driver, &group).await.expect("found"), group);
    for _ in 0..2 {
        delete(driver, &group).await.expect("deleted");
    }
    let error = get(driver, &group).await.expect_err("gone");
    assert_eq!(error.kind(), Kind::NotFound);
    assert_eq!(listed(driver, 10).await, []);
    assert_eq!(leftovers(&place.base()), Vec::<PathBuf>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_is_of_one_snapshot_or_of_one_group_and_a_missing_volume_leaves_nothing() {
    let place = place().await;
    place.volume("pvc-3").await;
    let driver = &place.driver;
    let long = "n".repeat(100);
    for name in ["g", &long] {
        let error = take(driver, (name, &["pvc-1", "pvc-9"]), NONE).await;
        let error = error.expect_err("missing");
        let known = (error.kind(), error.effect());
        assert_eq!(known, (Kind::NotFound, Effect::None));
        assert!(error.chain().contains("pvc-9"), "{}", error.chain());
        assert_eq!(listed(driver, 10).await, [], "nothing is left");
        let group = take(driver, (name, &BOTH), NONE).await.expect("a group");
        for others in [&["pvc-1"][..], &["pvc-1", "pvc-3"], &["pvc-3"]] {
            let error = take(driver, (name, others), NONE).await;
            assert_eq!(error.expect_err("others").kind(), Kind::Conflict);
        }
        for volume in ["pvc-1", "pvc-3"] {
            let error = snapshot(driver, volume, name).await.expect_err("taken");
            assert_eq!(error.kind(), Kind::Conflict, "{}", error.chain());
        }
        assert_eq!(get(driver, &group).await.expect("it is there"), group);
        delete(driver, &group).await.expect("deleted");
        let alone = place.snapshot("pvc-1", name).await.expect("free");
        for volumes in [&BOTH[..], &["pvc-3"]] {
            let error = take(driver, (name, volumes), NONE).await;
            assert_eq!(error.expect_err("a snapshot").kind(), Kind::Conflict);
        }
        // What has the place of one of a group that is gone is another snapshot.
        delete(driver, &group).await.expect("gone already");
        assert_eq!(listed(driver, 10).await, std::slice::from_ref(&alone.id));
        delete_one(driver, &alone.id).await.expect("deleted");
    }
    assert_eq!(leftovers(&place.base()), Vec::<PathBuf>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_cut_creation_left_is_completed_and_what_a_cut_deletion_left_is_not() {
    let place = place().await;
    let (driver, kept) = (&place.driver, place.base().join("s"));
    let group = take(driver, ("g", &BOTH), NONE).await.expect("a group");
    let lose = |name: &str| std::fs::remove_dir_all(kept.join(name)).expect("remove");

    // As after a creation that was killed.
    lose("pvc-2-g");
    let error = get(driver, &group).await.expect_err("not whole");
    assert_eq!(error.kind(), Kind::NotFound);
    assert!(error.chain().contains("1 of its 2"), "{}", error.chain());
    let again = take(driver, ("g", &BOTH), NONE).await.expect("completed");
    assert_eq!((&again.id, again.created), (&group.id, group.created));
    assert_eq!(again.snapshots[0], group.snapshots[0]);

    // As after a deletion that was killed.
    lose("pvc-1-g");
    let error = take(driver, ("g", &BOTH), NONE).await.expect_err("a rest");
    let known = (error.kind(), error.effect());
    assert_eq!(known, (Kind::Conflict, Effect::Possible));
    assert!(
        error.chain().contains("left of a deletion"),
        "{}",
        error.chain()
    );
    delete(driver, &group).await.expect("the rest");
    take(driver, ("g", &BOTH), NONE).await.expect("anew");

    // No retry can complete it any more. The group may have been whole before.
    lose("pvc-2-g");
    let second = id("pvc-2");
    let deleted = driver
        .delete_volume(&call(), DeleteVolume::new(&second))
        .await;
    deleted.expect("deleted");
    let error = take(driver, ("g", &BOTH), NONE).await.expect_err("missing");
    let known = (error.kind(), error.effect());
    assert_eq!(known, (Kind::NotFound, Effect::Possible));
    let left = snapshot_id("snapshot_driver=filecopy&snapshot_id=pvc-1-g");
    assert_eq!(listed(driver, 10).await, [left]);
    delete(driver, &group).await.expect("the rest");
    assert_eq!(listed(driver, 10).await, [], "nothing is left");
    assert_eq!(leftovers(&place.base()), Vec::<PathBuf>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_creation_that_is_given_up_removes_what_it_has_made_and_leaves_what_it_found() {
    const ALL: [&str; 3] = ["pvc-1", "pvc-2", "pvc-3"];
    let place = place().await;
    let (base, kept) = (place.base(), place.base().join("s"));
    for (found, effect) in [(false, Effect::None), (true, Effect::Possible)] {
        place.volume("pvc-3").await;
        if found {
            take(&place.driver, ("g", &ALL), NONE).await.expect("whole");
            for name in ["pvc-2-g", "pvc-3-g"] {
                std::fs::remove_dir_all(kept.join(name)).expect("lost");
            }
        }
        let lock = NameLock::take(&base);
        let slow = driver(&base, "");
        let taking = tokio::spawn(async move { take(&slow, ("g", &ALL), NONE).await });
        // A copy is made, so all volumes were seen.
        let making = base.join(".omnibus-csi/making");
        let is_making = || std::fs::read_dir(&making).is_ok_and(|mut all| all.next().is_some());
        ask(async || is_making().then_some(())).await;
        std::fs::remove_dir_all(base.join("v/pvc-3")).expect("remove");
        lock.release();
        let error = taking.await.expect("ended").expect_err("missing");
        let known = (error.kind(), error.effect());
        assert_eq!(known, (Kind::NotFound, effect), "{}", error.chain());
        assert_eq!(kept.join("pvc-1-g").exists(), found);
        assert!(!kept.join("pvc-2-g").exists());
    }
    assert_eq!(leftovers(&base), Vec::<PathBuf>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_is_being_taken_is_waited_for_and_its_deletion_stops_it_and_succeeds() {
    let place = place().await;
    let base = place.base();
    let whole = take(&place.driver, ("g", &BOTH), NONE).await;
    let whole = whole.expect("a group");
    delete(&place.driver, &whole).await.expect("deleted");
    let lock = NameLock::take(&base);
    let slow = driver(&base, "");
    let taking = tokio::spawn(async move { take(&slow, ("g", &BOTH), NONE).await });
    let first = &whole.snapshots[0].id;
    let other = driver(&base, "");
    // The first copy waits for the lock.
    let error = ask(async || delete_one(&other, first).await.err()).await;
    assert_eq!(error.kind(), Kind::Invalid, "{}", error.chain());
    let error = take(&other, ("g", &BOTH), NONE).await.expect_err("taken");
    assert_eq!(error.kind(), Kind::Pending, "{}", error.chain());
    assert_eq!(listed(&other, 10).await, []);
    let error = get(&other, &whole).await.expect_err("not yet");
    assert_eq!(error.kind(), Kind::NotFound);
    let (deleter, group) = (driver(&base, ""), whole.clone());
    let deleting = tokio::spawn(async move { delete(&deleter, &group).await });
    let stopped = taking.await.expect("ended").expect_err("stopped");
    let kinds = [Kind::Timeout, Kind::Pending];
    assert!(kinds.contains(&stopped.kind()), "{}", stopped.chain());
    lock.release();
    deleting.await.expect("ended").expect("deleted");
    assert_eq!(listed(&other, 10).await, []);
    take(&other, ("g", &BOTH), NONE).await.expect("anew");
    other
        .create_volume(&call(), &request("later"))
        .await
        .expect("volume");
    assert_eq!(leftovers(&base), Vec::<PathBuf>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_removes_no_snapshot_that_got_the_name_of_one_of_the_group_since_it_looked() {
    let place = place().await;
    let (base, kept) = (place.base(), place.base().join("s"));
    let group = take(&place.driver, ("g", &BOTH), NONE).await;
    let group = group.expect("a group");
    let lock = NameLock::take(&base);
    let (slow, deleted) = (driver(&base, ""), group.clone());
    let deleting = tokio::spawn(async move { delete(&slow, &deleted).await });
    // It waits for its turn.
    tokio::time::sleep(Duration::from_millis(200)).await;
    for name in ["pvc-1-g", "pvc-2-g"] {
        assert!(kept.join(name).exists(), "{name}");
    }
    // As if another process had deleted the group, and then taken a snapshot.
    let other = kept.join("pvc-1-g");
    std::fs::remove_dir_all(&other).expect("deleted");
    std::fs::create_dir(&other).expect("taken");
    let flags = XattrFlags::empty();
    rustix::fs::setxattr(&other, "user.omnibus-csi", b"s1 1 0 pvc-1 g", flags).expect("record");
    lock.release();
    deleting.await.expect("ended").expect("deleted");
    assert!(other.exists());
    assert!(!kept.join("pvc-2-g").exists());
    assert_eq!(leftovers(&base), Vec::<PathBuf>::new());
}
