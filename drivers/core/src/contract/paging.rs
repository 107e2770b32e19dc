//! Pages: an entry that exists the whole time appears once, even if others are added or removed.

use std::collections::BTreeMap;

use super::{Fresh, call, expect_kind};
use crate::error::Kind;
use crate::request::DeleteSnapshot;
use crate::text::VolumeId;
use crate::volume::{Page, PageRequest, PageToken, SnapshotFilter};

/// More pages than any list of the suite can have.
const MANY: usize = 100;

/// Reads all pages and counts how often each entry appears; `between` runs after each page.
async fn read_all<T>(
    max: Option<usize>,
    mut next: impl AsyncFnMut(&PageRequest) -> Page<T>,
    mut between: impl AsyncFnMut(usize),
    id: impl Fn(&T) -> String,
) -> BTreeMap<String, usize> {
    let mut seen = BTreeMap::new();
    let mut request = PageRequest { max, after: None };
    for number in 0..MANY {
        let page = next(&request).await;
        assert!(
            max.is_none_or(|max| page.entries.len() <= max),
            "a page is too long"
        );
        for entry in &page.entries {
            *seen.entry(id(entry)).or_default() += 1;
        }
        let Some(token) = page.next else {
            return seen;
        };
        between(number).await;
        request.after = Some(token);
    }
    panic!("the list never ends");
}

pub(super) async fn pages_of_volumes_neither_lose_nor_repeat(fresh: &Fresh) {
    if !fresh.driver.capabilities().list_volumes {
        return;
    }
    let empty = fresh.volumes(&PageRequest::default()).await;
    assert!(empty.entries.is_empty() && empty.next.is_none());
    let mut stays = Vec::new();
    let mut goes = Vec::new();
    for number in 0..8 {
        stays.push(fresh.create(&format!("contract-{number}-stays")).await.id);
        goes.push(fresh.create(&format!("contract-{number}-goes")).await.id);
    }
    let id = |volume: &crate::volume::Volume| volume.id.to_string();
    for max in [
        None,
        Some(1),
        Some(2),
        Some(3),
        Some(16),
        Some(17),
        Some(1000),
    ] {
        let seen = read_all(
            max,
            async |page| fresh.volumes(page).await,
            async |_| (),
            id,
        )
        .await;
        assert_eq!(seen.len(), 16, "{max:?}");
        assert!(seen.values().all(|times| *times == 1), "{max:?}: {seen:?}");
    }
    let come_and_go = async |number: usize| {
        if let Some(id) = goes.get(number) {
            fresh.delete(id).await;
        }
        let name = format!("contract-{}-comes-{number}", number * 7 % 9);
        fresh.create(&name).await;
    };
    let seen = read_all(
        Some(2),
        async |page| fresh.volumes(page).await,
        come_and_go,
        id,
    )
    .await;
    assert_once(&seen, &stays);
    let foreign = PageRequest {
        max: None,
        after: Some(PageToken("contract, no token of ours".into())),
    };
    let outcome = fresh.driver.list_volumes(&call(), &foreign).await;
    expect_kind("a foreign token", outcome, &[Kind::Pending]);
}

/// No entry repeats, and each one that stayed was seen.
fn assert_once(seen: &BTreeMap<String, usize>, stays: &[VolumeId]) {
    assert!(seen.values().all(|times| *times == 1), "{seen:?}");
    for id in stays {
        assert!(seen.contains_key(id.as_str()), "{id} was lost");
    }
}

pub(super) async fn pages_of_snapshots_neither_lose_nor_repeat(fresh: &Fresh) {
    if !fresh.driver.capabilities().list_snapshots {
        return;
    }
    let volume = fresh.create("contract-a").await;
    let other = fresh.create("contract-b").await;
    let mut stays = Vec::new();
    let mut goes = Vec::new();
    for number in 0..5 {
        let source = if number % 2 == 0 { &volume } else { &other };
        let name = format!("contract-{number}-stays");
        stays.push(fresh.snapshot(&source.id, &name).await.id.to_string());
        let name = format!("contract-{number}-goes");
        goes.push(fresh.snapshot(&volume.id, &name).await.id);
    }
    let id = |snapshot: &crate::volume::Snapshot| snapshot.id.to_string();
    for (source, count) in [(None, 10), (Some(&volume.id), 8), (Some(&other.id), 2)] {
        for max in [None, Some(1), Some(3), Some(10)] {
            let next = async |page: &PageRequest| fresh.snapshots(source, page).await;
            let seen = read_all(max, next, async |_| (), id).await;
            assert_eq!(seen.len(), count, "{source:?} {max:?}");
            assert!(seen.values().all(|times| *times == 1), "{seen:?}");
        }
    }
    let come_and_go = async |number: usize| {
        if let Some(id) = goes.get(number) {
            let outcome = fresh
                .driver
                .delete_snapshot(&call(), DeleteSnapshot::new(id))
                .await;
            super::expect("delete snapshot", outcome);
        }
        let name = format!("contract-{}-comes-{number}", number * 7 % 9);
        fresh.snapshot(&other.id, &name).await;
    };
    let next = async |page: &PageRequest| fresh.snapshots(None, page).await;
    let seen = read_all(Some(2), next, come_and_go, id).await;
    assert!(seen.values().all(|times| *times == 1), "{seen:?}");
    assert!(
        stays.iter().all(|id| seen.contains_key(id)),
        "one was lost: {seen:?}"
    );
    let foreign = PageRequest {
        max: None,
        after: Some(PageToken("contract, no token of ours".into())),
    };
    let filter = SnapshotFilter::default();
    let outcome = fresh
        .driver
        .list_snapshots(&call(), &filter, &foreign)
        .await;
    expect_kind("a foreign token", outcome, &[Kind::Pending]);
}
