//! The section `proxy` of the main configuration: the folders of connections and the meaning of names.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use csi_types::AbsolutePath;
use driver_core::config::scalar::unless_falsy;
use driver_core::config::{ConfigError, Document};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::routing::connection::PerDriver;
use crate::routing::connections::{Bare, ConnectionName, NO_OWNER, Names};
use crate::routing::node_id::NodeIdConfig;
use crate::routing::plugin_name::PluginName;
use crate::routing::topology::matching::{Rule, TopologyKeys};
use crate::routing::topology::node::{NodeTopology, NodeTopologyConfig};

/// The time that an idle driver is kept unless configured. A driver that is used again within the hour keeps its login.
const KEEP: Duration = Duration::from_hours(1);

/// `proxy`, as it is written.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Section {
    #[serde(deserialize_with = "one_or_many")]
    config_folder: Vec<String>,
    #[serde(default)]
    cache_timeout_minutes: Keep,
    #[serde(default)]
    node_id: NodeIdConfig,
    #[serde(default)]
    node_topology: NodeTopologyConfig,
    #[serde(default)]
    topology_rule: Rule,
    #[serde(default)]
    aliases: BTreeMap<String, String>,
    #[serde(default, deserialize_with = "unless_falsy")]
    legacy_connection: Option<String>,
    #[serde(default)]
    legacy_names: BTreeMap<String, String>,
    #[serde(default)]
    per_driver: PerDriver,
    #[serde(default)]
    inline_volumes: bool,
}

/// `proxy`, checked.
#[derive(Debug)]
pub(crate) struct ProxySettings {
    /// The folders of connections.
    pub(crate) folders: Vec<PathBuf>,
    /// The time that an idle driver is kept.
    pub(crate) keep: Keep,
    /// The meaning of names in handles.
    pub(crate) names: Names,
    /// The names of nodes.
    pub(crate) node_id: NodeIdConfig,
    /// The topology that nodes report.
    pub(crate) topology: NodeTopology,
    /// The rules of topology.
    pub(crate) keys: TopologyKeys,
    /// Whether nodes read the files of connections, for volumes that pods describe.
    pub(crate) inline_volumes: bool,
}

/// The time that an idle driver is kept. compat: "The proxy".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keep {
    /// As long as its file is there.
    Forever,
    /// This long after its last call.
    For(Duration),
}

// === impl ProxySettings ===

impl ProxySettings {
    /// Reads and checks the section.
    pub(crate) fn read(document: &Document) -> Result<Self, ConfigError> {
        let section: Section = document.section("proxy")?;
        let prefix = section.node_topology.prefix()?;
        let keys = TopologyKeys {
            prefix,
            rule: section.topology_rule,
        };
        section.node_id.check()?;
        // Each connection reads them again; errors are reported here.
        section.per_driver.accessibility(&keys)?;
        section.per_driver.mapping()?;
        Ok(Self {
            folders: folders(&section.config_folder)?,
            keep: section.cache_timeout_minutes,
            names: names(&section)?,
            topology: NodeTopology::of(section.node_topology, &keys)?,
            node_id: section.node_id,
            keys,
            inline_volumes: section.inline_volumes,
        })
    }
}

fn folders(paths: &[String]) -> Result<Vec<PathBuf>, ConfigError> {
    let at = |problem: String| ConfigError::at("proxy.configFolder", problem);
    if paths.is_empty() {
        return Err(at("is required and missing".to_owned()));
    }
    let path = |path: &String| {
        let path = AbsolutePath::parse(path).map_err(|error| at(error.to_string()))?;
        Ok(path.as_path().to_owned())
    };
    paths.iter().map(path).collect()
}

fn names(section: &Section) -> Result<Names, ConfigError> {
    let name = |at: String, text: &str| {
        ConnectionName::parse(text).map_err(|error| ConfigError::at(at, error.to_string()))
    };
    let mut aliases = BTreeMap::new();
    for (old, new) in &section.aliases {
        let at = || format!("proxy.aliases.{old}");
        let pair = (name(at(), old)?, name(at(), new)?);
        if section.aliases.contains_key(new) {
            return Err(ConfigError::at(at(), "names another alias")
                .advise("name the connection that is there now"));
        }
        aliases.insert(pair.0, pair.1);
    }
    let bare = match section.legacy_connection.as_deref() {
        None => Bare::Unsaid,
        Some(NO_OWNER) => Bare::Nobodys,
        Some(text) => Bare::Of(name("proxy.legacyConnection".to_owned(), text)?),
    };
    let mut legacy = BTreeMap::new();
    for (old, connection) in &section.legacy_names {
        let at = || format!("proxy.legacyNames.{old}");
        let old =
            PluginName::parse(old).map_err(|error| ConfigError::at(at(), error.to_string()))?;
        legacy.insert(old, name(at(), connection)?);
    }
    Ok(Names {
        aliases,
        bare,
        legacy,
    })
}

fn one_or_many<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let text = |value| match value {
        Value::String(text) => Ok(text),
        _ => Err(D::Error::custom(
            "expected the path of a folder, or a list of them",
        )),
    };
    match Value::deserialize(deserializer)? {
        Value::Array(paths) => paths.into_iter().map(text).collect(),
        one => Ok(vec![text(one)?]),
    }
}

// === impl Keep ===

impl Default for Keep {
    fn default() -> Self {
        Self::For(KEEP)
    }
}

impl<'de> Deserialize<'de> for Keep {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        const EXPECTED: &str = "expected minutes, `off` (0) or `forever` (-1)";
        let value = Value::deserialize(deserializer)?;
        let minutes = match &value {
            Value::Null => return Ok(Self::default()),
            Value::String(word) => match word.trim() {
                "off" => Some(0.0),
                "forever" => Some(-1.0),
                number => number.parse().ok(),
            },
            Value::Number(number) => number.as_f64(),
            _ => None,
        };
        match minutes {
            Some(-1.0) => Ok(Self::Forever),
            Some(minutes) if (0.0..=1e6).contains(&minutes) => {
                Ok(Self::For(Duration::from_secs_f64(minutes * 60.0)))
            }
            _ => Err(D::Error::custom(EXPECTED)),
        }
    }
}

#[cfg(test)]
mod tests {
    use driver_core::config::NoEnvironment;

    use super::*;

    fn read(section: &str) -> Result<ProxySettings, ConfigError> {
        let yaml = format!("driver: proxy\nproxy: {{{section}}}");
        let document = Document::parse(&yaml, &NoEnvironment).expect("yaml");
        let settings = ProxySettings::read(&document);
        if settings.is_ok() {
            document.common().expect("keys");
            assert_eq!(document.findings(), [], "{section}");
        }
        settings
    }

    #[test]
    fn a_folder_is_all_that_is_needed() {
        let settings = read("configFolder: /mnt/connections/").expect("settings");
        assert_eq!(settings.folders, [PathBuf::from("/mnt/connections")]);
        assert_eq!(settings.keep, Keep::For(KEEP));
        assert_eq!(settings.names.bare, Bare::Unsaid);
        assert!(settings.names.aliases.is_empty());
        for (value, expected) in [
            ("none", Bare::Nobodys),
            ("''", Bare::Unsaid),
            (
                "nas",
                Bare::Of(ConnectionName::parse("nas").expect("a name")),
            ),
        ] {
            let settings = read(&format!("configFolder: /c, legacyConnection: {value}"));
            assert_eq!(settings.expect("settings").names.bare, expected, "{value}");
        }
        let several = read("configFolder: [/a, /b]").expect("settings");
        assert_eq!(several.folders.len(), 2);
    }

    #[test]
    fn the_time_that_an_idle_driver_is_kept_means_what_was_documented() {
        let keep = |value: &str| {
            let settings = read(&format!("configFolder: /c, cacheTimeoutMinutes: {value}"));
            settings.map(|settings| settings.keep)
        };
        for (value, expected) in [
            ("-1", Keep::Forever),
            ("forever", Keep::Forever),
            ("0", Keep::For(Duration::ZERO)),
            ("off", Keep::For(Duration::ZERO)),
            ("1.5", Keep::For(Duration::from_secs(90))),
            ("null", Keep::For(KEEP)),
        ] {
            assert_eq!(keep(value).expect(value), expected, "{value}");
        }
        for bad in ["-2", "soon", "[1]", "true"] {
            assert!(keep(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused_with_its_key() {
        for (section, path) in [
            ("", "proxy.configFolder"),
            ("configFolder: []", "proxy.configFolder"),
            ("configFolder: connections", "proxy.configFolder"),
            ("configFolder: /c, aliases: {a b: c}", "proxy.aliases.a b"),
            ("configFolder: /c, aliases: {a: b, b: c}", "proxy.aliases.a"),
            (
                "configFolder: /c, legacyConnection: ../x",
                "proxy.legacyConnection",
            ),
            (
                "configFolder: /c, legacyNames: {org.old: ../x}",
                "proxy.legacyNames.org.old",
            ),
            (
                "configFolder: /c, legacyNames: {'an old': nas}",
                "proxy.legacyNames.an old",
            ),
            (
                "configFolder: /c, perDriver: {nodeIdType: local}",
                "proxy.perDriver.nodeIdType",
            ),
            (
                "configFolder: /c, nodeTopology: {prefix: 'A b'}",
                "proxy.nodeTopology.prefix",
            ),
        ] {
            let error = read(section).expect_err(section);
            assert_eq!(error.path(), Some(path), "{error}");
        }
    }
}
