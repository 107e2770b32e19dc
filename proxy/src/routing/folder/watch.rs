//! The task that keeps the connections in step with their files.

use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use tokio_util::task::AbortOnDropHandle;
use tracing::{error, info, warn};

use super::health::{Duties, Rounds};
use super::loads::{self, Loads};
use super::settings::Keep;
use super::states::States;
use super::{Folder, own_thread};
use crate::telemetry::metrics::Metrics;

/// The time between two scans. A change must be served within a second, and two scans must find the
/// same content.
const EVERY: Duration = Duration::from_millis(250);
/// The number of further scans that run at the start while there is something new.
const MORE_SCANS: usize = 4;
/// The time that a scan waits for a folder. A folder on a sound disk takes a few milliseconds; three of them and two
/// pauses fit into a second.
const SCAN_TIMEOUT: Duration = Duration::from_millis(150);

/// A folder that is served.
#[derive(Debug)]
pub struct Watch {
    folder: Folder,
    loads: Loads,
    rounds: Rounds,
    states: States,
    metrics: Metrics,
    /// The running drop of idle drivers.
    letting_go: Option<tokio::sync::oneshot::Receiver<()>>,
    /// Files were found that the next scan will report.
    more: bool,
}

// === impl Watch ===

impl Watch {
    /// Watches `folder`; the results go into `states` and `metrics`. Nothing is served yet.
    pub fn new(folder: Folder, states: &States, metrics: &Metrics, duties: Duties) -> Self {
        Self {
            folder,
            loads: Loads::default(),
            rounds: Rounds::new(duties),
            states: states.clone(),
            metrics: metrics.clone(),
            letting_go: None,
            more: false,
        }
    }

    /// Serves the existing files. It waits a limited time for a folder or a file that hangs; calls for
    /// its connections then get an error that says so.
    pub async fn first(&mut self) {
        self.scan(Instant::now(), loads::LATE_AFTER).await;
        // A new file may be half-written; one that keeps changing is served later.
        for _ in 0..MORE_SCANS {
            if !self.more {
                break;
            }
            tokio::time::sleep(EVERY).await;
            self.scan(Instant::now(), loads::LATE_AFTER).await;
        }
        self.say_what_is_missing();
        self.settle(2 * loads::LATE_AFTER).await;
    }

    /// Logs names without a file: they may be misspelt, or the file comes later.
    fn say_what_is_missing(&self) {
        let loader = &self.folder.loader;
        let connections = loader.connections();
        // If not all connections are known, it may exist.
        if connections.unknown().is_some() {
            return;
        }
        let table = connections.table();
        let missing = loader.missing(|name| table.contains_key(name));
        let keys = missing.iter().map(|(key, name)| format!("{key}: {name}"));
        let keys: Vec<_> = keys.collect();
        if !keys.is_empty() {
            warn!(key = keys.join(", "), "no file is called as these keys say");
        }
    }

    /// Serves the found connections, as far as they load in time.
    pub(crate) async fn settle(&mut self, timeout: Duration) {
        let start = Instant::now();
        while self.loads.is_busy() && start.elapsed() < timeout {
            // Woken now and then, to see which are late.
            drop(tokio::time::timeout(EVERY, self.install()).await);
            self.begin_loads(Instant::now());
        }
    }

    /// Scans the folders for changes, and starts to make connections of them.
    pub(crate) async fn scan(&mut self, now: Instant, timeout: Duration) {
        let scan = self.folder.folders.scan(now, timeout).await;
        for odd in &scan.odd {
            warn!("the folder of connections: {odd}");
        }
        let loader = &self.folder.loader;
        let connections = loader.connections();
        for name in &scan.never {
            connections.remove(name);
        }
        // Before `set_incomplete`: connections that are not served yet must be known by then.
        let changed = scan.changed.iter().map(|changed| &changed.name);
        connections.are_being_read(scan.found.iter().chain(changed));
        connections.set_incomplete(scan.unknown);
        self.more = !scan.found.is_empty();
        self.metrics.folders_unread(scan.unread);
        for name in scan.gone {
            self.loads.drop(&name);
            loader.remove(&name, &self.states, &self.metrics);
        }
        for changed in scan.changed {
            self.loads.add(changed);
        }
        self.begin_loads(now);
        self.count();
    }

    fn begin_loads(&mut self, now: Instant) {
        let Folder {
            folders, loader, ..
        } = &mut self.folder;
        for name in self.loads.late(now) {
            loader.late(&name, &self.metrics);
        }
        let maker = loader.clone();
        let build = move |changed| maker.build(changed);
        for name in self.loads.begin(&build, now) {
            folders.report_again(name);
        }
    }

    /// Serves the next connection that was made.
    async fn install(&mut self) {
        let made = self.loads.next().await;
        if let Some((name, built)) = made {
            self.folder
                .loader
                .install(&name, built, &self.states, &self.metrics);
            self.count();
        }
        self.begin_loads(Instant::now());
    }

    fn count(&self) {
        let served = self.folder.loader.connections().len();
        self.metrics.connections(served);
    }

    /// Goes on until what is returned is dropped.
    pub(crate) fn begin(self) -> AbortOnDropHandle<()> {
        AbortOnDropHandle::new(tokio::spawn(self.run()))
    }

    /// A defect in one turn does not end the watch: files go on being served.
    async fn run(mut self) {
        let mut next = tokio::time::Instant::now() + EVERY;
        loop {
            let turn = AssertUnwindSafe(self.turn(&mut next)).catch_unwind();
            if turn.await.is_err() {
                error!("scanning the folder of connections met a defect of this program");
                next = tokio::time::Instant::now() + EVERY;
            }
        }
    }

    /// Does the next thing that is to be done.
    async fn turn(&mut self, next: &mut tokio::time::Instant) {
        tokio::select! {
            () = self.install(), if !self.loads.is_idle() => {}
            () = tokio::time::sleep_until(*next) => {
                self.scan(Instant::now(), SCAN_TIMEOUT).await;
                *next = tokio::time::Instant::now() + EVERY;
                self.let_go();
                let connections = self.folder.loader.connections();
                self.rounds.ask(connections, &self.states, &self.metrics);
            }
        }
    }

    /// Drops idle drivers, on its own thread because their sessions are closed.
    pub(super) fn let_go(&mut self) {
        let Keep::For(idle) = self.folder.keep else {
            return;
        };
        if let Some(before) = &mut self.letting_go
            && before.try_recv() == Err(tokio::sync::oneshot::error::TryRecvError::Empty)
        {
            return;
        }
        let connections = self.folder.loader.connections().all();
        let (states, metrics) = (self.states.clone(), self.metrics.clone());
        let now = tokio::time::Instant::now();
        let gone = own_thread::spawn(move || {
            let mut gone = 0;
            for lazy in connections.iter().filter(|lazy| lazy.let_go_at(now, idle)) {
                gone += 1;
                states.rest(lazy.name());
                metrics.connection_unasked(lazy.name().text());
            }
            if gone > 0 {
                info!("dropped {gone} idle drivers");
            }
        });
        self.letting_go = gone.ok();
    }
}

/// A change is found by the second scan after the one that it came too late for.
const _: () = assert!(
    3 * SCAN_TIMEOUT.as_millis() + 2 * EVERY.as_millis() < 1000,
    "it is served within a second"
);
