//! How many calls one connection may have in progress: threads that block are shared by all, and one
//! that hangs must leave enough of them to the others. A process with one connection has no limit.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use driver_core::{Error, Kind};

/// The most calls of one connection: a part of the threads that may block.
const MOST: usize = 128;

/// Calls in progress, by connection. Clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct ConcurrencyLimit {
    counts: Arc<Mutex<HashMap<Arc<str>, usize>>>,
}

/// One call among those of its connection, until it is dropped.
#[derive(Debug)]
pub(super) struct Permit {
    limit: ConcurrencyLimit,
    connection: Arc<str>,
}

// === impl ConcurrencyLimit ===

impl ConcurrencyLimit {
    /// Admits one more call, unless there are too many.
    pub(super) fn enter(&self, connection: &Arc<str>) -> Result<Option<Permit>, Error> {
        if connection.is_empty() {
            return Ok(None);
        }
        let mut counts = self.lock();
        let count = counts.entry(connection.clone()).or_default();
        if *count >= MOST {
            return Err(
                Error::new(Kind::Pending, format!("connection `{connection}`"))
                    .because(format!("{MOST} calls are in progress already"))
                    .advise("its storage may hang: the metric `omnibus_csi_connection_healthy` and the log say how it is"),
            );
        }
        *count += 1;
        drop(counts);
        Ok(Some(Permit {
            limit: self.clone(),
            connection: connection.clone(),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Arc<str>, usize>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut counts = self.limit.lock();
        if let Some(count) = counts.get_mut(&self.connection) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.connection);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_with_too_many_calls_gets_no_more_and_the_others_do() {
        let limit = ConcurrencyLimit::default();
        let (one, other): (Arc<str>, Arc<str>) = ("one".into(), "other".into());
        let permits: Vec<_> = (0..MOST)
            .map(|_| limit.enter(&one).expect("room"))
            .collect();
        let error = limit.enter(&one).expect_err("full");
        assert_eq!(error.kind(), Kind::Pending);
        let beside = limit.enter(&other).expect("room");
        assert!(beside.is_some());
        drop(permits);
        assert!(limit.enter(&one).is_ok());
        drop(beside);
        assert!(limit.lock().is_empty());
        let alone: Vec<_> = (0..1000).map(|_| limit.enter(&Arc::default())).collect();
        assert!(alone.into_iter().all(|permit| matches!(permit, Ok(None))));
    }
}
