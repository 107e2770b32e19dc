//! The plan: typed steps, in order, and the guards that must hold before the first of them.
//!
//! A plan is made from one observation and contains only what that observation allows. Each step is
//! harmless if it was already applied, and the effect of a failed step is visible: so a crash
//! leaves a prefix of a plan, and the rest is found by observing and planning again.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use csi_types::AbsolutePath;

use crate::export::{Opaque, Task};
use crate::name::{DatasetName, MarkRef, Object, SnapshotLeaf, SnapshotRef};
use crate::observed::{Dataset, Guid};
use crate::plan::listed;
use crate::property::{Property, PropertyName};

/// A graph of steps.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The dataset to lock: plans for the same dataset never run concurrently, in any process.
    pub lock: DatasetName,
    /// The guards, checked under the lock. If one fails nothing is done, and the state is observed
    /// again.
    pub guards: Vec<Guard>,
    /// The steps, each listed after those that it waits for.
    pub steps: Vec<Node>,
    /// The steps that all further ones wait for.
    first: BTreeSet<usize>,
}

/// A step, and the steps that it waits for.
#[derive(Debug, Clone)]
pub struct Node {
    /// The step.
    pub step: Step,
    /// The name of its result, if other steps need it.
    pub name: Option<Of>,
    /// The steps that end before it begins, by their places in the plan. A backend that does one step at a
    /// time needs only the order of the plan.
    pub after: BTreeSet<usize>,
    /// Whether only the end of the plan waits for it.
    pub is_loose: bool,
}

/// The result of an earlier step of the same plan, by the name of that step: the number of a new share.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Of(pub Cow<'static, str>);

/// An object is still as it was observed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guard {
    /// Its name.
    pub object: Object,
    /// The unchanged part.
    pub still: Still,
}

/// The unchanged part of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Still {
    /// The object itself, by its GUID.
    Itself(Guid),
    /// It has this local value in a property, or none. A property that is rewritten as a whole must
    /// still have the value that was read; otherwise a concurrent write would be lost.
    Has(PropertyName, Option<String>),
}

/// One change.
#[derive(Debug, Clone)]
pub enum Step {
    /// Creates a dataset and its missing parents.
    Create {
        /// Its name.
        dataset: DatasetName,
        /// The kind of the new dataset.
        new: New,
        /// Its properties from its first moment.
        properties: Vec<Property>,
    },
    /// Makes snapshots of datasets of one pool at one moment: all of them, or none.
    Snapshot {
        /// Their names.
        snapshots: Vec<SnapshotRef>,
        /// The properties of each from its first moment.
        properties: Vec<Property>,
    },
    /// Creates a clone of a snapshot.
    Clone {
        /// The snapshot.
        origin: SnapshotRef,
        /// The new dataset.
        dataset: DatasetName,
        /// Its properties from its first moment.
        properties: Vec<Property>,
    },
    /// Creates a dataset with the content of a snapshot, and a snapshot of the same leaf on it. An
    /// interrupted copy leaves a part that can resume. A filesystem is not mounted by this step.
    Copy {
        /// The snapshot.
        from: SnapshotRef,
        /// The new dataset.
        to: DatasetName,
        /// Its properties from its first moment.
        properties: Vec<Property>,
    },
    /// Resumes an interrupted copy; ends the part if that is impossible because the snapshot is
    /// gone or replaced. A copy that was completed since is left as it is.
    GoOn {
        /// The snapshot.
        from: SnapshotRef,
        /// The part.
        to: DatasetName,
    },
    /// Ends an interrupted receive into a dataset that has content already, which stays. One that still runs refuses it.
    Abandon(DatasetName),
    /// Sets properties. A failure may leave some of them set: the next plan compares all of them
    /// again.
    Set {
        /// Of what.
        object: Object,
        /// To what.
        properties: Vec<Property>,
    },
    /// Removes a property, so that the inherited value applies.
    Inherit {
        /// From what.
        object: Object,
        /// The property.
        property: PropertyName,
    },
    /// Sets a property to what an earlier step was answered.
    Record {
        /// Of what.
        object: Object,
        /// The property.
        property: PropertyName,
        /// The answer.
        of: Of,
    },
    /// Renames a snapshot.
    Rename {
        /// The snapshot.
        snapshot: SnapshotRef,
        /// Its new name.
        to: SnapshotLeaf,
    },
    /// Promotes a clone: all snapshots up to its origin become its own.
    Promote(DatasetName),
    /// Leaves a bookmark of a snapshot, if the storage can and the login may. Nothing but the time of a later backup
    /// depends on it, so no deletion fails for it.
    Mark(SnapshotRef, MarkRef),
    /// Destroys a bookmark, if the login may.
    DestroyMark(MarkRef),
    /// Destroys a snapshot, deferred until its last clone and hold are gone.
    DestroySnapshot(SnapshotRef),
    /// Destroys a dataset without snapshots and children.
    DestroyDataset(DatasetName),
    /// Destroys a filesystem if it provably has no snapshots, files or children; keeps it
    /// otherwise.
    DestroyEmpty(DatasetName),
    /// Mounts a filesystem where its property says.
    Mount(DatasetName),
    /// Sets the permissions of the root of a mounted filesystem.
    Permit {
        /// The path where it is mounted.
        path: AbsolutePath,
        /// The permission to set.
        permission: Permission,
    },
    /// Waits, for a moment, until the host shows a zvol as a disk.
    Settle(DatasetName),
    /// Does what an export asks of its backend.
    Export(Opaque),
}

/// A new empty dataset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum New {
    /// A tree of files.
    Filesystem,
    /// A disk.
    Zvol {
        /// Its size in bytes.
        size: u64,
        /// The size of its blocks; `None` is the host's default.
        block: Option<u64>,
    },
}

/// A permission of the root of a filesystem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Permission {
    /// The mode.
    Mode(u32),
    /// User and group, as `chown` takes them: `user`, `user:group` or `:group`.
    Owner(String),
    /// One entry of an access control list: the arguments that the configured tool takes before the path.
    Acl(Vec<String>),
}

/// A step that needs no further observation if the state is as expected.
#[derive(Debug, Clone)]
pub struct FirstTry {
    /// The dataset that it is about, as in a plan.
    pub lock: DatasetName,
    /// The expected state.
    pub expected: Vec<Expected>,
    /// The step.
    pub step: Step,
    /// Whether the storage may check and do it at one moment without the lock: nothing that an interrupted command
    /// makes or destroys later can have its name.
    pub is_unique: bool,
}

/// The expected value of a property.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expected {
    /// The object with the property.
    pub object: Object,
    /// The property.
    pub property: PropertyName,
    /// The condition.
    pub test: Test,
}

/// A condition on the value of a property.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Test {
    /// This text.
    Is(String),
    /// Any value of the object's own.
    Own,
    /// A number that is not zero and smaller than this one.
    Below(u64),
    /// A number that divides this one.
    Divides(u64),
}

/// Why a plan was not completed.
#[derive(Debug)]
pub struct Failed {
    /// The way to continue.
    pub next: Next,
    /// The error, if there is no way to continue.
    pub error: driver_core::Error,
}

impl Failed {
    /// A failure with no way to continue.
    pub fn terminal(error: driver_core::Error) -> Self {
        Self {
            next: Next::Tell,
            error,
        }
    }

    /// The same with another effect.
    #[must_use]
    pub fn with_effect(mut self, effect: driver_core::Effect) -> Self {
        self.error = self.error.with_effect(effect);
        self
    }

    /// The same after a change, if there was one.
    #[must_use]
    pub fn after_change(mut self, changed: bool) -> Self {
        self.error = self.error.after_change(changed);
        self
    }
}

/// The way to continue after a plan that was not completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// The state has changed: observe and plan again.
    Observe,
    /// Something is in use: wait, then observe and plan again.
    Wait,
    /// The same, but it is not free before this time, and twice as long after each retry.
    WaitFrom(Duration),
    /// Something is in use for a known time: wait for that, then observe and plan again.
    WaitFor(Duration),
    /// The lock of a stack was not free in time: observe, plan and wait again.
    Queue,
    /// Return the error to the caller.
    Tell,
}

// === impl FirstTry ===

impl FirstTry {
    /// Does this, if what is expected is seen.
    pub fn of(lock: DatasetName, step: Step) -> Self {
        Self {
            lock,
            expected: Vec::new(),
            step,
            is_unique: false,
        }
    }

    /// Expects this of a property.
    #[must_use]
    pub fn expecting(mut self, object: &Object, property: PropertyName, test: Test) -> Self {
        let object = object.clone();
        self.expected.push(Expected {
            object,
            property,
            test,
        });
        self
    }

    /// Needs no lock where the storage checks and does it at one moment, if this is so.
    #[must_use]
    pub fn unique(mut self, is_unique: bool) -> Self {
        self.is_unique = is_unique;
        self
    }
}

// === impl Plan ===

impl Plan {
    /// An empty plan for this dataset.
    pub fn about(lock: DatasetName) -> Self {
        Self {
            lock,
            guards: Vec::new(),
            steps: Vec::new(),
            first: BTreeSet::new(),
        }
    }

    /// Whether the plan is empty.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Guards that an object is the observed one.
    pub fn guard(&mut self, object: impl Into<Object>, guid: Guid) {
        let (object, still) = (object.into(), Still::Itself(guid));
        self.guards.push(Guard { object, still });
    }

    /// Guards that a property of a dataset has its observed own value, or none.
    pub fn guard_property(&mut self, dataset: &Dataset, name: &PropertyName) {
        let text = dataset.properties.own(name).map(str::to_owned);
        let object = dataset.name.clone().into();
        let still = Still::Has(name.clone(), text);
        self.guards.push(Guard { object, still });
    }

    /// Adds a step. It waits for all before it. Only the setting of permissions and the destruction of
    /// snapshots need nothing of each other, and nothing of a task.
    pub fn step(&mut self, step: Step) {
        let is_permission = |node: &Node| matches!(node.step, Step::Permit { .. });
        let mut after = self.first.clone();
        match step {
            Step::DestroySnapshot(_) => {}
            Step::Permit { .. } => after.extend(self.steps.iter().rposition(is_permission)),
            _ => {
                after = self.firm();
                self.first = BTreeSet::from([self.steps.len()]);
            }
        }
        self.push(step, None, after, false);
    }

    /// Makes all further steps wait for those before.
    pub fn wait(&mut self) {
        self.first = self.firm();
    }

    fn firm(&self) -> BTreeSet<usize> {
        let firm = |(at, node): (usize, &Node)| (!node.is_loose).then_some(at);
        self.steps.iter().enumerate().filter_map(firm).collect()
    }

    /// Adds steps, each as [`Plan::step`] does.
    pub fn add(&mut self, steps: impl IntoIterator<Item = Step>) {
        for step in steps {
            self.step(step);
        }
    }

    /// Adds a request of an export. It waits for what all further steps wait for, and for the steps that it
    /// names, as far as they are in the plan.
    pub fn task(&mut self, task: Task<Opaque>) {
        let Task {
            request,
            name,
            after,
            is_loose,
        } = task;
        let is_named = |node: &Node| node.name.as_ref().is_some_and(|name| after.contains(name));
        let named = |(at, node)| is_named(node).then_some(at);
        let named = self.steps.iter().enumerate().filter_map(named);
        let after = self.first.iter().copied().chain(named).collect();
        self.push(Step::Export(request), name, after, is_loose);
    }

    fn push(&mut self, step: Step, name: Option<Of>, after: BTreeSet<usize>, is_loose: bool) {
        self.steps.push(Node {
            step,
            name,
            after,
            is_loose,
        });
    }
}

// === impl Of ===

impl From<&'static str> for Of {
    fn from(name: &'static str) -> Self {
        Self(Cow::Borrowed(name))
    }
}

impl fmt::Display for Of {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.still {
            Still::Itself(guid) => write!(f, "{} is {guid}", self.object),
            // Values of properties do not show.
            Still::Has(name, _) => write!(f, "{name} of {} is what it was", self.object),
        }
    }
}

/// For errors and logs: what it does, to what. Values of properties do not show.
impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Create { dataset, .. } => write!(f, "create {dataset}"),
            Self::Snapshot { snapshots, .. } => {
                write!(f, "take snapshot {}", listed(snapshots))
            }
            Self::Clone {
                origin, dataset, ..
            } => write!(f, "clone {origin} to {dataset}"),
            Self::Copy { from, to, .. } => write!(f, "copy {from} to {to}"),
            Self::GoOn { from, to } => write!(f, "resume copying {from} to {to}"),
            Self::Abandon(dataset) => write!(f, "end the interrupted receive into {dataset}"),
            Self::Set { object, .. } => write!(f, "set properties of {object}"),
            Self::Inherit { object, property } => write!(f, "clear {property} of {object}"),
            Self::Record {
                object, property, ..
            } => write!(f, "set {property} of {object}"),
            Self::Rename { snapshot, to } => write!(f, "rename {snapshot} to {to}"),
            Self::Promote(dataset) => write!(f, "promote {dataset}"),
            Self::Mark(snapshot, mark) => write!(f, "bookmark {snapshot} as {mark}"),
            Self::DestroyMark(mark) => write!(f, "destroy bookmark {mark}"),
            Self::DestroySnapshot(snapshot) => write!(f, "destroy {snapshot}"),
            Self::DestroyDataset(dataset) | Self::DestroyEmpty(dataset) => {
                write!(f, "destroy {dataset}")
            }
            Self::Mount(dataset) => write!(f, "mount {dataset}"),
            Self::Permit { path, .. } => write!(f, "set permissions of {path}"),
            Self::Settle(dataset) => write!(f, "wait for the device of {dataset}"),
            Self::Export(_) => f.write_str("change its export"),
        }
    }
}
