//! Verbs in states that random sequences hardly ever reach, and their cost.

use driver_core::{
    Call, Driver, GetSnapshot, Kind, Lister as _, SizeRange, SnapshotId, Snapshots as _,
};
use driver_zfs::name::SnapshotRef;
use driver_zfs::observed::VolumeKind;
use driver_zfs::property::PropertyName;
use driver_zfs::step::Step;
use driver_zfs::testing::InMemory as _;
use driver_zfs::testing::{MemoryExport, MemoryHost};

use crate::short::*;
use crate::world::*;

fn detached_snapshot(id: u8, name: u8) -> Verb {
    Verb::Snapshot {
        id,
        name,
        detached: true,
    }
}

fn delete_detached_snapshot(id: u8, name: u8) -> Verb {
    Verb::DeleteSnapshot {
        id,
        name,
        detached: true,
    }
}

fn copied(verb: Verb) -> Verb {
    match verb {
        Verb::Create { id, source, .. } => Verb::Create {
            id,
            source,
            copy: true,
        },
        other => other,
    }
}

#[tokio::test]
async fn each_verb_takes_as_many_exchanges_as_it_may() {
    for kind in KINDS {
        let driver = fresh(kind);
        for (verb, most) in [
            (create(0, From::Nothing), 3),
            (snapshot(0, 0), 2),
            (create(1, From::Snapshot(0, 0)), 3),
            (create(2, From::Volume(0)), 3),
            (Verb::Expand(0, 2), 2),
            // Whether its origin is an unmarked helper takes another observation.
            (Verb::Delete(2), 3),
            (Verb::Delete(1), 2),
            (delete_snapshot(0, 0), 2),
            (detached_snapshot(0, 1), 2),
            (create(3, From::Detached(0, 1)), 3),
            (copied(create(4, From::Volume(0))), 3),
            // A clone is observed before it is promoted.
            (delete_detached_snapshot(0, 1), 3),
            (create(5, From::Volume(0)), 3),
            (Verb::Delete(4), 2),
            (Verb::Delete(0), 3),
        ] {
            let before = driver.backend().state().exchanges;
            well(&driver, std::slice::from_ref(&verb)).await;
            let took = driver.backend().state().exchanges - before;
            assert!(took <= most, "{kind}: {verb:?} took {took} exchanges");
        }
    }
}

#[tokio::test]
async fn a_verb_whose_first_try_is_done_takes_one_exchange() {
    for kind in KINDS {
        let driver = fresh(kind);
        well(&driver, &[create(0, From::Nothing), snapshot(0, 0)]).await;
        driver.backend().state().tries_first = true;
        // The snapshot of a disk leaves a bookmark.
        let most = if kind == VolumeKind::Zvol { 2 } else { 1 };
        for (verb, most) in [(Verb::Expand(0, 2), 1), (delete_snapshot(0, 0), most)] {
            let before = driver.backend().state().exchanges;
            well(&driver, std::slice::from_ref(&verb)).await;
            let took = driver.backend().state().exchanges - before;
            assert_eq!(took, most, "{kind}: {verb:?}");
        }
        let snapshot = driver.backend().state().pool.guid(&attached(0, 0).into());
        assert_eq!(snapshot, None, "{kind}");
        let things = driver.backend().state().pool.things();
        let size = match kind {
            VolumeKind::Zvol => PropertyName::VOLSIZE,
            VolumeKind::Filesystem => PropertyName::REFQUOTA,
        };
        let grown = things[&dataset(0).into()].own.get(&size);
        assert_eq!(grown, Some(&(2 * SIZE).to_string()), "{kind}");
    }
}

#[tokio::test]
async fn a_deleted_snapshot_that_a_clone_keeps_frees_its_name() {
    for kind in KINDS {
        let driver = fresh(kind);
        let restore = create(1, From::Snapshot(0, 0));
        well(
            &driver,
            &[create(0, From::Nothing), snapshot(0, 0), restore],
        )
        .await;
        let name = SnapshotRef::parse(&format!("{}@s0", dataset(0))).unwrap();
        let guid = || driver.backend().state().pool.guid(&name.clone().into());
        let first = guid();
        well(&driver, &[delete_snapshot(0, 0)]).await;
        let restore = create(2, From::Snapshot(0, 0));
        refused(&driver, &restore, Kind::NotFound, "does not exist").await;
        well(&driver, &[snapshot(0, 0)]).await;
        assert_ne!(
            guid(),
            first,
            "the deleted snapshot was taken for the new one"
        );
        well(&driver, &[restore]).await;
    }
}

#[tokio::test]
async fn what_keeps_a_volume_is_named() {
    let driver = keeping(VolumeKind::Filesystem);
    well(&driver, &[create(0, From::Nothing), snapshot(0, 1)]).await;
    refused(&driver, &Verb::Delete(0), Kind::Busy, "v0@s1").await;
    well(&driver, &[delete_snapshot(0, 1)]).await;

    let foreign = SnapshotRef::parse(&format!("{}@auto", dataset(0))).unwrap();
    driver.backend().state().pool.insert_snapshot(&foreign, &[]);
    refused(&driver, &Verb::Delete(0), Kind::Busy, "v0@auto").await;
    driver
        .backend()
        .state()
        .pool
        .apply(&Step::DestroySnapshot(foreign))
        .unwrap();

    let child = dataset(0).child("child").unwrap();
    driver
        .backend()
        .state()
        .pool
        .insert(&child, VolumeKind::Filesystem, &[], None);
    refused(&driver, &Verb::Delete(0), Kind::Busy, "v0/child").await;
    driver
        .backend()
        .state()
        .pool
        .apply(&Step::DestroyDataset(child))
        .unwrap();

    // A clone of a helper snapshot that another user made elsewhere.
    let helper = SnapshotRef::parse(&format!("{}@volume-source-for-volume-x", dataset(0))).unwrap();
    let elsewhere = driver_zfs::name::DatasetName::parse("tank/elsewhere").unwrap();
    {
        let mut state = driver.backend().state();
        state.pool.insert_snapshot(&helper, &[]);
        let clone = Step::Clone {
            origin: helper,
            dataset: elsewhere.clone(),
            properties: Vec::new(),
        };
        state.pool.apply(&clone).unwrap();
    }
    refused(&driver, &Verb::Delete(0), Kind::Busy, "tank/elsewhere").await;
    driver
        .backend()
        .state()
        .pool
        .apply(&Step::DestroyDataset(elsewhere))
        .unwrap();
    well(&driver, &[Verb::Delete(0)]).await;
}

#[tokio::test]
async fn a_refused_deletion_leaves_the_export_alone() {
    let driver = fresh(VolumeKind::Zvol);
    well(&driver, &[create(0, From::Nothing), snapshot(0, 0)]).await;
    let before = driver.backend().state().targets.clone();
    refused(&driver, &Verb::Delete(0), Kind::Busy, "v0@s0").await;
    assert_eq!(driver.backend().state().targets, before);
}

#[tokio::test]
async fn a_volume_of_others_is_neither_adopted_nor_destroyed_nor_shown() {
    let driver = fresh(VolumeKind::Filesystem);
    let call = Call::within(std::time::Duration::from_mins(1));
    driver
        .backend()
        .state()
        .pool
        .insert(&dataset(0), VolumeKind::Filesystem, &[], None);
    refused(
        &driver,
        &create(0, From::Nothing),
        Kind::Conflict,
        "not a volume of this driver",
    )
    .await;
    refused(
        &driver,
        &Verb::Delete(0),
        Kind::Busy,
        "not a volume of this driver",
    )
    .await;
    let shown = driver.get_volume(&call, &volume(0)).await.unwrap_err();
    assert_eq!(shown.kind(), Kind::NotFound);
    refused(&driver, &create(1, From::Volume(0)), Kind::NotFound, "v0").await;
    refused(&driver, &snapshot(0, 0), Kind::NotFound, "no such volume").await;
}

#[tokio::test]
async fn a_restored_volume_is_never_smaller_than_its_source() {
    let driver = fresh(VolumeKind::Zvol);
    well(
        &driver,
        &[create(0, From::Nothing), Verb::Expand(0, 3), snapshot(0, 0)],
    )
    .await;
    let call = Call::within(std::time::Duration::from_mins(1));
    let mut asked = request(1, &From::Snapshot(0, 0), false);
    let made = driver.create_volume(&call, &asked).await.unwrap();
    assert_eq!(made.capacity, Some(3 * u64::try_from(SIZE).unwrap()));
    asked = request(2, &From::Snapshot(0, 0), false);
    asked.size = SizeRange::new(0, SIZE).unwrap();
    let error = driver.create_volume(&call, &asked).await.unwrap_err();
    assert_eq!(error.kind(), Kind::OutOfRange, "{}", error.chain());
    let made = driver.backend().state().pool.guid(&dataset(2).into());
    assert_eq!(made, None, "refused, and made all the same");
}

#[tokio::test]
async fn volumes_of_democratic_csi_live_on() {
    for kind in KINDS {
        let driver = fresh(kind);
        for event in [Event::Legacy(0, None), Event::Legacy(1, Some(0))] {
            happen(&driver, kind, &event).await;
        }
        let call = Call::within(std::time::Duration::from_mins(1));
        let listed = driver
            .list_volumes(&call, &driver_core::PageRequest::default())
            .await;
        assert_eq!(listed.unwrap().entries.len(), 2);
        well(
            &driver,
            &[
                snapshot(1, 0),
                create(2, From::Snapshot(1, 0)),
                Verb::Expand(1, 2),
            ],
        )
        .await;
        // The clone of an unmarked helper of democratic-csi keeps nothing: its source is destroyed
        // first.
        well(
            &driver,
            &[Verb::Delete(0), Verb::Delete(2), delete_snapshot(1, 0)],
        )
        .await;
        well(&driver, &[Verb::Delete(1)]).await;
        let left = driver.backend().state().pool.shape();
        assert!(left.keys().all(|name| !name.contains("/v/")), "{left:?}");
    }
}

#[tokio::test]
async fn a_retained_volume_stays() {
    let mut settings = driver_zfs::testing::settings(VolumeKind::Filesystem, "").unwrap();
    settings.retain = true;
    let export = MemoryExport::new(VolumeKind::Filesystem);
    let driver = driver_zfs::ZfsDriver::new(settings, MemoryHost::new(), export);
    well(&driver, &[create(0, From::Nothing), Verb::Delete(0)]).await;
    let state = driver.backend().state();
    assert!(state.pool.guid(&dataset(0).into()).is_some());
}

#[tokio::test]
async fn what_a_volume_has_of_its_own_is_what_democratic_csi_would_have_written() {
    let driver = fresh(VolumeKind::Zvol);
    well(
        &driver,
        &[
            create(0, From::Nothing),
            snapshot(0, 0),
            create(1, From::Snapshot(0, 0)),
        ],
    )
    .await;
    let shape = driver.backend().state().pool.shape();
    let restored = &shape["tank/csi/v/v1"];
    for (name, value) in [
        (PropertyName::MANAGED, "true"),
        (PropertyName::VOLUME_NAME, "v1"),
        (PropertyName::PROVISIONER, "zfs-in-memory"),
        (PropertyName::SOURCE_KIND, "snapshot"),
        (PropertyName::SOURCE_ID, "v0@s0"),
        (PropertyName::SUCCESS, "true"),
        (PropertyName::REFRESERVATION, "0"),
    ] {
        let pair = format!("{:?}: {value:?}", name.as_str());
        assert!(restored.contains(&pair), "{pair} in {restored}");
    }
    assert!(restored.contains(r#"\"lun\":0"#), "{restored}");
    let taken = &shape["tank/csi/v/v0@s0"];
    assert!(
        taken.contains(r#""democratic-csi:csi_snapshot_source_volume_id": "v0""#),
        "{taken}"
    );
    let id = SnapshotId::parse("v0@s0").unwrap();
    let call = Call::within(std::time::Duration::from_mins(1));
    let shown = driver
        .get_snapshot(&call, GetSnapshot::new(&id))
        .await
        .unwrap();
    assert_eq!(shown.size, u64::try_from(SIZE).unwrap());
}

#[tokio::test]
async fn a_volume_is_found_by_the_name_that_it_remembers_after_the_configuration_has_changed() {
    let named = |prefix: &str, state| {
        let mut export = MemoryExport::new(VolumeKind::Zvol);
        export.naming.name_prefix = prefix.to_owned();
        let settings = driver_zfs::testing::settings(VolumeKind::Zvol, "").unwrap();
        driver_zfs::ZfsDriver::new(settings, MemoryHost::from_state(state), export)
    };
    let state = MemoryHost::new().state().clone();
    let before = named("old-", state);
    well(&before, &[create(0, From::Nothing)]).await;
    let state = before.backend().state().clone();
    let after = named("new-", state);
    well(&after, &[create(0, From::Nothing), Verb::Expand(0, 2)]).await;
    let targets: Vec<_> = after
        .backend()
        .state()
        .targets
        .targets
        .keys()
        .cloned()
        .collect();
    assert_eq!(targets, ["old-v0"]);
    well(&after, &[Verb::Delete(0)]).await;
    assert!(after.backend().state().targets.targets.is_empty());
}

#[tokio::test]
async fn an_export_that_says_late_how_it_is_reached_costs_one_exchange_more() {
    let state = MemoryHost::new().state().clone();
    let driver = driver(VolumeKind::Zvol, true, state);
    well(&driver, &[create(0, From::Nothing)]).await;
    assert_eq!(driver.backend().state().exchanges, 4);
}

#[tokio::test]
async fn small_files_where_snapshots_lie_are_kept_when_the_last_snapshot_goes() {
    let driver = fresh(VolumeKind::Filesystem);
    well(
        &driver,
        &[create(0, From::Nothing), snapshot_detached(0, 0)],
    )
    .await;
    let container = name("tank/csi/s/v0");
    driver.backend().state().pool.write_little(&container);
    well(&driver, &[delete_detached(0, 0), delete_detached(0, 0)]).await;
    assert!(guid(&driver, container.as_str()).is_some());
    assert!(guid(&driver, "tank/csi/s/v0/s0").is_none());
}

#[tokio::test]
async fn every_filesystem_is_mounted_in_the_end_also_where_nothing_is_permitted_there() {
    let kind = VolumeKind::Filesystem;
    for zfs in ["", "  datasetPermissionsMode: '0770'\n"] {
        let settings = driver_zfs::testing::settings(kind, zfs).unwrap();
        let export = driver_zfs::testing::MemoryExport::new(kind);
        let driver = driver_zfs::ZfsDriver::new(settings, MemoryHost::new(), export);
        well(
            &driver,
            &[
                create(0, From::Nothing),
                snapshot(0, 0),
                detached_snapshot(0, 1),
            ],
        )
        .await;
        for source in [From::Volume(0), From::Snapshot(0, 0), From::Detached(0, 1)] {
            for verb in [create(1, source.clone()), copied(create(1, source))] {
                let before = driver.backend().state().exchanges;
                well(&driver, std::slice::from_ref(&verb)).await;
                let took = driver.backend().state().exchanges - before;
                assert!(took <= 3, "{verb:?} took {took} exchanges");
                let mounted = driver.backend().state().pool.is_mounted(&dataset(1));
                assert!(mounted, "{verb:?}");
                well(&driver, &[Verb::Delete(1)]).await;
            }
        }
    }
}
