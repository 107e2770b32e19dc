//! Expanding volumes, with every kind of limit.

use std::time::Duration;

use driver_core::{Call, Driver, ExpandVolume, Expander as _, Kind, SizeRange};
use driver_zfs::ZfsDriver;
use driver_zfs::observed::VolumeKind;
use driver_zfs::property::PropertyName;
use driver_zfs::testing::InMemory as _;
use driver_zfs::testing::{HostState, MemoryExport, MemoryHost, Room, settings};

use crate::short::*;
use crate::world::*;

fn configured(zfs: &str, state: HostState) -> MemoryDriver {
    let kind = VolumeKind::Filesystem;
    let settings = settings(kind, zfs).unwrap();
    ZfsDriver::new(
        settings,
        MemoryHost::from_state(state),
        MemoryExport::new(kind),
    )
}

fn number(driver: &MemoryDriver, name: &PropertyName) -> Option<i64> {
    let things = driver.backend().state().pool.things();
    let text = things[&dataset(0).into()].own.get(name).cloned();
    text.map(|text| text.parse().unwrap())
}

const QUOTAS: &str = "  datasetEnableQuotas: true\n";
const RESERVATIONS: &str = "  datasetEnableReservation: true\n";

#[tokio::test]
async fn a_quota_grows_also_where_new_volumes_get_none() {
    let before = configured(QUOTAS, MemoryHost::new().state().clone());
    well(&before, &[create(0, From::Nothing)]).await;
    let state = before.backend().state().clone();
    let after = configured("", state);
    well(&after, &[Verb::Expand(0, 2)]).await;
    assert_eq!(number(&after, &PropertyName::REFQUOTA), Some(2 * SIZE));
}

#[tokio::test]
async fn a_reservation_grows_also_without_a_quota() {
    let driver = configured(RESERVATIONS, MemoryHost::new().state().clone());
    well(&driver, &[create(0, From::Nothing), Verb::Expand(0, 2)]).await;
    let reserved = number(&driver, &PropertyName::REFRESERVATION);
    assert_eq!(reserved, Some(2 * SIZE));
    assert_eq!(number(&driver, &PropertyName::REFQUOTA), None);
}

#[tokio::test]
async fn an_expansion_that_set_one_of_two_sets_the_other() {
    let both = format!("{QUOTAS}{RESERVATIONS}");
    let driver = configured(&both, MemoryHost::new().state().clone());
    well(&driver, &[create(0, From::Nothing)]).await;
    {
        let mut state = driver.backend().state();
        state.cut_after = Some(state.steps + 1);
    }
    run(&driver, &Verb::Expand(0, 2)).await.unwrap_err();
    driver.backend().state().cut_after = None;
    let sizes = [PropertyName::REFQUOTA, PropertyName::REFRESERVATION];
    let halves = sizes.each_ref().map(|name| number(&driver, name));
    assert_eq!(halves, [Some(2 * SIZE), Some(SIZE)]);
    well(&driver, &[Verb::Expand(0, 2)]).await;
    let whole = sizes.each_ref().map(|name| number(&driver, name));
    assert_eq!(whole, [Some(2 * SIZE); 2]);
}

#[tokio::test]
async fn what_is_larger_than_asked_for_is_not_made_smaller() {
    let both = format!("{QUOTAS}{RESERVATIONS}");
    let driver = configured(&both, MemoryHost::new().state().clone());
    well(&driver, &[create(0, From::Nothing), Verb::Expand(0, 3)]).await;
    let call = Call::within(std::time::Duration::from_mins(1));
    let size = SizeRange::new(2 * SIZE, 0).unwrap();
    let grown = driver
        .expand_volume(&call, ExpandVolume::new(&volume(0), size))
        .await
        .unwrap();
    assert_eq!(grown.capacity, u64::try_from(3 * SIZE).unwrap());
    for name in [PropertyName::REFQUOTA, PropertyName::REFRESERVATION] {
        assert_eq!(number(&driver, &name), Some(3 * SIZE));
    }
}

#[tokio::test]
async fn a_name_that_a_template_gave_costs_no_exchange_of_an_expansion() {
    for resizes in [false, true] {
        let kind = VolumeKind::Zvol;
        let mut export = MemoryExport::new(kind);
        export.resizes = resizes;
        let template = serde_json::json!({ "nameTemplate": "t-{{name}}-x" });
        export.naming = serde_json::from_value(template).unwrap();
        let driver = ZfsDriver::new(settings(kind, "").unwrap(), MemoryHost::new(), export);
        for (verb, most) in [
            (create(0, From::Nothing), 3),
            (Verb::Expand(0, 2), 2),
            (Verb::Expand(0, 2), 2),
            (Verb::Delete(0), 3),
        ] {
            let before = driver.backend().state().exchanges;
            well(&driver, std::slice::from_ref(&verb)).await;
            let took = driver.backend().state().exchanges - before;
            assert!(took <= most, "{verb:?} took {took} exchanges");
            if matches!(verb, Verb::Expand(..)) {
                let grown = driver.backend().state().targets.grown.clone();
                assert_eq!(grown, if resizes { vec!["t-v0-x"] } else { vec![] });
                driver.backend().state().targets.grown.clear();
            }
        }
        assert!(driver.backend().state().targets.targets.is_empty());
    }
}

/// The reservation of a zvol, as it was set.
fn reserved(state: &HostState, id: u8) -> Option<String> {
    let things = state.pool.things();
    let own = &things[&dataset(id).into()].own;
    own.get(&PropertyName::REFRESERVATION).cloned()
}

#[tokio::test]
async fn the_space_reserved_for_new_zvols_is_reserved_for_interrupted_clones_and_copies() {
    let kind = VolumeKind::Zvol;
    let given = "  zvolEnableReservation: true\n  datasetProperties: {refreservation: 1M}\n";
    for (zfs, of_new, of_copy) in [
        (
            "  zvolEnableReservation: true\n",
            Some("67108864"),
            Some("67108864"),
        ),
        ("", Some("0"), Some("0")),
        (given, Some("1M"), Some("1M")),
    ] {
        let on = |state| {
            let settings = settings(kind, zfs).unwrap();
            let export = MemoryExport::new(kind);
            ZfsDriver::new(settings, MemoryHost::from_state(state), export)
        };
        let driver = on(MemoryHost::new().state().clone());
        well(&driver, &[create(0, From::Nothing)]).await;
        let mut begin = driver.backend().state().clone();
        begin.pool.room = Room::Tight;
        assert_eq!(reserved(&begin, 0).as_deref(), of_new, "{zfs}");
        for verb in [create(1, From::Volume(0)), copy(1, From::Volume(0))] {
            let whole = on(begin.clone());
            well(&whole, std::slice::from_ref(&verb)).await;
            let whole = whole.backend().state().clone();
            assert!(whole.exchanges <= begin.exchanges + 3, "{verb:?}");
            for at in begin.steps..=whole.steps {
                let driver = on(begin.clone());
                driver.backend().state().cut_after = Some(at);
                run(&driver, &verb).await.unwrap_err();
                driver.backend().state().cut_after = None;
                well(&driver, std::slice::from_ref(&verb)).await;
                let state = driver.backend().state().clone();
                assert_eq!(reserved(&state, 1).as_deref(), of_copy, "{verb:?}: {at}");
            }
        }
    }
}

#[tokio::test]
async fn what_passes_the_limit_when_it_is_rounded_up_is_refused() {
    let call = Call::within(std::time::Duration::from_mins(1));
    let smallest = 1 << 30;
    let mut with_smallest = settings(VolumeKind::Filesystem, QUOTAS).unwrap();
    with_smallest.policy.smallest = smallest;
    let export = MemoryExport::new(VolumeKind::Filesystem);
    // A volume that is smaller than what the storage takes by now.
    let before = configured(QUOTAS, MemoryHost::new().state().clone());
    well(&before, &[create(0, From::Nothing)]).await;
    let state = before.backend().state().clone();
    let driver = ZfsDriver::new(with_smallest, MemoryHost::from_state(state), export);
    let tight = SizeRange::new(2 * SIZE, 3 * SIZE).unwrap();
    let refused = driver
        .expand_volume(&call, ExpandVolume::new(&volume(0), tight))
        .await;
    assert_eq!(refused.unwrap_err().kind(), Kind::OutOfRange);
    assert_eq!(number(&driver, &PropertyName::REFQUOTA), Some(SIZE));
    let mut asked = crate::world::request(1, &From::Nothing, false);
    asked.size = tight;
    let refused = driver.create_volume(&call, &asked).await;
    assert_eq!(refused.unwrap_err().kind(), Kind::OutOfRange);
    let wide = SizeRange::new(2 * SIZE, 1 << 30).unwrap();
    let grown = driver
        .expand_volume(&call, ExpandVolume::new(&volume(0), wide))
        .await
        .unwrap();
    assert_eq!(grown.capacity, smallest);
}

#[tokio::test]
async fn the_use_of_several_volumes_is_measured_by_one_question_and_that_of_a_missing_one_is_unknown()
 {
    let driver = configured("", MemoryHost::new().state().clone());
    well(
        &driver,
        &[create(0, From::Nothing), create(2, From::Nothing)],
    )
    .await;
    let before = driver.backend().state().exchanges;
    let call = Call::within(Duration::from_secs(1));
    let asked: &dyn Driver = &driver;
    let used = asked.used(&call, &[volume(2), volume(1), volume(0)]).await;
    assert_eq!(driver.backend().state().exchanges, before + 1);
    let used = used.unwrap();
    assert!(used[0].is_some() && used[2].is_some(), "{used:?}");
    assert_eq!(used[1], None);
}
