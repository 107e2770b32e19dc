//! The answer to `NodeGetInfo`: the id of this node, and its topology.

use driver_core::config::ConfigError;
use driver_core::{NodeId, Topology};
use node_utils::kernel::Kernel;

use crate::csi::environment::Environment;
use crate::process;
use crate::routing::folder::ProxySettings;
use crate::routing::node_id::initiators::{self, Initiators};
use crate::routing::node_id::{NodeIdConfig, addresses};
use crate::routing::topology::node::{Files, NodeTopology, Sources};

/// The id and topology of this node.
#[derive(Debug, Clone)]
pub struct NodeInfo {
    id: NodeId,
    place: Place,
    ids: Option<NodeIdConfig>,
}

/// The topology of this node.
#[derive(Debug, Clone)]
enum Place {
    /// As the only driver returns it.
    Fixed(Option<Topology>),
    /// By rules that run on every call, because their inputs may change.
    ByRules(Box<ByRules>),
}

#[derive(Debug, Clone)]
struct ByRules {
    topology: NodeTopology,
    node: NodeId,
    hostname: String,
    files: Files,
}

// === impl NodeInfo ===

impl NodeInfo {
    /// A node with the topology of its only driver.
    pub(crate) fn plain(id: NodeId, place: Option<Topology>) -> Self {
        Self {
            id,
            place: Place::Fixed(place),
            ids: None,
        }
    }

    /// A node as callers know it who know one of several connections alone: its id is its name, and its
    /// topology that of the connection.
    pub(crate) fn alone(settings: &ProxySettings, at: &Environment) -> Self {
        Self {
            ids: Some(settings.node_id.clone()),
            ..Self::plain(at.node.clone(), None)
        }
    }

    /// The node with the settings that are configured for all connections.
    pub(crate) fn announced(
        settings: &ProxySettings,
        at: &Environment,
    ) -> Result<Self, ConfigError> {
        let hostname = rustix::system::uname();
        let hostname = hostname.nodename().to_string_lossy().into_owned();
        let here = at.modes.is_none_or(|modes| modes.node);
        // Names of initiators are only read on nodes.
        let id = if here && at.modes.is_some() {
            let initiators = Initiators {
                iqn: &|| initiators::iqn(&at.tools),
                nqn: &|| initiators::nqn(&Kernel::here()),
                addresses: &addresses::of_this_node,
            };
            settings
                .node_id
                .of_this_node(&at.node, &hostname, &initiators)?
        } else {
            at.node.clone()
        };
        Ok(Self {
            id,
            place: Place::ByRules(Box::new(ByRules {
                topology: settings.topology.clone(),
                node: at.node.clone(),
                hostname,
                files: Files::new(),
            })),
            ids: Some(settings.node_id.clone()),
        })
    }

    /// Its id.
    pub fn id(&self) -> &NodeId {
        &self.id
    }

    /// Its topology. May read files.
    pub fn place(&self) -> Option<Topology> {
        match &self.place {
            Place::Fixed(place) => place.clone(),
            Place::ByRules(rules) => rules.topology.tell(&Sources {
                node: &rules.node,
                hostname: &rules.hostname,
                variable: &process::variable,
                files: &rules.files.read(rules.topology.files()),
            }),
        }
    }

    /// The way the ids of nodes are decoded, if they have parts.
    pub(crate) fn ids(&self) -> Option<&NodeIdConfig> {
        self.ids.as_ref()
    }
}
