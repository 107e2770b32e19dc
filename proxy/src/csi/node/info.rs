//! What the orchestrator is told about this node: its id, and where it is.

use driver_core::config::ConfigError;
use driver_core::{NodeId, Topology};
use node_utils::kernel::Kernel;

use crate::app::Environment;
use crate::csi::node::addresses;
use crate::csi::node::identity::NodeIdConfig;
use crate::csi::node::initiators::{self, Initiators};
use crate::process;
use crate::routing::folder::ProxySettings;
use crate::routing::topology::node::{Files, NodeTopology, Sources};

/// What the orchestrator is told about this node.
#[derive(Debug, Clone)]
pub struct NodeInfo {
    id: NodeId,
    place: Place,
    ids: Option<NodeIdConfig>,
}

/// Where this node is.
#[derive(Debug, Clone)]
enum Place {
    /// As the only driver says.
    Fixed(Option<Topology>),
    /// As rules say whenever they are asked: what they look at may change.
    Told(Box<Told>),
}

#[derive(Debug, Clone)]
struct Told {
    topology: NodeTopology,
    node: NodeId,
    hostname: String,
    files: Files,
}

// === impl NodeInfo ===

impl NodeInfo {
    /// A node that says what its only driver says.
    pub(crate) fn plain(id: NodeId, place: Option<Topology>) -> Self {
        Self {
            id,
            place: Place::Fixed(place),
            ids: None,
        }
    }

    /// A node that says what is configured for all connections.
    pub(crate) fn told(settings: &ProxySettings, at: &Environment) -> Result<Self, ConfigError> {
        let hostname = rustix::system::uname();
        let hostname = hostname.nodename().to_string_lossy().into_owned();
        let here = at.modes.is_none_or(|modes| modes.node);
        // What only nodes have is looked for on nodes.
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
            place: Place::Told(Box::new(Told {
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

    /// Where it is. May read files.
    pub fn place(&self) -> Option<Topology> {
        match &self.place {
            Place::Fixed(place) => place.clone(),
            Place::Told(told) => told.topology.tell(&Sources {
                node: &told.node,
                hostname: &told.hostname,
                variable: &process::variable,
                files: &told.files.read(told.topology.files()),
            }),
        }
    }

    /// How the ids of nodes are read, where they have parts.
    pub(crate) fn ids(&self) -> Option<&NodeIdConfig> {
        self.ids.as_ref()
    }
}
