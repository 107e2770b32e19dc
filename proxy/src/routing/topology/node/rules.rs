//! One rule: a source, a pattern, and a template for the value.

use std::path::{Path, PathBuf};

use driver_core::Topology;
use driver_core::config::ConfigError;
use regex::{Captures, Regex};
use serde::Deserialize;

use super::{Sources, absolute, whole};
use crate::routing::topology::label::is_topology;
use crate::routing::topology::matching::TopologyKeys;

/// One entry of `proxy.nodeTopology.fromRegexp`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RuleConfig {
    #[serde(alias = "keySuffix")]
    topology_key: String,
    source: SourceKind,
    #[serde(default)]
    env_name: Option<String>,
    #[serde(default)]
    file: Option<String>,
    #[serde(default)]
    label: Option<String>,
    #[serde(default, alias = "matchRegexp")]
    regex: Option<String>,
    #[serde(default, alias = "resultTemplate")]
    template: Option<String>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "camelCase")]
enum SourceKind {
    NodeName,
    Hostname,
    Env,
    File,
    Labels,
}

/// A rule that can be applied.
#[derive(Debug, Clone)]
pub(super) struct ZoneRule {
    key: String,
    source: Source,
    pattern: Regex,
    result: Vec<Piece>,
}

#[derive(Debug, Clone)]
enum Source {
    NodeName,
    Hostname,
    Variable(String),
    File(PathBuf),
    /// A label in a file of them, as Kubernetes writes it: `key="value"` on each line.
    Label(PathBuf, String),
}

/// A part of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Text(String),
    /// The text of a group of the pattern.
    Group(usize),
}

// === impl ZoneRule ===

impl ZoneRule {
    pub(super) fn of(
        index: usize,
        config: RuleConfig,
        keys: &TopologyKeys,
    ) -> Result<Self, ConfigError> {
        let at = |key: &str| format!("proxy.nodeTopology.fromRegexp[{index}].{key}");
        let required = |key: &str, value: Option<String>| {
            let value = value.filter(|value| !value.is_empty());
            value
                .ok_or_else(|| ConfigError::at(at(key), "is required for this source, and missing"))
        };
        let file = |path: Option<String>| {
            absolute(&required("file", path)?)
                .ok_or_else(|| ConfigError::at(at("file"), "is not an absolute path"))
        };
        let source = match config.source {
            SourceKind::NodeName => Source::NodeName,
            SourceKind::Hostname => Source::Hostname,
            SourceKind::Env => Source::Variable(required("envName", config.env_name)?),
            SourceKind::File => Source::File(file(config.file)?),
            SourceKind::Labels => {
                Source::Label(file(config.file)?, required("label", config.label)?)
            }
        };
        let pattern = config.regex.as_deref().unwrap_or("(.*)");
        let pattern = whole(pattern).map_err(|problem| {
            ConfigError::at(at("regex"), problem)
                .advise("there is no look-around and no back-reference in this dialect")
        })?;
        let template = config.template.as_deref().unwrap_or("{match:0}");
        let result =
            pieces(template).map_err(|problem| ConfigError::at(at("template"), problem))?;
        let groups = pattern.captures_len();
        if result
            .iter()
            .any(|piece| matches!(piece, Piece::Group(group) if *group >= groups))
        {
            let problem = format!("names a group, and the pattern has {}", groups - 1);
            return Err(ConfigError::at(at("template"), problem));
        }
        let key = keys.key(&config.topology_key);
        if !is_valid_label(&key, "a") {
            return Err(ConfigError::at(at("topologyKey"), "is no name of a label"));
        }
        Ok(Self {
            key,
            source,
            pattern,
            result,
        })
    }

    /// The whole key.
    pub(super) fn key(&self) -> &str {
        &self.key
    }

    /// The file that it reads.
    pub(super) fn file(&self) -> Option<&Path> {
        match &self.source {
            Source::File(path) | Source::Label(path, _) => Some(path),
            Source::NodeName | Source::Hostname | Source::Variable(_) => None,
        }
    }

    /// The value of this rule for this node, or why there is none.
    pub(super) fn tell(&self, sources: &Sources<'_>) -> Result<String, String> {
        let text = self.source.read(sources)?;
        let text = text.trim();
        let found = self.pattern.captures(text);
        let found = found.ok_or_else(|| "its source does not match".to_owned())?;
        let value: String = self
            .result
            .iter()
            .map(|piece| piece.write(&found))
            .collect();
        if !is_valid_label(&self.key, &value) {
            return Err("what it makes could not be the value of a label".to_owned());
        }
        Ok(value)
    }
}

fn is_valid_label(key: &str, value: &str) -> bool {
    let segment = (key.to_owned(), value.to_owned());
    is_topology(&Topology::new([segment].into()))
}

// === impl Source ===

impl Source {
    fn read(&self, sources: &Sources<'_>) -> Result<String, String> {
        let text = |path: &Path| match sources.files.get(path) {
            Some(read) => read.as_ref().map_err(Clone::clone),
            None => Err(format!("{} was not read", path.display())),
        };
        match self {
            Self::NodeName => Ok(sources.node.as_str().to_owned()),
            Self::Hostname => Ok(sources.hostname.to_owned()),
            Self::Variable(name) => {
                let value = (sources.variable)(name);
                value.ok_or_else(|| format!("the variable `{name}` is not set"))
            }
            Self::File(path) => text(path).cloned(),
            Self::Label(path, name) => {
                let labels = text(path)?;
                let mut pairs = labels.lines().filter_map(|line| line.split_once('='));
                let value = pairs.find(|(key, _)| key.trim() == name);
                let value = value.map(|(_, value)| value.trim().trim_matches('"').to_owned());
                value.ok_or_else(|| format!("the node has no label `{name}`"))
            }
        }
    }
}

// === impl Piece ===

impl Piece {
    fn write<'a>(&'a self, found: &Captures<'a>) -> &'a str {
        match self {
            Self::Text(text) => text,
            // A group that took no part is nothing.
            Self::Group(group) => found.get(*group).map_or("", |found| found.as_str()),
        }
    }
}

/// A template with `{match:N}`, also written `${match:N}`; the inserted text is not expanded again.
fn pieces(template: &str) -> Result<Vec<Piece>, String> {
    const OPEN: &str = "{match:";
    let mut pieces = Vec::new();
    let mut rest = template;
    while let Some(start) = rest.find(OPEN) {
        let before = &rest[..start];
        let before = before.strip_suffix('$').unwrap_or(before);
        if !before.is_empty() {
            pieces.push(Piece::Text(before.to_owned()));
        }
        let inner = &rest[start + OPEN.len()..];
        let (number, after) = inner
            .split_once('}')
            .ok_or("has a `{match:` without its end")?;
        let group = number
            .parse()
            .map_err(|_| "has a `{match:…}` that is no number")?;
        pieces.push(Piece::Group(group));
        rest = after;
    }
    if !rest.is_empty() {
        pieces.push(Piece::Text(rest.to_owned()));
    }
    Ok(pieces)
}
