//! The connections of this process: from a handle, or the parameters of a class, to a driver.
//!
//! A process with a single driver has one connection without a name, and its handles are the ids of
//! the driver. Each call holds the connection that it found: a connection that is changed or removed
//! during calls is dropped after the last of them. Nothing here asks a backend.

mod class;
mod handle;
mod lazy;
mod legacy;
mod name;
mod names;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use driver_core::text::GroupSnapshotId;
use driver_core::{Capabilities, Error, Kind, SnapshotId, VolumeId};

use crate::routing::connection::Connection;
use handle::{HandleError, Reading};
use legacy::Legacy;

pub(crate) use handle::{GroupHandle, Handle, SnapshotHandle, VolumeHandle};
pub(crate) use lazy::{Blueprint, LazyConnection, late};
pub use name::{ConnectionName, ConnectionNameError};
pub(crate) use names::NO_OWNER;
pub use names::{Bare, Names};

/// The connections of this process. Clones share them.
#[derive(Debug, Clone)]
pub struct Connections {
    inner: Arc<Inner>,
    /// The name under which these callers know one of them, as if it were alone.
    legacy: Option<Legacy>,
}

#[derive(Debug)]
struct Inner {
    table: RwLock<Arc<Table>>,
    naming: Naming,
    /// Why there may be further, unknown connections.
    incomplete: Mutex<Option<String>>,
}

type Table = BTreeMap<ConnectionName, Arc<LazyConnection>>;

/// The way callers name connections.
#[derive(Debug)]
enum Naming {
    /// Not at all: there is one.
    Unnamed,
    /// By handles and by parameters.
    Named(Names),
}

/// The advice for a handle whose connection is unknown.
const WHOSE: &str = "set `proxy.legacyConnection` to the connection that made it";
/// The advice for such a handle that may have no connection.
const WHOSE_OR_NONE: &str = "set `proxy.legacyConnection` to the connection that made it, or to \
                                `none` if volumes made by hand alone have such handles";
/// The advice for such a handle whose object must not be forgotten.
const WHOSE_OR_GONE: &str = "set `proxy.legacyConnection` to the connection that made it; if that \
                             is gone for good, delete the object of the orchestrator by hand";

// === impl Connections ===

impl Connections {
    /// A process with a single connection.
    pub fn single(connection: Connection) -> Self {
        let single = Self::with(Table::new(), Naming::Unnamed);
        single.add(connection);
        single
    }

    /// A process whose connections have names; none yet.
    pub fn named(names: Names) -> Self {
        Self::with(Table::new(), Naming::Named(names))
    }

    fn with(table: Table, naming: Naming) -> Self {
        let table = RwLock::new(Arc::new(table));
        Self {
            inner: Arc::new(Inner {
                table,
                naming,
                incomplete: Mutex::default(),
            }),
            legacy: None,
        }
    }

    /// The only connection, if callers do not choose among several, and its driver is built.
    pub(crate) fn only(&self) -> Option<Arc<Connection>> {
        match (&self.inner.naming, &self.legacy) {
            (_, Some(legacy)) => self.find(&legacy.connection)?.peek(),
            (Naming::Unnamed, None) => self.table().get(&ConnectionName::unnamed())?.peek(),
            (Naming::Named(_), None) => None,
        }
    }

    /// All of them as they are now, by name.
    pub(crate) fn all(&self) -> Vec<Arc<LazyConnection>> {
        match &self.legacy {
            Some(legacy) => self.find(&legacy.connection).into_iter().collect(),
            None => self.table().values().cloned().collect(),
        }
    }

    /// The same for a call that must ask all of them. If there may be unknown connections, the list has
    /// an entry that stands for them.
    pub(crate) fn listed(&self) -> Vec<Arc<LazyConnection>> {
        // First, because what becomes known is in the table before it is said that all are known.
        let unknown = self.incomplete().map(LazyConnection::unknown);
        let mut all = self.all();
        all.extend(unknown.map(Arc::new));
        all
    }

    /// Whether one of them has what `has` looks for; `None` if one that cannot be asked may have it.
    pub(crate) fn offer(&self, has: impl Fn(&Capabilities) -> bool) -> Option<bool> {
        let all = self.listed();
        if self.legacy.is_some() && all.is_empty() {
            return None;
        }
        if all.iter().any(|lazy| has(lazy.can())) {
            return Some(true);
        }
        all.iter()
            .all(|lazy| lazy.kind().is_some())
            .then_some(false)
    }

    /// Whether all volumes that connections make are listed with the nodes that each is published to, under the handles
    /// that they were given out by. What is not known, does not count as that. Volumes made by hand are not listed
    /// anywhere.
    pub(crate) fn record_nodes(&self) -> bool {
        let is_plain = match (&self.inner.naming, &self.legacy) {
            (Naming::Named(names), None) => {
                names.aliases.is_empty() && !matches!(names.bare, Bare::Of(_))
            }
            _ => true,
        };
        let all = self.listed();
        let records = |lazy: &Arc<LazyConnection>| lazy.can().published_nodes;
        let is_known = |lazy: &Arc<LazyConnection>| lazy.kind().is_some();
        let fits = |lazy| is_known(lazy) && (records(lazy) || !lazy.can().volumes);
        is_plain && all.iter().any(records) && all.iter().all(fits)
    }

    /// The number of those that are served.
    pub fn len(&self) -> usize {
        self.table()
            .values()
            .filter(|lazy| lazy.kind().is_some())
            .count()
    }

    /// Whether none is served.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Serves a connection whose driver stays as it is.
    pub fn add(&self, connection: Connection) {
        self.put(LazyConnection::fixed(connection));
    }

    /// Serves `lazy` from now on, in place of the one of its name.
    pub(crate) fn put(&self, lazy: LazyConnection) {
        self.change(|table| drop(table.insert(lazy.name().clone(), Arc::new(lazy))));
    }

    /// Adds the connections whose files were found and that are not served yet, as "being read". They
    /// exist from now on.
    pub(crate) fn are_being_read<'a>(&self, names: impl Iterator<Item = &'a ConnectionName>) {
        let aliases = match &self.inner.naming {
            Naming::Named(names) => Some(&names.aliases),
            Naming::Unnamed => None,
        };
        let table = self.table();
        // A name that means another connection is asked for nowhere.
        let is_new = |name: &&ConnectionName| {
            !table.contains_key(*name) && aliases.is_none_or(|aliases| !aliases.contains_key(*name))
        };
        let new: Vec<_> = names.filter(is_new).cloned().collect();
        if new.is_empty() {
            return;
        }
        self.change(|table| {
            for name in new {
                table.insert(name.clone(), Arc::new(LazyConnection::being_read(name)));
            }
        });
    }

    /// Stops serving the connection of that name.
    pub(crate) fn remove(&self, name: &ConnectionName) {
        self.change(|table| drop(table.remove(name)));
    }

    /// Sets why there may be further, unknown connections.
    pub(crate) fn set_incomplete(&self, why: Option<String>) {
        let incomplete = self.inner.incomplete.lock();
        *incomplete.unwrap_or_else(PoisonError::into_inner) = why;
    }

    /// Why there may be further, unknown connections, as an error about all of them.
    pub(crate) fn unknown(&self) -> Option<Error> {
        let why = self.incomplete()?;
        Some(Error::new(Kind::Busy, "know all connections").because(why))
    }

    fn incomplete(&self) -> Option<String> {
        let incomplete = self.inner.incomplete.lock();
        incomplete.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether this very connection is served.
    pub(crate) fn serves(&self, lazy: &Arc<LazyConnection>) -> bool {
        let table = self.table();
        let served = table.get(lazy.name());
        served.is_some_and(|served| Arc::ptr_eq(served, lazy))
    }

    /// Whether a connection of that name is served.
    pub(crate) fn has(&self, name: &ConnectionName) -> bool {
        self.kind_of(name).is_some()
    }

    /// The kind of driver that a connection has, if it is served.
    pub(crate) fn kind_of(&self, name: &ConnectionName) -> Option<Arc<str>> {
        self.table().get(name).and_then(|lazy| lazy.kind().cloned())
    }

    /// The connection of a volume, and its id there.
    pub(crate) async fn of_volume(
        &self,
        handle: &VolumeHandle,
    ) -> Result<(Arc<Connection>, VolumeId), Error> {
        self.resolve(handle).await
    }

    /// The connection of a snapshot, and its id there.
    pub(crate) async fn of_snapshot(
        &self,
        handle: &SnapshotHandle,
    ) -> Result<(Arc<Connection>, SnapshotId), Error> {
        self.resolve(handle).await
    }

    /// The name of the connection that a volume belongs to, if there is such a one: for logs and
    /// metrics of calls that need no connection.
    pub(crate) fn name_of(&self, handle: &VolumeHandle) -> ConnectionName {
        let name = self.name_meant(handle);
        name.filter(|name| self.has(name)).unwrap_or_default()
    }

    /// The connection of a volume, whether or not its driver is built; none if its handle names none, or one that is
    /// not served. An error where that is not known.
    pub(crate) fn known_of_volume(
        &self,
        handle: &VolumeHandle,
    ) -> Result<Option<Arc<LazyConnection>>, Error> {
        let Some(name) = self.name_meant(handle) else {
            return Ok(None);
        };
        let unknown = self.unknown();
        match (self.find(&name), unknown) {
            (Some(lazy), _) => lazy.usable().map(|()| Some(lazy)),
            (None, Some(unknown)) => Err(unread(&name, unknown)),
            (None, None) => Ok(None),
        }
    }

    /// The name of the connection that a handle belongs to, whether or not it is served.
    fn name_meant(&self, handle: &VolumeHandle) -> Option<ConnectionName> {
        let Naming::Named(names) = &self.inner.naming else {
            return None;
        };
        match handle.read() {
            Ok(Reading::At(name, _)) => Some(names.meant(&name).clone()),
            Ok(Reading::Bare(_)) => self
                .owner_of_bare(names)
                .map(|name| names.meant(name).clone()),
            Err(_) => None,
        }
    }

    /// The connection of a volume that is to be deleted or changed. If nothing says where it is, it may
    /// exist: the error is not "not found". compat: "The proxy".
    pub(crate) async fn owner_of_volume(
        &self,
        handle: &VolumeHandle,
    ) -> Result<(Arc<Connection>, VolumeId), Error> {
        self.owner_of(handle).await
    }

    /// The same for a snapshot.
    pub(crate) async fn owner_of_snapshot(
        &self,
        handle: &SnapshotHandle,
    ) -> Result<(Arc<Connection>, SnapshotId), Error> {
        self.owner_of(handle).await
    }

    /// The same for a group of snapshots.
    pub(crate) async fn owner_of_group(
        &self,
        handle: &GroupHandle,
    ) -> Result<(Arc<Connection>, GroupSnapshotId), Error> {
        self.owner_of(handle).await
    }

    async fn owner_of<H: Handle>(&self, handle: &H) -> Result<(Arc<Connection>, H::Id), Error> {
        if self.is_stray(&handle.read()) {
            return Err(unowned(doing(handle)));
        }
        self.resolve(handle).await
    }

    /// Whether a handle names no connection, whether or not such handles have an owner.
    pub(crate) fn is_bare_volume(&self, handle: &VolumeHandle) -> bool {
        matches!(self.inner.naming, Naming::Named(_))
            && matches!(handle.read(), Ok(Reading::Bare(_)))
    }

    /// Whether a handle names no connection, and nothing says whose such handles are.
    pub(crate) fn is_stray_volume(&self, handle: &VolumeHandle) -> bool {
        self.is_stray(&handle.read())
    }

    /// The same for a snapshot.
    pub(crate) fn is_stray_snapshot(&self, handle: &SnapshotHandle) -> bool {
        self.is_stray(&handle.read())
    }

    fn is_stray<I>(&self, reading: &Result<Reading<I>, HandleError>) -> bool {
        let bare = matches!(reading, Ok(Reading::Bare(_)));
        bare && matches!(&self.inner.naming, Naming::Named(names) if self.owner_of_bare(names).is_none())
    }

    /// The connection that handles without one belong to, for these callers.
    fn owner_of_bare<'a>(&'a self, names: &'a Names) -> Option<&'a ConnectionName> {
        let legacy = self.legacy.as_ref().map(|legacy| &legacy.connection);
        legacy.or_else(|| names.bare.owner())
    }

    /// The owner of the handles that name no connection.
    pub(crate) fn bare(&self) -> Bare {
        match (&self.inner.naming, &self.legacy) {
            (_, Some(legacy)) => Bare::Of(legacy.connection.clone()),
            (Naming::Named(names), None) => names.bare.clone(),
            (Naming::Unnamed, None) => Bare::Unsaid,
        }
    }

    /// The error of an unpublish of a volume whose connection is unknown.
    pub(crate) fn cannot_shut_out(handle: &VolumeHandle, of_its_name: &[ConnectionName]) -> Error {
        let doing = format!("unpublish volume `{}`", handle.as_str());
        let error = Error::new(Kind::Busy, doing);
        match of_its_name {
            [] => error
                .because("its handle names no connection")
                .advise(WHOSE_OR_NONE),
            [name, ..] => error
                .because(format!(
                    "its handle names no connection, and connection `{name}` has something of that name"
                ))
                .advise(WHOSE),
        }
    }

    async fn resolve<H: Handle>(&self, handle: &H) -> Result<(Arc<Connection>, H::Id), Error> {
        let doing = || doing(handle);
        let reading = match self.inner.naming {
            Naming::Unnamed => Reading::Bare(handle.bare().clone()),
            Naming::Named(_) => handle
                .read()
                .map_err(|error| Error::invalid(doing()).because(error))?,
        };
        let (name, id) = match (reading, &self.inner.naming) {
            (Reading::At(name, id), Naming::Named(names)) => (names.meant(&name).clone(), id),
            (Reading::Bare(id), Naming::Named(names)) => match self.owner_of_bare(names) {
                Some(name) => (names.meant(name).clone(), id),
                None => {
                    return Err(Error::not_found(doing())
                        .because("its handle names no connection")
                        .advise(WHOSE));
                }
            },
            (Reading::At(_, id) | Reading::Bare(id), Naming::Unnamed) => {
                (ConnectionName::unnamed(), id)
            }
        };
        let opened = self.open(&name).await;
        let connection = opened.map_err(|error| error.within(doing()))?;
        Ok((connection, id))
    }

    /// The connection that is meant by a name.
    pub(crate) async fn named_connection(
        &self,
        name: &ConnectionName,
    ) -> Result<Arc<Connection>, Error> {
        match &self.inner.naming {
            Naming::Named(names) => self.open(names.meant(name)).await,
            Naming::Unnamed => self.open(name).await,
        }
    }

    /// The connection of that name. A missing one is never a success: its work may still have to be
    /// done.
    async fn open(&self, name: &ConnectionName) -> Result<Arc<Connection>, Error> {
        let unknown = self.unknown();
        let lazy = self.find(name);
        let lazy = lazy.ok_or_else(|| missing_one(name, unknown))?;
        lazy.open().await
    }

    /// All of them as they are now, shared, for readers.
    pub(crate) fn table(&self) -> Arc<Table> {
        let table = self.inner.table.read();
        Arc::clone(&table.unwrap_or_else(PoisonError::into_inner))
    }

    fn change(&self, change: impl FnOnce(&mut Table)) {
        let mut current = self
            .inner
            .table
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let mut table = current.as_ref().clone();
        change(&mut table);
        let before = std::mem::replace(&mut *current, Arc::new(table));
        // Removed connections are dropped without the lock.
        drop(current);
        drop(before);
    }
}

/// What a handle is a handle of, and the handle.
fn doing<H: Handle>(handle: &H) -> String {
    format!("{} `{}`", H::WHAT, handle.text())
}

/// The error of an object whose connection is unknown.
fn unowned(doing: String) -> Error {
    Error::new(Kind::Busy, doing)
        .because("its handle names no connection")
        .advise(WHOSE_OR_GONE)
}

/// The error of a connection that does not exist. Its content is unknown.
fn gone(name: &impl Display) -> Error {
    Error::new(Kind::Busy, format!("connection `{name}`"))
        .because("it does not exist")
        .advise("put its file back; if it was renamed, name the old one in `proxy.aliases`")
}

/// The error about a connection that is not served. It may exist all the same.
fn missing_one(name: &ConnectionName, unknown: Option<Error>) -> Error {
    match unknown {
        None => gone(name),
        Some(unknown) => unread(name, unknown),
    }
}

/// The error of a connection that may exist in an unreadable folder.
fn unread(name: &impl Display, why: Error) -> Error {
    Error::new(Kind::Busy, format!("connection `{name}`"))
        .because(why)
        .advise("mount the folder that `proxy.configFolder` names where this process can read it")
}
