//! Objects of others, and objects that only look like ours, stay.

use driver_core::{Effect, Kind, SnapshotName};
use driver_zfs::name::Object;
use driver_zfs::observed::VolumeKind;
use driver_zfs::property::PropertyName;
use driver_zfs::step::Step;
use driver_zfs::testing::InMemory as _;
use driver_zfs::testing::{HostState, MemoryHost};

use crate::short::*;
use crate::world::*;

fn taken_by_orchestrator(leaf: &str) -> [driver_zfs::property::Property; 2] {
    [
        set(PropertyName::SNAPSHOT_NAME, leaf),
        set(PropertyName::MANAGED, "true"),
    ]
}

#[tokio::test]
async fn files_that_lie_where_detached_snapshots_would_survive_the_deletion_of_one() {
    for kind in KINDS {
        // Whether the snapshot exists, and whether its container would be a zvol.
        for (snapshot, theirs) in [
            (false, VolumeKind::Filesystem),
            (false, VolumeKind::Zvol),
            (true, VolumeKind::Filesystem),
        ] {
            let driver = fresh(kind);
            well(
                &driver,
                &[create(0, From::Nothing), snapshot_detached(0, 1)],
            )
            .await;
            let photos = name("tank/csi/s/v2");
            {
                let mut state = driver.backend().state();
                state.pool.insert(&photos, theirs, &[], None);
                if theirs == VolumeKind::Filesystem {
                    state.pool.write(&photos);
                }
            }
            if snapshot {
                well(
                    &driver,
                    &[create(2, From::Nothing), snapshot_detached(2, 0)],
                )
                .await;
            }
            let before = guid(&driver, "tank/csi/s/v2");
            well(&driver, &[delete_detached(2, 0)]).await;
            assert_eq!(guid(&driver, "tank/csi/s/v2"), before, "{kind}: {theirs}");
            assert_eq!(guid(&driver, "tank/csi/s/v2/s0"), None);
        }
    }
}

#[tokio::test]
async fn what_was_made_to_hold_detached_snapshots_goes_with_the_last_of_them_and_not_before() {
    for kind in KINDS {
        for legacy in [false, true] {
            let driver = fresh(kind);
            well(&driver, &[create(0, From::Nothing)]).await;
            for id in 0..2 {
                if legacy {
                    legacy_detached(&mut driver.backend().state(), kind, 0, id);
                } else {
                    well(&driver, &[snapshot_detached(0, id)]).await;
                }
            }
            well(&driver, &[delete_detached(0, 0)]).await;
            assert!(guid(&driver, "tank/csi/s/v0").is_some());
            assert!(guid(&driver, "tank/csi/s/v0/s1").is_some());
            well(&driver, &[delete_detached(0, 1)]).await;
            assert_eq!(guid(&driver, "tank/csi/s/v0"), None, "legacy: {legacy}");
            assert!(guid(&driver, "tank/csi/s").is_some());
            assert_eq!(guid(&driver, "tank/csi/s/v0/s1"), None);

            well(&driver, &[snapshot_detached(0, 2)]).await;
            driver.backend().state().pool.write(&name("tank/csi/s/v0"));
            well(&driver, &[delete_detached(0, 2)]).await;
            well(&driver, &[delete_detached(0, 1)]).await;
            assert!(guid(&driver, "tank/csi/s/v0").is_some(), "it has files");
        }
    }
}

#[tokio::test]
async fn a_snapshot_of_the_orchestrator_that_is_called_like_a_helper_is_not_taken_for_one() {
    let driver = fresh(VolumeKind::Filesystem);
    well(&driver, &[create(0, From::Nothing)]).await;
    let leaf = "volume-source-for-volume-v1";
    let snapshot = snap(&format!("{}@{leaf}", dataset(0)));
    let properties = taken_by_orchestrator(leaf);
    driver
        .backend()
        .state()
        .pool
        .insert_snapshot(&snapshot, &properties);
    let before = driver.backend().state().pool.things();
    refused(
        &driver,
        &create(1, From::Volume(0)),
        Kind::Conflict,
        "snapshot of its own",
    )
    .await;
    assert_eq!(driver.backend().state().pool.things(), before);

    // A volume that depends on it does not delete it.
    let clone = Step::Clone {
        origin: snapshot.clone(),
        dataset: dataset(2),
        properties: vec![
            set(PropertyName::MANAGED, "true"),
            set(PropertyName::VOLUME_NAME, "v2"),
        ],
    };
    others_do(&mut driver.backend().state(), &clone);
    well(&driver, &[Verb::Delete(2)]).await;
    let things = driver.backend().state().pool.things();
    assert!(!things[&snapshot.into()].doomed);
}

#[test]
fn no_new_snapshot_is_called_like_a_helper() {
    let volume = volume(0);
    for name in [
        "volume-source-for-volume-v1",
        "volume-source-for-",
        "+volume-source-for-x",
        "volume-source-for-\u{e9}",
    ] {
        let name = SnapshotName::parse(name).unwrap();
        let leaf = driver_zfs::id::leaf_of(&name, &volume, driver_core::text::MAX_STRING).unwrap();
        assert!(!driver_zfs::id::is_helper(&leaf), "{leaf}");
    }
}

#[tokio::test]
async fn a_foreign_copy_is_adopted_only_if_it_is_of_this_source() {
    for kind in KINDS {
        let driver = fresh(kind);
        well(&driver, &[create(0, From::Nothing), snapshot(0, 0)]).await;
        let theirs = snap(&format!("{}@s0", dataset(1)));
        {
            let mut state = driver.backend().state();
            let size = [set(PropertyName::VOLSIZE, &SIZE.to_string())];
            state.pool.insert(&dataset(1), kind, &size, None);
            state.pool.insert_snapshot(&theirs, &[]);
            // The leftover of a democratic-csi that is killed right after a copy.
            let copy = Step::Copy {
                from: attached(0, 0),
                to: dataset(2),
                properties: Vec::new(),
            };
            others_do(&mut state, &copy);
        }
        let words = "not a volume of this driver";
        let adopt = copy(1, From::Snapshot(0, 0));
        refused(&driver, &adopt, Kind::Conflict, words).await;
        assert!(guid(&driver, "tank/csi/v/v1@s0").is_some());
        well(&driver, &[copy(2, From::Snapshot(0, 0))]).await;
        assert_eq!(guid(&driver, "tank/csi/v/v2@s0"), None, "left behind");
        well(&driver, &[Verb::Delete(2)]).await;
    }
}

/// A verb of one cluster was interrupted after some of its steps, or completed; then another one
/// that shares the pool requests the same names.
async fn gets_a_conflict(kind: VolumeKind, before: &HostState, verb: &Verb, orders: &[Verb]) {
    let whole = cluster("a", kind, before.clone());
    well(&whole, orders).await;
    let begin = whole.backend().state().clone();
    well(&whole, std::slice::from_ref(verb)).await;
    let steps = whole.backend().state().steps;
    for at in begin.steps + 1..=steps {
        for goes_on in [false, true] {
            let theirs = cluster("a", kind, begin.clone());
            if at < steps {
                theirs.backend().state().cut_after = Some(at);
                theirs.backend().state().goes_on = goes_on;
            }
            drop(run(&theirs, verb).await);
            theirs.backend().state().cut_after = None;
            theirs.backend().state().finish();
            let left = theirs.backend().state().clone();
            if left.pool.guid(&dataset(1).into()).is_none() {
                continue;
            }
            let ours = cluster("b", kind, left.clone());
            let what = format!("{kind}: {verb:?} cut after {at}");
            let error = run(&ours, verb).await.expect_err(&what);
            assert_eq!(error.kind(), Kind::Conflict, "{what}: {}", error.chain());
            assert_eq!(error.effect(), Effect::None, "{what}");
            let now = ours.backend().state().clone();
            assert_eq!(now.pool.things(), left.pool.things(), "{what}");
            assert_eq!(now.targets, left.targets, "{what}");
            // The cluster that started it gets it.
            let theirs = cluster("a", kind, now);
            well(&theirs, std::slice::from_ref(verb)).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_volume_of_another_cluster_with_the_same_name_is_not_adopted() {
    for kind in KINDS {
        let empty = MemoryHost::new().state().clone();
        let first = [create(0, From::Nothing)];
        for verb in [
            create(1, From::Nothing),
            create(1, From::Volume(0)),
            copy(1, From::Volume(0)),
        ] {
            gets_a_conflict(kind, &empty, &verb, &first).await;
        }
    }
}

#[tokio::test]
async fn a_copy_of_another_cluster_that_still_runs_is_a_conflict_too() {
    let driver = fresh(VolumeKind::Filesystem);
    well(&driver, &[create(0, From::Nothing), snapshot(0, 0)]).await;
    {
        let mut state = driver.backend().state();
        let by = |instance| {
            vec![
                set(PropertyName::MANAGED, "true"),
                set(PropertyName::INSTANCE, instance),
            ]
        };
        let copied = state
            .pool
            .begin_copy(&attached(0, 0), &dataset(1), &by("another"));
        copied.unwrap();
    }
    let words = "another driver or instance_id";
    refused(&driver, &create(1, From::Nothing), Kind::Conflict, words).await;
}

#[tokio::test]
async fn a_volume_without_marks_or_with_those_of_this_connection_is_taken_up_as_ever() {
    for kind in KINDS {
        let driver = fresh(kind);
        for id in 0..2 {
            legacy(&mut driver.backend().state(), kind, id, None);
        }
        let object = dataset(0).into();
        let property = PropertyName::PROVISIONER;
        let unmarked = Step::Inherit { object, property };
        others_do(&mut driver.backend().state(), &unmarked);
        let before = [0, 1].map(|id| guid(&driver, dataset(id).as_str()));
        well(
            &driver,
            &[create(0, From::Nothing), create(1, From::Nothing)],
        )
        .await;
        let after = [0, 1].map(|id| guid(&driver, dataset(id).as_str()));
        assert_eq!(before, after);
    }
}

#[tokio::test]
async fn what_democratic_csi_made_for_detached_snapshots_gets_all_marks_wherever_that_was_cut() {
    for kind in KINDS {
        for parts in 0..3 {
            let driver = fresh(kind);
            well(&driver, &[create(0, From::Nothing)]).await;
            for id in 0..2 {
                legacy_detached(&mut driver.backend().state(), kind, 0, id);
            }
            {
                let mut state = driver.backend().state();
                state.cut_after = Some(state.steps + parts);
            }
            run(&driver, &delete_detached(0, 0)).await.unwrap_err();
            driver.backend().state().cut_after = None;
            well(&driver, &[delete_detached(0, 0)]).await;
            let things = driver.backend().state().pool.things();
            let own = &things[&Object::from(name("tank/csi/s/v0"))].own;
            for mark in [PropertyName::CONTAINER, PropertyName::PROVISIONER] {
                assert!(own.contains_key(&mark), "{mark} is missing after {parts}");
            }
        }
    }
}

#[tokio::test]
async fn a_detached_snapshot_of_another_cluster_is_not_taken_for_one_of_the_same_name() {
    for kind in KINDS {
        let theirs = cluster("a", kind, MemoryHost::new().state().clone());
        well(
            &theirs,
            &[
                create(0, From::Nothing),
                snapshot_detached(0, 0),
                Verb::Delete(0),
            ],
        )
        .await;
        let ours = cluster("b", kind, theirs.backend().state().clone());
        well(&ours, &[create(0, From::Nothing)]).await;
        for half in [false, true] {
            if half {
                let object = detached(0, 0).into();
                let property = PropertyName::SUCCESS;
                let unmarked = Step::Inherit { object, property };
                others_do(&mut ours.backend().state(), &unmarked);
            }
            let before = ours.backend().state().pool.things();
            let words = "another driver or instance_id";
            refused(&ours, &snapshot_detached(0, 0), Kind::Conflict, words).await;
            assert_eq!(ours.backend().state().pool.things(), before);
        }
        // One without marks may be of democratic-csi.
        legacy_detached(&mut ours.backend().state(), kind, 0, 1);
        let before = guid(&ours, detached(0, 1).as_str());
        well(&ours, &[snapshot_detached(0, 1)]).await;
        assert_eq!(guid(&ours, detached(0, 1).as_str()), before);
    }
}

/// A snapshot that this driver did not take.
fn take_auto(driver: &MemoryDriver, leaf: &str) {
    let name = snap(&format!("{}@{leaf}", dataset(0)));
    driver.backend().state().pool.insert_snapshot(&name, &[]);
}

#[tokio::test]
async fn snapshots_of_other_programs_go_with_their_volume_unless_the_configuration_keeps_them() {
    for kind in KINDS {
        let driver = fresh(kind);
        well(&driver, &[create(0, From::Nothing)]).await;
        take_auto(&driver, "autosnap_1");
        take_auto(&driver, "autosnap_2");
        well(&driver, &[Verb::Delete(0)]).await;
        assert_eq!(guid(&driver, "tank/csi/v/v0"), None);

        let driver = keeping(kind);
        well(&driver, &[create(0, From::Nothing)]).await;
        take_auto(&driver, "autosnap_1");
        let before = driver.backend().state().pool.things();
        refused(
            &driver,
            &Verb::Delete(0),
            Kind::Busy,
            "tank/csi/v/v0@autosnap_1",
        )
        .await;
        assert_eq!(driver.backend().state().pool.things(), before);
    }
}

#[tokio::test]
async fn csi_snapshots_and_holds_still_keep_a_volume_with_all_of_its_snapshots() {
    for kind in KINDS {
        let driver = fresh(kind);
        well(&driver, &[create(0, From::Nothing), snapshot(0, 1)]).await;
        take_auto(&driver, "autosnap_1");
        let before = driver.backend().state().pool.things();
        refused(&driver, &Verb::Delete(0), Kind::Busy, "@s1").await;
        assert_eq!(driver.backend().state().pool.things(), before);
        well(&driver, &[delete_snapshot(0, 1)]).await;
        let auto = snap(&format!("{}@autosnap_1", dataset(0)));
        driver.backend().state().pool.hold(&auto);
        let before = driver.backend().state().pool.things();
        refused(&driver, &Verb::Delete(0), Kind::Busy, "zfs release").await;
        assert_eq!(driver.backend().state().pool.things(), before);
    }
}

#[tokio::test]
async fn a_deleted_snapshot_that_is_held_keeps_its_name_for_zfs_release() {
    for kind in KINDS {
        let driver = fresh(kind);
        well(&driver, &[create(0, From::Nothing), snapshot(0, 1)]).await;
        let held = attached(0, 1);
        driver.backend().state().pool.hold(&held);
        // Called twice, like a sidecar that missed the answer.
        well(&driver, &[delete_snapshot(0, 1), delete_snapshot(0, 1)]).await;
        let before = driver.backend().state().pool.things();
        let kept = &before[&held.into()];
        assert!(kept.doomed && kept.held, "{kind}: {kept:?}");
        refused(&driver, &snapshot(0, 1), Kind::Busy, "zfs release").await;
        assert_eq!(driver.backend().state().pool.things(), before);
    }
}
