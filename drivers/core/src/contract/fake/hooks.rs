//! Tricks that a test plays on the fake driver, each on one call.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Semaphore;

use crate::call::Call;
use crate::driver::{BLOCK_RANGES, CREATE_GROUP, DELETE_GROUP, GET_GROUP};
use crate::error::{Error, Kind};

/// The verbs of a driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names are those of the driver's methods")]
pub enum Verb {
    Probe,
    CreateVolume,
    DeleteVolume,
    GetVolume,
    FindVolume,
    ListVolumes,
    ExpandVolume,
    Capacity,
    CreateSnapshot,
    DeleteSnapshot,
    GetSnapshot,
    ListSnapshots,
    PublishVolume,
    UnpublishVolume,
    FenceNode,
    CheckFence,
    ModifyVolume,
    CreateGroup,
    DeleteGroup,
    GetGroup,
    BlockRanges,
    NextRanges,
    Conditions,
}

/// When a trick applies. Verbs that change nothing only have the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Moment {
    /// Nothing has changed yet.
    BeforeChange,
    /// All of it was done; the caller does not know.
    AfterChange,
}

/// What a call does instead of continuing.
#[derive(Debug, Clone)]
pub enum Trick {
    /// It fails; the error says what is known about changes.
    Fail(Kind),
    /// It panics.
    Panic,
    /// It waits at a gate and then continues.
    Block(Gate),
}

/// The place where a call waits until the test releases it.
#[derive(Debug, Clone)]
pub struct Gate {
    reached: Arc<Semaphore>,
    open: Arc<Semaphore>,
}

#[derive(Debug, Default)]
pub(super) struct Hooks {
    tricks: Mutex<HashMap<(Verb, Moment), VecDeque<Trick>>>,
    calls: Mutex<HashMap<Verb, usize>>,
}

// === impl Verb ===

impl Verb {
    /// The verb in words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Probe => "probe",
            Self::CreateVolume => "create volume",
            Self::DeleteVolume => "delete volume",
            Self::GetVolume => "get volume",
            Self::FindVolume => "find volume",
            Self::ListVolumes => "list volumes",
            Self::ExpandVolume => "expand volume",
            Self::Capacity => "capacity",
            Self::CreateSnapshot => "create snapshot",
            Self::DeleteSnapshot => "delete snapshot",
            Self::GetSnapshot => "get snapshot",
            Self::ListSnapshots => "list snapshots",
            Self::PublishVolume => "publish volume",
            Self::UnpublishVolume => "unpublish volume",
            Self::FenceNode => "fence a node",
            Self::CheckFence => "check a fence",
            Self::ModifyVolume => "modify volume",
            Self::CreateGroup => CREATE_GROUP,
            Self::DeleteGroup => DELETE_GROUP,
            Self::GetGroup => GET_GROUP,
            Self::BlockRanges => BLOCK_RANGES,
            Self::NextRanges => "list more block ranges",
            Self::Conditions => "look at the health of volumes",
        }
    }
}

// === impl Gate ===

impl Default for Gate {
    fn default() -> Self {
        Self::new()
    }
}

impl Gate {
    /// A closed gate.
    pub fn new() -> Self {
        Self {
            reached: Arc::new(Semaphore::new(0)),
            open: Arc::new(Semaphore::new(0)),
        }
    }

    /// Waits until a call has reached the gate.
    pub async fn reached(&self) {
        if let Ok(permit) = self.reached.acquire().await {
            permit.forget();
        }
    }

    /// Releases one call, now or when it comes.
    pub fn open(&self) {
        self.open.add_permits(1);
    }

    async fn pass(&self) {
        self.reached.add_permits(1);
        if let Ok(permit) = self.open.acquire().await {
            permit.forget();
        }
    }
}

// === impl Hooks ===

impl Hooks {
    pub(super) fn play(&self, verb: Verb, moment: Moment, trick: Trick) {
        let mut tricks = lock(&self.tricks);
        tricks.entry((verb, moment)).or_default().push_back(trick);
    }

    pub(super) fn count(&self, verb: Verb) {
        *lock(&self.calls).entry(verb).or_default() += 1;
    }

    pub(super) fn calls(&self, verb: Verb) -> usize {
        lock(&self.calls).get(&verb).copied().unwrap_or_default()
    }

    pub(super) async fn at(&self, call: &Call, verb: Verb, moment: Moment) -> Result<(), Error> {
        let trick = lock(&self.tricks)
            .get_mut(&(verb, moment))
            .and_then(VecDeque::pop_front);
        match trick {
            None => Ok(()),
            Some(Trick::Fail(kind)) => {
                let doing = format!("{}, as the test wants", verb.name());
                call.outcome(Err(Error::new(kind, doing)))
            }
            Some(Trick::Panic) => panic!("{}, as the test wants", verb.name()),
            Some(Trick::Block(gate)) => {
                gate.pass().await;
                Ok(())
            }
        }
    }
}

/// A trick may have panicked elsewhere; the locked data is still consistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
