//! Datasets that this process makes at this moment: one may lack its marks for a while, and is no part of an interrupted copy.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use driver_zfs::name::DatasetName;

/// The datasets that are being made, and the looks that are under way.
#[derive(Debug, Default)]
pub(super) struct Makings(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    making: BTreeSet<DatasetName>,
    /// The datasets that were in the making at any time of each look, by its number.
    looks: BTreeMap<u64, BTreeSet<DatasetName>>,
    /// The number of the next look.
    next: u64,
}

/// Ends the making of a dataset.
pub(super) struct Making<'a> {
    of: &'a Makings,
    name: DatasetName,
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        self.of.inner().making.remove(&self.name);
    }
}

/// A look that is under way.
pub(super) struct Looking<'a> {
    of: &'a Makings,
    number: u64,
}

impl Drop for Looking<'_> {
    fn drop(&mut self) {
        self.of.inner().looks.remove(&self.number);
    }
}

// === impl Makings ===

impl Makings {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A dataset is made until what is answered is dropped.
    pub(super) fn begin(&self, name: &DatasetName) -> Making<'_> {
        let mut inner = self.inner();
        inner.making.insert(name.clone());
        for seen in inner.looks.values_mut() {
            seen.insert(name.clone());
        }
        Making {
            of: self,
            name: name.clone(),
        }
    }

    /// A look begins, and ends when what is answered is dropped.
    pub(super) fn look(&self) -> Looking<'_> {
        let mut inner = self.inner();
        let (number, making) = (inner.next, inner.making.clone());
        inner.next += 1;
        inner.looks.insert(number, making);
        Looking { of: self, number }
    }
}

// === impl Looking ===

impl Looking<'_> {
    /// The datasets in the making at any time since this look began: they may have been seen without their marks.
    pub(super) fn made(&self) -> BTreeSet<DatasetName> {
        let inner = self.of.inner();
        inner.looks.get(&self.number).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_made_within_a_look_is_known_until_it_ends() {
        let makings = Makings::default();
        let name = DatasetName::parse("tank/v").expect("a name");
        let before = makings.look();
        let making = makings.begin(&name);
        let beside = makings.look();
        drop(making);
        let made = BTreeSet::from([name]);
        assert_eq!(before.made(), made);
        assert_eq!(beside.made(), made);
        assert!(makings.look().made().is_empty());
        drop(before);
        drop(beside);
        assert!(makings.inner().looks.is_empty());
    }
}
