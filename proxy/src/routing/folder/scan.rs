//! The files of all folders together: which file is served, what changed, and what is gone.
//!
//! Each folder is polled on its own thread, so that one that hangs delays no other. A folder that
//! cannot be read, or does not answer, has lost no file. A change is reported once.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::RandomState;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::poller::{DirPoller, Snapshot};
use crate::routing::connections::ConnectionName;
use crate::routing::own_thread;

/// The time that a file may be missing: an editor replaces a file by removing and writing it.
pub(super) const GRACE: Duration = Duration::from_secs(5);
/// After this time a folder that does not answer counts as unreadable. A network filesystem that is sound answers
/// within one.
const SILENT: Duration = Duration::from_secs(5);
/// After this time a poll that hangs is abandoned and a new one starts, later with each abandoned poll:
/// the filesystem may have been mounted again, and the old poll may never return.
const LOST: [Duration; 4] = [
    Duration::from_mins(1),
    Duration::from_mins(10),
    Duration::from_hours(1),
    Duration::from_hours(24),
];
/// The number of polls of one folder that may be abandoned at the same time.
const MOST_LOST: usize = 8;

/// The folders, and which folder's file is served.
#[derive(Debug)]
pub(crate) struct Folders {
    places: Vec<Place>,
    served: BTreeMap<ConnectionName, Served>,
    /// Those with a file that was not reported yet.
    found: BTreeSet<ConnectionName>,
    reported: BTreeSet<String>,
}

/// One folder.
#[derive(Debug)]
struct Place {
    path: PathBuf,
    poller: Arc<Mutex<DirPoller>>,
    /// The running poll, and when it started.
    out: Option<(oneshot::Receiver<Snapshot>, Instant)>,
    /// Abandoned polls, which may never end.
    lost: Vec<oneshot::Receiver<Snapshot>>,
    /// The files that it had when it could last be read.
    known: Option<BTreeSet<ConnectionName>>,
    /// Changes that are not served yet.
    held: BTreeMap<ConnectionName, Changed>,
    /// The reported contents, hashed by `hasher`. A new poller gets them, so that it reports none again.
    reported: BTreeMap<ConnectionName, u64>,
    hasher: RandomState,
    /// The changes that must be reported again.
    again: Vec<ConnectionName>,
    problem: Option<String>,
    odd: Vec<String>,
}

/// The folder whose file is served.
#[derive(Debug)]
struct Served {
    place: usize,
    missed: Option<Instant>,
}

/// The result of one scan of all folders.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    /// Files that are new or have another content.
    pub(crate) changed: Vec<Changed>,
    /// Connections with a file that is not reported yet.
    pub(crate) found: BTreeSet<ConnectionName>,
    /// Those whose file is gone before it was reported.
    pub(crate) never: Vec<ConnectionName>,
    /// Connections whose files are gone.
    pub(crate) gone: Vec<ConnectionName>,
    /// Other problems, reported once.
    pub(crate) odd: Vec<String>,
    /// Folders that cannot be read now.
    pub(crate) unread: usize,
    /// Why the content of a folder is unknown: it could not be read since this process started.
    pub(crate) unknown: Option<String>,
}

/// A file that is new or has another content.
#[derive(Debug)]
pub(crate) struct Changed {
    pub(crate) name: ConnectionName,
    pub(crate) path: PathBuf,
    pub(crate) text: io::Result<String>,
    /// The hash of the content.
    pub(super) content: Option<u64>,
}

// === impl Folders ===

impl Folders {
    /// Folders that were not scanned yet.
    pub(crate) fn new(paths: Vec<PathBuf>) -> Self {
        Self {
            places: paths.into_iter().map(Place::new).collect(),
            served: BTreeMap::new(),
            found: BTreeSet::new(),
            reported: BTreeSet::new(),
        }
    }

    /// Scans every folder in this thread. It may block.
    pub(crate) fn scan_blocking(&mut self, now: Instant) -> Scan {
        for place in &mut self.places {
            place.prepare();
            let snapshot = poller(&place.poller).survey();
            place.took(snapshot);
        }
        self.judge(now)
    }

    /// Scans every folder, and reports the results of those that answer within `timeout`. The results
    /// of the others are reported by a later scan.
    pub(crate) async fn scan(&mut self, now: Instant, timeout: Duration) -> Scan {
        for place in &mut self.places {
            place.begin(now);
        }
        let until = tokio::time::Instant::now() + timeout;
        for place in &mut self.places {
            place.end(now, until).await;
        }
        self.judge(now)
    }

    /// Reports a file again, as if it had changed.
    pub(super) fn report_again(&mut self, name: ConnectionName) {
        if let Some(served) = self.served.get(&name) {
            self.places[served.place].again.push(name);
        }
    }

    /// Merges the results of all folders. The first folder with a name counts.
    fn judge(&mut self, now: Instant) -> Scan {
        let (mut scan, mut problems) = (Scan::default(), BTreeSet::new());
        let mut first: BTreeMap<ConnectionName, usize> = BTreeMap::new();
        for (index, place) in self.places.iter().enumerate() {
            scan.unread += usize::from(place.problem.is_some());
            if place.known.is_none() {
                scan.unknown = scan.unknown.or_else(|| Some(place.excuse()));
            }
            problems.extend(place.problem.iter().chain(&place.odd).cloned());
            for name in place.known.iter().flatten() {
                if first.contains_key(name) {
                    let path = place.path.join(name.text().as_ref());
                    let path = path.display();
                    problems.insert(format!(
                        "{path}.yaml: another folder has the connection `{name}` too"
                    ));
                } else {
                    first.insert(name.clone(), index);
                }
            }
        }
        scan.gone = self.gone(now, &mut first);
        for (name, index) in first {
            let before = self.served.get(&name).map(|served| served.place);
            let Some(changed) = self.places[index].held.remove(&name) else {
                match before {
                    None => drop(scan.found.insert(name)),
                    Some(before) if before != index => self.places[index].again.push(name),
                    Some(_) => {}
                }
                continue;
            };
            if let Some(before) = before.filter(|before| *before != index) {
                self.places[before].again.push(name.clone());
            }
            let (place, missed) = (index, None);
            self.served.insert(name, Served { place, missed });
            scan.changed.push(changed);
        }
        let reported_now = |name: &&ConnectionName| !self.served.contains_key(*name);
        let never = self.found.difference(&scan.found).filter(reported_now);
        scan.never = never.cloned().collect();
        self.found.clone_from(&scan.found);
        scan.odd = problems.difference(&self.reported).cloned().collect();
        self.reported = problems;
        scan
    }

    /// Those that have no file any more. While a file is missing for a moment, the same name in another
    /// folder does not replace it.
    fn gone(
        &mut self,
        now: Instant,
        first: &mut BTreeMap<ConnectionName, usize>,
    ) -> Vec<ConnectionName> {
        let mut gone = Vec::new();
        let places = &mut self.places;
        self.served.retain(|name, served| {
            let place = &mut places[served.place];
            if place.has(name) {
                served.missed = None;
                return true;
            }
            let since = *served.missed.get_or_insert(now);
            let better = first.get(name).is_some_and(|index| *index < served.place);
            if now.duration_since(since) < GRACE && !better {
                first.remove(name);
                return true;
            }
            if first.contains_key(name) {
                return true;
            }
            place.again.push(name.clone());
            gone.push(name.clone());
            false
        });
        gone
    }
}

// === impl Place ===

impl Place {
    fn new(path: PathBuf) -> Self {
        let (hasher, reported) = (RandomState::new(), BTreeMap::new());
        let poller = DirPoller::knowing(path.clone(), hasher.clone(), &reported);
        Self {
            poller: Arc::new(Mutex::new(poller)),
            path,
            out: None,
            lost: Vec::new(),
            known: None,
            held: BTreeMap::new(),
            reported,
            hasher,
            again: Vec::new(),
            problem: None,
            odd: Vec::new(),
        }
    }

    fn has(&self, name: &ConnectionName) -> bool {
        self.known
            .as_ref()
            .is_some_and(|known| known.contains(name))
    }

    /// Starts a poll, unless one is running.
    fn begin(&mut self, now: Instant) {
        self.give_up(now);
        if self.out.is_some() {
            return;
        }
        self.prepare();
        let shared = Arc::clone(&self.poller);
        match own_thread::spawn(move || poller(&shared).poll()) {
            Ok(outcome) => self.out = Some((outcome, now)),
            Err(error) => self.failed(&format!("no thread can be had: {error}")),
        }
    }

    /// Abandons a poll that hangs. It keeps its poller forever; the next poller knows only the reported
    /// contents.
    fn give_up(&mut self, now: Instant) {
        let is_out = |poll: &mut oneshot::Receiver<Snapshot>| {
            matches!(poll.try_recv(), Err(oneshot::error::TryRecvError::Empty))
        };
        self.lost.retain_mut(is_out);
        let timeout = LOST[self.lost.len().min(LOST.len() - 1)];
        let hangs = |(_, since): &mut (_, Instant)| now.duration_since(*since) >= timeout;
        if self.lost.len() < MOST_LOST
            && let Some((poll, _)) = self.out.take_if(hangs)
        {
            self.lost.push(poll);
            let poller = DirPoller::knowing(self.path.clone(), self.hasher.clone(), &self.reported);
            self.poller = Arc::new(Mutex::new(poller));
        }
    }

    fn prepare(&mut self) {
        let mut poller = poller(&self.poller);
        for name in self.again.drain(..) {
            poller.forget(&name);
            self.reported.remove(&name);
        }
    }

    /// Takes the result of a poll that ends in time. It does not wait for one that started earlier; after
    /// the end of such a poll the next one starts at once.
    async fn end(&mut self, now: Instant, until: tokio::time::Instant) {
        let Some((outcome, since)) = &mut self.out else {
            return;
        };
        let since = *since;
        let until = if since == now {
            until
        } else {
            tokio::time::Instant::now()
        };
        match tokio::time::timeout_at(until, outcome).await {
            Ok(Ok(snapshot)) => {
                self.out = None;
                self.took(snapshot);
                if since != now {
                    self.begin(now);
                }
            }
            Ok(Err(_)) => {
                self.out = None;
                self.failed("reading it met a defect of this program");
            }
            Err(_) if now.duration_since(since) >= SILENT => self.failed("it does not answer"),
            Err(_) => {}
        }
    }

    fn took(&mut self, snapshot: Snapshot) {
        let there = match snapshot.there {
            Ok(there) => there,
            Err(error) => return self.failed(&error.to_string()),
        };
        (self.problem, self.odd) = (None, snapshot.odd);
        for changed in snapshot.changed {
            if let Some(content) = changed.content {
                self.reported.insert(changed.name.clone(), content);
            }
            self.held.insert(changed.name.clone(), changed);
        }
        let again = &mut self.again;
        self.held.retain(|name, _| {
            let is_there = there.contains(name);
            if !is_there {
                again.push(name.clone());
            }
            is_there
        });
        self.known = Some(there);
    }

    fn excuse(&self) -> String {
        let waiting = || format!("{}: the folder has not answered yet", self.path.display());
        self.problem.clone().unwrap_or_else(waiting)
    }

    fn failed(&mut self, why: &str) {
        let path = self.path.display();
        self.problem = Some(format!("{path}: the folder cannot be read: {why}"));
    }
}

/// Locks the poller. After a panic its state is still valid.
fn poller(shared: &Mutex<DirPoller>) -> MutexGuard<'_, DirPoller> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
