//! Many callers at once.

use std::collections::BTreeSet;
use std::future::Future;
use std::slice;
use std::sync::Arc;

use csi_proto::v1 as csi;
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tonic::Code;

use super::Target;
use super::world::{Outcome, World, code};
use crate::client::Client;
use crate::requirement;
use crate::volume;

const CALLERS: usize = 64;
const ROUNDS: usize = 5;

/// Starts a call from each of the callers at the same moment, each on its own connection.
pub(super) async fn at_once<T, F, C>(world: &World<'_>, call: C) -> Vec<Outcome<T>>
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
pub(super) fn only<T>(outcomes: &[Outcome<T>], codes: &[Code], what: &str) {
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
        "{what}: no call succeeded: {got:?}"
    );
}

/// What those got whose call ended with OK.
fn winners<T, W>(outcomes: Vec<Outcome<T>>, what: impl Fn(T) -> Option<W>) -> Vec<W> {
    let replies = outcomes.into_iter().flatten();
    replies
        .filter_map(|reply| what(reply.into_inner()))
        .collect()
}

/// One volume, whose id all winners get; the others get `ABORTED`.
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
        let made = winners(outcomes, |reply| reply.volume);
        let ids: BTreeSet<_> = made.into_iter().map(|volume| volume.volume_id).collect();
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

/// All winners asked for the same; the others get `ALREADY_EXISTS` or `ABORTED`.
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
        let made = winners(outcomes, |reply| reply.volume);
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
        let made = winners(outcomes, |reply| reply.snapshot);
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
            let request = world.stage(&made, &staging);
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
