//! `proxy.perDriver` in the file of a connection: where it is reached, and what it calls nodes.

use driver_core::config::{ConfigError, Document};
use driver_core::template::Template;
use serde::Deserialize;

use crate::routing::node_id::{MapEntry, Mapping, NodeIdType};
use crate::routing::topology::matching::{Accessibility, Entry, TopologyKeys};

/// `proxy` in the file of a connection.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Section {
    per_driver: PerDriver,
}

/// `proxy.perDriver`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PerDriver {
    topology: Vec<Entry>,
    node_id_type: NodeIdType,
    node_id_map: Vec<MapEntry>,
    node_id_template: Option<Template>,
    new_volumes: Option<bool>,
}

// === impl PerDriver ===

impl PerDriver {
    /// What a file says; nothing if it has no such section.
    pub(crate) fn read(document: &Document) -> Result<Self, ConfigError> {
        let section = document.optional_section::<Section>("proxy")?;
        Ok(section.unwrap_or_default().per_driver)
    }

    /// The place where volumes of the connection can be reached.
    pub(crate) fn accessibility(&self, keys: &TopologyKeys) -> Result<Accessibility, ConfigError> {
        Accessibility::of(self.topology.clone(), keys)
    }

    /// Whether classes may have new volumes made in it.
    pub(crate) fn new_volumes(&self) -> bool {
        self.new_volumes.unwrap_or(true)
    }

    /// What its backend calls nodes.
    pub(crate) fn mapping(&self) -> Result<Mapping, ConfigError> {
        let mapping = Mapping {
            kind: self.node_id_type,
            map: self.node_id_map.clone(),
            template: self.node_id_template.clone(),
        };
        mapping.check()?;
        Ok(mapping)
    }
}
