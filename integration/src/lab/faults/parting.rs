//! A volume is taken away while its storage is: no call hangs, nobody else waits, nothing stored is lost.

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
use crate::lab::life::{self, LENGTH, step};
use crate::lab::remains::Remains;
use crate::lab::storage::cut::Cut;
use crate::lab::supply::Supply;

/// What a volume of another kind may take from stage to unstage meanwhile; alone it takes a few
/// seconds on the lab's machine.
const OTHERS: Duration = Duration::from_mins(1);
const BATCHES: usize = 20;
/// What the pod wrote last, and nobody has asked to be on the storage.
const LAST: &str = "last";

/// Unpublish and unstage of a volume whose network is cut end, and finish once it is mended; a
/// volume over another network lives meanwhile.
///
/// # Panics
/// If a call hangs, the other volume has to wait, bytes are lost or anything is left.
pub async fn a_volume_is_taken_away_meanwhile(kind: Kind) {
    let supply = kind.supply("parting");
    let other = kind.other().supply("other");
    let before = Remains::read();
    let node = Node::start().await;
    let pod = node.pod("writer");
    node.stage(&supply).await.expect("staged");
    node.publish(&supply, &pod).await.expect("published");
    let writer = Writer::start(&pod, 12);
    let begun = writer.goes_on(Instant::now(), BATCHES, OTHERS).await;
    begun.expect("the writer writes");
    let written = writer.end().await;

    if supply.is_device() {
        leave_unsynced(&pod);
    }
    step("the network is cut");
    let cut = Cut::ports(&[port(&supply)]);
    let ((), life) = tokio::join!(
        try_to_take_away(&node, &supply, &pod),
        timeout(OTHERS, live(&node, &other)),
    );
    life.expect("the other volume was held up");

    step("the network is mended");
    let mended = Instant::now();
    cut.mend();
    node.take_away(&supply, &[&pod]).await;
    step(&format!(
        "MEASURED taken away {:.1} s after the network was mended",
        mended.elapsed().as_secs_f64()
    ));
    assert!(!pod.exists(), "the target is gone");
    Remains::back_to(&before, "what was taken away meanwhile").await;
    node.end().await;
    supply.withdraw();
    verify_stored(&written, &supply);
    if supply.is_device() {
        let stored = supply.stored(LAST);
        content::same(&content::bytes(3, LENGTH), &stored, "what was written last");
    }
}

/// Bytes in the node's memory alone: an unstage that succeeds has brought them to the storage.
fn leave_unsynced(pod: &Path) {
    let mut file = File::create(pod.join(LAST)).expect("a file");
    file.write_all(&content::bytes(3, LENGTH)).expect("memory");
}

/// As an orchestrator does, again and again; only that each call ends is asserted, by the calls.
async fn try_to_take_away(node: &Node, supply: &Supply, pod: &Path) {
    for _ in 0..2 {
        let asked = Instant::now();
        let unpublished = node.unpublish(supply, pod).await;
        let between = asked.elapsed();
        let asked = Instant::now();
        let unstaged = node.unstage(supply).await;
        let say = |result: Result<(), tonic::Status>| {
            result.map_or_else(|status| status.code().to_string(), |()| "done".to_owned())
        };
        step(&format!(
            "MEASURED meanwhile unpublish: {} in {:.1} s; unstage: {} in {:.1} s",
            say(unpublished),
            between.as_secs_f64(),
            say(unstaged),
            asked.elapsed().as_secs_f64(),
        ));
    }
}

/// A short life of a volume.
async fn live(node: &Node, supply: &Supply) {
    let begun = Instant::now();
    let pod = node.pod("other");
    node.stage(supply).await.expect("staged");
    node.publish(supply, &pod).await.expect("published");
    life::write(supply, &pod, &content::bytes(2, LENGTH));
    node.stats(supply, &pod).await.expect("statistics");
    let found = life::read(supply, &pod);
    content::same(&content::bytes(2, LENGTH), &found, "the other");
    node.unpublish(supply, &pod).await.expect("unpublished");
    node.unstage(supply).await.expect("unstaged");
    step(&format!(
        "MEASURED a whole life of another volume meanwhile: {:.1} s",
        begun.elapsed().as_secs_f64()
    ));
}
