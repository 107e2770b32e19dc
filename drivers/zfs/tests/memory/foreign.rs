//! What others have, and what only looks like ours, stays.

use driver_core::{Kind, SnapshotName};
use driver_zfs::observed::VolumeKind;
use driver_zfs::property::PropertyName;
use driver_zfs::step::Step;

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
        // Whether there is a snapshot, and whether what would hold it is a zvol.
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
            // One without a mark may hold a few notes of somebody.
            let stays = guid(&driver, "tank/csi/s/v0").is_some();
            assert_eq!(stays, legacy);
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

    // A volume that stands on it does not take it along.
    let clone = Step::<()>::Clone {
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
async fn a_copy_that_somebody_made_is_adopted_only_if_it_is_one_of_this_source() {
    for kind in KINDS {
        let driver = fresh(kind);
        well(&driver, &[create(0, From::Nothing), snapshot(0, 0)]).await;
        let theirs = snap(&format!("{}@s0", dataset(1)));
        {
            let mut state = driver.backend().state();
            let size = [set(PropertyName::VOLSIZE, &SIZE.to_string())];
            state.pool.insert(&dataset(1), kind, &size, None);
            state.pool.insert_snapshot(&theirs, &[]);
            // What democratic-csi leaves when it is killed right after a copy.
            let copy = Step::<()>::Copy {
                from: attached(0, 0),
                to: dataset(2),
                properties: Vec::new(),
                mount: true,
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
