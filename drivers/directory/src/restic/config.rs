//! `snapshots.restic`.

use std::collections::BTreeMap;
use std::fmt;

use csi_types::Variable;
use driver_core::config::ConfigError;
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use serde_json::Value;

/// Variables of the process that restic and its backends read. compat: "restic": those of the configuration win.
const OF_THE_PROCESS: [&str; 13] = [
    "RESTIC_",
    "AWS_",
    "AZURE_",
    "B2_",
    "GOOGLE_",
    "OS_",
    "ST_",
    "RCLONE_",
    "HOME",
    "XDG_CACHE_HOME",
    "TMPDIR",
    "HTTP",
    "NO_PROXY",
];

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

/// The section, checked. Never prints a value of the environment.
#[derive(Clone, Default)]
pub(crate) struct ResticConfig {
    pub(crate) global_flags: Vec<String>,
    pub(crate) tags: Vec<String>,
    pub(crate) prune: bool,
    pub(crate) env: BTreeMap<Variable, SecretString>,
}

impl fmt::Debug for ResticConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResticConfig")
            .field("prune", &self.prune)
            .field("env", &self.env.keys())
            .finish_non_exhaustive()
    }
}

impl ResticConfig {
    /// Whether something says where the repository is.
    pub(crate) fn has_repository(&self) -> bool {
        ["RESTIC_REPOSITORY", "RESTIC_REPOSITORY_FILE"]
            .into_iter()
            .any(|name| self.env.contains_key(&Variable::constant(name)))
    }

    /// Whether nothing says where the cache is.
    pub(crate) fn has_no_home(&self) -> bool {
        ["HOME", "XDG_CACHE_HOME", "RESTIC_CACHE_DIR"]
            .into_iter()
            .all(|name| !self.env.contains_key(&Variable::constant(name)))
    }

    /// Checks the section; `variables` are those of the process.
    pub(crate) fn read(
        section: &ResticSection,
        key: &str,
        variables: impl Iterator<Item = (String, String)>,
    ) -> Result<Self, ConfigError> {
        let inherited = variables.filter(|(name, _)| {
            let upper = name.to_ascii_uppercase();
            OF_THE_PROCESS.iter().any(|head| upper.starts_with(head))
        });
        let mut env: BTreeMap<_, _> = inherited
            .filter_map(|(name, value)| {
                Some((Variable::parse(name).ok()?, SecretString::from(value)))
            })
            .collect();
        for (name, value) in &section.env {
            let at = |problem: String| ConfigError::at(format!("{key}.env"), problem);
            let Some(value) = value else { continue };
            let name = Variable::parse(name.clone()).map_err(|error| at(error.to_string()))?;
            if value.expose_secret().contains('\0') {
                return Err(at(format!("`{name}` holds a NUL byte")));
            }
            env.insert(name, value.clone());
        }
        for tag in &section.tags {
            if tag.is_empty() || tag.contains([',', '\0']) {
                let problem = "a tag is empty, or holds a comma".to_owned();
                return Err(ConfigError::at(format!("{key}.tags"), problem));
            }
        }
        if section.global_flags.iter().any(|flag| flag.contains('\0')) {
            let problem = "a flag holds a NUL byte".to_owned();
            return Err(ConfigError::at(format!("{key}.global_flags"), problem));
        }
        Ok(Self {
            global_flags: section.global_flags.clone(),
            tags: section.tags.clone(),
            prune: is_true(&section.prune),
            env,
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
