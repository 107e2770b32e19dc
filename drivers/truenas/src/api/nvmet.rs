//! NVMe-oF: `nvmet.*`, from 25.10 on. A subsystem has namespaces, is reachable through ports, and
//! lets hosts in.

use std::fmt;

use csi_types::DhchapKey;
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_json::json;

use super::{Call, Done, Fields, Request, rows};
use crate::{Dialect, Error, Generation};

rows! {
    /// Finds subsystems.
    QuerySubsystems, "nvmet.subsys.query", Subsystem, present
}
rows! {
    /// Finds namespaces, for example by `device_path` or `subsys.id`.
    QueryNamespaces, "nvmet.namespace.query", Namespace, present
}
rows! {
    /// Finds ports.
    QueryPorts, "nvmet.port.query", Port, present
}
rows! {
    /// Finds hosts.
    QueryHosts, "nvmet.host.query", Host, present
}
rows! {
    /// Finds which subsystem is reachable through which port, by `subsys.id` or `port.id`.
    QueryPortLinks, "nvmet.port_subsys.query", PortLink, present
}
rows! {
    /// Finds which host a subsystem lets in, by `subsys.id` or `host.id`.
    QueryHostLinks, "nvmet.host_subsys.query", HostLink, present
}
rows! {
    /// Finds sessions: who is connected to which subsystem.
    QueryNvmeSessions, "nvmet.global.sessions", NvmeSession, present
}

/// Reads the settings of the service.
#[derive(Debug, Clone, Copy)]
pub struct GetNvmeGlobal;

/// The settings of the service.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct NvmeGlobal {
    /// The beginning of the NQNs of subsystems.
    pub basenqn: String,
}

/// A subsystem.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Subsystem {
    /// Its number.
    pub id: i64,
    /// Its name.
    pub name: String,
    /// Its NQN.
    pub subnqn: Option<String>,
    /// Its serial number.
    #[serde(default)]
    pub serial: String,
    /// Whether hosts need no link.
    #[serde(default)]
    pub allow_any_host: bool,
}

/// A namespace.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Namespace {
    /// Its number.
    pub id: i64,
    /// The number within its subsystem.
    pub nsid: Option<u32>,
    /// `zvol/` and the path of the zvol.
    pub device_path: String,
    /// The UUID that hosts identify it by.
    #[serde(default)]
    pub device_uuid: String,
    /// And its longer form.
    #[serde(default)]
    pub device_nguid: String,
    /// Its subsystem.
    pub subsys: Subsystem,
    /// Whether it is served.
    #[serde(default = "super::is_enabled")]
    pub enabled: bool,
    /// Whether its zvol is locked, where the NAS says so.
    pub locked: Option<bool>,
}

/// A port.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Port {
    /// Its number.
    pub id: i64,
    /// `TCP`, `RDMA` or `FC`.
    #[serde(rename = "addr_trtype")]
    pub transport: String,
    /// Its address.
    #[serde(rename = "addr_traddr")]
    pub address: String,
    /// The TCP port; a number or a text.
    #[serde(rename = "addr_trsvcid", default)]
    pub service: serde_json::Value,
    /// Whether it is served.
    #[serde(default)]
    pub enabled: bool,
}

/// A host.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Host {
    /// Its number.
    pub id: i64,
    /// Its NQN.
    pub hostnqn: String,
    /// The key that it proves itself with, if any. A login without the role to write sees another text, also in the
    /// place of none.
    #[serde(default, rename = "dhchap_key")]
    pub key: Option<HostKey>,
    /// Whether the NAS proves itself to it with a key.
    #[serde(default, rename = "dhchap_ctrl_key", deserialize_with = "is_given")]
    pub has_controller_key: bool,
    /// The group of the exchange of keys, if any.
    #[serde(default, rename = "dhchap_dhgroup")]
    pub dh_group: Option<String>,
    /// The hash of its key, which it also has without one.
    #[serde(
        default,
        rename = "dhchap_hash",
        deserialize_with = "super::null_is_default"
    )]
    pub hash: String,
}

/// The key of a host, as the NAS has it. It is never printed.
#[derive(Clone, Deserialize)]
pub struct HostKey(SecretString);

/// A subsystem and a port through which it is reachable.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct PortLink {
    /// Its number.
    pub id: i64,
    /// The port.
    pub port: Port,
    /// The subsystem.
    pub subsys: Subsystem,
}

/// A subsystem and a host that it lets in.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct HostLink {
    /// Its number.
    pub id: i64,
    /// The host.
    pub host: Host,
    /// The subsystem.
    pub subsys: Subsystem,
}

/// A host and the subsystem to which it is connected.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct NvmeSession {
    /// The NQN of the host.
    pub hostnqn: String,
    /// Its address.
    #[serde(default, deserialize_with = "super::null_is_default")]
    pub host_traddr: String,
    /// The number of the subsystem.
    pub subsys_id: i64,
}

/// Creates a subsystem.
#[derive(Debug, Clone, Default)]
pub struct CreateSubsystem {
    /// Its name.
    pub name: String,
    /// Its NQN; the base NQN and the name if `None`.
    pub subnqn: Option<String>,
    /// Whether hosts need no link.
    pub allow_any_host: bool,
    /// The number of queues that a host may open.
    pub qid_max: Option<u32>,
    /// The vendor in the identifiers of its namespaces.
    pub ieee_oui: Option<String>,
    /// Whether paths are reported as of different value. Needs an appliance of two nodes.
    pub ana: Option<bool>,
    /// Whether data carries checks. Needs hardware.
    pub pi_enable: Option<bool>,
}

/// Changes whether hosts need a link.
#[derive(Debug, Clone, Copy)]
pub struct UpdateSubsystem {
    /// Its number.
    pub id: i64,
    /// Whether hosts need no link.
    pub allow_any_host: bool,
}

/// Creates a namespace of a zvol.
#[derive(Debug, Clone)]
pub struct CreateNamespace {
    /// The number of the subsystem.
    pub subsystem: i64,
    /// The path of the zvol, beginning with the pool.
    pub zvol: String,
    /// The number within the subsystem; the next free one if `None`.
    pub nsid: Option<u32>,
}

/// Creates a host.
#[derive(Debug, Clone)]
pub struct CreateHost {
    /// Its NQN.
    pub hostnqn: String,
    /// The key that it proves itself with.
    pub key: Option<SecretString>,
    /// The key that the NAS proves itself with.
    pub controller_key: Option<SecretString>,
    /// `2048-BIT` to `8192-BIT`.
    pub dh_group: Option<String>,
    /// `SHA-256`, `SHA-384` or `SHA-512`.
    pub hash: Option<String>,
}

/// Gives a host another key.
#[derive(Debug, Clone)]
pub struct UpdateHost {
    /// Its number.
    pub id: i64,
    /// The key that it proves itself with.
    pub key: SecretString,
}

/// Makes a subsystem reachable through a port.
#[derive(Debug, Clone, Copy)]
pub struct LinkPort {
    /// The number of the port.
    pub port: i64,
    /// The number of the subsystem.
    pub subsystem: i64,
}

/// Lets a host in.
#[derive(Debug, Clone, Copy)]
pub struct LinkHost {
    /// The number of the host.
    pub host: i64,
    /// The number of the subsystem.
    pub subsystem: i64,
}

/// Deletes one row of NVMe-oF.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeleteNvme {
    /// A subsystem; with `force` although it has namespaces or ports.
    Subsystem {
        /// Its number.
        id: i64,
        /// Although it has namespaces or ports.
        force: bool,
    },
    /// A namespace; its zvol stays.
    Namespace(i64),
    /// A host that nothing links to.
    Host(i64),
    /// The link of a port.
    PortLink(i64),
    /// The link of a host.
    HostLink(i64),
}

// === impl HostKey ===

impl HostKey {
    /// Whether it is this one.
    pub fn is(&self, key: &DhchapKey) -> bool {
        self.0.expose_secret() == key.secret().expose_secret()
    }
}

impl PartialEq for HostKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.expose_secret() == other.0.expose_secret()
    }
}

impl Eq for HostKey {}

impl fmt::Debug for HostKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

impl Request for GetNvmeGlobal {
    type Answer = NvmeGlobal;

    fn encode(&self, dialect: &Dialect) -> Result<Call, Error> {
        present(dialect)?;
        Ok(Call::new("nvmet.global.config", vec![]))
    }
}

impl Request for CreateSubsystem {
    type Answer = Subsystem;

    fn encode(&self, dialect: &Dialect) -> Result<Call, Error> {
        present(dialect)?;
        Fields::new(dialect)
            .put("name", self.name.as_str())
            .put("allow_any_host", self.allow_any_host)
            .opt("subnqn", self.subnqn.as_ref())
            .opt("qid_max", self.qid_max.as_ref())
            .opt("ieee_oui", self.ieee_oui.as_ref())
            .opt("ana", self.ana.as_ref())
            .opt("pi_enable", self.pi_enable.as_ref())
            .call("nvmet.subsys.create")
    }
}

impl Request for UpdateSubsystem {
    type Answer = Subsystem;

    fn encode(&self, dialect: &Dialect) -> Result<Call, Error> {
        present(dialect)?;
        Fields::new(dialect)
            .put("allow_any_host", self.allow_any_host)
            .call_after("nvmet.subsys.update", vec![json!(self.id)])
    }
}

impl Request for CreateNamespace {
    type Answer = Namespace;

    fn encode(&self, dialect: &Dialect) -> Result<Call, Error> {
        present(dialect)?;
        Fields::new(dialect)
            .put("subsys_id", self.subsystem)
            .put("device_type", "ZVOL")
            .put("device_path", format!("zvol/{}", self.zvol))
            .opt("nsid", self.nsid.as_ref())
            .call("nvmet.namespace.create")
    }
}

impl Request for CreateHost {
    type Answer = Host;

    fn encode(&self, dialect: &Dialect) -> Result<Call, Error> {
        present(dialect)?;
        Fields::new(dialect)
            .put("hostnqn", self.hostnqn.as_str())
            .secret("dhchap_key", self.key.as_ref())
            .secret("dhchap_ctrl_key", self.controller_key.as_ref())
            .opt("dhchap_dhgroup", self.dh_group.as_ref())
            .opt("dhchap_hash", self.hash.as_ref())
            .call("nvmet.host.create")
    }
}

impl Request for UpdateHost {
    type Answer = Host;

    fn encode(&self, dialect: &Dialect) -> Result<Call, Error> {
        present(dialect)?;
        Fields::new(dialect)
            .secret("dhchap_key", Some(&self.key))
            .call_after("nvmet.host.update", vec![json!(self.id)])
    }
}

impl Request for LinkPort {
    type Answer = PortLink;

    fn encode(&self, dialect: &Dialect) -> Result<Call, Error> {
        present(dialect)?;
        Fields::new(dialect)
            .put("port_id", self.port)
            .put("subsys_id", self.subsystem)
            .call("nvmet.port_subsys.create")
    }
}

impl Request for LinkHost {
    type Answer = HostLink;

    fn encode(&self, dialect: &Dialect) -> Result<Call, Error> {
        present(dialect)?;
        Fields::new(dialect)
            .put("host_id", self.host)
            .put("subsys_id", self.subsystem)
            .call("nvmet.host_subsys.create")
    }
}

impl Request for DeleteNvme {
    type Answer = Done;

    fn encode(&self, dialect: &Dialect) -> Result<Call, Error> {
        present(dialect)?;
        let (method, params) = match *self {
            Self::Subsystem { id, force } => (
                "nvmet.subsys.delete",
                vec![json!(id), json!({"force": force})],
            ),
            Self::Namespace(id) => ("nvmet.namespace.delete", vec![json!(id)]),
            Self::Host(id) => ("nvmet.host.delete", vec![json!(id)]),
            Self::PortLink(id) => ("nvmet.port_subsys.delete", vec![json!(id)]),
            Self::HostLink(id) => ("nvmet.host_subsys.delete", vec![json!(id)]),
        };
        Ok(Call::new(method, params))
    }
}

/// Whether there is a value. The value itself, a secret, is not kept.
fn is_given<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Option::<serde::de::IgnoredAny>::deserialize(deserializer).map(|value| value.is_some())
}

fn present(dialect: &Dialect) -> Result<(), Error> {
    dialect.needs(Generation::V25_10, "NVMe-oF")
}
