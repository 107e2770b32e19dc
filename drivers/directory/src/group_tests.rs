//! Snapshots and groups of them of which something cannot be read, or that another call works on.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::thread::yield_now;
use std::time::{Duration, Instant, SystemTime};

use driver_core::config::IdRoom;
use driver_core::{Call, Error, Kind, PageRequest, SnapshotFilter, SnapshotName, VolumeId};
use rustix::io::Errno;

use crate::crash_tests::{
    both, call, create, delete_snapshot, directories, dirs, group, snapshot_of,
};
use crate::groups::members_of;
use crate::id::{GroupPlace, NamePart, SnapshotDir, VolumeDir};
use crate::record::{ATTRIBUTES, testing};
use crate::volumes::Directories;

const MEMBERS: [&str; 2] = ["full-g", "src-g"];

/// A base with a group of snapshots of both volumes.
fn with_group() -> (tempfile::TempDir, PathBuf, Directories) {
    let top = tempfile::tempdir().expect("folder");
    let base = top.path().join("base");
    let on = directories(&base);
    for name in ["src", "full"] {
        create(&on, name, None).expect("volume");
    }
    group(&on).expect("a group");
    (top, base, on)
}

/// The members whose directories are there.
fn left(base: &Path) -> Vec<&'static str> {
    let is_there = |name: &&str| base.join("s").join(name).exists();
    MEMBERS.into_iter().filter(is_there).collect()
}

/// Lets the record of a snapshot not be read any more.
fn lose_record(base: &Path, dir: &str) {
    let found = std::fs::metadata(base.join("s").join(dir)).expect("look");
    testing::make_unreadable(found.ino(), Errno::IO);
}

fn unreadable(done: Result<(), Error>) {
    let error = done.expect_err("a record cannot be read");
    assert_eq!(error.kind(), Kind::Unreachable, "{}", error.chain());
    assert!(error.chain().contains("src-g"), "{}", error.chain());
}

#[test]
fn a_record_that_cannot_be_read_makes_nothing_of_a_group_absent_and_deletes_nothing() {
    let (_top, base, on) = with_group();
    let inode = std::fs::metadata(base.join("s/src-g")).expect("look").ino();
    let (place, _) = both();
    for errno in [Errno::IO, Errno::STALE, Errno::NOMEM, Errno::ACCESS] {
        testing::make_unreadable(inode, errno);
        unreadable(on.members(&place).map(drop));
        unreadable(group(&on));
        unreadable(on.remove_members(&call(), &place));
        unreadable(delete_snapshot(&on, "src-g"));
        assert_eq!(left(&base), MEMBERS, "{errno}");
    }
    testing::make_readable();
    let error = delete_snapshot(&on, "src-g").expect_err("of a group");
    assert_eq!(error.kind(), Kind::Invalid);
    on.remove_members(&call(), &place).expect("deleted");
    assert_eq!(left(&base), [""; 0]);
}

#[test]
fn a_record_that_cannot_be_read_keeps_no_snapshot_from_being_listed() {
    let (_top, base, on) = with_group();
    let (place, _) = both();
    lose_record(&base, "src-g");
    let (filter, page) = (SnapshotFilter::default(), PageRequest::default());
    let listed = on.list_snapshots(&filter, &page).expect("listed").entries;
    let listed = listed
        .iter()
        .map(|one| (one.source.as_str(), one.group.as_ref(), one.ready));
    let listed: Vec<_> = listed.collect();
    let whole = ("full", Some(&place.id), true);
    assert_eq!(listed, [whole, ("src", None, false)]);
    let alone = SnapshotDir::new("src-g").expect("a snapshot").id();
    unreadable(on.get_snapshot(&alone).map(drop));
}

#[test]
fn a_record_that_cannot_be_read_stops_only_snapshots_that_may_have_its_name() {
    let (_top, base, on) = with_group();
    let refused = |volume: &str, name: &str| {
        let error = snapshot_of(&on, volume, name).expect_err("it may be taken");
        assert_eq!(error.kind(), Kind::Unreachable, "{}", error.chain());
        let advice = error.advice().unwrap_or_default().to_owned();
        assert!(advice.contains("remove `s/"), "{advice}");
    };
    let long = VolumeId::parse(&"v".repeat(60)).expect("id");
    create(&on, long.as_str(), None).expect("volume");
    snapshot_of(&on, "src", "plain").expect("a snapshot");
    lose_record(&base, "src-plain");
    // Shortened, with its volume as a whole in its directory and with a part of it.
    let name = "n".repeat(120);
    for (number, volume) in ["src", long.as_str()].into_iter().enumerate() {
        let name = format!("{number}{name}");
        snapshot_of(&on, volume, &name).expect("a snapshot");
        let part = NamePart::of(&SnapshotName::parse(&name).expect("name"));
        let dir = VolumeDir::new(volume).expect("a volume");
        let dir = SnapshotDir::of(&dir, &part, IdRoom::default());
        assert!(dir.is_shortened());
        lose_record(&base, dir.as_str());
        refused("full", &name);
    }
    refused("full", "plain");
    snapshot_of(&on, "full", "other").expect("free");
    on.delete_volume(&call(), &long).expect("deleted");
    snapshot_of(&on, "full", &format!("1{name}")).expect("nothing says that it is taken");
    refused("full", &format!("0{name}"));
}

#[test]
fn a_group_with_a_directory_without_a_record_is_not_deleted_in_silence() {
    let (_top, base, on) = with_group();
    let (place, _) = both();
    for attribute in ATTRIBUTES {
        let _ = rustix::fs::removexattr(base.join("s/src-g"), attribute);
    }
    let error = on.remove_members(&call(), &place).expect_err("in doubt");
    assert_eq!(error.kind(), Kind::Busy, "{}", error.chain());
    assert!(error.chain().contains("s/src-g"), "{}", error.chain());
    assert_eq!(left(&base), MEMBERS);
    std::fs::remove_dir_all(base.join("s/src-g")).expect("by hand");
    on.remove_members(&call(), &place).expect("deleted");
    assert_eq!(left(&base), [""; 0]);
}

#[test]
fn a_deletion_between_two_copies_stops_the_creation_and_waits_for_its_end() {
    let (_top, base, on) = with_group();
    let (place, _) = both();
    let creating = call();
    let work = on.pending.begin_group(&place.id, &creating);
    let work = work.expect("no other call makes it");
    let again = on.pending.begin_group(&place.id, &call()).map(drop);
    assert_eq!(again.expect_err("it is made").kind(), Kind::Pending);
    assert!(!creating.is_cancelled());
    let error = on.remove_members(&call(), &place).expect_err("it is made");
    assert_eq!(error.kind(), Kind::Pending, "{}", error.chain());
    assert!(creating.is_cancelled());
    assert_eq!(left(&base), MEMBERS);
    // The creation itself removes what cannot be made whole.
    // A process that another test starts has this one's locks until its program begins.
    let end = Instant::now() + Duration::from_secs(10);
    let taken_back = loop {
        match on.take_back(&creating, &place, &dirs(&place)) {
            Err(error) if error.kind() == Kind::Pending && Instant::now() < end => yield_now(),
            taken_back => break taken_back,
        }
    };
    assert!(taken_back.expect("taken back"), "nothing is left");
    assert_eq!(left(&base), [""; 0]);
    drop(work);
    on.remove_members(&call(), &place).expect("deleted");
    group(&on).expect("anew");
}

#[tokio::test]
async fn of_those_who_take_a_group_and_delete_it_again_and_again_the_deletion_succeeds() {
    const PATIENCE: Duration = Duration::from_secs(10);
    let (_top, _base, on) = with_group();
    let (place, _) = both();
    let creating = call();
    let work = on.pending.begin_group(&place.id, &creating);
    let work = work.expect("no other call makes it");
    let deletion = on.pending.begin_deletion(&place.id);
    on.pending.end_group(&place.id, Duration::ZERO).await;
    assert!(creating.is_cancelled(), "stopped, and not waited for");
    let stopped = async {
        tokio::task::yield_now().await;
        drop(work);
        // The caller whose call was stopped asks again at once.
        let again = on.pending.begin_group(&place.id, &call()).map(drop);
        assert_eq!(again.expect_err("it is deleted").kind(), Kind::Pending);
    };
    let began = Instant::now();
    tokio::join!(on.pending.end_group(&place.id, PATIENCE), stopped);
    assert!(began.elapsed() < PATIENCE, "the end was noticed");
    on.remove_members(&call(), &place).expect("deleted");
    drop(deletion);
    group(&on).expect("anew");
    let work = on.pending.begin_group(&place.id, &call());
    work.expect("nothing is kept of what has ended");
}

#[test]
fn what_a_call_has_made_of_a_group_is_taken_back_and_nothing_else() {
    let (_top, base, on) = with_group();
    let (place, _) = both();
    let all = dirs(&place);
    let [first, second] = &all[..] else {
        panic!("two snapshots");
    };
    let take_back = |made: &SnapshotDir| on.take_back(&call(), &place, std::slice::from_ref(made));
    assert!(!take_back(second).expect("taken back"), "one is left");
    assert_eq!(left(&base), ["full-g"]);
    assert!(!on.take_back(&call(), &place, &[]).expect("nothing made"));
    assert_eq!(left(&base), ["full-g"]);
    assert!(take_back(first).expect("taken back"), "nothing is left");
    assert_eq!(left(&base), [""; 0]);
}

#[test]
fn the_deletion_of_a_group_waits_for_the_lock_of_names_no_longer_than_its_call_lasts() {
    let (_top, base, on) = with_group();
    let (place, _) = both();
    let opened = on.store.open().expect("open");
    let staging = on.store.staging_area.open(&opened).expect("open");
    let held = staging.lock_names(&call()).expect("lock");
    let short = Call::within(Duration::from_millis(50));
    let error = on.remove_members(&short, &place).expect_err("held");
    assert_eq!(error.kind(), Kind::Pending, "{}", error.chain());
    assert_eq!(left(&base), MEMBERS);
    drop(held);
    on.remove_members(&call(), &place).expect("deleted");
    assert_eq!(left(&base), [""; 0]);
}

#[test]
fn the_records_that_a_group_reads_are_as_many_as_its_snapshots() {
    let top = tempfile::tempdir().expect("folder");
    let on = directories(&top.path().join("base"));
    let read_by = |name: &str, size: usize| {
        let ids = (0..size).map(|number| VolumeId::parse(&format!("v{number:02}")));
        let ids: Vec<_> = ids.map(|id| id.expect("id")).collect();
        for id in &ids {
            create(&on, id.as_str(), None).expect("volume");
        }
        let name = SnapshotName::parse(name).expect("name");
        let place = GroupPlace::new(&name, &ids, IdRoom::default()).expect("a group");
        let before = testing::count();
        let wanted = members_of(&place, &NamePart::of(&name));
        on.expect_members(&wanted).expect("free");
        for one in &wanted {
            let made = on.create_snapshot(&call(), one, SystemTime::now());
            made.expect("a snapshot");
        }
        let read = testing::count() - before;
        let found = on.members(&place).expect("found");
        assert!(found.iter().all(Option::is_some));
        read
    };
    let (few, many) = (read_by("few", 5), read_by("many", 20));
    assert!(few > 0 && many <= 4 * few, "{many} for 20, {few} for 5");
}
