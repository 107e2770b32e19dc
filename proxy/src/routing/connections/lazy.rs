//! One connection: its configuration, and its driver while it is in use.
//!
//! A driver that is idle for a while is dropped, with its sessions and its memory, and built again by
//! the next call. Building touches no backend, but may read files that hang. So it runs on a thread of
//! `own_thread`, one for each connection and for all waiting calls, and each call waits for a limited time.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use driver_core::config::ServiceConfig;
use driver_core::{AccessRules, Capabilities, Error, Kind};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use tokio::time::{Instant, timeout_at};

use super::name::ConnectionName;
use crate::process;
use crate::routing::connection::Connection;
use crate::routing::own_thread;

/// The time that calls wait for a build, from its start. A later call fails at once.
const BUILD_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a driver is kept that was built for a query to all connections: such queries repeat.
const KEPT: Duration = Duration::from_mins(5);

/// One connection.
#[derive(Debug)]
pub(crate) struct LazyConnection {
    name: ConnectionName,
    kind: Option<Arc<str>>,
    can: Capabilities,
    /// The uses of its volumes, and what its configuration advertises, if its file can be used.
    offer: Option<Arc<(AccessRules, ServiceConfig)>>,
    origin: Origin,
    built: Mutex<Built>,
}

/// The place where the driver of a connection comes from.
#[derive(Debug)]
enum Origin {
    /// It always exists.
    Fixed,
    /// It may be dropped while idle, and is built again.
    Rebuildable(Blueprint),
    /// It does not exist for now, for this reason.
    Missing(Kind, String),
    /// It is this one, for callers who know no other.
    Alone(Arc<LazyConnection>),
}

/// The way a connection is built again.
pub(crate) struct Blueprint(Box<Build>);

type Build = dyn Fn() -> Result<Connection, driver_core::config::ConfigError> + Send + Sync;

#[derive(Debug)]
struct Built {
    connection: Option<Arc<Connection>>,
    building: Option<Building>,
    /// When a call last used it.
    used: Instant,
    /// When it was built.
    since: Instant,
    /// Whether a call has used it since; one that was just loaded will be.
    in_use: bool,
}

/// A driver that is being built. Clones are the same.
#[derive(Debug, Clone)]
struct Building {
    since: Instant,
    outcome: Shared<BoxFuture<'static, Outcome>>,
}

type Outcome = Result<Arc<Connection>, Arc<str>>;

const DEFECT: &str = "met a defect of this program";

/// The error while a driver is not built. A call can be retried.
pub(crate) fn late(doing: impl Into<String>) -> Error {
    Error::new(Kind::Pending, doing)
        .because("its driver is not built yet")
        .advise("what its file names, such as a file with a key, may not be readable now")
}

// === impl LazyConnection ===

impl LazyConnection {
    /// A connection that stays.
    pub(crate) fn fixed(connection: Connection) -> Self {
        Self::with(connection, Origin::Fixed)
    }

    /// A connection whose driver is dropped while idle.
    pub(crate) fn new(connection: Connection, blueprint: Blueprint) -> Self {
        Self::with(connection, Origin::Rebuildable(blueprint))
    }

    /// A connection whose file cannot be used, and never could.
    pub(crate) fn refused(name: ConnectionName, why: &str) -> Self {
        let why = format!("its file cannot be used: {why}");
        Self::missing(name, Kind::Busy, why)
    }

    /// A connection whose file was found and is not read yet. A call can be retried.
    pub(crate) fn being_read(name: ConnectionName) -> Self {
        Self::missing(name, Kind::Pending, "its file is being read".to_owned())
    }

    /// Stands for connections that may exist and are unknown.
    pub(crate) fn unknown(why: String) -> Self {
        Self::missing(ConnectionName::unnamed(), Kind::Busy, why)
    }

    fn missing(name: ConnectionName, kind: Kind, why: String) -> Self {
        Self {
            name,
            kind: None,
            can: Capabilities::NONE,
            offer: None,
            origin: Origin::Missing(kind, why),
            built: Mutex::new(Built::new(None)),
        }
    }

    fn with(connection: Connection, origin: Origin) -> Self {
        Self {
            name: connection.name().clone(),
            kind: Some(connection.driver().kind().into()),
            can: connection.can(),
            offer: Some(Arc::new((
                connection.access().clone(),
                connection.service().clone(),
            ))),
            origin,
            built: Mutex::new(Built::new(Some(connection))),
        }
    }

    /// The same connection for callers who know no other.
    pub(crate) fn alone(lazy: Arc<Self>) -> Self {
        Self {
            name: lazy.name.clone(),
            kind: lazy.kind.clone(),
            can: lazy.can,
            offer: lazy.offer.clone(),
            origin: Origin::Alone(lazy),
            built: Mutex::new(Built::new(None)),
        }
    }

    /// Its name.
    pub(crate) fn name(&self) -> &ConnectionName {
        &self.name
    }

    /// The kind of its driver; none while its file cannot be used.
    pub(crate) fn kind(&self) -> Option<&Arc<str>> {
        self.kind.as_ref()
    }

    /// What its driver can do. Known also while the driver is dropped; nothing while its file cannot be used.
    pub(crate) fn can(&self) -> &Capabilities {
        &self.can
    }

    /// The uses of its volumes, and what its configuration advertises; none while its file cannot be used.
    pub(crate) fn offer(&self) -> Option<&(AccessRules, ServiceConfig)> {
        self.offer.as_deref()
    }

    /// The connection, for a call. It is built if necessary.
    pub(crate) async fn open(self: &Arc<Self>) -> Result<Arc<Connection>, Error> {
        if let Origin::Alone(lazy) = &self.origin {
            return lazy.open_shared().await.map(Connection::alone);
        }
        self.open_shared().await
    }

    async fn open_shared(self: &Arc<Self>) -> Result<Arc<Connection>, Error> {
        let connection = self.look_shared().await?;
        let mut built = self.lock();
        (built.used, built.in_use) = (Instant::now(), true);
        Ok(connection)
    }

    /// The connection, for a query to all connections. It is built if necessary. This does not count as
    /// use: it does not keep the driver from being dropped.
    pub(crate) async fn look(self: &Arc<Self>) -> Result<Arc<Connection>, Error> {
        if let Origin::Alone(lazy) = &self.origin {
            return lazy.look_shared().await.map(Connection::alone);
        }
        self.look_shared().await
    }

    async fn look_shared(self: &Arc<Self>) -> Result<Arc<Connection>, Error> {
        self.usable()?;
        if let Some(connection) = self.peek() {
            return Ok(connection);
        }
        let under_way = self.lock().building.clone();
        let building = match under_way {
            Some(building) => building,
            None => self.build()?,
        };
        match timeout_at(building.since + BUILD_TIMEOUT, building.outcome).await {
            Ok(outcome) => outcome.map_err(|why| self.fail(Kind::Internal).because(&*why)),
            Err(_) => Err(self.late()),
        }
    }

    /// Starts to build the driver, unless that is done already.
    fn build(self: &Arc<Self>) -> Result<Building, Error> {
        let mut built = self.lock();
        if let Some(building) = &built.building {
            return Ok(building.clone());
        }
        let since = Instant::now();
        if let Some(connection) = built.connection.clone() {
            let outcome = std::future::ready(Ok(connection)).boxed().shared();
            return Ok(Building { since, outcome });
        }
        let lazy = Arc::clone(self);
        #[cfg(test)]
        let still = crate::testing::hold_paused_clock();
        let made = own_thread::spawn(move || lazy.made(since))
            .map_err(|error| self.fail(Kind::Pending).because(error))?;
        let outcome = made.map(move |made| {
            #[cfg(test)]
            drop(still);
            made.unwrap_or_else(|_| Err(DEFECT.into()))
        });
        let building = Building {
            since,
            outcome: outcome.boxed().shared(),
        };
        built.building = Some(building.clone());
        Ok(building)
    }

    /// Builds the driver, and keeps it.
    fn made(&self, since: Instant) -> Outcome {
        let made = catch_unwind(AssertUnwindSafe(|| match &self.origin {
            Origin::Rebuildable(blueprint) => {
                (blueprint.0)().map_err(|error| process::chain(&error))
            }
            Origin::Fixed | Origin::Missing(..) | Origin::Alone(_) => Err(DEFECT.to_owned()),
        }));
        let made = made.unwrap_or_else(|_| Err(DEFECT.to_owned()));
        let outcome = made.map(Arc::new).map_err(Arc::from);
        let mut built = self.lock();
        built.connection = outcome.as_ref().ok().cloned();
        (built.since, built.in_use) = (since, false);
        let over = built.building.take();
        drop(built);
        drop(over);
        outcome
    }

    /// That its file can be used.
    pub(crate) fn usable(&self) -> Result<(), Error> {
        match &self.origin {
            Origin::Missing(kind, why) => Err(self.fail(*kind).because(why.clone())),
            Origin::Alone(lazy) => lazy.usable(),
            Origin::Fixed | Origin::Rebuildable(_) => Ok(()),
        }
    }

    fn late(&self) -> Error {
        late(self.doing())
    }

    fn fail(&self, kind: Kind) -> Error {
        Error::new(kind, self.doing())
    }

    fn doing(&self) -> String {
        if self.name.is_named() || self.kind.is_some() {
            format!("connection `{}`", self.name)
        } else {
            "know all connections".to_owned()
        }
    }

    /// The connection, if its driver exists. This does not count as use.
    pub(crate) fn peek(&self) -> Option<Arc<Connection>> {
        if let Origin::Alone(lazy) = &self.origin {
            return lazy.peek().map(Connection::alone);
        }
        self.lock().connection.clone()
    }

    /// The same, unless only a query to all connections has used it since it was built.
    pub(crate) fn peek_in_use(&self) -> Option<Arc<Connection>> {
        let built = self.lock();
        built.connection.clone().filter(|_| built.in_use)
    }

    /// Drops the driver if it was idle for `idle` at `now`, and returns whether it did. A driver that
    /// was built for a query is kept for the next queries.
    pub(crate) fn let_go_at(&self, now: Instant, idle: Duration) -> bool {
        let mut built = self.lock();
        let unused = |connection: &Arc<Connection>| Arc::strong_count(connection) == 1;
        if !matches!(self.origin, Origin::Rebuildable(_))
            || now.duration_since(built.used) < idle
            || now.duration_since(built.since) < idle.min(KEPT)
            || !built.connection.as_ref().is_some_and(unused)
        {
            return false;
        }
        let gone = built.connection.take();
        drop(built);
        gone.is_some()
    }

    /// The same, now.
    #[cfg(test)]
    pub(crate) fn let_go(&self, idle: Duration) -> bool {
        self.let_go_at(Instant::now(), idle)
    }

    fn lock(&self) -> MutexGuard<'_, Built> {
        self.built.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Built ===

impl Built {
    fn new(connection: Option<Connection>) -> Self {
        Self {
            connection: connection.map(Arc::new),
            building: None,
            used: Instant::now(),
            since: Instant::now(),
            in_use: true,
        }
    }
}

// === impl Blueprint ===

impl Blueprint {
    /// Builds with `build`.
    pub(crate) fn new(
        build: impl Fn() -> Result<Connection, driver_core::config::ConfigError> + Send + Sync + 'static,
    ) -> Self {
        Self(Box::new(build))
    }
}

impl std::fmt::Debug for Blueprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Blueprint")
    }
}
