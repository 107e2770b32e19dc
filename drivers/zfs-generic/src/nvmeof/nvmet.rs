//! Subsystems of nvmet by its configfs: no tool, one script, saved as `nvmetcli` restores it.

use std::sync::LazyLock;

use driver_core::config::ConfigError;
use driver_core::{Error, NodeId};
use driver_zfs::nodes::Nodes;
use driver_zfs_cli::exec::Command;
use secrecy::ExposeSecret;

use super::keys::Keys;
use super::{NvmetConfig, Port, SAVED};
use crate::config::{Attributes, file};
use crate::disk::{Disk, Stack};
use crate::facts::Facts;
use crate::scripts::{HostPaths, Scripts, bare};

/// The script; `SAVED` is the program that it gives to `awk`.
pub(super) static SCRIPT: LazyLock<String> = LazyLock::new(|| {
    bare(concat!(
        "SAVED='",
        include_str!("../script/saved.awk"),
        "'\n",
        include_str!("../script/common.sh"),
        include_str!("../script/nvmet_nodes.sh"),
        include_str!("../script/nvmet.sh"),
    ))
});

/// All nodes have access, as in the examples of democratic-csi.
const OPEN: [(&str, &str); 1] = [("allow_any_host", "1")];

/// Only named nodes have access.
const CLOSED: [(&str, &str); 1] = [("allow_any_host", "0")];

#[derive(Debug)]
pub(super) struct Nvmet {
    scripts: Scripts,
    attributes: Attributes,
    ports: Vec<Port>,
    keys: Keys,
    save: String,
}

// === impl Nvmet ===

impl Nvmet {
    pub(super) fn new(
        config: &NvmetConfig,
        keys: Keys,
        places: HostPaths,
        key: &str,
    ) -> Result<Self, ConfigError> {
        for (name, set) in [
            ("nvmetcliPath", config.nvmetcli_path.is_some()),
            (
                "configIsImportedFilePath",
                config.config_is_imported_file_path.is_some(),
            ),
        ] {
            if set {
                let problem = "is of the strategy `nvmetCli`; this one runs no tool";
                return Err(ConfigError::at(format!("{key}.{name}"), problem));
            }
        }
        let ports = config.ports(key)?;
        if ports.is_empty() {
            let problem = "is needed: no node could reach a volume";
            return Err(ConfigError::at(format!("{key}.ports"), problem));
        }
        let attributes = config.attributes(key)?;
        let open = attributes.get("allow_any_host");
        if config.nodes.is_some() && open.is_some_and(|text| text != "0") {
            let key = format!("{key}.subsystem.attributes.allow_any_host");
            return Err(ConfigError::at(
                key,
                "lets in every node, whatever `nodes` says",
            ));
        }
        let defaults = if config.nodes.is_some() {
            &CLOSED
        } else {
            &OPEN
        };
        let save = file(config.config_path.as_deref(), &format!("{key}.configPath"))?;
        Ok(Self {
            scripts: Scripts::new(&SCRIPT, "nvmet", config.sudo_enabled, places),
            attributes: attributes.or(defaults),
            ports,
            keys,
            save: save.unwrap_or_else(|| SAVED.to_owned()),
        })
    }

    fn arguments(&self, mode: &str, disk: &Disk<'_>) -> Vec<String> {
        let words = words(&self.ports, &self.attributes).chain(disk.node_words());
        let words = words.chain(disk.out_words());
        let words = words.chain(self.keys.words(disk.concerned));
        arguments(mode, &self.scripts, &self.save, disk, words)
    }

    /// A change, which knows the keys of nodes.
    fn change(&self, mode: &str, disk: &Disk<'_>) -> Command {
        let (arguments, keys) = (self.arguments(mode, disk), self.keys.lines());
        self.keys
            .hiding(self.scripts.change(arguments, keys.expose_secret()))
    }
}

/// Ports and attributes as words of the script.
pub(super) fn words<'a>(
    ports: &'a [Port],
    attributes: &'a Attributes,
) -> impl Iterator<Item = String> + 'a {
    let ports = ports
        .iter()
        .map(|port| format!("port={}{}", port.id, port.address));
    ports.chain(attributes.words("attr="))
}

/// The arguments of the script.
pub(super) fn arguments(
    mode: &str,
    scripts: &Scripts,
    save: &str,
    disk: &Disk<'_>,
    words: impl Iterator<Item = String>,
) -> Vec<String> {
    let places = scripts.places();
    let (configfs, debugfs) = (&places.configfs, &places.debugfs);
    let fixed = [
        mode,
        configfs,
        debugfs,
        &places.pools,
        save,
        disk.target,
        disk.device,
        disk.uuid,
    ];
    fixed.map(str::to_owned).into_iter().chain(words).collect()
}

impl Stack for Nvmet {
    fn places(&self) -> &HostPaths {
        self.scripts.places()
    }

    fn admit(&self, nodes: Option<&Nodes>, node: &NodeId) -> Result<(), Error> {
        self.keys.admit(nodes, node)
    }

    fn asks_for_keys(&self) -> bool {
        self.keys.are_asked_for()
    }

    fn ask_to_cut_off(&self) -> Option<Command> {
        let HostPaths {
            configfs, debugfs, ..
        } = self.scripts.places();
        let fixed = ["shows", configfs, debugfs, "-", "-", "-", "-", "-"];
        let arguments = fixed.map(str::to_owned).to_vec();
        Some(self.scripts.unlocked(arguments, ""))
    }

    fn observe(&self, disk: &Disk<'_>) -> Command {
        let (arguments, keys) = (self.arguments("look", disk), self.keys.lines());
        self.keys
            .hiding(self.scripts.unlocked(arguments, keys.expose_secret()))
    }

    fn make(&self, disk: &Disk<'_>, _facts: &Facts) -> Command {
        self.change("make", disk)
    }

    fn remove(&self, disk: &Disk<'_>, _facts: &Facts) -> Command {
        self.change("remove", disk)
    }

    fn set_access(&self, disk: &Disk<'_>) -> Option<Command> {
        Some(self.change("nodes", disk))
    }

    fn wait_for_disconnect(&self, disk: &Disk<'_>) -> Option<Command> {
        // It changes nothing, so it needs no lock and blocks no other command.
        Some(self.scripts.unlocked(self.arguments("gone", disk), ""))
    }

    fn resize(&self, disk: &Disk<'_>) -> Option<Command> {
        Some(self.scripts.unlocked(self.arguments("resize", disk), ""))
    }
}
