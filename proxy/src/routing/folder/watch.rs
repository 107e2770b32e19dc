//! The task that keeps connections as their files are.

use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use tokio_util::task::AbortOnDropHandle;
use tracing::{error, info, warn};

use super::health::Rounds;
use super::loads::{self, Loads};
use super::settings::Keep;
use super::states::States;
use super::{Folder, own_thread};
use crate::telemetry::metrics::Metrics;

/// The time between two looks. A change has to be served within a second, and two looks have to find
/// the same.
const EVERY: Duration = Duration::from_millis(250);
/// So many more looks are taken at the start while there is something new.
const MORE_LOOKS: usize = 4;
/// So long one look waits for a folder.
const PATIENCE: Duration = Duration::from_millis(150);

/// A folder that is served.
#[derive(Debug)]
pub struct Watch {
    folder: Folder,
    loads: Loads,
    rounds: Rounds,
    states: States,
    metrics: Metrics,
    /// Of what is being let go, until all is.
    letting_go: Option<tokio::sync::oneshot::Receiver<()>>,
    /// Files were found that the next look will tell.
    more: bool,
}

// === impl Watch ===

impl Watch {
    /// Watches `folder`; what is found out goes into `states` and `metrics`. Nothing is served yet.
    pub fn new(folder: Folder, states: &States, metrics: &Metrics) -> Self {
        Self {
            folder,
            loads: Loads::default(),
            rounds: Rounds::default(),
            states: states.clone(),
            metrics: metrics.clone(),
            letting_go: None,
            more: false,
        }
    }

    /// The same, which also measures what lies on the storage of each connection if that is wanted.
    #[must_use]
    pub fn measuring(mut self, measure: bool) -> Self {
        self.rounds = self.rounds.measuring(measure);
        self
    }

    /// Serves what is there already. A folder, or a file, that hangs is waited for no longer than
    /// this; whoever asks for what it has is told so.
    pub async fn first(&mut self) {
        self.look(Instant::now(), loads::PATIENCE).await;
        // What was written just now may not be whole yet; what does not come to rest is served later.
        for _ in 0..MORE_LOOKS {
            if !self.more {
                break;
            }
            tokio::time::sleep(EVERY).await;
            self.look(Instant::now(), loads::PATIENCE).await;
        }
        self.say_what_is_missing();
        self.settle(2 * loads::PATIENCE).await;
    }

    /// What is named and has no file may be misspelt; or its file comes later.
    fn say_what_is_missing(&self) {
        let loader = &self.folder.loader;
        let connections = loader.connections();
        // Where not all are known it may be there.
        if connections.unknown().is_some() {
            return;
        }
        let table = connections.table();
        let missing = loader.missing(|name| table.contains_key(name));
        let told = missing.iter().map(|(key, name)| format!("{key}: {name}"));
        let told: Vec<_> = told.collect();
        if !told.is_empty() {
            warn!(key = told.join(", "), "no file is called as these keys say");
        }
    }

    /// Serves what has been found, as far as it is made in time.
    pub(crate) async fn settle(&mut self, patience: Duration) {
        let begun = Instant::now();
        while self.loads.is_busy() && begun.elapsed() < patience {
            // Woken now and then, to see which are late.
            drop(tokio::time::timeout(EVERY, self.install()).await);
            self.begin_loads(Instant::now());
        }
    }

    /// Looks for what has changed, and begins to make connections of it.
    pub(crate) async fn look(&mut self, now: Instant, patience: Duration) {
        let look = self.folder.folders.look(now, patience).await;
        for odd in &look.odd {
            warn!("the folder of connections: {odd}");
        }
        let loader = &self.folder.loader;
        let connections = loader.connections();
        for name in &look.never {
            connections.forget(name);
        }
        // Before anybody hears that all are known: those that are not served yet are known, too.
        let changed = look.changed.iter().map(|changed| &changed.name);
        connections.are_being_read(look.found.iter().chain(changed));
        connections.set_incomplete(look.unknown);
        self.more = !look.found.is_empty();
        self.metrics.folders_unread(look.unread);
        for name in look.gone {
            self.loads.drop(&name);
            loader.remove(&name, &self.states, &self.metrics);
        }
        for changed in look.changed {
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
            folders.tell_again(name);
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
                error!("looking at the folder of connections met a defect of this program");
                next = tokio::time::Instant::now() + EVERY;
            }
        }
    }

    /// Does the next thing that is to be done.
    async fn turn(&mut self, next: &mut tokio::time::Instant) {
        tokio::select! {
            () = self.install(), if !self.loads.is_idle() => {}
            () = tokio::time::sleep_until(*next) => {
                self.look(Instant::now(), PATIENCE).await;
                *next = tokio::time::Instant::now() + EVERY;
                self.let_go();
                let connections = self.folder.loader.connections();
                self.rounds.ask(connections, &self.states, &self.metrics);
            }
        }
    }

    /// Lets drivers go that nobody uses: on a thread of its own, because sessions are closed.
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
                info!("let go {gone} drivers that nobody used");
            }
        });
        self.letting_go = gone.ok();
    }
}

/// A change is found by the second look after the one that it came too late for.
const _: () = assert!(
    3 * PATIENCE.as_millis() + 2 * EVERY.as_millis() < 1000,
    "it is served within a second"
);
