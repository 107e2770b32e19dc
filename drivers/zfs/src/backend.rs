//! Where datasets are looked at and changed: the `zfs` of a host, or the API of an appliance.
//!
//! A backend decides nothing. It answers questions and does plans, each in one exchange where it
//! can, and turns what its tools say into kinds of errors; nobody above it reads their words.

use std::fmt::Debug;

use async_trait::async_trait;
use driver_core::transfer::{Bookmark, Bytes};
use driver_core::{BackendIdentity, Call, Error};

use crate::name::{DatasetName, SnapshotRef};
use crate::observed::{Dataset, Observed, Request, Snapshot, VolumeKind};
use crate::property::{Property, PropertyName};
use crate::step::{Failed, Guess, Next, Plan};

/// Looks at pools and changes them.
#[async_trait]
pub trait Backend: Send + Sync + Debug {
    /// What an export asks of this backend: a command of the host, a call of the API.
    type Command: Clone + Debug + Send + Sync;
    /// What it is answered.
    type Output: Debug + Send + Sync;

    /// The storage it stands on.
    fn identity(&self) -> BackendIdentity;

    /// Looks, changing nothing, in one exchange. An object that does not exist is not in the
    /// picture; one that could not be looked at is an error, `Unreachable` if its pool is not there.
    async fn observe(
        &self,
        call: &Call,
        request: &Request<Self::Command>,
    ) -> Result<Observed<Self::Output>, Error>;

    /// Does a plan and looks, in one exchange: steps in order, none after one that failed.
    ///
    /// Calls [`Call::changing`] before it sends anything. A step whose end was not seen is an error
    /// whose kind is that of the loss, never success and never repeated here.
    async fn apply(
        &self,
        call: &Call,
        plan: &Plan<Self::Command>,
        then: &Request<Self::Command>,
    ) -> Result<Observed<Self::Output>, Failed>;

    /// Looks, and does what is guessed at once if it is right, all under the lock and in one exchange. `None`
    /// where that is not offered: then it is looked first, and planned.
    async fn look_and_do(
        &self,
        _call: &Call,
        _request: &Request<Self::Command>,
        _guess: &Guess<Self::Command>,
    ) -> Option<Result<Tried<Self::Output>, Failed>> {
        None
    }

    /// Whether content goes out of it and into it as streams.
    fn streams(&self) -> bool {
        false
    }

    /// Sends a snapshot, from the beginning or from where an earlier stream of it was cut. `NotFound`:
    /// it is not there, or the bookmark is not one of this snapshot.
    async fn send(
        &self,
        _call: &Call,
        _from: &SnapshotRef,
        _resume: Option<&Bookmark>,
    ) -> Result<Box<dyn Bytes>, Error> {
        Err(Error::unsupported("send a snapshot"))
    }

    /// Receives a snapshot and the dataset that it is of, under the lock of that dataset. What is cut
    /// stays, with its properties, and shows from where it goes on. Calls [`Call::changing`] first.
    async fn receive(
        &self,
        _call: &Call,
        _incoming: &Incoming,
        _stream: &mut dyn Bytes,
    ) -> Result<(), Interrupted> {
        Err(Interrupted::Here(Failed {
            next: Next::Tell,
            error: Error::unsupported("receive a snapshot"),
        }))
    }

    /// One part of a list; the backend filters, sorts and cuts. What lies in a pool that is not there
    /// is no empty list but `Unreachable`.
    async fn list(&self, call: &Call, query: &ListQuery) -> Result<Listed, Error>;
}

/// How a guess ended.
#[derive(Debug)]
pub enum Tried<A> {
    /// It was right, and is done: all that was expected was asked of the storage itself.
    Done,
    /// It was looked.
    Seen {
        /// What was seen before anything was done.
        seen: Observed<A>,
        /// Whether it was right, and is done.
        done: bool,
    },
}

/// What is received.
#[derive(Debug, Clone)]
pub struct Incoming {
    /// The dataset and the snapshot that it comes with.
    pub to: SnapshotRef,
    /// What it has from its first moment. What goes on has it already.
    pub properties: Vec<Property>,
    /// Whether it goes on with what is there.
    pub goes_on: bool,
}

/// Why a stream was not received to its end.
#[derive(Debug)]
pub enum Interrupted {
    /// Its source said so. What was received stays.
    Source(Error),
    /// Something here did not want more of it.
    Here(Failed),
}

/// Which part of which list. compat: "ZFS".
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListQuery {
    /// What is listed. Several scopes are one list.
    pub scopes: Vec<ListScope>,
    /// Only what comes after this place.
    pub after: Option<Cursor>,
    /// At most so many.
    pub max: usize,
}

/// Where things of one sort lie, and which of them are wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListScope {
    /// What they lie below.
    pub parent: DatasetName,
    /// How many levels down: datasets on just that level, snapshots of datasets on that level.
    pub depth: u8,
    /// Datasets of this kind, or, with `None`, snapshots.
    pub kind: Option<VolumeKind>,
    /// Which of them.
    pub filter: ListFilter,
}

/// Which things of a scope are listed. The backend leaves out all others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListFilter {
    /// What has this property of its own.
    Having(PropertyName),
    /// What has the first of these of its own, and the second one not.
    Lacking(PropertyName, PropertyName),
    /// What has this property of its own, and neither snapshots nor anything below it.
    Empty(PropertyName),
    /// Snapshots that are called like those that we take for our own sake.
    Helpers,
}

/// Where something stands in a list: in the order of their making, which never changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cursor {
    /// The transaction in which it was made.
    pub createtxg: u64,
    /// What tells it from others of that transaction.
    pub guid: u64,
}

/// One part of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// What is in it, in order. Fewer than were asked for says nothing: some may be gone by now.
    pub entries: Vec<Entry>,
    /// Where it ends, if there is more.
    pub next: Option<Cursor>,
}

/// One thing of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// A filesystem or zvol.
    Dataset(Dataset),
    /// A snapshot.
    Snapshot(Snapshot),
}

// === impl Entry ===

impl Entry {
    /// Where it stands in the list.
    pub fn cursor(&self) -> Cursor {
        let (guid, properties) = match self {
            Self::Dataset(dataset) => (dataset.guid, &dataset.properties),
            Self::Snapshot(snapshot) => (snapshot.guid, &snapshot.properties),
        };
        let createtxg = properties.number(&PropertyName::CREATETXG);
        Cursor {
            createtxg: createtxg.unwrap_or_default(),
            guid: guid.0,
        }
    }
}
