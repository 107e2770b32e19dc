//! Files that change continuously under load: no call may fail because of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use integration::client::Client;
use integration::volume;
use tokio::task::JoinSet;

use super::fleet::{self, Fleet};
use crate::report::{Report, row, title};

const CONNECTIONS: usize = 100;
const CLIENTS: usize = 8;
/// Files written in a second.
const WRITES: u64 = 200;

/// The results of the clients.
#[derive(Debug, Default)]
struct Seen {
    calls: AtomicUsize,
    failed: AtomicUsize,
}

/// Writes files and makes calls for a while.
pub(super) async fn measure(quick: bool, report: &mut Report) -> Result<()> {
    let fleet = Fleet::start(CONNECTIONS, &[]).await?;
    let time = Duration::from_secs(if quick { 3 } else { 20 });
    let (until, seen) = (Instant::now() + time, Arc::new(Seen::default()));
    let mut clients = JoinSet::new();
    for who in 0..CLIENTS {
        clients.spawn(load(fleet.client(), who, until, Arc::clone(&seen)));
    }
    let mut written = 0;
    while Instant::now() < until {
        let number = written % CONNECTIONS;
        // Another text with the same meaning: the connection is rebuilt.
        let text = fleet::local(&fleet.base(number), written + 1);
        fleet.put(&fleet::name(number), &text)?;
        written += 1;
        tokio::time::sleep(Duration::from_millis(1_000 / WRITES)).await;
    }
    while let Some(client) = clients.join_next().await {
        client?;
    }
    let (_, rebuilt) = fleet.changed("no connection");
    ensure!(
        rebuilt > CONNECTIONS,
        "{written} files were written, and {rebuilt} connections built"
    );
    title("files that change under load");
    row("files written", &written.to_string());
    row("connections built again", &rebuilt.to_string());
    row("calls", &seen.calls.load(Ordering::Relaxed).to_string());
    let failed = seen.failed.load(Ordering::Relaxed);
    #[expect(clippy::cast_precision_loss, reason = "few, or far too many")]
    let figure = failed as f64;
    report.aimed("calls that failed", &failed.to_string(), figure, 0.0);
    Ok(())
}

/// Volumes created, read and deleted everywhere.
async fn load(client: Client, who: usize, until: Instant, seen: Arc<Seen>) {
    for call in 0.. {
        if Instant::now() >= until {
            break;
        }
        let connection = fleet::name((who * 37 + call * 11) % CONNECTIONS);
        let (calls, failed) = once(&client, &connection, &format!("storm-{who}")).await;
        seen.calls.fetch_add(calls, Ordering::Relaxed);
        seen.failed.fetch_add(failed, Ordering::Relaxed);
    }
}

/// Calls that were made, and those that failed.
async fn once(client: &Client, connection: &str, name: &str) -> (usize, usize) {
    let id = format!("v:{connection}/{name}");
    let mut client = client.clone();
    let create = volume::create(name, &fleet::class(connection));
    let created = client.controller.create_volume(create).await;
    let got = fleet::got(&client, &id, 1).await;
    let delete = volume::delete(&id);
    let deleted = client.controller.delete_volume(delete).await;
    let outcomes = [created.is_err(), got.is_err(), deleted.is_err()];
    let failed = outcomes.iter().filter(|failed| **failed).count();
    if failed > 0 {
        row("failed", &format!("{created:?} {got:?} {deleted:?}"));
    }
    (outcomes.len(), failed)
}
