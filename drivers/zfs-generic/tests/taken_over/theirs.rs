//! Volumes and snapshots that democratic-csi made, in the hands of our driver.

use std::collections::BTreeMap;
use std::sync::Arc;

use driver_core::{Driver, PageRequest, SizeRange, SnapshotFilter, SnapshotId, VolumeId};
use driver_zfs::testing::MemoryPool;
use serde_json::Value;

use crate::SHARES;
use crate::host::Half;
use crate::replay::{Said, ask, call, captured, of_snapshot, of_volume, said};

/// The host as it was left, and our driver with the same configuration.
fn taken_over(kind: &str) -> (Half, Arc<dyn Driver>) {
    let pool = MemoryPool::captured(&captured(kind, "zfs.txt")).unwrap();
    let half = Half::new(pool);
    let driver = half.driver(&captured(kind, "config.yaml"));
    (half, driver)
}

/// What was made and is there still, grown or not.
fn made(kind: &str) -> impl Iterator<Item = Said> {
    let all = said(kind).into_iter();
    all.filter(|said| said.call.starts_with("Create"))
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

#[tokio::test(flavor = "multi_thread")]
async fn what_it_made_and_is_asked_for_again_is_the_same_and_stays_as_it_is() {
    for kind in SHARES {
        let (half, driver) = taken_over(kind);
        let (pool, files) = seen(&half);
        for said in made(kind) {
            assert_eq!(must(&*driver, &said).await, said.answered(), "{kind}");
        }
        let (pool_now, files_now) = seen(&half);
        assert_eq!(pool_now, pool, "{kind}");
        assert_eq!(files_now, files, "{kind}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_it_made_is_shown_and_listed() {
    for kind in SHARES {
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
            assert!(
                driver.is_exported(&call(), &id).await.unwrap(),
                "{kind} {id}"
            );
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

/// The same for a further one.
fn again(said: &Said) -> Option<(Said, Value)> {
    let name = said.request["name"].as_str()?;
    if name == "pvc-old" {
        return None;
    }
    let new = name.replace("-old", "-new");
    let answer = said.answered();
    let mut said = said.clone();
    said.request["name"] = new.clone().into();
    // The source is the same, and has another name.
    let answer = answer.to_string().replace(name, &new);
    let answer = answer.replace(&name.replace('-', "_"), &new.replace('-', "_"));
    Some((said, serde_json::from_str(&answer).unwrap()))
}

#[tokio::test(flavor = "multi_thread")]
async fn what_it_made_is_snapshotted_restored_and_cloned_and_all_of_it_can_be_deleted() {
    for kind in SHARES {
        let (half, driver) = taken_over(kind);
        let before = half.pool().shape();
        let (mut volumes, mut snapshots) = (Vec::new(), Vec::new());
        let old = volume("pvc-old");
        let larger = SizeRange::new(768 << 20, 0).unwrap();
        let grown = driver.expand_volume(&call(), &old, larger).await.unwrap();
        assert_eq!(grown.capacity, 768 << 20);
        for said in made(kind) {
            let new = again(&said);
            let mut ids = vec![said.answered()];
            if let Some((new, answer)) = new {
                let ours = must(&*driver, &new).await;
                assert_eq!(ours, answer, "{kind}");
                ids.push(ours);
            }
            for id in ids {
                let text = |key: &str| id[key].as_str().map(str::to_owned);
                volumes.extend(text("volume_id"));
                snapshots.extend(text("snapshot_id"));
            }
        }
        // What was made first is what all others were made of.
        let first = volumes.remove(0);
        for id in &volumes {
            delete(&*driver, id).await;
        }
        for id in &snapshots {
            let id = SnapshotId::parse(id).unwrap();
            for _ in 0..2 {
                let deleted = driver.delete_snapshot(&call(), &id).await;
                deleted.unwrap_or_else(|error| panic!("{kind}: {}", error.chain()));
            }
        }
        delete(&*driver, &first).await;
        let left: Vec<_> = half.pool().shape().into_keys().collect();
        // democratic-csi's container has no mark and might be somebody's.
        let parents = ["/pvc-old@", "/v/pvc-old", "/snapshot-old"];
        let stays = |name: &String| parents.iter().all(|part| !name.contains(part));
        let parents: Vec<_> = before.into_keys().filter(stays).collect();
        assert_eq!(left, parents, "{kind}");
        let (_, files) = seen(&half);
        let left: Vec<_> = files
            .iter()
            .filter(|(path, text)| path.contains("pvc") || text.contains("pvc"))
            .collect();
        assert!(left.is_empty(), "{kind}: {left:#?}");
    }
}

async fn delete(driver: &dyn Driver, id: &str) {
    for _ in 0..2 {
        let deleted = driver.delete_volume(&call(), &volume(id)).await;
        deleted.unwrap_or_else(|error| panic!("{id}: {}", error.chain()));
    }
}
