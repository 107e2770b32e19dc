//! Targets of LIO by `targetcli`. The state is read from configfs; the tool makes what is missing, and
//! saves when it exits.
//!
//! The tool always exits with 0, so only an observation after it shows what it has done. Sources:
//! targetcli-fb (`targetcli_shell.py`, `ui_target.py`, `ui_backstore.py`) and the grammar of configshell-fb.

use driver_core::config::ConfigError;
use driver_zfs_cli::exec::Command;
use secrecy::{ExposeSecret, SecretString};

use super::TargetSettings;
use super::lio::{SCRIPT, arguments, examining};
use crate::config::ChapKey;
use crate::disk::{Disk, Stack};
use crate::facts::Facts;
use crate::scripts::{HostPaths, Scripts, TRIES};

/// The file that the tool writes. Its content is not checked.
const NAMED: &str = "named";

/// The tool saves when it exits, as `auto_save_on_exit` says by default. This is for one that is set up otherwise.
const SAVING: &str = "/ saveconfig\nexit\n";

#[derive(Debug)]
pub(super) struct TargetCli {
    scripts: Scripts,
    settings: TargetSettings,
}

// === impl TargetCli ===

impl TargetCli {
    pub(super) fn new(
        settings: TargetSettings,
        sudo: bool,
        places: HostPaths,
        key: &str,
    ) -> Result<Self, ConfigError> {
        for (name, secret) in settings.chap.lines() {
            if !secret.expose_secret().chars().all(takes) {
                let problem = "holds a character that targetcli does not take";
                return Err(
                    ConfigError::at(format!("{key}.tpg.auth.{}", name.name()), problem)
                        .advise("use another one, or the strategy `lio`, which takes any"),
                );
            }
        }
        Ok(Self {
            scripts: Scripts::new(&SCRIPT, "lio", sudo, places),
            settings,
        })
    }

    fn arguments(&self, disk: &Disk<'_>) -> Vec<String> {
        let words = std::iter::once("portal=any".to_owned()).chain(self.settings.words());
        let saved = self.scripts.places().targetcli_saved.as_ref();
        let saved = saved.map_or_else(|| NAMED.to_owned(), |file| format!("{NAMED}:{file}"));
        arguments("look", &self.scripts, &saved, disk, words)
    }

    /// Runs the tool with these lines. The observation after it must not print `word`.
    fn run_tool(&self, disk: &Disk<'_>, lines: &[String], word: &str) -> Command {
        let lines = lines.iter().map(String::as_str).chain(["exit\n"]);
        let lines = lines.collect::<Vec<_>>().join("\n");
        let tool = [TRIES, word, "targetcli", "-"];
        let arguments = self.arguments(disk);
        let secrets = self.settings.secrets();
        let command =
            self.scripts
                .run_tool(tool, [&lines, SAVING], arguments, secrets.expose_secret());
        self.settings.hiding(command)
    }

    /// The commands that make the missing parts. Each line has its full path: after a failed line the tool
    /// continues with the next.
    fn making(&self, disk: &Disk<'_>, facts: &Facts) -> Vec<String> {
        let (export_name, target, device, uuid) =
            (disk.export_name, disk.target, disk.device, disk.uuid);
        let is_missing = |tail: &str| facts.missing.iter().any(|name| name.ends_with(tail));
        let is_present = |name: &str| facts.present.iter().any(|present| present == name);
        let group = format!("/iscsi/{target}/tpg1");
        let mut lines = Vec::new();
        if !is_present("target") {
            lines.push(format!("/iscsi create {target}"));
        } else if is_missing("/tpgt_1") {
            lines.push(format!("/iscsi/{target} create 1"));
        }
        // One line each: the tool ignores the rest of a line after an attribute that the kernel lacks.
        let tpg = self.settings.tpg.words("");
        lines.extend(tpg.map(|word| format!("{group} set attribute {word}")));
        let auth = |(key, secret): (ChapKey, &SecretString)| {
            format!("{}={}", key.name(), secret.expose_secret())
        };
        let chap: Vec<String> = self.settings.chap.lines().map(auth).collect();
        if !chap.is_empty() {
            lines.push(format!("{group} set auth {}", chap.join(" ")));
        }
        if !is_present("backstore") {
            lines.push(format!(
                "/backstores/block create name={export_name} dev={device} wwn={uuid}"
            ));
        } else if is_missing("backstore") {
            // Made and never enabled: the tool cannot go on with it.
            lines.push(format!("/backstores/block delete {export_name}"));
            lines.push(format!(
                "/backstores/block create name={export_name} dev={device} wwn={uuid}"
            ));
        }
        let block = self.settings.block.words("");
        lines.extend(
            block.map(|word| format!("/backstores/block/{export_name} set attribute {word}")),
        );
        if !is_present("target") || is_missing("lun") || is_missing("/lun_0") {
            lines.push(format!(
                "{group}/luns create /backstores/block/{export_name} 0"
            ));
        }
        if is_present("target") && (is_missing("portal") || is_missing("/tpgt_1")) {
            lines.push(format!("{group}/portals create"));
        }
        if is_missing("/enable") {
            lines.push(format!("{group} enable"));
        }
        lines
    }
}

/// The characters that a value of configshell may have.
fn takes(c: char) -> bool {
    c.is_ascii_alphanumeric() || "?;&*$!#,=_\\+/.<>()~@:-%[]".contains(c)
}

impl Stack for TargetCli {
    fn places(&self) -> &HostPaths {
        self.scripts.places()
    }

    fn refuses(&self, disk: &Disk<'_>) -> Option<&'static str> {
        let good = disk.device.chars().all(takes);
        (!good).then_some("targetcli takes no dataset with a blank in its name")
    }

    fn observe(&self, disk: &Disk<'_>) -> Command {
        let secrets = self.settings.secrets();
        let arguments = self.arguments(disk);
        self.settings
            .hiding(self.scripts.unlocked(arguments, secrets.expose_secret()))
    }

    fn examine(&self) -> Option<Command> {
        Some(examining(&self.scripts, &self.settings))
    }

    fn make(&self, disk: &Disk<'_>, facts: &Facts) -> Command {
        self.run_tool(disk, &self.making(disk, facts), "missing")
    }

    fn remove(&self, disk: &Disk<'_>, facts: &Facts) -> Command {
        let present = |piece: &str| facts.present.iter().any(|name| name == piece);
        let mut lines = Vec::new();
        if present("target") {
            lines.push(format!("/iscsi delete {}", disk.target));
        }
        if present("backstore") {
            lines.push(format!("/backstores/block delete {}", disk.export_name));
        }
        self.run_tool(disk, &lines, "present")
    }
}
