//! Shared by all processes of all sequences: built once, because building it takes most of the time
//! of a run.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use driver_core::config::{CommonConfig, Document, NoEnvironment};
use driver_core::{Driver, NodeId};
use driver_node_manual::NodeManual;
use node_utils::{Node, NodeConfig, Tools};

use super::steps::Content;
use super::storage::Storage;
use crate::app::App;
use crate::csi::advertise::Advertised;
use crate::csi::environment::Environment;
use crate::csi::node::info::NodeInfo;
use crate::csi::node::service::NodeService;
use crate::csi::spec_version::CsiVersion;
use crate::routing::connection::{Connection, ConnectionContext};
use crate::routing::connections::{ConnectionName, Connections, Names};
use crate::routing::folder::{Loader, States};

static WORKSHOP: LazyLock<Workshop> = LazyLock::new(Workshop::new);

/// The shared parts.
struct Workshop {
    base: Arc<Document>,
    config: CommonConfig,
    advertised: Advertised,
    info: NodeInfo,
    /// A connection of each content that a file can have.
    read: Vec<(Content, Connection)>,
}

/// A connection of a file with this content, over this driver.
pub(super) fn connection(
    name: ConnectionName,
    content: Content,
    driver: Arc<dyn Driver>,
) -> Connection {
    let mut read = WORKSHOP.read.iter();
    let (_, like) = read
        .find(|(known, _)| *known == content)
        .expect("a content");
    like.twin(name, driver)
}

/// A process without connections, and its loader.
pub(super) fn site(names: Names) -> (App, Loader) {
    let connections = Connections::named(names.clone());
    let by_hand: Arc<dyn Driver> = Arc::new(NodeManual);
    let node = Node::here(NodeConfig::default());
    let site = App {
        kind: "proxy".to_owned(),
        advertised: WORKSHOP.advertised.clone(),
        connections: connections.clone(),
        node: NodeService::of(by_hand, &WORKSHOP.config, node, false),
        info: WORKSHOP.info.clone(),
        folder: None,
        states: States::default(),
        alone: None,
        legacy: BTreeMap::new(),
    };
    let ground = ConnectionContext::for_tests();
    let base = Arc::clone(&WORKSHOP.base);
    let loader = Loader::new(base, Arc::new(ground), connections, names);
    (site, loader)
}

fn parse(yaml: &str) -> Document {
    Document::parse(yaml, &NoEnvironment).expect("yaml")
}

/// A file with this content.
fn yaml(content: Content) -> String {
    let topology = content.zone.map_or_else(String::new, |zone| {
        format!(", topology: [{{requirements: {{zone: z{zone}}}}}]")
    });
    let open = !content.closed;
    format!("{{driver: fake, proxy: {{perDriver: {{newVolumes: {open}{topology}}}}}}}")
}

// === impl Workshop ===

impl Workshop {
    fn new() -> Self {
        let at = Environment {
            node: NodeId::parse("node-1").expect("a node"),
            version: CsiVersion::minor(12),
            tools: Tools::of_this_machine(),
            modes: None,
        };
        let root = parse("{driver: proxy, proxy: {configFolder: /none}}");
        let config = root.common().expect("configuration");
        let (base, site) = App::open(root, &at).expect("a site");
        let by_hand = Storage::by_hand();
        let name = ConnectionName::parse("one-of-several").expect("a name");
        let read = Content::all().map(|content| {
            let (name, driver) = (name.clone(), by_hand.clone());
            let document = parse(&yaml(content));
            (content, Connection::among(name, driver, &document))
        });
        Self {
            base,
            config,
            advertised: site.advertised,
            info: site.info,
            read: read.collect(),
        }
    }
}
