//! The usage of the storage of a connection: free space, volumes, unhealthy ones, orphans. Measured periodically, only
//! for the metrics.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use driver_core::{Call, CapacityQuery, Error, PageRequest, Parameters};
use tokio::time::Instant;
use tracing::debug;

use crate::message;
use crate::routing::connection::Connection;
use crate::telemetry::metrics::{Metrics, Usage};

/// The interval at which free space, volumes and their health are measured. Space grows slowly, and each is a command on the
/// storage.
const EVERY: Duration = Duration::from_mins(5);
/// The interval at which orphans are searched for. The search lists everything.
const ORPHANS_EVERY: Duration = Duration::from_hours(1);
/// Younger objects may belong to a running call.
const ORPHAN_AGE: Duration = Duration::from_hours(24);
/// The time limit of one query. As long as a query of an orchestrator may take.
const QUERY_TIMEOUT: Duration = Duration::from_mins(1);

/// When each connection was measured. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct Schedule {
    last: Arc<Mutex<HashMap<Arc<str>, Last>>>,
}

#[derive(Debug, Default)]
struct Last {
    started: Option<Instant>,
    orphans: Option<Instant>,
    is_running: bool,
}

// === impl Schedule ===

impl Schedule {
    /// Measures a connection whose turn it is.
    pub(super) async fn measure(&self, connection: &Connection, metrics: &Metrics) {
        let name = connection.name().text();
        let Some(with_orphans) = self.start(name) else {
            return;
        };
        let can = connection.can();
        if can.capacity {
            let asked =
                connection.ask_within(QUERY_TIMEOUT, "measure the free space", async |call| {
                    available(connection, call).await
                });
            record(connection, metrics, Usage::Available, asked.await);
        }
        if can.list_volumes {
            let asked = connection.ask_within(QUERY_TIMEOUT, "count the volumes", async |call| {
                volumes(connection, call).await
            });
            record(connection, metrics, Usage::Volumes, asked.await);
        }
        if can.health && can.list_volumes {
            let asked = connection.ask_within(QUERY_TIMEOUT, "look at health", async |call| {
                unhealthy(connection, call).await
            });
            record(connection, metrics, Usage::Unhealthy, asked.await);
        }
        if can.orphans && with_orphans {
            let asked = connection.ask_within(QUERY_TIMEOUT, "count the orphans", async |call| {
                orphans(connection, call).await
            });
            record(connection, metrics, Usage::Orphans, asked.await);
        }
        self.change(name, |last| last.is_running = false);
    }

    /// Whether to search for orphans as well; `None` if no measurement is due.
    fn start(&self, name: &Arc<str>) -> Option<bool> {
        let now = Instant::now();
        let is_due = |last: Option<Instant>, every| last.is_none_or(|last| now - last >= every);
        self.change(name, |last| {
            if last.is_running || !is_due(last.started, EVERY) {
                return None;
            }
            (last.started, last.is_running) = (Some(now), true);
            let with_orphans = is_due(last.orphans, ORPHANS_EVERY);
            if with_orphans {
                last.orphans = Some(now);
            }
            Some(with_orphans)
        })
    }

    fn change<T>(&self, name: &Arc<str>, change: impl FnOnce(&mut Last) -> T) -> T {
        let mut all = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        change(all.entry(name.clone()).or_default())
    }
}

fn record(connection: &Connection, metrics: &Metrics, usage: Usage, asked: Result<u64, Error>) {
    let name = connection.name();
    if let Err(error) = &asked {
        let error = message::of(error);
        debug!(connection = %name, error, "could not measure the storage");
    }
    metrics.connection_usage(name.text(), usage, asked.ok());
}

async fn available(connection: &Connection, call: &Call) -> Result<u64, Error> {
    let query = CapacityQuery {
        parameters: Parameters::default(),
        topology: None,
    };
    let capacity = connection.driver().capacity(call, &query).await?;
    Ok(capacity.available)
}

async fn volumes(connection: &Connection, call: &Call) -> Result<u64, Error> {
    let mut count = 0;
    let mut page = first_page();
    loop {
        let found = connection.driver().list_volumes(call, &page).await?;
        count += found.entries.len() as u64;
        match found.next {
            None => return Ok(count),
            next => page.after = next,
        }
    }
}

async fn unhealthy(connection: &Connection, call: &Call) -> Result<u64, Error> {
    let mut count = 0;
    let mut page = first_page();
    loop {
        let found = connection.driver().list_unhealthy(call, &page).await?;
        count += found.entries.len() as u64;
        match found.next {
            None => return Ok(count),
            next => page.after = next,
        }
    }
}

async fn orphans(connection: &Connection, call: &Call) -> Result<u64, Error> {
    let before = SystemTime::now() - ORPHAN_AGE;
    let mut count = 0;
    let mut page = first_page();
    loop {
        let found = connection.driver().orphans(call, before, &page).await?;
        count += found.entries.len() as u64;
        match found.next {
            None => return Ok(count),
            next => page.after = next,
        }
    }
}

fn first_page() -> PageRequest {
    PageRequest {
        max: None,
        after: None,
    }
}
