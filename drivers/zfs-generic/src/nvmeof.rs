//! The section `nvmeof`: subsystems of nvmet, by `nvmetcli` or by its configfs, and of SPDK.
//!
//! Both strategies for nvmet make and observe the same objects in the same way. Sources: the kernel's
//! `drivers/nvme/target/configfs.c`, and nvmetcli for the saved configuration.
//! compat: "Exports of a ZFS host".

mod keys;
mod nvmet;
mod nvmetcli;
mod spdk;

use std::collections::BTreeMap;

use csi_types::attachment::{FieldError as FormError, Listed, Transport};
use driver_core::config::scalar::unless_falsy;
use driver_core::config::{ConfigError, Document};
use driver_zfs::export::ExportNaming;
use serde::Deserialize;

use crate::config::{Attributes, Basename, Scalar, SecretScalar, Word, WordError};
use crate::disk::{DiskExport, Protocol};
use crate::scripts::HostPaths;
use driver_zfs::nodes::{Form, Nodes, NodesConfig};
use keys::Keys;
use nvmet::Nvmet;
use nvmetcli::NvmetCli;
use spdk::{Spdk, SpdkConfig};

const SECTION: &str = "nvmeof";

/// The file that nvmetcli saves to by default.
const SAVED: &str = "/etc/nvmet/config.json";

/// The section `nvmeof` for a host with ZFS.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NvmeofConfig {
    #[serde(default, deserialize_with = "unless_falsy")]
    transport: Option<String>,
    #[serde(default)]
    transports: Option<Vec<String>>,
    #[serde(default, deserialize_with = "unless_falsy")]
    share_strategy: Option<String>,
    #[serde(default)]
    share_strategy_nvmet_cli: Option<NvmetConfig>,
    #[serde(default)]
    share_strategy_nvmet: Option<NvmetConfig>,
    #[serde(default)]
    share_strategy_spdk_cli: Option<SpdkConfig>,
}

/// The section `shareStrategyNvmetCli` or `shareStrategyNvmet`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NvmetConfig {
    #[serde(default)]
    sudo_enabled: bool,
    #[serde(default, deserialize_with = "unless_falsy")]
    nvmetcli_path: Option<String>,
    #[serde(default, deserialize_with = "unless_falsy")]
    config_path: Option<String>,
    #[serde(default, deserialize_with = "unless_falsy")]
    config_is_imported_file_path: Option<String>,
    basename: String,
    #[serde(default)]
    ports: Vec<PortConfig>,
    #[serde(default)]
    subsystem: SubsystemConfig,
    /// The names of nodes, for access only by the nodes that a volume is published to. Only for `nvmet`.
    #[serde(default)]
    nodes: Option<NodesConfig>,
    /// The keys by which nodes prove who they are, by the ids of nodes. Only with `nodes`.
    #[serde(default)]
    dhchap_keys: Option<BTreeMap<String, SecretScalar>>,
    /// Whether the `nvmetcli` of the host restores keys.
    #[serde(default)]
    nvmetcli_restores_keys: bool,
}

/// A port: the number of an existing one, or the settings of one that is made if it is missing.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum PortConfig {
    Id(Scalar),
    Made(PortAddress),
}

#[derive(Debug, Clone, Deserialize)]
struct PortAddress {
    id: u16,
    #[serde(default)]
    trtype: Option<String>,
    #[serde(default)]
    adrfam: Option<String>,
    traddr: String,
    #[serde(default)]
    trsvcid: Option<Scalar>,
}

#[derive(Debug, Clone, Default, Deserialize)]
struct SubsystemConfig {
    #[serde(default)]
    attributes: Option<BTreeMap<String, Scalar>>,
}

/// A port of nvmet, as the script takes it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Port {
    id: u16,
    /// With a comma before it.
    address: String,
}

/// Reads the section.
pub fn export(document: &Document, places: HostPaths) -> Result<DiskExport, ConfigError> {
    let naming: ExportNaming = document.section(SECTION)?;
    naming.check(SECTION)?;
    let config: NvmeofConfig = document.section(SECTION)?;
    let protocol = Protocol::Nvmeof(config.transports()?);
    let missing = |key: &str| ConfigError::at(key, "is missing");
    match config.share_strategy.as_deref() {
        Some("nvmetCli") => {
            let key = "nvmeof.shareStrategyNvmetCli";
            let strategy = config.share_strategy_nvmet_cli;
            let strategy = strategy.ok_or_else(|| missing(key))?;
            let (basename, stack) = (
                strategy.basename(key)?,
                NvmetCli::new(&strategy, places, key)?,
            );
            Ok(DiskExport::new(naming, basename, protocol, stack))
        }
        Some("nvmet") => {
            let key = "nvmeof.shareStrategyNvmet";
            let strategy = config.share_strategy_nvmet;
            let strategy = strategy.ok_or_else(|| missing(key))?;
            let basename = strategy.basename(key)?;
            let nodes = strategy.nodes(key)?;
            let keys = Keys::read(&strategy, nodes.as_ref(), key)?;
            let stack = Nvmet::new(&strategy, keys, places, key)?;
            Ok(DiskExport::new(naming, basename, protocol, stack).for_nodes(nodes))
        }
        Some("spdkCli") => {
            let key = "nvmeof.shareStrategySpdkCli";
            let strategy = config.share_strategy_spdk_cli;
            let strategy = strategy.ok_or_else(|| missing(key))?;
            let basename = basename(&strategy.basename, key)?;
            let stack = Spdk::new(&strategy, places, key)?;
            Ok(DiskExport::new(naming, basename, protocol, stack))
        }
        _ => {
            let problem = "has to say how subsystems are made: nvmetCli, nvmet or spdkCli";
            Err(ConfigError::at("nvmeof.shareStrategy", problem))
        }
    }
}

fn basename(text: &str, key: &str) -> Result<Basename, ConfigError> {
    Basename::parse(text, &["nqn."], &format!("{key}.basename"))
}

// === impl NvmeofConfig ===

impl NvmeofConfig {
    /// The text of both keys, as nodes find it in the volume context. compat: "Volume context".
    fn transports(&self) -> Result<Listed<Transport>, ConfigError> {
        let one = self.transport.as_deref().unwrap_or_default();
        let many = self.transports.iter().flatten().map(String::as_str);
        let key = if one.trim().is_empty() || Transport::parse(one.trim()).is_ok() {
            "nvmeof.transports"
        } else {
            "nvmeof.transport"
        };
        Listed::transports(one, many).map_err(|error| match error {
            FormError::Empty => {
                let problem = "is needed: no node could reach a volume";
                ConfigError::at("nvmeof.transport", problem)
            }
            error => ConfigError::at(key, error.to_string()),
        })
    }
}

// === impl NvmetConfig ===

impl NvmetConfig {
    fn basename(&self, key: &str) -> Result<Basename, ConfigError> {
        basename(&self.basename, key)
    }

    fn attributes(&self, key: &str) -> Result<Attributes, ConfigError> {
        let none = BTreeMap::new();
        let given = self.subsystem.attributes.as_ref().unwrap_or(&none);
        Attributes::parse(given, &format!("{key}.subsystem.attributes"))
    }

    fn nodes(&self, key: &str) -> Result<Option<Nodes>, ConfigError> {
        let read = |config| Nodes::read(config, Form::Host, &format!("{key}.nodes"));
        self.nodes.as_ref().map(read).transpose()
    }

    fn refuse_nodes(&self, key: &str) -> Result<(), ConfigError> {
        let name = if self.nodes.is_some() {
            "nodes"
        } else if self.dhchap_keys.is_some() {
            "dhchapKeys"
        } else if self.nvmetcli_restores_keys {
            "nvmetcliRestoresKeys"
        } else {
            return Ok(());
        };
        let problem = "is of the strategy `nvmet`; this one lets in as it is set up";
        Err(ConfigError::at(format!("{key}.{name}"), problem))
    }

    fn ports(&self, key: &str) -> Result<Vec<Port>, ConfigError> {
        let key = format!("{key}.ports");
        let ports = self.ports.iter().map(|port| port.read(&key));
        ports.collect()
    }
}

// === impl PortConfig ===

impl PortConfig {
    fn read(&self, key: &str) -> Result<Port, ConfigError> {
        let refused = |problem: &str| ConfigError::at(key, problem);
        match self {
            Self::Id(text) => {
                let id = text.as_str().parse();
                let id = id.map_err(|_| refused("has to list the numbers of ports"))?;
                let address = String::new();
                Ok(Port { id, address })
            }
            Self::Made(port) => {
                let word = |text: &str| {
                    Word::parse(text).map_err(|error: WordError| refused(&error.to_string()))
                };
                let v6 = port.traddr.contains(':');
                let family = port
                    .adrfam
                    .as_deref()
                    .unwrap_or(if v6 { "ipv6" } else { "ipv4" });
                let service = port.trsvcid.as_ref().map_or("4420", Scalar::as_str);
                let fields = [
                    word(port.trtype.as_deref().unwrap_or("tcp"))?,
                    word(family)?,
                    word(&port.traddr)?,
                    word(service)?,
                ];
                let address = fields.map(|field| format!(",{field}")).concat();
                Ok(Port {
                    id: port.id,
                    address,
                })
            }
        }
    }
}
