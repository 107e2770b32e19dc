//! The place where the volumes of a connection can be reached, and whether that fits a request.
//!
//! Keys are short in configurations and have a prefix on the wire. Matching is the specification's:
//! some requisite term has to fit. The stricter rule of democratic-csi, all of them, can be chosen.
//! compat: "Topology of the proxy".

use std::collections::BTreeMap;

use driver_core::config::ConfigError;
use driver_core::topology::NODE_KEY;
use driver_core::{Error, Kind, Topology, TopologyRequirement};
use serde::Deserialize;
use serde_json::Value;

use crate::routing::topology::label::is_topology;

/// The prefix of topology keys unless another is configured.
pub(crate) const DEFAULT_PREFIX: &str = "org.democratic-csi.topology";

/// The rules of topology for all connections of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopologyKeys {
    /// The prefix before the slash of every key.
    pub prefix: String,
    /// The number of the requisite terms that have to fit.
    pub rule: Rule,
}

/// The number of the requisite terms that have to fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rule {
    /// One, as in the specification.
    #[default]
    Any,
    /// Each, as with democratic-csi.
    All,
}

/// The place where the volumes of a connection can be reached.
#[derive(Debug, Clone)]
pub(crate) struct Accessibility {
    keys: TopologyKeys,
    node_sets: Vec<NodeSet>,
    /// The topology that the node reports, if the storage belongs to that node.
    here: Option<Topology>,
}

/// One set of nodes.
#[derive(Debug, Clone)]
struct NodeSet {
    /// The labels that are compared.
    required: Topology,
    /// The labels of volumes: the same, and those that only the scheduler reads.
    shown: Topology,
}

/// One entry of `proxy.perDriver.topology`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Entry {
    requirements: Option<BTreeMap<String, Value>>,
    extra: BTreeMap<String, Value>,
}

// === impl TopologyKeys ===

impl TopologyKeys {
    /// The key on the wire.
    pub(crate) fn key(&self, short: &str) -> String {
        format!("{}/{short}", self.prefix)
    }

    /// A topology of a driver, with this prefix. Drivers of local storage know one key.
    pub(crate) fn outward(&self, place: &Topology) -> Topology {
        self.renamed(place, NODE_KEY, &self.key("node"))
    }

    /// A topology of a caller, as drivers know it.
    pub(crate) fn inward(&self, place: &Topology) -> Topology {
        self.renamed(place, &self.key("node"), NODE_KEY)
    }

    fn renamed(&self, place: &Topology, from: &str, to: &str) -> Topology {
        if self.prefix == DEFAULT_PREFIX {
            return place.clone();
        }
        let mut segments = place.segments().clone();
        if let Some(value) = segments.remove(from) {
            segments.insert(to.to_owned(), value);
        }
        Topology::new(segments)
    }
}

impl Default for TopologyKeys {
    fn default() -> Self {
        Self {
            prefix: DEFAULT_PREFIX.to_owned(),
            rule: Rule::Any,
        }
    }
}

// === impl Accessibility ===

impl Accessibility {
    /// From the file of a connection.
    pub(crate) fn of(entries: Vec<Entry>, keys: &TopologyKeys) -> Result<Self, ConfigError> {
        let way = |(index, entry): (usize, Entry)| {
            let at = format!("proxy.perDriver.topology[{index}]");
            NodeSet::of(&at, entry, keys)
        };
        Ok(Self {
            keys: keys.clone(),
            node_sets: entries
                .into_iter()
                .enumerate()
                .map(way)
                .collect::<Result<_, _>>()?,
            here: None,
        })
    }

    /// Reached from everywhere, as far as the configuration says.
    pub(crate) fn everywhere() -> Self {
        Self {
            keys: TopologyKeys::default(),
            node_sets: Vec::new(),
            here: None,
        }
    }

    /// The storage belongs to a node: `own` is its name by the driver, `reported` the whole topology
    /// that the node reports.
    #[must_use]
    pub(crate) fn on_node(mut self, own: &Topology, reported: Option<&Topology>) -> Self {
        let mut here = self.keys.outward(own).segments().clone();
        for (key, value) in reported.iter().flat_map(|reported| reported.segments()) {
            here.entry(key.clone()).or_insert_with(|| value.clone());
        }
        self.here = Some(Topology::new(here));
        self
    }

    /// Refuses a place where the volumes of this connection cannot be reached.
    pub(crate) fn accept(&self, wanted: &TopologyRequirement) -> Result<(), Error> {
        if self.node_sets.is_empty() || wanted.requisite.is_empty() {
            return Ok(());
        }
        for term in &wanted.requisite {
            self.check_prefix(term)?;
        }
        let mut fitting = wanted.requisite.iter().map(|term| self.fits(term));
        let accepted = match self.keys.rule {
            Rule::Any => fitting.any(|fits| fits),
            Rule::All => fitting.all(|fits| fits),
        };
        if accepted {
            return Ok(());
        }
        let terms: Vec<String> = wanted.requisite.iter().take(8).map(shown).collect();
        Err(Error::new(
            Kind::OutOfSpace,
            "find a place that can reach this connection",
        )
        .because(Unreachable(terms.join(" or "))))
    }

    /// Whether volumes can be reached from a place that has these segments.
    pub(crate) fn fits(&self, term: &Topology) -> bool {
        self.node_sets.is_empty() || self.node_sets.iter().any(|way| way.fits(term))
    }

    /// The position of the first preferred term that fits; the lower, the better.
    pub(crate) fn rank(&self, wanted: &TopologyRequirement) -> usize {
        let preferred = &wanted.preferred;
        let found = preferred.iter().position(|term| self.fits(term));
        found.unwrap_or(preferred.len())
    }

    /// The part of a requirement that a driver must respect.
    pub(crate) fn for_driver(&self, wanted: TopologyRequirement) -> TopologyRequirement {
        let inward = |terms: Vec<Topology>| {
            let terms = terms.iter();
            terms.map(|term| self.place_for_driver(term)).collect()
        };
        TopologyRequirement {
            requisite: inward(wanted.requisite),
            preferred: inward(wanted.preferred),
        }
    }

    /// The topology of a query to a driver. One without a node, such as the zone of a class, that contains
    /// this node is this node for a driver that knows only nodes.
    pub(crate) fn place_for_driver(&self, place: &Topology) -> Topology {
        let mut segments = self.keys.inward(place).segments().clone();
        if let Some(here) = &self.here
            && !segments.contains_key(NODE_KEY)
            && agree(here, place)
            && let Some(node) = here.segments().get(&self.keys.key("node"))
        {
            segments.insert(NODE_KEY.to_owned(), node.clone());
        }
        Topology::new(segments)
    }

    /// The place where a volume can be reached: by the configuration, and by its driver.
    pub(crate) fn of_volume(&self, driver: &[Topology]) -> Vec<Topology> {
        let driver = driver.iter().map(|place| self.keys.outward(place));
        let node_sets = self.node_sets.iter().map(|way| way.shown.clone());
        if self.node_sets.is_empty() {
            return driver.collect();
        }
        let driver: Vec<_> = driver.collect();
        if driver.is_empty() {
            return node_sets.collect();
        }
        // Storage of a node in a zone is on that node, and nowhere else in the zone.
        node_sets
            .flat_map(|way| driver.iter().map(move |place| both(&way, place)))
            .collect()
    }

    fn check_prefix(&self, term: &Topology) -> Result<(), Error> {
        let ours = |key: &String| {
            let rest = key.strip_prefix(&self.keys.prefix);
            rest.is_some_and(|rest| rest.starts_with('/'))
        };
        match term.segments().keys().find(|key| !ours(key)) {
            None => Ok(()),
            Some(key) => Err(Error::invalid("request field `accessibility_requirements`")
                .because(format!(
                    "the key `{key}` is not below `{}`",
                    self.keys.prefix
                ))
                .advise("`proxy.nodeTopology.prefix` names the prefix of the nodes' keys")),
        }
    }
}

/// Whether two places may be the same: only what both name is compared.
fn agree(one: &Topology, other: &Topology) -> bool {
    let said = |key| other.segments().get(key);
    let mut segments = one.segments().iter();
    segments.all(|(key, value)| said(key).is_none_or(|said| said == value))
}

/// The union of both; where they differ, `second` wins.
fn both(first: &Topology, second: &Topology) -> Topology {
    let mut segments = first.segments().clone();
    segments.extend(second.segments().clone());
    Topology::new(segments)
}

/// No term fits.
#[derive(Debug, thiserror::Error)]
#[error("its volumes are not reached from {0}")]
struct Unreachable(String);

fn shown(term: &Topology) -> String {
    let pairs = term.segments().iter();
    let pairs: Vec<String> = pairs.map(|(key, value)| format!("{key}={value}")).collect();
    format!("{{{}}}", pairs.join(", "))
}

// === impl NodeSet ===

impl NodeSet {
    fn of(at: &str, entry: Entry, keys: &TopologyKeys) -> Result<Self, ConfigError> {
        let Some(requirements) = entry.requirements else {
            return Err(ConfigError::at(
                format!("{at}.requirements"),
                "is required and missing",
            ));
        };
        let mut required = BTreeMap::new();
        for (key, value) in requirements {
            let path = format!("{at}.requirements.{key}");
            // compat: "Topology of the proxy": an empty value is an absent one.
            if let Some(value) = scalar(&path, &value)? {
                required.insert(keys.key(&key), value);
            }
        }
        let mut all = required.clone();
        for (key, value) in entry.extra {
            if let Some(value) = scalar(&format!("{at}.extra.{key}"), &value)? {
                all.insert(key, value);
            }
        }
        let (required, shown) = (Topology::new(required), Topology::new(all));
        if !is_topology(&shown) {
            let problem = "has a key or a value that no node could carry as a label";
            return Err(ConfigError::at(at, problem).advise(
                "values have 1 to 63 letters, digits, `-`, `_` and `.`; keys may have a prefix",
            ));
        }
        Ok(Self { required, shown })
    }

    fn fits(&self, term: &Topology) -> bool {
        agree(&self.required, term)
    }
}

/// A value as a label has it; numbers and truth values are written as they stand.
fn scalar(path: &str, value: &Value) -> Result<Option<String>, ConfigError> {
    match value {
        Value::Null | Value::Bool(false) => Ok(None),
        Value::String(text) => Ok((!text.is_empty()).then(|| text.clone())),
        Value::Number(number) => Ok(Some(number.to_string())),
        Value::Bool(true) => Ok(Some("true".to_owned())),
        Value::Array(_) | Value::Object(_) => Err(ConfigError::at(path, "expected one value")),
    }
}

#[cfg(test)]
mod tests;
