//! Quotas and reservations by class: at the creation of a volume, and afterwards.

use driver_core::{Driver as _, Kind, Modifier as _};
use driver_zfs::observed::VolumeKind;
use driver_zfs::property::PropertyName;
use driver_zfs::testing::InMemory as _;

use crate::modified::{allowing, is, modify, of_class, own};
use crate::orphans::call;
use crate::short::*;
use crate::world::*;

const MODES: &str = "  volumeParameters: [compression, quotaMode, reservationMode]\n";
const OF_ZVOLS: &str = "  volumeParameters: [compression, reservationMode]\n";
const QUOTA: (&str, &str) = ("quotaMode", "refquota");
const NO_QUOTA: (&str, &str) = ("quotaMode", "none");
const RESERVED: (&str, &str) = ("reservationMode", "refreservation");
const NOT_RESERVED: (&str, &str) = ("reservationMode", "none");

/// The quota and the reservation of a volume; 0 is none.
fn sizes(driver: &MemoryDriver, id: u8) -> [i64; 2] {
    let own = own(driver, id);
    [PropertyName::REFQUOTA, PropertyName::REFRESERVATION].map(|name| {
        let text = own.get(name.as_str());
        text.map_or(0, |text| text.parse().unwrap())
    })
}

#[tokio::test]
async fn a_class_says_whether_the_size_of_a_filesystem_is_its_quota_and_is_reserved() {
    let given = "  datasetProperties: {refquota: '1073741824', refreservation: '1073741824'}\n";
    let both = "  datasetEnableQuotas: true\n  datasetEnableReservation: true\n";
    for configured in ["", both, given] {
        let driver = allowing(VolumeKind::Filesystem, &format!("{configured}{MODES}"));
        well(&driver, &[create(0, From::Nothing)]).await;
        let mut id = 0;
        for (class, quota, reserved) in [
            ([QUOTA, NOT_RESERVED], SIZE, 0),
            ([NO_QUOTA, NOT_RESERVED], 0, 0),
            ([QUOTA, RESERVED], SIZE, SIZE),
            ([NO_QUOTA, RESERVED], 0, SIZE),
        ] {
            let quota_of_other = if quota > 0 { NO_QUOTA } else { QUOTA };
            let reserved_of_other = if reserved > 0 { NOT_RESERVED } else { RESERVED };
            for (source, copy) in WAYS {
                id += 1;
                let request = of_class(id, &source, copy, &class);
                for _ in 0..2 {
                    let made = driver.create_volume(&call(), &request).await.unwrap();
                    let size = u64::try_from(quota).ok().filter(|size| *size > 0);
                    assert_eq!(made.capacity, size, "{class:?}");
                    assert_eq!(sizes(&driver, id), [quota, reserved], "{class:?}");
                }
                for other in [quota_of_other, reserved_of_other] {
                    let request = of_class(id, &source, copy, &[other]);
                    let error = driver.create_volume(&call(), &request).await;
                    is(&error.unwrap_err(), Kind::Conflict, other.0);
                }
                well(&driver, &[Verb::Expand(id, 2)]).await;
                assert_eq!(sizes(&driver, id), [2 * quota, 2 * reserved], "{class:?}");
            }
        }
    }
}

#[tokio::test]
async fn a_class_says_whether_the_size_of_a_zvol_is_reserved() {
    for configured in ["", "  zvolEnableReservation: true\n"] {
        let driver = allowing(VolumeKind::Zvol, &format!("{configured}{OF_ZVOLS}"));
        well(&driver, &[create(0, From::Nothing)]).await;
        let mut id = 0;
        for (class, other, reserved) in
            [(RESERVED, NOT_RESERVED, SIZE), (NOT_RESERVED, RESERVED, 0)]
        {
            for (source, copy) in WAYS {
                id += 1;
                let request = of_class(id, &source, copy, &[class]);
                for _ in 0..2 {
                    driver.create_volume(&call(), &request).await.unwrap();
                    assert_eq!(sizes(&driver, id)[1], reserved, "{class:?}");
                }
                let request = of_class(id, &source, copy, &[other]);
                let error = driver.create_volume(&call(), &request).await;
                is(&error.unwrap_err(), Kind::Conflict, "reservationMode=");
                modify(&driver, id, &[other]).await.unwrap();
                assert_eq!(sizes(&driver, id)[1], SIZE - reserved, "{class:?}");
                well(&driver, &[Verb::Expand(id, 2)]).await;
                assert_eq!(sizes(&driver, id)[1], 2 * (SIZE - reserved), "{class:?}");
            }
        }
    }
}

#[tokio::test]
async fn the_reservation_of_a_filesystem_is_changed_and_grows_only_where_there_is_one() {
    for configured in ["", "  datasetEnableReservation: true\n"] {
        let zfs = format!("  datasetEnableQuotas: true\n{configured}{MODES}");
        let driver = allowing(VolumeKind::Filesystem, &zfs);
        well(&driver, &[create(0, From::Nothing)]).await;
        for (class, reserved) in [(NOT_RESERVED, 0), (RESERVED, SIZE)] {
            modify(&driver, 0, &[class]).await.unwrap();
            let before = driver.backend().state().steps;
            modify(&driver, 0, &[class]).await.unwrap();
            assert_eq!(driver.backend().state().steps, before, "{class:?}");
            assert_eq!(sizes(&driver, 0), [SIZE, reserved], "{class:?}");
        }
        well(&driver, &[Verb::Expand(0, 2)]).await;
        assert_eq!(sizes(&driver, 0), [2 * SIZE, 2 * SIZE], "{configured}");
        modify(&driver, 0, &[NOT_RESERVED]).await.unwrap();
        well(&driver, &[Verb::Expand(0, 3)]).await;
        assert_eq!(sizes(&driver, 0), [3 * SIZE, 0], "{configured}");
    }
}

#[tokio::test]
async fn what_cannot_be_changed_is_refused_with_its_reason_and_nothing_is_changed() {
    let driver = allowing(VolumeKind::Filesystem, MODES);
    assert_eq!(driver.mutable_keys(), ["compression", "reservationMode"]);
    well(&driver, &[create(0, From::Nothing)]).await;
    let before = driver.backend().state().steps;
    let lz4 = ("compression", "lz4");
    for (class, words) in [
        ([lz4, QUOTA], "recorded nowhere"),
        ([lz4, NO_QUOTA], "keeps its `quotaMode`"),
        ([lz4, RESERVED], "it has no quota"),
        ([lz4, ("reservationMode", "on")], "refreservation, none"),
        ([lz4, ("quotaMode", "quota")], "keeps its `quotaMode`"),
    ] {
        let error = modify(&driver, 0, &class).await.unwrap_err();
        is(&error, Kind::Invalid, words);
    }
    let request = of_class(1, &From::Nothing, false, &[("quotaMode", "quota")]);
    let error = driver.create_volume(&call(), &request).await.unwrap_err();
    is(&error, Kind::Invalid, "refquota, none");
    assert_eq!(driver.backend().state().steps, before);
}

#[tokio::test]
async fn a_reservation_beside_a_property_that_zfs_refused_is_taken_back() {
    for kind in KINDS {
        let list = match kind {
            VolumeKind::Filesystem => format!("  datasetEnableQuotas: true\n{MODES}"),
            VolumeKind::Zvol => OF_ZVOLS.to_owned(),
        };
        let driver = allowing(kind, &list);
        for (id, had, wanted) in [(0, RESERVED, NOT_RESERVED), (1, NOT_RESERVED, RESERVED)] {
            let request = of_class(id, &From::Nothing, false, &[had]);
            driver.create_volume(&call(), &request).await.unwrap();
            let before = sizes(&driver, id);
            driver.backend().state().pool.refuse_property = Some(PropertyName::COMPRESSION);
            let class = [("compression", "zstd"), wanted];
            let error = modify(&driver, id, &class).await.unwrap_err();
            driver.backend().state().pool.refuse_property = None;
            is(&error, Kind::Invalid, "upgraded");
            assert_eq!(sizes(&driver, id), before, "{kind}: {had:?}");
        }
    }
}

#[tokio::test]
async fn an_attempt_that_was_interrupted_gets_the_modes_of_its_class_now() {
    let files = [[QUOTA, RESERVED], [NO_QUOTA, NOT_RESERVED]];
    let disks = [[RESERVED; 2], [NOT_RESERVED; 2]];
    for (kind, list, classes) in [
        (VolumeKind::Filesystem, MODES, files),
        (VolumeKind::Zvol, OF_ZVOLS, disks),
    ] {
        for (first, second, is_reserved) in [
            (classes[0], classes[1], false),
            (classes[1], classes[0], true),
        ] {
            for parts in 1.. {
                let driver = allowing(kind, list);
                let steps = driver.backend().state().steps;
                driver.backend().state().cut_after = Some(steps + parts);
                let request = of_class(0, &From::Nothing, false, &first);
                let made = driver.create_volume(&call(), &request).await;
                driver.backend().state().cut_after = None;
                if made.is_ok() {
                    assert!(parts > 1, "it is made in one step");
                    break;
                }
                let things = driver.backend().state().pool.things();
                let found = things.get(&dataset(0).into());
                let whole = found.is_some_and(|it| it.own.contains_key(&PropertyName::CONTEXT));
                let request = of_class(0, &From::Nothing, false, &second);
                let again = driver.create_volume(&call(), &request).await;
                if whole {
                    is(&again.unwrap_err(), Kind::Conflict, "Mode=");
                    continue;
                }
                again.unwrap();
                let size = if is_reserved { SIZE } else { 0 };
                let is_file = kind == VolumeKind::Filesystem;
                let quota = if is_file { size } else { 0 };
                assert_eq!(sizes(&driver, 0), [quota, size], "{kind}: {parts}");
            }
        }
    }
}
