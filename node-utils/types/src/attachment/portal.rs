//! The place where a service listens: an address or a name, and a port.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::FieldError;
use super::field::check;

/// An address or a name, and a port: `10.0.0.1:3260`, `[fe80::1%eth0]:3260`, `nas.lan:3260`.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Portal {
    /// The host.
    pub host: Host,
    /// On which port.
    pub port: u16,
}

/// A machine by address or name.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum Host {
    /// By address.
    Ip(IpAddr),
    /// By a link-local address and the interface that it counts on.
    Scoped(Ipv6Addr, String),
    /// By name.
    Name(String),
}

// === impl Portal ===

impl Portal {
    /// The port of iSCSI.
    pub const ISCSI: u16 = 3260;

    /// Reads `host`, `host:port`, `[v6]`, `[v6]:port` or a bare IPv6 address.
    pub fn parse(text: &str, default_port: u16) -> Result<Self, FieldError> {
        let (host, port) = if let Some(rest) = text.strip_prefix('[') {
            let (host, rest) = rest.split_once(']').ok_or(FieldError::Character('['))?;
            let port = match rest {
                "" => None,
                rest => Some(rest.strip_prefix(':').ok_or(FieldError::Character(']'))?),
            };
            (Host::v6(host)?, port)
        } else if text.matches(':').count() > 1 {
            (Host::v6(text)?, None)
        } else {
            match text.split_once(':') {
                Some((host, port)) => (Host::parse(host)?, Some(port)),
                None => (Host::parse(text)?, None),
            }
        };
        let port = match port {
            None => default_port,
            Some(port) => number(port)?,
        };
        Ok(Self { host, port })
    }
}

fn number(port: &str) -> Result<u16, FieldError> {
    let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    match port.parse() {
        Ok(port) if digits && port != 0 => Ok(port),
        _ => Err(FieldError::Form("a port")),
    }
}

impl fmt::Display for Portal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Ip(IpAddr::V6(_)) | Host::Scoped(..) => {
                write!(f, "[{}]:{}", self.host, self.port)
            }
            host => write!(f, "{host}:{}", self.port),
        }
    }
}

impl fmt::Debug for Portal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

// === impl Host ===

impl Host {
    /// Reads an IPv4 address or a name.
    pub fn parse(text: &str) -> Result<Self, FieldError> {
        if let Ok(ip) = text.parse::<Ipv4Addr>() {
            return Ok(Self::Ip(ip.into()));
        }
        check(text, 253, |c| {
            c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_')
        })?;
        Ok(Self::Name(text.to_owned()))
    }

    /// Reads an IPv6 address, with or without the interface that it counts on.
    pub fn v6(text: &str) -> Result<Self, FieldError> {
        const FORM: FieldError = FieldError::Form("an IPv6 address");
        let (address, zone) = match text.split_once('%') {
            Some((address, zone)) => (address, Some(zone)),
            None => (text, None),
        };
        let address: Ipv6Addr = address.parse().map_err(|_| FORM)?;
        match zone {
            None => Ok(Self::Ip(address.into())),
            Some(zone) => {
                let name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
                check(zone, 15, name)?;
                Ok(Self::Scoped(address, zone.to_owned()))
            }
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(ip) => ip.fmt(f),
            Self::Scoped(ip, zone) => write!(f, "{ip}%{zone}"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
