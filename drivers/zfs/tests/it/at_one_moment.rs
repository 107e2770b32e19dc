//! Snapshots of several datasets are one step: all of them are made, or none.

use std::time::Duration;

use driver_core::{Call, Kind};
use driver_zfs::backend::Backend;
use driver_zfs::name::{DatasetName, SnapshotRef};
use driver_zfs::observed::{Query, Request, VolumeKind};
use driver_zfs::step::{Next, Plan, Step};
use driver_zfs::testing::MemoryHost;

fn dataset(name: &str) -> DatasetName {
    DatasetName::parse(&format!("tank/csi/v/{name}")).unwrap()
}

fn names() -> Vec<SnapshotRef> {
    let name = |of: &str| SnapshotRef::parse(&format!("tank/csi/v/{of}@s"));
    ["a", "b", "c"].map(|of| name(of).unwrap()).to_vec()
}

fn plan() -> Plan {
    let mut plan = Plan::about(dataset("a"));
    plan.step(Step::Snapshot {
        snapshots: names(),
        properties: Vec::new(),
    });
    plan
}

fn host() -> MemoryHost {
    let host = MemoryHost::new();
    for name in ["a", "b", "c"] {
        let pool = &mut host.state().pool;
        pool.insert(&dataset(name), VolumeKind::Zvol, &[], None);
    }
    host
}

/// The snapshots among them that exist.
fn made(host: &MemoryHost) -> Vec<SnapshotRef> {
    let pool = &host.state().pool;
    let is_there = |name: &SnapshotRef| pool.guid(&name.clone().into()).is_some();
    names().into_iter().filter(is_there).collect()
}

#[tokio::test]
async fn snapshots_of_several_datasets_are_made_at_one_moment() {
    let (host, call) = (host(), Call::within(Duration::from_mins(1)));
    let then = Request::of(names().into_iter().map(Query::Snapshot));
    let seen = host.apply(&call, &plan(), &then).await.unwrap();
    assert!(
        names()
            .iter()
            .all(|name| seen.pool.snapshot(name).is_some())
    );
}

#[tokio::test]
async fn a_plan_that_is_cut_has_made_all_of_them_or_none() {
    for (parts, expected) in [(0, Vec::new()), (1, names())] {
        let (host, call) = (host(), Call::within(Duration::from_mins(1)));
        host.state().cut_after = Some(parts);
        let lost = host.apply(&call, &plan(), &Request::of([])).await;
        let lost = lost.unwrap_err().error.kind();
        assert_eq!(lost, Kind::Unreachable);
        assert_eq!(made(&host), expected);
    }
}

#[tokio::test]
async fn one_that_exists_or_has_no_dataset_leaves_the_others_unmade() {
    let last = names().remove(2);
    let (host, call) = (host(), Call::within(Duration::from_mins(1)));
    host.state().pool.insert_snapshot(&last, &[]);
    let refused = host.apply(&call, &plan(), &Request::of([])).await;
    assert_eq!(refused.unwrap_err().next, Next::Observe);
    assert_eq!(made(&host), [last]);

    let host = MemoryHost::new();
    for name in ["a", "b"] {
        let pool = &mut host.state().pool;
        pool.insert(&dataset(name), VolumeKind::Zvol, &[], None);
    }
    let refused = host.apply(&call, &plan(), &Request::of([])).await;
    assert_eq!(refused.unwrap_err().next, Next::Observe);
    assert!(made(&host).is_empty());
}
