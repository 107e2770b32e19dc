//! Datasets that this process makes at this moment: one may lack its marks for a while, and is no part of an interrupted copy.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use driver_zfs::name::DatasetName;

/// So many datasets are remembered. A bound of the memory.
const MOST: usize = 4096;

/// What is made, or was.
#[derive(Debug, Default)]
pub(super) struct Makings(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    making: BTreeSet<DatasetName>,
    /// What was made, and when that ended.
    made: HashMap<DatasetName, Instant>,
}

/// Ends the making of a dataset.
pub(super) struct Making<'a> {
    of: &'a Makings,
    name: DatasetName,
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        let mut inner = self.of.inner();
        if inner.made.len() > MOST {
            inner.made.clear();
        }
        inner.making.remove(&self.name);
        inner.made.insert(self.name.clone(), Instant::now());
    }
}

// === impl Makings ===

impl Makings {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A dataset is made until what is answered is dropped.
    pub(super) fn begin(&self, name: &DatasetName) -> Making<'_> {
        self.inner().making.insert(name.clone());
        Making {
            of: self,
            name: name.clone(),
        }
    }

    /// What was in the making at any time since then: a look that began then may have seen it without its marks.
    pub(super) fn since(&self, since: Instant) -> Vec<DatasetName> {
        let inner = self.inner();
        let ended = inner.made.iter().filter(|(_, end)| **end > since);
        let ended = ended.map(|(name, _)| name);
        inner.making.iter().chain(ended).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_made_within_a_look_is_known_after_it() {
        let makings = Makings::default();
        let name = DatasetName::parse("tank/v").expect("a name");
        let before = Instant::now();
        let making = makings.begin(&name);
        assert_eq!(makings.since(Instant::now()), vec![name.clone()]);
        drop(making);
        assert_eq!(makings.since(before), [name]);
        assert!(makings.since(Instant::now()).is_empty());
    }
}
