//! Snapshots that are answered before their copy is done.
//!
//! A copy waits before it gets its name as long as a test holds the lock for that. Nothing depends on time but a call that ends with its own.
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use driver_core::{
    Call, DeleteSnapshot, DeleteVolume, Driver as _, Effect, Error, GetSnapshot, Kind, PageRequest,
    Snapshot, SnapshotFilter, SnapshotId, Snapshots as _,
};
use driver_directory::DirectoryDriver;
use rustix::fs::{FlockOperation, XattrFlags};

use crate::common::{
    Place, call, driver, id, leftovers, request, restore, snapshot, snapshot_within,
};

/// The lock that a copy takes at its end.
pub(crate) struct NameLock(File);

impl NameLock {
    pub(crate) fn take(base: &Path) -> Self {
        let folder = base.join(".omnibus-csi/makers");
        std::fs::create_dir_all(&folder).expect("folder");
        let file = File::create(folder.join("names")).expect("lock");
        rustix::fs::flock(&file, FlockOperation::LockExclusive).expect("lock");
        Self(file)
    }

    pub(crate) fn release(self) {
        drop(self.0);
    }
}

/// Makes the copy fail at its end: another volume has a snapshot of that name.
fn give_name_away(base: &Path) -> PathBuf {
    let other = base.join("s/pvc-2-one");
    std::fs::create_dir(&other).expect("folder");
    let flags = XattrFlags::empty();
    rustix::fs::setxattr(&other, "user.omnibus-csi", b"s1 1 0 pvc-2 one", flags).expect("record");
    other
}

/// A base with a volume, and a driver that does not wait for copies.
async fn place() -> (Place, DirectoryDriver) {
    let place = Place::new();
    let volume = place.volume("pvc-1").await;
    std::fs::create_dir(volume.join("a")).expect("folder");
    std::fs::write(volume.join("a/file"), "content").expect("file");
    let driver = driver(&place.base(), "").with_patience(Duration::ZERO);
    (place, driver)
}

/// Asks until the answer is another one, as a sidecar does.
pub(crate) async fn ask<T>(mut question: impl AsyncFnMut() -> Option<T>) -> T {
    let asked = async {
        loop {
            if let Some(answer) = question().await {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1), asked)
        .await
        .expect("in time")
}

/// A snapshot, once it is ready.
pub(crate) async fn ready(
    driver: &DirectoryDriver,
    volume: &str,
    name: &str,
) -> Result<Snapshot, Error> {
    ask(async || match snapshot(driver, volume, name).await {
        Ok(taken) if !taken.ready => None,
        done => Some(done),
    })
    .await
}

async fn listed(driver: &DirectoryDriver, source: Option<&str>) -> Vec<Snapshot> {
    let source = source.map(id);
    let filter = SnapshotFilter {
        source,
        ..SnapshotFilter::default()
    };
    let (call, page) = (call(), PageRequest::default());
    let listed = driver.list_snapshots(&call, &filter, &page).await;
    listed.expect("list").entries
}

async fn delete(driver: &DirectoryDriver, id: &SnapshotId) -> Result<(), Error> {
    driver
        .delete_snapshot(&call(), DeleteSnapshot::new(id))
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_whose_copy_takes_long_is_answered_before_it_is_ready() {
    let (place, driver) = place().await;
    let base = place.base();
    let lock = NameLock::take(&base);
    let taken = snapshot(&driver, "pvc-1", "one").await.expect("answered");
    assert!(!taken.ready);
    assert_eq!(taken.size, 1 << 20);
    // Also a driver that was built anew finds it.
    for one in [&driver, &place.driver] {
        let again = snapshot(one, "pvc-1", "one").await;
        assert_eq!(again.expect("again"), taken);
        let found = one.get_snapshot(&call(), GetSnapshot::new(&taken.id)).await;
        assert_eq!(found.expect("found"), taken);
        assert_eq!(listed(one, None).await, std::slice::from_ref(&taken));
        assert_eq!(
            listed(one, Some("pvc-1")).await,
            std::slice::from_ref(&taken)
        );
        assert_eq!(listed(one, Some("pvc-2")).await, []);
        let error = restore(one, &taken.id, "restored").await;
        let error = error.expect_err("not ready");
        assert_eq!(error.kind(), Kind::Pending);
        assert!(error.chain().contains("not ready"), "{}", error.chain());
        // The volume is still needed.
        let error = one
            .delete_volume(&call(), DeleteVolume::new(&id("pvc-1")))
            .await;
        assert_eq!(error.expect_err("needed").kind(), Kind::Pending);
    }
    assert!(!base.join("s/pvc-1-one").exists());
    lock.release();
    let wanted = Snapshot {
        ready: true,
        ..taken.clone()
    };
    let now = ready(&driver, "pvc-1", "one").await.expect("ready");
    assert_eq!(now, wanted);
    assert_eq!(listed(&driver, None).await, [wanted]);
    restore(&driver, &taken.id, "restored")
        .await
        .expect("restored");
    assert!(base.join("v/restored/a/file").exists());
    driver
        .delete_volume(&call(), DeleteVolume::new(&id("pvc-1")))
        .await
        .expect("deleted");
    delete(&driver, &taken.id).await.expect("deleted");
    assert_eq!(leftovers(&base), Vec::<PathBuf>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_that_is_deleted_before_it_is_ready_never_appears() {
    let (place, driver) = place().await;
    let base = place.base();
    let lock = NameLock::take(&base);
    let taken = snapshot(&driver, "pvc-1", "one").await.expect("answered");
    let error = delete(&driver, &taken.id).await.expect_err("being made");
    assert_eq!(error.kind(), Kind::Pending);
    lock.release();
    // The copy ends by itself, before the deletion is asked for again.
    ask(async || listed(&driver, None).await.is_empty().then_some(())).await;
    assert!(!base.join("s/pvc-1-one").exists());
    delete(&driver, &taken.id).await.expect("deleted");
    let gone = driver
        .get_snapshot(&call(), GetSnapshot::new(&taken.id))
        .await;
    assert_eq!(gone.expect_err("gone").kind(), Kind::NotFound);
    let again = ready(&driver, "pvc-1", "one").await.expect("again");
    assert!(again.created > taken.created);
    assert_eq!(leftovers(&base), Vec::<PathBuf>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_keeps_failing_after_the_answer_is_reported_by_the_call_that_makes_it_again() {
    let (place, driver) = place().await;
    let base = place.base();
    let lock = NameLock::take(&base);
    let taken = snapshot(&driver, "pvc-1", "one").await.expect("answered");
    let other = give_name_away(&base);
    lock.release();
    ask(async || {
        let copies = listed(&driver, Some("pvc-1")).await;
        copies.is_empty().then_some(())
    })
    .await;
    // A caller that waits for it is answered with its error.
    let made = snapshot(&place.driver, "pvc-1", "one").await;
    let error = made.expect_err("failed again");
    assert_eq!(error.kind(), Kind::Conflict, "{}", error.chain());
    let gone = driver
        .get_snapshot(&call(), GetSnapshot::new(&taken.id))
        .await;
    assert_eq!(gone.expect_err("gone").kind(), Kind::NotFound);
    std::fs::remove_dir(&other).expect("remove");
    ready(&driver, "pvc-1", "one").await.expect("made again");
    assert_eq!(leftovers(&base), Vec::<PathBuf>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_failed_after_the_answer_is_made_again_by_the_next_call() {
    let (place, driver) = place().await;
    let base = place.base();
    let lock = NameLock::take(&base);
    snapshot(&driver, "pvc-1", "one").await.expect("answered");
    let other = give_name_away(&base);
    lock.release();
    ask(async || {
        let copies = listed(&driver, Some("pvc-1")).await;
        copies.is_empty().then_some(())
    })
    .await;
    std::fs::remove_dir(&other).expect("remove");
    let made = snapshot(&driver, "pvc-1", "one").await;
    made.expect("nothing is remembered of the failure");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_keeps_the_lock_of_names_holds_no_call_longer_than_its_time() {
    let (place, driver) = place().await;
    let base = place.base();
    let taken = ready(&driver, "pvc-1", "one").await.expect("taken");
    let lock = NameLock::take(&base);
    let short = || Call::within(Duration::from_secs(2));
    let (deleting, taking) = (short(), short());
    let waited = async {
        tokio::join!(
            place
                .driver
                .delete_snapshot(&deleting, DeleteSnapshot::new(&taken.id)),
            snapshot_within(&taking, &place.driver, ("pvc-1", "two")),
        )
    };
    let waited = tokio::time::timeout(Duration::from_secs(50), waited).await;
    let (deleted, made) = waited.expect("in time");
    for error in [deleted.expect_err("held"), made.expect_err("held")] {
        let known = (error.kind(), error.effect());
        assert_eq!(known, (Kind::Pending, Effect::None), "{}", error.chain());
        let advice = error.advice().unwrap_or_default();
        assert!(advice.contains("a controller that hangs"), "{advice}");
    }
    assert_eq!(listed(&driver, None).await, std::slice::from_ref(&taken));
    lock.release();
    delete(&driver, &taken.id).await.expect("deleted");
    ready(&driver, "pvc-1", "two").await.expect("taken");
    assert_eq!(leftovers(&base), Vec::<PathBuf>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_is_refused_that_a_copy_of_another_volume_has() {
    let (place, driver) = place().await;
    place.volume("pvc-2").await;
    let base = place.base();
    let lock = NameLock::take(&base);
    let taken = snapshot(&driver, "pvc-1", "one").await.expect("answered");
    assert!(!taken.ready);
    let error = snapshot(&driver, "pvc-2", "one").await.expect_err("taken");
    assert_eq!(error.kind(), Kind::Conflict, "{}", error.chain());
    lock.release();
    ready(&driver, "pvc-1", "one").await.expect("ready");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_caller_waits_for_a_copy_of_a_volume_whose_size_is_unknown() {
    let (place, driver) = place().await;
    std::fs::create_dir(place.base().join("v/pvc-old")).expect("folder");
    let taken = snapshot(&driver, "pvc-old", "one").await.expect("taken");
    assert!(taken.ready);
}

#[tokio::test(flavor = "multi_thread")]
async fn more_copies_than_threads_allow_let_their_callers_wait() {
    let (place, driver) = place().await;
    let base = place.base();
    let lock = NameLock::take(&base);
    for number in 0..8 {
        let name = format!("n{number}");
        let taken = snapshot(&driver, "pvc-1", &name).await.expect("answered");
        assert!(!taken.ready);
    }
    let ninth = snapshot(&driver, "pvc-1", "n8");
    let waits = tokio::time::timeout(Duration::from_millis(100), ninth).await;
    waits.expect_err("its caller waits");
    let error = snapshot(&driver, "pvc-1", "n8")
        .await
        .expect_err("being taken");
    assert_eq!(error.kind(), Kind::Pending);
    assert_eq!(listed(&driver, None).await.len(), 8);
    lock.release();
    for number in 0..8 {
        let name = format!("n{number}");
        ready(&driver, "pvc-1", &name).await.expect("ready");
    }
    ask(async || (listed(&driver, None).await.len() == 9).then_some(())).await;
    assert!(listed(&driver, None).await.iter().all(|one| one.ready));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_of_many_files_goes_on_after_the_answer() {
    let (place, driver) = place().await;
    let volume = place.base().join("v/pvc-1");
    for number in 0..3000 {
        std::fs::write(volume.join(number.to_string()), "x").expect("file");
    }
    let taken = snapshot(&driver, "pvc-1", "one").await.expect("answered");
    assert!(!taken.ready);
    let taken = ready(&driver, "pvc-1", "one").await.expect("ready");
    let copy = place.base().join("s/pvc-1-one");
    assert_eq!(std::fs::read_dir(copy).expect("list").count(), 3001);
    driver
        .create_volume(&call(), &request("other"))
        .await
        .expect("volume");
    delete(&driver, &taken.id).await.expect("deleted");
}
