//! Missing objects and invalid names: pools that are not imported, streams that are being received,
//! settings without effect.

use std::time::Duration;

use driver_core::{
    Call, CreateSnapshot, DeleteSnapshot, DeleteVolume, Driver, ExpandVolume, Expander as _,
    Exports as _, GetSnapshot, Kind, Lister as _, Mover as _, PageRequest, Parameters, Secrets,
    SizeRange, SnapshotFilter, SnapshotId, SnapshotName, Snapshots as _, VolumeId,
};
use driver_zfs::ZfsDriver;
use driver_zfs::backend::Backend;
use driver_zfs::name::SnapshotRef;
use driver_zfs::observed::{Query, Request, VolumeKind};
use driver_zfs::property::PropertyName;
use driver_zfs::testing::InMemory as _;
use driver_zfs::testing::{MemoryExport, MemoryHost, MemoryPool, settings};

use crate::short::*;
use crate::transfers::wanted;
use crate::world::*;

#[tokio::test]
async fn what_lies_in_a_pool_that_is_not_imported_is_neither_gone_nor_missing() {
    let mut state = MemoryHost::new().state().clone();
    state.pool = MemoryPool::with_root("other");
    let driver = driver(VolumeKind::Filesystem, false, state);
    let call = Call::within(Duration::from_mins(1));
    let volume = VolumeId::parse("v0").unwrap();
    let page = PageRequest::default();
    let filter = SnapshotFilter::default();
    let mut kinds = vec![
        (
            "delete volume",
            driver
                .delete_volume(&call, DeleteVolume::new(&volume))
                .await
                .unwrap_err(),
        ),
        (
            "get volume",
            driver.get_volume(&call, &volume).await.unwrap_err(),
        ),
        (
            "list volumes",
            driver.list_volumes(&call, &page).await.unwrap_err(),
        ),
        (
            "list snapshots",
            driver
                .list_snapshots(&call, &filter, &page)
                .await
                .unwrap_err(),
        ),
        (
            "repair",
            driver.repair_export(&call, &volume).await.unwrap_err(),
        ),
    ];
    for id in ["v0@s", "v0/s"] {
        let id = SnapshotId::parse(id).unwrap();
        kinds.push((
            "delete snapshot",
            driver
                .delete_snapshot(&call, DeleteSnapshot::new(&id))
                .await
                .unwrap_err(),
        ));
        kinds.push((
            "get snapshot",
            driver
                .get_snapshot(&call, GetSnapshot::new(&id))
                .await
                .unwrap_err(),
        ));
    }
    for (verb, error) in kinds {
        assert_eq!(error.kind(), Kind::Unreachable, "{verb}: {}", error.chain());
    }
}

/// A misspelt parent, or another storage behind the address.
#[tokio::test]
async fn what_lies_in_a_parent_that_does_not_exist_is_not_taken_for_deleted() {
    let elsewhere = MemoryHost::empty();
    let driver = driver(VolumeKind::Filesystem, false, elsewhere.state().clone());
    let call = Call::within(Duration::from_mins(1));
    let page = PageRequest::default();
    let volume = VolumeId::parse("v0").unwrap();
    let gone = async |verb: &str, outcome: Result<(), driver_core::Error>, missing: bool| {
        let kind = outcome.map_err(|error| (error.kind(), error.chain()));
        match kind {
            Err((Kind::Unreachable, why)) if missing => {
                assert!(why.contains("does not exist"), "{verb}: {why}");
            }
            Ok(()) if !missing => {}
            other => panic!("{verb}, parent missing: {missing}: {other:?}"),
        }
    };
    for missing in [true, false] {
        let filter = SnapshotFilter::default();
        let listed = driver.list_volumes(&call, &page).await;
        gone("list volumes", listed.map(drop), missing).await;
        let listed = driver.list_snapshots(&call, &filter, &page).await;
        gone("list snapshots", listed.map(drop), missing).await;
        let deleted = driver
            .delete_volume(&call, DeleteVolume::new(&volume))
            .await;
        gone("delete volume", deleted, missing).await;
        let given_up = driver.give_up_move(&call, &wanted()).await;
        gone("give up a move", given_up, missing).await;
        // The first detached snapshot makes the parent of all: who has the id of one knows of a storage with it.
        for (id, missing) in [("v0@s", missing), ("v0/s", true)] {
            let id = SnapshotId::parse(id).unwrap();
            let deleted = driver
                .delete_snapshot(&call, DeleteSnapshot::new(&id))
                .await;
            if id.as_str() == "v0/s" {
                let why = deleted.as_ref().unwrap_err().chain();
                assert!(why.contains("tank/csi/s does not exist"), "{why}");
                let key = "see zfs.detachedSnapshotsDatasetParentName";
                assert!(why.contains(key), "{why}");
            }
            gone("delete snapshot", deleted, missing).await;
            let found = driver.get_snapshot(&call, GetSnapshot::new(&id)).await;
            let kind = found.expect_err("there is none").kind();
            assert_eq!(kind == Kind::Unreachable, missing, "get snapshot: {kind:?}");
        }
        let size = SizeRange::new(2 << 30, 0).unwrap();
        let cut = CreateSnapshot {
            name: SnapshotName::parse("s").unwrap(),
            source: volume.clone(),
            parameters: Parameters::default(),
            secrets: Secrets::default(),
        };
        for (verb, error) in [
            ("get", driver.get_volume(&call, &volume).await.map(drop)),
            (
                "grow",
                driver
                    .expand_volume(&call, ExpandVolume::new(&volume, size))
                    .await
                    .map(drop),
            ),
            ("cut", driver.create_snapshot(&call, &cut).await.map(drop)),
        ] {
            let kind = error.expect_err("there is none").kind();
            let expected = if missing {
                Kind::Unreachable
            } else {
                Kind::NotFound
            };
            assert_eq!(kind, expected, "{verb}");
        }
        // The first volume makes the parent of volumes. The one of detached snapshots stays missing.
        well(&driver, &[create(1, From::Nothing), Verb::Delete(1)]).await;
    }
    stays_when_the_last_of_them_is_gone(&driver).await;
}

/// The parent of detached snapshots.
async fn stays_when_the_last_of_them_is_gone(driver: &MemoryDriver) {
    let (id, name, detached) = (1, 0, true);
    let taken = Verb::Snapshot { id, name, detached };
    let gone_again = || Verb::DeleteSnapshot { id, name, detached };
    let verbs = [
        create(1, From::Nothing),
        taken,
        gone_again(),
        gone_again(),
        Verb::Delete(1),
    ];
    well(driver, &verbs).await;
}

#[tokio::test]
async fn a_receive_that_is_not_over_keeps_its_volume() {
    for kind in KINDS {
        let driver = fresh(kind);
        let helper = SnapshotRef::parse(&format!("{}@volume-source-for-x", dataset(0))).unwrap();
        well(&driver, &[create(0, From::Nothing)]).await;
        {
            let pool = &mut driver.backend().state().pool;
            pool.insert_snapshot(&helper, &[]);
            pool.receive_upon(&helper);
        }
        refused(&driver, &Verb::Delete(0), Kind::Busy, "zfs receive").await;
        let things = driver.backend().state().pool.things();
        assert!(!things[&helper.into()].doomed, "{kind}");
    }
}

#[tokio::test]
async fn blocks_of_new_zvols_are_those_that_their_size_was_rounded_to() {
    let properties = "  datasetProperties: {volblocksize: 128K}\n  zvolBlocksize: 8K\n";
    let settings = settings(VolumeKind::Zvol, properties).unwrap();
    let export = MemoryExport::new(VolumeKind::Zvol);
    let driver = ZfsDriver::new(settings, MemoryHost::new(), export);
    well(&driver, &[create(0, From::Nothing)]).await;
    let request = Request::of([Query::Dataset(dataset(0))]);
    let call = Call::within(Duration::from_mins(1));
    let pool = driver
        .backend()
        .observe(&call, &request)
        .await
        .unwrap()
        .pool;
    let block = PropertyName::VOLBLOCKSIZE;
    let block = pool
        .dataset(&dataset(0))
        .unwrap()
        .properties
        .get(&block)
        .map(str::to_owned);
    assert_eq!(block.as_deref(), Some("8192"));
}
