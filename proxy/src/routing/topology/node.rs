//! The topology that a node reports: by rules, from its name, its host, its environment and files.
//!
//! A rule that does not match is skipped, so that rules can be for some nodes only. One process can
//! report several kinds at once. compat: "Topology of the proxy".

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use driver_core::config::ConfigError;
use driver_core::{NodeId, Topology};
use regex::Regex;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use tracing::info;

use crate::routing::topology::label::is_topology;
use crate::routing::topology::matching::{DEFAULT_PREFIX, TopologyKeys};

mod files;
mod rules;

pub(crate) use files::{Files, Texts};
use rules::{RuleConfig, ZoneRule};

/// `proxy.nodeTopology`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct NodeTopologyConfig {
    #[serde(rename = "type")]
    kinds: Kinds,
    prefix: Option<String>,
    #[serde(alias = "customRules")]
    from_regexp: Vec<RuleConfig>,
}

/// `proxy.nodeTopology.type`: one, or a list.
#[derive(Debug, Clone)]
struct Kinds(Vec<Kind>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// All nodes are in one place.
    Cluster,
    /// Each is a place of its own.
    Node,
    /// By rules.
    Zone,
}

/// The topology that a node reports.
#[derive(Debug, Clone)]
pub(crate) struct NodeTopology {
    kinds: Vec<Kind>,
    rules: Vec<ZoneRule>,
    keys: TopologyKeys,
}

/// The sources of rules.
pub(crate) struct Sources<'a> {
    pub(crate) node: &'a NodeId,
    pub(crate) hostname: &'a str,
    pub(crate) variable: &'a dyn Fn(&str) -> Option<String>,
    /// All [files](NodeTopology::files) of the rules.
    pub(crate) files: &'a Texts,
}

// === impl NodeTopologyConfig ===

impl NodeTopologyConfig {
    /// The prefix before the slash of every key.
    pub(crate) fn prefix(&self) -> Result<String, ConfigError> {
        let prefix = self.prefix.as_deref().filter(|prefix| !prefix.is_empty());
        let prefix = prefix.unwrap_or(DEFAULT_PREFIX);
        let example = [(format!("{prefix}/a"), "a".to_owned())];
        if !is_topology(&Topology::new(example.into())) {
            return Err(
                ConfigError::at("proxy.nodeTopology.prefix", "is no prefix of a label")
                    .advise("give a domain name such as org.example.topology"),
            );
        }
        Ok(prefix.to_owned())
    }
}

impl Default for Kinds {
    fn default() -> Self {
        Self(vec![Kind::Cluster])
    }
}

impl<'de> Deserialize<'de> for Kinds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let kind = |value: &Value| match value.as_str() {
            Some("cluster") => Ok(Kind::Cluster),
            Some("node") => Ok(Kind::Node),
            Some("zone" | "custom") => Ok(Kind::Zone),
            _ => Err(D::Error::custom(
                "expected `cluster`, `node` or `zone`, or a list of them",
            )),
        };
        match Value::deserialize(deserializer)? {
            Value::Null => Ok(Self::default()),
            Value::Array(kinds) => Ok(Self(kinds.iter().map(kind).collect::<Result<_, _>>()?)),
            one => Ok(Self(vec![kind(&one)?])),
        }
    }
}

// === impl NodeTopology ===

impl NodeTopology {
    /// Checks every rule.
    pub(crate) fn of(config: NodeTopologyConfig, keys: &TopologyKeys) -> Result<Self, ConfigError> {
        let kinds = config.kinds.0;
        let rules = config.from_regexp.into_iter().enumerate();
        let rules = rules.map(|(index, rule)| ZoneRule::of(index, rule, keys));
        let rules = rules.collect::<Result<Vec<_>, _>>()?;
        if rules.is_empty() && kinds.contains(&Kind::Zone) {
            let at = "proxy.nodeTopology.fromRegexp";
            return Err(ConfigError::at(
                at,
                "is required and missing for the type `zone`",
            ));
        }
        Ok(Self {
            kinds,
            rules,
            keys: keys.clone(),
        })
    }

    /// Whether each node is a place of its own, as local storage needs it.
    pub(crate) fn tells_nodes_apart(&self) -> bool {
        self.kinds.contains(&Kind::Node)
    }

    /// The files that rules read.
    pub(crate) fn files(&self) -> impl Iterator<Item = &Path> {
        let rules = self
            .rules
            .iter()
            .filter(|_| self.kinds.contains(&Kind::Zone));
        rules.filter_map(ZoneRule::file)
    }

    /// The topology of this node; `None` if nothing is known.
    pub(crate) fn tell(&self, sources: &Sources<'_>) -> Option<Topology> {
        let mut segments = BTreeMap::new();
        for kind in &self.kinds {
            match kind {
                Kind::Cluster => {
                    segments.insert(self.keys.key("cluster"), "local".to_owned());
                }
                Kind::Node => {
                    segments.insert(self.keys.key("node"), sources.node.as_str().to_owned());
                }
                Kind::Zone => {
                    for rule in &self.rules {
                        match rule.tell(sources) {
                            Ok(value) => drop(segments.insert(rule.key().to_owned(), value)),
                            Err(why) => {
                                info!(key = rule.key(), "a rule of topology is left out: {why}");
                            }
                        }
                    }
                }
            }
        }
        (!segments.is_empty()).then(|| Topology::new(segments))
    }
}

/// A regular expression that has to fit the whole text.
fn whole(pattern: &str) -> Result<Regex, String> {
    Regex::new(&format!("^(?:{pattern})$")).map_err(|error| error.to_string())
}

fn absolute(path: &str) -> Option<PathBuf> {
    Path::new(path).is_absolute().then(|| PathBuf::from(path))
}

#[cfg(test)]
mod tests;
