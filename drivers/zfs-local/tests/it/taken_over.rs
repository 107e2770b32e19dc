//! Objects of the real democratic-csi on a node are usable there, by their ids, and our objects are
//! the same as those of democratic-csi.
//!
//! `tests/democratic_csi` of `driver-zfs` contains its recorded answers and objects, and how they
//! were captured. compat: "ZFS", "ZFS of the node".

use std::collections::BTreeSet;

use crate::beside::{Facts, OF_DATASETS, all_are_listed, compare, of_pool};
use crate::replay::{Said, ask, call, captured, failed, made, of_volume, said};
use driver_core::config::{Document, NoEnvironment};
use driver_core::{
    DeleteSnapshot, DeleteVolume, Driver as _, ExpandVolume, Expander as _, Lister as _, NodeId,
    PageRequest, SizeRange, SnapshotId, Snapshots as _, VolumeId,
};
use driver_zfs::ZfsConfig;
use driver_zfs::observed::VolumeKind;
use driver_zfs::testing::{MemoryHost, MemoryPool};
use driver_zfs_local::{NodeMark, NodeZfs};
use serde_json::Value;

use crate::InMemory as _;

const KINDS: [(&str, VolumeKind); 2] = [
    ("dataset", VolumeKind::Filesystem),
    ("zvol", VolumeKind::Zvol),
];
/// Where democratic-csi ran.
const NODE: &str = "node-a";

fn node() -> NodeId {
    NodeId::parse(NODE).unwrap()
}

fn driver(kind: &str, holds: VolumeKind, pool: MemoryPool) -> NodeZfs {
    let document = Document::parse(&captured(kind, "config.yaml"), &NoEnvironment).unwrap();
    let zfs = ZfsConfig::read(&document).unwrap();
    let settings = zfs.settings(&document.common().unwrap(), holds, None);
    let host = MemoryHost::new();
    host.state().pool = pool;
    NodeZfs::new(settings.unwrap(), host, &node())
}

fn taken_over(kind: &str, holds: VolumeKind) -> NodeZfs {
    assert!(failed(kind).is_empty(), "{kind}");
    let pool = MemoryPool::captured(&captured(kind, "zfs.txt")).unwrap();
    driver(kind, holds, pool)
}

async fn must(driver: &NodeZfs, said: &Said) -> Value {
    let answer = ask(driver, said).await;
    answer.unwrap_or_else(|error| panic!("{said:?}: {}", error.chain()))
}

fn volume(id: &str) -> VolumeId {
    VolumeId::parse(id).unwrap()
}

fn volumes(kind: &str) -> Vec<Value> {
    let all = made(kind).into_iter();
    let volumes = all.filter(|said| said.call == "CreateVolume");
    volumes.map(|said| said.answered()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_it_made_keeps_its_ids_and_stays_as_it_is() {
    for (kind, holds) in KINDS {
        let driver = taken_over(kind, holds);
        let before = driver.backend().state().pool.shape();
        for said in made(kind) {
            assert_eq!(must(&driver, &said).await, said.answered(), "{kind}");
        }
        let after = driver.backend().state().pool.shape();
        assert_eq!(after.len(), before.len(), "{kind}");
        let changed: Vec<_> = after
            .into_iter()
            .filter(|(name, shape)| before.get(name) != Some(shape))
            .collect();
        // The helper of a clone goes with it; democratic-csi would leave it.
        let helper = format!("tank/k8s/{kind}/v/pvc-old@volume-source-for-volume-pvc-old-cloned");
        assert_eq!(changed, [(helper, "doomed true {}".to_owned())], "{kind}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_it_made_is_shown_and_listed_and_grows() {
    for (kind, holds) in KINDS {
        let driver = taken_over(kind, holds);
        let page = PageRequest::default();
        let listed = driver.list_volumes(&call(), &page).await.unwrap();
        let listed: Vec<_> = listed.entries.iter().map(of_volume).collect();
        assert_eq!(listed, volumes(kind), "{kind}");
        for said in said(kind)
            .iter()
            .filter(|said| said.call.contains("Expand"))
        {
            assert_eq!(must(&driver, said).await, said.answered(), "{kind}");
        }
        for answer in volumes(kind) {
            let id = volume(answer["volume_id"].as_str().unwrap());
            let shown = driver.get_volume(&call(), &id).await.unwrap();
            assert_eq!(of_volume(&shown), answer, "{kind}");
            let larger = SizeRange::new(1 << 30, 0).unwrap();
            let grown = driver
                .expand_volume(&call(), ExpandVolume::new(&id, larger))
                .await;
            let grown = grown.unwrap_or_else(|error| panic!("{kind} {id}: {}", error.chain()));
            assert_eq!(grown.capacity, 1 << 30, "{kind} {id}");
        }
    }
}

/// The captured state, and that state with one more object of each kind, created by us; with the
/// ids of all of them.
async fn with_more(kind: &str, holds: VolumeKind) -> (NodeZfs, [Vec<String>; 2]) {
    let driver = taken_over(kind, holds);
    let (mut volumes, mut snapshots) = (Vec::new(), Vec::new());
    for mut said in made(kind) {
        let answers = [Some(said.answered()), {
            let new = said.name().replace("-old", "-new");
            let is_first = said.name() == "pvc-old";
            said.request["name"] = new.into();
            if is_first {
                None
            } else {
                Some(must(&driver, &said).await)
            }
        }];
        for answer in answers.into_iter().flatten() {
            let text = |key: &str| answer[key].as_str().map(str::to_owned);
            match text("snapshot_id") {
                Some(id) => snapshots.push(id),
                None => volumes.extend(text("volume_id")),
            }
        }
    }
    // New objects have the mark of this node.
    let marked = format!("pvc-new-cloned{}", NodeMark::of(&node()).as_str());
    assert!(volumes.contains(&marked), "{volumes:?}");
    (driver, [volumes, snapshots])
}

#[tokio::test(flavor = "multi_thread")]
async fn what_it_made_is_the_source_of_more_and_all_of_it_can_be_deleted_in_either_order() {
    for (kind, holds) in KINDS {
        for sources_first in [false, true] {
            let (driver, [mut volumes, snapshots]) = with_more(kind, holds).await;
            let first = volumes.remove(0);
            if sources_first {
                delete_snapshots(&driver, &snapshots).await;
                delete(&driver, &first).await;
            }
            for id in &volumes {
                delete(&driver, id).await;
            }
            if !sources_first {
                delete_snapshots(&driver, &snapshots).await;
                delete(&driver, &first).await;
            }
            let left: Vec<_> = driver.backend().state().pool.shape().into_keys().collect();
            // democratic-csi's empty container went with its last snapshot. compat: "ZFS".
            let own = ["", "/s", "/v"].map(|leaf| format!("tank/k8s/{kind}{leaf}"));
            let above = ["tank".to_owned(), "tank/k8s".to_owned()];
            assert_eq!(
                left,
                [&above[..], &own[..]].concat(),
                "{kind} {sources_first}"
            );
        }
    }
}

async fn delete(driver: &NodeZfs, id: &str) {
    for _ in 0..2 {
        let deleted = driver
            .delete_volume(&call(), DeleteVolume::new(&volume(id)))
            .await;
        deleted.unwrap_or_else(|error| panic!("{id}: {}", error.chain()));
    }
}

async fn delete_snapshots(driver: &NodeZfs, ids: &[String]) {
    for id in ids {
        let id = SnapshotId::parse(id).unwrap();
        for _ in 0..2 {
            let deleted = driver
                .delete_snapshot(&call(), DeleteSnapshot::new(&id))
                .await;
            deleted.unwrap_or_else(|error| panic!("{id}: {}", error.chain()));
        }
    }
}

/// The one permanent difference: ids contain their node.
#[tokio::test(flavor = "multi_thread")]
async fn what_we_make_is_what_it_made_with_a_mark_in_its_id_but_for_what_is_listed() {
    let mark = NodeMark::of(&node());
    let marked = |id: &str| {
        let end = id.find(['@', '/']).unwrap_or(id.len());
        format!("{}{}{}", &id[..end], mark.as_str(), &id[end..])
    };
    let plain = |text: String| text.replace(mark.as_str(), "");
    let listed: Vec<_> = OF_DATASETS.iter().collect();
    let (mut unlisted, mut met) = (Vec::new(), BTreeSet::new());
    for (kind, holds) in KINDS {
        let theirs = MemoryPool::captured(&captured(kind, "zfs.txt")).unwrap();
        let driver = driver(kind, holds, theirs.roots());
        for mut said in said(kind) {
            for id in [
                "/source_volume_id",
                "/volume_id",
                "/volume_content_source/snapshot/snapshot_id",
                "/volume_content_source/volume/volume_id",
            ] {
                if let Some(id) = said.request.pointer_mut(id) {
                    *id = marked(id.as_str().unwrap()).into();
                }
            }
            let answer = plain(must(&driver, &said).await.to_string());
            let answer: Value = serde_json::from_str(&answer).unwrap();
            assert_eq!(answer, said.answered(), "{kind}");
        }
        let ours = of_pool(&driver.backend().state().pool).into_iter();
        let ours = ours.map(|((object, name), value)| ((plain(object), name), plain(value)));
        let ours: Facts = ours.collect();
        unlisted.extend(compare(&of_pool(&theirs), &ours, &listed, &mut met));
    }
    assert!(unlisted.is_empty(), "in no list: {unlisted:#?}");
    all_are_listed(&listed, &met);
}
