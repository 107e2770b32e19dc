//! The storages of a sequence: they outlive the process, and fail as a step says.
//!
//! Each is driver-core's own driver in memory, which keeps the contract, with additions: partial
//! volumes, capacity, copies from another storage, and faults whose effect the model knows.

mod copies;
mod verbs;

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use driver_core::contract::fake::{FakeDriver, Verb};
use driver_core::transfer::TransferFormat;
use driver_core::{
    Call, Capabilities, Driver, Effect, Error, Kind, Lister as _, PageRequest, Snapshot,
    SnapshotFilter, Snapshots as _, Volume, VolumeId,
};
use tokio::sync::oneshot;

use super::flaws::Flaw;

/// How much of its work an interrupted verb has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Did {
    Nothing,
    /// A partial volume. Only the creation of volumes has parts.
    Half,
    All,
}

/// The fault of a verb.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// It fails before its first change.
    Fail(Kind),
    /// It fails after it, with or without reporting the effect.
    Cut(Kind, Did, bool),
    /// It panics: before its first change, or after.
    Panic(Option<Did>),
    /// It hangs until it is released, and then does this much. A half is done before.
    Hang(Did),
}

/// The condition of a storage that a step sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Condition {
    /// No further volume fits in.
    Full(bool),
    /// It cannot be reached.
    Down(bool),
    /// This many bytes are free.
    Room(u64),
}

/// The content, for comparison.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Held {
    /// Ids and sizes.
    pub(super) volumes: BTreeSet<(String, u64)>,
    pub(super) halves: BTreeSet<String>,
    /// Ids and sources.
    pub(super) snapshots: BTreeSet<(String, String)>,
    pub(super) published: BTreeSet<(String, String)>,
    /// The copies in other storages for which something is kept here.
    pub(super) opened: BTreeSet<String>,
}

/// One storage.
#[derive(Debug)]
pub(super) struct Storage {
    identity: String,
    can: Capabilities,
    forms: &'static [TransferFormat],
    flaw: Option<Flaw>,
    inner: FakeDriver,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    halves: BTreeSet<String>,
    published: BTreeSet<(String, String)>,
    opened: BTreeSet<String>,
    /// The sources of volumes that came from elsewhere.
    carried: BTreeMap<String, String>,
    full: bool,
    down: bool,
    room: u64,
    armed: Option<(Verb, Fault)>,
    hung: Vec<oneshot::Sender<()>>,
}

/// The format that each exports and imports: the first two are compatible.
pub(super) const FORMS: [TransferFormat; 3] = [
    TransferFormat::Tree,
    TransferFormat::Tree,
    TransferFormat::ZfsFilesystem,
];

/// More than any inner work takes, however late it begins.
const LONG: Duration = Duration::from_hours(1);

// === impl Storage ===

impl Storage {
    /// The storage with this number: one with every verb.
    pub(super) fn new(at: usize, room: u64, flaw: Option<Flaw>) -> Arc<Self> {
        let can = Capabilities {
            topology: false,
            ..(&FakeDriver::new() as &dyn Driver).capabilities()
        };
        let forms = std::slice::from_ref(&FORMS[at]);
        Self::with(&format!("storage {at}"), can, forms, room, flaw)
    }

    /// One whose volumes are made by hand.
    pub(super) fn by_hand() -> Arc<Self> {
        Self::with("hand", Capabilities::NONE, &[], 0, None)
    }

    fn with(
        identity: &str,
        can: Capabilities,
        forms: &'static [TransferFormat],
        room: u64,
        flaw: Option<Flaw>,
    ) -> Arc<Self> {
        Arc::new(Self {
            identity: identity.to_owned(),
            can,
            forms,
            flaw,
            inner: FakeDriver::new().with_capabilities(can),
            state: Mutex::new(State {
                room,
                ..State::default()
            }),
        })
    }

    /// The next call of `verb` meets this.
    pub(super) fn arm(&self, fault: Option<(Verb, Fault)>) {
        self.state().armed = fault;
    }

    pub(super) fn change(&self, change: Condition) {
        let mut state = self.state();
        match change {
            Condition::Full(full) => state.full = full,
            Condition::Down(down) => state.down = down,
            Condition::Room(room) => state.room = room,
        }
    }

    /// What hangs longest continues. Whether anything hung.
    pub(super) fn release(&self) -> bool {
        let mut state = self.state();
        if state.hung.is_empty() {
            return false;
        }
        // A receiver that gave up is gone.
        let _ = state.hung.remove(0).send(());
        true
    }

    /// Hanging work never continues: its process is gone.
    pub(super) fn kill(&self) {
        self.state().hung.clear();
    }

    pub(super) async fn held(&self) -> Held {
        let call = Call::within(LONG);
        let all = PageRequest::default();
        let volumes = self.inner.list_volumes(&call, &all).await;
        let volumes = volumes.map_or_else(|_| Vec::new(), |page| page.entries);
        let filter = SnapshotFilter::default();
        let snapshots = self.inner.list_snapshots(&call, &filter, &all).await;
        let snapshots = snapshots.map_or_else(|_| Vec::new(), |page| page.entries);
        let state = self.state();
        let volume = |volume: &Volume| {
            let size = volume.capacity.unwrap_or_default();
            (volume.id.as_str().to_owned(), size)
        };
        let snapshot = |snapshot: &Snapshot| {
            let source = snapshot.source.as_str().to_owned();
            (snapshot.id.as_str().to_owned(), source)
        };
        Held {
            volumes: volumes.iter().map(volume).collect(),
            halves: state.halves.clone(),
            snapshots: snapshots.iter().map(snapshot).collect(),
            published: state.published.clone(),
            opened: state.opened.clone(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fault(&self, verb: Verb) -> Result<Option<Fault>, Error> {
        let mut state = self.state();
        if state.down {
            return Err(Error::new(Kind::Unreachable, verb.name()));
        }
        Ok(state
            .armed
            .take_if(|(armed, _)| *armed == verb)
            .map(|(_, fault)| fault))
    }

    async fn hang(&self) {
        let (go, goes) = oneshot::channel();
        self.state().hung.push(go);
        if goes.await.is_err() {
            pending::<()>().await;
        }
    }

    /// A verb that changes something: `all` of it, or the part that the fault allows.
    async fn work<T>(
        &self,
        call: &Call,
        verb: Verb,
        half: Option<&VolumeId>,
        all: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let lost = |kind, effect| Error::new(kind, verb.name()).with_effect(effect);
        match self.fault(verb)? {
            None => all.await,
            Some(Fault::Fail(kind)) => Err(lost(kind, Effect::None)),
            Some(Fault::Cut(kind, did, reported)) => {
                if self.flaw != Some(Flaw::ChangesUntold) {
                    call.changing();
                }
                drop(self.part(did, half, all).await);
                let effect = if reported {
                    Effect::Possible
                } else {
                    Effect::None
                };
                Err(lost(kind, effect))
            }
            Some(Fault::Panic(None)) => resume_unwind(Box::new("as the step says")),
            Some(Fault::Panic(Some(did))) => {
                call.changing();
                drop(self.part(did, half, all).await);
                resume_unwind(Box::new("as the step says"))
            }
            Some(Fault::Hang(did)) => {
                call.changing();
                if did == Did::Half {
                    self.begin(half).await;
                }
                self.hang().await;
                let ended = self.part(did, half, all).await;
                ended.unwrap_or_else(|| Err(lost(Kind::Internal, Effect::Possible)))
            }
        }
    }

    /// Does a part of a verb's work, or all of it.
    async fn part<T>(
        &self,
        did: Did,
        half: Option<&VolumeId>,
        all: impl Future<Output = Result<T, Error>>,
    ) -> Option<Result<T, Error>> {
        match did {
            Did::All => Some(all.await),
            Did::Half => {
                self.begin(half).await;
                None
            }
            Did::Nothing => None,
        }
    }

    /// Whether an existing volume has the same source, or one that was not copied here.
    fn agrees(&self, id: &VolumeId, carried: Option<&str>) -> bool {
        let state = self.state();
        state.carried.get(id.as_str()).map(String::as_str) == carried
    }

    /// A reading verb.
    async fn look<T>(
        &self,
        verb: Verb,
        all: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        match self.fault(verb)? {
            None => all.await,
            Some(Fault::Fail(kind) | Fault::Cut(kind, ..)) => Err(Error::new(kind, verb.name())),
            Some(Fault::Panic(_)) => resume_unwind(Box::new("as the step says")),
            Some(Fault::Hang(_)) => {
                self.hang().await;
                all.await
            }
        }
    }

    /// Leaves a partial volume, unless there is a complete one.
    async fn begin(&self, half: Option<&VolumeId>) {
        if let Some(id) = half
            && self.inner.get_volume(&inner(), id).await.is_err()
        {
            self.state().halves.insert(id.as_str().to_owned());
        }
    }
}

/// The context of inner work: the caller may have given up.
fn inner() -> Call {
    Call::within(LONG)
}
