//! Whose storage is asked, and whose answer counts.

use driver_core::config::Document;
use driver_core::config::NoEnvironment;
use driver_core::{
    AccessRules, BackendIdentity, CreateVolume, DeleteVolume, Driver, Error, Kind, Parameters,
    Volume, VolumeId, VolumeName,
};
use tokio::sync::{Notify, mpsc};

use super::*;
use crate::routing::connections::Names;

/// Storage that answers when the test lets it.
#[derive(Debug)]
struct Slow {
    asked: mpsc::UnboundedSender<()>,
    answer: Notify,
    bad: bool,
}

#[async_trait::async_trait]
impl Driver for Slow {
    fn kind(&self) -> &'static str {
        "slow"
    }

    fn access_rules(&self) -> AccessRules {
        AccessRules::filesystem(&[])
    }

    fn backend_identity(&self) -> BackendIdentity {
        BackendIdentity("slow".to_owned())
    }

    fn name_volume(&self, _: &VolumeName, _: &Parameters) -> Result<VolumeId, Error> {
        Err(self.unsupported("name volume"))
    }

    async fn probe(&self, _: &Call) -> Vec<Error> {
        self.asked.send(()).expect("the test counts");
        self.answer.notified().await;
        let sick = self.bad.then(|| Error::new(Kind::Unreachable, "reach it"));
        sick.into_iter().collect()
    }

    fn makes_volumes(&self) -> bool {
        false
    }

    async fn create_volume(&self, _: &Call, _: &CreateVolume) -> Result<Volume, Error> {
        Err(self.unsupported("create volume"))
    }

    async fn delete_volume(&self, _: &Call, _: DeleteVolume<'_>) -> Result<(), Error> {
        Err(self.unsupported("delete volume"))
    }
}

struct Ward {
    connections: Connections,
    states: States,
    metrics: Metrics,
    rounds: Rounds,
}

impl Ward {
    fn new() -> Self {
        Self {
            connections: Connections::named(Names::default()),
            states: States::default(),
            metrics: Metrics::new(),
            rounds: Rounds::new(Duties::default()),
        }
    }

    /// Serves slow storage under that name, and tells when it is asked.
    fn put(&self, name: &str, bad: bool) -> (Arc<Slow>, mpsc::UnboundedReceiver<()>) {
        let (asked, asks) = mpsc::unbounded_channel();
        let answer = Notify::new();
        let driver = Arc::new(Slow { asked, answer, bad });
        let document = Document::parse("driver: slow", &NoEnvironment).expect("yaml");
        let connection = Connection::among(parse(name), driver.clone(), &document);
        self.connections.put(LazyConnection::fixed(connection));
        self.states.ask_anew(&parse(name));
        (driver, asks)
    }

    fn ask(&mut self) {
        self.rounds
            .ask(&self.connections, &self.states, &self.metrics);
    }

    /// Waits until so much is known.
    async fn known(&self, good: usize, bad: usize) {
        loop {
            let found = self.states.summary(&self.connections, 100);
            if (found.good, found.bad.len()) == (good, bad) {
                return;
            }
            tokio::task::yield_now().await;
        }
    }

    fn series(&self) -> String {
        let page = self.metrics.encode().expect("text");
        let lines = page
            .lines()
            .filter(|line| line.starts_with("omnibus_csi_connection_healthy{"));
        lines.collect()
    }
}

fn parse(name: &str) -> ConnectionName {
    ConnectionName::parse(name).expect("a name")
}

#[tokio::test]
async fn the_answer_of_a_storage_that_was_replaced_is_ignored() {
    let mut ward = Ward::new();
    let (old, mut asks) = ward.put("a", true);
    ward.ask();
    asks.recv().await.expect("it is asked");
    let (new, mut asks) = ward.put("a", false);
    ward.ask();
    asks.recv().await.expect("the new one is asked at once");
    new.answer.notify_one();
    ward.known(1, 0).await;
    let served = Arc::downgrade(&old);
    old.answer.notify_one();
    drop(old);
    while served.strong_count() > 0 {
        tokio::task::yield_now().await;
    }
    ward.known(1, 0).await;
    assert!(ward.series().ends_with("} 1"), "{}", ward.series());
}

#[tokio::test]
async fn the_answer_of_storage_that_was_removed_brings_nothing_back() {
    let mut ward = Ward::new();
    let (old, mut asks) = ward.put("a", true);
    ward.ask();
    asks.recv().await.expect("it is asked");
    ward.connections.remove(&parse("a"));
    ward.states.forget(&parse("a"));
    let served = Arc::downgrade(&old);
    old.answer.notify_one();
    drop(old);
    while served.strong_count() > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(ward.series(), "");
}

#[tokio::test(start_paused = true)]
async fn those_that_hang_are_asked_once_and_give_up_their_turns() {
    let mut ward = Ward::new();
    let mut hung: Vec<_> = (0..AT_ONCE)
        .map(|n| ward.put(&format!("a{n:02}"), false))
        .collect();
    let (well, mut asks) = ward.put("z", false);
    ward.ask();
    for (_, asks) in &mut hung {
        asks.recv().await.expect("asked");
    }
    ward.ask();
    assert!(asks.try_recv().is_err(), "there is no permit");
    tokio::time::advance(PROBE_TIMEOUT).await;
    ward.known(0, AT_ONCE).await;
    // As many turns as there are have passed, and the last is asked although others are before it.
    while asks.try_recv().is_err() {
        ward.ask();
        tokio::task::yield_now().await;
    }
    well.answer.notify_one();
    ward.known(1, AT_ONCE).await;
    for _ in 0..5 {
        tokio::time::advance(EVERY).await;
        while asks.try_recv().is_err() {
            ward.ask();
            tokio::task::yield_now().await;
        }
        well.answer.notify_one();
    }
    let again = hung.iter_mut().filter_map(|(_, asks)| asks.try_recv().ok());
    assert_eq!(again.count(), 0, "a question that hangs is asked once");
}

#[tokio::test]
async fn a_connection_whose_file_cannot_be_used_is_not_well() {
    let ward = Ward::new();
    ward.connections
        .put(LazyConnection::refused(parse("a"), "why"));
    let (_unasked, _asks) = ward.put("b", false);
    let found = ward.states.summary(&ward.connections, 100);
    assert_eq!((found.all, found.good), (2, 0));
    assert_eq!(found.bad, [parse("a")]);
}

#[tokio::test(start_paused = true)]
async fn bad_storage_is_asked_often_by_a_process_that_restores_exports_and_by_no_other() {
    for (restores, asked) in [(true, true), (false, false)] {
        let mut ward = Ward::new();
        let duties = Duties {
            restores,
            ..Duties::default()
        };
        ward.rounds = Rounds::new(duties);
        let (bad, mut asks) = ward.put("a", true);
        ward.ask();
        asks.recv().await.expect("it is asked");
        bad.answer.notify_one();
        ward.known(0, 1).await;
        tokio::time::advance(EVERY_WHILE_BAD).await;
        ward.ask();
        tokio::task::yield_now().await;
        assert_eq!(asks.try_recv().is_ok(), asked, "restores: {restores}");
    }
}
