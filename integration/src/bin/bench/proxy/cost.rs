//! A call through the proxy compared to the same call of a single driver, by the number of
//! connections.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use anyhow::Result;
use integration::client::Client;
use integration::place::Place;
use integration::process::Process;
use integration::server::Launch;
use integration::volume;

use super::change;
use super::fleet::{self, Fleet};
use crate::calls::Pairing;
use crate::report::{Report, median, row, title};

pub(super) const CONNECTIONS: [usize; 3] = [1, 100, 1_000];
/// The highest cost of a call, relative to the same call of a single driver.
pub(super) const COST_AIM: f64 = 1.03;
/// The most memory of a thousand connections, in MiB.
const MEMORY_AIM: f64 = 100.0;

/// One server, and a volume of it that stays.
#[derive(Debug)]
pub(super) struct Side<'a> {
    client: Client,
    pub(super) process: Process,
    connection: Option<String>,
    id: String,
    fleet: Option<&'a Fleet>,
}

/// The results of one fleet.
#[derive(Debug, Default)]
struct Compared {
    get: Pairing,
    make: Pairing,
    /// Processor time of all calls of a round, over that of the single driver.
    work: Vec<f64>,
}

/// The times of one side in one round.
#[derive(Debug)]
struct Round {
    get: Vec<Duration>,
    make: Vec<Duration>,
    work: Option<Duration>,
}

/// How many rounds, and how many calls of each sort in one.
pub(super) fn effort(quick: bool) -> (usize, usize) {
    if quick { (3, 100) } else { (9, 300) }
}

/// Measures the cost of calls, of memory, and of a change among many.
pub(super) async fn measure(quick: bool, report: &mut Report) -> Result<()> {
    let place = Place::new();
    let launch = Launch::local_hostpath(&place).set("--log-level", "info");
    let server = launch.start(&place).await;
    let mut single = Side {
        client: server.client(),
        process: server.process(),
        connection: None,
        id: String::new(),
        fleet: None,
    };
    single.stays().await?;
    let mut fleets = Vec::new();
    for connections in CONNECTIONS {
        fleets.push(Fleet::start(connections, &[]).await?);
    }
    let mut sides = Vec::new();
    for (fleet, connections) in fleets.iter().zip(CONNECTIONS) {
        // One in the middle: a count from the start of the process would show.
        let mut side = Side {
            client: fleet.client(),
            process: fleet.process(),
            connection: Some(fleet::name(connections / 2)),
            id: String::new(),
            fleet: Some(fleet),
        };
        side.stays().await?;
        sides.push(side);
    }
    let (rounds, calls) = effort(quick);
    let mut compared: Vec<Compared> = sides.iter().map(|_| Compared::default()).collect();
    for round in 0..=rounds {
        let alone = single.round(calls).await?;
        for (side, compared) in sides.iter().zip(&mut compared) {
            let ours = side.round(calls).await?;
            if round > 0 {
                compared.add(ours, &alone);
            }
        }
    }
    for ((compared, connections), side) in compared.into_iter().zip(CONNECTIONS).zip(&sides) {
        title(&format!("the proxy with {connections} connections"));
        compared.show(report);
        memory(connections, side.process, report);
    }
    let last = sides.iter().filter_map(|side| side.fleet).next_back();
    match last {
        Some(fleet) => change::measure(fleet, quick, report).await,
        None => Ok(()),
    }
}

fn memory(connections: usize, process: Process, report: &mut Report) {
    #[expect(clippy::cast_precision_loss, reason = "a few thousand KiB")]
    let mib = process.rss_kib() as f64 / 1024.0;
    let text = format!("{mib:.1} MiB");
    if connections == 1_000 {
        report.aimed("resident memory (aim in MiB)", &text, mib, MEMORY_AIM);
    } else {
        row("resident memory", &text);
    }
}

/// The processor time of all threads of a process, if the kernel shows it.
fn worked(process: Process) -> Option<Duration> {
    let threads = fs::read_dir(format!("/proc/{}/task", process.0)).ok()?;
    let mut nanoseconds = 0;
    for thread in threads.flatten() {
        // The thread may have ended.
        let Ok(stat) = fs::read_to_string(thread.path().join("schedstat")) else {
            continue;
        };
        nanoseconds += stat.split(' ').next()?.parse::<u64>().ok()?;
    }
    Some(Duration::from_nanos(nanoseconds))
}

// === impl Side ===

impl Side<'_> {
    /// Makes the volume that stays.
    async fn stays(&mut self) -> Result<()> {
        let class = self.connection.as_deref().map(fleet::class);
        let class: BTreeMap<_, _> = class.unwrap_or_default();
        let request = volume::create("stays", &class);
        let made = self.client.controller.create_volume(request).await?;
        self.id = made.into_inner().volume.unwrap_or_default().volume_id;
        Ok(())
    }

    /// The times of the compared calls, each made this often.
    pub(super) async fn called(&self, calls: usize) -> Result<(Vec<Duration>, Vec<Duration>)> {
        let get = fleet::got(&self.client, &self.id, calls).await?;
        let connection = self.connection.as_deref();
        let make = fleet::made_and_deleted(&self.client, connection, calls).await?;
        Ok((get, make))
    }

    async fn round(&self, calls: usize) -> Result<Round> {
        let before = worked(self.process);
        let (get, make) = self.called(calls).await?;
        // The time of an ended thread is lost: such a round is invalid.
        let work = worked(self.process).zip(before);
        let work = work.and_then(|(after, before)| after.checked_sub(before));
        Ok(Round { get, make, work })
    }
}

// === impl Compared ===

impl Compared {
    fn add(&mut self, ours: Round, alone: &Round) {
        self.get.add(ours.get, alone.get.clone(), Duration::ZERO);
        self.make.add(ours.make, alone.make.clone(), Duration::ZERO);
        if let (Some(ours), Some(alone)) = (ours.work, alone.work) {
            self.work.push(ours.as_secs_f64() / alone.as_secs_f64());
        }
    }

    fn show(mut self, report: &mut Report) {
        let single = "the single driver";
        self.get.show("get volume", single, COST_AIM, report);
        self.make.show("create + delete", single, COST_AIM, report);
        if self.work.is_empty() {
            row("processor time", "the kernel does not tell");
            return;
        }
        let ratio = median(&mut self.work);
        let text = format!("ratio {ratio:.3}");
        report.aimed("processor time of all of it", &text, ratio, COST_AIM);
    }
}
