//! Subsystems of nvmet by `nvmetcli`. The state is read from configfs; the tool makes what is missing,
//! and saves.
//!
//! The tool always exits with 0, so only an observation after it shows what it has done. Sources:
//! nvmetcli itself and the grammar of configshell-fb.

use driver_core::config::ConfigError;
use driver_zfs_cli::exec::{Command, Program};

use super::nvmet::{SCRIPT, arguments, words};
use super::{NvmetConfig, Port, SAVED};
use crate::config::{Attributes, file, program};
use crate::disk::{Disk, Stack};
use crate::facts::Facts;
use crate::scripts::{HostPaths, Scripts, TRIES};

#[derive(Debug)]
pub(super) struct NvmetCli {
    scripts: Scripts,
    tool: Program,
    attributes: Attributes,
    ports: Vec<Port>,
    save: Option<String>,
    imported: Option<String>,
}

// === impl NvmetCli ===

impl NvmetCli {
    pub(super) fn new(
        config: &NvmetConfig,
        places: HostPaths,
        key: &str,
    ) -> Result<Self, ConfigError> {
        let ports = config.ports(key)?;
        if ports.iter().any(|port| !port.address.is_empty()) {
            let problem = "has to list numbers: ports are made by the strategy `nvmet` only";
            return Err(ConfigError::at(format!("{key}.ports"), problem));
        }
        config.refuse_nodes(key)?;
        let path =
            |text: &Option<String>, name: &str| file(text.as_deref(), &format!("{key}.{name}"));
        Ok(Self {
            scripts: Scripts::new(&SCRIPT, "nvmet", config.sudo_enabled, places),
            tool: program(
                config.nvmetcli_path.as_deref(),
                "nvmetcli",
                &format!("{key}.nvmetcliPath"),
            )?,
            attributes: config.attributes(key)?,
            ports,
            save: path(&config.config_path, "configPath")?,
            imported: path(
                &config.config_is_imported_file_path,
                "configIsImportedFilePath",
            )?,
        })
    }

    fn arguments(&self, mode: &str, disk: &Disk<'_>) -> Vec<String> {
        // The tool's own file is enough by name.
        let save = format!("named:{}", self.save.as_deref().unwrap_or(SAVED));
        let words = words(&self.ports, &self.attributes);
        arguments(mode, &self.scripts, &save, disk, words)
    }

    fn run_tool(&self, disk: &Disk<'_>, mut lines: Vec<String>, word: &str) -> Command {
        lines.push(match &self.save {
            Some(path) => format!("/ saveconfig savefile={path}"),
            None => "/ saveconfig".to_owned(),
        });
        lines.push("exit\n".to_owned());
        let imported = self.imported.as_deref().unwrap_or("-");
        let tool = [TRIES, word, self.tool.as_str(), imported];
        let arguments = self.arguments("look", disk);
        self.scripts
            .run_tool(tool, [&lines.join("\n"), ""], arguments, "")
    }

    /// The commands that make the missing parts. Each line has its full path: after a failed line the tool
    /// continues with the next.
    fn making(&self, disk: &Disk<'_>, facts: &Facts) -> Vec<String> {
        let (target, device, uuid) = (disk.target, disk.device, disk.uuid);
        let subsystem = format!("/subsystems/{target}");
        let namespace = format!("{subsystem}/namespaces/1");
        let is_missing = |tail: &str| facts.missing.iter().any(|name| name.ends_with(tail));
        let is_present = |name: &str| facts.present.iter().any(|present| present == name);
        let mut lines = Vec::new();
        if !is_present("subsystem") {
            lines.push(format!("/subsystems create {target}"));
        }
        let attributes: Vec<String> = self.attributes.words("").collect();
        if !attributes.is_empty() {
            lines.push(format!("{subsystem} set attr {}", attributes.join(" ")));
        }
        if !is_present("namespace") {
            lines.push(format!("{subsystem}/namespaces create 1"));
        }
        if !is_present("namespace") || is_missing("namespace") {
            lines.push(format!(
                "{namespace} set device path={device} uuid={uuid} nguid={uuid}"
            ));
            lines.push(format!("{namespace} enable"));
        }
        for port in &self.ports {
            let link = format!("ports/{}/subsystems", port.id);
            if !is_present("subsystem") || is_missing(&link) {
                lines.push(format!("/{link} create {target}"));
            }
        }
        lines
    }
}

impl Stack for NvmetCli {
    fn places(&self) -> &HostPaths {
        self.scripts.places()
    }

    fn refuses(&self, disk: &Disk<'_>) -> Option<&'static str> {
        let blank = disk.device.contains(' ');
        blank.then_some("nvmetcli takes no dataset with a blank in its name")
    }

    fn observe(&self, disk: &Disk<'_>) -> Command {
        self.scripts.unlocked(self.arguments("look", disk), "")
    }

    fn make(&self, disk: &Disk<'_>, facts: &Facts) -> Command {
        self.run_tool(disk, self.making(disk, facts), "missing")
    }

    fn remove(&self, disk: &Disk<'_>, facts: &Facts) -> Command {
        let target = disk.target;
        let mut lines = Vec::new();
        if facts.present.iter().any(|name| name == "subsystem") {
            for port in &self.ports {
                lines.push(format!("/ports/{}/subsystems delete {target}", port.id));
            }
            lines.push(format!("/subsystems delete {target}"));
        } else if facts.present.iter().any(|name| name == "namespace") {
            lines.push(format!("/subsystems/{target}/namespaces delete 1"));
        }
        self.run_tool(disk, lines, "present")
    }

    fn resize(&self, disk: &Disk<'_>) -> Option<Command> {
        Some(self.scripts.unlocked(self.arguments("resize", disk), ""))
    }
}
