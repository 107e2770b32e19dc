//! Processes that die at every step, and processes that race.
//!
//! Each case runs in a child: this test program once more, with a task in its environment, and the
//! mark at which to end itself. How many marks there are is counted in an undisturbed run.

use std::collections::BTreeMap;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, SystemTime};

use csi_types::AbsolutePath;
use driver_core::{
    Call, CreateSnapshot, CreateVolume, Error, Kind, Parameters, SizeRange, SnapshotId,
    SnapshotName, Source, TopologyRequirement, VolumeId, VolumeName,
};

use crate::base::{Base, Creation, MARKER};
use crate::config::{Enforce, Layout, Permissions, ProjectIds, Quotas};
use crate::crash_points::testing::{passed, stop_at};
use crate::groups::{members_of, refuse_rest};
use crate::id::{GroupPlace, NamePart, SnapshotDir};
use crate::kind::{DirectoryKind, Location};
use crate::pending::PendingCopies;
use crate::store::Store;
use crate::volumes::Directories;

const TASK: &str = "OMNIBUS_CRASH_TASK";
/// A task: what is done, what undoes it, and where its object lies.
const VERBS: [(&str, &str, &str); 7] = [
    ("create", "delete created", "v/made"),
    ("restore", "delete created", "v/made"),
    ("clone", "delete created", "v/made"),
    ("snapshot", "delete taken", "s/src-new"),
    ("delete", "recreate", "v/full"),
    ("delete snapshot", "retake", "s/src-old"),
    ("expand", "delete source", "v/src"),
];

pub(crate) fn directories(base: &Path) -> Directories {
    let base = AbsolutePath::parse(base.to_str().expect("text")).expect("path");
    // Below a `TMPDIR` with project quotas or qgroups all of this is done with them.
    let quotas = Quotas {
        enforce: Enforce::Try,
        ids: ProjectIds::default(),
    };
    let pending = PendingCopies::new(base.to_string());
    Directories {
        store: Store::new(
            Base::new(
                DirectoryKind::LocalHostpath,
                base.clone(),
                Creation::IfNeverUsed,
                None,
            ),
            quotas,
        ),
        layout: Layout {
            location: Location::Hostpath(base.clone()),
            base: Some(base),
            creation: Creation::IfNeverUsed,
            base_id: None,
            default_driver: crate::config::SnapshotDriver::default(),
            permissions: Permissions {
                mode: Some(0o770),
                user: None,
                group: None,
            },
            quotas,
        },
        topology: None,
        id_room: driver_core::config::IdRoom::default(),
        repositories: Vec::new(),
        pending,
    }
}

pub(crate) fn call() -> Call {
    Call::within(Duration::from_mins(2))
}

pub(crate) fn volume(name: &str, required: i64, source: Option<Source>) -> CreateVolume {
    CreateVolume {
        name: VolumeName::parse(name).expect("name"),
        id: VolumeId::parse(name).expect("id"),
        size: SizeRange::new(required, 0).expect("range"),
        capabilities: Vec::new(),
        parameters: Parameters::default(),
        secrets: BTreeMap::new(),
        source,
        topology: TopologyRequirement::default(),
    }
}

pub(crate) fn create(on: &Directories, name: &str, source: Option<Source>) -> Result<(), Error> {
    on.create_volume(&call(), &volume(name, 1 << 30, source))
        .map(drop)
}

fn delete(on: &Directories, name: &str) -> Result<(), Error> {
    on.delete_volume(&call(), &VolumeId::parse(name).expect("id"))
}

fn snapshot(on: &Directories, name: &str) -> Result<(), Error> {
    snapshot_of(on, "src", name)
}

pub(crate) fn snapshot_of(on: &Directories, volume: &str, name: &str) -> Result<(), Error> {
    let request = CreateSnapshot {
        name: SnapshotName::parse(name).expect("name"),
        source: VolumeId::parse(volume).expect("id"),
        parameters: Parameters::default(),
        secrets: BTreeMap::new(),
    };
    on.create_snapshot(&call(), &on.wanted(&request)?, SystemTime::now())
        .map(drop)
}

pub(crate) fn delete_snapshot(on: &Directories, id: &str) -> Result<(), Error> {
    on.delete_snapshot(&call(), &SnapshotId::parse(id).expect("id"))
}

/// A group of both volumes.
pub(crate) fn both() -> (GroupPlace, NamePart) {
    let name = SnapshotName::parse("g").expect("name");
    let volumes = ["src", "full"].map(|id| VolumeId::parse(id).expect("id"));
    let group = GroupPlace::new(&name, &volumes, driver_core::config::IdRoom::default());
    (group.expect("a group"), NamePart::of(&name))
}

/// The directories of its snapshots.
pub(crate) fn dirs(group: &GroupPlace) -> Vec<SnapshotDir> {
    group.members.iter().map(|(_, dir)| dir.clone()).collect()
}

pub(crate) fn group(on: &Directories) -> Result<(), Error> {
    let (group, name) = both();
    refuse_rest(&group, &on.members(&group)?)?;
    let wanted = members_of(&group, &name);
    on.expect_members(&wanted)?;
    for one in &wanted {
        on.create_snapshot(&call(), one, SystemTime::now())?;
    }
    Ok(())
}

fn act(base: &Path, task: &str) -> Result<(), Error> {
    let on = directories(base);
    let source = VolumeId::parse("src").expect("id");
    let old = SnapshotId::parse("src-old").expect("id");
    match task {
        "create" => create(&on, "made", None),
        "restore" => create(&on, "made", Some(Source::Snapshot(old))),
        "clone" => create(&on, "made", Some(Source::Volume(source))),
        "delete created" => delete(&on, "made"),
        "snapshot" => snapshot(&on, "new"),
        "delete taken" => delete_snapshot(&on, "src-new"),
        "delete" => delete(&on, "full"),
        "recreate" => create(&on, "full", None),
        "delete snapshot" => delete_snapshot(&on, "src-old"),
        "retake" => snapshot(&on, "old"),
        "expand" => {
            let size = SizeRange::new(9 << 30, 0).expect("range");
            on.expand_volume(&call(), &source, size).map(drop)
        }
        "delete source" => delete(&on, "src"),
        "group" => group(&on),
        "delete group" => on.remove_members(&call(), &both().0),
        // There was none for one more.
        "group without room" => group(&on).and_then(|()| {
            let (place, _) = both();
            on.take_back(&call(), &place, &dirs(&place)).map(drop)
        }),
        "race" => race(&on),
        "conflict" => conflict(&on),
        "name src" => names(&on, "src"),
        "name full" => names(&on, "full"),
        _ => panic!("no such task: {task}"),
    }
}

/// The same requests as the other process.
fn race(on: &Directories) -> Result<(), Error> {
    for number in 0..60 {
        let name = format!("both-{number}");
        let source = VolumeId::parse("src").expect("id");
        create(
            on,
            &name,
            (number % 2 == 0).then_some(Source::Volume(source)),
        )?;
        if number % 3 == 0 {
            snapshot(on, &name)?;
        }
    }
    for number in (0..60).step_by(5) {
        delete(on, &format!("both-{number}"))?;
    }
    Ok(())
}

/// Snapshots with the names that the other process gives to those of another volume.
fn names(on: &Directories, volume: &str) -> Result<(), Error> {
    for number in 0..100 {
        match snapshot_of(on, volume, &format!("n{number}")) {
            Err(error) if error.kind() != Kind::Conflict => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Other requests than the other process; fails unless each name is made by one of the two.
fn conflict(on: &Directories) -> Result<(), Error> {
    let own = i64::from(std::process::id());
    let mut won = String::new();
    for number in 0..100 {
        let name = format!("one-{number}");
        let mut wanted = volume(&name, own, None);
        wanted.size = SizeRange::new(own, own).expect("range");
        match on.create_volume(&call(), &wanted) {
            Ok(made) if made.capacity == u64::try_from(own).ok() => {
                won.push_str(&name);
                won.push('\n');
            }
            Err(error) if error.kind() == Kind::Conflict => {}
            Ok(other) => panic!("answered with another's volume: {other:?}"),
            Err(error) => return Err(error),
        }
    }
    let report = on.store.base.path().as_path().join(format!("won-{own}"));
    std::fs::write(report, won).expect("report");
    Ok(())
}

fn set_up(base: &Path) {
    let on = directories(base);
    create(&on, "src", None).expect("source");
    create(&on, "full", None).expect("full");
    for name in ["src", "full"] {
        let top = base.join("v").join(name);
        std::fs::create_dir_all(top.join("a/b")).expect("folders");
        std::fs::write(top.join("a/b/file"), "content").expect("file");
        std::fs::hard_link(top.join("a/b/file"), top.join("linked")).expect("link");
        symlink("a", top.join("to-a")).expect("link");
    }
    snapshot(&on, "old").expect("snapshot");
}

/// Starts this program for one task; at mark `stop` it ends itself.
#[expect(
    clippy::disallowed_methods,
    reason = "a process that is killed has to be another one"
)]
fn start(base: &Path, task: &str, stop: usize) -> Child {
    std::process::Command::new(std::env::current_exe().expect("program"))
        .args(["--exact", "crash_tests::the_child_of_the_other_tests"])
        .env(TASK, format!("{task}\n{stop}\n{}", base.display()))
        .stdout(Stdio::null())
        .spawn()
        .expect("child")
}

fn run(base: &Path, task: &str, stop: usize) -> ExitStatus {
    start(base, task, stop).wait().expect("child")
}

#[test]
fn the_child_of_the_other_tests() {
    let Ok(task) = std::env::var(TASK) else {
        return;
    };
    let parts: Vec<&str> = task.splitn(3, '\n').collect();
    stop_at(parts[1].parse().expect("number"));
    let base = Path::new(parts[2]);
    act(base, parts[0]).expect("the task succeeds");
    let count = base.parent().expect("folder").join("count");
    std::fs::write(count, passed().to_string()).expect("count");
}

/// Names and contents below `top`; nothing if it is not there.
fn content(top: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut pending = vec![top.to_path_buf()];
    while let Some(path) = pending.pop() {
        if let Ok(entries) = std::fs::read_dir(&path) {
            pending.extend(entries.map(|entry| entry.expect("entry").path()));
        }
        if path.symlink_metadata().is_ok() {
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            found.push((path.strip_prefix(top).expect("below").to_path_buf(), text));
        }
    }
    found.sort();
    found
}

/// The objects that are being made, deleted or locked, without the locks that stay.
fn leftovers(base: &Path) -> Vec<PathBuf> {
    let list = |dir: PathBuf| std::fs::read_dir(dir).into_iter().flatten();
    let private = ["making", "trash", "makers"].map(|name| base.join(".omnibus-csi").join(name));
    let collections = ["v", "s"].map(|name| base.join(name));
    let paths = |dir| list(dir).map(|entry| entry.expect("entry").path());
    let temporary = |path: &PathBuf| {
        let name = path.file_name().expect("name");
        name.as_encoded_bytes().starts_with(b".")
    };
    let private = private.into_iter().flat_map(paths);
    let collections = collections.into_iter().flat_map(paths).filter(temporary);
    let stays = |path: &PathBuf| {
        ["names", "projects", "marker"]
            .map(|name| base.join(".omnibus-csi/makers").join(name))
            .contains(path)
    };
    private
        .chain(collections)
        .filter(|path| !stays(path))
        .collect()
}

fn fresh() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("folder");
    let base = dir.path().join("base");
    set_up(&base);
    (dir, base)
}

#[test]
fn a_process_killed_at_any_step_leaves_nothing_that_looks_ready_and_a_retry_converges() {
    for (verb, opposite, object) in VERBS {
        let (dir, base) = fresh();
        let before = content(&base.join(object));
        assert!(run(&base, verb, 0).success(), "{verb}");
        let after = content(&base.join(object));
        let count = std::fs::read_to_string(dir.path().join("count")).expect("count");
        let count: usize = count.parse().expect("number");
        assert!(count > 0, "{verb} passes no mark");
        for number in 1..=count {
            for calls in [&[verb, opposite][..], &[opposite], &[]] {
                let (_dir, base) = fresh();
                assert!(
                    !run(&base, verb, number).success(),
                    "{verb} stops at {number}"
                );
                let now = content(&base.join(object));
                assert!(now == before || now == after, "{verb} at {number}: {now:?}");
                for call in calls {
                    act(&base, call).unwrap_or_else(|error| {
                        panic!("{verb} at {number}, then {call}: {}", error.chain())
                    });
                }
                let undone = content(&base.join(object));
                let gone = opposite.starts_with("delete");
                if calls.is_empty() {
                    // What a call reported as absent does not appear by itself.
                    assert_eq!(undone, now, "{verb} at {number}");
                } else {
                    assert_eq!(undone.is_empty(), gone, "{verb} at {number}: {undone:?}");
                }
                // Any later call that makes something finds what was left.
                create(&directories(&base), "later", None).expect("later");
                assert_eq!(content(&base.join(object)), undone, "{verb} at {number}");
                assert_eq!(
                    leftovers(&base),
                    Vec::<PathBuf>::new(),
                    "{verb} at {number}"
                );
            }
        }
    }
}

/// Of each snapshot of the group of both volumes what is in it, and whether it counts as one of the group.
fn of_group(base: &Path) -> Vec<(Vec<(PathBuf, String)>, bool)> {
    let (group, _) = both();
    let found = directories(base).members(&group).expect("members");
    let dirs = group.members.iter().map(|(_, dir)| dir.as_str());
    let contents = dirs.map(|dir| content(&base.join("s").join(dir)));
    contents.zip(found.iter().map(Option::is_some)).collect()
}

#[test]
fn a_group_killed_at_any_step_has_whole_snapshots_only_and_a_retry_or_its_deletion_converges() {
    let (_dir, made) = fresh();
    act(&made, "group").expect("a group");
    let (none, all) = (of_group(&fresh().1), of_group(&made));
    assert!(
        all.iter()
            .all(|(content, is_member)| *is_member && content.len() > 4)
    );
    for (verb, start) in [
        ("group", None),
        ("group without room", None),
        ("delete group", Some("group")),
    ] {
        let prepared = || {
            let (dir, base) = fresh();
            if let Some(start) = start {
                act(&base, start).expect("prepared");
            }
            (dir, base)
        };
        let (dir, base) = prepared();
        assert!(run(&base, verb, 0).success(), "{verb}");
        let count = std::fs::read_to_string(dir.path().join("count")).expect("count");
        let count: usize = count.parse().expect("number");
        assert!(count > 2, "{verb} passes few marks");
        for number in 1..=count {
            for (calls, end) in [
                (&["group"][..], &all),
                (&["delete group"], &none),
                (&["delete group", "group"], &all),
            ] {
                // What is left of a deletion is no group that is completed.
                if verb == "delete group" && calls == ["group"] {
                    continue;
                }
                let (_dir, base) = prepared();
                assert!(!run(&base, verb, number).success(), "{verb} at {number}");
                for (now, whole) in of_group(&base).iter().zip(&all) {
                    let absent = now.0.is_empty() && !now.1;
                    assert!(absent || now == whole, "{verb} at {number}: {now:?}");
                }
                for call in calls {
                    act(&base, call).unwrap_or_else(|error| {
                        panic!("{verb} at {number}, then {call}: {}", error.chain())
                    });
                }
                assert_eq!(of_group(&base), *end, "{verb} at {number}, then {calls:?}");
                create(&directories(&base), "later", None).expect("later");
                assert_eq!(leftovers(&base), Vec::<PathBuf>::new());
            }
        }
    }
}

#[test]
fn a_process_killed_while_it_makes_the_base_leaves_one_that_the_next_volume_completes() {
    let mut number = 1;
    loop {
        let dir = tempfile::tempdir().expect("folder");
        let base = dir.path().join("base");
        let finished = run(&base, "create", number).success();
        act(&base, "create").unwrap_or_else(|error| panic!("at {number}: {}", error.chain()));
        act(&base, "delete created").expect("deleted");
        let list = std::fs::read_dir(&base).expect("list");
        let names = list.map(|entry| entry.expect("entry").file_name());
        let names = names.filter(|name| name != ".omnibus-csi");
        let names: std::collections::BTreeSet<_> = names.collect();
        assert_eq!(names, [MARKER.into(), "v".into()].into(), "at {number}");
        assert_eq!(leftovers(&base), Vec::<PathBuf>::new(), "at {number}");
        if finished {
            break;
        }
        number += 1;
    }
    assert!(number > 5, "the base is made in several steps");
}

#[test]
fn two_processes_with_the_same_requests_both_succeed_and_leave_nothing() {
    let (_dir, base) = fresh();
    let both = [start(&base, "race", 0), start(&base, "race", 0)];
    for mut child in both {
        assert!(child.wait().expect("child").success());
    }
    let wanted = content(&base.join("v/src"));
    for number in (0..60).filter(|number| number % 5 != 0) {
        let made = content(&base.join(format!("v/both-{number}")));
        assert_eq!(made.len(), if number % 2 == 0 { wanted.len() } else { 1 });
    }
    create(&directories(&base), "later", None).expect("later");
    assert_eq!(leftovers(&base), Vec::<PathBuf>::new());
}

#[test]
fn of_two_processes_with_different_requests_one_wins_each_name() {
    let (_dir, base) = fresh();
    let both = [start(&base, "conflict", 0), start(&base, "conflict", 0)];
    let mut won = Vec::new();
    for mut child in both {
        assert!(child.wait().expect("child").success());
        let report = base.join(format!("won-{}", child.id()));
        let text = std::fs::read_to_string(report).expect("report");
        won.extend(text.lines().map(str::to_owned));
    }
    let distinct = won.iter().collect::<std::collections::BTreeSet<_>>().len();
    assert_eq!((won.len(), distinct), (100, 100));
    create(&directories(&base), "later", None).expect("later");
    assert_eq!(leftovers(&base), Vec::<PathBuf>::new());
}

#[test]
fn of_two_processes_that_give_one_name_to_snapshots_of_two_volumes_one_wins() {
    let (_dir, base) = fresh();
    let both = [start(&base, "name src", 0), start(&base, "name full", 0)];
    for mut child in both {
        assert!(child.wait().expect("child").success());
    }
    let taken = std::fs::read_dir(base.join("s")).expect("list").count();
    // And the one that was there.
    assert_eq!(taken, 100 + 1);
    assert_eq!(leftovers(&base), Vec::<PathBuf>::new());
}
