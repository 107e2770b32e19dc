//! The section `sshConnection`: the host, the user, and the authentication of both.
//!
//! compat: "Exports of a ZFS host". The keys are those that democratic-csi gives to `ssh2`, and two
//! of ours, `hostKey` and `knownHosts`.

use std::time::Duration;

use driver_core::config::scalar::unless_falsy;
use driver_core::config::{ConfigError, Document};
use driver_ssh::{HostKeys, Key, Settings};
use secrecy::SecretString;
use serde::Deserialize;
use serde_json::Value;

const SECTION: &str = "sshConnection";

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SshConfig {
    host: String,
    #[serde(default)]
    port: Option<Port>,
    username: String,
    #[serde(default, deserialize_with = "unless_falsy")]
    password: Option<SecretString>,
    #[serde(default, deserialize_with = "unless_falsy")]
    private_key: Option<SecretString>,
    #[serde(default, deserialize_with = "unless_falsy")]
    passphrase: Option<SecretString>,
    /// Milliseconds.
    #[serde(default, deserialize_with = "unless_falsy")]
    ready_timeout: Option<u64>,
    /// Milliseconds.
    #[serde(default, deserialize_with = "unless_falsy")]
    keepalive_interval: Option<u64>,
    /// Fingerprints or public keys, each on a line of its own.
    #[serde(default, deserialize_with = "unless_falsy")]
    host_key: Option<String>,
    #[serde(default, deserialize_with = "unless_falsy")]
    known_hosts: Option<String>,
}

/// A port, also as text.
#[derive(Debug, Clone, Copy)]
struct Port(u16);

impl<'de> Deserialize<'de> for Port {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = match Value::deserialize(deserializer)? {
            Value::String(text) => text,
            other => other.to_string(),
        };
        let port = text.trim().parse().ok().filter(|port| *port != 0);
        let none = || serde::de::Error::custom("expected the number of a port");
        port.map(Self).ok_or_else(none)
    }
}

/// Reads the section; `None` if commands run here.
pub fn settings(document: &Document) -> Result<Option<Settings>, ConfigError> {
    document.without_effect(&[
        ("sshConnection.agent", "keys of an agent are not used"),
        (
            "sshConnection.algorithms",
            "both sides agree on the best that they have",
        ),
        ("sshConnection.debug", "see the log level of the program"),
    ]);
    let config: Option<SshConfig> = document.optional_section(SECTION)?;
    config.map(read).transpose()
}

fn read(config: SshConfig) -> Result<Settings, ConfigError> {
    let at = |key: &str, problem: String| ConfigError::at(format!("{SECTION}.{key}"), problem);
    let mut settings = Settings::new(config.host, config.username);
    settings.port = config.port.map_or(Settings::PORT, |port| port.0);
    settings.key = config
        .private_key
        .map(|text| Key::parse(&text, config.passphrase.as_ref()))
        .transpose()
        .map_err(|error| at("privateKey", error.to_string()))?;
    settings.password = config.password;
    if settings.key.is_none() && settings.password.is_none() {
        let problem = "or a password is needed to log in";
        return Err(at("privateKey", problem.to_owned()));
    }
    if let Some(keys) = &config.host_key {
        let keys = keys.lines().map(str::trim).filter(|key| !key.is_empty());
        settings.host_keys =
            HostKeys::pinned(keys).map_err(|error| at("hostKey", error.to_string()))?;
    } else if let Some(text) = &config.known_hosts {
        settings.host_keys =
            HostKeys::known(text).map_err(|error| at("knownHosts", error.to_string()))?;
    }
    if let Some(millis) = config.ready_timeout {
        settings.connect_within = Duration::from_millis(millis);
    }
    if let Some(millis) = config.keepalive_interval {
        settings.keepalive = Duration::from_millis(millis);
    }
    Ok(settings)
}
