//! Exports are checked one by one, and lost ones restored: only those of volumes of this
//! connection.

use driver_core::{CreateVolume, Driver, Exports as _, Kind, VolumeId};
use driver_zfs::observed::VolumeKind;
use driver_zfs::property::PropertyName;
use driver_zfs::testing::InMemory as _;
use driver_zfs::testing::MemoryHost;

use crate::orphans::{call, on_a_host};
use crate::world::*;

fn create(id: u8) -> Verb {
    let source = From::Nothing;
    let copy = false;
    Verb::Create { id, source, copy }
}

#[test]
fn a_look_at_exports_tells_which_are_missing_and_changes_nothing() {
    on_a_host(
        VolumeKind::Zvol,
        MemoryHost::new().state().clone(),
        async |driver| {
            for id in [0, 1] {
                run(driver, &create(id)).await.unwrap();
            }
            let is_there = async |id| driver.is_exported(&call(), &volume(id)).await;
            assert!(is_there(0).await.unwrap() && is_there(1).await.unwrap());
            let whole = driver.backend().state().targets.clone();
            driver.backend().state().targets.targets.remove("v1");
            let lost = driver.backend().state().targets.clone();
            assert!(is_there(0).await.unwrap() && !is_there(1).await.unwrap());
            assert_eq!(driver.backend().state().targets, lost);
            driver.repair_export(&call(), &volume(1)).await.unwrap();
            assert!(is_there(1).await.unwrap());
            assert_eq!(driver.backend().state().targets, whole);
            let missing = is_there(2).await.map(drop);
            assert_eq!(outcome(&missing), Some(Kind::NotFound));
        },
    );
}

#[test]
fn growing_a_volume_restores_its_export() {
    on_a_host(
        VolumeKind::Zvol,
        MemoryHost::new().state().clone(),
        async |driver| {
            run(driver, &create(1)).await.unwrap();
            driver.backend().state().targets.targets.remove("v1");
            run(driver, &Verb::Expand(1, 2)).await.unwrap();
            let there = driver.is_exported(&call(), &volume(1)).await;
            assert!(there.unwrap());
            // Even if it is large enough already.
            driver.backend().state().targets.targets.remove("v1");
            run(driver, &Verb::Expand(1, 2)).await.unwrap();
            let there = driver.is_exported(&call(), &volume(1)).await;
            assert!(there.unwrap());
        },
    );
}

#[test]
fn a_volume_that_a_connection_with_another_export_or_of_another_cluster_made_is_not_exported_by_this_one()
 {
    on_a_host(
        VolumeKind::Zvol,
        MemoryHost::new().state().clone(),
        async |driver| {
            for (mark, whose) in [
                (PropertyName::PROVISIONER, "zfs-generic-nvmeof"),
                (PropertyName::INSTANCE, "another"),
            ] {
                run(driver, &create(2)).await.unwrap();
                {
                    let mut state = driver.backend().state();
                    let object = dataset(2).into();
                    let properties = vec![set(mark, whose)];
                    let signed = driver_zfs::step::Step::Set { object, properties };
                    state.pool.apply(&signed).unwrap();
                    state.targets.targets.remove("v2");
                }
                let before = driver.backend().state().targets.clone();
                let look = driver.is_exported(&call(), &volume(2)).await.map(drop);
                assert_eq!(outcome(&look), Some(Kind::NotFound));
                let repair = driver.repair_export(&call(), &volume(2)).await;
                assert_eq!(outcome(&repair), Some(Kind::NotFound));
                assert_eq!(driver.backend().state().targets, before);
                run(driver, &Verb::Delete(2)).await.unwrap();
            }
        },
    );
}

#[test]
fn no_way_to_a_volume_is_longer_than_the_longest_one() {
    for kind in [VolumeKind::Filesystem, VolumeKind::Zvol] {
        on_a_host(kind, MemoryHost::new().state().clone(), async |driver| {
            let longest = driver.longest_attachment().expect("it is known");
            let id = VolumeId::parse(&"x".repeat(driver_core::text::MAX_STRING)).unwrap();
            let request = CreateVolume {
                id,
                ..request(0, &From::Nothing, false)
            };
            let made = driver.create_volume(&call(), &request).await.unwrap();
            assert_eq!(made.attachment, longest);
        });
    }
}
