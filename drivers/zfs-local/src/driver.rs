//! The driver: that of ZFS, on one node.
//!
//! Every verb is that of [`ZfsDriver`], with two additions for an object that is not found: an id
//! with the mark of another node is never "gone" but unreachable, unless it was deleted here; and a
//! source on another node means that the new volume must be created there.

mod adopt;
mod adopted;
mod groups;

use std::time::SystemTime;

use async_trait::async_trait;
use csi_types::Attachment;
use driver_core::config::Finding;
use driver_core::transfer::{CopyTag, ExportStream, TransferFormat};
use driver_core::{
    AccessRules, Adopter, BLOCK_RANGES, BackendIdentity, BlockMetadata, BlockRanges,
    BlockRangesQuery, Call, Capacity, CapacityQuery, CapacityReporter, Conditions, CreateSnapshot,
    CreateVolume, DeleteSnapshot, DeleteVolume, Driver, Error, ExpandVolume, Expanded, Expander,
    FindVolume, Found, GetSnapshot, Groups, Health, HealthQuery, Kind, Lister, Maintenance,
    Modifier, ModifyVolume, Mover, NodeId, Orphan, Page, PageRequest, Parameters, Snapshot,
    SnapshotFilter, Snapshots, Source, Topology, Transfer, UsageReporter, Volume, VolumeId,
    VolumeName,
};
use driver_zfs::backend::{Backend, Serves};
use driver_zfs::id::{At, Layout};
use driver_zfs::name::DatasetName;
use driver_zfs::observed::{Dataset, Query, Request, State};
use driver_zfs::property::PropertyName;
use driver_zfs::{Settings, ZfsDriver};
use node_utils::kernel::Kernel;
use tracing::warn;

use crate::export::NodeExport;
use crate::mark::NodeMark;

/// Volumes that are datasets of one node.
#[derive(Debug)]
pub struct NodeZfs {
    driver: ZfsDriver,
    layout: Layout,
    mark: NodeMark,
    /// Where the devices of zvols are.
    kernel: Kernel,
}

/// A volume is not on this node.
#[derive(Debug, thiserror::Error)]
#[error("its id has the mark of another node, and it is not in the pool of this one")]
struct Elsewhere;

/// The advice.
const ROUTE: &str = "send it to the controller of the node that has the volume: external-provisioner \
                     and external-snapshotter need `--node-deployment` on every node";

// === impl NodeZfs ===

impl NodeZfs {
    /// Creates the driver of one connection on `node`, without contacting the storage.
    pub fn new<B: Serves>(mut settings: Settings, backend: B, node: &NodeId) -> Self {
        let room = settings.id_room.bytes().saturating_sub(NodeMark::LENGTH);
        settings.naming = settings.naming.at_most(room);
        settings.place = Some(Topology::node(node.as_str()));
        let layout = settings.layout.clone();
        let export = NodeExport::<B::Command, B::Output>::new(layout.kind);
        Self {
            driver: ZfsDriver::new(settings, backend, export),
            layout,
            mark: NodeMark::of(node),
            kernel: Kernel::here(),
        }
    }

    /// The same, with the devices that this kernel shows.
    #[must_use]
    pub fn with_kernel(self, kernel: Kernel) -> Self {
        Self { kernel, ..self }
    }

    /// Where its datasets are changed.
    pub fn storage(&self) -> &dyn Backend {
        self.driver.storage()
    }

    async fn observe(&self, call: &Call, datasets: Vec<DatasetName>) -> Result<State, Error> {
        let looks = datasets.into_iter().map(Query::Dataset);
        let seen = self.storage().observe(call, &Request::of(looks)).await?;
        Ok(seen.pool)
    }

    /// Replaces `NotFound` for a volume of another node, where it exists but cannot be reached.
    fn or_elsewhere<T>(&self, id: &VolumeId, outcome: Result<T, Error>) -> Result<T, Error> {
        outcome.map_err(|error| {
            if error.kind() == Kind::NotFound && self.mark.is_foreign(id) {
                elsewhere(format!("find volume `{id}`"))
            } else {
                error
            }
        })
    }

    /// The dataset of a volume from before ids had marks, by democratic-csi. It is the volume,
    /// complete or partial.
    async fn unmarked(
        &self,
        call: &Call,
        request: &CreateVolume,
    ) -> Result<Option<VolumeId>, Error> {
        let Some(plain) = self.without_mark(&request.id) else {
            return Ok(None);
        };
        let (marked, bare) = (
            self.layout.volume(&request.id)?,
            self.layout.volume(&plain)?,
        );
        let seen = self
            .observe(call, vec![marked.clone(), bare.clone()])
            .await?;
        let found = seen
            .dataset(&bare)
            .filter(|_| seen.dataset(&marked).is_none());
        let theirs = found.is_some_and(|found| {
            let name = found.properties.own(&PropertyName::VOLUME_NAME);
            found.is_managed() && name == Some(request.name.as_str())
        });
        Ok(theirs.then_some(plain))
    }

    /// An id with the mark of this node, in its form before ids had marks.
    fn without_mark(&self, id: &VolumeId) -> Option<VolumeId> {
        let plain = self.mark.strip(id);
        plain.and_then(|plain| VolumeId::parse(plain).ok())
    }

    /// The source of a volume may be on another node.
    fn source_is_elsewhere(&self, source: Option<&Source>) -> bool {
        match source {
            None | Some(Source::Elsewhere(_)) => false,
            Some(Source::Volume(id)) => self.mark.is_foreign(id),
            Some(Source::Snapshot(id)) => {
                let place = self.layout.snapshot(id);
                place.is_ok_and(|place| self.mark.is_foreign(&place.volume))
            }
        }
    }
}

/// Whether a dataset is a volume or a snapshot of ours, or contains snapshots.
fn is_ours(dataset: &Dataset) -> bool {
    let complete = dataset.properties.own(&PropertyName::CONTEXT).is_some();
    dataset.is_managed() || complete || dataset.is_container()
}

fn elsewhere(doing: String) -> Error {
    Error::new(Kind::Unreachable, doing)
        .because(Elsewhere)
        .advise(ROUTE)
}

/// All of the driver below but `publisher`, `fencer` and `exports`: nothing is exported, so no node is let in or shut
/// out, and nothing can be lost. A verb of theirs is refused without what that driver says about exports
/// (`unsupported`). Volumes of pods (`inline`) have a driver of their own.
#[async_trait]
impl Driver for NodeZfs {
    fn kind(&self) -> &str {
        self.driver.kind()
    }

    fn access_rules(&self) -> AccessRules {
        self.driver.access_rules()
    }

    fn backend_identity(&self) -> BackendIdentity {
        self.driver.backend_identity()
    }

    fn name_volume(&self, name: &VolumeName, parameters: &Parameters) -> Result<VolumeId, Error> {
        let id = self.driver.name_volume(name, parameters)?;
        VolumeId::parse(&format!("{id}{}", self.mark.as_str())).map_err(|error| {
            let name = name.as_str().escape_debug();
            Error::invalid(format!("name volume `{name}`")).because(error)
        })
    }

    async fn probe(&self, call: &Call) -> Vec<Error> {
        self.driver.probe(call).await
    }

    async fn examine(&self, call: &Call) -> Vec<Error> {
        self.driver.examine(call).await
    }

    async fn describe(&self, call: &Call) -> Vec<Finding> {
        self.driver.describe(call).await
    }

    fn access_rules_of(&self, attachment: &Attachment) -> AccessRules {
        self.driver.access_rules_of(attachment)
    }

    fn makes_volumes(&self) -> bool {
        self.driver.makes_volumes()
    }

    async fn create_volume(&self, call: &Call, request: &CreateVolume) -> Result<Volume, Error> {
        let made = match self.unmarked(call, request).await? {
            Some(id) => {
                let request = CreateVolume {
                    id,
                    ..request.clone()
                };
                self.driver.create_volume(call, &request).await
            }
            None => self.driver.create_volume(call, request).await,
        };
        let source = request.source.as_ref();
        match made {
            // The scheduler then tries another node.
            Err(error) if error.kind() == Kind::NotFound && self.source_is_elsewhere(source) => {
                let doing = format!("create volume `{}`", request.id);
                let error = error.within(doing).of_kind(Kind::OutOfSpace);
                Err(error.because("its source is on another node"))
            }
            made => made,
        }
    }

    async fn delete_volume(&self, call: &Call, request: DeleteVolume<'_>) -> Result<(), Error> {
        let id = request.id;
        if self.mark.strip(id).is_none() {
            let dataset = self.layout.volume(id)?;
            let seen = self
                .look_at_home(call, std::slice::from_ref(&dataset))
                .await?;
            let found = seen.dataset(&dataset);
            let object = format!("volume {id}");
            let is_foreign = self.mark.is_foreign(id);
            if is_foreign && found.is_some_and(is_ours) {
                // It was moved with its pool, or created by democratic-csi.
                let deletion = self.driver.delete_volume(call, request);
                return self
                    .delete_and_remember(call, seen, &object, deletion)
                    .await;
            } else if is_foreign && found.is_none() && !self.was_deleted(&seen, &object)? {
                return Err(elsewhere(format!("delete volume `{id}`")));
            } else if !is_foreign && found.is_none() {
                let volume = id.as_str();
                warn!(
                    volume,
                    "nothing to delete, and the id does not tell of which node the volume is"
                );
            }
        }
        self.driver.delete_volume(call, request).await
    }

    async fn find_volume(&self, call: &Call, request: FindVolume<'_>) -> Result<Found, Error> {
        let id = request.id;
        let found = self.driver.find_volume(call, request).await;
        let is_absent = matches!(&found, Err(error) if error.kind() == Kind::NotFound);
        match self.without_mark(id).filter(|_| is_absent) {
            // Created before ids had marks: a partial one is finished under that id, a complete one
            // is the volume.
            Some(plain) => {
                let request = FindVolume {
                    id: &plain,
                    ..request
                };
                self.driver.find_volume(call, request).await
            }
            None => self.or_elsewhere(id, found),
        }
    }

    fn clones_volumes(&self) -> bool {
        self.driver.clones_volumes()
    }

    fn lister(&self) -> Option<&dyn Lister> {
        Some(self)
    }

    fn expander(&self) -> Option<&dyn Expander> {
        Some(self)
    }

    fn capacity_reporter(&self) -> Option<&dyn CapacityReporter> {
        Some(self)
    }

    fn usage_reporter(&self) -> Option<&dyn UsageReporter> {
        self.driver.usage_reporter()
    }

    fn snapshots(&self) -> Option<&dyn Snapshots> {
        Some(self)
    }

    fn block_metadata(&self) -> Option<&dyn BlockMetadata> {
        self.driver.block_metadata().map(|_| self as _)
    }

    fn unsupported(&self, verb: &'static str) -> Error {
        match verb {
            BLOCK_RANGES => self.driver.unsupported(verb),
            _ => Error::unsupported(verb),
        }
    }

    fn health(&self) -> Option<&dyn Health> {
        self.driver.health().map(|_| self as &dyn Health)
    }

    fn groups(&self) -> Option<&dyn Groups> {
        self.driver.groups().map(|_| self as &dyn Groups)
    }

    fn transfer(&self) -> Option<&dyn Transfer> {
        Some(self)
    }

    fn modifier(&self) -> Option<&dyn Modifier> {
        self.driver.modifier().map(|_| self as &dyn Modifier)
    }

    fn class_keys(&self) -> &[&'static str] {
        self.driver.class_keys()
    }

    fn maintenance(&self) -> Option<&dyn Maintenance> {
        Some(self)
    }

    fn adopter(&self) -> Option<&dyn Adopter> {
        Some(self)
    }

    fn mover(&self) -> Option<&dyn Mover> {
        self.driver.mover()
    }

    fn check_attachment(&self, id: &VolumeId, attachment: &Attachment) -> Result<(), Error> {
        let own = self.layout.volume(id)?;
        match attachment {
            Attachment::ZfsLocal(zfs) if zfs.asset.as_str() == own.as_str() => Ok(()),
            _ => Err(
                Error::invalid(format!("attach volume `{id}` as its context says"))
                    .advise(format!("this driver attaches it as the dataset `{own}`")),
            ),
        }
    }

    fn longest_attachment(&self) -> Option<Attachment> {
        self.driver.longest_attachment()
    }

    fn node_topology(&self) -> Option<Topology> {
        self.driver.node_topology()
    }
}

#[async_trait]
impl Lister for NodeZfs {
    async fn get_volume(&self, call: &Call, id: &VolumeId) -> Result<Volume, Error> {
        self.or_elsewhere(id, self.driver.get_volume(call, id).await)
    }

    async fn list_volumes(&self, call: &Call, page: &PageRequest) -> Result<Page<Volume>, Error> {
        self.driver.list_volumes(call, page).await
    }
}

#[async_trait]
impl Health for NodeZfs {
    async fn conditions(
        &self,
        call: &Call,
        query: HealthQuery<'_>,
    ) -> Result<Vec<Option<Conditions>>, Error> {
        let found = self.driver.conditions(call, query).await?;
        let mut absent = query.ids.iter().zip(&found);
        match absent.find(|(id, found)| found.is_none() && self.mark.is_foreign(id)) {
            Some((id, _)) => Err(elsewhere(format!("look at the health of volume `{id}`"))),
            None => Ok(found),
        }
    }

    async fn candidates(&self, call: &Call, page: &PageRequest) -> Result<Page<VolumeId>, Error> {
        self.driver.candidates(call, page).await
    }
}

#[async_trait]
impl Expander for NodeZfs {
    fn node_expands(&self) -> bool {
        self.driver.expander().is_some_and(Expander::node_expands)
    }

    fn is_node_local(&self) -> bool {
        true
    }

    fn may_be_elsewhere(&self, id: &VolumeId) -> bool {
        self.mark.strip(id).is_none()
    }

    async fn expand_volume(
        &self,
        call: &Call,
        request: ExpandVolume<'_>,
    ) -> Result<Expanded, Error> {
        self.or_elsewhere(request.id, self.driver.expand_volume(call, request).await)
    }
}

#[async_trait]
impl Modifier for NodeZfs {
    fn mutable_keys(&self) -> &[&'static str] {
        self.driver.mutable_keys()
    }

    async fn modify_volume(&self, call: &Call, request: ModifyVolume<'_>) -> Result<(), Error> {
        self.or_elsewhere(request.id, self.driver.modify_volume(call, request).await)
    }
}

#[async_trait]
impl CapacityReporter for NodeZfs {
    async fn capacity(&self, call: &Call, query: &CapacityQuery) -> Result<Capacity, Error> {
        self.driver.capacity(call, query).await
    }
}

#[async_trait]
impl Snapshots for NodeZfs {
    async fn create_snapshot(
        &self,
        call: &Call,
        request: &CreateSnapshot,
    ) -> Result<Snapshot, Error> {
        let taken = self.driver.create_snapshot(call, request).await;
        self.or_elsewhere(&request.source, taken)
    }

    async fn delete_snapshot(&self, call: &Call, request: DeleteSnapshot<'_>) -> Result<(), Error> {
        let id = request.id;
        // An id that no driver issued is left to the driver to reject.
        let place = self.layout.snapshot(id).ok();
        if let Some(place) = &place
            && self.mark.is_foreign(&place.volume)
        {
            let object = format!("snapshot {id}");
            let mut homes = vec![self.layout.volume(&place.volume)?];
            if let At::Detached(dataset) = &place.at {
                homes.extend(dataset.parent());
                homes.push(dataset.clone());
            }
            let seen = self.look_at_home(call, &homes).await?;
            let found = || homes.iter().filter_map(|home| seen.dataset(home));
            if found().next().is_none() && !self.was_deleted(&seen, &object)? {
                return Err(elsewhere(format!("delete snapshot `{id}`")));
            }
            if found().any(is_ours) {
                let deletion = self.driver.delete_snapshot(call, request);
                return self
                    .delete_and_remember(call, seen, &object, deletion)
                    .await;
            }
        }
        self.driver.delete_snapshot(call, request).await
    }

    async fn get_snapshot(&self, call: &Call, request: GetSnapshot<'_>) -> Result<Snapshot, Error> {
        let volume = self.layout.snapshot(request.id)?.volume;
        self.or_elsewhere(&volume, self.driver.get_snapshot(call, request).await)
    }

    async fn list_snapshots(
        &self,
        call: &Call,
        filter: &SnapshotFilter,
        page: &PageRequest,
    ) -> Result<Page<Snapshot>, Error> {
        self.driver.list_snapshots(call, filter, page).await
    }
}

#[async_trait]
impl BlockMetadata for NodeZfs {
    async fn block_ranges(
        &self,
        call: &Call,
        request: BlockRangesQuery<'_>,
    ) -> Result<Box<dyn BlockRanges>, Error> {
        let volume = self.layout.snapshot(request.snapshot)?.volume;
        self.or_elsewhere(&volume, self.driver.block_ranges(call, request).await)
    }
}

#[async_trait]
impl Transfer for NodeZfs {
    fn export_formats(&self) -> &'static [TransferFormat] {
        self.driver.export_formats()
    }

    fn import_formats(&self) -> &'static [TransferFormat] {
        self.driver.import_formats()
    }

    fn export(&self, source: &Source, tag: &CopyTag) -> Result<Box<dyn ExportStream + '_>, Error> {
        if self.source_is_elsewhere(Some(source)) {
            return Err(elsewhere("export content to another connection".to_owned()));
        }
        self.driver.export(source, tag)
    }

    async fn import(
        &self,
        call: &Call,
        request: &CreateVolume,
        from: &dyn ExportStream,
    ) -> Result<Volume, Error> {
        self.driver.import(call, request, from).await
    }
}

#[async_trait]
impl Maintenance for NodeZfs {
    async fn orphans(
        &self,
        call: &Call,
        before: SystemTime,
        page: &PageRequest,
    ) -> Result<Page<Orphan>, Error> {
        self.driver.orphans(call, before, page).await
    }

    async fn remove_orphan(
        &self,
        call: &Call,
        before: SystemTime,
        orphan: &Orphan,
    ) -> Result<(), Error> {
        self.driver.remove_orphan(call, before, orphan).await
    }
}
