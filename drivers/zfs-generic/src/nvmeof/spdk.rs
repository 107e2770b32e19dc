//! Subsystems of SPDK by `spdkcli`, as far as it shows their state.
//!
//! A block device and a subsystem have the same name. The list of the tool does not show the zvol behind
//! a device, so only the name identifies them. The source is SPDK's `scripts/spdkcli` (`ui_node.py`,
//! `ui_node_nvmf.py`).

use std::collections::BTreeMap;

use driver_core::config::ConfigError;
use driver_core::config::scalar::unless_falsy;
use driver_zfs_cli::exec::{Command, Program};
use serde::Deserialize;

use crate::config::{Attributes, Scalar, Word, file, program};
use crate::disk::{Disk, Stack};
use crate::facts::Facts;
use crate::scripts::{HostPaths, Scripts, TRIES};

const LOOK: &str = include_str!("../script/spdk.sh");

/// The section `shareStrategySpdkCli`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SpdkConfig {
    #[serde(default)]
    sudo_enabled: bool,
    #[serde(default, deserialize_with = "unless_falsy")]
    spdkcli_path: Option<String>,
    #[serde(default, deserialize_with = "unless_falsy")]
    config_path: Option<String>,
    pub(super) basename: String,
    bdev: BdevConfig,
    #[serde(default)]
    subsystem: super::SubsystemConfig,
    #[serde(default)]
    listeners: Vec<BTreeMap<String, Scalar>>,
}

#[derive(Debug, Clone, Deserialize)]
struct BdevConfig {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    attributes: Option<BTreeMap<String, Scalar>>,
}

#[derive(Debug)]
pub(super) struct Spdk {
    scripts: Scripts,
    tool: Program,
    kind: Word,
    bdev: Attributes,
    subsystem: Attributes,
    listeners: Vec<Attributes>,
    save: Option<String>,
}

/// The option without which the tool makes no block device.
const BDEV: [(&str, &str); 1] = [("block_size", "512")];

/// The place where it listens: the tool needs all four.
fn listener(map: &BTreeMap<String, Scalar>, key: &str) -> Result<Attributes, ConfigError> {
    let attributes = Attributes::parse(map, key)?;
    let Some(address) = attributes.get("traddr") else {
        return Err(ConfigError::at(key, "has to say where to listen: traddr"));
    };
    let family = if address.contains(':') {
        "ipv6"
    } else {
        "ipv4"
    };
    Ok(attributes.or(&[("trtype", "tcp"), ("trsvcid", "4420"), ("adrfam", family)]))
}

// === impl Spdk ===

impl Spdk {
    pub(super) fn new(
        config: &SpdkConfig,
        places: HostPaths,
        key: &str,
    ) -> Result<Self, ConfigError> {
        let none = BTreeMap::new();
        let bdev = config.bdev.attributes.as_ref().unwrap_or(&none);
        let subsystem = config.subsystem.attributes.as_ref().unwrap_or(&none);
        let listeners = config.listeners.iter();
        let listeners = listeners.map(|map| listener(map, &format!("{key}.listeners")));
        Ok(Self {
            scripts: Scripts::new(LOOK, "spdk", config.sudo_enabled, places),
            tool: program(
                config.spdkcli_path.as_deref(),
                "spdkcli",
                &format!("{key}.spdkcliPath"),
            )?,
            kind: Word::name(&config.bdev.kind)
                .map_err(|error| ConfigError::at(format!("{key}.bdev.type"), error.to_string()))?,
            bdev: Attributes::parse(bdev, &format!("{key}.bdev.attributes"))?.or(&BDEV),
            subsystem: Attributes::parse(subsystem, &format!("{key}.subsystem.attributes"))?
                .spelling_out("allow_any_host"),
            listeners: listeners.collect::<Result<_, _>>()?,
            save: file(config.config_path.as_deref(), &format!("{key}.configPath"))?,
        })
    }

    fn arguments(&self, disk: &Disk<'_>) -> Vec<String> {
        let listeners = self.listeners.len().to_string();
        let fixed = [
            self.tool.as_str(),
            self.kind.as_str(),
            disk.target,
            &listeners,
        ];
        fixed.map(str::to_owned).to_vec()
    }

    fn run_tool(&self, disk: &Disk<'_>, mut lines: Vec<String>, word: &str) -> Command {
        if let Some(path) = &self.save {
            lines.push(format!("/ save_config filename={path}"));
        }
        lines.push("exit\n".to_owned());
        let tool = [TRIES, word, self.tool.as_str(), "-"];
        let arguments = self.arguments(disk);
        self.scripts
            .run_tool(tool, [&lines.join("\n"), ""], arguments, "")
    }

    /// `line` and attributes after it, each after a blank.
    fn with(line: String, attributes: &Attributes) -> String {
        attributes.words(" ").fold(line, |line, word| line + &word)
    }
}

impl Stack for Spdk {
    fn places(&self) -> &HostPaths {
        self.scripts.places()
    }

    fn refuses(&self, disk: &Disk<'_>) -> Option<&'static str> {
        let blank = disk.device.contains(' ');
        blank.then_some("spdkcli takes no dataset with a blank in its name")
    }

    fn observe(&self, disk: &Disk<'_>) -> Command {
        self.scripts.unlocked(self.arguments(disk), "")
    }

    fn make(&self, disk: &Disk<'_>, facts: &Facts) -> Command {
        let (nqn, device, kind) = (disk.target, disk.device, &self.kind);
        let uuid = disk.uuid;
        let is_missing = |what: &str| facts.missing.iter().any(|name| name == what);
        let mut lines = Vec::new();
        if is_missing("bdev") {
            let line = format!("/bdevs/{kind} create filename={device} name={nqn}");
            lines.push(Self::with(line, &self.bdev));
        }
        if is_missing("subsystem") {
            let line = format!("/nvmf/subsystem create nqn={nqn}");
            lines.push(Self::with(line, &self.subsystem));
        }
        let subsystem = format!("/nvmf/subsystem/{nqn}");
        if is_missing("namespace") {
            lines.push(format!(
                "{subsystem}/namespaces create bdev_name={nqn} nsid=1 uuid={uuid}"
            ));
        }
        if is_missing("listener") {
            for listener in &self.listeners {
                let line = format!("{subsystem}/listen_addresses create");
                lines.push(Self::with(line, listener));
            }
        }
        self.run_tool(disk, lines, "missing")
    }

    fn remove(&self, disk: &Disk<'_>, facts: &Facts) -> Command {
        let (nqn, kind) = (disk.target, &self.kind);
        let is_present = |what: &str| facts.present.iter().any(|name| name == what);
        let mut lines = Vec::new();
        if is_present("subsystem") {
            lines.push(format!("/nvmf/subsystem delete subsystem_nqn={nqn}"));
        }
        if is_present("bdev") {
            lines.push(format!("/bdevs/{kind} delete name={nqn}"));
        }
        self.run_tool(disk, lines, "present")
    }
}
