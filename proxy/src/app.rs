//! The app that one configuration file makes: its connections, its node, what it advertises.
//!
//! Used by serving, `check` and `try` alike. A file with its own driver makes one connection
//! without a name; the code below does not distinguish the two. No backend is contacted.

#[cfg(test)]
mod documented;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use driver_core::Driver;
use driver_core::config::{ConfigError, Document, NodeCapability, Unusable};
use driver_node_manual::NodeManual;

use crate::csi::advertise::{Advertised, ON_A_NETWORK, SUPERSET};
use crate::csi::environment::Environment;
use crate::csi::node::info::NodeInfo;
use crate::csi::node::service::NodeService;
use crate::csi::plugin::{Modes, Plugin};
use crate::csi::spec_version::CsiVersion;
use crate::process;
use crate::routing::config_file::{self, ConfigFileError};
use crate::routing::connection::{Connection, ConnectionContext, PROXY, like, sections};
use crate::routing::connections::{ConnectionName, Connections};
use crate::routing::folder::{Folder, ProxySettings, States};
use crate::routing::plugin_name::PluginName;
use crate::routing::topology::matching::TopologyKeys;
use crate::rpc::Runner;

/// A configuration that cannot be used.
#[derive(Debug)]
pub struct InvalidConfig {
    /// The configuration, for its other findings.
    pub document: Arc<Document>,
    /// Why.
    pub error: ConfigError,
    /// The app without what is wrong.
    pub rest: Option<Box<App>>,
}

/// The app that one configuration file makes.
#[derive(Debug)]
pub struct App {
    /// The driver that the file names.
    pub kind: String,
    /// The capabilities that the orchestrator sees.
    pub advertised: Advertised,
    /// The backends.
    pub connections: Connections,
    /// The service of this node.
    pub node: NodeService,
    /// The answer to `NodeGetInfo`.
    pub info: NodeInfo,
    /// The folder of connections that may change.
    pub folder: Option<Folder>,
    /// The state of the connections.
    pub states: States,
    /// The version at which it advertises what its connection would advertise alone; a process whose
    /// connections may change otherwise advertises one list.
    pub alone: Option<CsiVersion>,
    /// The same under its legacy names, by name: each has one of the connections.
    pub legacy: BTreeMap<PluginName, Self>,
}

// === impl App ===

impl App {
    /// Builds the process from `document` in this environment.
    pub fn open(
        document: Document,
        at: &Environment,
    ) -> Result<(Arc<Document>, Self), InvalidConfig> {
        let document = Arc::new(document);
        let opened = document.read_whole(
            || like(&document),
            |document| match document.driver() {
                Ok(PROXY) => Self::of_folder(document, at),
                _ => Self::of_one(document, at),
            },
        );
        match opened {
            Ok(app) => Ok((document, app)),
            Err(Unusable { error, rest }) => Err(InvalidConfig {
                document,
                error,
                rest,
            }),
        }
    }

    /// The app of a configuration file. No backend is touched.
    pub fn of_file(
        path: &Path,
        at: &Environment,
    ) -> Result<(Arc<Document>, Self), ConfigFileError> {
        Self::open(config_file::read(path)?, at)
            .map_err(|refused| ConfigFileError::Config(path.to_owned(), refused.error))
    }

    /// The plugin that serves this app under a name.
    pub fn plugin(self, name: PluginName, modes: Modes, runner: Runner) -> Plugin {
        let Self {
            advertised,
            connections,
            node,
            info,
            states,
            alone,
            legacy: _,
            folder: _,
            kind: _,
        } = self;
        Plugin {
            name,
            modes,
            advertised,
            alone,
            connections,
            node,
            info,
            states,
            runner,
        }
    }

    /// The context of connections that no settings of a proxy are about.
    pub fn context(at: &Environment) -> ConnectionContext {
        ConnectionContext {
            node: at.node.clone(),
            controls: at.modes.is_none_or(|modes| modes.controller),
            tools: at.tools.clone(),
            keys: TopologyKeys::default(),
            no_local: None,
            place: None,
            threads: process::OF_A_CONNECTION,
        }
    }

    /// One connection without a name.
    fn of_one(document: &Document, at: &Environment) -> Result<Self, ConfigError> {
        let context = Self::context(at);
        let connection = Connection::open(ConnectionName::unnamed(), document, &context)?;
        Self::over(connection, document, at)
    }

    /// The same over a connection that is already built from `document`.
    pub fn over(
        connection: Connection,
        document: &Document,
        at: &Environment,
    ) -> Result<Self, ConfigError> {
        let driver = Arc::clone(connection.driver());
        let (can, access) = (connection.can(), connection.access());
        let advertised = Advertised::new(can, access, &document.common()?.service, at.version);
        let groups = honours_group(&advertised, at.version);
        let place = driver.node_topology();
        Ok(Self {
            kind: driver.kind().to_owned(),
            info: NodeInfo::plain(at.node.clone(), place),
            node: NodeService::open(document, driver, &at.tools, groups)?,
            advertised,
            connections: Connections::single(connection),
            folder: None,
            states: States::default(),
            alone: None,
            legacy: BTreeMap::new(),
        })
    }

    /// The connections of a folder; none yet.
    fn of_folder(document: &Arc<Document>, at: &Environment) -> Result<Self, ConfigError> {
        let settings = ProxySettings::read(document)?;
        document.has_defaults_for_others(&sections());
        let by_hand: Arc<dyn Driver> = Arc::new(NodeManual);
        let config = document.common()?;
        let access = by_hand.access_rules();
        let advertised = Advertised::new(SUPERSET, &access, &config.service, at.version);
        let groups = honours_group(&advertised, at.version);
        let node = NodeService::open(document, by_hand, &at.tools, groups)?;
        let info = NodeInfo::announced(&settings, at)?;
        let context = ConnectionContext {
            keys: settings.keys.clone(),
            no_local: no_local(&settings, at),
            place: info.place(),
            ..Self::context(at)
        };
        let connections = Connections::named(settings.names.clone());
        // Nodes need no connection, because each volume contains what they need. Inline volumes are
        // the exception.
        let controls = at.modes.is_none_or(|modes| modes.controller);
        let folder = (controls || settings.inline_volumes).then(|| {
            let base = Arc::clone(document);
            Folder::new(&settings, base, Arc::new(context), connections.clone())
        });
        let mut app = Self {
            kind: PROXY.to_owned(),
            advertised,
            connections,
            node,
            info,
            folder,
            states: States::default(),
            alone: None,
            legacy: BTreeMap::new(),
        };
        let service = &config.service;
        let advertised = Advertised::new(ON_A_NETWORK, &access, service, at.version);
        let legacy = settings.names.legacy.iter().map(|(name, connection)| {
            let legacy = app.under(connection, &settings, at, advertised.clone());
            (name.clone(), legacy)
        });
        app.legacy = legacy.collect();
        Ok(app)
    }

    /// The same for callers who know one of the connections alone. `advertised` is what is said where nothing
    /// is known of it: by nodes.
    fn under(
        &self,
        connection: &ConnectionName,
        settings: &ProxySettings,
        at: &Environment,
        advertised: Advertised,
    ) -> Self {
        let reads_files = self.folder.is_some();
        let connections = &self.connections;
        Self {
            kind: self.kind.clone(),
            advertised,
            connections: connections.under_legacy_name(connection.clone(), reads_files),
            // A group comes only where it was advertised.
            node: self
                .node
                .honouring_groups(at.version >= CsiVersion::minor(5)),
            info: NodeInfo::alone(settings, at),
            folder: None,
            states: self.states.clone(),
            alone: reads_files.then_some(at.version),
            legacy: BTreeMap::new(),
        }
    }
}

/// Why volumes of this very node cannot be served. compat: "The proxy".
fn no_local(settings: &ProxySettings, at: &Environment) -> Option<&'static str> {
    if at.modes.is_some_and(|modes| !modes.node) {
        return Some("this controller stands for all nodes");
    }
    (!settings.topology.tells_nodes_apart())
        .then_some("nodes report no topology that identifies them")
}

/// Whether `VolumeMountGroup` is advertised.
pub(crate) fn honours_group(advertised: &Advertised, version: CsiVersion) -> bool {
    let listed = &advertised.node;
    version >= CsiVersion::minor(5) && listed.contains(&NodeCapability::VolumeMountGroup)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use driver_core::config::NoEnvironment;
    use driver_core::{Capabilities, Expansion};

    use super::*;
    use crate::csi::advertise::WHILE_THERE;
    use crate::routing::connection::{LETTING_IN, built, least};

    /// Whether the capabilities `all` include `one`, but for those that are advertised while they are there.
    fn covers(all: Capabilities, one: Capabilities) -> bool {
        let expands = match (one.expand, all.expand) {
            (Expansion::None, _) | (_, Expansion::ControllerAndNode) => true,
            (one, all) => one == all,
        };
        let all = all.names();
        let is_in = |name: &&str| all.contains(name) || WHILE_THERE.contains(name);
        expands && one.names().iter().all(is_in)
    }

    /// Drivers whose volumes are files and never disks.
    const OF_FILES: [&str; 18] = [
        "freenas-api-nfs",
        "freenas-api-smb",
        "freenas-nfs",
        "freenas-smb",
        "local-hostpath",
        "lustre-client",
        "nfs-client",
        "objectivefs",
        "smb-client",
        "synology-nfs",
        "synology-smb",
        "truenas-api-nfs",
        "truenas-api-smb",
        "truenas-nfs",
        "truenas-smb",
        "zfs-generic-nfs",
        "zfs-generic-smb",
        "zfs-local-dataset",
    ];

    #[test]
    fn the_proxy_announces_the_capabilities_of_every_driver() {
        let context = ConnectionContext::for_tests();
        let texts = built()
            .into_iter()
            .map(|kind| (kind, least(kind).expect(kind)));
        let letting_in = LETTING_IN.map(|(kind, text)| (kind, text.to_owned()));
        let root = "{driver: proxy, proxy: {configFolder: /none}}";
        let root = Document::parse(root, &NoEnvironment).expect("yaml");
        let at = Environment {
            node: context.node.clone(),
            version: CsiVersion::minor(12),
            tools: context.tools.clone(),
            modes: None,
        };
        let (_, app) = App::open(root, &at).expect("an app");
        let (mut publishing, mut grouping) = (Vec::new(), BTreeSet::new());
        for (kind, text) in texts.into_iter().chain(letting_in) {
            let document = Document::parse(&text, &NoEnvironment).expect("yaml");
            let name = ConnectionName::parse("one").expect("a name");
            let connection = Connection::open(name, &document, &context).expect(kind);
            assert_eq!(connection.driver().kind(), kind);
            assert!(covers(SUPERSET, connection.can()), "{kind}");
            if connection.can().publish {
                publishing.push(kind);
            }
            let (can, access) = (connection.can(), connection.access());
            let config = document.common().expect("configuration");
            let alone = Advertised::new(can, access, &config.service, at.version).node;
            let announced = |capability: &&NodeCapability| app.advertised.node.contains(capability);
            // That would be a promise for all volumes of the process, those made by hand among them.
            let missing: Vec<_> = alone.iter().filter(|one| !announced(one)).collect();
            match *missing {
                [] => {}
                [NodeCapability::VolumeMountGroup] => drop(grouping.insert(kind)),
                _ => panic!("{kind}: {missing:?}"),
            }
        }
        assert_eq!(grouping, OF_FILES.into(), "as documented");
        // These record the nodes of a volume, also where every node is let in.
        let records = |kind: &&str| {
            let of = |family| kind.starts_with(family);
            ["freenas-", "truenas-", "zfs-generic-"].into_iter().any(of)
        };
        let letting_in = LETTING_IN.map(|(kind, _)| kind);
        let expected: Vec<_> = built()
            .into_iter()
            .filter(records)
            .chain(letting_in)
            .collect();
        assert_eq!(publishing, expected);
    }
}
