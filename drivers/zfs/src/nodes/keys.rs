//! The keys by which nodes prove to a target of NVMe over fabrics who they are: DH-CHAP.

use std::collections::BTreeMap;
use std::fmt;

use csi_types::DhchapKey;
use driver_core::config::ConfigError;
use driver_core::{Error, NodeId};

use super::{NodeName, Nodes};

/// The keys of nodes by the names that a target knows these by.
#[derive(Debug, Clone, Default)]
pub struct NodeKeys(Option<BTreeMap<NodeName, DhchapKey>>);

// === impl NodeKeys ===

impl NodeKeys {
    /// Checks the keys at `key`, by the ids of nodes. A reason against one must not repeat it.
    pub fn read<'a, E: fmt::Display>(
        given: impl IntoIterator<Item = (&'a String, Result<DhchapKey, E>)>,
        nodes: Option<&Nodes>,
        key: &str,
    ) -> Result<Self, ConfigError> {
        let refused = |problem: String| ConfigError::at(key.to_owned(), problem);
        let Some(nodes) = nodes else {
            let problem = "needs `nodes`: where all nodes have access, none is asked for its key";
            return Err(refused(problem.to_owned()));
        };
        let mut keys = BTreeMap::new();
        for (id, secret) in given {
            let node = NodeId::parse(id).map_err(|_| refused(format!("`{id}` is no node")))?;
            let name = nodes.name(&node);
            let name = name.map_err(|error| refused(error.chain()))?;
            let secret = secret.map_err(|error| refused(format!("that of `{id}` {error}")))?;
            let same = secret.clone();
            if keys.insert(name, secret).is_some_and(|other| other != same) {
                let problem = format!("`{id}` has the name of another node, and another key");
                return Err(refused(problem));
            }
        }
        Ok(Self(Some(keys)))
    }

    /// Fails if nodes have to prove who they are, and there is no key of this one.
    pub fn admit(&self, nodes: Option<&Nodes>, node: &NodeId) -> Result<(), Error> {
        let Some(keys) = &self.0 else {
            return Ok(());
        };
        let name = nodes.and_then(|nodes| nodes.name(node).ok());
        match name.filter(|name| !keys.contains_key(name)) {
            None => Ok(()),
            Some(name) => {
                let doing = format!("let the node `{}` reach a volume", name.as_str());
                Err(Error::invalid(doing)
                    .because("the configuration has keys of nodes, and none of this one")
                    .advise("add its key to `dhchapKeys` of the export"))
            }
        }
    }

    /// The key of the node of this name.
    pub fn of(&self, name: &str) -> Option<&DhchapKey> {
        let mut keys = self.iter();
        keys.find_map(|(known, key)| (known.as_str() == name).then_some(key))
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (&NodeName, &DhchapKey)> {
        self.0.iter().flatten()
    }
}
