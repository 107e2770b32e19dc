//! Leftovers of interrupted verbs, and how they are removed.

use driver_core::{Error, Kind};
use driver_zfs::observed::VolumeKind;
use driver_zfs::property::PropertyName;
use driver_zfs::testing::InMemory as _;
use driver_zfs::testing::{MemoryHost, Thing};
use proptest::prelude::*;

use crate::world::*;

/// Deletes every object that the orchestrator may know.
async fn empty(kind: VolumeKind, driver: &MemoryDriver) {
    for (ids, name) in (1..8).flat_map(|ids| NAMES.map(move |name| (ids, name))) {
        let verb = Verb::DeleteGroup { ids, name };
        let result = run(driver, &verb).await;
        let why = result.as_ref().err().map(Error::chain);
        assert!(result.is_ok(), "{kind} {verb:?}: {why:?}");
    }
    for name in NAMES {
        for (id, detached) in IDS.flat_map(|id| [(id, false), (id, true)]) {
            let verb = Verb::DeleteSnapshot { id, name, detached };
            let object = attached(id, name).into();
            let things = driver.backend().state().pool.things();
            let there = things.get(&object).filter(|thing| !thing.doomed);
            let named = |thing: &Thing| thing.own.contains_key(&PropertyName::SNAPSHOT_NAME);
            // One that came with a partial copy is rejected, and removed with its volume.
            let refused = !detached && there.is_some_and(|thing| !named(thing));
            let result = run(driver, &verb).await;
            let expected = refused.then_some(Kind::Busy);
            let why = result.as_ref().err().map(Error::chain);
            assert_eq!(outcome(&result), expected, "{kind} {verb:?}: {why:?}");
        }
    }
    for id in IDS {
        let result = run(driver, &Verb::Delete(id)).await;
        let why = result.as_ref().err().map(Error::chain);
        assert!(result.is_ok(), "{kind} delete v{id}: {why:?}");
    }
}

fn is_of_others(event: &Event) -> bool {
    matches!(
        event,
        Event::Foreign(_)
            | Event::Hold(..)
            | Event::Files(_)
            | Event::Beside(_)
            | Event::Elsewhere(..)
    )
}

/// Runs on a separate host, with a paused clock.
fn on_a_host(kind: VolumeKind, coy: bool, work: impl AsyncFnOnce(&MemoryDriver)) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    let state = MemoryHost::new().state().clone();
    let driver = driver(kind, coy, state);
    runtime.block_on(work(&driver));
}

/// Nothing is left except the parents of volumes and snapshots, and the datasets that
/// democratic-csi created to hold detached snapshots, which look like filesystems of other users.
fn assert_empty(driver: &MemoryDriver) {
    let state = driver.backend().state().clone();
    let parents = ["tank", "tank/csi", "tank/csi/s", "tank/csi/v"];
    for (object, thing) in state.pool.things() {
        let name = object.to_string();
        let held = name.strip_prefix("tank/csi/s/v");
        let unmarked = thing.own.is_empty() && held.is_some_and(|id| !id.contains(['/', '@']));
        assert!(
            unmarked || parents.contains(&name.as_str()),
            "{name}: {thing:?}"
        );
    }
    assert!(state.targets.targets.is_empty(), "{:?}", state.targets);
    assert!(state.targets.saved.is_empty(), "{:?}", state.targets);
}

/// Runs a verb that is interrupted after this many steps; returns whether it was.
async fn cut(driver: &MemoryDriver, verb: &Verb, steps: usize) -> bool {
    let at = driver.backend().state().steps + steps;
    driver.backend().state().cut_after = Some(at);
    let result = run(driver, verb).await;
    driver.backend().state().cut_after = None;
    result.is_err_and(|error| error.kind() == Kind::Unreachable)
}

#[test]
fn everything_that_was_made_or_half_made_can_be_deleted_and_nothing_is_left() {
    let config = ProptestConfig {
        cases: 600,
        ..ProptestConfig::default()
    };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let cases = (
        any::<bool>(),
        any::<bool>(),
        prop::collection::vec(event(), 0..20),
        prop::collection::vec((verb(), 0..12_usize), 0..4),
    );
    let outcome = runner.run(&cases, |(zvol, coy, events, cuts)| {
        let kind = if zvol {
            VolumeKind::Zvol
        } else {
            VolumeKind::Filesystem
        };
        on_a_host(kind, coy, async |driver| {
            for event in beginning().iter().chain(&events) {
                // What others hold cannot be removed.
                if !is_of_others(event) {
                    happen(driver, kind, event).await;
                }
            }
            for (verb, steps) in &cuts {
                cut(driver, verb, *steps).await;
            }
            empty(kind, driver).await;
            assert_empty(driver);
        });
        Ok(())
    });
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn what_a_cut_verb_left_goes_with_its_volume_even_if_the_verb_is_never_tried_again() {
    let create = |source, copy| Verb::Create {
        id: 2,
        source,
        copy,
    };
    let verbs = [
        create(From::Nothing, false),
        create(From::Volume(0), false),
        create(From::Volume(0), true),
        create(From::Snapshot(0, 0), false),
        create(From::Snapshot(0, 0), true),
        create(From::Detached(0, 1), false),
        create(From::Detached(0, 1), true),
        Verb::Snapshot {
            id: 0,
            name: 1,
            detached: false,
        },
        Verb::Snapshot {
            id: 1,
            name: 1,
            detached: true,
        },
    ];
    for kind in [VolumeKind::Filesystem, VolumeKind::Zvol] {
        for verb in &verbs {
            let mut steps = 0;
            loop {
                let mut lost = true;
                on_a_host(kind, false, async |driver| {
                    for event in &beginning() {
                        happen(driver, kind, event).await;
                    }
                    let other = Verb::Create {
                        id: 1,
                        source: From::Nothing,
                        copy: false,
                    };
                    run(driver, &other).await.unwrap();
                    if matches!(verb, Verb::Snapshot { .. }) {
                        // A name belongs to one snapshot.
                        let first = Verb::DeleteSnapshot {
                            id: 0,
                            name: 1,
                            detached: true,
                        };
                        run(driver, &first).await.unwrap();
                    }
                    lost = cut(driver, verb, steps).await;
                    empty(kind, driver).await;
                    assert_empty(driver);
                });
                if !lost {
                    break;
                }
                steps += 1;
            }
            assert!(steps > 0, "{verb:?} was never cut");
        }
    }
}

#[test]
fn the_export_of_a_volume_that_others_destroyed_is_withdrawn() {
    on_a_host(VolumeKind::Zvol, false, async |driver| {
        let create = Verb::Create {
            id: 0,
            source: From::Nothing,
            copy: false,
        };
        run(driver, &create).await.unwrap();
        let destroy = driver_zfs::step::Step::DestroyDataset(dataset(0));
        driver.backend().state().pool.apply(&destroy).unwrap();
        assert!(!driver.backend().state().targets.targets.is_empty());
        run(driver, &Verb::Delete(0)).await.unwrap();
        assert_empty(driver);
    });
}

#[test]
fn an_export_that_the_host_lost_is_put_back_when_its_volume_is_asked_for() {
    on_a_host(VolumeKind::Zvol, true, async |driver| {
        let create = Verb::Create {
            id: 0,
            source: From::Nothing,
            copy: false,
        };
        run(driver, &create).await.unwrap();
        let whole = driver.backend().state().targets.clone();
        happen(driver, VolumeKind::Zvol, &Event::Lost).await;
        run(driver, &create).await.unwrap();
        assert_eq!(driver.backend().state().targets, whole);
    });
}
