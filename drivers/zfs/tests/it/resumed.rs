//! Interrupted copies inside a host: a part stays, and resumes.

use std::time::{Duration, SystemTime};

use driver_core::{Effect, Kind, Maintenance as _};
use driver_zfs::name::{DatasetName, Object, SnapshotLeaf};
use driver_zfs::observed::{Guid, VolumeKind};
use driver_zfs::property::PropertyName;
use driver_zfs::step::Step;
use driver_zfs::testing::InMemory as _;
use driver_zfs::testing::{HostState, Room};

use crate::orphans::{call, orphans};
use crate::short::*;
use crate::world::*;

/// The copies: verbs, and the datasets that they fill.
fn copies() -> Vec<(Verb, DatasetName)> {
    vec![
        (copy(1, From::Volume(0)), dataset(1)),
        (copy(1, From::Snapshot(0, 0)), dataset(1)),
        (copy(1, From::Detached(0, 1)), dataset(1)),
        (snapshot_detached(0, 2), detached(0, 2)),
    ]
}

/// A host on which all of these can run.
async fn with_sources(kind: VolumeKind) -> MemoryDriver {
    let driver = fresh(kind);
    let made = [
        create(0, From::Nothing),
        snapshot(0, 0),
        snapshot_detached(0, 1),
    ];
    well(&driver, &made).await;
    driver
}

fn part(driver: &MemoryDriver, of: &DatasetName) -> Option<Guid> {
    let state = driver.backend().state();
    let arrives = state.pool.is_receiving(of);
    state
        .pool
        .guid(&Object::from(of.clone()))
        .filter(|_| arrives)
}

/// Interrupts a verb while its copy runs, and returns the part.
async fn cut_within(driver: &MemoryDriver, verb: &Verb, of: &DatasetName) -> Guid {
    for parts in 1.. {
        let before = driver.backend().state().clone();
        driver.backend().state().cut_after = Some(before.steps + parts);
        let outcome = run(driver, verb).await;
        driver.backend().state().cut_after = None;
        assert_eq!(outcome.unwrap_err().kind(), Kind::Unreachable);
        if let Some(part) = part(driver, of) {
            return part;
        }
        *driver.backend().state() = before;
    }
    unreachable!()
}

fn is_there(driver: &MemoryDriver, of: &DatasetName) -> bool {
    guid(driver, of.as_str()).is_some()
}

#[tokio::test]
async fn a_copy_that_was_cut_goes_on_where_it_was() {
    for kind in KINDS {
        for (verb, of) in copies() {
            let driver = with_sources(kind).await;
            let whole = with_sources(kind).await;
            well(&whole, std::slice::from_ref(&verb)).await;
            let part = cut_within(&driver, &verb, &of).await;
            well(&driver, std::slice::from_ref(&verb)).await;
            assert_eq!(guid(&driver, of.as_str()), Some(part), "{verb:?}");
            let state = driver.backend().state();
            assert_eq!(state.pool.content(&of), state.pool.content(&dataset(0)));
            // No helper is left, nor the snapshot that came with the copy.
            let names = |state: &HostState| state.pool.things().into_keys().collect::<Vec<_>>();
            assert_eq!(names(&state), names(&whole.backend().state()), "{verb:?}");
        }
    }
}

#[tokio::test]
async fn a_copy_may_be_cut_as_often_as_it_is_tried() {
    for kind in KINDS {
        for (verb, of) in copies() {
            for goes_on in [false, true] {
                let driver = with_sources(kind).await;
                let part = cut_within(&driver, &verb, &of).await;
                for _ in 0..3 {
                    driver.backend().before_next_plan(move |state| {
                        state.cut_after = Some(state.steps);
                        state.goes_on = goes_on;
                    });
                    let again = run(&driver, &verb).await.unwrap_err();
                    assert_eq!(again.effect(), Effect::Possible, "{}", again.chain());
                    driver.backend().state().cut_after = None;
                    // Running work is done when the next one gets the lock.
                    if goes_on {
                        break;
                    }
                }
                well(&driver, std::slice::from_ref(&verb)).await;
                assert_eq!(guid(&driver, of.as_str()), Some(part), "{verb:?}");
            }
        }
    }
}

#[tokio::test]
async fn a_volume_started_as_a_copy_stays_one_when_its_class_changes() {
    for kind in KINDS {
        for source in [From::Volume(0), From::Snapshot(0, 0), From::Detached(0, 1)] {
            let driver = with_sources(kind).await;
            let before = driver.backend().state().pool.things().len();
            cut_within(&driver, &copy(1, source.clone()), &dataset(1)).await;
            well(&driver, &[create(1, source.clone())]).await;
            let after = driver.backend().state().pool.things().len();
            assert_eq!(after, before + 1, "the volume, and no snapshot: {source:?}");
            well(&driver, &[Verb::Delete(1)]).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_volume_is_deleted_whose_copy_is_still_running_when_that_is_over() {
    for kind in KINDS {
        let driver = with_sources(kind).await;
        driver.backend().state().goes_on = true;
        cut_within(&driver, &copy(1, From::Snapshot(0, 0)), &dataset(1)).await;
        well(&driver, &[Verb::Delete(1)]).await;
        assert!(!is_there(&driver, &dataset(1)));
    }
}

#[tokio::test]
async fn a_part_whose_source_is_gone_or_another_one_begins_again() {
    for kind in KINDS {
        for (verb, of) in copies() {
            for taken_again in [true, false] {
                let driver = with_sources(kind).await;
                let part = cut_within(&driver, &verb, &of).await;
                let sent = {
                    let mut state = driver.backend().state();
                    let sent = state.pool.arrives_from(&of).unwrap();
                    state.pool.write(&dataset(0));
                    if taken_again {
                        state.pool.take_again(&sent);
                    }
                    sent
                };
                if !taken_again {
                    if sent == attached(0, 0) {
                        // A deleted source cannot be copied.
                        continue;
                    }
                    let gone = Step::DestroySnapshot(sent);
                    driver.backend().state().pool.apply(&gone).unwrap();
                }
                well(&driver, std::slice::from_ref(&verb)).await;
                assert_ne!(guid(&driver, of.as_str()), Some(part), "{verb:?}");
                let state = driver.backend().state();
                // The volume itself was written to.
                let of_volume = matches!(
                    verb,
                    Verb::Snapshot { .. }
                        | Verb::Create {
                            source: From::Volume(_),
                            ..
                        }
                );
                let now = state.pool.content(&of) == state.pool.content(&dataset(0));
                assert_eq!(now, of_volume, "{verb:?}");
            }
        }
    }
}

#[tokio::test]
async fn a_part_is_deleted_like_anything_half_made() {
    for kind in KINDS {
        let driver = with_sources(kind).await;
        cut_within(&driver, &copy(1, From::Volume(0)), &dataset(1)).await;
        well(&driver, &[Verb::Delete(1)]).await;
        assert!(!is_there(&driver, &dataset(1)));
        cut_within(&driver, &snapshot_detached(0, 2), &detached(0, 2)).await;
        let delete = Verb::DeleteSnapshot {
            id: 0,
            name: 2,
            detached: true,
        };
        well(&driver, &[delete]).await;
        assert!(!is_there(&driver, &detached(0, 2)));
    }
}

#[tokio::test]
async fn a_part_of_what_is_gone_for_good_is_ended_and_that_is_said() {
    for kind in KINDS {
        let driver = with_sources(kind).await;
        let verb = copy(1, From::Snapshot(0, 0));
        cut_within(&driver, &verb, &dataset(1)).await;
        well(&driver, &[delete_snapshot(0, 0)]).await;
        refused(&driver, &verb, Kind::NotFound, "does not exist").await;
        assert!(!is_there(&driver, &dataset(1)));

        let verb = snapshot_detached(0, 2);
        cut_within(&driver, &verb, &detached(0, 2)).await;
        well(&driver, &[delete_snapshot(0, 0), Verb::Delete(0)]).await;
        refused(&driver, &verb, Kind::NotFound, "no such volume").await;
        assert!(!is_there(&driver, &detached(0, 2)));
    }
}

#[tokio::test]
async fn a_part_of_another_source_is_neither_taken_up_nor_ended() {
    for kind in KINDS {
        let driver = with_sources(kind).await;
        well(&driver, &[create(2, From::Nothing)]).await;
        let partial = cut_within(&driver, &copy(1, From::Volume(0)), &dataset(1)).await;
        let other = copy(1, From::Volume(2));
        refused(&driver, &other, Kind::Conflict, "another source").await;
        let empty = create(1, From::Nothing);
        refused(&driver, &empty, Kind::Conflict, "another source").await;
        assert_eq!(part(&driver, &dataset(1)), Some(partial));
    }
}

#[tokio::test]
async fn a_part_that_finds_no_room_does_not_stay_so_that_it_takes_none_from_others() {
    for kind in KINDS {
        for (verb, of) in copies() {
            let driver = with_sources(kind).await;
            let before = driver.backend().state().pool.things();
            cut_within(&driver, &verb, &of).await;
            driver.backend().state().pool.room = Room::None;
            let error = run(&driver, &verb).await.unwrap_err();
            assert_eq!(
                (error.kind(), error.effect()),
                (Kind::OutOfSpace, Effect::None),
                "{verb:?}"
            );
            let after = driver.backend().state().pool.things();
            let left: Vec<_> = after
                .keys()
                .filter(|name| !before.contains_key(name))
                .collect();
            assert!(left.is_empty(), "{verb:?}: {left:?}");
        }
    }
}

#[tokio::test]
async fn what_cannot_go_on_is_waited_for() {
    for kind in KINDS {
        let driver = with_sources(kind).await;
        {
            // As democratic-csi copies.
            let mut state = driver.backend().state();
            let marks = [set(driver_zfs::property::PropertyName::MANAGED, "true")];
            let copied = state.pool.begin_copy(&attached(0, 0), &dataset(1), &marks);
            copied.unwrap();
        }
        let verb = copy(1, From::Snapshot(0, 0));
        refused(&driver, &verb, Kind::Pending, "still running").await;
        refused(&driver, &Verb::Delete(1), Kind::Pending, "still running").await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_part_is_an_orphan_only_after_a_week_for_the_copy_may_rest() {
    let driver = with_sources(VolumeKind::Zvol).await;
    cut_within(&driver, &copy(1, From::Volume(0)), &dataset(1)).await;
    let hours = Duration::from_hours;
    let hour_ago = || SystemTime::now() - hours(1);
    let age = |age: Duration| {
        let mut state = driver.backend().state();
        let first = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        let born = SystemTime::now() - age;
        state.pool.later = born.duration_since(first).unwrap().as_secs();
    };
    age(hours(6 * 24));
    assert_eq!(orphans(&driver, hour_ago()).await, []);
    age(hours(8 * 24));
    let found = orphans(&driver, hour_ago()).await;
    let [half] = &found[..] else {
        panic!("the part, with its helper: {found:?}");
    };
    assert_eq!(half.object, dataset(1).as_str());
    driver
        .remove_orphan(&call(), hour_ago(), half)
        .await
        .unwrap();
    assert!(!is_there(&driver, &dataset(1)));
    // Then nothing needs the helper any more.
    let found = orphans(&driver, hour_ago()).await;
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].object.ends_with("@volume-source-for-volume-v1"));
}

/// The state left by a backend that gives a copy its properties after its content, and was cut in between.
#[tokio::test]
async fn a_detached_copy_without_marks_is_taken_up_if_its_helper_came_with_it() {
    for kind in KINDS {
        for ours in [true, false] {
            let driver = fresh(kind);
            well(&driver, &[create(0, From::Nothing)]).await;
            let copy = detached(0, 2);
            let leaf = SnapshotLeaf::parse("volume-source-for-snapshot-s2").unwrap();
            let (helper, came) = (dataset(0).at(&leaf).unwrap(), copy.at(&leaf).unwrap());
            {
                let pool = &mut driver.backend().state().pool;
                for above in ["tank/csi/s", "tank/csi/s/v0"] {
                    pool.insert(&name(above), VolumeKind::Filesystem, &[], None);
                }
                pool.insert(&copy, kind, &[], None);
                pool.insert_snapshot(&helper, &[]);
                if ours {
                    pool.receive_snapshot(&came, &helper);
                } else {
                    pool.insert_snapshot(&came, &[]);
                }
            }
            let before = guid(&driver, copy.as_str());
            let verb = snapshot_detached(0, 2);
            if !ours {
                refused(&driver, &verb, Kind::Conflict, "not taken by this request").await;
                continue;
            }
            well(&driver, &[verb]).await;
            assert_eq!(guid(&driver, copy.as_str()), before);
            let things = driver.backend().state().pool.things();
            let own = &things[&copy.clone().into()].own;
            assert_eq!(own[&PropertyName::SNAPSHOT_NAME], "s2");
            assert_eq!(own[&PropertyName::SUCCESS], "true");
            for left in [helper, came] {
                assert!(!things.contains_key(&left.clone().into()), "{left}");
            }
        }
    }
}
