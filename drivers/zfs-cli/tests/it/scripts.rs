//! The scripts of the command line backend, run by the shells and tools of this machine with a `zfs`
//! that only pretends: copies that fail at either end, guards, ends that are not seen.

use std::path::Path;
use std::time::Duration;

use driver_core::{Effect, Kind};
use driver_zfs::backend::Backend;
use driver_zfs::export::Opaque;
use driver_zfs::name::SnapshotRef;
use driver_zfs::observed::{Guid, Query, Request};
use driver_zfs::property::{Property, PropertyName, PropertyValue};
use driver_zfs::step::{Guard, Next, Plan, Step, Still};

use crate::fake::{call, dataset, host};
use exec::Runner as _;

fn copying() -> Plan {
    let mut plan = Plan::about(dataset("tank/v/b"));
    plan.step(Step::Copy {
        from: SnapshotRef::parse("tank/v/a@s").unwrap(),
        to: dataset("tank/v/b"),
        properties: Vec::new(),
    });
    plan
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_fails_at_either_end_has_failed() {
    for (send, receive, whole) in [(0, 0, true), (1, 0, false), (0, 1, false), (1, 1, false)] {
        let folder = tempfile::tempdir().unwrap();
        let script = format!(
            "case $1 in send) echo \"stream of $2\"; echo sent >&2; exit {send} ;;\n\
             receive) cat >{}/received; exit {receive} ;; esac",
            folder.path().display()
        );
        let cli = host(folder.path(), &script);
        let nothing = Request::of([]);
        let done = cli.apply(&call(), &copying(), &nothing).await;
        assert_eq!(done.is_ok(), whole, "send {send}, receive {receive}");
        let received = std::fs::read_to_string(folder.path().join("received")).unwrap();
        assert_eq!(received, "stream of tank/v/a@s\n");
    }
    for killed in ["send", "receive"] {
        let folder = tempfile::tempdir().unwrap();
        let script = format!(
            "[ $1 = {killed} ] && kill -9 $PPID; case $1 in send) echo stream ;; *) cat >/dev/null ;; esac"
        );
        let cli = host(folder.path(), &script);
        let done = cli.apply(&call(), &copying(), &Request::of([])).await;
        assert!(done.is_err(), "{killed} was killed");
    }
}

/// What a `zfs` was asked for that shows this token and says this about it, and this of a stream that it
/// refuses, if it does, and whether all went well.
async fn going_on(token: &str, said: &str, status: u8, refused: &str) -> (String, bool) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("said"), said).unwrap();
    std::fs::write(folder.path().join("refused"), refused).unwrap();
    let script = format!(
        "cd {}; echo \"$*\" >>asked\n\
         case $* in get*) echo '{token}' ;; send\\ -nvt*) cat said; exit {status} ;;\n\
         send*) echo rest ;; receive\\ -A*) ;; receive*) cat >>received; cat refused >&2; [ ! -s refused ] ;; esac",
        folder.path().display()
    );
    let cli = host(folder.path(), &script);
    let mut plan = Plan::about(dataset("tank/v/b"));
    plan.step(Step::GoOn {
        from: SnapshotRef::parse("tank/v/a@s").unwrap(),
        to: dataset("tank/v/b"),
    });
    let done = cli.apply(&call(), &plan, &Request::of([])).await;
    let asked = std::fs::read_to_string(folder.path().join("asked")).unwrap();
    let received = std::fs::read_to_string(folder.path().join("received"));
    assert_eq!(received.is_ok(), asked.contains("receive -s"));
    assert!(received.is_ok_and(|all| all == "rest\n") || !asked.contains("receive -s"));
    let changes = asked.lines().filter(|line| {
        let looks = ["get ", "send -nvt "];
        !looks.iter().any(|look| line.starts_with(look))
    });
    let mut changes: Vec<_> = changes.collect();
    changes.sort_unstable();
    (changes.join("; "), done.is_ok())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_goes_on_only_with_the_snapshot_that_it_is_of() {
    // All that is said of tokens was read in `libzfs_sendrecv.c` of OpenZFS 0.8 to 2.3; the contents are
    // shortened.
    let contents = "resume token contents:\n\ttoname = tank/v/a@s\nfull send\n";
    let on = "receive -s -u tank/v/b@s; send -t 1-ab";
    let ended = "receive -A tank/v/b";
    for (token, said, status, changes, well) in [
        ("1-ab", contents, 0, on, true),
        ("1-ab", "\ttoname = tank/v/a@s", 0, on, true),
        // It came to its end before its turn.
        ("-", "", 0, "", true),
        ("", "", 0, "", true),
        // Another one's, if by a letter.
        ("1-ab", "\ttoname = tank/v/a@s2\n", 0, ended, true),
        ("1-ab", "\ttoname = tank/v/A@s\n", 0, ended, true),
        (
            "1-ab",
            "cannot resume send: 'tank/v/a@s' used in the initial send no longer exists\n",
            1,
            ended,
            true,
        ),
        (
            "1-ab",
            "\ttoname = tank/v/a@s\ncannot resume send: 'tank/v/a@s' is no longer the same snapshot used in the initial send\n",
            255,
            ended,
            true,
        ),
        // A corrupt token stays corrupt.
        (
            "1-ab",
            "cannot resume send: resume token is corrupt (incorrect checksum)\n",
            1,
            ended,
            true,
        ),
        // The driver concludes nothing from a failure it does not know.
        (
            "1-ab",
            "cannot resume send: permission denied\n",
            1,
            "",
            false,
        ),
        ("1-ab", "\ttoname = tank/v/a@s\n", 1, "", false),
        ("1-ab", "", 0, "", false),
    ] {
        let seen = going_on(token, said, status, "").await;
        assert_eq!(seen, (changes.to_owned(), well), "{token}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_that_will_never_go_on_is_ended_and_one_that_was_cut_again_is_not() {
    // Captured, 2.3.9, or read in the sources of 0.8 to 2.3.
    for (refused, ends) in [
        ("cannot receive resume stream: invalid backup stream", true),
        (
            "cannot receive resume stream: kernel modules must be upgraded to receive this stream.",
            true,
        ),
        (
            "cannot receive resume stream: checksum mismatch or incomplete stream.\nPartially received snapshot is saved.",
            false,
        ),
        ("cannot receive resume stream: out of space", false),
        ("cannot receive resume stream: dataset is busy", false),
        (
            "cannot receive resume stream: inherited key must be loaded",
            false,
        ),
    ] {
        let (changes, well) = going_on("1-ab", "toname = tank/v/a@s\n", 0, refused).await;
        assert_eq!(changes.contains("receive -A"), ends, "{refused}: {changes}");
        assert_eq!(well, ends, "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_that_receives_nothing_that_could_go_on_receives_it_all_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let script = format!(
        "cd {}; echo \"$*\" >>asked; case $* in send*) echo stream ;;\n\
         *\\ -s\\ *) cat >/dev/null; echo 'cannot receive new filesystem stream: pool must be upgraded to receive this stream.' >&2; exit 1 ;;\n\
         *) cat >received ;; esac",
        folder.path().display()
    );
    let cli = host(folder.path(), &script);
    let done = cli.apply(&call(), &copying(), &Request::of([])).await;
    assert!(done.is_ok(), "{done:?}");
    let received = std::fs::read_to_string(folder.path().join("received")).unwrap();
    assert_eq!(received, "stream\n");
    let asked = std::fs::read_to_string(folder.path().join("asked")).unwrap();
    let receives = asked.lines().filter(|line| line.starts_with("receive"));
    let receives: Vec<_> = receives.collect();
    assert_eq!(receives, ["receive -u -s tank/v/b", "receive -u tank/v/b"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clone_gets_all_that_may_be_set_later_how_acls_are_read_among_it() {
    let folder = tempfile::tempdir().unwrap();
    let words = folder.path().join("words");
    let script = format!("[ $1 = clone ] && echo \"$*\" >{}; exit 0", words.display());
    let cli = host(folder.path(), &script);
    let property = |name: &str, value: &str| {
        let value = PropertyValue::parse(value).unwrap();
        Property::new(PropertyName::parse(name).unwrap(), value)
    };
    let mut plan = Plan::about(dataset("tank/v/b"));
    plan.step(Step::Clone {
        origin: SnapshotRef::parse("tank/v/a@s").unwrap(),
        dataset: dataset("tank/v/b"),
        properties: vec![
            property("acltype", "posix"),
            property("casesensitivity", "mixed"),
            property("aclmode", "passthrough"),
        ],
    });
    cli.apply(&call(), &plan, &Request::of([])).await.unwrap();
    let said = std::fs::read_to_string(words).unwrap();
    let expected = "clone -p -o acltype=posix -o aclmode=passthrough tank/v/a@s tank/v/b\n";
    assert_eq!(said, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_is_looked_at_while_it_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    // It ends only after it was looked at.
    let script = format!(
        "case $* in send*) while [ ! -e {0}/seen ]; do sleep 0.05; done; echo stream ;;\n\
         receive*) cat >/dev/null ;;\n\
         *'used tank/v/b') touch {0}/seen; echo 5 ;; *) echo 9 ;; esac",
        folder.path().display()
    );
    let cli = host(folder.path(), &script).telling_every(Duration::from_millis(20));
    let done = cli.apply(&call(), &copying(), &Request::of([])).await;
    assert!(done.is_ok(), "{done:?}");
    assert!(folder.path().join("seen").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_done_to_an_object_that_is_not_the_one_that_was_observed() {
    let folder = tempfile::tempdir().unwrap();
    let script = format!(
        "case $1 in get) printf 'tank/v/a\\t2\\n' ;; destroy) touch {}/destroyed ;; esac",
        folder.path().display()
    );
    let cli = host(folder.path(), &script);
    let mut plan = Plan::about(dataset("tank/v/a"));
    plan.guard(dataset("tank/v/a"), Guid(1));
    plan.step(Step::DestroyDataset(dataset("tank/v/a")));
    let failed = cli
        .apply(&call(), &plan, &Request::of([]))
        .await
        .unwrap_err();
    assert_eq!(failed.next, Next::Observe, "{}", failed.error.chain());
    assert!(!folder.path().join("destroyed").exists());
    assert_eq!(cli.runner().take(), 1);
    plan.guards[0].still = Still::Itself(Guid(2));
    cli.apply(&call(), &plan, &Request::of([])).await.unwrap();
    assert!(folder.path().join("destroyed").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_done_where_a_property_is_not_what_was_observed() {
    for (shown, text, fine) in [
        ("a,b\\tlocal", Some("a,b"), true),
        ("a,b\\treceived", Some("a,b"), true),
        ("a,b,c\\tlocal", Some("a,b"), false),
        ("a,b\\tinherited from tank", Some("a,b"), false),
        ("a,b\\tinherited from tank", None, true),
        ("a,b\\tlocal", None, false),
        ("-\\t-", None, true),
        ("-\\t-", Some("a"), false),
        ("off\\tdefault", None, true),
        ("-\\tlocal", None, true),
        ("\\tlocal", None, true),
        (
            "it is \"$(so)\" *\\n\\tx\\tlocal",
            Some("it is \"$(so)\" *\n\tx"),
            true,
        ),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let script = format!(
            "case $* in 'get -Hp -o value,source x:y tank/v/a') printf '%b\\n' '{shown}' ;;\n\
             set*) touch {}/set ;; *) exit 9 ;; esac",
            folder.path().display()
        );
        let cli = host(folder.path(), &script);
        let mut plan = Plan::about(dataset("tank/v/a"));
        let name = PropertyName::parse("x:y").unwrap();
        plan.guards.push(Guard {
            object: dataset("tank/v/a").into(),
            still: Still::Has(name, text.map(str::to_owned)),
        });
        plan.step(Step::Set {
            object: dataset("tank/v/a").into(),
            properties: vec![Property::new(PropertyName::REFQUOTA, 1.into())],
        });
        let done = cli.apply(&call(), &plan, &Request::of([])).await;
        let next = done.as_ref().err().map(|failed| failed.next);
        assert_eq!(next, (!fine).then_some(Next::Observe), "{shown}: {done:?}");
        assert_eq!(folder.path().join("set").exists(), fine, "{shown}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_that_gets_no_lock_of_the_target_stack_changes_nothing_and_is_retried() {
    let folder = tempfile::tempdir().unwrap();
    let held = folder.path().join("held");
    let stack = || exec::Lock::stack("lio").within_folder(folder.path().to_str().unwrap());
    let sh = |text: String| exec::Command::new(exec::Program::constant("sh")).args(["-c", &text]);
    let holder = stack().around(&sh(format!("touch {}; exec sleep 60", held.display())));
    let holding = tokio::spawn(async move { exec::Local::new().run(&holder).await });
    while !held.exists() {
        tokio::task::yield_now().await;
    }
    let cli = host(folder.path(), "exit 0");
    let marker = folder.path().join("marker");
    let step = sh(format!("touch {}", marker.display()));
    let step = stack().waiting(Duration::from_secs(1)).around(&step);
    let mut plan = Plan::about(dataset("tank/v/a"));
    plan.step(Step::Export(Opaque::new(step)));
    let nothing = Request::of([]);
    let failed = cli.apply(&call(), &plan, &nothing).await.unwrap_err();
    let why = failed.error.chain();
    assert_eq!(failed.next, Next::Queue, "{why}");
    assert_eq!(failed.error.kind(), Kind::Pending, "{why}");
    assert_eq!(failed.error.effect(), Effect::None, "{why}");
    assert!(!marker.exists());
    holding.abort();
}

#[tokio::test]
async fn a_script_that_waits_for_its_turn_by_itself_says_so_in_the_same_words() {
    let folder = tempfile::tempdir().unwrap();
    let cli = host(folder.path(), "exit 0");
    for (said, next) in [
        ("no turn within 30 s: others keep it", Next::Queue),
        ("others keep it", Next::Tell),
    ] {
        let text = format!("echo '{said}' >&2; exit 1");
        let mut plan = Plan::about(dataset("tank/v/a"));
        let sh = exec::Command::new(exec::Program::constant("sh"));
        plan.step(Step::Export(Opaque::new(sh.args(["-c", &text]))));
        let done = cli.apply(&call(), &plan, &Request::of([])).await;
        assert_eq!(done.unwrap_err().next, next, "{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_zfs_calls_done_already_is_done() {
    let folder = tempfile::tempdir().unwrap();
    // Captured from ZFS 2.3.9, or read in the sources of OpenZFS 0.8 to 2.3.
    for (complaint, step, fine) in [
        (
            "could not find any snapshots to destroy; check snapshot names.",
            Step::DestroySnapshot(SnapshotRef::parse("tank/v/a@s").unwrap()),
            true,
        ),
        (
            "cannot open 'tank/v/a': dataset does not exist",
            Step::DestroyDataset(dataset("tank/v/a")),
            true,
        ),
        (
            "cannot destroy 'tank/v/a': filesystem has children\nuse '-r' to destroy the following datasets:",
            Step::DestroyEmpty(dataset("tank/v/a")),
            true,
        ),
        (
            "cannot open 'tank/v/a': dataset does not exist",
            Step::DestroyEmpty(dataset("tank/v/a")),
            true,
        ),
        (
            "cannot destroy 'tank/v/a': dataset is busy",
            Step::DestroyEmpty(dataset("tank/v/a")),
            false,
        ),
        (
            "cannot destroy 'tank/v/a': filesystem has children",
            Step::DestroyDataset(dataset("tank/v/a")),
            false,
        ),
        (
            "cannot mount 'tank/v/a': filesystem already mounted",
            Step::Mount(dataset("tank/v/a")),
            true,
        ),
        (
            "cannot destroy 'tank/v/a': dataset is busy",
            Step::DestroyDataset(dataset("tank/v/a")),
            false,
        ),
        (
            "cannot open 'tank/v/a': dataset does not exist",
            Step::Promote(dataset("tank/v/a")),
            false,
        ),
    ] {
        let empty = "[ $1 = get ] && printf 'off\\nno\\n/tank/v/a\\n' && exit 0";
        let script = format!("{empty}; echo \"{complaint}\" >&2; exit 1");
        let cli = host(folder.path(), &script);
        let mut plan = Plan::about(dataset("tank/v/a"));
        plan.step(step);
        let done = cli.apply(&call(), &plan, &Request::of([])).await;
        assert_eq!(done.is_ok(), fine, "{complaint}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_held_snapshots_is_destroyed_only_if_it_is_seen_to_hold_no_files() {
    let folder = tempfile::tempdir().unwrap();
    let [empty, used] = ["empty", "u sed$(x)"].map(|name| folder.path().join(name));
    for path in [&empty, &used] {
        std::fs::create_dir(path).unwrap();
    }
    std::fs::write(used.join(".note"), "").unwrap();
    let shown = |path: &Path| path.to_str().unwrap().to_owned();
    let missing = shown(&folder.path().join("missing"));
    for (seen, goes) in [
        // As created: never mounted.
        (["off", "no", &shown(&used)], true),
        (["off", "no", "none"], true),
        // Created by an earlier version, or mounted since by an administrator.
        (["on", "yes", &shown(&empty)], true),
        (["on", "yes", &shown(&used)], false),
        (["off", "yes", &shown(&used)], false),
        // What is in it is not seen.
        (["on", "yes", &missing], false),
        (["on", "yes", "legacy"], false),
        (["on", "no", &shown(&empty)], false),
        (["noauto", "no", "none"], false),
        (["", "", ""], false),
    ] {
        let destroyed = folder.path().join("destroyed");
        let script = format!(
            "case $1 in get) printf '%s\\n' '{}' '{}' '{}' ;; destroy) touch {} ;; esac",
            seen[0],
            seen[1],
            seen[2],
            destroyed.display()
        );
        let cli = host(folder.path(), &script);
        let mut plan = Plan::about(dataset("tank/v/a"));
        plan.step(Step::DestroyEmpty(dataset("tank/v/a")));
        let done = cli.apply(&call(), &plan, &Request::of([])).await;
        assert!(done.is_ok(), "{seen:?}: {done:?}");
        assert_eq!(destroyed.exists(), goes, "{seen:?}");
        let _ = std::fs::remove_file(&destroyed);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_only_root_may_mount_is_mounted_and_destroyed_by_sudo_where_that_is_allowed() {
    let raised = "[ \"$1 $2\" = '-n --' ] || exit 9; shift 2; RAISED=yes exec \"$@\"";
    // Read in the sources of sudo.
    let asks = "echo 'sudo: a password is required' >&2; exit 1";
    // Captured from ZFS 2.3.9, or read in the sources of OpenZFS: `Insufficient privileges` in those of all
    // versions, what cannot be unshared in those from 2.0 on.
    for (complaint, sudo, fine) in [
        (
            "cannot mount '/tank/v/a': Insufficient privileges",
            raised,
            true,
        ),
        (
            "cannot unmount '/tank/v/a': permission denied",
            raised,
            true,
        ),
        ("cannot unmount '/tank/v/a': permission denied", asks, false),
        (
            "failed to lock /etc/exports.d/zfs.exports.lock: Permission denied\ncannot unshare 'tank/v/a': system error: NFS share removal failed",
            raised,
            true,
        ),
        // A permission that the administrator has withheld.
        (
            "cannot destroy 'tank/v/a': permission denied",
            raised,
            false,
        ),
        ("cannot open 'tank/v/a': permission denied", raised, false),
    ] {
        let zfs = format!("[ -n \"$RAISED\" ] || {{ echo \"{complaint}\" >&2; exit 1; }}");
        let folder = tempfile::tempdir().unwrap();
        crate::fake::program(folder.path(), "sudo", sudo);
        let cli = host(folder.path(), &zfs);
        for step in [
            Step::Mount(dataset("tank/v/a")),
            Step::DestroyDataset(dataset("tank/v/a")),
        ] {
            let mut plan = Plan::about(dataset("tank/v/a"));
            plan.step(step);
            let done = cli.apply(&call(), &plan, &Request::of([])).await;
            assert_eq!(done.is_ok(), fine, "{complaint}: {sudo}");
            if let Err(failed) = done {
                assert_eq!(failed.error.kind(), Kind::Denied);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_whose_end_was_not_seen_is_no_success_and_nothing_follows_it() {
    let folder = tempfile::tempdir().unwrap();
    // The shell that runs the script dies under it, as it does with its connection.
    let script = format!(
        "case $1 in set) touch {0}/set; kill -9 $PPID ;; *) touch {0}/other ;; esac",
        folder.path().display()
    );
    let cli = host(folder.path(), &script);
    let mut plan = Plan::about(dataset("tank/v/a"));
    plan.step(Step::Set {
        object: dataset("tank/v/a").into(),
        properties: vec![Property::new(PropertyName::REFQUOTA, 1.into())],
    });
    plan.step(Step::Promote(dataset("tank/v/a")));
    let call = call();
    let failed = cli.apply(&call, &plan, &Request::of([])).await.unwrap_err();
    assert_eq!(failed.next, Next::Tell);
    assert_eq!(
        failed.error.kind(),
        Kind::Unreachable,
        "{}",
        failed.error.chain()
    );
    assert_eq!(failed.error.effect(), Effect::Possible);
    assert_eq!(call.effect(), Effect::Possible);
    assert!(folder.path().join("set").exists());
    assert!(!folder.path().join("other").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_is_missing_is_the_fault_of_the_host_and_no_proof_that_nothing_was_done() {
    let folder = tempfile::tempdir().unwrap();
    let cli = host(folder.path(), "exit 0");
    let missing = exec::Program::constant("a-tool-that-does-not-exist");
    let tool = Step::Export(Opaque::new(exec::Command::new(missing)));
    let set = Step::Set {
        object: dataset("tank/v/a").into(),
        properties: vec![Property::new(PropertyName::REFQUOTA, 1.into())],
    };
    for (steps, effect) in [
        (vec![tool.clone()], Effect::None),
        (vec![set, tool], Effect::Possible),
    ] {
        let mut plan = Plan::about(dataset("tank/v/a"));
        plan.add(steps);
        let nothing = Request::of([]);
        let failed = cli.apply(&call(), &plan, &nothing).await.unwrap_err();
        let why = failed.error.chain();
        assert_eq!(failed.error.kind(), Kind::Internal, "{why}");
        assert_eq!(failed.error.effect(), effect, "{why}");
        assert!(why.contains("a-tool-that-does-not-exist"), "{why}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_look_under_the_lock_is_a_plan_without_steps() {
    let folder = tempfile::tempdir().unwrap();
    let absent = "case $* in *'type tank') exit 0 ;; esac\n\
                  echo \"cannot open 'tank/v/a': dataset does not exist\" >&2; exit 1";
    let cli = host(folder.path(), absent);
    let request = Request::of([Query::Family(dataset("tank/v/a"))]);
    let plan = Plan::about(dataset("tank/v/a"));
    let seen = cli.apply(&call(), &plan, &request).await.unwrap();
    assert!(seen.pool.dataset(&dataset("tank/v/a")).is_none());
    let locks = std::fs::read_dir(folder.path()).unwrap();
    assert_eq!(locks.count(), 2, "the program and the lock");
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshots_of_several_datasets_are_one_command_which_makes_all_or_none() {
    let names = ["tank/v/a@s", "tank/v/b@s"].map(|name| SnapshotRef::parse(name).unwrap());
    let mut plan = Plan::about(dataset("tank/v/a"));
    plan.step(Step::Snapshot {
        snapshots: names.to_vec(),
        properties: vec![Property::new(
            PropertyName::SNAPSHOT_NAME,
            PropertyValue::parse("s").unwrap(),
        )],
    });
    // `zfs snapshot` of OpenZFS: one transaction, and these lines where one of them exists.
    let exists =
        "cannot create snapshot 'tank/v/b@s': dataset already exists\nno snapshots were created";
    for (said, status) in [("", 0), (exists, 1)] {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("said"), said).unwrap();
        let script = format!(
            "cd {}; echo \"$*\" >>asked; cat said >&2; exit {status}",
            folder.path().display()
        );
        let cli = host(folder.path(), &script);
        let done = cli.apply(&call(), &plan, &Request::of([])).await;
        let failed = done.err();
        assert_eq!(
            failed.map(|failed| (failed.next, failed.error.kind())),
            (status != 0).then_some((Next::Observe, Kind::Conflict))
        );
        let asked = std::fs::read_to_string(folder.path().join("asked")).unwrap();
        let name = PropertyName::SNAPSHOT_NAME;
        let expected = format!("snapshot -o {name}=s tank/v/a@s tank/v/b@s\n");
        assert_eq!(asked, expected);
    }
}
