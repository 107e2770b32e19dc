//! The section `iscsi`: targets of LIO, by `targetcli` or by its configfs.
//!
//! Both strategies make and observe the same objects in the same way, and each finds the volumes of
//! the other. Sources: the kernel's `target_core_configfs.c` and `iscsi_target_configfs.c`, and rtslib
//! for the saved configuration. compat: "Exports of a ZFS host".

mod lio;
mod targetcli;

use std::collections::BTreeMap;

use csi_types::attachment::{FieldError, Interface, Listed, Portal};
use driver_core::config::scalar::unless_falsy;
use driver_core::config::{ConfigError, Document};
use driver_zfs::export::ExportNaming;
use serde::Deserialize;

use crate::config::{Attributes, Basename, Chap, Scalar, SecretScalar};
use crate::disk::{DiskExport, Protocol};
use crate::scripts::HostPaths;
use driver_zfs::nodes::{Form, Nodes, NodesConfig};
use lio::Lio;
use targetcli::TargetCli;

const SECTION: &str = "iscsi";

/// The attributes of a target that is open to all nodes, as in the examples of democratic-csi.
const OPEN: [(&str, &str); 3] = [
    ("generate_node_acls", "1"),
    ("cache_dynamic_acls", "1"),
    ("demo_mode_write_protect", "0"),
];

/// The attributes of a target with access per node.
const CLOSED: [(&str, &str); 3] = [
    ("generate_node_acls", "0"),
    ("cache_dynamic_acls", "0"),
    ("demo_mode_write_protect", "1"),
];

/// The section `iscsi` for a host with ZFS.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct IscsiConfig {
    #[serde(default, deserialize_with = "unless_falsy")]
    target_portal: Option<String>,
    #[serde(default)]
    target_portals: Option<Vec<String>>,
    #[serde(default, deserialize_with = "unless_falsy")]
    interface: Option<String>,
    #[serde(default, deserialize_with = "unless_falsy")]
    share_strategy: Option<String>,
    #[serde(default)]
    share_strategy_target_cli: Option<StrategyConfig>,
    #[serde(default)]
    share_strategy_lio: Option<StrategyConfig>,
}

/// The section `shareStrategyTargetCli` or `shareStrategyLio`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StrategyConfig {
    #[serde(default)]
    sudo_enabled: bool,
    basename: String,
    #[serde(default)]
    tpg: TpgConfig,
    #[serde(default)]
    block: BlockConfig,
    /// The addresses at which the targets listen; by default all. Only for `lio`.
    #[serde(default)]
    listen: Option<Vec<String>>,
    /// The file that the host restores at its start. Only for `lio`.
    #[serde(default, deserialize_with = "unless_falsy")]
    config_path: Option<String>,
    /// The names of nodes, for access only by the nodes that a volume is published to. Only for `lio`.
    #[serde(default)]
    nodes: Option<NodesConfig>,
}

#[derive(Debug, Clone, Default, Deserialize)]
struct TpgConfig {
    #[serde(default)]
    attributes: Option<BTreeMap<String, Scalar>>,
    #[serde(default)]
    auth: Option<BTreeMap<String, SecretScalar>>,
}

#[derive(Debug, Clone, Default, Deserialize)]
struct BlockConfig {
    #[serde(default)]
    attributes: Option<BTreeMap<String, Scalar>>,
}

/// The settings of every target of a connection.
#[derive(Debug, Clone)]
struct TargetSettings {
    tpg: Attributes,
    block: Attributes,
    chap: Chap,
}

/// Reads the section.
pub fn export(document: &Document, places: HostPaths) -> Result<DiskExport, ConfigError> {
    let naming: ExportNaming = document.section(SECTION)?;
    naming.check(SECTION)?;
    let config: IscsiConfig = document.section(SECTION)?;
    let protocol = Protocol::Iscsi(config.portals()?, config.interface()?);
    let (key, strategy) = match config.share_strategy.as_deref() {
        Some("targetCli") => (
            "iscsi.shareStrategyTargetCli",
            &config.share_strategy_target_cli,
        ),
        Some("lio") => ("iscsi.shareStrategyLio", &config.share_strategy_lio),
        _ => {
            let problem = "has to say how targets are made: targetCli or lio";
            return Err(ConfigError::at("iscsi.shareStrategy", problem));
        }
    };
    let strategy = strategy
        .as_ref()
        .ok_or_else(|| ConfigError::at(key, "is missing"))?;
    let forms = ["iqn.", "eui.", "naa."];
    let basename = Basename::parse(&strategy.basename, &forms, &format!("{key}.basename"))?;
    let settings = strategy.settings(key)?;
    let stack: DiskExport = if key.ends_with("TargetCli") {
        let unused = [
            ("listen", &strategy.listen.is_some()),
            ("configPath", &strategy.config_path.is_some()),
            ("nodes", &strategy.nodes.is_some()),
        ];
        if let Some((name, _)) = unused.into_iter().find(|(_, set)| **set) {
            let problem =
                "is of the strategy `lio`; targetcli listens, saves and lets in as it is set up";
            return Err(ConfigError::at(format!("{key}.{name}"), problem));
        }
        let stack = TargetCli::new(settings, strategy.sudo_enabled, places, key)?;
        DiskExport::new(naming, basename, protocol, stack)
    } else {
        let listen = strategy.listen(key)?;
        let save = crate::config::file(
            strategy.config_path.as_deref(),
            &format!("{key}.configPath"),
        )?;
        let nodes = strategy.nodes(&settings, key)?;
        let settings = settings.or(if nodes.is_some() { &CLOSED } else { &OPEN });
        let stack = Lio::new(settings, listen, save, strategy.sudo_enabled, places);
        DiskExport::new(naming, basename, protocol, stack).for_nodes(nodes)
    };
    Ok(stack)
}

// === impl IscsiConfig ===

impl IscsiConfig {
    /// The text of both keys, as nodes find it in the volume context. compat: "Volume context".
    fn portals(&self) -> Result<Listed<Portal>, ConfigError> {
        let one = self.target_portal.as_deref().unwrap_or_default();
        let many = self.target_portals.iter().flatten().map(String::as_str);
        let key = if one.trim().is_empty() || Portal::parse(one.trim(), Portal::ISCSI).is_ok() {
            "iscsi.targetPortals"
        } else {
            "iscsi.targetPortal"
        };
        Listed::portals(one, many).map_err(|error| match error {
            FieldError::Empty => ConfigError::at(
                "iscsi.targetPortal",
                "is needed: no node could reach a volume",
            ),
            error => ConfigError::at(key, error.to_string()),
        })
    }

    fn interface(&self) -> Result<Option<Interface>, ConfigError> {
        let interface = self.interface.as_deref().map(Interface::parse);
        let interface = interface.transpose();
        interface.map_err(|error| ConfigError::at("iscsi.interface", error.to_string()))
    }
}

// === impl StrategyConfig ===

impl StrategyConfig {
    fn settings(&self, key: &str) -> Result<TargetSettings, ConfigError> {
        let none = BTreeMap::new();
        let tpg = self.tpg.attributes.as_ref().unwrap_or(&none);
        let block = self.block.attributes.as_ref().unwrap_or(&none);
        let no_auth = BTreeMap::new();
        let auth = self.tpg.auth.as_ref().unwrap_or(&no_auth);
        Ok(TargetSettings {
            tpg: Attributes::parse(tpg, &format!("{key}.tpg.attributes"))?,
            block: Attributes::parse(block, &format!("{key}.block.attributes"))?,
            chap: Chap::parse(auth, &format!("{key}.tpg.auth"))?,
        })
    }

    fn nodes(&self, settings: &TargetSettings, key: &str) -> Result<Option<Nodes>, ConfigError> {
        let Some(config) = &self.nodes else {
            return Ok(None);
        };
        if settings
            .tpg
            .get("generate_node_acls")
            .is_some_and(|text| text != "0")
        {
            let key = format!("{key}.tpg.attributes.generate_node_acls");
            return Err(ConfigError::at(
                key,
                "lets in every node, whatever `nodes` says",
            ));
        }
        Nodes::read(config, Form::Initiator, &format!("{key}.nodes")).map(Some)
    }

    fn listen(&self, key: &str) -> Result<Vec<Portal>, ConfigError> {
        let everywhere = vec!["0.0.0.0:3260".to_owned()];
        let texts = self.listen.as_ref().filter(|texts| !texts.is_empty());
        let parse = |text: &String| {
            Portal::parse(text, Portal::ISCSI)
                .map_err(|error| ConfigError::at(format!("{key}.listen"), error.to_string()))
        };
        texts.unwrap_or(&everywhere).iter().map(parse).collect()
    }
}
