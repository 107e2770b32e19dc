//! The section `objectivefs` of the configuration.

use std::collections::BTreeMap;

use csi_types::Variable;
use csi_types::attachment::Hidden;
use driver_core::config::{ConfigError, Document};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;

use crate::name::Pool;

/// The section of the configuration.
pub(crate) const SECTION: &str = "objectivefs";
/// The place where filesystems are: `s3://`, `minio://` and the like.
pub(crate) const OBJECTSTORE: Variable = Variable::constant("OBJECTSTORE");

/// Words of which one is in the name of a variable that must not be shown.
const SECRET: [&str; 7] = [
    "KEY",
    "LICENSE",
    "PASS",
    "PROXY",
    "SECRET",
    "TOKEN",
    "CREDENTIAL",
];

/// `objectivefs`, as it is written.
#[derive(Debug, Deserialize)]
struct Section {
    /// The bucket that volumes are made in.
    pool: String,
    /// The way the tool is run.
    #[serde(default)]
    cli: Cli,
    /// Its environment.
    #[serde(default)]
    env: BTreeMap<String, Option<SecretString>>,
}

/// `objectivefs.cli`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Cli {
    /// Whether it is run by sudo.
    #[serde(default)]
    sudo_enabled: bool,
}

/// The environment of the tool. Never prints a value.
pub(crate) type Env = BTreeMap<Variable, SecretString>;

/// `objectivefs`, checked.
#[derive(Debug)]
pub(crate) struct Config {
    /// The pool in which all volumes lie.
    pub(crate) pool: Pool,
    /// Whether the tool is run by sudo.
    pub(crate) sudo: bool,
    /// The environment of the tool.
    pub(crate) env: Env,
}

// === impl Config ===

impl Config {
    /// Reads and checks the section.
    pub(crate) fn read(document: &Document) -> Result<Self, ConfigError> {
        let section: Section = document.section(SECTION)?;
        let mut env = Env::new();
        for (name, value) in section.env {
            let at = || format!("{SECTION}.env");
            let Some(value) = value.filter(|value| !value.expose_secret().is_empty()) else {
                continue;
            };
            let name =
                Variable::parse(name).map_err(|error| ConfigError::at(at(), error.to_string()))?;
            if value.expose_secret().contains('\0') {
                let problem = format!("`{name}` holds a NUL byte");
                return Err(ConfigError::at(at(), problem));
            }
            env.insert(name, value);
        }
        let config = Self {
            pool: Pool::parse(&section.pool)?,
            sudo: section.cli.sudo_enabled,
            env,
        };
        config.store()?;
        Ok(config)
    }

    /// The object store, with its `://`.
    pub(crate) fn store(&self) -> Result<String, ConfigError> {
        let at = |problem| ConfigError::at(format!("{SECTION}.env.OBJECTSTORE"), problem);
        let Some(store) = self.env.get(&OBJECTSTORE) else {
            return Err(at("is missing").advise("where the pool is: `s3://`, `gs://`, `minio://`"));
        };
        let store = store.expose_secret();
        let name = store.strip_suffix("://").unwrap_or_default();
        if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric()) {
            return Err(at("is not an object store").advise("write it as `s3://`"));
        }
        Ok(store.to_owned())
    }

    /// The part of this environment that nodes get in the volume context: everything that is not a
    /// secret and that a node accepts from a volume. compat: "ObjectiveFS".
    pub(crate) fn for_nodes(&self) -> BTreeMap<Variable, Hidden> {
        let open = self.env.iter();
        let open = open.filter(|(name, _)| !is_secret(name) && !name.is_of_the_host());
        open.map(|(name, value)| (name.clone(), Hidden::new(value.expose_secret())))
            .collect()
    }
}

/// Whether a variable may hold what must not stand in the context of a volume, which all see who may
/// look at volumes. By its name: a value does not tell.
pub(crate) fn is_secret(name: &Variable) -> bool {
    let name = name.as_str().to_ascii_uppercase();
    SECRET.iter().any(|word| name.contains(word))
}

#[cfg(test)]
mod tests {
    use driver_core::config::NoEnvironment;

    use super::*;

    fn read(section: &str) -> Result<Config, ConfigError> {
        let text = format!("driver: objectivefs\nobjectivefs: {{{section}}}\n");
        let document = Document::parse(&text, &NoEnvironment)?;
        let config = Config::read(&document)?;
        document.common()?;
        assert_eq!(document.findings(), [], "{section}");
        Ok(config)
    }

    #[test]
    fn what_is_secret_stays_out_of_the_context() {
        let env = "OBJECTSTORE: 's3://', ENDPOINT: 'http://minio:9000', CACHESIZE: 30, ACCESS_KEY: a, \
                   SECRET_KEY: b, OBJECTIVEFS_LICENSE: c, OBJECTIVEFS_PASSPHRASE: d, \
                   AWS_SECURITY_TOKEN: e, http_proxy: 'http://joe:pw@x', UNSET: null, \
                   HOME: /var/lib/objectivefs";
        let config = read(&format!("pool: csi, env: {{{env}}}")).expect("a configuration");
        let names: Vec<_> = config.for_nodes().into_keys().collect();
        let names: Vec<_> = names.iter().map(Variable::as_str).collect();
        assert_eq!(names, ["CACHESIZE", "ENDPOINT", "OBJECTSTORE"]);
        assert_eq!(config.env.len(), 10, "what is empty is not set");
        let shown = format!("{config:?}");
        assert!(!shown.contains("joe"), "{shown}");
    }

    #[test]
    fn what_cannot_be_meant_is_refused_with_its_key() {
        for (section, path) in [
            ("", "objectivefs.pool"),
            ("pool: ''", "objectivefs.pool"),
            ("pool: csi", "objectivefs.env.OBJECTSTORE"),
            (
                "pool: csi, env: {OBJECTSTORE: s3}",
                "objectivefs.env.OBJECTSTORE",
            ),
            (
                "pool: csi, env: {OBJECTSTORE: 's3://bucket'}",
                "objectivefs.env.OBJECTSTORE",
            ),
            ("pool: csi, env: {'A B': x}", "objectivefs.env"),
        ] {
            let error = read(section).expect_err(section);
            assert_eq!(error.path(), Some(path), "{error}");
        }
    }
}
