//! A volume is removed during an outage of its storage: no call hangs, no other volume waits, and no
//! stored byte is lost.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use tokio::time::timeout;

use super::Kind;
use super::absence::port;
use super::outage::verify_stored;
use super::writer::Writer;
use crate::lab::calls::Node;
use crate::lab::content;
use crate::lab::fixture::Fixture;
use crate::lab::leftovers::Leftovers;
use crate::lab::life::{self, LENGTH, step};
use crate::lab::storage::cut::Cut;

/// The time limit of a volume of another kind from stage to unstage during the outage. Alone it takes
/// a few seconds on the machine of the lab.
const OTHERS: Duration = Duration::from_mins(1);
const BATCHES: usize = 20;
/// The file that the pod wrote last, without a sync.
const LAST: &str = "last";

/// Unpublish and unstage of a volume whose network is cut end, and finish once it is mended; a
/// volume over another network works during the outage.
///
/// # Panics
/// If a call hangs, the other volume has to wait, bytes are lost or anything is left.
pub async fn a_volume_is_removed_during_an_outage(kind: Kind) {
    let fixture = kind.fixture("disconnect");
    let other = kind.other().fixture("other");
    let before = Leftovers::read();
    let node = Node::start().await;
    let pod = node.pod("writer");
    node.stage(&fixture).await.expect("staged");
    node.publish(&fixture, &pod).await.expect("published");
    let writer = Writer::start(&pod, 12);
    let first = writer.goes_on(Instant::now(), BATCHES, OTHERS).await;
    first.expect("the writer writes");
    let written = writer.end().await;

    if fixture.is_device() {
        leave_unsynced(&pod);
    }
    step("the network is cut");
    let cut = Cut::ports(&[port(&fixture)]);
    let ((), life) = tokio::join!(
        try_to_take_away(&node, &fixture, &pod),
        timeout(OTHERS, live(&node, &other)),
    );
    life.expect("the other volume was held up");

    step("the network is mended");
    let mended = Instant::now();
    cut.mend();
    node.take_away(&fixture, &[&pod]).await;
    step(&format!(
        "MEASURED taken away {:.1} s after the network was mended",
        mended.elapsed().as_secs_f64()
    ));
    assert!(!pod.exists(), "the target is gone");
    Leftovers::back_to(&before, "the removal during an outage").await;
    node.end().await;
    fixture.remove();
    verify_stored(&written, &fixture);
    if fixture.is_device() {
        let stored = fixture.stored(LAST);
        content::same(&content::bytes(3, LENGTH), &stored, "what was written last");
    }
}

/// Bytes in the node's memory alone: an unstage that succeeds has brought them to the storage.
fn leave_unsynced(pod: &Path) {
    let mut file = File::create(pod.join(LAST)).expect("a file");
    file.write_all(&content::bytes(3, LENGTH)).expect("memory");
}

/// As an orchestrator does, again and again; only that each call ends is asserted, by the calls.
async fn try_to_take_away(node: &Node, fixture: &Fixture, pod: &Path) {
    for _ in 0..2 {
        let asked = Instant::now();
        let unpublished = node.unpublish(fixture, pod).await;
        let between = asked.elapsed();
        let asked = Instant::now();
        let unstaged = node.unstage(fixture).await;
        let say = |result: Result<(), tonic::Status>| {
            result.map_or_else(|status| status.code().to_string(), |()| "done".to_owned())
        };
        step(&format!(
            "MEASURED during the outage unpublish: {} in {:.1} s; unstage: {} in {:.1} s",
            say(unpublished),
            between.as_secs_f64(),
            say(unstaged),
            asked.elapsed().as_secs_f64(),
        ));
    }
}

/// A short life of a volume.
async fn live(node: &Node, fixture: &Fixture) {
    let start = Instant::now();
    let pod = node.pod("other");
    node.stage(fixture).await.expect("staged");
    node.publish(fixture, &pod).await.expect("published");
    life::write(fixture, &pod, &content::bytes(2, LENGTH));
    node.stats(fixture, &pod).await.expect("statistics");
    let found = life::read(fixture, &pod);
    content::same(&content::bytes(2, LENGTH), &found, "the other");
    node.unpublish(fixture, &pod).await.expect("unpublished");
    node.unstage(fixture).await.expect("unstaged");
    step(&format!(
        "MEASURED a whole life of another volume during the outage: {:.1} s",
        start.elapsed().as_secs_f64()
    ));
}
