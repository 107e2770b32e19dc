//! Volumes of classes that choose a child of the parent of volumes: each call finds them there, and nowhere else.

use std::collections::BTreeSet;

use csi_types::{AccessMode, Network, NodeIdentity};
use driver_core::{
    AdoptVolume, Adopter as _, CapacityQuery, CapacityReporter as _, CreateGroup, CreateSnapshot,
    CreateVolume, DeleteSnapshot, DeleteVolume, Driver as _, Error, ExpandVolume, Expander as _,
    Exports as _, FenceNetworks, Fencer as _, FindVolume, Found, GetSnapshot, GroupMembers,
    Groups as _, Health as _, HealthQuery, Kind, Lister as _, MadeFor, Modifier as _, ModifyVolume,
    PageRequest, Parameters, PublishVolume, Publisher as _, Secrets, SizeRange, Snapshot,
    SnapshotFilter, SnapshotId, SnapshotName, Snapshots as _, Source, UnpublishVolume,
    UsageReporter as _, Volume, VolumeId, VolumeName,
};
use driver_zfs::ZfsDriver;
use driver_zfs::name::{DatasetName, Object};
use driver_zfs::observed::VolumeKind;
use driver_zfs::testing::InMemory as _;
use driver_zfs::testing::{HostState, MemoryExport, MemoryHost, Thing, settings};

use crate::modified::{allowing, is};
use crate::orphans::{call, late, orphans, remove};
use crate::short::KINDS;
use crate::world::*;

const LISTED: &str = "  datasetEnableQuotas: true\n  datasetChildren: [fast, bulk]\n  \
                      volumeParameters: [datasetChild, compression]\n";
const ROOT: &str = "tank/csi/v";

fn name(text: &str) -> DatasetName {
    DatasetName::parse(text).unwrap()
}

fn id(text: &str) -> VolumeId {
    VolumeId::parse(text).unwrap()
}

fn snapshot(text: &str) -> SnapshotId {
    SnapshotId::parse(text).unwrap()
}

fn class(child: Option<&str>, copy: bool) -> Parameters {
    let mut all = parameters(&[
        ("detachedVolumesFromVolumes", copy),
        ("detachedVolumesFromSnapshots", copy),
    ])
    .raw()
    .clone();
    all.extend(child.map(|child| ("datasetChild".to_owned(), child.to_owned())));
    Parameters::new(all)
}

/// The request for a volume of this name, as the class and the driver name it.
fn wanted(
    driver: &MemoryDriver,
    text: &str,
    child: Option<&str>,
    source: Option<Source>,
    copy: bool,
) -> CreateVolume {
    let name = VolumeName::parse(text).unwrap();
    let parameters = class(child, copy);
    CreateVolume {
        id: driver.name_volume(&name, &parameters).unwrap(),
        name,
        parameters,
        source,
        ..request(0, &From::Nothing, false)
    }
}

async fn make(driver: &MemoryDriver, text: &str, child: Option<&str>) -> Result<Volume, Error> {
    let request = wanted(driver, text, child, None, false);
    driver.create_volume(&call(), &request).await
}

async fn take(
    driver: &MemoryDriver,
    source: &str,
    text: &str,
    detached: bool,
) -> Result<Snapshot, Error> {
    let request = CreateSnapshot {
        name: SnapshotName::parse(text).unwrap(),
        source: id(source),
        parameters: parameters(&[("detachedSnapshots", detached)]),
        secrets: Secrets::default(),
    };
    driver.create_snapshot(&call(), &request).await
}

async fn delete(driver: &MemoryDriver, text: &str) -> Result<(), Error> {
    let id = id(text);
    driver.delete_volume(&call(), DeleteVolume::new(&id)).await
}

/// Deletes a snapshot.
async fn forget(driver: &MemoryDriver, id: &SnapshotId) -> Result<(), Error> {
    driver
        .delete_snapshot(&call(), DeleteSnapshot::new(id))
        .await
}

async fn listed(driver: &MemoryDriver) -> BTreeSet<String> {
    let mut page = PageRequest {
        max: Some(1),
        after: None,
    };
    let mut all = BTreeSet::new();
    loop {
        let found = driver.list_volumes(&call(), &page).await.unwrap();
        let ids = found.entries.iter().map(|volume| volume.id.to_string());
        for id in ids {
            assert!(all.insert(id.clone()), "{id} twice");
        }
        if found.next.is_none() {
            return all;
        }
        page.after = found.next;
    }
}

async fn listed_snapshots(driver: &MemoryDriver, source: Option<&str>) -> BTreeSet<String> {
    let filter = SnapshotFilter {
        source: source.map(id),
        ..SnapshotFilter::default()
    };
    let page = PageRequest::default();
    let found = driver.list_snapshots(&call(), &filter, &page).await;
    let found = found.unwrap().entries;
    found.iter().map(|found| found.id.to_string()).collect()
}

fn texts(all: &[&str]) -> BTreeSet<String> {
    all.iter().map(|text| (*text).to_owned()).collect()
}

fn thing(driver: &MemoryDriver, text: &str) -> Option<Thing> {
    let things = driver.backend().state().pool.things();
    things.get(&Object::from(name(text))).cloned()
}

fn state(driver: &MemoryDriver) -> HostState {
    driver.backend().state().clone()
}

fn over(kind: VolumeKind, zfs: &str, state: HostState) -> MemoryDriver {
    let settings = settings(kind, zfs).unwrap();
    ZfsDriver::new(
        settings,
        MemoryHost::from_state(state),
        MemoryExport::new(kind),
    )
}

/// A cluster that shares the parent with others.
fn of_cluster(instance: &str, kind: VolumeKind, state: HostState) -> MemoryDriver {
    let mut settings = settings(kind, LISTED).unwrap();
    settings.policy.instance = Some(instance.to_owned());
    ZfsDriver::new(
        settings,
        MemoryHost::from_state(state),
        MemoryExport::new(kind),
    )
}

#[tokio::test(start_paused = true)]
async fn a_volume_is_in_the_child_of_its_class_and_each_call_finds_it_by_its_id() {
    for kind in KINDS {
        let driver = allowing(kind, LISTED);
        for (child, expected) in [
            (None, "v0"),
            (Some("fast"), "fast.v1"),
            (Some("bulk"), "bulk.v2"),
        ] {
            let text = expected.rsplit('.').next().unwrap();
            for _ in 0..2 {
                let made = make(&driver, text, child).await.unwrap();
                assert_eq!(made.id, id(expected), "{kind}");
            }
        }
        assert!(thing(&driver, "tank/csi/v/fast/v1").is_some(), "{kind}");
        assert_eq!(listed(&driver).await, texts(&["bulk.v2", "fast.v1", "v0"]));
        assert!(driver.examine(&call()).await.is_empty(), "{kind}");
        let fast = id("fast.v1");
        let found = driver.get_volume(&call(), &fast).await.unwrap();
        assert_eq!(found.id, fast);
        let whole = driver.find_volume(&call(), FindVolume::new(&fast)).await;
        assert!(matches!(whole, Ok(Found::Whole)), "{kind}");
        let grown = SizeRange::new(2 * SIZE, 0).unwrap();
        let grown = ExpandVolume::new(&fast, grown);
        let grown = driver.expand_volume(&call(), grown).await.unwrap();
        assert_eq!(grown.capacity, 2 * SIZE.unsigned_abs());
        assert!(driver.is_exported(&call(), &fast).await.unwrap());
        let used = driver.used(&call(), &[fast.clone(), id("bulk.v9")]).await;
        let used: Vec<_> = used.unwrap().iter().map(Option::is_some).collect();
        assert_eq!(used, [true, false]);
        let ids = [fast.clone(), id("v0"), id("fast.v0")];
        let health = driver.conditions(&call(), HealthQuery::whole(&ids)).await;
        let health: Vec<_> = health.unwrap().iter().map(Option::is_some).collect();
        assert_eq!(health, [true, true, false]);
        let parameters = Parameters::new(
            [("compression".to_owned(), "lz4".to_owned())]
                .into_iter()
                .collect(),
        );
        let change = ModifyVolume::new(&fast, &parameters);
        driver.modify_volume(&call(), change).await.unwrap();
        let own = thing(&driver, "tank/csi/v/fast/v1").unwrap().own;
        let set = own.iter().find(|(name, _)| name.as_str() == "compression");
        assert_eq!(set.unwrap().1, "lz4", "{kind}");
        for _ in 0..2 {
            delete(&driver, "fast.v1").await.unwrap();
        }
        assert_eq!(listed(&driver).await, texts(&["bulk.v2", "v0"]));
        assert!(
            thing(&driver, "tank/csi/v/fast").is_some(),
            "the child stays"
        );
        let gone = driver.get_volume(&call(), &fast).await.unwrap_err();
        assert_eq!(gone.kind(), Kind::NotFound, "{}", gone.chain());
    }
}

#[tokio::test(start_paused = true)]
async fn its_snapshots_are_found_listed_and_deleted_by_their_ids() {
    for kind in KINDS {
        let driver = allowing(kind, LISTED);
        make(&driver, "v0", None).await.unwrap();
        make(&driver, "v1", Some("fast")).await.unwrap();
        for (source, text, detached, expected) in [
            ("v0", "s0", false, "v0@s0"),
            ("fast.v1", "s1", false, "fast.v1@s1"),
            ("fast.v1", "s2", true, "fast.v1/s2"),
        ] {
            for _ in 0..2 {
                let taken = take(&driver, source, text, detached).await.unwrap();
                assert_eq!(taken.id, snapshot(expected), "{kind}");
                assert_eq!(taken.source, id(source));
            }
            let id = snapshot(expected);
            let found = driver.get_snapshot(&call(), GetSnapshot::new(&id)).await;
            assert_eq!(found.unwrap().id, id, "{kind}");
        }
        assert!(thing(&driver, "tank/csi/s/fast.v1/s2").is_some(), "{kind}");
        let all = texts(&["fast.v1/s2", "fast.v1@s1", "v0@s0"]);
        assert_eq!(listed_snapshots(&driver, None).await, all);
        let own = texts(&["fast.v1/s2", "fast.v1@s1"]);
        assert_eq!(listed_snapshots(&driver, Some("fast.v1")).await, own);
        // A name is of one snapshot, wherever its volume is.
        for (source, text) in [("v0", "s1"), ("fast.v1", "s0"), ("v0", "s2")] {
            let error = take(&driver, source, text, false).await.unwrap_err();
            is(&error, Kind::Conflict, "another snapshot has this name");
        }
        for text in ["fast.v1@s1", "fast.v1/s2"] {
            let id = snapshot(text);
            for _ in 0..2 {
                forget(&driver, &id).await.unwrap();
            }
        }
        assert_eq!(listed_snapshots(&driver, None).await, texts(&["v0@s0"]));
        assert!(thing(&driver, "tank/csi/s/fast.v1").is_none(), "{kind}");
    }
}

#[tokio::test(start_paused = true)]
async fn clones_and_copies_go_from_any_parent_to_any_other_and_the_first_volume_makes_it() {
    for kind in KINDS {
        for copy in [false, true] {
            for (from, to) in [
                (None, Some("fast")),
                (Some("fast"), Some("bulk")),
                (Some("fast"), None),
            ] {
                for of_snapshot in [false, true] {
                    let driver = allowing(kind, LISTED);
                    let what = format!("{kind} copy: {copy} {from:?} {to:?} {of_snapshot}");
                    let source = make(&driver, "v0", from).await.unwrap().id;
                    let source = if of_snapshot {
                        let taken = take(&driver, source.as_str(), "s0", false).await;
                        Source::Snapshot(taken.unwrap().id)
                    } else {
                        Source::Volume(source)
                    };
                    let request = wanted(&driver, "v1", to, Some(source.clone()), copy);
                    for _ in 0..2 {
                        let made = driver.create_volume(&call(), &request).await;
                        let made = made.unwrap_or_else(|error| panic!("{what}: {}", error.chain()));
                        assert_eq!(made.source, Some(source.clone()), "{what}");
                    }
                    let parent = to.map_or(ROOT.to_owned(), |child| format!("{ROOT}/{child}"));
                    assert!(thing(&driver, &parent).is_some(), "{what}");
                    if let Source::Snapshot(id) = &source {
                        let gone = forget(&driver, id).await;
                        gone.unwrap_or_else(|error| panic!("{what}: {}", error.chain()));
                    }
                    // The clone takes over what it stands on.
                    let source = wanted(&driver, "v0", from, None, false).id;
                    let gone = delete(&driver, source.as_str()).await;
                    gone.unwrap_or_else(|error| panic!("{what}: {}", error.chain()));
                    assert_eq!(
                        listed(&driver).await,
                        texts(&[request.id.as_str()]),
                        "{what}"
                    );
                    let gone = delete(&driver, request.id.as_str()).await;
                    gone.unwrap_or_else(|error| panic!("{what}: {}", error.chain()));
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_volume_of_one_name_is_in_one_place_alone() {
    for kind in KINDS {
        for first in [None, Some("fast")] {
            let driver = of_cluster("one", kind, state(&allowing(kind, LISTED)));
            make(&driver, "v0", first).await.unwrap();
            let before = state(&driver);
            for other in [None, Some("fast"), Some("bulk")] {
                let made = make(&driver, "v0", other).await;
                if other == first {
                    made.unwrap();
                } else {
                    is(
                        &made.unwrap_err(),
                        Kind::Conflict,
                        "is the volume of this name",
                    );
                }
            }
            assert_eq!(state(&driver).pool, before.pool, "{kind} {first:?}");
            // Another cluster knows nothing of it.
            let others = of_cluster("two", kind, before);
            make(&others, "v0", Some("bulk")).await.unwrap();
            let own = make(&driver, "v0", first).await.unwrap().id;
            delete(&driver, own.as_str()).await.unwrap();
            make(&driver, "v0", Some("bulk")).await.unwrap();
            assert_eq!(listed(&driver).await, texts(&["bulk.v0"]));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_interrupted_creation_ends_in_its_place_or_is_an_orphan_there() {
    for kind in KINDS {
        let mut half = 0;
        for parts in 1.. {
            let driver = allowing(kind, LISTED);
            make(&driver, "v9", Some("fast")).await.unwrap();
            let steps = driver.backend().state().steps;
            driver.backend().state().cut_after = Some(steps + parts);
            let made = make(&driver, "v0", Some("fast")).await;
            driver.backend().state().cut_after = None;
            if made.is_ok() {
                break;
            }
            let is_started = thing(&driver, "tank/csi/v/fast/v0").is_some();
            let elsewhere = make(&driver, "v0", Some("bulk")).await;
            if is_started {
                is(
                    &elsewhere.unwrap_err(),
                    Kind::Conflict,
                    "is the volume of this name",
                );
            } else {
                delete(&driver, elsewhere.unwrap().id.as_str())
                    .await
                    .unwrap();
            }
            let other = over(kind, LISTED, state(&driver));
            make(&driver, "v0", Some("fast")).await.unwrap();
            assert_eq!(listed(&driver).await, texts(&["fast.v0", "fast.v9"]));
            for orphan in orphans(&other, late()).await {
                half += 1;
                assert_eq!(orphan.object, "tank/csi/v/fast/v0");
                remove(&other, &orphan).await.unwrap();
            }
            assert_eq!(listed(&other).await.len(), {
                let things = other.backend().state().pool.things();
                let below = |object: &&Object| object.to_string().starts_with("tank/csi/v/fast/v");
                things.keys().filter(below).count()
            });
        }
        assert!(half > 0, "{kind}: no part of it was an orphan");
    }
}

#[tokio::test]
async fn what_is_not_listed_or_not_allowed_is_refused_before_anything_changes() {
    for kind in KINDS {
        let driver = allowing(kind, LISTED);
        make(&driver, "v0", Some("fast")).await.unwrap();
        let before = state(&driver).pool;
        let text = VolumeName::parse("v1").unwrap();
        for child in ["slow", "FAST", "fast/x", "", ".."] {
            let class = class(Some(child), false);
            let error = driver.name_volume(&text, &class).unwrap_err();
            is(&error, Kind::Invalid, "it can be fast, bulk");
            let request = CreateVolume {
                parameters: class.clone(),
                ..request(1, &From::Nothing, false)
            };
            let error = driver.create_volume(&call(), &request).await.unwrap_err();
            is(&error, Kind::Invalid, "it can be fast, bulk");
            let query = CapacityQuery {
                parameters: class,
                topology: None,
            };
            let error = driver.capacity(&call(), &query).await.unwrap_err();
            is(&error, Kind::Invalid, "it can be fast, bulk");
        }
        for allowed in ["", "  volumeParameters: [compression]\n"] {
            let zfs = format!("  datasetChildren: [fast]\n{allowed}");
            let closed = over(kind, &zfs, state(&driver));
            let error = closed.name_volume(&text, &class(Some("fast"), false));
            is(
                &error.unwrap_err(),
                Kind::Invalid,
                "may not set `datasetChild`",
            );
            assert_eq!(listed(&closed).await, texts(&["fast.v0"]));
        }
        let (of, parameters) = (id("fast.v0"), class(Some("bulk"), false).raw().clone());
        let child = parameters
            .into_iter()
            .filter(|(key, _)| key == "datasetChild");
        let parameters = Parameters::new(child.collect());
        let change = ModifyVolume::new(&of, &parameters);
        let error = driver.modify_volume(&call(), change).await.unwrap_err();
        is(&error, Kind::Invalid, "keeps its `datasetChild`");
        // Out of the list it is neither gone nor found.
        let without = over(kind, "", state(&driver));
        for error in [
            delete(&without, "fast.v0").await.unwrap_err(),
            without.get_volume(&call(), &of).await.unwrap_err(),
            forget(&without, &snapshot("fast.v0@s0")).await.unwrap_err(),
        ] {
            is(&error, Kind::Invalid, "zfs.datasetChildren");
        }
        assert_eq!(state(&driver).pool, before, "{kind}");
        assert_eq!(state(&without).pool, before, "{kind}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_not_listed_hides_the_health_of_no_other_volume() {
    for kind in KINDS {
        let driver = allowing(kind, LISTED);
        for (text, child) in [("v0", None), ("v1", Some("fast")), ("v2", None)] {
            make(&driver, text, child).await.unwrap();
        }
        let without = over(kind, "", state(&driver));
        let unlisted = id("fast.v1");
        let ids = [
            unlisted.clone(),
            id("v0"),
            unlisted.clone(),
            id("v9"),
            id("v2"),
            unlisted.clone(),
        ];
        for query in [HealthQuery::whole(&ids), HealthQuery::of_storage(&ids)] {
            let found = without.conditions(&call(), query).await.unwrap();
            let [a, v0, b, v9, v2, c] = found.as_slice() else {
                panic!("{kind}: {found:?}");
            };
            for found in [a, b, c] {
                let found: Vec<_> = found.as_ref().unwrap().iter().collect();
                let [condition] = found.as_slice() else {
                    panic!("{kind}: {found:?}");
                };
                assert_eq!(condition.reason().as_str(), "VolumeUnknown", "{kind}");
                let why = condition.message();
                assert!(why.contains("zfs.datasetChildren"), "{kind}: {why}");
            }
            for found in [v0, v2] {
                assert!(found.as_ref().unwrap().is_healthy(), "{kind}: {found:?}");
            }
            assert_eq!(*v9, None, "{kind}");
        }
        let alone = HealthQuery::of_one(&unlisted);
        let error = without.conditions(&call(), alone).await.unwrap_err();
        is(&error, Kind::Invalid, "zfs.datasetChildren");
    }
}

#[tokio::test]
async fn a_volume_with_the_name_of_a_child_holds_no_others_and_is_left_alone() {
    for kind in KINDS {
        let plain = allowing(kind, "");
        make(&plain, "fast", None).await.unwrap();
        let driver = over(kind, LISTED, state(&plain));
        let said = driver.examine(&call()).await;
        let [child] = said.as_slice() else {
            panic!("{kind}: {said:?}");
        };
        is(
            child,
            Kind::Invalid,
            "tank/csi/v/fast is a volume or a zvol",
        );
        let error = make(&driver, "v0", Some("fast")).await.unwrap_err();
        is(&error, Kind::Invalid, "is a volume or a zvol");
        for error in [
            make(&driver, "fast", None).await.unwrap_err(),
            delete(&driver, "fast").await.unwrap_err(),
            driver.get_volume(&call(), &id("fast")).await.unwrap_err(),
        ] {
            is(&error, Kind::Invalid, "holds volumes");
        }
        assert_eq!(state(&driver).pool, state(&plain).pool, "{kind}");
        // The name of a child is free in a child.
        make(&driver, "fast", Some("bulk")).await.unwrap();
        assert_eq!(listed(&driver).await, texts(&["bulk.fast"]));
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_in_a_child_that_does_not_exist_is_not_taken_for_deleted() {
    for kind in KINDS {
        let driver = allowing(kind, LISTED);
        make(&driver, "v0", None).await.unwrap();
        for missing in [true, false] {
            let found = driver
                .get_volume(&call(), &id("fast.v1"))
                .await
                .unwrap_err();
            let expected = if missing {
                Kind::Unreachable
            } else {
                Kind::NotFound
            };
            assert_eq!(found.kind(), expected, "{}", found.chain());
            let taken = snapshot("fast.v1@s0");
            let cut = forget(&driver, &taken).await;
            let gone = delete(&driver, "fast.v1").await;
            for outcome in [gone, cut] {
                match outcome {
                    Err(error) if missing => {
                        is(&error, Kind::Unreachable, "tank/csi/v/fast does not exist");
                    }
                    outcome => outcome.unwrap(),
                }
            }
            assert_eq!(listed(&driver).await, texts(&["v0"]));
            make(&driver, "v2", Some("fast")).await.unwrap();
            delete(&driver, "fast.v2").await.unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_group_has_volumes_of_several_children() {
    let driver = allowing(VolumeKind::Zvol, LISTED);
    let mut volumes = Vec::new();
    for (text, child) in [("v0", None), ("v1", Some("fast")), ("v2", Some("bulk"))] {
        volumes.push(make(&driver, text, child).await.unwrap().id);
    }
    let (text, parameters) = (SnapshotName::parse("g").unwrap(), Parameters::default());
    let request = CreateGroup::new(&text, &volumes, &parameters);
    let group = driver.create_group(&call(), request).await.unwrap();
    let ids: BTreeSet<_> = group
        .snapshots
        .iter()
        .map(|one| one.id.to_string())
        .collect();
    assert_eq!(ids, texts(&["bulk.v2@g", "fast.v1@g", "v0@g"]));
    let members: Vec<_> = group.snapshots.iter().map(|one| one.id.clone()).collect();
    let members = GroupMembers::new(&group.id, &members);
    let found = driver.get_group(&call(), members).await.unwrap();
    assert_eq!(found.snapshots.len(), 3);
    for _ in 0..2 {
        driver.delete_group(&call(), members).await.unwrap();
    }
    assert_eq!(listed_snapshots(&driver, None).await, BTreeSet::new());
}

#[tokio::test]
async fn the_space_of_a_class_is_that_of_its_child() {
    let driver = allowing(VolumeKind::Filesystem, LISTED);
    let left = async |child: Option<&str>| {
        let query = CapacityQuery {
            parameters: class(child, false),
            topology: None,
        };
        driver.capacity(&call(), &query).await.unwrap().available
    };
    let whole = left(None).await;
    assert_eq!(left(Some("fast")).await, whole, "it is not made yet");
    make(&driver, "v0", Some("fast")).await.unwrap();
    let child = name("tank/csi/v/fast");
    driver.backend().state().pool.left.insert(child, 7);
    assert_eq!((left(None).await, left(Some("fast")).await), (whole, 7));
}

#[tokio::test(start_paused = true)]
async fn a_dataset_in_a_child_is_adopted_and_a_child_is_not() {
    let driver = allowing(VolumeKind::Filesystem, LISTED);
    make(&driver, "v0", Some("fast")).await.unwrap();
    for text in [
        "tank/csi/v/fast/data",
        "tank/csi/v/slow",
        "tank/csi/v/slow/data",
    ] {
        let pool = &mut driver.backend().state().pool;
        pool.insert(&name(text), VolumeKind::Filesystem, &[], None);
    }
    let adopted = async |source: &str| {
        let request = AdoptVolume {
            source: source.to_owned(),
            size: Some(SIZE.unsigned_abs()),
            made_for: MadeFor::default(),
        };
        driver.adopt_volume(&call(), &request).await
    };
    let made = adopted("tank/csi/v/fast/data").await.unwrap();
    assert_eq!(made.id, id("fast.data"));
    assert_eq!(listed(&driver).await, texts(&["fast.data", "fast.v0"]));
    for (source, why) in [
        ("tank/csi/v/fast", "holds volumes"),
        ("tank/csi/v/slow/data", "not deeper"),
    ] {
        is(&adopted(source).await.unwrap_err(), Kind::Invalid, why);
    }
}

#[tokio::test(start_paused = true)]
async fn a_fence_takes_nodes_out_of_volumes_of_all_children() {
    let mut export = MemoryExport::new(VolumeKind::Zvol);
    export.nodes = true;
    let settings = settings(VolumeKind::Zvol, LISTED).unwrap();
    let driver = ZfsDriver::new(settings, MemoryHost::new(), export);
    let fast = make(&driver, "v0", Some("fast")).await.unwrap().id;
    let (capability, node) = (
        capability(AccessMode::SingleNodeWriter),
        NodeIdentity::of(node(1)),
    );
    let request = PublishVolume::new(&fast, &node, &capability, false);
    driver.publish_volume(&call(), request).await.unwrap();
    let inside = || {
        let state = driver.backend().state();
        let nodes = state.targets.inside.get("fast.v0");
        nodes.map_or(0, BTreeSet::len)
    };
    assert_eq!(inside(), 1);
    let networks: [Network; 1] = ["10.0.0.0/24".parse().unwrap()];
    let request = FenceNetworks {
        networks: &networks,
        addresses_of: &|_| vec!["10.0.0.1".parse().unwrap()],
    };
    driver.fence_networks(&call(), request).await.unwrap();
    assert_eq!(inside(), 0);
    let gone = UnpublishVolume::new(&fast, Some(&node));
    driver.unpublish_volume(&call(), gone).await.unwrap();
}
