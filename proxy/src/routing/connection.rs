//! One backend with its configuration: its driver, and the rules for what it makes.
//!
//! Only this module builds drivers by name. It touches no backend: a connection exists before its
//! storage can be reached.

pub(crate) mod inline;
mod kinds;
mod per_driver;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use csi_types::{AbsolutePath, AccessMode, Attachment, VolumeCapability, VolumeContext};
use driver_core::config::{
    CommonConfig, ConfigError, DeleteStrategy, Document, NodeOptions, ServiceConfig,
};
use driver_core::text::{GroupSnapshotId, MAX_MAP, MAX_STRING};
use driver_core::{
    AccessRules, Call, Capabilities, Driver, DriverHost, Error, Kind, NodeId, Parameters,
    SnapshotId, Topology, VolumeId, VolumeName,
};
use driver_node_manual::NodeManual;
use node_utils::Tools;
use node_utils::blocking::Threads;
use tokio::runtime::Handle;
use tokio::time::timeout;

use crate::process;
use crate::routing::connections::{ConnectionName, GroupHandle, SnapshotHandle, VolumeHandle};
use crate::routing::node_id::Mapping;
use crate::routing::own_thread;
use crate::routing::topology::matching::{Accessibility, TopologyKeys};
use inline::InlineRules;

#[cfg(test)]
pub(crate) use kinds::{LETTING_IN, built, least};
pub(crate) use kinds::{PROXY, like, sections};
pub(crate) use per_driver::PerDriver;

/// The common environment of all connections of a process.
#[derive(Debug, Clone)]
pub struct ConnectionContext {
    /// The node that the process runs on.
    pub node: NodeId,
    /// The programs of that node.
    pub tools: Tools,
    /// Whether the process uses storage for the calls of a controller.
    pub controls: bool,
    /// The rules of topology.
    pub keys: TopologyKeys,
    /// Why volumes of the node itself cannot be served here, if they cannot.
    pub no_local: Option<&'static str>,
    /// The topology of this node, for local storage.
    pub place: Option<Topology>,
    /// How many threads each connection with a name may keep for its calls.
    pub threads: usize,
}

/// One backend with its configuration.
#[derive(Debug)]
pub struct Connection {
    name: ConnectionName,
    scope: Arc<str>,
    instance: Option<String>,
    driver: Arc<dyn Driver>,
    access: AccessRules,
    delete: DeleteStrategy,
    node_options: Option<NodeOptions>,
    accessibility: Accessibility,
    nodes: Mapping,
    new_volumes: bool,
    inline: InlineRules,
    threads: Option<Account>,
    service: ServiceConfig,
    /// The connection that this one is, for callers who know no other. It is in use as long as this one.
    shared: Option<Arc<Self>>,
}

/// The threads of a connection among others. Clones are the same.
#[derive(Debug, Clone)]
pub(crate) struct Account {
    questions: Threads,
    copies: Threads,
    deletions: Threads,
    probe: Threads,
}

/// The kind of work that a thread does for a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WorkClass {
    /// Short work, unless the storage hangs.
    Short,
    /// A copy, which may be large and blocks no other work.
    Copy,
    /// A deletion, which may be large and blocks no other work.
    Deletion,
}

/// The way local storage is served. compat: "The proxy".
const LOCAL: &str = "serve it from a process on every node, with `--csi-mode=controller` and \
                     `--csi-mode=node`, and with `node` in `proxy.nodeTopology.type`";

/// Sections in the file of a connection that count only in a process with a single driver.
const OF_THE_MAIN_FILE: [(&str, &str); 2] = [
    (
        "service",
        "what is advertised is the same for all connections; set it in the main file. It counts under a name of \
         `proxy.legacyNames`",
    ),
    (
        "_private.volume_context",
        "nodes do not read this file; set it in the main file",
    ),
];

// === impl ConnectionContext ===

#[cfg(test)]
impl ConnectionContext {
    /// That of the controller on one node, without rules of topology.
    pub(crate) fn for_tests() -> Self {
        Self {
            node: NodeId::parse("node-1").expect("a node"),
            controls: true,
            tools: Tools::of_this_machine(),
            keys: TopologyKeys::default(),
            no_local: None,
            place: None,
            threads: 1,
        }
    }
}

impl DriverHost for ConnectionContext {
    fn node(&self) -> &NodeId {
        &self.node
    }

    fn records(&self) -> Option<&AbsolutePath> {
        process::state_dir()
    }

    fn is_controller(&self) -> bool {
        self.controls
    }
}

impl AsRef<Tools> for ConnectionContext {
    fn as_ref(&self) -> &Tools {
        &self.tools
    }
}

// === impl Connection ===

impl Connection {
    /// Builds the driver that `document` names.
    pub fn open(
        name: ConnectionName,
        document: &Document,
        context: &ConnectionContext,
    ) -> Result<Self, ConfigError> {
        let config = document.common()?;
        let factory = kinds::factory(&config.driver)?;
        let driver = (factory.build)(document, context)
            .map_err(|error| kinds::with_example(error, document, factory))?;
        Self::over(name, driver, document, context)
    }

    /// The same over a driver that is already built, whatever `document` names.
    pub fn over(
        name: ConnectionName,
        driver: Arc<dyn Driver>,
        document: &Document,
        context: &ConnectionContext,
    ) -> Result<Self, ConfigError> {
        let mut config = document.common()?;
        if driver.kind() == NodeManual::KIND {
            // compat: "node-manual".
            config.csi.access_modes = None;
        }
        document.without_effect(&[
            ("node.csiProxy", "there is no Windows node here"),
            (
                "_private.csi.volume.volumeContext",
                "a volume without a context is looked up in `_private.volume_context` anyway",
            ),
        ]);
        NodeOptions::check_guests(document, driver.access_rules().block)?;
        let mut connection = Self::of(name, driver, &config);
        if connection.can().inline {
            connection.inline = InlineRules::read(document, connection.name.is_named())?;
        } else {
            document.without_effect(&[("inline", "this driver has no inline volumes")]);
        }
        if connection.name.is_named() {
            document.without_effect(&OF_THE_MAIN_FILE);
            connection.among_others(document, context)?;
        }
        connection.has_room_for_contexts()?;
        Ok(connection)
    }

    /// Checks texts that an orchestrator must store, before there is a volume.
    fn has_room_for_contexts(&self) -> Result<(), ConfigError> {
        let longest = self.driver.longest_attachment();
        let bytes = longest.map_or(0, |longest| map_size(&self.context(&longest)));
        if bytes <= MAX_MAP {
            return Ok(());
        }
        let problem =
            format!("the context of a volume would take {bytes} bytes, and {MAX_MAP} is the most");
        Err(ConfigError::new(problem)
            .advise("shorten `instance_id`, the options in `node`, or the path to the volumes"))
    }

    /// A connection of these settings alone.
    pub fn of(name: ConnectionName, driver: Arc<dyn Driver>, config: &CommonConfig) -> Self {
        Self {
            scope: driver.backend_identity().0.into(),
            name,
            instance: config.instance_id.clone(),
            access: restricted(driver.access_rules(), config.csi.access_modes.as_deref()),
            driver,
            delete: config.private.csi.volume.delete_strategy,
            node_options: None,
            accessibility: Accessibility::everywhere(),
            nodes: Mapping::default(),
            new_volumes: true,
            inline: InlineRules::Everyone,
            threads: None,
            service: config.service.clone(),
            shared: None,
        }
    }

    /// The same connection for callers who know no other: its handles do not name it, and its volumes are
    /// where its driver says. Everything that it works with is shared.
    pub(crate) fn alone(shared: Arc<Self>) -> Arc<Self> {
        Arc::new(Self {
            name: shared.name.clone(),
            scope: Arc::clone(&shared.scope),
            instance: shared.instance.clone(),
            driver: Arc::clone(&shared.driver),
            access: shared.access.clone(),
            delete: shared.delete,
            node_options: shared.node_options.clone(),
            accessibility: Accessibility::everywhere(),
            nodes: shared.nodes.clone(),
            new_volumes: shared.new_volumes,
            inline: shared.inline.clone(),
            threads: shared.threads.clone(),
            service: shared.service.clone(),
            shared: Some(shared),
        })
    }

    /// One of several, with a driver that is already built.
    #[cfg(test)]
    pub(crate) fn among(
        name: ConnectionName,
        driver: Arc<dyn Driver>,
        document: &Document,
    ) -> Self {
        Self::over(name, driver, document, &ConnectionContext::for_tests()).expect("configuration")
    }

    /// The same that counts only where there are others, already read, for another driver.
    #[cfg(test)]
    pub(crate) fn twin(&self, name: ConnectionName, driver: Arc<dyn Driver>) -> Self {
        let account = Account::new(1);
        let mut twin = Self::of(name, driver, &CommonConfig::default());
        twin.node_options.clone_from(&self.node_options);
        twin.accessibility = self.accessibility.clone();
        twin.nodes = self.nodes.clone();
        twin.new_volumes = self.new_volumes;
        twin.with_threads(Some(account))
    }

    /// The settings that count only where there are other connections.
    fn among_others(
        &mut self,
        document: &Document,
        context: &ConnectionContext,
    ) -> Result<(), ConfigError> {
        if self.driver.node_topology().is_some()
            && let Some(why) = context.no_local
        {
            let kind = self.driver.kind();
            let problem = format!("the volumes of `{kind}` belong to a node, and {why}");
            return Err(ConfigError::at("driver", problem).advise(LOCAL));
        }
        if self.access.block {
            // It travels as text and is read by nodes: here is where an error is seen in time.
            document.common()?.filesystems(document)?;
        }
        self.node_options = NodeOptions::of(document, self.access.block)?;
        let per_driver = PerDriver::read(document)?;
        self.nodes = per_driver.mapping()?;
        self.accessibility = per_driver.accessibility(&context.keys)?;
        if let Some(own) = self.driver.node_topology() {
            self.accessibility = self
                .accessibility
                .clone()
                .on_node(&own, context.place.as_ref());
        }
        self.new_volumes = per_driver.new_volumes();
        self.threads = Some(Account::new(context.threads));
        Ok(())
    }

    /// Its name.
    pub fn name(&self) -> &ConnectionName {
        &self.name
    }

    /// The lock scope. Two connections to the same storage share it, because an object there can be
    /// reached under either name.
    pub(crate) fn scope(&self) -> &Arc<str> {
        &self.scope
    }

    /// Whether classes may have new volumes made here. compat: "The proxy".
    pub(crate) fn makes_new_volumes(&self) -> bool {
        self.new_volumes
    }

    /// The same on threads that it had before: it was built again, of the same content.
    pub(crate) fn with_threads(mut self, account: Option<Account>) -> Self {
        self.threads = account;
        self
    }

    /// Its threads, if it has some of its own.
    pub(crate) fn threads(&self) -> Option<Account> {
        self.threads.clone()
    }

    /// Runs work of a call on threads of this connection, with a limit for the wait for a thread.
    pub(crate) async fn run_limited<F: Future>(
        &self,
        class: WorkClass,
        patience: Duration,
        work: F,
    ) -> F::Output {
        let threads = self.threads.as_ref().map(|account| match class {
            WorkClass::Short => account.questions.within(patience),
            WorkClass::Copy => account.copies.within(patience),
            WorkClass::Deletion => account.deletions.within(patience),
        });
        match threads {
            Some(threads) => threads.on_account(work).await,
            None => work.await,
        }
    }

    /// Asks its driver on its own threads, within a time: work that no call waits for.
    pub(crate) async fn ask_within<T>(
        &self,
        patience: Duration,
        doing: &'static str,
        ask: impl AsyncFnOnce(&Call) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let call = Call::within(patience);
        let asked = self.run_limited(WorkClass::Short, patience, ask(&call));
        match timeout(2 * patience, asked).await {
            Ok(answer) => answer,
            Err(_) => Err(Error::new(Kind::Timeout, doing)),
        }
    }

    /// Probes its storage.
    pub(crate) async fn probe(&self, call: &Call) -> Vec<Error> {
        let probe = self.driver.probe(call);
        match &self.threads {
            Some(account) => account.probe.on_account(probe).await,
            None => probe.await,
        }
    }

    /// Its driver.
    pub fn driver(&self) -> &Arc<dyn Driver> {
        &self.driver
    }

    /// The ways in which its volumes can be used.
    pub(crate) fn access(&self) -> &AccessRules {
        &self.access
    }

    /// The capabilities of its driver.
    pub(crate) fn can(&self) -> Capabilities {
        self.driver.capabilities()
    }

    /// Whether its volumes are on a storage that it knows: others are made by hand, and each names its own.
    pub(crate) fn has_storage(&self) -> bool {
        self.can().volumes || self.can().inline
    }

    /// The error of a verb that it does not support. With several connections the request is invalid: a
    /// caller must not conclude that the whole plugin lacks the verb. compat: "The proxy".
    pub(crate) fn lacks(&self, verb: &'static str) -> Error {
        self.explain(self.driver.unsupported(verb))
    }

    /// The same for an error of its driver.
    pub(crate) fn explain(&self, error: Error) -> Error {
        if !self.is_routed() || error.kind() != Kind::Unsupported {
            return error;
        }
        let explained = error.within(format!("connection `{}`", self.name));
        explained.of_kind(Kind::Invalid)
    }

    /// The id of a volume as the orchestrator has it.
    pub(crate) fn volume_handle(&self, id: &VolumeId) -> String {
        VolumeHandle::write(&self.name_in_handles(), id)
    }

    /// The id of a snapshot as the orchestrator has it.
    pub(crate) fn snapshot_handle(&self, id: &SnapshotId) -> String {
        SnapshotHandle::write(&self.name_in_handles(), id)
    }

    /// The id of a group of snapshots as the orchestrator has it.
    pub(crate) fn group_handle(&self, id: &GroupSnapshotId) -> String {
        GroupHandle::write(&self.name_in_handles(), id)
    }

    /// Whether callers choose it among others.
    pub(crate) fn is_routed(&self) -> bool {
        self.name.is_named() && self.shared.is_none()
    }

    fn name_in_handles(&self) -> ConnectionName {
        if self.is_routed() {
            self.name.clone()
        } else {
            ConnectionName::unnamed()
        }
    }

    /// The services that its configuration names, advertised where it is alone.
    pub(crate) fn service(&self) -> &ServiceConfig {
        &self.service
    }

    /// The place where its volumes can be reached.
    pub(crate) fn accessibility(&self) -> &Accessibility {
        &self.accessibility
    }

    /// The pods that may have inline volumes here.
    pub(crate) fn inline_rules(&self) -> &InlineRules {
        &self.inline
    }

    /// What its backend calls nodes.
    pub(crate) fn nodes(&self) -> &Mapping {
        &self.nodes
    }

    /// Whether deleting a volume leaves it where it is.
    pub(crate) fn retains(&self) -> bool {
        self.delete == DeleteStrategy::Retain
    }

    /// Why a volume cannot be used in one of these ways, or `None`.
    pub(crate) fn refusal(&self, capabilities: &[VolumeCapability]) -> Option<String> {
        capabilities.iter().find_map(|c| self.access.refusal(c))
    }

    /// Refuses ways in which a volume cannot be used.
    pub(crate) fn allow(&self, capabilities: &[VolumeCapability]) -> Result<(), Error> {
        match self.refusal(capabilities) {
            Some(reason) => Err(Error::invalid(format!("invalid capability: {reason}"))),
            None => Ok(()),
        }
    }

    /// The id of a new volume; one that no orchestrator could store is refused before it exists.
    pub(crate) fn name_volume(
        &self,
        name: &VolumeName,
        parameters: &Parameters,
    ) -> Result<VolumeId, Error> {
        let id = self.driver.name_volume(name, parameters)?;
        let length = id.as_str().len() + self.name.bytes_in_handle();
        if length > MAX_STRING {
            return Err(Error::invalid(format!(
                "name volume `{name}`: its id would be {length} bytes long, the limit is {MAX_STRING}"
            ))
            .advise("choose a shorter `_private.csi.volume.idTemplate` or an `idHash`"));
        }
        Ok(id)
    }

    /// The volume context of an attachment: what the node needs, who made it, and what this
    /// connection wants done there. compat: "Volume context".
    pub(crate) fn context(&self, attachment: &Attachment) -> VolumeContext {
        let mut context = attachment.to_context();
        let kind = self.driver.kind().to_owned();
        context.insert("provisioner_driver".to_owned(), kind);
        if let Some(instance) = &self.instance {
            let key = "provisioner_driver_instance_id".to_owned();
            context.insert(key, instance.clone());
        }
        if let Some(options) = &self.node_options {
            let (key, value) = (NodeOptions::KEY.to_owned(), options.as_str().to_owned());
            context.insert(key, value);
        }
        context
    }
}

impl Drop for Connection {
    /// Closing sessions may take long, so it must not block a thread that runs calls.
    fn drop(&mut self) {
        if Arc::strong_count(&self.driver) == 1 && Handle::try_current().is_ok() {
            let nothing: Arc<dyn Driver> = Arc::new(NodeManual);
            let driver = std::mem::replace(&mut self.driver, nothing);
            // Without a thread it is dropped here.
            drop(own_thread::spawn(move || drop(driver)));
        }
    }
}

// === impl Account ===

impl Account {
    /// Threads for one content of a file, `most` for each class of work and one for probes. Those that hang because
    /// of an older content are not among them: a corrected file must work.
    fn new(most: usize) -> Self {
        Self {
            questions: Threads::new(most),
            copies: Threads::new(most),
            deletions: Threads::new(most),
            probe: Threads::new(1),
        }
    }
}

/// The rules with the modes of the configuration, if it has some.
pub(crate) fn restricted(mut rules: AccessRules, modes: Option<&[AccessMode]>) -> AccessRules {
    if let Some(modes) = modes {
        modes.clone_into(&mut rules.mount_modes);
        modes.clone_into(&mut rules.block_modes);
    }
    rules
}

/// The bytes that count for the limit of a map.
pub(crate) fn map_size(map: &VolumeContext) -> usize {
    map.iter().map(|(key, value)| key.len() + value.len()).sum()
}
