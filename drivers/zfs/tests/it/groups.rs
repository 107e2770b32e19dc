//! Groups of snapshots: whole or not at all, no snapshot and no other group, deleted as one.

use std::collections::BTreeMap;
use std::time::Duration;

use driver_core::{
    Call, CreateGroup, Effect, Error, GetSnapshot, GroupMembers, GroupSnapshot, Groups as _, Kind,
    PageRequest, Parameters, SnapshotFilter, SnapshotName, Snapshots as _,
};
use driver_zfs::observed::VolumeKind;
use driver_zfs::property::PropertyName;
use driver_zfs::testing::InMemory as _;

use crate::short::*;
use crate::world::*;

const BOTH: u8 = 0b11;

fn call() -> Call {
    Call::within(Duration::from_mins(10))
}

fn take(ids: u8, name: u8) -> Verb {
    Verb::Group { ids, name }
}

fn delete(ids: u8, name: u8) -> Verb {
    Verb::DeleteGroup { ids, name }
}

/// Two volumes, and a third one that is in no group.
async fn with_volumes(kind: VolumeKind) -> MemoryDriver {
    let driver = fresh(kind);
    let all = IDS.map(|id| create(id, From::Nothing));
    well(&driver, &all.collect::<Vec<_>>()).await;
    driver
}

async fn named(
    driver: &MemoryDriver,
    name: &str,
    parameters: &[(&str, bool)],
) -> Result<GroupSnapshot, Error> {
    let name = SnapshotName::parse(name).unwrap();
    let (volumes, parameters) = (volumes(BOTH), parameters_of(parameters));
    driver
        .create_group(&call(), CreateGroup::new(&name, &volumes, &parameters))
        .await
}

fn parameters_of(flags: &[(&str, bool)]) -> Parameters {
    parameters(flags)
}

#[tokio::test]
async fn each_snapshot_has_the_marks_of_its_group_from_the_first_moment_and_is_restored_alone() {
    for kind in KINDS {
        let driver = with_volumes(kind).await;
        let group = named(&driver, "s0", &[]).await.unwrap();
        let things = driver.backend().state().pool.things();
        let mut created = Vec::new();
        for id in 0..2 {
            let thing = &things[&attached(id, 0).into()];
            let marks = [
                (PropertyName::GROUP, group.id.as_str()),
                (PropertyName::SNAPSHOT_NAME, "s0"),
                (PropertyName::MANAGED, "true"),
                (PropertyName::SUCCESS, "true"),
            ];
            let marks = marks.map(|(name, value)| (name, value.to_owned()));
            assert_eq!(thing.own, BTreeMap::from(marks), "{kind}");
            let one = snapshot_id(id, 0, false);
            let found = driver.get_snapshot(&call(), GetSnapshot::new(&one)).await;
            let found = found.unwrap();
            assert_eq!(found.group.as_ref(), Some(&group.id));
            created.push(found.created);
        }
        assert_eq!(created, [group.created; 2], "one moment");
        well(&driver, &[create(9, From::Snapshot(1, 0)), snapshot(2, 1)]).await;
        let listed = driver
            .list_snapshots(&call(), &SnapshotFilter::default(), &PageRequest::default())
            .await
            .unwrap();
        let groups: Vec<_> = listed.entries.iter().map(|entry| &entry.group).collect();
        assert_eq!(groups, [&Some(group.id.clone()), &Some(group.id), &None]);
    }
}

#[tokio::test]
async fn a_member_is_deleted_with_its_group_and_never_alone() {
    for kind in KINDS {
        let driver = with_volumes(kind).await;
        well(&driver, &[take(BOTH, 0)]).await;
        let id = group(BOTH, 0).id;
        refused(&driver, &delete_snapshot(0, 0), Kind::Invalid, id.as_str()).await;
        refused(&driver, &Verb::Delete(0), Kind::Busy, "v0@s0").await;
        well(
            &driver,
            &[delete(BOTH, 0), delete(BOTH, 0), delete_snapshot(0, 0)],
        )
        .await;
        well(&driver, &[Verb::Delete(0)]).await;
    }
}

#[tokio::test]
async fn a_name_is_of_one_snapshot_or_of_one_group() {
    for kind in KINDS {
        let driver = with_volumes(kind).await;
        well(&driver, &[take(BOTH, 0), take(BOTH, 0)]).await;
        for verb in [
            take(0b01, 0),
            take(0b111, 0),
            take(0b100, 0),
            snapshot(0, 0),
            snapshot(2, 0),
            snapshot_detached(0, 0),
        ] {
            refused(&driver, &verb, Kind::Conflict, "s0").await;
        }
        well(&driver, &[snapshot(0, 1), snapshot_detached(2, 2)]).await;
        refused(&driver, &take(BOTH, 1), Kind::Conflict, "v0@s1").await;
        refused(&driver, &take(0b110, 1), Kind::Conflict, "v0@s1").await;
        refused(&driver, &take(BOTH, 2), Kind::Conflict, "s/v2/s2").await;
        // Another group of that name, whose snapshots have other volumes, is not the one that is deleted.
        well(&driver, &[delete(0b01, 0), delete(0b111, 0)]).await;
        assert!(guid(&driver, "tank/csi/v/v0@s0").is_some());
    }
}

#[tokio::test]
async fn a_unique_name_is_not_searched_for() {
    let driver = with_volumes(VolumeKind::Zvol).await;
    let unique = "groupsnapshot-0aa4ba5c-6ee9-4d3b-9cf3-0f1e2d3c4b5a";
    let group = named(&driver, unique, &[]).await.unwrap();
    assert_eq!(named(&driver, unique, &[]).await.unwrap(), group);
    assert_eq!(driver.backend().state().scans, 0);
    named(&driver, "s0", &[]).await.unwrap();
    assert_eq!(driver.backend().state().scans, 1);
}

#[tokio::test]
async fn without_one_of_its_volumes_nothing_of_a_group_is_made() {
    for kind in KINDS {
        let driver = fresh(kind);
        well(&driver, &[create(0, From::Nothing)]).await;
        refused(&driver, &take(0b111, 0), Kind::NotFound, "v1, v2").await;
        assert_eq!(guid(&driver, "tank/csi/v/v0@s0"), None);
    }
}

#[tokio::test]
async fn detached_snapshots_are_refused_by_name_and_what_was_made_before_is_not_forgotten() {
    let driver = with_volumes(VolumeKind::Zvol).await;
    let detached = [("detachedSnapshots", true)];
    let error = named(&driver, "s0", &detached).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.effect()),
        (Kind::Invalid, Effect::None)
    );
    let said = error.chain();
    assert!(said.contains("detachedSnapshots"), "{said}");
    named(&driver, "s0", &[]).await.unwrap();
    let error = named(&driver, "s0", &detached).await.unwrap_err();
    assert_eq!(error.effect(), Effect::Possible, "there is one");
}

#[tokio::test]
async fn what_is_left_of_a_deletion_is_no_group_and_is_not_made_whole() {
    for kind in KINDS {
        let driver = with_volumes(kind).await;
        well(&driver, &[take(BOTH, 0)]).await;
        // A disk's snapshot leaves a bookmark before it goes.
        let of_one = match kind {
            VolumeKind::Filesystem => 1,
            VolumeKind::Zvol => 2,
        };
        let steps = driver.backend().state().steps;
        driver.backend().state().cut_after = Some(steps + of_one);
        let lost = run(&driver, &delete(BOTH, 0)).await.unwrap_err();
        assert_eq!(lost.kind(), Kind::Unreachable);
        driver.backend().state().cut_after = None;
        let group = group(BOTH, 0);
        let members = members(&group);
        let request = GroupMembers::new(&group.id, &members);
        let error = driver.get_group(&call(), request).await.unwrap_err();
        assert_eq!(error.kind(), Kind::NotFound);
        assert!(error.chain().contains("1 of its 2"), "{}", error.chain());
        refused(
            &driver,
            &take(BOTH, 0),
            Kind::Conflict,
            "left of a deletion",
        )
        .await;
        well(&driver, &[delete(BOTH, 0), take(BOTH, 0)]).await;
        driver.get_group(&call(), request).await.unwrap();
    }
}

#[tokio::test]
async fn a_snapshot_that_something_stands_on_or_holds_goes_from_its_group_later() {
    for kind in KINDS {
        let driver = with_volumes(kind).await;
        well(&driver, &[take(BOTH, 0), create(9, From::Snapshot(0, 0))]).await;
        let held = attached(1, 0);
        driver.backend().state().pool.hold(&held);
        well(&driver, &[delete(BOTH, 0)]).await;
        let doomed = |driver: &MemoryDriver| {
            let things = driver.backend().state().pool.things();
            [0, 1].map(|id| {
                things
                    .get(&attached(id, 0).into())
                    .map(|thing| thing.doomed)
            })
        };
        assert_eq!(doomed(&driver), [Some(true); 2], "{kind}");
        // Their names are free but for the hold, which would not be found under another one.
        refused(&driver, &take(BOTH, 0), Kind::Busy, "hold").await;
        well(&driver, &[take(0b101, 0)]).await;
        assert_eq!(doomed(&driver)[0], Some(false));
    }
}
