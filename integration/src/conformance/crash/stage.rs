//! Setting the stage for a deed, the deed and its opposite, and clearing up.

use std::fs;

use csi_proto::v1 as csi;
use rustix::fs::XattrFlags;

use super::{Deed, Stage};
use crate::conformance::Holds;
use crate::conformance::world::{Outcome, World};
use crate::tree::Tree;
use crate::volume;

impl Stage {
    pub(super) async fn set(world: &World<'_>, deed: Deed) -> Self {
        let source = world.volume("source").await;
        let pod = world.mount(&source).await;
        fs::create_dir(pod.join("folder")).expect("a folder");
        fs::write(pod.join("folder/file"), "content").expect("a file");
        let file = pod.join("folder/file");
        let holds = world.target.holds();
        if holds >= Holds::Owners {
            fs::hard_link(&file, pod.join("link")).expect("a link");
        }
        if holds == Holds::Everything {
            rustix::fs::setxattr(&file, "user.note", b"x", XattrFlags::empty())
                .expect("an attribute");
        }
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
            Deed::Mount => stage.object = Some(world.volume("object").await),
            Deed::Expand => {
                let object = world.volume("object").await;
                if world.grows_on_the_node().await {
                    world.mount(&object).await;
                }
                stage.object = Some(object);
            }
            Deed::Unmount => {
                let object = world.volume("object").await;
                world.mount(&object).await;
                stage.object = Some(object);
            }
        }
        stage
    }

    pub(super) fn create(&self, world: &World<'_>, deed: Deed) -> csi::CreateVolumeRequest {
        csi::CreateVolumeRequest {
            volume_content_source: match deed {
                Deed::Restore => volume::from_snapshot(&self.cut.snapshot_id),
                Deed::Clone | Deed::Delete => volume::from_volume(&self.source.volume_id),
                _ => None,
            },
            ..world.create("object")
        }
    }

    pub(super) fn id(&self) -> &str {
        self.object
            .as_ref()
            .map_or("object", |object| &object.volume_id)
    }

    pub(super) async fn forward(&self, world: &World<'_>, deed: Deed) -> Outcome<()> {
        match deed {
            Deed::Create | Deed::Restore | Deed::Clone => self.make(world, deed).await,
            Deed::Snapshot => self.cut_second(world).await,
            Deed::Delete => self.drop_object(world).await,
            Deed::DeleteSnapshot => self.drop_second(world).await,
            Deed::Expand => {
                let request = volume::expand(self.id(), 2 * volume::SIZE);
                let object = self.object.as_ref().expect("something to grow");
                let pod = world.pod(&object.volume_id);
                Ok(world.expand(request, &pod).await?.map(drop))
            }
            Deed::Mount => self.mount(world).await,
            Deed::Unmount => self.unmount(world).await,
        }
    }

    pub(super) async fn backward(&self, world: &World<'_>, deed: Deed) -> Outcome<()> {
        match deed {
            Deed::Create | Deed::Restore | Deed::Clone => self.drop_object(world).await,
            Deed::Expand => {
                self.unmount(world).await?;
                self.drop_object(world).await
            }
            Deed::Snapshot => self.drop_second(world).await,
            Deed::Delete => self.make(world, deed).await,
            Deed::DeleteSnapshot => self.cut_second(world).await,
            Deed::Mount => self.unmount(world).await,
            Deed::Unmount => self.mount(world).await,
        }
    }

    async fn make(&self, world: &World<'_>, deed: Deed) -> Outcome<()> {
        let request = self.create(world, deed);
        let controller = &mut world.client.clone().controller;
        Ok(controller.create_volume(request).await?.map(drop))
    }

    async fn drop_object(&self, world: &World<'_>) -> Outcome<()> {
        let request = volume::delete(self.id());
        let controller = &mut world.client.clone().controller;
        Ok(controller.delete_volume(request).await?.map(drop))
    }

    async fn cut_second(&self, world: &World<'_>) -> Outcome<()> {
        let request = world.snapshot("second", &self.source.volume_id);
        let controller = &mut world.client.clone().controller;
        Ok(controller.create_snapshot(request).await?.map(drop))
    }

    async fn drop_second(&self, world: &World<'_>) -> Outcome<()> {
        let id = self
            .second_cut
            .as_ref()
            .map_or("second", |cut| &cut.snapshot_id);
        let request = volume::delete_snapshot(id);
        let controller = &mut world.client.clone().controller;
        Ok(controller.delete_snapshot(request).await?.map(drop))
    }

    async fn mount(&self, world: &World<'_>) -> Outcome<()> {
        let object = self.object.as_ref().expect("something to mount");
        let (staging, pod) = (world.staging(object), world.pod(&object.volume_id));
        let node = &mut world.client.clone().node;
        node.node_stage_volume(world.stage(object, &staging))
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

    pub(super) async fn clear(self, world: &World<'_>) {
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
