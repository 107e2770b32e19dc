//! The files of rules, which may be on a filesystem that hangs.
//!
//! Each file is read on its own thread, by at most one at a time. The wait is limited, so that the
//! process starts and the node registers even if a file does not answer.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use driver_core::config::MAX_BYTES;

use crate::routing::config_file::read_regular;
use crate::routing::own_thread;

/// The time to wait for a file, from the start of its read. A later caller does not wait again.
const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// The text of each file, or why it cannot be read.
pub(crate) type Texts = BTreeMap<PathBuf, Result<String, String>>;

type Read = fn(&Path) -> io::Result<String>;

/// The files. Clones are the same.
#[derive(Debug, Clone)]
pub(crate) struct Files {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    read: Read,
    timeout: Duration,
    /// Those that are being read.
    out: Mutex<BTreeMap<PathBuf, Arc<Reading>>>,
    ended: Condvar,
}

/// A file that is being read.
#[derive(Debug)]
struct Reading {
    until: Instant,
    outcome: OnceLock<Result<String, String>>,
}

/// Ends a reading on drop, also after a panic of its thread.
struct End {
    inner: Arc<Inner>,
    path: PathBuf,
    reading: Arc<Reading>,
}

// === impl Files ===

impl Files {
    pub(crate) fn new() -> Self {
        Self::with(read_regular, READ_TIMEOUT)
    }

    fn with(read: Read, timeout: Duration) -> Self {
        let inner = Inner {
            read,
            timeout,
            out: Mutex::default(),
            ended: Condvar::new(),
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Reads all of them at once. The time of the slowest is that of all.
    pub(crate) fn read<'a>(&self, paths: impl IntoIterator<Item = &'a Path>) -> Texts {
        let mut readings = BTreeMap::new();
        for path in paths {
            if let Entry::Vacant(entry) = readings.entry(path.to_owned()) {
                entry.insert(self.begin(path));
            }
        }
        self.wait(&readings);
        let text = |(path, reading): (PathBuf, Arc<Reading>)| {
            let late = || format!("no answer within {:?}", self.inner.timeout);
            let outcome = reading.outcome.get().cloned();
            let outcome = outcome.unwrap_or_else(|| Err(late()));
            let text = outcome.map_err(|why| format!("{} cannot be read: {why}", path.display()));
            (path, text)
        };
        readings.into_iter().map(text).collect()
    }

    /// Begins to read one, unless that is under way.
    fn begin(&self, path: &Path) -> Arc<Reading> {
        let reading = match self.inner.out().entry(path.to_owned()) {
            Entry::Occupied(reading) => return Arc::clone(reading.get()),
            Entry::Vacant(entry) => Arc::clone(entry.insert(Arc::new(Reading {
                until: Instant::now() + self.inner.timeout,
                outcome: OnceLock::new(),
            }))),
        };
        let end = End {
            inner: Arc::clone(&self.inner),
            path: path.to_owned(),
            reading: Arc::clone(&reading),
        };
        let outcome = own_thread::spawn(move || {
            let read = (end.inner.read)(&end.path);
            let _ = end.reading.outcome.set(checked(read));
        });
        // Callers get the outcome from the reading.
        drop(outcome);
        reading
    }

    /// Waits until each was read, or has had its time.
    fn wait(&self, readings: &BTreeMap<PathBuf, Arc<Reading>>) {
        let mut out = self.inner.out();
        loop {
            let now = Instant::now();
            let under_way = readings
                .values()
                .filter(|reading| reading.outcome.get().is_none());
            let left = under_way.map(|reading| reading.until.saturating_duration_since(now));
            let Some(left) = left.max().filter(|left| !left.is_zero()) else {
                return;
            };
            let waited = self.inner.ended.wait_timeout(out, left);
            (out, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The text, if it is no longer than what is read.
fn checked(read: io::Result<String>) -> Result<String, String> {
    match read {
        Ok(text) if text.len() > MAX_BYTES => Err(format!("it has more than {MAX_BYTES} bytes")),
        read => read.map_err(|error| error.to_string()),
    }
}

// === impl Inner ===

impl Inner {
    fn out(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Arc<Reading>>> {
        self.out.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl End ===

impl Drop for End {
    fn drop(&mut self) {
        // Without an outcome the thread panicked, or there was no thread.
        let unread = || Err("nothing read it to its end".to_owned());
        let _ = self.reading.outcome.get_or_init(unread);
        self.inner.out().remove(&self.path);
        self.inner.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::testing::Gate;

    #[test]
    fn a_file_is_a_regular_one_of_a_size_that_is_read_and_no_other_is_waited_for() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        let fifo = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, at("pipe"), fifo, mode, 0).expect("a pipe");
        std::fs::write(at("zone"), "z4\n").expect("a file");
        std::fs::write(at("long"), "z".repeat(MAX_BYTES + 2)).expect("a file");
        let paths = ["zone", "pipe", "long", "none"].map(at);
        let endless = Path::new("/dev/zero");
        let paths = paths.iter().map(PathBuf::as_path).chain([endless]);
        let texts = Files::new().read(paths);
        assert_eq!(texts[&at("zone")].as_deref(), Ok("z4\n"));
        for (name, why) in [
            ("pipe", "not a regular file"),
            ("long", "more than"),
            ("none", "No such file"),
        ] {
            let problem = texts[&at(name)].as_ref().expect_err(name);
            assert!(problem.contains(why), "{problem}");
        }
        assert!(texts[endless].is_err(), "without an end");
    }

    #[test]
    fn files_that_hang_take_the_time_of_one_and_no_second_thread() {
        static GATE: LazyLock<Arc<Gate>> = LazyLock::new(Arc::default);
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        fn hangs(path: &Path) -> io::Result<String> {
            STARTED.fetch_add(1, Ordering::SeqCst);
            if path.starts_with("/hung") {
                GATE.pass();
            }
            (path != Path::new("/none"))
                .then(|| "z".to_owned())
                .ok_or_else(|| io::ErrorKind::NotFound.into())
        }
        let timeout = Duration::from_secs(2);
        let files = Files::with(hangs, timeout);
        let paths = ["/hung/a", "/hung/b", "/hung/a", "/well"].map(Path::new);
        let shut = GATE.shut();
        let began = Instant::now();
        let texts = files.read(paths);
        assert!(began.elapsed() >= timeout);
        assert_eq!(texts[paths[3]].as_deref(), Ok("z"));
        for hung in &paths[..3] {
            let problem = texts[*hung].as_ref().expect_err("it hangs");
            assert!(problem.contains("no answer within 2s"), "{problem}");
        }
        assert_eq!(STARTED.load(Ordering::SeqCst), 3, "one thread for each");
        // A second call does not wait again.
        let out = files.inner.out().clone();
        for reading in out.values() {
            assert!(reading.until <= Instant::now());
        }
        assert_eq!(files.read(paths), texts);
        assert_eq!(
            STARTED.load(Ordering::SeqCst),
            4,
            "only the one that answers"
        );
        drop(shut);
        // A late outcome is not reused.
        let mut left = files.inner.out();
        while !left.is_empty() {
            left = files.inner.ended.wait(left).expect("a lock");
        }
        drop(left);
        assert!(files.read(paths).values().all(Result::is_ok));
        assert_eq!(STARTED.load(Ordering::SeqCst), 7);
    }

    #[test]
    fn a_thread_that_panics_delays_no_caller_and_its_file_is_read_again() {
        fn defect(_: &Path) -> io::Result<String> {
            panic!("a defect, on purpose")
        }
        let files = Files::with(defect, Duration::from_hours(1));
        for _ in 0..2 {
            let texts = files.read([Path::new("/a")]);
            assert!(texts[Path::new("/a")].is_err());
        }
    }
}
