//! Volumes of one host that are filled from another one, interrupted at every step.

use std::time::{Duration, SystemTime};

use driver_core::transfer::{CopyTag, ExportStream};
use driver_core::{
    CreateVolume, Effect, Elsewhere, Error, Kind, Maintenance as _, OrphanKind, Source,
    Transfer as _, Volume,
};
use driver_zfs::observed::VolumeKind;
use driver_zfs::property::PropertyName;
use driver_zfs::testing::InMemory as _;
use driver_zfs::testing::{HostState, MemoryHost, Room};

use crate::orphans::{call, late, orphans, remove};
use crate::world::*;

const KINDS: [VolumeKind; 2] = [VolumeKind::Filesystem, VolumeKind::Zvol];

/// An empty host, and one with a volume that contains data.
pub(crate) async fn hosts(kind: VolumeKind) -> [MemoryDriver; 2] {
    let empty = || MemoryHost::empty().state().clone();
    let (from, to): (HostState, HostState) = (empty(), empty());
    let hosts = [driver(kind, false, from), driver(kind, false, to)];
    let made = Verb::Create {
        id: 0,
        source: From::Nothing,
        copy: false,
    };
    run(&hosts[0], &made).await.unwrap();
    hosts[0].backend().state().pool.write(&dataset(0));
    hosts
}

pub(crate) fn wanted() -> CreateVolume {
    let source = Elsewhere::Volume(driver_core::VolumeId::parse("v:a/v0").unwrap());
    CreateVolume {
        source: Some(Source::Elsewhere(source)),
        ..request(1, &From::Nothing, false)
    }
}

fn origin(from: &MemoryDriver) -> Box<dyn ExportStream + '_> {
    let source = Source::Volume(volume(0));
    from.export(&source, &CopyTag::of("v:b/v1")).unwrap()
}

pub(crate) async fn copied(from: &MemoryDriver, to: &MemoryDriver) -> Result<Volume, Error> {
    let origin = origin(from);
    let made = to.import(&call(), &wanted(), &*origin).await?;
    origin.close(&call()).await?;
    Ok(made)
}

/// Disconnects a host after this many more parts of its work, or not.
pub(crate) fn cut(host: &MemoryDriver, parts: Option<usize>) {
    let mut state = host.backend().state();
    state.cut_after = parts.map(|parts| state.steps + parts);
}

/// The state of both hosts after an undisturbed copy, without transactions.
fn shapes(hosts: &[MemoryDriver; 2]) -> Vec<String> {
    let shape = |host: &MemoryDriver| format!("{:#?}", host.backend().state().pool.shape());
    hosts.iter().map(shape).collect()
}

pub(crate) fn no_helper_is_left(hosts: &[MemoryDriver; 2]) {
    for shape in shapes(hosts) {
        assert!(!shape.contains("volume-source-for-"), "{shape}");
    }
}

fn is_partial_or_absent(host: &MemoryDriver) -> bool {
    let things = host.backend().state().pool.things();
    let found = things.get(&dataset(1).into());
    found.is_none_or(|thing| !thing.own.contains_key(&PropertyName::SUCCESS))
}

#[tokio::test(start_paused = true)]
async fn a_copy_that_is_cut_at_either_end_goes_on_to_what_an_undisturbed_one_gives() {
    for kind in KINDS {
        let hosts_of_one = hosts(kind).await;
        let before = hosts_of_one
            .each_ref()
            .map(|host| host.backend().state().steps);
        copied(&hosts_of_one[0], &hosts_of_one[1]).await.unwrap();
        no_helper_is_left(&hosts_of_one);
        let expected = shapes(&hosts_of_one);
        for (end, before) in before.into_iter().enumerate() {
            let steps = hosts_of_one[end].backend().state().steps - before;
            assert!(steps > 0, "host {end} has no part in it");
            for after in 0..steps {
                let hosts = hosts(kind).await;
                cut(&hosts[end], Some(after));
                let error = copied(&hosts[0], &hosts[1]).await.unwrap_err();
                assert_eq!(error.kind(), Kind::Unreachable, "{end} after {after}");
                cut(&hosts[end], None);
                copied(&hosts[0], &hosts[1]).await.unwrap();
                assert_eq!(shapes(&hosts), expected, "host {end} after {after}");
                let content =
                    |host: &MemoryDriver, id| host.backend().state().pool.content(&dataset(id));
                assert_eq!(content(&hosts[1], 1), content(&hosts[0], 0));
                let mounted = hosts[1].backend().state().pool.is_mounted(&dataset(1));
                assert_eq!(mounted, kind == VolumeKind::Filesystem);
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_copy_that_finds_no_room_leaves_nothing_there_however_much_of_it_has_come() {
    for kind in KINDS {
        for came in 0..3 {
            let [from, to] = hosts(kind).await;
            if came > 0 {
                cut(&to, Some(came));
                copied(&from, &to).await.unwrap_err();
                cut(&to, None);
            }
            to.backend().state().pool.room = Room::None;
            let error = copied(&from, &to).await.unwrap_err();
            assert_eq!(
                (error.kind(), error.effect()),
                (Kind::OutOfSpace, Effect::None),
                "{kind}: {came}"
            );
            let things = to.backend().state().pool.things();
            assert!(!things.contains_key(&dataset(1).into()), "{kind}: {came}");
            to.backend().state().pool.room = Room::Enough;
            copied(&from, &to).await.unwrap();
            no_helper_is_left(&[from, to]);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn data_written_during_a_copy_is_not_mixed_into_it() {
    for kind in KINDS {
        let [from, to] = hosts(kind).await;
        let was = from.backend().state().pool.content(&dataset(0));
        cut(&to, Some(4));
        copied(&from, &to).await.unwrap_err();
        cut(&to, None);
        assert!(is_partial_or_absent(&to));
        let there = to.backend().state().pool.content(&dataset(1));
        assert!(there.is_some(), "a part is there");
        from.backend().state().pool.write(&dataset(0));
        copied(&from, &to).await.unwrap();
        let content = to.backend().state().pool.content(&dataset(1));
        assert_eq!(content, was, "the content of one moment");
    }
}

#[tokio::test(start_paused = true)]
async fn a_part_of_a_snapshot_that_is_gone_makes_room_for_a_new_one() {
    for kind in KINDS {
        let [from, to] = hosts(kind).await;
        cut(&to, Some(4));
        copied(&from, &to).await.unwrap_err();
        cut(&to, None);
        origin(&from).close(&call()).await.unwrap();
        from.backend().state().pool.write(&dataset(0));
        copied(&from, &to).await.unwrap();
        let content = |host: &MemoryDriver, id| host.backend().state().pool.content(&dataset(id));
        assert_eq!(content(&to, 1), content(&from, 0));
        // Nor is a part kept whose source is gone.
        let [from, to] = hosts(kind).await;
        cut(&to, Some(4));
        copied(&from, &to).await.unwrap_err();
        cut(&to, None);
        run(&from, &Verb::Delete(0)).await.unwrap();
        let error = copied(&from, &to).await.unwrap_err();
        assert_eq!(error.kind(), Kind::NotFound);
        assert_eq!(to.backend().state().pool.content(&dataset(1)), None);
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_never_tried_again_is_an_orphan_at_both_ends() {
    for kind in KINDS {
        let [from, to] = hosts(kind).await;
        cut(&to, Some(4));
        copied(&from, &to).await.unwrap_err();
        cut(&to, None);
        for (host, expected) in [(&from, OrphanKind::Helper), (&to, OrphanKind::HalfVolume)] {
            let found = orphans(host, late()).await;
            let kinds: Vec<_> = found.iter().map(|orphan| orphan.kind).collect();
            assert_eq!(kinds, [expected]);
            remove(host, &found[0]).await.unwrap();
            assert!(orphans(host, late()).await.is_empty());
        }
        no_helper_is_left(&[from, to]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_source_is_deleted_with_what_an_abandoned_copy_has_made_there() {
    let [from, to] = hosts(VolumeKind::Zvol).await;
    cut(&to, Some(4));
    copied(&from, &to).await.unwrap_err();
    run(&from, &Verb::Delete(0)).await.unwrap();
    assert_eq!(from.backend().state().pool.content(&dataset(0)), None);
}

#[tokio::test(start_paused = true)]
async fn a_disk_is_never_smaller_than_what_it_is_filled_with() {
    let [from, to] = hosts(VolumeKind::Zvol).await;
    let grown = Verb::Expand(0, 2);
    run(&from, &grown).await.unwrap();
    let made = copied(&from, &to).await.unwrap();
    assert_eq!(made.capacity, Some(2 * u64::try_from(SIZE).unwrap()));
    let [from, to] = hosts(VolumeKind::Zvol).await;
    run(&from, &grown).await.unwrap();
    let limited = CreateVolume {
        size: driver_core::SizeRange::new(SIZE, SIZE).unwrap(),
        ..wanted()
    };
    let refused = to.import(&call(), &limited, &*origin(&from)).await;
    assert_eq!(refused.unwrap_err().kind(), Kind::OutOfRange);
    no_helper_is_left(&[from, to]);
}

#[tokio::test(start_paused = true)]
async fn what_a_copy_is_made_of_is_an_orphan_only_after_a_week_for_the_copy_may_rest() {
    let [from, to] = hosts(VolumeKind::Zvol).await;
    cut(&to, Some(4));
    copied(&from, &to).await.unwrap_err();
    let helper = orphans(&from, late()).await.remove(0);
    assert_eq!(helper.kind, OrphanKind::Helper);
    let age = |age: Duration| {
        let born = SystemTime::now() - age;
        let later = born.duration_since(helper.created).unwrap();
        from.backend().state().pool.later = later.as_secs();
    };
    let hours = Duration::from_hours;
    let hour_ago = || SystemTime::now() - hours(1);
    age(hours(6 * 24));
    assert_eq!(orphans(&from, hour_ago()).await, []);
    let refused = from.remove_orphan(&call(), hour_ago(), &helper).await;
    assert_eq!(refused.unwrap_err().kind(), Kind::Conflict);
    age(hours(8 * 24));
    assert_eq!(orphans(&from, hour_ago()).await.len(), 1);
    // A caller that asks for more gets more.
    let before = SystemTime::now() - hours(9 * 24);
    assert_eq!(orphans(&from, before).await, []);
    from.remove_orphan(&call(), hour_ago(), &helper)
        .await
        .unwrap();
    no_helper_is_left(&[from, to]);
}
