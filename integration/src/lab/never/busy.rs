//! A volume in use is never said to be gone.

use std::fs::File;

use tonic::Code;

use crate::lab::calls::{Node, refused, until_done};
use crate::lab::content;
use crate::lab::fixture::{Access, ExportKind};
use crate::lab::leftovers::Leftovers;
use crate::lab::life::{LENGTH, read, step, write};

/// A file is open below the target and below the staging path.
///
/// # Panics
/// If unpublish or unstage succeeds while the file is open, or fails afterwards.
pub async fn a_busy_volume_is_not_taken_away(export_kind: ExportKind, access: Access) {
    let fixture = export_kind.fixture("busy", access);
    let before = Leftovers::read();
    let node = Node::start().await;
    let pod = node.pod("busy");
    node.stage(&fixture).await.expect("staged");
    node.publish(&fixture, &pod).await.expect("published");
    write(&fixture, &pod, &content::bytes(1, LENGTH));
    let codes = [Code::FailedPrecondition, Code::Unavailable];

    step("a file is open in the pod");
    let held = File::open(pod.join("content")).expect("the file is there");
    refused(
        node.unpublish(&fixture, &pod).await,
        &codes,
        "a busy target",
    );
    let found = read(&fixture, &pod);
    content::same(&content::bytes(1, LENGTH), &found, "the busy target");
    drop(held);
    until_done("unpublish", || node.unpublish(&fixture, &pod)).await;

    step("a file is open below the staging path");
    let held = File::open(node.staging(&fixture).join("content")).expect("the file is there");
    refused(node.unstage(&fixture).await, &codes, "a busy staging path");
    let found = read(&fixture, &node.staging(&fixture));
    content::same(&content::bytes(1, LENGTH), &found, "the busy staging path");
    drop(held);
    until_done("unstage", || node.unstage(&fixture)).await;
    Leftovers::back_to(&before, "the busy volume").await;
    node.end().await;
}
