//! A number of a target that was given to another volume never passes for the first one.

use std::path::Path;

use tonic::Code;

use crate::lab::calls::{Node, refused};
use crate::lab::command::run;
use crate::lab::content;
use crate::lab::fixture::{Access, Fixture, SIZE};
use crate::lab::leftovers::Leftovers;
use crate::lab::life::{LENGTH, read, step, stored, write};
use crate::lab::storage::fabric::Fabric;
use crate::lab::storage::zfs::Zvol;

const EXT4: Access = Access::Mount("ext4");

/// Number one goes from a first volume to a second and back, while another volume of the same
/// target keeps the node connected.
///
/// # Panics
/// If one volume is mounted, formatted or written in place of the other.
pub async fn a_reused_number_is_another_volume(fabric: Fabric) {
    let exporter = fabric.exporter("reuse");
    let [first, second, other] =
        ["first", "second", "other"].map(|name| Zvol::create(&format!("reuse-{name}"), SIZE));
    exporter.give(1, &first);
    exporter.give(2, &other);
    let before = Leftovers::read();
    let mut node = Node::start().await;
    let kept = exporter.fixture("other", 2, &other, EXT4);
    node.stage(&kept).await.expect("the other is staged");
    let (one, two) = (
        exporter.fixture("first", 1, &first, EXT4),
        exporter.fixture("second", 1, &second, EXT4),
    );
    use_it(&node, &one, 1).await;

    step("the number goes to a blank volume, and the first one is asked for");
    exporter.take(1, &first);
    exporter.give(1, &second);
    refuse(&node, &one, "the blank volume in its place").await;
    let blank = second.raw(0, 8 << 20).iter().all(|byte| *byte == 0);
    assert!(blank, "the second volume was formatted as the first");
    use_it(&node, &two, 2).await;

    step("the node still has the second one's device when the number goes back");
    node.stage(&two).await.expect("staged");
    node.server.kill().await;
    run(&["umount", &node.staging(&two).display().to_string()]);
    exporter.take(1, &second);
    exporter.give(1, &first);
    node.start_again().await;
    refuse(&node, &two, "the first volume in its place").await;
    let pod = node.pod("again");
    node.stage(&one).await.expect("the first one is there");
    node.publish(&one, &pod).await.expect("published");
    content::same(&content::bytes(1, LENGTH), &read(&one, &pod), "the first");
    write(&one, &pod, &content::bytes(3, LENGTH));
    node.take_away(&one, &[&pod]).await;
    node.take_away(&two, &[]).await;
    node.take_away(&kept, &[]).await;
    Leftovers::back_to(&before, "reused numbers").await;
    node.end().await;

    step("look at the storage side");
    exporter.take(1, &first);
    content::same(&content::bytes(3, LENGTH), &stored(&one), "the first");
    content::same(&content::bytes(2, LENGTH), &stored(&two), "the second");
}

/// A volume grows after its number was given away under its mount: the growth is refused, and what
/// has the number now is left alone.
///
/// # Panics
/// If the growth succeeds, or the wrong volume changes.
pub async fn what_lost_its_number_is_not_grown(fabric: Fabric) {
    let exporter = fabric.exporter("lost");
    let [first, second] =
        ["first", "second"].map(|name| Zvol::create(&format!("lost-{name}"), SIZE));
    exporter.give(1, &first);
    let before = Leftovers::read();
    let node = Node::start().await;
    let one = exporter.fixture("first", 1, &first, EXT4);
    node.stage(&one).await.expect("staged");
    let staging = node.staging(&one);
    run(&["sync", "-f", &staging.display().to_string()]);
    step("the number goes to a larger volume");
    exporter.take(1, &first);
    second.grow(2 * SIZE);
    exporter.give(1, &second);
    let grown = node.expand(&one, &staging, 2 * SIZE).await;
    let status = grown.expect_err("what is no longer there cannot grow");
    step(&format!("refused: {}", status.message()));
    node.take_away(&one, &[]).await;
    Leftovers::back_to(&before, "the lost number").await;
    node.end().await;
}

async fn use_it(node: &Node, fixture: &Fixture, seed: u64) {
    let pod = node.pod(&fixture.volume.volume_id);
    node.stage(fixture).await.expect("staged");
    node.publish(fixture, &pod).await.expect("published");
    write(fixture, &pod, &content::bytes(seed, LENGTH));
    let pods: [&Path; 1] = [&pod];
    node.take_away(fixture, &pods).await;
}

async fn refuse(node: &Node, fixture: &Fixture, what: &str) {
    // The session may stand already, which is an effect.
    let codes = [Code::FailedPrecondition, Code::NotFound, Code::Unavailable];
    let why = refused(node.stage(fixture).await, &codes, what);
    step(&format!("refused: {why}"));
    node.unstage(fixture).await.expect("taken away");
}
