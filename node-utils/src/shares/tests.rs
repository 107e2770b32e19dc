//! A small FUSE filesystem stands in for a share: its daemon is the server, which can stop to answer, or die.

#![expect(
    clippy::disallowed_methods,
    reason = "mounts as other programs make them, in a private mount namespace"
)]

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use async_trait::async_trait;
use exec::testing::{OneByOne, RunOne};
use exec::{Command, Output, RunError, Status};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::MountFlags as Flags;

use super::*;
use crate::testing::with_own_mounts;
use csi_types::attachment::VolumeContext;
use csi_types::capability::MountFlags;
use csi_types::error::Effect;

/// Opcodes of FUSE.
const GETATTR: u32 = 3;
const STATFS: u32 = 17;
const INIT: u32 = 26;

/// The server of a share, and the program that mounts it.
#[derive(Debug, Default)]
struct Server {
    refuses: AtomicBool,
    mounts: AtomicUsize,
    /// Of the last mount: whether its daemon answers, and whether it lives.
    silent: Mutex<Arc<AtomicBool>>,
    dead: Mutex<Arc<AtomicBool>>,
    cannot: AtomicBool,
}

impl Server {
    /// The mounted share does not answer any more. The server answers those who mount it again.
    fn falls_silent(&self) {
        self.silent.lock().expect("lock").store(true, SeqCst);
    }

    /// The mounted share fails from now on.
    fn forgets(&self) {
        self.dead.lock().expect("lock").store(true, SeqCst);
    }

    fn mounts(&self) -> usize {
        self.mounts.load(SeqCst)
    }
}

#[async_trait]
impl RunOne for Server {
    async fn run_one(&self, command: &Command) -> Result<Output, RunError> {
        let refuses = self.refuses.load(SeqCst);
        let target = command.arguments().last().expect("a path").expose();
        if !refuses {
            let (silent, dead) = (Arc::default(), Arc::default());
            let mounted = serve(Path::new(target), Arc::clone(&silent), Arc::clone(&dead));
            self.cannot.fetch_or(!mounted, SeqCst);
            *self.silent.lock().expect("lock") = silent;
            *self.dead.lock().expect("lock") = dead;
            self.mounts.fetch_add(1, SeqCst);
        }
        Ok(Output {
            status: Status::Exit(if refuses { 32 } else { 0 }),
            stdout: Vec::new(),
            stderr: b"no server".to_vec(),
        })
    }
}

/// Mounts a filesystem with nothing but a root, and serves it on a thread.
fn serve(path: &Path, silent: Arc<AtomicBool>, dead: Arc<AtomicBool>) -> bool {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let device = match rustix::fs::open("/dev/fuse", flags, Mode::empty()) {
        Ok(device) => device,
        Err(errno) => {
            crate::requirement::could_not_run("a share of FUSE", &errno.to_string());
            return false;
        }
    };
    let options = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0",
        device.as_raw_fd()
    );
    let options = std::ffi::CString::new(options).expect("text");
    rustix::mount::mount(
        "s3://share",
        path,
        "fuse.objectivefs",
        Flags::empty(),
        options.as_c_str(),
    )
    .expect("fuse");
    std::thread::spawn(move || {
        while !dead.load(SeqCst) && answer(&device, &silent) {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    true
}

/// Answers what the kernel asks now; `false` if it never asks again.
fn answer(device: &OwnedFd, silent: &AtomicBool) -> bool {
    let mut asked = vec![0_u8; 1 << 17];
    loop {
        if silent.load(SeqCst) {
            return true;
        }
        match rustix::io::read(device, &mut asked[..]) {
            Ok(_) => {}
            Err(errno) => return errno == Errno::AGAIN || errno == Errno::INTR,
        }
        let word = |at: usize| u32::from_ne_bytes(asked[at..at + 4].try_into().expect("four"));
        let (mut error, mut body) = (0_i32, Vec::new());
        match word(4) {
            INIT => {
                body = vec![0; 64];
                for (at, value) in [(0, 7_u32), (4, 31), (20, 4096)] {
                    body[at..at + 4].copy_from_slice(&value.to_ne_bytes());
                }
            }
            GETATTR => {
                body = vec![0; 104];
                body[16] = 1;
                body[76..80].copy_from_slice(&0o040_755_u32.to_ne_bytes());
                body[80] = 2;
            }
            STATFS => body = vec![0; 80],
            _ => error = -Errno::NOSYS.raw_os_error(),
        }
        let length = u32::try_from(16 + body.len()).expect("short");
        let mut reply = length.to_ne_bytes().to_vec();
        reply.extend(error.to_ne_bytes());
        reply.extend(&asked[8..16]);
        reply.extend(body);
        let _ = rustix::io::write(device, &reply);
    }
}

fn share(server: &Arc<Server>, point: &Path, options: &[&str]) -> ShareMount {
    let context = VolumeContext::from(
        [
            ("node_attach_driver", "objectivefs"),
            ("filesystem", "s3://share"),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned())),
    );
    let access = MountAccess {
        flags: MountFlags::parse(options).expect("options"),
        ..MountAccess::default()
    };
    let point = AbsolutePath::parse(point.to_str().expect("text")).expect("path");
    let tools = Tools::all_through(Arc::new(OneByOne(Arc::clone(server))));
    let attachment = Attachment::parse(&context).expect("attachment");
    let mut share = ShareMount::new(tools, attachment, access, point, true);
    share.answers_within = Duration::from_millis(300);
    share.patience = Duration::ZERO;
    share
}

impl ShareMount {
    /// Forgets that it answered a moment ago.
    fn later(&self) -> &Self {
        *self.answered() = None;
        self
    }
}

fn layers(point: &Path) -> usize {
    let table = MountTable::read().expect("table");
    table.layers(point).count()
}

/// Runs `test` on a thread with mounts of its own.
fn alone<F: Future<Output = ()>>(
    test: impl FnOnce(Arc<Server>, std::path::PathBuf) -> F + Send + 'static,
) {
    with_own_mounts(|top| {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().build().expect("runtime");
        runtime.block_on(test(Arc::default(), top.join("share")));
        runtime.shutdown_background();
    });
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

#[test]
fn a_share_is_mounted_by_its_first_use_and_unmounted_with_its_last_user() {
    alone(async |server, point| {
        let one = share(&server, &point, &[]);
        assert!(!point.exists(), "touched before its use");
        one.ensure(soon()).await.expect("mounted");
        if server.cannot.load(SeqCst) {
            return;
        }
        one.later().ensure(soon()).await.expect("still mounted");
        let two = share(&server, &point, &[]);
        two.ensure(soon()).await.expect("mounted by the other");
        drop(one);
        assert_eq!((layers(&point), server.mounts()), (1, 1));
        drop(two);
        assert_eq!(layers(&point), 0);
        assert!(!point.exists(), "a folder of its own");
    });
}

#[test]
fn a_share_that_does_not_answer_or_fails_is_mounted_anew_in_time() {
    alone(async |server, point| {
        let share = share(&server, &point, &[]);
        share.ensure(soon()).await.expect("mounted");
        if server.cannot.load(SeqCst) {
            return;
        }
        server.falls_silent();
        // A call that waits for the server, and gets an error instead of waiting forever.
        let waits = point.clone();
        let (said, answer) = std::sync::mpsc::channel();
        std::thread::spawn(move || said.send(rustix::fs::statvfs(&waits).map(drop)));
        let late = share.later().ensure(Instant::now()).await;
        assert_eq!(late.expect_err("no time").kind(), Kind::Timeout);
        let began = Instant::now();
        share.later().ensure(soon()).await.expect("mounted again");
        assert!(began.elapsed() < Duration::from_secs(10));
        answer
            .recv_timeout(Duration::from_secs(10))
            .expect("the call ended")
            .expect_err("with an error");
        server.forgets();
        while rustix::fs::statvfs(&point).is_ok() {}
        share.later().ensure(soon()).await.expect("mounted again");
        assert_eq!((layers(&point), server.mounts()), (1, 3));
    });
}

#[test]
fn a_silent_share_is_waited_for_while_its_server_may_come_back_or_copies_move_bytes() {
    alone(async |server, point| {
        let mut share = share(&server, &point, &[]);
        share.patience = Duration::from_hours(1);
        share.ensure(soon()).await.expect("mounted");
        if server.cannot.load(SeqCst) {
            return;
        }
        let open = std::fs::File::open(&point).expect("open");
        let activity = CopyActivity::on(&open);
        server.falls_silent();
        // As a copy does.
        let waits = point.clone();
        let (said, answer) = std::sync::mpsc::channel();
        std::thread::spawn(move || said.send(rustix::fs::statvfs(&waits).map(drop)));
        let error = share.later().ensure(soon()).await.expect_err("silent");
        assert_eq!(error.kind(), Kind::Unreachable);
        assert!(error.chain().contains("waited for"), "{}", error.chain());
        // The time is over, but bytes were moved since.
        share.patience = Duration::from_millis(400);
        while share
            .silent_since
            .lock()
            .expect("lock")
            .expect("silent")
            .elapsed()
            < share.patience
        {
            std::thread::yield_now();
        }
        let (is_over, moves) = (Arc::new(AtomicBool::new(false)), activity);
        let ended = Arc::clone(&is_over);
        let copy = std::thread::spawn(move || {
            while !ended.load(SeqCst) {
                moves.has_moved();
                std::thread::yield_now();
            }
        });
        let error = share.later().ensure(soon()).await.expect_err("silent");
        assert!(error.chain().contains("waited for"), "{}", error.chain());
        is_over.store(true, SeqCst);
        copy.join().expect("a copy");
        assert_eq!((layers(&point), server.mounts()), (1, 1), "not touched");
        server.silent.lock().expect("lock").store(false, SeqCst);
        let waited = answer.recv_timeout(Duration::from_secs(10)).expect("ended");
        waited.expect("as if nothing had been");
        share
            .later()
            .ensure(soon())
            .await
            .expect("it answers again");
        assert_eq!(server.mounts(), 1);
        assert!(share.silent_since.lock().expect("lock").is_none());
    });
}

#[test]
fn folders_that_were_made_to_mount_go_with_the_mount_and_with_an_attempt_that_failed() {
    alone(async |server, point| {
        let deep = point.join("a/b");
        let mut share = share(&server, &deep, &[]);
        share.is_own_folder = false;
        server.refuses.store(true, SeqCst);
        share.ensure(soon()).await.expect_err("no server");
        assert!(!point.exists(), "left by an attempt");
        server.refuses.store(false, SeqCst);
        share.ensure(soon()).await.expect("mounted");
        if server.cannot.load(SeqCst) {
            return;
        }
        std::fs::write(point.join("precious"), "data").expect("file");
        drop(share);
        assert!(!point.join("a").exists() && point.join("precious").exists());
    });
}

#[test]
fn as_long_as_the_server_is_away_each_call_gets_an_error_and_then_all_is_well() {
    alone(async |server, point| {
        let share = share(&server, &point, &[]);
        server.refuses.store(true, SeqCst);
        let error = share.ensure(soon()).await.expect_err("no server");
        assert_eq!(
            (error.kind(), error.effect()),
            (Kind::Unreachable, Effect::None)
        );
        assert!(error.chain().contains("no server"), "{}", error.chain());
        assert!(!point.exists(), "its own folder");
        server.refuses.store(false, SeqCst);
        share.ensure(soon()).await.expect("the server is back");
    });
}

#[test]
fn options_that_have_changed_count_from_the_next_use_on() {
    alone(async |server, point| {
        let old = share(&server, &point, &["mt"]);
        old.ensure(soon()).await.expect("mounted");
        if server.cannot.load(SeqCst) {
            return;
        }
        let new = share(&server, &point, &["mt", "noatime"]);
        new.ensure(soon()).await.expect("used as it is");
        old.later().ensure(soon()).await.expect("left alone");
        assert_eq!((layers(&point), server.mounts()), (1, 1));
        new.later();
        drop(old);
        assert_eq!(layers(&point), 1, "it has another user");
        new.ensure(soon()).await.expect("mounted again");
        assert_eq!((layers(&point), server.mounts()), (1, 2));
    });
}

#[test]
fn what_else_is_mounted_there_is_neither_used_nor_covered() {
    alone(async |server, point| {
        std::fs::create_dir(&point).expect("folder");
        rustix::mount::mount("t", &point, "tmpfs", Flags::empty(), None).expect("tmpfs");
        let share = share(&server, &point, &[]);
        let error = share.ensure(soon()).await.expect_err("refused");
        assert_eq!(error.kind(), Kind::Unreachable);
        drop(share);
        assert_eq!((layers(&point), server.mounts()), (1, 0));
    });
}

/// Says that this process is the one that ends.
const ENDS: &str = "OMNIBUS_SHARES_END";

#[test]
fn the_end_of_the_program_unmounts_what_it_mounted() {
    let name = "shares::tests::the_end_of_the_program_unmounts_what_it_mounted";
    if std::env::var_os(ENDS).is_none() {
        // A process of its own, because all that it has mounted is meant.
        let program = std::env::current_exe().expect("this program");
        let mut child = std::process::Command::new(program);
        let ended = child.args(["--exact", name]).env(ENDS, "1").output();
        let ended = ended.expect("a child");
        let text = String::from_utf8_lossy(&ended.stdout);
        assert!(
            ended.status.success() && text.contains("1 passed"),
            "{text}"
        );
        return;
    }
    alone(async |server, point| {
        let share = share(&server, &point, &[]);
        share.ensure(soon()).await.expect("mounted");
        if server.cannot.load(SeqCst) {
            return;
        }
        server.falls_silent();
        let began = Instant::now();
        unmount_all(Duration::from_secs(10));
        assert_eq!(layers(&point), 0);
        assert!(began.elapsed() < Duration::from_secs(10));
        assert!(!share.point.as_path().exists());
    });
}
