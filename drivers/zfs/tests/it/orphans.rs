//! Leftovers of interrupted verbs that were never retried are listed and can be removed; an object
//! with an owner is neither.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use driver_core::{Call, Error, Kind, Maintenance as _, Orphan, OrphanKind, PageRequest};
use driver_zfs::name::{DatasetName, Object, SnapshotRef};
use driver_zfs::observed::VolumeKind;
use driver_zfs::property::PropertyName;
use driver_zfs::testing::InMemory as _;
use driver_zfs::testing::{HostState, MemoryHost, Thing};
use proptest::prelude::*;

use crate::world::*;

/// All objects of the pool in memory are older.
pub(crate) fn late() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_hours(500_000)
}

pub(crate) fn call() -> Call {
    Call::within(Duration::from_mins(10))
}

/// All orphans, in pages of two.
pub(crate) async fn orphans(driver: &MemoryDriver, before: SystemTime) -> Vec<Orphan> {
    let mut page = PageRequest {
        max: Some(2),
        after: None,
    };
    let mut all = Vec::new();
    loop {
        let found = driver.orphans(&call(), before, &page).await.unwrap();
        all.extend(found.entries);
        if found.next.is_none() {
            return all;
        }
        page.after = found.next;
    }
}

pub(crate) async fn remove(driver: &MemoryDriver, orphan: &Orphan) -> Result<(), Error> {
    driver.remove_orphan(&call(), late(), orphan).await
}

/// Runs on a separate host, with a paused clock.
pub(crate) fn on_a_host(kind: VolumeKind, state: HostState, work: impl AsyncFnOnce(&MemoryDriver)) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(work(&driver(kind, false, state)));
}

fn has(thing: &Thing, name: &PropertyName) -> bool {
    thing.own.contains_key(name)
}

/// Whether a volume or snapshot is complete, so that a caller may ask for it, or belongs to others.
fn is_owned(thing: &Thing) -> bool {
    let ours = [
        PropertyName::MANAGED,
        PropertyName::CONTAINER,
        PropertyName::SNAPSHOT_NAME,
    ];
    let whole = [PropertyName::CONTEXT, PropertyName::SUCCESS];
    whole.iter().any(|name| has(thing, name)) || !ours.iter().any(|name| has(thing, name))
}

fn is_helper(object: &Object, thing: &Thing) -> bool {
    let Object::Snapshot(name) = object else {
        return false;
    };
    let called = name.leaf.as_str().starts_with("volume-source-for-");
    called && !has(thing, &PropertyName::SNAPSHOT_NAME)
}

/// Fails if an object with an owner has changed.
fn assert_owned_stays(before: &HostState, after: &HostState, what: &str) {
    let now = after.pool.things();
    for (object, thing) in before.pool.things() {
        let container = has(&thing, &PropertyName::CONTAINER);
        let half = match &object {
            Object::Snapshot(snapshot) => {
                let of = before.pool.things();
                let of = &of[&Object::from(snapshot.dataset.clone())];
                is_helper(&object, &thing) || !is_owned(of) || thing.doomed
            }
            Object::Dataset(_) => container || !is_owned(&thing),
        };
        assert!(
            half || now.get(&object) == Some(&thing),
            "{what}: {object} was {thing:?} and is {:?}",
            now.get(&object)
        );
    }
    for (target, of) in &before.targets.targets {
        let things = before.pool.things();
        let volume = of.as_ref().and_then(|of| things.get(&of.clone().into()));
        if volume.is_some_and(is_owned) {
            assert_eq!(after.targets.targets.get(target), Some(of), "{what}");
        }
    }
}

/// Fails if an orphan is left.
fn assert_clean(state: &HostState, what: &str) {
    let things = state.pool.things();
    let inside = |name: &str| {
        let begins = |other: &Object| {
            let other = other.to_string();
            let rest = other.strip_prefix(name);
            rest.is_some_and(|rest| rest.starts_with(['/', '@']))
        };
        things.keys().any(begins)
    };
    // No export without a volume: an export is removed before its dataset.
    for target in state.targets.targets.keys() {
        let volume = DatasetName::parse(&format!("tank/csi/v/{target}")).unwrap();
        assert!(
            things.contains_key(&volume.into()),
            "{what}: target {target} is left"
        );
    }
    let origins: Vec<String> = state.pool.shape().into_values().collect();
    for (object, thing) in &things {
        let name = object.to_string();
        let held = || inside(&name) || object_is_used(state, object);
        let kept = match object {
            Object::Dataset(_) if has(thing, &PropertyName::CONTAINER) => held(),
            Object::Dataset(_) => is_owned(thing),
            Object::Snapshot(of) if is_helper(object, thing) => {
                // democratic-csi does not mark the owner of its detached snapshots.
                let of = &things[&Object::from(of.dataset.clone())];
                let nameless = !has(of, &PropertyName::PROVISIONER);
                nameless || thing.doomed || origins.iter().any(|shape| shape.contains(&name))
            }
            Object::Snapshot(_) => true,
        };
        assert!(kept, "{what}: {name} is left: {thing:?}");
    }
}

/// Whether it contains files.
fn object_is_used(state: &HostState, object: &Object) -> bool {
    match object {
        Object::Dataset(name) => state.pool.used(name) > Some(1 << 20),
        Object::Snapshot(_) => false,
    }
}

/// Changes of others to partial objects may prevent that they are removed, or recognised.
fn is_of_others(event: &Event) -> bool {
    matches!(
        event,
        Event::Foreign(_) | Event::Hold(..) | Event::Beside(_) | Event::Elsewhere(..)
    )
}

#[test]
fn every_prefix_of_every_plan_leaves_what_is_listed_and_removed_and_what_can_still_be_tried_again()
{
    let kinds = std::cell::RefCell::new(BTreeMap::new());
    let config = ProptestConfig {
        cases: 200,
        ..ProptestConfig::default()
    };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let cases = (
        any::<bool>(),
        prop::collection::vec(event(), 0..14),
        prop::collection::vec(verb(), 4),
    );
    let left = |(zvol, events, verbs): (bool, Vec<_>, Vec<_>)| {
        let kind = if zvol {
            VolumeKind::Zvol
        } else {
            VolumeKind::Filesystem
        };
        on_a_host(kind, MemoryHost::new().state().clone(), async |history| {
            for event in beginning().iter().chain(&events) {
                if !is_of_others(event) {
                    happen(history, kind, event).await;
                }
            }
            let begin = history.backend().state().clone();
            for verb in &verbs {
                for kind_of in left_by(kind, &begin, verb).await {
                    *kinds.borrow_mut().entry(kind_of).or_insert(0_usize) += 1;
                }
            }
        });
        Ok(())
    };
    // By chance a kind may be rare in these cases: then there are more.
    let is_rare = |kind: &OrphanKind| kinds.borrow().get(kind) < Some(&5);
    for _ in 0..40 {
        let outcome = runner.run(&cases, left);
        outcome.unwrap_or_else(|failure| panic!("{failure}"));
        if !OrphanKind::ALL.iter().any(is_rare) {
            break;
        }
    }
    let kinds = kinds.into_inner();
    for kind in OrphanKind::ALL {
        assert!(
            kinds.get(&kind) >= Some(&5),
            "{kind} hardly ever: {kinds:?}"
        );
    }
}

/// Interrupts a verb at each of its steps; returns the kinds of its leftovers.
async fn left_by(kind: VolumeKind, begin: &HostState, verb: &Verb) -> Vec<OrphanKind> {
    let whole = driver(kind, false, begin.clone());
    let expected = run(&whole, verb).await;
    let steps = whole.backend().state().steps;
    let mut kinds = Vec::new();
    for at in begin.steps..=steps {
        for goes_on in [false, true] {
            let what = format!("{verb:?} cut after step {at}, goes on: {goes_on}");
            let cut = driver(kind, false, begin.clone());
            if at < steps {
                cut.backend().state().cut_after = Some(at);
                cut.backend().state().goes_on = goes_on;
            }
            drop(run(&cut, verb).await);
            cut.backend().state().cut_after = None;
            cut.backend().state().finish();
            let left = cut.backend().state().clone();
            let swept = driver(kind, false, left.clone());
            for orphan in orphans(&swept, late()).await {
                kinds.push(orphan.kind);
                let removed = remove(&swept, &orphan).await;
                let why = removed.as_ref().err().map(Error::chain);
                assert!(removed.is_ok(), "{what}: {orphan:?}: {why:?}");
                // Again, by a caller that did not see the end.
                remove(&swept, &orphan).await.unwrap();
            }
            // The obstacle is gone.
            for orphan in orphans(&swept, late()).await {
                remove(&swept, &orphan).await.unwrap();
            }
            assert_eq!(orphans(&swept, late()).await, [], "{what}");
            let state = swept.backend().state().clone();
            assert_owned_stays(&left, &state, &what);
            assert_clean(&state, &what);
            let retried = run(&swept, verb).await;
            let why = retried.as_ref().err().map(Error::chain);
            assert!(expected.is_err() || retried.is_ok(), "{what}: {why:?}");
        }
    }
    kinds
}

fn create(id: u8, source: From, copy: bool) -> Verb {
    Verb::Create { id, source, copy }
}

/// A host on which a verb was interrupted after this many steps.
async fn cut(driver: &MemoryDriver, verb: &Verb, steps: usize) {
    let at = driver.backend().state().steps + steps;
    driver.backend().state().cut_after = Some(at);
    let result = run(driver, verb).await;
    assert_eq!(outcome(&result), Some(Kind::Unreachable));
    driver.backend().state().cut_after = None;
}

#[test]
fn what_is_younger_than_was_asked_for_is_no_orphan() {
    on_a_host(
        VolumeKind::Zvol,
        MemoryHost::new().state().clone(),
        async |driver| {
            cut(driver, &create(0, From::Nothing, false), 1).await;
            let [half] = &orphans(driver, late()).await[..] else {
                panic!("a half-made volume");
            };
            assert_eq!(half.kind, OrphanKind::HalfVolume);
            assert_eq!(half.object, dataset(0).as_str());
            // Created before that time, and not at it.
            assert_eq!(orphans(driver, half.created).await, []);
            let younger = driver.remove_orphan(&call(), half.created, half).await;
            assert_eq!(outcome(&younger), Some(Kind::Conflict));
            let later = half.created + Duration::from_secs(1);
            assert_eq!(orphans(driver, later).await, std::slice::from_ref(half));
        },
    );
}

#[test]
fn what_is_completed_while_it_is_being_removed_stays() {
    for kind in [VolumeKind::Filesystem, VolumeKind::Zvol] {
        on_a_host(kind, MemoryHost::new().state().clone(), async |driver| {
            let verb = create(0, From::Nothing, false);
            cut(driver, &verb, 1).await;
            let half = orphans(driver, late()).await.remove(0);
            // Its marks appear between the observation and the plan of the removal.
            driver.backend().before_next_plan(move |state| {
                let context = r#"{"node_attach_driver":"nfs","server":"192.0.2.1","share":"/x"}"#;
                let properties = vec![set(PropertyName::CONTEXT, context)];
                let object = dataset(0).into();
                let marked = driver_zfs::step::Step::Set { object, properties };
                state.pool.apply(&marked).unwrap();
            });
            let removed = remove(driver, &half).await;
            assert_eq!(outcome(&removed), Some(Kind::Conflict));
            let there = driver.backend().state().pool.guid(&dataset(0).into());
            assert!(there.is_some());
        });
    }
}

#[test]
fn another_one_of_the_same_name_is_not_what_was_listed() {
    on_a_host(
        VolumeKind::Zvol,
        MemoryHost::new().state().clone(),
        async |driver| {
            let verb = create(0, From::Nothing, false);
            cut(driver, &verb, 1).await;
            let half = orphans(driver, late()).await.remove(0);
            remove(driver, &half).await.unwrap();
            cut(driver, &verb, 1).await;
            remove(driver, &half).await.unwrap();
            let again = orphans(driver, late()).await;
            assert_ne!(again[0].identity, half.identity);
            assert_eq!(again.len(), 1);
        },
    );
}

#[test]
fn a_copy_that_is_still_running_and_the_helper_that_it_is_made_of_stay() {
    on_a_host(
        VolumeKind::Filesystem,
        MemoryHost::new().state().clone(),
        async |driver| {
            run(driver, &create(0, From::Nothing, false)).await.unwrap();
            let steps = driver.backend().state().steps;
            driver.backend().state().cut_after = Some(steps + 2);
            driver.backend().state().goes_on = true;
            let copy = create(1, From::Volume(0), true);
            assert!(run(driver, &copy).await.is_err());
            driver.backend().state().cut_after = None;
            // The part looks like a paused one; the purpose of the helper is known.
            let listed = orphans(driver, late()).await;
            assert_eq!(listed.len(), 1, "{listed:?}");
            let helper = SnapshotRef::parse(&format!("{}@volume-source-for-volume-v1", dataset(0)));
            let helper = Object::from(helper.unwrap());
            let guid = driver.backend().state().pool.guid(&helper).unwrap();
            let named = Orphan {
                kind: OrphanKind::Helper,
                object: helper.to_string(),
                identity: guid.to_string(),
                created: SystemTime::UNIX_EPOCH,
            };
            let refused = remove(driver, &named).await;
            assert_eq!(outcome(&refused), Some(Kind::Pending));
            driver.backend().state().finish();
            run(driver, &copy).await.unwrap();
            assert_eq!(orphans(driver, late()).await, []);
        },
    );
}

/// Detached snapshots of connections that use the same parent, and of democratic-csi.
fn put_detached_of_others(state: &mut HostState) {
    let kind = VolumeKind::Filesystem;
    let scope = detached(0, 0).parent().unwrap().parent().unwrap();
    let contains = || set(PropertyName::CONTAINER, "true");
    let half_made = || {
        let named = set(PropertyName::SNAPSHOT_NAME, "x");
        vec![set(PropertyName::MANAGED, "true"), named]
    };
    let other = set(PropertyName::PROVISIONER, "zfs-generic-nfs");
    for (leaf, whose) in [("of-another", vec![other]), ("unsigned", vec![])] {
        let container = scope.child(leaf).unwrap();
        let marks = [vec![contains()], whose.clone()].concat();
        state.pool.insert(&container, kind, &marks, None);
        let empty = scope.child(&format!("{leaf}-empty")).unwrap();
        state.pool.insert(&empty, kind, &marks, None);
        let half = container.child("half").unwrap();
        let marks = [half_made(), whose].concat();
        state.pool.insert(&half, kind, &marks, None);
        let whole = container.child("whole").unwrap();
        let marks = [marks, vec![set(PropertyName::SUCCESS, "true")]].concat();
        state.pool.insert(&whole, kind, &marks, None);
        let helper = format!("{whole}@volume-source-for-volume-v1");
        let helper = SnapshotRef::parse(&helper).unwrap();
        state.pool.insert_snapshot(&helper, &[]);
    }
}

/// Objects that look like orphans but are not provably ours.
#[test]
fn what_is_not_provably_ours_is_neither_listed_nor_removed() {
    on_a_host(
        VolumeKind::Filesystem,
        MemoryHost::new().state().clone(),
        async |driver| {
            run(driver, &create(0, From::Nothing, false)).await.unwrap();
            let (kind, mark) = (VolumeKind::Filesystem, || {
                set(PropertyName::MANAGED, "true")
            });
            let named = || set(PropertyName::VOLUME_NAME, "x");
            let parent = dataset(0).parent().unwrap();
            {
                let mut state = driver.backend().state();
                let mut put = |leaf: &str, properties: &[driver_zfs::property::Property]| {
                    let name = parent.child(leaf).unwrap();
                    state.pool.insert(&name, kind, properties, None);
                };
                put("theirs", &[]);
                put("marked-by-hand", &[mark()]);
                put("named-only", &[named()]);
                put("not an id", &[mark(), named()]);
                let by = |who| set(PropertyName::PROVISIONER, who);
                put(
                    "of-another-driver",
                    &[mark(), named(), by("zfs-generic-nfs")],
                );
                let ours = by("zfs-in-memory");
                let instance = set(PropertyName::INSTANCE, "another");
                put("of-another-instance", &[mark(), named(), ours, instance]);
                put_detached_of_others(&mut state);
                let other = SnapshotRef::parse("tank/csi/v/theirs@volume-source-for-volume-v1");
                state.pool.insert_snapshot(&other.unwrap(), &[]);
                for leaf in [
                    "auto",
                    "volume-source-for-backup",
                    "volume-source-for-volume-a b",
                ] {
                    let name = SnapshotRef::parse(&format!("{}@{leaf}", dataset(0))).unwrap();
                    state.pool.insert_snapshot(&name, &[]);
                }
                let own =
                    SnapshotRef::parse(&format!("{}@volume-source-for-volume-v2", dataset(0)));
                let given = set(PropertyName::SNAPSHOT_NAME, "volume-source-for-volume-v2");
                state.pool.insert_snapshot(&own.unwrap(), &[given]);
            }
            assert_eq!(orphans(driver, late()).await, []);
            let things = driver.backend().state().pool.things();
            for (object, thing) in &things {
                let forged = Orphan {
                    kind: OrphanKind::HalfVolume,
                    object: object.to_string(),
                    identity: thing.guid.to_string(),
                    created: SystemTime::UNIX_EPOCH,
                };
                let refused = remove(driver, &forged).await;
                assert_eq!(outcome(&refused), Some(Kind::Conflict), "{object}");
            }
            assert_eq!(driver.backend().state().pool.things(), things);
        },
    );
}
