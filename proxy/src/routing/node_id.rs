//! The id of a node, and its name at the backend of a connection.
//!
//! One id serves all connections: it has parts, `n=` the name of the node, `h=` its host's, `i…=`
//! and `v…=` what initiators call it, shortened by a table of prefixes, and `a=` its addresses. Each
//! connection may say which part its backend knows; otherwise that is the name. compat: "Node ids of the proxy".

pub(crate) mod addresses;
pub(crate) mod initiators;

use std::collections::BTreeMap;
use std::net::IpAddr;

use driver_core::config::ConfigError;
use driver_core::template::Template;
use driver_core::text::MAX_NODE_ID;
use driver_core::{Error, NodeId};
use serde::Deserialize;

use addresses::Network;
use initiators::Initiators;

/// `proxy.nodeId`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct NodeIdConfig {
    parts: Parts,
    iqn_prefix: Vec<Prefix>,
    nqn_prefix: Vec<Prefix>,
    networks: Vec<Network>,
}

/// `proxy.nodeId.parts`.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(clippy::struct_excessive_bools, reason = "which parts there are")]
struct Parts {
    node_name: bool,
    hostname: bool,
    iqn: bool,
    nqn: bool,
    addresses: bool,
}

/// A prefix that many initiators share.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Prefix {
    short_name: String,
    prefix: String,
}

/// The part of a node's id the backend of a connection knows.
#[derive(Debug, Clone, Default)]
pub(crate) struct Mapping {
    pub(crate) kind: NodeIdType,
    pub(crate) map: Vec<MapEntry>,
    pub(crate) template: Option<Template>,
}

/// `proxy.perDriver.nodeIdType`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum NodeIdType {
    /// Not configured: the name of the node, as without the proxy, and as listed by `nodes` of a
    /// configuration from that time. An id without a name is passed on unchanged.
    #[default]
    #[serde(skip)]
    Unsaid,
    /// The id as it is.
    Whole,
    NodeName,
    Hostname,
    Iqn,
    Nqn,
    /// From the map or the template.
    Local,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct MapEntry {
    node_name: String,
    value: String,
}

/// The names of a node, part by part.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct NodeIdentity {
    pub(crate) node_name: Option<String>,
    pub(crate) hostname: Option<String>,
    pub(crate) iqn: Option<String>,
    pub(crate) nqn: Option<String>,
    pub(crate) addresses: Vec<IpAddr>,
}

// === impl Parts ===

impl Default for Parts {
    fn default() -> Self {
        Self {
            node_name: true,
            hostname: false,
            iqn: false,
            nqn: false,
            addresses: false,
        }
    }
}

// === impl NodeIdConfig ===

const IQN_PREFIX: &str = "proxy.nodeId.iqnPrefix";
const NQN_PREFIX: &str = "proxy.nodeId.nqnPrefix";
const NETWORKS: &str = "proxy.nodeId.networks";

impl NodeIdConfig {
    /// Rejects tables that make ids that cannot be decoded.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let Parts {
            node_name,
            hostname,
            iqn,
            nqn,
            addresses,
        } = self.parts;
        if !(node_name || hostname || iqn || nqn || addresses) {
            return Err(ConfigError::at(
                "proxy.nodeId.parts",
                "leaves no part of the id",
            ));
        }
        if addresses && self.networks.is_empty() {
            return Err(ConfigError::at(NETWORKS, "is required and missing")
                .advise("list the networks in which your nodes reach their storage"));
        }
        for (used, table, at) in [
            (iqn, &self.iqn_prefix, IQN_PREFIX),
            (nqn, &self.nqn_prefix, NQN_PREFIX),
        ] {
            if used && table.is_empty() {
                return Err(ConfigError::at(at, "is required and missing").advise(
                    "give one `shortName` and `prefix` for each beginning that your nodes have",
                ));
            }
            for (index, entry) in table.iter().enumerate() {
                let fine = |b: u8| b.is_ascii_digit() || b.is_ascii_lowercase();
                if entry.short_name.is_empty() || !entry.short_name.bytes().all(fine) {
                    let at = format!("{at}[{index}].shortName");
                    return Err(ConfigError::at(
                        at,
                        "has other characters than digits and small letters",
                    ));
                }
                let same = |other: &Prefix| other.short_name == entry.short_name;
                if table[..index].iter().any(same) {
                    return Err(ConfigError::at(
                        format!("{at}[{index}].shortName"),
                        "is there twice",
                    ));
                }
            }
        }
        Ok(())
    }

    /// Whether it takes what only nodes have.
    pub(crate) fn asks_nodes(&self) -> bool {
        self.parts.iqn || self.parts.nqn || self.parts.addresses
    }

    /// The id of this node.
    pub(crate) fn of_this_node(
        &self,
        node_name: &NodeId,
        hostname: &str,
        initiators: &Initiators<'_>,
    ) -> Result<NodeId, ConfigError> {
        let mut identity = NodeIdentity::default();
        let parts = self.parts;
        if parts.node_name {
            identity.node_name = Some(node_name.as_str().to_owned());
        }
        if parts.hostname {
            identity.hostname = Some(hostname.to_owned());
        }
        if parts.iqn {
            identity.iqn = Some((initiators.iqn)()?);
        }
        if parts.nqn {
            identity.nqn = Some((initiators.nqn)()?);
        }
        if parts.addresses {
            identity.addresses = (initiators.addresses)(&self.networks)?;
        }
        let text = self.write(&identity)?;
        let problem = |why: String| ConfigError::at("proxy.nodeId", why);
        if text.len() > MAX_NODE_ID {
            let length = text.len();
            return Err(problem(format!(
                "makes an id of {length} bytes, and {MAX_NODE_ID} is the most"
            )));
        }
        NodeId::parse(&text).map_err(|error| problem(format!("makes an id that {error}")))
    }

    fn write(&self, identity: &NodeIdentity) -> Result<String, ConfigError> {
        let mut parts = Vec::new();
        for (mark, part) in [("n=", &identity.node_name), ("h=", &identity.hostname)] {
            if let Some(part) = part {
                // A slash would end the part.
                if part.contains('/') {
                    return Err(ConfigError::at(
                        "proxy.nodeId.parts",
                        "the name of this node has a slash",
                    ));
                }
                parts.push(format!("{mark}{part}"));
            }
        }
        if let Some(iqn) = &identity.iqn {
            parts.push(shortened('i', &self.iqn_prefix, iqn, IQN_PREFIX)?);
        }
        if let Some(nqn) = &identity.nqn {
            parts.push(shortened('v', &self.nqn_prefix, nqn, NQN_PREFIX)?);
        }
        if !identity.addresses.is_empty() {
            let texts: Vec<_> = identity.addresses.iter().map(IpAddr::to_string).collect();
            parts.push(format!("a={}", texts.join(",")));
        }
        Ok(parts.join("/"))
    }

    /// The parts of an id, or `None` if it is not the id of a node of ours.
    pub(crate) fn read(&self, id: &NodeId) -> Option<NodeIdentity> {
        let mut found = NodeIdentity::default();
        for part in id.as_str().split('/') {
            let (mark, value) = part.split_once('=')?;
            let whole = |table: &[Prefix], short: &str| {
                let entry = table.iter().find(|entry| entry.short_name == short)?;
                Some(format!("{}{value}", entry.prefix))
            };
            if mark == "a" {
                let addresses = value.split(',').map(str::parse);
                let addresses = addresses.collect::<Result<_, _>>().ok()?;
                if !std::mem::replace(&mut found.addresses, addresses).is_empty() {
                    return None;
                }
                continue;
            }
            let slot = match mark {
                "n" => &mut found.node_name,
                "h" => &mut found.hostname,
                _ if mark.starts_with('i') => &mut found.iqn,
                _ if mark.starts_with('v') => &mut found.nqn,
                _ => return None,
            };
            let value = match mark.as_bytes()[0] {
                b'i' => whole(&self.iqn_prefix, &mark[1..])?,
                b'v' => whole(&self.nqn_prefix, &mark[1..])?,
                _ => value.to_owned(),
            };
            if value.is_empty() || slot.replace(value).is_some() {
                return None;
            }
        }
        Some(found)
    }
}

fn shortened(mark: char, table: &[Prefix], value: &str, at: &str) -> Result<String, ConfigError> {
    let found = table
        .iter()
        .find_map(|entry| Some((entry, value.strip_prefix(&entry.prefix)?)));
    match found {
        Some((_, rest)) if rest.contains('/') || rest.is_empty() => Err(ConfigError::at(
            at,
            "leaves nothing, or a slash, of the name of this node's initiator",
        )),
        Some((entry, rest)) => Ok(format!("{mark}{}={rest}", entry.short_name)),
        None => Err(ConfigError::at(at, format!("no prefix fits `{value}`"))),
    }
}

// === impl Mapping ===

impl Mapping {
    /// Rejects a setting that could never name a node.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        if self.kind == NodeIdType::Local && self.map.is_empty() && self.template.is_none() {
            let at = "proxy.perDriver.nodeIdType";
            return Err(ConfigError::at(
                at,
                "`local` needs `nodeIdMap` or `nodeIdTemplate`",
            ));
        }
        Ok(())
    }

    /// The name of a node at the backend of a connection.
    pub(crate) fn of(&self, id: &NodeId, identity: &NodeIdentity) -> Result<NodeId, Error> {
        let missing = || {
            Error::not_found(format!("node `{id}`"))
                .because("its id has no part that this connection's backend knows")
                .advise("see `proxy.nodeId.parts` and `proxy.perDriver.nodeIdType`")
        };
        let part = match self.kind {
            NodeIdType::Unsaid if identity.node_name.is_none() => return Ok(id.clone()),
            NodeIdType::Whole => return Ok(id.clone()),
            NodeIdType::Unsaid | NodeIdType::NodeName => identity.node_name.clone(),
            NodeIdType::Hostname => identity.hostname.clone(),
            NodeIdType::Iqn => identity.iqn.clone(),
            NodeIdType::Nqn => identity.nqn.clone(),
            NodeIdType::Local => self.local(identity)?,
        };
        let part = part.ok_or_else(missing)?;
        NodeId::parse(&part).map_err(|error| missing().because(error))
    }

    fn local(&self, identity: &NodeIdentity) -> Result<Option<String>, Error> {
        let name = identity.node_name.as_deref();
        let mapped = self
            .map
            .iter()
            .find(|entry| Some(entry.node_name.as_str()) == name);
        if let Some(entry) = mapped {
            return Ok(Some(entry.value.clone()));
        }
        let Some(template) = &self.template else {
            return Ok(None);
        };
        let parts = [
            ("nodeName", &identity.node_name),
            ("hostname", &identity.hostname),
        ];
        let data: BTreeMap<&str, &str> = parts
            .into_iter()
            .filter_map(|(key, part)| Some((key, part.as_deref()?)))
            .collect();
        let text = template.render(&data).map_err(|error| {
            Error::invalid("key `proxy.perDriver.nodeIdTemplate`").because(error)
        })?;
        Ok(Some(text))
    }
}

#[cfg(test)]
mod tests;
