//! Facts that the process knows by itself: connections, their health and free space, the calls of the last hour. No storage is
//! asked for it.

use serde::Serialize;
use tokio::time::Instant;

use super::Console;
use super::query::Query;
use crate::message::{self, printable};
use crate::process;
use crate::routing::connections::LazyConnection;
use crate::routing::folder::Health;
use crate::telemetry::history::{CallEnded, seconds, seconds_now};

/// Connections of a page, unless others are asked for, and at most.
const CONNECTIONS: usize = 100;
const MOST_CONNECTIONS: usize = 500;
/// Points of a curve.
const POINTS: usize = 96;
/// Calls of a page, unless others are asked for, and at most.
const CALLS: usize = 100;
const MOST_CALLS: usize = 1_000;
/// Bars of the last hour.
const MINUTES: usize = 60;

/// The process.
#[derive(Debug, Serialize)]
pub(super) struct Status {
    name: String,
    version: &'static str,
    /// When it began, and now, in seconds since 1970.
    since: u64,
    now: u64,
    connections: usize,
    unhealthy: usize,
    /// Why there may be further connections.
    incomplete: Option<String>,
    /// Calls of the last hour, as far as they are kept, and those of them that failed.
    calls: usize,
    failed: usize,
}

/// A page of connections.
#[derive(Debug, Serialize)]
pub(super) struct ConnectionsPage {
    rows: Vec<ConnectionRow>,
    next: Option<String>,
}

/// One connection.
#[derive(Debug, Serialize)]
struct ConnectionRow {
    name: String,
    driver: Option<String>,
    health: &'static str,
    error: Option<String>,
    /// The seconds since it was probed.
    probed_seconds_ago: Option<u64>,
    available: Option<u64>,
    volumes: Option<u64>,
    orphans: Option<u64>,
    /// Free bytes over time: seconds since 1970, bytes.
    history: Vec<(u64, u64)>,
}

/// A page of calls.
#[derive(Debug, Serialize)]
pub(super) struct CallsPage {
    rows: Vec<CallRow>,
    /// The number of those that are kept, and of those of them that are asked for.
    kept: usize,
    matching: usize,
    /// For each minute, the oldest first: calls that succeeded, and that failed.
    minutes: Vec<(u32, u32)>,
}

/// One call.
#[derive(Debug, Serialize)]
struct CallRow {
    rpc: &'static str,
    code: &'static str,
    /// In seconds since 1970.
    began: u64,
    took_milliseconds: f64,
    reason: Option<String>,
    connection: String,
    volume: Option<String>,
    snapshot: Option<String>,
    claim: Option<String>,
    node: Option<String>,
    path: Option<String>,
}

// === impl Console ===

impl Console {
    pub(super) fn status(&self) -> Status {
        let all = self.plugin.connections.all();
        let health = all.iter().map(|lazy| self.health(lazy).0);
        let calls = self.history.recent();
        let incomplete = self.plugin.connections.unknown();
        Status {
            name: self.plugin.name.to_string(),
            version: env!("CARGO_PKG_VERSION"),
            since: seconds(self.history.since()),
            now: seconds_now(),
            connections: all.len(),
            unhealthy: health
                .filter(|health| ["bad", "invalid"].contains(health))
                .count(),
            incomplete: incomplete.map(|why| message::of(&why)),
            calls: calls.len(),
            failed: calls.iter().filter(|call| call.code != "OK").count(),
        }
    }

    pub(super) fn connections(&self, query: &Query<'_>) -> ConnectionsPage {
        let (after, search) = (query.text("after"), query.search());
        let limit = query.limit(CONNECTIONS, MOST_CONNECTIONS);
        let mut page = ConnectionsPage {
            rows: Vec::new(),
            next: None,
        };
        for lazy in self.plugin.connections.all() {
            let name: &str = lazy.name().text();
            let is_shown = |word: &String| {
                let kind = lazy.kind().map_or("", |kind| kind);
                [name, kind]
                    .iter()
                    .any(|text| text.to_lowercase().contains(word))
            };
            if after.is_some_and(|after| name <= after) || !search.as_ref().is_none_or(is_shown) {
                continue;
            }
            if page.rows.len() == limit {
                page.next = page.rows.last().map(|row| row.name.clone());
                break;
            }
            page.rows.push(self.row(&lazy));
        }
        page
    }

    /// The health of a connection, why it is not good, and when it was probed.
    fn health(&self, lazy: &LazyConnection) -> (&'static str, Option<String>, Option<Instant>) {
        let (health, asked) = self.plugin.states.health(lazy.name());
        let (health, error) = match (lazy.usable(), health) {
            (Err(why), _) => ("invalid", Some(printable(&process::chain(&why)))),
            (Ok(()), Health::Good) => ("good", None),
            (Ok(()), Health::Bad(why)) => ("bad", Some(why)),
            (Ok(()), Health::Unknown) => ("unknown", None),
        };
        (health, error, asked)
    }

    fn row(&self, lazy: &LazyConnection) -> ConnectionRow {
        let (health, error, asked) = self.health(lazy);
        let storage = self.history.storage(lazy.name().text());
        let points: Vec<_> = storage.available.iter().copied().collect();
        ConnectionRow {
            name: lazy.name().text().to_string(),
            driver: lazy.kind().map(ToString::to_string),
            health,
            error,
            probed_seconds_ago: asked.map(|asked| asked.elapsed().as_secs()),
            available: points.last().map(|(_, free)| *free),
            volumes: storage.volumes,
            orphans: storage.orphans,
            history: thinned(&points, POINTS),
        }
    }

    pub(super) fn calls(&self, query: &Query<'_>) -> CallsPage {
        let all = self.history.recent();
        let (search, only) = (query.search(), query.text("connection"));
        let failed = query.text("failed").is_some_and(|text| text == "true");
        let is_wanted = |call: &&CallEnded| {
            (!failed || call.code != "OK")
                && only.is_none_or(|only| *call.subject.connection == *only)
                && search.as_ref().is_none_or(|word| has(call, word))
        };
        let wanted: Vec<_> = all.iter().filter(is_wanted).collect();
        let limit = query.limit(CALLS, MOST_CALLS);
        CallsPage {
            rows: wanted
                .iter()
                .take(limit)
                .map(|call| CallRow::of(call))
                .collect(),
            kept: all.len(),
            matching: wanted.len(),
            minutes: minutes(&wanted),
        }
    }
}

// === impl CallRow ===

impl CallRow {
    fn of(call: &CallEnded) -> Self {
        let subject = &call.subject;
        Self {
            rpc: call.rpc.name(),
            code: call.code,
            began: seconds(call.began),
            took_milliseconds: (call.took.as_secs_f64() * 1e4).round() / 10.0,
            reason: call.reason.clone(),
            connection: subject.connection.to_string(),
            volume: subject.volume.as_deref().map(printable),
            snapshot: subject.snapshot.as_deref().map(printable),
            claim: subject.claim.as_deref().map(printable),
            node: subject.node.as_deref().map(printable),
            path: subject.path.as_deref().map(printable),
        }
    }
}

/// Whether a word is in what is shown of a call.
fn has(call: &CallEnded, word: &str) -> bool {
    let subject = &call.subject;
    let texts = [
        Some(call.rpc.name()),
        Some(call.code),
        Some(&*subject.connection),
        call.reason.as_deref(),
        subject.volume.as_deref(),
        subject.snapshot.as_deref(),
        subject.claim.as_deref(),
        subject.node.as_deref(),
        subject.path.as_deref(),
    ];
    let mut texts = texts.into_iter().flatten();
    texts.any(|text| text.to_lowercase().contains(word))
}

/// The number of calls that ended well, and that failed, in each minute of the last hour.
fn minutes(calls: &[&CallEnded]) -> Vec<(u32, u32)> {
    let mut bars = vec![(0, 0); MINUTES];
    let now = std::time::SystemTime::now();
    for call in calls {
        let age = now.duration_since(call.began + call.took);
        let age = usize::try_from(age.unwrap_or_default().as_secs() / 60);
        let place = MINUTES - 1 - age.unwrap_or_default().min(MINUTES - 1);
        let bar: &mut (u32, u32) = &mut bars[place];
        if call.code == "OK" {
            bar.0 += 1;
        } else {
            bar.1 += 1;
        }
    }
    bars
}

/// At most so many points, with the first and the last.
fn thinned(points: &[(u64, u64)], most: usize) -> Vec<(u64, u64)> {
    if points.len() <= most {
        return points.to_vec();
    }
    let last = points.len() - 1;
    (0..most)
        .map(|place| points[place * last / (most - 1)])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_curve_keeps_its_ends() {
        let points: Vec<_> = (0..288).map(|n| (n, n)).collect();
        let thin = thinned(&points, POINTS);
        assert_eq!(thin.len(), POINTS);
        assert_eq!((thin[0], thin[POINTS - 1]), ((0, 0), (287, 287)));
        assert_eq!(thinned(&points[..3], POINTS), &points[..3]);
    }
}
