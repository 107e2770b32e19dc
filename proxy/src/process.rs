//! The process itself: its threads, its signals, and its files that survive a restart.

use std::error::Error;
use std::io::{self, Write};
use std::panic;
use std::path::{self, Path};
use std::process::ExitCode;
use std::sync::OnceLock;
use std::time::Duration;

use csi_types::AbsolutePath;
use node_utils::blocking::OF_A_NODE;
use rustix::process::{DumpableBehavior, Resource, Rlimit};
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;
use tracing::{error, info, warn};

use crate::message::said;
use crate::telemetry::log::LogControl;

/// Threads that run calls. Calls wait for storage; two threads carry thousands of them.
const WORKERS: usize = 2;
/// Threads that calls of one connection may keep, and as many copies and as many deletions.
pub(crate) const OF_A_CONNECTION: usize = 16;
/// So many connections may hang with all of their calls, copies, deletions and probes.
const HUNG_CONNECTIONS: usize = 64;
/// Threads for work that always ends, such as looking up a name. A name takes milliseconds, or the five seconds of its
/// time limit.
const OTHERS: usize = 64;
/// Threads for system calls that block, if every limit is used up. They are made when they are needed, and idle
/// ones end.
const BLOCKING: usize = HUNG_CONNECTIONS * (3 * OF_A_CONNECTION + 1) + OF_A_NODE + OTHERS;

/// The signals that this process handles.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    more: Signal,
    less: Signal,
    hangup: Signal,
}

/// See [`state_dir`].
static STATE_DIR: OnceLock<AbsolutePath> = OnceLock::new();

/// Keeps the state that must survive a restart in the directory of the socket.
pub(crate) fn keep_state_beside(socket: &Path) {
    let dir = socket.parent().and_then(|dir| path::absolute(dir).ok());
    let dir = dir.and_then(|dir| AbsolutePath::parse(dir.to_str()?).ok());
    if let Some(dir) = dir {
        let _ = STATE_DIR.set(dir);
    }
}

/// The directory of the state that must survive a restart. Only a server has one: a command that
/// tries something out keeps no state.
pub(crate) fn state_dir() -> Option<&'static AbsolutePath> {
    STATE_DIR.get()
}

/// The memory of this process holds secrets: it is never written to disk.
///
/// Errors are ignored: there is no alternative if the kernel does not support it.
pub fn forbid_core_dumps() {
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    let _ = rustix::process::setrlimit(Resource::Core, none);
    // A limit of zero does not stop a handler that reads the dump from a pipe; this does.
    let _ = rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable);
}

/// Raises the soft limit of open files to the hard one. The soft limit is low for programs that use
/// `select`, which this one does not.
pub fn raise_open_files() {
    let mut limit = rustix::process::getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = rustix::process::setrlimit(Resource::Nofile, limit) {
        warn!(error = %error, "could not raise the limit of open files");
    }
}

/// A panic becomes a line of the log. Its text is kept only if it is a literal in the source: any
/// other may contain secrets.
pub fn log_panics() {
    panic::set_hook(Box::new(|panic| {
        let location = panic.location().map(ToString::to_string);
        let message = panic.payload().downcast_ref::<&'static str>().copied();
        error!(
            location,
            panic = message,
            "a defect: please report this line"
        );
    }));
}

/// The runtime of a server.
pub fn runtime() -> io::Result<Runtime> {
    Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .max_blocking_threads(BLOCKING)
        .thread_name("omnibus-csi")
        .enable_all()
        .build()
}

/// The runtime of a command that does one thing.
pub fn small_runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

/// Ends the process `after` a signal to stop, also where no thread of the server looks at signals or at the clock any
/// more: one that computes does not, nor one whose log is not read.
#[expect(
    clippy::exit,
    reason = "what would run at an orderly end is what hangs"
)]
pub fn end_for_certain(after: Duration) {
    let wait = async move {
        let (Ok(mut terminate), Ok(mut interrupt)) = (
            signal(SignalKind::terminate()),
            signal(SignalKind::interrupt()),
        ) else {
            return false;
        };
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tokio::time::sleep(after).await;
        true
    };
    let watch = move || {
        if small_runtime().is_ok_and(|runtime| runtime.block_on(wait)) {
            std::process::exit(1);
        }
    };
    let thread = std::thread::Builder::new().name("last-resort".to_owned());
    if let Err(error) = thread.spawn(watch) {
        warn!(error = %error, "without a thread that ends this process if all others are busy");
    }
}

/// Runs the work of a command on its own runtime, and abandons what hangs in it. Returns an exit
/// code, after a message on standard error, if the runtime cannot be started.
pub fn carry_out<T>(work: impl Future<Output = T>) -> Result<T, ExitCode> {
    carry_out_saying(work, complain)
}

/// The same; `say` gets the line about the wait, every few seconds.
pub(crate) fn carry_out_saying<T>(
    work: impl Future<Output = T>,
    say: impl Fn(&str),
) -> Result<T, ExitCode> {
    let runtime = small_runtime().map_err(|error| {
        complain(&format!(
            "omnibus-csi: the runtime cannot be started: {error}"
        ));
        ExitCode::FAILURE
    })?;
    let done = runtime.block_on(with_progress(work, None, say));
    runtime.shutdown_background();
    Ok(done)
}

/// The interval at which a line says that the storage is waited for. A person who watches the end of the process sees
/// that it lives.
const PROGRESS: Duration = Duration::from_secs(5);

/// Says now and then, by `say`, that an answer is waited for, and for how long at most if that is known.
pub(crate) async fn with_progress<T>(
    work: impl Future<Output = T>,
    at_most: Option<Duration>,
    say: impl Fn(&str),
) -> T {
    let mut work = std::pin::pin!(work);
    let started = Instant::now();
    let limit = at_most.map_or_else(String::new, |limit| {
        format!(", for at most {} s", limit.as_secs())
    });
    loop {
        match tokio::time::timeout(PROGRESS, &mut work).await {
            Ok(done) => return done,
            Err(_) => say(&format!(
                "omnibus-csi: waiting for an answer of the storage since {} s{limit}",
                started.elapsed().as_secs()
            )),
        }
    }
}

/// The environment, as far as it is asked for.
pub type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// An environment variable; one that is not UTF-8 counts as unset.
pub fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Writes an answer to standard output, without buffering. A closed reader, such as `head`, has
/// read enough: the work continues, and its exit code counts.
pub fn say(text: &str) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Writes a line to standard error, where there is no log. Failures to write are ignored.
pub fn complain(line: &str) {
    let _ = io::stderr()
        .lock()
        .write_all(format!("{line}\n").as_bytes());
}

/// An error and its causes in one line.
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = said(error);
    let mut cause = error.source();
    while let Some(error) = cause {
        let line = said(error);
        // Some errors of other crates already include their cause.
        if !text.ends_with(&line) {
            text.push_str(": ");
            text.push_str(&line);
        }
        cause = error.source();
    }
    text
}

// === impl Signals ===

impl Signals {
    /// Registers the handlers of signals.
    pub fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            more: signal(SignalKind::user_defined1())?,
            less: signal(SignalKind::user_defined2())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for a signal to stop, and changes the log's level for those that ask for that. SIGHUP is
    /// ignored: files of connections are read again by themselves, and nothing else can be reloaded.
    pub async fn stop(&mut self, log: &LogControl) -> &'static str {
        loop {
            let verbosity = tokio::select! {
                _ = self.terminate.recv() => return "SIGTERM",
                _ = self.interrupt.recv() => return "SIGINT",
                _ = self.more.recv() => log.raise(),
                _ = self.less.recv() => log.lower(),
                _ = self.hangup.recv() => {
                    info!("ignored SIGHUP: restart the process to read the configuration again");
                    continue;
                }
            };
            info!(verbosity = verbosity.as_str(), "the log level has changed");
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::task::JoinError;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("serve")]
    struct Outer(#[source] JoinError);

    #[tokio::test]
    async fn the_text_of_a_panic_is_in_no_chain() {
        let join = tokio::spawn(async { panic!("hunter2") }).await;
        let join = join.expect_err("a panic");
        assert!(
            join.to_string().contains("hunter2"),
            "what is to be kept out"
        );
        assert_eq!(chain(&join), "met a defect of this program");
        assert_eq!(chain(&Outer(join)), "serve: met a defect of this program");
    }
}
