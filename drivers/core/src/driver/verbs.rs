//! The verbs of the facets, on any driver: `Unsupported` where the facet is missing.

use std::time::{Duration, SystemTime};

use csi_types::Conditions;
use tokio::time::Instant;

use csi_types::Network;

use super::{
    BLOCK_RANGES, CREATE_GROUP, Capabilities, DELETE_GROUP, Driver, Expansion, GET_GROUP,
    GroupSnapshot, Publisher,
};
use crate::adopt::{AdoptVolume, Adoption};
use crate::call::Call;
use crate::driver::BlockRanges;
use crate::error::Error;
use crate::fence::{FenceClient, FenceNetworks};
use crate::orphan::Orphan;
use crate::request::{
    BlockRangesQuery, CreateGroup, DeleteSnapshot, ExpandVolume, GetSnapshot, GroupMembers,
    HealthQuery, ModifyVolume, PublishVolume, UnpublishVolume,
};
use crate::text::{NodeId, VolumeId};
use crate::transfer::{CopyTag, ExportStream, TransferFormat};
use crate::volume::{
    Capacity, CapacityQuery, CreateSnapshot, CreateVolume, Expanded, Page, PageRequest, Snapshot,
    SnapshotFilter, Source, Volume,
};

/// The most volumes whose health is asked for at once: an exchange with a storage host then stays below a second or two.
const HEALTH_PAGE: usize = 200;
/// The time for which pages without an unhealthy volume are passed over. A sidecar that lists gives up after ten seconds.
const PASSING_OVER: Duration = Duration::from_secs(2);
/// The doing of a look.
const HEALTH: &str = "look at the health of volumes";

/// `async fn` methods that call the same method of a facet.
macro_rules! verbs {
    ($($(#[$doc:meta])* $facet:ident($say:expr): $name:ident($($arg:ident: $ty:ty),*) -> $out:ty;)*) => {
        $(
            $(#[$doc])*
            pub async fn $name(&self, call: &Call, $($arg: $ty),*) -> Result<$out, Error> {
                match self.$facet() {
                    Some(facet) => facet.$name(call, $($arg),*).await,
                    None => Err(self.unsupported($say)),
                }
            }
        )*
    };
}

impl dyn Driver + '_ {
    /// The verbs that it has: those of its facets.
    pub fn capabilities(&self) -> Capabilities {
        let lists = self.lister().is_some();
        let snapshots = self.snapshots().is_some();
        Capabilities {
            volumes: self.makes_volumes(),
            list_volumes: lists,
            get_volume: lists,
            capacity: self.capacity_reporter().is_some(),
            snapshots,
            list_snapshots: snapshots,
            get_snapshot: snapshots,
            clones: self.clones_volumes(),
            expand: match self.expander() {
                None => Expansion::None,
                Some(expander) if expander.is_node_local() => Expansion::Node,
                Some(expander) if expander.node_expands() => Expansion::ControllerAndNode,
                Some(_) => Expansion::Controller,
            },
            publish: self.publisher().is_some(),
            published_nodes: lists && self.publisher().is_some_and(Publisher::records),
            fence: self.fencer().is_some(),
            topology: self.node_topology().is_some(),
            modify: self.modifier().is_some(),
            groups: self.groups().is_some(),
            block_metadata: self.block_metadata().is_some(),
            orphans: self.maintenance().is_some(),
            exports: self.exports().is_some(),
            inline: self.inline().is_some(),
            adopt: self.adopter().is_some(),
            health: self.health().is_some(),
        }
    }

    verbs! {
        /// See [`super::Lister::get_volume`].
        lister("get volume"): get_volume(id: &VolumeId) -> Volume;
        /// See [`super::Lister::list_volumes`].
        lister("list volumes"): list_volumes(page: &PageRequest) -> Page<Volume>;
        /// See [`super::Expander::expand_volume`].
        expander("expand volume"): expand_volume(request: ExpandVolume<'_>) -> Expanded;
        /// See [`super::CapacityReporter::capacity`].
        capacity_reporter("capacity"): capacity(query: &CapacityQuery) -> Capacity;
        /// See [`super::UsageReporter::used`].
        usage_reporter("measure volumes"): used(ids: &[VolumeId]) -> Vec<Option<u64>>;
        /// See [`super::Health::conditions`].
        health(HEALTH): conditions(query: HealthQuery<'_>) -> Vec<Option<Conditions>>;
        /// See [`super::Health::candidates`].
        health(HEALTH): candidates(page: &PageRequest) -> Page<VolumeId>;
        /// See [`super::Snapshots::create_snapshot`].
        snapshots("create snapshot"): create_snapshot(request: &CreateSnapshot) -> Snapshot;
        /// See [`super::Snapshots::delete_snapshot`].
        snapshots("delete snapshot"): delete_snapshot(request: DeleteSnapshot<'_>) -> ();
        /// See [`super::Snapshots::get_snapshot`].
        snapshots("get snapshot"): get_snapshot(request: GetSnapshot<'_>) -> Snapshot;
        /// See [`super::Snapshots::list_snapshots`].
        snapshots("list snapshots"):
            list_snapshots(filter: &SnapshotFilter, page: &PageRequest) -> Page<Snapshot>;
        /// See [`super::Publisher::publish_volume`].
        publisher("publish volume"): publish_volume(request: PublishVolume<'_>) -> ();
        /// See [`super::Publisher::unpublish_volume`].
        publisher("unpublish volume"):
            unpublish_volume(request: UnpublishVolume<'_>) -> ();
        /// See [`super::Publisher::fence_node`].
        publisher("fence a node"): fence_node(node: &NodeId) -> ();
        /// See [`super::Fencer::fence_networks`].
        fencer("fence networks"): fence_networks(request: FenceNetworks<'_>) -> ();
        /// See [`super::Fencer::check_fence`].
        fencer("fence networks"): check_fence() -> ();
        /// See [`super::Fencer::unfence_networks`].
        fencer("fence networks"): unfence_networks(request: FenceNetworks<'_>) -> ();
        /// See [`super::Fencer::fenced_networks`].
        fencer("fence networks"): fenced_networks() -> Vec<Network>;
        /// See [`super::Fencer::fence_clients`].
        fencer("fence networks"): fence_clients() -> Vec<FenceClient>;
        /// See [`super::Modifier::modify_volume`].
        modifier("modify volume"): modify_volume(request: ModifyVolume<'_>) -> ();
        /// See [`super::Groups::create_group`].
        groups(CREATE_GROUP): create_group(request: CreateGroup<'_>) -> GroupSnapshot;
        /// See [`super::Groups::delete_group`].
        groups(DELETE_GROUP):
            delete_group(request: GroupMembers<'_>) -> ();
        /// See [`super::Groups::get_group`].
        groups(GET_GROUP):
            get_group(request: GroupMembers<'_>) -> GroupSnapshot;
        /// See [`super::BlockMetadata::block_ranges`].
        block_metadata(BLOCK_RANGES): block_ranges(request: BlockRangesQuery<'_>) -> Box<dyn BlockRanges>;
        /// See [`super::Transfer::import`].
        transfer("import the content of another connection"):
            import(request: &CreateVolume, from: &dyn ExportStream) -> Volume;
        /// See [`super::Maintenance::orphans`].
        maintenance("list orphans"):
            orphans(before: SystemTime, page: &PageRequest) -> Page<Orphan>;
        /// See [`super::Maintenance::remove_orphan`].
        maintenance("remove orphans"): remove_orphan(before: SystemTime, orphan: &Orphan) -> ();
        /// See [`super::Adopter::plan_adoption`].
        adopter("adopt what exists"): plan_adoption(request: &AdoptVolume) -> Adoption;
        /// See [`super::Adopter::adopt_volume`].
        adopter("adopt what exists"): adopt_volume(request: &AdoptVolume) -> Volume;
        /// See [`super::Exports::is_exported`].
        exports("look at exports"): is_exported(id: &VolumeId) -> bool;
        /// See [`super::Exports::repair_export`].
        exports("repair exports"): repair_export(id: &VolumeId) -> ();
    }

    /// The volumes of one page of [`super::Health::candidates`] with which something is wrong. A page may be empty
    /// before the last one; pages without any are passed over for a while.
    pub async fn list_unhealthy(
        &self,
        call: &Call,
        page: &PageRequest,
    ) -> Result<Page<(VolumeId, Conditions)>, Error> {
        if self.lister().is_none() {
            return Err(self.unsupported("list volumes"));
        }
        let began = Instant::now();
        let mut page = PageRequest {
            max: Some(page.max.unwrap_or(HEALTH_PAGE).min(HEALTH_PAGE)),
            after: page.after.clone(),
        };
        loop {
            let listed = self.candidates(call, &page).await?;
            let ids = listed.entries;
            let found = if ids.is_empty() {
                Vec::new()
            } else {
                self.conditions(call, HealthQuery::whole(&ids)).await?
            };
            let all = ids.into_iter().zip(found);
            let is_bad = |conditions: &Conditions| !conditions.is_healthy();
            // One that was deleted since it was listed is none.
            let bad = all.filter_map(|(id, found)| Some((id, found.filter(is_bad)?)));
            let entries: Vec<_> = bad.collect();
            if !entries.is_empty() || listed.next.is_none() || began.elapsed() >= PASSING_OVER {
                return Ok(Page {
                    entries,
                    next: listed.next,
                });
            }
            page.after = listed.next;
        }
    }

    /// See [`super::Transfer::export_formats`]; none without the facet.
    pub fn export_formats(&self) -> &'static [TransferFormat] {
        self.transfer()
            .map_or(&[], |transfer| transfer.export_formats())
    }

    /// See [`super::Transfer::import_formats`]; none without the facet.
    pub fn import_formats(&self) -> &'static [TransferFormat] {
        self.transfer()
            .map_or(&[], |transfer| transfer.import_formats())
    }

    /// See [`super::Transfer::export`].
    pub fn export(
        &self,
        source: &Source,
        tag: &CopyTag,
    ) -> Result<Box<dyn ExportStream + '_>, Error> {
        match self.transfer() {
            Some(transfer) => transfer.export(source, tag),
            None => Err(self.unsupported("export content to another connection")),
        }
    }
}
