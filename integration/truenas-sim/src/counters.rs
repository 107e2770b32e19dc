//! The number of calls, exchanges and bytes that went over the wire, per method.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;

use crate::nas::Nas;

/// The cost of one method.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Cost {
    /// Requests.
    pub calls: u64,
    /// Requests that were answered with an error.
    pub errors: u64,
    /// Bytes of the requests.
    pub bytes_in: u64,
    /// Bytes of the answers.
    pub bytes_out: u64,
}

/// The counts since the start or the last reset.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// By method.
    pub methods: BTreeMap<String, Cost>,
    /// Round trips in a row: a request that is sent while another one is on its way or unanswered adds
    /// none.
    ///
    /// Exact if a round-trip delay is set; without one a second request of a batch can be sent after the
    /// first was answered.
    pub exchanges: u64,
    /// Connections that were accepted.
    pub connections: u64,
    /// The most calls that were unanswered at the same time on one connection.
    pub in_flight: u64,
}

impl Counts {
    /// All calls.
    pub fn calls(&self) -> u64 {
        self.methods.values().map(|cost| cost.calls).sum()
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    counts: Counts,
    on_the_way: u64,
}

/// A request from when it is sent until it is answered.
#[derive(Debug)]
pub(crate) struct Travel(Arc<Nas>);

impl Travel {
    /// One begins.
    pub(crate) fn begin(nas: &Arc<Nas>) -> Self {
        nas.counters.with(|inner| {
            if inner.on_the_way == 0 {
                inner.counts.exchanges += 1;
            }
            inner.on_the_way += 1;
        });
        Self(Arc::clone(nas))
    }
}

impl Drop for Travel {
    fn drop(&mut self) {
        self.0.counters.with(|inner| {
            inner.on_the_way = inner.on_the_way.saturating_sub(1);
        });
    }
}

impl Counters {
    pub(crate) fn connected(&self) {
        self.with(|inner| inner.counts.connections += 1);
    }

    /// So many calls of a connection are unanswered now.
    pub(crate) fn pending(&self, calls: usize) {
        self.with(|inner| {
            inner.counts.in_flight = inner.counts.in_flight.max(calls as u64);
        });
    }

    pub(crate) fn arrived(&self, method: &str, bytes: usize) {
        self.with(|inner| {
            let cost = inner.counts.methods.entry(method.to_owned()).or_default();
            cost.calls += 1;
            cost.bytes_in += bytes as u64;
        });
    }

    pub(crate) fn answered(&self, method: &str, bytes: usize, failed: bool) {
        self.with(|inner| {
            let cost = inner.counts.methods.entry(method.to_owned()).or_default();
            cost.bytes_out += bytes as u64;
            cost.errors += u64::from(failed);
        });
    }

    pub(crate) fn counts(&self) -> Counts {
        self.with(|inner| inner.counts.clone())
    }

    pub(crate) fn reset(&self) {
        self.with(|inner| inner.counts = Counts::default());
    }

    fn with<T>(&self, change: impl FnOnce(&mut Inner) -> T) -> T {
        change(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
