//! A namespace of an NVMe-oF subsystem.

use std::fmt;

use super::field::{check, plain, word};
use super::iscsi::device_id;
use super::{ContextError, DeviceId, FENCES_NODES_KEY, FieldError, Keys, Listed, Portal};

/// A namespace of an NVMe-oF subsystem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nvmeof {
    /// The name of the subsystem.
    pub nqn: Nqn,
    /// The number of the namespace.
    pub nsid: Nsid,
    /// Ways to it.
    pub transports: Listed<Transport>,
    /// The identity of the namespace; `None` is anything.
    pub device_id: Option<DeviceId>,
    /// Whether its storage lets in only nodes that the volume is published to. See [`FENCES_NODES_KEY`].
    pub is_fenced: bool,
}

/// The name of a subsystem: `nqn.…`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Nqn(String);

/// The number of a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Nsid(u32);

/// The kind of network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fabric {
    /// TCP.
    Tcp,
    /// RDMA.
    Rdma,
    /// Fibre Channel.
    Fc,
}

/// One way to a subsystem: `tcp://host[:port][?option=value&…]`.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Transport {
    /// Over which network.
    pub fabric: Fabric,
    /// The address or the name of the other side.
    pub address: String,
    /// Its port, on networks that have ports.
    pub port: Option<u16>,
    /// Further options of `nvme connect`.
    pub options: Vec<ConnectOption>,
}

/// An option of `nvme connect`. Its value may be a key and is not printed.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ConnectOption {
    /// Its long name without dashes.
    pub name: String,
    /// Its value; empty for one that has none.
    pub value: String,
}

word!(Nqn);

/// The port of NVMe over TCP and RDMA.
const PORT: u16 = 4420;

/// Names that say where to connect to, and what to print: never from an option.
const NOT_OPTIONS: [&str; 10] = [
    "nqn",
    "transport",
    "traddr",
    "trsvcid",
    "device",
    "config",
    "output-format",
    "verbose",
    "dump-config",
    "help",
];

// === impl Nvmeof ===

impl Nvmeof {
    pub(super) fn read(keys: Keys<'_>) -> Result<Self, ContextError> {
        Ok(Self {
            nqn: keys.word("nqn", Nqn::parse)?,
            nsid: keys.word("nsid", Nsid::parse)?,
            transports: Listed::read(keys, "transport", "transports", Transport::parse)?,
            device_id: device_id(keys)?,
            is_fenced: is_fenced(keys)?,
        })
    }

    pub(super) fn write(&self, put: &mut impl FnMut(&str, String)) {
        put("nqn", self.nqn.0.clone());
        put("nsid", self.nsid.to_string());
        self.transports.write("transport", "transports", put);
        if let Some(id) = &self.device_id {
            put("device_id", id.as_str().to_owned());
        }
        if self.is_fenced {
            put(FENCES_NODES_KEY, "true".to_owned());
        }
    }
}

/// Reads [`FENCES_NODES_KEY`], which need not be there.
fn is_fenced(keys: Keys<'_>) -> Result<bool, ContextError> {
    match keys.optional(FENCES_NODES_KEY) {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        Some(_) => Err(ContextError::Word {
            key: FENCES_NODES_KEY,
            reason: FieldError::Form("`true` or `false`"),
        }),
    }
}

// === impl Listed ===

impl Listed<Transport> {
    /// Checks what is to stand in `transport`, which may be empty, and in `transports`.
    pub fn transports<'a>(
        one: &'a str,
        many: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, FieldError> {
        Self::checked(one, many, Transport::parse)
    }
}

// === impl Nqn ===

impl Nqn {
    /// Checks a name.
    pub fn parse(text: &str) -> Result<Self, FieldError> {
        check(text, 223, plain)?;
        if text.starts_with("nqn.") && text.len() > 4 {
            Ok(Self(text.to_owned()))
        } else {
            Err(FieldError::Form("the name of a subsystem (nqn.)"))
        }
    }
}

// === impl Nsid ===

impl Nsid {
    /// Reads a number.
    pub fn parse(text: &str) -> Result<Self, FieldError> {
        let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        match text.parse() {
            // Zero and all ones mean none and all.
            Ok(number) if plain && number != 0 && number != u32::MAX => Ok(Self(number)),
            _ => Err(FieldError::Form("the number of a namespace")),
        }
    }

    /// The number.
    pub fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Nsid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

// === impl Fabric ===

impl Fabric {
    /// Its name in addresses, options and sysfs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Rdma => "rdma",
            Self::Fc => "fc",
        }
    }
}

// === impl Transport ===

impl Transport {
    /// Reads `tcp://host[:port][?option=value&…]`, `rdma://…` or `fc://[nn-0x…:pn-0x…]`.
    pub fn parse(text: &str) -> Result<Self, FieldError> {
        const FORM: FieldError = FieldError::Form("an address of the form tcp://host:port");
        let (scheme, rest) = text.split_once("://").ok_or(FORM)?;
        let fabric = [Fabric::Tcp, Fabric::Rdma, Fabric::Fc]
            .into_iter()
            .find(|fabric| fabric.as_str() == scheme)
            .ok_or(FieldError::Form("an address of tcp://, rdma:// or fc://"))?;
        let (place, query) = match rest.split_once('?') {
            Some((place, query)) => (place, query),
            None => (rest, ""),
        };
        let place = place.trim_end_matches('/');
        let options = query
            .split('&')
            .filter(|option| !option.is_empty())
            .map(ConnectOption::parse)
            .collect::<Result<_, _>>()?;
        let (address, port) = if fabric == Fabric::Fc {
            let address = place.trim_start_matches('[').trim_end_matches(']');
            check(address, 255, |c| {
                c.is_ascii_alphanumeric() || matches!(c, '-' | ':')
            })?;
            (address.to_owned(), None)
        } else {
            let portal = Portal::parse(place, PORT)?;
            (portal.host.to_string(), Some(portal.port))
        };
        Ok(Self {
            fabric,
            address,
            port,
            options,
        })
    }
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transport")
            .field("fabric", &self.fabric)
            .field("address", &self.address)
            .field("port", &self.port)
            .field("options", &self.options)
            .finish()
    }
}

// === impl ConnectOption ===

impl ConnectOption {
    /// Reads `name=value` or `name`, with or without dashes before the name.
    pub fn parse(text: &str) -> Result<Self, FieldError> {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, value),
            None => (text, ""),
        };
        let name = name.trim_start_matches('-');
        check(name, 64, |c| {
            c.is_ascii_alphanumeric() || matches!(c, '-' | '_')
        })?;
        // Programs take the beginning of a long option for the whole.
        if name.len() < 2 || NOT_OPTIONS.iter().any(|not| not.starts_with(name)) {
            return Err(FieldError::Form("an option that may be set"));
        }
        if !value.is_empty() {
            // Numbers may be negative: -1 is "for ever".
            check(value.strip_prefix('-').unwrap_or(value), 1024, plain)?;
            if value.starts_with('-') && value.parse::<i64>().is_err() {
                return Err(FieldError::Dash);
            }
        }
        Ok(Self {
            name: name.to_owned(),
            value: value.to_owned(),
        })
    }
}

impl fmt::Debug for ConnectOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}=(hidden)", self.name)
    }
}
