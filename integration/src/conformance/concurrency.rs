//! Many callers at once, and callers that go away.

use std::collections::BTreeSet;
use std::fs;
use std::future::Future;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use csi_proto::v1 as csi;
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tonic::{Code, Request};

use super::Target;
use super::world::{Outcome, World, code};
use crate::client::Client;
use crate::requirement;
use crate::tree::Tree;
use crate::volume;
use crate::wait;

const CALLERS: usize = 64;
const ROUNDS: usize = 5;

/// Starts a call from each of the callers at the same moment, each on its own connection.
async fn at_once<T, F, C>(world: &World<'_>, call: C) -> Vec<Outcome<T>>
where
    T: Send + 'static,
    F: Future<Output = Outcome<T>> + Send + 'static,
    C: Fn(Client, usize) -> F,
{
    let barrier = Arc::new(Barrier::new(CALLERS));
    let mut callers = JoinSet::new();
    for n in 0..CALLERS {
        let client = Client::connect(&world.place.socket())
            .await
            .expect("a connection");
        let (barrier, call) = (Arc::clone(&barrier), call(client, n));
        callers.spawn(async move {
            barrier.wait().await;
            call.await
        });
    }
    callers.join_all().await
}

/// Asserts that all ended with one of `codes`, and at least one with OK unless all may fail.
fn only<T>(outcomes: &[Outcome<T>], codes: &[Code], what: &str) {
    let got: BTreeSet<_> = outcomes
        .iter()
        .map(|outcome| format!("{:?}", code(outcome)))
        .collect();
    for outcome in outcomes {
        assert!(
            codes.contains(&code(outcome)),
            "{what}: expected {codes:?}, got {got:?}"
        );
    }
    assert!(
        outcomes.iter().any(Result::is_ok),
        "{what}: nobody won: {got:?}"
    );
}

/// One volume, whose id all winners get; the others are told that it is being made.
pub async fn sixty_four_equal_callers_make_one_volume(target: &dyn Target) {
    let world = World::start(target).await;
    for round in 0..ROUNDS {
        let request = world.create(&format!("equal-{round}"));
        let outcomes = at_once(&world, |mut client, _| {
            let request = request.clone();
            async move { client.controller.create_volume(request).await }
        })
        .await;
        only(&outcomes, &[Code::Ok, Code::Aborted], "equal callers");
        let made = outcomes
            .into_iter()
            .flatten()
            .filter_map(|reply| reply.into_inner().volume);
        let ids: BTreeSet<_> = made.map(|volume| volume.volume_id).collect();
        assert_eq!(ids.len(), 1, "{ids:?}");
        assert_eq!(
            world.volume_ids().await,
            ids.iter().cloned().collect::<Vec<_>>()
        );
        let id = ids.into_iter().next().expect("one");
        let outcomes = at_once(&world, |mut client, _| {
            let request = volume::delete(&id);
            async move { client.controller.delete_volume(request).await }
        })
        .await;
        only(&outcomes, &[Code::Ok, Code::Aborted], "equal deletions");
        world.is_empty("equal deletions");
    }
    world.end().await;
}

/// All winners asked for the same; the others conflict or are told to wait.
pub async fn sixty_four_conflicting_callers_make_one_volume(target: &dyn Target) {
    let world = World::start(target).await;
    for round in 0..ROUNDS {
        let template = world.create(&format!("conflict-{round}"));
        let outcomes = at_once(&world, |mut client, n| {
            let bytes = volume::SIZE * (1 + i64::try_from(n).expect("small"));
            let request = csi::CreateVolumeRequest {
                capacity_range: Some(csi::CapacityRange {
                    required_bytes: bytes,
                    limit_bytes: bytes,
                }),
                ..template.clone()
            };
            async move { client.controller.create_volume(request).await }
        })
        .await;
        only(
            &outcomes,
            &[Code::Ok, Code::Aborted, Code::AlreadyExists],
            "conflicting callers",
        );
        let made = outcomes
            .into_iter()
            .flatten()
            .filter_map(|reply| reply.into_inner().volume);
        let made: Vec<_> = made.collect();
        let sizes: BTreeSet<_> = made.iter().map(|volume| volume.capacity_bytes).collect();
        assert_eq!(sizes.len(), 1, "winners of different sizes: {sizes:?}");
        assert_eq!(world.volume_ids().await, [made[0].volume_id.clone()]);
        world.remove(&made[0].volume_id).await;
    }
    world.end().await;
}

/// Half of them for one source, half for another: the name belongs to one of them.
pub async fn sixty_four_callers_make_one_snapshot(target: &dyn Target) {
    let world = World::start(target).await;
    let sources = [world.volume("one").await, world.volume("two").await];
    for round in 0..ROUNDS {
        let name = format!("cut-{round}");
        let outcomes = at_once(&world, |mut client, n| {
            let request = world.snapshot(&name, &sources[n % 2].volume_id);
            async move { client.controller.create_snapshot(request).await }
        })
        .await;
        only(
            &outcomes,
            &[Code::Ok, Code::Aborted, Code::AlreadyExists],
            "callers for a snapshot",
        );
        let made = outcomes
            .into_iter()
            .flatten()
            .filter_map(|reply| reply.into_inner().snapshot);
        let made: Vec<_> = made.collect();
        assert!(
            made.iter().all(|cut| *cut == made[0]),
            "different snapshots: {made:?}"
        );
        assert_eq!(world.snapshot_ids().await, [made[0].snapshot_id.clone()]);
        world.remove_snapshot(&made[0].snapshot_id).await;
    }
    for source in sources {
        world.remove(&source.volume_id).await;
    }
    world.end().await;
}

/// One mount, however many ask; none, however many ask for its end.
pub async fn sixty_four_callers_publish_once(target: &dyn Target) {
    if !requirement::root("many callers publishing") {
        return;
    }
    let world = World::start(target).await;
    let made = world.volume("made").await;
    let pod = world.mount(&made).await;
    let mounts = world.place.mounts();
    world.unmount(&made).await;
    let staging = world.staging(&made);
    for _ in 0..ROUNDS {
        let outcomes = at_once(&world, |mut client, _| {
            let request = volume::stage(&made, &staging);
            async move { client.node.node_stage_volume(request).await }
        })
        .await;
        only(&outcomes, &[Code::Ok, Code::Aborted], "staging");
        let outcomes = at_once(&world, |mut client, _| {
            let request = volume::publish(&made, &staging, &pod);
            async move { client.node.node_publish_volume(request).await }
        })
        .await;
        only(&outcomes, &[Code::Ok, Code::Aborted], "publishing");
        assert_eq!(
            world.place.mounts(),
            mounts,
            "as many mounts as one caller makes"
        );
        let outcomes = at_once(&world, |mut client, _| {
            let request = volume::unpublish(&made, &pod);
            async move { client.node.node_unpublish_volume(request).await }
        })
        .await;
        only(&outcomes, &[Code::Ok, Code::Aborted], "unpublishing");
        assert!(!pod.exists());
        world.unmount(&made).await;
        assert!(world.place.mounts().is_empty());
    }
    world.remove(&made.volume_id).await;
    world.end().await;
}

/// Half create, half delete: afterwards a retry of either has its way, and no half is left.
pub async fn creating_and_deleting_at_once_leaves_one_or_none(target: &dyn Target) {
    let world = World::start(target).await;
    let id = world.volume("both").await.volume_id;
    for _ in 0..ROUNDS {
        let create = world.create("both");
        let outcomes = at_once(&world, |mut client, n| {
            let (create, delete) = (create.clone(), volume::delete(&id));
            async move {
                if n % 2 == 0 {
                    client
                        .controller
                        .create_volume(create)
                        .await
                        .map(|reply| reply.map(drop))
                } else {
                    client
                        .controller
                        .delete_volume(delete)
                        .await
                        .map(|reply| reply.map(drop))
                }
            }
        })
        .await;
        only(
            &outcomes,
            &[Code::Ok, Code::Aborted],
            "creating and deleting",
        );
        assert_eq!(world.volume("both").await.volume_id, id);
        assert_eq!(world.volume_ids().await, slice::from_ref(&id));
        world.remove(&id).await;
        world.is_empty("creating and deleting");
    }
    world.end().await;
}

/// Enough files that a copy takes a while, without filling a disk.
async fn large_volume(world: &World<'_>) -> (csi::Volume, Tree) {
    let source = world.volume("large").await;
    let pod = world.mount(&source).await;
    for folder in 0..30 {
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

/// Asks for a volume until nobody else is at it: the question whether it is being made holds it
/// for a moment, too.
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

/// Waits until a volume is being made, and says whether it still was when another call came. The
/// question is a call that changes nothing, whatever comes first.
async fn in_progress(world: &World<'_>, id: &str, over: impl Fn() -> bool) -> bool {
    let deadline = Instant::now() + wait::PATIENCE;
    loop {
        let request = volume::expand(id, 1);
        let outcome = world
            .client
            .clone()
            .controller
            .controller_expand_volume(request)
            .await;
        match code(&outcome) {
            Code::Aborted => return true,
            Code::Ok => return false,
            Code::NotFound if over() => return false,
            Code::NotFound => assert!(Instant::now() < deadline, "it is never made"),
            other => panic!("while it is being made: {other:?}"),
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

/// `DeleteVolume` of the source during a copy: refused, or done after it; the copy is whole.
pub async fn a_source_that_is_being_copied_is_not_deleted(target: &dyn Target) {
    if !requirement::root("deleting a source during its copy") {
        return;
    }
    let world = World::start(target).await;
    let (source, tree) = large_volume(&world).await;
    let (request, id) = a_copy(&world, &source).await;
    let mut client = Client::connect(&world.place.socket())
        .await
        .expect("a connection");
    let copying = tokio::spawn({
        let request = request.clone();
        async move { insist(&mut client, request).await }
    });
    let busy = in_progress(&world, &id, || copying.is_finished()).await;
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
    assert!(
        busy,
        "the copy was over before anything could be tested: make it larger"
    );
    let copy = copying.await.expect("a call").expect("a copy").into_inner();
    same_content(&world, &copy.volume.clone().expect("a volume"), &tree).await;
    world
        .remove(&copy.volume.expect("a volume").volume_id)
        .await;
    world.remove(&source.volume_id).await;
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
    // On a busy machine a copy may be over before its client can leave: then there is another.
    let mut copies = 0;
    while !left_in_the_middle(&world, &request, &id).await {
        copies += 1;
        assert!(copies < 20, "every copy was over before its client left");
        world.remove(&id).await;
    }
    let deadline = Instant::now() + wait::PATIENCE;
    while world.volume_ids().await.len() < 2 {
        assert!(Instant::now() < deadline, "the work was thrown away");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let copy = world.make(request).await;
    same_content(&world, &copy, &tree).await;
    world.remove(&copy.volume_id).await;
    world.remove(&source.volume_id).await;
    world.end().await;
}

/// Asks for a copy and disconnects while it is being made; `false` if it was over before that.
async fn left_in_the_middle(
    world: &World<'_>,
    request: &csi::CreateVolumeRequest,
    id: &str,
) -> bool {
    let mut client = Client::connect(&world.place.socket())
        .await
        .expect("a connection");
    let request = request.clone();
    let copying = tokio::spawn(async move { insist(&mut client, request).await });
    let under_way = in_progress(world, id, || copying.is_finished()).await;
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
    let mut request = Request::new(wanted.clone());
    request.set_timeout(Duration::from_millis(5));
    let outcome = world.client.clone().controller.create_volume(request).await;
    let late = [Code::DeadlineExceeded, Code::Cancelled];
    assert!(
        late.contains(&code(&outcome)),
        "5 ms were enough, or: {outcome:?}"
    );
    while in_progress(&world, &id, || false).await {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let copy = world.make(wanted).await;
    same_content(&world, &copy, &tree).await;
    world.remove(&copy.volume_id).await;
    world.remove(&source.volume_id).await;
    world.end().await;
}
