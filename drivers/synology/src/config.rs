//! The sections `httpConnection`, `synology` and `iscsi` of democratic-csi, with our additions.

use std::fmt;
use std::net::IpAddr;

use csi_types::attachment::{FieldError, Interface, Iqn, Listed, Portal};
use driver_core::config::scalar::unless_falsy;
use driver_core::config::{ConfigError, Document, Finding};
use driver_tls::TlsOptions;
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;

use crate::template::Template;

/// The types of LUNs in Synology's own driver, and the two words of ours.
const LUN_TYPES: [&str; 14] = [
    "thin",
    "thick",
    "BLOCK",
    "FILE",
    "THIN",
    "ADV",
    "SINK",
    "CINDER",
    "CINDER_BLUN",
    "CINDER_BLUN_THICK",
    "BLUN",
    "BLUN_THICK",
    "BLUN_SINK",
    "BLUN_THICK_SINK",
];

/// `httpConnection`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct HttpConnection {
    /// `http` or `https`.
    protocol: Protocol,
    /// A name or an address.
    host: String,
    /// 5000 for HTTP and 5001 for HTTPS unless given.
    #[serde(default, deserialize_with = "unless_falsy")]
    port: Option<u16>,
    /// An administrator of the NAS.
    username: String,
    /// The password.
    password: SecretString,
    /// Accept any certificate.
    #[serde(default)]
    allow_insecure: bool,
    /// The name that the NAS gives the session.
    #[serde(default, deserialize_with = "unless_falsy")]
    session: Option<String>,
    /// One changing operation after the other.
    #[serde(default)]
    serialize: bool,
    /// The way the certificate is checked.
    #[serde(default)]
    tls: TlsOptions,
}

/// The two protocols that DSM listens on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Protocol {
    /// Plain text.
    Http,
    /// TLS.
    Https,
}

/// The place where the NAS is and who logs in. Never prints a password.
#[derive(Clone)]
pub(crate) struct Connection {
    pub(crate) protocol: Protocol,
    /// `host:port`.
    pub(crate) authority: String,
    pub(crate) username: String,
    pub(crate) password: SecretString,
    pub(crate) session: String,
    pub(crate) serialize: bool,
    pub(crate) allow_insecure: bool,
    pub(crate) tls: TlsOptions,
}

/// `synology`.
#[derive(Debug, Clone, Default, Deserialize)]
struct SynologyConfig {
    /// The volume of the NAS.
    #[serde(default, deserialize_with = "unless_falsy")]
    volume: Option<String>,
}

/// `iscsi`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct IscsiConfig {
    #[serde(default, deserialize_with = "unless_falsy")]
    target_portal: Option<String>,
    #[serde(default)]
    target_portals: Option<Vec<String>>,
    #[serde(default, deserialize_with = "unless_falsy")]
    interface: Option<String>,
    baseiqn: String,
    #[serde(default, deserialize_with = "unless_falsy")]
    name_prefix: Option<String>,
    #[serde(default, deserialize_with = "unless_falsy")]
    name_suffix: Option<String>,
    #[serde(default)]
    lun_template: Template,
    #[serde(default)]
    lun_snapshot_template: Template,
    #[serde(default)]
    target_template: Template,
    #[serde(default)]
    mode: TargetMode,
    #[serde(default)]
    shared_target: SharedTargetConfig,
    #[serde(default)]
    verify_device: Option<bool>,
}

/// `iscsi.mode`: which target shows a new LUN.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum TargetMode {
    /// One of its own, as with democratic-csi.
    #[default]
    TargetPerLun,
    /// One of a few that many LUNs share.
    SharedTarget,
}

/// `iscsi.sharedTarget`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct SharedTargetConfig {
    /// Their names are this and a number.
    pub(crate) name: String,
    /// The most targets.
    pub(crate) targets: u32,
    /// The most LUNs of each.
    pub(crate) luns_per_target: u32,
}

/// Checked `iscsi` and `synology`.
#[derive(Debug, Clone)]
pub(crate) struct IscsiSettings {
    pub(crate) portals: Listed<Portal>,
    pub(crate) interface: Option<Interface>,
    pub(crate) base: String,
    pub(crate) prefix: String,
    pub(crate) suffix: String,
    pub(crate) lun: Template,
    pub(crate) snapshot: Template,
    pub(crate) target: Template,
    pub(crate) mode: TargetMode,
    pub(crate) shared: SharedTargetConfig,
    pub(crate) verify_device: bool,
    /// The volume of the NAS, such as `/volume1`.
    pub(crate) location: String,
}

// === impl Connection ===

impl Connection {
    pub(crate) fn read(document: &Document) -> Result<Self, ConfigError> {
        let config: HttpConnection = document.section("httpConnection")?;
        let host = config.host.trim();
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        let is_address = host.parse::<IpAddr>().is_ok();
        if !is_address && (host.is_empty() || !host.chars().all(name)) {
            let problem = "is neither the name of a host nor an address";
            return Err(ConfigError::at("httpConnection.host", problem));
        }
        for (key, text) in [
            ("httpConnection.username", config.username.as_str()),
            ("httpConnection.password", config.password.expose_secret()),
        ] {
            if text.is_empty() {
                return Err(ConfigError::at(key, "is empty"));
            }
        }
        let port = config.port.unwrap_or(match config.protocol {
            Protocol::Http => 5000,
            Protocol::Https => 5001,
        });
        let authority = if host.contains(':') {
            format!("[{host}]:{port}")
        } else {
            format!("{}:{port}", host.to_ascii_lowercase())
        };
        let is_here = host == "localhost" || host.parse().is_ok_and(|at: IpAddr| at.is_loopback());
        if config.protocol == Protocol::Http && !is_here {
            document.add(Finding::doubtful(
                "httpConnection.protocol",
                "is http: the password crosses the network in clear text",
                "use https, by port 5001 unless DSM is set otherwise",
            ));
        } else if config.protocol == Protocol::Https
            && config.tls.accepts_any(config.allow_insecure)
        {
            document.add(Finding::doubtful(
                "httpConnection.allowInsecure",
                "any certificate is accepted: the password goes to whatever answers at that address",
                "give the certificate of the NAS in httpConnection.tls.certificateSha256, or its authority in tls.ca",
            ));
        }
        Ok(Self {
            protocol: config.protocol,
            authority,
            username: config.username,
            password: config.password,
            session: config.session.unwrap_or_else(|| "omnibus-csi".to_owned()),
            serialize: config.serialize,
            allow_insecure: config.allow_insecure,
            tls: config.tls,
        })
    }

    /// Its address, as a user would write it.
    pub(crate) fn address(&self) -> String {
        let scheme = match self.protocol {
            Protocol::Http => "http",
            Protocol::Https => "https",
        };
        format!("{scheme}://{}", self.authority)
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("address", &self.address())
            .finish_non_exhaustive()
    }
}

// === impl SharedTargetConfig ===

impl Default for SharedTargetConfig {
    fn default() -> Self {
        Self {
            name: "csi".to_owned(),
            targets: 4,
            luns_per_target: 64,
        }
    }
}

// === impl IscsiSettings ===

/// The volume of the NAS that new LUNs and shares lie on. compat: "Synology": as democratic-csi, `/volume1` unless
/// given, and a slash before it may be left out.
pub(crate) fn location(document: &Document) -> Result<String, ConfigError> {
    let config = document.optional_section::<SynologyConfig>("synology")?;
    let volume = config.unwrap_or_default().volume;
    let volume = volume.unwrap_or_else(|| "volume1".to_owned());
    let name = volume.strip_prefix('/').unwrap_or(&volume);
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    if name.is_empty() || !name.chars().all(plain) {
        let problem = "is not the path of a volume of the NAS, such as /volume1";
        return Err(ConfigError::at("synology.volume", problem));
    }
    Ok(format!("/{name}"))
}

impl IscsiSettings {
    pub(crate) fn read(document: &Document) -> Result<Self, ConfigError> {
        let config: IscsiConfig = document.section("iscsi")?;
        let at =
            |key: &str, why: FieldError| ConfigError::at(format!("iscsi.{key}"), why.to_string());
        let portals = Listed::portals(
            config.target_portal.as_deref().unwrap_or_default(),
            config.target_portals.iter().flatten().map(String::as_str),
        )
        .map_err(|why| at("targetPortal", why))?;
        let interface = config.interface.as_deref().map(Interface::parse);
        let interface = interface.transpose().map_err(|why| at("interface", why))?;
        Iqn::parse(&config.baseiqn).map_err(|why| at("baseiqn", why))?;
        let mut settings = Self {
            portals,
            interface,
            base: config.baseiqn,
            prefix: config.name_prefix.unwrap_or_default().to_lowercase(),
            suffix: config.name_suffix.unwrap_or_default().to_lowercase(),
            lun: config.lun_template,
            snapshot: config.lun_snapshot_template,
            target: config.target_template,
            mode: config.mode,
            shared: config.shared_target,
            verify_device: config
                .verify_device
                .unwrap_or(config.mode == TargetMode::SharedTarget),
            location: location(document)?,
        };
        settings.shared.name = settings.shared.name.to_lowercase();
        settings.check()?;
        if let Some(most) = settings
            .target
            .number("max_sessions")
            .filter(|most| *most != 0)
        {
            document.add(Finding::doubtful(
                "iscsi.targetTemplate.max_sessions",
                format!(
                    "the NAS lets in {most} sessions: a further path or node cannot attach a volume"
                ),
                "remove it: 0, no limit, is the default",
            ));
        }
        if let Some(kind) = settings.lun.text("type")
            && !LUN_TYPES.contains(&kind)
        {
            document.add(Finding::doubtful(
                "iscsi.lunTemplate.type",
                "is no type of LUN that is known here",
                "leave it out, or give `thin`, `thick`, or a type as DSM writes it: BLUN, BLUN_THICK, THIN, FILE",
            ));
        }
        Ok(settings)
    }

    fn check(&self) -> Result<(), ConfigError> {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | ':' | '_');
        for (key, text) in [
            ("iscsi.namePrefix", &self.prefix),
            ("iscsi.nameSuffix", &self.suffix),
            ("iscsi.sharedTarget.name", &self.shared.name),
        ] {
            if !text.chars().all(plain) {
                let problem =
                    "may hold letters, digits, `-`, `.`, `:`: DSM takes no others in a name";
                return Err(ConfigError::at(key, problem));
            }
        }
        if self.mode == TargetMode::SharedTarget {
            for (key, number) in [
                ("iscsi.sharedTarget.targets", self.shared.targets),
                (
                    "iscsi.sharedTarget.lunsPerTarget",
                    self.shared.luns_per_target,
                ),
            ] {
                if number == 0 {
                    return Err(ConfigError::at(key, "has to be at least 1"));
                }
            }
            if self
                .target
                .number("max_sessions")
                .is_some_and(|most| most != 0)
            {
                let problem = "has to be 0 with `mode: shared-target`: every node keeps a session";
                return Err(ConfigError::at(
                    "iscsi.targetTemplate.max_sessions",
                    problem,
                ));
            }
        }
        Ok(())
    }
}
