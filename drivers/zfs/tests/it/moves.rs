//! Volumes of one host that move to another one in rounds, interrupted at every step.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use driver_core::transfer::CopyTag;
use driver_core::{
    CreateVolume, Driver as _, Elsewhere, Error, FindVolume, Found, Kind, Lister as _,
    Maintenance as _, MoveSource, MoveState, Mover as _, OrphanKind, PageRequest, Round, Source,
    Volume, VolumeId,
};
use driver_zfs::name::{Object, SnapshotRef};
use driver_zfs::observed::VolumeKind;
use driver_zfs::property::PropertyName;
use driver_zfs::step::Step;
use driver_zfs::testing::InMemory as _;
use driver_zfs::testing::Room;

use crate::orphans::{call, late, orphans, remove};
use crate::short::{KINDS, create, well};
use crate::transfers::{copied, cut, hosts, no_helper_is_left, wanted};
use crate::world::*;

/// An action on the two hosts.
#[derive(Debug, Clone, Copy)]
enum Deed {
    Round,
    Write,
    Finish,
    GiveUp,
}

/// A whole move, with writes of pods.
const MOVE: [Deed; 7] = [
    Deed::Round,
    Deed::Write,
    Deed::Round,
    Deed::Write,
    Deed::Round,
    Deed::Write,
    Deed::Round,
];

fn source(from: &MemoryDriver) -> Box<dyn MoveSource + '_> {
    from.move_out(&volume(0), &CopyTag::of("v:b/v1")).unwrap()
}

async fn round([from, to]: &[MemoryDriver; 2]) -> Result<Round, Error> {
    to.move_in(&call(), &wanted(), &*source(from)).await
}

async fn finish([from, to]: &[MemoryDriver; 2]) -> Result<Volume, Error> {
    let made = to.moved_in(&call(), &wanted()).await?;
    source(from).close(&call()).await?;
    Ok(made)
}

async fn give_up([from, to]: &[MemoryDriver; 2]) -> Result<(), Error> {
    to.give_up_move(&call(), &wanted()).await?;
    source(from).close(&call()).await
}

async fn state(to: &MemoryDriver) -> MoveState {
    to.move_state(&call(), &wanted()).await.unwrap()
}

async fn perform(hosts: &[MemoryDriver; 2], deed: Deed) -> Result<(), Error> {
    match deed {
        Deed::Round => round(hosts).await.map(drop),
        Deed::Write => {
            hosts[0].backend().state().pool.write(&dataset(0));
            Ok(())
        }
        Deed::Finish => finish(hosts).await.map(drop),
        Deed::GiveUp => give_up(hosts).await,
    }
}

/// Hosts on which all of this was done.
async fn after(kind: VolumeKind, deeds: &[Deed]) -> [MemoryDriver; 2] {
    let hosts = hosts(kind).await;
    for deed in deeds {
        perform(&hosts, *deed).await.unwrap();
    }
    hosts
}

fn content(host: &MemoryDriver, id: u8) -> Option<u64> {
    host.backend().state().pool.content(&dataset(id))
}

/// All objects and exports of both hosts, without the numbers of snapshots.
fn shapes(hosts: &[MemoryDriver; 2]) -> [(BTreeMap<Object, String>, String); 2] {
    hosts.each_ref().map(|host| {
        let state = host.backend().state();
        let things = state.pool.things().into_iter().map(|(object, mut thing)| {
            thing.own.remove(&PropertyName::MOVE);
            (object, format!("{:?}", thing.own))
        });
        (things.collect(), format!("{:?}", state.targets))
    })
}

fn steps(hosts: &[MemoryDriver; 2]) -> [usize; 2] {
    hosts.each_ref().map(|host| host.backend().state().steps)
}

/// The snapshots of a dataset, by name.
fn snapshots(host: &MemoryDriver, id: u8) -> Vec<SnapshotRef> {
    let things = host.backend().state().pool.things();
    let of_it = |object| match object {
        Object::Snapshot(name) => Some(name),
        Object::Dataset(_) => None,
    };
    let all = things.into_keys().filter_map(of_it);
    all.filter(|name| name.dataset == dataset(id)).collect()
}

fn destroy(host: &MemoryDriver, snapshot: &SnapshotRef) {
    let gone = Step::DestroySnapshot(snapshot.clone());
    host.backend().state().pool.apply(&gone).unwrap();
}

/// Interrupts the next round after this many of its pieces.
async fn cut_round(hosts: &[MemoryDriver; 2], pieces: usize) {
    cut(&hosts[1], Some(pieces));
    let error = round(hosts).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unreachable, "{}", error.chain());
    cut(&hosts[1], None);
}

#[tokio::test(start_paused = true)]
async fn rounds_end_with_the_content_of_the_source_and_are_no_volume_before() {
    for kind in KINDS {
        let hosts = hosts(kind).await;
        let [from, to] = &hosts;
        assert_eq!(state(to).await, MoveState::Nothing);
        for _ in 0..3 {
            from.backend().state().pool.write(&dataset(0));
            let ended = round(&hosts).await.unwrap();
            assert!(ended.bytes > 0);
            assert_eq!(state(to).await, MoveState::At(ended.moment));
            assert_eq!(content(to, 1), content(from, 0));
            let origin = source(from);
            let written = origin.written_since(&call(), ended.moment).await;
            assert_eq!(written.unwrap(), 0);
            from.backend().state().pool.write(&dataset(0));
            let written = origin.written_since(&call(), ended.moment).await;
            assert!(written.unwrap() > 0);
            let id = volume(1);
            let found = to.find_volume(&call(), FindVolume::new(&id)).await;
            assert_eq!(found.unwrap(), Found::Begun);
            let listed = to.list_volumes(&call(), &PageRequest::default()).await;
            assert!(listed.unwrap().entries.is_empty());
            let now = to.backend().state();
            assert!(now.targets.targets.is_empty() && !now.pool.is_mounted(&dataset(1)));
        }
        round(&hosts).await.unwrap();
        let made = finish(&hosts).await.unwrap();
        assert_eq!(made.capacity, Some(u64::try_from(SIZE).unwrap()));
        assert_eq!(made.source, wanted().source);
        assert_eq!(content(to, 1), content(from, 0));
        no_helper_is_left(&hosts);
        assert_eq!(state(to).await, MoveState::Volume(Box::new(made.clone())));
        let listed = to.list_volumes(&call(), &PageRequest::default()).await;
        assert_eq!(listed.unwrap().entries, std::slice::from_ref(&made));
        let mounted = to.backend().state().pool.is_mounted(&dataset(1));
        assert_eq!(mounted, kind == VolumeKind::Filesystem);
        let mut whole = shapes(&hosts);
        assert_eq!(finish(&hosts).await.unwrap(), made, "again");
        assert_eq!(shapes(&hosts), whole);
        // But for the record of its source it is what a class would have made.
        let plain = create(1, From::Nothing);
        let other = driver(
            kind,
            false,
            driver_zfs::testing::MemoryHost::empty().state().clone(),
        );
        well(&other, &[plain]).await;
        let things = other.backend().state().pool.things();
        let own = &things[&dataset(1).into()].own;
        let moved = whole[1].0.remove(&dataset(1).into()).unwrap();
        for (name, value) in own {
            assert!(
                moved.contains(&format!("{name:?}: {value:?}")),
                "{name}={value}: {moved}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_move_that_is_cut_at_either_end_goes_on_to_what_an_undisturbed_one_gives() {
    for kind in KINDS {
        let deeds = [&MOVE[..], &[Deed::Finish]].concat();
        let whole = hosts(kind).await;
        let mut parts = Vec::new();
        for deed in &deeds {
            let before = steps(&whole);
            perform(&whole, *deed).await.unwrap();
            let now = steps(&whole);
            parts.push([now[0] - before[0], now[1] - before[1]]);
        }
        let expected = shapes(&whole);
        no_helper_is_left(&whole);
        let mut cuts = 0;
        for (at, deed) in deeds.iter().enumerate() {
            if matches!(deed, Deed::Write) {
                continue;
            }
            for end in 0..2 {
                assert!(parts[at][end] > 0, "host {end} has no part in {deed:?}");
                for part in 0..parts[at][end] {
                    let what = format!("{kind}: {at} {deed:?} host {end} after {part}");
                    let hosts = after(kind, &deeds[..at]).await;
                    cut(&hosts[end], Some(part));
                    let error = perform(&hosts, *deed).await.unwrap_err();
                    assert_eq!(error.kind(), Kind::Unreachable, "{what}");
                    cut(&hosts[end], None);
                    for deed in &deeds[at..] {
                        let done = perform(&hosts, *deed).await;
                        let why = done.as_ref().err().map(Error::chain);
                        assert!(done.is_ok(), "{what}: {deed:?}: {why:?}");
                    }
                    assert_eq!(shapes(&hosts), expected, "{what}");
                    assert_eq!(content(&hosts[1], 1), content(&hosts[0], 0), "{what}");
                    cuts += 1;
                }
            }
        }
        assert!(cuts > 30, "{cuts}");
    }
}

#[tokio::test(start_paused = true)]
async fn giving_up_anywhere_leaves_nothing_of_it_and_the_volume_as_it_was() {
    for kind in KINDS {
        let deeds = [&MOVE[..3], &[Deed::Finish]].concat();
        let untouched = shapes(&hosts(kind).await);
        let finished = after(kind, &deeds).await;
        let last = steps(&finished)[1] - steps(&after(kind, &MOVE[..3]).await)[1];
        for (at, deed) in deeds.iter().enumerate() {
            let most = if matches!(deed, Deed::Finish) {
                last
            } else {
                4
            };
            for parts in 0..most {
                let what = format!("{kind}: {deed:?} after {parts}");
                let state = |part: Option<usize>| {
                    let deeds = deeds.clone();
                    async move {
                        let hosts = after(kind, &deeds[..at]).await;
                        cut(&hosts[1], part);
                        let done = perform(&hosts, deeds[at]).await;
                        cut(&hosts[1], None);
                        (hosts, done)
                    }
                };
                let (hosts, done) = state(Some(parts)).await;
                let whole = matches!(
                    hosts[1].move_state(&call(), &wanted()).await,
                    Ok(MoveState::Volume(_))
                );
                let before = shapes(&hosts);
                if whole {
                    assert!(done.is_err());
                    let error = give_up(&hosts).await.unwrap_err();
                    assert_eq!(error.kind(), Kind::Conflict, "{what}");
                    assert_eq!(shapes(&hosts), before, "{what}");
                    continue;
                }
                if before[1] == untouched[1] {
                    // Without the parent it may be another storage.
                    let error = give_up(&hosts).await.unwrap_err();
                    assert_eq!(error.kind(), Kind::Unreachable, "{what}");
                    assert_eq!(shapes(&hosts), before, "{what}");
                    continue;
                }
                let begin = steps(&hosts);
                give_up(&hosts).await.unwrap();
                let of_give_up = [steps(&hosts)[0] - begin[0], steps(&hosts)[1] - begin[1]];
                // The parent of volumes was made there.
                let left = shapes(&hosts);
                assert_eq!(left[0], untouched[0], "{what}");
                assert!(snapshots(&hosts[1], 1).is_empty(), "{what}");
                assert_eq!(content(&hosts[1], 1), None, "{what}");
                assert_eq!(left[1].1, untouched[1].1, "{what}: exports");
                // Cut itself, it goes on.
                for end in 0..2 {
                    for part in 0..of_give_up[end] {
                        let (hosts, _) = state(Some(parts)).await;
                        cut(&hosts[end], Some(part));
                        let error = give_up(&hosts).await.unwrap_err();
                        assert_eq!(error.kind(), Kind::Unreachable, "{what}");
                        cut(&hosts[end], None);
                        perform(&hosts, Deed::GiveUp).await.unwrap();
                        assert_eq!(shapes(&hosts), left, "{what}: {end} {part}");
                    }
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_round_that_goes_on_carries_the_moment_at_which_it_was_started() {
    for kind in KINDS {
        let hosts = after(kind, &MOVE[..2]).await;
        let [from, to] = &hosts;
        let (first, then) = (content(to, 1), content(from, 0));
        cut_round(&hosts, 3).await;
        assert!(matches!(state(to).await, MoveState::At(_)));
        assert_eq!(content(to, 1), first, "nothing of a part shows");
        from.backend().state().pool.write(&dataset(0));
        round(&hosts).await.unwrap();
        assert_eq!(content(to, 1), then, "the content of one moment");
        round(&hosts).await.unwrap();
        finish(&hosts).await.unwrap();
        assert_eq!(content(to, 1), content(from, 0));
        // And so does the first one.
        let hosts = hosts_with_a_part(kind).await;
        let [from, to] = &hosts;
        let then = content(from, 0);
        from.backend().state().pool.write(&dataset(0));
        round(&hosts).await.unwrap();
        assert_eq!(content(to, 1), then);
    }
}

async fn hosts_with_a_part(kind: VolumeKind) -> [MemoryDriver; 2] {
    let hosts = hosts(kind).await;
    cut_round(&hosts, 3).await;
    assert_eq!(state(&hosts[1]).await, MoveState::Part);
    hosts
}

#[tokio::test(start_paused = true)]
async fn a_part_whose_source_is_gone_starts_anew_as_long_as_both_ends_have_a_moment() {
    for kind in KINDS {
        let hosts = hosts_with_a_part(kind).await;
        for helper in snapshots(&hosts[0], 0) {
            destroy(&hosts[0], &helper);
        }
        hosts[0].backend().state().pool.write(&dataset(0));
        round(&hosts).await.unwrap();
        assert_eq!(content(&hosts[1], 1), content(&hosts[0], 0));

        let hosts = after(kind, &MOVE[..2]).await;
        let [old] = &snapshots(&hosts[0], 0)[..] else {
            panic!("one round has one");
        };
        cut_round(&hosts, 2).await;
        for helper in snapshots(&hosts[0], 0) {
            if helper != *old {
                destroy(&hosts[0], &helper);
            }
        }
        hosts[0].backend().state().pool.write(&dataset(0));
        round(&hosts).await.unwrap();
        finish(&hosts).await.unwrap();
        assert_eq!(content(&hosts[1], 1), content(&hosts[0], 0));
        no_helper_is_left(&hosts);
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_common_moment_nothing_more_is_received() {
    for kind in KINDS {
        for with_part in [false, true] {
            let hosts = after(kind, &MOVE[..2]).await;
            let [old] = &snapshots(&hosts[0], 0)[..] else {
                panic!("one round has one");
            };
            if with_part {
                cut_round(&hosts, 2).await;
            }
            let before = content(&hosts[1], 1);
            destroy(&hosts[0], old);
            let error = round(&hosts).await.unwrap_err();
            assert_eq!(error.kind(), Kind::NotFound, "{}", error.chain());
            assert!(error.chain().contains("last round"), "{}", error.chain());
            assert_eq!(content(&hosts[1], 1), before);
            give_up(&hosts).await.unwrap();
            no_helper_is_left(&hosts);
        }
        let hosts = after(kind, &MOVE[..2]).await;
        for helper in snapshots(&hosts[1], 1) {
            destroy(&hosts[1], &helper);
        }
        let error = round(&hosts).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Conflict, "{}", error.chain());
        let error = finish(&hosts).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Conflict, "{}", error.chain());
        give_up(&hosts).await.unwrap();
        assert_eq!(content(&hosts[1], 1), None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_target_that_was_changed_takes_no_more() {
    for kind in KINDS {
        let hosts = after(kind, &MOVE[..2]).await;
        hosts[1].backend().state().pool.write(&dataset(1));
        let changed = content(&hosts[1], 1);
        let error = round(&hosts).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Conflict, "{}", error.chain());
        assert_eq!(content(&hosts[1], 1), changed);
        // What others have added to it is theirs, and what they took of it does not hinder.
        let hosts = after(kind, &MOVE[..2]).await;
        let theirs = SnapshotRef::parse(&format!("{}@nightly", dataset(1))).unwrap();
        hosts[1]
            .backend()
            .state()
            .pool
            .insert_snapshot(&theirs, &[]);
        round(&hosts).await.unwrap();
        let error = give_up(&hosts).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Busy, "{}", error.chain());
        assert!(snapshots(&hosts[1], 1).contains(&theirs));
    }
}

/// Fails unless nothing of a move is done to what is there, and nothing is changed.
async fn all_is_refused(hosts: &[MemoryDriver; 2], request: &CreateVolume, words: &str) {
    let [from, to] = hosts;
    let before = shapes(hosts);
    let call = call();
    let outcomes = [
        to.move_state(&call, request).await.map(drop),
        to.move_in(&call, request, &*source(from)).await.map(drop),
        to.moved_in(&call, request).await.map(drop),
        to.give_up_move(&call, request).await,
    ];
    for (verb, outcome) in outcomes.into_iter().enumerate() {
        let error = outcome.unwrap_err();
        assert_eq!(error.kind(), Kind::Conflict, "{verb}: {}", error.chain());
        assert!(error.chain().contains(words), "{verb}: {}", error.chain());
    }
    assert_eq!(shapes(hosts), before);
}

#[tokio::test(start_paused = true)]
async fn what_no_move_of_this_request_has_made_is_left_alone() {
    for kind in KINDS {
        // Of another source, in each state.
        let other = VolumeId::parse("v:a/v9").unwrap();
        let other = CreateVolume {
            source: Some(Source::Elsewhere(Elsewhere::Volume(other))),
            ..wanted()
        };
        for deeds in [&MOVE[..1], &MOVE[..3], &[Deed::Round, Deed::Finish]] {
            all_is_refused(&after(kind, deeds).await, &other, "another source").await;
        }
        all_is_refused(&hosts_with_a_part(kind).await, &other, "another source").await;
        // A volume that a class has made.
        let hosts = hosts(kind).await;
        well(&hosts[1], &[create(1, From::Nothing)]).await;
        all_is_refused(&hosts, &wanted(), "another source").await;
        // A copy that a claim asked for, whole and in part.
        let hosts = crate::transfers::hosts(kind).await;
        copied(&hosts[0], &hosts[1]).await.unwrap();
        all_is_refused(&hosts, &wanted(), "no move").await;
        let hosts = crate::transfers::hosts(kind).await;
        cut(&hosts[1], Some(3));
        copied(&hosts[0], &hosts[1]).await.unwrap_err();
        cut(&hosts[1], None);
        all_is_refused(&hosts, &wanted(), "another call").await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_volume_takes_no_round_and_only_a_round_that_has_ended_becomes_one() {
    for kind in KINDS {
        let hosts = hosts(kind).await;
        let error = finish(&hosts).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Conflict, "{}", error.chain());
        let hosts = hosts_with_a_part(kind).await;
        let error = finish(&hosts).await.unwrap_err();
        assert!(error.chain().contains("no round"), "{}", error.chain());
        let hosts = after(kind, &MOVE[..2]).await;
        cut_round(&hosts, 2).await;
        let error = finish(&hosts).await.unwrap_err();
        assert!(error.chain().contains("interrupted"), "{}", error.chain());
        round(&hosts).await.unwrap();
        finish(&hosts).await.unwrap();
        let before = shapes(&hosts);
        for error in [
            round(&hosts).await.unwrap_err(),
            give_up(&hosts).await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), Kind::Conflict, "{}", error.chain());
            assert!(error.chain().contains("is a volume"), "{}", error.chain());
        }
        assert_eq!(shapes(&hosts), before);
    }
}

#[tokio::test(start_paused = true)]
async fn a_round_that_finds_no_room_leaves_what_came_before_it() {
    for kind in KINDS {
        let hosts = after(kind, &MOVE[..2]).await;
        let before = content(&hosts[1], 1);
        hosts[1].backend().state().pool.room = Room::None;
        let error = round(&hosts).await.unwrap_err();
        assert_eq!(error.kind(), Kind::OutOfSpace, "{}", error.chain());
        assert_eq!(content(&hosts[1], 1), before);
        hosts[1].backend().state().pool.room = Room::Enough;
        // No part of it is left that would have to go on.
        finish(&hosts).await.unwrap();
        assert_eq!(content(&hosts[1], 1), before);
        // And the first one nothing.
        let hosts = crate::transfers::hosts(kind).await;
        hosts[1].backend().state().pool.room = Room::None;
        let error = round(&hosts).await.unwrap_err();
        assert_eq!(error.kind(), Kind::OutOfSpace, "{}", error.chain());
        assert_eq!(content(&hosts[1], 1), None);
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_left_of_a_move_is_an_orphan_after_a_week() {
    for kind in KINDS {
        let hosts = after(kind, &MOVE[..2]).await;
        cut_round(&hosts, 2).await;
        let [from, to] = &hosts;
        let found = orphans(to, late()).await;
        let [half] = &found[..] else {
            panic!("{found:?}");
        };
        assert_eq!(half.kind, OrphanKind::HalfVolume);
        let days = |days: u64| {
            let born = SystemTime::now() - Duration::from_hours(24 * days);
            let later = born.duration_since(half.created).unwrap();
            to.backend().state().pool.later = later.as_secs();
        };
        let hour_ago = SystemTime::now() - Duration::from_hours(1);
        days(6);
        assert_eq!(orphans(to, hour_ago).await, []);
        days(8);
        assert_eq!(orphans(to, hour_ago).await.len(), 1);
        to.remove_orphan(&call(), hour_ago, half).await.unwrap();
        assert_eq!(content(to, 1), None);
        for helper in orphans(from, late()).await {
            assert_eq!(helper.kind, OrphanKind::Helper);
            remove(from, &helper).await.unwrap();
        }
        no_helper_is_left(&hosts);
    }
}
