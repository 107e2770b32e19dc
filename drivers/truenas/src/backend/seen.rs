//! What was seen of objects since they were last touched here: it saves looking at a guard once more.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use driver_zfs::name::{DatasetName, Object};
use driver_zfs::observed::{Guid, State};
use driver_zfs::step::{Guard, Still};

/// So long something counts that was seen. The calls of one volume follow each other within it.
const FRESH: Duration = Duration::from_secs(10);
/// So many objects are remembered. A bound of the memory.
const MOST: usize = 4096;

/// What was seen, and when in the order of the plans of this process.
#[derive(Debug, Default)]
pub(super) struct Seen(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// Counts beginnings and ends of plans.
    now: u64,
    /// What was touched last at which count; all others no later than `before`.
    touched: HashMap<DatasetName, u64>,
    before: u64,
    seen: HashMap<Object, Sight>,
    /// What is made at this moment: it may lack its marks for a while.
    making: BTreeSet<DatasetName>,
    /// What was made, and at which count that ended.
    made: HashMap<DatasetName, u64>,
}

/// Ends the making of a dataset.
pub(super) struct Making<'a> {
    seen: &'a Seen,
    name: DatasetName,
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        let mut inner = self.seen.inner();
        inner.now += 1;
        let now = inner.now;
        if inner.made.len() > MOST {
            inner.made.clear();
        }
        inner.making.remove(&self.name);
        inner.made.insert(self.name.clone(), now);
    }
}

#[derive(Debug)]
struct Sight {
    guid: Guid,
    since: u64,
    at: Instant,
}

/// Whether a guard holds in what was looked at.
pub(super) fn holds(state: &State, guard: &Guard) -> bool {
    let (guid, properties) = match &guard.object {
        Object::Dataset(name) => match state.dataset(name) {
            Some(dataset) => (dataset.guid, &dataset.properties),
            None => return false,
        },
        Object::Snapshot(name) => match state.snapshot(name) {
            Some(snapshot) => (snapshot.guid, &snapshot.properties),
            None => return false,
        },
    };
    match &guard.still {
        Still::Itself(expected) => guid == *expected,
        Still::Has(name, text) => properties.own(name) == text.as_deref(),
    }
}

fn dataset_of(object: &Object) -> &DatasetName {
    match object {
        Object::Dataset(name) => name,
        Object::Snapshot(name) => &name.dataset,
    }
}

// === impl Seen ===

impl Seen {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A dataset is made until what is answered is dropped.
    pub(super) fn making(&self, name: &DatasetName) -> Making<'_> {
        self.inner().making.insert(name.clone());
        Making {
            seen: self,
            name: name.clone(),
        }
    }

    /// What was in the making at any time since that count: a look that began then may have seen it without
    /// its marks.
    pub(super) fn made_since(&self, since: u64) -> Vec<DatasetName> {
        let inner = self.inner();
        let ended = inner.made.iter().filter(|(_, end)| **end > since);
        let ended = ended.map(|(name, _)| name);
        inner.making.iter().chain(ended).cloned().collect()
    }

    /// The count, for what a look that begins now will see.
    pub(super) fn now(&self) -> u64 {
        self.inner().now
    }

    /// A plan that touches these begins or ends; `None` may touch anything. Answers the count.
    pub(super) fn touch(&self, datasets: Option<&BTreeSet<DatasetName>>) -> u64 {
        let mut inner = self.inner();
        inner.now += 1;
        let now = inner.now;
        match datasets {
            Some(datasets) if inner.touched.len() + datasets.len() < MOST => {
                inner
                    .touched
                    .extend(datasets.iter().map(|name| (name.clone(), now)));
            }
            _ => {
                inner.touched.clear();
                inner.seen.clear();
                inner.before = now;
            }
        }
        now
    }

    /// Notes what a look has seen that began at that count, of what `is_fresh`.
    pub(super) fn note(&self, state: &State, since: u64, is_fresh: impl Fn(&Object) -> bool) {
        let mut inner = self.inner();
        if inner.seen.len() > MOST {
            inner.seen.clear();
        }
        let at = Instant::now();
        for (object, guid) in state.identities().filter(|(object, _)| is_fresh(object)) {
            inner.seen.insert(object, Sight { guid, since, at });
        }
    }

    /// At which count a dataset was touched last.
    pub(super) fn last_touch(&self, name: &DatasetName) -> u64 {
        let inner = self.inner();
        inner.touched.get(name).copied().unwrap_or(inner.before)
    }

    /// A plan has left a dataset the one that it was, and nothing else has touched it: what was seen of it counts as
    /// long as before.
    pub(super) fn renew(&self, state: &State, name: &DatasetName) {
        let mut inner = self.inner();
        let now = inner.now;
        let Some(dataset) = state.dataset(name) else {
            return;
        };
        if let Some(sight) = inner.seen.get_mut(&name.clone().into())
            && sight.guid == dataset.guid
        {
            sight.since = now;
        }
    }

    /// Whether an object was seen to be this one, and nothing here has touched it since.
    pub(super) fn is_still(&self, object: &Object, guid: Guid) -> bool {
        let inner = self.inner();
        let touched = inner.touched.get(dataset_of(object));
        let touched = touched.copied().unwrap_or(inner.before);
        inner.seen.get(object).is_some_and(|sight| {
            sight.guid == guid && sight.since >= touched && sight.at.elapsed() < FRESH
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_made_within_a_look_is_known_after_it() {
        let seen = Seen::default();
        let name = DatasetName::parse("tank/v").expect("a name");
        let before = seen.now();
        let making = seen.making(&name);
        assert_eq!(seen.made_since(seen.now()), vec![name.clone()]);
        drop(making);
        assert_eq!(seen.made_since(before), [name]);
        assert!(seen.made_since(seen.now()).is_empty());
    }
}
