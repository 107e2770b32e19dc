//! The health of all volumes is seen in one exchange.

use driver_core::{Conditions, Driver, Health as _, HealthQuery, Kind, PageRequest, VolumeId};
use driver_zfs::observed::{PoolState, VolumeKind};
use driver_zfs::property::PropertyName;
use driver_zfs::step::Step;
use driver_zfs::testing::InMemory as _;
use driver_zfs::testing::MemoryHost;

use crate::orphans::{call, on_a_host};
use crate::world::*;

fn create(id: u8) -> Verb {
    let source = From::Nothing;
    let copy = false;
    Verb::Create { id, source, copy }
}

fn ids(numbers: &[u8]) -> Vec<VolumeId> {
    numbers.iter().map(|number| volume(*number)).collect()
}

fn reasons(found: Vec<Option<Conditions>>) -> Vec<Option<Vec<&'static str>>> {
    let one = |found: Conditions| found.iter().map(|one| one.reason().as_str()).collect();
    found.into_iter().map(|found| found.map(one)).collect()
}

/// On a host with two volumes, 0 and 1.
fn on_two(kind: VolumeKind, work: impl AsyncFnOnce(&MemoryDriver)) {
    let state = MemoryHost::new().state().clone();
    on_a_host(kind, state, async |driver| {
        for id in [0, 1] {
            run(driver, &create(id)).await.unwrap();
        }
        work(driver).await;
    });
}

/// The reasons of each of these volumes; `None` for one that does not exist.
async fn health(driver: &MemoryDriver, numbers: &[u8]) -> Vec<Option<Vec<&'static str>>> {
    let ids = ids(numbers);
    let found = driver.conditions(&call(), HealthQuery::whole(&ids)).await;
    reasons(found.unwrap())
}

/// The same, of what lists of volumes look at.
async fn of_lists(driver: &MemoryDriver, numbers: &[u8]) -> Vec<Option<Vec<&'static str>>> {
    let ids = ids(numbers);
    let found = driver
        .conditions(&call(), HealthQuery::of_storage(&ids))
        .await;
    reasons(found.unwrap())
}

#[test]
fn healthy_volumes_are_looked_at_in_one_exchange_however_many() {
    on_two(VolumeKind::Zvol, async |driver| {
        let before = driver.backend().state().exchanges;
        let found = health(driver, &[1, 2, 0]).await;
        assert_eq!(found, [Some(vec![]), None, Some(vec![])]);
        assert_eq!(driver.backend().state().exchanges, before + 1);
        let found = of_lists(driver, &[0, 1]).await;
        assert_eq!(found, [Some(vec![]), Some(vec![])]);
        assert_eq!(driver.backend().state().exchanges, before + 2);
    });
}

#[test]
fn a_lost_export_is_a_condition_of_its_volume_alone_and_lists_of_volumes_do_not_look_for_it() {
    on_two(VolumeKind::Zvol, async |driver| {
        driver.backend().state().targets.targets.remove("v1");
        let before = driver.backend().state().exchanges;
        let found = health(driver, &[0, 1]).await;
        assert_eq!(found, [Some(vec![]), Some(vec!["ExportMissing"])]);
        assert_eq!(driver.backend().state().exchanges, before + 1);
        assert_eq!(
            of_lists(driver, &[0, 1]).await,
            [Some(vec![]), Some(vec![])]
        );
        let (now, page) = (call(), PageRequest::default());
        let driver_of_any: &dyn Driver = driver;
        let listed = driver_of_any.list_unhealthy(&now, &page).await.unwrap();
        let listed: Vec<_> = listed.entries.into_iter().map(|(id, _)| id).collect();
        assert_eq!(listed, [volume(1)]);
        run(driver, &Verb::Expand(1, 2)).await.unwrap();
        assert_eq!(health(driver, &[1]).await, [Some(vec![])]);
    });
}

#[test]
fn an_export_that_another_connection_makes_is_not_missed_here() {
    on_two(VolumeKind::Zvol, async |driver| {
        {
            let mut state = driver.backend().state();
            let object = dataset(1).into();
            let properties = vec![set(PropertyName::PROVISIONER, "zfs-generic-nvmeof")];
            state.pool.apply(&Step::Set { object, properties }).unwrap();
            state.targets.targets.remove("v1");
        }
        assert_eq!(health(driver, &[1]).await, [Some(vec![])]);
    });
}

#[test]
fn a_degraded_pool_is_a_condition_of_all_its_volumes() {
    on_two(VolumeKind::Filesystem, async |driver| {
        driver.backend().state().pool.state = PoolState::Degraded;
        let degraded = Some(vec!["PoolDegraded"]);
        assert_eq!(health(driver, &[0, 1]).await, [degraded.clone(), degraded]);
    });
}

#[test]
fn a_suspended_pool_that_answers_nothing_else_is_a_condition_and_no_error() {
    on_two(VolumeKind::Zvol, async |driver| {
        let suspended = PoolState::Unusable("SUSPENDED".to_owned());
        driver.backend().state().pool.state = suspended;
        let before = driver.backend().state().exchanges;
        let unusable = Some(vec!["PoolUnusable"]);
        assert_eq!(health(driver, &[0, 1]).await, [unusable.clone(), unusable]);
        let exchanges = driver.backend().state().exchanges - before;
        assert_eq!(exchanges, 2, "the second asks how the pool is");
    });
}

#[test]
fn a_host_that_does_not_answer_is_an_error() {
    on_two(VolumeKind::Zvol, async |driver| {
        let steps = driver.backend().state().steps;
        driver.backend().state().cut_after = Some(steps);
        let ids = ids(&[0]);
        let found = driver.conditions(&call(), HealthQuery::whole(&ids)).await;
        assert_eq!(outcome(&found.map(drop)), Some(Kind::Unreachable));
    });
}

#[test]
fn a_key_that_is_not_loaded_is_a_condition() {
    on_two(VolumeKind::Filesystem, async |driver| {
        driver.backend().state().pool.locked.insert(dataset(1));
        let found = of_lists(driver, &[0, 1]).await;
        assert_eq!(found, [Some(vec![]), Some(vec!["KeyNotLoaded"])]);
    });
}

/// Sets a property of volume 1.
fn give(driver: &MemoryDriver, name: PropertyName, value: &str) {
    let object = dataset(1).into();
    let properties = vec![set(name, value)];
    let step = Step::Set { object, properties };
    driver.backend().state().pool.apply(&step).unwrap();
}

#[test]
fn a_filesystem_without_room_is_full_by_its_quota_or_by_its_pool() {
    on_two(VolumeKind::Filesystem, async |driver| {
        let left = |bytes| driver.backend().state().pool.left.insert(dataset(1), bytes);
        left(4096);
        give(driver, PropertyName::REFQUOTA, "1073741824");
        assert_eq!(of_lists(driver, &[1]).await, [Some(vec!["PoolFull"])]);
        // It holds 1 KiB.
        give(driver, PropertyName::REFQUOTA, "1024");
        assert_eq!(of_lists(driver, &[1]).await, [Some(vec!["QuotaFull"])]);
        left(1 << 30);
        assert_eq!(of_lists(driver, &[1]).await, [Some(vec![])]);
    });
}

#[test]
fn a_zvol_without_room_is_full_unless_its_space_is_reserved() {
    on_two(VolumeKind::Zvol, async |driver| {
        {
            let mut state = driver.backend().state();
            state.pool.left.insert(dataset(1), 4096);
        }
        give(driver, PropertyName::REFRESERVATION, "0");
        assert_eq!(of_lists(driver, &[1]).await, [Some(vec!["PoolFull"])]);
        give(driver, PropertyName::REFRESERVATION, "1099511627776");
        assert_eq!(of_lists(driver, &[1]).await, [Some(vec![])]);
    });
}
