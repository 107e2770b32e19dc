//! What is in use is never said to be gone.

use std::fs::File;

use tonic::Code;

use crate::lab::calls::{Node, refused, until_done};
use crate::lab::content;
use crate::lab::life::{LENGTH, read, step, write};
use crate::lab::remains::Remains;
use crate::lab::supply::{Access, Way};

/// A file is open below the target and below the staging path.
///
/// # Panics
/// If unpublish or unstage succeeds meanwhile, or does not afterwards.
pub async fn a_busy_volume_is_not_taken_away(way: Way, access: Access) {
    let supply = way.supply("busy", access);
    let before = Remains::read();
    let node = Node::start().await;
    let pod = node.pod("busy");
    node.stage(&supply).await.expect("staged");
    node.publish(&supply, &pod).await.expect("published");
    write(&supply, &pod, &content::bytes(1, LENGTH));
    let codes = [Code::FailedPrecondition, Code::Unavailable];

    step("a file is open in the pod");
    let held = File::open(pod.join("content")).expect("the file is there");
    refused(node.unpublish(&supply, &pod).await, &codes, "a busy target");
    let found = read(&supply, &pod);
    content::same(&content::bytes(1, LENGTH), &found, "the busy target");
    drop(held);
    until_done("unpublish", || node.unpublish(&supply, &pod)).await;

    step("a file is open below the staging path");
    let held = File::open(node.staging(&supply).join("content")).expect("the file is there");
    refused(node.unstage(&supply).await, &codes, "a busy staging path");
    let found = read(&supply, &node.staging(&supply));
    content::same(&content::bytes(1, LENGTH), &found, "the busy staging path");
    drop(held);
    until_done("unstage", || node.unstage(&supply)).await;
    Remains::back_to(&before, "the busy volume").await;
    node.end().await;
}
