//! The place of one connection: its configuration, and its driver while somebody uses it.
//!
//! A driver that nobody used for a while is let go, with its sessions and its memory, and built
//! again by the next call. Building touches no backend, but may read files that hang: it is done on a
//! thread `own_thread`, once for all that wait, and nobody waits long.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use driver_core::{Error, Kind};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout, timeout_at};

use super::name::ConnectionName;
use crate::process;
use crate::routing::connection::Connection;
use crate::routing::own_thread;

/// How long a driver may take to be built. Who asks later is told at once.
const PATIENCE: Duration = Duration::from_secs(10);

/// So long a driver is kept that was built for a question to all of them: those come again and again.
const KEPT: Duration = Duration::from_mins(5);

/// Drivers that are built at once. One that takes longer than its turn leaves its place to the next.
static ROOM: Semaphore = Semaphore::const_new(64);
const TURN: Duration = Duration::from_secs(1);
/// Those that hang besides: each keeps a thread, and no connection has more than one.
static THREADS: Semaphore = Semaphore::const_new(1024);

tokio::task_local! {
    /// The connections that work has asked for in vain because their drivers have to be built.
    static WANTED: RefCell<Vec<Arc<LazyConnection>>>;
}

/// One connection.
#[derive(Debug)]
pub(crate) struct LazyConnection {
    name: ConnectionName,
    kind: Option<Arc<str>>,
    publishes: bool,
    inline: bool,
    exports: bool,
    way: Way,
    built: Mutex<Built>,
}

/// How a connection comes to be there.
#[derive(Debug)]
enum Way {
    /// It is.
    Fixed,
    /// It may be let go, and is built again.
    Again(Blueprint),
    /// It is not, for now, and this is why.
    Missing(Kind, String),
}

/// How a connection is built again.
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

/// Does `work`, which opens connections. If drivers have to be built for it that is done first, and the
/// work once more. `unopened` is what is made of the error of one that cannot be built.
pub(crate) async fn opened<T>(
    patience: Duration,
    unopened: impl Fn(Error) -> Error,
    mut work: impl FnMut() -> Result<T, Error>,
) -> Result<T, Error> {
    let until = Instant::now() + patience;
    // Kept until the work has found them: they might be let go again before.
    let mut built = Vec::new();
    loop {
        let (result, wanted) = WANTED.sync_scope(RefCell::default(), || {
            let result = work();
            (result, WANTED.with(RefCell::take))
        });
        if wanted.is_empty() {
            return result;
        }
        for lazy in wanted {
            match timeout_at(until, lazy.look()).await {
                Ok(Ok(connection)) => built.push(connection),
                // Something can be done without it.
                _ if result.is_ok() => return result,
                Ok(Err(error)) => return Err(unopened(error)),
                Err(_) => return Err(lazy.late()),
            }
        }
    }
}

// === impl LazyConnection ===

impl LazyConnection {
    /// A connection that stays.
    pub(crate) fn fixed(connection: Connection) -> Self {
        Self::with(connection, Way::Fixed)
    }

    /// A connection that may be let go.
    pub(crate) fn new(connection: Connection, blueprint: Blueprint) -> Self {
        Self::with(connection, Way::Again(blueprint))
    }

    /// A connection whose file cannot be used, and never could.
    pub(crate) fn refused(name: ConnectionName, why: &str) -> Self {
        let why = format!("its file cannot be used: {why}");
        Self::missing(name, Kind::Busy, why)
    }

    /// A connection whose file was found, and not read yet: whoever asks may ask again.
    pub(crate) fn being_read(name: ConnectionName) -> Self {
        Self::missing(name, Kind::Pending, "its file is being read".to_owned())
    }

    /// Connections that nobody knows, if there are such.
    pub(crate) fn unknown(why: String) -> Self {
        Self::missing(ConnectionName::unnamed(), Kind::Busy, why)
    }

    fn missing(name: ConnectionName, kind: Kind, why: String) -> Self {
        Self {
            name,
            kind: None,
            publishes: false,
            inline: false,
            exports: false,
            way: Way::Missing(kind, why),
            built: Mutex::new(Built::new(None)),
        }
    }

    fn with(connection: Connection, way: Way) -> Self {
        Self {
            name: connection.name().clone(),
            kind: Some(connection.driver().kind().into()),
            publishes: connection.can().publish,
            inline: connection.can().inline,
            exports: connection.can().exports && connection.can().list_volumes,
            way,
            built: Mutex::new(Built::new(Some(connection))),
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

    /// Whether its driver lets nodes in one by one, also while that is let go.
    pub(crate) fn publishes(&self) -> bool {
        self.publishes
    }

    /// Whether its driver makes volumes for pods, also while that is let go.
    pub(crate) fn has_inline(&self) -> bool {
        self.inline
    }

    /// Whether its driver can list its volumes and check their exports, also while it is not built.
    pub(crate) fn has_exports(&self) -> bool {
        self.exports
    }

    /// The connection, for a call. One whose driver has to be built is an error here; [`opened`] sees
    /// to it.
    pub(crate) fn open(self: &Arc<Self>) -> Result<Arc<Connection>, Error> {
        self.usable()?;
        let mut built = self.lock();
        if let Some(connection) = &built.connection {
            let connection = Arc::clone(connection);
            (built.used, built.in_use) = (Instant::now(), true);
            return Ok(connection);
        }
        drop(built);
        // Nobody waits for it where nobody can.
        let _ = WANTED.try_with(|wanted| wanted.borrow_mut().push(Arc::clone(self)));
        Err(self.late())
    }

    /// The connection, for a question that goes to all of them: that is no use of it. It is built if it
    /// has to be.
    pub(crate) async fn look(self: &Arc<Self>) -> Result<Arc<Connection>, Error> {
        self.usable()?;
        if let Some(connection) = self.peek() {
            return Ok(connection);
        }
        let under_way = self.lock().building.clone();
        let building = if let Some(building) = under_way {
            building
        } else {
            // Other tests of this process may keep the room, by clocks of their own.
            #[cfg(test)]
            let _still = crate::testing::standstill();
            match timeout(PATIENCE, ROOM.acquire()).await {
                Ok(Ok(room)) => self.build(room)?,
                Ok(Err(_)) | Err(_) => return Err(self.late()),
            }
        };
        match timeout_at(building.since + PATIENCE, building.outcome).await {
            Ok(outcome) => outcome.map_err(|why| self.fail(Kind::Internal).because(&*why)),
            Err(_) => Err(self.late()),
        }
    }

    /// Begins to build the driver, unless that is done already.
    fn build(self: &Arc<Self>, room: SemaphorePermit<'static>) -> Result<Building, Error> {
        let mut built = self.lock();
        if let Some(building) = &built.building {
            return Ok(building.clone());
        }
        let since = Instant::now();
        if let Some(connection) = built.connection.clone() {
            let outcome = std::future::ready(Ok(connection)).boxed().shared();
            return Ok(Building { since, outcome });
        }
        // As many threads hang as there may be: this one is asked for again.
        let thread = THREADS.try_acquire().map_err(|_| self.late())?;
        let lazy = Arc::clone(self);
        #[cfg(test)]
        let still = crate::testing::standstill();
        let work = move || {
            let outcome = lazy.made(since);
            drop(thread);
            outcome
        };
        let made =
            own_thread::spawn(work).map_err(|error| self.fail(Kind::Pending).because(error))?;
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
        drop(built);
        let turn = timeout(TURN, building.outcome.clone());
        tokio::spawn(async move {
            // Whether it is built or hangs by then: its place is the next one's.
            let _ = turn.await;
            drop(room);
        });
        Ok(building)
    }

    /// Builds the driver, and keeps it.
    fn made(&self, since: Instant) -> Outcome {
        let made = catch_unwind(AssertUnwindSafe(|| match &self.way {
            Way::Again(blueprint) => (blueprint.0)().map_err(|error| process::chain(&error)),
            Way::Fixed | Way::Missing(..) => Err(DEFECT.to_owned()),
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
    fn usable(&self) -> Result<(), Error> {
        match &self.way {
            Way::Missing(kind, why) => Err(self.fail(*kind).because(why.clone())),
            Way::Fixed | Way::Again(_) => Ok(()),
        }
    }

    fn late(&self) -> Error {
        self.fail(Kind::Pending)
            .because("its driver is not built yet")
            .advise("what its file names, such as a file with a key, may not be readable now")
    }

    fn fail(&self, kind: Kind) -> Error {
        let doing = if self.name.is_named() || self.kind.is_some() {
            format!("connection `{}`", self.name)
        } else {
            "know all connections".to_owned()
        };
        Error::new(kind, doing)
    }

    /// The connection, if its driver is there: looking at it is no use of it.
    pub(crate) fn peek(&self) -> Option<Arc<Connection>> {
        self.lock().connection.clone()
    }

    /// The same, unless it is only there because somebody looked at all of them.
    pub(crate) fn peek_in_use(&self) -> Option<Arc<Connection>> {
        let built = self.lock();
        built.connection.clone().filter(|_| built.in_use)
    }

    /// Lets the driver go if nobody has used it for so long as it was `now`, and says whether it did. One
    /// that was built for a look is kept for the next ones.
    pub(crate) fn let_go_at(&self, now: Instant, idle: Duration) -> bool {
        let mut built = self.lock();
        let unused = |connection: &Arc<Connection>| Arc::strong_count(connection) == 1;
        if !matches!(self.way, Way::Again(_))
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
