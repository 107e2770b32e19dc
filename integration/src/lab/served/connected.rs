//! A deletion while the node is connected: of a client that detaches nothing.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use tonic::{Code, Status};

use super::life::{delete, make, used};
use super::{Served, storage};
use crate::lab::calls::{Node, timed, within};
use crate::lab::content;
use crate::lab::fixture::Fixture;
use crate::lab::leftovers::Leftovers;
use crate::lab::life::{FILE, LENGTH, read, step, write};
use crate::lab::outside;
use crate::place::Place;
use crate::volume;

/// The time that the deletion gets: more than the half minute that it waits, whatever time the client gives.
pub(super) const CALL: Duration = Duration::from_mins(1);
/// What a kernel shows that can say who is connected to nvmet.
const CONTROLLERS: &str = "/sys/kernel/debug/nvmet";

/// Whether this machine's kernel does not say who is connected to such a volume.
pub(super) fn is_unknown(served: Served) -> bool {
    served.kind.ends_with("nvmeof") && !Path::new(CONTROLLERS).exists()
}

/// Says so with the result of a cell, and what was not tried for it.
pub(super) fn note_unknown(untried: &str) {
    outside::note(&format!(
        "this kernel shows no controllers of nvmet: {untried}"
    ));
}

/// The words by which the error names this machine, which holds a file of the volume open.
pub(super) fn named(served: Served) -> &'static str {
    match served.kind.rsplit('-').next() {
        Some("nfs") => "connected is Linux NFSv4",
        Some("smb") => "connected is 127.0.0.1",
        Some("iscsi") => "connected is iqn.",
        _ => "connected is nqn.",
    }
}

/// The volume stays whole, and the error names this machine; afterwards it is deleted.
///
/// # Panics
/// At whatever is wrong in it.
pub async fn to_a_volume(served: Served) {
    let place = Place::new();
    let node = Node::start_with(served.start_on(&place)).await;
    let before = (Leftovers::read(), storage());
    let (old, new) = (content::bytes(1, LENGTH), content::bytes(2, LENGTH));

    step("make, stage, write");
    let volume = make(&node, served, "first", served.sizes().0, None).await;
    let pod = used(&node, &volume).await;
    write(&volume, &pod, &old);

    if is_unknown(served) {
        note_unknown("no deletion was tried while a node is connected");
    } else {
        step("delete while it is mounted");
        // nfsd knows of no client that has mounted a share and holds nothing in it open.
        let held = File::open(pod.join(FILE)).expect("the file is there");
        for _ in 0..2 {
            let refused = refused(&node, &volume).await;
            step(refused.message());
            assert_eq!(refused.code(), Code::FailedPrecondition);
            let named = named(served);
            assert!(refused.message().contains(named), "{}", refused.message());
        }
        content::same(&old, &read(&volume, &pod), "after the refusals");
        write(&volume, &pod, &new);
        content::same(&new, &read(&volume, &pod), "written after the refusals");
        drop(held);
    }

    step("take away, delete");
    node.take_away(&volume, &[&pod]).await;
    delete(&node, &volume).await;
    Leftovers::back_to(&before.0, "a deletion in use").await;
    assert_eq!(storage(), before.1, "the storage is as before");
    node.end().await;
}

async fn refused(node: &Node, fixture: &Fixture) -> Status {
    let request = timed(volume::delete(&fixture.volume.volume_id), CALL);
    let mut controller = node.server.client().controller;
    let reply = within("delete", controller.delete_volume(request)).await;
    reply.expect_err("the volume is taken from under the node")
}
