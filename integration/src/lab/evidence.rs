//! What is kept of a cell that failed: the program's log, the kernel's, and all that was attached.
//!
//! A failing cell stops where it is: nothing is unmounted and the program goes on, so that the
//! state of the machine can be kept and inspected. Only one that is a long list of checks goes on.
#![expect(
    clippy::print_stderr,
    reason = "a failed cell says so where the outer half reads"
)]

use std::backtrace::Backtrace;
use std::fs;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use futures_util::FutureExt as _;

use super::command;
use super::leftovers::Leftovers;

/// The place where it is left inside the machine.
pub const FOLDER: &str = "/root/evidence";

/// The number of lines of the program's log that are shown at once.
const SHOWN: usize = 15;

/// The way a cell that failed ends.
pub const FAILED: i32 = 1;

static GOES_ON: AtomicBool = AtomicBool::new(false);
static PANICS: AtomicUsize = AtomicUsize::new(0);

/// From now on a panic anywhere collects what is known, if it is the first, and ends the process at once.
pub fn at_any_panic() {
    panic::set_hook(Box::new(|panic| {
        eprintln!("{panic}");
        // Of several the first tells most: the others may come of it.
        if PANICS.fetch_add(1, Ordering::Relaxed) == 0 {
            collect(&format!("{panic}\n{}", Backtrace::force_capture()));
        }
        if !GOES_ON.load(Ordering::Relaxed) {
            leave();
        }
    }));
}

/// Runs one of several checks that take an hour together, and returns whether it passed: nothing
/// panicked during it, also not in a detached task. So one run reports all failures; outside of this
/// function a panic ends the process.
pub async fn passes(check: impl Future<Output = ()>) -> bool {
    let before = PANICS.load(Ordering::Relaxed);
    GOES_ON.store(true, Ordering::Relaxed);
    let _ = AssertUnwindSafe(check).catch_unwind().await;
    GOES_ON.store(false, Ordering::Relaxed);
    PANICS.load(Ordering::Relaxed) == before
}

#[expect(
    clippy::exit,
    reason = "unwinding would unmount and kill what has to be inspected"
)]
fn leave() {
    std::process::exit(FAILED);
}

/// Collects what is known, as far as it can be had.
fn collect(message: &str) {
    let folder = Path::new(FOLDER);
    let _ = fs::create_dir_all(folder);
    let save = |name: &str, text: &[u8]| {
        let _ = fs::write(folder.join(name), text);
    };
    save("panic", message.as_bytes());
    let leftovers: Vec<_> = Leftovers::read().0.into_iter().collect();
    save("leftovers", leftovers.join("\n").as_bytes());
    for (name, file) in [
        ("mountinfo", "/proc/self/mountinfo"),
        ("partitions", "/proc/partitions"),
        ("smb", "/proc/fs/cifs/DebugData"),
    ] {
        save(name, &fs::read(file).unwrap_or_default());
    }
    let commands: [(&str, &[&str]); 7] = [
        ("dmesg", &["dmesg"]),
        ("journal", &["journalctl", "--boot", "--no-pager"]),
        (
            "processes",
            &["ps", "axfww", "-o", "pid,stat,wchan:24,args"],
        ),
        (
            "iscsi",
            &["timeout", "20", "iscsiadm", "-m", "session", "-P", "3"],
        ),
        ("nvme", &["timeout", "20", "nvme", "list-subsys"]),
        ("multipath", &["timeout", "20", "multipath", "-ll"]),
        (
            "targets",
            &[
                "find",
                "/sys/kernel/config/target/iscsi",
                "/sys/kernel/config/nvmet",
            ],
        ),
    ];
    for (name, words) in commands {
        let text = command::attempt(words).unwrap_or_else(|why| why);
        save(name, text.as_bytes());
    }
    let places = fs::read_dir(std::env::temp_dir())
        .into_iter()
        .flatten()
        .flatten();
    for place in places {
        if let Ok(log) = fs::read(place.path().join("log")) {
            save(&format!("log-{}", place.file_name().display()), &log);
            show_end(&String::from_utf8_lossy(&log));
        }
    }
}

/// The last that the program said, for those who have only what was printed.
fn show_end(log: &str) {
    let lines: Vec<_> = log.lines().collect();
    for line in &lines[lines.len().saturating_sub(SHOWN)..] {
        eprintln!("  | {line}");
    }
}
