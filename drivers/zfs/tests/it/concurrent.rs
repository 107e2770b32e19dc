//! Changes between an observation and a plan, and during a plan: by others, and by the leftover
//! command of a cut connection.

use std::collections::BTreeMap;
use std::time::Duration;

use csi_types::{AccessMode, NodeIdentity};
use driver_core::{
    Call, CreateSnapshot, DeleteVolume, Driver, Effect, Error, Exports as _, Kind, NodeId,
    PublishVolume, Publisher as _, SnapshotId, SnapshotName, Snapshots as _, UnpublishVolume,
};
use driver_zfs::ZfsDriver;
use driver_zfs::observed::VolumeKind;
use driver_zfs::property::PropertyName;
use driver_zfs::step::{Next, Step};
use driver_zfs::testing::InMemory as _;
use driver_zfs::testing::{MemoryExport, MemoryHost, settings};
use tokio::time::Instant;

use crate::short::*;
use crate::world::*;

#[tokio::test]
async fn a_new_snapshot_with_the_name_of_a_deleted_one_is_kept() {
    for kind in KINDS {
        let driver = fresh(kind);
        well(&driver, &[create(0, From::Nothing), snapshot(0, 0)]).await;
        well(&driver, &[create(1, From::Snapshot(0, 0))]).await;
        well(&driver, &[delete_snapshot(0, 0)]).await;
        // The clone is destroyed, and with it the snapshot that it kept; then a new snapshot is
        // taken.
        driver.backend().before_next_plan(|state| {
            others_do(state, &Step::DestroyDataset(dataset(1)));
            let named = [set(PropertyName::SNAPSHOT_NAME, "s0")];
            state.pool.insert_snapshot(&attached(0, 0), &named);
        });
        refused(&driver, &Verb::Delete(0), Kind::Busy, "v0@s0").await;
        let things = driver.backend().state().pool.things();
        assert!(!things[&attached(0, 0).into()].doomed, "{kind}");
    }
}

#[tokio::test]
async fn a_clone_that_was_replaced_during_the_call_is_not_promoted() {
    for kind in KINDS {
        let driver = fresh(kind);
        let other = [create(1, From::Nothing), snapshot(1, 1)];
        well(&driver, &other).await;
        well(
            &driver,
            &[create(0, From::Nothing), create(2, From::Volume(0))],
        )
        .await;
        let helper = snap(&format!("{}@volume-source-for-volume-v2", dataset(0)));
        let clone = |of: driver_zfs::name::SnapshotRef, to: u8| Step::Clone {
            origin: of,
            dataset: dataset(to),
            properties: vec![set(PropertyName::MANAGED, "true")],
        };
        // It keeps the helper, so that only the clone differs.
        others_do(&mut driver.backend().state(), &clone(helper, 3));
        let snapshot = guid(&driver, "tank/csi/v/v1@s1");
        driver.backend().before_next_plan(move |state| {
            others_do(state, &Step::DestroyDataset(dataset(2)));
            others_do(state, &clone(attached(1, 1), 2));
        });
        well(&driver, &[Verb::Delete(0)]).await;
        assert_eq!(guid(&driver, "tank/csi/v/v1@s1"), snapshot, "{kind}: moved");
        assert_eq!(guid(&driver, "tank/csi/v/v0"), None);
        assert!(guid(&driver, "tank/csi/v/v3").is_some());
    }
}

#[tokio::test]
async fn what_an_orphan_makes_while_its_deletion_looks_is_deleted() {
    for kind in KINDS {
        let driver = fresh(kind);
        // It shows that there was something in between.
        let trace = |number: u8| format!("tank/trace{number}");
        driver.backend().before_next_plan(move |state| {
            let mark = [set(PropertyName::MANAGED, "true")];
            state.pool.insert(&dataset(0), kind, &mark, None);
            state.pool.insert(&name(&trace(0)), kind, &[], None);
        });
        well(&driver, &[Verb::Delete(0)]).await;
        assert_eq!(guid(&driver, "tank/csi/v/v0"), None, "{kind}");
        assert!(guid(&driver, &trace(0)).is_some(), "{kind}: one look");

        well(&driver, &[create(0, From::Nothing)]).await;
        driver.backend().before_next_plan(move |state| {
            let named = [set(PropertyName::SNAPSHOT_NAME, "s0")];
            state.pool.insert_snapshot(&attached(0, 0), &named);
            state.pool.insert(&name(&trace(1)), kind, &[], None);
        });
        well(&driver, &[delete_snapshot(0, 0)]).await;
        assert_eq!(guid(&driver, "tank/csi/v/v0@s0"), None, "{kind}");
        assert!(guid(&driver, &trace(1)).is_some(), "{kind}: one look");
    }
}

#[tokio::test(start_paused = true)]
async fn a_copy_that_goes_on_is_waited_for_and_never_cut() {
    for kind in KINDS {
        let driver = fresh(kind);
        let large = [create(0, From::Nothing), Verb::Expand(0, 3), snapshot(0, 0)];
        well(&driver, &large).await;
        let restore = copy(1, From::Snapshot(0, 0));
        {
            let mut state = driver.backend().state();
            // The dataset exists, without its content.
            state.cut_after = Some(state.steps + 1);
            state.goes_on = true;
        }
        refused(&driver, &restore, Kind::Unreachable, "cut").await;
        driver.backend().state().cut_after = None;
        let started = guid(&driver, dataset(1).as_str());
        // It gets the lock when the first one is done.
        well(&driver, std::slice::from_ref(&restore)).await;
        assert_eq!(guid(&driver, dataset(1).as_str()), started, "the same one");
        let things = driver.backend().state().pool.things();
        let (volume, sent) = (&things[&dataset(1).into()], &things[&attached(0, 0).into()]);
        assert_eq!(volume.content, sent.content);
        if kind == VolumeKind::Zvol {
            let size = (3 * SIZE).to_string();
            assert_eq!(volume.own.get(&PropertyName::VOLSIZE), Some(&size));
        }
        assert_eq!(guid(&driver, "tank/csi/v/v1@s0"), None, "left behind");
        well(&driver, &[Verb::Delete(1)]).await;
    }
}

#[tokio::test]
async fn what_came_with_the_copy_of_a_whole_volume_does_not_keep_it() {
    for kind in KINDS {
        let driver = keeping(kind);
        well(&driver, &[create(0, From::Nothing), snapshot(0, 0)]).await;
        let restore = copy(1, From::Snapshot(0, 0));
        well(&driver, std::slice::from_ref(&restore)).await;
        let received = snap(&format!("{}@s0", dataset(1)));
        let again = |state: &mut driver_zfs::testing::HostState| {
            state.pool.receive_snapshot(&received, &attached(0, 0));
        };
        again(&mut driver.backend().state());
        well(&driver, std::slice::from_ref(&restore)).await;
        assert_eq!(guid(&driver, "tank/csi/v/v1@s0"), None, "{kind}");
        again(&mut driver.backend().state());
        well(&driver, &[Verb::Delete(1)]).await;

        // A snapshot of another user only has the same name.
        well(&driver, &[restore]).await;
        let mut state = driver.backend().state().clone();
        state.pool.insert_snapshot(&received, &[]);
        *driver.backend().state() = state;
        refused(
            &driver,
            &Verb::Delete(1),
            Kind::Busy,
            "snapshots of other programs",
        )
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_stays_in_use_keeps_its_export() {
    let driver = fresh(VolumeKind::Zvol);
    well(&driver, &[create(0, From::Nothing)]).await;
    let exported = driver.backend().state().targets.clone();
    driver.backend().state().pool.occupy(&dataset(0), true);
    refused(&driver, &Verb::Delete(0), Kind::Busy, "busy").await;
    assert_eq!(driver.backend().state().targets, exported);
    driver.backend().state().pool.occupy(&dataset(0), false);
    well(&driver, &[Verb::Delete(0)]).await;
    assert_eq!(guid(&driver, "tank/csi/v/v0"), None);
}

#[tokio::test(start_paused = true)]
async fn what_is_known_to_be_free_later_is_waited_for_that_long_and_not_at_all_if_the_call_ends_before()
 {
    let driver = fresh(VolumeKind::Zvol);
    well(&driver, &[create(0, From::Nothing)]).await;
    let exported = driver.backend().state().targets.clone();
    let (began, long) = (Instant::now(), Duration::from_secs(70));

    driver.backend().state().kept = vec![Next::WaitFor(long)];
    let short = Call::within(Duration::from_secs(15));
    let error = driver
        .delete_volume(&short, DeleteVolume::new(&volume(0)))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::Busy, "{}", error.chain());
    assert_eq!(began.elapsed(), Duration::ZERO);
    assert_eq!(driver.backend().state().targets, exported);

    driver.backend().state().kept = vec![Next::WaitFor(long)];
    well(&driver, &[Verb::Delete(0)]).await;
    assert_eq!(began.elapsed(), long);
    assert_eq!(guid(&driver, "tank/csi/v/v0"), None);
}

#[tokio::test(start_paused = true)]
async fn what_is_kept_longer_and_longer_is_waited_for_as_long_as_the_call_may_take() {
    let driver = fresh(VolumeKind::Zvol);
    well(
        &driver,
        &[create(0, From::Nothing), create(1, From::Nothing)],
    )
    .await;
    driver.backend().state().kept = vec![Next::WaitFor(Duration::from_secs(1)); 50];
    well(&driver, &[Verb::Delete(0)]).await;
    assert_eq!(driver.backend().state().kept, []);
    driver.backend().state().kept = vec![Next::WaitFor(Duration::from_secs(1)); 10_000];
    refused(&driver, &Verb::Delete(1), Kind::Busy, "destroy").await;
}

#[tokio::test(start_paused = true)]
async fn what_is_not_free_before_a_time_is_tried_after_it_and_then_less_and_less_often() {
    let driver = fresh(VolumeKind::Filesystem);
    well(&driver, &[create(0, From::Nothing)]).await;
    let began = Instant::now();
    driver.backend().state().kept = vec![Next::WaitFrom(Duration::from_secs(3)); 3];
    well(&driver, &[Verb::Delete(0)]).await;
    let (took, least) = (began.elapsed(), Duration::from_secs(3 + 6 + 12));
    assert!(took >= least && took < least * 5 / 4, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn however_a_deletion_fails_the_volume_keeps_its_export() {
    type Break = fn(&mut driver_zfs::testing::HostState);
    let auto = |state: &mut driver_zfs::testing::HostState| {
        let name = snap(&format!("{}@auto", dataset(0)));
        state.pool.insert_snapshot(&name, &[]);
    };
    let ways: [(&str, Kind, Break); 5] = [
        (
            "busy, then another user takes a snapshot",
            Kind::Busy,
            |state| {
                state.pool.occupy(&dataset(0), true);
                let name = snap(&format!("{}@auto", dataset(0)));
                state.pool.insert_snapshot(&name, &[]);
            },
        ),
        ("busy until the call is nearly over", Kind::Busy, |state| {
            state.pool.occupy(&dataset(0), true);
        }),
        ("may not destroy", Kind::Denied, |state| {
            state.pool.refuse_destruction = true;
        }),
        ("conflicting snapshot", Kind::Busy, |state| {
            let helper = snap(&format!("{}@volume-source-for-volume-v1", dataset(0)));
            let guid = state.pool.guid(&helper.into()).unwrap();
            let name = dataset(1).at(&driver_zfs::id::aside(guid)).unwrap();
            state.pool.insert_snapshot(&name, &[]);
        }),
        ("no tool", Kind::Internal, |state| {
            state.without_tool = true;
        }),
    ];
    for (what, kind, change) in ways {
        let driver = keeping(VolumeKind::Zvol);
        well(
            &driver,
            &[create(0, From::Nothing), create(1, From::Volume(0))],
        )
        .await;
        let before = driver.backend().state().targets.clone();
        driver.backend().before_next_plan(change);
        let call = Call::within(Duration::from_secs(10));
        let error = driver
            .delete_volume(&call, DeleteVolume::new(&volume(0)))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), kind, "{what}: {}", error.chain());
        assert_eq!(driver.backend().state().targets, before, "{what}");
    }
    // It existed before the first observation, so nothing is started.
    let driver = keeping(VolumeKind::Zvol);
    well(&driver, &[create(0, From::Nothing)]).await;
    auto(&mut driver.backend().state());
    let before = driver.backend().state().clone();
    refused(
        &driver,
        &Verb::Delete(0),
        Kind::Busy,
        "snapshots of other programs",
    )
    .await;
    let after = driver.backend().state().clone();
    assert_eq!((after.targets, after.steps), (before.targets, before.steps));
}

/// A driver whose volume is published to `nodes`.
async fn published(nodes: &[&str]) -> MemoryDriver {
    let mut export = MemoryExport::new(VolumeKind::Zvol);
    export.nodes = true;
    let settings = settings(VolumeKind::Zvol, "").unwrap();
    let driver = ZfsDriver::new(settings, MemoryHost::new(), export);
    well(&driver, &[create(0, From::Nothing)]).await;
    for node in nodes {
        publish(&driver, node).await;
    }
    driver
}

async fn publish(driver: &MemoryDriver, node: &str) {
    let capability = capability(AccessMode::MultiNodeMultiWriter);
    let (volume, node) = (volume(0), NodeIdentity::of(id(node)));
    let request = PublishVolume::new(&volume, &node, &capability, false);
    driver.publish_volume(&minute(), request).await.unwrap();
}

fn minute() -> Call {
    Call::within(Duration::from_mins(1))
}

fn id(node: &str) -> NodeId {
    NodeId::parse(node).unwrap()
}

/// Another controller does all of it.
fn lets_in(nodes: &'static str) -> impl FnOnce(&mut driver_zfs::testing::HostState) + Send {
    move |state| {
        let remember = Step::Set {
            object: dataset(0).into(),
            properties: vec![set(PropertyName::parse("test:nodes").unwrap(), nodes)],
        };
        others_do(state, &remember);
        let nodes = nodes.split(',').map(str::to_owned).collect();
        state.targets.inside.insert("v0".to_owned(), nodes);
    }
}

fn inside(driver: &MemoryDriver) -> String {
    let state = driver.backend().state();
    let nodes: Vec<_> = state.targets.inside["v0"].iter().cloned().collect();
    nodes.join(",")
}

#[tokio::test]
async fn a_node_that_is_let_in_while_another_one_is_put_out_or_let_in_keeps_its_session() {
    let driver = published(&["a", "x"]).await;
    driver.backend().before_next_plan(lets_in("a,b,x"));
    driver
        .unpublish_volume(
            &minute(),
            UnpublishVolume::new(&volume(0), Some(&NodeIdentity::of(id("a")))),
        )
        .await
        .unwrap();
    assert_eq!(inside(&driver), "b,x");

    driver.backend().before_next_plan(lets_in("b,c,x"));
    publish(&driver, "a").await;
    assert_eq!(inside(&driver), "a,b,c,x");

    // A recorded change that is not applied yet is based on the record, too.
    let cut = |state: &mut driver_zfs::testing::HostState| {
        state
            .targets
            .inside
            .insert("v0".to_owned(), ["a".to_owned()].into());
    };
    cut(&mut driver.backend().state());
    driver.backend().before_next_plan(lets_in("b,x"));
    publish(&driver, "b").await;
    assert_eq!(inside(&driver), "b,x");

    // An expansion restores the lost export, with its current access list.
    cut(&mut driver.backend().state());
    driver.backend().before_next_plan(lets_in("b,c,x"));
    well(&driver, &[Verb::Expand(0, 2)]).await;
    assert_eq!(inside(&driver), "b,c,x");
}

#[tokio::test(start_paused = true)]
async fn a_turn_at_what_all_volumes_share_is_waited_for_as_long_as_the_call_may_take() {
    let driver = fresh(VolumeKind::Zvol);
    driver.backend().state().queued = 50;
    well(&driver, &[create(0, From::Nothing)]).await;
    assert_eq!(driver.backend().state().queued, 0);
    driver.backend().state().queued = 1000;
    refused(&driver, &create(1, From::Nothing), Kind::Pending, "no turn").await;
}

#[tokio::test]
async fn a_plan_that_did_nothing_proves_nothing_for_the_one_before_it() {
    let driver = fresh(VolumeKind::Zvol);
    let call = Call::within(Duration::from_mins(1));
    well(&driver, &[create(0, From::Nothing)]).await;
    driver.backend().state().targets = driver_zfs::testing::Targets::default();
    driver.backend().state().without_tool = true;
    let error = driver.repair_export(&call, &volume(0)).await.unwrap_err();
    assert_eq!(error.effect(), Effect::None, "nothing was done before");

    // The first plan finds another volume, and the second one begins with the tool.
    let driver = fresh(VolumeKind::Zvol);
    well(&driver, &[create(0, From::Nothing)]).await;
    driver.backend().before_next_plan(|state| {
        let mark = [set(PropertyName::MANAGED, "true")];
        let kind = VolumeKind::Zvol;
        state.pool.insert(&dataset(0), kind, &mark, None);
        state.without_tool = true;
    });
    let error = driver
        .delete_volume(&call, DeleteVolume::new(&volume(0)))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::Internal, "{}", error.chain());
    assert_eq!(error.effect(), Effect::Possible, "{}", error.chain());
}

#[tokio::test(start_paused = true)]
async fn what_changes_all_the_time_is_no_missing_source() {
    let driver = fresh(VolumeKind::Filesystem);
    well(&driver, &[create(0, From::Nothing), snapshot(0, 0)]).await;
    // Its pool is shown, and takes nothing.
    driver.backend().state().pool.refuse_copies = true;
    let before = driver.backend().state().exchanges;
    let started = tokio::time::Instant::now();
    let restore = copy(1, From::Snapshot(0, 0));
    refused(&driver, &restore, Kind::Pending, "does not exist").await;
    let took = driver.backend().state().exchanges - before;
    assert!(started.elapsed().as_secs() > 10, "{took} at once");
}

#[tokio::test]
async fn the_first_copy_into_a_parent_that_does_not_exist_makes_it() {
    for kind in KINDS {
        let driver = fresh(kind);
        well(
            &driver,
            &[create(0, From::Nothing), snapshot_detached(0, 1)],
        )
        .await;
        well(&driver, &[Verb::Delete(0)]).await;
        let parent = dataset(0).parent().unwrap();
        others_do(&mut driver.backend().state(), &Step::DestroyDataset(parent));
        well(&driver, &[copy(1, From::Detached(0, 1))]).await;
        assert!(guid(&driver, "tank/csi/v/v1").is_some());
    }
}

#[tokio::test]
async fn others_that_have_the_name_are_looked_for_once() {
    let state = MemoryHost::new().state().clone();
    let driver = driver(VolumeKind::Filesystem, false, state);
    well(&driver, &[create(0, From::Nothing)]).await;
    for verb in [snapshot(0, 0), snapshot_detached(0, 1)] {
        driver.backend().state().scans = 0;
        well(&driver, &[verb]).await;
        assert_eq!(driver.backend().state().scans, 1);
    }
}

async fn named(
    driver: &MemoryDriver,
    name: &str,
    id: u8,
    detached: bool,
) -> Result<SnapshotId, Error> {
    let request = CreateSnapshot {
        name: SnapshotName::parse(name).unwrap(),
        source: volume(id),
        parameters: parameters(&[("detachedSnapshots", detached)]),
        secrets: BTreeMap::new(),
    };
    let call = Call::within(Duration::from_mins(10));
    let taken = driver.create_snapshot(&call, &request).await;
    taken.map(|taken| taken.id)
}

#[tokio::test]
async fn others_that_have_the_name_are_not_looked_for_if_a_random_uuid_ends_it() {
    let unique = "snapshot-0aa4ba5c-6ee9-4d3b-9cf3-0f1e2d3c4b5a";
    for (kind, detached) in KINDS
        .into_iter()
        .flat_map(|kind| [(kind, false), (kind, true)])
    {
        let driver = fresh(kind);
        let volumes = [0, 1].map(|id| create(id, From::Nothing));
        well(&driver, &volumes).await;
        let first = named(&driver, unique, 0, detached).await.unwrap();
        let again = named(&driver, unique, 0, detached).await.unwrap();
        assert_eq!(first, again);
        let other_form = named(&driver, unique, 0, !detached).await.unwrap_err();
        assert_eq!(other_form.kind(), Kind::Conflict, "{}", other_form.chain());
        assert_eq!(driver.backend().state().scans, 0, "{kind}");

        named(&driver, "s0", 0, detached).await.unwrap();
        let elsewhere = named(&driver, "s0", 1, detached).await.unwrap_err();
        assert_eq!(elsewhere.kind(), Kind::Conflict, "{}", elsewhere.chain());
        assert!(driver.backend().state().scans > 0, "{kind}");
    }
}
