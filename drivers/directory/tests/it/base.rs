//! A base whose filesystem is not mounted is never taken for a new one.

use std::path::{Path, PathBuf};

use crate::common::{Place, call, driver_with_records, id, leftovers, request, snapshot_id};
use driver_core::{
    CapacityQuery, CapacityReporter as _, CreateSnapshot, DeleteSnapshot, DeleteVolume, Driver,
    Effect, Error, ExpandVolume, Expander as _, GetSnapshot, Kind, Lister as _, PageRequest,
    Parameters, SizeRange, SnapshotFilter, SnapshotName, Snapshots as _,
};
use driver_directory::{BaseError, DirectoryDriver};

const MARKER: &str = ".omnibus-csi-base";

/// A disk that is mounted at the base, by renaming: what an unmounted one leaves is an empty directory.
struct Disk {
    top: tempfile::TempDir,
}

impl Disk {
    fn new() -> Self {
        let top = tempfile::tempdir().expect("folder");
        for name in ["base", "records"] {
            std::fs::create_dir(top.path().join(name)).expect("folder");
        }
        Self { top }
    }

    fn base(&self) -> PathBuf {
        self.top.path().join("base")
    }

    fn records(&self) -> PathBuf {
        self.top.path().join("records")
    }

    /// A process that starts.
    fn driver(&self, extra: &str) -> DirectoryDriver {
        driver_with_records(&self.base(), extra, Some(&self.records()))
    }

    fn unmount(&self) {
        std::fs::rename(self.base(), self.top.path().join("disk")).expect("unmount");
        std::fs::create_dir(self.base()).expect("folder");
    }

    fn mount(&self) {
        std::fs::remove_dir_all(self.base()).expect("empty");
        std::fs::rename(self.top.path().join("disk"), self.base()).expect("mount");
    }
}

async fn create(driver: &DirectoryDriver, name: &str) -> Result<(), Error> {
    let made = driver.create_volume(&call(), &request(name)).await;
    made.map(drop)
}

async fn delete(driver: &DirectoryDriver, name: &str) -> Result<(), Error> {
    driver
        .delete_volume(&call(), DeleteVolume::new(&id(name)))
        .await
}

/// Every call that says something about what is in the base.
async fn outcomes(driver: &DirectoryDriver) -> Vec<(&'static str, Result<(), Error>)> {
    let snapshot = CreateSnapshot {
        name: SnapshotName::parse("new").expect("name"),
        source: id("v1"),
        parameters: Parameters::default(),
        secrets: std::collections::BTreeMap::new(),
    };
    let page = PageRequest::default();
    let size = SizeRange::new(1 << 30, 0).expect("range");
    let call = call();
    let taken = snapshot_id("v1-s");
    let filter = SnapshotFilter::default();
    vec![
        ("create", create(driver, "v9").await),
        ("delete", delete(driver, "v1").await),
        ("get", driver.get_volume(&call, &id("v1")).await.map(drop)),
        ("list", driver.list_volumes(&call, &page).await.map(drop)),
        (
            "expand",
            driver
                .expand_volume(&call, ExpandVolume::new(&id("v1"), size))
                .await
                .map(drop),
        ),
        (
            "snapshot",
            driver.create_snapshot(&call, &snapshot).await.map(drop),
        ),
        (
            "delete snapshot",
            driver
                .delete_snapshot(&call, DeleteSnapshot::new(&taken))
                .await,
        ),
        (
            "get snapshot",
            driver
                .get_snapshot(&call, GetSnapshot::new(&taken))
                .await
                .map(drop),
        ),
        (
            "list snapshots",
            driver.list_snapshots(&call, &filter, &page).await.map(drop),
        ),
        (
            "capacity",
            driver
                .capacity(&call, &CapacityQuery::default())
                .await
                .map(drop),
        ),
        ("probe", driver.probe(&call).await.pop().map_or(Ok(()), Err)),
    ]
}

fn cause(error: &Error) -> &BaseError {
    let source = std::error::Error::source(error).expect("a cause");
    source.downcast_ref().expect("of the base")
}

fn is_empty(dir: &Path) -> bool {
    std::fs::read_dir(dir).expect("list").count() == 0
}

#[tokio::test]
async fn while_the_disk_is_not_mounted_nothing_is_made_deleted_or_reported_as_gone() {
    let disk = Disk::new();
    let driver = disk.driver("");
    create(&driver, "v1").await.expect("first");
    disk.unmount();
    // The process that made it, and one that was started since.
    for driver in [driver, disk.driver("")] {
        for (verb, outcome) in outcomes(&driver).await {
            let error = outcome.expect_err(verb);
            let seen = (error.kind(), error.effect());
            assert_eq!(seen, (Kind::Unreachable, Effect::None), "{verb}");
            assert!(matches!(cause(&error), BaseError::NotMounted(_)), "{verb}");
            let advice = error.advice().expect(verb);
            assert!(advice.contains("mount the filesystem"), "{verb}: {advice}");
        }
        assert!(is_empty(&disk.base()), "nothing was made on the wrong disk");
    }
    disk.mount();
    let driver = disk.driver("");
    driver.get_volume(&call(), &id("v1")).await.expect("there");
    create(&driver, "v9").await.expect("mounted again");
    delete(&driver, "v1").await.expect("mounted again");
    assert!(leftovers(&disk.base()).is_empty());
}

#[tokio::test]
async fn a_base_below_the_mount_point_that_vanishes_with_the_disk_is_not_made_anew() {
    let disk = Disk::new();
    std::fs::remove_dir(disk.base()).expect("no base yet");
    create(&disk.driver(""), "v1").await.expect("first");
    disk.unmount();
    std::fs::remove_dir(disk.base()).expect("nothing is there");
    for (verb, outcome) in outcomes(&disk.driver("")).await {
        let error = outcome.expect_err(verb);
        assert!(matches!(cause(&error), BaseError::NotMounted(_)), "{verb}");
    }
    assert!(!disk.base().exists());
}

#[tokio::test]
async fn a_base_of_before_its_marker_is_adopted_by_the_first_change() {
    for shelf in ["v", "s"] {
        let disk = Disk::new();
        std::fs::create_dir_all(disk.base().join(shelf)).expect("of democratic-csi");
        std::fs::create_dir_all(disk.base().join("v/old")).expect("of democratic-csi");
        let driver = disk.driver("");
        driver.get_volume(&call(), &id("old")).await.expect("there");
        assert!(!disk.base().join(MARKER).exists(), "reading makes nothing");
        delete(&driver, "absent").await.expect("absent");
        assert!(disk.base().join(MARKER).exists(), "{shelf}");
        disk.unmount();
        let error = delete(&disk.driver(""), "old")
            .await
            .expect_err("unmounted");
        assert!(matches!(cause(&error), BaseError::NotMounted(_)));
        disk.mount();
        delete(&disk.driver(""), "old").await.expect("mounted");
    }
}

#[tokio::test]
async fn the_disk_of_another_base_is_refused_until_its_record_is_removed() {
    let disk = Disk::new();
    create(&disk.driver(""), "v1").await.expect("first");
    disk.unmount();
    // What an operator who did not notice has made below the mount point.
    let mistaken = driver_with_records(&disk.base(), "", None);
    create(&mistaken, "v2").await.expect("without a record");
    for (verb, outcome) in outcomes(&disk.driver("")).await {
        let error = outcome.expect_err(verb);
        assert!(matches!(cause(&error), BaseError::Other { .. }), "{verb}");
    }
    std::fs::remove_file(disk.base().join(MARKER)).expect("marker");
    let error = delete(&disk.driver(""), "v1").await.expect_err("no marker");
    assert!(matches!(cause(&error), BaseError::NotMounted(_)));
    let advice = error.advice().expect("advice").to_owned();
    let record = std::fs::read_dir(disk.records()).expect("list").next();
    let record = record.expect("one").expect("entry").path();
    assert!(advice.ends_with(record.to_str().expect("text")), "{advice}");
    std::fs::remove_file(record).expect("record");
    create(&disk.driver(""), "v3").await.expect("on purpose");
}

#[tokio::test]
async fn nothing_is_deleted_from_a_base_that_was_never_used() {
    let disk = Disk::new();
    let driver = disk.driver("");
    assert!(driver.probe(&call()).await.is_empty(), "not a problem");
    let found = driver.get_volume(&call(), &id("v1")).await;
    assert_eq!(found.expect_err("none yet").kind(), Kind::NotFound);
    let error = delete(&driver, "v1").await.expect_err("never used");
    assert_eq!(
        (error.kind(), cause(&error)),
        (Kind::Unreachable, &BaseError::NeverUsed)
    );
    assert!(is_empty(&disk.base()));
}

#[tokio::test]
async fn the_configuration_can_say_that_nothing_is_ever_mounted_there() {
    let disk = Disk::new();
    let driver = disk.driver("  createBase: true\n");
    delete(&driver, "v1").await.expect("absent");
    create(&driver, "v1").await.expect("made");
}

#[tokio::test]
async fn a_base_on_record_or_in_the_configuration_is_never_made_anew() {
    let disk = Disk::new();
    let driver = disk.driver("  createBase: true\n");
    create(&driver, "v1").await.expect("made");
    let id = std::fs::read_to_string(disk.base().join(MARKER)).expect("marker");
    let key = format!("  createBase: true\n  baseId: {}\n", &id.trim()[2..]);
    let named = driver_with_records(&disk.base(), &key, None);
    create(&named, "v2").await.expect("it is that one");
    disk.unmount();
    for driver in [driver, disk.driver("  createBase: true\n"), named] {
        for (verb, outcome) in outcomes(&driver).await {
            let error = outcome.expect_err(verb);
            assert!(matches!(cause(&error), BaseError::NotMounted(_)), "{verb}");
        }
    }
    assert!(is_empty(&disk.base()), "nothing was made on the wrong disk");
    // Without a record, as in a pod that was replaced, another base is refused by its id.
    create(&driver_with_records(&disk.base(), "", None), "v3")
        .await
        .expect("mistaken");
    let named = driver_with_records(&disk.base(), &key, None);
    let error = delete(&named, "v1").await.expect_err("another base");
    assert!(matches!(cause(&error), BaseError::Other { .. }));
    assert!(
        error
            .advice()
            .is_some_and(|advice| advice.contains("baseId"))
    );
}

#[tokio::test]
async fn a_marker_that_is_a_pipe_is_refused_at_once() {
    let disk = Disk::new();
    create(&disk.driver(""), "v1").await.expect("first");
    let marker = disk.base().join(MARKER);
    std::fs::remove_file(&marker).expect("removed");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &marker,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .expect("a pipe");
    let driver = disk.driver("");
    let deleted = tokio::time::timeout(std::time::Duration::from_secs(20), delete(&driver, "v1"));
    let error = deleted.await.expect("in time").expect_err("refused");
    assert!(matches!(cause(&error), BaseError::Damaged(_)));
    assert!(disk.base().join("v/v1").exists());
}

#[tokio::test]
async fn the_configuration_can_say_that_only_an_administrator_makes_the_base() {
    let disk = Disk::new();
    let driver = disk.driver("  createBase: false\n");
    for (verb, outcome) in outcomes(&driver).await {
        let error = outcome.expect_err(verb);
        assert_eq!(cause(&error), &BaseError::Empty, "{verb}");
        assert!(error.advice().is_some_and(|advice| advice.ends_with("/v")));
    }
    std::fs::create_dir(disk.base().join("v")).expect("as advised");
    create(&driver, "v1").await.expect("made");
}

#[tokio::test]
async fn a_marker_that_cannot_be_read_as_one_is_an_error_and_stays() {
    let disk = Disk::new();
    create(&disk.driver(""), "v1").await.expect("first");
    for text in ["", "1", "2 0123456789abcdef0123456789abcdef", "1 x"] {
        std::fs::write(disk.base().join(MARKER), text).expect("marker");
        let error = delete(&disk.driver(""), "v1").await.expect_err(text);
        assert!(matches!(cause(&error), BaseError::Damaged(_)), "{text}");
    }
    assert!(disk.base().join("v/v1").exists());
}

#[tokio::test]
async fn a_marker_that_is_removed_or_replaced_is_noticed_at_once() {
    let disk = Disk::new();
    let driver = disk.driver("");
    for name in ["v1", "v2"] {
        create(&driver, name).await.expect("made");
    }
    let marker = disk.base().join(MARKER);
    let text = std::fs::read_to_string(&marker).expect("marker");
    std::fs::remove_file(&marker).expect("removed");
    let error = delete(&driver, "v1").await.expect_err("not mounted");
    assert!(matches!(cause(&error), BaseError::NotMounted(_)));
    std::fs::write(&marker, format!("1 {}\n", "0".repeat(32))).expect("another");
    let error = delete(&driver, "v1").await.expect_err("another base");
    assert!(matches!(cause(&error), BaseError::Other { .. }));
    std::fs::write(&marker, text).expect("as before");
    delete(&driver, "v1").await.expect("deleted");
}

#[tokio::test]
async fn many_first_volumes_at_once_agree_on_one_marker() {
    let disk = Disk::new();
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..8 {
        let driver = disk.driver("");
        tasks.spawn(async move { create(&driver, &format!("v{number}")).await });
    }
    for outcome in tasks.join_all().await {
        outcome.expect("made");
    }
    for number in 0..8 {
        let deleted = delete(&disk.driver(""), &format!("v{number}")).await;
        deleted.expect("the same base");
    }
}

#[tokio::test]
async fn a_base_that_does_not_exist_yet_is_no_problem_and_one_that_cannot_be_made_is() {
    let place = Place::new();
    assert!(place.driver.probe(&call()).await.is_empty());
    assert!(!place.base().exists(), "probing makes nothing");
    std::fs::write(place.base(), "a file").expect("file");
    let problems = place.driver.probe(&call()).await;
    assert_eq!(problems.len(), 1);
    let below = driver_with_records(&place.base().join("below"), "", None);
    assert_eq!(below.probe(&call()).await.len(), 1);
}
