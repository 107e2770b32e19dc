//! A driver for the tests of this crate: volumes in memory, and trouble on demand.
//!
//! It is not a model of storage; driver-core's contract suite judges drivers. Here it is only what
//! the layers above a driver can be tested against.

mod gate;
pub(crate) mod keeper;
pub(crate) mod log;
mod multi_connection;

pub(crate) use gate::{Gate, hold_paused_clock};
pub(crate) use multi_connection::{
    among, multi_connection, multi_of, multi_under, under_legacy_name,
};

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::SystemTime;

use csi_types::attachment::Hostpath;
use csi_types::{AbsolutePath, Attachment};
use driver_core::config::{Document, NoEnvironment};
use driver_core::{
    AccessRules, BackendIdentity, Call, Capabilities, Capacity, CapacityQuery, CapacityReporter,
    CreateSnapshot, CreateVolume, DeleteSnapshot, DeleteVolume, Driver, Effect, Error,
    ExpandVolume, Expanded, Expander, Expansion, FindVolume, Found, GetSnapshot, Kind, Lister,
    MadeFor, Modifier, ModifyVolume, NodeId, Page, PageRequest, PageToken, Parameters,
    PublishVolume, Publisher, Snapshot, SnapshotFilter, SnapshotId, Snapshots, Source, Topology,
    UnpublishVolume, Volume, VolumeId, VolumeName,
};
use node_utils::Tools;
use tokio::sync::Notify;

use crate::app::App;
use crate::csi::environment::Environment;
use crate::csi::plugin::{Modes, Plugin};
use crate::csi::spec_version::CsiVersion;
use crate::routing::connection::Connection;
use crate::routing::connections::ConnectionName;
use crate::routing::plugin_name::PluginName;
use crate::rpc::{Deadlines, Runner};
use crate::telemetry::metrics::Metrics;

/// The trouble of the next verb, instead of its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// It waits until the test releases it.
    Wait,
    /// It panics, before or after its first change.
    Panic(Effect),
    /// It panics at an unexpected place: while naming.
    PanicInName,
    /// It fails, and marks the error so.
    Fail(Kind, Effect),
    /// It fails after its first change, and forgets to mark the error.
    Forget(Kind),
    /// It makes an id or a context that is too long.
    Oversize,
}

#[derive(Debug, Default)]
struct State {
    volumes: BTreeMap<VolumeId, Volume>,
    snapshots: BTreeMap<SnapshotId, Snapshot>,
    /// Volumes of which the storage has a part.
    partial: BTreeSet<VolumeId>,
    trouble: Option<Trouble>,
    nodes: Vec<String>,
    /// The one mutable parameter of volumes.
    speeds: BTreeMap<VolumeId, String>,
    /// What volumes were grown to, in this order.
    growths: Vec<(String, u64)>,
    entered: u64,
}

/// A driver in memory.
#[derive(Debug)]
pub(crate) struct Memory {
    state: Mutex<State>,
    pub(crate) entered: Notify,
    pub(crate) go_on: Notify,
    pub(crate) can: Capabilities,
    pub(crate) room: AtomicU64,
    /// Whether a volume that is to be made turns out not to fit.
    pub(crate) full: AtomicBool,
    /// Shut while verbs are to hang in a thread.
    pub(crate) gate: Arc<Gate>,
}

pub(crate) const EVERYTHING: Capabilities = Capabilities {
    volumes: true,
    list_volumes: true,
    get_volume: true,
    capacity: true,
    snapshots: true,
    list_snapshots: true,
    get_snapshot: true,
    clones: true,
    expand: Expansion::Controller,
    topology: true,
    ..Capabilities::NONE
};

/// A plugin over `driver`, with a configuration.
pub(crate) fn plugin<D: Driver + 'static>(driver: &Arc<D>, yaml: &str) -> Arc<Plugin> {
    let document = Document::parse(yaml, &NoEnvironment).expect("yaml");
    let at = environment();
    let (name, context) = (ConnectionName::unnamed(), App::context(&at));
    let connection = Connection::over(name, driver.clone(), &document, &context);
    let app = App::over(connection.expect("a connection"), &document, &at);
    serve(app.expect("an app"))
}

fn environment() -> Environment {
    Environment {
        node: NodeId::parse("node-1").expect("node"),
        version: CsiVersion::minor(12),
        tools: Tools::of_this_machine(),
        modes: None,
    }
}

/// A plugin that serves `app`.
pub(crate) fn serve(app: App) -> Arc<Plugin> {
    let name = PluginName::parse("org.example.test").expect("name");
    let modes = Modes {
        controller: true,
        node: true,
    };
    let runner = Runner::new(Deadlines::default(), Metrics::new());
    Arc::new(app.plugin(name, modes, runner))
}

// === impl Memory ===

impl Memory {
    pub(crate) fn new() -> Arc<Self> {
        Self::with(EVERYTHING)
    }

    pub(crate) fn with(can: Capabilities) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            entered: Notify::new(),
            go_on: Notify::new(),
            can,
            room: AtomicU64::new(u64::MAX),
            full: AtomicBool::new(false),
            gate: Arc::default(),
        })
    }

    pub(crate) fn trouble(&self, trouble: Trouble) {
        self.state().trouble = Some(trouble);
    }

    /// The number of verbs that were asked for.
    pub(crate) fn asked(&self) -> u64 {
        self.state().entered
    }

    /// The mutable parameter of a volume.
    pub(crate) fn speed(&self, id: &str) -> Option<String> {
        let id = VolumeId::parse(id).expect("id");
        self.state().speeds.get(&id).cloned()
    }

    /// The nodes that were let in (`+`) and shut out (`-`).
    pub(crate) fn nodes(&self) -> Vec<String> {
        self.state().nodes.clone()
    }

    /// The volumes that were grown, and to what.
    pub(crate) fn growths(&self) -> Vec<(String, u64)> {
        self.state().growths.clone()
    }

    pub(crate) fn has(&self, id: &str) -> bool {
        self.state()
            .volumes
            .keys()
            .any(|known| known.as_str() == id)
    }

    /// Adds volumes without a call.
    pub(crate) fn fill(&self, ids: impl IntoIterator<Item = String>, path: &str) {
        let mut state = self.state();
        for id in ids {
            let id = VolumeId::parse(&id).expect("id");
            let volume = volume(&id, path, None);
            state.volumes.insert(id, volume);
        }
    }

    /// Makes a part of a volume without a call.
    pub(crate) fn begin(&self, id: &str) {
        let id = VolumeId::parse(id).expect("id");
        self.state().partial.insert(id);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .expect("no test panics while it holds this")
    }

    /// Waits in a thread while the gate is shut, as a system call on a dead mount does.
    async fn block(&self) -> Result<(), Error> {
        if self.gate.is_open() {
            return Ok(());
        }
        let gate = self.gate.clone();
        let wait = move || gate.pass();
        let thread = node_utils::blocking::spawn_on_account("wait", wait).await?;
        thread
            .await
            .map_err(|error| Error::new(Kind::Internal, "wait").because(error))
    }

    /// Takes the trouble that is due, and has it. `true`: the answer has to be too long.
    async fn enter(&self, call: &Call) -> Result<bool, Error> {
        let trouble = {
            let mut state = self.state();
            state.entered += 1;
            state.trouble.take()
        };
        self.entered.notify_one();
        self.block().await?;
        match trouble {
            None => Ok(false),
            Some(Trouble::Oversize) => Ok(true),
            Some(Trouble::Wait) => {
                self.go_on.notified().await;
                Ok(false)
            }
            Some(Trouble::Panic(effect)) => {
                if effect == Effect::Possible {
                    call.changing();
                }
                panic!("hunter2");
            }
            Some(Trouble::PanicInName) => unreachable!("taken by name_volume"),
            Some(Trouble::Fail(kind, effect)) => {
                Err(Error::new(kind, "work on memory").with_effect(effect))
            }
            Some(Trouble::Forget(kind)) => {
                call.changing();
                Err(Error::new(kind, "work on memory"))
            }
        }
    }
}

pub(crate) fn volume(id: &VolumeId, path: &str, source: Option<Source>) -> Volume {
    let path = AbsolutePath::parse(path).expect("path");
    Volume {
        id: id.clone(),
        capacity: Some(1 << 30),
        attachment: Attachment::Hostpath(Hostpath { path }),
        source,
        topology: vec![Topology::node("node-1")],
        made_for: MadeFor::default(),
        published_to: Vec::new(),
    }
}

fn page<K: Ord + Clone + AsRef<str>, T: Clone>(
    all: &BTreeMap<K, T>,
    page: &PageRequest,
) -> Result<Page<T>, Error> {
    let after = page.after.as_ref().map(|token| token.0.as_str());
    if let Some(after) = after
        && !all.keys().any(|key| key.as_ref() == after)
    {
        return Err(Error::new(
            Kind::Pending,
            "list from a token that is not ours",
        ));
    }
    let mut rest = all
        .iter()
        .filter(|(key, _)| after.is_none_or(|after| key.as_ref() > after))
        .peekable();
    let mut entries = Vec::new();
    let mut next = None;
    while let Some((key, value)) = rest.next() {
        entries.push(value.clone());
        if Some(entries.len()) == page.max {
            next = rest.peek().map(|_| PageToken(key.as_ref().to_owned()));
            break;
        }
    }
    Ok(Page { entries, next })
}

#[async_trait::async_trait]
impl Driver for Memory {
    fn kind(&self) -> &'static str {
        "memory"
    }

    fn access_rules(&self) -> AccessRules {
        AccessRules::filesystem(&[])
    }

    fn backend_identity(&self) -> BackendIdentity {
        BackendIdentity(format!("memory {:p}", &raw const self.state))
    }

    fn name_volume(&self, name: &VolumeName, _: &Parameters) -> Result<VolumeId, Error> {
        let trouble = self.state().trouble;
        assert_ne!(trouble, Some(Trouble::PanicInName), "hunter2");
        let text = match name.as_str() {
            "long" => "l".repeat(129),
            name => name.to_owned(),
        };
        VolumeId::parse(&text).map_err(|error| Error::invalid("name").because(error))
    }

    async fn probe(&self, _: &Call) -> Vec<Error> {
        self.block().await.err().into_iter().collect()
    }

    async fn create_volume(&self, call: &Call, request: &CreateVolume) -> Result<Volume, Error> {
        let oversize = self.enter(call).await?;
        if self.full.load(Ordering::Relaxed) {
            // It has tried, and seen that nothing of it is there.
            call.changing();
            call.undone();
            return Err(Error::new(Kind::OutOfSpace, "make a volume"));
        }
        let path = if oversize {
            format!("/{}", "p".repeat(4094))
        } else {
            format!("/{}", request.id.as_str().escape_default())
        };
        let made = volume(&request.id, &path, request.source.clone());
        let mut state = self.state();
        state.partial.remove(&request.id);
        state.volumes.insert(request.id.clone(), made.clone());
        Ok(made)
    }

    async fn delete_volume(&self, call: &Call, request: DeleteVolume<'_>) -> Result<(), Error> {
        let id = request.id;
        self.enter(call).await?;
        self.state().volumes.remove(id);
        Ok(())
    }

    async fn find_volume(&self, call: &Call, request: FindVolume<'_>) -> Result<Found, Error> {
        let id = request.id;
        if !self.can.get_volume {
            return Err(self.unsupported("get volume"));
        }
        match self.get_volume(call, id).await {
            Err(error) if error.kind() == Kind::NotFound && self.state().partial.contains(id) => {
                Ok(Found::Begun)
            }
            found => found.map(|_| Found::Whole),
        }
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

    fn modifier(&self) -> Option<&dyn Modifier> {
        self.can.modify.then_some(self)
    }

    fn publisher(&self) -> Option<&dyn Publisher> {
        self.can.publish.then_some(self)
    }

    fn node_topology(&self) -> Option<Topology> {
        self.can.topology.then(|| Topology::node("node-1"))
    }
}

#[async_trait::async_trait]
impl Lister for Memory {
    async fn get_volume(&self, call: &Call, id: &VolumeId) -> Result<Volume, Error> {
        self.enter(call).await?;
        let found = self.state().volumes.get(id).cloned();
        found.ok_or_else(|| Error::not_found(format!("volume `{id}`")))
    }

    async fn list_volumes(&self, call: &Call, wanted: &PageRequest) -> Result<Page<Volume>, Error> {
        self.enter(call).await?;
        let state = self.state();
        let all = state.volumes.iter().map(|(id, v)| (id.as_str(), v.clone()));
        page(&all.collect(), wanted)
    }
}

#[async_trait::async_trait]
impl Expander for Memory {
    fn node_expands(&self) -> bool {
        self.can.expand == Expansion::ControllerAndNode
    }

    fn is_node_local(&self) -> bool {
        self.can.expand == Expansion::Node
    }

    /// Ids may say that they are of this node.
    fn may_be_elsewhere(&self, id: &VolumeId) -> bool {
        self.is_node_local() && !id.as_str().starts_with("own-")
    }

    async fn expand_volume(
        &self,
        call: &Call,
        request: ExpandVolume<'_>,
    ) -> Result<Expanded, Error> {
        let ExpandVolume { id, size, .. } = request;
        self.get_volume(call, id).await?;
        let capacity = size.choose(1).expect("size");
        let growth = (id.as_str().to_owned(), capacity);
        self.state().growths.push(growth);
        Ok(Expanded {
            capacity,
            node_expansion_required: false,
        })
    }
}

#[async_trait::async_trait]
impl CapacityReporter for Memory {
    async fn capacity(&self, call: &Call, _: &CapacityQuery) -> Result<Capacity, Error> {
        self.enter(call).await?;
        Ok(Capacity {
            available: self.room.load(Ordering::Relaxed),
            maximum_volume_size: Some(5),
            minimum_volume_size: None,
        })
    }
}

#[async_trait::async_trait]
impl Snapshots for Memory {
    async fn create_snapshot(
        &self,
        call: &Call,
        request: &CreateSnapshot,
    ) -> Result<Snapshot, Error> {
        let oversize = self.enter(call).await?;
        let name = if oversize {
            "s".repeat(129)
        } else {
            request.name.as_str().to_owned()
        };
        let snapshot = Snapshot {
            id: SnapshotId::parse(&name).expect("id"),
            source: request.source.clone(),
            size: 0,
            created: SystemTime::UNIX_EPOCH,
            ready: true,
            topology: Vec::new(),
            group: None,
        };
        let known = snapshot.clone();
        self.state().snapshots.insert(known.id.clone(), known);
        Ok(snapshot)
    }

    async fn delete_snapshot(&self, call: &Call, request: DeleteSnapshot<'_>) -> Result<(), Error> {
        let id = request.id;
        self.enter(call).await?;
        self.state().snapshots.remove(id);
        Ok(())
    }

    async fn get_snapshot(&self, call: &Call, request: GetSnapshot<'_>) -> Result<Snapshot, Error> {
        let id = request.id;
        self.enter(call).await?;
        let found = self.state().snapshots.get(id).cloned();
        found.ok_or_else(|| Error::not_found(format!("snapshot `{id}`")))
    }

    async fn list_snapshots(
        &self,
        call: &Call,
        filter: &SnapshotFilter,
        wanted: &PageRequest,
    ) -> Result<Page<Snapshot>, Error> {
        self.enter(call).await?;
        let state = self.state();
        let all = state.snapshots.iter();
        let all = all.filter(|(_, s)| filter.source.as_ref().is_none_or(|id| *id == s.source));
        page(
            &all.map(|(id, s)| (id.as_str(), s.clone())).collect(),
            wanted,
        )
    }
}

#[async_trait::async_trait]
impl Publisher for Memory {
    async fn publish_volume(&self, call: &Call, request: PublishVolume<'_>) -> Result<(), Error> {
        self.enter(call).await?;
        self.state().nodes.push(format!("+{}", request.node.id));
        Ok(())
    }

    async fn unpublish_volume(
        &self,
        call: &Call,
        request: UnpublishVolume<'_>,
    ) -> Result<(), Error> {
        let node = request.node;
        self.enter(call).await?;
        let node = node.map_or("*", |node| node.id.as_str());
        self.state().nodes.push(format!("-{node}"));
        Ok(())
    }
}

#[async_trait::async_trait]
impl Modifier for Memory {
    fn mutable_keys(&self) -> &[&'static str] {
        &["speed"]
    }

    async fn modify_volume(&self, call: &Call, request: ModifyVolume<'_>) -> Result<(), Error> {
        let ModifyVolume { id, parameters, .. } = request;
        self.get_volume(call, id).await?;
        let speed = parameters.raw().get("speed").cloned().unwrap_or_default();
        if speed.is_empty() {
            return Err(Error::invalid("parameter `speed`").because("it is empty"));
        }
        call.changing();
        self.state().speeds.insert(id.clone(), speed);
        Ok(())
    }
}
