//! Snapshots of several volumes at one moment, and the ranges of snapshots.

use std::collections::BTreeMap;

use super::{Fresh, call, expect, expect_kind};
use crate::driver::{BlockRange, GroupSnapshot};
use crate::error::{Error, Kind};
use crate::parameters::Parameters;
use crate::request::{BlockRangesQuery, CreateGroup, DeleteSnapshot, GroupMembers};
use crate::text::{MAX_STRING, SnapshotId, SnapshotName, VolumeId};
use crate::volume::PageRequest;

const NAME: &str = "contract-g";

async fn try_group(fresh: &Fresh, volumes: &[VolumeId]) -> Result<GroupSnapshot, Error> {
    try_group_with(fresh, volumes, fresh.grouping).await
}

async fn try_group_with(
    fresh: &Fresh,
    volumes: &[VolumeId],
    parameters: &[(&str, &str)],
) -> Result<GroupSnapshot, Error> {
    let name = SnapshotName::parse(NAME).expect("a name of the suite");
    let own = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    let parameters: BTreeMap<_, _> = parameters.iter().map(own).collect();
    let parameters = Parameters::new(parameters);
    let driver = &fresh.driver;
    driver
        .create_group(&call(), CreateGroup::new(&name, volumes, &parameters))
        .await
}

fn members(group: &GroupSnapshot) -> Vec<SnapshotId> {
    group.snapshots.iter().map(|s| s.id.clone()).collect()
}

/// Its members in one order, which every driver is free to choose.
fn sorted(mut group: GroupSnapshot) -> GroupSnapshot {
    group.snapshots.sort_by(|a, b| a.id.cmp(&b.id));
    group
}

pub(super) async fn a_class_that_asks_for_more_than_there_is_is_refused(fresh: &Fresh) {
    if fresh.grouping.is_empty() {
        return;
    }
    let volumes = [fresh.create("contract-a").await.id];
    for (key, _) in fresh.grouping {
        for parameters in [&[(*key, "contract-unknown")][..], &[]] {
            let refused = try_group_with(fresh, &volumes, parameters).await;
            let error = refused.expect_err("what the driver does not promise");
            assert_eq!(error.kind(), Kind::Invalid, "{}", error.chain());
            assert!(error.chain().contains(key), "{}", error.chain());
        }
    }
    let left = fresh.snapshots(None, &PageRequest::default()).await.entries;
    assert!(left.is_empty(), "a refused group has left {left:?}");
}

pub(super) async fn groups_are_cut_whole_once_and_go_whole(fresh: &Fresh) {
    let driver = &fresh.driver;
    let volumes = [fresh.id("contract-a"), fresh.id("contract-b")];
    let [a, b] = &volumes;
    if !driver.capabilities().groups {
        expect_kind(
            "group",
            try_group(fresh, &volumes).await,
            &[Kind::Unsupported],
        );
        return;
    }
    fresh.create("contract-a").await;
    let outcome = try_group(fresh, &volumes).await;
    expect_kind("group with nothing", outcome, &[Kind::NotFound]);
    let left = fresh.snapshots(None, &PageRequest::default()).await.entries;
    assert!(left.is_empty(), "a failed group has left {left:?}");

    fresh.create("contract-b").await;
    let group = sorted(expect("group", try_group(fresh, &volumes).await));
    assert!(group.id.as_str().len() <= MAX_STRING);
    let mut sources: Vec<_> = group.snapshots.iter().map(|s| s.source.clone()).collect();
    sources.sort();
    assert_eq!(sources, volumes, "one snapshot for each volume");
    let own = |group: &GroupSnapshot| {
        group
            .snapshots
            .iter()
            .all(|s| s.group == Some(group.id.clone()))
    };
    assert!(own(&group), "each snapshot knows its group");
    let turned = [b.clone(), a.clone()];
    let again = expect("the same", try_group(fresh, &turned).await);
    assert_eq!(sorted(again), group, "a group stays as it was cut");
    let outcome = try_group(fresh, std::slice::from_ref(a)).await;
    expect_kind("the name of another group", outcome, &[Kind::Conflict]);

    let ids = members(&group);
    let found = driver
        .get_group(&call(), GroupMembers::new(&group.id, &ids))
        .await;
    assert_eq!(sorted(expect("get", found)), group);
    let listed = fresh.snapshots(Some(a), &PageRequest::default()).await;
    let of_a: Vec<_> = group
        .snapshots
        .iter()
        .filter(|s| s.source == *a)
        .cloned()
        .collect();
    assert_eq!(listed.entries, of_a, "listed as it was cut");

    for some in [&ids[..1], &[]] {
        let outcome = driver
            .get_group(&call(), GroupMembers::new(&group.id, some))
            .await;
        expect_kind("get with other snapshots", outcome, &[Kind::Invalid]);
        let outcome = driver
            .delete_group(&call(), GroupMembers::new(&group.id, some))
            .await;
        expect_kind("delete with other snapshots", outcome, &[Kind::Invalid]);
    }
    let outcome = driver
        .delete_snapshot(&call(), DeleteSnapshot::new(&ids[0]))
        .await;
    expect_kind("delete one of a group", outcome, &[Kind::Invalid]);
    for _ in 0..2 {
        expect(
            "delete",
            driver
                .delete_group(&call(), GroupMembers::new(&group.id, &ids))
                .await,
        );
    }
    let outcome = driver
        .get_group(&call(), GroupMembers::new(&group.id, &ids))
        .await;
    expect_kind("get what is deleted", outcome, &[Kind::NotFound]);
    let left = fresh.snapshots(None, &PageRequest::default()).await.entries;
    assert!(left.is_empty(), "a deleted group has left {left:?}");
}

async fn ranges(
    fresh: &Fresh,
    snapshot: &SnapshotId,
    base: Option<&SnapshotId>,
) -> (u64, Vec<BlockRange>) {
    let found = fresh
        .driver
        .block_ranges(&call(), BlockRangesQuery::new(snapshot, base, 0))
        .await;
    let mut found = expect("ranges", found);
    let mut all = Vec::new();
    while let Some(piece) = expect("more ranges", found.next(1).await) {
        assert_eq!(piece.len(), 1, "at most one, and never none");
        all.extend(piece);
    }
    (found.capacity(), all)
}

pub(super) async fn ranges_are_sorted_and_end_within_the_snapshot(fresh: &Fresh) {
    let driver = &fresh.driver;
    if !driver.capabilities().block_metadata {
        let missing = SnapshotId::parse("contract-missing").expect("an id");
        let outcome = driver
            .block_ranges(&call(), BlockRangesQuery::new(&missing, None, 0))
            .await;
        expect_kind("ranges", outcome, &[Kind::Unsupported]);
        return;
    }
    let volume = fresh.create("contract-a").await;
    let older = fresh.snapshot(&volume.id, "contract-s").await;
    let newer = fresh.snapshot(&volume.id, "contract-t").await;
    for base in [None, Some(&older.id)] {
        let (capacity, all) = ranges(fresh, &newer.id, base).await;
        let ends = all.iter().map(|range| range.offset + range.length);
        let starts = all
            .iter()
            .skip(1)
            .map(|range| range.offset)
            .chain([capacity]);
        assert!(ends.zip(starts).all(|(end, next)| end <= next), "{all:?}");
        assert!(all.iter().all(|range| range.length > 0), "{all:?}");
        let outcome = driver
            .block_ranges(
                &call(),
                BlockRangesQuery::new(&newer.id, base, capacity + 1),
            )
            .await;
        expect_kind("beyond the end", outcome, &[Kind::OutOfRange]);
    }
    let (_, nothing) = ranges(fresh, &newer.id, Some(&newer.id)).await;
    assert_eq!(nothing, [], "a snapshot differs from itself");
    let other = fresh.create("contract-b").await;
    let foreign = fresh.snapshot(&other.id, "contract-u").await;
    let missing = SnapshotId::parse("contract-missing").expect("an id");
    for base in [&foreign.id, &missing] {
        let query = BlockRangesQuery::new(&newer.id, Some(base), 0);
        let outcome = driver.block_ranges(&call(), query).await;
        expect_kind("a base that is not its own", outcome, &[Kind::Busy]);
    }
    let gone = driver
        .delete_snapshot(&call(), DeleteSnapshot::new(&newer.id))
        .await;
    expect("delete", gone);
    let outcome = driver
        .block_ranges(&call(), BlockRangesQuery::new(&newer.id, None, 0))
        .await;
    expect_kind("ranges of nothing", outcome, &[Kind::NotFound]);
}
