//! Volumes of democratic-csi, and ids that match no volume.

use driver_core::{
    Call, DeleteSnapshot, Driver, GetSnapshot, Kind, Lister as _, SnapshotId, Snapshots as _,
    Source,
};
use driver_zfs::property::PropertyName;
use driver_zfs::step::Step;
use driver_zfs::testing::InMemory as _;

use crate::short::*;
use crate::world::*;

#[tokio::test]
async fn a_whole_volume_without_its_mark_lives_on() {
    for kind in KINDS {
        let driver = fresh(kind);
        legacy(&mut driver.backend().state(), kind, 0, None);
        for property in [
            PropertyName::MANAGED,
            PropertyName::VOLUME_NAME,
            PropertyName::PROVISIONER,
        ] {
            let object = dataset(0).into();
            others_do(
                &mut driver.backend().state(),
                &Step::Inherit { object, property },
            );
        }
        let call = Call::within(std::time::Duration::from_mins(1));
        driver.get_volume(&call, &volume(0)).await.unwrap();
        well(
            &driver,
            &[
                Verb::Expand(0, 2),
                snapshot(0, 0),
                create(1, From::Snapshot(0, 0)),
                create(2, From::Volume(0)),
                Verb::Delete(1),
                Verb::Delete(2),
                delete_snapshot(0, 0),
                Verb::Delete(0),
            ],
        )
        .await;
        assert_eq!(guid(&driver, "tank/csi/v/v0"), None);
    }
}

#[tokio::test]
async fn an_id_that_no_driver_of_ours_gave_names_no_snapshot() {
    for kind in KINDS {
        let driver = fresh(kind);
        let call = Call::within(std::time::Duration::from_mins(1));
        for id in ["reallyfakesnapshotid", "none-exist-id", "@", "a@b;c", ".."] {
            let id = SnapshotId::parse(id).unwrap();
            driver
                .delete_snapshot(&call, DeleteSnapshot::new(&id))
                .await
                .unwrap();
            let shown = driver
                .get_snapshot(&call, GetSnapshot::new(&id))
                .await
                .unwrap_err();
            assert_eq!(shown.kind(), Kind::NotFound, "{id}");
            let mut asked = request(1, &From::Nothing, false);
            asked.source = Some(Source::Snapshot(id.clone()));
            let made = driver.create_volume(&call, &asked).await.unwrap_err();
            assert_eq!(made.kind(), Kind::NotFound, "{id}");
        }
        assert_eq!(driver.backend().state().exchanges, 0);
    }
}
