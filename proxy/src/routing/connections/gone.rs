//! Connections that are not served any more, remembered for the life of this process.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::name::ConnectionName;

/// How many are remembered.
const MAX: usize = 10_000;

/// Connections that were served once.
#[derive(Debug, Default)]
pub(super) struct Gone(Mutex<BTreeMap<ConnectionName, Memory>>);

#[derive(Debug)]
struct Memory {
    since: Instant,
    /// Whether its last driver had access per node.
    published: bool,
}

// === impl Gone ===

impl Gone {
    /// Remembers one.
    pub(super) fn add(&self, name: &ConnectionName, published: bool) {
        let since = Instant::now();
        let mut all = self.lock();
        all.insert(name.clone(), Memory { since, published });
        if all.len() > MAX {
            let oldest = all.iter().min_by_key(|(_, memory)| memory.since);
            let oldest = oldest.map(|(name, _)| name.clone());
            oldest.map(|name| all.remove(&name));
        }
    }

    /// Whether there was such a one.
    pub(super) fn has(&self, name: &ConnectionName) -> bool {
        self.lock().contains_key(name)
    }

    /// Whether there was such a one, without access per node.
    pub(super) fn was_open(&self, name: &ConnectionName) -> bool {
        self.lock()
            .get(name)
            .is_some_and(|memory| !memory.published)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ConnectionName, Memory>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
