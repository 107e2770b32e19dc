//! A retry that is rejected for another reason must not forget what an earlier call started.

use std::time::Duration;

use driver_core::{Call, Driver, Effect, FindVolume, GetSnapshot, Kind, Snapshots as _};
use driver_zfs::ZfsDriver;
use driver_zfs::name::SnapshotRef;
use driver_zfs::observed::VolumeKind;
use driver_zfs::step::Step;
use driver_zfs::testing::InMemory as _;
use driver_zfs::testing::{HostState, MemoryExport, MemoryHost, settings};

use crate::short::*;
use crate::world::*;

/// Runs a verb up to this many parts of its steps, and interrupts it.
async fn cut(driver: &MemoryDriver, verb: &Verb, parts: usize) {
    {
        let mut state = driver.backend().state();
        state.cut_after = Some(state.steps + parts);
    }
    run(driver, verb).await.unwrap_err();
    driver.backend().state().cut_after = None;
}

/// The same host with another configuration.
fn configured_anew(driver: &MemoryDriver, kind: VolumeKind, zfs: &str) -> MemoryDriver {
    let host = MemoryHost::from_state(driver.backend().state().clone());
    ZfsDriver::new(settings(kind, zfs).unwrap(), host, MemoryExport::new(kind))
}

#[tokio::test]
async fn a_started_volume_is_not_forgotten_when_its_export_is_refused() {
    for kind in KINDS {
        let driver = fresh(kind);
        well(&driver, &[create(0, From::Nothing)]).await;
        let verb = create(1, From::Nothing);
        cut(&driver, &verb, 1).await;
        assert!(guid(&driver, dataset(1).as_str()).is_some());
        // A volume of another user takes its name during the call.
        {
            let mut state = driver.backend().state();
            let targets = &mut state.targets.targets;
            targets.insert("v1".to_owned(), Some(dataset(0)));
        }
        let error = run(&driver, &verb).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Conflict, "{}", error.chain());
        assert_eq!(error.effect(), Effect::Possible, "{}", error.chain());
    }
}

#[tokio::test]
async fn a_volume_of_another_request_is_a_conflict_for_good() {
    let driver = fresh(VolumeKind::Filesystem);
    well(
        &driver,
        &[create(0, From::Nothing), create(1, From::Nothing)],
    )
    .await;
    let error = run(&driver, &create(1, From::Volume(0))).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.effect()),
        (Kind::Conflict, Effect::None)
    );
}

#[tokio::test]
async fn a_started_snapshot_is_not_forgotten_because_of_its_properties() {
    let broken = "  snapshotProperties: {'x:y': \"a\\nb\"}\n";
    let kind = VolumeKind::Filesystem;
    for verb in [snapshot(0, 0), snapshot_detached(0, 0)] {
        let driver = fresh(kind);
        well(&driver, &[create(0, From::Nothing)]).await;
        let never = configured_anew(&driver, kind, broken);
        let error = run(&never, &verb).await.unwrap_err();
        assert_eq!(error.effect(), Effect::None, "never: {}", error.chain());
        well(&driver, std::slice::from_ref(&verb)).await;
        let broken_driver = configured_anew(&driver, kind, broken);
        let error = run(&broken_driver, &verb).await.unwrap_err();
        assert_eq!(error.effect(), Effect::Possible, "{}", error.chain());
        broken_driver.backend().state().cut_after = Some(0);
        let error = run(&broken_driver, &verb).await.unwrap_err();
        assert_eq!(error.effect(), Effect::Possible, "unknown");
    }
}

#[tokio::test]
async fn a_detached_snapshot_that_was_copied_is_completed_also_without_its_volume() {
    let driver = fresh(VolumeKind::Filesystem);
    well(&driver, &[create(0, From::Nothing)]).await;
    let verb = snapshot_detached(0, 0);
    // The container, the helper, and the two ends of the copy.
    cut(&driver, &verb, 4).await;
    well(&driver, &[Verb::Delete(0)]).await;
    well(&driver, std::slice::from_ref(&verb)).await;
    let call = Call::within(Duration::from_mins(1));
    let id = snapshot_id(0, 0, true);
    assert!(
        driver
            .get_snapshot(&call, GetSnapshot::new(&id))
            .await
            .is_ok()
    );
}

#[tokio::test]
async fn an_interrupted_copy_is_found_as_begun_by_the_next_query() {
    let driver = fresh(VolumeKind::Zvol);
    well(&driver, &[create(0, From::Nothing)]).await;
    cut(&driver, &copy(1, From::Volume(0)), 3).await;
    let call = Call::within(Duration::from_mins(1));
    let found = driver
        .find_volume(&call, FindVolume::new(&volume(1)))
        .await
        .unwrap();
    assert_eq!(found, driver_core::Found::Begun);
}

#[tokio::test]
async fn what_a_killed_process_left_running_is_found_as_begun_by_the_next_query() {
    for kind in KINDS {
        let driver = fresh(kind);
        well(&driver, &[create(0, From::Nothing)]).await;
        driver.backend().state().goes_on = true;
        // Before its first step, which waits for the lock.
        let cut = |state: &mut HostState| state.cut_after = Some(state.steps);
        driver.backend().before_next_plan(cut);
        let verb = create(1, From::Nothing);
        assert!(run(&driver, &verb).await.is_err());
        driver.backend().state().cut_after = None;
        assert!(guid(&driver, dataset(1).as_str()).is_none());
        let call = Call::within(Duration::from_mins(1));
        let found = driver
            .find_volume(&call, FindVolume::new(&volume(1)))
            .await
            .unwrap();
        assert_eq!(found, driver_core::Found::Begun);
        let absent = driver
            .find_volume(&call, FindVolume::new(&volume(2)))
            .await
            .unwrap_err();
        assert_eq!(absent.kind(), Kind::NotFound);
        assert_eq!(call.effect(), Effect::None, "it only looked");
    }
}

/// TrueNAS 26 makes clones without properties, and gives them all of them in a second call.
#[tokio::test]
async fn a_clone_without_marks_is_finished_by_its_request_and_removed_by_its_deletion() {
    for kind in KINDS {
        for (source, origin) in [
            (From::Snapshot(0, 0), "s0"),
            (From::Volume(0), "volume-source-for-volume-v1"),
        ] {
            let driver = fresh(kind);
            well(&driver, &[create(0, From::Nothing), snapshot(0, 0)]).await;
            let origin = SnapshotRef::parse(&format!("{}@{origin}", dataset(0))).unwrap();
            let bare = |driver: &MemoryDriver| {
                let pool = &mut driver.backend().state().pool;
                if pool.guid(&origin.clone().into()).is_none() {
                    pool.insert_snapshot(&origin, &[]);
                }
                let clone = Step::Clone {
                    origin: origin.clone(),
                    dataset: dataset(1),
                    properties: Vec::new(),
                };
                pool.apply(&clone).unwrap();
            };
            bare(&driver);
            // Of another request it stays what it is.
            let error = run(&driver, &create(1, From::Nothing)).await.unwrap_err();
            assert_eq!(error.kind(), Kind::Conflict, "{}", error.chain());
            let verb = create(1, source);
            well(&driver, std::slice::from_ref(&verb)).await;
            let call = Call::within(Duration::from_mins(1));
            let found = driver
                .find_volume(&call, FindVolume::new(&volume(1)))
                .await
                .unwrap();
            assert_eq!(found, driver_core::Found::Whole);
            well(&driver, &[Verb::Delete(1)]).await;
            bare(&driver);
            well(&driver, &[Verb::Delete(1)]).await;
            assert!(guid(&driver, dataset(1).as_str()).is_none(), "{kind}");
        }
    }
}
