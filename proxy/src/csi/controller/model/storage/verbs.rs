//! The verbs of a storage: those of the driver in memory, with what a fault makes of them.

use async_trait::async_trait;
use csi_types::VolumeCapability;
use driver_core::contract::fake::Verb;
use driver_core::flow::{CopyTag, Form, Outflow};
use driver_core::{
    AccessRules, BackendIdentity, Call, Capabilities, Capacity, CapacityQuery, CreateSnapshot,
    CreateVolume, Driver, Error, Expanded, Expansion, Found, Kind, NodeId, Page, PageRequest,
    Parameters, SizeRange, Snapshot, SnapshotFilter, SnapshotId, Source, Volume, VolumeId,
    VolumeName,
};

use super::copies::Given;
use super::{Storage, inner};
use crate::csi::controller::model::flaws::Flaw;

#[async_trait]
impl Driver for Storage {
    fn kind(&self) -> &'static str {
        "fake"
    }

    fn capabilities(&self) -> Capabilities {
        self.can
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

    fn gives(&self) -> &'static [Form] {
        self.forms
    }

    fn takes(&self) -> &'static [Form] {
        self.forms
    }

    fn outflow(&self, source: &Source, tag: &CopyTag) -> Result<Box<dyn Outflow + '_>, Error> {
        Ok(Box::new(Given::new(self, source.clone(), tag.clone())))
    }

    async fn inflow(
        &self,
        call: &Call,
        request: &CreateVolume,
        from: &dyn Outflow,
    ) -> Result<Volume, Error> {
        let all = self.take_in(call, request, from);
        self.work(call, Verb::CreateVolume, Some(&request.id), all)
            .await
    }

    async fn delete_volume(&self, call: &Call, id: &VolumeId) -> Result<(), Error> {
        let all = async {
            call.changing();
            if self.flaw == Some(Flaw::DeletesNothing) {
                return Ok(());
            }
            self.state().halves.remove(id.as_str());
            self.state().carried.remove(id.as_str());
            self.inner.delete_volume(&inner(), id).await
        };
        self.work(call, Verb::DeleteVolume, None, all).await
    }

    async fn get_volume(&self, _: &Call, id: &VolumeId) -> Result<Volume, Error> {
        if !self.can.get_volume {
            return Err(self.unsupported("get volume"));
        }
        let all = async { self.inner.get_volume(&inner(), id).await };
        self.look(Verb::GetVolume, all).await
    }

    async fn find_volume(&self, _: &Call, id: &VolumeId) -> Result<Found, Error> {
        if !self.can.get_volume {
            return Err(self.unsupported("find volume"));
        }
        let all = async {
            let is_begun = self.state().halves.contains(id.as_str());
            if is_begun && self.flaw != Some(Flaw::HidesHalves) {
                return Ok(Found::Begun);
            }
            self.inner.find_volume(&inner(), id).await
        };
        self.look(Verb::FindVolume, all).await
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

    async fn expand_volume(
        &self,
        call: &Call,
        id: &VolumeId,
        size: SizeRange,
    ) -> Result<Expanded, Error> {
        if self.can.expand == Expansion::None {
            return Err(self.unsupported("expand volume"));
        }
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
            self.inner.expand_volume(&inner(), id, size).await
        };
        self.work(call, Verb::ExpandVolume, None, all).await
    }

    async fn capacity(&self, _: &Call, _: &CapacityQuery) -> Result<Capacity, Error> {
        let all = async {
            Ok(Capacity {
                available: self.state().room,
                ..Capacity::default()
            })
        };
        self.look(Verb::Capacity, all).await
    }

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

    async fn delete_snapshot(&self, call: &Call, id: &SnapshotId) -> Result<(), Error> {
        let all = async {
            call.changing();
            self.inner.delete_snapshot(&inner(), id).await
        };
        self.work(call, Verb::DeleteSnapshot, None, all).await
    }

    async fn get_snapshot(&self, _: &Call, id: &SnapshotId) -> Result<Snapshot, Error> {
        let all = async { self.inner.get_snapshot(&inner(), id).await };
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

    async fn publish_volume(
        &self,
        call: &Call,
        id: &VolumeId,
        node: &NodeId,
        way: &VolumeCapability,
    ) -> Result<(), Error> {
        let all = async {
            call.changing();
            self.inner.publish_volume(&inner(), id, node, way).await?;
            let entry = (id.as_str().to_owned(), node.as_str().to_owned());
            self.state().published.insert(entry);
            Ok(())
        };
        self.work(call, Verb::PublishVolume, None, all).await
    }

    async fn unpublish_volume(
        &self,
        call: &Call,
        id: &VolumeId,
        node: Option<&NodeId>,
    ) -> Result<(), Error> {
        let all = async {
            call.changing();
            self.inner.unpublish_volume(&inner(), id, node).await?;
            let goes = |(volume, on): &(String, String)| {
                volume == id.as_str() && node.is_none_or(|node| node.as_str() == on)
            };
            self.state().published.retain(|entry| !goes(entry));
            Ok(())
        };
        self.work(call, Verb::UnpublishVolume, None, all).await
    }
}
