//! A full pool: a volume that was not started may be created elsewhere, one that was started may
//! not.

use std::time::Duration;

use driver_core::{Call, Driver, Effect, Kind};
use driver_zfs::observed::VolumeKind;
use driver_zfs::testing::InMemory as _;
use driver_zfs::testing::Room;

use crate::short::*;
use crate::world::*;

/// The error for a volume without enough space, and the effect on the call.
async fn out_of_space(driver: &MemoryDriver, verb: &Verb) -> [Effect; 2] {
    let Verb::Create { id, source, copy } = verb else {
        unreachable!("{verb:?}")
    };
    let call = Call::within(Duration::from_mins(10));
    let request = request(*id, source, *copy);
    let error = driver.create_volume(&call, &request).await.unwrap_err();
    assert_eq!(error.kind(), Kind::OutOfSpace, "{}", error.chain());
    [error.effect(), call.effect()]
}

#[tokio::test]
async fn a_volume_that_found_no_room_left_nothing_and_says_so() {
    for kind in KINDS {
        let driver = fresh(kind);
        let before = [
            create(0, From::Nothing),
            snapshot(0, 0),
            snapshot_detached(0, 1),
        ];
        well(&driver, &before).await;
        let shape = driver.backend().state().pool.shape();
        driver.backend().state().pool.room = Room::None;
        for source in [
            From::Nothing,
            From::Volume(0),
            From::Snapshot(0, 0),
            From::Detached(0, 1),
        ] {
            for verb in [create(1, source.clone()), copy(1, source)] {
                assert_eq!(
                    out_of_space(&driver, &verb).await,
                    [Effect::None; 2],
                    "{verb:?}"
                );
                assert_eq!(driver.backend().state().pool.shape(), shape, "{verb:?}");
            }
        }
        driver.backend().state().pool.room = Room::Enough;
        well(&driver, &[create(1, From::Volume(0))]).await;
    }
}

#[tokio::test]
async fn one_that_others_make_while_it_finds_no_room_is_not_made_elsewhere() {
    let driver = fresh(VolumeKind::Filesystem);
    driver.backend().state().pool.room = Room::None;
    // The command of an earlier call ends after this call has failed.
    driver.backend().after_failing(|state| {
        let properties = [
            set(driver_zfs::property::PropertyName::MANAGED, "true"),
            set(driver_zfs::property::PropertyName::VOLUME_NAME, "v1"),
        ];
        state
            .pool
            .insert(&dataset(1), VolumeKind::Filesystem, &properties, None);
    });
    let said = out_of_space(&driver, &create(1, From::Nothing)).await;
    assert_eq!(said, [Effect::Possible; 2]);
}

#[tokio::test]
async fn a_look_that_fails_proves_nothing() {
    let driver = fresh(VolumeKind::Filesystem);
    driver.backend().state().pool.room = Room::None;
    driver.backend().after_failing(|state| {
        state.cut_after = Some(0);
    });
    let said = out_of_space(&driver, &create(1, From::Nothing)).await;
    assert_eq!(said, [Effect::Possible; 2]);
}
