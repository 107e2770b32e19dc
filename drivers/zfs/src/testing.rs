//! A pool in memory and an export in memory, which apply plans at once.
//!
//! The pool follows the rules of ZFS that plans rely on, and rejects what ZFS rejects. It can be
//! interrupted between any two steps, like a process or a connection, and interrupted work can
//! continue; others can change it between an observation and a plan, and it can be busy. The tests
//! of real ZFS run the same suites.

mod export;
mod memory;
mod pool;
mod records;
mod state;
mod transfer;

use std::fmt;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use driver_core::config::Finding;
use driver_core::transfer::{Bookmark, Bytes};
use driver_core::{BackendIdentity, Call, Error};

pub use export::{EVERY_NODE, MemoryCommand, MemoryExport, MemoryOutput, Number, Numbers, Targets};
pub use memory::settings;
pub use pool::{MemoryPool, Room, Thing};
pub use records::RecordWriter;
pub use state::HostState;

use crate::ZfsDriver;
use crate::backend::{
    Backend, Base, Incoming, Interrupted, ListQuery, Listed, Serves, Tried, without_first_try,
};
use crate::name::{DatasetName, Since, SnapshotRef};
use crate::observed::{Observed, Query, Request, VolumeKind};
use crate::step::{Failed, FirstTry, Next, Plan};

/// The time to wait for a lock that is never free.
const TURN: Duration = Duration::from_secs(10);

/// A host with a pool in memory.
#[derive(Debug, Default)]
pub struct MemoryHost {
    state: Mutex<HostState>,
    before: Mutex<Option<Intervention>>,
    after: Mutex<Option<Intervention>>,
}

/// A single concurrent change of a host by others.
struct Intervention(Box<dyn FnOnce(&mut HostState) + Send>);

impl fmt::Debug for Intervention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Intervention")
    }
}

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A driver over a host in memory.
pub trait InMemory {
    /// The host.
    fn backend(&self) -> &MemoryHost;
}

impl InMemory for ZfsDriver {
    fn backend(&self) -> &MemoryHost {
        self.storage().of().expect("a host in memory")
    }
}

// === impl MemoryHost ===

impl MemoryHost {
    /// A host with a pool `tank`, in which the parent of volumes of [`settings`] was made.
    pub fn new() -> Self {
        let host = Self::empty();
        for name in ["tank/csi", "tank/csi/v"] {
            if let Ok(name) = DatasetName::parse(name) {
                let pool = &mut host.state().pool;
                pool.insert(&name, VolumeKind::Filesystem, &[], None);
            }
        }
        host
    }

    /// A host with an empty pool `tank`.
    pub fn empty() -> Self {
        let host = Self::default();
        host.state().pool = MemoryPool::with_root("tank");
        host
    }

    /// A host with this state.
    pub fn from_state(state: HostState) -> Self {
        Self {
            state: Mutex::new(state),
            before: Mutex::default(),
            after: Mutex::default(),
        }
    }

    /// Applies a change before the first step of the next plan, after that plan was made.
    pub fn before_next_plan(&self, change: impl FnOnce(&mut HostState) + Send + 'static) {
        *lock(&self.before) = Some(Intervention(Box::new(change)));
    }

    /// Applies a change right after the next plan that fails.
    pub fn after_failing(&self, change: impl FnOnce(&mut HostState) + Send + 'static) {
        *lock(&self.after) = Some(Intervention(Box::new(change)));
    }

    fn apply_now(&self, plan: &Plan, then: &Request) -> Result<Observed, Failed> {
        let mut is_begun = false;
        self.applied(plan, then, &mut is_begun)
            .map_err(|failed| failed.after_change(is_begun))
    }

    fn applied(
        &self,
        plan: &Plan,
        then: &Request,
        is_begun: &mut bool,
    ) -> Result<Observed, Failed> {
        let mut state = self.state();
        state.exchanges += 1;
        if let Some(Intervention(change)) = lock(&self.before).take() {
            change(&mut state);
        }
        // Running work still holds the lock.
        state.finish();
        if let Err(failed) = state.apply(plan, is_begun) {
            if let Some(Intervention(change)) = lock(&self.after).take() {
                change(&mut state);
            }
            return Err(failed);
        }
        state.observe(then).map_err(Failed::terminal)
    }

    /// Its state; tests change it as others would.
    pub fn state(&self) -> MutexGuard<'_, HostState> {
        lock(&self.state)
    }
}

impl Serves for MemoryHost {
    type Command = MemoryCommand;
    type Output = MemoryOutput;
}

#[async_trait]
impl Backend for MemoryHost {
    fn identity(&self) -> BackendIdentity {
        // As many hosts as there are values.
        BackendIdentity(format!("memory {:p}", &raw const self.state))
    }

    async fn describe(&self, _call: &Call, _kind: VolumeKind) -> Vec<Finding> {
        Vec::new()
    }

    async fn observe(&self, _call: &Call, request: &Request) -> Result<Observed, Error> {
        // Other tasks run between an observation and a plan.
        tokio::task::yield_now().await;
        let mut state = self.state();
        state.exchanges += 1;
        if state.is_cut() {
            return Err(state::cut());
        }
        state.observe(request)
    }

    async fn apply(&self, call: &Call, plan: &Plan, then: &Request) -> Result<Observed, Failed> {
        call.changing();
        let outcome = self.apply_now(plan, then);
        if matches!(&outcome, Err(failed) if failed.next == Next::Queue) {
            // Reported only after the wait.
            tokio::time::sleep(TURN).await;
        }
        tokio::task::yield_now().await;
        outcome
    }

    async fn try_first(
        &self,
        call: &Call,
        request: &Request,
        first: &FirstTry,
    ) -> Result<Tried, Failed> {
        let tries = self.state().tries_first;
        if !tries {
            return without_first_try(self, call, request).await;
        }
        call.changing();
        tokio::task::yield_now().await;
        let mut state = self.state();
        state.exchanges += 1;
        state.try_first(request, first)
    }

    fn asks_one_by_one(&self) -> bool {
        false
    }

    fn reserves_by_size(&self) -> bool {
        false
    }

    fn refuses_groups(&self) -> Option<&'static str> {
        None
    }

    fn streams(&self) -> bool {
        true
    }

    async fn send(
        &self,
        _call: &Call,
        of: &SnapshotRef,
        since: Option<&Base>,
        resume: Option<&Bookmark>,
    ) -> Result<Box<dyn Bytes>, Error> {
        transfer::send(&mut self.state(), of, since, resume)
    }

    fn lists_blocks(&self) -> bool {
        true
    }

    async fn send_records(
        &self,
        _call: &Call,
        of: &SnapshotRef,
        since: Option<&Since>,
    ) -> Result<Box<dyn Bytes>, Error> {
        transfer::send_records(&mut self.state(), of, since)
    }

    async fn freed_since(
        &self,
        _call: &Call,
        _of: &SnapshotRef,
        _txg: u64,
        _block: u64,
    ) -> Result<Vec<Range<u64>>, Error> {
        // Its zvols are one block, which is never freed.
        Ok(Vec::new())
    }

    async fn receive(
        &self,
        call: &Call,
        incoming: &Incoming,
        stream: &mut dyn Bytes,
    ) -> Result<(), Interrupted> {
        call.changing();
        transfer::receive(self, incoming, stream).await
    }

    async fn list(&self, _call: &Call, query: &ListQuery) -> Result<Listed, Error> {
        let mut state = self.state();
        state.exchanges += 1;
        let parents = query.scopes.iter();
        let parents: Vec<_> = parents
            .map(|scope| Query::Dataset(scope.parent.clone()))
            .collect();
        state.find_pools(&parents)?;
        Ok(state.pool.list(query))
    }
}
