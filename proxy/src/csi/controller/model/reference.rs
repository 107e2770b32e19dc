//! The reference: the behaviour that docs/proxy.md, its reference, docs/compatibility.md and docs/grpc-codes.md
//! describe.
//!
//! Plain maps and rules, written from those pages and not from the code. If they allow several
//! answers, all of them are here. `store` has the behaviour of the storages, `work` the outcome of
//! work on them, `calls` the answers to each call and `creation` those for new volumes.

mod calls;
mod creation;
mod expected;
mod store;
mod work;

use std::collections::{BTreeMap, BTreeSet};

use driver_core::contract::fake::Verb;
use tonic::Code;

use super::requests::Answer;
use super::steps::{BareIs, Call, Content, Ends, HAND, Handle, STORAGES, Setup, Step, VOLUMES};
use super::storage::{Condition, Fault, Held};
pub(super) use expected::Expected;
use expected::{List, code};
use store::Store;
use work::{Failure, Hung};

/// How a connection is served.
#[derive(Debug, Clone, Copy)]
enum Served {
    Well(Content),
    Refused,
    BeingRead,
}

/// The object of a call, in a storage.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Object {
    Volume(usize, String),
    SnapshotName(usize, &'static str),
    Snapshot(usize, String),
}

/// The state, as far as the documentation defines it.
#[derive(Debug)]
pub(super) struct Reference {
    setup: Setup,
    /// The content of the folder: valid content, or none.
    lying: BTreeMap<&'static str, Option<Content>>,
    served: BTreeMap<&'static str, Served>,
    unread: bool,
    unbuilt: BTreeSet<&'static str>,
    stores: Vec<Store>,
    hung: Vec<Hung>,
    /// Volumes that may be in two storages, or that may leave a part in one when they are
    /// forgotten: the operator chose not to wait for it.
    excused: BTreeSet<String>,
    armed: Option<(usize, Verb, Fault)>,
    leaves: bool,
    /// Whether the source of a volume is in another storage.
    pub(super) has_copied: bool,
}

// === impl Reference ===

impl Reference {
    pub(super) fn new(setup: &Setup, room: u64) -> Self {
        Self {
            setup: setup.clone(),
            lying: BTreeMap::new(),
            served: BTreeMap::new(),
            unread: false,
            unbuilt: BTreeSet::new(),
            stores: (0..STORAGES).map(|_| Store::new(room)).collect(),
            hung: Vec::new(),
            excused: BTreeSet::new(),
            armed: None,
            leaves: false,
            has_copied: false,
        }
    }

    /// Whether a step can be done at all: drivers in use cannot be dropped.
    pub(super) fn allows(&self, step: &Step) -> bool {
        !matches!(step, Step::Unbuilt(true)) || self.hung.is_empty()
    }

    /// The possible answers to a step.
    pub(super) fn step(&mut self, step: &Step) -> Option<Expected> {
        match step {
            Step::Good(name, content) => self.put(name, Some(*content)),
            Step::Bad(name) => self.put(name, None),
            Step::Found(name) => {
                self.lying.entry(name).or_insert(Some(Content::default()));
                if *name != "old" {
                    self.served.entry(name).or_insert(Served::BeingRead);
                }
            }
            Step::Gone(name) => {
                self.lying.remove(name);
                self.served.remove(name);
                self.unbuilt.remove(name);
            }
            Step::Unread(is) => self.unread = *is,
            Step::Unbuilt(is) => self.unbuild(*is),
            Step::Storage(at, change) => {
                let store = &mut self.stores[*at];
                match change {
                    Condition::Full(full) => store.full = *full,
                    Condition::Down(down) => store.down = *down,
                    Condition::Room(room) => store.room = *room,
                }
            }
            Step::Release => self.release(),
            Step::Restart(ends) => self.restart(*ends),
            Step::Call {
                call,
                fault,
                leaves,
            } => {
                (self.armed, self.leaves) = (*fault, *leaves);
                let expected = self.call(call);
                self.armed = None;
                return Some(expected);
            }
        }
        None
    }

    fn put(&mut self, name: &'static str, content: Option<Content>) {
        self.lying.insert(name, content);
        // It means another connection.
        if name == "old" {
            return;
        }
        match (content, self.served.get(name)) {
            (Some(content), _) => {
                self.served.insert(name, Served::Well(content));
                self.unbuilt.remove(name);
            }
            // The last valid one stays in use.
            (None, Some(Served::Well(_))) => {}
            (None, _) => drop(self.served.insert(name, Served::Refused)),
        }
    }

    fn unbuild(&mut self, is: bool) {
        self.unbuilt.clear();
        if is {
            let well = |(name, served): (&&'static str, &Served)| {
                matches!(served, Served::Well(_)).then_some(*name)
            };
            self.unbuilt = self.served.iter().filter_map(well).collect();
        }
    }

    /// Everything in memory is lost; storages continue with the commands they received.
    fn restart(&mut self, ends: Ends) {
        match ends {
            Ends::Well => self.release(),
            Ends::Killed => self.hung.clear(),
        }
        self.unbuilt.clear();
        self.served.clear();
        self.unread = false;
        for (name, content) in self.lying.clone() {
            self.put(name, content);
        }
    }

    /// The content of the storages.
    pub(super) fn held(&self) -> Vec<Held> {
        self.stores.iter().map(Store::held).collect()
    }

    /// The storage of a connection.
    fn storage(&self, name: &str) -> usize {
        match name {
            "a" => 0,
            "c" if self.setup.shared => 0,
            "b" => 1,
            _ => 2,
        }
    }

    /// The connection of an object, or the error if none can be asked. An object that may exist
    /// somewhere is never reported as absent.
    fn home(&self, handle: &Handle, changes: bool) -> Result<&'static str, Code> {
        let name = match (handle.at, self.setup.bare) {
            (Some(name), _) => meant(name),
            (None, BareIs::Of) => "b",
            (None, _) if changes => return Err(Code::FailedPrecondition),
            (None, _) => return Err(Code::NotFound),
        };
        match self.served.get(name) {
            Some(Served::Well(_)) if self.unbuilt.contains(name) => Err(Code::Internal),
            Some(Served::Well(_)) => Ok(name),
            Some(Served::BeingRead) => Err(Code::Aborted),
            Some(Served::Refused) | None => Err(Code::FailedPrecondition),
        }
    }

    /// Whether the configuration assigns a handle to no connection.
    fn is_stray(&self, handle: &Handle) -> bool {
        handle.at.is_none() && self.setup.bare != BareIs::Of
    }

    /// Forbidden with any answer: a volume in two storages.
    pub(super) fn doubled(&self) -> Option<String> {
        let has = |id: &str| {
            let all = self.stores.iter();
            all.filter(|store| store.halves.contains(id) || store.volumes.contains_key(id))
                .count()
        };
        let mut all = VOLUMES.into_iter();
        let twice = all.find(|id| has(id) > 1 && !self.excused.contains(*id))?;
        Some(format!("{twice} is in two storages"))
    }

    /// The other forbidden answer: one that makes the orchestrator forget a volume of which a
    /// storage has something.
    pub(super) fn leaked(&self, call: &Call, answer: &Answer) -> Option<String> {
        let (Call::Create(volume, _), Answer::Failed(code)) = (call, answer) else {
            return None;
        };
        let id = VOLUMES[*volume];
        if self.excused.contains(id) {
            return None;
        }
        let of_class = self.setup.claims[*volume]
            .class
            .iter()
            .map(|name| meant(name));
        let served = of_class.filter(|name| matches!(self.served.get(name), Some(Served::Well(_))));
        let mut stores = served
            .filter(|name| makes(name))
            .map(|name| self.storage(name));
        let leaks = stores.any(|at| {
            let (half, whole) = (
                self.stores[at].halves.contains(id),
                self.stores[at].volumes.contains_key(id),
            );
            match code {
                // These must be equal, or it is another volume.
                Code::Aborted
                | Code::Unavailable
                | Code::DeadlineExceeded
                | Code::AlreadyExists => false,
                // A caller that tries another connection finds a complete volume.
                Code::ResourceExhausted => half,
                _ => half || whole,
            }
        });
        leaks.then(|| format!("{id} is forgotten with {code:?}, and a storage has something of it"))
    }
}

/// The connection that a name means.
fn meant(name: &'static str) -> &'static str {
    if name == "old" { "a" } else { name }
}

/// Whether a connection creates volumes at all.
fn makes(name: &str) -> bool {
    name != HAND
}
