//! A dataset that others made becomes a volume, from every state that an interrupted adoption leaves.

use std::collections::BTreeSet;

use driver_core::{
    AdoptVolume, Adopter as _, AdoptionState, Claim, DeleteVolume, Driver as _, Error,
    Exports as _, FindVolume, Kind, Lister as _, MadeFor, ObjectName, PageRequest, SnapshotFilter,
    Snapshots as _, Volume,
};
use driver_zfs::name::{DatasetName, SnapshotRef};
use driver_zfs::observed::VolumeKind;
use driver_zfs::property::{Property, PropertyName};
use driver_zfs::testing::InMemory as _;
use driver_zfs::testing::{HostState, MemoryHost};

use crate::orphans::{call, late, on_a_host, orphans};
use crate::short::{KINDS, cluster};
use crate::world::*;

/// A host with a dataset of others where a volume would be, with content and a snapshot.
fn host(kind: VolumeKind, more: &[Property]) -> HostState {
    let mut state = MemoryHost::new().state().clone();
    let mut properties = more.to_vec();
    if kind == VolumeKind::Zvol {
        properties.push(set(PropertyName::VOLSIZE, &SIZE.to_string()));
    }
    state.pool.insert(&dataset(0), kind, &properties, None);
    state.pool.write(&dataset(0));
    let snapshot = SnapshotRef::parse(&format!("{}@nightly", dataset(0))).unwrap();
    state.pool.insert_snapshot(&snapshot, &[]);
    state
}

fn request(size: Option<u64>) -> AdoptVolume {
    AdoptVolume {
        source: dataset(0).to_string(),
        size,
        made_for: MadeFor {
            claim: Claim::parse("shop/data"),
            persistent_volume: ObjectName::parse("data-of-then"),
        },
    }
}

/// So large as the other tests make volumes; a zvol has its size.
fn size(kind: VolumeKind) -> Option<u64> {
    (kind == VolumeKind::Filesystem).then_some(SIZE.unsigned_abs())
}

async fn adopt(driver: &MemoryDriver, kind: VolumeKind) -> Result<Volume, Error> {
    driver.adopt_volume(&call(), &request(size(kind))).await
}

async fn listed(driver: &MemoryDriver) -> usize {
    let page = PageRequest::default();
    let all = driver.list_volumes(&call(), &page).await;
    all.unwrap().entries.len()
}

/// All that was there is there, and nothing of it is said to be ours but what an adoption sets.
fn assert_untouched(begin: &HostState, now: &HostState) {
    let (begin, now) = (begin.pool.things(), now.pool.things());
    assert_eq!(
        begin.keys().collect::<Vec<_>>(),
        now.keys().collect::<Vec<_>>()
    );
    for (object, was) in &begin {
        let is = &now[object];
        assert_eq!((was.guid, was.content), (is.guid, is.content), "{object}");
        for (name, value) in &was.own {
            assert_eq!(is.own.get(name), Some(value), "{object}: {name}");
        }
        if *object != dataset(0).into() {
            assert_eq!(was.own, is.own, "{object}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_adopted_dataset_is_a_volume_like_any_other() {
    for kind in KINDS {
        let begin = host(kind, &[]);
        let driver = driver(kind, false, begin.clone());
        let made = adopt(&driver, kind).await.unwrap();
        assert_eq!(made.id, volume(0));
        assert_eq!(made.capacity, Some(SIZE.unsigned_abs()), "{kind}");
        assert_eq!(made.made_for, request(None).made_for);
        assert_untouched(&begin, &driver.backend().state());
        assert_eq!(
            driver.get_volume(&call(), &volume(0)).await.unwrap(),
            made,
            "{kind}"
        );
        assert_eq!(listed(&driver).await, 1);
        assert!(driver.is_exported(&call(), &volume(0)).await.unwrap());
        run(&driver, &Verb::Expand(0, 2)).await.unwrap();
        run(&driver, &Verb::Publish(0, 0)).await.unwrap();
        run(&driver, &Verb::Unpublish(0, None)).await.unwrap();
        let taken = Verb::Snapshot {
            id: 0,
            name: 0,
            detached: false,
        };
        run(&driver, &taken).await.unwrap();
        let (filter, page) = (SnapshotFilter::default(), PageRequest::default());
        let snapshots = driver.list_snapshots(&call(), &filter, &page).await;
        let snapshots = snapshots.unwrap().entries;
        assert_eq!(snapshots.len(), 1, "the snapshot of then is not listed");
        assert_eq!(snapshots[0].id, snapshot_id(0, 0, false));
        let clone = Verb::Create {
            id: 1,
            source: From::Snapshot(0, 0),
            copy: false,
        };
        run(&driver, &clone).await.unwrap();
        run(&driver, &Verb::Delete(1)).await.unwrap();
        let gone = Verb::DeleteSnapshot {
            id: 0,
            name: 0,
            detached: false,
        };
        run(&driver, &gone).await.unwrap();
        run(&driver, &Verb::Delete(0)).await.unwrap();
        assert_eq!(listed(&driver).await, 0);
        let end = driver.backend().state().pool.guid(&dataset(0).into());
        assert_eq!(end, None);
    }
}

/// Until it is a volume no verb takes it for one, and above all no orphan is listed, which might be removed.
async fn assert_no_volume(driver: &MemoryDriver, what: &str) {
    assert_eq!(listed(driver).await, 0, "{what}");
    assert_eq!(orphans(driver, late()).await, [], "{what}");
    let found = driver
        .find_volume(&call(), FindVolume::new(&volume(0)))
        .await;
    assert_eq!(found.unwrap_err().kind(), Kind::NotFound, "{what}");
    let deleted = driver
        .delete_volume(&call(), DeleteVolume::new(&volume(0)))
        .await;
    assert_eq!(deleted.unwrap_err().kind(), Kind::Busy, "{what}");
    let created = Verb::Create {
        id: 0,
        source: From::Nothing,
        copy: false,
    };
    let created = run(driver, &created).await;
    assert_eq!(created.unwrap_err().kind(), Kind::Conflict, "{what}");
}

#[tokio::test(start_paused = true)]
async fn an_adoption_that_is_cut_anywhere_goes_on_and_leaves_nothing_that_is_removed() {
    let mut tried = BTreeSet::new();
    for (kind, coy) in KINDS
        .into_iter()
        .flat_map(|kind| [(kind, false), (kind, true)])
    {
        let begin = host(kind, &[]);
        let whole = driver(kind, coy, begin.clone());
        adopt(&whole, kind).await.unwrap();
        let end = whole.backend().state().clone();
        adopt(&whole, kind).await.unwrap();
        assert_eq!(shape(&whole.backend().state()), shape(&end), "again");
        for at in begin.steps..end.steps {
            for goes_on in [false, true] {
                let what = format!("{kind}, coy: {coy}, cut after {at}, goes on: {goes_on}");
                let cut = driver(kind, coy, begin.clone());
                cut.backend().state().cut_after = Some(at);
                cut.backend().state().goes_on = goes_on;
                let lost = adopt(&cut, kind).await.unwrap_err();
                assert_eq!(lost.kind(), Kind::Unreachable, "{what}: {}", lost.chain());
                let mut state = cut.backend().state().clone();
                state.cut_after = None;
                assert_untouched(&begin, &state);
                let object = dataset(0).into();
                let is_volume = !state.pool.has(&object, &PropertyName::CONTEXT, None);
                if !is_volume && !goes_on {
                    let seen = driver(kind, coy, state.clone());
                    assert_no_volume(&seen, &what).await;
                    let seen = seen.backend().state().pool.shape();
                    assert_eq!(seen, state.pool.shape(), "{what}");
                }
                tried.insert(is_volume);
                let again = driver(kind, coy, state);
                let orphans = orphans(&again, late()).await;
                assert_eq!(orphans, [], "{what}");
                adopt(&again, kind).await.unwrap();
                again.backend().state().finish();
                assert_eq!(shape(&again.backend().state()), shape(&end), "{what}");
            }
        }
    }
    assert_eq!(tried.len(), 2, "cut before it is a volume, and after");
}

#[test]
fn a_plan_says_what_is_done_and_does_nothing() {
    for kind in KINDS {
        on_a_host(kind, host(kind, &[]), async |driver| {
            let before = driver.backend().state().clone();
            let request = request(size(kind));
            let plan = driver.plan_adoption(&call(), &request).await.unwrap();
            let after = shape(&driver.backend().state());
            assert_eq!(after, shape(&before), "{plan:?}");
            assert_eq!((plan.id, plan.state), (volume(0), AdoptionState::Open));
            let sized = plan
                .steps
                .contains(&format!("set refquota={}", SIZE.unsigned_abs()));
            assert_eq!(sized, kind == VolumeKind::Filesystem, "{:?}", plan.steps);
            let exported = plan.steps.contains(&"change the export".to_owned());
            assert!(exported, "{:?}", plan.steps);
            assert!(
                plan.remarks[0].contains("1 snapshots stay"),
                "{:?}",
                plan.remarks
            );
            adopt(driver, kind).await.unwrap();
            let plan = driver.plan_adoption(&call(), &request).await.unwrap();
            assert_eq!((plan.state, plan.steps.len()), (AdoptionState::Done, 0));
        });
    }
}

async fn refusal(driver: &MemoryDriver, request: &AdoptVolume) -> (Kind, String) {
    let before = driver.backend().state().pool.shape();
    let planned = driver.plan_adoption(&call(), request).await;
    let error = driver.adopt_volume(&call(), request).await.unwrap_err();
    if let Err(planned) = planned {
        assert_eq!(planned.chain(), error.chain());
    }
    assert_eq!(driver.backend().state().pool.shape(), before);
    (error.kind(), error.chain())
}

fn of(source: &str) -> AdoptVolume {
    AdoptVolume {
        source: source.to_owned(),
        ..request(None)
    }
}

#[test]
fn what_can_be_no_volume_is_refused_and_it_is_said_what_to_do() {
    let kind = VolumeKind::Filesystem;
    on_a_host(kind, host(kind, &[]), async |driver| {
        {
            let pool = &mut driver.backend().state().pool;
            let mut insert = |name: &str, kind, properties: &[Property]| {
                let name = DatasetName::parse(name).unwrap();
                pool.insert(&name, kind, properties, None);
            };
            insert("tank/csi/v/family", kind, &[]);
            insert("tank/csi/v/family/child", kind, &[]);
            insert("tank/csi/v/a.b", kind, &[]);
            insert("tank/csi/v/disk", VolumeKind::Zvol, &[]);
            insert("tank/other", kind, &[]);
            let partial = [
                set(PropertyName::MANAGED, "true"),
                set(PropertyName::VOLUME_NAME, "partial"),
            ];
            insert("tank/csi/v/partial", kind, &partial);
            let theirs = [set(PropertyName::INSTANCE, "another")];
            insert("tank/csi/v/theirs", kind, &theirs);
            let origin = SnapshotRef::parse("tank/csi/v/family@s").unwrap();
            pool.insert_snapshot(&origin, &[]);
            let clone = DatasetName::parse("tank/csi/v/clone").unwrap();
            pool.insert(&clone, kind, &[], Some(origin));
        }
        for (source, expected, words) in [
            ("tank/csi/v/none", Kind::NotFound, "no such dataset"),
            (
                "tank/csi/v/family",
                Kind::Conflict,
                "tank/csi/v/family/child",
            ),
            ("tank/csi/v/family/child", Kind::Invalid, "not deeper"),
            (
                "tank/csi/v/a.b",
                Kind::Invalid,
                "no volume can be called `a.b`",
            ),
            ("tank/csi/v/disk", Kind::Invalid, "it is a zvol"),
            (
                "tank/other",
                Kind::Invalid,
                "`zfs rename tank/other tank/csi/v/other`",
            ),
            ("dozer/x", Kind::Invalid, "another pool"),
            (
                "tank/csi/v/partial",
                Kind::Conflict,
                "`omnibus-csi orphans`",
            ),
            ("tank/csi/v/theirs", Kind::Conflict, "instance_id"),
            ("tank/csi/v/clone", Kind::Conflict, "`zfs promote`"),
            ("tank//x", Kind::Invalid, "`zfs list`"),
            ("tank/csi/v/v0", Kind::Invalid, "say by --size"),
        ] {
            let (kind, said) = refusal(driver, &of(source)).await;
            assert_eq!(kind, expected, "{source}: {said}");
            assert!(said.contains(words), "{source}: {said}");
        }
        let small = AdoptVolume {
            size: Some(1 << 10),
            ..of("tank/csi/v/v0")
        };
        let (expected, said) = refusal(driver, &small).await;
        assert_eq!(expected, Kind::OutOfRange, "{said}");
        run(driver, &verb_of(1)).await.unwrap();
        let (expected, said) = refusal(driver, &of(dataset(1).as_str())).await;
        assert_eq!(expected, Kind::Conflict, "{said}");
        assert!(said.contains("the volume `v1` already"), "{said}");
        let plan = driver
            .plan_adoption(&call(), &of(dataset(1).as_str()))
            .await;
        assert_eq!(plan.unwrap().state, AdoptionState::Volume);
    });
}

fn verb_of(id: u8) -> Verb {
    Verb::Create {
        id,
        source: From::Nothing,
        copy: false,
    }
}

/// The size, the claim: what the storage says already need not be said again.
#[tokio::test(start_paused = true)]
async fn what_another_driver_records_is_read() {
    let kind = VolumeKind::Filesystem;
    let named = |name: &str, value: &str| set(PropertyName::parse(name).unwrap(), value);
    let bare = AdoptVolume {
        made_for: MadeFor::default(),
        ..request(None)
    };
    let tns = [
        named("tns-csi:managed_by", "tns-csi"),
        named("tns-csi:capacity_bytes", "268435456"),
        named("tns-csi:pvc_namespace", "web"),
        named("tns-csi:pvc_name", "logs"),
    ];
    let driver_of = |more: &[Property]| driver(kind, false, host(kind, more));
    let driver = driver_of(&tns);
    let made = driver.adopt_volume(&call(), &bare).await.unwrap();
    assert_eq!(made.capacity, Some(268_435_456));
    assert_eq!(made.made_for.claim, Claim::parse("web/logs"));
    // The operator knows better, and what was recorded then stays.
    let known = driver.adopt_volume(&call(), &request(None)).await.unwrap();
    assert_eq!(known.made_for, request(None).made_for);
    let again = driver.adopt_volume(&call(), &bare).await.unwrap();
    assert_eq!(again.made_for, request(None).made_for);

    let driver = driver_of(&[set(PropertyName::QUOTA, "134217728")]);
    let plan = driver.plan_adoption(&call(), &bare).await.unwrap();
    assert!(plan.remarks[0].contains("zfs set quota=none"), "{plan:?}");
    let made = driver.adopt_volume(&call(), &bare).await.unwrap();
    assert_eq!(made.capacity, Some(134_217_728));

    let driver = driver_of(&[set(PropertyName::REFQUOTA, "134217728")]);
    let made = driver.adopt_volume(&call(), &bare).await.unwrap();
    assert_eq!(made.capacity, Some(134_217_728));
    let other = AdoptVolume {
        size: Some(1 << 30),
        ..bare
    };
    let error = driver.adopt_volume(&call(), &other).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid, "{}", error.chain());
}

/// The mark names the dataset: a copy of it makes nothing else adopted.
#[tokio::test(start_paused = true)]
async fn a_mark_that_came_with_a_copy_counts_for_nothing() {
    let kind = VolumeKind::Zvol;
    let mark = set(PropertyName::ADOPTED, "tank/csi/v/another");
    let context = set(
        PropertyName::CONTEXT,
        r#"{"node_attach_driver":"nfs","server":"a","share":"/b"}"#,
    );
    let driver = driver(kind, false, host(kind, &[mark, context]));
    let error = adopt(&driver, kind).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Conflict, "{}", error.chain());
}

/// Until it is a volume, whose pods use it, and whatever an interrupted adoption has made.
#[tokio::test(start_paused = true)]
async fn what_its_host_uses_in_another_way_is_refused_until_that_ends() {
    let others = || vec!["the mount at /mnt".to_owned()];
    for kind in KINDS {
        let mut begin = host(kind, &[]);
        begin.targets.unseen = vec!["the shares of samba".to_owned()];
        let whole = driver(kind, false, begin.clone());
        let request = request(size(kind));
        let plan = whole.plan_adoption(&call(), &request).await.unwrap();
        let is_noted = |note: &String| note.contains("the shares of samba");
        assert!(plan.remarks.iter().any(is_noted), "{plan:?}");
        adopt(&whole, kind).await.unwrap();
        let end = whole.backend().state().clone();
        for at in begin.steps..end.steps {
            let cut = driver(kind, false, begin.clone());
            cut.backend().state().cut_after = Some(at);
            adopt(&cut, kind).await.unwrap_err();
            let mut state = cut.backend().state().clone();
            state.cut_after = None;
            state.targets.others = others();
            let is_volume = !state
                .pool
                .has(&dataset(0).into(), &PropertyName::CONTEXT, None);
            let again = driver(kind, false, state);
            if !is_volume {
                let (expected, said) = refusal(&again, &request).await;
                assert_eq!(expected, Kind::Busy, "{said}");
                assert!(said.contains("the mount at /mnt"), "{said}");
                again.backend().state().targets.others.clear();
            }
            adopt(&again, kind).await.unwrap();
            again.backend().state().targets.others.clear();
            let now = shape(&again.backend().state());
            assert_eq!(now, shape(&end), "{kind}, cut after {at}");
        }
        whole.backend().state().targets.others = others();
        let plan = whole.plan_adoption(&call(), &request).await.unwrap();
        assert_eq!(plan.state, AdoptionState::Done);
    }
}

/// Two clusters share a pool: the marks of the first keep the second away.
#[tokio::test(start_paused = true)]
async fn what_one_cluster_adopted_another_cannot() {
    let kind = VolumeKind::Zvol;
    let first = cluster("one", kind, host(kind, &[]));
    adopt(&first, kind).await.unwrap();
    let state = first.backend().state().clone();
    let error = adopt(&cluster("two", kind, state), kind).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Conflict, "{}", error.chain());
}
