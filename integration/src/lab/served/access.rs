//! Volumes that only the nodes reach to which they are published.

use std::fs;

use super::life::{delete, make, used};
use super::{Served, storage};
use crate::lab::calls::Node;
use crate::lab::command::run;
use crate::lab::content;
use crate::lab::fixture::Fixture;
use crate::lab::leftovers::Leftovers;
use crate::lab::life::{LENGTH, read, step, write};
use crate::place::Place;

/// The id of this machine's node.
const NODE: &str = "node-1";

/// Before it is published, and after it is unpublished, this machine does not get in.
///
/// # Panics
/// At whatever is wrong in it.
pub async fn of_the_published_node(served: Served) {
    let place = Place::new();
    let (variable, name) = called(served);
    let launch = served.start_on(&place).env(variable, &name);
    let node = Node::start_with(launch).await;
    let before = (Leftovers::read(), storage());
    let content = content::bytes(1, LENGTH);

    step("make");
    let volume = make(&node, served, "first", served.sizes().0, None).await;
    stays_out(&node, &volume).await;

    step("publish");
    for _ in 0..2 {
        node.attach(&volume, NODE).await.expect("published");
    }
    let pod = used(&node, &volume).await;
    write(&volume, &pod, &content);
    content::same(&content, &read(&volume, &pod), "what was written");

    step("unpublish");
    node.take_away(&volume, &[&pod]).await;
    for _ in 0..2 {
        node.detach(&volume, NODE).await.expect("unpublished");
    }
    stays_out(&node, &volume).await;

    step("publish again");
    node.attach(&volume, NODE).await.expect("published");
    let pod = used(&node, &volume).await;
    content::same(&content, &read(&volume, &pod), "what was written before");
    node.take_away(&volume, &[&pod]).await;
    node.detach(&volume, NODE).await.expect("unpublished");
    delete(&node, &volume).await;
    Leftovers::back_to(&before.0, "access of a node").await;
    assert_eq!(storage(), before.1, "the storage is as before");
    node.end().await;
}

/// The name of this machine in the export, and the variable by which the configuration gets it.
pub(super) fn called(served: Served) -> (&'static str, String) {
    if served.kind.ends_with("iscsi") {
        let file = fs::read_to_string("/etc/iscsi/initiatorname.iscsi").expect("a file of iscsid");
        let mut lines = file.lines();
        let name = lines.find_map(|line| line.strip_prefix("InitiatorName="));
        return ("LAB_NODE", name.expect("a name").to_owned());
    }
    let file = "/etc/nvme/hostnqn";
    if served.kind.ends_with("nvmeof") && fs::read_to_string(file).is_err() {
        fs::create_dir_all("/etc/nvme").expect("a folder of the lab");
        fs::write(file, run(&["nvme", "gen-hostnqn"])).expect("a file of the lab");
    }
    let name = fs::read_to_string(file).unwrap_or_default();
    ("LAB_NODE", name.trim().to_owned())
}

async fn stays_out(node: &Node, volume: &Fixture) {
    step("it stays out");
    let refused = node.stage(volume).await.expect_err("it gets in");
    step(refused.message());
    node.unstage(volume).await.expect("unstaged");
}
