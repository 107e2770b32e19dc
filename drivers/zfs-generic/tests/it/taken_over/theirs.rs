//! Volumes and snapshots that democratic-csi made, in the hands of our driver.

use std::collections::BTreeMap;
use std::sync::Arc;

use driver_core::{
    DeleteSnapshot, DeleteVolume, Driver, ExpandVolume, Kind, PageRequest, SizeRange,
    SnapshotFilter, SnapshotId, VolumeId,
};
use driver_zfs::testing::MemoryPool;
use serde_json::Value;

use super::fake_host::Half;
use super::{DISKS, KINDS};
use crate::replay::{Said, ask, call, captured, failed, made, of_snapshot, of_volume, said};

const LARGER: u64 = 1 << 30;

/// The host as it was left, and our driver with the same configuration.
fn taken_over(kind: &str) -> (Half, Arc<dyn Driver>) {
    let pool = MemoryPool::captured(&captured(kind, "zfs.txt")).unwrap();
    let half = Half::new(pool);
    if DISKS.contains(&kind) {
        half.has_stack(&captured(kind, "stack.txt"));
        half.has_saved(&captured(kind, "saved.json"));
    }
    let driver = half.driver(&captured(kind, "config.yaml"));
    (half, driver)
}

/// All that can be seen of a host.
fn seen(half: &Half) -> (BTreeMap<String, String>, Vec<(String, String)>) {
    let files = ["cfg", "etc"].map(|root| half.host().tree(root)).concat();
    (half.pool().shape(), files)
}

async fn must(driver: &dyn Driver, said: &Said) -> Value {
    let answer = ask(driver, said).await;
    answer.unwrap_or_else(|error| panic!("{said:?}: {}", error.chain()))
}

fn volume(id: &str) -> VolumeId {
    VolumeId::parse(id).unwrap()
}

/// The ids of the volumes and of the snapshots among answers.
fn ids<'a>(answers: impl Iterator<Item = &'a Value>) -> (Vec<String>, Vec<String>) {
    let (mut volumes, mut snapshots) = (Vec::new(), Vec::new());
    for answer in answers {
        let text = |key: &str| answer[key].as_str().map(str::to_owned);
        match text("snapshot_id") {
            Some(id) => snapshots.push(id),
            None => volumes.extend(text("volume_id")),
        }
    }
    (volumes, snapshots)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_it_made_and_is_asked_for_again_is_the_same_and_stays_as_it_is() {
    for kind in KINDS {
        let (half, driver) = taken_over(kind);
        let (pool, files) = seen(&half);
        for said in made(kind) {
            assert_eq!(must(&*driver, &said).await, said.answered(), "{kind}");
        }
        let (pool_now, files_now) = seen(&half);
        let changed: Vec<_> = pool_now
            .iter()
            .filter(|(name, shape)| pool.get(*name) != Some(shape))
            .collect();
        // The helper of a clone goes with it; democratic-csi would leave it.
        let helper = format!("tank/k8s/{kind}/v/pvc-old@volume-source-for-volume-pvc-old-cloned");
        let doomed = "doomed true {}".to_owned();
        assert_eq!(changed, [(&helper, &doomed)], "{kind}");
        assert_eq!(pool_now.len(), pool.len(), "{kind}");
        assert_eq!(files_now, files, "{kind}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_it_made_is_shown_and_listed() {
    for kind in KINDS {
        let (_half, driver) = taken_over(kind);
        let (mut volumes, mut snapshots) = (Vec::new(), Vec::new());
        for said in made(kind) {
            let answer = said.answered();
            if answer.get("snapshot_id").is_some() {
                snapshots.push(answer);
                continue;
            }
            let id = volume(answer["volume_id"].as_str().unwrap());
            let shown = driver.get_volume(&call(), &id).await.unwrap();
            assert_eq!(of_volume(&shown), answer, "{kind}");
            let exported = driver.is_exported(&call(), &id).await.unwrap();
            assert!(exported, "{kind} {id}");
            volumes.push(answer);
        }
        let page = PageRequest::default();
        let listed = driver.list_volumes(&call(), &page).await.unwrap();
        let listed: Vec<_> = listed.entries.iter().map(of_volume).collect();
        assert_eq!(listed, volumes, "{kind}");
        let filter = SnapshotFilter::default();
        let listed = driver.list_snapshots(&call(), &filter, &page).await;
        let listed = listed.unwrap();
        let mut listed: Vec<_> = listed.entries.iter().map(of_snapshot).collect();
        listed.sort_by_key(|snapshot| snapshot["snapshot_id"].to_string());
        snapshots.sort_by_key(|snapshot| snapshot["snapshot_id"].to_string());
        assert_eq!(listed, snapshots, "{kind}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_it_grew_stays_so_and_everything_grows_with_us() {
    for kind in KINDS {
        let (_half, driver) = taken_over(kind);
        for said in said(kind)
            .iter()
            .filter(|said| said.call.contains("Expand"))
        {
            assert_eq!(must(&*driver, said).await, said.answered(), "{kind}");
        }
        let made: Vec<_> = made(kind).iter().map(Said::answered).collect();
        for id in ids(made.iter()).0 {
            let larger = SizeRange::new(1 << 30, 0).unwrap();
            let grown = driver
                .expand_volume(&call(), ExpandVolume::new(&volume(&id), larger))
                .await;
            let grown = grown.unwrap_or_else(|error| panic!("{kind} {id}: {}", error.chain()));
            assert_eq!(grown.capacity, LARGER, "{kind} {id}");
            let shown = driver.get_volume(&call(), &volume(&id)).await.unwrap();
            assert_eq!(shown.capacity, Some(LARGER), "{kind} {id}");
        }
    }
}

/// The same for a further one.
fn again(said: &Said) -> Option<(Said, Value)> {
    let name = said.name();
    if name == "pvc-old" {
        return None;
    }
    let new = name.replace("-old", "-new");
    // The source is the same, and has another name.
    let answer = said.answered().to_string().replace(name, &new);
    let answer = answer.replace(&name.replace('-', "_"), &new.replace('-', "_"));
    let mut said = said.clone();
    said.request["name"] = new.into();
    Some((said, serde_json::from_str(&answer).unwrap()))
}

/// As it was left, and with one more of everything, made by us.
async fn with_more(kind: &str) -> (Half, Arc<dyn Driver>, Vec<Value>) {
    let (half, driver) = taken_over(kind);
    let mut all = Vec::new();
    for said in made(kind) {
        all.push(said.answered());
        if let Some((mut new, mut answer)) = again(&said) {
            // Of the size that was asked for, so without what was grown.
            if let Some(bytes) = new.request.get("capacity_range") {
                answer["capacity_bytes"] = bytes["required_bytes"].clone();
            }
            new.answer = None;
            let ours = must(&*driver, &new).await;
            assert_eq!(ours, answer, "{kind}");
            all.push(ours);
        }
    }
    for said in failed(kind) {
        all.push(must(&*driver, &said).await);
    }
    (half, driver, all)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_it_made_is_snapshotted_restored_and_cloned_and_all_of_it_can_be_deleted() {
    for kind in KINDS {
        let (half, driver, all) = with_more(kind).await;
        let (mut volumes, snapshots) = ids(all.iter());
        // What was made first is what all others were made of.
        let first = volumes.remove(0);
        for id in &volumes {
            delete(&*driver, id).await;
        }
        let refused = driver
            .delete_volume(&call(), DeleteVolume::new(&volume(&first)))
            .await;
        assert_eq!(refused.unwrap_err().kind(), Kind::Busy, "{kind}");
        for id in &snapshots {
            delete_snapshot(&*driver, id).await;
        }
        delete(&*driver, &first).await;
        nothing_is_left(kind, &half);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_it_made_can_be_deleted_before_what_was_made_of_it() {
    for kind in KINDS {
        let (half, driver, all) = with_more(kind).await;
        let (volumes, snapshots) = ids(all.iter());
        for id in &snapshots {
            delete_snapshot(&*driver, id).await;
        }
        for id in &volumes {
            delete(&*driver, id).await;
        }
        nothing_is_left(kind, &half);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_it_failed_to_make_is_made_when_it_is_asked_for_again() {
    let mut seen = 0;
    for kind in KINDS {
        let (_half, driver) = taken_over(kind);
        for said in failed(kind) {
            let made = must(&*driver, &said).await;
            assert_eq!(made["volume_id"], *said.name(), "{kind}");
            assert_eq!(
                made["content_source"], said.request["volume_content_source"],
                "{kind}"
            );
            seen += 1;
        }
    }
    assert_eq!(seen, 2, "the copies of SMB");
}

async fn delete(driver: &dyn Driver, id: &str) {
    for _ in 0..2 {
        let deleted = driver
            .delete_volume(&call(), DeleteVolume::new(&volume(id)))
            .await;
        deleted.unwrap_or_else(|error| panic!("{id}: {}", error.chain()));
    }
}

async fn delete_snapshot(driver: &dyn Driver, id: &str) {
    let id = SnapshotId::parse(id).unwrap();
    for _ in 0..2 {
        let deleted = driver
            .delete_snapshot(&call(), DeleteSnapshot::new(&id))
            .await;
        deleted.unwrap_or_else(|error| panic!("{id}: {}", error.chain()));
    }
}

fn nothing_is_left(kind: &str, half: &Half) {
    let left: Vec<_> = half.pool().shape().into_keys().collect();
    // democratic-csi's empty container went with its last snapshot. compat: "ZFS".
    let own = ["", "/s", "/v"].map(|leaf| format!("tank/k8s/{kind}{leaf}"));
    let above = ["tank".to_owned(), "tank/k8s".to_owned()];
    assert_eq!(left, [&above[..], &own[..]].concat(), "{kind}");
    let (_, files) = seen(half);
    let left: Vec<_> = files
        .iter()
        .filter(|(path, text)| path.contains("pvc") || text.contains("pvc"))
        .collect();
    assert!(left.is_empty(), "{kind}: {left:#?}");
}
