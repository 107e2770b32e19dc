//! The usage of the storage of a connection: free space, volumes, orphans. Measured periodically, only
//! for the metrics.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use driver_core::{Call, CapacityQuery, Error, PageRequest, Parameters};
use tokio::time::Instant;
use tracing::debug;

use crate::routing::connection::{Connection, WorkClass};
use crate::rpc::status;
use crate::telemetry::metrics::{Metrics, Usage};

/// How often free space and volumes are measured.
const EVERY: Duration = Duration::from_mins(5);
/// How often orphans are searched for.
const ORPHANS_EVERY: Duration = Duration::from_hours(1);
/// Younger objects may belong to a running call.
const ORPHAN_AGE: Duration = Duration::from_hours(24);
/// The time limit of one query.
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
            let asked = within(connection, available(connection)).await;
            record(connection, metrics, Usage::Available, asked);
        }
        if can.list_volumes {
            let asked = within(connection, volumes(connection)).await;
            record(connection, metrics, Usage::Volumes, asked);
        }
        if can.orphans && with_orphans {
            let asked = within(connection, orphans(connection)).await;
            record(connection, metrics, Usage::Orphans, asked);
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

/// Queries on threads of the connection, with a time limit.
async fn within(
    connection: &Connection,
    question: impl Future<Output = Result<u64, Error>>,
) -> Result<u64, String> {
    let question = connection.run_limited(WorkClass::Short, QUERY_TIMEOUT, question);
    match tokio::time::timeout(2 * QUERY_TIMEOUT, question).await {
        Ok(answer) => answer.map_err(|error| status::message(&error)),
        Err(_) => Err("no answer in time".to_owned()),
    }
}

fn record(connection: &Connection, metrics: &Metrics, usage: Usage, asked: Result<u64, String>) {
    let name = connection.name();
    if let Err(error) = &asked {
        debug!(connection = %name, error, "could not measure the storage");
    }
    metrics.connection_usage(name.text(), usage, asked.ok());
}

async fn available(connection: &Connection) -> Result<u64, Error> {
    let query = CapacityQuery {
        parameters: Parameters::default(),
        topology: None,
    };
    let call = Call::within(QUERY_TIMEOUT);
    let capacity = connection.driver().capacity(&call, &query).await?;
    Ok(capacity.available)
}

async fn volumes(connection: &Connection) -> Result<u64, Error> {
    let call = Call::within(QUERY_TIMEOUT);
    let mut count = 0;
    let mut page = first_page();
    loop {
        let found = connection.driver().list_volumes(&call, &page).await?;
        count += found.entries.len() as u64;
        match found.next {
            None => return Ok(count),
            next => page.after = next,
        }
    }
}

async fn orphans(connection: &Connection) -> Result<u64, Error> {
    let call = Call::within(QUERY_TIMEOUT);
    let before = SystemTime::now() - ORPHAN_AGE;
    let mut count = 0;
    let mut page = first_page();
    loop {
        let found = connection.driver().orphans(&call, before, &page).await?;
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
