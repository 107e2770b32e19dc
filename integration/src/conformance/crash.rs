//! Killed at every step: afterwards the same call completes the work, and the opposite call
//! removes it; neither leaves anything, and nothing half-done ever looks done.

mod judge;
mod stage;

use std::collections::BTreeSet;
use std::path::Path;
use std::slice;

use csi_proto::v1 as csi;

use super::Target;
use super::trace::{StopPoint, Tracer};
use super::world::World;
use crate::requirement;
use crate::tree::Tree;

/// The number of times that a stop point is tried before it counts as out of reach: another thread may have done
/// the work that this one did in the undisturbed run.
const ATTEMPTS: usize = 20;

/// What is done when the server is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Deed {
    Create,
    Restore,
    Clone,
    Snapshot,
    Delete,
    DeleteSnapshot,
    Expand,
    Mount,
    Unmount,
}

/// What is done after the server was killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    Again,
    Opposite,
}

/// The state from which a deed starts: a source with content and a snapshot of it, and the object
/// of the deed with its id.
struct Stage {
    source: csi::Volume,
    content: Tree,
    cut: csi::Snapshot,
    object: Option<csi::Volume>,
    second_cut: Option<csi::Snapshot>,
}

/// `CreateVolume`.
pub async fn a_volume_killed_at_any_step_is_completed_or_removed(target: &dyn Target) {
    at_every_step(target, Deed::Create).await;
}

/// `CreateVolume` from a snapshot.
pub async fn a_restored_volume_killed_at_any_step_is_completed_or_removed(target: &dyn Target) {
    at_every_step(target, Deed::Restore).await;
}

/// `CreateVolume` from a volume.
pub async fn a_cloned_volume_killed_at_any_step_is_completed_or_removed(target: &dyn Target) {
    at_every_step(target, Deed::Clone).await;
}

/// `CreateSnapshot`.
pub async fn a_snapshot_killed_at_any_step_is_completed_or_removed(target: &dyn Target) {
    at_every_step(target, Deed::Snapshot).await;
}

/// `DeleteVolume`.
pub async fn a_deletion_killed_at_any_step_is_completed(target: &dyn Target) {
    at_every_step(target, Deed::Delete).await;
}

/// `DeleteSnapshot`.
pub async fn a_snapshot_deletion_killed_at_any_step_is_completed(target: &dyn Target) {
    at_every_step(target, Deed::DeleteSnapshot).await;
}

/// `ControllerExpandVolume`.
pub async fn an_expansion_killed_at_any_step_is_completed(target: &dyn Target) {
    at_every_step(target, Deed::Expand).await;
}

/// The four calls of the node that mount and unmount.
pub async fn staging_and_publishing_killed_at_any_step_are_completed_or_undone(
    target: &dyn Target,
) {
    at_every_step(target, Deed::Mount).await;
    at_every_step(target, Deed::Unmount).await;
}

/// Volumes, snapshots and mounts are there after a crash, with nothing done to find them again.
pub async fn everything_survives_a_kill_at_rest(target: &dyn Target) {
    if !requirement::root("a kill at rest") {
        return;
    }
    let mut world = World::start(target).await;
    let stage = Stage::set(&world, Deed::Unmount).await;
    let before = world.backend();
    let mounts = world.place.mounts();
    world.crash().await;
    world.unchanged(&before, "a crash");
    assert_eq!(
        world.place.mounts(),
        mounts,
        "a new server touches no mount"
    );
    assert_eq!(world.volume_ids().await.len(), 2);
    assert_eq!(
        world.snapshot_ids().await,
        slice::from_ref(&stage.cut.snapshot_id)
    );
    stage.clear(&world).await;
    world.end().await;
}

async fn at_every_step(target: &dyn Target, deed: Deed) {
    let what = format!("killing {} at each step of {deed:?}", target.name());
    if target.steps().is_empty() || !requirement::root(&what) {
        return;
    }
    let Some(strace) = requirement::tool(&what, "strace") else {
        return;
    };
    let mut world = World::start(target).await;
    let points = undisturbed(&mut world, deed, &strace).await;
    assert!(
        !points.is_empty(),
        "{deed:?} changes nothing, or strace does not see it"
    );
    let mut missed = Vec::new();
    for point in &points {
        for then in [Then::Again, Then::Opposite] {
            if !killed_at(&mut world, deed, point, then, &strace).await {
                missed.push((point, then));
            }
        }
    }
    assert!(
        missed.is_empty(),
        "{deed:?} was not cut at {} of {} points: {missed:?}",
        missed.len(),
        2 * points.len()
    );
    world.end().await;
}

async fn undisturbed(world: &mut World<'_>, deed: Deed, strace: &Path) -> BTreeSet<StopPoint> {
    let stage = Stage::set(world, deed).await;
    // A fresh server, as in the runs that follow.
    world.crash().await;
    let output = world.place.path().join("trace");
    let calls = world.target.steps();
    let tracer = Tracer::watch(strace, world.server.process(), calls, &output).await;
    let outcome = stage.forward(world, deed).await;
    outcome.unwrap_or_else(|status| panic!("{deed:?}, undisturbed: {status:?}"));
    let points = tracer.detach().await;
    stage.is_done(world, deed, "undisturbed").await;
    stage.clear(world).await;
    world.is_empty("an undisturbed run");
    points
}

/// Whether the server was killed there. If it was, all that follows has been checked.
async fn killed_at(
    world: &mut World<'_>,
    deed: Deed,
    point: &StopPoint,
    then: Then,
    strace: &Path,
) -> bool {
    let what = format!(
        "{deed:?} killed at {} {}, then {then:?}",
        point.call, point.number
    );
    let output = world.place.path().join("trace");
    for _ in 0..ATTEMPTS {
        let stage = Stage::set(world, deed).await;
        world.crash().await;
        let tracer = Tracer::kill_at(strace, world.server.process(), point, &output).await;
        let outcome = stage.forward(world, deed).await;
        let killed = outcome.is_err();
        if killed {
            let status = world.server.gone().await;
            assert!(
                crate::server::was_killed(status),
                "{what}: it ended with {status}: {outcome:?}"
            );
        }
        drop(tracer.detach().await);
        if killed {
            world.start_again().await;
            stage.nothing_half_done(world, deed, &what).await;
            match then {
                Then::Again => {
                    let outcome = stage.forward(world, deed).await;
                    outcome.unwrap_or_else(|status| panic!("{what}: {status:?}"));
                    stage.is_done(world, deed, &what).await;
                }
                Then::Opposite => {
                    let outcome = stage.backward(world, deed).await;
                    outcome.unwrap_or_else(|status| panic!("{what}: {status:?}"));
                    stage.is_undone(world, deed, &what).await;
                }
            }
        }
        stage.clear(world).await;
        world.is_empty(&what);
        if killed {
            return true;
        }
    }
    false
}
