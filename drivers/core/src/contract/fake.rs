//! A driver in memory that keeps the contract, and hooks to make it misbehave on purpose.
//!
//! For tests of the layers above: what happens while a call blocks, panics or fails before and
//! after its first change. Its volumes have no content.

mod fences;
mod hooks;
mod state;

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use csi_types::{Condition, Conditions, NodeIdentity};

use self::hooks::Hooks;
pub use self::hooks::{Gate, Moment, Trick, Verb};
use self::state::{Ranges, State};
use crate::call::Call;
use crate::driver::{
    AccessRules, BlockMetadata, BlockRange, BlockRanges, Capabilities, CapacityReporter, Driver,
    Expander, Expansion, Fencer, GroupSnapshot, Groups, Health, Lister, Modifier, Publisher,
    Snapshots,
};
use crate::error::{Error, Kind};
use crate::naming::VolumeNaming;
use crate::parameters::Parameters;
use crate::request::{
    BlockRangesQuery, CreateGroup, DeleteSnapshot, DeleteVolume, ExpandVolume, FindVolume,
    GetSnapshot, GroupMembers, HealthQuery, ModifyVolume, PublishVolume, UnpublishVolume,
};
use crate::text::{NodeId, VolumeId, VolumeName};
use crate::topology::Topology;
use crate::volume::{
    BackendIdentity, Capacity, CapacityQuery, CreateSnapshot, CreateVolume, Expanded, Found, Page,
    PageRequest, Snapshot, SnapshotFilter, Volume,
};

/// The longest id of a volume: leaves room for the name of a snapshot.
const MAX_ID: usize = 90;

/// The parameter of volumes that can be changed.
const SPEED: &str = "speed";

/// A driver in memory.
#[derive(Debug)]
pub struct FakeDriver {
    verbs: Capabilities,
    rules: AccessRules,
    naming: VolumeNaming,
    node: Topology,
    state: State,
    hooks: Arc<Hooks>,
    /// Whether the storage lets in single nodes.
    knows_nodes: bool,
}

impl Default for FakeDriver {
    fn default() -> Self {
        Self::new()
    }
}

// === impl FakeDriver ===

impl FakeDriver {
    /// A driver with every verb, volumes of one node, and nothing in it.
    pub fn new() -> Self {
        let verbs = Capabilities {
            volumes: true,
            list_volumes: true,
            get_volume: true,
            capacity: true,
            snapshots: true,
            list_snapshots: true,
            get_snapshot: true,
            clones: true,
            expand: Expansion::Controller,
            publish: true,
            published_nodes: true,
            fence: true,
            topology: true,
            modify: true,
            groups: true,
            block_metadata: true,
            health: true,
            ..Capabilities::NONE
        };
        Self {
            verbs,
            rules: AccessRules::filesystem(&["ext4"]),
            naming: VolumeNaming::new(&crate::config::CommonConfig::default()).at_most(MAX_ID),
            node: Topology::node("fake-node"),
            state: State::default(),
            hooks: Arc::default(),
            knows_nodes: true,
        }
    }

    /// With these verbs.
    #[must_use]
    pub fn with_capabilities(mut self, verbs: Capabilities) -> Self {
        self.verbs = verbs;
        self
    }

    /// Of a storage that does not know nodes, and only records them.
    #[must_use]
    pub fn without_nodes(mut self) -> Self {
        self.knows_nodes = false;
        self
    }

    /// With other access rules.
    #[must_use]
    pub fn with_access_rules(mut self, rules: AccessRules) -> Self {
        self.rules = rules;
        self
    }

    /// Sets a trick for the next call of `verb`; several are queued.
    pub fn play(&self, verb: Verb, moment: Moment, trick: Trick) {
        self.hooks.play(verb, moment, trick);
    }

    /// The number of times that `verb` was called.
    pub fn calls(&self, verb: Verb) -> usize {
        self.hooks.calls(verb)
    }

    /// The ids of all volumes.
    pub fn volume_ids(&self) -> Vec<VolumeId> {
        self.state.volume_ids()
    }

    /// The volumes, with the nodes that may reach them.
    pub fn published(&self) -> Vec<(VolumeId, NodeIdentity)> {
        self.state.published()
    }

    /// The changed parameters of a volume.
    pub fn modified(&self, id: &VolumeId) -> BTreeMap<String, String> {
        self.state.modified(id)
    }

    /// Writes to a volume, so that its snapshots have ranges that hold data.
    pub fn write(&self, id: &VolumeId, range: BlockRange) {
        self.state.write(id, range);
    }

    /// Something goes wrong with a volume; without a condition all is well again.
    pub fn harm(&self, id: &VolumeId, conditions: impl IntoIterator<Item = Condition>) {
        self.state.harm(id, conditions.into_iter().collect());
    }

    /// Runs a verb that changes something, with its hooks.
    async fn change<T>(
        &self,
        call: &Call,
        verb: Verb,
        work: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.hooks.count(verb);
        call.check(verb.name())?;
        self.hooks.at(call, verb, Moment::BeforeChange).await?;
        call.changing();
        let outcome = work()?;
        self.hooks.at(call, verb, Moment::AfterChange).await?;
        Ok(outcome)
    }

    /// Runs a verb that changes nothing, with its hooks.
    async fn look<T>(
        &self,
        call: &Call,
        verb: Verb,
        work: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.hooks.count(verb);
        self.hooks.at(call, verb, Moment::BeforeChange).await?;
        work()
    }
}

/// Rejects a verb that is disabled.
fn there(verb: Verb, is_there: bool) -> Result<(), Error> {
    if is_there {
        Ok(())
    } else {
        Err(Error::unsupported(verb.name()))
    }
}

/// Rejects an id that this driver cannot have issued.
fn ours(id: &VolumeId) -> Result<(), Error> {
    let word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    if id.as_str().len() <= MAX_ID
        && id.as_str().starts_with(|c: char| c.is_ascii_alphanumeric())
        && id.as_str().chars().all(word)
    {
        return Ok(());
    }
    Err(Error::invalid(format!("volume id {id:?}")))
}

/// Rejects parameters that no volume can have.
fn can_be(parameters: &Parameters) -> Result<(), Error> {
    if parameters.raw().get(SPEED).is_some_and(String::is_empty) {
        return Err(Error::invalid(format!("parameter `{SPEED}`")).because("it is empty"));
    }
    Ok(())
}

#[async_trait]
impl Driver for FakeDriver {
    fn kind(&self) -> &'static str {
        "fake"
    }

    fn access_rules(&self) -> AccessRules {
        self.rules.clone()
    }

    fn backend_identity(&self) -> BackendIdentity {
        BackendIdentity("fake".into())
    }

    fn name_volume(&self, name: &VolumeName, parameters: &Parameters) -> Result<VolumeId, Error> {
        self.naming.volume_id(name, parameters)
    }

    async fn probe(&self, call: &Call) -> Vec<Error> {
        let outcome = self.look(call, Verb::Probe, || Ok(())).await;
        outcome.err().into_iter().collect()
    }

    async fn create_volume(&self, call: &Call, request: &CreateVolume) -> Result<Volume, Error> {
        use crate::volume::Source;
        ours(&request.id)?;
        can_be(&request.parameters)?;
        let topology = if self.verbs.topology {
            vec![self.node.clone()]
        } else {
            Vec::new()
        };
        match &request.source {
            Some(Source::Snapshot(_)) => there(Verb::CreateVolume, self.verbs.snapshots)?,
            Some(Source::Volume(_)) => there(Verb::CreateVolume, self.verbs.clones)?,
            Some(Source::Elsewhere(_)) => there(Verb::CreateVolume, false)?,
            None => {}
        }
        if topology
            .iter()
            .any(|place| !request.topology.accepts(place))
        {
            let doing = format!("create volume {}", request.id);
            return Err(Error::new(Kind::OutOfSpace, doing));
        }
        let work = || self.state.create_volume(request, topology);
        self.change(call, Verb::CreateVolume, work).await
    }

    async fn delete_volume(&self, call: &Call, request: DeleteVolume<'_>) -> Result<(), Error> {
        let id = request.id;
        ours(id)?;
        let work = || {
            self.state.delete_volume(id);
            Ok(())
        };
        self.change(call, Verb::DeleteVolume, work).await
    }

    async fn find_volume(&self, call: &Call, request: FindVolume<'_>) -> Result<Found, Error> {
        let id = request.id;
        ours(id)?;
        let found = || self.state.volume(id).map(|_| Found::Whole);
        self.look(call, Verb::FindVolume, found).await
    }

    fn clones_volumes(&self) -> bool {
        self.verbs.clones
    }

    fn lister(&self) -> Option<&dyn Lister> {
        self.verbs.list_volumes.then_some(self)
    }

    fn expander(&self) -> Option<&dyn Expander> {
        (self.verbs.expand != Expansion::None).then_some(self)
    }

    fn capacity_reporter(&self) -> Option<&dyn CapacityReporter> {
        self.verbs.capacity.then_some(self)
    }

    fn snapshots(&self) -> Option<&dyn Snapshots> {
        self.verbs.snapshots.then_some(self)
    }

    fn publisher(&self) -> Option<&dyn Publisher> {
        self.verbs.publish.then_some(self)
    }

    fn fencer(&self) -> Option<&dyn Fencer> {
        self.verbs.fence.then_some(self)
    }

    fn modifier(&self) -> Option<&dyn Modifier> {
        self.verbs.modify.then_some(self)
    }

    fn groups(&self) -> Option<&dyn Groups> {
        self.verbs.groups.then_some(self)
    }

    fn block_metadata(&self) -> Option<&dyn BlockMetadata> {
        self.verbs.block_metadata.then_some(self)
    }

    fn health(&self) -> Option<&dyn Health> {
        self.verbs.health.then_some(self)
    }

    fn node_topology(&self) -> Option<Topology> {
        self.verbs.topology.then(|| self.node.clone())
    }
}

#[async_trait]
impl Lister for FakeDriver {
    async fn get_volume(&self, call: &Call, id: &VolumeId) -> Result<Volume, Error> {
        ours(id)?;
        self.look(call, Verb::GetVolume, || self.state.volume(id))
            .await
    }

    async fn list_volumes(&self, call: &Call, page: &PageRequest) -> Result<Page<Volume>, Error> {
        self.look(call, Verb::ListVolumes, || self.state.list_volumes(page))
            .await
    }
}

#[async_trait]
impl Health for FakeDriver {
    async fn conditions(
        &self,
        call: &Call,
        query: HealthQuery<'_>,
    ) -> Result<Vec<Option<Conditions>>, Error> {
        query.ids.iter().try_for_each(ours)?;
        let work = || Ok(self.state.conditions(query.ids));
        self.look(call, Verb::Conditions, work).await
    }

    async fn candidates(&self, call: &Call, page: &PageRequest) -> Result<Page<VolumeId>, Error> {
        let listed = self.list_volumes(call, page).await?;
        Ok(listed.map(|volume| volume.id))
    }
}

#[async_trait]
impl Expander for FakeDriver {
    fn node_expands(&self) -> bool {
        self.verbs.expand == Expansion::ControllerAndNode
    }

    async fn expand_volume(
        &self,
        call: &Call,
        request: ExpandVolume<'_>,
    ) -> Result<Expanded, Error> {
        let ExpandVolume { id, size, .. } = request;
        ours(id)?;
        let work = || self.state.expand(id, size, self.node_expands());
        self.change(call, Verb::ExpandVolume, work).await
    }
}

#[async_trait]
impl CapacityReporter for FakeDriver {
    async fn capacity(&self, call: &Call, _query: &CapacityQuery) -> Result<Capacity, Error> {
        let free = Capacity {
            available: 1 << 40,
            ..Capacity::default()
        };
        self.look(call, Verb::Capacity, || Ok(free)).await
    }
}

#[async_trait]
impl Snapshots for FakeDriver {
    async fn create_snapshot(
        &self,
        call: &Call,
        request: &CreateSnapshot,
    ) -> Result<Snapshot, Error> {
        ours(&request.source)?;
        let work = || self.state.create_snapshot(request);
        self.change(call, Verb::CreateSnapshot, work).await
    }

    async fn delete_snapshot(&self, call: &Call, request: DeleteSnapshot<'_>) -> Result<(), Error> {
        let id = request.id;
        let work = || self.state.delete_snapshot(id);
        self.change(call, Verb::DeleteSnapshot, work).await
    }

    async fn get_snapshot(&self, call: &Call, request: GetSnapshot<'_>) -> Result<Snapshot, Error> {
        let id = request.id;
        self.look(call, Verb::GetSnapshot, || self.state.snapshot(id))
            .await
    }

    async fn list_snapshots(
        &self,
        call: &Call,
        filter: &SnapshotFilter,
        page: &PageRequest,
    ) -> Result<Page<Snapshot>, Error> {
        let work = || self.state.list_snapshots(filter, page);
        self.look(call, Verb::ListSnapshots, work).await
    }
}

#[async_trait]
impl Publisher for FakeDriver {
    fn knows_nodes(&self) -> bool {
        self.knows_nodes
    }

    fn records(&self) -> bool {
        self.verbs.published_nodes
    }

    async fn publish_volume(&self, call: &Call, request: PublishVolume<'_>) -> Result<(), Error> {
        ours(request.id)?;
        let work = || self.state.publish(request.id, request.node);
        self.change(call, Verb::PublishVolume, work).await
    }

    async fn unpublish_volume(
        &self,
        call: &Call,
        request: UnpublishVolume<'_>,
    ) -> Result<(), Error> {
        let UnpublishVolume { id, node, .. } = request;
        ours(id)?;
        let work = || {
            self.state.unpublish(Some(id), node.map(|node| &node.id));
            Ok(())
        };
        self.change(call, Verb::UnpublishVolume, work).await
    }

    async fn fence_node(&self, call: &Call, node: &NodeId) -> Result<(), Error> {
        let work = || {
            self.state.unpublish(None, Some(node));
            Ok(())
        };
        self.change(call, Verb::FenceNode, work).await
    }
}

#[async_trait]
impl Modifier for FakeDriver {
    fn mutable_keys(&self) -> &[&'static str] {
        &[SPEED]
    }

    async fn modify_volume(&self, call: &Call, request: ModifyVolume<'_>) -> Result<(), Error> {
        let ModifyVolume { id, parameters, .. } = request;
        ours(id)?;
        can_be(parameters)?;
        let work = || self.state.modify(id, parameters);
        self.change(call, Verb::ModifyVolume, work).await
    }
}

#[async_trait]
impl Groups for FakeDriver {
    async fn create_group(
        &self,
        call: &Call,
        request: CreateGroup<'_>,
    ) -> Result<GroupSnapshot, Error> {
        let CreateGroup { name, volumes, .. } = request;
        volumes.iter().try_for_each(ours)?;
        let work = || self.state.create_group(name, volumes);
        self.change(call, Verb::CreateGroup, work).await
    }

    async fn delete_group(&self, call: &Call, request: GroupMembers<'_>) -> Result<(), Error> {
        let GroupMembers { id, snapshots, .. } = request;
        let work = || self.state.delete_group(id, snapshots);
        self.change(call, Verb::DeleteGroup, work).await
    }

    async fn get_group(
        &self,
        call: &Call,
        request: GroupMembers<'_>,
    ) -> Result<GroupSnapshot, Error> {
        let GroupMembers { id, snapshots, .. } = request;
        let work = || self.state.get_group(id, snapshots);
        self.look(call, Verb::GetGroup, work).await
    }
}

#[async_trait]
impl BlockMetadata for FakeDriver {
    async fn block_ranges(
        &self,
        call: &Call,
        request: BlockRangesQuery<'_>,
    ) -> Result<Box<dyn BlockRanges>, Error> {
        let BlockRangesQuery {
            snapshot,
            base,
            offset,
            ..
        } = request;
        let work = || self.state.ranges(snapshot, base, offset);
        let found = self.look(call, Verb::BlockRanges, work).await?;
        Ok(Box::new(Ranges::new(found, call, &self.hooks)))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::error::Effect;

    #[tokio::test]
    async fn tricks_are_played_once_in_order_and_tell_the_truth_about_changes() {
        let driver = Arc::new(FakeDriver::new());
        let id = VolumeId::parse("a").unwrap();
        let gate = Gate::new();
        let verb = Verb::DeleteVolume;
        driver.play(verb, Moment::BeforeChange, Trick::Fail(Kind::Unreachable));
        driver.play(verb, Moment::BeforeChange, Trick::Block(gate.clone()));
        driver.play(verb, Moment::AfterChange, Trick::Fail(Kind::Timeout));
        driver.play(verb, Moment::AfterChange, Trick::Panic);
        let delete = || {
            let (driver, id) = (driver.clone(), id.clone());
            tokio::spawn(async move {
                let call = Call::within(Duration::from_mins(1));
                driver.delete_volume(&call, DeleteVolume::new(&id)).await
            })
        };
        let first = delete().await.unwrap().unwrap_err();
        assert_eq!(
            (first.kind(), first.effect()),
            (Kind::Unreachable, Effect::None)
        );
        let blocked = delete();
        gate.reached().await;
        assert!(!blocked.is_finished());
        gate.open();
        let second = blocked.await.unwrap().unwrap_err();
        assert_eq!(
            (second.kind(), second.effect()),
            (Kind::Timeout, Effect::Possible)
        );
        assert!(delete().await.unwrap_err().is_panic());
        assert!(delete().await.unwrap().is_ok());
        assert_eq!(driver.calls(verb), 4);
    }
}
