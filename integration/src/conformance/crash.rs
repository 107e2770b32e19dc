//! Killed at every step: afterwards the same call completes the work, and the opposite call
//! removes it; neither leaves anything, and nothing half-done ever looks done.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::slice;

use csi_proto::v1 as csi;
use rustix::fs::XattrFlags;

use super::Target;
use super::trace::{StopPoint, Tracer};
use super::world::{Outcome, World};
use crate::client::Client;
use crate::requirement;
use crate::tree::Tree;
use crate::volume;

/// How often a stop point is tried before it counts as out of reach: another thread may have done
/// the work that this one did in the undisturbed run.
const ATTEMPTS: usize = 4;

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

// === impl Stage ===

impl Stage {
    async fn set(world: &World<'_>, deed: Deed) -> Self {
        let source = world.volume("source").await;
        let pod = world.mount(&source).await;
        fs::create_dir(pod.join("folder")).expect("a folder");
        fs::write(pod.join("folder/file"), "content").expect("a file");
        fs::hard_link(pod.join("folder/file"), pod.join("link")).expect("a link");
        let file = pod.join("folder/file");
        rustix::fs::setxattr(&file, "user.note", b"x", XattrFlags::empty()).expect("an attribute");
        let content = Tree::read_content(&pod);
        world.unmount(&source).await;
        let cut = world.cut("cut", &source.volume_id).await;
        let mut stage = Self {
            source,
            content,
            cut,
            object: None,
            second_cut: None,
        };
        match deed {
            Deed::Create | Deed::Restore | Deed::Clone => {
                // Only to learn its id.
                let object = world.make(stage.create(world, deed)).await;
                world.remove(&object.volume_id).await;
                stage.object = Some(object);
            }
            Deed::Snapshot | Deed::DeleteSnapshot => {
                let cut = world.cut("second", &stage.source.volume_id).await;
                if deed == Deed::Snapshot {
                    world.remove_snapshot(&cut.snapshot_id).await;
                }
                stage.second_cut = Some(cut);
            }
            Deed::Delete => stage.object = Some(world.make(stage.create(world, Deed::Clone)).await),
            Deed::Expand | Deed::Mount => stage.object = Some(world.volume("object").await),
            Deed::Unmount => {
                let object = world.volume("object").await;
                world.mount(&object).await;
                stage.object = Some(object);
            }
        }
        stage
    }

    fn create(&self, world: &World<'_>, deed: Deed) -> csi::CreateVolumeRequest {
        csi::CreateVolumeRequest {
            volume_content_source: match deed {
                Deed::Restore => volume::from_snapshot(&self.cut.snapshot_id),
                Deed::Clone | Deed::Delete => volume::from_volume(&self.source.volume_id),
                _ => None,
            },
            ..world.create("object")
        }
    }

    fn id(&self) -> &str {
        self.object
            .as_ref()
            .map_or("object", |object| &object.volume_id)
    }

    async fn forward(&self, world: &World<'_>, deed: Deed) -> Outcome<()> {
        let controller = &mut world.client.clone().controller;
        match deed {
            Deed::Create | Deed::Restore | Deed::Clone => {
                let made = controller.create_volume(self.create(world, deed)).await?;
                Ok(made.map(drop))
            }
            Deed::Snapshot => {
                let request = world.snapshot("second", &self.source.volume_id);
                Ok(controller.create_snapshot(request).await?.map(drop))
            }
            Deed::Delete => Ok(controller
                .delete_volume(volume::delete(self.id()))
                .await?
                .map(drop)),
            Deed::DeleteSnapshot => self.drop_second(&world.client).await,
            Deed::Expand => {
                let request = volume::expand(self.id(), 2 * volume::SIZE);
                Ok(controller
                    .controller_expand_volume(request)
                    .await?
                    .map(drop))
            }
            Deed::Mount => self.mount(world).await,
            Deed::Unmount => self.unmount(world).await,
        }
    }

    async fn backward(&self, world: &World<'_>, deed: Deed) -> Outcome<()> {
        match deed {
            Deed::Create | Deed::Restore | Deed::Clone | Deed::Expand => {
                let request = volume::delete(self.id());
                Ok(world
                    .client
                    .clone()
                    .controller
                    .delete_volume(request)
                    .await?
                    .map(drop))
            }
            Deed::Snapshot => self.drop_second(&world.client).await,
            Deed::Delete => {
                let request = self.create(world, deed);
                Ok(world
                    .client
                    .clone()
                    .controller
                    .create_volume(request)
                    .await?
                    .map(drop))
            }
            Deed::DeleteSnapshot => {
                let request = world.snapshot("second", &self.source.volume_id);
                Ok(world
                    .client
                    .clone()
                    .controller
                    .create_snapshot(request)
                    .await?
                    .map(drop))
            }
            Deed::Mount => self.unmount(world).await,
            Deed::Unmount => self.mount(world).await,
        }
    }

    async fn drop_second(&self, client: &Client) -> Outcome<()> {
        let id = self
            .second_cut
            .as_ref()
            .map_or("second", |cut| &cut.snapshot_id);
        let request = volume::delete_snapshot(id);
        Ok(client
            .clone()
            .controller
            .delete_snapshot(request)
            .await?
            .map(drop))
    }

    async fn mount(&self, world: &World<'_>) -> Outcome<()> {
        let object = self.object.as_ref().expect("something to mount");
        let (staging, pod) = (world.staging(object), world.pod(&object.volume_id));
        let node = &mut world.client.clone().node;
        node.node_stage_volume(volume::stage(object, &staging))
            .await?;
        let request = volume::publish(object, &staging, &pod);
        Ok(node.node_publish_volume(request).await?.map(drop))
    }

    async fn unmount(&self, world: &World<'_>) -> Outcome<()> {
        let object = self.object.as_ref().expect("something to unmount");
        let (staging, pod) = (world.staging(object), world.pod(&object.volume_id));
        let node = &mut world.client.clone().node;
        node.node_unpublish_volume(volume::unpublish(object, &pod))
            .await?;
        Ok(node
            .node_unstage_volume(volume::unstage(object, &staging))
            .await?
            .map(drop))
    }

    /// What is listed right after the crash is whole.
    async fn nothing_half_done(&self, world: &World<'_>, deed: Deed, what: &str) {
        let listed = world.volume_ids().await;
        assert!(
            listed.contains(&self.source.volume_id),
            "{what}: the source is gone"
        );
        if matches!(deed, Deed::Restore | Deed::Clone | Deed::Delete)
            && listed.iter().any(|id| id == self.id())
        {
            let object = self.object.as_ref().expect("an object");
            self.same_content(world, object, &format!("{what}: listed after the crash"))
                .await;
        }
        let cuts = world.snapshot_ids().await;
        assert!(
            cuts.contains(&self.cut.snapshot_id),
            "{what}: another snapshot is gone"
        );
        if let Some(cut) = &self.second_cut
            && cuts.contains(&cut.snapshot_id)
        {
            self.cut_is_whole(world, cut, &format!("{what}: listed after the crash"))
                .await;
        }
    }

    async fn is_done(&self, world: &World<'_>, deed: Deed, what: &str) {
        match deed {
            Deed::Create | Deed::Restore | Deed::Clone => self.exists(world, deed, what).await,
            Deed::Snapshot => self.cut_exists(world, what).await,
            Deed::Delete => assert!(
                !world.volume_ids().await.iter().any(|id| id == self.id()),
                "{what}: it is still listed"
            ),
            Deed::DeleteSnapshot => {
                assert_eq!(
                    world.snapshot_ids().await,
                    slice::from_ref(&self.cut.snapshot_id),
                    "{what}"
                );
            }
            Deed::Expand => {
                let volume_id = self.id().to_owned();
                let request = csi::ControllerGetVolumeRequest { volume_id };
                let got = world
                    .client
                    .clone()
                    .controller
                    .controller_get_volume(request)
                    .await;
                let volume = got
                    .expect("it exists")
                    .into_inner()
                    .volume
                    .expect("a volume");
                assert!(volume.capacity_bytes >= 2 * volume::SIZE, "{what}");
            }
            Deed::Mount => self.is_mounted(world, what),
            Deed::Unmount => assert!(world.place.mounts().is_empty(), "{what}"),
        }
    }

    async fn is_undone(&self, world: &World<'_>, deed: Deed, what: &str) {
        match deed {
            Deed::Create | Deed::Restore | Deed::Clone | Deed::Expand => {
                assert_eq!(
                    world.volume_ids().await,
                    slice::from_ref(&self.source.volume_id),
                    "{what}"
                );
            }
            Deed::Snapshot => {
                assert_eq!(
                    world.snapshot_ids().await,
                    slice::from_ref(&self.cut.snapshot_id),
                    "{what}"
                );
            }
            Deed::Delete => self.exists(world, Deed::Clone, what).await,
            Deed::DeleteSnapshot => self.cut_exists(world, what).await,
            Deed::Mount => assert!(world.place.mounts().is_empty(), "{what}"),
            Deed::Unmount => self.is_mounted(world, what),
        }
    }

    async fn exists(&self, world: &World<'_>, deed: Deed, what: &str) {
        let object = self.object.as_ref().expect("an object");
        assert!(
            world.volume_ids().await.contains(&object.volume_id),
            "{what}: it is not listed"
        );
        let again = world.make(self.create(world, deed)).await;
        assert_eq!(&again, object, "{what}: it is another volume");
        if deed != Deed::Create {
            self.same_content(world, object, what).await;
        }
    }

    async fn same_content(&self, world: &World<'_>, volume: &csi::Volume, what: &str) {
        let pod = world.mount(volume).await;
        let difference = self.content.difference(&Tree::read_content(&pod));
        assert!(
            difference.is_empty(),
            "{what}: it is not whole:\n{difference}"
        );
        world.unmount(volume).await;
    }

    async fn cut_exists(&self, world: &World<'_>, what: &str) {
        let cut = world.cut("second", &self.source.volume_id).await;
        let learned = self.second_cut.as_ref().map(|cut| &cut.snapshot_id);
        assert_eq!(
            Some(&cut.snapshot_id),
            learned,
            "{what}: it is another snapshot"
        );
        assert_eq!(world.snapshot_ids().await.len(), 2, "{what}");
        self.cut_is_whole(world, &cut, what).await;
    }

    async fn cut_is_whole(&self, world: &World<'_>, cut: &csi::Snapshot, what: &str) {
        let request = csi::CreateVolumeRequest {
            volume_content_source: volume::from_snapshot(&cut.snapshot_id),
            ..world.create("proof")
        };
        let proof = world.make(request).await;
        self.same_content(world, &proof, what).await;
        world.remove(&proof.volume_id).await;
    }

    fn is_mounted(&self, world: &World<'_>, what: &str) {
        let object = self.object.as_ref().expect("an object");
        let pod = world.pod(&object.volume_id);
        let mounts = world.place.mounts();
        let times = mounts.iter().filter(|mount| **mount == pod).count();
        assert_eq!(times, 1, "{what}: mounted {times} times: {mounts:?}");
        fs::write(pod.join("proof"), what).expect("a mounted volume can be written");
    }

    async fn clear(self, world: &World<'_>) {
        if let Some(object) = &self.object {
            world.unmount(object).await;
            world.remove(&object.volume_id).await;
        }
        if let Some(cut) = &self.second_cut {
            world.remove_snapshot(&cut.snapshot_id).await;
        }
        world.remove_snapshot(&self.cut.snapshot_id).await;
        world.remove(&self.source.volume_id).await;
    }
}
