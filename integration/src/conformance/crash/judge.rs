//! What has to be true after a crash, and of what was done or undone after it.

use std::fs;
use std::slice;

use csi_proto::v1 as csi;

use super::{Deed, Stage};
use crate::conformance::world::World;
use crate::tree::Tree;
use crate::volume;

impl Stage {
    /// What is listed right after the crash is whole.
    pub(super) async fn nothing_half_done(&self, world: &World<'_>, deed: Deed, what: &str) {
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

    pub(super) async fn is_done(&self, world: &World<'_>, deed: Deed, what: &str) {
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

    pub(super) async fn is_undone(&self, world: &World<'_>, deed: Deed, what: &str) {
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
}
