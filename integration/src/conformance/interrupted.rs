//! Callers that go away, and others that come, while a copy is being made.
//!
//! How long a copy takes is up to the machine: a check that comes too late for one tries another.

use std::fs;
use std::path::Path;
use std::time::Duration;

use csi_proto::v1 as csi;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tonic::{Code, Request};

use super::Target;
use super::world::{Outcome, World, code};
use crate::client::Client;
use crate::requirement;
use crate::tree::Tree;
use crate::volume;
use crate::wait;

/// The number of copies that may be over before their check could begin.
const ATTEMPTS: usize = 20;

/// Enough files that a copy takes a while, without filling a disk.
async fn large_volume(world: &World<'_>) -> (csi::Volume, Tree) {
    let source = world.volume("large").await;
    let pod = world.mount(&source).await;
    for folder in 0..world.target.folders_of_a_large_volume() {
        let folder = pod.join(format!("folder-{folder}"));
        fs::create_dir(&folder).expect("a folder");
        for file in 0..100 {
            fs::write(folder.join(format!("{file}")), vec![b'x'; 4096]).expect("a file");
        }
    }
    let tree = Tree::read_content(&pod);
    world.unmount(&source).await;
    (source, tree)
}

/// Asks for a volume until no other call works on it. The check whether it is being made also holds it
/// for a moment.
pub async fn insist(
    client: &mut Client,
    request: csi::CreateVolumeRequest,
) -> Outcome<csi::CreateVolumeResponse> {
    loop {
        let outcome = client.controller.create_volume(request.clone()).await;
        if code(&outcome) != Code::Aborted {
            return outcome;
        }
    }
}

/// The result of [`insist`].
async fn the_volume(world: &World<'_>, request: csi::CreateVolumeRequest) -> csi::Volume {
    let made = insist(&mut world.client.clone(), request).await;
    let made = made.expect("a copy").into_inner().volume;
    made.expect("a volume")
}

/// What a call answers that changes nothing, whatever comes first: `ABORTED` while the volume is being
/// made, `NOT_FOUND` before, OK afterwards. A volume is mounted at `path`.
async fn state(world: &World<'_>, id: &str, path: &Path) -> Code {
    let outcome = world.expand(volume::expand(id, 1), path).await;
    match code(&outcome) {
        known @ (Code::Aborted | Code::NotFound | Code::Ok) => known,
        other => panic!("while it is being made: {other:?}"),
    }
}

/// Waits until a volume is being made, and says whether it still was when another call came.
async fn in_progress(world: &World<'_>, id: &str, path: &Path, over: impl Fn() -> bool) -> bool {
    let deadline = Instant::now() + wait::PATIENCE;
    loop {
        match state(world, id, path).await {
            Code::Aborted => return true,
            Code::NotFound if over() => return false,
            Code::NotFound => assert!(Instant::now() < deadline, "it is never made"),
            _ => return false,
        }
    }
}

/// A request for a copy of `source`, and the id that it will get.
async fn a_copy(world: &World<'_>, source: &csi::Volume) -> (csi::CreateVolumeRequest, String) {
    let plain = world.volume("copy").await;
    world.remove(&plain.volume_id).await;
    let request = csi::CreateVolumeRequest {
        volume_content_source: volume::from_volume(&source.volume_id),
        ..world.create("copy")
    };
    (request, plain.volume_id)
}

async fn same_content(world: &World<'_>, volume: &csi::Volume, tree: &Tree) {
    let pod = world.mount(volume).await;
    let difference = tree.difference(&Tree::read_content(&pod));
    assert!(
        difference.is_empty(),
        "it is not a copy of its source:\n{difference}"
    );
    world.unmount(volume).await;
}

/// Asks for a copy, on a connection of its own.
async fn ask(
    world: &World<'_>,
    request: &csi::CreateVolumeRequest,
) -> JoinHandle<Outcome<csi::CreateVolumeResponse>> {
    let mut client = Client::connect(&world.place.socket())
        .await
        .expect("a connection");
    let request = request.clone();
    tokio::spawn(async move { insist(&mut client, request).await })
}

/// `DeleteVolume` of the source during a copy: refused, or done after it; the copy is whole.
pub async fn a_source_that_is_being_copied_is_not_deleted(target: &dyn Target) {
    if !requirement::root("deleting a source during its copy") {
        return;
    }
    let world = World::start(target).await;
    let (source, tree) = large_volume(&world).await;
    let (request, id) = a_copy(&world, &source).await;
    let beside = world.volume("beside").await;
    let path = world.mount(&beside).await;
    let mut copies = 0;
    let copying = loop {
        let copying = ask(&world, &request).await;
        if in_progress(&world, &id, &path, || copying.is_finished()).await {
            break copying;
        }
        copying.await.expect("a call").expect("a copy");
        copies += 1;
        assert!(copies < ATTEMPTS, "every copy was over: make it larger");
        world.remove(&id).await;
    };
    let deletion = volume::delete(&source.volume_id);
    let deleted = world
        .client
        .clone()
        .controller
        .delete_volume(deletion)
        .await;
    assert!(
        [Code::Aborted, Code::Ok].contains(&code(&deleted)),
        "{deleted:?}"
    );
    let copy = copying.await.expect("a call").expect("a copy").into_inner();
    let copy = copy.volume.expect("a volume");
    same_content(&world, &copy, &tree).await;
    world.unmount(&beside).await;
    for volume in [copy, source, beside] {
        world.remove(&volume.volume_id).await;
    }
    world.end().await;
}

/// A client that disconnects in the middle: the volume appears all the same, without a retry.
pub async fn work_goes_on_without_the_client_that_asked_for_it(target: &dyn Target) {
    if !requirement::root("disconnecting during a copy") {
        return;
    }
    let world = World::start(target).await;
    let (source, tree) = large_volume(&world).await;
    let (request, id) = a_copy(&world, &source).await;
    let beside = world.volume("beside").await;
    let path = world.mount(&beside).await;
    let mut copies = 0;
    while !left_in_the_middle(&world, &request, &id, &path).await {
        copies += 1;
        assert!(
            copies < ATTEMPTS,
            "every copy was over before its client left"
        );
        world.remove(&id).await;
    }
    let deadline = Instant::now() + wait::PATIENCE;
    while world.volume_ids().await.len() < 3 {
        assert!(Instant::now() < deadline, "the work was thrown away");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // It is listed a moment before the work on it has ended.
    let copy = the_volume(&world, request).await;
    same_content(&world, &copy, &tree).await;
    world.unmount(&beside).await;
    for volume in [copy, source, beside] {
        world.remove(&volume.volume_id).await;
    }
    world.end().await;
}

/// Asks for a copy and disconnects while it is being made; `false` if it was over before that.
async fn left_in_the_middle(
    world: &World<'_>,
    request: &csi::CreateVolumeRequest,
    id: &str,
    path: &Path,
) -> bool {
    let copying = ask(world, request).await;
    let under_way = in_progress(world, id, path, || copying.is_finished()).await;
    if under_way {
        // The task owns the only handle of its connection: this closes it.
        copying.abort();
    }
    let ended = copying.await;
    if let Ok(outcome) = &ended {
        assert_eq!(code(outcome), Code::Ok, "{outcome:?}");
    }
    ended.is_err()
}

/// A deadline that is too short: the retry gives the volume, never a part of it.
pub async fn a_call_that_timed_out_is_completed_by_its_retry(target: &dyn Target) {
    if !requirement::root("timing out during a copy") {
        return;
    }
    let world = World::start(target).await;
    let (source, tree) = large_volume(&world).await;
    let (wanted, id) = a_copy(&world, &source).await;
    let beside = world.volume("beside").await;
    let path = world.mount(&beside).await;
    let mut patience = Duration::from_millis(5);
    let mut calls = 0;
    loop {
        let mut request = Request::new(wanted.clone());
        request.set_timeout(patience);
        let outcome = world.client.clone().controller.create_volume(request).await;
        let got = code(&outcome);
        let known = [
            Code::Ok,
            Code::DeadlineExceeded,
            Code::Cancelled,
            Code::Aborted,
        ];
        assert!(known.contains(&got), "{outcome:?}");
        match state(&world, &id, &path).await {
            Code::Aborted if got != Code::Ok => break,
            // The call never got there: the time was up before it was sent.
            Code::NotFound => patience *= 2,
            // It was over in time, or soon after.
            _ => {
                world.remove(&id).await;
                patience = patience * 2 / 3;
            }
        }
        calls += 1;
        assert!(calls < ATTEMPTS, "no call timed out in the middle");
    }
    let copy = the_volume(&world, wanted).await;
    same_content(&world, &copy, &tree).await;
    world.unmount(&beside).await;
    for volume in [copy, source, beside] {
        world.remove(&volume.volume_id).await;
    }
    world.end().await;
}
