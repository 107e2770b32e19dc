//! The recent past, for the console: calls of the last hour, free space of the last day.
//!
//! It is fed where calls and storages are measured ([`super::metrics`]), and nowhere else. All of it is bounded, is lost
//! when the process ends, and changes no answer to an orchestrator: it is only looked at.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use super::metrics::Usage;
use crate::calls::{Rpc, RpcGroup, Subject};
use crate::message::printable_within;

/// Older calls are forgotten.
const HOUR: Duration = Duration::from_hours(1);
/// Changes and failures that are kept: at most about a megabyte. Queries must not displace them.
const MAX_CHANGES: usize = 2_000;
/// Queries that succeeded.
const MAX_QUERIES: usize = 500;
/// More of a reason is not kept.
const MAX_REASON: usize = 1_024;
/// Measurements of free space of a connection: a day, every five minutes.
const MAX_POINTS: usize = 288;
/// Volumes whose claim and nodes are known from their calls: at most about two megabytes.
const MAX_KNOWN: usize = 10_000;

/// The recent past, since the process began.
#[derive(Debug)]
pub(crate) struct History {
    since: SystemTime,
    calls: Mutex<Calls>,
    storages: Mutex<BTreeMap<Arc<str>, Storage>>,
}

/// A call that has ended.
#[derive(Debug, Clone)]
pub(crate) struct CallEnded {
    pub(crate) rpc: Rpc,
    pub(crate) began: SystemTime,
    pub(crate) took: Duration,
    pub(crate) code: &'static str,
    /// Why it failed, if it did.
    pub(crate) reason: Option<String>,
    pub(crate) subject: Subject,
}

/// Facts of calls about a volume.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Known {
    /// The namespace and the name of its claim.
    pub(crate) claim: Option<String>,
    /// The nodes that it is published to.
    pub(crate) nodes: Vec<String>,
}

/// Figures of the storage of a connection.
#[derive(Debug, Clone, Default)]
pub(crate) struct Storage {
    /// Free bytes, and when: seconds since 1970.
    pub(crate) available: VecDeque<(u64, u64)>,
    pub(crate) volumes: Option<u64>,
    pub(crate) orphans: Option<u64>,
}

#[derive(Debug, Default)]
struct Calls {
    changes: VecDeque<CallEnded>,
    queries: VecDeque<CallEnded>,
    known: HashMap<(Arc<str>, String), Known>,
    /// The keys of `known`, the oldest first, and some that are gone.
    order: VecDeque<(Arc<str>, String)>,
}

// === impl History ===

impl History {
    /// Nothing seen yet.
    pub(crate) fn new() -> Self {
        Self {
            since: SystemTime::now(),
            calls: Mutex::default(),
            storages: Mutex::default(),
        }
    }

    /// When it began.
    pub(crate) fn since(&self) -> SystemTime {
        self.since
    }

    /// A call has ended.
    pub(super) fn ended(&self, mut call: CallEnded) {
        let is_good = call.code == "OK";
        // Probes come every few seconds, and say nothing while they succeed.
        if is_good && call.rpc.group() == RpcGroup::Identity {
            return;
        }
        call.reason = call
            .reason
            .map(|reason| printable_within(&reason, MAX_REASON));
        let mut calls = self.calls();
        if is_good {
            calls.learn(&call);
        }
        let (ring, most) = if is_good && !call.rpc.changes() {
            (&mut calls.queries, MAX_QUERIES)
        } else {
            (&mut calls.changes, MAX_CHANGES)
        };
        ring.push_back(call);
        while ring.len() > most {
            ring.pop_front();
        }
    }

    /// The calls of the last hour, the newest first.
    pub(crate) fn recent(&self) -> Vec<CallEnded> {
        let oldest = SystemTime::now().checked_sub(HOUR);
        let mut calls = self.calls();
        let Calls {
            changes, queries, ..
        } = &mut *calls;
        for ring in [&mut *changes, &mut *queries] {
            let is_old = |call: &CallEnded| Some(call.began + call.took) < oldest;
            while ring.front().is_some_and(is_old) {
                ring.pop_front();
            }
        }
        let mut all: Vec<_> = changes.iter().chain(queries.iter()).cloned().collect();
        drop(calls);
        all.sort_by_key(|call| std::cmp::Reverse(call.began));
        all
    }

    /// The facts of calls about a volume of a connection.
    pub(crate) fn known(&self, connection: &Arc<str>, id: &str) -> Known {
        let calls = self.calls();
        let of = |connection: &Arc<str>| calls.known.get(&(connection.clone(), id.to_owned()));
        // A class over several connections names none in its calls.
        let known = of(connection).cloned();
        let named = of(&Arc::default()).filter(|_| !connection.is_empty());
        let mut known = known.unwrap_or_default();
        if let (None, Some(named)) = (&known.claim, named) {
            known.claim.clone_from(&named.claim);
        }
        known
    }

    /// Something was measured on a storage.
    pub(super) fn measured(&self, connection: &Arc<str>, usage: Usage, value: Option<u64>) {
        let mut storages = self.storages();
        let storage = storages.entry(connection.clone()).or_default();
        match (usage, value) {
            (Usage::Volumes, value) => storage.volumes = value,
            (Usage::Orphans, value) => storage.orphans = value,
            (Usage::Available, None) | (Usage::Unhealthy, _) => {}
            (Usage::Available, Some(free)) => {
                storage.available.push_back((seconds_now(), free));
                while storage.available.len() > MAX_POINTS {
                    storage.available.pop_front();
                }
            }
        }
    }

    /// The figures of the storage of a connection.
    pub(crate) fn storage(&self, connection: &Arc<str>) -> Storage {
        let storages = self.storages();
        storages.get(connection).cloned().unwrap_or_default()
    }

    /// A connection is gone.
    pub(super) fn gone(&self, connection: &Arc<str>) {
        self.storages().remove(connection);
    }

    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn storages(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, Storage>> {
        self.storages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Calls ===

impl Calls {
    /// Takes from a call that succeeded what it says of its volume.
    fn learn(&mut self, call: &CallEnded) {
        let Subject {
            connection,
            volume: Some(volume),
            claim,
            node,
            ..
        } = &call.subject
        else {
            return;
        };
        let key = (connection.clone(), id(connection, volume).to_owned());
        match (call.rpc, claim, node) {
            (Rpc::CreateVolume, Some(claim), _) => self.of(key).claim = Some(claim.clone()),
            (Rpc::ControllerPublishVolume, _, Some(node)) => {
                let nodes = &mut self.of(key).nodes;
                if !nodes.contains(node) {
                    nodes.push(node.clone());
                }
            }
            (Rpc::ControllerUnpublishVolume, _, node) => {
                if let Some(known) = self.known.get_mut(&key) {
                    let is_left = |other: &String| node.as_ref().is_some_and(|node| node != other);
                    known.nodes.retain(is_left);
                }
            }
            (Rpc::DeleteVolume, ..) => drop(self.known.remove(&key)),
            _ => {}
        }
    }

    fn of(&mut self, key: (Arc<str>, String)) -> &mut Known {
        if !self.known.contains_key(&key) {
            self.order.push_back(key.clone());
        }
        while self.known.len() >= MAX_KNOWN
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
        if self.order.len() > 2 * MAX_KNOWN {
            let known = &self.known;
            self.order
                .retain(|other| *other == key || known.contains_key(other));
        }
        self.known.entry(key).or_default()
    }
}

/// The id of a volume at its connection, of its handle.
fn id<'a>(connection: &str, handle: &'a str) -> &'a str {
    let of_connection = handle
        .strip_prefix("v:")
        .and_then(|rest| rest.strip_prefix(connection))
        .and_then(|rest| rest.strip_prefix('/'));
    of_connection.unwrap_or(handle)
}

/// The time, in seconds since 1970.
pub(crate) fn seconds_now() -> u64 {
    seconds(SystemTime::now())
}

/// A time, in seconds since 1970.
pub(crate) fn seconds(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(rpc: Rpc, code: &'static str, volume: &str) -> CallEnded {
        CallEnded {
            rpc,
            began: SystemTime::now(),
            took: Duration::from_millis(1),
            code,
            reason: (code != "OK").then(|| "x".repeat(5_000)),
            subject: Subject {
                connection: "nas".into(),
                volume: Some(volume.to_owned()),
                claim: Some(format!("shop/{volume}")),
                node: Some("node-1".to_owned()),
                ..Subject::default()
            },
        }
    }

    #[test]
    fn queries_displace_no_change_and_no_failure_and_all_is_bounded() {
        let history = History::new();
        history.ended(call(Rpc::CreateVolume, "OK", "a"));
        history.ended(call(Rpc::ListVolumes, "UNAVAILABLE", "b"));
        for _ in 0..3 * MAX_CHANGES {
            history.ended(call(Rpc::ListVolumes, "OK", "c"));
            history.ended(call(Rpc::Probe, "OK", "d"));
        }
        let recent = history.recent();
        assert_eq!(recent.len(), MAX_QUERIES + 2);
        assert!(recent.iter().any(|call| call.rpc == Rpc::CreateVolume));
        let failed = recent.iter().find_map(|call| call.reason.as_ref());
        assert!(failed.is_some_and(|reason| reason.len() <= MAX_REASON));
        for _ in 0..2 * MAX_CHANGES {
            history.ended(call(Rpc::DeleteVolume, "OK", "e"));
        }
        assert_eq!(history.recent().len(), MAX_QUERIES + MAX_CHANGES);
    }

    #[test]
    fn calls_of_before_the_last_hour_are_forgotten() {
        let history = History::new();
        let mut old = call(Rpc::DeleteVolume, "OK", "a");
        old.began -= HOUR + Duration::from_secs(10);
        history.ended(old);
        history.ended(call(Rpc::DeleteVolume, "OK", "b"));
        assert_eq!(history.recent().len(), 1);
    }

    #[test]
    fn a_volume_has_the_claim_and_the_nodes_of_its_calls_until_it_is_deleted() {
        let (history, nas) = (History::new(), Arc::from("nas"));
        history.ended(call(Rpc::CreateVolume, "OK", "a"));
        for _ in 0..2 {
            history.ended(call(Rpc::ControllerPublishVolume, "OK", "v:nas/a"));
        }
        let known = history.known(&nas, "a");
        assert_eq!(known.claim.as_deref(), Some("shop/a"));
        assert_eq!(known.nodes, ["node-1"]);
        history.ended(call(Rpc::ControllerUnpublishVolume, "OK", "v:nas/a"));
        assert!(history.known(&nas, "a").nodes.is_empty());
        history.ended(call(Rpc::DeleteVolume, "UNAVAILABLE", "v:nas/a"));
        assert!(history.known(&nas, "a").claim.is_some(), "it may be there");
        history.ended(call(Rpc::DeleteVolume, "OK", "v:nas/a"));
        assert_eq!(history.known(&nas, "a"), Known::default());
    }

    #[test]
    fn what_is_known_of_volumes_is_bounded_also_while_they_come_and_go() {
        let history = History::new();
        for number in 0..MAX_KNOWN + 10 {
            history.ended(call(Rpc::CreateVolume, "OK", &number.to_string()));
        }
        assert_eq!(history.calls().known.len(), MAX_KNOWN);
        assert_eq!(history.known(&"nas".into(), "0"), Known::default());
        for number in 0..3 * MAX_KNOWN {
            let volume = format!("n{number}");
            history.ended(call(Rpc::CreateVolume, "OK", &volume));
            history.ended(call(Rpc::DeleteVolume, "OK", &volume));
        }
        let calls = history.calls();
        assert!(calls.known.len() <= MAX_KNOWN);
        assert!(
            calls.order.len() <= 2 * MAX_KNOWN + 1,
            "{}",
            calls.order.len()
        );
    }

    #[test]
    fn free_space_is_kept_for_a_day_and_no_longer_than_its_connection() {
        let (history, nas) = (History::new(), Arc::from("nas"));
        for free in 0..2 * MAX_POINTS as u64 {
            history.measured(&nas, Usage::Available, Some(free));
        }
        history.measured(&nas, Usage::Orphans, Some(3));
        let storage = history.storage(&nas);
        assert_eq!(storage.available.len(), MAX_POINTS);
        let last = storage.available.back().map(|(_, free)| *free);
        assert_eq!(last, Some(2 * MAX_POINTS as u64 - 1));
        assert_eq!(storage.orphans, Some(3));
        history.gone(&nas);
        assert!(history.storage(&nas).available.is_empty());
    }
}
