//! The `httpConnection` block: where the NAS is, how its certificate is checked, who logs in.

use std::fmt;
use std::net::IpAddr;

use aws_lc_rs::digest::{Context, SHA256};
use driver_core::config::ConfigError;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Deserializer};

pub use driver_tls::{Fingerprint, TlsOptions};

/// The block as it stands in a configuration file of democratic-csi, with the TLS options that are
/// ours.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpConnection {
    /// `http` or `https`; without it the port decides.
    #[serde(default)]
    pub protocol: Option<Protocol>,
    /// A name or an address.
    pub host: String,
    /// The port; the protocol's own if absent.
    #[serde(default, deserialize_with = "number_or_text")]
    pub port: Option<u16>,
    /// The API key. It wins over the password.
    #[serde(default)]
    pub api_key: Option<SecretString>,
    /// The user that owns the API key or the password.
    #[serde(default)]
    pub username: Option<String>,
    /// The password.
    #[serde(default)]
    pub password: Option<SecretString>,
    /// Accept any certificate.
    #[serde(default, deserialize_with = "truthy")]
    pub allow_insecure: bool,
    /// The version of the REST API. Read and ignored: the protocol is found out.
    #[serde(default)]
    pub api_version: Option<serde_json::Value>,
    /// The way an API key is presented.
    #[serde(default)]
    pub api_key_login: ApiKeyLogin,
    /// The way the certificate is checked.
    #[serde(default)]
    pub tls: TlsOptions,
}

/// The two protocols that a NAS listens on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// Plain text.
    Http,
    /// TLS.
    Https,
}

/// The way an API key is presented to the NAS.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ApiKeyLogin {
    /// SCRAM where the NAS offers it, the key itself where it does not.
    #[default]
    Auto,
    /// SCRAM or nothing: the key never leaves this process.
    Scram,
    /// The key itself.
    Plain,
}

/// Checked settings of a connection.
#[derive(Clone)]
pub struct Settings {
    pub(crate) endpoint: Endpoint,
    pub(crate) credentials: Credentials,
    pub(crate) api_key_login: ApiKeyLogin,
    pub(crate) allow_insecure: bool,
    pub(crate) tls: TlsOptions,
}

/// The place where the NAS listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Endpoint {
    pub(crate) protocol: Protocol,
    pub(crate) host: String,
    pub(crate) port: u16,
}

/// The credentials of the login.
#[derive(Clone)]
pub(crate) enum Credentials {
    ApiKey {
        username: Option<String>,
        key: SecretString,
    },
    Password {
        username: String,
        password: SecretString,
    },
}

// === impl HttpConnection ===

impl HttpConnection {
    /// Checks the block.
    pub fn check(self) -> Result<Settings, ConfigError> {
        let endpoint = Endpoint::new(self.protocol, &self.host, self.port)?;
        let credentials = Credentials::new(self.api_key, self.username, self.password)?;
        if self.api_version.is_some_and(|version| version == 1) {
            tracing::warn!("httpConnection.apiVersion is ignored: FreeNAS 11 is not supported");
        }
        Ok(Settings {
            endpoint,
            credentials,
            api_key_login: self.api_key_login,
            allow_insecure: self.allow_insecure,
            tls: self.tls,
        })
    }
}

// === impl Settings ===

impl Settings {
    /// The address as a user would write it, for messages.
    pub fn address(&self) -> String {
        self.endpoint.to_string()
    }

    /// Equal for equal settings, and tells nothing of the secrets in them.
    pub(crate) fn identity(&self) -> [u8; 32] {
        let (kind, username, secret) = match &self.credentials {
            Credentials::ApiKey { username, key } => ("key", username.as_deref(), key),
            Credentials::Password { username, password } => {
                ("password", Some(username.as_str()), password)
            }
        };
        let pin = self.tls.certificate_sha256.map(|pin| pin.to_string());
        let options = format!("{:?} {}", self.api_key_login, self.allow_insecure);
        let parts = [
            Some(self.address()),
            Some(kind.to_owned()),
            username.map(str::to_owned),
            Some(options),
            self.tls.ca.clone(),
            pin,
            self.tls.server_name.clone(),
        ];
        let mut context = Context::new(&SHA256);
        for part in parts
            .iter()
            .map(Option::as_deref)
            .chain([Some(secret.expose_secret())])
        {
            // The length parts the fields; none at all is not an empty one.
            let length = part.map_or(u64::MAX, |part| part.len() as u64);
            context.update(&length.to_be_bytes());
            context.update(part.unwrap_or_default().as_bytes());
        }
        let mut identity = [0; 32];
        identity.copy_from_slice(context.finish().as_ref());
        identity
    }

    /// Texts that no message may contain.
    pub(crate) fn secrets(&self) -> Vec<SecretString> {
        match &self.credentials {
            // The part after the dash is the secret; a server may quote it alone.
            Credentials::ApiKey { key, .. } => {
                let secret = key.expose_secret();
                let tail = secret.split_once('-').map(|(_, tail)| tail.into());
                [Some(key.clone()), tail].into_iter().flatten().collect()
            }
            Credentials::Password { password, .. } => vec![password.clone()],
        }
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("endpoint", &self.endpoint)
            .field("allow_insecure", &self.allow_insecure)
            .finish_non_exhaustive()
    }
}

// === impl Endpoint ===

impl Endpoint {
    fn new(protocol: Option<Protocol>, host: &str, port: Option<u16>) -> Result<Self, ConfigError> {
        let host = host.trim().trim_start_matches('[').trim_end_matches(']');
        let name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        let valid = host.parse::<IpAddr>().is_ok() || (!host.is_empty() && host.chars().all(name));
        if !valid {
            return Err(ConfigError::at(
                "httpConnection.host",
                "is neither the name of a host nor an address",
            ));
        }
        // As democratic-csi: a port that contains "80" means http, one that contains "443" https, else http.
        let protocol = protocol.unwrap_or_else(|| {
            let text = port.map(|port| port.to_string()).unwrap_or_default();
            if text.contains("443") && !text.contains("80") {
                Protocol::Https
            } else {
                Protocol::Http
            }
        });
        let port = port.unwrap_or(match protocol {
            Protocol::Http => 80,
            Protocol::Https => 443,
        });
        let host = host.to_owned();
        Ok(Self {
            protocol,
            host,
            port,
        })
    }

    /// `host:port`, with brackets around an IPv6 address.
    pub(crate) fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    /// Whether nothing leaves this machine.
    pub(crate) fn is_loopback(&self) -> bool {
        self.host == "localhost"
            || self
                .host
                .parse::<IpAddr>()
                .is_ok_and(|address| address.is_loopback())
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.protocol {
            Protocol::Http => "http",
            Protocol::Https => "https",
        };
        write!(f, "{scheme}://{}", self.authority())
    }
}

// === impl Credentials ===

impl Credentials {
    fn new(
        key: Option<SecretString>,
        username: Option<String>,
        password: Option<SecretString>,
    ) -> Result<Self, ConfigError> {
        let given = |secret: &SecretString| !secret.expose_secret().is_empty();
        let username = username.filter(|name| !name.is_empty());
        if let Some(key) = key.filter(given) {
            return Ok(Self::ApiKey { username, key });
        }
        match (username, password.filter(given)) {
            (Some(username), Some(password)) => Ok(Self::Password { username, password }),
            _ => Err(ConfigError::at(
                "httpConnection",
                "needs an apiKey, or a username and a password",
            )),
        }
    }
}

/// Any value that JavaScript takes for true, as democratic-csi does.
fn truthy<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    use serde_json::Value;
    Ok(match Value::deserialize(deserializer)? {
        Value::Null => false,
        Value::Bool(value) => value,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(_) | Value::Object(_) => true,
    })
}

fn number_or_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u16>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Port {
        Number(u16),
        Text(String),
    }
    match Option::<Port>::deserialize(deserializer)? {
        None => Ok(None),
        Some(Port::Number(port)) => Ok(Some(port)),
        Some(Port::Text(text)) if text.is_empty() => Ok(None),
        Some(Port::Text(text)) => text.parse().map(Some).map_err(serde::de::Error::custom),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn settings(block: serde_json::Value) -> Result<Settings, ConfigError> {
        serde_json::from_value::<HttpConnection>(block)
            .expect("a block")
            .check()
    }

    #[test]
    fn the_protocol_follows_the_port_when_it_is_not_given() {
        for (port, address) in [
            (json!(443), "https://nas:443"),
            (json!("8443"), "https://nas:8443"),
            (json!(80), "http://nas:80"),
            (json!(8080), "http://nas:8080"),
            (json!(null), "http://nas:80"),
            (json!(5000), "http://nas:5000"),
        ] {
            let settings = settings(json!({"host": "nas", "port": port, "apiKey": "1-x"}));
            assert_eq!(settings.expect("settings").address(), address);
        }
    }

    #[test]
    fn an_api_key_wins_over_a_password() {
        let both = json!({"host": "nas", "apiKey": "1-x", "username": "u", "password": "p"});
        let credentials = settings(both).expect("settings").credentials;
        assert!(
            matches!(credentials, Credentials::ApiKey { username: Some(name), .. } if name == "u")
        );
    }

    #[test]
    fn a_block_without_credentials_is_refused() {
        for block in [
            json!({"host": "nas"}),
            json!({"host": "nas", "apiKey": "", "username": "u"}),
            json!({"host": "nas", "password": "p"}),
        ] {
            assert_eq!(
                settings(block).expect_err("refused").path(),
                Some("httpConnection")
            );
        }
    }

    #[test]
    fn a_host_that_is_more_than_a_host_is_refused() {
        for host in [
            "",
            "nas/x",
            "user@nas",
            "nas:443",
            "nas\r\nX: y",
            "http://nas",
        ] {
            let block = json!({"host": host, "apiKey": "1-x"});
            let error = settings(block).expect_err("refused");
            assert_eq!(error.path(), Some("httpConnection.host"));
        }
    }

    #[test]
    fn an_ipv6_address_is_written_in_brackets() {
        for host in ["fd00::1", "[fd00::1]"] {
            let block = json!({"host": host, "protocol": "https", "apiKey": "1-x"});
            assert_eq!(
                settings(block).expect("settings").address(),
                "https://[fd00::1]:443"
            );
        }
    }

    #[test]
    fn only_equal_settings_have_the_same_identity() {
        let identity = |block| settings(block).expect("settings").identity();
        let one = || json!({"host": "nas", "apiKey": "1-x", "username": "u"});
        assert_eq!(identity(one()), identity(one()));
        for other in [
            json!({"host": "nas2", "apiKey": "1-x", "username": "u"}),
            json!({"host": "nas", "apiKey": "1-y", "username": "u"}),
            json!({"host": "nas", "apiKey": "1-x"}),
            json!({"host": "nas", "password": "1-x", "username": "u"}),
            json!({"host": "nas", "apiKey": "1-x", "username": "u", "allowInsecure": true}),
            json!({"host": "nas", "apiKey": "1-x", "username": "u", "tls": {"ca": ""}}),
        ] {
            assert_ne!(identity(one()), identity(other.clone()), "{other}");
        }
    }

    #[test]
    fn settings_print_no_secret() {
        let block = json!({"host": "nas", "apiKey": "1-canary", "password": "canary"});
        let block: HttpConnection = serde_json::from_value(block).expect("a block");
        assert!(!format!("{block:?}").contains("canary"));
        assert!(!format!("{:?}", block.check().expect("settings")).contains("canary"));
    }
}
