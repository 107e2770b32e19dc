//! The threads that copy the files of one tree, and what they share.
//!
//! On a share each step waits for the server, so that many files are copied at once. How many threads all
//! copies of this process have together is bounded, and so are the descriptors that they hold.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Instant;

use driver_core::{Call, Error, Kind};
use node_utils::shares::CopyActivity;
use rustix::fs::{AtFlags, Stat, StatxFlags};
use rustix::io::Errno;
use tracing::Span;

use super::attributes::DirAttributes;
use super::content::CopyMethods;
use super::links::Links;
use super::{BUFFER, Copied, MAX_ACLS, PROGRESS};
use crate::crash_points;
use crate::failure::failed;
use crate::kind::is_share;

/// The most threads for one copy. More would wait for the same disk or server.
pub(super) const MOST: usize = 16;
/// Threads for all copies of this process.
static SPARE: AtomicUsize = AtomicUsize::new(4 * MOST);

/// A file to be copied.
pub(super) struct Job {
    pub(super) from: Arc<OwnedFd>,
    pub(super) to: Arc<OwnedFd>,
    pub(super) name: CString,
    pub(super) directory: Arc<Directory>,
}

/// A directory of the target. Who is the last to be done with it gives it its attributes.
pub(super) struct Directory {
    name: CString,
    attributes: DirAttributes,
}

/// One copy in progress.
pub(super) struct Progress<'a> {
    call: &'a Call,
    source: &'a OwnedFd,
    pub(super) doing: &'a str,
    pub(super) folder: BorrowedFd<'a>,
    pub(super) links: Links,
    pub(super) methods: CopyMethods,
    /// Memory for access control lists of directories that are not finished.
    acls: AtomicUsize,
    pub(super) bytes: AtomicU64,
    pub(super) shared: AtomicU64,
    files: AtomicU64,
    allocated: AtomicU64,
    /// The first one; all stop then.
    failure: Mutex<Option<Error>>,
    has_failed: AtomicBool,
    started: Instant,
    logged: Mutex<Instant>,
    /// Of the source and of the copy, where they are on shares.
    activity: Vec<CopyActivity>,
}

/// The worker that copies files one after the other, in a thread of its own or in that of the walk.
pub(super) struct Worker<'a> {
    pub(super) progress: &'a Progress<'a>,
    pub(super) buffer: Vec<u8>,
}

/// To the threads of a copy.
pub(super) struct Queue(mpsc::SyncSender<Job>);

/// Threads taken from those that are spare, until it is dropped.
struct Taken(usize);

/// A copy fails as soon as one of its threads panics.
struct FailsByPanic<'a, 'b>(&'a Progress<'b>);

/// Does `walk` with up to `extra` threads that do the jobs which it puts into the queue; without any if none
/// is spare. Returns when all is done, with the first error.
pub(super) fn with(
    extra: usize,
    progress: &Progress<'_>,
    walk: impl FnOnce(Option<Queue>) -> Result<(), Error>,
) -> Result<(), Error> {
    let taken = Taken::up_to(extra);
    let (sender, receiver) = mpsc::sync_channel(MOST);
    let receiver = Arc::new(Mutex::new(receiver));
    let span = Span::current();
    thread::scope(|scope| {
        let mut started = false;
        for _ in 0..taken.0 {
            let (receiver, span) = (Arc::clone(&receiver), span.clone());
            let work = move || span.in_scope(|| Worker::new(progress).run(&receiver));
            let thread = thread::Builder::new().name("copy".into());
            started |= thread.spawn_scoped(scope, work).is_ok();
        }
        // Only the threads hold it: if all have ended, nothing waits for them.
        drop(receiver);
        progress.note(walk(started.then_some(Queue(sender))));
    });
    match progress
        .failure
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take()
    {
        Some(failure) => Err(failure),
        None => Ok(()),
    }
}

// === impl Progress ===

impl<'a> Progress<'a> {
    pub(super) fn new(
        source: &'a OwnedFd,
        folder: BorrowedFd<'a>,
        call: &'a Call,
        doing: &'a str,
    ) -> Self {
        let on_share =
            |dir: BorrowedFd<'_>| rustix::fs::fstatfs(dir).is_ok_and(|found| is_share(&found));
        Self::with_signs(source, folder, call, doing, on_share)
    }

    /// The same with a predicate for the directories whose filesystem gets signs of life.
    pub(super) fn with_signs(
        source: &'a OwnedFd,
        folder: BorrowedFd<'a>,
        call: &'a Call,
        doing: &'a str,
        is_watched: impl Fn(BorrowedFd<'_>) -> bool,
    ) -> Self {
        let now = Instant::now();
        Self {
            call,
            source,
            doing,
            folder,
            links: Links::default(),
            methods: CopyMethods::default(),
            acls: AtomicUsize::new(0),
            bytes: AtomicU64::new(0),
            shared: AtomicU64::new(0),
            files: AtomicU64::new(0),
            allocated: AtomicU64::new(0),
            failure: Mutex::new(None),
            has_failed: AtomicBool::new(false),
            started: now,
            logged: Mutex::new(now),
            activity: [source.as_fd(), folder]
                .into_iter()
                .filter(|dir| is_watched(*dir))
                .map(CopyActivity::on)
                .collect(),
        }
    }

    pub(super) fn copied(&self) -> Copied {
        Copied {
            bytes: self.bytes.load(Relaxed),
            files: self.files.load(Relaxed),
            allocated: self.allocated.load(Relaxed),
            shared: self.shared.load(Relaxed),
        }
    }

    /// The shares of this copy give signs of life.
    fn moves(&self) {
        for activity in &self.activity {
            activity.has_moved();
        }
    }

    /// Counts bytes that were copied.
    pub(super) fn add(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Relaxed);
        self.moves();
    }

    pub(super) fn count(&self, stat: &Stat) {
        self.moves();
        self.files.fetch_add(1, Relaxed);
        let blocks = u64::try_from(stat.st_blocks).unwrap_or_default();
        self.allocated.fetch_add(blocks * 512, Relaxed);
    }

    /// Begins with a directory, whose attributes wait for the end.
    pub(super) fn open(
        &self,
        name: &CStr,
        attributes: DirAttributes,
    ) -> Result<Arc<Directory>, Error> {
        let held = attributes.held();
        if self.acls.fetch_add(held, Relaxed) + held > MAX_ACLS {
            return Err(self.error_at(name, Errno::NOMEM));
        }
        let name = name.to_owned();
        Ok(Arc::new(Directory { name, attributes }))
    }

    /// Ends the work of one thread in a directory.
    pub(super) fn leave(
        &self,
        directory: Arc<Directory>,
        target: BorrowedFd<'_>,
    ) -> Result<(), Error> {
        let Some(Directory { name, attributes }) = Arc::into_inner(directory) else {
            return Ok(());
        };
        self.acls.fetch_sub(attributes.held(), Relaxed);
        attributes
            .apply(target)
            .map_err(|errno| self.error_at(&name, errno))?;
        crash_points::mark("directory attributes");
        Ok(())
    }

    /// Ends the work at the deadline, or once a thread has failed; says now and then how far it is.
    pub(super) fn pause(&self) -> Result<(), Error> {
        self.call.check(self.doing)?;
        if self.has_failed.load(Relaxed) {
            return Err(Error::new(Kind::Internal, self.doing));
        }
        let Ok(mut logged) = self.logged.try_lock() else {
            return Ok(());
        };
        if logged.elapsed() >= PROGRESS {
            *logged = Instant::now();
            tracing::info!(
                doing = self.doing,
                bytes = self.bytes.load(Relaxed),
                files = self.files.load(Relaxed),
                seconds = self.started.elapsed().as_secs(),
                "copying"
            );
        }
        Ok(())
    }

    /// Whether `errno` means that an entry of `from` is gone. A stale handle may also mean that its server does not
    /// have the share at the moment.
    pub(super) fn has_vanished(&self, from: &OwnedFd, errno: Errno) -> bool {
        match errno {
            Errno::NOENT | Errno::NOTDIR | Errno::LOOP => true,
            Errno::STALE => {
                let is_there = || ask(self.source).is_ok();
                is_there() && ask(from) == Err(Errno::STALE) && is_there()
            }
            _ => false,
        }
    }

    /// Keeps the first failure.
    fn note(&self, done: Result<(), Error>) {
        if let Err(error) = done
            && !self.has_failed.swap(true, Relaxed)
        {
            *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        }
    }

    pub(super) fn doing_at(&self, name: &CStr) -> String {
        let name = name.to_string_lossy();
        format!("{}, at `{}`", self.doing, name.escape_debug())
    }

    pub(super) fn error_at(&self, name: &CStr, errno: Errno) -> Error {
        failed(self.doing_at(name), errno)
    }
}

/// Asks the server about a directory.
fn ask(dir: &OwnedFd) -> Result<(), Errno> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
    rustix::fs::statx(dir, c"", flags, StatxFlags::INO).map(drop)
}

// === impl Worker ===

impl<'a> Worker<'a> {
    pub(super) fn new(progress: &'a Progress<'a>) -> Self {
        let buffer = vec![0; BUFFER];
        Self { progress, buffer }
    }

    /// Does the jobs of a queue until it ends; after a failure they are left undone.
    fn run(&mut self, jobs: &Mutex<mpsc::Receiver<Job>>) {
        let _failing = FailsByPanic(self.progress);
        loop {
            let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(job) = job else { return };
            if !self.progress.has_failed.load(Relaxed) {
                self.progress.note(self.work(job));
            }
        }
    }

    fn work(&mut self, job: Job) -> Result<(), Error> {
        self.entry(&job.from, &job.to, &job.name)?;
        self.progress.leave(job.directory, job.to.as_fd())
    }
}

// === impl Queue ===

impl Queue {
    /// Waits while all threads have enough to do.
    pub(super) fn put(&self, job: Job) -> Result<(), Error> {
        // None is left only if all of them have panicked.
        let gone = |_| Error::new(Kind::Internal, "handing over a file");
        self.0.send(job).map_err(gone)
    }
}

// === impl FailsByPanic ===

impl Drop for FailsByPanic<'_, '_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.has_failed.store(true, Relaxed);
        }
    }
}

// === impl Taken ===

impl Taken {
    fn up_to(most: usize) -> Self {
        let mut taken = 0;
        let _ = SPARE.fetch_update(Relaxed, Relaxed, |spare| {
            // Half of them at most: copies from a server that does not answer leave some for others.
            taken = spare.div_ceil(2).min(most);
            Some(spare - taken)
        });
        Self(taken)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        SPARE.fetch_add(self.0, Relaxed);
    }
}
