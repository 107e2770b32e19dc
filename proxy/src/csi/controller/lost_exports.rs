//! Restores exports that a storage host has lost, without waiting for a call.
//!
//! A minute after the start, and every few minutes from then on, one page of each connection's volumes is
//! checked. If an export of that page was lost, the next page follows: a host that boots without its saved
//! configuration has lost all. Of all connections together one question a second is asked. Where a storage can be used
//! again, a few are asked at once: it may have restarted. A storage that cannot be used is asked nothing.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use driver_core::{Error, Kind, PageRequest, PageToken, VolumeId};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt, stream};
use tokio::sync::Mutex;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, warn};

use crate::csi::plugin::Plugin;
use crate::routing::connection::Connection;
use crate::routing::connections::{ConnectionName, Connections, LazyConnection};
use crate::routing::folder::States;
use crate::rpc::Rpc;
use crate::rpc::in_flight::{Hold, InFlight, Keys, Object};
use crate::telemetry::metrics::{Metrics, Outcome};

/// How often. A pod that starts in between restores its own export; this is for the others.
const EVERY: Duration = Duration::from_mins(10);
/// The time from the start to the first check. The storage may have restarted while no controller ran, and pods wait.
const FIRST: Duration = Duration::from_mins(1);
/// The number of volumes of a connection that are checked each time.
const PAGE: usize = 32;
/// The number of connections that are checked at once. It is work in the background, and each takes permits of its
/// connection.
const AT_ONCE: usize = 4;
/// The time from one question to the next, of all connections together: some may be of one storage, which has enough
/// to do with its calls.
const PACE: Duration = Duration::from_secs(1);
/// The number of questions to a connection that are asked without that pause when its storage can be used again: a
/// list, and a look at 31 volumes. Pods wait for exports that it may have lost.
const FIRST_LOOKS: usize = 32;
/// The time that one question to a backend may take. As long as a query of an orchestrator may take.
const QUESTION: Duration = Duration::from_mins(1);
/// The time that restoring one export may take. Half of what the same change may take in a call.
const CHANGE: Duration = Duration::from_mins(5);
/// The pause before a storage that can be used again is checked again, if it was not ready for that.
const AGAIN: Duration = Duration::from_secs(30);
/// After this many failures of a storage the rest of its connection waits for the next time.
const FAILURES: usize = 3;

/// Where the next check of each connection starts.
type Cursors = HashMap<ConnectionName, PageToken>;

/// How many questions to each connection are asked without a pause.
type Urgent = BTreeMap<ConnectionName, usize>;

/// The pace of the questions of all checks.
#[derive(Debug)]
struct Pace {
    /// When the next may be asked.
    next: Mutex<Instant>,
}

/// The turns of one check to ask.
#[derive(Debug)]
struct Turns<'a> {
    pace: &'a Pace,
    /// How many come without a pause.
    urgent: usize,
}

/// The end of a check of one connection.
#[derive(Debug)]
struct Checked {
    /// The start of the next one.
    next: Option<PageToken>,
    /// Whether the storage failed: some could not be checked, or not be restored.
    has_failed: bool,
}

/// The connection that is checked, as it is at each moment. Its file may change during a check, and by the old one an export
/// would be opened to nodes that the new one keeps out.
#[derive(Debug, Clone, Copy)]
struct Current<'a> {
    connections: &'a Connections,
    states: &'a States,
    name: &'a ConnectionName,
}

/// Checks the exports of all connections until what is returned is dropped.
pub(crate) fn watch(plugin: &Arc<Plugin>) -> AbortOnDropHandle<()> {
    let plugin = Arc::clone(plugin);
    AbortOnDropHandle::new(tokio::spawn(async move {
        let pace = Pace::new();
        tokio::join!(
            check_in_turn(&plugin, &pace),
            check_returned(&plugin, &pace)
        );
    }))
}

/// Checks a page of each connection now and then. A storage that cannot be used is asked nothing: once it can be, it has
/// [`check_returned`].
async fn check_in_turn(plugin: &Plugin, pace: &Pace) {
    let mut cursors = Cursors::new();
    let mut round = tokio::time::interval_at(Instant::now() + FIRST, EVERY);
    round.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        round.tick().await;
        let all = std::mem::take(&mut cursors).into_iter();
        let (bad, from): (Cursors, Cursors) = all.partition(|(name, _)| plugin.states.is_bad(name));
        cursors = bad;
        for (name, checked, _) in check_each(plugin, pace, None, from).await {
            cursors.extend(checked.next.map(|next| (name, next)));
        }
    }
}

/// Checks what can be used again at once, from its first page on. What is not ready for that is checked again soon, until
/// its turn comes. One that hangs keeps no other waiting.
async fn check_returned(plugin: &Plugin, pace: &Pace) {
    let mut unready = Urgent::new();
    let (mut until, mut again) = (Instant::now(), Instant::now());
    let mut checks = FuturesUnordered::new();
    loop {
        let urgent = tokio::select! {
            returned = plugin.states.returned() => {
                until = Instant::now() + EVERY;
                let returned = returned.into_iter().map(|name| (name, FIRST_LOOKS));
                returned.collect::<Urgent>()
            }
            Some(failed) = checks.next() => {
                unready.extend(failed);
                again = Instant::now() + AGAIN;
                continue;
            }
            () = tokio::time::sleep_until(again), if !unready.is_empty() && Instant::now() < until => {
                std::mem::take(&mut unready)
            }
        };
        checks.push(failing(plugin, pace, urgent));
    }
}

/// Checks connections from their first pages on, and returns those that have failed, with what is left to them.
async fn failing(plugin: &Plugin, pace: &Pace, urgent: Urgent) -> Urgent {
    let checked = check_each(plugin, pace, Some(&urgent), Cursors::new()).await;
    let failed = checked
        .into_iter()
        .filter(|(_, checked, _)| checked.has_failed);
    failed.map(|(name, _, left)| (name, left)).collect()
}

/// Checks all connections whose storage can be used as far as is known, or those among them with these names. Returns
/// how many urgent turns are left to each, too.
async fn check_each(
    plugin: &Plugin,
    pace: &Pace,
    only: Option<&Urgent>,
    mut from: Cursors,
) -> Vec<(ConnectionName, Checked, usize)> {
    let mut exporting = plugin.connections.all();
    exporting.retain(|lazy| {
        let is_meant = only.is_none_or(|only| only.contains_key(lazy.name()));
        is_meant && !plugin.states.is_bad(lazy.name()) && has_exports(lazy)
    });
    let checks = exporting.into_iter().map(|lazy| {
        let urgent = only.and_then(|only| only.get(lazy.name()).copied());
        let turns = Turns {
            pace,
            urgent: urgent.unwrap_or_default(),
        };
        let from = from.remove(lazy.name());
        check(plugin, lazy, from, turns)
    });
    let checks = stream::iter(checks.collect::<Vec<_>>());
    checks.buffer_unordered(AT_ONCE).collect().await
}

/// Checks one connection from a cursor on.
async fn check(
    plugin: &Plugin,
    lazy: Arc<LazyConnection>,
    from: Option<PageToken>,
    mut turns: Turns<'_>,
) -> (ConnectionName, Checked, usize) {
    let runner = &plugin.runner;
    let current = Current {
        connections: &plugin.connections,
        states: &plugin.states,
        name: lazy.name(),
    };
    let checked = restore_from(
        current,
        runner.in_flight(),
        &runner.metrics,
        from,
        &mut turns,
    );
    let checked = caught(checked).await.unwrap_or_else(|error| {
        // The periodic probe reports a backend that does not answer.
        let (connection, error) = (lazy.name(), error.chain());
        debug!(%connection, error, "could not check the exports");
        Checked {
            next: None,
            has_failed: true,
        }
    });
    (lazy.name().clone(), checked, turns.urgent)
}

/// Restores lost exports of one page, and of the pages after it as long as there are lost ones. Volumes that are
/// published to nodes come first, as far as the list says so: of the page, or of the whole list if there are urgent
/// turns. Ends where the storage cannot be used any more.
async fn restore_from(
    current: Current<'_>,
    in_flight: &InFlight,
    metrics: &Metrics,
    from: Option<PageToken>,
    turns: &mut Turns<'_>,
) -> Result<Checked, Error> {
    let mut page = PageRequest {
        max: (turns.urgent == 0).then_some(PAGE),
        after: from,
    };
    let mut failures = 0;
    loop {
        turns.wait().await;
        if current.is_away() {
            return Ok(Checked {
                next: page.after,
                has_failed: false,
            });
        }
        let Some(connection) = current.connection().await? else {
            return Ok(Checked {
                next: None,
                has_failed: false,
            });
        };
        let listed = connection.ask_within(QUESTION, "list volumes", async |call| {
            connection.driver().list_volumes(call, &page).await
        });
        let mut listed = listed.await?;
        let volumes = &mut listed.entries;
        volumes.sort_by_key(|volume| volume.published_to.is_empty());
        let mut were_lost = false;
        for part in volumes.chunks(PAGE) {
            were_lost = false;
            for volume in part {
                turns.wait().await;
                if current.is_away() {
                    return Ok(Checked {
                        next: page.after,
                        has_failed: false,
                    });
                }
                match caught(restore(current, in_flight, metrics, &volume.id)).await {
                    Ok(was_lost) => were_lost |= was_lost,
                    Err(error) => {
                        warn!(
                            connection = current.name.field(),
                            volume = volume.id.as_str(),
                            error = error.chain(),
                            "could not check the export of a volume, or restore it"
                        );
                        failures += usize::from(is_of_storage(&error));
                    }
                }
                if failures == FAILURES {
                    return Ok(Checked {
                        next: listed.next,
                        has_failed: true,
                    });
                }
            }
            if !were_lost {
                break;
            }
        }
        if !were_lost || listed.next.is_none() {
            return Ok(Checked {
                next: listed.next,
                has_failed: failures > 0,
            });
        }
        page.after = listed.next;
    }
}

/// Makes a defect of a driver an error, so that the checks go on. Its text is in the log, and may contain anything.
async fn caught<T>(work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let ended = AssertUnwindSafe(work).catch_unwind().await;
    ended.unwrap_or_else(|_| {
        Err(Error::new(
            Kind::Internal,
            "check an export: it met a defect of this program",
        ))
    })
}

/// Whether other volumes would fail so, too, as where a host is not ready. What is wrong with one volume, such as a
/// choice of share options that is not in the configuration, keeps no other one from being restored.
fn is_of_storage(error: &Error) -> bool {
    !matches!(
        error.kind(),
        Kind::Invalid
            | Kind::NotFound
            | Kind::Conflict
            | Kind::Busy
            | Kind::OutOfRange
            | Kind::OutOfSpace
    )
}

/// Whether a connection has exports that can be checked.
fn has_exports(lazy: &LazyConnection) -> bool {
    let can = lazy.can();
    can.exports && can.list_volumes
}

/// Restores the export of one volume if it is lost, and says whether it was. One that a call works on is
/// left to that call.
async fn restore(
    current: Current<'_>,
    in_flight: &InFlight,
    metrics: &Metrics,
    id: &VolumeId,
) -> Result<bool, Error> {
    let Some(connection) = current.connection().await? else {
        return Ok(false);
    };
    let found = connection.ask_within(QUESTION, "check an export", async |call| {
        connection.driver().is_exported(call, id).await
    });
    match found.await {
        Ok(true) => return Ok(false),
        Ok(false) => {}
        // It was deleted, or another connection exports it.
        Err(error) if error.kind() == Kind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    }
    // The answer may have taken long.
    let Some(connection) = current.connection().await? else {
        return Ok(false);
    };
    let object = Object::Volume(id.clone());
    let keys = Keys::none().and(connection.scope(), object, Hold::Exclusive);
    let Ok(_guard) = in_flight.take(Rpc::ControllerGetVolume, keys) else {
        return Ok(false);
    };
    let restored = connection.ask_within(CHANGE, "restore an export", async |call| {
        connection.driver().repair_export(call, id).await
    });
    let restored = restored.await;
    let outcome = match &restored {
        Ok(()) => Outcome::Done,
        Err(error) if error.kind() == Kind::NotFound => return Ok(false),
        Err(error) => Outcome::of(error),
    };
    metrics.lost_export(connection.name().text(), outcome);
    restored?;
    warn!(
        connection = connection.name().field(),
        volume = id.as_str(),
        "the export of a volume was lost, or not as the configuration says; it is restored"
    );
    Ok(true)
}

// === impl Current ===

impl Current<'_> {
    /// The connection for the next question or change; `None` if it is removed, or has no exports any more.
    async fn connection(self) -> Result<Option<Arc<Connection>>, Error> {
        match self.connections.find(self.name) {
            Some(lazy) if has_exports(&lazy) => lazy.look().await.map(Some),
            _ => Ok(None),
        }
    }

    /// Whether its storage cannot be used, as far as is known.
    fn is_away(self) -> bool {
        self.states.is_bad(self.name)
    }
}

// === impl Pace ===

impl Pace {
    fn new() -> Self {
        Self {
            next: Mutex::new(Instant::now()),
        }
    }

    /// Waits until the next question may be asked. Those who wait get their turns in order.
    async fn turn(&self) {
        let mut next = self.next.lock().await;
        tokio::time::sleep_until(*next).await;
        *next = Instant::now() + PACE;
    }
}

// === impl Turns ===

impl Turns<'_> {
    /// Waits for the next turn.
    async fn wait(&mut self) {
        match self.urgent.checked_sub(1) {
            Some(left) => self.urgent = left,
            None => self.pace.turn().await,
        }
    }
}
