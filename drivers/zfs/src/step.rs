//! What is to be done: typed steps, in order, and what has to be true before the first of them.
//!
//! A plan is made from one observation and holds only what that observation allows. Each step is
//! harmless when it was done already, and what one that failed has done of itself shows: so a crash
//! is a prefix of a plan, and what comes after it is found by observing and planning again.

use std::fmt;
use std::time::Duration;

use csi_types::AbsolutePath;

use crate::name::{DatasetName, Object, SnapshotLeaf, SnapshotRef};
use crate::observed::{Dataset, Guid};
use crate::property::{Property, PropertyName};

/// Steps in order. `R` is what an export asks of its backend.
#[derive(Debug, Clone)]
pub struct Plan<R> {
    /// Whom this is about: plans for the same dataset never run at the same time, whichever
    /// process made them.
    pub lock: DatasetName,
    /// What must still be true, once the lock is held. Otherwise nothing is done, and the world is
    /// observed again.
    pub guards: Vec<Guard>,
    /// The steps.
    pub steps: Vec<Step<R>>,
}

/// An object is still as it was observed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guard {
    /// Its name.
    pub object: Object,
    /// What has not changed.
    pub still: Still,
}

/// What of an object has not changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Still {
    /// It is the same one: this tells it from another one of its name.
    Itself(Guid),
    /// It has this text of its own in a property, or none. What is written as a whole after it was
    /// read has to be what was read, or what somebody else wrote in between is lost.
    Has(PropertyName, Option<String>),
}

/// One change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step<R> {
    /// Makes a dataset and whatever is missing above it.
    Create {
        /// Its name.
        dataset: DatasetName,
        /// What it is.
        new: New,
        /// What it has from its first moment.
        properties: Vec<Property>,
    },
    /// Makes a snapshot.
    Snapshot {
        /// Its name.
        snapshot: SnapshotRef,
        /// What it has from its first moment.
        properties: Vec<Property>,
    },
    /// Makes a dataset that stands on a snapshot.
    Clone {
        /// The snapshot.
        origin: SnapshotRef,
        /// The new dataset.
        dataset: DatasetName,
        /// What it has from its first moment.
        properties: Vec<Property>,
    },
    /// Makes a dataset with the content of a snapshot, and a snapshot of the same leaf on it. What is
    /// cut leaves a part, which can go on. A filesystem is not mounted by that.
    Copy {
        /// The snapshot.
        from: SnapshotRef,
        /// The new dataset.
        to: DatasetName,
        /// What it has from its first moment.
        properties: Vec<Property>,
    },
    /// Goes on with a copy that was cut, from where it was; ends the part if that cannot be, because the
    /// snapshot is gone or another one. What came to its end meanwhile is left as it is.
    GoOn {
        /// The snapshot.
        from: SnapshotRef,
        /// The part.
        to: DatasetName,
    },
    /// Sets properties: each one or not, also where this fails. A plan compares all of them again.
    Set {
        /// Of what.
        object: Object,
        /// To what.
        properties: Vec<Property>,
    },
    /// Takes a property away, so that what is above counts again.
    Inherit {
        /// From what.
        object: Object,
        /// Which.
        property: PropertyName,
    },
    /// Gives a snapshot another name.
    Rename {
        /// The snapshot.
        snapshot: SnapshotRef,
        /// Its new name.
        to: SnapshotLeaf,
    },
    /// Turns a clone and what it stands on around: all snapshots up to its origin become its own.
    Promote(DatasetName),
    /// Removes a snapshot, or dooms it: it goes with its last clone and hold.
    DestroySnapshot(SnapshotRef),
    /// Removes a dataset that has neither snapshots nor anything below it.
    DestroyDataset(DatasetName),
    /// Removes a filesystem if it has neither snapshots nor files nor anything below it, and that is
    /// seen; else leaves it.
    DestroyEmpty(DatasetName),
    /// Mounts a filesystem where its property says.
    Mount(DatasetName),
    /// Sets who may do what at the root of a mounted filesystem.
    Permit {
        /// Where it is mounted.
        path: AbsolutePath,
        /// What is set.
        permission: Permission,
    },
    /// Waits, for a moment, until the host shows a zvol as a disk.
    Settle(DatasetName),
    /// What an export asks of its backend.
    Export(R),
}

/// What is made of nothing.
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

/// Who may do what at the root of a filesystem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Permission {
    /// The mode.
    Mode(u32),
    /// User and group, as `chown` takes them: `user`, `user:group` or `:group`.
    Owner(String),
    /// One entry of an access control list: the arguments that the configured tool takes before the path.
    Acl(Vec<String>),
}

/// A step that is right without another look if what is seen is as expected.
#[derive(Debug, Clone)]
pub struct Guess<R> {
    /// Whom this is about, as in a plan.
    pub lock: DatasetName,
    /// What has to be seen.
    pub expected: Vec<Expected>,
    /// What is done then.
    pub step: Step<R>,
}

/// What has to be seen of a property.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expected {
    /// Whose property.
    pub object: Object,
    /// Which one.
    pub property: PropertyName,
    /// What it has to be.
    pub test: Test,
}

/// What a property has to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Test {
    /// This text.
    Is(String),
    /// A value of the object's own, whatever it is.
    Own,
    /// A number, neither zero nor as large as this one.
    Below(u64),
    /// A number that divides this one.
    Divides(u64),
}

/// Why a plan was not done to its end.
#[derive(Debug)]
pub struct Failed {
    /// What can be done about it.
    pub next: Next,
    /// What is said if nothing can.
    pub error: driver_core::Error,
}

/// What can be done about a plan that was not done to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// The world is not as it was observed: observe and plan again.
    Observe,
    /// Something is in use: wait, then observe and plan again.
    Wait,
    /// It is known for how long something is in use: wait for that, then observe and plan again.
    WaitFor(Duration),
    /// Others were at what all volumes share for as long as was waited: observe, plan and wait again.
    Queue,
    /// Nothing: the caller has to know.
    Tell,
}

// === impl Guess ===

impl<R> Guess<R> {
    /// Does this, if what is expected is seen.
    pub fn of(lock: DatasetName, step: Step<R>) -> Self {
        Self {
            lock,
            expected: Vec::new(),
            step,
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

    /// Whether these are the steps that were guessed.
    pub fn is_all_of(&self, steps: &[Step<R>]) -> bool {
        match (steps, &self.step) {
            (
                [Step::Set { object, properties }],
                Step::Set {
                    object: guessed,
                    properties: these,
                },
            ) => object == guessed && properties == these,
            ([Step::DestroySnapshot(snapshot)], Step::DestroySnapshot(guessed)) => {
                snapshot == guessed
            }
            _ => false,
        }
    }
}

// === impl Plan ===

impl<R> Plan<R> {
    /// Nothing yet, about this dataset.
    pub fn about(lock: DatasetName) -> Self {
        Self {
            lock,
            guards: Vec::new(),
            steps: Vec::new(),
        }
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Asks for an object to be the one that was observed.
    pub fn guard(&mut self, object: impl Into<Object>, guid: Guid) {
        let (object, still) = (object.into(), Still::Itself(guid));
        self.guards.push(Guard { object, still });
    }

    /// Asks for a property of a dataset to be as it was observed, of its own or not.
    pub fn guard_property(&mut self, dataset: &Dataset, name: &PropertyName) {
        let text = dataset.properties.own(name).map(str::to_owned);
        let object = dataset.name.clone().into();
        let still = Still::Has(name.clone(), text);
        self.guards.push(Guard { object, still });
    }

    /// Adds a step.
    pub fn step(&mut self, step: Step<R>) {
        self.steps.push(step);
    }
}

impl<R> Step<R> {
    /// The same step of a backend whose exports are asked otherwise; `None` for one of an export.
    pub fn without_export<S>(self) -> Option<Step<S>> {
        Some(match self {
            Self::Create {
                dataset,
                new,
                properties,
            } => Step::Create {
                dataset,
                new,
                properties,
            },
            Self::Snapshot {
                snapshot,
                properties,
            } => Step::Snapshot {
                snapshot,
                properties,
            },
            Self::Clone {
                origin,
                dataset,
                properties,
            } => Step::Clone {
                origin,
                dataset,
                properties,
            },
            Self::Copy {
                from,
                to,
                properties,
            } => Step::Copy {
                from,
                to,
                properties,
            },
            Self::GoOn { from, to } => Step::GoOn { from, to },
            Self::Set { object, properties } => Step::Set { object, properties },
            Self::Inherit { object, property } => Step::Inherit { object, property },
            Self::Rename { snapshot, to } => Step::Rename { snapshot, to },
            Self::Promote(dataset) => Step::Promote(dataset),
            Self::DestroySnapshot(snapshot) => Step::DestroySnapshot(snapshot),
            Self::DestroyDataset(dataset) => Step::DestroyDataset(dataset),
            Self::DestroyEmpty(dataset) => Step::DestroyEmpty(dataset),
            Self::Mount(dataset) => Step::Mount(dataset),
            Self::Permit { path, permission } => Step::Permit { path, permission },
            Self::Settle(dataset) => Step::Settle(dataset),
            Self::Export(_) => return None,
        })
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
impl<R> fmt::Display for Step<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Create { dataset, .. } => write!(f, "create {dataset}"),
            Self::Snapshot { snapshot, .. } => write!(f, "take snapshot {snapshot}"),
            Self::Clone {
                origin, dataset, ..
            } => write!(f, "clone {origin} to {dataset}"),
            Self::Copy { from, to, .. } => write!(f, "copy {from} to {to}"),
            Self::GoOn { from, to } => write!(f, "go on copying {from} to {to}"),
            Self::Set { object, .. } => write!(f, "set properties of {object}"),
            Self::Inherit { object, property } => write!(f, "clear {property} of {object}"),
            Self::Rename { snapshot, to } => write!(f, "rename {snapshot} to {to}"),
            Self::Promote(dataset) => write!(f, "promote {dataset}"),
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
