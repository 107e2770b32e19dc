//! Filesystems whose server does not answer: FUSE without a daemon stands in for a dead server.

#![expect(
    clippy::disallowed_methods,
    reason = "mounts as other programs make them, in a private mount namespace"
)]

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::mount::MountFlags as Flags;

use super::*;

/// Mounts a filesystem at `path` whose daemon never answers, as long as what is returned lives;
/// afterwards it is dead.
pub(super) fn fuse(path: &Path) -> Option<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let device = match rustix::fs::open("/dev/fuse", flags, Mode::empty()) {
        Ok(device) => device,
        Err(errno) => {
            crate::requirement::could_not_run(
                "a filesystem that does not answer",
                &errno.to_string(),
            );
            return None;
        }
    };
    let options = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0",
        device.as_raw_fd()
    );
    let options = std::ffi::CString::new(options).expect("text");
    rustix::mount::mount(
        "silent",
        path,
        "fuse.silent",
        Flags::empty(),
        options.as_c_str(),
    )
    .expect("fuse");
    Some(device)
}

/// For what is to end well: half of it passes before anything is done by force.
const ENOUGH: u64 = 6_000;

fn within(millis: u64) -> Limits {
    Limits::until(Instant::now() + Duration::from_millis(millis))
}

#[test]
fn a_filesystem_that_does_not_answer_is_taken_away_in_time() {
    bench(|bench| {
        let before = bench.mounts();
        for name in ["s", "t"] {
            fs::create_dir(bench.path("k").join(name)).expect("dir");
        }
        let (Some(_one), Some(_two)) = (fuse(&bench.path("k/s")), fuse(&bench.path("k/t"))) else {
            return;
        };
        let looked = bench.run(bench.node.stats(
            within(50),
            AbsolutePath::parse(&bench.text("k/s")).expect("path"),
        ));
        refused(looked, Kind::Timeout);
        bench
            .run(bench.node.unpublish(within(ENOUGH), bench.target("t")))
            .expect("unpublish");
        bench
            .run(bench.node.unstage(within(ENOUGH), bench.staging("s")))
            .expect("unstage");
        bench.nothing_is_left(before);
    });
}

#[test]
fn a_server_that_does_not_answer_is_a_storage_that_is_not_reached() {
    bench(|bench| {
        let staged = "k/plugins/kubernetes.io/csi/org.example/a/globalmount";
        fs::create_dir_all(bench.path(staged)).expect("dir");
        let Some(_daemon) = fuse(&bench.path(staged)) else {
            return;
        };
        let of = |driver: &str| {
            let found = bench.run(bench.node.storage_conditions(soon(), driver));
            let found = found.expect("look");
            let shown = found.iter().map(|one| (one.kind(), one.reason()));
            shown.collect::<Vec<_>>()
        };
        let silent = [(ConditionKind::Inaccessible, health::NO_ANSWER)];
        assert_eq!(of("org.example"), silent);
        // An earlier look has not returned.
        assert_eq!(of("org.example"), silent);
        assert!(of("org.other").is_empty());
        bench
            .run(
                bench
                    .node
                    .unstage(within(ENOUGH), bench.staging(&staged[2..])),
            )
            .expect("unstage");
    });
}

#[test]
fn of_a_server_whose_first_mount_answers_with_an_error_the_next_is_looked_at() {
    bench(|bench| {
        let staged =
            |name: &str| format!("k/plugins/kubernetes.io/csi/org.example/{name}/globalmount");
        for name in ["a", "b"] {
            fs::create_dir_all(bench.path(&staged(name))).expect("dir");
        }
        let look = || {
            let looked = bench.node.storage_conditions(soon(), "org.example");
            let found = bench.run(looked).expect("look");
            let shown = found.iter().map(|one| (one.kind(), one.reason()));
            shown.collect::<Vec<_>>()
        };
        let Some(first) = fuse(&bench.path(&staged("a"))) else {
            return;
        };
        // Without its daemon it answers with an error.
        drop(first);
        assert_eq!(look(), [(ConditionKind::Degraded, health::NO_ANSWER)]);
        let Some(_second) = fuse(&bench.path(&staged("b"))) else {
            return;
        };
        assert_eq!(look(), [(ConditionKind::Inaccessible, health::NO_ANSWER)]);
        for name in ["a", "b"] {
            let staging = bench.staging(&staged(name)[2..]);
            let unstaged = bench.run(bench.node.unstage(within(ENOUGH), staging));
            unstaged.expect("unstage");
        }
    });
}

#[test]
fn other_waiting_processes_do_not_get_an_error() {
    bench(|bench| {
        let before = bench.mounts();
        for name in ["t", "u"] {
            fs::create_dir(bench.path("k").join(name)).expect("dir");
        }
        let Some(_daemon) = fuse(&bench.path("k/t")) else {
            return;
        };
        bind_plainly(&bench.path("k/t"), &bench.path("k/u"));
        let look = |relative: &str| {
            let path = AbsolutePath::parse(&bench.text(relative)).expect("path");
            refused(bench.run(bench.node.stats(within(50), path)), Kind::Timeout);
        };
        // A pending read keeps it in use.
        look("k/t");
        let unpublish = |name| bench.run(bench.node.unpublish(within(ENOUGH), bench.target(name)));
        unpublish("t").expect("unpublish");
        assert!(!bench.path("k/t").exists());
        // Known to be unresponsive: the call does not wait again.
        look("k/u");
        unpublish("u").expect("unpublish");
        bench.nothing_is_left(before);
    });
}

#[test]
fn a_read_that_hangs_does_not_block_an_unpublish() {
    bench(|bench| {
        let before = bench.mounts();
        for name in ["s", "t"] {
            fs::create_dir(bench.path("k").join(name)).expect("dir");
        }
        let (Some(_one), Some(_two)) = (fuse(&bench.path("k/s")), fuse(&bench.path("k/t"))) else {
            return;
        };
        let guard = Arc::new(());
        let request = ExpandRequest {
            path: AbsolutePath::parse(&bench.text("k/t")).expect("path"),
            required: None,
        };
        let grown = |limits: Limits| bench.run(bench.node.expand(limits, request.clone()));
        let limits = within(50).holding(Arc::clone(&guard));
        refused(grown(limits), Kind::Timeout);
        assert_eq!(Arc::strong_count(&guard), 1, "the volume is locked");
        // At once: each look costs a thread.
        let error = refused(grown(soon()), Kind::Timeout);
        assert!(error.advice().is_some_and(|text| text.contains("earlier")));
        let request = PublishRequest {
            attachment: LoopStorage::attachment("one"),
            ..bench.request("u")
        };
        let limits = within(50).holding(Arc::clone(&guard));
        let published = bench.run(bench.node.publish(limits, request));
        refused(published, Kind::Timeout);
        let request = bench.stage_request("one", "s", Access::Mount(MountAccess::default()));
        let limits = within(50).holding(Arc::clone(&guard));
        let staged = bench.run(bench.node.stage(limits, request));
        let error = refused(staged, Kind::Timeout);
        assert!(error.advice().is_some_and(|text| text.contains("earlier")));
        assert_eq!(Arc::strong_count(&guard), 1, "the volume is locked");
        bench
            .run(bench.node.unpublish(within(ENOUGH), bench.target("t")))
            .expect("unpublish");
        bench
            .run(bench.node.unstage(within(ENOUGH), bench.staging("s")))
            .expect("unstage");
        bench.nothing_is_left(before);
    });
}

#[test]
fn a_filesystem_whose_daemon_died_is_taken_away_by_every_verb() {
    bench(|bench| {
        let before = bench.mounts();
        for name in ["s", "t"] {
            fs::create_dir(bench.path("k").join(name)).expect("dir");
        }
        let (Some(one), Some(two)) = (fuse(&bench.path("k/s")), fuse(&bench.path("k/t"))) else {
            return;
        };
        drop((one, two));
        bench.stage("one", "s").expect("stage");
        bench.publish(bench.request("t")).expect("publish");
        assert_eq!(fs::read(bench.path("k/t/name")).expect("read"), b"one");
        bench.unpublish("t").expect("unpublish");
        bench.unstage("s").expect("unstage");
        bench.nothing_is_left(before);
    });
}

#[test]
fn no_call_waits_for_a_volume_that_does_not_answer() {
    bench(|bench| {
        fs::create_dir(bench.path("k/dead")).expect("dir");
        let Some(_silent) = fuse(&bench.path("k/dead")) else {
            return;
        };
        let path = AbsolutePath::parse(&bench.text("k/dead")).expect("path");
        refused(bench.run(bench.node.stats(within(20), path)), Kind::Timeout);
        bench.stage("one", "s").expect("stage");
        bench.publish(bench.request("t")).expect("publish");
        bench.stats("k/t").expect("stats");
        bench.unpublish("t").expect("unpublish");
        bench.unstage("s").expect("unstage");
        bench
            .run(bench.node.unpublish(within(ENOUGH), bench.target("dead")))
            .expect("unpublish");
    });
}

#[test]
fn statistics_of_what_does_not_answer_are_its_condition_within_a_second() {
    bench(|bench| {
        fs::create_dir(bench.path("k/t")).expect("dir");
        let path = AbsolutePath::parse(&bench.text("k/t")).expect("path");
        let look = || bench.run(bench.node.stats_soon(soon(), path.clone()));
        refused(look(), Kind::NotFound);
        let Some(_daemon) = fuse(&bench.path("k/t")) else {
            return;
        };
        // A call may take a minute; the look does not. The next one does not wait at all.
        for most in [2, 1] {
            let began = std::time::Instant::now();
            let stats = look().expect("an answer");
            assert!(began.elapsed() < Duration::from_secs(most), "{most}");
            assert_eq!((stats.bytes, stats.inodes), (None, None));
            let worst = stats.conditions.worst().expect("a condition");
            assert_eq!(worst.reason(), health::NO_ANSWER);
        }
        bench
            .run(bench.node.unpublish(within(ENOUGH), bench.target("t")))
            .expect("unpublish");
    });
}

#[test]
fn the_health_of_what_does_not_answer_is_known_within_a_second_and_at_once_the_next_time() {
    bench(|bench| {
        fs::create_dir(bench.path("k/t")).expect("dir");
        let Some(_daemon) = fuse(&bench.path("k/t")) else {
            return;
        };
        let paths = [AbsolutePath::parse(&bench.text("k/t")).expect("path")];
        // A call may take a minute; the look does not.
        for most in [3, 1] {
            let began = std::time::Instant::now();
            let found = bench.run(bench.node.conditions(soon(), &paths));
            let found = found.expect("an answer");
            let worst = found.worst().expect("a condition");
            assert_eq!(worst.reason(), health::NO_ANSWER);
            assert!(began.elapsed() < Duration::from_secs(most), "{most}");
        }
        bench
            .run(bench.node.unpublish(within(ENOUGH), bench.target("t")))
            .expect("unpublish");
    });
}
