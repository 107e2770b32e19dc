//! One way to a subsystem: a fabric, an address there, and what `nvme connect` is told besides.

use std::fmt;
use std::net::IpAddr;

/// The kind of network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fabric {
    /// TCP.
    Tcp,
    /// RDMA: RoCE, InfiniBand, iWARP.
    Rdma,
    /// Fibre Channel.
    Fc,
}

/// One way to a subsystem.
#[derive(Clone, PartialEq, Eq)]
pub struct Route {
    fabric: Fabric,
    host: String,
    service: Option<String>,
    options: Vec<(String, String)>,
}

/// Why a route is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRoute {
    /// No address, or one with characters that none has.
    #[error("`{}` is no address", .0.escape_debug())]
    Address(String),
    /// No port number.
    #[error("`{}` is no port", .0.escape_debug())]
    Service(String),
    /// An option that is none, or that would lead elsewhere.
    #[error("`{}` is no option that can be set", .0.escape_debug())]
    Option(String),
}

/// What says where to connect to, by its long and its short name: never from an option.
const WHERE: [&str; 8] = ["nqn", "n", "transport", "t", "traddr", "a", "trsvcid", "s"];

/// Options whose value is a key, by all their names.
const SECRET: [&str; 5] = ["dhchap-secret", "S", "dhchap-ctrl-secret", "C", "tls_key"];

// === impl Fabric ===

impl Fabric {
    /// Its name in sysfs and in options.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Rdma => "rdma",
            Self::Fc => "fc",
        }
    }

    /// From its name; `None` for `pcie`, `loop` and what else is no network.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Tcp, Self::Rdma, Self::Fc]
            .into_iter()
            .find(|fabric| fabric.as_str() == name)
    }

    /// The port where none is given.
    pub(super) fn default_service(self) -> Option<&'static str> {
        match self {
            Self::Tcp | Self::Rdma => Some("4420"),
            Self::Fc => None,
        }
    }
}

// === impl Route ===

impl Route {
    /// Checks a route. `options` are further options of `nvme connect`, with or without their
    /// dashes; one without a value has the empty one.
    pub fn new(
        fabric: Fabric,
        host: &str,
        service: Option<&str>,
        options: Vec<(String, String)>,
    ) -> Result<Self, InvalidRoute> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".:-_%".contains(&byte);
        if host.is_empty() || host.len() > 255 || host.starts_with('-') || !host.bytes().all(plain)
        {
            return Err(InvalidRoute::Address(host.to_owned()));
        }
        if let Some(service) = service
            && !service.parse::<u16>().is_ok_and(|port| port != 0)
        {
            return Err(InvalidRoute::Service(service.to_owned()));
        }
        for (key, value) in &options {
            let name = bare(key);
            let dashes = key.len() - name.len();
            let word = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
            if dashes > 2
                || name.is_empty()
                || !name.bytes().all(word)
                || WHERE.contains(&name)
                || value.starts_with('-') && value.parse::<i64>().is_err()
                || value.chars().any(char::is_control)
            {
                return Err(InvalidRoute::Option(key.clone()));
            }
        }
        Ok(Self {
            fabric,
            host: host.to_owned(),
            service: service.or(fabric.default_service()).map(str::to_owned),
            options,
        })
    }

    /// The kind of network.
    pub fn fabric(&self) -> Fabric {
        self.fabric
    }

    /// The address, or the name that has to be looked up.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port, on networks that have ports.
    pub fn service(&self) -> Option<&str> {
        self.service.as_deref()
    }

    pub(super) fn options(&self) -> impl Iterator<Item = (&str, &str)> {
        self.options
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// The value of an option by any of its names.
    pub(super) fn option(&self, names: &[&str]) -> Option<&str> {
        let mut given = self.options();
        given
            .find(|(key, _)| names.contains(&bare(key)))
            .map(|(_, value)| value)
    }

    /// Whether the host is a name that has to be looked up.
    pub(super) fn is_name(&self) -> bool {
        self.fabric != Fabric::Fc && ip(&self.host).is_none()
    }
}

/// An option's name without dashes.
fn bare(key: &str) -> &str {
    key.trim_start_matches('-')
}

/// Whether the value of this option must not be seen.
pub(super) fn is_secret(key: &str) -> bool {
    SECRET.contains(&bare(key))
}

/// An address, without the interface that may stand behind one that is local to a link.
pub(super) fn ip(text: &str) -> Option<IpAddr> {
    text.split('%').next()?.parse().ok()
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = &self.host;
        let fabric = self.fabric.as_str();
        match (&self.service, host.contains(':')) {
            (Some(service), true) => write!(f, "{fabric}://[{host}]:{service}"),
            (Some(service), false) => write!(f, "{fabric}://{host}:{service}"),
            (None, _) => write!(f, "{fabric}://{host}"),
        }
    }
}

impl fmt::Debug for Route {
    // An option may be a key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self} with {} options", self.options.len())
    }
}
