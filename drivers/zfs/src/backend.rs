//! Access to datasets, to read and change them: the `zfs` of a host, or the API of an appliance.
//!
//! A backend makes no decisions. It answers queries and applies plans, each in one exchange where
//! possible, and maps the output of its tools to error kinds. The layers above never parse that
//! output.

use std::any::Any;
use std::fmt::Debug;
use std::ops::Range;

use async_trait::async_trait;
use driver_core::config::Finding;
use driver_core::transfer::{Bookmark, Bytes};
use driver_core::{BackendIdentity, Call, Error};

use crate::name::{DatasetName, Since, SnapshotRef};
use crate::observed::{Dataset, Guid, Observed, Request, Snapshot, VolumeKind};
use crate::property::{Property, PropertyName};
use crate::step::{Failed, FirstTry, Plan};

/// Reads pools and changes them. No method has a body here: what wraps a backend would forget to pass it on.
#[async_trait]
pub trait Backend: Any + Send + Sync + Debug {
    /// The storage below it.
    fn identity(&self) -> BackendIdentity;

    /// The storage that answers, as [`driver_core::Driver::describe`] says it, and what it does not let work for volumes
    /// of this kind.
    async fn describe(&self, call: &Call, kind: VolumeKind) -> Vec<Finding>;

    /// Reads in one exchange, without changes. An object that does not exist is missing in the
    /// state; one that could not be read is an error, `Unreachable` if its pool does not exist.
    async fn observe(&self, call: &Call, request: &Request) -> Result<Observed, Error>;

    /// Applies a plan and reads, in one exchange: steps in order, none after a failed one.
    ///
    /// Calls [`Call::changing`] before it sends anything. A step without an observed end is an
    /// error of the kind of the failure, never success, and is never repeated here.
    async fn apply(&self, call: &Call, plan: &Plan, then: &Request) -> Result<Observed, Failed>;

    /// Observes, and does the first try of a verb if the state is as that expects, all under the lock and in one
    /// exchange. A backend that does not offer that observes: [`without_first_try`].
    async fn try_first(
        &self,
        call: &Call,
        request: &Request,
        first: &FirstTry,
    ) -> Result<Tried, Failed>;

    /// Whether each query is a call of its own. Then what the storage refuses by itself is not asked before.
    fn asks_one_by_one(&self) -> bool;

    /// Whether it reserves the size of a zvol, and no more. ZFS reserves what it needs beside that, too, and only then lets
    /// the reservation grow with the zvol.
    fn reserves_by_size(&self) -> bool;

    /// Why it does not take the snapshots of [`Step::Snapshot`](crate::step::Step::Snapshot) at one moment, if there
    /// are several.
    fn refuses_groups(&self) -> Option<&'static str>;

    /// Whether it exports and imports content as streams. If not: [`sends_nothing`], [`receives_nothing`].
    fn streams(&self) -> bool;

    /// Sends all of a snapshot, or what differs from an older one of the same dataset; from the beginning, or from the
    /// bookmark of an interrupted stream. `NotFound`: a snapshot does not exist, or the bookmark is of others.
    async fn send(
        &self,
        call: &Call,
        of: &SnapshotRef,
        since: Option<&Base>,
        resume: Option<&Bookmark>,
    ) -> Result<Box<dyn Bytes>, Error>;

    /// Whether it says which blocks of a zvol a snapshot holds. If not: [`lists_no_blocks`].
    fn lists_blocks(&self) -> bool;

    /// Sends a snapshot for its records alone: all of it, or what differs from an older one. A dataset whose key is
    /// not loaded is no hindrance. `NotFound`: one of the two does not exist.
    async fn send_records(
        &self,
        call: &Call,
        of: &SnapshotRef,
        since: Option<&Since>,
    ) -> Result<Box<dyn Bytes>, Error>;

    /// The ranges of a snapshot of a zvol that were freed after this transaction and hold nothing since, in order.
    /// `block` is the size of its blocks. `Busy` where that is not known.
    async fn freed_since(
        &self,
        call: &Call,
        of: &SnapshotRef,
        txg: u64,
        block: u64,
    ) -> Result<Vec<Range<u64>>, Error>;

    /// Receives a snapshot and its dataset, under the lock of that dataset. An interrupted part
    /// stays, with its properties, and shows where it can resume. Calls [`Call::changing`] first.
    async fn receive(
        &self,
        call: &Call,
        incoming: &Incoming,
        stream: &mut dyn Bytes,
    ) -> Result<(), Interrupted>;

    /// One page of a list; the backend filters, sorts and limits. A missing pool is `Unreachable`,
    /// not an empty list.
    async fn list(&self, call: &Call, query: &ListQuery) -> Result<Listed, Error>;
}

impl dyn Backend {
    /// The backend, if it is of this type.
    pub fn of<B: Backend>(&self) -> Option<&B> {
        let backend: &dyn Any = self;
        backend.downcast_ref()
    }
}

/// The first try of a backend that offers none: it observes.
pub async fn without_first_try<B: Backend>(
    backend: &B,
    call: &Call,
    request: &Request,
) -> Result<Tried, Failed> {
    let seen = backend.observe(call, request).await;
    seen.map(Tried::Seen).map_err(Failed::terminal)
}

/// The error of a backend that sends no snapshots.
pub fn sends_nothing() -> Error {
    Error::unsupported("send a snapshot")
}

/// The error of a backend that receives no snapshots.
pub fn receives_nothing() -> Interrupted {
    let error = Error::unsupported("receive a snapshot");
    Interrupted::Here(Failed::terminal(error))
}

/// The error of a backend that does not say which blocks a snapshot holds.
pub fn lists_no_blocks() -> Error {
    Error::unsupported("list the blocks of a snapshot")
}

/// The exports that a backend serves: those with these requests and answers.
pub trait Serves: Backend {
    /// The request of an export: a command of the host, or a call of the API.
    type Command: Clone + Debug + Send + Sync + 'static;
    /// The answer.
    type Output: Clone + Debug + Send + Sync + 'static;
}

/// The outcome of a first try.
#[derive(Debug)]
pub enum Tried {
    /// Nothing was done: the state.
    Seen(Observed),
    /// It was done: the state before. `None` if the storage itself has checked all that was expected.
    Done(Option<Observed>),
}

/// The beginning of a stream of what differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Base {
    /// The snapshot.
    pub name: SnapshotRef,
    /// Its GUID, which tells it from another one of that name.
    pub guid: Guid,
}

/// The content to receive.
#[derive(Debug, Clone)]
pub struct Incoming {
    /// The dataset and the snapshot that it comes with.
    pub to: SnapshotRef,
    /// The properties that it has from its first moment. A resumed part has them already.
    pub properties: Vec<Property>,
    /// Whether it resumes the existing part, or adds to a dataset that exists.
    pub goes_on: bool,
}

/// Why a stream was not received completely.
#[derive(Debug)]
pub enum Interrupted {
    /// Its source failed. The received part stays.
    Source(Error),
    /// The receiving side failed.
    Here(Failed),
}

/// The page of a list to read. compat: "ZFS".
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListQuery {
    /// The scopes to list. Several scopes are one list.
    pub scopes: Vec<ListScope>,
    /// Only entries after this cursor.
    pub after: Option<Cursor>,
    /// The most entries.
    pub max: usize,
    /// The properties to read in addition to [`ALWAYS`](crate::observed::ALWAYS).
    pub properties: Vec<PropertyName>,
}

/// The place of objects of one kind, and those of them that are listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListScope {
    /// Their common parent.
    pub parent: DatasetName,
    /// The number of levels down: datasets on just that level, snapshots of datasets on that level.
    pub depth: u8,
    /// Datasets of this kind, or, with `None`, snapshots.
    pub kind: Option<VolumeKind>,
    /// The objects to list.
    pub filter: ListFilter,
}

/// The objects of a scope that are listed. The backend leaves out all others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListFilter {
    /// Objects with this property of their own.
    Having(PropertyName),
    /// Objects with the first property of their own, and without the second one.
    Lacking(PropertyName, PropertyName),
    /// Objects with this property of their own, and without snapshots or children.
    Empty(PropertyName),
    /// Snapshots with the name of a helper snapshot.
    Helpers,
}

/// The position of an object in a list: by creation, which never changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cursor {
    /// The transaction in which it was made.
    pub createtxg: u64,
    /// Distinguishes it from others of that transaction.
    pub guid: u64,
}

/// One part of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Its entries, in order. Fewer than requested does not mean the end: some may have been
    /// deleted.
    pub entries: Vec<Entry>,
    /// The cursor of its end, if there is more.
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
    /// Its position in the list.
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
