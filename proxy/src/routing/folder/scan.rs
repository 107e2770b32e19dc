//! What lies in all folders together: which file is whose, what changed, and what is gone.
//!
//! Each folder is looked at on a thread of its own, so that one that hangs keeps no other waiting.
//! A folder that cannot be read, or does not answer, has lost no file. What changed is told once.

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

/// So long a file may be missing: an editor, or whoever makes it anew, is about to put it back.
pub(super) const GRACE: Duration = Duration::from_secs(5);
/// After so long a folder that does not answer is one that cannot be read.
const SILENT: Duration = Duration::from_secs(5);
/// After so long it is looked at anew, the longer the more looks have not come back: what it stands on may
/// have been mounted again, and whoever looked at it before may never come back.
const LOST: [Duration; 4] = [
    Duration::from_mins(1),
    Duration::from_mins(10),
    Duration::from_hours(1),
    Duration::from_hours(24),
];
/// So many looks at one folder may never come back.
const MOST_LOST: usize = 8;

/// The folders, and whose file is served.
#[derive(Debug)]
pub(crate) struct Folders {
    places: Vec<Place>,
    served: BTreeMap<ConnectionName, Served>,
    /// Those that have a file which was not told yet.
    found: BTreeSet<ConnectionName>,
    told: BTreeSet<String>,
}

/// One folder.
#[derive(Debug)]
struct Place {
    path: PathBuf,
    poller: Arc<Mutex<DirPoller>>,
    /// The look that has not ended, and since when.
    out: Option<(oneshot::Receiver<Snapshot>, Instant)>,
    /// Those that were given up, and may never end.
    lost: Vec<oneshot::Receiver<Snapshot>>,
    /// The files that it had when it could last be read.
    known: Option<BTreeSet<ConnectionName>>,
    /// What has changed there, and was not served yet.
    held: BTreeMap<ConnectionName, Changed>,
    /// The contents that its looks have told, as `hasher` knows them: whoever looks next, with an poller of
    /// its own, tells none of them again.
    told: BTreeMap<ConnectionName, u64>,
    hasher: RandomState,
    /// What has to be told again.
    again: Vec<ConnectionName>,
    problem: Option<String>,
    odd: Vec<String>,
}

/// Which folder's file is served.
#[derive(Debug)]
struct Served {
    place: usize,
    missed: Option<Instant>,
}

/// What one look found.
#[derive(Debug, Default)]
pub(crate) struct Look {
    /// Files that are new or have another content.
    pub(crate) changed: Vec<Changed>,
    /// Connections that have a file which is not told yet.
    pub(crate) found: BTreeSet<ConnectionName>,
    /// Those whose file is gone before it was told.
    pub(crate) never: Vec<ConnectionName>,
    /// Connections whose files are gone.
    pub(crate) gone: Vec<ConnectionName>,
    /// What else is wrong, told once.
    pub(crate) odd: Vec<String>,
    /// Folders that cannot be read now.
    pub(crate) unread: usize,
    /// Why nobody knows what is in a folder: it could not be read since this process began.
    pub(crate) unknown: Option<String>,
}

/// A file that is new or has another content.
#[derive(Debug)]
pub(crate) struct Changed {
    pub(crate) name: ConnectionName,
    pub(crate) path: PathBuf,
    pub(crate) text: io::Result<String>,
    /// By which the same content is known again.
    pub(super) content: Option<u64>,
}

// === impl Folders ===

impl Folders {
    /// Folders that were not looked at yet.
    pub(crate) fn new(paths: Vec<PathBuf>) -> Self {
        Self {
            places: paths.into_iter().map(Place::new).collect(),
            served: BTreeMap::new(),
            found: BTreeSet::new(),
            told: BTreeSet::new(),
        }
    }

    /// Looks at every folder here and now. To be called where it may block.
    pub(crate) fn look_here(&mut self, now: Instant) -> Look {
        for place in &mut self.places {
            place.prepare();
            let snapshot = poller(&place.poller).survey();
            place.took(snapshot);
        }
        self.judge(now)
    }

    /// Looks at every folder, and tells what those found that answer in time. The others tell it
    /// when they answer.
    pub(crate) async fn look(&mut self, now: Instant, patience: Duration) -> Look {
        for place in &mut self.places {
            place.begin(now);
        }
        let until = tokio::time::Instant::now() + patience;
        for place in &mut self.places {
            place.end(now, until).await;
        }
        self.judge(now)
    }

    /// Tells a file again, as if it had changed.
    pub(super) fn tell_again(&mut self, name: ConnectionName) {
        if let Some(served) = self.served.get(&name) {
            self.places[served.place].again.push(name);
        }
    }

    /// What all folders together say. The first that has a name counts.
    fn judge(&mut self, now: Instant) -> Look {
        let (mut look, mut told) = (Look::default(), BTreeSet::new());
        let mut first: BTreeMap<ConnectionName, usize> = BTreeMap::new();
        for (index, place) in self.places.iter().enumerate() {
            look.unread += usize::from(place.problem.is_some());
            if place.known.is_none() {
                look.unknown = look.unknown.or_else(|| Some(place.excuse()));
            }
            told.extend(place.problem.iter().chain(&place.odd).cloned());
            for name in place.known.iter().flatten() {
                if first.contains_key(name) {
                    let path = place.path.join(name.text().as_ref());
                    let path = path.display();
                    told.insert(format!(
                        "{path}.yaml: another folder has the connection `{name}` too"
                    ));
                } else {
                    first.insert(name.clone(), index);
                }
            }
        }
        look.gone = self.gone(now, &mut first);
        for (name, index) in first {
            let before = self.served.get(&name).map(|served| served.place);
            let Some(changed) = self.places[index].held.remove(&name) else {
                match before {
                    None => drop(look.found.insert(name)),
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
            look.changed.push(changed);
        }
        let told_now = |name: &&ConnectionName| !self.served.contains_key(*name);
        let never = self.found.difference(&look.found).filter(told_now);
        look.never = never.cloned().collect();
        self.found.clone_from(&look.found);
        look.odd = told.difference(&self.told).cloned().collect();
        self.told = told;
        look
    }

    /// Those that have no file any more. One whose file is missing for a moment has nobody else's
    /// either.
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
        let (hasher, told) = (RandomState::new(), BTreeMap::new());
        let poller = DirPoller::knowing(path.clone(), hasher.clone(), &told);
        Self {
            poller: Arc::new(Mutex::new(poller)),
            path,
            out: None,
            lost: Vec::new(),
            known: None,
            held: BTreeMap::new(),
            told,
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

    /// Begins a look, unless one has not ended.
    fn begin(&mut self, now: Instant) {
        self.give_up(now);
        if self.out.is_some() {
            return;
        }
        self.prepare();
        let shared = Arc::clone(&self.poller);
        match own_thread::spawn(move || poller(&shared).look()) {
            Ok(outcome) => self.out = Some((outcome, now)),
            Err(error) => self.failed(&format!("no thread can be had: {error}")),
        }
    }

    /// Waits no longer for a look that hangs. Its poller is its own for ever, and the next one knows no more
    /// than what was told.
    fn give_up(&mut self, now: Instant) {
        let is_out = |look: &mut oneshot::Receiver<Snapshot>| {
            matches!(look.try_recv(), Err(oneshot::error::TryRecvError::Empty))
        };
        self.lost.retain_mut(is_out);
        let patience = LOST[self.lost.len().min(LOST.len() - 1)];
        let hangs = |(_, since): &mut (_, Instant)| now.duration_since(*since) >= patience;
        if self.lost.len() < MOST_LOST
            && let Some((look, _)) = self.out.take_if(hangs)
        {
            self.lost.push(look);
            let poller = DirPoller::knowing(self.path.clone(), self.hasher.clone(), &self.told);
            self.poller = Arc::new(Mutex::new(poller));
        }
    }

    fn prepare(&mut self) {
        let mut poller = poller(&self.poller);
        for name in self.again.drain(..) {
            poller.forget(&name);
            self.told.remove(&name);
        }
    }

    /// Takes what a look has found, if it ends in time. One that began earlier is not waited for; when
    /// it has ended, the next one begins at once.
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
                self.failed("looking at it met a defect of this program");
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
                self.told.insert(changed.name.clone(), content);
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

/// A defect leaves what was seen as it was.
fn poller(shared: &Mutex<DirPoller>) -> MutexGuard<'_, DirPoller> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
