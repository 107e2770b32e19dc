//! The verbs of a storage: those of the driver in memory, modified by faults.

use async_trait::async_trait;
use driver_core::contract::fake::Verb;
use driver_core::transfer::{CopyTag, ExportStream, TransferFormat};
use driver_core::{
    AccessRules, BackendIdentity, Call, Capacity, CapacityQuery, CapacityReporter, CreateSnapshot,
    CreateVolume, DeleteSnapshot, DeleteVolume, Driver, Error, ExpandVolume, Expanded, Expander,
    Expansion, FindVolume, Found, GetSnapshot, Kind, Lister, Page, PageRequest, Parameters,
    PublishVolume, Publisher, Snapshot, SnapshotFilter, Snapshots, Source, Transfer,
    UnpublishVolume, Volume, VolumeId, VolumeName,
};

use super::copies::Given;
use super::{Storage, inner};
use crate::csi::controller::model::flaws::Flaw;

#[async_trait]
impl Driver for Storage {
    fn kind(&self) -> &'static str {
        "fake"
    }

    fn access_rules(&self) -> AccessRules {
        self.inner.access_rules()
    }

    fn backend_identity(&self) -> BackendIdentity {
        BackendIdentity(self.identity.clone())
    }

    fn name_volume(&self, name: &VolumeName, parameters: &Parameters) -> Result<VolumeId, Error> {
        self.inner.name_volume(name, parameters)
    }

    async fn probe(&self, _: &Call) -> Vec<Error> {
        Vec::new()
    }

    async fn create_volume(&self, call: &Call, request: &CreateVolume) -> Result<Volume, Error> {
        let id = &request.id;
        let all = async {
            let is_there = self.inner.get_volume(&inner(), id).await.is_ok();
            if is_there && !self.agrees(id, None) {
                return Err(Error::new(Kind::Conflict, "create volume"));
            }
            if self.state().full && !is_there {
                return Err(Error::new(Kind::OutOfSpace, "create volume"));
            }
            call.changing();
            let made = self.inner.create_volume(&inner(), request).await?;
            self.state().halves.remove(id.as_str());
            Ok(made)
        };
        self.work(call, Verb::CreateVolume, Some(id), all).await
    }

    async fn delete_volume(&self, call: &Call, request: DeleteVolume<'_>) -> Result<(), Error> {
        let id = request.id;
        let all = async {
            call.changing();
            if self.flaw == Some(Flaw::DeletesNothing) {
                return Ok(());
            }
            self.state().halves.remove(id.as_str());
            self.state().carried.remove(id.as_str());
            self.inner.delete_volume(&inner(), request).await
        };
        self.work(call, Verb::DeleteVolume, None, all).await
    }

    async fn find_volume(&self, _: &Call, request: FindVolume<'_>) -> Result<Found, Error> {
        let id = request.id;
        if !self.can.get_volume {
            return Err(self.unsupported("find volume"));
        }
        let all = async {
            let is_partial = self.state().halves.contains(id.as_str());
            if is_partial && self.flaw != Some(Flaw::HidesHalves) {
                return Ok(Found::Begun);
            }
            self.inner.find_volume(&inner(), request).await
        };
        self.look(Verb::FindVolume, all).await
    }

    fn makes_volumes(&self) -> bool {
        self.can.volumes
    }

    fn clones_volumes(&self) -> bool {
        self.can.clones
    }

    fn lister(&self) -> Option<&dyn Lister> {
        self.can.get_volume.then_some(self)
    }

    fn expander(&self) -> Option<&dyn Expander> {
        (self.can.expand != Expansion::None).then_some(self)
    }

    fn capacity_reporter(&self) -> Option<&dyn CapacityReporter> {
        self.can.capacity.then_some(self)
    }

    fn snapshots(&self) -> Option<&dyn Snapshots> {
        self.can.snapshots.then_some(self)
    }

    fn transfer(&self) -> Option<&dyn Transfer> {
        Some(self)
    }

    fn publisher(&self) -> Option<&dyn Publisher> {
        self.can.publish.then_some(self)
    }
}

#[async_trait]
impl Lister for Storage {
    async fn get_volume(&self, _: &Call, id: &VolumeId) -> Result<Volume, Error> {
        let all = async { self.inner.get_volume(&inner(), id).await };
        self.look(Verb::GetVolume, all).await
    }

    async fn list_volumes(&self, _: &Call, page: &PageRequest) -> Result<Page<Volume>, Error> {
        let all = async {
            let mut found = self.inner.list_volumes(&inner(), page).await?;
            if self.flaw == Some(Flaw::ListsTooFew) && found.next.is_some() {
                found.entries.pop();
            }
            Ok(found)
        };
        self.look(Verb::ListVolumes, all).await
    }
}

#[async_trait]
impl Expander for Storage {
    fn node_expands(&self) -> bool {
        self.can.expand == Expansion::ControllerAndNode
    }

    async fn expand_volume(
        &self,
        call: &Call,
        request: ExpandVolume<'_>,
    ) -> Result<Expanded, Error> {
        let ExpandVolume { id, size, .. } = request;
        let all = async {
            call.changing();
            if self.flaw == Some(Flaw::GrowsInWordsOnly) {
                let capacity = size.required().unwrap_or_default();
                let found = self.inner.get_volume(&inner(), id).await?;
                return Ok(Expanded {
                    capacity: capacity.max(found.capacity.unwrap_or_default()),
                    node_expansion_required: false,
                });
            }
            self.inner.expand_volume(&inner(), request).await
        };
        self.work(call, Verb::ExpandVolume, None, all).await
    }
}

#[async_trait]
impl CapacityReporter for Storage {
    async fn capacity(&self, _: &Call, _: &CapacityQuery) -> Result<Capacity, Error> {
        let all = async {
            Ok(Capacity {
                available: self.state().room,
                ..Capacity::default()
            })
        };
        self.look(Verb::Capacity, all).await
    }
}

#[async_trait]
impl Snapshots for Storage {
    async fn create_snapshot(
        &self,
        call: &Call,
        request: &CreateSnapshot,
    ) -> Result<Snapshot, Error> {
        let all = async {
            call.changing();
            self.inner.create_snapshot(&inner(), request).await
        };
        self.work(call, Verb::CreateSnapshot, None, all).await
    }

    async fn delete_snapshot(&self, call: &Call, request: DeleteSnapshot<'_>) -> Result<(), Error> {
        let all = async {
            call.changing();
            self.inner.delete_snapshot(&inner(), request).await
        };
        self.work(call, Verb::DeleteSnapshot, None, all).await
    }

    async fn get_snapshot(&self, _: &Call, request: GetSnapshot<'_>) -> Result<Snapshot, Error> {
        let all = async { self.inner.get_snapshot(&inner(), request).await };
        self.look(Verb::GetSnapshot, all).await
    }

    async fn list_snapshots(
        &self,
        _: &Call,
        filter: &SnapshotFilter,
        page: &PageRequest,
    ) -> Result<Page<Snapshot>, Error> {
        let all = async { self.inner.list_snapshots(&inner(), filter, page).await };
        self.look(Verb::ListSnapshots, all).await
    }
}

#[async_trait]
impl Transfer for Storage {
    fn export_formats(&self) -> &'static [TransferFormat] {
        self.forms
    }

    fn import_formats(&self) -> &'static [TransferFormat] {
        self.forms
    }

    fn export(&self, source: &Source, tag: &CopyTag) -> Result<Box<dyn ExportStream + '_>, Error> {
        Ok(Box::new(Given::new(self, source.clone(), tag.clone())))
    }

    async fn import(
        &self,
        call: &Call,
        request: &CreateVolume,
        from: &dyn ExportStream,
    ) -> Result<Volume, Error> {
        let all = self.take_in(call, request, from);
        self.work(call, Verb::CreateVolume, Some(&request.id), all)
            .await
    }
}

#[async_trait]
impl Publisher for Storage {
    async fn publish_volume(&self, call: &Call, request: PublishVolume<'_>) -> Result<(), Error> {
        let all = async {
            call.changing();
            self.inner.publish_volume(&inner(), request).await?;
            let (volume, node) = (request.id.as_str(), request.node.id.as_str());
            let entry = (volume.to_owned(), node.to_owned());
            self.state().published.insert(entry);
            Ok(())
        };
        self.work(call, Verb::PublishVolume, None, all).await
    }

    async fn unpublish_volume(
        &self,
        call: &Call,
        request: UnpublishVolume<'_>,
    ) -> Result<(), Error> {
        let UnpublishVolume { id, node, .. } = request;
        let all = async {
            call.changing();
            self.inner.unpublish_volume(&inner(), request).await?;
            let goes = |(volume, on): &(String, String)| {
                volume == id.as_str() && node.is_none_or(|node| node.id.as_str() == on)
            };
            self.state().published.retain(|entry| !goes(entry));
            Ok(())
        };
        self.work(call, Verb::UnpublishVolume, None, all).await
    }
}
