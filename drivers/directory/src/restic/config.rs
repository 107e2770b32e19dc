//! `snapshots.restic`.

use std::collections::BTreeMap;

use csi_types::Variable;
use driver_core::config::ConfigError;
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use serde_json::Value;

use crate::backup::ToolConfig;

/// The section as it is written.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct ResticSection {
    /// Flags of every command.
    #[serde(default)]
    global_flags: Vec<String>,
    /// Further tags of new snapshots.
    #[serde(default)]
    tags: Vec<String>,
    /// Whether a deletion frees the space at once.
    #[serde(default)]
    prune: Value,
    /// The environment: the repository, its password, the keys of its store.
    #[serde(default)]
    env: BTreeMap<String, Option<SecretString>>,
}

/// The section, checked.
#[derive(Debug, Clone, Default)]
pub(crate) struct ResticConfig {
    pub(crate) tool: ToolConfig,
    pub(crate) prune: bool,
}

impl ResticConfig {
    /// The value that says where the repository is.
    pub(crate) fn location(&self) -> Option<&str> {
        let names = ["RESTIC_REPOSITORY", "RESTIC_REPOSITORY_FILE"];
        let said = |name| self.tool.env.get(&Variable::constant(name));
        let said = names.into_iter().find_map(said)?;
        Some(said.expose_secret())
    }

    /// Whether nothing says where the cache is.
    pub(crate) fn has_no_home(&self) -> bool {
        !self
            .tool
            .has_any(&["HOME", "XDG_CACHE_HOME", "RESTIC_CACHE_DIR"])
    }

    /// Checks the section; `variables` are those of the process.
    pub(crate) fn read(
        section: &ResticSection,
        key: &str,
        variables: impl Iterator<Item = (String, String)>,
    ) -> Result<Self, ConfigError> {
        for tag in &section.tags {
            if tag.is_empty() || tag.contains([',', '\0']) {
                let problem = "a tag is empty, or holds a comma";
                return Err(ConfigError::at(format!("{key}.tags"), problem));
            }
        }
        let lists = (&*section.global_flags, &*section.tags);
        Ok(Self {
            tool: ToolConfig::read(lists, &section.env, key, "RESTIC_", variables)?,
            prune: is_true(&section.prune),
        })
    }
}

/// compat: "restic": `true`, `yes` and `1` in any spelling.
fn is_true(value: &Value) -> bool {
    match value {
        Value::Bool(value) => *value,
        Value::Number(number) => number.as_u64() == Some(1),
        Value::String(text) => ["true", "yes", "1"].contains(&&*text.to_ascii_lowercase()),
        _ => false,
    }
}
